//! Probes of schedulers, in virtual time and without chance: known weak points of other schedulers,
//! as the same calls to ours and to the peer.
//!
//! A stream that asks for more than it gets *starves* while it is served less than four fifths of
//! its fair share, looked at window by window.

use tidegate_algo::allocation::admission;
use tidegate_model::{Cluster, Policy, Span};

use super::bed::{Bed, RequestStream, Subject};
use super::peer::{PEER, SchedulerPeer};
use super::{BENCH, Row};
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

/// Below this share of what is fair, in per cent, a stream starves.
const FAIR_PERCENT: u64 = 80;
/// How far off weights may be, in per cent.
const OFF_PERCENT: f64 = 1.0;
/// How long a node of so many requests per second is watched for its streams' shares.
const RATE: u64 = 1_000;
const WATCH: Span = Span(10 * Span::SECOND.0);
/// The window on a node of [`RATE`] with weights alone; that of reservations, which are counted by
/// the period and go first in it, and of a slower node.
const WINDOW: Span = Span(100 * Span::MILLISECOND.0);
const PERIOD: Span = Span::SECOND;

/// Ours.
#[derive(Debug)]
struct Ours(Bed);

impl Subject for Ours {
    fn open(&mut self, streams: &[RequestStream]) -> Result<(), String> {
        self.0 = Bed::new(streams);
        Ok(())
    }

    fn serve(&mut self, length: Span, rate: u64, active: &[usize]) -> Result<Vec<u64>, String> {
        Ok(self.0.serve(length, rate, active))
    }
}

/// A probe of a scheduler, which returns one number.
type Probe<'a> = &'a dyn Fn(&mut dyn Subject) -> Result<f64, String>;

/// Probes both.
pub(super) fn rows(
    peer: &mut Result<SchedulerPeer, String>,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let mut probe = |case: String, unit: &'static str, bound: f64, probe: Probe<'_>| {
        interrupt.check()?;
        let ours = probe(&mut Ours(Bed::new(&[])));
        let theirs = peer.as_mut().map_err(|reason| reason.clone()).and_then(|peer| probe(peer));
        report(Row::less(BENCH, case, unit, ours.ok()).promised(bound).beside(PEER, theirs));
        Ok::<(), Failure>(())
    };
    for seconds in [1, 10, 60, 290] {
        let case = format!("a stream comes back after {seconds} s: one of two starves");
        probe(case, "s", 0.0, &|subject| comes_back(subject, (EVEN, WINDOW), seconds))?;
    }
    for seconds in [10, 60, 240] {
        let case =
            format!("one with half reserved comes back after {seconds} s: one of two starves");
        probe(case, "s", 0.0, &|subject| comes_back(subject, (BALANCED, PERIOD), seconds))?;
    }
    for seconds in [10, 60, 600] {
        let case = format!("one was held by its limit for {seconds} s: one of two starves");
        probe(case, "s", 0.0, &|subject| was_limited(subject, seconds))?;
    }
    for weight in [1, 100, 300, 1_000, 10_000, 333_333] {
        let case = format!("weights {weight} to {}: off by", 3 * weight);
        probe(case, "%", OFF_PERCENT, &|subject| is_off(subject, weight))?;
    }
    interrupt.check()?;
    report(polls(peer));
    report(infeasible(peer));
    Ok(())
}

/// Two streams of one weight.
const EVEN: [RequestStream; 2] = [RequestStream::weighing(1); 2];
/// Clients and best effort of Ceph's profile `balanced` on a node of [`RATE`].
const BALANCED: [RequestStream; 2] = [
    RequestStream { weight: 1, reservation: 1, limit: RATE * 9 / 10 },
    RequestStream { weight: 1, reservation: RATE / 2, limit: 0 },
];

/// The second stream is silent for so long and comes back: for how many seconds one of them
/// starves.
fn comes_back(
    subject: &mut dyn Subject,
    (streams, window): ([RequestStream; 2], Span),
    silent_seconds: u64,
) -> Result<f64, String> {
    subject.open(&streams)?;
    subject.serve(Span::SECOND, RATE, &[0, 1])?;
    subject.serve(Span(silent_seconds * Span::SECOND.0), RATE, &[0])?;
    let watched = (silent_seconds + 5) * Span::SECOND.0;
    starved(subject, (watched / window.0, window), RATE, &[0, 1])
}

