//! Cluster simulation: storage nodes, their devices and their clients.

use std::rc::Rc;

use tidegate_model::{Policy, Rate, Span, Time};
use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::Controller;
use tidegate_proto::node::{self, Config};

use super::clients::{Begin, Clients, FlowId, SimPromise};
use crate::device::Device;
use crate::link::Conduct;
use crate::node::{Number, SimulatedNode};
use crate::requests::{RequestTable, Ticket};
use crate::rng::Stream;
use crate::scenario::{Load, Nodes, Pacing};
use crate::simulation::{Peers, Simulation};
use crate::time::Picoseconds;

/// Bytes of a request: any that cost one unit.
pub(crate) const LENGTH: u32 = 4 << 10;

/// Everything that a run follows from.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) period: Span,
    pub(crate) nodes: Nodes,
    /// The policy's promises; empty ones for all tenants where no controller runs.
    pub(crate) promises: Vec<SimPromise>,
    pub(crate) load: Load,
    /// How the link of each node behaves, in both directions.
    pub(crate) links: Vec<Conduct>,
    pub(crate) policy: Policy,
}

/// Origin and target of a request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRequest {
    /// The flow that asked.
    flow: FlowId,
    /// Its version when it did.
    version: u32,
    /// The node that the flow asked.
    node: u16,
}

/// Event of the clients or of a device.
#[derive(Clone, Debug)]
pub(crate) enum ClusterEvent {
    /// A flow of an open loop asks.
    Arrival { flow: FlowId, version: u32 },
    /// A device has finished a request.
    Done { node: u16, incarnation: u32, number: Number },
    /// A tenant begins, or moves to other nodes.
    Move { tenant: u32 },
    /// A tenant asks so often in a second of a node from now on.
    Demand { tenant: u16, node: u16, rate: u32 },
}

/// The storage nodes of a simulation, with their devices and clients.
#[derive(Debug)]
pub(crate) struct StorageNodes {
    setup: Setup,
    /// The policy in force, and its revision.
    pub(crate) policy: (u64, Policy),
    names: Rc<[String]>,
    devices: Vec<Device>,
    clients: Clients,
    pub(crate) requests: RequestTable<PendingRequest>,
    /// Requests of each tenant to each node: tenant by tenant, in the order of the nodes.
    pub(crate) arrived: Vec<u64>,
    /// Requests of each tenant that each node has answered, in the same order.
    pub(crate) served: Vec<u64>,
}

/// A cluster in virtual time.
pub(crate) type ClusterSim = Simulation<StorageNodes>;

impl ClusterSim {
    /// The cluster of a setup, whose processes start now.
    pub(crate) fn of(setup: Setup) -> Self {
        let count = usize::from(setup.nodes.count);
        let names: Rc<[String]> =
            setup.policy.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        let Nodes { rate, spread_percent, .. } = setup.nodes;
        let device =
            |number| Device::new(rate, spread_percent, Stream::new(setup.seed, "device", number));
        let shape = (setup.period, setup.nodes.count);
        let nodes = StorageNodes {
            policy: (1, setup.policy.clone()),
            devices: (0..count as u64).map(device).collect(),
            clients: Clients::new(setup.seed, &setup.load, shape, &setup.promises),
            requests: RequestTable::default(),
            arrived: vec![0; names.len() * count],
            served: vec![0; names.len() * count],
            names,
            setup,
        };
        let (seed, links) = (nodes.setup.seed, nodes.setup.links.clone());
        let silence = Picoseconds(2 * Picoseconds::from(nodes.setup.period).0);
        let mut simulation = Self::new(nodes, seed, &links, silence);
        simulation.start();
        simulation
    }

    fn on_arrival(&mut self, flow: FlowId, version: u32) {
        // Only of use while the flow has not moved on.
        if let Some(next) = self.peers.clients.next(flow, version, self.now) {
            self.plan(next, ClusterEvent::Arrival { flow, version });
            let node = self.submit(flow);
            self.pump(node);
        }
    }

    fn on_move(&mut self, tenant: usize) {
        for (flow, begin) in self.peers.clients.relocate(tenant, self.now) {
            let version = self.peers.clients.flow(flow).version;
            match begin {
                Begin::At(at) => self.plan(at, ClusterEvent::Arrival { flow, version }),
                Begin::Outstanding(count) => {
                    (0..count).for_each(|_| _ = self.submit(flow));
                    self.pump(self.peers.clients.flow(flow).node);
                }
            }
        }
    }

