//! The clients in a data node's session slots, and the behaviour of each.

use alloc::vec::Vec;

use tidegate_algo::haechi::admission::{Capacity, admit};
use tidegate_algo::haechi::capacity::Outcome;
use tidegate_algo::haechi::engine::Promise;
use tidegate_algo::haechi::monitor::Report;

use super::{Denied, EVICT, Event, UNUSED};
use crate::data_node::slots::Slots;
use crate::haechi::words::Grant;

/// A seat that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// Of this period.
    pub(super) promise: Promise,
    /// From the next one on.
    next: Promise,
    /// Of this period; a client that comes has a part only in the next, unless it is early.
    pub(super) is_in: bool,
    /// It is to have a part of this period at the next look.
    is_early: bool,
    /// It came within this period.
    pub(super) is_late: bool,
    /// Its grant of this period is void.
    pub(super) is_void: bool,
    /// The number of its last report.
    beat: Option<u16>,
    /// Periods in which nothing was heard.
    silent: u64,
    /// Periods in a row in which it did not use its reservation, of its own will.
    unused: u32,
    has_overstepped: bool,
    is_leaving: bool,
}

impl Seat {
    fn new(promise: Promise) -> Self {
        Self {
            promise,
            next: promise,
            is_in: false,
            is_early: false,
            is_late: false,
            is_void: false,
            beat: None,
            silent: 0,
            unused: 0,
            has_overstepped: false,
            is_leaving: false,
        }
    }

    /// Whether there is a report that was not seen yet.
    pub(super) fn has_news(&mut self, beat: u16) -> bool {
        if self.beat == Some(beat) {
            return false;
        }
        (self.beat, self.silent) = (Some(beat), 0);
        true
    }
}

/// The session slots of a data node, and their clients.
#[derive(Debug)]
pub(super) struct Roster {
    seats: Vec<Option<Seat>>,
}

impl Roster {
    pub(super) fn new(seats: u16) -> Self {
        Self { seats: (0..seats).map(|_| None).collect() }
    }

    pub(super) fn count(&self) -> usize {
        self.seats.iter().flatten().count()
    }

    pub(super) fn slots(&self) -> Slots {
        let leaving = self.seats.iter().flatten().filter(|seat| seat.is_leaving).count();
        Slots { total: self.seats.len(), taken: self.count(), leaving }
    }

    pub(super) fn get(&self, seat: u16) -> Option<&Seat> {
        self.seats.get(usize::from(seat))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, seat: u16) -> Option<&mut Seat> {
        self.seats.get_mut(usize::from(seat))?.as_mut()
    }

    /// The promise to a session slot from the next period on; none for a free slot.
    pub(super) fn next(&self, seat: u16) -> Option<Promise> {
        self.get(seat).map(|seat| seat.next)
    }

    /// The present promise of each session slot; none for a free slot.
    pub(super) fn promises(&self) -> impl Iterator<Item = Option<Promise>> {
        self.seats.iter().map(|seat| seat.as_ref().map(|seat| seat.promise))
    }

    /// Takes over a session slot from the grant of a former monitor.
    pub(super) fn take_over(&mut self, seat: u16, grant: Option<Grant>) {
        self.seats[usize::from(seat)] = grant.map(|grant| Seat::new(grant.promise));
    }

