//! Checks seeds with random faults. `seeds COUNT` runs the first so many of each kind, and
//! `seeds --seed N` one. With a kind first, like `--cluster`, the seeds are of this
//! kind alone. `cargo xtask seeds` starts this program.

use std::process::ExitCode;

use tidegate_sim::seeds::{Kind, violations};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let name = words.first().and_then(|word| word.strip_prefix("--"));
    let kind = name.and_then(Kind::named);
    words.drain(..usize::from(kind.is_some()));
    let number = |text: &str| text.parse::<u64>().ok();
    let seeds = match words[..] {
        ["--seed", seed] => number(seed).map(|seed| seed..seed.saturating_add(1)),
        [count] => number(count).map(|count| 0..count),
        _ => None,
    };
    let Some(seeds) = seeds else {
        eprintln!("usage: seeds [--KIND] COUNT, or seeds [--KIND] --seed N");
        return ExitCode::from(2);
    };
    let mut found = 0;
    for kind in Kind::ALL.into_iter().filter(|one| kind.is_none_or(|kind| kind == *one)) {
        let violations = violations(kind, seeds.clone());
        violations.iter().for_each(|violation| println!("{violation}"));
        println!("{kind}: {} seeds, {} violations", seeds.end - seeds.start, violations.len());
        found += violations.len();
    }
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
