//! A tenant's demand, and the ratio of device traffic to the traffic that it requests.
//!
//! # Demand
//! A controller divides a device by demand ([`crate::shaping::fair_share`]), but no one reports the
//! demand: a stage can only report the tokens that it let through and the time that requests had to
//! wait. [`Demand`] turns one such report per control cycle into a number.
//!
//! - A stage that *held requests back* would have served more, by an unknown amount. If requests
//!   waited all the time, its demand is unbounded, and max-min sharing gives it the largest share
//!   that is fair.
//! - A stage that held some back for a moment, or used just its rate, has shown that it wants
//!   more, and also that it does not want everything. Its demand is twice of what it had, and what
//!   waits at its gate. If that is too little, all of its requests wait in the next cycle, or it
//!   demands twice as much again. Without this bound, a tenant with a great weight had the whole
//!   budget for each moment in which it waited, and the others had nothing.
//! - Any other stage served all requests, also one that used more than its rate without a wait: it
//!   had tokens left. Its demand is the amount that it served, plus headroom, so that growth meets
//!   a little headroom instead of a wall and the next report can show it.
//! - The busiest cycle of the last two intervals counts, so a demand that fluctuates by less than
//!   an eighth keeps its share. Where the last interval was quieter by more than that, the demand
//!   has fallen, and that interval alone counts: a tenant that stops has given everything back
//!   after one whole interval of silence, which may begin within a cycle. A tenant whose bursts are
//!   further apart gives its share back between them, and has it again in the cycle after it waits.
//!
//! An interval is the pause between decisions that the policy sets. A controller may ask more often
//! while shares move; then several cycles make one interval, and a pause within it costs nothing.
//!
//! With intervals of one second, a tenant that uses 64 MB/s of its 100 demands 66. It grows to
//! 100 MB/s, which is all it may use: 200. It falls to 90: 103, a 32nd more than it used
//! before, and 92 after the next second. Then it stops: 0 after one silent second.
//!
//! # Calibration
//! A stage counts what is requested; a promise about a device is about what the device does. The
//! two differ: reads that hit the page cache cost the device nothing, read-ahead costs more than
//! was requested. PAIO (§7) compares the stage's count with the kernel's count of bytes that went
//! to the block layer, and sets the bucket so that the *device* rate meets the goal.
//! [`Calibration`] keeps that ratio, smoothed and bounded. With nine of ten reads hitting the
//! cache, a goal of 100 MB/s makes a bucket of 1,000 MB/s.
//!
//! Left out: which request hits. The ratio is one per stage, so a tenant whose stages share one
//! process is calibrated as a whole.

use tidegate_model::Span;

/// A stage's report about one control cycle, for one tenant. Tokens are the bucket's: bytes or
/// operations, before any cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// The length of the cycle.
    pub interval: Span,
    /// Tokens of the requests that were let through.
    pub served: u64,
    /// Waiting for tokens that fell into this cycle, summed over requests, including those that
    /// still wait.
    pub waited: Span,
    /// The bucket's rate during the cycle, in tokens per second; [`u64::MAX`] if there was none.
    pub rate: u64,
    /// Requests that were let through, and how many of them had to wait; zero if that is unknown.
    pub requests: u64,
    /// See [`Self::requests`].
    pub delayed: u64,
    /// Tokens of the requests that wait at the end of the cycle; zero if they are unknown.
    pub waiting: u64,
}

/// Waiting is noticed from one part in this many of the interval. Two sleeping requests that each
/// overshoot by a millisecond are 1 % of a cycle of 200 ms, and must not look like a backlog.
/// Chosen by hand, not measured.
const WAIT_PART: u64 = 20;

/// A stage that used this much of its rate, in 64ths, was held back even if it reports no waiting:
/// one that has all its headroom left uses 62.06 of them.
const RATE_USED_64THS: u128 = 63;

/// A stage that used this much of its rate, in 64ths, without a wait has used tokens of its burst.
const BURST_USED_64THS: u128 = 65;

/// Headroom on top of the used tokens: one part in this many. It only has to be more than the
/// fluctuation of a steady tenant's measurements: a tenant that grows beyond it waits, and gets its
/// full share by the next cycle. The headroom is lost to tenants that can use it: with a quarter,
/// three steady tenants left 7 % of a disk idle; with this, less than 2 %.
const HEADROOM_PART: u64 = 32;

