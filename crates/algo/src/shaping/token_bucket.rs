//! A token bucket that many threads, and many processes, take from without a lock.
//!
//! # Problem
//! A rate must hold exactly over every window, for requests from one byte to many times the burst,
//! whatever the number of takers; a new rate must reach takers that already wait; and a taker that
//! need not wait must not notice that the bucket is there.
//!
//! # Model
//! Tokens are positions on one line that only grows. `earned(t)` is how far the line is paid for:
//! `base + rate × (t − since)`, plus what was given back. `spent` is how far it is handed out. The
//! bucket holds `earned − spent` tokens, at most `burst`; below zero it is in debt.
//!
//! # Mechanism
//! To take `cost` tokens, move `spent` on by `cost`, in one atomic addition; where it stood is the
//! taker's `start`. The taker may go once the line is paid up to its *due* position,
//! `start + min(cost, burst)`: a request larger than the burst goes when the bucket is full and
//! leaves a debt that later requests wait out. (For the burst read: what a full bucket holds. The
//! little that it lacks is explained below.) A waiter holds a position, not a time, so that a new
//! rate changes when it goes and not whether: the change re-anchors `base` and `since` such that
//! `earned` has no step, and no token is made or lost by it.
//!
//! Example at 100 tokens a second with a burst of 50, full at t = 0: a request for 30 goes (20
//! left); one for 40 has its due position at 70, where `earned` is 50 + 100 t, so it goes at 0.2 s;
//! one for 200 right behind starts at 70 with its due position at 70 + 50 = 120 and goes at 0.7 s;
//! the next starts at 270 and waits out the debt.
//!
//! To read the clock takes longer than everything else, and threads that write one word wait for
//! each other. So a taker that reads the clock and finds enough also fills the *token cache* of its
//! shard: a 512th of the burst, from which the takers of the same shard are served. Shards are
//! cells far apart in memory; threads should have different ones, and nothing but speed depends on
//! it. Tokens in caches count as handed out.
//!
//! Tokens that flow over the rim are *forgotten*: taken off the earned ones. A taker that reads the
//! clock makes sure that no more than the bucket holds lies in front of the position where the last
//! taker ended that `checked` before. A bucket *holds* the burst but for what all shards may have:
//! these may be taken at any moment, even just now.
//!
//! Bounds. In any window of length `T` the bytes of granted requests are at most `burst + rate ×
//! T`. A window with a request larger than a full bucket, which holds 63/64 of the burst or more,
//! may have that request's part beyond a full bucket besides. `rate` is kept in 2^-48 tokens per
//! nanosecond, rounded down: at one token a second it is 3.5 parts in a million too slow, and less
//! above. Positions are 64 bits: at 1 GiB/s they last 544 years, at the largest rate, 1 TiB/s, 194
//! days, after which the bucket lets everything pass. An overflow is forgotten to a whole token, so
//! count in tokens that are small against a request: bytes, or thousandths of an operation.
//!
//! A rate can be on *lease* ([`RateLease`]): from a moment on the line is paid at another rate,
//! whatever becomes of the one who sets the rates. A renewal in time only moves that moment on; a
//! late one begins where the line is paid by then. Example at 100 tokens a second until 1 s and 10
//! after it: the bucket earns 100 by 1 s and 105 by 1.5 s; renewed then until 3 s, 205 by 2.5 s.
//! Takers pay nothing for it: it is a comparison where the clock is read.
//!
//! A bucket can be *held* until a moment ([`TokenBucket::hold`]): the line is not paid before it,
//! and tokens that were in the bucket are gone. So no request goes earlier, and from then on
//! requests go at the rate that is in force by then. Example at 100 tokens a second, held at 0 s
//! until 3 s: a request for 40 goes at 3.4 s; if the hold ends at 2 s instead, at 2.4 s.
//!
//! A lease that ends during a hold lasts until the bucket is full behind it: the requests that wait
//! are to go when the hold ends, also if the rate after the lease is a small part of the rate
//! before. The price is one burst. In the example, with a burst of 50 and a lease until 1 s at 1
//! token a second after it, the request goes at 3.4 s, and not at 43 s; from 3.5 s on the bucket
//! earns 1 token a second.
//!
//! A waiter that never goes (its process was killed) gives its tokens back as well. Waiters behind
//! it move up by them. The line in front of it was not paid by them, so the due position of each
//! waiter there moves on by as many tokens as were given back, and these waiters go when they would
//! have gone. In the example, if the request for 200 is withdrawn, the next request has its due
//! position at 270 + 10, and goes when `earned` is 80, at 0.3 s; the request for 40 still goes at
//! 0.2 s, with its due position at 70 + 200.
//!
//! Left out: order between waiters is the order in which they took, whatever they cost, and takers
//! whose cache is not empty pass them. Fairness between contexts is
//! [`queue`](crate::scheduling::queue)'s business.

use tidegate_model::{Span, Time};

use crate::concurrent::published::Published;
use crate::concurrent::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Rates from here on count as no limit: no device in one machine moves a tebibyte per second.
pub const RATE_UNLIMITED: u64 = 1 << 40;

/// Fraction bits of a rate, in tokens per nanosecond.
const RATE_BITS: u32 = 48;
const NANOSECONDS: u128 = 1_000_000_000;
/// How many shards a bucket has.
pub const SHARDS: usize = 8;
/// The part of a burst that may be in caches: what a full bucket has too little when no shard has
/// any of it.
const CACHED_PART: u64 = 64;
/// A cache is filled if it pays for so many requests like the one that fills it. With the
/// usual burst of ten milliseconds it is at one gigabyte per second for requests of 4 KiB, at a
/// hundred megabytes for none: there, requests are so rare that each may read the clock.
const CACHE_REQUESTS: u64 = 4;
/// The part of a burst that is earned while a taker may be late. The rest of the burst is for
/// takers that the system runs late.
const SLACK_PART: u64 = 8;
/// More than this counts as this: positions are added without a check of the sum, and a few
/// senseless requests must not bring them round to zero.
const COST_MAX: u64 = 1 << 48;

/// The answer of [`TokenBucket::take`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The request may go.
    Granted,
    /// The request may go once the line is paid up to this position; see
    /// [`TokenBucket::ready_at`].
    Wait(Due),
}

/// A position up to which the line must be paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due(u64);

impl Due {
    /// The due position with this number, as [`Self::position`] gave it.
    pub const fn at(position: u64) -> Self {
        Self(position)
    }

    /// The number of the position, to be kept in memory that processes share.
    pub const fn position(self) -> u64 {
        self.0
    }
}

/// Until when a rate holds, and the rate after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLease {
    /// When the lease ends; [`Time::MAX`] for never.
    pub until: Time,
    /// Tokens per second from then on.
    pub then: u64,
}

impl RateLease {
    /// A rate that holds for ever.
    pub const NONE: Self = Self { until: Time::MAX, then: 0 };
}

