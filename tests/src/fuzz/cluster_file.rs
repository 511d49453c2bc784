//! The reader of cluster files: any text is read or refused with a place in it, and in what is read
//! every byte of a volume has one place, in its part and beside all others.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_model::cluster::{Layout, Store, Volume};
use tidegate_model::{Cluster, NodeId};

use super::policy::has_a_location;

/// Bytes of a request that is looked at piece by piece, at most.
const REQUEST: u64 = 1 << 20;

/// The input is the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Cluster::parse(&text) {
        Ok(cluster) => {
            let again = format!("{text}\n# end");
            assert_eq!(Cluster::parse(&again).as_ref(), Ok(&cluster), "a comment changes it");
            cluster.volumes.iter().for_each(|volume| bytes_are_mapped(volume, &cluster));
            devices_have_headroom(&cluster);
            for pool in &cluster.pools {
                names_each_once(&pool.nodes, &cluster, false);
            }
            for gateway in &cluster.gateways {
                assert!(gateway.nbd.is_some() || gateway.memcached.is_some(), "no door");
                let pool = gateway.memcached.as_ref().map(|endpoint| endpoint.pool);
                assert!(pool.is_none_or(|pool| pool < cluster.pools.len()), "a door to nowhere");
            }
        }
        Err(error) => has_a_location(&text, &error),
    }
}

fn names_each_once(nodes: &[NodeId], cluster: &Cluster, holds_volumes: bool) {
    assert!(!nodes.is_empty());
    for (locate, id) in nodes.iter().enumerate() {
        let node = cluster.node(*id).expect("a node that there is");
        assert!((1..=1024).contains(&node.depth));
        assert_eq!(node.store.holds_volumes(), holds_volumes);
        assert!(!nodes[..locate].contains(id), "{id:?} has two parts");
    }
}

fn bytes_are_mapped(volume: &Volume, cluster: &Cluster) {
    names_each_once(&volume.nodes, cluster, true);
    assert_eq!(volume.offsets.len(), volume.nodes.len());
    let (layout, size) = (volume.layout(), volume.size.0);
    let parts: Vec<u64> = (0..layout.parts()).map(|part| layout.part_length(part).0).collect();
    assert_eq!(parts.iter().sum::<u64>(), size, "{volume:?}");
    assert!(parts.iter().all(|length| *length > 0), "a node has nothing: {volume:?}");
    let stripe = volume.stripe.0;
    let row = stripe.saturating_mul(parts.len() as u64);
    for near in [0, stripe, row, 3 * stripe, size / 3, size / 2, size] {
        for offset in [near.saturating_sub(4096), near.saturating_sub(1), near] {
            if offset < size {
                request_is_cut(volume, &layout, offset, (size - offset).min(REQUEST));
            }
        }
    }
}

/// Where a byte lies, counted in stripes: so that two bytes have two places.
fn locate(volume: &Volume, offset: u64) -> (u32, u64) {
    if volume.nodes.len() == 1 {
        return (0, offset);
    }
    let (stripe, parts) = (offset / volume.stripe.0, volume.nodes.len() as u64);
    ((stripe % parts) as u32, stripe / parts * volume.stripe.0 + offset % volume.stripe.0)
}

/// The pieces of a request are it, and the spans are the pieces.
fn request_is_cut(volume: &Volume, layout: &Layout, offset: u64, length: u64) {
    let length = length as u32;
    let mut held: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut at = 0;
    for chunk in layout.chunks(offset, length) {
        assert_eq!(chunk.at, at, "a gap");
        let last = u64::from(chunk.length) - 1;
        assert_eq!(locate(volume, offset + u64::from(at)), (chunk.part, chunk.offset));
        let end = locate(volume, offset + u64::from(at) + last);
        assert_eq!(end, (chunk.part, chunk.offset + last));
        let end = chunk.offset + last + 1;
        assert!(end <= layout.part_length(chunk.part).0, "{chunk:?} beyond its part");
        at += chunk.length;
        let held = held.entry(chunk.part).or_insert((chunk.offset, chunk.offset));
        assert_eq!(held.1, chunk.offset, "a request has one range in a part");
        held.1 = end;
    }
    assert_eq!(at, length, "a request is cut short");
    let mut spans = BTreeMap::new();
    for span in layout.spans(offset, length) {
        let range = (span.offset, span.offset + u64::from(span.length));
        assert_eq!(spans.insert(span.part, range), None, "two spans in a part");
    }
    assert_eq!(spans, held);
    let is_one = layout.whole(offset, length).is_some();
    assert_eq!(is_one, layout.chunks(offset, length).count() == 1);
}

