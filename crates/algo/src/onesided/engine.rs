//! The tokens of one client at one data node.
//!
//! # Model
//! A *token balance* holds what is left of the reservation tokens of this period, and the pool
//! tokens that were taken and not used. An operation takes one token, a reservation token if there
//! is one.
//!
//! # Mechanism
//! Reservation tokens lose their guarantee as time goes by without demand: of R tokens at most
//! R − ρ(t) are left at time t, ρ(t) = R t ÷ T (Definition 1).
//!
//! *Paper*: that bound holds at each call, whatever the reason why tokens are left. A client that
//! is slowed down by others has tokens left for that very reason, and so loses its reservation just
//! when it needs it.
//!
//! *Sound*: the bound holds for a client with nothing to do. One that waits, or has as many
//! operations under way as it may, keeps its tokens however late it is. When it then pauses, what
//! it has beyond the bound (its *arrears*) goes at the rate at which it could have issued, C_L: in
//! the time that it did nothing it could have used so much, and did not want to. So a client whose
//! window dips for a microsecond between a completion and the next request loses next to nothing,
//! and one that is done is past its arrears soon.
//!
//! *Paced*: of the reservation tokens those are *usable* that are due, the others are for later.
//! They come at a steady rate, a little faster than ρ(t), so that all are due a
//! [margin](super::Grain)th of the period before its end. Tokens that a client could not use in
//! time stay usable, so it catches up.
//!
//! A client has one limit, on the operations that it issues in a period, whatever the tokens. It
//! yields reservation tokens that its limit does not let it use.

use tidegate_model::{Span, Time};

use super::{Mode, Period, Rules};

/// How far ahead of the clock paced tokens may be used, so that a client need not read the clock
/// for each.
pub const LEAD: Span = Span(Span::MILLISECOND.0 / 2);

/// Fraction bits of a pace. With 2^26 tokens in a millisecond they are all of a word.
const PACE: u32 = 44;

/// A client's reservation and limit at a data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// R: operations per period.
    pub reservation: u64,
    /// L: operations per period, not below the reservation; none is [`u64::MAX`].
    pub limit: u64,
}

/// Counts of a period's tokens, by their use. They only grow until the next period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Reservation tokens used.
    pub reserved: u64,
    /// Pool tokens used.
    pub pooled: u64,
    /// Pool tokens taken from the node.
    pub obtained: u64,
    /// Reservation tokens yielded.
    pub yielded: u64,
}

impl TokenUsage {
    /// Operations issued.
    pub const fn issued(&self) -> u64 {
        self.reserved + self.pooled
    }
}

/// The tokens of one client at one data node.
///
/// ```
/// use tidegate_algo::onesided::engine::{Promise, TokenBalance};
/// use tidegate_algo::onesided::{Period, Rules};
/// use tidegate_model::{Span, Time};
/// // The paper's first example: 50 reserved in a second, 20 used by 0.6 s.
/// let promise = Promise { reservation: 50, limit: u64::MAX };
/// let period = Period { epoch: 1, begun: Time::ZERO, length: Span::SECOND };
/// let mut balance = TokenBalance::new(Rules::UNPACED, 400_000);
/// balance.begin(period, promise);
/// assert!((0..20).all(|_| balance.take(Time::ZERO)));
/// balance.note(Time::ZERO, false);
/// balance.settle(Time(600_000_000));
/// assert_eq!((balance.reserved(), balance.usage().yielded), (20, 10));
/// ```
#[derive(Clone, Debug)]
pub struct TokenBalance {
    rules: Rules,
    /// C_L: operations per second that a client can issue.
    local_rate: u64,
    period: Period,
    promise: Promise,
    /// Reservation tokens per nanosecond, in 2^-[`PACE`], of those that are paced.
    pace: u64,
    /// Of the reservation tokens those that may be used now.
    usable: u64,
    /// And those that are for later.
    held: u64,
    /// Pool tokens in hand.
    pool: u64,
    /// Operations that the limit still lets pass in this period.
    headroom: u64,
    usage: TokenUsage,
    /// Since when there has been nothing to do; nothing while there is.
    idle: Option<Time>,
    /// Beyond the bound when it last went idle, and what is left of that.
    arrears: u64,
}

impl TokenBalance {
    /// Empty, for a client that can issue `local_rate` operations per second.
    pub fn new(rules: Rules, local_rate: u64) -> Self {
        Self {
            rules,
            local_rate,
            period: Period { epoch: 0, begun: Time::ZERO, length: Span::SECOND },
            promise: Promise { reservation: 0, limit: 0 },
            pace: 0,
            usable: 0,
            held: 0,
            pool: 0,
            headroom: 0,
            usage: TokenUsage::default(),
            idle: Some(Time::ZERO),
            arrears: 0,
        }
    }

    /// Begins a period. Tokens left of the one before are void.
    pub fn begin(&mut self, period: Period, promise: Promise) {
        (self.period, self.promise) = (period, promise);
        let early = self.early().0.max(1);
        let pace = (u128::from(promise.reservation) << PACE) / u128::from(early);
        self.pace = u64::try_from(pace).unwrap_or(u64::MAX);
        (self.usable, self.held, self.pool) = (promise.reservation, 0, 0);
        (self.headroom, self.usage, self.arrears) = (promise.limit, TokenUsage::default(), 0);
        self.idle = self.idle.map(|_| period.begun);
        self.pace(period.begun);
    }

