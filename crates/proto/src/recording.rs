//! Recordings: the requests that gateways were sent, without their content.
//!
//! # Problem
//! An operator wants to know what a change of the policy would do before it is applied. The answer
//! depends on the load: the requests of each client, their times and their nodes. That load has to
//! get from a running cluster into a file and from there into a simulation, which may run on
//! another machine, weeks later.
//!
//! # Format
//! A recording is lines of text. The first one is `tidegate recording 1`, with the version. Fields
//! are separated by one blank:
//!
//! | line | meaning |
//! |---|---|
//! | `tenant NUMBER NAME` | the tenant of this number; the name `""` is for requests without one |
//! | `connection NUMBER GATEWAY VOLUME TENANT` | a client's connection, and its tenant |
//! | `AT LATENCY CONNECTION TENANT OPERATION BYTES POSITION` | a request that was answered |
//! | `end SPAN LOST FAILED` | the recording is complete |
//!
//! Tenants and connections are numbered from zero, each before the first request that names it. The
//! tenant of a connection is that of the client's program, or else of its export. It owns all
//! requests that no rule attributes to another one. If it changes, because the gateway hears later
//! of the program, the connection gets another number.
//! `AT` and `LATENCY` are nanoseconds: when the gateway had read the request, from the beginning of
//! the recording, and how long the answer took. A request that was under way at the beginning has
//! come at 0. `POSITION` is the request's offset in its volume, modulo one row of stripes: as much
//! as decides which nodes it goes to, and no more. Requests stand in no particular order. `SPAN` is
//! the length of the recording, `LOST` counts requests for which a buffer had no headroom, and
//! `FAILED` those that failed, which are left out.
//!
//! *Example*: a read of 4 KiB in the second stripe, 1.5 ms after the beginning, answered after
//! 250 µs:
//!
//! ```text
//! tidegate recording 1
//! tenant 0 oltp
//! connection 0 front db oltp
//! 1500000 250000 0 0 read 4096 65536
//! end 30000000000 0 0
//! ```
//!
//! A recording whose writer was killed lacks its last line. Every whole line of it is valid.
//!
//! # Way
//! Gateways record into a bounded buffer while the controller asks them to, and send it with each
//! question ([`Batch`]); [`collector`] makes lines of it for the operator who asks the controller.
//! Each question renews a lease of [`LEASE`]: if the operator, the controller or a gateway dies,
//! recording ends by itself.
//!
//! # What is left out
//! Requests to pools, whose keys decide where they go; the order of requests between gateways
//! within the time that a message takes; and requests that have no answer at the end.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};
use tidegate_model::operation::OPERATIONS;
use tidegate_model::{Operation, Span, TenantId};

pub mod collector;

/// How long a gateway goes on recording after it was asked last: 25 questions may be late.
pub const LEASE: Span = Span(5 * Span::SECOND.0);

/// The first line, up to the version.
const TITLE: &str = "tidegate recording ";

/// The version of the format.
const FORMAT: u32 = 1;

/// The longest line, in bytes: three names of 63 bytes, two numbers and a word fit twice.
pub const LINE_MAX: usize = 512;

/// The most connections of a recording.
pub const CONNECTIONS_MAX: u32 = 1 << 20;

/// The latest time in a recording, and the longest answer. The twin counts picoseconds in 64 bits,
/// which end after 213 days.
pub const SPAN_MAX: Span = Span(100 * 86_400 * Span::SECOND.0);

/// The most bytes of a read or a write: what NBD lets a client ask for at once.
pub const TRANSFER_MAX: u32 = 32 << 20;

/// How many letters of a wrong field an error shows.
const SHOWN: usize = 40;

/// How the format writes the name of no tenant; no name has a quotation mark.
const NO_TENANT: &str = "\"\"";

/// A client's connection to a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedConnection {
    /// The gateway's name.
    pub gateway: String,
    /// The volume's name.
    pub volume: String,
    /// The tenant of requests that no rule attributes to another one: that of the client's program,
    /// or else of its export; may be empty.
    pub tenant: String,
}

/// A tenant of a recording: the index of its line among those of tenants, counting from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedTenant(pub u16);

