//! Isolation: the effect of aggressive tenants on one with a reservation, at each kind of gate.
//!
//! A *victim* reads 4 KiB at random, four at a time, at a fifth of the rate that the device can do.
//! Ten *aggressors* without a reservation disturb it one by one, without any limit. The victim's
//! times beside each are compared with its times alone in the same round and *setup*: the gate
//! under test, no control at all, or a peer. The setups of a gate take turns:
//!
//! - **stage**: programs on files, under `tidegate run`; bare; in a control group with limits; and
//!   with the kernel's scheduler BFQ, both on a loop device.
//! - **node**: NBD clients of volumes, on a node with files; of nbdkit; and of nbdkit with its
//!   filter for rates.
//!
//! How much of the device is used is the sum of two fractions: the victim's rate of the rate that
//! small reads have alone without control, and the aggressor's rate of its own alone without
//! control. A fixed limit can keep the victim's times and waste the device; a device that is always
//! full can break the times.
//!
//! The same loads run in virtual time against the node that ships, in front of models of drives.
//!
//! The victim's clients wait for replies. A stall delays the next requests, which its times do not
//! show; its rate does, as a part of what it requests.

use tidegate_model::Span;
use tidegate_sim::isolation::{
    AGGRESSORS, Aggressor, LARGE_READS, LoadJob, LoadTenant, READS, REQUESTED_PERCENT, VICTIM_DEPTH,
};

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::scratch::Scratch;
use jobs::FioFigures;
use setups::{BareRates, BenchFiles, PathSetup};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

mod jobs;
mod setups;
mod simulated;

pub(super) use simulated::rows as simulate;

const BENCH: &str = "isolation";
/// The size of a tenant's file.
const SIZE_MIB: u64 = 256;
/// How many times as long as alone the victim's requests may take, at the percentiles 99 and 99.9.
const TIMES_P99: f64 = 2.0;
const TIMES_P999: f64 = 3.0;
/// The least part of its requests that are served in time, and of the device that is used, in per
/// cent.
const SERVED: f64 = 98.0;
const USED: f64 = 90.0;
/// With seven setups and eleven runs of each, a round takes a minute and a half.
const ROUNDS: usize = 3;
const RUN: Span = Span(500 * Span::MILLISECOND.0);
const RUN_QUICK: Span = Span(300 * Span::MILLISECOND.0);

/// A gate under test, with its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchedGate {
    Stage,
    Node,
}

impl BenchedGate {
    const fn name(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Node => "node",
        }
    }
}

/// One of the figures.
type Figure = fn(&FioFigures) -> f64;

/// The figures of a setup in all rounds: of the victim alone, and beside each aggressor.
#[derive(Clone, Debug, Default)]
struct Series {
    alone: Vec<FioFigures>,
    beside: Vec<Vec<(FioFigures, f64)>>,
}

/// A setup, or why there is none, and its figures.
struct Contestant {
    name: &'static str,
    setup: Result<PathSetup, String>,
    series: Series,
}

impl Contestant {
    fn new(name: &'static str, setup: Result<PathSetup, Failure>) -> Self {
        let setup = setup.map_err(|failure| failure.to_string());
        Self { name, setup, series: Series::default() }
    }

    /// One round: the victim alone, then beside each aggressor.
    fn round(
        &mut self,
        aggressors: &[Aggressor],
        rate: u64,
        length: Span,
        files: &BenchFiles<'_>,
    ) -> Result<(), Failure> {
        let Ok(setup) = &mut self.setup else { return Ok(()) };
        let mut round = || {
            let (alone, _) = setup.run(None, rate, length, files)?;
            let beside = aggressors.iter().map(|aggressor| {
                let (victim, other) = setup.run(Some(aggressor), rate, length, files)?;
                Ok((victim, other.map_or(0.0, |other| other.iops)))
            });
            Ok::<_, Failure>((alone, beside.collect::<Result<Vec<_>, Failure>>()?))
        };
        match round() {
            Ok((alone, beside)) => {
                self.series.alone.push(alone);
                self.series.beside.push(beside);
            }
            Err(failure) => {
                files.interrupt.check()?;
                self.setup = Err(failure.to_string());
            }
        }
        Ok(())
    }

    /// For each round, a figure of the victim beside an aggressor, divided by the same one alone.
    fn times(&self, aggressor: usize, figure: Figure) -> Vec<f64> {
        let rounds = self.series.alone.iter().zip(&self.series.beside);
        rounds.map(|(alone, beside)| figure(&beside[aggressor].0) / figure(alone)).collect()
    }

    /// Why it has no figures.
    fn reason(&self) -> String {
        self.setup.as_ref().err().cloned().unwrap_or_else(|| "it was not measured".into())
    }
}

