//! Parser of the data nodes of a cluster file.

use alloc::format;
use alloc::string::String;

use serde::Deserialize;
use toml::Spanned;

use super::{Address, BLOCK, Cluster, Taken, borne, iops};
use crate::cluster::{DataNode, MemoryTransport};
use crate::text::{ReadResult, Text, choice, count, name, quantity, wrong};
use crate::units::{Bytes, Iops, Span};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDataNode {
    name: Text,
    listen: Text,
    memory: Text,
    capacity: Text,
    client: Text,
    period: Option<Text>,
    #[serde(rename = "seats")]
    session_slots: Option<Spanned<i64>>,
    window: Option<Spanned<i64>>,
    mode: Option<Text>,
    paced: Option<Spanned<bool>>,
    fabric: Option<Text>,
    device: Option<Text>,
}

pub(super) fn data_node(
    raw: &RawDataNode,
    cluster: &Cluster,
    taken: &mut Taken,
) -> ReadResult<DataNode> {
    let nodes = cluster.nodes.iter().map(|node| &node.name);
    let mut others = nodes.chain(cluster.data_nodes.iter().map(|node| &node.name));
    let name = name("data node", &raw.name, others.any(|other| other == raw.name.get_ref()))?;
    borne(cluster, &raw.name)?;
    let known = [
        ("shm", MemoryTransport::Shm),
        ("model", MemoryTransport::Model),
        ("verbs", MemoryTransport::Verbs),
    ];
    let transport = choice("fabric", raw.fabric.as_ref(), &known)?;
    let node = DataNode {
        listen: listen(&raw.listen, &name, transport, cluster, taken)?,
        name,
        memory: memory(&raw.memory)?,
        capacity: iops("capacity", &raw.capacity)?,
        client: iops("client", &raw.client)?,
        period: raw.period.as_ref().map_or(Ok(DataNode::PERIOD), period)?,
        session_slots: count(
            "seats",
            raw.session_slots.as_ref(),
            DataNode::SESSION_SLOTS_MAX.into(),
        )?
        .unwrap_or(DataNode::SESSION_SLOTS),
        window: count("window", raw.window.as_ref(), DataNode::WINDOW_MAX.into())?
            .unwrap_or(DataNode::WINDOW),
        is_paced: is_paced(raw)?,
        transport,
        device: device(raw, transport)?,
    };
    check(&node, raw)?;
    Ok(node)
}

/// Checks the fields of a data node against each other.
fn check(node: &DataNode, raw: &RawDataNode) -> ReadResult<()> {
    let DataNode { capacity, client, .. } = *node;
    let most = Iops(DataNode::COUNT_MAX * Span::MILLISECOND.0 / node.period.0 * 1000);
    if node.per_period(capacity) > DataNode::COUNT_MAX {
        let message = format!("capacity: {capacity} is more than can be counted in a period");
        let fix = format!("use {most} at most, or a shorter period");
        return wrong(raw.capacity.span(), message, fix);
    }
    if client > capacity {
        let message = format!("client: {client} is more than the capacity of {capacity}");
        return wrong(raw.client.span(), message, "write what one client alone can do of it");
    }
    if node.per_period(client) == 0 {
        let message = format!("client: {client} is nothing in a period of {}", node.period);
        return wrong(raw.client.span(), message, "write more, or use a longer period");
    }
    Ok(())
}

/// Reads an address that no other component has. A TCP port does not identify its clients, and
/// takes no descriptor, so it is for RNICs and certificates only.
fn listen(
    text: &Text,
    name: &str,
    transport: MemoryTransport,
    cluster: &Cluster,
    taken: &mut Taken,
) -> ReadResult<Address> {
    let who = format!("data node {name}");
    let address = taken.take("listen", text.get_ref(), &text.span(), &who)?;
    match (&address, transport) {
        (Address::Unix(_), _) => Ok(address),
        (tcp, MemoryTransport::Shm | MemoryTransport::Model) => {
            let message = format!("listen: memory cannot be handed out at {tcp}");
            let fix = "write a Unix socket, like \"unix:memory.sock\", or add fabric = \"verbs\"";
            wrong(text.span(), message, fix)
        }
        (tcp, MemoryTransport::Verbs) if cluster.tls.is_none() => {
            let message = format!("listen: {tcp} does not authenticate clients, as a socket does");
            wrong(text.span(), message, "add [tls], or listen on a Unix socket")
        }
        _ => Ok(address),
    }
}

/// The name of an RDMA device.
fn device(raw: &RawDataNode, transport: MemoryTransport) -> ReadResult<Option<String>> {
    match &raw.device {
        Some(text) if transport != MemoryTransport::Verbs => {
            let message = "device: this fabric has none";
            wrong(text.span(), message, "add fabric = \"verbs\", or remove it")
        }
        Some(text) if text.get_ref().is_empty() => {
            wrong(text.span(), "device: no name is empty", "`rdma link` lists those that there are")
        }
        text => Ok(text.as_ref().map(|text| text.get_ref().clone())),
    }
}

fn memory(text: &Text) -> ReadResult<Bytes> {
    let memory = quantity("memory", Some(text))?.unwrap_or(Bytes::ZERO);
    let (least, most) = (DataNode::MEMORY_MIN, DataNode::MEMORY_MAX);
    if memory < least || memory > most || !memory.0.is_multiple_of(BLOCK.0) {
        let message = format!("memory: {memory} is no size for a data node");
        let fix = format!("use a multiple of {BLOCK}, {least} to {most}");
        return wrong(text.span(), message, fix);
    }
    Ok(memory)
}

