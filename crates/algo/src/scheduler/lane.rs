//! A scheduler that is one of several: its summary for the others, and its use of theirs
//! ([`crate::lanes`]).

use tidegate_model::{Discipline, Time};

use super::state::{Passed, Step};
use super::{Dispatched, Pacing, Scheduler};
use crate::lanes::{Front, LEAD, Others};

/// Requests that came within so many nanoseconds of each other, as a power of two, need not go in
/// order of arrival if they are in different lanes: 65 µs.
const ARRIVALS: u32 = 16;

impl<J> Scheduler<J> {
    /// The scheduler of one lane of several. Requests for nobody wait in lane zero.
    pub fn in_lane(lane: u16, discipline: Discipline, pacing: Pacing) -> Self {
        Self { lane, ..Self::new(discipline, pacing) }
    }

    /// Returns the summary that it shows to the other lanes.
    pub fn front(&self) -> Front {
        Front {
            head: self.first().map(|(step, start, _)| (step, start)),
            races: self.races.each_ref().map(|race| race.start),
            lead: self.lead(),
            next_eligible: self.next_eligible().unwrap_or(Time::MAX),
            passed: self.own,
        }
    }

    /// Takes note of how far the other lanes are. In a race without waiting tenants here, later
    /// ones begin where the farthest lane is; waiting tenants are left no farther behind than the
    /// lead.
    pub fn heed(&mut self, others: &Others) {
        self.passed = self.own + others.passed;
        self.is_contended = others.is_backlogged();
        if self.discipline == Discipline::Fifo {
            return;
        }
        let lead = 1 << self.lead().max(others.lead);
        for (race, farthest) in self.races.iter_mut().zip(others.races) {
            match race.heap.first() {
                None => race.start = race.start.max(farthest),
                Some((first, _)) => {
                    let least = farthest.saturating_sub(lead);
                    if first < least {
                        race.heap.raise(least);
                        race.start = race.start.max(least);
                    }
                }
            }
        }
    }

    /// As [`Self::pop`], if it is not another lane's turn.
    pub fn pop_beside(&mut self, now: Time, others: &Others) -> Option<Dispatched<J>> {
        self.promote(now);
        let (step, start, index) = self.first()?;
        others.allow(step, start, self.lead()).then(|| self.take(now, step, start, index))
    }

    /// The same, if the next one goes by right.
    pub fn pop_reserved_beside(&mut self, now: Time, others: &Others) -> Option<Dispatched<J>> {
        self.promote(now);
        let (step, start, index) = self.first()?;
        let may_go = step != Step::Fair && others.allow(step, start, self.lead());
        may_go.then(|| self.take(now, step, start, index))
    }

    /// How far it may be ahead of the others, as a power of two.
    fn lead(&self) -> u32 {
        match self.discipline {
            Discipline::Fifo => ARRIVALS,
            _ => {
                // Work of 32 bits and a unit of 70 are less than 2^102 long.
                let longest = self.longest[0].max(self.longest[1]);
                u128::BITS - longest.leading_zeros() + LEAD.ilog2()
            }
        }
    }
}

impl core::ops::Add for Passed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.wrapping_add(other.reserved),
            fair: self.fair.wrapping_add(other.fair),
        }
    }
}
