//! The node at work, run by the threads that submit and finish jobs.
//!
//! Requests wait in shards, each behind a lock of its own ([`crate::shards`]), which is held for
//! counting and queueing and never for work. A thread that submits puts its jobs into the shards of
//! their tenants, takes out what may go to the device, at most an even part of its depth, lets go
//! of the locks, and works. If the engine works on the spot, the thread goes on until nothing may
//! be dispatched, and then its own answers are complete without anybody having been woken; the
//! answers to other sessions' jobs go to their sinks. Otherwise a thread of the engine comes by
//! with what it finished.
//!
//! The *coordinator* ([`tidegate_proto::node::Coordinator`]) decides all that concerns several
//! shards, behind one more lock. A thread that submits or finishes jobs after a period's end takes
//! this lock, and else the agent does. A thread that holds it may lock shards; a thread that holds
//! a shard never locks it.
//!
//! The agent handles events that no job causes: the next period, a paced request that becomes
//! eligible. It is woken for a deadline before the one that it sleeps for.

mod local;

pub(crate) use self::local::Local;
use self::local::{LocalSession, slot};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tidegate_algo::scheduling::device::ReplySize;
use tidegate_fabric::reactor::MessageQueue;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::{CostModel, Time};
use tidegate_proto::data::pieces::{MAP_MAX, PIECE};
use tidegate_proto::node::{Coordinator, NodeStatus, Output, RequestCost, Slot};

use crate::clock::Clock;
use crate::cost::cost;
use crate::engine::{Engine, Owner, Sink, Work};
use crate::measure::Measure;
use crate::mutex::lock;
use crate::pieces::{self, Split, Step};
use crate::shards::{Shards, Visit};
use crate::store::Medium;

/// Batches that one thread runs before it leaves the rest to the agent: its own connections wait
/// meanwhile. With 32 requests at the device and two workers, of whom each takes half, that is two
/// thousand, or two milliseconds.
const BATCHES_MAX: usize = 128;

/// The shards, the coordinator, the engine, and what wakes the agent.
pub(crate) struct Live {
    shards: Shards<Work>,
    coordinator: Mutex<Coordinator>,
    /// When the coordinator's period ends, and how many plans it has taken.
    ends: AtomicU64,
    plans: AtomicU64,
    /// The deadline that the agent sleeps for, or an earlier one.
    armed: AtomicU64,
    /// A thread left with requests that may be dispatched.
    is_left: AtomicBool,
    is_ending: AtomicBool,
    engine: OnceLock<Box<dyn Engine>>,
    /// The sessions that new incarnations are reported to.
    sessions: Mutex<Vec<Weak<Owner>>>,
    /// Parts that were refused when they were last opened, by volume and index.
    refused: Mutex<BTreeMap<(String, u32), String>>,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) clock: Clock,
    waker: Arc<MessageQueue<()>>,
    /// The cost of a request; a share of the node is a share of such costs.
    cost: CostModel,
    measure: Measure,
    /// Of requests with keys: what comes after a long reply waits for it.
    replies: ReplySize,
}

impl Live {
    pub(crate) fn new(
        (shards, coordinator): (Shards<Work>, Coordinator),
        medium: Arc<dyn Medium>,
        clock: Clock,
        waker: Arc<MessageQueue<()>>,
        (cost, measure): (CostModel, Measure),
    ) -> Self {
        Self {
            shards,
            coordinator: Mutex::new(coordinator),
            ends: AtomicU64::new(Time::MAX.0),
            plans: AtomicU64::new(0),
            armed: AtomicU64::new(Time::MAX.0),
            is_left: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            engine: OnceLock::new(),
            sessions: Mutex::default(),
            refused: Mutex::default(),
            medium,
            clock,
            waker,
            cost,
            measure,
            replies: ReplySize::default(),
        }
    }

    /// Gives the node its engine, which needs the node to give work back to.
    pub(crate) fn set_engine(&self, engine: Box<dyn Engine>) {
        let is_first = self.engine.set(engine).is_ok();
        assert!(is_first, "a node has one engine");
    }

    /// Tells all sessions that acknowledged writes to a part may have been lost.
    pub(crate) fn announce(&self, part: u32, incarnation: u64) {
        let sessions = lock(&self.sessions).clone();
        for owner in sessions.iter().filter_map(Weak::upgrade) {
            owner.sink.incarnation(part, incarnation);
        }
    }

    /// Parts that are refused or not durable: volume, index and reason.
    pub(crate) fn faults(&self) -> Vec<(String, u32, String)> {
        let mut faults = self.medium.faults();
        let refused = lock(&self.refused);
        let refused = refused.iter();
        faults.extend(
            refused.map(|((volume, index), reason)| (volume.clone(), *index, reason.clone())),
        );
        faults
    }

