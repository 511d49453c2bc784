//! The verdict of a live run: one rule for every run that is measured second by second.
//!
//! A second counts if the tenants had settled and no other load disturbed it
//! ([`super::quiet`]). A promise is kept if it was kept in each second that counts. A run has no
//! verdict if more than a fifth of its seconds were disturbed, or if no second of a promise counts;
//! then all seconds are shown, so that a user sees what happened.

use std::fmt;

use super::quiet::disturbance;

/// The verdict of a live run on a promise, or on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveVerdict {
    Kept,
    Missed,
    /// The machine was too busy to tell, or no second counts.
    Disturbed,
}

impl LiveVerdict {
    /// The verdict of a promise that was kept in so many of the seconds that count.
    pub(crate) const fn of_promise(kept: u64, counted: u64) -> Self {
        match counted {
            0 => Self::Disturbed,
            _ if kept == counted => Self::Kept,
            _ => Self::Missed,
        }
    }

    /// The verdict of a run with these promises.
    pub(crate) fn of_run(time: CountedTime, promises: impl Iterator<Item = Self>) -> Self {
        if time.disturbance().is_some() {
            return Self::Disturbed;
        }
        promises.fold(Self::Kept, |run, promise| match (run, promise) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::Disturbed, _) | (_, Self::Disturbed) => Self::Disturbed,
            _ => Self::Kept,
        })
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Missed => "missed",
            Self::Disturbed => "disturbed",
        }
    }
}

/// The time of a live run in which a promise, or all of them, could count: in seconds, or in
/// windows of a second that begin several times a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedTime {
    /// Settled seconds.
    pub(crate) all: u64,
    /// Those of them that other load disturbed.
    pub(crate) disturbed: u64,
    /// Seconds that count, and those of them in which the promise was kept.
    pub(crate) counted: u64,
    pub(crate) kept: u64,
    /// How many begin in a second.
    pub(crate) per_second: u64,
}

impl CountedTime {
    /// Why a run with this time has no verdict, if it has none.
    pub(crate) fn disturbance(self) -> Option<String> {
        let [disturbed, all, per_second] =
            [self.disturbed, self.all, self.per_second.max(1)].map(|count| count as usize);
        disturbance(disturbed, all, per_second)
    }

    /// So many of the windows in seconds.
    pub(crate) fn seconds(self, windows: u64) -> f64 {
        windows as f64 / self.per_second.max(1) as f64
    }
}

impl fmt::Display for CountedTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kept, counted, disturbed] =
            [self.kept, self.counted, self.disturbed].map(|windows| self.seconds(windows));
        write!(f, "kept in {kept} of {counted} seconds that count, {disturbed} disturbed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(disturbed: u64) -> CountedTime {
        CountedTime { all: 40, disturbed, counted: 40 - disturbed, kept: 30, per_second: 4 }
    }

    #[test]
    fn a_run_says_what_held_in_the_seconds_that_count() {
        assert_eq!(time(2).to_string(), "kept in 7.5 of 9.5 seconds that count, 0.5 disturbed");
        let whole = CountedTime { per_second: 1, ..time(0) };
        assert_eq!(whole.to_string(), "kept in 30 of 40 seconds that count, 0 disturbed");
    }

    #[test]
    fn more_than_a_fifth_of_disturbed_windows_gives_no_verdict() {
        use LiveVerdict::{Disturbed, Kept, Missed};
        let of_run = |disturbed, promises: &[LiveVerdict]| {
            LiveVerdict::of_run(time(disturbed), promises.iter().copied())
        };
        assert_eq!((of_run(8, &[Kept; 2]), of_run(9, &[Kept; 2])), (Kept, Disturbed));
        assert_eq!((of_run(8, &[Missed]), of_run(9, &[Missed])), (Missed, Disturbed));
        assert_eq!((time(8).disturbance(), time(9).disturbance().is_some()), (None, true));
        assert_eq!(of_run(0, &[Kept, Disturbed]), Disturbed, "a promise that nothing counts for");
        assert_eq!(of_run(0, &[Disturbed, Missed]), Missed);
        let of = |(kept, counted)| LiveVerdict::of_promise(kept, counted);
        assert_eq!([(0, 0), (3, 3), (2, 3)].map(of), [Disturbed, Kept, Missed]);
    }
}
