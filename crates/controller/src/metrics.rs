//! The metrics text: one registry, whose collector writes the status of each scrape in OpenMetrics,
//! in base units. [`tables`] has the names and the help.

use std::fmt;
use std::iter;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tidegate_model::{WaitRule, gate};
use tidegate_proto::cluster::status::{
    ClusterStatus, ClusterTenant, DataNodeStatus, GatewayStatus,
};
use tidegate_proto::controller::status::{PromiseStatus, ResourceStatus, TenantStatus};
use tidegate_proto::stats::delays::stages::StageGate;
use tidegate_proto::stats::latency::NamedLatency;

use crate::input::Survey;
use buckets::{latency_buckets, wait_buckets};
use tables::{Kind, MetricTable, Times};

mod buckets;
mod tables;

/// The content type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    collector: Arc<SurveyCollector>,
}

impl Metrics {
    pub(crate) fn new(cycle_seconds: Histogram) -> Self {
        let collector = Arc::new(SurveyCollector { survey: Mutex::default(), cycle_seconds });
        let mut registry = Registry::with_prefix("tidegate");
        registry.register_collector(Box::new(collector.clone()));
        Self { registry, collector }
    }

    /// All metrics in the OpenMetrics text format, of this survey or of a later one.
    pub(crate) fn text(&self, survey: Survey) -> Result<String, fmt::Error> {
        *self.collector.survey.lock().unwrap_or_else(PoisonError::into_inner) = Some(survey);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The one collector, of the latest survey.
#[derive(Debug)]
struct SurveyCollector {
    /// None before the first scrape.
    survey: Mutex<Option<Survey>>,
    cycle_seconds: Histogram,
}

impl Collector for SurveyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let survey = self.survey.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Survey { status, waits, latency, .. }) = &*survey else { return Ok(()) };
        let encoder = &mut encoder;
        tables::CONTROLLER.encode(encoder, iter::once(([], status)))?;
        let measured = status.measured.iter().map(|it| ([&*it.resource], it));
        tables::MEASURED.encode(encoder, measured)?;
        let tenants = status.tenants.iter();
        tables::TENANT.encode(encoder, tenants.clone().map(|tenant| ([&*tenant.name], tenant)))?;
        let held = tenants.flat_map(|TenantStatus { name, stage_waits, .. }| {
            StageGate::ALL.map(|gate| ([&**name, gate.name()], stage_waits.of(gate)))
        });
        let held: Vec<_> = held.filter(|(_, wait)| *wait > 0).collect();
        tables::WAIT_AT_STAGES
            .encode(encoder, held.iter().map(|(labels, wait)| (*labels, wait)))?;
        encode_resources(encoder, &status.resources)?;
        if let Some(cluster) = &status.cluster {
            encode_cluster(encoder, cluster)?;
        }
        let Times { name, help, .. } = tables::CYCLE;
        let kind = self.cycle_seconds.metric_type();
        let series = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        self.cycle_seconds.encode(series)?;
        let waits = waits.iter().filter(|(.., waits)| !waits.counts.is_empty());
        let waits = waits.map(|(tenant, unit, waits)| {
            let gate = match unit {
                gate::Unit::Bytes => "bandwidth",
                gate::Unit::Operations => "operations",
            };
            ([&**tenant, gate], waits.waited_ns, wait_buckets(&waits.counts))
        });
        tables::GATE_WAIT.encode(encoder, waits)?;
        tables::GATEWAY_REQUEST.encode(encoder, latencies(&latency.gateways))?;
        tables::NODE_REQUEST.encode(encoder, latencies(&latency.nodes))?;
        tables::NODE_QUEUE.encode(encoder, latencies(&latency.queues))
    }
}

fn latencies(latency: &[NamedLatency]) -> impl Iterator<Item = ([&str; 3], u64, Vec<(f64, u64)>)> {
    latency.iter().map(|(labels, counts)| {
        (labels.each_ref().map(|label| &**label), counts.total_ns, latency_buckets(counts))
    })
}

fn encode_resources(
    encoder: &mut DescriptorEncoder<'_>,
    resources: &[ResourceStatus],
) -> fmt::Result {
    let promises = |of: fn(&ResourceStatus) -> &[PromiseStatus]| {
        resources.iter().flat_map(move |resource| {
            let name = &*resource.name;
            of(resource).iter().map(move |promise| ([name, &*promise.name], promise))
        })
    };
    tables::RESOURCE_TENANT.encode(encoder, promises(|resource| &resource.tenants))?;
    tables::RESOURCE_GROUP.encode(encoder, promises(|resource| &resource.groups))
}

