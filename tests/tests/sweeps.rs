//! Simulations and sweeps of them from Python.

use std::path::Path;
use std::process::Command;

use tidegate_tests::{built, process, tools};

/// Where Ray is installed, its part is run on a Ray of this machine; where it is not, the others
/// are, and the reason is printed.
#[test]
fn python_sweeps_with_the_program() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let mut command = Command::new(tools::need("python3"));
    command.env("PYTHONPATH", &python).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("TIDEGATE_PROGRAM", built::tidegate_lab());
    command.args(["-m", "unittest", "discover", "--verbose", "--pattern", "test_sweep.py"]);
    let outcome = process::run(command.arg("--start-directory").arg(python.join("tests")));
    let outcome = outcome.success();
    assert!(outcome.stderr.contains("Ran 5 tests"), "{outcome:?}");
    outcome
        .stderr
        .lines()
        .filter(|line| line.contains("skipped"))
        .for_each(|line| println!("{line}"));
}
