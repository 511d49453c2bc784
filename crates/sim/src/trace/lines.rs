//! Lines of a text of any length, one at a time, in bounded memory.

use std::io::{BufRead, Read};

use super::TraceProblem;

/// The longest line, without its end. The formats need some hundred bytes; a path may have 4,096,
/// and is then refused. A file without line ends is not read into memory.
pub(super) const LONGEST: usize = 4_096;

/// Lines, counted.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) const fn new(source: R) -> Self {
        Self { source, line: Vec::new(), number: 0 }
    }

    /// The number of the last line, from 1.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end and the blanks around it; none after the last.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TraceProblem> {
        self.number += 1;
        self.line.clear();
        let mut part = (&mut self.source).take(LONGEST as u64 + 2);
        let read = part.read_until(b'\n', &mut self.line);
        let unreadable = |error: std::io::Error| TraceProblem::Unreadable(error.to_string());
        if read.map_err(unreadable)? == 0 {
            return Ok(None);
        }
        if self.line.last() != Some(&b'\n') && self.line.len() > LONGEST {
            self.source.skip_until(b'\n').map_err(unreadable)?;
            return Err(TraceProblem::Long);
        }
        match str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(line.trim())),
            Err(_) => Err(TraceProblem::Field {
                name: "the line",
                found: super::fields::beginning(&String::from_utf8_lossy(&self.line)),
                expected: "text in UTF-8, unpacked if it was compressed",
            }),
        }
    }
}
