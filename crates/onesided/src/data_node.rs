//! Session setup between a data node and a client: identity, tenant and promise, before the client
//! accesses memory one-sided.
//!
//! # Mechanism
//! A client sends [`Hello`] where the data node listens, and receives [`ToClient`]: either it has a
//! session slot, and the descriptor of the memory comes with that message; or it has none, and the
//! reason. Where RNICs reach the memory no descriptor comes, and the client requests the route
//! there ([`rnic`]). After that the connection is a lifeline only. When it ends, so does the
//! session slot; when the data node moves to other memory, the client receives [`ToClient::Moving`]
//! and comes again.
//!
//! A client names its tenant, if the policy lets its user act for that tenant. Otherwise the
//! policy's first matching rule names the tenant, of the rules with only conditions on facts that
//! the kernel reports of a process: user, executable and control group. A client on another machine
//! has a certificate that names its user, and the rest is unknown.
//!
//! A tenant's promise holds for all data nodes together. The controller sets the part of it that is
//! kept here, its *share* ([`tidegate_proto::data_node`]), and changes that as clients want more
//! here or there. The share is divided over the tenant's clients of this node ([`registry`]).
//! [`ShareAgent`] does all of that, between the controller and the node's monitor.

pub mod registry;
pub mod rnic;
mod share_agent;

use alloc::format;
use alloc::string::String;

use serde::{Deserialize, Serialize};
use tidegate_algo::classify::channel::glob;
use tidegate_algo::onesided::Rules;
use tidegate_model::cluster::MemoryTransport;
use tidegate_model::policy::{Match, Principal, RuleTarget, Tenant};
use tidegate_model::{Conditions, Iops, Policy, SessionSlot, Span, TenantId};

pub use registry::SessionRegistry;
pub use share_agent::ShareAgent;
use tidegate_proto::controller::Peer;

/// The version of these messages and of the words in a region. Both sides send theirs first and
/// disconnect if they differ.
pub const VERSION: u16 = 1;

/// The first message of a connection, from a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version it speaks.
    pub version: u16,
    /// The tenant it acts for; empty to go by the policy's rules.
    pub tenant: String,
    /// The reservation that it requests, out of its tenant's; none for its part of that.
    pub reservation: Option<Iops>,
    /// The most that it wants to do; none for its part of its tenant's limit.
    pub limit: Option<Iops>,
    /// The number of equal parts of its tenant's promise of which it requests one, where it names
    /// no amount: 1 for all that is left.
    pub parts: u32,
    /// The session slot that it had, if the data node is gone that gave it the memory. The
    /// descriptor of that comes with this message, so that another node can go on with it.
    pub session_slot: Option<SessionSlot>,
    /// Whether it wants the memory without a session slot, tokens and limits: to measure their
    /// cost.
    pub is_bare: bool,
}

/// From a data node to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// Here is the memory: its descriptor comes with this message, unless RNICs reach it.
    Welcome(Welcome),
    /// There is none for this client; the connection ends.
    Refused {
        /// The version that the data node speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// The node goes on with other memory: nothing that is begun from now on will be there. Close
    /// the connection, and come again.
    Moving,
    /// The way to the memory, for the RNIC that has requested it.
    Rnic(rnic::Answer),
}

/// Facts that a client needs about the memory that it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The tenant that it acts for; empty for none.
    pub tenant: String,
    /// Its session slot; none for one that goes without.
    pub session_slot: Option<SlotParameters>,
    /// The transport that carries out operations.
    pub transport: MemoryTransport,
    /// Operations that it keeps under way at most.
    pub window: u32,
    /// Where in the memory the key-value store begins.
    pub store: u64,
}

/// A session slot, and the parameters for its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotParameters {
    /// Its number.
    pub number: SessionSlot,
    /// By which rules tokens are given out.
    pub rules: TokenRules,
    /// T.
    pub period: Span,
    /// C_L.
    pub client: Iops,
    /// Operations per period that are guaranteed, for now: later ones come with grants.
    pub reservation: u64,
}

/// The rules by which a data node gives tokens out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenRules {
    /// The shipped rules, with tokens spread over the period.
    #[default]
    Sound,
    /// The shipped rules, with all tokens at the beginning of the period.
    Unpaced,
    /// The Haechi paper's rules, literally: for experiments.
    Paper,
    /// Those without the conversion of tokens that idle clients leave: for experiments.
    Basic,
}

impl TokenRules {
    /// The shipped rules.
    pub const fn shipped(is_paced: bool) -> Self {
        if is_paced { Self::Sound } else { Self::Unpaced }
    }
}

