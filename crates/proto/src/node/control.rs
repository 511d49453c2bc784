//! Decisions of a node for all its shards together: the plan and the counts in force, the periods,
//! its capacity, and its reports to the controller.
//!
//! None of this is done for each request, so a live node has this behind a lock that is
//! rarely taken. A thread that holds it may lock shards, one at a time. No thread that holds a
//! shard takes that lock.

use alloc::collections::VecDeque;

use tidegate_algo::capacity::estimate::{Capacity, Work};
use tidegate_algo::scheduling::device::Done;
use tidegate_algo::scheduling::scheduler::{Slot, TenantParameters};
use tidegate_model::{Discipline, Event, Iops, NodeId, Policy, Span, Time};

use super::grants::PeriodGrants;
use super::shards::Shards;
use super::threads::Threading;
use super::{Config, INTERVAL_MIN, Output};
use crate::cluster::message::{FromNode, NodeInfo, RoundId, ToNode};

/// The part of a node that is not about single requests. It is given the shards whenever it may
/// have to change something there; always the same ones.
#[derive(Debug)]
pub(super) struct NodeControl {
    pub(super) info: NodeInfo,
    /// The number that the controller gave, while it is connected.
    pub(super) number: Option<NodeId>,
    /// The discipline while the plan names none.
    discipline: Discipline,
    pub(super) grants: PeriodGrants,
    pub(super) capacity: Capacity,
    /// Whether the capacity is to be found within a bound of latency.
    pub(super) is_measured: bool,
    /// Whether the controller has it from this connection that the capacity is not known.
    is_reported_unknown: bool,
    /// The time of the last estimate of the capacity, and the device's work by then.
    observed: Time,
    done: Done,
    /// The device's count when the controller asked last, if the device was idle then.
    seen: Option<u64>,
    /// The same when a report said that the node rests.
    rested: Option<u64>,
    /// When to look whether a request has come, while the controller does not ask.
    next_poll: Time,
    /// The device's count when counts were reported last, if the device was idle then.
    pub(super) counted: Option<u64>,
    outputs: VecDeque<Output>,
}

impl NodeControl {
    /// The control of a node that serves all tenants alike, and waits for a controller.
    pub(super) fn new<J, T: Threading>(
        now: Time,
        info: NodeInfo,
        config: Config,
        shards: &Shards<J, T>,
    ) -> Self {
        // Requests from before the plan are to be served after it, too, and not to starve.
        let parameters = TenantParameters::of_weight(Policy::WEIGHT);
        shards
            .change_all(|scheduler| scheduler.set_parameters(now, Slot::UNATTRIBUTED, parameters));
        Self {
            info,
            number: None,
            discipline: config.discipline,
            grants: PeriodGrants::default(),
            capacity: Capacity::new(config.capacity),
            is_measured: config.latency.is_some(),
            is_reported_unknown: false,
            observed: now,
            done: Done::default(),
            seen: None,
            rested: None,
            next_poll: Time::MAX,
            counted: None,
            outputs: VecDeque::new(),
        }
    }

    /// The node's identity, for its next hello.
    pub(super) fn info(&self) -> NodeInfo {
        NodeInfo { revision: self.revision(), ..self.info.clone() }
    }

    /// The revision of the plan that it has, or zero.
    pub(super) fn revision(&self) -> u64 {
        self.grants.revision()
    }

    /// How many plans it has taken. When that changes, names may have other slots.
    pub(super) fn plans(&self) -> u64 {
        self.grants.plans
    }

    /// The slot of the tenant with this name; the default tenant's if the plan does not have it. It
    /// stays the same as long as the name stays in the plan.
    pub(super) fn slot(&self, tenant: &str) -> Slot {
        self.grants.slot(tenant)
    }

    /// When [`Self::advance`] is to be called: at the end of the period, or when it is time to look
    /// whether a request has come; [`Time::MAX`] for never.
    pub(super) fn ends(&self) -> Time {
        self.grants.ends().min(self.next_poll)
    }

    /// The device's capacity, in units of cost per second, if it was declared or ever seen.
    pub(super) fn capacity(&self) -> Option<Iops> {
        self.capacity.known()
    }

