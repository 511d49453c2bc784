//! Simulation of several data nodes, with the controller between them.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::TenantIndex;
use tidegate_model::{Policy, SessionSlot, Time};
use tidegate_onesided::data_node::registry::TenantShare;
use tidegate_onesided::data_node::{self, Hello, SessionRegistry, ShareAgent};
use tidegate_onesided::haechi::monitor::MonitorSettings;
use tidegate_onesided::haechi::{Monitor, MonitorEvent, Port, SessionParameters, region_layout};
use tidegate_proto::cluster::message::Share;
use tidegate_proto::cluster::split::NodeSetup;
use tidegate_proto::controller::{Controller, FromPeer, Setup, ToPeer};
use tidegate_proto::data_node::{Grant, ToDataNode};
use tidegate_proto::message::{self, VERSION};

use super::super::network::Network;
use super::super::run::{BUFFERS, ENGINE};
use super::super::scenario::{self as single, Clients};
use super::super::world::{OneSidedSim, REGION};
use super::scenario::{NodesControl, OneSidedClusterScenario, Tenants};
use super::{MESSAGE, Sample};
use crate::link::Conduct;
use crate::scenario::ScenarioError;
use crate::simulation::{Fault, Peers, Process, Simulation};
use crate::time::Picoseconds;

/// A data node's process, with its memory and clients.
#[derive(Debug)]
pub(crate) struct DataNode {
    name: String,
    world: OneSidedSim,
    /// Without one its clients read as they like.
    share_agent: Option<ShareAgent>,
}

/// Event of the policy.
#[derive(Clone, Debug)]
pub(crate) enum PolicyEvent {
    /// Each node is given an equal part of each promise, without a controller.
    EqualShares,
    /// The operator applies another policy with the same tenants.
    Apply(Box<Policy>),
}

/// The data nodes of a simulation. Their loads have no events in its queue: a node goes on to the
/// present when it is called, at least once in each [`MESSAGE`].
#[derive(Debug)]
pub(crate) struct DataNodes {
    scenario: OneSidedClusterScenario,
    revision: u64,
    pub(crate) policy: Policy,
}

/// All nodes and their controller.
pub(crate) type OneSidedClusterSim = Simulation<DataNodes>;

impl OneSidedClusterSim {
    /// The nodes and the controller of a scenario, on steady links.
    pub(super) fn steady(scenario: &OneSidedClusterScenario) -> Result<Self, ScenarioError> {
        let links = vec![Conduct::steady(MESSAGE.into()); usize::from(scenario.nodes)];
        let mut simulation = Self::of(scenario, &links)?;
        match scenario.control {
            NodesControl::Split => simulation.start_connected(MESSAGE.into()),
            NodesControl::None | NodesControl::Equal => {
                let nodes = 0..scenario.nodes;
                nodes.for_each(|node| simulation.befall(Fault::Returns(node)));
            }
        }
        if scenario.control == NodesControl::Equal {
            simulation.plan(MESSAGE.into(), PolicyEvent::EqualShares);
        }
        Ok(simulation)
    }

    /// Nodes without a process yet, with these links.
    pub(crate) fn of(
        scenario: &OneSidedClusterScenario,
        links: &[Conduct],
    ) -> Result<Self, ScenarioError> {
        let policy = Policy::parse(&scenario.policy());
        let policy = policy.map_err(|error| ScenarioError::new(error.to_string()))?;
        let silence = Picoseconds(3 * Picoseconds::SECOND.0);
        let data_nodes = DataNodes { scenario: scenario.clone(), revision: 1, policy };
        Ok(Self::new(data_nodes, scenario.seed, links, silence))
    }

    fn grant_equal_shares(&mut self) {
        let DataNodes { scenario, policy, .. } = &self.peers;
        let share = |(tenant, (_, tenants)): (u16, (u16, &Tenants))| Share {
            tenant: TenantIndex(tenant),
            reserved: tenants.reservation.unwrap_or_default().0 / u64::from(scenario.nodes),
            allowed: u64::MAX,
        };
        let shares: Vec<Share> = (0..).zip(scenario.each()).map(share).collect();
        let now = self.now.time();
        for process in self.hosts.iter_mut().filter_map(|host| host.process.as_mut()) {
            let policy = ToDataNode::Policy { revision: 1, policy: policy.clone() };
            let grant = Grant { revision: 1, serial: 1, shares: shares.clone() };
            process.on_message(now, ToPeer::DataNode(policy));
            process.on_message(now, ToPeer::DataNode(ToDataNode::Grant(grant)));
        }
    }

