//! Recorded requests as a workload, at their times.
//!
//! **Problem.** A recording is a stream of lines that may be longer than memory, of several devices
//! and of days. A replay needs a part of it: one device, some minutes, perhaps twice as fast, as
//! the load of an application.
//!
//! **Mechanism.** Records are read one ahead, in the order of their times; those of other devices
//! and from before `from` are passed over. A record at `t` is a request at `start + (t - from) *
//! 100 / speed_percent`. *Example*: with `from` = 10 s, a speed of 200 % and a start of 1 ms, what
//! was recorded at 10.5 s is requested at 251 ms. The replay does not wait for answers: an
//! overloaded system falls behind, as with any open loop.
//!
//! **What is left out.** Answers that made the next request: recordings do not mark them.

use std::io::BufRead;

use serde::Deserialize;
use tidegate_model::{Class, Span};

use super::IoRequest;
use super::sizes::LARGEST;
use crate::scenario::{ScenarioError, must, optional, text};
use crate::time::Picoseconds;
use crate::trace::{Format, Reader, TraceError};

/// A recording, and the part of it to replay.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// Its file. The caller that runs the scenario opens it.
    pub file: String,
    /// Its format; by default the first line determines it.
    #[serde(default, deserialize_with = "optional")]
    pub format: Option<Format>,
    /// Only requests to this device, volume or file; by default to all as if they were one.
    #[serde(default)]
    pub device: Option<u32>,
    /// From when on, counted from the earliest request of the recording, whatever its device.
    #[serde(default, deserialize_with = "text")]
    pub from: Span,
    /// How fast, in percent of how fast it was recorded, from 1 to 1,000,000.
    #[serde(default = "Recording::speed")]
    pub speed_percent: u32,
    /// How many records are held back to be sorted, 1,024 by default.
    #[serde(default)]
    pub window: Option<u32>,
}

impl Recording {
    const fn speed() -> u32 {
        100
    }

    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        must(!self.file.is_empty(), "load.trace.file: the name of a file")?;
        let speed = (1..=1_000_000).contains(&self.speed_percent);
        must(speed, "load.trace.speed_percent: from 1 to 1000000")?;
        let window = self.window.is_none_or(|records| records <= 1 << 20);
        must(window, "load.trace.window: at most 1048576 records")
    }

    /// Its reader. Requests larger than 1 GiB are errors: every system splits them, and no drive
    /// here takes one.
    fn reader<R: BufRead>(&self, source: R) -> Reader<R> {
        let mut reader = Reader::new(source).largest(LARGEST);
        if let Some(format) = self.format {
            reader = reader.of(format);
        }
        match self.window {
            Some(records) => reader.window(records as usize),
            None => reader,
        }
    }
}

/// The requests of a recording, as they come.
#[derive(Debug)]
pub struct Replay<R> {
    reader: Reader<R>,
    class: Class,
    device: Option<u32>,
    from: Picoseconds,
    speed_percent: u32,
    start: Picoseconds,
    /// No request is made then or later.
    end: Picoseconds,
    /// How many more it may make.
    left: u64,
}

impl<R: BufRead> Replay<R> {
    /// A replay by a plan whose load is this recording, read from `source`.
    pub fn new(plan: &super::WorkloadPlan, recording: &Recording, source: R) -> Self {
        let start = Picoseconds::from(plan.start);
        Self {
            reader: recording.reader(source),
            class: plan.class,
            device: recording.device,
            from: recording.from.into(),
            speed_percent: recording.speed_percent,
            start,
            end: plan.end(),
            left: plan.requests.unwrap_or(u64::MAX),
        }
    }

    /// The next request; none if there are no more.
    ///
    /// # Errors
    /// If a line is wrong. The line is the first such one within the window, so it may stand behind
    /// requests that have not arrived yet.
    pub fn arrival(&mut self) -> Result<Option<IoRequest>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        for record in self.reader.by_ref() {
            let record = record?;
            let is_other = self.device.is_some_and(|device| record.device != device);
            if is_other || record.at < self.from {
                continue;
            }
            let recorded = u128::from(record.at.0 - self.from.0);
            let passed = recorded * 100 / u128::from(self.speed_percent);
            let passed = Picoseconds(u64::try_from(passed).unwrap_or(u64::MAX));
            let at = self.start.after(passed);
            if at >= self.end {
                break;
            }
            self.left -= 1;
            return Ok(Some(IoRequest { at, ..record.request(self.class) }));
        }
        // All later records are too late, too.
        self.left = 0;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WorkloadPlan;
    use super::*;
    use tidegate_model::{Bytes, Operation};

