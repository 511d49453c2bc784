//! Runs one-sided scenarios and prints what their clients read: `cargo run --release -p
//! tidegate-sim --example one_sided -- FILE…`.

use std::error::Error;
use std::process::ExitCode;

use tidegate_onesided::haechi::MonitorEvent;
use tidegate_sim::one_sided::{self, Scenario, nodes};

fn main() -> ExitCode {
    for path in std::env::args().skip(1) {
        if let Err(error) = show(&path) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn show(path: &str) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    if let Ok(scenario) = nodes::Scenario::parse(&text) {
        println!("{}\n{}", scenario.name, nodes::run(&scenario)?.table());
        return Ok(());
    }
    let scenario = Scenario::parse(&text)?;
    let outcome = one_sided::run(&scenario)?;
    println!("{}\n{}", scenario.name, outcome.table());
    for event in &outcome.events {
        match event {
            MonitorEvent::Over(summary) => println!(
                "period {}: capacity {}, {} of {} pool tokens granted, held for {} of 255, {:?}",
                summary.epoch,
                summary.capacity,
                summary.granted,
                summary.minted,
                summary.held,
                summary.verdict
            ),
            event => println!("{event:?}"),
        }
    }
    let count =
        |of: fn(&one_sided::OperationCounts) -> u64| outcome.counts.iter().map(of).sum::<u64>();
    let (data, control) = (count(|counts| counts.data), count(|counts| counts.control));
    println!("{data} reads, {control} operations for control");
    Ok(())
}
