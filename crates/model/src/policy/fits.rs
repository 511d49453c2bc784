//! Checks that the rules and gates of a tenant fit into a stage's tables.
//!
//! A stage that names its tenant gets what belongs to it. One that names none gets what belongs to
//! every tenant that its user may act for. Only its own machine can resolve its user, so the
//! controller counts what such a stage would have to hold, and refuses it if that is too much.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::iter::once;
use core::ops::Range;

use super::{Channel, GateKind, Levels, Policy, RuleTarget, Tenant, limits};
use crate::conditions::{Conditions, StorageConditions};
use crate::gate::{GateSpec, Unit};
use crate::text::{ReadResult, wrong};

/// Where in the text the things of a policy stand, in the order of its lists.
pub(super) struct TextSpans {
    pub(super) tenants: Vec<Range<usize>>,
    /// A channel's name, and its gates.
    pub(super) channels: Vec<(Range<usize>, Vec<Range<usize>>)>,
    pub(super) matches: Vec<Range<usize>>,
}

/// Something of a tenant that takes a slot in the tables of its stages. Indexes are those of the
/// policy's channels, and of a channel's gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotUse {
    OwnChannel,
    /// A bucket that all of the tenant's requests pass.
    OwnGate,
    Channel(usize),
    Gate(usize, usize),
    /// The bucket of a background channel.
    Background(usize),
}

/// All uses of slots in stages, each with the index of its tenant. The gate that times requests is
/// left out, as all tenants share it.
fn slots(policy: &Policy) -> impl Iterator<Item = (usize, SlotUse)> {
    let own = policy.tenants.iter().enumerate().flat_map(|(index, tenant)| {
        let gates = policy.buckets(tenant).map(move |_| (index, SlotUse::OwnGate));
        once((index, SlotUse::OwnChannel)).chain(gates)
    });
    let channels = policy.channels.iter().enumerate().flat_map(|(at, channel)| {
        let index = usize::from(channel.tenant.0).checked_sub(1);
        let index = index.filter(|index| *index < policy.tenants.len());
        let gates = (0..channel.gates.len()).map(move |gate| SlotUse::Gate(at, gate));
        let background = channel.background.map(|_| SlotUse::Background(at));
        let slots = once(SlotUse::Channel(at)).chain(gates).chain(background);
        index.into_iter().flat_map(move |index| slots.clone().map(move |slot| (index, slot)))
    });
    own.chain(channels)
}

/// How many slots a tenant takes in each of its stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSlots {
    /// Its own channel, and others.
    pub channels: usize,
    /// Without the gate that times requests, which is one of all tenants.
    pub gates: usize,
}

impl Policy {
    /// The slots that each tenant takes in its stages, of a policy as stages see it.
    pub fn stage_slots(&self) -> Vec<StageSlots> {
        let mut counts = alloc::vec![StageSlots::default(); self.tenants.len()];
        for (index, slot) in slots(self) {
            match slot {
                SlotUse::OwnChannel | SlotUse::Channel(_) => counts[index].channels += 1,
                SlotUse::OwnGate | SlotUse::Gate(..) | SlotUse::Background(_) => {
                    counts[index].gates += 1;
                }
            }
        }
        counts
    }
}

/// Refuses the first thing of a kind that is one too many, of the policy as stages see it.
pub(super) fn check(policy: &Policy, spans: &TextSpans) -> ReadResult<()> {
    let mut channels = Count::new("channels", limits::CHANNELS, FEWER_CHANNELS);
    let mut gates = Count::new("gates", limits::GATES, FEWER_GATES);
    let mut queues = Count::new("queue gates", limits::QUEUES, FEWER_QUEUES);
    let mut rules = Count::new("match rules", limits::RULES, FEWER_RULES);
    let mut bounds = BTreeSet::new();
    // Where the capacity is measured, requests pass the gate that times them, too.
    let timed = usize::from(policy.measured_at(GateKind::Stage).is_some());
    for (index, slot) in slots(policy) {
        let (tenant, own) = (&policy.tenants[index], &spans.tenants[index]);
        match slot {
            SlotUse::OwnChannel => {
                channels.add(tenant, own)?;
                (0..timed).try_for_each(|_| gates.add(tenant, own))?;
                if !policy.stage_paths().is_empty() {
                    // The rule that confines the tenant's own channel to the paths of the resource.
                    rules.add(tenant, own)?;
                }
            }
            SlotUse::OwnGate => gates.add(tenant, own)?,
            SlotUse::Channel(at) => {
                let (span, gate_spans) = &spans.channels[at];
                let channel = &policy.channels[at];
                let paced = usize::from(channel.background.is_some());
                row(channel, policy.buckets(tenant).count() + timed + paced, gate_spans)?;
                channels.add(tenant, span)?;
            }
            SlotUse::Background(at) => gates.add(tenant, &spans.channels[at].0)?,
            SlotUse::Gate(at, gate) => {
                let span = &spans.channels[at].1[gate];
                gates.add(tenant, span)?;
                if contexts(&policy.channels[at].gates[gate]).is_some() {
                    queues.add(tenant, span)?;
                }
            }
        }
    }
    for (rule, span) in policy.matches.iter().zip(&spans.matches) {
        if !rule.storage.is_empty() {
            // It is one of gateways, and takes no place in a stage.
            storage(&rule.storage, span)?;
            continue;
        }
        let owner = match rule.target {
            RuleTarget::Tenant(id) => Some(id),
            RuleTarget::Channel(index) => policy.channels.get(index).map(|channel| channel.tenant),
        };
        let Some(tenant) = owner.and_then(|id| policy.tenant(id)) else { continue };
        rules.add(tenant, span)?;
        sizes(&rule.conditions, &mut bounds, span)?;
        patterns(&rule.conditions, span)?;
    }
    Ok(())
}

