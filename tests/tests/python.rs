//! The Python package: scopes, stages in programs without the shim, file systems of fsspec, and its
//! types. Its stores are tested with data nodes, and its simulations in `sweeps.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{built, tools};

const POLICY: &str = r#"
    tenant = [
        { name = "training" },
        { name = "slow", limit = "2MiB/s" },
        { name = "flush" },
        { name = "one-at-a-time" },
    ]
    channel = [
        { name = "one", tenant = "one-at-a-time", gates = [{ kind = "concurrency", depth = 1 }] },
    ]
    [[match]]
    tenant = "slow"
    path = "/slow/**"
    [[match]]
    channel = "one"
    context = "one"
    [[match]]
    tenant = "flush"
    context = "flush"
    [[match]]
    tenant = "training"
"#;

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

/// The tests of a module, with the interpreter `python` and a library, if one is named.
fn unittest(
    python: &Path,
    module: &str,
    library: Option<&Path>,
    change: impl Fn(&mut Command),
) -> ProgramOutcome {
    let mut command = Command::new(python);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDEGATE_") {
            command.env_remove(name);
        }
    }
    command.env("PYTHONPATH", package()).env("PYTHONDONTWRITEBYTECODE", "1");
    let missing = Path::new("/nonexistent/libtidegate.so");
    command.env("TIDEGATE_LIBRARY", library.unwrap_or(missing));
    command.args(["-m", "unittest", "discover", "--verbose", "--pattern", module]);
    command.arg("--start-directory").arg(package().join("tests"));
    change(&mut command);
    process::run(&mut command).success()
}

#[track_caller]
fn expect_ran(outcome: &ProgramOutcome, count: usize) {
    assert!(outcome.stderr.contains(&format!("Ran {count} tests")), "{outcome:?}");
}

#[test]
fn scopes_need_neither_shim_nor_library() {
    let outcome = unittest(&tools::need("python3"), "test_scope.py", None, |_| ());
    expect_ran(&outcome, 3);
}

#[test]
fn a_program_without_the_shim_passes_the_gates_of_a_stage() {
    let bed = Bed::new(POLICY);
    let python = tools::python_with("numpy").unwrap_or_else(|| tools::need("python3"));
    let outcome = unittest(&python, "test_stage.py", Some(&built::library()), |command| {
        command.env("TIDEGATE_SOCKET", bed.socket()).env("TMPDIR", bed.folder());
    });
    expect_ran(&outcome, 14);
    // The controller counts the traffic of a stage as the tenant's.
    bed.wait_for_count("training", "bytes", 2 * 256 * 12_345);
    bed.wait_for_count("flush", "bytes", 200);
}

#[test]
fn a_file_system_of_fsspec_passes_the_gates_of_a_stage() {
    let Some(python) = tools::python_with("fsspec") else { return };
    let bed = Bed::new(POLICY);
    let outcome = unittest(&python, "test_filesystem.py", Some(&built::library()), |command| {
        command.env("TIDEGATE_SOCKET", bed.socket()).env("TMPDIR", bed.folder());
    });
    expect_ran(&outcome, 5);
}

#[test]
fn the_package_has_strict_types() {
    let Some(python) = tools::python_with("mypy") else { return };
    let bed = Bed::empty();
    let mut mypy = Command::new(python);
    mypy.args(["-m", "mypy", "--config-file"]).arg(package().join("pyproject.toml"));
    mypy.arg("--cache-dir").arg(bed.path("cache")).args(["-p", "tidegate"]);
    let outcome = process::run(mypy.current_dir(package())).success();
    assert!(outcome.stdout.starts_with("Success: no issues found"), "{outcome:?}");
}
