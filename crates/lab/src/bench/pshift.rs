//! How long it takes to divide tokens over servers: all anew from raw demands, and after one bucket
//! in a hundred has moved to other servers; beside a stock solver of maximum flows.
//!
//! Configurations are those of [`instance`](tidegate_algo::allocation::pshift::instance):
//! reservations are 0.9 or all of the capacities (r), demands 1.1 or 1.5 times the reservations
//! (m). Each solution is checked: its certificate must prove it, and its worth must be the peer's
//! maximum flow. A time is the median of many on one thread, the first allocation and all indices
//! included; of the peer, solving alone, without what it takes to build its graph.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tidegate_algo::allocation::pshift::instance::Family;
use tidegate_algo::allocation::pshift::{Configuration, Solver};
use tidegate_model::Time;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "pshift";
pub(crate) const PEER: &str = "OR-tools SimpleMaxFlow, solving alone";
const PACKAGES: [&str; 2] = ["ortools==9.15.6755", "numpy"];
/// Reservations and demands, in tenths.
const SHAPES: [(u32, u32); 4] = [(10, 11), (10, 15), (9, 11), (9, 15)];
/// One bucket in so many changes.
const CHANGED: u32 = 100;
/// The most time after such a change, in per cent of a solution from raw demands.
const CHANGED_PERCENT: f64 = 10.0;

/// How many servers and buckets, how often, and how long it may take for each shape, in
/// milliseconds.
struct Size {
    servers: u32,
    buckets: u32,
    rounds: usize,
    promises: [f64; 4],
}

const FULL: [Size; 3] = [
    Size { servers: 64, buckets: 10_000, rounds: 41, promises: [3.0, 1.2, 0.5, 0.5] },
    Size { servers: 256, buckets: 100_000, rounds: 15, promises: [60.0, 25.0, 10.0, 10.0] },
    Size { servers: 1_024, buckets: 1_000_000, rounds: 5, promises: [1_000.0; 4] },
];
const QUICK: [Size; 1] = [Size { servers: 16, buckets: 500, rounds: 5, promises: [3.0; 4] }];

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (sizes, mut peer) = match plan.is_full() {
        true => (&FULL[..], Peer::start(interrupt)),
        false => (&QUICK[..], Err("only measured in full".into())),
    };
    for size in sizes {
        for (shape, promise) in SHAPES.into_iter().zip(size.promises) {
            interrupt.check()?;
            let mut case = Case::new(size, shape);
            let promise = plan.is_full().then_some(promise);
            case.measure(promise, &mut peer, report);
        }
    }
    Ok(())
}

/// A bucket, its reservation, and what it asks of which servers.
pub(crate) type Change = (usize, u64, [(u32, u32); 8]);

/// One bucket in a hundred, spread over all of them, asks the same of other servers in each round;
/// rounds count from 2.
pub(crate) fn changes(family: Family, configuration: &Configuration, round: u64) -> Vec<Change> {
    let (buckets, reservations) = (u64::from(family.buckets), configuration.reservations());
    let change = |number: u64| {
        let bucket = (number * u64::from(CHANGED) + round) % buckets;
        let reservation = reservations[bucket as usize];
        (bucket as usize, reservation, family.demands(bucket, reservation, round))
    };
    (0..buckets / u64::from(CHANGED)).map(change).collect()
}

/// Divides again after these changes.
pub(crate) fn follow(solver: &mut Solver, changes: &[Change]) {
    for (bucket, reservation, demands) in changes {
        // There is room: each had as many servers.
        let _ = solver.set(*bucket, *reservation, demands);
    }
    solver.shift();
}

struct Case<'a> {
    size: &'a Size,
    family: Family,
    name: String,
    solver: Solver,
}

impl<'a> Case<'a> {
    fn new(size: &'a Size, (reserved_tenths, demand_tenths): (u32, u32)) -> Self {
        let &Size { servers, buckets, .. } = size;
        let family = Family { servers, buckets, reserved_tenths, demand_tenths };
        let [r, m] = [reserved_tenths, demand_tenths].map(|tenths| f64::from(tenths) / 10.0);
        let name = format!("{servers} x {buckets}, r {r:.1}, m {m:.1}");
        Self { size, family, name, solver: Solver::new(family.configuration()) }
    }