/// One stream is held back by its limit for so long; then others join, and what is left for the two
/// first is less than that limit for each: for how many seconds one of those starves.
fn was_limited(subject: &mut dyn Subject, seconds: u64) -> Result<f64, String> {
    let rate = 160;
    let limited = |weight, limit| RequestStream { limit, ..RequestStream::weighing(weight) };
    subject.open(&[RequestStream::weighing(1), limited(1, 40), limited(2, 50), limited(2, 50)])?;
    subject.serve(Span(seconds * Span::SECOND.0), rate, &[0, 1])?;
    // The two that join reach their limits, and leave 60 for the others.
    starved(subject, (5 * seconds, PERIOD), 60 + 50 + 50, &[0, 1, 2, 3])
}

/// For how many seconds one of the first two streams starves, which share what the others leave.
fn starved(
    subject: &mut dyn Subject,
    (windows, window): (u64, Span),
    rate: u64,
    active: &[usize],
) -> Result<f64, String> {
    let mut starved = 0;
    for _ in 0..windows {
        let served = subject.serve(window, rate, active)?;
        let shared = served[0] + served[1];
        let less = served[0].min(served[1]);
        starved += u64::from(less * 2 * 100 < shared * FAIR_PERCENT);
    }
    Ok(starved as f64 * window.as_seconds())
}

/// The deviation of two streams with constant demand from the ratio of their weights, in per cent.
fn is_off(subject: &mut dyn Subject, weight: u32) -> Result<f64, String> {
    subject.open(&[RequestStream::weighing(weight), RequestStream::weighing(3 * weight)])?;
    let served = subject.serve(WATCH, RATE, &[0, 1])?;
    let ratio = served[1] as f64 / served[0] as f64;
    Ok(100.0 * (ratio / 3.0 - 1.0).abs())
}

/// How often a scheduler is polled in vain, in a second in which only what a limit holds back is
/// waiting.
fn polls(peer: &mut Result<SchedulerPeer, String>) -> Row {
    let mut bed = Bed::new(&[RequestStream { limit: 2, ..RequestStream::weighing(1) }]);
    bed.serve(Span::SECOND, RATE, &[0]);
    let theirs = peer.as_mut().map_err(|reason| reason.clone()).and_then(|peer| peer.polls());
    let case = "only what a limit of 2/s holds back waits: looks in vain, in a second";
    Row::less(BENCH, case, "looks", Some(bed.vain() as f64)).promised(0.0).beside(PEER, theirs)
}

const CLUSTER: &str = r#"
    node = [{ name = "n", memory = true, capacity = "1k iops" }]
    volume = [
        { name = "v", size = "1GiB", tenant = "a", nodes = "n" },
        { name = "w", size = "1GiB", tenant = "b", nodes = "n" },
    ]
"#;
const POLICY: &str = r#"
    tenant = [
        { name = "a", reservation = "1500 iops" },
        { name = "b", reservation = "500 iops" },
    ]
"#;

/// Twice as much is reserved as a node can serve. Measures by how much an accepted reservation is
/// missed, in per cent.
fn infeasible(peer: &mut Result<SchedulerPeer, String>) -> Row {
    let case = "reservations of 1,500/s and 500/s accepted by a node of 1,000/s: missed by";
    let missed = |served: u64| 100.0 * (1.0 - served as f64 / (1_500.0 * WATCH.as_seconds()));
    let reserved = |reservation| RequestStream { reservation, ..RequestStream::weighing(1) };
    let probe = |subject: &mut dyn Subject| {
        subject.open(&[reserved(1_500), reserved(500)])?;
        subject.serve(WATCH, RATE, &[0, 1]).map(|served| missed(served[0]))
    };
    let theirs = peer.as_mut().map_err(|reason| reason.clone()).and_then(|peer| probe(peer));
    let (ours, note) = match refusal() {
        // A refused reservation is not missed.
        Some(reason) => (Ok(0.0), format!("refused: {reason}")),
        None => (probe(&mut Ours(Bed::new(&[]))), "accepted".into()),
    };
    let row = Row::less(BENCH, case, "%", ours.ok()).promised(OFF_PERCENT);
    row.beside(PEER, theirs).noted(note)
}

/// Why the controller, and `tidegate check --cluster`, refuse those reservations.
fn refusal() -> Option<String> {
    let policy = Policy::parse(POLICY).ok()?;
    let cluster = Cluster::parse(CLUSTER).ok()?;
    let refusals = admission::admit(&policy, Some(&cluster)).err()?;
    refusals.first().map(ToString::to_string)
}
