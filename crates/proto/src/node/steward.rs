//! Decisions of a node for all its lanes together: the plan and the counts in force, the periods,
//! its capacity, and its reports to the controller.
//!
//! None of this is done for each request, so a live node has the steward behind a lock that is
//! rarely taken. A thread that holds it may lock lanes, one at a time. No thread that holds a lane
//! takes that lock.

use alloc::collections::VecDeque;

use tidegate_algo::device::Done;
use tidegate_algo::estimate::{Capacity, Work};
use tidegate_algo::scheduler::{Slot, Terms};
use tidegate_model::{Discipline, Event, Iops, NodeId, Policy, Span, Time};

use super::ledger::Ledger;
use super::site::Site;
use super::{Config, INTERVAL_MIN, Output};
use crate::cluster::message::{FromNode, NodeInfo, ToNode, Turn};

/// The part of a node that is not about single requests. It is given the [`Site`] whenever it may
/// have to change something there; always the same one.
#[derive(Debug)]
pub struct Steward {
    pub(super) info: NodeInfo,
    /// The number that the controller gave, while it is connected.
    pub(super) number: Option<NodeId>,
    /// The discipline while the plan names none.
    discipline: Discipline,
    pub(super) ledger: Ledger,
    pub(super) capacity: Capacity,
    /// The time of the last estimate of the capacity, and the device's work by then.
    observed: Time,
    done: Done,
    /// The device's count when the controller asked last, if the device was idle then.
    seen: Option<u64>,
    /// The same when a report said that the node rests.
    rested: Option<u64>,
    /// When to look whether a request has come, while the controller does not ask.
    look_at: Time,
    /// The device's count when counts were reported last, if the device was idle then.
    pub(super) counted: Option<u64>,
    outputs: VecDeque<Output>,
}

impl Steward {
    /// A steward of a node that serves all tenants alike, and waits for a controller.
    pub fn new(now: Time, info: NodeInfo, config: Config, site: &mut impl Site) -> Self {
        // Requests from before the plan are to be served after it, too, and not to starve.
        let terms = Terms::of_weight(Policy::WEIGHT);
        site.change_all(|scheduler| scheduler.set_terms(now, Slot::NOBODY, terms));
        Self {
            info,
            number: None,
            discipline: config.discipline,
            ledger: Ledger::default(),
            capacity: Capacity::new(config.capacity),
            observed: now,
            done: Done::default(),
            seen: None,
            rested: None,
            look_at: Time::MAX,
            counted: None,
            outputs: VecDeque::new(),
        }
    }

    /// The node's identity, for its next hello.
    pub fn info(&self) -> NodeInfo {
        NodeInfo { revision: self.revision(), ..self.info.clone() }
    }

    /// The revision of the plan that it has, or zero.
    pub fn revision(&self) -> u64 {
        self.ledger.revision()
    }

    /// How many plans it has taken. When that changes, names may have other slots.
    pub fn plans(&self) -> u64 {
        self.ledger.plans
    }

    /// The slot of the tenant with this name; the default tenant's if the plan does not have it. It
    /// stays the same as long as the name stays in the plan.
    pub fn slot(&self, tenant: &str) -> Slot {
        self.ledger.slot(tenant)
    }

    /// When [`Self::advance`] is to be called: at the end of the period, or when it is time to look
    /// whether a request has come; [`Time::MAX`] for never.
    pub fn ends(&self) -> Time {
        self.ledger.ends().min(self.look_at)
    }

    /// The device's capacity, in units of cost per second, if it was declared or ever seen.
    pub fn capacity(&self) -> Option<Iops> {
        self.capacity.known()
    }

    /// There is a connection to a controller, perhaps another one than before. The world has said
    /// hello with [`Self::info`].
    pub fn on_connected(&mut self, now: Time, site: &mut impl Site) {
        self.advance(now, site);
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
        (self.rested, self.look_at, self.counted) = (None, Time::MAX, None);
        self.ledger.on_connected();
    }

    /// The controller has said something.
    pub fn on_message(&mut self, now: Time, message: ToNode, site: &mut impl Site) {
        self.advance(now, site);
        match message {
            ToNode::Welcome { node, .. } => self.number = Some(node),
            // The connection ends, and the world says when.
            ToNode::Refused { .. } => {}
            ToNode::Plan(plan) => {
                let (revision, discipline) = (plan.revision, plan.discipline);
                if self.ledger.on_plan(now, plan, site) {
                    (self.rested, self.look_at, self.counted) = (None, Time::MAX, None);
                    self.outputs.push_back(Output::Event(Event::PolicyApplied { revision }));
                }
                let discipline = discipline.unwrap_or(self.discipline);
                site.change_all(|scheduler| scheduler.set_discipline(now, discipline));
            }
            ToNode::Collect { turn, into, complete } => {
                self.ledger.align(now, turn.period, into, site);
                if let Some(answer) = self.report(now, (turn, complete), site) {
                    self.outputs.push_back(Output::Send(answer));
                }
            }
            ToNode::Grant(grant) => {
                let granted = self.ledger.on_grant(now, &grant, site);
                self.outputs.push_back(Output::Send(granted));
            }
            ToNode::Renew { base, grant } => {
                let answer = self.ledger.on_renewal(now, (base, &grant), site);
                self.outputs.push_back(Output::Send(answer));
            }
            ToNode::Count => {
                let counts = FromNode::Counts(self.counts(now, site));
                self.outputs.push_back(Output::Send(counts));
            }
        }
        site.note(now);
    }

