//! What may be in force: for each tenant, at each node, in the present period and in the next.
//!
//! A count that was sent may or may not have arrived, so an [`Account`] keeps a *bound*: the
//! highest counts that the node may hold. It rises with every count that is sent, and falls only
//! when the node confirms the last one, because from then on all that went before it are late.
//! Room is what a tenant's promise leaves over the bounds of all its nodes, and nothing is ever
//! raised beyond the room. So, whatever is lost, late or doubled, the counts in force add up to
//! the promise or less.

use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::{Iops, Span};

/// The serial of no grant.
const NO_GRANT: u64 = 0;

/// A pair of counts. A tenant without a limit has `allowed` zero here; its shares say `u64::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) reserved: u64,
    pub(super) allowed: u64,
}

impl Counts {
    pub(super) const ZERO: Self = Self { reserved: 0, allowed: 0 };

    fn max(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.max(other.reserved),
            allowed: self.allowed.max(other.allowed),
        }
    }

    fn min(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.min(other.reserved),
            allowed: self.allowed.min(other.allowed),
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.saturating_add(other.reserved),
            allowed: self.allowed.saturating_add(other.allowed),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.saturating_sub(other.reserved),
            allowed: self.allowed.saturating_sub(other.allowed),
        }
    }
}

/// Which period an account is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// The present one.
    Now,
    /// The next, and those after it while nobody says otherwise.
    Next,
}

/// What is known about one tenant's counts at one node in one period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// The highest counts that may be in force.
    pub(super) bound: Counts,
    /// What was said last.
    pub(super) said: Counts,
    /// The grant that said it, until it is confirmed. [`NO_GRANT`]: nobody will confirm it.
    pub(super) pending: Option<u64>,
    /// What it is to be once there is room.
    pub(super) target: Counts,
}

impl Account {
    pub(super) fn say(&mut self, counts: Counts, serial: u64) {
        self.said = counts;
        self.bound = self.bound.max(counts);
        self.pending = Some(serial);
    }

    /// Takes in what a node says is in force after the grant with this serial. It may be more than
    /// what was said: because more was served, or because the grant was overtaken by another one,
    /// and was too late. Either way that is the bound, and what was said is said again.
    fn confirm(&mut self, serial: u64, in_force: Counts) {
        if self.pending == Some(serial) && serial != NO_GRANT {
            let bound = self.bound;
            self.bound = self.said.max(in_force).min(bound.max(self.said));
            self.pending = (self.bound != self.said).then_some(NO_GRANT);
        }
    }

    /// Whether what was said is to be said again. What was answered, but not confirmed, waits for
    /// the next round.
    pub(super) fn is_due(&self, is_first: bool) -> bool {
        self.pending.is_some_and(|serial| is_first || serial != NO_GRANT)
    }

    /// The plan is another: what was said is void at the node once it has heard of that.
    pub(super) fn renew(&mut self, was_limited: bool, is_limited: bool) {
        if is_limited && !was_limited {
            self.bound.allowed = u64::MAX;
        }
        if !is_limited {
            (self.bound.allowed, self.said.allowed) = (0, 0);
        }
        self.doubt();
    }

    /// Whether it neither holds nor is to hold anything.
    pub(super) fn is_nothing(&self) -> bool {
        self.target == Counts::ZERO && self.bound == Counts::ZERO
    }

    /// The grant with this serial was answered, and the answer says nothing.
    fn refuse(&mut self, serial: u64) {
        if self.pending == Some(serial) {
            self.doubt();
        }
    }

    /// What was said is not going to be confirmed, and may or may not be in force.
    pub(super) fn doubt(&mut self) {
        self.pending = Some(NO_GRANT);
    }

    /// As much of the target as there is room for; takes it from the room.
    pub(super) fn best(&self, is_limited: bool, room: &mut Counts) -> Counts {
        let rise = self.target.minus(self.bound);
        let rise = Counts {
            reserved: rise.reserved.min(room.reserved),
            allowed: rise.allowed.min(room.allowed),
        };
        let mut best = Counts {
            reserved: self.target.reserved.min(self.bound.reserved + rise.reserved),
            allowed: self.target.allowed.min(self.bound.allowed + rise.allowed),
        };
        if is_limited {
            best.reserved = best.reserved.min(best.allowed);
        }
        // What was not used of the room by the reserved part stays for others.
        room.reserved -= best.reserved.saturating_sub(self.bound.reserved);
        room.allowed -= rise.allowed;
        best
    }
}

/// One tenant at one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The node's place.
    pub(super) node: u16,
    /// Whether the tenant's volumes and pools lie there.
    pub(super) is_home: bool,
    pub(super) now: Account,
    pub(super) next: Account,
    /// Served in this period, as far as the node has said.
    pub(super) served: u64,
    /// What could be served until the end of the period.
    pub(super) demand: u64,
    /// How much of that is expected to be asked for, whatever is served.
    pub(super) expected: u64,
    /// How much of that waits already.
    pub(super) waiting: u64,
    /// Served in the period before.
    pub(super) before: u64,
}

impl Entry {
    pub(super) fn account(&self, when: When) -> &Account {
        match when {
            When::Now => &self.now,
            When::Next => &self.next,
        }
    }

