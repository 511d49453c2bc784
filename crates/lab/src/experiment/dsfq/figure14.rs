//! DSFQ paper, figure 14: f and g have data on three bricks each and share A only; the numbers of
//! asking threads follow sines. Runs: no scheduler, each brick for itself, totals, and totals with
//! a minimum share.

use serde_json::{Value, json};
use tidegate_model::Discipline;
use tidegate_sim::bricks::{DsfqReport, DsfqScenario};

use super::plot::{Panel, Series, draw};
use super::{
    A, Check, DsfqRun, EQUAL, F, FIGURE_14, FigureContext, FigureResult, G, MINIMUM, apart,
    fairness,
};
use super::{mega, run, scenario, source, tenths, with};
use crate::experiment::verdict::{Claim, at_least, at_most, order};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

const RUNS: [(&str, &str, Discipline); 4] = [
    ("14b", "(b) nobody schedules", Discipline::Fifo),
    ("14c", "(c) each brick for itself", Discipline::Sfq),
    ("14d", "(d) TOTAL-DSFQ", Discipline::DsfqTotal),
    ("14e", "(e) HYBRID-DSFQ", Discipline::DsfqHybrid),
];

/// A second holds some fifty requests of such a share, in whole ones.
const KEPT: f64 = 0.9;
/// Less than this part of A in a second is next to nothing.
const STARVED: f64 = 0.02;
/// In how many percent of the seconds something must be so, and how far apart totals may be on
/// average.
const MOSTLY: f64 = 95.0;

const NEARLY: f64 = 10.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let base = scenario(FIGURE_14)?;
    let under = |(_, _, discipline)| DsfqScenario { discipline, ..base.clone() };
    let shown = run(context, RUNS.map(under).to_vec())?;
    let runs: Vec<Vec<Second>> = shown.iter().map(|shown| seconds(&shown.outcome)).collect();
    let checked =
        [unmanaged(&runs[0]), shared(&runs[1]), total(&runs[2]), hybrid(&runs[2], &runs[3])];
    let texts = [
        "without a scheduler A is divided as the threads are that ask there",
        "with single-brick sharing A is divided equally as long as both wait there, and totals \
         differ",
        "with total sharing totals match, but for spans where a stream is served so much elsewhere \
         that it has nothing of A",
        "the hybrid keeps a twelfth of A for whoever waits there, and totals match a little less",
    ];
    let mut claims: Vec<Claim> = Vec::new();
    for (((shown, (figure, ..)), text), (measured, checks)) in
        shown.iter().zip(RUNS).zip(texts).zip(checked)
    {
        let source = source(figure, base.seed, shown.seconds);
        claims.push(match figure {
            "14d" => {
                let (numbers, within) = fairness(std::iter::once(&shown.outcome));
                let checks = checks.into_iter().chain([within]);
                source.claim(text, with(numbers, measured), checks)
            }
            _ => source.claim(text, measured, checks),
        });
    }
    let mut table =
        Table::new().left("RUN").right("TOTALS APART").right("g OF A, FROM").right("TO");
    table = table.right("STARVED, s");
    for ((_, title, _), seconds) in RUNS.iter().zip(&runs) {
        let both: Vec<&Second> = seconds.iter().filter(|second| second.both_wait).collect();
        let of_g = |pick: fn(f64, f64) -> f64, from| {
            both.iter().map(|second| second.share).fold(from, pick) * 100.0
        };
        table.row([
            (*title).into(),
            format!("{:.1} %", mean(both.iter().map(|second| second.apart))).into(),
            format!("{:.1} %", of_g(f64::min, 1.0)).into(),
            format!("{:.1} %", of_g(f64::max, 0.0)).into(),
            both.iter().filter(|second| second.starves()).count().to_string().into(),
        ]);
    }
    Ok(FigureResult { claims, table, picture: picture(&shown) })
}