/// The bucket. Valid when all its bytes are zero: it then lets everything pass.
///
/// One thread changes the settings at a time; any number of threads take.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct TokenBucket {
    /// 1 if there is a limit.
    limited: AtomicU32,
    /// [`BucketParameters`]. With the word above on lines that takers only read.
    parameters: Published<6>,
    /// Positions that takers write when they read the clock.
    cursors: Apart<Cursors>,
    /// Tokens that takers may have without reading the clock.
    caches: [Apart<AtomicU64>; SHARDS],
}

/// A value so far from others that no processor fetches it with them.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Apart<T>(T);

/// Positions on the line.
#[derive(Debug, Default)]
#[repr(C)]
struct Cursors {
    /// How far the line is handed out.
    spent: AtomicU64,
    /// Where the last taker ended that has read the clock.
    checked: AtomicU64,
    /// Tokens that were earned and flowed over the rim, in all.
    forgotten: AtomicU64,
    /// Tokens that were given back, in all.
    credit: AtomicU64,
}

/// The parameters by which the line is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketParameters {
    base: u64,
    since: u64,
    /// Tokens per nanosecond in 2^-48; zero for no limit.
    rate: u64,
    burst: u64,
    /// When the lease on the rate ends, and the rate after it.
    until: u64,
    then: u64,
}

impl BucketParameters {
    fn unlimited(self) -> bool {
        self.rate == 0
    }

    /// Tokens that one shard may cache.
    fn cache_size(self) -> u64 {
        self.burst / (CACHED_PART * SHARDS as u64)
    }

    /// Tokens that are in the bucket when it is full.
    fn holds(self) -> u64 {
        self.burst - self.cache_size() * SHARDS as u64
    }

    /// Tokens earned from `since` to `now`, in 2^-48.
    fn elapsed(self, now: Time) -> u128 {
        let yielded =
            |from: u64, to: u64, rate: u64| u128::from(to.saturating_sub(from)) * u128::from(rate);
        if now.0 <= self.until {
            return yielded(self.since, now.0, self.rate);
        }
        let leased = yielded(self.since, self.until, self.rate);
        leased.saturating_add(yielded(self.until.max(self.since), now.0, self.then))
    }

    /// How far the line is paid at `now`. Rounded down: a token is earned when all of it is.
    fn earned(self, now: Time) -> u64 {
        let tokens = self.elapsed(now) >> RATE_BITS;
        self.base.saturating_add(u64::try_from(tokens).unwrap_or(u64::MAX))
    }

    /// The part of a token beyond [`Self::earned`], in 2^-48.
    fn fraction(self, now: Time) -> u64 {
        self.elapsed(now) as u64 & ((1 << RATE_BITS) - 1)
    }

    /// The line goes on from where it is paid at `now` by `old` parameters, which had a limit.
    fn go_on(&mut self, old: Self, now: Time) {
        self.base = old.earned(now);
        if old.since > now.0 {
            // It is held until then.
            self.since = old.since;
            return;
        }
        // The part of a token that is already earned counts as time: a bucket of operations that is
        // set ten times a second must not lose ten of them.
        let earned = old.fraction(now).checked_div(self.rate).unwrap_or(0);
        self.since = now.0 - earned.min(now.0);
    }

    /// While the bucket is held, the lease on its rate lasts until an empty bucket is full behind
    /// the hold.
    fn keep_through_hold(&mut self, now: Time) {
        if self.since > now.0 {
            let filled = (u128::from(self.burst) << RATE_BITS).div_ceil(self.rate.max(1).into());
            let filled = u64::try_from(filled).unwrap_or(u64::MAX);
            self.until = self.until.max(self.since.saturating_add(filled));
        }
    }

    /// The first moment at which the line is paid up to `position`. Rounded up: the inverse of
    /// [`Self::earned`].
    fn ready_at(self, position: u64) -> Time {
        let missing = position.saturating_sub(self.base);
        if missing == 0 || self.unlimited() {
            return Time(self.since);
        }
        let missing = u128::from(missing) << RATE_BITS;
        let leased = self.elapsed(Time(self.until));
        let (from, rest, rate) = match missing.checked_sub(leased) {
            None | Some(0) => (self.since, missing, self.rate),
            Some(rest) => (self.until.max(self.since), rest, self.then),
        };
        let elapsed = rest.div_ceil(u128::from(rate.max(1)));
        Time(from.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }
}

impl TokenBucket {
    /// A full bucket that earns `rate` tokens per second and holds `burst`.
    ///
    /// ```
    /// use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
    /// use tidegate_model::Time;
    /// let bucket = TokenBucket::new(100, 50, Time::ZERO);
    /// assert_eq!(bucket.take(30, Time::ZERO), Take::Granted);
    /// let Take::Wait(due) = bucket.take(40, Time::ZERO) else { panic!("20 tokens are left") };
    /// assert_eq!(bucket.ready_at(due).0 / 1_000_000, 200); // milliseconds
    /// ```
    pub fn new(rate: u64, burst: u64, now: Time) -> Self {
        let bucket = Self::default();
        bucket.configure(rate, burst, now);
        bucket
    }

    /// Changes rate and burst from `now` on, in tokens per second and tokens. Tokens in the bucket
    /// stay, up to the new burst; debts stay. From no limit to a limit it begins full.
    ///
    /// To be called by one thread at a time.
    pub fn configure(&self, rate: u64, burst: u64, now: Time) {
        self.configure_leased(rate, burst, RateLease::NONE, now);
    }

    /// [`Self::configure`] for a rate on lease, unless it is no limit.
    pub fn configure_leased(&self, rate: u64, burst: u64, lease: RateLease, now: Time) {
        let unlimited = rate >= RATE_UNLIMITED;
        let rate = if unlimited { 0 } else { scaled(rate) };
        let (cursors, old) = (&self.cursors.0, self.parameters());
        let (until, then) = (lease.until.0, scaled(lease.then));
        let mut new =
            BucketParameters { base: 0, since: now.0, rate, burst: burst.max(1), until, then };
        let spent = cursors.spent.load(Ordering::Relaxed);
        if old.unlimited() {
            // Takers did not keep `spent` meanwhile, so begin where it stands, with a full bucket.
            let forgotten = cursors.forgotten.load(Ordering::Relaxed);
            let paid = spent.saturating_add(forgotten).saturating_add(new.holds());
            new.base = paid.saturating_sub(cursors.credit.load(Ordering::Relaxed));
        } else {
            self.forget(old, old.earned(now));
            new.go_on(old, now);
            new.keep_through_hold(now);
        }
        cursors.checked.fetch_max(spent, Ordering::Relaxed);
        self.publish(new);
        // Either a taker that fills a cache sees the new parameters, or its tokens are seen here.
        fence(Ordering::SeqCst);
        self.caches.iter().for_each(|cache| self.reclaim(&cache.0));
        self.limited.store(u32::from(!unlimited), Ordering::Release);
    }

