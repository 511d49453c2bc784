//! The data node's monitor: it opens periods, keeps the pool, and learns the node's capacity.
//!
//! # Mechanism
//! Once a tick it reads all reports and the pool, lets [`pool`](tidegate_algo::onesided::monitor)
//! decide, and adds the difference to the pool by a fetch-and-add, whose answer shows what was
//! taken in between. So it never overwrites what clients take, and nothing is granted that is not
//! in the books.
//!
//! When a period is over it writes all grants and then adds what makes the pool one of the next
//! period. Clients' final words of the old one are read once all are there, a [`GRACE`] later at
//! the latest, and what is learned from them counts from then on.
//!
//! A client that is [started early](Monitor::start_early) need not wait for the next period. Its
//! grant is written at the next tick, reserves nothing, and is marked as late. So the client may
//! begin at once with pool tokens only, and promises to other clients stay.
//!
//! All that another monitor needs stands in the region: the lease, the grants with what was
//! promised and which clients have left since, and the capacity that was learned. One that starts
//! takes the lease, which ends the work of a former one, and opens a period, which voids all tokens
//! of the former and frees the session slots of clients that had left.
//!
//! Bounds. Two words of eight bytes per tick and a line per client, whatever clients do.

mod client_table;
mod closing;
mod event;
mod integrity;

use alloc::vec::Vec;

use tidegate_algo::onesided::admission::Capacity;
use tidegate_algo::onesided::capacity::{Estimator, Profile, WHOLE};
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::TokenAccount;
use tidegate_algo::onesided::{Mode, Period};
use tidegate_model::{SessionSlot, Span, Time};

use client_table::{ClientTable, TakenSlot};
use closing::Closing;
pub use event::{Denied, MonitorEvent, Summary};

use super::port::word;
use super::words::{self, GRANT, Grant, PoolWord, REPORT};
use super::{SessionParameters, region_layout};
use crate::one_sided::{BUFFER, BufferPosition, Done, Lost, Operation, Post, RemoteMemory, WORD};
use crate::session_slots::Slots;

/// How long after a period final words are read at the latest: the last to write its own may have
/// found a line of all that was under way.
pub const GRACE: Span = Span(20 * Span::MILLISECOND.0);

/// After so many periods without a word a client loses its session slot.
pub const EVICT: u64 = 3;

/// After so many periods in a row below its reservation a client is reported.
pub const UNUSED: u32 = 10;

/// Session slots of a buffer.
const PER_BUFFER: u16 = (BUFFER as u64 / region_layout::LINE) as u16;

/// Words of a line.
const LINE: usize = (region_layout::LINE / WORD) as usize;

/// The settings that a monitor is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorSettings {
    /// Parameters that the monitor agrees on with its clients.
    pub parameters: SessionParameters,
    /// The measured performance of the node, from profiling.
    pub profile: Profile,
    /// Session slots of the node.
    pub session_slots: u16,
    /// Operations that a client keeps under way at most.
    pub window: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MonitorStep {
    /// Reading the region's control words and grants.
    Opening,
    /// Taking the lease.
    Taking,
    /// Waiting for the next tick.
    Resting,
    /// Reading reports, pool and lease.
    Reading,
    /// Changing the pool.
    Changing,
    /// Making the pool one of another period.
    Beginning,
    /// Another monitor is at work.
    Over,
}

/// Names of operations.
const READ: u64 = 0;
const PEEK: u64 = 1;
const LEASE: u64 = 2;
const CHANGE: u64 = 3;
const WRITE: u64 = 4;

/// A data node's monitor.
#[derive(Debug)]
pub struct Monitor<F> {
    remote: F,
    settings: MonitorSettings,
    account: TokenAccount,
    estimator: Estimator,
    client_table: ClientTable,
    step: MonitorStep,
    /// Operations of this step that are under way.
    pending: u32,
    done: Vec<Done>,
    lease: u64,
    /// The lease as it was read in this step, if it was requested.
    seen_lease: Option<u64>,
    /// The pool as it was seen last, and the tokens that are being added to it.
    seen: u64,
    added: u64,
    epoch: u64,
    tick: Time,
    /// The period before, until its final words were read.
    closing: Option<Closing>,
    held: Span,
    last_read: Time,
    /// The learned capacity as the region states it, in operations per period.
    published_capacity: u64,
}

