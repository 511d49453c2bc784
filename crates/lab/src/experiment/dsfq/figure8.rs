//! Figure 8: two streams on one storage node (*brick*), with weights one to two. Stream f always
//! has 30 threads, stream g none to 20.

use serde_json::json;
use tidegate_sim::bricks::DsfqReport;

use super::plot::{Panel, draw};
use super::sweep::{Sweep, sweep};
use super::{
    A, Check, EQUAL, F, FIGURE_8, FigureContext, FigureResult, G, apart, fairness, mean, range,
};
use super::{LIVE, SIMULATED, live, scenario, share, tenths, thousandths, with};
use crate::experiment::verdict::{Claim, at_most, between, near, rises};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// Where the paper's g has its share: "around 13".
pub(super) const KNEE: [f64; 2] = [12.0, 15.0];

/// g's fraction of the brick by its weight.
pub(super) const SHARE: f64 = 2.0 / 3.0;

/// Latencies this far apart are the same, and throughputs too, in percent.
pub(super) const SAME: f64 = 10.0;

/// Latency that grows is at least so many times what it was.
const LONGER: f64 = 1.2;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let counts: Vec<u32> = (0..=20).collect();
    let [sweep] = sweep(context, [scenario(FIGURE_8)?], &counts)?;
    let (live, of_live) = live::one_node(context)?;
    let knee = knee(&sweep);
    let mut table = Table::new().left("WORLD").right("THREADS OF g");
    table = table.right("f, MB/s").right("g, MB/s").right("f, ms").right("g, ms");
    for (world, sweep) in [(SIMULATED, &sweep), (LIVE, &live)] {
        for (count, outcome) in &sweep.points {
            let formatted =
                |stream| latency(outcome, stream).map_or("-".into(), |ms| format!("{ms:.1}"));
            table.row([
                world.into(),
                count.to_string().into(),
                format!("{:.2}", mean(outcome, F, A)).into(),
                format!("{:.2}", mean(outcome, G, A)).into(),
                formatted(F).into(),
                formatted(G).into(),
            ]);
        }
    }
    let mut claims = vec![throughput(&sweep, knee), latencies(&sweep, knee.unwrap_or(u32::MAX))];
    claims.extend(of_live);
    Ok(FigureResult { claims, table, picture: picture(&sweep, &live) })
}

/// In milliseconds.
pub(super) fn latency(outcome: &DsfqReport, stream: usize) -> Option<f64> {
    outcome.latency(stream, A).map(|seconds| seconds * 1e3)
}

/// With how many threads g has its share, if it ever has.
pub(super) fn knee(sweep: &Sweep) -> Option<u32> {
    let has = |(_, outcome): &&(u32, DsfqReport)| share(outcome) >= SHARE * (1.0 - EQUAL / 100.0);
    sweep.points.iter().find(has).map(|(count, _)| *count)
}

fn throughput(sweep: &Sweep, knee: Option<u32>) -> Claim {
    let (numbers, within) = fairness(sweep.outcomes());
    let shares: Vec<f64> = sweep.outcomes().map(share).collect();
    let last = shares.last().copied().unwrap_or(0.0);
    let threads: Vec<u32> = sweep.points.iter().map(|(count, _)| *count).collect();
    sweep.source("8a").claim(
        "with weights of one to two g's throughput grows until it has two thirds of the brick, \
         and no more threads give it more",
        with(
            numbers,
            json!({
                "threads_of_g_for_its_share": knee,
                "share_of_g_with_20_threads_percent": tenths(last * 100.0),
            }),
        ),
        grows_to_its_share(&threads, &shares, knee).into_iter().chain([within]),
    )
}