    /// Moves the end of the lease on the rate to `until`: the rate holds again from `now` on if the
    /// lease had ended. Without a limit nothing changes.
    ///
    /// To be called by one thread at a time, as [`Self::configure`] is.
    pub fn renew(&self, until: Time, now: Time) {
        let old = self.parameters();
        if old.unlimited() {
            return;
        }
        let mut new = BucketParameters { until: until.0, ..old };
        if old.until < now.0 {
            new.go_on(old, now);
        }
        new.keep_through_hold(now);
        self.publish(new);
    }

    /// Lets the line be paid from `until` on: no request goes before, and those that wait already
    /// wait as much longer. What is in the bucket is lost; debts stay. A moment that has passed
    /// ends an earlier hold. Without a limit nothing changes.
    ///
    /// The lease on the rate ends at `lease_until` from now on, or when the bucket is full behind
    /// the hold if that is later.
    ///
    /// Tokens that a taker caches at this moment are not lost.
    ///
    /// To be called by one thread at a time, as [`Self::configure`] is.
    ///
    /// ```
    /// use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
    /// use tidegate_model::Time;
    /// let second = |seconds: u64| Time(seconds * 1_000_000_000);
    /// let bucket = TokenBucket::new(100, 50, Time::ZERO);
    /// bucket.hold(second(3), Time::MAX, Time::ZERO);
    /// let Take::Wait(due) = bucket.take(40, second(1)) else { panic!("it is held") };
    /// assert_eq!(bucket.ready_at(due).0 / 1_000_000, 3_400); // milliseconds
    /// bucket.hold(Time::ZERO, Time::MAX, second(2));
    /// assert_eq!(bucket.ready_at(due).0 / 1_000_000, 2_400);
    /// ```
    pub fn hold(&self, until: Time, lease_until: Time, now: Time) {
        let (cursors, old) = (&self.cursors.0, self.parameters());
        if old.unlimited() {
            return;
        }
        let mut new = BucketParameters { until: lease_until.0, ..old };
        new.go_on(old, now);
        if until <= now {
            new.since = new.since.min(now.0);
            return self.publish(new);
        }
        self.caches.iter().for_each(|cache| cache.0.store(0, Ordering::Relaxed));
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let handed_out = value(&cursors.spent).saturating_add(value(&cursors.forgotten));
        new.base = new.base.min(handed_out.saturating_sub(value(&cursors.credit)));
        new.since = until.0;
        new.keep_through_hold(now);
        self.publish(new);
    }

    fn publish(&self, parameters: BucketParameters) {
        let BucketParameters { base, since, rate, burst, until, then } = parameters;
        self.parameters.write([base, since, rate, burst, until, then]);
    }

    /// The tokens that it earns per second, as long as its lease lasts; [`u64::MAX`] without a
    /// limit.
    pub fn per_second(&self) -> u64 {
        let parameters = self.parameters();
        if parameters.unlimited() {
            return u64::MAX;
        }
        // `configure` rounded down.
        let scaled = u128::from(parameters.rate) * NANOSECONDS + ((1 << RATE_BITS) - 1);
        u64::try_from(scaled >> RATE_BITS).unwrap_or(u64::MAX)
    }

    /// Forgets what lies more than a full bucket in front of the last taker that read the clock, if
    /// the parameters pay the line up to `earned`. Gives how far it is paid then.
    fn forget(&self, parameters: BucketParameters, earned: u64) -> u64 {
        let cursors = &self.cursors.0;
        let earned = earned.saturating_add(cursors.credit.load(Ordering::Relaxed));
        let rim = cursors.checked.load(Ordering::Relaxed).saturating_add(parameters.holds());
        let over = earned.saturating_sub(rim);
        let mut forgotten = cursors.forgotten.load(Ordering::Relaxed);
        if over > forgotten {
            forgotten = cursors.forgotten.fetch_max(over, Ordering::Relaxed).max(over);
        }
        earned.saturating_sub(forgotten)
    }

    #[inline]
    fn parameters(&self) -> BucketParameters {
        let [base, since, rate, burst, until, then] = self.parameters.read();
        BucketParameters { base, since, rate, burst, until, then }
    }

    /// Takes `cost` tokens: the request goes now, or at [`Self::ready_at`] of its due position.
    /// Either way the tokens are gone; what is not used is given back with [`Self::give_back`].
    #[inline]
    pub fn take(&self, cost: u64, now: Time) -> Take {
        self.take_in(0, cost, || now)
    }

    /// [`Self::take`] in a shard (any number will do), reading the clock only if necessary.
    #[inline]
    pub fn take_in(&self, shard: usize, cost: u64, now: impl FnOnce() -> Time) -> Take {
        if self.limited.load(Ordering::Acquire) == 0 {
            return Take::Granted;
        }
        // Relaxed throughout: tokens are all that takers exchange.
        let cache = &self.caches[shard % SHARDS].0;
        let left = cache.load(Ordering::Relaxed);
        let swap = |rest| cache.compare_exchange(left, rest, Ordering::Relaxed, Ordering::Relaxed);
        if left.checked_sub(cost).is_some_and(|rest| swap(rest).is_ok()) {
            return Take::Granted;
        }
        self.take_slow(cache, cost, now)
    }

    /// Serves a taker whose cache is empty. It is a call of its own, so that the code that most
    /// takers need is small enough to be inlined.
    #[inline(never)]
    fn take_slow(&self, cache: &AtomicU64, cost: u64, now: impl FnOnce() -> Time) -> Take {
        let (cursors, parameters) = (&self.cursors.0, self.parameters());
        if parameters.unlimited() {
            return Take::Granted;
        }
        let cost = cost.min(COST_MAX);
        let start = cursors.spent.fetch_add(cost, Ordering::Relaxed);
        let end = start.saturating_add(cost);
        // The clock first: a taker that ends between this read of it and the read of `checked` has
        // read the clock later, and nothing is forgotten on its account.
        let paid = self.forget(parameters, parameters.earned(now()));
        cursors.checked.fetch_max(end, Ordering::Relaxed);
        let is_worth_it = cost <= parameters.cache_size() / CACHE_REQUESTS;
        if is_worth_it && end.saturating_add(parameters.cache_size()) <= paid {
            self.fill_cache(cache, parameters, paid);
        }
        let due = start.saturating_add(cost.min(parameters.holds()));
        if due <= paid { Take::Granted } else { Take::Wait(Due(due)) }
    }

