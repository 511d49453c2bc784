//! A count that only grows, as it was sampled: how much of it fell into any window.

use tidegate_model::{Span, Time};

/// How finely the beginning of a window is found, as a part of its length. Between two samples the
/// count is a straight line.
const FINE_PART: u64 = 20;

/// A count at moments in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline(Vec<(Time, u64)>);

impl FromIterator<(Time, u64)> for Timeline {
    fn from_iter<I: IntoIterator<Item = (Time, u64)>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

impl Timeline {
    /// The count at a moment: before the first sample as there, and behind the last as there.
    fn at(&self, at: Time) -> f64 {
        let next = self.0.partition_point(|(time, _)| *time < at);
        match (next.checked_sub(1).and_then(|last| self.0.get(last)), self.0.get(next)) {
            (Some((earlier, before)), Some((later, after))) => {
                let part = at.since(*earlier).as_seconds() / later.since(*earlier).as_seconds();
                *before as f64 + part * after.saturating_sub(*before) as f64
            }
            (Some((_, only)), None) | (None, Some((_, only))) => *only as f64,
            (None, None) => 0.0,
        }
    }

    /// The growth in a window, per second.
    pub(super) fn per_second(&self, from: Time, length: Span) -> f64 {
        (self.at(from.after(length)) - self.at(from)) / length.as_seconds()
    }
}

/// How long after `begin` the first window of this length begins that is `enough`. It ends at `end`
/// at the latest.
pub(super) fn first_window(
    (begin, end): (Time, Time),
    length: Span,
    enough: impl Fn(Time) -> bool,
) -> Option<Span> {
    let step = (length.0 / FINE_PART).max(1);
    let last = end.0.checked_sub(begin.after(length).0)?;
    let mut starts = (0..=last / step).map(|number| Span(number * step));
    starts.find(|start| enough(begin.after(*start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = Span::MILLISECOND.0;
    const LENGTH: Span = Span(100 * MS);

    #[test]
    fn a_window_between_samples_has_its_part() {
        let line: Timeline = [(0, 0), (100, 100), (200, 400)]
            .into_iter()
            .map(|(ms, count)| (Time(ms * MS), count))
            .collect();
        let grown = |from: u64, length: u64| {
            let length = Span(length * MS);
            (line.per_second(Time(from * MS), length) * length.as_seconds()).round()
        };
        assert_eq!([grown(0, 200), grown(50, 100), grown(150, 50)], [400.0, 200.0, 150.0]);
        assert_eq!(grown(150, 100), 150.0, "nothing is counted behind the last sample");
        assert_eq!(Timeline::default().per_second(Time::ZERO, LENGTH), 0.0);
        let short = (Time::ZERO, Time(90 * MS));
        assert_eq!(first_window(short, LENGTH, |_| true), None, "no window fits");
    }

    proptest! {
        /// Oracle: the rate falls to `low` per cent and is full again after `delay`. A window has
        /// 95 % as soon as what it misses is a twentieth.
        #[test]
        fn the_first_full_window_is_found(delay in 0u64..900, low in 0u64..90) {
            let mut count = 0;
            let line: Timeline = (0..2_000u64).map(|ms| {
                let before = count;
                count += if ms < delay { 10 * low } else { 1_000 };
                (Time(ms * MS), before)
            }).collect();
            let enough = |from| line.per_second(from, LENGTH) >= 0.95 * 1_000_000.0;
            let found = first_window((Time::ZERO, Time(1_900 * MS)), LENGTH, enough).unwrap();
            let missing = 500.0 / (100 - low) as f64;
            let expected = (delay as f64 - missing).max(0.0);
            let found = found.as_seconds() * 1e3;
            // The search goes in steps of five milliseconds.
            prop_assert!(found >= expected - 0.1 && found <= expected + 5.1, "{found} {expected}");
        }
    }
}
