//! The results of a packet simulation: for people, for programs and for spreadsheets.

use std::io::{self, Write};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tidegate_model::Class;
use tidegate_model::tag::CLASSES;
use tidegate_netsim::e2e::{
    Amount, E2eReport, Egress, Hop, HopMoment, Moment, Scenario, ServiceReport,
};

use super::quoted;
use super::sweep::{Figure, PointResult};
use crate::experiment::{moments, plot};
use tidegate_console::amounts;
use tidegate_console::output::Paint;
use tidegate_console::table::Table;

/// How many links are printed.
const LINKS: usize = 5;

/// In gigabits per second.
fn gbps(bits: f64) -> String {
    format!("{:.2}", bits / 1e9)
}

pub(super) fn formatted(scenario: &Scenario, outcome: &E2eReport, paint: Paint) -> String {
    format!(
        "{}\n\n{}\nTHERE, STORED and BACK are Gbit/s.\n\n{}\n{} simulated, {} counted; {} events; \
         seed {}\n",
        scenario.name,
        applications(outcome).render(paint, usize::MAX),
        links(outcome).render(paint, usize::MAX),
        outcome.length,
        outcome.counted(),
        amounts::count(outcome.events),
        outcome.seed
    )
}

fn applications(outcome: &E2eReport) -> Table {
    let mut table = Table::new().left("APPLICATION").left("CLASS");
    for head in ["ASKED", "DONE", "THERE", "STORED", "BACK", "p50", "p99", "DEVICE p50", "p99"] {
        table = table.right(head);
    }
    let mut table = table.right("LATE");
    for one in &outcome.applications {
        table.row([
            one.name.as_str().into(),
            one.class.name().into(),
            amounts::count(one.requested.requests).into(),
            amounts::count(one.done.requests).into(),
            gbps(outcome.rate(one, |moment| moment.there)).into(),
            gbps(outcome.rate(one, |moment| moment.stored)).into(),
            gbps(outcome.rate(one, |moment| moment.back)).into(),
            amounts::span(one.latency.value_at_quantile(0.5)).into(),
            amounts::span(one.latency.value_at_quantile(0.99)).into(),
            amounts::span(one.device.value_at_quantile(0.5)).into(),
            amounts::span(one.device.value_at_quantile(0.99)).into(),
            amounts::count(one.late).into(),
        ]);
    }
    table
}

fn links(outcome: &E2eReport) -> Table {
    let mut table = Table::new().left("LINK");
    for head in ["BUSY", "QUEUE", "AT MOST", "MARKED", "DROPPED"] {
        table = table.right(head);
    }
    for port in busiest(outcome) {
        let [from, to] = &port.between;
        table.row([
            format!("{from} to {to}").into(),
            amounts::permille((port.busy * 1_000.0).round() as u64).into(),
            amounts::bytes(port.queue_mean.round() as u64).into(),
            amounts::bytes(port.queue_most).into(),
            amounts::count(port.marked).into(),
            amounts::count(port.dropped).into(),
        ]);
    }
    table
}

/// The links at which most waited.
fn busiest(outcome: &E2eReport) -> Vec<&Egress> {
    let mut ports: Vec<&Egress> = outcome.ports.iter().collect();
    ports.sort_by(|one, other| other.queue_mean.total_cmp(&one.queue_mean));
    ports.truncate(LINKS);
    ports
}

const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99_9", 0.999),
    ("p99_99", 0.9999),
];

pub(super) fn to_json(scenario: &Scenario, outcome: &E2eReport) -> Value {
    let quantiles = |times: &Histogram<u64>| -> Value {
        let each =
            QUANTILES.map(|(name, at)| (name.to_owned(), times.value_at_quantile(at).into()));
        let mut all: serde_json::Map<String, Value> = each.into_iter().collect();
        all.insert("mean".into(), times.mean().into());
        all.insert("count".into(), times.len().into());
        all.into()
    };
    let class = |one: &Together| {
        json!({
            "class": one.class.name(),
            "done_requests": one.done.requests,
            "done_bytes": one.done.bytes,
            "done_bits_per_second": one.rate(outcome),
            "latency_ns": quantiles(&one.latency),
        })
    };
    let application = |one: &ServiceReport| {
        json!({
            "name": one.name,
            "class": one.class.name(),
            "asked_requests": one.requested.requests,
            "asked_bytes": one.requested.bytes,
            "done_requests": one.done.requests,
            "done_bytes": one.done.bytes,
            "late_requests": one.late,
            "there_bits_per_second": outcome.rate(one, |moment| moment.there),
            "stored_bits_per_second": outcome.rate(one, |moment| moment.stored),
            "back_bits_per_second": outcome.rate(one, |moment| moment.back),
            "latency_ns": quantiles(&one.latency),
            "device_ns": quantiles(&one.device),
        })
    };
    let link = |port: &Egress| {
        json!({
            "from": port.between[0],
            "to": port.between[1],
            "packets": port.packets,
            "bytes": port.bytes,
            "busy": port.busy,
            "marked_packets": port.marked,
            "dropped_packets": port.dropped,
            "queue_mean_bytes": port.queue_mean,
            "queue_most_bytes": port.queue_most,
        })
    };
    json!({
        "name": scenario.name,
        "model": "packets",
        "seed": outcome.seed,
        "simulated_ns": outcome.length.0,
        "counted_ns": outcome.counted().0,
        "events": outcome.events,
        "fault": outcome.fault.as_ref().map(ToString::to_string),
        "classes": together(outcome).iter().map(class).collect::<Vec<_>>(),
        "applications": outcome.applications.iter().map(application).collect::<Vec<_>>(),
        "links": outcome.ports.iter().map(link).collect::<Vec<_>>(),
    })
}

