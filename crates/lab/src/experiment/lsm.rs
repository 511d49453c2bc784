//! PAIO §9.2, figures 5 to 7: the tail latency of RocksDB, whose flushes and compactions have the
//! disk that its clients want.
//!
//! Eight threads read and write keys in peaks and valleys, on the distribution's RocksDB, without a
//! change of it. Four systems run by turns on copies of one store, each in a control group whose
//! reads and whose writes the kernel limits: RocksDB alone, with each of its own two limiters, and
//! under `tidegate run --profile lsm`.
//!
//! ```text
//!   plan ──▶ live ──▶ score ──▶ claims, table, picture
//!             │
//!             ▼
//!        tidegate-lab lsm-load (crate::lsm): a line for each second
//! ```
//!
//! Three things differ from the paper. Operations are due at times of their own and their latency
//! counts from then, where the paper's clients wait for replies first. Rates are a quarter of the
//! paper's, and times shorter. SILK is not measured.

use std::path::PathBuf;

use serde_json::json;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_console::table::{Cell, Table};
use tidegate_model::{Span, Time};

use super::kept;
use super::paper::{FigureContext, tenths, timed};
use super::plot::{Panel, Series, draw};
use super::verdict::Claim;

mod claims;
mod live;
mod plan;
mod score;

use claims::{LsmEvidence, LsmOutcome};
use live::LsmSystemRuns;
use plan::{LsmPlan, PAPER_SECONDS};
use score::LsmScore;

pub(crate) use plan::LsmMixture;

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
    /// Where stores lie.
    pub(crate) directory: PathBuf,
    pub(crate) json: bool,
}

impl LsmOptions {
    /// The time of a run by the user's words: a number of seconds, or the paper's times.
    pub(crate) fn seconds(wanted: Option<u64>, is_long: bool) -> u64 {
        if is_long { PAPER_SECONDS } else { wanted.unwrap_or(SECONDS) }
    }

    /// The options that the numbers depend on, as they are written.
    pub(crate) fn words(&self) -> String {
        let Self { seconds, rounds, directory, .. } = self;
        let directory = output::shell_word(&directory.to_string_lossy());
        format!(" --seconds {seconds} --rounds {rounds} --directory {directory}")
    }
}

/// Runs and judges a figure, and prints its table. Returns its claims, table and pictures.
///
/// # Errors
/// If something breaks, or the user ends the command.
pub(crate) fn run(
    mixture: LsmMixture,
    options: &LsmOptions,
) -> Result<(Vec<Claim>, String, Vec<String>), Failure> {
    let context = FigureContext {
        interrupt: Interrupt::listen()?,
        progress: format!("paio {}", mixture.figure()),
        is_watched: !options.json && std::io::IsTerminal::is_terminal(&std::io::stderr()),
        periods: None,
        seed: None,
    };
    let plan = LsmPlan::new(mixture, options.seconds);
    let (outcome, seconds) = timed(|| live::run(&plan, options, &context));
    let outcome: LsmOutcome = outcome?;
    context.clear();
    let claims = LsmEvidence { plan: &plan, outcome: &outcome, seconds }.claims();
    let Ok(all) = outcome else { return Ok((claims, String::new(), Vec::new())) };
    let (table, picture) = (table(&plan, &all), picture(&plan, &all));
    let name = format!("figure-{}", mixture.figure());
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
    let run = |run: &live::LsmRun| {
        let live::LsmRun { seconds, totals, channels, .. } = run;
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
    let reads = plan.mixture.read_percent();
    draw(&format!("RocksDB with {reads} % reads: throughput and latency over time"), &panels)
}

#[cfg(test)]
mod tests {
    use super::score::tests::run;
    use super::*;

    #[test]
    fn each_run_has_a_row_and_each_system_a_line() {
        let plan = LsmPlan::new(LsmMixture::Half, 24);
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
}
