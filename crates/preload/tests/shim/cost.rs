//! The time that the shim adds to a call.

use std::process::Command;

use tidegate_model::{Conditions, Operation};

use crate::support::{Bench, build, directory, run};

/// Nanoseconds of one call, as the program says.
fn nanoseconds(command: &mut Command) -> f64 {
    run(command).trim().parse::<f64>().expect("the program prints a number") / 10.0
}

/// `cargo test --release -p tidegate-preload -- --ignored --nocapture cost`
#[test]
#[ignore = "a measurement, of use only in a release build on a quiet machine"]
fn of_a_small_read_from_the_page_cache() {
    let bench = Bench::with(directory(), &[(Conditions::default(), 0)], None);
    let program = build(&bench.programs, "pread.c", &["-O2"]);
    let mut added = Vec::new();
    for round in 0..9 {
        let mut plain = Command::new(&program);
        let plain = nanoseconds(plain.arg("2000").current_dir(&bench.directory));
        let shimmed = nanoseconds(bench.command(&program).arg("2000"));
        println!("round {round}: {plain:.1} ns without the shim, {shimmed:.1} ns with it");
        added.push(shimmed - plain);
    }
    added.sort_by(f64::total_cmp);
    println!("added: {:.1} ns (median), {:.1} to {:.1}", added[4], added[0], added[8]);
    assert!(bench.count(Operation::Read).0 > 0, "the calls passed a channel");
    assert!(added[4] <= 60.0, "the shim adds at most 60 ns");
}