    pub(super) fn admit(
        &mut self,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<u16, Denied> {
        self.check(None, capacity, is_paced, promise)?;
        let free = self.seats.iter().position(Option::is_none).ok_or(Denied::Full)?;
        self.seats[free] = Some(Seat::new(promise));
        Ok(free as u16)
    }

    /// Has a client that came in this period do so much in it.
    pub(super) fn seat_early(&mut self, seat: u16, limit: u64) {
        if let Some(seat) = self.get_mut(seat).filter(|seat| !seat.is_in && limit > 0) {
            seat.promise = Promise { reservation: 0, limit: limit.min(seat.next.limit) };
            seat.is_early = true;
        }
    }

    /// Operations that a session slot may do in this period; 0 if it is not in the period.
    pub(super) fn allowed(&self, seat: u16) -> u64 {
        let seat = self.get(seat).filter(|seat| seat.is_in || seat.is_early);
        seat.map_or(0, |seat| seat.promise.limit)
    }

    /// Clients that come early are in this period from now on, with these limits.
    pub(super) fn come(&mut self) -> Vec<(u16, u64)> {
        let mut come = Vec::new();
        for (number, seat) in (0..).zip(&mut self.seats) {
            if let Some(seat) = seat.as_mut().filter(|seat| seat.is_early) {
                (seat.is_early, seat.is_in, seat.is_late) = (false, true, true);
                come.push((number, seat.promise.limit));
            }
        }
        come
    }

    pub(super) fn renew(
        &mut self,
        seat: u16,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<(), Denied> {
        let before = self.next(seat).ok_or(Denied::Full)?;
        // Less can always be kept, also by a node that turned out to be able to do less than all.
        if promise.reservation > before.reservation {
            self.check(Some(seat), capacity, is_paced, promise)?;
        }
        self.get_mut(seat).ok_or(Denied::Full)?.next = promise;
        Ok(())
    }

    /// Whether something can be promised beside all others.
    fn check(
        &self,
        seat: Option<u16>,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<(), Denied> {
        let others = self.seats.iter().enumerate();
        let others = others.filter(|(number, _)| Some(*number) != seat.map(usize::from));
        let others = others.filter_map(|(_, other)| other.as_ref());
        let others = others.filter(|other| !other.is_leaving);
        let mut asked: Vec<u64> = others.map(|other| other.next.reservation).collect();
        asked.push(promise.reservation);
        admit(capacity, &asked, is_paced).map_err(Denied::Infeasible)
    }

    pub(super) fn dismiss(&mut self, seat: u16) {
        if let Some(seat) = self.get_mut(seat) {
            seat.is_leaving = true;
        }
    }

    /// Whether a client had issued more by the report before than it has had tokens for by this
    /// one, of which all together took `granted` from the pool, with at most `window` operations
    /// under way. It is told once. Words of one report may come one after the other, so no more
    /// counts as in hand than by both.
    pub(super) fn judge(
        &mut self,
        number: u16,
        [before, report]: [&Report; 2],
        granted: u64,
        window: u32,
    ) -> Option<Event> {
        let seat = self.get_mut(number)?;
        seat.is_leaving |= report.is_leaving;
        let own = seat.promise.reservation.saturating_sub(report.residual + report.yielded);
        let in_hand = before.in_hand.min(report.in_hand);
        let pooled = report.obtained.min(granted).saturating_sub(in_hand);
        let issued = before.completed + before.in_flight;
        let tokens = own + pooled;
        // Operations that were under way when the period began count in it.
        let slack = 2 * u64::from(window);
        if issued <= tokens + slack || seat.has_overstepped {
            return None;
        }
        seat.has_overstepped = true;
        Some(Event::Overstepped { seat: number, issued, tokens })
    }

    /// Frees the session slots of clients that left, and of clients that were silent for too long.
    /// The others are in the next period.
    pub(super) fn sweep(&mut self, events: &mut Vec<Event>) {
        for (number, place) in self.seats.iter_mut().enumerate() {
            let Some(seat) = place else { continue };
            seat.silent += 1;
            events.push(match seat {
                Seat { is_leaving: true, .. } => Event::Left(number as u16),
                Seat { silent, .. } if *silent > EVICT => Event::Evicted(number as u16),
                _ => {
                    (seat.promise, seat.is_in, seat.is_void) = (seat.next, true, false);
                    (seat.is_early, seat.is_late) = (false, false);
                    continue;
                }
            });
            *place = None;
        }
    }

    /// Takes in what a client did of its own will in a period that is over, and tells of one that
    /// does not use what it reserved.
    pub(super) fn count_unused(
        &mut self,
        number: u16,
        (promise, outcome): (Promise, Outcome),
    ) -> Option<Event> {
        let seat = self.get_mut(number)?;
        let is_unused = outcome.completed < promise.reservation && outcome.backlogged == 0;
        seat.unused = if is_unused { seat.unused + 1 } else { 0 };
        let tells = seat.unused > 0 && seat.unused.is_multiple_of(UNUSED);
        tells.then_some(Event::Unused { seat: number, periods: seat.unused })
    }
}