/// The common part of one gate's setups.
struct Course {
    gate: BenchedGate,
    /// The rate of 4 KiB reads without control, and what the victim requests.
    capacity: BareRates,
    requested: u64,
    /// The rate of each aggressor alone, without control.
    unhindered: Vec<f64>,
}

/// The aggressors of a run. A quick one has the first alone: enough to see that everything works.
fn aggressors(plan: WindowPlan) -> &'static [Aggressor] {
    let all: &'static [Aggressor] = &AGGRESSORS;
    if plan.is_full() { all } else { &all[..1] }
}

/// Reports the rows in virtual time, then measures at live gates and reports these rows.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    simulate(plan, interrupt, report)?;
    for gate in [BenchedGate::Stage, BenchedGate::Node] {
        if let Err(failure) = measure(gate, plan, interrupt, report) {
            interrupt.check()?;
            let row = Row::less(BENCH, format!("{}: p99", gate.name()), "ratio", None);
            report(row.because(failure.to_string()));
        }
    }
    Ok(())
}

fn measure(
    gate: BenchedGate,
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (rounds, length) = if plan.is_full() { (ROUNDS, RUN) } else { (1, RUN_QUICK) };
    let aggressors = aggressors(plan);
    let (work, scratch) = (work_directory()?, Scratch::new()?);
    let files = BenchFiles { work: &work, scratch: &scratch, interrupt };
    let bare = files.bare()?;
    let mut free = match gate {
        BenchedGate::Stage => bare,
        BenchedGate::Node => files.nbdkit(None)?,
    };
    let mut alone = |name, jobs| {
        let aggressor = Aggressor { name, tenant: LoadTenant::Other, jobs };
        free.aggressor(&aggressor, length, &files)
    };
    const SMALL: &[LoadJob] = &[READS];
    const LARGE: &[LoadJob] = &[LARGE_READS];
    let capacity = BareRates {
        iops: alone("small reads", SMALL)?.iops as u64,
        bytes: alone("large reads", LARGE)?.bytes as u64,
    };
    let unhindered = aggressors.iter().map(|aggressor| alone(aggressor.name, aggressor.jobs));
    let unhindered = unhindered.collect::<Result<Vec<_>, Failure>>()?;
    let course = Course {
        gate,
        capacity,
        requested: (capacity.iops * REQUESTED_PERCENT / 100).max(u64::from(VICTIM_DEPTH)),
        unhindered: unhindered.into_iter().map(|figures| figures.iops).collect(),
    };
    let mut contestants = match gate {
        BenchedGate::Stage => vec![
            Contestant::new("stage", files.stage(capacity)),
            Contestant::new(free.name, Ok(free)),
            Contestant::new("cgroup throttling", files.cgroup(capacity)),
            Contestant::new("BFQ", files.bfq()),
        ],
        BenchedGate::Node => vec![
            Contestant::new("node", files.node(capacity)),
            Contestant::new(free.name, Ok(free)),
            Contestant::new("nbdkit's rate filter", files.nbdkit(Some(capacity))),
        ],
    };
    interrupt.check()?;
    for _ in 0..rounds {
        for contestant in &mut contestants {
            contestant.round(aggressors, course.requested, length, &files)?;
        }
    }
    for (index, aggressor) in aggressors.iter().enumerate() {
        course.report(aggressor.name, index, &contestants, report);
    }
    Ok(())
}

/// A directory below the working directory: the one for temporary files is often in memory.
fn work_directory() -> Result<Scratch, Failure> {
    let made = std::env::current_dir()
        .and_then(|directory| Scratch::within(&directory, ".tidegate-bench-isolation-"));
    made.map_err(|error| Failure::new(Code::Failure, "there are no files here").cause(error))
}

