//! DSFQ paper, live: figures 8, 9a, 11a and 12a.
//!
//! ```text
//!  fio: threads of f and g ──NBD──▶ gateway ──▶ node A: files behind a model of 6 MB/s
//!                                       └─────▶ nodes B and C
//! ```
//!
//! It runs the scenarios of the simulation as `tidegate up` would run them, every part a process of
//! its own, and returns fio's results in the form of a simulated run. Nodes are as fast as a model
//! of a device, so the shares depend on the schedulers and little on this machine.
//!
//! The model serves one request after the other, and a thread alone would keep it busy. So those
//! threads whose number grows ask so many times a second each, and B and C by turns: the scenario's
//! second brick is two nodes here, which together can give more than one.

use std::ops::Range;

use serde_json::{Map, Value, json};
use tidegate_model::{Bytes, Discipline, Iops};
use tidegate_sim::bricks::{DsfqReport, DsfqScenario, SampleCell, Unfairness};

use super::judge::{
    BALANCED, BALANCED_OWED, LATENCIES, Latencies, NEARLY, grows_to_its_share, has_minimum, knee,
    latency,
};
use super::sweep::Sweep;
use super::{
    B, Check, ClaimSource, EQUAL, F, FIGURE_8, FIGURE_9A, FIGURE_12, FigureContext, G, LIVE, equal,
    mean,
};
use super::{scenario, share, tenths, thousandths, with};
use crate::experiment::paper::timed;
use crate::experiment::quiet::Quiet;
use crate::experiment::verdict::{Claim, at_least, at_most, rises};
use client::{Measurement, Threads};
use testbed::{DsfqTestbed, volume};
use tidegate_console::failure::Failure;

mod client;
mod testbed;

/// Nodes A, B and C.
const NODES: usize = 3;

/// Requests are as large as the paper's files on average, and so a node serves 732 of them in a
/// second. In figure 8 they are as large as its largest, 366 in a second: g has only few of them
/// waiting there, which are to last while fio waits for a processor.
const BLOCK: Bytes = Bytes(8 << 10);
const BLOCK_LARGE: Bytes = Bytes(16 << 10);

/// Of each thread beside those on A: twenty of them ask for seven tenths of what a node gives.
///
/// The more that is, the longer it takes until totals are level: what g is served elsewhere goes to
/// A with its next request, which waits there behind thirty others of its own.
const PACE: Iops = Iops(26);

/// Requests at the model of a device where both streams are to have some waiting at all times: few,
/// so that there are as many as possible for when fio waits for a processor.
const DEPTH: u32 = 4;

/// A scenario with more and more threads.
struct LiveSweep {
    sweep: Sweep,
    quiet: Quiet,
    /// Why it was not run, if it was not.
    missing: Option<String>,
}

/// Figure 8: f and g on one node.
pub(super) fn one_node(context: &FigureContext) -> Result<(Sweep, [Claim; 2]), Failure> {
    let live =
        LiveSweep::run(context, &scenario(FIGURE_8)?, BLOCK_LARGE, &[0, 4, 8, 11, 14, 17, 20])?;
    let claims = [throughput(&live), latencies(&live)];
    Ok((live.sweep, claims))
}

fn throughput(live: &LiveSweep) -> Claim {
    let knee = knee(&live.sweep);
    let shares: Vec<f64> = live.sweep.outcomes().map(share).collect();
    live.claim(
        "8a",
        "g's throughput grows until it has two thirds of the node, and no more threads give it \
         more",
        json!({
            "threads_of_g_for_its_share": knee,
            "share_of_g_percent": live.each(|outcome| share(outcome) * 100.0),
        }),
        grows_to_its_share(&live.threads(), &shares, knee),
    )
}

fn latencies(live: &LiveSweep) -> Claim {
    let knee = knee(&live.sweep).unwrap_or(u32::MAX);
    live.claim(
        "8b",
        LATENCIES,
        json!({
            "latency_of_f_ms": live.each(|outcome| latency(outcome, F).unwrap_or(0.0)),
            "latency_of_g_ms": live.each(|outcome| latency(outcome, G).unwrap_or(0.0)),
        }),
        Latencies::of(&live.sweep, knee).checks(),
    )
}

