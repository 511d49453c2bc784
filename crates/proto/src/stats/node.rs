//! Counters that the controller reads from one storage node.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::{Discipline, TenantIndex, Time, Waits};

use super::latency::PeerLatency;
use super::message::NodeCounts;
use super::minute::{Doing, Minute, Work};
use super::reading::{Meter, WaitMeter};
use super::{PeerReading, STALE, moved};
use crate::status::cluster::NodeStatus;

#[derive(Debug, Default)]
pub(super) struct NodeStats {
    pub(super) name: String,
    pub(super) line: PeerReading,
    served: Meter,
    /// By index in the policy.
    tenants: Vec<WaitMeter>,
    pub(super) latency: PeerLatency,
    /// Queue times.
    pub(super) queue: PeerLatency,
    last: NodeCounts,
    pub(super) minute: Minute,
    /// When it was read last with the policy in force, and its service in all by then.
    watched: Option<(Time, u64)>,
}

impl NodeStats {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The tenants are those of another policy. Both map names to indexes.
    pub(super) fn renumber(
        &mut self,
        earlier: &BTreeMap<String, usize>,
        indexes: &BTreeMap<String, usize>,
    ) {
        self.tenants = moved(earlier, indexes, &mut self.tenants);
        self.latency.retain(indexes);
        self.queue.retain(indexes);
        let pairs = earlier.iter().filter_map(|(name, from)| Some((*from, *indexes.get(name)?)));
        let pairs: BTreeMap<usize, usize> = pairs.collect();
        self.minute.renumber(|from| pairs.get(&from.index()).copied().map(TenantIndex::at));
    }

    /// It was accepted on a new connection; `is_blank` says that it has no plan.
    pub(super) fn begin(&mut self, is_blank: bool) {
        if is_blank && self.last.revision != 0 {
            self.replace();
        }
    }

    /// The process is another one.
    fn replace(&mut self) {
        self.served.replace();
        self.tenants.iter_mut().for_each(WaitMeter::replace);
        self.latency.replace();
        self.queue.replace();
    }

    /// Takes a reading. Indexes mean something only if the node has the policy in force.
    pub(super) fn read(&mut self, now: Time, mut counts: NodeCounts, is_current: bool) {
        let apart = self.line.on_read(now);
        if counts.served < self.served.last() {
            self.replace();
        }
        self.served.read(counts.served, apart);
        if is_current {
            let total = self.served.total();
            let watched = self.watched.replace((now, total));
            // Counts since a reading that is too old may be of any time.
            let watched = watched.filter(|(since, _)| now.since(*since) <= STALE);
            let mut work = Work::default();
            if let Some((since, before)) = watched {
                let is_full = counts.in_flight >= most(&counts);
                let (full, operations) = (u32::from(is_full), total.saturating_sub(before));
                work = Work { span: now.since(since), readings: 1, full, operations };
                self.minute.add(since, now, work);
            }
            for (index, waits) in core::mem::take(&mut counts.tenants) {
                let Some(meter) = self.tenants.get_mut(index.index()) else { continue };
                let waits = meter.read(waits);
                if watched.is_some() {
                    let limited = u32::from(waits.limit_ns > 0);
                    self.minute.add_tenant(index, Doing { waits, limited, beside: work });
                }
            }
        }
        self.last = NodeCounts { tenants: Vec::new(), ..counts };
    }

    pub(super) fn fill_status(&self, now: Time, node: &mut NodeStatus) {
        let is_fresh = self.line.is_fresh(now);
        node.total_served_operations = self.served.total();
        node.served_operations_per_second = self.served.per_second(is_fresh);
        let served = node.served_operations_per_second;
        let measured = &mut node.measured_operations_per_second;
        *measured = measured.map(|measured| measured.max(served));
        node.waiting_operations = if is_fresh { self.last.waiting } else { 0 };
        node.in_flight_requests = if is_fresh { self.last.in_flight } else { 0 };
        node.depth_requests = self.last.depth;
        node.scheduler = self.line.read.map(|_| self.last.discipline.name().into());
        node.counted_ns = self.line.age(now);
    }

    /// A tenant's service in all, and the waiting times of its requests.
    pub(super) fn waits(&self, index: usize) -> Waits {
        self.tenants.get(index).map_or(Waits::ZERO, WaitMeter::total)
    }

    /// The order in which it served when it was read last.
    pub(super) const fn discipline(&self) -> Discipline {
        self.last.discipline
    }

    /// The most requests that its store has at a time; zero if it never said.
    pub(super) const fn depth(&self) -> u32 {
        self.last.depth
    }

    /// The most that it has now, if a bound of latency keeps more from it.
    pub(super) fn bound(&self) -> Option<u32> {
        self.last.bound.filter(|bound| *bound < self.last.depth)
    }
}

/// The requests with which a node's store is full.
fn most(counts: &NodeCounts) -> u32 {
    counts.bound.map_or(counts.depth, |bound| bound.min(counts.depth))
}
