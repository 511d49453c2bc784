//! The whole path in one clock: what applications of a shared link get, and that nothing is lost.
//!
//! Tables change when congestion control or devices do, and need a review before they are accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test e2e` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

#[path = "../../sim/tests/folder/mod.rs"]
mod folder;

use folder::Folder;
use proptest::prelude::*;
use tidegate_model::Span;
use tidegate_netsim::e2e::{self, E2eReport, Scenario};
use tidegate_netsim::storage::{CommandOrder, Shares};
use tidegate_netsim::transport::CongestionControl;

const FOLDER: Folder = Folder("e2e");

/// The first milliseconds of a scenario with a congestion control.
fn begin(name: &str, cc: CongestionControl) -> E2eReport {
    let mut scenario = FOLDER.read(name, Scenario::parse);
    let millisecond = Span::MILLISECOND.0;
    (scenario.length, scenario.skip) = (Span(12 * millisecond), Span(4 * millisecond));
    scenario.transport.cc = cc;
    let outcome = e2e::run(&scenario).unwrap();
    FOLDER.golden(&format!("{name}-{}", cc.name()), &scenario.name, &outcome.table());
    assert_eq!(outcome.fault, None);
    outcome
}

/// Payload that arrives at servers, in Gbit/s, by application.
fn there(outcome: &E2eReport) -> Vec<f64> {
    let each = outcome.applications.iter();
    each.map(|one| outcome.rate(one, |moment| moment.there) / 1e9).collect()
}

#[test]
fn a_class_gets_its_share_of_a_link_by_qtcp() {
    let [high, medium, low] = there(&begin("12-write-only", CongestionControl::Qtcp))[..] else {
        panic!()
    };
    assert!(high > 1.3 * medium && medium > 1.3 * low, "{high} {medium} {low}");
    assert!((80.0..97.0).contains(&(high + medium + low)), "{high} {medium} {low}");
}

#[test]
fn and_all_get_the_same_by_dctcp() {
    let rates = there(&begin("12-write-only", CongestionControl::Dctcp));
    assert!(rates.iter().all(|rate| (25.0..37.0).contains(rate)), "{rates:?}");
}

#[test]
fn what_is_read_is_shared_as_well() {
    for cc in [CongestionControl::Dctcp, CongestionControl::Qtcp] {
        let outcome = begin("13-reads-and-writes", cc);
        let back = outcome.applications.iter();
        let back: Vec<f64> = back.map(|one| outcome.rate(one, |moment| moment.back)).collect();
        let [there, back] = [there(&outcome), back].map(|rates| rates[0] / rates[2]);
        let range = if cc == CongestionControl::Qtcp { 1.5..3.5 } else { 0.7..1.5 };
        assert!(range.contains(&there) && range.contains(&back), "{there} {back}");
    }
}

#[test]
fn three_flows_share_a_link_whatever_the_round_trip() {
    for name in ["8-packets", "9-settling-25us", "9-settling-62us", "9-settling-98us"] {
        let [high, medium, low] = there(&begin(name, CongestionControl::Qtcp))[..] else {
            panic!()
        };
        assert!((1.2..1.8).contains(&(high / medium)), "{name}: {high} {medium}");
        assert!((1.6..2.4).contains(&(medium / low)), "{name}: {medium} {low}");
    }
}

/// Beside the first, no flow has begun.
#[test]
fn flows_begin_when_they_are_to() {
    for name in ["10-one-after-the-other", "14a-come-and-go"] {
        let rates = there(&begin(name, CongestionControl::Qtcp));
        assert!(rates[0] > 40.0 && rates.last() == Some(&0.0), "{name}: {rates:?}");
    }
}

/// How long half of the requests to memory took at most, in nanoseconds.
fn memory(outcome: &E2eReport) -> u64 {
    let one = outcome.applications.last().unwrap();
    assert_eq!(one.name, "memory");
    one.latency.value_at_quantile(0.5)
}

#[test]
fn urgent_requests_to_memory_pass_a_full_link() {
    for name in ["20-memory-beside-writes", "20-memory-beside-reads"] {
        let half = memory(&begin(name, CongestionControl::Qtcp));
        assert!((3_000..4_000).contains(&half), "{name}: {half} ns");
    }
}

#[test]
fn and_one_port_into_which_all_send() {
    let outcome = begin("22-incast", CongestionControl::Qtcp);
    assert!((3_000..4_000).contains(&memory(&outcome)));
    let others: f64 = there(&outcome)[..12].iter().sum();
    assert!((80.0..88.0).contains(&others), "{others}");
}

