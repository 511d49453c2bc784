//! Charts of rates and latencies of simulated applications over time.

use tidegate_model::Span;
use tidegate_netsim::e2e::{E2eReport, Moment};

use super::plot::{Panel, Series};

/// A line for each application, over milliseconds.
pub(crate) fn panel(
    outcome: &E2eReport,
    title: &str,
    y: &'static str,
    value: impl Fn(&Moment) -> f64,
) -> Panel {
    let series = outcome.applications.iter().map(|one| {
        let points = (1u64..).zip(&one.series).map(|(number, moment)| {
            let at = Span(outcome.sample.0 * number).as_seconds() * 1e3;
            (at, value(moment))
        });
        Series::line(one.name.clone(), points.collect())
    });
    Panel::new(title, ["ms", y], series)
}

/// The same of bytes, as Gbit/s.
pub(crate) fn rates(outcome: &E2eReport, title: &str, bytes: impl Fn(&Moment) -> u64) -> Panel {
    let seconds = outcome.sample.as_seconds();
    panel(outcome, title, "Gbit/s", |moment| bytes(moment) as f64 * 8.0 / seconds / 1e9)
}
