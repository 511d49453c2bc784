//! Access control of a gateway: the tenants that a client may act for.
//!
//! # Problem
//! A gateway serves volumes and pools to every client that reaches its listener. A client that
//! opens the export `db@oltp` acts for the tenant `oltp` and uses up its reservation. Two files
//! have to allow that: the cluster file lists the tenants for which a volume may be opened, and the
//! policy lists the clients that may act for a tenant.
//!
//! # Mechanism
//! [`may_open`] decides when an export is opened, [`may_use`] for each tenant that requests of a
//! session may be attributed to, again with each new policy. Both call [`Tenant::admits`], as every
//! gate does, and these rules, of which each holds for itself:
//!
//! - A certificate is a client's: it bears a name, and not that of a member of the cluster.
//! - Before the gateway has received the policy, it admits only root and its own user, over a Unix
//!   socket: the policy lists the other clients that have access.
//! - The volume's own tenant may always be chosen; another one (`volume@tenant`) only if the file
//!   lists it among the volume's `tenants`, or if it lists none and the tenant's `users` list the
//!   clients that may choose it. A tenant that is chosen has to be one of the policy, if one is in
//!   force.
//! - A client that is a program under the policy ([`may_count`]) opens the volume as any client
//!   does. Its requests count for the program's tenant, if the client may act for that and the
//!   volume's `tenants`, if there are some, list it; else they count as those of any client. So a
//!   program never opens more by its tenant, and uses up the promises of those only for whom it may
//!   act.
//! - A tenant with `users` is for those, root and the gateway's own user included.
//! - A tenant without `users` is for clients over TCP or TLS, root and the gateway's own user;
//!   other users of the machine have to be named.

mod warnings;

use alloc::string::{String, ToString};
use core::fmt;

use tidegate_model::Policy;
use tidegate_model::cluster::Volume;
use tidegate_model::policy::{Principal, Tenant};

pub use warnings::{exposed_nodes, warnings};

/// A client of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessClient<'a> {
    /// The client's identity.
    pub principal: Principal<'a>,
    /// Whether the client is root or the gateway's own user, over a Unix socket.
    pub is_operator: bool,
}

/// The gateway's present knowledge of the access rules.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The policy; none if no policy is in force, or if the gateway has not received one.
    pub policy: Option<&'a Policy>,
    /// Whether the gateway has received the policy in force, or the message that there is none.
    pub is_known: bool,
    /// The names of the cluster's members, which their certificates bear.
    pub parties: &'a [String],
}

/// Why a client may not do what it requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its certificate bears no name.
    #[error("the client's certificate bears no name; make one with `tidegate certify --user`")]
    Nameless,
    /// Its certificate is that of a member of the cluster.
    #[error(
        "the certificate of {0} is for a party of the cluster and not for clients; use one that \
         `tidegate certify --user` has made"
    )]
    ClusterMember(String),
    /// The gateway has not received the policy.
    #[error(
        "the gateway has not heard yet which policy holds; try again once its controller is \
         reachable"
    )]
    PolicyUnknown,
    /// The policy has no such tenant.
    #[error("the policy has no tenant {:?}", shortened(.0))]
    NoTenant(String),
    /// The file does not let the volume be opened for this tenant.
    #[error(
        "volume {volume} may not be opened for tenant {:?}; list it in the volume's `tenants`, or \
         say with its `users` who may",
        shortened(.tenant)
    )]
    NotOffered {
        /// The volume.
        volume: String,
        /// The tenant.
        tenant: String,
    },
    /// The policy does not let this client act for this tenant.
    #[error("{client} may not act for tenant {tenant:?}")]
    NotAdmitted {
        /// The client's identity, as text.
        client: String,
        /// The tenant.
        tenant: String,
    },
}

/// The beginning of a name that comes from elsewhere.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Whether `client` may open `volume`, for the tenant that it has chosen, if it has chosen one.
///
/// # Errors
/// Why not.
pub fn may_open(
    knowledge: Knowledge<'_>,
    client: AccessClient<'_>,
    volume: &Volume,
    chosen: Option<&str>,
) -> Result<(), Denied> {
    may_enter(knowledge, client)?;
    let name = chosen.unwrap_or(&volume.tenant);
    let tenant = knowledge.policy.and_then(|policy| policy.tenant_named(name));
    let tenant = tenant.map(|(_, tenant)| tenant);
    if name != volume.tenant {
        let is_listed = volume.tenants.iter().any(|listed| listed == name);
        let has_users = tenant.is_some_and(|tenant| !tenant.users.is_empty());
        if knowledge.policy.is_some() && tenant.is_none() {
            return Err(Denied::NoTenant(name.into()));
        }
        let is_offered = is_listed || (volume.tenants.is_empty() && has_users);
        if !is_offered {
            return Err(Denied::NotOffered { volume: volume.name.clone(), tenant: name.into() });
        }
    }
    may_use(client, tenant, name)
}

