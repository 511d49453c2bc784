//! What flowed for each tenant: totals that only grow, and how they grew over the last period.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_model::{Span, Time};

use super::stage::per_second;

/// The parts of a period in which its beginning is found; a period's measure is off by at most one
/// of them.
const SAMPLES: u64 = 32;

/// The most buckets that a histogram of waiting times may have; the stage's has 256. Whatever a
/// report says beyond it is ignored.
const HISTOGRAM_MAX: usize = 1024;

/// Amounts that flowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) waited_ns: u64,
}

impl Tally {
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

/// What is kept about one tenant while the policy knows it.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) total: Tally,
    /// Waiting times at its own buckets, by unit.
    pub(super) waits: [Waits; 2],
    /// The sum of the goals of its stages that was last told to those who watch, by unit.
    pub(super) announced: [Option<u64>; 2],
    /// The total at points in time, oldest first; the first is the last that is a period old.
    samples: VecDeque<(Time, Tally)>,
}

impl Tenant {
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

    /// What flowed per second, over about a period: bytes, operations, and nanoseconds waited.
    pub(super) fn per_second(&self) -> [u64; 3] {
        let (Some((start, first)), Some((end, last))) = (self.samples.front(), self.samples.back())
        else {
            return [0; 3];
        };
        let (interval, grown) = (end.since(*start), last.since(*first));
        [grown.bytes, grown.operations, grown.waited_ns].map(|count| per_second(count, interval))
    }
}

/// How long requests waited at a tenant's bucket, on all its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Requests by histogram bucket, as `tidegate_algo::histogram` numbers buckets.
    pub counts: Vec<u64>,
    /// Time waited by all requests.
    pub waited_ns: u64,
}

impl Waits {
    /// Adds what `now` has more than `seen` in each bucket, and makes `seen` what it is `now`. If
    /// nothing was seen before, nobody knows what is new, and nothing is added.
    pub(super) fn add(&mut self, seen: &mut Option<Vec<(u16, u64)>>, mut now: Vec<(u16, u64)>) {
        now.retain(|(index, _)| usize::from(*index) < HISTOGRAM_MAX);
        now.sort_unstable();
        now.dedup_by_key(|(index, _)| *index);
        let Some(seen) = seen else {
            *seen = Some(now);
            return;
        };
        for (index, count) in &now {
            let found = seen.binary_search_by_key(index, |(index, _)| *index);
            let before = found.map_or(0, |place| seen[place].1);
            let index = usize::from(*index);
            if self.counts.len() <= index {
                self.counts.resize(index + 1, 0);
            }
            self.counts[index] = self.counts[index].saturating_add(count.saturating_sub(before));
        }
        *seen = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_measured_from_its_beginning() {
        let mut tenant = Tenant::default();
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
        let mut tenant = Tenant::default();
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
        waits.add(&mut seen, [(3, 100)].into());
        waits.add(&mut seen, [(3, 105), (7, 1)].into());
        waits.add(&mut seen, [(7, 4), (3, 105), (60_000, 9)].into());
        assert_eq!((waits.counts[3], waits.counts[7], waits.counts.len()), (5, 4, 8));
    }
}
