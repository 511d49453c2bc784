//! All warnings about a policy: what `check` shows before a policy is applied, and `apply` when it
//! is.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tidegate_model::cluster::{Address, Volume};
use tidegate_model::gate::Unit;
use tidegate_model::policy::{GateKind, Tenant};
use tidegate_model::text::listed;
use tidegate_model::{Cluster, NodeId, Policy};

use super::unkept;
use crate::classify::access;
use crate::classify::channel::glob;

/// Returns all warnings about settings of a policy that are valid and hardly meant: in itself, and
/// in the cluster that is to keep it, if there is one.
pub fn all_warnings(policy: &Policy, cluster: Option<&Cluster>) -> Vec<String> {
    let mut warnings = unbudgeted(policy, cluster.is_some());
    if policy.tenants.is_empty() {
        warnings.push("the policy has no tenant and promises nothing".into());
    }
    if let Some(cluster) = cluster {
        warnings.extend(super::warnings(policy, cluster));
        warnings.extend(access::warnings(policy, cluster));
        warnings.extend(unmatched_volumes(policy, cluster));
        warnings.extend(unkept(policy, cluster).iter().map(ToString::to_string));
    }
    warnings
}

/// Warnings about reservations at stages in a unit that nothing is known to have: then no tenant is
/// held back to keep them.
fn unbudgeted(policy: &Policy, has_cluster: bool) -> Vec<String> {
    let stages = &policy.at(GateKind::Stage);
    let files = stages.resource_at(GateKind::Stage).map(|resource| &resource.name);
    let mut warnings = Vec::new();
    for (unit, example) in [(Unit::Bytes, "1000MiB/s"), (Unit::Operations, "50k iops")] {
        let name = unit.name();
        let reserves = |tenant: &&Tenant| tenant.reservation.get(unit).is_some();
        let tenants = stages.tenants.iter().filter(reserves).map(|tenant| tenant.name.clone());
        let tenants: Vec<String> = tenants.collect();
        // In a cluster, what nodes can do is the budget for operations.
        let is_of_nodes = unit == Unit::Operations && has_cluster && files.is_none();
        if tenants.is_empty() || stages.budget.get(unit).is_some() || is_of_nodes {
            continue;
        }
        let (has, tenants) = (if tenants.len() == 1 { "has" } else { "have" }, listed(&tenants));
        warnings.push(match files {
            None => format!(
                "{tenants} {has} a reservation in {name}, and the policy no budget in {name}, so \
                 that no other program is held back to keep it; add budget = \"{example}\", for \
                 example"
            ),
            Some(files) => format!(
                "{tenants} {has} a reservation in {name} on {files}, which states no capacity in \
                 {name}, so that no other program is held back to keep it; add capacity = \
                 \"{example}\", for example"
            ),
        });
    }
    warnings
}

/// Warnings about volumes that rules name and the cluster lacks. Patterns are for pools, too.
fn unmatched_volumes(policy: &Policy, cluster: &Cluster) -> Vec<String> {
    let volumes = cluster.volumes.iter().map(|volume| &volume.name);
    let names: Vec<String> =
        volumes.chain(cluster.pools.iter().map(|pool| &pool.name)).cloned().collect();
    let patterns = policy.matches.iter().flat_map(|rule| &rule.storage.volume);
    let is_unmatched =
        |pattern: &&String| !names.iter().any(|name| glob(pattern.as_bytes(), name.as_bytes()));
    let mut unmatched: Vec<&String> = patterns.filter(is_unmatched).collect();
    unmatched.sort_unstable();
    unmatched.dedup();
    let all = if names.is_empty() { "none".into() } else { listed(&names) };
    let warning = |pattern: &String| {
        format!(
            "a rule is for volume = {pattern:?}, and no volume or pool of the cluster has such a \
             name (it has {all}); it matches nothing"
        )
    };
    unmatched.into_iter().map(warning).collect()
}

/// A warning about levels of a tenant in bytes, which nodes do not count.
pub(super) fn in_bytes(tenant: &Tenant, nodes: &[NodeId], cluster: &Cluster) -> Option<String> {
    let mut levels = [tenant.reservation, tenant.limit].into_iter();
    levels.find(|level| level.bandwidth.is_some())?;
    let of_visits = ", which nodes do not keep for its programs and clients at gateways";
    let extent = match nodes.is_empty() {
        true => Some(of_visits).filter(|_| may_visit(tenant, cluster))?,
        false => "",
    };
    Some(format!(
        "{} has a level in bytes{extent}; nodes count bytes on a named [[resource]] only, so add \
         one, or a level in iops",
        tenant.name
    ))
}