fn period(text: &Text) -> ReadResult<Span> {
    let period = quantity("period", Some(text))?.unwrap_or(DataNode::PERIOD);
    let (least, most) = (DataNode::PERIOD_MIN, DataNode::PERIOD_MAX);
    if !(least..=most).contains(&period) {
        let message = format!("period: {period} is out of range");
        return wrong(text.span(), message, format!("use {least} to {most}"));
    }
    Ok(period)
}

/// Whether tokens are spread over the period. `mode` once chose between the shipped rules and those
/// of the paper, which only experiments use.
fn is_paced(raw: &RawDataNode) -> ReadResult<bool> {
    match &raw.mode {
        Some(text) if text.get_ref() != "sound" => {
            let message = format!("mode: there is no {:?}", text.get_ref());
            let fix = "remove it; `tidegate-lab repro haechi` compares with the paper's rules";
            wrong(text.span(), message, fix)
        }
        _ => Ok(raw.paced.as_ref().is_none_or(|paced| *paced.get_ref())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const FULL: &str = r#"
        [[data-node]]
        name = "fast"
        listen = "unix:fast.sock"
        memory = "1GiB"
        capacity = "1570k iops"
        client = "400k iops"
        period = "100ms"
        seats = 10
        window = 32
        mode = "sound"
        paced = false
        fabric = "model"
        [[data-node]]
        name = "plain"
        listen = "unix:plain.sock"
        memory = "4MiB"
        capacity = "10k iops"
        client = "10k iops"
    "#;

    #[test]
    fn data_nodes_read_as_written_and_nothing_else_is_needed() {
        let cluster = Cluster::parse(FULL).unwrap();
        let [fast, plain] = &cluster.data_nodes[..] else { panic!("{cluster:?}") };
        assert_eq!((fast.is_paced, fast.transport), (false, MemoryTransport::Model));
        assert_eq!(
            (fast.session_slots, fast.window, fast.per_period(fast.client)),
            (10, 32, 40_000)
        );
        assert_eq!((plain.is_paced, plain.transport), (true, MemoryTransport::Shm));
        let of = (plain.session_slots, plain.window, plain.period);
        assert_eq!(of, (DataNode::SESSION_SLOTS, DataNode::WINDOW, Span::SECOND));
        assert_eq!(plain.listen, Address::Unix("plain.sock".into()));
        assert_eq!(plain.device, None);
    }

    #[test]
    fn by_rdma_it_listens_for_other_machines_and_names_a_device() {
        let remote = FULL.replacen("\"model\"", "\"verbs\"\ndevice = \"mlx5_0\"", 1).replacen(
            "unix:fast.sock",
            "192.0.2.1:7400",
            1,
        );
        let error = Cluster::parse(&remote).unwrap_err().to_string();
        let wanted =
            "listen: 192.0.2.1:7400 does not authenticate clients, as a socket does; add [tls]";
        assert!(error.contains(wanted), "{error}");
        let cluster = Cluster::parse(&format!("[tls]\ndirectory = \"tls\"\n{remote}")).unwrap();
        let fast = &cluster.data_nodes[0];
        assert_eq!(
            (fast.transport, fast.device.as_deref()),
            (MemoryTransport::Verbs, Some("mlx5_0"))
        );
        assert_eq!(fast.listen, Address::Tcp { host: "192.0.2.1".into(), port: 7400 });
        let local = FULL.replacen("\"model\"", "\"verbs\"", 1);
        let node = Cluster::parse(&local).unwrap().data_nodes.remove(0);
        assert_eq!((node.device, node.listen), (None, Address::Unix("fast.sock".into())));
    }

    #[test]
    fn data_nodes_are_checked() {
        let cases = [
            ("\"plain\"", "\"fast\"", "name: \"fast\" is taken; choose another name"),
            (
                "unix:plain.sock",
                "unix:fast.sock",
                "listen: unix:fast.sock is the address of data n",
            ),
            (
                "unix:fast.sock",
                "127.0.0.1:1",
                "listen: memory cannot be handed out at 127.0.0.1:1;",
            ),
            (
                "\"1GiB\"",
                "\"1MiB\"",
                "memory: 1MiB is no size for a data node; use a multiple of 4K",
            ),
            ("\"1GiB\"", "\"9000000B\"", "memory: 9MB is no size"),
            ("\"100ms\"", "\"1ms\"", "period: 1ms is out of range; use 10ms to 10s"),
            ("\"1570k iops\"", "\"800M iops\"", "capacity: 800M iops is more than can be counted"),
            ("\"400k iops\"", "\"2M iops\"", "client: 2M iops is more than the capacity of 1570k"),
            ("\"400k iops\"", "\"9 iops\"", "client: 9 iops is nothing in a period of 100ms; wr"),
            ("seats = 10", "seats = 257", "seats: 257 is out of range; use 1 to 256"),
            ("window = 32", "window = 0", "window: 0 is out of range; use 1 to 1000"),
            (
                "\"sound\"",
                "\"paper\"",
                "line 11, column 16: mode: there is no \"paper\"; remove it; ",
            ),
            ("\"model\"", "\"verb\"", "fabric: \"verb\" is not a choice; did you mean \"verbs\"?"),
            ("\"model\"", "\"shm\"\ndevice = \"a\"", "device: this fabric has none; add fab"),
            ("\"model\"", "\"verbs\"\ndevice = \"\"", "device: no name is empty; `rdma link`"),
        ];
        for (from, to, wanted) in cases {
            assert!(FULL.contains(from), "{from}");
            let error = Cluster::parse(&FULL.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}\n  should contain\n{wanted}");
        }
    }
}
