//! The measured capacity of a resource of files: what stages saw of the storage goes into the
//! search for its budget ([`tidegate_algo::capacity::search`]), and the budget of the next cycle
//! comes out.
//!
//! Every stage times all reads and writes of the resource, and reports how many were answered, what
//! they moved and how long they took. In each cycle the growth of all stages together is one
//! interval of the search, as long as the longest between two reports; the growth of a stage whose
//! reports are closer together is scaled to that. Requests are held back by the budget if waits at
//! buckets, but for those at a tenant's own limit, add up to an eighth of the interval: one thread
//! that waits for an eighth of its time could do more. [`latency`](super::latency) says whose
//! latency is compared with the bound.
//!
//! Bound: what is not read and written through stages is not seen. Where others use the storage,
//! the capacity is what they leave. Data that the page cache has costs little time, so it counts as
//! cheap requests of the device. Flushes are in no time of any request.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tidegate_algo::capacity::search::{
    BudgetSearch, DeviceRates, DeviceSample, Evidence, Transfers,
};
use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_model::gate::{Burst, Unit};
use tidegate_model::policy::{GateKind, Levels, Resource};
use tidegate_model::{Event, Iops, Policy, Rate, Span};

use super::latency::{LatencySample, Requester};
use super::window_stats::Waits;
use crate::message::StorageReport;
use crate::status::MeasuredStatus;

/// The least time that is evidence: in a shorter one, too few requests of a disk complete.
const INTERVAL_MIN: Span = Span(100 * Span::MILLISECOND.0);

/// Requests are held back if they waited for one part in so many of an interval.
const HELD_PART: u64 = 8;

/// A capacity has changed if it differs by one part in so many from that of the last event.
const CHANGED_PART: u64 = 4;

/// The weight of one interval in what the storage yields: three seconds of intervals of 200 ms.
const AVERAGED: f64 = 1.0 / 16.0;

/// And if it does so for so long: on its way, it is no news.
const CHANGED_FOR: Span = Span::SECOND;

/// The burst of all tenants together that keeps a bound of latency: a queue of a quarter of it.
pub(super) fn burst_within(bound: Span) -> Burst {
    let Burst::Time(most) = Burst::DEFAULT else { return Burst::DEFAULT };
    Burst::Time(Span(bound.0 / 4).min(most))
}

/// The work of the storage as one stage saw it.
#[derive(Debug, Default)]
pub(super) struct StorageView {
    /// The storage's part of the report that follows.
    pub(super) reported: Option<StorageReport>,
    seen: Option<StorageReport>,
    service: Option<BucketCounts>,
    /// Requests without an answer whose programs are gone.
    lost: u64,
    is_waiting: bool,
    /// Since the search took it in.
    fresh: Growth,
}

/// Work of some time.
#[derive(Debug, Default)]
struct Growth {
    span: Span,
    done: Transfers,
    service: Waits,
    /// Time that requests waited at gates.
    held: Span,
}

impl StorageView {
    /// Takes in what was reported, `interval` after the report before; an interval of zero tells no
    /// rate.
    pub(super) fn on_report(&mut self, interval: Span, is_new: bool, is_alive: bool) {
        let mut report = self.reported.take().unwrap_or_default();
        let service = core::mem::take(&mut report.service);
        if is_new {
            self.seen = Some(StorageReport::default());
            self.service = Some(Default::default());
        }
        let answered = report.reads.saturating_add(report.writes);
        let open = report.begun.saturating_sub(answered);
        if !is_alive {
            self.lost = open;
        }
        self.is_waiting = open > self.lost;
        let before = self.seen.replace(report.clone()).unwrap_or_else(|| report.clone());
        let grown = |now: u64, before: u64| now.checked_sub(before);
        let done = (|| {
            Some(Transfers {
                reads: grown(report.reads, before.reads)?,
                read_bytes: grown(report.read_bytes, before.read_bytes)?,
                writes: grown(report.writes, before.writes)?,
                written_bytes: grown(report.written_bytes, before.written_bytes)?,
            })
        })();
        self.fresh.service.add(&mut self.service, service);
        // Counters that went back have begun anew at an unknown time.
        let Some(done) = done.filter(|_| interval > Span::ZERO) else { return };
        let fresh = &mut self.fresh;
        fresh.span = fresh.span.saturating_add(interval);
        fresh.done = fresh.done.and(done);
    }

