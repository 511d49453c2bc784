//! A limit on what is at a device, such that most requests take no longer than a bound.
//!
//! # Problem
//! The more requests a device has at a time, the more of them it serves in a second, up to a number
//! that differs from device to device, and the longer each takes, without end. Which number keeps a
//! bound of latency is not known, and changes with the requests and with the device.
//!
//! # Mechanism
//! A request over the bound is *slow*. It lowers the limit by an eighth, to one at least, or by
//! half if it took twice the bound, unless it was at the device already when the limit was lowered
//! last. A limit that is higher than the number of requests at the device first falls to that
//! number, so a few slow requests relieve a device that is far too full. Each *quick* request,
//! while the limit keeps others back, raises it by as much as one in [`SLOW_PART`] slow requests
//! takes away. So about one in [`SLOW_PART`] is slow at rest: a percentile is bounded, and one slow
//! request has an effect at once. After [`EASY`] quick requests in a row the steps up double, and
//! again after as many more: a limit of 1 that is no longer needed is 32 some 2,000 requests later.
//!
//! Slow requests come in groups: where all requests at a device are limited, those that were there
//! as the limit was lowered are late together. Each of these delays the next step up by
//! [`SLOW_COST`] quick requests, however large groups are.
//!
//! Left out: the limit is one number. Where it keeps a bound for some requests only, because a
//! device takes longer for others whatever is beside them, it falls to one.

use tidegate_model::Time;

/// One request in so many is slow at rest: less than the one in a hundred that a 99th percentile
/// allows.
pub const SLOW_PART: u64 = 256;

/// Quick requests for each slow one of a group behind the first, before the limit rises again, and
/// the most slow ones for which they add up.
const SLOW_COST: u32 = 256;
const SLOW_MAX: u32 = 64;

/// Requests in a row that are quick before the steps up double, and the most doublings.
pub const EASY: u32 = 512;
const DOUBLINGS: u32 = 7;

/// A slow request lowers the limit by one part in so many, and one that took twice the bound by one
/// in so many.
const LOWERED: u64 = 8;
const LOWERED_FAR: u64 = 2;

/// After a request that filled the limit is finished, so many quick ones count as served while
/// others were kept back.
const HELD: u32 = 16;

/// Parts of one in which the limit is kept.
const PARTS: u64 = 1 << 12;

/// A limit, in any unit of which a device has whole numbers.
///
/// ```
/// use tidegate_algo::capacity::percentile_limit::PercentileLimit;
/// use tidegate_model::Time;
/// let mut limit = PercentileLimit::new(32);
/// limit.on_slow((Time(500), Time(100)), false, 40);
/// assert_eq!(limit.get(), 28);
/// limit.on_slow((Time(600), Time(200)), false, 28); // it was there before
/// assert_eq!(limit.get(), 28);
/// for _ in 0..600 {
///     limit.on_full();
///     limit.on_quick();
/// }
/// assert_eq!(limit.get(), 32);
/// ```
#[derive(Clone, Debug)]
pub struct PercentileLimit {
    /// The limit, and the largest, in [`PARTS`].
    limit: u64,
    most: u64,
    /// When it was lowered last.
    lowered: Time,
    /// Requests in a row that were quick.
    easy: u32,
    /// How many more quick requests leave the limit as it is.
    owed: u32,
    /// How many more requests count as served while others were kept back.
    held: u32,
}

impl PercentileLimit {
    /// A limit that begins at `most`, and never is more; at least one.
    pub fn new(most: u32) -> Self {
        let most = u64::from(most.max(1)) * PARTS;
        Self { limit: most, most, lowered: Time::ZERO, easy: 0, owed: 0, held: 0 }
    }

    /// The limit in whole numbers, from one to the largest.
    pub fn get(&self) -> u32 {
        u32::try_from(self.limit / PARTS).unwrap_or(u32::MAX)
    }

    /// A request was at the device while there was as much as the limit.
    pub fn on_full(&mut self) {
        self.held = HELD;
    }

    /// A request that went to the device at `dispatched` and is finished `now` took longer than the
    /// bound, or even twice as long. As much as `present` is limited and at the device.
    pub fn on_slow(&mut self, (now, dispatched): (Time, Time), is_far: bool, present: u32) {
        self.easy = 0;
        if dispatched < self.lowered {
            self.owed = (self.owed + SLOW_COST).min(SLOW_MAX * SLOW_COST);
        } else {
            let limit = self.limit.min(u64::from(present) * PARTS);
            let part = if is_far { LOWERED_FAR } else { LOWERED };
            self.limit = (limit - limit / part).max(PARTS);
            self.lowered = now;
        }
    }

    /// A request kept the bound.
    pub fn on_quick(&mut self) {
        if self.held == 0 {
            return;
        }
        self.held -= 1;
        if self.owed > 0 {
            self.owed -= 1;
            return;
        }
        self.easy = self.easy.saturating_add(1);
        let step = (self.limit / (LOWERED * SLOW_PART)) << (self.easy / EASY).min(DOUBLINGS);
        self.limit = (self.limit + step.max(1)).min(self.most);
    }
}

#[cfg(test)]
#[path = "percentile_limit_tests.rs"]
mod tests;
