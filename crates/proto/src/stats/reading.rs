//! A total over restarts: a counter that only grows, except when a new process counts from zero.

use alloc::string::String;

use tidegate_model::{Span, Time, Waits};

use super::message::AnsweredRequests;
use super::minute::Recent;
use super::path::PathTimes;

/// The total of one number, over all processes that have counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meter {
    /// Counted by former processes.
    before: u64,
    /// The last reading of the present process.
    last: u64,
    per_second: u64,
}

impl Meter {
    /// Takes a reading, so long after the one before.
    pub(super) fn read(&mut self, reading: u64, apart: Option<Span>) {
        if reading < self.last {
            self.replace();
        }
        let grown = u128::from(reading - self.last) * u128::from(Span::SECOND.0);
        let per_second = apart.and_then(|apart| grown.checked_div(u128::from(apart.0)));
        self.per_second = u64::try_from(per_second.unwrap_or(0)).unwrap_or(u64::MAX);
        self.last = reading;
    }

    /// Begins with a new process that counts from zero.
    pub(super) fn replace(&mut self) {
        *self = Self { before: self.total(), ..Self::default() };
    }

    /// The last reading of the present process.
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    pub(super) const fn total(&self) -> u64 {
        self.before.saturating_add(self.last)
    }

    /// Growth per second between the last two readings; zero if the readings are old.
    pub(super) const fn per_second(&self, is_fresh: bool) -> u64 {
        if is_fresh { self.per_second } else { 0 }
    }
}

/// The same for a tenant's service at a node, and the waiting times of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitMeter {
    before: Waits,
    last: Waits,
}

impl WaitMeter {
    /// Takes a reading, and returns the growth since the one before.
    pub(super) fn read(&mut self, reading: Waits) -> Waits {
        if reading.operations < self.last.operations {
            self.replace();
        }
        let added = reading.since(&self.last);
        self.last = reading;
        added
    }

    /// Begins with a new process that counts from zero.
    pub(super) fn replace(&mut self) {
        *self = Self { before: self.total(), last: Waits::ZERO };
    }

    pub(super) fn total(&self) -> Waits {
        self.before + self.last
    }
}

/// Where a tenant's requests over a gateway spent their latencies, in the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct PathMeter {
    /// The last reading of the present process; none before the first.
    last: Option<PathTimes>,
    recent: Recent<PathTimes>,
}

impl PathMeter {
    /// Takes a reading. The counts of the first reading may be of any time.
    pub(super) fn read(&mut self, now: Time, reading: PathTimes) {
        let last = self.last.replace(reading);
        let growth = last.map_or(PathTimes::default(), |last| reading.since(&last));
        self.recent.add(now, growth);
    }

    /// Begins with a new process that counts from zero.
    pub(super) fn replace(&mut self) {
        self.last = Some(PathTimes::default());
    }

    /// The growth in the last minute.
    pub(super) fn sum(&self, now: Time) -> PathTimes {
        self.recent.sum(now)
    }
}

/// The totals of the numbers of an [`AnsweredRequests`].
#[derive(Clone, Debug, Default)]
pub(super) struct FlowMeter {
    pub(super) name: String,
    pub(super) requests: Meter,
    pub(super) bytes: Meter,
    pub(super) errors: Meter,
}

impl FlowMeter {
    pub(super) fn read(&mut self, flow: &AnsweredRequests, apart: Option<Span>) {
        self.requests.read(flow.requests, apart);
        self.bytes.read(flow.bytes, apart);
        self.errors.read(flow.errors, apart);
    }

    pub(super) fn replace(&mut self) {
        for meter in [&mut self.requests, &mut self.bytes, &mut self.errors] {
            meter.replace();
        }
    }
}
