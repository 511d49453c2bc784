//! Common parts of a paper's figures: claims, a table for the terminal, a picture, and simulations
//! several at a time.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};
use tidegate_model::{Span, Time};
use tidegate_netsim::{dtm, e2e};
use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::{bricks, one_sided, scenario as cluster};

use super::note_line;
use super::verdict::{Check, Claim, Judgement, judge};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::table::Table;

/// The scenarios of a paper, as they were when this program was built, and a test that `scenario`,
/// which is where they are, reads all of them.
macro_rules! scenarios {
    ($folder:literal: $($name:ident = $file:literal;)*) => {
        $(pub(super) const $name: &str = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/../../scenarios/", $folder, "/", $file, ".toml"
        ));)*
        #[cfg(test)]
        #[test]
        fn every_scenario_is_read() {
            for text in [$($name),*] {
                scenario(text).unwrap();
            }
        }
    };
}
pub(super) use scenarios;

/// The values of a claim's `world`.
pub(super) const SIMULATED: &str = "simulated";
pub(super) const LIVE: &str = "live";

/// How soon a user who ends the command is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

pub(crate) struct FigureResult {
    pub(crate) claims: Vec<Claim>,
    pub(crate) table: Table,
    /// SVG.
    pub(crate) picture: String,
}

/// Context of the figures besides their scenarios.
pub(crate) struct FigureContext {
    pub(crate) interrupt: Interrupt,
    /// The figure, and how far the command is: it stands before each note.
    pub(crate) progress: String,
    /// Whether a user sees standard error.
    pub(crate) is_watched: bool,
    /// Periods that live runs are to measure, if the user gave a number.
    pub(crate) periods: Option<usize>,
    /// Seed of simulated runs, if the user gave one.
    pub(crate) seed: Option<u64>,
}

impl FigureContext {
    /// Shows a watcher what is going on, in place of the note before.
    pub(crate) fn note(&self, what: &str) {
        let separator = if self.progress.is_empty() || what.is_empty() { "" } else { ": " };
        self.show(&format!("{}{separator}{what}", self.progress));
    }

    fn show(&self, line: &str) {
        note_line::show(self.is_watched, line);
    }

    /// Removes the note, so that other lines can be printed.
    pub(crate) fn clear(&self) {
        self.show("");
    }
}

impl Drop for FigureContext {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A paper of which figures can be repeated.
pub(crate) struct Paper {
    /// Its name in claims. Pictures go to a folder of this name, by default.
    pub(crate) name: &'static str,
    pub(crate) figures: &'static [Figure],
}

/// A figure that can be repeated, or an experiment beside it; `R` repeats it.
#[derive(Debug)]
pub(crate) struct Figure<R = Run> {
    pub(crate) name: &'static str,
    /// The experiment, in a few words.
    pub(crate) about: &'static str,
    pub(crate) worlds: Worlds,
    repeat: R,
    /// The live part of one that is simulated, too.
    live: Option<R>,
}

pub(crate) type Run = fn(&FigureContext) -> Result<FigureResult, Failure>;

/// Where a figure's numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worlds {
    Simulated,
    Live,
    Both,
}

impl Worlds {
    /// The values of `world` that its claims have.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Simulated => &[SIMULATED],
            Self::Live => &[LIVE],
            Self::Both => &[SIMULATED, LIVE],
        }
    }

    fn has(self, world: RunKind) -> bool {
        self.names().contains(&world.name())
    }
}

impl<R> Figure<R> {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        worlds: Worlds,
        repeat: R,
    ) -> Self {
        Self { name, about, worlds, repeat, live: None }
    }

    /// The same without the work.
    pub(crate) fn described(&self) -> Figure<()> {
        Figure::new(self.name, self.about, self.worlds, ())
    }

    /// Whether it has something to show in that world, or in any.
    pub(crate) fn is_in(&self, world: Option<RunKind>) -> bool {
        world.is_none_or(|world| self.worlds.has(world))
    }

    /// The claim of a figure that has nothing to show in the chosen world.
    pub(crate) fn skipped(&self, paper: &'static str, world: RunKind) -> Claim {
        let Self { name: figure, about, .. } = *self;
        let source = ClaimSource { paper, figure, world: world.name(), seed: None, seconds: 0.0 };
        let reason = match world {
            RunKind::Simulated => "this figure runs live only",
            RunKind::Live => "this figure is simulated only",
        };
        let text = format!("{paper} {figure}: {about}");
        source.claim(text, Value::Null, []).skipped(Some(reason))
    }
}