    /// Requests waited for so long at gates in the interval of the last report.
    pub(super) fn on_held(&mut self, held: Span) {
        self.fresh.held = self.fresh.held.saturating_add(held);
    }
}

/// The search for the capacity of a resource.
#[derive(Debug)]
pub(super) struct Measured {
    resource: String,
    bound: Span,
    search: BudgetSearch,
    /// Operations and bytes per second that were answered while the budget held requests back, over
    /// some seconds; zero before there were any.
    yielded: [f64; 2],
    /// The latency of the last interval that counts.
    p99: Option<Span>,
    /// The search as it was at the last event, and for how long it has differed since.
    announced: BudgetSearch,
    changed: Span,
}

impl Measured {
    /// The search under a policy as stages see it, from what was found under the one `before`;
    /// none where the capacity is stated.
    pub(super) fn under(policy: &Policy, before: Option<Self>) -> Option<Self> {
        let resource = policy.resource_at(GateKind::Stage)?;
        let bound = resource.measured?;
        let reserved = DeviceRates {
            operations: policy.reserved(Unit::Operations),
            bytes: policy.reserved(Unit::Bytes),
        };
        let name = resource.name.clone();
        // The same name is the same storage, unless the operator has moved it; then it is found.
        if let Some(mut same) = before.filter(|before| before.resource == name) {
            same.bound = bound;
            same.search.promise(bound, reserved);
            return Some(same);
        }
        let level = |unit| Resource::MEASURED_START.get(unit).unwrap_or(1);
        let start = DeviceRates { operations: level(Unit::Operations), bytes: level(Unit::Bytes) };
        let search = BudgetSearch::new(start, bound, reserved);
        let announced = search.clone();
        let (yielded, changed) = ([0.0; 2], Span::ZERO);
        Some(Self { resource: name, bound, search, yielded, p99: None, announced, changed })
    }

    /// The budget of the next cycle.
    pub(super) fn budget(&self) -> Levels {
        let DeviceRates { operations, bytes } = self.search.budget().rates;
        Levels { operations: Some(Iops(operations)), bandwidth: Some(Rate(bytes)) }
    }

    /// Takes in what all stages saw since the last cycle, once that is enough. Returns the event of
    /// a change.
    pub(super) fn observe<'a>(
        &mut self,
        views: impl Iterator<Item = (Requester, &'a mut StorageView)>,
    ) -> Option<Event> {
        let views: Vec<_> = views.collect();
        let interval = views.iter().map(|(_, view)| view.fresh.span).max()?;
        if interval < INTERVAL_MIN {
            return None;
        }
        let mut sample = DeviceSample { interval, ..DeviceSample::default() };
        let (mut latency, mut held) = (LatencySample::default(), Span::ZERO);
        for (requester, view) in views {
            let fresh = core::mem::take(&mut view.fresh);
            sample.is_waiting |= view.is_waiting;
            if fresh.span == Span::ZERO {
                continue;
            }
            let scaled = |amount: u64| {
                let amount = u128::from(amount) * u128::from(interval.0);
                u64::try_from(amount / u128::from(fresh.span.0)).unwrap_or(u64::MAX)
            };
            let Transfers { reads, read_bytes, writes, written_bytes } = fresh.done;
            sample.done = sample.done.and(Transfers {
                reads: scaled(reads),
                read_bytes: scaled(read_bytes),
                writes: scaled(writes),
                written_bytes: scaled(written_bytes),
            });
            held = held.saturating_add(Span(scaled(fresh.held.0)));
            latency.add(requester, &fresh.service);
        }
        sample.is_held = held.0 >= interval.0 / HELD_PART;
        self.p99 = latency.p99(self.bound);
        sample.p99 = self.p99.unwrap_or(Span::ZERO);
        // Answers without a known latency are no evidence that the storage has time left.
        sample.is_held &= self.p99.is_some();
        self.search.observe(&sample);
        if sample.is_held && self.search.evidence() != Evidence::Stalled {
            self.average(&sample);
        }
        self.news(interval)
    }

