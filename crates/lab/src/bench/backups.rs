//! Backups: what a stock backup does to a database on the same disk.
//!
//! pgbench's clients send transactions to PostgreSQL at a fifth of the rate that it can do, whether
//! the last ones are answered or not. Beside it `tar` copies a snapshot of the database, again and
//! again. *Systems* hold the backup back, or nothing does; they take turns, round by round, and in
//! each round the database runs alone first. Two promises are checked for Tidegate, with the policy
//! that the book shows, and with a measured capacity in the place of the stated one:
//!
//! - The database's 99th percentile, from when a transaction was due, is at most 1.5 times that
//!   alone in the same round.
//! - The backup has at least 80 % of what is allowed: of its rate alone without control, less the
//!   bytes that the database moves in the same run.
//!
//! A fixed limit can keep both only while the database's own traffic does not change.
//!
//! Both programs have less page cache than their files, so that they read the disk, which is a file
//! system on a loop device. On the *disk* nothing else limits them. On the *volume*, the kernel
//! gives both together what a volume of a cloud has; it stands for a slower device.

use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_model::{Rate, Span};

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::quiet::{PriorityBoost, QuietProbe};
use database::Workload;
use systems::BackupSystem;
use testbed::{BackupDevice, BackupRun, BackupTestbed};

mod database;
mod systems;
mod testbed;

const BENCH: &str = "backups";
/// How many times as long as alone the database's transactions may take, at the percentile 99.
const TIMES_P99: f64 = 1.5;
/// The least part of what is allowed that the backup has, in per cent.
const ALLOWED_PERCENT: f64 = 80.0;
/// The part of its most transactions that the database is sent: it must have time left, for the
/// backup is to use what the database does not.
const REQUESTED: f64 = 0.2;

/// So many of [`BackupSystem::ALL`] are ours; the others are peers.
const OURS: usize = 2;

/// An operator measures the disk before anything is limited: the best of so many runs counts.
const TRIES: usize = 3;

/// The size and the lengths of a run.
#[derive(Clone, Copy, Debug)]
struct BackupPlan {
    /// Of pgbench's tables, in units of 16 MB.
    scale: u32,
    /// How long programs run before requests count, and how long they count then.
    warm: Span,
    run: Span,
    rounds: usize,
    courses: &'static [(BackupDevice, Workload)],
}

impl BackupPlan {
    const FULL: Self = Self {
        scale: 64,
        warm: Span(4 * Span::SECOND.0),
        run: Span(10 * Span::SECOND.0),
        rounds: 3,
        courses: &[
            (BackupDevice::Disk, Workload::Reads),
            (BackupDevice::Disk, Workload::Updates),
            (BackupDevice::Volume, Workload::Reads),
            (BackupDevice::Volume, Workload::Updates),
        ],
    };
    /// Enough to see that everything works.
    const QUICK: Self = Self {
        scale: 8,
        warm: Span::SECOND,
        run: Span::SECOND,
        rounds: 1,
        courses: &[(BackupDevice::Disk, Workload::Reads)],
    };
}

/// The runs of a system, in the order of rounds; or why there are none.
struct SystemRuns {
    system: BackupSystem,
    runs: Result<Vec<BackupRun>, String>,
}

/// All runs on one device with one kind of transactions.
struct BackupCourse {
    name: String,
    /// The database alone, and the rate of the backup alone, round by round.
    alone: Vec<BackupRun>,
    backup_alone: Vec<Rate>,
    systems: Vec<SystemRuns>,
    /// The capacity that Tidegate measured, in words.
    measured: Option<String>,
    /// Why the runs say nothing, if they say nothing.
    disturbance: Option<String>,
}

/// Measures all courses, and reports their rows.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let plan = if plan.is_full() { BackupPlan::FULL } else { BackupPlan::QUICK };
    let _priority_boost = PriorityBoost::raise();
    let mut testbed = match BackupTestbed::new(plan, interrupt) {
        Ok(testbed) => testbed,
        Err(failure) => {
            interrupt.check()?;
            let row = Row::less(BENCH, "the database's p99", "ratio", None);
            report(row.because(failure.to_string()));
            return Ok(());
        }
    };
    for (device, workload) in plan.courses {
        match measure(&mut testbed, (*device, *workload), plan, interrupt) {
            Ok(course) => course.report(report),
            Err(failure) => {
                interrupt.check()?;
                let case = format!("{}, {}: p99", device.name(), workload.name());
                report(Row::less(BENCH, case, "ratio", None).because(failure.to_string()));
            }
        }
    }
    Ok(())
}

