//! Request source of a simulated application: synthetic by its plan, or recorded.

use core::fmt::Display;
use std::io::{self, BufRead};

use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::time::Picoseconds;
use tidegate_sim::workload::{IoRequest, Load, Replay, Source, WorkloadPlan};

/// A recording, opened.
pub type Input = Box<dyn BufRead>;

/// Opens a recording by the name that the scenario has for it.
pub(super) type OpenRecording<'a> = Box<dyn FnMut(&str) -> io::Result<Input> + 'a>;

/// Where requests come from.
pub(super) enum RequestSource {
    Made(Box<Source>),
    Recorded(Box<Replay<Input>>),
}

impl RequestSource {
    /// Number `number` of the applications of a run.
    pub(super) fn new(
        plan: &WorkloadPlan,
        seed: u64,
        number: u64,
        open: &mut OpenRecording<'_>,
    ) -> Result<Self, ScenarioError> {
        let Load::Trace(recording) = &plan.load else {
            return Ok(Self::Made(Box::new(plan.source(seed, number))));
        };
        let input = open(&recording.file).map_err(|error| {
            let key = format!("application.{number}.workload.load.trace.file");
            let fix = "name a file, from the scenario's own folder";
            ScenarioError::new(format!("{key}: {:?}: {error}; {fix}", recording.file))
        })?;
        Ok(Self::Recorded(Box::new(Replay::new(plan, recording, input))))
    }

    /// Whether requests come by themselves; otherwise, upon answers.
    pub(super) const fn is_open(&self) -> bool {
        match self {
            Self::Made(source) => source.is_open(),
            Self::Recorded(_) => true,
        }
    }

    /// The requests with which an application begins: in an open loop, one. A recording that begins
    /// with an error is reported then, and so is one without requests.
    pub(super) fn first(&mut self, plan: &WorkloadPlan) -> Result<Vec<IoRequest>, ScenarioError> {
        match self {
            Self::Made(source) if !source.is_open() => {
                Ok(std::iter::from_fn(|| source.arrival()).collect())
            }
            Self::Made(source) => Ok(source.arrival().into_iter().collect()),
            Self::Recorded(_) => match self.next(plan)? {
                Some(request) => Ok(vec![request]),
                None => Err(wrong(plan, &"nothing in it is replayed; see device and from")),
            },
        }
    }

    /// The next request that waits for no answer; none if there are no more.
    pub(super) fn next(&mut self, plan: &WorkloadPlan) -> Result<Option<IoRequest>, ScenarioError> {
        match self {
            Self::Made(source) => Ok(source.arrival()),
            Self::Recorded(replay) => replay.arrival().map_err(|error| wrong(plan, &error)),
        }
    }

    /// A request was answered: the one that follows, if one does.
    pub(super) fn on_completion(&mut self, now: Picoseconds) -> Option<IoRequest> {
        match self {
            Self::Made(source) => source.on_completion(now),
            Self::Recorded(_) => None,
        }
    }
}

/// The error of a faulty recording, with its application and file.
fn wrong(plan: &WorkloadPlan, error: &dyn Display) -> ScenarioError {
    let file = match &plan.load {
        Load::Trace(recording) => recording.file.as_str(),
        Load::Open(_) | Load::Closed(_) => "",
    };
    ScenarioError::new(format!("application {:?}: {file}: {error}", plan.name))
}
