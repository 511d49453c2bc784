//! Admission of promises to a cluster of storage nodes: checks by a maximum flow whether the nodes
//! can keep all of them.
//!
//! # Problem
//! A tenant is promised operations per second, and sends its requests to the nodes on which its
//! volumes lie. It is unknown yet how it will spread them; but if a promise cannot be kept however
//! they are spread, it must not be made (pShift §2: the promises are feasible if the network of
//! tenants and nodes carries them all).
//!
//! # Model
//! A flow: from each tenant what it is promised, over the nodes that it reaches, of which each
//! passes on what it can do. If the largest flow is less than what is promised, there is a *cut*:
//! some tenants reach only nodes that together can do less than those tenants are promised. The cut
//! is the proof, and it shows where to mend: elsewhere nothing helps.
//!
//! # Mechanism
//! The largest flow is the best allocation of [`pshift`](crate::allocation::pshift) when every
//! tenant demands its whole promise of every node that it reaches, and the cut is that allocation's
//! certificate. Where the certificate's nodes fall apart into groups that no tenant of it connects,
//! each group is a cut, and the one with the largest shortage is reported.
//!
//! Example: a and b can do 100 each; x reaches a and is promised 80, y reaches a and b and is
//! promised 150. Whatever y gets at a beside x, it is 30 short: a and b can do 200, and x and y are
//! promised 230 there.
//!
//! A group's reservation is promised to its tenants together: what none of them has reserved may go
//! to any node that one of them reaches. So it takes part as one more tenant does.
//!
//! Left out: a striped volume spreads its requests evenly, and so may overload a node that is much
//! slower than its neighbours. The controller sees at run time which promises are kept.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use tidegate_model::cluster::Node;
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::policy::{GateKind, Group, Levels, Match, RuleTarget, Tenant};
use tidegate_model::text::listed;
use tidegate_model::{Bytes, Class, Cluster, Discipline, Iops, NodeId, Policy, TenantId};

use crate::allocation::pshift::{Configuration, Solver};
use crate::classify::access::exposed_nodes;
use crate::classify::owner::Owners;

mod data_nodes;
mod resources;
mod tokens;
mod warned;

pub use data_nodes::{Unkept, unkept};
pub use resources::{AdmissionRefusal, admit, resource_warnings};
pub use warned::all_warnings;

/// The proof that promises cannot be kept: these tenants reach no nodes but these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The nodes, in the order of the cluster.
    pub nodes: Vec<String>,
    /// The capacity of these nodes together.
    pub capacity: Throughput,
    /// The tenants, in the order of the policy, and groups with what none of their tenants has
    /// reserved.
    pub tenants: Vec<String>,
    /// The reservations of these tenants together; more than `capacity`.
    pub promised: Throughput,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, promised, .. } = self;
        let missing = promised.per_second().saturating_sub(capacity.per_second());
        let missing = Throughput::new(promised.unit(), missing);
        let node = if self.nodes.len() == 1 { "node" } else { "nodes" };
        let is = if self.tenants.len() == 1 { "is" } else { "are" };
        let (nodes, tenants) = (listed(&self.nodes), listed(&self.tenants));
        write!(
            f,
            "{node} {nodes} can do {capacity}; {tenants} {is} promised {promised} there; lower \
             reservations there by {missing}, or lay volumes over other nodes"
        )
    }
}

impl core::error::Error for Shortage {}

/// Which nodes each tenant's requests can come to, in the order of the policy and of the cluster:
/// those of its volumes and pools, and those that rules give it a part of.
pub fn reachable_nodes(policy: &Policy, cluster: &Cluster) -> Vec<Vec<NodeId>> {
    let mut reachable_nodes = vec![Vec::new(); policy.tenants.len()];
    let volumes = cluster.volumes.iter().map(|volume| {
        let owners = Owners::new(policy, &volume.name, &volume.tenant);
        (owners, false, &volume.nodes)
    });
    let pools = cluster.pools.iter().map(|pool| {
        let owners = Owners::new(policy, &pool.name, &pool.tenant);
        (owners, true, &pool.nodes)
    });
    for (owners, has_keys, nodes) in volumes.chain(pools) {
        for owner in owners.all(has_keys) {
            // Unattributed requests have no tenant.
            let Some(index) = usize::from(owner.0).checked_sub(1) else { continue };
            reachable_nodes[index].extend(nodes);
        }
    }
    for nodes in &mut reachable_nodes {
        nodes.sort_unstable();
        nodes.dedup();
    }
    reachable_nodes
}

