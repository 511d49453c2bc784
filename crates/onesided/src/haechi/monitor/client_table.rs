//! The clients of a data node by session slot: their promises, their reports, and what follows from
//! them.
//!
//! The table admits clients and changes their promises, which take effect in the next period. It
//! detects a client that has done more operations than it had tokens for ([`ClientTable::judge`]),
//! counts the periods in which a client leaves reservation unused, and frees the slots of clients
//! that left or stopped reporting ([`ClientTable::sweep`]).

use alloc::vec::Vec;

use tidegate_algo::onesided::admission::{Capacity, admit};
use tidegate_algo::onesided::capacity::PeriodUsage;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::ClientReport;
use tidegate_model::SessionSlot;

use super::{Denied, EVICT, MonitorEvent, UNUSED};
use crate::haechi::words::Grant;
use crate::session_slots::Slots;

/// A client in its session slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenSlot {
    /// Of this period.
    pub(super) promise: Promise,
    /// From the next one on.
    next: Promise,
    /// Of this period; a client that comes has a part only in the next, unless it is early.
    pub(super) is_in: bool,
    /// It is to have a part of this period at the next poll.
    is_early: bool,
    /// It came within this period.
    pub(super) is_late: bool,
    /// Its grant of this period is void.
    pub(super) is_void: bool,
    /// The number of its last report.
    beat: Option<u16>,
    /// Periods without a report.
    silent: u64,
    /// Periods in a row in which it did not use its reservation, of its own will.
    unused: u32,
    has_overstepped: bool,
    pub(super) is_leaving: bool,
}

impl TakenSlot {
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
pub(super) struct ClientTable {
    session_slots: Vec<Option<TakenSlot>>,
    /// Whether a client has left since grants were written last.
    has_departures: bool,
}

impl ClientTable {
    pub(super) fn new(session_slots: u16) -> Self {
        let session_slots = (0..session_slots).map(|_| None).collect();
        Self { session_slots, has_departures: false }
    }

    pub(super) fn count(&self) -> usize {
        self.session_slots.iter().flatten().count()
    }

    pub(super) fn slots(&self) -> Slots {
        let leaving = self
            .session_slots
            .iter()
            .flatten()
            .filter(|session_slot| session_slot.is_leaving)
            .count();
        Slots { total: self.session_slots.len(), taken: self.count(), leaving }
    }

    pub(super) fn get(&self, session_slot: SessionSlot) -> Option<&TakenSlot> {
        self.session_slots.get(session_slot.index())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, session_slot: SessionSlot) -> Option<&mut TakenSlot> {
        self.session_slots.get_mut(session_slot.index())?.as_mut()
    }

    /// The promise to a session slot from the next period on; none for a free slot.
    pub(super) fn next(&self, session_slot: SessionSlot) -> Option<Promise> {
        self.get(session_slot).map(|taken| taken.next)
    }

    /// The present promise of each session slot; none for a free slot.
    pub(super) fn promises(&self) -> impl Iterator<Item = Option<Promise>> {
        self.session_slots.iter().map(|taken| taken.as_ref().map(|taken| taken.promise))
    }

    /// Takes over a session slot from the grant of a former monitor. One whose client has left is
    /// free with the first period.
    pub(super) fn take_over(&mut self, session_slot: SessionSlot, grant: Option<Grant>) {
        let taken = |grant: Grant| TakenSlot {
            is_leaving: grant.has_left,
            ..TakenSlot::new(grant.promise)
        };
        self.session_slots[session_slot.index()] = grant.map(taken);
    }

    /// Whether a client has left since this was called last.
    pub(super) fn take_departures(&mut self) -> bool {
        core::mem::take(&mut self.has_departures)
    }

    fn depart(&mut self, session_slot: SessionSlot) {
        if let Some(taken) = self.get_mut(session_slot)
            && !core::mem::replace(&mut taken.is_leaving, true)
        {
            self.has_departures = true;
        }
    }

