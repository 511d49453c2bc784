//! Cost of a trim, a zeroed range or a query for holes, from the time that the device took for it.
//!
//! # Problem
//! A read or a write costs as much as it moves. A request that moves nothing may take no time at
//! all, or as long as writing all of the range, and the node learns which only afterwards. The node
//! dispatches it at the price of one unit, and
//! [charges](crate::scheduling::scheduler::Scheduler::charge) the rest afterwards.
//!
//! # Model
//! A device serves *P* requests at the same time, and *C* units per second if at least as many are
//! there. With *k* of them it could do `C * min(k, P) / P`. The units that it did less than that
//! while a *measured* request was there are lost to measured requests.
//!
//! - *C* is the estimate of the node ([`crate::capacity::estimate::Capacity`]). Of a device that
//!   was neither declared nor ever busy it is what `depth` requests can do that each take as long
//!   as a quick unit did lately.
//! - *P* is known of some devices ([`DeviceTime::new`]). Of others it is `C` times such a quick
//!   unit, by Little's law, from 1 to `depth`.
//!
//! # Mechanism
//! Whenever a measured request comes or is finished, the units lost since the last such moment are
//! added to an account. One that is finished takes its even part of it, with those that are still
//! there. So all that was lost is charged, and once. A charge is at least one unit and at most
//! [`CHARGE_MAX`]: a device that hangs is no tenant's fault. When no measured request is there any
//! more, the account begins anew but for what rounding left.
//!
//! Example: a device serves one request at a time, 1,000 units per second. A trim comes alone and
//! is finished after 40 ms: the device could have done 40, and did none, so the trim cost 40. If 31
//! reads were there before it, the trim stays for 71 ms. Then the device could have done 71 units,
//! and did 31, so the trim cost 40 again. A device that serves 32 at a time, each in 1 ms, lost 40
//! of 1,280 units to a trim that took 40 ms beside 31 reads, and these did the rest.
//!
//! Of a device whose times vary by half of their mean, the quick units make *P* seem a third too
//! small, and a trim beside few others is charged half as much again. Of a busy device nothing is
//! misjudged by that.
//!
//! Left out: what a request makes the device do after it was answered.

use tidegate_model::{Iops, Span, Time};

/// The most that one measured request is charged, in units: 128 MiB of writes. Chosen by hand.
pub const CHARGE_MAX: u32 = 1_024;

/// How long a unit is believed to take at least where none was seen: 100 us, as at a quick drive.
const UNSEEN: u64 = 100_000;

/// The time of a quick unit goes an eighth of the way to a sample that is below, and a 64th of it
/// to one that is above. So it is near the quickest, and one that is too quick is forgotten.
const DOWN: u64 = 8;
const UP: u64 = 64;

/// The most credit that measured requests may have in the account, in units: an estimate that is a
/// little too low for a moment must not make later requests free.
const ADVANCE: i128 = 8;

/// The most that is in the account: a charge for each of the most requests at a device.
const LOST_MAX: i128 = (CHARGE_MAX as i128) * 4_096 * PARTS;

/// Units in the account are kept in parts of 10^-9, as a rate times nanoseconds is.
const PARTS: i128 = Span::SECOND.0 as i128;

/// A device at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time of the moment.
    pub now: Time,
    /// The node's estimate of the device's capacity, in units per second; none if it is unknown.
    pub capacity: Option<Iops>,
    /// The most requests at a time, at least one.
    pub depth: u32,
    /// Requests there, with the one that has come or is finished.
    pub in_flight: u32,
    /// Units finished so far, measured or not; of measured ones with what they were charged.
    pub done: u64,
}

/// The account of what a device loses to measured requests.
///
/// ```
/// use tidegate_algo::capacity::device_time::{DeviceTime, Moment};
/// use tidegate_model::{Iops, Time};
/// let mut account = DeviceTime::new(Some(1));
/// let now = Time(5_000_000);
/// let begun = Moment { now, capacity: Some(Iops(1_000)), depth: 32, in_flight: 1, done: 700 };
/// account.on_dispatch(begun);
/// assert_eq!(account.on_completion(Moment { now: Time(45_000_000), ..begun }), 40);
/// ```
#[derive(Clone, Debug)]
pub struct DeviceTime {
    /// How many requests it serves at the same time, if that is known.
    servers: Option<u32>,
    /// Measured requests that are there.
    present: u32,
    /// Up to when, and with how many units finished, the account is made up.
    since: Time,
    done: u64,
    /// Units that were lost and not charged yet, in [`PARTS`].
    lost: i128,
    /// Units charged to measured requests so far.
    charged: u64,
    /// How long a quick unit took lately, in nanoseconds; zero if none was seen.
    quick: u64,
}

