//! Runs seeds under fire: `seeds COUNT` for the first so many of the cluster, `seeds --seed N` for
//! one; with `--one-sided` before it of clients with one-sided access. What `cargo xtask seeds`
//! starts.

use std::process::ExitCode;

use tidegate_sim::one_sided::fire;
use tidegate_sim::seeds;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_one_sided = words.first() == Some(&"--one-sided");
    words.drain(..usize::from(is_one_sided));
    let number = |text: &str| text.parse::<u64>().ok();
    let seeds = match words[..] {
        ["--seed", seed] => number(seed).map(|seed| seed..seed.saturating_add(1)),
        [count] => number(count).map(|count| 0..count),
        _ => None,
    };
    let Some(seeds) = seeds else {
        eprintln!("usage: seeds [--one-sided] COUNT, or seeds [--one-sided] --seed N");
        return ExitCode::from(2);
    };
    let count = seeds.end - seeds.start;
    let check = |seed| match is_one_sided {
        true => fire::check(seed).map_err(|violation| violation.to_string()),
        false => seeds::check(seed).map_err(|violation| violation.to_string()),
    };
    let violations: Vec<_> = seeds.filter_map(|seed| check(seed).err()).collect();
    for violation in &violations {
        println!("{violation}");
    }
    println!("{count} seeds, {} violations", violations.len());
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
