//! A storage node without I/O: the order of service, its limits, and the reports to the controller.
//!
//! The node keeps requests in queues per tenant and gives them to the device, at most `depth` at a
//! time, in the order of its [discipline](tidegate_algo::scheduling::scheduler). A controller sends
//! the tenants, the count up to which each is served in a period, and optionally the discipline;
//! gateways send the service of tenants at other nodes. The node answers the controller's questions
//! with the service so far and the demand that it expects ([`tidegate_algo::capacity::estimate`]).
//! Nothing that the controller does or fails to do keeps the node from serving:
//!
//! - **Before the first plan** no request has a tenant: all are served alike, without limits. Those
//!   that wait when the plan comes are served like requests with a reservation. If they came behind
//!   these, a client that waits for them would not get what its tenant is promised.
//! - **Periods** begin by themselves. The counts of the next one come ahead and are kept aside
//!   until it begins; those of the present one hold from the moment they come.
//! - **Silence.** While a lease lasts, the counts with which a period began hold anew. When it is
//!   over nothing is reserved, and for limits the policy's `fallback` holds; a tenant that never
//!   had a grant is then not limited. The first grant ends this.
//! - **A new plan** is one of which anything but the discipline differs, for a controller that lost
//!   its state may give the same revision to another. It keeps the requests, the slots and the
//!   service of tenants that stay; their counts are void. Waiting requests of a tenant that leaves
//!   are served as unattributed. Another discipline, or other weights of classes, alone change the
//!   order of waiting requests.
//!
//! # Flow of a request
//! The requests wait in [shards](tidegate_algo::scheduling::shards), each with a part of the
//! tenants and behind a lock of its own. A caller
//!
//! 1. makes a [`NodeRequest`] of each, which tells its cost ([`Node::request`]);
//! 2. puts it into its tenant's queue, and takes out what may go to the device
//!    ([`Node::submit`], [`Node::fill`]);
//! 3. reports what goes there ([`Node::on_dispatch`]) and what comes back ([`Node::finish`]), which
//!    takes out what may go instead.
//!
//! One `NodeControl`, behind one more lock, decides about all shards together: the plan, periods,
//! capacity, and reports to the controller. The lock is rarely taken: with messages, and by the
//! first call after the end of a period. A thread that holds it may lock shards, one at a time; a
//! thread that holds a shard never locks it.
//!
//! A live node and a simulated one are the same code. They differ in what [`threads`] names: the
//! time, and whether locks lock.
//!
//! ```
//! use tidegate_model::{Class, ContextId, Operation, Tag, TenantId, Time};
//! use tidegate_proto::cluster::message::NodeInfo;
//! use tidegate_proto::data::Command;
//! use tidegate_proto::node::{Config, Node, Slot};
//! let tag = Tag {
//!     tenant: TenantId(1),
//!     context: ContextId::NONE,
//!     class: Class::Medium,
//!     operation: Operation::Read,
//!     cost: 4096,
//!     delay: 0,
//! };
//! let config = Config { depth: 1, ..Config::default() };
//! let node: Node<&str> = Node::new(Time::ZERO, NodeInfo::default(), config);
//! let request = |body| node.request(Slot::UNATTRIBUTED, Command::Read, 4096, &tag, body);
//! let mut batch = Vec::new();
//! let home = node.submit(Time(1), &mut vec![request("first"), request("second")], &mut batch);
//! assert_eq!(batch.iter().map(|request| request.body).collect::<Vec<_>>(), ["first"]);
//! let mut finished = std::mem::take(&mut batch); // one at the device
//! node.finish(home, Time(3), &mut finished, Some(&mut batch), |_, _| {});
//! assert_eq!(batch[0].body, "second");
//! ```

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_algo::scheduling::device::ReplySize;
use tidegate_algo::scheduling::scheduler::Scheduler;
pub use tidegate_algo::scheduling::scheduler::{Dispatched, Pacing, RequestCost, Slot};
use tidegate_model::{CostModel, Discipline, Event, Iops, PeriodNumber, Span, Tag, Time};

