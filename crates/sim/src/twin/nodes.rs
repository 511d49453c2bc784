//! Trace replay, the cluster: its nodes, its gateways, and the recorded clients.

use std::rc::Rc;

use tidegate_algo::allocation::admission::reachable_nodes;
use tidegate_algo::classify::owner::{Attribution, OwnerQuery, Owners};
use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_model::cluster::{Layout, Volume};
use tidegate_model::{Bytes, Cluster, ContextId, Iops, NodeId, Operation, Policy, Span, Tag, Time};
use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::{Controller, Setup};
use tidegate_proto::data::Command;
use tidegate_proto::gateway::{Gateway, RequestExtent};
use tidegate_proto::node::{Config, NodeRequest};

use super::load::{ConnectionLoad, LoadRequest};
use super::report::TenantLog;
use super::{Service, ServiceTimes};
use crate::device::Device;
use crate::large::{Body, LargeRequests, is_large};
use crate::node::{Number, SimulatedNode};
use crate::rng::Stream;
use crate::simulation::{Peers, Simulation};
use crate::time::Picoseconds;

/// Event of a client or a device.
#[derive(Clone, Debug)]
pub(super) enum TwinEvent {
    /// A connection makes its next request.
    Issue { connection: u32 },
    /// A device has finished a request.
    Done { node: u16, incarnation: u32, number: Number },
    /// An answer has reached its client.
    Answered { request: InFlight },
}

/// A device that serves some requests at a time.
#[derive(Debug)]
pub(super) enum TwinDevice {
    /// As the cluster file declares it.
    Declared(Device),
    /// Some requests at a time: when each server is free.
    Timed { times: ServiceTimes, free_at: Vec<Picoseconds>, random: Stream },
}

impl TwinDevice {
    /// Takes a request; the time at which it is done.
    fn take<B>(&mut self, now: Picoseconds, request: &NodeRequest<B>) -> Picoseconds {
        let units = request.units();
        match self {
            Self::Declared(device) => device.take(now, units),
            Self::Timed { times, free_at, random } => {
                let first = free_at.iter_mut().min().expect("a device has a server");
                let moved = match request.command() {
                    Command::Read | Command::Write { .. } => request.length(),
                    _ => 0,
                };
                let each = Picoseconds::from(times.each).0.saturating_mul(units.into());
                let per_mib = Picoseconds::from(times.per_mib).0;
                let moved = (u128::from(per_mib) * u128::from(moved)) >> 20;
                let mean = each.saturating_add(moved as u64);
                let varying = mean / 100 * u64::from(times.varying_percent.min(100));
                let time = match varying {
                    0 => Picoseconds(mean),
                    varying => {
                        random.exponential(Picoseconds(varying)).after(Picoseconds(mean - varying))
                    }
                };
                *first = now.max(*first).after(time);
                *first
            }
        }
    }
}

/// A client's connection, while its load is made again.
#[derive(Debug)]
pub(super) struct TwinConnection {
    load: Rc<ConnectionLoad>,
    gateway: u32,
    /// The volume, by its index in the cluster.
    volume: usize,
    owners: Rc<Owners>,
    /// Requests that it has made, and that were answered; the time of the last answer.
    made: u64,
    answered: u64,
    last_answer: Picoseconds,
    /// The next request is in the queue of events.
    is_planned: bool,
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    connection: u32,
    tenant: usize,
    /// Its count at nodes: operations, or units of cost in a policy without resources.
    operations: u32,
    bytes: u32,
    issued: Picoseconds,
}

/// A sub-request of a gateway at a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubRequest {
    gateway: u32,
    /// Its ticket at the gateway.
    ticket: u64,
}

/// A gateway of the recording.
#[derive(Debug, Default)]
pub(super) struct SimulatedGateway {
    requests: Gateway<()>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// By tenant.
    elsewhere: Vec<Elsewhere>,
}

