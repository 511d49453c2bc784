//! PAIO §9.2, figures 5 to 9: the tail latency of RocksDB, whose flushes and compactions have the
//! disk that its clients want.
//!
//! Eight threads read and write keys in peaks and valleys, on the distribution's RocksDB, without a
//! change of it. Systems run by turns on copies of one store: RocksDB alone, with each of its own
//! two limiters, under `tidegate run` with SILK's rules, and under `tidegate run --profile lsm`. In
//! figures 5 to 7 they are in a control group whose reads and whose writes the kernel limits.
//! Figures 8 and 9 have a disk without a limit, and no limiter of RocksDB.
//!
//! ```text
//!   plan ──▶ live ──▶ score ──▶ evidence ──▶ claims, unlimited; table, picture
//!             │
//!             ▼
//!        tidegate-lab lsm-load (crate::lsm): a line for each second
//! ```
//!
//! Four things differ from the paper. Operations are due at times of their own and their latency
//! counts from then, where the paper's clients wait for replies first. Rates are a quarter of the
//! paper's, and times shorter. SILK's rules run without its preemption, which is a change of the
//! store. A disk in memory stands for the paper's NVMe device.

use std::path::PathBuf;

use serde_json::json;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_console::table::{Cell, Table};
use tidegate_model::{Span, Time};

use super::kept::{self, Origin};
use super::paper::{FigureContext, tenths, timed};
use super::plot::{Panel, Series, draw};
use super::verdict::Claim;

mod claims;
mod evidence;
mod kept_runs;
mod live;
mod plan;
mod runs;
mod score;
mod unlimited;

use evidence::{LsmEvidence, LsmOutcome};
use kept_runs::KeptRuns;
use plan::{LsmDisk, LsmPlan, PAPER_SECONDS};
use runs::{LsmRun, LsmSystemRuns};
use score::LsmScore;

pub(crate) use plan::LsmExperiment;

/// How long a run of one system takes, if the user wants no other time.
const SECONDS: u64 = 24;

/// The user's choices.
#[derive(Clone, Debug)]
pub(crate) struct LsmOptions {
    /// How long a run of one system takes.
    pub(crate) seconds: u64,
    /// How often each system runs.
    pub(crate) rounds: u16,
    /// Where the picture and the samples go.
    pub(crate) out: PathBuf,
    /// Where stores lie, unless their disk is one in memory.
    pub(crate) directory: PathBuf,
    pub(crate) json: bool,
    /// Runs of an earlier command are made again.
    pub(crate) is_again: bool,
}

impl LsmOptions {
    /// The time of a run by the user's words: a number of seconds, or the paper's times.
    pub(crate) fn seconds(wanted: Option<u64>, is_long: bool) -> u64 {
        if is_long { PAPER_SECONDS } else { wanted.unwrap_or(SECONDS) }
    }

    /// How long all runs of an experiment take, in seconds.
    pub(crate) fn planned_seconds(&self, experiment: LsmExperiment) -> u64 {
        self.seconds * u64::from(self.rounds) * experiment.systems().len() as u64
    }

    /// The options that the numbers of an experiment depend on, as they are written.
    pub(crate) fn words(&self, experiment: LsmExperiment) -> String {
        let Self { seconds, rounds, directory, .. } = self;
        let rest = match experiment.disk {
            LsmDisk::InMemory => String::new(),
            LsmDisk::Limited | LsmDisk::Real => {
                format!(" --directory {}", output::shell_word(&directory.to_string_lossy()))
            }
        };
        format!(" --seconds {seconds} --rounds {rounds}{rest}")
    }
}

/// Runs and judges a figure, and prints its table. Returns its claims, table and pictures. Runs
/// that an earlier command of the same `origin` has made are not made again. `progress` is how far
/// the command is.
///
/// # Errors
/// If something breaks, or the user ends the command.
pub(crate) fn run(
    experiment: LsmExperiment,
    options: &LsmOptions,
    origin: &Origin,
    progress: &str,
) -> Result<(Vec<Claim>, String, Vec<String>), Failure> {
    let context = FigureContext {
        interrupt: Interrupt::listen()?,
        progress: progress.to_owned(),
        is_watched: !options.json && std::io::IsTerminal::is_terminal(&std::io::stderr()),
        periods: None,
        seed: None,
    };
    let mut plan = LsmPlan::new(experiment, options.seconds);
    let name = format!("figure-{}", experiment.figure);
    let kept_path = options.out.join(format!("{name}-runs.json"));
    let mut kept = KeptRuns::read(kept_path, origin, !options.is_again);
    let (outcome, seconds) = timed(|| live::run(&mut plan, options, &context, &mut kept));
    let outcome: LsmOutcome = outcome?;
    kept.remove();
    context.clear();
    let evidence = LsmEvidence { plan: &plan, outcome: &outcome, seconds };
    let claims = match plan.limit {
        Some(_) => evidence.limited_claims(),
        None => evidence.unlimited_claims(),
    };
    let Ok(all) = outcome else { return Ok((claims, String::new(), Vec::new())) };
    let (table, picture) = (table(&plan, &all), picture(&plan, &all));
    kept::replace(&options.out.join(format!("{name}.svg")), picture.as_bytes())?;
    let samples = samples(&all)?;
    kept::replace(&options.out.join(format!("{name}-samples.json")), &samples)?;
    if !options.json {
        output::print(&format!("{}\n", table.render(Paint::stdout(), usize::MAX)))?;
    }
    Ok((claims, table.render(Paint::none(), usize::MAX), vec![picture]))
}

