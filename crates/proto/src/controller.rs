//! The controller of stages: one policy in, rates out, without I/O.
//!
//! A stage connects, describes itself, and is sent all of its rules. From then on the controller
//! works in cycles: it *collects* the counters of every stage, *solves* for the rate that each may
//! use, and *pushes* the rates that changed (PAIO §8.2, Algorithm 2). A cycle ends with the last
//! report; one that does not come in time does not delay the others beyond the next cycle.
//!
//! - **Silent stages.** A stage that misses two rounds keeps its rates and its share for two
//!   periods, because it may go on enforcing them. Then it is disconnected and its share is free;
//!   if it lives, it connects anew and is sent all of its rules again.
//! - **Departures.** A closed connection or a disconnect message frees the share at once, a stage
//!   without processes at the next cycle.
//! - **Untrusted reports.** No message of a stage makes the controller panic, overflow or keep more
//!   than the policy asks for.
//!
//! The caller calls [`Controller::poll_output`] until it is empty after each of the other calls,
//! and [`Controller::on_deadline`] at [`Controller::next_deadline`]. It performs outputs in their
//! order: sends before a close reach the peer, and decreases go out before increases.
//!
//! ```
//! use tidegate_model::{Policy, Time};
//! use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer};
//! use tidegate_proto::message::{StageInfo, ToStage, VERSION};
//!
//! let policy = Policy::parse("budget = \"1GB/s\"\n[[tenant]]\nname = \"kv\"")?;
//! let mut controller = Controller::new(Time::ZERO, Some((1, policy)));
//! let peer = Peer { uid: 0, pid: 7, user: "root".into() };
//! let info = StageInfo { tenant: "kv".into(), ..StageInfo::default() };
//! controller.on_connected(Time::ZERO, ConnectionId(1), peer, VERSION, info);
//! let Some(Output::Send { message: ToStage::Welcome { .. }, .. }) = controller.poll_output()
//! else { panic!("not welcome") };
//! # Ok::<(), tidegate_model::PolicyError>(())
//! ```

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::event::DISCONNECTED;
use tidegate_model::gate::Unit;
use tidegate_model::policy::{Fallback, Principal, Tenant};
use tidegate_model::{Event, Policy, Span, StageId, Time};

use crate::message::{FromStage, Report, StageInfo, ToStage, VERSION};
use admission::{Admission, Refusal};
use name_index::NameIndex;
use stage::Stage;
pub use window_stats::Waits;

mod admission;
mod distribute;
mod name_index;
mod rules;
mod solve;
mod stage;
pub mod status;
mod survey;
mod window_stats;

/// The time between two rounds while there is no policy that sets it.
const ROUND_WITHOUT_POLICY: Span = Span(100 * Span::MILLISECOND.0);

/// Joins and departures within this time are answered together: a hundred programs that start at
/// once cause one decision. Short against the 50 ms that people grant a change.
const SETTLE: Span = Span(10 * Span::MILLISECOND.0);

/// Rounds that a stage may miss before it counts as silent: one lost moment is forgiven.
const MISSED_MAX: u32 = 2;

/// Periods for which a silent stage keeps its share.
const SILENT_PERIODS: u64 = 2;

/// The parts of a period in which its waiting times are asked for, so that the status of a long
/// period is not as old as the period.
const DETAILS: u64 = 8;

/// The least time between two questions for histograms, and the least over which waiting is
/// reported. A histogram can be as large as everything else in a report; one round in ten bears it.
const DETAIL_MIN: Span = Span::SECOND;

/// The least time without a message after which a stage may count its controller as lost. A
/// controller on a busy machine can be late by some hundred milliseconds.
const SILENCE_MIN: Span = Span::SECOND;

/// A connection, as numbered by the caller. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The process at the other end of a connection and its user, as verified by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The number of the user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
    /// The user's name, or empty where the number has none.
    pub user: String,
}

impl Peer {
    /// The user's name, or its number where it has none.
    pub fn user_or_number(&self) -> String {
        if self.user.is_empty() { alloc::format!("{}", self.uid) } else { self.user.clone() }
    }

    /// Whether the policy lets it act for a tenant.
    pub fn may_act_for(&self, tenant: &Tenant) -> bool {
        tenant.admits(Principal::User { uid: self.uid, name: &self.user })
    }
}

