//! A client's identity, as its connection proves it (a user of this machine, or the name in a
//! certificate), and the tenants for which the policy does not let it act.

use rustix::process::geteuid;
use tidegate_algo::classify::access::{AccessClient, may_enter, may_open, may_use};
use tidegate_fabric::stream::Stream;
use tidegate_model::cluster::Volume;
use tidegate_model::policy::Principal;
use tidegate_model::{Origin, TenantId};

use crate::owners::{Owner, OwnerTable};

/// The identity of a client by its socket; with TLS the certificate decides instead.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identity {
    /// A user of this machine.
    User(u32),
    /// A client without an identity.
    Anonymous,
}

impl Identity {
    /// The identity of the client of a connection that was just accepted.
    pub(crate) fn of(stream: &Stream) -> Self {
        match stream.origin() {
            Ok(Origin::User(uid)) => Self::User(uid),
            _ => Self::Anonymous,
        }
    }

    /// The client, with its certificate if `stream` has become one with TLS. A user is identified
    /// by number: the names in a policy are looked up when the policy arrives, and other names stay
    /// unknown.
    pub(crate) fn client<'a>(self, stream: &'a Stream, table: &'a OwnerTable) -> AccessClient<'a> {
        match (stream.names(), self) {
            (Some(names), _) => {
                AccessClient { principal: Principal::Certificate(names), is_operator: false }
            }
            (None, Self::User(uid)) => {
                let is_operator = uid == 0 || uid == geteuid().as_raw();
                AccessClient {
                    principal: Principal::User { uid, name: table.user_name(uid) },
                    is_operator,
                }
            }
            (None, Self::Anonymous) => {
                AccessClient { principal: Principal::Anonymous, is_operator: false }
            }
        }
    }
}

/// Restrictions of a session by the policy in force.
#[derive(Debug, Default)]
pub(crate) struct Restrictions {
    /// The session may do nothing.
    all: bool,
    /// The tenants to whom rules attribute some of its requests, and for whom it may not act.
    tenants: Vec<TenantId>,
}

impl Restrictions {
    /// Those of a client that has opened `volume` for the tenant `chosen`.
    pub(crate) fn of_export(
        table: &OwnerTable,
        parties: &[String],
        client: AccessClient<'_>,
        (volume, chosen): (&Volume, &str),
        owner: &Owner,
    ) -> Self {
        let knowledge = table.knowledge(parties);
        let all = may_open(knowledge, client, volume, Some(chosen)).is_err();
        Self { all, tenants: denied(table, client, owner) }
    }

    /// Those of a client of a pool.
    pub(crate) fn of_pool(table: &OwnerTable, client: AccessClient<'_>, owner: &Owner) -> Self {
        let all = may_enter(table.knowledge(&[]), client).is_err();
        Self { all, tenants: denied(table, client, owner) }
    }

    /// Whether a request of this tenant is refused.
    #[inline]
    pub(crate) fn deny(&self, tenant: TenantId) -> bool {
        self.all || (!self.tenants.is_empty() && self.tenants.contains(&tenant))
    }
}

/// The tenants to whom `owner` may attribute requests, and for whom the client may not act.
fn denied(table: &OwnerTable, client: AccessClient<'_>, owner: &Owner) -> Vec<TenantId> {
    let policy = table.knowledge(&[]).policy;
    let is_denied = |tenant: &TenantId| {
        let name = table.name(*tenant);
        let promised = policy.and_then(|policy| policy.tenant_named(name));
        may_use(client, promised.map(|(_, tenant)| tenant), name).is_err()
    };
    owner.all().filter(is_denied).collect()
}
