//! Warnings before a policy is applied: clients that it keeps out of a cluster, and clients that it
//! lets in where the cluster's file does not name them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::cluster::{Address, Volume};
use tidegate_model::policy::Tenant;
use tidegate_model::text::listed;
use tidegate_model::{Cluster, Policy};

/// The kind of identity that a listener can prove of its clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Users of this machine.
    User,
    /// Certificates; and nothing where they are not requested.
    Certificate {
        is_required: bool,
    },
    Nothing,
}

/// Where the cluster's listeners would refuse clients of tenants with `users`, and which volumes
/// more tenants can open than the cluster's file names, a line each.
pub fn warnings(policy: &Policy, cluster: &Cluster) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in &cluster.volumes {
        let unknown = volume.tenants.iter().find(|name| policy.tenant_named(name).is_none());
        if let Some(name) = unknown {
            warnings.push(format!(
                "volume {} may be opened for {name}, which is no tenant of the policy; it will be \
                 refused",
                volume.name
            ));
        }
        warnings.extend(unlisted(policy, cluster, volume));
        for tenant in [&volume.tenant].into_iter().chain(&volume.tenants) {
            let gateways = cluster.gateways.iter();
            for gateway in gateways.filter(|gateway| gateway.nbd.is_some()) {
                let proof = gateway.nbd.as_ref().map(|address| match address {
                    Address::Unix(_) => Proof::User,
                    Address::Tcp { .. } if cluster.tls.is_some() => {
                        Proof::Certificate { is_required: gateway.is_tls_required }
                    }
                    Address::Tcp { .. } => Proof::Nothing,
                });
                let what = format!("volume {} at gateway {}", volume.name, gateway.name);
                warnings.extend(refused(policy, tenant, proof, &what));
            }
        }
    }
    for gateway in &cluster.gateways {
        let Some(listener) = &gateway.memcached else { continue };
        let pool = &cluster.pools[listener.pool];
        let what = format!("pool {} at gateway {}", pool.name, gateway.name);
        warnings.extend(refused(policy, &pool.tenant, Some(proof(&listener.address)), &what));
    }
    for node in &cluster.data_nodes {
        let certificate = Proof::Certificate { is_required: true };
        let is_tcp = matches!(node.listen, Address::Tcp { .. });
        let proof = if is_tcp { certificate } else { Proof::User };
        for tenant in &policy.tenants {
            let what = format!("data node {}", node.name);
            warnings.extend(refused(policy, &tenant.name, Some(proof), &what));
        }
    }
    warnings
}

/// A warning of nodes that listen on TCP without TLS: on loopback, for other addresses are refused
/// then. A node takes any process there for a gateway.
pub fn exposed_nodes(cluster: &Cluster) -> Option<String> {
    let is_tcp = |address: &&Address| matches!(address, Address::Tcp { .. });
    let exposed = cluster.nodes.iter().filter_map(|node| {
        let address = node.address.as_ref().filter(is_tcp)?;
        Some(format!("{} ({address})", node.name))
    });
    let exposed: Vec<String> = exposed.filter(|_| cluster.tls.is_none()).collect();
    let listen = if exposed.len() == 1 { "listens" } else { "listen" };
    (!exposed.is_empty()).then(|| {
        format!(
            "{} {listen} on TCP without [tls], so that every user of the machine can read and \
             write the volumes there; add [tls], or write address = \"unix:PATH\"",
            listed(&exposed)
        )
    })
}

/// A warning where clients of other tenants than the volume's own can open it as `volume@tenant`,
/// because the file lists none and the policy lists the users that may act for them.
fn unlisted(policy: &Policy, cluster: &Cluster, volume: &Volume) -> Option<String> {
    let is_offered = cluster.gateways.iter().any(|gateway| gateway.nbd.is_some());
    if !volume.tenants.is_empty() || !is_offered {
        return None;
    }
    let has_users = |tenant: &&Tenant| !tenant.users.is_empty() && tenant.name != volume.tenant;
    let others = policy.tenants.iter().filter(has_users).map(|tenant| tenant.name.as_str());
    let others = others.collect::<Vec<_>>();
    let (first, rest) = others.split_first()?;
    let named = others.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = match rest.len().saturating_sub(NAMED_MAX - 1) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "volume {name} lists no `tenants`, so users of {named}{more} may open it too, as \
         {name}@{first}; list the tenants that may open it in its `tenants`, {own:?} alone if no \
         other",
        name = volume.name,
        own = volume.tenant,
    ))
}

/// How many tenants a warning names.
const NAMED_MAX: usize = 3;

const fn proof(address: &Address) -> Proof {
    match address {
        Address::Unix(_) => Proof::User,
        Address::Tcp { .. } => Proof::Nothing,
    }
}

/// Returns a warning if a listener with this proof of identity refuses clients of the tenant.
fn refused(policy: &Policy, name: &str, proof: Option<Proof>, what: &str) -> Option<String> {
    let (_, tenant) = policy.tenant_named(name)?;
    if tenant.users.is_empty() {
        return None;
    }
    let reason = reason(tenant, proof?)?;
    Some(format!("{what}: clients of tenant {name} are refused, {reason}"))
}

