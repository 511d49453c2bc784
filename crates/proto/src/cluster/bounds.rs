//! Bounds on the counts in force: for each tenant, at each node, in this period and in the next.
//!
//! A count that was sent may or may not have arrived, so an [`Account`] keeps a *bound*: the
//! highest counts that the node may hold. It rises with every count that is sent, and falls only
//! when the node confirms the last one, because from then on all that went before it are late. A
//! tenant's headroom is its promise minus the bounds of all its nodes, and the controller raises no
//! count beyond the headroom. So the counts in force add up to the promise or less, even if
//! messages are lost, late or doubled. `groups.rs` bounds those of several tenants together.
//!
//! **A first limit.** A node may have no limit for a tenant yet: it has not taken in the policy
//! with the limit, or it is a data node's new process. While one has none, no other limit rises.
//! Its own first one is no rise, but bounded all the same: by what the promise leaves over the
//! limits of the other nodes. So the limits of all nodes that have one add up to the promise or
//! less at any time, and not only when the last one has confirmed its own.
//!
//! **A process that has ended** counts in its period as one that is away, since its service after
//! its last report is unknown: it may have used all counts that may have been in force there
//! ([`TenantBounds::end_process`]). Example: of 1,000 operations in a period a node has 400, has
//! reported 100 served, serves 250 more and dies. Others can have 600 until the period ends. If the
//! 300 that were not reported went to them, 1,250 would have been reserved. The price is that up to
//! 300 are reserved nowhere until then.

use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::gate::Unit;
use tidegate_model::{NodeId, Span};

/// The serial of no grant.
const NO_GRANT: u64 = 0;

/// A pair of counts. A tenant without a limit has `allowed` zero here; its shares say `u64::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantCounts {
    pub(super) reserved: u64,
    pub(super) allowed: u64,
}

impl GrantCounts {
    pub(super) const ZERO: Self = Self { reserved: 0, allowed: 0 };

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            reserved: self.reserved.max(other.reserved),
            allowed: self.allowed.max(other.allowed),
        }
    }

    pub(super) fn min(self, other: Self) -> Self {
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
    /// The next, and those after it while the controller sends no other counts.
    Next,
}

/// The most by which counts may rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Those of nodes that have both.
    counts: GrantCounts,
    /// The limits of nodes that may have none yet, over those that were sent to them.
    first: u64,
}

impl Headroom {
    /// The headroom of a promise without bounds on its use.
    pub(super) const fn whole(promise: GrantCounts) -> Self {
        Self { counts: promise, first: promise.allowed }
    }

    /// The headroom that is left beside a tenant's counts.
    pub(super) fn beside(self, tenant: &TenantBounds, when: When) -> Self {
        Self {
            counts: self.counts.minus(tenant.in_force(when)),
            first: self.first.saturating_sub(tenant.limits(when)),
        }
    }

    pub(super) fn min(self, other: Self) -> Self {
        Self { counts: self.counts.min(other.counts), first: self.first.min(other.first) }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            counts: self.counts.minus(other.counts),
            first: self.first.saturating_sub(other.first),
        }
    }

    fn take_limit(&mut self, rise: u64) {
        self.counts.allowed = self.counts.allowed.saturating_sub(rise);
        self.first = self.first.saturating_sub(rise);
    }
}

/// The controller's record of one tenant's counts at one node in one period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// The highest counts that may be in force. See [`Self::in_force`].
    bound: GrantCounts,
    /// Whether the node may have no limit. Then `bound` has the highest one that was sent since.
    is_unlimited: bool,
    /// The counts that were sent last.
    pub(super) sent: GrantCounts,
    /// The serial of the grant that sent them, until it is confirmed. [`NO_GRANT`]: no node will
    /// confirm it.
    pub(super) pending: Option<u64>,
    /// The counts to send once there is headroom.
    pub(super) target: GrantCounts,
}

impl Account {
    pub(super) fn record_sent(&mut self, counts: GrantCounts, serial: u64) {
        self.sent = counts;
        self.bound = self.bound.max(counts);
        self.pending = Some(serial);
    }

    /// The highest counts that may be in force. A missing limit is [`u64::MAX`].
    pub(super) fn in_force(&self) -> GrantCounts {
        let allowed = if self.is_unlimited { u64::MAX } else { self.bound.allowed };
        GrantCounts { allowed, ..self.bound }
    }