use crate::cluster::message::{FromNode, NodeInfo, ToNode};
use crate::data::Command;
use crate::stats::message::NodeLatency;
use control::NodeControl;
use measure::Measure;
pub use request::NodeRequest;
use shards::Occupies;
pub use shards::{Shards, Visit};
pub use status::{ByteStatus, NodeStatus, TenantStatus};
use threads::{Clock, Mutex, SingleThreaded, Threading};

mod control;
mod grants;
mod implied;
mod latency;
mod measure;
mod request;
mod shards;
mod status;
mod tenant;
pub mod threads;

/// The least time over which anything is estimated.
const INTERVAL_MIN: Span = Span::MILLISECOND;

/// How a node is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most requests at the device at a time, at least one. The smaller, the sooner a request
    /// with a reservation is served; the larger, the more a device can do at once. Capacity is
    /// measured while there are as many, so clients are to be able to have more outstanding.
    pub depth: u32,
    /// Over how many shards the tenants are spread: as many as there are threads where a request is
    /// served as fast as a lock is taken, else one, which keeps the order exactly.
    pub shards: usize,
    /// The device's capacity, in units of cost per second, if that is known.
    pub capacity: Option<Iops>,
    /// The time within which 99 of 100 requests are to be back from the device: there are fewer at
    /// a time than `depth` where more take longer ([`tidegate_algo::capacity::percentile_limit`]).
    /// Every request is timed then. None for no bound. Not where requests are for keys, whose
    /// replies limit their number.
    pub latency: Option<Span>,
    /// How many requests the device serves at the same time, if that is known, for the account of
    /// what it takes for measured ones ([`tidegate_algo::capacity::device_time`]).
    pub servers: Option<u32>,
    /// Whether requests take long enough to time some of them.
    pub is_sampled: bool,
    /// Whether few requests without a reservation go to the device while requests with one are
    /// served ([`tidegate_algo::capacity::depth`]). There is one shard then.
    pub is_guarded: bool,
    /// Whether a limited tenant's allowance is spread over the period.
    pub pacing: Pacing,
    /// The rule by which it decides which request is next, until a plan names another.
    pub discipline: Discipline,
    /// The cost of which tenants have shares, the same as at the node's gateways.
    pub cost: CostModel,
}

impl Default for Config {
    /// 32 requests at the device, one shard, an unknown capacity, even pacing, pShift's token
    /// scheduler, requests as cost.
    fn default() -> Self {
        Self {
            depth: 32,
            shards: 1,
            capacity: None,
            latency: None,
            servers: None,
            is_sampled: false,
            is_guarded: false,
            pacing: Pacing::Even,
            discipline: Discipline::default(),
            cost: CostModel::default(),
        }
    }
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to the controller.
    Send(FromNode),
    /// NodeReport an event to observers.
    Event(Event),
}

/// A storage node. `B` is the data that the caller needs to serve a request, and `T` how its
/// threads share it.
pub struct Node<B, T: Threading = SingleThreaded> {
    shards: Shards<NodeRequest<B>, T>,
    control: T::Mutex<NodeControl>,
    /// When the control is to be called, and how many plans it has taken.
    ends: AtomicU64,
    plans: AtomicU64,
    is_ending: AtomicBool,
    cost: CostModel,
    measure: Measure<T>,
    /// Of requests with keys: what comes after a long reply waits for it.
    replies: ReplySize,
}

impl<B, T: Threading> fmt::Debug for Node<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl<B, T: Threading> Node<B, T> {
    /// A node that serves all tenants alike, and waits for a controller.
    pub fn new(now: Time, info: NodeInfo, config: Config) -> Self {
        let Config { depth, discipline, pacing, .. } = config;
        let shards = match config.is_guarded {
            true => Shards::guarded(depth, discipline, pacing),
            false => Shards::new(config.shards, depth, discipline, pacing),
        };
        let control = NodeControl::new(now, info, config, &shards);
        let measure = Measure::new(&config);
        measure.set_capacity(control.capacity());
        Self {
            ends: AtomicU64::new(control.ends().0),
            plans: AtomicU64::new(control.plans()),
            control: T::Mutex::new(control),
            is_ending: AtomicBool::new(false),
            cost: config.cost,
            measure,
            replies: ReplySize::default(),
            shards,
        }
    }

    /// The node's identity, for its next hello.
    pub fn info(&self) -> NodeInfo {
        self.control.lock().info()
    }

