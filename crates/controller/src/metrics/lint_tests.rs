//! Metrics as Prometheus reads them: a small parser of the text format, the rules of promtool,
//! and quantiles as `histogram_quantile` computes them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tidegate_algo::concurrent::histogram::BucketIndex;
use tidegate_model::Span;
use tidegate_model::gate::Unit;
use tidegate_proto::cluster::status::{
    FaultStatus, NodeStatus, OfferStatus, TenantAtDataNode, TenantAtNode, TurnedAwayStatus,
};
use tidegate_proto::controller::Waits;
use tidegate_proto::controller::status::{
    MeasuredStatus, PromiseStatus, ResourceStatus, Status, TenantStatus,
};
use tidegate_proto::stats::latency::{self, Latencies, LatencyCounts};

use super::*;

/// Bucket by upper bound of one histogram series.
type Buckets = Vec<(f64, f64)>;

/// One metric of the text: its metadata and samples.
#[derive(Debug, Default)]
struct Metric {
    kind: String,
    help: String,
    unit: String,
    /// Values by name with suffix, and labels in the order in which they are written.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Reads labels: `a="b",c="d"`.
fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split("\",").filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once("=\"").unwrap();
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    };
    pairs.map(pair).collect()
}

fn parse(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::<String, Metric>::new();
    let mut last = String::new();
    let lines: Vec<&str> = text.lines().collect();
    let (end, lines) = lines.split_last().unwrap();
    assert_eq!(*end, "# EOF");
    for line in lines {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let [what, name, value] = [(); 3].map(|()| words.next().unwrap().to_owned());
            let metric = metrics.entry(name.clone()).or_default();
            let field = match what.as_str() {
                "TYPE" => &mut metric.kind,
                "HELP" => &mut metric.help,
                "UNIT" => &mut metric.unit,
                other => panic!("{other}"),
            };
            assert!(field.is_empty(), "{line} is said twice");
            *field = value;
            last = name;
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, inside) = series.split_once('{').unwrap_or((series, "}"));
        assert!(name.starts_with(&last), "{line} stands below {last}");
        let sample =
            (name.to_owned(), labels(inside.trim_end_matches('}')), value.parse().unwrap());
        metrics.get_mut(&last).unwrap().samples.push(sample);
    }
    metrics
}

/// As Prometheus: linear within a bucket, the second highest bound beyond the last, and not a
/// number where the highest bound is not infinite.
fn histogram_quantile(quantile: f64, buckets: &Buckets) -> f64 {
    let Some((highest, total)) = buckets.last().copied() else { return f64::NAN };
    if highest != f64::INFINITY || buckets.len() < 2 || total == 0.0 {
        return f64::NAN;
    }
    let rank = quantile * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank).unwrap_or(buckets.len() - 1);
    if at == buckets.len() - 1 {
        return buckets[at - 1].0;
    }
    let (start, before) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
    let (end, count) = buckets[at];
    start + (end - start) * (rank - before) / (count - before)
}

/// The buckets of each series of a histogram, by its other labels.
fn series(name: &str, metric: &Metric) -> BTreeMap<BTreeMap<String, String>, Buckets> {
    let mut all = BTreeMap::<_, Buckets>::new();
    for (sample, labels, value) in &metric.samples {
        if *sample == format!("{name}_bucket") {
            let mut labels = labels.clone();
            let bound = labels.remove("le").unwrap();
            all.entry(labels).or_default().push((bound.parse().unwrap(), *value));
        }
    }
    all
}

/// A resource with a promise to a tenant and one to a group.
fn resource() -> ResourceStatus {
    let promise = |name: &str| PromiseStatus {
        name: name.into(),
        reservation_bytes_per_second: Some(1),
        bytes_per_second: Some(1),
        ..PromiseStatus::default()
    };
    ResourceStatus {
        name: "cluster".into(),
        tenants: vec![promise("oltp")],
        groups: vec![promise("team")],
        ..ResourceStatus::default()
    }
}

