//! Haechi's monitor: the number of tokens in a data node's shared pool.
//!
//! # Model
//! A [`TokenAccount`] accounts for one data node's tokens. Its inputs are the clients' reports and
//! the value of the word in memory at each change; its output is the next value of the word.
//! Clients take tokens from a word whose value before and after the monitor knows. So it knows to
//! the token how many were granted, though no client reports it.
//!
//! # Mechanism
//! *Paper*: the pool is Ω − ΣR at the beginning of a period; once a client takes from it, it is set
//! to max(Ω (T − t) ÷ T − L, 0) at each call, L being the reservation tokens that clients reported
//! to have left. That forgets what was taken before: tokens in hand and operations under way are
//! given out again, and more can be issued than Ω.
//!
//! *Sound*: tokens are never given out twice. There are Ω; R of each client's are its own until it
//! yields them; what was granted is gone. Two ways to give out the others:
//!
//! - *All at once*: what was not granted, as long as there is time for it: at most
//!   Ω (T − t) ÷ T − L − H, with H what clients have in hand. Once the other clients were held for
//!   one, it comes bit by bit until the period's end, and so it does in the next [`STREAMS`]
//!   periods: at once it would stand in the way of the same client again.
//! - *Paced*: as a stream that, with the reservation tokens that become due, is Ω ÷ T, to which
//!   yielded tokens are added. A token that no client takes for [`SLACK`] is gone, for the time in
//!   which the node could have done it has passed.
//!
//! And in both there is a *throttle* before the pool. It is open while no client with tokens to use
//! is behind its reservation by more than [`CAUGHT_UP`], shut if one is by more than [`LATE`], and
//! in between open by as much as is left of the way: the node is slower than Ω, or operations of
//! other clients are in the way, and pool tokens would only add to the line. This is what keeps
//! promises within a period; the next one's Ω is [`capacity`](super::capacity)'s business. A client
//! that does not get on in [`HOPE`] of this is held up by something else, and is not waited for
//! until the next period.
//!
//! For instance: a node does 13 operations in a millisecond, four clients want all they can get,
//! and one of them reserves 3.7 of these. Ω is 2 % too high, so the line at the node grows until
//! all are served equally, 3.25 each. The one is behind by 3 ms, 11 operations, after 25: then the
//! throttle is closed by a third. It need withhold only the 0.3 that are too many of the others'
//! 9.6, so it settles at 2.1 ms, and the node has something to do all the time. If it were only
//! open or closed, it would be closed for the 10 to 20 ms that it takes until reports show that the
//! one has caught up; alone it can do 5 in a millisecond, so half of the node would have nothing to
//! do.
//!
//! Paced, the throttle also closes as the line at the node becomes longer than the first of
//! [`LINE`], and is shut at the second. By Little's law a node that keeps up with its tokens has
//! little in flight, however large windows are; the rest waits, and more tokens would only wait
//! longer. Without this, 20 clients with 64 operations each made a line of 0.64 s at a node that
//! does 2,000 in a second: reports and grants that stand in such a line come too late for all that
//! is decided here.
//!
//! A client is behind if it has *issued* less than is due, whatever the tokens. A report stands in
//! the same line at the node as the operations issued before it, so it is read about when these are
//! done; the tokens due, however, are counted when it is read. So a client that uses each token in
//! time is behind by the length of the line. The throttle stays open for a client that is out of
//! tokens: it has issued all that was due when it reported, and pool tokens that other clients go
//! without do not help it. With the throttle shut for such clients too, a client in a line of 32 ms
//! missed 164 of 1,600 reserved operations where the line takes 64, and four nodes together did up
//! to 2 % less. A client with tokens is never excused, even if its window is not full: a throttle
//! that waited only for full windows cost a quarter of a reservation in the same line. A client
//! that comes back is not behind by the tokens that became due early while it had nothing to do: it
//! has all of the margin for that.
//!
//! A client that has not reported for [`SUSPECT`] is *doubted*: its grant is made void, so that it
//! cannot use its tokens if it comes back. If it does not report even then, it has stopped, and
//! its tokens are given to others. If it does, it reports itself what it has left.
//!
//! Bounds. Paced, whatever clients do: in any interval of length I at most
//! Ω (I + SLACK) ÷ T + what clients had in hand or in arrears before it are issued.

