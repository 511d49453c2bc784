//! Haechi paper, live: figures 7, 8, 9, 11, 13 and 16, and of several data nodes ([`nodes`]).
//!
//! ```text
//!  ten clients, a process each ──one-sided──▶ memory ◀── data node: its monitor, once a tick
//!      (tidegate-lab kv)      behind the model of an RNIC
//! ```
//!
//! Scenarios are those of the simulation, at a twentieth of the speed, so that two processors
//! have time to spare; what is shown is multiplied by as much. Everything is as a user would run
//! it, and what clients read is checked. No process takes part in a read but the client's own.
//!
//! # Why a twentieth
//! The engine's own operations per millisecond stay the same, however slow the node is. At a
//! hundredth of the speed they are a third of all operations. At a tenth ten clients take more than
//! a processor.
//!
//! # Judgement
//! Each claim has what is seen beside what is simulated at the same speed ([`AS_SIMULATED`]). A
//! client keeps its reservation up to what is under way when a period ends ([`KEPT`]). Periods
//! count in which the machine scheduled every client, see [`run`]; where more than a fifth are
//! disturbed, no claim is judged.

use serde_json::{Value, json};
use tidegate_model::Span;
use tidegate_sim::one_sided::{self, Control, OneSidedReport, Scenario};

use super::capacity::{self, Course};
use super::plot::{Panel, Series, draw};
use super::{
    BARE, BASIC, FIGURE_7, FIGURE_8A, FIGURE_8B, FIGURE_8C, FIGURE_9A, FIGURE_9B, FigureContext,
};
use super::{
    FIGURE_10A, FIGURE_10B, FIGURE_13A, FIGURE_13B, FIGURE_16A, FIGURE_16B, MODES, Number,
};
use super::{FigureResult, PAPER, SOUND, by_client, clients, control, mean, mean_of, means};
use super::{formatted, scenario, table_in, tenths, total};
use crate::experiment::paper::{ClaimSource, LIVE, simulate};
use crate::experiment::quiet;
use crate::experiment::verdict::{Check, Claim, at_least, at_most, between};
use run::{LiveRun, with_periods};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

pub(super) mod nodes;
mod run;
mod testbed;
#[cfg(test)]
mod tests;

/// By how much live runs are slower than the paper's.
const SLOWED: u32 = 20;

/// The head of tables: rates are those of the paper's speed.
const UNIT: &str = "K/s, TIMES 20";

/// Operations that a client keeps under way: of all ten 2 ms of the link's time, so that a client
/// that is woken up so late leaves no gap, and less than what makes the monitor think that one is
/// held up by others.
const WINDOW: u32 = 16;

/// And without control, where nothing waits for words of control: the paper's.
const WINDOW_BARE: u32 = 64;

/// Periods that count, of most runs.
const PERIODS: usize = 6;

/// Tolerance of a reservation, in percent. Operations in flight when a period ends count in the
/// next: 16 of 4,000.
const KEPT: f64 = 0.5;

/// So near to what is simulated at the same speed is as simulated, in percent.
const AS_SIMULATED: f64 = 5.0;

/// And so near to what the paper prints, where a machine is in between.
const NEAR: f64 = 3.0;

/// Result of a live run.
struct Live {
    outcome: OneSidedReport,
    /// Periods that passed, and how many of them were quiet.
    periods: usize,
    quiet: usize,
    /// How late a client was in sum at most, in a period that counts.
    late: Span,
    /// The data node's process, in percent of a processor.
    node_percent: f64,
    seconds: f64,
}

/// A run beside its simulation.
struct RunPair {
    live: Live,
    simulated: OneSidedReport,
}

/// A scenario as it is run live.
fn slowed(text: &str, control: Control, window: u32) -> Result<Scenario, Failure> {
    let mut scenario = Scenario { control, ..scenario(text)?.slowed(SLOWED) };
    scenario.client.iter_mut().for_each(|clients| clients.window = window);
    // As far as a data node of the cluster's file takes its profile to stray.
    scenario.deviation.0 = scenario.nics.node.0 / 100;
    Ok(scenario)
}

