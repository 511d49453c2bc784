//! Haechi, live: a scenario with processes; each client's reports of its periods, in the form of a
//! simulated run.
//!
//! A client's period is by its own clock, as its engine has it, and without an engine a second of
//! the machine's. The first that all begin is not counted: they learn in it where their values are.
//!
//! # Effects of a busy machine
//! Clients sleep until an operation completes. A client that wakes up late has read less meanwhile,
//! for a reason that is not the control's. Each client reports the sum of its lateness. A period is
//! *quiet* if no client was late by more than [`LATE`], in it or in the one before, and its length
//! was not off by as much. Only quiet periods count, where there are enough, and a run goes on for
//! a third as long again for them. All processes ask to go first, which root may: together they
//! need less than one processor.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value};
use tidegate_algo::onesided::Grain;
use tidegate_model::{Iops, Span};
use tidegate_sim::one_sided::{
    Control, Latency, OneSidedReport, OperationCounts, Pattern, Sample, Scenario,
};

use super::super::tenths;
use super::testbed::{BACKGROUND_TENANT, HaechiTestbed, tenant};
use super::{Live, SLOWED};
use crate::experiment::child::cannot_start;
use crate::experiment::paper::timed;
use crate::experiment::quiet::PriorityBoost;
use crate::kv::{ClientProcesses, ReportRow};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// Paced tokens are due this much early. A client that is late for longer in a period cannot make
/// up for it.
pub(super) const LATE: Span = Span(Span::SECOND.0 / Grain::CHOSEN.margin);

/// Values in the store: so many that clients do not all read the same, and that a client has read
/// each before anything counts.
const KEYS: u32 = 100;

/// A live run to make.
#[derive(Clone, Debug)]
pub(super) struct LiveRun {
    /// At the speed of live runs.
    pub(super) scenario: Scenario,
    /// Operations that a client keeps under way.
    pub(super) window: u32,
    /// Periods that are to count.
    pub(super) periods: usize,
    /// After so many of them a job without tokens begins, with so many reads under way.
    pub(super) job: Option<(usize, u32)>,
}

/// Rows of one period, one per client; `None` for a client that has not reported yet.
type PeriodRows = Vec<Option<ReportRow>>;

/// Periods, as clients report them.
#[derive(Debug, Default)]
pub(super) struct PeriodLog {
    has_reported: Vec<bool>,
    open: BTreeMap<u64, PeriodRows>,
    /// The periods that all clients reported, in their order, without the first.
    whole: Vec<Vec<ReportRow>>,
    is_warm: bool,
}

impl PeriodLog {
    pub(super) fn of(clients: usize) -> Self {
        Self { has_reported: vec![false; clients], ..Self::default() }
    }

    /// Takes in a client's report. Its first row is of a part of a period.
    pub(super) fn take(&mut self, client: usize, row: ReportRow) {
        if !std::mem::replace(&mut self.has_reported[client], true) {
            return;
        }
        let clients = self.has_reported.len();
        let number = row.period;
        let reported =
            self.open.entry(number).or_insert_with(|| (0..clients).map(|_| None).collect());
        reported[client] = Some(row);
        if reported.iter().all(Option::is_some) {
            // Periods before this one stay incomplete: a client slept through the end of one.
            self.open = self.open.split_off(&number);
            let whole: Vec<ReportRow> =
                self.open.remove(&number).into_iter().flatten().flatten().collect();
            if std::mem::replace(&mut self.is_warm, true) {
                self.whole.push(whole);
            }
        }
    }

    /// The periods that all clients have reported.
    pub(super) fn whole(&self) -> &[Vec<ReportRow>] {
        &self.whole
    }

    /// Whether each whole period was quiet: the machine scheduled every client.
    pub(super) fn quiet(&self, length: Span) -> Vec<bool> {
        let calm = |rows: &Vec<ReportRow>| {
            let off = |row: &ReportRow| row.nanoseconds.abs_diff(length.0);
            rows.iter().all(|row| row.late_in_sum <= LATE.0 && off(row) <= LATE.0)
        };
        let calm: Vec<bool> = self.whole.iter().map(calm).collect();
        (0..calm.len()).map(|at| calm[at] && (at == 0 || calm[at - 1])).collect()
    }
}

