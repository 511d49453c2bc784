//! DSFQ parameter sweep: the same scenario with more and more client threads.

use tidegate_sim::bricks::{DsfqReport, DsfqScenario};

use super::plot::{Panel, Series};
use super::{A, B, ClaimSource, F, FigureContext, G, apart, mean, run, source};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// A throughput: its name, a stream, and a brick or all of them.
pub(super) type ThroughputLine = (&'static str, usize, Option<usize>);

/// Those of most figures, where f has data on A and g on A and B.
pub(super) const LINES: &[ThroughputLine] =
    &[("f, all on A", F, None), ("g", G, None), ("g on A", G, A), ("g on B", G, B)];

/// Outcomes of a scenario, by the number of threads in the last group of its second stream.
pub(super) struct Sweep {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) points: Vec<(u32, DsfqReport)>,
}

/// Runs each scenario with each number of threads.
pub(super) fn sweep<const N: usize>(
    context: &FigureContext,
    scenarios: [DsfqScenario; N],
    counts: &[u32],
) -> Result<[Sweep; N], Failure> {
    let changed = scenarios.iter().flat_map(|scenario| {
        counts.iter().map(|count| {
            let mut scenario = scenario.clone();
            if let Some(threads) = scenario.stream[G].threads.last_mut() {
                threads.count = *count;
            }
            scenario
        })
    });
    let mut shown = run(context, changed.collect())?.into_iter();
    // As many come out as went in.
    Ok(scenarios.map(|scenario| {
        let mut sweep = Sweep { seed: scenario.seed, seconds: 0.0, points: Vec::new() };
        for (count, shown) in counts.iter().zip(shown.by_ref()) {
            sweep.seconds += shown.seconds;
            sweep.points.push((*count, shown.outcome));
        }
        sweep
    }))
}

impl Sweep {
    /// The source of the sweep's claims.
    pub(super) fn source(&self, figure: &'static str) -> ClaimSource {
        source(figure, self.seed, self.seconds)
    }

    pub(super) fn outcomes(&self) -> impl Iterator<Item = &DsfqReport> {
        self.points.iter().map(|(_, outcome)| outcome)
    }

    /// Something by the number of threads.
    pub(super) fn series(&self, name: &str, of: impl Fn(&DsfqReport) -> Option<f64>) -> Series {
        let points = self.points.iter();
        let points = points.filter_map(|(count, outcome)| Some((f64::from(*count), of(outcome)?)));
        Series::line(name, points.collect())
    }

    /// Throughputs by the number of threads.
    pub(super) fn throughputs(
        &self,
        title: &str,
        x: &'static str,
        lines: &[ThroughputLine],
    ) -> Panel {
        let line = |(name, stream, brick): &ThroughputLine| {
            self.series(name, |outcome| Some(mean(outcome, *stream, *brick)))
        };
        Panel::new(title, [x, "MB/s"], lines.iter().map(line))
    }

    /// Where totals are furthest from one to `ratio`, among the points that `which` takes: how far,
    /// in percent, and with how many threads; none if it takes no point.
    pub(super) fn furthest(
        &self,
        ratio: f64,
        which: impl Fn(&DsfqReport) -> bool,
    ) -> (Option<f64>, Option<u32>) {
        let points = self.points.iter().filter(|(_, outcome)| which(outcome));
        let far = points.map(|(count, outcome)| {
            let [f, g] = [F, G].map(|stream| mean(outcome, stream, None));
            (apart(f * ratio, g), *count)
        });
        far.max_by(|one, other| one.0.total_cmp(&other.0)).unzip()
    }
}

/// Throughputs of some sweeps, each with a name, in millions of bytes per second.
pub(super) fn table(sweeps: &[(&str, &Sweep)], lines: &[ThroughputLine]) -> Table {
    let mut table = Table::new().left("MB/s").right("THREADS");
    for (name, ..) in lines {
        table = table.right(name);
    }
    for (name, sweep) in sweeps {
        for (count, outcome) in &sweep.points {
            let mut row: Vec<Cell> = vec![(*name).into(), count.to_string().into()];
            row.extend(lines.iter().map(|(_, stream, brick)| {
                Cell::from(format!("{:.2}", mean(outcome, *stream, *brick)))
            }));
            table.row(row);
        }
    }
    table
}
