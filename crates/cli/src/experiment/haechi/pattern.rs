//! Figures 13 to 15: reservations with a spike, in bursts and at a constant rate.

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidegate_sim::one_sided::{Latency, Outcome};

use super::plot::{Panel, Series, draw};
use super::{BARE, Desk, FIGURE_13A, FIGURE_13B, Kept, MODES, Number, PAPER, Part, SOUND, Shown};
use super::{all, at, beside, by_client, holds_if, kept, mean_of, means, named, of, ours};
use super::{predicted, table, tenths, told, total};
use crate::experiment::verdict::Claim;
use crate::failure::Failure;
use crate::table::{Cell, Table};

/// Bursts, then a constant rate, each under every control.
static RUNS: Kept = Kept::new(|| super::under_all([FIGURE_13A, FIGURE_13B], |_| ()));

const BURST: usize = 0;
const CONSTANT: usize = 1;
const BASES: [(usize, &str); 2] = [(BURST, "burst"), (CONSTANT, "constant rate")];

/// Those who are promised more, C1 to C3, in thousands per second.
const SPIKE: core::ops::Range<usize> = 0..3;
const PROMISED: f64 = 285.0;

/// Figure 13.
pub(super) fn clients(desk: &Desk) -> Result<Part, Failure> {
    let runs = RUNS.get(desk)?;
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("burst", &lines[0]), by_client("constant rate", &lines[1])];
    let [burst, constant] = [BURST, CONSTANT].map(|base| mean_of(at(runs, base, PAPER), SPIKE));
    let claims = vec![
        of(runs, "13", BURST, &[PAPER]).claim(
            "with bursts C1 to C3 miss their reservations of 285,000",
            json!({ "kilo_per_second": tenths(burst) }),
            predicted(holds_if(burst < PROMISED, || format!("they have {burst:.1} K/s"))),
        ),
        of(runs, "13", CONSTANT, &[PAPER]).claim(
            "at a constant rate they have more than that, and all others have theirs",
            json!({
                "kilo_per_second": tenths(constant),
                "missing_percent": kept(at(runs, CONSTANT, PAPER)).0,
            }),
            predicted(all([
                kept(at(runs, CONSTANT, PAPER)).1,
                holds_if(constant > PROMISED, || format!("they have {constant:.1} K/s")),
            ])),
        ),
        ours(runs, BURST, "13", "also with bursts all have their reservations"),
        ours(runs, CONSTANT, "13", "at a constant rate all have their reservations"),
    ];
    let table = table(&lines.concat());
    Ok(Part { claims, table, picture: draw("Reservations with a spike", &panels) })
}

/// Throughputs that the paper gives as parts of 1,570 that are lost.
fn lost(runs: &[Shown]) -> [Number; 2] {
    let total_of = |base| total(at(runs, base, PAPER));
    [
        Number::rate("14", "burst, 12.9 % lost", 1570.0 * (1.0 - 0.129), total_of(BURST)),
        Number::rate("14", "constant rate, 0.7 % lost", 1570.0 * (1.0 - 0.007), total_of(CONSTANT)),
    ]
}

/// Figure 14.
pub(super) fn totals(desk: &Desk) -> Result<Part, Failure> {
    let runs = RUNS.get(desk)?;
    let mut table = Table::new().left("THROUGHPUT, K/s");
    for (_, control) in MODES {
        table = table.right(control);
    }
    for (base, name) in BASES {
        let mut row: Vec<Cell> = vec![name.into()];
        row.extend((0..MODES.len()).map(|mode| Cell::from(told(total(at(runs, base, mode))))));
        table.row(row);
    }
    let (mut measured, judged) = beside(&lost(runs));
    let [burst, constant] = [BURST, CONSTANT].map(|base| at(runs, base, PAPER));
    for (name, outcome) in [("burst", burst), ("constant_rate", constant)] {
        let percent = (1.0 - total(outcome) / 1570.0) * 100.0;
        measured[format!("{name}_lost_percent")] = tenths(percent).into();
    }
    let [bare, sound] = [BARE, SOUND].map(|mode| total(at(runs, BURST, mode)));
    let claims = vec![
        of(runs, "14", BURST, &[PAPER]).claim(
            "the data node's throughput falls by 12.9 % with bursts and by 0.7 % at a constant \
             rate",
            measured,
            predicted(judged),
        ),
        of(runs, "14", BURST, &[BARE, SOUND]).claim(
            "with sound rules bursts cost less than without control, because what is reserved is \
             paced (ours)",
            json!({ "bare_kilo_per_second": tenths(bare), "sound_kilo_per_second": tenths(sound) }),
            holds_if(sound > bare * 1.05, || format!("{sound:.0} K/s and {bare:.0} without")),
        ),
    ];
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("burst", &lines[0]), by_client("constant rate", &lines[1])];
    Ok(Part { claims, table, picture: draw("What bursts cost", &panels) })
}