impl<F: RemoteMemory> Monitor<F> {
    /// A monitor that takes over a region, or makes a fresh one if it is all zero. If the
    /// connection answers at once, the monitor then has the client of each session slot, else once
    /// it was [polled](Self::poll).
    ///
    /// # Errors
    /// The connection, if its region has no control area or it has too few buffers for the session
    /// slots.
    pub fn new(remote: F, settings: MonitorSettings, now: Time) -> Result<Self, F> {
        let session_slots = settings.session_slots.min(region_layout::SESSION_SLOTS);
        let needed = 2 * u32::from(session_slots.div_ceil(PER_BUFFER)) + 1;
        if remote.region() < region_layout::DATA || remote.buffers() < needed {
            return Err(remote);
        }
        let SessionParameters { rules, period, .. } = settings.parameters;
        let mut monitor = Self {
            remote,
            settings: MonitorSettings { session_slots, ..settings },
            account: TokenAccount::new(rules, period),
            estimator: Estimator::new(rules.capacity, settings.profile, None),
            client_table: ClientTable::new(session_slots),
            step: MonitorStep::Opening,
            pending: 0,
            done: Vec::new(),
            lease: 0,
            seen_lease: None,
            seen: 0,
            added: 0,
            epoch: 0,
            tick: now,
            closing: None,
            held: Span::ZERO,
            last_read: now,
            published_capacity: 0,
        };
        monitor.read(region_layout::HEADER, 0, region_layout::NIC as u32);
        monitor.read_lines(region_layout::GRANTS);
        // A region that is lost is lost at the first poll, too.
        while monitor.take_completions(now) == Ok(true) {}
        if monitor.pending == 0 {
            monitor.open();
        }
        Ok(monitor)
    }

    /// Gives a client a session slot, from the next period on.
    ///
    /// # Errors
    /// Why its reservation cannot be promised beside the others, or that they are not known yet.
    /// Nothing has changed then.
    pub fn admit(&mut self, promise: Promise) -> Result<SessionSlot, Denied> {
        self.must_know()?;
        self.client_table.admit(self.limits(), !self.is_in_bursts(), promise)
    }

    /// Lets a client that was admitted just now do something in the period that runs: `limit`
    /// operations at most, from the next poll on and with pool tokens only. All other tokens of the
    /// period are promised, so what is reserved for it begins with the next. A limit of 0 changes
    /// nothing.
    ///
    /// Example: 500 of 1,000 operations of a period are reserved for others, and the pool has given
    /// out 400 when a client with a reservation of 500 comes. It finds 100 in the pool until the
    /// period is over. Had it 250 of its reservation at once, 1,150 would be promised.
    pub fn start_early(&mut self, session_slot: SessionSlot, limit: u64) {
        self.client_table.start_early(session_slot, limit);
    }

    /// Operations that a session slot may do in the running period, also if its client has left
    /// since; 0 for a slot that is not in the period.
    pub fn allowed(&self, session_slot: SessionSlot) -> u64 {
        self.client_table.allowed(session_slot)
    }

    /// Promises a session slot something else, from the next period on.
    ///
    /// # Errors
    /// As [`Self::admit`]; also if the session slot is free.
    pub fn renew(&mut self, session_slot: SessionSlot, promise: Promise) -> Result<(), Denied> {
        self.must_know()?;
        self.client_table.renew(session_slot, self.limits(), !self.is_in_bursts(), promise)
    }

    /// Fails while the promises of a former monitor are not read yet: they would replace a new
    /// promise.
    const fn must_know(&self) -> Result<(), Denied> {
        if matches!(self.step, MonitorStep::Opening) { Err(Denied::Opening) } else { Ok(()) }
    }

    /// Whether what can be promised depends on all clients beginning at once. The text does not
    /// require that: its Definition 2 has two constraints only.
    fn is_in_bursts(&self) -> bool {
        let rules = self.settings.parameters.rules;
        rules.capacity == Mode::Sound && !rules.paces
    }

    /// The known capacity of the node and of one client, in operations per period.
    fn limits(&self) -> Capacity {
        Capacity { global: self.estimator.capacity(), local: self.settings.profile.local }
    }

    /// Takes a session slot back at the end of this period.
    pub fn dismiss(&mut self, session_slot: SessionSlot) {
        self.client_table.dismiss(session_slot);
    }

    /// The promise to a session slot from the next period on; none for a free slot.
    pub fn promise(&self, session_slot: SessionSlot) -> Option<Promise> {
        self.client_table.next(session_slot)
    }

    /// How many session slots there are, and how many are not free.
    pub fn slots(&self) -> Slots {
        self.client_table.slots()
    }

    /// The number of the running period; 0 before the first of this monitor's.
    pub fn epoch(&self) -> u64 {
        self.account.period().epoch
    }

    /// The books of this period.
    pub fn account(&self) -> &TokenAccount {
        &self.account
    }

