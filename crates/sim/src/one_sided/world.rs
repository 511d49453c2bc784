//! The event loop of a simulation of one-sided access: it takes the earliest event and applies it.

use std::collections::VecDeque;

use tidegate_model::Iops;
use tidegate_onesided::haechi::{Monitor, MonitorEvent};

use super::client::{ClientMemory, ClientPlan, Latency, ReadingClient};
use super::network::{Loopback, Network, OperationCounts};
use super::outcome::Sample;
use super::scenario::{Background, Pattern, Scenario};
use crate::time::Picoseconds;

/// The region: a store of a million pages and more.
pub(super) const REGION: u64 = 8 << 30;

/// Change of the data node or the background load at a given time.
#[derive(Clone, Copy, Debug)]
enum ScheduledChange {
    /// The data node can do so much from now on.
    Node(Iops),
    /// Jobs in the background begin, or end.
    Background(bool),
}

/// Clients and a data node in virtual time.
#[derive(Debug)]
pub(super) struct OneSidedSim {
    network: Network,
    now: Picoseconds,
    /// The clients, and then the jobs in the background.
    clients: Vec<ReadingClient>,
    /// How many of them are no jobs.
    count: usize,
    /// When each is to be called, and the first of these.
    alarms: Vec<Picoseconds>,
    first: Picoseconds,
    changes: VecDeque<(Picoseconds, ScheduledChange)>,
    monitor: Option<Monitor<Loopback>>,
    /// When it is to be called.
    next_poll: Picoseconds,
    events: Vec<MonitorEvent>,
}

impl OneSidedSim {
    /// `connect` connects each client, with so many buffers, in their order.
    pub(super) fn new(
        scenario: &Scenario,
        network: &Network,
        mut connect: impl FnMut(u32) -> Box<dyn ClientMemory>,
    ) -> Self {
        let groups = scenario.client.iter();
        let plans: Vec<ClientPlan> = groups
            .flat_map(|group| {
                let plan = ClientPlan {
                    demand: group.demand.map(|rate| scenario.in_a_period(rate)),
                    pattern: group.pattern,
                    window: group.window,
                    shift: 0,
                };
                std::iter::repeat_n(plan, group.count.into())
            })
            .collect();
        let count = plans.len();
        let clients = plans.into_iter().zip(0u64..).map(|(plan, number)| {
            let plan = ClientPlan { shift: 1_000 * number / count as u64, ..plan };
            ReadingClient::new(connect(plan.window), plan)
        });
        let mut clients: Vec<ReadingClient> = clients.collect();
        clients.extend(scenario.background.iter().flat_map(|jobs| besides(network, jobs)));
        Self {
            now: Picoseconds::ZERO,
            alarms: vec![Picoseconds::MAX; clients.len()],
            first: Picoseconds::MAX,
            changes: changes(scenario),
            network: network.clone(),
            clients,
            count,
            monitor: None,
            next_poll: Picoseconds::MAX,
            events: Vec::new(),
        }
    }

    /// Goes on to the present, if nothing has happened yet.
    pub(super) fn start_at(&mut self, now: Picoseconds) {
        self.now = now;
        if self.monitor.is_some() {
            self.next_poll = now;
        }
        self.network.advance(now);
    }

    /// A monitor watches over all that.
    pub(super) fn watch(&mut self, monitor: Monitor<Loopback>) {
        self.monitor = Some(monitor);
        self.next_poll = self.now;
    }

    /// Lets a period of some length pass.
    pub(super) fn pass(&mut self, length: Picoseconds) -> Sample {
        self.begin(length);
        self.run_until(self.now.after(length));
        self.sample()
    }

    /// Begins a period of some length for all clients.
    pub(super) fn begin(&mut self, length: Picoseconds) {
        self.clients[..self.count].iter_mut().for_each(|client| client.begin(self.now, length));
        (0..self.count).for_each(|number| self.call(number));
    }

    /// Returns the reads completed since the last sample.
    pub(super) fn sample(&mut self) -> Sample {
        let take = |client: &mut ReadingClient| core::mem::take(&mut client.completed);
        let (clients, jobs) = self.clients.split_at_mut(self.count);
        let completed = clients.iter_mut().map(take).collect();
        Sample { completed, background: jobs.iter_mut().map(take).sum() }
    }

    /// From now on it is measured how long reads take.
    pub(super) fn measure(&mut self) {
        let clients = self.clients[..self.count].iter_mut();
        clients.for_each(|client| client.latency = Some(Latency::default()));
    }

    /// How long each client's reads have taken.
    pub(super) fn latencies(&mut self) -> Vec<Latency> {
        let clients = self.clients[..self.count].iter_mut();
        clients.map(|client| client.latency.take().unwrap_or_default()).collect()
    }

    /// Returns the operations of each client at the data node.
    pub(super) fn counts(&self) -> Vec<OperationCounts> {
        (0..self.count as u32).map(|client| self.network.counts(client)).collect()
    }

    /// Takes the events of the monitor since the last call.
    pub(super) fn events(&mut self) -> Vec<MonitorEvent> {
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
            let change = self.changes.front().map_or(Picoseconds::MAX, |(at, _)| *at);
            let next = self.network.next().min(self.first).min(self.next_poll).min(change);
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
            if next >= self.next_poll {
                self.poll_monitor();
            }
            if next >= change {
                self.change();
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
        let (now, client) = (self.now, &mut self.clients[number]);
        client.run(now);
        // Machines round down to nanoseconds.
        let next = client.next().max(now);
        let before = core::mem::replace(&mut self.alarms[number], next);
        if next < self.first {
            self.first = next;
        } else if before == self.first {
            self.first = self.alarms.iter().copied().min().unwrap_or(Picoseconds::MAX);
        }
    }

    /// Calls the monitor.
    fn poll_monitor(&mut self) {
        let Some(monitor) = &mut self.monitor else { return };
        monitor.poll(self.now.time(), &mut self.events).expect("nothing is lost here");
        self.next_poll = Picoseconds::from(monitor.next_deadline()).max(self.now);
    }

    fn change(&mut self) {
        match self.changes.pop_front() {
            Some((_, ScheduledChange::Node(rate))) => self.network.set_node(rate),
            Some((_, ScheduledChange::Background(begins))) => {
                for job in &mut self.clients[self.count..] {
                    match begins {
                        true => job.begin(self.now, Picoseconds::MAX),
                        false => job.end(),
                    }
                }
                (self.count..self.clients.len()).for_each(|number| self.call(number));
            }
            None => {}
        }
    }
}

/// Jobs beside the clients, which do nothing yet.
fn besides(network: &Network, jobs: &Background) -> Vec<ReadingClient> {
    let plan = ClientPlan { demand: None, pattern: Pattern::Burst, window: jobs.window, shift: 0 };
    let job = |_| ReadingClient::new(Box::new(network.connect(plan.window)), plan);
    (0..jobs.count).map(job).collect()
}

/// All that happens from outside, in its order.
fn changes(scenario: &Scenario) -> VecDeque<(Picoseconds, ScheduledChange)> {
    let changes = scenario.change.iter();
    let mut changes: Vec<_> =
        changes.map(|change| (change.at.into(), ScheduledChange::Node(change.node))).collect();
    if let Some(Background { from, until, .. }) = scenario.background {
        changes.push((from.into(), ScheduledChange::Background(true)));
        changes.extend(until.map(|until| (until.into(), ScheduledChange::Background(false))));
    }
    changes.sort_by_key(|(at, _)| *at);
    changes.into()
}