fn encode_cluster(encoder: &mut DescriptorEncoder<'_>, cluster: &ClusterStatus) -> fmt::Result {
    let (nodes, tenants) = (cluster.nodes.iter(), cluster.tenants.iter());
    tables::NODE.encode(encoder, nodes.map(|node| ([&*node.name], node)))?;
    tables::TENANT_AT_NODES
        .encode(encoder, tenants.clone().map(|tenant| ([&*tenant.name], tenant)))?;
    let at_nodes = tenants.flat_map(|ClusterTenant { name, nodes, .. }| {
        nodes.iter().map(move |there| ([&*there.node, &**name], there))
    });
    tables::TENANT_AT_NODE.encode(encoder, at_nodes.clone())?;
    let waits = at_nodes.flat_map(|([node, tenant], there)| {
        let waits = &there.waits;
        WaitRule::ALL.map(|rule| ([node, tenant, rule.name()], waits.of(rule)))
    });
    let waits: Vec<_> = waits.collect();
    tables::WAIT_AT_NODE.encode(encoder, waits.iter().map(|(labels, wait)| (*labels, wait)))?;
    encode_gateways(encoder, &cluster.gateways)?;
    encode_data_nodes(encoder, &cluster.data_nodes)?;
    tables::CLUSTER.encode(encoder, iter::once(([], cluster)))
}

fn encode_gateways(encoder: &mut DescriptorEncoder<'_>, gateways: &[GatewayStatus]) -> fmt::Result {
    let named = gateways.iter().map(|gateway| (&*gateway.name, gateway));
    tables::GATEWAY.encode(encoder, named.clone().map(|(name, gateway)| ([name], gateway)))?;
    let offers = named.clone().flat_map(|(gateway, GatewayStatus { offers, .. })| {
        offers.iter().map(move |offer| ([gateway, &*offer.kind, &*offer.name], offer))
    });
    tables::OFFER.encode(encoder, offers)?;
    let faults = named.clone().flat_map(|(gateway, GatewayStatus { faults, .. })| {
        faults.iter().map(move |fault| ([gateway, &*fault.kind], fault))
    });
    tables::FAULT.encode(encoder, faults)?;
    let turned_away = named.flat_map(|(gateway, GatewayStatus { turned_away_for, .. })| {
        turned_away_for.iter().map(move |it| ([gateway, &*it.reason], it))
    });
    tables::TURNED_AWAY.encode(encoder, turned_away)
}

fn encode_data_nodes(encoder: &mut DescriptorEncoder<'_>, nodes: &[DataNodeStatus]) -> fmt::Result {
    tables::DATA_NODE.encode(encoder, nodes.iter().map(|node| ([&*node.name], node)))?;
    let tenants = nodes.iter().flat_map(|DataNodeStatus { name, tenants, .. }| {
        tenants.iter().map(move |tenant| ([&**name, &*tenant.name], tenant))
    });
    tables::TENANT_AT_DATA_NODE.encode(encoder, tenants)
}

impl<T, const LABELS: usize> MetricTable<T, LABELS> {
    /// Writes each metric with the values of all things. A metric without values is left out.
    fn encode<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        things: impl Iterator<Item = ([&'a str; LABELS], &'a T)> + Clone,
    ) -> fmt::Result {
        for metric in self.metrics {
            let value = |(labels, thing)| Some((labels, (metric.value)(thing)?));
            let mut values = things.clone().filter_map(value).peekable();
            if values.peek().is_none() {
                continue;
            }
            let mut family = metric.kind.describe(encoder, metric.name, metric.help)?;
            for (labels, value) in values {
                // An empty set of labels would be written as `{}`.
                if LABELS == 0 {
                    metric.kind.encode(&mut family, value)?;
                } else {
                    let labels = labelled(self.labels, labels);
                    metric.kind.encode(&mut family.encode_family(&labels)?, value)?;
                }
            }
        }
        Ok(())
    }
}