/// Whether the nodes can keep all reservations of a policy, as they see it: in operations, and in
/// bytes where the policy names the nodes as a resource. A node without a declared capacity can do
/// anything, and what a tenant without a volume or a pool is promised is left out.
///
/// # Errors
/// The cut that proves that they cannot.
fn shortage(policy: &Policy, cluster: &Cluster) -> Result<(), Shortage> {
    shortage_in(Unit::Operations, policy, cluster)?;
    match policy.resource_at(GateKind::Node) {
        Some(_) => shortage_in(Unit::Bytes, policy, cluster),
        None => Ok(()),
    }
}

/// The capacity of a node in a unit, per second, if it is declared.
fn capacity_in(unit: Unit, node: &Node) -> Option<u64> {
    match unit {
        Unit::Operations => node.capacity.map(|iops| iops.0),
        Unit::Bytes => node.bandwidth.map(|rate| rate.0),
    }
}

fn shortage_in(unit: Unit, policy: &Policy, cluster: &Cluster) -> Result<(), Shortage> {
    // Amounts of a flow have 32 bits, so bytes are counted in KiB: promises rounded up, capacities
    // down.
    let grain = if unit == Unit::Bytes { 1024 } else { 1 };
    let capacity = |id: &NodeId| cluster.node(*id).and_then(|node| capacity_in(unit, node));
    let demand = |promised: u64, nodes: &[NodeId]| {
        let known = nodes.iter().all(|id| capacity(id).is_some());
        let promised = if known { promised.div_ceil(grain) } else { 0 };
        ReservedTenant { promised, nodes: nodes.iter().map(|id| usize::from(id.0)).collect() }
    };
    let reachable_nodes = reachable_nodes(policy, cluster);
    let own = |(tenant, nodes): (&Tenant, &Vec<NodeId>)| {
        demand(tenant.reservation.get(unit).unwrap_or(0), nodes)
    };
    let mut demands: Vec<_> = policy.tenants.iter().zip(&reachable_nodes).map(own).collect();
    let joint = group_demands(unit, policy, &reachable_nodes);
    demands.extend(joint.iter().map(|(promised, nodes)| demand(*promised, nodes)));
    let name = |index: usize| match index.checked_sub(policy.tenants.len()) {
        None => policy.tenants[index].name.clone(),
        Some(group) => format!("group {}", policy.groups[group].name),
    };
    let capacities = cluster.nodes.iter().map(|node| capacity_in(unit, node).unwrap_or(0) / grain);
    let capacities: Vec<u64> = capacities.collect();
    let Some(cut) = worst(&capacities, &demands) else { return Ok(()) };
    let amount = |sum: u128| {
        let amount = u64::try_from(sum.saturating_mul(grain.into()));
        Throughput::new(unit, amount.unwrap_or(u64::MAX))
    };
    Err(Shortage {
        capacity: amount(cut.capacity),
        promised: amount(cut.promised),
        nodes: cut.nodes.iter().map(|node| cluster.nodes[*node].name.clone()).collect(),
        tenants: cut.tenants.iter().map(|index| name(*index)).collect(),
    })
}

/// The part of each group's reservation that is not reserved for one of its tenants, and the nodes
/// that tenants with a part in it reach. Without a named resource groups have none at nodes.
fn group_demands(
    unit: Unit,
    policy: &Policy,
    reachable_nodes: &[Vec<NodeId>],
) -> Vec<(u64, Vec<NodeId>)> {
    let is_resource = policy.resource_at(GateKind::Node).is_some();
    let demand = |(index, group): (usize, &Group)| {
        let promised = group.promise.reservation.get(unit).filter(|_| is_resource);
        let tenants = policy.tenants.iter().zip(reachable_nodes);
        let tenants = tenants.filter(|(tenant, _)| tenant.group == Some(index));
        let own = tenants.clone().filter_map(|(tenant, _)| tenant.reservation.get(unit));
        let own = own.fold(0, u64::saturating_add);
        // One with a reservation in the other unit alone has no part.
        let sharing = tenants.filter(|(tenant, _)| {
            let reservation = tenant.reservation;
            reservation.get(unit).is_some() || reservation == Levels::default()
        });
        let mut nodes: Vec<NodeId> = sharing.flat_map(|(_, nodes)| nodes).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        (promised.unwrap_or(0).saturating_sub(own), nodes)
    };
    policy.groups.iter().enumerate().map(demand).collect()
}

