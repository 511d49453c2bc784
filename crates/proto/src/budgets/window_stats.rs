//! Traffic of each tenant: totals that only grow, and their growth over the last period.
//!
//! Waiting times are kept apart, because stages report them more rarely: each answer to a question
//! for histograms closes a *wait interval*, and the wait intervals of the last period together say
//! how long requests waited in it. Only requests that were counted together with their waiting
//! times are in a wait interval, so that a stage that leaves between two such questions does not
//! look as if none of its requests had waited.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_algo::concurrent::histogram::{BUCKETS, BucketCounts, BucketIndex};
use tidegate_model::{Span, Time};

use super::debt::Debt;
use crate::stats::delays::stages::StageWaits;

/// The parts of a period in which its beginning is found; a period's measure is off by at most one
/// of them.
const SAMPLES: u64 = 32;

/// Amounts that flowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficCounters {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) waited_ns: u64,
}

impl TrafficCounters {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.operations = self.operations.saturating_add(other.operations);
        self.waited_ns = self.waited_ns.saturating_add(other.waited_ns);
    }

    /// Whether nothing went back since `before`.
    pub(super) fn is_after(self, before: Self) -> bool {
        self.bytes >= before.bytes
            && self.operations >= before.operations
            && self.waited_ns >= before.waited_ns
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            operations: self.operations.saturating_sub(before.operations),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }
}

/// Counters of a channel as last seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter {
    pub(super) seen: Option<TrafficCounters>,
    pub(super) total: TrafficCounters,
    pub(super) detail: Detail,
}

impl Counter {
    /// Returns the growth since the last reading. A first reading adds nothing unless `is_new`:
    /// then the counters began at zero.
    pub(super) fn advance(&mut self, now: TrafficCounters, is_new: bool) -> TrafficCounters {
        let before = match self.seen {
            Some(seen) if now.is_after(seen) => seen,
            None if is_new => TrafficCounters::default(),
            _ => now,
        };
        self.seen = Some(now);
        let added = now.since(before);
        self.total.add(added);
        added
    }
}

/// The counters of one tenant while it is in the policy.
#[derive(Debug, Default)]
pub(super) struct TenantStats {
    pub(super) total: TrafficCounters,
    /// The same waits, by the kind of gate.
    pub(super) stage_waits: StageWaits,
    /// Waiting times at its own buckets, by unit.
    pub(super) waits: [Waits; 2],
    /// The sum of the goals of its stages in the last event, by unit; none before one, or if it was
    /// zero or unbounded since.
    pub(super) announced: [Option<u64>; 2],
    /// Its debts under its limits, by unit.
    pub(super) debts: [Debt; 2],
    /// The total at points in time, oldest first; the first is the last that is a period old.
    samples: VecDeque<(Time, TrafficCounters)>,
    /// The wait interval under way: reports since the last one was closed.
    pub(super) open: WaitInterval,
    /// The wait intervals of the last period, oldest first, and when each was closed.
    wait_intervals: VecDeque<(Time, WaitInterval)>,
}

impl TenantStats {
    /// Notes the total as of `now`.
    pub(super) fn sample(&mut self, now: Time, period: Span) {
        let step = Span(period.0 / SAMPLES);
        if self.samples.back().is_some_and(|(at, _)| now.since(*at) < step) {
            return;
        }
        self.samples.push_back((now, self.total));
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= period) {
            self.samples.pop_front();
        }
    }

    /// Rates per second over about a period: bytes, operations, and nanoseconds waited.
    pub(super) fn per_second(&self) -> [u64; 3] {
        let (Some((start, first)), Some((end, last))) = (self.samples.front(), self.samples.back())
        else {
            return [0; 3];
        };
        let (interval, grown) = (end.since(*start), last.since(*first));
        [grown.bytes, grown.operations, grown.waited_ns].map(|count| per_second(count, interval))
    }

    /// Closes the wait interval at `now`, and forgets those that ended `window` ago. They are
    /// `pause` apart but for a moment, and a moment must not decide whether one more of them
    /// counts.
    pub(super) fn close_wait_interval(&mut self, now: Time, pause: Span, window: Span) {
        let is_over = |at: Time| now.since(at).0.saturating_add(pause.0 / 8) >= window.0;
        while self.wait_intervals.front().is_some_and(|(at, _)| is_over(*at)) {
            self.wait_intervals.pop_front();
        }
        let closed = core::mem::take(&mut self.open);
        self.wait_intervals.push_back((now, closed));
    }

    /// How long 99 of 100 requests of the last period waited at most, where those that did not
    /// wait count as zero: the upper bound of a bucket. None if there were no requests.
    pub(super) fn wait_p99(&self) -> Option<Span> {
        let (mut passed, mut counts) = (0u128, alloc::vec![0u128; BUCKETS]);
        for (_, wait_interval) in &self.wait_intervals {
            passed += u128::from(wait_interval.operations);
            for (index, count) in wait_interval.waits.counts.iter().enumerate() {
                counts[index.min(BUCKETS - 1)] += u128::from(*count);
            }
        }
        let waited = counts.iter().sum::<u128>();
        // A stage reads its counters one by one, so a request may be known to have waited before
        // it is known to have passed.
        let all = passed.max(waited);
        let rank = (all * 99).div_ceil(100);
        let mut below = all - waited;
        if below >= rank {
            return (all > 0).then_some(Span::ZERO);
        }
        let holds_rank = |count: &u128| {
            below += count;
            below >= rank
        };
        // The last bucket has no upper bound, so its requests count with its lower one.
        let index = counts.iter().position(holds_rank).unwrap_or(BUCKETS - 1);
        Some(BucketIndex::at(index.min(BUCKETS - 2)).upper_bound())
    }
}