    /// There is no connection any more. Everything that was granted stays in force as it would.
    pub fn on_disconnected(&mut self, now: Time, site: &mut impl Site) {
        self.advance(now, site);
        (self.number, self.look_at) = (None, Time::MAX);
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
    }

    /// The node ends, and the world will dispatch nothing more.
    pub fn on_ending(&mut self) {
        self.outputs.push_back(Output::Send(FromNode::Goodbye));
    }

    /// The next action for the caller.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Begins the periods that have begun, and looks whether a request has come if it is time to.
    #[inline]
    pub fn advance(&mut self, now: Time, site: &mut impl Site) {
        if now >= self.ledger.ends() {
            self.turn(now, site);
        }
        if now >= self.look_at {
            self.look(now, site);
        }
    }

    /// Says that the node does not rest any more if it does not, again each time until it is asked.
    fn look(&mut self, now: Time, site: &impl Site) {
        self.look_at = self.ledger.next_round(now);
        if self.is_resting(now, site) {
            self.observe(now, site);
        } else {
            self.outputs.push_back(Output::Send(FromNode::Awake));
        }
    }

    /// Whether no request has come since a report said that the node rests.
    fn is_resting(&self, now: Time, site: &impl Site) -> bool {
        self.rested.is_some_and(|done| unchanged(now, site) == Some(done))
    }

    fn turn(&mut self, now: Time, site: &mut impl Site) {
        self.ledger.advance(now, site);
        // Without questions from a controller, a period is the interval.
        if now.since(self.observed) >= self.ledger.period() {
            self.observe(now, site);
        }
    }

    /// Estimates anew the device's capacity and the tenants' demand.
    fn observe(&mut self, now: Time, site: &impl Site) {
        site.note(now);
        let interval = now.since(self.observed);
        let done = site.device().done(now);
        let before = core::mem::replace(&mut self.done, done);
        self.capacity.observe(Work {
            interval,
            busy: done.busy.saturating_sub(before.busy),
            completed: done.served - before.served,
            completed_busy: done.served_busy - before.served_busy,
        });
        // Where nothing came, no tenant's estimate would change.
        if !self.is_resting(now, site) {
            self.ledger.observe(now, interval, site);
        }
        self.observed = now;
    }

    /// The answer to the question of `turn`, if there is one.
    fn report(
        &mut self,
        now: Time,
        (turn, is_complete): (Turn, bool),
        site: &impl Site,
    ) -> Option<FromNode> {
        // A question that came twice, or at the turn of a period, is no interval of its own.
        let interval_min = Span(self.ledger.interval().0 / 4).max(INTERVAL_MIN);
        if now.since(self.observed) >= interval_min {
            self.observe(now, site);
        }
        let left = self.ledger.ends().since(now).min(self.ledger.period());
        let capacity_left = self.capacity.within(left);
        if self.is_resting(now, site)
            && let Some(rest) = self.ledger.rest(turn, capacity_left)
        {
            self.look_at = self.ledger.next_round(now);
            return Some(rest);
        }
        // Before the tallies are read, so that the next look sees requests that come meanwhile.
        // Unattributed requests are not reported, but while they come the node would never rest.
        let done = unchanged(now, site);
        let may_rest = done.is_some() && core::mem::replace(&mut self.seen, done) == done;
        let question = (turn, is_complete, may_rest);
        let answer = self.ledger.report(now, question, capacity_left, site);
        let is_resting = matches!(answer, Some(FromNode::Rest { .. }));
        self.rested = done.filter(|_| is_resting);
        self.look_at = if is_resting { self.ledger.next_round(now) } else { Time::MAX };
        answer
    }
}

/// The device's count, if no request waits or is at the device: while it stays the same, nothing
/// has changed for any tenant.
pub(super) fn unchanged(now: Time, site: &impl Site) -> Option<u64> {
    // In the order in which requests pass by: one that is missed in the queue is found later.
    let is_empty = site.waiting() == 0 && site.device().in_flight() == 0;
    is_empty.then(|| site.device().done(now).served)
}