    /// Ω of the next period, as far as is known.
    pub fn capacity(&self) -> u64 {
        self.estimator.capacity()
    }

    /// Whether it waits for operations of its own. Where no thread announces their completion, the
    /// monitor is to be polled until it waits no more.
    pub fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Whether it waits for the next tick, and nothing of its own is under way.
    pub fn is_resting(&self) -> bool {
        self.step == MonitorStep::Resting && self.pending == 0
    }

    /// When to poll although none of its operations is done; never, if it waits for one.
    pub fn next_deadline(&self) -> Time {
        match self.step {
            _ if self.pending > 0 => Time::MAX,
            MonitorStep::Resting => self.tick,
            MonitorStep::Over => Time::MAX,
            _ => self.last_read,
        }
    }

    /// Goes on as far as can be, and reports events.
    ///
    /// # Errors
    /// If the region is lost.
    pub fn poll(&mut self, now: Time, events: &mut Vec<MonitorEvent>) -> Result<(), Lost> {
        if self.step == MonitorStep::Resting && now >= self.tick {
            self.start_reading(now);
        }
        loop {
            let some = self.take_completions(now)?;
            if self.pending > 0 {
                if some {
                    continue;
                }
                return Ok(());
            }
            match self.step {
                MonitorStep::Opening => self.open(),
                MonitorStep::Taking => self.on_lease(now, events),
                MonitorStep::Reading => self.decide(now, events),
                MonitorStep::Changing | MonitorStep::Beginning => self.rest(now),
                MonitorStep::Resting | MonitorStep::Over => return Ok(()),
            }
        }
    }

    /// Takes in completed operations, if there are any.
    fn take_completions(&mut self, now: Time) -> Result<bool, Lost> {
        self.remote.flush(now)?;
        let mut done = core::mem::take(&mut self.done);
        self.remote.poll(now, &mut done)?;
        let some = !done.is_empty();
        done.iter().for_each(|one| self.on_done(*one));
        done.clear();
        self.done = done;
        Ok(some)
    }

    fn on_done(&mut self, done: Done) {
        self.pending -= 1;
        match done.id {
            PEEK => self.seen = done.word,
            LEASE => self.seen_lease = Some(done.word),
            CHANGE => {
                self.seen = done.word.wrapping_add(self.added);
                let [before, after] =
                    [done.word, self.seen].map(|word| PoolWord::read(word).tokens);
                match self.step {
                    MonitorStep::Beginning => self.account.opened(after),
                    _ => self.account.changed(before, after),
                }
            }
            _ => {}
        }
    }

    fn post(&mut self, id: u64, operation: Operation) {
        // The steps post less than any connection holds, all of it in the control area.
        let is_posted = self.remote.post(Post { id, operation }).is_ok();
        debug_assert!(is_posted, "{operation:?}");
        self.pending += u32::from(is_posted);
    }

    fn read(&mut self, from: u64, buffer: u32, length: u32) {
        self.post(READ, Operation::Read { from, into: BufferPosition::start(buffer), length });
    }

    /// The buffers of lines: how many, after that of the header.
    fn line_buffers(&self) -> u32 {
        self.settings.session_slots.div_ceil(PER_BUFFER).into()
    }

    fn read_lines(&mut self, area: u64) {
        for at in 0..self.line_buffers() {
            let first = at as u16 * PER_BUFFER;
            let session_slots = (self.settings.session_slots - first).min(PER_BUFFER);
            let length = u32::from(session_slots) * region_layout::LINE as u32;
            self.read(region_layout::line(area, SessionSlot(first)), 1 + at, length);
        }
    }

    /// The words of a line that was read.
    fn line(&self, session_slot: SessionSlot) -> [u64; LINE] {
        let buffer = self.remote.buffer(1 + u32::from(session_slot.0 / PER_BUFFER));
        core::array::from_fn(|at| {
            word(buffer, usize::from(session_slot.0 % PER_BUFFER) * LINE + at)
        })
    }

