//! Stages of programs on several hosts, whose files are on one storage, under one controller.
//!
//! A program is modelled as a fluid: it uses its demand, as far as its bucket allows. Its stage,
//! with its plan, and the controller are the machines that ship. A stage dies with its program.
//! Rates in force are checked whenever a stage does something, because they change at no other
//! moment.

use std::collections::VecDeque;

use tidegate_model::gate::Unit;
use tidegate_model::{Policy, Span, Time};
use tidegate_proto::controller::{Controller, FromPeer, Outstanding, Peer, Setup, ToPeer};
use tidegate_proto::message::{
    ChannelReport, FromStage, GateReport, Hello, StageInfo, StageReport, VERSION,
};
use tidegate_proto::stage::{Machine, Output};

use crate::simulation::{Fault, Peers, Process, Simulation};

mod testbed;

pub use testbed::{ProgramId, StageTestbed};

/// Hosts at most; more programs share them.
const HOSTS: u16 = 8;

/// A program with its stage.
#[derive(Debug)]
pub(crate) struct SimProgram {
    machine: Machine,
    /// Its tenant's index.
    pub(crate) tenant: usize,
    /// Bytes per second that it wants.
    pub(crate) wants: u64,
    /// Until when its counters are right.
    counted: Time,
    pub(crate) bytes: u64,
    waited: Span,
    /// The hello of a hostile program, which says what is not so.
    forged: Option<StageInfo>,
    messages: VecDeque<FromStage>,
    /// Whether the machine wants its connection closed.
    hangs_up: bool,
}

impl SimProgram {
    /// The rate in force, in bytes per second; none before there are rules.
    pub(crate) fn rate(&self) -> Option<u64> {
        let mut gates = self.machine.plan().gates();
        gates
            .find_map(|(_, gate)| gate.rate.filter(|rate| rate.unit() == Unit::Bytes))
            .map(|rate| rate.per_second())
    }

    /// Its use, in bytes per second.
    pub(crate) fn used(&self) -> u64 {
        self.wants.min(self.rate().unwrap_or(u64::MAX))
    }

    /// Counts what it used until now.
    pub(crate) fn count(&mut self, now: Time) {
        let span = now.since(self.counted);
        let amount = u128::from(self.used()) * u128::from(span.0) / u128::from(Span::SECOND.0);
        self.bytes += amount as u64;
        if self.used() < self.wants {
            self.waited = Span(self.waited.0 + span.0);
        }
        self.counted = now;
    }

    /// Performs what the machine asks.
    fn perform(&mut self, now: Time) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                // The simulation tries again and again by itself.
                Output::Connect | Output::Hello(_) | Output::Install(_) | Output::Notice(_) => {}
                Output::Close => self.hangs_up = true,
                Output::Send(message) => self.messages.push_back(message),
                Output::Report { round, .. } => {
                    let report = self.report(now, round);
                    self.messages.push_back(FromStage::Report(report));
                }
            }
        }
    }

    fn report(&self, now: Time, round: u64) -> StageReport {
        let name = self.machine.info().tenant.clone();
        let gate = GateReport {
            name: format!("{name}:bandwidth"),
            waited_ns: self.waited.0,
            ..GateReport::default()
        };
        let channel = ChannelReport {
            name,
            operations: self.bytes >> 16,
            bytes: self.bytes,
            waited_ns: self.waited.0,
            ..ChannelReport::default()
        };
        StageReport {
            round,
            at_ns: now.0,
            channels: [channel].into(),
            gates: [gate].into(),
            processes: 1,
            ..StageReport::default()
        }
    }
}

impl Process for SimProgram {
    fn hello(&self, now: Time) -> Hello {
        match &self.forged {
            Some(info) => Hello::Stage { version: VERSION, info: info.clone() },
            None => self.machine.hello(now),
        }
    }

    fn on_connected(&mut self, now: Time) {
        self.hangs_up = false;
        self.machine.on_connected(now);
        self.perform(now);
    }

    fn on_disconnected(&mut self, now: Time) {
        self.machine.on_closed(now, "it is gone");
        self.perform(now);
    }

    fn on_message(&mut self, now: Time, message: ToPeer) {
        if let ToPeer::Stage(message) = message {
            self.count(now);
            self.machine.on_message(now, message);
            self.perform(now);
        }
    }

    fn poll_message(&mut self) -> Option<FromPeer> {
        self.messages.pop_front().map(FromPeer::Stage)
    }

    fn next_deadline(&self) -> Time {
        self.machine.next_deadline().unwrap_or(Time::MAX)
    }
}