/// Requests of some time, and how long those that waited did.
#[derive(Debug, Default)]
pub(super) struct WaitInterval {
    operations: u64,
    waits: Waits,
}

impl WaitInterval {
    /// Adds the growth of a channel's counters since it was last `seen` in detail.
    pub(super) fn add(&mut self, seen: &mut Detail, operations: u64, waiting: BucketCounts) {
        // A counter that went back has begun anew at an unknown time.
        if operations < seen.operations {
            seen.waiting = None;
        }
        if seen.waiting.is_some() {
            let added = operations.saturating_sub(seen.operations);
            self.operations = self.operations.saturating_add(added);
        }
        seen.operations = operations;
        self.waits.add(&mut seen.waiting, waiting);
    }
}

/// The counters of a channel when it was last asked for its histogram.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    operations: u64,
    /// None before the first answer, of a channel that counted before this controller knew it.
    waiting: Option<BucketCounts>,
}

impl Detail {
    /// Of a channel that has counted nothing if `is_new`, else of one with unknown counters.
    pub(super) fn new(is_new: bool) -> Self {
        Self { operations: 0, waiting: is_new.then(BucketCounts::default) }
    }
}

/// How long requests waited at a tenant's bucket, on all its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests by [bucket](BucketIndex).
    pub counts: Vec<u64>,
    /// Time waited by all requests.
    pub waited_ns: u64,
}

impl Waits {
    /// Adds the growth of each bucket from `seen` to `now`, and replaces `seen` by `now`. If
    /// nothing was seen before, the growth is unknown, and nothing is added.
    pub(super) fn add(&mut self, seen: &mut Option<BucketCounts>, now: BucketCounts) {
        let now = now.received();
        let Some(seen) = seen else {
            *seen = Some(now);
            return;
        };
        for (bucket, growth) in now.since(seen) {
            let index = bucket.index();
            if self.counts.len() <= index {
                self.counts.resize(index + 1, 0);
            }
            self.counts[index] = self.counts[index].saturating_add(growth);
        }
        *seen = now;
    }

