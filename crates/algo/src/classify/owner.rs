//! Attribution of a gateway's requests to tenants and classes.
//!
//! # Problem
//! A gateway sees the volume or pool of a request, its operation, its size and its key, and nothing
//! of the program behind it. It has to name the tenant for each request.
//!
//! # Mechanism
//! The first rule of the policy with a condition on a volume, a key or an offset, and whose
//! conditions all hold, names the tenant; if there is none, it is the tenant of the volume. The
//! class of a request is that of its tenant, unless the rule names one. Other rules are about
//! programs and do not matter here. A rule's conditions on the volume are decided once, when the
//! volume is opened; the other conditions are compared for each request, and most volumes have
//! none.
//!
//! Example: `key = "session:"` for web, `volume = "logs*", operation = "write"` for etl. In pool
//! `cache` of tenant kv the key `session:7` is web's and `user:7` is kv's; a write to volume
//! `logs-eu` is etl's.

use alloc::vec::Vec;

use tidegate_model::policy::RuleTarget;
use tidegate_model::{Bytes, Class, Operation, OperationSet, Policy, SizeRange, TenantId};

use crate::classify::channel::glob;

/// The properties of a request that decide its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerQuery<'a> {
    /// The operation of the request.
    pub operation: Operation,
    /// How much data it moves.
    pub size: Bytes,
    /// Where in its volume it begins; none for requests to a key.
    pub offset: Option<Bytes>,
    /// Its key; none for requests to a volume.
    pub key: Option<&'a [u8]>,
}

/// The tenant and the class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// The tenant that owns it.
    pub tenant: TenantId,
    /// Its class: that of the rule, or else that of the tenant.
    pub class: Class,
}

/// The rules that name the tenant of each request to one volume or pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    rules: Vec<OwnerRule>,
    others: Attribution,
}

/// The conditions of a rule that remain once the volume is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnerRule {
    owner: Attribution,
    operations: OperationSet,
    sizes: SizeRange,
    offsets: Option<SizeRange>,
    /// Empty if any request will do, with or without a key.
    keys: Vec<Vec<u8>>,
}

impl Owners {
    /// Returns the rules of `policy` for the volume or pool called `volume`. Requests that match
    /// none of them belong to the tenant with the name `tenant`, or to no tenant if the policy has
    /// none of that name.
    pub fn new(policy: &Policy, volume: &str, tenant: &str) -> Self {
        let mut rules = Vec::new();
        let of = |tenant: TenantId, class: Option<Class>| {
            let own = policy.tenant(tenant).map(|tenant| tenant.class);
            Attribution { tenant, class: class.or(own).unwrap_or_default() }
        };
        for rule in policy.matches.iter().filter(|rule| !rule.storage.is_empty()) {
            let names = &rule.storage.volume;
            let holds = |name: &str| glob(name.as_bytes(), volume.as_bytes());
            let (RuleTarget::Tenant(owner), true) =
                (rule.target, names.is_empty() || names.iter().any(|name| holds(name)))
            else {
                continue;
            };
            rules.push(OwnerRule {
                owner: of(owner, rule.class),
                operations: rule.conditions.operation,
                sizes: rule.conditions.size,
                offsets: rule.storage.offset,
                keys: rule.storage.key.iter().map(|key| key.as_bytes().to_vec()).collect(),
            });
        }
        let others = policy.tenant_named(tenant).map_or(TenantId::UNATTRIBUTED, |(id, _)| id);
        Self { rules, others: of(others, None) }
    }

    /// Returns the tenant that owns this request, and the class of the request.
    #[inline]
    pub fn owner(&self, query: OwnerQuery<'_>) -> Attribution {
        self.rules.iter().find(|rule| rule.holds(query)).map_or(self.others, |rule| rule.owner)
    }

    /// Returns all tenants that may own a request to a pool (`has_keys`) or to a volume.
    pub fn all(&self, has_keys: bool) -> impl Iterator<Item = TenantId> {
        let rules = self.rules.iter().filter(move |rule| has_keys || rule.keys.is_empty());
        rules.map(|rule| rule.owner.tenant).chain([self.others.tenant])
    }

    /// Whether requests differ in their tenant or their class.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }
}

