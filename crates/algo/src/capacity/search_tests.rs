//! The search in a closed loop with devices in virtual time: a gate that admits evenly at the
//! budget, and a device that serves in the order of arrival.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use proptest::prelude::*;

use super::*;

const TICK: u64 = 100_000;
const INTERVAL: u64 = 200 * Span::MILLISECOND.0;

/// The largest burst of the gate, in ticks.
const BURST: f64 = 4.0;

/// A device by the times that requests take: itself and a byte of it, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct DeviceModel {
    channels: usize,
    read: (f64, f64),
    write: (f64, f64),
    /// The time varies evenly by at most this part.
    jitter: f64,
    /// The bound of latency, in milliseconds.
    bound: u64,
    /// Requests per second that the device takes without a wait: it lets through so many in each
    /// [`SLICE`], and those that come then wait for the next one. So a provider limits a volume,
    /// and so does Linux.
    limit: Option<f64>,
}

impl DeviceModel {
    const fn bound(&self) -> Span {
        Span(self.bound * Span::MILLISECOND.0)
    }
}

/// One channel, as a disk behind an interface with a queue.
const SINGLE: DeviceModel = DeviceModel {
    channels: 1,
    read: (90e3, 2.5),
    write: (90e3, 2.5),
    jitter: 0.5,
    bound: 5,
    limit: None,
};

/// Eight channels with writes that take three times as long as reads.
const WRITES: DeviceModel = DeviceModel {
    channels: 8,
    read: (400e3, 0.0),
    write: (1200e3, 0.0),
    jitter: 0.3,
    bound: 10,
    ..SINGLE
};

/// A device whose requests take their bytes' time.
const BANDWIDTH: DeviceModel = DeviceModel {
    channels: 2,
    read: (20e3, 5.0),
    write: (20e3, 7.0),
    jitter: 0.2,
    bound: 10,
    ..SINGLE
};

/// A volume of 3,000 requests per second: quick below its limit, and slow above it at once.
const VOLUME: DeviceModel = DeviceModel {
    channels: 64,
    read: (200e3, 0.0),
    write: (200e3, 0.0),
    jitter: 0.2,
    bound: 2,
    limit: Some(3_000.0),
};

/// A limit counts anew in each such time, in nanoseconds; requests that wait for that go a tick of
/// Linux's clock late.
const SLICE: f64 = 100e6;
const LATE: f64 = 4e6;

/// The requests of the tenants: of a hundred requests so many writes and so many large ones.
#[derive(Clone, Copy, Debug)]
struct Load {
    writes: u64,
    large: u64,
    large_bytes: u64,
    /// Requests per second; without a number, as many as are admitted.
    rate: Option<f64>,
}

const READS: Load = Load { writes: 0, large: 0, large_bytes: 0, rate: None };

struct Bed {
    device: DeviceModel,
    load: Load,
    search: BudgetSearch,
    /// How many times as fast as its times the device is.
    speed: f64,
    /// The device does nothing before this time.
    stalled_until: f64,
    seed: u64,
    now: u64,
    /// When each channel is free.
    free: Vec<f64>,
    limit: SlicedLimit,
    /// Requests at the device by the time of completion and a number: when it came, whether it
    /// writes, its bytes.
    queue: BTreeMap<(u64, u64), (u64, bool, u64)>,
    sent: u64,
    /// Requests of a rate that wait at the gate.
    backlog: f64,
    credit: (f64, f64),
    next: Option<(bool, u64)>,
}

/// One second at the device.
#[derive(Clone, Copy, Debug)]
struct Second {
    /// The time of the device that the completed requests took, as a part of what there is.
    used: f64,
    p99: u64,
}

impl Bed {
    fn new(device: DeviceModel, load: Load, start: DeviceRates) -> Self {
        let search = BudgetSearch::new(start, device.bound(), DeviceRates::default());
        Self {
            device,
            load,
            search,
            speed: 1.0,
            stalled_until: 0.0,
            seed: 7,
            now: 0,
            free: alloc::vec![0.0; device.channels],
            limit: SlicedLimit::default(),
            queue: BTreeMap::new(),
            sent: 0,
            backlog: 0.0,
            credit: (0.0, 0.0),
            next: None,
        }
    }