/// Runs a plan.
///
/// # Errors
/// If a process ends badly, a value came back that was not stored, or the user ends the command.
/// No process is left.
pub(super) fn run(plan: &LiveRun, interrupt: &Interrupt) -> Result<Live, Failure> {
    let _priority_boost = PriorityBoost::raise();
    let (live, seconds) = timed(|| count(plan, interrupt));
    Ok(Live { seconds, ..live? })
}

fn count(plan: &LiveRun, interrupt: &Interrupt) -> Result<Live, Failure> {
    let LiveRun { scenario, window, periods, job } = plan;
    let mut testbed = HaechiTestbed::start(scenario, *window, interrupt)?;
    let words = words(plan);
    let mut processes =
        start(words.len(), |client| (&testbed.sockets()[0], words[client].clone()))?;
    processes.wait_until_ready(interrupt)?;
    let mut besides = match job {
        Some((_, depth)) => Some(start(1, |_| (&testbed.sockets()[0], job_words(*depth)))?),
        None => None,
    };
    if let Some(job) = &mut besides {
        job.wait_until_ready(interrupt)?;
    }
    let (before, mut period_log) = (testbed.cpu_us(), PeriodLog::of(words.len()));
    processes.go();
    let most = periods + if job.is_none() { periods.div_ceil(3) } else { 0 };
    let (result, seconds) = timed(|| {
        loop {
            let reported = processes.next(interrupt)?;
            let Some((client, row)) = reported else {
                return Err(Failure::new(Code::Failure, "clients ended before their time"));
            };
            period_log.take(client, expect_right(row)?);
            testbed.check()?;
            let starts = job.is_some_and(|(period, _)| period_log.whole().len() == period);
            if let Some(job) = besides.as_mut().filter(|_| starts) {
                job.go();
            }
            let quiet =
                period_log.quiet(scenario.period).into_iter().filter(|quiet| *quiet).count();
            let enough = if job.is_none() { quiet } else { period_log.whole().len() };
            if enough >= *periods || period_log.whole().len() >= most {
                return Ok(());
            }
        }
    });
    result?;
    let node = (testbed.cpu_us() - before) / seconds / 1e4;
    Ok(live(plan, &period_log, node))
}

/// A row of a client that got back what was stored.
pub(super) fn expect_right(row: ReportRow) -> Result<ReportRow, Failure> {
    match row.wrong {
        0 => Ok(row),
        _ => Err(Failure::new(Code::Failure, "values came back that were never stored there")),
    }
}

/// Starts clients: each of the data node that listens there, with words of its own beside those
/// that all have.
pub(super) fn start<'a>(
    clients: usize,
    each: impl Fn(usize) -> (&'a PathBuf, Vec<String>),
) -> Result<ClientProcesses, Failure> {
    let program =
        std::env::current_exe().map_err(|error| cannot_start(&"tidegate-lab".into(), error))?;
    ClientProcesses::start(clients as u64, |client| {
        let mut command = Command::new(&program);
        // The user set these variables for the command that they typed, not for its children.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        let (at, words) = each(client as usize);
        command.args(["kv", "--seconds", "3600"]);
        command.args(["--keys".into(), KEYS.to_string()]).arg("--at").arg(at).args(words);
        command
    })
}

