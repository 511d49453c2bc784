//! Recordings of the storage requests of real systems.
//!
//! **Problem.** Real requests come in bursts, go back to where they were, and mix sizes as no
//! distribution does. Such recordings are published in a handful of text formats, up to hundreds of
//! gigabytes, with times that count from 1601, from 1970 or from nothing, and with lines that are
//! not quite in order.
//!
//! **Model.** A recording is read as [`Record`]s, one after the other, whatever its [`Format`]:
//! when, which device, read or write, where and how much. Times count from the earliest.
//!
//! - `msr`: MSR Cambridge (SNIA block traces, 386 to 388). Fields with commas: 100 ns since 1601,
//!   host (not looked at), disk, `Read` or `Write`, first byte, bytes, response time.
//! - `systor`: Fujitsu's desktops (SNIA, 4964). Fields with commas: seconds since 1970 with up to
//!   nine decimals, response time, `R` or `W` or nothing, which is no request, LUN, first byte,
//!   bytes.
//! - `mqsim`: MQSim's. Fields with blanks: nanoseconds, device, first sector of 512 bytes, sectors,
//!   1 for a read or 0 for a write.
//! - `disksim`: DiskSim's. The same, but for milliseconds with up to nine decimals and for flags in
//!   hexadecimal, of which the lowest is set in reads.
//! - `fio`: fio's `write_iolog`, of version 3: microseconds, file, action, first byte, bytes; and
//!   of version 2, without a time: it is the sum of all `wait`s so far. Files have numbers in the
//!   order in which they are read or written first.
//!
//! **Mechanism.** [`Reader`] reads a line at a time and keeps, besides that line, at most a
//! *window* of records, of which the earliest leaves first; so what is out of order by less than
//! the window comes out sorted, and memory does not grow with the recording. *Example*, with a
//! window of 1: of lines at 5, 7, 6 and 4, the first leaves when the second is read, and 6 when it
//! is read itself, before 7; they become 0, 1 and 2. But 4 is 2 before what has left last, and is
//! refused: the past cannot change, and the error suggests a wider window or a sorted recording. A
//! line that is not a record is an error with its number, what was found and what was expected; the
//! reader may stop there or go on with the next.
//!
//! **What is left out.** Requests that move no data (flushes, discards, metadata) are counted and
//! not given. Response times are not read: they are of another system. The replay chooses the class
//! of requests.
//!
//! ```
//! use tidegate_model::{Bytes, Operation};
//! use tidegate_sim::time::Picoseconds;
//! use tidegate_sim::trace::Reader;
//! let text = "\
//! 128166372003061629,hm,1,Read,383496192,32768,413
//! 128166372013061629,hm,1,Write,2822144,4k,1000
//! 128166372003061729,hm,1,Write,2822144,4096,1000
//! ";
//! let mut reader = Reader::new(text.as_bytes());
//! let error = reader.next().expect("the second line is wrong").unwrap_err();
//! let expected = "line 2: size is \"4k\"; expected a whole number from 1 to 2^64 - 1";
//! assert_eq!(error.to_string(), expected);
//! let [first, second] = [(); 2].map(|()| reader.next().expect("two are right"));
//! assert_eq!(first?.at, Picoseconds::ZERO);
//! let second = second?;
//! assert_eq!((second.at, second.bytes), (Picoseconds(10_000_000), Bytes(4_096)));
//! assert_eq!((second.device, second.operation), (1, Operation::Write));
//! # Ok::<(), tidegate_sim::trace::TraceError>(())
//! ```

mod fields;
mod formats;
mod lines;
mod reader;
mod summary;

use core::fmt;
use core::str::FromStr;

use tidegate_model::{Bytes, Class, Operation};

pub use reader::Reader;
pub use summary::Summary;

use crate::io_request::IoRequest;
use crate::time::Picoseconds;

/// One request of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was made, from the earliest of the recording.
    pub at: Picoseconds,
    /// Which device, volume or file it went to.
    pub device: u32,
    /// [`Operation::Read`] or [`Operation::Write`].
    pub operation: Operation,
    /// Where it begins on that.
    pub offset: Bytes,
    /// How much it moves, at least one byte.
    pub bytes: Bytes,
}

impl Record {
    /// The same as a request of this class, at the same time and place.
    pub const fn request(self, class: Class) -> IoRequest {
        let Self { at, device: _, operation, offset, bytes } = self;
        IoRequest { at, offset, bytes, operation, class }
    }
}

/// How a recording is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MSR Cambridge.
    Msr,
    /// SYSTOR 2017, Fujitsu's virtual desktops.
    Systor,
    /// MQSim's ASCII traces.
    Mqsim,
    /// DiskSim's ASCII traces.
    Disksim,
    /// fio's logs of requests, versions 2 and 3.
    Fio,
}

/// Every format with its name.
pub const FORMATS: [(Format, &str); 5] = [
    (Format::Msr, "msr"),
    (Format::Systor, "systor"),
    (Format::Mqsim, "mqsim"),
    (Format::Disksim, "disksim"),
    (Format::Fio, "fio"),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(FORMATS[*self as usize].1)
    }
}

/// A name that is none of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a format of traces; known are {}", known())]
pub struct UnknownFormat;

/// The names of all formats.
fn known() -> String {
    FORMATS.map(|(_, name)| name).join(" ")
}

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let found = FORMATS.iter().find(|(_, known)| *known == name);
        found.map(|(format, _)| *format).ok_or(UnknownFormat)
    }
}

/// Error of a line of a recording, with the line's number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// Its number, from 1.
    pub line: u64,
    /// The error.
    pub problem: TraceProblem,
}

/// Error of a line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceProblem {
    /// It could not be read; nothing follows.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// It is the first and looks like no format, or not like that which was named; nothing follows.
    #[error(
        "{found:?} does not begin a trace of a format that is known: {}; if it is of one of them, \
         say which",
        known()
    )]
    Unknown {
        /// Its beginning.
        found: String,
    },
    /// It has more than 4,096 bytes.
    #[error("more than {} bytes; expected lines of text", lines::LONGEST)]
    Long,
    /// It has another number of fields.
    #[error("{found} fields; expected {expected}")]
    Fields {
        /// How many.
        found: usize,
        /// Which fields there should be.
        expected: &'static str,
    },
    /// A field is not what it should be.
    #[error("{name} is {found:?}; expected {expected}")]
    Field {
        /// Which one.
        name: &'static str,
        /// Its beginning.
        found: String,
        /// The expected form of the field.
        expected: &'static str,
    },
    /// A request larger than the reader allows.
    #[error("a request of {bytes}; at most {most} can be replayed")]
    Large {
        /// Its size.
        bytes: Bytes,
        /// The largest request that can be replayed.
        most: Bytes,
    },
    /// It lies before a record that has left the window already.
    #[error(
        "it is {by} before a record that the window of {window} let go; sort the trace, or read it \
         with a wider window"
    )]
    Late {
        /// By how much.
        by: Picoseconds,
        /// How many records the window holds.
        window: usize,
    },
}

#[cfg(test)]
#[path = "trace/trace_tests.rs"]
mod tests;
