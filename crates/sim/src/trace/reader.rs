//! Reader of I/O traces: takes lines, and returns records in the order of their times.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::BufRead;

use tidegate_model::{Bytes, Operation};

use super::formats::{Found, Parser};
use super::lines::Lines;
use super::{Format, Record, TraceError, TraceProblem, fields};
use crate::time::Picoseconds;

/// Records that a reader holds back by default. One is 48 bytes, so these are 50 kB; the disorder
/// that several processors bring into one log is some dozen lines. Chosen by hand.
const WINDOW: usize = 1_024;

/// Reads a recording, record by record, in the order of their times.
///
/// It is an iterator. After an error it goes on with the next line, unless nothing follows
/// ([`TraceProblem::Unreadable`], [`TraceProblem::Unknown`]). An error comes as soon as its line is
/// read, while records above it may still be held back.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    parser: Parser,
    window: usize,
    largest: Bytes,
    /// The earliest first; of equal ones, that which stands above.
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// Once one has left.
    left: Option<Left>,
    ended: bool,
    skipped: u64,
}

/// A record whose place in time is not sure yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    ticks: u64,
    line: u64,
    device: u32,
    operation: Operation,
    offset: Bytes,
    bytes: Bytes,
}

/// Of the records that have left, in the format's ticks.
#[derive(Clone, Copy, Debug)]
struct Left {
    first: u64,
    last: u64,
}

impl<R: BufRead> Reader<R> {
    /// A reader that finds the format out from the first line.
    pub const fn new(source: R) -> Self {
        Self {
            lines: Lines::new(source),
            parser: Parser::new(None),
            window: WINDOW,
            largest: Bytes::MAX,
            waiting: BinaryHeap::new(),
            left: None,
            ended: false,
            skipped: 0,
        }
    }

    /// The same, where the format is known.
    #[must_use]
    pub fn of(self, format: Format) -> Self {
        Self { parser: Parser::new(Some(format)), ..self }
    }

    /// The same, with another window: how many records are held back to be sorted, instead of
    /// 1,024. With none, each must come with or after the one above it.
    #[must_use]
    pub fn window(self, records: usize) -> Self {
        Self { window: records, ..self }
    }

    /// The same, but requests larger than this are errors.
    #[must_use]
    pub fn largest(self, bytes: Bytes) -> Self {
        Self { largest: bytes, ..self }
    }

    /// The format, once the first line was read.
    pub const fn format(&self) -> Option<Format> {
        self.parser.format()
    }

    /// How many lines so far had no request in them and were not wrong either: blank ones,
    /// headers, files opened, operations without data.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Reads lines until there are none or the window overflows; the first error.
    fn fill(&mut self) -> Result<(), TraceError> {
        while !self.ended && self.waiting.len() <= self.window {
            let read = match self.lines.next() {
                Ok(None) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(Some("")) => Ok(None),
                Ok(Some(line)) => self.parser.parse(line),
                Err(problem) => Err(problem),
            };
            let line = self.lines.number();
            match read.and_then(|found| self.take(found, line)) {
                Ok(()) => {}
                Err(problem) => {
                    let last = matches!(
                        problem,
                        TraceProblem::Unreadable(_) | TraceProblem::Unknown { .. }
                    );
                    self.ended |= last;
                    return Err(TraceError { line, problem });
                }
            }
        }
        Ok(())
    }

    /// Holds back what was found in a line.
    fn take(&mut self, found: Option<Found>, line: u64) -> Result<(), TraceProblem> {
        let Some(Found { ticks, device, operation, offset, bytes }) = found else {
            self.skipped += 1;
            return Ok(());
        };
        if bytes > self.largest {
            return Err(TraceProblem::Large { bytes, most: self.largest });
        }
        if let Some(left) = self.left.filter(|left| ticks < left.last) {
            let by = Picoseconds((left.last - ticks).saturating_mul(self.parser.tick()));
            return Err(TraceProblem::Late { by, window: self.window });
        }
        self.waiting.push(Reverse(Waiting { ticks, line, device, operation, offset, bytes }));
        Ok(())
    }

    /// The earliest that is held back leaves.
    fn leave(&mut self, waiting: Waiting) -> Result<Record, TraceError> {
        let Waiting { ticks, line, device, operation, offset, bytes } = waiting;
        let first = self.left.map_or(ticks, |left| left.first);
        let Some(at) = (ticks - first).checked_mul(self.parser.tick()) else {
            let near = "a time within 213 days of the first";
            let problem = fields::wrong("timestamp", &ticks.to_string(), near);
            return Err(TraceError { line, problem });
        };
        self.left = Some(Left { first, last: ticks });
        Ok(Record { at: Picoseconds(at), device, operation, offset, bytes })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        let Reverse(waiting) = self.waiting.pop()?;
        Some(self.leave(waiting))
    }
}
