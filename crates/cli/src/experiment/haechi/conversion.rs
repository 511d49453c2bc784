//! Figures 10 and 11: C1 and C2 want only 60 % of what they are promised; what becomes of the rest.

use serde_json::json;

use super::plot::draw;
use super::{BARE, BASIC, Desk, FIGURE_10A, FIGURE_10B, Kept, MODES, PAPER, Part, SOUND, Shown};
use super::{all, at, by_client, holds_if, mean_of, means, named, of, ours, predicted, table};
use super::{tenths, told, total};
use crate::experiment::verdict::Claim;
use crate::failure::Failure;
use crate::table::{Cell, Table};

/// Uniform, then Zipf, each under every control.
static RUNS: Kept = Kept::new(|| super::under_all([FIGURE_10A, FIGURE_10B], |_| ()));

const BASES: [(usize, &str); 2] = [(0, "uniform"), (1, "Zipf")];

/// Those who want what they can get, C3 to C10.
const OTHERS: core::ops::Range<usize> = 2..10;

/// Figure 10.
pub(super) fn clients(desk: &Desk) -> Result<Part, Failure> {
    let runs = RUNS.get(desk)?;
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("uniform", &lines[0]), by_client("Zipf", &lines[1])];
    let mut claims: Vec<Claim> = BASES.iter().map(|(base, name)| more(runs, *base, name)).collect();
    let text =
        "what C1 and C2 leave others get, and everybody has what it wants of its reservation";
    claims.extend(BASES.map(|(base, _)| ours(runs, base, "10", text)));
    let table = table(&lines.concat());
    Ok(Part { claims, table, picture: draw("Two clients want less", &panels) })
}

fn more(runs: &[Shown], base: usize, name: &str) -> Claim {
    let [basic, paper] = [BASIC, PAPER].map(|mode| mean_of(at(runs, base, mode), OTHERS));
    of(runs, "10", base, &[BASIC, PAPER]).claim(
        format!("C3 to C10 get more with conversion than in Basic Haechi ({name})"),
        json!({
            "basic_kilo_per_second": tenths(basic),
            "with_conversion_kilo_per_second": tenths(paper),
        }),
        holds_if(paper > basic * 1.01, || format!("{paper:.1} K/s are no more than {basic:.1}")),
    )
}

/// Figure 11.
pub(super) fn totals(desk: &Desk) -> Result<Part, Failure> {
    let runs = RUNS.get(desk)?;
    let mut table = Table::new().left("THROUGHPUT, K/s");
    for (_, control) in MODES {
        table = table.right(control);
    }
    let mut claims = Vec::new();
    for (base, name) in BASES {
        let totals = [BARE, BASIC, PAPER, SOUND].map(|mode| total(at(runs, base, mode)));
        let mut row: Vec<Cell> = vec![name.into()];
        row.extend((0..MODES.len()).map(|mode| Cell::from(told(total(at(runs, base, mode))))));
        table.row(row);
        claims.push(wasted(runs, base, name, totals));
        claims.push(recovered(runs, base, name, totals));
    }
    let lines = BASES.map(|(base, name)| named(name, |mode| means(at(runs, base, mode))));
    let panels = [by_client("uniform", &lines[0]), by_client("Zipf", &lines[1])];
    Ok(Part { claims, table, picture: draw("Two clients want less", &panels) })
}

fn wasted(runs: &[Shown], base: usize, name: &str, totals: [f64; 4]) -> Claim {
    let [bare, basic, paper, _] = totals;
    let (of_basic, of_paper) = (basic / bare * 100.0, paper / bare * 100.0);
    of(runs, "11", base, &[BARE, BASIC, PAPER]).claim(
        format!(
            "Haechi's throughput is comparable to that without control, and Basic Haechi wastes \
             what is not used ({name})"
        ),
        json!({
            "basic_percent_of_bare": tenths(of_basic),
            "with_conversion_percent_of_bare": tenths(of_paper),
        }),
        predicted(all([
            holds_if(of_paper >= 98.0, || format!("it is {of_paper:.1} %")),
            holds_if(of_basic < 98.0, || format!("Basic Haechi has {of_basic:.1} %")),
        ])),
    )
}

/// Of what Basic Haechi wastes.
fn recovered(runs: &[Shown], base: usize, name: &str, totals: [f64; 4]) -> Claim {
    let [bare, basic, _, sound] = totals;
    let percent = sound / bare * 100.0;
    of(runs, "11", base, &[BARE, BASIC, SOUND]).claim(
        format!("with sound rules conversion recovers what idle clients leave ({name}, ours)"),
        json!({
            "basic_kilo_per_second": tenths(basic),
            "sound_kilo_per_second": tenths(sound),
            "sound_percent_of_bare": tenths(percent),
        }),
        holds_if(percent >= 99.0, || format!("{percent:.1} % of what is read without control")),
    )
}
