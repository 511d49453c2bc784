//! The live storage node: its state machine, run by the threads that submit and finish jobs.
//!
//! Every decision is made by [`tidegate_proto::node::Node`], the code that the simulator runs as
//! well; this module has the threads, the engine and the clients' sessions around it. A submitting
//! thread puts its jobs into the queues of their tenants, takes out requests for the device, at
//! most an even part of its depth, holds no lock, and works. If the engine works at once, the
//! thread continues until nothing may be dispatched. Then its own replies are complete without a
//! wakeup of another thread; the replies to other sessions' jobs go to their sinks. Otherwise a
//! thread of the engine reports the finished work.
//!
//! The agent handles events that no job causes: the next period, a paced request that becomes
//! eligible. It is woken for a deadline before the one that it sleeps for.

mod local;
#[cfg(test)]
mod parity_tests;
#[cfg(test)]
mod recorded;

pub(crate) use self::local::Local;
use self::local::{LocalSession, slot};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tidegate_fabric::clock::Clock;
use tidegate_fabric::reactor::{MessageQueue, Ready};
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::{PartNumber, Time};
use tidegate_proto::data::pieces::{MAP_MAX, PIECE};
use tidegate_proto::node::{NodeStatus, Output, Slot};

use crate::engine::{Body, Engine, Owner, Sink, Work};
use crate::mutex::lock;
use crate::pieces::{self, Split, Step};
use crate::store::Medium;

/// Batches that one thread runs before it leaves the rest to the agent: its own connections wait
/// meanwhile. With 32 requests at the device and two workers, each with half of them, that is two
/// thousand, or two milliseconds.
const BATCHES_MAX: usize = 128;

/// The node, as this process's threads share it.
#[cfg(not(test))]
pub(crate) type LiveNode = tidegate_proto::node::Node<Body, crate::mutex::MultiThreaded>;
#[cfg(test)]
pub(crate) use self::recorded::RecordedNode as LiveNode;

/// The node, its engine, its sessions, and the agent's waker.
pub(crate) struct Live {
    pub(crate) node: LiveNode,
    /// The deadline that the agent sleeps for, or an earlier one.
    armed: AtomicU64,
    /// A thread stopped while requests may be dispatched.
    is_left: AtomicBool,
    engine: OnceLock<Box<dyn Engine>>,
    /// The sessions that new incarnations are reported to.
    sessions: Mutex<Vec<Weak<Owner>>>,
    /// Parts that were refused when they were last opened, by volume and index.
    refused: Mutex<BTreeMap<(String, u32), String>>,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) clock: Clock,
    waker: Arc<MessageQueue<()>>,
}

impl Live {
    pub(crate) fn new(
        node: LiveNode,
        medium: Arc<dyn Medium>,
        clock: Clock,
        waker: Arc<MessageQueue<()>>,
    ) -> Self {
        Self {
            node,
            armed: AtomicU64::new(Time::MAX.0),
            is_left: AtomicBool::new(false),
            engine: OnceLock::new(),
            sessions: Mutex::default(),
            refused: Mutex::default(),
            medium,
            clock,
            waker,
        }
    }

    /// Sets the engine, which needs the node to return work to it.
    pub(crate) fn set_engine(&self, engine: Box<dyn Engine>) {
        let is_first = self.engine.set(engine).is_ok();
        assert!(is_first, "a node has one engine");
    }

