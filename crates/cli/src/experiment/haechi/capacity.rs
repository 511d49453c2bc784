//! Figures 16 to 19: jobs beside the clients begin or end after half of the time, and take a part
//! of the link that no token stands for.

use serde_json::json;
use tidegate_model::{Iops, Span};
use tidegate_proto::haechi::Event;
use tidegate_sim::one_sided::{Change, Outcome, Scenario};

use super::plot::{Panel, Series, draw};
use super::{BARE, Desk, FIGURE_16A, FIGURE_16B, FIGURE_18A, FIGURE_18B, Kept, MODES, PAPER, Part};
use super::{SKEW, SOUND, Shown, all, at, holds_if, kilo, of, predicted, simulate, tenths, told};
use crate::experiment::verdict::{Claim, Judged};
use crate::failure::Failure;
use crate::table::{Cell, Table};

/// When jobs begin or end, in periods.
const TURN: usize = 15;

const UNIFORM: usize = 0;
const ZIPF: usize = 1;
const BASES: [(usize, &str); 2] = [(UNIFORM, "uniform"), (ZIPF, "Zipf")];

/// One of the two setups: its runs, uniform and then Zipf, and its two figures.
pub(super) struct Setup {
    runs: Kept,
    figures: [&'static str; 2],
    title: &'static str,
    begins: bool,
}

pub(super) static BEGINS: Setup = Setup {
    runs: Kept::new(|| super::under_all([FIGURE_16A, FIGURE_16B], |_| ())),
    figures: ["16", "17"],
    title: "Congestion begins after 15 s",
    begins: true,
};

pub(super) static ENDS: Setup = Setup {
    runs: Kept::new(|| super::under_all([FIGURE_18A, FIGURE_18B], |_| ())),
    figures: ["18", "19"],
    title: "Congestion ends after 15 s",
    begins: false,
};

/// Some rates before and after the turn: means, and the first and last of those after.
struct Course {
    before: f64,
    first: f64,
    last: f64,
}

impl Course {
    fn of(rates: &[f64]) -> Self {
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let (before, after) = rates.split_at(TURN);
        // What it settles to: the last five of each.
        let last = |rates: &[f64]| mean(&rates[rates.len() - 5..]);
        Self { before: last(before), first: after[0], last: last(after) }
    }