    fn measure(
        &mut self,
        promise: Option<f64>,
        peer: &mut Result<Peer, String>,
        report: &mut dyn FnMut(Row),
    ) {
        // Once, so that what only the first solution allocates is in no time.
        let outcome = self.solver.solve();
        let anew = Median::of((0..self.size.rounds).map(|_| {
            milliseconds(|| {
                self.solver.solve();
            })
        }));
        let certificate = self.solver.certificate();
        let proof = certificate.verify(self.solver.configuration());
        let (worth, all) = (outcome.effective_capacity, self.family.reserved());
        let row = Row::less(BENCH, &self.name, "ms", None).of_median(anew);
        let mut row = row.noted(format!("{worth} of {all} tokens are consumed"));
        if let Some(promise) = promise {
            row = row.promised(promise);
        }
        let solved = match peer {
            Ok(peer) => peer.solve(self.solver.configuration(), self.size.rounds),
            Err(reason) => Err(reason.clone()),
        };
        row = match solved {
            Ok((_, flow)) if flow != worth => wrong(row, format!("the maximum flow is {flow}")),
            Ok((time, _)) => row.beside(PEER, Ok(time)),
            Err(reason) => row.beside(PEER, Err(reason)),
        };
        report(match proof {
            Ok(()) => row,
            Err(flaw) => wrong(row, flaw.to_string()),
        });
        let Some(anew) = anew else { return };
        let shares = self.solver.configuration().shares().len();
        let case = format!("{}: for each share", self.name);
        report(Row::nanoseconds(BENCH, case, Some(anew.value * 1e6 / shares as f64)));
        report(self.changed(anew.value, promise.is_some()));
        if outcome.weak_excess > 0 {
            report(self.fair());
        }
    }

    /// One bucket in a hundred asks the same of other servers.
    fn changed(&mut self, anew: f64, is_promised: bool) -> Row {
        let mut is_proven = true;
        let times = (0..self.size.rounds as u64 + 1).map(|round| {
            let changes = changes(self.family, self.solver.configuration(), round + 2);
            let time = milliseconds(|| follow(&mut self.solver, &changes));
            if round % 8 == 0 {
                let certificate = self.solver.certificate();
                is_proven &= certificate.verify(self.solver.configuration()).is_ok();
            }
            time
        });
        // The first makes lists that later ones only keep.
        let median = Median::of(times.collect::<Vec<_>>().into_iter().skip(1));
        let percent = |time: f64| 100.0 * time / anew;
        let case = format!("{}: 1 % changed, of all anew", self.name);
        let mut row = Row::less(BENCH, case, "%", median.map(|median| percent(median.value)));
        if let Some(Median { value, low, high }) = median {
            row = row.between(percent(low), percent(high)).noted(format!("{value:.3} ms"));
        }
        match is_proven {
            true if is_promised => row.promised(CHANGED_PERCENT),
            true => row,
            false => wrong(row, "a solution was not proven".into()),
        }
    }

    fn fair(&mut self) -> Row {
        let mut met = 0;
        let rounds = self.size.rounds.div_ceil(5);
        let times = (0..rounds)
            .map(|_| milliseconds(|| met = self.solver.share_shortfall().met.iter().sum::<u64>()));
        let times = Median::of(times.collect::<Vec<_>>());
        let case = format!("{}: a fair division of what is missing", self.name);
        let row = Row::less(BENCH, case, "ms", None).of_median(times);
        row.noted(format!("{met} tokens are consumed"))
    }
}

/// A row whose time is worth nothing.
fn wrong(row: Row, reason: String) -> Row {
    Row { kept: Some(false), value: None, ..row.because(reason) }
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let clock = Clock::start();
    work();
    clock.now().since(Time::ZERO).as_seconds() * 1_000.0
}

/// OR-tools in a Python of its own. Dropping it ends it.
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    scratch: Scratch,
}

impl Peer {
    /// Starts it, in an environment that is made if there is none yet.
    fn start(interrupt: &Interrupt) -> Result<Self, String> {
        Self::of(python(interrupt)?)
    }

    /// Starts it, if there is a Python that has it already.
    pub(crate) fn found() -> Result<Self, String> {
        let missing =
            "no OR-tools in python3; `tidegate-lab bench pshift` puts it into the user's cache";
        [Ok("python3".into()), own_directory().map(|directory| directory.join("bin/python3"))]
            .into_iter()
            .flatten()
            .find(|python: &PathBuf| has_tools(python))
            .map_or(Err(missing.into()), Self::of)
    }