/// An I/O action for the caller of [`Controller`] to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message.
    Send {
        /// On this connection.
        to: ConnectionId,
        /// This one.
        message: ToStage,
    },
    /// Close a connection, once its messages are on their way. The caller does not report it back.
    Close {
        /// This one.
        connection: ConnectionId,
    },
    /// Publish an event.
    Event(Event),
}

/// The policy in force.
#[derive(Debug)]
struct Active {
    revision: u64,
    policy: Policy,
    name_index: NameIndex,
}

/// The cycle that is under way, or the last one.
#[derive(Debug, Default)]
struct Round {
    number: u64,
    started: Time,
    is_open: bool,
    /// Stages whose report is still due.
    awaited: usize,
    /// Whether histograms are asked for.
    is_detailed: bool,
    /// When they were last asked for.
    detailed: Option<Time>,
}

/// Counters since the controller started.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    updates: u64,
    suppressed: u64,
    refused: u64,
    rules_refused: u64,
    cycles: u64,
    /// How long the last cycle took, from its first question to its last report.
    cycle: Span,
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub struct Controller {
    started: Time,
    active: Option<Active>,
    /// By index in the policy.
    tenants: Vec<window_stats::Tenant>,
    stages: BTreeMap<StageId, Stage>,
    connections: BTreeMap<ConnectionId, StageId>,
    round: Round,
    next_round_at: Time,
    /// When to decide without a round, because a stage joined or left.
    settle_at: Option<Time>,
    next_stage: u64,
    outputs: VecDeque<Output>,
    totals: Totals,
}

impl Controller {
    /// A controller without stages, at `now`, with the policy of an earlier run and its revision.
    pub fn new(now: Time, policy: Option<(u64, Policy)>) -> Self {
        let mut controller = Self {
            started: now,
            active: None,
            tenants: Vec::new(),
            stages: BTreeMap::new(),
            connections: BTreeMap::new(),
            round: Round::default(),
            next_round_at: now.after(ROUND_WITHOUT_POLICY),
            settle_at: None,
            next_stage: 1,
            outputs: VecDeque::new(),
            totals: Totals::default(),
        };
        if let Some((revision, policy)) = policy {
            controller.set_policy(revision, policy);
        }
        controller
    }

