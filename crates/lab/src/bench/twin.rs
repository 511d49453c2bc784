//! The twin: a recorded load is replayed under another policy, and compared with what a live
//! cluster then does under it.
//!
//! For each [`Case`] a cluster runs the clients under the first policy and is recorded. The times
//! of its devices and of the way to them are found from that recording
//! ([`tidegate_sim::twin::fit`]), which is then replayed under the second policy. That policy is
//! applied to the cluster, with the same clients, and is recorded, too. The rows are the error of
//! the replay: of each tenant's rate, and of the 99th percentile of its latency.
//!
//! Five of the clusters have nodes in memory with the service times of a modelled device, one has
//! nodes with files, and one has the nodes, tenants and promises of `demo end-to-end`.
//!
//! A cluster does not repeat itself to the last request, least of all where other programs use its
//! disk. So the first policy is recorded twice. Where these two recordings differ by more than the
//! replay may be off, there is no verdict.

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
/// The size of a volume.
const SIZE_MIB: u64 = 64;
/// How long a recording is, and how long clients run before it and after it.
const RECORDED: Span = Span(4 * Span::SECOND.0);
const RECORDED_QUICK: Span = Span(Span::SECOND.0);
/// Periods until a policy holds.
const BEFORE: Span = Span(2 * Span::SECOND.0);
/// How far the replay may be off, in percent: the rate, and the 99th percentile.
const RATE_PERCENT: f64 = 5.0;
const P99_PERCENT: f64 = 20.0;
/// Why there is no verdict.
const UNSTEADY: &str = "the cluster does not repeat itself that exactly";

/// A cluster, its clients, and a change of its policy.
struct Case {
    name: &'static str,
    nodes: &'static [&'static str],
    /// The keys of each node that say what it is; `STORE` is a directory of its own.
    keys: &'static str,
    /// The head of both policies.
    head: &'static str,
    tenants: &'static [CaseTenant],
}

/// A tenant of a case, with a volume and a client.
struct CaseTenant {
    name: &'static str,
    /// fio's options.
    client: &'static str,
    /// Its promises before the change, and after it.
    promises: [&'static str; 2],
}

const MODEL: &str = "memory = true\ncapacity = \"2k iops\"\ndepth = 4\n\
                     model = { rate = \"2k iops\", variance = \"20%\" }\n";
const VARYING: &str = "memory = true\ncapacity = \"1k iops\"\ndepth = 8\n\
                       model = { rate = \"1k iops\", variance = \"80%\" }\n";
const FILES: &str = "directory = \"STORE\"\ndepth = 8\n";
/// The nodes of `demo end-to-end`, whose pool and data node are not in recordings.
const FLAGSHIP: &str = "directory = \"STORE\"\ncapacity = [\"500 iops\", \"1GiB/s\"]\ndepth = 4\n\
                        model = { rate = \"500 iops\" }\n";

const TWO: &[&str] = &["a", "b"];

const fn oltp(client: &'static str, before: &'static str, after: &'static str) -> CaseTenant {
    CaseTenant { name: "oltp", client, promises: [before, after] }
}

const fn backup(client: &'static str, before: &'static str, after: &'static str) -> CaseTenant {
    CaseTenant { name: "backup", client, promises: [before, after] }
}

const CASES: [Case; 7] = [
    Case {
        name: "a limit on a greedy reader",
        nodes: TWO,
        keys: MODEL,
        head: "",
        tenants: &[
            oltp("--rw=randread --bs=4k --iodepth=8", "", ""),
            backup("--rw=randread --bs=4k --iodepth=16", "", "limit = \"600 iops\""),
        ],
    },
    Case {
        name: "a reservation beside a deep queue",
        nodes: TWO,
        keys: MODEL,
        head: "",
        tenants: &[
            oltp("--rw=randread --bs=4k --iodepth=16", "", "reservation = \"2800 iops\""),
            backup("--rw=randwrite --bs=4k --iodepth=64", "", ""),
        ],
    },
    Case {
        name: "weights, with requests of mixed sizes",
        nodes: TWO,
        keys: MODEL,
        head: "",
        tenants: &[
            oltp("--rw=randread --bssplit=4k/50:64k/50 --iodepth=16", "", "weight = 300"),
            backup("--rw=randrw --bssplit=4k/60:512k/40 --iodepth=16", "", ""),
        ],
    },
    Case {
        name: "a limit that is raised",
        nodes: TWO,
        keys: VARYING,
        head: "",
        tenants: &[
            oltp("--rw=randread --bs=16k --iodepth=4 --rate_iops=400", "", ""),
            backup(
                "--rw=write --bs=16k --iodepth=16",
                "limit = \"300 iops\"",
                "limit = \"900 iops\"",
            ),
        ],
    },
    Case {
        name: "a promise that moves, on a device that varies",
        nodes: TWO,
        keys: VARYING,
        head: "",
        tenants: &[
            oltp("--rw=randread --bs=4k --iodepth=32", "reservation = \"1400 iops\"", ""),
            backup("--rw=randread --bs=4k --iodepth=32", "", "reservation = \"1200 iops\""),
        ],
    },
    Case {
        name: "a limit, on files",
        nodes: TWO,
        keys: FILES,
        head: "",
        tenants: &[
            oltp("--rw=randread --bs=4k --iodepth=4 --rate_iops=1000", "", ""),
            backup("--rw=randwrite --bs=64k --iodepth=16", "", "limit = \"500 iops\""),
        ],
    },
    Case {
        name: "the volumes of demo end-to-end",
        nodes: &["a", "b", "c"],
        keys: FLAGSHIP,
        head: "[[resource]]\nname = \"cluster\"\n",
        tenants: &[
            CaseTenant {
                name: "db",
                client: "--rw=randread --bs=4k --iodepth=8",
                promises: [
                    "class = \"urgent\"\n[tenant.on.cluster]\nreservation = \"360 iops\"",
                    "class = \"urgent\"\n[tenant.on.cluster]\nreservation = \"480 iops\"",
                ],
            },
            CaseTenant {
                name: "neighbour",
                client: "--rw=randread --bs=16k --iodepth=16",
                promises: [
                    "class = \"medium\"\n[tenant.on.cluster]\n\
                     reservation = [\"600 iops\", \"9MiB/s\"]",
                    "class = \"medium\"\n[tenant.on.cluster]\n\
                     reservation = [\"500 iops\", \"7MiB/s\"]",
                ],
            },
            backup("--rw=randread --bs=4k --iodepth=128", "class = \"low\"", "class = \"low\""),
        ],
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
            Ok(measured) => compare(case, &measured, report),
            Err(failure) => {
                interrupt.check()?;
                let row = Row::less(BENCH, case.name, "%", None);
                report(row.because(failure.to_string()));
            }
        }
    }
    Ok(())
}

