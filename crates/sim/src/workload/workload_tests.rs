use super::*;
use proptest::prelude::*;
use tidegate_model::{Iops, Rate};

const SECOND: u64 = Picoseconds::SECOND.0;

/// A plan of 4 KiB reads anywhere, with this load.
fn plan(load: &str) -> WorkloadPlan {
    let text = format!(
        "name = 'x'\nspace = '64MiB'\nreads = '100%'\nsizes = {{ fixed = '4KiB' }}\n\
         offsets = 'uniform'\nload = {{ {load} }}"
    );
    WorkloadPlan::parse(&text).unwrap()
}

fn with(sizes: Sizes, offsets: Offsets) -> WorkloadPlan {
    let plan = plan("closed = { outstanding = 1000000 }");
    WorkloadPlan { sizes: Some(sizes), offsets: Some(offsets), ..plan }
}

fn all(plan: &WorkloadPlan, seed: u64, count: usize) -> Vec<IoRequest> {
    let mut source = plan.source(seed, 0);
    let requests = core::iter::from_fn(|| source.arrival()).take(count).collect::<Vec<_>>();
    assert_eq!(requests.len(), count);
    requests
}

fn times(load: &str, seed: u64, count: usize) -> Vec<u64> {
    all(&plan(load), seed, count).iter().map(|request| request.at.0).collect()
}

/// Whether a count of independent things, each with this probability, is one to expect.
#[track_caller]
fn expected(seen: usize, of: usize, probability: f64) {
    let mean = probability * of as f64;
    let sigma = (mean * (1.0 - probability)).sqrt();
    let off = (seen as f64 - mean).abs();
    assert!(off <= 5.0 * sigma + 1.0, "{seen} of {of} instead of {mean}");
}

proptest! {
    /// The oracle adds weights up.
    #[test]
    fn sizes_are_as_frequent_as_in_the_table(
        weights in prop::collection::vec(0u32..50, 1..6), seed: u64,
    ) {
        let sum: u32 = weights.iter().sum();
        prop_assume!(sum > 0);
        let size = |row: usize| Bytes(512 * (row as u64 + 1));
        let rows = weights.iter().enumerate().map(|(row, weight)| Row(size(row), *weight));
        let sizes = Sizes::Table(rows.collect());
        let requests = all(&with(sizes.clone(), Offsets::Uniform), seed, 4_000);
        for (row, weight) in weights.iter().enumerate() {
            let seen = requests.iter().filter(|request| request.bytes == size(row)).count();
            expected(seen, 4_000, f64::from(*weight) / f64::from(sum));
        }
        let [bytes, of] = sizes.mean();
        let by_hand: u64 = weights.iter().zip(1..).map(|(w, row)| u64::from(*w) * 512 * row).sum();
        prop_assert_eq!(bytes * u128::from(sum), u128::from(by_hand) * of);
    }

    #[test]
    fn numbers_of_blocks_are_equally_likely(least in 1u32..9, more in 0u32..6, seed: u64) {
        let blocks = Blocks { block: Bytes(4096), least, most: least + more };
        let requests = all(&with(Sizes::Uniform(blocks), Offsets::Uniform), seed, 4_000);
        for number in least..=least + more {
            let bytes = Bytes(4096 * u64::from(number));
            let seen = requests.iter().filter(|request| request.bytes == bytes).count();
            expected(seen, 4_000, 1.0 / f64::from(more + 1));
        }
    }

    /// Whatever the sizes and the order, every byte lies within the space and random places are
    /// aligned.
    #[test]
    fn requests_end_within_the_space(
        most in 1u32..20, space in 20u64..40, align in 1u64..5_000, order in 0u8..3, seed: u64,
    ) {
        let blocks = Blocks { block: Bytes(512), least: 1, most };
        let offsets = [Offsets::Sequential, Offsets::Uniform, Offsets::Zipf(0.99)];
        let offsets = offsets[usize::from(order)];
        let space = Bytes(512 * space + 7);
        let base = with(Sizes::Uniform(blocks), offsets);
        let plan = WorkloadPlan { space, align: Bytes(align), ..base };
        let mut end = Bytes::ZERO;
        for request in all(&plan, seed, 300) {
            prop_assert!(request.offset.0 + request.bytes.0 <= space.0);
            if offsets == Offsets::Sequential {
                let fits = end.0 + request.bytes.0 <= space.0;
                prop_assert_eq!(request.offset, if fits { end } else { Bytes::ZERO });
            } else {
                prop_assert_eq!(request.offset.0 % align, 0);
            }
            end = Bytes(request.offset.0 + request.bytes.0);
        }
    }

    /// Even arrivals never drift: each is where all bytes before it put it.
    #[test]
    fn even_arrivals_are_exact(rate in 1u64..u64::MAX >> 8, most in 1u32..50, seed: u64) {
        let blocks = Blocks { block: Bytes(4096), least: 1, most };
        let mut plan = plan("open = { rate = '1GB/s' }");
        plan.sizes = Some(Sizes::Uniform(blocks));
        let Load::Open(open) = &mut plan.load else { unreachable!() };
        open.rate = Offered::Bytes(Rate(rate));
        prop_assume!(plan.check().is_ok());
        let (mut source, mut before) = (plan.source(seed, 0), 0u128);
        for _ in 0..200 {
            let Some(request) = source.arrival() else { break };
            let exact = before * u128::from(SECOND) / u128::from(rate);
            prop_assert_eq!(u128::from(request.at.0), exact);
            before += u128::from(request.bytes.0);
        }
    }

    /// With pulses, requests are those without, later by the pauses.
    #[test]
    fn pauses_only_delay(on in 1u64..500, off in 1u64..500, even: bool, seed: u64) {
        let arrivals = if even { "constant" } else { "poisson" };
        let load = format!("rate = '1M iops', arrivals = '{arrivals}'");
        let bare = times(&format!("open = {{ {load} }}"), seed, 500);
        let pulse = format!("pulse = {{ on = '{on}us', off = '{off}us' }}");
        let pulsed = times(&format!("open = {{ {load}, {pulse} }}"), seed, 500);
        let [on, off] = [on, off].map(|us| us * 1_000_000);
        for (bare, pulsed) in bare.into_iter().zip(pulsed) {
            prop_assert!(pulsed % (on + off) < on);
            prop_assert_eq!(pulsed, bare + bare / on * off);
        }
    }
}