/// The cluster's nodes with their devices, gateways and clients.
#[derive(Debug)]
pub(super) struct TwinNodes {
    pub(super) cluster: Cluster,
    pub(super) policy: Policy,
    pub(super) volumes: Vec<(Volume, Layout)>,
    /// The policy's tenants, and then requests without one.
    pub(super) names: Rc<[String]>,
    pub(super) devices: Vec<TwinDevice>,
    pub(super) gateways: Vec<SimulatedGateway>,
    pub(super) connections: Vec<TwinConnection>,
    pub(super) larges: LargeRequests<SubRequest>,
    /// The time of a request outside of queues and devices.
    pub(super) transit: Span,
    /// Nodes count requests and not units of cost.
    pub(super) counts_requests: bool,
    pub(super) seed: u64,
    /// When the load begins and ends.
    pub(super) from: Picoseconds,
    pub(super) until: Picoseconds,
    /// By name.
    pub(super) logs: Vec<TenantLog>,
}

/// A cluster in virtual time.
pub(super) type TwinSim = Simulation<TwinNodes>;

/// The device of a node; none if nothing says how fast it is.
pub(super) fn server(
    node: &tidegate_model::cluster::Node,
    service: Service,
    random: Stream,
) -> Option<TwinDevice> {
    let declared = |rate: Iops, permille: u32, random: Stream| {
        let rate = Iops(rate.0.clamp(1, Picoseconds::SECOND.0));
        TwinDevice::Declared(Device::new(rate, permille / 10, random))
    };
    match (service, node.model, node.capacity) {
        (Service::Timed(times), ..) => {
            let free_at = vec![Picoseconds::ZERO; usize::from(times.at_once.max(1))];
            Some(TwinDevice::Timed { times, free_at, random })
        }
        (Service::Declared, Some(model), _) => {
            Some(declared(model.rate, model.variance_permille, random))
        }
        (Service::Declared, None, Some(capacity)) => Some(declared(capacity, 0, random)),
        (Service::Declared, None, None) => None,
    }
}

impl TwinConnection {
    pub(super) fn new(
        load: Rc<ConnectionLoad>,
        (gateway, volume): (u32, usize),
        owners: Rc<Owners>,
    ) -> Self {
        let (made, answered) = (0, 0);
        let (last_answer, is_planned) = (Picoseconds::ZERO, false);
        Self { load, gateway, volume, owners, made, answered, last_answer, is_planned }
    }

    /// When it makes its next request; none if that depends on an answer, or if there is none.
    fn next_at(&self, now: Picoseconds, from: Picoseconds) -> Option<Picoseconds> {
        let count = self.load.requests.len() as u64;
        let pass = self.made / count;
        if pass > 0 && !self.load.goes_on {
            return None;
        }
        let last = self.load.requests.last()?;
        let request = &self.load.requests[(self.made % count) as usize];
        let recorded = from.after(request.at.into());
        if !self.load.is_closed {
            let has_headroom = self.made - self.answered < u64::from(self.load.depth);
            return has_headroom.then_some(recorded);
        }
        let (follows, think) = match (request.follows, pass) {
            (0, 0) => return Some(recorded),
            // As many are under way as there were at the end.
            (0, _) => {
                let under_way = count - u64::from(last.follows).min(count - 1);
                ((self.made + 1).saturating_sub(under_way), last.think)
            }
            (follows, _) => (pass * count + u64::from(follows), request.think),
        };
        match self.answered.cmp(&follows) {
            core::cmp::Ordering::Less => None,
            core::cmp::Ordering::Equal => Some(self.last_answer.after(think.into())),
            core::cmp::Ordering::Greater => Some(now),
        }
    }

    fn request(&self) -> LoadRequest {
        self.load.requests[(self.made % self.load.requests.len() as u64) as usize]
    }
}

impl SimulatedGateway {
    pub(super) fn new(tenants: usize, nodes: usize) -> Self {
        let elsewhere = (0..tenants).map(|_| Elsewhere::new(nodes)).collect();
        Self { elsewhere, ..Self::default() }
    }

    fn submit(&mut self, request: InFlight) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() as u32 - 1
        });
        self.in_flight[index as usize] = Some(request);
        u64::from(index)
    }

    /// A sub-request was answered: its request, if that was the last one.
    fn answer(&mut self, ticket: u64) -> Option<InFlight> {
        let answer = self.requests.on_answer(ticket, Ok(()))?;
        self.free.push(answer.ticket as u32);
        self.in_flight[answer.ticket as usize].take()
    }
}

