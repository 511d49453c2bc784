//! Runs seeds of the cluster under fire: `seeds COUNT` for the first so many, `seeds --seed N` for
//! one. What `cargo xtask seeds` starts.

use std::process::ExitCode;

use tidegate_sim::seeds;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let seeds = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--seed", seed] => number(seed).map(|seed| seed..seed.saturating_add(1)),
        [count] => number(count).map(|count| 0..count),
        _ => None,
    };
    let Some(seeds) = seeds else {
        eprintln!("usage: seeds COUNT, or seeds --seed N");
        return ExitCode::from(2);
    };
    let count = seeds.end - seeds.start;
    let violations: Vec<_> = seeds.filter_map(|seed| seeds::check(seed).err()).collect();
    for violation in &violations {
        println!("{violation}");
    }
    println!("{count} seeds, {} violations", violations.len());
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
