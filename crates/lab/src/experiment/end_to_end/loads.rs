//! End-to-end demo, its load generators: the programs, and what each was served over time by its
//! own account: fio's log, the replies that a pool's client received, the reports of a data node's
//! clients. No number comes from a gate.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tidegate_model::Span;

use super::plan::{Act, DemoLoad, Gate, NEIGHBOUR_BYTES, READ_MIB};
use super::series::{Amount, LoadSeries, of_fio};
use super::testbed::{ActSetup, FILE_MIB, FILES, Testbed};
use crate::experiment::child::{Child, Start, cannot_start};
use crate::experiment::fio::FioOutput;
use crate::kv::ClientProcesses;
use crate::load::pace::LoadStats;
use crate::load::schedule::Arrivals;
use crate::load::target::{Address, Target};
use crate::load::{self, LoadParameters};
use tidegate_console::clock::unix_ms;
use tidegate_console::failure::{Code, Failure};

/// The interval of fio's log.
const LOG_INTERVAL_MS: u64 = 200;
/// Values that clients of the pool and of the data node read.
const KEYS: u64 = 1_000;
const MEMORY_KEYS: u64 = 100;
/// Longer than any act. The loads are ended with the act.
const LONG: Span = Span(3_600 * Span::SECOND.0);

/// A load that runs. Dropping it ends it.
pub(super) struct RunningLoad {
    load: DemoLoad,
    means: Means,
}

enum Means {
    Fio { child: Child, log: PathBuf, report: PathBuf },
    Keys(KeyClient),
    Memory { clients: ClientProcesses, amounts: Vec<Amount> },
}

/// A client of the pool, in a thread.
struct KeyClient {
    stop: Arc<AtomicBool>,
    /// When so many replies had arrived, in milliseconds since 1970.
    counts: Arc<Mutex<Vec<(u64, u64)>>>,
    thread: Option<JoinHandle<Result<LoadStats, Failure>>>,
}

impl RunningLoad {
    /// Starts a load.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start(
        load: DemoLoad,
        act: &Act,
        testbed: &Testbed,
        setup: &ActSetup,
    ) -> Result<Self, Failure> {
        let means = match load {
            DemoLoad::Database
            | DemoLoad::BackupFiles
            | DemoLoad::Neighbour
            | DemoLoad::BackupVolume => fio(load, act, testbed, setup)?,
            DemoLoad::Web | DemoLoad::BackupKeys => {
                Means::Keys(KeyClient::start(load, &testbed.keys())?)
            }
            DemoLoad::Reader | DemoLoad::BackupMemory => memory(load, act, testbed)?,
        };
        Ok(Self { load, means })
    }

    /// Takes in what it has reported.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn poll(&mut self) -> Result<(), Failure> {
        let ended = || {
            let what = format!("the load {} ended before its time", self.load.name());
            Failure::new(Code::Failure, what)
        };
        match &mut self.means {
            Means::Fio { child, .. } => match child.has_ended()? {
                true => Err(ended()),
                false => Ok(()),
            },
            Means::Keys(client) => match client.thread.as_ref().is_some_and(|t| t.is_finished()) {
                true => client.finish().and_then(|_| Err(ended())),
                false => Ok(()),
            },
            Means::Memory { clients, amounts } => {
                for row in clients.take()? {
                    let to_ms = unix_ms();
                    let from_ms = to_ms.saturating_sub(row.nanoseconds / Span::MILLISECOND.0);
                    // Clients without an engine count only their gets, which are one operation.
                    let count = row.data.max(row.operations);
                    amounts.push(Amount { from_ms, to_ms, count: count as f64 });
                }
                Ok(())
            }
        }
    }

    /// Ends it, and returns what it was served.
    ///
    /// # Errors
    /// If it has failed, or left no account.
    pub(super) fn finish(mut self) -> Result<LoadSeries, Failure> {
        let load = self.load;
        let series =
            |amounts, p99_ms, is_by_period| LoadSeries { load, amounts, p99_ms, is_by_period };
        match &mut self.means {
            Means::Fio { child, log, report } => {
                child.end();
                let text = fs::read_to_string(&*log).unwrap_or_default();
                let amounts = of_fio(&text, LOG_INTERVAL_MS);
                if amounts.is_empty() {
                    let what = match child.last_words() {
                        words if words.is_empty() => "it wrote nothing".into(),
                        words => words,
                    };
                    let what = format!("fio of {} has no log of its requests: {what}", load.name());
                    let help = "see whether other programs have the processors, and run it again";
                    return Err(Failure::new(Code::Failure, what).help(help));
                }
                Ok(series(amounts, p99_of_fio(report), false))
            }
            Means::Keys(client) => {
                let stats = client.finish()?;
                let p99 = stats.all().service.value_at_quantile(0.99) as f64 / 1e6;
                Ok(series(client.amounts(), Some(p99), false))
            }
            Means::Memory { amounts, .. } => Ok(series(std::mem::take(amounts), None, true)),
        }
    }
}

