//! A drive under synthetic load, without a network: the storage end by itself.
//!
//! Each flow has a submission queue of its class. It sends the next request at each reply (closed),
//! or in bursts without memory of the last one, whatever becomes of them (open). Offsets are
//! uniform over a part of the drive and aligned to the size; sizes and directions are drawn.

use hdrhistogram::Histogram;
use tidegate_model::{Bytes, Class, Portion, Span};

use super::parameters::Parameters;
use super::ssd::{Completion, Direction, DriveCommand, Ssd, SsdCounters, SsdEvent};
use tidegate_sim::event::{EventQueue, Events};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

/// A source of commands for a drive.
#[derive(Clone, Debug)]
pub struct CommandFlow {
    /// The class of its queue and commands.
    pub class: Class,
    /// When it sends requests.
    pub arrivals: Arrivals,
    /// How many of its commands read.
    pub reads: Portion,
    /// How large they are, each with a weight.
    pub sizes: Vec<(u32, u64)>,
    /// Over which part of the drive its offsets are spread, from the start.
    pub spread: Portion,
}

/// When a flow sends requests.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// So many commands are outstanding all the time.
    Closed(u32),
    /// So many commands come together, so long after those before on average.
    Open {
        /// How many come together, at least one.
        burst: u32,
        /// The mean time between bursts, exponentially distributed.
        every: Span,
    },
}

/// How long a run is, and what of it counts.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// How long flows send requests.
    pub total: Span,
    /// From when on commands that complete are counted.
    pub skip: Span,
}

/// Latencies and throughput of a flow.
#[derive(Clone, Debug)]
pub struct Served {
    /// The times from submission to completion, in nanoseconds, to three digits.
    latencies: Histogram<u64>,
    sum: Picoseconds,
    /// Commands per second of the counted time.
    pub per_second: f64,
}

impl Served {
    /// How many commands were counted.
    pub fn count(&self) -> u64 {
        self.latencies.len()
    }

    /// The mean time from submission to completion, in microseconds.
    pub fn mean(&self) -> f64 {
        self.sum.0 as f64 / 1e6 / self.count().max(1) as f64
    }

    /// The time that so many of a hundred commands do not exceed, in microseconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1e3
    }
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct DriveReport {
    /// Of each flow, in their order.
    pub flows: Vec<Served>,
    /// The counters of the drive.
    pub counts: SsdCounters,
    /// How many events that took.
    pub events: u64,
}

#[derive(Clone, Copy, Debug)]
enum SimEvent {
    Arrival(u32),
    Drive(SsdEvent),
}

struct DriveSim<'a> {
    drive: Ssd,
    events: Events<SimEvent>,
    flows: &'a [CommandFlow],
    random: Vec<Stream>,
    served: Vec<Served>,
    until: Picoseconds,
    skip: Picoseconds,
}

/// Lets flows send requests to a drive, and the drive finish them.
///
/// # Panics
/// If a flow has no sizes, or one that is not of whole sectors or larger than its part of the
/// drive; or if the drive loses a command.
pub fn run(
    parameters: &Parameters,
    flows: &[CommandFlow],
    length: Length,
    seed: u64,
) -> DriveReport {
    let mut drive = Ssd::new(parameters, seed, 0);
    flows.iter().for_each(|flow| {
        drive.add_queue(flow.class);
    });
    let served = || Served {
        latencies: Histogram::new(3).expect("three digits are possible"),
        sum: Picoseconds::ZERO,
        per_second: 0.0,
    };
    let mut simulation = DriveSim {
        drive,
        events: Events::default(),
        flows,
        random: (0..flows.len() as u64).map(|flow| Stream::new(seed, "flow", flow)).collect(),
        served: flows.iter().map(|_| served()).collect(),
        until: length.total.into(),
        skip: length.skip.into(),
    };
    let events = simulation.run();
    let DriveSim { drive, mut served, .. } = simulation;
    assert!(drive.is_idle(), "a command was lost: {:?}", drive.outstanding());
    let seconds = (length.total.0 - length.skip.0) as f64 / 1e9;
    for served in &mut served {
        served.per_second = served.count() as f64 / seconds;
    }
    DriveReport { flows: served, counts: drive.counts(), events }
}

impl DriveSim<'_> {
    /// Until nothing happens any more; how many events that took.
    fn run(&mut self) -> u64 {
        for flow in 0..self.flows.len() {
            match self.flows[flow].arrivals {
                Arrivals::Closed(count) => {
                    (0..count).for_each(|_| self.submit_next(Picoseconds::ZERO, flow));
                }
                Arrivals::Open { .. } => self.wait(Picoseconds::ZERO, flow),
            }
        }
        let mut count = 0;
        while let Some((now, sim_event)) = self.events.pop() {
            count += 1;
            match sim_event {
                SimEvent::Arrival(flow) => self.burst(now, flow as usize),
                SimEvent::Drive(event) => {
                    let Self { drive, events, .. } = self;
                    let complete = drive.on_event(now, event, &mut |at, event| {
                        events.push(at, SimEvent::Drive(event));
                    });
                    complete.into_iter().for_each(|complete| self.answered(now, complete));
                }
            }
        }
        count
    }

    /// The next burst of a flow comes at some time.
    fn wait(&mut self, now: Picoseconds, flow: usize) {
        let Arrivals::Open { every, .. } = self.flows[flow].arrivals else { return };
        let at = now.after(self.random[flow].exponential(every.into()));
        if at < self.until {
            self.events.push(at, SimEvent::Arrival(flow as u32));
        }
    }

    fn burst(&mut self, now: Picoseconds, flow: usize) {
        let Arrivals::Open { burst, .. } = self.flows[flow].arrivals else { return };
        (0..burst).for_each(|_| self.submit_next(now, flow));
        self.wait(now, flow);
    }

    fn submit_next(&mut self, now: Picoseconds, flow: usize) {
        let CommandFlow { class, reads, sizes, spread, .. } = &self.flows[flow];
        let random = &mut self.random[flow];
        let all = sizes.iter().map(|(_, weight)| weight).sum();
        let mut drawn = if sizes.len() > 1 { random.below(all) } else { 0 };
        let size = sizes.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        let bytes = size.expect("a flow has sizes").0;
        let area = u128::from(self.drive.capacity().0) * u128::from(spread.0);
        let area = (area / u128::from(Portion::WHOLE.0)) as u64;
        let at = Bytes(random.below(area / u64::from(bytes)) * u64::from(bytes));
        let is_read = *reads == Portion::WHOLE || random.happens(reads.0);
        let direction = if is_read { Direction::Read } else { Direction::Write };
        let command = DriveCommand { direction, class: *class, at, bytes, tag: 0 };
        let Self { drive, events, .. } = self;
        drive.submit(now, flow, command, &mut |at, event| {
            events.push(at, SimEvent::Drive(event));
        });
    }

    fn answered(&mut self, now: Picoseconds, complete: Completion) {
        let Completion { queue: flow, submitted, .. } = complete;
        if now >= self.skip && now < self.until {
            let took = now.since(submitted);
            let served = &mut self.served[flow];
            served.latencies.record(took.0 / 1_000).expect("a histogram that grows");
            served.sum = served.sum.after(took);
        }
        if now < self.until && matches!(self.flows[flow].arrivals, Arrivals::Closed(_)) {
            self.submit_next(now, flow);
        }
    }
}