/// Every second of every run.
fn samples(all: &[LsmSystemRuns]) -> Result<Vec<u8>, Failure> {
    let run = |run: &LsmRun| {
        let LsmRun { seconds, totals, channels, .. } = run;
        json!({ "seconds": seconds, "totals": totals, "channels": channels })
    };
    let system = |one: &LsmSystemRuns| {
        let runs: Vec<_> = one.runs.iter().flatten().map(run).collect();
        json!({ "system": one.system.name(), "runs": runs })
    };
    serde_json::to_vec(&all.iter().map(system).collect::<Vec<_>>())
        .map_err(|error| Failure::new(Code::Failure, "cannot write JSON").cause(error))
}

/// A row for each run: its seconds after the first valley.
fn table(plan: &LsmPlan, all: &[LsmSystemRuns]) -> Table {
    let mut table = Table::new().left("SYSTEM").each_right([
        "ROUND",
        "OPS/S",
        "OF DUE, %",
        "P99 MEDIAN, MS",
        "NINE OF TEN",
        "HIGHEST",
        "VARIABILITY",
        "READ, MIB/S",
        "WRITTEN",
    ]);
    for one in all {
        for (round, run) in (1..).zip(one.runs.iter().flatten()) {
            let busy = plan.first_busy_second()..usize::MAX;
            let Some(score) = LsmScore::new(run, busy) else { continue };
            let numbers = [
                score.operations_per_second.round(),
                tenths(score.served_percent),
                tenths(score.median_ms),
                tenths(score.high_ms),
                tenths(score.highest_ms),
                tenths(score.deviation_ms),
                tenths(score.read_bytes / f64::from(1 << 20)),
                tenths(score.written_bytes / f64::from(1 << 20)),
            ];
            let mut cells = vec![Cell::from(one.system.name()), Cell::from(format!("{round}"))];
            cells.extend(numbers.map(|number| Cell::from(number.to_string())));
            table.row(cells);
        }
    }
    table
}

/// Throughput and latency of the first round, as in the paper.
fn picture(plan: &LsmPlan, all: &[LsmSystemRuns]) -> String {
    let series = |number: fn(&crate::lsm::LsmSecond) -> f64| {
        let line = move |one: &LsmSystemRuns| {
            let run = one.runs.as_ref().ok()?.first()?;
            let points = run.seconds.iter().map(|second| (second.second as f64, number(second)));
            Some(Series::line(one.system.name(), points.collect()))
        };
        all.iter().filter_map(line).collect::<Vec<_>>()
    };
    let seconds = plan.bursts.total.0 / Span::SECOND.0;
    let due = |second: u64| {
        let [from, to] = [second, second + 1].map(|second| Time(second * Span::SECOND.0));
        let due = plan.bursts.due_before(to) - plan.bursts.due_before(from);
        (second as f64, due as f64)
    };
    let mut throughput = series(|second| second.operations as f64);
    throughput.push(Series::dashed("due", (0..seconds).map(due).collect()));
    let latency = series(|second| second.p99_us as f64 / 1e3);
    let panels = [
        Panel::new("Throughput", ["seconds", "operations per second"], throughput),
        Panel::new("99th percentile of latency", ["seconds", "ms"], latency),
    ];
    let reads = plan.experiment.mixture.read_percent();
    let disk = match plan.experiment.disk {
        LsmDisk::Limited => "",
        LsmDisk::Real => " on the whole disk",
        LsmDisk::InMemory => " on a disk in memory",
    };
    draw(&format!("RocksDB with {reads} % reads{disk}: throughput and latency over time"), &panels)
}

#[cfg(test)]
mod tests {
    use super::score::tests::run;
    use super::*;

    #[test]
    fn each_run_has_a_row_and_each_system_a_line() {
        let plan = LsmPlan::new(LsmExperiment::FIGURE_5, 24);
        let runs = |system, runs: usize| {
            let runs = Ok(vec![run(&[(100, 2_000); 24]); runs]);
            LsmSystemRuns { system, runs }
        };
        let all = [
            runs(plan::LsmSystem::RocksDb, 2),
            LsmSystemRuns { system: plan::LsmSystem::AutoTuned, runs: Err("missing".into()) },
            runs(plan::LsmSystem::Tidegate, 1),
        ];
        let text = table(&plan, &all).render(Paint::none(), usize::MAX);
        assert_eq!(text.lines().count(), 4, "{text}");
        let picture = picture(&plan, &all);
        assert!(picture.contains("50 % reads") && picture.contains("Tidegate"));
        assert!(!picture.contains("auto-tuned") && !picture.contains("NaN"));
        let samples = samples(&all).unwrap();
        let samples: serde_json::Value = serde_json::from_slice(&samples).unwrap();
        assert_eq!(samples[0]["runs"][1]["seconds"][23]["p99_us"], 2_000);
    }

    #[test]
    fn numbers_depend_on_the_directory_unless_the_disk_is_in_memory() {
        let options = LsmOptions {
            seconds: 24,
            rounds: 2,
            out: "out".into(),
            directory: "/a disk".into(),
            json: false,
            is_again: false,
        };
        let words = |experiment| options.words(experiment);
        assert_eq!(
            words(LsmExperiment::FIGURE_8),
            " --seconds 24 --rounds 2 --directory '/a disk'"
        );
        assert_eq!(words(LsmExperiment::FIGURE_9), " --seconds 24 --rounds 2");
        let planned = |experiment| options.planned_seconds(experiment);
        assert_eq!(planned(LsmExperiment::FIGURE_5), 2 * 5 * 24);
        assert_eq!(planned(LsmExperiment::FIGURE_9), 2 * 3 * 24);
    }
}
