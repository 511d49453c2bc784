//! One run of an end-to-end simulation: the earliest event happens, until the end.
//!
//! A [`Run`] is a scenario and two options. [`Run::opening`] gives the function that opens recorded
//! traces, the load that applications of the scenario replay. [`Run::with_ports`] adds a time
//! series of each class at each port to the report, and changes no event.
//!
//! [`Run::go_while`] takes events from a fast queue and reports its progress. [`Run::by_heap`]
//! handles the same events in the same order, from a binary heap: tests compare the two.

use core::fmt;
use std::io;

use tidegate_model::Span;

use super::outcome::E2eReport;
pub use super::request_source::Input;
use super::request_source::OpenRecording;
use super::scenario::Scenario;
use super::simulation::{E2eEvent, E2eSim};
use tidegate_sim::event::{EventQueue, Events, Heap};
use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::time::Picoseconds;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct E2eProgress {
    /// The simulated time.
    pub now: Span,
    /// Of so much.
    pub length: Span,
    /// How many events happened.
    pub events: u64,
}

/// A run that is about to begin.
///
/// ```
/// use tidegate_netsim::e2e::{Run, Scenario};
/// let scenario = Scenario::parse(r#"
///     name = "what was recorded, once more"
///     seed = 1
///     length = "3ms"
///     network.topology.star = { hosts = 2, line = { rate = "10Gbps", delay = "1us" } }
///     network.switch.buffer = "1MB"
///     transport.law = "dctcp"
///     [[application]]
///     from = 0
///     to = [1]
///     [application.workload]
///     name = "recorded"
///     load = { trace = { file = "two.trace", format = "mqsim", speed_percent = 200 } }
/// "#)?;
/// let open = |_: &str| Ok(Box::new("7000000 0 0 16 0\n8000000 0 16 8 0".as_bytes()) as _);
/// let outcome = Run::new(&scenario).opening(open).go_while(|_| true)?;
/// assert_eq!(outcome.applications[0].done.bytes, 24 * 512);
/// # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
/// ```
pub struct Run<'a> {
    scenario: &'a Scenario,
    open: OpenRecording<'a>,
    with_ports: bool,
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, open: _, with_ports } = self;
        f.debug_struct("Run").field("scenario", scenario).field("with_ports", with_ports).finish()
    }
}

impl<'a> Run<'a> {
    /// A run of this scenario that opens no recordings and keeps no series of ports.
    pub fn new(scenario: &'a Scenario) -> Self {
        let refuse = |_: &str| Err(io::Error::other("nobody here opens recordings"));
        Self { scenario, open: Box::new(refuse), with_ports: false }
    }

    /// The same, with a function that opens recordings. Each application that replays one opens it
    /// once; it is read as the run goes on, a window of records ahead.
    #[must_use]
    pub fn opening(self, open: impl FnMut(&str) -> io::Result<Input> + 'a) -> Self {
        Self { open: Box::new(open), ..self }
    }

    /// The same, with a series of each class at each port that it uses: [`E2eReport::hops`].
    #[must_use]
    pub fn with_ports(self) -> Self {
        Self { with_ports: true, ..self }
    }

    /// Runs to its end, or until `goes_on` returns false: the run calls it after each moment of the
    /// series. The outcome covers the simulated time so far.
    ///
    /// # Errors
    /// Those of [`Scenario::check`]; buffers of switches that are too small for what is set aside
    /// in them; a recording that cannot be opened, has a line that is wrong, or no matching
    /// request.
    pub fn go_while(
        self,
        goes_on: impl FnMut(&E2eProgress) -> bool,
    ) -> Result<E2eReport, ScenarioError> {
        go::<Events<E2eEvent>>(self, goes_on)
    }

    /// The same to the end, with events in a binary heap: the outcome is the same to the last bit.
    ///
    /// # Errors
    /// As [`Self::go_while`].
    pub fn by_heap(self) -> Result<E2eReport, ScenarioError> {
        go::<Heap<E2eEvent>>(self, |_| true)
    }
}

fn go<Q: EventQueue<E2eEvent> + Default>(
    run: Run<'_>,
    mut goes_on: impl FnMut(&E2eProgress) -> bool,
) -> Result<E2eReport, ScenarioError> {
    let scenario = run.scenario;
    let mut simulation = E2eSim::<Q>::new(run.scenario, run.open, run.with_ports)?;
    let length = Picoseconds::from(scenario.length);
    while let Some((now, event)) = simulation.pop() {
        if now > length {
            simulation.context.now = length;
            break;
        }
        simulation.context.now = now;
        simulation.count += 1;
        let (is_moment, is_request) =
            (matches!(event, E2eEvent::Sample), matches!(event, E2eEvent::Begin(_)));
        simulation.on_event(event);
        if is_request && let Some(error) = simulation.wrong {
            return Err(error);
        }
        if is_moment {
            let progress =
                E2eProgress { now: now.span(), length: scenario.length, events: simulation.count };
            if !goes_on(&progress) {
                break;
            }
        }
    }
    Ok(simulation.outcome())
}

/// Runs a scenario without recordings to its end.
///
/// # Errors
/// As [`Run::go_while`].
pub fn run(scenario: &Scenario) -> Result<E2eReport, ScenarioError> {
    run_while(scenario, |_| true)
}

/// The same, until `goes_on` returns false, as [`Run::go_while`].
///
/// # Errors
/// As [`Run::go_while`].
pub fn run_while(
    scenario: &Scenario,
    goes_on: impl FnMut(&E2eProgress) -> bool,
) -> Result<E2eReport, ScenarioError> {
    Run::new(scenario).go_while(goes_on)
}
