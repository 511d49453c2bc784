//! A simulated cluster that a test drives step by step: the test sets demands and links, causes
//! faults, applies policies, and reads the status.

use tidegate_model::policy::GateKind;
use tidegate_model::{Event, Iops, Policy, Span, Time};
use tidegate_proto::cluster::message::{FromNode, ToNode};
use tidegate_proto::cluster::status::ClusterStatus;
use tidegate_proto::controller::{FromPeer, ToPeer};
use tidegate_proto::message::Hello;
use tidegate_proto::node::NodeStatus;

use super::clients::SimPromise;
use super::counts::{Promised, TokenCounts};
use super::nodes::{ClusterEvent as LoadEvent, ClusterSim, Setup};
use crate::link::Conduct;
use crate::scenario::{Arrivals, Halves, Load, Nodes, Open, Pacing, Per};
use crate::simulation::{Fault, Journal};
use crate::time::Picoseconds;

/// A cluster that a test leads by hand. Each millisecond it checks that no token was created.
#[derive(Debug)]
pub struct ClusterTestbed {
    pub(crate) simulation: ClusterSim,
    promised: Vec<Promised>,
    pub(crate) counts: TokenCounts,
    /// Tenants whose counts before this period are not checked.
    pub unchecked_until: u64,
    /// Whether counts are checked at all; it takes its time where there are many tenants.
    pub is_watched: bool,
}

impl ClusterTestbed {
    /// So many nodes that serve `capacity` requests per second each, and no requests yet.
    ///
    /// # Panics
    /// If the policy cannot be read.
    pub fn new(policy: &str, capacity: u64, count: u16) -> Self {
        Self::of(1, Policy::parse(policy).expect("the policy can be read"), capacity, count)
    }

    pub(crate) fn of(seed: u64, policy: Policy, capacity: u64, count: u16) -> Self {
        let rate = Iops(capacity);
        let pacing = Pacing::Paper;
        let nodes = Nodes { count, rate, spread_percent: 0, depth: 16, shards: 1, pacing };
        let tenants = policy.tenants.len();
        let (zipf, arrivals) = (Halves(0), Arrivals::Constant);
        let load = Load {
            start: Span::ZERO,
            active: None,
            on: Some(vec![(0..count).collect(); tenants]),
            changes: [0, 0],
            changes_per: Per::Run,
            open: Some(Open { demand_percent: 0, zipf, arrivals }),
            closed: None,
        };
        let mut simulation = ClusterSim::of(Setup {
            seed,
            period: policy.period,
            nodes,
            promises: vec![SimPromise::default(); tenants],
            load,
            links: vec![Conduct::default(); usize::from(count)],
            policy: policy.clone(),
        });
        simulation.journal = Some(Journal::default());
        let promised = Promised::bounds(&policy.at(GateKind::Node));
        let counts = TokenCounts::default();
        Self { simulation, promised, counts, unchecked_until: 0, is_watched: true }
    }

    /// Lets time pass.
    ///
    /// # Panics
    /// If a token was created.
    pub fn run(&mut self, span: Span) {
        let end = self.simulation.now.after(span.into());
        let result = self.run_until(end);
        result.unwrap_or_else(|what| panic!("at {}: {what}", self.simulation.now));
    }