/// Whether requests of this tenant may come to nodes though no volume or pool is its own: clients
/// may open a volume for it, or its programs open the Unix socket of a gateway.
fn may_visit(tenant: &Tenant, cluster: &Cluster) -> bool {
    let is_unix = |address: Option<&Address>| matches!(address, Some(Address::Unix(_)));
    let mut gateways = cluster.gateways.iter();
    let serves_programs = gateways.any(|gateway| is_unix(gateway.nbd.as_ref()));
    let is_offered = |volume: &Volume| match volume.tenants.is_empty() {
        true => serves_programs || !tenant.users.is_empty(),
        false => volume.tenants.contains(&tenant.name),
    };
    let has_nbd = cluster.gateways.iter().any(|gateway| gateway.nbd.is_some());
    let keys = cluster.gateways.iter().filter_map(|gateway| gateway.memcached.as_ref());
    (has_nbd && cluster.volumes.iter().any(is_offered))
        || keys.map(|keys| &keys.address).any(|address| is_unix(Some(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(gateway: &str, tenants: &str) -> Cluster {
        let text = format!(
            "[[node]]\nname = \"a\"\nmemory = true\ncapacity = \"2k iops\"\n\
             [[volume]]\nname = \"data\"\nsize = \"1MiB\"\ntenant = \"db\"\nnodes = \"a\"\n\
             {tenants}\n[[gateway]]\nname = \"g\"\nnbd = \"{gateway}\""
        );
        Cluster::parse(&text).unwrap()
    }

    fn warned(policy: &str, cluster: &Cluster) -> Vec<String> {
        all_warnings(&Policy::parse(policy).unwrap(), Some(cluster))
    }

    /// Nodes count no bytes without a resource, and programs come to them from a Unix socket.
    #[test]
    fn levels_in_bytes_of_tenants_without_a_volume_are_reported() {
        let policy = "tenant = [{ name = \"db\" }, { name = \"backup\", limit = \"5MiB/s\" }]";
        let unix = cluster("unix:g.sock", "");
        let expected = "backup has a level in bytes, which nodes do not keep for its programs and \
                        clients at gateways; nodes count bytes on a named [[resource]] only, so \
                        add one, or a level in iops";
        assert_eq!(warned(policy, &unix), [expected]);
        assert_eq!(warned(policy, &cluster("unix:g.sock", "tenants = [\"db\"]")), [""; 0]);
        let listed = cluster("127.0.0.1:10809", "tenants = [\"backup\"]");
        assert_eq!(warned(policy, &listed), [expected]);
        assert_eq!(
            warned(policy, &cluster("127.0.0.1:10809", "")),
            [""; 0],
            "no client proves its name"
        );
        let named = "tenant = [{ name = \"db\" }, { name = \"backup\", on.nodes.limit = \
                     \"5MiB/s\" }]\n[[resource]]\nname = \"nodes\"\n";
        assert_eq!(warned(named, &unix), [""; 0]);
    }

    #[test]
    fn reservations_without_a_budget_are_reported() {
        let of = |policy: &str| all_warnings(&Policy::parse(policy).unwrap(), None);
        let tenants = "tenant = [{ name = \"db\", reservation = [\"1k iops\", \"20MiB/s\"] },\
                       { name = \"web\", reservation = \"10MiB/s\" }]\n";
        assert_eq!(
            of(tenants),
            [
                "db and web have a reservation in bytes, and the policy no budget in bytes, so \
                 that no other program is held back to keep it; add budget = \"1000MiB/s\", for \
                 example",
                "db has a reservation in operations, and the policy no budget in operations, so \
                 that no other program is held back to keep it; add budget = \"50k iops\", for \
                 example",
            ]
        );
        assert_eq!(of(&format!("budget = [\"1GiB/s\", \"9k iops\"]\n{tenants}")), [""; 0]);
        assert_eq!(of(""), ["the policy has no tenant and promises nothing"]);
    }

    #[test]
    fn rules_for_volumes_that_the_cluster_lacks_are_reported() {
        let policy = "tenant = [{ name = \"db\" }]\n[[match]]\ntenant = \"db\"\n\
                      volume = [\"d*\", \"nope\"]\n";
        let expected = "a rule is for volume = \"nope\", and no volume or pool of the cluster has \
                        such a name (it has data); it matches nothing";
        assert_eq!(warned(policy, &cluster("127.0.0.1:10809", "")), [expected]);
    }
}