/// The completed work of all applications of a class.
struct Together {
    class: Class,
    done: Amount,
    latency: Histogram<u64>,
}

impl Together {
    /// The completed bits per second.
    fn rate(&self, outcome: &E2eReport) -> f64 {
        self.done.bytes as f64 * 8.0 / outcome.counted().as_seconds().max(f64::MIN_POSITIVE)
    }
}

/// Every class that an application has, the most urgent one first.
fn together(outcome: &E2eReport) -> Vec<Together> {
    let of = |class: Class| {
        let mut all = outcome.applications.iter().filter(|one| one.class == class);
        let first = all.next()?;
        let (mut done, mut latency) = (first.done, first.latency.clone());
        for one in all {
            done.requests += one.done.requests;
            done.bytes += one.done.bytes;
            latency.add(&one.latency).expect("all have the same bounds");
        }
        Some(Together { class, done, latency })
    };
    CLASSES.iter().filter_map(|(class, _)| of(*class)).collect()
}

/// The results of a point of a sweep.
pub(super) fn shown(scenario: &Scenario, outcome: &E2eReport) -> PointResult {
    let mut figures = Vec::new();
    for one in together(outcome) {
        let (name, rate) = (one.class.name(), one.rate(outcome));
        let head = name.to_uppercase();
        figures.push(Figure::new(
            format!("{head} Gbit/s"),
            gbps(rate),
            format!("{name}_bits_per_second"),
            rate.round(),
        ));
        for (quantile, at) in [("p50", 0.5), ("p99", 0.99)] {
            let took = one.latency.value_at_quantile(at);
            let column = format!("{name}_{quantile}_ns");
            figures.push(Figure::new(
                format!("{head} {quantile}"),
                amounts::span(took),
                column,
                took,
            ));
        }
    }
    let packets = |of: fn(&Egress) -> u64| outcome.ports.iter().map(of).sum::<u64>();
    let counts = [
        ("MARKED", "marked_packets", packets(|port| port.marked)),
        ("DROPPED", "dropped_packets", packets(|port| port.dropped)),
    ];
    for (head, column, count) in counts {
        figures.push(Figure::new(head, amounts::count(count), column, count));
    }
    let json = match to_json(scenario, outcome) {
        Value::Object(json) => json,
        _ => Map::new(),
    };
    PointResult { figures, json, fault: outcome.fault.clone() }
}

/// Every moment of every application.
pub(super) fn csv(outcome: &E2eReport, to: &mut dyn Write) -> io::Result<()> {
    let heads = "ns,application,class,there_bytes,stored_bytes,back_bytes,window_bytes,alpha,\
                 quality";
    writeln!(to, "{heads}")?;
    for one in &outcome.applications {
        for (number, moment) in (1u64..).zip(&one.series) {
            let Moment { there, stored, back, quality, alpha, window } = moment;
            let (at, name, class) =
                (outcome.sample.0 * number, quoted(&one.name), one.class.name());
            writeln!(
                to,
                "{at},{name},{class},{there},{stored},{back},{window:.0},{alpha:.4},{quality:.4}"
            )?;
        }
    }
    Ok(())
}

/// Every moment of each class at each port that it used.
pub(super) fn links_csv(outcome: &E2eReport, to: &mut dyn Write) -> io::Result<()> {
    writeln!(to, "ns,from,to,class,queue_bytes,sent_bytes,marked_packets,dropped_packets")?;
    for Hop { between, class, series } in &outcome.hops {
        let [from, far] = between.each_ref().map(|name| quoted(name));
        for (number, moment) in (1u64..).zip(series) {
            let HopMoment { queue_bytes, sent_bytes, marked, dropped } = moment;
            let (at, class) = (outcome.sample.0 * number, class.name());
            writeln!(
                to,
                "{at},{from},{far},{class},{queue_bytes},{sent_bytes},{marked},{dropped}"
            )?;
        }
    }
    Ok(())
}

pub(super) fn drawn(title: &str, outcome: &E2eReport) -> String {
    plot::draw(
        title,
        &[
            moments::rates(outcome, "arriving at servers", |moment| moment.there),
            moments::rates(outcome, "done by devices", |moment| moment.stored),
            moments::rates(outcome, "arriving back", |moment| moment.back),
            moments::panel(outcome, "quality factor", "Q, up to 3", |moment| {
                moment.quality.min(3.0)
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_netsim::e2e::Run;

    const SMALL: &str = include_str!("../../../tests/lab/sender.toml");

    #[test]
    fn texts_and_json_are_as_recorded() {
        // A name that is no field as it stands.
        let scenario = Scenario::parse(&SMALL.replace("\"one\"", "\"a, b\"")).unwrap();
        let outcome = Run::new(&scenario).with_ports().go_while(|_| true).unwrap();
        insta::assert_snapshot!(formatted(&scenario, &outcome, Paint::none()));
        let mut written = [Vec::new(), Vec::new()];
        csv(&outcome, &mut written[0]).unwrap();
        links_csv(&outcome, &mut written[1]).unwrap();
        let [csv, links] = written.map(|bytes| String::from_utf8(bytes).unwrap());
        insta::assert_snapshot!(csv);
        insta::assert_snapshot!(links);
    }
}
