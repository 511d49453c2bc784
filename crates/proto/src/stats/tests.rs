#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::vec;
use core::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_model::{Discipline, GatewayId, TenantIndex};

use super::latency::{LatencyCounts, RequestLatency};
use super::*;
use crate::cluster::message::FromNode;
use crate::cluster::status::{ClusterTenant, NodeStatus};
use crate::message::{ProcessId, Program, VERSION};
use crate::session::Action;

const FRONT: PeerId = PeerId::Gateway(GatewayId(0));

fn policy(tenants: &[&str]) -> Policy {
    let tenants = tenants.iter().map(|name| alloc::format!("[[tenant]]\nname = {name:?}\n"));
    Policy::parse(&tenants.collect::<String>()).unwrap()
}

fn stats() -> ClusterStats {
    let mut stats = ClusterStats::new(&["a".into(), "b".into()], &["front".into()]);
    stats.apply(1, &policy(&["oltp", "kv"]));
    stats
}

fn second(count: u64) -> Time {
    Time(count * Span::SECOND.0)
}

fn flow(name: &str, requests: u64) -> AnsweredRequests {
    AnsweredRequests { name: name.into(), requests, bytes: 4096 * requests, errors: 0 }
}

/// Counts of one incarnation of the gateway after so many requests, all for one volume and tenant.
fn gateway_counts(incarnation: u64, requests: u64) -> FromGateway {
    FromGateway::Counts(GatewayCounts {
        started_ms: incarnation,
        volumes: vec![flow("db", requests)],
        tenants: vec![flow("oltp", requests)],
        admitted: requests,
        ..GatewayCounts::default()
    })
}

fn node_counts(revision: u64, served: u64) -> NodeCounts {
    let waits = Waits { operations: served, ..Waits::ZERO };
    NodeCounts { revision, served, tenants: vec![(TenantIndex(0), waits)], ..NodeCounts::default() }
}

fn status_at(stats: &ClusterStats, now: Time) -> ClusterStatus {
    let tenant = |name: &str| ClusterTenant { name: name.into(), ..ClusterTenant::default() };
    let node = |id: u16, name: &str| NodeStatus {
        id: NodeId(id),
        name: name.into(),
        ..NodeStatus::default()
    };
    let mut status = ClusterStatus {
        tenants: vec![tenant("oltp"), tenant("kv")],
        nodes: vec![node(0, "a"), node(1, "b")],
        ..ClusterStatus::default()
    };
    stats.fill_status(now, &mut status);
    status
}

fn actions(stats: &mut ClusterStats) -> Vec<Action> {
    core::iter::from_fn(|| stats.outbox.pop()).collect()
}

#[derive(Clone, Debug)]
enum StatsStep {
    /// It does so much more.
    Serves(u64),
    /// Its controller learns how much it has done.
    Answers,
    /// Its connection ends, and it makes another.
    Reconnects,
    /// Its process ends, and another one begins.
    Dies,
    /// Another policy with the same tenants holds.
    Applies,
}

