use core::ops::Range;

use super::*;
use proptest::prelude::*;
use tidegate_sim::scenario::Arrivals;
use tidegate_sim::workload::{Offered, Phases, Pulse};

const GOOD: &str = r#"
    name = "three classes"
    capacity = "100Gbps"
    delay = "12500ns"
    epsilon = 0.1
    slots = 1600
    [[flow]]
    name = "high"
    share = 3
    offered = { rate = "90Gbps" }
    [[flow]]
    name = "medium"
    share = 2
    offered = { rate = "60Gbps" }
    [[flow]]
    name = "low"
    offered = { rate = "30Gbps" }
"#;

/// The second half of a run.
const SETTLED: Range<usize> = 800..1_600;

fn good() -> DtmPlan {
    DtmPlan::parse(GOOD).unwrap()
}

/// Three classes over a round trip of so many microseconds.
fn classes(round_trip: u64, epsilon: f64) -> DtmPlan {
    DtmPlan { delay: Span(round_trip * 500), epsilon, ..good() }
}

fn started(mut plan: DtmPlan, window: f64) -> DtmPlan {
    plan.flow.iter_mut().for_each(|flow| flow.window = Some(window));
    plan
}

/// Whether the second half of a run is this: shares within 0.3, Q within 0.015, the mean, the least
/// and the greatest queue within three packets, where they are known.
#[track_caller]
fn comes_to(plan: &DtmPlan, shares: [f64; 3], quality: [f64; 3], queue: [f64; 3]) {
    let outcome = run(plan).unwrap();
    let half = outcome.slots.len() / 2..outcome.slots.len();
    let near = |name: &str, seen: &[f64], expected: [f64; 3], off: f64| {
        // A measured value has to be finite, even where no value is expected (NaN).
        let near = |(one, other): (&f64, f64)| {
            one.is_finite() && (other.is_nan() || (one - other).abs() <= off)
        };
        let all = seen.iter().zip(expected).all(near);
        assert!(all, "{name}: {seen:.3?} instead of {expected:?}");
    };
    near("shares", &outcome.shares(half.clone()), shares, 0.3);
    near("Q", &outcome.means(half.clone(), |flow| flow.quality), quality, 0.015);
    near("queue", &outcome.queue(half), queue, 3.0);
}

/// The expected values are of another implementation of the same equations, in another language.
#[test]
fn classes_get_what_they_are_promised() {
    comes_to(&classes(25, 0.01), [49.9, 33.3, 16.8], [1.00, 1.00, 0.99], [140.0, 137.0, 143.0]);
    comes_to(&classes(25, 0.1), [48.6, 33.9, 17.6], [1.03, 0.99, 0.95], [144.0, 131.0, 158.0]);
    comes_to(&classes(62, 0.1), [48.3, 34.0, 17.7], [1.04, 0.98, 0.94], [133.0, 106.0, 160.0]);
    comes_to(&classes(98, 0.1), [48.3, 34.0, 17.7], [1.04, 0.98, 0.94], [121.0, 80.0, 160.0]);
}

#[test]
fn without_an_epsilon_windows_freeze() {
    let plan = started(classes(98, 0.0), 10.0);
    comes_to(&plan, [38.9, 33.3, 16.7], [1.29, 1.00, 1.00], [0.0, 0.0, 0.0]);
    assert_eq!(run(&plan).unwrap().settled(), None);
    // They do not move any more.
    let outcome = run(&plan).unwrap();
    assert_eq!(outcome.flows(SETTLED.start)[0].window, outcome.flows(SETTLED.end - 1)[0].window);
}

#[test]
fn service_as_printed_does_not_converge() {
    let paper = |plan: DtmPlan| DtmPlan { service: LinkService::Paper, ..plan };
    comes_to(&paper(classes(25, 0.1)), [26.4, 26.4, 16.7], [1.9, 1.26, 1.0], [148., 141., 161.]);
    comes_to(&paper(classes(98, 0.1)), [22.8, 22.8, 16.7], [2.2, 1.46, 1.0], [129., 90., 166.]);
    for (window, high, quality) in [(10.0, 38.3, 1.30), (8.333 * 25.0, 38.3, 1.30)] {
        let plan = paper(started(classes(25, 0.01), window));
        comes_to(&plan, [high, 32.9, 16.7], [quality, 1.01, 1.0], [141.0, 139.0, 144.0]);
        assert_eq!(run(&plan).unwrap().settled(), None);
    }
}

#[test]
fn without_quality_all_are_alike() {
    // Without a squeeze it takes long until all are there.
    let plan = |rtt| {
        let classes = classes(rtt, 0.05);
        DtmPlan { cc: CongestionControl::Dctcp, gain: 1.0 / 16.0, slots: 4_000, ..classes }
    };
    comes_to(&plan(25), [35.0, 35.0, 30.0], [1.43, 0.95, 0.56], [140.0, f64::NAN, f64::NAN]);
    comes_to(&plan(98), [35.0, 35.0, 30.0], [1.43, 0.95, 0.56], [132.0, f64::NAN, f64::NAN]);
}

