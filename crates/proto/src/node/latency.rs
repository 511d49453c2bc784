//! Times of a shard's requests, by tenant and operation.
//!
//! Tenants take turns, so their counters are rarely in the processor's nearest cache. Counting a
//! request that did not wait, or not long, touches two cache lines.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::scheduling::scheduler::Slot;
use tidegate_model::Time;

use super::request::NodeRequest;
use crate::stats::latency::{BUCKETS, LatencyCounts, OPERATIONS, RequestLatency, bucket_of};
use crate::stats::message::NodeLatency;

/// The times of requests in a shard, by the index of their slot.
#[derive(Debug, Default)]
pub(super) struct ShardLatency(Vec<SlotLatency>);

/// The times of a slot's requests. An operation takes memory from its first request on.
#[derive(Debug)]
#[repr(align(64))]
struct SlotLatency {
    slot: Slot,
    operations: [Option<Box<Times>>; OPERATIONS.len()],
}

/// Times of requests of one operation. The first cache line has what counts a quick request.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Times {
    queued_ns: u64,
    latency: LatencyCounts,
    /// Queue times by bucket, from the second one on. All others are in the first bucket.
    queued: [u64; BUCKETS - 1],
}

/// The latencies and queue times of a tenant's requests, by operation.
pub(super) type Sums = [(LatencyCounts, LatencyCounts); OPERATIONS.len()];

impl ShardLatency {
    /// Counts a request of a slot that the node has the reply to now.
    #[inline]
    pub(super) fn record<B>(&mut self, now: Time, slot: Slot, request: &NodeRequest<B>) {
        let index = slot.index();
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || SlotLatency::new(Slot::UNATTRIBUTED));
        }
        let entry = &mut self.0[index];
        if entry.slot != slot {
            // Another tenant has the index now.
            *entry = SlotLatency::new(slot);
        }
        let times = entry.operations[usize::from(request.operation)].get_or_insert_default();
        let queued = request.dispatched.since(request.arrived);
        times.latency.record(now.since(request.arrived));
        times.queued_ns = times.queued_ns.wrapping_add(queued.0);
        if let Some(bucket) = bucket_of(queued).checked_sub(1) {
            times.queued[bucket] += 1;
        }
    }

    /// Adds the times of a slot's requests to `sums`.
    pub(super) fn add_to(&self, sums: &mut Sums, slot: Slot) {
        let entry = self.0.get(slot.index()).filter(|entry| entry.slot == slot);
        for (at, times) in entry.iter().flat_map(|entry| entry.operations.iter().enumerate()) {
            if let Some(times) = times {
                let (latency, queued) = &mut sums[at];
                *latency = latency.plus(&times.latency);
                *queued = queued.plus(&times.queued());
            }
        }
    }
}

impl SlotLatency {
    const fn new(slot: Slot) -> Self {
        Self { slot, operations: [const { None }; OPERATIONS.len()] }
    }
}

impl Times {
    fn queued(&self) -> LatencyCounts {
        let mut counts = LatencyCounts { total_ns: self.queued_ns, ..LatencyCounts::default() };
        counts.buckets[1..].copy_from_slice(&self.queued);
        counts.buckets[0] = self.latency.requests() - counts.requests();
        counts
    }
}

/// Appends the times of a tenant's requests.
pub(super) fn report(tenant: &str, sums: &Sums, all: &mut NodeLatency) {
    for (operation, (latency, queued)) in OPERATIONS.iter().zip(sums) {
        if latency.requests() > 0 {
            let (tenant, operation) = (String::from(tenant), String::from(*operation));
            let latency = RequestLatency { tenant, operation, counts: *latency };
            all.queued.push(RequestLatency { counts: *queued, ..latency.clone() });
            all.requests.push(latency);
        }
    }
}
