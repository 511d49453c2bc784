//! Load generators of a simulated cluster: each tenant has one flow for each node on which it is
//! active.
//!
//! A flow is one event in the queue, never one per request ahead: it asks, and then knows when it
//! asks next (open loop), or waits for an answer (closed loop). When a tenant moves to other nodes
//! its flows get a new version; arrivals and answers of older versions cause nothing any more.

use tidegate_model::{Iops, Span};

use crate::rng::{Stream, Zipf, apportion};
use crate::scenario::{Arrivals, Closed, Load};
use crate::time::Picoseconds;

/// Reservation, limit and demand of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimPromise {
    /// Reservation per second: the tenant gets so much whenever it asks.
    pub reservation: Iops,
    /// Limit per second: the tenant never gets more.
    pub limit: Option<Iops>,
    /// Requests that the tenant makes in a period, in an open loop.
    pub demand: u64,
}

/// The number of a flow: the tenant's number times the width, and its place.
pub(super) type FlowId = u32;

/// One tenant at one node.
#[derive(Clone, Debug)]
pub(super) struct ClientFlow {
    /// Where it asks.
    pub(super) node: u16,
    /// Grows when the tenant moves.
    pub(super) version: u32,
    /// Whether it asks at all: a tenant may have moved to fewer nodes.
    is_active: bool,
    /// Between two requests of an open loop; none if there are no requests.
    gap: Option<Picoseconds>,
    random: Stream,
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    load: Load,
    period: Span,
    nodes: u16,
    /// The most flows that a tenant has at a time.
    width: usize,
    flows: Vec<ClientFlow>,
    /// Requests that each tenant makes in a period.
    demands: Vec<u64>,
    /// Random stream from which each tenant draws its nodes.
    moves: Vec<Stream>,
    /// On how many nodes each tenant is active.
    active: Vec<usize>,
}

/// First action of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// It asks at a time of its own.
    At(Picoseconds),
    /// It has so many requests outstanding from now on.
    Outstanding(u32),
}

impl Clients {
    pub(super) fn new(
        seed: u64,
        load: &Load,
        (period, nodes): (Span, u16),
        promises: &[SimPromise],
    ) -> Self {
        let drawn = load.active.map_or(0, |[_, most]| usize::from(most));
        let given = load.on.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let width = drawn.max(given);
        let flow = |number| ClientFlow {
            node: 0,
            version: 0,
            is_active: false,
            gap: None,
            random: Stream::new(seed, "arrivals", number as u64),
        };
        let tenants = promises.len();
        let moves = (0..tenants as u64).map(|tenant| Stream::new(seed, "moves", tenant));
        Self {
            load: load.clone(),
            period,
            nodes,
            width,
            flows: (0..tenants * width).map(flow).collect(),
            demands: promises.iter().map(|promise| promise.demand).collect(),
            moves: moves.collect(),
            active: vec![0; tenants],
        }
    }

    pub(super) fn flow(&self, id: FlowId) -> &ClientFlow {
        &self.flows[id as usize]
    }

    /// The tenant that a flow belongs to.
    pub(super) fn tenant(&self, id: FlowId) -> usize {
        id as usize / self.width
    }

    /// The flows that ask a node.
    pub(super) fn at(&self, node: u16) -> Vec<FlowId> {
        let flows = (0..).zip(&self.flows);
        let here = flows.filter(|(_, flow)| flow.is_active && flow.node == node);
        here.map(|(id, _)| id).collect()
    }

