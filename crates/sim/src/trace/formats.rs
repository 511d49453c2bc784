//! Parsers of the trace formats: one line of each.

use std::collections::BTreeMap;

use tidegate_model::{Bytes, Operation};

use super::fields::{beginning, billionths, device, exactly, extent, number, wrong};
use super::{Format, TraceProblem};

/// Bytes of a sector, in which MQSim and DiskSim count.
const SECTOR: u64 = 512;
/// How many files a log of fio may name: all that is kept of a recording grows with nothing else.
const FILES: usize = 1 << 16;

/// A request as a line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// In the format's own unit, from its own beginning.
    pub(super) ticks: u64,
    pub(super) device: u32,
    pub(super) operation: Operation,
    pub(super) offset: Bytes,
    pub(super) bytes: Bytes,
}

/// Reads lines of one format, which the first line decides if the caller has not.
#[derive(Debug)]
pub(super) struct Parser {
    named: Option<Format>,
    version: Option<Version>,
    /// fio: files and their numbers.
    files: BTreeMap<String, u32>,
    /// fio 2: all waits so far, in microseconds.
    waited: u64,
}

/// How lines are written: a format, of fio one of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Msr,
    Systor,
    Mqsim,
    Disksim,
    Fio2,
    Fio3,
}

impl Parser {
    pub(super) const fn new(named: Option<Format>) -> Self {
        Self { named, version: None, files: BTreeMap::new(), waited: 0 }
    }

    /// The format, once a line was read.
    pub(super) const fn format(&self) -> Option<Format> {
        match self.version {
            None => None,
            Some(Version::Msr) => Some(Format::Msr),
            Some(Version::Systor) => Some(Format::Systor),
            Some(Version::Mqsim) => Some(Format::Mqsim),
            Some(Version::Disksim) => Some(Format::Disksim),
            Some(Version::Fio2 | Version::Fio3) => Some(Format::Fio),
        }
    }

    /// How long a tick is, in picoseconds.
    pub(super) const fn tick(&self) -> u64 {
        match self.version {
            Some(Version::Msr) => 100_000,
            Some(Version::Fio2 | Version::Fio3) => 1_000_000,
            // A billionth of a second, and MQSim's own unit.
            Some(Version::Systor | Version::Mqsim) => 1_000,
            // A billionth of a millisecond.
            Some(Version::Disksim) | None => 1,
        }
    }

    /// Reads a line that is not blank; none if there is no request in it.
    pub(super) fn parse(&mut self, line: &str) -> Result<Option<Found>, TraceProblem> {
        let version = match self.version {
            Some(version) => version,
            None => {
                let (version, header) = begin(self.named, line)?;
                self.version = Some(version);
                if header {
                    return Ok(None);
                }
                version
            }
        };
        match version {
            Version::Msr => msr(line).map(Some),
            Version::Systor => systor(line),
            Version::Mqsim => mqsim(line).map(Some),
            Version::Disksim => disksim(line).map(Some),
            Version::Fio2 => self.fio2(line),
            Version::Fio3 => self.fio3(line),
        }
    }

    fn fio2(&mut self, line: &str) -> Result<Option<Found>, TraceProblem> {
        let mut fields = line.split_ascii_whitespace();
        let [file, action] = [fields.next(), fields.next()].map(Option::unwrap_or_default);
        if action == "wait" {
            let delay = fields.next().unwrap_or_default();
            let waited = self.waited.checked_add(number("wait", delay)?);
            let fits = "microseconds that sum to less than 2^64";
            self.waited = waited.ok_or_else(|| wrong("wait", delay, fits))?;
            return Ok(None);
        }
        self.fio(self.waited, file, action, fields)
    }

    fn fio3(&mut self, line: &str) -> Result<Option<Found>, TraceProblem> {
        let mut fields = line.split_ascii_whitespace();
        let [time, file, action] = [(); 3].map(|()| fields.next().unwrap_or_default());
        self.fio(number("timestamp", time)?, file, action, fields)
    }

    /// Reads the fields that both versions of fio's format have in common.
    fn fio<'a>(
        &mut self,
        ticks: u64,
        file: &str,
        action: &str,
        rest: impl Iterator<Item = &'a str>,
    ) -> Result<Option<Found>, TraceProblem> {
        let operation = match action {
            "read" => Operation::Read,
            "write" => Operation::Write,
            "add" | "open" | "close" | "sync" | "datasync" | "trim" => return Ok(None),
            _ => {
                let known =
                    "read, write, add, open, close, sync, datasync or trim; in version 2, wait";
                return Err(wrong("action", action, known));
            }
        };
        let [offset, size] = exactly(rest, "an offset and a length after the action")?;
        let [offset, bytes] = extent(offset, size, 1)?;
        let device = match self.files.get(file) {
            Some(number) => *number,
            None if self.files.len() == FILES => {
                return Err(wrong("file", file, "one of the first 65,536"));
            }
            None => {
                let number = self.files.len() as u32;
                self.files.insert(file.to_owned(), number);
                number
            }
        };
        Ok(Some(Found { ticks, device, operation, offset, bytes }))
    }
}