/// Runs plans one after the other, and simulates them.
fn run_all(context: &FigureContext, plans: Vec<LiveRun>) -> Result<Vec<RunPair>, Failure> {
    let scenarios: Vec<Scenario> = plans.iter().map(simulated).collect();
    let mut runs = Vec::new();
    let of = plans.len();
    let shown = simulate(context, scenarios, one_sided::run)?;
    for ((done, plan), shown) in plans.iter().enumerate().zip(shown) {
        context.note(&format!("live: {done} of {of} done"));
        let live = run::run(plan, &context.interrupt)?;
        runs.push(RunPair { live, simulated: faster(shown.outcome) });
    }
    Ok(runs)
}

/// The scenario that is simulated beside a plan.
fn simulated(plan: &LiveRun) -> Scenario {
    let LiveRun { scenario, periods, .. } = plan;
    Scenario { skip: 1, periods: *periods as u32, ..scenario.clone() }
}

/// At the paper's speed.
fn faster(mut outcome: OneSidedReport) -> OneSidedReport {
    let more = |count: &mut u64| *count *= u64::from(SLOWED);
    outcome.promised.iter_mut().for_each(more);
    outcome.samples.iter_mut().flat_map(|sample| &mut sample.completed).for_each(more);
    outcome
}

/// The same scenarios under some controls each, in the order of [`super::MODES`].
fn under(
    context: &FigureContext,
    texts: [&str; 2],
    modes: &'static [usize],
) -> Result<[Vec<RunPair>; 2], Failure> {
    let mut plans = Vec::new();
    for text in texts {
        for mode in modes {
            let window = if *mode == BARE { WINDOW_BARE } else { WINDOW };
            let scenario = slowed(text, MODES[*mode].0, window)?;
            let periods = context.periods.unwrap_or(PERIODS);
            plans.push(LiveRun { scenario, window, periods, job: None });
        }
    }
    let mut runs = run_all(context, plans)?;
    let second = runs.split_off(modes.len());
    Ok([runs, second])
}

/// A claim about some runs, with what is to be known of all of them.
fn claim(
    figure: &'static str,
    runs: &[&RunPair],
    text: impl Into<String>,
    measured: Value,
    checks: impl IntoIterator<Item = Check>,
) -> Claim {
    let sum = |of: fn(&Live) -> usize| runs.iter().map(|run| of(&run.live)).sum::<usize>();
    let late = runs.iter().map(|run| run.live.late).max().unwrap_or(Span::ZERO);
    let periods = [sum(|live| live.periods), sum(|live| live.quiet)];
    let numbers = with_periods(measured, SLOWED, periods, late);
    let disturbed = quiet::disturbance(periods[0] - periods[1], periods[0], 1);
    let seconds = tenths(runs.iter().map(|run| run.live.seconds).sum());
    let seed = runs.first().map(|run| run.live.outcome.seed);
    let source = ClaimSource { paper: "haechi", figure, world: LIVE, seed, seconds };
    source.claim(text, numbers, checks).disturbed(disturbed.as_deref())
}

/// By how much clients miss what they want of their reservations in their worst period, in percent,
/// and whether all have it.
fn kept(outcome: &OneSidedReport) -> (Value, Check) {
    let missing = clients(outcome).map(|client| (client + 1, outcome.missing_percent(client)));
    let missing: Vec<(usize, f64)> = missing.filter(|(_, percent)| *percent > KEPT).collect();
    let value = missing.iter().map(|(client, off)| (format!("C{client}"), tenths(*off).into()));
    let samples = if outcome.samples.is_empty() { 0..0 } else { clients(outcome) };
    let each: Vec<f64> = samples.map(|client| outcome.missing_percent(client)).collect();
    (Value::Object(value.collect()), at_most("missing in a period", "%", KEPT, each))
}

/// How much of the link was used: with what the engines themselves asked for, which at this speed
/// is many times as much of it as at the paper's. In thousands of reads per second.
fn link(outcome: &OneSidedReport) -> f64 {
    total(outcome) * (1.0 + control(outcome) / (100.0 - control(outcome)) / SMALL)
}