/// Arguments of each client of a plan.
pub(super) fn words(plan: &LiveRun) -> Vec<Vec<String>> {
    let LiveRun { scenario, window, .. } = plan;
    let groups = scenario.client.iter();
    let each: Vec<_> = groups.flat_map(|group| (0..group.count).map(move |_| group)).collect();
    let count = each.len() as u64;
    let words = each.iter().zip(0..).map(|(group, client)| {
        let mut words = vec![format!("--clients={count}"), format!("--client={client}")];
        words.push(format!("--depth={window}"));
        words.extend((0..count).map(|client| format!("--tenant={}", tenant(client))));
        words.extend(group.demand.map(|Iops(rate)| format!("--demand={rate} iops")));
        words.extend((group.pattern == Pattern::Constant).then(|| "--pattern=constant".into()));
        words.extend((scenario.control == Control::None).then(|| "--bare".into()));
        // The same keys for the same client.
        words.push(format!("--seed={}", scenario.seed + client));
        words
    });
    words.collect()
}

/// Arguments of a job beside the clients.
fn job_words(depth: u32) -> Vec<String> {
    let tenant = format!("--tenant={BACKGROUND_TENANT}");
    let job = ["--client=0".into(), format!("--depth={depth}"), tenant];
    [&job[..], &["--bare".into(), "--no-fill".into()]].concat()
}

/// The clients' rows in the form of a simulated run, at the paper's speed.
fn live(plan: &LiveRun, period_log: &PeriodLog, node: f64) -> Live {
    let LiveRun { scenario, periods, job, .. } = plan;
    let quiet = period_log.quiet(scenario.period);
    let count = quiet.iter().filter(|quiet| **quiet).count();
    // Where time is an axis, no period is left out.
    let chooses = job.is_none() && 2 * count >= *periods;
    let rows = || period_log.whole().iter().zip(&quiet).filter(|(_, quiet)| !chooses || **quiet);
    let sample = |rows: &Vec<ReportRow>| Sample {
        completed: rows.iter().map(|row| row.operations * u64::from(SLOWED)).collect(),
        background: 0,
    };
    let clients = period_log.has_reported.len();
    let counts = |client: usize| {
        let rows = || rows().map(|(rows, _)| &rows[client]);
        OperationCounts {
            data: rows().map(|row| row.data).sum(),
            control: rows().map(|row| row.control).sum(),
        }
    };
    let all = || rows().flat_map(|(rows, _)| rows);
    Live {
        outcome: OneSidedReport {
            seed: scenario.seed,
            period: scenario.period,
            promised: promised(scenario),
            samples: rows().map(|(rows, _)| sample(rows)).collect(),
            latency: vec![Latency::default(); clients],
            counts: (0..clients).map(counts).collect(),
            events: Vec::new(),
        },
        periods: quiet.len(),
        quiet: count,
        late: Span(all().map(|row| row.late_in_sum).max().unwrap_or(0)),
        node_percent: node,
        seconds: 0.0,
    }
}

/// Each client's reservation in a period, at most its demand, in operations at the paper's speed.
fn promised(scenario: &Scenario) -> Vec<u64> {
    let in_a_period = |rate: Iops| {
        let count = u128::from(rate.0) * u128::from(scenario.period.0);
        u64::try_from(count / u128::from(Span::SECOND.0)).unwrap_or(u64::MAX)
    };
    let each = scenario.client.iter().flat_map(|group| {
        let reservation = in_a_period(group.reservation.unwrap_or_default());
        let wanted = group.demand.map_or(u64::MAX, in_a_period);
        std::iter::repeat_n(reservation.min(wanted) * u64::from(SLOWED), group.count.into())
    });
    each.collect()
}

/// The measured numbers, with the factor of slowness, the number of periods, and the clients'
/// lateness. In quiet periods no client had to wait for a processor.
pub(super) fn with_periods(
    measured: Value,
    slowed_by: u32,
    [periods, quiet]: [usize; 2],
    late: Span,
) -> Value {
    let mut numbers = Map::new();
    numbers.insert("slowed_by".into(), slowed_by.into());
    numbers.insert("periods".into(), periods.into());
    numbers.insert("quiet_periods".into(), quiet.into());
    numbers.insert("late_in_a_period_at_most_ms".into(), tenths(late.as_seconds() * 1e3).into());
    if let Value::Object(measured) = measured {
        numbers.extend(measured);
    }
    numbers.into()
}
