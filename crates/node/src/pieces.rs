//! A large job on its way through the node: its pieces, their buffers, and its answer.
//!
//! [`tidegate_proto::data::pieces`] decides what a piece is and when the job is over. Here is what
//! it leaves out: whose job it is, and which memory a piece works on. What the submitter has memory
//! for is read and written there, by several threads at a time; what comes without is read into
//! buffers of the pieces and copied.

use std::sync::Mutex;

use tidegate_fabric::buffer::{Buffer, Divided};
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_proto::data::pieces::{self, PIECE, Pieces};

use crate::mutex::lock;

/// A job that is served in pieces.
pub(crate) struct Split(Mutex<Parent>);

struct Parent {
    /// What was submitted, without its buffer; none once it is answered.
    job: Option<Job>,
    pieces: Pieces<Fault>,
    /// The submitter's memory.
    divided: Option<Divided>,
    /// What was read, where there was none.
    whole: Buffer,
    /// What was read into buffers of the store's own although there was, by where it belongs.
    strays: Vec<(usize, Buffer)>,
}

/// What is to be done next for a job.
pub(crate) enum Step {
    /// This is a piece of it.
    Next(Job),
    /// A piece has to be finished first.
    Wait,
    /// It is answered.
    Over(Job),
}

/// Whether a job is served in pieces, where those of ranges are to be `range` bytes.
pub(crate) fn is_large(job: &Job, range: u32) -> bool {
    match job.command {
        Command::Read => job.length > PIECE,
        // What lacks a part of its bytes is refused as a whole.
        Command::Write { .. } => job.length > PIECE && job.buffer.len() == job.length as usize,
        Command::Discard { .. } | Command::Zero { .. } => job.length > range,
        Command::Flush | Command::Map | Command::KeyValue => false,
    }
}

impl Split {
    pub(crate) fn new(mut job: Job) -> Self {
        let buffer = std::mem::take(&mut job.buffer);
        let has_memory = !job.command.is_range() && buffer.len() == job.length as usize;
        let divided = has_memory.then(|| buffer.divide());
        let pieces = Pieces::new(job.command, job.offset, job.length);
        Self(Mutex::new(Parent {
            job: Some(job),
            pieces,
            divided,
            whole: Buffer::empty(),
            strays: Vec::new(),
        }))
    }

    /// What is next; to be called until that is to wait.
    pub(crate) fn step(&self, range: u32) -> Step {
        let mut parent = lock(&self.0);
        let parent = &mut *parent;
        let Some(job) = &mut parent.job else { return Step::Wait };
        let size = if job.command.is_range() { range } else { PIECE };
        let (bytes, command) = match parent.pieces.step(size) {
            pieces::Step::Wait => return Step::Wait,
            pieces::Step::Over(outcome) => return parent.answer(outcome),
            pieces::Step::Flush => (job.length..job.length, Command::Flush),
            pieces::Step::Piece(bytes) => (bytes, piece_command(job.command)),
        };
        let length = bytes.end - bytes.start;
        let buffer = match &mut parent.divided {
            Some(divided) => divided.cut(length as usize),
            None => Buffer::empty(),
        };
        // A flush of the part as it is relies on no incarnation.
        let is_flush = command == Command::Flush;
        let offset = if is_flush { 0 } else { job.offset + u64::from(bytes.start) };
        let Job { ticket, tag, part, .. } = *job;
        // What its tenant was served elsewhere is told once.
        job.tag.delay = 0;
        Step::Next(Job { ticket, tag, command, part, offset, length, buffer, outcome: Ok(()) })
    }

    /// Takes in a piece that is finished. What it has of the buffer is given up here.
    pub(crate) fn absorb(&self, piece: &mut Job) {
        let buffer = std::mem::take(&mut piece.buffer);
        let mut parent = lock(&self.0);
        let Some(job) = &parent.job else { return };
        // Within the job's length, which has 32 bits.
        let begin = match piece.command {
            Command::Flush => job.length,
            _ => (piece.offset - job.offset) as u32,
        };
        let length = job.length as usize;
        let mut outcome = piece.outcome;
        let is_read = piece.command == Command::Read && outcome.is_ok();
        if is_read && buffer.len() != piece.length as usize {
            outcome = Err(Fault::Io);
        } else if is_read {
            parent.keep(begin as usize, length, buffer);
        } else {
            drop(buffer);
        }
        parent.pieces.on_finished(begin, outcome);
    }

    /// Makes no more pieces of it.
    pub(crate) fn stop(&self) {
        lock(&self.0).pieces.stop(Fault::Ending);
    }
}

impl Parent {
    /// Takes what was read from `begin` on, of `length` bytes.
    fn keep(&mut self, begin: usize, length: usize, buffer: Buffer) {
        match &self.divided {
            Some(divided) if divided.is_piece(&buffer) => {}
            Some(_) => self.strays.push((begin, buffer)),
            None => {
                if self.whole.is_empty() {
                    self.whole = Buffer::with_length(length);
                }
                self.whole[begin..begin + buffer.len()].copy_from_slice(&buffer);
            }
        }
    }

    fn answer(&mut self, outcome: Result<(), Fault>) -> Step {
        let Some(mut job) = self.job.take() else { return Step::Wait };
        job.outcome = outcome;
        let joined = self.divided.take().and_then(Divided::join);
        job.buffer = joined.unwrap_or_else(|| std::mem::take(&mut self.whole));
        for (begin, stray) in self.strays.drain(..) {
            job.buffer[begin..begin + stray.len()].copy_from_slice(&stray);
        }
        Step::Over(job)
    }
}

/// What a piece of such a job is: a range is made durable when all of it is zero.
fn piece_command(command: Command) -> Command {
    match command {
        Command::Zero { allocate, .. } => Command::Zero { allocate, durable: false },
        Command::Discard { .. } => Command::Discard { durable: false },
        other => other,
    }
}