impl RecordedTenant {
    /// The index in the recording's list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request that was answered. `T` is how its tenant is numbered: in a recording, or at a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRequest<T = RecordedTenant> {
    /// When the gateway had read it, in nanoseconds from the beginning.
    pub at_ns: u64,
    /// How long the answer took from then.
    pub latency_ns: u64,
    /// The number of its connection.
    pub connection: u32,
    /// Its tenant.
    pub tenant: T,
    /// The operation.
    pub operation: Operation,
    /// The bytes of its range; zero for a flush.
    pub bytes: u32,
    /// Its offset in the volume, modulo one row of stripes.
    pub position: u64,
}

impl<T> RecordedRequest<T> {
    /// The same request under the numbers of another list.
    pub(crate) fn renumbered<U>(self, connection: u32, tenant: U) -> RecordedRequest<U> {
        let Self { at_ns, latency_ns, operation, bytes, position, .. } = self;
        RecordedRequest { at_ns, latency_ns, connection, tenant, operation, bytes, position }
    }
}

/// The requests that a gateway has recorded since its last answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The recording that they belong to.
    pub session: u64,
    /// How long the gateway has recorded by now, in nanoseconds.
    pub span_ns: u64,
    /// Requests since the last answer that the buffer had no headroom for.
    pub lost: u64,
    /// Requests since the last answer that failed.
    pub failed: u64,
    /// The names of tenants that had no request before.
    pub tenants: Vec<(TenantId, String)>,
    /// New connections: number, volume, and the tenant of requests without a rule.
    pub connections: Vec<(u32, String, String)>,
    /// The requests.
    pub requests: Vec<RecordedRequest<TenantId>>,
}

/// How a recording ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How long it is, in nanoseconds.
    pub span_ns: u64,
    /// Requests that are missing.
    pub lost: u64,
    /// Requests that failed, and are left out.
    pub failed: u64,
}

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordingLine {
    /// The first one.
    Title,
    /// The name of the next tenant.
    Tenant(RecordedTenant, String),
    /// The next connection.
    Connection(u32, RecordedConnection),
    /// A request.
    Request(RecordedRequest),
    /// The last one.
    End(End),
}

impl fmt::Display for RecordingLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &String| if name.is_empty() { NO_TENANT.into() } else { name.clone() };
        match self {
            Self::Title => write!(f, "{TITLE}{FORMAT}"),
            Self::Tenant(number, tenant) => write!(f, "tenant {} {}", number.0, name(tenant)),
            Self::Connection(number, RecordedConnection { gateway, volume, tenant }) => {
                write!(f, "connection {number} {gateway} {volume} {}", name(tenant))
            }
            Self::Request(request) => {
                let RecordedRequest { at_ns, latency_ns, connection, tenant, .. } = request;
                let RecordedRequest { operation, bytes, position, .. } = request;
                write!(f, "{at_ns} {latency_ns} {connection} {} ", tenant.0)?;
                write!(f, "{operation} {bytes} {position}")
            }
            Self::End(End { span_ns, lost, failed }) => write!(f, "end {span_ns} {lost} {failed}"),
        }
    }
}

/// Error of a line, with its number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RecordingError {
    /// The line's number, from one.
    pub line: u64,
    /// The error.
    pub problem: RecordingProblem,
}

