//! A storage node's part: who is served next, up to what counts, and what the controller is told.
//!
//! The node keeps requests in queues per tenant and gives them to the device, at most `depth` at a
//! time, in the order of its [discipline](tidegate_algo::scheduler). A controller says who the
//! tenants are, up to what counts each is served in a period, and, if it likes, by which discipline;
//! gateways say what tenants were served at other nodes. The node answers the controller's questions with what was served and what it expects ([`tidegate_algo::estimate`]). Nothing that
//! the controller does or fails to do keeps the node from serving:
//!
//! - **Before the first plan** everybody is nobody: served in turn, without limits.
//! - **Periods** begin by themselves. The counts of the next one come ahead and are kept aside
//!   until it begins; those of the present one hold from the moment they come.
//! - **Silence.** While a lease lasts, the counts with which a period began hold anew. When it is
//!   over nothing is reserved, and for limits the policy's `fallback` holds; a tenant of which no
//!   grant ever said what it may is then let through. The first grant ends this.
//! - **A new plan** is one of which anything but the discipline differs, for a controller that lost
//!   its state may give the same revision to another. It keeps the requests, the slots and what was
//!   served of tenants that stay; their counts are void. What waits for a tenant that leaves is
//!   served as nobody's. Another discipline alone changes the order of what waits.
//!
//! The world calls [`Node::next_dispatch`] until it gives nothing and [`Node::poll_output`] until
//! it is empty after each of the other calls, and [`Node::on_deadline`] at
//! [`Node::next_deadline`].
//!
//! ```
//! use tidegate_model::Time;
//! use tidegate_proto::cluster::message::NodeInfo;
//! use tidegate_proto::node::{Ask, Config, Node, Slot};
//! let config = Config { depth: 1, ..Config::default() };
//! let mut node = Node::new(Time::ZERO, NodeInfo::default(), config);
//! node.on_request(Time(1), Slot::NOBODY, Ask::ONE, "first");
//! node.on_request(Time(1), Slot::NOBODY, Ask::ONE, "second");
//! let first = node.next_dispatch(Time(1)).unwrap();
//! assert_eq!(first.job, "first");
//! assert!(node.next_dispatch(Time(2)).is_none()); // one at the device
//! node.on_completion(Time(3), first.slot, first.cost);
//! assert_eq!(node.next_dispatch(Time(3)).unwrap().job, "second");
//! ```

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_algo::estimate::{Capacity, Work};
pub use tidegate_algo::scheduler::{Ask, Dispatched, Pacing, Slot};
use tidegate_algo::scheduler::{Scheduler, Terms};
use tidegate_model::{Discipline, Event, Iops, NodeId, Policy, Span, Time};

use crate::cluster::message::{FromNode, NodeInfo, Report, ToNode, Turn};
use ledger::Ledger;
pub use status::{NodeStatus, TenantStatus};

mod ledger;
mod status;

/// The least time over which anything is estimated.
const INTERVAL_MIN: Span = Span::MILLISECOND;

/// How a node is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most requests at the device at a time, at least one. The smaller, the sooner a request
    /// with a reservation is served; the larger, the more a device can do at once. Capacity is
    /// measured while there are as many, so clients are to be able to have more outstanding.
    pub depth: u32,
    /// What the device can do, in units of cost per second, if that is known.
    pub capacity: Option<Iops>,
    /// Whether what limited tenants are allowed is spread over the period.
    pub pacing: Pacing,
    /// By which rule it decides who is next, until a plan names another.
    pub discipline: Discipline,
}

impl Default for Config {
    /// 32 requests at the device, an unknown capacity, even pacing, pShift's token scheduler.
    fn default() -> Self {
        Self { depth: 32, capacity: None, pacing: Pacing::Even, discipline: Discipline::default() }
    }
}

/// What the world is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to the controller.
    Send(FromNode),
    /// Tell those who watch.
    Event(Event),
}

