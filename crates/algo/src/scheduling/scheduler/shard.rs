//! A scheduler as one shard of several: its summary for the other shards, and its use of theirs
//! ([`crate::scheduling::shards`]).

use tidegate_model::{Discipline, Time};

use super::{Dispatched, Pacing, Scheduler, Slot};
use crate::scheduling::phase::{Passed, Phase};
use crate::scheduling::shards::{LEAD, OtherShards, ShardHead};

/// Requests that came within so many nanoseconds of each other, as a power of two, need not go in
/// order of arrival if they are in different shards: 65 µs.
const ARRIVALS: u32 = 16;

impl<J> Scheduler<J> {
    /// The scheduler of one shard of several. Unattributed requests wait in shard zero.
    pub fn in_shard(shard: u16, discipline: Discipline, pacing: Pacing) -> Self {
        Self { shard, ..Self::new(discipline, pacing) }
    }

    /// The slot, or [`Slot::UNATTRIBUTED`] if it was removed.
    #[inline]
    pub fn present(&self, slot: Slot) -> Slot {
        if self.index(slot) == 0 { Slot::UNATTRIBUTED } else { slot }
    }

    /// Returns the summary that it publishes to the other shards.
    pub fn shard_head(&self) -> ShardHead {
        let start_tag = |phase: Phase| {
            let (start_tag, _) = self.fair_queues[phase as usize].heap.first()?;
            Some((phase, start_tag))
        };
        ShardHead {
            reserved: [Phase::Urgent, Phase::Reserved].into_iter().find_map(start_tag),
            fair: core::array::from_fn(|class| start_tag(Phase::fair(class)).map(|(_, tag)| tag)),
            virtual_times: self.fair_queues.each_ref().map(|fair_queue| fair_queue.virtual_time),
            lead: self.lead(),
            next_eligible: self.next_eligible().unwrap_or(Time::MAX),
            passed: self.own,
        }
    }

    /// Observes the virtual times of the other shards. In a fair queue without waiting tenants
    /// here, later ones begin at the greatest virtual time; waiting tenants are left no farther
    /// behind it than the lead.
    pub fn observe(&mut self, others: &OtherShards) {
        self.passed = self.own + others.passed;
        self.is_contended = others.is_backlogged();
        if self.discipline == Discipline::Fifo {
            return;
        }
        let lead = 1 << self.lead().max(others.lead);
        for (fair_queue, farthest) in self.fair_queues.iter_mut().zip(others.virtual_times) {
            match fair_queue.heap.first() {
                None => fair_queue.virtual_time = fair_queue.virtual_time.max(farthest),
                Some((first, _)) => {
                    let least = farthest.saturating_sub(lead);
                    if first < least {
                        fair_queue.heap.raise(least);
                        fair_queue.virtual_time = fair_queue.virtual_time.max(least);
                    }
                }
            }
        }
    }

    /// As [`Self::pop`], if no other shard goes first.
    pub fn pop_beside(&mut self, now: Time, others: &OtherShards) -> Option<Dispatched<J>> {
        self.promote(now);
        let (phase, start_tag, index) = self.first(others)?;
        let may_go = others.allow(phase, start_tag, self.lead());
        may_go.then(|| self.take(now, (phase, start_tag), index, others))
    }

    /// The same, if the next request uses a reservation token.
    pub fn pop_reserved_beside(
        &mut self,
        now: Time,
        others: &OtherShards,
    ) -> Option<Dispatched<J>> {
        self.promote(now);
        let (phase, start_tag, index) = self.first(others)?;
        let may_go = phase.is_reserved() && others.allow(phase, start_tag, self.lead());
        may_go.then(|| self.take(now, (phase, start_tag), index, others))
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