/// Returns warnings about settings that are allowed but hardly meant: levels that nodes ignore,
/// promises that cannot be checked, and owners that the policy lacks.
fn warnings(policy: &Policy, cluster: &Cluster) -> Vec<String> {
    let mut warnings = resource_warnings(policy, Some(cluster));
    let has_resources = !policy.resources.is_empty();
    let counts_bytes = policy.resource_at(GateKind::Node).is_some();
    let (at_data_nodes, policy) = (policy.at(GateKind::DataNode), &policy.at(GateKind::Node));
    let reachable_nodes = reachable_nodes(policy, cluster);
    let mut unknown = Vec::new();
    warnings.extend(exposed_nodes(cluster).into_iter().chain(unobserved_classes(policy, cluster)));
    for ((tenant, at_data_nodes), nodes) in
        policy.tenants.iter().zip(&at_data_nodes.tenants).zip(&reachable_nodes)
    {
        let name = &tenant.name;
        warnings.extend(unenforced(tenant, nodes, cluster));
        if !counts_bytes {
            warnings.extend(warned::in_bytes(tenant, nodes, cluster));
        }
        if !cluster.data_nodes.is_empty() {
            warnings.extend(uncounted(at_data_nodes));
        }
        let Some(promised) = tenant.reservation.operations else { continue };
        if nodes.is_empty() && (has_resources || cluster.data_nodes.is_empty()) {
            warnings.push(format!(
                "{name} is promised {promised}, but no volume or pool is its own; what its \
                 programs and clients do at those of others is not checked"
            ));
        }
        unknown.extend(nodes.iter().copied());
    }
    if !cluster.nodes.is_empty() {
        warnings.extend(tokens::below_one(policy, counts_bytes));
    }
    unknown.sort_unstable();
    unknown.dedup();
    warnings.extend(unchecked(unknown.iter().filter_map(|id| cluster.node(*id))));
    let owned = cluster.volumes.iter().map(|volume| (&volume.name, &volume.tenant));
    for (name, tenant) in owned.chain(cluster.pools.iter().map(|pool| (&pool.name, &pool.tenant))) {
        if policy.tenant_named(tenant).is_none() {
            warnings.push(format!(
                "{name} belongs to {tenant}, which is no tenant of the policy; its requests have \
                 no tenant"
            ));
        }
    }
    warnings
}

/// Returns warnings about the nodes at which promises cannot be compared with a declared capacity.
fn unchecked<'a>(nodes: impl Iterator<Item = &'a Node>) -> impl Iterator<Item = String> {
    let undeclared = nodes.filter(|node| node.capacity.is_none());
    let (measured, unknown): (Vec<_>, Vec<_>) = undeclared.partition(|node| node.latency.is_some());
    let names = |nodes: &[&Node]| listed(&Vec::from_iter(nodes.iter().map(|it| it.name.clone())));
    let (does, it) = if unknown.len() == 1 { ("does", "it") } else { ("do", "they") };
    let unknown = (!unknown.is_empty()).then(|| {
        format!(
            "{} {does} not say what {it} can do, so promises there are not checked; add capacity = \
             \"20k iops\", for example",
            names(&unknown)
        )
    });
    let measured = (!measured.is_empty()).then(|| {
        format!(
            "promises at {} are compared with the capacity while the cluster runs, because it is \
             measured then; `tidegate status` warns where less is found",
            names(&measured)
        )
    });
    unknown.into_iter().chain(measured)
}

