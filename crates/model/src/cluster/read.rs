//! Parser of a cluster file, from TOML to a [`Cluster`]: each node, volume, pool and gateway is
//! checked by itself, and then for conflicts with those before it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::{Address, Cluster, Gateway, MemcachedEndpoint, Pool, Store, Volume};
use crate::id::NodeId;
use crate::text::{self, ReadResult, Strings, Text, TextError, name, nearest_in, quantity, wrong};
use crate::units::{Bytes, Iops, Span};
use fair::{RawCost, cost, scheduler};
pub use guarded::is_certificate_name;
use guarded::{borne, guarded, is_tls_required};
use memory::{RawDataNode, data_node};
use nodes::{RawNode, node};

mod fair;
mod guarded;
mod memory;
mod nodes;

/// More nodes than the papers' largest cluster has by a factor of four.
const NODES_MAX: usize = 1024;
const DEPTH_MAX: i64 = 1024;
/// Sizes and offsets of volumes are multiples of this: a page, and a sector of any device.
const BLOCK: Bytes = Bytes(4096);
/// NBD and files count with 63 bits; this leaves room for sums.
const SIZE_MAX: Bytes = Bytes(1 << 62);
/// A request each nanosecond.
const IOPS_MAX: Iops = Iops(1_000_000_000);
/// No request is larger, so a larger stripe is none.
const STRIPE_MAX: Bytes = Bytes(1 << 30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCluster {
    policy: Option<String>,
    controller: Option<RawController>,
    tls: Option<RawTls>,
    scheduler: Option<Text>,
    cost: Option<Spanned<RawCost>>,
    busy_poll: Option<Text>,
    dscp: Option<bool>,
    #[serde(default)]
    node: Vec<Spanned<RawNode>>,
    #[serde(default, rename = "data-node")]
    data_node: Vec<RawDataNode>,
    #[serde(default)]
    gateway: Vec<RawGateway>,
    #[serde(default)]
    volume: Vec<RawVolume>,
    #[serde(default)]
    pool: Vec<RawPool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawController {
    listen: Spanned<Strings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    directory: Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGateway {
    name: Text,
    nbd: Option<Text>,
    tls: Option<Text>,
    memcached: Option<Text>,
    pool: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVolume {
    name: Text,
    size: Text,
    tenant: Text,
    tenants: Option<Spanned<Strings>>,
    nodes: Spanned<Strings>,
    stripe: Option<Text>,
    #[serde(default)]
    read_only: bool,
    offsets: Option<Spanned<Strings>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    name: Text,
    tenant: Text,
    nodes: Spanned<Strings>,
    #[serde(default)]
    flush_all: bool,
}

pub(super) fn cluster(text: &str) -> Result<Cluster, TextError> {
    text::read(text, meaning)
}

pub(super) fn cluster_all(text: &str) -> Result<Cluster, Vec<TextError>> {
    text::read_all(text, meaning)
}

fn meaning(raw: RawCluster) -> ReadResult<Cluster> {
    let mut taken = Taken(Vec::new());
    let mut cluster = Cluster { policy: raw.policy, ..Cluster::default() };
    cluster.tls = raw.tls.as_ref().map(|raw| named("directory", &raw.directory)).transpose()?;
    if let Some(raw) = &raw.controller {
        cluster.controller = controller(&raw.listen, cluster.tls.is_some(), &mut taken)?;
    }
    let default = raw.scheduler.as_ref().map(scheduler).transpose()?.unwrap_or_default();
    cluster.cost = raw.cost.as_ref().map(cost).transpose()?.unwrap_or_default();
    cluster.busy_poll = busy_poll(raw.busy_poll.as_ref())?;
    cluster.dscp = raw.dscp.unwrap_or(true);
    // A controller that listens for other machines may have stages alone.
    let has_hosts = cluster.controller.iter().any(|at| matches!(at, Address::Tcp { .. }));
    if raw.node.is_empty() && raw.data_node.is_empty() && !has_hosts {
        return wrong(0..0, "node: there is none", "add [[node]] with a name and a store");
    }
    for raw in &raw.node {
        if cluster.nodes.len() == NODES_MAX {
            return wrong(raw.span(), format!("node: more than {NODES_MAX}"), "remove some");
        }
        let node = node(raw.get_ref(), default, &cluster, &mut taken)?;
        cluster.nodes.push(node);
    }
    for raw in &raw.data_node {
        let node = data_node(raw, &cluster, &mut taken)?;
        cluster.data_nodes.push(node);
    }
    for raw in &raw.volume {
        let volume = volume(raw, &cluster)?;
        cluster.volumes.push(volume);
    }
    for raw in &raw.pool {
        let pool = pool(raw, &cluster)?;
        cluster.pools.push(pool);
    }
    for raw in &raw.gateway {
        let gateway = gateway(raw, &cluster, &mut taken)?;
        cluster.gateways.push(gateway);
    }
    Ok(cluster)
}

fn busy_poll(text: Option<&Text>) -> ReadResult<Span> {
    let Some(text) = text else { return Ok(Cluster::BUSY_POLL) };
    let limit = quantity("busy_poll", Some(text))?.unwrap_or(Span::ZERO);
    if limit > Cluster::BUSY_POLL_MAX {
        let message = format!("busy_poll: {limit} would keep a processor busy for nothing");
        let fix = format!("use {} at most; \"0s\" turns it off", Cluster::BUSY_POLL_MAX);
        return wrong(text.span(), message, fix);
    }
    Ok(limit)
}

/// The addresses so far, each with its owner.
struct Taken(Vec<(Address, String)>);

impl Taken {
    /// Reads the address of component `who`, and refuses an address that another component has.
    fn take(
        &mut self,
        field: &str,
        text: &str,
        span: &Range<usize>,
        who: &str,
    ) -> ReadResult<Address> {
        let address = match text.parse::<Address>() {
            Ok(address) => address,
            Err(error) => return wrong(span.clone(), format!("{field}: {text:?} is {error}"), ""),
        };
        if let Some((_, owner)) = self.0.iter().find(|(taken, _)| taken.clashes_with(&address)) {
            let message = format!("{field}: {address} is the address of {owner} already");
            return wrong(span.clone(), message, "choose another");
        }
        self.0.push((address.clone(), who.to_string()));
        Ok(address)
    }

    fn take_if(
        &mut self,
        field: &str,
        text: Option<&Text>,
        who: &str,
    ) -> ReadResult<Option<Address>> {
        let Some(text) = text else { return Ok(None) };
        self.take(field, text.get_ref(), &text.span(), who).map(Some)
    }
}

fn controller(
    listen: &Spanned<Strings>,
    has_certificates: bool,
    taken: &mut Taken,
) -> ReadResult<Vec<Address>> {
    let span = listen.span();
    let mut addresses = Vec::new();
    for text in &listen.get_ref().0 {
        addresses.push(taken.take("listen", text, &span, "the controller")?);
    }
    let is_tcp = |address: &&Address| matches!(address, Address::Tcp { .. });
    if let Some(tcp) = addresses.iter().find(is_tcp)
        && !has_certificates
    {
        let message = format!("listen: {tcp} does not authenticate clients, as a socket does");
        return wrong(span, message, "add [tls], or listen on a Unix socket only");
    }
    let sockets = addresses.iter().filter(|address| matches!(address, Address::Unix(_))).count();
    if sockets > 1 || addresses.len() - sockets > 1 {
        return wrong(span, "listen: too many", "name at most one socket and one TCP address");
    }
    Ok(addresses)
}

/// A path.
fn named(field: &str, text: &Text) -> ReadResult<String> {
    match text.get_ref().as_str() {
        "" => wrong(text.span(), format!("{field}: no path is empty"), "name one"),
        path => Ok(path.into()),
    }
}

fn iops(field: &str, text: &Text) -> ReadResult<Iops> {
    match quantity(field, Some(text))? {
        Some(Iops(0)) | None => {
            let message = format!("{field}: {:?} does nothing", text.get_ref());
            wrong(text.span(), message, "write how many operations per second it does")
        }
        Some(iops) => at_most_any(field, iops, text.span()),
    }
}

/// Operations per second, no more than any node does.
fn at_most_any(field: &str, iops: Iops, span: Range<usize>) -> ReadResult<Iops> {
    if iops > IOPS_MAX {
        let fix = format!("use {IOPS_MAX} at most");
        return wrong(span, format!("{field}: {iops} is more than any node does"), fix);
    }
    Ok(iops)
}

/// An amount of whole blocks, one at least.
fn size(field: &str, text: &Text) -> ReadResult<Bytes> {
    let size = quantity(field, Some(text))?.unwrap_or(Bytes::ZERO);
    if size == Bytes::ZERO || size > SIZE_MAX || !size.0.is_multiple_of(BLOCK.0) {
        let message = format!("{field}: {size} is not a number of whole blocks");
        return wrong(text.span(), message, format!("use a multiple of {BLOCK}, {BLOCK} at least"));
    }
    Ok(size)
}

/// A name that neither a volume nor a pool has. It becomes a file's, so it must not be hidden.
fn volume_name(what: &str, text: &Text, cluster: &Cluster) -> ReadResult<String> {
    let wanted = text.get_ref();
    let taken = cluster.volumes.iter().any(|volume| volume.name == *wanted)
        || cluster.pools.iter().any(|pool| pool.name == *wanted);
    let name = name(what, text, taken)?;
    if name.starts_with('.') {
        let message = format!("name: {name:?} is no name for a {what}");
        return wrong(text.span(), message, "begin it with a letter or a digit");
    }
    Ok(name)
}

/// The nodes with these names, all of which hold what `what` is.
fn nodes(what: &str, names: &Spanned<Strings>, cluster: &Cluster) -> ReadResult<Vec<NodeId>> {
    let span = names.span();
    let mut nodes = Vec::new();
    for wanted in &names.get_ref().0 {
        let Some(index) = cluster.nodes.iter().position(|node| node.name == *wanted) else {
            let known = cluster.nodes.iter().map(|node| node.name.as_str());
            let fix = nearest_in("node", wanted, known);
            return wrong(span, format!("nodes: none is {wanted:?}"), fix);
        };
        let id = NodeId(index as u16);
        if nodes.contains(&id) {
            return wrong(span, format!("nodes: {wanted} is named twice"), "name each once");
        }
        let holds_volumes = cluster.nodes[index].store.holds_volumes();
        if holds_volumes != (what == "volume") {
            let has = if holds_volumes { "has no memcached" } else { "has memcached" };
            let message = format!("nodes: {wanted} {has} behind it and holds no {what}");
            return wrong(span, message, "pools lie on memcached nodes, volumes on all others");
        }
        nodes.push(id);
    }
    if nodes.is_empty() {
        return wrong(span, format!("nodes: a {what} lies on one at least"), "name one");
    }
    Ok(nodes)
}

fn volume(raw: &RawVolume, cluster: &Cluster) -> ReadResult<Volume> {
    let mut volume = Volume {
        name: volume_name("volume", &raw.name, cluster)?,
        size: size("size", &raw.size)?,
        tenant: name("tenant", &raw.tenant, false)?,
        tenants: tenants(raw.tenants.as_ref())?,
        nodes: nodes("volume", &raw.nodes, cluster)?,
        stripe: stripe(raw.stripe.as_ref())?,
        read_only: raw.read_only,
        offsets: Vec::new(),
    };
    if volume.size.0.div_ceil(volume.stripe.0) < volume.nodes.len() as u64 {
        let message = format!("size: {} leaves nothing for some nodes", volume.size);
        let fix = format!("there are {} nodes and {} a stripe", volume.nodes.len(), volume.stripe);
        return wrong(raw.size.span(), message, fix);
    }
    volume.offsets = offsets(raw, &volume, cluster)?;
    let span = raw.offsets.as_ref().map_or(raw.name.span(), Spanned::span);
    for (part, id) in volume.nodes.iter().enumerate() {
        if let Store::Device { size, .. } = &cluster.nodes[usize::from(id.0)].store {
            fits(&volume, part, *size, cluster, &span)?;
        }
    }
    Ok(volume)
}

/// The tenants that clients may choose.
fn tenants(texts: Option<&Spanned<Strings>>) -> ReadResult<Vec<String>> {
    let Some(texts) = texts else { return Ok(Vec::new()) };
    let tenant =
        |tenant: &String| name("tenants", &Spanned::new(texts.span(), tenant.clone()), false);
    texts.get_ref().0.iter().map(tenant).collect()
}

fn stripe(text: Option<&Text>) -> ReadResult<Bytes> {
    let Some(text) = text else { return Ok(Volume::STRIPE) };
    let stripe = quantity("stripe", Some(text))?.unwrap_or(Volume::STRIPE);
    if !stripe.0.is_power_of_two() || stripe < BLOCK || stripe > STRIPE_MAX {
        let message = format!("stripe: {stripe} is no stripe");
        let fix = format!("use a power of two from {BLOCK} to {STRIPE_MAX}, like \"64KiB\"");
        return wrong(text.span(), message, fix);
    }
    Ok(stripe)
}

/// Where each part begins. The file names the offsets on devices: data on them must not move when
/// the text changes elsewhere.
fn offsets(raw: &RawVolume, volume: &Volume, cluster: &Cluster) -> ReadResult<Vec<Bytes>> {
    let is_device =
        |id: &NodeId| matches!(cluster.nodes[usize::from(id.0)].store, Store::Device { .. });
    let devices = volume.nodes.iter().any(is_device);
    let parts = volume.nodes.len();
    let Some(texts) = &raw.offsets else {
        if devices {
            let message = format!("offsets: {} has parts on a device", volume.name);
            let each = vec!["\"0B\""; parts].join(", ");
            let fix = format!("say where each part begins, like offsets = [{each}]");
            return wrong(raw.nodes.span(), message, fix);
        }
        return Ok(vec![Bytes::ZERO; parts]);
    };
    let span = texts.span();
    if texts.get_ref().0.len() != parts {
        let given = texts.get_ref().0.len();
        let message = format!("offsets: {given} for a volume on {parts} of the nodes");
        return wrong(span, message, "write one offset for each of its nodes, in their order");
    }
    let offset = |(text, id): (&String, &NodeId)| {
        let offset = match text.parse::<Bytes>() {
            Ok(offset) => offset,
            Err(error) => return wrong(span.clone(), format!("offsets: {error}"), ""),
        };
        if !offset.0.is_multiple_of(BLOCK.0) || offset > SIZE_MAX {
            let message = format!("offsets: {offset} is not a number of whole blocks");
            return wrong(span.clone(), message, format!("use a multiple of {BLOCK}"));
        }
        if offset != Bytes::ZERO && !is_device(id) {
            let node = &cluster.nodes[usize::from(id.0)].name;
            let message = format!("offsets: {node} has no device that something could lie in");
            return wrong(span.clone(), message, "write \"0B\" for it");
        }
        Ok(offset)
    };
    texts.get_ref().0.iter().zip(&volume.nodes).map(offset).collect()
}

/// Whether a part has its place on a device of `size`, beside the parts of the volumes before it.
fn fits(
    volume: &Volume,
    part: usize,
    size: Option<Bytes>,
    cluster: &Cluster,
    span: &Range<usize>,
) -> ReadResult<()> {
    let range = |volume: &Volume, part: usize| {
        let start = volume.offsets[part];
        (start, start.saturating_add(volume.layout().part_length(part as u32)))
    };
    let (start, end) = range(volume, part);
    let id = volume.nodes[part];
    let (name, node) = (&volume.name, &cluster.nodes[usize::from(id.0)].name);
    if let Some(size) = size
        && end > size
    {
        let message = format!("offsets: {name} ends at {end} on node {node}, which has {size}");
        return wrong(span.clone(), message, "use a larger device or a smaller volume");
    }
    for other in &cluster.volumes {
        let Some(part) = other.nodes.iter().position(|other| *other == id) else { continue };
        let (from, to) = range(other, part);
        if start < to && from < end {
            let message = format!(
                "offsets: {name} has {start} to {end} of node {node}, and {} has {from} to {to}",
                other.name
            );
            let fix = format!("begin at {to} or later");
            return wrong(span.clone(), message, fix);
        }
    }
    Ok(())
}

fn pool(raw: &RawPool, cluster: &Cluster) -> ReadResult<Pool> {
    Ok(Pool {
        name: volume_name("pool", &raw.name, cluster)?,
        nodes: nodes("pool", &raw.nodes, cluster)?,
        tenant: name("tenant", &raw.tenant, false)?,
        flush_all: raw.flush_all,
    })
}

fn gateway(raw: &RawGateway, cluster: &Cluster, taken: &mut Taken) -> ReadResult<Gateway> {
    let is_taken = cluster.gateways.iter().any(|gateway| gateway.name == *raw.name.get_ref());
    let name = name("gateway", &raw.name, is_taken)?;
    borne(cluster, &raw.name)?;
    let who = format!("gateway {name}");
    let nbd = taken.take_if("nbd", raw.nbd.as_ref(), &who)?;
    guarded("nbd", nbd.as_ref(), raw.nbd.as_ref(), cluster.tls.is_some())?;
    let is_tls_required = is_tls_required(raw, nbd.as_ref(), cluster.tls.is_some())?;
    let memcached = match &raw.memcached {
        Some(text) => Some(MemcachedEndpoint {
            address: taken.take("memcached", text.get_ref(), &text.span(), &who)?,
            pool: pool_of(raw.pool.as_ref(), text, cluster)?,
        }),
        None => None,
    };
    // There is no TLS for it.
    let endpoint = memcached.as_ref().map(|endpoint| &endpoint.address);
    guarded("memcached", endpoint, raw.memcached.as_ref(), false)?;
    if let (Some(pool), None) = (&raw.pool, &memcached) {
        let fix = "add memcached = \"HOST:PORT\", or remove it";
        return wrong(pool.span(), "pool: nothing is open to it", fix);
    }
    if nbd.is_none() && memcached.is_none() {
        let fix = "write nbd = \"HOST:PORT\", memcached = \"HOST:PORT\", or both";
        return wrong(raw.name.span(), format!("gateway: {name} has no listener"), fix);
    }
    Ok(Gateway { name, nbd, is_tls_required, memcached })
}

/// The pool behind an endpoint: the one that is named, or the only one.
fn pool_of(wanted: Option<&Text>, endpoint: &Text, cluster: &Cluster) -> ReadResult<usize> {
    let names = cluster.pools.iter().map(|pool| pool.name.as_str());
    let Some(wanted) = wanted else {
        let message = "pool: memcached has no pool";
        return match &cluster.pools[..] {
            [_] => Ok(0),
            [] => wrong(endpoint.span(), message, "add [[pool]] with nodes for its keys"),
            [first, ..] => {
                let fix = format!("add pool = {:?}, for example", first.name);
                wrong(endpoint.span(), message, fix)
            }
        };
    };
    match cluster.pools.iter().position(|pool| pool.name == *wanted.get_ref()) {
        Some(index) => Ok(index),
        None => {
            let fix = nearest_in("pool", wanted.get_ref(), names);
            wrong(wanted.span(), format!("pool: none is {:?}", wanted.get_ref()), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{DeviceModel, Node};
    use crate::cost::{Combine, CostModel, DeviceCost, LineCost};
    use crate::units::Span;
    use proptest::prelude::*;

    const FULL: &str = r#"
        policy = "policy.toml"
        scheduler = "unified"
        [cost]
        read = { base = "80us", per_mib = "1ms" }
        write = { base = "100us", per_mib = "2ms" }
        combine = "max"
        [controller]
        listen = ["unix:controller.sock", "127.0.0.1:7270"]
        [tls]
        directory = "tls"
        [[node]]
        name = "a"
        address = "unix:a.sock"
        capacity = "20k iops"
        depth = 8
        scheduler = "sfq"
        directory = "a"
        model = { rate = "1k iops", variance = "2.5%" }
        [[node]]
        name = "b"
        address = "10.0.0.2:7271"
        device = "/dev/sdb"
        size = "8KiB"
        [[node]]
        name = "c"
        memory = true
        [[node]]
        name = "kv"
        memcached = "127.0.0.1:11211"
        [[volume]]
        name = "wide"
        size = "12KiB"
        tenant = "oltp"
        nodes = ["a", "b", "c"]
        stripe = "4KiB"
        offsets = ["0B", "4KiB", "0B"]
        [[volume]]
        name = "one"
        size = "4KiB"
        tenant = "backup"
        nodes = "b"
        read_only = true
        offsets = "0B"
        [[pool]]
        name = "cache"
        tenant = "web"
        nodes = "kv"
        flush_all = true
        [[gateway]]
        name = "g"
        nbd = "127.0.0.1:10809"
        memcached = "127.0.0.1:11212"
    "#;

    #[test]
    fn a_full_cluster_reads_as_written() {
        let cluster = Cluster::parse(FULL).unwrap();
        assert_eq!(cluster.controller[0], Address::Unix("controller.sock".into()));
        let line = |base, per_mib| LineCost { base: Span(base), per_mib: Span(per_mib) };
        let (read, write) = (line(80_000, 1_000_000), line(100_000, 2_000_000));
        let device = DeviceCost { read, write, combine: Combine::Max };
        assert_eq!(cluster.cost, CostModel::Device(device));
        let a = &cluster.nodes[0];
        assert_eq!((a.capacity, a.depth), (Some(Iops(20_000)), 8));
        let schedulers: Vec<_> = cluster.nodes.iter().map(|node| node.scheduler.name()).collect();
        assert_eq!(schedulers, ["sfq", "unified", "unified", "unified"]);
        assert_eq!(a.model, Some(DeviceModel { rate: Iops(1000), variance_permille: 25 }));
        let b = &cluster.nodes[1];
        assert_eq!((b.capacity, b.depth, b.model), (None, Node::DEPTH, None));
        assert_eq!(b.store, Store::Device { path: "/dev/sdb".into(), size: Some(Bytes(8192)) });
        let wide = cluster.volume_named("wide").unwrap();
        assert_eq!(wide.nodes, [NodeId(0), NodeId(1), NodeId(2)]);
        assert_eq!(wide.offsets, [Bytes(0), Bytes(4096), Bytes(0)]);
        assert_eq!(wide.layout().part_length(2), Bytes(4096));
        let one = cluster.volume_named("one").unwrap();
        assert!(one.read_only && one.stripe == Volume::STRIPE);
        let endpoint = cluster.gateways[0].memcached.as_ref().unwrap();
        let pool = &cluster.pools[endpoint.pool];
        assert!(pool.nodes == [NodeId(3)] && pool.flush_all);
    }

    #[test]
    fn a_measured_capacity_is_found_within_a_bound_of_latency() {
        let bounds = [
            ("", crate::policy::Resource::MEASURED_LATENCY),
            ("latency = \"p99 < 5ms\"", Span(5_000_000)),
        ];
        for (field, bound) in bounds {
            let measured = format!("\"measured\"\n{field}");
            let cluster = Cluster::parse(&FULL.replacen("\"20k iops\"", &measured, 1)).unwrap();
            let a = &cluster.nodes[0];
            assert_eq!((a.capacity, a.bandwidth, a.latency), (None, None, Some(bound)));
            assert_eq!(cluster.nodes[1].latency, None);
        }
    }

    /// The error of the full cluster with `from` replaced by `to`.
    fn with(from: &str, to: &str) -> String {
        assert!(FULL.contains(from), "{from}");
        Cluster::parse(&FULL.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[track_caller]
    fn refuses(cases: &[(&str, &str, &str)]) {
        for (from, to, wanted) in cases {
            let error = with(from, to);
            assert!(error.contains(wanted), "{error}\n  should contain\n{wanted}");
        }
    }

    #[test]
    fn peers_are_checked() {
        refuses(&[
            ("policy =", "polcy =", "line 2, column 9: unknown field `polcy`, expected one of"),
            ("depth = 8", "depth = 0", "line 16, column 17: depth: 0 is out of range; use 1 to 10"),
            ("\"20k iops\"", "\"0 iops\"", "capacity: \"0 iops\" does nothing; write how"),
            ("\"20k iops\"", "\"20k\"", "capacity: \"20k\" has a unit that is not known"),
            ("\"20k iops\"", "[\"measured\", \"1GiB/s\"]", "operations; write \"measured\" alone"),
            ("depth = 8", "latency = \"p99 < 5ms\"", "write capacity = \"measured\" beside it"),
            ("11211\"\n", "11211\"\ncapacity = \"measured\"\n", "keys are not timed one by one"),
            ("2.5%", "2.55%", "variance: \"2.55%\" is no part of a whole; write it like \"10%\""),
            ("2.5%", "101%", "variance: \"101%\""),
            ("name = \"b\"", "name = \"a\"", "name: \"a\" is taken; choose another name"),
            ("unix:a.sock", "a.sock", "address: \"a.sock\" is not an address; write it like"),
            ("unix:a.sock", "unix:controller.sock", "address of the controller already; choose"),
            ("10.0.0.2:7271", "localhost:7270", "address: localhost:7270 is the address of the c"),
            ("127.0.0.1:11212", "127.0.0.1:11211", "the address of the server behind node kv"),
            ("127.0.0.1:7270", "unix:b", "listen: too many; name at most one socket and one"),
            ("directory = \"a\"", "", "node: a has no store; write one of directory ="),
            ("memory = true", "memory = true\nmemcached = \"a:1\"", "c has more than one store"),
            ("memory = true", "memory = false", "memory: false is no store"),
            ("memory = true", "memory = true\nsize = \"4KiB\"", "size: only a device has one"),
            ("directory = \"a\"", "directory = \"\"", "directory: no path is empty"),
            ("memory = true", "directory = \"a\"", "node: c has the store of node a; give it"),
            (
                "nbd = \"127.0.0.1:10809\"",
                "pool = \"x\"",
                "pool: none is \"x\"; known are cache; or add [[pool]]",
            ),
            ("memcached = \"127.0.0.1:11212\"", "pool = \"cache\"", "pool: nothing is open to it"),
        ]);
        let closed = FULL.replacen("nbd = \"127.0.0.1:10809\"", "", 1);
        let closed = closed.replacen("memcached = \"127.0.0.1:11212\"", "", 1);
        let error = Cluster::parse(&closed).unwrap_err().to_string();
        assert!(error.contains("gateway: g has no listener; write nbd ="), "{error}");
        let error = Cluster::parse("").unwrap_err().to_string();
        assert_eq!(
            error,
            "line 1, column 1: node: there is none; add [[node]] with a name and a store"
        );
        // A controller for stages of other machines alone needs no node.
        let hosts = "[tls]\ndirectory = \"tls\"\n[controller]\nlisten = \"192.0.2.1:7300\"\n";
        assert!(Cluster::parse(hosts).is_ok());
    }

    #[test]
    fn schedulers_and_costs_are_checked() {
        refuses(&[
            (
                "\"sfq\"",
                "\"sfw\"",
                "column 21: scheduler: \"sfw\" is not a choice; did you mean \"sf",
            ),
            (
                "\"unified\"",
                "\"fair\"",
                "line 3, column 21: scheduler: \"fair\" is not a choice; k",
            ),
            (
                "base = \"80us\"",
                "base = \"80\"",
                "line 5, column 25: base: \"80\" has no unit; write",
            ),
            ("base = \"80us\", ", "", "line 5, column 16: missing field `base`"),
            ("per_mib", "per_mb", "line 5, column 33: unknown field `per_mb`, expected `base` or"),
            ("\"2ms\"", "\"5s\"", "per_mib: 5s is more than a request can cost; use 4s at most"),
            ("\"max\"", "\"mean\"", "combine: \"mean\" is not a choice; did you mean \"max"),
            (
                "read =",
                "raed =",
                "unknown field `raed`, expected one of `read`, `write`, `combine`",
            ),
        ]);
        let start = FULL.find("[cost]").unwrap()..FULL.find("[controller]").unwrap();
        let with = |cost: &str| {
            let mut text = String::from(FULL);
            text.replace_range(start.clone(), cost);
            Cluster::parse(&text).map(|cluster| cluster.cost).map_err(|error| error.to_string())
        };
        assert_eq!(with(""), Ok(CostModel::Requests));
        assert_eq!(with("cost = \"bytes\"\n"), Ok(CostModel::Bytes));
        let error = with("cost = \"byte\"\n").unwrap_err();
        assert!(
            error.contains("cost: \"byte\" is not a choice; did you mean \"bytes\"?"),
            "{error}"
        );
        let error = with("cost = 5\n").unwrap_err();
        assert!(error.contains("expected \"requests\", \"bytes\" or a table of what a"), "{error}");
        let one = with("cost = { read = { base = \"1ms\", per_mib = \"0ms\" } }\n").unwrap();
        let line = LineCost { base: Span::MILLISECOND, per_mib: Span::ZERO };
        let device = DeviceCost { read: line, write: line, combine: Combine::Sum };
        assert_eq!(one, CostModel::Device(device));
    }

    #[test]
    fn polls_have_a_default_and_a_bound() {
        let with = |line: &str| {
            let text = format!("{line}\n[[node]]\nname = \"a\"\nmemory = true\n");
            Cluster::parse(&text)
                .map(|cluster| cluster.busy_poll)
                .map_err(|error| error.to_string())
        };
        assert_eq!(with(""), Ok(Cluster::BUSY_POLL));
        assert_eq!(with("busy_poll = \"0s\""), Ok(Span::ZERO));
        assert_eq!(with("busy_poll = \"1ms\""), Ok(Cluster::BUSY_POLL_MAX));
        let error = with("busy_poll = \"2ms\"").unwrap_err();
        let wanted = "line 1, column 13: busy_poll: 2ms would keep a processor busy for nothing; \
                      use 1ms at most; \"0s\" turns it off";
        assert_eq!(error, wanted);
    }

    #[test]
    fn packets_are_marked_unless_the_text_says_no() {
        let with = |line: &str| {
            let text = format!("{line}\n[[node]]\nname = \"a\"\nmemory = true\n");
            Cluster::parse(&text).map(|cluster| cluster.dscp).map_err(|error| error.to_string())
        };
        assert_eq!(["", "dscp = true", "dscp = false"].map(with), [Ok(true), Ok(true), Ok(false)]);
        assert!(with("dscp = 46").is_err());
    }

    #[test]
    fn what_leaves_the_machine_is_guarded() {
        let cluster = Cluster::parse(FULL).unwrap();
        assert_eq!(cluster.tls.as_deref(), Some("tls"));
        assert!(!cluster.gateways[0].is_tls_required, "nobody else reaches it");
        let required = |to: &str| {
            let text = FULL.replacen("nbd = \"127.0.0.1:10809\"", to, 1);
            Cluster::parse(&text).unwrap().gateways[0].is_tls_required
        };
        assert!(required("nbd = \"10.0.0.1:10809\""));
        assert!(required("nbd = \"unix:g.sock\"\ntls = \"required\""));
        assert!(!required("nbd = \"unix:g.sock\"\ntls = \"offered\""));
        let guard = "[tls]\n        directory = \"tls\"";
        let nbd = "nbd = \"127.0.0.1:10809\"";
        refuses(&[
            ("directory = \"tls\"", "directory = \"\"", "directory: no path is empty; name one"),
            (
                guard,
                "",
                "listen: 127.0.0.1:7270 does not authenticate clients, as a socket does; add [tl",
            ),
            ("name = \"a\"", "name = \"Controller\"", "\"Controller\" is the name of another cert"),
            ("name = \"a\"", "name = \"client\"", "\"client\" is the name of another certificate"),
            ("name = \"g\"", "name = \"B\"", "\"B\" is the name of another certificate; choose a"),
            ("name = \"a\"", "name = \"a_1\"", "\"a_1\" cannot be a certificate's; use letters"),
            ("name = \"a\"", "name = \"a.1\"", "\"a.1\" cannot be a certificate's"),
            ("name = \"a\"", "name = \"-a\"", "\"-a\" cannot be a certificate's"),
            (nbd, "tls = \"required\"", "tls: there is no nbd; add it, or remove this"),
            (nbd, "nbd = \"a:1\"\ntls = \"offered\"", "other machines reach this gateway, so it"),
            (
                nbd,
                "nbd = \"unix:g\"\ntls = \"always\"",
                "tls: \"always\" is not a choice; known are",
            ),
            ("127.0.0.1:11212", "10.0.0.1:11212", "memcached: 10.0.0.1:11212 can be reached from"),
        ]);
        let open = FULL.replacen(guard, "", 1).replacen(", \"127.0.0.1:7270\"", "", 1);
        let error_of = |text: &str| Cluster::parse(text).unwrap_err().to_string();
        let error = error_of(&open);
        let wanted = "address: 10.0.0.2:7271 can be reached from other machines; any host that \
                      reaches it may do anything; add [tls], or use 127.0.0.1";
        assert!(error.contains(wanted), "{error}");
        let open = open.replacen("10.0.0.2:7271", "unix:b.sock", 1);
        let error = error_of(&open.replacen("127.0.0.1:10809", "0.0.0.0:10809", 1));
        assert!(error.contains("nbd: 0.0.0.0:10809 can be reached"), "{error}");
        let error = error_of(&open.replacen(nbd, &format!("{nbd}\ntls = \"offered\""), 1));
        assert!(error.contains("tls: there is no [tls]; add it, or remove this"), "{error}");
        assert!(Cluster::parse(&open).is_ok());
    }

    #[test]
    fn volumes_and_pools_are_checked() {
        let more = "[[pool]]\nname = \"more\"\ntenant = \"web\"\nnodes = \"kv\"\n[[gateway]]";
        refuses(&[
            ("\"12KiB\"", "\"12000B\"", "size: 12kB is not a number of whole blocks; use a multi"),
            ("\"12KiB\"", "\"8KiB\"", "size: 8KiB leaves nothing for some nodes; there are 3 no"),
            ("\"oltp\"", "\"ol tp\"", "\"ol tp\" is no name for a tenant"),
            ("\"one\"", "\".one\"", "name: \".one\" is no name for a volume; begin it with"),
            ("\"one\"", "\"wide\"", "name: \"wide\" is taken"),
            ("\"cache\"", "\"one\"", "name: \"one\" is taken"),
            ("[\"a\", \"b\", \"c\"]", "[]", "nodes: a volume lies on one at least; name one"),
            ("[\"a\", \"b\", \"c\"]", "[\"a\", \"a\"]", "nodes: a is named twice"),
            ("[\"a\", \"b\", \"c\"]", "[\"kw\"]", "nodes: none is \"kw\"; did you mean \"kv\"?"),
            ("[\"a\", \"b\", \"c\"]", "[\"kv\"]", "kv has memcached behind it and holds no vol"),
            ("nodes = \"kv\"", "nodes = \"c\"", "c has no memcached behind it and holds no pool"),
            ("stripe = \"4KiB\"", "stripe = \"2KiB\"", "stripe: 2KiB is no stripe; use a power"),
            ("stripe = \"4KiB\"", "stripe = \"12KiB\"", "stripe: 12KiB is no stripe"),
            ("offsets = \"0B\"", "", "offsets: one has parts on a device; say where each part"),
            ("offsets = \"0B\"", "offsets = [\"0B\", \"0B\"]", "offsets: 2 for a volume on 1 of"),
            ("offsets = \"0B\"", "offsets = \"1kB\"", "offsets: 1kB is not a number of whole bl"),
            ("[\"0B\", \"4KiB\", \"0B\"]", "[\"4KiB\", \"4KiB\", \"0B\"]", "offsets: a has no dev"),
            (
                "offsets = \"0B\"",
                "offsets = \"4KiB\"",
                "line 44, column 19: offsets: one has 4KiB to 8KiB of node b, and wide has 4KiB to \
                 8KiB; begin at 8KiB or later",
            ),
            (
                "offsets = \"0B\"",
                "offsets = \"8KiB\"",
                "offsets: one ends at 12KiB on node b, which has 8KiB; use a larger device",
            ),
            ("[[gateway]]", more, "pool: memcached has no pool; add pool ="),
        ]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_read_or_refused(
            cut in 0..FULL.len(),
            more in "[a-z\\[\\]=\"{}\n 0-9]{0,20}",
        ) {
            let text = format!("{}{more}{}", &FULL[..cut], &FULL[cut..]);
            if let Err(error) = Cluster::parse(&text) {
                prop_assert!(error.span.start <= text.len());
                prop_assert!(error.line >= 1 && error.column >= 1);
            }
        }
    }
}