    pub(super) fn admit(
        &mut self,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<SessionSlot, Denied> {
        self.check(None, capacity, is_paced, promise)?;
        let free = self.session_slots.iter().position(Option::is_none).ok_or(Denied::Full)?;
        self.session_slots[free] = Some(TakenSlot::new(promise));
        Ok(SessionSlot::at(free))
    }

    /// Has a client that came in this period do so much in it.
    pub(super) fn start_early(&mut self, session_slot: SessionSlot, limit: u64) {
        if let Some(taken) = self.get_mut(session_slot).filter(|taken| !taken.is_in && limit > 0) {
            taken.promise = Promise { reservation: 0, limit: limit.min(taken.next.limit) };
            taken.is_early = true;
        }
    }

    /// Operations that a session slot may do in this period; 0 if it is not in the period.
    pub(super) fn allowed(&self, session_slot: SessionSlot) -> u64 {
        let taken = self.get(session_slot).filter(|taken| taken.is_in || taken.is_early);
        taken.map_or(0, |taken| taken.promise.limit)
    }

    /// Clients that come early are in this period from now on, with these limits.
    pub(super) fn start_early_clients(&mut self) -> Vec<(SessionSlot, u64)> {
        let mut early_clients = Vec::new();
        for (number, entry) in (0..).map(SessionSlot).zip(&mut self.session_slots) {
            if let Some(taken) = entry.as_mut().filter(|taken| taken.is_early) {
                (taken.is_early, taken.is_in, taken.is_late) = (false, true, true);
                early_clients.push((number, taken.promise.limit));
            }
        }
        early_clients
    }

    pub(super) fn renew(
        &mut self,
        session_slot: SessionSlot,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<(), Denied> {
        let before = self.next(session_slot).ok_or(Denied::Full)?;
        // Less can always be kept, also by a node that turned out to be able to do less than all.
        if promise.reservation > before.reservation {
            self.check(Some(session_slot), capacity, is_paced, promise)?;
        }
        self.get_mut(session_slot).ok_or(Denied::Full)?.next = promise;
        Ok(())
    }

    /// Whether something can be promised beside all others.
    fn check(
        &self,
        session_slot: Option<SessionSlot>,
        capacity: Capacity,
        is_paced: bool,
        promise: Promise,
    ) -> Result<(), Denied> {
        let others = self.session_slots.iter().enumerate();
        let others =
            others.filter(|(number, _)| Some(*number) != session_slot.map(SessionSlot::index));
        let others = others.filter_map(|(_, other)| other.as_ref());
        let others = others.filter(|other| !other.is_leaving);
        let mut reservations: Vec<u64> = others.map(|other| other.next.reservation).collect();
        reservations.push(promise.reservation);
        admit(capacity, &reservations, is_paced).map_err(Denied::Infeasible)
    }

    pub(super) fn dismiss(&mut self, session_slot: SessionSlot) {
        self.depart(session_slot);
    }

    /// Whether a client had issued more by the report before than it has had tokens for by this
    /// one, of which all together took `granted` from the pool, with at most `window` operations
    /// under way. It is reported once. Words of one report may come one after the other, so no more
    /// counts as in hand than by both.
    pub(super) fn judge(
        &mut self,
        number: SessionSlot,
        [before, report]: [&ClientReport; 2],
        granted: u64,
        window: u32,
    ) -> Option<MonitorEvent> {
        if report.is_leaving {
            self.depart(number);
        }
        let taken = self.get_mut(number)?;
        let own = taken.promise.reservation.saturating_sub(report.residual + report.yielded);
        let in_hand = before.in_hand.min(report.in_hand);
        let pooled = report.obtained.min(granted).saturating_sub(in_hand);
        let issued = before.completed + before.in_flight;
        let tokens = own + pooled;
        // Operations that were under way when the period began count in it.
        let slack = 2 * u64::from(window);
        if issued <= tokens + slack || taken.has_overstepped {
            return None;
        }
        taken.has_overstepped = true;
        Some(MonitorEvent::Overstepped { session_slot: number, issued, tokens })
    }

    /// Frees the session slots of clients that left, and of clients that were silent for too long.
    /// The others are in the next period.
    pub(super) fn sweep(&mut self, events: &mut Vec<MonitorEvent>) {
        for (number, entry) in self.session_slots.iter_mut().enumerate() {
            let Some(taken) = entry else { continue };
            taken.silent += 1;
            events.push(match taken {
                TakenSlot { is_leaving: true, .. } => MonitorEvent::Left(SessionSlot::at(number)),
                TakenSlot { silent, .. } if *silent > EVICT => {
                    MonitorEvent::Evicted(SessionSlot::at(number))
                }
                _ => {
                    (taken.promise, taken.is_in, taken.is_void) = (taken.next, true, false);
                    (taken.is_early, taken.is_late) = (false, false);
                    continue;
                }
            });
            *entry = None;
        }
    }

    /// Takes in what a client did of its own will in a period that is over, and reports one that
    /// does not use what it reserved.
    pub(super) fn count_unused(
        &mut self,
        number: SessionSlot,
        (promise, outcome): (Promise, PeriodUsage),
    ) -> Option<MonitorEvent> {
        let taken = self.get_mut(number)?;
        let is_unused = outcome.completed < promise.reservation && outcome.backlogged == 0;
        taken.unused = if is_unused { taken.unused + 1 } else { 0 };
        let is_reported = taken.unused > 0 && taken.unused.is_multiple_of(UNUSED);
        is_reported.then_some(MonitorEvent::Unused { session_slot: number, periods: taken.unused })
    }
}
