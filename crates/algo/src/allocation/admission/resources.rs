//! Admission of a whole policy: each promise once, against the capacity of its resource alone.
//!
//! # Model
//! The numbers of the policy itself are compared first: groups with their tenants, and resources
//! with their capacities ([`Policy::feasible`]). Then the cluster's file: storage nodes by the
//! largest flow ([`shortage`](super::shortage)), and data nodes by the sum of their
//! capacities, because promises are divided over all of them.
//!
//! A policy without resources promises the same of everything. Its reservations in operations are
//! compared with the budget, with storage nodes and with data nodes, each time in full, and none of
//! the three knows that the others keep the same promise. Such policies stay valid, and
//! [`promised_several_times`] reports them.
//!
//! Example: with a budget of 100 iops, nodes that can do 100 and a data node that can do 100, a
//! tenant may be promised 90 iops without a resource, and that is one promise with three
//! capacities. With three resources it is promised 90 of one of them, and a promise of 20 to
//! another tenant is refused there and fits the other two.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use tidegate_model::policy::{Extent, GateKind, Infeasible, Levels, Promise, Resource};
use tidegate_model::text::listed;
use tidegate_model::{Cluster, Iops, Policy, Rate};

use super::{DATA_NODE_BLOCK, Shortage, reachable_nodes, shortage};

/// Why a policy is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// Reservations exceed the budget, the capacity of a resource, or a group's promise.
    Infeasible(Infeasible),
    /// Some storage nodes cannot keep the reservations of the tenants that reach no others.
    Shortage(Shortage),
    /// Bytes are promised at storage nodes that do not declare how many they can move.
    NoBandwidth {
        /// The resource.
        resource: String,
        /// The tenants whose reservations in bytes reach such nodes.
        tenants: Vec<String>,
        /// These nodes.
        nodes: Vec<String>,
    },
    /// The resource of data nodes names other nodes than the cluster has.
    DataNodes {
        /// The resource.
        resource: String,
        /// The data nodes that it names and the cluster lacks.
        unknown: Vec<String>,
        /// The data nodes that it does not name.
        uncovered: Vec<String>,
    },
}

impl fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible(infeasible) => infeasible.fmt(f),
            Self::Shortage(shortage) => shortage.fmt(f),
            Self::NoBandwidth { resource, tenants, nodes } => {
                let is = if tenants.len() == 1 { "is" } else { "are" };
                let does = if nodes.len() == 1 { "does" } else { "do" };
                write!(
                    f,
                    "{} {is} promised bytes of {resource} at {}, which {does} not declare a \
                     bandwidth; state it in the capacity there, as in capacity = [\"20k iops\", \
                     \"500MiB/s\"] (a measured one is in operations), or promise operations",
                    listed(tenants),
                    listed(nodes),
                )
            }
            Self::DataNodes { resource, unknown, uncovered } if unknown.is_empty() => {
                let names = listed(uncovered);
                write!(
                    f,
                    "resource {resource} leaves out {names}, and its promises are divided over \
                     all data nodes of the cluster; add {names} to its data_nodes"
                )
            }
            Self::DataNodes { resource, unknown, .. } => {
                let names = listed(unknown);
                write!(f, "resource {resource} names {names}, no data node of the cluster")
            }
        }
    }
}

impl core::error::Error for AdmissionRefusal {}

impl From<Infeasible> for AdmissionRefusal {
    fn from(infeasible: Infeasible) -> Self {
        Self::Infeasible(infeasible)
    }
}

impl From<Shortage> for AdmissionRefusal {
    fn from(shortage: Shortage) -> Self {
        Self::Shortage(shortage)
    }
}

