//! A storage node's part: the order of service, its limits, and the reports to the controller.
//!
//! The node keeps requests in queues per tenant and gives them to the device, at most `depth` at a
//! time, in the order of its [discipline](tidegate_algo::scheduling::scheduler). A controller sends
//! the tenants, the count up to which each is served in a period, and, if it likes, the discipline;
//! gateways send the service of tenants at other nodes. The node answers the controller's questions
//! with the service so far and the demand that it expects ([`tidegate_algo::capacity::estimate`]).
//! Nothing that the controller does or fails to do keeps the node from serving:
//!
//! - **Before the first plan** no request has a tenant: all are served alike, without limits.
//! - **Periods** begin by themselves. The counts of the next one come ahead and are kept aside
//!   until it begins; those of the present one hold from the moment they come.
//! - **Silence.** While a lease lasts, the counts with which a period began hold anew. When it is
//!   over nothing is reserved, and for limits the policy's `fallback` holds; a tenant of which no
//!   grant ever said what it may is then let through. The first grant ends this.
//! - **A new plan** is one of which anything but the discipline differs, for a controller that lost
//!   its state may give the same revision to another. It keeps the requests, the slots and the
//!   service of tenants that stay; their counts are void. Waiting requests of a tenant that leaves
//!   are served as unattributed. Another discipline alone changes the order of waiting requests.
//!
//! The [`Coordinator`] makes the few decisions of a period; schedulers make those for each
//! request, each with a part of the tenants. A [`Node`] is a coordinator with one scheduler, for a
//! caller with one thread. A caller with many threads has a scheduler for each, with locks
//! ([`Executor`], [`tidegate_algo::scheduling::shards`]), and the coordinator behind another.
//!
//! After each of the other calls, the caller repeats [`Node::next_dispatch`] until it gives nothing
//! and [`Node::poll_output`] until it is empty. It calls [`Node::on_deadline`] at
//! [`Node::next_deadline`].
//!
//! ```
//! use tidegate_model::Time;
//! use tidegate_proto::cluster::message::NodeInfo;
//! use tidegate_proto::node::{RequestCost, Config, Node, Slot};
//! let config = Config { depth: 1, ..Config::default() };
//! let mut node = Node::new(Time::ZERO, NodeInfo::default(), config);
//! node.on_request(Time(1), Slot::UNATTRIBUTED, RequestCost::ONE, "first");
//! node.on_request(Time(1), Slot::UNATTRIBUTED, RequestCost::ONE, "second");
//! let first = node.next_dispatch(Time(1)).unwrap();
//! assert_eq!(first.job, "first");
//! assert!(node.next_dispatch(Time(2)).is_none()); // one at the device
//! node.on_completion(Time(3), first.slot, first.cost);
//! assert_eq!(node.next_dispatch(Time(3)).unwrap().job, "second");
//! ```

use alloc::vec::Vec;

use tidegate_algo::capacity::device_time::{DeviceTime, Moment};
use tidegate_algo::scheduling::device::Device;
use tidegate_algo::scheduling::scheduler::Scheduler;
pub use tidegate_algo::scheduling::scheduler::{Dispatched, Pacing, RequestCost, Slot};
use tidegate_model::{Discipline, Event, Iops, Span, Time};

use crate::cluster::message::{FromNode, NodeInfo, ToNode};
pub use coordinator::Coordinator;
pub use executor::Executor;
pub use status::{NodeStatus, TenantStatus};

mod coordinator;
mod executor;
mod grants;
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
    /// The device's capacity, in units of cost per second, if that is known.
    pub capacity: Option<Iops>,
    /// Whether a limited tenant's allowance is spread over the period.
    pub pacing: Pacing,
    /// The rule by which it decides which request is next, until a plan names another.
    pub discipline: Discipline,
}

impl Default for Config {
    /// 32 requests at the device, an unknown capacity, even pacing, pShift's token scheduler.
    fn default() -> Self {
        Self { depth: 32, capacity: None, pacing: Pacing::Even, discipline: Discipline::default() }
    }
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to the controller.
    Send(FromNode),
    /// Report an event to observers.
    Event(Event),
}

/// A storage node with one shard. `J` is the data that the caller needs to serve a request.
#[derive(Debug)]
pub struct Node<J> {
    coordinator: Coordinator,
    executor: SingleShard<J>,
    measured: DeviceTime,
}

/// Its shard, and its device.
#[derive(Debug)]
struct SingleShard<J> {
    scheduler: Scheduler<J>,
    device: Device,
}

impl<J> Executor for SingleShard<J> {
    type Job = J;

    fn shards(&self) -> usize {
        1
    }

    fn read<R>(&self, _: usize, what: impl FnOnce(&Scheduler<J>) -> R) -> R {
        what(&self.scheduler)
    }

    fn change<R>(&mut self, _: usize, what: impl FnOnce(&mut Scheduler<J>) -> R) -> R {
        what(&mut self.scheduler)
    }

    fn device(&self) -> &Device {
        &self.device
    }
}

impl<J> Node<J> {
    /// A node that serves all tenants alike, and waits for a controller.
    pub fn new(now: Time, info: NodeInfo, config: Config) -> Self {
        let mut executor = SingleShard {
            scheduler: Scheduler::new(config.discipline, config.pacing),
            device: Device::new(config.depth, 1),
        };
        let coordinator = Coordinator::new(now, info, config, &mut executor);
        Self { coordinator, executor, measured: DeviceTime::new(None) }
    }

    /// How many requests the device serves at the same time, if that is known, for the account of
    /// what it takes for measured ones ([`tidegate_algo::capacity::device_time`]).
    pub fn set_servers(&mut self, servers: Option<u32>) {
        self.measured = DeviceTime::new(servers);
    }