    /// The rule by which it decides which request is next.
    pub fn discipline(&self) -> Discipline {
        self.shards.read(0, Scheduler::discipline)
    }

    /// How many plans it has taken. When that changes, names may have other slots.
    pub fn plans(&self) -> u64 {
        self.plans.load(Ordering::Acquire)
    }

    /// The slot of the tenant with this name; the default tenant's if the plan does not have it. It
    /// stays the same as long as the name stays in the plan.
    pub fn slot(&self, tenant: &str) -> Slot {
        self.control.lock().slot(tenant)
    }

    /// The slots of tenants, into `slots` in their order. Returns how many plans the node has taken
    /// by then.
    pub fn resolve<'n>(
        &self,
        tenants: impl Iterator<Item = &'n str>,
        slots: &mut Vec<Slot>,
    ) -> u64 {
        let control = self.control.lock();
        slots.clear();
        slots.extend(tenants.map(|tenant| control.slot(tenant)));
        control.plans()
    }

    /// How many bytes a piece of a range is to have ([`Command::is_range`]).
    pub fn range(&self) -> u32 {
        self.measure.range()
    }

    /// A request of a tenant, about so many bytes of a part.
    #[inline]
    pub fn request(
        &self,
        slot: Slot,
        command: Command,
        length: u32,
        tag: &Tag,
        body: B,
    ) -> NodeRequest<B> {
        NodeRequest::new(slot, command, length, tag, &self.cost, body)
    }

    /// Puts requests into their tenants' queues.
    pub fn put(&self, clock: impl Clock, requests: &mut Vec<NodeRequest<B>>) {
        self.put_and(clock, requests, |_, _| {});
        self.shards.note(clock.now());
    }

    /// Puts requests into their tenants' queues, and takes out what may go to the device. Returns
    /// the shard of the last request. Requests are left in `requests` only if the node is ending.
    pub fn submit(
        &self,
        clock: impl Clock,
        requests: &mut Vec<NodeRequest<B>>,
        batch: &mut Vec<NodeRequest<B>>,
    ) -> usize {
        let most = self.shards.share();
        self.put_and(clock, requests, |visit, now| visit.take_with(now, (0, most), batch, accept))
    }

    /// Puts requests into their queues, and calls `last` with the shard of the last of them.
    fn put_and(
        &self,
        clock: impl Clock,
        requests: &mut Vec<NodeRequest<B>>,
        last: impl FnOnce(&mut Visit<'_, NodeRequest<B>, T>, Time),
    ) -> usize {
        let arrived = self.advance(clock);
        if self.shards.count() > 1 {
            // Those of a tenant keep their order.
            requests.sort_by_key(|request| request.slot.shard());
        }
        let mut home = 0;
        let mut coming = requests.drain(..).peekable();
        while let Some(shard) = coming.peek().map(|request| request.slot.shard()) {
            let mut visit = self.shards.visit(shard);
            if self.is_ending() {
                drop(visit);
                let left: Vec<_> = coming.collect();
                requests.extend(left);
                break;
            }
            home = shard;
            let now = clock.now();
            while let Some(request) = coming.next_if(|request| request.slot.shard() == shard) {
                push(&mut visit, now, NodeRequest { arrived, ..request });
            }
            if coming.peek().is_none() {
                last(&mut visit, now);
                break;
            }
        }
        home
    }

    /// Takes out what may go to the device, at most one thread's part of its depth, from whichever
    /// shard it is the turn of; `home` is the shard that the caller stays with as long as it may.
    /// Returns when a request will be admitted that may not go yet.
    pub fn fill(&self, home: usize, clock: impl Clock, batch: &mut Vec<NodeRequest<B>>) -> Time {
        self.fill_to(home, self.shards.share(), clock, batch)
    }

    /// As [`Self::fill`], until `batch` has `most` requests.
    pub fn fill_to(
        &self,
        home: usize,
        most: usize,
        clock: impl Clock,
        batch: &mut Vec<NodeRequest<B>>,
    ) -> Time {
        let now = self.shards.fill_with((home, most), clock.now(), clock, batch, accept);
        self.shards.note(now).min(self.measure.deadline())
    }

    /// Requests go to the device: one that is measured, alone so that nothing else is taken for its
    /// time, or others.
    pub fn on_dispatch(&self, clock: impl Clock, batch: &mut [NodeRequest<B>]) {
        self.measure.on_dispatch(clock, batch, self.shards.device());
    }

    /// Measured requests are finished, and their times end here; without this call when they are
    /// reported by [`Self::finish`].
    pub fn on_completion(&self, clock: impl Clock, finished: &mut [NodeRequest<B>]) {
        for request in finished {
            self.measure.on_completion(clock, request, self.shards.device());
        }
    }

    /// A request for keys was answered with so many bytes. While replies are long, fewer such
    /// requests are at the device.
    pub fn on_reply(&self, request: &NodeRequest<B>, bytes: u64) {
        let keys = self.replies.on_reply(bytes, request.count());
        self.shards.device().set_limit(keys);
    }

    /// Requests that were dispatched have been served, or have failed. Takes out what may go
    /// instead from the shard whose turn it is; without `batch`, their headroom is given back.
    /// `follow` is called with each, under the lock of its shard, and appends requests of the same
    /// tenant that are to be queued behind it.
    pub fn finish(
        &self,
        home: usize,
        clock: impl Clock,
        finished: &mut [NodeRequest<B>],
        batch: Option<&mut Vec<NodeRequest<B>>>,
        mut follow: impl FnMut(&mut NodeRequest<B>, &mut Vec<NodeRequest<B>>),
    ) {
        let now = self.advance(clock);
        if finished.is_empty() {
            return;
        }
        let (mut headroom, mut shards) = (0, 0u32);
        for request in finished.iter_mut() {
            headroom += request.count();
            shards |= 1 << request.slot.shard();
            self.measure.on_return(now, request, self.shards.device());
            self.measure.on_completion(now, request, self.shards.device());
        }
        let next = self.shards.next(now, home).unwrap_or(shards.trailing_zeros() as usize);
        for shard in (0..self.shards.count()).filter(|shard| *shard != next) {
            if shards >> shard & 1 == 1 {
                self.complete(shard, clock, finished, &mut follow);
            }
        }
        let (mut visit, now) = self.complete(next, clock, finished, &mut follow);
        match batch {
            Some(batch) => {
                visit.take_with(now, (headroom, self.shards.share()), batch, accept);
            }
            None => {
                self.shards.device().release(headroom);
                drop(visit);
                self.shards.note(now);
            }
        }
    }

    /// Reports a shard's own finished requests to it.
    fn complete(
        &self,
        shard: usize,
        clock: impl Clock,
        finished: &mut [NodeRequest<B>],
        follow: &mut impl FnMut(&mut NodeRequest<B>, &mut Vec<NodeRequest<B>>),
    ) -> (Visit<'_, NodeRequest<B>, T>, Time) {
        let mut visit = self.shards.visit(shard);
        let now = clock.now();
        let mut cost = 0;
        let mut behind = Vec::new();
        for request in finished.iter_mut().filter(|request| request.slot.shard() == shard) {
            visit.complete(now, request.slot, request.units());
            cost += u64::from(request.units()) + u64::from(request.more);
            if request.more > 0 {
                let from = (request.slot, request.class);
                visit.charge(now, from, request.surcharge(), request.is_reserved);
            }
            follow(request, &mut behind);
            if !request.is_piece {
                request.finished = now;
                visit.record(now, request);
            }
            let (arrived, dispatched) = (request.arrived, request.dispatched);
            for next in behind.drain(..) {
                push(&mut visit, now, NodeRequest { arrived, dispatched, ..next });
            }
        }
        self.shards.device().finish(shard, cost);
        (visit, now)
    }

    /// A tenant was served so much work at other nodes, which no request has reported: the next one
    /// that comes here does ([`tidegate_algo::scheduling::dsfq`]).
    pub fn on_elsewhere(&self, slot: Slot, work: u64) {
        self.shards.visit(slot.shard()).delay(slot, work);
    }

    /// Takes out the waiting requests that `which` picks. Those at the device are left there.
    pub fn cancel(&self, clock: impl Clock, which: impl Fn(&B) -> bool) -> Vec<NodeRequest<B>> {
        let mut cancelled = Vec::new();
        for shard in 0..self.shards.count() {
            let mut visit = self.shards.visit(shard);
            cancelled.append(&mut visit.cancel(clock.now(), |request| which(&request.body)));
        }
        self.shards.note(clock.now());
        cancelled
    }

    /// The node ends: it takes no more requests, and returns those that wait.
    pub fn end(&self, clock: impl Clock) -> Vec<NodeRequest<B>> {
        // Seen by each thread that locks a shard after what waits there was taken out.
        self.is_ending.store(true, Ordering::Relaxed);
        let waiting = self.cancel(clock, |_| true);
        self.control.lock().on_ending();
        waiting
    }

    /// Whether the node ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// There is a connection to a controller, perhaps another one than before. The caller has sent
    /// hello with [`Self::info`].
    pub fn on_connected(&self, clock: impl Clock) {
        self.coordinate(clock, |control, now| control.on_connected(now, &self.shards));
    }

    /// The controller has sent a message.
    pub fn on_message(&self, clock: impl Clock, message: ToNode) {
        self.coordinate(clock, |control, now| {
            control.on_message(now, message, &self.shards);
        });
    }

    /// There is no connection any more. Everything that was granted stays in force as it would.
    pub fn on_disconnected(&self, clock: impl Clock) {
        self.coordinate(clock, |control, now| control.on_disconnected(now, &self.shards));
    }

    /// Begins the periods that have begun. Returns the time.
    #[inline]
    pub fn advance(&self, clock: impl Clock) -> Time {
        let now = clock.now();
        if now >= self.ends() {
            self.coordinate(clock, |control, now| control.advance(now, &self.shards));
        }
        self.measure.advance(now, self.shards.device());
        now
    }

    /// When [`Self::advance`] is to be called though nothing else happens; [`Time::MAX`] for never.
    pub fn ends(&self) -> Time {
        Time(self.ends.load(Ordering::Relaxed))
    }

    /// When [`Self::advance`] and [`Self::fill`] are to be called though nothing else happens: the
    /// end of the period, or the moment at which the next request may go to the device.
    pub fn next_deadline(&self) -> Time {
        self.ends().min(self.shards.next_eligible()).min(self.measure.deadline())
    }

    /// Changes the control, and publishes its state.
    fn coordinate(&self, clock: impl Clock, change: impl FnOnce(&mut NodeControl, Time)) {
        let mut control = self.control.lock();
        change(&mut control, clock.now());
        self.ends.store(control.ends().0, Ordering::Relaxed);
        self.plans.store(control.plans(), Ordering::Release);
        self.measure.set_capacity(control.capacity());
    }

    /// The next action for the caller.
    pub fn poll_output(&self) -> Option<Output> {
        self.control.lock().poll_output()
    }

    /// The times of requests since the node began, by tenant and operation: of those without a
    /// tenant, and of the tenants of the plan.
    pub fn latency(&self) -> NodeLatency {
        self.control.lock().latency(&self.shards)
    }

    /// The period that is running, if the node's lease is over and the policy's fallback holds in
    /// it. None once a grant has come.
    pub fn abandoned_period(&self) -> Option<PeriodNumber> {
        let control = self.control.lock();
        control.grants.is_abandoned.then(|| control.grants.number())
    }

    /// The node's state, and the counts in force.
    pub fn status(&self, clock: impl Clock) -> NodeStatus {
        let control = self.control.lock();
        control.status(clock.now(), &self.shards)
    }
}

/// Puts a request into its tenant's queue.
#[inline]
fn push<B, T: Threading>(
    visit: &mut Visit<'_, NodeRequest<B>, T>,
    now: Time,
    request: NodeRequest<B>,
) {
    visit.push_in_class(now, (request.slot, request.class), request.cost, request);
}

/// The scheduler has let a request through. Also returns how much of the device it occupies.
#[inline]
fn accept<B>(now: Time, next: Dispatched<NodeRequest<B>>) -> (NodeRequest<B>, Occupies) {
    let dispatched = next.job.dispatched.min(now);
    let request = NodeRequest { is_reserved: next.is_reserved, dispatched, ..next.job };
    let occupies = Occupies { count: request.count(), weight: request.weight() };
    (request, occupies)
}