use alloc::vec::Vec;

use tidegate_model::{Span, Time};

use super::capacity::WHOLE;
use super::engine::Promise;
use super::{Mode, Period, Rules};

/// How much of the node's time paced tokens wait for a client to take them.
pub const SLACK: Span = Span(10 * Span::MILLISECOND.0);

/// How far behind its reservation a client is at most when others get no more than theirs; and no
/// more than what is due a [margin](super::Grain)th of a period early, so that it can be made good
/// until the end: 4 ms of 200. Chosen by seeds of the simulated fire: with 4 ms of 250 as well 3 %
/// of a node were unused (2701), and with 8 ms of 400 a reservation was missed by 2 % (1044).
pub const LATE: Span = Span(5 * Span::MILLISECOND.0);

/// How far behind a client may be before the others are held for it: more than a report is old when
/// it is read, if there is no line. No more than half the way.
const CAUGHT_UP: Span = Span(2 * Span::MILLISECOND.0);

/// For how long others are held for a client that does not catch up.
pub const HOPE: Span = Span(50 * Span::MILLISECOND.0);

/// A throttle that is open.
const OPEN: u64 = WHOLE as u64;

/// For how many periods the pool is a stream, though not paced, after the others were held for a
/// client. Chosen by hand: one in eight then begins at once again, and may have to wait again.
const STREAMS: u32 = 8;

/// After so long without a report a client counts as stopped.
pub const SUSPECT: Span = Span(40 * Span::MILLISECOND.0);

/// The operations in line at the node, in the time that it takes for them, from which on the
/// throttle closes, and at which it is shut. Reports and grants wait in the same line, and a client
/// that has to wait for half of [`SUSPECT`] both for its report and its grant has stopped. The
/// first is chosen by hand: ten windows of 8 are 5 to 6 ms at the slowest node of the scenarios.
pub const LINE: [Span; 2] = [Span(SUSPECT.0 / 5), Span(SUSPECT.0 / 2)];

/// A client's report about a period, sent of its own accord.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientReport {
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
    /// It waits for tokens: it has more to do, its limit allows that, and no token is usable.
    pub is_starved: bool,
    /// Its limit forbids operations that it could do.
    pub is_limited: bool,
    /// It wants no tokens of the next period.
    pub is_leaving: bool,
}

#[derive(Clone, Copy, Debug)]
struct ClientState {
    promise: Promise,
    /// The last report of this period.
    report: Option<ClientReport>,
    last_seen: Time,
    /// Its grant is void, and it may not know yet.
    is_doubted: bool,
    is_suspect: bool,
    /// How far it was behind by what is due early when it had nothing to do last.
    forgiven: u64,
    /// Since when others are held for it, if they are.
    wait: Option<Wait>,
    is_hopeless: bool,
    /// Operations under way by its last report, of whichever period.
    in_flight: u64,
}

/// Others are held for a client that is behind.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Time,
    /// How far it was behind at most since, and what it had left then.
    behind: u64,
    residual: u64,
}

