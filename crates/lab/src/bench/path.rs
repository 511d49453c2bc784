//! The cost of a request on its way through a gateway and a node, beside a stock server without
//! either: fio reads 4 KiB blocks at random over one NBD connection, from memory.
//!
//! Three servers take turns, a run each, in every round, so that a machine that becomes slower
//! becomes slower for all of them: Tidegate with gateway and node in one process, Tidegate with
//! both in processes of their own, and nbdkit's memory plug-in. Under Tidegate a policy is in
//! force, with a reservation, a weight and a limit that is not reached. At depth 1 both processors
//! sleep between requests and a run says how fast the machine wakes up; so the least depth is 4.
//!
//! Then two clusters of two nodes take turns, with the scheduler `fifo` and `unified`: the
//! difference is the cost of a scheduler that observes reservations, limits, weights and delays.
//!
//! A last case has a limit that is reached: how exactly it holds, and how evenly requests wait.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_model::Span;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::child::{Child, Start};
use crate::experiment::fio;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

mod keys;

const BENCH: &str = "path";
const PEER: &str = "nbdkit memory";
const DEPTHS: [u32; 3] = [4, 16, 64];
/// From this depth on the promises hold: below it, how fast the machine wakes up counts.
const DEPTH_PROMISED: u32 = 16;
/// How many times nbdkit's rate, in one process and in separate ones.
const TOGETHER: f64 = 1.3;
const APART: f64 = 0.8;
/// The least rate of nodes with the scheduler `unified`, as a multiple of the rate with `fifo`.
const UNIFIED: f64 = 0.95;
/// Processor time per request in one process, in microseconds.
const CPU_US: f64 = 6.0;
/// The limit that is reached, in requests per second, and how far off it may be, in per cent.
const LIMIT: u64 = 2_000;
const LIMIT_OFF: f64 = 1.0;
/// How many times the median of waiting its 99th percentile may be.
const UNEVEN: f64 = 2.0;
const VOLUME: &str = "disk";
const SIZE_MIB: u64 = 256;
/// Rounds, and how long a run is.
const ROUNDS: usize = 7;
const RUN: Span = Span(1_500 * Span::MILLISECOND.0);
const RUN_LIMITED: Span = Span(5 * Span::SECOND.0);
const RUN_QUICK: Span = Span(300 * Span::MILLISECOND.0);
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

/// The figures of one run of fio.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FioFigures {
    /// Requests per second.
    iops: f64,
    /// Processor time of the server per request, in microseconds.
    cpu_us: f64,
    /// How long requests took, in microseconds.
    p50_us: f64,
    p99_us: f64,
}

/// A server under test. Dropping it ends its processes.
struct Server {
    name: &'static str,
    processes: Vec<Child>,
    socket: PathBuf,
}

impl Server {
    /// Processor time of all its processes so far, in microseconds.
    fn cpu_us(&self) -> f64 {
        self.processes.iter().map(Child::cpu_us).sum()
    }

    /// Starts processes one after the other; each listens on the socket beside it before the next
    /// starts. The last of these is where clients connect.
    fn start(
        name: &'static str,
        commands: Vec<(Start, PathBuf)>,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let (mut processes, mut last) = (Vec::new(), PathBuf::new());
        for (command, socket) in commands {
            let directory = scratch.path();
            processes.push(Child::start_listening(&command, &socket, directory, interrupt)?);
            last = socket;
        }
        Ok(Self { name, processes, socket: last })
    }

    /// Writes the volume once, so that reads find something.
    fn fill(&mut self, scratch: &Scratch, interrupt: &Interrupt) -> Result<(), Failure> {
        let mut words = client(&self.socket, self.export());
        let options = format!("--rw=write --bs=1M --iodepth=4 --size={SIZE_MIB}M --eta=never");
        words.extend(options.split_whitespace().map(OsString::from));
        self.attend(words, scratch, interrupt)
    }

