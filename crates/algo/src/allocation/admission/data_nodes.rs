//! Reservations of a policy that the data nodes cannot keep.
//!
//! # Model
//! A tenant's reservation is for all data nodes together, and divided into shares. The shares at a
//! node are no more than it can do, C_G, and a share no more than the clients there can be
//! promised, C_L each (Haechi's Definition 2). So two sums bound what can be kept: that of all
//! reservations by ΣC_G, and one reservation by ΣC_L for each client that its tenant has at each
//! node.
//!
//! Example: two nodes do 400k each, and a client 250k. Reservations of 700k and 200k are 100k more
//! than the nodes can do; and with one client at each node 500k of the 700k can be reserved, so it
//! takes two.
//!
//! A tenant that requests more is admitted, and has that much less: the shares of other tenants are
//! kept, and are no larger for it. So this module reports a shortage and forbids nothing.
//!
//! Left out: the capacity that data nodes learn, the number of their session slots, and
//! reservations that are refused without pacing although both sums hold
//! ([`haechi::admission`](crate::onesided::admission)).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use tidegate_model::policy::GateKind;
use tidegate_model::{Cluster, Iops, Policy};

/// A sum of reservations that the data nodes cannot keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// The reservations of all tenants together, if all of them are used.
    Sum {
        /// The sum of the reservations, per second.
        promised: Iops,
        /// ΣC_G: the capacity of the data nodes, which is less.
        capacity: Iops,
    },
    /// The reservation of one tenant, if it has one client at each data node.
    Client {
        /// The tenant.
        tenant: String,
        /// The tenant's reservation, per second.
        promised: Iops,
        /// ΣC_L: the most that can be reserved for such clients, which is less.
        most: Iops,
        /// The clients that the tenant needs at each data node, at least.
        clients: u64,
    },
}

impl fmt::Display for Unkept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { promised, capacity } => write!(
                f,
                "tenants are promised {promised} together, and data nodes can do {capacity}; while \
                 all of them ask for it, {} of it are reserved nowhere; lower reservations by so \
                 much, or add a data node",
                promised.saturating_sub(*capacity)
            ),
            Self::Client { tenant, promised, most, clients } => write!(
                f,
                "{tenant} is promised {promised}, and for one client at each data node {most} can \
                 be reserved; let it come with {clients} at each, or lower its reservation"
            ),
        }
    }
}

/// Returns the reservations of a policy that a cluster's data nodes cannot keep: first the sum of
/// all tenants, then single ones. Empty if the cluster has no data nodes.
///
/// ```
/// use tidegate_algo::allocation::admission::{Unkept, unkept};
/// use tidegate_model::{Cluster, Iops, Policy};
/// let node = |name| format!(
///     "[[data-node]]\nname = {name:?}\nlisten = \"unix:{name}.sock\"\nmemory = \"4MiB\"\n\
///      capacity = \"400k iops\"\nclient = \"250k iops\"\n"
/// );
/// let cluster = Cluster::parse(&(node("a") + &node("b")))?;
/// let policy = "tenant = [{ name = \"x\", reservation = \"700k iops\" }]";
/// let found = unkept(&Policy::parse(policy)?, &cluster);
/// let most = Iops(500_000);
/// let promised = Iops(700_000);
/// assert_eq!(found, [Unkept::Client { tenant: "x".into(), promised, most, clients: 2 }]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unkept(policy: &Policy, cluster: &Cluster) -> Vec<Unkept> {
    let nodes = &cluster.data_nodes;
    if nodes.is_empty() {
        return Vec::new();
    }
    let capacity = sum(nodes.iter().map(|node| node.capacity));
    let most = sum(nodes.iter().map(|node| node.client.min(node.capacity)));
    let policy = &policy.at(GateKind::DataNode);
    let promised = sum(policy.tenants.iter().filter_map(|it| it.reservation.operations));
    let mut unkept = Vec::new();
    if promised > capacity {
        unkept.push(Unkept::Sum { promised, capacity });
    }
    for tenant in &policy.tenants {
        let promised = tenant.reservation.operations.unwrap_or_default();
        // More than nodes can do no number of clients gets.
        let kept = promised.min(capacity);
        if kept > most {
            let (tenant, clients) = (tenant.name.clone(), kept.0.div_ceil(most.0.max(1)));
            unkept.push(Unkept::Client { tenant, promised, most, clients });
        }
    }
    unkept
}