    /// Fills up a shard's cache, if the line, paid up to `paid`, has enough for it.
    fn fill_cache(&self, cache: &AtomicU64, parameters: BucketParameters, paid: u64) {
        let cursors = &self.cursors.0;
        let left = cache.load(Ordering::Relaxed);
        let more = parameters.cache_size().saturating_sub(left);
        let end = cursors.spent.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        let swap = || {
            let full = left + more;
            cache.compare_exchange(left, full, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let is_cached = end <= paid && swap();
        cursors.checked.fetch_max(end, Ordering::Relaxed);
        if !is_cached {
            cursors.credit.fetch_add(more, Ordering::Relaxed);
            return;
        }
        fence(Ordering::SeqCst);
        if self.parameters() != parameters {
            self.reclaim(cache);
        }
    }

    /// Puts a shard's cached tokens back into the bucket.
    fn reclaim(&self, cache: &AtomicU64) {
        let left = cache.swap(0, Ordering::Relaxed);
        self.cursors.0.credit.fetch_add(left, Ordering::Relaxed);
    }

    /// Returns when a taker that waits for `due` may go, as things stand: sooner after
    /// [`Self::give_back`], and sooner or later after [`Self::configure`]. At or before the present
    /// means now.
    pub fn ready_at(&self, due: Due) -> Time {
        let forgotten = self.cursors.0.forgotten.load(Ordering::Relaxed);
        let credit = self.cursors.0.credit.load(Ordering::Relaxed);
        self.parameters().ready_at(due.0.saturating_add(forgotten).saturating_sub(credit))
    }

    /// How late a waiting taker may come at most, so that the tokens it did not take meanwhile are
    /// there for it: the time in which the bucket earns an eighth of its burst.
    pub fn slack(&self) -> Span {
        let BucketParameters { burst, rate, .. } = self.parameters();
        let tokens = u128::from(burst / SLACK_PART) << RATE_BITS;
        Span(u64::try_from(tokens / u128::from(rate.max(1))).unwrap_or(u64::MAX))
    }

    /// Gives back `tokens` of a request that used fewer than it took. Waiting takers go earlier.
    #[inline]
    pub fn give_back(&self, tokens: u64) {
        // Without a limit nothing was kept, so there is nothing to give back to.
        if tokens == 0 || self.parameters().unlimited() {
            return;
        }
        self.cursors.0.credit.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Tokens in the bucket at `now`; negative in debt. For reports.
    pub fn level(&self, now: Time) -> i64 {
        let (cursors, parameters) = (&self.cursors.0, self.parameters());
        let value = |counter: &AtomicU64| i128::from(counter.load(Ordering::Relaxed));
        let paid =
            i128::from(parameters.earned(now)) + value(&cursors.credit) - value(&cursors.forgotten);
        let cached = self.caches.iter().map(|cache| value(&cache.0)).sum::<i128>();
        let level = (paid - value(&cursors.spent)).min(parameters.holds().into()) + cached;
        level.clamp(i64::MIN.into(), parameters.burst.min(i64::MAX as u64).into()) as i64
    }
}

/// A rate per second in 2^-48 tokens per nanosecond, rounded down. Never zero, which means no
/// limit; not even for a rate of zero.
fn scaled(rate: u64) -> u64 {
    let scaled = (u128::from(rate) << RATE_BITS) / NANOSECONDS;
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    /// Tokens are whole, so a test of exact times takes them by the thousand.
    const K: u64 = 1_000;

    /// Whether two times are the same but for the rounding of a rate.
    fn near(left: u64, right: u64) -> bool {
        left.abs_diff(right) <= right / 100_000 + 1
    }

    /// When a request taken at `now` goes.
    fn goes(bucket: &TokenBucket, cost: u64, now: u64) -> u64 {
        goes_in(bucket, 0, cost, now)
    }

    fn goes_in(bucket: &TokenBucket, shard: usize, cost: u64, now: u64) -> u64 {
        match bucket.take_in(shard, cost, || Time(now)) {
            Take::Granted => now,
            Take::Wait(due) => bucket.ready_at(due).0.max(now),
        }
    }

    #[test]
    fn the_worked_example() {
        let bucket = TokenBucket::new(100, 50, Time::ZERO);
        let at: Vec<u64> = [30, 40, 200, 10].iter().map(|cost| goes(&bucket, *cost, 0)).collect();
        let wanted = [0, SECOND / 5, SECOND * 7 / 10, SECOND * 23 / 10];
        assert!(at.iter().zip(wanted).all(|(at, wanted)| near(*at, wanted)), "{at:?}");
    }

    #[test]
    fn left_over_tokens_are_carried_up_to_the_burst() {
        let bucket = TokenBucket::new(100 * K, 512 * K, Time::ZERO);
        let full = 504 * K;
        assert_eq!(
            bucket.level(Time::ZERO),
            full as i64,
            "all but the tokens that shards may cache"
        );
        assert_eq!(goes(&bucket, full, 0), 0);
        assert!(bucket.level(Time(SECOND / 4)).abs_diff(25 * K as i64) <= 1, "rounded down");
        assert_eq!(bucket.level(Time(SECOND * 9)), full as i64);
        assert_eq!(goes(&bucket, 512 * K, SECOND * 9), SECOND * 9);
        // The last one left a debt.
        assert!(near(goes(&bucket, 2 * K, SECOND * 9), SECOND * 9 + SECOND / 10));
    }

    #[test]
    fn a_small_bucket_caches_nothing() {
        let bucket = TokenBucket::new(100 * K, 511, Time::ZERO);
        assert_eq!(bucket.level(Time::ZERO), 511);
        assert_eq!(goes(&bucket, 1, 0), 0);
        assert_eq!(bucket.level(Time::ZERO), 510);
        assert_eq!(bucket.level(Time(SECOND)), 511);
    }

    /// A request between a full bucket and the burst leaves a debt, and its shard's cache is still
    /// there: the window holds what the request is larger than a full bucket beside the burst.
    #[test]
    fn a_request_larger_than_a_full_bucket_may_pass_beside_the_caches() {
        let bucket = TokenBucket::new(1, 2_048, Time::ZERO);
        let first = goes(&bucket, 1, 0);
        let second = goes(&bucket, 2_047, first);
        assert_eq!(first, 0);
        assert!(near(second, 5 * SECOND), "1 spent and 4 cached are missing from 2,016");
        assert_eq!(goes(&bucket, 4, second), second, "from the cache");
    }

    #[test]
    fn takers_that_do_not_read_the_clock_take_no_more_than_the_burst() {
        let bucket = TokenBucket::new(100 * K, 512 * K, Time::ZERO);
        for shard in 0..SHARDS {
            assert_eq!(
                bucket.take_in(shard, 1, || Time::ZERO),
                Take::Granted,
                "its shard caches tokens"
            );
        }
        // The bucket is full again, and the first takers have not noticed yet.
        let now = Time(SECOND * 9);
        assert_eq!(bucket.level(now), 512 * K as i64);
        let clock_reads = core::cell::Cell::new(0);
        let take = |number| {
            bucket.take_in(number, 10, || {
                clock_reads.set(clock_reads.get() + 1);
                now
            })
        };
        let granted = (0..).map(take).take_while(|take| *take == Take::Granted).count() as u64;
        // One taker finds the bucket empty while others have cached tokens left.
        assert!((504 * K..=512 * K).contains(&(granted * 10)), "{granted}");
        assert!(clock_reads.get() < granted / 50, "{} of {granted} looked", clock_reads.get());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test with real threads")]
    fn threads_together_take_no_more_than_the_burst() {
        extern crate std;
        for round in 1..=200 {
            let bucket = &TokenBucket::new(100 * K, 512 * K, Time::ZERO);
            assert_eq!(goes(bucket, 1, 0), 0, "its shard caches tokens");
            let now = Time(SECOND * round * 9);
            let granted = std::thread::scope(|scope| {
                // Two use one shard.
                let threads = [0, 1, 2, 2].map(|shard| {
                    let take = move || bucket.take_in(shard, 10, || now) == Take::Granted;
                    scope.spawn(move || (0..).take_while(|_| take()).count())
                });
                threads.map(|thread| thread.join().unwrap() as u64 * 10).iter().sum::<u64>()
            });
            // Five shards are not used; and tokens for a cache that two want to fill may stay in
            // the bucket.
            assert!((503 * K..=507 * K).contains(&granted), "{granted}");
        }
    }

    #[test]
    fn new_parameters_hold_at_once() {
        let bucket = TokenBucket::new(100 * K, 512 * K, Time::ZERO);
        assert_eq!(goes(&bucket, 1, 0), 0, "its shard caches tokens");
        assert_eq!(bucket.take_in(0, 9, || panic!("this one does not look")), Take::Granted);
        bucket.configure(100 * K, 512 * K, Time::ZERO);
        assert_eq!(bucket.level(Time::ZERO), 504 * K as i64 - 10, "it was called in");
        bucket.configure(100 * K, 64, Time(SECOND));
        assert_eq!(goes(&bucket, 64, SECOND), SECOND);
        assert!(goes(&bucket, 1, SECOND) > SECOND, "the new burst is spent");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test with real threads")]
    fn parameters_that_change_all_the_time_make_no_tokens() {
        extern crate std;
        let bucket = &TokenBucket::new(1, 512 * K, Time::ZERO);
        let granted = std::thread::scope(|scope| {
            let threads = [0, 1].map(|shard| {
                let take = move || bucket.take_in(shard, 10, || Time::ZERO) == Take::Granted;
                scope.spawn(move || (0..).take_while(|_| take()).count())
            });
            while threads.iter().any(|thread| !thread.is_finished()) {
                bucket.configure(1, 256 * K, Time::ZERO);
                bucket.configure(1, 512 * K, Time::ZERO);
            }
            threads.map(|thread| thread.join().unwrap() as u64 * 10).iter().sum::<u64>()
        });
        assert!(granted <= 512 * K, "{granted}");
    }

    #[test]
    fn a_new_rate_moves_waiters_and_makes_no_tokens() {
        let bucket = TokenBucket::new(100 * K, 10 * K, Time::ZERO);
        assert_eq!(goes(&bucket, 10 * K, 0), 0);
        let Take::Wait(due) = bucket.take(10 * K, Time::ZERO) else {
            panic!("the bucket is empty")
        };
        assert!(near(bucket.ready_at(due).0, SECOND / 10));
        // After half of the wait the rate falls to a tenth: the other half takes ten times longer.
        bucket.configure(10 * K, 10 * K, Time(SECOND / 20));
        assert!(near(bucket.ready_at(due).0, SECOND / 20 + SECOND / 2));
        bucket.configure(RATE_UNLIMITED, 10, Time(SECOND / 10));
        assert!(bucket.ready_at(due) <= Time(SECOND / 10));
    }

    #[test]
    fn a_bucket_that_is_set_again_and_again_loses_nothing() {
        let bucket = TokenBucket::new(100, 10, Time::ZERO);
        assert_eq!(goes(&bucket, 1_010, 0), 0, "the bucket is full");
        for tick in 1..=1_000 {
            bucket.configure(100, 10, Time(tick * SECOND / 100 + 1_234_567));
        }
        // A thousand tokens are paid off in ten seconds, within one token.
        assert!((-1..=1).contains(&bucket.level(Time(SECOND * 10 + SECOND / 200))));
    }

    /// The example of the head, in thousands.
    #[test]
    fn a_rate_on_lease_falls_by_itself_and_rises_when_it_is_renewed() {
        let bucket = TokenBucket::new(100 * K, 500, Time::ZERO);
        let lease = RateLease { until: Time(SECOND), then: 10 * K };
        bucket.configure_leased(100 * K, 500, lease, Time::ZERO);
        assert_eq!(goes(&bucket, 400 * K, 0), 0, "it leaves a debt");
        let Take::Wait(due) = bucket.take(500, Time::ZERO) else { panic!("in debt") };
        // A token is earned when all of it is.
        let paid = |tenths: u64| bucket.level(Time(tenths * SECOND / 10)) + 400 * K as i64 + 1;
        assert_eq!([10, 15].map(paid), [100 * K as i64, 105 * K as i64]);
        // 400 are missing: 100 come by the end of the lease, the others after it.
        assert!(near(bucket.ready_at(due).0, SECOND * 31));
        bucket.renew(Time(SECOND * 3), Time(SECOND * 3 / 2));
        assert_eq!(paid(25), 205 * K as i64);
        // 150 more come by the end of the lease, then 145.
        assert!(near(bucket.ready_at(due).0, SECOND * 3 + SECOND * 145 / 10));
        bucket.renew(Time::MAX, Time(SECOND * 2));
        assert_eq!(paid(25), 205 * K as i64);
        assert!(near(bucket.ready_at(due).0, SECOND * 3 / 2 + SECOND * 295 / 100));
    }

    #[test]
    fn a_lease_that_is_renewed_in_time_changes_nothing() {
        let [leased, free] = [true, false].map(|is_leased| {
            let bucket = TokenBucket::new(7 * K, 10, Time::ZERO);
            for tick in 1..=1_000 {
                let now = Time(tick * SECOND / 100 + 1_234_567);
                let _ = bucket.take(69, now);
                if is_leased {
                    bucket.renew(now.after(tidegate_model::Span(SECOND / 50)), now);
                }
            }
            bucket
        });
        let now = Time(SECOND * 10 + SECOND / 60);
        assert_eq!(leased.level(now), free.level(now));
        // No limit is on lease.
        let open = TokenBucket::default();
        open.renew(Time(1), Time(0));
        assert_eq!(open.take(u64::MAX, Time(9)), Take::Granted);
        open.configure_leased(RATE_UNLIMITED, 1, RateLease { until: Time(1), then: 1 }, Time(0));
        assert_eq!(open.take(u64::MAX, Time(9)), Take::Granted);
    }

    #[test]
    fn a_held_bucket_lets_nothing_go_and_its_waiters_go_on_from_its_end() {
        let bucket = TokenBucket::new(100 * K, 512 * K, Time::ZERO);
        assert_eq!(goes(&bucket, 1, 0), 0, "its shard caches tokens");
        bucket.hold(Time(3 * SECOND), Time::MAX, Time::ZERO);
        assert_eq!(bucket.level(Time(2 * SECOND)), 0, "they are gone");
        let Take::Wait(due) = bucket.take(10 * K, Time(SECOND)) else { panic!("it is held") };
        assert!(near(bucket.ready_at(due).0, 3 * SECOND + SECOND / 10));
        // Another rate, its renewal and tokens that come back leave the hold as it is.
        let lease = RateLease { until: Time(SECOND * 3 / 2), then: 10 * K };
        bucket.configure_leased(50 * K, 512 * K, lease, Time(SECOND));
        assert!(
            near(bucket.ready_at(due).0, 3 * SECOND + SECOND / 5),
            "at the rate before its end"
        );
        bucket.renew(Time(10 * SECOND), Time(2 * SECOND));
        assert!(near(bucket.ready_at(due).0, 3 * SECOND + SECOND / 5));
        bucket.give_back(5 * K);
        assert!(near(bucket.ready_at(due).0, 3 * SECOND + SECOND / 10));
        // It is moved both ways, and ended.
        bucket.hold(Time(5 * SECOND), Time::MAX, Time(2 * SECOND));
        assert!(near(bucket.ready_at(due).0, 5 * SECOND + SECOND / 10));
        bucket.hold(Time(4 * SECOND), Time::MAX, Time(2 * SECOND));
        assert!(near(bucket.ready_at(due).0, 4 * SECOND + SECOND / 10));
        bucket.hold(Time::ZERO, Time::MAX, Time(2 * SECOND));
        assert!(near(bucket.ready_at(due).0, 2 * SECOND + SECOND / 10));
        // The end of a hold that has passed changes nothing.
        let level = bucket.level(Time(3 * SECOND));
        bucket.hold(Time::ZERO, Time::MAX, Time(2 * SECOND + SECOND / 2));
        assert!(bucket.level(Time(3 * SECOND)).abs_diff(level) <= 1);
        let open = TokenBucket::default();
        open.hold(Time(9), Time::MAX, Time(1));
        assert_eq!(open.take(u64::MAX, Time(2)), Take::Granted, "no limit is held");
    }

    /// The example of the head, in thousands.
    #[test]
    fn a_lease_that_ends_during_a_hold_lasts_until_the_bucket_is_full_behind_it() {
        let bucket = TokenBucket::new(100 * K, 500, Time::ZERO);
        let lease = RateLease { until: Time(SECOND), then: K };
        bucket.configure_leased(100 * K, 500, lease, Time::ZERO);
        let earned = |from: u64, to: u64| bucket.level(Time(to)) - bucket.level(Time(from));
        bucket.hold(Time(3 * SECOND), Time(SECOND), Time::ZERO);
        let Take::Wait(due) = bucket.take(400 * K, Time::ZERO) else { panic!("it is held") };
        assert!(near(bucket.ready_at(due).0, 3 * SECOND + SECOND / 200));
        assert!(earned(3 * SECOND, 4 * SECOND).abs_diff(500 + 995) <= 2, "then the lease is over");
        // Renewed, or held anew.
        bucket.renew(Time(SECOND * 5 / 4), Time(SECOND));
        assert!(earned(3 * SECOND, 4 * SECOND).abs_diff(500 + 995) <= 2);
        bucket.hold(Time(6 * SECOND), Time(SECOND * 5 / 4), Time(SECOND));
        assert!(near(bucket.ready_at(due).0, 6 * SECOND + SECOND / 200));
        // A hold that ends early leaves no longer lease than there is.
        bucket.hold(Time::ZERO, Time(SECOND * 5 / 2), Time(2 * SECOND));
        assert!(earned(2 * SECOND, 3 * SECOND).abs_diff(50 * K as i64 + 500) <= 2);
    }

    #[test]
    fn a_debt_is_paid_behind_a_hold() {
        let bucket = TokenBucket::new(100 * K, 500, Time::ZERO);
        assert_eq!(goes(&bucket, 100 * K, 0), 0);
        bucket.hold(Time(5 * SECOND), Time::MAX, Time(SECOND / 2));
        // A token is earned when all of it is.
        assert!((-49_501..=-49_500).contains(&bucket.level(Time(4 * SECOND))));
        assert!(near(goes(&bucket, 500, SECOND), 5 * SECOND + SECOND / 2));
    }

    #[test]
    fn what_is_given_back_moves_waiters() {
        let bucket = TokenBucket::new(100, 10, Time::ZERO);
        let _ = bucket.take(110, Time::ZERO);
        let Take::Wait(due) = bucket.take(10, Time::ZERO) else { panic!("in debt") };
        assert!(near(bucket.ready_at(due).0, SECOND * 11 / 10));
        bucket.give_back(100);
        assert!(near(bucket.ready_at(due).0, SECOND / 10));
        assert!(near(goes(&bucket, 10, 0), SECOND / 5));
    }

    #[test]
    fn a_waiter_that_is_withdrawn_moves_those_behind_it_alone() {
        let bucket = TokenBucket::new(100, 50, Time::ZERO);
        assert_eq!(bucket.take(30, Time::ZERO), Take::Granted);
        let [first, gone, last] = [40, 200, 10].map(|cost| match bucket.take(cost, Time::ZERO) {
            Take::Wait(due) => due,
            Take::Granted => panic!("20 tokens are left"),
        });
        assert!(first < gone && gone < last);
        let first = Due::at(first.position() + 200);
        bucket.give_back(200);
        assert!(near(bucket.ready_at(first).0, SECOND / 5), "as before");
        assert!(near(bucket.ready_at(last).0, SECOND * 3 / 10), "200 tokens earlier");
        assert!(first < last, "they keep their order");
    }

    #[test]
    fn all_zero_bytes_are_no_limit() {
        let bucket = TokenBucket::default();
        assert_eq!(bucket.take(u64::MAX, Time::ZERO), Take::Granted);
        bucket.give_back(7);
        // A limit set later begins with a full bucket and no debt.
        bucket.configure(100, 10, Time(5));
        assert_eq!(goes(&bucket, 10, 5), 5);
        assert!(near(goes(&bucket, 10, 5), 5 + SECOND / 10));
    }

    /// Threads that write one word wait for each other, so where there is no limit none is written.
    #[test]
    fn a_bucket_without_a_limit_is_only_read() {
        let bucket = TokenBucket::new(RATE_UNLIMITED, 512 * K, Time::ZERO);
        assert_eq!(bucket.take(7, Time(1)), Take::Granted);
        bucket.give_back(7);
        let Cursors { spent, checked, forgotten, credit } = &bucket.cursors.0;
        let caches = bucket.caches.iter().map(|cache| &cache.0);
        let written = [spent, checked, forgotten, credit].into_iter().chain(caches);
        assert!(written.map(|word| word.load(Ordering::Relaxed)).all(|word| word == 0));
    }

    /// A cache of 1,000 tokens is filled by requests that it would pay for four times, and only
    /// where the bucket has all of it besides.
    #[test]
    fn tokens_are_cached_for_small_requests_and_from_full_buckets() {
        let cached = |cost: u64, left: u64| {
            let bucket = TokenBucket::new(1, 512 * K, Time::ZERO);
            let _ = bucket.take_in(1, 504 * K - cost - left, || Time::ZERO);
            assert_eq!(bucket.take_in(0, cost, || Time::ZERO), Take::Granted);
            let clock_reads = core::cell::Cell::new(false);
            let _ = bucket.take_in(0, 1, || {
                clock_reads.set(true);
                Time::ZERO
            });
            !clock_reads.get()
        };
        assert!(cached(250, 1_000) && cached(1, 1_000));
        assert!(!cached(251, 100_000), "it would pay for three");
        assert!(!cached(250, 999), "it is not all there");
    }

    #[test]
    fn extreme_settings_do_not_overflow() {
        let bucket = TokenBucket::new(RATE_UNLIMITED - 1, u64::MAX, Time::ZERO);
        assert_eq!(bucket.take(u64::MAX, Time(u64::MAX)), Take::Granted);
        let slow = TokenBucket::new(1, 1, Time::ZERO);
        let _ = slow.take(u64::MAX, Time::ZERO);
        let Take::Wait(due) = slow.take(1, Time::ZERO) else { panic!("in debt for aeons") };
        assert_eq!(slow.ready_at(due), Time::MAX);
    }

    #[derive(Clone, Debug)]
    enum BucketAction {
        Take { shard: usize, cost: u64, after: u64 },
        Configure { rate: u64, after: u64 },
    }

    fn actions() -> impl Strategy<Value = Vec<BucketAction>> {
        let action = prop_oneof![
            8 => (0..SHARDS, 1u64..5_000, 0u64..SECOND / 10)
                .prop_map(|(shard, cost, after)| BucketAction::Take { shard, cost, after }),
            4 => (0..SHARDS, 1u64..300, 0u64..SECOND)
                .prop_map(|(shard, cost, after)| BucketAction::Take { shard, cost, after }),
            8 => (0..3usize, 1u64..100, 0u64..SECOND / 1_000)
                .prop_map(|(shard, cost, after)| BucketAction::Take { shard, cost, after }),
            1 => (1u64..100_000, 0u64..SECOND / 10)
                .prop_map(|(rate, after)| BucketAction::Configure { rate, after }),
        ];
        proptest::collection::vec(action, 1..80)
    }

    proptest! {
        /// The oracle: an empty bucket that begins at the moment at which the hold ends.
        #[test]
        fn a_hold_is_a_later_beginning(
            rate in 1u64..100_000, burst in 1u64..100_000,
            taken in proptest::collection::vec((0..SHARDS, 1u64..300), 0..20),
            holds in proptest::collection::vec((1..SECOND, 1..3 * SECOND), 1..10),
            costs in proptest::collection::vec(1u64..10_000, 1..10),
        ) {
            let bucket = TokenBucket::new(rate, burst, Time::ZERO);
            for (shard, cost) in taken {
                let _ = bucket.take_in(shard, cost, || Time::ZERO);
            }
            let (mut now, mut end) = (0, 0);
            for (gap, length) in holds {
                // Behind the end of a hold, tokens are earned.
                now += if now + gap < end { gap } else { 0 };
                end = now + length;
                bucket.hold(Time(end), Time::MAX, Time(now));
            }
            let owed = -bucket.level(Time(end));
            prop_assert!(owed >= 0, "nothing is left");
            let oracle = TokenBucket::new(rate, burst, Time(end));
            let full = oracle.level(Time(end)) as u64;
            let _ = oracle.take(full + owed as u64, Time(end));
            for (number, cost) in (1..).zip(costs) {
                let [held, begun] = [&bucket, &oracle].map(|it| goes(it, cost, end));
                let token = SECOND.div_ceil(rate);
                prop_assert!(held.abs_diff(begun) <= number * token, "{held} {begun}");
                prop_assert!(held >= end);
            }
        }

        /// The oracle: a bucket that is configured at the very moments at which a lease ends and is
        /// renewed.
        #[test]
        fn a_lease_is_a_change_of_rate_that_comes_by_itself(
            rate in 1u64..100_000, then in 1u64..100_000, burst in 1u64..512,
            steps in proptest::collection::vec((0..SECOND, 1..SECOND, 0u64..3_000), 1..40),
        ) {
            let lease = |until: u64| RateLease { until: Time(until), then };
            let (mut now, mut until) = (0, SECOND / 2);
            let [leased, oracle] = [(); 2].map(|()| TokenBucket::new(rate, burst, Time::ZERO));
            leased.configure_leased(rate, burst, lease(until), Time::ZERO);
            for (number, (gap, length, cost)) in (1..).zip(steps) {
                now += gap;
                if until < now {
                    oracle.configure(then, burst, Time(until));
                    oracle.configure(rate, burst, Time(now));
                }
                until = now + length;
                leased.renew(Time(until), Time(now));
                let _ = (leased.take(cost, Time(now)), oracle.take(cost, Time(now)));
                let levels = [&leased, &oracle].map(|bucket| bucket.level(Time(now)));
                prop_assert!(levels[0].abs_diff(levels[1]) <= number, "{levels:?}");
            }
        }

        #[test]
        fn a_position_is_ready_as_soon_as_the_line_is_paid_up_to_it(
            since in 0..SECOND, lease in 0..SECOND, position in 1u64..1 << 40,
            rate in 1u64..1 << 40, then in 1u64..1 << 40, base in 0u64..1 << 40,
        ) {
            let until = since + lease;
            let (rate, then) = (scaled(rate), scaled(then));
            let parameters = BucketParameters { base, since, rate, burst: 1, until, then };
            let Time(ready) = parameters.ready_at(position);
            prop_assert!(parameters.earned(Time(ready)) >= position);
            if ready > since {
                prop_assert!(parameters.earned(Time(ready - 1)) < position);
            }
        }

        /// The oracle: in every window between two grants, what was granted is at most the burst,
        /// plus what the rate in force yielded, plus what one request is larger than a full bucket:
        /// such a request leaves a debt, and shards may still have their caches when it goes.
        #[test]
        fn no_window_holds_more_than_it_may(
            rate in 1u64..100_000, burst in 1u64..400_000, actions in actions(),
        ) {
            let bucket = TokenBucket::new(rate, burst, Time::ZERO);
            let (mut now, mut grants, mut rates) = (0, Vec::new(), alloc::vec![(0u64, rate)]);
            for action in actions {
                match action {
                    BucketAction::Take { shard, cost, after } => {
                        // A closed loop: the next request comes after the last one went.
                        now = goes_in(&bucket, shard, cost, now + after);
                        grants.push((now, cost));
                    }
                    BucketAction::Configure { rate, after } => {
                        now += after;
                        bucket.configure(rate, burst, Time(now));
                        rates.push((now, rate));
                    }
                }
            }
            let earned_until = |t: u64| -> f64 {
                let end_times = rates[1..].iter().map(|r| r.0).chain([u64::MAX]);
                rates.iter().zip(end_times)
                    .map(|((from, rate), end)| {
                        let span = t.min(end).saturating_sub(*from);
                        span as f64 * *rate as f64 / 1e9
                    })
                    .sum()
            };
            for (first, (from, _)) in grants.iter().enumerate() {
                let mut sum = 0;
                for (to, cost) in &grants[first..] {
                    sum += cost;
                    let full = burst - burst / 512 * 8;
                    let beyond = grants[first..].iter().map(|g| g.1.saturating_sub(full)).max();
                    let most = burst as f64 + earned_until(*to) - earned_until(*from)
                        + beyond.unwrap_or(0) as f64;
                    prop_assert!(sum as f64 <= most * 1.000_01 + 2.0, "{sum} > {most}");
                }
            }
        }

        /// Whatever is taken, in whatever shard, and given back: as long as the bucket does not
        /// flow over, its level falls by just that. No token is made or lost by caching.
        #[test]
        fn the_level_is_what_was_there_less_what_was_taken(
            burst in 1u64..400_000,
            takes in proptest::collection::vec((0..SHARDS, 0u64..700, 0u64..9), 1..200),
        ) {
            let bucket = TokenBucket::new(1, burst, Time::ZERO);
            let mut level = bucket.level(Time::ZERO);
            prop_assert_eq!(level, (burst - burst / 512 * 8) as i64);
            for (shard, cost, back) in takes {
                let _ = bucket.take_in(shard, cost, || Time::ZERO);
                bucket.give_back(back.min(cost));
                level -= (cost - back.min(cost)) as i64;
                prop_assert_eq!(bucket.level(Time::ZERO), level);
            }
        }

        /// A waiter goes when the rates, each from when it was set, have yielded what is missing:
        /// not a nanosecond earlier, and later by less than each setting earns in a nanosecond.
        #[test]
        fn a_waiter_goes_when_all_rates_together_have_paid_for_it(
            rates in proptest::collection::vec((1u64..2_000, 1u64..SECOND / 100), 1..20),
            burst in 1u64..2_000,
        ) {
            let scaled = |rate: u64| (u128::from(rate) << RATE_BITS) / NANOSECONDS;
            // Later than any part of a token takes to be earned.
            let mut now = 10 * SECOND;
            let bucket = TokenBucket::new(rates[0].0, burst, Time(now));
            let full = bucket.level(Time(now)) as u64;
            prop_assert_eq!(bucket.take(full, Time(now)), Take::Granted);
            let Take::Wait(due) = bucket.take(full, Time(now)) else { panic!("it is empty") };
            let (mut missing, mut rounded) = (u128::from(full) << RATE_BITS, 0);
            for (index, (next, after)) in rates.into_iter().enumerate() {
                if index > 0 {
                    bucket.configure(next, burst, Time(now));
                }
                let rate = scaled(next);
                rounded += rate;
                let goes = now + missing.div_ceil(rate) as u64;
                let late = (rounded / rate) as u64 + 1;
                let found = bucket.ready_at(due).0;
                prop_assert!((goes..=goes + late).contains(&found), "{goes} {found} {late}");
                now += after;
                missing = missing.saturating_sub(rate * u128::from(after));
                if missing == 0 {
                    break;
                }
            }
        }

        /// A thread sleeps too long, by less than its burst, and its rate changes ten times a
        /// second together with the burst, as a controller changes both: it has all that the rates
        /// yield. Requests take a part of their time at the highest rate, in percent, and sleeps
        /// are late by microseconds.
        #[test]
        fn a_taker_that_oversleeps_gets_all_that_changing_rates_yield(
            rates in proptest::collection::vec(60u64..110, 1..30),
            takes in proptest::collection::vec((0u64..80, 0u64..20_000), 1..100),
            cost in prop_oneof![Just(10u64 << 10), (4u64 << 10)..(128 << 10)],
        ) {
            const INTERVAL: u64 = SECOND / 10;
            let highest = 110 << 20;
            let rate = |interval: u64| rates[interval as usize % rates.len()] << 20;
            let bucket = TokenBucket::new(rate(0), rate(0) / 20, Time::ZERO);
            let (mut now, mut interval, mut taken) = (0, 0, 0u128);
            // Changes the rate until then, and returns when it changes next.
            let mut pass = |now: u64| {
                while (interval + 1) * INTERVAL <= now {
                    interval += 1;
                    let at = Time(interval * INTERVAL);
                    bucket.configure(rate(interval), rate(interval) / 20, at);
                }
                (interval + 1) * INTERVAL
            };
            for (part, late) in takes.iter().cycle().take(3_000) {
                if let Take::Wait(due) = bucket.take(cost, Time(now)) {
                    // A change of the rate wakes it.
                    let mut changes = pass(now);
                    while bucket.ready_at(due).0 > changes {
                        changes = pass(changes);
                    }
                    now = now.max(bucket.ready_at(due).0) + late * 1_000;
                }
                taken += u128::from(cost);
                now += cost * SECOND / highest * part / 100;
                pass(now);
            }
            let whole = (0..now / INTERVAL).map(|it| u128::from(rate(it)) / 10).sum::<u128>();
            let last = u128::from(rate(now / INTERVAL)) * u128::from(now % INTERVAL) / NANOSECONDS;
            let behind = u128::from(cost + highest / 20) + (whole + last) / 10_000;
            prop_assert!(taken + behind >= whole + last, "{taken} of {whole} and {last}");
        }

        /// So does one that sleeps as long as it may: it wakes up seldom, and its bursts are short.
        #[test]
        fn a_taker_that_uses_the_slack_gets_all_of_it(
            rate in 1_000u64..1 << 34, burst in 1_000u64..1 << 24, part in 1u64..200,
        ) {
            let bucket = TokenBucket::new(rate, burst, Time::ZERO);
            let cost = (burst * part / 100).max(1);
            let (mut now, mut taken) = (0, 0u128);
            for _ in 0..500 {
                if let Take::Wait(due) = bucket.take(cost, Time(now)) {
                    now = bucket.ready_at(due).0.max(now + bucket.slack().0);
                }
                taken += u128::from(cost);
            }
            let earned = u128::from(rate) * u128::from(now) / NANOSECONDS;
            let behind = u128::from(cost + burst) + earned / 10_000;
            prop_assert!(taken + behind >= earned, "{taken} of {earned}");
        }

        /// A taker that never pauses gets the whole rate, whatever the size of its requests.
        #[test]
        fn a_backlogged_taker_gets_all_of_it(
            rate in 1_000u64..1 << 34, burst in 1u64..1 << 24, cost in 1u64..1 << 26,
        ) {
            let bucket = TokenBucket::new(rate, burst, Time::ZERO);
            let (mut now, mut taken) = (0, 0u128);
            for _ in 0..200 {
                now = goes(&bucket, cost, now);
                taken += u128::from(cost);
            }
            let earned = u128::from(rate) * u128::from(now) / NANOSECONDS + u128::from(burst);
            let behind = u128::from(cost) + u128::from(burst) + earned / 100_000;
            prop_assert!(taken + behind >= earned, "{taken} of {earned}");
        }
    }
}