    /// Adds others.
    pub(super) fn merge(&mut self, others: &Self) {
        if self.counts.len() < others.counts.len() {
            self.counts.resize(others.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&others.counts) {
            *count = count.saturating_add(*more);
        }
        self.waited_ns = self.waited_ns.saturating_add(others.waited_ns);
    }
}

/// The rate of so many in an interval.
pub(super) fn per_second(count: u64, interval: Span) -> u64 {
    let second = u128::from(Span::SECOND.0);
    let rate = u128::from(count) * second / u128::from(interval.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// A channel's report after these waits, in nanoseconds; zero for none.
    fn counted(waits: &[u64]) -> (u64, BucketCounts) {
        let mut counts = BTreeMap::<BucketIndex, u64>::new();
        for wait in waits.iter().filter(|wait| **wait > 0) {
            *counts.entry(BucketIndex::of(Span(*wait))).or_default() += 1;
        }
        (waits.len() as u64, counts.into_iter().collect())
    }

    fn counts<const N: usize>(counts: [(u16, u64); N]) -> BucketCounts {
        counts.map(|(bucket, count)| (BucketIndex(bucket), count)).into()
    }

    fn close(tenant: &mut TenantStats, seconds: u64) {
        let at = Time(seconds * Span::SECOND.0);
        tenant.close_wait_interval(at, Span::SECOND, Span(3 * Span::SECOND.0));
    }

    fn wait() -> impl Strategy<Value = u64> {
        prop_oneof![4 => Just(0), 1 => 1u64..100, 4 => (0u32..37).prop_map(|bits| 77 << bits)]
    }

    proptest! {
        #[test]
        fn a_hundredth_waited_longer(
            waits in proptest::collection::vec(wait(), 1..400),
            cuts in [0usize..400, 0..400, 0..400],
        ) {
            // Two channels count in turn, and are asked three times.
            let mut tenant = TenantStats::default();
            let mut seen = [Detail::new(true), Detail::new(true)];
            let mut cut_points = [cuts[0], cuts[1], waits.len()].map(|end| end.min(waits.len()));
            cut_points.sort_unstable();
            let odd = |end: usize, odd: usize| -> Vec<u64> {
                let counted = waits[..end].iter().enumerate();
                counted.filter(|(at, _)| at % 2 == odd).map(|(_, wait)| *wait).collect()
            };
            for (second, end) in (1..).zip(cut_points) {
                for (channel, seen) in seen.iter_mut().enumerate() {
                    let (operations, waiting) = counted(&odd(end, channel));
                    tenant.open.add(seen, operations, waiting);
                }
                close(&mut tenant, second);
            }
            let mut sorted = waits.clone();
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() * 99).div_ceil(100) - 1];
            let shown = tenant.wait_p99().unwrap().0;
            // The histogram's own resolution: an eighth, and 64 ns at the least.
            let most = if exact == 0 { 0 } else { (exact + exact / 8 + 1).max(64) };
            prop_assert!((exact.min(1 << 37)..=most).contains(&shown), "{shown} for {exact}");
        }
    }

    #[test]
    fn only_the_last_period_counts() {
        let (mut tenant, mut seen) = (TenantStats::default(), Detail::new(true));
        assert_eq!(tenant.wait_p99(), None);
        let mut waits = alloc::vec![9_000_000; 5];
        for second in 1..=4 {
            let (operations, waiting) = counted(&waits);
            tenant.open.add(&mut seen, operations, waiting);
            close(&mut tenant, second);
            waits.extend([0; 10]);
            let slow = tenant.wait_p99().unwrap().0 >= 9_000_000;
            assert_eq!(slow, second < 4, "at second {second}");
        }
        (5..=7).for_each(|second| close(&mut tenant, second));
        assert_eq!(tenant.wait_p99(), None, "nothing flows any more");
    }

    #[test]
    fn counters_without_a_baseline_are_not_counted() {
        let (mut tenant, mut seen) = (TenantStats::default(), Detail::new(false));
        tenant.open.add(&mut seen, 1_000, counts([(200, 1_000)]));
        close(&mut tenant, 1);
        assert_eq!(tenant.wait_p99(), None, "it may have been years ago");
        tenant.open.add(&mut seen, 1_010, counts([(200, 1_000)]));
        tenant.open.add(&mut seen, 3, counts([(200, 3)]));
        close(&mut tenant, 2);
        assert_eq!(tenant.wait_p99(), Some(Span::ZERO), "it began anew");
        tenant.open.add(&mut seen, 3, counts([(u16::MAX, u64::MAX), (255, u64::MAX)]));
        close(&mut tenant, 3);
        assert_eq!(
            tenant.wait_p99(),
            Some(BucketIndex(254).upper_bound()),
            "the last bucket has no bound"
        );
    }

    #[test]
    fn a_period_is_measured_from_its_beginning() {
        let mut tenant = TenantStats::default();
        for tenth in 0..40 {
            // 10 bytes in each of the first two seconds, then 100.
            tenant.total.bytes += if tenth < 20 { 1 } else { 10 };
            tenant.sample(Time(tenth * 100_000_000), Span::SECOND);
        }
        assert_eq!(tenant.per_second()[0], 100);
        assert!(tenant.samples.len() <= 12);
    }

    #[test]
    fn short_intervals_and_long_periods_cost_no_memory() {
        let mut tenant = TenantStats::default();
        for hundredth in 0..100_000 {
            tenant.total.bytes += 1;
            tenant.sample(Time(hundredth * 10_000_000), Span(60 * Span::SECOND.0));
        }
        assert!(tenant.samples.len() <= 34);
        assert_eq!(tenant.per_second()[0], 100);
    }

    #[test]
    fn waiting_times_add_up_over_reports() {
        let (mut waits, mut seen) = (Waits::default(), None);
        waits.add(&mut seen, counts([(3, 100)]));
        waits.add(&mut seen, counts([(3, 105), (7, 1)]));
        waits.add(&mut seen, counts([(7, 4), (3, 105), (60_000, 9)]));
        assert_eq!((waits.counts[3], waits.counts[7], waits.counts.len()), (5, 4, 8));
    }
}
