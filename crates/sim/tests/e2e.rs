//! The whole path in one clock: what applications of a shared link get, and that nothing is lost.
//!
//! Tables change when laws or devices do, and are to be looked at before they are accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test e2e` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use folder::Folder;
use proptest::prelude::*;
use tidegate_model::Span;
use tidegate_sim::e2e::{self, Outcome, Scenario};
use tidegate_sim::transport::Law;

const FOLDER: Folder = Folder("e2e");

/// The first milliseconds of a scenario with a law.
fn begin(name: &str, law: Law) -> Outcome {
    let mut scenario = FOLDER.read(name, Scenario::parse);
    let millisecond = Span::MILLISECOND.0;
    (scenario.length, scenario.skip) = (Span(12 * millisecond), Span(4 * millisecond));
    scenario.transport.law = law;
    let outcome = e2e::run(&scenario).unwrap();
    FOLDER.golden(&format!("{name}-{}", law.name()), &scenario.name, &outcome.table());
    assert_eq!(outcome.fault, None);
    outcome
}

/// What arrives at servers, in Gbit/s.
fn there(outcome: &Outcome) -> Vec<f64> {
    let each = outcome.applications.iter();
    each.map(|one| outcome.rate(one, |moment| moment.there) / 1e9).collect()
}

#[test]
fn a_class_gets_its_share_of_a_link_by_qtcp() {
    let [high, medium, low] = there(&begin("12-write-only", Law::Qtcp))[..] else { panic!() };
    assert!(high > 1.3 * medium && medium > 1.3 * low, "{high} {medium} {low}");
    assert!((80.0..97.0).contains(&(high + medium + low)), "{high} {medium} {low}");
}

#[test]
fn and_all_get_the_same_by_dctcp() {
    let rates = there(&begin("12-write-only", Law::Dctcp));
    assert!(rates.iter().all(|rate| (25.0..37.0).contains(rate)), "{rates:?}");
}

/// How long half of the requests to memory took at most, in nanoseconds.
fn memory(outcome: &Outcome) -> u64 {
    let one = outcome.applications.last().unwrap();
    assert_eq!(one.name, "memory");
    one.latency.value_at_quantile(0.5)
}

#[test]
fn urgent_requests_to_memory_pass_a_full_link() {
    for name in ["20-memory-beside-writes", "20-memory-beside-reads"] {
        let half = memory(&begin(name, Law::Qtcp));
        assert!((3_000..4_000).contains(&half), "{name}: {half} ns");
    }
}

#[test]
fn and_one_port_into_which_all_send() {
    let outcome = begin("22-incast", Law::Qtcp);
    assert!((3_000..4_000).contains(&memory(&outcome)));
    let others: f64 = there(&outcome)[..12].iter().sum();
    assert!((80.0..88.0).contains(&others), "{others}");
}

#[test]
fn and_beside_requests_that_are_promised_latencies() {
    let half = memory(&begin("23-memory-beside-latencies", Law::Qtcp));
    assert!((3_000..4_000).contains(&half), "{half} ns");
}

#[test]
fn a_window_outruns_a_rate_unless_it_is_promised_half() {
    let part = |law| {
        let rates = there(&begin("18-window-beside-rate", law));
        rates[0] / (rates[0] + rates[1])
    };
    let (dctcp, qtcp) = (part(Law::Dctcp), part(Law::Qtcp));
    assert!(dctcp > 0.6 && (0.4..0.6).contains(&qtcp), "{dctcp} {qtcp}");
}

#[test]
fn applications_with_weights_are_told_apart() {
    for (name, law) in [("19-windows-promised", Law::Qtcp), ("19-rates-promised", Law::Qrdma)] {
        let rates = there(&begin(name, law));
        assert!(rates[..4].is_sorted(), "{name}: {rates:?}");
    }
}

