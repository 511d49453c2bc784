//! The database of the backups benchmark: PostgreSQL in a directory of its own, and pgbench, whose
//! clients do not wait for replies before the next transaction is due.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_model::Span;

use crate::experiment::child::{self, Start};
use tidegate_console::failure::{Code, Failure};

/// Where Debian has the programs of each version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The user of the server, which refuses to be root's: `nobody`, whom every system has.
const SERVER_USER: u32 = 65_534;
/// Clients of pgbench. Transactions that are due wait while all of them are busy.
const CLIENTS: u32 = 8;
/// The server's own cache is small, so that it reads the disk; it makes no checkpoint and no
/// cleaning of its own accord, which would disturb some runs and not others.
const SETTINGS: [&str; 9] = [
    "listen_addresses=",
    "shared_buffers=16MB",
    "max_wal_size=8GB",
    "checkpoint_timeout=1d",
    "autovacuum=off",
    "jit=off",
    "max_connections=20",
    "max_parallel_workers_per_gather=0",
    "logging_collector=off",
];

/// The transactions of pgbench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// One row is read by its key.
    Reads,
    /// One row is read and changed, three more are changed and added, and the log is flushed.
    Updates,
}

impl Workload {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Updates => "updates",
        }
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Reads => "--builtin=select-only",
            Self::Updates => "--builtin=tpcb-like",
        }
    }
}

/// PostgreSQL, and where its files and its socket are.
#[derive(Clone, Debug)]
pub(super) struct Postgres {
    programs: PathBuf,
    pub(super) data: PathBuf,
    sockets: PathBuf,
}

impl Postgres {
    /// The newest PostgreSQL of this machine, with its data at `data` and its socket in `sockets`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(data: PathBuf, sockets: PathBuf) -> Result<Self, Failure> {
        let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let found = versions.filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let programs = entry.path().join("bin");
            programs.join("initdb").is_file().then_some((version, programs))
        });
        let (_, programs) = found.max().ok_or_else(|| {
            Failure::new(Code::Failure, format!("there is no PostgreSQL in {DEBIAN}"))
                .help("scripts/setup.sh bench")
        })?;
        Ok(Self { programs, data, sockets })
    }

    fn program(&self, name: &str) -> OsString {
        self.programs.join(name).into()
    }

    /// Makes the folders, as far as another user needs them, and an empty database.
    pub(super) fn create(&self) -> Result<(), Failure> {
        let made = [&self.data, &self.sockets].into_iter().try_for_each(|folder| {
            fs::create_dir(folder)?;
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(folder, Some(SERVER_USER), Some(SERVER_USER))?;
            }
            Ok::<(), std::io::Error>(())
        });
        made.map_err(|error| {
            Failure::new(Code::Failure, "cannot make the database's folders").cause(error)
        })?;
        let mut arguments: Vec<OsString> = vec!["-D".into(), self.data.clone().into()];
        arguments.extend(
            ["--username=postgres", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
                .map(OsString::from),
        );
        let program = self.program("initdb");
        let start = as_server_user(Start { program, arguments, ..Start::default() });
        let mut command = Command::new(start.program);
        command.args(start.arguments).current_dir(&self.sockets);
        child::output(&mut command, "PostgreSQL makes no database").map(drop)
    }

    /// The server, as its own user runs it: what is before its name is to be done by that user.
    pub(super) fn server(&self) -> Start {
        let mut arguments: Vec<OsString> = vec!["-D".into(), self.data.clone().into()];
        for setting in SETTINGS {
            arguments.extend(["-c".into(), setting.into()]);
        }
        arguments.extend(["-k".into(), self.sockets.clone().into()]);
        let program = self.program("postgres");
        Start { name: "postgres".into(), program, arguments, ..Start::default() }
    }

    /// Whether the server takes transactions: it listens before that, while it starts.
    pub(super) fn is_ready(&self) -> bool {
        let mut command = Command::new(self.program("pg_isready"));
        command.args(["-q", "-U", "postgres", "-h"]).arg(&self.sockets);
        command.status().is_ok_and(|status| status.success())
    }

    fn pgbench(&self, options: &[String]) -> Start {
        let mut arguments: Vec<OsString> = vec!["-h".into(), self.sockets.clone().into()];
        arguments.extend(["-U", "postgres"].map(OsString::from));
        arguments.extend(options.iter().map(OsString::from));
        arguments.push("postgres".into());
        let program = self.program("pgbench");
        Start { name: "pgbench".into(), program, arguments, ..Start::default() }
    }

    /// Fills the tables: 100,000 rows and 16 MB for each unit of `scale`.
    pub(super) fn fill(&self, scale: u32) -> Start {
        self.pgbench(&["-i".into(), "-q".into(), "-s".into(), scale.to_string()])
    }

    /// Clients for some seconds. At a `rate` per second they do not wait for each other;
    /// otherwise each sends the next transaction when the last one is answered. The log of
    /// transactions is at `log`, with the number of the process behind it.
    pub(super) fn clients(
        &self,
        workload: Workload,
        seconds: u64,
        rate: Option<f64>,
        log: &Path,
    ) -> Start {
        let mut options = vec![
            "-n".to_owned(),
            workload.script().to_owned(),
            format!("--client={CLIENTS}"),
            "--jobs=1".to_owned(),
            format!("--time={seconds}"),
            "--log".to_owned(),
            format!("--log-prefix={}", log.display()),
        ];
        options.extend(rate.map(|rate| format!("--rate={rate:.1}")));
        self.pgbench(&options)
    }
}