fn fio(load: DemoLoad, act: &Act, testbed: &Testbed, setup: &ActSetup) -> Result<Means, Failure> {
    let prefix = testbed.scratch.join(load.name());
    let [log, report] = ["_iops.log", ".json"].map(|end| {
        let mut path = prefix.clone().into_os_string();
        path.push(end);
        PathBuf::from(path)
    });
    // Files of the act before are none of this one.
    for path in [&log, &report] {
        let _ = fs::remove_file(path);
    }
    let words = [
        "--thread",
        "--rw=randread",
        "--norandommap=1",
        "--time_based=1",
        "--group_reporting=1",
        "--per_job_logs=0",
        "--log_unix_epoch=1",
        "--output-format=json",
        "--eta=never",
    ];
    let mut arguments: Vec<OsString> = words.map(OsString::from).into();
    let mut add = |text: String| arguments.push(text.into());
    add(format!("--name={}", load.name()));
    add(format!("--runtime={}", LONG.0 / Span::SECOND.0));
    add(format!("--log_avg_msec={LOG_INTERVAL_MS}"));
    add(format!("--write_iops_log={}", prefix.display()));
    add(format!("--output={}", report.display()));
    let is_on_files = matches!(load, DemoLoad::Database | DemoLoad::BackupFiles);
    if is_on_files {
        let file = FILES[usize::from(load == DemoLoad::BackupFiles)];
        add(format!("--filename={}", testbed.mount_point().join(file).display()));
        // A thread for each request, as most programs have.
        add(format!("--numjobs={}", load.depth()));
        for word in ["--ioengine=psync", "--direct=1", "--bs=4k"] {
            add(word.into());
        }
        add(format!("--size={FILE_MIB}M"));
    } else {
        let (volume, bytes) = match load {
            DemoLoad::Neighbour => ("neighbour", NEIGHBOUR_BYTES),
            _ => ("archive", 64 << 10),
        };
        add("--ioengine=nbd".into());
        add(format!("--uri={}", testbed.uri(volume)));
        add(format!("--iodepth={}", load.depth()));
        add(format!("--bs={bytes}"));
        add(format!("--size={READ_MIB}M"));
    }
    let (name, program) = (load.name().into(), "fio".into());
    let start = Start { name, program, arguments, ..Start::default() };
    let start = match is_on_files && act.has(Gate::Stage) {
        true => setup.controller.run(load.tenant(), start),
        false => start,
    };
    Ok(Means::Fio { child: Child::start(&start, testbed.scratch.path())?, log, report })
}

/// The time within which fio had 99 of 100 replies.
fn p99_of_fio(report: &Path) -> Option<f64> {
    let text = fs::read_to_string(report).ok()?;
    let job = FioOutput::parse(&text)?.jobs.into_iter().next()?;
    job.read.clat_ns.percentile("99.000000").map(|ns| ns / 1e6)
}

/// The load of a client of the pool.
fn keys(load: DemoLoad, socket: &Path) -> LoadParameters {
    LoadParameters {
        target: Target::Memcached { address: Address::Unix(socket.into()) },
        rate: None,
        arrivals: Arrivals::Constant,
        depth: load.depth(),
        connections: 1,
        threads: 1,
        warmup: Span::SECOND,
        duration: LONG,
        size: 100,
        reads_permille: 1_000,
        keys: KEYS,
        is_zipf: false,
        prefix: format!("{}:", load.tenant()),
        fill: false,
        seed: 1,
    }
}

/// Gives the keys of both of the pool's tenants a value, at memcached itself.
pub(super) fn fill_keys(memcached: &Path) -> Result<(), Failure> {
    for load in [DemoLoad::Web, DemoLoad::BackupKeys] {
        let (warmup, duration) = (Span::ZERO, Span::MILLISECOND);
        let plan = LoadParameters { fill: true, warmup, duration, ..keys(load, memcached) };
        load::run(&plan, Arc::default(), |_| {})?;
    }
    Ok(())
}

impl KeyClient {
    fn start(load: DemoLoad, socket: &Path) -> Result<Self, Failure> {
        let plan = keys(load, socket);
        let (stop, counts) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&counts));
        let client = thread::Builder::new().name(load.name().into()).spawn(move || {
            let (stats, _) = load::run(&plan, stopped, |progress| {
                let mut counts = counted.lock().unwrap_or_else(|broken| broken.into_inner());
                counts.push((unix_ms(), progress.answers));
            })?;
            match stats.failed {
                0 => Ok(stats),
                failed => {
                    let what = format!("the pool answered {failed} requests with an error");
                    Err(Failure::new(Code::Failure, what))
                }
            }
        });
        let thread = client.map_err(|error| {
            Failure::new(Code::Failure, "there are no threads to be had").cause(error)
        })?;
        Ok(Self { stop, counts, thread: Some(thread) })
    }

    fn finish(&mut self) -> Result<LoadStats, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let broken = || Failure::new(Code::Failure, "a client of the pool broke down");
        self.thread.take().ok_or_else(broken)?.join().map_err(|_| broken())?
    }

    fn amounts(&self) -> Vec<Amount> {
        let counts = self.counts.lock().unwrap_or_else(|broken| broken.into_inner());
        let amount = |pair: &[(u64, u64)]| {
            let [(from_ms, before), (to_ms, after)] = [pair[0], pair[1]];
            Amount { from_ms, to_ms, count: (after - before) as f64 }
        };
        counts.windows(2).map(amount).collect()
    }
}

impl Drop for KeyClient {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Another failure is on its way to the user.
            let _ = self.finish();
        }
    }
}

fn memory(load: DemoLoad, act: &Act, testbed: &Testbed) -> Result<Means, Failure> {
    let program =
        std::env::current_exe().map_err(|error| cannot_start(&"tidegate-lab".into(), error))?;
    let mut clients = ClientProcesses::start(1, |_| {
        let mut command = Command::new(&program);
        // The user set these variables for the command that they typed, not for its children.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.args(["kv", "--client=0", "--seconds=3600"]);
        command.arg(format!("--keys={MEMORY_KEYS}"));
        command.arg(format!("--depth={}", load.depth()));
        command.arg(format!("--tenant={}", load.tenant()));
        command.args((!act.has(Gate::Engine)).then_some("--bare"));
        command.arg("--at").arg(testbed.memory());
        command
    })?;
    clients.wait_until_ready(&testbed.interrupt)?;
    clients.go();
    Ok(Means::Memory { clients, amounts: Vec::new() })
}
