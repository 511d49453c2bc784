//! The twin: a recorded load is replayed under another policy, and compared with what a live
//! cluster then does under it.
//!
//! For each [`Case`] a cluster runs the clients under the first policy and is recorded. The times
//! of its devices and of the way to them are found from that recording
//! ([`tidegate_sim::twin::fit`]), which is then replayed under the second policy. That policy is
//! applied to the cluster, with the same clients, and is recorded, too. The rows are the error of
//! the replay: of each tenant's rate, and of the 99th percentile of its latency.
//!
//! Five of the clusters have nodes in memory with the service times of a modelled device, and one
//! has a node with files.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_model::{Cluster, Policy, Span};
use tidegate_sim::twin::{self, Figures, Plan, RecordedLoad, Service, TwinReport};

use super::Row;
use super::window::WindowPlan;
use crate::experiment::child::{self, Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;

const BENCH: &str = "twin";
/// The tenants, each with a volume and a client.
const TENANTS: [&str; 2] = ["oltp", "backup"];
/// The size of a volume.
const SIZE_MIB: u64 = 64;
/// How long a recording is, and how long clients run before it and after it.
const RECORDED: Span = Span(4 * Span::SECOND.0);
const RECORDED_QUICK: Span = Span(Span::SECOND.0);
/// Periods until a policy holds.
const BEFORE: Span = Span(2 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);
/// How far the replay may be off, in percent: the rate, and the 99th percentile.
const RATE_PERCENT: f64 = 5.0;
const P99_PERCENT: f64 = 20.0;

/// A cluster, its clients, and a change of its policy.
struct Case {
    name: &'static str,
    /// The keys of each of the two nodes that say what it is; `STORE` is a directory of its own.
    nodes: &'static str,
    /// fio's options for the clients of [`TENANTS`].
    clients: [&'static str; 2],
    /// The promises of the tenants, before the change and after it.
    before: [&'static str; 2],
    after: [&'static str; 2],
}

const MODEL: &str = "memory = true\ncapacity = \"2k iops\"\ndepth = 4\n\
                     model = { rate = \"2k iops\", variance = \"20%\" }\n";
const VARYING: &str = "memory = true\ncapacity = \"1k iops\"\ndepth = 8\n\
                       model = { rate = \"1k iops\", variance = \"80%\" }\n";
const FILES: &str = "directory = \"STORE\"\ndepth = 8\n";

const CASES: [Case; 6] = [
    Case {
        name: "a limit on a greedy reader",
        nodes: MODEL,
        clients: ["--rw=randread --bs=4k --iodepth=8", "--rw=randread --bs=4k --iodepth=16"],
        before: ["", ""],
        after: ["", "limit = \"600 iops\""],
    },
    Case {
        name: "a reservation beside a deep queue",
        nodes: MODEL,
        clients: ["--rw=randread --bs=4k --iodepth=16", "--rw=randwrite --bs=4k --iodepth=64"],
        before: ["", ""],
        after: ["reservation = \"2800 iops\"", ""],
    },
    Case {
        name: "weights, with requests of mixed sizes",
        nodes: MODEL,
        clients: [
            "--rw=randread --bssplit=4k/50:64k/50 --iodepth=16",
            "--rw=randrw --bssplit=4k/60:512k/40 --iodepth=16",
        ],
        before: ["", ""],
        after: ["weight = 300", ""],
    },
    Case {
        name: "a limit that is raised",
        nodes: VARYING,
        clients: [
            "--rw=randread --bs=16k --iodepth=4 --rate_iops=400",
            "--rw=write --bs=16k --iodepth=16",
        ],
        before: ["", "limit = \"300 iops\""],
        after: ["", "limit = \"900 iops\""],
    },
    Case {
        name: "a promise that moves, on a device that varies",
        nodes: VARYING,
        clients: ["--rw=randread --bs=4k --iodepth=32", "--rw=randread --bs=4k --iodepth=32"],
        before: ["reservation = \"1400 iops\"", ""],
        after: ["", "reservation = \"1200 iops\""],
    },
    Case {
        name: "a limit, on files",
        nodes: FILES,
        clients: [
            "--rw=randread --bs=4k --iodepth=4 --rate_iops=1000",
            "--rw=randwrite --bs=64k --iodepth=16",
        ],
        before: ["", ""],
        after: ["", "limit = \"500 iops\""],
    },
];

/// Measures, and reports the rows.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (cases, length) =
        if plan.is_full() { (&CASES[..], RECORDED) } else { (&CASES[..1], RECORDED_QUICK) };
    for case in cases {
        match measure(case, length, interrupt) {
            Ok((seen, replayed, distance)) => compare(case, &seen, &replayed, distance, report),
            Err(failure) => {
                interrupt.check()?;
                let row = Row::less(BENCH, case.name, "%", None);
                report(row.because(failure.to_string()));
            }
        }
    }
    Ok(())
}

/// The rows of a case.
fn compare(
    case: &Case,
    seen: &TwinReport,
    replayed: &TwinReport,
    distance: f64,
    report: &mut dyn FnMut(Row),
) {
    for name in TENANTS {
        let own = |report: &TwinReport| {
            let tenant = report.tenants.iter().find(|tenant| tenant.name == name);
            tenant.map_or(Figures::default(), |tenant| tenant.figures)
        };
        let (seen, replayed) = (own(seen), own(replayed));
        let error = |seen: u64, replayed: u64| {
            100.0 * (replayed as f64 - seen as f64).abs() / (seen as f64).max(1.0)
        };
        let rate = error(seen.requests, replayed.requests);
        let row = Row::less(BENCH, format!("{}, {name}: rate", case.name), "%", Some(rate));
        report(row.promised(RATE_PERCENT).noted(format!(
            "{} requests, {} in the replay; under the first policy it was {:.0} % off",
            seen.requests,
            replayed.requests,
            100.0 * distance
        )));
        let p99 = error(seen.p99.0, replayed.p99.0);
        let row = Row::less(BENCH, format!("{}, {name}: p99", case.name), "%", Some(p99));
        let times =
            format!("{} us, {} us in the replay", seen.p99.0 / 1_000, replayed.p99.0 / 1_000);
        report(row.promised(P99_PERCENT).noted(times));
    }
}

/// The recording under the second policy, the replay under it, and how far the replay is off under
/// the first.
fn measure(
    case: &Case,
    length: Span,
    interrupt: &Interrupt,
) -> Result<(TwinReport, TwinReport, f64), Failure> {
    let work = std::env::current_dir()
        .and_then(|directory| Scratch::within(&directory, ".tidegate-bench-twin-"))
        .map_err(|error| Failure::new(Code::Failure, "there are no files here").cause(error))?;
    let scratch = Scratch::new()?;
    let testbed = LiveCluster::start(case, &work, &scratch, interrupt)?;
    let before = testbed.record("before", length, interrupt)?;
    testbed.controller.apply(&policy(&case.after), &scratch.join("after.toml"))?;
    let after = testbed.record("after", length, interrupt)?;
    drop(testbed);
    let parsed = |text: &str| Policy::parse(text).expect("the bench's policies are valid");
    let cluster = Cluster::parse(&cluster(case, &work, &scratch)).expect("a valid cluster");
    let (first, second) = (parsed(&policy(&case.before)), parsed(&policy(&case.after)));
    let plan = Plan {
        cluster: &cluster,
        policy: &first,
        load: &before,
        service: Service::Declared,
        transit: Span::ZERO,
        seed: 1,
    };
    let goes_on = |_: twin::Progress| interrupt.check().is_ok();
    let wrong = |error: twin::PlanError| Failure::new(Code::Failure, error.to_string());
    let found = twin::fit(&plan, goes_on).map_err(wrong)?;
    interrupt.check()?;
    let Some(found) = found else { return Err(nothing()) };
    let plan = Plan { policy: &second, service: found.service, transit: found.transit, ..plan };
    let replayed = twin::run(&plan, goes_on).map_err(wrong)?;
    interrupt.check()?;
    Ok((after.report(), replayed.ok_or_else(nothing)?, found.distance))
}

fn nothing() -> Failure {
    Failure::new(Code::Failure, "the replay has no result")
}

fn policy(promises: &[&str; 2]) -> String {
    let tenant = |(name, promise)| format!("[[tenant]]\nname = \"{name}\"\n{promise}\n");
    let tenants: String = TENANTS.iter().zip(promises).map(tenant).collect();
    format!("period = \"200ms\"\nredistribute = \"50ms\"\n{tenants}")
}

fn cluster(case: &Case, work: &Scratch, scratch: &Scratch) -> String {
    let node = |name: &str| {
        let store = work.join(name).display().to_string();
        let keys = case.nodes.replace("STORE", &store);
        let socket = scratch.join(&format!("{name}.node")).display().to_string();
        format!("[[node]]\nname = \"{name}\"\naddress = \"unix:{socket}\"\n{keys}")
    };
    let volume = |name: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nsize = \"{SIZE_MIB}MiB\"\ntenant = \"{name}\"\n\
             nodes = [\"a\", \"b\"]\n"
        )
    };
    format!(
        "{}{}[[gateway]]\nname = \"front\"\nnbd = \"unix:{}\"\n{}",
        node("a"),
        node("b"),
        scratch.join("nbd").display(),
        TENANTS.map(volume).concat(),
    )
}

/// A cluster of a case in one process, and its clients.
struct LiveCluster<'a> {
    case: &'a Case,
    scratch: &'a Scratch,
    controller: Controller,
}

