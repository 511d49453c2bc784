//! The purpose of each sound rule: the paper's text with one rule added after the other, and sound
//! rules without each of them.

use serde_json::json;
use tidegate_algo::onesided::{Mode, Rules};
use tidegate_model::{Iops, Span};
use tidegate_sim::one_sided::{self, Change, Control, OneSidedReport, Scenario};

use super::plot::{Panel, Series, draw};
use super::{
    FIGURE_9A, FIGURE_9B, FIGURE_13A, FigureContext, FigureResult, SKEW, holds_if, paper, scenario,
};
use super::{simulate, tenths, total};
use crate::experiment::verdict::Claim;
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// A run's outcome; `None` if the data node refuses the reservations.
type Shown = paper::Shown<Option<OneSidedReport>>;

/// Rules, and their known result with each of [`LOADS`].
struct Row {
    name: &'static str,
    control: Control,
    known: [Comes; LOADS.len()],
}

/// Result of rules: the data node refuses the reservations; or clients read so many thousands per
/// second, and all reservations are kept or some are missed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Refused,
    Kept(f64),
    Missed(f64),
}
use Comes::{Kept, Missed, Refused};

const DECAY: Rules = Rules { tokens: Mode::Sound, ..Rules::PAPER };
const BOUNDED: Rules = Rules { pool: Mode::Sound, ..DECAY };

const fn row(name: &'static str, control: Control, known: [Comes; LOADS.len()]) -> Row {
    Row { name, control, known }
}

/// The shipped rules, with one of them as in the paper's text.
const TEXT_DECAY: Rules = Rules { tokens: Mode::Paper, ..Rules::SOUND };
const TEXT_POOL: Rules = Rules { pool: Mode::Paper, ..Rules::SOUND };
const TEXT_ESTIMATOR: Rules = Rules { capacity: Mode::Paper, ..Rules::SOUND };

/// Without control; the text, with one rule more in each row; then the shipped rules, each row with
/// one rule as in the text.
#[rustfmt::skip]
const ROWS: [Row; 9] = [
    row("bare", Control::None, [
        Kept(1570.0), Missed(1570.0), Missed(1570.0),
        Missed(1388.7), Missed(1413.0), Missed(1727.0),
    ]),
    row("paper", Control::Paper, [
        Kept(1569.8), Missed(1569.8), Missed(1569.8),
        Missed(1388.2), Missed(1412.8), Missed(1726.8),
    ]),
    row("+ decay only if idle", Control::By(DECAY), [
        Kept(1569.8), Missed(1508.6), Missed(1492.6),
        Missed(1388.6), Missed(1361.0), Missed(1676.4),
    ]),
    row("+ bounded pool", Control::By(BOUNDED), [
        Kept(1569.6), Kept(1509.7), Kept(1416.0),
        Missed(1388.7), Kept(1312.9), Kept(1509.6),
    ]),
    row("+ estimator", Control::Unpaced, [
        Kept(1569.7), Kept(1515.6), Kept(1415.5),
        Refused, Kept(1312.8), Kept(1714.2),
    ]),
    row("+ pacing: sound", Control::Sound, [
        Kept(1569.9), Kept(1569.7), Kept(1568.6),
        Kept(1496.2), Kept(1412.1), Kept(1726.9),
    ]),
    row("sound, but text's decay", Control::By(TEXT_DECAY), [
        Kept(1569.9), Kept(1569.6), Kept(1567.9),
        Kept(1493.2), Kept(1411.0), Kept(1726.8),
    ]),
    row("sound, but text's pool", Control::By(TEXT_POOL), [
        Kept(1569.8), Missed(1554.3), Missed(1554.3),
        Kept(1477.9), Missed(1400.5), Missed(1702.0),
    ]),
    row("sound, but text's estimator", Control::By(TEXT_ESTIMATOR), [
        Kept(1562.7), Kept(1564.4), Kept(1562.8),
        Kept(1489.0), Kept(1411.7), Kept(1560.6),
    ]),
];

/// Reservations and demands of clients: figures 9 and 13, and the second load on a data node that
/// becomes slower or faster by a tenth.
const LOADS: [&str; 6] = ["uniform", "Zipf 80 %", "Zipf 90 %", "spike", "slower", "faster"];

/// Periods of most loads. Of the last two: when the node changes, how many follow, and how many of
/// them are used.
const PERIODS: u32 = 4;
const CHANGE_PERIOD: u32 = 3;
const AFTER: u32 = 9;
const LAST: u32 = 3;

