//! Makes the rules of one stage from a policy: all that it consists of, in one list.
//!
//! The list always begins with "clear", so a stage comes to the same state whatever it was before:
//! one that is new, one that another controller had, and one that missed an update. Names are
//! derived from the policy alone, so two lists made from similar policies name the same things
//! alike and the stage keeps their counters and tokens.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::gate::{Burst, Throughput, Unit};
use tidegate_model::policy::{GateKind, RuleTarget, Tenant};
use tidegate_model::{ChannelSpec, Conditions, GateSpec, Policy, TenantId};

use super::capacity::burst_within;
use crate::message::Rule;

/// Rates of a tenant's own bucket on a stage, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    /// The rate that is safe without a controller; a stage goes back to it if the policy says so.
    pub(super) safe: u64,
    /// The rate in force.
    pub(super) now: u64,
}

/// A bucket of a tenant on a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketKey {
    /// The bucket in this unit that all of its requests pass.
    Own(Unit),
    /// The bucket of its background channel with this number among its channels.
    Background(usize),
}

/// Both units, in the order of their numbers.
pub(super) const UNITS: [Unit; 2] = [Unit::Bytes, Unit::Operations];

/// The name of the gate at which every request is timed, where the capacity is measured. No channel
/// has a gate of this name, as its own name stands before the colon.
const TIMER: &str = ":timer";

/// The suffixes of the names of a tenant's own buckets, by unit.
const BUCKETS: [&str; 2] = ["bandwidth", "operations"];

/// The suffix of the name of a background channel in the name of its bucket.
const BACKGROUND: &str = ":background";

/// A change of a rate by less than one part in this many is not sent. A limit has to hold within
/// two per cent, of which this takes half; demands that are measured fluctuate by more than it.
const CHANGE_PART: u64 = 100;

pub(super) fn bucket_name(tenant: &str, unit: Unit) -> String {
    format!("{tenant}:{}", BUCKETS[unit as usize])
}

/// The tenant and the unit of the bucket with this name, if it is a tenant's own.
pub(super) fn bucket_named(name: &str) -> Option<(&str, Unit)> {
    let (tenant, suffix) = name.split_once(':')?;
    let index = BUCKETS.iter().position(|bucket| *bucket == suffix)?;
    Some((tenant, UNITS[index]))
}

/// The name of a background channel's bucket.
pub(super) fn background_bucket(channel: &str) -> String {
    format!("{channel}{BACKGROUND}")
}

/// The background channel whose bucket has this name, if it is such a bucket's.
pub(super) fn background_channel(bucket: &str) -> Option<&str> {
    bucket.strip_suffix(BACKGROUND)
}

/// Whether a change is too small to be sent.
pub(super) fn is_small(before: u64, after: u64) -> bool {
    u128::from(before.abs_diff(after)) * u128::from(CHANGE_PART) < u128::from(before)
}

/// Whether a tenant has a bucket of its own in `unit`: if it has a reservation or a limit in that
/// unit, or if all tenants share a budget in it.
pub(super) fn has_bucket(policy: &Policy, tenant: &Tenant, unit: Unit) -> bool {
    policy.buckets(tenant).any(|of| of == unit)
}

/// The id of the tenant at `index` in a policy.
pub(super) fn tenant_id(index: usize) -> TenantId {
    TenantId(u16::try_from(index + 1).unwrap_or(u16::MAX))
}