/// Whether all promises can be kept: by what the policy states, and by what the cluster's file does
/// if there is a cluster. This is the only admission: `check`, `apply` and `up` call it.
///
/// # Errors
/// All refusals, at least one.
pub fn admit(policy: &Policy, cluster: Option<&Cluster>) -> Result<(), Vec<AdmissionRefusal>> {
    let mut refusals: Vec<AdmissionRefusal> = Vec::new();
    refusals.extend(policy.feasible().err().map(AdmissionRefusal::from));
    if let Some(cluster) = cluster {
        refusals.extend(
            shortage(&policy.at(GateKind::Node), cluster).err().map(AdmissionRefusal::from),
        );
        if let Some(resource) = policy.resource_at(GateKind::Node) {
            refusals.extend(bandwidth(policy, resource, cluster).err());
        }
        if let Some(resource) = policy.resource_at(GateKind::DataNode) {
            refusals.extend(data_nodes(policy, resource, cluster).err());
        }
    }
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// Whether every node that a reservation in bytes reaches declares a bandwidth. The controller
/// divides such a reservation by what nodes can move, and would place any part of it at a node
/// without a bound. Here each tenant of a group has the group's whole reservation.
fn bandwidth(
    policy: &Policy,
    resource: &Resource,
    cluster: &Cluster,
) -> Result<(), AdmissionRefusal> {
    let policy = policy.at(GateKind::Node);
    let (mut tenants, mut nodes) = (Vec::new(), Vec::new());
    for (tenant, reached) in policy.tenants.iter().zip(reachable_nodes(&policy, cluster)) {
        let group = policy.group_of(tenant).map(|group| group.promise.reservation);
        let of_group = group.filter(|_| tenant.reservation == Levels::default());
        let promised = tenant.reservation.bandwidth.or(of_group.and_then(|it| it.bandwidth));
        let reached = reached.into_iter().filter_map(|id| cluster.node(id));
        let unbounded = reached.filter(|node| node.bandwidth.is_none());
        let mut unbounded: Vec<String> = unbounded.map(|node| node.name.clone()).collect();
        if promised.is_some() && !unbounded.is_empty() {
            tenants.push(tenant.name.clone());
            nodes.append(&mut unbounded);
        }
    }
    if tenants.is_empty() {
        return Ok(());
    }
    nodes.sort_unstable();
    nodes.dedup();
    Err(AdmissionRefusal::NoBandwidth { resource: resource.name.clone(), tenants, nodes })
}

/// Whether the data nodes of a resource are those of the cluster, and can keep its reservations.
fn data_nodes(
    policy: &Policy,
    resource: &Resource,
    cluster: &Cluster,
) -> Result<(), AdmissionRefusal> {
    let Extent::DataNodes(named) = &resource.extent else { return Ok(()) };
    let known: Vec<&String> = cluster.data_nodes.iter().map(|node| &node.name).collect();
    let unknown: Vec<String> = named.iter().filter(|name| !known.contains(name)).cloned().collect();
    let uncovered: Vec<String> =
        known.into_iter().filter(|name| !named.contains(name)).cloned().collect();
    if !unknown.is_empty() || !uncovered.is_empty() {
        let resource = resource.name.clone();
        return Err(AdmissionRefusal::DataNodes { resource, unknown, uncovered });
    }
    let capacities = cluster.data_nodes.iter().map(|node| node.capacity);
    let declared = capacities.fold(Iops::ZERO, Iops::saturating_add);
    let bandwidth = Rate(declared.0.saturating_mul(DATA_NODE_BLOCK.0));
    let stated = resource.capacity;
    // Where the policy states less, that was compared before.
    let capacity = Levels {
        operations: stated.operations.is_none_or(|it| it > declared).then_some(declared),
        bandwidth: stated.bandwidth.is_none_or(|it| it > bandwidth).then_some(bandwidth),
    };
    Ok(policy.fits(resource, capacity)?)
}

/// Returns warnings about promises of resources that the gates of the cluster cannot keep, each
/// with the reason. Without a cluster only stages are there.
pub fn resource_warnings(policy: &Policy, cluster: Option<&Cluster>) -> Vec<String> {
    let mut warnings = Vec::new();
    for resource in &policy.resources {
        let gate = resource.gate();
        let has_gates = match gate {
            GateKind::Stage => true,
            GateKind::Node => cluster.is_some_and(|cluster| !cluster.nodes.is_empty()),
            GateKind::DataNode => cluster.is_some_and(|cluster| !cluster.data_nodes.is_empty()),
        };
        let name = &resource.name;
        if !has_gates {
            warnings.push(format!(
                "resource {name} is of {gate}, and there are none; nothing keeps its promises"
            ));
            continue;
        }
        if gate == GateKind::DataNode {
            warnings.extend(uncounted(resource));
            warnings.extend(undivided(policy, resource));
        }
        if gate == GateKind::Node {
            warnings.extend(unweighted(policy, resource));
        }
    }
    if let (Some(cluster), false) = (cluster, policy.resources.is_empty()) {
        let counts =
            [(GateKind::Node, cluster.nodes.len()), (GateKind::DataNode, cluster.data_nodes.len())];
        for (gate, _) in counts.into_iter().filter(|(_, count)| *count > 0) {
            if policy.resource_at(gate).is_none() {
                warnings.push(format!(
                    "no resource is of {gate}, so nothing is promised there; add a [[resource]]"
                ));
            }
        }
    }
    if policy.resources.is_empty() {
        warnings.extend(cluster.and_then(|cluster| promised_several_times(policy, cluster)));
        warnings.extend(cluster.and_then(|cluster| undivided_groups(policy, cluster)));
    }
    warnings
}

/// A warning where data nodes do not count a unit of the resource.
fn uncounted(resource: &Resource) -> Option<String> {
    let (name, gate) = (&resource.name, resource.gate());
    (gate == GateKind::DataNode && resource.capacity.bandwidth.is_some()).then(|| {
        format!(
            "the capacity of {name} in bytes admits reservations, and {gate} count operations; \
             they hold nothing back in bytes"
        )
    })
}

/// A warning for each group with a promise that gates of this kind do not divide.
fn undivided(policy: &Policy, resource: &Resource) -> Vec<String> {
    let (name, gate) = (&resource.name, resource.gate());
    let has_promise = |promise: &Promise| {
        promise.reservation != Levels::default() || promise.limit != Levels::default()
    };
    let groups = policy.groups.iter().zip(&resource.groups);
    let groups = groups.filter(|(_, promise)| has_promise(promise));
    let warning = |group: &String| {
        format!(
            "the promise of group {group} on {name} admits its tenants' reservations and holds \
             nothing back: {gate} divide by tenants"
        )
    };
    groups.map(|(group, _)| warning(&group.name)).collect()
}

/// A warning for each group of storage nodes with a weight of its own.
fn unweighted(policy: &Policy, resource: &Resource) -> Vec<String> {
    let groups = policy.groups.iter().zip(&resource.groups);
    let groups = groups.filter(|(_, promise)| promise.weight != Policy::WEIGHT);
    let warning = |group: &String| {
        format!(
            "the weight of group {group} on {} has no effect: storage nodes divide what is left \
             by the weights of tenants",
            resource.name
        )
    };
    groups.map(|(group, _)| warning(&group.name)).collect()
}

/// The same for groups of a policy without resources.
fn undivided_groups(policy: &Policy, cluster: &Cluster) -> Option<String> {
    let promises = |level: Levels| level.operations.is_some();
    let groups = policy.groups.iter();
    let groups =
        groups.filter(|group| promises(group.promise.reservation) || promises(group.promise.limit));
    let names: Vec<String> = groups.map(|group| group.name.clone()).collect();
    let has_nodes = !cluster.nodes.is_empty() || !cluster.data_nodes.is_empty();
    (has_nodes && !names.is_empty()).then(|| {
        format!(
            "what {} is promised as a group holds back nothing at nodes and data nodes, which \
             divide by tenants",
            listed(&names)
        )
    })
}

/// A warning where one promise is compared with several capacities, with the tenants that have such
/// promises.
fn promised_several_times(policy: &Policy, cluster: &Cluster) -> Option<String> {
    let has_budget = policy.budget.operations.is_some();
    let has_memory = !cluster.data_nodes.is_empty();
    let reachable_nodes = reachable_nodes(policy, cluster);
    let mut kept_by_nodes = false;
    let mut names = Vec::new();
    for (tenant, nodes) in policy.tenants.iter().zip(reachable_nodes) {
        let gates = [has_budget, !nodes.is_empty(), has_memory].into_iter().filter(|has| *has);
        if tenant.reservation.operations.is_some() && gates.count() > 1 {
            kept_by_nodes |= !nodes.is_empty();
            names.push(tenant.name.clone());
        }
    }
    let kinds = [(has_budget, "the budget"), (kept_by_nodes, "nodes"), (has_memory, "data nodes")];
    let kinds = kinds.into_iter().filter(|(has, _)| *has).map(|(_, kind)| String::from(kind));
    let kinds: Vec<String> = kinds.collect();
    let is = if names.len() == 1 { "is" } else { "are" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {is} promised one amount that is compared with {}, each time in full; name what it \
             is of with [[resource]]",
            listed(&names),
            listed(&kinds)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const CLUSTER: &str = r#"
        node = [{ name = "a", memory = true, capacity = "100 iops" }]
        volume = [{ name = "db", size = "1GiB", tenant = "oltp", nodes = "a" }]
        [[data-node]]
        name = "m"
        listen = "unix:m.sock"
        memory = "8MiB"
        capacity = "100 iops"
        client = "100 iops"
    "#;

    const RESOURCES: &str = r#"
        [[resource]]
        name = "cluster"
        [[resource]]
        name = "files"
        path = "/srv/**"
        capacity = "100 iops"
        [[resource]]
        name = "memory"
        data_nodes = ["m"]
    "#;

    fn refusals(policy: &str) -> Vec<String> {
        let (policy, cluster) = (Policy::parse(policy).unwrap(), Cluster::parse(CLUSTER).unwrap());
        let refusals = admit(&policy, Some(&cluster)).err().unwrap_or_default();
        refusals.iter().map(ToString::to_string).collect()
    }

    fn warned(policy: &str) -> Vec<String> {
        let (policy, cluster) = (Policy::parse(policy).unwrap(), Cluster::parse(CLUSTER).unwrap());
        resource_warnings(&policy, Some(&cluster))
    }

    fn promising(name: &str, on: &str, rate: u32) -> String {
        format!("[[tenant]]\nname = {name:?}\non.{on} = {{ reservation = \"{rate} iops\" }}\n")
    }

    /// A tenant with 90 iops beside three capacities of 100: without resources one promise is
    /// compared three times, and reported; with them it is one of the one that it names.
    #[test]
    fn a_promise_is_admitted_once() {
        let everything = "budget = \"100 iops\"\n\
                          [[tenant]]\nname = \"oltp\"\nreservation = \"90 iops\"\n";
        assert_eq!(refusals(everything), [""; 0]);
        assert_eq!(
            warned(everything),
            ["oltp is promised one amount that is compared with the budget, nodes and data \
                 nodes, each time in full; name what it is of with [[resource]]"]
        );
        let oltp = RESOURCES.to_string() + &promising("oltp", "cluster", 90);
        assert_eq!(refusals(&oltp), [""; 0]);
        for other in ["files", "memory"] {
            assert_eq!(refusals(&(oltp.clone() + &promising("web", other, 100))), [""; 0]);
        }
        assert_eq!(
            refusals(
                &(oltp.clone() + &promising("web", "files", 60) + &promising("ci", "files", 41))
            ),
            ["reservations of 101 iops on files do not fit its capacity, 100 iops: web with \
                 60 iops \
              and ci with 41 iops; lower a reservation or raise the capacity"]
        );
        assert_eq!(
            refusals(&(oltp + &promising("web", "memory", 101))),
            ["reservations of 101 iops on memory do not fit its capacity, 100 iops: web with 101 \
              iops; lower a reservation or raise the capacity"]
        );
    }

    /// A hundred operations of 4 KiB are 400 KiB.
    #[test]
    fn data_nodes_refuse_bytes_that_their_operations_cannot_move() {
        let memory = |capacity: &str, rate: &str| {
            format!(
                "[[resource]]\nname = \"memory\"\ndata_nodes = [\"m\"]\n{capacity}\n\
                 [[tenant]]\nname = \"web\"\non.memory = {{ reservation = {rate:?} }}\n"
            )
        };
        for capacity in ["", "capacity = \"1MiB/s\""] {
            assert_eq!(refusals(&memory(capacity, "400KiB/s")), [""; 0]);
            assert_eq!(
                refusals(&memory(capacity, "401KiB/s")),
                ["reservations of 401KiB/s on memory do not fit its capacity, 400KiB/s: web with \
                  401KiB/s; lower a reservation or raise the capacity"]
            );
        }
        // The policy's own capacity is compared once.
        assert_eq!(refusals(&memory("capacity = \"300KiB/s\"", "400KiB/s")).len(), 1);
    }

    /// Two nodes of 100 MiB/s, and a volume on one of them: the sum over both would fit.
    #[test]
    fn nodes_refuse_bytes_with_the_cut() {
        let cluster = r#"
            node = [
                { name = "a", memory = true, capacity = ["100 iops", "100MiB/s"] },
                { name = "b", memory = true, capacity = ["100 iops", "100MiB/s"] },
            ]
            volume = [
                { name = "db", size = "1GiB", tenant = "oltp", nodes = "a" },
                { name = "w", size = "1GiB", tenant = "web", nodes = ["a", "b"], stripe = "4KiB" },
            ]
        "#;
        let cluster = Cluster::parse(cluster).unwrap();
        let refused = |oltp: &str, web: &str| {
            let tenant = |name: &str, rate: &str| {
                format!("[[tenant]]\nname = {name:?}\non.cluster.reservation = {rate:?}\n")
            };
            let policy = "[[resource]]\nname = \"cluster\"\n".to_string()
                + &tenant("oltp", oltp)
                + &tenant("web", web);
            let refusals = admit(&Policy::parse(&policy).unwrap(), Some(&cluster)).err();
            refusals.unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(refused("100MiB/s", "100MiB/s"), [""; 0]);
        assert_eq!(
            refused("101MiB/s", "10MiB/s"),
            ["node a can do 100MiB/s; oltp is promised 101MiB/s there; lower reservations \
              there by 1MiB/s, or lay volumes over other nodes"]
        );
        assert_eq!(
            refused("50MiB/s", "151MiB/s"),
            ["nodes a and b can do 200MiB/s; oltp and web are promised 201MiB/s there; lower \
              reservations there by 1MiB/s, or lay volumes over other nodes"]
        );
    }

    /// Nodes `a` and `b` can do 100 each. Tenants `oltp` and `web` of a group reach `a` and `b`,
    /// and `ci` reaches `a`.
    #[test]
    fn nodes_refuse_the_reservation_of_a_group() {
        let cluster = r#"
            node = [
                { name = "a", memory = true, capacity = ["100 iops", "100MiB/s"] },
                { name = "b", memory = true, capacity = ["100 iops", "100MiB/s"] },
            ]
            volume = [
                { name = "db", size = "1GiB", tenant = "oltp", nodes = "a" },
                { name = "www", size = "1GiB", tenant = "web", nodes = "b" },
                { name = "log", size = "1GiB", tenant = "ci", nodes = "a" },
            ]
        "#;
        let cluster = Cluster::parse(cluster).unwrap();
        let refused = |group: &str, [oltp, web, ci]: [&str; 3]| {
            let on = |rate: &str| match rate {
                "" => String::new(),
                rate => format!("on.cluster.reservation = {rate:?}\n"),
            };
            let tenant =
                |name: &str, rate: &str| format!("[[tenant]]\nname = {name:?}\n{}", on(rate));
            let member = |name: &str, rate: &str| tenant(name, rate) + "group = \"g\"\n";
            let head = "[[resource]]\nname = \"cluster\"\n[[group]]\nname = \"g\"\n";
            let policy = head.to_string()
                + &on(group)
                + &member("oltp", oltp)
                + &member("web", web)
                + &tenant("ci", ci);
            let refusals = admit(&Policy::parse(&policy).unwrap(), Some(&cluster)).err();
            refusals.unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        // The group can have all of b, and what ci leaves of a.
        assert_eq!(refused("170 iops", ["", "", "30 iops"]), [""; 0]);
        assert_eq!(
            refused("171 iops", ["", "", "30 iops"]),
            ["nodes a and b can do 200 iops; ci and group g are promised 201 iops there; lower \
              reservations there by 1 iops, or lay volumes over other nodes"]
        );
        // The part that oltp has reserved is at a, and the rest at any of both.
        assert_eq!(refused("170 iops", ["70 iops", "", "30 iops"]), [""; 0]);
        assert_eq!(
            refused("170 iops", ["80 iops", "", "30 iops"]),
            ["node a can do 100 iops; oltp and ci are promised 110 iops there; lower \
                 reservations there by 10 iops, or lay volumes over other nodes"]
        );
        // The same in bytes, of which a tenant that reserves operations alone has no part.
        assert_eq!(refused("200MiB/s", ["", "", ""]), [""; 0]);
        assert_eq!(
            refused("101MiB/s", ["", "9 iops", ""]),
            ["node a can do 100MiB/s; group g is promised 101MiB/s there; lower \
                 reservations there by 1MiB/s, or lay volumes over other nodes"]
        );
    }

    /// Tenant `oltp` reaches node `a` alone, which declares operations only; `web` reaches no node.
    #[test]
    fn bytes_are_refused_at_nodes_without_a_bandwidth() {
        let policy = |group: &str, oltp: &str, web: &str| {
            format!(
                "[[resource]]\nname = \"cluster\"\n{group}\
                 [[tenant]]\nname = \"oltp\"\n{oltp}\n[[tenant]]\nname = \"web\"\n{web}\n"
            )
        };
        let bytes = "on.cluster = { reservation = [\"9 iops\", \"1MiB/s\"] }";
        let refusal = "oltp is promised bytes of cluster at a, which does not declare a bandwidth; \
                       state it in the capacity there, as in capacity = [\"20k iops\", \
                       \"500MiB/s\"] (a measured one is in operations), or promise operations";
        assert_eq!(refusals(&policy("", bytes, "")), [refusal]);
        let limit = "on.cluster = { reservation = \"9 iops\", limit = \"1MiB/s\" }";
        assert_eq!(refusals(&policy("", limit, bytes)), [""; 0], "a limit needs no capacity");
        let group = "[[group]]\nname = \"g\"\non.cluster = { reservation = \"2MiB/s\" }\n";
        let member = "group = \"g\"";
        assert_eq!(refusals(&policy(group, member, member)), [refusal], "its group's bytes");
        let operations = "group = \"g\"\non.cluster = { reservation = \"9 iops\" }";
        assert_eq!(refusals(&policy(group, operations, member)), [""; 0], "it has no part of them");
    }

    #[test]
    fn nodes_refuse_with_the_cut() {
        assert_eq!(
            refusals(&(RESOURCES.to_string() + &promising("oltp", "cluster", 101))),
            ["node a can do 100 iops; oltp is promised 101 iops there; lower reservations \
                 there by \
              1 iops, or lay volumes over other nodes"]
        );
        // A stated capacity holds beside what nodes say.
        let stated = RESOURCES.replacen("\"cluster\"", "\"cluster\"\ncapacity = \"50 iops\"", 1);
        assert_eq!(
            refusals(&(stated + &promising("oltp", "cluster", 60))),
            ["reservations of 60 iops on cluster do not fit its capacity, 50 iops: oltp with 60 \
              iops; lower a reservation or raise the capacity"]
        );
    }

    #[test]
    fn a_resource_names_the_data_nodes_of_the_cluster() {
        let named = |names: &str| refusals(&RESOURCES.replace("[\"m\"]", names));
        assert_eq!(
            named("[\"m\", \"n\"]"),
            ["resource memory names n, no data node of the cluster"]
        );
        assert_eq!(
            AdmissionRefusal::DataNodes {
                resource: "r".into(),
                unknown: Vec::new(),
                uncovered: ["m".into()].into()
            }
            .to_string(),
            "resource r leaves out m, and its promises are divided over all data nodes of the \
             cluster; add m to its data_nodes"
        );
    }

    #[test]
    fn promises_that_gates_do_not_count_are_reported() {
        let policy = r#"
            [[resource]]
            name = "cluster"
            capacity = ["90 iops", "1MiB/s"]
            [[group]]
            name = "g"
            on.cluster = { limit = "50 iops", weight = 200 }
            [[tenant]]
            name = "oltp"
            group = "g"
            on.cluster = { reservation = "10 iops" }
        "#;
        assert_eq!(
            warned(policy),
            [
                "the weight of group g on cluster has no effect: storage nodes divide what is \
                 left by the weights of tenants",
                "no resource is of data nodes, so nothing is promised there; add a [[resource]]",
            ]
        );
        let alone = resource_warnings(&Policy::parse(policy).unwrap(), None);
        assert_eq!(
            alone,
            ["resource cluster is of storage nodes, and there are none; nothing keeps its \
                 promises"]
        );
        let files = "[[resource]]\nname = \"files\"\npath = \"/srv/**\"\ncapacity = \"9 iops\"\n";
        assert_eq!(resource_warnings(&Policy::parse(files).unwrap(), None), [""; 0]);
        let old = "[[group]]\nname = \"g\"\nlimit = \"9 iops\"\n\
                   [[tenant]]\nname = \"oltp\"\ngroup = \"g\"\n";
        assert_eq!(
            warned(old),
            ["what g is promised as a group holds back nothing at nodes and data nodes, which \
              divide by tenants"]
        );
    }
}