/// Cycles that are kept. Quarters of an interval are the shortest that a controller asks for, and
/// two intervals count.
const CYCLES: usize = 8;

/// Cycles make up an interval once they lack less than one part in this many: cycles of one
/// interval each are not all equally long.
const SHORT_PART: u64 = 4;

/// A demand has fallen if the last interval was quieter than the one before by more than one part
/// in this many. Steady programs fluctuate by less. Chosen by hand.
const FALL_PART: u64 = 8;

/// Requests waited all the time if one in so many of them had to wait, and if their waits add up to
/// the cycle. Where a bucket is empty all the time, nearly all requests wait. Chosen by hand.
const DELAYED_PART: u64 = 2;

/// How many times of what it had a tenant demands that waited for a moment. Twice is what a thread
/// would have had that waited for half of the time.
const MORE: u64 = 2;

const SECOND: u128 = Span::SECOND.0 as u128;

impl Usage {
    /// Whether the stage kept requests waiting, or would have at the slightest increase.
    pub fn is_held_back(&self) -> bool {
        let waited = self.waited.0 >= (self.interval.0 / WAIT_PART).max(1);
        let allowed = u128::from(self.rate) * u128::from(self.interval.0) / SECOND;
        let used = u128::from(self.served) * 64;
        let is_rate = used >= allowed * RATE_USED_64THS;
        let is_burst = self.waited == Span::ZERO && used > allowed * BURST_USED_64THS;
        waited || (is_rate && !is_burst && self.served > 0)
    }

    /// Whether some request waited at any time of the cycle, as far as is known.
    fn is_backlogged(&self) -> bool {
        let is_whole = self.waited >= self.interval || self.served == 0;
        let is_most = self.delayed == 0 || self.delayed >= self.requests / DELAYED_PART;
        is_whole && is_most
    }

    /// Tokens per second that were let through.
    fn per_second(&self) -> u64 {
        self.in_a_second(self.served)
    }

    /// The demand of a stage that held requests back.
    fn unmet(&self) -> u64 {
        if self.is_backlogged() {
            return u64::MAX;
        }
        let had = self.per_second().saturating_mul(MORE);
        had.saturating_add(self.in_a_second(self.waiting))
    }

