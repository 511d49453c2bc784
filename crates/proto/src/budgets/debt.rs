//! A debt: service beyond a rate that is not earned yet. See [`super::debts`].

use tidegate_model::{Span, Time};

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
    /// Tokens that were counted as served before they were, and are counted anew or never served.
    repaid: u64,
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

    pub(super) fn repay(&mut self, tokens: u64) {
        self.repaid = self.repaid.saturating_add(tokens);
    }

    /// Adds what happened to another debt since the settlement.
    pub(super) fn join(&mut self, other: &Self) {
        self.repay(other.repaid);
        self.serve(other.served);
        self.withhold(other.withheld);
        self.release(other.released);
    }

    /// The debt after so many token-nanoseconds per second were `earned`.
    pub(super) fn after(self, earned: i128) -> Self {
        let tokens = |tokens: u64| i128::from(tokens) * SECOND;
        let released = tokens(self.released).min(self.assumed);
        let before = self.owed - released + tokens(self.served) - tokens(self.repaid);
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

/// The state of a stage in a start queue: see [`super::start_queue`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StartState {
    /// It is not in the queue.
    #[default]
    Admitted,
    /// It is held until its turn comes. Its requests wait with so many tokens of the bucket; not
    /// known before its first report.
    Queued { waiting: Option<u64> },
    /// It may go, and has reported no service. So many tokens of the limit count as served by it,
    /// of which the last are not earned yet.
    Released { expected: u64, unearned: u64 },
}

impl StartState {
    /// Its bucket's requests wait with so many tokens.
    pub(super) fn on_waiting(&mut self, tokens: u64) {
        if let Self::Queued { waiting } = self {
            *waiting = Some(tokens);
        }
    }

    /// The tenant has earned so many tokens.
    pub(super) fn on_earned(&mut self, tokens: u64) {
        if let Self::Released { unearned, .. } = self {
            *unearned = unearned.saturating_sub(tokens);
        }
    }

    /// The stage leaves the queue after a service of so many tokens. Returns those that its tenant
    /// need not earn: service that counts twice now, and what of the expected one did not come.
    pub(super) fn leave(&mut self, served: u64) -> u64 {
        match core::mem::take(self) {
            Self::Released { expected, unearned } => {
                let twice = served.min(expected);
                twice + unearned.min(expected - twice)
            }
            Self::Admitted | Self::Queued { .. } => 0,
        }
    }
}

/// The debts of one of a stage's buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BucketDebt {
    /// The debt that the bucket makes its stage wait for, in tokens of the limit.
    pub(super) own: Debt,
    /// The part of it that a stage from the start queue had as its first service, in
    /// token-nanoseconds per second.
    first: i128,
    /// Whether all that it owes at the next settlement is such service.
    is_first: bool,
    pub(super) start: StartState,
    /// Until when the stage lets no request pass it, if nothing else is sent.
    pub(super) held_until: Time,
    /// Tokens withheld from its tenant since its last report.
    pub(super) withheld: u64,
    /// Whether it has not reported since the last settlement.
    pub(super) is_due: bool,
}

impl BucketDebt {
    /// Takes in a service. Returns the tokens that its tenant need not earn for it.
    pub(super) fn on_served(&mut self, tokens: u64) -> u64 {
        self.own.serve(tokens);
        self.is_first |= self.start != StartState::Admitted;
        self.start.leave(tokens)
    }

    /// Settles it after so many token-nanoseconds per second were `earned`.
    pub(super) fn settle(&mut self, earned: i128) {
        let own = self.own.after(earned);
        self.first = self.first_after(own.owed, earned);
        (self.own, self.is_first) = (own, false);
    }

    /// The debt that no other stage waits for, after so much was `earned`.
    pub(super) fn paid_by_stage(&self, earned: i128) -> i128 {
        let owed = self.own.after(earned).owed;
        owed - self.first_after(owed, earned)
    }

    /// The part of what is `owed` then that is a first service. A bucket pays that first.
    fn first_after(&self, owed: i128, earned: i128) -> i128 {
        if self.is_first { owed } else { (self.first - earned).clamp(0, owed) }
    }
}
