//! Statistics: medians of few measurements, with confidence intervals.

/// A standard normal deviate stays below this with a probability of 97.5 %.
const DEVIATE: f64 = 1.96;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Median {
    pub(super) value: f64,
    /// Between these it would lie, in 95 of 100 repetitions, if there were endlessly many.
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Median {
    /// Of `values`; nothing if there are none. Few numbers, or such as differ, are far apart.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values = values.into_iter().collect::<Vec<_>>();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        // Half of all numbers lie below the median, give or take a deviation of a binomial
        // distribution, whatever the numbers' own distribution is.
        let off = (count as f64 - DEVIATE * (count as f64).sqrt()) / 2.0;
        let low = (off.max(0.0) as usize).min(count.checked_sub(1)?);
        Some(Self {
            value: (values[count / 2] + values[(count - 1) / 2]) / 2.0,
            low: values[low],
            high: values[count - 1 - low],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_has_bounds_that_come_closer_with_more_numbers() {
        let of = |count: u32| Median::of((0..count).rev().map(f64::from)).unwrap();
        assert_eq!(Median::of([]), None);
        assert_eq!(of(1), Median { value: 0.0, low: 0.0, high: 0.0 });
        assert_eq!(of(4), Median { value: 1.5, low: 0.0, high: 3.0 });
        assert_eq!(of(9), Median { value: 4.0, low: 1.0, high: 7.0 });
        assert_eq!(of(101), Median { value: 50.0, low: 40.0, high: 60.0 });
    }
}