#[test]
fn a_slot_without_the_queue_swings() {
    let bare = DtmPlan { round_trip: RoundTrip::Bare, ..classes(62, 0.01) };
    let outcome = run(&bare).unwrap();
    let [_, least, most] = outcome.queue(SETTLED);
    assert!(least < 1.0 && most > 160.0, "{least} {most}");
    assert_eq!(outcome.settled(), None);
    let way = DtmPlan { round_trip: RoundTrip::OneWay, ..classes(62, 0.01) };
    comes_to(&way, [49.9, 33.3, 16.8], [1.00, 1.00, 0.99], [140.0, 137.0, 143.0]);
}

#[test]
fn what_else_converges() {
    let base = || classes(25, 0.05);
    for plan in [
        DtmPlan { gain: 1.0 / 16.0, ..base() },
        DtmPlan { gain: 1.0, ..base() },
        DtmPlan { gamma: 0.9, ..base() },
        DtmPlan { epsilon: 1e-6, ..base() },
        DtmPlan { threshold: 35, ..base() },
        DtmPlan { threshold: 280, ..base() },
        DtmPlan { threshold: 70, ..classes(98, 0.05) },
    ] {
        let outcome = run(&plan).unwrap();
        let shares = outcome.shares(SETTLED);
        let off = shares.iter().zip([50.0, 33.3, 16.7]).map(|(one, other)| (one - other).abs());
        assert!(off.fold(0.0, f64::max) < 2.5, "{shares:?} with {plan:?}");
    }
    // And what does not.
    let shares = run(&classes(98, 0.5)).unwrap().shares(SETTLED);
    assert!(shares[0] < 45.0, "{shares:?}");
}

/// Slots until all have what they are promised, from different first windows. When the first
/// packets come shifts the second of them by up to a seventh.
#[test]
fn how_long_it_takes() {
    let settled = |plan: &DtmPlan| run(plan).unwrap().settled().unwrap();
    let slots = |rtt: u64| {
        let bare = rtt as f64 * 100.0 / 12.0;
        let plan = || classes(rtt, 0.01);
        [settled(&started(plan(), 10.0)), settled(&plan()), settled(&started(plan(), bare))]
    };
    let near = |seen: [usize; 3], expected: [usize; 3]| {
        let close = seen.iter().zip(expected).all(|(one, other)| one.abs_diff(other) * 6 <= other);
        assert!(close, "{seen:?} instead of {expected:?}");
    };
    near(slots(25), [156, 72, 65]);
    near(slots(62), [316, 141, 119]);
    near(slots(98), [456, 193, 189]);
}

