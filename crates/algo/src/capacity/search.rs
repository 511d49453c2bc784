//! The budget of a device, found while the device works: as much as it serves within a bound of
//! latency.
//!
//! # Problem
//! A gate in front of a device needs to know how much to let through. With too little, the device
//! idles; with too much, requests wait at the device, where no gate orders them. An operator's
//! constant is right for one device, one mix of requests and one day.
//!
//! # Model
//! A device serves requests one after the other, or several at a time. A request takes a time for
//! itself and a time for each byte, and both differ between reads and writes: four *costs*. A gate
//! admits requests evenly at a rate, and reports for each interval the completed requests, their
//! 99th percentile of latency at the device, and whether it held any back. Two forms of evidence
//! tell about the costs:
//!
//! - Requests take about as long as a *target*, a quarter of the bound, or longer. Then some of
//!   them queue at the device, the device is never idle, and the costs of the completed requests
//!   add up to the interval.
//! - Requests take less than three quarters of the target although the gate holds others back. Then
//!   the device can do more.
//!
//! # Mechanism
//! The budget of the next interval is the amount that takes a share of it, the *pressure*, by the
//! costs and the mix that was seen. At a full device the pressure is 1 + (target - p99) / interval,
//! so a queue that is too long is gone after one interval; of a queue that is too short, half is
//! added. The costs then move by an eighth towards the sum that they should have, each in
//! proportion to its share: a device with slow writes makes writes expensive, because intervals
//! with more writes have sums that are too small.
//!
//! At a device that is not full, all costs shrink by (target - p99) / interval, at most an eighth.
//! If the device was full after all, this makes a queue of the target's length and no longer. After
//! [`EASY`] such intervals in a row the step doubles, so that a device that became faster is found
//! in little time, at the price of one interval with a long queue.
//!
//! Some devices have no queue that grows little by little. A provider limits a volume to so many
//! requests in a second, and those beyond wait for the next slice of time. There a step beyond the
//! limit makes some requests take longer than the bound at once. So this step is taken back, and a
//! *rest* of two intervals slightly below the budget follows. Each failure in a row doubles the
//! rest, up to [`REST_MAX`]: each second has so few requests beyond the limit that its 99th
//! percentile does not show them. After a rest steps are small. Only if [`TRIED`] of them in a row
//! lead to no long times do they double, and a device that became faster is found.
//!
//! Where requests take longer than the bound for two intervals in a row, the costs move all the way
//! at once. The larger sum of the two intervals counts, so a pause within an interval costs
//! little. The same follows where the latency is not that of a queue: then the device served as
//! much as the pressure admitted, which is less and less.
//!
//! An interval in which requests wait and none completes is a *stall*. It changes no cost, and a
//! small part of the budget is admitted while it lasts. Nor does the interval after it, whose
//! latencies are those of the stall. An interval in which the gate held nothing
//! back raises nothing, and lowers no cost while requests are within the bound: low demand is no
//! evidence.
//!
//! The budget is never less than the reservations: they are admitted, and a device that cannot
//! serve them is over its bound. [`DeviceBudget::is_short`] says so; the gate serves reservations
//! first. Before the pressure, the budget is also at least ten operations per second.
//!
//! Example: a bound of 10 ms, intervals of 200 ms, a target of 2.5 ms. A device that is believed to
//! take 100 µs for a request is given 2,000 in an interval. They take 0.5 ms: the next budget is
//! 2,020, by (2.5 - 0.5) / 200. At 2,100 the device is full, and requests take 4.5 ms: the next
//! budget is a hundredth less than the costs say, 2,079, and the queue is 2.5 ms. Now the device
//! slows down by half. It completes 1,050 of 2,100, and the last of them waited for 100 ms. The
//! next budget is half. After a second such interval the costs are doubled.
//!
//! # Bounds
//! Tests in virtual time hold these, with intervals of 200 ms. Four devices are used to 95 of a
//! hundred parts at least, and keep the bound in 95 of 100 seconds. From the fourth second after
//! a device slowed down by half, and the sixth after it doubled, nine tenths are used and requests
//! take at most twice the bound. The same holds from the third second after a stall of 2 s.
//!
//! Left out: the 99th percentile of requests that are alone at the device must be below a sixth of
//! the bound. Otherwise a device that is not full looks full, and the budget is too small. Costs of
//! requests that do not come are not learned: after a change of the device they are wrong for the
//! first intervals in which such requests come again. Requests that a page cache answers have no
//! latency of a device, and must not be among the samples.

use tidegate_model::Span;

/// The part of the bound at which the queue of a full device is held. Chosen by hand: queues of a
/// device at its capacity vary by as much as this again and more.
const TARGET_PART: f64 = 0.25;