/// A closed loop of some requests from one host, to two servers over one link.
fn closed(law: &str, reads: u32, outstanding: u32, blocks: u32, depth: u32, seed: u64) -> Scenario {
    let text = format!(
        r#"
        name = "closed"
        seed = {seed}
        length = "1s"
        sample = "10ms"
        [network.topology.star]
        hosts = 3
        line = {{ rate = "10Gbps", delay = "1us" }}
        [network.switch]
        buffer = "60kB"
        marking = {{ step = "10 packets" }}
        [transport]
        law = "{law}"
        timeout = "1ms"
        [storage]
        servers = [1, 2]
        stripe = "64KiB"
        drive.geometry = {{ channels = 2, chips = 2, dies = 1, planes = 1, blocks = 64 }}
        drive.cleaning.spare = "40%"
        fabrics.depth = {depth}
        [[application]]
        from = 0
        [application.workload]
        name = "closed"
        class = "high"
        reads = "{reads}%"
        sizes = {{ uniform = {{ block = "4KiB", least = 1, most = {blocks} }} }}
        offsets = "uniform"
        space = "16MiB"
        requests = 100
        load = {{ closed = {{ outstanding = {outstanding} }} }}
        "#
    );
    Scenario::parse(&text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is asked for is answered once, by every law, over a buffer that is too small for
    /// what arrives; each byte that is written goes there once and each that is read comes back.
    #[test]
    fn nothing_is_lost(
        law in prop::sample::select(vec!["dctcp", "d2tcp", "qtcp", "dcqcn", "qrdma"]),
        reads in 0u32..=100,
        outstanding in 1u32..40,
        blocks in 1u32..40,
        depth in 1u32..20,
        seed: u64,
    ) {
        let scenario = closed(law, reads, outstanding, blocks, depth, seed);
        let outcome = e2e::run(&scenario).unwrap();
        let [one] = &outcome.applications[..] else { panic!() };
        prop_assert_eq!((one.asked.requests, one.done), (100, one.asked));
        prop_assert_eq!(one.latency.len(), 100);
        let sum = |what: fn(&e2e::Moment) -> u64| one.series.iter().map(what).sum::<u64>();
        prop_assert_eq!(sum(|moment| moment.stored), one.asked.bytes);
        // 72 bytes of a command, and 24 each of what else goes, at most twice each way.
        let moved = sum(|moment| moment.there) + sum(|moment| moment.back);
        let headers = moved - one.asked.bytes;
        prop_assert!((100 * 96..=100 * 144).contains(&headers), "{headers}");
        prop_assert_eq!(&outcome.fault, &None);
        prop_assert_eq!(&outcome, &e2e::run(&scenario).unwrap());
    }
}

#[test]
fn what_is_refused() {
    let good = r#"
        name = "x"
        seed = 1
        length = "1ms"
        [network.topology.star]
        hosts = 3
        line = { rate = "10Gbps", delay = "1us" }
        [network.switch]
        buffer = "60kB"
        [transport]
        law = "dctcp"
        [storage]
        servers = [1, 2]
        drive.geometry = { blocks = 64 }
        drive.cleaning.spare = "40%"
        [[application]]
        from = 0
        [application.workload]
        name = "a"
        reads = "50%"
        sizes = { fixed = "4KiB" }
        offsets = "uniform"
        space = "16MiB"
        load = { closed = { outstanding = 1 } }
    "#;
    Scenario::parse(good).unwrap();
    for (from, to, says) in [
        ("seed = 1", "sede = 1", "sede"),
        ("\"1ms\"", "\"0s\"", "length: from"),
        ("seed = 1", "seed = 1\nskip = \"2ms\"", "skip: less than length"),
        ("hosts = 3", "hosts = 2", "hosts, which count from 0 to 1"),
        ("[1, 2]", "[1, 1]", "each host once"),
        ("from = 0", "from = 1", "another host than its own"),
        ("from = 0", "from = 0\nto = [0]", "another host than its own"),
        ("from = 0", "from = 3", "hosts count from 0 to 2"),
        ("from = 0", "from = 0\ndevice = \"memory\"", "no storage.memory"),
        ("blocks = 64", "blocks = 65536, pages = 4096", "choose fewer blocks"),
        ("10Gbps", "0Gbps", "rate"),
        ("\"dctcp\"", "\"reno\"", "reno"),
        ("outstanding = 1", "outstanding = 0", "at least 1"),
        ("from = 0", "from = 0\nweight = 0", "weight: from 1"),
        ("from = 0", "from = 0\nweight = 1\nlatency = \"1ms\"", "one promise"),
        ("[[application]]", "[promises]\nweights = [0, 0, 0]\n[[application]]", "weights"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Scenario::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}