struct Second {
    /// Whether both streams had requests waiting at brick A all the time.
    both_wait: bool,
    /// g's fraction of the bytes that A served.
    share: f64,
    /// g's fraction of the threads that ask A.
    threads: f64,
    /// Distance between the streams' totals, in percent.
    apart: f64,
}

impl Second {
    /// Whether one of the two has next to nothing of A.
    fn starves(&self) -> bool {
        self.share.min(1.0 - self.share) < STARVED
    }
}

fn seconds(outcome: &DsfqReport) -> Vec<Second> {
    let second = |sample| {
        let [f, g] = [F, G].map(|stream| outcome.cell(sample, stream, A));
        let [f_all, g_all] = [F, G].map(|stream| outcome.cell(sample, stream, None).bytes as f64);
        let part = |one: f64, other: f64| other / (one + other).max(1.0);
        Second {
            both_wait: f.waiting_ns.min(g.waiting_ns) >= outcome.sample.0,
            share: part(f.bytes as f64, g.bytes as f64),
            threads: part(f.threads.into(), g.threads.into()),
            apart: apart(f_all, g_all),
        }
    };
    (0..outcome.samples.len()).map(second).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

fn unmanaged(seconds: &[Second]) -> (Value, [Check; 2]) {
    let off = mean(seconds.iter().map(|second| (second.share - second.threads).abs())) * 100.0;
    let half = mean(seconds.iter().map(|second| (second.share - 0.5).abs())) * 100.0;
    let measured = json!({
        "share_of_a_from_share_of_threads_points": tenths(off),
        "share_of_a_from_half_points": tenths(half),
    });
    let checks = [
        at_most("shares are from those of threads", "points", EQUAL, off),
        order("they are from", "points", &[("those of threads", off), ("a half", half)]),
    ];
    (measured, checks)
}

fn both_wait(seconds: &[Second]) -> impl Iterator<Item = &Second> + Clone {
    seconds.iter().filter(|second| second.both_wait)
}

fn shared(seconds: &[Second]) -> (Value, [Check; 2]) {
    let both = both_wait(seconds);
    let is_half = |second: &&Second| (second.share - 0.5).abs() * 100.0 <= EQUAL;
    let (count, half) = (both.clone().count(), both.clone().filter(is_half).count());
    let far = mean(both.map(|second| second.apart));
    let measured = json!({
        "seconds_in_which_both_wait": count,
        "of_these_a_is_halved_in": half,
        "totals_apart_on_average_percent": tenths(far),
    });
    let checks = [
        at_least("A is halved in", "% of the seconds", MOSTLY, half as f64 * 100.0 / count as f64),
        at_least("totals apart", "%", NEARLY, far),
    ];
    (measured, checks)
}

fn total(seconds: &[Second]) -> (Value, [Check; 2]) {
    let both = both_wait(seconds);
    let starved = both.clone().filter(|second| second.starves()).count();
    let fed = both.filter(|second| !second.starves());
    let count = fed.clone().count();
    let far = mean(fed.map(|second| second.apart));
    let measured = json!({
        "seconds_in_which_both_are_served_on_a": count,
        "totals_apart_then_on_average_percent": tenths(far),
        "seconds_in_which_one_has_nothing_of_a": starved,
    });
    let checks = [
        at_most("totals apart", "%", NEARLY, (count > 0).then_some(far)),
        at_least("one has nothing of A in", "s", 1.0, starved as f64),
    ];
    (measured, checks)
}

fn hybrid(total: &[Second], hybrid: &[Second]) -> (Value, [Check; 2]) {
    let shares = both_wait(hybrid).map(|second| second.share.min(1.0 - second.share) * 100.0);
    let shares: Vec<f64> = shares.collect();
    let [with_total, with_hybrid] =
        [total, hybrid].map(|seconds| mean(both_wait(seconds).map(|second| second.apart)));
    let measured = json!({
        "share_of_a_least_percent": tenths(shares.iter().copied().fold(100.0, f64::min)),
        "totals_apart_on_average_percent": tenths(with_hybrid),
        "with_total_sharing_percent": tenths(with_total),
    });
    let checks = [
        at_least("of A", "%", tenths(MINIMUM * KEPT * 100.0), shares),
        order("totals apart", "%", &[("total", with_total), ("hybrid", with_hybrid)]),
    ];
    (measured, checks)
}

fn picture(shown: &[DsfqRun]) -> String {
    let by_time = |outcome: &DsfqReport, name: &str, of: &dyn Fn(usize) -> f64| {
        let points = 0..outcome.samples.len();
        let second = outcome.sample.as_seconds();
        Series::line(name, points.map(|at| ((at + 1) as f64 * second, of(at))).collect())
    };
    let first = &shown[0].outcome;
    let threads =
        |name, stream| by_time(first, name, &|at| first.cell(at, stream, A).threads.into());
    let mut panels = vec![Panel::new(
        "(a) threads on A",
        ["seconds", "threads"],
        [threads("f", F), threads("g", G)],
    )];
    for (shown, (_, title, _)) in shown.iter().zip(RUNS) {
        let outcome = &shown.outcome;
        let rates = |name, stream, brick| {
            let rates = outcome.rates(stream, brick);
            by_time(outcome, name, &|at| mega(rates[at]))
        };
        panels.push(Panel::new(
            title,
            ["seconds", "MB/s"],
            [
                rates("f in all", F, None),
                rates("g in all", G, None),
                rates("f on A", F, A),
                rates("g on A", G, A),
            ],
        ));
    }
    draw("Two streams whose threads follow sines", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    /// A hundred seconds in which both wait, in each of which g has these parts of A and of the
    /// threads there, and totals are so far apart.
    fn all(share: f64, threads: f64, apart: f64) -> Vec<Second> {
        (0..100).map(|_| Second { both_wait: true, share, threads, apart }).collect()
    }

    /// Two of the seconds are like this instead.
    fn but(mut seconds: Vec<Second>, share: f64) -> Vec<Second> {
        seconds[40..42].iter_mut().for_each(|second| second.share = share);
        seconds
    }

    fn verdict((_, checks): (Value, [Check; 2])) -> Verdict {
        judge(&checks).verdict
    }

    #[test]
    fn unmanaged_is_as_the_threads_are() {
        assert_eq!(verdict(unmanaged(&all(0.7, 0.68, 0.0))), Verdict::Reproduced);
        assert_eq!(verdict(unmanaged(&all(0.5, 0.68, 0.0))), Verdict::NotReproduced);
    }

    #[test]
    fn shared_is_halved_and_totals_differ() {
        assert_eq!(verdict(shared(&but(all(0.51, 0.7, 30.0), 0.6))), Verdict::Reproduced);
        assert_eq!(verdict(shared(&all(0.6, 0.7, 30.0))), Verdict::NotReproduced);
        assert_eq!(verdict(shared(&all(0.51, 0.7, 3.0))), Verdict::NotReproduced);
        assert_ne!(verdict(shared(&[])), Verdict::Reproduced);
    }

    #[test]
    fn totals_match_but_for_spans_where_one_is_starved() {
        assert_eq!(verdict(total(&but(all(0.3, 0.7, 3.0), 0.01))), Verdict::Reproduced);
        assert_eq!(verdict(total(&all(0.3, 0.7, 3.0))), Verdict::NotReproduced);
        assert_eq!(verdict(total(&but(all(0.3, 0.7, 30.0), 0.99))), Verdict::NotReproduced);
    }

    #[test]
    fn the_hybrid_starves_no_stream() {
        let runs =
            |least, apart| verdict(hybrid(&all(0.3, 0.7, 3.0), &but(all(0.3, 0.7, apart), least)));
        assert_eq!(runs(0.09, 4.0), Verdict::Reproduced);
        assert_eq!(runs(0.93, 4.0), Verdict::Differs);
        assert_eq!(runs(0.09, 2.0), Verdict::NotReproduced);
    }
}
