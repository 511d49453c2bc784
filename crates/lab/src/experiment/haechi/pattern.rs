//! Haechi paper, figures 13 to 15: reservations with a spike, in bursts and at a constant rate.

use serde_json::{Value, json};
use tidegate_sim::one_sided::OneSidedReport;

use super::plot::{Panel, Series, draw};
use super::{
    BARE, FIGURE_13A, FIGURE_13B, FigureContext, FigureResult, HaechiRun, Kept, MODES, NEAR,
    Number, PAPER, SOUND,
};
use super::{USED, at, beside, by_client, kept, mean_of, means, missing, named, of};
use super::{formatted, ours, part_of_bare, table, tenths, total};
use crate::experiment::verdict::{Check, Claim, at_least, at_most, falls, near, order_by};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// Bursts, then a constant rate, each under every control.
static RUNS: Kept = Kept::new(|| super::under_all([FIGURE_13A, FIGURE_13B], |_| ()));

const BURST: usize = 0;
const CONSTANT: usize = 1;
const BASES: [(usize, &str); 2] = [(BURST, "burst"), (CONSTANT, "constant rate")];

/// Those who are promised more, C1 to C3, in thousands per second.
const SPIKE: core::ops::Range<usize> = 0..3;
const PROMISED: f64 = 285.0;

/// Figure 13.
pub(super) fn clients(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("burst", &lines[0]), by_client("constant rate", &lines[1])];
    let [burst, constant] = [BURST, CONSTANT].map(|base| mean_of(at(runs, base, PAPER), SPIKE));
    let [lost, none_lost] = [BURST, CONSTANT].map(|base| kept(at(runs, base, PAPER)));
    let claims = vec![
        of(runs, "13", BURST, &[PAPER]).claim(
            "with bursts C1 to C3 miss their reservations of 285,000",
            json!({ "kilo_per_second": tenths(burst), "missing_percent": lost.0 }),
            [
                at_most("C1 to C3", "K/s", PROMISED, burst),
                near(
                    "clients that miss theirs",
                    "",
                    3.0,
                    0.0,
                    missing(at(runs, BURST, PAPER)).len() as f64,
                ),
            ],
        ),
        of(runs, "13", CONSTANT, &[PAPER]).claim(
            "at a constant rate they have more than that, and all others have theirs",
            json!({
                "kilo_per_second": tenths(constant),
                "missing_percent": none_lost.0,
            }),
            [none_lost.1, at_least("C1 to C3", "K/s", PROMISED, constant)],
        ),
        ours(runs, BURST, "13", "also with bursts all have their reservations"),
        ours(runs, CONSTANT, "13", "at a constant rate all have their reservations"),
    ];
    let table = table(&lines.concat());
    Ok(FigureResult { claims, table, picture: draw("Reservations with a spike", &panels) })
}

/// Throughput lost of 1,570 thousand reads per second.
fn lost(runs: &[HaechiRun]) -> [Number; 2] {
    let lost = |base| (1.0 - total(at(runs, base, PAPER)) / 1570.0) * 100.0;
    [
        Number::part("14", "lost with bursts", 12.9, lost(BURST)),
        Number::part("14", "lost at a constant rate", 0.7, lost(CONSTANT)),
    ]
}

/// Figure 14.
pub(super) fn totals(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let mut table = Table::new().left("THROUGHPUT, K/s");
    for (_, control) in MODES {
        table = table.right(control);
    }
    for (base, name) in BASES {
        let mut row: Vec<Cell> = vec![name.into()];
        row.extend((0..MODES.len()).map(|mode| Cell::from(formatted(total(at(runs, base, mode))))));
        table.row(row);
    }
    let (measured, checks) = beside(&lost(runs), NEAR);
    let at_constant_rate = part_of_bare(runs, CONSTANT, SOUND);
    let [bare, sound] = [BARE, SOUND].map(|mode| total(at(runs, BURST, mode)));
    let claims = vec![
        of(runs, "14", BURST, &[PAPER]).claim(
            "the data node's throughput falls much with bursts and little at a constant rate",
            measured,
            checks,
        ),
        of(runs, "14", BURST, &[BARE, SOUND]).claim(
            "with sound rules bursts cost less than without control, because what is reserved is \
             paced",
            json!({ "bare_kilo_per_second": tenths(bare), "sound_kilo_per_second": tenths(sound) }),
            [order_by(1.05, "", "K/s", &[("bare", bare), ("sound", sound)])],
        )
        .ours(),
        of(runs, "14", CONSTANT, &[BARE, SOUND]).claim(
            "with sound rules a constant rate costs nothing either: at least 99 % of what is read \
             without control",
            json!({ "percent_of_bare": tenths(at_constant_rate) }),
            [at_least("of that", "%", USED, at_constant_rate)],
        )
        .ours(),
    ];
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("burst", &lines[0]), by_client("constant rate", &lines[1])];
    Ok(FigureResult { claims, table, picture: draw("What bursts cost", &panels) })
}