impl<'a> LiveCluster<'a> {
    fn start(
        case: &'a Case,
        work: &Scratch,
        scratch: &'a Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let file = scratch.join("cluster.toml");
        ["a", "b"]
            .iter()
            .try_for_each(|name| fs::create_dir(work.join(name)))
            .and_then(|()| fs::write(&file, cluster(case, work, scratch)))
            .map_err(|error| Failure::new(Code::Failure, "cannot write files").cause(error))?;
        let first = policy(&case.before);
        let controller = Controller::all("cluster", &file, &first, scratch, interrupt)?;
        controller.wait_for_cluster(interrupt)?;
        let live = Self { case, scratch, controller };
        // A volume that was never written to is read without its device.
        live.clients(&|_| "--rw=write --bs=128k --iodepth=4".to_owned(), None)?
            .into_iter()
            .try_for_each(|client| wait(client, interrupt))?;
        Ok(live)
    }

    /// Starts the clients, for a time or until they have gone through their volumes.
    fn clients(
        &self,
        options: &dyn Fn(usize) -> String,
        length: Option<Span>,
    ) -> Result<Vec<Child>, Failure> {
        let client = |(index, tenant): (usize, &&str)| {
            let socket = self.scratch.join("nbd").display().to_string();
            let mut words = vec![
                format!("--name={tenant}"),
                "--ioengine=nbd".into(),
                format!("--uri=nbd+unix:///{tenant}?socket={socket}"),
                format!("--size={SIZE_MIB}M"),
                "--norandommap=1".into(),
                "--thread".into(),
                "--eta=never".into(),
                format!("--output={}", self.scratch.join("fio.out").display()),
            ];
            if let Some(length) = length {
                words.push("--time_based=1".into());
                words.push(format!("--runtime={}ms", length.0 / Span::MILLISECOND.0));
            }
            words.extend(options(index).split_whitespace().map(str::to_owned));
            let arguments = words.into_iter().map(OsString::from).collect();
            let (name, program) = (format!("fio-{tenant}"), "fio".into());
            let start = Start { name, program, arguments, ..Start::default() };
            Child::start(&start, self.scratch.path())
        };
        TENANTS.iter().enumerate().map(client).collect()
    }

    /// Records the clients of the case.
    fn record(
        &self,
        name: &str,
        length: Span,
        interrupt: &Interrupt,
    ) -> Result<RecordedLoad, Failure> {
        let runs = Span(BEFORE.0 + length.0 + Span::SECOND.0);
        let clients = self.clients(&|index| self.case.clients[index].to_owned(), Some(runs))?;
        let clock = Clock::start();
        interrupt.sleep_until(clock, clock.now().after(BEFORE))?;
        let file = self.scratch.join(name);
        let mut command = self.controller.command();
        command.arg("record").arg("--output").arg(&file);
        command.arg("--duration").arg(format!("{}ms", length.0 / Span::MILLISECOND.0));
        child::output(&mut command, "the cluster cannot be recorded")?;
        clients.into_iter().try_for_each(|client| wait(client, interrupt))?;
        read(&file)
    }
}

fn wait(mut client: Child, interrupt: &Interrupt) -> Result<(), Failure> {
    let clock = Clock::start();
    while !client.has_ended()? {
        interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<RecordedLoad, Failure> {
    let failed = |error: String| Failure::new(Code::Failure, error);
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    RecordedLoad::read(BufReader::new(file)).map_err(|error| failed(error.to_string()))
}