    /// The region is known now.
    fn open(&mut self) {
        let header = self.remote.buffer(0);
        let at = |offset: u64| word(header, (offset / WORD) as usize);
        let (magic, learned) = (at(region_layout::HEADER), at(region_layout::LEARNED));
        (self.lease, self.seen) = (at(region_layout::LEASE), at(region_layout::POOL));
        self.epoch = self.seen >> 48;
        self.published_capacity = learned;
        if magic == region_layout::MAGIC {
            let learned = Some(learned).filter(|learned| *learned > 0);
            let mode = self.settings.parameters.rules.capacity;
            self.estimator = Estimator::new(mode, self.settings.profile, learned);
            for session_slot in (0..self.settings.session_slots).map(SessionSlot) {
                let [head, reservation, limit, ..] = self.line(session_slot);
                self.client_table
                    .take_over(session_slot, Grant::read([head, reservation, limit], 0));
            }
        }
        for (to, word) in [
            (region_layout::HEADER, region_layout::MAGIC),
            (region_layout::LAYOUT, region_layout::VERSION),
        ] {
            self.post(WRITE, Operation::WriteWord { word, to });
        }
        // The lease word may hold any value: clients can write to it.
        let (expected, new) = (self.lease, self.lease.wrapping_add(1));
        self.post(LEASE, Operation::CompareSwap { at: region_layout::LEASE, expected, new });
        self.step = MonitorStep::Taking;
    }

    fn on_lease(&mut self, now: Time, events: &mut Vec<MonitorEvent>) {
        if self.seen_lease != Some(self.lease) {
            return self.give_up(events);
        }
        self.lease = self.lease.wrapping_add(1);
        self.start_reading(now);
    }

    fn give_up(&mut self, events: &mut Vec<MonitorEvent>) {
        self.step = MonitorStep::Over;
        events.push(MonitorEvent::Superseded);
    }

    fn start_reading(&mut self, now: Time) {
        self.held.0 +=
            now.since(self.last_read).0 * u64::from(self.account.held()) / u64::from(WHOLE);
        (self.last_read, self.seen_lease) = (now, None);
        self.read_lines(region_layout::REPORTS);
        self.post(PEEK, Operation::FetchAdd { at: region_layout::POOL, add: 0 });
        if self.is_over(now) {
            self.post(LEASE, Operation::FetchAdd { at: region_layout::LEASE, add: 0 });
        }
        self.step = MonitorStep::Reading;
    }

    fn is_over(&self, now: Time) -> bool {
        let period = self.account.period();
        period.epoch == 0 || now >= period.end() || self.is_usurped()
    }

    /// Another monitor has made the pool one of its own period. One that has lost the lease gives
    /// up then; one that has it begins another period, which voids the tokens of both.
    fn is_usurped(&self) -> bool {
        self.account.period().epoch > 0 && !PoolWord::read(self.seen).is_of(self.epoch)
    }

    /// All that is to be known is known.
    fn decide(&mut self, now: Time, events: &mut Vec<MonitorEvent>) {
        // Tokens that were taken since the pool was changed are gone, and must not be given out
        // again. Clients may have reported them already.
        let tokens = PoolWord::read(self.seen).tokens;
        self.account.changed(tokens, tokens);
        self.read_reports(now, events);
        if self
            .closing
            .as_ref()
            .is_some_and(|closing| now >= closing.at || self.has_all_finals(closing))
        {
            self.close(events);
        }
        match self.seen_lease {
            Some(lease) if lease != self.lease => return self.give_up(events),
            Some(_) => return self.begin(now, events),
            None if self.is_usurped() => return self.start_reading(now),
            None => {}
        }
        let gone = self.account.suspects(now);
        events.extend(
            gone.into_iter()
                .map(|session_slot| MonitorEvent::Silent(SessionSlot::at(session_slot))),
        );
        let early_clients = self.client_table.start_early_clients();
        early_clients
            .iter()
            .for_each(|(session_slot, limit)| self.account.join(now, session_slot.index(), *limit));
        let have_left = self.client_table.take_departures();
        if self.doubt(now) || have_left || !early_clients.is_empty() {
            self.write_grants();
        }
        let target = self.account.target(now);
        if target == tokens {
            return self.rest(now);
        }
        self.add((target - tokens) as u64, MonitorStep::Changing);
    }

    fn add(&mut self, add: u64, step: MonitorStep) {
        (self.added, self.step) = (add, step);
        self.post(CHANGE, Operation::FetchAdd { at: region_layout::POOL, add });
    }

    fn rest(&mut self, now: Time) {
        let end = self.account.period().end();
        let tick = self.settings.parameters.rules.grain.tick;
        self.tick = now.after(tick).min(end.max(now.after(Span(1))));
        self.step = MonitorStep::Resting;
    }