/// The part of a missing queue that one interval adds. The latency of an interval tells of a queue
/// that is one interval old: by all of it, the queue would be too long half of the time.
const ADDED: f64 = 0.5;

/// Below this part of the target a device is not full. More than half, so that a bound of seven
/// times the latency of a request alone is enough.
const EASY_PART: f64 = 0.75;

/// Intervals with small steps, before the steps double.
pub const EASY: u32 = 10;

/// The largest step, up or down, of a device that is not full. Chosen by hand: two in five seconds.
const STEP_MAX: f64 = 0.125;

/// The smallest step: tiny bounds must not stop the search.
const STEP_MIN: f64 = 0.004;

/// Intervals of a rest after a step that was taken back, at first and at most: a device that
/// doubles is found within five seconds of intervals of 200 ms. Chosen by trials, as the next two.
const REST_MIN: u32 = 2;
const REST_MAX: u32 = 6;

/// The pressure of a rest.
const RESTING: f64 = 0.985;

/// Steps in a row after which a limit is not where it was: from then on they may double, and the
/// next rest is the shortest.
const TRIED: u32 = 5;

/// The part by which the costs follow the newest interval of a full device.
const FOLLOW: f64 = 0.125;

/// The most by which the costs rise so: the gate may have held requests back for a part of it.
const FOLLOW_MAX: f64 = 0.0625;

/// The smallest pressure on a device that works, and on one that stands still. The second is what
/// waits when the stall is over.
const PRESSURE_MIN: f64 = 0.5;
const PRESSURE_STALLED: f64 = 0.0625;

/// The part of the budget that a device has to serve for a larger one.
const SERVED_PART: f64 = 0.25;

/// The most by which the costs change in one interval.
const CHANGE_MAX: f64 = 4.0;

/// The least and the largest cost, in nanoseconds: no report may make one that is not a number.
const COST_MIN: f64 = 1e-6;
const COST_MAX: f64 = 1e12;

/// The least budget, in operations per second: less than any disk serves. From there a device is
/// found in a quarter of a minute.
const LEAST: f64 = 10.0;

/// The size of the requests by which a start in operations was measured, in bytes.
const SMALL: f64 = 4096.0;

const SECOND: f64 = Span::SECOND.0 as f64;

/// Completed requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Completed reads.
    pub reads: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
}

impl Transfers {
    /// The sum of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads.saturating_add(other.reads),
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            writes: self.writes.saturating_add(other.writes),
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
        }
    }

    const fn amounts(&self) -> [f64; 4] {
        let Self { reads, read_bytes, writes, written_bytes } = *self;
        [reads as f64, read_bytes as f64, writes as f64, written_bytes as f64]
    }
}

/// The work of a device in an interval, as the gate in front of it saw the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// The length of the interval.
    pub interval: Span,
    /// Completed requests.
    pub done: Transfers,
    /// The latency at the device that 99 of 100 completed requests kept.
    pub p99: Span,
    /// Whether the budget held requests back for most of the interval.
    pub is_held: bool,
    /// Whether requests were at the device at the end of the interval.
    pub is_waiting: bool,
}

/// Operations and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRates {
    /// Requests of any size per second.
    pub operations: u64,
    /// Bytes per second.
    pub bytes: u64,
}

/// The budget of the next interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBudget {
    /// The amounts that the gate may admit.
    pub rates: DeviceRates,
    /// Whether the device serves less than the reservations, which are admitted all the same.
    pub is_short: bool,
}

/// The evidence of the last interval, which says why the estimate moved or did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Low demand, which tells nothing.
    #[default]
    Idle,
    /// The device is not full, and requests were held back: there is more to be had.
    Easy,
    /// The device is full, and completed what it is taken for.
    Full,
    /// Requests took longer than the bound, two intervals in a row.
    Slow,
    /// Requests waited at the device, and none completed.
    Stalled,
}