fn steps() -> impl Strategy<Value = Vec<StatsStep>> {
    let step = prop_oneof![
        3 => (0_u64..100).prop_map(StatsStep::Serves),
        3 => Just(StatsStep::Answers),
        1 => Just(StatsStep::Reconnects),
        1 => Just(StatsStep::Dies),
        1 => Just(StatsStep::Applies),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Each answer is counted once: the last of each incarnation.
    #[test]
    fn a_sum_adds_the_last_count_of_each_incarnation(steps in steps()) {
        let mut stats = stats();
        let (mut now, mut revision) = (0, 1);
        let (mut incarnation, mut done, mut last_count, mut ended) = (1, 0, 0, 0);
        stats.on_hello(second(0), "front").unwrap();
        stats.on_node(second(0), NodeId(0), true);
        for step in steps {
            now += 1;
            match step {
                StatsStep::Serves(count) => done += count,
                StatsStep::Answers => {
                    last_count = done;
                    let counts = gateway_counts(incarnation, done);
                    stats.on_message(second(now), GatewayId(0), counts);
                    let counts = node_counts(revision, done);
                    stats.on_node_counts(second(now), NodeId(0), counts);
                }
                StatsStep::Reconnects | StatsStep::Dies => {
                    let is_dead = matches!(step, StatsStep::Dies);
                    if is_dead {
                        ended += last_count;
                        (incarnation, done, last_count) = (incarnation + 1, 0, 0);
                    }
                    stats.on_closed(FRONT, "it is gone");
                    stats.on_closed(PeerId::Node(NodeId(0)), "it is gone");
                    stats.on_hello(second(now), "front").unwrap();
                    stats.on_node(second(now), NodeId(0), is_dead);
                }
                StatsStep::Applies => {
                    // Two in a row, so that the node's first index is oltp's again.
                    stats.apply(revision + 1, &policy(&["kv", "oltp"]));
                    revision += 2;
                    stats.apply(revision, &policy(&["oltp", "kv"]));
                }
            }
            let status = status_at(&stats, second(now));
            prop_assert_eq!(status.gateways[0].requests, ended + last_count);
            prop_assert_eq!(status.gateways[0].bytes, 4096 * (ended + last_count));
            prop_assert_eq!(status.gateways[0].admitted, ended + last_count);
            prop_assert_eq!(status.tenants[0].gateway_requests, ended + last_count);
            prop_assert_eq!(status.tenants[0].total_served_operations, ended + last_count);
            prop_assert_eq!(status.nodes[0].total_served_operations, ended + last_count);
            prop_assert_eq!(status.nodes[1].total_served_operations, 0);
        }
    }
}

#[test]
fn every_node_and_gateway_is_polled_once_a_second() {
    let mut stats = stats();
    assert_eq!(stats.next_deadline(), Time::MAX);
    stats.on_node(second(1), NodeId(0), false);
    stats.on_hello(second(1), "front").unwrap();
    let to_node =
        Action::Send { to: PeerId::Node(NodeId(0)), message: ToPeer::Node(ToNode::Count) };
    let to_gateway = Action::Send { to: FRONT, message: ToPeer::Gateway(ToGateway::Count) };
    let joined = Action::Publish(Event::GatewayJoined { gateway: "front".into() });
    assert_eq!(actions(&mut stats), [to_node.clone(), joined, to_gateway.clone()]);
    assert_eq!(stats.next_deadline(), second(2));
    stats.on_deadline(second(2));
    assert_eq!(actions(&mut stats), [to_node, to_gateway]);
    assert_eq!(stats.next_deadline(), second(3));
    stats.on_closed(PeerId::Node(NodeId(0)), "it closed the connection");
    stats.on_message(second(2), GatewayId(0), FromGateway::Disconnect);
    let left = Event::GatewayLeft { gateway: "front".into(), reason: DISCONNECTED.into() };
    let close = Action::Close(FRONT);
    assert_eq!(actions(&mut stats), [close, Action::Publish(left)]);
    stats.on_deadline(second(3));
    assert_eq!((actions(&mut stats), stats.next_deadline()), (vec![], Time::MAX));
}

#[test]
fn rates_are_those_of_the_last_reading_and_grow_old() {
    let mut stats = stats();
    stats.on_hello(second(0), "front").unwrap();
    stats.on_node(second(0), NodeId(1), false);
    for (at, requests) in [(1, 500), (3, 900)] {
        stats.on_message(second(at), GatewayId(0), gateway_counts(1, requests));
        let counts = NodeCounts { waiting: 5, in_flight: 3, ..node_counts(1, requests) };
        stats.on_node_counts(second(at), NodeId(1), counts);
    }
    let status = status_at(&stats, second(4));
    let (gateway, node, tenant) = (&status.gateways[0], &status.nodes[1], &status.tenants[0]);
    assert_eq!((gateway.requests_per_second, gateway.bytes_per_second), (200, 200 * 4096));
    assert_eq!(gateway.offers[0].requests_per_second, 200);
    assert_eq!((node.served_operations_per_second, node.waiting_operations), (200, 5));
    assert_eq!((tenant.gateway_bytes_per_second, node.in_flight_requests), (200 * 4096, 3));
    assert_eq!((gateway.counted_ns, node.counted_ns), (Some(Span::SECOND.0), Some(Span::SECOND.0)));
    let old = status_at(&stats, second(7));
    assert_eq!((old.gateways[0].requests_per_second, old.gateways[0].requests), (0, 900));
    assert_eq!([gateway.is_silent, old.gateways[0].is_silent], [false, true]);
    assert_eq!(
        (old.nodes[1].served_operations_per_second, old.nodes[1].in_flight_requests),
        (0, 0)
    );
}

#[test]
fn removed_tenants_are_forgotten_and_others_are_kept() {
    let mut stats = stats();
    stats.on_hello(second(0), "front").unwrap();
    stats.on_node(second(0), NodeId(0), false);
    stats.on_message(second(1), GatewayId(0), gateway_counts(1, 7));
    stats.on_node_counts(second(1), NodeId(0), node_counts(1, 7));
    stats.apply(2, &policy(&["kv", "oltp"]));
    let status = status_at(&stats, second(1));
    assert_eq!((status.tenants[0].name.as_str(), status.tenants[0].gateway_requests), ("oltp", 7));
    // The node does not know of it yet, so the first index is still oltp's.
    stats.on_node_counts(second(2), NodeId(0), node_counts(1, 9));
    let status = status_at(&stats, second(2));
    assert_eq!(status.nodes[0].total_served_operations, 9);
    let totals = [0, 1].map(|index| status.tenants[index].total_served_operations);
    assert_eq!(totals, [7, 0]);
    assert_eq!(status.tenants[0].nodes[0].total_served_operations, 7);
    stats.apply(3, &policy(&["kv"]));
    stats.apply(4, &policy(&["oltp", "kv"]));
    let status = status_at(&stats, second(3));
    assert_eq!(status.tenants[0].gateway_requests, 0);
    assert_eq!(status.gateways[0].requests, 7, "the volume is there all the time");
}

/// Says that `message` is these bytes, and these bytes are `message`.
fn is<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M, golden: &[u8]) {
    assert_eq!(postcard::to_allocvec(message).unwrap(), golden, "{message:?}");
    assert_eq!(&postcard::from_bytes::<M>(golden).unwrap(), message);
}

