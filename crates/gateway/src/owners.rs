//! The tenant and class of each request of a gateway: one register for all of its workers.
//!
//! # Problem
//! The policy names the owner of a request, and changes while requests are under way. A job names
//! its tenant by a number; each node is sent the list of names, in the order of their numbers. So a
//! new policy must not change the meaning of a number in a job that was sent already. No worker may
//! wait for another, or look up anything for a request that no rule matches.
//!
//! # Mechanism
//! A number is an index into a list of names that only grows: first the tenants of the cluster's
//! volumes and pools, then those that policies have named. A new policy makes a new [`OwnerTable`].
//! Workers check once per batch for a new table (an atomic load), send the nodes the names if there
//! are more, and ask the table for a new [`Owner`] for each client. An [`Owner`] finds the tenant
//! and class of each request of its client, by the rules about the client's volume. Most volumes
//! have no rule: then every request has the same tenant and class. The table also says which
//! tenants and volumes a client may use ([`Knowledge`]). The counters of a name go with it from
//! table to table. So does its account of the costs sent to each node
//! ([`tidegate_algo::scheduling::dsfq`]), which all workers share.
//!
//! # Bound
//! 65 535 names in one run of a gateway; requests of tenants beyond that are unattributed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_algo::classify::access::Knowledge;
use tidegate_algo::classify::owner::{Attribution, OwnerQuery, Owners};
use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_model::policy::Levels;
use tidegate_model::{Class, Policy, TenantId};
use tidegate_proto::stats::path::PathTimes;

use crate::counters::Count;
use crate::latency::{TenantLatency, TenantPath};
use crate::programs::PublishedPrograms;
use crate::users::UserNames;

/// Where workers find the present table.
#[derive(Debug)]
pub(crate) struct Register {
    /// The cluster's nodes.
    nodes: usize,
    /// The version of the current table.
    version: AtomicU64,
    table: Mutex<Arc<OwnerTable>>,
    /// Clients that are programs have owners of their own.
    pub(crate) programs: PublishedPrograms,
}

/// Names, and rules about who owns what. It never changes.
#[derive(Debug)]
pub(crate) struct OwnerTable {
    version: u64,
    /// The name of each number, beginning with 1.
    names: Vec<String>,
    /// Counters of requests for each number, beginning with 0 for unattributed requests.
    counts: Vec<Arc<TenantCounters>>,
    /// Costs sent to each node, for each number likewise.
    elsewhere: Vec<Arc<Elsewhere>>,
    policy: Option<Rules>,
    /// Whether the policy in force is known, or that there is none.
    is_known: bool,
}

/// Counters of a tenant's requests.
#[derive(Debug, Default)]
struct TenantCounters {
    count: Count,
    latency: TenantLatency,
    path: TenantPath,
}

/// A policy, and the register's numbers of its tenants, in its order.
#[derive(Debug)]
struct Rules {
    policy: Policy,
    numbers: Arc<[TenantId]>,
    /// The users whom the policy names.
    user_names: UserNames,
}

/// The owners of the requests to one volume or pool, by the register's numbers.
#[derive(Debug)]
pub(crate) struct Owner {
    rules: Option<(Owners, Arc<[TenantId]>)>,
    others: Attribution,
    /// The name of the tenant that owns requests without a rule. The policy may lack it.
    name: Box<str>,
}

