//! Whom the `users` of a policy keep out, for those who are about to apply it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::cluster::Address;
use tidegate_model::policy::Tenant;
use tidegate_model::{Cluster, Policy};

/// What a listener can prove about its clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Users of this machine.
    User,
    /// Certificates; and nothing where they are not asked for.
    Certificate {
        is_required: bool,
    },
    Nothing,
}

/// Where the cluster's listeners would refuse clients of tenants with `users`, a line each.
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
        let Some(door) = &gateway.memcached else { continue };
        let pool = &cluster.pools[door.pool];
        let what = format!("pool {} at gateway {}", pool.name, gateway.name);
        warnings.extend(refused(policy, &pool.tenant, Some(proof(&door.address)), &what));
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

const fn proof(address: &Address) -> Proof {
    match address {
        Address::Unix(_) => Proof::User,
        Address::Tcp { .. } => Proof::Nothing,
    }
}

/// Who of a tenant's clients is refused by a listener that proves so much.
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
    fn users_that_a_listener_cannot_prove_are_told() {
        let cluster = |head: &str, gateway: &str| {
            let text = format!(
                "{head}\n[[node]]\nname = \"a\"\nmemory = true\n[[volume]]\nname = \"db\"\n\
                 size = \"1MiB\"\ntenant = \"oltp\"\ntenants = \"other\"\nnodes = \"a\"\n\
                 [[gateway]]\nname = \"g\"\n{gateway}"
            );
            Cluster::parse(&text).unwrap()
        };
        let told = |users: &str, cluster: &Cluster| {
            let text =
                format!("tenant = [{{name = \"oltp\", users = {users}}}, {{name = \"other\"}}]");
            warnings(&Policy::parse(&text).unwrap(), cluster)
        };
        let clear = cluster("", "nbd = \"127.0.0.1:10809\"");
        let said = told(r#"["ann", "cert:app"]"#, &clear);
        assert!(said.len() == 1 && said[0].contains("TCP in the clear"), "{said:?}");
        assert!(said[0].starts_with("volume db at gateway g: clients of tenant oltp"), "{said:?}");
        assert!(told("[]", &clear).is_empty());
        let unix = cluster("", "nbd = \"unix:g.sock\"");
        assert!(told(r#""ann""#, &unix).is_empty());
        assert!(told(r#""cert:app""#, &unix)[0].contains("a Unix socket tells users"));
        let tls = "[tls]\ndirectory = \"tls\"";
        let offered = cluster(tls, "nbd = \"127.0.0.1:10809\"");
        assert!(told(r#""ann""#, &offered)[0].contains("write cert:NAME"));
        assert!(told(r#""cert:app""#, &offered)[0].contains("unless they go on encrypted"));
        let required = cluster(tls, "nbd = \"127.0.0.1:10809\"\ntls = \"required\"");
        assert!(told(r#""cert:app""#, &required).is_empty());
        let policy = Policy::parse("tenant = [{name = \"oltp\"}]").unwrap();
        let said = warnings(&policy, &required);
        assert_eq!(said.len(), 1);
        assert!(said[0].to_string().contains("may be opened for other, which is no tenant"));
    }
}
