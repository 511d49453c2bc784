//! A client's identity, as its connection proves it (a user of this machine, or the name in a
//! certificate), and the tenants for which the policy does not let it act.

use rustix::process::geteuid;
use tidegate_algo::classify::access::{
    AccessClient, Denied, may_count, may_enter, may_open, may_use,
};
use tidegate_fabric::stream::Stream;
use tidegate_model::cluster::Volume;
use tidegate_model::policy::Principal;
use tidegate_model::{Origin, TenantId};

use crate::owners::{Owner, OwnerTable};
use crate::volumes::Opened;

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

/// A client: its identity, and the tenant of the program that it is, if it is one.
pub(crate) type ClientAndProgram<'a> = (AccessClient<'a>, Option<&'a str>);

impl Restrictions {
    /// The owner of the requests of a client that has opened an export of `volume`, and the
    /// client's restrictions. Whether it is served depends on the export alone. A tenant that the
    /// client has named stays. Also why its requests do not count for the tenant of its program,
    /// if they do not.
    pub(crate) fn of_export(
        table: &OwnerTable,
        parties: &[String],
        (client, program): ClientAndProgram<'_>,
        (volume, opened): (&Volume, &Opened),
    ) -> (Owner, Self, Option<Denied>) {
        let knowledge = table.knowledge(parties);
        let all = may_open(knowledge, client, volume, Some(&opened.tenant)).is_err();
        let may = |tenant| may_count(knowledge, client, (&volume.name, &volume.tenants), tenant);
        let program = program.filter(|tenant| !opened.is_chosen && *tenant != opened.tenant);
        let not_counted = program.and_then(|tenant| may(tenant).err());
        let program = program.filter(|_| not_counted.is_none());
        let owner = table.owner(&volume.name, program.unwrap_or(&opened.tenant));
        let tenants = denied(table, client, &owner);
        (owner, Self { all, tenants }, not_counted)
    }

    /// The owner of a client's requests to a pool of this name, if the client is a program with a
    /// tenant of its own, and the client's restrictions; `others` owns the requests of others. Also
    /// why they do not count for the tenant of its program, if they do not.
    pub(crate) fn of_pool(
        table: &OwnerTable,
        (client, program): ClientAndProgram<'_>,
        pool: &str,
        others: &Owner,
    ) -> (Option<Owner>, Self, Option<Denied>) {
        let knowledge = table.knowledge(&[]);
        let all = may_enter(knowledge, client).is_err();
        let may = |tenant| may_count(knowledge, client, (pool, &[]), tenant);
        let not_counted = program.and_then(|tenant| may(tenant).err());
        let program = program.filter(|_| not_counted.is_none());
        let owner = program.map(|tenant| table.owner(pool, tenant));
        let tenants = denied(table, client, owner.as_ref().unwrap_or(others));
        (owner, Self { all, tenants }, not_counted)
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
