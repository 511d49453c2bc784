//! Execution of jobs that the scheduler has dispatched, and the time when each counts as done.
//!
//! An engine either does work at once, in the submitter's thread, or returns it to its [`Sink`]
//! later, from a thread of its own. The memory store works at once: to pass a copy of 4 KiB to
//! another thread costs more than the copy.

pub(crate) mod memcached;
pub(crate) mod model;
pub(crate) mod pool;
#[allow(unsafe_code, reason = "no library offers ioprio_set")]
mod priority;
#[allow(unsafe_code, reason = "the kernel reads and writes buffers on its own")]
pub(crate) mod ring;
#[cfg(test)]
mod samples;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use tidegate_fabric::reactor::{Ready, Registrar};
use tidegate_fabric::service::{CompletionSink, Job};
use tidegate_model::Time;
use tidegate_proto::node::NodeRequest;

use crate::mutex::lock;
use crate::pieces::Split;
use crate::store::Medium;
use memcached::WorkerLine;

/// A job on its way through the node.
pub(crate) type Work = NodeRequest<Body>;

/// The data needed to do the work and to answer it.
pub(crate) struct Body {
    pub(crate) job: Job,
    pub(crate) owner: Arc<Owner>,
    /// The earliest time when it counts as done.
    pub(crate) due: Time,
    /// The job that it is a piece of. The piece's own result goes to no client.
    pub(crate) split: Option<Arc<Split>>,
}

impl Body {
    pub(crate) fn new(job: Job, owner: Arc<Owner>, split: Option<Arc<Split>>) -> Self {
        Self { job, owner, due: Time::ZERO, split }
    }

    /// It was the last piece, and answers its job.
    pub(crate) fn answer(&mut self, job: Job) {
        lock(&self.owner.splits).remove(&job.ticket);
        (self.job, self.split) = (job, None);
    }
}

/// The session that owns the work.
pub(crate) struct Owner {
    pub(crate) sink: Arc<dyn CompletionSink>,
    /// The session is closed, and its answers are dropped.
    pub(crate) is_gone: AtomicBool,
    /// It carries long requests and replies.
    pub(crate) is_bulk: AtomicBool,
    /// Its own connection to what stands behind the node, if its worker reads the replies there.
    pub(crate) line: OnceLock<Arc<WorkerLine>>,
    /// Its jobs that are served in pieces, by ticket.
    pub(crate) splits: Mutex<HashMap<u64, Arc<Split>>>,
}

impl Owner {
    pub(crate) fn new(sink: Arc<dyn CompletionSink>) -> Self {
        let (is_gone, is_bulk) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { sink, is_gone, is_bulk, line: OnceLock::new(), splits: Mutex::default() }
    }
}

/// The receiver of work that was not finished at once.
pub(crate) trait Sink: Send + Sync {
    /// Takes all of `work`, which is finished.
    fn finished(&self, work: &mut Vec<Work>);
}

/// Carries out work.
pub(crate) trait Engine: Send + Sync {
    /// Takes all of `work`; what is finished at once is appended to `done`.
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>);

    /// The session's worker can wait for one descriptor with this token.
    fn attach(&self, owner: &Owner, registrar: Registrar, token: u64) {
        let _ = (owner, registrar, token);
    }

    /// That descriptor is ready: what is finished by that is appended to `done`.
    fn on_ready(&self, owner: &Owner, ready: Ready, done: &mut Vec<Work>) {
        let _ = (owner, ready, done);
    }

    /// The session is closed.
    fn detach(&self, owner: &Owner, done: &mut Vec<Work>) {
        let _ = (owner, done);
    }

    /// Why the engine is unavailable now, if that is known.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Ends the engine's threads, once everything that was taken is finished. Work that comes later
    /// fails.
    fn stop(&self);
}

/// Does all work at once.
pub(crate) struct Inline {
    pub(crate) medium: Arc<dyn Medium>,
}

impl Engine for Inline {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        self.medium.perform(&mut work.iter_mut().map(|work| &mut work.body.job));
        done.append(work);
    }

    fn stop(&self) {}
}