/// The device, as far as its capacity is concerned.
#[derive(Debug)]
struct Device {
    depth: u32,
    in_flight: u32,
    /// Since when it has been busy, if it is.
    busy_since: Option<Time>,
    /// When the capacity was estimated last.
    observed: Time,
    /// What it did since then.
    work: Work,
    capacity: Capacity,
}

impl Device {
    /// Notes whether the device is busy from `now` on.
    fn note(&mut self, now: Time, is_backlogged: bool) {
        if let Some(since) = self.busy_since {
            self.work.busy = self.work.busy.saturating_add(now.since(since));
        }
        let is_busy = is_backlogged || self.in_flight >= self.depth;
        self.busy_since = is_busy.then_some(now);
    }
}

/// A storage node. `J` is whatever the world needs to serve a request.
#[derive(Debug)]
pub struct Node<J> {
    info: NodeInfo,
    /// The number that the controller gave, while it is connected.
    number: Option<NodeId>,
    /// What decides who is next while the plan does not say.
    discipline: Discipline,
    scheduler: Scheduler<J>,
    ledger: Ledger,
    device: Device,
    /// Units of cost that the device has finished in all.
    served: u64,
    outputs: VecDeque<Output>,
}

impl<J> Node<J> {
    /// A node that serves everybody alike, and waits for a controller.
    pub fn new(now: Time, info: NodeInfo, config: Config) -> Self {
        let device = Device {
            depth: config.depth.max(1),
            in_flight: 0,
            busy_since: None,
            observed: now,
            work: Work::default(),
            capacity: Capacity::new(config.capacity),
        };
        // What comes before the plan is to be served after it, too, and not to starve.
        let mut scheduler = Scheduler::new(config.discipline, config.pacing);
        scheduler.set_terms(now, Slot::NOBODY, Terms::of_weight(Policy::WEIGHT));
        Self {
            info,
            number: None,
            discipline: config.discipline,
            scheduler,
            ledger: Ledger::default(),
            device,
            served: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Who the node is, for its next hello.
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

    /// The slot of the tenant with this name; nobody's if the plan does not have it. It stays the
    /// same as long as the name stays in the plan.
    pub fn slot(&self, tenant: &str) -> Slot {
        self.ledger.slot(tenant)
    }

    /// By which rule it decides who is next.
    pub fn discipline(&self) -> Discipline {
        self.scheduler.discipline()
    }

    /// A request has come.
    pub fn on_request(&mut self, now: Time, slot: Slot, ask: Ask, job: J) {
        self.advance(now);
        self.scheduler.push(now, slot, ask, job);
        self.device.note(now, self.scheduler.is_backlogged());
    }

    /// A tenant was served so much work at other nodes, which no request has told of: the next one
    /// that comes here does ([`tidegate_algo::dsfq`]).
    pub fn on_elsewhere(&mut self, slot: Slot, work: u64) {
        self.scheduler.delay(slot, work);
    }

    /// The next request for the device, if there is room for it and one may be served.
    pub fn next_dispatch(&mut self, now: Time) -> Option<Dispatched<J>> {
        self.advance(now);
        if self.device.in_flight >= self.device.depth {
            return None;
        }
        let dispatched = self.scheduler.pop(now)?;
        self.device.in_flight += 1;
        self.device.note(now, self.scheduler.is_backlogged());
        Some(dispatched)
    }

    /// A request that was dispatched has been served, or has failed.
    pub fn on_completion(&mut self, now: Time, slot: Slot, cost: u32) {
        self.advance(now);
        self.served += u64::from(cost);
        self.scheduler.complete(now, slot, cost);
        let device = &mut self.device;
        device.in_flight = device.in_flight.saturating_sub(1);
        device.work.completed += u64::from(cost);
        if device.busy_since.is_some() {
            device.work.completed_busy += u64::from(cost);
        }
        device.note(now, self.scheduler.is_backlogged());
    }

    /// Takes out the waiting requests that `which` picks. Those at the device are left there.
    pub fn cancel(&mut self, now: Time, which: impl FnMut(&J) -> bool) -> Vec<J> {
        self.advance(now);
        let cancelled = self.scheduler.cancel(now, which);
        self.device.note(now, self.scheduler.is_backlogged());
        cancelled
    }

    /// There is a connection to a controller, perhaps another one than before. The world has said
    /// hello with [`Self::info`].
    pub fn on_connected(&mut self, now: Time) {
        self.advance(now);
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
        self.ledger.on_connected();
    }

    /// The controller has said something.
    pub fn on_message(&mut self, now: Time, message: ToNode) {
        self.advance(now);
        match message {
            ToNode::Welcome { node, .. } => self.number = Some(node),
            // The connection ends, and the world says when.
            ToNode::Refused { .. } => {}
            ToNode::Plan(plan) => {
                let (revision, discipline) = (plan.revision, plan.discipline);
                if self.ledger.on_plan(now, plan, &mut self.scheduler) {
                    self.outputs.push_back(Output::Event(Event::PolicyApplied { revision }));
                }
                self.scheduler.set_discipline(now, discipline.unwrap_or(self.discipline));
            }
            ToNode::Collect { turn, into, complete } => {
                self.ledger.align(now, turn.period, into, &mut self.scheduler);
                if let Some(report) = self.report(now, turn, complete) {
                    self.outputs.push_back(Output::Send(FromNode::Report(report)));
                }
            }
            ToNode::Grant(grant) => {
                let granted = self.ledger.on_grant(now, &grant, &mut self.scheduler);
                self.outputs.push_back(Output::Send(granted));
            }
            ToNode::Count => {
                let counts = FromNode::Counts(self.counts(now));
                self.outputs.push_back(Output::Send(counts));
            }
        }
        self.device.note(now, self.scheduler.is_backlogged());
    }

    /// There is no connection any more. Everything that was granted stays in force as it would.
    pub fn on_disconnected(&mut self, now: Time) {
        self.advance(now);
        self.number = None;
        self.outputs.retain(|output| !matches!(output, Output::Send(_)));
    }

    /// The node ends, and the world will dispatch nothing more.
    pub fn on_ending(&mut self) {
        self.outputs.push_back(Output::Send(FromNode::Goodbye));
    }

    /// When [`Self::on_deadline`] is to be called: the end of the period, or the moment at which
    /// the next request may go to the device though nothing else happens. [`Time::MAX`] for never.
    pub fn next_deadline(&self) -> Time {
        let has_room = self.device.in_flight < self.device.depth;
        let eligible = self.scheduler.next_eligible().filter(|_| has_room);
        self.ledger.ends().min(eligible.unwrap_or(Time::MAX))
    }

    /// A deadline has passed.
    pub fn on_deadline(&mut self, now: Time) {
        self.advance(now);
        self.scheduler.promote(now);
        self.device.note(now, self.scheduler.is_backlogged());
    }

    /// What the world is to do next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Begins the periods that have begun.
    fn advance(&mut self, now: Time) {
        if now < self.ledger.ends() {
            return;
        }
        self.ledger.advance(now, &mut self.scheduler);
        // Without questions from a controller, a period is the interval.
        if now.since(self.device.observed) >= self.ledger.period() {
            self.observe(now);
        }
    }

    /// Estimates anew what the device can do and what tenants will ask for.
    fn observe(&mut self, now: Time) {
        let device = &mut self.device;
        device.note(now, self.scheduler.is_backlogged());
        device.work.interval = now.since(device.observed);
        device.capacity.observe(core::mem::take(&mut device.work));
        self.ledger.observe(now, now.since(device.observed), &self.scheduler);
        device.observed = now;
    }

    /// The answer to the question of `turn`, if there is one.
    fn report(&mut self, now: Time, turn: Turn, is_complete: bool) -> Option<Report> {
        // A question that came twice, or at the turn of a period, is no interval of its own.
        let interval_min = Span(self.ledger.interval().0 / 4).max(INTERVAL_MIN);
        if now.since(self.device.observed) >= interval_min {
            self.observe(now);
        }
        let left = self.ledger.ends().since(now).min(self.ledger.period());
        let capacity_left = self.device.capacity.within(left);
        self.ledger.report(now, (turn, is_complete), capacity_left, &self.scheduler)
    }
}