    /// Begins a period for all clients.
    pub(crate) fn begin(&mut self) {
        let (now, scenario) = (self.now, &self.peers.scenario);
        let relocation =
            scenario.relocation.filter(|relocation| now >= Picoseconds::from(relocation.at));
        let moved = relocation.map_or(0, |relocation| relocation.by);
        let mut processes: Vec<_> = self.hosts.iter_mut().map(|it| it.process.as_mut()).collect();
        for (number, (among, tenants)) in scenario.each().enumerate() {
            let wanted = scenario.wanted(among, tenants, moved);
            for (process, demand) in processes.iter_mut().zip(wanted) {
                process.iter_mut().for_each(|process| process.world.want(number, demand));
            }
        }
        let length = scenario.period.into();
        processes.into_iter().flatten().for_each(|process| process.world.begin(length));
    }

    /// Lets everything happen until then.
    pub(crate) fn advance(&mut self, end: Picoseconds) {
        while self.now < end {
            self.run_until(self.now.after(MESSAGE.into()).min(end));
            (0..self.hosts.len()).for_each(|node| self.pump(node as u16));
        }
    }

    /// Lets a period pass.
    pub(super) fn pass(&mut self) -> Sample {
        self.begin();
        self.advance(self.now.after(self.peers.scenario.period.into()));
        self.sample()
    }

    /// Returns the reads since the last sample, and the shares now.
    pub(crate) fn sample(&mut self) -> Sample {
        let tenants = self.peers.scenario.promised().len();
        let mut processes: Vec<_> = self.hosts.iter_mut().map(|it| it.process.as_mut()).collect();
        let completed = processes.iter_mut().map(|process| match process {
            Some(process) => process.world.sample().completed,
            None => vec![0; tenants],
        });
        let completed: Vec<Vec<u64>> = completed.collect();
        let of = |tenant: usize| completed.iter().map(|row| row[tenant]).collect();
        let reserved = |shares: Vec<TenantShare>| shares.iter().map(|it| it.reserved).collect();
        let reserved =
            self.shares(|it, name| it.registry.share(name)).into_iter().map(reserved).collect();
        Sample { completed: (0..tenants).map(of).collect(), reserved }
    }

    /// The share of each tenant at each node, as `of` says it; none without a process.
    pub(crate) fn shares(
        &self,
        of: impl Fn(&ShareAgent, &str) -> TenantShare,
    ) -> Vec<Vec<TenantShare>> {
        let nothing = TenantShare { reserved: 0, allowed: 0 };
        let shares = |tenant: usize| {
            let name = format!("t{tenant}");
            let share_agent = |process: &DataNode| {
                process.share_agent.as_ref().map_or(nothing, |it| of(it, &name))
            };
            self.hosts.iter().map(|it| it.process.as_ref().map_or(nothing, share_agent)).collect()
        };
        (0..self.peers.scenario.promised().len()).map(shares).collect()
    }
}

impl Peers for DataNodes {
    type Process = DataNode;
    type Event = PolicyEvent;

    fn controller(&self, now: Time, incarnation: u32) -> Controller {
        let (capacity, client) = (self.scenario.nics.node, self.scenario.nics.client);
        let setup = |node| NodeSetup { name: name(node), capacity, client };
        let data_nodes = (0..self.scenario.nodes).map(setup).collect();
        let setup = Setup { data_nodes, ..Setup::default() };
        if incarnation > 1 {
            return Controller::new(now, setup, Some((self.revision, self.policy.clone())));
        }
        // The first has been there before its nodes, and rounds begin with the run.
        let mut controller = Controller::new(Time::ZERO, setup, None);
        controller.apply(Time::ZERO, 1, self.policy.clone());
        controller
    }

    fn process(&self, now: Time, node: u16, _incarnation: u32) -> DataNode {
        DataNode::new(&self.scenario, node, now)
    }

    fn happen(simulation: &mut OneSidedClusterSim, event: PolicyEvent) {
        match event {
            PolicyEvent::EqualShares => simulation.grant_equal_shares(),
            PolicyEvent::Apply(policy) => {
                let peers = &mut simulation.peers;
                (peers.revision, peers.policy) = (peers.revision + 1, *policy);
                if let Some(controller) = &mut simulation.controller {
                    let now = simulation.now.time();
                    controller.apply(now, peers.revision, peers.policy.clone());
                }
                simulation.pump_controller();
            }
        }
    }

    fn work(simulation: &mut OneSidedClusterSim, node: u16) {
        let now = simulation.now;
        let process = &mut simulation.hosts[usize::from(node)].process;
        process.iter_mut().for_each(|process| process.run_until(now));
    }
}

impl Process for DataNode {
    fn hello(&self, _now: Time) -> message::Hello {
        message::Hello::DataNode { version: VERSION, name: self.name.clone() }
    }

