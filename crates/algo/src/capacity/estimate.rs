//! Estimates of a storage node's capacity and of its tenants' demand, to the end of the period.
//!
//! pShift distributes tokens by two unknown numbers (§III-D): how much a node will be able to serve
//! in the rest of the period, and how much of it each tenant will request. The paper extrapolates
//! both from the last interval between two distributions, and leaves better estimators open. The
//! estimators here are those of the paper, corrected for the three cases in which they go wrong.
//!
//! # Capacity
//! The work completed in an interval shows what a device *can* do only while it was *busy*, with as
//! many requests at the device as it takes, or others that could have been. [`Capacity`] divides
//! the work completed in busy time by that time; half of the estimate is the newest interval. An
//! interval with hardly any busy time proves only that the device does *at least* what it did. Then
//! the estimate returns, by an eighth of the way per interval, to what is known otherwise: the
//! declared capacity, or the most that was ever seen. Without that, a node that was slow for a
//! moment would be given few tokens, and with few tokens would never be busy enough to prove that
//! it has recovered.
//!
//! # Demand
//! A tenant's demand is what waits and, for the rest of the period, what comes at its rate
//! ([`Demand`]). While as much comes as was expected, but for chance, the rate is the mean of the
//! last intervals. Otherwise the tenant has moved: the rate was *a* until some moment and is *b*
//! from then on. How many units came in the interval and when they came on average are two
//! equations for the two unknowns, the moment and *b*. So a stream that ended expects nothing at
//! once, and one that began in the middle of an interval all of its rate.
//!
//! That is right for an *open* tenant, one whose requests come when they come. A *closed* one keeps
//! a fixed number of requests outstanding and sends the next when one is answered: it requests what
//! it gets. A node that gives it 100 would report a demand of 100, the controller would move its
//! reservation to where its demand is, and it could never have more here. So a tenant that waited
//! most of the time while a number of requests came or went, and whose number of requests here, in
//! the queue and at the device, neither grew nor shrank, is *elastic*: what it requests follows
//! what it is served, and it is taken to want, if need be, all that the node can do. An open tenant
//! whose requests come faster than they are served has ever more here, and is not mistaken for one;
//! neither is one of which none is served because it has no tokens, nor one that has gone and has
//! ever fewer. A client that goes anywhere with its next request has more here and fewer
//! alternately. The number is to be at the end what it was at the beginning and on average; of one
//! that has just come, only the average counts. Where it grew or shrank before, it may stand still
//! by chance, and has to do so twice.
//!
//! Example: a period of 1 s, distributions every 200 ms, 10,000 per second. After the first of
//! them, a closed tenant with 5 requests outstanding was served 100: it demands 8,000, not
//! 5 + 400. An open one that sent 500, of which 200 still wait, demands 200 + 2,000.

use tidegate_model::{Iops, Span};

/// Busy time from which an interval shows what a device can do: one part in so many of it.
const BUSY_PART: u64 = 8;

/// Waiting time from which a tenant may be elastic: one part in so many of an interval. A tenant
/// with one request outstanding does not wait while it is served and while it prepares the next.
const WAITING_PART: u64 = 2;

/// A number of requests that differs in the end from its mean, or from its beginning, by more than
/// one part in so many of what came or went is one that grows or shrinks.
const CHANGE_PART: u64 = 16;

/// The square of the difference, in standard deviations of arrivals without memory, from which a
/// rate is taken to have changed.
const CHANCE: i128 = 9;

/// A rate is kept in such parts of a unit per second, so that a mean does not lose what a division
/// leaves.
const PARTS: u128 = 1_000;

/// A rate is the mean of so many intervals, unless it has changed since. The more, the less it
/// follows chance; the fewer, the sooner it follows a change that is too small to be noticed.
const MEMORY: u64 = 8;

/// A change of rate is believed to have come before the last part in so many of an interval; what
/// comes in less time proves little.
const CHANGE_LEFT: i128 = 8;

