//! Schedule of sweeps: blocks of dead clients are reclaimed while the pool runs low.
//!
//! The node's thread sweeps between two polls of the monitor, a few blocks at a time, so that it
//! takes about a fiftieth of a processor while clients are connected. A sweep relies on a complete
//! list of the clients that have the memory. So the thread sweeps nothing while a client without a
//! session slot has the memory. Nor does it sweep memory of a former incarnation of the node until
//! the node has moved, as unknown clients may have it. There it only counts free blocks, and makes
//! the node move once they run low, as nothing else would ever reclaim blocks.

use std::sync::Arc;

use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::region_layout;
use tidegate_onesided::kv::{HOLDERS, Layout, OpenError, Opening, Pass, Stock, Sweep};
use tidegate_onesided::one_sided::Operation;

use super::rnic::Own;

const _: () = assert!(region_layout::SESSION_SLOTS <= HOLDERS, "a store knows all session slots");

/// The pool runs low when fewer than one of this many blocks is in it. Chosen by hand.
const SHARE: u32 = 4;

/// How long it waits between two steps of a pass while clients are connected. A step takes some 50
/// us.
const CHUNK_WAIT: Span = Span(4 * Span::MILLISECOND.0);

/// The number of chunks that it takes at once without clients. They take some milliseconds, for
/// which a new client waits.
const CHUNKS: u32 = 64;

/// After a pass that reclaimed no block the next one starts after twice the time, up to so many
/// periods.
const PERIODS_MAX: u64 = 64;

/// Sweeps the store of a data node.
pub(super) struct Sweeper {
    sweep: Sweep<Own>,
    /// Writes words that no other process may be writing, by the processor: an RNIC would add a
    /// wait.
    processor: Shm,
    layout: Layout,
    enough: u32,
    period: Span,
    /// The time of the next step, and the wait after a pass.
    at: Time,
    pause: Span,
    /// Whether all clients that have the memory are known.
    is_sure: bool,
    /// Clients without a session slot that have the memory.
    strangers: u32,
    /// When the node may move because blocks run low.
    move_at: Time,
}

impl Sweeper {
    /// Of the store in this memory, by the node's own operations, which have a buffer. `is_sure`
    /// means that no process but this node has had it.
    ///
    /// # Errors
    /// If there is no store that this release can use.
    pub(super) fn new(
        own: Own,
        region: &Arc<Region>,
        period: Span,
        is_sure: bool,
    ) -> Result<Self, OpenError> {
        let layout = Opening::at_once(Shm::new(region.clone(), 1), region_layout::DATA)?;
        let (sweep, processor) = (Sweep::new(own, layout), Shm::new(region.clone(), 0));
        let enough = layout.blocks().div_ceil(SHARE);
        let (at, pause) = (Time::ZERO, period);
        let (strangers, move_at) = (0, Time::ZERO);
        Ok(Self {
            sweep,
            processor,
            layout,
            enough,
            period,
            at,
            pause,
            is_sure,
            strangers,
            move_at,
        })
    }

    /// A client connects: with a session slot, or without one.
    pub(super) fn admit(&mut self, now: Time, session_slot: Option<SessionSlot>) {
        match session_slot {
            // Its client gets the session slot only then, and the layout is of this memory.
            Some(session_slot) => {
                let to = self.layout.holder(session_slot);
                let written = self.processor.perform(&Operation::WriteWord { word: 0, to });
                debug_assert!(written.is_ok(), "{written:?}");
            }
            None => self.strangers += 1,
        }
        self.at = self.at.min(now.after(self.period));
    }

    /// A client has disconnected.
    pub(super) fn leave(&mut self, now: Time, session_slot: Option<SessionSlot>) {
        if session_slot.is_none() {
            self.strangers = self.strangers.saturating_sub(1);
        }
        self.pause = self.period;
        self.at = self.at.min(now);
    }

    /// An unknown client may have the memory.
    pub(super) fn doubt(&mut self) {
        self.is_sure = false;
    }