    fn export(&self) -> &'static str {
        if self.name == PEER { "" } else { VOLUME }
    }

    /// Runs fio to its end.
    fn attend(
        &mut self,
        arguments: Vec<OsString>,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let (name, program) = ("fio".into(), "fio".into());
        let start = Start { name, program, arguments, ..Start::default() };
        let mut child = Child::start(&start, scratch.path())?;
        let clock = Clock::start();
        while !child.has_ended()? {
            for process in &mut self.processes {
                process.has_ended()?;
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        Ok(())
    }

    /// One run of fio.
    fn run(
        &mut self,
        depth: u32,
        length: Span,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<FioFigures, Failure> {
        let output_path = scratch.join("fio.json");
        let before = self.cpu_us();
        let words = reads(&self.socket, self.export(), depth, length, &output_path);
        self.attend(words, scratch, interrupt)?;
        let cpu_us = self.cpu_us() - before;
        let text = fs::read_to_string(&output_path).unwrap_or_default();
        parse(&text, cpu_us).ok_or_else(fio::senseless)
    }
}

/// fio as a client of an export.
fn client(socket: &Path, export: &str) -> Vec<OsString> {
    // The options of an engine stand behind the engine.
    let mut words: Vec<OsString> = ["--name=path", "--ioengine=nbd"].map(OsString::from).into();
    let mut uri = OsString::from(format!("--uri=nbd+unix:///{export}?socket="));
    uri.push(socket);
    words.push(uri);
    words
}

fn reads(
    socket: &Path,
    export: &str,
    depth: u32,
    length: Span,
    output_path: &Path,
) -> Vec<OsString> {
    let milliseconds = length.0 / Span::MILLISECOND.0;
    let mut words = client(socket, export);
    let options = format!(
        "--rw=randread --bs=4k --size={SIZE_MIB}M --iodepth={depth} --time_based=1 \
         --runtime={milliseconds}ms --ramp_time=100ms --norandommap=1 --output-format=json \
         --eta=never"
    );
    words.extend(options.split_whitespace().map(OsString::from));
    let mut output = OsString::from("--output=");
    output.push(output_path);
    words.push(output);
    words
}

fn parse(text: &str, cpu_us: f64) -> Option<FioFigures> {
    #[derive(Deserialize)]
    struct Report {
        jobs: Vec<Job>,
    }
    #[derive(Deserialize)]
    struct Job {
        read: Side,
        error: i64,
    }
    #[derive(Deserialize)]
    struct Side {
        iops: f64,
        total_ios: f64,
        runtime: f64,
        clat_ns: Latency,
    }
    #[derive(Deserialize)]
    struct Latency {
        percentile: Percentiles,
    }
    #[derive(Deserialize)]
    struct Percentiles {
        #[serde(rename = "50.000000")]
        p50: f64,
        #[serde(rename = "99.000000")]
        p99: f64,
    }
    let report: Report = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let [Job { read, error: 0 }] = &report.jobs[..] else { return None };
    // Requests of the ramp cost processor time and are not counted: the rate is the same.
    let all = read.iops * (read.runtime + 100.0) / 1_000.0;
    let Percentiles { p50, p99 } = read.clat_ns.percentile;
    (read.total_ios > 0.0).then_some(FioFigures {
        iops: read.iops,
        cpu_us: cpu_us / all,
        p50_us: p50 / 1_000.0,
        p99_us: p99 / 1_000.0,
    })
}

/// A configuration of Tidegate to run.
#[derive(Clone, Copy)]
struct Deployment<'a> {
    name: &'static str,
    /// Each in a process of its own; an empty one for all together.
    roles: &'a [&'a str],
    nodes: &'a [&'a str],
    scheduler: &'a str,
    limit: u64,
}

impl Deployment<'_> {
    /// One node, in one process with everything else, and no limit that is ever reached.
    const TOGETHER: Self = Self {
        name: "together",
        roles: &[""],
        nodes: &["memory"],
        scheduler: "token",
        limit: 10_000_000,
    };

    /// The cluster under test: nodes in memory, one gateway, one volume over all nodes.
    fn cluster(&self, directory: &Path, policy: &Path) -> String {
        let path_of = |name: &str| directory.join(name).display().to_string();
        let node = |(number, name): (usize, &&str)| {
            let socket = path_of(if number == 0 { "node.sock" } else { "other.sock" });
            format!(
                "[[node]]\nname = \"{name}\"\naddress = \"unix:{socket}\"\nmemory = true\n\
                 depth = 64\nscheduler = \"{}\"\n",
                self.scheduler
            )
        };
        format!(
            "policy = \"{}\"\n{}[[gateway]]\nname = \"door\"\nnbd = \"unix:{}\"\n\
             [[volume]]\nname = \"{VOLUME}\"\nsize = \"{SIZE_MIB}MiB\"\ntenant = \"reader\"\n\
             nodes = {:?}\n",
            policy.display(),
            self.nodes.iter().enumerate().map(node).collect::<String>(),
            path_of("nbd.sock"),
            self.nodes,
        )
    }
}

