//! A large job in the node: its pieces, their buffers, and its reply.
//!
//! [`tidegate_proto::data::pieces`] decides on the pieces, and when the job is over. This module
//! adds the job's owner, and the memory that a piece works on. Data for which the submitter has
//! memory are read and written there, by several threads at a time. Other data are read into
//! buffers of the pieces and copied.

use std::sync::Mutex;

use tidegate_fabric::buffer::{Buffer, Divided};
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_proto::data::pieces::{self, PIECE, Pieces};

use crate::mutex::lock;

/// A job that is served in pieces.
pub(crate) struct Split(Mutex<Parent>);

struct Parent {
    /// The submitted job, without its buffer; none once it is answered.
    job: Option<Job>,
    pieces: Pieces<Fault>,
    /// The submitter's memory.
    divided: Option<Divided>,
    /// The data that was read, if the submitter gave no memory.
    whole: Buffer,
    /// Data that the store returned in its own buffers although the submitter gave memory, by
    /// offset.
    strays: Vec<(usize, Buffer)>,
}

/// The next step of a job.
pub(crate) enum Step {
    /// Run this piece.
    Next(Job),
    /// A piece has to finish first.
    Wait,
    /// Reply to the job.
    Over(Job),
}

/// Whether a job is served in pieces, where those of ranges are to be `range` bytes.
pub(crate) fn is_large(job: &Job, range: u32) -> bool {
    match job.command {
        Command::Read => job.length > PIECE,
        // A write that lacks some of its bytes is refused as a whole.
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

    /// Returns the next step; to be called until it is [`Step::Wait`].
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
        let is_flush = command == Command::Flush;
        let offset = if is_flush { 0 } else { job.offset + u64::from(bytes.start) };
        let Job { ticket, tag, part, .. } = *job;
        // A flush of the part as it is relies on no incarnation.
        let incarnation = 0;
        // The first piece alone reports the tenant's service at other nodes.
        job.tag.delay = 0;
        Step::Next(Job {
            incarnation,
            ..Job::new(ticket, tag, command, (part, offset, length), buffer)
        })
    }

    /// Accepts a finished piece, and releases its share of the buffer.
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
    /// Keeps data that were read from `begin` on, of `length` bytes.
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

/// The command of such a job's piece: a range is made durable when all of it is zero.
fn piece_command(command: Command) -> Command {
    match command {
        Command::Zero { allocate, .. } => Command::Zero { allocate, durable: false },
        Command::Discard { .. } => Command::Discard { durable: false },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::{Class, ContextId, Operation, PartNumber, Tag, TenantId};

    use super::*;

    fn job(command: Command, length: u32, buffer: Buffer) -> Job {
        let (tenant, context, class) = (TenantId(0), ContextId::NONE, Class::Medium);
        let tag = Tag { tenant, context, class, operation: Operation::Read, cost: 0, delay: 3 };
        Job::new(7, tag, command, (PartNumber(1), 4096, length), buffer)
    }

    #[test]
    fn a_job_is_large_if_it_is_longer_than_a_piece_of_its_kind() {
        let range = 1 << 20;
        let large = |command, length, buffer: usize| {
            is_large(&job(command, length, Buffer::with_length(buffer)), range)
        };
        let write = Command::Write { durable: true };
        for (command, longest) in [
            (Command::Read, PIECE),
            (Command::Discard { durable: false }, range),
            (Command::Zero { allocate: true, durable: false }, range),
        ] {
            assert!(!large(command, longest, 0) && large(command, longest + 1, 0), "{command:?}");
        }
        let bytes = PIECE as usize;
        assert!(!large(write, PIECE, bytes) && large(write, PIECE + 1, bytes + 1));
        assert!(!large(write, PIECE + 1, bytes), "a write that lacks bytes is refused as a whole");
        for command in [Command::Flush, Command::Map, Command::KeyValue] {
            assert!(!large(command, u32::MAX, 0), "{command:?}");
        }
    }

    /// The next piece; none if one has to be finished first.
    fn next(split: &Split) -> Option<Job> {
        match split.step(PIECE) {
            Step::Next(piece) => Some(piece),
            Step::Wait => None,
            Step::Over(_) => panic!("it is over before all is read"),
        }
    }

    #[test]
    fn a_read_is_assembled_from_pieces_in_any_memory() {
        let length = 3 * PIECE;
        let cases = [(false, true), (true, false), (true, true)];
        for (case, (has_memory, has_strays)) in (1..).zip(cases) {
            // Memory is used again, so each time something else is read.
            let source: Vec<u8> = (0..length).map(|at| (at / 1000) as u8 ^ case).collect();
            let memory =
                if has_memory { Buffer::with_length(length as usize) } else { Buffer::empty() };
            let split = Split::new(job(Command::Read, length, memory));
            let mut pieces: Vec<Job> = std::iter::from_fn(|| next(&split)).collect();
            let tickets = pieces.iter().map(|piece| (piece.ticket, piece.part.0, piece.tag.delay));
            assert_eq!(tickets.collect::<Vec<_>>(), [(7, 1, 3), (7, 1, 0), (7, 1, 0)]);
            while let Some(mut piece) = pieces.pop() {
                let begin = (piece.offset - 4096) as usize;
                let bytes = &source[begin..begin + piece.length as usize];
                if has_strays {
                    piece.buffer = Buffer::from(bytes);
                } else {
                    piece.buffer.copy_from_slice(bytes);
                }
                split.absorb(&mut piece);
            }
            let Step::Over(done) = split.step(PIECE) else { panic!("all pieces are back") };
            assert!(done.outcome.is_ok() && done.buffer[..] == source[..]);
            assert!(matches!(split.step(PIECE), Step::Wait), "it is answered once");
        }
    }

    #[test]
    fn a_piece_that_was_read_short_fails_the_job() {
        let split = Split::new(job(Command::Read, 2 * PIECE, Buffer::empty()));
        for length in [PIECE, PIECE - 1] {
            let mut piece = next(&split).unwrap_or_else(|| panic!("there are two"));
            piece.buffer = Buffer::zeroed(length as usize);
            split.absorb(&mut piece);
        }
        let Step::Over(done) = split.step(PIECE) else { panic!("both are back") };
        assert_eq!(done.outcome, Err(Fault::Io));
    }

    #[test]
    fn a_durable_range_is_zeroed_in_pieces_without_durability_and_flushed() {
        for command in
            [Command::Zero { allocate: true, durable: true }, Command::Discard { durable: true }]
        {
            let range = 1 << 20;
            // From 4 KiB on, so that the first piece ends where the second range begins.
            let split = Split::new(job(command, range, Buffer::empty()));
            let mut seen = Vec::new();
            let done = loop {
                match split.step(range) {
                    Step::Next(mut piece) => {
                        seen.push((piece.command, piece.offset, piece.length));
                        split.absorb(&mut piece);
                    }
                    Step::Wait => panic!("nothing is out"),
                    Step::Over(done) => break done,
                }
            };
            let plain = piece_command(command);
            assert!(plain != command && done.outcome.is_ok() && done.command == command);
            let first = range - 4096;
            let second = (plain, 4096 + u64::from(first), 4096);
            assert_eq!(seen, [(plain, 4096, first), second, (Command::Flush, 0, 0)]);
        }
        let zero = |durable| Command::Zero { allocate: true, durable };
        assert_eq!(piece_command(zero(true)), zero(false));
        assert_eq!(piece_command(Command::Read), Command::Read);
    }

    #[test]
    fn a_job_that_is_stopped_makes_no_more_pieces() {
        let split = Split::new(job(Command::Read, 64 * PIECE, Buffer::empty()));
        let mut pieces: Vec<Job> = std::iter::from_fn(|| next(&split)).collect();
        split.stop();
        assert!(next(&split).is_none(), "those in flight finish first");
        for piece in &mut pieces {
            piece.buffer = Buffer::zeroed(PIECE as usize);
            split.absorb(piece);
        }
        let Step::Over(done) = split.step(PIECE) else { panic!("all are back") };
        assert_eq!(
            (pieces.len(), done.outcome),
            (tidegate_proto::data::pieces::AHEAD as usize, Err(Fault::Ending))
        );
    }
}