/// Whether `client` may be served at all.
///
/// # Errors
/// Why not.
pub fn may_enter(knowledge: Knowledge<'_>, client: AccessClient<'_>) -> Result<(), Denied> {
    if let Principal::Certificate(names) = client.principal {
        let is_member =
            |name: &&String| knowledge.parties.iter().any(|it| it.eq_ignore_ascii_case(name));
        if let Some(member) = names.iter().find(is_member) {
            return Err(Denied::ClusterMember(member.clone()));
        }
        if names.is_empty() {
            return Err(Denied::Nameless);
        }
    }
    match knowledge.is_known || client.is_operator {
        true => Ok(()),
        false => Err(Denied::PolicyUnknown),
    }
}

/// Whether `client` may act for the tenant of this name; `tenant` is the policy's entry for it,
/// if there is one.
///
/// # Errors
/// Why not.
pub fn may_use(
    client: AccessClient<'_>,
    tenant: Option<&Tenant>,
    name: &str,
) -> Result<(), Denied> {
    let has_users = tenant.is_some_and(|tenant| !tenant.users.is_empty());
    let may = match client.principal {
        _ if has_users => tenant.is_none_or(|tenant| tenant.admits(client.principal)),
        Principal::User { .. } => client.is_operator,
        Principal::Certificate(_) | Principal::Anonymous => true,
    };
    match may {
        true => Ok(()),
        false => Err(Denied::NotAdmitted { client: client.to_string(), tenant: name.into() }),
    }
}

/// Whether requests of `client`, which is a program of the policy's `tenant`, count for that tenant
/// in place of that of the volume or pool. `listed` are the tenants for which the cluster file lets
/// the volume be opened besides its own; empty if it lists none. The client is served either way.
///
/// # Errors
/// Why they do not.
pub fn may_count(
    knowledge: Knowledge<'_>,
    client: AccessClient<'_>,
    (volume, listed): (&str, &[String]),
    tenant: &str,
) -> Result<(), Denied> {
    let promised = knowledge.policy.and_then(|policy| policy.tenant_named(tenant));
    let Some((_, promised)) = promised else { return Err(Denied::NoTenant(tenant.into())) };
    if !listed.is_empty() && !listed.iter().any(|name| name == tenant) {
        return Err(Denied::NotOffered { volume: volume.into(), tenant: tenant.into() });
    }
    may_use(client, Some(promised), tenant)
}

impl fmt::Display for AccessClient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.principal {
            Principal::User { uid, name: "" } => write!(f, "user {uid}"),
            Principal::User { uid, name } => write!(f, "user {name} ({uid})"),
            Principal::Certificate(names) => {
                let first = names.first().map_or("", String::as_str);
                write!(f, "certificate {:?}", shortened(first))
            }
            Principal::Anonymous => f.write_str("a client over TCP in the clear"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;
    use tidegate_model::{Bytes, NodeId};

    fn volume(tenants: &[&str]) -> Volume {
        Volume {
            name: "db".into(),
            size: Bytes(1 << 20),
            tenant: "own".into(),
            tenants: tenants.iter().map(|name| (*name).into()).collect(),
            nodes: vec![NodeId(0)],
            stripe: Volume::STRIPE,
            read_only: false,
            offsets: Vec::new(),
        }
    }

    const TCP: AccessClient<'_> =
        AccessClient { principal: Principal::Anonymous, is_operator: false };

    fn user(uid: u32, name: &str) -> AccessClient<'_> {
        AccessClient { principal: Principal::User { uid, name }, is_operator: uid == 0 }
    }

