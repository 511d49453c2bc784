//! The cost of a request on its way through a gateway and a node, beside a stock server without
//! either: fio reads 4 KiB blocks at random over one NBD connection, from memory.
//!
//! Three servers take turns, a run each, in every round, so that a machine that becomes slower
//! becomes slower for all of them: Tidegate with gateway and node in one process, Tidegate with
//! both in processes of their own, and nbdkit's memory plug-in. Under Tidegate a policy is in
//! force, with a reservation, a weight and a limit that is not reached. At depth 1 both processors
//! sleep between requests, and a run measures how fast the machine wakes up; so the least depth is
//! 4.
//!
//! Then both servers serve unencrypted and encrypted clients over TCP ([`tls`]).
//!
//! Then two clusters of two nodes take turns, with the scheduler `fifo` and `unified`: the
//! difference is the cost of a scheduler that observes reservations, limits, weights and delays.
//! Clusters with and without classes take turns, too: the difference is the cost of the tag.
//!
//! A last case has a limit that is reached: how exactly it holds, and how evenly requests wait.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_model::Span;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::child::{Child, Start};
use crate::experiment::fio::{self, FioOutput};
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

mod keys;
mod tls;

pub(super) use tls::free_port;

const BENCH: &str = "path";
const PEER: &str = "nbdkit memory";
const DEPTHS: [u32; 3] = [4, 16, 64];
/// From this depth on the promises hold: below it, how fast the machine wakes up counts.
const DEPTH_PROMISED: u32 = 16;
/// How many times nbdkit's rate in one process.
const TOGETHER: f64 = 1.3;
/// The same in separate processes. Below depth 64 four processes wait for two processors in step.
const APART: f64 = 1.0;
const APART_SHALLOW: f64 = 0.9;
/// The least rate of nodes with the scheduler `unified`, as a multiple of the rate with `fifo`.
const UNIFIED: f64 = 0.95;
/// The least rate of requests whose class decides at each gate, as a multiple of the rate without
/// classes.
const TAGGED: f64 = 0.98;
/// Processor time per request in one process, in microseconds.
const CPU_US: f64 = 6.0;
/// The limit that is reached, in requests per second, and how far off it may be, in per cent.
const LIMIT: u64 = 2_000;
const LIMIT_OFF: f64 = 1.0;
/// How many times the median of waiting its 99th percentile may be.
const UNEVEN: f64 = 2.0;
const VOLUME: &str = "disk";
const SIZE_MIB: u64 = 256;
const ROUNDS: usize = 10;
const RUN: Span = Span::SECOND;
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
    target: ExportTarget,
}

/// The export that a client opens.
#[derive(Clone, Debug)]
struct ExportTarget {
    uri: OsString,
    /// The client's home, with its certificates in `.pki/libnbd`; none without encryption.
    home: Option<PathBuf>,
}

impl ExportTarget {
    fn of_socket(socket: &Path, export: &str) -> Self {
        let mut uri = OsString::from(format!("nbd+unix:///{export}?socket="));
        uri.push(socket);
        Self { uri, home: None }
    }

