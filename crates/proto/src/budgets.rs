//! The controller's part for stages: divides the budgets of a policy, rates out, without I/O.
//!
//! A stage connects, describes itself, and is sent all of its rules. From then on the controller
//! works in cycles: it *collects* the counters of every stage, *solves* for the rate that each may
//! use, and *pushes* the rates that changed (PAIO §8.2, Algorithm 2). A cycle ends with the last
//! report; one that does not come in time does not delay the others beyond the next cycle.
//!
//! - **Silent stages.** A stage that misses two rounds keeps its rates and its share for two
//!   periods, because it may go on enforcing them. Then it is disconnected and its share is free;
//!   if it lives, it connects anew and is sent all of its rules again.
//! - **Stages of other hosts.** Their links can be cut while they go on enforcing their rates. So
//!   their rates last for a lease, renewed in every round, from when they sent their last report
//!   that arrived; we count it from when that report arrived, which is later. A stage without a
//!   connection keeps its share until its lease is certainly over, and its safe share for
//!   [`FORGOTTEN`] more, because it may still be there. Only a disconnect message frees all
//!   at once. That holds across restarts of the controller: see `earlier`.
//! - **Killed supervisors.** The rates in a stage's segment last for two periods, at least a
//!   second, unless its supervisor renews them; then the safe rates hold. So where the caller can
//!   tell whether programs are left (`Peer::is_watched`), a stage of this machine whose connection
//!   ends without a disconnect message keeps its share for so long, and then its safe share until
//!   no program is left.
//! - **Departures.** A disconnect message frees the share at once, as does a closed connection of
//!   any other stage of this machine; a stage without processes is free at the next cycle.
//! - **Untrusted reports.** None makes the controller panic, overflow or keep more than is asked.
//!
//! Actions are performed in their order: sends before a close reach the peer, and decreases go out
//! before increases.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tidegate_model::event::DISCONNECTED;
use tidegate_model::gate::Unit;
use tidegate_model::policy::Fallback;
use tidegate_model::{Event, Iops, Policy, Rate, Span, StageId, Time};

use crate::message::{FromStage, Held, StageInfo, StageReport, ToStage, VERSION};
use crate::outstanding::Outstanding;
use crate::session::{Action, Outbox, Peer, PeerId, REPLACED, Refusal, ToPeer};
use admission::Admission;
use capacity::Measured;
use debts::Debts;
use earlier::Earlier;
use ended::EndedStages;
use membership::left;
use name_index::NameIndex;
use stage::Stage;
use window_stats::TrafficCounters;
pub use window_stats::Waits;

mod admission;
mod background;
mod bucket;
mod capacity;
mod debt;
mod debts;
mod delays;
mod distribute;
mod earlier;
mod ended;
mod headroom;
mod implied;
mod latency;
mod membership;
mod mix;
mod name_index;
mod recent_waits;
mod rules;
mod safe_rates;
mod solve;
mod stage;
mod start_queue;
mod survey;
mod window_stats;

/// The time between two rounds while there is no policy that sets it.
const ROUND_WITHOUT_POLICY: Span = Span(100 * Span::MILLISECOND.0);

/// Joins and departures within this time are answered together: a hundred programs that start at
/// once cause one decision. Short against the 50 ms that people grant a change.
const SETTLE: Span = Span(10 * Span::MILLISECOND.0);

/// While shares move, the next round begins after one part in this many of an interval: stages that
/// were given more show whether they use it, and the rest goes on to others. A quarter is a few
/// round trips between hosts at the usual 100 ms.
const HURRY_PART: u64 = 4;

/// Rounds that follow early after a share has moved: an interval of them, so that a stage that
/// stopped meanwhile is noticed when it has been quiet for so long.
const HURRIED: u32 = 4;

/// Rounds that a stage may miss before it counts as silent: one lost moment is forgiven.
const MISSED_MAX: u32 = 2;

