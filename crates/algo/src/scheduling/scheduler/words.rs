//! Types of a scheduler's interface: its inputs and its results.

use tidegate_model::{Span, Time};

use crate::scheduling::dsfq::Bound;

/// A tenant's slot in a scheduler. A slot that was removed never means another tenant: from then
/// on it is [`Self::UNATTRIBUTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub(super) index: u32,
    pub(super) generation: u16,
    pub(super) shard: u16,
}

impl Slot {
    /// For requests without a tenant, or with an unknown one: nothing is reserved for them, and
    /// they have no limit.
    pub const UNATTRIBUTED: Self = Self { index: 0, generation: 0, shard: 0 };

    /// Its index among the slots of its shard. A slot that is removed gives it to a later one.
    #[inline]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// The shard that it is in: that of the scheduler which made it
    /// ([`crate::scheduling::shards`]).
    #[inline]
    pub const fn shard(self) -> usize {
        self.shard as usize
    }
}

/// A tenant's parameters from the policy, as far as they matter for the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantParameters {
    /// 1 to [`super::WEIGHT_MAX`]; larger ones count as this, and zero as one.
    pub weight: u32,
    /// How far it may be delayed for what it was served at other nodes.
    pub bound: Bound,
}

impl TenantParameters {
    /// A tenant of this weight that is never delayed.
    pub const fn of_weight(weight: u32) -> Self {
        Self { weight, bound: Bound::ZERO }
    }
}

/// The cost and the delay of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCost {
    /// Tokens that it takes of what is reserved and allowed; zero counts as one.
    pub cost: u32,
    /// Its cost in the fair order, in the unit of [`tidegate_model::CostModel`]; zero counts as
    /// one.
    pub work: u32,
    /// Work that its tenant was served at other nodes and that was not yet reported here.
    pub delay: u32,
    /// Tokens that it takes instead of `cost` where a request of any size is one operation; zero
    /// for the later pieces of a request.
    pub operations: u32,
    /// The bytes that it moves, where bytes are counted beside operations.
    pub bytes: u32,
}

impl RequestCost {
    /// One token, one unit of work, one operation, and no bytes.
    pub const ONE: Self = Self::of(1);

    /// So many tokens, and as much work and as many operations, without a delay or bytes.
    pub const fn of(cost: u32) -> Self {
        Self { cost, work: cost, delay: 0, operations: cost, bytes: 0 }
    }
}

/// Operations and bytes of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Requests of any size; one about several keys counts as one for each.
    pub operations: u64,
    /// The bytes that they move.
    pub bytes: u64,
}

impl Amounts {
    pub(super) fn of(operations: u32, bytes: u32) -> Self {
        Self { operations: operations.into(), bytes: bytes.into() }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            operations: self.operations.saturating_add(other.operations),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(other.operations),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Whether what is allowed is spread over the period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// At each moment, at most the part that has passed.
    #[default]
    Even,
    /// At once, on demand: Algorithm 1 as published.
    Paper,
}

/// Up to what counts a tenant is served within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodGrant {
    /// Up to this count it goes before those without reservation tokens.
    pub reserved: u64,
    /// Up to this count it is served at all; [`u64::MAX`] for no limit.
    pub allowed: u64,
}

impl PeriodGrant {
    /// Nothing is reserved, and there is no limit.
    pub const UNLIMITED: Self = Self { reserved: 0, allowed: u64::MAX };
    /// Nothing is reserved, and nothing is allowed.
    pub const NOTHING: Self = Self { reserved: 0, allowed: 0 };
}

/// The part of a period that runs: its length, and that for which counts were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodPart {
    /// How long the period is now; shorter than `granted`.
    pub length: Span,
    /// How long it was to be.
    pub granted: Span,
    /// Whether it is over.
    pub is_over: bool,
}

impl PeriodPart {
    /// The part of a count, rounded down.
    pub(super) fn of(self, count: u64) -> u64 {
        let part = u128::from(count) * u128::from(self.length.0);
        u64::try_from(part / u128::from(self.granted.0.max(1))).unwrap_or(u64::MAX)
    }
}

/// The counts of a slot. Only `waiting`, `in_flight` and `served` ever fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounters {
    /// Units of cost dispatched in this period.
    pub served: u64,
    /// Units of cost dispatched in the period before.
    pub served_before: u64,
    /// Units of cost dispatched since the slot was made.
    pub total: u64,
    /// Units of cost that came since the slot was made, those that were cancelled included.
    pub arrived: u64,
    /// Units of cost that wait.
    pub waiting: u64,
    /// Units of cost at the device.
    pub in_flight: u64,
    /// For how long something has been waiting since the slot was made.
    pub backlogged: Span,
    /// The sum of the times at which units came, in nanoseconds, modulo 2^64. With
    /// [`Self::arrived`] at two moments it gives their mean time of arrival in between.
    pub came: u64,
    /// The sum of the times at which units were completed or cancelled, likewise.
    pub left: u64,
}

impl SlotCounters {
    /// Units of cost that are here, in the queue or at the device.
    pub const fn present(&self) -> u64 {
        self.waiting.saturating_add(self.in_flight)
    }

    /// The time that units have been here in sum, those that still are included, modulo 2^64: a
    /// thousand units that are always here get there in seven months, and differences are right.
    pub const fn stayed(&self, now: Time) -> u64 {
        self.left.wrapping_add(at(now, self.present())).wrapping_sub(self.came)
    }
}

/// A request that goes next.
#[derive(Debug, PartialEq, Eq)]
pub struct Dispatched<J> {
    /// The slot of the request.
    pub slot: Slot,
    /// Units of cost, at least one.
    pub cost: u32,
    /// Whether a reservation token was left for it: it went in one of the first phases.
    pub is_reserved: bool,
    /// The job that was pushed.
    pub job: J,
}

/// The amount that `units` at `now` add to a sum of times, modulo 2^64.
pub(super) const fn at(now: Time, units: u64) -> u64 {
    now.0.wrapping_mul(units)
}
