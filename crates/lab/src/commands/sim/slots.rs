//! The results of a run of the discrete-time model: for people, for programs and as a picture.
//!
//! The figures of each flow cover the second half of the slots, in which the model has either
//! settled or never will. *Example*: three flows that are promised 3 : 2 : 1 of a link have 49.9,
//! 33.3 and 16.8 % of it there.

use serde_json::{Map, Value, json};
use tidegate_netsim::dtm::{DtmFlow, DtmPlan, DtmReport};

use super::sweep::{Figure, PointResult};
use crate::experiment::plot::{self, Panel, Series};
use tidegate_console::amounts;
use tidegate_console::output::Paint;
use tidegate_console::table::Table;

/// Points of a line in the picture, each the mean of as many slots: as many as it is pixels wide.
const POINTS: usize = 400;

/// The figures of all flows, as means of the second half of the slots.
struct Settled {
    shares: Vec<f64>,
    quality: Vec<f64>,
    alpha: Vec<f64>,
    window: Vec<f64>,
    queue: Vec<f64>,
    /// The queue of the link: the mean, the least and the most.
    queues: [f64; 3],
}

impl Settled {
    fn new(outcome: &DtmReport) -> Self {
        let count = outcome.slots.len();
        let half = count / 2..count;
        let means = |of: fn(&DtmFlow) -> f64| outcome.means(half.clone(), of);
        Self {
            shares: outcome.shares(half.clone()),
            quality: means(|flow| flow.quality),
            alpha: means(|flow| flow.alpha),
            window: means(|flow| flow.window),
            queue: means(|flow| flow.queue),
            queues: outcome.queue(half.clone()),
        }
    }
}

/// When all flows had what they were promised, in nanoseconds from the first slot.
fn settled_ns(outcome: &DtmReport, slot: usize) -> u64 {
    (outcome.slots[slot].at.0 - outcome.slots[0].at.0) / 1_000
}

pub(super) fn formatted(plan: &DtmPlan, outcome: &DtmReport, paint: Paint) -> String {
    let mut table = Table::new().left("FLOW");
    for head in ["PROMISED", "GOT", "Q", "ALPHA", "WINDOW", "QUEUE"] {
        table = table.right(head);
    }
    let settled = Settled::new(outcome);
    for (flow, name) in outcome.names.iter().enumerate() {
        let promised = outcome.promised[flow].map(|share| format!("{share:.1} %"));
        table.row([
            name.as_str().into(),
            promised.unwrap_or_else(|| "a latency".into()).into(),
            format!("{:.1} %", settled.shares[flow]).into(),
            format!("{:.3}", settled.quality[flow]).into(),
            format!("{:.4}", settled.alpha[flow]).into(),
            format!("{:.1}", settled.window[flow]).into(),
            format!("{:.1}", settled.queue[flow]).into(),
        ]);
    }
    let [mean, least, most] = settled.queues;
    let when = match outcome.settled() {
        Some(slot) => format!(
            "shares within a tenth of promises from slot {slot}, {}",
            amounts::span(settled_ns(outcome, slot))
        ),
        None => "shares never within a tenth of promises for good".into(),
    };
    format!(
        "{}\n\n{}\nMeans of the second half; WINDOW and QUEUE are packets.\n\nqueue {mean:.1} \
         packets, from {least:.1} to {most:.1}; {when}\n{} slots; seed {}\n",
        plan.name,
        table.render(paint, usize::MAX),
        outcome.slots.len(),
        plan.seed
    )
}

pub(super) fn to_json(plan: &DtmPlan, outcome: &DtmReport) -> Value {
    let settled = Settled::new(outcome);
    let flow = |(flow, name): (usize, &String)| {
        json!({
            "name": name,
            "promised_percent": outcome.promised[flow],
            "got_percent": settled.shares[flow],
            "quality": settled.quality[flow],
            "alpha": settled.alpha[flow],
            "window_packets": settled.window[flow],
            "queue_packets": settled.queue[flow],
        })
    };
    let [mean, least, most] = settled.queues;
    json!({
        "name": plan.name,
        "model": "dtm",
        "seed": plan.seed,
        "slots": outcome.slots.len(),
        "settled_slot": outcome.settled(),
        "settled_ns": outcome.settled().map(|slot| settled_ns(outcome, slot)),
        "queue_mean_packets": mean,
        "queue_least_packets": least,
        "queue_most_packets": most,
        "flows": outcome.names.iter().enumerate().map(flow).collect::<Vec<_>>(),
    })
}