    /// Reports to all sessions that acknowledged writes to a part may have been lost.
    pub(crate) fn announce(&self, part: PartNumber, incarnation: u64) {
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

    /// Why the whole store is unavailable now, if that is known.
    pub(crate) fn store_fault(&self) -> Option<String> {
        self.engine.get().and_then(|engine| engine.fault())
    }

    /// Accepts jobs, and continues until nothing may be dispatched.
    fn submit(&self, session: &mut LocalSession, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        session.resolve_slots(self);
        let LocalSession { slots, owner, requests, batch, finished, .. } = session;
        for job in jobs.drain(..) {
            self.take_in(slot(slots, job.tag.tenant), owner, job, requests);
        }
        let home = self.node.submit(self.clock, requests, batch);
        // Of a node that is ending.
        give_up(requests, Some((owner, done)));
        self.fill(home, batch);
        self.go_on(home, batch, finished, Some((owner, done)));
    }

    /// Finishes what has arrived on a session's own descriptor, and continues until nothing may be
    /// dispatched.
    fn receive(
        &self,
        ready: Ready,
        (batch, finished): (&mut Vec<Work>, &mut Vec<Work>),
        (owner, done): (&Arc<Owner>, &mut Vec<Job>),
    ) {
        let Some(engine) = self.engine.get() else { return };
        engine.on_ready(owner, ready, finished);
        let home = finished.first().map_or(0, |work| work.slot().shard());
        self.go_on(home, batch, finished, Some((owner, done)));
    }

    /// A session is closed.
    fn detach(&self, owner: &Owner) {
        let Some(engine) = self.engine.get() else { return };
        let mut finished = Vec::new();
        engine.detach(owner, &mut finished);
        if !finished.is_empty() {
            self.finished(&mut finished);
        }
    }

    /// Makes a request of a job, or of the first pieces of it.
    #[inline]
    fn take_in(&self, slot: Slot, owner: &Arc<Owner>, mut job: Job, requests: &mut Vec<Work>) {
        if job.command == Command::Map {
            // The reply may cover less than the request.
            job.length = job.length.min(MAP_MAX);
        }
        if pieces::is_large(&job, self.node.range()) {
            let ticket = job.ticket;
            let split = Arc::new(Split::new(job));
            lock(&owner.splits).insert(ticket, split.clone());
            let before = requests.len();
            while let Step::Next(piece) = split.step(self.node.range()) {
                let piece = self.request(slot, owner.clone(), piece, Some(split.clone()));
                let is_first = requests.len() == before;
                requests.push(if is_first { piece } else { piece.continued() });
            }
        } else {
            requests.push(self.request(slot, owner.clone(), job, None));
        }
    }

    fn request(&self, slot: Slot, owner: Arc<Owner>, job: Job, split: Option<Arc<Split>>) -> Work {
        let (command, length, tag) = (job.command, job.length, job.tag);
        let is_piece = split.is_some();
        let mut work = self.node.request(slot, command, length, &tag, Body::new(job, owner, split));
        work.is_piece = is_piece;
        work
    }

    /// Runs `batch`, and every request that may be dispatched because of it.
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
                // The engine has it, and the device may take more.
                self.fill(home, batch);
                continue;
            }
            let is_last = count >= BATCHES_MAX;
            self.finish(home, finished, (!is_last).then_some(&mut *batch));
            if is_last {
                self.is_left.store(true, Ordering::Release);
                self.waker.wake();
            } else {
                self.fill(home, batch);
            }
            deliver(finished, own.as_mut().map(|(owner, done)| (*owner, &mut **done)));
            if is_last {
                return;
            }
        }
    }

    /// Passes work to the engine; measured work runs alone, so that no other time is charged to it.
    fn run(&self, engine: &dyn Engine, batch: &mut Vec<Work>, finished: &mut Vec<Work>) {
        if !batch.iter().any(Work::is_measured) {
            self.node.on_dispatch(self.clock, batch);
            return engine.run(batch, finished);
        }
        let measured: Vec<Work> = batch.extract_if(.., |work| work.is_measured()).collect();
        if !batch.is_empty() {
            engine.run(batch, finished);
        }
        for work in measured {
            let mut alone = vec![work];
            self.node.on_dispatch(self.clock, &mut alone);
            let before = finished.len();
            engine.run(&mut alone, finished);
            self.node.on_completion(self.clock, &mut finished[before..]);
        }
    }

    /// Reports finished work to the node, with the pieces that follow, and takes out the next
    /// requests.
    fn finish(&self, home: usize, finished: &mut [Work], batch: Option<&mut Vec<Work>>) {
        for work in finished.iter_mut() {
            let job = &mut work.body.job;
            if job.command == Command::KeyValue && job.outcome.is_ok() {
                let bytes = job.buffer.len() as u64;
                self.node.on_reply(work, bytes);
            } else if let Some(split) = &work.body.split {
                split.absorb(job);
            }
        }
        let follow = |work: &mut Work, next: &mut Vec<Work>| self.follow(work, next);
        self.node.finish(home, self.clock, finished, batch, follow);
    }

    /// Appends the next pieces, or turns the last piece into the reply to its job.
    fn follow(&self, work: &mut Work, next: &mut Vec<Work>) {
        let Some(split) = work.body.split.clone() else { return };
        if work.body.owner.is_gone.load(Ordering::Relaxed) || self.node.is_ending() {
            split.stop();
        }
        loop {
            match split.step(self.node.range()) {
                Step::Wait => return,
                Step::Over(job) => {
                    work.is_piece = false;
                    return work.body.answer(job);
                }
                Step::Next(piece) => {
                    let (slot, owner) = (work.slot(), work.body.owner.clone());
                    let piece = self.request(slot, owner, piece, Some(split.clone()));
                    next.push(piece.continued());
                }
            }
        }
    }

    /// Takes out more requests, and wakes the agent if it would sleep too long.
    fn fill(&self, home: usize, batch: &mut Vec<Work>) {
        let deadline = self.node.fill(home, self.clock, batch).0;
        if deadline == Time::MAX.0 {
            return;
        }
        // The fence: the agent, which now publishes its deadline, sees what this thread has stored.
        fence(Ordering::SeqCst);
        if deadline < self.armed.load(Ordering::Relaxed)
            && deadline < self.armed.fetch_min(deadline, Ordering::Relaxed)
        {
            self.waker.wake();
        }
    }

    /// One round of the agent: due deadlines, and requests that other threads have left. Returns
    /// the next deadline, and appends the node's outputs.
    pub(crate) fn keep(&self, outputs: &mut Vec<Output>) -> Time {
        let (mut batch, mut finished) = (Vec::new(), Vec::new());
        self.is_left.store(false, Ordering::Relaxed);
        self.node.advance(self.clock);
        self.fill(0, &mut batch);
        self.go_on(0, &mut batch, &mut finished, None);
        outputs.extend(std::iter::from_fn(|| self.node.poll_output()));
        if self.is_left.load(Ordering::Acquire) {
            return Time::ZERO;
        }
        // No thread wakes the agent for a later deadline: it is published first, and checked then.
        self.armed.store(self.node.ends().0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let deadline = self.node.next_deadline();
        self.armed.fetch_min(deadline.0, Ordering::Relaxed);
        deadline
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.node.status(self.clock)
    }

    /// Takes no more jobs, fails those that wait, and finishes those at the device.
    pub(crate) fn end(&self) {
        give_up(&mut self.node.end(self.clock), None);
        if let Some(engine) = self.engine.get() {
            engine.stop();
        }
    }

    /// Takes waiting jobs of `which` out of their queues, and answers them.
    fn cancel(&self, which: impl Fn(&Body) -> bool) {
        give_up(&mut self.node.cancel(self.clock, which), None);
    }
}

