//! A part of a volume at a node, and what of it may be lost.
//!
//! A write that was answered but not flushed may be lost with the node. Whoever flushes next must
//! not hear that all is well. So a part counts the writes that were answered and not yet flushed;
//! where a link ends with such, the next flush of the part fails, once. A node that came back may
//! have kept everything: nobody but the client can know whether it has to write again.

use crate::service::{Command, Job, Part};

/// A part at the node.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) part: Part,
    /// The node has it not, on this link.
    pub(super) is_refused: bool,
    /// Changes that were answered, and how many of them a flush has covered.
    answered: u64,
    flushed: u64,
    /// Changes that were answered may be lost, and nobody was told.
    is_in_doubt: bool,
}

impl Opened {
    pub(super) fn new(part: Part) -> Self {
        Self { part, is_refused: false, answered: 0, flushed: 0, is_in_doubt: false }
    }

    /// Whether a job may go to the node. If not, it has failed.
    pub(super) fn takes(&mut self, job: &Job) -> bool {
        let is_doubtful = job.command == Command::Flush && std::mem::take(&mut self.is_in_doubt);
        !is_doubtful && !self.is_refused
    }

    /// What a flush that is sent now will have covered.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// A job was answered that was sent when so many changes had been.
    pub(super) fn on_answer(&mut self, job: &Job, answered: u64) {
        match job.command {
            Command::Write { durable: false }
            | Command::Discard
            | Command::Zero { durable: false, .. } => self.answered += 1,
            Command::Flush if job.outcome.is_ok() => self.flushed = self.flushed.max(answered),
            _ => {}
        }
    }

    /// The link has ended.
    pub(super) fn on_end(&mut self) {
        self.is_in_doubt |= self.answered > self.flushed;
        self.flushed = self.answered;
        self.is_refused = false;
    }
}
