//! Data nodes, each in a world of its own, and the controller between them.

use std::collections::VecDeque;

use tidegate_algo::haechi::Rules;
use tidegate_algo::haechi::capacity::Profile;
use tidegate_algo::haechi::engine::Promise;
use tidegate_model::{Policy, Time};
use tidegate_onesided::data_node::{self, Book, Hello, Steward};
use tidegate_onesided::haechi::monitor::Settings;
use tidegate_onesided::haechi::{Event, Monitor, Port, Terms, place};
use tidegate_proto::cluster::message::Share;
use tidegate_proto::cluster::split::{NodeSetup, Output, Split};
use tidegate_proto::controller::ConnectionId;
use tidegate_proto::data_node::{FromDataNode, Grant, ToDataNode};
use tidegate_proto::message::VERSION;

use super::super::fabric::{Endpoint, Network};
use super::super::run::{BUFFERS, ENGINE};
use super::super::scenario::{self as single, Clients};
use super::super::world::{REGION, World as Single};
use super::scenario::{Control, Scenario, Tenants};
use super::{MESSAGE, Sample};
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// A data node.
#[derive(Debug)]
enum Place {
    /// Its clients read as they like.
    Bare(Box<Single<Endpoint>>),
    /// They have tokens.
    Guarded(Box<Guarded>),
}

#[derive(Debug)]
struct Guarded {
    world: Single<Port<Endpoint>>,
    steward: Steward,
}

/// All nodes and their controller.
#[derive(Debug)]
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    now: Picoseconds,
    places: Vec<Place>,
    split: Option<Split>,
    /// On their way for one step: to and from nodes.
    down: VecDeque<(usize, ToDataNode)>,
    up: VecDeque<(usize, FromDataNode)>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Result<Self, ScenarioError> {
        let places = (0..scenario.nodes).map(|node| place(scenario, node)).collect();
        let (down, up) = (VecDeque::new(), VecDeque::new());
        let now = Picoseconds::ZERO;
        let mut world = Self { scenario, now, places, split: None, down, up };
        let policy = Policy::parse(&scenario.policy());
        let policy = policy.map_err(|error| ScenarioError::new(error.to_string()))?;
        match scenario.control {
            Control::None => {}
            Control::Equal => {
                let share = |(tenant, (_, tenants)): (u16, (u16, &Tenants))| Share {
                    tenant,
                    reserved: tenants.reservation.unwrap_or_default().0 / u64::from(scenario.nodes),
                    allowed: u64::MAX,
                };
                let shares: Vec<Share> = (0..).zip(scenario.each()).map(share).collect();
                for node in 0..world.places.len() {
                    let policy = ToDataNode::Policy { revision: 1, policy: policy.clone() };
                    let grant = Grant { revision: 1, serial: 1, shares: shares.clone() };
                    world.down.extend([(node, policy), (node, ToDataNode::Grant(grant))]);
                }
            }
            Control::Split => {
                let (capacity, client) = (scenario.cards.node, scenario.cards.client);
                let setup = |node| NodeSetup { name: format!("m{node}"), capacity, client };
                let nodes = (0..world.places.len()).map(setup).collect();
                let mut split = Split::new(Time::ZERO, nodes, None);
                split.apply(Time::ZERO, 1, policy);
                for node in 0..world.places.len() {
                    let id = ConnectionId(node as u64);
                    split.on_connected(Time::ZERO, id, VERSION, &format!("m{node}"));
                }
                world.split = Some(split);
            }
        }
        Ok(world)
    }

    /// Lets a period pass.
    pub(super) fn pass(&mut self) -> Sample {
        let length = Picoseconds::from(self.scenario.period);
        let turn = self.scenario.turn.filter(|turn| self.now >= Picoseconds::from(turn.at));
        let moved = turn.map_or(0, |turn| turn.by);
        for (number, (among, tenants)) in self.scenario.each().enumerate() {
            let wanted = self.scenario.wanted(among, tenants, moved);
            for (place, demand) in self.places.iter_mut().zip(wanted) {
                place.want(number, demand);
            }
        }
        self.places.iter_mut().for_each(|place| place.begin(length));
        let end = self.now.after(length);
        while self.now < end {
            self.now = self.now.after(Picoseconds::from(MESSAGE)).min(end);
            self.step();
        }
        let completed: Vec<Vec<u64>> = self.places.iter_mut().map(Place::take).collect();
        let tenants = self.scenario.promised().len();
        let by_tenant = |of: &dyn Fn(usize, usize) -> u64| -> Vec<Vec<u64>> {
            let row = |tenant| (0..self.places.len()).map(|node| of(node, tenant)).collect();
            (0..tenants).map(row).collect()
        };
        Sample {
            completed: by_tenant(&|node, tenant| completed[node][tenant]),
            reserved: by_tenant(&|node, tenant| self.places[node].reserved(tenant)),
        }
    }

    /// Runs all nodes and the controller until now, and delivers messages.
    fn step(&mut self) {
        let (now, time) = (self.now, self.now.time());
        let (down, up) = (core::mem::take(&mut self.down), core::mem::take(&mut self.up));
        self.places.iter_mut().for_each(|place| place.run_until(now));
        for (node, message) in down {
            self.places[node].hear(message);
        }
        for (node, place) in self.places.iter_mut().enumerate() {
            while let Some(message) = place.said() {
                self.up.push_back((node, message));
            }
        }
        let Some(split) = &mut self.split else { return };
        for (node, message) in up {
            split.on_message(time, ConnectionId(node as u64), message);
        }
        if split.next_deadline() <= time {
            split.on_deadline(time);
        }
        while let Some(output) = split.poll_output() {
            if let Output::Send { to, message } = output {
                self.down.push_back((to.0 as usize, message));
            }
        }
    }
}