    /// There is a connection to a controller, perhaps another one than before. The caller has sent
    /// hello with [`Self::info`].
    pub(super) fn on_connected<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        self.advance(now, shards);
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
        (self.rested, self.next_poll, self.counted) = (None, Time::MAX, None);
        self.grants.on_connected();
        self.is_reported_unknown = self.is_measured && self.capacity().is_none();
        if self.is_reported_unknown {
            self.outputs.push_back(Output::Send(FromNode::CapacityKnown(false)));
        }
    }

    /// The controller has sent a message.
    pub(super) fn on_message<J, T: Threading>(
        &mut self,
        now: Time,
        message: ToNode,
        shards: &Shards<J, T>,
    ) {
        self.advance(now, shards);
        match message {
            ToNode::Welcome { node, .. } => self.number = Some(node),
            // The connection ends, and the caller reports it.
            ToNode::Refused { .. } => {}
            ToNode::Plan(plan) => {
                let (revision, discipline) = (plan.revision, plan.discipline);
                let class_weights = plan.class_weights;
                if self.grants.on_plan(now, plan, shards) {
                    (self.rested, self.next_poll, self.counted) = (None, Time::MAX, None);
                    self.outputs.push_back(Output::Event(Event::PolicyApplied { revision }));
                }
                let discipline = discipline.unwrap_or(self.discipline);
                shards.change_all(|scheduler| {
                    scheduler.set_discipline(now, discipline);
                    scheduler.set_class_weights(now, class_weights);
                });
            }
            ToNode::Collect { round_id, into, complete } => {
                self.grants.align(now, round_id.period, into, shards);
                if let Some(answer) = self.report(now, (round_id, complete), shards) {
                    self.outputs.push_back(Output::Send(answer));
                }
            }
            ToNode::Grant(grant) => {
                let granted = self.grants.on_grant(now, &grant, shards);
                self.outputs.push_back(Output::Send(granted));
            }
            ToNode::Renew { base, grant } => {
                let answer = self.grants.on_renewal(now, (base, &grant), shards);
                self.outputs.push_back(Output::Send(answer));
            }
            ToNode::Count => {
                let counts = FromNode::Counts(self.counts(now, shards));
                self.outputs.push_back(Output::Send(counts));
            }
        }
        shards.note(now);
    }

    /// There is no connection any more. Everything that was granted stays in force as it would.
    pub(super) fn on_disconnected<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        self.advance(now, shards);
        (self.number, self.next_poll) = (None, Time::MAX);
        self.is_reported_unknown = false;
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
    }

    /// The node ends, and the caller will dispatch nothing more.
    pub(super) fn on_ending(&mut self) {
        self.outputs.push_back(Output::Send(FromNode::Disconnect));
    }

    /// The next action for the caller.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Begins the periods that have begun, and looks whether a request has come if it is time to.
    #[inline]
    pub(super) fn advance<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        if now >= self.grants.ends() {
            self.begin_period(now, shards);
        }
        if now >= self.next_poll {
            self.poll_arrivals(now, shards);
        }
    }

    /// Says that the node does not rest any more if it does not, again each time until it is asked.
    fn poll_arrivals<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        self.next_poll = self.grants.next_round(now);
        if self.is_resting(now, shards) {
            self.observe(now, shards);
        } else {
            self.outputs.push_back(Output::Send(FromNode::Awake));
        }
    }

    /// Whether no request has come since a report said that the node rests.
    fn is_resting<J, T: Threading>(&self, now: Time, shards: &Shards<J, T>) -> bool {
        self.rested.is_some_and(|done| unchanged(now, shards) == Some(done))
    }

    fn begin_period<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        self.grants.advance(now, shards);
        // Without questions from a controller, a period is the interval.
        if now.since(self.observed) >= self.grants.period() {
            self.observe(now, shards);
        }
    }

    /// Estimates anew the device's capacity and the tenants' demand.
    fn observe<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        shards.note(now);
        let interval = now.since(self.observed);
        let done = shards.device().done(now);
        let before = core::mem::replace(&mut self.done, done);
        self.capacity.observe(Work {
            interval,
            busy: done.busy.saturating_sub(before.busy),
            completed: done.served - before.served,
            completed_busy: done.served_busy - before.served_busy,
        });
        if self.is_reported_unknown && self.capacity().is_some() {
            self.is_reported_unknown = false;
            self.outputs.push_back(Output::Send(FromNode::CapacityKnown(true)));
        }
        // Where nothing came, no tenant's estimate would change.
        if !self.is_resting(now, shards) {
            self.grants.observe(now, interval, shards);
        }
        self.observed = now;
    }

    /// The answer to the question of `round_id`, if there is one.
    fn report<J, T: Threading>(
        &mut self,
        now: Time,
        (round_id, is_complete): (RoundId, bool),
        shards: &Shards<J, T>,
    ) -> Option<FromNode> {
        // A question that came twice, or at the end of a period, is no interval of its own.
        let interval_min = Span(self.grants.interval().0 / 4).max(INTERVAL_MIN);
        if now.since(self.observed) >= interval_min {
            self.observe(now, shards);
        }
        let left = self.grants.ends().since(now).min(self.grants.period());
        let capacity_left = self.capacity.within(left);
        if self.is_resting(now, shards)
            && let Some(rest) = self.grants.rest(round_id, capacity_left)
        {
            self.next_poll = self.grants.next_round(now);
            return Some(rest);
        }
        // Before the counters are read, so that the next poll sees requests that come meanwhile.
        // Unattributed requests are not reported, but while they come the node would never rest.
        let done = unchanged(now, shards);
        let may_rest = done.is_some() && core::mem::replace(&mut self.seen, done) == done;
        let question = (round_id, is_complete, may_rest);
        let answer = self.grants.report(now, question, capacity_left, shards);
        let is_resting = matches!(answer, Some(FromNode::Rest { .. }));
        self.rested = done.filter(|_| is_resting);
        self.next_poll = if is_resting { self.grants.next_round(now) } else { Time::MAX };
        answer
    }
}

/// The device's count, if no request waits or is at the device: while it stays the same, nothing
/// has changed for any tenant.
pub(super) fn unchanged<J, T: Threading>(now: Time, shards: &Shards<J, T>) -> Option<u64> {
    // In the order in which requests pass by: one that is missed in the queue is found later.
    let is_empty = shards.waiting() == 0 && shards.device().in_flight() == 0;
    is_empty.then(|| shards.device().done(now).served)
}