    fn in_a_second(&self, tokens: u64) -> u64 {
        let rate = u128::from(tokens) * SECOND / u128::from(self.interval.0.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// An estimate of what one tenant wants from one stage.
///
/// ```
/// use tidegate_algo::shaping::demand::{Demand, Usage};
/// use tidegate_model::Span;
/// let usage = |served| {
///     Usage { interval: Span::SECOND, served, rate: 1_000, ..Usage::default() }
/// };
/// let mut demand = Demand::default();
/// let mut observe = |served| demand.observe(usage(served), Span::SECOND);
/// assert_eq!(observe(640), 660); // a 32nd more than it used
/// assert_eq!(observe(1_000), 2_000); // all it may use: perhaps it wants more
/// assert_eq!(observe(900), 1_032); // a little less than before
/// assert_eq!(observe(900), 929);
/// assert_eq!(observe(0), 0); // gone
/// ```
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Tokens per second that were let through in the last cycles, and the cycles' lengths, newest
    /// first.
    recent: [(u64, Span); CYCLES],
    estimate: u64,
}

impl Demand {
    /// Takes in one cycle and returns the demand in tokens per second, [`u64::MAX`] if it has no
    /// known bound. `interval` is the policy's pause between decisions. A report about no time
    /// changes nothing.
    pub fn observe(&mut self, usage: Usage, interval: Span) -> u64 {
        if usage.interval == Span::ZERO {
            return self.estimate;
        }
        self.recent.rotate_right(1);
        self.recent[0] = (usage.per_second(), usage.interval);
        let busiest = self.busiest(interval);
        // Rounded up, so that even a tenant with one operation per second has headroom to grow.
        let with_headroom = busiest.saturating_add(busiest.div_ceil(HEADROOM_PART));
        self.estimate = match usage.is_held_back() {
            true => usage.unmet().max(with_headroom),
            false => with_headroom,
        };
        self.estimate
    }

    /// The rate of the busiest cycle that counts.
    fn busiest(&self, interval: Span) -> u64 {
        let enough = interval.0 - interval.0 / SHORT_PART;
        if self.silence() >= enough {
            return 0;
        }
        let mut cycles = self.recent.iter();
        let mut busiest_of_interval = || {
            let (mut busiest, mut length) = (0, 0u64);
            while length < enough
                && let Some((rate, cycle)) = cycles.next()
            {
                busiest = busiest.max(*rate);
                length = length.saturating_add(cycle.0);
            }
            busiest
        };
        let (last, before) = (busiest_of_interval(), busiest_of_interval());
        if last < before - before / FALL_PART { last } else { last.max(before) }
    }

    /// For how long nothing was let through, in nanoseconds: some whole cycles, and the end of the
    /// one before them, if the rate until then was that of the cycle before it.
    fn silence(&self) -> u64 {
        let count = self.recent.iter().take_while(|(rate, _)| *rate == 0).count();
        let (silent, others) = self.recent.split_at(count);
        let silent = silent.iter().fold(0u64, |sum, (_, cycle)| sum.saturating_add(cycle.0));
        match others {
            [(rate, cycle), (before, _), ..] if silent > 0 && rate < before => {
                let end = u128::from(cycle.0) * u128::from(before - rate) / u128::from(*before);
                silent.saturating_add(end as u64)
            }
            _ => silent,
        }
    }

    /// The demand after the last cycle, in tokens per second.
    pub const fn per_second(&self) -> u64 {
        self.estimate
    }
}

/// One, in the fixed point of a calibration's ratio.
const ONE: u64 = 1 << 32;

/// A bucket is at most this many times faster or slower than its goal. A stage that only hits the
/// cache would otherwise get an infinite rate, and flood the device with its first miss. The worst
/// read-ahead in use (128 KiB for a read of 4 KiB) is a factor of 32.
const FACTOR_MAX: u64 = 64;

/// Bytes that must have been requested before their ratio is believed: eight read-ahead windows of
/// 128 KiB, for a single window would look like 32 times the traffic.
const SAMPLE_MIN: u64 = 1 << 20;

/// How much faster the device may turn out than estimated before it is no longer noise.
const JUMP: u64 = 2;

/// How many bytes a device moves for each byte that a stage lets through.
///
/// ```
/// use tidegate_algo::shaping::demand::Calibration;
/// let mut calibration = Calibration::default();
/// assert_eq!(calibration.bucket_rate(100), 100);
/// for _ in 0..5 {
///     calibration.observe(10 << 20, 1 << 20); // nine of ten bytes come from a cache
/// }
/// assert_eq!(calibration.bucket_rate(100), 991);
/// assert_eq!(calibration.device_rate(991), 100);
/// ```
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Device bytes per requested byte, in 1/2^32; between 2^26 (1/64) and 2^38 (64).
    ratio: u64,
    /// Bytes counted since the last sample.
    requested: u64,
    device: u64,
}

impl Default for Calibration {
    /// Every requested byte is a device byte until something else is seen.
    fn default() -> Self {
        Self { ratio: ONE, requested: 0, device: 0 }
    }
}

impl Calibration {
    /// Takes in what the stage let through and what the device moved in one cycle. Cycles with few
    /// requests are added up until they are worth a sample.
    ///
    /// Three quarters of the estimate are the newest sample, so an error shrinks fourfold per
    /// cycle. A rise to more than twice the estimate is taken at once: a cache that stops hitting
    /// sends a whole bucket to the device, and every cycle of hesitation hurts the other tenants.
    /// A fall only leaves the device idle for a moment, so it may take its time.
    pub fn observe(&mut self, requested_bytes: u64, device_bytes: u64) {
        self.requested = self.requested.saturating_add(requested_bytes);
        self.device = self.device.saturating_add(device_bytes);
        if self.requested < SAMPLE_MIN {
            return;
        }
        let sample = u128::from(self.device) * u128::from(ONE) / u128::from(self.requested);
        let bounds = (u128::from(ONE / FACTOR_MAX), u128::from(ONE * FACTOR_MAX));
        // Between 2^26 and 2^38, so it fits, and so do four of it.
        let sample = sample.clamp(bounds.0, bounds.1) as u64;
        let is_jump = sample > self.ratio * JUMP;
        self.ratio = if is_jump { sample } else { (self.ratio + 3 * sample + 2) / 4 };
        (self.requested, self.device) = (0, 0);
    }

    /// The bucket's rate at which the device does `goal`.
    pub fn bucket_rate(&self, goal: u64) -> u64 {
        narrow(u128::from(goal) * u128::from(ONE) / u128::from(self.ratio))
    }