    /// The next number of a generator with a long period, below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % bound
    }

    fn service(&self, is_write: bool, bytes: u64) -> f64 {
        let (each, byte) = if is_write { self.device.write } else { self.device.read };
        // A limit says nothing about the time of a request that passes it.
        let speed = if self.device.limit.is_some() { 1.0 } else { self.speed };
        (each + byte * bytes as f64) / speed
    }

    fn request(&mut self) -> (bool, u64) {
        let is_write = self.draw(100) < self.load.writes;
        let is_large = self.draw(100) < self.load.large;
        (is_write, if is_large { self.load.large_bytes } else { 4096 })
    }

    /// Sends a request to the channel that is free first.
    fn send(&mut self, (is_write, bytes): (bool, u64)) {
        let part = self.draw(2001) as f64 / 1000.0 - 1.0;
        let took = self.service(is_write, bytes) * (1.0 + self.device.jitter * part);
        let now = self.now as f64;
        let stalled = self.stalled_until;
        let first = self.free.iter_mut().min_by(|one, other| one.total_cmp(other)).unwrap();
        let limit = self.device.limit.map(|limit| limit * self.speed);
        let passed = limit.map_or(now, |rate| self.limit.pass(rate, now));
        let begin = first.max(passed).max(stalled);
        *first = begin + took;
        self.sent += 1;
        self.queue.insert((*first as u64, self.sent), (self.now, is_write, bytes));
    }

    /// One interval; the latencies of its requests, and the time that they took.
    fn interval(&mut self, latencies: &mut Vec<u64>) -> f64 {
        let budget = self.search.budget().rates;
        let end = self.now + INTERVAL;
        let mut sample = DeviceSample { interval: Span(INTERVAL), ..DeviceSample::default() };
        let (mut used, mut held, from) = (0.0, 0, latencies.len());
        while self.now < end {
            self.now += TICK;
            held += u64::from(self.admit(budget)) * TICK;
            while let Some(first) = self.queue.first_entry().filter(|sent| sent.key().0 <= self.now)
            {
                let ((at, _), (came, is_write, bytes)) = first.remove_entry();
                latencies.push(at - came);
                used += self.service(is_write, bytes);
                let done = &mut sample.done;
                let (count, sum) = if is_write {
                    (&mut done.writes, &mut done.written_bytes)
                } else {
                    (&mut done.reads, &mut done.read_bytes)
                };
                *count += 1;
                *sum += bytes;
            }
        }
        sample.is_held = held > INTERVAL / 2;
        sample.p99 = Span(percentile(&latencies[from..]));
        sample.is_waiting = !self.queue.is_empty();
        self.search.observe(&sample);
        used
    }

    /// Admits requests for one tick; whether the budget held any back.
    fn admit(&mut self, budget: DeviceRates) -> bool {
        let tick = TICK as f64 / SECOND;
        let (operations, bytes) = (budget.operations as f64 * tick, budget.bytes as f64 * tick);
        self.credit.0 = (self.credit.0 + operations).min((operations * BURST).max(2.0));
        self.credit.1 = (self.credit.1 + bytes).min((bytes * BURST).max(1.0));
        self.backlog += self.load.rate.unwrap_or(0.0) * tick;
        loop {
            if self.load.rate.is_some() && self.backlog < 1.0 {
                return false;
            }
            if self.credit.0 < 1.0 || self.credit.1 <= 0.0 {
                return true;
            }
            let request = match self.next.take() {
                Some(request) => request,
                None => self.request(),
            };
            self.credit.0 -= 1.0;
            self.credit.1 -= request.1 as f64;
            self.backlog -= if self.load.rate.is_some() { 1.0 } else { 0.0 };
            self.send(request);
        }
    }

    fn second(&mut self) -> Second {
        let mut latencies = Vec::new();
        let used: f64 = (0..5).map(|_| self.interval(&mut latencies)).sum();
        let used = match self.device.limit {
            Some(limit) => latencies.len() as f64 / (limit * self.speed),
            None => used / (SECOND * self.device.channels as f64),
        };
        Second { used, p99: percentile(&latencies) }
    }

    fn seconds(&mut self, count: usize) -> Vec<Second> {
        (0..count).map(|_| self.second()).collect()
    }
}

/// A device's limit, and what it let through of the present slice.
#[derive(Default)]
struct SlicedLimit {
    slice: f64,
    passed: f64,
    /// Until when requests wait.
    until: f64,
}

impl SlicedLimit {
    /// When a request that comes now passes a limit of `rate` requests per second.
    fn pass(&mut self, rate: f64, now: f64) -> f64 {
        let slice = (now.max(self.until) / SLICE).floor();
        if slice > self.slice {
            (self.slice, self.passed) = (slice, 0.0);
        }
        if self.passed >= rate * SLICE / SECOND {
            (self.slice, self.passed) = (self.slice + 1.0, 0.0);
            self.until = self.slice * SLICE + LATE;
        }
        self.passed += 1.0;
        now.max(self.until)
    }
}

fn percentile(latencies: &[u64]) -> u64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0)
}

fn start(operations: u64) -> DeviceRates {
    DeviceRates { operations, bytes: operations << 14 }
}