impl TwinSim {
    /// Plans the next request of a connection, if it waits for nothing.
    pub(super) fn plan_next(&mut self, connection: u32) {
        let (now, from, until) = (self.now, self.peers.from, self.peers.until);
        let client = &mut self.peers.connections[connection as usize];
        if client.is_planned {
            return;
        }
        if let Some(at) = client.next_at(now, from).filter(|at| *at < until) {
            client.is_planned = true;
            self.plan(at.max(now), TwinEvent::Issue { connection });
        }
    }

    fn issue(&mut self, connection: u32) {
        let now = self.now;
        let TwinNodes {
            cluster,
            volumes,
            names,
            gateways,
            connections,
            logs,
            larges,
            counts_requests,
            ..
        } = &mut self.peers;
        let client = &mut connections[connection as usize];
        let request = client.request();
        (client.is_planned, client.made) = (false, client.made + 1);
        let (volume, layout) = &volumes[client.volume];
        let (offset, bytes) = fitted(&request, layout);
        let (command, extent) = job(request.operation, offset, bytes);
        let size = Bytes(u64::from(request.bytes));
        // A recording has no offsets, so a rule on an offset applies to none of its requests.
        let query = OwnerQuery { operation: request.operation, size, offset: None, key: None };
        let owner = client.owners.owner(query);
        // Unattributed requests are behind all tenants.
        let tenant = usize::from(owner.tenant.0).checked_sub(1).unwrap_or(names.len() - 1);
        let gateway = &mut gateways[client.gateway as usize];
        let in_flight = InFlight { connection, tenant, operations: 0, bytes, issued: now };
        let ticket = gateway.submit(in_flight);
        let sub_requests = gateway.requests.on_request(ticket, layout, extent);
        let Ok(sub_requests) = sub_requests else {
            panic!("a request of {bytes} bytes does not fit in {}", volume.name);
        };
        let (mut operations, mut touched) = (0, Vec::new());
        for sub_request in sub_requests {
            let node = volume.nodes[sub_request.piece.part as usize];
            let length = sub_request.piece.length;
            let mut tag = tag(owner, request.operation, length);
            if !sub_request.is_first {
                tag.cost = 0;
            }
            let work = command.work(&cluster.cost, length, &tag);
            tag.delay = gateway.elsewhere[tenant].sent(node.index(), work);
            let own = SubRequest { gateway: client.gateway, ticket: sub_request.ticket };
            if let Some(process) = &mut self.hosts[node.index()].process {
                let (now, body) = (now.time(), Body::Whole(own));
                let units = match is_large(command, length) {
                    true => larges.submit(process, now, (tenant, tag), command, length, own),
                    false => process.submit(now, tenant, command, length, &tag, body),
                };
                operations += if *counts_requests { 1 } else { units };
            }
            touched.push(node);
        }
        if let Some(Some(own)) = gateway.in_flight.get_mut(ticket as usize) {
            own.operations = operations;
        }
        logs[tenant].on_request(now);
        touched.into_iter().for_each(|node| self.pump(node.0));
        self.plan_next(connection);
    }

    fn on_done(&mut self, node: u16, incarnation: u32, number: Number) {
        let host = &mut self.hosts[usize::from(node)];
        let Some(process) = host.process.as_mut().filter(|_| host.incarnation == incarnation)
        else {
            return;
        };
        let now = self.now;
        let sub_request = match process.finish(now.time(), number) {
            Body::Whole(own) => Some(own),
            Body::Piece { large, begin } => {
                self.peers.larges.on_piece(process, now.time(), large, begin)
            }
        };
        let answered = sub_request
            .and_then(|own| self.peers.gateways[own.gateway as usize].answer(own.ticket));
        if let Some(request) = answered {
            match self.peers.transit {
                Span::ZERO => self.on_answered(&request),
                transit => self.plan(now.after(transit.into()), TwinEvent::Answered { request }),
            }
        }
        self.pump(node);
    }

    fn on_answered(&mut self, request: &InFlight) {
        let now = self.now;
        let client = &mut self.peers.connections[request.connection as usize];
        (client.answered, client.last_answer) = (client.answered + 1, now);
        let latency = now.since(request.issued).span();
        let log = &mut self.peers.logs[request.tenant];
        log.on_answer(now, (latency, request.bytes, request.operations), self.peers.until);
        self.plan_next(request.connection);
    }
}