/// How much longer than the stage we count a lease: clocks differ, and a supervisor wakes late.
const LEASE_MARGIN: Span = Span(200 * Span::MILLISECOND.0);

/// How long the safe share of a stage of another host is kept after its lease. A host that is gone
/// must not use up a share for ever; one that is cut off for longer has long lost its storage, too,
/// in most cases. Chosen by hand.
const FORGOTTEN: Span = Span(600 * Span::SECOND.0);

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

/// The policy in force.
#[derive(Debug)]
struct Active {
    revision: u64,
    /// Where the capacity is measured, its budget is the estimate of the last cycle.
    policy: Policy,
    name_index: NameIndex,
    measured: Option<Measured>,
}

impl Active {
    /// Makes the estimate of a measured capacity the budget.
    fn follow(&mut self) {
        if let Some(measured) = &self.measured {
            self.policy.budget = measured.budget();
        }
    }
}

/// The cycle that is under way, or the last one.
#[derive(Debug, Default)]
struct CollectRound {
    number: u64,
    started: Time,
    is_open: bool,
    /// Stages whose report is still due.
    awaited: usize,
    /// Whether histograms are asked for.
    is_detailed: bool,
    /// When they were last asked for.
    detailed: Option<Time>,
    /// How many rounds are to follow early.
    hurried: u32,
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
    /// Requests that matched no rule, at stages that are gone.
    unmatched: TrafficCounters,
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub(crate) struct Budgets {
    started: Time,
    active: Option<Active>,
    /// By index in the policy.
    tenants: Vec<window_stats::TenantStats>,
    stages: BTreeMap<StageId, Stage>,
    ended: EndedStages,
    debts: Debts,
    /// Rates that stages of an earlier run may still enforce.
    earlier: Earlier,
    /// The state that the next run is to know, as last sent to the caller.
    outstanding: Outstanding,
    round: CollectRound,
    next_round_at: Time,
    /// When to decide without a round, because a stage joined or left.
    settle_at: Option<Time>,
    next_stage: u64,
    outbox: Outbox,
    totals: Totals,
}

impl Budgets {
    /// A controller without stages, at `now`, with the policy of an earlier run and its revision,
    /// and what stages of other hosts may have of that run.
    pub(crate) fn new(now: Time, policy: Option<(u64, Policy)>, outstanding: Outstanding) -> Self {
        let mut controller = Self {
            started: now,
            active: None,
            tenants: Vec::new(),
            stages: BTreeMap::new(),
            ended: EndedStages::default(),
            debts: Debts::new(now),
            earlier: Earlier::new(now, &outstanding),
            outstanding,
            round: CollectRound::default(),
            next_round_at: now.after(ROUND_WITHOUT_POLICY),
            settle_at: None,
            next_stage: 1,
            outbox: Outbox::default(),
            totals: Totals::default(),
        };
        if let Some((revision, policy)) = policy {
            controller.set_policy(revision, policy);
        }
        controller
    }

    /// A stage has said hello on a new connection. It is welcomed and sent all of its rules, or
    /// refused.
    pub(crate) fn on_hello(
        &mut self,
        now: Time,
        peer: Peer,
        mut info: StageInfo,
    ) -> Result<PeerId, Refusal> {
        let buckets = core::mem::take(&mut info.held.buckets);
        let held = Held { buckets, ..info.held.clone() };
        let admission = match &self.active {
            Some(active) => admission::admit(&active.policy, &active.name_index, &peer, &info)?,
            None => Admission::default(),
        };
        let id = self.stage_id(&peer, &info);
        let mut stage = Stage::new(peer, info, now);
        stage.info.stage = id;
        if let Some(active) = &self.active {
            stage.serve(&active.policy, admission.home, &admission.served, |_| None);
        }
        // No moment without the rates that it still enforces: nothing is divided in between.
        let earlier = self.stages.remove(&id);
        if let Some(earlier) = &earlier {
            stage.inherit_debts(earlier);
            self.totals.unmatched.add(earlier.unmatched.total);
            if stage.peer.is_remote() {
                stage.inherit(earlier);
            }
            let left = (!earlier.is_lost).then(|| left(earlier, REPLACED));
            left.into_iter().for_each(|event| self.outbox.publish(event));
        } else {
            self.take_up(now, &mut stage, &held);
        }
        let (tenant, pid) = (stage.info.tenant.clone(), stage.peer.pid);
        self.stages.insert(id, stage);
        self.send(id, self.welcome(id));
        self.lease(id);
        self.outbox.publish(Event::StageJoined { stage: id, tenant, pid });
        self.start(now, id);
        self.settle_soon(now);
        if earlier.is_some_and(|earlier| earlier.owes) {
            self.await_less(now);
        }
        self.next_round_at = self.next_round_at.min(now.after(self.cycle()));
        Ok(PeerId::Stage(id))
    }

