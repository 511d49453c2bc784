//! Histograms of times that many threads and processes fill without a lock.
//!
//! Buckets are logarithmic with eight steps per doubling, so a value read back is at most 12.5 %
//! too large. The first bucket holds everything below 64 ns, which is less than reading a clock
//! twice; the last everything from about 2.3 minutes on.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use tidegate_model::Span;

/// The number of buckets.
pub const BUCKETS: usize = 256;

/// Steps per doubling, as a power of two.
const STEP_BITS: u32 = 3;
/// The first doubling that is distinguished, as a power of two: 64 ns.
const FIRST_BITS: u32 = 6;

/// The most buckets of counts that another process sent: a later version may have more than
/// [`BUCKETS`].
const RECEIVED_MAX: usize = 1024;

/// A bucket: its index, counting from zero.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BucketIndex(pub u16);

impl BucketIndex {
    /// The bucket that counts `span`.
    #[inline]
    pub const fn of(span: Span) -> Self {
        let value = span.0;
        if value < 1 << FIRST_BITS {
            return Self(0);
        }
        let doubling = value.ilog2();
        let step = (value >> (doubling - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
        let index = 1 + ((doubling - FIRST_BITS) << STEP_BITS) as usize + step;
        Self::at(if index < BUCKETS { index } else { BUCKETS - 1 })
    }

    /// The bucket with this index.
    pub const fn at(index: usize) -> Self {
        Self(index as u16)
    }

    /// The index in a list of buckets.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The first time that lies above the bucket; every value in the bucket is below it.
    pub fn upper_bound(self) -> Span {
        let index = self.index();
        if index == 0 {
            return Span(1 << FIRST_BITS);
        }
        if index >= BUCKETS - 1 {
            return Span::MAX;
        }
        let doubling = FIRST_BITS + ((index - 1) >> STEP_BITS) as u32;
        let step = (index - 1) as u64 & ((1 << STEP_BITS) - 1);
        Span((1 << doubling) + ((step + 1) << (doubling - STEP_BITS)))
    }
}

/// Counts of times by bucket. Valid when all its bytes are zero.
#[derive(Debug)]
#[repr(C)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one time.
    #[inline]
    pub fn record(&self, span: Span) {
        self.counts[BucketIndex::of(span).index()].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of the buckets that are not empty.
    pub fn counts(&self) -> BucketCounts {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let counted = (0..).map(BucketIndex::at).zip(counts).filter(|(_, count)| *count > 0);
        BucketCounts(counted.collect())
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// The counts of a [`Histogram`] as messages carry them: the buckets that are not empty, in
/// ascending order.
///
/// Counts that another process sent may be in any order and name a bucket twice, until
/// [`Self::received`] has put them in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BucketCounts(Vec<(BucketIndex, u64)>);

impl BucketCounts {
    /// The counts, with their buckets.
    pub fn iter(&self) -> impl Iterator<Item = (BucketIndex, u64)> {
        self.0.iter().copied()
    }

    /// Whether nothing is counted.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many times are counted, 2^64 - 1 at most.
    pub fn total(&self) -> u64 {
        self.iter().fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The same in ascending order, each bucket once, without buckets that no histogram has.
    #[must_use]
    pub fn received(mut self) -> Self {
        self.0.retain(|(bucket, _)| bucket.index() < RECEIVED_MAX);
        self.0.sort_unstable();
        self.0.dedup_by_key(|(bucket, _)| *bucket);
        // A peer may have sent millions of the same.
        self.0.shrink_to_fit();
        self
    }

    /// The growth of each bucket since `before`; zero where the count went back.
    pub fn since(&self, before: &Self) -> impl Iterator<Item = (BucketIndex, u64)> {
        self.iter().map(|(bucket, count)| {
            let found = before.0.binary_search_by_key(&bucket, |(bucket, _)| *bucket);
            (bucket, count.saturating_sub(found.map_or(0, |at| before.0[at].1)))
        })
    }

    /// The time that `percent` of the counted values do not exceed, as the upper bound of its
    /// bucket; none if nothing was counted.
    ///
    /// ```
    /// use tidegate_algo::concurrent::histogram::Histogram;
    /// use tidegate_model::Span;
    /// let histogram = Histogram::default();
    /// for micros in 1..=100 {
    ///     histogram.record(Span(micros * 1_000));
    /// }
    /// let median = histogram.counts().percentile(50.0).unwrap();
    /// assert!((50_000..=57_000).contains(&median.0));
    /// ```
    pub fn percentile(&self, percent: f64) -> Option<Span> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let wanted = total as f64 * percent / 100.0;
        let mut seen = 0;
        for (bucket, count) in self.iter() {
            seen = u64::saturating_add(seen, count);
            if seen as f64 >= wanted {
                return Some(bucket.upper_bound());
            }
        }
        self.0.last().map(|(bucket, _)| bucket.upper_bound())
    }
}

impl FromIterator<(BucketIndex, u64)> for BucketCounts {
    fn from_iter<I: IntoIterator<Item = (BucketIndex, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl<const N: usize> From<[(BucketIndex, u64); N]> for BucketCounts {
    fn from(counts: [(BucketIndex, u64); N]) -> Self {
        Self(counts.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_lies_between_its_bounds(value: u64) {
            let bucket = BucketIndex::of(Span(value));
            let is_last = bucket.index() == BUCKETS - 1;
            prop_assert!(Span(value) < bucket.upper_bound() || is_last);
            if bucket.0 > 0 {
                prop_assert!(Span(value) >= BucketIndex(bucket.0 - 1).upper_bound());
            }
        }

        #[test]
        fn a_bound_is_at_most_an_eighth_too_large(value in 64u64..1 << 37) {
            let bound = BucketIndex::of(Span(value)).upper_bound().0;
            prop_assert!(bound - value <= value / 8 + 1);
        }
    }

    #[test]
    fn nothing_counted_has_no_percentile() {
        assert_eq!(Histogram::default().counts().percentile(99.0), None);
    }

    #[test]
    fn received_counts_are_put_in_order() {
        let counts = |counts: &[(u16, u64)]| -> BucketCounts {
            counts.iter().map(|(bucket, count)| (BucketIndex(*bucket), *count)).collect()
        };
        let received = counts(&[(7, 4), (3, 105), (60_000, 9), (7, 4)]).received();
        assert_eq!(received, counts(&[(3, 105), (7, 4)]));
        let growth: BucketCounts = received.since(&counts(&[(3, 100), (7, 9)])).collect();
        assert_eq!(growth, counts(&[(3, 5), (7, 0)]));
        assert_eq!(counts(&[(1, u64::MAX), (2, 1)]).total(), u64::MAX);
    }
}