    /// fio as a client of it.
    fn client(&self, options: &str) -> Start {
        let mut uri = OsString::from("--uri=");
        uri.push(&self.uri);
        // The options of an engine stand behind the engine.
        let mut words: Vec<OsString> = ["--name=path", "--ioengine=nbd"].map(OsString::from).into();
        words.push(uri);
        words.extend(options.split_whitespace().map(OsString::from));
        let (name, program) = (String::from("fio"), OsString::from("fio"));
        let Some(home) = &self.home else {
            return Start { name, program, arguments: words, ..Start::default() };
        };
        let environment = vec![("HOME".into(), home.into())];
        // libnbd reads certificates of the home unless root runs it: there, fio is another user.
        if !rustix::process::geteuid().is_root() {
            return Start { name, program, arguments: words, environment, ..Start::default() };
        }
        let mut arguments: Vec<OsString> =
            ["--user", "--map-user=1000", "fio"].map(OsString::from).into();
        arguments.append(&mut words);
        Start { name, program: "unshare".into(), arguments, environment, ..Start::default() }
    }
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
        let export = if name == PEER { "" } else { VOLUME };
        Ok(Self { name, processes, target: ExportTarget::of_socket(&last, export) })
    }

    /// Writes the volume once, so that reads find something.
    fn fill(&mut self, scratch: &Scratch, interrupt: &Interrupt) -> Result<(), Failure> {
        let options = format!("--rw=write --bs=1M --iodepth=4 --size={SIZE_MIB}M --eta=never");
        self.attend(&self.target.client(&options), scratch, interrupt)
    }

    /// Runs fio to its end.
    fn attend(
        &mut self,
        client: &Start,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let mut child = Child::start(client, scratch.path())?;
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
        let client = self.target.client(&reads(depth, length, &output_path));
        self.attend(&client, scratch, interrupt)?;
        let cpu_us = self.cpu_us() - before;
        let text = fs::read_to_string(&output_path).unwrap_or_default();
        parse(&text, cpu_us).ok_or_else(fio::senseless)
    }
}

/// Options of random reads.
fn reads(depth: u32, length: Span, output_path: &Path) -> String {
    let milliseconds = length.0 / Span::MILLISECOND.0;
    let output_path = output_path.display();
    format!(
        "--rw=randread --bs=4k --size={SIZE_MIB}M --iodepth={depth} --time_based=1 \
         --runtime={milliseconds}ms --ramp_time=100ms --norandommap=1 --output-format=json \
         --eta=never --output={output_path}"
    )
}

fn parse(text: &str, cpu_us: f64) -> Option<FioFigures> {
    let reads = FioOutput::parse(text)?.reads()?;
    let iops = reads.iops?;
    // Requests of the ramp cost processor time and are not counted: the rate is the same.
    let all = iops * (reads.runtime? as f64 + 100.0) / 1_000.0;
    (reads.total_ios? > 0).then_some(FioFigures {
        iops,
        cpu_us: cpu_us / all,
        p50_us: reads.clat_ns.percentile("50.000000")? / 1_000.0,
        p99_us: reads.clat_ns.percentile("99.000000")? / 1_000.0,
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
    /// Requests have a class that is not the usual one, and classes have weights.
    has_classes: bool,
}

impl Deployment<'_> {
    /// One node, in one process with everything else, and no limit that is ever reached.
    const TOGETHER: Self = Self {
        name: "together",
        roles: &[""],
        nodes: &["memory"],
        scheduler: "token",
        limit: 10_000_000,
        has_classes: false,
    };

    /// The cluster under test: nodes in memory, one gateway at the address `nbd`, one volume over
    /// all nodes.
    fn cluster(&self, directory: &Path, policy: &Path, nbd: &str) -> String {
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
            "policy = \"{}\"\n{}[[gateway]]\nname = \"front\"\nnbd = \"{nbd}\"\n\
             [[volume]]\nname = \"{VOLUME}\"\nsize = \"{SIZE_MIB}MiB\"\ntenant = \"reader\"\n\
             nodes = {:?}\n",
            policy.display(),
            self.nodes.iter().enumerate().map(node).collect::<String>(),
            self.nodes,
        )
    }
}

fn policy(Deployment { limit, has_classes, .. }: &Deployment<'_>) -> String {
    let (weights, class) = match has_classes {
        true => ("class_weights = { high = 3, medium = 2, low = 1 }\n", "class = \"high\"\n"),
        false => ("", ""),
    };
    format!(
        "{weights}[[tenant]]\nname = \"reader\"\n{class}reservation = \"1k iops\"\n\
         limit = \"{limit} iops\"\nweight = 300\n\
         [[tenant]]\nname = \"other\"\nreservation = \"1k iops\"\n"
    )
}

/// The files of a cluster.
struct ClusterFiles {
    directory: PathBuf,
    cluster: PathBuf,
    socket: PathBuf,
}