/// Units of cost that came from which it is decided anew whether a tenant is elastic. A number of
/// which nothing is served stands still too, and one of a few requests does so by chance.
const EVIDENCE: u64 = 8;

/// How far from the declared capacity an estimate may go. A device that is this much slower is
/// broken, one that is this much faster was declared wrongly; both are to be seen by people, and
/// one stalled interval must not take all tokens from all tenants.
const BELOW_DECLARED: u64 = 16;
const ABOVE_DECLARED: u64 = 4;

/// The assumed capacity of a device that was neither declared nor ever busy, in units per second.
/// With too much, tokens are given to a node that has no use for them, until it is busy for the
/// first time; with too little, limited tenants could not make it busy.
const UNKNOWN: u64 = 1_000_000;

const SECOND: u128 = Span::SECOND.0 as u128;

/// A device's work in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The length of the interval.
    pub interval: Span,
    /// How much of it the device was busy.
    pub busy: Span,
    /// Units of cost completed.
    pub completed: u64,
    /// Units of cost completed while it was busy.
    pub completed_busy: u64,
}

/// An estimate of what a device can do, in units of cost per second.
///
/// ```
/// use tidegate_algo::capacity::estimate::{Capacity, Work};
/// use tidegate_model::{Iops, Span};
/// let mut capacity = Capacity::new(Some(Iops(1_000)));
/// let half = Span(Span::SECOND.0 / 2);
/// // Busy for half of a second, and 400 done in it: 800 per second.
/// let interval = Span::SECOND;
/// capacity.observe(Work { interval, busy: half, completed: 450, completed_busy: 400 });
/// assert_eq!(capacity.per_second(), Iops(900)); // half way from what was declared
/// assert_eq!(capacity.within(half), 450);
/// ```
#[derive(Clone, Debug)]
pub struct Capacity {
    declared: Option<Iops>,
    /// The value to which the estimate returns while there is no evidence.
    usual: u64,
    estimate: u64,
    was_busy: bool,
}

impl Capacity {
    /// The capacity of a device of which nothing was seen yet.
    pub fn new(declared: Option<Iops>) -> Self {
        let estimate = declared.map_or(UNKNOWN, |declared| declared.0.max(1));
        Self { declared, usual: estimate, estimate, was_busy: false }
    }

    /// Takes in one interval.
    pub fn observe(&mut self, work: Work) {
        let Work { interval, busy, completed, completed_busy } = work;
        let estimate = if busy.0 >= (interval.0 / BUSY_PART).max(1) {
            self.observe_busy(per_second(completed_busy, busy))
        } else {
            let back = (i128::from(self.usual) - i128::from(self.estimate)) / 8;
            let estimate = u64::try_from(i128::from(self.estimate) + back).unwrap_or(u64::MAX);
            estimate.max(per_second(completed, interval))
        };
        let (least, most) = match self.declared {
            Some(Iops(declared)) => {
                (declared / BELOW_DECLARED, declared.saturating_mul(ABOVE_DECLARED))
            }
            None => (1, u64::MAX),
        };
        self.estimate = estimate.clamp(least.max(1), most.max(1));
    }

    /// The estimate after an interval in which a busy device did `rate`.
    fn observe_busy(&mut self, rate: u64) -> u64 {
        let is_first = self.declared.is_none() && !self.was_busy;
        self.was_busy = true;
        let estimate = if is_first { rate } else { rate.midpoint(self.estimate) };
        if self.declared.is_none() {
            self.usual = if is_first { estimate } else { self.usual.max(estimate) };
        }
        estimate
    }

    /// Units of cost per second.
    pub const fn per_second(&self) -> Iops {
        Iops(self.estimate)
    }

    /// Units of cost per second, if that was declared or ever seen.
    pub fn known(&self) -> Option<Iops> {
        (self.declared.is_some() || self.was_busy).then_some(Iops(self.estimate))
    }

