//! DSFQ paper, figure 8: two streams on one storage node (*brick*), with weights one to two. Stream
//! f always has 30 threads, stream g none to 20.

use serde_json::json;

use super::judge::{LATENCIES, Latencies, grows_to_its_share, knee, latency};
use super::plot::{Panel, draw};
use super::sweep::{Sweep, sweep};
use super::{A, F, FIGURE_8, FigureContext, FigureResult, G, fairness, mean};
use super::{LIVE, SIMULATED, live, scenario, share, tenths, thousandths, with};
use crate::experiment::verdict::Claim;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let counts: Vec<u32> = (0..=20).collect();
    let [sweep] = sweep(context, [scenario(FIGURE_8)?], &counts)?;
    let knee = knee(&sweep);
    let claims = vec![throughput(&sweep, knee), latencies(&sweep, knee.unwrap_or(u32::MAX))];
    Ok(FigureResult { claims, table: table(SIMULATED, &sweep), picture: picture(&sweep) })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (sweep, claims) = live::one_node(context)?;
    let (table, picture) = (table(LIVE, &sweep), picture(&sweep));
    Ok(FigureResult { claims: claims.into(), table, picture })
}

fn table(world: &str, sweep: &Sweep) -> Table {
    let mut table = Table::new().left("WORLD").right("THREADS OF g");
    table = table.right("f, MB/s").right("g, MB/s").right("f, ms").right("g, ms");
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
    table
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

fn picture(sweep: &Sweep) -> String {
    let x = "threads of g";
    let line = |name, stream| sweep.series(name, |outcome| latency(outcome, stream));
    let panels = [
        sweep.throughputs("(a) throughput", x, &[("f", F, A), ("g", G, A)]),
        Panel::new("(b) latency", [x, "ms"], [line("f", F), line("g", G)]),
    ];
    draw("Two streams on one brick, weights one to two", &panels)
}
