//! Tests of charges by device time, on devices in virtual time whose service times are known.

use super::*;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const MILLISECOND: u64 = Span::MILLISECOND.0;

/// A device of so many servers, each of which takes a millisecond for a unit; requests stand in one
/// line. It is kept at a depth by requests of which every `trims`-th is a trim, which takes as long
/// as so many units.
struct QueueingDevice {
    servers: usize,
    depth: usize,
    trims: usize,
    takes: u64,
}

impl QueueingDevice {
    /// Returns the mean charge of a trim, in units, over so many requests.
    fn charge(&self, account: &mut DeviceTime, requests: usize) -> f64 {
        let mut free_at = vec![0u64; self.servers];
        // By end and number: whether it is a trim, and when it came.
        let mut there: BTreeMap<(u64, usize), (bool, u64)> = BTreeMap::new();
        let (mut now, mut done, mut charged, mut trims) = (0u64, 0u64, 0u64, 0u64);
        let capacity = Some(Iops(self.servers as u64 * 1_000));
        let mut random = 1u64;
        for number in 0..requests {
            let moment = |now: u64, in_flight: usize, done: u64| Moment {
                now: Time(now),
                capacity,
                depth: 32,
                in_flight: in_flight as u32,
                done,
            };
            if there.len() == self.depth
                && let Some(((end, _), (is_trim, came))) = there.pop_first()
            {
                now = end;
                if is_trim {
                    let units = account.on_completion(moment(now, self.depth, done));
                    (charged, trims) = (charged + u64::from(units), trims + 1);
                    done += u64::from(units);
                } else {
                    account.sample(Span(now - came));
                    done += 1;
                }
            }
            let is_trim = number % self.trims == self.trims - 1;
            // Half a time or one and a half.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let varied = MILLISECOND / 2 + (random >> 33) % MILLISECOND;
            let takes = varied * if is_trim { self.takes } else { 1 };
            let server = (0..self.servers).min_by_key(|server| free_at[*server]).unwrap();
            free_at[server] = now.max(free_at[server]) + takes;
            there.insert((free_at[server], number), (is_trim, now));
            if is_trim {
                account.on_dispatch(moment(now, there.len(), done));
            }
        }
        charged as f64 / trims as f64
    }
}

fn near(found: f64, exact: f64, slack: f64) -> bool {
    (found - exact).abs() <= slack
}

/// Alone, or beside others; one server or many; with a queue or without.
#[test]
fn a_trim_costs_what_the_device_took_for_it() {
    for (servers, depth) in [(1, 1), (1, 2), (1, 32), (32, 32), (32, 1), (32, 8), (4, 16)] {
        for takes in [1, 5, 40] {
            for trims in [1, 3, 50] {
                let line = QueueingDevice { servers, depth, trims, takes };
                // How many it serves is known, as of a memory.
                let mut account = DeviceTime::new(Some(servers as u32));
                let found = line.charge(&mut account, 6_000);
                let exact = takes as f64;
                assert!(
                    near(found, exact, exact / 10.0 + 1.0),
                    "{servers} {depth} {trims} {takes}: {found}"
                );
            }
        }
    }
}

/// How many requests a device serves at a time is found out from how long quick ones take. Here
/// they take two thirds of the mean, so a device with headroom left seems to lose half as much
/// again.
#[test]
fn a_device_of_which_nothing_is_known_is_found_out() {
    for (servers, depth) in [(1, 1), (32, 1), (32, 32), (32, 8), (1, 32)] {
        let line = QueueingDevice { servers, depth, trims: 10, takes: 20 };
        let found = line.charge(&mut DeviceTime::new(None), 6_000);
        assert!((18.0..=32.0).contains(&found), "{servers} {depth}: {found}");
    }
}

#[test]
fn a_charge_is_bounded() {
    let moment = |now, in_flight| Moment {
        now: Time(now),
        capacity: Some(Iops(1_000_000)),
        depth: 32,
        in_flight,
        done: 0,
    };
    let mut account = DeviceTime::new(Some(1));
    account.on_dispatch(moment(0, 1));
    assert_eq!(account.on_completion(moment(60 * Span::SECOND.0, 1)), CHARGE_MAX, "it hung");
    account.on_dispatch(moment(61 * Span::SECOND.0, 1));
    assert_eq!(account.on_completion(moment(61 * Span::SECOND.0, 1)), 1, "nothing is left of that");
}

proptest! {
    /// Whatever is reported, in whatever order: no panic, and a charge is within its bounds.
    #[test]
    fn it_is_never_out_of_bounds(
        reports in prop::collection::vec(any::<(bool, u64, u64, u32, u64)>(), 0..60),
        servers in prop::option::of(any::<u32>()),
    ) {
        let mut account = DeviceTime::new(servers);
        let mut charges = Vec::new();
        for (is_dispatch, now, capacity, in_flight, done) in reports {
            let capacity = Some(Iops(capacity)).filter(|capacity| capacity.0 % 3 > 0);
            let moment = Moment { now: Time(now), capacity, depth: in_flight / 2, in_flight, done };
            account.sample(Span(now / 3));
            if is_dispatch {
                account.on_dispatch(moment);
            } else {
                charges.push(account.on_completion(moment));
            }
        }
        prop_assert!(charges.iter().all(|units| (1..=CHARGE_MAX).contains(units)));
    }
}

/// A device that does a unit in a millisecond and one request at a time, at so many microseconds,
/// when so many units are done.
fn moment(now_us: u64, in_flight: u32, done: u64) -> Moment {
    Moment { now: Time(now_us * 1_000), capacity: Some(Iops(1_000)), depth: 32, in_flight, done }
}

#[test]
fn what_rounding_leaves_over_is_charged_later() {
    let mut account = DeviceTime::new(Some(1));
    let mut charged = 0;
    for number in 0..100 {
        // Each takes 1.4 ms, and nothing else is there.
        account.on_dispatch(moment(number * 1_400, 1, charged));
        charged += u64::from(account.on_completion(moment((number + 1) * 1_400, 1, charged)));
    }
    assert_eq!(charged, 140);
}

#[test]
fn measured_requests_have_eight_units_in_advance_and_no_more() {
    // One stays; a hundred others take no time, and each is charged the least there is.
    let mut account = DeviceTime::new(Some(1));
    account.on_dispatch(moment(0, 1, 0));
    for done in 0..100 {
        account.on_dispatch(moment(0, 2, done));
        assert_eq!(account.on_completion(moment(0, 2, done)), 1);
    }
    assert_eq!(account.on_completion(moment(50_000, 1, 100)), 50 - 8);
    // The same if others did more than the device was taken to be able to.
    let mut account = DeviceTime::new(Some(1));
    account.on_dispatch(moment(0, 1, 0));
    account.on_dispatch(moment(0, 2, 100));
    assert_eq!(account.on_completion(moment(0, 2, 100)), 1);
    assert_eq!(account.on_completion(moment(50_000, 1, 101)), 50 - 8);
}
