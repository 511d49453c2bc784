//! Programs of a tenant with a limit. They use real buckets, each request as a whole.

use std::collections::BTreeMap;

use tidegate_algo::shaping::token_bucket::{Due, RATE_UNLIMITED, RateLease, Take, TokenBucket};
use tidegate_model::gate::Burst;
use tidegate_model::{GateSpec, Policy, Span, StageId, Time};
use tidegate_proto::controller::{ConnectionId, Controller, Setup};
use tidegate_proto::message::{Enforcement, FromStage, Housekeeping, Rule};

use crate::world::{ControllerTestbed, Fake, MIB, MS};

pub(crate) const LIMIT: u64 = MIB;
/// The default burst of the limit, and what the limit allows in an interval.
pub(crate) const BURST: u64 = LIMIT / 100;
pub(crate) const INTERVAL: u64 = LIMIT / 10;
const GATE: &str = "short:bandwidth";
/// How long rates hold that a supervisor does not renew.
const LEASE: Span = Span(2 * Span::SECOND.0);

/// A tenant with a limit, and another one beside it.
pub(crate) const POLICY: &str = "
    period = \"1s\"
    redistribute = \"100ms\"
    budget = \"8MiB/s\"
    [[tenant]]
    name = \"short\"
    limit = \"1MiB/s\"
    [[tenant]]
    name = \"other\"
";

/// A program that makes requests of one size, one after the other.
pub(crate) struct Program {
    pub(crate) stage: ConnectionId,
    pub(crate) id: StageId,
    bucket: TokenBucket,
    spec: Option<Burst>,
    size: u64,
    pub(crate) left: u32,
    pub(crate) due: Option<Due>,
    /// Whether its supervisor was killed.
    is_orphan: bool,
    /// Its rate then.
    pub(crate) safe: u64,
    /// Whether it was held as it started, and the requests that went since.
    is_queued: bool,
    gone: u32,
}

impl Program {
    /// Does what its agent would do with these rules.
    fn follow(&mut self, rules: &[Rule], now: Time) {
        let was_new = self.spec.is_none();
        for rule in rules {
            match rule {
                Rule::Housekeeping(Housekeeping::SetGate { name, spec }) if name == GATE => {
                    let GateSpec::TokenBucket { rate, burst } = spec else { panic!("{spec:?}") };
                    (self.spec, self.safe) = (Some(*burst), rate.per_second());
                }
                Rule::Enforcement(Enforcement::Rate { gate, rate }) if gate == GATE => {
                    self.set_rate(rate.per_second(), now, was_new);
                }
                Rule::Enforcement(Enforcement::Hold { gate, span }) if gate == GATE => {
                    self.is_queued |= was_new;
                    self.bucket.hold(now.after(*span), now.after(LEASE), now);
                }
                _ => {}
            }
        }
    }

    fn set_rate(&mut self, rate: u64, now: Time, is_new: bool) {
        let burst = self.spec.unwrap().tokens(rate);
        if is_new {
            self.bucket.configure(RATE_UNLIMITED, 1, now);
            self.bucket.configure(rate, burst.min(Burst::DEFAULT.tokens(rate)), now);
        }
        let lease = RateLease { until: now.after(LEASE), then: self.safe.min(rate) };
        self.bucket.configure_leased(rate, burst, lease, now);
    }

    /// Makes requests, and returns the bytes of those that went.
    fn run(&mut self, now: Time) -> u64 {
        if !self.is_orphan {
            self.bucket.renew(now.after(LEASE), now);
        }
        let mut moved = 0;
        while self.left > 0 {
            let taken = match self.due.take() {
                Some(due) => Take::Wait(due),
                None => self.bucket.take(self.size, now),
            };
            match taken {
                Take::Wait(due) if self.bucket.ready_at(due) > now => {
                    self.due = Some(due);
                    return moved;
                }
                _ => {
                    self.left -= 1;
                    self.gone += 1;
                    moved += self.size;
                }
            }
        }
        moved
    }
}

