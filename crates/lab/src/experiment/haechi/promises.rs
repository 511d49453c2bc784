//! Haechi paper, figures 9 and 12: reservations of nine tenths of the data node, equal and by
//! Zipf's distribution, and then of less.

use serde_json::json;
use tidegate_sim::one_sided::{Control, Scenario};

use super::plot::{Panel, Series, draw};
use super::{
    BARE, Comparison, FIGURE_9A, FIGURE_9B, FigureContext, FigureResult, Kept, MODES, NEAR, Number,
    PAPER, SOUND,
};
use super::{HaechiRun, USED, at, beside, by_client, keeps, kept, mean_of};
use super::{formatted, total, under_all};
use super::{means, missing, named, of, ours, part_of_bare, scenario, table, tenths, thousandths};
use crate::experiment::verdict::{Claim, at_least, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// 9a, then 9b, each under every control.
static RUNS: Kept = Kept::new(|| under_all([FIGURE_9A, FIGURE_9B], |_| ()));

const UNIFORM: usize = 0;
const ZIPF: usize = 1;

/// C1 and C2, who are promised most.
const FIRST: core::ops::Range<usize> = 0..2;

/// Figure 9.
pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let lines = |label: &str, base| {
        let promised = at(runs, base, PAPER).promised.iter().map(|count| *count as f64 / 1e3);
        let mut lines = vec![(format!("{label} promised"), promised.collect())];
        lines.extend(named(label, |mode| means(at(runs, base, mode))));
        lines
    };
    let [a, b] = [lines("9a", UNIFORM), lines("9b", ZIPF)];
    let panels = [by_client("(a) uniform", &a), by_client("(b) Zipf", &b)];
    let claims = vec![
        uniform(runs),
        ours(runs, UNIFORM, "9a", "with equal reservations all have them in each period"),
        alone(runs),
        zipf(runs),
        ours(runs, ZIPF, "9b", "by Zipf's distribution all have their reservations in each period"),
    ];
    let table = table(&a.into_iter().chain(b).collect::<Vec<_>>());
    Ok(FigureResult { claims, table, picture: draw("Nine tenths are promised", &panels) })
}

/// The throughput that Haechi costs, in percent.
fn overhead(runs: &[HaechiRun]) -> f64 {
    100.0 - part_of_bare(runs, UNIFORM, PAPER)
}

fn uniform(runs: &[HaechiRun]) -> Claim {
    let lost = overhead(runs);
    let (missing, has_all) = kept(at(runs, UNIFORM, PAPER));
    of(runs, "9a", UNIFORM, &[BARE, PAPER]).claim(
        "with equal reservations all clients have them in each period, and Haechi costs nearly \
         nothing of the throughput",
        json!({ "throughput_lost_percent": thousandths(lost), "missing_percent": missing }),
        [has_all, at_most("lost", "%", 0.1, lost)],
    )
}

/// The promise of C1 and C2 in 30 s, and the operations they complete without control, in
/// thousands.
fn first_two(runs: &[HaechiRun]) -> [Number; 2] {
    let promised = at(runs, ZIPF, PAPER).promised[0] as f64 * 30.0 / 1e3;
    let done = mean_of(at(runs, ZIPF, BARE), FIRST) * 30.0;
    let number =
        |what, paper, model| Number { unit: "K", ..Number::rate("9b", what, paper, model) };
    [
        number("C1 and C2 promised, 30 s", 7080.0, promised).given(),
        number("C1 and C2 without control, 30 s", 4742.0, done),
    ]
}

fn alone(runs: &[HaechiRun]) -> Claim {
    let (measured, checks) = beside(&first_two(runs), NEAR);
    of(runs, "9b", ZIPF, &[BARE]).claim(
        "without control C1 and C2 complete only a part of what they are promised by Zipf's \
         distribution",
        measured,
        checks,
    )
}

/// Why the text does not keep what it promises in bursts.
pub(super) const DECAYS: &str = "the text takes the tokens of those whom others slow down, so in \
                                 bursts all have nearly the same, as without control";