/// So many small operations take as long as one of 4 KiB, by the model of an RNIC.
const SMALL: f64 = 16.0;

/// That clients read what they do in the simulation at the same speed.
fn as_simulated(figure: &'static str, runs: &[&RunPair], text: &str) -> Claim {
    let mut apart = Vec::new();
    for run in runs {
        for client in clients(&run.live.outcome) {
            let [live, simulated] =
                [&run.live.outcome, &run.simulated].map(|one| mean(one, client));
            apart.push((live / simulated - 1.0).abs() * 100.0);
        }
    }
    let most = apart.iter().copied().fold(0.0, f64::max);
    let claim = claim(
        figure,
        runs,
        format!("{text}, each client reads what it does in the simulated world"),
        json!({ "apart_at_most_percent": tenths(most) }),
        [at_most("apart", "%", AS_SIMULATED, apart)],
    );
    claim.ours()
}

/// That sound rules keep all promises and use what the link can do.
fn sound(figure: &'static str, bare: &RunPair, sound: &RunPair, text: &str) -> Claim {
    let (missing, has_all) = kept(&sound.live.outcome);
    let [of_bare, of_sound] = [bare, sound].map(|run| link(&run.live.outcome));
    let used = of_sound / of_bare * 100.0;
    let claim = claim(
        figure,
        &[bare, sound],
        format!(
            "{text}, with sound rules, and what is read and asked for control is nearly what bare \
             clients read"
        ),
        json!({
            "missing_percent": missing,
            "throughput_kilo_per_second": tenths(total(&sound.live.outcome)),
            "link_percent_of_bare": tenths(used),
            "operations_for_control_percent": tenths(control(&sound.live.outcome)),
            "node_percent_of_a_processor": tenths(sound.live.node_percent),
        }),
        [has_all, at_least("of that", "%", USED, used)],
    );
    claim.ours()
}

/// So much of what is read without control is used at least, in percent.
const USED: f64 = 97.0;

/// Numbers beside the paper's, and the checks that they are near to them.
fn beside(numbers: &[Number]) -> (Value, Vec<Check>) {
    let formatted = |number: &Number| {
        let Number { what, unit, paper, model, .. } = number;
        json!({ "what": what, "unit": unit, "paper": paper, "live": tenths(*model) })
    };
    let measured = json!({ "numbers": numbers.iter().map(formatted).collect::<Vec<_>>() });
    (measured, numbers.iter().map(|number| number.check(NEAR)).collect())
}

/// Rows of a table, for runs of one scenario under some controls.
fn rows(prefix: &str, modes: &[usize], runs: &[RunPair]) -> Vec<(String, Vec<f64>)> {
    let name = |mode: &usize| format!("{prefix} {}", MODES[*mode].1);
    modes.iter().zip(runs).map(|(mode, run)| (name(mode), means(&run.live.outcome))).collect()
}

/// So many clients read at a time.
const COUNTS: [u16; 6] = [1, 2, 3, 4, 7, 10];

/// Figure 7: more and more clients.
pub(super) fn several(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut plans = Vec::new();
    for count in COUNTS {
        let mut scenario = slowed(FIGURE_7, Control::None, WINDOW_BARE)?;
        scenario.client[0].count = count;
        let periods = context.periods.unwrap_or(PERIODS / 2);
        plans.push(LiveRun { scenario, window: WINDOW_BARE, periods, job: None });
    }
    let runs = run_all(context, plans)?;
    let totals: Vec<f64> = runs.iter().map(|run| total(&run.live.outcome)).collect();
    let mut table = Table::new().right("CLIENTS").right(UNIT);
    for (count, total) in COUNTS.iter().zip(&totals) {
        table.row([count.to_string().into(), formatted(*total).into()]);
    }
    let numbers = [
        Number::rate("7", "a client alone", 400.0, totals[0]),
        Number::rate("7", "three clients", 1200.0, totals[2]),
        Number::rate("7", "ten clients", 1570.0, totals[COUNTS.len() - 1]),
    ];
    let (measured, checks) = beside(&numbers);
    let runs: Vec<&RunPair> = runs.iter().collect();
    let text =
        "reads grow with each of the first four clients, and then stay at what the link does";
    let fourth = totals[3];
    let claims = vec![claim(
        "7",
        &runs,
        text,
        measured,
        checks.into_iter().chain([at_least("four clients", "K/s", 1500.0, fourth)]),
    )];
    let points = COUNTS.iter().zip(&totals).map(|(count, total)| (f64::from(*count), *total));
    let panel = Panel::new(
        "Several clients",
        ["clients", "thousand reads per second"],
        [Series::line("live", points.collect())],
    );
    Ok(FigureResult { claims, table, picture: draw("What clients read together, live", &[panel]) })
}

