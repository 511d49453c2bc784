//! The machine and its device, run by whoever comes by.
//!
//! The machine ([`tidegate_proto::node::Node`]) stands behind one lock, which is held for counting
//! and queueing and never for work. A thread that submits takes out what may go to the device, up
//! to its depth, lets go of the lock, and runs it. If the engine works on the spot, the thread goes
//! on until nothing may be dispatched, and then its own answers are complete without anybody having
//! been woken; the answers to other sessions' jobs go to their outlets. Otherwise a thread of the
//! engine comes by with what it finished.
//!
//! What nobody's coming will set in motion (the next period, a paced request that becomes eligible)
//! is the keeper's business: it is woken when the machine's deadline is before the one it sleeps
//! for.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tidegate_fabric::reactor::Mailbox;
use tidegate_fabric::service::{Fault, Job, Outlet, Part, Service, Session};
use tidegate_model::{CostModel, TenantId, Time};
use tidegate_proto::node::{Ask, Node, NodeStatus, Output, Slot};

use crate::clock::Clock;
use crate::engine::{Engine, Owner, Sink, Work};
use crate::store::Medium;

/// Batches that one thread runs before it leaves the rest to the keeper: its own connections wait
/// meanwhile. With 32 requests at the device that is two thousand, or two milliseconds.
const BATCHES_MAX: usize = 64;

/// A request of up to this many bytes costs one; each further one begun costs one more.
const UNIT: u32 = 128 << 10;

/// The machine, its device, and what wakes the keeper.
pub(crate) struct Live {
    core: Mutex<Core>,
    engine: OnceLock<Box<dyn Engine>>,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) clock: Clock,
    bell: Arc<Mailbox<()>>,
    /// What shares of the node are shares of.
    cost: CostModel,
}

struct Core {
    machine: Node<Work>,
    /// What the keeper sleeps for, or earlier.
    armed: Time,
    /// A thread left with requests that may be dispatched.
    is_left: bool,
    is_ending: bool,
}

impl Live {
    pub(crate) fn new(
        machine: Node<Work>,
        medium: Arc<dyn Medium>,
        clock: Clock,
        bell: Arc<Mailbox<()>>,
        cost: CostModel,
    ) -> Self {
        let core = Core { machine, armed: Time::MAX, is_left: false, is_ending: false };
        Self { core: Mutex::new(core), engine: OnceLock::new(), medium, clock, bell, cost }
    }

    /// Gives the node its engine, which needs the node to give work back to.
    pub(crate) fn set_engine(&self, engine: Box<dyn Engine>) {
        let is_first = self.engine.set(engine).is_ok();
        assert!(is_first, "a node has one engine");
    }

    /// Takes in jobs, and goes on until nothing may be dispatched.
    fn submit(&self, session: &mut LocalSession, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        let (mut core, now) = self.core_now();
        if core.is_ending {
            drop(core);
            return done.extend(jobs.drain(..).map(ended));
        }
        session.look_up(&core.machine);
        for job in jobs.drain(..) {
            let (slot, cost) = (session.slot(job.tag.tenant), cost(&job));
            let work = job.command.work(&self.cost, job.length, &job.tag);
            let ask = Ask { cost, work, delay: job.tag.delay };
            let work = Work { job, owner: session.owner.clone(), slot, cost, due: Time::ZERO };
            core.machine.on_request(now, slot, ask, work);
        }
        dispatch(&mut core, now, &mut session.batch);
        self.unlock(core);
        let own = Some((&session.owner, done));
        self.go_on(&mut session.batch, &mut session.finished, own);
    }

    /// Runs `batch`, and whatever may be dispatched because of it.
    fn go_on(
        &self,
        batch: &mut Vec<Work>,
        finished: &mut Vec<Work>,
        mut own: Option<(&Arc<Owner>, &mut Vec<Job>)>,
    ) {
        let Some(engine) = self.engine.get() else { return };
        for count in 1.. {
            if !batch.is_empty() {
                engine.run(batch, finished);
            }
            if finished.is_empty() {
                return;
            }
            let (mut core, now) = self.core_now();
            for work in &*finished {
                core.machine.on_completion(now, work.slot, work.cost);
            }
            match count {
                BATCHES_MAX => core.is_left = true,
                _ => dispatch(&mut core, now, batch),
            }
            self.unlock(core);
            deliver(finished, own.as_mut().map(|(owner, done)| (*owner, &mut **done)));
        }
    }