#[test]
fn arrivals_without_memory() {
    // The time to the next one, and how many come in a window: their variance is their mean.
    let times = times("open = { rate = '1M iops', arrivals = 'poisson' }", 3, 200_000);
    let span = times[times.len() - 1] as f64;
    assert!((span / 200_000.0 / 1e6 - 1.0).abs() < 0.01, "{span}");
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    expected(gaps.filter(|gap| *gap > 2_000_000).count(), 199_999, (-2.0f64).exp());
    let mut windows = vec![0u32; (span / 5e6) as usize];
    for time in &times {
        if let Some(count) = windows.get_mut((time / 5_000_000) as usize) {
            *count += 1;
        }
    }
    let mean = windows.iter().sum::<u32>() as f64 / windows.len() as f64;
    let off = windows.iter().map(|count| (f64::from(*count) - mean).powi(2)).sum::<f64>();
    let variance = off / windows.len() as f64;
    assert!((variance / mean - 1.0).abs() < 0.04, "{variance} {mean}");
}

#[test]
fn phases_without_memory() {
    let pulse = "pulse = { on = '100us', off = '300us', phases = 'random' }";
    let times = times(&format!("open = {{ rate = '1M iops', {pulse} }}"), 5, 400_000);
    assert!(times.is_sorted());
    // A quarter of the time it is on.
    let mean = times[times.len() - 1] as f64 / 400_000.0;
    assert!((mean / 4e6 - 1.0).abs() < 0.05, "{mean}");
    // A pause follows a request with the probability that a time on ends before the next.
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1_000_001);
    let pauses: Vec<u64> = pauses.collect();
    expected(pauses.len(), 399_999, 1.0 - (-0.01f64).exp());
    // Two thirds of the pauses are shorter than the mean.
    let short = pauses.iter().filter(|pause| **pause < 300_000_000).count();
    expected(short, pauses.len(), 1.0 - (-1.0f64).exp());
}

