//! `tidegate-lab bench scheduler`: processor time and memory of a node's scheduler, beside Ceph's
//! dmclock, which also decides by reservation, limit and weight.
//!
//! The unit of measurement is a *pair*: one request is served, and the next request of the same
//! stream arrives. One thread makes 100,000 pairs in a second of virtual time, with [`DEPTH`]
//! requests of every stream waiting. No clock is read. Half of the capacity is reserved in equal
//! parts, limits are 16 times an equal share, and weights go from 1 to 8.
//!
//! Our scheduler decides as [`Discipline::Unified`](tidegate_model::Discipline::Unified), and its
//! time includes the work of a node at a request's completion and at the end of a period. dmclock
//! gets each request object back that it returned, so its time includes no allocation.
//!
//! `probes.rs` compares the decisions of both.

use std::sync::Mutex;

use tidegate_model::Span;

use super::Row;
use super::window::{BUSY, Contestant, Ours, WindowPlan, contest};
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

use bed::{Bed, DEPTH, RequestStream};
use peer::{PEER, SchedulerPeer};

mod bed;
mod peer;
mod probes;
mod threads;

const BENCH: &str = "scheduler";
/// Pairs per second of virtual time.
const RATE: u64 = 100_000;
const STEP: Span = Span(Span::SECOND.0 / RATE);
/// How many times an equal share a limit is.
const LOOSE: u64 = 16;
/// Weights go from one to this.
const WEIGHTS: u32 = 8;
/// Numbers of streams, and the most time of a pair with so many, in nanoseconds.
const PAIRS: [(usize, f64); 4] = [(10, 60.0), (100, 100.0), (1_000, 170.0), (10_000, 400.0)];
const PAIRS_QUICK: usize = 2;
/// With more streams than this, windows are so many times as long, so that each of ours meets all
/// of them. Twice that again was too long to be left alone in one window on a busy machine.
const MANY: usize = 1_000;
const MANY_SCALE: u64 = 2;
/// The number of streams when another one comes, and the most time of that, in nanoseconds.
const JOINED: usize = 20_000;
const JOINED_QUICK: usize = 500;
const JOIN_NS: f64 = 1_000.0;
/// Streams whose memory is measured: so many that the memory of the process itself is negligible.
const STREAMS: u32 = 1_000_000;
const STREAMS_QUICK: u32 = 10_000;
/// The most memory of a stream, in bytes, without its requests.
const STREAM_BYTES: f64 = 256.0;

/// Measures pairs, threads, joins and memory.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let program = match plan.is_full() {
        true => peer::program(),
        false => Err("only measured in full".into()),
    };
    let pairs = if plan.is_full() { &PAIRS[..] } else { &PAIRS[..PAIRS_QUICK] };
    for (count, promise) in pairs {
        interrupt.check()?;
        for (row, is_promised) in measure_pairs(plan, *count, &|| SchedulerPeer::start(&program)) {
            let promised = plan.is_full() && is_promised;
            report(if promised { row.promised(*promise) } else { row });
        }
    }
    interrupt.check()?;
    threads::rows(plan, report);
    interrupt.check()?;
    joins(plan, SchedulerPeer::start(&program), report);
    Ok(())
}

pub(super) fn probe(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let program = peer::program();
    probes::rows(&mut SchedulerPeer::start(&program), interrupt, report)?;
    report(rejoin(plan, SchedulerPeer::start(&program)));
    Ok(())
}

/// So many streams: with a weight, a reservation and a limit each, or with a weight only.
fn streams(count: usize, is_promised: bool) -> Vec<RequestStream> {
    let share = RATE / count as u64;
    let stream = |number| match is_promised {
        true => {
            RequestStream { weight: weight(number), reservation: share / 2, limit: share * LOOSE }
        }
        false => RequestStream::weighing(weight(number)),
    };
    (0..count).map(stream).collect()
}

fn weight(number: usize) -> u32 {
    1 + number as u32 % WEIGHTS
}

/// Two rows, of which the first has a promise.
fn measure_pairs(
    plan: WindowPlan,
    count: usize,
    peer: &dyn Fn() -> Result<SchedulerPeer, String>,
) -> [(Row, bool); 2] {
    let kinds = [true, false].map(|is_promised| streams(count, is_promised));
    let mut ours = kinds.each_ref().map(|streams| {
        let bed = Mutex::new(Bed::waiting(streams, DEPTH));
        Ours::new(move |_, calls| {
            if let Ok(mut bed) = bed.lock() {
                (0..calls).for_each(|_| bed.pair(STEP));
            }
        })
    });
    let mut peers = kinds.each_ref().map(|streams| {
        let mut peer = peer()?;
        peer.prepare_pairs(streams, STEP).map(|()| peer)
    });
    let scale = if count > MANY { MANY_SCALE } else { 1 };
    let plan = WindowPlan { length: Span(plan.length.0 * scale), ..plan };
    let mut all: Vec<(usize, &mut dyn Contestant)> = Vec::new();
    all.extend(ours.iter_mut().map(|ours| (1, ours as &mut dyn Contestant)));
    for peer in peers.iter_mut().flatten() {
        all.push((1, peer));
    }
    let mut values = contest(plan, &mut all).into_iter();
    let [all_on, weights] = [values.next().flatten(), values.next().flatten()];
    let mut row = |case: &str, ours, peer: &Result<SchedulerPeer, String>| {
        let value = match peer {
            Ok(_) => values.next().flatten().ok_or_else(|| BUSY.to_owned()),
            Err(reason) => Err(reason.clone()),
        };
        Row::nanoseconds(BENCH, format!("{count} streams: {case}"), ours).beside(PEER, value)
    };
    [
        (row("a pair, reservation, limit and weight", all_on, &peers[0]), true),
        (row("a pair, weight only", weights, &peers[1]), false),
    ]
}