/// Error of a line. Each says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingProblem {
    /// The first line is another one.
    #[error("this is no recording; make one with `tidegate record`")]
    Title,
    /// The recording has another version.
    #[error("the recording has version {0:?} and not {FORMAT}; use the release that wrote it")]
    Version(String),
    /// It is longer than [`LINE_MAX`].
    #[error("the line has more than {LINE_MAX} bytes; this is no recording from here on")]
    Long,
    /// It is no text.
    #[error("the line is no text; this is no recording from here on")]
    NoText,
    /// It begins with another word.
    #[error("{0:?} begins no line; write tenant, connection, end or the time of a request")]
    Word(String),
    /// It has too few or too many fields.
    #[error("the line has another number of fields than {0}; is it cut off?")]
    Fields(&'static str),
    /// A field is no number, or too large a one.
    #[error("{field} is {found:?}; write a whole number from 0 to {most}")]
    Number {
        /// Its name.
        field: &'static str,
        /// Its text.
        found: String,
        /// The largest number that it may be.
        most: u64,
    },
    /// A name is none.
    #[error("{0:?} is no name; use 1 to 63 letters, digits, '_', '-' or '.'")]
    Name(String),
    /// A number leaves out others, or comes again.
    #[error("{field} {found} follows on {next} of them; number them from 0 on, each once")]
    Order {
        /// The kind of thing.
        field: &'static str,
        /// Its number.
        found: u64,
        /// The number that it should have.
        next: u64,
    },
    /// A request names a number that no line has introduced.
    #[error("no line introduces {field} {found}; put its line before the request")]
    Unknown {
        /// The kind of thing.
        field: &'static str,
        /// Its number.
        found: u64,
    },
    /// The operation is none.
    #[error("{found:?} is no operation; use one of {}", Operations)]
    Operation {
        /// Its text.
        found: String,
    },
    /// A line follows on the last one.
    #[error("the line follows on the end; take it out")]
    AfterEnd,
}

/// The names of all operations.
struct Operations;

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (_, name)) in OPERATIONS.iter().enumerate() {
            write!(f, "{}{name}", if number > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Reads a recording line by line, and keeps nothing of it but counts.
///
/// ```
/// use tidegate_proto::recording::{RecordingLine, Parser};
/// let mut parser = Parser::default();
/// assert_eq!(parser.line(b"tidegate recording 1"), Ok(RecordingLine::Title));
/// let error = parser.line(b"8 9 0 0 read 4096 0").unwrap_err().to_string();
/// let expected = "line 2: no line introduces connection 0; put its line before the request";
/// assert_eq!(error, expected);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Parser {
    lines: u64,
    tenants: u32,
    connections: u32,
    has_ended: bool,
}

impl Parser {
    /// Reads the next line, which comes without its line feed.
    ///
    /// # Errors
    /// If it is wrong. The lines before it are valid.
    pub fn line(&mut self, line: &[u8]) -> Result<RecordingLine, RecordingError> {
        self.lines += 1;
        self.read(line).map_err(|problem| RecordingError { line: self.lines, problem })
    }

    /// Whether the last line was read: a recording without it is cut off.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn read(&mut self, line: &[u8]) -> Result<RecordingLine, RecordingProblem> {
        let line = if line.len() > LINE_MAX { Err(RecordingProblem::Long) } else { Ok(line) };
        let text =
            line.and_then(|it| core::str::from_utf8(it).map_err(|_| RecordingProblem::NoText));
        if self.lines == 1 {
            let version =
                text.ok().and_then(|it| it.strip_prefix(TITLE)).ok_or(RecordingProblem::Title)?;
            let is_ours = version == "1";
            return is_ours
                .then_some(RecordingLine::Title)
                .ok_or_else(|| RecordingProblem::Version(shown(version)));
        }
        if self.has_ended {
            return Err(RecordingProblem::AfterEnd);
        }
        let text = text?;
        match text.split(' ').next() {
            Some("tenant") => self.tenant(text),
            Some("connection") => self.connection(text),
            Some("end") => self.end(text),
            Some(time) if time.starts_with(|first: char| first.is_ascii_digit()) => {
                self.request(text)
            }
            word => Err(RecordingProblem::Word(shown(word.unwrap_or_default()))),
        }
    }

    fn tenant(&mut self, text: &str) -> Result<RecordingLine, RecordingProblem> {
        let [_, number, name] = fields(text, "tenant NUMBER NAME")?;
        let number = next("tenant", number, self.tenants, u16::MAX.into())?;
        let name = name_or_none(name)?;
        self.tenants += 1;
        Ok(RecordingLine::Tenant(RecordedTenant(number as u16), name))
    }

    fn connection(&mut self, text: &str) -> Result<RecordingLine, RecordingProblem> {
        let [_, number, gateway, volume, tenant] =
            fields(text, "connection NUMBER GATEWAY VOLUME TENANT")?;
        let number = next("connection", number, self.connections, CONNECTIONS_MAX - 1)?;
        let (gateway, volume) = (named(gateway)?, named(volume)?);
        let connection = RecordedConnection { gateway, volume, tenant: name_or_none(tenant)? };
        self.connections += 1;
        Ok(RecordingLine::Connection(number, connection))
    }

    fn request(&self, text: &str) -> Result<RecordingLine, RecordingProblem> {
        let [at, latency, connection, tenant, operation, bytes, position] =
            fields(text, "AT LATENCY CONNECTION TENANT OPERATION BYTES POSITION")?;
        let known = OPERATIONS.iter().find(|(_, name)| *name == operation);
        let (operation, _) =
            known.ok_or_else(|| RecordingProblem::Operation { found: shown(operation) })?;
        let request = RecordedRequest {
            at_ns: number("AT", at, SPAN_MAX.0)?,
            latency_ns: number("LATENCY", latency, SPAN_MAX.0)?,
            connection: introduced("connection", connection, self.connections)?,
            tenant: RecordedTenant(introduced("tenant", tenant, self.tenants)? as u16),
            operation: *operation,
            bytes: number("BYTES", bytes, bytes_max(*operation).into())? as u32,
            position: number("POSITION", position, u64::MAX)?,
        };
        Ok(RecordingLine::Request(request))
    }

    fn end(&mut self, text: &str) -> Result<RecordingLine, RecordingProblem> {
        let [_, span, lost, failed] = fields(text, "end SPAN LOST FAILED")?;
        let span_ns = number("SPAN", span, SPAN_MAX.0)?;
        let lost = number("LOST", lost, u64::MAX)?;
        let failed = number("FAILED", failed, u64::MAX)?;
        self.has_ended = true;
        Ok(RecordingLine::End(End { span_ns, lost, failed }))
    }
}

