//! The discrete-time model: `cargo run --release -p tidegate-sim --example dtm` prints what it
//! comes to with different parameters, and `-- FILE [table | csv | json]` one scenario.

use std::error::Error;
use std::process::ExitCode;

use tidegate_model::Span;
use tidegate_netsim::dtm::{self, CongestionControl, DtmPlan, RoundTrip, Service};

const CLASSES: &str = include_str!("../../../scenarios/dtm/three-classes.toml");
const SLOTS: u32 = 4_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let shown = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => parameters(),
        [path] => scenario(path, "table"),
        [path, form] => scenario(path, form),
        _ => Err("see the head of examples/dtm.rs".into()),
    };
    if let Err(error) = shown {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn scenario(path: &str, form: &str) -> Result<(), Box<dyn Error>> {
    let named = |error: &dyn Error| format!("{path}: {error}");
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let plan = DtmPlan::parse(&text).map_err(|error| named(&error))?;
    let outcome = dtm::run(&plan)?;
    match form {
        "csv" => print!("{}", outcome.csv()),
        "json" => print!("{}", outcome.json()),
        _ => print!("# {}\n{}", plan.name, outcome.table(plan.slots.min(20) as usize)),
    }
    Ok(())
}

/// A line for each choice of parameters: means of the second half, and when the shares were there,
/// from first windows of 10 packets, of what is offered, and of the whole link.
fn parameters() -> Result<(), Box<dyn Error>> {
    let classes = DtmPlan { slots: SLOTS, ..DtmPlan::parse(CLASSES)? };
    let over = |round_trip: u64, epsilon: f64| DtmPlan {
        delay: Span(round_trip * 500),
        epsilon,
        ..classes.clone()
    };
    let paper = |plan| DtmPlan { service: Service::Paper, ..plan };
    let even = |plan| DtmPlan { cc: CongestionControl::Dctcp, gain: 1.0 / 16.0, ..plan };
    let mut plans = Vec::new();
    for round_trip in [25, 62, 98] {
        plans.extend([0.01, 0.1, 0.3, 0.5].map(|epsilon| over(round_trip, epsilon)));
    }
    plans.push(from(over(98, 0.0), Some(10.0)));
    plans.extend([over(25, 0.01), over(25, 0.1), over(98, 0.1)].map(paper));
    plans.extend([over(25, 0.05), over(98, 0.05)].map(even));
    plans.extend(
        [RoundTrip::Bare, RoundTrip::OneWay]
            .map(|round_trip| DtmPlan { round_trip, ..over(62, 0.01) }),
    );
    plans.extend([0.5, 0.9].map(|gamma| DtmPlan { gamma, ..over(25, 0.1) }));
    println!(
        "{:>6} {:>6} {:>6} {:>7} {:>5} {:>5} {:>22} {:>20} {:>18} {:>18}",
        "serve", "trip", "us", "g", "eps", "gamma", "shares %", "Q", "queue", "settled at slot"
    );
    plans.iter().try_for_each(line)
}

fn from(mut plan: DtmPlan, window: Option<f64>) -> DtmPlan {
    plan.flow.iter_mut().for_each(|flow| flow.window = window);
    plan
}

fn line(plan: &DtmPlan) -> Result<(), Box<dyn Error>> {
    let outcome = dtm::run(plan)?;
    let half = outcome.slots.len() / 2..outcome.slots.len();
    let list = |values: Vec<f64>, decimals: usize| {
        let each = values.iter().map(|value| format!("{value:.decimals$}"));
        each.collect::<Vec<_>>().join(" / ")
    };
    let quality = outcome.means(half.clone(), |flow| flow.quality);
    let [mean, least, most] = outcome.queue(half.clone());
    let whole = plan.capacity.0 as f64 / plan.packet.0 as f64 * 2.0 * plan.delay.as_seconds();
    let mut settled = Vec::new();
    for window in [Some(10.0), None, Some(whole)] {
        let slot = dtm::run(&from(plan.clone(), window))?.settled();
        settled.push(slot.map_or("-".to_owned(), |slot| slot.to_string()));
    }
    let service = match (plan.cc, plan.service) {
        (CongestionControl::Dctcp, _) => "dctcp",
        (CongestionControl::Qtcp, Service::Fcfs) => "fcfs",
        (CongestionControl::Qtcp, Service::Paper) => "paper",
    };
    let trip = match plan.round_trip {
        RoundTrip::Queued => "2d+q",
        RoundTrip::Bare => "2d",
        RoundTrip::OneWay => "d+q",
    };
    println!(
        "{service:>6} {trip:>6} {:>6} {:>7} {:>5} {:>5} {:>22} {:>20} {:>18} {:>18}",
        plan.delay.0 * 2 / 1_000,
        plan.gain,
        plan.epsilon,
        plan.gamma,
        list(outcome.shares(half), 1),
        list(quality, 2),
        format!("{mean:.0} [{least:.0}, {most:.0}]"),
        settled.join(" / ")
    );
    Ok(())
}