fn reason(tenant: &Tenant, proof: Proof) -> Option<&'static str> {
    match proof {
        Proof::User if tenant.admits_users() => None,
        Proof::User => Some(
            "because its `users` are certificates, and a Unix socket tells users; add a user's \
             name",
        ),
        Proof::Certificate { is_required: true } if tenant.admits_certificates() => None,
        Proof::Certificate { .. } if tenant.admits_certificates() => {
            Some("unless they go on encrypted and show a certificate; set tls = \"required\"")
        }
        Proof::Certificate { .. } => Some(
            "because its `users` are Unix users, and TLS tells certificates; write cert:NAME for \
             the holder of one",
        ),
        Proof::Nothing => Some(
            "because it has `users`, and TCP in the clear tells neither users nor certificates; \
             listen on a Unix socket",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn users_that_a_listener_cannot_prove_are_reported() {
        let cluster = |head: &str, gateway: &str| {
            let text = format!(
                "{head}\n[[node]]\nname = \"a\"\nmemory = true\n[[volume]]\nname = \"db\"\n\
                 size = \"1MiB\"\ntenant = \"oltp\"\ntenants = \"other\"\nnodes = \"a\"\n\
                 [[gateway]]\nname = \"g\"\n{gateway}"
            );
            Cluster::parse(&text).unwrap()
        };
        let warnings_for = |users: &str, cluster: &Cluster| {
            let text =
                format!("tenant = [{{name = \"oltp\", users = {users}}}, {{name = \"other\"}}]");
            warnings(&Policy::parse(&text).unwrap(), cluster)
        };
        let clear = cluster("", "nbd = \"127.0.0.1:10809\"");
        let found = warnings_for(r#"["ann", "cert:app"]"#, &clear);
        assert!(found.len() == 1 && found[0].contains("TCP in the clear"), "{found:?}");
        assert!(
            found[0].starts_with("volume db at gateway g: clients of tenant oltp"),
            "{found:?}"
        );
        let open = Policy::parse(r#"tenant = [{name = "oltp"}, {name = "other"}]"#).unwrap();
        assert!(warnings(&open, &clear).is_empty());
        let unix = cluster("", "nbd = \"unix:g.sock\"");
        assert!(warnings_for(r#""ann""#, &unix).is_empty());
        assert!(warnings_for(r#""cert:app""#, &unix)[0].contains("a Unix socket tells users"));
        let tls = "[tls]\ndirectory = \"tls\"";
        let offered = cluster(tls, "nbd = \"127.0.0.1:10809\"");
        assert!(warnings_for(r#""ann""#, &offered)[0].contains("write cert:NAME"));
        assert!(warnings_for(r#""cert:app""#, &offered)[0].contains("unless they go on encrypted"));
        let required = cluster(tls, "nbd = \"127.0.0.1:10809\"\ntls = \"required\"");
        assert!(warnings_for(r#""cert:app""#, &required).is_empty());
        let policy = Policy::parse("tenant = [{name = \"oltp\"}]").unwrap();
        let found = warnings(&policy, &required);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("may be opened for other, which is no tenant"));
    }

    #[test]
    fn a_volume_that_users_of_other_tenants_can_open_is_reported() {
        let cluster = |tenants: &str, gateway: &str| {
            let text = format!(
                "[[node]]\nname = \"a\"\nmemory = true\n[[volume]]\nname = \"va\"\n\
                 size = \"1MiB\"\ntenant = \"own\"\n{tenants}nodes = \"a\"\n\
                 [[gateway]]\nname = \"g\"\n{gateway}"
            );
            Cluster::parse(&text).unwrap()
        };
        let warnings_for = |policy: &str, cluster: &Cluster| {
            warnings(&Policy::parse(&format!("tenant = [{policy}]")).unwrap(), cluster)
        };
        let nbd = "nbd = \"unix:g.sock\"";
        let open = cluster("", nbd);
        let own = r#"{name = "own", users = "ann"}"#;
        let nob = r#"{name = "nob", users = "nobody"}"#;
        assert!(warnings_for(own, &open).is_empty(), "its own users alone");
        assert!(
            warnings_for(&format!(r#"{own}, {{name = "free"}}"#), &open).is_empty(),
            "nobody named"
        );
        let found = warnings_for(&format!("{own}, {nob}"), &open);
        let words = "volume va lists no `tenants`, so users of nob may open it too, as va@nob; \
                     list the tenants that may open it in its `tenants`, \"own\" alone if no other";
        assert_eq!(found, [words]);
        let listed = cluster("tenants = \"own\"\n", nbd);
        assert!(
            warnings_for(&format!("{own}, {nob}"), &listed).is_empty(),
            "the file says who may"
        );
        let more = (0..5).map(|i| format!(r#"{{name = "t{i}", users = "ann"}}"#));
        let found = warnings_for(&more.collect::<Vec<_>>().join(", "), &open);
        assert!(found[0].contains("users of t0, t1, t2 and 2 more may open it"), "{found:?}");
    }
}
