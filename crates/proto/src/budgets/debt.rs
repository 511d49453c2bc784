//! A debt: service beyond a rate that is not earned yet. See [`super::debts`].

use tidegate_model::Span;

/// Token-nanoseconds of a token at one token per second.
pub(super) const SECOND: i128 = Span::SECOND.0 as i128;

/// Service beyond a rate that is not earned yet, in token-nanoseconds per second, as of the last
/// settlement; and what has happened since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debt {
    pub(super) owed: i128,
    /// The part of it that is there only because of tokens withheld. More than `owed` until the
    /// first settlement under a lower limit only.
    assumed: i128,
    /// Tokens served since then.
    served: u64,
    /// Tokens not earned since then: stages that have not reported may have used them.
    withheld: u64,
    /// Tokens that were withheld before, from stages that have reported since.
    released: u64,
}

impl Debt {
    pub(super) fn serve(&mut self, tokens: u64) {
        self.served = self.served.saturating_add(tokens);
    }

    pub(super) fn withhold(&mut self, tokens: u64) {
        self.withheld = self.withheld.saturating_add(tokens);
    }

    pub(super) fn release(&mut self, tokens: u64) {
        self.released = self.released.saturating_add(tokens);
    }

    /// Adds what happened to another debt since the settlement.
    pub(super) fn join(&mut self, other: &Self) {
        self.serve(other.served);
        self.withhold(other.withheld);
        self.release(other.released);
    }

    /// The debt after so many token-nanoseconds per second were `earned`.
    pub(super) fn after(self, earned: i128) -> Self {
        let tokens = |tokens: u64| i128::from(tokens) * SECOND;
        let released = tokens(self.released).min(self.assumed);
        let before = self.owed - released + tokens(self.served);
        let withheld = tokens(self.withheld).min(earned);
        let owed = (before - earned + withheld).max(0);
        let grown = owed - (before - earned).max(0);
        let assumed = (self.assumed - released + grown).min(owed);
        Self { owed, assumed, ..Self::default() }
    }

    /// The debt at the last settlement.
    pub(super) fn tokens(&self) -> u64 {
        u64::try_from(self.owed / SECOND).unwrap_or(u64::MAX)
    }

    /// The same with another amount owed.
    pub(super) fn with_owed(self, owed: i128) -> Self {
        Self { owed, ..self }
    }

    /// The same with a bound on what is owed.
    pub(super) fn bounded(self, most: i128) -> Self {
        let owed = self.owed.min(most);
        Self { owed, assumed: self.assumed.min(owed), ..self }
    }
}

/// The debts of one of a stage's buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketDebt {
    /// The debt that the bucket makes its stage wait for, in tokens of the limit.
    pub(super) own: Debt,
    /// The part of its charge that the stage still waits for, in tokens of the bucket.
    pub(super) charged: u64,
    /// Tokens withheld from its tenant since its last report.
    pub(super) withheld: u64,
    /// Whether it has not reported since the last settlement.
    pub(super) is_due: bool,
}