/// Something of everything that is measured.
fn everything() -> Survey {
    let pair = TenantAtDataNode { name: "oltp".into(), ..TenantAtDataNode::default() };
    let data_node =
        DataNodeStatus { name: "m".into(), tenants: vec![pair], ..DataNodeStatus::default() };
    let there =
        TenantAtNode { node: "a".into(), limit_operations: Some(1), ..TenantAtNode::default() };
    let tenant = ClusterTenant {
        name: "oltp".into(),
        limit_operations: Some(1),
        nodes: vec![there],
        ..ClusterTenant::default()
    };
    let node = NodeStatus {
        name: "a".into(),
        declared_operations_per_second: Some(1),
        ..NodeStatus::default()
    };
    let offer = OfferStatus { name: "v".into(), kind: "volume".into(), ..OfferStatus::default() };
    let gateway = GatewayStatus {
        name: "g".into(),
        offers: vec![offer],
        faults: vec![FaultStatus { kind: "io".into(), requests: 1 }],
        turned_away_for: vec![TurnedAwayStatus { reason: "memory_budget".into(), clients: 1 }],
        ..GatewayStatus::default()
    };
    let cluster = ClusterStatus {
        tenants: vec![tenant],
        nodes: vec![node],
        gateways: vec![gateway],
        data_nodes: vec![data_node],
        ..ClusterStatus::default()
    };
    let tenant =
        TenantStatus { name: "oltp".into(), wait_p99_ns: Some(1), ..TenantStatus::default() };
    let measured = MeasuredStatus { latency_p99_ns: Some(1), ..MeasuredStatus::default() };
    let (tenants, resources) = (vec![tenant], vec![resource()]);
    let (cluster, measured) = (Some(cluster), Some(measured));
    let status = Status { tenants, resources, cluster, measured, ..Status::default() };
    // 60 waits of less than 64 ns, 39 of up to 2 ms, and one of minutes.
    let mut counts = vec![0; 256];
    counts[0] = 60;
    let ends_at = |index| BucketIndex::at(index).upper_bound().0;
    counts[(0..256).position(|index| ends_at(index) >= 2_000_000).unwrap()] = 39;
    counts[255] = 1;
    let waits = Waits { counts, waited_ns: 1 };
    let waits = vec![("oltp".into(), Unit::Bytes, waits)];
    // 90 requests of at most 16 us, 9 of at most 2.048 ms, and one that is longer than all bounds.
    let mut counts = LatencyCounts { total_ns: 1, ..LatencyCounts::default() };
    counts.buckets[0] = 90;
    counts.buckets[latency::bucket_of(Span(2_048_000))] = 9;
    counts.buckets[latency::BUCKETS - 1] = 1;
    let of = |peer: &str| vec![([peer, "oltp", "read"].map(String::from), counts)];
    let latency = Latencies { gateways: of("g"), nodes: of("a"), queues: of("a") };
    Survey { status, waits, latency, cycles: Vec::new() }
}

fn cycles() -> Histogram {
    let cycles = Histogram::new([0.001, 1.0]);
    [0.0005, 0.5, 0.5, 2.0].into_iter().for_each(|seconds| cycles.observe(seconds));
    cycles
}

fn metrics() -> BTreeMap<String, Metric> {
    parse(&Metrics::new(cycles()).text(everything()).unwrap())
}

/// Another number for each number and for each absent quantity, and `true` for each truth value.
fn number(value: &mut Value, key: &str, last: &mut u16) {
    let units = ["_ns", "_bytes", "_operations", "_second", "_requests", "_ms"];
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(key, it)| number(it, key, last)),
        Value::Array(values) => values.iter_mut().for_each(|it| number(it, key, last)),
        Value::Bool(is_so) => *is_so = true,
        Value::String(_) => {}
        Value::Null if !units.iter().any(|unit| key.ends_with(unit)) => {}
        Value::Number(_) | Value::Null => {
            *last += 1;
            *value = (*last).into();
        }
    }
}

#[test]
fn the_text_is_as_recorded() {
    let Survey { status, waits, latency, cycles: kept } = everything();
    let mut numbered = serde_json::to_value(&status).unwrap();
    number(&mut numbered, "", &mut 0);
    let status = serde_json::from_value(numbered).unwrap();
    let survey = Survey { status, waits, latency, cycles: kept };
    let text = Metrics::new(cycles()).text(survey).unwrap();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics/golden.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    let how = "run `UPDATE_GOLDEN=1 cargo test -p tidegate-controller` and say why it changed";
    assert_eq!(text, std::fs::read_to_string(golden).unwrap(), "{how}");
}