const FEWER_CHANNELS: &str = "one of them is the tenant's own; merge some, or make two tenants";
const FEWER_GATES: &str = "the tenant has one of its own for each unit in which it or the budget \
                           has a level; remove some, or make two tenants";
const FEWER_QUEUES: &str = "fair-queue, priority and concurrency are queue gates; remove one, or \
                            send the requests of two channels through one";
const FEWER_RULES: &str = "write what rules of one target have in common as one rule, with a list \
                           of patterns";

/// One channel's gates: how many a request passes there, with the `own` ones of its tenant, and how
/// many contexts they distinguish.
fn row(channel: &Channel, own: usize, spans: &[Range<usize>]) -> ReadResult<()> {
    let name = &channel.name;
    let mut queues = 0;
    for (index, (gate, span)) in channel.gates.iter().zip(spans).enumerate() {
        let most = limits::GATES_PER_CHANNEL;
        if index + own == most {
            let message = format!("gates: this is one too many in channel {name}");
            let fix = format!(
                "a request passes at most {most}, {own} of them its tenant's own; leave at most {}",
                most - own
            );
            return wrong(span.clone(), message, fix);
        }
        let Some(contexts) = contexts(gate) else { continue };
        queues += 1;
        let most = limits::QUEUES_PER_CHANNEL;
        if queues > most {
            let message = format!("gates: this is one queue gate too many in channel {name}");
            let fix = format!(
                "leave at most {most} of fair-queue, priority and concurrency; a request holds a \
                 turn at each"
            );
            return wrong(span.clone(), message, fix);
        }
        // One flow is for whatever no pattern names.
        let (named, most) = (contexts.len(), limits::FLOWS - 1);
        if named > most {
            let message = format!("gates: a {} gate that names {named} contexts", gate.kind());
            let fix = format!("name at most {most}; one like \"compaction*\" stands for many");
            return wrong(span.clone(), message, fix);
        }
        contexts.into_iter().try_for_each(|text| short("gates", text, span))?;
    }
    Ok(())
}

/// The patterns of contexts that a queue gate names; none for another gate.
fn contexts(gate: &GateSpec) -> Option<Vec<&String>> {
    match gate {
        GateSpec::FairQueue { weights, .. } => {
            Some(weights.iter().map(|(pattern, _)| pattern).collect())
        }
        GateSpec::Priority { order, .. } => Some(order.iter().collect()),
        GateSpec::Concurrency { .. } => Some(Vec::new()),
        _ => None,
    }
}

/// The sizes at which a rule begins or ceases to apply; the `bounds` are those of the rules so far.
/// The rules of all tenants count together: no policy has come near this limit.
fn sizes(
    conditions: &Conditions,
    bounds: &mut BTreeSet<u64>,
    span: &Range<usize>,
) -> ReadResult<()> {
    let size = conditions.size;
    let edges = [size.min.0, size.max.0.saturating_add(1)];
    bounds.extend(edges.into_iter().filter(|end| *end != 0 && *end != u64::MAX));
    let most = limits::SIZES;
    if bounds.len() <= most {
        return Ok(());
    }
    let message = "size: with this one, rules tell too many sizes apart";
    let fix = format!("use at most {most} different bounds in all; \"4KiB..64KiB\" has two");
    wrong(span.clone(), message, fix)
}

fn patterns(conditions: &Conditions, span: &Range<usize>) -> ReadResult<()> {
    let Conditions { workflow, context, process, cgroup, user, path, .. } = conditions;
    let fields = [
        ("workflow", workflow),
        ("context", context),
        ("process", process),
        ("cgroup", cgroup),
        ("user", user),
        ("path", path),
    ];
    let mut all = fields.iter().flat_map(|(field, texts)| texts.iter().map(|text| (*field, text)));
    all.try_for_each(|(field, text)| short(field, text, span))
}