    /// The node's identity, for its next hello.
    pub fn info(&self) -> NodeInfo {
        self.coordinator.info()
    }

    /// The revision of the plan that it has, or zero.
    pub fn revision(&self) -> u64 {
        self.coordinator.revision()
    }

    /// How many plans it has taken. When that changes, names may have other slots.
    pub fn plans(&self) -> u64 {
        self.coordinator.plans()
    }

    /// The slot of the tenant with this name; the default tenant's if the plan does not have it. It
    /// stays the same as long as the name stays in the plan.
    pub fn slot(&self, tenant: &str) -> Slot {
        self.coordinator.slot(tenant)
    }

    /// The rule by which it decides which request is next.
    pub fn discipline(&self) -> Discipline {
        self.executor.scheduler.discipline()
    }

    /// A request has come.
    pub fn on_request(&mut self, now: Time, slot: Slot, request: RequestCost, job: J) {
        self.coordinator.advance(now, &mut self.executor);
        self.executor.scheduler.push(now, slot, request, job);
        self.executor.note(now);
    }

    /// A tenant was served so much work at other nodes, which no request has reported: the next one
    /// that comes here does ([`tidegate_algo::scheduling::dsfq`]).
    pub fn on_elsewhere(&mut self, slot: Slot, work: u64) {
        self.executor.scheduler.delay(slot, work);
    }

    /// The next request for the device, if there is headroom and one may be served.
    pub fn next_dispatch(&mut self, now: Time) -> Option<Dispatched<J>> {
        self.coordinator.advance(now, &mut self.executor);
        let SingleShard { scheduler, device } = &mut self.executor;
        if !device.has_headroom() {
            return None;
        }
        let dispatched = scheduler.pop(now)?;
        device.reserve(1);
        device.note(now, scheduler.is_backlogged());
        Some(dispatched)
    }

    /// A request that was dispatched has been served, or has failed.
    pub fn on_completion(&mut self, now: Time, slot: Slot, cost: u32) {
        self.coordinator.advance(now, &mut self.executor);
        self.executor.scheduler.complete(now, slot, cost);
        self.executor.device.finish(0, u64::from(cost));
        self.executor.device.release(1);
        self.executor.note(now);
    }

    /// A request that was dispatched just now costs the time that the device takes for it.
    pub fn on_measured(&mut self, now: Time) {
        let moment = self.moment(now);
        self.measured.on_dispatch(moment);
    }

    /// Such a request has been served, or has failed. Its time beyond its cost is charged, at
    /// `unit_work` in the fair order for a unit. Returns how many units it took in all.
    pub fn on_measured_completion<I>(
        &mut self,
        now: Time,
        request: &Dispatched<I>,
        unit_work: u32,
    ) -> u32 {
        self.coordinator.advance(now, &mut self.executor);
        let moment = self.moment(now);
        let units = self.measured.on_completion(moment);
        let cost = units.saturating_sub(request.cost);
        if cost > 0 {
            let more = RequestCost { cost, work: unit_work.saturating_mul(cost), delay: 0 };
            self.executor.scheduler.charge(now, request.slot, more, request.is_reserved);
            self.executor.device.finish(0, u64::from(cost));
        }
        self.on_completion(now, request.slot, request.cost);
        units
    }

    fn moment(&self, now: Time) -> Moment {
        let device = &self.executor.device;
        Moment {
            now,
            capacity: self.coordinator.capacity(),
            depth: device.depth(),
            in_flight: device.in_flight(),
            done: device.done(now).served,
        }
    }

    /// Takes out the waiting requests that `which` picks. Those at the device are left there.
    pub fn cancel(&mut self, now: Time, which: impl FnMut(&J) -> bool) -> Vec<J> {
        self.coordinator.advance(now, &mut self.executor);
        let cancelled = self.executor.scheduler.cancel(now, which);
        self.executor.note(now);
        cancelled
    }

    /// There is a connection to a controller, perhaps another one than before. The caller has sent
    /// hello with [`Self::info`].
    pub fn on_connected(&mut self, now: Time) {
        self.coordinator.on_connected(now, &mut self.executor);
    }

    /// The controller has sent a message.
    pub fn on_message(&mut self, now: Time, message: ToNode) {
        self.coordinator.on_message(now, message, &mut self.executor);
    }

    /// There is no connection any more. Everything that was granted stays in force as it would.
    pub fn on_disconnected(&mut self, now: Time) {
        self.coordinator.on_disconnected(now, &mut self.executor);
    }

    /// The node ends, and the caller will dispatch nothing more.
    pub fn on_ending(&mut self) {
        self.coordinator.on_ending();
    }

    /// When [`Self::on_deadline`] is to be called: the end of the period, or the moment at which
    /// the next request may go to the device though nothing else happens. [`Time::MAX`] for never.
    pub fn next_deadline(&self) -> Time {
        let SingleShard { scheduler, device } = &self.executor;
        let eligible = scheduler.next_eligible().filter(|_| device.has_headroom());
        self.coordinator.ends().min(eligible.unwrap_or(Time::MAX))
    }

    /// A deadline has passed.
    pub fn on_deadline(&mut self, now: Time) {
        self.coordinator.advance(now, &mut self.executor);
        self.executor.scheduler.promote(now);
        self.executor.note(now);
    }

    /// The next action for the caller.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.coordinator.poll_output()
    }

    /// The node's state, and the counts in force.
    pub fn status(&self, now: Time) -> NodeStatus {
        self.coordinator.status(now, &self.executor)
    }
}
