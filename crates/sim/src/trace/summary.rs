//! Summary of a stream of records, in a few numbers.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Bytes, Operation};

use super::Record;
use crate::time::Picoseconds;

/// Devices that are distinguished; of more, only that there are more.
const DEVICES: usize = 1 << 16;

/// Summary of a stream of requests. Its size does not grow with them.
///
/// ```
/// use tidegate_sim::trace::{Reader, Summary};
/// let mut summary = Summary::default();
/// for record in Reader::new("0 0 0 8 1\n2000000 0 8 16 0\n4000000 0 0 8 1".as_bytes()) {
///     summary.add(&record?);
/// }
/// assert_eq!((summary.requests(), summary.reads_percent()), (3, 200.0 / 3.0));
/// assert_eq!((summary.mean_bytes(), summary.per_second()), (16_384.0 / 3.0, 500.0));
/// # Ok::<(), tidegate_sim::trace::TraceError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Reads and writes.
    requests: [u64; 2],
    /// Bytes of both.
    bytes: [u128; 2],
    /// Requests of at most 2^k bytes and more than half of that, by k.
    sizes: BTreeMap<u32, u64>,
    devices: BTreeSet<u32>,
    /// One after the last byte that was touched.
    end: u64,
    last: Picoseconds,
}

impl Summary {
    /// One more.
    pub fn add(&mut self, record: &Record) {
        let Record { at, device, operation, offset, bytes } = *record;
        let kind = usize::from(operation != Operation::Read);
        self.requests[kind] += 1;
        self.bytes[kind] += u128::from(bytes.0);
        // The least k with 2^k at or above it.
        let power = u64::BITS - bytes.0.saturating_sub(1).leading_zeros();
        *self.sizes.entry(power).or_default() += 1;
        if self.devices.len() < DEVICES {
            self.devices.insert(device);
        }
        self.end = self.end.max(offset.0.saturating_add(bytes.0));
        self.last = self.last.max(at);
    }

    /// How many there are.
    pub const fn requests(&self) -> u64 {
        self.requests[0] + self.requests[1]
    }

    /// How many of a hundred read; 0 if there are none.
    pub fn reads_percent(&self) -> f64 {
        self.requests[0] as f64 * 100.0 / self.requests().max(1) as f64
    }

    /// Bytes of a request on average; 0 if there are none.
    pub fn mean_bytes(&self) -> f64 {
        (self.bytes[0] + self.bytes[1]) as f64 / self.requests().max(1) as f64
    }

    /// Requests in a second, from the first to the last; 0 if no time passed between them.
    pub fn per_second(&self) -> f64 {
        if self.last == Picoseconds::ZERO {
            return 0.0;
        }
        let seconds = self.last.0 as f64 / Picoseconds::SECOND.0 as f64;
        self.requests().saturating_sub(1) as f64 / seconds
    }

    /// A table for people and golden files.
    pub fn table(&self) -> String {
        let seconds = self.last.0 as f64 / Picoseconds::SECOND.0 as f64;
        let mut text = format!(
            "requests {} in {seconds:.6} s, {:.1} per second\n\
             reads {:.2} %, {:.1} bytes on average, {} devices of up to {} bytes\n",
            self.requests(),
            self.per_second(),
            self.reads_percent(),
            self.mean_bytes(),
            self.devices.len(),
            self.end,
        );
        text += &format!("{:>12} {:>10} {:>8}\n", "up to", "requests", "part");
        for (power, count) in &self.sizes {
            let size = 1u64.checked_shl(*power).map_or(Bytes::MAX, Bytes);
            let part = *count as f64 * 100.0 / self.requests() as f64;
            text += &format!("{:>12} {count:>10} {part:>6.2} %\n", size.to_string());
        }
        text
    }
}
