//! Benchmark of key-value reads from a live data node, in Rust, in C and in Python, on one core.
//!
//! A data node runs in this process, and clients that have a session slot there but no reservation
//! read values of 4 KiB of keys at random: each call waits for its answer, and never has to wait
//! for a token. They know where all keys are. Programs in C and Python are made here and take turns
//! with Rust, a window each.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tidegate_console::programs;
use tidegate_fabric::stream::Address;
use tidegate_model::cluster::{self, DataNode, MemoryTransport};
use tidegate_model::{Bytes, Iops, Span};
use tidegate_node::memory::{self, Running};
use tidegate_onesided::one_sided::BUFFER;
use tidegate_stage::memory::{Settings, Store, VALUE_MAX};

use super::Row;
use super::child::{Child, CompiledProgram, compile, script};
use super::window::{BUSY, Contestant, Ours, WindowPlan, contest};
use crate::experiment::scratch::Scratch;

const BENCH: &str = "haechi";
const KEYS: u64 = 1 << 16;
const KEYS_QUICK: u64 = 1 << 8;
/// Keys of one call.
const MANY: [usize; 2] = [1, 64];
/// More than any client can do.
const PLENTY: Iops = Iops(20_000_000);
/// More than a call has under way, so that no client looks as if the node could do no more.
const WINDOW: u32 = 256;
/// How many times as many as in Rust a program in C reads at least.
const SHARE: f64 = 0.9;

/// Why something cannot be measured.
type Reason = String;

/// Measures how many values are read.
pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let keys = if plan.is_full() { KEYS } else { KEYS_QUICK };
    let bed = match Bed::new(keys) {
        Ok(bed) => bed,
        Err(reason) => return report(row("Rust", MANY[0], None).because(reason)),
    };
    let library = programs::library().map_err(|missing| missing.to_line());
    for many in MANY {
        let c = library.as_deref().map_err(Clone::clone).and_then(|path| in_c(path, &bed, many));
        let python = library.as_deref().map_err(Clone::clone);
        let python = python.and_then(|path| in_python(path, &bed, many));
        measure(plan, &bed, many, [("C", c), ("Python", python)], report);
    }
}

fn row(language: &str, many: usize, rate: Option<f64>) -> Row {
    let how = if many == 1 { "one at a time".into() } else { format!("{many} at a time") };
    let case = format!("values of 4 KiB read in {language}, {how}");
    let row = Row::more(BENCH, case, "k/s", rate);
    if rate.is_none() { row.because(BUSY) } else { row }
}

/// Lets Rust and the other languages take turns.
fn measure(
    plan: WindowPlan,
    bed: &Bed,
    many: usize,
    mut others: [(&str, Result<Child, Reason>); 2],
    report: &mut dyn FnMut(Row),
) {
    let mut rust = Ours::new(|_, calls| bed.read(many, calls));
    let mut all: Vec<(usize, &mut dyn Contestant)> = vec![(1, &mut rust)];
    for child in others.iter_mut().filter_map(|(_, child)| child.as_mut().ok()) {
        all.push((1, child));
    }
    let mut rates = contest(plan, &mut all).into_iter().map(|value| value.map(|ns| 1e6 / ns));
    let ours = rates.next().flatten().map(|calls| calls * many as f64);
    report(row("Rust", many, ours));
    for (language, child) in &others {
        let row = match child {
            Err(reason) => row(language, many, None).because(reason.clone()),
            Ok(_) => row(language, many, rates.next().flatten()),
        };
        let row = row.beside("Rust", ours.ok_or_else(|| BUSY.to_owned()));
        let is_promised = plan.is_full() && *language == "C";
        report(if is_promised { row.promised_times(SHARE) } else { row });
    }
}

/// A data node with values, and a client in Rust.
struct Bed {
    store: Store,
    keys: u64,
    state: Mutex<u64>,
    _node: Running,
    scratch: Scratch,
}

