//! Token account of one tenant in one unit: what it is granted in a period, what it has used, what
//! it owes, and the pace at which it may use the rest.
//!
//! Each tenant has an account of units of cost. A tenant that is promised bytes has a second one,
//! in units of [`BYTES_PER_TOKEN`] ([`super::bytes`]). The accounts know nothing of each other: a
//! request takes tokens of both.
//!
//! [`BYTES_PER_TOKEN`]: tidegate_model::cost::BYTES_PER_TOKEN

use tidegate_model::{Discipline, Span, Time};

use super::words::{Pacing, PeriodGrant, PeriodPart};

#[derive(Clone, Debug)]
pub(super) struct TokenAccount {
    pub(super) counts: PeriodGrant,
    pub(super) served: u64,
    /// When its next request is on the line.
    pub(super) ready_at: Time,
    /// The line along which what is allowed becomes eligible begins here, with so many served. It
    /// ends with the period.
    line_since: Time,
    line_base: u32,
    /// Units that were served in the period before. This and the counts of units below have 32 bits
    /// and saturate: a period has fewer units than that.
    served_before: u32,
    debt: Debt,
    /// Up to what count reservation tokens were used in the reserved phases, in this period or,
    /// beyond what was reserved, in earlier ones.
    reserved_used: u32,
}

/// The debt of an account, in 31 bits: the states of 20,000 tenants are walked in a period, so they
/// are to be small.
#[derive(Clone, Copy, Debug, Default)]
struct Debt(u32);

impl Debt {
    const PAID: u32 = 1 << 31;

    /// Units that were served beyond what was allowed and that no period has paid for yet.
    const fn owed(self) -> u32 {
        self.0 & !Self::PAID
    }

    fn set_owed(&mut self, units: u32) {
        self.0 = (self.0 & Self::PAID) | units.min(!Self::PAID);
    }

    fn add(&mut self, units: u64) {
        self.set_owed(self.owed().saturating_add(narrow(units)));
    }

    /// Whether all that was served in this period was a payment of what is owed.
    const fn has_only_paid(self) -> bool {
        self.0 & Self::PAID != 0
    }

    const fn set_only_paid(&mut self, has: bool) {
        self.0 = self.0 & !Self::PAID | if has { Self::PAID } else { 0 };
    }
}

impl Default for TokenAccount {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

impl TokenAccount {
    /// Nothing is reserved, there is no limit, and nothing was served.
    pub(super) const UNLIMITED: Self = Self {
        counts: PeriodGrant::UNLIMITED,
        served: 0,
        ready_at: Time::ZERO,
        line_since: Time::ZERO,
        line_base: 0,
        served_before: 0,
        debt: Debt(0),
        reserved_used: 0,
    };

    /// Units that were served in the period before.
    pub(super) const fn served_before(&self) -> u64 {
        self.served_before as u64
    }

    /// Whether no token of any kind is left.
    pub(super) const fn is_used_up(&self) -> bool {
        self.served >= self.counts.allowed
    }

    /// Whether a reservation token is left.
    pub(super) fn has_reservation_token(&self) -> bool {
        self.served.max(u64::from(self.reserved_used)) < self.counts.reserved
    }