/// The latency of so many reads in the first bucket.
fn reads(tenant: &str, requests: u64) -> RequestLatency {
    let mut counts = LatencyCounts { total_ns: 1_000 * requests, ..LatencyCounts::default() };
    counts.buckets[0] = requests;
    RequestLatency { tenant: tenant.into(), operation: "read".into(), counts }
}

#[test]
fn latencies_are_counted_over_restarts_and_of_known_tenants_only() {
    let mut stats = stats();
    let totals = |stats: &ClusterStats| {
        let all = stats.latency().gateways.into_iter().map(|(names, counts)| {
            let [gateway, tenant, operation] = names;
            assert_eq!((&*gateway, &*operation), ("front", "read"));
            assert_eq!(counts.total_ns, 1_000 * counts.requests());
            (tenant, counts.requests())
        });
        all.collect::<Vec<(String, u64)>>()
    };
    for (incarnation, requests) in [(1, 3), (1, 5), (2, 4)] {
        stats.on_hello(second(incarnation), "front").unwrap();
        stats.on_message(second(incarnation), GatewayId(0), gateway_counts(incarnation, requests));
        // After its restart there are no requests without a tenant: the earlier ones still count.
        let names = ["oltp", "unknown", ""].into_iter().take(4 - incarnation as usize);
        let latency = names.map(|tenant| reads(tenant, requests)).collect();
        stats.on_message(second(incarnation), GatewayId(0), FromGateway::Latency(latency));
    }
    assert_eq!(totals(&stats), [("".into(), 5), ("oltp".into(), 9)]);
    stats.apply(2, &policy(&["kv"]));
    assert_eq!(totals(&stats), [("".into(), 5)]);
    stats.apply(3, &policy(&["oltp"]));
    assert_eq!(totals(&stats), [("".into(), 5)]);
}

/// A node that restarts with a plan or without one counts from zero.
#[test]
fn times_at_nodes_are_counted_over_restarts() {
    let mut stats = stats();
    for (requests, is_blank) in [(3, true), (5, false), (4, true)] {
        stats.on_node(second(1), NodeId(1), is_blank);
        stats.on_node_counts(second(1), NodeId(1), node_counts(1, requests));
        let [latency, queued] = [requests, requests].map(|count| vec![reads("oltp", count)]);
        stats.on_node_latency(NodeId(1), NodeLatency { requests: latency, queued });
    }
    let Latencies { gateways, nodes, queues } = stats.latency();
    assert!(gateways.is_empty());
    for times in [nodes, queues] {
        let [(names, counts)] = &times[..] else { panic!("{times:?}") };
        assert_eq!(*names, ["b", "oltp", "read"].map(String::from));
        assert_eq!((counts.requests(), counts.total_ns), (9, 9_000));
    }
    stats.apply(2, &policy(&["kv"]));
    assert!(stats.latency().nodes.is_empty() && stats.latency().queues.is_empty());
}

#[test]
fn a_gateway_cannot_have_any_number_of_operations_kept() {
    let mut stats = stats();
    stats.on_hello(second(0), "front").unwrap();
    let kind = |number: u32| RequestLatency {
        operation: alloc::format!("operation {number}"),
        ..reads("oltp", 1)
    };
    stats.on_message(second(1), GatewayId(0), FromGateway::Latency((0..1_000).map(kind).collect()));
    assert_eq!(stats.latency().gateways.len(), 3 * KINDS_MAX);
}

