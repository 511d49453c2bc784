//! A storage node as a simulation runs it: the machine that ships, and its requests at the device.
//!
//! Of a node with several shards, each call is made by a thread that is at home in one of them,
//! drawn from the seed: that decides between shards of which either may go first.

use std::rc::Rc;

use tidegate_model::{Class, ContextId, Operation, PeriodNumber, Tag, TenantId, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::controller::{FromPeer, ToPeer};
use tidegate_proto::data::Command;
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{Config, Node, NodeRequest, NodeStatus, Output, Slot};

use crate::rng::Stream;
use crate::simulation::{Host, Peers, Process, Simulation};

/// Number of a request at the device, which an event can carry.
pub(crate) type Number = u32;

/// A storage node whose requests carry a `B`.
#[derive(Debug)]
pub(crate) struct SimulatedNode<B> {
    pub(crate) node: Node<B>,
    /// The slot of each tenant at the node, as of the last plan.
    pub(crate) slots: Vec<Slot>,
    names: Rc<[String]>,
    shards: usize,
    threads: Stream,
    at_device: Vec<Option<NodeRequest<B>>>,
    free: Vec<Number>,
    /// Kept for its memory.
    batch: Vec<NodeRequest<B>>,
    /// The last period in which requests could go to the device while the node's lease was over.
    abandoned_in: Option<PeriodNumber>,
}

impl<B> SimulatedNode<B> {
    /// A node; `threads` decides which thread does what, and `names` are the tenants'.
    pub(crate) fn new(
        now: Time,
        info: NodeInfo,
        config: Config,
        threads: Stream,
        names: Rc<[String]>,
    ) -> Self {
        Self {
            node: Node::new(now, info, config),
            slots: vec![Slot::UNATTRIBUTED; names.len()],
            names,
            shards: config.shards,
            threads,
            at_device: Vec::new(),
            free: Vec::new(),
            batch: Vec::new(),
            abandoned_in: None,
        }
    }

    /// A read of so many bytes comes, with its class and a report of its tenant's service at other
    /// nodes.
    pub(crate) fn read(
        &mut self,
        now: Time,
        (tenant, class): (usize, Class),
        (length, delay): (u32, u32),
        body: B,
    ) {
        let tag = Tag {
            tenant: TenantId::UNATTRIBUTED,
            context: ContextId::NONE,
            class,
            operation: Operation::Read,
            cost: length,
            delay,
        };
        self.submit(now, tenant, Command::Read, length, &tag, body);
    }

    /// A request of a tenant comes. Returns its units of cost.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        tenant: usize,
        command: Command,
        length: u32,
        tag: &Tag,
        body: B,
    ) -> u32 {
        let request = self.node.request(self.slots[tenant], command, length, tag, body);
        let units = request.units();
        self.batch.push(request);
        self.node.put(now, &mut self.batch);
        units
    }

    /// A piece of a large request comes. The request counts as an operation with its first piece.
    /// Returns its units of cost.
    pub(crate) fn submit_piece(
        &mut self,
        now: Time,
        (tenant, is_first): (usize, bool),
        command: Command,
        length: u32,
        tag: &Tag,
        body: B,
    ) -> u32 {
        let mut request = self.node.request(self.slots[tenant], command, length, tag, body);
        request.is_piece = true;
        let units = request.units();
        self.batch.push(if is_first { request } else { request.continued() });
        self.node.put(now, &mut self.batch);
        units
    }

    /// Sends to the device whatever may go there: its number and the request.
    pub(crate) fn dispatch(&mut self, now: Time, mut send: impl FnMut(Number, &NodeRequest<B>)) {
        self.node.advance(now);
        self.abandoned_in = self.node.abandoned_period().or(self.abandoned_in);
        loop {
            let home = self.home();
            self.node.fill(home, now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            let is_timed_alone = NodeRequest::is_measured;
            for some in self.batch.chunk_by_mut(|a, b| !is_timed_alone(a) && !is_timed_alone(b)) {
                self.node.on_dispatch(now, some);
            }
            for request in self.batch.drain(..) {
                let number = self.free.pop().unwrap_or(self.at_device.len() as Number);
                send(number, &request);
                match self.at_device.get_mut(number as usize) {
                    Some(entry) => *entry = Some(request),
                    None => self.at_device.push(Some(request)),
                }
            }
        }
    }

    /// The device has served a request.
    ///
    /// # Panics
    /// If none with this number is there.
    pub(crate) fn finish(&mut self, now: Time, number: Number) -> B {
        let Some(mut request) = self.at_device[number as usize].take() else {
            panic!("request {number} is not at the device");
        };
        self.free.push(number);
        let home = self.home();
        self.node.finish(home, now, core::slice::from_mut(&mut request), None, |_, _| {});
        request.body
    }

    fn home(&mut self) -> usize {
        if self.shards > 1 { self.threads.below(self.shards as u64) as usize } else { 0 }
    }
}

impl<B> Process for SimulatedNode<B> {
    fn hello(&self, _now: Time) -> Hello {
        Hello::Node { version: VERSION, info: self.node.info() }
    }

    fn on_connected(&mut self, now: Time) {
        self.node.on_connected(now);
    }

    fn on_disconnected(&mut self, now: Time) {
        self.node.on_disconnected(now);
    }

    fn on_message(&mut self, now: Time, message: ToPeer) {
        let ToPeer::Node(message) = message else { return };
        let is_plan = matches!(message, ToNode::Plan(_));
        self.node.on_message(now, message);
        if is_plan {
            let slot = |name: &String| self.node.slot(name);
            self.slots = self.names.iter().map(slot).collect();
        }
    }

    fn poll_message(&mut self) -> Option<FromPeer> {
        loop {
            if let Output::Send(message) = self.node.poll_output()? {
                return Some(FromPeer::Node(message));
            }
        }
    }

    fn next_deadline(&self) -> Time {
        self.node.next_deadline()
    }
}

impl<B, K: Peers<Process = SimulatedNode<B>>> Simulation<K> {
    /// Returns a node's own status, while its process runs.
    pub(crate) fn status(&self, node: u16) -> Option<NodeStatus> {
        let process = self.hosts[usize::from(node)].process.as_ref()?;
        Some(process.node.status(self.now.time()))
    }

    /// The incarnation and the status of each node, for checks of counts. A node is abandoned in
    /// them if its lease was over at any time of the period, so that a grant that came since hides
    /// nothing: the requests before it were not bound by a count of the controller.
    pub(crate) fn statuses(&self) -> Vec<(u32, Option<NodeStatus>)> {
        let status = |host: &Host<SimulatedNode<B>>| {
            let process = host.process.as_ref()?;
            let mut status = process.node.status(self.now.time());
            status.is_abandoned |= process.abandoned_in == Some(PeriodNumber(status.period));
            Some(status)
        };
        self.hosts.iter().map(|host| (host.incarnation, status(host))).collect()
    }
}
