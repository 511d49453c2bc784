//! DSFQ paper, figure 13: every other ten seconds h takes part of brick B from g, and f, which has
//! data on A only, gives g more of A for it. With 20 and with 30 threads of f and g on A.
//!
//! Single seconds vary, so the switches of a run are laid on top of each other.

use serde_json::json;
use tidegate_sim::bricks::{DsfqReport, DsfqScenario};

use super::plot::{Panel, Series, draw};
use super::{
    Check, DsfqRun, F, FIGURE_13, FigureContext, FigureResult, G, apart, equal, fairness, mega, run,
};
use super::{scenario, source, tenths, thousandths, with};
use crate::experiment::verdict::{Claim, between, rises};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

const THREADS: [u32; 2] = [20, 30];
const H: usize = 2;

/// "Closely after a second".
const FOLLOWS_SECONDS: [f64; 2] = [0.0, 1.5];

/// How long h asks, and is silent; the run begins with the first.
const PHASE_SECONDS: f64 = 10.0;
/// The time after a switch in which rates settle.
const SETTLES_SECONDS: f64 = 4.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let base = scenario(FIGURE_13)?;
    let with_threads = THREADS.map(|count| {
        let mut scenario = base.clone();
        scenario.stream[F].threads[0].count = count;
        scenario.stream[G].threads[0].count = count;
        scenario
    });
    let shown = run(context, with_threads.to_vec())?;
    let courses: Vec<[StreamCourse; 3]> =
        shown.iter().map(|shown| courses(&shown.outcome)).collect();
    let mut claims = Vec::new();
    let mut table = Table::new().right("THREADS").left("STREAM").right("h SILENT");
    table = table.right("h ASKS").right("HALF WAY AFTER, s").right("LACKS, MB");
    for ((shown, courses), (figure, threads)) in
        shown.iter().zip(&courses).zip(["13a", "13b"].into_iter().zip(THREADS))
    {
        claims.push(follows(figure, shown, courses));
        for (name, course) in ["f", "g", "h"].into_iter().zip(courses) {
            table.row([
                threads.to_string().into(),
                name.into(),
                format!("{:.2}", course.silent).into(),
                format!("{:.2}", course.active).into(),
                course.half_way().map_or("-".into(), |at| format!("{at:.2}")).into(),
                format!("{:.2}", course.lacks()).into(),
            ]);
        }
    }
    claims.push(deeper(&base, &shown, &courses));
    Ok(FigureResult { claims, table, picture: picture(&shown) })
}

/// A stream's rate on all bricks while h asks and while h is silent, in MB/s: means of all rounds.
struct StreamCourse {
    /// The time that one value covers, in seconds.
    step: f64,
    /// Rates from the moment at which h begins to ask, for as long as it asks.
    after: Vec<f64>,
    /// The settled rate, while h asks.
    active: f64,
    /// The settled rate, while h is silent.
    silent: f64,
}