    /// Takes in the counts that a node reports in force after the grant with this serial. They may
    /// exceed the counts sent: the node served more, or another grant overtook this one. Either way
    /// they are the new bound, and the counts are sent again.
    fn confirm(&mut self, serial: u64, in_force: GrantCounts) {
        if self.pending == Some(serial) && serial != NO_GRANT {
            self.bound = self.sent.max(in_force).min(self.in_force().max(self.sent));
            self.is_unlimited = self.bound.allowed == u64::MAX;
            if self.is_unlimited {
                self.bound.allowed = self.sent.allowed;
            }
            self.pending = (self.in_force() != self.sent).then_some(NO_GRANT);
        }
    }

    /// Takes in that the counts sent last are in force, and no others are.
    pub(super) fn settle(&mut self) {
        (self.bound, self.is_unlimited, self.pending) = (self.sent, false, None);
    }

    /// Takes in that no counts higher than these are in force: the node has confirmed a grant that
    /// is not the last one. Those sent last are not higher.
    pub(super) fn lower(&mut self, most: GrantCounts) {
        (self.bound, self.is_unlimited) = (self.bound.min(most), false);
    }

    /// Takes in the counts that a node holds which has connected.
    pub(super) fn learn(&mut self, holds: GrantCounts) {
        (self.bound, self.sent, self.pending) = (holds, holds, None);
        self.is_unlimited = holds.allowed == u64::MAX;
        if self.is_unlimited {
            self.bound.allowed = 0;
        }
    }

    /// Whether the counts are to be sent again. Counts that were answered, but not confirmed, wait
    /// for the next round.
    pub(super) fn is_due(&self, is_first: bool) -> bool {
        self.pending.is_some_and(|serial| is_first || serial != NO_GRANT)
    }

    /// Takes in a new plan: the counts sent are void at the node once it has that plan.
    pub(super) fn renew(&mut self, was_limited: bool, is_limited: bool) {
        if is_limited && !was_limited {
            (self.bound.allowed, self.sent.allowed) = (0, u64::MAX);
            self.is_unlimited = true;
        }
        if !is_limited {
            (self.bound.allowed, self.sent.allowed) = (0, 0);
            self.is_unlimited = false;
        }
        self.doubt();
    }

    /// Whether the counts to be in force are, and are known to be.
    fn is_settled(&self) -> bool {
        self.pending.is_none() && [self.sent, self.in_force()] == [self.target; 2]
    }

    /// Whether it neither holds nor is to hold anything.
    pub(super) fn is_nothing(&self) -> bool {
        [self.target, self.in_force()] == [GrantCounts::ZERO; 2]
    }

    /// Takes in an empty answer to the grant with this serial: the counts sent are in doubt.
    fn refuse(&mut self, serial: u64) {
        if self.pending == Some(serial) {
            self.doubt();
        }
    }

    /// Marks the counts sent as in doubt: no node will confirm them, and they may be in force.
    pub(super) fn doubt(&mut self) {
        self.pending = Some(NO_GRANT);
    }

    /// Returns as much of the target as there is headroom for, and takes it from the headroom.
    pub(super) fn best(&self, is_limited: bool, headroom: &mut Headroom) -> GrantCounts {
        let (held, most) = (self.bound, headroom.counts);
        let allowed = if self.is_unlimited { headroom.first } else { most.allowed };
        let rise = self.target.minus(held).min(GrantCounts { allowed, ..most });
        let mut best = GrantCounts {
            reserved: self.target.reserved.min(held.reserved + rise.reserved),
            allowed: self.target.allowed.min(held.allowed.saturating_add(rise.allowed)),
        };
        if is_limited {
            best.reserved = best.reserved.min(best.allowed);
        }
        // Headroom that the reserved count does not use stays for other nodes.
        headroom.counts.reserved -= best.reserved.saturating_sub(held.reserved);
        headroom.take_limit(rise.allowed);
        best
    }
}

/// One tenant at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeAccounts {
    pub(super) node: NodeId,
    /// Whether the tenant's volumes and pools lie there.
    pub(super) is_home: bool,
    pub(super) now: Account,
    pub(super) next: Account,
    /// Units of cost served in this period, as last reported by the node.
    pub(super) served: u64,
    /// Demand until the end of the period, in units of cost: `expected`, or the node's capacity
    /// left if that is more and the tenant is elastic.
    pub(super) demand: u64,
    /// The demand that is expected however much is served.
    pub(super) expected: u64,
    /// The part of `expected` that waits already.
    pub(super) waiting: u64,
    /// Units of cost served in the period before.
    pub(super) before: u64,
}

impl NodeAccounts {
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

    /// The units of a period's counts that are used: those served.
    pub(super) fn used(&self, when: When) -> GrantCounts {
        let served = if when == When::Now { self.served } else { 0 };
        GrantCounts { reserved: served, allowed: served }
    }