    fn on_connected(&mut self, _: Time) {
        self.share_agent.iter_mut().for_each(ShareAgent::on_connected);
    }

    /// Shares stand.
    fn on_disconnected(&mut self, _: Time) {}

    fn on_message(&mut self, now: Time, message: ToPeer) {
        self.run_until(now.into());
        if let (Some(share_agent), ToPeer::DataNode(message)) = (&mut self.share_agent, message)
            && let Some(monitor) = self.world.monitor()
        {
            share_agent.on_message(message, monitor);
        }
    }

    fn poll_message(&mut self) -> Option<FromPeer> {
        self.share_agent.as_mut()?.poll_output().map(FromPeer::DataNode)
    }

    fn next_deadline(&self) -> Time {
        Time::MAX
    }
}

impl DataNode {
    /// A data node with a client of each tenant.
    fn new(scenario: &OneSidedClusterScenario, node: u16, now: Time) -> Self {
        let seed = scenario.seed + u64::from(node);
        let real = region_layout::DATA as usize;
        let network = Network::new(&scenario.nics, REGION, real, seed);
        let plan = load(scenario, seed);
        let (mut world, share_agent) = match scenario.control {
            NodesControl::None => {
                let connect = |window| Box::new(network.connect(window)) as _;
                (OneSidedSim::new(&plan, &network, connect), None)
            }
            NodesControl::Equal | NodesControl::Split => guarded(scenario, &plan, &network, now),
        };
        world.start_at(now.into());
        Self { name: name(node), world, share_agent }
    }

    fn run_until(&mut self, now: Picoseconds) {
        self.world.run_until(now);
        let Some(share_agent) = &mut self.share_agent else { return };
        for event in self.world.events() {
            let MonitorEvent::Over(summary) = event else { continue };
            share_agent.on_period(&summary);
            if share_agent.is_owed()
                && let Some(monitor) = self.world.monitor()
            {
                share_agent.settle(monitor);
            }
        }
    }
}

/// The clients of a data node with tokens, and its coordinator.
fn guarded(
    scenario: &OneSidedClusterScenario,
    plan: &single::Scenario,
    network: &Network,
    now: Time,
) -> (OneSidedSim, Option<ShareAgent>) {
    let local_rate = scenario.nics.client.0;
    let parameters = SessionParameters { rules: Rules::SOUND, period: scenario.period, local_rate };
    let (mean, local) = scenario.capacities();
    let increment = (mean / 100).max(1);
    let profile = Profile { mean, deviation: mean / 100, local, increment, history: 5 };
    let session_slots = plan.client.len() as u16;
    let settings = MonitorSettings { parameters, profile, session_slots, window: scenario.window };
    // It has the region and the buffers that a monitor and engines need.
    let mut monitor = Monitor::new(network.connect_node(BUFFERS), settings, now)
        .expect("the fabric is large enough");
    let mut registry = SessionRegistry::new(scenario.period, scenario.nics.client);
    for tenant in 0..session_slots {
        let nothing = Promise { reservation: 0, limit: u64::MAX };
        let session_slot = monitor.admit(nothing).expect("there are as many session slots");
        let name = format!("t{tenant}");
        let hello = Hello {
            version: data_node::VERSION,
            tenant: name.clone(),
            reservation: None,
            limit: None,
            parts: 1,
            session_slot: None,
            is_bare: false,
        };
        registry.add(session_slot, &name, &hello);
    }
    let mut session_slots = (0..u16::MAX).map(SessionSlot);
    let mut world = OneSidedSim::new(plan, network, |window| {
        let session_slot = session_slots.next().unwrap_or(SessionSlot(u16::MAX));
        let remote = network.connect(window + ENGINE);
        let port = Port::new(remote, parameters, session_slot, window, now);
        Box::new(port.expect("the fabric is large enough"))
    });
    world.watch(monitor);
    (world, Some(ShareAgent::new(registry)))
}

/// Returns the scenario of the reads at one node. How many there are is set anew with each period.
fn load(scenario: &OneSidedClusterScenario, seed: u64) -> single::Scenario {
    let client = |(_, tenants): (u16, &Tenants)| Clients {
        count: 1,
        reservation: None,
        limit: None,
        demand: tenants.demand,
        pattern: match tenants.demand {
            Some(_) => single::Pattern::Constant,
            None => single::Pattern::Burst,
        },
        window: scenario.window,
    };
    single::Scenario {
        name: String::new(),
        seed,
        control: single::Control::default(),
        period: scenario.period,
        skip: 0,
        periods: 1,
        nics: scenario.nics.clone(),
        client: scenario.each().map(client).collect(),
        background: None,
        change: Vec::new(),
        deviation: Default::default(),
    }
}

fn name(node: u16) -> String {
    format!("m{node}")
}