    /// Why the store as a whole does nothing now, if that is known.
    pub(crate) fn store_fault(&self) -> Option<String> {
        self.engine.get().and_then(|engine| engine.fault())
    }

    /// Takes in jobs, and goes on until nothing may be dispatched.
    fn submit(&self, session: &mut LocalSession, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        self.advance();
        session.resolve_slots(self);
        let home = self.put(session, jobs, done);
        let own = Some((&session.owner, done));
        self.go_on(home, &mut session.batch, &mut session.finished, own);
    }

    /// Puts jobs into the shards of their tenants, and takes out what may go to the device. Says
    /// which shard was the last.
    fn put(&self, session: &mut LocalSession, jobs: &mut Vec<Job>, done: &mut Vec<Job>) -> usize {
        let LocalSession { slots, owner, batch, .. } = session;
        let slot_of = |job: &Job| slot(slots, job.tag.tenant);
        let shard_of = |job: &Job| slot_of(job).shard();
        if self.shards.count() > 1 {
            // Those of a tenant keep their order.
            jobs.sort_by_key(shard_of);
        }
        let mut now = Time::ZERO;
        let mut home = 0;
        let mut jobs = jobs.drain(..).peekable();
        while let Some(shard) = jobs.peek().map(shard_of) {
            let mut visit = self.shards.visit(shard);
            (now, home) = (self.clock.now(), shard);
            if self.is_ending.load(Ordering::Relaxed) {
                drop(visit);
                done.extend(jobs.map(|job| Job { outcome: Err(Fault::Ending), ..job }));
                break;
            }
            while let Some(job) = jobs.next_if(|job| shard_of(job) == shard) {
                self.take_in(&mut visit, now, slot_of(&job), owner, job);
            }
            if jobs.peek().is_none() {
                visit.take_with(now, 0, batch, Work::dispatched);
            }
        }
        self.fill(home, now, batch);
        home
    }

    /// Puts a job into its tenant's queue, or the first pieces of it.
    #[inline]
    fn take_in(
        &self,
        visit: &mut Visit<'_, Work>,
        now: Time,
        slot: Slot,
        owner: &Arc<Owner>,
        mut job: Job,
    ) {
        if job.command == Command::Map {
            // The answer may be about less than was asked.
            job.length = job.length.min(MAP_MAX);
        }
        if pieces::is_large(&job, self.measure.range()) {
            let ticket = job.ticket;
            let split = Arc::new(Split::new(job));
            lock(&owner.splits).insert(ticket, split.clone());
            while let Step::Next(chunk) = split.step(self.measure.range()) {
                self.push(visit, now, (slot, owner.clone()), chunk, Some(split.clone()));
            }
        } else {
            self.push(visit, now, (slot, owner.clone()), job, None);
        }
    }

    fn push(
        &self,
        visit: &mut Visit<'_, Work>,
        now: Time,
        (slot, owner): (Slot, Arc<Owner>),
        job: Job,
        split: Option<Arc<Split>>,
    ) {
        let cost = cost(&job);
        let work = job.command.work(&self.cost, job.length, &job.tag);
        let request_cost = RequestCost { cost, work, delay: job.tag.delay };
        visit.push(now, slot, request_cost, Work { split, ..Work::new(job, owner, slot, cost) });
    }

    /// Runs `batch`, and whatever may be dispatched because of it.
    fn go_on(
        &self,
        home: usize,
        batch: &mut Vec<Work>,
        finished: &mut Vec<Work>,
        mut own: Option<(&Arc<Owner>, &mut Vec<Job>)>,
    ) {
        let Some(engine) = self.engine.get() else { return };
        for count in 1.. {
            if !batch.is_empty() {
                self.run(&**engine, batch, finished);
            } else if finished.is_empty() {
                return;
            }
            if finished.is_empty() {
                // The engine has it, and there may be room for more.
                self.fill(home, self.clock.now(), batch);
                continue;
            }
            let is_last = count >= BATCHES_MAX;
            let now = self.finish(home, finished, (!is_last).then_some(&mut *batch));
            if is_last {
                self.is_left.store(true, Ordering::Release);
                self.waker.wake();
            } else {
                self.fill(home, now, batch);
            }
            deliver(finished, own.as_mut().map(|(owner, done)| (*owner, &mut **done)));
            if is_last {
                return;
            }
        }
    }

