//! Haechi, live: one promise over four data nodes, with processes.
//!
//! ```text
//!  T1 to T10, a client of each at each node ──one-sided──▶ memory of four data nodes
//!      (forty of tidegate-lab kv)                 reports ▼  ▲ shares
//!                                                     controller (pShift)
//! ```
//!
//! Tenants, what they are promised, what they want, and the move of their hot nodes are the
//! simulated scenario's, at a hundredth of its speed: four nodes then do 63,000 operations a
//! second together, which is what the ten clients of other live figures do at one.
//!
//! # Periods of four nodes
//! Each data node begins its periods by itself, and its clients follow it. The demand of a tenant
//! moves at every node with a period whose number its clients receive two periods before, so that
//! all clients of a node move together, and all nodes within a period. Periods are counted from
//! there: what a tenant read in the k-th period after the move is what it read in the k-th at each
//! node. While shares stand that is what it read in any period; while they move it is not, so what
//! it misses then is reported and not judged.
//!
//! Periods before the move and after shares have followed count if they were quiet (see
//! [`super::run`]) at all four nodes; if more than a fifth were not, no claim is judged.

use core::ops::Range;

use serde_json::{Value, json};
use tidegate_model::Span;
use tidegate_sim::one_sided::nodes::{
    self as sim, NodesControl, OneSidedClusterReport, OneSidedClusterScenario, Sample,
};

use super::super::NODES;
use super::super::nodes::{CHANGE_PERIOD, FOLLOWED, LOST, means, panel, table, worst};
use super::run::{PeriodLog, expect_right, start, with_periods};
use super::testbed::{HaechiTestbed, NodeRules, NodeSettings};
use super::{AS_SIMULATED, KEPT, SMALL, USED};
use crate::experiment::haechi::plot::draw;
use crate::experiment::haechi::{FigureContext, FigureResult, kilo};
use crate::experiment::paper::{ClaimSource, LIVE, simulate, tenths, timed, wrong};
use crate::experiment::quiet::{self, PriorityBoost};
use crate::experiment::verdict::{Check, Claim, at_least, at_most};
use crate::kv::ReportRow;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// By how much live runs are slower than the scenario.
const SLOWED: u32 = 100;

/// The head of the table: rates are those of the scenario's speed.
const UNIT: &str = "K/s, TIMES 100";

/// Periods that pass before any count, beside those that clients report in part. Shares have
/// followed what is wanted by then.
const SKIP: usize = FOLLOWED - CHANGE_PERIOD;

/// So many periods ahead clients learn when their demand changes: what they report of one
/// comes when the next has begun.
const AHEAD: u64 = 2;

/// The controller's process takes less than this of a processor, and a data node's, in percent.
const LIGHT: f64 = 5.0;

/// Result of a live run, at the scenario's speed.
#[derive(Debug)]
struct LiveNodesRun {
    /// Before the move, while shares follow, and after that.
    before: OneSidedClusterReport,
    moving: OneSidedClusterReport,
    after: OneSidedClusterReport,
    /// Periods that passed before the move and after shares had followed, and those of them that
    /// were quiet.
    periods: usize,
    quiet: usize,
    /// How late a client was in sum at most, in a period that counts.
    late: Span,
    /// Operations of engines for themselves, of a hundred.
    control_percent: f64,
    /// Of a processor.
    controller_percent: f64,
    node_percent: f64,
    seconds: f64,
}

/// A run beside its simulation.
struct RunPair {
    live: LiveNodesRun,
    simulated: OneSidedClusterReport,
}

/// In their order: who controls, and what it is called.
const RUNS: [(NodesControl, &str); 2] =
    [(NodesControl::None, "bare"), (NodesControl::Split, "split by demand")];