    /// Units of cost in `span`.
    pub fn within(&self, span: Span) -> u64 {
        within(self.estimate, span)
    }
}

/// A tenant's requests at a node in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandSample {
    /// The length of the interval.
    pub interval: Span,
    /// For how much of it something was waiting.
    pub backlogged: Span,
    /// Units of cost that came.
    pub arrived: u64,
    /// The sum of the times at which they came, in nanoseconds from its beginning.
    pub came: u128,
    /// Units of cost that are here at its end: they wait, or are at the device.
    pub present: u64,
    /// The time that units have been here in it, in sum, in nanoseconds.
    pub stayed: u128,
}

impl DemandSample {
    /// An interval in which units came evenly, and as many as at its end were here for
    /// `backlogged`.
    #[must_use]
    pub fn evenly(interval: Span, backlogged: Span, arrived: u64, present: u64) -> Self {
        let came = u128::from(arrived) * u128::from(interval.0) / 2;
        let stayed = u128::from(present) * u128::from(backlogged.0);
        Self { interval, backlogged, arrived, came, present, stayed }
    }

    /// For how much of the interval units came, if they did so evenly once they began: twice as
    /// long as the mean of them were there.
    fn here(&self) -> Span {
        let mean = self.came.checked_div(u128::from(self.arrived));
        let mean = mean.map_or(self.interval.0, |mean| u64::try_from(mean).unwrap_or(u64::MAX));
        let half = self.interval.0.saturating_sub(mean);
        Span(half.saturating_mul(2).min(self.interval.0))
    }
}

/// An estimate of what one tenant will request of a node.
///
/// ```
/// use tidegate_algo::capacity::estimate::{DemandSample, Demand};
/// use tidegate_model::Span;
/// let (interval, left) = (Span(200 * Span::MILLISECOND.0), Span(800 * Span::MILLISECOND.0));
/// let mut open = Demand::default();
/// let stayed = 100 * 200_000_000; // the queue grew from nothing
/// let growing = DemandSample { stayed, ..DemandSample::evenly(interval, interval, 500, 200) };
/// open.observe(growing);
/// assert_eq!(open.within(left, 200, 8_000), 200 + 2_000);
///
/// let mut closed = Demand::default();
/// closed.observe(DemandSample::evenly(interval, interval, 100, 5));
/// assert_eq!(closed.within(left, 5, 8_000), 8_000);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Arrivals, in thousandths of a unit of cost per second.
    rate: u64,
    /// Of how much time, at the last, that is the mean.
    mean_of: Span,
    /// Requests since the last decision on whether the tenant is elastic, and the number present
    /// then.
    evidence: DemandSample,
    is_elastic: bool,
    /// Whether its number of requests grew or shrank when that was decided last.
    is_open: bool,
    /// Whether anything came or waited in the last interval.
    is_here: bool,
}

impl Demand {
    /// Takes in one interval.
    pub fn observe(&mut self, sample: DemandSample) {
        let is_new = !core::mem::replace(&mut self.is_here, sample.arrived.max(sample.present) > 0);
        if is_new {
            // While it was not there it proved nothing.
            (self.rate, self.mean_of) = (0, Span::ZERO);
            (self.evidence, self.is_open) = (DemandSample::default(), false);
        }
        (self.rate, self.mean_of) = self.rate_after(&sample);
        let evidence = &mut self.evidence;
        let here = if is_new { sample.here() } else { sample.interval };
        evidence.interval = evidence.interval.saturating_add(here);
        evidence.backlogged = evidence.backlogged.saturating_add(sample.backlogged);
        evidence.arrived = evidence.arrived.saturating_add(sample.arrived);
        evidence.stayed = evidence.stayed.saturating_add(sample.stayed);
        let left = evidence.arrived.saturating_add(evidence.present).saturating_sub(sample.present);
        let passed = evidence.arrived.max(left);
        if passed >= EVIDENCE {
            let was_waiting = evidence.backlogged.0 >= evidence.interval.0 / WAITING_PART;
            let mean = evidence.stayed / u128::from(evidence.interval.0.max(1));
            let mean = u64::try_from(mean).unwrap_or(u64::MAX);
            // One request may be on its way from a client that was answered.
            let is_near = |number: u64| sample.present.abs_diff(number) <= passed / CHANGE_PART + 1;
            let is_steady = is_near(mean) && (is_new || is_near(evidence.present));
            self.is_elastic = was_waiting && is_steady && !self.is_open;
            self.is_open = was_waiting && !is_steady;
            *evidence = DemandSample { present: sample.present, ..DemandSample::default() };
        }
    }

