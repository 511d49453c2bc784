//! How long requests waited, and for which rule.
//!
//! # Problem
//! That a request took long says little. Whoever asks why wants to know what held it: a limit of
//! its own, somebody's reservation, the turn of others, or the device. Only the node that holds it
//! knows, and only while it does.
//!
//! # Model
//! At each moment each request at a node is held by one [`Rule`], or is at the device, which counts
//! as the last of them. [`Waits`] are the sums over requests, in request-nanoseconds: ten requests
//! that wait for a millisecond are 10,000,000. Divided by the requests they are the mean of what a
//! request took, divided by a span of time the mean number of requests that were there.
//!
//! # Bound
//! A thousand requests that wait all the time fill 64 bits in seven months. Sums saturate.

use core::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// What holds a request at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Its tenant's own limit.
    Limit,
    /// Requests of other tenants, which went first by reservation.
    Reservation,
    /// Requests of other tenants, whose turn it was.
    Turn,
    /// Nobody else: its tenant's earlier requests, or a device that was full, or it is there.
    Device,
}

impl Rule {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 4] = [Self::Limit, Self::Reservation, Self::Turn, Self::Device];

    /// Its name, for programs.
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
pub struct Waits {
    /// Requests that went to the device.
    pub requests: u64,
    /// Request-nanoseconds that [`Rule::Limit`] held them.
    pub limit_ns: u64,
    /// The same of [`Rule::Reservation`].
    pub reservation_ns: u64,
    /// The same of [`Rule::Turn`].
    pub turn_ns: u64,
    /// The same of [`Rule::Device`].
    pub device_ns: u64,
}

impl Waits {
    /// Nothing was counted.
    pub const ZERO: Self =
        Self { requests: 0, limit_ns: 0, reservation_ns: 0, turn_ns: 0, device_ns: 0 };

    /// Request-nanoseconds for which `rule` held them.
    pub const fn of(&self, rule: Rule) -> u64 {
        match rule {
            Rule::Limit => self.limit_ns,
            Rule::Reservation => self.reservation_ns,
            Rule::Turn => self.turn_ns,
            Rule::Device => self.device_ns,
        }
    }

    /// Request-nanoseconds that they were there.
    pub const fn total_ns(&self) -> u64 {
        let waited = self.limit_ns.saturating_add(self.reservation_ns);
        waited.saturating_add(self.turn_ns).saturating_add(self.device_ns)
    }

    /// What was added since they were `earlier`; none if anything in them was less than that, so
    /// that these are another's who began anew.
    ///
    /// ```
    /// use tidegate_model::Waits;
    /// let earlier = Waits { requests: 2, turn_ns: 70, ..Waits::ZERO };
    /// let now = Waits { requests: 5, turn_ns: 90, ..Waits::ZERO };
    /// assert_eq!(now.since(&earlier), Some(Waits { requests: 3, turn_ns: 20, ..Waits::ZERO }));
    /// assert_eq!(earlier.since(&now), None);
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        Some(Self {
            requests: self.requests.checked_sub(earlier.requests)?,
            limit_ns: self.limit_ns.checked_sub(earlier.limit_ns)?,
            reservation_ns: self.reservation_ns.checked_sub(earlier.reservation_ns)?,
            turn_ns: self.turn_ns.checked_sub(earlier.turn_ns)?,
            device_ns: self.device_ns.checked_sub(earlier.device_ns)?,
        })
    }
}

impl Add for Waits {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
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
