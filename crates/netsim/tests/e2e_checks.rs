//! Any scenario at all, for some milliseconds: runs with debug assertions check themselves at each
//! moment (`src/e2e/check.rs`), so whatever is lost, made up or put where there is no room ends one
//! of these in a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_netsim::e2e::{self, Scenario};

fn network() -> impl Strategy<Value = String> {
    let line = "rate = \"10Gbps\", delay = \"1us\"";
    let topologies = vec![
        format!("star = {{ hosts = 6, line = {{ {line} }} }}"),
        format!("dumbbell = {{ pairs = 3, edge = {{ {line} }}, middle = {{ {line} }} }}"),
        format!("fat_tree = {{ ports = 4, line = {{ {line} }} }}"),
    ];
    // In a tree, pauses make no circle.
    let switches = vec![
        "buffer = \"12kB\"",
        "buffer = \"30kB\", share = { limit = \"9kB\" }, reserve = \"2kB\"",
        "buffer = \"100kB\", share = { dynamic = 0.5 }",
        "buffer = \"4MB\", pause = { at = \"30kB\", resume = \"20kB\" }",
        "buffer = \"4MB\", reserve = \"9kB\", pause = { at = \"9kB\", resume = \"0B\" }",
    ];
    let services = vec!["\"fifo\"", "\"urgent-first\"", "{ weighted = [3, 2, 1] }"];
    let markings = vec![
        "\"none\"",
        "{ step = \"5 packets\" }",
        "{ step = \"9kB\" }",
        "{ red = { from = \"2kB\", to = \"9kB\", most = \"10%\" } }",
    ];
    let all = (select(topologies), select(switches), select(services), select(markings));
    all.prop_map(|(topology, switch, service, marking)| {
        format!(
            "network.topology.{topology}\n\
             network.switch = {{ {switch}, service = {service}, marking = {marking} }}\n"
        )
    })
}

fn transport() -> impl Strategy<Value = String> {
    let cc_variants =
        vec!["dctcp", "d2tcp", "qtcp", "dcqcn", "qrdma", "qrdma\", rate.repeat = \"lost"];
    let answers =
        vec!["", ", answer = { every = 2 }", ", answer = { every = 7, within = \"9us\" }"];
    let timeouts = vec!["1ms", "600us"];
    (select(cc_variants), select(answers), select(timeouts)).prop_map(|(cc, answer, timeout)| {
        format!("{{ law = \"{cc}\"{answer}, timeout = \"{timeout}\" }}")
    })
}

fn storage() -> impl Strategy<Value = String> {
    let drives = vec![
        "cleaning = { spare = \"40%\", reserve = 2 }",
        "cleaning = { spare = \"40%\", reserve = 1, choice = \"random\", first = false }, \
         before = { filled = \"100%\", overwrites = 1 }, chip_queues = { weighted = {} }",
        "cleaning = { spare = \"40%\", reserve = 2, choice = \"greedy\" }, \
         cache = { capacity = \"128KiB\", room = \"64KiB\" }, \
         host = { fetch_limit = 3, arbitration = { weighted = {} } }",
        "cleaning = { spare = \"40%\", reserve = 2 }, cache = { writes = false }, \
         host = { arbitration = { round-robin = { burst = 2 } } }",
    ];
    (select(drives), 1u32..4, 1u32..9).prop_map(|(drive, drives, depth)| {
        format!(
            "[storage]\nservers = [4, 5]\ndrives = {drives}\nmemory = {{}}\nstripe = \"16KiB\"\n\
             fabrics = {{ depth = {depth}, in_capsule = \"4KiB\" }}\n\
             drive = {{ times = {{ read = \"5us\", program = \"20us\", erase = \"100us\" }}, \
             geometry = {{ channels = 2, chips = 2, dies = 1, planes = 2, blocks = 16, \
             pages = 8 }}, {drive} }}\n"
        )
    })
}

/// Someone of a class, on one of the hosts that do not store.
fn application() -> impl Strategy<Value = String> {
    let classes = vec!["urgent", "high", "medium", "low"];
    let devices = vec!["device = \"drive\"", "device = \"memory\""];
    let loads = vec![
        "closed = { outstanding = 12 }",
        "closed = { outstanding = 3, think = \"40us\", thoughts = \"poisson\" }",
        "open = { rate = \"30Gbps\", arrivals = \"poisson\" }",
        "open = { rate = \"2Gbps\", pulse = { on = \"100us\", off = \"300us\" } }",
    ];
    let sizes = vec![
        "fixed = \"256B\"",
        "uniform = { block = \"4KiB\", least = 1, most = 20 }",
        "table = [[\"512B\", 3], [\"9000B\", 2], [\"100KiB\", 1]]",
    ];
    let promises = vec!["", "latency = \"200us\"", "weight = 2", "deadline = \"300us\""];
    let who = (0u32..4, select(classes), select(devices), select(promises));
    let what = (select(loads), select(sizes), 0u32..=100, transport(), any::<bool>());
    (who, what).prop_map(|((from, class, device, promise), what)| {
        let (load, sizes, reads, transport, is_own) = what;
        let transport = if is_own { format!("transport = {transport}\n") } else { String::new() };
        format!(
            "[[application]]\nfrom = {from}\n{device}\n{promise}\n{transport}\
             workload = {{ name = \"{class}\", class = \"{class}\", reads = \"{reads}%\", \
             sizes = {{ {sizes} }}, offsets = \"uniform\", space = \"1MiB\", \
             load = {{ {load} }} }}\n"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_run_adds_up(
        seed: u64, yields: bool, network in network(), transport in transport(),
        storage in storage(), applications in prop::collection::vec(application(), 1..5),
    ) {
        let text = format!(
            "name = \"any\"\nseed = {}\nlength = \"3ms\"\nsample = \"20us\"\n{network}\
             transport = {transport}\npromises = {{ yields = {yields}, every = \"20us\" }}\n\
             {storage}{}",
            seed >> 1,
            applications.concat(),
        );
        let scenario = Scenario::parse(&text).map_err(|error| format!("{error}\n{text}")).unwrap();
        let outcome = e2e::run(&scenario).unwrap();
        prop_assert_eq!(&outcome.fault, &None, "{}", text);
        // Something is done, and nothing that was not asked for.
        for one in &outcome.applications {
            prop_assert!(one.done.requests <= one.requested.requests);
            prop_assert!(one.done.bytes <= one.requested.bytes);
        }
        let done = outcome.applications.iter().map(|one| one.done.requests);
        prop_assert!(done.sum::<u64>() > 0, "{}", text);
        prop_assert!(e2e::Run::new(&scenario).by_heap().unwrap() == outcome, "{}", text);
    }
}