/// The search for a device's budget.
///
/// ```
/// use tidegate_algo::capacity::search::{BudgetSearch, DeviceRates, DeviceSample, Transfers};
/// use tidegate_model::Span;
/// let start = DeviceRates { operations: 10_000, bytes: 400 << 20 };
/// let bound = Span(10 * Span::MILLISECOND.0);
/// let mut search = BudgetSearch::new(start, bound, DeviceRates::default());
/// let sample = DeviceSample {
///     interval: Span(200 * Span::MILLISECOND.0),
///     done: Transfers { reads: 2_000, read_bytes: 2_000 << 12, ..Transfers::default() },
///     p99: Span(500_000),
///     is_held: true,
///     is_waiting: true,
/// };
/// assert_eq!(search.observe(&sample).rates.operations, 10_100); // (2.5 ms - 0.5 ms) / 200 ms
/// let slow = DeviceSample { p99: Span(4_500_000), ..sample };
/// assert!(search.observe(&slow).rates.operations < 10_000); // a queue of 2 ms is to go
/// ```
#[derive(Clone, Debug)]
pub struct BudgetSearch {
    /// The bound of latency and the reservations.
    bound: Span,
    reserved: DeviceRates,
    /// The time that a read, a byte of it, a write and a byte of it take, in nanoseconds.
    costs: [f64; 4],
    /// Amounts of one average request.
    mix: [f64; 4],
    /// The share of the next interval that the budget takes.
    pressure: f64,
    /// The share of the last interval that its requests took by the costs.
    last: f64,
    /// Intervals in a row over the bound, and far below the target.
    slow: u32,
    easy: u32,
    /// The step up, after the last such interval.
    step: f64,
    /// Steps in a row.
    steps: u32,
    /// Intervals that are left of a rest, and those of the last whole one.
    rest: u32,
    patience: u32,
    evidence: Evidence,
}

impl BudgetSearch {
    /// A search from `start`, the rates of small and of large requests, for as much as the device
    /// serves within `bound`, and at least `reserved`.
    pub fn new(start: DeviceRates, bound: Span, reserved: DeviceRates) -> Self {
        let (operations, bytes) = (start.operations.max(1) as f64, start.bytes.max(1) as f64);
        let byte = SECOND / bytes;
        // The rate of small requests has the time of their bytes in it.
        let small = SECOND / operations;
        let byte = byte.min(small / (2.0 * SMALL));
        let operation = small - SMALL * byte;
        Self {
            bound,
            reserved,
            costs: [operation, byte, operation, byte],
            mix: [1.0, SMALL, 0.0, 0.0],
            pressure: 1.0,
            last: 1.0,
            slow: 0,
            easy: 0,
            step: 0.0,
            steps: 0,
            rest: 0,
            patience: 0,
            evidence: Evidence::Idle,
        }
    }

    /// Changes the bound and the reservations; the costs stay.
    pub const fn promise(&mut self, bound: Span, reserved: DeviceRates) {
        (self.bound, self.reserved) = (bound, reserved);
    }

    /// Takes in one interval, and returns the budget of the next one.
    pub fn observe(&mut self, sample: &DeviceSample) -> DeviceBudget {
        let amounts = sample.done.amounts();
        let operations = amounts[0] + amounts[2];
        if operations == 0.0 {
            (self.pressure, self.evidence) = match sample.is_waiting {
                true => (PRESSURE_STALLED, Evidence::Stalled),
                false => (1.0, Evidence::Idle),
            };
            return self.budget();
        }
        for (mix, amount) in self.mix.iter_mut().zip(amounts) {
            *mix = (*mix + amount / operations) / 2.0;
        }
        if self.evidence == Evidence::Stalled {
            // Requests that complete now have the latency of the stall.
            (self.pressure, self.last, self.evidence) = (1.0, 1.0, Evidence::Full);
            return self.budget();
        }
        let served = self.time(&amounts) / sample.interval.0.max(1) as f64;
        let missing = self.missing(sample);
        if self.is_easy(sample.p99) {
            let is_served = served >= self.pressure * SERVED_PART;
            self.grow(sample.is_held && is_served, missing);
        } else {
            self.follow(sample, served, missing);
        }
        self.last = served;
        self.budget()
    }

    /// The budget in force.
    pub fn budget(&self) -> DeviceBudget {
        let (admitted, full) = (self.rates(&self.mix, self.pressure), self.capacity());
        let DeviceRates { operations, bytes } = self.reserved;
        DeviceBudget {
            rates: DeviceRates {
                operations: admitted.operations.max(operations).max(1),
                bytes: admitted.bytes.max(bytes).max(1),
            },
            is_short: full.operations < operations || full.bytes < bytes,
        }
    }

    /// The estimate: what the device does per second, of requests as they come now.
    pub fn capacity(&self) -> DeviceRates {
        self.rates(&self.mix, 1.0)
    }

    /// The estimate for requests as they come in `now`, a later state of this search. Its
    /// difference from that of `now` is a change of the device, not of its requests.
    pub fn capacity_as(&self, now: &Self) -> DeviceRates {
        self.rates(&now.mix, 1.0)
    }

    /// The evidence of the last interval.
    pub const fn evidence(&self) -> Evidence {
        self.evidence
    }