    pub(super) fn account_mut(&mut self, when: When) -> &mut Account {
        match when {
            When::Now => &mut self.now,
            When::Next => &mut self.next,
        }
    }

    /// The node has answered a grant.
    pub(super) fn confirm(&mut self, serial: u64, in_force: Counts) {
        self.now.confirm(serial, in_force);
        self.next.confirm(serial, in_force);
    }

    /// The node has answered a grant that it could not take.
    pub(super) fn refuse(&mut self, serial: u64) {
        self.now.refuse(serial);
        self.next.refuse(serial);
    }
}

/// One tenant of the policy.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) is_limited: bool,
    /// What is promised per period.
    pub(super) promise: Counts,
    /// By node, ascending.
    pub(super) entries: Vec<Entry>,
    /// Used in this period by lives of nodes that are over: what they had served, and what they
    /// may have served at most.
    pub(super) gone: Counts,
    /// The same of the period before.
    pub(super) gone_before: u64,
    /// The most that nodes may hold of which an earlier controller, but not this one, knows what
    /// they hold: in this period, and in later ones.
    pub(super) unknown: [Counts; 2],
    /// Served and expected to be asked for in the period before, when last heard of.
    pub(super) expected_before: u64,
}

impl Tenant {
    pub(super) fn entry_mut(&mut self, node: u16) -> Option<&mut Entry> {
        let place = self.entries.binary_search_by_key(&node, |entry| entry.node).ok()?;
        self.entries.get_mut(place)
    }

    /// What may be in force at all nodes together.
    pub(super) fn in_force(&self, when: When) -> Counts {
        let bounds = self.entries.iter().map(|entry| entry.account(when).bound);
        bounds.fold(self.beyond_reach(when), Counts::plus)
    }

    /// What may be in force, or was used up, at nobody whom this controller knows.
    pub(super) fn beyond_reach(&self, when: When) -> Counts {
        match when {
            When::Now => self.unknown[0].plus(self.gone),
            When::Next => self.unknown[1],
        }
    }

    /// What may be raised.
    pub(super) fn room(&self, when: When) -> Counts {
        self.promise.minus(self.in_force(when))
    }

    /// Served in this period, as far as nodes have said.
    pub(super) fn served(&self) -> u64 {
        let sum = |sum: u64, entry: &Entry| sum.saturating_add(entry.served);
        self.entries.iter().fold(self.gone.reserved, sum)
    }

    /// Served and expected to be asked for in this period.
    pub(super) fn expected(&self) -> u64 {
        let sum = |sum: u64, entry: &Entry| sum.saturating_add(entry.demand);
        self.entries.iter().fold(self.served(), sum)
    }

    /// What waits at all nodes.
    pub(super) fn waiting(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.waiting))
    }

    /// Served in the period before.
    pub(super) fn served_before(&self) -> u64 {
        let sum = |sum: u64, entry: &Entry| sum.saturating_add(entry.before);
        self.entries.iter().fold(self.gone_before, sum)
    }

    /// Whether the last period gave what was promised or, within a hundredth of the promise, what
    /// was asked for. The hundredth is for the estimate of what was asked.
    pub(super) fn is_met(&self) -> bool {
        let slack = self.promise.reserved / 100;
        let asked = self.expected_before.saturating_sub(slack);
        self.served_before() >= self.promise.reserved.min(asked)
    }

    /// The next period begins.
    pub(super) fn turn(&mut self) {
        self.expected_before = self.expected();
        self.gone_before = self.gone.reserved;
        self.gone = Counts::ZERO;
        self.unknown[0] = self.unknown[1];
        for entry in &mut self.entries {
            entry.now = entry.next;
            entry.before = core::mem::take(&mut entry.served);
        }
    }

    /// The process at a node is another now and holds nothing; what the last one had may be used.
    pub(super) fn bury(&mut self, node: u16) {
        let Some(entry) = self.entry_mut(node) else { return };
        let gone = Counts { reserved: entry.served, allowed: entry.now.bound.allowed };
        let Entry { is_home, before, .. } = *entry;
        *entry = Entry { node, is_home, before, ..Entry::default() };
        self.gone = self.gone.plus(gone);
    }
}

/// Operations in a period at a rate per second, rounded down, and whether that was exact.
fn per_period(rate: Iops, period: Span) -> (u64, bool) {
    let product = u128::from(rate.0) * u128::from(period.0);
    let second = u128::from(Span::SECOND.0);
    let whole = u64::try_from(product / second).unwrap_or(u64::MAX);
    (whole, product.is_multiple_of(second))
}

/// What is promised per period. Where a period does not divide: a limit is rounded down, to one at
/// least, and a reservation up, to the limit at most.
pub(super) fn promise(reservation: Option<Iops>, limit: Option<Iops>, period: Span) -> Counts {
    let allowed = limit.map(|limit| per_period(limit, period).0.max(1));
    let (whole, is_exact) = reservation.map_or((0, true), |rate| per_period(rate, period));
    let reserved = whole.saturating_add(u64::from(!is_exact)).min(allowed.unwrap_or(u64::MAX));
    Counts { reserved, allowed: allowed.unwrap_or(0) }
}
