//! `tidegate-lab bench`: the cost of the parts of Tidegate, beside the cost of other programs for
//! the same work.
//!
//! Every case is a [`Row`]. A peer is measured in the same run and in turns with ours ([`window`]);
//! where that is impossible, its field is empty, and the row has the reason. No row has numbers of
//! another day or another machine.

use std::path::Path;

use serde::Serialize;

use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

mod apply;
mod backups;
mod bucket;
mod capacity;
mod child;
mod haechi;
mod hosts;
mod idle;
mod isolation;
mod layered;
mod limits;
mod machine;
mod mounted_disk;
mod path;
mod peers;
mod programs;
pub(crate) mod pshift;
mod sample;
mod scale;
mod scheduler;
mod shim;
mod sim;
mod stage;
mod store;
mod timeline;
mod twin;
mod window;

pub(crate) use hosts::HostsSize;
use sample::Median;
pub(crate) use window::WindowPlan;

/// The units of which less is better: times, their ratios, how far off something is, memory, and
/// looks at what is not there.
const LESS: [&str; 10] = ["ns", "us", "ms", "s", "intervals", "ratio", "%", "B", "MB", "looks"];

/// Why a quick run has no verdict.
const BRIEF: &str = "no verdict: --quick measures too briefly";

/// One case, measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The group of the row: `machine`, or the name of a [`Bench`].
    pub(crate) bench: &'static str,
    /// The measured case, in words.
    pub(crate) case: String,
    /// The unit of `value` and `peer_value`.
    pub(crate) unit: &'static str,
    /// The measured value; none if the machine was too busy, or something is missing.
    pub(crate) value: Option<f64>,
    /// The bounds of the value, in its unit; each bench defines their meaning.
    pub(crate) spread: Option<[f64; 2]>,
    /// The peer that the case is compared with.
    pub(crate) peer: Option<String>,
    /// The measured value of the peer.
    pub(crate) peer_value: Option<f64>,
    /// How many times better than the peer's ours is.
    pub(crate) ratio: Option<f64>,
    /// The bounds of the ratio's median, if ours and the peer's were measured round by round.
    pub(crate) ratio_spread: Option<[f64; 2]>,
    /// The promised bound, in the row's unit.
    pub(crate) promise: Option<String>,
    /// Whether the value keeps the promise.
    pub(crate) kept: Option<bool>,
    /// The reason why a field is empty.
    pub(crate) reason: Option<String>,
    pub(crate) note: Option<String>,
}

impl Row {
    /// A row of `value` in nanoseconds, for less is better.
    fn nanoseconds(bench: &'static str, case: impl Into<String>, value: Option<f64>) -> Self {
        let reason = value.is_none().then(|| window::BUSY.to_owned());
        Self { bench, case: case.into(), unit: "ns", value, reason, ..Self::default() }
    }

    /// A row in another unit, for less is better.
    fn less(
        bench: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        value: Option<f64>,
    ) -> Self {
        assert!(LESS.contains(&unit), "{unit}: less is better");
        Self { unit, ..Self::nanoseconds(bench, case, value) }
    }

    /// A row in another unit, for more is better.
    fn more(
        bench: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        value: Option<f64>,
    ) -> Self {
        Self { unit, ..Self::nanoseconds(bench, case, value) }
    }

    fn less_is_better(&self) -> bool {
        LESS.contains(&self.unit)
    }

    /// Adds what it is compared with.
    fn beside(mut self, peer: &str, value: Result<f64, String>) -> Self {
        self.peer = Some(peer.to_owned());
        match value {
            Ok(value) => {
                self.peer_value = Some(value);
                let ratio = |ours| if self.less_is_better() { value / ours } else { ours / value };
                // There is none to something that is off by nothing at all.
                self.ratio = self.value.map(ratio).filter(|ratio| ratio.is_finite());
            }
            Err(reason) => self.reason = self.reason.or(Some(reason)),
        }
        self
    }