fn sum(rates: impl Iterator<Item = Iops>) -> Iops {
    Iops(rates.fold(0, |sum, rate| sum.saturating_add(rate.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn cluster(nodes: &[(u64, u64)]) -> Cluster {
        let node = |(at, (capacity, client)): (usize, &(u64, u64))| {
            format!(
                "[[data-node]]\nname = \"m{at}\"\nlisten = \"unix:m{at}.sock\"\nmemory = \
                 \"4MiB\"\ncapacity = \"{capacity} iops\"\nclient = \"{client} iops\"\n"
            )
        };
        Cluster::parse(&nodes.iter().enumerate().map(node).collect::<String>()).unwrap()
    }

    fn policy(reservations: &[u64]) -> Policy {
        let tenant = |(at, rate): (usize, &u64)| {
            format!("[[tenant]]\nname = \"t{at}\"\nreservation = \"{rate} iops\"\n")
        };
        Policy::parse(&reservations.iter().enumerate().map(tenant).collect::<String>()).unwrap()
    }

    #[test]
    fn shortages_are_reported_with_remedies() {
        let warnings_for = |reservations: &[u64]| -> Vec<String> {
            let cluster = cluster(&[(400_000, 250_000), (400_000, 250_000)]);
            unkept(&policy(reservations), &cluster).iter().map(ToString::to_string).collect()
        };
        assert_eq!(warnings_for(&[500_000, 300_000]), [""; 0]);
        assert_eq!(
            warnings_for(&[700_000, 200_000]),
            [
                "tenants are promised 900k iops together, and data nodes can do 800k iops; while \
                 all of them ask for it, 100k iops of it are reserved nowhere; lower reservations \
                 by so much, or add a data node",
                "t0 is promised 700k iops, and for one client at each data node 500k iops can be \
                 reserved; let it come with 2 at each, or lower its reservation",
            ]
        );
        let storage = Cluster::parse("node = [{ name = \"a\", memory = true }]").unwrap();
        assert_eq!(unkept(&policy(&[9]), &storage), []);
    }

    proptest! {
        /// Clients come one after the other, one more to each node in each round, until the tenant
        /// has all that it is promised or nodes can do no more: so many rounds it takes.
        #[test]
        fn clients_are_counted_as_they_come(
            nodes in proptest::collection::vec((1u64..200, 1u64..60), 1..4),
            reservation in 1u64..700,
        ) {
            let nodes: Vec<_> = nodes.into_iter().map(|(all, one)| (all, one.min(all))).collect();
            let capacity: u64 = nodes.iter().map(|(all, _)| all).sum();
            let round_trips = |clients: u64| -> u64 {
                nodes.iter().map(|(all, one)| (one * clients).min(*all)).sum()
            };
            let wanted = reservation.min(capacity);
            let needed = (1..).find(|clients| round_trips(*clients) >= wanted).unwrap_or(1);
            let found = unkept(&policy(&[reservation]), &cluster(&nodes));
            let sum = found.iter().any(|it| matches!(it, Unkept::Sum { .. }));
            prop_assert_eq!(sum, reservation > capacity);
            let clients = found.iter().find_map(|it| match it {
                Unkept::Client { clients, .. } => Some(*clients),
                Unkept::Sum { .. } => None,
            });
            prop_assert_eq!(clients.is_some(), needed > 1);
            // Where a node can do less than its clients could, it takes more at the others.
            prop_assert!(clients.is_none_or(|clients| (2..=needed).contains(&clients)));
            let are_alike = nodes.iter().all(|node| *node == nodes[0]);
            prop_assert!(!are_alike || clients.unwrap_or(1) == needed);
        }
    }
}