    /// Lets go of the machine, and wakes the keeper if it would sleep too long.
    fn unlock(&self, mut core: MutexGuard<'_, Core>) {
        let deadline = core.machine.next_deadline();
        let is_needed = deadline < core.armed || core.is_left;
        core.armed = core.armed.min(deadline);
        drop(core);
        if is_needed {
            self.bell.ring();
        }
    }

    /// The keeper's turn: what the time has brought, and what others have left. Says when to come
    /// again, and appends what the machine wants done.
    pub(crate) fn keep(&self, outputs: &mut Vec<Output>) -> Time {
        let (mut batch, mut finished) = (Vec::new(), Vec::new());
        let (mut core, now) = self.core_now();
        if now >= core.machine.next_deadline() {
            core.machine.on_deadline(now);
        }
        core.is_left = false;
        if !core.is_ending {
            dispatch(&mut core, now, &mut batch);
        }
        // Nobody rings for anything that is not before this.
        core.armed = core.machine.next_deadline();
        drop(core);
        self.go_on(&mut batch, &mut finished, None);
        let mut core = self.core();
        outputs.extend(std::iter::from_fn(|| core.machine.poll_output()));
        core.armed = match core.is_left {
            true => Time::ZERO,
            false => core.machine.next_deadline(),
        };
        core.armed
    }

    /// Tells the machine something.
    pub(crate) fn tell<R>(&self, what: impl FnOnce(&mut Node<Work>, Time) -> R) -> R {
        let (mut core, now) = self.core_now();
        what(&mut core.machine, now)
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.tell(|machine, now| machine.status(now))
    }

    /// Takes no more jobs, fails those that wait, and finishes those at the device.
    pub(crate) fn end(&self) {
        let (mut core, now) = self.core_now();
        core.is_ending = true;
        core.machine.on_ending();
        let mut waiting = core.machine.cancel(now, |_| true);
        drop(core);
        waiting.iter_mut().for_each(|work| work.job.outcome = Err(Fault::Ending));
        deliver(&mut waiting, None);
        if let Some(engine) = self.engine.get() {
            engine.stop();
        }
    }

    /// Takes out what waits of `which`.
    fn withdraw(&self, which: impl Fn(&Work) -> bool) -> Vec<Work> {
        let (mut core, now) = self.core_now();
        let withdrawn = core.machine.cancel(now, which);
        self.unlock(core);
        withdrawn
    }

    /// The machine, and the time. It is read once the lock is held: read before, it would go
    /// backwards from one thread to the next, and busy time would be counted twice.
    fn core_now(&self) -> (MutexGuard<'_, Core>, Time) {
        let core = self.core();
        let now = self.clock.now();
        (core, now)
    }

    /// A panic with the machine locked is a bug of ours; to go on with what it left would be
    /// another. It poisons the lock, and every thread that comes by ends with it.
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|_| panic!("the node's machine has panicked"))
    }
}

impl Sink for Live {
    fn finished(&self, work: &mut Vec<Work>) {
        let mut batch = Vec::new();
        self.go_on(&mut batch, work, None);
    }
}

/// Takes out what may go to the device.
fn dispatch(core: &mut Core, now: Time, batch: &mut Vec<Work>) {
    batch.extend(std::iter::from_fn(|| core.machine.next_dispatch(now)).map(|next| next.job));
}

/// Gives finished jobs to those who asked: to `own`, if they are its, else to their outlets.
fn deliver(finished: &mut Vec<Work>, mut own: Option<(&Arc<Owner>, &mut Vec<Job>)>) {
    let mut foreign: Option<(Arc<Owner>, Vec<Job>)> = None;
    for Work { job, owner, .. } in finished.drain(..) {
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
        owner.outlet.finished(&mut jobs);
    }
}

fn ended(mut job: Job) -> Job {
    job.outcome = Err(Fault::Ending);
    job
}

/// What a job costs: one, and one more for each further 128 KiB that it moves. Zeros count as what
/// is written: where the store has no better way, they are. A request for several keys costs one
/// for each, as many requests for one would; each takes at least a byte, whatever the tag says.
fn cost(job: &Job) -> u32 {
    use tidegate_fabric::service::Command::{KeyValue, Read, Write, Zero};
    let pieces = job.length.div_ceil(UNIT).max(1);
    match job.command {
        KeyValue => pieces.max(job.tag.cost.min(job.length)),
        Read | Write { .. } | Zero { .. } => pieces,
        _ => 1,
    }
}

