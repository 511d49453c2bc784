//! A storage device with a fixed service rate and bounded variance, as in pShift's simulator: one
//! request after the other, each unit of cost taking a time that is uniform around the reciprocal
//! of the rate (§IV-A of the paper).
//!
//! The depth at which requests are kept at the device is the node's business (its scheduler lets
//! at most so many out); here they stand in line. When one arrives, its end is known, so a request
//! is a single event.

use tidegate_model::Iops;

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

#[cfg(test)]
mod tests {
    use super::*;

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