fn policy(limit: u64) -> String {
    format!(
        "[[tenant]]\nname = \"reader\"\nreservation = \"1k iops\"\nlimit = \"{limit} iops\"\n\
         weight = 300\n[[tenant]]\nname = \"other\"\nreservation = \"1k iops\"\n"
    )
}

/// Tidegate with everything in one process, or with one for each role.
fn tidegate(
    kind: Deployment<'_>,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Server, Failure> {
    let name = kind.name;
    let directory = scratch.join(name);
    let (file, rules) = (directory.join("cluster.toml"), directory.join("policy.toml"));
    let written = fs::create_dir(&directory)
        .and_then(|()| fs::write(&rules, policy(kind.limit)))
        .and_then(|()| fs::write(&file, kind.cluster(&directory, &rules)));
    let fail = |error| Failure::new(Code::Failure, "cannot write the bench's files").cause(error);
    written.map_err(fail)?;
    let program = programs::tidegate()?;
    let socket = directory.join("controller.sock");
    let start = |role: &str| {
        let words = ["--socket".into(), socket.clone().into(), "up".into(), file.clone().into()];
        let mut arguments: Vec<OsString> = words.into();
        arguments.extend(["--no-http".into(), "--state".into(), directory.clone().into()]);
        if !role.is_empty() {
            arguments.extend(["--role".into(), role.into()]);
        }
        let listens = match role {
            "controller" => &socket,
            "node" => &directory.join("node.sock"),
            _ => &directory.join("nbd.sock"),
        };
        let name = format!("{name}-{role}");
        let program = program.clone().into();
        (Start { name, program, arguments, ..Start::default() }, listens.clone())
    };
    Server::start(name, kind.roles.iter().copied().map(start).collect(), scratch, interrupt)
}

fn nbdkit(scratch: &Scratch, interrupt: &Interrupt) -> Result<Server, Failure> {
    let socket = scratch.join("nbdkit.sock");
    let mut arguments: Vec<OsString> = ["-f", "-U"].map(OsString::from).into();
    arguments.push(socket.clone().into());
    arguments.extend(["memory".into(), format!("{SIZE_MIB}M").into()]);
    let (name, program) = ("nbdkit".into(), "nbdkit".into());
    let start = Start { name, program, arguments, ..Start::default() };
    Server::start(PEER, vec![(start, socket)], scratch, interrupt)
}

/// Medians of a server's runs at one depth.
fn median(runs: &[FioFigures], what: impl Fn(&FioFigures) -> f64) -> Option<Median> {
    Median::of(runs.iter().map(what))
}

/// Measures, and reports the rows.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let or_reason = |case: &str, measured: Result<(), Failure>, report: &mut dyn FnMut(Row)| {
        let Err(failure) = measured else { return Ok(()) };
        interrupt.check()?;
        report(Row::more(BENCH, case, "iops", None).because(failure.to_string()));
        Ok::<(), Failure>(())
    };
    let measured = measure(plan, interrupt, report);
    or_reason("4 KiB random reads over NBD", measured, report)?;
    let measured = keys::measure(plan, interrupt, report);
    or_reason("memcached gets", measured, report)
}

fn measure(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let roles = ["controller", "node", "gateway"];
    let mut servers = vec![
        tidegate(Deployment::TOGETHER, &scratch, interrupt)?,
        tidegate(
            Deployment { name: "apart", roles: &roles, ..Deployment::TOGETHER },
            &scratch,
            interrupt,
        )?,
    ];
    let missing = match nbdkit(&scratch, interrupt) {
        Ok(server) => {
            servers.push(server);
            None
        }
        Err(failure) => Some(failure.to_string()),
    };
    for server in &mut servers {
        server.fill(&scratch, interrupt)?;
    }
    let (rounds, length) = if plan.is_full() { (ROUNDS, RUN) } else { (1, RUN_QUICK) };
    for depth in DEPTHS {
        let mut runs = vec![Vec::new(); servers.len()];
        for _ in 0..rounds {
            for (server, runs) in servers.iter_mut().zip(&mut runs) {
                runs.push(server.run(depth, length, &scratch, interrupt)?);
            }
        }
        let peer = match &missing {
            None => runs.last().and_then(|runs| median(runs, |run| run.iops)),
            Some(_) => None,
        };
        let peer = peer.map(|peer| peer.value).ok_or(missing.clone().unwrap_or_default());
        for (server, runs) in servers.iter().zip(&runs).take(2) {
            speed(server.name, depth, runs, &peer, report);
        }
    }
    drop(servers);
    schedulers(plan, &scratch, interrupt, report)?;
    limited(plan, &scratch, interrupt, report)
}

