//! Connection quotas of a gateway, per tenant and per address: a new connection is refused, or
//! evicts an older one.
//!
//! # Problem
//! A connection costs memory and a descriptor, so there is a most. 520 clients that connected and
//! sent nothing used it up, and no other client was let in for half a minute. One address, one user
//! or one tenant must not shut out all others.
//!
//! # Model
//! A connection is *pending* until its client has sent its request: has finished the handshake of
//! NBD, or has sent its first bytes of memcached. Then it is *open*. Where it comes from is its
//! [`Origin`].
//!
//! # Mechanism
//! Pending connections have a bound of their own ([`PendingConnections`]). At the bound a new one
//! replaces another: the oldest one of the origin with the most. Honest clients are
//! pending for milliseconds, so a flood throws out its own.
//!
//! Open connections ([`OpenConnections`]) have a quota: of `most` in all, one origin may have three
//! quarters, one tenant three quarters, and the last eighth is kept for tenants with a reservation.
//! Example with 512: 384 from one address; 448 of tenants without a reservation.
//!
//! # What is left out
//! A client that can connect from many addresses counts as many origins. Certificates do not
//! distinguish origins.

use alloc::collections::BTreeMap;
use alloc::string::String;

use tidegate_model::Origin;

/// Connections that have not yet sent their request, by number.
#[derive(Clone, Debug)]
pub struct PendingConnections {
    most: usize,
    origins: BTreeMap<u64, Origin>,
    /// The numbers in the order in which they came, by a count of all that came.
    order: BTreeMap<u64, u64>,
    arrivals: BTreeMap<u64, u64>,
    next: u64,
}

impl PendingConnections {
    /// At most so many, at least one.
    pub const fn new(most: usize) -> Self {
        Self {
            most: if most == 0 { 1 } else { most },
            origins: BTreeMap::new(),
            order: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            next: 0,
        }
    }

    /// A connection came. The one to be closed for it, if there are too many; it is removed.
    pub fn insert(&mut self, number: u64, origin: Origin) -> Option<u64> {
        self.origins.insert(number, origin);
        self.order.insert(self.next, number);
        self.arrivals.insert(number, self.next);
        self.next += 1;
        if self.origins.len() <= self.most {
            return None;
        }
        let mut counts = BTreeMap::<Origin, usize>::new();
        self.origins.values().for_each(|origin| *counts.entry(*origin).or_default() += 1);
        let (largest, _) = counts.iter().max_by_key(|(_, count)| **count)?;
        let oldest = self.order.values().find(|number| self.origins[*number] == *largest);
        let evicted = *oldest?;
        self.remove(evicted);
        Some(evicted)
    }

    /// A connection is no longer pending. Whether it was.
    pub fn remove(&mut self, number: u64) -> bool {
        if let Some(arrival) = self.arrivals.remove(&number) {
            self.order.remove(&arrival);
        }
        self.origins.remove(&number).is_some()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.origins.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }
}

/// Connections that have sent their request.
#[derive(Clone, Debug)]
pub struct OpenConnections {
    most: usize,
    all: usize,
    origins: BTreeMap<Origin, usize>,
    tenants: BTreeMap<String, usize>,
}

/// Why a connection is not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaExceeded {
    /// There are as many as there may be.
    #[error("{0} clients are connected, which is the limit")]
    All(usize),
    /// There are as many from its origin.
    #[error("{1} clients of {0} are connected, which is its quota")]
    Origin(Origin, usize),
    /// There are as many of its tenant.
    #[error("{1} clients of tenant {0:?} are connected, which is its quota")]
    Tenant(String, usize),
    /// The remaining connections are kept for tenants with a reservation.
    #[error("{0} clients are connected; further ones are those of tenants with a reservation")]
    Reserve(usize),
}

impl OpenConnections {
    /// At most so many.
    pub const fn new(most: usize) -> Self {
        Self { most, all: 0, origins: BTreeMap::new(), tenants: BTreeMap::new() }
    }