    /// Gives work to the engine; what is measured alone, so that nothing else is taken for it.
    fn run(&self, engine: &dyn Engine, batch: &mut Vec<Work>, finished: &mut Vec<Work>) {
        let is_measured = |work: &mut Work| work.job.command.is_measured();
        if batch.iter_mut().all(|work| !is_measured(work)) {
            self.measure.on_batch(batch, || self.clock.now());
            return engine.run(batch, finished);
        }
        let measured: Vec<Work> = batch.extract_if(.., is_measured).collect();
        if !batch.is_empty() {
            engine.run(batch, finished);
        }
        let device = self.shards.device();
        for mut work in measured {
            self.measure.on_dispatch(&mut work, self.clock.now(), device);
            let before = finished.len();
            engine.run(&mut vec![work], finished);
            for work in &mut finished[before..] {
                self.measure.on_finished(work, self.clock.now(), device);
            }
        }
    }

    /// Reports finished work to the shards, and takes out what may go instead from the one whose
    /// turn it is.
    fn finish(&self, home: usize, finished: &mut [Work], batch: Option<&mut Vec<Work>>) -> Time {
        let now = self.advance();
        let mut headroom = 0;
        for work in finished.iter_mut() {
            headroom += work.count();
            if work.job.command == Command::KeyValue && work.job.outcome.is_ok() {
                let keys = self.replies.on_reply(work.job.buffer.len() as u64, work.count());
                self.shards.device().set_limit(keys);
            }
            if work.since != Time::ZERO {
                self.measure.on_finished(work, now, self.shards.device());
            }
            if let Some(split) = &work.split {
                split.absorb(&mut work.job);
            }
        }
        let next = self.shards.next(now, home);
        let shards = finished.iter().fold(0u32, |shards, work| shards | 1 << work.slot.shard());
        let next = next.unwrap_or(shards.trailing_zeros() as usize);
        let others =
            (0..self.shards.count()).filter(|shard| *shard != next && shards >> shard & 1 == 1);
        for shard in others {
            self.complete(shard, finished);
        }
        let (mut visit, now) = self.complete(next, finished);
        match batch {
            Some(batch) => visit.take_with(now, headroom, batch, Work::dispatched),
            None => self.shards.device().release(headroom),
        }
        now
    }

    /// Reports a shard's own finished work to it.
    fn complete(&self, shard: usize, finished: &mut [Work]) -> (Visit<'_, Work>, Time) {
        let mut visit = self.shards.visit(shard);
        let now = self.clock.now();
        let mut cost = 0;
        for work in finished.iter_mut().filter(|work| work.slot.shard() == shard) {
            visit.complete(now, work.slot, work.cost);
            cost += u64::from(work.cost) + u64::from(work.more);
            if work.more > 0 {
                visit.charge(now, work.slot, self.more(work), work.is_reserved);
            }
            if work.split.is_some() {
                self.follow(&mut visit, now, work);
            }
        }
        self.shards.device().finish(shard, cost);
        (visit, now)
    }

    /// The cost of work beyond its cost at dispatch; a unit weighs as much as a written piece of
    /// [`PIECE`] bytes.
    fn more(&self, work: &Work) -> RequestCost {
        let write = Command::Write { durable: false };
        let unit = write.work(&self.cost, PIECE, &work.job.tag);
        RequestCost { cost: work.more, work: unit.saturating_mul(work.more), delay: 0 }
    }

    /// Puts in what follows a piece, or makes it the answer to its job.
    fn follow(&self, visit: &mut Visit<'_, Work>, now: Time, work: &mut Work) {
        let Some(split) = work.split.clone() else { return };
        let is_gone = work.owner.is_gone.load(Ordering::Relaxed);
        if is_gone || self.is_ending.load(Ordering::Relaxed) {
            split.stop();
        }
        loop {
            match split.step(self.measure.range()) {
                Step::Wait => return,
                Step::Over(job) => return work.answer(job),
                Step::Next(chunk) => {
                    let to = (work.slot, work.owner.clone());
                    self.push(visit, now, to, chunk, Some(split.clone()));
                }
            }
        }
    }

    /// Takes out more if there is more, and wakes the agent if it would sleep too long.
    fn fill(&self, home: usize, now: Time, batch: &mut Vec<Work>) {
        let clock = || self.clock.now();
        let now = self.shards.fill_with(home, now, &clock, batch, Work::dispatched);
        let deadline = self.shards.note(now).0;
        if deadline == Time::MAX.0 {
            return;
        }
        // The fence: what this thread has shown, the agent sees who now says what it sleeps for.
        fence(Ordering::SeqCst);
        if deadline < self.armed.load(Ordering::Relaxed)
            && deadline < self.armed.fetch_min(deadline, Ordering::Relaxed)
        {
            self.waker.wake();
        }
    }

