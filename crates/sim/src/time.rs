//! The virtual clock of simulations.
//!
//! A tick is a picosecond: at 100 Gbit/s a 54-byte acknowledgement is on the wire for 4.3 ns, so a
//! nanosecond would round it by a quarter. A `u64` of them lasts for 213 days. The machines that
//! the world drives use [`Time`] in nanoseconds; the two functions at the end are the only place
//! where one becomes the other.

use core::fmt;

use tidegate_model::{Span, Time};

/// A point in simulated time, or a distance between two: picoseconds, from the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picoseconds(pub u64);

impl Picoseconds {
    /// The start of the run, or no distance at all.
    pub const ZERO: Self = Self(0);
    /// Later than any point of any run; used for "never".
    pub const MAX: Self = Self(u64::MAX);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000_000);

    /// The point `distance` later, or [`Self::MAX`].
    #[must_use]
    pub const fn after(self, distance: Self) -> Self {
        Self(self.0.saturating_add(distance.0))
    }

    /// The distance from `earlier`; zero if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The same distance on the machines' clock, rounded down to a whole nanosecond.
    pub const fn span(self) -> Span {
        Span(self.0 / 1_000)
    }

    /// The same point on the machines' clock, rounded down to a whole nanosecond.
    pub const fn time(self) -> Time {
        Time(self.0 / 1_000)
    }
}

impl From<Time> for Picoseconds {
    /// The same point on the world's clock; a [`Time`] beyond its end becomes [`Self::MAX`].
    fn from(time: Time) -> Self {
        Self(time.0.saturating_mul(1_000))
    }
}

impl From<Span> for Picoseconds {
    fn from(span: Span) -> Self {
        Self(span.0.saturating_mul(1_000))
    }
}

impl fmt::Display for Picoseconds {
    /// In nanoseconds or larger, where that is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1_000) {
            fmt::Display::fmt(&Span(self.0 / 1_000), f)
        } else {
            f.pad(&format!("{}ps", self.0))
        }
    }
}
