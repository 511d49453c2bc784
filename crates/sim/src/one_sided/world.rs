//! The loop: the earliest of all that can happen, and what follows from it.

use std::collections::VecDeque;

use tidegate_model::Iops;
use tidegate_onesided::haechi::{Event, Monitor};

use super::client::{Client, Door, Latency, Plan};
use super::fabric::{Counts, Endpoint, Loopback, Network};
use super::outcome::Sample;
use super::scenario::{Background, Pattern, Scenario};
use crate::time::Picoseconds;

/// The region: a store of a million pages and more.
pub(super) const REGION: u64 = 8 << 30;

/// Change of the data node or the background load at a given time.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The data node can do so much from now on.
    Node(Iops),
    /// Jobs in the background begin, or end.
    Background(bool),
}

/// Clients and a data node in virtual time.
#[derive(Debug)]
pub(super) struct World<D> {
    network: Network,
    now: Picoseconds,
    clients: Vec<Client<D>>,
    background: Vec<Client<Endpoint>>,
    /// When each client, then each job in the background, is to be called; and the first of these.
    alarms: Vec<Picoseconds>,
    first: Picoseconds,
    turns: VecDeque<(Picoseconds, Turn)>,
    monitor: Option<Monitor<Loopback>>,
    /// When it is to be called.
    look: Picoseconds,
    events: Vec<Event>,
}

impl<D: Door> World<D> {
    /// `door` connects each client, with so many buffers, in their order.
    pub(super) fn new(
        scenario: &Scenario,
        network: &Network,
        mut door: impl FnMut(u32) -> D,
    ) -> Self {
        let groups = scenario.client.iter();
        let plans: Vec<Plan> = groups
            .flat_map(|group| {
                let plan = Plan {
                    demand: group.demand.map(|rate| scenario.in_a_period(rate)),
                    pattern: group.pattern,
                    window: group.window,
                    shift: 0,
                };
                std::iter::repeat_n(plan, group.count.into())
            })
            .collect();
        let count = plans.len() as u64;
        let clients = plans.into_iter().zip(0u64..).map(|(plan, number)| {
            let plan = Plan { shift: 1_000 * number / count, ..plan };
            Client::new(door(plan.window), plan)
        });
        let clients: Vec<Client<D>> = clients.collect();
        let background: Vec<_> =
            scenario.background.iter().flat_map(|jobs| besides(network, jobs)).collect();
        Self {
            now: Picoseconds::ZERO,
            alarms: vec![Picoseconds::MAX; clients.len() + background.len()],
            first: Picoseconds::MAX,
            turns: turns(scenario),
            network: network.clone(),
            clients,
            background,
            monitor: None,
            look: Picoseconds::MAX,
            events: Vec::new(),
        }
    }

    /// A monitor watches over all that.
    pub(super) fn watch(&mut self, monitor: Monitor<Loopback>) {
        self.monitor = Some(monitor);
        self.look = self.now;
    }

    /// Lets a period of some length pass.
    pub(super) fn pass(&mut self, length: Picoseconds) -> Sample {
        self.begin(length);
        self.run_until(self.now.after(length));
        self.sample()
    }

    /// Begins a period of some length for all clients.
    pub(super) fn begin(&mut self, length: Picoseconds) {
        self.clients.iter_mut().for_each(|client| client.begin(self.now, length));
        (0..self.clients.len()).for_each(|number| self.call(number));
    }

    /// Returns the reads completed since the last sample.
    pub(super) fn sample(&mut self) -> Sample {
        let take = |completed: &mut u64| core::mem::take(completed);
        Sample {
            completed: self.clients.iter_mut().map(|one| take(&mut one.completed)).collect(),
            background: self.background.iter_mut().map(|one| take(&mut one.completed)).sum(),
        }
    }

    /// From now on it is measured how long reads take.
    pub(super) fn measure(&mut self) {
        self.clients.iter_mut().for_each(|client| client.latency = Some(Latency::default()));
    }