impl Register {
    /// A register of the tenants of a cluster of so many nodes, without a policy; `is_known` if
    /// there will be none.
    pub(crate) fn new<'a>(
        nodes: usize,
        tenants: impl Iterator<Item = &'a str>,
        is_known: bool,
    ) -> Self {
        let mut names = Vec::new();
        for tenant in tenants.filter(|tenant| !tenant.is_empty()) {
            number(&mut names, tenant);
        }
        let (counts, elsewhere) = (vec![], vec![]);
        let mut table = OwnerTable { version: 0, names, counts, elsewhere, policy: None, is_known };
        table.open(nodes);
        let (version, table) = (AtomicU64::new(0), Mutex::new(Arc::new(table)));
        Self { nodes, version, table, programs: PublishedPrograms::default() }
    }

    /// The table, if it is another one than `table`.
    pub(crate) fn newer(&self, table: &OwnerTable) -> Option<Arc<OwnerTable>> {
        (self.version.load(Ordering::Relaxed) != table.version).then(|| self.table())
    }

    pub(crate) fn table(&self) -> Arc<OwnerTable> {
        self.present().clone()
    }

    /// Puts this policy in force.
    pub(crate) fn apply(&self, policy: Policy, user_names: UserNames) {
        let mut present = self.present();
        let mut names = present.names.clone();
        let tenants = policy.tenants.iter();
        let numbers = tenants.map(|tenant| number(&mut names, &tenant.name)).collect();
        let version = present.version + 1;
        let rules = Some(Rules { policy, numbers, user_names });
        let (counts, elsewhere) = (present.counts.clone(), present.elsewhere.clone());
        let mut table =
            OwnerTable { version, names, counts, elsewhere, policy: rules, is_known: true };
        table.open(self.nodes);
        *present = Arc::new(table);
        self.version.store(version, Ordering::Relaxed);
    }

    /// The controller has replied: if it has sent no policy, there is none.
    pub(crate) fn know(&self) {
        let mut present = self.present();
        if !present.is_known {
            let version = present.version + 1;
            let table = OwnerTable { version, is_known: true, ..present.copied() };
            *present = Arc::new(table);
            self.version.store(version, Ordering::Relaxed);
        }
    }

    fn present(&self) -> MutexGuard<'_, Arc<OwnerTable>> {
        // It is replaced as a whole, so a panic leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a name, which is added if it is new.
fn number(names: &mut Vec<String>, name: &str) -> TenantId {
    let index = names.iter().position(|known| known == name).unwrap_or(names.len());
    let Ok(number) = u16::try_from(index + 1) else { return TenantId::UNATTRIBUTED };
    if index == names.len() {
        names.push(name.to_owned());
    }
    TenantId(number)
}

impl OwnerTable {
    /// Opens accounts for those who have none yet.
    fn open(&mut self, nodes: usize) {
        let numbers = self.names.len() + 1;
        self.counts.resize_with(numbers, Arc::default);
        self.elsewhere.resize_with(numbers, || Arc::new(Elsewhere::new(nodes)));
    }

    /// Costs sent to each node, by the tenant's number; 0 is for unattributed requests.
    pub(crate) fn elsewhere(&self) -> &[Arc<Elsewhere>] {
        &self.elsewhere
    }

    /// Counters of the requests of the tenant with this number. A number that only a later table
    /// has counts as unattributed here.
    pub(crate) fn count(&self, tenant: TenantId) -> &Count {
        &self.counters(tenant).count
    }

    /// The latencies of its requests, likewise.
    pub(crate) fn latency(&self, tenant: TenantId) -> &TenantLatency {
        &self.counters(tenant).latency
    }

    /// Where its requests spent their latencies, likewise.
    pub(crate) fn path(&self, tenant: TenantId) -> &TenantPath {
        &self.counters(tenant).path
    }

    /// The same of all tenants that had requests, by name.
    pub(crate) fn paths(&self) -> Vec<(String, PathTimes)> {
        let times =
            |(name, counters): (&str, &TenantCounters)| (name.to_owned(), counters.path.times());
        self.all_counters().map(times).filter(|(_, times)| times.requests > 0).collect()
    }

    fn counters(&self, tenant: TenantId) -> &TenantCounters {
        self.counts.get(usize::from(tenant.0)).unwrap_or(&self.counts[0])
    }