/// The measurements of a case.
struct MeasuredCase {
    /// The two recordings under the first policy.
    repeated: [TwinReport; 2],
    /// The recording under the second, and the replay under it.
    seen: TwinReport,
    replayed: TwinReport,
    /// How far the replay is off under the first policy.
    distance: f64,
}

/// The rows of a case.
fn compare(case: &Case, measured: &MeasuredCase, report: &mut dyn FnMut(Row)) {
    let MeasuredCase { repeated: [first, again], seen, replayed, distance } = measured;
    for CaseTenant { name, .. } in case.tenants {
        let own = |report: &TwinReport| {
            let tenant = report.tenants.iter().find(|tenant| tenant.name == *name);
            tenant.map_or(Figures::default(), |tenant| tenant.figures)
        };
        let mut row = |what: &str, bound: f64, of: fn(&Figures) -> u64| {
            let [first, again, seen, replayed] = [first, again, seen, replayed].map(own);
            let error = |from: &Figures, to: &Figures| {
                100.0 * (of(to) as f64 - of(from) as f64).abs() / (of(from) as f64).max(1.0)
            };
            let (own, off) = (error(&first, &again), error(&seen, &replayed));
            let row = Row::less(BENCH, format!("{}, {name}: {what}", case.name), "%", Some(off));
            let row = row.promised(bound).noted(format!(
                "{}, {} in the replay; the cluster's own two recordings differ by {own:.0} %, and \
                 under the first policy the replay was {:.0} % off",
                of(&seen),
                of(&replayed),
                100.0 * distance
            ));
            report(match own > bound {
                true => row.undecided(UNSTEADY),
                false => row,
            });
        };
        row("requests", RATE_PERCENT, |figures| figures.requests);
        row("p99 in us", P99_PERCENT, |figures| figures.p99.0 / 1_000);
    }
}

/// Records a case, and replays it.
fn measure(case: &Case, length: Span, interrupt: &Interrupt) -> Result<MeasuredCase, Failure> {
    let work = std::env::current_dir()
        .and_then(|directory| Scratch::within(&directory, ".tidegate-bench-twin-"))
        .map_err(|error| Failure::new(Code::Failure, "there are no files here").cause(error))?;
    let scratch = Scratch::new()?;
    let testbed = LiveCluster::start(case, &work, &scratch, interrupt)?;
    let again = testbed.record("again", length, interrupt)?;
    let before = testbed.record("before", length, interrupt)?;
    testbed.controller.apply(&policy(case, 1), &scratch.join("after.toml"))?;
    let after = testbed.record("after", length, interrupt)?;
    drop(testbed);
    let parsed = |text: &str| Policy::parse(text).expect("the bench's policies are valid");
    let cluster = Cluster::parse(&cluster(case, &work, &scratch)).expect("a valid cluster");
    let (first, second) = (parsed(&policy(case, 0)), parsed(&policy(case, 1)));
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
    Ok(MeasuredCase {
        repeated: [before.report(), again.report()],
        seen: after.report(),
        replayed: replayed.ok_or_else(nothing)?,
        distance: found.distance,
    })
}

