//! How many pool tokens there are.
//!
//! # Model
//! A [`Pool`] keeps the books of one data node's tokens. It is told what clients report and what
//! the word in memory was each time it was changed, and says what the word is to be. Whoever took
//! tokens took them from a word whose value before and after the monitor knows, so it knows to the
//! token how many were granted, though no client says so.
//!
//! # Mechanism
//! *Paper*: the pool is Ω − ΣR at the beginning of a period; once somebody takes from it, it is set
//! to max(Ω (T − t) ÷ T − L, 0) at each look, L being the reservation tokens that clients reported
//! to have left. That forgets what was taken before: tokens in hand and operations under way are
//! given out again, and more can be issued than Ω.
//!
//! *Sound*: tokens are never given out twice. There are Ω; R of each client's are its own until it
//! yields them; what was granted is gone. Two ways to give out the others:
//!
//! - *All at once*: what was not granted, as long as there is time for it: at most
//!   Ω (T − t) ÷ T − L − H, with H what clients have in hand. Once somebody had to be waited for
//!   it comes bit by bit until the period's end, and so it does in the next [`STREAMS`] periods: at
//!   once it would stand in the way of the same client again.
//! - *Paced*: as a stream that, with the reservation tokens that become due, is Ω ÷ T, to which
//!   comes what is yielded. What nobody takes for [`SLACK`] is gone, for the time in which the node
//!   could have done it has passed.
//!
//! And in both, none are given out while a client that asks is behind its reservation by more than
//! [`LATE`] of it: the node is slower than Ω says, or others are in the way, and pool tokens would
//! only add to it. What counts is what it has issued, whatever the tokens. This is what keeps
//! promises within a period; the next one's Ω is [`capacity`](super::capacity)'s business. A client
//! that does not get on in [`HOPE`] of this is held up by something else, and is not waited for
//! until the next period.
//!
//! A client that is not heard of for [`SUSPECT`] is *doubted*: its grant is made void, so that it
//! cannot use its tokens if it comes back. If nothing is heard of it even then, it has stopped, and
//! its tokens are given to others. If something is, it says itself what it has left.
//!
//! Bounds. Paced, whatever clients do: in any interval of length I at most
//! Ω (I + SLACK) ÷ T + what clients had in hand or in arrears before it are issued.

use alloc::vec::Vec;

use tidegate_model::{Span, Time};

use super::engine::Promise;
use super::{Mode, Period, Rules};

/// How much of the node's time paced tokens wait for somebody to take them.
pub const SLACK: Span = Span(10 * Span::MILLISECOND.0);

/// How far behind its reservation a client may be before others get no more than theirs.
pub const LATE: Span = Span(4 * Span::MILLISECOND.0);

/// How far behind one may still be who has caught up: within what is due a [margin](super::Grain)th
/// of a period early, and more than a report is old when it is read.
const CAUGHT_UP: Span = Span(2 * Span::MILLISECOND.0);

/// For how long others are held for a client that does not catch up.
pub const HOPE: Span = Span(50 * Span::MILLISECOND.0);

/// For how many periods the pool is a stream, though not paced, after somebody was waited for.
/// Chosen by hand: one in eight then begins at once again, and may have to wait again.
const STREAMS: u32 = 8;

/// After so long without a word a client counts as stopped.
pub const SUSPECT: Span = Span(40 * Span::MILLISECOND.0);

/// What a client says of a period, of its own accord.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reservation tokens left.
    pub residual: u64,
    /// Operations done in this period.
    pub completed: u64,
    /// Pool tokens in hand.
    pub in_hand: u64,
    /// Operations under way.
    pub in_flight: u64,
    /// Pool tokens taken in this period.
    pub obtained: u64,
    /// Reservation tokens yielded in this period.
    pub yielded: u64,
    /// It has something to do.
    pub is_busy: bool,
    /// It could do something, and has no token.
    pub is_starved: bool,
    /// What it could do its limit forbids.
    pub is_limited: bool,
    /// It wants no tokens of the next period.
    pub is_leaving: bool,
}

/// One client in the books.
#[derive(Clone, Copy, Debug)]
struct Seat {
    promise: Promise,
    /// The last report of this period.
    report: Option<Report>,
    /// When something was last heard of it.
    heard: Time,
    /// Its grant is void, and it may not know yet.
    is_doubted: bool,
    is_suspect: bool,
    /// What others are held for, if they are.
    wait: Option<Wait>,
    is_hopeless: bool,
}