/// Returns warnings about a tenant's levels in bytes alone, which data nodes ignore: a client there
/// counts its own operations, each of a block at most, and no side sees how many bytes of a block
/// are a value. A warning names the operations that move as much, rounded up, so that a client with
/// values of a block loses nothing.
///
/// Example: a limit of 200 MiB/s is one of 51,200 operations of 4 KiB.
fn uncounted(tenant: &Tenant) -> impl Iterator<Item = String> {
    let levels = [("reservation", tenant.reservation), ("limit", tenant.limit)];
    levels.into_iter().filter_map(|(what, level)| {
        let bytes = level.bandwidth.filter(|_| level.operations.is_none())?;
        let operations = Iops(bytes.0.div_ceil(DATA_NODE_BLOCK.0));
        let name = &tenant.name;
        Some(format!(
            "the {what} of {name} in bytes decides nothing at data nodes, which count operations \
             of {DATA_NODE_BLOCK} at most; {operations} would be as much there"
        ))
    })
}

/// The largest data size of an operation on a data node's memory, without its header.
const DATA_NODE_BLOCK: Bytes = Bytes(4096);

/// Whether a discipline observes a setting.
type Enforces = fn(Discipline) -> bool;

/// Returns warnings about a tenant's settings that the schedulers of its nodes ignore.
fn unenforced(tenant: &Tenant, nodes: &[NodeId], cluster: &Cluster) -> Vec<String> {
    let kinds: [(bool, &str, Enforces); 4] = [
        (tenant.reservation.operations.is_some(), "reservation", Discipline::observes_promises),
        (tenant.limit.operations.is_some(), "limit", Discipline::observes_promises),
        (tenant.weight != Policy::WEIGHT, "weight", Discipline::observes_weights),
        (tenant.minimum_share.is_some(), "minimum share", Discipline::observes_minimum),
    ];
    let kinds = kinds.into_iter().filter(|(has, ..)| *has);
    kinds
        .filter_map(|(_, what, enforces)| ignored(what, enforces, tenant, (nodes, cluster)))
        .collect()
}

/// Returns warnings about classes that the schedulers of a tenant's nodes ignore: of the tenant, or
/// of a rule for its requests. Classes that no node could observe under such a policy are no
/// question of schedulers, and [`Policy::doubts`] names them.
pub fn unobserved_classes(policy: &Policy, cluster: &Cluster) -> Vec<String> {
    let policy = &policy.at(GateKind::Node);
    let mut warnings = Vec::new();
    for ((number, tenant), nodes) in
        (1..).map(TenantId).zip(&policy.tenants).zip(&reachable_nodes(policy, cluster))
    {
        let is_own = |rule: &&Match| rule.target == RuleTarget::Tenant(number);
        let of_rules = policy.matches.iter().filter(is_own).filter_map(|rule| rule.class);
        let classes: Vec<Class> = of_rules.chain([tenant.class]).collect();
        let has_turns = policy.class_weights.is_some();
        let takes_turns = has_turns && classes.iter().any(|class| *class != Class::Medium);
        let is_urgent = classes.contains(&Class::Urgent) && tenant.reservation != Levels::default();
        let kinds: [(bool, &str, Enforces); 2] = [
            (takes_turns, "class", Discipline::observes_class_weights),
            (is_urgent, "precedence of urgent requests", Discipline::observes_urgency),
        ];
        for (_, what, enforces) in kinds.into_iter().filter(|(has, ..)| *has) {
            warnings.extend(ignored(what, enforces, tenant, (nodes, cluster)));
        }
    }
    warnings
}

/// Returns a warning if the schedulers of some of these nodes ignore a setting of a tenant.
fn ignored(
    what: &str,
    enforces: Enforces,
    tenant: &Tenant,
    (nodes, cluster): (&[NodeId], &Cluster),
) -> Option<String> {
    let nodes = nodes.iter().filter_map(|id| cluster.node(*id));
    let ignoring = nodes.filter(|node| !enforces(node.scheduler));
    let ignoring: Vec<_> =
        ignoring.map(|node| format!("{} ({})", node.name, node.scheduler)).collect();
    let able = DISCIPLINES.iter().filter(|(discipline, _)| enforces(*discipline));
    let able: Vec<_> = able.map(|(_, name)| String::from(*name)).collect();
    let end = if able.len() == 1 { "s" } else { "" };
    let (name, able) = (&tenant.name, listed(&able));
    (!ignoring.is_empty()).then(|| {
        format!(
            "the {what} of {name} decides nothing at {}; {able} heed{end} it",
            listed(&ignoring)
        )
    })
}

