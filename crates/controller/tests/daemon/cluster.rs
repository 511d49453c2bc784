//! Nodes and gateways of a cluster, played by hand.

use serde::de::DeserializeOwned;
use tidegate_controller::Config;
use tidegate_model::{Cluster, Discipline, TenantIndex, Waits};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, NodeReport, PartFault, ToNode};
use tidegate_proto::message::{
    FromGateway, Hello, OperatorRequest, Reply, ToGateway, VERSION, VolumeFault,
};
use tidegate_proto::stats::delays::Delays;
use tidegate_proto::stats::latency::{LatencyCounts, RequestLatency};
use tidegate_proto::stats::message::{
    AnsweredRequests, GatewayCounts, GatewayPressure, NodeCounts,
};

use crate::harness::{Client, Running, config};

const CLUSTER: &str = r#"
    [[node]]
    name = "a"
    memory = true
    capacity = "1k iops"
    [[volume]]
    name = "db"
    size = "1MiB"
    tenant = "oltp"
    nodes = "a"
    [[gateway]]
    name = "front"
    nbd = "127.0.0.1:0"
    [[gateway]]
    name = "side"
    nbd = "127.0.0.1:0"
"#;

const POLICY: &str = r#"
    period = "100ms"
    redistribute = "20ms"
    [[tenant]]
    name = "oltp"
    reservation = "800 iops"
"#;

fn under_policy() -> Running {
    let daemon = Running::with_cluster(CLUSTER);
    daemon.apply(POLICY);
    daemon
}

/// Hears until `wanted` finds what it looks for.
fn until<M: DeserializeOwned, T>(
    client: &mut Client<M>,
    mut wanted: impl FnMut(M) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = wanted(client.receive()) {
            return found;
        }
    }
}

fn node(daemon: &Running, name: &str) -> Client<ToNode> {
    let mut node = daemon.connect();
    let info = NodeInfo { name: name.into(), pid: 7, ..NodeInfo::default() };
    node.send(&Hello::Node { version: VERSION, info });
    node
}

fn gateway(daemon: &Running, version: u16, name: &str) -> Client<ToGateway> {
    let mut gateway = daemon.connect();
    gateway.send(&Hello::Gateway { version, name: name.into() });
    gateway
}

#[test]
fn a_node_is_sent_its_counts_and_shown_in_the_status() {
    let daemon = under_policy();
    let mut node = node(&daemon, "a");
    let plan = until(&mut node, |message| match message {
        ToNode::Plan(plan) => Some(plan),
        _ => None,
    });
    assert_eq!((plan.revision, plan.rounds, plan.tenants.len()), (1, 5, 1));
    // It answers until it receives its counts.
    let granted = loop {
        let (round_id, grant) = until(&mut node, |message| match message {
            ToNode::Collect { round_id, .. } => Some((Some(round_id), None)),
            ToNode::Grant(grant) => Some((None, Some(grant))),
            _ => None,
        });
        if let Some(round_id) = round_id {
            let report =
                NodeReport { revision: 1, round_id, capacity_left: 100, ..NodeReport::default() };
            node.send(&FromNode::Report(report));
        }
        if let Some(grant) = grant.filter(|grant| !grant.shares.is_empty()) {
            break grant;
        }
    };
    // 800 per second are 80 in a period of 100 ms.
    assert_eq!(granted.shares[0].tenant, TenantIndex(0));
    assert!((1..=80).contains(&granted.shares[0].reserved), "{granted:?}");
    let status = daemon.wait_for("the node", |status| {
        status.cluster.as_ref().is_some_and(|cluster| cluster.nodes[0].is_connected)
    });
    let cluster = status.cluster.unwrap();
    assert_eq!((cluster.nodes[0].name.as_str(), cluster.nodes[0].pid), ("a", 7));
    assert_eq!(cluster.tenants[0].reserved_operations, 80);
}

/// The answer to `GET /readyz`.
fn readiness(daemon: &Running) -> (u16, String) {
    let (status, _, body) = daemon.http("GET /readyz HTTP/1.1", "");
    (status, body)
}

