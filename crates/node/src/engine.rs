//! Execution of jobs that the scheduler has dispatched, and the time when each counts as done.
//!
//! An engine takes work and either does it on the spot, in the submitter's thread, or gives it back
//! to its [`Sink`] later, from a thread of its own. Memory is worked on on the spot: to hand a copy
//! of 4 KiB to another thread costs more than to make it.

pub(crate) mod model;
pub(crate) mod pool;
#[allow(unsafe_code, reason = "the kernel reads and writes buffers on its own")]
pub(crate) mod ring;
#[cfg(test)]
mod samples;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tidegate_fabric::service::{Command, CompletionSink, Job};
use tidegate_model::Time;
use tidegate_proto::node::{Dispatched, Slot};

use crate::mutex::lock;
use crate::pieces::Split;
use crate::store::Medium;

/// A job on its way through the node.
pub(crate) struct Work {
    pub(crate) job: Job,
    pub(crate) owner: Arc<Owner>,
    pub(crate) slot: Slot,
    /// In units of cost, as the scheduler counts.
    pub(crate) cost: u32,
    /// Before when it does not count as done.
    pub(crate) due: Time,
    /// When it went to the device, of what is timed; else zero.
    pub(crate) since: Time,
    /// The measured cost beyond [`Self::cost`], in units.
    pub(crate) more: u32,
    /// It went by right.
    pub(crate) is_reserved: bool,
    /// The job that it is a chunk of. Its own answer goes to no client.
    pub(crate) split: Option<Arc<Split>>,
}

impl Work {
    /// Work for a slot, at this cost.
    pub(crate) fn new(job: Job, owner: Arc<Owner>, slot: Slot, cost: u32) -> Self {
        let (due, since) = (Time::ZERO, Time::ZERO);
        Self { job, owner, slot, cost, due, since, more: 0, is_reserved: false, split: None }
    }

    /// It was the last piece, and answers its job.
    pub(crate) fn answer(&mut self, job: Job) {
        lock(&self.owner.splits).remove(&job.ticket);
        (self.job, self.split) = (job, None);
    }

    /// The scheduler has let it through. Also says as how many requests it counts at the device.
    pub(crate) fn dispatched(next: Dispatched<Self>) -> (Self, u32) {
        let work = Self { is_reserved: next.is_reserved, ..next.job };
        let count = work.count();
        (work, count)
    }

    /// As how many requests it counts at the device: a request for several keys as one for each.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        if self.job.command == Command::KeyValue { self.cost } else { 1 }
    }
}

/// The session that owns the work.
pub(crate) struct Owner {
    pub(crate) sink: Arc<dyn CompletionSink>,
    /// The session is closed, and its answers are dropped.
    pub(crate) is_gone: AtomicBool,
    /// It carries long requests and replies.
    pub(crate) is_bulk: AtomicBool,
    /// Its jobs that are served in pieces, by ticket.
    pub(crate) splits: Mutex<HashMap<u64, Arc<Split>>>,
}

impl Owner {
    pub(crate) fn new(sink: Arc<dyn CompletionSink>) -> Self {
        let (is_gone, is_bulk) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { sink, is_gone, is_bulk, splits: Mutex::default() }
    }
}

/// Where work goes that was not finished at once.
pub(crate) trait Sink: Send + Sync {
    /// Takes all of `work`, which is finished.
    fn finished(&self, work: &mut Vec<Work>);
}

/// Something that does work.
pub(crate) trait Engine: Send + Sync {
    /// Takes all of `work`; what is finished at once is appended to `done`.
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>);

    /// Why nothing can be done now, if that is known.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Ends the engine's threads, once everything that was taken is finished. Work that comes later
    /// fails.
    fn stop(&self);
}

/// Does everything on the spot.
pub(crate) struct Inline {
    pub(crate) medium: Arc<dyn Medium>,
}

impl Engine for Inline {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        self.medium.perform(&mut work.iter_mut().map(|work| &mut work.job));
        done.append(work);
    }

    fn stop(&self) {}
}
