//! Gets of 100 bytes over sixteen connections: from memcached itself, through Tidegate in front of
//! it, and through nutcracker, the stock proxy. All three stand before memcached servers of their
//! own, and take turns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use tidegate_model::Span;

use super::{BENCH, rounds};
use crate::bench::Row;
use crate::bench::sample::Median;
use crate::bench::window::WindowPlan;
use crate::experiment::child::{self, Child, Start, cannot_start};
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

const PEER: &str = "nutcracker";
const CONNECTIONS: u32 = 16;
const FAILED: &str = "tidegate-lab load failed";
/// Processor time that a gateway may add to an operation, and time that it may add to the median,
/// in microseconds.
const ADDED_CPU_US: f64 = 14.0;
const ADDED_MEDIAN_US: f64 = 140.0;

/// The proxy in front of a memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeysFrontend {
    Nothing,
    Tidegate,
    Nutcracker,
}

/// A memcached, and the proxy in front of it.
struct KeysTestbed {
    processes: Vec<Child>,
    socket: PathBuf,
}

#[derive(Clone, Copy, Debug)]
struct KeysFigures {
    per_second: f64,
    cpu_us: f64,
    p50_us: f64,
}

/// A figure by which a run exceeds a run without a proxy: its name, its value of a run, and its
/// bound.
type Added = (&'static str, fn(&KeysFigures) -> f64, f64);

/// The output of `tidegate-lab load`.
#[derive(Deserialize)]
struct LoadReport {
    achieved_per_second: f64,
    answered: f64,
    failed: u64,
    all: All,
}

#[derive(Deserialize)]
struct All {
    service: KeyTimes,
}

#[derive(Deserialize)]
struct KeyTimes {
    p50_ns: f64,
}

impl KeysTestbed {
    fn start(
        frontend: KeysFrontend,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let directory = scratch.join(&format!("{frontend:?}"));
        let fail =
            |error| Failure::new(Code::Failure, "cannot write the bench's files").cause(error);
        fs::create_dir(&directory).map_err(fail)?;
        let store = directory.join("memcached.sock");
        let mut way = Self { processes: Vec::new(), socket: store.clone() };
        let words = ["-u", "root", "-a", "0700", "-m", "128", "-t", "2", "-s"];
        let mut command = start("memcached", &words);
        command.arguments.push(store.clone().into());
        way.add(command, &store, scratch, interrupt)?;
        way.socket = directory.join("front.sock");
        let file = directory.join("front.conf");
        match frontend {
            KeysFrontend::Nothing => way.socket = store,
            KeysFrontend::Tidegate => {
                fs::write(&file, cluster(&directory)).map_err(fail)?;
                let program = programs::tidegate()?;
                let words = ["up", "--no-http", "--state"];
                let mut command = start("gateway", &words);
                command.program = program.into();
                command.arguments.extend([directory.clone().into(), file.into()]);
                let socket = directory.join("controller.sock").into();
                command.arguments.extend(["--socket".into(), socket]);
                let socket = way.socket.clone();
                way.add(command, &socket, scratch, interrupt)?;
            }
            KeysFrontend::Nutcracker => {
                fs::write(&file, nutcracker(&directory)).map_err(fail)?;
                let mut command = start("nutcracker", &["-c"]);
                command.arguments.push(file.into());
                let socket = way.socket.clone();
                way.add(command, &socket, scratch, interrupt)?;
            }
        }
        way.load(&["--fill", "--duration", "100ms"])?;
        Ok(way)
    }

    /// Starts a process, and waits until it listens.
    fn add(
        &mut self,
        command: Start,
        socket: &Path,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let directory = scratch.path();
        self.processes.push(Child::start_listening(&command, socket, directory, interrupt)?);
        Ok(())
    }

    /// Runs `tidegate-lab load` against it.
    fn load(&self, options: &[&str]) -> Result<LoadReport, Failure> {
        let program =
            std::env::current_exe().map_err(|error| cannot_start(&"tidegate-lab".into(), error))?;
        let target = format!("memcached+unix:///?socket={}", self.socket.display());
        let connections = CONNECTIONS.to_string();
        let mut command = Command::new(program);
        command
            .args(["load", &target, "--depth", "1", "--connections", &connections, "--json"])
            .args(["--warmup", "100ms", "--keys", "10000", "--size", "100B"])
            .args(options);
        let output = child::output(&mut command, FAILED)?;
        let fail = |why: String| Failure::new(Code::Failure, FAILED).cause(why);
        let load_report: LoadReport =
            serde_json::from_slice(&output).map_err(|error| fail(error.to_string()))?;
        match load_report.failed {
            0 => Ok(load_report),
            failed => Err(fail(format!("{failed} requests failed"))),
        }
    }

    fn run(&self, length: Span) -> Result<KeysFigures, Failure> {
        let cpu = || self.processes.iter().map(Child::cpu_us).sum::<f64>();
        let before = cpu();
        let duration = format!("{}ms", length.0 / Span::MILLISECOND.0);
        let load_report = self.load(&["--duration", &duration])?;
        // The warm-up costs processor time and is not counted: the rate is the same.
        let all = load_report.answered * (1.0 + 0.1 / length.as_seconds());
        Ok(KeysFigures {
            per_second: load_report.achieved_per_second,
            cpu_us: (cpu() - before) / all,
            p50_us: load_report.all.service.p50_ns / 1_000.0,
        })
    }
}

fn start(program: &str, words: &[&str]) -> Start {
    let arguments = words.iter().map(|word| (*word).into()).collect();
    Start { name: program.into(), program: program.into(), arguments, ..Start::default() }
}

fn cluster(directory: &Path) -> String {
    let path_of = |name: &str| directory.join(name).display().to_string();
    format!(
        "[[node]]\nname = \"store\"\nmemcached = \"unix:{}\"\ndepth = 64\n\
         [[gateway]]\nname = \"front\"\nmemcached = \"unix:{}\"\n\
         [[pool]]\nname = \"cache\"\nnodes = \"store\"\ntenant = \"reader\"\n",
        path_of("memcached.sock"),
        path_of("front.sock"),
    )
}

fn nutcracker(directory: &Path) -> String {
    let path_of = |name: &str| directory.join(name).display().to_string();
    format!(
        "pool:\n  listen: {}\n  hash: md5\n  distribution: ketama\n  servers:\n   - {}:1 store\n",
        path_of("front.sock"),
        path_of("memcached.sock"),
    )
}

/// Measures, and reports the rows.
///
/// # Errors
/// If a program does not start, or the user interrupts the run.
pub(super) fn measure(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let direct = KeysTestbed::start(KeysFrontend::Nothing, &scratch, interrupt)?;
    let tidegate = KeysTestbed::start(KeysFrontend::Tidegate, &scratch, interrupt)?;
    let peer = KeysTestbed::start(KeysFrontend::Nutcracker, &scratch, interrupt);
    let missing = peer.as_ref().err().map(ToString::to_string);
    let ways: Vec<&KeysTestbed> =
        [&direct, &tidegate].into_iter().chain(peer.as_ref().ok()).collect();
    let (rounds, length) = rounds(plan);
    let mut runs = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, runs) in ways.iter().zip(&mut runs) {
            interrupt.check()?;
            runs.push(way.run(length)?);
        }
    }
    let median = |way: usize, what: fn(&KeysFigures) -> f64| {
        Median::of(runs.get(way).into_iter().flatten().map(what)).map(|median| median.value)
    };
    let case = format!("gets of 100 B, {CONNECTIONS} connections, through gateway and node");
    let row = Row::more(BENCH, case, "iops", median(1, |run| run.per_second));
    let row = match runs.get(2) {
        Some(peer) => row.beside_in_turns(
            PEER,
            runs[1].iter().zip(peer).map(|(ours, peer)| (ours.per_second, peer.per_second)),
        ),
        None => row.beside(PEER, Err(missing.unwrap_or_default())),
    };
    report(row.promised_times(1.0));
    let added = |what: fn(&KeysFigures) -> f64, way| Some(median(way, what)? - median(0, what)?);
    let rows: [Added; 2] = [
        ("the same: added processor time per request", |run| run.cpu_us, ADDED_CPU_US),
        ("the same: added to the median", |run| run.p50_us, ADDED_MEDIAN_US),
    ];
    for (case, what, bound) in rows {
        let peer = added(what, 2).ok_or_else(|| "there is no nutcracker".to_owned());
        let row = Row::less(BENCH, case, "us", added(what, 1)).beside(PEER, peer);
        report(row.promised(bound));
    }
    Ok(())
}
