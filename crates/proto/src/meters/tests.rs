#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::vec;
use core::fmt::Debug;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_model::Discipline;

use super::*;
use crate::cluster::message::FromNode;
use crate::cluster::status::{ClusterTenant, NodeStatus};

const LINK: ConnectionId = ConnectionId(1);

fn policy(tenants: &[&str]) -> Policy {
    let tenants = tenants.iter().map(|name| alloc::format!("[[tenant]]\nname = {name:?}\n"));
    Policy::parse(&tenants.collect::<String>()).unwrap()
}

fn meters() -> Meters {
    let mut meters = Meters::new(&["a".into(), "b".into()], &["front".into()]);
    meters.apply(1, &policy(&["oltp", "kv"]));
    meters
}

fn second(count: u64) -> Time {
    Time(count * Span::SECOND.0)
}

fn flow(name: &str, requests: u64) -> Flow {
    Flow { name: name.into(), requests, bytes: 4096 * requests, errors: 0 }
}

/// Counts of one incarnation of the gateway after so many requests, all for one volume and tenant.
fn gateway_counts(life: u64, requests: u64) -> FromGateway {
    FromGateway::Counts(GatewayCounts {
        started_ms: life,
        volumes: vec![flow("db", requests)],
        tenants: vec![flow("oltp", requests)],
        admitted: requests,
        ..GatewayCounts::default()
    })
}

fn node_counts(revision: u64, served: u64) -> NodeCounts {
    let waits = Waits { operations: served, ..Waits::ZERO };
    NodeCounts { revision, served, tenants: vec![(0, waits)], ..NodeCounts::default() }
}

fn told(meters: &Meters, now: Time) -> ClusterStatus {
    let tenant = |name: &str| ClusterTenant { name: name.into(), ..ClusterTenant::default() };
    let node = |id: u16, name: &str| NodeStatus { id, name: name.into(), ..NodeStatus::default() };
    let mut status = ClusterStatus {
        tenants: vec![tenant("oltp"), tenant("kv")],
        nodes: vec![node(0, "a"), node(1, "b")],
        ..ClusterStatus::default()
    };
    meters.tell(now, &mut status);
    status
}

fn outputs(meters: &mut Meters) -> Vec<Output> {
    core::iter::from_fn(|| meters.poll_output()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// It does so much more.
    Serves(u64),
    /// Its controller hears how much it has done.
    Answers,
    /// Its connection ends, and it makes another.
    Reconnects,
    /// Its process ends, and another one begins.
    Dies,
    /// Another policy with the same tenants holds.
    Applies,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u64..100).prop_map(Step::Serves),
        3 => Just(Step::Answers),
        1 => Just(Step::Reconnects),
        1 => Just(Step::Dies),
        1 => Just(Step::Applies),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// All that was heard is counted once: the last answer of each life.
    #[test]
    fn a_sum_is_what_each_life_said_last(steps in steps()) {
        let mut meters = meters();
        let (mut link, mut now, mut revision) = (1, 0, 1);
        let (mut life, mut done, mut said, mut ended) = (1, 0, 0, 0);
        meters.on_gateway(second(0), ConnectionId(link), VERSION, "front");
        meters.on_node(second(0), ConnectionId(link + 1), "a", true);
        for step in steps {
            now += 1;
            match step {
                Step::Serves(count) => done += count,
                Step::Answers => {
                    said = done;
                    let counts = gateway_counts(life, done);
                    meters.on_gateway_said(second(now), ConnectionId(link), counts);
                    let counts = node_counts(revision, done);
                    meters.on_node_counts(second(now), ConnectionId(link + 1), counts);
                }
                Step::Reconnects | Step::Dies => {
                    let is_dead = matches!(step, Step::Dies);
                    if is_dead {
                        (ended, life, done, said) = (ended + said, life + 1, 0, 0);
                    }
                    meters.on_closed(ConnectionId(link), "it is gone");
                    meters.on_closed(ConnectionId(link + 1), "it is gone");
                    link += 2;
                    meters.on_gateway(second(now), ConnectionId(link), VERSION, "front");
                    meters.on_node(second(now), ConnectionId(link + 1), "a", is_dead);
                }
                Step::Applies => {
                    // Two in a row, so that the node's first place is oltp's again.
                    meters.apply(revision + 1, &policy(&["kv", "oltp"]));
                    revision += 2;
                    meters.apply(revision, &policy(&["oltp", "kv"]));
                }
            }
            let status = told(&meters, second(now));
            prop_assert_eq!(status.gateways[0].requests, ended + said);
            prop_assert_eq!(status.gateways[0].bytes, 4096 * (ended + said));
            prop_assert_eq!(status.gateways[0].admitted, ended + said);
            prop_assert_eq!(status.tenants[0].gateway_requests, ended + said);
            prop_assert_eq!(status.tenants[0].total_served_operations, ended + said);
            prop_assert_eq!(status.nodes[0].total_served_operations, ended + said);
            prop_assert_eq!(status.nodes[1].total_served_operations, 0);
        }
    }
}

