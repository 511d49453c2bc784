//! Haechi paper, figures 16 to 19: the capacity changes. Background jobs begin or end after half of
//! the time, and take a part of the link without tokens.

use serde_json::json;
use tidegate_onesided::haechi::MonitorEvent;
use tidegate_sim::one_sided::OneSidedReport;

use super::plot::{Panel, Series, draw};
use super::promises::DECAYS;
use super::{
    BARE, FIGURE_16A, FIGURE_16B, FIGURE_18A, FIGURE_18B, FigureContext, Kept, MODES, PAPER,
};
use super::{FigureResult, HaechiRun, SKEW, SOUND, USED, at, formatted, kilo, of, tenths};
use crate::experiment::verdict::{Claim, at_least, at_most, falls, near, rises};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// When jobs begin or end, in periods.
const CHANGE_PERIOD: usize = 15;

const UNIFORM: usize = 0;
const ZIPF: usize = 1;
const BASES: [(usize, &str); 2] = [(UNIFORM, "uniform"), (ZIPF, "Zipf")];

/// One of the two setups: its runs, uniform and then Zipf, and its two figures.
pub(super) struct CapacitySetup {
    runs: Kept,
    figures: [&'static str; 2],
    title: &'static str,
    begins: bool,
}

pub(super) static CONGESTION_BEGINS: CapacitySetup = CapacitySetup {
    runs: Kept::new(|| super::under_all([FIGURE_16A, FIGURE_16B], |_| ())),
    figures: ["16", "17"],
    title: "Congestion begins after 15 s",
    begins: true,
};

pub(super) static CONGESTION_ENDS: CapacitySetup = CapacitySetup {
    runs: Kept::new(|| super::under_all([FIGURE_18A, FIGURE_18B], |_| ())),
    figures: ["18", "19"],
    title: "Congestion ends after 15 s",
    begins: false,
};

/// Some rates before and after the change: means, and the first and last of those after.
pub(super) struct Course {
    pub(super) before: f64,
    pub(super) first: f64,
    pub(super) last: f64,
}

impl Course {
    fn of(rates: &[f64]) -> Self {
        Self::around(rates, CHANGE_PERIOD, 5)
    }

    /// The settled rate is the mean of the last `settled` periods of each side of the change.
    pub(super) fn around(rates: &[f64], change: usize, settled: usize) -> Self {
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let last = |rates: &[f64]| mean(&rates[rates.len().saturating_sub(settled)..]);
        let (before, after) = rates.split_at(change.min(rates.len()));
        let first = after.first().copied().unwrap_or(0.0);
        Self { before: last(before), first, last: last(after) }
    }

