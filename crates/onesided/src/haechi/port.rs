//! A client's engine: a connection that lets through the operations that have a token.
//!
//! # Mechanism
//! Operations wait in the order in which they were posted until there is a token for each, which is
//! one whatever the operation: none moves more than a block. On the way there is a comparison and a
//! decrement; all else happens by the clock.
//!
//! A [`GUARD`] before a period ends by its own clock, a client begins to read its grant, often at
//! first, until it finds a new one. Its next period begins when the new grant is there, so the
//! clocks of both sides are set by each other once a period. A client that finds a new grant may
//! not know how long the grant has stood there, or may read that its period began before the client
//! came. It then reads the grant once a tick until it has seen one come. Old tokens are void a
//! [`GUARD`] after the end. A pool that shows a later period than the client's is another reason to
//! read the grant.
//!
//! The monitor may have given up a client that was away for longer than [`AWAY`] (stopped, or its
//! thread waited for a processor), or whose reports do not arrive. Such a client reports, then
//! reads its grant, and issues nothing before it has the grant. The monitor makes a grant void,
//! then reads reports, and gives nothing away before. So one of the two sees the other's write.
//!
//! If no monitor has begun a period for [`ALONE`] of them, the client goes on by itself with its
//! reservation, and takes nothing from the pool. That is safe, as all reservations together are
//! within the node's capacity. A client that reads that it has no session slot any more does not go
//! on.
//!
//! Bounds. Beyond its tokens a client issues nothing. At most one window's worth was taken before
//! it noticed that it had been away.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_algo::onesided::engine::{LEAD, Promise, TokenBalance};
use tidegate_algo::onesided::monitor::{SLACK, SUSPECT};
use tidegate_algo::onesided::{Mode, Period, Rules};
use tidegate_model::{SessionSlot, Span, Time};

use super::words::Grant;
use super::{SessionParameters, TICK, region_layout};
use crate::one_sided::{Done, Lost, Post, PostError, RemoteMemory, WORD};

mod own;

/// For how long tokens of a period that is over may be used, for clocks are not the same.
pub const GUARD: Span = TICK;

/// Time without a reading of the clock after which a client checks that its tokens are still its
/// own.
pub const AWAY: Span = Span(5 * Span::MILLISECOND.0);

/// Time since the last report that arrived after which it checks that, too: half of the time after
/// which the monitor doubts the client.
const UNCONFIRMED: Span = Span(SUSPECT.0 / 2);

/// After so many periods without a monitor a client goes on by itself.
pub const ALONE: u64 = 2;

/// When to read the pool again after it had less than requested, at first and at most: before what
/// comes meanwhile is forgone.
const RETRY: [Span; 2] = [TICK, Span(SLACK.0 / 2)];

/// For how long tokens that are due soon are waited for together: less than how long before its
/// time each may be used.
const TOGETHER: Span = Span(LEAD.0 / 4);

/// Operations of the engine itself have this bit in their names; those of callers have not.
pub const OWN: u64 = 1 << 63;

/// Buffers of the engine itself: the last two.
const OWN_BUFFERS: u32 = 2;

/// Operations of the engine itself that may be under way: a connection must hold so many beside the
/// window.
pub const OWN_OPERATIONS: u32 = 4;

/// The client's right to issue operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IssueRight {
    /// Tokens are its own.
    Sure,
    /// It must read its grant first.
    Unsure,
    /// There is no monitor.
    Alone,
}

/// Operations of the engine itself that are under way.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    grant_read: bool,
    report: bool,
    finish: bool,
    /// How many pool tokens are requested.
    take: Option<u64>,
}

/// Counts of a client's engine since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Operations of callers.
    pub operations: u64,
    /// Operations of the engine itself, of all kinds.
    pub own: u64,
    /// Periods that began.
    pub periods: u64,
}

/// A client's engine, in front of a connection.
#[derive(Debug)]
pub struct Port<F> {
    remote: F,
    rules: Rules,
    length: Span,
    session_slot: SessionSlot,
    window: u32,
    balance: TokenBalance,
    waiting: VecDeque<Post>,
    in_flight: u32,
    state: IssueRight,
    /// Since when it has been unsure, and whether it must report before it reads its grant.
    unsure: Time,
    owes_report: bool,
    own: Own,
    batch: u16,
    /// When it saw last that a monitor is at work.
    confirmed: Time,
    /// When it requested its grant, and when it did so last and there was no new one.
    requested: Time,
    unchanged: Option<Time>,
    /// It has not learnt when its period began for the monitor.
    is_late: bool,
    /// When the last report that has arrived was sent, and the last of all, which reported so many
    /// operations.
    last_arrived: Time,
    last_sent: Time,
    reported: u64,
    /// When the clock was looked at last, and when it is time again.
    now: Time,
    tick: Time,
    grant_read: Time,
    report: Time,
    retry: Time,
    /// When to try again to issue, after there was no token.
    again: Time,
    pause: Span,
    beat: u16,
    is_leaving: bool,
    completed: u64,
    /// For how long in this period there was work and no token, and as many operations under way
    /// as may be.
    starved: Span,
    backlogged: Span,
    /// Operations that the caller could not hand over yet, by the last `note_unmet` of this period;
    /// none if the caller did not call it.
    unmet: Option<u64>,
    counts: EngineCounters,
}

