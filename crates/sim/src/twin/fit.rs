//! Model fitting: the times of devices and of the way to them with which a trace replay repeats its
//! own recording best.
//!
//! # Problem
//! A cluster file has the speed of a node only where an operator has declared it, which is rare for
//! disks; and no file has the time that gateways, threads and networks take. But a recording that
//! was made under a policy that is known shows both, mixed with the waits that the policy caused.
//!
//! # Method
//! The load is replayed under the policy that was in force, with some times, and compared with what
//! was recorded ([`distance`]). A pattern search looks for better times: each one is made longer
//! and shorter by a step, an improvement is kept, and the steps shrink when there is none. It
//! begins with devices that serve [`STARTS`] requests at a time, each as fast as the recorded rate
//! demands. Where the cluster file declares the nodes' speed, only the time of the way is sought.
//!
//! # Limits
//! All nodes are taken to be alike. The model has one mean time for a read and a write, more by the
//! byte, and how much of it varies. A device whose times drift, or whose writes are cached and then
//! flushed, has no such times; then the [`Fit::distance`] says so. A time of writes of their own
//! was tried: with it, the times of reads and the number that are served at once can be almost any.

use tidegate_model::Span;

use super::load::RecordedLoad;
use super::report::TwinReport;
use super::run::{Plan, PlanError, Progress, run};
use super::{Figures, Service, ServiceTimes};

/// How many requests at a time the devices serve in the beginnings of the search.
const STARTS: [u16; 3] = [1, 4, 16];
/// The most requests that a device is taken to serve at a time.
const AT_ONCE_MAX: u16 = 256;
/// The factors by which times are changed, one after the other.
const STEPS: [f64; 4] = [2.0, 1.4, 1.15, 1.05];
/// A tenant with fewer requests says nothing about a percentile of 99.
const REQUESTS_MIN: u64 = 200;
/// The most replays from each beginning.
const REPLAYS_MAX: u32 = 250;
/// How many times are sought: see [`Candidate::with`].
const TIMES: usize = 5;
/// The least part of a time that varies, if it does. Chosen by hand.
const VARYING_MIN: f64 = 0.1;

/// The times that fit best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The devices.
    pub service: Service,
    /// The time of a request outside of the nodes' queues and devices.
    pub transit: Span,
    /// The mean over tenants of the distance of the replay from the recording: the logarithm of the
    /// ratio of the rates, and half those of the percentiles 50 and 99. Zero is the recording
    /// itself, and 0.1 is some 10 % off.
    pub distance: f64,
}

/// Finds the times for a plan whose policy was in force during the recording. Its own times are
/// not read, but for those of devices that are [`Service::Declared`]. In each period of each replay
/// `goes_on` is told how far that is; none if it says no.
///
/// # Errors
/// If the recording does not fit to the cluster.
pub fn fit(plan: &Plan<'_>, goes_on: impl Fn(Progress) -> bool) -> Result<Option<Fit>, PlanError> {
    let recorded = plan.load.report();
    let mut search = Search { plan, recorded: &recorded, goes_on: &goes_on, replays: 0, all: 0 };
    let quick = quick(plan.load).0 as f64;
    let is_declared = match run(&Plan { service: Service::Declared, ..*plan }, |_| false) {
        Ok(_) => plan.service == Service::Declared,
        Err(PlanError::Speed(_)) => false,
        Err(error) => return Err(error),
    };
    let nodes = plan.cluster.nodes.len().max(1) as f64;
    let rate = plan.load.len() as f64 / (plan.load.span.0 as f64 / Span::SECOND.0 as f64).max(1e-9);
    let mut best = None;
    for at_once in STARTS {
        // A device has to reach the recorded rate, and no request is answered sooner than served.
        let needed = f64::from(at_once) * nodes / rate * Span::SECOND.0 as f64;
        let times = Candidate {
            each: (!is_declared).then_some(needed.min(quick).max(1.0)),
            per_mib: 1.0,
            at_once,
            varying: 0.0,
            transit: quick / 4.0,
        };
        let Some(found) = search.from(times)? else { return Ok(None) };
        let is_better = |best: &(f64, Candidate)| found.0 < best.0;
        best = best.filter(|best| !is_better(best)).or(Some(found));
        if is_declared {
            break;
        }
    }
    let fit = best.map(|(distance, times): (f64, Candidate)| Fit {
        service: times.service(),
        transit: Span(times.transit as u64),
        distance,
    });
    Ok(fit)
}