impl ClientState {
    const fn new(promise: Promise, last_seen: Time) -> Self {
        Self {
            promise,
            report: None,
            last_seen,
            is_doubted: false,
            is_suspect: false,
            forgiven: 0,
            wait: None,
            is_hopeless: false,
            in_flight: 0,
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

    /// How far it is behind its reservation, in operations, by its last report.
    fn behind(&self, report: &ClientReport, period: Period, margin: u64) -> u64 {
        let reservation = self.promise.reservation;
        // The report is as old as `last_seen`.
        let due = period.due_early(reservation, margin, self.last_seen);
        // Operations count whatever their tokens: a client that used pool tokens first has
        // reservation tokens left, and is not behind.
        let issued = report.completed + report.in_flight;
        let behind =
            report.residual.saturating_sub(reservation - due).min(due.saturating_sub(issued));
        behind.saturating_sub(self.forgiven)
    }

    /// How far the throttle is open for its sake: all the way, unless it has tokens to use, is
    /// behind, and it helps to wait for it.
    fn opening(&mut self, now: Time, period: Period, rules: Rules) -> u64 {
        let has_tokens = |report: &ClientReport| report.is_busy && !report.is_starved;
        let Some(report) = self.report.filter(has_tokens) else {
            self.wait = None;
            return OPEN;
        };
        let margin = rules.grain.margin;
        let late = LATE.0.min(period.length.0 / margin);
        let part =
            |nanoseconds| super::due(self.promise.reservation, Span(nanoseconds), period.length);
        let [caught_up, late] = [part(CAUGHT_UP.0.min(late / 2)), part(late).max(1)];
        let behind = self.behind(&report, period, margin);
        if behind <= caught_up || self.is_suspect || self.is_hopeless {
            self.wait = None;
            return OPEN;
        }
        let residual = report.residual;
        let first = self.wait.unwrap_or(Wait { since: now, behind, residual });
        // Operations that are already in line at the node put it further behind at first.
        let mut wait = Some(Wait { behind: first.behind.max(behind), ..first });
        if now.since(first.since) >= HOPE {
            // Paced, the others use no more than what is theirs, so it must catch up. At once, they
            // may use all that first, and it must get on.
            self.is_hopeless = match rules.paces {
                true => behind > late && behind >= first.behind,
                false => first.residual.saturating_sub(residual) < part(HOPE.0) / 2,
            };
            wait = None;
        }
        self.wait = wait;
        match self.is_hopeless {
            true => OPEN,
            false => (late + 1).saturating_sub(behind) * OPEN / (late + 1 - caught_up),
        }
    }

    /// Paced reservation tokens that are due. A client with nothing to do yields its tokens by
    /// ρ(t), without a margin: if more were kept for it than that and what it used, others would
    /// get that part of what it yields when the period is over.
    fn due(&self, period: Period, margin: u64, now: Time) -> u64 {
        let reservation = self.promise.reservation;
        let early = period.due_early(reservation, margin, now);
        let Some(report) = self.report.filter(|report| !report.is_busy) else { return early };
        let used = reservation.saturating_sub(report.residual + report.yielded);
        period.due(reservation, now).max(used).min(early)
    }
}

/// The account of one data node's tokens.
#[derive(Clone, Debug)]
pub struct TokenAccount {
    rules: Rules,
    period: Period,
    /// Ω of this period.
    capacity: u64,
    clients: Vec<Option<ClientState>>,
    /// The value of the word when the monitor last read or changed it.
    left: i64,
    granted: u64,
    minted: u64,
    /// A client took from the pool in this period.
    is_used: bool,
    /// Paced tokens that were given out or forgone, of those that are due.
    streamed: u64,
    /// Yielded, and of that, paced, what was given out.
    returned: u64,
    passed: u64,
    /// How far the throttle is closed, in 255ths.
    held: u8,
    /// Not paced: for how many more periods the pool is a stream, and when it was last evaluated.
    streams: u32,
    last_evaluated: Time,
}

impl TokenAccount {
    /// Without clients, before the first period.
    pub fn new(rules: Rules, length: Span) -> Self {
        Self {
            rules,
            period: Period { epoch: 0, begun: Time::ZERO, length },
            capacity: 0,
            clients: Vec::new(),
            left: 0,
            granted: 0,
            minted: 0,
            is_used: false,
            streamed: 0,
            returned: 0,
            passed: 0,
            held: 0,
            streams: 0,
            last_evaluated: Time::ZERO,
        }
    }

    /// Begins a period, with the promise of each session slot, and returns the word's first value.
    pub fn begin(
        &mut self,
        period: Period,
        capacity: u64,
        promises: impl IntoIterator<Item = Option<Promise>>,
    ) -> u64 {
        let before = core::mem::take(&mut self.clients);
        let before = |client: usize| before.get(client).copied().flatten();
        let clients = promises.into_iter().enumerate().map(|(number, promise)| {
            let before = before(number);
            let last_seen = before.map_or(period.begun, |client| client.last_seen);
            let in_flight = before.map_or(0, |client| client.in_flight);
            promise.map(|promise| ClientState { in_flight, ..ClientState::new(promise, last_seen) })
        });
        self.clients = clients.collect();
        (self.period, self.capacity) = (period, capacity);
        (self.granted, self.returned, self.passed, self.streamed) = (0, 0, 0, 0);
        (self.is_used, self.held) = (false, 0);
        (self.streams, self.last_evaluated) = (self.streams.saturating_sub(1), period.begun);
        let first = match self.rules.paces || self.streams > 0 {
            true => 0,
            false => capacity.saturating_sub(self.reserved()),
        };
        self.minted = first;
        first
    }

    /// Takes in a client that comes within the period. Nothing can be reserved for it any more:
    /// what is not others' is in the pool, or on its way there.
    pub fn join(&mut self, now: Time, client: usize, limit: u64) {
        if let Some(slot) = self.clients.get_mut(client) {
            *slot = Some(ClientState::new(Promise { reservation: 0, limit }, now));
        }
    }

    /// ΣR, of those that count.
    fn reserved(&self) -> u64 {
        self.active().map(|client| client.promise.reservation).sum()
    }

    fn active(&self) -> impl Iterator<Item = &ClientState> {
        self.clients.iter().flatten().filter(|client| !client.is_suspect)
    }

    /// Takes in that the node can do more or less than was thought, in this period already.
    pub fn revise(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Takes in a client's report about this period, or a sign of life without one.
    pub fn on_report(&mut self, now: Time, client: usize, report: Option<ClientReport>) {
        let Some(Some(client)) = self.clients.get_mut(client) else { return };
        (client.last_seen, client.is_doubted) = (now, false);
        let Some(report) = report else { return };
        // A suspect has no tokens left in this period, whatever it reports.
        if !client.is_suspect {
            let before = client.report.map_or(0, |report| report.yielded);
            self.returned += report.yielded.saturating_sub(before);
        }
        (client.report, client.in_flight) = (Some(report), report.in_flight);
        if !report.is_busy {
            client.forgiven = 0;
            client.forgiven = client.behind(&report, self.period, self.rules.grain.margin);
        }
    }

    /// Marks and returns the clients that were silent for [`SUSPECT`]: the caller makes their
    /// grants void now, before it reads reports again.
    pub fn doubts(&mut self, now: Time) -> Vec<usize> {
        let mut doubted = Vec::new();
        for (number, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            if !client.is_suspect && !client.is_doubted && now.since(client.last_seen) >= SUSPECT {
                client.is_doubted = true;
                doubted.push(number);
            }
        }
        doubted
    }

    /// Returns the doubted clients that stayed silent, and gives their tokens to other clients.
    pub fn suspects(&mut self, now: Time) -> Vec<usize> {
        let (period, margin) = (self.period, self.rules.grain.margin);
        let mut gone = Vec::new();
        for (number, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client.as_mut().filter(|client| client.is_doubted) else { continue };
            let residual = client.residual();
            // Paced, what is for later joins the stream of those who are left, and what was due and
            // is not left was used.
            self.returned += match self.rules.paces {
                true => {
                    let due = client.due(period, margin, now);
                    self.streamed += due;
                    residual.saturating_sub(client.promise.reservation - due)
                }
                false => residual + client.report.map_or(0, |report| report.in_hand),
            };
            (client.is_suspect, client.is_doubted, client.in_flight) = (true, false, 0);
            gone.push(number);
        }
        gone
    }

    /// Takes in that the word was `before` when the monitor added to it, so that it is `after` now;
    /// the same if it only read it.
    pub fn changed(&mut self, before: i64, after: i64) {
        // Tokens in the word that the monitor did not make are taken away with the next change.
        let kept = before.min(self.left);
        self.granted += self.left.max(0).abs_diff(kept.max(0));
        self.is_used |= kept < self.left;
        self.left = kept + (after - before);
    }

    /// Takes in the value of the word at the beginning of a period.
    pub fn opened(&mut self, after: i64) {
        self.left = after;
    }

    /// Returns the value that the word is to have now, after all changes [seen](Self::changed).
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
        self.active().map(|client| client.residual()).sum()
    }

    fn at_once(&mut self, now: Time, left: u64) -> u64 {
        let last_evaluated = core::mem::replace(&mut self.last_evaluated, now);
        let open = self.opening(now);
        if open == 0 {
            self.streams = STREAMS;
        }
        let spare = self.spare();
        let [passed, rest] = [now, self.period.end()].map(|at| at.since(last_evaluated));
        let most = match self.streams {
            0 => spare,
            _ => left + super::due(spare.saturating_sub(left), passed, rest),
        };
        let most =
            most.min(self.remaining(self.reported_at(now)).saturating_sub(self.owed())).min(spare);
        most * open / OPEN
    }

    /// The time of the oldest report among busy clients.
    fn reported_at(&self, now: Time) -> Time {
        let busy =
            self.active().filter(|client| client.report.is_some_and(|report| report.is_busy));
        let reported_at = busy.map(|client| client.last_seen).min().unwrap_or(now);
        reported_at.max(Time(now.0.saturating_sub(LATE.0)))
    }

    /// L + H: tokens that clients have and may still use.
    fn owed(&self) -> u64 {
        let reports = self.clients.iter().flatten().filter_map(|client| client.report);
        let reported: u64 = reports.map(|report| report.obtained).sum();
        let in_hand = self.active().filter_map(|client| client.report);
        let in_hand: u64 = in_hand.map(|report| report.in_hand).sum();
        // Granted tokens that no report counts yet are in hand.
        self.residual() + in_hand + self.granted.saturating_sub(reported)
    }

    /// Tokens that belong to no client: neither reserved, unless they were yielded, nor granted.
    pub fn spare(&self) -> u64 {
        let own: u64 = self.clients.iter().flatten().map(|client| client.promise.reservation).sum();
        (self.capacity + self.returned).saturating_sub(own + self.granted)
    }

    fn paced(&mut self, now: Time, left: u64) -> u64 {
        let due = self.period.due(self.capacity, now);
        let margin = self.rules.grain.margin;
        let own: u64 = self.active().map(|client| client.due(self.period, margin, now)).sum();
        let due = due.saturating_sub(own);
        // Clients with a large part of all are served faster at first.
        let fresh = due.saturating_sub(self.streamed) + (self.returned - self.passed);
        (self.streamed, self.passed) = (self.streamed.max(due), self.returned);
        let most = (left + fresh).min(super::due(self.capacity, SLACK, self.period.length));
        most * self.opening(now).min(self.line_opening()) / OPEN
    }

    /// How far the throttle is open for the sake of the line at the node.
    fn line_opening(&self) -> u64 {
        let [least, most] = LINE.map(|line| super::due(self.capacity, line, self.period.length));
        let line = self.in_flight().max(least);
        (most + 1).saturating_sub(line) * OPEN / (most + 1 - least)
    }

    /// Operations that are under way, by the last report of each client.
    fn in_flight(&self) -> u64 {
        self.active().map(|client| client.in_flight).sum()
    }

    /// How far the throttle is open: the least of all clients.
    fn opening(&mut self, now: Time) -> u64 {
        let (period, rules) = (self.period, self.rules);
        let clients = self.clients.iter_mut().flatten();
        let open = clients.map(|client| client.opening(now, period, rules)).min().unwrap_or(OPEN);
        self.held = (OPEN - open) as u8;
        open
    }

    /// The value of the word when the monitor last read or changed it. It only falls until the
    /// monitor changes it again.
    pub fn left(&self) -> i64 {
        self.left
    }

    /// Pool tokens granted in this period, exactly.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Pool tokens made in this period.
    pub fn minted(&self) -> u64 {
        self.minted
    }

    /// The part of the pool tokens that is held back for a client that is behind, in 255ths.
    pub fn held(&self) -> u8 {
        self.held
    }

    /// Reservation tokens of clients with nothing to do, as last reported: no client can use
    /// tokens yielded so late in a period.
    pub fn late(&self) -> u64 {
        let reports = self.active().filter_map(|client| client.report);
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

    /// The last report about this period from the client in this session slot.
    pub fn report(&self, client: usize) -> Option<ClientReport> {
        self.clients.get(client).copied().flatten()?.report
    }

    /// Whether a client no longer reports.
    pub fn is_suspect(&self, client: usize) -> bool {
        self.clients.get(client).copied().flatten().is_some_and(|client| client.is_suspect)
    }
}