    /// A tenant begins, or moves to other nodes. Its flows, and what each does first.
    pub(super) fn relocate(&mut self, tenant: usize, now: Picoseconds) -> Vec<(FlowId, Begin)> {
        let nodes = self.choose(tenant);
        self.active[tenant] = nodes.len();
        let first = tenant * self.width;
        let demands = self.demands(tenant, nodes.len());
        let version = self.flows[first..first + self.width].iter().map(|flow| flow.version).max();
        let version = version.unwrap_or(0) + 1;
        let mut begins = Vec::with_capacity(nodes.len());
        // Places beyond the chosen nodes ask nothing, and what they asked before is forgotten.
        for (index, flow) in self.flows[first..first + self.width].iter_mut().enumerate() {
            (flow.version, flow.gap) = (version, None);
            flow.is_active = index < nodes.len();
            let Some(node) = nodes.get(index) else { continue };
            flow.node = *node;
            let begin = match (&self.load.closed, demands[index]) {
                (Some(closed), _) => Begin::Outstanding(outstanding_of(closed, index, nodes.len())),
                (None, 0) => continue,
                (None, rate) => {
                    let gap = Picoseconds(Picoseconds::from(self.period).0 / rate);
                    flow.gap = Some(gap);
                    // Any phase, so that flows with equal gaps do not march in step.
                    Begin::At(now.after(Picoseconds(flow.random.below(gap.0.max(1)))))
                }
            };
            begins.push(((first + index) as FlowId, begin));
        }
        begins
    }

    /// A tenant asks so often in a second of a node from now on: the flow, and when it asks first.
    /// A tenant has a flow for each node then.
    pub(super) fn demand(
        &mut self,
        tenant: usize,
        node: u16,
        rate: u64,
        now: Picoseconds,
    ) -> Option<(FlowId, Picoseconds)> {
        let id = tenant * self.width + usize::from(node);
        let flow = &mut self.flows[id];
        (flow.node, flow.is_active) = (node, rate > 0);
        flow.version += 1;
        flow.gap = Picoseconds::SECOND.0.checked_div(rate).map(Picoseconds);
        flow.gap.map(|gap| (id as FlowId, now.after(gap)))
    }

    /// When a flow asks next that asks now; none if that arrival belongs to the past.
    pub(super) fn next(
        &mut self,
        id: FlowId,
        version: u32,
        now: Picoseconds,
    ) -> Option<Picoseconds> {
        let flow = &mut self.flows[id as usize];
        let gap = flow.gap.filter(|_| flow.version == version)?;
        let arrivals = self.load.open.as_ref().map_or(Arrivals::Constant, |open| open.arrivals);
        Some(now.after(match arrivals {
            Arrivals::Constant => gap,
            Arrivals::Poisson => flow.random.exponential(gap),
        }))
    }

    /// The flow that asks when one of this version is answered, if one does.
    pub(super) fn next_flow(&mut self, id: FlowId, version: u32) -> Option<FlowId> {
        let closed = self.load.closed.as_ref()?;
        let flow = &mut self.flows[id as usize];
        if flow.version != version {
            return None;
        }
        if !closed.striped {
            return Some(id);
        }
        let first = id - id % self.width as FlowId;
        let drawn = flow.random.below(self.active[first as usize / self.width] as u64);
        Some(first + drawn as FlowId)
    }

    fn choose(&mut self, tenant: usize) -> Vec<u16> {
        if let Some(on) = &self.load.on {
            return on[tenant].clone();
        }
        let random = &mut self.moves[tenant];
        let [least, most] = self.load.active.unwrap_or([1, 1]);
        let count = random.within(u64::from(least), u64::from(most)) as usize;
        let chosen = random.choose(count, usize::from(self.nodes));
        chosen.into_iter().map(|node| node as u16).collect()
    }

    /// Returns a tenant's demand at each of its `count` nodes.
    fn demands(&self, tenant: usize, count: usize) -> Vec<u64> {
        let Some(open) = &self.load.open else { return vec![0; count] };
        if count == 0 {
            return Vec::new();
        }
        let zipf = Zipf::new(count, open.zipf.0);
        let weights: Vec<u64> = (0..count).map(|rank| zipf.weight(rank)).collect();
        apportion(self.demands[tenant], &weights)
    }
}

/// How many requests a flow of a closed loop has outstanding at first, which has this place of
/// `count`.
fn outstanding_of(closed: &Closed, index: usize, count: usize) -> u32 {
    if closed.striped {
        let (index, count) = (index as u32, count as u32);
        closed.outstanding / count + u32::from(index < closed.outstanding % count)
    } else {
        closed.outstanding
    }
}