    fn read_reports(&mut self, now: Time, events: &mut Vec<MonitorEvent>) {
        for number in (0..self.settings.session_slots).map(SessionSlot) {
            let line = self.line(number);
            let Some(session_slot) = self.client_table.get_mut(number) else { continue };
            let words: [u64; REPORT] = core::array::from_fn(|at| line[at]);
            if !session_slot.has_news(words::beat(words)) {
                continue;
            }
            let report = words::read_report(words, self.epoch).filter(|_| session_slot.is_in);
            let before = self.account.report(number.index()).unwrap_or_default();
            self.account.on_report(now, number.index(), report);
            let Some(report) = report else { continue };
            let (granted, window) = (self.account.granted(), self.settings.window);
            events.extend(self.client_table.judge(number, [&before, &report], granted, window));
        }
    }

    /// Makes the grants of silent clients void until the next period, if there are any. The grants
    /// are still to be written.
    fn doubt(&mut self, now: Time) -> bool {
        let doubted = self.account.doubts(now);
        for session_slot in &doubted {
            if let Some(session_slot) = self.client_table.get_mut(SessionSlot::at(*session_slot)) {
                session_slot.is_void = true;
            }
        }
        !doubted.is_empty()
    }

    fn grant(&self, session_slot: &TakenSlot) -> Grant {
        let TakenSlot { promise, is_void, is_late, is_leaving: has_left, .. } = *session_slot;
        Grant { epoch: self.epoch, is_void, is_late, has_left, batch: self.batch(), promise }
    }

    /// B: small enough that what all have in hand is a small part of a period.
    fn batch(&self) -> u16 {
        let session_slots = self.client_table.count().max(1) as u64;
        let capacity = self.estimator.capacity();
        let SessionParameters { rules, .. } = self.settings.parameters;
        let (tick, most) = (rules.grain.tick, u64::from(rules.grain.batch));
        let window = u64::from(self.settings.window).min(most);
        let batch = match (rules.pool, rules.paces) {
            (Mode::Paper, _) => most,
            (Mode::Sound, false) => capacity / 200 / session_slots,
            // More would be in hand where it is not used, less would cost more than it brings.
            (Mode::Sound, true) => self.due(capacity, Span(2 * tick.0)).div_ceil(session_slots),
        };
        batch.clamp(window, most) as u16
    }

    /// The number of `count` operations that is due after `part` of a period.
    fn due(&self, count: u64, part: Span) -> u64 {
        let length = self.settings.parameters.period;
        Period { epoch: 0, begun: Time::ZERO, length }.due(count, Time::ZERO.after(part))
    }

    /// Opens the next period.
    fn begin(&mut self, now: Time, events: &mut Vec<MonitorEvent>) {
        if self.epoch > 0 && self.account.period().epoch > 0 {
            self.shut(now, events);
        }
        let ahead = PoolWord::read(self.seen).epoch.wrapping_sub(self.epoch as u16) as i16;
        let number = words::next(self.epoch + u64::from(ahead.max(0).unsigned_abs()));
        self.client_table.sweep(events);
        self.epoch = number;
        // Late by less than a period it keeps to the beat.
        let (end, length) = (self.account.period().end(), self.settings.parameters.period);
        let is_late = self.account.period().epoch == 0 || now.since(end).0 >= length.0 / 100;
        let period = Period { epoch: number, begun: if is_late { now } else { end }, length };
        let capacity = self.estimator.capacity();
        let first = self.account.begin(period, capacity, self.client_table.promises());
        self.doubt(now);
        self.write_grants();
        let word = PoolWord::word(number, i64::try_from(first).unwrap_or(i64::MAX));
        self.add(word.wrapping_sub(self.seen), MonitorStep::Beginning);
    }

    fn write_grants(&mut self) {
        let buffers = self.line_buffers();
        for at in 0..buffers {
            let first = at as u16 * PER_BUFFER;
            let session_slots = (self.settings.session_slots - first).min(PER_BUFFER);
            for number in first..first + session_slots {
                // A client that came in this period takes part from the next one on, unless it was
                // started early.
                let session_slot = self.client_table.get(SessionSlot(number));
                let session_slot = session_slot.filter(|session_slot| session_slot.is_in);
                let words = session_slot
                    .map_or([0; GRANT], |session_slot| self.grant(session_slot).words());
                let line = usize::from(number - first) * region_layout::LINE as usize;
                let bytes = self.remote.buffer_mut(1 + buffers + at);
                for (at, word) in words.iter().enumerate() {
                    let to = line + at * WORD as usize;
                    bytes[to..][..WORD as usize].copy_from_slice(&word.to_le_bytes());
                }
            }
            self.post(
                WRITE,
                Operation::Write {
                    from: BufferPosition::start(1 + buffers + at),
                    to: region_layout::line(region_layout::GRANTS, SessionSlot(first)),
                    length: u32::from(session_slots) * region_layout::LINE as u32,
                },
            );
        }
    }
}