impl<F: RemoteMemory> Port<F> {
    /// The engine of a session slot, for a client that keeps at most `window` operations under way.
    /// It has no tokens before the monitor grants it some: within a tick if it is [started
    /// early](super::Monitor::start_early), else when the next period begins.
    ///
    /// # Errors
    /// The connection, if it has too few buffers or its region no control area.
    ///
    /// # Panics
    /// If the window is 0, or there is no such session slot.
    pub fn new(
        remote: F,
        parameters: SessionParameters,
        session_slot: SessionSlot,
        window: u32,
        now: Time,
    ) -> Result<Self, F> {
        assert!(window > 0 && session_slot.0 < region_layout::SESSION_SLOTS);
        if remote.buffers() <= OWN_BUFFERS || remote.region() < region_layout::DATA {
            return Err(remote);
        }
        Ok(Self {
            remote,
            rules: parameters.rules,
            length: parameters.period,
            session_slot,
            window,
            balance: TokenBalance::new(parameters.rules, parameters.local_rate),
            waiting: VecDeque::with_capacity(window as usize),
            in_flight: 0,
            state: IssueRight::Unsure,
            unsure: now,
            owes_report: false,
            own: Own::default(),
            batch: 0,
            confirmed: now,
            requested: now,
            unchanged: None,
            is_late: false,
            last_arrived: now,
            last_sent: now,
            reported: 0,
            now,
            tick: now,
            grant_read: now,
            report: now,
            retry: now,
            again: now,
            pause: RETRY[0],
            beat: 0,
            is_leaving: false,
            completed: 0,
            starved: Span::ZERO,
            backlogged: Span::ZERO,
            unmet: None,
            counts: EngineCounters::default(),
        })
    }

    /// The tokens.
    pub fn balance(&self) -> &TokenBalance {
        &self.balance
    }

    /// The engine's counts since it began.
    pub fn counts(&self) -> EngineCounters {
        self.counts
    }

    /// Callers' operations that wait for a token, and that are under way.
    pub fn outstanding(&self) -> (usize, u32) {
        (self.waiting.len(), self.in_flight)
    }

    /// Whether it goes on by itself, as there is no monitor.
    pub fn is_alone(&self) -> bool {
        self.state == IssueRight::Alone
    }

    /// Notes how many operations its caller has to do in this period and cannot give it yet, as all
    /// that may be are with it. The monitor gets the last number with the period's outcome, so that
    /// it can move promises to clients that want them. A caller that does not count them notes
    /// nothing. In a period's last [margin](tidegate_algo::onesided::Grain)th it may already be
    /// about the next, for a caller that has periods of its own; so nothing is noted then.
    pub fn note_unmet(&mut self, count: u64) {
        let period = self.balance.period();
        if self.now.since(period.begun) < period.early(self.rules.grain.margin) {
            self.unmet = Some(count);
        }
    }

    /// Asks for no tokens from the next period on, so that the session slot can be given away.
    pub fn leave(&mut self) {
        self.is_leaving = true;
        self.report = self.now;
    }

    /// The connection behind it.
    pub fn remote(&self) -> &F {
        &self.remote
    }

    /// When to poll at the latest although nothing is done.
    pub fn next_deadline(&self) -> Time {
        let is_waiting = !self.waiting.is_empty() && self.in_flight < self.window;
        match is_waiting && self.state != IssueRight::Unsure {
            true => self.tick.min(self.again),
            false => self.tick,
        }
    }

    /// Reads its grant before it issues anything.
    fn doubt(&mut self, now: Time) {
        self.state = IssueRight::Unsure;
        (self.unsure, self.grant_read, self.tick) = (now, now, now);
    }