impl ClusterFiles {
    /// Writes them; `nbd` is the gateway's address, or none for a socket beside them.
    fn write(
        kind: &Deployment<'_>,
        nbd: Option<&str>,
        more: &str,
        scratch: &Scratch,
    ) -> Result<Self, Failure> {
        let directory = scratch.join(kind.name);
        let (cluster, rules) = (directory.join("cluster.toml"), directory.join("policy.toml"));
        let local = format!("unix:{}", directory.join("nbd.sock").display());
        let text = kind.cluster(&directory, &rules, nbd.unwrap_or(&local)) + more;
        let written = fs::create_dir(&directory)
            .and_then(|()| fs::write(&rules, policy(kind)))
            .and_then(|()| fs::write(&cluster, text));
        written.map_err(cannot_write)?;
        Ok(Self { socket: directory.join("controller.sock"), directory, cluster })
    }

    /// `tidegate up`, for one role or for all.
    fn up(&self, role: &str) -> Result<Start, Failure> {
        let mut arguments: Vec<OsString> = vec![
            "--socket".into(),
            self.socket.clone().into(),
            "up".into(),
            self.cluster.clone().into(),
            "--no-http".into(),
            "--state".into(),
            self.directory.clone().into(),
        ];
        if !role.is_empty() {
            arguments.extend(["--role".into(), role.into()]);
        }
        let name = self.directory.file_name().unwrap_or_default().display();
        let name = format!("{name}-{role}");
        Ok(Start { name, program: programs::tidegate()?.into(), arguments, ..Start::default() })
    }
}

fn cannot_write(error: io::Error) -> Failure {
    Failure::new(Code::Failure, "cannot write the bench's files").cause(error)
}

/// Tidegate with everything in one process, or with one for each role.
fn tidegate(
    kind: Deployment<'_>,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Server, Failure> {
    let files = ClusterFiles::write(&kind, None, "", scratch)?;
    let start = |role: &&str| {
        let socket = match *role {
            "controller" => files.socket.clone(),
            "node" => files.directory.join("node.sock"),
            _ => files.directory.join("nbd.sock"),
        };
        Ok((files.up(role)?, socket))
    };
    let commands = kind.roles.iter().map(start).collect::<Result<_, Failure>>()?;
    Server::start(kind.name, commands, scratch, interrupt)
}

fn nbdkit(scratch: &Scratch, interrupt: &Interrupt) -> Result<Server, Failure> {
    let socket = scratch.join("nbdkit.sock");
    let start = memory_plugin(vec!["-U".into(), socket.clone().into()]);
    Server::start(PEER, vec![(start, socket)], scratch, interrupt)
}

/// nbdkit in the foreground, with a volume in memory.
fn memory_plugin(mut arguments: Vec<OsString>) -> Start {
    arguments.extend(["-f".into(), "memory".into(), format!("{SIZE_MIB}M").into()]);
    let (name, program) = ("nbdkit".into(), "nbdkit".into());
    Start { name, program, arguments, ..Start::default() }
}

/// How many rounds there are, and how long a run is.
fn rounds(plan: WindowPlan) -> (usize, Span) {
    if plan.is_full() { (ROUNDS, RUN) } else { (1, RUN_QUICK) }
}

/// The rates of two servers that took turns, round by round.
fn rates<'a>(ours: &'a [FioFigures], peer: &'a [FioFigures]) -> impl Iterator<Item = (f64, f64)> {
    ours.iter().zip(peer).map(|(ours, peer)| (ours.iops, peer.iops))
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
    let measured = tls::measure(plan, interrupt, report);
    or_reason("4 KiB random reads over TLS", measured, report)?;
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
    let (rounds, length) = rounds(plan);
    for depth in DEPTHS {
        let mut runs = vec![Vec::new(); servers.len()];
        for _ in 0..rounds {
            for (server, runs) in servers.iter_mut().zip(&mut runs) {
                runs.push(server.run(depth, length, &scratch, interrupt)?);
            }
        }
        let peer = runs.get(2).map(Vec::as_slice).ok_or(missing.as_deref().unwrap_or_default());
        for (server, runs) in servers.iter().zip(&runs).take(2) {
            speed(server.name, depth, runs, peer, report);
        }
    }
    drop(servers);
    schedulers(plan, &scratch, interrupt, report)?;
    classes(plan, &scratch, interrupt, report)?;
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
    let kinds = ["fifo", "unified"].map(|name| Deployment { name, scheduler: name, ..kind });
    in_turns(plan, kinds, (scratch, interrupt), |depth, [fifo, unified]| {
        let case = format!("4 KiB random reads over NBD, depth {depth}, two nodes, unified");
        let row = Row::more(BENCH, case, "iops", None);
        report(row.beside_in_turns("fifo", rates(unified, fifo)).promised_times(UNIFIED));
    })
}

