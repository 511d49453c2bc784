//! Parser of a storage node in a cluster file: its store, and its declared or measured capacity.

use alloc::format;
use alloc::string::String;

use serde::Deserialize;
use toml::Spanned;

use super::{DEPTH_MAX, Taken, at_most_any, borne, guarded, iops, named, scheduler, size};
use crate::cluster::{Cluster, DeviceModel, Node, Store};
use crate::discipline::Discipline;
use crate::policy::Resource;
use crate::policy::read::{MEASURED, latency, levels};
use crate::text::{ReadResult, Strings, Text, count, name, wrong};
use crate::units::{Iops, Rate, Span};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    name: Text,
    address: Option<Text>,
    capacity: Option<Spanned<Strings>>,
    latency: Option<Text>,
    depth: Option<Spanned<i64>>,
    scheduler: Option<Text>,
    directory: Option<Text>,
    device: Option<Text>,
    size: Option<Text>,
    memory: Option<Spanned<bool>>,
    memcached: Option<Text>,
    model: Option<RawModel>,
    io_priority: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    rate: Text,
    variance: Option<Text>,
}

/// Reads a node, and whether it fits beside those before it.
pub(super) fn node(
    raw: &RawNode,
    default: Discipline,
    cluster: &Cluster,
    taken: &mut Taken,
) -> ReadResult<Node> {
    let before = &cluster.nodes;
    let is_taken = before.iter().any(|node| node.name == *raw.name.get_ref());
    let name = name("node", &raw.name, is_taken)?;
    borne(cluster, &raw.name)?;
    let who = format!("node {name}");
    let address = taken.take_if("address", raw.address.as_ref(), &who)?;
    guarded("address", address.as_ref(), raw.address.as_ref(), cluster.tls.is_some())?;
    let store = store(raw, taken, &who)?;
    let same = |other: &&Node| path(&store).is_some() && path(&other.store) == path(&store);
    if let Some(other) = before.iter().find(same) {
        let message = format!("node: {name} has the store of node {}", other.name);
        return wrong(raw.name.span(), message, "give it a directory or a device of its own");
    }
    let has_device = matches!(store, Store::Directory(_) | Store::Device { .. });
    if let Some(io_priority) = raw.io_priority.as_ref().filter(|_| !has_device) {
        let message = "io_priority: only requests to a directory or a device have one";
        return wrong(io_priority.span(), message, "remove it");
    }
    let latency = bound(raw, &store)?;
    let stated = raw.capacity.as_ref().filter(|_| latency.is_none());
    let (capacity, bandwidth) = capacity(stated)?;
    Ok(Node {
        io_priority: raw.io_priority.as_ref().is_none_or(|it| *it.get_ref()),
        name,
        address,
        capacity,
        bandwidth,
        latency,
        depth: count("depth", raw.depth.as_ref(), DEPTH_MAX)?.unwrap_or(Node::DEPTH),
        scheduler: raw.scheduler.as_ref().map(scheduler).transpose()?.unwrap_or(default),
        store,
        model: raw.model.as_ref().map(model).transpose()?,
    })
}

/// The bound of latency of a node whose capacity is measured; none if it is stated or unknown.
fn bound(raw: &RawNode, store: &Store) -> ReadResult<Option<Span>> {
    let is_measured = |texts: &&Spanned<Strings>| texts.get_ref().0.iter().any(|it| it == MEASURED);
    let Some(texts) = raw.capacity.as_ref().filter(is_measured) else {
        let Some(latency) = &raw.latency else { return Ok(None) };
        let message = "latency: it bounds the search for a measured capacity, and this is none";
        return wrong(latency.span(), message, "write capacity = \"measured\" beside it");
    };
    if texts.get_ref().0.len() > 1 {
        let message = "capacity: a measured one is found in operations";
        return wrong(texts.span(), message, "write \"measured\" alone");
    }
    if !store.holds_volumes() {
        let message = "capacity: requests for keys are not timed one by one";
        return wrong(texts.span(), message, "write what the memcached server does in a second");
    }
    let latency = raw.latency.as_ref().map(latency).transpose()?;
    Ok(Some(latency.unwrap_or(Resource::MEASURED_LATENCY)))
}