fn courses(outcome: &DsfqReport) -> [StreamCourse; 3] {
    [F, G, H].map(|stream| {
        let step = outcome.sample.as_seconds();
        let phase = (PHASE_SECONDS / step) as usize;
        let settles = (SETTLES_SECONDS / step) as usize;
        let rates: Vec<f64> = outcome.rates(stream, None).into_iter().map(mega).collect();
        let rounds: Vec<&[f64]> = rates.chunks_exact(2 * phase).collect();
        let at = |index: usize| {
            rounds.iter().map(|round| round[index]).sum::<f64>() / rounds.len().max(1) as f64
        };
        let after: Vec<f64> = (0..phase).map(at).collect();
        let silent: Vec<f64> = (phase + settles..2 * phase).map(at).collect();
        StreamCourse { step, active: mean(&after[settles..]), silent: mean(&silent), after }
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl StreamCourse {
    /// When it is half way from what it was to what it will be, in seconds after the switch.
    fn half_way(&self) -> Option<f64> {
        let half = (self.silent + self.active) / 2.0;
        let falls = self.silent > self.active;
        let crossed = |rate: &f64| (*rate <= half) == falls;
        let at = self.after.iter().position(crossed)?;
        // The middle of that sample.
        Some((at as f64 + 0.5) * self.step)
    }

    /// The stream's shortfall against its later level while rates settle, in MB.
    fn lacks(&self) -> f64 {
        let settles = (SETTLES_SECONDS / self.step) as usize;
        let below = self.after[..settles].iter().map(|rate| (self.active - rate).max(0.0));
        below.sum::<f64>() * self.step
    }
}

fn follows(figure: &'static str, shown: &DsfqRun, [f, g, h]: &[StreamCourse; 3]) -> Claim {
    let (numbers, within) = fairness(std::iter::once(&shown.outcome));
    let lag = f.half_way().zip(g.half_way()).map(|(f, g)| f - g);
    let [active, silent] = [apart(f.active, g.active), apart(f.silent, g.silent)];
    source(figure, shown.outcome.seed, shown.seconds).claim(
        "when h begins to ask on B g loses throughput there, and f's falls to the same within \
         about a second; before and after the totals of f and g are equal",
        with(
            numbers,
            json!({
                "f_follows_after_seconds": lag.map(thousandths),
                "totals_apart_while_h_asks_percent": tenths(active),
                "totals_apart_while_h_is_silent_percent": tenths(silent),
                "g_falls_from_to_megabytes_per_second":
                    [thousandths(g.silent), thousandths(g.active)],
                "h_megabytes_per_second": thousandths(h.active),
            }),
        ),
        [within, equal([active, silent]), after_a_second(lag)],
    )
}

fn after_a_second(lag: Option<f64>) -> Check {
    between("f follows after", "s", FOLLOWS_SECONDS, lag.unwrap_or(f64::INFINITY))
}

fn deeper(base: &DsfqScenario, shown: &[DsfqRun], courses: &[[StreamCourse; 3]]) -> Claim {
    let lacks: Vec<f64> = courses.iter().map(|[_, g, _]| thousandths(g.lacks())).collect();
    let took = shown.iter().map(|shown| shown.seconds).sum();
    source("13", base.seed, took).claim(
        "with more threads, and so a longer queue on A, g lacks more before f makes up for it",
        json!({ "threads": THREADS, "g_lacks_of_its_later_level_megabytes": lacks }),
        [rises(1.0, "it", "MB", lacks.clone())],
    )
}

fn picture(shown: &[DsfqRun]) -> String {
    let panel = |(shown, threads): (&DsfqRun, u32)| {
        let outcome = &shown.outcome;
        let step = outcome.sample.as_seconds();
        // Means of a second, as far as two rounds.
        let line = |(name, stream): (&str, usize)| {
            let rates = outcome.rates(stream, None);
            let seconds = rates.chunks((1.0 / step) as usize).take((4.0 * PHASE_SECONDS) as usize);
            let points =
                seconds.enumerate().map(|(second, rates)| (second as f64 + 0.5, mega(mean(rates))));
            Series::line(name, points.collect())
        };
        Panel::new(
            format!("{threads} threads of f and g on A"),
            ["seconds", "MB/s in all"],
            [("f", F), ("g", G), ("h", H)].map(line),
        )
    };
    let panels: Vec<Panel> = shown.iter().zip(THREADS).map(panel).collect();
    draw("One stream makes up for what another loses", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    fn course(after: Vec<f64>) -> StreamCourse {
        StreamCourse { step: 1.0, after, active: 4.0, silent: 6.0 }
    }

    #[test]
    fn half_way_and_the_shortfall_are_found() {
        let falls = course(vec![6.0, 5.1, 3.0, 3.5, 4.0]);
        assert_eq!((falls.half_way(), falls.lacks()), (Some(2.5), 1.5));
        assert_eq!(course(vec![6.0; 5]).half_way(), None);
        assert_eq!(course(vec![5.0, 4.5, 4.2, 4.1]).lacks(), 0.0);
    }

    #[test]
    fn a_second_is_about_a_second() {
        let verdict = |lag| judge(&[after_a_second(lag)]).verdict;
        let expected = (Verdict::Reproduced, Verdict::Differs);
        assert_eq!((verdict(Some(1.5)), verdict(Some(1.75))), expected);
        assert_eq!([verdict(Some(3.5)), verdict(None)], [Verdict::NotReproduced; 2]);
    }
}