/// Latencies of all clients together, in microseconds.
struct Latencies {
    mean: f64,
    p99: f64,
    p999: f64,
}

impl Latencies {
    fn of(outcome: &OneSidedReport) -> Self {
        let mut all = outcome.latency.iter().map(|latency| &latency.begun);
        let mut sum = all.next().cloned();
        if let Some(sum) = &mut sum {
            // All have the same bounds.
            all.for_each(|one| sum.add(one).expect("the bounds are the same"));
        }
        let quantile = |q| sum.as_ref().map_or(0.0, |sum| sum.value_at_quantile(q) as f64 / 1e3);
        let mean = sum.as_ref().map_or(0.0, |sum| sum.mean() / 1e3);
        Self { mean, p99: quantile(0.99), p999: quantile(0.999) }
    }

    fn to_json(&self) -> Value {
        let Self { mean, p99, p999 } = self;
        json!({ "mean_us": tenths(*mean), "p99_us": tenths(*p99), "p99.9_us": tenths(*p999) })
    }

    /// The mean and the tails are significantly lower than those of another.
    fn below(&self, other: &Self) -> [Check; 3] {
        let pairs = [
            ("mean", other.mean, self.mean),
            ("99 %", other.p99, self.p99),
            ("99.9 %", other.p999, self.p999),
        ];
        pairs.map(|(what, burst, constant)| falls(LOWER, what, "us", [burst, constant]))
    }

    /// The largest of the mean's and the tails' quotients.
    fn worst_part_of(&self, other: &Self) -> f64 {
        let parts = [self.mean / other.mean, self.p99 / other.p99, self.p999 / other.p999];
        parts.into_iter().fold(0.0, f64::max)
    }
}

/// The mean of how long reads took since they were due, in microseconds.
fn since_due(outcome: &OneSidedReport) -> f64 {
    let waited: u64 = outcome.latency.iter().map(|latency| latency.waited).sum();
    let count: u64 = outcome.latency.iter().map(|latency| latency.begun.len()).sum();
    Latencies::of(outcome).mean + waited as f64 / 1e3 / count.max(1) as f64
}

/// Significantly lower is lower by a sixth.
const LOWER: f64 = 1.2;

/// Figure 15.
pub(super) fn latencies(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let begun = |base, mode| Latencies::of(at(runs, base, mode));
    let mut table = Table::new().left("RUN").right("MEAN, us").right("99 %").right("99.9 %");
    table = table.right("SINCE DUE, MEAN, us");
    let mut panels = Vec::new();
    for (base, name) in BASES {
        let mut series = Vec::new();
        for (mode, (_, control)) in MODES.iter().enumerate() {
            let Latencies { mean, p99, p999 } = begun(base, mode);
            let since = since_due(at(runs, base, mode));
            let cells = [mean, p99, p999, since].map(|us| Cell::from(formatted(us)));
            let mut row: Vec<Cell> = vec![format!("{name}, {control}").into()];
            row.extend(cells);
            table.row(row);
            series.push(Series::line(*control, vec![(1.0, mean), (2.0, p99), (3.0, p999)]));
        }
        panels.push(Panel::new(name, ["mean, 99 %, 99.9 %", "us"], series));
    }
    let [burst, constant] = [BURST, CONSTANT].map(|base| begun(base, PAPER));
    let text = of(runs, "15", BURST, &[PAPER]).claim(
        "the mean, 99 % and 99.9 % of latencies are significantly lower at a constant rate than \
         with bursts",
        json!({ "burst": burst.to_json(), "constant_rate": constant.to_json() }),
        constant.below(&burst),
    );
    let claims = vec![text, of_sound(runs)];
    Ok(FigureResult { claims, table, picture: draw("How long reads take", &panels) })
}

fn of_sound(runs: &[HaechiRun]) -> Claim {
    let [bare, sound] = [BARE, SOUND].map(|mode| Latencies::of(at(runs, CONSTANT, mode)));
    let worst = sound.worst_part_of(&bare);
    of(runs, "15", CONSTANT, &[BARE, SOUND]).claim(
        "at a constant rate reads take no longer on average with sound rules than without control, \
         and the slowest at most two thirds as long again",
        json!({ "bare": bare.to_json(), "sound": sound.to_json() }),
        [
            at_most("on average", "times as long", 1.0, sound.mean / bare.mean),
            at_most("at the most", "times as long", 1.667, worst),
        ],
    )
    .ours()
}

/// The paper's numbers of figure 14, beside ours.
pub(super) fn numbers(context: &FigureContext) -> Result<Vec<Number>, Failure> {
    Ok(lost(RUNS.get(context)?).to_vec())
}
