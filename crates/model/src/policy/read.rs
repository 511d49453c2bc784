//! Parser of a policy file, from TOML to a [`Policy`]: first the shape (serde, with the place of
//! every value kept), then the meaning, one small function for each thing that a policy holds.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::background::{self, BackgroundSpec, FlowPriority};
use super::fits::{self, TextSpans};
use super::limits;
use super::tenant_id;
use super::users::CERTIFICATE;
use super::{Account, Channel, Fallback, GateKind, Group, Levels, Match, Policy};
use super::{PolicyError, RuleTarget, Tenant};
use crate::conditions::{Conditions, SizeRange, StorageConditions};
use crate::gate::{GateSpec, Throughput, Unit};
use crate::id::TenantId;
use crate::operation::OperationSet;
use crate::tag::{Class, ClassWeights};
use crate::text::{
    self, ReadResult, Strings, Text, choice, count, name, nearest_in, quantity, wrong,
};
use crate::units::{Portion, Span};

mod levels;
mod resources;

pub(crate) use levels::{MEASURED, levels};
use levels::{burst, burst_of, throughput};
pub(crate) use resources::latency;
use resources::{PromisesOn, RawGroup, RawResource};

/// The most tenants: the 16-bit id holds them, with room for id 0, which means no tenant.
const TENANTS_MAX: usize = 60_000;
/// The shortest time between two distributions: below it, collecting costs more than it is worth.
const REDISTRIBUTE_MIN: Span = Span(10 * Span::MILLISECOND.0);
/// Heavier than this, and a weight of one would starve for hours.
const WEIGHT_MAX: i64 = 1_000_000;
const DEPTH_MAX: i64 = limits::DEPTH as i64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    period: Option<Text>,
    redistribute: Option<Text>,
    budget: Option<Spanned<Strings>>,
    account: Option<Text>,
    fallback: Option<Text>,
    class_weights: Option<Spanned<RawClassWeights>>,
    #[serde(default)]
    resource: Vec<Spanned<RawResource>>,
    #[serde(default)]
    group: Vec<Spanned<RawGroup>>,
    #[serde(default)]
    tenant: Vec<Spanned<RawTenant>>,
    #[serde(default)]
    channel: Vec<Spanned<RawChannel>>,
    #[serde(default, rename = "match")]
    matches: Vec<Spanned<RawMatch>>,
}