/// Flows with a latency: two that are promised more than there is are squeezed, and leave the room
/// to the one that is promised less.
#[test]
fn flows_with_slack_keep_their_latencies() {
    let mut plan = classes(25, 0.05);
    // The way takes 12.5 us and the marked queue 16.8 us.
    let promised = [Span(25_000), Span(60_000), Span(60_000)];
    for (flow, latency) in plan.flow.iter_mut().zip(promised) {
        flow.latency = Some(latency);
        flow.offered = None;
    }
    let outcome = run(&plan).unwrap();
    let half = SETTLED;
    let shares = outcome.shares(half.clone());
    assert!(shares[0] > 85.0 && shares[1] < 6.0, "{shares:?}");
    let quality = outcome.means(half.clone(), |flow| flow.quality);
    // 12.5 us and the whole queue, of which each has as large a part as of the rate.
    let [queue, _, _] = outcome.queue(half.clone());
    let latency = 12.5 + queue * 0.12;
    assert!((quality[0] / (latency / 25.0) - 1.0).abs() < 0.02, "{quality:?} {latency}");
    assert_eq!(outcome.promised, [None, None, None]);
    // One alike for all divides the link evenly, kept or not.
    for latency in [Span(20_000), Span(60_000)] {
        plan.flow.iter_mut().for_each(|flow| flow.latency = Some(latency));
        let shares = run(&plan).unwrap().shares(half.clone());
        assert!(shares.iter().all(|share| (share - 33.3).abs() < 1.0), "{shares:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No packet is made or lost, the link carries no more than it can, and a seed is a run.
    #[test]
    fn packets_are_kept(
        rates in prop::collection::vec(1u64..120, 1..5),
        seed: u64,
        paper: bool,
        poisson: bool,
        threshold in 1u32..300,
        delay in 1u64..30,
    ) {
        let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
        let flow = |(rate, share): (&u64, u32)| Sender {
            name: format!("{share}"),
            share,
            latency: None,
            offered: Some(Open {
                rate: Offered::Bytes(Rate(rate * 125_000_000)),
                arrivals,
                pulse: None,
            }),
            window: None,
        };
        let plan = DtmPlan {
            seed,
            threshold,
            delay: Span(delay * 1_000),
            service: if paper { LinkService::Paper } else { LinkService::Fcfs },
            slots: 60,
            flow: rates.iter().zip(1..).map(flow).collect(),
            ..good()
        };
        let outcome = run(&plan).unwrap();
        let capacity = 100.0 / 12.0 / 1e3;
        let mut sent = vec![[0.0; 2]; rates.len()];
        for (number, slot) in outcome.slots.iter().enumerate() {
            let flows = outcome.flows(number);
            for (flow, [sent, served]) in flows.iter().zip(&mut sent) {
                *sent += flow.sent;
                *served += flow.served;
                prop_assert!((*sent - *served - flow.queue).abs() < 1e-3);
                prop_assert!(flow.sent <= flow.window && flow.window >= 1.0);
                prop_assert!((0.0..=1.0).contains(&flow.alpha));
            }
            let served: f64 = flows.iter().map(|flow| flow.served).sum();
            prop_assert!(served <= capacity * slot.length + 1e-6);
            let queue: f64 = flows.iter().map(|flow| flow.queue).sum();
            prop_assert!((queue - slot.queue).abs() < 1e-6);
            // First come, first served: no link idles while packets wait.
            let busy = paper || queue < 1e-6 || served > capacity * slot.length - 1e-6;
            prop_assert!(busy, "{served} of {}", capacity * slot.length);
            // A flow sends no packet before the packet arrives in its backlog.
            let now = slot.at.0 as f64 / 1e12;
            for (rate, [sent, _]) in rates.iter().zip(&sent) {
                let came = *rate as f64 * 1e9 / 12_000.0 * now + 1.0;
                prop_assert!(poisson || *sent <= came + 1e-3, "{sent} of {came}");
            }
        }
        prop_assert_eq!(&outcome, &run(&plan).unwrap());
    }
}

#[test]
fn arrivals_without_memory_come_to_the_same() {
    let mut plan = classes(25, 0.01);
    for flow in &mut plan.flow {
        flow.offered.as_mut().unwrap().arrivals = Arrivals::Poisson;
    }
    let first = run(&plan).unwrap();
    let shares = first.shares(SETTLED);
    assert!((shares[0] - 49.9).abs() < 1.0, "{shares:?}");
    // All are served as fast as packets come while the link has room.
    plan.capacity = Rate(125_000_000_000);
    let served = |seed| run(&DtmPlan { seed, ..plan.clone() }).unwrap().shares(SETTLED);
    let [one, other] = [served(1), served(2)];
    assert!(one != other && (one[0] - 9.0).abs() < 0.3, "{one:?} {other:?}");
}

#[test]
fn what_is_printed() {
    let plan = DtmPlan { slots: 8, name: "x".into(), ..good() };
    let mut outcome = run(&plan).unwrap();
    assert_eq!(outcome.table(4).lines().count(), 5);
    outcome.names[0] = "a\"b\n".into();
    let mut csv = Vec::new();
    outcome.write_csv(&mut csv).unwrap();
    assert_eq!(String::from_utf8(csv).unwrap().matches("a\"\"b\n").count(), 8);
    // Nothing is sent while nothing is there: a quality that is not finite is none.
    let mut idle = DtmPlan { slots: 3, ..good() };
    idle.flow[2].offered.as_mut().unwrap().pulse =
        Some(Pulse { on: Span(1), off: Span(1_000_000_000), phases: Phases::Fixed });
    let idle = run(&idle).unwrap();
    assert!((0..3).flat_map(|slot| idle.flows(slot)).any(|flow| !flow.quality.is_finite()));
}

#[track_caller]
fn refused(from: &str, to: &str, message: &str) {
    assert!(GOOD.contains(from));
    let error = DtmPlan::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn what_is_refused() {
    assert_eq!(good().flow[2].share, 1);
    refused("epsilon = 0.1", "", "missing field `epsilon`");
    refused("epsilon = 0.1", "epsilon = 1.1", "from 0.0 to 1.0");
    refused("epsilon", "espilon", "espilon");
    refused("epsilon", "gain = 0.0\n    epsilon", "more than 0.0");
    refused("epsilon", "gamma = 1.0\n    epsilon", "less than 1.0");
    refused("epsilon", "alpha = -0.1\n    epsilon", "alpha: from 0.0");
    refused("epsilon", "threshold = 0\n    epsilon", "at least 1 packet");
    refused("epsilon", "packet = \"0B\"\n    epsilon", "at least 1 byte");
    refused("epsilon", "service = \"wfq\"\n    epsilon", "fcfs");
    refused("100Gbps", "1kB/s", "one packet in a second");
    refused("12500ns", "2s", "at most 1s");
    refused("slots = 1600", "slots = 0", "from 1 to");
    refused("share = 3", "share = 0", "flow.0.share");
    refused("share = 3", "latency = \"0s\"", "flow.0.latency");
    refused("share = 3", "window = 0.5", "flow.0.window");
    refused("90Gbps", "0Gbps", "flow.0.offered.rate");
    let mut many = DtmPlan { slots: 10_000_000, ..good() };
    many.flow.extend([many.flow[0].clone(), many.flow[1].clone()]);
    let error = many.check().unwrap_err().to_string();
    assert!(error.contains("at most 40000000 of all flows"), "{error}");
    let none = "name = 'x'\ncapacity = '1Gbps'\ndelay = '1us'\nepsilon = 0.1\nslots = 1\nflow = []";
    assert!(DtmPlan::parse(none).unwrap_err().to_string().contains("flow: at least 1"));
}
