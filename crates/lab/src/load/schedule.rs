//! Schedule of a load generator: times and contents of requests, as pure functions of a seed.

use std::sync::Arc;

use tidegate_model::{Iops, Span, Time};

/// The moments between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arrivals {
    /// All alike.
    Constant,
    /// As from many users who do not know of each other: exponentially distributed.
    Poisson,
}

/// The times at which one thread is to send its requests; independent of all answers.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    rate: u64,
    /// Every so many-th request is this thread's.
    stride: u64,
    /// The number of the next request among those of all threads.
    number: u64,
    /// The next request of a Poisson process, in nanoseconds.
    next: f64,
    dice: Dice,
}

impl Schedule {
    /// The schedule of thread `thread` of `threads`, which have `rate` together.
    pub(crate) fn new(
        arrivals: Arrivals,
        rate: Iops,
        [thread, threads]: [u64; 2],
        seed: u64,
    ) -> Self {
        let dice = Dice::new(seed ^ thread.wrapping_mul(0x9e37_79b9));
        let mut schedule = Self {
            arrivals,
            rate: rate.0.max(1),
            stride: threads,
            number: thread,
            next: 0.0,
            dice,
        };
        if arrivals == Arrivals::Poisson {
            schedule.next = schedule.gap();
        }
        schedule
    }

    /// When the next request is due.
    pub(crate) fn due(&self) -> Time {
        Time(match self.arrivals {
            Arrivals::Constant => {
                let due = u128::from(self.number) * 1_000_000_000 / u128::from(self.rate);
                u64::try_from(due).unwrap_or(u64::MAX)
            }
            Arrivals::Poisson => self.next as u64,
        })
    }

    /// Goes on to the request after it.
    pub(crate) fn advance(&mut self) {
        self.number += self.stride;
        if self.arrivals == Arrivals::Poisson {
            self.next += self.gap();
        }
    }

    fn gap(&mut self) -> f64 {
        let mean = 1e9 * self.stride as f64 / self.rate as f64;
        // From (0, 1], so that the logarithm is finite.
        -mean * (1.0 - self.dice.fraction()).ln()
    }
}

/// A generator of numbers that look random: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next throw.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.roll()) * u128::from(bound);
        // The upper half is below the bound.
        (wide >> 64) as u64
    }

    /// A number from [0, 1).
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Which of a number of things a request is about.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// All are as likely.
    Uniform(u64),
    /// The k-th is about k times less likely than the first.
    Zipf(Arc<Zipf>),
}

impl Choice {
    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Uniform(count) => *count,
            Self::Zipf(zipf) => zipf.count,
        }
    }

    /// One of them.
    pub(crate) fn pick(&self, dice: &mut Dice) -> u64 {
        match self {
            Self::Uniform(count) => dice.below(*count),
            Self::Zipf(zipf) => zipf.pick(dice.fraction()),
        }
    }
}

/// Zipf's distribution as the Yahoo! Cloud Serving Benchmark has it: the method of Gray et al.,
/// "Quickly generating billion-record synthetic databases" (1994).
#[derive(Debug)]
pub(crate) struct Zipf {
    count: u64,
    /// The sum of 1 / k^theta.
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// How steep it is: YCSB's constant.
    const THETA: f64 = 0.99;

    /// The distribution over `count` things; takes some 20 ns for each of them.
    pub(crate) fn new(count: u64) -> Self {
        let zeta: f64 = (1..=count).map(|k| (k as f64).powf(-Self::THETA)).sum();
        let second = 0.5f64.powf(Self::THETA);
        let share = (2.0 / count as f64).powf(1.0 - Self::THETA);
        let eta = (1.0 - share) / (1.0 - (1.0 + second) / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - Self::THETA), eta, second }
    }

    fn pick(&self, fraction: f64) -> u64 {
        let position = fraction * self.zeta;
        if position < 1.0 || self.count == 1 {
            return 0;
        }
        if position < 1.0 + self.second || self.count == 2 {
            return 1;
        }
        let rank = (self.eta * fraction - self.eta + 1.0).powf(self.alpha) * self.count as f64;
        (rank as u64).min(self.count - 1)
    }
}

/// The part of a run that counts: what warms up before it does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Window {
    /// One of this length after a time to warm up.
    pub(crate) fn after(warmup: Span, length: Span) -> Self {
        let from = Time::ZERO.after(warmup);
        Self { from, until: from.after(length) }
    }

    pub(crate) fn contains(&self, time: Time) -> bool {
        (self.from..self.until).contains(&time)
    }

    pub(crate) fn length(&self) -> Span {
        self.until.since(self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dues(mut schedule: Schedule, count: usize) -> Vec<u64> {
        let next = || {
            let due = schedule.due();
            schedule.advance();
            due.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    fn dues_of_all(arrivals: Arrivals, rate: u64, threads: u64, count: usize) -> Vec<u64> {
        let all = (0..threads).flat_map(|thread| {
            dues(Schedule::new(arrivals, Iops(rate), [thread, threads], 7), count)
        });
        let mut all: Vec<u64> = all.collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_constant_rate_does_not_drift() {
        // 7 does not divide a second, and yet every second has exactly 7 requests.
        let dues = dues_of_all(Arrivals::Constant, 7, 1, 7_000);
        for second in 0..1_000 {
            assert_eq!(dues[7 * second], second as u64 * 1_000_000_000);
        }
        assert!(
            dues.windows(2).all(|pair| (142_857_142..=142_857_143).contains(&(pair[1] - pair[0])))
        );
    }

    #[test]
    fn threads_share_one_schedule() {
        let shared = dues_of_all(Arrivals::Constant, 90_000, 3, 1_000);
        assert_eq!(shared, dues_of_all(Arrivals::Constant, 90_000, 1, 3_000));
    }

    #[test]
    fn poisson_has_its_rate_and_its_spread() {
        for threads in [1, 4] {
            let dues = dues_of_all(Arrivals::Poisson, 10_000, threads, 50_000);
            // As far as all threads go.
            let dues = &dues[..dues.len() * 9 / 10];
            let gaps: Vec<f64> = dues.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            assert!((98_000.0..102_000.0).contains(&mean), "{mean}");
            // Of exponential gaps, 1/e are longer than their mean.
            let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64;
            let share = longer / gaps.len() as f64;
            assert!((0.36..0.376).contains(&share), "{share}");
        }
    }

    #[test]
    fn zipf_prefers_the_first() {
        let (zipf, mut dice) = (Zipf::new(1_000), Dice::new(3));
        let mut counts = vec![0u32; 1_000];
        (0..200_000).for_each(|_| counts[zipf.pick(dice.fraction()) as usize] += 1);
        for rank in [0usize, 1, 9, 99] {
            let expected = 200_000.0 / zipf.zeta * (rank as f64 + 1.0).powf(-Zipf::THETA);
            let ratio = f64::from(counts[rank]) / expected;
            assert!((0.8..1.25).contains(&ratio), "rank {rank}: {ratio}");
        }
        assert_eq!((Zipf::new(1).pick(0.9999), Zipf::new(2).pick(0.9999)), (0, 1));
    }

    #[test]
    fn choices_stay_within_their_bounds() {
        let mut dice = Dice::new(1);
        for choice in [Choice::Uniform(3), Choice::Zipf(Arc::new(Zipf::new(3)))] {
            let mut counts = [0; 3];
            (0..3_000).for_each(|_| counts[choice.pick(&mut dice) as usize] += 1);
            assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
        }
    }
}
