//! Parser of a policy's resources and groups, and of the promises on each resource.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Deserialize;
use toml::Spanned;

use super::super::resource::EVERYWHERE;
use super::super::{Account, Extent, GateKind, Group, Levels, Policy, Promise, Resource};
use super::{MEASURED, RawPolicy, RawTenant, WEIGHT_MAX, levels, limits, promised};
use crate::text::{ReadResult, Strings, Text, count, name, nearest_in, wrong};
use crate::units::Span;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawResource {
    name: Text,
    path: Option<Spanned<Strings>>,
    data_nodes: Option<Spanned<Strings>>,
    capacity: Option<Spanned<Strings>>,
    latency: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawGroup {
    name: Text,
    reservation: Option<Spanned<Strings>>,
    limit: Option<Spanned<Strings>>,
    weight: Option<Spanned<i64>>,
    #[serde(default)]
    on: PromisesOn,
}

/// The promises of a tenant or a group, by the name of the resource.
pub(super) type PromisesOn = BTreeMap<Text, RawPromise>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPromise {
    reservation: Option<Spanned<Strings>>,
    limit: Option<Spanned<Strings>>,
    weight: Option<Spanned<i64>>,
}

/// Reads the groups, with their own promises.
pub(super) fn groups(raw: &[Spanned<RawGroup>]) -> ReadResult<Vec<Group>> {
    let mut groups = Vec::<Group>::new();
    for raw in raw.iter().map(Spanned::get_ref) {
        let taken = groups.iter().any(|group| group.name == *raw.name.get_ref());
        let name = name("group", &raw.name, taken)?;
        let (reservation, limit) = promised(&name, raw.reservation.as_ref(), raw.limit.as_ref())?;
        let weight = weight(raw.weight.as_ref(), Policy::WEIGHT)?;
        groups.push(Group { name, promise: Promise { reservation, limit, weight } });
    }
    Ok(groups)
}

/// Reads the group that a tenant names.
pub(super) fn group(wanted: Option<&Text>, groups: &[Group]) -> ReadResult<Option<usize>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let found = groups.iter().position(|group| group.name == *wanted.get_ref());
    if found.is_none() {
        let names = groups.iter().map(|group| group.name.as_str());
        let fix = nearest_in("group", wanted.get_ref(), names);
        return wrong(wanted.span(), format!("group: none is {:?}", wanted.get_ref()), fix);
    }
    Ok(found)
}

/// Reads the resources with all promises of them, into a policy that has everything else.
pub(super) fn resources(raw: &RawPolicy, policy: &Policy) -> ReadResult<Vec<Resource>> {
    let mut resources = Vec::<Resource>::new();
    for raw in raw.resource.iter().map(Spanned::get_ref) {
        resources.push(resource(raw, policy, &resources)?);
    }
    let known = |on: &PromisesOn| match on.keys().find(|key| index(&resources, key).is_none()) {
        None => Ok(()),
        Some(key) => {
            let names = resources.iter().map(|known| known.name.as_str());
            let fix = nearest_in("resource", key.get_ref(), names);
            wrong(key.span(), format!("on: no resource is {:?}", key.get_ref()), fix)
        }
    };
    raw.tenant.iter().try_for_each(|tenant| known(&tenant.get_ref().on))?;
    raw.group.iter().try_for_each(|group| known(&group.get_ref().on))?;
    if resources.is_empty() {
        return Ok(resources);
    }
    refuse_promises_of_everything(raw, &resources)?;
    for (number, (raw, tenant)) in raw.tenant.iter().zip(&policy.tenants).enumerate() {
        for (key, raw) in &raw.get_ref().on {
            let Some(index) = index(&resources, key) else { continue };
            resources[index].tenants[number] = promise(&tenant.name, raw, tenant.weight)?;
        }
    }
    for (number, (raw, group)) in raw.group.iter().zip(&policy.groups).enumerate() {
        for (key, raw) in &raw.get_ref().on {
            let Some(index) = index(&resources, key) else { continue };
            let inherited = group.promise.weight;
            resources[index].groups[number] = promise(&group.name, raw, inherited)?;
        }
    }
    Ok(resources)
}

fn index(resources: &[Resource], name: &Text) -> Option<usize> {
    resources.iter().position(|resource| resource.name == *name.get_ref())
}