/// The latency that a tenth of all requests does not exceed: of those that hardly waited.
fn quick(load: &RecordedLoad) -> Span {
    let requests = load.connections.iter().flat_map(|connection| &connection.requests);
    let mut latencies: Vec<u64> = requests.map(|request| request.latency.0).collect();
    let tenth = latencies.len() / 10;
    Span((*latencies.select_nth_unstable(tenth).1).max(1))
}

/// Times that are tried, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Of a unit of cost; none if the cluster file says it.
    each: Option<f64>,
    /// How many times as long as a unit a MiB takes beyond it.
    per_mib: f64,
    at_once: u16,
    /// The part of each time that varies.
    varying: f64,
    transit: f64,
}

impl Candidate {
    fn service(&self) -> Service {
        let Some(each) = self.each else { return Service::Declared };
        Service::Timed(ServiceTimes {
            each: Span(each.max(1.0) as u64),
            per_mib: Span((each * self.per_mib) as u64),
            at_once: self.at_once,
            varying_percent: (100.0 * self.varying) as u32,
        })
    }

    /// These times with one of them changed by a factor; none if there is no such time.
    fn with(mut self, which: usize, factor: f64) -> Option<Self> {
        match which {
            0 => self.each = Some(self.each? * factor),
            1 => self.transit *= factor,
            2 => {
                self.each?;
                self.per_mib *= factor;
            }
            3 => {
                self.each?;
                let before = self.varying;
                // From nothing to everything in a few steps, and back to nothing.
                self.varying = (before.max(VARYING_MIN) * factor).min(1.0);
                self.varying = if self.varying < VARYING_MIN { 0.0 } else { self.varying };
                (self.varying != before).then_some(())?;
            }
            _ => {
                // As many requests per second as before: what changes is how they queue.
                let own = f64::from(self.at_once);
                let other = if factor > 1.0 { own * 2.0 } else { own / 2.0 };
                (1.0..=f64::from(AT_ONCE_MAX)).contains(&other).then_some(())?;
                self.each = Some(self.each? * other / own);
                self.at_once = other as u16;
            }
        }
        Some(self)
    }
}

/// A pattern search over times.
struct Search<'a, G> {
    plan: &'a Plan<'a>,
    recorded: &'a TwinReport,
    goes_on: &'a G,
    /// From one beginning.
    replays: u32,
    /// From all of them.
    all: u32,
}

impl<G: Fn(Progress) -> bool> Search<'_, G> {
    /// The best times around these; none if the search was ended.
    fn from(&mut self, times: Candidate) -> Result<Option<(f64, Candidate)>, PlanError> {
        self.replays = 0;
        let Some(mut distance) = self.distance(&times)? else { return Ok(None) };
        let mut best = times;
        for step in STEPS {
            let mut is_improved = true;
            while is_improved && self.replays < REPLAYS_MAX {
                is_improved = false;
                for (which, factor) in (0..TIMES).flat_map(|it| [(it, step), (it, 1.0 / step)]) {
                    let Some(other) = best.with(which, factor) else { continue };
                    let Some(found) = self.distance(&other)? else { return Ok(None) };
                    if found < distance {
                        (distance, best, is_improved) = (found, other, true);
                    }
                }
            }
        }
        Ok(Some((distance, best)))
    }

    fn distance(&mut self, times: &Candidate) -> Result<Option<f64>, PlanError> {
        self.replays += 1;
        self.all += 1;
        let transit = Span(times.transit as u64);
        let plan = Plan { service: times.service(), transit, ..*self.plan };
        let replay = self.all;
        let report = run(&plan, |progress| (self.goes_on)(Progress { replay, ..progress }))?;
        Ok(report.map(|report| distance(self.recorded, &report)))
    }
}

/// How far a replay is from its recording: see [`Fit::distance`].
fn distance(recorded: &TwinReport, replayed: &TwinReport) -> f64 {
    let log =
        |recorded: u64, replayed: u64| (replayed.max(1) as f64 / recorded.max(1) as f64).ln().abs();
    let own = |name: &str| {
        let tenant = replayed.tenants.iter().find(|tenant| tenant.name == name);
        tenant.map_or(Figures::default(), |tenant| tenant.figures)
    };
    let tenants = recorded.tenants.iter().filter(|it| it.figures.requests >= REQUESTS_MIN);
    let distances: Vec<f64> = tenants
        .map(|tenant| {
            let (then, now) = (tenant.figures, own(&tenant.name));
            log(then.requests, now.requests)
                + (log(then.p50.0, now.p50.0) + log(then.p99.0, now.p99.0)) / 2.0
        })
        .collect();
    distances.iter().sum::<f64>() / distances.len().max(1) as f64
}