/// Measures the rate with the scheduler `unified`, beside the rate with `fifo`.
fn schedulers(
    plan: WindowPlan,
    scratch: &Scratch,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let kind = Deployment { nodes: &["memory", "other"], ..Deployment::TOGETHER };
    let mut servers = Vec::new();
    for scheduler in ["fifo", "unified"] {
        servers.push(tidegate(
            Deployment { name: scheduler, scheduler, ..kind },
            scratch,
            interrupt,
        )?);
    }
    for server in &mut servers {
        server.fill(scratch, interrupt)?;
    }
    let (rounds, length) = if plan.is_full() { (ROUNDS, RUN) } else { (1, RUN_QUICK) };
    for depth in DEPTHS.into_iter().filter(|depth| *depth >= DEPTH_PROMISED) {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (server, runs) in servers.iter_mut().zip(&mut runs) {
                runs.push(server.run(depth, length, scratch, interrupt)?);
            }
        }
        let [fifo, unified] = runs.map(|runs| median(&runs, |run| run.iops));
        let (Some(fifo), Some(unified)) = (fifo, unified) else { continue };
        let case = format!("4 KiB random reads over NBD, depth {depth}, two nodes, unified");
        let row = Row::more(BENCH, case, "iops", Some(unified.value));
        let row = row.between(unified.low, unified.high).beside("fifo", Ok(fifo.value));
        report(row.promised_times(UNIFIED));
    }
    Ok(())
}

/// How exactly a limit holds that is reached.
fn limited(
    plan: WindowPlan,
    scratch: &Scratch,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let kind = Deployment { name: "limited", limit: LIMIT, ..Deployment::TOGETHER };
    let mut limited = tidegate(kind, scratch, interrupt)?;
    let length = if plan.is_full() { RUN_LIMITED } else { RUN_QUICK };
    let run = limited.run(DEPTH_PROMISED, length, scratch, interrupt)?;
    let off = (run.iops / LIMIT as f64 - 1.0).abs() * 100.0;
    let case = format!("limit of {LIMIT} iops, depth {DEPTH_PROMISED}: off by");
    report(Row::less(BENCH, case, "%", Some(off)).promised(LIMIT_OFF));
    let case = format!("limit of {LIMIT} iops, depth {DEPTH_PROMISED}: p99 over p50 of waiting");
    let note = format!("p50 {:.0} us, p99 {:.0} us", run.p50_us, run.p99_us);
    let uneven = Some(run.p99_us / run.p50_us);
    report(Row::less(BENCH, case, "ratio", uneven).promised(UNEVEN).noted(note));
    Ok(())
}

fn speed(
    name: &str,
    depth: u32,
    runs: &[FioFigures],
    peer: &Result<f64, String>,
    report: &mut dyn FnMut(Row),
) {
    let (what, times) = match name {
        "together" => ("one process", TOGETHER),
        _ => ("three processes", APART),
    };
    let is_promised = depth >= DEPTH_PROMISED;
    let Some(iops) = median(runs, |run| run.iops) else { return };
    let case = format!("4 KiB random reads over NBD, depth {depth}, {what}");
    let mut row = Row::more(BENCH, case, "iops", Some(iops.value)).between(iops.low, iops.high);
    row = row.beside(PEER, peer.clone());
    report(if is_promised { row.promised_times(times) } else { row });
    let Some(cpu) = median(runs, |run| run.cpu_us) else { return };
    let case = format!("the same: processor time per request, {what}");
    let row = Row::less(BENCH, case, "us", Some(cpu.value)).between(cpu.low, cpu.high);
    let is_promised = is_promised && name == "together";
    report(if is_promised { row.promised(CPU_US) } else { row });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_fio_is_understood_or_refused() {
        let report = |error: i64| {
            format!(
                "a note\n{{\"jobs\":[{{\"error\":{error},\"read\":{{\"iops\":1000.0,\
                 \"total_ios\":900,\"runtime\":900,\"clat_ns\":{{\"percentile\":\
                 {{\"50.000000\":7000,\"99.000000\":9000}}}}}}}}]}}"
            )
        };
        let run = FioFigures { iops: 1_000.0, cpu_us: 4.0, p50_us: 7.0, p99_us: 9.0 };
        assert_eq!(parse(&report(0), 4_000.0), Some(run));
        assert_eq!(parse(&report(5), 4_000.0), None);
        assert_eq!(parse("", 1.0), None);
    }
}
