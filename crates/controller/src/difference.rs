//! Differences between two policies, in words of the policy's own text.

use tidegate_model::gate::{Burst, GateSpec};
use tidegate_model::policy::{
    Account, Channel, Extent, Fallback, Group, Levels, Match, Promise, Resource, RuleTarget, Tenant,
};
use tidegate_model::{ClassWeights, OperationSet, Policy, SizeRange};
use tidegate_proto::controller::status::{FieldChange, PolicyChange};

/// A field's name and its value as a policy would write it; empty where it is not set.
type Field = (String, String);

/// Everything that differs, in the order of the text: the policy's own fields, resources, groups,
/// tenants, channels and rules. Without an earlier policy, everything in the new one is added.
pub(crate) fn difference(before: Option<&Policy>, after: &Policy) -> Vec<PolicyChange> {
    let mut changes = Vec::new();
    if let Some(fields) = before.map(|before| differing(&own_fields(before), &own_fields(after)))
        && !fields.is_empty()
    {
        changes.push(changed("policy", "", fields));
    }
    let named = |policy: &Policy| -> Vec<_> {
        let fields = |resource: &Resource| (resource.name.clone(), resource_fields(resource));
        policy.resources.iter().map(fields).collect()
    };
    compare_named("resource", &before.map_or(Vec::new(), named), &named(after), &mut changes);
    // Promises of a resource that only one of the policies has differ, too.
    let resources = resource_names(before, after);
    let named = |policy: &Policy| -> Vec<_> {
        let fields = |(index, group): (usize, &Group)| {
            let on = |resource: &Resource| resource.groups.get(index).copied();
            let own = promise_fields(&group.promise);
            (group.name.clone(), with_promises(own, policy, &resources, group.promise.weight, on))
        };
        policy.groups.iter().enumerate().map(fields).collect()
    };
    compare_named("group", &before.map_or(Vec::new(), named), &named(after), &mut changes);
    let named = |policy: &Policy| -> Vec<_> {
        let fields = |(index, tenant): (usize, &Tenant)| {
            let on = |resource: &Resource| resource.tenants.get(index).copied();
            let own = tenant_fields(policy, tenant);
            (tenant.name.clone(), with_promises(own, policy, &resources, tenant.weight, on))
        };
        policy.tenants.iter().enumerate().map(fields).collect()
    };
    compare_named("tenant", &before.map_or(Vec::new(), named), &named(after), &mut changes);
    let named = |policy: &Policy| -> Vec<_> {
        let fields = |channel: &Channel| (channel.name.clone(), channel_fields(policy, channel));
        policy.channels.iter().map(fields).collect()
    };
    compare_named("channel", &before.map_or(Vec::new(), named), &named(after), &mut changes);
    let lines = |policy: &Policy| -> Vec<String> {
        policy.matches.iter().map(|rule| match_text(policy, rule)).collect()
    };
    compare_matches(&before.map_or(Vec::new(), lines), &lines(after), &mut changes);
    changes
}

fn compare_named(
    what: &str,
    before: &[(String, Vec<Field>)],
    after: &[(String, Vec<Field>)],
    changes: &mut Vec<PolicyChange>,
) {
    let find = |list: &[(String, Vec<Field>)], name: &str| -> Option<Vec<Field>> {
        list.iter().find(|(known, _)| known == name).map(|(_, fields)| fields.clone())
    };
    for (name, _) in before.iter().filter(|(name, _)| find(after, name).is_none()) {
        changes.push(whole(what, name, "removed", String::new()));
    }
    for (name, fields) in after {
        match find(before, name) {
            None => changes.push(whole(what, name, "added", summary(fields))),
            Some(old) => {
                let fields = differing(&old, fields);
                if !fields.is_empty() {
                    changes.push(changed(what, name, fields));
                }
            }
        }
    }
}