#[test]
fn a_cluster_is_ready_while_its_volumes_can_be_served() {
    let daemon = under_policy();
    let away = "{\"code\":1,\"message\":\"node a is away; it serves volume db\"}";
    assert_eq!(readiness(&daemon), (503, away.into()), "it has not come yet");
    let mut node = node(&daemon, "a");
    daemon.wait_for("the node", |status| status.cluster.as_ref().unwrap().nodes[0].is_connected);
    assert_eq!(readiness(&daemon), (200, "ok\n".into()));
    node.send(&FromNode::StoreFault(Some("memcached at m is away: gone".into())));
    let fault = |status: &tidegate_proto::controller::status::Status| {
        status.cluster.as_ref().unwrap().nodes[0].store_fault.clone()
    };
    daemon.wait_for("the fault", |status| fault(status).is_some());
    let (code, body) = readiness(&daemon);
    let reason = "node a: memcached at m is away: gone; it serves volume db";
    assert!(code == 503 && body.contains(reason), "{body}");
    let metrics = daemon.http("GET /metrics HTTP/1.1", "").2;
    assert!(metrics.contains("tidegate_node_store_away{node=\"a\"} 1"), "{metrics}");
    node.send(&FromNode::StoreFault(None));
    daemon.wait_for("its end", |status| fault(status).is_none());
    assert_eq!(readiness(&daemon).0, 200);
    drop(node);
    daemon.wait_for("its going", |status| !status.cluster.as_ref().unwrap().nodes[0].is_connected);
    assert_eq!(readiness(&daemon), (503, away.into()));
}

#[test]
fn a_process_without_a_controller_serves_its_own_address() {
    let reasons = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let shared_reasons = reasons.clone();
    let any = ([127, 0, 0, 1], 0).into();
    let reasons_now = std::sync::Arc::new(move || shared_reasons.lock().unwrap().clone());
    let probe = tidegate_controller::Probe::start(any, &[], reasons_now).unwrap();
    let request = |target: &str, host: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(probe.address()).unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let ok = |answer: &str| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n");
    assert!(ok(&request("/healthz", "localhost")) && ok(&request("/readyz", "localhost")));
    reasons.lock().unwrap().push("node b is away".into());
    let answer = request("/readyz", "localhost");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("node b is away"), "{answer}");
    assert!(ok(&request("/healthz", "localhost")), "it lives");
    assert!(request("/readyz", "evil.example").starts_with("HTTP/1.1 421 "));
    assert!(request("/v1/status", "localhost").starts_with("HTTP/1.1 404 "));
}

/// The schedulers of nodes, as the status shows them, and whether they were chosen.
fn schedulers(daemon: &Running) -> Vec<(String, bool)> {
    let nodes = daemon.status().cluster.unwrap().nodes;
    nodes
        .into_iter()
        .map(|node| (node.assigned_scheduler.unwrap(), node.is_scheduler_chosen))
        .collect()
}

#[test]
fn a_scheduler_is_chosen_and_stays_so() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        let cluster = Some(Cluster::parse(CLUSTER).unwrap());
        Running::try_start(Config { cluster, ..config(directory.path()) }, None).unwrap()
    };
    let daemon = start();
    daemon.apply(POLICY);
    let mut node_a = node(&daemon, "a");
    let mut next = || {
        until(&mut node_a, |message| match message {
            ToNode::Plan(plan) => Some((plan.revision, plan.discipline.unwrap().name())),
            _ => None,
        })
    };
    assert_eq!(next(), (1, "token"));
    let choose = |node: Option<&str>, scheduler| {
        daemon.request(&OperatorRequest::Choose { node: node.map(String::from), scheduler })
    };
    assert!(matches!(choose(Some("a"), Some(Discipline::Sfq)), Reply::Json(_)));
    assert_eq!(next(), (1, "sfq"), "the policy is the same");
    let Reply::Error { code: 1, message } = choose(Some("z"), None) else { panic!() };
    assert_eq!(message, "the cluster has no node \"z\"; there are a");
    let token = daemon.token();
    let http = |method: &str, name: &str, body: &str| {
        let head =
            format!("{method} /v1/nodes/{name}/scheduler HTTP/1.1\r\nAuthorization: Bearer ");
        daemon.http(&(head + &token), body)
    };
    assert_eq!(http("PUT", "a", "unified\n").0, 200);
    assert_eq!(next(), (1, "unified"));
    let (status, _, body) = http("PUT", "a", "mclock");
    assert!(status == 422 && body.contains("known are fifo, round-robin"), "{body}");
    assert_eq!((http("PUT", "z", "sfq").0, http("DELETE", "z", "").0), (404, 404));
    let unsigned = daemon.http("PUT /v1/nodes/a/scheduler HTTP/1.1", "fifo").0;
    assert_eq!((unsigned, schedulers(&daemon)), (401, vec![("unified".into(), true)]));
    daemon.stop();
    let daemon = start();
    assert_eq!(schedulers(&daemon), [("unified".into(), true)]);
    let Reply::Json(_) = daemon.request(&OperatorRequest::Choose { node: None, scheduler: None })
    else {
        panic!()
    };
    assert_eq!(schedulers(&daemon), [("token".into(), false)]);
}