/// One tenant's reservation, and the nodes that may serve it.
#[derive(Clone, Debug)]
struct ReservedTenant {
    promised: u64,
    nodes: Vec<usize>,
}

/// Nodes, and the tenants that reach no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cut {
    nodes: Vec<usize>,
    capacity: u128,
    tenants: Vec<usize>,
    promised: u128,
}

/// The cut with the largest shortage; of equal ones, that with the first node. None if all promises
/// fit. Tenants without nodes count for nothing.
fn worst(capacities: &[u64], demands: &[ReservedTenant]) -> Option<Cut> {
    let mut configuration = Configuration::new(capacities);
    for demand in demands {
        // No node can do as much as does not fit here, so what is cut off is never served anyway.
        let wanted = u32::try_from(demand.promised).unwrap_or(u32::MAX);
        let wanted: Vec<_> = demand.nodes.iter().map(|node| (*node as u32, wanted)).collect();
        // Tenants have 16 bits and nodes 10: far fewer shares than fit.
        assert!(configuration.push(demand.promised, &wanted).is_ok(), "the nodes are known");
    }
    let mut solver = Solver::new(configuration);
    solver.solve();
    let certificate = solver.certificate();
    let is_short = |node: &usize| certificate.servers().binary_search(&(*node as u32)).is_ok();
    let is_within = |index: &usize| {
        let ReservedTenant { promised, nodes } = &demands[*index];
        *promised > 0 && !nodes.is_empty() && nodes.iter().all(is_short)
    };
    let within: Vec<_> = (0..demands.len()).filter(is_within).collect();
    let groups = groups(capacities.len(), within.iter().map(|index| &demands[*index].nodes[..]));
    let mut cuts = vec![Cut::default(); capacities.len()];
    for node in (0..capacities.len()).filter(is_short) {
        let cut = &mut cuts[groups[node]];
        cut.nodes.push(node);
        cut.capacity += u128::from(capacities[node]);
    }
    for index in within {
        let cut = &mut cuts[groups[demands[index].nodes[0]]];
        cut.tenants.push(index);
        cut.promised += u128::from(demands[index].promised);
    }
    cuts.retain(|cut| cut.promised > cut.capacity);
    let shortage = |cut: &Cut| cut.promised - cut.capacity;
    cuts.into_iter().reduce(|best, cut| if shortage(&cut) > shortage(&best) { cut } else { best })
}