    /// A stage has sent a message.
    pub(crate) fn on_message(&mut self, now: Time, id: StageId, message: FromStage) {
        let Some(stage) = self.stages.get_mut(&id) else { return };
        match message {
            FromStage::Unused => {}
            FromStage::Applied { error, .. } => {
                let was_awaited = stage.is_awaited();
                let is_refusal = stage.on_applied(error.map(|error| error.reason));
                let has_settled = was_awaited && !stage.is_awaited();
                if is_refusal {
                    self.note_refusal(id);
                }
                if has_settled {
                    self.on_settled(now);
                }
            }
            FromStage::Report(report) => self.on_report(now, id, report),
            FromStage::Storage(report) => stage.storage.reported = Some(report),
            FromStage::Disconnect => {
                self.outbox.close(PeerId::Stage(id));
                self.remove(now, id, DISCONNECTED);
            }
        }
    }

    /// A stage of another host has given up rates, which are free now. Behind the last such stage
    /// they are divided at once: the stages that get them wait already.
    fn on_settled(&mut self, now: Time) {
        if self.stages.values().any(|stage| !stage.is_lost && stage.is_awaited()) {
            self.settle_soon(now);
        } else {
            self.distribute(now);
        }
    }

    /// A stage's connection is closed. `reason` is for people.
    pub(crate) fn on_closed(&mut self, now: Time, id: StageId, reason: &str) {
        let silence_max = self.silence_max();
        match self.stages.get_mut(&id) {
            Some(stage) if stage.peer.may_go_on() => {
                if !stage.peer.is_remote() {
                    // Its supervisor has renewed the rates until a moment ago.
                    stage.leased_until = now.after(leased(silence_max));
                }
                self.lose(now, id, reason);
            }
            _ => self.remove(now, id, reason),
        }
    }

    /// Stages of this machine without a connection whose programs may go on: their numbers, users
    /// and segments.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = (StageId, u32, &str)> {
        let is_orphan = |stage: &&Stage| stage.is_lost && stage.peer.is_watched;
        let lost = self.stages.values().filter(is_orphan);
        lost.map(|stage| (stage.info.stage, stage.peer.uid, &*stage.info.held.segment))
    }

    /// No program of an orphan is left.
    pub(crate) fn on_unused(&mut self, now: Time, id: StageId) {
        if self.orphans().any(|(orphan, ..)| orphan == id) {
            self.remove(now, id, "no process is left");
        }
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub(crate) fn on_deadline(&mut self, now: Time) {
        if self.earlier.until().is_some_and(|until| until <= now) {
            self.end_leases(now);
        }
        if self.next_round_at <= now {
            if self.round.is_open {
                self.close_round(now);
            }
            self.drop_silent(now);
            self.open_round(now);
        }
        if self.settle_at.is_some_and(|at| at <= now) {
            self.distribute(now);
        }
    }

    /// When to call [`Self::on_deadline`] next; changes with every call.
    pub(crate) fn next_deadline(&self) -> Time {
        let others = [self.settle_at, self.earlier.until()].into_iter().flatten();
        others.fold(self.next_round_at, Time::min)
    }

    /// Returns the next action to perform; none once all have been returned.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.outbox.pop()
    }