/// A program as `nobody`, if we are root.
pub(super) fn as_server_user(start: Start) -> Start {
    if !rustix::process::geteuid().is_root() {
        return start;
    }
    let [user, group] = ["reuid", "regid"].map(|option| format!("--{option}={SERVER_USER}"));
    // A change of the user makes the kernel forget to end the process with this one.
    let options = [&user, &group, "--clear-groups", "--pdeathsig=TERM"].map(OsString::from);
    start.started_by("setpriv".into(), options)
}

/// Transactions of a log of pgbench that ended `skip` after the first or later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transactions {
    /// The latency that 99 of 100 kept, from when the transaction was due, in milliseconds.
    pub(super) p99_ms: f64,
    /// Transactions per second.
    pub(super) rate: f64,
}

impl Transactions {
    /// Reads a log; none if there are fewer than a hundred such transactions.
    pub(super) fn parse(text: &str, skip: Span) -> Option<Self> {
        let mut all: Vec<(u64, u64)> = text.lines().filter_map(transaction).collect();
        let first = all.iter().map(|(ended, _)| *ended).min()?;
        all.retain(|(ended, _)| ended - first >= skip.0 / Span::MICROSECOND.0);
        let last = all.iter().map(|(ended, _)| *ended).max()?;
        let seconds = (last - first) as f64 / 1e6 - skip.as_seconds();
        let mut latencies: Vec<u64> = all.into_iter().map(|(_, latency)| latency).collect();
        latencies.sort_unstable();
        let rank = (latencies.len() * 99).div_ceil(100);
        let p99 = latencies.get(rank.checked_sub(1)?).filter(|_| latencies.len() >= 100)?;
        (seconds > 0.0)
            .then(|| Self { p99_ms: *p99 as f64 / 1e3, rate: latencies.len() as f64 / seconds })
    }
}

/// When a transaction of a line ended, and its latency, both in microseconds; none of one that
/// failed or was left out.
fn transaction(line: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((number(4)? * 1_000_000 + number(5)?, number(2)?))
}

/// The log of the only process that wrote one at `prefix`; its file is removed.
pub(super) fn take_log(prefix: &Path) -> Option<String> {
    let name = format!("{}.", prefix.file_name()?.to_str()?);
    let mut entries = fs::read_dir(prefix.parent()?).ok()?.flatten();
    let entry = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(&name))?;
    let text = fs::read_to_string(entry.path()).ok()?;
    fs::remove_file(entry.path()).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_a_time_on() {
        // Ten transactions a second for twenty seconds; those of the first ten were slow.
        let line = |number: u64| {
            let (second, microsecond) = (1_000 + number / 10, number % 10 * 100_000);
            let latency = if number < 100 { 900_000 } else { 1_000 + number % 100 };
            format!("3 {number} {latency} 0 {second} {microsecond} 12\n")
        };
        let log: String = (0..200).map(line).collect();
        let skipped = log.clone() + "3 200 skipped 0 1020 0 5\n3 201 failed 0 1020 0 5\ncut";
        let found = Transactions::parse(&skipped, Span(10 * Span::SECOND.0)).unwrap();
        assert_eq!(found.p99_ms, 1.098);
        assert!((found.rate - 10.0).abs() < 0.2, "{found:?}");
        let all = Transactions::parse(&log, Span::ZERO).unwrap();
        assert_eq!(all.p99_ms, 900.0);
        assert_eq!(Transactions::parse(&log, Span(11 * Span::SECOND.0)), None, "too few");
        assert_eq!(Transactions::parse("", Span::ZERO), None);
    }

    #[test]
    fn the_log_is_that_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("log");
        assert_eq!(take_log(&prefix), None);
        fs::write(folder.path().join("log.123"), "x").unwrap();
        fs::write(folder.path().join("logs"), "y").unwrap();
        assert_eq!(take_log(&prefix).as_deref(), Some("x"));
        assert_eq!(take_log(&prefix), None, "it is gone");
    }
}
