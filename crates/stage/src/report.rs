//! Reading a segment's counters (PAIO's `collect`). No request is stopped: every counter is read by
//! itself, so a report may be a few requests out of step with itself, and never loses one.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::concurrent::histogram::{BucketCounts, Histogram};
use tidegate_proto::message::{
    Bypassed, ChannelReport, Coverage, FromStage, GateReport, StageReport, StorageReport,
};
use tidegate_proto::stage::plan::Plan;

use crate::bypass::{BYPASSES, Bypass};
use crate::census::Census;
use crate::clock;
use crate::gate;
use crate::segment::Segment;

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn read(
    segment: &Segment,
    plan: &Plan,
    census: &Census,
    round: u64,
    detail: bool,
) -> FromStage {
    let counts = |histogram: &Histogram| match detail {
        true => histogram.counts(),
        false => BucketCounts::default(),
    };
    let channels = plan.channels().filter_map(|(name, channel)| {
        let cell = segment.channels.get(usize::from(channel.number))?;
        Some(ChannelReport {
            name: name.into(),
            operations: cell.passed.operations(),
            bytes: cell.passed.bytes(),
            waited_ns: value(&cell.waited),
            waiting: counts(&cell.waiting),
            service: counts(&cell.service),
        })
    });
    // Under a name that no channel can have.
    let unmatched = ChannelReport {
        operations: segment.unmatched.passed.operations(),
        bytes: segment.unmatched.passed.bytes(),
        ..ChannelReport::default()
    };
    let gates = plan.gates().filter_map(|(name, planned)| {
        let cell = segment.gates.get(usize::from(planned.number))?;
        Some(GateReport {
            name: name.into(),
            delayed: value(&cell.delayed),
            waited_ns: value(&cell.waited),
            waiting_now: cell.sleepers.load(Ordering::Relaxed),
            waiting_tokens: gate::waiting_tokens(segment, planned.number),
            waiting: counts(&cell.waiting),
            rate: planned.rate,
        })
    });
    FromStage::Report(StageReport {
        round,
        at_ns: clock::now(&segment.header.clock).0,
        channels: channels.chain([unmatched]).collect(),
        gates: gates.collect(),
        processes: census.count(),
        device_bytes: census.moved().by_device,
        coverage: coverage(segment, census),
    })
}

/// Operations and bytes of every channel by its name, and the bytes of requests that matched no
/// rule.
pub(crate) fn channels(segment: &Segment, plan: &Plan) -> (Vec<(String, u64, u64)>, u64) {
    let channels = plan.channels().filter_map(|(name, channel)| {
        let passed = &segment.channels.get(usize::from(channel.number))?.passed;
        Some((name.to_owned(), passed.operations(), passed.bytes()))
    });
    (channels.collect(), segment.unmatched.passed.bytes())
}

/// The work of the storage; none before a request was timed for it.
pub(crate) fn storage(segment: &Segment) -> Option<FromStage> {
    let cell = &segment.storage;
    // Answers are read before what has begun, so that no answer is without its request.
    let service = cell.service.counts();
    // Those that are lost have begun.
    let begun = cell.begun.operations();
    let lost = cell.lost.load(Ordering::Relaxed);
    let report = StorageReport {
        reads: cell.reads.operations(),
        read_bytes: cell.reads.bytes(),
        writes: cell.writes.operations(),
        written_bytes: cell.writes.bytes(),
        service,
        begun: begun.saturating_sub(lost),
    };
    (begun > 0).then_some(FromStage::Storage(report))
}

/// Bytes that the stage saw, and the calls and bytes that passed it by.
pub(crate) fn coverage(segment: &Segment, census: &Census) -> Coverage {
    let used = segment.header.channels.load(Ordering::Relaxed) as usize;
    let channels = segment.channels.iter().take(used).chain([&segment.unmatched]);
    let bypassed = |(reason, name, _): &(Bypass, &str, &str)| {
        let counters = &segment.bypasses[*reason as usize];
        let (calls, bytes) = (counters.operations(), counters.bytes());
        (calls > 0).then(|| Bypassed { reason: (*name).into(), calls, bytes })
    };
    Coverage {
        seen_bytes: channels.map(|channel| channel.passed.bytes()).sum(),
        syscall_bytes: census.moved().by_calls,
        bypasses: BYPASSES.iter().filter_map(bypassed).collect(),
    }
}
