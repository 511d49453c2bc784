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

/// A greedy flow comes between three with promises, and goes again, in less time than in the file.
#[test]
fn a_flow_without_a_promise_takes_about_as_much_as_the_best_of_them() {
    let mut scenario = FOLDER.read("14b", Scenario::parse);
    let milliseconds = |count: u64| Span(count * Span::MILLISECOND.0);
    (scenario.length, scenario.skip) = (milliseconds(24), milliseconds(4));
    let other = &mut scenario.application[3].workload;
    (other.start, other.length) = (milliseconds(6), Some(milliseconds(12)));
    let outcome = e2e::run(&scenario).unwrap();
    FOLDER.golden("14b", &scenario.name, &outcome.table());
    let between = |from: usize, to: usize| {
        let each = outcome.applications.iter().map(|one| &one.series[from..to]);
        let bytes = each.map(|moments| moments.iter().map(|moment| moment.there).sum::<u64>());
        bytes.map(|bytes| bytes as f64 * 8e-6 / (to - from) as f64).collect::<Vec<_>>()
    };
    let [high, medium, low, other] = between(10, 18)[..] else { panic!() };
    let all = format!("{high} {medium} {low} beside {other}");
    assert!(high > 1.1 * medium && medium > 1.4 * low && other < 1.5 * high, "{all}");
    assert!(high + medium + low + other > 95.0, "{all}");
    let [high, medium, low, other] = between(21, 24)[..] else { panic!() };
    let all = format!("{high} {medium} {low} beside {other}");
    assert!(high > 1.2 * medium && medium > 1.4 * low && other == 0.0, "{all}");
    assert!(high + medium + low > 95.0, "{all}");
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
        ("blocks = 64 }", "blocks = 65536 }\ndrive.before.filled = \"90%\"", "fill a smaller part"),
        ("10Gbps", "0Gbps", "rate"),
        ("\"dctcp\"", "\"reno\"", "reno"),
        ("outstanding = 1", "outstanding = 0", "at least 1"),
        ("[[application]]", "[promises]\nweights = [0, 0, 0]\n[[application]]", "weights"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Scenario::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}