pub(in super::super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let base = OneSidedClusterScenario::parse(NODES).map_err(wrong)?.slowed(SLOWED);
    let scenarios = RUNS.map(|(control, _)| OneSidedClusterScenario { control, ..base.clone() });
    let shown = simulate(context, scenarios.to_vec(), sim::run)?;
    let mut runs = Vec::new();
    for ((scenario, shown), done) in scenarios.iter().zip(shown).zip(0..) {
        context.note(&format!("live: {done} of {} done", RUNS.len()));
        let live = run(scenario, context)?;
        runs.push(RunPair { live, simulated: faster(shown.outcome) });
    }
    let claims = claims(&runs[0], &runs[1]);
    let mut rows = Vec::new();
    for (run, (_, name)) in runs.iter().zip(RUNS) {
        let RunPair { live: LiveNodesRun { before, after, .. }, simulated } = run;
        let spans =
            [("before", before, 0..CHANGE_PERIOD), ("after", after, FOLLOWED..periods(simulated))];
        for (when, live, range) in spans {
            rows.push((format!("{name}, {when}"), means(live, 0..periods(live))));
            rows.push((format!("{name}, {when}, simulated"), means(simulated, range)));
        }
    }
    let panels = [0, 1].map(|run| panel(RUNS[run].1, &whole(&runs[run].live)));
    let picture = draw("Ten tenants on four data nodes, live", &panels);
    Ok(FigureResult { claims, table: table(UNIT, &rows), picture })
}

fn periods(outcome: &OneSidedClusterReport) -> usize {
    outcome.samples.len()
}

/// All periods of a run, one after the other.
fn whole(live: &LiveNodesRun) -> OneSidedClusterReport {
    let LiveNodesRun { before, moving, after, .. } = live;
    let samples = [&before.samples[..], &moving.samples, &after.samples].concat();
    OneSidedClusterReport { samples, ..before.clone() }
}

/// At the scenario's speed.
fn faster(mut outcome: OneSidedClusterReport) -> OneSidedClusterReport {
    let more = |count: &mut u64| *count *= u64::from(SLOWED);
    outcome.promised.iter_mut().for_each(more);
    for Sample { completed, reserved } in &mut outcome.samples {
        completed.iter_mut().chain(reserved).flatten().for_each(more);
    }
    outcome
}

/// Runs a scenario.
///
/// # Errors
/// If a process ends badly, a value came back that was not stored, or the user ends the command.
/// No process is left.
fn run(
    scenario: &OneSidedClusterScenario,
    context: &FigureContext,
) -> Result<LiveNodesRun, Failure> {
    let _priority_boost = PriorityBoost::raise();
    let (live, seconds) = timed(|| count(scenario, context.periods, &context.interrupt));
    Ok(LiveNodesRun { seconds, ..live? })
}

fn count(
    scenario: &OneSidedClusterScenario,
    periods: Option<usize>,
    interrupt: &Interrupt,
) -> Result<LiveNodesRun, Failure> {
    let OneSidedClusterScenario { nics, period, window, nodes, .. } = scenario;
    let kind = NodeSettings { nics, period: *period, window: *window, rules: NodeRules::SOUND };
    let mut testbed = HaechiTestbed::of(*nodes, &kind, &scenario.policy(), interrupt)?;
    let (words, nodes) = (words(scenario), usize::from(*nodes));
    let mut processes =
        start(words.len(), |client| (&testbed.sockets()[client % nodes], words[client].clone()))?;
    processes.wait_until_ready(interrupt)?;
    let busy = |testbed: &HaechiTestbed| [testbed.controller_us(), testbed.cpu_us()];
    let before = busy(&testbed);
    processes.go();
    let mut log = Log::of(words.len() / nodes, nodes, periods);
    let (result, seconds) = timed(|| {
        while !log.is_over() {
            let Some((client, row)) = processes.next(interrupt)? else {
                return Err(Failure::new(Code::Failure, "clients ended before their time"));
            };
            log.take(client, expect_right(row)?);
            testbed.check()?;
            if log.starts_move() {
                (0..words.len())
                    .for_each(|it| processes.switch_demand(it, log.moved_from[it % nodes]));
            }
        }
        Ok(())
    });
    result?;
    let [controller, node] = [0, 1].map(|at| (busy(&testbed)[at] - before[at]) / seconds / 1e4);
    Ok(LiveNodesRun {
        controller_percent: controller,
        node_percent: node / nodes as f64,
        ..log.live(scenario)
    })
}