    /// Adds a median as its value, with the median's bounds; nothing if there is none.
    fn of_median(self, median: Option<Median>) -> Self {
        match median {
            Some(Median { value, low, high }) => {
                Self { value: Some(value), reason: None, ..self }.between(low, high)
            }
            None => self,
        }
    }

    /// Adds a peer with which ours took turns, round by round. The ratio is the median of the
    /// rounds' ratios: a machine that is slow for a while is slow for both of a round.
    fn beside_in_turns(mut self, peer: &str, rounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let is_finite = |(ours, peer): &(f64, f64)| ours.is_finite() && peer.is_finite();
        let rounds: Vec<_> = rounds.into_iter().filter(is_finite).collect();
        let Some(median) = Median::of(rounds.iter().map(|(_, peer)| *peer)) else { return self };
        let ours = Median::of(rounds.iter().map(|(ours, _)| *ours));
        self = self.of_median(ours).beside(peer, Ok(median.value));
        let less = self.less_is_better();
        let ratio = |(ours, peer): &(f64, f64)| if less { peer / ours } else { ours / peer };
        let ratio = Median::of(rounds.iter().map(ratio).filter(|ratio| ratio.is_finite()));
        self.ratio = ratio.map(|ratio| ratio.value);
        self.ratio_spread = ratio.map(|ratio| [ratio.low, ratio.high]);
        self
    }

    /// Adds between what the value lies.
    fn between(self, low: f64, high: f64) -> Self {
        Self { spread: Some([low, high]), ..self }
    }

    /// Adds a promise: at most this where less is better, at least this for everything else.
    fn promised(mut self, bound: f64) -> Self {
        let less = self.less_is_better();
        self.promise = Some(format!("{} {bound}", if less { "<=" } else { ">=" }));
        self.kept = self.value.map(|value| if less { value <= bound } else { value >= bound });
        self
    }

    /// Adds a promise: at least so many times better than the peer, which has been added before.
    fn promised_times(mut self, bound: f64) -> Self {
        self.promise = Some(format!(">= {bound} x"));
        self.kept = self.ratio.map(|ratio| ratio >= bound);
        self
    }

    /// Adds what else there is to know.
    fn noted(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }

    /// Takes the verdict away, for the case was measured too briefly. A case that could not be
    /// measured at all keeps it.
    pub(crate) fn unjudged(self) -> Self {
        match (self.kept, self.value) {
            (Some(_), Some(_)) => {
                let reason = self.reason.or_else(|| Some(BRIEF.to_owned()));
                Self { kept: None, reason, ..self }
            }
            _ => self,
        }
    }

    /// Takes the verdict away, and says why there is none.
    fn undecided(self, reason: impl Into<String>) -> Self {
        Self { kept: None, ..self.because(reason) }
    }

    /// The same if something disturbed the run, for this reason.
    fn unless_disturbed(self, disturbance: Option<String>) -> Self {
        match disturbance {
            Some(why) => self.undecided(why),
            None => self,
        }
    }