/// Figure 9a, and with two gateways 11a: f on A, g on all nodes.
pub(super) fn totals(context: &FigureContext, gateways: u16) -> Result<(Sweep, Claim), Failure> {
    let mut scenario = DsfqScenario { coordinators: gateways, ..scenario(FIGURE_9A)? };
    scenario.bricks.depth = DEPTH;
    let (figure, text, counts) = match gateways {
        1 => ("9a", "whatever g is served elsewhere", &[0, 4, 8, 12, 16, 20][..]),
        _ => ("11a", "also with the threads of both on two gateways", &[4, 12, 20][..]),
    };
    let live = LiveSweep::run(context, &scenario, BLOCK, counts)?;
    let [of_f, of_g] = [F, G].map(|stream| live.each(|outcome| mean(outcome, stream, None)));
    let (percent, threads) = live.sweep.furthest(1.0, |_| true);
    let claim = live.claim(
        figure,
        &format!("{text}, the totals of f and g stay equal: f has more of A"),
        json!({
            "f_megabytes_per_second": of_f,
            "g_megabytes_per_second": of_g,
            "totals_apart_at_most_percent": percent.map(tenths),
            "with_threads": threads,
        }),
        [equal(percent), rises(1.0, "f on A", "MB/s", of_f.clone())],
    );
    Ok((live.sweep, claim))
}

/// Figure 12a: as 9a, and g keeps a twelfth of A.
pub(super) fn minimum(
    context: &FigureContext,
    discipline: Discipline,
) -> Result<(Sweep, Claim), Failure> {
    let mut scenario = DsfqScenario { discipline, ..scenario(FIGURE_12)? };
    scenario.bricks.depth = DEPTH;
    let (figure, counts, upto, equal) = match discipline {
        Discipline::Unified => ("12", &[18, 22, 32][..], BALANCED_OWED, EQUAL),
        _ => ("12a", &[0, 6, 12, 18, 24, 32][..], BALANCED, NEARLY),
    };
    let live = LiveSweep::run(context, &scenario, BLOCK, counts)?;
    let (percent, threads) = live.sweep.furthest(1.0, |outcome| mean(outcome, G, B) < upto);
    let most = live.sweep.outcomes().map(|outcome| mean(outcome, G, B)).reduce(f64::max);
    let text = format!(
        "under {discipline} totals are equal as long as g is served less than {upto} MB/s \
         elsewhere; however much that is, it keeps a twelfth of A"
    );
    let claim = live.claim(
        figure,
        &text,
        json!({
            "f_megabytes_per_second": live.each(|outcome| mean(outcome, F, None)),
            "g_megabytes_per_second": live.each(|outcome| mean(outcome, G, None)),
            "totals_apart_at_most_percent": percent.map(tenths),
            "with_threads": threads,
            "share_of_g_on_a_percent": live.each(|outcome| share(outcome) * 100.0),
        }),
        [
            at_most("totals apart", "%", equal, percent),
            has_minimum(&live.sweep),
            at_least("elsewhere at last", "MB/s", upto, most),
        ],
    );
    Ok((live.sweep, if discipline == Discipline::Unified { claim.ours() } else { claim }))
}

impl LiveSweep {
    /// Runs a scenario with each number of threads in the last group of its second stream.
    fn run(
        context: &FigureContext,
        scenario: &DsfqScenario,
        block: Bytes,
        counts: &[u32],
    ) -> Result<Self, Failure> {
        let sweep = Sweep { seed: scenario.seed, seconds: 0.0, points: Vec::new() };
        let mut live = Self { sweep, quiet: Quiet::default(), missing: client::missing() };
        if live.missing.is_some() {
            return Ok(live);
        }
        let mut testbed = DsfqTestbed::start(scenario, NODES, block, &context.interrupt)?;
        for (done, count) in counts.iter().enumerate() {
            let (discipline, of) = (scenario.discipline, counts.len());
            context.note(&format!("live, {discipline}: {done} of {of} done"));
            let threads = threads(scenario, *count);
            let (result, seconds) =
                timed(|| client::run(&mut testbed, &threads, &context.interrupt));
            let (measurement, quiet) = result?;
            live.sweep.points.push((*count, outcome(scenario, block, &measurement)));
            live.sweep.seconds += seconds;
            live.quiet = live.quiet.and(quiet);
        }
        Ok(live)
    }

    fn each(&self, of: impl Fn(&DsfqReport) -> f64) -> Vec<f64> {
        self.sweep.outcomes().map(|outcome| thousandths(of(outcome))).collect()
    }

    /// A claim with numbers for each number of threads.
    fn claim(
        &self,
        figure: &'static str,
        text: &str,
        more: Value,
        checks: impl IntoIterator<Item = Check>,
    ) -> Claim {
        let mut numbers = Map::new();
        numbers.insert("threads".into(), json!(self.threads()));
        numbers.extend(self.quiet.numbers());
        let seconds = tenths(self.sweep.seconds);
        let source = ClaimSource { paper: "dsfq", figure, world: LIVE, seed: None, seconds };
        let claim = source.claim(text, with(numbers, more), checks);
        claim.skipped(self.missing.as_deref()).disturbed(self.quiet.disturbance().as_deref())
    }

    fn threads(&self) -> Vec<u32> {
        self.sweep.points.iter().map(|(count, _)| *count).collect()
    }
}

