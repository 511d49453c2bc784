//! Figure 8 of the end-to-end paper: its discrete-time model of QTCP beside a packet simulation of
//! the same three flows.

use serde_json::json;
use tidegate_netsim::dtm;

use super::paper::simulate;
use super::plot::{Panel, Series, draw};
use super::{
    CLASSES, Claim, E2eRun, FigureContext, FigureResult, NEAR_SHARE, PACKET, PACKETS, SHARES,
    each_near, gbps, parts, row, run, scenario, source, wrong,
};
use crate::experiment::verdict::near;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The model's own scenario.
const THREE_CLASSES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/dtm/three-classes.toml"));

/// So many slots are one point of the picture, and so many points show what becomes of the flows.
const SLOTS: usize = 20;
const POINTS: usize = 10;

/// "Almost identical": so many percent of the link apart.
const ALIKE: f64 = 3.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let plan = dtm::DtmPlan::parse(THREE_CLASSES).map_err(wrong)?;
    let model = simulate(context, vec![plan], dtm::run)?;
    let packets = run(context, vec![scenario(PACKETS)?])?;
    let (model, packets) = (&model[0].outcome, &packets[0]);
    let count = model.slots.len();
    let theirs = parts(&model.shares(count / 2..count));
    let ours = parts(&gbps(&packets.outcome, |moment| moment.there));
    let panel = panel(model, packets);
    Ok(FigureResult {
        claims: vec![alike(packets, &theirs, &ours), promised(packets, &theirs, &ours)],
        table: table(&theirs, &ours),
        picture: draw("Three flows share a link", &[panel]),
    })
}

/// Percent of what is carried, over milliseconds: of the model as it goes, of packets as well.
fn panel(model: &dtm::DtmReport, packets: &E2eRun) -> Panel {
    let phases = || (0..POINTS).map(|point| point * SLOTS..(point + 1) * SLOTS);
    let of_model = CLASSES.iter().enumerate().map(|(flow, class)| {
        let points = phases().map(|slots| {
            let at = model.slots[slots.end - 1].at.0 as f64 / 1e9;
            (at, parts(&model.shares(slots))[flow])
        });
        Series::line(format!("{class}, model"), points.collect())
    });
    let applications = &packets.outcome.applications;
    let until = model.slots[POINTS * SLOTS - 1].at.0 as f64 / 1e9;
    let of_packets = CLASSES.iter().enumerate().map(|(flow, class)| {
        let points = (0..applications[flow].series.len()).map(|index| {
            let all: Vec<f64> =
                applications.iter().map(|one| one.series[index].there as f64).collect();
            ((index + 1) as f64, parts(&all)[flow])
        });
        let points = points.filter(|(at, _)| *at <= until);
        Series::line(format!("{class}, packets"), points.collect())
    });
    let title = "what of the link is carried for whom";
    Panel::new(title, ["ms", "%"], of_model.chain(of_packets))
}

fn alike(packets: &E2eRun, theirs: &[f64], ours: &[f64]) -> Claim {
    let theirs_rounded: Vec<f64> = theirs.iter().copied().map(super::tenths).collect();
    source("8", &[packets]).claim(
        "the model and the simulated packets carry almost the same for each class",
        json!({ "model_percent": theirs, "packets_percent": ours }),
        each_near(&CLASSES, "%", &theirs_rounded, ALIKE, ours),
    )
}

fn promised(packets: &E2eRun, theirs: &[f64], ours: &[f64]) -> Claim {
    let checks = [("model", theirs), ("packets", ours)].into_iter().flat_map(|(what, parts)| {
        let each = CLASSES.iter().zip(SHARES).zip(parts);
        each.map(move |((class, share), part)| {
            near(format!("{what}: {class}"), "%", share, NEAR_SHARE, *part)
        })
    });
    source("8", &[packets])
        .claim(
            "in both, classes have 3 : 2 : 1",
            json!({ "model_percent": theirs, "packets_percent": ours }),
            checks,
        )
        .because(PACKET)
}

fn table(theirs: &[f64], ours: &[f64]) -> Table {
    let mut table = Table::new().left("% OF WHAT IS CARRIED").each_right(CLASSES);
    for (name, parts) in [("model", theirs), ("packets", ours)] {
        table.row(row(&[name], parts, 1));
    }
    table
}
