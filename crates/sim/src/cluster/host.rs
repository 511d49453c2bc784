//! A storage node's host: the node's machine, its device, and the link to the controller.

use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::controller::ConnectionId;
use tidegate_proto::node::{Config, Slot};

use super::requests::Ticket;
use crate::alarm::Alarm;
use crate::device::Device;
use crate::link::Link;
use crate::node::SimulatedNode;
use crate::rng::Stream;
use crate::time::Picoseconds;

/// The host of one storage node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) config: Config,
    /// The node's process, while there is one.
    pub(super) node: Option<SimulatedNode<Ticket>>,
    /// Which thread of the node does what.
    pub(super) threads: Stream,
    /// Which of the host's node processes this is; what belongs to earlier ones is void.
    pub(super) incarnation: u32,
    pub(super) device: Device,
    pub(super) alarm: Alarm,
    /// The slot of each tenant at the node, as of the last plan.
    pub(super) slots: Vec<Slot>,
    pub(super) wire: Wire,
}

/// The link between a node and its controller.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) to_node: Link,
    pub(super) from_node: Link,
    /// The connection that the node has open.
    pub(super) at_node: Option<ConnectionId>,
    /// When the node last received a message of the controller.
    pub(super) last_received: Picoseconds,
    /// The connection that the controller has open.
    pub(super) at_controller: Option<ConnectionId>,
}

impl Host {
    /// Starts a node process, if there is none.
    pub(super) fn start(&mut self, now: Picoseconds) {
        if self.node.is_none() {
            self.incarnation += 1;
            self.alarm = Alarm::OFF;
            let info =
                NodeInfo { name: self.name.clone(), pid: self.incarnation, ..NodeInfo::default() };
            let threads = self.threads.clone();
            self.node = Some(SimulatedNode::new(now.time(), info, self.config, threads));
            self.slots.fill(Slot::UNATTRIBUTED);
        }
    }

    /// The tenants have changed at the node: looks up where they are.
    pub(super) fn find_slots(&mut self, tenants: &[String]) {
        let Some(node) = &self.node else { return };
        for (slot, name) in self.slots.iter_mut().zip(tenants) {
            *slot = node.node.slot(name);
        }
    }
}
