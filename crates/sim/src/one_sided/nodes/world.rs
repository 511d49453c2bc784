//! Data nodes, each in a world of its own, and the controller between them.

use std::collections::VecDeque;

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{Policy, TenantIndex, Time};
use tidegate_onesided::data_node::{self, Hello, SessionRegistry, ShareAgent};
use tidegate_onesided::haechi::monitor::Settings;
use tidegate_onesided::haechi::{Monitor, MonitorEvent, Port, SessionParameters, region_layout};
use tidegate_proto::cluster::message::Share;
use tidegate_proto::cluster::split::NodeSetup;
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::data_node::{FromDataNode, Grant, ToDataNode};
use tidegate_proto::message::{self, VERSION};

use super::super::network::{Endpoint, Network};
use super::super::run::{BUFFERS, ENGINE};
use super::super::scenario::{self as single, Clients};
use super::super::world::{OneSidedSim as SingleSim, REGION};
use super::scenario::{Control, Scenario, Tenants};
use super::{MESSAGE, Sample};
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// A data node.
#[derive(Debug)]
enum DataNode {
    /// Its clients read as they like.
    Bare(Box<SingleSim<Endpoint>>),
    /// They have tokens.
    Guarded(Box<Guarded>),
}

#[derive(Debug)]
struct Guarded {
    world: SingleSim<Port<Endpoint>>,
    share_agent: ShareAgent,
}

/// All nodes and their controller.
#[derive(Debug)]
pub(super) struct OneSidedClusterSim<'a> {
    scenario: &'a Scenario,
    now: Picoseconds,
    data_nodes: Vec<DataNode>,
    controller: Option<Controller>,
    /// On their way for one step: to and from nodes.
    down: VecDeque<(usize, ToDataNode)>,
    up: VecDeque<(usize, FromDataNode)>,
}

impl<'a> OneSidedClusterSim<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Result<Self, ScenarioError> {
        let data_nodes = (0..scenario.nodes).map(|node| data_node(scenario, node)).collect();
        let (down, up) = (VecDeque::new(), VecDeque::new());
        let now = Picoseconds::ZERO;
        let mut world = Self { scenario, now, data_nodes, controller: None, down, up };
        let policy = Policy::parse(&scenario.policy());
        let policy = policy.map_err(|error| ScenarioError::new(error.to_string()))?;
        match scenario.control {
            Control::None => {}
            Control::Equal => {
                let share = |(tenant, (_, tenants)): (TenantIndex, (u16, &Tenants))| Share {
                    tenant,
                    reserved: tenants.reservation.unwrap_or_default().0 / u64::from(scenario.nodes),
                    allowed: u64::MAX,
                };
                let shares: Vec<Share> =
                    (0..).map(TenantIndex).zip(scenario.each()).map(share).collect();
                for node in 0..world.data_nodes.len() {
                    let policy = ToDataNode::Policy { revision: 1, policy: policy.clone() };
                    let grant = Grant { revision: 1, serial: 1, shares: shares.clone() };
                    world.down.extend([(node, policy), (node, ToDataNode::Grant(grant))]);
                }
            }
            Control::Split => {
                let (capacity, client) = (scenario.nics.node, scenario.nics.client);
                let setup = |node| NodeSetup { name: format!("m{node}"), capacity, client };
                let data_nodes = (0..world.data_nodes.len()).map(setup).collect();
                let setup = Setup { data_nodes, ..Setup::default() };
                let mut controller = Controller::new(Time::ZERO, setup, None);
                controller.apply(Time::ZERO, 1, policy);
                for node in 0..world.data_nodes.len() {
                    let id = ConnectionId(node as u64);
                    let hello =
                        message::Hello::DataNode { version: VERSION, name: format!("m{node}") };
                    controller.on_hello(Time::ZERO, id, Peer::default(), hello);
                }
                world.controller = Some(controller);
            }
        }
        Ok(world)
    }

    /// Lets a period pass.
    pub(super) fn pass(&mut self) -> Sample {
        let length = Picoseconds::from(self.scenario.period);
        let relocation = self
            .scenario
            .relocation
            .filter(|relocation| self.now >= Picoseconds::from(relocation.at));
        let moved = relocation.map_or(0, |relocation| relocation.by);
        for (number, (among, tenants)) in self.scenario.each().enumerate() {
            let wanted = self.scenario.wanted(among, tenants, moved);
            for (data_node, demand) in self.data_nodes.iter_mut().zip(wanted) {
                data_node.want(number, demand);
            }
        }
        self.data_nodes.iter_mut().for_each(|data_node| data_node.begin(length));
        let end = self.now.after(length);
        while self.now < end {
            self.now = self.now.after(Picoseconds::from(MESSAGE)).min(end);
            self.step();
        }
        let completed: Vec<Vec<u64>> = self.data_nodes.iter_mut().map(DataNode::take).collect();
        let tenants = self.scenario.promised().len();
        let by_tenant = |of: &dyn Fn(usize, usize) -> u64| -> Vec<Vec<u64>> {
            let row = |tenant| (0..self.data_nodes.len()).map(|node| of(node, tenant)).collect();
            (0..tenants).map(row).collect()
        };
        Sample {
            completed: by_tenant(&|node, tenant| completed[node][tenant]),
            reserved: by_tenant(&|node, tenant| self.data_nodes[node].reserved(tenant)),
        }
    }

    /// Runs all nodes and the controller until now, and delivers messages.
    fn step(&mut self) {
        let (now, time) = (self.now, self.now.time());
        let (down, up) = (core::mem::take(&mut self.down), core::mem::take(&mut self.up));
        self.data_nodes.iter_mut().for_each(|data_node| data_node.run_until(now));
        for (node, message) in down {
            self.data_nodes[node].on_message(message);
        }
        for (node, data_node) in self.data_nodes.iter_mut().enumerate() {
            while let Some(message) = data_node.poll_output() {
                self.up.push_back((node, message));
            }
        }
        let Some(controller) = &mut self.controller else { return };
        for (node, message) in up {
            let message = FromPeer::DataNode(message);
            controller.on_message(time, ConnectionId(node as u64), message);
        }
        if controller.next_deadline() <= time {
            controller.on_deadline(time);
        }
        while let Some(output) = controller.poll_output() {
            if let Output::Send { to, message: ToPeer::DataNode(message) } = output {
                self.down.push_back((to.0 as usize, message));
            }
        }
    }
}