#[test]
fn an_unknown_node_is_refused_with_the_reason() {
    let refusal = |mut node: Client<ToNode>| {
        until(&mut node, |message| match message {
            ToNode::Refused { reason, .. } => Some(reason),
            _ => None,
        })
    };
    let daemon = Running::with_cluster(CLUSTER);
    let reason = refusal(node(&daemon, "z"));
    assert!(reason.contains("\"z\""), "{reason}");
    let alone = Running::new();
    let reason = refusal(node(&alone, "a"));
    assert!(reason.contains("no cluster"), "{reason}");
}

#[test]
fn a_policy_that_the_nodes_cannot_keep_is_refused_with_the_proof() {
    let daemon = Running::with_cluster(CLUSTER);
    let policy = POLICY.replace("800 iops", "1200 iops");
    let request = OperatorRequest::Apply { policy, source: "t".into(), dry_run: false, expect: 0 };
    let Reply::Error { code, message } = daemon.request(&request) else { panic!("accepted") };
    assert_eq!(code, 4);
    let proof = "node a can do 1k iops; oltp is promised 1200 iops there";
    assert!(message.contains(proof), "{message}");
}

#[test]
fn gateways_receive_every_policy() {
    let daemon = Running::with_cluster(CLUSTER);
    let mut early = gateway(&daemon, VERSION, "front");
    daemon.apply(POLICY);
    let mut late = gateway(&daemon, VERSION, "side");
    daemon.wait_for("the policy", |status| status.revision == 1);
    for gateway in [&mut early, &mut late] {
        let names = until(gateway, |message| match message {
            ToGateway::Policy { revision: 1, policy } => Some(policy.tenants[0].name.clone()),
            _ => None,
        });
        assert_eq!(names, "oltp");
    }
    daemon.apply(&POLICY.replace("800", "900"));
    until(&mut early, |message| {
        matches!(message, ToGateway::Policy { revision: 2, .. }).then_some(())
    });
    let reason = until(&mut gateway(&daemon, VERSION + 1, "front"), |message| match message {
        ToGateway::Refused { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(reason.contains("same release"), "{reason}");
}

#[test]
fn what_nodes_and_gateways_count_is_in_status_and_metrics() {
    let daemon = under_policy();
    let await_request = |client: &mut Client<ToGateway>| {
        until(client, |message| (message == ToGateway::Count).then_some(()))
    };
    let mut node = node(&daemon, "a");
    until(&mut node, |message| matches!(message, ToNode::Plan(_)).then_some(()));
    // It is asked again and again, and has had the plan for a while when it answers.
    until(&mut node, |message| (message == ToNode::Count).then_some(()));
    let tenants =
        vec![(TenantIndex(0), Waits { operations: 40, limit_ns: 1_500_000_000, ..Waits::ZERO })];
    let counts = NodeCounts { revision: 1, served: 41, waiting: 3, tenants, ..Default::default() };
    node.send(&FromNode::Counts(NodeCounts { in_flight: 2, depth: 32, ..counts }));
    let flow = |name: &str, requests| {
        let name = name.into();
        AnsweredRequests { name, requests, bytes: 512, errors: 1 }
    };
    let mut front = gateway(&daemon, VERSION, "front");
    for (incarnation, requests) in [(1, 30), (2, 11)] {
        await_request(&mut front);
        front.send(&FromGateway::Counts(GatewayCounts {
            started_ms: incarnation,
            nbd: vec!["unix:front.sock".into()],
            clients: 4,
            faults: vec![("no_space".into(), 1)],
            volumes: vec![flow("db", requests)],
            tenants: vec![flow("oltp", requests)],
            ..GatewayCounts::default()
        }));
        daemon.wait_for("the counts", |status| {
            let gateway = &status.cluster.as_ref().unwrap().gateways[0];
            gateway.started_ms == incarnation
        });
        front = gateway(&daemon, VERSION, "front");
    }
    let status = daemon
        .wait_for("its end", |status| status.cluster.as_ref().unwrap().gateways[0].is_connected);
    let cluster = status.cluster.unwrap();
    let (front, a, oltp) = (&cluster.gateways[0], &cluster.nodes[0], &cluster.tenants[0]);
    assert_eq!((front.requests, front.errors, front.bytes), (41, 2, 1024));
    assert_eq!((front.offers[0].name.as_str(), front.faults[0].requests), ("db", 2));
    assert_eq!((a.total_served_operations, a.waiting_operations, a.depth_requests), (41, 3, 32));
    assert_eq!((oltp.gateway_requests, oltp.total_served_operations), (41, 40));
    let (_, _, text) = daemon.http("GET /metrics HTTP/1.1", "");
    for line in [
        "tidegate_node_served_operations_total{node=\"a\"} 41",
        "tidegate_node_capacity_operations{node=\"a\"} 0.0",
        "tidegate_node_tenant_demand_operations{node=\"a\",tenant=\"oltp\"} 0.0",
        "tidegate_node_tenant_served_operations_total{node=\"a\",tenant=\"oltp\"} 40",
        "tidegate_node_tenant_wait_seconds_total{node=\"a\",tenant=\"oltp\",rule=\"limit\"} 1.5",
        "tidegate_node_tenant_wait_seconds_total{node=\"a\",tenant=\"oltp\",rule=\"turn\"} 0.0",
        "tidegate_gateway_connected{gateway=\"front\"} 1.0",
        "tidegate_gateway_requests_total{gateway=\"front\",kind=\"volume\",name=\"db\"} 41",
        "tidegate_gateway_faults_total{gateway=\"front\",kind=\"no_space\"} 2",
        "tidegate_gateways_tenant_requests_total{tenant=\"oltp\"} 41",
    ] {
        assert!(text.lines().any(|line_of_text| line_of_text == line), "no {line} in {text}");
    }
}

#[test]
fn latencies_at_gateways_are_in_metrics_over_restarts() {
    let daemon = under_policy();
    for (started_ms, requests) in [(1, 30), (2, 11)] {
        let mut front = gateway(&daemon, VERSION, "front");
        front.send(&FromGateway::Counts(GatewayCounts { started_ms, ..Default::default() }));
        let mut counts = LatencyCounts { total_ns: 500_000_000, ..LatencyCounts::default() };
        (counts.buckets[1], counts.buckets[19]) = (requests, 1);
        let [tenant, operation] = ["oltp", "read"].map(String::from);
        front.send(&FromGateway::Latency(vec![RequestLatency { tenant, operation, counts }]));
        let pressure = GatewayPressure { memory_used_bytes: started_ms, ..Default::default() };
        front.send(&FromGateway::Pressure(pressure));
        daemon.wait_for("the latencies before it", |status| {
            status.cluster.as_ref().unwrap().gateways[0].memory_used_bytes == started_ms
        });
    }
    let (_, _, text) = daemon.http("GET /metrics HTTP/1.1", "");
    for (suffix, bound, value) in [
        ("count", "", "43"),
        ("sum", "", "1.0"),
        ("bucket", "le=\"0.000016\",", "0"),
        ("bucket", "le=\"0.000032\",", "41"),
        ("bucket", "le=\"4.194304\",", "41"),
        ("bucket", "le=\"+Inf\",", "43"),
    ] {
        let labels = format!("{bound}gateway=\"front\",tenant=\"oltp\",operation=\"read\"");
        let line = format!("tidegate_gateway_request_seconds_{suffix}{{{labels}}} {value}");
        assert!(text.lines().any(|line_of_text| line_of_text == line), "no {line} in {text}");
    }
}

/// Readiness and the metric of one kind of fault.
#[track_caller]
fn expect_ready(daemon: &Running, metric: &str, fault: Option<&str>) {
    let (code, _, text) = daemon.http("GET /readyz HTTP/1.1", "");
    match fault {
        Some(words) => assert!(code == 503 && text.contains(words), "{code}: {text}"),
        None => assert_eq!(code, 200, "{text}"),
    }
    let (_, _, text) = daemon.http("GET /metrics HTTP/1.1", "");
    let line = format!("tidegate_{metric} {}", if fault.is_some() { "1.0" } else { "0.0" });
    assert!(text.lines().any(|line_of_text| line_of_text == line), "no {line} in {text}");
}

#[test]
fn a_faulty_part_or_volume_is_in_readiness_status_and_metrics_until_it_is_mended() {
    let daemon = under_policy();
    let mut node = node(&daemon, "a");
    until(&mut node, |message| matches!(message, ToNode::Plan(_)).then_some(()));
    let of_part = "node_faulty_parts{node=\"a\"}";
    expect_ready(&daemon, of_part, None);
    let reason = "is not there any more; bring it back";
    let fault = PartFault { volume: "db".into(), index: 0, reason: reason.into() };
    node.send(&FromNode::Faults(vec![fault]));
    daemon.wait_for("a fault", |status| {
        let faults = &status.cluster.as_ref().unwrap().nodes[0].faults;
        faults.first().is_some_and(|fault| fault.volume == "db" && fault.reason == reason)
    });
    let words = format!("part 0 of volume db at node a: {reason}");
    expect_ready(&daemon, of_part, Some(&words));
    node.send(&FromNode::Faults(Vec::new()));
    daemon
        .wait_for("no fault", |status| status.cluster.as_ref().unwrap().nodes[0].faults.is_empty());
    expect_ready(&daemon, of_part, None);
    // A fault that only a gateway sees.
    let mut front = gateway(&daemon, VERSION, "front");
    let fault = VolumeFault { volume: "db".into(), reason: "generations differ".into() };
    front.send(&FromGateway::Faults(vec![fault]));
    let faults = |status: &tidegate_proto::controller::status::Status| {
        status.cluster.as_ref().unwrap().gateways[0].volume_faults.len()
    };
    daemon.wait_for("a fault", |status| faults(status) == 1);
    let of_volume = "gateway_faulty_volumes{gateway=\"front\"}";
    let words = "volume db at gateway front: generations differ";
    expect_ready(&daemon, of_volume, Some(words));
    front.send(&FromGateway::Faults(Vec::new()));
    daemon.wait_for("no fault", |status| faults(status) == 0);
    expect_ready(&daemon, of_volume, None);
    let fault = VolumeFault { volume: "db".into(), reason: "generations differ".into() };
    front.send(&FromGateway::Faults(vec![fault]));
    daemon.wait_for("a fault", |status| faults(status) == 1);
    drop(front);
    daemon.wait_for("its end", |status| faults(status) == 0);
}

#[test]
fn delays_are_explained() {
    let daemon = under_policy();
    let mut node = node(&daemon, "a");
    until(&mut node, |message| matches!(message, ToNode::Plan(_)).then_some(()));
    let delays_request = OperatorRequest::Delays { tenant: "oltp".into() };
    // Two readings are a minute's beginning.
    for count in 1.. {
        until(&mut node, |message| (message == ToNode::Count).then_some(()));
        let waits = Waits { operations: count, turn_ns: 3_000_000 * count, ..Waits::ZERO };
        let tenants = vec![(TenantIndex(0), waits)];
        let counts = NodeCounts { revision: 1, served: count, tenants, ..Default::default() };
        node.send(&FromNode::Counts(counts));
        let Reply::Json(text) = daemon.request(&delays_request) else { panic!("no answer") };
        let delays: Delays = serde_json::from_str(&text).unwrap();
        if delays.waits.operations > 0 {
            assert_eq!(
                (delays.mean_ns, delays.nodes[0].mean_ns),
                (Some(3_000_000), Some(3_000_000))
            );
            assert_eq!((delays.causes.len(), delays.causes[0].permille), (1, 1000));
            break;
        }
    }
    let (code, _, text) = daemon.http("GET /v1/tenants/oltp/delays HTTP/1.1", "");
    let delays: Delays = serde_json::from_str(&text).unwrap();
    assert_eq!((code, delays.tenant.as_str()), (200, "oltp"));
    let (code, _, text) = daemon.http("GET /v1/tenants/nobody/delays HTTP/1.1", "");
    assert!(code == 404 && text.contains("it has oltp"), "{text}");

    let alone = Running::new();
    let Reply::Error { code: 1, message } = alone.request(&delays_request) else {
        panic!("an answer")
    };
    assert!(message.contains("no tenant is in the policy"), "{message}");
}