/// Arguments of the clients: one client for each tenant at each node.
fn words(scenario: &OneSidedClusterScenario) -> Vec<Vec<String>> {
    let count = scenario.each().count();
    let moved = scenario.relocation.map_or(0, |relocation| relocation.by);
    let mut all = Vec::new();
    for (tenant, (number, tenants)) in scenario.each().enumerate() {
        let [first, later] = [0, moved].map(|moved| scenario.wanted(number, tenants, moved));
        for (first, later) in first.into_iter().zip(later) {
            let mut words = vec![format!("--clients={count}"), format!("--client={tenant}")];
            words.push(format!("--depth={}", scenario.window));
            // Of a period that is not a second long it would be more or less.
            let rate = |count: u64| count * Span::SECOND.0 / scenario.period.0;
            words.extend((0..count).map(|tenant| format!("--tenant=t{tenant}")));
            words.extend(first.map(|count| format!("--demand={} iops", rate(count))));
            words.extend(later.map(|count| format!("--later={} iops", rate(count))));
            words.push("--pattern=constant".into());
            words.extend((scenario.control == NodesControl::None).then(|| "--bare".into()));
            words.push(format!("--seed={}", scenario.seed + all.len() as u64));
            all.push(words);
        }
    }
    all
}

/// Rows that the clients of all nodes report.
struct Log {
    /// Periods to be seen before the move and after shares have followed.
    before: usize,
    after: usize,
    nodes: Vec<PeriodLog>,
    /// The newest period of each node.
    newest: Vec<u64>,
    /// The first period of each node after the move; none of them before that is known.
    moved_from: Vec<u64>,
}

impl Log {
    fn of(tenants: usize, nodes: usize, periods: Option<usize>) -> Self {
        Self {
            before: periods.unwrap_or(CHANGE_PERIOD),
            after: periods.unwrap_or(CHANGE_PERIOD),
            nodes: (0..nodes).map(|_| PeriodLog::of(tenants)).collect(),
            newest: vec![0; nodes],
            moved_from: Vec::new(),
        }
    }

    fn take(&mut self, client: usize, row: ReportRow) {
        let (tenant, node) = (client / self.nodes.len(), client % self.nodes.len());
        self.newest[node] = self.newest[node].max(row.period);
        self.nodes[node].take(tenant, row);
    }

    /// Whether to announce the move to clients now. That is so once.
    fn starts_move(&mut self) -> bool {
        let has_seen = |node: &PeriodLog| node.whole().len() >= SKIP + self.before;
        let starts_move = self.moved_from.is_empty() && self.nodes.iter().all(has_seen);
        if starts_move {
            self.moved_from = self.newest.iter().map(|period| period + AHEAD).collect();
        }
        starts_move
    }

    fn is_over(&self) -> bool {
        let last = |node: &PeriodLog| node.whole().last().map_or(0, |rows| rows[0].period);
        let all = (SKIP + self.after) as u64;
        let is_over = |(node, moved_from)| last(node) + 1 >= moved_from + all;
        !self.moved_from.is_empty() && self.nodes.iter().zip(&self.moved_from).all(is_over)
    }

    /// The rows of all nodes in a period, counted from the move, by node and tenant, and whether it
    /// was quiet; `None` if a client slept through its end.
    fn at(&self, quiet: &[Vec<bool>], period: i64) -> Option<(Vec<&[ReportRow]>, bool)> {
        let (mut all, mut is_quiet) = (Vec::new(), true);
        for ((node, quiet), moved_from) in self.nodes.iter().zip(quiet).zip(&self.moved_from) {
            let number = moved_from.checked_add_signed(period)?;
            let index = node.whole().iter().position(|rows| rows[0].period == number)?;
            all.push(&node.whole()[index][..]);
            is_quiet &= quiet[index];
        }
        Some((all, is_quiet))
    }

