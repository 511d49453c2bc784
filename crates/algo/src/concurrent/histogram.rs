//! Histograms of times that many threads and processes fill without a lock.
//!
//! Buckets are logarithmic with eight steps per doubling, so a value read back is at most 12.5 %
//! too large. The first bucket holds everything below 64 ns, which is less than reading a clock
//! twice; the last everything from about 2.3 minutes on.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use tidegate_model::Span;

/// The number of buckets.
pub const BUCKETS: usize = 256;

/// Steps per doubling, as a power of two.
const STEP_BITS: u32 = 3;
/// The first doubling that is distinguished, as a power of two: 64 ns.
const FIRST_BITS: u32 = 6;

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
        self.counts[bucket_of(span)].fetch_add(1, Ordering::Relaxed);
    }

    /// The buckets that are not empty, as pairs of index and count.
    pub fn sparse(&self) -> Vec<(u16, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        (0u16..).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// The bucket that counts `span`.
#[inline]
pub fn bucket_of(span: Span) -> usize {
    let value = span.0;
    if value < 1 << FIRST_BITS {
        return 0;
    }
    let doubling = value.ilog2();
    let step = (value >> (doubling - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    let index = 1 + ((doubling - FIRST_BITS) << STEP_BITS) as usize + step;
    index.min(BUCKETS - 1)
}

/// The first time that lies above bucket `index`; every value in the bucket is below it.
pub fn upper_bound(index: usize) -> Span {
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

/// The time that `percent` of the counted values do not exceed, as the upper bound of its bucket;
/// none if nothing was counted.
///
/// ```
/// use tidegate_algo::concurrent::histogram::{percentile, Histogram};
/// use tidegate_model::Span;
/// let histogram = Histogram::default();
/// for micros in 1..=100 {
///     histogram.record(Span(micros * 1_000));
/// }
/// let median = percentile(&histogram.sparse(), 50.0).unwrap();
/// assert!((50_000..=57_000).contains(&median.0));
/// ```
pub fn percentile(sparse: &[(u16, u64)], percent: f64) -> Option<Span> {
    let total = sparse.iter().map(|(_, count)| count).sum::<u64>();
    if total == 0 {
        return None;
    }
    let wanted = total as f64 * percent / 100.0;
    let mut seen = 0;
    for (index, count) in sparse {
        seen += count;
        if seen as f64 >= wanted {
            return Some(upper_bound(usize::from(*index)));
        }
    }
    sparse.last().map(|(index, _)| upper_bound(usize::from(*index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_lies_between_its_bounds(value: u64) {
            let index = bucket_of(Span(value));
            prop_assert!(Span(value) < upper_bound(index) || index == BUCKETS - 1);
            if index > 0 {
                prop_assert!(Span(value) >= upper_bound(index - 1));
            }
        }

        #[test]
        fn a_bound_is_at_most_an_eighth_too_large(value in 64u64..1 << 37) {
            let bound = upper_bound(bucket_of(Span(value))).0;
            prop_assert!(bound - value <= value / 8 + 1);
        }
    }

    #[test]
    fn nothing_counted_has_no_percentile() {
        assert_eq!(percentile(&Histogram::default().sparse(), 99.0), None);
    }
}