    /// The rate at the end of an interval, and of how much time it is the mean. If what came
    /// differs by more than chance from what the rate had let expect, the rate is taken to have
    /// changed once, at the moment that fits how much came and when on average.
    fn rate_after(&self, sample: &DemandSample) -> (u64, Span) {
        let signed = |value: u64| i128::from(value);
        let length = signed(sample.interval.0.max(1));
        let (arrived, expected) = (signed(sample.arrived), signed(self.come(sample.interval)));
        if is_chance(arrived, expected) {
            let before = self.mean_of.0.min(sample.interval.0.saturating_mul(MEMORY - 1));
            let mean_of = before.saturating_add(sample.interval.0).max(1);
            let parts = u128::from(self.rate) * u128::from(before)
                + u128::from(sample.arrived) * PARTS * SECOND;
            let rate = u64::try_from(parts / u128::from(mean_of)).unwrap_or(u64::MAX);
            return (rate, Span(mean_of));
        }
        let more = arrived - expected;
        let came = i128::try_from(sample.came).unwrap_or(i128::MAX);
        // When what is too much, or missing, came on average: in the middle between the change and
        // the end.
        let mean =
            (came.saturating_sub(expected.saturating_mul(length) / 2) / more).clamp(0, length);
        let left = (2 * (length - mean)).clamp(length / CHANGE_LEFT, length).max(1);
        let rate = signed(self.rate) + more * (PARTS * SECOND) as i128 / left;
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        (u64::try_from(rate.max(0)).unwrap_or(u64::MAX), Span(left))
    }

    /// Units of cost that come in `span` at its rate.
    fn come(&self, span: Span) -> u64 {
        let come = u128::from(self.rate) * u128::from(span.0) / (PARTS * SECOND);
        u64::try_from(come).unwrap_or(u64::MAX)
    }

    /// Whether it takes all that it is given while something waits.
    pub const fn is_elastic(&self) -> bool {
        self.is_elastic
    }

    /// Units of cost that come in `left` at its rate, and `waiting` that are there.
    pub fn expected(&self, left: Span, waiting: u64) -> u64 {
        waiting.saturating_add(self.come(left))
    }

    /// Units of cost that it will request in `left`, `waiting` included, at a node that can do
    /// `capacity` in that time.
    pub fn within(&self, left: Span, waiting: u64, capacity: u64) -> u64 {
        let demand = self.expected(left, waiting);
        if self.is_elastic && waiting > 0 { demand.max(capacity) } else { demand }
    }
}

/// Whether as many as `arrived` may have come where as many as `expected` come on average. The
/// square root of such a count and 3/8 has a standard deviation of one half, whatever its mean
/// (F. Anscombe, 1948), so the difference of two of them shows it: here squared and times 8.
const fn is_chance(arrived: i128, expected: i128) -> bool {
    let (one, other) = (8 * arrived + 3, 8 * expected + 3);
    let apart = one + other - 2 * CHANCE;
    apart <= 0 || apart.saturating_mul(apart) <= one.saturating_mul(other).saturating_mul(4)
}

fn per_second(count: u64, span: Span) -> u64 {
    let rate = u128::from(count) * SECOND / u128::from(span.0.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// `rate` per second, in `span`.
fn within(rate: u64, span: Span) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(span.0) / SECOND).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