    /// Begins the periods that have begun. Says what time it is.
    fn advance(&self) -> Time {
        let now = self.clock.now();
        if now.0 >= self.ends.load(Ordering::Relaxed) {
            self.coordinate(|coordinator, now, mut shards| coordinator.advance(now, &mut shards));
        }
        now
    }

    /// The agent's round: what the time has brought, and what other threads have left. Says when to
    /// come again, and appends what the coordinator wants done.
    pub(crate) fn keep(&self, outputs: &mut Vec<Output>) -> Time {
        let (mut batch, mut finished) = (Vec::new(), Vec::new());
        self.is_left.store(false, Ordering::Relaxed);
        self.fill(0, self.advance(), &mut batch);
        self.go_on(0, &mut batch, &mut finished, None);
        self.coordinate(|coordinator, _, _| {
            outputs.extend(std::iter::from_fn(|| coordinator.poll_output()))
        });
        if self.is_left.load(Ordering::Acquire) {
            return Time::ZERO;
        }
        let ends = self.ends.load(Ordering::Relaxed);
        // No thread wakes the agent for a later deadline: it is published first, and checked then.
        self.armed.store(ends, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let deadline = ends.min(self.shards.note(self.clock.now()).0);
        self.armed.fetch_min(deadline, Ordering::Relaxed);
        Time(deadline)
    }

    /// Calls the coordinator, and publishes its state.
    pub(crate) fn coordinate<R>(
        &self,
        what: impl FnOnce(&mut Coordinator, Time, &Shards<Work>) -> R,
    ) -> R {
        // As with shards, whatever a panic left is not to be used.
        let lock = self.coordinator.lock();
        let mut coordinator = lock.unwrap_or_else(|_| panic!("the node's steward has panicked"));
        let result = what(&mut coordinator, self.clock.now(), &self.shards);
        self.ends.store(coordinator.ends().0, Ordering::Relaxed);
        self.plans.store(coordinator.plans(), Ordering::Release);
        self.measure.set_capacity(coordinator.capacity());
        result
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.coordinate(|coordinator, now, shards| coordinator.status(now, &shards))
    }

    /// Takes no more jobs, fails those that wait, and finishes those at the device.
    pub(crate) fn end(&self) {
        // Seen by whoever locks a shard after what waits there was taken out.
        self.is_ending.store(true, Ordering::Relaxed);
        let waiting = self.withdraw(|_| true);
        self.coordinate(|coordinator, _, _| coordinator.on_ending());
        give_up(waiting);
        if let Some(engine) = self.engine.get() {
            engine.stop();
        }
    }

    /// Takes out what waits of `which`.
    fn withdraw(&self, which: impl Fn(&Work) -> bool) -> Vec<Work> {
        let mut withdrawn = Vec::new();
        for shard in 0..self.shards.count() {
            let mut visit = self.shards.visit(shard);
            withdrawn.append(&mut visit.cancel(self.clock.now(), &which));
        }
        self.shards.note(self.clock.now());
        withdrawn
    }
}

impl Sink for Live {
    fn finished(&self, work: &mut Vec<Work>) {
        let home = work.first().map_or(0, |work| work.slot.shard());
        self.go_on(home, &mut Vec::new(), work, None);
    }
}

/// Gives finished jobs to those who asked: to `own`, if they are its, else to their outlets.
fn deliver(finished: &mut Vec<Work>, mut own: Option<(&Arc<Owner>, &mut Vec<Job>)>) {
    let mut foreign: Option<(Arc<Owner>, Vec<Job>)> = None;
    // A piece is no answer.
    for Work { job, owner, .. } in finished.drain(..).filter(|work| work.split.is_none()) {
        match (&mut own, &mut foreign) {
            (Some((own, done)), _) if Arc::ptr_eq(own, &owner) => done.push(job),
            (_, Some((same, jobs))) if Arc::ptr_eq(same, &owner) => jobs.push(job),
            _ => hand_over(foreign.replace((owner, vec![job]))),
        }
    }
    hand_over(foreign);
}

fn hand_over(jobs: Option<(Arc<Owner>, Vec<Job>)>) {
    if let Some((owner, mut jobs)) = jobs
        && !owner.is_gone.load(Ordering::Relaxed)
    {
        owner.sink.finished(&mut jobs);
    }
}

/// Answers work that was taken out of its queue, and the jobs of which it was the last piece.
fn give_up(mut withdrawn: Vec<Work>) {
    for work in &mut withdrawn {
        work.job.outcome = Err(Fault::Ending);
        if let Some(split) = work.split.clone() {
            split.stop();
            split.absorb(&mut work.job);
            // No more pieces are made, whatever their size.
            if let Step::Over(job) = split.step(PIECE) {
                work.answer(job);
            }
        }
    }
    deliver(&mut withdrawn, None);
}