/// At rest, a twentieth of the capacity at most is left, and 95 of 100 seconds are in the bound.
#[test]
fn four_devices_are_used_within_the_bound() {
    let mixed = Load { writes: 30, large: 0, large_bytes: 0, rate: None };
    let sizes = Load { writes: 30, large: 20, large_bytes: 64 << 10, rate: None };
    for (device, load) in [(SINGLE, READS), (WRITES, mixed), (BANDWIDTH, sizes), (VOLUME, READS)] {
        for first in [500, 50_000] {
            let mut bed = Bed::new(device, load, start(first));
            bed.seconds(20);
            let seconds = bed.seconds(100);
            let used = seconds.iter().map(|second| second.used).sum::<f64>() / 100.0;
            let kept = seconds.iter().filter(|second| second.p99 <= device.bound().0).count();
            assert!(used >= 0.95, "{device:?} from {first}: {used}");
            assert!(kept >= 95, "{device:?} from {first}: {kept} seconds");
        }
    }
}

#[test]
fn a_device_that_slows_down_by_half_or_doubles_is_followed() {
    for device in [SINGLE, WRITES, VOLUME] {
        let mut bed = Bed::new(device, READS, start(5_000));
        bed.seconds(20);
        for (speed, within) in [(0.5, 3), (1.0, 5), (2.0, 5), (1.0, 3)] {
            bed.speed = speed;
            bed.seconds(within);
            for second in bed.seconds(10) {
                assert!(second.used > 0.9, "{device:?} at {speed}: {second:?}");
                assert!(second.p99 <= 2 * device.bound().0, "{device:?} at {speed}: {second:?}");
            }
        }
    }
}

#[test]
fn a_stall_is_forgotten() {
    for device in [SINGLE, WRITES, VOLUME] {
        for offset in 0..5 {
            let mut bed = Bed::new(device, READS, start(5_000));
            bed.seconds(20);
            let before = bed.search.costs;
            let at = bed.now + offset * INTERVAL / 5 + 2_000_000_000;
            bed.stalled_until = at as f64;
            bed.seconds(2); // the stall
            bed.seconds(2);
            for second in bed.seconds(5) {
                assert!(second.used > 0.9, "{device:?}: {second:?}");
                assert!(second.p99 <= 2 * device.bound().0, "{device:?}: {second:?}");
            }
            let cost = |costs: [f64; 4]| costs[0] + SMALL * costs[1];
            let ratio = cost(bed.search.costs) / cost(before);
            assert!((0.9..1.1).contains(&ratio), "{device:?}: {ratio}");
        }
    }
}

#[test]
fn low_demand_lowers_nothing() {
    let mut bed = Bed::new(SINGLE, READS, start(5_000));
    bed.seconds(20);
    let before = bed.search.budget().rates.operations;
    bed.load.rate = Some(200.0);
    bed.seconds(60);
    let after = bed.search.budget().rates.operations;
    assert!(after.abs_diff(before) * 20 <= before, "{before} and then {after}");
}

/// The device shows what a write costs, by intervals with more of them and with fewer.
#[test]
fn the_cost_of_a_write_is_learned() {
    let mut bed = Bed::new(WRITES, READS, start(5_000));
    for round in 0..40 {
        bed.load.writes = [0, 60, 20, 100][round % 4];
        bed.seconds(3);
    }
    let cost = bed.search.write_cost(4096);
    assert!((2_000..4_000).contains(&cost), "{cost}");
}

#[test]
fn reservations_are_admitted_by_a_device_that_cannot_serve_them() {
    let reserved = DeviceRates { operations: 8_000, bytes: 0 };
    let mut bed = Bed::new(SINGLE, READS, start(5_000));
    bed.search.promise(SINGLE.bound(), reserved);
    bed.seconds(20);
    assert!(!bed.search.budget().is_short);
    bed.speed = 0.5;
    bed.seconds(5);
    let budget = bed.search.budget();
    assert!(budget.is_short, "{budget:?}");
    assert!(budget.rates.operations >= reserved.operations);
    bed.speed = 1.0;
    bed.seconds(20);
    assert!(!bed.search.budget().is_short);
}

proptest! {
    /// Whatever is reported, the budget is a number, has its bounds, and finds back.
    #[test]
    fn no_report_breaks_the_search(
        reports in prop::collection::vec((any::<[u32; 4]>(), any::<u64>(), any::<[bool; 2]>()), 50),
        reserved in 0..5_000u64,
    ) {
        let mut bed = Bed::new(SINGLE, READS, start(5_000));
        bed.search.promise(SINGLE.bound(), DeviceRates { operations: reserved, bytes: 0 });
        for ([reads, read_bytes, writes, written_bytes], p99, [is_held, is_waiting]) in reports {
            let [reads, read_bytes, writes, written_bytes] =
                [reads, read_bytes, writes, written_bytes].map(u64::from);
            let budget = bed.search.observe(&DeviceSample {
                interval: Span(INTERVAL),
                done: Transfers { reads, read_bytes, writes, written_bytes },
                p99: Span(p99),
                is_held,
                is_waiting,
            });
            prop_assert!(budget.rates.operations >= reserved.max(1));
            prop_assert!(bed.search.costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0));
        }
    }
}