/// Programs of the tenant, and what they were served.
pub(crate) struct Bench {
    pub(crate) world: ControllerTestbed,
    pub(crate) programs: BTreeMap<u64, Program>,
    started: u64,
    /// The tenant's debt and its peak, by an exact clock.
    owed: f64,
    pub(crate) most: f64,
    pub(crate) served: u64,
    /// Changes that hold buckets or end holds.
    pub(crate) holds: usize,
    /// Bytes of killed supervisors' programs that were not reported.
    pub(crate) lost: u64,
    /// The most programs at a time that are in no start queue.
    pub(crate) there_max: usize,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let mut world = ControllerTestbed::new(Some(POLICY));
        world.is_watched = true;
        Self {
            world,
            programs: BTreeMap::new(),
            started: 0,
            owed: 0.0,
            most: 0.0,
            served: 0,
            holds: 0,
            lost: 0,
            there_max: 0,
        }
    }

    pub(crate) fn start(&mut self, size: u64, left: u32) -> u64 {
        let stage = self.world.join("short", 0);
        let program = Program {
            stage,
            id: self.world.stage(stage).id,
            bucket: TokenBucket::default(),
            spec: None,
            size,
            left,
            due: None,
            is_orphan: false,
            safe: 0,
            is_queued: false,
            gone: 0,
        };
        self.started += 1;
        self.programs.insert(self.started, program);
        self.deliver();
        self.started
    }

    /// Its supervisor says what it has served, and good-bye. One that was killed says nothing, and
    /// the controller sees that no program is left.
    pub(crate) fn end(&mut self, number: u64) {
        let program = self.programs.remove(&number).unwrap();
        if program.is_orphan {
            self.world.controller.on_unused(self.world.now, program.id);
            return self.world.settle();
        }
        let now = self.world.now;
        let report = self.world.stage(program.stage).report(0, now);
        self.world.send(program.stage, FromStage::Report(report));
        self.world.send(program.stage, FromStage::Disconnect);
    }

    /// Another controller takes over, without the debts, and all programs connect anew.
    pub(crate) fn restart(&mut self) {
        let policy = Some((1, Policy::parse(POLICY).unwrap()));
        self.world.controller = Controller::new(self.world.now, Setup::default(), policy);
        for program in self.programs.values_mut() {
            let fake = self.world.stages.remove(&program.stage).unwrap();
            let (held_until, waiting) = (fake.held_until.clone(), fake.waiting_tokens);
            program.stage = self.world.rejoin(fake, Span::ZERO);
            let fake = self.world.stage(program.stage);
            (fake.held_until, fake.waiting_tokens) = (held_until, waiting);
        }
        self.deliver();
    }

    /// Its supervisor is killed.
    pub(crate) fn kill(&mut self, number: u64) {
        let program = self.programs.get_mut(&number).unwrap();
        if !program.is_orphan {
            program.is_orphan = true;
            self.lost += 4 * MIB;
            self.world.leave(program.stage);
        }
    }

    pub(crate) fn deliver(&mut self) {
        for program in self.programs.values_mut().filter(|it| !it.is_orphan) {
            for rules in self.world.changes(program.stage) {
                let is_hold =
                    |rule: &&Rule| matches!(rule, Rule::Enforcement(Enforcement::Hold { .. }));
                self.holds += rules.iter().filter(is_hold).count();
                program.follow(&rules, self.world.now);
            }
        }
    }

    /// A millisecond.
    pub(crate) fn step(&mut self) {
        self.world.run(Span(MS));
        self.deliver();
        self.serve();
    }

    /// Lets the requests go whose time has come.
    fn serve(&mut self) {
        let mut moved = 0;
        for program in self.programs.values_mut() {
            let bytes = program.run(self.world.now);
            moved += bytes;
            let Some(fake) = self.world.stages.get_mut(&program.stage) else { continue };
            let Fake { done_bytes, waited_ns, waiting_tokens, .. } = fake;
            *done_bytes += bytes;
            (*waited_ns, *waiting_tokens) = match program.due {
                Some(_) => (*waited_ns + MS, program.size),
                None => (*waited_ns, 0),
            };
        }
        self.served += moved;
        self.owed = (self.owed - LIMIT as f64 / 1_000.0).max(0.0) + moved as f64;
        self.most = self.most.max(self.owed);
        let is_there = |it: &&Program| !it.is_queued || it.gone > 1 || it.is_orphan;
        self.there_max = self.there_max.max(self.programs.values().filter(is_there).count());
    }

    pub(crate) fn run(&mut self, milliseconds: u64) {
        (0..milliseconds).for_each(|_| self.step());
    }

    /// Lets time pass while there is no controller, and returns when each program was done, in
    /// milliseconds from now.
    pub(crate) fn run_alone(&mut self, milliseconds: u64) -> BTreeMap<u64, u64> {
        let mut done = BTreeMap::new();
        for at in 1..=milliseconds {
            self.world.now = self.world.now.after(Span(MS));
            self.serve();
            for number in self.programs.keys().filter(|it| self.is_done(**it)) {
                done.entry(*number).or_insert(at);
            }
        }
        done
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.programs[&number].left == 0
    }
}