    /// A stage has said hello on a new connection. It is welcomed and sent all of its rules, or
    /// refused.
    pub fn on_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        version: u16,
        info: StageInfo,
    ) {
        let admitted = admission::same_version(version).and_then(|()| match &self.active {
            Some(active) => admission::admit(&active.policy, &active.name_index, &peer, &info),
            None => Ok(Admission::default()),
        });
        let admission = match admitted {
            Ok(admission) => admission,
            Err(refusal) => return self.refuse(connection, peer.pid, refusal),
        };
        let id = self.stage_id(now, &peer, &info);
        let mut stage = Stage::new(connection, peer, info, now);
        stage.info.stage = id;
        if let Some(active) = &self.active {
            stage.serve(&active.policy, admission.home, &admission.served, |_| None);
        }
        let (tenant, pid) = (stage.info.tenant.clone(), stage.peer.pid);
        self.connections.insert(connection, id);
        self.stages.insert(id, stage);
        self.send(connection, self.welcome(id));
        self.outputs.push_back(Output::Event(Event::StageJoined { stage: id, tenant, pid }));
        self.start(id);
        self.settle_soon(now);
        self.next_round_at = self.next_round_at.min(now.after(self.cycle()));
    }

    /// A stage has sent a message.
    pub fn on_message(&mut self, now: Time, connection: ConnectionId, message: FromStage) {
        let Some(id) = self.connections.get(&connection).copied() else { return };
        let Some(stage) = self.stages.get_mut(&id) else { return };
        match message {
            FromStage::Info(info) => {
                // Its number and its tenant were settled when it said hello.
                let (stage_id, tenant) = (id, stage.info.tenant.clone());
                stage.set_info(StageInfo { stage: stage_id, tenant, ..info });
            }
            FromStage::Applied { error, .. } => {
                if stage.on_applied(error.map(|error| error.reason)) {
                    self.note_refusal(id);
                }
            }
            FromStage::Report(report) => self.on_report(now, id, report),
            FromStage::Disconnect => {
                self.outputs.push_back(Output::Close { connection });
                self.remove(now, id, DISCONNECTED);
            }
        }
    }

    /// A connection is closed: by the peer, or by the caller because the peer does not read or
    /// sends malformed frames. `reason` is for people.
    pub fn on_closed(&mut self, now: Time, connection: ConnectionId, reason: &str) {
        if let Some(id) = self.connections.get(&connection).copied() {
            self.remove(now, id, reason);
        }
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub fn on_deadline(&mut self, now: Time) {
        if self.next_round_at <= now {
            if self.round.is_open {
                self.close_round(now);
            }
            self.drop_silent(now);
            self.open_round(now);
        }
        if self.settle_at.is_some_and(|at| at <= now) {
            self.distribute();
        }
    }

    /// When to call [`Self::on_deadline`] next; changes with every call.
    pub fn next_deadline(&self) -> Time {
        self.settle_at.map_or(self.next_round_at, |at| at.min(self.next_round_at))
    }

    /// Returns the next action to perform; none once all have been returned.
    pub fn poll_output(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        // Here every message passes in the order in which the stage answers.
        if let Some(Output::Send { to, message: ToStage::Apply { revision, rules } }) = &output
            && let Some(stage) = self.connections.get(to).and_then(|id| self.stages.get_mut(id))
        {
            stage.on_sent(*revision, rules);
        }
        output
    }

    /// Brings a policy into force. Every stage is sent all of its rules in one message, except
    /// stages that the policy does not admit; they are refused.
    pub fn apply(&mut self, now: Time, revision: u64, policy: Policy) {
        let before = distribute::bytes_in_force(&self.stages);
        let silence = (self.silence_max(), self.fallback());
        // The round under way ends without a decision: it would mix rates of both policies.
        self.round.is_open = false;
        let earlier = self.set_policy(revision, policy);
        let Some(active) = &self.active else { return };
        let mut refused = Vec::new();
        for (id, stage) in &mut self.stages {
            match admission::admit(&active.policy, &active.name_index, &stage.peer, &stage.info) {
                Ok(Admission { home, served }) => {
                    let index = |name: &str| earlier.as_ref()?.name_index.tenant(name);
                    stage.serve(&active.policy, home, &served, index);
                }
                Err(refusal) => refused.push((*id, refusal)),
            }
        }
        for (id, refusal) in refused {
            let Some(stage) = self.stages.get(&id) else { continue };
            let (connection, pid) = (stage.connection, stage.peer.pid);
            let reason = refusal.reason.clone();
            self.refuse(connection, pid, refusal);
            self.remove(now, id, &reason);
        }
        self.outputs.push_back(Output::Event(Event::PolicyApplied { revision }));
        if silence != (self.silence_max(), self.fallback()) {
            let stages = self.stages.iter();
            let ids: Vec<_> = stages.map(|(id, stage)| (*id, stage.connection)).collect();
            ids.into_iter().for_each(|(id, to)| self.send(to, self.welcome(id)));
        }
        self.restart(&before);
        self.next_round_at = self.next_round_at.min(now.after(self.cycle()));
    }

    /// The policy in force and its revision.
    pub fn policy(&self) -> Option<(u64, &Policy)> {
        self.active.as_ref().map(|active| (active.revision, &active.policy))
    }

    /// How many cycles have ended.
    pub fn cycles(&self) -> u64 {
        self.totals.cycles
    }

    /// When the cycle that ended last, or is under way, began.
    pub fn cycle_started(&self) -> Time {
        self.round.started
    }

    /// How long requests waited at tenants' own buckets, with the tenant's name and the unit.
    pub fn waits(&self) -> impl Iterator<Item = (&str, Unit, &Waits)> {
        let policy = self.active.iter().flat_map(|active| &active.policy.tenants);
        policy.zip(&self.tenants).flat_map(|(promise, tenant)| {
            let waits = rules::UNITS.into_iter().zip(&tenant.waits);
            waits.map(|(unit, waits)| (promise.name.as_str(), unit, waits))
        })
    }
}