    fn is_out_of_tokens(&self) -> bool {
        !self.waiting.is_empty() && self.balance.ready() == 0
    }

    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.in_flight >= self.window
    }

    /// Takes in that time has passed since the last call, with what was left to do then.
    fn advance_clock(&mut self, now: Time) -> Result<(), Lost> {
        let passed = now.since(self.now);
        let before = self.now;
        self.now = self.now.max(now);
        if passed.0 > 0 {
            // A client that only its limit holds back is neither backlogged nor starved.
            if self.in_flight >= self.window {
                self.backlogged.0 += passed.0;
            } else if self.is_out_of_tokens() && self.balance.lacks() > 0 {
                self.starved.0 += passed.0;
            }
            self.balance.note(before, self.is_busy());
        }
        let is_away = passed > AWAY || now.since(self.last_arrived) > UNCONFIRMED;
        if is_away && self.state == IssueRight::Sure {
            self.doubt(now);
            self.owes_report = true;
            self.report = now;
        }
        if now >= self.tick {
            self.on_tick(now)?;
        }
        Ok(())
    }

    fn on_tick(&mut self, now: Time) -> Result<(), Lost> {
        let end = self.balance.period().end();
        let is_sound = self.rules.pool == Mode::Sound && self.state != IssueRight::Alone;
        if is_sound && now >= end.after(GUARD) {
            self.balance.void();
        }
        self.balance.settle(now);
        if now >= self.report {
            self.send_report(now)?;
        }
        let reads_grant = self.state != IssueRight::Sure || self.is_late || now.after(GUARD) >= end;
        if reads_grant && now >= self.grant_read && !self.owes_report {
            self.read_grant(now)?;
        }
        if now.since(self.confirmed).0 >= ALONE * self.length.0 + GUARD.0 {
            self.go_alone(now);
        }
        let until = match reads_grant {
            true if self.owes_report => self.report,
            true => self.grant_read,
            false => Time(end.0.saturating_sub(GUARD.0)),
        };
        let soon = now.after(Span(1));
        self.tick =
            now.after(self.rules.grain.tick).min(self.report.max(soon)).min(until.max(soon));
        Ok(())
    }

    fn begin(&mut self, grant: Grant, now: Time) -> Result<(), Lost> {
        if self.balance.period().epoch > 0 {
            self.send_final()?;
        }
        self.is_late = grant.is_late || self.unchanged.is_none_or(|at| now.since(at) > AWAY);
        (self.batch, self.confirmed) = (grant.batch.max(1), now);
        self.begin_period(grant.epoch, grant.promise, now);
        if grant.is_void {
            self.balance.void();
        }
        self.state = if self.is_answer_current() { IssueRight::Sure } else { IssueRight::Unsure };
        (self.report, self.tick) = (now, now.after(Span(1)));
        Ok(())
    }

    fn begin_period(&mut self, epoch: u64, promise: Promise, now: Time) {
        self.balance.begin(Period { epoch, begun: now, length: self.length }, promise);
        (self.starved, self.backlogged) = (Span::ZERO, Span::ZERO);
        (self.completed, self.unmet) = (0, None);
        (self.retry, self.again, self.pause) = (now, now, RETRY[0]);
        self.counts.periods += 1;
    }

    /// Another period without a monitor, with the promise of the last.
    fn go_alone(&mut self, now: Time) {
        let period = self.balance.period();
        let is_over = self.state != IssueRight::Alone || now >= period.end();
        let requested =
            self.unchanged.filter(|at| at.since(self.confirmed).0 >= ALONE * self.length.0);
        if period.epoch > 0 && is_over && requested.is_some() {
            self.state = IssueRight::Alone;
            self.begin_period(period.epoch, self.balance.promise(), now);
        }
    }

    /// Issues the operations for which there are tokens.
    fn issue(&mut self, now: Time) {
        if now < self.again {
            return;
        }
        while self.state != IssueRight::Unsure && self.in_flight < self.window {
            let Some(post) = self.waiting.front() else { return };
            if !self.balance.take(now) {
                // Those that come one by one may be used ahead of their time, so they can be
                // waited for together.
                let due = self.balance.next_due().filter(|_| self.balance.headroom() > 0);
                self.again = due.map_or(Time::MAX, |due| due.max(now.after(TOGETHER)));
                return;
            }
            if self.remote.post(*post).is_err() {
                // The connection is smaller than the window: the token is lost, and the next is
                // tried when something is done.
                return;
            }
            self.waiting.pop_front();
            self.in_flight += 1;
            self.counts.operations += 1;
        }
    }
}

/// A word of a buffer.
pub(super) fn word(buffer: &[u8], at: usize) -> u64 {
    let mut bytes = [0; WORD as usize];
    bytes.copy_from_slice(&buffer[at * WORD as usize..][..WORD as usize]);
    u64::from_le_bytes(bytes)
}

impl<F: RemoteMemory> RemoteMemory for Port<F> {
    /// Takes an operation, which waits for its token.
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        assert!(post.id < OWN, "names from 2^63 on are the engine's");
        post.operation.check(self.remote.region(), self.buffers())?;
        if self.waiting.len() >= self.window as usize {
            return Err(PostError::Full);
        }
        self.waiting.push_back(post);
        Ok(())
    }

    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        self.advance_clock(now)?;
        self.issue(now);
        self.fetch(now)?;
        self.remote.flush(now)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        self.advance_clock(now)?;
        let first = done.len();
        self.remote.poll(now, done)?;
        let mut kept = first;
        for at in first..done.len() {
            let one = done[at];
            if one.id >= OWN {
                self.on_own(now, one)?;
                continue;
            }
            self.in_flight -= 1;
            self.completed += 1;
            done[kept] = one;
            kept += 1;
        }
        done.truncate(kept);
        self.issue(now);
        self.fetch(now)?;
        self.remote.flush(now)
    }

    fn buffers(&self) -> u32 {
        self.remote.buffers() - OWN_BUFFERS
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        assert!(buffer < self.buffers());
        self.remote.buffer(buffer)
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        assert!(buffer < self.buffers());
        self.remote.buffer_mut(buffer)
    }

    fn region(&self) -> u64 {
        self.remote.region()
    }
}
