//! One tenant's tokens and debts, in the plainest words: plain numbers, and every rule spelled out.

/// A tenant's token counts, the units that it was served, and those that it owes.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) reserved: u64,
    pub(crate) allowed: u64,
    pub(crate) served: u64,
    /// Served beyond what was allowed, and not paid.
    owed: u64,
    /// Reservation tokens are used up to here.
    righted: u64,
    /// The part of `served` that only paid a debt, while nothing was dispatched in the period.
    paid: u64,
}

impl Tokens {
    pub(crate) fn unlimited() -> Self {
        Self { reserved: 0, allowed: u64::MAX, served: 0, owed: 0, righted: 0, paid: 0 }
    }

    /// Whether it has a reservation token, and whether it may go at all.
    pub(crate) fn left(&self) -> (bool, bool) {
        let may_go = self.served < self.allowed;
        (may_go && self.served < self.reserved && self.righted < self.reserved, may_go)
    }

    /// A request of so many units goes; `has_promises` tells whether counts decide anything.
    pub(crate) fn spend(&mut self, units: u64, has_promises: bool, by_reservation: bool) {
        self.paid = 0;
        if has_promises && by_reservation {
            self.righted = self.righted.max(self.served) + units;
        }
        for _ in 0..units {
            if has_promises && self.served >= self.allowed {
                self.owed += 1;
            } else {
                self.served += 1;
            }
        }
    }

    pub(crate) fn grant(&mut self, reserved: u64, allowed: u64) {
        if self.served > self.paid && self.righted <= self.reserved {
            self.righted = self.righted.min(reserved);
        }
        self.reserved = reserved;
        if self.allowed != allowed {
            self.allowed = allowed;
            self.served -= self.paid;
            self.owed += self.paid;
            self.pay();
        }
    }

    pub(crate) fn begin(&mut self) {
        self.served = 0;
        self.righted = self.righted.saturating_sub(self.reserved);
        self.pay();
    }

    fn pay(&mut self) {
        let is_unused = self.served == 0;
        let mut paid = 0;
        while self.owed > 0 && self.served < self.allowed {
            self.owed -= 1;
            // Where there is no limit, debts are only forgotten.
            if self.allowed < u64::MAX {
                self.served += 1;
                paid += 1;
            }
        }
        self.paid = if is_unused { paid } else { 0 };
    }
}
