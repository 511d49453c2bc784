//! `cargo xtask fuzz`: looks for inputs that break something, for as long as one likes.
//!
//! Where there is a C++ compiler it drives libFuzzer (the package in `fuzz/`), which is guided by
//! coverage. The instrumentation needs no nightly compiler: it is a pass of LLVM, and passes can be
//! named on a stable command line. Elsewhere, or where libFuzzer cannot be fetched, it runs the
//! loop of `tests/examples/fuzz.rs`, which needs nothing and mutates known inputs.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
Looks for inputs that break something.

Usage: cargo xtask fuzz [SECONDS [TARGET [SEED]]]    60 s for each target if nothing is said
       cargo xtask fuzz replay FILE                  an input that was found, again";

/// The instrumentation that libFuzzer needs: the edges taken, and the operands of comparisons.
const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let done = match *arguments {
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["replay", file] => replay(root, file),
        [] => every(root, "60", &[], None),
        [seconds] => every(root, seconds, &[], None),
        [seconds, target] => every(root, seconds, &[target], None),
        [seconds, target, seed] => every(root, seconds, &[target], Some(seed)),
        _ => Err("too many arguments".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one input again. Its path is relative to where we are; the example runs at the root.
fn replay(root: &Path, file: &str) -> Result<(), String> {
    let path = std::path::absolute(file).map_err(|error| format!("{file}: {error}"))?;
    print!("{}", example(root, &["replay", &path.display().to_string()])?);
    Ok(())
}

fn every(root: &Path, seconds: &str, only: &[&str], seed: Option<&str>) -> Result<(), String> {
    if seconds.parse::<u32>().is_err() {
        return Err(USAGE.into());
    }
    let known = example(root, &["targets"])?;
    let known: Vec<&str> = known.lines().collect();
    if let Some(stranger) = only.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no target {stranger}; there are {}", known.join(", ")));
    }
    let targets = if only.is_empty() { &known[..] } else { only };
    // libFuzzer's seeds have 32 bits.
    let random = (RandomState::new().build_hasher().finish() as u32).max(1).to_string();
    let seed = seed.unwrap_or(&random);
    match guided(root) {
        Ok(folder) => {
            println!("fuzz: libFuzzer, seed {seed}, {seconds} s for each of {targets:?}");
            targets.iter().try_for_each(|target| fuzz(root, &folder, target, seconds, seed))
        }
        Err(reason) => {
            println!("fuzz: without coverage, because {reason}; seed {seed}");
            let artifacts = root.join("fuzz/artifacts").display().to_string();
            let arguments = [&["run", seconds, seed, &artifacts], targets].concat();
            print!("{}", example(root, &arguments)?);
            Ok(())
        }
    }
}

/// Builds the programs for libFuzzer; the folder that they are in, or why there are none.
fn guided(root: &Path) -> Result<std::path::PathBuf, String> {
    let has = |compiler: &str| {
        let found = Command::new(compiler).arg("--version").stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    if !has("c++") {
        return Err("there is no C++ compiler (apt-get install g++)".into());
    }
    let host = host()?;
    let fuzz = root.join("fuzz");
    // A lock of its own would become stale unnoticed; cargo adds libFuzzer to this copy.
    fs::copy(root.join("Cargo.lock"), fuzz.join("Cargo.lock"))
        .map_err(|error| format!("Cargo.lock cannot be copied: {error}"))?;
    let build = cargo()
        .args(["build", "--release", "--bins", "--target", &host])
        .arg("--target-dir")
        .arg(fuzz.join("target"))
        .current_dir(&fuzz)
        .env("RUSTFLAGS", INSTRUMENTATION)
        .status();
    match build {
        Ok(status) if status.success() => Ok(fuzz.join("target").join(host).join("release")),
        Ok(_) => Err("the programs for libFuzzer do not build".into()),
        Err(error) => Err(format!("cargo cannot be started: {error}")),
    }
}

/// The platform that programs run on. It is named to cargo so that build scripts are not
/// instrumented.
fn host() -> Result<String, String> {
    let output = output(Command::new("rustc").arg("-vV")).map_err(|error| error.to_string())?;
    let line = output.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "rustc does not name its host".into())
}

/// One target under libFuzzer.
fn fuzz(root: &Path, folder: &Path, target: &str, seconds: &str, seed: &str) -> Result<(), String> {
    let corpus = root.join("fuzz/corpus");
    example(root, &["seeds", &corpus.display().to_string(), target])?;
    let artifacts = root.join("fuzz/artifacts");
    std::fs::create_dir_all(&artifacts).map_err(|error| error.to_string())?;
    let status = Command::new(folder.join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={seed}"))
        .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
        // Longer inputs find little that shorter ones do not; one that takes seconds hangs.
        .args(["-max_len=4096", "-timeout=20", "-verbosity=0", "-print_final_stats=1"])
        .arg(corpus.join(target))
        .status()
        .map_err(|error| format!("{target} cannot be started: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "{target} with seed {seed}: see above for the input that it stored, and replay it with\n\
         cargo xtask fuzz replay FILE"
    ))
}

/// Runs the loop that needs no libFuzzer, optimised but with every check on. Returns what it
/// printed.
fn example(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--locked", "--package", "tidegate-tests"])
        .args(["--example", "fuzz", "--"])
        .args(arguments)
        .current_dir(root)
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    // The cause is on standard error already.
    output(&mut command).map_err(|error| format!("fuzz: {error}"))
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("it failed ({})", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