/// Figure 8: demands without control.
pub(super) fn demands(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut plans = Vec::new();
    for text in [FIGURE_8A, FIGURE_8B, FIGURE_8C] {
        let scenario = slowed(text, Control::None, WINDOW_BARE)?;
        let periods = context.periods.unwrap_or(PERIODS);
        plans.push(LiveRun { scenario, window: WINDOW_BARE, periods, job: None });
    }
    let runs = run_all(context, plans)?;
    let names = ["8a uniform, burst", "8b spike, burst", "8c spike, constant rate"];
    let texts = [
        "if ten clients want the same in bursts, they read what the link does",
        "if three want more than the others, an eighth of that is lost",
        "and nothing at a constant rate",
    ];
    let numbers = super::demand::all_numbers([0, 1, 2].map(|at| &runs[at].live.outcome));
    let mut claims: Vec<Claim> = Vec::new();
    for ((text, numbers), run) in texts.into_iter().zip(numbers).zip(&runs) {
        let (measured, checks) = beside(&numbers);
        claims.push(claim(numbers[0].figure, &[run], text, measured, checks));
    }
    let all: Vec<&RunPair> = runs.iter().collect();
    claims.push(as_simulated("8", &all, "with demands of all kinds"));
    let rows =
        names.iter().zip(&runs).map(|(name, run)| ((*name).into(), means(&run.live.outcome)));
    let rows: Vec<(String, Vec<f64>)> = rows.collect();
    let panel = by_client("What each client reads", &rows);
    let picture = draw("Demands without control, live", &[panel]);
    Ok(FigureResult { claims, table: table_in(UNIT, &rows), picture })
}

/// C1 and C2, who are promised most by Zipf's distribution.
const FIRST: core::ops::Range<usize> = 0..2;

/// Figure 9: nine tenths are promised.
pub(super) fn promises(context: &FigureContext) -> Result<FigureResult, Failure> {
    const RUNS: &[usize] = &[BARE, PAPER, SOUND];
    let [uniform, zipf] = under(context, [FIGURE_9A, FIGURE_9B], RUNS)?;
    let (missing, has_all) = kept(&uniform[1].live.outcome);
    let of_bare = zipf[0].live.outcome.promised[0] as f64 / 1e3;
    let [bare, paper] = [0, 1].map(|at: usize| mean_of(&zipf[at].live.outcome, FIRST));
    let claims = vec![
        claim(
            "9a",
            &[&uniform[1]],
            "with equal reservations all clients have them in each period",
            json!({ "missing_percent": missing }),
            [has_all],
        ),
        sound("9a", &uniform[0], &uniform[2], "with equal reservations all have them"),
        claim(
            "9b",
            &[&zipf[0], &zipf[1]],
            "by Zipf's distribution C1 and C2 do not have theirs without control, nor by the \
             paper's text",
            json!({
                "promised_kilo_per_second": tenths(of_bare),
                "bare_kilo_per_second": tenths(bare),
                "paper_kilo_per_second": tenths(paper),
            }),
            [at_most("of it", "%", 90.0, [bare, paper].map(|rate| rate / of_bare * 100.0))],
        )
        .ours(),
        sound("9b", &zipf[0], &zipf[2], "by Zipf's distribution all have their reservations"),
        as_simulated("9", &every(&[&uniform, &zipf]), "whoever controls them"),
    ];
    let lines = [rows("9a", RUNS, &uniform), rows("9b", RUNS, &zipf)];
    let panels = [by_client("(a) uniform", &lines[0]), by_client("(b) Zipf", &lines[1])];
    let picture = draw("Nine tenths are promised, live", &panels);
    Ok(FigureResult { claims, table: table_in(UNIT, &lines.concat()), picture })
}