fn zipf(runs: &[HaechiRun]) -> Claim {
    let paper = at(runs, ZIPF, PAPER);
    of(runs, "9b", ZIPF, &[PAPER])
        .claim(
            "with Haechi all clients have at least their reservations by Zipf's distribution",
            json!({
                "missing_percent": kept(paper).0,
                "throughput_kilo_per_second": tenths(total(paper)),
            }),
            [at_most("clients that miss theirs", "", 0.0, missing(paper).len() as f64)],
        )
        .because(DECAYS)
}

/// Parts of the data node that are promised, in percent.
const LEVELS: [u64; 5] = [50, 60, 70, 80, 90];

/// Figure 12's runs: level by level, uniform and then Zipf, each under every control.
static BY_LEVEL: Kept = Kept::new(|| {
    let mut scenarios = Vec::new();
    for level in LEVELS {
        scenarios.extend(under_all([FIGURE_9A, FIGURE_9B], |scenario| promise(scenario, level))?);
    }
    Ok(scenarios)
});

/// Promises so many percent of the data node, where the files promise 90. Clients want all they can
/// get.
fn promise(scenario: &mut Scenario, level: u64) {
    scenario.periods = 4;
    for clients in &mut scenario.client {
        clients.demand = None;
        if let Some(reservation) = &mut clients.reservation {
            reservation.0 = reservation.0 * level / 90;
        }
    }
}

/// Figure 12.
pub(super) fn levels(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (runs, kept) = (BY_LEVEL.get(context)?, UNPACED.get(context)?);
    let total_of = |level: usize, base: usize, mode| total(at(runs, 2 * level + base, mode));
    let mut table = Table::new().left("THROUGHPUT, K/s").right("50 %").right("60 %");
    table = table.right("70 %").right("80 %").right("90 %");
    let mut panels = Vec::new();
    for (base, name) in [(UNIFORM, "uniform"), (ZIPF, "Zipf")] {
        let mut series = Vec::new();
        for (mode, (_, control)) in MODES.iter().enumerate() {
            let rates: Vec<f64> = (0..LEVELS.len()).map(|at| total_of(at, base, mode)).collect();
            let mut row: Vec<Cell> = vec![format!("{name}, {control}").into()];
            row.extend(rates.iter().map(|rate| Cell::from(formatted(*rate))));
            table.row(row);
            let points = LEVELS.iter().zip(&rates).map(|(level, rate)| (*level as f64, *rate));
            series.push(Series::line(*control, points.collect()));
        }
        if base == ZIPF {
            let rates = kept.iter().map(|shown| total(&shown.outcome));
            let mut row: Vec<Cell> = vec!["Zipf, sound without pacing".into()];
            row.extend(rates.clone().map(|rate| Cell::from(formatted(rate))));
            table.row(row);
            let points = LEVELS.iter().zip(rates).map(|(level, rate)| (*level as f64, rate));
            series.push(Series::line("sound without pacing", points.collect()));
        }
        panels.push(Panel::new(name, ["percent promised", "thousand reads per second"], series));
    }
    let claims = vec![met(runs), falls(runs), sound(runs), unpaced(kept)];
    Ok(FigureResult { claims, table, picture: draw("By how much is promised", &panels) })
}

/// Levels and distributions at which some client misses its reservation.
fn missed(runs: &[HaechiRun], mode: usize) -> Vec<String> {
    let all = (0..LEVELS.len()).flat_map(|level| [(level, UNIFORM), (level, ZIPF)]);
    let misses = all.filter(|(level, base)| !keeps(at(runs, 2 * level + base, mode)));
    let name = |(level, base): (usize, usize)| {
        format!("{} % {}", LEVELS[level], if base == UNIFORM { "uniform" } else { "Zipf" })
    };
    misses.map(name).collect()
}