impl DataNode {
    fn want(&mut self, client: usize, demand: Option<u64>) {
        match self {
            Self::Bare(world) => world.want(client, demand),
            Self::Guarded(it) => it.world.want(client, demand),
        }
    }

    fn begin(&mut self, length: Picoseconds) {
        match self {
            Self::Bare(world) => world.begin(length),
            Self::Guarded(it) => it.world.begin(length),
        }
    }

    fn take(&mut self) -> Vec<u64> {
        match self {
            Self::Bare(world) => world.sample().completed,
            Self::Guarded(it) => it.world.sample().completed,
        }
    }

    fn run_until(&mut self, now: Picoseconds) {
        match self {
            Self::Bare(world) => world.run_until(now),
            Self::Guarded(it) => it.run_until(now),
        }
    }

    fn on_message(&mut self, message: ToDataNode) {
        if let Self::Guarded(it) = self
            && let Some(monitor) = it.world.monitor()
        {
            it.share_agent.on_message(message, monitor);
        }
    }

    fn poll_output(&mut self) -> Option<FromDataNode> {
        match self {
            Self::Bare(_) => None,
            Self::Guarded(it) => it.share_agent.poll_output(),
        }
    }

    fn reserved(&self, tenant: usize) -> u64 {
        match self {
            Self::Bare(_) => 0,
            Self::Guarded(it) => it.share_agent.registry.share(&format!("t{tenant}")).reserved,
        }
    }
}

impl Guarded {
    fn run_until(&mut self, now: Picoseconds) {
        self.world.run_until(now);
        for event in self.world.events() {
            let MonitorEvent::Over(summary) = event else { continue };
            self.share_agent.on_period(&summary);
            if self.share_agent.is_owed()
                && let Some(monitor) = self.world.monitor()
            {
                self.share_agent.settle(monitor);
            }
        }
    }
}

/// A data node with a client of each tenant.
fn data_node(scenario: &Scenario, node: u16) -> DataNode {
    let seed = scenario.seed + u64::from(node);
    let real = region_layout::DATA as usize;
    let network = Network::new(&scenario.nics, REGION, real, seed);
    let plan = load(scenario, seed);
    match scenario.control {
        Control::None => {
            let world = SingleSim::new(&plan, &network, |window| network.connect(window));
            DataNode::Bare(Box::new(world))
        }
        Control::Equal | Control::Split => DataNode::Guarded(guarded(scenario, &plan, &network)),
    }
}

fn guarded(scenario: &Scenario, plan: &single::Scenario, network: &Network) -> Box<Guarded> {
    let local_rate = scenario.nics.client.0;
    let parameters = SessionParameters { rules: Rules::SOUND, period: scenario.period, local_rate };
    let (mean, local) = scenario.capacities();
    let increment = (mean / 100).max(1);
    let profile = Profile { mean, deviation: mean / 100, local, increment, history: 5 };
    let session_slots = plan.client.len() as u16;
    let settings = Settings { parameters, profile, session_slots, window: scenario.window };
    // It has the region and the buffers that a monitor and engines need.
    let mut monitor = Monitor::new(network.connect_node(BUFFERS), settings, Time::ZERO)
        .expect("the connection is large enough");
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
    let mut session_slots = 0..;
    let mut world = SingleSim::new(plan, network, |window| {
        let session_slot = session_slots.next().unwrap_or(u16::MAX);
        let remote = network.connect(window + ENGINE);
        Port::new(remote, parameters, session_slot, window, Time::ZERO)
            .expect("the connection is large enough")
    });
    world.watch(monitor);
    Box::new(Guarded { world, share_agent: ShareAgent::new(registry) })
}

/// Returns the scenario of the reads at one node. How many there are is set anew with each period.
fn load(scenario: &Scenario, seed: u64) -> single::Scenario {
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