fn every<'a>(some: &[&'a Vec<RunPair>]) -> Vec<&'a RunPair> {
    some.iter().flat_map(|runs| runs.iter()).collect()
}

/// Figure 11: two clients want less than they are promised.
pub(super) fn totals(context: &FigureContext) -> Result<FigureResult, Failure> {
    const RUNS: &[usize] = &[BARE, BASIC, PAPER, SOUND];
    let both = under(context, [FIGURE_10A, FIGURE_10B], RUNS)?;
    let mut claims = Vec::new();
    for (runs, name) in both.iter().zip(["uniform", "Zipf"]) {
        let [bare, basic, paper] = [BARE, BASIC, PAPER].map(|at| link(&runs[at].live.outcome));
        let [of_basic, of_paper] = [basic, paper].map(|rate| rate / bare * 100.0);
        claims.push(claim(
            "11",
            &[&runs[BARE], &runs[BASIC], &runs[PAPER]],
            format!(
                "Haechi's throughput is comparable to that without control, and Basic Haechi \
                 wastes what is not used ({name})"
            ),
            json!({
                "basic_link_percent_of_bare": tenths(of_basic),
                "with_conversion_link_percent_of_bare": tenths(of_paper),
            }),
            [at_least("Haechi", "%", USED, of_paper), at_most("Basic Haechi", "%", USED, of_basic)],
        ));
        let text = format!("others get what C1 and C2 leave, and all what they want ({name})");
        claims.push(sound("11", &runs[BARE], &runs[SOUND], &text));
    }
    // Basic Haechi's pool is a few batches for the first client, which chance decides here.
    let basic = |at: usize| at % RUNS.len() == BASIC;
    let every = every(&[&both[0], &both[1]]).into_iter().enumerate();
    let every: Vec<&RunPair> = every.filter(|(at, _)| !basic(*at)).map(|(_, run)| run).collect();
    claims.push(as_simulated("11", &every, "where two clients leave something"));
    let lines = [rows("uniform", RUNS, &both[0]), rows("Zipf", RUNS, &both[1])];
    let panels = [by_client("uniform", &lines[0]), by_client("Zipf", &lines[1])];
    let picture = draw("Two clients want less, live", &panels);
    Ok(FigureResult { claims, table: table_in(UNIT, &lines.concat()), picture })
}

/// Those who are promised more, and what, in thousands per second.
const SPIKE: core::ops::Range<usize> = 0..3;
const SPIKE_PROMISED: f64 = 285.0;

/// Figure 13: reservations with a spike.
pub(super) fn spike(context: &FigureContext) -> Result<FigureResult, Failure> {
    const RUNS: &[usize] = &[BARE, PAPER, SOUND];
    let [burst, constant] = under(context, [FIGURE_13A, FIGURE_13B], RUNS)?;
    let [of_burst, of_constant] =
        [&burst, &constant].map(|runs| mean_of(&runs[1].live.outcome, SPIKE));
    let (missing, has_all) = kept(&constant[1].live.outcome);
    let claims = vec![
        claim(
            "13",
            &[&burst[1]],
            "with bursts C1 to C3 miss their reservations of 285,000 by the paper's text",
            json!({ "kilo_per_second": tenths(of_burst) }),
            [at_most("they have", "K/s", SPIKE_PROMISED, of_burst)],
        ),
        claim(
            "13",
            &[&constant[1]],
            "at a constant rate they have more than that, and all others have theirs",
            json!({ "kilo_per_second": tenths(of_constant), "missing_percent": missing }),
            [has_all, at_least("they have", "K/s", SPIKE_PROMISED, of_constant)],
        ),
        sound("13", &burst[0], &burst[2], "also with bursts all have their reservations"),
        sound("13", &constant[0], &constant[2], "at a constant rate all have their reservations"),
        as_simulated("13", &every(&[&burst, &constant]), "with a spike of reservations"),
    ];
    let lines = [rows("burst", RUNS, &burst), rows("constant rate", RUNS, &constant)];
    let panels = [by_client("burst", &lines[0]), by_client("constant rate", &lines[1])];
    let picture = draw("Reservations with a spike, live", &panels);
    Ok(FigureResult { claims, table: table_in(UNIT, &lines.concat()), picture })
}