/// For each of `count` nodes the first one of its group; each of `links` connects some.
fn groups<'a>(count: usize, links: impl Iterator<Item = &'a [usize]>) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..count).collect();
    for nodes in links {
        let joined: Vec<_> = nodes.iter().map(|node| groups[*node]).collect();
        let first = joined.iter().copied().min().unwrap_or_default();
        groups.iter_mut().filter(|group| joined.contains(group)).for_each(|group| *group = first);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    const CLUSTER: &str = r#"
        node = [
            { name = "a", memory = true, capacity = "100k iops" },
            { name = "b", memory = true, capacity = "80k iops" },
            { name = "c", memory = true, capacity = "500k iops" },
            { name = "d", memory = true },
            { name = "kv", memcached = "127.0.0.1:11211", capacity = "10k iops" },
        ]
        volume = [
            { name = "db", size = "1GiB", tenant = "oltp", nodes = ["a", "b"] },
            { name = "www", size = "1GiB", tenant = "web", nodes = ["a", "b"] },
            { name = "raw", size = "1GiB", tenant = "etl", nodes = "a" },
            { name = "cold", size = "1GiB", tenant = "etl", nodes = "c" },
            { name = "any", size = "1GiB", tenant = "free", nodes = ["a", "d"] },
        ]
        pool = [{ name = "cache", tenant = "web", nodes = "kv" }]
    "#;

    fn message(policy: &str) -> String {
        let cluster = Cluster::parse(CLUSTER).unwrap();
        let policy = Policy::parse(policy).unwrap();
        shortage(&policy, &cluster).map_or_else(|shortage| shortage.to_string(), |()| "fits".into())
    }

    #[test]
    fn what_is_promised_in_bytes_is_not_at_data_nodes() {
        let memory = r#"
            [[data-node]]
            name = "m"
            listen = "unix:m.sock"
            memory = "8MiB"
            capacity = "1000 iops"
            client = "500 iops"
        "#;
        let policy = r#"tenant = [
            { name = "backup", limit = "200MiB/s" },
            { name = "scan", reservation = "1KiB/s", limit = "9 iops" },
            { name = "web", reservation = "5 iops" },
        ]"#;
        let policy = Policy::parse(policy).unwrap();
        let message = warnings(&policy, &Cluster::parse(memory).unwrap()).join("\n");
        assert!(
            message.contains("the limit of backup in bytes decides nothing at data nodes"),
            "{message}"
        );
        let rates = [Iops(51_200), Iops(1)].map(|rate| alloc::format!("; {rate} would be as much"));
        assert!(rates.iter().all(|rate| message.contains(rate)), "{message}");
        assert_eq!(message.matches("in bytes decides nothing").count(), 2, "{message}");
        let without = warnings(&policy, &Cluster::parse(CLUSTER).unwrap()).join("\n");
        assert!(!without.contains("data nodes"), "{without}");
    }

    #[test]
    fn classes_that_no_scheduler_on_the_way_observes_are_named() {
        let cluster = r#"
            node = [
                { name = "a", memory = true, scheduler = "fifo" },
                { name = "b", memory = true },
                { name = "c", memory = true, scheduler = "unified" },
            ]
            volume = [
                { name = "db", size = "1GiB", tenant = "oltp", nodes = ["a", "b", "c"] },
                { name = "raw", size = "1GiB", tenant = "etl", nodes = ["a", "c"] },
                { name = "any", size = "1GiB", tenant = "web", nodes = ["a", "b"] },
            ]
        "#;
        let cluster = Cluster::parse(cluster).unwrap();
        let classes = |weights: &str, rule: &str| {
            let policy = format!(
                r#"{weights}
                [[tenant]]
                name = "oltp"
                class = "urgent"
                reservation = "1k iops"
                [[tenant]]
                name = "web"
                {rule}"#
            );
            let policy = Policy::parse(&policy).unwrap();
            let found = unobserved_classes(&policy, &cluster);
            assert!(found.iter().all(|warning| warnings(&policy, &cluster).contains(warning)));
            found
        };
        let urgent = "the precedence of urgent requests of oltp decides nothing at a (fifo) and b \
                      (token); unified heeds it";
        assert_eq!(classes("", ""), [urgent]);
        let weights = "class_weights = { high = 3, medium = 2, low = 1 }";
        let ignored = |name: &str| {
            format!(
                "the class of {name} decides nothing at a (fifo); round-robin, token, sfq, \
                 dsfq-total, dsfq-hybrid and unified heed it"
            )
        };
        assert_eq!(classes(weights, ""), [&ignored("oltp")[..], urgent]);
        let rule = "[[match]]\ntenant = \"web\"\nvolume = \"any\"\nclass = \"low\"";
        assert_eq!(classes(weights, rule), [&ignored("oltp")[..], urgent, &ignored("web")]);
    }

    #[test]
    fn nodes_that_every_user_of_the_machine_reaches_are_named() {
        let exposed = |address: &str, tls: &str| -> Vec<String> {
            let node = |name: &str, address: &str| {
                format!("[[node]]\nname = \"{name}\"\nmemory = true\naddress = \"{address}\"\n")
            };
            let (a, b) = (node("a", address), node("b", "unix:b.sock"));
            let cluster = Cluster::parse(&format!("{a}{b}{tls}")).unwrap();
            let policy = Policy::parse("[[tenant]]\nname = \"t\"").unwrap();
            warnings(&policy, &cluster).into_iter().filter(|it| it.contains("TCP")).collect()
        };
        assert_eq!(
            exposed("127.0.0.1:7100", ""),
            ["a (127.0.0.1:7100) listens on TCP without [tls], so that every user of the machine \
              can read and write the volumes there; add [tls], or write address = \"unix:PATH\""]
        );
        assert_eq!(exposed("unix:a.sock", ""), [""; 0]);
        assert_eq!(exposed("127.0.0.1:7100", "[tls]\ndirectory = \"tls\"\n"), [""; 0]);
    }

    #[test]
    fn a_shortage_is_reported_where_it_is() {
        let tenants = |oltp: &str, web: &str, etl: &str| {
            message(&format!(
                r#"tenant = [
                    {{ name = "oltp", reservation = "{oltp} iops" }},
                    {{ name = "web", reservation = "{web} iops" }},
                    {{ name = "etl", reservation = "{etl} iops" }},
                ]"#
            ))
        };
        assert_eq!(tenants("100k", "90k", "500k"), "fits");
        assert_eq!(
            tenants("180k", "11k", "500k"),
            "nodes a, b and kv can do 190k iops; oltp and web are promised 191k iops there; lower \
             reservations there by 1k iops, or lay volumes over other nodes"
        );
        assert_eq!(
            tenants("200k", "0.001k", "1k"),
            "nodes a and b can do 180k iops; oltp is promised 200k iops there; lower reservations \
             there by 20k iops, or lay volumes over other nodes"
        );
        assert!(
            tenants("180k", "10k", "501k").starts_with("nodes a, b and c can do 680k iops; oltp")
        );
    }

    #[test]
    fn nodes_without_a_declared_capacity_can_do_anything() {
        let message = |tenant: &str| {
            message(&format!("[[tenant]]\nname = \"{tenant}\"\nreservation = \"9M iops\""))
        };
        assert_eq!(message("free"), "fits");
        assert_eq!(message("elsewhere"), "fits");
        assert!(message("oltp").starts_with("nodes a and b can do 180k iops; oltp is promised 9M"));
    }

    #[test]
    fn promises_beyond_counting_are_refused() {
        let reserved = |tenant: &str| {
            format!("[[tenant]]\nname = \"{tenant}\"\nreservation = \"18000000000G iops\"\n")
        };
        let message = message(&(reserved("oltp") + &reserved("web") + &reserved("etl")));
        let wanted =
            "nodes a, b, c and kv can do 690k iops; oltp, web and etl are promised 1844674";
        assert!(message.starts_with(wanted), "{message}");
    }

    #[test]
    fn rules_extend_the_nodes_of_a_tenant() {
        let policy = Policy::parse(
            r#"
            tenant = [{ name = "oltp" }, { name = "log" }, { name = "web" }, { name = "keys" }]
            match = [
                { tenant = "log", volume = "c*", operation = "write" },
                { tenant = "log", process = "logger" },
                { tenant = "keys", key = "k:" },
            ]
            "#,
        )
        .unwrap();
        let reachable_nodes = reachable_nodes(&policy, &Cluster::parse(CLUSTER).unwrap());
        let numbers =
            |index: usize| reachable_nodes[index].iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(numbers(0), [0, 1]);
        assert_eq!(numbers(1), [2, 4], "volume cold and pool cache");
        assert_eq!(numbers(2), [0, 1, 4]);
        assert_eq!(numbers(3), [4]);
    }

    #[test]
    fn suspicious_settings_are_reported() {
        let policy = Policy::parse(
            r#"
            tenant = [
                { name = "oltp", reservation = "1k iops" },
                { name = "etl", limit = "100MiB/s" },
                { name = "free", reservation = "1k iops" },
                { name = "ci", reservation = "5k iops", limit = "1GiB/s" },
            ]
            "#,
        )
        .unwrap();
        let golden = [
            "etl has a level in bytes; nodes count bytes on a named [[resource]] only, so add \
             one, or a level in iops",
            "ci is promised 5k iops, but no volume or pool is its own; what its programs and \
             clients do at those of others is not checked",
            "d does not say what it can do, so promises there are not checked; add capacity = \
             \"20k iops\", for example",
            "www belongs to web, which is no tenant of the policy; its requests have no tenant",
            "cache belongs to web, which is no tenant of the policy; its requests have no tenant",
        ];
        assert_eq!(warnings(&policy, &Cluster::parse(CLUSTER).unwrap()), golden);
    }

    #[test]
    fn a_measured_capacity_is_not_called_a_missing_one() {
        let policy = "tenant = [{ name = \"oltp\", reservation = \"1k iops\" }]";
        let cluster = CLUSTER.replace("\"100k iops\"", "\"measured\"");
        let warnings =
            warnings(&Policy::parse(policy).unwrap(), &Cluster::parse(&cluster).unwrap());
        let golden = "promises at a are compared with the capacity while the cluster runs, because \
                      it is measured then; `tidegate status` warns where less is found";
        assert_eq!(warnings.iter().filter(|it| it.contains(" a ")).collect::<Vec<_>>(), [golden]);
    }

    #[test]
    fn settings_that_a_scheduler_ignores_are_reported() {
        let cluster =
            CLUSTER.replace("capacity = \"100k", "scheduler = \"sfq\", capacity = \"100k");
        let cluster = cluster.replace("capacity = \"80k", "scheduler = \"fifo\", capacity = \"80k");
        let policy = Policy::parse(
            r#"
            tenant = [
                { name = "oltp", limit = "1k iops", weight = 200 },
                { name = "etl", minimum_share = "1%" },
                { name = "free", reservation = "1k iops" },
            ]
            "#,
        )
        .unwrap();
        let message = warnings(&policy, &Cluster::parse(&cluster).unwrap());
        let golden = [
            "the limit of oltp decides nothing at a (sfq) and b (fifo); token and unified heed it",
            "the weight of oltp decides nothing at b (fifo); token, sfq, dsfq-total, dsfq-hybrid \
             and unified heed it",
            "the minimum share of etl decides nothing at a (sfq) and c (token); dsfq-hybrid and \
             unified heed it",
            "the reservation of free decides nothing at a (sfq); token and unified heed it",
        ];
        assert_eq!(message[..4], golden);
    }

    fn network() -> impl Strategy<Value = (Vec<u64>, Vec<ReservedTenant>)> {
        (1usize..6).prop_flat_map(|nodes| {
            let sets = 0..1u32 << nodes;
            let demand = (0u64..60, sets).prop_map(move |(promised, set)| ReservedTenant {
                promised,
                nodes: (0..nodes).filter(|node| set >> node & 1 == 1).collect(),
            });
            (proptest::collection::vec(1u64..60, nodes), proptest::collection::vec(demand, 0..7))
        })
    }

    proptest! {
        /// Hall's condition, by trying: the promises fit if no set of nodes can do less than the
        /// promises of the tenants that reach no other node.
        #[test]
        fn admission_agrees_with_trying_every_set_of_nodes((capacities, demands) in network()) {
            let mut most = 0;
            for set in 0..1u32 << capacities.len() {
                let is_in = |node: &usize| set >> *node & 1 == 1;
                let inside = |demand: &&ReservedTenant| {
                    !demand.nodes.is_empty() && demand.nodes.iter().all(is_in)
                };
                let promised: u64 = demands.iter().filter(inside).map(|d| d.promised).sum();
                let nodes = (0..capacities.len()).filter(is_in);
                most = most.max(promised.saturating_sub(nodes.map(|n| capacities[n]).sum()));
            }
            let Some(cut) = worst(&capacities, &demands) else {
                prop_assert_eq!(most, 0);
                return Ok(());
            };
            let shortage = cut.promised - cut.capacity;
            prop_assert!(0 < shortage && shortage <= u128::from(most));
            let capacity: u64 = cut.nodes.iter().map(|node| capacities[*node]).sum();
            prop_assert_eq!(cut.capacity, u128::from(capacity));
            let promised: u64 = cut.tenants.iter().map(|index| demands[*index].promised).sum();
            prop_assert_eq!(cut.promised, u128::from(promised));
            for index in &cut.tenants {
                let nodes = &demands[*index].nodes;
                prop_assert!(!nodes.is_empty() && nodes.iter().all(|n| cut.nodes.contains(n)));
            }
        }
    }
}
