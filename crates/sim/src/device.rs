//! Storage devices with bounded variance.
//!
//! [`Device`] has a fixed service rate, as in pShift's simulator: one request after the other, each
//! unit of cost taking a time that is uniform around the reciprocal of the rate (§IV-A of the
//! paper). [`Array`] is what DSFQ was measured on: some disks behind one controller, so that one
//! thread alone cannot keep it busy, and larger requests take longer.
//!
//! The depth at which requests are kept at the device is the node's business (its scheduler lets
//! at most so many out); here they stand in line. When one arrives, its end is known, so a request
//! is a single event.

use tidegate_model::{Iops, Span};

use crate::rng::Stream;
use crate::time::Picoseconds;

/// A device that serves at a fixed mean rate.
#[derive(Clone, Debug)]
pub struct Device {
    /// The mean time for one unit of cost.
    mean: u64,
    /// How far a time may lie from the mean, both ways.
    spread: u64,
    random: Stream,
    /// When it will have served everything that it was given.
    free_at: Picoseconds,
}

impl Device {
    /// A device that does `rate` units of cost per second on average. A unit takes at most
    /// `percent` of the mean time less or more, each time in between equally likely.
    ///
    /// # Panics
    /// If the rate is zero or above 10¹² per second, or more than 100 percent are asked for.
    pub fn new(rate: Iops, percent: u32, random: Stream) -> Self {
        assert!((1..=Picoseconds::SECOND.0).contains(&rate.0), "a device of {rate}");
        assert!(percent <= 100, "a spread of {percent} percent");
        let mut device = Self { mean: 0, spread: 0, random, free_at: Picoseconds::ZERO };
        device.mean = Picoseconds::SECOND.0 / rate.0;
        device.spread = (u128::from(device.mean) * u128::from(percent) / 100) as u64;
        device
    }

    /// Takes a request; the time at which it is done.
    pub fn take(&mut self, now: Picoseconds, cost: u32) -> Picoseconds {
        let mut needed = 0u64;
        for _ in 0..cost {
            needed += self.random.within(self.mean - self.spread, self.mean + self.spread);
        }
        self.free_at = self.free_at.max(now).after(Picoseconds(needed));
        self.free_at
    }
}

/// How long the disks of an [`Array`] take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disks {
    /// How many there are, at least one.
    pub count: u16,
    /// Mean time of any request, however small.
    pub base: Span,
    /// Mean time that each MiB of a request takes in addition.
    pub per_mib: Span,
    /// How far a time may lie from its mean, both ways, in percent, at most 100.
    pub spread_percent: u32,
}

/// Disks behind one controller. A request goes to any of them, each equally likely, and stands in
/// line there.
#[derive(Clone, Debug)]
pub struct Array {
    disks: Disks,
    random: Stream,
    /// When each disk will have served everything that it was given.
    free_at: Vec<Picoseconds>,
}

impl Array {
    /// Idle disks.
    ///
    /// # Panics
    /// If there are no disks, or a spread is above 100 percent.
    pub fn new(disks: Disks, random: Stream) -> Self {
        let Disks { count, spread_percent, .. } = disks;
        assert!(count > 0, "an array without disks");
        assert!(spread_percent <= 100, "a spread of {spread_percent} percent");
        Self { disks, random, free_at: vec![Picoseconds::ZERO; usize::from(count)] }
    }

    /// Takes a request for so many bytes; the time at which it is done.
    pub fn take(&mut self, now: Picoseconds, bytes: u32) -> Picoseconds {
        let Disks { count, base, per_mib, spread_percent } = self.disks;
        let disk = self.random.below(u64::from(count)) as usize;
        let more = (u128::from(Picoseconds::from(per_mib).0) * u128::from(bytes)) >> 20;
        let mean = u128::from(Picoseconds::from(base).0) + more;
        let spread = mean * u128::from(spread_percent) / 100;
        let needed = self.random.within((mean - spread) as u64, (mean + spread) as u64);
        self.free_at[disk] = self.free_at[disk].max(now).after(Picoseconds(needed));
        self.free_at[disk]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_work_at_the_same_time_and_larger_requests_take_longer() {
        let ms = Span::MILLISECOND;
        let disks = Disks { count: 1, base: ms, per_mib: Span(4 * ms.0), spread_percent: 0 };
        let mut one = Array::new(disks, Stream::new(1, "device", 0));
        let ms = Picoseconds::from(ms).0;
        assert_eq!(one.take(Picoseconds(0), 0).0, ms);
        assert_eq!(one.take(Picoseconds(0), 1 << 20).0, 6 * ms);
        let mut four = Array::new(Disks { count: 4, ..disks }, Stream::new(1, "device", 0));
        let last = (0..4_000).map(|_| four.take(Picoseconds(0), 0)).max().unwrap();
        // A thousand for each of the four, and a little more for the one with most.
        assert!((1_000 * ms..1_100 * ms).contains(&last.0), "{last}");
    }

    #[test]
    fn one_after_the_other() {
        let mut device = Device::new(Iops(1_000), 0, Stream::new(1, "device", 0));
        let ms = Picoseconds::SECOND.0 / 1_000;
        assert_eq!(device.take(Picoseconds(0), 1).0, ms);
        assert_eq!(device.take(Picoseconds(0), 2).0, 3 * ms);
        assert_eq!(device.take(Picoseconds(10 * ms), 1).0, 11 * ms);
    }

    #[test]
    fn its_rate_is_met() {
        let mut device = Device::new(Iops(20_000), 50, Stream::new(1, "device", 0));
        let end = (0..20_000).map(|_| device.take(Picoseconds::ZERO, 1)).last().unwrap();
        assert!(end.0.abs_diff(Picoseconds::SECOND.0) < Picoseconds::SECOND.0 / 200, "{end}");
    }
}