    /// Brings a policy into force. Every stage is sent all of its rules in one message, except
    /// stages that the policy does not admit; they are refused.
    pub(crate) fn apply(&mut self, now: Time, revision: u64, policy: Policy) {
        let before = distribute::bytes_in_force(&self.stages);
        let silence = (self.silence_max(), self.fallback());
        // The round under way ends without a decision: it would mix rates of both policies.
        self.round.is_open = false;
        self.settle_debts(now);
        let earlier = self.set_policy(revision, policy);
        let Some(active) = &self.active else { return };
        let mut refused = Vec::new();
        for (id, stage) in &mut self.stages {
            match admission::admit_again(&active.policy, &active.name_index, stage) {
                Ok(Admission { home, served }) => {
                    let index = |name: &str| earlier.as_ref()?.name_index.tenant(name);
                    let serve = |it: &mut Stage| it.serve(&active.policy, home, &served, index);
                    start_queue::go_on(now, &active.policy, stage, serve);
                }
                Err(refusal) => refused.push((*id, refusal)),
            }
        }
        for (id, refusal) in refused {
            let Some(stage) = self.stages.get(&id) else { continue };
            let pid = stage.peer.pid;
            let Refusal { reason, retry } = refusal;
            let refused = ToStage::Refused { version: VERSION, reason: reason.clone(), retry };
            self.send(id, refused);
            self.outbox.close(PeerId::Stage(id));
            let event = self.note_refused(pid, &reason);
            self.outbox.publish(event);
            self.remove(now, id, &reason);
        }
        self.outbox.publish(Event::PolicyApplied { revision });
        if silence != (self.silence_max(), self.fallback()) {
            let ids: Vec<_> = self.stages.keys().copied().collect();
            ids.into_iter().for_each(|id| self.send(id, self.welcome(id)));
        }
        self.restart(now, &before);
        self.next_round_at = self.next_round_at.min(now.after(self.cycle()));
    }

    /// How many cycles have ended.
    pub(crate) fn cycles(&self) -> u64 {
        self.totals.cycles
    }

    /// When the cycle that ended last, or is under way, began.
    pub(crate) fn cycle_started(&self) -> Time {
        self.round.started
    }

    /// How long requests waited at tenants' own buckets, with the tenant's name and the unit.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (&str, Unit, &Waits)> {
        let policy = self.active.iter().flat_map(|active| &active.policy.tenants);
        policy.zip(&self.tenants).flat_map(|(promise, tenant)| {
            let waits = rules::UNITS.into_iter().zip(&tenant.waits);
            waits.map(|(unit, waits)| (promise.name.as_str(), unit, waits))
        })
    }
}

/// How long rates may hold that last for so long by the stage's clock.
fn leased(length: Span) -> Span {
    Span(length.0.saturating_add(LEASE_MARGIN.0))
}

