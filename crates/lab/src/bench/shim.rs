//! The time that the shim adds to a system call: one program runs as it is and under the shim, in
//! turns.
//!
//! This bench makes the shim's segment with one rule: every request belongs to one channel. No
//! request waits at the channel's bucket.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tempfile::{Builder, NamedTempFile};
use tidegate_algo::classify::channel::{self, ChannelEntry, GATES_PER_CHANNEL, Source};
use tidegate_algo::concurrent::published::VERSIONS;
use tidegate_model::{Class, TenantId, Time};
use tidegate_stage::Segment;
use tidegate_stage::layout::GateKind;
use tidegate_stage::segment::VARIABLE;

use super::Row;
use super::child::{CompiledProgram, compile};
use super::window::{WindowPlan, contest};

const BENCH: &str = "shim";
/// The most time that the shim adds to a `pread` of 4 KiB from the page cache.
const ADDED_NS: f64 = 60.0;

pub(super) fn rows(plan: WindowPlan, shim: Result<&Path, String>, report: &mut dyn FnMut(Row)) {
    let report_all = || -> Result<(), String> {
        let shim = shim?;
        let program = compile("cc", include_str!("loop.c"), &["-x", "c", "-O2"], &[])?;
        let stage = OneChannel::make().map_err(|error| format!("no segment: {error}"))?;
        let file = page().map_err(|error| format!("no file to read: {error}"))?;
        let shimmed = Shimmed { plan, shim, program, stage };
        for row in shimmed.rows("pread of 4 KiB from the page cache", "pread", file.path(), true)? {
            report(row);
        }
        for row in
            shimmed.rows("write of 4 KiB to /dev/null", "write", "/dev/null".as_ref(), false)?
        {
            report(row);
        }
        Ok(())
    };
    if let Err(reason) = report_all() {
        let row = Row::nanoseconds(BENCH, "added by the shim", None).promised(ADDED_NS);
        report(row.because(reason));
    }
}

/// A file of one page, gone at the end. In the working directory, for the one for temporary files
/// is often in memory, which the shim does not count as storage.
fn page() -> io::Result<NamedTempFile> {
    let make = |directory: PathBuf| {
        let mut file = Builder::new().prefix(".tidegate-bench-").tempfile_in(directory)?;
        file.write_all(&[7; 4096]).map(|()| file)
    };
    make(std::env::current_dir()?).or_else(|_| make(std::env::temp_dir()))
}

/// A segment in a file, with one channel for everything. Dropping it removes the file.
struct OneChannel {
    segment: Segment,
    path: PathBuf,
}

impl OneChannel {
    fn make() -> io::Result<Self> {
        let (segment, path) = Segment::create()?;
        let stage = Self { segment, path };
        let mut gates = [None; GATES_PER_CHANNEL];
        gates[0] = Some(0);
        let channels =
            [ChannelEntry { channel: 0, tenant: TenantId(1), class: Class::Medium, gates }];
        let source = Source { default: Some(0), channels: &channels, ..Source::default() };
        let words = channel::compile(&source).map_err(io::Error::other)?;
        let gate = &stage.segment.gates[0];
        let rate = (1 << 40) - 1;
        gate.bucket.configure(rate, rate / 2, Time::ZERO);
        gate.kind.store(GateKind::Bytes as u32, Ordering::Relaxed);
        for (cell, word) in stage.segment.tables[1 % VERSIONS].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        stage.segment.header.generation.store(1, Ordering::Release);
        Ok(stage)
    }

    fn operations(&self) -> u64 {
        self.segment.channels[0].passed.operations()
    }
}

impl Drop for OneChannel {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The program and the segment to measure calls with.
struct Shimmed<'a> {
    plan: WindowPlan,
    shim: &'a Path,
    program: CompiledProgram,
    stage: OneChannel,
}

impl Shimmed<'_> {
    /// Rows for `call` on `file`; with a promise if the shim is to gate it.
    fn rows(&self, what: &str, call: &str, file: &Path, gated: bool) -> Result<[Row; 3], String> {
        let arguments = [OsStr::new(call), file.as_os_str()];
        let loaded =
            [("LD_PRELOAD", self.shim.as_os_str()), (VARIABLE, self.stage.path.as_os_str())];
        let before = self.stage.operations();
        let mut bare = self.program.start(&arguments, &[])?;
        let mut shimmed = self.program.start(&arguments, &loaded)?;
        let values = contest(self.plan, &mut [(1, &mut bare), (1, &mut shimmed)]);
        drop((bare, shimmed));
        let added = values[0].zip(values[1]).map(|(bare, shimmed)| shimmed - bare);
        let seen = self.stage.operations() > before;
        let mut row = Row::nanoseconds(BENCH, format!("added to a {what}"), added);
        if gated {
            row = match seen {
                true => row.promised(ADDED_NS),
                false => Row { value: None, ..row }.promised(ADDED_NS).because(NOT_SEEN),
            };
        }
        let row_of = |how, value| Row::nanoseconds(BENCH, format!("{what}, {how}"), value);
        let (bare, shimmed) = (row_of("as it is", values[0]), row_of("under the shim", values[1]));
        Ok([bare, shimmed, row])
    }
}

/// Why nothing was added.
const NOT_SEEN: &str = "the shim gated no call: is the working directory in memory?";