/// The capacity of a node, in operations and in bytes per second.
fn capacity(texts: Option<&Spanned<Strings>>) -> ReadResult<(Option<Iops>, Option<Rate>)> {
    let Some(texts) = texts else { return Ok((None, None)) };
    let is_zero = |text: &&String| {
        text.parse() == Ok(Iops::ZERO) || text.parse().is_ok_and(|rate: Rate| rate.0 == 0)
    };
    if let Some(zero) = texts.get_ref().0.iter().find(is_zero) {
        let message = format!("capacity: {zero:?} does nothing");
        return wrong(texts.span(), message, "write how much it does in a second");
    }
    let levels = levels("capacity", Some(texts))?;
    let Some(iops) = levels.operations else { return Ok((None, levels.bandwidth)) };
    Ok((Some(at_most_any("capacity", iops, texts.span())?), levels.bandwidth))
}

/// The path that a store has for itself on its machine; none for memory and memcached.
fn path(store: &Store) -> Option<&str> {
    match store {
        Store::Directory(path) | Store::Device { path, .. } => Some(path),
        Store::Memory | Store::Memcached(_) => None,
    }
}

fn store(raw: &RawNode, taken: &mut Taken, who: &str) -> ReadResult<Store> {
    if let Some(size) = &raw.size
        && raw.device.is_none()
    {
        return wrong(size.span(), "size: only a device has one", "remove it");
    }
    match (&raw.directory, &raw.device, &raw.memory, &raw.memcached) {
        (Some(text), None, None, None) => Ok(Store::Directory(named("directory", text)?)),
        (None, Some(text), None, None) => Ok(Store::Device {
            path: named("device", text)?,
            size: raw.size.as_ref().map(|text| size("size", text)).transpose()?,
        }),
        (None, None, Some(memory), None) if !memory.get_ref() => {
            wrong(memory.span(), "memory: false is no store", "write memory = true, or remove it")
        }
        (None, None, Some(_), None) => Ok(Store::Memory),
        (None, None, None, Some(text)) => {
            let who = format!("the server behind {who}");
            Ok(Store::Memcached(taken.take("memcached", text.get_ref(), &text.span(), &who)?))
        }
        stores => {
            let name = raw.name.get_ref();
            let none = stores == (&None, &None, &None, &None);
            let number = if none { "no store" } else { "more than one store" };
            let fix = "write one of directory = \"PATH\", device = \"PATH\", memory = true and \
                       memcached = \"HOST:PORT\"";
            wrong(raw.name.span(), format!("node: {name} has {number}"), fix)
        }
    }
}

fn model(raw: &RawModel) -> ReadResult<DeviceModel> {
    let variance_permille = raw.variance.as_ref().map_or(Ok(0), permille)?;
    Ok(DeviceModel { rate: iops("rate", &raw.rate)?, variance_permille })
}

/// Per cent, with one decimal at most.
fn permille(text: &Text) -> ReadResult<u32> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.get_ref().trim().strip_suffix('%').and_then(|number| {
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let whole: u32 = whole.parse().ok().filter(|_| digits(whole))?;
        let tenths: u32 = tenths.parse().ok().filter(|_| digits(tenths) && tenths.len() == 1)?;
        whole.checked_mul(10)?.checked_add(tenths)
    });
    match parsed.filter(|permille| *permille <= 1000) {
        Some(permille) => Ok(permille),
        None => {
            let message = format!("variance: {:?} is no part of a whole", text.get_ref());
            wrong(text.span(), message, r#"write it like "10%" or "2.5%", "100%" at most"#)
        }
    }
}