#[test]
fn popular_offsets_are_popular() {
    let zipf = all(&with(Sizes::Fixed(Bytes(4096)), Offsets::Zipf(0.99)), 1, 100_000);
    let mut seen = std::collections::BTreeMap::<u64, usize>::new();
    zipf.iter().for_each(|request| *seen.entry(request.offset.0).or_default() += 1);
    let mut seen: Vec<usize> = seen.into_values().collect();
    seen.sort_unstable_by_key(|count| core::cmp::Reverse(*count));
    let sum: f64 = (1..=16_384).map(|rank| f64::from(rank).powf(-0.99)).sum();
    expected(seen[0], 100_000, 1.0 / sum);
    let alike = all(&with(Sizes::Fixed(Bytes(4096)), Offsets::Uniform), 1, 100_000);
    let low = alike.iter().filter(|request| request.offset.0 < 16 << 20).count();
    expected(low, 100_000, 0.25);
}

#[test]
fn a_rate_changes_only_the_times() {
    let strip = |load: &str| -> Vec<IoRequest> {
        let mut plan = plan(load);
        plan.reads = Some(Portion(300_000));
        let requests = all(&plan, 9, 1_000).into_iter();
        requests.map(|request| IoRequest { at: Picoseconds::ZERO, ..request }).collect()
    };
    let slow = strip("open = { rate = '1Gbps' }");
    assert_eq!(slow, strip("open = { rate = '90Gbps', arrivals = 'poisson' }"));
    assert_eq!(slow, strip("closed = { outstanding = 1000 }"));
    let reads = slow.iter().filter(|request| request.operation == Operation::Read).count();
    expected(reads, 1_000, 0.3);
}

#[test]
fn clients_and_seeds_differ() {
    let plan = plan("open = { rate = '1Gbps', arrivals = 'poisson' }");
    let first = |seed, client| plan.source(seed, client).arrival();
    assert_eq!(first(1, 0), first(1, 0));
    assert_ne!(first(1, 0), first(1, 1));
    assert_ne!(first(1, 0), first(2, 0));
    let other = WorkloadPlan { name: "y".into(), ..plan.clone() };
    assert_ne!(first(1, 0), other.source(1, 0).arrival());
}

/// A server that takes a random time for each request, all at once.
#[test]
fn a_closed_loop_keeps_its_depth() {
    let mut plan = plan("closed = { outstanding = 7, think = '3us', thoughts = 'poisson' }");
    plan.start = Span(1_000);
    plan.requests = Some(5_000);
    let mut source = plan.source(4, 0);
    let mut random = Stream::new(4, "server", 0);
    let first: Vec<IoRequest> = core::iter::from_fn(|| source.arrival()).collect();
    assert_eq!(first.len(), 7);
    assert!(first.iter().all(|request| request.at == Picoseconds(1_000_000)));
    let (mut thought, mut made) = (0, first.len());
    let mut served: Vec<u64> = Vec::new();
    let mut serve = |at: Picoseconds| at.0 + random.below(50_000_000);
    served.extend(first.iter().map(|request| serve(request.at)));
    while let Some(index) = (0..served.len()).min_by_key(|index| served[*index]) {
        let now = served.swap_remove(index);
        if let Some(next) = source.on_completion(Picoseconds(now)) {
            made += 1;
            thought += next.at.0 - now;
            served.push(serve(next.at));
        }
        assert!(served.len() <= 7);
    }
    assert_eq!(made, 5_000);
    let mean = thought as f64 / 4_993.0;
    assert!((mean / 3e6 - 1.0).abs() < 0.08, "{mean}");
    assert_eq!(source.arrival(), None);
    let open = self::plan("open = { rate = '1Gbps' }");
    assert_eq!(open.source(1, 0).on_completion(Picoseconds::ZERO), None);
}

#[test]
fn it_ends() {
    let mut plan = plan("open = { rate = '1k iops' }");
    plan.start = Span(5_000_000);
    plan.length = Some(Span(10_000_000));
    let mut source = plan.source(1, 0);
    let times: Vec<u64> = core::iter::from_fn(|| source.arrival()).map(|r| r.at.0).collect();
    let millisecond = SECOND / 1_000;
    assert!(times.into_iter().eq((5..15).map(|number| number * millisecond)));
    plan.requests = Some(3);
    let mut source = plan.source(1, 0);
    assert_eq!(core::iter::from_fn(|| source.arrival()).count(), 3);
    // After the end of time there is nothing.
    plan.start = Span(u64::MAX);
    plan.length = None;
    assert_eq!(plan.source(1, 0).arrival(), None);
}