    /// Takes a step if it is due, and returns the time of the next: never if all is done and there
    /// are no clients.
    pub(super) fn poll(
        &mut self,
        now: Time,
        is_alone: bool,
        is_living: impl Fn(SessionSlot) -> bool,
    ) -> Time {
        if self.strangers > 0 {
            return Time::MAX;
        }
        if now < self.at {
            return self.at;
        }
        if !self.is_sure {
            return self.count(now, is_alone);
        }
        for _ in 0..if is_alone { CHUNKS } else { 1 } {
            match self.sweep.poll(now, self.enough, &is_living) {
                Ok(None) => {}
                Ok(Some(pass)) => {
                    self.at = self.next(now, is_alone, pass);
                    return self.at;
                }
                Err(_) => return Time::MAX,
            }
        }
        self.at = if is_alone { now } else { now.after(CHUNK_WAIT) };
        self.at
    }

    /// Counts free blocks, and sweeps none. Returns when to count again.
    fn count(&mut self, now: Time, is_alone: bool) -> Time {
        // A pass that was under way when doubt arose is not finished, and none begins: no free
        // blocks are enough.
        if self.sweep.is_resting() {
            let _ = self.sweep.poll(now, 0, |_| false);
        }
        self.at = if is_alone { Time::MAX } else { now.after(self.period) };
        self.at
    }

    /// Whether the node has to move, because blocks run low where none may be swept. It is true
    /// again after [`PERIODS_MAX`] periods, if there was no memory to move to.
    pub(super) fn is_move_due(&mut self, now: Time) -> bool {
        let is_low = !self.is_sure && self.stock().free < self.enough;
        let is_due = is_low && now >= self.move_at;
        if is_due {
            self.move_at = now.after(Span(PERIODS_MAX * self.period.0));
        }
        is_due
    }

    /// How many blocks the store has, and how many of them are free, as it was when this was
    /// polled last while clients were there.
    pub(super) fn stock(&self) -> Stock {
        self.sweep.stock()
    }

