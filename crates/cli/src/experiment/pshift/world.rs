//! The simulated world: the scenarios, and running them several at a time.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tidegate_sim::cluster::{self, Outcome};
use tidegate_sim::scenario::{Scenario, ScenarioError};

use super::{Desk, timed};
use crate::failure::{Code, Failure};

/// How soon somebody who ends the command is noticed.
const LOOK: Duration = Duration::from_millis(25);

/// A scenario, as it was when this program was built.
macro_rules! scenarios {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) const $name: &str =
            include_str!(concat!("../../../../../scenarios/pshift/", $file, ".toml"));)*
        #[cfg(test)]
        const ALL: &[&str] = &[$($name),*];
    };
}

scenarios! {
    EXPERIMENT_1 = "experiment-1";
    EXPERIMENT_2 = "experiment-2";
    EXPERIMENT_3_IN_TURN = "experiment-3-in-turn";
    EXPERIMENT_3_RESERVATIONS = "experiment-3-reservations";
    EXPERIMENT_3_LIMITS = "experiment-3-limits";
    EXPERIMENT_4_IN_TURN = "experiment-4-in-turn";
    EXPERIMENT_4 = "experiment-4";
    EXPERIMENT_4_200_IN_TURN = "experiment-4-200-in-turn";
    EXPERIMENT_4_200 = "experiment-4-200";
    EXPERIMENT_5 = "experiment-5";
}

/// Reads one of them.
///
/// # Errors
/// None: a test reads them all.
pub(super) fn scenario(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text).map_err(wrong)
}

fn wrong(error: ScenarioError) -> Failure {
    Failure::new(Code::Failure, "a scenario that came with this program is wrong").cause(error)
}

/// What a scenario has shown, and how long it took, in seconds.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
}

/// Runs one.
///
/// # Errors
/// If somebody ends the command.
pub(super) fn run(desk: &Desk, scenario: Scenario) -> Result<Shown, Failure> {
    let mut shown = run_all(desk, vec![scenario])?;
    // As many come out as went in.
    Ok(shown.remove(0))
}

/// Runs all of them, on as many processors as there are, and gives what they show in their order.
///
/// # Errors
/// If somebody ends the command. What runs then ends with the process.
pub(super) fn run_all(desk: &Desk, scenarios: Vec<Scenario>) -> Result<Vec<Shown>, Failure> {
    let count = scenarios.len();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(count);
    let queue = Arc::new(Mutex::new(scenarios.into_iter().enumerate()));
    let (sender, results) = channel();
    for _ in 0..workers {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        thread::spawn(move || {
            let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((place, scenario)) = take() {
                let (shown, seconds) = timed(|| cluster::run(&scenario));
                let shown = shown.map(|outcome| Shown { outcome, seconds });
                if sender.send((place, shown)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut all: Vec<Option<Shown>> = vec![None; count];
    for done in 0..count {
        desk.note(&format!("simulating: {done} of {count} done"));
        let (place, shown) = loop {
            desk.interrupt.check()?;
            match results.recv_timeout(LOOK) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(Code::Failure, "a simulation has broken down"));
                }
            }
        };
        all[place] = Some(shown.map_err(wrong)?);
    }
    Ok(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::interrupt::Interrupt;

    #[test]
    fn every_scenario_is_read() {
        for text in ALL {
            scenario(text).unwrap();
        }
    }

    #[test]
    fn what_comes_out_has_the_order_of_what_went_in() {
        let desk = Desk { interrupt: Interrupt::default(), is_watched: false };
        let one = scenario(EXPERIMENT_3_IN_TURN).unwrap();
        let seeded = |seed| Scenario { seed, ..one.clone() };
        let shown = run_all(&desk, (1..5).map(seeded).collect()).unwrap();
        let seeds: Vec<u64> = shown.iter().map(|shown| shown.outcome.seed).collect();
        assert_eq!(seeds, [1, 2, 3, 4]);
    }
}
