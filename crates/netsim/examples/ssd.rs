//! Drives beside MQSim: `cargo run --release -p tidegate-sim --example ssd -- [SEED]…`.
//!
//! Prints for each load of the reference table, ten times as long as the test runs it, what MQSim
//! gives and what is measured here. Then a drive that is old and has to clean while it is written.

use tidegate_model::{Bytes, Class, Portion, Span};
use tidegate_netsim::storage::alone::{Arrivals, CommandFlow, Length, Served, run};
use tidegate_netsim::storage::{Before, Choice, Parameters};

#[path = "../tests/reference/mod.rs"]
mod reference;

fn main() {
    let mut seeds: Vec<u64> =
        std::env::args().skip(1).filter_map(|seed| seed.parse().ok()).collect();
    if seeds.is_empty() {
        seeds.push(1);
    }
    println!(
        "us, MQSim (measured here)       mean              p50              p95              p99"
    );
    for row in reference::rows() {
        for seed in &seeds {
            let outcome = row.run(10, *seed);
            println!("{}", row.name);
            row.wrong(&outcome).iter().for_each(|wrong| println!("    too far off: {wrong}"));
            let flow = &outcome.flows[0];
            let pair = |expected: [f64; 2], measured: f64| {
                let middle = (expected[0] + expected[1]) / 2.0;
                if middle > 1e9 {
                    format!("- ({measured:.0})")
                } else {
                    format!("{middle:.1} ({measured:.1})")
                }
            };
            println!(
                "{:>38} {:>17} {:>17} {:>17}",
                pair(row.mean, flow.mean()),
                pair(row.p50, flow.percentile(50.0)),
                pair(row.p95, flow.percentile(95.0)),
                pair(row.p99, flow.percentile(99.0)),
            );
            let all: u64 = outcome.flows.iter().map(Served::count).sum();
            println!("    {:.1} events for each command", outcome.events as f64 / all as f64);
            for (rate, flow) in row.rates.iter().zip(&outcome.flows) {
                let [mean, p99] = [flow.mean(), flow.percentile(99.0)];
                let measured = flow.per_second;
                println!("    {rate:.0} ({measured:.0}) per second; mean {mean:.0}, p99 {p99:.0}");
            }
        }
    }
    seeds.into_iter().for_each(old);
}

/// A drive of sixteen planes that was filled to 70 % and overwritten: 8 KiB random writes, depth 4.
fn old(seed: u64) {
    let mut drive = Parameters::default();
    let geometry = &mut drive.geometry;
    (geometry.channels, geometry.chips, geometry.blocks, geometry.pages) = (2, 2, 512, 64);
    geometry.page = Bytes(8_192);
    drive.cleaning.spare = Portion(150_000);
    drive.cleaning.threshold = Portion(100_000);
    drive.cleaning.choice = Choice::Greedy;
    drive.before = Before { filled: Portion(700_000), overwrites: 3 };
    let flow = CommandFlow {
        class: Class::High,
        arrivals: Arrivals::Closed(4),
        reads: Portion(0),
        sizes: vec![(8_192, 1)],
        spread: Portion(700_000),
    };
    let length = Length { total: Span(20_000_000_000), skip: Span(2_000_000_000) };
    let outcome = run(&drive, &[flow], length, seed);
    let (flow, counts) = (&outcome.flows[0], outcome.counts);
    let row = |rate: f64, mean: f64, p95: f64, p99: f64, moved: f64| {
        println!("    {rate:.0}/s, mean {mean:.0}, p95 {p95:.0}, p99 {p99:.0}, {moved:.1} moved");
    };
    println!("old drive, 8 KiB writes, depth 4; pages moved for each block; MQSim, then here");
    row(2_109.0, 1_897.0, 5_597.0, 24_725.0, 23.0);
    let moved = counts.moves as f64 / counts.erasures.max(1) as f64;
    row(flow.per_second, flow.mean(), flow.percentile(95.0), flow.percentile(99.0), moved);
}