/// Others are held until a client catches up.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Time,
    /// How far it was behind at most since, and what it had left then.
    behind: u64,
    residual: u64,
}

impl Seat {
    const fn new(promise: Promise, heard: Time) -> Self {
        Self {
            promise,
            report: None,
            heard,
            is_doubted: false,
            is_suspect: false,
            wait: None,
            is_hopeless: false,
        }
    }

    /// Reservation tokens that it may have.
    fn residual(&self) -> u64 {
        match (self.is_suspect, self.report) {
            (true, _) => 0,
            (false, None) => self.promise.reservation,
            (false, Some(report)) => report.residual,
        }
    }

    /// Paced reservation tokens that are due. Who has nothing to do yields its tokens by ρ(t),
    /// without a margin: if more were kept for it than that and what it used, others would get that
    /// part of what it yields when the period is over.
    fn due(&self, period: Period, margin: u64, now: Time) -> u64 {
        let reservation = self.promise.reservation;
        let early = period.due_early(reservation, margin, now);
        let Some(report) = self.report.filter(|report| !report.is_busy) else { return early };
        let used = reservation.saturating_sub(report.residual + report.yielded);
        period.due(reservation, now).max(used).min(early)
    }
}

/// The books of one data node's tokens.
#[derive(Clone, Debug)]
pub struct Pool {
    rules: Rules,
    period: Period,
    /// Ω of this period.
    capacity: u64,
    seats: Vec<Option<Seat>>,
    /// What the word was after it was last changed by the monitor.
    left: i64,
    granted: u64,
    minted: u64,
    /// Somebody took from the pool in this period.
    is_used: bool,
    /// Paced tokens that were given out or forgone, of those that are due.
    streamed: u64,
    /// Yielded, and of that, paced, what was given out.
    returned: u64,
    passed: u64,
    is_held: bool,
    /// Not paced: for how many more periods the pool is a stream, and when it was looked at last.
    streams: u32,
    looked: Time,
}

impl Pool {
    /// With nobody, before the first period.
    pub fn new(rules: Rules, length: Span) -> Self {
        Self {
            rules,
            period: Period { epoch: 0, begun: Time::ZERO, length },
            capacity: 0,
            seats: Vec::new(),
            left: 0,
            granted: 0,
            minted: 0,
            is_used: false,
            streamed: 0,
            returned: 0,
            passed: 0,
            is_held: false,
            streams: 0,
            looked: Time::ZERO,
        }
    }

    /// Begins a period, with what each seat is promised in it, and says what the word is to be.
    pub fn begin(
        &mut self,
        period: Period,
        capacity: u64,
        promises: impl IntoIterator<Item = Option<Promise>>,
    ) -> u64 {
        let heard: Vec<_> = self.seats.iter().map(|seat| seat.map(|seat| seat.heard)).collect();
        let heard = |seat: usize| heard.get(seat).copied().flatten().unwrap_or(period.begun);
        let seats = promises
            .into_iter()
            .enumerate()
            .map(|(seat, promise)| promise.map(|promise| Seat::new(promise, heard(seat))));
        self.seats = seats.collect();
        (self.period, self.capacity) = (period, capacity);
        (self.granted, self.returned, self.passed, self.streamed) = (0, 0, 0, 0);
        (self.is_used, self.is_held) = (false, false);
        (self.streams, self.looked) = (self.streams.saturating_sub(1), period.begun);
        let first = match self.rules.paces || self.streams > 0 {
            true => 0,
            false => capacity.saturating_sub(self.reserved()),
        };
        self.minted = first;
        first
    }

    /// Takes in somebody who comes within the period. Nothing can be reserved for it any more: what
    /// is not others' is in the pool, or on its way there.
    pub fn join(&mut self, now: Time, seat: usize, limit: u64) {
        if let Some(place) = self.seats.get_mut(seat) {
            *place = Some(Seat::new(Promise { reservation: 0, limit }, now));
        }
    }

    /// ΣR, of those that count.
    fn reserved(&self) -> u64 {
        self.active().map(|seat| seat.promise.reservation).sum()
    }

    fn active(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().flatten().filter(|seat| !seat.is_suspect)
    }