/// Rounds.
impl Budgets {
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
        let ids: Vec<StageId> = self.stages.keys().copied().collect();
        ids.into_iter().for_each(|id| self.lease(id));
        for (id, stage) in self.stages.iter_mut().filter(|(_, stage)| !stage.is_lost) {
            // Silent stages are asked as well, but the round does not wait for them.
            stage.owes = stage.silent_since.is_none();
            awaited += usize::from(stage.owes);
            let message = ToStage::Collect { round: number, detail };
            self.outbox.send(PeerId::Stage(*id), ToPeer::Stage(message));
        }
        self.round.number = number;
        self.round.started = now;
        self.round.is_open = awaited > 0;
        self.round.awaited = awaited;
        if awaited == 0 {
            self.settle_debts(now);
            self.sample(now);
        }
    }

    fn on_report(&mut self, now: Time, id: StageId, report: StageReport) {
        let silence_max = self.silence_max();
        let Some(stage) = self.stages.get_mut(&id) else { return };
        let is_due = stage.owes && report.round == self.round.number;
        stage.owes &= !is_due;
        stage.missed = 0;
        stage.silent_since = None;
        stage.received = (now, report.round);
        stage.extend_lease(silence_max);
        let policy = self.active.as_ref().map(|active| (&active.policy, &active.name_index));
        // A detailed report that comes too late is left to the next one, which has it all.
        let is_detailed = self.round.is_detailed && report.round == self.round.number;
        stage.on_report(policy, &mut self.tenants, report, is_detailed);
        stage.shares.iter_mut().for_each(|share| share.recent.add(now));
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
        self.search();
        self.settle_debts(now);
        self.round.hurried = self.round.hurried.saturating_sub(1);
        self.distribute(now);
    }

    /// Goes on with the search for the capacity, where it is measured.
    fn search(&mut self) {
        let Some(active) = &mut self.active else { return };
        let Some(measured) = &mut active.measured else { return };
        let views = self.stages.values_mut().map(|stage| stage.storage_view(&active.policy));
        let event = measured.observe(views);
        active.follow();
        // In the estimate each reservation is in its own unit, and it needs the other one, too.
        let [bytes, operations] = distribute::reserved_budgets(&active.policy, &self.stages);
        let budget = &mut active.policy.budget;
        budget.bandwidth = budget.bandwidth.map(|rate| rate.max(Rate(bytes)));
        budget.operations = budget.operations.map(|rate| rate.max(Iops(operations)));
        event.into_iter().for_each(|event| self.outbox.publish(event));
    }

    fn sample(&mut self, now: Time) {
        let period = self.period();
        self.tenants.iter_mut().for_each(|tenant| tenant.sample(now, period));
        if self.round.is_detailed {
            let (at, pause) = (self.round.started, self.detail_pause());
            let window = period.max(DETAIL_MIN);
            let tenants = self.tenants.iter_mut();
            tenants.for_each(|tenant| tenant.close_wait_interval(at, pause, window));
        }
    }

    /// Frees the shares of stages that have been silent for too long, except for the safe shares
    /// that programs may go on with.
    fn drop_silent(&mut self, now: Time) {
        let grace = Span(self.period().0.saturating_mul(SILENT_PERIODS));
        let is_leased = self.fallback() != Fallback::Unlimited;
        let is_over = |stage: &Stage| match stage.silent_since {
            Some(_) if stage.peer.is_remote() => stage.leased_until <= now,
            Some(_) if stage.is_lost => is_leased && stage.leased_until <= now,
            Some(at) if stage.peer.is_watched => {
                stage.leased_until <= now && now.since(at) >= grace
            }
            Some(at) => now.since(at) >= grace,
            None => false,
        };
        let gone = self.stages.iter().filter(|(_, stage)| is_over(stage));
        let gone: Vec<_> = gone.map(|(id, stage)| (*id, stage.is_lost)).collect();
        for (id, is_lost) in gone {
            if !is_lost {
                self.outbox.close(PeerId::Stage(id));
            }
            let Some(stage) = self.stages.get_mut(&id) else { continue };
            let is_remote = stage.peer.is_remote();
            let is_forgotten = is_remote && stage.leased_until.after(FORGOTTEN) <= now;
            if !stage.peer.may_go_on() || is_forgotten {
                self.remove(now, id, "it did not answer");
                continue;
            }
            if is_remote || is_leased {
                stage.resign();
            }
            match is_lost {
                true => self.settle_soon(now),
                false => self.lose(now, id, "it did not answer"),
            }
        }
    }

    /// Lets the next round begin early, if shares have moved.
    fn hurry(&mut self, now: Time) {
        if self.round.hurried > 0 && !self.round.is_open {
            let soon = now.after(Span(self.redistribute().0 / HURRY_PART));
            self.next_round_at = self.next_round_at.min(soon);
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