#[test]
fn quantiles_of_our_histograms_are_numbers() {
    let metrics = metrics();
    let name = "tidegate_gate_wait_seconds";
    let waits = series(name, &metrics[name]);
    assert_eq!(waits.len(), 1);
    for (labels, buckets) in &waits {
        assert_eq!(labels["gate"], "bandwidth");
        let quantile = |quantile| histogram_quantile(quantile, buckets);
        assert!((quantile(0.3) - 0.00005).abs() < 1e-9, "{}", quantile(0.3));
        // 39 of 100 are in the bucket from 1 ms to 5 ms.
        assert!((quantile(0.795) - 0.003).abs() < 1e-9, "{}", quantile(0.795));
        assert_eq!(quantile(0.999), 10.0, "the highest bound that is finite");
    }
    let name = "tidegate_gateway_request_seconds";
    for (labels, buckets) in &series(name, &metrics[name]) {
        let [gateway, tenant, operation] = ["gateway", "tenant", "operation"].map(|it| &labels[it]);
        assert_eq!([&**gateway, &**tenant, &**operation], ["g", "oltp", "read"]);
        let quantile = |quantile| histogram_quantile(quantile, buckets);
        assert!((quantile(0.45) - 0.000_008).abs() < 1e-9, "{}", quantile(0.45));
        // Half of the bucket from 1.024 ms to 2.048 ms.
        assert!((quantile(0.945) - 0.001_536).abs() < 1e-9, "{}", quantile(0.945));
        assert_eq!(quantile(0.999), 0.000_016 * f64::from(1 << 18), "the highest finite bound");
    }
    let name = "tidegate_controller_cycle_seconds";
    let cycles = series(name, &metrics[name]);
    assert!((histogram_quantile(0.5, &cycles[&BTreeMap::new()]) - 0.5005).abs() < 1e-9);
}

#[test]
fn histograms_are_whole() {
    for (name, metric) in metrics().iter().filter(|(_, metric)| metric.kind == "histogram") {
        let series = series(name, metric);
        assert!(!series.is_empty(), "{name}");
        for (labels, buckets) in &series {
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {buckets:?}");
            let of = |suffix: &str| {
                let wanted = (format!("{name}_{suffix}"), labels.clone());
                let mut found = metric.samples.iter();
                found.find(|it| (it.0.clone(), it.1.clone()) == wanted).unwrap().2
            };
            assert_eq!(buckets.last().unwrap(), &(f64::INFINITY, of("count")), "{name}");
            assert!(of("sum").is_finite());
        }
    }
}

#[test]
fn names_types_and_help_are_as_promtool_wants_them() {
    for (name, metric) in metrics() {
        let is_sentence = metric.help.len() > 6 && metric.help.ends_with('.');
        let is_plain =
            !["What ", "Who ", "How ", "Those "].iter().any(|it| metric.help.starts_with(it));
        assert!(is_sentence && is_plain, "{name}: {}", metric.help);
        assert!(["gauge", "counter", "histogram"].contains(&metric.kind.as_str()), "{name}");
        let is_word = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
        assert!(name.chars().all(is_word), "{name}");
        let words: Vec<&str> = name.split('_').collect();
        let not_base = ["ms", "ns", "us", "milliseconds", "nanoseconds", "kib", "mib", "minutes"];
        let kinds = ["gauge", "counter", "histogram", "summary", "total", "bucket", "count", "sum"];
        for word in not_base.iter().chain(&kinds) {
            assert!(!words.contains(word), "{name} has {word} in its name");
        }
        if !metric.unit.is_empty() {
            assert!(name.ends_with(&metric.unit), "{name} is in {}", metric.unit);
        }
        let mut seen = BTreeSet::new();
        for (sample, labels, value) in &metric.samples {
            assert!(seen.insert((sample, labels)), "{sample} {labels:?} is there twice");
            assert!(!value.is_nan(), "{sample}");
            match metric.kind.as_str() {
                "counter" => assert_eq!(*sample, format!("{name}_total")),
                "gauge" => assert_eq!(*sample, name),
                _ => {}
            }
            let is_bucket = sample.ends_with("_bucket");
            assert_eq!(labels.contains_key("le"), is_bucket, "{sample}");
            assert!(!labels.contains_key("quantile"), "{sample}");
        }
    }
}