    /// Takes an interval into the average of what the storage yields. The costs of the search tell
    /// of few intervals, and those of a drive that cleans differ by a half from one to the next.
    fn average(&mut self, sample: &DeviceSample) {
        let Transfers { reads, read_bytes, writes, written_bytes } = sample.done;
        let seconds = sample.interval.0 as f64 / Span::SECOND.0 as f64;
        for (yielded, (one, other)) in
            self.yielded.iter_mut().zip([(reads, writes), (read_bytes, written_bytes)])
        {
            let now = (one as f64 + other as f64) / seconds;
            *yielded += (now - *yielded) * if *yielded == 0.0 { 1.0 } else { AVERAGED };
        }
    }

    /// The event of a change of the storage that has lasted.
    fn news(&mut self, interval: Span) -> Option<Event> {
        let (before, now) = (self.announced.capacity_as(&self.search), self.search.capacity());
        let (least, most) =
            (before.operations.min(now.operations), before.operations.max(now.operations));
        if most - least < most / CHANGED_PART {
            self.changed = Span::ZERO;
            return None;
        }
        self.changed = self.changed.saturating_add(interval);
        if self.changed < CHANGED_FOR {
            return None;
        }
        (self.announced, self.changed) = (self.search.clone(), Span::ZERO);
        let reason = match now.operations > before.operations {
            true => "requests were held back, and the storage answered well within the bound",
            false => "requests took longer than the bound, or as long with fewer answers",
        };
        Some(Event::CapacityFound {
            resource: self.resource.clone(),
            before_operations_per_second: before.operations,
            operations_per_second: now.operations,
            bytes_per_second: now.bytes,
            reason: reason.into(),
        })
    }

    pub(super) fn status(&self) -> MeasuredStatus {
        let [operations, bytes] = self.yielded.map(|yielded| (yielded + 0.5) as u64);
        MeasuredStatus {
            resource: self.resource.clone(),
            latency_bound_ns: self.bound.0,
            latency_p99_ns: self.p99.map(|p99| p99.0),
            operations_per_second: operations,
            bytes_per_second: bytes,
            evidence: evidence(self.search.evidence()).to_string(),
            is_short: self.search.budget().is_short,
            write_cost_permille: self.search.write_cost(4096),
        }
    }
}

/// The word for evidence in a status.
const fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Idle => "idle",
        Evidence::Easy => "easy",
        Evidence::Full => "full",
        Evidence::Slow => "slow",
        Evidence::Stalled => "stalled",
    }
}

#[cfg(test)]
mod tests {
    use tidegate_algo::concurrent::histogram::BucketIndex;

    use super::*;

    const INTERVAL: Span = Span(200 * Span::MILLISECOND.0);

    /// The budget in operations per second, after intervals in which gates held requests back and
    /// the storage answered as many reads as it was given, each in this time.
    fn budget_after(intervals: u64, took: Option<Span>) -> u64 {
        let text = r#"
            [[resource]]
            name = "disk"
            path = "/data/**"
            capacity = "measured"
            latency = "p99 < 20ms"
        "#;
        let policy = Policy::parse(text).unwrap().at(GateKind::Stage);
        let (mut measured, mut view) =
            (Measured::under(&policy, None).unwrap(), StorageView::default());
        for number in 0..=intervals {
            let reads = 20_000 * number;
            let service = took.map(|took| (BucketIndex::of(took), reads));
            view.reported = Some(StorageReport {
                begun: reads,
                reads,
                read_bytes: reads << 12,
                service: service.into_iter().collect(),
                ..StorageReport::default()
            });
            view.on_report(INTERVAL, false, true);
            view.on_held(INTERVAL);
            let _ = measured.observe(core::iter::once((Requester::default(), &mut view)));
        }
        measured.budget().get(Unit::Operations).unwrap()
    }

    #[test]
    fn answers_without_a_latency_are_no_evidence_of_a_fast_storage() {
        let start = budget_after(0, None);
        assert!(budget_after(20, Some(Span(100_000))) > start * 3 / 2, "fast answers are");
        assert_eq!(budget_after(20, None), start);
    }
}