impl Place {
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

    fn hear(&mut self, message: ToDataNode) {
        if let Self::Guarded(it) = self
            && let Some(monitor) = it.world.monitor()
        {
            it.steward.on_message(message, monitor);
        }
    }

    fn said(&mut self) -> Option<FromDataNode> {
        match self {
            Self::Bare(_) => None,
            Self::Guarded(it) => it.steward.poll_output(),
        }
    }

    fn reserved(&self, tenant: usize) -> u64 {
        match self {
            Self::Bare(_) => 0,
            Self::Guarded(it) => it.steward.book.share(&format!("t{tenant}")).reserved,
        }
    }
}

impl Guarded {
    fn run_until(&mut self, now: Picoseconds) {
        self.world.run_until(now);
        for event in self.world.events() {
            let Event::Over(summary) = event else { continue };
            self.steward.on_period(&summary);
            if self.steward.is_owed()
                && let Some(monitor) = self.world.monitor()
            {
                self.steward.settle(monitor);
            }
        }
    }
}

/// A data node with a client of each tenant.
fn place(scenario: &Scenario, node: u16) -> Place {
    let seed = scenario.seed + u64::from(node);
    let real = place::DATA as usize;
    let network = Network::new(&scenario.cards, REGION, real, seed);
    let plan = load(scenario, seed);
    match scenario.control {
        Control::None => {
            let world = Single::new(&plan, &network, |window| network.connect(window));
            Place::Bare(Box::new(world))
        }
        Control::Equal | Control::Split => Place::Guarded(guarded(scenario, &plan, &network)),
    }
}

fn guarded(scenario: &Scenario, plan: &single::Scenario, network: &Network) -> Box<Guarded> {
    let local_rate = scenario.cards.client.0;
    let terms = Terms { rules: Rules::SOUND, period: scenario.period, local_rate };
    let (mean, local) = scenario.capacities();
    let increment = (mean / 100).max(1);
    let profile = Profile { mean, deviation: mean / 100, local, increment, history: 5 };
    let seats = plan.client.len() as u16;
    let settings = Settings { terms, profile, seats, window: scenario.window };
    // It has the region and the buffers that a monitor and engines need.
    let mut monitor = Monitor::new(network.connect_node(BUFFERS), settings, Time::ZERO)
        .expect("the fabric is large enough");
    let mut book = Book::new(scenario.period, scenario.cards.client);
    for tenant in 0..seats {
        let nothing = Promise { reservation: 0, limit: u64::MAX };
        let seat = monitor.admit(nothing).expect("there are as many seats");
        let name = format!("t{tenant}");
        let hello = Hello {
            version: data_node::VERSION,
            tenant: name.clone(),
            reservation: None,
            limit: None,
            parts: 1,
            seat: None,
            is_bare: false,
        };
        book.seat(seat, &name, &hello);
    }
    let mut seats = 0..;
    let mut world = Single::new(plan, network, |window| {
        let seat = seats.next().unwrap_or(u16::MAX);
        let fabric = network.connect(window + ENGINE);
        Port::new(fabric, terms, seat, window, Time::ZERO).expect("the fabric is large enough")
    });
    world.watch(monitor);
    Box::new(Guarded { world, steward: Steward::new(book) })
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
        cards: scenario.cards.clone(),
        client: scenario.each().map(client).collect(),
        background: None,
        change: Vec::new(),
        deviation: Default::default(),
    }
}