    fn of(python: PathBuf) -> Result<Self, String> {
        let scratch = Scratch::new().map_err(|failure| failure.to_string())?;
        let mut command = Command::new(python);
        command.args(["-c", include_str!("pshift.py")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| format!("python3: {error}"))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Self { process, input, output: BufReader::new(output), scratch })
            }
            _ => Err("python3 has no input or output".into()),
        }
    }

    /// How long it takes, in milliseconds, and the maximum flow.
    pub(crate) fn solve(
        &mut self,
        configuration: &Configuration,
        rounds: usize,
    ) -> Result<(f64, u64), String> {
        let failed = |error: io::Error| format!("OR-tools: {error}");
        let path = self.scratch.join("configuration");
        write(configuration, &path).map_err(failed)?;
        writeln!(self.input, "{} {rounds}", path.display()).map_err(failed)?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(failed)?;
        let answer = line.split_once(' ').and_then(|(time, flow)| {
            Some((time.parse::<f64>().ok()?, flow.trim().parse::<u64>().ok()?))
        });
        answer.ok_or_else(|| "OR-tools gave no answer".to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As `pshift.py` reads it.
fn write(configuration: &Configuration, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut put = |number: u64| file.write_all(&number.to_le_bytes());
    let buckets = configuration.reservations().len();
    put(configuration.capacities().len() as u64)?;
    put(buckets as u64)?;
    put(configuration.shares().len() as u64)?;
    configuration.capacities().iter().try_for_each(|capacity| put(*capacity))?;
    configuration.reservations().iter().try_for_each(|reservation| put(*reservation))?;
    for bucket in 0..buckets {
        (0..configuration.row(bucket).len()).try_for_each(|_| put(bucket as u64))?;
    }
    configuration.shares().iter().try_for_each(|share| put(share.server.into()))?;
    configuration.shares().iter().try_for_each(|share| put(share.demand.into()))?;
    file.flush()
}

/// A Python that has OR-tools: the system's, or one below the user's cache, which is made once.
fn python(interrupt: &Interrupt) -> Result<PathBuf, String> {
    let system = PathBuf::from("python3");
    if has_tools(&system) {
        return Ok(system);
    }
    let directory = own_directory()?;
    let python = directory.join("bin/python3");
    if has_tools(&python) {
        return Ok(python);
    }
    let made = succeeds(Command::new(&system).args(["-m", "venv"]).arg(&directory));
    interrupt.check().map_err(|failure| failure.to_string())?;
    let pip = ["-m", "pip", "install", "--quiet"];
    if made && succeeds(Command::new(&python).args(pip).args(PACKAGES)) && has_tools(&python) {
        return Ok(python);
    }
    Err(format!("no OR-tools: python3 cannot `pip install {}`", PACKAGES.join(" ")))
}

/// Where a Python of our own is or is to be.
fn own_directory() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).ok_or("no OR-tools, and no place to put it")?;
    Ok(cache.join("tidegate/bench-python"))
}

fn has_tools(python: &Path) -> bool {
    let mut command = Command::new(python);
    succeeds(command.args(["-c", "import numpy; from ortools.graph.python import max_flow"]))
}

fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_can_be_measured() {
        let mut rows = Vec::new();
        let interrupt = Interrupt::default();
        super::rows(WindowPlan::TINY, &interrupt, &mut |row| rows.push(row)).unwrap();
        assert!(rows.len() >= 3 * SHAPES.len(), "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() && row.kept.is_none()), "{rows:#?}");
        assert!(rows[0].case.ends_with("500, r 1.0, m 1.1"), "{rows:#?}");
        assert_eq!(rows[0].peer.as_deref(), Some(PEER));
        assert_eq!(rows[0].reason.as_deref(), Some("only measured in full"));
    }

    #[test]
    fn a_configuration_is_written_as_the_peer_reads_it() {
        let mut configuration = Configuration::new(&[7, 8]);
        configuration.push(3, &[(1, 5)]).unwrap();
        configuration.push(4, &[(0, 6), (1, 9)]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("configuration");
        write(&configuration, &path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let numbers: Vec<u64> =
            bytes.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(numbers, [2, 2, 3, 7, 8, 3, 4, 0, 1, 1, 1, 0, 1, 5, 6, 9]);
    }
}