fn nothing() -> Failure {
    Failure::new(Code::Failure, "the replay has no result")
}

/// The policy before the change, or after it.
fn policy(case: &Case, phase: usize) -> String {
    let tenant =
        |it: &CaseTenant| format!("[[tenant]]\nname = \"{}\"\n{}\n", it.name, it.promises[phase]);
    let tenants: String = case.tenants.iter().map(tenant).collect();
    format!("period = \"200ms\"\nredistribute = \"50ms\"\n{}{tenants}", case.head)
}

fn cluster(case: &Case, work: &Scratch, scratch: &Scratch) -> String {
    let node = |name: &str| {
        let store = work.join(name).display().to_string();
        let keys = case.keys.replace("STORE", &store);
        let socket = scratch.join(&format!("{name}.node")).display().to_string();
        format!("[[node]]\nname = \"{name}\"\naddress = \"unix:{socket}\"\n{keys}")
    };
    let volume = |CaseTenant { name, .. }: &CaseTenant| {
        format!(
            "[[volume]]\nname = \"{name}\"\nsize = \"{SIZE_MIB}MiB\"\ntenant = \"{name}\"\n\
             nodes = {:?}\n",
            case.nodes
        )
    };
    format!(
        "{}[[gateway]]\nname = \"front\"\nnbd = \"unix:{}\"\n{}",
        case.nodes.iter().map(|name| node(name)).collect::<String>(),
        scratch.join("nbd").display(),
        case.tenants.iter().map(volume).collect::<String>(),
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
        case.nodes
            .iter()
            .try_for_each(|name| fs::create_dir(work.join(name)))
            .and_then(|()| fs::write(&file, cluster(case, work, scratch)))
            .map_err(|error| Failure::new(Code::Failure, "cannot write files").cause(error))?;
        let first = policy(case, 0);
        let controller = Controller::all("cluster", &file, &first, scratch, interrupt)?;
        controller.wait_for_cluster(interrupt)?;
        let live = Self { case, scratch, controller };
        // A volume that was never written to is read without its device.
        live.clients(&|_| "--rw=write --bs=128k --iodepth=4", None)?
            .into_iter()
            .try_for_each(|mut client| client.wait(interrupt))?;
        Ok(live)
    }

    /// Starts the clients, for a time or until they have gone through their volumes.
    fn clients(
        &self,
        options: &dyn Fn(&CaseTenant) -> &'static str,
        length: Option<Span>,
    ) -> Result<Vec<Child>, Failure> {
        let client = |case_tenant: &CaseTenant| {
            let tenant = case_tenant.name;
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
            words.extend(options(case_tenant).split_whitespace().map(str::to_owned));
            let arguments = words.into_iter().map(OsString::from).collect();
            let (name, program) = (format!("fio-{tenant}"), "fio".into());
            let start = Start { name, program, arguments, ..Start::default() };
            Child::start(&start, self.scratch.path())
        };
        self.case.tenants.iter().map(client).collect()
    }

    /// Records the clients of the case.
    fn record(
        &self,
        name: &str,
        length: Span,
        interrupt: &Interrupt,
    ) -> Result<RecordedLoad, Failure> {
        let runs = Span(BEFORE.0 + length.0 + Span::SECOND.0);
        let clients = self.clients(&|tenant| tenant.client, Some(runs))?;
        let clock = Clock::start();
        interrupt.sleep_until(clock, clock.now().after(BEFORE))?;
        let file = self.scratch.join(name);
        let mut command = self.controller.command();
        command.arg("record").arg("--output").arg(&file);
        command.arg("--duration").arg(format!("{}ms", length.0 / Span::MILLISECOND.0));
        child::output(&mut command, "the cluster cannot be recorded")?;
        clients.into_iter().try_for_each(|mut client| client.wait(interrupt))?;
        read(&file)
    }
}

fn read(path: &Path) -> Result<RecordedLoad, Failure> {
    let failed = |error: String| Failure::new(Code::Failure, error);
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    RecordedLoad::read(BufReader::new(file)).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_valid() {
        let scratch = Scratch::new().unwrap();
        for case in &CASES {
            for phase in [0, 1] {
                let text = policy(case, phase);
                let policy = Policy::parse(&text);
                assert!(policy.is_ok(), "{}: {policy:?}\n{text}", case.name);
            }
            let text = cluster(case, &scratch, &scratch);
            let cluster = Cluster::parse(&text);
            assert!(cluster.is_ok(), "{}: {cluster:?}\n{text}", case.name);
        }
    }
}
