//! `tidegate-lab demo end-to-end`: one policy along the whole way of a request, with each kind of
//! gate on, off, and off alone.
//!
//! ```text
//!  fio ── stage ── ext4 ── loop ── nbdfuse ─┐
//!  fio, by NBD ─────────────────────────────┤ gateway ── nodes a, b, c ── imitated devices
//!  a client of memcached ───────────────────┘         └─ node k ── memcached
//!  clients of a data node ── engine ── memory behind an imitated network card
//! ```
//!
//! At each of the four gates a backup without a promise requests all that it can get. A [`plan`]
//! has the tenants' promises, and the gates that are on in each act. The [`testbed`] starts what an
//! act needs, and [`loads`] put it under load. Each load's own account ([`series`]) is compared
//! with its promise ([`score`]).

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tidegate_model::Span;

use tidegate_console::clock::{Clock, unix_ms};
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};

mod loads;
mod mount;
mod page;
mod plan;
mod report;
mod score;
mod series;
mod testbed;

use super::live_verdict::LiveVerdict;
use super::machine;
use super::quiet::{PriorityBoost, QuietProbe};
use loads::RunningLoad;
use plan::{ACTS, Act, DemoLoad};
use score::{ActRecording, ActScore, SETTLING_SECONDS};
use testbed::Testbed;

/// How often loads are asked for what they have done.
const POLL_INTERVAL: Span = Span(50 * Span::MILLISECOND.0);

/// Loads are all there, and the first requests are over.
const LEAD: Span = Span(Span::SECOND.0);

/// How long the preparation of the run, and the start and end of each act, take on a machine
/// without other load.
const PREPARATION_SECONDS: u64 = 5;
const START_SECONDS: u64 = 3;

/// The user's choices.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How long each act is measured.
    pub(crate) seconds: u64,
    /// Only the acts that a first look needs.
    pub(crate) is_short: bool,
    /// Only the acts with these numbers, counted from one; all if it is empty.
    pub(crate) acts: Vec<usize>,
    /// No colours.
    pub(crate) plain: bool,
    pub(crate) out: PathBuf,
    pub(crate) json: bool,
}

/// Result of the run.
pub(crate) struct EndToEndOutcome {
    results: Vec<(ActRecording, ActScore)>,
}

impl EndToEndOutcome {
    /// The act with everything on.
    fn everything(&self) -> Option<&ActScore> {
        self.results.iter().find(|(recording, _)| recording.act.changes).map(|(_, score)| score)
    }

    /// Whether every promise was kept with everything on, if that was run.
    pub(crate) fn is_kept(&self) -> bool {
        self.everything().is_none_or(|score| score.verdict() == LiveVerdict::Kept)
    }

    /// Why that act proves nothing, if the machine was too busy.
    pub(crate) fn excuse(&self) -> Option<String> {
        let score = self.everything()?;
        let unseen = || "a promise had no second that counts".to_owned();
        (score.verdict() == LiveVerdict::Disturbed)
            .then(|| score.disturbance.clone().unwrap_or_else(unseen))
    }

    /// An object for each act and promise.
    pub(crate) fn rows(&self) -> Vec<Value> {
        self.results.iter().flat_map(|(recording, score)| report::rows(recording, score)).collect()
    }
}