/// g's share grows up to the knee, which is where the paper's is, and stays there.
pub(super) fn grows_to_its_share(threads: &[u32], shares: &[f64], knee: Option<u32>) -> [Check; 3] {
    let index = threads.iter().position(|count| Some(*count) == knee);
    let index = index.unwrap_or(shares.len().saturating_sub(1));
    let percent = |shares: &[f64]| shares.iter().map(|share| share * 100.0).collect::<Vec<_>>();
    [
        between("threads for that", "", KNEE, knee.map_or(f64::INFINITY, f64::from)),
        rises(1.0, "its share before", "%", percent(&shares[..shares.len().min(index + 1)])),
        near("its share from then on", "%", 66.7, 3.3, percent(&shares[index..])),
    ]
}

fn latencies(sweep: &Sweep, knee: u32) -> Claim {
    let latencies = Latencies::of(sweep, knee);
    sweep.source("8b").claim(
        LATENCIES,
        json!({
            "latency_of_g_before_ms": latencies.before.map(thousandths),
            "latency_of_g_with_20_threads_ms": thousandths(latencies.last),
            "throughput_of_f_changes_after_percent": tenths(latencies.change()),
        }),
        latencies.checks(),
    )
}

/// The paper's claim about latencies.
pub(super) const LATENCIES: &str = "g's latency stays the same until it has its share; then more \
    threads give it more latency instead, and nothing changes for f";

/// Latencies and throughput below and above the number of threads that gives g its share.
pub(super) struct Latencies {
    /// Of g, before: least and most, in milliseconds.
    before: [f64; 2],
    /// Of g, with the most threads.
    last: f64,
    /// Throughput of f, after: least and most.
    other: [f64; 2],
}

impl Latencies {
    pub(super) fn of(sweep: &Sweep, knee: u32) -> Self {
        let (before, after): (Vec<_>, Vec<_>) =
            sweep.points.iter().partition(|(count, _)| *count < knee);
        Self {
            before: range(before.iter().filter_map(|(_, outcome)| latency(outcome, G))),
            last: after.last().and_then(|(_, outcome)| latency(outcome, G)).unwrap_or(0.0),
            other: range(after.iter().map(|(_, outcome)| mean(outcome, F, A))),
        }
    }

    /// Of f's throughput, in percent.
    fn change(&self) -> f64 {
        let [low, high] = self.other;
        apart(low, high)
    }

    pub(super) fn checks(&self) -> [Check; 3] {
        let [least, most] = self.before;
        [
            at_most("before, g's latency varies by", "%", SAME, apart(least, most)),
            rises(LONGER, "then and with 20 threads it", "ms", [most, self.last]),
            at_most("f's throughput changes after by", "%", SAME, self.change()),
        ]
    }
}

fn picture(sweep: &Sweep, live: &Sweep) -> String {
    let x = "threads of g";
    let lines = &[("f", F, A), ("g", G, A)];
    let latencies = |title: &str, sweep: &Sweep| {
        let line = |name, stream| sweep.series(name, |outcome| latency(outcome, stream));
        let (series, levels) = (vec![line("f", F), line("g", G)], Vec::new());
        Panel::new(title, [x, "ms"], series).with_levels(levels)
    };
    let panels = [
        sweep.throughputs("(a) throughput", x, lines),
        latencies("(b) latency", sweep),
        live.throughputs("(a) live", x, lines),
        latencies("(b) live", live),
    ];
    draw("Two streams on one brick, weights one to two", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn a_share_grows_and_stays() {
        let mut shares: Vec<f64> = (0..=13).map(|n| f64::from(n) / 20.0).collect();
        shares.extend([SHARE; 7]);
        let threads: Vec<u32> = (0..=20).collect();
        let verdict =
            |shares: &[f64], knee| judge(&grows_to_its_share(&threads, shares, knee)).verdict;
        assert_eq!(verdict(&shares, Some(13)), Verdict::Reproduced);
        assert_eq!(verdict(&shares, Some(5)), Verdict::NotReproduced);
        assert_eq!(verdict(&shares, None), Verdict::NotReproduced);
        shares[20] = 0.8;
        assert_eq!(verdict(&shares, Some(13)), Verdict::Differs);
    }
}