#[test]
fn everybody_is_asked_once_a_second() {
    let mut meters = meters();
    assert_eq!(meters.next_deadline(), Time::MAX);
    meters.on_node(second(1), LINK, "a", false);
    assert!(meters.on_gateway(second(1), ConnectionId(2), VERSION, "front"));
    let to_node = Output::ToNode { to: LINK, message: ToNode::Count };
    let to_gateway = Output::ToGateway { to: ConnectionId(2), message: ToGateway::Count };
    let joined = Output::Event(Event::GatewayJoined { gateway: "front".into() });
    assert_eq!(outputs(&mut meters), [to_node.clone(), joined, to_gateway.clone()]);
    assert_eq!(meters.next_deadline(), second(2));
    meters.on_deadline(second(2));
    assert_eq!(outputs(&mut meters), [to_node, to_gateway]);
    assert_eq!(meters.next_deadline(), second(3));
    meters.on_closed(LINK, "it closed the connection");
    meters.on_gateway_said(second(2), ConnectionId(2), FromGateway::Goodbye);
    let left = Event::GatewayLeft { gateway: "front".into(), reason: DISCONNECTED.into() };
    let close = Output::Close { connection: ConnectionId(2) };
    assert_eq!(outputs(&mut meters), [close, Output::Event(left)]);
    meters.on_deadline(second(3));
    assert_eq!((outputs(&mut meters), meters.next_deadline()), (vec![], Time::MAX));
}

#[test]
fn who_is_no_gateway_of_the_cluster_is_told_so() {
    let mut meters = meters();
    for (version, name, why) in [(VERSION + 1, "front", "same release"), (VERSION, "x", "\"x\"")] {
        assert!(!meters.on_gateway(Time::ZERO, LINK, version, name));
        let [refused, close, event] = outputs(&mut meters).try_into().unwrap();
        let Output::ToGateway { message: ToGateway::Refused { reason, .. }, .. } = refused else {
            panic!("{refused:?}")
        };
        assert!(reason.contains(why), "{reason}");
        assert_eq!(close, Output::Close { connection: LINK });
        assert_eq!(event, Output::Event(Event::GatewayRefused { gateway: name.into(), reason }));
    }
    assert_eq!((meters.gateways().count(), meters.next_deadline()), (0, Time::MAX));
}

#[test]
fn a_new_connection_takes_the_place_of_the_old_one() {
    let mut meters = meters();
    meters.on_gateway(Time::ZERO, LINK, VERSION, "front");
    outputs(&mut meters);
    meters.on_gateway(second(1), ConnectionId(2), VERSION, "front");
    let outputs = outputs(&mut meters);
    assert_eq!(outputs[0], Output::Close { connection: LINK });
    assert!(matches!(&outputs[1], Output::Event(Event::GatewayLeft { .. })), "{outputs:?}");
    assert!(meters.gateways().eq([ConnectionId(2)]));
    meters.on_closed(LINK, "the old one");
    meters.on_gateway_said(second(1), LINK, gateway_counts(1, 9));
    assert!(meters.gateways().eq([ConnectionId(2)]));
    assert_eq!(told(&meters, second(1)).gateways[0].requests, 0);
}

#[test]
fn rates_are_those_of_the_last_reading_and_grow_old() {
    let mut meters = meters();
    meters.on_gateway(second(0), LINK, VERSION, "front");
    meters.on_node(second(0), ConnectionId(2), "b", false);
    for (at, requests) in [(1, 500), (3, 900)] {
        meters.on_gateway_said(second(at), LINK, gateway_counts(1, requests));
        let counts = NodeCounts { waiting: 5, in_flight: 3, ..node_counts(1, requests) };
        meters.on_node_counts(second(at), ConnectionId(2), counts);
    }
    let status = told(&meters, second(4));
    let (gateway, node, tenant) = (&status.gateways[0], &status.nodes[1], &status.tenants[0]);
    assert_eq!((gateway.requests_per_second, gateway.bytes_per_second), (200, 200 * 4096));
    assert_eq!(gateway.offers[0].requests_per_second, 200);
    assert_eq!((node.served_operations_per_second, node.waiting_operations), (200, 5));
    assert_eq!((tenant.gateway_bytes_per_second, node.in_flight_requests), (200 * 4096, 3));
    assert_eq!((gateway.counted_ns, node.counted_ns), (Some(Span::SECOND.0), Some(Span::SECOND.0)));
    let old = told(&meters, second(7));
    assert_eq!((old.gateways[0].requests_per_second, old.gateways[0].requests), (0, 900));
    assert_eq!([gateway.is_silent, old.gateways[0].is_silent], [false, true]);
    assert_eq!(
        (old.nodes[1].served_operations_per_second, old.nodes[1].in_flight_requests),
        (0, 0)
    );
}