fn storage(storage: &StorageConditions, span: &Range<usize>) -> ReadResult<()> {
    storage.volume.iter().try_for_each(|text| short("volume", text, span))?;
    let Some(key) = storage.key.iter().find(|key| key.len() > limits::PATTERN) else {
        return Ok(());
    };
    let message = format!("key: {} bytes are too long", key.len());
    wrong(span.clone(), message, "no memcached key has more than 250")
}

fn short(field: &str, pattern: &str, span: &Range<usize>) -> ReadResult<()> {
    let (length, most) = (pattern.len(), limits::PATTERN);
    if length <= most {
        return Ok(());
    }
    let message = format!("{field}: a pattern of {length} bytes is too long");
    wrong(span.clone(), message, format!("use at most {most}, and \"**\" for the rest"))
}

/// How many of something each tenant has.
struct Count<'a> {
    what: &'static str,
    most: usize,
    fix: &'static str,
    of: BTreeMap<&'a str, usize>,
}

impl<'a> Count<'a> {
    fn new(what: &'static str, most: usize, fix: &'static str) -> Self {
        Self { what, most, fix, of: BTreeMap::new() }
    }

    /// One more, of this tenant.
    fn add(&mut self, tenant: &'a Tenant, span: &Range<usize>) -> ReadResult<()> {
        let count = self.of.entry(&tenant.name).or_default();
        *count += 1;
        let Self { what, most, fix, .. } = self;
        if *count <= *most {
            return Ok(());
        }
        let name = &tenant.name;
        let message =
            format!("{what}: one too many of tenant {name}; a stage holds at most {most}");
        wrong(span.clone(), message, *fix)
    }
}

