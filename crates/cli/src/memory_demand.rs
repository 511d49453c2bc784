//! Memory that components of a cluster keep on this machine, beside the memory that is left here.
//!
//! A data node takes its memory at its start, and is refused where the memory is lacking. A node
//! in memory takes memory as its volumes are written, so nothing but this warning stands before the
//! kernel, which kills a process once no memory is left.

use std::net::IpAddr;

use tidegate_fabric::headroom::Headroom;
use tidegate_model::cluster::{Address, Store};
use tidegate_model::{Bytes, Cluster, NodeId, amounts};

/// Memory that components may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryDemand {
    /// Components and what they may use.
    components: Vec<(String, Bytes)>,
}

impl MemoryDemand {
    /// The demand of all components in memory that do not listen for other machines only.
    pub(crate) fn of_this_machine(cluster: &Cluster) -> Self {
        let is_here = |address: Option<&Address>| !address.is_some_and(is_far);
        Self::of(
            cluster,
            |name| {
                let node = cluster.nodes.iter().find(|node| node.name == name);
                node.is_some_and(|node| is_here(node.address.as_ref()))
            },
            |name| {
                let node = cluster.data_nodes.iter().find(|node| node.name == name);
                node.is_some_and(|node| is_here(Some(&node.listen)))
            },
        )
    }

    /// The demand of the nodes and data nodes with these names.
    pub(crate) fn of(
        cluster: &Cluster,
        has_node: impl Fn(&str) -> bool,
        has_data_node: impl Fn(&str) -> bool,
    ) -> Self {
        let nodes = (0..).map(NodeId).zip(&cluster.nodes);
        let nodes = nodes.filter(|(_, node)| node.store == Store::Memory && has_node(&node.name));
        let nodes =
            nodes.map(|(id, node)| (format!("node {}", node.name), volumes_at(cluster, id)));
        let data_nodes = cluster.data_nodes.iter().filter(|node| has_data_node(&node.name));
        let data_nodes = data_nodes.map(|node| (format!("data node {}", node.name), node.memory));
        let components = nodes.chain(data_nodes).filter(|(_, bytes)| *bytes > Bytes::ZERO);
        Self { components: components.collect() }
    }

    /// The warning that there is less memory left than this, if so.
    pub(crate) fn warning(&self, headroom: Option<Headroom>) -> Option<String> {
        let Headroom { bytes: left, bound } = headroom?;
        let all = self.components.iter().map(|(_, bytes)| *bytes);
        let all = all.fold(Bytes::ZERO, Bytes::saturating_add);
        if all <= left {
            return None;
        }
        let names: Vec<&str> = self.components.iter().map(|(name, _)| name.as_str()).collect();
        let (names, verb) = match names.as_slice() {
            [one] => ((*one).to_owned(), "may use"),
            [first @ .., last] => (format!("{} and {last}", first.join(", ")), "may together use"),
            [] => return None,
        };
        Some(format!(
            "{names} {verb} {} of memory, and {bound} has {} left: the kernel kills processes once \
             none is left; make `memory` or the volumes in memory smaller, keep the volumes in \
             files (`directory`), or run components on other machines",
            amounts::bytes(all.0),
            amounts::bytes(left.0),
        ))
    }
}

/// The size of all parts of volumes at a node.
pub(crate) fn volumes_at(cluster: &Cluster, id: NodeId) -> Bytes {
    let parts = cluster.volumes.iter().flat_map(|volume| {
        let here = volume.nodes.iter().enumerate().filter(move |(_, node)| **node == id);
        here.map(move |(part, _)| volume.layout().part_length(part as u32))
    });
    parts.fold(Bytes::ZERO, Bytes::saturating_add)
}

/// Whether an address is reached over the network, so that its component may run elsewhere.
pub(crate) fn is_far(address: &Address) -> bool {
    match address {
        Address::Tcp { host, .. } => {
            let is_loopback = host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
            !is_loopback && host != "localhost"
        }
        Address::Unix(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_fabric::headroom::MemoryBound;

    use super::*;

    fn cluster() -> Cluster {
        Cluster::parse(
            r#"
            [tls]
            directory = "tls"
            [[node]]
            name = "a"
            memory = true
            [[node]]
            name = "b"
            directory = "b"
            [[node]]
            name = "far"
            memory = true
            address = "storage-7:7300"
            [[volume]]
            name = "one"
            size = "2GiB"
            tenant = "t"
            nodes = ["a", "b"]
            [[volume]]
            name = "two"
            size = "1GiB"
            tenant = "t"
            nodes = ["far"]
            [[data-node]]
            name = "m"
            listen = "unix:m.sock"
            memory = "512MiB"
            capacity = "1000 iops"
            client = "500 iops"
            "#,
        )
        .unwrap()
    }

    fn left(bytes: u64) -> Option<Headroom> {
        Some(Headroom { bytes: Bytes(bytes), bound: MemoryBound::Machine })
    }

    #[test]
    fn components_on_this_machine_count_as_far_as_they_are_in_memory() {
        let demand = MemoryDemand::of_this_machine(&cluster());
        assert_eq!(
            demand.components,
            [("node a".to_owned(), Bytes(1 << 30)), ("data node m".into(), Bytes(512 << 20))]
        );
        assert_eq!(demand.warning(left(3 << 29)), None);
        assert_eq!(demand.warning(None), None, "where the kernel reports nothing");
        let warning = demand.warning(left((3 << 29) - 1)).unwrap();
        let expected = "node a and data node m may together use 1.5 GiB of memory, and this \
                        machine has 1.5 GiB left: ";
        assert!(warning.starts_with(expected), "{warning}");
    }

    #[test]
    fn only_the_components_that_start_here_count() {
        let demand = MemoryDemand::of(&cluster(), |name| name == "far", |_| false);
        let group = Headroom { bytes: Bytes(300 << 20), bound: MemoryBound::ControlGroup };
        let warning = demand.warning(Some(group)).unwrap();
        let expected = "node far may use 1 GiB of memory, and this process's control group has 300 \
                        MiB left: ";
        assert!(warning.starts_with(expected), "{warning}");
    }
}