fn weight(raw: Option<&Spanned<i64>>, inherited: u32) -> ReadResult<u32> {
    Ok(count("weight", raw, WEIGHT_MAX)?.unwrap_or(inherited))
}

fn promise(name: &str, raw: &RawPromise, inherited: u32) -> ReadResult<Promise> {
    let (reservation, limit) = promised(name, raw.reservation.as_ref(), raw.limit.as_ref())?;
    Ok(Promise { reservation, limit, weight: weight(raw.weight.as_ref(), inherited)? })
}

/// Reads one resource; nothing is promised of it yet.
fn resource(raw: &RawResource, policy: &Policy, before: &[Resource]) -> ReadResult<Resource> {
    let taken = before.iter().any(|resource| resource.name == *raw.name.get_ref());
    let name = name("resource", &raw.name, taken)?;
    let extent = match (&raw.path, &raw.data_nodes) {
        (None, None) => Extent::Nodes,
        (Some(paths), None) => Extent::Paths(folders(paths)?),
        (None, Some(names)) => {
            if names.get_ref().0.is_empty() {
                let fix = "name the data nodes of the cluster file";
                return wrong(names.span(), "data_nodes: an empty list covers nothing", fix);
            }
            Extent::DataNodes(names.get_ref().0.clone())
        }
        (Some(_), Some(names)) => {
            let message = format!("data_nodes: {name} is of files already");
            return wrong(names.span(), message, "make two resources of it");
        }
    };
    let none =
        |weight| Promise { reservation: Levels::default(), limit: Levels::default(), weight };
    let (capacity, measured) = capacity(raw, &extent)?;
    let resource = Resource {
        extent,
        capacity,
        measured,
        tenants: policy.tenants.iter().map(|tenant| none(tenant.weight)).collect(),
        groups: policy.groups.iter().map(|group| none(group.promise.weight)).collect(),
        name,
    };
    let gate = resource.gate();
    if let Some(other) = before.iter().find(|other| other.gate() == gate) {
        let message = format!(
            "resource: {} and {} are both guarded by {gate}, which divide one capacity",
            other.name, resource.name
        );
        return wrong(raw.name.span(), message, "make one resource of them");
    }
    if let Extent::Paths(paths) = &resource.extent
        && policy.account == Account::Device
        && !paths.iter().any(|path| path == EVERYWHERE)
    {
        let message = "path: account = \"device\" counts what a program moves on all devices";
        let fix = format!("cover {EVERYWHERE:?}, or count \"requests\"");
        return wrong(raw.path.as_ref().map_or(0..0, Spanned::span), message, fix);
    }
    Ok(resource)
}

/// Reads the paths of a resource. A stage compares the paths of rules with them as texts, so each
/// is a folder with everything below it.
fn folders(paths: &Spanned<Strings>) -> ReadResult<Vec<String>> {
    let all = &paths.get_ref().0;
    if all.is_empty() {
        let message = "path: an empty list covers nothing";
        return wrong(paths.span(), message, "name a folder, like \"/srv/**\"");
    }
    for path in all {
        let folder = path.strip_suffix("/**");
        let is_folder = folder.is_some_and(|folder| {
            (folder.is_empty() || folder.starts_with('/')) && !folder.contains(['*', '?', '[', '{'])
        });
        if !is_folder {
            let message = format!("path: {path:?} is no folder with everything below it");
            return wrong(paths.span(), message, "write it like \"/srv/**\"");
        }
        if path.len() > limits::PATTERN {
            let message = format!("path: a pattern of {} bytes is too long", path.len());
            return wrong(paths.span(), message, format!("use at most {}", limits::PATTERN));
        }
    }
    Ok(all.clone())
}