/// Latencies of all clients together, in microseconds.
struct Latencies {
    mean: f64,
    p99: f64,
    p999: f64,
}

impl Latencies {
    fn of(outcome: &Outcome, which: fn(&Latency) -> &Histogram<u64>) -> Self {
        let mut all = outcome.latency.iter().map(which);
        let mut sum = all.next().cloned();
        if let Some(sum) = &mut sum {
            // All have the same bounds.
            all.for_each(|one| sum.add(one).expect("the bounds are the same"));
        }
        let quantile = |q| sum.as_ref().map_or(0.0, |sum| sum.value_at_quantile(q) as f64 / 1e3);
        let mean = sum.as_ref().map_or(0.0, |sum| sum.mean() / 1e3);
        Self { mean, p99: quantile(0.99), p999: quantile(0.999) }
    }

    fn told(&self) -> Value {
        let Self { mean, p99, p999 } = self;
        json!({ "mean_us": tenths(*mean), "p99_us": tenths(*p99), "p99.9_us": tenths(*p999) })
    }

    fn is_below(&self, other: &Self) -> bool {
        self.mean < other.mean && self.p99 < other.p99 && self.p999 < other.p999
    }
}

/// Figure 15.
pub(super) fn latencies(desk: &Desk) -> Result<Part, Failure> {
    let runs = RUNS.get(desk)?;
    let begun = |base, mode| Latencies::of(at(runs, base, mode), |latency| &latency.begun);
    let due = |base, mode| Latencies::of(at(runs, base, mode), |latency| &latency.due);
    let mut table = Table::new().left("RUN").right("MEAN, us").right("99 %").right("99.9 %");
    table = table.right("SINCE DUE, MEAN, us");
    let mut panels = Vec::new();
    for (base, name) in BASES {
        let mut series = Vec::new();
        for (mode, (_, control)) in MODES.iter().enumerate() {
            let Latencies { mean, p99, p999 } = begun(base, mode);
            let since = due(base, mode).mean;
            let cells = [mean, p99, p999, since].map(|us| Cell::from(told(us)));
            let mut row: Vec<Cell> = vec![format!("{name}, {control}").into()];
            row.extend(cells);
            table.row(row);
            series.push(Series::line(*control, vec![(1.0, mean), (2.0, p99), (3.0, p999)]));
        }
        panels.push(Panel {
            title: name.into(),
            x: "mean, 99 %, 99.9 %",
            y: "us",
            series,
            levels: Vec::new(),
        });
    }
    let [burst, constant] = [BURST, CONSTANT].map(|base| begun(base, PAPER));
    let claims = vec![of(runs, "15", BURST, &[PAPER]).claim(
        "mean and tail latencies are lower at a constant rate than with bursts",
        json!({ "burst": burst.told(), "constant_rate": constant.told() }),
        predicted(holds_if(constant.is_below(&burst), || {
            format!(
                "mean {:.0} and {:.0} us, 99 % {:.0} and {:.0}, 99.9 % {:.0} and {:.0}",
                burst.mean, constant.mean, burst.p99, constant.p99, burst.p999, constant.p999
            )
        })),
    )];
    let claims = claims.into_iter().chain([of_sound(runs)]).collect();
    Ok(Part { claims, table, picture: draw("How long reads take", &panels) })
}

fn of_sound(runs: &[Shown]) -> Claim {
    let [bare, sound] =
        [BARE, SOUND].map(|mode| Latencies::of(at(runs, CONSTANT, mode), |latency| &latency.begun));
    of(runs, "15", CONSTANT, &[BARE, SOUND]).claim(
        "at a constant rate reads take no longer with sound rules than without control (ours)",
        json!({ "bare": bare.told(), "sound": sound.told() }),
        predicted(holds_if(sound.mean <= bare.mean, || {
            format!("{:.0} us on average instead of {:.0}", sound.mean, bare.mean)
        })),
    )
}

/// What the paper prints of figure 14.
pub(super) fn numbers(desk: &Desk) -> Result<Vec<Number>, Failure> {
    Ok(lost(RUNS.get(desk)?).to_vec())
}
