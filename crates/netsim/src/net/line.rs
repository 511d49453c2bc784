//! A cable between two ports: the serialization and propagation time of a packet.
//!
//! **Model.** A packet of *n* bytes keeps a line of rate *r* busy for n / r, and its last bit
//! arrives a propagation delay after that. Both directions of a link are lines of their own. Nodes
//! store a packet before they forward it, as most switches do at speeds that change between ports.
//!
//! **Mechanism.** Times are whole picoseconds, rounded up, so that no line is faster than its rate.
//! At 100 Gbit/s (12.5 GB/s) a byte takes 80 ps and nothing is rounded: a data packet of 1,502
//! bytes takes 120,160 ps and its acknowledgement of 54 bytes 4,320 ps. Where a byte does not take
//! whole picoseconds the error is below one in each packet, 10^-5 of the smallest.
//!
//! Left out: bit errors, and the gap and preamble of Ethernet (20 bytes). A plan that wants these
//! adds them to the size of packets.

use serde::Deserialize;
use tidegate_model::{Rate, Span};

use tidegate_sim::scenario::{ScenarioError, must, text};
use tidegate_sim::time::Picoseconds;

/// The rates that are understood: from one at which the largest packet takes a minute to one at
/// which a byte takes one picosecond.
const RATES: core::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// A line, and its twin in the other direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Bytes per second, from `"1kB/s"` to `"1TB/s"`; 100 Gbit/s is `"12.5GB/s"`.
    #[serde(deserialize_with = "text")]
    pub rate: Rate,
    /// How long a bit travels, at most one second; in cables 5 ns for each metre.
    #[serde(deserialize_with = "text")]
    pub delay: Span,
}

impl Line {
    /// Whether there can be such a line. `key` is where it stands.
    pub(super) fn check(self, key: &str) -> Result<(), ScenarioError> {
        let fits = RATES.contains(&self.rate.0);
        must(fits, &format!("{key}.rate: {}; from \"1kB/s\" to \"1TB/s\"", self.rate))?;
        let fits = self.delay <= Span::SECOND;
        must(fits, &format!("{key}.delay: {}; at most \"1s\"", self.delay))
    }
}

/// A line as a port sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    /// Picoseconds per byte, if they are whole; otherwise 0.
    per_byte: u64,
    rate: u64,
    delay: Picoseconds,
}

impl Wire {
    pub(super) fn new(line: Line) -> Self {
        let (second, rate) = (Picoseconds::SECOND.0, line.rate.0);
        let per_byte = if second.is_multiple_of(rate) { second / rate } else { 0 };
        Self { per_byte, rate, delay: line.delay.into() }
    }

    /// How long so many bytes keep it busy.
    #[inline]
    pub(super) fn time(&self, bytes: u16) -> Picoseconds {
        let bytes = u64::from(bytes);
        if self.per_byte > 0 {
            return Picoseconds(bytes * self.per_byte);
        }
        // At most 65,535 * 10^12 = 6.6 * 10^16: fits.
        Picoseconds((bytes * Picoseconds::SECOND.0).div_ceil(self.rate))
    }

    /// The same of many packets, to the nearest picosecond.
    pub(super) fn time_of(&self, bytes: u64) -> Picoseconds {
        let time = u128::from(bytes) * u128::from(Picoseconds::SECOND.0) / u128::from(self.rate);
        Picoseconds(time as u64)
    }

    /// Bytes per second.
    pub(in crate::net) const fn rate(&self) -> Rate {
        Rate(self.rate)
    }

    /// How long a bit travels.
    #[inline]
    pub(super) fn delay(&self) -> Picoseconds {
        self.delay
    }

    /// How many bytes are under way when a line is full, rounded up.
    pub(super) fn bytes_in_flight(&self) -> u64 {
        // At most 10^12 * 10^12 = 10^24: does not fit 64 bits.
        let bytes = u128::from(self.delay.0) * u128::from(self.rate);
        bytes.div_ceil(u128::from(Picoseconds::SECOND.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(rate: &str) -> Wire {
        Wire::new(Line { rate: rate.parse().unwrap(), delay: Span(1_250) })
    }

    #[test]
    fn times_are_exact_or_rounded_up() {
        assert_eq!(wire("12.5GB/s").time(1_502), Picoseconds(120_160));
        assert_eq!(wire("12.5GB/s").time(54), Picoseconds(4_320));
        assert_eq!(wire("1TB/s").time(u16::MAX), Picoseconds(65_535));
        assert_eq!(wire("3GB/s").time(1), Picoseconds(334));
        assert_eq!(wire("3GB/s").time(3), Picoseconds(1_000));
        assert_eq!(wire("1kB/s").time(u16::MAX).0, 65_535_000_000_000);
        assert_eq!(wire("12.5GB/s").bytes_in_flight(), 15_625);
    }
}