fn measure(
    testbed: &mut BackupTestbed<'_>,
    (device, workload): (BackupDevice, Workload),
    plan: BackupPlan,
    interrupt: &Interrupt,
) -> Result<BackupCourse, Failure> {
    testbed.change_device(device)?;
    let rate = testbed.most_transactions(workload)? * REQUESTED;
    let mut first = Rate(0);
    for _ in 0..TRIES {
        first = Rate(first.0.max(testbed.backup_alone()?.0));
    }
    // The search for the capacity begins where no disk is, and takes some seconds.
    let _ = testbed.run(workload, rate, Some((BackupSystem::Measured, first)));
    interrupt.check()?;
    let mut course = BackupCourse {
        name: format!("{}, {}", device.name(), workload.name()),
        alone: Vec::new(),
        backup_alone: Vec::new(),
        systems: BackupSystem::ALL.map(|system| SystemRuns { system, runs: Ok(Vec::new()) }).into(),
        measured: None,
        disturbance: None,
    };
    let probe = QuietProbe::start();
    for _ in 0..plan.rounds {
        course.alone.push(testbed.run(workload, rate, None)?);
        course.backup_alone.push(testbed.backup_alone()?);
        for SystemRuns { system, runs } in &mut course.systems {
            let Ok(of_system) = runs else { continue };
            match testbed.run(workload, rate, Some((*system, first))) {
                Ok(run) => of_system.push(run),
                Err(failure) => {
                    interrupt.check()?;
                    *runs = Err(failure.to_string());
                }
            }
        }
    }
    course.measured = testbed.measured();
    course.disturbance = probe.finish().disturbance();
    Ok(course)
}

impl BackupCourse {
    /// For each round, how many times as long as alone the database's transactions took.
    fn times(&self, runs: &[BackupRun]) -> Vec<f64> {
        runs.iter().zip(&self.alone).map(|(run, alone)| run.p99_ms / alone.p99_ms).collect()
    }

    /// For each round, the part of what was allowed that the backup had, in per cent.
    fn shares(&self, runs: &[BackupRun]) -> Vec<f64> {
        let share = |(run, alone): (&BackupRun, &Rate)| {
            100.0 * run.backup_bytes / (alone.0 as f64 - run.database_bytes).max(1.0)
        };
        runs.iter().zip(&self.backup_alone).map(share).collect()
    }

    /// The rows of both promises for each of ours, beside every peer.
    fn report(&self, report: &mut dyn FnMut(Row)) {
        let (all_ours, peers) = self.systems.split_at(OURS);
        for ours in all_ours {
            let case = |what: &str| format!("{}, {}: {what}", self.name, ours.system.name());
            let p99 = Row::less(BENCH, case("the database's p99"), "ratio", None);
            let share = Row::more(BENCH, case("the backup"), "% allowed", None);
            for (index, peer) in peers.iter().enumerate() {
                let row = beside(p99.clone(), (ours, peer), |runs| self.times(runs));
                report(self.judged(row, index, TIMES_P99, || self.times_note(ours)));
            }
            for (index, peer) in peers.iter().enumerate() {
                let row = beside(share.clone(), (ours, peer), |runs| self.shares(runs));
                report(self.judged(row, index, ALLOWED_PERCENT, || self.share_note(ours)));
            }
        }
    }

    /// The bound is the same beside each peer, and counts once.
    fn judged(&self, row: Row, index: usize, bound: f64, note: impl Fn() -> String) -> Row {
        if index > 0 {
            return row;
        }
        row.promised(bound).noted(note()).unless_disturbed(self.disturbance.clone())
    }

    fn times_note(&self, ours: &SystemRuns) -> String {
        let median = |runs: &[BackupRun]| Median::of(runs.iter().map(|run| run.p99_ms));
        let rate = Median::of(self.alone.iter().map(|run| run.transactions));
        let (Some(alone), Some(rate)) = (median(&self.alone), rate) else { return String::new() };
        let beside = ours.runs.as_ref().ok().and_then(|runs| median(runs));
        let beside = beside.map_or_else(String::new, |beside| format!("{:.1} ms, ", beside.value));
        format!("{beside}alone {:.1} ms at {:.0} transactions/s", alone.value, rate.value)
    }