/// Measures the time of a stream that joins many streams, and the memory of each stream.
fn joins(plan: WindowPlan, peer: Result<SchedulerPeer, String>, report: &mut dyn FnMut(Row)) {
    let joining = RequestStream { reservation: 1, ..RequestStream::weighing(1) };
    let case = "another comes, with a request that is served, and goes";
    let (row, bytes) = join(plan, peer, case, &|bed| bed.visit(joining));
    report(row);
    memory(plan, bytes).into_iter().for_each(report);
}

/// The time of a known stream that comes back.
fn rejoin(plan: WindowPlan, peer: Result<SchedulerPeer, String>) -> Row {
    let case = "one comes back, with a request that is served";
    join(plan, peer, case, &|bed| bed.rejoin(0)).0
}

/// The time of one call among many streams that have a request each, and the memory of a stream at
/// the peer. The first stream has a reservation and no request. The peer has one more stream at
/// each call.
fn join(
    plan: WindowPlan,
    peer: Result<SchedulerPeer, String>,
    case: &str,
    call: &(dyn Fn(&mut Bed) + Sync),
) -> (Row, Result<f64, String>) {
    let count = if plan.is_full() { JOINED } else { JOINED_QUICK };
    let mut peer = peer.and_then(|mut peer| Ok((peer.prepare_joins(count)?, peer)));
    let mut streams = vec![RequestStream::weighing(1); count];
    streams[0].reservation = u64::MAX;
    let bed = Mutex::new(Bed::waiting_but_first(&streams));
    let mut ours = Ours::new(|_, calls| {
        if let Ok(mut bed) = bed.lock() {
            (0..calls).for_each(|_| call(&mut bed));
        }
    });
    let mut all: Vec<(usize, &mut dyn Contestant)> = vec![(1, &mut ours)];
    if let Ok((_, peer)) = &mut peer {
        all.push((1, peer));
    }
    let mut values = contest(plan, &mut all).into_iter();
    let row = Row::nanoseconds(BENCH, format!("{count} streams: {case}"), values.next().flatten());
    let row = if plan.is_full() { row.promised(JOIN_NS) } else { row };
    let theirs = values.next().flatten().ok_or_else(|| BUSY.to_owned());
    let theirs = peer.as_ref().map_err(String::clone).and(theirs);
    let row = row.beside(PEER, theirs);
    let row = match row.peer_value {
        Some(_) => row.noted("a stream that comes and stays".into()),
        None => row,
    };
    (row, peer.map(|(bytes, _)| bytes))
}

/// The memory of a stream in this process: the stream itself, and with a request that waits.
fn memory(plan: WindowPlan, peer: Result<f64, String>) -> [Row; 2] {
    let count = if plan.is_full() { STREAMS } else { STREAMS_QUICK };
    let held = |depth| {
        let before = resident()?;
        let many_streams = bed::many_streams(count, depth);
        let after = resident()?;
        drop(many_streams);
        Some(after.saturating_sub(before) as f64 / f64::from(count))
    };
    let [with_one, with_two] = [1, 2].map(held);
    // The memory of the second request gives that of the first, which is not the stream's.
    let alone = with_one.zip(with_two).map(|(one, two)| 2.0 * one - two);
    let row = Row::less(BENCH, "a stream that waits, without its requests", "B", alone);
    let row = if plan.is_full() { row.promised(STREAM_BYTES) } else { row };
    let row = row.beside(PEER, Err("its memory for requests is not known".into()));
    let one = Row::less(BENCH, "a stream with one request waiting", "B", with_one);
    [row, one.beside(PEER, peer)]
}

/// The bytes of memory that this process has.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_behaves_where_others_go_wrong() {
        let mut rows = Vec::new();
        let mut none = Err("not asked for".into());
        probes::rows(&mut none, &Interrupt::default(), &mut |row| rows.push(row)).unwrap();
        rows.push(rejoin(WindowPlan::TINY, Err("not asked for".into())));
        let missed = rows.iter().filter(|row| row.kept == Some(false)).collect::<Vec<_>>();
        assert!(rows.len() >= 19 && missed.is_empty(), "{missed:#?}");
        assert!(rows.iter().all(|row| row.peer_value.is_none()), "{rows:#?}");
        let refused = rows.iter().filter_map(|row| row.note.as_deref());
        assert!(refused.into_iter().any(|note| note.starts_with("refused: node n can do 1k iops")));
    }

    #[test]
    fn everything_can_be_measured() {
        let mut rows = Vec::new();
        super::rows(WindowPlan::TINY, &Interrupt::default(), &mut |row| rows.push(row)).unwrap();
        assert_eq!(rows.len(), 2 * PAIRS_QUICK + 3 + 3, "{rows:#?}");
        assert!(rows.iter().all(|row| row.kept.is_none()), "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() || row.reason.is_some()), "{rows:#?}");
        assert_eq!(rows[0].reason.as_deref(), Some("only measured in full"));
    }
}
