//! Haechi's parameters: the effects of batch, check interval, period, margin and window, one at a
//! time. Nine tenths of the data node are promised by Zipf's distribution. Each choice runs twice:
//! once all clients want all they can get, once two want less than their promises.

use serde_json::{Value, json};
use tidegate_algo::onesided::{Grain, Rules};
use tidegate_model::Span;
use tidegate_sim::one_sided::{Control, OneSidedReport, Scenario};

use super::plot::{Panel, Series, draw};
use super::{
    CONTROL, FIGURE_9B, FIGURE_10B, FigureContext, FigureResult, HaechiRun, Kept, SKEW, USED,
    control,
};
use super::{scenario, source, tenths, thousandths, total};
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// A number that was chosen and others in its place, and which of these are known to lose a
/// promise: reservations, throughput, or how little is for control.
struct ChosenNumber {
    name: &'static str,
    values: &'static [u64],
    known_to_lose: &'static [u64],
    set: fn(&mut Scenario, &mut Grain, u64),
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const CHOICES: [ChosenNumber; 5] = [
    ChosenNumber {
        name: "batch, tokens",
        values: &[16, 64, 1_000],
        known_to_lose: &[16],
        set: |_, grain, value| grain.batch = value as u16,
    },
    ChosenNumber {
        name: "check interval, us",
        values: &[250, 1_000, 4_000],
        known_to_lose: &[4_000],
        set: |_, grain, value| grain.tick = Span(value * US),
    },
    ChosenNumber {
        name: "period, ms",
        values: &[100, 250, 1_000],
        known_to_lose: &[100],
        set: |scenario, _, value| {
            scenario.period = Span(value * MS);
            scenario.periods = (u64::from(scenario.periods) * 1_000).div_ceil(value) as u32;
        },
    },
    ChosenNumber {
        name: "margin, parts of a period",
        values: &[10, 50, 1_000],
        known_to_lose: &[],
        set: |_, grain, value| grain.margin = value,
    },
    ChosenNumber {
        name: "window, reads",
        values: &[8, 64, 256],
        known_to_lose: &[],
        set: |scenario, _, value| {
            scenario.client.iter_mut().for_each(|clients| clients.window = value as u32);
        },
    },
];

/// Both loads, and how long they are measured, in seconds.
const LOADS: [&str; 2] = [FIGURE_9B, FIGURE_10B];
const SECONDS: u32 = 4;

/// Load by load: without control, then each choice with each of its values.
static RUNS: Kept = Kept::new(|| {
    let mut all = Vec::new();
    for text in LOADS {
        let base = Scenario { periods: SECONDS, ..scenario(text)? };
        all.push(Scenario { control: Control::None, ..base.clone() });
        for ChosenNumber { values, set, .. } in &CHOICES {
            all.extend(values.iter().map(|value| {
                let (mut one, mut grain) = (base.clone(), Grain::CHOSEN);
                set(&mut one, &mut grain, *value);
                Scenario { control: Control::By(Rules { grain, ..Rules::SOUND }), ..one }
            }));
        }
    }
    Ok(all)
});

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let (busy, idle) = runs.split_at(runs.len() / LOADS.len());
    let mut table = Table::new().left("CHOICE").right("").right("MISSING, %").right("OF BARE, %");
    table = table.right("FOR CONTROL, %").right("WITH 2 IDLE: MISSING, %").right("OF BARE, %");
    table = table.right("FOR CONTROL, %");
    let (mut claims, mut panels) = (Vec::new(), Vec::new());
    let mut index = 1;
    for choice in &CHOICES {
        let indicators_of =
            |load: &[HaechiRun], at: usize| Indicators::of(&load[at].outcome, &load[0].outcome);
        let indices = index..index + choice.values.len();
        index = indices.end;
        let indicators: Vec<[Indicators; 2]> =
            indices.clone().map(|at| [busy, idle].map(|load| indicators_of(load, at))).collect();
        for (value, indicators) in choice.values.iter().zip(&indicators) {
            let mut cells: Vec<Cell> = vec![choice.name.into(), value.to_string().into()];
            for Indicators { missing, used, control } in indicators {
                cells.extend([missing, used, control].map(|one| Cell::from(format!("{one:.2}"))));
            }
            table.row(cells);
        }
        let series = [("all busy", 0), ("two idle", 1)].map(|(name, load)| {
            let points = (1u32..)
                .zip(&indicators)
                .map(|(at, indicators)| (f64::from(at), indicators[load].used));
            Series::line(name, points.collect())
        });
        panels.push(Panel::new(choice.name, ["values in their order", "percent of bare"], series));
        claims.push(kept(choice, &indicators, &[&busy[indices.clone()], &idle[indices]].concat()));
    }
    Ok(FigureResult { claims, table, picture: draw("Numbers that were chosen", &panels) })
}

/// Results of one run, in percent.
struct Indicators {
    /// The most that a client misses of its reservation in its worst period.
    missing: f64,
    used: f64,
    control: f64,
}

impl Indicators {
    fn of(outcome: &OneSidedReport, bare: &OneSidedReport) -> Self {
        let clients = super::clients(outcome);
        let missing = clients.map(|client| outcome.missing_percent(client)).fold(0.0, f64::max);
        let used = total(outcome) / total(bare) * 100.0;
        Self { missing, used, control: control(outcome) }
    }

    fn is_good(&self) -> bool {
        self.missing <= SKEW && self.used >= USED && self.control < CONTROL
    }

    fn to_json(&self) -> Value {
        json!({
            "missing_at_most_percent": thousandths(self.missing),
            "percent_of_bare": tenths(self.used),
            "operations_for_control_percent": thousandths(self.control),
        })
    }
}

fn kept(choice: &ChosenNumber, indicators: &[[Indicators; 2]], runs: &[HaechiRun]) -> Claim {
    let ChosenNumber { name, values, known_to_lose, .. } = choice;
    let pairs = || values.iter().zip(indicators);
    let is_other = |(value, indicators): &(&u64, &[Indicators; 2])| {
        indicators.iter().all(Indicators::is_good) == known_to_lose.contains(value)
    };
    let others = pairs().filter(is_other).count();
    let list = |are_good: bool| {
        let some = values.iter().filter(|value| known_to_lose.contains(value) != are_good);
        some.map(u64::to_string).collect::<Vec<_>>().join(", ")
    };
    let but = match known_to_lose.is_empty() {
        true => String::new(),
        false => format!("; not so with {}", list(false)),
    };
    let claim = source("sensitivity", runs).claim(
        format!(
            "{name}: with {} all have their reservations, read at least {USED} % of what they do \
             without control, and need less than {CONTROL} % for it{but}",
            list(true)
        ),
        json!({
            "values": pairs().map(|(value, [busy, idle])| json!({
                "value": value,
                "all_busy": busy.to_json(),
                "two_idle": idle.to_json(),
            })).collect::<Vec<_>>(),
        }),
        [at_most("values with another result", "", 0.0, others as f64)],
    );
    claim.ours()
}