    /// Counters of the requests of all tenants, by name; unattributed requests have the empty name.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, &Count)> {
        self.all_counters().map(|(name, counters)| (name, &counters.count))
    }

    /// The latencies of the requests of all tenants, likewise.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (&str, &TenantLatency)> {
        self.all_counters().map(|(name, counters)| (name, &counters.latency))
    }

    fn all_counters(&self) -> impl Iterator<Item = (&str, &TenantCounters)> {
        let names = [""].into_iter().chain(self.names.iter().map(String::as_str));
        names.zip(self.counts.iter().map(|counters| &**counters))
    }

    /// The same, of one that no policy has changed yet.
    fn copied(&self) -> Self {
        Self {
            version: self.version,
            names: self.names.clone(),
            counts: self.counts.clone(),
            elsewhere: self.elsewhere.clone(),
            policy: None,
            is_known: self.is_known,
        }
    }

    /// The gateway's knowledge of access rights: policy, and daemons of the cluster.
    pub(crate) fn knowledge<'a>(&'a self, parties: &'a [String]) -> Knowledge<'a> {
        let policy = self.policy.as_ref().map(|rules| &rules.policy);
        Knowledge { policy, is_known: self.is_known, parties }
    }

    /// Whether the policy in force is known, or that there is none.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The name of the tenant with this number; empty for unattributed requests.
    pub(crate) fn name(&self, tenant: TenantId) -> &str {
        let index = usize::from(tenant.0).checked_sub(1);
        index.and_then(|index| self.names.get(index)).map_or("", String::as_str)
    }

    /// The name of the user with this number; empty if the policy does not name it.
    pub(crate) fn user_name(&self, uid: u32) -> &str {
        let name = self.policy.as_ref().and_then(|rules| rules.user_names.get(&uid));
        name.map_or("", String::as_str)
    }

    /// Whether the policy promises this tenant something.
    pub(crate) fn has_reservation(&self, tenant: &str) -> bool {
        let policy = self.policy.as_ref().map(|rules| &rules.policy);
        let tenant = policy.and_then(|policy| policy.tenant_named(tenant));
        tenant.is_some_and(|(_, tenant)| tenant.reservation != Levels::default())
    }

    /// All names, in the form that is sent to nodes.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The owners of requests to this volume or pool that arrive for `tenant`, by its name.
    pub(crate) fn owner(&self, volume: &str, tenant: &str) -> Owner {
        let known = self.names.iter().position(|name| name == tenant);
        let number = known.and_then(|known| u16::try_from(known + 1).ok());
        let policy = self.policy.as_ref().map(|rules| &rules.policy);
        let others = Attribution {
            tenant: number.map_or(TenantId::UNATTRIBUTED, TenantId),
            class: policy
                .and_then(|policy| policy.tenant_named(tenant))
                .map_or_else(Class::default, |(_, tenant)| tenant.class),
        };
        let rules = self.policy.as_ref().and_then(|Rules { policy, numbers, .. }| {
            // `Owners` leaves requests that no rule matches unattributed; `others` owns them here.
            let owners = Owners::new(policy, volume, "");
            owners.has_rules().then(|| (owners, numbers.clone()))
        });
        Owner { rules, others, name: tenant.into() }
    }
}

impl Owner {
    /// Every tenant that a request may belong to.
    pub(crate) fn all(&self) -> impl Iterator<Item = TenantId> {
        let rules = self.rules.iter().flat_map(|(owners, numbers)| {
            let index = |owner: TenantId| usize::from(owner.0).checked_sub(1);
            owners.all(true).filter_map(move |owner| numbers.get(index(owner)?).copied())
        });
        rules.chain([self.others.tenant])
    }

