//! Fault injection for one-sided memory: runs one seed, and checks the invariants.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_algo::onesided::capacity::Profile;
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::monitor::{MonitorSettings, Summary};
use tidegate_onesided::haechi::{Monitor, MonitorEvent, Port, SessionParameters, region_layout};

use super::super::network::{Loopback, Network};
use super::super::nic::{NicModel, Order, Service};
use super::super::world::REGION;
use super::station::{Late, Station};
use super::{ClientLoad, ClientSpec, Fault, FaultScenario};
use crate::time::Picoseconds;
use crate::trial::{Inspection, Phases, Trial};

/// Session slots of the data node, and the buffers that its monitor needs for them.
const SLOTS: u16 = 16;
const BUFFERS: u32 = 3;

pub(crate) struct OneSidedTrial {
    scenario: FaultScenario,
    now: Time,
    network: Network,
    stations: Vec<Station>,
    monitor: Option<Monitor<Loopback>>,
    settings: MonitorSettings,
    /// When the monitor is to be called, or another is to begin.
    next_poll: Time,
    faults: VecDeque<(Time, Fault)>,
    events: Vec<MonitorEvent>,
    /// The monitor's period, what had been issued when it began, and in how many more clients may
    /// use what they have left of a former monitor's.
    epoch: u64,
    issued: u64,
    leftovers: u32,
    capacity: u64,
    trace: u64,
}

impl OneSidedTrial {
    pub(crate) fn new(seed: u64) -> Self {
        let scenario = FaultScenario::new(seed);
        let nics = NicModel {
            client: scenario.local,
            node: scenario.node,
            round_trip: Span(5_000),
            order: Order::Arrival,
            service: Service::Constant,
        };
        let network = Network::new(&nics, REGION, region_layout::DATA as usize, scenario.seed);
        let parameters = SessionParameters {
            rules: scenario.rules,
            period: scenario.period,
            local_rate: scenario.local.0,
        };
        let profile = Profile {
            mean: scenario.thought,
            deviation: scenario.thought / 100,
            local: scenario.per_period(scenario.local),
            increment: (scenario.thought / 100).max(1),
            history: 5,
        };
        let settings =
            MonitorSettings { parameters, profile, session_slots: SLOTS, window: scenario.window };
        let mut world = Self {
            now: Time::ZERO,
            monitor: None,
            settings,
            next_poll: Time::ZERO,
            faults: scenario.faults.iter().copied().collect(),
            stations: Vec::new(),
            events: Vec::new(),
            epoch: 0,
            issued: 0,
            leftovers: 0,
            capacity: 0,
            trace: 0,
            network,
            scenario,
        };
        world.watch();
        let specs = world.scenario.specs.clone();
        specs.into_iter().for_each(|spec| world.join(spec));
        world
    }

    /// A monitor begins.
    fn watch(&mut self) {
        let remote = self.network.connect_node(BUFFERS);
        let monitor = Monitor::new(remote, self.settings, self.now);
        self.monitor = Some(monitor.expect("the connection is large enough"));
        (self.next_poll, self.leftovers) = (self.now, 2);
    }

    fn join(&mut self, spec: ClientSpec) {
        let admitted = self.monitor.as_mut().and_then(|monitor| {
            let slot = monitor.admit(spec.promise).ok()?;
            monitor.start_early(slot, spec.promise.limit);
            Some(slot)
        });
        let Some(slot) = admitted else { return };
        let late = Rc::new(Cell::new(Span::ZERO));
        let remote = Late::new(self.network.connect(self.scenario.window + 2), late.clone());
        let port =
            Port::new(remote, self.settings.parameters, slot, self.scenario.window, self.now);
        let port = port.map_err(|_| ()).expect("the connection is large enough");
        self.stations.push(Station::new(port, slot, spec, late, self.now));
    }

