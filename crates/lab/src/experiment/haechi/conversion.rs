//! Haechi paper, figures 10 and 11: unused reservations. Clients C1 and C2 use only 60 % of theirs;
//! the runs show which clients get the rest.

use serde_json::json;

use super::HaechiRun;
use super::plot::draw;
use super::{
    BARE, BASIC, FIGURE_10A, FIGURE_10B, FigureContext, FigureResult, Kept, MODES, PAPER, SOUND,
};
use super::{USED, at, by_client, kilo, mean, means, named, of, ours, part_of_bare};
use super::{formatted, table, tenths, total};
use crate::experiment::verdict::{Claim, at_least, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// Uniform, then Zipf, each under every control.
static RUNS: Kept = Kept::new(|| super::under_all([FIGURE_10A, FIGURE_10B], |_| ()));

const BASES: [(usize, &str); 2] = [(0, "uniform"), (1, "Zipf")];

/// Those who want less, C1 and C2, and those who want what they can get.
const IDLE: core::ops::Range<usize> = 0..2;
const OTHERS: core::ops::Range<usize> = 2..10;

/// Figure 10.
pub(super) fn clients(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("uniform", &lines[0]), by_client("Zipf", &lines[1])];
    let mut claims: Vec<Claim> = BASES.iter().map(|(base, name)| more(runs, *base, name)).collect();
    let text =
        "what C1 and C2 leave others get, and everybody has what it wants of its reservation";
    claims.extend(BASES.map(|(base, name)| ours(runs, base, "10", &format!("{text} ({name})"))));
    let table = table(&lines.concat());
    Ok(FigureResult { claims, table, picture: draw("Two clients want less", &panels) })
}

/// The part of their reservations that C1 and C2 leave, in thousands per second: they want 60 %.
fn left(runs: &[HaechiRun], base: usize) -> f64 {
    let promised = &at(runs, base, PAPER).promised;
    // `promised` counts only the part of a reservation that its client wants.
    let wanted: u64 = IDLE.map(|client| promised[client]).sum();
    kilo(wanted as f64) / 60.0 * 40.0
}

/// How near to that must be what is wasted, or given to others, in percent of it: bursts and grain.
const ABOUT: f64 = 3.0;

fn more(runs: &[HaechiRun], base: usize, name: &str) -> Claim {
    let others = |mode| OTHERS.map(|client| mean(at(runs, base, mode), client)).sum::<f64>();
    let [basic, paper] = [BASIC, PAPER].map(others);
    let part = (paper - basic) / left(runs, base) * 100.0;
    of(runs, "10", base, &[BASIC, PAPER]).claim(
        format!("C3 to C10 get with conversion what Basic Haechi wastes of C1's and C2's ({name})"),
        json!({
            "basic_kilo_per_second": tenths(basic),
            "with_conversion_kilo_per_second": tenths(paper),
            "left_kilo_per_second": tenths(left(runs, base)),
            "more_percent_of_that": tenths(part),
        }),
        [near("of it", "%", 100.0, ABOUT, part)],
    )
}

/// Figure 11.
pub(super) fn totals(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let mut table = Table::new().left("THROUGHPUT, K/s");
    for (_, control) in MODES {
        table = table.right(control);
    }
    let mut claims = Vec::new();
    for (base, name) in BASES {
        let mut row: Vec<Cell> = vec![name.into()];
        row.extend((0..MODES.len()).map(|mode| Cell::from(formatted(total(at(runs, base, mode))))));
        table.row(row);
        claims.push(wasted(runs, base, name));
        claims.push(recovered(runs, base, PAPER, name));
        claims.push(recovered(runs, base, SOUND, name));
    }
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("uniform", &lines[0]), by_client("Zipf", &lines[1])];
    Ok(FigureResult { claims, table, picture: draw("Two clients want less", &panels) })
}

fn wasted(runs: &[HaechiRun], base: usize, name: &str) -> Claim {
    let [of_basic, of_paper] = [BASIC, PAPER].map(|mode| part_of_bare(runs, base, mode));
    let [bare, basic] = [BARE, BASIC].map(|mode| total(at(runs, base, mode)));
    let part = (bare - basic) / left(runs, base) * 100.0;
    of(runs, "11", base, &[BARE, BASIC, PAPER]).claim(
        format!(
            "Haechi's throughput is comparable to that without control, and Basic Haechi wastes \
             what is not used ({name})"
        ),
        json!({
            "basic_percent_of_bare": tenths(of_basic),
            "with_conversion_percent_of_bare": tenths(of_paper),
            "wasted_percent_of_what_is_left": tenths(part),
        }),
        [
            at_least("of that without control", "%", USED, of_paper),
            near("wasted of it", "%", 100.0, ABOUT, part),
        ],
    )
}

/// Of what Basic Haechi wastes.
fn recovered(runs: &[HaechiRun], base: usize, mode: usize, name: &str) -> Claim {
    let [bare, basic, with] = [BARE, BASIC, mode].map(|mode| total(at(runs, base, mode)));
    let percent = (with - basic) / (bare - basic) * 100.0;
    let claim = of(runs, "11", base, &[BARE, BASIC, mode]).claim(
        format!("conversion recovers what idle clients leave ({name}, {})", MODES[mode].1),
        json!({
            "bare_kilo_per_second": tenths(bare),
            "basic_kilo_per_second": tenths(basic),
            "with_conversion_kilo_per_second": tenths(with),
            "recovered_percent": tenths(percent),
        }),
        [at_least("of it", "%", RECOVERED, percent)],
    );
    claim.ours()
}

/// Of what idle clients leave, in percent.
const RECOVERED: f64 = 99.0;
