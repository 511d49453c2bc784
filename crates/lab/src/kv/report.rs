//! The messages of clients to the process that started them, and its report to the user.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use tidegate_console::amounts;

/// Digits that percentiles are exact to.
const DIGITS: u8 = 2;

/// A line from a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum ClientLine {
    /// It has a session slot, and its keys are there.
    Ready,
    /// Some periods are over, about a second's worth.
    Row(ReportRow),
    /// It could not go on.
    Failed {
        /// The exit code that it deserves.
        exit_code: u8,
        /// Why, in words for people.
        error: String,
    },
}

/// The work of a client in about a second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReportRow {
    /// The number of the period that it ends with, or the second of the machine's clock.
    pub(crate) period: u64,
    pub(crate) nanoseconds: u64,
    /// Gets, puts and deletes that have ended.
    pub(crate) operations: u64,
    /// Those of them that were not as they should have been: damaged, or of another key.
    pub(crate) wrong: u64,
    /// Gets of keys without a value.
    pub(super) missing: u64,
    /// Puts that found no room.
    pub(super) full: u64,
    /// Puts beyond the bound on the blocks that a client holds.
    pub(super) throttled: u64,
    /// Those that were given up because others changed the same key again and again.
    pub(super) contended: u64,
    /// Periods that have ended, and those in which what was reserved was done.
    pub(crate) periods: u64,
    /// See [`Self::periods`].
    pub(crate) kept: u64,
    /// Operations per second that are reserved for it at its end.
    pub(crate) reserved: u64,
    /// One-sided operations of the client, and those of the engine for its tokens.
    pub(crate) data: u64,
    /// See [`Self::data`].
    pub(crate) control: u64,
    /// How late the client was called at most when there was something to do, in nanoseconds.
    pub(crate) late: u64,
    /// And in sum, of times longer than a millisecond.
    pub(crate) late_in_sum: u64,
    /// Whether there was no monitor at its end.
    pub(super) is_alone: bool,
    /// How often the memory was changed for other.
    pub(super) moves: u64,
    /// How long operations took: pairs of nanoseconds and how many.
    pub(super) latency: Vec<(u64, u64)>,
}

impl ReportRow {
    /// Nothing done yet.
    pub(crate) fn new() -> Self {
        Self {
            period: 0,
            nanoseconds: 0,
            operations: 0,
            wrong: 0,
            missing: 0,
            full: 0,
            throttled: 0,
            contended: 0,
            periods: 0,
            kept: 0,
            reserved: 0,
            data: 0,
            control: 0,
            late: 0,
            late_in_sum: 0,
            is_alone: false,
            moves: 0,
            latency: Vec::new(),
        }
    }

    /// Adds the row of a later time to this row of the same client.
    pub(super) fn and(mut self, other: Self) -> Self {
        let mut latency: BTreeMap<u64, u64> = self.latency.into_iter().collect();
        for (value, count) in other.latency {
            *latency.entry(value).or_default() += count;
        }
        self.latency = latency.into_iter().collect();
        self.nanoseconds += other.nanoseconds;
        self.operations += other.operations;
        self.wrong += other.wrong;
        self.missing += other.missing;
        self.full += other.full;
        self.throttled += other.throttled;
        self.contended += other.contended;
        self.periods += other.periods;
        self.kept += other.kept;
        self.reserved = other.reserved;
        self.data += other.data;
        self.control += other.control;
        self.moves += other.moves;
        self.late = self.late.max(other.late);
        self.late_in_sum += other.late_in_sum;
        self.period = other.period;
        self.is_alone = other.is_alone;
        self
    }
}

/// An empty histogram of nanoseconds, up to a minute.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, DIGITS).expect("bounds and digits are in range")
}

/// Rows of all clients together.
#[derive(Debug)]
pub(super) struct Sum {
    pub(super) clients: u64,
    rate: f64,
    row: ReportRow,
    alone: u64,
    latency: Histogram<u64>,
}