fn devices_have_headroom(cluster: &Cluster) {
    let mut taken: Vec<(NodeId, u64, u64)> = Vec::new();
    for volume in &cluster.volumes {
        for (part, (id, offset)) in (0..).zip(volume.nodes.iter().zip(&volume.offsets)) {
            let node = cluster.node(*id).expect("a node that there is");
            let Store::Device { size, .. } = &node.store else { continue };
            let length = volume.layout().part_length(part).0;
            let end = offset.0.checked_add(length).expect("a place on a device");
            assert!(size.is_none_or(|size| end <= size.0), "{volume:?} is not on its device");
            let clash =
                |(on, from, to): &(NodeId, u64, u64)| on == id && *from < end && offset.0 < *to;
            assert!(!taken.iter().any(clash), "{volume:?} lies on another");
            taken.push((*id, offset.0, end));
        }
    }
}

/// The clusters of this repository, and one with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![EVERYTHING.as_bytes().to_vec()];
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cluster.toml");
    seeds.extend(std::fs::read(example));
    seeds
}

const EVERYTHING: &str = r#"
policy = "policy.toml"

[controller]
listen = ["unix:controller.sock", "127.0.0.1:7070"]

[[node]]
name = "a"
address = "10.0.0.1:7071"
capacity = "20k iops"
depth = 64
device = "/dev/sdb"
size = "1GiB"
model = { rate = "5k iops", variance = "2.5%" }

[[node]]
name = "b"
device = "image"

[[node]]
name = "c"
directory = "nodes/c"

[[node]]
name = "d"
memory = true

[[node]]
name = "m"
memcached = "localhost:11211"

[[gateway]]
name = "g"
nbd = "[::1]:10809"
memcached = "unix:g.sock"
pool = "cache"

[[volume]]
name = "db"
size = "1GiB"
tenant = "oltp"
nodes = ["a", "b", "c"]
stripe = "4KiB"
offsets = ["4KiB", "0B", "0B"]

[[volume]]
name = "log"
size = "300MiB"
tenant = "oltp"
nodes = ["b"]
read_only = true
offsets = ["512MiB"]

[[volume]]
name = "odd"
size = "200KiB"
tenant = "batch"
nodes = ["d", "c"]

[[pool]]
name = "cache"
nodes = ["m"]
tenant = "web"
"#;

/// Words of the language.
pub const WORDS: &[&str] = &[
    "[[node]]\n",
    "[[volume]]\n",
    "[[pool]]\n",
    "[[gateway]]\n",
    "[controller]\n",
    "name = ",
    "address = ",
    "capacity = ",
    "depth = ",
    "directory = ",
    "device = ",
    "size = ",
    "memory = true\n",
    "memcached = ",
    "model = {",
    "rate = ",
    "variance = ",
    "nbd = ",
    "pool = ",
    "tenant = ",
    "nodes = [",
    "stripe = ",
    "offsets = [",
    "read_only = true\n",
    "\"a\"",
    "\"b\"",
    "\"c\"",
    "\"d\"",
    "\"4KiB\"",
    "\"8KiB\"",
    "\"1GiB\"",
    "\"4EiB\"",
    "\"0B\"",
    "\"12KiB\"",
    "\"1iops\"",
    "\"100%\"",
    "\"unix:x\"",
    "\"[::1]:1\"",
    "\"é\"",
    "\n",
    "]",
    "}",
    ",",
    "0",
    "-1",
];
