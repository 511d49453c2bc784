//! The driver that needs nothing but a stable compiler: mutations of known inputs, from a seed.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::Target;
use super::mutate::{Dice, mutated};

/// One input must be done within this time. They take microseconds; a machine that needs longer
/// than this for one is not slow, it has stopped.
const INPUT_MAX: Duration = Duration::from_secs(60);

/// How long to go on: until either is used up.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// This many inputs.
    pub inputs: u64,
    /// Or this long.
    pub time: Duration,
}

/// The extent of a run without a finding.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Inputs that were tried.
    pub inputs: u64,
    /// The time it took.
    pub time: Duration,
}

/// An input that is not handled as it should be.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{target} with seed {seed}, input {number}: {message}\nreplay: cargo xtask fuzz replay {input}"
)]
pub struct Found {
    /// The target's name.
    pub target: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// How many inputs were tried before it.
    pub number: u64,
    /// Where the input is stored.
    pub input: PathBuf,
    /// The message of the panic.
    pub message: String,
}

/// Tries the target's seeds and then mutations of them, drawn from `seed`. An input that is not
/// handled is stored in the folder `artifacts`.
///
/// # Errors
/// The first input that makes the target panic. One that makes it hang is stored as well, and
/// aborts the process, because nothing else ends it.
pub fn run(
    target: &Target,
    seed: u64,
    budget: Budget,
    artifacts: &Path,
) -> Result<Done, Box<Found>> {
    let start = Instant::now();
    let corpus = (target.seeds)();
    let mut dice = Dice::new(seed);
    let watch = Watch::start(target.name, seed, artifacts);
    let mut inputs = 0;
    while inputs < budget.inputs && start.elapsed() < budget.time {
        let input = match corpus.get(inputs as usize) {
            Some(seed) => seed.clone(),
            None => mutated(&mut dice, &corpus, target.words),
        };
        watch.observe(&input);
        if let Err(message) = try_one(target, &input) {
            let input = store(artifacts, target.name, &input);
            return Err(Box::new(Found {
                target: target.name,
                seed,
                number: inputs,
                input,
                message,
            }));
        }
        inputs += 1;
    }
    Ok(Done { inputs, time: start.elapsed() })
}

/// Runs the target with one input.
///
/// # Errors
/// The message of the panic.
pub fn try_one(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without words").to_owned()
    })
}

/// Writes the target's seeds into the folder `corpus`, for drivers that start from files.
///
/// # Errors
/// If the folder or a file cannot be written.
pub fn write_seeds(target: &Target, corpus: &Path) -> io::Result<()> {
    fs::create_dir_all(corpus)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        fs::write(corpus.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

/// Stores an input under a name that says the target and is the same for the same bytes.
fn store(artifacts: &Path, target: &str, input: &[u8]) -> PathBuf {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    input.iter().for_each(|byte| hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let path = artifacts.join(format!("{target}-{hash:016x}"));
    let written = fs::create_dir_all(artifacts).and_then(|()| fs::write(&path, input));
    if let Err(error) = written {
        eprintln!("cannot store {}: {error}", path.display());
    }
    path
}

/// A thread that looks at the clock while the target is busy with an input.
struct Watch {
    current: Arc<Mutex<Current>>,
    /// Dropped when there is nothing to watch any more.
    _end: mpsc::Sender<()>,
}

#[derive(Default)]
struct Current {
    number: u64,
    input: Vec<u8>,
}

impl Watch {
    fn start(target: &'static str, seed: u64, artifacts: &Path) -> Self {
        let current = Arc::new(Mutex::new(Current::default()));
        let (end, ended) = mpsc::channel();
        let (watched, artifacts) = (Arc::clone(&current), artifacts.to_owned());
        std::thread::spawn(move || {
            let mut last = u64::MAX;
            while ended.recv_timeout(INPUT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                let current = watched.lock().unwrap_or_else(PoisonError::into_inner);
                if current.number == last {
                    let input = store(&artifacts, target, &current.input);
                    let message = format!("no end after {} s", INPUT_MAX.as_secs());
                    let number = current.number;
                    eprintln!("{}", Found { target, seed, number, input, message });
                    std::process::abort();
                }
                last = current.number;
            }
        });
        Self { current, _end: end }
    }

    fn observe(&self, input: &[u8]) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.number += 1;
        current.input.clear();
        current.input.extend_from_slice(input);
    }
}
