//! The fuzzing loop for a stable compiler, as `cargo xtask fuzz` starts it:
//!
//! ```text
//! fuzz run SECONDS SEED ARTIFACTS TARGET...   mutations of known inputs, drawn from the seed
//! fuzz replay FILE                            one stored input; its name says the target
//! fuzz seeds CORPUS TARGET...                 a folder of inputs for each target, for libFuzzer
//! fuzz targets                                their names
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tidegate_tests::fuzz::engine::{self, Budget};
use tidegate_tests::fuzz::{TARGETS, Target, target};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", seconds, seed, artifacts, ref names @ ..] => {
            run(seconds, seed, Path::new(artifacts), names)
        }
        ["replay", file] => replay(Path::new(file)),
        ["seeds", corpus, ref names @ ..] => seeds(Path::new(corpus), names),
        ["targets"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        _ => Err("see the head of tests/examples/fuzz.rs".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The targets with these names; all of them if there are none.
fn named(names: &[&str]) -> Result<Vec<&'static Target>, String> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    names.iter().map(|name| target(name).ok_or(format!("there is no target {name}"))).collect()
}

fn run(seconds: &str, seed: &str, artifacts: &Path, names: &[&str]) -> Result<(), String> {
    let seconds: u64 =
        seconds.parse().map_err(|_| format!("{seconds:?} is no number of seconds"))?;
    let seed: u64 = seed.parse().map_err(|_| format!("{seed:?} is no seed"))?;
    for target in named(names)? {
        let budget = Budget { inputs: u64::MAX, time: Duration::from_secs(seconds) };
        let done =
            engine::run(target, seed, budget, artifacts).map_err(|found| found.to_string())?;
        let rate = done.inputs as f64 / done.time.as_secs_f64();
        println!("{}: {} inputs, {rate:.0} a second, seed {seed}", target.name, done.inputs);
    }
    Ok(())
}

fn replay(file: &Path) -> Result<(), String> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let target = name.split('-').next().and_then(target);
    let target = target.ok_or(format!("the name of {} does not say the target", file.display()))?;
    let input = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    engine::try_one(target, &input)?;
    println!("{}: nothing is wrong with {}", target.name, file.display());
    Ok(())
}

fn seeds(corpus: &Path, names: &[&str]) -> Result<(), String> {
    for target in named(names)? {
        let folder = corpus.join(target.name);
        engine::write_seeds(target, &folder).map_err(|error| error.to_string())?;
    }
    Ok(())
}