/// All loads, in bursts.
fn loads() -> Result<[Scenario; LOADS.len()], Failure> {
    let short = |text| scenario(text).map(|load| Scenario { periods: PERIODS, ..load });
    let zipf = short(FIGURE_9B)?;
    let mut fewer = zipf.clone();
    for clients in &mut fewer.client {
        clients.demand = None;
        if let Some(reservation) = &mut clients.reservation {
            reservation.0 = reservation.0 * 80 / 90;
        }
    }
    let [slower, faster] = [90, 110].map(|percent| {
        let node = Iops(zipf.nics.node.0 * percent / 100);
        let change = vec![Change { at: Span(zipf.period.0 * u64::from(CHANGE_PERIOD)), node }];
        Scenario { change, skip: CHANGE_PERIOD + AFTER - LAST, periods: LAST, ..fewer.clone() }
    });
    Ok([short(FIGURE_9A)?, fewer, zipf, short(FIGURE_13A)?, slower, faster])
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let loads = loads()?;
    let all = ROWS.iter().flat_map(|row| {
        let under = |load: &Scenario| Scenario { control: row.control, ..load.clone() };
        loads.iter().map(under).collect::<Vec<_>>()
    });
    let shown = simulate(context, all.collect(), |scenario| Ok(one_sided::run(scenario).ok()))?;
    let rows: Vec<&[Shown]> = shown.chunks(LOADS.len()).collect();
    let mut table = Table::new().left("K/s, MISSING AT MOST");
    for load in LOADS {
        table = table.right(load);
    }
    let mut series = Vec::new();
    for (row, shown) in ROWS.iter().zip(&rows) {
        let mut cells: Vec<Cell> = vec![row.name.into()];
        cells.extend(shown.iter().map(|one| Cell::from(formatted(one.outcome.as_ref()))));
        table.row(cells);
        let totals = shown.iter().map(|one| one.outcome.as_ref().map_or(0.0, total));
        let points = (1u32..).zip(totals).map(|(load, total)| (f64::from(load), total));
        series.push(Series::line(row.name, points.collect()));
    }
    let claims = ROWS.iter().zip(&rows).map(|(row, shown)| comes_out(row, shown)).collect();
    let panel = Panel {
        title: "Rules one by one".into(),
        x: "uniform, Zipf 80 %, Zipf 90 %, spike, slower, faster",
        y: "thousand reads per second",
        series,
        levels: Vec::new(),
    };
    Ok(FigureResult { claims, table, picture: draw("What each rule is there for", &[panel]) })
}

/// The most that any client misses of its reservation in its worst period, in percent.
fn worst(outcome: &OneSidedReport) -> f64 {
    super::clients(outcome).map(|client| outcome.missing_percent(client)).fold(0.0, f64::max)
}

fn formatted(outcome: Option<&OneSidedReport>) -> String {
    match outcome {
        None => "refused".into(),
        Some(outcome) if worst(outcome) <= SKEW => format!("{:.1}  kept", total(outcome)),
        Some(outcome) => format!("{:.1} {:4.1} %", total(outcome), worst(outcome)),
    }
}

/// So far throughput may be from what is known, in percent.
const NEAR: f64 = 1.0;

fn comes_out(row: &Row, shown: &[Shown]) -> Claim {
    let pairs = || shown.iter().map(|one| one.outcome.as_ref()).zip(row.known).zip(LOADS);
    let mut measured = json!({});
    let mut strange = Vec::new();
    for ((outcome, known), load) in pairs() {
        measured[load] = match outcome {
            None => "refused".into(),
            Some(outcome) => json!({
                "kilo_per_second": tenths(total(outcome)),
                "missing_at_most_percent": tenths(worst(outcome)),
            }),
        };
        if !known.is(outcome) {
            strange.push(format!("{load}: {}, where {known:?} is known", formatted(outcome)));
        }
    }
    let with = |verb: &str, is_so: fn(Comes) -> bool| {
        let loads = pairs().filter(|((_, known), _)| is_so(*known)).map(|(_, load)| load);
        let loads: Vec<&str> = loads.collect();
        (!loads.is_empty()).then(|| format!("{verb}: {}", loads.join(", ")))
    };
    let parts = [
        with("kept", |comes| matches!(comes, Kept(_))),
        with("missed", |comes| matches!(comes, Missed(_))),
        with("refused", |comes| comes == Refused),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let seconds = shown.iter().fold(0.0, |sum, one| sum + one.seconds);
    let source = paper::Source { seconds: tenths(seconds), ..super::source("ablation", &[]) };
    source.claim(
        format!("{}: reservations are {} (ours)", row.name, parts.join("; ")),
        measured,
        holds_if(strange.is_empty(), || strange.join("; ")),
    )
}

impl Comes {
    /// Whether this is what came.
    fn is(self, outcome: Option<&OneSidedReport>) -> bool {
        let Some(outcome) = outcome else { return self == Refused };
        let (rate, is_kept) = match self {
            Refused => return false,
            Kept(rate) => (rate, true),
            Missed(rate) => (rate, false),
        };
        let off = (total(outcome) / rate - 1.0).abs() * 100.0;
        off <= NEAR && is_kept == (worst(outcome) <= SKEW)
    }
}