/// A node in the same process.
pub(crate) struct Local(pub(crate) Arc<Live>);

impl Service for Local {
    fn session(&self, outlet: Arc<dyn Outlet>) -> Box<dyn Session> {
        let owner = Arc::new(Owner { outlet, is_gone: AtomicBool::new(false) });
        Box::new(LocalSession {
            live: self.0.clone(),
            owner,
            names: Vec::new(),
            slots: Vec::new(),
            looked_up: None,
            batch: Vec::new(),
            finished: Vec::new(),
        })
    }
}

struct LocalSession {
    live: Arc<Live>,
    owner: Arc<Owner>,
    names: Vec<String>,
    /// Of the names, as they are since so many plans as `looked_up` says.
    slots: Vec<Slot>,
    looked_up: Option<u64>,
    batch: Vec<Work>,
    finished: Vec<Work>,
}

impl LocalSession {
    fn look_up(&mut self, machine: &Node<Work>) {
        let plans = machine.plans();
        if self.looked_up != Some(plans) {
            self.slots.clear();
            self.slots.extend(self.names.iter().map(|name| machine.slot(name)));
            self.looked_up = Some(plans);
        }
    }

    fn slot(&self, tenant: TenantId) -> Slot {
        let place = usize::from(tenant.0).checked_sub(1);
        place.and_then(|place| self.slots.get(place)).copied().unwrap_or(Slot::NOBODY)
    }
}

impl Session for LocalSession {
    fn tenants(&mut self, names: &[String]) {
        self.names = names.to_vec();
        self.looked_up = None;
    }

    fn open(&mut self, part: &Part) -> Result<u32, String> {
        self.live.medium.open(part).map_err(|error| error.to_string())
    }

    fn submit(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        if !jobs.is_empty() {
            let live = self.live.clone();
            live.submit(self, jobs, done);
        }
    }

    fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        let live = self.live.clone();
        live.tell(|machine, _| {
            self.look_up(machine);
            for (tenant, work) in costs {
                machine.on_elsewhere(self.slot(*tenant), *work);
            }
        });
    }

    fn cancel(&mut self, tickets: &[u64]) {
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        let is_ours = |work: &Work| Arc::ptr_eq(&work.owner, &self.owner);
        let mut withdrawn =
            self.live.withdraw(|work| is_ours(work) && tickets.contains(&work.job.ticket));
        withdrawn.iter_mut().for_each(|work| work.job.outcome = Err(Fault::Ending));
        deliver(&mut withdrawn, None);
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        self.owner.is_gone.store(true, Ordering::Relaxed);
        self.live.withdraw(|work| Arc::ptr_eq(&work.owner, &self.owner));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_fabric::buffer::Buffer;
    use tidegate_fabric::service::Command;
    use tidegate_model::{Class, ContextId, Operation, Tag};

    use super::*;

    #[test]
    fn a_request_costs_what_it_moves_and_each_of_its_keys() {
        let cost = |command, length, tagged| {
            let tag = Tag {
                tenant: TenantId(1),
                context: ContextId::NONE,
                class: Class::Medium,
                operation: Operation::Read,
                cost: tagged,
                delay: 0,
            };
            let (buffer, outcome) = (Buffer::empty(), Ok(()));
            super::cost(&Job {
                ticket: 0,
                tag,
                command,
                part: 0,
                offset: 0,
                length,
                buffer,
                outcome,
            })
        };
        assert_eq!(cost(Command::Read, 4 << 10, 4 << 10), 1);
        assert_eq!(cost(Command::Read, (128 << 10) + 1, 0), 2);
        assert_eq!(cost(Command::Flush, 0, 1), 1);
        assert_eq!(cost(Command::KeyValue, 600, 100), 100, "a get of a hundred keys");
        assert_eq!(cost(Command::KeyValue, 600, 1), 1);
        assert_eq!(cost(Command::KeyValue, 300 << 10, 1), 3, "a large value");
        assert_eq!(cost(Command::KeyValue, 6, u32::MAX), 6, "a tag that cannot be");
    }
}
