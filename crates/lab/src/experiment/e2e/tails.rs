//! Latencies of applications in the experiments of the E2E paper, at some percentiles: as rows,
//! and as pictures.

use tidegate_netsim::e2e::{E2eReport, ServiceReport};

use super::plot::{Panel, Series};
use tidegate_console::table::{Cell, Table};

/// Those that the E2E paper shows.
pub(super) const PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

/// Of which part of their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyScope {
    /// All of it.
    Whole,
    /// At drives.
    Drives,
}

/// How long so many in a hundred requests of an application took at most, in milliseconds.
pub(super) fn milliseconds(one: &ServiceReport, part: LatencyScope, percentile: f64) -> f64 {
    let times = match part {
        LatencyScope::Whole => &one.latency,
        LatencyScope::Drives => &one.device,
    };
    times.value_at_percentile(percentile) as f64 / 1e6
}

/// The same of each application.
pub(super) fn of_each(outcome: &E2eReport, part: LatencyScope, percentile: f64) -> Vec<f64> {
    outcome.applications.iter().map(|one| milliseconds(one, part, percentile)).collect()
}

/// By how much less one latency is than another, in percent of that.
pub(super) fn less(this: f64, other: f64) -> f64 {
    (1.0 - this / other) * 100.0
}

/// A line for each application, over percentiles.
pub(super) fn panel(outcome: &E2eReport, part: LatencyScope, title: &str) -> Panel {
    let line = |one: &ServiceReport| {
        let points = (50..100).map(|percent| {
            let percent = f64::from(percent);
            (percent, milliseconds(one, part, percent))
        });
        Series::line(one.name.clone(), points.collect())
    };
    Panel::new(title, ["percentile", "ms"], outcome.applications.iter().map(line))
}

/// A table of latencies, without rows.
pub(super) fn table() -> Table {
    let table = Table::new().left("SET-UP").left("APPLICATION");
    table.right("p50, ms").right("p90, ms").right("p99, ms")
}

pub(super) fn rows(table: &mut Table, of: &str, outcome: &E2eReport, part: LatencyScope) {
    for one in &outcome.applications {
        let mut row: Vec<Cell> = vec![of.into(), one.name.clone().into()];
        let each = PERCENTILES.map(|percentile| milliseconds(one, part, percentile));
        row.extend(each.map(|time| Cell::from(format!("{time:.1}"))));
        table.row(row);
    }
}

#[cfg(test)]
mod tests {
    use super::less;

    #[test]
    fn half_as_long_is_half_less() {
        assert_eq!(less(40.0, 80.0), 50.0);
        assert_eq!(less(120.0, 80.0), -50.0);
    }
}