impl<R: Copy> Figure<R> {
    /// Its parts in that world, or in all.
    pub(crate) fn parts(&self, world: Option<RunKind>) -> Vec<(RunKind, R)> {
        let live = self.live.unwrap_or(self.repeat);
        let mut parts = vec![(RunKind::Simulated, self.repeat), (RunKind::Live, live)];
        parts.retain(|(own, _)| self.worlds.has(*own) && world.is_none_or(|world| world == *own));
        parts
    }
}

impl Figure {
    /// In virtual time only.
    pub(super) const fn simulated(name: &'static str, about: &'static str, repeat: Run) -> Self {
        Self::new(name, about, Worlds::Simulated, repeat)
    }

    /// On this machine only.
    pub(super) const fn live(name: &'static str, about: &'static str, repeat: Run) -> Self {
        Self::new(name, about, Worlds::Live, repeat)
    }

    /// It has this live part, too.
    pub(super) const fn and_live(self, repeat: Run) -> Self {
        Self { worlds: Worlds::Both, live: Some(repeat), ..self }
    }
}

/// Where a figure is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RunKind {
    /// In virtual time.
    Simulated,
    /// On this machine.
    Live,
}

impl RunKind {
    /// As it is chosen.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Simulated => SIMULATED,
            Self::Live => LIVE,
        }
    }
}

/// The source of a run's claims: the paper, the figure, the world, the seed and the seconds taken.
#[derive(Clone, Copy)]
pub(super) struct ClaimSource {
    pub(super) paper: &'static str,
    pub(super) figure: &'static str,
    pub(super) world: &'static str,
    pub(super) seed: Option<u64>,
    pub(super) seconds: f64,
}

impl ClaimSource {
    /// A claim with the numbers that it reports, judged by its checks. Its text is the sentence and
    /// what the checks expect.
    pub(super) fn claim(
        self,
        text: impl Into<String>,
        measured: Value,
        checks: impl IntoIterator<Item = Check>,
    ) -> Claim {
        let measured = match measured {
            Value::Object(measured) => measured,
            _ => Map::new(),
        };
        let Self { paper, figure, world, seed, seconds } = self;
        let checks: Vec<Check> = checks.into_iter().collect();
        let Judgement { verdict, distance, reason } = judge(&checks);
        let mut claim: String = text.into();
        let expected: Vec<String> = checks.iter().map(ToString::to_string).collect();
        if !expected.is_empty() {
            claim.push_str(&format!(" ({})", expected.join(", ")));
        }
        Claim {
            paper,
            figure,
            world,
            claim,
            ours: false,
            measured,
            verdict,
            reason,
            distance,
            regression: None,
            seed,
            seconds,
            is_explained: false,
        }
    }
}

/// A scenario's outcome, and the time that the run took, in seconds.
#[derive(Clone, Debug)]
pub(super) struct TimedRun<O> {
    pub(super) outcome: O,
    pub(super) seconds: f64,
}

/// A scenario that can be simulated with another seed.
pub(super) trait Seeded {
    /// The seed of every random number of a run.
    fn seed(&mut self) -> &mut u64;
}

macro_rules! seeded {
    ($($scenario:ty),* $(,)?) => {
        $(impl Seeded for $scenario {
            fn seed(&mut self) -> &mut u64 {
                &mut self.seed
            }
        })*
    };
}

seeded!(bricks::DsfqScenario, cluster::Scenario, dtm::DtmPlan, e2e::Scenario);
seeded!(one_sided::Scenario, one_sided::nodes::OneSidedClusterScenario);

/// Another seed for all of them. Where a figure counts several runs together, seeds are as far
/// apart as they were.
fn reseed<S: Seeded>(scenarios: &mut [S], seed: u64) {
    let least = scenarios.iter_mut().map(|one| *one.seed()).min().unwrap_or(0);
    for scenario in scenarios {
        let own = scenario.seed();
        *own = seed.wrapping_add(*own - least);
    }
}