impl OwnerRule {
    fn holds(&self, query: OwnerQuery<'_>) -> bool {
        let begins = |key: &[u8]| self.keys.iter().any(|begin| key.starts_with(begin));
        self.operations.contains(query.operation)
            && self.sizes.contains(query.size)
            && self.offsets.is_none_or(|range| query.offset.is_some_and(|at| range.contains(at)))
            && (self.keys.is_empty() || query.key.is_some_and(begins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn the_first_rule_of_gateways_decides() {
        let policy = Policy::parse(
            r#"
            tenant = [{ name = "kv" }, { name = "web" }, { name = "etl" }]
            match = [
                { tenant = "kv", process = "memtier" },
                { tenant = "web", key = ["session:", "cart:"] },
                { tenant = "etl", volume = "logs*", operation = "write", size = ">4KiB" },
                { tenant = "kv" },
            ]
            "#,
        )
        .unwrap();
        let owner = |volume: &str, tenant: &str, operation, size, key: Option<&str>| {
            let key = key.map(str::as_bytes);
            let offset = key.is_none().then_some(Bytes(8 << 20));
            let query = OwnerQuery { operation, size: Bytes(size), offset, key };
            Owners::new(&policy, volume, tenant).owner(query).tenant.0
        };
        assert_eq!(owner("cache", "kv", Operation::Get, 0, Some("cart:1")), 2);
        assert_eq!(owner("cache", "kv", Operation::Get, 0, Some("user:1")), 1);
        assert_eq!(owner("logs-eu", "web", Operation::Write, 8192, None), 3);
        assert_eq!(owner("logs-eu", "web", Operation::Read, 8192, None), 2);
        assert_eq!(owner("logs-eu", "web", Operation::Write, 4096, None), 2);
        assert_eq!(owner("db", "nobody", Operation::Write, 8192, None), 0);
    }

    #[test]
    fn a_rule_names_a_class_for_some_requests_of_a_tenant() {
        let policy = Policy::parse(
            r#"
            tenant = [{ name = "oltp", class = "high" }, { name = "etl" }]
            match = [
                { tenant = "oltp", volume = "db", operation = "sync", class = "low" },
                { tenant = "oltp", volume = "db", offset = "<1GiB", class = "urgent" },
                { tenant = "etl", volume = "db", size = ">=1MiB" },
            ]
            "#,
        )
        .unwrap();
        let owners = Owners::new(&policy, "db", "oltp");
        let owner = |operation, size, offset: Option<u64>| {
            let offset = offset.map(Bytes);
            let query = OwnerQuery { operation, size: Bytes(size), offset, key: None };
            let Attribution { tenant, class } = owners.owner(query);
            (tenant.0, class)
        };
        assert_eq!(owner(Operation::Sync, 0, Some(0)), (1, Class::Low));
        assert_eq!(owner(Operation::Read, 1, Some((1 << 30) - 1)), (1, Class::Urgent));
        assert_eq!(owner(Operation::Read, 1, Some(1 << 30)), (1, Class::High));
        assert_eq!(owner(Operation::Read, 1 << 20, Some(1 << 30)), (2, Class::Medium));
        assert_eq!(owner(Operation::Get, 1, None), (1, Class::High), "it has no offset");
        let other = Owners::new(&policy, "logs", "none");
        assert!(!other.has_rules());
        let unattributed = Attribution { tenant: TenantId::UNATTRIBUTED, class: Class::Medium };
        let query =
            OwnerQuery { operation: Operation::Read, size: Bytes(1), offset: None, key: None };
        assert_eq!(other.owner(query), unattributed);
    }

    proptest! {
        #[test]
        fn owners_are_those_of_a_reading_of_the_policy(
            rules in proptest::collection::vec((1u16..4, 0u8..4, 0u8..4, any::<bool>()), 0..8),
            volume in "[abc]{1,2}", key in proptest::option::of("[abc]{0,3}"), write: bool,
        ) {
            let lists = ["", "a*", "b", "ab"];
            let mut text = String::from("tenant = [{name=\"1\"}, {name=\"2\"}, {name=\"3\"}]\n");
            for (tenant, pattern, begin, writes) in &rules {
                text += &format!("[[match]]\ntenant = \"{tenant}\"\n");
                let names = [("volume", lists[*pattern as usize])];
                let begins = [("key", lists[*begin as usize].trim_end_matches('*'))];
                for (field, value) in names.iter().chain(&begins).filter(|(_, v)| !v.is_empty()) {
                    text += &format!("{field} = \"{value}\"\n");
                }
                // A rule without any condition would make the next one unreachable.
                text += if *writes { "operation = \"write\"\n" } else { "size = \"<1MiB\"\n" };
            }
            let policy = Policy::parse(&text).unwrap();
            let holds = |(_, pattern, begin, writes): &&(u16, u8, u8, bool)| {
                let names = [true, volume.starts_with('a'), volume == "b", volume == "ab"];
                let key = |begin| key.as_ref().is_some_and(|key| key.starts_with(begin));
                let begins = [true, key("a"), key("b"), key("ab")];
                let is_ours = *pattern > 0 || *begin > 0;
                is_ours && names[*pattern as usize] && begins[*begin as usize] && (!writes || write)
            };
            let wanted = rules.iter().find(holds).map_or(2, |rule| rule.0);
            let operation = if write { Operation::Write } else { Operation::Read };
            let key = key.as_ref().map(|key| key.as_bytes());
            let query = OwnerQuery { operation, size: Bytes(1), offset: None, key };
            let owners = Owners::new(&policy, &volume, "2");
            prop_assert_eq!(owners.owner(query).tenant.0, wanted);
            prop_assert!(owners.all(key.is_some()).any(|owner| owner.0 == wanted));
        }
    }
}