impl Bed {
    fn new(keys: u64) -> Result<Self, Reason> {
        let scratch = Scratch::new().map_err(|failure| failure.to_string())?;
        let at = scratch.join("m.sock");
        // A megabyte for words of control, and room for the index.
        let memory = (keys * u64::from(BUFFER) * 3 / 2 + (4 << 20)).next_multiple_of(4096);
        let node = DataNode {
            name: "m".into(),
            listen: cluster::Address::Unix(at.display().to_string()),
            memory: Bytes(memory),
            capacity: PLENTY,
            client: PLENTY,
            period: Span::SECOND,
            session_slots: 8,
            window: WINDOW,
            is_paced: true,
            transport: MemoryTransport::Shm,
            device: None,
        };
        let config = memory::Config {
            node,
            rules: memory::TokenRules::Sound,
            listen: Address::Unix(at.clone()),
            guard: None,
            controller: None,
        };
        let node = memory::start(config).map_err(|error| error.to_string())?;
        let locations = u32::try_from(2 * keys).unwrap_or(u32::MAX);
        let settings = Settings { locations, ..Settings::default() };
        let store = Store::open(&at, settings).map_err(|error| error.to_string())?;
        for key in 0..keys {
            let put = store.put(&key.to_le_bytes(), &[key as u8; VALUE_MAX]);
            put.map_err(|error| error.to_string())?;
        }
        Ok(Self { store, keys, state: Mutex::new(1), _node: node, scratch })
    }

    fn at(&self) -> PathBuf {
        self.scratch.join("m.sock")
    }

    /// Calls so often for so many values.
    fn read(&self, many: usize, calls: u64) {
        let Ok(mut state) = self.state.lock() else { return };
        let mut any = || {
            *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            ((*state >> 33) % self.keys).to_le_bytes()
        };
        let mut memory = [0; VALUE_MAX];
        let mut copy = |value: &[u8]| {
            memory[..value.len()].copy_from_slice(value);
            black_box(&memory);
        };
        if many == 1 {
            for _ in 0..calls {
                // Nothing but a data node that is gone makes it fail, and then there is no window.
                let _ = self.store.get_with(&any(), &mut copy);
            }
            return;
        }
        for _ in 0..calls {
            let keys: [[u8; 8]; 64] = std::array::from_fn(|_| any());
            let copied = |_, value: Result<Option<&[u8]>, _>| {
                value.ok().flatten().into_iter().for_each(&mut copy);
            };
            let _ = self.store.get_many(&keys[..many], copied);
        }
    }
}

fn in_c(library: &Path, bed: &Bed, many: usize) -> Result<Child, Reason> {
    let header = include_str!("../../../../include/tidegate.h");
    let source = format!("#define _GNU_SOURCE\n{header}{}", include_str!("store.c"));
    let folder = library.parent().unwrap_or(Path::new(".")).display();
    let [search, run_path] = [format!("-L{folder}"), format!("-Wl,-rpath,{folder}")];
    let libraries = [search.as_str(), "-ltidegate", &run_path];
    start(&compile("cc", &source, &["-x", "c", "-O2"], &libraries)?, library, bed, many)
}

fn in_python(library: &Path, bed: &Bed, many: usize) -> Result<Child, Reason> {
    let package = include_str!("../../../../python/tidegate/__init__.py");
    let program = script("python3", &format!("{package}\n\n{}", include_str!("store.py")))?;
    start(&program, library, bed, many)
}

/// Starts a program, and waits until it knows where all keys are.
fn start(
    program: &CompiledProgram,
    library: &Path,
    bed: &Bed,
    many: usize,
) -> Result<Child, Reason> {
    let at = bed.at();
    let (keys, many) = (bed.keys.to_string(), many.to_string());
    let arguments = [at.as_os_str(), keys.as_ref(), many.as_ref()];
    let mut child = program.start(&arguments, &[("TIDEGATE_LIBRARY", library.as_os_str())])?;
    match child.query("ready?").as_deref() {
        Some("ready") => Ok(child),
        Some(reason) if !reason.is_empty() => Err(reason.to_owned()),
        _ => Err("the program ended".to_owned()),
    }
}
