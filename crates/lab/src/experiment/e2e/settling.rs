//! End-to-end QoS paper, figures 9 and 10: convergence of congestion control. Figure 9 shows the
//! quality factors of flows over three round trips; figure 10 the rates of flows that begin one
//! after the other, by DCTCP and by QTCP.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, ServiceReport};

use super::moments::{panel, rates};
use super::plot::draw;
use super::writes::{CC_VARIANTS, DCTCP, QTCP};
use super::{
    CLASSES, Check, Claim, E2eRun, FigureContext, FigureResult, ONE_AFTER_THE_OTHER, SETTLING,
    each, row, run, run_under, scenario, source, tenths, thousandths,
};
use crate::experiment::verdict::{at_least, at_most, between, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// Quality factors are of single round trips: what counts are means of so many of them.
const SLOTS: usize = 20;

/// A mean so near to one is settled.
const SETTLED: f64 = 0.1;

/// By the paper, close to so many round trips at 25 us, at most so many at the others, and so many
/// milliseconds.
const ROUND_TRIPS_MOST: [f64; 3] = [50.0, 40.0, 40.0];
const SLOTS_MOST: usize = 50;
const MILLISECONDS_MOST: f64 = 3.0;

/// From then on a class's mean is from 0.95 to 1 in the paper.
const STEADY: [f64; 2] = [0.95, 1.0];

/// Rates are averaged over so many moments of a millisecond. They are settled within a tenth of
/// their target.
const MOMENTS: usize = 5;

/// When the last of three flows begins, in milliseconds, as the scenario has it.
const LAST: usize = 40;

/// Rates that flows with demands of 90, 60 and 30 Gbit/s reach under each congestion control, in
/// Gbit/s of payload.
const EVEN: [f64; 3] = [33.2, 33.2, 30.0];
const PROMISED: [f64; 3] = [48.2, 32.1, 16.1];

/// QTCP is sooner by more than 50 round trips of 98 us.
const SOONER: f64 = 4.9;

pub(super) fn round_trips(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenarios: Result<Vec<_>, Failure> =
        SETTLING.iter().map(|(_, text)| scenario(text)).collect();
    let runs = run(context, scenarios?)?;
    let mut claims = Vec::new();
    let mut table = Table::new().left("ROUND TRIP").left("CLASS").right("SETTLED us");
    table = table.right("ROUND TRIPS").right("Q AFTERWARDS");
    for ((shown, (figure, _)), most) in runs.iter().zip(SETTLING).zip(ROUND_TRIPS_MOST) {
        let each = shown.outcome.applications.iter().map(settling);
        let each: Vec<_> = each.collect();
        for (class, (slot, after)) in CLASSES.iter().zip(&each) {
            let [trip, at] = [1, *slot].map(|slots| microseconds(&shown.outcome, slots));
            table.row([
                Cell::from(format!("{trip:.0} us")),
                (*class).into(),
                format!("{at:.0}").into(),
                format!("{slot}").into(),
                format!("{after:.3}").into(),
            ]);
        }
        claims.push(soon(figure, shown, &each, most));
        claims.push(steady(figure, shown, &each));
    }
    let panels = runs.iter().map(|shown| {
        let title = format!("over {:.0} us", microseconds(&shown.outcome, 1));
        panel(&shown.outcome, &title, "quality factor", |moment| moment.quality.min(2.0))
    });
    let panels: Vec<_> = panels.collect();
    Ok(FigureResult { claims, table, picture: draw("Quality factors settle", &panels) })
}

/// The slot from which on a class's quality factor is settled, and its mean from then on.
fn settling(one: &ServiceReport) -> (usize, f64) {
    let factors: Vec<f64> = one.series.iter().map(|moment| moment.quality).collect();
    let slot = settled(&factors, SLOTS, 1.0);
    let rest = &factors[slot..];
    (slot, rest.iter().sum::<f64>() / rest.len().max(1) as f64)
}

/// The rate of each class from one slot to another, in Gbit/s.
fn got(outcome: &E2eReport, slots: core::ops::Range<usize>) -> Vec<f64> {
    let seconds = outcome.sample.as_seconds() * slots.len() as f64;
    let each = outcome.applications.iter().map(|one| {
        let bytes: u64 = one.series[slots.clone()].iter().map(|moment| moment.there).sum();
        bytes as f64 * 8.0 / seconds / 1e9
    });
    each.collect()
}

/// Whether classes have what they are promised, within a tenth of it. A quality factor is what a
/// flow believes, and one that goes by no promise believes that all is well.
fn have(all_rates: &[&[f64]]) -> Vec<Check> {
    let each = CLASSES.iter().zip(PROMISED).enumerate();
    let of = |(class, (name, promised)): (usize, (&&str, f64))| {
        let rates: Vec<f64> = all_rates.iter().map(|rates| rates[class]).collect();
        near(*name, "Gbit/s", promised, tenths(promised * SETTLED), rates)
    };
    each.map(of).collect()
}

/// The first moment from which on the mean of each `over` is as near as a tenth to what it should
/// be; one behind the last if there is none.
fn settled(values: &[f64], over: usize, expected: f64) -> usize {
    let mean = |window: &[f64]| window.iter().sum::<f64>() / window.len() as f64;
    let strays = |window: &[f64]| (mean(window) / expected - 1.0).abs() > SETTLED;
    values.windows(over).rposition(strays).map_or(0, |index| match index + over {
        end if end == values.len() => end,
        _ => index + 1,
    })
}

fn microseconds(outcome: &E2eReport, slots: usize) -> f64 {
    outcome.sample.as_seconds() * slots as f64 * 1e6
}

fn soon(figure: &'static str, shown: &E2eRun, settled: &[(usize, f64)], most: f64) -> Claim {
    let slots = settled.iter().map(|(slot, _)| *slot).max().unwrap_or(usize::MAX);
    let milliseconds = microseconds(&shown.outcome, slots) / 1e3;
    // In as many again, and from then on: windows that begin as they do here have shares near to
    // those that are promised, and lose them only in time where nothing keeps them.
    let mean_until = |until: usize| got(&shown.outcome, SLOTS_MOST..until);
    let rates = mean_until(2 * SLOTS_MOST);
    let length = shown.outcome.applications[0].series.len();
    source(figure, &[shown]).claim(
        "quality factors are soon at one, and classes have what they are promised",
        json!({
            "round_trips": slots, "milliseconds": tenths(milliseconds),
            "gbit_per_second": each(&shown.outcome, &rates),
        }),
        [
            at_most("after", "round trips", most, slots as f64),
            at_most("after", "ms", MILLISECONDS_MOST, milliseconds),
        ]
        .into_iter()
        .chain(have(&[&rates, &mean_until(length)])),
    )
}

fn steady(figure: &'static str, shown: &E2eRun, means: &[(usize, f64)]) -> Claim {
    let means: Vec<f64> = means.iter().map(|(_, mean)| *mean).collect();
    let rounded: Vec<f64> = means.iter().copied().map(thousandths).collect();
    let slots = shown.outcome.applications[0].series.len();
    let rates = got(&shown.outcome, SLOTS_MOST..slots);
    source(figure, &[shown])
        .claim(
            "and stay there",
            json!({
                "quality_factor": rounded, "gbit_per_second": each(&shown.outcome, &rates),
            }),
            [between("their means", "", STEADY, means)].into_iter().chain(have(&[&rates])),
        )
        .because(
            "with a packet more in each round trip high, which has the largest windows, stays a \
             little below its promise, and so above one",
        )
}

pub(super) fn one_by_one(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run_under(context, &CC_VARIANTS, ONE_AFTER_THE_OTHER)?;
    let after = [(DCTCP, EVEN), (QTCP, PROMISED)].map(|(cc, expected)| {
        let outcome = &runs[cc].outcome;
        let each = outcome.applications.iter().zip(expected);
        each.map(|(one, expected)| begun(outcome, one, expected)).collect::<Vec<f64>>()
    });
    let mut table = Table::new().left("MS FROM WHEN THE LAST BEGAN").each_right(CLASSES);
    for ((_, cc), after) in CC_VARIANTS.iter().zip(&after) {
        table.row(row(&[cc], after, 0));
    }
    let panels = runs.iter().zip(CC_VARIANTS).zip(["a", "b"]);
    let panels = panels.map(|((shown, (_, cc)), part)| {
        rates(&shown.outcome, &format!("({part}) {cc}"), |moment| moment.there)
    });
    let panels: Vec<_> = panels.collect();
    let picture = draw("Three flows begin one after the other", &panels);
    Ok(FigureResult { claims: vec![sooner(&runs, &after)], table, picture })
}

/// How long it takes from when the last flow began until this one gets what it should, in
/// milliseconds; at least until the first mean ends.
fn begun(outcome: &E2eReport, one: &ServiceReport, expected: f64) -> f64 {
    let seconds = outcome.sample.as_seconds();
    let rates = one.series[LAST..].iter().map(|moment| moment.there as f64 * 8.0 / seconds / 1e9);
    let rates: Vec<f64> = rates.collect();
    (settled(&rates, MOMENTS, expected) + MOMENTS) as f64 * seconds * 1e3
}

fn sooner(runs: &[E2eRun], after: &[Vec<f64>; 2]) -> Claim {
    let last = after.each_ref().map(|each| each.iter().copied().fold(0.0, f64::max));
    let [even, promised] = last;
    let length = runs[DCTCP].outcome.applications[0].series.len();
    source("10", &[&runs[DCTCP], &runs[QTCP]]).claim(
        "when flows come one after the other, QTCP settles sooner than DCTCP, by more than 50 \
         round trips",
        json!({
            "dctcp_ms": each(&runs[DCTCP].outcome, &after[DCTCP]),
            "qtcp_ms": each(&runs[QTCP].outcome, &after[QTCP]),
        }),
        [
            at_most("DCTCP settles after", "ms", (length - LAST) as f64, even),
            at_least("sooner", "ms", SOONER, even - promised),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::settled;

    #[test]
    fn what_is_settled_stays_so() {
        assert_eq!(settled(&[1.0; 5], 2, 1.0), 0);
        assert_eq!(settled(&[3.0, 1.0, 1.0, 1.05, 0.95], 2, 1.0), 1);
        assert_eq!(settled(&[1.0, 1.0, 3.0, 1.0, 1.0], 2, 1.0), 3);
        assert_eq!(settled(&[1.0, 1.0, 1.0, 1.0, 3.0], 2, 1.0), 5, "never");
    }
}