    /// The most of a period's counts that the node can use without new ones: the counts that may be
    /// in force, or the units served if these are more.
    pub(super) fn used_at_most(&self, when: When) -> GrantCounts {
        self.account(when).in_force().max(self.used(when))
    }

    /// Whether nothing was served in this period and in the one before, waits or is expected.
    fn is_idle(&self) -> bool {
        let Self { served, demand, expected, waiting, before, .. } = *self;
        [served, demand, expected, waiting, before] == [0; 5]
    }

    /// The node has answered a grant.
    pub(super) fn confirm(&mut self, serial: u64, in_force: GrantCounts) {
        self.now.confirm(serial, in_force);
        self.next.confirm(serial, in_force);
    }

    /// The node has answered a grant that it could not take.
    pub(super) fn refuse(&mut self, serial: u64) {
        self.now.refuse(serial);
        self.next.refuse(serial);
    }
}

/// A tenant's part in a group that is promised something in the unit of its accounts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// The index of the group.
    pub(super) group: usize,
    /// Its share of what no tenant of the group has reserved.
    pub(super) weight: NonZeroU32,
    /// The most that it can hold of its own promise and its group's.
    pub(super) most: GrantCounts,
}

/// One tenant of the policy.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantBounds {
    pub(super) name: String,
    pub(super) is_limited: bool,
    /// The promised counts per period.
    pub(super) promise: GrantCounts,
    /// Its part in a group with a promise in this unit.
    pub(super) member: Option<Member>,
    /// By node, ascending.
    pub(super) entries: Vec<NodeAccounts>,
    /// The most that node processes that have ended may have used of this period's counts.
    pub(super) gone: GrantCounts,
    /// Units that they had served in this period, as last reported.
    pub(super) gone_served: u64,
    /// The same of the period before.
    pub(super) gone_before: u64,
    /// The most that nodes may hold by grants of an earlier run of the controller, unknown to this
    /// one: in this period, and in later ones.
    pub(super) unknown: [GrantCounts; 2],
    /// Served and expected to be asked for in the period before, by the last report.
    pub(super) expected_before: u64,
    /// Whether units waited in the period before, by the last report.
    pub(super) was_waiting: bool,
    /// Whether the last division of this period, and that of the next, saw no demand.
    pub(super) is_divided_idle: [bool; 2],
    /// The result of the last division in its group, in this period and in the one before.
    pub(super) divided: InGroup,
    pub(super) divided_before: InGroup,
}

/// A tenant's reservation after a division of its group's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InGroup {
    /// The most of its own reservation that had lapsed at a time: it did not ask in time.
    pub(super) lapsed: u64,
    /// Tokens that it held and did not ask for.
    pub(super) unused: u64,
    /// The same at the division before. Others can use only what that one left them.
    pub(super) unused_earlier: u64,
}

impl TenantBounds {
    pub(super) fn entry_mut(&mut self, node: NodeId) -> Option<&mut NodeAccounts> {
        let index = self.entries.binary_search_by_key(&node, |entry| entry.node).ok()?;
        self.entries.get_mut(index)
    }

    /// The sum of the counts that may be in force at all nodes.
    pub(super) fn in_force(&self, when: When) -> GrantCounts {
        let counts = self.entries.iter().map(|entry| entry.account(when).in_force());
        counts.fold(self.unaccounted(when), GrantCounts::plus)
    }

    /// The sum of the limits that may be in force, without the nodes that may have none: these
    /// count with the highest that they were sent.
    fn limits(&self, when: When) -> u64 {
        let limits = self.entries.iter().map(|entry| entry.account(when).bound.allowed);
        limits.fold(self.unaccounted(when).allowed, u64::saturating_add)
    }

    /// Counts that may be in force, or were used, at node processes that have ended or are unknown.
    pub(super) fn unaccounted(&self, when: When) -> GrantCounts {
        match when {
            When::Now => self.unknown[0].plus(self.gone),
            When::Next => self.unknown[1],
        }
    }

    /// The most tokens that the tenant can hold, whatever others of its group use.
    pub(super) fn most(&self) -> GrantCounts {
        self.member.map_or(self.promise, |member| member.most)
    }

    /// The headroom of the tenant: the most by which the counts of its nodes may rise.
    pub(super) fn headroom(&self, when: When) -> Headroom {
        Headroom::whole(self.most()).beside(self, when)
    }

    /// Units of cost served in this period, as last reported by nodes.
    pub(super) fn served(&self) -> u64 {
        let sum = |sum: u64, entry: &NodeAccounts| sum.saturating_add(entry.served);
        self.entries.iter().fold(self.gone_served, sum)
    }