    /// Of two devices, in milliseconds: 0, 1, 2, 3 and 9.
    const TEXT: &str = "\
        5000000 0 80 8 1\n6000000 1 0 8 0\n7000000 0 160 16 0\n8000000 0 0 1 1\n14000000 0 0 8 1\n";

    fn plan(keys: &str, more: &str) -> Result<WorkloadPlan, ScenarioError> {
        let load = format!("load = {{ trace = {{ file = 'a'{keys} }} }}");
        WorkloadPlan::parse(&format!("name = 'x'\nclass = 'high'\n{load}\n{more}"))
    }

    /// Returns the requests replayed from a text: times in microseconds, and bytes.
    fn replayed(text: &str, keys: &str, more: &str) -> Result<Vec<(u64, u64)>, TraceError> {
        let plan = plan(keys, more).unwrap();
        let super::super::Load::Trace(recording) = &plan.load else { panic!() };
        let mut replay = Replay::new(&plan, recording, text.as_bytes());
        let all = core::iter::from_fn(|| replay.arrival().transpose());
        all.map(|read| read.map(|request| (request.at.0 / 1_000_000, request.bytes.0))).collect()
    }

    #[test]
    fn a_section_is_replayed() {
        let of = |keys: &str, more: &str| replayed(TEXT, keys, more).unwrap();
        let all = [(0, 4_096), (1_000, 4_096), (2_000, 8_192), (3_000, 512), (9_000, 4_096)];
        assert_eq!(of("", ""), all);
        assert_eq!(of(", device = 1", ""), [all[1]]);
        assert_eq!(of(", device = 2", ""), []);
        assert_eq!(of("", "requests = 2"), all[..2]);
        // The end is not in it.
        assert_eq!(of("", "length = '3ms'"), all[..3]);
        let later = [(500, 8_192), (1_500, 512), (7_500, 4_096)];
        assert_eq!(of(", from = '1500us'", ""), later);
        assert_eq!(of(", from = '1500us', speed_percent = 50", "start = '1ms'")[0], (2_000, 8_192));
        assert_eq!(of(", speed_percent = 200", "")[4], (4_500, 4_096));
        assert_eq!(of(", speed_percent = 200", "length = '1500us'").len(), 3);
    }

    #[test]
    fn requests_are_as_they_were_recorded() {
        let plan = plan("", "").unwrap();
        let super::super::Load::Trace(recording) = &plan.load else { panic!() };
        let first = Replay::new(&plan, recording, TEXT.as_bytes()).arrival().unwrap().unwrap();
        let (at, bytes, offset) = (Picoseconds::ZERO, Bytes(4_096), Bytes(80 * 512));
        let (operation, class) = (Operation::Read, Class::High);
        assert_eq!(first, IoRequest { at, offset, bytes, operation, class });
    }

    #[test]
    fn what_no_drive_takes_is_an_error_and_so_is_what_is_no_record() {
        let large = format!("{TEXT}15000000 0 0 2097153 1\n");
        let error = replayed(&large, "", "").unwrap_err().to_string();
        assert_eq!(error, "line 6: a request of 1073742336B; at most 1GiB can be replayed");
        assert_eq!(replayed(&large.replace("2097153", "2097152"), "", "").unwrap().len(), 6);
        let error = replayed(TEXT, ", format = 'msr'", "").unwrap_err().to_string();
        assert!(error.starts_with("line 1: 1 fields; expected Timestamp"), "{error}");
        let late = format!("{TEXT}4000000 0 0 8 1\n");
        assert_eq!(replayed(&late, "", "").unwrap().len(), 6);
        let error = replayed(&late, ", window = 2", "").unwrap_err().to_string();
        assert!(error.contains("window of 2"), "{error}");
    }

    #[test]
    fn what_is_refused() {
        for (keys, more, expected) in [
            ("", "space = '1GiB'", "leave out like"),
            ("", "reads = '10%'", "leave out like"),
            ("", "like = 'tpcc'", "leave out like"),
            (", speed_percent = 0", "", "speed_percent"),
            (", window = 1048577", "", "window"),
            (", format = 'csv'", "", "known are msr systor mqsim disksim fio"),
            (", speed = 2", "", "speed"),
        ] {
            let error = plan(keys, more).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let nameless = WorkloadPlan::parse("name = 'x'\nload = { trace = { file = '' } }");
        assert!(nameless.unwrap_err().to_string().contains("the name of a file"));
    }
}