    fn certificate(names: &[String]) -> AccessClient<'_> {
        AccessClient { principal: Principal::Certificate(names), is_operator: false }
    }

    fn policy() -> Policy {
        let text = r#"
            [[tenant]]
            name = "own"
            [[tenant]]
            name = "oltp"
            users = ["alice", "cert:app"]
            [[tenant]]
            name = "open"
        "#;
        Policy::parse(text).unwrap()
    }

    /// Opens `db` for a tenant, or its own.
    fn opens(client: AccessClient<'_>, tenants: &[&str], chosen: &str) -> Result<(), Denied> {
        let (policy, parties) = (policy(), ["node-a".into()]);
        let knowledge = Knowledge { policy: Some(&policy), is_known: true, parties: &parties };
        may_open(knowledge, client, &volume(tenants), Some(chosen).filter(|it| !it.is_empty()))
    }

    #[test]
    fn users_hold_at_a_gateway() {
        let (app, bob) = (["App".into()], ["bob".into()]);
        assert_eq!(opens(certificate(&app), &[], "oltp"), Ok(()));
        assert_eq!(opens(user(1000, "alice"), &[], "oltp"), Ok(()));
        for (client, who) in [
            (certificate(&bob), "certificate \"bob\""),
            (TCP, "a client over TCP in the clear"),
            (user(0, "root"), "user root (0)"),
            (user(1001, ""), "user 1001"),
        ] {
            let denied = opens(client, &[], "oltp").unwrap_err().to_string();
            assert_eq!(denied, format!("{who} may not act for tenant \"oltp\""));
        }
    }

    #[test]
    fn a_tenant_is_chosen_where_the_file_or_its_users_allow_it() {
        assert_eq!(opens(TCP, &[], ""), Ok(()));
        assert_eq!(opens(TCP, &[], "own"), Ok(()));
        assert!(matches!(opens(TCP, &[], "open"), Err(Denied::NotOffered { .. })));
        assert_eq!(opens(TCP, &["open"], "open"), Ok(()));
        // Where the file lists some, a client cannot choose other tenants, even if it may act for
        // them.
        let alice = user(1000, "alice");
        assert!(matches!(opens(alice, &["open"], "oltp"), Err(Denied::NotOffered { .. })));
        assert_eq!(opens(alice, &["open", "oltp"], "oltp"), Ok(()));
        let denied = opens(TCP, &["nosuch"], "nosuch").unwrap_err();
        assert_eq!(denied.to_string(), "the policy has no tenant \"nosuch\"");
    }

    #[test]
    fn parties_and_nameless_certificates_are_no_clients() {
        let names = ["localhost".into(), "Node-A".into()];
        assert_eq!(
            opens(certificate(&names), &[], ""),
            Err(Denied::ClusterMember("Node-A".into()))
        );
        assert_eq!(opens(certificate(&[]), &[], ""), Err(Denied::Nameless));
        assert_eq!(opens(certificate(&["client".into()]), &[], ""), Ok(()));
    }

    #[test]
    fn other_users_of_the_machine_have_to_be_named() {
        assert_eq!(opens(user(0, "root"), &[], ""), Ok(()));
        assert!(matches!(opens(user(1000, "alice"), &[], ""), Err(Denied::NotAdmitted { .. })));
    }

    #[test]
    fn a_program_has_its_tenant_where_it_may_act_for_it_and_the_volume_is_offered() {
        let policy = policy();
        let counts = |policy, client, listed: &[&str], tenant| {
            let knowledge = Knowledge { policy, is_known: true, parties: &[] };
            let listed: Vec<String> = listed.iter().map(|name| (*name).into()).collect();
            may_count(knowledge, client, ("db", &listed), tenant).is_ok()
        };
        let (root, alice, bob) = (user(0, "root"), user(1000, "alice"), user(1001, "bob"));
        for (client, listed, tenant, wanted) in [
            (root, &[][..], "open", true),
            (root, &["open"], "open", true),
            (root, &["oltp"], "open", false),
            (root, &[], "oltp", false),
            (alice, &[], "oltp", true),
            (alice, &["open"], "oltp", false),
            (alice, &[], "open", false),
            (bob, &[], "oltp", false),
            (root, &[], "no such", false),
            (root, &["no such"], "no such", false),
        ] {
            let found = counts(Some(&policy), client, listed, tenant);
            assert_eq!(found, wanted, "{client} {listed:?} {tenant}");
        }
        assert!(!counts(None, root, &[], "open"));
    }

    #[test]
    fn before_the_policy_is_known_only_operators_are_served() {
        let knowledge = Knowledge { policy: None, is_known: false, parties: &[] };
        let opens = |client, chosen| may_open(knowledge, client, &volume(&["open"]), chosen);
        assert_eq!(opens(TCP, None), Err(Denied::PolicyUnknown));
        let names = ["a".into()];
        assert_eq!(opens(certificate(&names), None), Err(Denied::PolicyUnknown));
        assert_eq!(opens(user(0, ""), None), Ok(()));
        assert_eq!(opens(user(0, ""), Some("open")), Ok(()));
        assert!(matches!(opens(user(0, ""), Some("x")), Err(Denied::NotOffered { .. })));
    }
}
