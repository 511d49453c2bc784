//! Runs a one-sided scenario and prints what its clients read:
//! `cargo run --release -p tidegate-sim --example one_sided scenarios/haechi/figure-8b.toml`

use std::error::Error;
use std::time::Instant;

use tidegate_sim::one_sided::{self, Scenario};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which scenario?")?;
    let scenario = Scenario::parse(&std::fs::read_to_string(&path)?)?;
    let start = Instant::now();
    let outcome = one_sided::run(&scenario)?;
    let seconds = start.elapsed().as_secs_f64();
    print!("{}", outcome.table());
    let reads: u64 = outcome.counts.iter().map(|counts| counts.data).sum();
    println!("{reads} reads, {:.0} ns each", seconds * 1e9 / reads.max(1) as f64);
    Ok(())
}