impl DeviceTime {
    /// An account of a device that serves so many requests at the same time, if that is known.
    pub const fn new(servers: Option<u32>) -> Self {
        Self { servers, present: 0, since: Time::ZERO, done: 0, lost: 0, charged: 0, quick: 0 }
    }

    /// A request that is not measured took so long for each of its units.
    pub fn sample(&mut self, unit: Span) {
        let unit = unit.0.max(1);
        self.quick = match self.quick {
            0 => unit,
            quick if unit < quick => quick - (quick - unit).div_ceil(DOWN),
            quick => quick + (unit - quick) / UP,
        };
    }

    /// A measured request goes to the device.
    pub fn on_dispatch(&mut self, moment: Moment) {
        if self.present == 0 {
            // The remainder of rounding stays, so that many requests lose nothing by it.
            self.lost = self.lost.clamp(-PARTS / 2, PARTS / 2);
            (self.since, self.done) = (moment.now, self.others(&moment));
        } else {
            self.make_up(&moment);
        }
        self.present += 1;
    }

    /// A measured request is finished: what it cost in units, that of its dispatch included. They
    /// count as finished from now on.
    pub fn on_completion(&mut self, moment: Moment) -> u32 {
        self.make_up(&moment);
        let part = self.lost / i128::from(self.present.max(1));
        self.present = self.present.saturating_sub(1);
        // Rounded to the nearest unit: over many, what is charged is what was lost.
        let units = (part + PARTS / 2).div_euclid(PARTS).clamp(1, i128::from(CHARGE_MAX));
        self.lost = (self.lost - units * PARTS).max(-ADVANCE * PARTS);
        self.charged = self.charged.wrapping_add(units as u64);
        units as u32
    }

    /// Units that others than measured requests have done.
    const fn others(&self, moment: &Moment) -> u64 {
        moment.done.wrapping_sub(self.charged)
    }

    /// Adds what was lost since the last time.
    fn make_up(&mut self, moment: &Moment) {
        // Both below 2^40, so that no product reaches 2^127: eighteen minutes, a unit in each ps.
        let passed = i128::from(moment.now.since(self.since).0.min(1 << 40));
        let others = self.others(moment);
        // Charged units may count as finished a moment later, so the difference has a sign.
        let did = i128::from(others.wrapping_sub(self.done) as i64);
        let (rate, servers) = self.device(moment);
        let used = moment.in_flight.clamp(1, servers);
        let could = passed * i128::from(rate.min(1 << 40)) * i128::from(used) / i128::from(servers);
        let lost = self.lost.saturating_add(could - did * PARTS);
        self.lost = lost.clamp(-ADVANCE * PARTS, LOST_MAX);
        (self.since, self.done) = (self.since.max(moment.now), others);
    }

    /// The device's units per second, and the number of requests that it serves at the same time.
    fn device(&self, moment: &Moment) -> (u64, u32) {
        let quick = if self.quick == 0 { UNSEEN } else { self.quick };
        let depth = moment.depth.max(1);
        let guess = || {
            let at_once = self.servers.unwrap_or(depth).min(depth);
            u64::from(at_once).saturating_mul(Span::SECOND.0) / quick
        };
        let rate = moment.capacity.map_or_else(guess, |capacity| capacity.0);
        if let Some(servers) = self.servers {
            return (rate, servers.clamp(1, depth));
        }
        let second = u128::from(Span::SECOND.0);
        let servers = (u128::from(rate) * u128::from(quick)).div_ceil(second);
        (rate, u32::try_from(servers).unwrap_or(u32::MAX).clamp(1, depth))
    }
}

#[cfg(test)]
#[path = "device_time_tests.rs"]
mod tests;