    /// Takes one more, for a tenant that has a reservation or not.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn insert(
        &mut self,
        origin: Origin,
        tenant: &str,
        has_reservation: bool,
    ) -> Result<(), QuotaExceeded> {
        let (each, reserve) = (self.most - self.most / 4, self.most / 8);
        let of_origin = self.origins.get(&origin).copied().unwrap_or(0);
        let of_tenant = self.tenants.get(tenant).copied().unwrap_or(0);
        if self.all >= self.most {
            return Err(QuotaExceeded::All(self.most));
        }
        if of_origin >= each {
            return Err(QuotaExceeded::Origin(origin, each));
        }
        if of_tenant >= each {
            return Err(QuotaExceeded::Tenant(tenant.into(), each));
        }
        if !has_reservation && self.all >= self.most - reserve {
            return Err(QuotaExceeded::Reserve(self.all));
        }
        self.all += 1;
        self.origins.insert(origin, of_origin + 1);
        self.tenants.insert(tenant.into(), of_tenant + 1);
        Ok(())
    }

    /// One of them was closed.
    pub fn remove(&mut self, origin: Origin, tenant: &str) {
        self.all = self.all.saturating_sub(1);
        if let Some(count) = self.origins.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.origins.remove(&origin);
            }
        }
        if let Some(count) = self.tenants.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(tenant);
            }
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.all
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.all == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_flood_throws_out_its_own() {
        let mut pending = PendingConnections::new(4);
        assert_eq!(pending.insert(1, Origin::User(7)), None);
        assert!((2..5).all(|number| pending.insert(number, Origin::User(9)).is_none()));
        assert_eq!(pending.insert(5, Origin::User(9)), Some(2), "the oldest of the flood");
        assert_eq!(pending.insert(6, Origin::User(7)), Some(3));
        assert!(pending.remove(1) && !pending.remove(2) && !pending.remove(1));
        assert_eq!(pending.len(), 3);
    }

    #[test]
    fn no_client_has_all_of_them() {
        let mut open = OpenConnections::new(16);
        let mut insert = |user, tenant, has_reservation| {
            open.insert(Origin::User(user), tenant, has_reservation)
        };
        assert!((0..12).all(|_| insert(1, "a", true) == Ok(())));
        assert_eq!(insert(1, "b", true), Err(QuotaExceeded::Origin(Origin::User(1), 12)));
        assert_eq!(insert(2, "a", true), Err(QuotaExceeded::Tenant("a".into(), 12)));
        assert!((0..2).all(|_| insert(2, "b", false) == Ok(())));
        assert_eq!(insert(2, "b", false), Err(QuotaExceeded::Reserve(14)));
        assert!((0..2).all(|_| insert(2, "c", true) == Ok(())));
        assert_eq!(insert(3, "c", true), Err(QuotaExceeded::All(16)));
        open.remove(Origin::User(1), "a");
        assert_eq!((open.len(), open.insert(Origin::User(3), "c", true)), (16 - 1, Ok(())));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_open_connections(
            steps in prop::collection::vec((0..4_u32, 0..3_usize, any::<bool>()), 0..100),
        ) {
            let (mut open, tenants) = (OpenConnections::new(20), ["a", "b", "c"]);
            let mut there = alloc::vec::Vec::new();
            for (user, tenant, is_new) in steps {
                let (origin, tenant) = (Origin::User(user), tenants[tenant]);
                let index = there.iter().position(|one| *one == (origin, tenant));
                match index.filter(|_| !is_new) {
                    Some(index) => {
                        open.remove(origin, tenant);
                        there.swap_remove(index);
                    }
                    None if open.insert(origin, tenant, true).is_ok() => {
                        there.push((origin, tenant));
                    }
                    None => prop_assert!(there.len() >= 15),
                }
                prop_assert_eq!(open.len(), there.len());
            }
            there.iter().for_each(|(origin, tenant)| open.remove(*origin, tenant));
            prop_assert!(open.is_empty() && open.origins.is_empty() && open.tenants.is_empty());
        }
    }
}
