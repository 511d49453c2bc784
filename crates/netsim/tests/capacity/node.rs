//! Clients of a storage node in front of a device, with the shipped controller and node, in virtual
//! time. Messages take no time. A client makes its next request as soon as the last is answered.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Class, ContextId, Operation, Policy, Span, Tag, TenantId, Time};
use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::cluster::status::NodeStatus;
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::data::Command;
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Node, NodeRequest, Slot};
use tidegate_sim::rng::Stream;

use crate::device::{Device, Io};
use crate::world::{Load, Second};

const NODE: ConnectionId = ConnectionId(1);

pub(crate) struct NodeWorld {
    now: Time,
    controller: Controller,
    node: Node<Io>,
    pub(crate) device: Device,
    /// By thread: what it has at the device, and since when.
    present: BTreeMap<usize, (NodeRequest<Io>, Time)>,
    /// The node sees that a request is finished so much later at most, because processors are busy.
    pub(crate) late: Span,
    /// Threads whose requests the device has finished, by when the node sees that.
    finished: BTreeSet<(Time, usize)>,
    loads: Vec<Load>,
    /// The load of each thread.
    threads: Vec<usize>,
    slots: Vec<Slot>,
    random: Stream,
    second: Second,
}

impl NodeWorld {
    /// A node that has at most `depth` requests at its device, and 99 of 100 back within `latency`.
    pub(crate) fn new(
        policy: &str,
        loads: &[Load],
        device: Device,
        (depth, latency): (u32, Option<Span>),
    ) -> Self {
        let info = NodeInfo { name: "a".into(), ..NodeInfo::default() };
        let setup = cluster::Setup {
            nodes: vec![NodeSetup { name: "a".into(), ..NodeSetup::default() }],
            is_first: true,
            ..cluster::Setup::default()
        };
        let setup = Setup { cluster: Some(setup), ..Setup::default() };
        let policy = Policy::parse(policy).unwrap();
        // As a node with files has it.
        let config =
            Config { depth, latency, is_sampled: true, is_guarded: true, ..Config::default() };
        let threads = |(number, load): (usize, &Load)| std::iter::repeat_n(number, load.threads);
        let mut world = Self {
            now: Time::ZERO,
            controller: Controller::new(Time::ZERO, setup, Some((1, policy))),
            node: Node::new(Time::ZERO, info.clone(), config),
            device,
            present: BTreeMap::new(),
            late: Span::ZERO,
            finished: BTreeSet::new(),
            threads: loads.iter().enumerate().flat_map(threads).collect(),
            loads: loads.to_vec(),
            slots: Vec::new(),
            random: Stream::new(3, "node", 0),
            second: Second::of(loads.len()),
        };
        let hello = Hello::Node { version: VERSION, info };
        world.controller.on_hello(world.now, NODE, Peer::default(), hello);
        world.node.on_connected(world.now);
        world.exchange();
        world.slots = loads.iter().map(|load| world.node.slot(load.tenant)).collect();
        (0..world.threads.len()).for_each(|thread| world.request(thread));
        world.fill();
        world
    }

    /// The rate of its device as the node has found it, per second, by the controller.
    pub(crate) fn found(&self) -> f64 {
        self.status().measured_operations_per_second.unwrap() as f64
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.controller.status(self.now).cluster.unwrap().nodes.remove(0)
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.0
    }

    /// Delivers messages until none is left.
    fn exchange(&mut self) {
        loop {
            let mut is_over = true;
            while let Some(output) = self.controller.poll_output() {
                if let Output::Send { message: ToPeer::Node(message), .. } = output {
                    is_over = false;
                    self.node.on_message(self.now, message);
                }
            }
            while let Some(output) = self.node.poll_output() {
                if let node::Output::Send(message) = output {
                    is_over = false;
                    self.controller.on_message(self.now, NODE, FromPeer::Node(message));
                }
            }
            if is_over {
                return;
            }
        }
    }

    fn request(&mut self, thread: usize) {
        let load = self.threads[thread];
        let Load { writes, bytes, .. } = self.loads[load];
        let is_write = self.random.below(100) < writes;
        let (command, operation) = match is_write {
            true => (Command::Write { durable: false }, Operation::Write),
            false => (Command::Read, Operation::Read),
        };
        let tag = Tag {
            tenant: TenantId(load as u16 + 1),
            context: ContextId::NONE,
            class: Class::Medium,
            operation,
            cost: bytes as u32,
            delay: 0,
        };
        let io = Io { is_write, bytes, thread };
        let request = self.node.request(self.slots[load], command, bytes as u32, &tag, io);
        self.node.put(self.now, &mut vec![request]);
    }

    /// Gives the device what may go there.
    fn fill(&mut self) {
        loop {
            let mut batch = Vec::new();
            self.node.fill(0, self.now, &mut batch);
            if batch.is_empty() {
                return;
            }
            self.node.on_dispatch(self.now, &mut batch);
            for request in batch {
                self.device.submit(self.now.0, request.body);
                self.present.insert(request.body.thread, (request, self.now));
            }
        }
    }

    /// The device has finished the request of a thread.
    fn deliver(&mut self, thread: usize) {
        if self.late == Span::ZERO {
            return self.answer(thread);
        }
        let late = Span(self.random.below(self.late.0));
        self.finished.insert((self.now.after(late), thread));
    }

    fn answer(&mut self, thread: usize) {
        let (request, since) = self.present.remove(&thread).unwrap();
        self.second.record(self.threads[thread], self.now.since(since));
        self.node.finish(0, self.now, &mut [request], None, |_, _| {});
        self.request(thread);
    }

    fn second(&mut self) -> Second {
        let end = self.now.after(Span::SECOND);
        loop {
            let device = self.device.next().map_or(Time::MAX, Time);
            let machines = self.controller.next_deadline().min(self.node.next_deadline());
            let seen = self.finished.first().map_or(Time::MAX, |(at, _)| *at);
            let next = device.min(seen).min(machines).max(self.now);
            if next >= end {
                break;
            }
            self.now = next;
            if device <= next {
                self.device.advance().into_iter().for_each(|thread| self.deliver(thread));
            }
            while let Some((at, thread)) = self.finished.first().copied()
                && at <= next
            {
                self.finished.pop_first();
                self.answer(thread);
            }
            if self.controller.next_deadline() <= next {
                self.controller.on_deadline(next);
            }
            self.node.advance(next);
            self.exchange();
            self.fill();
        }
        self.now = end;
        std::mem::replace(&mut self.second, Second::of(self.loads.len()))
    }

    pub(crate) fn seconds(&mut self, count: usize) -> Vec<Second> {
        (0..count).map(|_| self.second()).collect()
    }
}