/// Runs all acts.
///
/// # Errors
/// If the machine lacks what they need, something breaks, or the user ends the command. All that
/// was started has ended then. Promises that are missed are no error here.
pub(crate) fn run(options: &Options) -> Result<EndToEndOutcome, Failure> {
    testbed::check()?;
    let interrupt = Interrupt::listen()?;
    fs::create_dir_all(&options.out).map_err(|error| super::unwritable(&options.out, error))?;
    let _priority_boost = PriorityBoost::raise();
    let print = |text: &str| match options.json {
        true => Ok(()),
        false => output::print(&format!("{text}\n")),
    };
    let acts = wanted(options);
    let load = machine::load_percent() as f64 / 100.0;
    print(&format!(
        "{} acts of {} s each take about {} s; a load of {load:.1} before",
        acts.len(),
        options.seconds,
        PREPARATION_SECONDS + acts.len() as u64 * (options.seconds + START_SECONDS),
    ))?;
    print(&format!(
        "needs {} MiB of room in {} (TMPDIR)",
        testbed::SPACE_MIB,
        std::env::temp_dir().display()
    ))?;
    let mut testbed = Testbed::start(interrupt)?;
    let results = play_all(&mut testbed, &acts, options.seconds, print)
        .map_err(|failure| testbed.scratch.explained(failure, testbed::SPACE_MIB))?;
    drop(testbed);
    let path = options.out.join("end-to-end.html");
    let html = page::render(&results, load);
    fs::write(&path, html).map_err(|error| super::unwritable(&path, error))?;
    let paint = if options.plain { Paint::none() } else { Paint::stdout() };
    print(&format!("\n{}", report::table(&results, paint)))?;
    report::sentences(&results).iter().try_for_each(|sentence| print(sentence))?;
    print(&format!("\nTimelines: {}", path.display()))?;
    Ok(EndToEndOutcome { results })
}

/// Runs these acts, one after the other.
fn play_all(
    testbed: &mut Testbed,
    acts: &[&'static Act],
    seconds: u64,
    print: impl Fn(&str) -> Result<(), Failure>,
) -> Result<Vec<(ActRecording, ActScore)>, Failure> {
    loads::fill_keys(&testbed.scratch.join(plan::MEMCACHED))?;
    testbed.fill()?;
    let mut results = Vec::new();
    for (number, act) in acts.iter().enumerate() {
        let recording = play(testbed, act, seconds)?;
        let score = ActScore::new(&recording);
        print(&format!("{} of {}  {}", number + 1, acts.len(), report::line(&recording, &score)))?;
        results.push((recording, score));
    }
    Ok(results)
}

/// The acts that the user chose.
fn wanted(options: &Options) -> Vec<&'static Act> {
    let numbered = (1..).zip(&ACTS);
    let is_wanted = |(number, act): &(usize, &'static Act)| match &options.acts[..] {
        [] => act.is_short || !options.is_short,
        numbers => numbers.contains(number),
    };
    numbered.filter(is_wanted).map(|(_, act)| act).collect()
}

/// Runs one act.
fn play(testbed: &mut Testbed, act: &'static Act, seconds: u64) -> Result<ActRecording, Failure> {
    let setup = testbed.set_up(act, true)?;
    let mut loads = Vec::new();
    for load in DemoLoad::ALL {
        loads.push(RunningLoad::start(load, act, testbed, &setup)?);
        testbed.interrupt.check()?;
    }
    let clock = Clock::start();
    let mut wait_until = |due: tidegate_model::Time| {
        while clock.now() < due {
            testbed.interrupt.sleep_until(clock, due.min(clock.now().after(POLL_INTERVAL)))?;
            loads.iter_mut().try_for_each(RunningLoad::poll)?;
        }
        Ok::<(), Failure>(())
    };
    wait_until(clock.now().after(LEAD))?;
    let (from, from_ms, probe) = (clock.now(), unix_ms(), QuietProbe::start());
    let mut changed_ms = None;
    if act.changes {
        let half = Span((seconds + SETTLING_SECONDS) * Span::SECOND.0 / 2);
        wait_until(from.after(half))?;
        let policy = plan::policy(act, 1, &testbed.mount_point());
        changed_ms = Some(unix_ms());
        setup.controller.apply(&policy, &testbed.scratch.join("changed.toml"))?;
    }
    wait_until(from.after(Span(seconds * Span::SECOND.0)))?;
    // The probe's last second ends a moment later.
    wait_until(clock.now().after(POLL_INTERVAL))?;
    let quiet = probe.finish().seconds().take(seconds as usize).collect();
    let series = loads.into_iter().map(RunningLoad::finish).collect::<Result<Vec<_>, _>>()?;
    Ok(ActRecording { act, from_ms, seconds, changed_ms, series, quiet })
}

/// How many acts there are.
pub(crate) const ACT_COUNT: usize = ACTS.len();

/// The shortest act in which something counts before and after the change.
pub(crate) const SECONDS_MIN: u64 = 3 * SETTLING_SECONDS;
