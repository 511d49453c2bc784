//! Runs scenarios and prints what tenants were served: `cargo run --release --example cluster --
//! FILE…`.

use std::process::ExitCode;

use tidegate_sim::cluster;
use tidegate_sim::scenario::Scenario;

fn main() -> ExitCode {
    for path in std::env::args().skip(1) {
        if let Err(error) = show(&path) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn show(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let scenario = Scenario::parse(&std::fs::read_to_string(path)?)?;
    let outcome = cluster::run(&scenario)?;
    println!("{}", scenario.name);
    let tenants = outcome.promises.len();
    if tenants <= 12 {
        print!("{}", outcome.table());
    }
    for period in 0..outcome.periods() {
        let (met, near) = (outcome.met(period, 1_000), outcome.met(period, 950));
        println!(
            "period {period}: {met} of {tenants} got their reservation, {near} got 95 % of it, {} \
             got more than their limit",
            outcome.above_limit(period)
        );
    }
    let messages = outcome.to_nodes + outcome.from_nodes;
    println!("{} requests, {messages} messages, {} events", outcome.submitted, outcome.events);
    Ok(())
}