/// Everything for a stage that serves the tenants at `served`, in ascending order, and sends
/// requests that match no rule to the channel of the tenant at `home`. `rates` gives those of their
/// buckets.
///
/// Where the promises of stages are of some folders only, every rule is confined to those, and
/// requests elsewhere pass, as requests do that no rule matches.
pub(super) fn rules(
    policy: &Policy,
    served: &[usize],
    home: Option<usize>,
    rates: impl Fn(usize, BucketKey) -> Rates,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    rules.push(Rule::CLEAR);
    if policy.measured_at(GateKind::Stage).is_some() {
        rules.push(Rule::gate(TIMER, GateSpec::LatencyProbe));
    }
    for index in served {
        push_tenant(&mut rules, policy, *index, &rates);
    }
    let (mut count, folders) = (0, policy.stage_paths());
    // Rules with storage conditions are for gateways, not for stages.
    for rule in policy.matches.iter().filter(|rule| rule.storage.is_empty()) {
        let (owner, channel) = match rule.target {
            RuleTarget::Tenant(id) => (id, policy.tenant(id).map(|tenant| &tenant.name)),
            RuleTarget::Channel(index) => {
                let Some(channel) = policy.channels.get(index) else { continue };
                (channel.tenant, Some(&channel.name))
            }
        };
        let Some(channel) = channel else { continue };
        if served.binary_search(&usize::from(owner.0).wrapping_sub(1)).is_err() {
            continue;
        }
        rules.push(Rule::insert(count, confined(rule.conditions.clone(), folders), channel));
        count += 1;
    }
    if let Some(home) = home {
        let channel = &policy.tenants[home].name;
        rules.push(if folders.is_empty() {
            Rule::default_channel(channel)
        } else {
            Rule::insert(count, confined(Conditions::default(), folders), channel)
        });
    }
    rules
}

/// Conditions that hold in `folders` only. Those with a path hold nowhere else already.
fn confined(mut conditions: Conditions, folders: &[String]) -> Conditions {
    if conditions.path.is_empty() {
        conditions.path = folders.to_vec();
    }
    conditions
}

/// A tenant's own bucket: first with the safe rate, then with the rate in force.
///
/// Where the capacity is measured within a bound of latency, the bursts of all tenants together are
/// to make no longer queue than a full device has. A burst that the policy states stays, but one of
/// data says nothing of operations, which have the default.
pub(super) fn push_bucket(
    rules: &mut Vec<Rule>,
    policy: &Policy,
    tenant: &Tenant,
    (unit, rates): (Unit, Rates),
) {
    let stated = match (unit, tenant.burst) {
        (Unit::Operations, Burst::Size(_)) => Burst::DEFAULT,
        (_, burst) => burst,
    };
    push_rates(rules, policy, bucket_name(&tenant.name, unit), (unit, rates, stated));
}

/// A bucket with these rates and this burst.
fn push_rates(
    rules: &mut Vec<Rule>,
    policy: &Policy,
    name: String,
    (unit, rates, stated): (Unit, Rates, Burst),
) {
    let bound = policy.measured_at(GateKind::Stage).filter(|_| stated == Burst::DEFAULT);
    let burst = bound.map_or(stated, burst_within);
    let [safe, now] = [rates.safe, rates.now].map(|rate| Throughput::new(unit, rate));
    let spec = GateSpec::TokenBucket { rate: safe, burst };
    rules.push(Rule::gate(&name, spec));
    rules.push(Rule::rate(name, now));
}