    fn told(&self) -> serde_json::Value {
        let Self { before, first, last } = self;
        json!({ "before": tenths(*before), "first_after": tenths(*first), "last": tenths(*last) })
    }
}

fn totals(outcome: &Outcome) -> Vec<f64> {
    outcome.totals().map(kilo).collect()
}

fn first(outcome: &Outcome) -> Vec<f64> {
    outcome.rates(0).map(kilo).collect()
}

/// Figures 16 and 18.
pub(super) fn throughput(desk: &Desk, setup: &'static Setup) -> Result<Part, Failure> {
    let runs = setup.runs.get(desk)?;
    let figure = setup.figures[0];
    let mut claims: Vec<Claim> = BASES
        .map(|(base, name)| {
            let course = Course::of(&totals(at(runs, base, PAPER)));
            let (text, judged) = match setup.begins {
                true => falls(&course),
                false => rises(&course),
            };
            of(runs, figure, base, &[PAPER]).claim(
                format!("{text} ({name})"),
                json!({ "kilo_per_second": course.told() }),
                predicted(judged),
            )
        })
        .into();
    claims.extend(BASES.map(|(base, name)| follows(runs, setup, base, name)));
    if setup.begins {
        claims.extend(steps(desk)?);
    }
    Ok(part(runs, setup, claims, totals))
}

fn falls(course: &Course) -> (&'static str, Judged) {
    let part = 1.0 - course.last / course.before;
    let judged = holds_if((0.05..0.15).contains(&part), || {
        format!("it falls from {:.0} to {:.0} K/s", course.before, course.last)
    });
    ("when congestion begins, Haechi's throughput falls by what the others take", judged)
}

fn rises(course: &Course) -> (&'static str, Judged) {
    let judged = all([
        holds_if(course.last > course.before * 1.05, || {
            format!("it rises from {:.0} to {:.0} K/s only", course.before, course.last)
        }),
        holds_if(course.first < course.last * 0.97, || {
            "it rises at once: the text's pool gives out again what was taken, so its estimate \
             bounds nothing"
                .into()
        }),
    ]);
    ("when congestion ends, Haechi's throughput rises step by step to what it was", judged)
}

/// With sound rules the data node is as busy as without control.
fn follows(runs: &[Shown], setup: &Setup, base: usize, name: &str) -> Claim {
    // With what the jobs have: the more Haechi's clients hold back, the more these get.
    let all_of = |mode| {
        let samples = at(runs, base, mode).samples.iter();
        let both = samples.map(|s| s.completed.iter().sum::<u64>() + s.background);
        both.map(|count| kilo(count as f64)).collect::<Vec<f64>>()
    };
    let [bare, sound] = [BARE, SOUND].map(|mode| Course::of(&all_of(mode)));
    let own = Course::of(&totals(at(runs, base, SOUND)));
    let used = sound.last.min(sound.before) / bare.last.min(bare.before) * 100.0;
    let estimates = estimates(at(runs, base, SOUND));
    of(runs, setup.figures[0], base, &[BARE, SOUND]).claim(
        format!("with sound rules nothing of the link is lost before or after ({name}, ours)"),
        json!({
            "link_kilo_per_second": sound.told(),
            "clients_kilo_per_second": own.told(),
            "link_percent_of_bare": tenths(used),
            "estimates_kilo": estimates,
        }),
        holds_if(used >= 99.0, || format!("only {used:.1} % of it are used")),
    )
}

/// Ω of each period, in thousands.
fn estimates(outcome: &Outcome) -> Vec<f64> {
    let capacity = |event: &Event| match event {
        Event::Over(summary) => Some(tenths(summary.capacity as f64 / 1e3)),
        _ => None,
    };
    outcome.events.iter().filter_map(capacity).collect()
}

/// Figures 17 and 19: C1, who is promised most.
pub(super) fn first_client(desk: &Desk, setup: &'static Setup) -> Result<Part, Failure> {
    let runs = setup.runs.get(desk)?;
    let figure = setup.figures[1];
    let mut claims = Vec::new();
    for (base, name) in BASES {
        let outcome = at(runs, base, PAPER);
        let course = Course::of(&first(outcome));
        let promised = kilo(outcome.promised[0] as f64);
        let (text, judged) = match (setup.begins, base) {
            (true, UNIFORM) => (
                "C1 gets less than before, and still its reservation",
                all([
                    holds_if(course.last < course.before, || "it gets no less".into()),
                    has(course.last, promised),
                ]),
            ),
            (true, _) => (
                "C1 misses its reservation when congestion begins, and has it again after a few \
                 periods",
                all([
                    holds_if(course.first < promised, || "it does not miss it".into()),
                    has(course.last, promised),
                ]),
            ),
            (false, UNIFORM) => (
                "C1 has its reservation at all times, and more when congestion ends",
                all([
                    always(outcome),
                    holds_if(course.last > course.before * 1.02, || "it gets no more".into()),
                ]),
            ),
            (false, _) => (
                "C1 has its reservation at all times, and no more when congestion ends",
                all([
                    always(outcome),
                    holds_if(course.last < promised * 1.05, || format!("{:.1} K/s", course.last)),
                ]),
            ),
        };
        claims.push(of(runs, figure, base, &[PAPER]).claim(
            format!("{text} ({name})"),
            json!({ "promised_kilo": tenths(promised), "kilo_per_second": course.told() }),
            predicted(judged),
        ));
    }
    claims.extend(BASES.map(|(base, name)| keeps_up(runs, setup, base, name)));
    Ok(part(runs, setup, claims, first))
}

fn has(rate: f64, promised: f64) -> Judged {
    holds_if(rate >= promised * (1.0 - SKEW / 100.0), || {
        format!("it has {rate:.1} K/s of {promised:.1}")
    })
}

fn always(outcome: &Outcome) -> Judged {
    let missing = outcome.missing_percent(0);
    holds_if(missing <= SKEW, || format!("it misses {missing:.1} % in the worst period"))
}

/// So many periods after a change all have what they are promised again.
const AGAIN: usize = 8;

/// The last period after the turn in which anybody misses its reservation, counted from the turn.
fn last_miss(outcome: &Outcome) -> Option<usize> {
    let misses = |sample: &tidegate_sim::one_sided::Sample| {
        let pairs = sample.completed.iter().zip(&outcome.promised);
        pairs
            .into_iter()
            .any(|(done, promised)| (*done as f64) < *promised as f64 * (1.0 - SKEW / 100.0))
    };
    let late = outcome.samples.iter().skip(TURN).rposition(misses);
    late.map(|place| place + 1)
}

fn keeps_up(runs: &[Shown], setup: &Setup, base: usize, name: &str) -> Claim {
    let outcome = at(runs, base, SOUND);
    let last = last_miss(outcome);
    let course = Course::of(&first(outcome));
    of(runs, setup.figures[1], base, &[SOUND]).claim(
        format!(
            "with sound rules all have their reservations at most {AGAIN} periods after the \
             change ({name}, ours)"
        ),
        json!({ "missed_last_after_periods": last, "c1_kilo_per_second": course.told() }),
        holds_if(last.unwrap_or(0) < AGAIN, || {
            format!("somebody misses in period {} after it", last.unwrap_or(0))
        }),
    )
}

/// What the data node can do changes at the turn, to these parts of a thousand.
const STEPS: [u64; 4] = [700, 850, 1100, 1300];

/// The data node itself becomes slower or faster, and takes no part of it back.
fn steps(desk: &Desk) -> Result<Vec<Claim>, Failure> {
    let stepped = |permille: u64| {
        let mut scenario = super::scenario(FIGURE_16B)?;
        scenario.background = None;
        let node = Iops(scenario.cards.node.0 * permille / 1_000);
        scenario.change = vec![Change { at: Span(scenario.period.0 * TURN as u64), node }];
        for clients in &mut scenario.client {
            // Still feasible with the least: 60 %.
            if let Some(reservation) = &mut clients.reservation {
                reservation.0 = reservation.0 * 60 / 80;
            }
        }
        Ok(scenario)
    };
    let scenarios: Result<Vec<Scenario>, Failure> = STEPS.into_iter().map(stepped).collect();
    let shown = simulate(desk, scenarios?, tidegate_sim::one_sided::run)?;
    Ok(STEPS.iter().zip(&shown).map(|(permille, shown)| settles(*permille, shown)).collect())
}

/// So many periods after a change throughput is what the data node can do.
const SETTLED: usize = 12;

/// Within so many percent.
const CLOSE: f64 = 1.0;

fn settles(permille: u64, shown: &Shown) -> Claim {
    let Shown { outcome, .. } = shown;
    let node = 1570.0 * permille as f64 / 1e3;
    let rates = totals(outcome);
    let off = |rate: &f64| (rate / node - 1.0).abs() * 100.0;
    let settled = rates[TURN + SETTLED..].iter().map(off).fold(0.0, f64::max);
    let last = last_miss(outcome);
    super::source("16", core::slice::from_ref(shown)).claim(
        format!(
            "when the data node's capacity becomes {:.0} %, with sound rules all promises are kept \
             again within {AGAIN} periods, and all of it is used within {SETTLED} (ours)",
            permille as f64 / 10.0
        ),
        json!({
            "missed_last_after_periods": last,
            "off_capacity_then_percent": tenths(settled),
            "estimates_kilo": estimates(outcome),
        }),
        all([
            holds_if(last.unwrap_or(0) < AGAIN, || {
                format!("somebody misses in period {} after it", last.unwrap_or(0))
            }),
            holds_if(settled <= CLOSE, || format!("throughput is {settled:.1} % off")),
        ]),
    )
}

/// The courses of all controls as a table and a picture.
fn part(
    runs: &[Shown],
    setup: &Setup,
    claims: Vec<Claim>,
    rates: fn(&Outcome) -> Vec<f64>,
) -> Part {
    let mut table = Table::new().left("K/s").right("BEFORE").right("FIRST AFTER").right("LAST");
    let mut panels = Vec::new();
    for (base, name) in BASES {
        let mut series = Vec::new();
        for (mode, (_, control)) in MODES.iter().enumerate() {
            let rates = rates(at(runs, base, mode));
            let Course { before, first, last } = Course::of(&rates);
            let cells = [before, first, last].map(|rate| Cell::from(told(rate)));
            let mut row: Vec<Cell> = vec![format!("{name}, {control}").into()];
            row.extend(cells);
            table.row(row);
            let points = (1u32..).zip(&rates).map(|(period, rate)| (f64::from(period), *rate));
            series.push(Series::line(*control, points.collect()));
        }
        panels.push(Panel {
            title: name.into(),
            x: "seconds",
            y: "thousand reads per second",
            series,
            levels: Vec::new(),
        });
    }
    Part { claims, table, picture: draw(setup.title, &panels) }
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