impl Sink for Live {
    fn finished(&self, work: &mut Vec<Work>) {
        let home = work.first().map_or(0, |work| work.slot().shard());
        self.go_on(home, &mut Vec::new(), work, None);
    }
}

/// Returns finished jobs to their sessions: those of the caller to `own`, others to their outlets.
fn deliver(finished: &mut Vec<Work>, mut own: Option<(&Arc<Owner>, &mut Vec<Job>)>) {
    let mut foreign: Option<(Arc<Owner>, Vec<Job>)> = None;
    // A piece is no reply.
    for work in finished.drain(..).filter(|work| work.body.split.is_none()) {
        let stay = work.stay();
        let Body { mut job, owner, .. } = work.body;
        job.times.stay = stay;
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
fn give_up(withdrawn: &mut Vec<Work>, own: Option<(&Arc<Owner>, &mut Vec<Job>)>) {
    for Work { body, .. } in withdrawn.iter_mut() {
        body.job.outcome = Err(Fault::Ending);
        if let Some(split) = body.split.clone() {
            split.stop();
            split.absorb(&mut body.job);
            // No more pieces are made, whatever their size.
            if let Step::Over(job) = split.step(PIECE) {
                body.answer(job);
            }
        }
    }
    deliver(withdrawn, own);
}
