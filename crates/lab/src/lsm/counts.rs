//! Operations of each second, and the lines of JSON that report them.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate_model::Span;

/// Longer latencies count as this one, in microseconds: ten minutes.
const LATENCY_MAX_US: u64 = 600_000_000;

/// Operations that were completed in a second.
#[derive(Clone, Debug)]
pub(super) struct SecondCounts {
    pub(super) operations: u64,
    pub(super) reads: u64,
    /// Latencies in microseconds. In the last second also those of operations that were due and
    /// not begun, up to the end.
    latencies: Histogram<u32>,
}

impl SecondCounts {
    pub(super) fn new() -> Self {
        // Two digits: an error of one percent at most.
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, 2);
        let latencies = latencies.expect("these bounds are in order");
        Self { operations: 0, reads: 0, latencies }
    }

    pub(super) fn add(&mut self, is_read: bool, latency: Span) {
        self.operations += 1;
        self.reads += u64::from(is_read);
        self.add_unserved(latency);
    }

    /// Adds the latency of an operation that is not completed.
    pub(super) fn add_unserved(&mut self, latency: Span) {
        self.latencies.saturating_record(latency.0 / Span::MICROSECOND.0);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.reads += other.reads;
        self.latencies.add(&other.latencies).expect("both have the same bounds");
    }

    /// The line of this second. The caller adds what was due, and the counters of the disk.
    pub(super) fn line(&self, second: u64) -> LsmSecond {
        LsmSecond {
            second,
            operations: self.operations,
            reads: self.reads,
            p50_us: self.latencies.value_at_quantile(0.5),
            p99_us: self.latencies.value_at_quantile(0.99),
            max_us: self.latencies.max(),
            ..LsmSecond::default()
        }
    }
}

/// A line: one second of the load. Latencies are zero if nothing was completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LsmSecond {
    pub(crate) second: u64,
    /// Operations that were due in it.
    pub(crate) due: u64,
    /// Operations that were completed in it; in the last second also those that were under way at
    /// the end.
    pub(crate) operations: u64,
    pub(crate) reads: u64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
    /// Bytes that the process had the disk read and write, as the kernel counts them.
    pub(crate) disk_read_bytes: u64,
    pub(crate) disk_written_bytes: u64,
}

/// The last line: all of the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LsmTotals {
    pub(crate) due: u64,
    pub(crate) operations: u64,
    /// Operations that were due and not begun at the end.
    pub(crate) unserved: u64,
    /// The file of the store's library.
    pub(crate) library: String,
    /// Counters of the store itself.
    pub(crate) flush_written_bytes: u64,
    pub(crate) compaction_read_bytes: u64,
    pub(crate) compaction_written_bytes: u64,
}