    /// Returns the device's rate for a bucket's `rate`. It turns a demand in a stage's tokens into
    /// a demand for the device, in which budgets are counted. An unbounded one stays unbounded.
    pub fn device_rate(&self, rate: u64) -> u64 {
        if rate == u64::MAX {
            return rate;
        }
        narrow((u128::from(rate) * u128::from(self.ratio) + u128::from(ONE / 2)) / u128::from(ONE))
    }
}

/// `rate`, or "no bound" where it does not fit.
fn narrow(rate: u128) -> u64 {
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    const MB: u64 = 1_000_000;

    /// One cycle of a tenant that wants `wish` and may have `rate`, both per second.
    fn cycle(wish: u64, rate: u64) -> Usage {
        let interval = Span(200 * Span::MILLISECOND.0);
        let served = wish.min(rate) / 5;
        // Everything that was not served waits for half the cycle, in one request per megabyte.
        let late = wish.saturating_sub(rate) / 5 / MB;
        let waited = Span(late * interval.0 / 2);
        Usage { interval, served, waited, rate, ..Usage::default() }
    }

    #[test]
    fn a_demand_over_time() {
        // Steady, growing past its rate, bursty, a little less, gone, and back while its rate is
        // nothing.
        let wishes = [40, 40, 60, 150, 150, 10, 10, 90, 0, 90, 80, 80, 0, 0, 30];
        let rates = [100, 100, 100, 100, 160, 160, 100, 100, 100, 100, 100, 100, 100, 0, 0];
        let mut table = String::from("wish rate demand\n");
        let mut demand = Demand::default();
        for (wish, rate) in wishes.into_iter().zip(rates) {
            let cycle = cycle(wish * MB, rate * MB);
            let estimate = match demand.observe(cycle, cycle.interval) {
                u64::MAX => String::from("any"),
                estimate => format!("{}", estimate / MB),
            };
            table += &format!("{wish:4} {rate:4} {estimate:>6}\n");
        }
        let golden = "\
wish rate demand
  40  100     41
  40  100     41
  60  100     61
 150  100    any
 150  160    154
  10  160     10
  10  100     10
  90  100     92
   0  100      0
  90  100     92
  80  100     92
  80  100     82
   0  100      0
   0    0      0
  30    0    any
";
        assert_eq!(table, golden);
    }

    /// A database that uses a tenth of a budget of 100, now and then a little more at once, and
    /// from the ninth cycle on all that it gets. Its weight is a thousand times that of a backup.
    #[test]
    fn a_great_weight_takes_no_more_than_twice_for_a_moment() {
        use crate::shaping::fair_share::{TenantDemand, allocate};
        use core::num::NonZeroU32;
        let wishes = [10u64, 10, 14, 10, 10, 16, 10, 10, 200, 200, 200, 10, 10];
        let interval = Span(100 * Span::MILLISECOND.0);
        let mut table = String::from("wish has demand backup\n");
        let (mut demand, mut rate) = (Demand::default(), 11);
        for wish in wishes {
            // Ten requests for each token; those beyond the rate wait for half of the cycle.
            let (served, late) = (wish.min(rate), wish.saturating_sub(rate) * 10);
            let usage = Usage {
                interval,
                served: served * MB / 10,
                waited: Span(late * interval.0 / 2),
                rate: rate * MB,
                requests: served * 10,
                delayed: late.min(served * 10),
                waiting: 0,
            };
            let found = demand.observe(usage, interval);
            let database = TenantDemand {
                weight: NonZeroU32::new(1_000).unwrap(),
                demand: found,
                ..TenantDemand::BACKLOGGED
            };
            let shares = allocate(100 * MB, &[database, TenantDemand::BACKLOGGED]);
            rate = shares[0].div_ceil(MB);
            let found = match found {
                u64::MAX => String::from("any"),
                found => format!("{}", found / MB),
            };
            table += &format!("{wish:4} {served:3} {found:>6} {:6}\n", shares[1] / MB);
        }
        let golden = "\
wish has demand backup
  10  10     10     89
  10  10     10     89
  14  11     22     78
  10  10     11     88
  10  10     10     89
  16  11     22     78
  10  10     11     88
  10  10     10     89
 200  11    any      0
 200 100    any      0
 200 100    any      0
  10  10     10     89
  10  10     10     89
";
        assert_eq!(table, golden);
    }

    /// A database whose bucket holds a second of its rate writes 45 at once, and waits for nothing.
    #[test]
    fn tokens_of_a_burst_are_no_unmet_demand() {
        let interval = Span(100 * Span::MILLISECOND.0);
        let demand = |served: u64, waited| {
            let (served, rate) = (served * MB / 10, 20 * MB);
            let usage = Usage { interval, served, waited, rate, ..Usage::default() };
            Demand::default().observe(usage, interval) / MB
        };
        assert_eq!(demand(45, Span::ZERO), 46);
        assert_eq!(demand(45, Span(interval.0 / 2)), 90, "and then the burst was gone");
        assert_eq!(demand(20, Span::ZERO), 40, "all of its rate: perhaps it wants more");
    }

    /// Cycles are quarters of an interval after the one in which a stage stops, and three of them
    /// are an interval. It had stopped before the third if it used little of that first cycle.
    #[test]
    fn silence_begins_within_a_cycle() {
        let interval = Span(100 * Span::MILLISECOND.0);
        let quarters_until_zero = |used_percent: u64| {
            let mut demand = Demand::default();
            let mut observe = |per_second: u64, interval: Span, all: Span| {
                let served = (u128::from(per_second) * u128::from(interval.0) / SECOND) as u64;
                let usage = Usage { interval, served, rate: u64::MAX, ..Usage::default() };
                demand.observe(usage, all)
            };
            observe(100 * MB, interval, interval);
            let first = observe(used_percent * MB, interval, interval);
            assert!(first >= used_percent * MB, "as far as is known it goes on");
            let quarter = Span(interval.0 / 4);
            (1..).find(|_| observe(0, quarter, interval) == 0)
        };
        assert_eq!(quarters_until_zero(1), Some(1));
        assert_eq!(quarters_until_zero(50), Some(1));
        assert_eq!(quarters_until_zero(51), Some(2));
        assert_eq!(quarters_until_zero(75), Some(2));
        assert_eq!(quarters_until_zero(76), Some(3));
        assert_eq!(quarters_until_zero(100), Some(3));
    }

    #[test]
    fn a_little_waiting_is_not_a_backlog() {
        let interval = Span(200 * Span::MILLISECOND.0);
        let usage =
            |waited| Usage { interval, served: 100, waited, rate: 1_000, ..Usage::default() };
        assert!(!usage(Span(9 * Span::MILLISECOND.0)).is_held_back());
        assert!(usage(Span(10 * Span::MILLISECOND.0)).is_held_back());
        assert!(!Usage { rate: u64::MAX, ..usage(Span::ZERO) }.is_held_back());
    }

    /// Requests of one tenant, in milliseconds: an open loop, whose requests do not wait for each
    /// other, at a gate without a burst.
    #[derive(Default)]
    struct OpenLoop {
        /// Requests of one token at the gate.
        waiting: u64,
    }

    impl OpenLoop {
        /// A cycle in which so many requests come in each millisecond, and so many may go. Whether
        /// some waited at any time.
        fn cycle(&mut self, arrivals: &[u64], allowed: u64) -> (Usage, bool) {
            let interval = Span(arrivals.len() as u64 * Span::MILLISECOND.0);
            let mut usage = Usage { interval, rate: allowed * 1_000, ..Usage::default() };
            let mut was_waiting = true;
            for arrived in arrivals {
                let late = self.waiting.min(allowed);
                let gone = (self.waiting + arrived).min(allowed);
                self.waiting = self.waiting + arrived - gone;
                usage.served += gone;
                usage.delayed += late;
                usage.waited.0 += self.waiting * Span::MILLISECOND.0;
                was_waiting &= self.waiting > 0;
            }
            (usage.requests, usage.waiting) = (usage.served, self.waiting);
            (usage, was_waiting)
        }
    }

    proptest! {
        /// The oracle counts what comes.
        #[test]
        fn a_demand_is_all_that_came_and_has_a_bound_unless_requests_waited_all_the_time(
            cycles in prop::collection::vec(
                (prop::collection::vec(0u64..12, 20), 1u64..12), 1..20),
        ) {
            let (mut gate, mut demand) = (OpenLoop::default(), Demand::default());
            for (arrivals, allowed) in cycles {
                let interval = Span(20 * Span::MILLISECOND.0);
                let before = gate.waiting;
                let (usage, was_waiting) = gate.cycle(&arrivals, allowed);
                let found = demand.observe(usage, interval);
                let came = before + arrivals.iter().sum::<u64>();
                prop_assert!(found >= came * 50, "{found} of {came}: {usage:?}");
                if usage.served == 0 || !usage.is_held_back() {
                    continue;
                }
                if was_waiting && usage.delayed == usage.served {
                    prop_assert_eq!(found, u64::MAX, "all waited: {:?}", usage);
                }
                if usage.waited < interval || usage.delayed * 2 + 1 < usage.served {
                    // Of the cycle before, a 32nd more may count.
                    let most = (2 * usage.served + gate.waiting) * 50;
                    let busiest = demand.busiest(interval);
                    prop_assert!(found <= most.max(busiest + busiest.div_ceil(32)), "{usage:?}");
                }
            }
        }

        #[test]
        fn a_demand_is_never_less_than_what_was_used(
            served: u64, interval: u64, waited: u64, rate: u64
        ) {
            let (interval_span, waited) = (Span(interval), Span(waited));
            let usage =
                Usage { interval: interval_span, served, waited, rate, ..Usage::default() };
            let mut demand = Demand::default();
            let estimate = demand.observe(usage, Span::SECOND);
            prop_assert!(interval == 0 || estimate >= usage.per_second());
            prop_assert_eq!(estimate, demand.per_second());
            let silent = Usage { interval: Span::SECOND, rate, ..Usage::default() };
            demand.observe(silent, Span::SECOND);
            prop_assert_eq!(demand.observe(silent, Span::SECOND), 0);
        }

        #[test]
        fn a_bucket_stays_within_bounds(
            cycles in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            goal in 0u64..1 << 50,
        ) {
            let mut calibration = Calibration::default();
            for (requested, device) in cycles {
                calibration.observe(requested, device);
                let rate = calibration.bucket_rate(goal);
                prop_assert!(rate <= goal * FACTOR_MAX && rate >= goal / FACTOR_MAX);
                let back = calibration.device_rate(rate);
                prop_assert!(back <= goal && back + FACTOR_MAX >= goal);
            }
        }

        /// Whatever the ratio and wherever the estimate stood, within the bounds of both, seven
        /// cycles bring the device to within two per cent of its goal.
        #[test]
        fn a_device_meets_its_goal_in_a_few_cycles(
            first in 20u64..4_000, then in 20u64..4_000, goal in 10 * MB..10_000 * MB
        ) {
            let mut calibration = Calibration::default();
            for permille in [first, then] {
                let device = |rate: u64| (u128::from(rate) * u128::from(permille) / 1_000) as u64;
                let mut done = 0;
                for _ in 0..8 {
                    let rate = calibration.bucket_rate(goal);
                    done = device(rate);
                    calibration.observe(rate, done);
                }
                prop_assert!(done.abs_diff(goal) <= goal / 50, "{done} of {goal}");
            }
        }
    }

    #[test]
    fn a_closed_loop() {
        // A goal of 100 MB/s. Per cent of the requested bytes that reach the device: a cold cache,
        // a warm one, one that holds everything, cold again, and read-ahead.
        let phases = [(100, 2), (10, 5), (0, 4), (100, 3), (150, 3)];
        let mut calibration = Calibration::default();
        let mut table = String::from("ratio bucket device\n");
        for (percent, cycles) in phases {
            for _ in 0..cycles {
                let rate = calibration.bucket_rate(100 * MB);
                let device = rate / 100 * percent;
                calibration.observe(rate, device);
                table += &format!("{percent:4}% {:6} {:6}\n", rate / MB, device / MB);
            }
        }
        let golden = "\
ratio bucket device
 100%    100    100
 100%    100    100
  10%    100     10
  10%    307     30
  10%    640     64
  10%    876     87
  10%    966     96
   0%    991      0
   0%   2707      0
   0%   4772      0
   0%   5897      0
 100%   6266   6266
 100%    100    100
 100%    100    100
 150%    100    150
 150%     72    109
 150%     68    102
";
        assert_eq!(table, golden);
    }

    #[test]
    fn a_few_bytes_prove_nothing() {
        let mut calibration = Calibration::default();
        // One read of 4 KiB pulls a window of 128 KiB; it is one of many, not the rule.
        calibration.observe(4 << 10, 128 << 10);
        assert_eq!(calibration.bucket_rate(1_000), 1_000);
        calibration.observe(0, 0);
        calibration.observe((1 << 20) - (4 << 10), (1 << 20) - (128 << 10));
        assert_eq!(calibration.bucket_rate(1_000), 1_000);
    }
}