    fn rates(&self, mix: &[f64; 4], pressure: f64) -> DeviceRates {
        let [reads, read_bytes, writes, written_bytes] = *mix;
        let bytes_each = (read_bytes + written_bytes) / (reads + writes).max(1.0);
        let operations = (SECOND / self.time(mix)).max(LEAST) * pressure;
        DeviceRates {
            operations: (operations + 0.5) as u64,
            bytes: (operations * bytes_each + 0.5) as u64,
        }
    }

    /// How many times as long as a read of `bytes` a write of as many takes, in thousandths.
    pub fn write_cost(&self, bytes: u64) -> u64 {
        let [read, read_byte, write, written_byte] = self.costs;
        let bytes = bytes as f64;
        let ratio = (write + bytes * written_byte) / (read + bytes * read_byte);
        (ratio * 1000.0 + 0.5) as u64
    }

    /// A device that is not full: more, if it served its budget and others were held back.
    fn grow(&mut self, is_served: bool, missing: f64) {
        (self.pressure, self.slow) = (1.0, 0);
        if !is_served {
            (self.easy, self.evidence) = (0, Evidence::Idle);
            return;
        }
        self.easy = self.easy.saturating_add(1);
        if self.rest > 0 {
            (self.rest, self.evidence) = (self.rest - 1, Evidence::Full);
            self.pressure = RESTING;
            return;
        }
        self.steps = if self.evidence == Evidence::Easy { self.steps.saturating_add(1) } else { 1 };
        self.evidence = Evidence::Easy;
        let is_long = self.easy > EASY && self.steps > TRIED;
        if self.steps > TRIED {
            self.patience = 0;
        }
        self.step = if is_long { self.step * 2.0 } else { missing }.clamp(STEP_MIN, STEP_MAX);
        for cost in &mut self.costs {
            *cost = (*cost / (1.0 + self.step)).max(COST_MIN);
        }
    }

    /// A full device: the costs follow the completed requests, and the queue is to have its length.
    fn follow(&mut self, sample: &DeviceSample, served: f64, missing: f64) {
        self.easy = 0;
        let is_over = sample.p99 > self.bound;
        self.slow = if is_over { self.slow.saturating_add(1) } else { 0 };
        let has_stepped = self.evidence == Evidence::Easy;
        self.evidence = if self.slow > 1 { Evidence::Slow } else { Evidence::Full };
        if self.slow > 1 {
            // A pause lowers the sum of one interval, or that of two by a part.
            self.correct(sample, 1.0 / served.max(self.last), served);
        } else if has_stepped && is_over {
            self.step_back(sample, served);
        } else if !is_over && sample.is_held {
            let step = FOLLOW * (1.0 / served - 1.0);
            self.correct(sample, 1.0 + step.min(FOLLOW_MAX), served);
        }
        let missing = if missing > 0.0 { missing * ADDED } else { missing };
        self.pressure = 1.0 + missing.clamp(PRESSURE_MIN - 1.0, STEP_MAX);
    }

    /// Takes the last step back, and rests.
    fn step_back(&mut self, sample: &DeviceSample, served: f64) {
        self.correct(sample, 1.0 + self.step, served);
        self.patience = (self.patience * 2).clamp(REST_MIN, REST_MAX);
        self.rest = self.patience;
    }

    /// Changes the sum of the costs of the completed requests to `factor` of it, each by its share.
    fn correct(&mut self, sample: &DeviceSample, factor: f64, served: f64) {
        let factor = factor.clamp(1.0 / CHANGE_MAX, CHANGE_MAX);
        let amounts = sample.done.amounts();
        let all = served * sample.interval.0.max(1) as f64;
        let mut shares = [0.0; 4];
        for (share, (amount, cost)) in shares.iter_mut().zip(amounts.iter().zip(self.costs)) {
            *share = amount * cost / all;
        }
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        for (cost, share) in self.costs.iter_mut().zip(shares) {
            let change = (factor - 1.0) * share / squares;
            let change = (1.0 + change).clamp(1.0 / CHANGE_MAX, CHANGE_MAX);
            *cost = (*cost * change).clamp(COST_MIN, COST_MAX);
        }
    }

    /// The time that so much takes by the costs, in nanoseconds.
    fn time(&self, amounts: &[f64; 4]) -> f64 {
        amounts.iter().zip(self.costs).map(|(amount, cost)| amount * cost).sum()
    }

    /// The part of an interval by which requests take less than the target.
    fn missing(&self, sample: &DeviceSample) -> f64 {
        let target = self.bound.0 as f64 * TARGET_PART;
        (target - sample.p99.0 as f64) / sample.interval.0.max(1) as f64
    }

    /// Whether the latency is too low for a full device.
    fn is_easy(&self, p99: Span) -> bool {
        (p99.0 as f64) < self.bound.0 as f64 * TARGET_PART * EASY_PART
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
