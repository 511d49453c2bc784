//! Exponential backoff: when a failed connection is tried again.

use tidegate_model::{Span, Time};

/// When to try something again that failed. The first attempt is due at once.
///
/// ```
/// use tidegate_proto::retry::Retry;
/// use tidegate_model::{Span, Time};
/// let mut retry = Retry::new(Span(10), Span(30));
/// assert!(retry.is_due(Time::ZERO));
/// for wait in [10, 20, 30, 30] {
///     retry.later(Time(100));
///     assert_eq!(retry.at(), Time(100 + wait));
/// }
/// retry.by(Time(115));
/// assert_eq!(retry.at(), Time(115));
/// retry.succeed();
/// retry.later(Time(100));
/// assert_eq!(retry.at(), Time(110));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    first: Span,
    longest: Span,
    /// How long it is to be from a failure to the next attempt.
    wait: Span,
    at: Time,
}

impl Retry {
    /// The wait after a first failure; each further one waits twice as long, up to `longest`.
    pub const fn new(first: Span, longest: Span) -> Self {
        Self { first, longest, wait: first, at: Time::ZERO }
    }

    /// When the next attempt is due.
    pub const fn at(&self) -> Time {
        self.at
    }

    /// Whether it is due.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.at
    }

    /// The attempt failed, or the connection ended, at `now`.
    pub fn later(&mut self, now: Time) {
        self.at = now.after(self.wait);
        self.wait = Span(self.wait.0.saturating_mul(2)).min(self.longest);
    }

    /// The attempt succeeded: the next failure counts as the first one.
    pub fn succeed(&mut self) {
        self.wait = self.first;
    }

    /// The next attempt is due at `latest`, if it is not before.
    pub fn by(&mut self, latest: Time) {
        self.at = self.at.min(latest);
    }

    /// The next failure waits for `wait`, however often it failed before.
    pub fn hold(&mut self, wait: Span) {
        self.wait = wait;
    }
}