fn met(runs: &[HaechiRun]) -> Claim {
    let missed = missed(runs, PAPER);
    let first = |level: usize| mean_of(at(runs, 2 * level + ZIPF, PAPER), FIRST);
    let rates: Vec<f64> = (0..LEVELS.len()).map(first).map(tenths).collect();
    let count = missed.len() as f64;
    super::source("12", runs)
        .claim(
            "whatever part of the data node is promised, from 50 to 90 %, all clients have their \
             reservations in each period, with both distributions",
            json!({
                "missed_at": missed,
                "levels_percent": LEVELS,
                "c1_and_c2_kilo_per_second_by_zipf": rates,
            }),
            [at_most("levels at which some client misses its own", "", 0.0, count)],
        )
        .because(DECAYS)
}

fn falls(runs: &[HaechiRun]) -> Claim {
    let rates = |base| (0..LEVELS.len()).map(move |level| total(at(runs, 2 * level + base, PAPER)));
    let [uniform, zipf]: [Vec<f64>; 2] = [UNIFORM, ZIPF].map(|base| rates(base).collect());
    let apart: Vec<f64> = uniform.iter().zip(&zipf).map(|(u, z)| (1.0 - z / u) * 100.0).collect();
    let (first, last) = (apart[0], apart[LEVELS.len() - 1]);
    super::source("12", runs)
        .claim(
            "with Zipf's distribution throughput falls when much is promised, and comes up to that \
             with equal reservations when less is",
            json!({
                "lost_at_50_percent": thousandths(first),
                "lost_at_90_percent": thousandths(last),
            }),
            [at_most("lost at 50 %", "%", 1.0, first), at_least("at 90 %", "%", 1.0, last)],
        )
        .because(
            "by the text's rules those who are promised little never wait for a token, so there \
             are always enough clients to fill the link",
        )
}

fn sound(runs: &[HaechiRun]) -> Claim {
    let missed = missed(runs, SOUND);
    let used = |index: usize| part_of_bare(runs, index, SOUND);
    let least = (0..2 * LEVELS.len()).map(used).fold(f64::MAX, f64::min);
    let count = missed.len() as f64;
    let claim = super::source("12", runs).claim(
        "with sound rules all have them at every level, and nearly all that clients read without \
         control",
        json!({ "missed_at": missed, "throughput_at_least_percent": thousandths(least) }),
        [
            at_most("levels at which some client misses its own", "", 0.0, count),
            at_least("of that", "%", USED, least),
        ],
    );
    claim.ours()
}

/// Zipf's distribution at each level, with sound rules that do not pace.
static UNPACED: Kept = Kept::new(|| {
    let at_level = |level| {
        let mut scenario = scenario(FIGURE_9B)?;
        promise(&mut scenario, level);
        scenario.control = Control::Unpaced;
        Ok(scenario)
    };
    LEVELS.into_iter().map(at_level).collect()
});

fn unpaced(runs: &[HaechiRun]) -> Claim {
    let totals: Vec<f64> = runs.iter().map(|shown| total(&shown.outcome)).collect();
    let missed = runs.iter().filter(|shown| !keeps(&shown.outcome)).count();
    let [first, last] = [totals[0], totals[LEVELS.len() - 1]];
    let claim = super::source("12", runs).claim(
        "sound rules that do not pace show both that all promises are kept and that throughput \
         falls when much is promised by Zipf's distribution",
        json!({
            "levels_percent": LEVELS,
            "throughput_kilo_per_second": totals.iter().map(|one| tenths(*one)).collect::<Vec<_>>(),
            "levels_missed": missed,
        }),
        [
            at_most("levels at which some client misses its own", "", 0.0, missed as f64),
            at_most("at 90 % beside 50 %", "times", 0.97, last / first),
        ],
    );
    claim.ours()
}

/// The paper's numbers of figure 9, beside ours.
pub(super) fn numbers(context: &FigureContext) -> Result<Vec<Number>, Failure> {
    let runs = RUNS.get(context)?;
    let cost = Number::part("9a", "throughput lost, less than", 0.1, overhead(runs));
    let numbers = first_two(runs).into_iter();
    Ok(numbers.chain([Number { kind: Comparison::Bound, ..cost }]).collect())
}