    fn live(&self, scenario: &OneSidedClusterScenario) -> LiveNodesRun {
        let quiet: Vec<_> = self.nodes.iter().map(|node| node.quiet(scenario.period)).collect();
        let (before, skip, after) = (self.before as i64, SKIP as i64, self.after as i64);
        let of = |range: Range<i64>| -> Vec<(Vec<&[ReportRow]>, bool)> {
            range.filter_map(|period| self.at(&quiet, period)).collect()
        };
        let mut sides = [of(-before..0), of(skip..skip + after)];
        let calm = sides.iter().flatten().filter(|(_, is_quiet)| *is_quiet).count();
        let periods = sides.iter().map(Vec::len).sum();
        for side in &mut sides {
            if 2 * side.iter().filter(|(_, is_quiet)| *is_quiet).count() >= side.len() {
                side.retain(|(_, is_quiet)| *is_quiet);
            }
        }
        let rows = || sides.iter().flatten().flat_map(|(nodes, _)| nodes).copied().flatten();
        let sum = |of: fn(&ReportRow) -> u64| rows().map(of).sum::<u64>() as f64;
        let (data, control) = (sum(|row| row.data), sum(|row| row.control));
        let late = Span(rows().map(|row| row.late_in_sum).max().unwrap_or(0));
        let outcome = |periods: &[(Vec<&[ReportRow]>, bool)]| {
            faster(OneSidedClusterReport {
                seed: scenario.seed,
                period: scenario.period,
                promised: scenario.promised(),
                samples: periods.iter().map(|(nodes, _)| sample(nodes)).collect(),
            })
        };
        LiveNodesRun {
            before: outcome(&sides[0]),
            moving: outcome(&of(0..skip)),
            after: outcome(&sides[1]),
            periods,
            quiet: calm,
            late,
            control_percent: control * 100.0 / (data + control).max(1.0),
            controller_percent: 0.0,
            node_percent: 0.0,
            seconds: 0.0,
        }
    }
}

/// A period, from rows by node and tenant.
fn sample(nodes: &[&[ReportRow]]) -> Sample {
    let by_tenant = |of: fn(&ReportRow) -> u64| {
        let tenants = 0..nodes.first().map_or(0, |rows| rows.len());
        tenants.map(|tenant| nodes.iter().map(|rows| of(&rows[tenant])).collect()).collect()
    };
    Sample { completed: by_tenant(|row| row.operations), reserved: by_tenant(|row| row.reserved) }
}

/// Load of all clients' reads and control operations on the nodes, in thousands of reads per
/// second.
fn link(live: &LiveNodesRun) -> f64 {
    let LiveNodesRun { before, after, control_percent, .. } = live;
    let total = (before.total() + after.total()) / 2.0;
    kilo(total) * (1.0 + control_percent / (100.0 - control_percent) / SMALL)
}

/// The most that a tenant with a large promise misses, in percent, period by period.
fn missing(outcome: &OneSidedClusterReport) -> Vec<f64> {
    (0..periods(outcome)).map(|period| tenths(worst(outcome, period..period + 1))).collect()
}

fn most(percents: &[f64]) -> f64 {
    percents.iter().copied().fold(0.0, f64::max)
}

fn claims(bare: &RunPair, split: &RunPair) -> Vec<Claim> {
    let lost = [&bare.live.before, &bare.live.after].map(|seen| most(&missing(seen)));
    let lost = most(&lost);
    let LiveNodesRun { before, moving, after, .. } = &split.live;
    let [before, moving, after] = [before, moving, after].map(missing);
    let apart = apart(&split.live, &split.simulated);
    let keeps = |when: &str, missing: &[f64]| at_most(when, "% missing", KEPT, missing);
    let [used, light] = costs(bare, split);
    vec![
        claim(
            &[bare],
            "without control, tenants that want what they are promised at a few of four data \
             nodes lose it to those who read as much as they can",
            json!({ "missing_percent_at_most": tenths(lost) }),
            [at_least("missing in the worst period", "%", LOST, lost)],
        ),
        claim(
            &[split],
            format!(
                "with pShift above Haechi everybody has what it is promised at all nodes together, \
                 also {SKIP} periods after it has begun to want it elsewhere"
            ),
            json!({
                "missing_percent_at_most_before": before,
                "missing_percent_at_most_while_it_moves": moving,
                "missing_percent_at_most_after": after,
            }),
            [keeps("before the move", &before), keeps("after shares moved", &after)],
        ),
        used,
        light,
        claim(
            &[split],
            "each tenant that is promised much reads what it does in the simulated world, and all \
             together",
            json!({ "apart_at_most_percent": tenths(most(&apart)) }),
            [at_most("apart", "%", AS_SIMULATED, apart)],
        ),
    ]
}