    /// How much of another this is where it is least, before or at the end, in percent.
    fn least_part_of(&self, other: &Self) -> f64 {
        (self.before / other.before).min(self.last / other.last) * 100.0
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        let Self { before, first, last } = self;
        json!({ "before": tenths(*before), "first_after": tenths(*first), "last": tenths(*last) })
    }
}

pub(super) fn totals(outcome: &OneSidedReport) -> Vec<f64> {
    outcome.totals().map(kilo).collect()
}

fn first(outcome: &OneSidedReport) -> Vec<f64> {
    outcome.rates(0).map(kilo).collect()
}

/// Reads of the jobs beside the clients, in thousands per second. Clients' reads are not included.
fn besides(outcome: &OneSidedReport) -> Vec<f64> {
    let seconds = outcome.period.as_seconds();
    outcome.samples.iter().map(|sample| kilo(sample.background as f64 / seconds)).collect()
}

/// Reads of clients and jobs together, in thousands per second.
fn both(outcome: &OneSidedReport) -> Vec<f64> {
    totals(outcome).iter().zip(besides(outcome)).map(|(own, others)| own + others).collect()
}

/// Figures 16 and 18.
pub(super) fn throughput(
    context: &FigureContext,
    setup: &'static CapacitySetup,
) -> Result<FigureResult, Failure> {
    let runs = setup.runs.get(context)?;
    let mut claims: Vec<Claim> = BASES
        .map(|(base, name)| match setup.begins {
            true => throughput_falls(runs, base, name),
            false => throughput_rises(runs, base, name),
        })
        .into();
    for (base, name) in BASES {
        claims.extend([nothing_lost(runs, setup, base, name), follows(runs, setup, base, name)]);
    }
    Ok(part(runs, setup, claims, totals))
}

/// The jobs' part while all clients are backlogged, in percent: windows of 6 beside 64.
const TAKEN: f64 = 8.57;

fn throughput_falls(runs: &[HaechiRun], base: usize, name: &str) -> Claim {
    let paper = at(runs, base, PAPER);
    let (course, jobs) = (Course::of(&totals(paper)), Course::of(&besides(paper)));
    let fallen = course.before - course.last;
    let part = fallen / course.before * 100.0;
    of(runs, "16", base, &[PAPER]).claim(
        format!(
            "when congestion begins, Haechi's throughput falls by what the others take ({name})"
        ),
        json!({
            "kilo_per_second": course.to_json(),
            "others_kilo_per_second": tenths(jobs.last),
            "fallen_percent": tenths(part),
        }),
        [
            near("by", "%", TAKEN, 0.5, part),
            near("of what the others have", "times", 1.0, 0.1, fallen / jobs.last),
        ],
    )
}

fn throughput_rises(runs: &[HaechiRun], base: usize, name: &str) -> Claim {
    let course = Course::of(&totals(at(runs, base, PAPER)));
    let Course { before, first, last } = course;
    of(runs, "18", base, &[PAPER])
        .claim(
            format!(
                "when congestion ends, Haechi's throughput rises step by step to what it was \
                 ({name})"
            ),
            json!({ "kilo_per_second": course.to_json() }),
            [
                rises(
                    1.01,
                    "before, in the first period after, at last",
                    "K/s",
                    [before, first, last],
                ),
                near("at last", "K/s", 1570.0, 16.0, last),
            ],
        )
        .because(
            "it rises at once, as the text's pool gives out again what was taken, so its estimate \
             bounds nothing",
        )
}

/// Clients and jobs together use the link as they do without control.
fn nothing_lost(runs: &[HaechiRun], setup: &CapacitySetup, base: usize, name: &str) -> Claim {
    let [bare, sound] = [BARE, SOUND].map(|mode| Course::of(&both(at(runs, base, mode))));
    let used = sound.least_part_of(&bare);
    let claim = of(runs, setup.figures[0], base, &[BARE, SOUND]).claim(
        format!("with sound rules nothing of the link is lost, jobs included ({name})"),
        json!({
            "clients_and_jobs_kilo_per_second": sound.to_json(),
            "percent_of_bare": tenths(used),
            "estimates_kilo": estimates(at(runs, base, SOUND)),
        }),
        [at_least("of it", "%", USED, used)],
    );
    claim.ours()
}

/// Judges the clients' own reads against their reads without control.
fn follows(runs: &[HaechiRun], setup: &CapacitySetup, base: usize, name: &str) -> Claim {
    let [bare, sound] = [BARE, SOUND].map(|mode| Course::of(&totals(at(runs, base, mode))));
    let (with, without) = match setup.begins {
        true => (sound.last / bare.last, sound.before / bare.before),
        false => (sound.before / bare.before, sound.last / bare.last),
    };
    let [with, without] = [with, without].map(|part| part * 100.0);
    // Paced clients keep less under way, so the jobs, which nobody controls, get more.
    let least = if base == UNIFORM { USED } else { USED_BESIDE_JOBS };
    let claim = of(runs, setup.figures[0], base, &[BARE, SOUND]).claim(
        format!(
            "clients alone read nearly all that they read without control, beside the jobs and \
             without ({name})"
        ),
        json!({
            "clients_kilo_per_second": sound.to_json(),
            "percent_of_bare_beside_jobs": tenths(with),
            "percent_of_bare_without_jobs": tenths(without),
        }),
        [at_least("without", "%", USED, without), at_least("beside", "%", least, with)],
    );
    claim.ours()
}

/// Clients that are promised different parts read so much of it beside jobs.
const USED_BESIDE_JOBS: f64 = 95.0;

/// Ω of each period, in thousands.
pub(super) fn estimates(outcome: &OneSidedReport) -> Vec<f64> {
    let capacity = |event: &MonitorEvent| match event {
        MonitorEvent::Over(summary) => Some(tenths(summary.capacity as f64 / 1e3)),
        _ => None,
    };
    outcome.events.iter().filter_map(capacity).collect()
}

/// Figures 17 and 19: C1, who is promised most.
pub(super) fn first_client(
    context: &FigureContext,
    setup: &'static CapacitySetup,
) -> Result<FigureResult, Failure> {
    let runs = setup.runs.get(context)?;
    let figure = setup.figures[1];
    let mut claims = Vec::new();
    for (base, name) in BASES {
        let outcome = at(runs, base, PAPER);
        let course = Course::of(&first(outcome));
        let promised = kilo(outcome.promised[0] as f64);
        let has = |what, rate| at_least(what, "K/s", tenths(promised * KEPT), rate);
        let Course { before, first, last } = course;
        let always = || at_most("missing in a period", "%", SKEW, outcome.missing_percent(0));
        let (text, checks) = match (setup.begins, base) {
            (true, UNIFORM) => (
                "C1 gets less than before, and still its reservation",
                vec![falls(1.0, "C1", "K/s", [before, last]), has("at last", last)],
            ),
            (true, _) => (
                "C1 misses its reservation when congestion begins, and has it again after a few \
                 periods",
                vec![
                    has("before", before),
                    at_most("first", "K/s", tenths(promised), first),
                    has("at last", last),
                ],
            ),
            (false, UNIFORM) => (
                "C1 has its reservation at all times, and more when congestion ends",
                vec![always(), rises(1.02, "C1", "K/s", [before, last])],
            ),
            (false, _) => (
                "C1 has its reservation at all times, and no more when congestion ends",
                vec![always(), near("after beside before", "times", 1.0, 0.02, last / before)],
            ),
        };
        let claim = of(runs, figure, base, &[PAPER]).claim(
            format!("{text} ({name})"),
            json!({ "promised_kilo": tenths(promised), "kilo_per_second": course.to_json() }),
            checks,
        );
        claims.push(claim.because(DECAYS));
    }
    claims.extend(BASES.map(|(base, name)| keeps_up(runs, setup, base, name)));
    Ok(part(runs, setup, claims, first))
}

/// So much of a promise has who keeps it.
const KEPT: f64 = 1.0 - SKEW / 100.0;

/// A reservation is missed for the last time at most so many periods after a change.
pub(super) const AGAIN: f64 = 7.0;

/// The last period after a change in which a client misses its reservation, counted from the
/// change.
pub(super) fn last_miss(outcome: &OneSidedReport, change_period: usize) -> Option<usize> {
    let misses = |sample: &tidegate_sim::one_sided::Sample| {
        let pairs = sample.completed.iter().zip(&outcome.promised);
        pairs
            .into_iter()
            .any(|(done, promised)| (*done as f64) < *promised as f64 * (1.0 - SKEW / 100.0))
    };
    let late = outcome.samples.iter().skip(change_period).rposition(misses);
    late.map(|index| index + 1)
}

fn keeps_up(runs: &[HaechiRun], setup: &CapacitySetup, base: usize, name: &str) -> Claim {
    let outcome = at(runs, base, SOUND);
    let last = last_miss(outcome, CHANGE_PERIOD);
    let course = Course::of(&first(outcome));
    let claim = of(runs, setup.figures[1], base, &[SOUND]).claim(
        format!("with sound rules all soon have their reservations after the change ({name})"),
        json!({ "missed_last_after_periods": last, "c1_kilo_per_second": course.to_json() }),
        [at_most("missed last in period", "", AGAIN, last.unwrap_or(0) as f64)],
    );
    claim.ours()
}

/// The courses of all controls as a table and a picture.
fn part(
    runs: &[HaechiRun],
    setup: &CapacitySetup,
    claims: Vec<Claim>,
    rates: fn(&OneSidedReport) -> Vec<f64>,
) -> FigureResult {
    let mut table = Table::new().left("K/s").right("BEFORE").right("FIRST AFTER").right("LAST");
    let mut panels = Vec::new();
    for (base, name) in BASES {
        let mut series = Vec::new();
        for (mode, (_, control)) in MODES.iter().enumerate() {
            let rates = rates(at(runs, base, mode));
            let Course { before, first, last } = Course::of(&rates);
            let cells = [before, first, last].map(|rate| Cell::from(formatted(rate)));
            let mut row: Vec<Cell> = vec![format!("{name}, {control}").into()];
            row.extend(cells);
            table.row(row);
            let points = (1u32..).zip(&rates).map(|(period, rate)| (f64::from(period), *rate));
            series.push(Series::line(*control, points.collect()));
        }
        panels.push(Panel::new(name, ["seconds", "thousand reads per second"], series));
    }
    FigureResult { claims, table, picture: draw(setup.title, &panels) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_what_it_settles_to() {
        let rates: Vec<f64> =
            (0..30).map(|at| if at < 15 { 10.0 } else { f64::from(at) }).collect();
        let Course { before, first, last } = Course::of(&rates);
        assert_eq!((before, first, last), (10.0, 15.0, 27.0));
    }
}
