//! Results of an end-to-end simulation of network and drives.

use hdrhistogram::Histogram;
use tidegate_model::{Bytes, Class, Rate, Span};

use super::hops::Hop;
use crate::net::{Counters, InvariantViolation};
use tidegate_sim::workload;

/// Results of a run, up to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct E2eReport {
    /// The seed that everything followed from.
    pub seed: u64,
    /// How long it ran.
    pub length: Span,
    /// How much of that is not counted.
    pub skip: Span,
    /// How many events happened.
    pub events: u64,
    /// Results of each application, in the order of the scenario.
    pub applications: Vec<ServiceReport>,
    /// Counters of ports, of switches and of hosts' NICs, that sent packets in the counted time.
    pub ports: Vec<Egress>,
    /// Series of each class at each port; empty unless the run requests them.
    pub hops: Vec<Hop>,
    /// How far the moments of series are apart.
    pub sample: Span,
    /// The fault of its network at the end, if any: mostly, queues wait for each other for good.
    pub fault: Option<InvariantViolation>,
}

/// Results of an application.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// Requests that it made, and what they were to move, in bytes.
    pub requested: Amount,
    /// The same of those that were answered.
    pub done: Amount,
    /// How many of these took longer than its deadline; 0 without one.
    pub late: u64,
    /// How many requests were not answered at the end though their deadline had passed.
    pub overdue: u64,
    /// How long requests took, from when they were made, in nanoseconds.
    pub latency: Histogram<u64>,
    /// How long they were at a device.
    pub device: Histogram<u64>,
    /// The moments of its series, from the start of the run.
    pub series: Vec<Moment>,
}

/// So many requests that move so many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Activity of an application since the moment before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Payload that arrived at servers, or at the hosts that it sends to, in bytes.
    pub there: u64,
    /// Data that devices finished, in bytes.
    pub stored: u64,
    /// Payload that arrived back, in bytes.
    pub back: u64,
    /// The mean quality factor of the flows that were busy at the end, one if there are none.
    pub quality: f64,
    /// The mean of their alpha; 0 if there are none.
    pub alpha: f64,
    /// Their windows together, in bytes, or what they may have under way at their rates in one
    /// round trip.
    pub window: f64,
}

/// Counters of a port over the counted time.
#[derive(Clone, Debug, PartialEq)]
pub struct Egress {
    /// The nodes that it links: its own, and the one behind it.
    pub between: [String; 2],
    /// Packets that it sent.
    pub packets: u64,
    /// Bytes of them on the wire.
    pub bytes: u64,
    /// The part of its rate that this is, 0 to 1.
    pub busy: f64,
    /// Packets that it marked.
    pub marked: u64,
    /// Packets that it dropped.
    pub dropped: u64,
    /// Bytes that waited or were being sent, on average.
    pub queue_mean: f64,
    /// At most so many at a time, from the start of the run: the sum of what each class has held at
    /// most, and exact where one class uses the port.
    pub queue_most: u64,
}

impl Amount {
    pub(super) const fn add(&mut self, bytes: Bytes) {
        self.requests += 1;
        self.bytes += bytes.0;
    }
}

impl ServiceReport {
    pub(super) fn new(workload: &workload::WorkloadPlan) -> Self {
        // It grows with the longest time: the bounds of a run of 1,000 s would take a fourth of a
        // megabyte for each application.
        let times = Histogram::new(3).expect("three digits");
        Self {
            name: workload.name.clone(),
            class: workload.class,
            requested: Amount::default(),
            done: Amount::default(),
            late: 0,
            overdue: 0,
            latency: times.clone(),
            device: times,
            series: Vec::new(),
        }
    }
}

impl Egress {
    /// Activity of a port between two times.
    pub(super) fn new(
        between: [String; 2],
        rate: Rate,
        [before, after]: [Counters; 2],
        [from, to]: [Span; 2],
    ) -> Self {
        let bytes = after.bytes - before.bytes;
        let seconds = Span(to.0 - from.0).as_seconds().max(f64::MIN_POSITIVE);
        let area = |counters: Counters, until: Span| counters.mean_bytes * until.as_seconds();
        Self {
            between,
            packets: after.packets - before.packets,
            bytes,
            busy: bytes as f64 / seconds / rate.0 as f64,
            marked: after.marked - before.marked,
            dropped: after.dropped - before.dropped,
            queue_mean: (area(after, to) - area(before, from)) / seconds,
            queue_most: after.most_bytes,
        }
    }
}

impl E2eReport {
    /// How long it counted.
    pub fn counted(&self) -> Span {
        Span(self.length.0.saturating_sub(self.skip.0))
    }

    /// A table for people and golden files: requests of each application, bits per second at the
    /// stages of their way, and nanoseconds that they took.
    pub fn table(&self) -> String {
        let heads =
            ["asked", "done", "there", "stored", "back", "p50", "p99", "device p99", "late"];
        let mut text = format!("{:<12}", "");
        heads.iter().for_each(|head| text += &format!(" {head:>12}"));
        text.push('\n');
        for one in &self.applications {
            let rate = |what: fn(&Moment) -> u64| self.rate(one, what) as u64;
            let numbers = [
                one.requested.requests,
                one.done.requests,
                rate(|moment| moment.there),
                rate(|moment| moment.stored),
                rate(|moment| moment.back),
                one.latency.value_at_quantile(0.5),
                one.latency.value_at_quantile(0.99),
                one.device.value_at_quantile(0.99),
                one.late,
            ];
            text += &format!("{:<12}", one.name);
            numbers.iter().for_each(|number| text += &format!(" {number:>12}"));
            text.push('\n');
        }
        text
    }

    /// Moments that are counted.
    pub fn moments<'a>(&self, service: &'a ServiceReport) -> &'a [Moment] {
        let skipped = self.skip.0.div_ceil(self.sample.0) as usize;
        service.series.get(skipped..).unwrap_or_default()
    }

    /// Bits per second of something that happened to an application, on average over the moments
    /// that are counted.
    pub fn rate(&self, service: &ServiceReport, what: impl Fn(&Moment) -> u64) -> f64 {
        let moments = self.moments(service);
        let bytes: u64 = moments.iter().map(what).sum();
        let seconds = self.sample.as_seconds() * moments.len().max(1) as f64;
        bytes as f64 * 8.0 / seconds
    }
}