/// The most bytes that a request may name. A range that is trimmed or asked for moves none of them,
/// and may be as long as a length can say.
const fn bytes_max(operation: Operation) -> u32 {
    match operation {
        Operation::Allocate | Operation::Stat => u32::MAX,
        _ => TRANSFER_MAX,
    }
}

/// As much of a field as an error shows.
fn shown(field: &str) -> String {
    field.chars().take(SHOWN).collect()
}

/// Exactly so many fields.
fn fields<'a, const N: usize>(
    text: &'a str,
    expected: &'static str,
) -> Result<[&'a str; N], RecordingProblem> {
    let (mut all, mut count) = ([""; N], 0);
    for field in text.split(' ') {
        *all.get_mut(count).ok_or(RecordingProblem::Fields(expected))? = field;
        count += 1;
    }
    if count == N { Ok(all) } else { Err(RecordingProblem::Fields(expected)) }
}

/// A whole number in decimal digits alone, as it is written: without zeros before it.
fn number(field: &'static str, found: &str, most: u64) -> Result<u64, RecordingProblem> {
    let is_plain = found == "0" || !found.starts_with(['0', '+']);
    let number = found.parse().ok().filter(|number| is_plain && *number <= most);
    number.ok_or_else(|| RecordingProblem::Number { field, found: shown(found), most })
}

/// The number that follows on so many.
fn next(field: &'static str, found: &str, count: u32, most: u32) -> Result<u32, RecordingProblem> {
    let found = number(field, found, most.into())?;
    let next = u64::from(count);
    if found == next { Ok(count) } else { Err(RecordingProblem::Order { field, found, next }) }
}

/// A number of which there are more.
fn introduced(field: &'static str, found: &str, count: u32) -> Result<u32, RecordingProblem> {
    let found = number(field, found, u32::MAX.into())?;
    let is_known = found < u64::from(count);
    is_known.then_some(found as u32).ok_or(RecordingProblem::Unknown { field, found })
}

/// A name, by the rules of policies and cluster files.
fn named(text: &str) -> Result<String, RecordingProblem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_name = (1..=63).contains(&text.len()) && text.chars().all(plain);
    is_name.then(|| text.into()).ok_or_else(|| RecordingProblem::Name(shown(text)))
}

fn name_or_none(text: &str) -> Result<String, RecordingProblem> {
    if text == NO_TENANT { Ok(String::new()) } else { named(text) }
}

#[cfg(test)]
mod tests;
