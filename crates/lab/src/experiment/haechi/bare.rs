//! Haechi paper, figures 6 and 7: read rates of clients without any control, alone and several at a
//! time, by one-sided and by two-sided operations.

use tidegate_sim::one_sided::Scenario;

use super::plot::{Panel, Series, draw};
use super::{
    Comparison, FIGURE_7, FigureContext, FigureResult, HaechiRun, Kept, NEAR, Number, TWO_SIDED,
    beside,
};
use super::{formatted, scenario, source, total};
use crate::experiment::verdict::{at_least, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// So many clients the paper has.
const MOST: u16 = 10;

/// One-sided with one client to [`MOST`], then two-sided.
static RUNS: Kept = Kept::new(|| {
    let with = |scenario: Scenario| {
        (1..=MOST).map(move |count| {
            let mut scenario = scenario.clone();
            scenario.client[0].count = count;
            scenario
        })
    };
    Ok(with(scenario(FIGURE_7)?).chain(with(scenario(TWO_SIDED)?)).collect())
});

/// A series of runs with more and more clients.
struct Runs {
    all: &'static [HaechiRun],
    one_sided: &'static [HaechiRun],
    two_sided: &'static [HaechiRun],
}

fn runs(context: &FigureContext) -> Result<Runs, Failure> {
    let all = RUNS.get(context)?;
    let (one_sided, two_sided) = all.split_at(MOST.into());
    Ok(Runs { all, one_sided, two_sided })
}

/// Figure 6: a client alone.
pub(super) fn one(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = runs(context)?;
    let [one, two] = [runs.one_sided, runs.two_sided].map(|runs| total(&runs[0].outcome));
    let mut table = Table::new().left("READS").right("ONE CLIENT ALONE, K/s");
    table.row(["one-sided".into(), formatted(one).into()]);
    table.row(["two-sided".into(), formatted(two).into()]);
    let (measured, checks) = beside(&alone(&runs), NEAR);
    let claim = source("6", &[runs.one_sided[0].clone(), runs.two_sided[0].clone()]).claim(
        "each client alone reads some 400,000 times a second one-sided, and a fifth less \
         two-sided (the model is made from this)",
        measured,
        checks,
    );
    // All clients are the same here, as they nearly are in the paper.
    let line = |name, rate| {
        Series::line(name, (1..=MOST).map(|client| (f64::from(client), rate)).collect())
    };
    let panel = Panel::new(
        "Clients alone",
        ["client", "thousand reads per second"],
        [line("one-sided", one), line("two-sided", two)],
    );
    let picture = draw("What a client reads alone", &[panel]);
    Ok(FigureResult { claims: vec![claim], table, picture })
}

fn alone(runs: &Runs) -> [Number; 3] {
    let [one, two] = [runs.one_sided, runs.two_sided].map(|runs| total(&runs[0].outcome));
    [
        Number::rate("6", "one-sided, a client alone", 400.0, one).given(),
        Number::rate("6", "two-sided, a client alone", 320.0, two).given(),
        Number::part("6", "two-sided, less than that", 20.0, (1.0 - two / one) * 100.0).given(),
    ]
}

/// Figure 7: one client to ten.
pub(super) fn several(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = runs(context)?;
    let mut table = Table::new().right("CLIENTS").right("ONE-SIDED, K/s").right("TWO-SIDED, K/s");
    let rows = runs.one_sided.iter().zip(runs.two_sided).zip(1u32..);
    for ((one, two), count) in rows {
        let [one, two] = [one, two].map(|shown| formatted(total(&shown.outcome)));
        table.row([count.to_string().into(), one.into(), two.into()]);
    }
    let (measured, checks) = beside(&saturated(&runs), NEAR);
    let [first, third, fourth] = [0, 2, 3].map(|index| total(&runs.one_sided[index].outcome));
    let claim = source("7", runs.all).claim(
        "one-sided reads grow with each of the first four clients and then stay just below 1.6 \
         million a second; two-sided ones are at their 427,000 with two (the model is made from \
         this)",
        measured,
        checks.into_iter().chain([
            near("three clients beside one", "times", 3.0, 0.01, third / first),
            at_least("four clients", "K/s", 1500.0, fourth),
        ]),
    );
    let line = |name, runs: &[HaechiRun]| {
        let points = runs.iter().zip(1u32..);
        let points = points.map(|(shown, count)| (f64::from(count), total(&shown.outcome)));
        Series::line(name, points.collect())
    };
    let panel = Panel::new(
        "Several clients",
        ["clients", "thousand reads per second"],
        [line("one-sided", runs.one_sided), line("two-sided", runs.two_sided)],
    );
    let picture = draw("What clients read together", &[panel]);
    Ok(FigureResult { claims: vec![claim], table, picture })
}

fn saturated(runs: &Runs) -> [Number; 4] {
    let last = usize::from(MOST) - 1;
    let one = total(&runs.one_sided[last].outcome);
    let four = total(&runs.one_sided[3].outcome);
    let [two, most] = [1, last].map(|index| total(&runs.two_sided[index].outcome));
    [
        Number::rate("7", "one-sided, ten clients", 1570.0, one).given(),
        Number {
            kind: Comparison::Bound,
            ..Number::rate("7", "one-sided, four clients, less than", 1600.0, four).given()
        },
        Number::rate("7", "two-sided, two clients", 427.0, two).given(),
        Number::rate("7", "two-sided, ten clients, around", 430.0, most).given(),
    ]
}

/// The paper's numbers of these figures, beside ours.
pub(super) fn numbers(context: &FigureContext) -> Result<Vec<Number>, Failure> {
    let runs = runs(context)?;
    Ok(alone(&runs).into_iter().chain(saturated(&runs)).collect())
}