    /// The name of the tenant that owns requests without a rule, also if the policy lacks it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The tenant that owns this request, and the class of the request.
    #[inline]
    pub(crate) fn of(&self, request: OwnerQuery<'_>) -> Attribution {
        let Some((owners, numbers)) = &self.rules else { return self.others };
        let Attribution { tenant, class } = owners.owner(request);
        let index = usize::from(tenant.0).checked_sub(1);
        let number = index.and_then(|index| numbers.get(index)).copied();
        number.map_or(self.others, |tenant| Attribution { tenant, class })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails says where")]
mod tests {
    use super::*;
    use tidegate_model::{Bytes, Operation};

    const WRITE: OwnerQuery<'_> =
        OwnerQuery { operation: Operation::Write, size: Bytes(1), offset: None, key: None };
    const READ: OwnerQuery<'_> =
        OwnerQuery { operation: Operation::Read, size: Bytes(1), offset: None, key: None };

    fn policy(tenants: &[&str], rules: &str) -> Policy {
        let tenants = tenants.iter().map(|name| format!("[[tenant]]\nname = {name:?}\n"));
        Policy::parse(&format!("{}{rules}", tenants.collect::<String>())).unwrap()
    }

    #[test]
    fn numbers_never_change_their_meaning() {
        let register = Register::new(1, ["b", "a", "", "b"].into_iter(), true);
        let first = register.table();
        assert_eq!(first.names(), ["b", "a"]);
        assert!(register.newer(&first).is_none());
        register.apply(policy(&["new", "a"], ""), UserNames::new());
        let second = register.newer(&first).unwrap();
        register.apply(policy(&["later", "new"], ""), UserNames::new());
        let third = register.newer(&second).unwrap();
        assert_eq!(third.names(), ["b", "a", "new", "later"]);
        assert!(third.names().starts_with(second.names()));
        for (number, tenant) in [(1, "b"), (3, "new"), (4, "later"), (0, "unknown"), (0, "")] {
            assert_eq!(third.owner("v", tenant).of(READ).tenant, TenantId(number), "{tenant}");
        }
    }

    #[test]
    fn counts_go_with_their_names() {
        let register = Register::new(1, ["b", "a"].into_iter(), true);
        let first = register.table();
        register.apply(policy(&["new", "a"], ""), UserNames::new());
        let second = register.table();
        // A worker that has not seen the new table yet counts in the old one.
        for (table, number) in [(&first, 2), (&second, 2), (&second, 3), (&second, 0)] {
            table.count(TenantId(number)).add(Ok(1));
        }
        let table = register.table();
        let flows = table.counts().map(|(name, count)| count.flow(name));
        let requests: Vec<_> = flows.map(|flow| (flow.name, flow.requests)).collect();
        let expected = [("", 1), ("b", 0), ("a", 2), ("new", 1)];
        assert_eq!(requests, expected.map(|(name, count)| (String::from(name), count)));
    }

    #[test]
    fn rules_come_first_and_then_whom_the_export_is_for() {
        let register = Register::new(1, ["db"].into_iter(), true);
        let rule = "[[match]]\ntenant = \"etl\"\nvolume = \"logs-*\"\noperation = \"write\"\n";
        register.apply(policy(&["etl", "web"], rule), UserNames::new());
        let table = register.table();
        let owner = |volume, tenant, request| {
            let number = usize::from(table.owner(volume, tenant).of(request).tenant.0);
            number.checked_sub(1).map(|index| table.names()[index].as_str())
        };
        assert_eq!(owner("logs-eu", "db", WRITE), Some("etl"));
        assert_eq!(owner("logs-eu", "db", READ), Some("db"));
        assert_eq!(owner("logs-eu", "web", READ), Some("web"));
        assert_eq!(owner("logs-eu", "unknown", WRITE), Some("etl"));
        assert_eq!(owner("logs-eu", "unknown", READ), None);
        assert_eq!(owner("tables", "db", WRITE), Some("db"));
    }

    #[test]
    fn a_request_has_the_class_of_its_rule_or_of_its_tenant() {
        let register = Register::new(1, ["db"].into_iter(), true);
        let tenants = "[[tenant]]\nname = \"db\"\nclass = \"high\"\n";
        let rule =
            "[[match]]\ntenant = \"db\"\nvolume = \"d*\"\noperation = \"write\"\nclass = \"low\"";
        assert_eq!(register.table().owner("d1", "db").of(WRITE).class, Class::Medium);
        register.apply(Policy::parse(&format!("{tenants}{rule}")).unwrap(), UserNames::new());
        let table = register.table();
        let class = |volume, tenant, request| table.owner(volume, tenant).of(request).class;
        assert_eq!(class("d1", "db", WRITE), Class::Low);
        assert_eq!(class("d1", "db", READ), Class::High);
        assert_eq!(class("other", "db", WRITE), Class::High);
        assert_eq!(class("d1", "unknown", READ), Class::Medium);
        assert_eq!(table.owner("d1", "unknown").of(WRITE).tenant, TenantId(1));
    }
}