/// Reads the capacity, and the bound of latency of one that is measured.
fn capacity(raw: &RawResource, extent: &Extent) -> ReadResult<(Levels, Option<Span>)> {
    let is_measured = |text: &String| text == MEASURED;
    let texts = raw.capacity.as_ref();
    let Some(texts) = texts.filter(|texts| texts.get_ref().0.iter().any(is_measured)) else {
        if let Some(latency) = &raw.latency {
            let message = "latency: it bounds the search for a capacity, and this one is stated";
            return wrong(latency.span(), message, "write capacity = \"measured\" beside it");
        }
        return Ok((levels("capacity", texts)?, None));
    };
    let fix = match extent {
        Extent::Paths(_) => None,
        Extent::Nodes => Some("leave it out, and write it at the nodes of the cluster file"),
        Extent::DataNodes(_) => Some("leave it out: data nodes follow what they can do"),
    };
    if let Some(fix) = fix {
        let message = "capacity: only that of files is measured for the policy";
        return wrong(texts.span(), message, fix);
    }
    if texts.get_ref().0.len() > 1 {
        let message = "capacity: a measured one is found in operations and in bytes";
        return wrong(texts.span(), message, "write \"measured\" alone");
    }
    let latency = raw.latency.as_ref().map(latency).transpose()?;
    Ok((Levels::default(), Some(latency.unwrap_or(Resource::MEASURED_LATENCY))))
}

/// Reads a bound of latency, `p99 < 5ms`.
pub(crate) fn latency(text: &Text) -> ReadResult<Span> {
    let fix = "write it like \"p99 < 5ms\"";
    let bound = text.get_ref().trim().strip_prefix("p99").map(str::trim_start);
    let Some(bound) = bound.and_then(|rest| rest.strip_prefix('<')) else {
        let message = format!("latency: {:?} is no bound of 99 in 100", text.get_ref());
        return wrong(text.span(), message, fix);
    };
    match bound.trim().parse::<Span>() {
        Ok(bound) if bound >= Resource::LATENCY_MIN => Ok(bound),
        Ok(bound) => {
            let message = format!("latency: {bound} is less than {}", Resource::LATENCY_MIN);
            wrong(text.span(), message, "no queue of this length can be held; raise the bound")
        }
        Err(error) => wrong(text.span(), format!("latency: {error}"), fix),
    }
}

/// Refuses promises and a budget that name no resource, in a policy that has some.
fn refuse_promises_of_everything(raw: &RawPolicy, resources: &[Resource]) -> ReadResult<()> {
    let example = &resources[0].name;
    if let Some(budget) = &raw.budget {
        let message = "budget: a policy with a [[resource]] has none";
        let fix = "write it as the capacity of a [[resource]] with a path";
        return wrong(budget.span(), message, fix);
    }
    let refuse = |what: &str, name: &str, field: &str, at: Option<&Spanned<Strings>>| {
        let Some(at) = at else { return Ok(()) };
        let message = format!("{field}: it does not say of which resource {name} has it");
        wrong(at.span(), message, format!("write it under [{what}.on.{example}]"))
    };
    for RawTenant { name, reservation, limit, .. } in raw.tenant.iter().map(Spanned::get_ref) {
        refuse("tenant", name.get_ref(), "reservation", reservation.as_ref())?;
        refuse("tenant", name.get_ref(), "limit", limit.as_ref())?;
    }
    for RawGroup { name, reservation, limit, .. } in raw.group.iter().map(Spanned::get_ref) {
        refuse("group", name.get_ref(), "reservation", reservation.as_ref())?;
        refuse("group", name.get_ref(), "limit", limit.as_ref())?;
    }
    Ok(())
}

/// Refuses rules of stages with a path outside of the folders of the stages' resource: no request
/// there is held back, so the rule would do less than it says.
pub(super) fn check_paths(raw: &RawPolicy, policy: &Policy) -> ReadResult<()> {
    let folders = policy.stage_paths();
    let Some(resource) = policy.resource_at(GateKind::Stage).filter(|_| !folders.is_empty()) else {
        return Ok(());
    };
    let is_inside = |path: &String| {
        let mut folders = folders.iter().map(|folder| folder.trim_end_matches("**"));
        folders.any(|folder| path.starts_with(folder))
    };
    for (rule, raw) in policy.matches.iter().zip(&raw.matches) {
        if let Some(path) = rule.conditions.path.iter().find(|path| !is_inside(path)) {
            let name = &resource.name;
            let message = format!(
                "path: {path:?} matches files outside of the folders of {name}, where its gates \
                 hold nothing"
            );
            let fix = format!("begin it with one of these folders, like {:?}", folders[0]);
            let span = raw.get_ref().path.as_ref().map_or_else(|| raw.span(), Spanned::span);
            return wrong(span, message, fix);
        }
    }
    Ok(())
}