/// Measures the rate of requests of class high, beside the rate without classes.
fn classes(
    plan: WindowPlan,
    scratch: &Scratch,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let apart = ["controller", "node", "gateway"];
    for (processes, names, roles) in [
        ("one process", ["untagged", "tagged"], &[""][..]),
        ("three processes", ["untagged-apart", "tagged-apart"], &apart[..]),
    ] {
        let kind = Deployment { roles, scheduler: "unified", ..Deployment::TOGETHER };
        let [off, on] = names.map(|name| Deployment { name, ..kind });
        let kinds = [off, Deployment { has_classes: true, ..on }];
        in_turns(plan, kinds, (scratch, interrupt), |depth, [off, on]| {
            let case =
                format!("4 KiB random reads over NBD, depth {depth}, {processes}, class high");
            let row = Row::more(BENCH, case, "iops", None);
            let cpu = |run: &FioFigures| run.cpu_us;
            let [on_us, off_us] = [on, off]
                .map(|runs| Median::of(runs.iter().map(cpu)).map_or(0.0, |median| median.value));
            let note = format!("{on_us:.2} us of processor time per request, without {off_us:.2}");
            let row = row.beside_in_turns("without classes", rates(on, off)).noted(note);
            report(row.promised_times(TAGGED));
        })?;
    }
    Ok(())
}

/// Runs two clusters by turns, at each depth at which promises hold.
fn in_turns(
    plan: WindowPlan,
    kinds: [Deployment<'_>; 2],
    (scratch, interrupt): (&Scratch, &Interrupt),
    mut show: impl FnMut(u32, [&[FioFigures]; 2]),
) -> Result<(), Failure> {
    let mut servers = Vec::new();
    for kind in kinds {
        servers.push(tidegate(kind, scratch, interrupt)?);
    }
    for server in &mut servers {
        server.fill(scratch, interrupt)?;
    }
    let (rounds, length) = rounds(plan);
    for depth in DEPTHS.into_iter().filter(|depth| *depth >= DEPTH_PROMISED) {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (server, runs) in servers.iter_mut().zip(&mut runs) {
                runs.push(server.run(depth, length, scratch, interrupt)?);
            }
        }
        show(depth, runs.each_ref().map(Vec::as_slice));
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
    peer: Result<&[FioFigures], &str>,
    report: &mut dyn FnMut(Row),
) {
    let (processes, times) = match name {
        "together" => ("one process", TOGETHER),
        _ if depth > DEPTH_PROMISED => ("three processes", APART),
        _ => ("three processes", APART_SHALLOW),
    };
    let is_promised = depth >= DEPTH_PROMISED;
    let case = format!("4 KiB random reads over NBD, depth {depth}, {processes}");
    let row = Row::more(BENCH, case, "iops", None);
    let row = match peer {
        Ok(peer) => row.beside_in_turns(PEER, rates(runs, peer)),
        Err(reason) => {
            let rates = Median::of(runs.iter().map(|run| run.iops));
            row.of_median(rates).beside(PEER, Err(reason.to_owned()))
        }
    };
    report(if is_promised { row.promised_times(times) } else { row });
    let case = format!("the same: processor time per request, {processes}");
    let times = Median::of(runs.iter().map(|run| run.cpu_us));
    let row = Row::less(BENCH, case, "us", None).of_median(times);
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
