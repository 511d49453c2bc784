//! Ablation of our corrections to Haechi's rules: the paper's rules with one correction added after
//! the other, and all corrections without each of them.

use serde_json::json;
use tidegate_algo::onesided::{Mode, Rules};
use tidegate_model::{Iops, Span};
use tidegate_sim::one_sided::{self, Change, Control, OneSidedReport, Scenario};

use super::plot::{Panel, Series, draw};
use super::{FIGURE_9A, FIGURE_9B, FIGURE_13A, FigureContext, FigureResult, SKEW, paper, scenario};
use super::{simulate, tenths, total};
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// A run's outcome; `None` if the data node refuses the reservations.
type AblationRun = paper::TimedRun<Option<OneSidedReport>>;

/// Rules, and their known result with each of [`LOADS`].
struct RuleRow {
    name: &'static str,
    control: Control,
    known: [Comes; LOADS.len()],
}

/// Result of rules: the data node refuses the reservations; or all reservations are kept, or some
/// are missed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Refused,
    Kept,
    Missed,
}

use Comes::{Kept, Missed, Refused};

const DECAY: Rules = Rules { tokens: Mode::Sound, ..Rules::PAPER };
const BOUNDED: Rules = Rules { pool: Mode::Sound, ..DECAY };

const fn row(name: &'static str, control: Control, known: [Comes; LOADS.len()]) -> RuleRow {
    RuleRow { name, control, known }
}

/// The shipped rules, with one of them as in the paper's text.
const TEXT_DECAY: Rules = Rules { tokens: Mode::Paper, ..Rules::SOUND };
const TEXT_POOL: Rules = Rules { pool: Mode::Paper, ..Rules::SOUND };
const TEXT_ESTIMATOR: Rules = Rules { capacity: Mode::Paper, ..Rules::SOUND };

/// Without control; the text, with one rule more in each row; then the shipped rules, each row with
/// one rule as in the text.
#[rustfmt::skip]
const ROWS: [RuleRow; 9] = [
    row("bare", Control::None, [Kept, Missed, Missed, Missed, Missed, Missed]),
    row("paper", Control::Paper, [Kept, Missed, Missed, Missed, Missed, Missed]),
    row("+ decay only if idle", Control::By(DECAY), [Kept, Missed, Missed, Missed, Missed, Missed]),
    row("+ bounded pool", Control::By(BOUNDED), [Kept, Kept, Kept, Missed, Kept, Kept]),
    row("+ estimator", Control::Unpaced, [Kept, Kept, Kept, Refused, Kept, Kept]),
    row("+ pacing: sound", Control::Sound, [Kept, Kept, Kept, Kept, Kept, Kept]),
    row("sound, but text's decay", Control::By(TEXT_DECAY), [Kept, Kept, Kept, Kept, Kept, Kept]),
    row("sound, but text's pool", Control::By(TEXT_POOL), [
        Kept, Missed, Missed, Kept, Missed, Missed,
    ]),
    row("sound, but text's estimator", Control::By(TEXT_ESTIMATOR), [Kept; 6]),
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
    let rows: Vec<&[AblationRun]> = shown.chunks(LOADS.len()).collect();
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
    let panel = Panel::new(
        "Rules one by one",
        ["uniform, Zipf 80 %, Zipf 90 %, spike, slower, faster", "thousand reads per second"],
        series,
    );
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

fn comes_out(row: &RuleRow, shown: &[AblationRun]) -> Claim {
    let pairs = || shown.iter().map(|one| one.outcome.as_ref()).zip(row.known).zip(LOADS);
    let mut measured = json!({});
    let mut others = 0;
    for ((outcome, known), load) in pairs() {
        measured[load] = match outcome {
            None => "refused".into(),
            Some(outcome) => json!({
                "kilo_per_second": tenths(total(outcome)),
                "missing_at_most_percent": tenths(worst(outcome)),
            }),
        };
        others += u32::from(known != Comes::of(outcome));
    }
    let with = |verb: &str, is_so: fn(Comes) -> bool| {
        let loads = pairs().filter(|((_, known), _)| is_so(*known)).map(|(_, load)| load);
        let loads: Vec<&str> = loads.collect();
        (!loads.is_empty()).then(|| format!("{verb}: {}", loads.join(", ")))
    };
    let parts = [
        with("kept", |comes| comes == Kept),
        with("missed", |comes| comes == Missed),
        with("refused", |comes| comes == Refused),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let seconds = shown.iter().fold(0.0, |sum, one| sum + one.seconds);
    let source = paper::ClaimSource { seconds: tenths(seconds), ..super::source("ablation", &[]) };
    let claim = source.claim(
        format!("{}: reservations are {}", row.name, parts.join("; ")),
        measured,
        [at_most("loads with another result", "", 0.0, f64::from(others))],
    );
    claim.ours()
}

impl Comes {
    fn of(outcome: Option<&OneSidedReport>) -> Self {
        match outcome {
            None => Refused,
            Some(outcome) if worst(outcome) <= SKEW => Kept,
            Some(_) => Missed,
        }
    }
}