/// The results of a point of a sweep.
pub(super) fn shown(plan: &DtmPlan, outcome: &DtmReport) -> PointResult {
    let settled = Settled::new(outcome);
    let mut figures = Vec::new();
    for (flow, name) in outcome.names.iter().enumerate() {
        let (share, quality) = (settled.shares[flow], settled.quality[flow]);
        let got = format!("{name}_got_percent");
        figures.push(Figure::new(format!("{name} %"), format!("{share:.1}"), got, share));
        let column = format!("{name}_quality");
        figures.push(Figure::new(format!("{name} Q"), format!("{quality:.3}"), column, quality));
    }
    let mean = settled.queues[0];
    figures.push(Figure::new("QUEUE", format!("{mean:.1}"), "queue_mean_packets", mean));
    let slot = outcome.settled().map_or_else(String::new, |slot| slot.to_string());
    figures.push(Figure::new("SETTLED", slot.clone(), "settled_slot", slot));
    let json = match to_json(plan, outcome) {
        Value::Object(json) => json,
        _ => Map::new(),
    };
    PointResult { figures, json, fault: None }
}

pub(super) fn drawn(title: &str, outcome: &DtmReport) -> String {
    let each = outcome.slots.len().div_ceil(POINTS);
    let ranges = || {
        let starts = (0..outcome.slots.len()).step_by(each);
        starts.map(move |start| start..(start + each).min(outcome.slots.len()))
    };
    let at = |slot: usize| outcome.slots[slot].at.0 as f64 / 1e9;
    let panel =
        |title: &str, y: &'static str, series: Vec<Series>| Panel::new(title, ["ms", y], series);
    let lines = |values: &dyn Fn(core::ops::Range<usize>) -> Vec<f64>| -> Vec<Series> {
        let rows: Vec<(f64, Vec<f64>)> =
            ranges().map(|range| (at(range.start), values(range))).collect();
        let line = |(flow, name): (usize, &String)| {
            let points = rows.iter().map(|(at, values)| (*at, values[flow]));
            Series::line(name.clone(), points.collect())
        };
        outcome.names.iter().enumerate().map(line).collect()
    };
    let queue = ranges().map(|range| (at(range.start), outcome.queue(range)[0])).collect();
    let quality = |range| outcome.means(range, |flow| flow.quality.min(3.0));
    plot::draw(
        title,
        &[
            panel("got of the link", "%", lines(&|range| outcome.shares(range))),
            panel("quality factor", "Q, up to 3", lines(&quality)),
            panel("alpha", "", lines(&|range| outcome.means(range, |flow| flow.alpha))),
            panel("queue", "packets", vec![Series::line("all flows", queue)]),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_netsim::dtm;

    const SCENARIO: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/dtm/three-classes.toml");

    #[test]
    fn texts_and_json_are_as_recorded() {
        let mut plan = DtmPlan::parse(&std::fs::read_to_string(SCENARIO).unwrap()).unwrap();
        let outcome = dtm::run(&plan).unwrap();
        insta::assert_snapshot!(formatted(&plan, &outcome, Paint::none()));
        let json = to_json(&plan, &outcome);
        insta::assert_snapshot!(serde_json::to_string_pretty(&json).unwrap());
        plan.slots = 1_000;
        let svg = drawn("x", &dtm::run(&plan).unwrap());
        // Three lines in each of three panels, and one in the last.
        assert_eq!(svg.matches("stroke-width=\"8\" points=").count(), 10);
        assert!(!svg.contains("NaN"));
    }
}