    /// When one more reservation token is due, if tokens are used evenly over the period that began
    /// at `since`.
    pub(super) fn due_at(&self, since: Time, until: Time) -> Time {
        let used = self.served.max(u64::from(self.reserved_used));
        let wait = u128::from(used) * u128::from(until.since(since).0);
        let wait = wait.div_ceil(u128::from(self.counts.reserved.max(1)));
        since.after(Span(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    const fn is_limited(&self) -> bool {
        self.counts.allowed != u64::MAX
    }

    /// Takes tokens for so many units, reserved or not. Units beyond the counts are owed, if the
    /// discipline has promises.
    #[inline]
    pub(super) fn spend(&mut self, discipline: Discipline, is_reserved: bool, units: u32) {
        self.debt.set_only_paid(false);
        let before = self.served;
        self.served = before.saturating_add(u64::from(units));
        if is_reserved {
            self.reserved_used = self.reserved_used.max(narrow(before)).saturating_add(units);
        }
        if self.served > self.counts.allowed && discipline.observes_promises() {
            self.owe(before);
        }
    }

    /// Owes what was served beyond what is allowed since that was `before`.
    #[cold]
    fn owe(&mut self, before: u64) {
        let most = self.counts.allowed.max(before);
        self.debt.add(self.served.saturating_sub(most));
        self.served = most.min(self.served);
    }

    /// Pays what is owed with the tokens that there are, as though so much more had been served.
    fn pay(&mut self, until: Time, pacing: Pacing) {
        let owed = self.debt.owed();
        if owed == 0 {
            return;
        }
        let tokens = self.counts.allowed.saturating_sub(self.served);
        let paid = owed.min(narrow(tokens));
        self.debt.set_owed(owed - paid);
        if !self.is_limited() {
            // Without a limit nothing is owed, and nothing has to be paid.
            return;
        }
        if self.served == 0 && paid > 0 {
            self.debt.set_only_paid(true);
        }
        self.served += u64::from(paid);
        self.pace(until, pacing);
    }

    /// Begins a period: nothing has been served in it but what is owed.
    pub(super) fn begin(&mut self, now: Time, until: Time, pacing: Pacing) {
        self.served_before = narrow(self.served);
        self.served = 0;
        self.debt.set_only_paid(false);
        self.reserved_used = self.reserved_used.saturating_sub(narrow(self.counts.reserved));
        // The last line ended, so it has no next request to wait for.
        self.ready_at = now;
        self.begin_line(now, until, pacing);
        self.pay(until, pacing);
    }

    /// The period that runs is shorter than that for which it was granted `counts`, so it may use
    /// the `part` of them only, and owes what it has used beyond that part: tokens come by rate and
    /// time, however the period is cut. Reservation tokens used beyond it are later periods'.
    pub(super) fn cut(&mut self, counts: PeriodGrant, part: PeriodPart) {
        let reserved = part.of(counts.reserved);
        self.counts.reserved = self.counts.reserved.min(reserved);
        let ahead = self.reserved_used.saturating_sub(narrow(reserved));
        if part.is_over {
            // The next period begins with what is left to be paid.
            (self.counts.reserved, self.reserved_used) = (0, ahead);
        }
        if counts.allowed == u64::MAX {
            return;
        }
        let allowed = part.of(counts.allowed);
        self.debt.add(self.served.saturating_sub(allowed));
        self.served = self.served.min(allowed);
        self.counts.allowed = self.counts.allowed.min(allowed);
    }

    /// Takes other counts for this period.
    pub(super) fn grant(&mut self, now: Time, until: Time, pacing: Pacing, counts: PeriodGrant) {
        let before = core::mem::replace(&mut self.counts, counts);
        // Reservation tokens that were used in this period before they were taken are no debt.
        let is_used = self.served > 0 && !self.debt.has_only_paid();
        if is_used && u64::from(self.reserved_used) <= before.reserved {
            self.reserved_used = self.reserved_used.min(narrow(counts.reserved));
        }
        if before.allowed == counts.allowed {
            return;
        }
        if self.debt.has_only_paid() {
            // The period began with other counts than it has: what they paid is owed again.
            self.debt.add(self.served);
            (self.served, self.ready_at) = (0, now);
            self.debt.set_only_paid(false);
        }
        self.begin_line(now, until, pacing);
        self.pay(until, pacing);
    }

    /// Lets it wait until what was served is on its line.
    pub(super) fn pace(&mut self, until: Time, pacing: Pacing) {
        if self.is_paced(pacing) {
            self.ready_at = self.on_line(until);
        }
    }

    /// Whether what is allowed is spread.
    fn is_paced(&self, pacing: Pacing) -> bool {
        pacing == Pacing::Even && self.is_limited()
    }

    /// The moment at which as many as were served are on the line, so that one more may go.
    fn on_line(&self, until: Time) -> Time {
        let (since, base) = (self.line_since, u64::from(self.line_base));
        let ahead = self.served.saturating_sub(base);
        let all = self.counts.allowed.saturating_sub(base).max(1);
        // Less than the line's length as long as anything is allowed, so it fits.
        let wait = (u128::from(ahead) * u128::from(until.since(since).0)).div_ceil(u128::from(all));
        since.after(Span(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Begins a line at `now`, or a step of it later, or in between, when its last line had the
    /// next request.
    fn begin_line(&mut self, now: Time, until: Time, pacing: Pacing) {
        if !self.is_paced(pacing) {
            self.ready_at = Time::ZERO;
            return;
        }
        let base = self.served;
        let steps = self.counts.allowed.saturating_sub(base).max(1);
        let latest = now.after(Span(until.since(now).0 / steps));
        let since = self.ready_at.clamp(now, latest);
        (self.line_since, self.line_base) = (since, narrow(base));
        self.ready_at = since;
    }
}

/// A count of units in 32 bits.
const fn narrow(units: u64) -> u32 {
    if units > u32::MAX as u64 { u32::MAX } else { units as u32 }
}