/// Claims about the cost of control: of the nodes' capacity, and of processors.
fn costs(bare: &RunPair, split: &RunPair) -> [Claim; 2] {
    let used = link(&split.live) / link(&bare.live) * 100.0;
    let LiveNodesRun { control_percent, controller_percent, node_percent, .. } = split.live;
    [
        claim(
            &[bare, split],
            "and what is read and asked for control is nearly what bare clients read".to_owned(),
            json!({
                "kilo_per_second": tenths(kilo(split.live.after.total())),
                "link_percent_of_bare": tenths(used),
                "operations_for_control_percent": tenths(control_percent),
            }),
            [at_least("of that", "%", USED, used)],
        ),
        claim(
            &[split],
            "controller and data nodes, which take no part in a read, need little of a processor",
            json!({
                "controller_percent_of_a_processor": tenths(controller_percent),
                "node_percent_of_a_processor": tenths(node_percent),
            }),
            [at_most("each", "%", LIGHT, [controller_percent, node_percent])],
        ),
    ]
}

/// Tenants that are promised much. The others live on what these leave: which of them is ahead is
/// chance, and what the whole machine loses is theirs to lose, so they are part of all only.
const MUCH: usize = 5;

/// By how much what each of the first tenants reads, and all together, is apart from what is
/// simulated, in percent.
fn apart(live: &LiveNodesRun, simulated: &OneSidedClusterReport) -> Vec<f64> {
    let sides = [(&live.before, 0..CHANGE_PERIOD), (&live.after, FOLLOWED..periods(simulated))];
    let grouped = |mut each: Vec<f64>| {
        let all = each.iter().sum();
        each.truncate(MUCH);
        each.push(all);
        each
    };
    let apart = sides.into_iter().flat_map(|(seen, range)| {
        let both = [means(seen, 0..periods(seen)), means(simulated, range)].map(grouped);
        let [seen, simulated] = both.map(Vec::into_iter);
        seen.zip(simulated).map(|(seen, simulated)| (seen / simulated - 1.0).abs() * 100.0)
    });
    apart.collect()
}