    pub(crate) fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        if !self.is_watched {
            self.simulation.run_until(end);
        }
        while self.simulation.now < end {
            let next = self.simulation.now.after(Span::MILLISECOND.into());
            self.simulation.run_until(next.min(end));
            self.counts.note(&self.statuses());
            self.counts.check_limits(&self.promised, self.unchecked_until)?;
            self.counts.check_reservations(&self.promised, self.unchecked_until)?;
        }
        Ok(())
    }

    /// Something breaks now, or is mended.
    pub fn befall(&mut self, fault: Fault) {
        self.simulation.befall(fault);
    }

    /// All links behave like this from now on.
    pub fn links(&mut self, conduct: Conduct) {
        self.befall(Fault::Links(Box::new(conduct)));
    }

    /// A tenant asks so often in a second of a node from now on.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub fn demand(&mut self, node: u16, tenant: &str, rate: u32) {
        let tenant = self.promised.iter().position(|promised| promised.name == tenant);
        let tenant = tenant.expect("the policy has the tenant") as u16;
        self.simulation.plan(self.simulation.now, LoadEvent::Demand { tenant, node, rate });
    }

    /// The operator applies another policy with the same tenants.
    ///
    /// # Panics
    /// If the policy cannot be read, or no controller runs.
    pub fn apply(&mut self, policy: &str) {
        let policy = Policy::parse(policy).expect("the policy can be read");
        let simulation = &mut self.simulation;
        simulation.peers.policy = (simulation.peers.policy.0 + 1, policy.clone());
        self.promised = Promised::bounds(&policy.at(GateKind::Node));
        let (now, revision) = (simulation.now.time(), simulation.peers.policy.0);
        let controller = simulation.controller.as_mut().expect("a controller runs");
        controller.apply(now, revision, policy);
        simulation.pump_controller();
    }

    /// A node's process sends a message that is not its machine's.
    pub fn say(&mut self, node: u16, message: FromNode) {
        self.simulation.say(node, FromPeer::Node(message));
    }

    /// A process that is none of the nodes' connects to the controller, if one runs.
    pub fn meet(&mut self, hello: Hello) {
        self.simulation.meet(hello);
    }

    /// The incarnation of each node, and its status while its process runs. A node is abandoned in
    /// it if its lease was over at any time of the period.
    pub fn statuses(&self) -> Vec<(u32, Option<NodeStatus>)> {
        self.simulation.statuses()
    }

    /// The revision of the policy.
    pub const fn revision(&self) -> u64 {
        self.simulation.peers.policy.0
    }

    /// The most outputs of the controller at once.
    pub const fn outputs_at_once(&self) -> u32 {
        self.simulation.most_outputs
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.simulation.now.time()
    }

    /// The controller's status of the cluster.
    ///
    /// # Panics
    /// If no controller runs.
    pub fn status(&self) -> ClusterStatus {
        let status = self.simulation.controller.as_ref().map(|it| it.status(self.now()));
        status.and_then(|status| status.cluster).expect("a controller runs")
    }

    /// A node's own status.
    ///
    /// # Panics
    /// If its process does not run.
    pub fn node(&self, node: u16) -> NodeStatus {
        self.simulation.status(node).expect("the node runs")
    }

    /// Operations that all processes served in one of the last periods.
    pub fn served(&self, period: u64, tenant: &str) -> u64 {
        self.counts.served(period, tenant)
    }

    /// Requests of a tenant that all nodes have answered since the testbed was made.
    ///
    /// # Panics
    /// If there is no such tenant.
    pub fn answered(&self, tenant: &str) -> u64 {
        let tenant = self.promised.iter().position(|promised| promised.name == tenant);
        let tenant = tenant.expect("the policy has the tenant");
        let (nodes, served) = (self.simulation.hosts.len(), &self.simulation.peers.served);
        served[tenant * nodes..][..nodes].iter().sum()
    }

    /// The events of the controller.
    pub fn events(&self) -> &[Event] {
        self.simulation.journal.as_ref().map_or(&[], |journal| &journal.events)
    }

    /// The messages of the controller to nodes since [`Self::forget_sent`].
    pub fn sent(&self) -> impl Iterator<Item = &ToNode> {
        let sent = self.simulation.journal.iter().flat_map(|journal| &journal.sent);
        sent.filter_map(|message| match message {
            ToPeer::Node(message) => Some(message),
            _ => None,
        })
    }

    /// Forgets the messages of the controller.
    pub fn forget_sent(&mut self) {
        self.simulation.journal.iter_mut().for_each(|journal| journal.sent.clear());
    }
}