/// Clients turned away are counted over restarts of a gateway; its memory is that of the present
/// process.
#[test]
fn rejected_clients_are_counted_by_reason() {
    let mut stats = stats();
    stats.on_hello(Time::ZERO, "front").unwrap();
    let mut report = |incarnation: u64, turned_away: u64, used: u64| {
        stats.on_message(second(incarnation), GatewayId(0), gateway_counts(incarnation, 1));
        let turned_away = vec![("address_quota".into(), turned_away), ("memory_budget".into(), 0)];
        let (memory_used_bytes, memory_limit_bytes) = (used, 100);
        let pressure = GatewayPressure { turned_away, memory_used_bytes, memory_limit_bytes };
        stats.on_message(second(incarnation), GatewayId(0), FromGateway::Pressure(pressure));
        let status = status_at(&stats, second(incarnation)).gateways.remove(0);
        let reasons = status.turned_away_for.into_iter().map(|it| (it.reason, it.clients));
        let reasons: Vec<_> = reasons.collect();
        (reasons, status.memory_used_bytes, status.memory_limit_bytes)
    };
    let reasons = |quota| vec![("address_quota".into(), quota), ("memory_budget".into(), 0)];
    assert_eq!(report(1, 3, 7), (reasons(3), 7, 100));
    assert_eq!(report(1, 5, 8), (reasons(5), 8, 100));
    assert_eq!(report(2, 4, 0), (reasons(9), 0, 100), "another life has counted from zero");
    stats.on_closed(FRONT, "it is gone");
    let status = status_at(&stats, second(3)).gateways.remove(0);
    assert_eq!((status.memory_used_bytes, status.memory_limit_bytes), (0, 0));
}

#[test]
fn golden_bytes_of_programs() {
    assert_eq!(VERSION, 10, "a new version needs new golden bytes beside these");
    let process = ProcessId { pid: 7, started: 300 };
    let programs = ToGateway::Programs {
        space: "m".into(),
        is_first: true,
        joined: vec![Program { process, uid: 1000, tenant: "kv".into() }],
        left: vec![ProcessId { pid: 8, started: 9 }],
    };
    is(&programs, b"\x04\x01m\x01\x01\x07\xac\x02\xe8\x07\x02kv\x01\x08\x09");
}

#[test]
fn golden_bytes() {
    assert_eq!(VERSION, 10, "a new version needs new golden bytes beside these");
    is(&ToNode::Count, &[5]);
    is(&ToGateway::Count, &[2]);
    let counts = NodeCounts {
        revision: 7,
        served: 300,
        waiting: 2,
        in_flight: 31,
        depth: 32,
        bound: Some(4),
        discipline: Discipline::Sfq,
        tenants: vec![(
            TenantIndex(200),
            Waits { operations: 1, limit_ns: 2, reservation_ns: 3, turn_ns: 4, device_ns: 128 },
        )],
    };
    let golden = [3, 7, 0xac, 2, 2, 31, 32, 1, 4, 3, 1, 0xc8, 1, 1, 2, 3, 4, 0x80, 1];
    is(&FromNode::Counts(counts), &golden);
    let counts = GatewayCounts {
        started_ms: 300,
        pid: 7,
        host: "h".into(),
        release: "0.1".into(),
        nbd: vec!["n".into()],
        memcached: vec!["m".into()],
        clients: 1,
        admitted: 2,
        turned_away: 3,
        refused: 4,
        faults: vec![("io".into(), 5)],
        volumes: vec![AnsweredRequests { name: "db".into(), requests: 6, bytes: 128, errors: 5 }],
        pools: vec![flow("p", 0)],
        tenants: vec![flow("", 1)],
    };
    let golden = b"\x00\xac\x02\x07\x01h\x030.1\x01\x01n\x01\x01m\x01\x02\x03\x04\x01\x02io\x05\
        \x01\x02db\x06\x80\x01\x05\x01\x01p\x00\x00\x00\x01\x00\x01\x80\x20\x00";
    is(&FromGateway::Counts(counts), golden);
    is(&FromGateway::Disconnect, &[1]);
    let fault = VolumeFault { volume: "v".into(), reason: "x".into() };
    is(&FromGateway::Faults(vec![fault]), b"\x02\x01\x01v\x01x");
    let pressure = GatewayPressure {
        turned_away: vec![("access_denied".into(), 300)],
        memory_used_bytes: 5,
        memory_limit_bytes: 128,
    };
    let golden = b"\x03\x01\x0daccess_denied\xac\x02\x05\x80\x01";
    is(&FromGateway::Pressure(pressure), golden);
    let mut latency = RequestLatency { tenant: "t".into(), ..reads("", 300) };
    latency.counts.buckets[19] = 1;
    let mut golden = b"\x04\x01\x01t\x04read\xe0\xa7\x12\xac\x02".to_vec();
    golden.extend([0; 18].into_iter().chain([1]));
    is(&FromGateway::Latency(vec![latency.clone()]), &golden);
    let latency = NodeLatency { requests: vec![latency], queued: Vec::new() };
    golden[0] = 9;
    golden.push(0);
    is(&FromNode::Latency(latency), &golden);
}