    /// Takes in that the node can do more or less than was thought, in this period already.
    pub fn revise(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Takes in what a client said of this period, or that it said something at all.
    pub fn hear(&mut self, now: Time, seat: usize, report: Option<Report>) {
        let Some(Some(seat)) = self.seats.get_mut(seat) else { return };
        (seat.heard, seat.is_doubted) = (now, false);
        let Some(report) = report else { return };
        // One that was given up has no tokens left in this period, whatever it says.
        if !seat.is_suspect {
            let before = seat.report.map_or(0, |report| report.yielded);
            self.returned += report.yielded.saturating_sub(before);
        }
        seat.report = Some(report);
    }

    /// Whom nobody has heard of for too long: their grants are to be made void now, before reports
    /// are read again.
    pub fn doubts(&mut self, now: Time) -> Vec<usize> {
        let mut doubted = Vec::new();
        for (number, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            if !seat.is_suspect && !seat.is_doubted && now.since(seat.heard) >= SUSPECT {
                seat.is_doubted = true;
                doubted.push(number);
            }
        }
        doubted
    }

    /// Those who were doubted and of whom nothing was heard since: their tokens are given to others
    /// now.
    pub fn suspects(&mut self, now: Time) -> Vec<usize> {
        let (period, margin) = (self.period, self.rules.grain.margin);
        let mut gone = Vec::new();
        for (number, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat.as_mut().filter(|seat| seat.is_doubted) else { continue };
            let residual = seat.residual();
            // Paced, what is for later joins the stream of those who are left, and what was due and
            // is not left was used.
            self.returned += match self.rules.paces {
                true => {
                    let due = seat.due(period, margin, now);
                    self.streamed += due;
                    residual.saturating_sub(seat.promise.reservation - due)
                }
                false => residual + seat.report.map_or(0, |report| report.in_hand),
            };
            (seat.is_suspect, seat.is_doubted) = (true, false);
            gone.push(number);
        }
        gone
    }

    /// Takes in that the word was `before` when the monitor added to it, so that it is `after` now;
    /// the same if it only looked.
    pub fn changed(&mut self, before: i64, after: i64) {
        // What is there and was not made is taken away with the next change.
        let kept = before.min(self.left);
        self.granted += self.left.max(0).abs_diff(kept.max(0));
        self.is_used |= kept < self.left;
        self.left = kept + (after - before);
    }

    /// Takes in what the word is at the beginning of a period.
    pub fn opened(&mut self, after: i64) {
        self.left = after;
    }

    /// What the word is to be now, after all that was [seen](Self::changed).
    pub fn target(&mut self, now: Time) -> i64 {
        let left = self.left.max(0).unsigned_abs();
        let target = match (self.rules.pool, self.rules.paces) {
            (Mode::Paper, _) if !self.rules.converts || !self.is_used => left,
            (Mode::Paper, _) => self.remaining(now).saturating_sub(self.residual()),
            (Mode::Sound, false) => self.at_once(now, left),
            (Mode::Sound, true) => self.paced(now, left),
        };
        self.minted += target.saturating_sub(left);
        i64::try_from(target).unwrap_or(i64::MAX)
    }

    /// Ω (T − t) ÷ T.
    fn remaining(&self, now: Time) -> u64 {
        self.capacity - self.period.due(self.capacity, now)
    }

    /// L.
    fn residual(&self) -> u64 {
        self.active().map(|seat| seat.residual()).sum()
    }

    fn at_once(&mut self, now: Time, left: u64) -> u64 {
        let looked = core::mem::replace(&mut self.looked, now);
        self.is_held = self.somebody_is_behind(now);
        if self.is_held {
            self.streams = STREAMS;
            return 0;
        }
        let spare = self.spare();
        let [passed, rest] = [now, self.period.end()].map(|at| at.since(looked));
        let most = match self.streams {
            0 => spare,
            _ => left + super::due(spare.saturating_sub(left), passed, rest),
        };
        most.min(spare).min(self.remaining(self.told(now)).saturating_sub(self.owed()))
    }

    /// Of when the reports are that say who has what left.
    fn told(&self, now: Time) -> Time {
        let busy = self.active().filter(|seat| seat.report.is_some_and(|report| report.is_busy));
        let told = busy.map(|seat| seat.heard).min().unwrap_or(now);
        told.max(Time(now.0.saturating_sub(LATE.0)))
    }

    /// L + H: what clients may still use of what they have.
    fn owed(&self) -> u64 {
        let reports = self.seats.iter().flatten().filter_map(|seat| seat.report);
        let told: u64 = reports.map(|report| report.obtained).sum();
        let in_hand = self.active().filter_map(|seat| seat.report);
        let in_hand: u64 = in_hand.map(|report| report.in_hand).sum();
        // What reports do not know of yet is in hand.
        self.residual() + in_hand + self.granted.saturating_sub(told)
    }

    /// Tokens that are nobody's: neither reserved, unless they were yielded, nor granted.
    pub fn spare(&self) -> u64 {
        let own: u64 = self.seats.iter().flatten().map(|seat| seat.promise.reservation).sum();
        (self.capacity + self.returned).saturating_sub(own + self.granted)
    }

    fn paced(&mut self, now: Time, left: u64) -> u64 {
        let due = self.period.due(self.capacity, now);
        let margin = self.rules.grain.margin;
        let own: u64 = self.active().map(|seat| seat.due(self.period, margin, now)).sum();
        let due = due.saturating_sub(own);
        // Clients with a large part of all are served faster at first.
        let fresh = due.saturating_sub(self.streamed) + (self.returned - self.passed);
        (self.streamed, self.passed) = (self.streamed.max(due), self.returned);
        self.is_held = self.somebody_is_behind(now);
        match self.is_held {
            true => 0,
            false => (left + fresh).min(super::due(self.capacity, SLACK, self.period.length)),
        }
    }

    /// Whether somebody who asks is behind its reservation, and it helps to wait for it.
    fn somebody_is_behind(&mut self, now: Time) -> bool {
        let (period, is_paced, margin) = (self.period, self.rules.paces, self.rules.grain.margin);
        let mut any = false;
        for seat in self.seats.iter_mut().flatten() {
            let Some(report) = seat.report else { continue };
            if seat.is_suspect || seat.is_hopeless || !report.is_busy || report.is_starved {
                seat.wait = None;
                continue;
            }
            let (reservation, residual) = (seat.promise.reservation, report.residual);
            // What it said is as old as that.
            let due = period.due_early(reservation, margin, seat.heard);
            // Whatever the tokens: who used pool tokens first has reservation tokens left, and is
            // not behind.
            let issued = report.completed + report.in_flight;
            let behind = residual.saturating_sub(reservation - due).min(due.saturating_sub(issued));
            let part = |span| super::due(reservation, span, period.length);
            let wait = Wait { since: now, behind, residual };
            match seat.wait {
                _ if behind <= part(CAUGHT_UP) => seat.wait = None,
                None if behind > part(LATE).max(1) => seat.wait = Some(wait),
                Some(first) if now.since(first.since) >= HOPE => {
                    // Paced, the others use no more than what is theirs, so it must catch up. At
                    // once, they may use all that first, and it must get on.
                    seat.is_hopeless = match is_paced {
                        true => behind >= first.behind,
                        false => first.residual.saturating_sub(residual) < part(HOPE) / 2,
                    };
                    seat.wait = (!seat.is_hopeless).then_some(wait);
                }
                // What is in line at the node already makes it worse at first.
                Some(first) => {
                    seat.wait = Some(Wait { behind: first.behind.max(behind), ..first });
                }
                None => {}
            }
            any |= seat.wait.is_some();
        }
        any
    }

    /// Pool tokens granted in this period, exactly.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Pool tokens made in this period.
    pub fn minted(&self) -> u64 {
        self.minted
    }

    /// Whether pool tokens are held back for somebody who is behind.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Reservation tokens of clients with nothing to do, as they said last: what is yielded so late
    /// in a period nobody can use.
    pub fn late(&self) -> u64 {
        let reports = self.active().filter_map(|seat| seat.report);
        reports.filter(|report| !report.is_busy).map(|report| report.residual).sum()
    }

    /// Ω of this period.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// This period.
    pub fn period(&self) -> Period {
        self.period
    }

    /// What a seat last said of this period.
    pub fn report(&self, seat: usize) -> Option<Report> {
        self.seats.get(seat).copied().flatten()?.report
    }

    /// Whether a seat is not heard of any more.
    pub fn is_suspect(&self, seat: usize) -> bool {
        self.seats.get(seat).copied().flatten().is_some_and(|seat| seat.is_suspect)
    }
}