/// The scenario's threads, with `count` in the last group of its second stream.
fn threads(scenario: &DsfqScenario, count: u32) -> Vec<Threads> {
    let mut threads = Vec::new();
    for (number, stream) in scenario.stream.iter().enumerate() {
        for (index, group) in stream.threads.iter().enumerate() {
            let is_last = number == G && index + 1 == stream.threads.len();
            let all = if is_last { count } else { group.count };
            let is_shared = group.on == [0];
            let nodes = if is_shared { 0..1 } else { 1..NODES };
            let gateways = 0..usize::from(scenario.coordinators);
            let ways = gateways.flat_map(|gateway| nodes.clone().map(move |node| (gateway, node)));
            let ways: Vec<(usize, usize)> = ways.collect();
            // They go these ways by turns.
            for (index, (gateway, node)) in (0..).zip(&ways) {
                let count = (all + ways.len() as u32 - 1 - index) / ways.len() as u32;
                let (stream, gateway, node) = (stream.name.clone(), *gateway, *node);
                let pace = (!is_shared).then_some(PACE);
                threads.push(Threads { stream, node, gateway, count, pace });
            }
        }
    }
    threads.retain(|threads| threads.count > 0);
    threads
}

/// The measurements in the form of a simulated run: nodes B and C are one brick.
fn outcome(scenario: &DsfqScenario, block: Bytes, measurement: &Measurement) -> DsfqReport {
    let cell = |stream: &str, nodes: Range<usize>| {
        let seen = nodes.filter_map(|node| measurement.seen.get(&volume(stream, node)));
        seen.fold(SampleCell::default(), |sum, seen| SampleCell {
            bytes: sum.bytes + seen.requests * block.0,
            requests: sum.requests + seen.requests,
            took_ns: sum.took_ns + seen.took_ns as u64,
            ..sum
        })
    };
    let streams = scenario.stream.iter().map(|stream| stream.name.as_str());
    let cells = streams.clone().flat_map(|name| [0..1, 1..NODES].map(|nodes| cell(name, nodes)));
    DsfqReport {
        seed: scenario.seed,
        sample: measurement.length,
        streams: streams.map(str::to_owned).collect(),
        bricks: 2,
        samples: vec![cells.collect()],
        unfairness: Unfairness::default(),
        announced: 0,
        events: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::A;
    use super::*;
    use crate::experiment::verdict::Verdict;
    use client::Seen;
    use tidegate_model::Span;

    #[test]
    fn threads_are_spread_round_robin() {
        let shown = |scenario: &DsfqScenario, count| -> Vec<String> {
            let formatted = |threads: Threads| {
                let Threads { stream, node, gateway, count, pace } = threads;
                let paced = if pace.is_some() { " paced" } else { "" };
                format!("{count} of {stream} on {node} by {gateway}{paced}")
            };
            threads(scenario, count).into_iter().map(formatted).collect()
        };
        let one = scenario(FIGURE_8).unwrap();
        assert_eq!(shown(&one, 13), ["30 of f on 0 by 0", "13 of g on 0 by 0"]);
        assert_eq!(shown(&one, 0), ["30 of f on 0 by 0"]);
        let two = DsfqScenario { coordinators: 2, ..scenario(FIGURE_9A).unwrap() };
        assert_eq!(
            shown(&two, 3),
            [
                "15 of f on 0 by 0",
                "15 of f on 0 by 1",
                "15 of g on 0 by 0",
                "15 of g on 0 by 1",
                "1 of g on 1 by 0 paced",
                "1 of g on 2 by 0 paced",
                "1 of g on 1 by 1 paced",
            ]
        );
    }

    #[test]
    fn measurements_have_the_form_of_simulated_outcomes() {
        let scenario = scenario(FIGURE_9A).unwrap();
        let seen = |name: &str, requests, took_ns| (name.to_owned(), Seen { requests, took_ns });
        let all = [seen("f-0", 500, 2e9), seen("g-0", 300, 3e9), seen("g-2", 200, 1e9)];
        let measurement = Measurement { length: Span(2 * Span::SECOND.0), seen: all.into() };
        let outcome = outcome(&scenario, BLOCK, &measurement);
        assert_eq!(outcome.mean(F, None), 250.0 * BLOCK.0 as f64);
        assert_eq!(outcome.mean(G, None), outcome.mean(F, A));
        assert_eq!(outcome.mean(G, B), 100.0 * BLOCK.0 as f64);
        assert_eq!(outcome.latency(G, A), Some(0.01));
        assert_eq!(share(&outcome), 0.375);
    }

    #[test]
    fn what_was_not_run_is_not_judged() {
        let sweep = Sweep { seed: 0, seconds: 0.0, points: Vec::new() };
        let missing = Some("there is no client".into());
        let live = LiveSweep { sweep, quiet: Quiet::default(), missing };
        for claim in [throughput(&live), latencies(&live)] {
            assert_eq!(claim.verdict, Verdict::Skipped);
            assert_eq!(claim.reason.as_deref(), Some("there is no client"));
        }
    }
}