fn claim<const N: usize>(
    runs: &[&RunPair],
    text: impl Into<String>,
    measured: Value,
    checks: [Check; N],
) -> Claim {
    let sum = |of: fn(&LiveNodesRun) -> usize| runs.iter().map(|run| of(&run.live)).sum::<usize>();
    let late = runs.iter().map(|run| run.live.late).max().unwrap_or(Span::ZERO);
    let periods = [sum(|live| live.periods), sum(|live| live.quiet)];
    let numbers = with_periods(measured, SLOWED, periods, late);
    let disturbance = quiet::disturbance(periods[0] - periods[1], periods[0], 1);
    let source = ClaimSource {
        paper: "haechi",
        figure: "nodes",
        world: LIVE,
        seed: runs.first().map(|run| run.simulated.seed),
        seconds: tenths(runs.iter().map(|run| run.live.seconds).sum()),
    };
    source.claim(text, numbers, checks).ours().disturbed(disturbance.as_deref())
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;
    use crate::experiment::verdict::Verdict;

    fn scenario() -> OneSidedClusterScenario {
        OneSidedClusterScenario::parse(NODES).unwrap().slowed(SLOWED)
    }

    #[test]
    fn a_client_of_each_tenant_at_each_node_gets_its_demand() {
        let all = words(&scenario());
        assert_eq!(all.len(), 40);
        let has = |client: usize, word: &str| all[client].iter().any(|one| one == word);
        // The first tenant's hot node is the first one, and later the third.
        assert!(
            has(0, "--client=0") && has(0, "--demand=3696 iops") && has(0, "--later=1232 iops")
        );
        assert!(
            has(2, "--client=0") && has(2, "--demand=1232 iops") && has(2, "--later=3696 iops")
        );
        assert!(has(5, "--client=1") && has(5, "--demand=3696 iops") && has(5, "--tenant=t9"));
        assert!(has(20, "--client=5") && !all[20].concat().contains("--demand"));
        assert!(!all.concat().concat().contains("--bare"));
        assert!(
            words(&OneSidedClusterScenario { control: NodesControl::None, ..scenario() })[39]
                .contains(&"--bare".into())
        );
    }

    /// Two tenants at two nodes, of which the second is three periods ahead. A tenant does so much
    /// at a node, before and after.
    fn log(late_ms: u64) -> Log {
        let mut log = Log::of(2, 2, Some(2));
        let mut period = 10;
        while !log.is_over() {
            for client in 0..4 {
                let number = period + if client % 2 == 1 { 3 } else { 0 };
                let has_moved =
                    log.moved_from.get(client % 2).is_some_and(|first| number >= *first);
                let count = 10 * (client as u64 + 1) + if has_moved { 5 } else { 0 };
                log.take(client, row(number, count, 1_000, late_ms));
            }
            if log.starts_move() {
                assert_eq!(log.moved_from, [period + AHEAD, period + 3 + AHEAD]);
            }
            assert!(period < 40, "it never ends");
            period += 1;
        }
        log
    }

    #[test]
    fn periods_are_counted_from_the_move_of_each_node() {
        let live = log(0).live(&scenario());
        let counts = |outcome: &OneSidedClusterReport| -> Vec<Vec<Vec<u64>>> {
            let of = |sample: &Sample| {
                sample.completed.iter().map(|it| it.iter().map(|it| it / 100).collect()).collect()
            };
            outcome.samples.iter().map(of).collect()
        };
        assert_eq!(counts(&live.before), vec![vec![vec![10, 20], vec![30, 40]]; 2]);
        assert_eq!(counts(&live.moving), vec![vec![vec![15, 25], vec![35, 45]]; SKIP]);
        assert_eq!(counts(&live.after), vec![vec![vec![15, 25], vec![35, 45]]; 2]);
        assert_eq!((live.periods, live.quiet), (4, 4));
        let busy = log(21).live(&scenario());
        assert_eq!((busy.periods, busy.quiet, busy.late), (4, 0, Span(21 * Span::MILLISECOND.0)));
        assert_eq!(periods(&busy.after), 2, "where none is quiet all count");
    }

    /// A run that is as simulated, but that the first tenant has so much less at its hot node.
    fn seen(simulated: &OneSidedClusterReport, less: u64, quiet: usize) -> RunPair {
        let mut outcome = simulated.clone();
        let samples = outcome.samples.iter_mut();
        samples.for_each(|sample| sample.completed[0][0] -= less);
        let part = |range: Range<usize>| OneSidedClusterReport {
            samples: outcome.samples[range].to_vec(),
            ..outcome.clone()
        };
        let live = LiveNodesRun {
            before: part(0..CHANGE_PERIOD),
            moving: part(CHANGE_PERIOD..FOLLOWED),
            after: part(FOLLOWED..periods(&outcome)),
            periods: 8,
            quiet,
            late: Span::ZERO,
            control_percent: 0.0,
            controller_percent: 1.0,
            node_percent: 1.0,
            seconds: 1.0,
        };
        RunPair { live, simulated: simulated.clone() }
    }

    #[test]
    fn what_a_tenant_misses_fails_on_a_machine_that_was_quiet() {
        let completed = vec![vec![7_100; 4]; 10];
        let sample = Sample { completed, reserved: vec![vec![0; 4]; 10] };
        let simulated = OneSidedClusterReport {
            seed: 1,
            period: Span::SECOND,
            promised: vec![28_000; 10],
            samples: vec![sample; 14],
        };
        let verdicts = |less, quiet| -> Vec<Verdict> {
            let [bare, split] = [2_000, less].map(|less| seen(&simulated, less, quiet));
            claims(&bare, &split).iter().map(|claim| claim.verdict).collect()
        };
        let (holds, fails) = (Verdict::Holds, Verdict::Fails);
        assert_eq!(verdicts(0, 8), [holds; 5]);
        assert_eq!(verdicts(700, 8), [holds, fails, holds, holds, holds]);
        assert_eq!(verdicts(2_000, 8), [holds, fails, holds, holds, fails]);
        assert_eq!(verdicts(2_000, 6), [Verdict::Disturbed; 5]);
    }
}