    /// Voids all tokens. Its reservation tokens count as yielded.
    pub fn void(&mut self) {
        self.usage.yielded += self.reserved();
        (self.usable, self.held, self.pool, self.arrears) = (0, 0, 0, 0);
    }

    /// Takes the token for one operation, if there is one.
    #[inline]
    pub fn take(&mut self, now: Time) -> bool {
        if self.usable == 0 && self.pool == 0 && self.held > 0 {
            self.pace(now);
        }
        if self.headroom == 0 || self.usable + self.pool == 0 {
            return false;
        }
        self.headroom -= 1;
        if self.usable > 0 {
            self.usable -= 1;
            self.usage.reserved += 1;
        } else {
            self.pool -= 1;
            self.usage.pooled += 1;
        }
        true
    }

    /// Puts pool tokens into it.
    pub fn put(&mut self, tokens: u64) {
        self.pool += tokens;
        self.usage.obtained += tokens;
    }

    /// Notes whether there is something to do: a request waits, or as many are under way as may be.
    #[inline]
    pub fn note(&mut self, now: Time, is_busy: bool) {
        if is_busy == self.idle.is_none() {
            return;
        }
        if is_busy {
            self.settle(now);
            self.idle = None;
        } else {
            self.idle = Some(now);
            self.arrears = self.reserved().saturating_sub(self.bound(now));
        }
    }

    /// Yields what time has taken the guarantee of, and sees which tokens are due.
    pub fn settle(&mut self, now: Time) {
        let bound = self.bound(now);
        let kept = match (self.rules.tokens, self.idle) {
            (Mode::Paper, _) => bound,
            (Mode::Sound, None) => u64::MAX,
            (Mode::Sound, Some(since)) => {
                let could = u128::from(self.local_rate) * u128::from(now.since(since).0);
                let could = u64::try_from(could / u128::from(Span::SECOND.0)).unwrap_or(u64::MAX);
                // Parts of a token must not be lost to looking often.
                if could > 0 {
                    self.arrears = self.arrears.saturating_sub(could);
                    self.idle = Some(now);
                }
                bound.saturating_add(self.arrears)
            }
        };
        let kept = match self.rules.tokens {
            Mode::Paper => kept,
            Mode::Sound => kept.min(self.headroom),
        };
        let yielded = self.reserved().saturating_sub(kept);
        self.usage.yielded += yielded;
        // Those for later go first: what is due was requested in time.
        let later = yielded.min(self.held);
        self.held -= later;
        self.usable -= yielded - later;
        self.pace(now);
    }

    /// How long it takes until all paced tokens are due.
    fn early(&self) -> Span {
        self.period.early(self.rules.grain.margin)
    }

    /// R − ρ(t).
    fn bound(&self, now: Time) -> u64 {
        self.promise.reservation - self.period.due(self.promise.reservation, now)
    }

    /// Sees which reservation tokens are due.
    fn pace(&mut self, now: Time) {
        let all = self.reserved();
        self.held = match self.rules.paces {
            true => {
                // A division would take longer than all else. In a second this falls behind by less
                // than a ten thousandth of a token.
                let passed = now.after(LEAD).since(self.period.begun);
                let due = (u128::from(passed.0) * u128::from(self.pace)) >> PACE;
                let due = if passed >= self.early() { u64::MAX } else { due as u64 };
                self.promise.reservation.saturating_sub(due).min(all)
            }
            false => 0,
        };
        self.usable = all - self.held;
    }

    /// The reservation tokens that are left.
    pub fn reserved(&self) -> u64 {
        self.usable + self.held
    }

    /// The pool tokens in hand.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Operations that the limit still lets pass in this period.
    pub fn headroom(&self) -> u64 {
        self.headroom
    }

    /// Pool tokens that it could use in this period beside what it has.
    pub fn lacks(&self) -> u64 {
        self.headroom.saturating_sub(self.reserved() + self.pool)
    }

    /// How many operations could be issued at once.
    pub fn ready(&self) -> u64 {
        self.headroom.min(self.usable + self.pool)
    }

    /// When a reservation token that is for later is due, if one is.
    pub fn next_due(&self) -> Option<Time> {
        let reservation = u128::from(self.promise.reservation);
        (self.held > 0).then(|| {
            // The first time at which one more than now is for use: R − held + 1 are due.
            let count = reservation - u128::from(self.held) + 1;
            let passed = (count * u128::from(self.early().0)).div_ceil(reservation);
            let passed = u64::try_from(passed).unwrap_or(u64::MAX);
            Time(self.period.begun.after(Span(passed)).0.saturating_sub(LEAD.0))
        })
    }

    /// The counts of this period's tokens, by their use.
    pub fn usage(&self) -> TokenUsage {
        self.usage
    }

    /// The period that its tokens are of.
    pub fn period(&self) -> Period {
        self.period
    }

    /// The client's reservation and limit.
    pub fn promise(&self) -> Promise {
        self.promise
    }

    /// Whether there is something to do.
    pub fn is_busy(&self) -> bool {
        self.idle.is_none()
    }
}
