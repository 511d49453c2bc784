//! Programs on hosts that a test drives step by step: the test starts and ends programs, sets their
//! demand, causes faults, applies policies, and reads rates and the status.

use tidegate_model::gate::Unit;
use tidegate_model::{Policy, Span, StageId, Time};
use tidegate_proto::controller::status::Status;
use tidegate_proto::controller::{FromPeer, Outstanding};
use tidegate_proto::message::StageInfo;

use super::{Peers, Programs, SimProgram, StageEvent, StageSim};
use crate::link::Conduct;
use crate::simulation::Fault;
use crate::time::Picoseconds;

/// The time that a message takes: a tenth of a millisecond.
const LATENCY: Picoseconds = Picoseconds(100_000_000);

/// The silence after which a peer would end its connection in place of its machine, which has a
/// bound of its own.
const SILENCE: Picoseconds = Picoseconds(1_000_000 * Picoseconds::SECOND.0);

/// The program of a test, by the number of its host.
pub type ProgramId = u16;

/// Programs under one controller that a test leads by hand. After each step it checks that at no
/// instant the rates in force at all hosts added up to more than the budget.
#[derive(Debug)]
pub struct StageTestbed {
    simulation: StageSim,
    /// The largest budget so far, in bytes per second.
    budget: u64,
}

impl StageTestbed {
    /// A controller that knows a policy, and no program yet.
    ///
    /// # Panics
    /// If the policy cannot be read or has no budget in bytes.
    pub fn new(policy: &str) -> Self {
        let (policy, budget) = read(policy);
        let programs = Programs { policies: [policy].into(), ..Programs::default() };
        let mut simulation = StageSim::new(programs, 1, &[], SILENCE);
        simulation.start();
        Self { simulation, budget }
    }

    /// Starts a program on a host of its own that wants so many bytes per second.
    ///
    /// # Panics
    /// If the first policy has no such tenant.
    pub fn join(&mut self, tenant: &str, wants: u64) -> ProgramId {
        let programs = &mut self.simulation.peers;
        let index = programs.policies[0].tenants.iter().position(|it| it.name == tenant);
        programs.hosts.push((index.expect("the policy has the tenant"), wants));
        let program = self.simulation.add_peer(1, &Conduct::steady(LATENCY));
        self.befall(Fault::Returns(program));
        program
    }

    /// The same of a program whose first message says this of it, true or not.
    ///
    /// # Panics
    /// If the first policy has no such tenant.
    pub fn join_as(&mut self, forged: StageInfo, wants: u64) -> ProgramId {
        let program = self.join(&forged.tenant, wants);
        let host = &mut self.simulation.hosts[usize::from(program)];
        host.process.iter_mut().for_each(|it| it.forged = Some(forged.clone()));
        program
    }

    /// A program ends, and its stage says so.
    pub fn end(&mut self, program: ProgramId) {
        let now = self.now();
        let process = self.simulation.hosts[usize::from(program)].process.as_mut();
        let messages = process.map(|process| {
            process.count(now);
            process.machine.on_end();
            process.perform(now);
            std::mem::take(&mut process.messages)
        });
        let messages = messages.into_iter().flatten();
        messages.for_each(|message| self.simulation.say(program, FromPeer::Stage(message)));
        self.befall(Fault::Dies(program));
    }

    /// Something breaks now, or is mended.
    pub fn befall(&mut self, fault: Fault) {
        self.simulation.befall(fault);
    }

    /// The controller ends without a word and starts again.
    pub fn restart(&mut self) {
        self.befall(Fault::ControllerDies);
        self.befall(Fault::ControllerReturns);
    }

    /// The operator applies another policy, with tenants of the first one.
    ///
    /// # Panics
    /// If the policy cannot be read or has no budget in bytes.
    pub fn apply(&mut self, policy: &str) {
        let (policy, budget) = read(policy);
        let policies = &mut self.simulation.peers.policies;
        policies.push(policy);
        let event = StageEvent::Apply(policies.len() as u16 - 1);
        self.budget = self.budget.max(budget);
        Programs::happen(&mut self.simulation, event);
    }

    /// Lets time pass.
    ///
    /// # Panics
    /// If more than the budget was in force at once.
    pub fn run(&mut self, span: Span) {
        let end = self.simulation.now.after(span.into());
        self.simulation.run_until(end);
        let (most, at, rates) = &self.simulation.peers.most;
        // A hundredth is for programs that start, each with a byte per second at least.
        let there = self.budget + self.budget / 100 + rates.len() as u64;
        assert!(*most <= there, "{most} of {} were in force at {at}: {rates:?}", self.budget);
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.simulation.now.time()
    }

    /// A program's rate in force, in bytes per second.
    ///
    /// # Panics
    /// If it does not run, or has no rules yet.
    pub fn rate(&self, program: ProgramId) -> u64 {
        self.process(program).rate().expect("there are rules")
    }

    /// The number of a program's stage.
    ///
    /// # Panics
    /// If the program does not run.
    pub fn stage(&self, program: ProgramId) -> StageId {
        self.process(program).machine.info().stage
    }

    fn process(&self, program: ProgramId) -> &SimProgram {
        let process = &self.simulation.hosts[usize::from(program)].process;
        process.as_ref().expect("the program runs")
    }

    /// The controller's status.
    ///
    /// # Panics
    /// If no controller runs.
    pub fn status(&self) -> Status {
        let controller = self.simulation.controller.as_ref().expect("a controller runs");
        controller.status(self.now())
    }

    /// The state for the next controller.
    pub const fn outstanding(&self) -> &Outstanding {
        &self.simulation.peers.outstanding
    }
}

/// A policy, and its budget in bytes per second.
fn read(policy: &str) -> (Policy, u64) {
    let policy = Policy::parse(policy).expect("the policy can be read");
    let budget = policy.budget.get(Unit::Bytes).expect("the policy has a budget in bytes");
    (policy, budget)
}