impl Policy {
    /// The units in which `tenant` has a bucket of its own on each stage: those in which something
    /// was promised, to it or from it, and those in which it shares a budget or its group's limit.
    pub fn buckets(&self, tenant: &Tenant) -> impl Iterator<Item = Unit> + use<> {
        let group = self.group_of(tenant);
        let shared = group.map_or(Levels::default(), |group| group.promise.limit);
        let levels = [self.budget, tenant.limit, tenant.reservation, shared];
        let units = [Unit::Bytes, Unit::Operations].into_iter();
        units.filter(move |unit| levels.iter().any(|level| level.get(*unit).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{BackgroundSpec, FlowPriority};
    use alloc::string::ToString;

    /// `count` times what `one` writes.
    fn times(count: usize, one: impl Fn(usize) -> String) -> String {
        (0..count).map(one).collect()
    }

    fn tenant(number: usize) -> String {
        format!("[[tenant]]\nname = \"t{number}\"\n")
    }

    fn channel(name: usize, gates: &str) -> String {
        format!("[[channel]]\nname = \"c{name}\"\ntenant = \"t0\"\ngates = [{gates}]\n")
    }

    /// `most` of something are accepted, and one more is refused in words with all of `wanted`.
    #[track_caller]
    fn holds(most: usize, policy: impl Fn(usize) -> String, wanted: &[&str]) {
        Policy::parse(&policy(most)).unwrap();
        let error = Policy::parse(&policy(most + 1)).unwrap_err().to_string();
        for wanted in wanted {
            assert!(error.contains(wanted), "{error}\n  should contain\n{wanted}");
        }
    }

    #[test]
    fn slots_are_counted_by_tenant() {
        let text = "budget = \"1GiB/s\"\n".to_string()
            + &tenant(0)
            + &tenant(1)
            + "limit = \"10 iops\"\n"
            + &channel(0, "{ kind = \"no-op\" }, { kind = \"concurrency\", depth = 1 }")
            + &channel(1, "");
        let mut policy = Policy::parse(&text).unwrap();
        let slots = |channels, gates| StageSlots { channels, gates };
        assert_eq!(policy.stage_slots(), [slots(3, 3), slots(1, 2)]);
        policy.channels[1].background =
            Some(BackgroundSpec { priority: FlowPriority::Low, minimum: None });
        assert_eq!(policy.stage_slots(), [slots(3, 4), slots(1, 2)], "with a bucket of background");
        policy.channels[1].background = None;
        policy.channels[0].tenant.0 = 3;
        assert_eq!(policy.stage_slots(), [slots(2, 1), slots(1, 2)], "of no tenant");
    }

    #[test]
    fn a_tenant_has_so_many_channels() {
        let wanted = ["line 512, column 8: channels: one too many of tenant t0", "at most 128"];
        // The tenant's own channel counts like any other.
        let policy = |count| tenant(0) + &times(count, |name| channel(name, ""));
        holds(limits::CHANNELS - 1, policy, &wanted);
    }

    #[test]
    fn a_tenant_has_so_many_gates() {
        // With a budget in both units two gates are the tenant's own.
        let policy = |count| {
            let three = |name| channel(name, &"{ kind = \"no-op\" },\n".repeat(3));
            let last = channel(count, "{ kind = \"no-op\" }");
            let budget = "budget = [\"1GiB/s\", \"1k iops\"]\n".to_string();
            budget + &tenant(0) + &last + &times(count, three)
        };
        let wanted = ["gates: one too many of tenant t0; a stage holds at most 255; the tenant"];
        holds(84, policy, &wanted);
    }

    #[test]
    fn a_request_passes_so_many_gates() {
        let gates = |count| channel(0, &times(count, |_| "{ kind = \"no-op\" },\n".to_string()));
        let wanted =
            ["line 14, column 1: gates: this is one too many in channel c0", "most 8, 0 of"];
        holds(limits::GATES_PER_CHANNEL, |count| tenant(0) + &gates(count), &wanted);
        let limited = tenant(0) + "limit = [\"1GiB/s\", \"1k iops\"]\n";
        let wanted = ["passes at most 8, 2 of them its tenant's own; leave at most 6"];
        holds(limits::GATES_PER_CHANNEL - 2, |count| limited.clone() + &gates(count), &wanted);
    }

    #[test]
    fn a_stage_holds_so_many_rules() {
        let rule = |name| format!("[[match]]\ntenant = \"t0\"\nprocess = \"p{name}\"\n");
        let wanted = ["line 771, column 1: match rules: one too many of tenant t0", "256; write"];
        holds(limits::RULES, |count| tenant(0) + &times(count, rule), &wanted);
    }

    #[test]
    fn a_stage_holds_so_many_queues() {
        let one = |name| channel(name, "{ kind = \"concurrency\", depth = 1 }");
        let wanted =
            ["line 70, column 10: queue gates: one too many of tenant t0", "16; fair-queue,"];
        holds(limits::QUEUES, |count| tenant(0) + &times(count, one), &wanted);
    }

    #[test]
    fn a_request_waits_in_so_many_queues() {
        let gate = |_| "{ kind = \"priority\", depth = 1 }, ".to_string();
        let wanted = ["gates: this is one queue gate too many in channel c0; leave at most 4"];
        let policy = |count| tenant(0) + &channel(0, &times(count, gate));
        holds(limits::QUEUES_PER_CHANNEL, policy, &wanted);
    }

    #[test]
    fn a_queue_distinguishes_so_many_contexts() {
        let gate = |count| {
            let contexts = times(count, |name| format!("\"x{name}\", "));
            format!("{{ kind = \"priority\", depth = 1, order = [{contexts}] }}")
        };
        let wanted = ["a priority gate that names 16 contexts; name at most 15"];
        holds(limits::FLOWS - 1, |count| tenant(0) + &channel(0, &gate(count)), &wanted);
    }

    #[test]
    fn rules_distinguish_so_many_sizes() {
        let rule = |size| format!("[[match]]\ntenant = \"t0\"\nsize = \"<{}B\"\n", size + 2);
        let wanted = ["line 198, column 1: size: with this one, rules tell too many", "most 64"];
        // The same bound again is not another one.
        let policy = |count| tenant(0) + &rule(0) + &times(count, rule);
        holds(limits::SIZES, policy, &wanted);
    }

    #[test]
    fn a_pattern_has_so_many_bytes() {
        let rule = |length| {
            let path = "x".repeat(length);
            tenant(0) + &format!("[[match]]\ntenant = \"t0\"\npath = \"{path}\"\n")
        };
        let wanted =
            ["line 3, column 1: path: a pattern of 256 bytes is too long; use at most 255"];
        holds(limits::PATTERN, rule, &wanted);
    }

    #[test]
    fn rules_of_gateways_take_no_slot_in_a_stage() {
        let rule = |name| format!("[[match]]\ntenant = \"t0\"\nvolume = \"v{name}\"\n");
        Policy::parse(&(tenant(0) + &times(2 * limits::RULES, rule))).unwrap();
        let rule = |length| {
            let key = "x".repeat(length);
            tenant(0) + &format!("[[match]]\ntenant = \"t0\"\nkey = \"{key}\"\n")
        };
        holds(limits::PATTERN, rule, &["line 3, column 1: key: 256 bytes are too long"]);
    }

    #[test]
    fn what_belongs_to_others_is_not_in_a_tenants_stage() {
        Policy::parse(&times(1000, tenant)).unwrap();
    }
}