    /// A flow makes a request, which is refused where its node is away. The node.
    fn submit(&mut self, id: FlowId) -> u16 {
        let StorageNodes { clients, requests, arrived, policy, .. } = &mut self.peers;
        let flow = clients.flow(id);
        let (node, version) = (flow.node, flow.version);
        let tenant = clients.tenant(id);
        let ticket = requests.submit(PendingRequest { flow: id, version, node });
        arrived[tenant * self.hosts.len() + usize::from(node)] += 1;
        match &mut self.hosts[usize::from(node)].process {
            Some(process) => {
                let class = policy.1.tenants[tenant].class;
                process.read(self.now.time(), (tenant, class), (LENGTH, 0), ticket);
            }
            None => _ = requests.fail(ticket),
        }
        node
    }

    fn on_done(&mut self, node: u16, incarnation: u32, number: Number) {
        let host = &mut self.hosts[usize::from(node)];
        let Some(process) = host.process.as_mut().filter(|_| host.incarnation == incarnation)
        else {
            return;
        };
        let ticket = process.finish(self.now.time(), number);
        let nodes = &mut self.peers;
        if let Some(request) = nodes.requests.answer(ticket) {
            let tenant = nodes.clients.tenant(request.flow);
            nodes.served[tenant * self.hosts.len() + usize::from(node)] += 1;
            if let Some(next) = nodes.clients.next_flow(request.flow, request.version) {
                let target = self.submit(next);
                if target != node {
                    self.pump(target);
                }
            }
        }
        self.pump(node);
    }
}

impl Peers for StorageNodes {
    type Process = SimulatedNode<Ticket>;
    type Event = ClusterEvent;

    fn controller(&self, now: Time, incarnation: u32) -> Controller {
        let node = |number| NodeSetup {
            name: name(number),
            capacity: Some(self.setup.nodes.rate),
            bandwidth: Some(Rate(self.setup.nodes.rate.0 * u64::from(LENGTH))),
            ..NodeSetup::default()
        };
        let cluster = cluster::Setup {
            nodes: (0..self.setup.nodes.count).map(node).collect(),
            is_first: incarnation == 1,
            ..cluster::Setup::default()
        };
        Controller::of_nodes(now, cluster, Some(self.policy.clone()))
    }

    fn process(&self, now: Time, node: u16, incarnation: u32) -> Self::Process {
        let Nodes { rate, depth, shards, pacing, .. } = self.setup.nodes;
        let pacing = match pacing {
            Pacing::Even => node::Pacing::Even,
            Pacing::Paper => node::Pacing::Paper,
        };
        let config = Config { depth, shards, capacity: Some(rate), pacing, ..Config::default() };
        let info = NodeInfo { name: name(node), pid: incarnation, ..NodeInfo::default() };
        let threads = Stream::new(self.setup.seed, "threads", u64::from(node));
        SimulatedNode::new(now, info, config, threads, self.names.clone())
    }

    fn happen(simulation: &mut ClusterSim, event: ClusterEvent) {
        match event {
            ClusterEvent::Arrival { flow, version } => simulation.on_arrival(flow, version),
            ClusterEvent::Done { node, incarnation, number } => {
                simulation.on_done(node, incarnation, number);
            }
            ClusterEvent::Move { tenant } => simulation.on_move(tenant as usize),
            ClusterEvent::Demand { tenant, node, rate } => {
                let clients = &mut simulation.peers.clients;
                let now = simulation.now;
                if let Some((flow, at)) = clients.demand(tenant.into(), node, rate.into(), now) {
                    let version = clients.flow(flow).version;
                    simulation.plan(at, ClusterEvent::Arrival { flow, version });
                }
            }
        }
    }

    fn called(event: &ClusterEvent) -> Option<u16> {
        match event {
            ClusterEvent::Done { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// Requests go to the device.
    fn work(simulation: &mut ClusterSim, node: u16) {
        let now = simulation.now;
        let host = &mut simulation.hosts[usize::from(node)];
        let Some(process) = &mut host.process else { return };
        let (device, incarnation) =
            (&mut simulation.peers.devices[usize::from(node)], host.incarnation);
        let events = &mut simulation.agenda;
        process.dispatch(now.time(), |number, request| {
            let done = device.take(now, request.units());
            events.plan(done, ClusterEvent::Done { node, incarnation, number });
        });
    }

    /// Clients that wait for answers ask anew.
    fn on_start(simulation: &mut ClusterSim, node: u16) {
        // A flow of a striped tenant does not know which requests failed; it goes on with the
        // others.
        let closed = simulation.peers.setup.load.closed.as_ref();
        if let Some(closed) = closed.filter(|closed| !closed.striped) {
            let outstanding = closed.outstanding;
            for flow in simulation.peers.clients.at(node) {
                (0..outstanding).for_each(|_| _ = simulation.submit(flow));
            }
        }
    }

    fn on_death(simulation: &mut ClusterSim, node: u16) {
        simulation.peers.requests.fail_all(|request| request.node == node);
    }
}

fn name(node: u16) -> String {
    format!("n{node}")
}
