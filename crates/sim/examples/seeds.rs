//! Checks seeds with random faults. `seeds COUNT` runs the first so many of the cluster, and
//! `seeds --seed N` one. With `--one-sided` first, the seeds are of clients with one-sided access.
//! `cargo xtask seeds` starts this program.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tidegate_sim::one_sided::faults;
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
        true => faults::check(seed).map_err(|violation| violation.to_string()),
        false => seeds::check(seed).map_err(|violation| violation.to_string()),
    };
    let violations = in_parallel(seeds, check);
    for violation in &violations {
        println!("{violation}");
    }
    println!("{count} seeds, {} violations", violations.len());
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the violations, in the order of seeds. Runs share no state.
fn in_parallel(seeds: Range<u64>, check: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(BTreeMap::new());
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(violation) = check(seed) {
                        found
                            .lock()
                            .expect("nothing panics while it is held")
                            .insert(seed, violation);
                    }
                }
            });
        }
    });
    found.into_inner().expect("nothing panics while it is held").into_values().collect()
}