    /// How long each client's reads have taken.
    pub(super) fn latencies(&mut self) -> Vec<Latency> {
        let clients = self.clients.iter_mut();
        clients.map(|client| client.latency.take().unwrap_or_default()).collect()
    }

    /// Returns the operations of each client at the data node.
    pub(super) fn counts(&self) -> Vec<Counts> {
        (0..self.clients.len() as u32).map(|client| self.network.counts(client)).collect()
    }

    /// Takes the events of the monitor since the last call.
    pub(super) fn events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }

    /// The monitor, if one watches.
    pub(super) fn monitor(&mut self) -> Option<&mut Monitor<Loopback>> {
        self.monitor.as_mut()
    }

    /// Changes how much a client wants of each period, from the next on.
    pub(super) fn want(&mut self, client: usize, demand: Option<u64>) {
        self.clients[client].want(demand);
    }

    /// Lets everything happen that happens before `end`.
    pub(super) fn run_until(&mut self, end: Picoseconds) {
        loop {
            let turn = self.turns.front().map_or(Picoseconds::MAX, |(at, _)| *at);
            let next = self.network.next().min(self.first).min(self.look).min(turn);
            if next >= end {
                break;
            }
            self.now = next;
            while let Some(client) = self.network.advance(next) {
                self.call(client as usize);
            }
            if next >= self.first {
                self.ring();
            }
            if next >= self.look {
                self.look();
            }
            if next >= turn {
                self.turn();
            }
        }
        self.now = end;
        while let Some(client) = self.network.advance(end) {
            self.call(client as usize);
        }
    }

    /// Calls those whose time has come.
    fn ring(&mut self) {
        for number in 0..self.alarms.len() {
            if self.alarms[number] <= self.now {
                self.call(number);
            }
        }
    }

    /// Calls a client or a job in the background.
    fn call(&mut self, number: usize) {
        let now = self.now;
        let next = match self.clients.get_mut(number) {
            Some(client) => {
                client.run(now);
                client.next()
            }
            None => {
                let job = &mut self.background[number - self.clients.len()];
                job.run(now);
                job.next()
            }
        };
        // Machines round down to nanoseconds.
        let next = next.max(now);
        let before = core::mem::replace(&mut self.alarms[number], next);
        if next < self.first {
            self.first = next;
        } else if before == self.first {
            self.first = self.alarms.iter().copied().min().unwrap_or(Picoseconds::MAX);
        }
    }

    /// Calls the monitor.
    fn look(&mut self) {
        let Some(monitor) = &mut self.monitor else { return };
        monitor.poll(self.now.time(), &mut self.events).expect("nothing is lost here");
        self.look = Picoseconds::from(monitor.next_deadline()).max(self.now);
    }

    fn turn(&mut self) {
        match self.turns.pop_front() {
            Some((_, Turn::Node(rate))) => self.network.set_node(rate),
            Some((_, Turn::Background(begins))) => {
                for job in &mut self.background {
                    match begins {
                        true => job.begin(self.now, Picoseconds::MAX),
                        false => job.end(),
                    }
                }
                let (from, to) = (self.clients.len(), self.alarms.len());
                (from..to).for_each(|number| self.call(number));
            }
            None => {}
        }
    }
}

/// Jobs beside the clients, which do nothing yet.
fn besides(network: &Network, jobs: &Background) -> Vec<Client<Endpoint>> {
    let plan = Plan { demand: None, pattern: Pattern::Burst, window: jobs.window, shift: 0 };
    let job = |_| Client::new(network.connect(plan.window), plan);
    (0..jobs.count).map(job).collect()
}

/// All that happens from outside, in its order.
fn turns(scenario: &Scenario) -> VecDeque<(Picoseconds, Turn)> {
    let changes = scenario.change.iter();
    let mut turns: Vec<_> =
        changes.map(|change| (change.at.into(), Turn::Node(change.node))).collect();
    if let Some(Background { from, until, .. }) = scenario.background {
        turns.push((from.into(), Turn::Background(true)));
        turns.extend(until.map(|until| (until.into(), Turn::Background(false))));
    }
    turns.sort_by_key(|(at, _)| *at);
    turns.into()
}