/// Event of a load.
#[derive(Clone, Debug)]
pub(crate) enum StageEvent {
    /// A program wants so many bytes per second from now on.
    Demand { host: u16, wants: u64 },
    /// The controller applies the policy of this number.
    Apply(u16),
}

/// The programs of a simulation, on [`HOSTS`] hosts in turn.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// The policies, of which the first is in force from the beginning.
    pub(crate) policies: Vec<Policy>,
    /// The number of the one that was applied last.
    pub(crate) applied: u16,
    /// The state for the next controller.
    pub(crate) outstanding: Outstanding,
    /// The tenant of each host's program, by its index in the first policy, and its demand.
    pub(crate) hosts: Vec<(usize, u64)>,
    /// The most that was in force at once, when and at which hosts.
    pub(crate) most: (u64, Time, Vec<u64>),
}

/// Hosts in virtual time.
pub(crate) type StageSim = Simulation<Programs>;

impl StageSim {
    /// The rates in force, by host.
    pub(crate) fn rates(&self) -> Vec<u64> {
        let rate = |process: &Option<SimProgram>| process.as_ref().and_then(SimProgram::rate);
        self.hosts.iter().map(|host| rate(&host.process).unwrap_or(0)).collect()
    }

    fn note(&mut self) {
        let rates = self.rates();
        let sum = rates.iter().fold(0u64, |sum, rate| sum.saturating_add(*rate));
        if sum > self.peers.most.0 {
            self.peers.most = (sum, self.now.time(), rates);
        }
    }
}

impl Peers for Programs {
    type Process = SimProgram;
    type Event = StageEvent;

    fn identity(hello: &Hello) -> Peer {
        let Hello::Stage { info, .. } = hello else { return Peer::default() };
        let certificate = Some([String::from("ann")].into());
        Peer { pid: info.pid, certificate, ..Peer::default() }
    }

    fn controller(&self, now: Time, _incarnation: u32) -> Controller {
        let setup = Setup { outstanding: self.outstanding.clone(), ..Setup::default() };
        let policy = self.policies[usize::from(self.applied)].clone();
        Controller::new(now, setup, Some((u64::from(self.applied) + 1, policy)))
    }

    fn remember(&mut self, outstanding: Outstanding) {
        self.outstanding = outstanding;
    }

    fn process(&self, now: Time, peer: u16, incarnation: u32) -> SimProgram {
        let (number, wants) = self.hosts[usize::from(peer)];
        let info = StageInfo {
            tenant: self.policies[0].tenants[number].name.clone(),
            pid: u32::from(peer) << 16 | incarnation,
            host: format!("host{}", peer % HOSTS),
            ..StageInfo::default()
        };
        SimProgram {
            machine: Machine::new(now, info, false),
            tenant: number,
            wants,
            counted: now,
            bytes: 0,
            waited: Span::ZERO,
            forged: None,
            messages: VecDeque::new(),
            hangs_up: false,
        }
    }

    fn happen(simulation: &mut StageSim, event: StageEvent) {
        let now = simulation.now.time();
        match event {
            StageEvent::Demand { host, wants } => {
                simulation.peers.hosts[usize::from(host)].1 = wants;
                if let Some(program) = &mut simulation.hosts[usize::from(host)].process {
                    program.count(now);
                    program.wants = wants;
                }
            }
            StageEvent::Apply(number) => {
                // While no controller runs, the policy is stored for the next one.
                simulation.peers.applied = number;
                let policy = simulation.peers.policies[usize::from(number)].clone();
                if let Some(controller) = &mut simulation.controller {
                    controller.apply(now, u64::from(number) + 1, policy);
                    simulation.pump_controller();
                }
            }
        }
    }

    fn called(event: &StageEvent) -> Option<u16> {
        match event {
            StageEvent::Demand { host, .. } => Some(*host),
            StageEvent::Apply(_) => None,
        }
    }

    fn work(simulation: &mut StageSim, peer: u16) {
        let now = simulation.now.time();
        let Some(program) = &mut simulation.hosts[usize::from(peer)].process else { return };
        program.count(now);
        if program.machine.next_deadline().is_some_and(|at| at <= now) {
            program.machine.on_deadline(now);
        }
        program.perform(now);
        let hangs_up = std::mem::take(&mut program.hangs_up);
        simulation.note();
        if hangs_up {
            simulation.befall(Fault::Hangs(peer));
        }
    }
}

#[cfg(test)]
mod tests;
