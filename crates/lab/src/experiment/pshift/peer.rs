//! pShift's peer: a stock solver of maximum flows beside ours, and the changes that ours follows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tidegate_algo::allocation::pshift::instance::Family;
use tidegate_algo::allocation::pshift::{Configuration, Solver};

use crate::experiment::scratch::Scratch;
use tidegate_console::interrupt::Interrupt;

pub(crate) const PEER: &str = "OR-tools SimpleMaxFlow, solving alone";
const PACKAGES: [&str; 2] = ["ortools==9.15.6755", "numpy"];
/// One bucket in so many changes.
const CHANGED: u32 = 100;
/// A bucket, its reservation, and what it asks of which servers.
pub(crate) type BucketChange = (usize, u64, [(u32, u32); 8]);

/// One bucket in a hundred, spread over all of them, asks the same of other servers in each round;
/// rounds count from 2.
pub(crate) fn changes(
    family: Family,
    configuration: &Configuration,
    round: u64,
) -> Vec<BucketChange> {
    let (buckets, reservations) = (u64::from(family.buckets), configuration.reservations());
    let change = |number: u64| {
        let bucket = (number * u64::from(CHANGED) + round) % buckets;
        let reservation = reservations[bucket as usize];
        (bucket as usize, reservation, family.demands(bucket, reservation, round))
    };
    (0..buckets / u64::from(CHANGED)).map(change).collect()
}

/// Divides again after these changes.
pub(crate) fn follow(solver: &mut Solver, changes: &[BucketChange]) {
    for (bucket, reservation, demands) in changes {
        // There is room: each had as many servers.
        let _ = solver.set(*bucket, *reservation, demands);
    }
    solver.shift();
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
    pub(crate) fn start(interrupt: &Interrupt) -> Result<Self, String> {
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
        command.args(["-c", include_str!("peer.py")]);
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

/// As `peer.py` reads it.
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