/// Simulates all of them, on as many processors as there are, and gives what they show in their
/// order.
///
/// # Errors
/// If a scenario cannot be run, or the user ends the command. Runs under way end with the process.
pub(super) fn simulate<S, O>(
    context: &FigureContext,
    mut scenarios: Vec<S>,
    run: fn(&S) -> Result<O, ScenarioError>,
) -> Result<Vec<TimedRun<O>>, Failure>
where
    S: Seeded + Send + 'static,
    O: Send + 'static,
{
    if let Some(seed) = context.seed {
        reseed(&mut scenarios, seed);
    }
    let count = scenarios.len();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(count);
    let queue = Arc::new(Mutex::new(scenarios.into_iter().enumerate()));
    let (sender, results) = channel();
    for _ in 0..workers {
        let (queue, sender) = (Arc::clone(&queue), sender.clone());
        thread::spawn(move || {
            let take = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((index, scenario)) = take() {
                let (shown, seconds) = timed(|| run(&scenario));
                let shown = shown.map(|outcome| TimedRun { outcome, seconds });
                if sender.send((index, shown)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut all: Vec<Option<TimedRun<O>>> = (0..count).map(|_| None).collect();
    for done in 0..count {
        context.note(&format!("simulating: {done} of {count} done"));
        let (index, shown) = loop {
            context.interrupt.check()?;
            match results.recv_timeout(POLL_INTERVAL) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(Code::Failure, "a simulation has broken down"));
                }
            }
        };
        all[index] = Some(shown.map_err(wrong)?);
    }
    Ok(all.into_iter().flatten().collect())
}

/// The failure of a scenario of this program. Tests read them all.
pub(super) fn wrong(error: ScenarioError) -> Failure {
    Failure::new(Code::Failure, "a scenario that came with this program is wrong").cause(error)
}

/// How long `work` takes, in seconds, and what it gives.
pub(super) fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let clock = Clock::start();
    let result = work();
    (result, clock.now().since(Time::ZERO).as_seconds())
}

pub(super) fn seconds(span: Span) -> f64 {
    span.as_seconds()
}

/// With one digit behind the point, for people and programs alike.
pub(super) fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// With two digits behind the point.
pub(super) fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// With three digits behind the point.
pub(super) fn thousandths(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, at_most};

    /// The seed, and nothing else.
    impl Seeded for u64 {
        fn seed(&mut self) -> &mut u64 {
            self
        }
    }

    #[test]
    fn claims_of_a_run_share_its_source() {
        let source =
            ClaimSource { paper: "p", figure: "3", world: SIMULATED, seed: Some(7), seconds: 1.5 };
        let measured = serde_json::json!({ "tenants": 3 });
        let claim = source.claim("tenants", measured, [at_most("", "", 3.0, 3.0)]);
        assert_eq!((claim.paper, claim.figure, claim.seed), ("p", "3", Some(7)));
        assert_eq!(claim.measured["tenants"], 3);
        assert_eq!(
            (claim.claim.as_str(), claim.verdict),
            ("tenants (at most 3)", Verdict::Reproduced)
        );
    }

    #[test]
    fn results_have_the_order_of_their_scenarios() {
        let interrupt = Interrupt::default();
        let (progress, periods) = (String::new(), None);
        let mut context =
            FigureContext { interrupt, progress, is_watched: false, periods, seed: None };
        let doubled = |context: &FigureContext| -> Vec<u64> {
            let shown = simulate(context, (1..9).collect(), |number: &u64| Ok(number * 2)).unwrap();
            shown.iter().map(|shown| shown.outcome).collect()
        };
        assert_eq!(doubled(&context), [2, 4, 6, 8, 10, 12, 14, 16]);
        context.seed = Some(11);
        assert_eq!(doubled(&context), [22, 24, 26, 28, 30, 32, 34, 36]);
        let refused = |_: &u64| Err::<u64, _>(ScenarioError::new("wrong"));
        assert!(simulate(&context, vec![1], refused).is_err());
    }
}