    fn share_note(&self, ours: &SystemRuns) -> String {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let of = |number: fn(&BackupRun) -> f64| {
            let runs = ours.runs.as_ref().ok()?;
            Median::of(runs.iter().map(|run| mib(number(run)))).map(|median| median.value)
        };
        let alone = Median::of(self.backup_alone.iter().map(|rate| mib(rate.0 as f64)));
        let numbers = [
            of(|run| run.backup_bytes).map(|backup| format!("{backup:.1} MiB/s")),
            alone.map(|alone| format!("alone {:.1}", alone.value)),
            of(|run| run.database_bytes).map(|database| format!("the database {database:.1}")),
            self.measured.clone().filter(|_| ours.system == BackupSystem::Measured),
        ];
        numbers.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// A row with the numbers of our system beside those of a peer.
fn beside(
    row: Row,
    (ours, peer): (&SystemRuns, &SystemRuns),
    numbers: impl Fn(&[BackupRun]) -> Vec<f64>,
) -> Row {
    let name = peer.system.name();
    match (&ours.runs, &peer.runs) {
        (Err(why), _) => row.because(why.clone()),
        (Ok(ours), Err(why)) => {
            row.of_median(Median::of(numbers(ours))).beside(name, Err(why.clone()))
        }
        (Ok(ours), Ok(peer)) => {
            row.beside_in_turns(name, numbers(ours).into_iter().zip(numbers(peer)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(p99_ms: f64, backup_bytes: f64) -> BackupRun {
        BackupRun { p99_ms, transactions: 500.0, database_bytes: 10e6, backup_bytes }
    }

    fn course(disturbance: Option<&str>) -> BackupCourse {
        let systems = BackupSystem::ALL.map(|system| SystemRuns {
            system,
            runs: match system {
                BackupSystem::Stated => Ok(vec![run(2.8, 81e6); 3]),
                BackupSystem::Throttled => Err("the kernel refuses".into()),
                _ => Ok(vec![run(20.0, 90e6); 3]),
            },
        });
        BackupCourse {
            name: "disk, reads".into(),
            alone: vec![run(2.0, 0.0); 3],
            backup_alone: vec![Rate(100_000_000); 3],
            systems: systems.into(),
            measured: Some("Tidegate measured much".into()),
            disturbance: disturbance.map(str::to_owned),
        }
    }

    fn rows(course: &BackupCourse) -> Vec<Row> {
        let mut rows = Vec::new();
        course.report(&mut |row| rows.push(row));
        rows
    }

    #[test]
    fn both_promises_have_a_row_for_each_peer_and_count_once() {
        let rows = rows(&course(None));
        assert_eq!(rows.len(), 20);
        assert_eq!(rows[0].case, "disk, reads, Tidegate: the database's p99");
        assert_eq!(rows[10].case, "disk, reads, Tidegate, measured: the database's p99");
        let short = |row: &Row| (row.value, row.peer_value, row.kept);
        assert_eq!(short(&rows[0]), (Some(1.4), Some(10.0), Some(true)));
        assert_eq!(rows[0].note.as_deref(), Some("2.8 ms, alone 2.0 ms at 500 transactions/s"));
        assert_eq!(short(&rows[1]), (Some(1.4), Some(10.0), None));
        assert_eq!(short(&rows[4]), (Some(1.4), None, None));
        assert_eq!(rows[4].reason.as_deref(), Some("the kernel refuses"));
        // Of 100 MB/s the database has 10, so 90 are allowed.
        assert_eq!(short(&rows[5]), (Some(90.0), Some(100.0), Some(true)));
        assert!(rows[15].note.as_deref().is_some_and(|note| note.ends_with("measured much")));
    }

    #[test]
    fn a_missed_promise_is_missed_and_a_disturbed_one_has_no_verdict() {
        let mut slow = course(None);
        slow.systems[0].runs = Ok(vec![run(3.2, 60e6); 3]);
        let missed = rows(&slow);
        assert_eq!((missed[0].kept, missed[5].kept), (Some(false), Some(false)));
        slow.systems[0].runs = Err("no shim".into());
        let none = rows(&slow);
        let none = &none[..10];
        assert!(none.iter().all(|row| row.value.is_none() && row.kept.is_none()), "{none:#?}");
        let disturbed = rows(&course(Some("others")));
        assert_eq!((disturbed[0].kept, disturbed[5].kept), (None, None));
        assert_eq!(disturbed[0].reason.as_deref(), Some("others"));
    }
}