/// Rules have no names, only positions. Equal rules at both ends stay; the rules between them are
/// removed and added.
fn compare_matches(before: &[String], after: &[String], changes: &mut Vec<PolicyChange>) {
    let same = |(one, other): &(&String, &String)| one == other;
    let head = before.iter().zip(after).take_while(same).count();
    let (old, new) = (&before[head..], &after[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let mut push = |lines: &[String], change: &str| {
        for (offset, line) in lines.iter().enumerate() {
            let number = (head + offset + 1).to_string();
            changes.push(whole("match", &number, change, line.clone()));
        }
    };
    push(&old[..old.len() - tail], "removed");
    push(&new[..new.len() - tail], "added");
}

fn whole(what: &str, name: &str, change: &str, summary: String) -> PolicyChange {
    let separator = if summary.is_empty() { "" } else { ": " };
    let line = format!("{what} {name} {change}{separator}{summary}");
    let (what, name, change) = (what.into(), name.into(), change.into());
    PolicyChange { what, name, change, fields: Vec::new(), line }
}

fn changed(what: &str, name: &str, fields: Vec<FieldChange>) -> PolicyChange {
    let field = |change: &FieldChange| {
        let shown = |value: &str| if value.is_empty() { "none".into() } else { value.to_owned() };
        format!("{} {} -> {}", change.field, shown(&change.from), shown(&change.to))
    };
    let list = fields.iter().map(field).collect::<Vec<_>>().join(", ");
    let title = format!("{what} {name}");
    let line = format!("{} changed: {list}", title.trim_end());
    PolicyChange { what: what.into(), name: name.into(), change: "changed".into(), fields, line }
}

fn differing(before: &[Field], after: &[Field]) -> Vec<FieldChange> {
    let pairs = before.iter().zip(after).filter(|(old, new)| old != new);
    let change = |(old, new): (&Field, &Field)| FieldChange {
        field: old.0.clone(),
        from: old.1.clone(),
        to: new.1.clone(),
    };
    pairs.map(change).collect()
}

fn summary(fields: &[Field]) -> String {
    let set = fields.iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn own_fields(policy: &Policy) -> Vec<Field> {
    let account = match policy.account {
        Account::Requests => "requests",
        Account::Device => "device",
    };
    let fallback = match policy.fallback {
        Fallback::Keep => "keep",
        Fallback::Reservation => "reservation",
        Fallback::Unlimited => "unlimited",
    };
    let fields = [
        ("period", policy.period.to_string()),
        ("redistribute", policy.redistribute.to_string()),
        ("budget", levels_text(policy.budget)),
        ("account", account.into()),
        ("fallback", fallback.into()),
        ("class weights", policy.class_weights.map(weights_text).unwrap_or_default()),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn resource_fields(resource: &Resource) -> Vec<Field> {
    let (paths, data_nodes) = match &resource.extent {
        Extent::Paths(paths) => (paths.join(" "), String::new()),
        Extent::Nodes => Default::default(),
        Extent::DataNodes(names) => (String::new(), names.join(" ")),
    };
    let capacity = match resource.measured {
        Some(bound) => format!("measured, p99 < {bound}"),
        None => levels_text(resource.capacity),
    };
    let fields = [("path", paths), ("data nodes", data_nodes), ("capacity", capacity)];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The names of the resources of two policies, each once.
fn resource_names(before: Option<&Policy>, after: &Policy) -> Vec<String> {
    let all = before.into_iter().chain([after]).flat_map(|policy| &policy.resources);
    let mut names: Vec<String> = all.map(|resource| resource.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Adds what is promised of each of these resources to the fields of a tenant or a group, whose
/// weight is `inherited` where a promise names none.
fn with_promises(
    mut fields: Vec<Field>,
    policy: &Policy,
    resources: &[String],
    inherited: u32,
    on: impl Fn(&Resource) -> Option<Promise>,
) -> Vec<Field> {
    for name in resources {
        let resource = policy.resources.iter().find(|resource| resource.name == *name);
        let promise = resource.and_then(&on);
        let level = |of: fn(&Promise) -> Levels| promise.as_ref().map(of).unwrap_or_default();
        let weight = promise.map(|promise| promise.weight).filter(|weight| *weight != inherited);
        fields.extend([
            (format!("reservation on {name}"), levels_text(level(|promise| promise.reservation))),
            (format!("limit on {name}"), levels_text(level(|promise| promise.limit))),
            (format!("weight on {name}"), weight.map(|it| it.to_string()).unwrap_or_default()),
        ]);
    }
    fields
}

fn promise_fields(promise: &Promise) -> Vec<Field> {
    let fields = [
        ("reservation", levels_text(promise.reservation)),
        ("limit", levels_text(promise.limit)),
        ("weight", promise.weight.to_string()),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn weights_text(ClassWeights { high, medium, low }: ClassWeights) -> String {
    format!("{high}:{medium}:{low}")
}

fn tenant_fields(policy: &Policy, tenant: &Tenant) -> Vec<Field> {
    let group = policy.group_of(tenant).map(|group| group.name.clone());
    let fields = [
        ("class", tenant.class.to_string()),
        ("reservation", levels_text(tenant.reservation)),
        ("limit", levels_text(tenant.limit)),
        ("weight", tenant.weight.to_string()),
        ("minimum share", tenant.minimum_share.map(|share| share.to_string()).unwrap_or_default()),
        ("burst", burst_text(tenant.burst)),
        ("users", tenant.users.join(" ")),
        ("group", group.unwrap_or_default()),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn channel_fields(policy: &Policy, channel: &Channel) -> Vec<Field> {
    let tenant = policy.tenant(channel.tenant).map_or("", |tenant| tenant.name.as_str());
    let gates: Vec<String> = channel.gates.iter().map(gate_text).collect();
    let background = channel.background.map_or("", |background| background.priority.name());
    let minimum = channel.background.and_then(|background| background.minimum);
    let fields = [
        ("tenant", tenant.to_owned()),
        ("gates", gates.join(" then ")),
        ("background", background.to_owned()),
        ("minimum", minimum.map(|rate| rate.to_string()).unwrap_or_default()),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn levels_text(levels: Levels) -> String {
    let bandwidth = levels.bandwidth.map(|rate| rate.to_string());
    let operations = levels.operations.map(|iops| iops.to_string());
    bandwidth.into_iter().chain(operations).collect::<Vec<_>>().join(" and ")
}

fn burst_text(burst: Burst) -> String {
    match burst {
        Burst::Size(size) => size.to_string(),
        Burst::Time(span) => span.to_string(),
    }
}

fn gate_text(gate: &GateSpec) -> String {
    let details = match gate {
        GateSpec::NoOp | GateSpec::LatencyProbe => return gate.kind().into(),
        GateSpec::TokenBucket { rate, burst } => format!("{rate}, burst {}", burst_text(*burst)),
        GateSpec::FairQueue { depth, weights } => {
            let weight = |(context, weight): &(String, u32)| format!(", {context} {weight}");
            format!("depth {depth}{}", weights.iter().map(weight).collect::<String>())
        }
        GateSpec::Priority { depth, order } => format!("depth {depth}, {}", order.join(" > ")),
        GateSpec::Concurrency { depth } => format!("depth {depth}"),
        GateSpec::Compress { level } => format!("level {level}"),
        GateSpec::Encrypt { key } => format!("key {key}"),
    };
    format!("{} ({details})", gate.kind())
}

fn match_text(policy: &Policy, rule: &Match) -> String {
    let target = match rule.target {
        RuleTarget::Tenant(id) => policy.tenant(id).map(|tenant| &tenant.name),
        RuleTarget::Channel(index) => policy.channels.get(index).map(|channel| &channel.name),
    };
    let conditions = &rule.conditions;
    let lists = [
        ("workflow", &conditions.workflow),
        ("context", &conditions.context),
        ("process", &conditions.process),
        ("cgroup", &conditions.cgroup),
        ("user", &conditions.user),
        ("path", &conditions.path),
        ("volume", &rule.storage.volume),
        ("key", &rule.storage.key),
    ];
    let mut parts: Vec<String> = lists
        .iter()
        .filter(|(_, patterns)| !patterns.is_empty())
        .map(|(name, patterns)| format!("{name} {}", patterns.join(" or ")))
        .collect();
    if conditions.operation != OperationSet::ALL {
        let names: Vec<&str> = conditions.operation.iter().map(|op| op.name()).collect();
        parts.push(format!("operation {}", names.join(" or ")));
    }
    if conditions.size != SizeRange::ANY {
        parts.push(format!("size {}", conditions.size));
    }
    if let Some(offsets) = rule.storage.offset {
        parts.push(format!("offset {offsets}"));
    }
    let class = rule.class.map(|class| format!(" as {class}")).unwrap_or_default();
    let what = if parts.is_empty() { "everything".into() } else { parts.join(", ") };
    format!("{what} to {}{class}", target.map_or("no tenant", String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
        budget = "1000MiB/s"
        [[tenant]]
        name = "oltp"
        reservation = "300MiB/s"
        [[tenant]]
        name = "scratch"
        [[match]]
        tenant = "oltp"
        process = "postgres"
        [[match]]
        tenant = "scratch"
        path = "/scratch/**"
    "#;
    const AFTER: &str = r#"
        budget = ["1200MiB/s", "30k iops"]
        [[tenant]]
        name = "oltp"
        class = "high"
        reservation = "350MiB/s"
        [[tenant]]
        name = "backup"
        limit = "200MiB/s"
        [[channel]]
        name = "scans"
        tenant = "oltp"
        gates = [{ kind = "concurrency", depth = 2 }]
        [[match]]
        tenant = "oltp"
        process = "postgres"
        [[match]]
        channel = "scans"
        size = ">=1MiB"
        operation = ["read", "scan"]
        [[match]]
        tenant = "backup"
        volume = "archive"
        key = ["a:", "b:"]
        [[match]]
        tenant = "backup"
    "#;

    fn lines(before: &str, after: &str) -> Vec<String> {
        let before = (!before.is_empty()).then(|| Policy::parse(before).unwrap());
        let changes = difference(before.as_ref(), &Policy::parse(after).unwrap());
        changes.into_iter().map(|change| change.line).collect()
    }

    #[test]
    fn every_difference_has_a_line() {
        let golden = [
            "policy changed: budget 1000MiB/s -> 1200MiB/s and 30k iops",
            "tenant scratch removed",
            "tenant oltp changed: class medium -> high, reservation 300MiB/s -> 350MiB/s",
            "tenant backup added: class medium, limit 200MiB/s, weight 100, burst 10ms",
            "channel scans added: tenant oltp, gates concurrency (depth 2)",
            "match 2 removed: path /scratch/** to scratch",
            "match 2 added: operation read or scan, size >=1MiB to scans",
            "match 3 added: volume archive, key a: or b: to backup",
            "match 4 added: everything to backup",
        ];
        assert_eq!(lines(BEFORE, AFTER), golden);
    }

    #[test]
    fn background_channels_have_lines() {
        let before = "[[tenant]]\nname = \"kv\"\nlimit = \"1GiB/s\"\n\
                      [[channel]]\nname = \"flush\"\ntenant = \"kv\"\n";
        let after = format!("{before}background = \"high\"\nminimum = \"10MiB/s\"\n");
        let golden = ["channel flush changed: background none -> high, minimum none -> 10MiB/s"];
        assert_eq!(lines(before, &after), golden);
        let low = after.replace("high", "low");
        assert_eq!(lines(&after, &low), ["channel flush changed: background high -> low"]);
    }

    #[test]
    fn promises_of_resources_are_compared_by_their_names() {
        let cluster = "[[resource]]\nname = \"cluster\"\n";
        let oltp = "[[tenant]]\nname = \"oltp\"\n";
        let before = format!("{cluster}{oltp}on.cluster = {{ reservation = \"9k iops\" }}\n");
        let after = format!(
            "{cluster}capacity = \"20k iops\"\n\
             [[resource]]\nname = \"files\"\npath = \"/srv/**\"\n\
             [[group]]\nname = \"all\"\non.files = {{ limit = \"2MiB/s\" }}\n\
             {oltp}group = \"all\"\n\
             on.cluster = {{ reservation = \"8k iops\", weight = 300 }}\n\
             on.files = {{ limit = \"1MiB/s\" }}\n"
        );
        let golden = [
            "resource cluster changed: capacity none -> 20k iops",
            "resource files added: path /srv/**",
            "group all added: weight 100, limit on files 2MiB/s",
            "tenant oltp changed: group none -> all, reservation on cluster 9k iops -> 8k iops, \
             weight on cluster none -> 300, limit on files none -> 1MiB/s",
        ];
        assert_eq!(lines(&before, &after), golden);
        assert_eq!(lines(&after, &after), [""; 0]);
        let gone = lines(&after, &before);
        assert_eq!(gone[0], "resource files removed");
    }

    #[test]
    fn classes_have_lines() {
        let before = "[[tenant]]\nname = \"oltp\"\n";
        let after = "class_weights = { high = 3, medium = 2, low = 1 }\n\
                     [[tenant]]\nname = \"oltp\"\n\
                     [[match]]\ntenant = \"oltp\"\noffset = \">=1GiB\"\nclass = \"low\"\n";
        let golden = [
            "policy changed: class weights none -> 3:2:1",
            "match 1 added: offset >=1GiB to oltp as low",
        ];
        assert_eq!(lines(before, after), golden);
    }

    #[test]
    fn nothing_differs_from_itself() {
        assert!(lines(AFTER, AFTER).is_empty());
    }

    #[test]
    fn a_first_policy_is_all_new() {
        let golden = [
            "tenant oltp added: class medium, reservation 300MiB/s, weight 100, burst 10ms",
            "tenant scratch added: class medium, weight 100, burst 10ms",
            "match 1 added: process postgres to oltp",
            "match 2 added: path /scratch/** to scratch",
        ];
        assert_eq!(lines("", BEFORE), golden);
    }
}