#[test]
fn published_workloads_have_their_shape() {
    for (name, reads, bytes) in
        [("tpcc", 0.626, 8_495.4), ("web-search", 0.9998, 15_360.0), ("vdi", 0.7, 31_595.52)]
    {
        let text = format!(
            "name = 'x'\nlike = '{name}'\nspace = '64GiB'\n\
             load = {{ closed = {{ outstanding = 100000 }} }}"
        );
        let plan = WorkloadPlan::parse(&text).unwrap();
        let requests = all(&plan, 1, 50_000);
        let read = requests.iter().filter(|request| request.operation == Operation::Read).count();
        expected(read, 50_000, reads);
        let mean = requests.iter().map(|request| request.bytes.0).sum::<u64>() as f64 / 50_000.0;
        assert!((mean / bytes - 1.0).abs() < 0.03, "{name}: {mean}");
        let [sum, of] = plan.shape().unwrap().sizes.mean();
        assert!((sum as f64 / of as f64 - bytes).abs() < 0.1, "{name}: {sum} {of}");
        // A plan's own `reads` goes before the published one.
        let own = WorkloadPlan { reads: Some(Portion::WHOLE), ..plan };
        assert_eq!(own.shape().unwrap().reads, Portion::WHOLE);
    }
}

const GOOD: &str = r#"
    name = "x"
    class = "low"
    reads = "50%"
    sizes = { table = [["4KiB", 3], ["8KiB", 1]] }
    offsets = { zipf = 0.99 }
    space = "1GiB"
    load = { open = { rate = "30k iops", pulse = { on = "1ms", off = "1ms" } } }
"#;

#[track_caller]
fn refused(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from));
    let error = WorkloadPlan::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_is_refused() {
    let good = WorkloadPlan::parse(GOOD).unwrap();
    assert_eq!(good.class, Class::Low);
    let Load::Open(open) = good.load else { panic!("{good:?}") };
    assert_eq!(open.rate, Offered::Requests(Iops(30_000)));
    refused("class = \"low\"", "klass = \"low\"", "klass");
    refused("\"low\"", "\"lowest\"", "not a class");
    refused("reads = \"50%\"", "reads = 50", "expected a string");
    refused("reads = \"50%\"", "", "all of reads, sizes and offsets");
    refused("reads = \"50%\"", "like = \"tpcd\"", "tpcc");
    refused("{ table = [[\"4KiB\", 3], [\"8KiB\", 1]] }", "{ fixed = \"0B\" }", "from 1 byte");
    refused("{ table = [[\"4KiB\", 3], [\"8KiB\", 1]] }", "{ fixed = \"2GiB\" }", "1 GiB");
    refused("3], [\"8KiB\", 1", "0], [\"8KiB\", 0", "at least one row");
    let uniform = "{ uniform = { block = \"4KiB\", least = 3, most = 2 } }";
    refused("{ table = [[\"4KiB\", 3], [\"8KiB\", 1]] }", uniform, "least from 1 to most");
    refused("{ zipf = 0.99 }", "{ zipf = 4.5 }", "from 0.0 to 4.0");
    refused("{ zipf = 0.99 }", "\"random\"", "sequential");
    refused("\"1GiB\"", "\"4KiB\"", "the largest request");
    refused("space", "align = \"0B\"\n    space", "at least 1 byte");
    refused("\"30k iops\"", "\"30k\"", "not known here");
    refused("\"30k iops\"", "\"0 iops\"", "more than nothing");
    refused("\"30k iops\"", "\"1B/s\"", "one request in an hour");
    refused("\"30k iops\"", "\"9000000G iops\"", "each picosecond");
    refused("off = \"1ms\"", "off = \"0s\"", "longer than 0");
    refused("on = \"1ms\"", "on = \"1ns\"", "in 1,000 times on");
    let open = "open = { rate = \"30k iops\", pulse = { on = \"1ms\", off = \"1ms\" } }";
    refused(open, "closed = { outstanding = 0 }", "outstanding");
    refused(open, "closed = { outstanding = 1, think = \"2h\" }", "at most 1h");
    refused(open, "closed = { outstanding = 1 }, open = { rate = \"1 iops\" }", "exactly 1");
}