#[test]
fn who_left_the_policy_is_forgotten_and_who_stays_is_not() {
    let mut meters = meters();
    meters.on_gateway(second(0), LINK, VERSION, "front");
    meters.on_node(second(0), ConnectionId(2), "a", false);
    meters.on_gateway_said(second(1), LINK, gateway_counts(1, 7));
    meters.on_node_counts(second(1), ConnectionId(2), node_counts(1, 7));
    meters.apply(2, &policy(&["kv", "oltp"]));
    let status = told(&meters, second(1));
    assert_eq!((status.tenants[0].name.as_str(), status.tenants[0].gateway_requests), ("oltp", 7));
    // The node has not heard of it yet, so the first place is still oltp's.
    meters.on_node_counts(second(2), ConnectionId(2), node_counts(1, 9));
    let status = told(&meters, second(2));
    assert_eq!(status.nodes[0].total_served_operations, 9);
    let totals = [0, 1].map(|place| status.tenants[place].total_served_operations);
    assert_eq!(totals, [7, 0]);
    assert_eq!(status.tenants[0].nodes[0].total_served_operations, 7);
    meters.apply(3, &policy(&["kv"]));
    meters.apply(4, &policy(&["oltp", "kv"]));
    let status = told(&meters, second(3));
    assert_eq!(status.tenants[0].gateway_requests, 0);
    assert_eq!(status.gateways[0].requests, 7, "the volume is there all the time");
}

/// Says that `message` is these bytes, and these bytes are `message`.
fn is<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M, golden: &[u8]) {
    assert_eq!(postcard::to_allocvec(message).unwrap(), golden, "{message:?}");
    assert_eq!(&postcard::from_bytes::<M>(golden).unwrap(), message);
}

/// Clients turned away are counted over restarts of a gateway; its memory is that of the present
/// process.
#[test]
fn clients_that_a_gateway_turned_away_are_told_by_reason() {
    let mut meters = meters();
    assert!(meters.on_gateway(Time::ZERO, LINK, VERSION, "front"));
    let mut say = |life: u64, turned_away: u64, used: u64| {
        meters.on_gateway_said(second(life), LINK, gateway_counts(life, 1));
        let turned_away = vec![("address_quota".into(), turned_away), ("memory_budget".into(), 0)];
        let (memory_used_bytes, memory_limit_bytes) = (used, 100);
        let pressure = GatewayPressure { turned_away, memory_used_bytes, memory_limit_bytes };
        meters.on_gateway_said(second(life), LINK, FromGateway::Pressure(pressure));
        let status = told(&meters, second(life)).gateways.remove(0);
        let reasons = status.turned_away_for.into_iter().map(|it| (it.reason, it.clients));
        let reasons: Vec<_> = reasons.collect();
        (reasons, status.memory_used_bytes, status.memory_limit_bytes)
    };
    let reasons = |quota| vec![("address_quota".into(), quota), ("memory_budget".into(), 0)];
    assert_eq!(say(1, 3, 7), (reasons(3), 7, 100));
    assert_eq!(say(1, 5, 8), (reasons(5), 8, 100));
    assert_eq!(say(2, 4, 0), (reasons(9), 0, 100), "another life has counted from zero");
    meters.on_closed(LINK, "it is gone");
    let status = told(&meters, second(3)).gateways.remove(0);
    assert_eq!((status.memory_used_bytes, status.memory_limit_bytes), (0, 0));
}

#[test]
fn golden_bytes() {
    assert_eq!(VERSION, 1, "a new version needs new golden bytes beside these");
    is(&ToNode::Count, &[5]);
    is(&ToGateway::Count, &[2]);
    let counts = NodeCounts {
        revision: 7,
        served: 300,
        waiting: 2,
        in_flight: 31,
        depth: 32,
        discipline: Discipline::Sfq,
        tenants: vec![(
            200,
            Waits { operations: 1, limit_ns: 2, reservation_ns: 3, turn_ns: 4, device_ns: 128 },
        )],
    };
    let golden = [3, 7, 0xac, 2, 2, 31, 32, 3, 1, 0xc8, 1, 1, 2, 3, 4, 0x80, 1];
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
        volumes: vec![Flow { name: "db".into(), requests: 6, bytes: 128, errors: 5 }],
        pools: vec![flow("p", 0)],
        tenants: vec![flow("", 1)],
    };
    let golden = b"\x00\xac\x02\x07\x01h\x030.1\x01\x01n\x01\x01m\x01\x02\x03\x04\x01\x02io\x05\
        \x01\x02db\x06\x80\x01\x05\x01\x01p\x00\x00\x00\x01\x00\x01\x80\x20\x00";
    is(&FromGateway::Counts(counts), golden);
    is(&FromGateway::Goodbye, &[1]);
    let fault = VolumeFault { volume: "v".into(), reason: "x".into() };
    is(&FromGateway::Faults(vec![fault]), b"\x02\x01\x01v\x01x");
    let pressure = GatewayPressure {
        turned_away: vec![("access_denied".into(), 300)],
        memory_used_bytes: 5,
        memory_limit_bytes: 128,
    };
    let golden = b"\x03\x01\x0daccess_denied\xac\x02\x05\x80\x01";
    is(&FromGateway::Pressure(pressure), golden);
}