/// Figure 16: periods before and after others begin to use the link, and how many of them it takes
/// until nothing changes any more.
const BEFORE: usize = 5;
const AFTER: usize = 10;
const SETTLED: usize = 4;

/// So many reads the others keep under way, as a part of what all clients do: 60 of 640.
const JOB: u32 = WINDOW * 10 * 60 / 640;

/// Figure 16: others begin to use the link.
pub(super) fn congestion(context: &FigureContext) -> Result<FigureResult, Failure> {
    const RUNS: [usize; 3] = [BARE, PAPER, SOUND];
    // A short run is one period before and the others after.
    let (before, periods) = context.periods.map_or((BEFORE, BEFORE + AFTER), |all| (1, all.max(2)));
    let mut plans = Vec::new();
    for text in [FIGURE_16A, FIGURE_16B] {
        for mode in RUNS {
            let mut scenario = slowed(text, MODES[mode].0, WINDOW)?;
            scenario.background = None;
            plans.push(LiveRun { scenario, window: WINDOW, periods, job: Some((before, JOB)) });
        }
    }
    let runs = run_all(context, plans)?;
    let mut table = Table::new().left(UNIT).right("BEFORE").right("FIRST AFTER").right("LAST");
    let (mut claims, mut panels) = (Vec::new(), Vec::new());
    for (runs, name) in runs.chunks(RUNS.len()).zip(["uniform", "Zipf"]) {
        let course =
            |run: &RunPair| Course::around(&capacity::totals(&run.live.outcome), before, SETTLED);
        let courses: Vec<Course> = runs.iter().map(course).collect();
        let mut series = Vec::new();
        for ((mode, run), course) in RUNS.iter().zip(runs).zip(&courses) {
            let Course { before, first, last } = *course;
            let mut row: Vec<Cell> = vec![format!("{name}, {}", MODES[*mode].1).into()];
            row.extend([before, first, last].map(|rate| Cell::from(formatted(rate))));
            table.row(row);
            let rates = run.live.outcome.totals().map(super::kilo);
            let points = (1u32..).zip(rates).map(|(period, rate)| (f64::from(period), rate));
            series.push(Series::line(MODES[*mode].1, points.collect()));
        }
        panels.push(Panel::new(name, ["seconds", "thousand reads per second"], series));
        claims.push(falls(&runs[1], &courses[1], name));
        claims.push(follows(&runs[2], &courses[2], before, name));
    }
    let picture = draw("Others begin to use the link, live", &panels);
    Ok(FigureResult { claims, table, picture })
}

fn falls(run: &RunPair, course: &Course, name: &str) -> Claim {
    let part = 1.0 - course.last / course.before;
    claim(
        "16",
        &[run],
        format!("when congestion begins, Haechi's throughput falls by what others take ({name})"),
        json!({ "kilo_per_second": course.to_json() }),
        [between("by", "%", [5.0, 15.0], part * 100.0)],
    )
}

/// So many periods after the change all have what they are promised again.
const AGAIN: usize = 8;

fn follows(run: &RunPair, course: &Course, before: usize, name: &str) -> Claim {
    let outcome = &run.live.outcome;
    let mut late = outcome.clone();
    late.samples = outcome.samples.iter().skip(before + AGAIN).cloned().collect();
    let (missing, has_all) = kept(&late);
    let was_short = late.samples.is_empty().then_some("it was not run for so long");
    let claim = claim(
        "16",
        &[run],
        format!(
            "with sound rules all have their reservations at most {AGAIN} periods after that \
             ({name})"
        ),
        json!({ "kilo_per_second": course.to_json(), "missing_percent": missing }),
        [has_all],
    );
    claim.skipped(was_short).ours()
}