/// The range of a request in a volume with this layout, which may be smaller than the one that it
/// was recorded on.
fn fitted(request: &LoadRequest, layout: &Layout) -> (u64, u32) {
    let (offset, size) = (request.position, layout.size().0);
    match layout.contains(offset, request.bytes.max(1)) {
        true => (offset, request.bytes),
        false => (0, request.bytes.min(u32::try_from(size).unwrap_or(u32::MAX))),
    }
}

/// The command that nodes get for an operation, and the extent by which the gateway splits it.
fn job(operation: Operation, offset: u64, bytes: u32) -> (Command, RequestExtent) {
    // A range has a byte at least.
    let length = bytes.max(1);
    match operation {
        Operation::Write => {
            (Command::Write { durable: false }, RequestExtent::Bytes { offset, length })
        }
        Operation::Sync => (Command::Flush, RequestExtent::All),
        Operation::Allocate | Operation::Stat => {
            (Command::Map, RequestExtent::Range { offset, length })
        }
        _ => (Command::Read, RequestExtent::Bytes { offset, length }),
    }
}

fn tag(Attribution { tenant, class }: Attribution, operation: Operation, length: u32) -> Tag {
    Tag { tenant, context: ContextId::NONE, class, operation, cost: length.max(1), delay: 0 }
}

impl Peers for TwinNodes {
    type Process = SimulatedNode<Body<SubRequest>>;
    type Event = TwinEvent;

    fn controller(&self, now: Time, incarnation: u32) -> Controller {
        let nodes = self.cluster.nodes.iter().map(|node| NodeSetup {
            name: node.name.clone(),
            capacity: node.capacity,
            bandwidth: node.bandwidth,
            discipline: Some(node.scheduler),
        });
        let names = self.policy.tenants.iter().map(|tenant| tenant.name.clone());
        let home_nodes = reachable_nodes(&self.policy, &self.cluster);
        let home_nodes = home_nodes.into_iter().map(|nodes| nodes.into_iter().collect());
        let cluster = cluster::Setup {
            nodes: nodes.collect(),
            home_nodes: names.zip(home_nodes).collect(),
            is_first: incarnation == 1,
            ..cluster::Setup::default()
        };
        let setup = Setup { cluster: Some(cluster), ..Setup::default() };
        Controller::new(now, setup, Some((1, self.policy.clone())))
    }

    fn process(&self, now: Time, node: u16, incarnation: u32) -> Self::Process {
        let file = &self.cluster.nodes[usize::from(node)];
        let config = Config {
            depth: file.depth,
            capacity: file.capacity,
            discipline: file.scheduler,
            cost: self.cluster.cost,
            ..Config::default()
        };
        let info = NodeInfo { name: file.name.clone(), pid: incarnation, ..NodeInfo::default() };
        let threads = Stream::new(self.seed, "threads", u64::from(node));
        SimulatedNode::new(now, info, config, threads, self.names.clone())
    }

    fn happen(simulation: &mut TwinSim, event: TwinEvent) {
        match event {
            TwinEvent::Issue { connection } => simulation.issue(connection),
            TwinEvent::Done { node, incarnation, number } => {
                simulation.on_done(node, incarnation, number);
            }
            TwinEvent::Answered { request } => simulation.on_answered(&request),
        }
    }

    fn called(event: &TwinEvent) -> Option<u16> {
        match event {
            TwinEvent::Done { node, .. } => Some(*node),
            TwinEvent::Issue { .. } | TwinEvent::Answered { .. } => None,
        }
    }

    /// Requests go to the device.
    fn work(simulation: &mut TwinSim, node: u16) {
        let now = simulation.now;
        let host = &mut simulation.hosts[usize::from(node)];
        let Some(process) = &mut host.process else { return };
        let (device, incarnation) =
            (&mut simulation.peers.devices[usize::from(node)], host.incarnation);
        let events = &mut simulation.agenda;
        process.dispatch(now.time(), |number, request| {
            let done = device.take(now, request);
            events.plan(done, TwinEvent::Done { node, incarnation, number });
        });
    }
}

/// The nodes that may serve requests of the load.
pub(super) fn used<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = volumes.flat_map(|volume| volume.nodes.iter().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