    /// Adds why it is empty.
    fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bench {
    /// The library: deciding, buckets, content
    Stage,
    /// The time that the shim adds to system calls
    Shim,
    /// How exactly limits hold, second by second
    Limits,
    /// How soon a new rate takes effect
    Apply,
    /// How much longer programs run that no policy limits
    Programs,
    /// Requests through a gateway and a node
    Path,
    /// Tokens over servers: how fast they are divided
    Pshift,
    /// The order in which a node serves: what it takes and, with --probes, how it behaves
    Scheduler,
    /// Guarantees for one-sided access to memory
    Haechi,
    /// The simulated world: events, commands, and a second of a fat tree
    Sim,
    /// An idle cluster
    Idle,
    /// A large cluster of which little is active
    Scale,
    /// A tenant with a reservation beside ten others, at each kind of gate
    Isolation,
    /// One budget over programs on many hosts, whose demand changes and of which one is cut off
    Hosts,
    /// A measured capacity, beside what fio alone has
    Capacity,
    /// A database beside a backup without a limit of its own
    Backups,
    /// Predictions of a replayed recording for another policy, beside a live cluster
    Twin,
    /// Of these the last alone, in this process: `sim` runs it in one of its own
    FatTree,
}

impl Bench {
    /// Those that start processes or run for seconds.
    const LIVE: [Self; 15] = [
        Self::Limits,
        Self::Apply,
        Self::Programs,
        Self::Path,
        Self::Pshift,
        Self::Scheduler,
        Self::Haechi,
        Self::Sim,
        Self::Idle,
        Self::Scale,
        Self::Isolation,
        Self::Hosts,
        Self::Capacity,
        Self::Backups,
        Self::Twin,
    ];
}

/// Measures, and gives each row to `report` as soon as it is there. The shim is at `shim`.
pub(crate) fn run(
    benches: &[Bench],
    plan: WindowPlan,
    shim: Result<&Path, String>,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    machine::rows(plan, report);
    if benches.contains(&Bench::Stage) {
        stage::rows(plan, report);
        bucket::rows(plan, report);
        layered::rows(plan, report);
    }
    if benches.contains(&Bench::Shim) {
        shim::rows(plan, shim.clone(), report);
    }
    if benches.contains(&Bench::FatTree) && !benches.contains(&Bench::Sim) {
        sim::fat_tree(plan, report);
    }
    if !benches.iter().any(|bench| Bench::LIVE.contains(bench)) {
        return Ok(());
    }
    live(benches, plan, shim, report)
}

/// Measures those that start processes or run for seconds.
fn live(
    benches: &[Bench],
    plan: WindowPlan,
    shim: Result<&Path, String>,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    // The processes and files of these benches must be gone when the user ends this process.
    let interrupt = Interrupt::listen()?;
    if benches.contains(&Bench::Limits) {
        limits::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Apply) {
        apply::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Programs) {
        programs::rows(plan, shim, &interrupt, report)?;
    }
    if benches.contains(&Bench::Path) {
        path::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Pshift) {
        pshift::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Scheduler) {
        scheduler::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Haechi) {
        haechi::rows(plan, &interrupt, report)?;
        interrupt.check()?;
        store::rows(plan, report);
    }
    if benches.contains(&Bench::Sim) {
        sim::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Idle) {
        idle::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Scale) {
        scale::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Isolation) {
        isolation::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Hosts) {
        hosts::rows(plan, None, &interrupt, report)?;
    }
    if benches.contains(&Bench::Capacity) {
        capacity::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Backups) {
        backups::rows(plan, &interrupt, report)?;
    }
    if benches.contains(&Bench::Twin) {
        twin::rows(plan, &interrupt, report)?;
    }
    Ok(())
}

/// Probes how the scheduler behaves, and gives each row to `report` as soon as it is there.
pub(crate) fn probe(plan: WindowPlan, report: &mut dyn FnMut(Row)) -> Result<(), Failure> {
    scheduler::probe(plan, &Interrupt::listen()?, report)
}

/// Measures a budget over hosts in a run of this size, and gives each row to `report` as soon as it
/// is there.
pub(crate) fn hosts(
    plan: WindowPlan,
    size: HostsSize,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    hosts::rows(plan, Some(size), &Interrupt::listen()?, report)
}

/// Simulates a tenant beside others, and gives each row to `report` as soon as it is there.
pub(crate) fn simulate_isolation(
    plan: WindowPlan,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    isolation::simulate(plan, &Interrupt::listen()?, report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bench that is never run rots; this test measures no speed.
    #[test]
    fn every_case_of_the_library_can_be_measured() {
        let mut rows = Vec::new();
        run(&[Bench::Stage], WindowPlan::TINY, Err("not asked for".into()), &mut |row| {
            rows.push(row)
        })
        .unwrap();
        assert!(rows.len() > 15, "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() || row.reason.is_some()), "{rows:#?}");
        assert!(rows.iter().any(|row| row.value.is_some()), "{rows:#?}");
    }

    #[test]
    fn one_sided_access_can_be_measured() {
        let mut rows = Vec::new();
        haechi::rows(WindowPlan::TINY, &Interrupt::default(), &mut |row| rows.push(row)).unwrap();
        assert_eq!(rows.len(), 3, "{rows:#?}");
        assert!(rows.iter().all(|row| row.reason.as_deref().is_none_or(|why| why == window::BUSY)));
    }

    #[test]
    fn a_large_cluster_can_be_measured() {
        let mut rows = Vec::new();
        scale::rows(WindowPlan::TINY, &Interrupt::default(), &mut |row| rows.push(row)).unwrap();
        assert_eq!(rows.len(), 7, "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some_and(|value| value > 0.0)), "{rows:#?}");
        let note = rows[3].note.as_deref().unwrap();
        assert!(note.contains("400 of 400 tenants have their reservation"), "{note}");
        assert!(!note.contains("; 0 requests served"), "{note}");
    }

    /// Where no library for C is beside the test, the rows of others say so.
    #[test]
    fn stores_can_be_measured() {
        let mut rows = Vec::new();
        store::rows(WindowPlan::TINY, &mut |row| rows.push(row));
        assert_eq!(rows.len(), 6, "{rows:#?}");
        let ours = rows.iter().filter(|row| row.case.contains("Rust"));
        let is_busy = |why: &str| why == window::BUSY;
        assert!(ours.map(|row| row.reason.as_deref()).all(|why| why.is_none_or(is_busy)));
        assert!(rows.iter().all(|row| row.value.is_some() || row.reason.is_some()), "{rows:#?}");
    }

    #[test]
    fn limits_can_be_measured() {
        let mut rows = Vec::new();
        let interrupt = Interrupt::default();
        limits::rows(WindowPlan::TINY, &interrupt, &mut |row| rows.push(row)).unwrap();
        assert!(rows.len() >= 16, "{rows:#?}");
        assert!(rows.iter().any(|row| row.value.is_some()), "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() || row.reason.is_some()), "{rows:#?}");
    }

    #[test]
    fn promises_and_ratios_have_the_right_direction() {
        let fast = Row::nanoseconds("stage", "x", Some(10.0)).promised(12.0);
        let fast = fast.beside("peer", Ok(20.0));
        assert_eq!((fast.kept, fast.ratio), (Some(true), Some(2.0)));
        let wide = Row::more("stage", "x", "MiB/s", Some(10.0)).promised(12.0);
        let wide = wide.beside("peer", Ok(20.0));
        assert_eq!((wide.kept, wide.ratio), (Some(false), Some(0.5)));
        assert_eq!(wide.promise.as_deref(), Some(">= 12"));
        let exact = Row::less("limits", "x", "%", Some(0.0)).promised(2.0).beside("p", Ok(1.0));
        assert_eq!((exact.kept, exact.ratio), (Some(true), None));
        // The second round was slow for both: the medians' ratio would be 1.25.
        let turns = [(10.0, 5.0), (4.0, 2.0), (12.0, 8.0)];
        let turns = Row::more("path", "x", "iops", None).beside_in_turns("p", turns);
        assert_eq!((turns.value, turns.peer_value), (Some(10.0), Some(5.0)));
        assert_eq!((turns.ratio, turns.ratio_spread), (Some(2.0), Some([1.5, 2.0])));
        let less = Row::less("path", "x", "us", None).beside_in_turns("p", [(4.0, 6.0)]);
        assert_eq!((less.ratio, less.reason), (Some(1.5), None));
        let none = Row::nanoseconds("stage", "x", None).promised(1.0).beside("p", Ok(1.0));
        assert_eq!((none.kept, none.ratio), (None, None));
        assert!(none.reason.is_some());
        let brief = wide.unjudged();
        assert_eq!((brief.kept, brief.reason.as_deref()), (None, Some(BRIEF)));
        let failed = Row { kept: Some(false), ..none.clone() };
        assert_eq!(failed.clone().unjudged(), failed);
        assert_eq!(none.clone().unjudged(), none);
    }
}