/// Beside each other on purpose: a class that were left out would have no turn.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClassWeights {
    high: i64,
    medium: i64,
    low: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTenant {
    name: Text,
    class: Option<Text>,
    reservation: Option<Spanned<Strings>>,
    limit: Option<Spanned<Strings>>,
    weight: Option<Spanned<i64>>,
    minimum_share: Option<Text>,
    burst: Option<Text>,
    users: Option<Strings>,
    group: Option<Text>,
    #[serde(default)]
    on: PromisesOn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChannel {
    name: Text,
    tenant: Text,
    #[serde(default)]
    gates: Vec<Spanned<RawGate>>,
    background: Option<Text>,
    minimum: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGate {
    kind: Text,
    rate: Option<Text>,
    burst: Option<Text>,
    depth: Option<Spanned<i64>>,
    weights: Option<Spanned<BTreeMap<String, i64>>>,
    order: Option<Strings>,
    level: Option<Spanned<i64>>,
    key: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMatch {
    tenant: Option<Text>,
    channel: Option<Text>,
    #[serde(default)]
    workflow: Strings,
    #[serde(default)]
    context: Strings,
    #[serde(default)]
    process: Strings,
    #[serde(default)]
    cgroup: Strings,
    #[serde(default)]
    user: Strings,
    path: Option<Spanned<Strings>>,
    #[serde(default)]
    volume: Strings,
    #[serde(default)]
    key: Strings,
    offset: Option<Text>,
    operation: Option<Spanned<Strings>>,
    size: Option<Text>,
    class: Option<Text>,
}

pub(super) fn policy(text: &str) -> Result<Policy, PolicyError> {
    text::read(text, meaning)
}

pub(super) fn policy_all(text: &str) -> Result<Policy, Vec<PolicyError>> {
    text::read_all(text, meaning)
}

fn meaning(raw: RawPolicy) -> ReadResult<Policy> {
    let period = quantity("period", raw.period.as_ref())?.unwrap_or(Span::SECOND);
    let redistribute = quantity("redistribute", raw.redistribute.as_ref())?
        .unwrap_or(Span(100 * Span::MILLISECOND.0));
    if redistribute < REDISTRIBUTE_MIN || redistribute > period {
        let span = raw.redistribute.or(raw.period).map_or(0..0, |text| text.span());
        return wrong(
            span,
            format!("redistribute: {redistribute} is not between {REDISTRIBUTE_MIN} and period"),
            format!("the period is {period}"),
        );
    }
    let groups = resources::groups(&raw.group)?;
    let mut tenants = Vec::<Tenant>::new();
    for raw in &raw.tenant {
        if tenants.len() == TENANTS_MAX {
            return wrong(raw.span(), format!("more than {TENANTS_MAX} tenants"), "merge some");
        }
        tenants.push(tenant(raw.get_ref(), &tenants, &groups)?);
    }
    let mut channels = Vec::<Channel>::new();
    for raw in &raw.channel {
        channels.push(channel(raw.get_ref(), &tenants, &channels)?);
    }
    let mut policy = Policy {
        period,
        redistribute,
        budget: levels("budget", raw.budget.as_ref())?,
        account: choice(
            "account",
            raw.account.as_ref(),
            &[("requests", Account::Requests), ("device", Account::Device)],
        )?,
        fallback: choice(
            "fallback",
            raw.fallback.as_ref(),
            &[
                ("keep", Fallback::Keep),
                ("reservation", Fallback::Reservation),
                ("unlimited", Fallback::Unlimited),
            ],
        )?,
        class_weights: class_weights(raw.class_weights.as_ref())?,
        matches: matches(&raw.matches, &tenants, &channels)?,
        tenants,
        channels,
        resources: Vec::new(),
        groups,
    };
    policy.resources = resources::resources(&raw, &policy)?;
    resources::check_paths(&raw, &policy)?;
    minimum_shares(&raw.tenant, &policy.at(GateKind::Node))?;
    fits::check(&policy.at(GateKind::Stage), &spans(&raw))?;
    background::check(&policy, &background_spans(&raw))?;
    Ok(policy)
}

fn spans(raw: &RawPolicy) -> TextSpans {
    let gates = |raw: &RawChannel| raw.gates.iter().map(Spanned::span).collect();
    let channel = |raw: &RawChannel| (raw.name.span(), gates(raw));
    TextSpans {
        tenants: raw.tenant.iter().map(|raw| raw.get_ref().name.span()).collect(),
        channels: raw.channel.iter().map(|raw| channel(raw.get_ref())).collect(),
        matches: raw.matches.iter().map(Spanned::span).collect(),
    }
}

/// Where each channel says that it is one of background.
fn background_spans(raw: &RawPolicy) -> Vec<Range<usize>> {
    let fields = raw.channel.iter().map(|raw| raw.get_ref().background.as_ref());
    fields.map(|field| field.map_or(0..0, Spanned::span)).collect()
}

/// No minimum share is larger than what a tenant has by weight. So all of them together fit.
fn minimum_shares(raw: &[Spanned<RawTenant>], policy: &Policy) -> ReadResult<()> {
    let all = policy.weights();
    for (raw, tenant) in raw.iter().zip(&policy.tenants) {
        let Some(least) = tenant.minimum_share else { continue };
        let weight = u64::from(tenant.weight);
        if u64::from(least.0) * all > weight * u64::from(Portion::WHOLE.0) {
            let by_weight = weight * u64::from(Portion::WHOLE.0) / all;
            let message = format!(
                "minimum_share: {} is to have {least} of every node, and by weight it has {} \
                 ({weight} of {all})",
                tenant.name,
                Portion(by_weight as u32),
            );
            let text = raw.get_ref().minimum_share.as_ref();
            let fix = "raise its weight or lower its minimum share";
            return wrong(text.map_or(0..0, Spanned::span), message, fix);
        }
    }
    Ok(())
}

fn tenant(raw: &RawTenant, before: &[Tenant], groups: &[Group]) -> ReadResult<Tenant> {
    let taken = before.iter().any(|tenant| tenant.name == *raw.name.get_ref());
    let name = name("tenant", &raw.name, taken)?;
    let (reservation, limit) = promised(&name, raw.reservation.as_ref(), raw.limit.as_ref())?;
    Ok(Tenant {
        name,
        class: class(raw.class.as_ref())?.unwrap_or_default(),
        reservation,
        limit,
        weight: count("weight", raw.weight.as_ref(), WEIGHT_MAX)?.unwrap_or(Policy::WEIGHT),
        minimum_share: quantity("minimum_share", raw.minimum_share.as_ref())?,
        burst: burst(raw.burst.as_ref())?,
        users: users(raw)?,
        group: resources::group(raw.group.as_ref(), groups)?,
    })
}

/// Reads a reservation and a limit, which is no lower.
fn promised(
    name: &str,
    reservation: Option<&Spanned<Strings>>,
    limit: Option<&Spanned<Strings>>,
) -> ReadResult<(Levels, Levels)> {
    let (reserved, most) = (levels("reservation", reservation)?, levels("limit", limit)?);
    for unit in [Unit::Bytes, Unit::Operations] {
        if let (Some(reserved), Some(most)) = (reserved.get(unit), most.get(unit))
            && reserved > most
        {
            let (reserved, most) = (Throughput::new(unit, reserved), Throughput::new(unit, most));
            return wrong(
                reservation.map_or(0..0, Spanned::span),
                format!("reservation: {name} is promised {reserved}, more than its limit {most}"),
                "raise the limit or lower the reservation",
            );
        }
    }
    Ok((reserved, most))
}

fn class(text: Option<&Text>) -> ReadResult<Option<Class>> {
    let Some(text) = text else { return Ok(None) };
    let name = text.get_ref();
    name.parse()
        .map(Some)
        .or_else(|error| wrong(text.span(), format!("class: {name:?} is {error}"), ""))
}

fn class_weights(raw: Option<&Spanned<RawClassWeights>>) -> ReadResult<Option<ClassWeights>> {
    let Some(raw) = raw else { return Ok(None) };
    let RawClassWeights { high, medium, low } = *raw.get_ref();
    let [high, medium, low] = [high, medium, low].map(|weight| u8::try_from(weight).unwrap_or(0));
    match ClassWeights::new(high, medium, low) {
        Some(weights) => Ok(Some(weights)),
        None => wrong(
            raw.span(),
            "class_weights: a weight is out of range",
            "use 1 to 255, like { high = 3, medium = 2, low = 1 }",
        ),
    }
}

/// Reads the names in `users`: a Unix user's has no colon, and a certificate's is not empty.
fn users(raw: &RawTenant) -> ReadResult<Vec<String>> {
    let Some(users) = &raw.users else { return Ok(Vec::new()) };
    if users.0.is_empty() {
        return wrong(
            raw.name.span(),
            "users: an empty list admits no user, and without the field every user is admitted",
            "name a user, or leave the field out",
        );
    }
    for user in &users.0 {
        let bare = user.strip_prefix(CERTIFICATE).unwrap_or(user);
        if bare.is_empty() || bare.contains(':') {
            let message = format!("users: {user:?} is not a user's name");
            let fix = "write a Unix user's name or number, or cert:NAME for a certificate's";
            return wrong(raw.name.span(), message, fix);
        }
    }
    Ok(users.0.clone())
}

fn channel(raw: &RawChannel, tenants: &[Tenant], before: &[Channel]) -> ReadResult<Channel> {
    let wanted = raw.name.get_ref();
    let taken = tenants.iter().any(|tenant| tenant.name == *wanted)
        || before.iter().any(|channel| channel.name == *wanted);
    Ok(Channel {
        name: name("channel", &raw.name, taken)?,
        tenant: known_tenant(&raw.tenant, tenants)?,
        gates: raw.gates.iter().map(|raw| gate(raw.get_ref())).collect::<ReadResult<_>>()?,
        background: background(raw)?,
    })
}

fn background(raw: &RawChannel) -> ReadResult<Option<BackgroundSpec>> {
    let minimum = quantity("minimum", raw.minimum.as_ref())?;
    let Some(text) = &raw.background else {
        let Some(minimum) = &raw.minimum else { return Ok(None) };
        let message = "minimum: only a background channel has one";
        return wrong(minimum.span(), message, r#"add background = "high" or "low", or remove it"#);
    };
    let choices = [FlowPriority::High, FlowPriority::Low];
    match choices.into_iter().find(|priority| priority.name() == text.get_ref().as_str()) {
        Some(priority) => Ok(Some(BackgroundSpec { priority, minimum })),
        None => {
            let message = format!("background: {:?} is not a priority", text.get_ref());
            wrong(text.span(), message, r#"write "high" or "low""#)
        }
    }
}

fn gate(raw: &RawGate) -> ReadResult<GateSpec> {
    let depth = || match count("depth", raw.depth.as_ref(), DEPTH_MAX)? {
        Some(depth) => Ok(depth),
        None => wrong(
            raw.kind.span(),
            format!(
                "depth: {} does not say how many requests may be in service",
                raw.kind.get_ref()
            ),
            "add depth = 4, for example",
        ),
    };
    let kind = raw.kind.get_ref().as_str();
    let (spec, used): (GateSpec, &[&str]) = match kind {
        "no-op" => (GateSpec::NoOp, &[]),
        "token-bucket" => {
            let Some(text) = &raw.rate else {
                let fix = r#"add rate = "50MiB/s", for example"#;
                return wrong(raw.kind.span(), "rate: a token-bucket needs one", fix);
            };
            let rate = throughput("rate", text.get_ref(), text.span())?;
            let burst = burst_of(rate, raw.burst.as_ref())?;
            (GateSpec::TokenBucket { rate, burst }, &["rate", "burst"])
        }
        "fair-queue" => {
            (GateSpec::FairQueue { depth: depth()?, weights: weights(raw)? }, &["depth", "weights"])
        }
        "priority" => {
            let order = raw.order.as_ref().map(|order| order.0.clone()).unwrap_or_default();
            (GateSpec::Priority { depth: depth()?, order }, &["depth", "order"])
        }
        "concurrency" => (GateSpec::Concurrency { depth: depth()? }, &["depth"]),
        "latency-probe" => (GateSpec::LatencyProbe, &[]),
        "compress" => {
            let level = count("level", raw.level.as_ref(), 19)?.unwrap_or(3);
            (GateSpec::Compress { level: level as i32 }, &["level"])
        }
        "encrypt" => {
            let Some(key) = &raw.key else {
                let fix =
                    r#"add key = "NAME"; the program gives the key of that name to its stage"#;
                return wrong(raw.kind.span(), "key: encrypt needs the name of one", fix);
            };
            (GateSpec::Encrypt { key: key.get_ref().clone() }, &["key"])
        }
        other => {
            return wrong(
                raw.kind.span(),
                format!("kind: {other:?} is not a gate"),
                "known are no-op, token-bucket, fair-queue, priority, concurrency, latency-probe, \
                 compress, encrypt",
            );
        }
    };
    refuse_unused(raw, kind, used)?;
    Ok(spec)
}

/// A field that another kind of gate has is as wrong as one that none has.
fn refuse_unused(raw: &RawGate, kind: &str, used: &[&str]) -> ReadResult<()> {
    let given = [
        ("rate", raw.rate.as_ref().map(Spanned::span)),
        ("burst", raw.burst.as_ref().map(Spanned::span)),
        ("depth", raw.depth.as_ref().map(Spanned::span)),
        ("weights", raw.weights.as_ref().map(Spanned::span)),
        ("order", raw.order.as_ref().map(|_| raw.kind.span())),
        ("level", raw.level.as_ref().map(Spanned::span)),
        ("key", raw.key.as_ref().map(Spanned::span)),
    ];
    for (field, span) in given {
        if let Some(span) = span
            && !used.contains(&field)
        {
            return wrong(span, format!("{field}: a {kind} gate has no such field"), "remove it");
        }
    }
    Ok(())
}

fn weights(raw: &RawGate) -> ReadResult<Vec<(String, u32)>> {
    let Some(weights) = &raw.weights else { return Ok(Vec::new()) };
    let entry = |(context, weight): (&String, &i64)| {
        if (1..=WEIGHT_MAX).contains(weight) {
            return Ok((context.clone(), *weight as u32));
        }
        wrong(
            weights.span(),
            format!("weights: {context} = {weight} is out of range"),
            format!("use 1 to {WEIGHT_MAX}"),
        )
    };
    weights.get_ref().iter().map(entry).collect()
}

fn matches(
    raw: &[Spanned<RawMatch>],
    tenants: &[Tenant],
    channels: &[Channel],
) -> ReadResult<Vec<Match>> {
    let mut matches = Vec::<Match>::new();
    for raw in raw {
        if let Some(last) = matches.last()
            && last.conditions == Conditions::default()
            && last.storage.is_empty()
        {
            return wrong(
                raw.span(),
                "match: the rule above it matches every request, so this one never applies",
                "move the rule without conditions to the end",
            );
        }
        matches.push(rule(raw, tenants, channels)?);
    }
    Ok(matches)
}

fn rule(raw: &Spanned<RawMatch>, tenants: &[Tenant], channels: &[Channel]) -> ReadResult<Match> {
    let (span, raw) = (raw.span(), raw.get_ref());
    let target = match (&raw.tenant, &raw.channel) {
        (Some(tenant), None) => RuleTarget::Tenant(known_tenant(tenant, tenants)?),
        (None, Some(channel)) => {
            let wanted = channel.get_ref();
            match channels.iter().position(|channel| channel.name == *wanted) {
                Some(index) => RuleTarget::Channel(index),
                None => {
                    let names = channels.iter().map(|channel| channel.name.as_str());
                    let fix = nearest_in("channel", wanted, names);
                    return wrong(channel.span(), format!("channel: none is {wanted:?}"), fix);
                }
            }
        }
        _ => {
            let fix = r#"write tenant = "NAME" or channel = "NAME""#;
            return wrong(span, "match: a rule names either a tenant or a channel", fix);
        }
    };
    let mut conditions = Conditions {
        workflow: raw.workflow.0.clone(),
        context: raw.context.0.clone(),
        process: raw.process.0.clone(),
        cgroup: raw.cgroup.0.clone(),
        user: raw.user.0.clone(),
        path: raw.path.as_ref().map_or_else(Vec::new, |paths| paths.get_ref().0.clone()),
        ..Conditions::default()
    };
    if let Some(names) = &raw.operation {
        conditions.operation = OperationSet::EMPTY;
        for name in &names.get_ref().0 {
            let set = name.parse::<OperationSet>().or_else(|error| {
                wrong(names.span(), format!("operation: {name:?} is {error}"), "")
            })?;
            conditions.operation = conditions.operation.union(set);
        }
    }
    if let Some(size) = range("size", raw.size.as_ref())? {
        conditions.size = size;
    }
    let storage = storage(raw, &target, &conditions, &span)?;
    let class = class(raw.class.as_ref())?;
    if let Some(text) = raw.class.as_ref().filter(|_| storage.is_empty()) {
        let message = "class: a rule without volume, key or offset is one of stages";
        return wrong(text.span(), message, "add volume = \"*\", or remove it");
    }
    Ok(Match { target, conditions, storage, class })
}

fn range(field: &str, text: Option<&Text>) -> ReadResult<Option<SizeRange>> {
    let Some(text) = text else { return Ok(None) };
    text.get_ref().parse::<SizeRange>().map(Some).or_else(|error| {
        let fix = format!(
            "write sizes like {:?}, and a range like \">=64KiB\" or \"4KiB..64KiB\"",
            error.example
        );
        wrong(text.span(), format!("{field}: {:?} {}", error.input.trim(), error.problem), fix)
    })
}

/// Reads the conditions of a rule on volumes, keys and offsets. Refuses conditions on a program,
/// and a channel as the target, beside them.
fn storage(
    raw: &RawMatch,
    target: &RuleTarget,
    conditions: &Conditions,
    span: &Range<usize>,
) -> ReadResult<StorageConditions> {
    let storage = StorageConditions {
        volume: raw.volume.0.clone(),
        key: raw.key.0.clone(),
        offset: range("offset", raw.offset.as_ref())?,
    };
    if storage.is_empty() {
        return Ok(storage);
    }
    let (operation, size) = (conditions.operation, conditions.size);
    if *conditions != (Conditions { operation, size, ..Conditions::default() }) {
        let message = "match: volume and key are known to gateways, which see no program";
        return wrong(span.clone(), message, "keep only operation and size beside them");
    }
    if let (Some(offset), false) = (&raw.offset, storage.key.is_empty()) {
        let message = "offset: a request to a key has none";
        return wrong(offset.span(), message, "remove the key or the offset");
    }
    if let RuleTarget::Channel(_) = target {
        let message = "match: volume and key are known to gateways, which have no channels";
        return wrong(span.clone(), message, r#"write tenant = "NAME""#);
    }
    Ok(storage)
}

fn known_tenant(text: &Text, tenants: &[Tenant]) -> ReadResult<TenantId> {
    let wanted = text.get_ref();
    match tenants.iter().position(|tenant| tenant.name == *wanted) {
        Some(index) => Ok(tenant_id(index)),
        None => {
            let names = tenants.iter().map(|tenant| tenant.name.as_str());
            let fix = nearest_in("tenant", wanted, names);
            wrong(text.span(), format!("tenant: none is {wanted:?}"), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Burst;
    use crate::units::{Bytes, Iops};
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        Policy::parse(text).unwrap_err().to_string()
    }

    const TENANT: &str = "[[tenant]]\nname = \"kv\"\n";

    #[test]
    fn a_full_policy_reads_as_written() {
        let policy = Policy::parse(
            r#"
            period = "1s"
            redistribute = "200ms"
            budget = ["1000MiB/s", "50k iops"]
            account = "device"
            fallback = "reservation"
            [[tenant]]
            name = "kv"
            class = "high"
            reservation = "300MiB/s"
            limit = ["600MiB/s", "40k iops"]
            weight = 300
            minimum_share = "75%"
            burst = "4MiB"
            users = ["rocks", "1000"]
            [[tenant]]
            name = "backup"
            [[channel]]
            name = "compaction"
            tenant = "kv"
            gates = [
              { kind = "token-bucket", rate = "50MiB/s", burst = "20ms" },
              { kind = "fair-queue", depth = 4, weights = { flush = 3, "compaction*" = 1 } },
              { kind = "priority", depth = 2, order = ["flush", "compaction*"] },
              { kind = "concurrency", depth = 8 },
              { kind = "latency-probe" },
              { kind = "no-op" },
            ]
            [[match]]
            channel = "compaction"
            context = "compaction*"
            operation = ["write", "metadata"]
            size = ">=64KiB"
            [[match]]
            tenant = "backup"
            volume = "backup-*"
            key = "b:"
            operation = "write"
            [[match]]
            tenant = "backup"
            process = ["tar", "restic"]
            "#,
        )
        .unwrap();
        assert_eq!(policy.tenants[0].limit.operations, Some(Iops(40_000)));
        assert_eq!(policy.tenants[0].burst, Burst::Size(Bytes(4 << 20)));
        assert_eq!(policy.tenants[0].minimum_share, Some(Portion(750_000)));
        assert_eq!(policy.tenants[1].weight, Policy::WEIGHT);
        assert_eq!(policy.channels[0].gates.len(), 6);
        assert_eq!(policy.matches[0].target, RuleTarget::Channel(0));
        assert_eq!(policy.matches[1].target, RuleTarget::Tenant(TenantId(2)));
        assert_eq!(policy.matches[1].storage.volume, ["backup-*"]);
        assert_eq!(policy.matches[1].storage.key, ["b:"]);
        assert_eq!(policy.matches[2].conditions.process, ["tar", "restic"]);
        assert!(policy.matches[2].storage.is_empty());
        assert_eq!(policy.account, Account::Device);
        assert_eq!(policy.feasible(), Ok(()));
    }

    #[test]
    fn empty_lists_and_numbers_that_are_none_are_refused_with_what_to_write() {
        for (line, wanted) in [
            ("users = []", "users: an empty list admits no user"),
            ("limit = []", "limit: an empty list has no value; leave the field out"),
            ("limit = \"0.5 iops\"", "is not a whole number of base units; write a whole number"),
            ("weight = \"high\"", "invalid type: string \"high\"; write a whole number"),
        ] {
            let found = error(&format!("{TENANT}{line}"));
            assert!(found.contains(wanted), "{line}: {found}");
        }
    }

    #[test]
    fn every_error_names_the_line_the_field_and_the_fix() {
        let with = |more: &str| error(&format!("{TENANT}{more}"));
        let cases = [
            (error("budget = 5"), "line 1, column 10: invalid type: integer"),
            (error("budget = \"measured\""), "write capacity = \"measured\" of a [[resource]]"),
            (error("bugdet = \"5\""), "line 1, column 1: unknown field `bugdet`, expected one of"),
            (error("period = \"1\""), "column 10: period: \"1\" has no unit; write it like"),
            (error("redistribute = \"2s\""), "redistribute: 2s is not between 10ms and period"),
            (error("account = \"devise\""), "\"devise\" is not a choice; did you mean \"d"),
            (with("weight = 0"), "line 3, column 10: weight: 0 is out of range; use 1 to 1000000"),
            (with("minimum_share = 0.1"), "line 3, column 17: invalid type: floating point"),
            (with("minimum_share = \"0.1\""), "minimum_share: \"0.1\" has no unit; write it like"),
            (with("minimum_share = \"101%\""), "minimum_share: \"101%\" is too large"),
            (
                with("minimum_share = \"33.4%\"\n[[tenant]]\nname = \"bulk\"\nweight = 200"),
                "line 3, column 17: minimum_share: kv is to have 33.4% of every node, and by \
                 weight it has 33.3333% (100 of 300); raise its weight or lower",
            ),
            (with("class = \"hi\""), "class: \"hi\" is not a class; known are urgent, high"),
            (with("limit = \"0 iops\""), "limit: \"0 iops\" lets nothing through"),
            (with("limit = \"0.4 iops\""), "limit: \"0.4 iops\" is not a whole number"),
            (with("limit = \"18446744073709551616 iops\""), "is too large"),
            (with("limit = \"5 cups\""), "limit: \"5 cups\" has a unit that is not known here"),
            (with("limit = [\"1B/s\", \"2B/s\"]"), "limit: two values in the same unit"),
            (with("burst = \"x\""), "burst: \"x\" does not start with a number; write it like"),
            (
                with("limit = \"1MiB/s\"\nreservation = \"2MiB/s\""),
                "reservation: kv is promised 2MiB/s, more than its limit 1MiB/s; raise the limit",
            ),
            (with(TENANT), "line 4, column 8: name: \"kv\" is taken"),
            (error("[[tenant]]\nname = \"a b\""), "name: \"a b\" is no name for a tenant; use 1"),
            (with("[[match]]\n"), "match: a rule names either a tenant or a channel"),
            (with("[[match]]\ntenant = \"kw\""), "tenant: none is \"kw\"; did you mean \"kv\"?"),
            (with("[[match]]\nchannel = \"x\""), "channel: none is \"x\"; add [[channel]]"),
            (
                with("[[match]]\ntenant = \"kv\"\noperation = \"fly\""),
                "operation: \"fly\" is not an operation; known are metadata, read, write",
            ),
            (
                with("[[match]]\ntenant = \"kv\"\nvolume = \"db\"\nprocess = \"x\""),
                "line 3, column 1: match: volume and key are known to gateways, which see no prog",
            ),
            (
                with(
                    "[[channel]]\nname = \"c\"\ntenant = \"kv\"\n[[match]]\nchannel = \"c\"\n\
                     key = \"a:\"",
                ),
                "gateways, which have no channels; write tenant = \"NAME\"",
            ),
            (with("[[match]]\ntenant = \"kv\"\nsize = \"big\""), "size: \"big\" does not start"),
            (
                with("[[match]]\ntenant = \"kv\"\n[[match]]\ntenant = \"kv\"\n"),
                "the rule above it matches every request",
            ),
        ];
        for (got, wanted) in cases {
            assert!(got.contains(wanted), "{got}\n  should contain\n{wanted}");
        }
    }

    #[test]
    fn classes_have_weights_and_rules_of_gateways_have_classes() {
        let policy = Policy::parse(
            r#"
            class_weights = { high = 4, medium = 2, low = 1 }
            [[tenant]]
            name = "kv"
            [[match]]
            tenant = "kv"
            volume = "kv-*"
            offset = "0B..1GiB"
            operation = "sync"
            class = "low"
            "#,
        )
        .unwrap();
        assert_eq!(policy.class_weights, ClassWeights::new(4, 2, 1));
        assert_eq!(policy.matches[0].class, Some(Class::Low));
        let offsets = policy.matches[0].storage.offset;
        assert_eq!(offsets.map(|range| range.max), Some(Bytes((1 << 30) - 1)));
        let with = |more: &str| error(&format!("{TENANT}{more}"));
        let cases = [
            (
                error("class_weights = { high = 3, medium = 0, low = 1 }"),
                "line 1, column 17: class_weights: a weight is out of range; use 1 to 255, like",
            ),
            (error("class_weights = { high = 256, medium = 2, low = 1 }"), "is out of range"),
            (error("class_weights = { high = 3, low = 1 }"), "missing field `medium`"),
            (
                with("[[match]]\ntenant = \"kv\"\nprocess = \"x\"\nclass = \"low\""),
                "line 6, column 9: class: a rule without volume, key or offset is one of stages",
            ),
            (
                with("[[match]]\ntenant = \"kv\"\nkey = \"a:\"\noffset = \"<1GiB\""),
                "line 6, column 10: offset: a request to a key has none; remove the key",
            ),
        ];
        for (got, wanted) in cases {
            assert!(got.contains(wanted), "{got}\n  should contain\n{wanted}");
        }
    }

    #[test]
    fn gates_are_checked_by_kind() {
        let gate = |gate: &str| {
            let channel = format!("[[channel]]\nname = \"c\"\ntenant = \"kv\"\ngates = [{gate}]");
            error(&format!("{TENANT}{channel}"))
        };
        assert!(
            gate("{ kind = \"bucket\" }").contains("kind: \"bucket\" is not a gate; known are")
        );
        assert!(gate("{ kind = \"token-bucket\" }").contains("rate: a token-bucket needs one"));
        let error = gate("{ kind = \"token-bucket\", rate = \"9 iops\", burst = \"4MiB\" }");
        assert!(error.contains("burst: it is of bytes, and the rate is of operations"), "{error}");
        assert!(gate("{ kind = \"concurrency\" }").contains("depth: concurrency does not say"));
        assert!(gate("{ kind = \"concurrency\", depth = 0 }").contains("depth: 0 is out of range"));
        let extra = gate("{ kind = \"no-op\", depth = 1 }");
        assert!(extra.contains("depth: a no-op gate has no such field; remove it"), "{extra}");
        let weight = gate("{ kind = \"fair-queue\", depth = 1, weights = { a = 0 } }");
        assert!(weight.contains("weights: a = 0 is out of range"), "{weight}");
    }

    #[test]
    fn what_does_not_fit_is_infeasible_rather_than_wrong() {
        let tenants = "[[tenant]]\nname=\"a\"\nreservation=\"60MiB/s\"\n\
                       [[tenant]]\nname=\"b\"\nreservation=\"50MiB/s\"\n";
        let policy = Policy::parse(&format!("budget = \"100MiB/s\"\n{tenants}")).unwrap();
        assert_eq!(
            policy.feasible().unwrap_err().to_string(),
            "reservations of 110MiB/s do not fit the budget of 100MiB/s; lower a reservation or \
             raise the budget"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z\\[\\]=\"{}\n 0-9]{0,200}") {
            if let Err(error) = Policy::parse(&text) {
                prop_assert!(error.span.start <= text.len());
                prop_assert!(error.line >= 1 && error.column >= 1);
            }
        }
    }
}