    fn step(&mut self) -> Result<(), String> {
        let now = self.now;
        while let Some(number) = self.network.advance(Picoseconds::from(now)) {
            self.call(number as usize)?;
        }
        for number in 0..self.stations.len() {
            if self.stations[number].next() <= now {
                self.call(number)?;
            }
        }
        while let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= now) {
            self.strike(fault);
        }
        if self.next_poll <= now {
            self.poll_monitor()?;
        }
        Ok(())
    }

    fn call(&mut self, number: usize) -> Result<(), String> {
        let now = self.now;
        self.stations[number].run(now).map_err(|lost| lost.to_string())
    }

    fn strike(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::Stop(who, span) => self.stations[who].stopped = now.after(span),
            Fault::Die(who) => self.stations[who].is_dead = true,
            Fault::Join(spec) => match self.monitor {
                Some(_) => self.join(spec),
                None => self.faults.push_back((self.next_poll.max(now).after(Span(1)), fault)),
            },
            Fault::Late(who, span) => self.stations[who].late.set(span),
            Fault::Stall(span) => self.next_poll = self.next_poll.max(now.after(span)),
            Fault::Restart(span) => {
                self.monitor = None;
                self.next_poll = now.after(span);
            }
            Fault::Node(rate) => self.network.set_node(rate),
        }
    }

    fn poll_monitor(&mut self) -> Result<(), String> {
        let Some(monitor) = &mut self.monitor else {
            self.watch();
            return Ok(());
        };
        let mut events = core::mem::take(&mut self.events);
        let result = monitor.poll(self.now, &mut events);
        self.next_poll = monitor.next_deadline().max(self.now);
        let period = monitor.account().period();
        let (granted, minted) = (monitor.account().granted(), monitor.account().minted());
        let capacity = monitor.account().capacity();
        result.map_err(|lost| lost.to_string())?;
        if granted > minted {
            return Err(format!("{granted} pool tokens granted, {minted} made"));
        }
        if period.epoch != self.epoch {
            self.count(capacity)?;
            self.epoch = period.epoch;
        }
        // A capacity that the monitor learns from the period before counts within this one.
        self.capacity = self.capacity.max(capacity);
        for event in events.drain(..) {
            match event {
                MonitorEvent::Over(summary) => self.judge(&summary)?,
                MonitorEvent::Overstepped { .. } | MonitorEvent::Superseded => {
                    return Err(format!("{event:?}"));
                }
                _ => {}
            }
        }
        self.events = events;
        Ok(())
    }

    /// A period is over: what was issued in it.
    fn count(&mut self, next: u64) -> Result<(), String> {
        let issued = self.stations.iter().map(|one| one.port.counts().operations).sum();
        let in_it = issued - core::mem::replace(&mut self.issued, issued);
        let capacity = core::mem::replace(&mut self.capacity, next);
        if self.leftovers > 0 {
            self.leftovers -= 1;
            return Ok(());
        }
        let reserved: u64 = self.stations.iter().map(|one| one.spec.promise.reservation).sum();
        let most = capacity.max(reserved) + self.scenario.slack();
        if in_it > most {
            let what = format!("{in_it} operations were issued in a period of {capacity} tokens");
            return Err(what);
        }
        Ok(())
    }

    /// Whether a period of the calm kept what was promised.
    fn judge(&self, summary: &Summary) -> Result<(), String> {
        let begun = self.now.0.saturating_sub(self.scenario.period.0 * 5 / 4);
        if begun < self.scenario.phases().calm_from().time().0 {
            return Ok(());
        }
        let period = Span(self.scenario.period.0);
        for station in self.stations.iter().filter(|station| !station.is_dead) {
            let Some((promise, outcome)) = summary.session_slots[station.slot.index()] else {
                return Err(format!("session slot {} is gone", station.slot));
            };
            let demand = match station.spec.load {
                ClientLoad::All => u64::MAX,
                ClientLoad::Even(rate) => {
                    (u128::from(rate) * u128::from(period.0) / 1_000_000_000) as u64
                }
                _ => 0,
            };
            let is_backlogged = demand > promise.reservation * 104 / 100;
            if is_backlogged && outcome.completed < promise.reservation {
                let what = format!("session slot {}: {promise:?}, {outcome:?}", station.slot);
                return Err(format!("{what}, of {}", summary.capacity));
            }
        }
        self.judge_use(summary)
    }

    /// Whether all of the node was used, if there was enough to do.
    fn judge_use(&self, summary: &Summary) -> Result<(), String> {
        let scenario = &self.scenario;
        let node = scenario.per_period(scenario.last);
        let here = || self.stations.iter().filter(|station| !station.is_dead);
        let is_greedy =
            |spec: &ClientSpec| spec.load == ClientLoad::All && spec.promise.limit == u64::MAX;
        let greedy = here().filter(|station| is_greedy(&station.spec)).count() as u64;
        if greedy.saturating_sub(1) * scenario.per_period(scenario.local) < node {
            return Ok(());
        }
        let late = here().map(|station| scenario.late(&station.spec)).sum();
        // Not derived: see the invariants.
        let hidden = if scenario.rules.paces { 0 } else { node * 15 / 100 };
        let least =
            scenario.usable(node, scenario.clients()).saturating_sub(late).saturating_sub(hidden);
        let done: u64 =
            summary.session_slots.iter().flatten().map(|(_, outcome)| outcome.completed).sum();
        if done < least {
            let Summary { capacity, held, .. } = summary;
            let what = format!("{done} operations of {node}, with Ω {capacity}, held for {held}");
            return Err(what);
        }
        Ok(())
    }
}

impl Trial for OneSidedTrial {
    fn phases(&self) -> Phases {
        self.scenario.phases()
    }

    fn now(&self) -> Picoseconds {
        self.now.into()
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        loop {
            let at = |at: Picoseconds| Time(at.0.div_ceil(1_000));
            let stations = self.stations.iter().map(Station::next);
            let fault = self.faults.front().map_or(Time::MAX, |(at, _)| *at);
            let next = stations.chain([self.next_poll, fault, at(self.network.next())]).min();
            let next = next.unwrap_or(Time::MAX).max(self.now);
            if next > end.time() {
                return Ok(());
            }
            self.now = next;
            self.trace = self.trace.rotate_left(7) ^ next.0;
            self.step()?;
        }
    }

    /// The monitor's events are checked as they come.
    fn inspect(&mut self, _: Inspection) -> Result<(), String> {
        Ok(())
    }

    fn trace(&self) -> u64 {
        self.trace
    }
}