/// The same for programs.
#[derive(Debug, Serialize)]
pub(super) struct KvReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    second: Option<u64>,
    clients: u64,
    operations: u64,
    operations_per_second: f64,
    wrong: u64,
    missing: u64,
    full: u64,
    throttled: u64,
    contended: u64,
    periods: u64,
    periods_kept: u64,
    reserved_per_second: u64,
    clients_alone: u64,
    moves: u64,
    control_permille: f64,
    late_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { clients: 0, rate: 0.0, row: ReportRow::new(), alone: 0, latency: histogram() }
    }

    /// Adds what a client did in a time in which others were added, too.
    pub(super) fn add(&mut self, row: &ReportRow) {
        self.clients += 1;
        self.rate += row.operations as f64 * 1e9 / row.nanoseconds.max(1) as f64;
        self.alone += u64::from(row.is_alone);
        let sum = &mut self.row;
        sum.operations += row.operations;
        sum.wrong += row.wrong;
        sum.missing += row.missing;
        sum.full += row.full;
        sum.throttled += row.throttled;
        sum.contended += row.contended;
        sum.periods += row.periods;
        sum.kept += row.kept;
        sum.reserved += row.reserved;
        sum.data += row.data;
        sum.control += row.control;
        sum.moves += row.moves;
        sum.late = sum.late.max(row.late);
        for (value, count) in &row.latency {
            self.latency.saturating_record_n(*value, *count);
        }
    }

    /// Whether everything was as promised.
    pub(super) fn is_kept(&self) -> bool {
        self.row.kept == self.row.periods
    }

    pub(super) fn wrong(&self) -> u64 {
        self.row.wrong
    }

    pub(super) fn report(&self, second: Option<u64>) -> KvReport {
        let Self { row, latency, .. } = self;
        let all = row.data + row.control;
        KvReport {
            second,
            clients: self.clients,
            operations: row.operations,
            operations_per_second: self.rate.round(),
            wrong: row.wrong,
            missing: row.missing,
            full: row.full,
            throttled: row.throttled,
            contended: row.contended,
            periods: row.periods,
            periods_kept: row.kept,
            reserved_per_second: row.reserved,
            clients_alone: self.alone,
            moves: row.moves,
            control_permille: (row.control as f64 * 1e5 / all.max(1) as f64).round() / 100.0,
            late_ns: row.late,
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
            max_ns: latency.max(),
        }
    }
}

impl KvReport {
    /// The heads of [`Self::line`].
    pub(super) const HEADS: &str =
        "second     operations  reservations kept       p50       p99  control       late";

    /// In columns.
    pub(super) fn line(&self) -> String {
        let second = self.second.map_or("all".into(), |second| second.to_string());
        let kept = match self.periods {
            0 => "-".into(),
            periods => format!("{} of {periods}", self.periods_kept),
        };
        let rate = amounts::iops(self.operations_per_second as u64);
        let times = [self.p50_ns, self.p99_ns, self.late_ns].map(amounts::span);
        let mut line = format!(
            "{second:>6} {rate:>14} {kept:>18} {:>9} {:>9} {:>7.2}% {:>10}",
            times[0],
            times[1],
            self.control_permille / 10.0,
            times[2],
        );
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                line += &format!("  {count} {what}");
            }
        };
        note(self.clients_alone, "without a monitor");
        note(self.moves, "moved");
        note(self.missing, "missing");
        note(self.full, "without room");
        note(self.throttled, "throttled");
        note(self.contended, "contended");
        note(self.wrong, "WRONG");
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(operations: u64, kept: u64) -> ReportRow {
        let latency = vec![(1_000, operations - 1), (900_000, 1)];
        let (periods, control) = (10, operations / 100);
        let data = operations;
        ReportRow {
            nanoseconds: 500_000_000,
            operations,
            periods,
            kept,
            data,
            control,
            latency,
            late: 3_000_000,
            ..ReportRow::new()
        }
    }

    #[test]
    fn rows_of_clients_are_one() {
        let mut sum = Sum::new();
        sum.add(&row(1_000, 10));
        assert!(sum.is_kept());
        sum.add(&ReportRow { is_alone: true, moves: 1, ..row(3_000, 9) });
        assert!(!sum.is_kept());
        let report = sum.report(Some(4));
        assert_eq!(
            report.line(),
            "     4        8k iops           19 of 20      1 us      1 us    0.99%       3 ms  1 \
             without a monitor  1 moved"
        );
        assert_eq!((report.operations, report.max_ns / 10_000), (4_000, 90));
    }
}