/// Stages coming and going.
impl Controller {
    /// Makes a policy the one in force, keeps the counters of tenants that both have, and returns
    /// the one before.
    fn set_policy(&mut self, revision: u64, policy: Policy) -> Option<Active> {
        let name_index = NameIndex::new(&policy);
        let mut tenants = Vec::new();
        tenants.resize_with(policy.tenants.len(), window_stats::Tenant::default);
        let earlier = self.active.replace(Active { revision, policy, name_index });
        if let (Some(earlier), Some(active)) = (&earlier, &self.active) {
            for (tenant, before) in earlier.policy.tenants.iter().zip(&mut self.tenants) {
                if let Some(index) = active.name_index.tenant(&tenant.name) {
                    tenants[index] = core::mem::take(before);
                }
            }
        }
        self.tenants = tenants;
        earlier
    }

    /// The number of a stage that says hello: the one it had, unless another stage has it now.
    fn stage_id(&mut self, now: Time, peer: &Peer, info: &StageInfo) -> StageId {
        if info.stage != StageId::default() {
            let holder = self.stages.get(&info.stage).map(|stage| (&stage.peer, stage.connection));
            match holder {
                None => return info.stage,
                Some((holder, connection)) if (holder.uid, holder.pid) == (peer.uid, peer.pid) => {
                    self.outputs.push_back(Output::Close { connection });
                    self.remove(now, info.stage, "it connected anew");
                    return info.stage;
                }
                Some(_) => {}
            }
        }
        while self.stages.contains_key(&StageId(self.next_stage)) {
            self.next_stage += 1;
        }
        self.next_stage += 1;
        StageId(self.next_stage - 1)
    }

    fn refuse(&mut self, connection: ConnectionId, pid: u32, refusal: Refusal) {
        let Refusal { reason, retry } = refusal;
        self.totals.refused = self.totals.refused.saturating_add(1);
        let event = Event::StageRefused { pid, reason: reason.clone() };
        self.send(connection, ToStage::Refused { version: VERSION, reason, retry });
        self.outputs.push_back(Output::Close { connection });
        self.outputs.push_back(Output::Event(event));
    }

    /// Publishes why a stage did not take its rules.
    fn note_refusal(&mut self, id: StageId) {
        let (Some(active), Some(stage)) = (&self.active, self.stages.get(&id)) else { return };
        let Some(reason) = stage.error.clone() else { return };
        self.totals.rules_refused = self.totals.rules_refused.saturating_add(1);
        let event = Event::RulesRefused { stage: id, revision: active.revision, reason };
        self.outputs.push_back(Output::Event(event));
    }

    fn remove(&mut self, now: Time, id: StageId, reason: &str) {
        let Some(stage) = self.stages.remove(&id) else { return };
        self.connections.remove(&stage.connection);
        let (tenant, pid) = (stage.info.tenant.clone(), stage.peer.pid);
        let event = Event::StageLeft { stage: id, tenant, pid, reason: reason.into() };
        self.outputs.push_back(Output::Event(event));
        self.settle_soon(now);
        if stage.owes {
            self.await_less(now);
        }
    }

    fn settle_soon(&mut self, now: Time) {
        if self.active.is_some() {
            self.settle_at.get_or_insert(now.after(SETTLE));
        }
    }

    fn welcome(&self, stage: StageId) -> ToStage {
        let (silence_max, fallback) = (self.silence_max(), self.fallback());
        ToStage::Welcome { version: VERSION, stage, silence_max, fallback }
    }

    fn send(&mut self, to: ConnectionId, message: ToStage) {
        self.outputs.push_back(Output::Send { to, message });
    }
}

/// Rounds.
impl Controller {
    fn open_round(&mut self, now: Time) {
        // A caller that was late does not make up for the rounds that it missed.
        let next = self.next_round_at.after(self.cycle());
        self.next_round_at = if next > now { next } else { now.after(self.cycle()) };
        // Rounds are late by a moment now and then, which must not cost a whole one.
        let pause = Span(self.detail_pause().0.saturating_sub(self.redistribute().0 / 2));
        let detail = self.round.detailed.is_none_or(|at| now.since(at) >= pause);
        if detail {
            self.round.detailed = Some(now);
        }
        self.round.is_detailed = detail;
        let number = self.round.number + 1;
        let mut awaited = 0;
        for stage in self.stages.values_mut() {
            // Silent stages are asked as well, but the round does not wait for them.
            stage.owes = stage.silent_since.is_none();
            awaited += usize::from(stage.owes);
            let message = ToStage::Collect { round: number, detail };
            self.outputs.push_back(Output::Send { to: stage.connection, message });
        }
        self.round.number = number;
        self.round.started = now;
        self.round.is_open = awaited > 0;
        self.round.awaited = awaited;
        if awaited == 0 {
            self.sample(now);
        }
    }