    /// When the next pass is due.
    fn next(&mut self, now: Time, is_alone: bool, pass: Pass) -> Time {
        match pass {
            Pass::Enough | Pass::Over { swept: 0, noted: 0 } if is_alone => Time::MAX,
            Pass::Enough | Pass::Held => now.after(self.period),
            Pass::Over { swept, noted } => {
                let free = self.sweep.stock().free;
                tracing::debug!(swept, noted, free, "the store was swept");
                let most = Span(PERIODS_MAX * self.period.0);
                self.pause = if swept > 0 { self.period } else { self.pause };
                let pause = self.pause;
                self.pause = Span(2 * pause.0).min(most);
                if is_alone { now } else { now.after(pause) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_onesided::kv::{self, Answer, Area, Client, HEADER};
    use tidegate_onesided::one_sided::{BufferPosition, RemoteMemory as _};

    fn own(region: &Arc<Region>) -> Own {
        Own::new(None, region, 1).unwrap()
    }

    /// A store of 64 blocks, and its sweeper.
    fn store(is_sure: bool) -> (Arc<Region>, Layout, Sweeper) {
        let length = region_layout::DATA + (300 << 10);
        let region = Arc::new(Region::create(length).unwrap());
        let area = Area { at: region_layout::DATA, length: length - region_layout::DATA };
        let layout = Layout::new(area, 1, 8, 64).unwrap();
        let mut remote = Shm::new(region.clone(), 1);
        remote.buffer_mut(0)[..HEADER].copy_from_slice(&layout.header());
        let (from, length) = (BufferPosition::start(0), HEADER as u32);
        remote.perform(&Operation::Write { from, to: region_layout::DATA, length }).unwrap();
        let sweeper = Sweeper::new(own(&region), &region, Span(10), is_sure).unwrap();
        (region, layout, sweeper)
    }

    /// A client that puts a key and dies with the blocks that it has not used.
    fn put_and_die(region: &Arc<Region>, layout: Layout) -> Answer {
        let settings = kv::ClientSettings {
            outstanding: 4,
            locations: 0,
            extent: 16,
            session_slot: Some(SessionSlot(1)),
            rest: Span(20),
        };
        let mut client = Client::new(Shm::new(region.clone(), 8), layout, settings).unwrap();
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            client.put(b"key", b"value", 0).unwrap();
        }
        while client.outstanding() > 0 {
            client.poll(Time(1), &mut outcomes).unwrap();
        }
        outcomes.pop().unwrap().answer
    }

    /// Runs until no step is due.
    fn finish(sweeper: &mut Sweeper, now: &mut u64) {
        while sweeper.poll(Time(*now), true, |_| false) != Time::MAX {
            *now += 1;
        }
    }

    #[test]
    fn clients_that_die_never_fill_a_store() {
        let (region, layout, mut sweeper) = store(true);
        let mut now = 0;
        for _ in 0..1_000 {
            sweeper.admit(Time(now), Some(SessionSlot(1)));
            assert_eq!(put_and_die(&region, layout), Answer::Stored);
            sweeper.leave(Time(now), Some(SessionSlot(1)));
            finish(&mut sweeper, &mut now);
        }
    }

    #[test]
    fn nothing_is_swept_while_the_holders_of_the_memory_are_unknown() {
        let (region, layout, mut sweeper) = store(true);
        sweeper.admit(Time(0), None);
        for _ in 1..1_000 {
            put_and_die(&region, layout);
        }
        assert_eq!(put_and_die(&region, layout), Answer::Full);
        assert_eq!(sweeper.poll(Time(1), true, |_| false), Time::MAX);
        sweeper.leave(Time(2), None);
        finish(&mut sweeper, &mut 3);
        assert_eq!(put_and_die(&region, layout), Answer::Stored);
        let (_, _, mut unsure) = store(false);
        assert_eq!(unsure.poll(Time(1), true, |_| false), Time::MAX);
    }

    #[test]
    fn where_nothing_may_be_swept_the_node_moves_once_blocks_run_low() {
        let (region, layout, mut sweeper) = store(false);
        sweeper.poll(Time(0), false, |_| true);
        assert_eq!(sweeper.stock().free, sweeper.stock().blocks);
        assert!(!sweeper.is_move_due(Time(0)), "there are enough");
        while put_and_die(&region, layout) != Answer::Full {}
        let next = sweeper.poll(Time(5), false, |_| true);
        assert!(next <= Time(10), "it counts again in a period: {next:?}");
        sweeper.poll(Time(10), false, |_| true);
        assert_eq!(sweeper.stock().free, 0, "what is in use is told");
        assert!(sweeper.is_move_due(Time(10)));
        assert!(!sweeper.is_move_due(Time(11)), "it is not reported again at once");
        assert!(sweeper.is_move_due(Time(10 + PERIODS_MAX * 10)), "there may be memory now");
        let (_, _, mut sure) = store(true);
        assert!(!sure.is_move_due(Time(0)));
    }

    #[test]
    fn a_pass_that_finds_nothing_is_not_made_again_at_once() {
        let (region, layout, _) = store(true);
        let mut sweeper = Sweeper::new(own(&region), &region, Span::SECOND, true).unwrap();
        let settings = kv::ClientSettings {
            outstanding: 1,
            locations: 0,
            extent: 1,
            session_slot: Some(SessionSlot(1)),
            rest: Span(0),
        };
        let mut client = Client::new(Shm::new(region, 2), layout, settings).unwrap();
        for key in 0..64u8 {
            client.put(&[key], b"value", 0).unwrap();
            while client.outstanding() > 0 {
                client.poll(Time(0), &mut Vec::new()).unwrap();
            }
        }
        // All blocks are in use, so a pass reclaims none in a quarter of an hour.
        let (mut now, mut polls) = (Time(0), 0);
        while now < Time(900 * Span::SECOND.0) {
            client.poll(now, &mut Vec::new()).unwrap();
            now = sweeper
                .poll(now, false, |session_slot| session_slot == SessionSlot(1))
                .max(now.after(Span(1)));
            polls += 1;
        }
        assert!(polls < 300, "{polls}");
    }
}