/// A tenant's buckets, its own channel, and its other channels with their gates.
fn push_tenant(
    rules: &mut Vec<Rule>,
    policy: &Policy,
    index: usize,
    rates: &impl Fn(usize, BucketKey) -> Rates,
) {
    let tenant = &policy.tenants[index];
    let id = tenant_id(index);
    let mut buckets = Vec::new();
    for unit in UNITS.into_iter().filter(|unit| has_bucket(policy, tenant, *unit)) {
        push_bucket(rules, policy, tenant, (unit, rates(index, BucketKey::Own(unit))));
        buckets.push(bucket_name(&tenant.name, unit));
    }
    if policy.measured_at(GateKind::Stage).is_some() {
        buckets.push(TIMER.into());
    }
    let channel = |name: &String, gates| {
        let (name, class) = (name.clone(), tenant.class);
        Rule::channel(ChannelSpec { name, tenant: id, class, gates })
    };
    rules.push(channel(&tenant.name, buckets.clone()));
    let extra = policy.channels.iter().filter(|channel| channel.tenant == id);
    for (at, extra) in extra.enumerate() {
        let mut gates = Vec::new();
        for (index, spec) in extra.gates.iter().enumerate() {
            let name = format!("{}:{index}", extra.name);
            rules.push(Rule::gate(&name, spec.clone()));
            gates.push(name);
        }
        if extra.background.is_some() {
            let name = background_bucket(&extra.name);
            let rates = rates(index, BucketKey::Background(at + 1));
            push_rates(rules, policy, name.clone(), (Unit::Bytes, rates, Burst::DEFAULT));
            gates.push(name);
        }
        gates.extend(buckets.iter().cloned());
        rules.push(channel(&extra.name, gates));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Differentiation, Enforcement, Housekeeping};
    use alloc::string::ToString;
    use tidegate_model::policy::GateKind;

    const POLICY: &str = r#"
        budget = "1000MiB/s"
        [[tenant]]
        name = "oltp"
        limit = "30k iops"
        [[tenant]]
        name = "backup"
        [[channel]]
        name = "scans"
        tenant = "oltp"
        gates = [{ kind = "concurrency", depth = 2 }, { kind = "latency-probe" }]
        [[match]]
        tenant = "backup"
        process = "restic"
        [[match]]
        tenant = "oltp"
        volume = "db"
        [[match]]
        channel = "scans"
        size = ">=1MiB"
        [[match]]
        tenant = "oltp"
        process = "postgres"
    "#;

    /// One line for each rule.
    fn listing(served: &[usize], home: Option<usize>) -> String {
        listing_of(POLICY, served, home)
    }

    fn listing_of(policy: &str, served: &[usize], home: Option<usize>) -> String {
        let policy = Policy::parse(policy).unwrap();
        let mut text = String::new();
        let rates = |index: usize, bucket| {
            let number = match bucket {
                BucketKey::Own(unit) => unit as u64,
                BucketKey::Background(slot) => 10 * slot as u64,
            };
            let safe = 100 * (index as u64 + 1) + number;
            Rates { safe, now: 10 * safe }
        };
        for rule in rules(&policy, served, home, rates) {
            text += &match rule {
                Rule::CLEAR => "clear".to_string(),
                Rule::Housekeeping(Housekeeping::SetGate { name, spec }) => match spec {
                    GateSpec::TokenBucket { rate, .. } => format!("gate {name} safe at {rate}"),
                    spec => format!("gate {name} is {}", spec.kind()),
                },
                Rule::Housekeeping(Housekeeping::SetChannel(channel)) => {
                    format!("channel {} of {}: {:?}", channel.name, channel.tenant, channel.gates)
                }
                Rule::Differentiation(Differentiation::Insert { index, channel, .. }) => {
                    format!("rule {index} to {channel}")
                }
                Rule::Differentiation(Differentiation::Default { channel }) => {
                    format!("default to {channel}")
                }
                Rule::Enforcement(Enforcement::Rate { gate, rate }) => format!("{gate} at {rate}"),
                other => format!("{other:?}"),
            };
            text += "\n";
        }
        text
    }

    #[test]
    fn a_stage_of_a_tenant_has_what_belongs_to_it() {
        let golden = r#"clear
gate oltp:bandwidth safe at 100B/s
oltp:bandwidth at 1kB/s
gate oltp:operations safe at 101 iops
oltp:operations at 1010 iops
channel oltp of 1: ["oltp:bandwidth", "oltp:operations"]
gate scans:0 is concurrency
gate scans:1 is latency-probe
channel scans of 1: ["scans:0", "scans:1", "oltp:bandwidth", "oltp:operations"]
rule 0 to scans
rule 1 to oltp
default to oltp
"#;
        assert_eq!(listing(&[0], Some(0)), golden);
    }

    #[test]
    fn a_background_channel_has_a_bucket_before_its_tenants() {
        let policy = r#"
            budget = "1000MiB/s"
            [[tenant]]
            name = "kv"
            [[channel]]
            name = "scans"
            tenant = "kv"
            [[channel]]
            name = "flush"
            tenant = "kv"
            gates = [{ kind = "no-op" }]
            background = "high"
        "#;
        let golden = r#"clear
gate kv:bandwidth safe at 100B/s
kv:bandwidth at 1kB/s
channel kv of 1: ["kv:bandwidth"]
channel scans of 1: ["kv:bandwidth"]
gate flush:0 is no-op
gate flush:background safe at 120B/s
flush:background at 1200B/s
channel flush of 1: ["flush:0", "flush:background", "kv:bandwidth"]
default to kv
"#;
        assert_eq!(listing_of(policy, &[0], Some(0)), golden);
        assert_eq!(background_channel("flush:background"), Some("flush"));
        assert_eq!(background_channel("flush:0"), None);
        assert_eq!(bucket_named("flush:background"), None);
    }

    /// A burst of 4 MiB is not one of four million operations.
    #[test]
    fn a_burst_in_bytes_is_none_of_operations() {
        let bursts = |burst: &str| {
            let tenant = "[[tenant]]\nname = \"a\"\nlimit = [\"1MiB/s\", \"9 iops\"]\n";
            let policy = Policy::parse(&format!("{tenant}burst = \"{burst}\"")).unwrap();
            let rules = rules(&policy, &[0], Some(0), |_, _| Rates { safe: 1, now: 1 });
            let burst = |rule: Rule| match rule {
                Rule::Housekeeping(Housekeeping::SetGate {
                    spec: GateSpec::TokenBucket { rate, burst },
                    ..
                }) => Some((rate.unit(), burst)),
                _ => None,
            };
            Vec::from_iter(rules.into_iter().filter_map(burst))
        };
        let size = Burst::Size(tidegate_model::Bytes(4 << 20));
        assert_eq!(bursts("4MiB"), [(Unit::Bytes, size), (Unit::Operations, Burst::DEFAULT)]);
        let time = Burst::Time(tidegate_model::Span(50_000_000));
        assert_eq!(bursts("50ms"), [(Unit::Bytes, time), (Unit::Operations, time)]);
    }

    #[test]
    fn a_stage_without_a_tenant_has_all_channels_and_no_default() {
        let golden = r#"clear
gate oltp:bandwidth safe at 100B/s
oltp:bandwidth at 1kB/s
gate oltp:operations safe at 101 iops
oltp:operations at 1010 iops
channel oltp of 1: ["oltp:bandwidth", "oltp:operations"]
gate scans:0 is concurrency
gate scans:1 is latency-probe
channel scans of 1: ["scans:0", "scans:1", "oltp:bandwidth", "oltp:operations"]
gate backup:bandwidth safe at 200B/s
backup:bandwidth at 2kB/s
channel backup of 2: ["backup:bandwidth"]
rule 0 to backup
rule 1 to scans
rule 2 to oltp
"#;
        assert_eq!(listing(&[0, 1], None), golden);
    }

    #[test]
    fn rules_are_confined_to_the_folders_of_a_resource() {
        let text = r#"
            [[resource]]
            name = "files"
            path = ["/srv/**", "/data/**"]
            capacity = "1000MiB/s"
            [[tenant]]
            name = "oltp"
            [[match]]
            tenant = "oltp"
            process = "postgres"
            [[match]]
            tenant = "oltp"
            path = "/srv/db/*"
        "#;
        let policy = Policy::parse(text).unwrap().at(GateKind::Stage);
        let rules = rules(&policy, &[0], Some(0), |_, _| Rates::default());
        let conditions = |rule: &Rule| match rule {
            Rule::Differentiation(Differentiation::Insert { conditions, .. }) => {
                Some((conditions.process.join(","), conditions.path.join(",")))
            }
            Rule::Differentiation(rule) => panic!("{rule:?} holds everywhere"),
            _ => None,
        };
        let found: Vec<_> = rules[1..].iter().filter_map(conditions).collect();
        let [postgres, own, home] = &found[..] else { panic!("{found:?}") };
        assert_eq!(*postgres, ("postgres".into(), "/srv/**,/data/**".into()));
        assert_eq!(*own, ("".into(), "/srv/db/*".into()));
        assert_eq!(*home, ("".into(), "/srv/**,/data/**".into()));
    }

    #[test]
    fn a_bucket_is_known_by_its_name() {
        for unit in UNITS {
            assert_eq!(bucket_named(&bucket_name("kv", unit)), Some(("kv", unit)));
        }
        assert_eq!(bucket_named("scans:0"), None);
        assert_eq!(bucket_named("kv"), None);
    }
}