    fn on_report(&mut self, now: Time, id: StageId, report: Report) {
        let Some(stage) = self.stages.get_mut(&id) else { return };
        let is_due = stage.owes && report.round == self.round.number;
        stage.owes &= !is_due;
        stage.missed = 0;
        stage.silent_since = None;
        let policy = self.active.as_ref().map(|active| (&active.policy, &active.name_index));
        // A detailed report that comes too late is left to the next one, which has it all.
        let is_detailed = self.round.is_detailed && report.round == self.round.number;
        stage.on_report(policy, &mut self.tenants, report, is_detailed);
        if is_due {
            self.await_less(now);
        }
    }

    /// One stage less to wait for.
    fn await_less(&mut self, now: Time) {
        self.round.awaited = self.round.awaited.saturating_sub(1);
        if self.round.awaited == 0 && self.round.is_open {
            self.close_round(now);
        }
    }

    /// Ends the cycle with the reports that have come.
    fn close_round(&mut self, now: Time) {
        self.round.is_open = false;
        for stage in self.stages.values_mut().filter(|stage| stage.owes) {
            stage.owes = false;
            stage.missed = stage.missed.saturating_add(1);
            if stage.missed >= MISSED_MAX && stage.silent_since.is_none() {
                stage.silent_since = Some(now);
                stage.shares.iter_mut().for_each(|share| share.measured = [0; 2]);
            }
        }
        self.totals.cycles = self.totals.cycles.saturating_add(1);
        self.totals.cycle = now.since(self.round.started);
        self.sample(now);
        self.distribute();
    }

    fn sample(&mut self, now: Time) {
        let period = self.period();
        self.tenants.iter_mut().for_each(|tenant| tenant.sample(now, period));
        if self.round.is_detailed {
            let (at, pause) = (self.round.started, self.detail_pause());
            let window = period.max(DETAIL_MIN);
            self.tenants
                .iter_mut()
                .for_each(|tenant| tenant.close_wait_interval(at, pause, window));
        }
    }

    /// Frees the shares of stages that have been silent for too long.
    fn drop_silent(&mut self, now: Time) {
        let grace = Span(self.period().0.saturating_mul(SILENT_PERIODS));
        let is_over = |stage: &Stage| stage.silent_since.is_some_and(|at| now.since(at) >= grace);
        let gone = self.stages.iter().filter(|(_, stage)| is_over(stage));
        let gone: Vec<_> = gone.map(|(id, stage)| (*id, stage.connection)).collect();
        for (id, connection) in gone {
            self.outputs.push_back(Output::Close { connection });
            self.remove(now, id, "it did not answer");
        }
    }

    /// The time between two rounds. Without stages the period suffices: earlier traffic still has
    /// to leave the window of the last period.
    fn cycle(&self) -> Span {
        if self.stages.is_empty() { self.period() } else { self.redistribute() }
    }

    fn redistribute(&self) -> Span {
        self.active.as_ref().map_or(ROUND_WITHOUT_POLICY, |active| active.policy.redistribute)
    }

    fn period(&self) -> Span {
        self.active.as_ref().map_or(Span::SECOND, |active| active.policy.period)
    }

    /// The time between two questions for histograms.
    fn detail_pause(&self) -> Span {
        Span(self.period().0 / DETAILS).max(DETAIL_MIN)
    }

    fn silence_max(&self) -> Span {
        Span(self.period().0.saturating_mul(SILENT_PERIODS)).max(SILENCE_MIN)
    }

    fn fallback(&self) -> Fallback {
        self.active.as_ref().map_or(Fallback::Keep, |active| active.policy.fallback)
    }
}