    /// Served and expected to be asked for in this period.
    pub(super) fn expected(&self) -> u64 {
        let sum = |sum: u64, entry: &NodeAccounts| sum.saturating_add(entry.demand);
        self.entries.iter().fold(self.served(), sum)
    }

    /// Units of cost that wait at all nodes.
    pub(super) fn waiting(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.waiting))
    }

    /// Units of cost served in the period before.
    pub(super) fn served_before(&self) -> u64 {
        let sum = |sum: u64, entry: &NodeAccounts| sum.saturating_add(entry.before);
        self.entries.iter().fold(self.gone_before, sum)
    }

    /// Whether the tenant was served its reservation in the last period or, within a hundredth of
    /// it, its demand. The hundredth allows for the error of the estimated demand. The part that
    /// had lapsed to others of the tenant's group is not missed.
    pub(super) fn is_met(&self) -> bool {
        let reserved = self.promise.reserved;
        let requested = self.requested_before().saturating_sub(reserved / 100);
        self.served_before() >= (reserved - self.divided_before.lapsed.min(reserved)).min(requested)
    }

    /// The demand of the period before. Where nothing waited by the last report, all requests were
    /// served, and what was expected for the rest of the period did not come.
    pub(super) fn requested_before(&self) -> u64 {
        match self.was_waiting {
            true => self.expected_before,
            false => self.expected_before.min(self.served_before()),
        }
    }

    /// Whether a division would come out as the last one did, and every count is as it is to be,
    /// right after [`Self::begin_period`].
    pub(super) fn can_rest(&self) -> bool {
        let is_at_rest = |entry: &NodeAccounts| {
            entry.is_idle() && entry.now == entry.next && entry.now.is_settled()
        };
        self.is_divided_idle == [true; 2]
            && [self.expected_before, self.gone_before] == [0; 2]
            && [self.gone, self.unknown[0], self.unknown[1]] == [GrantCounts::ZERO; 3]
            && self.entries.iter().all(is_at_rest)
    }

    /// The next period begins.
    pub(super) fn begin_period(&mut self) {
        self.is_divided_idle[0] = self.is_divided_idle[1];
        self.expected_before = self.expected();
        self.was_waiting = self.waiting() > 0;
        self.divided_before = core::mem::take(&mut self.divided);
        self.gone_before = core::mem::take(&mut self.gone_served);
        self.gone = GrantCounts::ZERO;
        self.unknown[0] = self.unknown[1];
        for entry in &mut self.entries {
            entry.now = entry.next;
            entry.before = core::mem::take(&mut entry.served);
        }
    }

    /// Takes in that a node runs a new process, which holds no counts. Until the period ends the
    /// old process counts as one that is away: its service after its last report is unknown, so it
    /// may have used all of its counts; and those of an earlier run of the controller, too, if it
    /// `was_unknown`.
    pub(super) fn end_process(&mut self, node: NodeId, was_unknown: bool) {
        let unknown = if was_unknown { self.unknown[0] } else { GrantCounts::ZERO };
        let Some(entry) = self.entry_mut(node) else { return };
        let (gone, gone_served) = (entry.used_at_most(When::Now).plus(unknown), entry.served);
        let NodeAccounts { is_home, before, .. } = *entry;
        *entry = NodeAccounts { node, is_home, before, ..NodeAccounts::default() };
        self.gone = self.gone.plus(gone);
        self.gone_served = self.gone_served.saturating_add(gone_served);
    }
}

/// Tokens in a period at a rate per second, rounded down, and whether that was exact.
fn per_period(unit: Unit, rate: u64, period: Span) -> (u64, bool) {
    let per_token = match unit {
        Unit::Operations => 1,
        Unit::Bytes => BYTES_PER_TOKEN,
    };
    let product = u128::from(rate) * u128::from(period.0);
    let token = u128::from(Span::SECOND.0) * u128::from(per_token);
    let whole = u64::try_from(product / token).unwrap_or(u64::MAX);
    (whole, product.is_multiple_of(token))
}

/// The promised tokens per period of a reservation and a limit, in `unit` per second. Where a
/// period does not divide: a limit is rounded down, to one at least, and a reservation up, to the
/// limit at most.
pub(super) fn promise(
    unit: Unit,
    (reservation, limit): (Option<u64>, Option<u64>),
    period: Span,
) -> GrantCounts {
    let allowed = limit.map(|limit| per_period(unit, limit, period).0.max(1));
    let (whole, is_exact) = reservation.map_or((0, true), |rate| per_period(unit, rate, period));
    let reserved = whole.saturating_add(u64::from(!is_exact)).min(allowed.unwrap_or(u64::MAX));
    GrantCounts { reserved, allowed: allowed.unwrap_or(0) }
}