#[test]
fn and_beside_requests_that_are_promised_latencies() {
    let half = memory(&begin("23-memory-beside-latencies", CongestionControl::Qtcp));
    assert!((3_000..4_000).contains(&half), "{half} ns");
}

#[test]
fn a_window_outruns_a_rate_unless_it_is_promised_half() {
    let part = |cc| {
        let rates = there(&begin("18-window-beside-rate", cc));
        rates[0] / (rates[0] + rates[1])
    };
    let (dctcp, qtcp) = (part(CongestionControl::Dctcp), part(CongestionControl::Qtcp));
    assert!(dctcp > 0.6 && (0.4..0.6).contains(&qtcp), "{dctcp} {qtcp}");
}

#[test]
fn applications_with_weights_get_different_shares() {
    for (name, cc) in [
        ("19-windows-promised", CongestionControl::Qtcp),
        ("19-rates-promised", CongestionControl::Qrdma),
    ] {
        let rates = there(&begin(name, cc));
        assert!(rates[..4].is_sorted(), "{name}: {rates:?}");
    }
}

/// Data that drives finish, in Gbit/s, by application.
fn stored(outcome: &E2eReport) -> Vec<f64> {
    let each = outcome.applications.iter();
    each.map(|one| outcome.rate(one, |moment| moment.stored) / 1e9).collect()
}

/// Three servers are fewer than the link feeds: their queues know classes, if DCTCP does not.
#[test]
fn a_full_storage_end_serves_by_class() {
    let [high, medium, low] = stored(&begin("11b-three-servers", CongestionControl::Dctcp))[..]
    else {
        panic!()
    };
    assert!(high > 1.3 * medium && medium > 1.5 * low, "{high} {medium} {low}");
}

/// The queues before its chips decide the order of classes at an overloaded drive, too.
#[test]
fn a_drive_whose_chips_know_classes_serves_high_first() {
    let weighted = CommandOrder::Weighted(Shares::default());
    let [none, both] = [CommandOrder::Arrival, weighted].map(|order| {
        let mut scenario = FOLDER.read("7a-intense-high", Scenario::parse);
        (scenario.length, scenario.skip) = (Span(26_000_000), Span(6_500_000));
        let drive = &mut scenario.storage.as_mut().unwrap().drive;
        drive.chip_queues = order;
        if order == weighted {
            drive.host.arbitration = weighted;
        } else {
            assert!(matches!(drive.host.arbitration, CommandOrder::RoundRobin(_)));
        }
        let outcome = e2e::run(&scenario).unwrap();
        outcome.applications.iter().map(|one| one.device.mean()).collect::<Vec<_>>()
    });
    assert!(none[0] > none[1] && none[1] > none[2], "{none:?}");
    assert!(both[0] < both[1] && both[1] < both[2], "{both:?}");
}

/// Drives serve requests by their storage class where it differs from that in the network.
#[test]
fn storage_may_have_classes_of_its_own() {
    let coordinated = stored(&begin("16b-coordinated", CongestionControl::Qtcp));
    let uncoordinated = stored(&begin("16a-uncoordinated", CongestionControl::Qtcp));
    assert!(coordinated[0] > 2.0 * uncoordinated[0], "{coordinated:?} {uncoordinated:?}");
    assert!(uncoordinated[2] > 1.5 * coordinated[2], "{coordinated:?} {uncoordinated:?}");
    begin("17-tail-latency", CongestionControl::Dctcp);
    begin("17-tail-latency", CongestionControl::Qtcp);
}

/// Flows that will be early yield to flows that will be late, if they go by what they can foresee;
/// over a whole run of this load some requests are late by DCTCP.
#[test]
fn deadlines_by_each_cc() {
    for cc in [CongestionControl::Dctcp, CongestionControl::D2tcp, CongestionControl::Qtcp] {
        begin("15b-normal", cc);
        begin("15b-stressed", cc);
    }
    let most = |cc| {
        let outcome = begin("18a-stressed", cc);
        let each = outcome.applications.iter();
        each.map(|one| one.latency.max()).max().unwrap()
    };
    assert!(most(CongestionControl::Qrdma) < most(CongestionControl::Dcqcn));
}

