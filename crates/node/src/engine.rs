//! Who does a job that the scheduler has let through, and when it counts as done.
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

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tidegate_fabric::service::{Job, Outlet};
use tidegate_model::Time;
use tidegate_proto::node::Slot;

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
}

/// Whose work it is.
pub(crate) struct Owner {
    pub(crate) outlet: Arc<dyn Outlet>,
    /// The session is closed, and nobody wants the answer.
    pub(crate) is_gone: AtomicBool,
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