/// The rules of that name.
pub const fn rules(rules: TokenRules) -> Rules {
    match rules {
        TokenRules::Sound => Rules::SOUND,
        TokenRules::Unpaced => Rules::UNPACED,
        TokenRules::Paper => Rules::PAPER,
        TokenRules::Basic => Rules::BASIC,
    }
}

/// The identity of a connecting client, by the kernel or by a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The process and its user.
    pub peer: Peer,
    /// The file name of its executable; empty if it cannot be seen.
    pub process: String,
    /// The path of its control group; likewise.
    pub cgroup: String,
    /// Whether it is root, or of the data node's own user.
    pub is_operator: bool,
    /// The name that its certificate bears, if it is on another machine: that is its user then.
    pub certificate: Option<String>,
}

/// The tenant of the policy that a client acts for; none for an operator that no rule gives one.
///
/// # Errors
/// Why it may not come in, in words for people.
pub fn tenant(
    policy: &Policy,
    identity: &ClientIdentity,
    named: &str,
) -> Result<Option<TenantId>, String> {
    let user = || identity.peer.user_or_number();
    if !named.is_empty() {
        let Some((id, tenant)) = policy.tenant_named(named) else {
            // The name comes from elsewhere; it is shortened before it is repeated.
            let name: String = named.chars().take(64).collect();
            return Err(format!(
                "the policy has no tenant {name:?}; name another one, or apply a policy that has it"
            ));
        };
        if !identity.may_act_for(tenant) {
            let users = tenant.users.join(", ");
            let user = user();
            return Err(format!(
                "user {user} may not act for tenant {named:?}; the policy allows {users}"
            ));
        }
        return Ok(Some(id));
    }
    let is_whose = |rule: &&Match| rule.storage.is_empty() && identity.is_one_of(&rule.conditions);
    let target = policy.matches.iter().find(is_whose).map(|rule| match rule.target {
        RuleTarget::Tenant(id) => id,
        RuleTarget::Channel(index) => policy.channels[index].tenant,
    });
    let may = |id: &TenantId| policy.tenant(*id).is_some_and(|it| identity.may_act_for(it));
    match target.filter(may) {
        Some(id) => Ok(Some(id)),
        None if identity.is_operator => Ok(None),
        None => Err(format!(
            "no rule of the policy says whose client this is; name a tenant that user {} may act \
             for, or add a rule",
            user()
        )),
    }
}

impl ClientIdentity {
    /// A client on another machine, whose certificate bears this name: a user of that name, with a
    /// number that no user has. Nothing else is known of it.
    pub fn far(name: &str) -> Self {
        let peer = Peer { uid: u32::MAX, user: name.into(), ..Peer::default() };
        Self { peer, certificate: Some(name.into()), ..Self::default() }
    }

    /// Whether the policy lets it act for a tenant.
    fn may_act_for(&self, tenant: &Tenant) -> bool {
        match &self.certificate {
            Some(name) => tenant.admits(Principal::Certificate(core::slice::from_ref(name))),
            None => self.peer.may_act_for(tenant),
        }
    }

    /// The name for a log: its process, or its user if that is on another machine.
    pub fn name(&self) -> String {
        match self.peer.pid {
            0 => self.peer.user.clone(),
            pid => format!("pid {pid}"),
        }
    }

    /// Whether all conditions of a rule are known from the kernel, and hold.
    fn is_one_of(&self, conditions: &Conditions) -> bool {
        let Conditions { user, process, cgroup, .. } = conditions;
        let known = Conditions {
            user: user.clone(),
            process: process.clone(),
            cgroup: cgroup.clone(),
            ..Conditions::default()
        };
        let number = format!("{}", self.peer.uid);
        let accepts = |patterns: &[String], values: &[&str]| {
            let is_any = |pattern: &String| {
                values.iter().any(|value| glob(pattern.as_bytes(), value.as_bytes()))
            };
            patterns.is_empty() || patterns.iter().any(is_any)
        };
        known == *conditions
            && accepts(user, &[&self.peer.user, &number])
            && accepts(process, &[&self.process])
            && accepts(cgroup, &[&self.cgroup])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = r#"
            [[tenant]]
            name = "oltp"
            reservation = "100 iops"
            limit = "200 iops"
            users = ["ann", "7", "cert:ann"]
            [[tenant]]
            name = "batch"
            [[match]]
            tenant = "oltp"
            process = "post*"
            operation = "read"
            [[match]]
            tenant = "oltp"
            process = "post*"
            [[match]]
            tenant = "batch"
            user = "bob"
            cgroup = "/batch/**"
        "#;
        Policy::parse(text).unwrap()
    }