/// How lines are written in a recording that begins with this one, and whether it is a header.
fn begin(named: Option<Format>, line: &str) -> Result<(Version, bool), TraceProblem> {
    let unknown = || TraceProblem::Unknown { found: beginning(line) };
    let titles = line.starts_with("Timestamp");
    match named.or_else(|| detect(line)).ok_or_else(unknown)? {
        Format::Msr => Ok((Version::Msr, titles)),
        Format::Systor => Ok((Version::Systor, titles)),
        Format::Mqsim => Ok((Version::Mqsim, false)),
        Format::Disksim => Ok((Version::Disksim, false)),
        Format::Fio if line == "fio version 2 iolog" => Ok((Version::Fio2, true)),
        Format::Fio if line == "fio version 3 iolog" => Ok((Version::Fio3, true)),
        Format::Fio => Err(unknown()),
    }
}

/// The format of a recording that begins with this line, by the number of its fields.
fn detect(line: &str) -> Option<Format> {
    if line.starts_with("fio version ") {
        return Some(Format::Fio);
    }
    let blanks = line.split_ascii_whitespace();
    match (line.split(',').count(), blanks.clone().count()) {
        (7, _) => Some(Format::Msr),
        (6, _) => Some(Format::Systor),
        (1, 5) if blanks.clone().next()?.contains('.') => Some(Format::Disksim),
        (1, 5) => Some(Format::Mqsim),
        _ => None,
    }
}

fn msr(line: &str) -> Result<Found, TraceProblem> {
    let fields = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
    let [time, _host, disk, kind, offset, size, _response] = exactly(line.split(','), fields)?;
    let operation = match kind {
        "Read" => Operation::Read,
        "Write" => Operation::Write,
        _ => return Err(wrong("type", kind, "Read or Write")),
    };
    let [offset, bytes] = extent(offset, size, 1)?;
    let (ticks, device) = (number("timestamp", time)?, device(disk)?);
    Ok(Found { ticks, device, operation, offset, bytes })
}

fn systor(line: &str) -> Result<Option<Found>, TraceProblem> {
    let fields = "Timestamp,Response,IOType,LUN,Offset,Size";
    let [time, _response, kind, lun, offset, size] = exactly(line.split(','), fields)?;
    let operation = match kind {
        "R" => Operation::Read,
        "W" => Operation::Write,
        "" => return Ok(None),
        _ => return Err(wrong("type", kind, "R, W or nothing")),
    };
    let [offset, bytes] = extent(offset, size, 1)?;
    let (ticks, device) = (billionths("timestamp", time)?, device(lun)?);
    Ok(Some(Found { ticks, device, operation, offset, bytes }))
}

fn mqsim(line: &str) -> Result<Found, TraceProblem> {
    let fields = "time, device, sector, sectors and type";
    let [time, number_of_device, sector, sectors, kind] =
        exactly(line.split_ascii_whitespace(), fields)?;
    let operation = match kind {
        "0" => Operation::Write,
        "1" => Operation::Read,
        _ => return Err(wrong("type", kind, "1 for a read or 0 for a write")),
    };
    let [offset, bytes] = extent(sector, sectors, SECTOR)?;
    let (ticks, device) = (number("time", time)?, device(number_of_device)?);
    Ok(Found { ticks, device, operation, offset, bytes })
}

fn disksim(line: &str) -> Result<Found, TraceProblem> {
    let fields = "time, device, sector, sectors and flags";
    let [time, number_of_device, sector, sectors, flags] =
        exactly(line.split_ascii_whitespace(), fields)?;
    let Ok(bits) = u32::from_str_radix(flags, 16) else {
        return Err(wrong("flags", flags, "a number in hexadecimal below 2^32"));
    };
    let operation = if bits & 1 == 1 { Operation::Read } else { Operation::Write };
    let [offset, bytes] = extent(sector, sectors, SECTOR)?;
    let (ticks, device) = (billionths("time", time)?, device(number_of_device)?);
    Ok(Found { ticks, device, operation, offset, bytes })
}