impl Course {
    /// The rows of one aggressor.
    fn report(
        &self,
        aggressor: &str,
        index: usize,
        contestants: &[Contestant],
        report: &mut dyn FnMut(Row),
    ) {
        let [ours, peers @ ..] = contestants else { return };
        let case = |what: &str| format!("{}, {aggressor}: {what}", self.gate.name());
        let p99: Figure = |figures| figures.p99_ms;
        let p999: Figure = |figures| figures.p999_ms;
        let percentiles = [("p99", TIMES_P99, p99), ("p99.9", TIMES_P999, p999)];
        for (name, bound, figure) in percentiles {
            let times = ours.times(index, figure);
            let alone = Median::of(ours.series.alone.iter().map(figure));
            for (number, peer) in peers.iter().enumerate() {
                let row = Row::less(BENCH, case(name), "ratio", None);
                let peers = peer.times(index, figure);
                // A round in which the victim had no reads at all has no time.
                let is_missing = |times: &[f64]| !times.iter().any(|time| time.is_finite());
                let row = match (times.is_empty(), is_missing(&peers)) {
                    (true, _) => row.because(ours.reason()),
                    (_, true) => {
                        let row = row.of_median(Median::of(times.iter().copied()));
                        row.beside(peer.name, Err(peer.reason()))
                    }
                    _ => row.beside_in_turns(
                        peer.name,
                        times.iter().copied().zip(peers.iter().copied()),
                    ),
                };
                let note = alone.map_or_else(String::new, |alone| {
                    format!("alone {:.2} ms at {} reads/s", alone.value, self.requested)
                });
                // The bound is the same beside each peer, and counts once.
                report(if number == 0 { row.promised(bound).noted(note) } else { row });
            }
        }
        for (name, unit, bound) in
            [("reads served", "% asked", SERVED), ("the device", "% used", USED)]
        {
            let share = |contestant: &Contestant| self.shares(contestant, index, unit);
            let row = Row::more(BENCH, case(name), unit, None);
            let (times, free) = (share(ours), peers.first());
            let row = match (times.is_empty(), free) {
                (true, _) => row.because(ours.reason()),
                (_, Some(free)) => {
                    row.beside_in_turns(free.name, times.into_iter().zip(share(free)))
                }
                (_, None) => row.of_median(Median::of(times)),
            };
            report(row.promised(bound));
        }
    }

    /// For each round, the part of its requests that the victim was served, or the part of the
    /// device that was used, in per cent.
    fn shares(&self, contestant: &Contestant, index: usize, unit: &str) -> Vec<f64> {
        let share = |(victim, other): &(FioFigures, f64)| match unit {
            "% used" => {
                let own = victim.iops / self.capacity.iops as f64;
                100.0 * (own + other / self.unhindered[index])
            }
            _ => 100.0 * victim.iops / self.requested as f64,
        };
        contestant.series.beside.iter().map(|beside| share(&beside[index])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(iops: f64, p99_ms: f64) -> FioFigures {
        FioFigures { iops, bytes: 0.0, p99_ms, p999_ms: 2.0 * p99_ms }
    }

    fn contestant(name: &'static str, p99_ms: f64, other: f64) -> Contestant {
        let series = Series {
            alone: vec![figures(2_000.0, 0.5); 3],
            beside: vec![vec![(figures(1_980.0, p99_ms), other)]; 3],
        };
        Contestant { name, setup: Err("it is no real one".into()), series }
    }

    #[test]
    fn an_aggressor_has_a_row_for_each_peer_and_promises_in_one() {
        let capacity = BareRates { iops: 10_000, bytes: 1 << 30 };
        let course =
            Course { gate: BenchedGate::Node, capacity, requested: 2_000, unhindered: vec![500.0] };
        let contestants = [
            contestant("node", 0.9, 350.0),
            contestant("no control", 5.0, 400.0),
            Contestant::new("BFQ", Err(Failure::new(Code::Failure, "the kernel has none"))),
        ];
        let mut rows = Vec::new();
        course.report("trims", 0, &contestants, &mut |row| rows.push(row));
        let short = |row: &Row| (row.value, row.peer_value, row.kept, row.ratio);
        assert_eq!(rows[0].case, "node, trims: p99");
        assert_eq!(short(&rows[0]), (Some(1.8), Some(10.0), Some(true), Some(10.0 / 1.8)));
        assert_eq!(rows[0].note.as_deref(), Some("alone 0.50 ms at 2000 reads/s"));
        assert_eq!(short(&rows[1]), (Some(1.8), None, None, None));
        assert!(rows[1].reason.as_ref().is_some_and(|why| why.contains("the kernel has none")));
        let served = &rows[4];
        assert_eq!((served.value, served.kept), (Some(99.0), Some(true)));
        // A fifth of the reads, and 70 % of the aggressor.
        let used = &rows[5];
        assert_eq!((used.value, used.kept, rows.len()), (Some(89.8), Some(false), 6));
    }

    #[test]
    fn a_gate_that_cannot_be_measured_has_a_reason() {
        let capacity = BareRates { iops: 10_000, bytes: 1 << 30 };
        let course =
            Course { gate: BenchedGate::Stage, capacity, requested: 2_000, unhindered: vec![1.0] };
        let missing = Contestant::new("stage", Err(Failure::new(Code::Failure, "no shim")));
        let mut rows = Vec::new();
        let contestants = [missing, contestant("no control", 5.0, 1.0)];
        course.report("trims", 0, &contestants, &mut |row| rows.push(row));
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.value.is_none() && row.kept.is_none()), "{rows:#?}");
        assert!(rows.iter().all(|row| row.reason.as_deref() == Some("no shim")), "{rows:#?}");
    }
}