/// A greedy flow comes between three with promises, and goes again, in less time than in the file.
#[test]
fn a_flow_without_a_promise_takes_about_as_much_as_the_best_of_them() {
    let mut scenario = FOLDER.read("14b-flow-without-a-promise", Scenario::parse);
    let milliseconds = |count: u64| Span(count * Span::MILLISECOND.0);
    (scenario.length, scenario.skip) = (milliseconds(24), milliseconds(4));
    let other = &mut scenario.application[3].workload;
    (other.start, other.length) = (milliseconds(6), Some(milliseconds(12)));
    let outcome = e2e::run(&scenario).unwrap();
    FOLDER.golden("14b-flow-without-a-promise", &scenario.name, &outcome.table());
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
fn closed(cc: &str, reads: u32, outstanding: u32, blocks: u32, depth: u32, seed: u64) -> Scenario {
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
        law = "{cc}"
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

    /// Whatever is asked for is answered once, by every congestion control, over a buffer that is
    /// too small for what arrives; each byte that is written goes there once and each that is read
    /// comes back.
    #[test]
    fn nothing_is_lost(
        cc in prop::sample::select(vec!["dctcp", "d2tcp", "qtcp", "dcqcn", "qrdma"]),
        reads in 0u32..=100,
        outstanding in 1u32..40,
        blocks in 1u32..40,
        depth in 1u32..20,
        seed: u64,
    ) {
        let scenario = closed(cc, reads, outstanding, blocks, depth, seed);
        let outcome = e2e::run(&scenario).unwrap();
        let [one] = &outcome.applications[..] else { panic!() };
        prop_assert_eq!((one.requested.requests, one.done), (100, one.requested));
        prop_assert_eq!(one.latency.len(), 100);
        let sum = |what: fn(&e2e::Moment) -> u64| one.series.iter().map(what).sum::<u64>();
        prop_assert_eq!(sum(|moment| moment.stored), one.requested.bytes);
        // 72 bytes of a command, and 24 each of what else goes, at most twice each way.
        let moved = sum(|moment| moment.there) + sum(|moment| moment.back);
        let headers = moved - one.requested.bytes;
        prop_assert!((100 * 96..=100 * 144).contains(&headers), "{headers}");
        prop_assert_eq!(&outcome.fault, &None);
        prop_assert_eq!(&outcome, &e2e::run(&scenario).unwrap());
    }
}

/// A run that ends before it counts has counted nothing, of ports either.
#[test]
fn what_is_not_counted_is_nothing() {
    let scenario = Scenario { skip: Span(30_000_000), ..closed("dctcp", 50, 4, 4, 4, 1) };
    let mut moments = 0;
    let stopped = e2e::run_while(&scenario, |_| {
        moments += 1;
        moments < 2
    });
    let outcome = stopped.unwrap();
    assert_eq!((outcome.length, outcome.counted()), (Span(20_000_000), Span::ZERO));
    assert_eq!(outcome.ports, []);
    assert!(outcome.applications.iter().all(|one| one.requested.requests + one.done.requests == 0));
}

/// Flows of one host by rates, each of which may use all of its line, wait at their host and not in
/// its NIC: a NIC that held them would go on sending when their rates have long been cut.
#[test]
fn a_nic_holds_a_packet_of_each_flow() {
    let text = r#"
        name = "eight flows of one host"
        seed = 1
        length = "2ms"
        network.topology.star = { hosts = 9, line = { rate = "100Gbps", delay = "1us" } }
        network.switch = { buffer = "1MB" }
        transport.law = "dcqcn"
        [[application]]
        from = 0
        to = [1, 2, 3, 4, 5, 6, 7, 8]
        [application.workload]
        name = "eight"
        reads = "0%"
        sizes = { fixed = "1MiB" }
        offsets = "uniform"
        space = "1GiB"
        load = { closed = { outstanding = 8 } }
    "#;
    for service in ["fifo", "urgent-first"] {
        let service = format!("buffer = \"1MB\", service = \"{service}\"");
        let text = text.replace("buffer = \"1MB\"", &service);
        let outcome = e2e::run(&Scenario::parse(&text).unwrap()).unwrap();
        let nic = &outcome.ports[0];
        assert_eq!(nic.between[0], "host 0");
        assert!(nic.queue_most <= 8 * 1_086 && nic.busy > 0.99, "{service}: {nic:?}");
        let [one] = &outcome.applications[..] else { panic!() };
        // Each is served in each round.
        let [least, most] = [0.0, 1.0].map(|part| one.latency.value_at_quantile(part));
        assert!(most < least * 21 / 20, "{least} {most}");
    }
}

/// Five switches in a circle, each of which pauses the one before: packets that wait for each other
/// for good are the scenario's doing, so a run reports them and does not end in a panic.
#[test]
fn a_circle_of_pauses_is_reported() {
    let mut text = String::from(
        r#"
        name = "circle"
        seed = 1
        length = "2ms"
        sample = "100us"
        transport.law = "dcqcn"
        [network.switch]
        buffer = "100MB"
        pause = { at = "50kB", resume = "25kB" }
        [network.topology.list]
        hosts = ["h0", "h1", "h2", "h3", "h4"]
        switches = ["s0", "s1", "s2", "s3", "s4"]
        "#,
    );
    let line = r#"rate = "100Gbps", delay = "1us""#;
    let links = (0..5).map(|node| {
        let next = (node + 1) % 5;
        format!(
            "{{ between = [\"h{node}\", \"s{node}\"], {line} }}, \
             {{ between = [\"s{node}\", \"s{next}\"], {line} }}, "
        )
    });
    text += &format!("links = [{}]\n", links.collect::<String>());
    for node in 0..5 {
        let target = (node + 2) % 5;
        text += &format!(
            "[[application]]\nfrom = {node}\nto = [{target}]\nworkload = {{ name = \"{node}\", \
             reads = \"0%\", sizes = {{ fixed = \"1MiB\" }}, offsets = \"uniform\", \
             space = \"1GiB\", load = {{ closed = {{ outstanding = 8 }} }} }}\n"
        );
    }
    let outcome = e2e::run(&Scenario::parse(&text).unwrap()).unwrap();
    let fault = outcome.fault.unwrap().to_string();
    assert!(fault.contains("wait for each other for good"), "{fault}");
    assert!((0..5).all(|node| fault.contains(&format!("s{node} to s{}", (node + 1) % 5))));
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
    for (from, to, message) in [
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
        ("from = 0", "from = 0\nweight = 0", "line 18, column 1: application.0.weight: from 1"),
        ("\"1ms\"", "\"1000s\"\nsample = \"1us\"", "1000000000 moments"),
        ("outstanding = 1", "outstanding = 10000001", "lower load.closed.outstanding"),
        ("blocks = 64 }", "blocks = 64 }\ndrive.cleaning.reserve = 4294967295", "lower threshold"),
        ("from = 0", "from = 0\nweight = 1\nlatency = \"1ms\"", "one promise"),
        ("from = 0", "from = 0\nlatency = \"0s\"", "latency: more than"),
        ("from = 0", "from = 0\ndeadline = \"0s\"", "deadline: more than"),
        ("[[application]]", "[promises]\nweights = [0, 0, 0]\n[[application]]", "weights"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Scenario::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
}

/// The scenario with a recording that the book has as an example, with two requests that fio would
/// have written.
#[test]
fn the_example_of_the_book_can_be_run() {
    let page = include_str!("../../../docs/src/simulator.md");
    let mut blocks = page.split("```toml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let example = blocks.find(|block| block.contains("load.log")).unwrap();
    let mut scenario = Scenario::parse(example).unwrap();
    (scenario.length, scenario.skip) = (Span(20 * Span::MILLISECOND.0), Span::ZERO);
    let log = "fio version 2 iolog\na add\na open\na write 0 4096\na read 4096 8192\na close\n";
    let run = e2e::Run::new(&scenario).opening(|file| {
        assert_eq!(file, "load.log");
        Ok(Box::new(log.as_bytes()) as e2e::Input)
    });
    let outcome = run.go_while(|_| true).unwrap();
    let done: Vec<u64> = outcome.applications.iter().map(|one| one.done.requests).collect();
    assert!(done[0] == 2 && done[1] > 0, "{done:?}");
}

/// A scenario of two applications, of which one replays a recording to a drive.
fn recorded(keys: &str) -> Scenario {
    let text = format!(
        r#"
        name = "recorded"
        seed = 3
        length = "4ms"
        sample = "500us"
        network.topology.star = {{ hosts = 3, line = {{ rate = "10Gbps", delay = "1us" }} }}
        network.switch = {{ buffer = "60kB", marking = {{ step = "10 packets" }} }}
        transport.law = "qtcp"
        [storage]
        servers = [2]
        drive.geometry = {{ channels = 2, chips = 2, dies = 1, planes = 1, blocks = 64 }}
        drive.cleaning.spare = "40%"
        [[application]]
        from = 0
        [application.workload]
        name = "recorded"
        class = "low"
        load = {{ trace = {{ file = "some.trace"{keys} }} }}
        [[application]]
        from = 1
        [application.workload]
        name = "made up"
        class = "high"
        reads = "30%"
        sizes = {{ uniform = {{ block = "4KiB", least = 1, most = 16 }} }}
        offsets = "uniform"
        space = "16MiB"
        load = {{ closed = {{ outstanding = 8 }} }}
        "#
    );
    Scenario::parse(&text).unwrap()
}

/// A recording without end: a request of 4 KiB every 10 us, and how many lines of it were read.
#[derive(Default)]
struct Endless {
    line: Vec<u8>,
    at: usize,
    number: u64,
}

impl std::io::Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.line.len() {
            self.line = format!("{}000 0 {} 8 1\n", self.number * 10, self.number * 8).into();
            (self.at, self.number) = (0, self.number + 1);
        }
        let part = (&self.line[self.at..]).read(out)?;
        self.at += part;
        Ok(part)
    }
}

/// A run that reads a recording as it goes on needs no end of it, and no room for it.
#[test]
fn a_recording_may_be_longer_than_memory() {
    let scenario = recorded("");
    let opened = std::cell::Cell::new(0);
    let open = |name: &str| {
        assert_eq!(name, "some.trace");
        opened.set(opened.get() + 1);
        Ok(Box::new(std::io::BufReader::new(Endless::default())) as e2e::Input)
    };
    let outcome = e2e::Run::new(&scenario).opening(open).go_while(|_| true).unwrap();
    assert_eq!(opened.get(), 1);
    let requested = outcome.applications[0].requested;
    // At 0, 10 us, .. 4 ms, with both ends.
    assert_eq!((requested.requests, requested.bytes), (401, 401 * 4_096));
    assert!(outcome.applications[0].done.requests > 50);
}

/// Wherever a line is wrong, the run ends with it and its file, and has no outcome.
#[test]
fn a_line_that_is_wrong_ends_the_run() {
    let lines = |count: u64, last: &str| {
        let good = (0..count).map(|number| format!("{}000 0 0 8 1\n", number));
        good.collect::<String>() + last
    };
    let ended = |text: String, keys: &str| {
        let open = move |_: &str| Ok(Box::new(std::io::Cursor::new(text.clone())) as e2e::Input);
        let mut moments = 0;
        let scenario = recorded(keys);
        let run = e2e::Run::new(&scenario).opening(open).go_while(|_| {
            moments += 1;
            true
        });
        (run.unwrap_err().to_string(), moments)
    };
    let (error, moments) = ended(lines(2, "what\n"), "");
    let message = "application \"recorded\": some.trace: line 3: ";
    assert!(error.starts_with(message), "{error}");
    assert_eq!(moments, 0);
    let (error, moments) = ended(lines(2_500, "2500000 0 8 0 1\n"), "");
    assert!(error.contains("some.trace: line 2501: size is \"0\""), "{error}");
    assert_eq!(moments, 2);
    let (error, _) = ended(lines(2, ""), ", device = 5");
    assert!(error.contains("some.trace: nothing in it is replayed"), "{error}");
    let error = e2e::run(&recorded("")).unwrap_err().to_string();
    assert!(error.contains("\"some.trace\": nobody here opens recordings"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The heap is the oracle of the wheel; and reading ports changes nothing.
    #[test]
    fn the_queue_of_events_does_not_matter(
        cc in prop::sample::select(vec!["dctcp", "d2tcp", "qtcp", "dcqcn", "qrdma"]),
        reads in 0u32..=100,
        outstanding in 1u32..40,
        seed: u64,
    ) {
        let scenario = closed(cc, reads, outstanding, 20, 8, seed);
        let by_wheel = e2e::run(&scenario).unwrap();
        // Outcomes are pages long, so they are not printed.
        prop_assert!(e2e::Run::new(&scenario).by_heap().unwrap() == by_wheel);
        let watched = e2e::Run::new(&scenario).with_ports().go_while(|_| true).unwrap();
        let hops = watched.hops.clone();
        let unwatched = E2eReport { hops: Vec::new(), ..watched };
        prop_assert!(unwatched == by_wheel);
        // All of a port is what its classes did, moment by moment, but for what came last.
        for port in &by_wheel.ports {
            let own = || hops.iter().filter(|hop| hop.between == port.between);
            let moments = || own().flat_map(|hop| &hop.series);
            prop_assert!(own().all(|hop| hop.series.len() == 100), "1 s in moments of 10 ms");
            prop_assert_eq!(moments().map(|moment| moment.sent_bytes).sum::<u64>(), port.bytes);
            prop_assert_eq!(moments().map(|moment| moment.marked).sum::<u64>(), port.marked);
            prop_assert_eq!(moments().map(|moment| moment.dropped).sum::<u64>(), port.dropped);
            let most = moments().map(|moment| moment.queue_bytes).max().unwrap_or(0);
            prop_assert!(most <= port.queue_most);
        }
    }
}