impl Kind {
    fn describe<'a>(
        self,
        encoder: &'a mut DescriptorEncoder<'_>,
        name: &'a str,
        help: &str,
    ) -> Result<MetricEncoder<'a>, fmt::Error> {
        let (kind, unit) = match self {
            Self::Gauge => (MetricType::Gauge, None),
            Self::GaugeSeconds => (MetricType::Gauge, Some(&Unit::Seconds)),
            Self::Counter => (MetricType::Counter, None),
            Self::CounterSeconds => (MetricType::Counter, Some(&Unit::Seconds)),
        };
        encoder.encode_descriptor(name, help, unit, kind)
    }

    fn encode(self, series: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
        let seconds = value as f64 / 1e9;
        match self {
            Self::Gauge => series.encode_gauge(&(value as f64)),
            Self::GaugeSeconds => series.encode_gauge(&seconds),
            Self::Counter => series.encode_counter::<NoLabelSet, u64, f64>(&value, None),
            Self::CounterSeconds => series.encode_counter::<NoLabelSet, f64, f64>(&seconds, None),
        }
    }
}

impl<const LABELS: usize> Times<LABELS> {
    /// Writes histograms: labels, the sum in nanoseconds, and buckets by their bounds in seconds.
    fn encode<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        series: impl Iterator<Item = ([&'a str; LABELS], u64, Vec<(f64, u64)>)>,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let unit = Some(&Unit::Seconds);
        let mut metric = encoder.encode_descriptor(self.name, self.help, unit, kind)?;
        for (labels, sum_ns, buckets) in series {
            let labels = labelled(self.labels, labels);
            let (sum, count) = (sum_ns as f64 / 1e9, buckets.iter().map(|(_, count)| count).sum());
            let mut series = metric.encode_family(&labels)?;
            series.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Each label with its value.
fn labelled<'a, const LABELS: usize>(
    names: [&'static str; LABELS],
    values: [&'a str; LABELS],
) -> [(&'static str, &'a str); LABELS] {
    std::array::from_fn(|at| (names[at], values[at]))
}

#[cfg(test)]
mod lint_tests;
#[cfg(test)]
mod tests {
    use tidegate_proto::cluster::status::TenantAtDataNode;
    use tidegate_proto::controller::status::{Status, TenantStatus};
    use tidegate_proto::stats::latency::Latencies;

    use super::*;

    #[test]
    fn the_tail_is_reported_in_seconds() {
        let tenant = |name: &str, wait_p99_ns| TenantStatus {
            name: name.into(),
            wait_p99_ns,
            ..TenantStatus::default()
        };
        let tenants = vec![tenant("oltp", Some(1_310_720)), tenant("idle", None)];
        let mut status = Status { tenants, ..Status::default() };
        status.totals.rules_refused = 3;
        let survey =
            Survey { status, waits: Vec::new(), latency: Latencies::default(), cycles: Vec::new() };
        let text = Metrics::new(Histogram::new([1.0])).text(survey).unwrap();
        assert!(text.contains("\ntidegate_tenant_wait_p99_seconds{tenant=\"oltp\"} 0.00131072\n"));
        assert!(!text.contains("wait_p99_seconds{tenant=\"idle\"}"), "it has no requests");
        assert!(text.contains("\ntidegate_rules_refused_total 3\n"), "{text}");
    }

    #[test]
    fn each_scrape_has_its_own_survey() {
        let metrics = Metrics::new(Histogram::new([1.0]));
        for refused in [3, 4] {
            let mut status = Status::default();
            status.totals.rules_refused = refused;
            let (waits, latency) = (Vec::new(), Latencies::default());
            let text = metrics.text(Survey { status, waits, latency, cycles: Vec::new() }).unwrap();
            let line = format!("\ntidegate_rules_refused_total {refused}\n");
            assert_eq!(text.matches(&line).count(), 1, "{text}");
        }
    }

    #[test]
    fn data_nodes_and_their_clients_are_reported() {
        let pair = TenantAtDataNode {
            name: "oltp".into(),
            total_operations: 70,
            total_missed_operations: 3,
            ..TenantAtDataNode::default()
        };
        let node = DataNodeStatus {
            name: "m".into(),
            used_bytes: 4160,
            tenants: vec![pair],
            ..DataNodeStatus::default()
        };
        let cluster = ClusterStatus { data_nodes: vec![node], ..ClusterStatus::default() };
        let status = Status { cluster: Some(cluster), ..Status::default() };
        let survey =
            Survey { status, waits: Vec::new(), latency: Latencies::default(), cycles: Vec::new() };
        let text = Metrics::new(Histogram::new([1.0])).text(survey).unwrap();
        assert!(text.contains("\ntidegate_data_node_used_bytes{node=\"m\"} 4160"), "{text}");
        let pair = "{node=\"m\",tenant=\"oltp\"}";
        for (name, value) in [("operations_total", 70), ("missed_operations_total", 3)] {
            let line = format!("\ntidegate_data_node_tenant_{name}{pair} {value}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