    fn identity(uid: u32, user: &str, process: &str) -> ClientIdentity {
        let peer = Peer { uid, pid: 1, user: user.into(), ..Peer::default() };
        let cgroup = "/batch/nightly".into();
        let is_operator = uid == 0;
        ClientIdentity { peer, process: process.into(), cgroup, is_operator, certificate: None }
    }

    fn whose(identity: &ClientIdentity, named: &str) -> Result<&'static str, String> {
        let names = ["nobody", "oltp", "batch"];
        tenant(&policy(), identity, named).map(|id| names[id.map_or(0, |id| usize::from(id.0))])
    }

    #[test]
    fn the_policy_names_the_tenant_of_a_client() {
        assert_eq!(whose(&identity(5, "ann", "sh"), "oltp"), Ok("oltp"));
        assert_eq!(whose(&identity(7, "", "sh"), "oltp"), Ok("oltp"));
        assert_eq!(whose(&identity(5, "ann", "postgres"), ""), Ok("oltp"));
        assert_eq!(whose(&identity(8, "bob", "sh"), ""), Ok("batch"));
        assert_eq!(whose(&identity(0, "root", "sh"), ""), Ok("nobody"));
        assert_eq!(
            whose(&identity(8, "bob", "sh"), "oltp").unwrap_err(),
            "user bob may not act for tenant \"oltp\"; the policy allows ann, 7, cert:ann"
        );
        let error = whose(&identity(8, "bob", "sh"), "oltq").unwrap_err();
        assert_eq!(
            error,
            "the policy has no tenant \"oltq\"; name another one, or apply a policy that has it"
        );
        let error = whose(&identity(9, "", "postgres"), "").unwrap_err();
        assert!(error.starts_with("no rule of the policy says whose client this is"), "{error}");
        assert!(error.contains("user 9"), "{error}");
    }

    #[test]
    fn a_certificate_is_no_unix_user_of_that_name() {
        let policy = Policy::parse("tenant = [{ name = \"oltp\", users = \"ann\" }]").unwrap();
        assert!(tenant(&policy, &ClientIdentity::far("ann"), "oltp").is_err());
        let policy = Policy::parse("tenant = [{ name = \"oltp\", users = \"cert:ann\" }]").unwrap();
        assert!(tenant(&policy, &ClientIdentity::far("ann"), "oltp").is_ok());
        assert!(tenant(&policy, &identity(5, "ann", "sh"), "oltp").is_err());
    }

    #[test]
    fn a_remote_client_is_the_user_that_its_certificate_names() {
        assert_eq!(whose(&ClientIdentity::far("ann"), "oltp"), Ok("oltp"));
        let error = whose(&ClientIdentity::far("client"), "oltp").unwrap_err();
        let wanted =
            "user client may not act for tenant \"oltp\"; the policy allows ann, 7, cert:ann";
        assert_eq!(error, wanted);
        assert_eq!(whose(&ClientIdentity::far("client"), "batch"), Ok("batch"));
        // A fact that no source reports matches no rule.
        assert!(whose(&ClientIdentity::far("bob"), "").is_err());
        assert!(!ClientIdentity::far("root").is_operator);
    }

    fn hello(reservation: Option<u64>, limit: Option<u64>) -> Hello {
        let (reservation, limit) = (reservation.map(Iops), limit.map(Iops));
        let (version, tenant) = (VERSION, "oltp".into());
        Hello { version, tenant, reservation, limit, parts: 1, session_slot: None, is_bare: false }
    }

    #[test]
    fn golden_bytes() {
        let hello = postcard::to_allocvec(&hello(Some(300), None)).unwrap();
        assert_eq!(hello, b"\x01\x04oltp\x01\xac\x02\x00\x01\x00\x00");
        let session_slot = SlotParameters {
            number: SessionSlot(2),
            rules: TokenRules::Sound,
            period: Span(5),
            client: Iops(6),
            reservation: 7,
        };
        let (tenant, transport) = ("t".into(), MemoryTransport::Model);
        let welcome =
            Welcome { tenant, session_slot: Some(session_slot), transport, window: 8, store: 9 };
        let bytes = postcard::to_allocvec(&ToClient::Welcome(welcome)).unwrap();
        assert_eq!(bytes, b"\x00\x01t\x01\x02\x00\x05\x06\x07\x01\x08\x09");
        let refused = ToClient::Refused { version: 1, reason: "r".into() };
        assert_eq!(postcard::to_allocvec(&refused).unwrap(), b"\x01\x01\x01r");
        assert_eq!(postcard::to_allocvec(&ToClient::Moving).unwrap(), b"\x02");
    }
}
