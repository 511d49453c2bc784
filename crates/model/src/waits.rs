//! The time that requests spent at a node, by the rule that held them, the device included.
//!
//! # Problem
//! The latency of a request does not show its cause. An operator needs the rule that held the
//! request: the tenant's own limit, another tenant's reservation, the turn of other tenants, or the
//! device. Only the node that holds the request knows the rule, and only while it holds it.
//!
//! # Model
//! At each moment each request at a node is held by one [`WaitRule`]; the time at the device counts
//! for a rule of its own, [`WaitRule::Device`]. [`Waits`] are the sums of those times, in which a
//! request counts as often as it costs: ten requests of one unit that wait for a millisecond are
//! 10,000,000 ns. The sums over the units that were served are the mean time of a unit at the node.
//! The sums over a span of time are the mean number of units that were at the node.
//!
//! # Bound
//! A thousand units that wait all the time fill 64 bits in seven months. Sums saturate.

#[cfg(feature = "schema")]
use alloc::{string::String, vec, vec::Vec};
use core::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
}

/// The rule that holds a request at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Rule))]
#[serde(rename_all = "snake_case")]
pub enum WaitRule {
    /// Its tenant's own limit.
    Limit,
    /// Requests of other tenants, which went first by reservation.
    Reservation,
    /// Requests of other tenants, which were next in the scheduler's order.
    Turn,
    /// No other tenant: earlier requests of its tenant, or a full device, or it is at the device.
    Device,
}

impl WaitRule {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::Limit, Self::Reservation, Self::Turn, Self::Device];

    /// The name of the rule, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Reservation => "reservation",
            Self::Turn => "turn",
            Self::Device => "device",
        }
    }
}

/// How long requests of one tenant waited at one node, since that was first counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Waits {
    /// Units of cost that went to the device.
    pub operations: u64,
    /// For how long units were held by [`WaitRule::Limit`], all of them together.
    pub limit_ns: u64,
    /// The same of [`WaitRule::Reservation`].
    pub reservation_ns: u64,
    /// The same of [`WaitRule::Turn`].
    pub turn_ns: u64,
    /// The same of [`WaitRule::Device`].
    pub device_ns: u64,
}

impl Waits {
    /// Nothing was counted.
    pub const ZERO: Self =
        Self { operations: 0, limit_ns: 0, reservation_ns: 0, turn_ns: 0, device_ns: 0 };

    /// For how long units were held by `rule`, all of them together.
    pub const fn of(&self, rule: WaitRule) -> u64 {
        match rule {
            WaitRule::Limit => self.limit_ns,
            WaitRule::Reservation => self.reservation_ns,
            WaitRule::Turn => self.turn_ns,
            WaitRule::Device => self.device_ns,
        }
    }

    /// For how long units were there, all of them together.
    pub const fn total_ns(&self) -> u64 {
        let waited = self.limit_ns.saturating_add(self.reservation_ns);
        waited.saturating_add(self.turn_ns).saturating_add(self.device_ns)
    }

    /// The increase of each counter since `earlier`; zero where a counter is less than before.
    ///
    /// ```
    /// use tidegate_model::Waits;
    /// let earlier = Waits { operations: 2, turn_ns: 70, ..Waits::ZERO };
    /// let now = Waits { operations: 5, turn_ns: 90, ..Waits::ZERO };
    /// assert_eq!(now.since(&earlier), Waits { operations: 3, turn_ns: 20, ..Waits::ZERO });
    /// ```
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(earlier.operations),
            limit_ns: self.limit_ns.saturating_sub(earlier.limit_ns),
            reservation_ns: self.reservation_ns.saturating_sub(earlier.reservation_ns),
            turn_ns: self.turn_ns.saturating_sub(earlier.turn_ns),
            device_ns: self.device_ns.saturating_sub(earlier.device_ns),
        }
    }
}

impl Add for Waits {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            operations: self.operations.saturating_add(other.operations),
            limit_ns: self.limit_ns.saturating_add(other.limit_ns),
            reservation_ns: self.reservation_ns.saturating_add(other.reservation_ns),
            turn_ns: self.turn_ns.saturating_add(other.turn_ns),
            device_ns: self.device_ns.saturating_add(other.device_ns),
        }
    }
}

impl AddAssign for Waits {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
