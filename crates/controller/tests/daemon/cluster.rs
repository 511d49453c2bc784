//! Nodes and gateways of a cluster, played by hand.

use serde::de::DeserializeOwned;
use tidegate_model::Cluster;
use tidegate_proto::cluster::message::{FromNode, NodeInfo, Report, ToNode};
use tidegate_proto::message::{Hello, Reply, Request, ToGateway, VERSION};

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
"#;

const POLICY: &str = r#"
    period = "100ms"
    redistribute = "20ms"
    [[tenant]]
    name = "oltp"
    reservation = "800 iops"
"#;

fn start(directory: &std::path::Path) -> Running {
    let cluster = Some(Cluster::parse(CLUSTER).unwrap());
    let config = tidegate_controller::Config { cluster, ..config(directory) };
    Running::try_start(config, None).unwrap()
}

/// Hears until `wanted` finds what it looks for.
fn until<M: DeserializeOwned, T>(
    client: &mut Client<M>,
    mut wanted: impl FnMut(M) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = wanted(client.hear()) {
            return found;
        }
    }
}

fn node(daemon: &Running, name: &str) -> Client<ToNode> {
    let mut node = daemon.connect();
    let info = NodeInfo { name: name.into(), pid: 7, ..NodeInfo::default() };
    node.say(&Hello::Node { version: VERSION, info });
    node
}

fn gateway(daemon: &Running, version: u16) -> Client<ToGateway> {
    let mut gateway = daemon.connect();
    gateway.say(&Hello::Gateway { version, name: "front".into() });
    gateway
}

#[test]
fn a_node_is_told_its_counts_and_shown_in_the_status() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    daemon.apply(POLICY);
    let mut node = node(&daemon, "a");
    let plan = until(&mut node, |message| match message {
        ToNode::Plan(plan) => Some(plan),
        _ => None,
    });
    assert_eq!((plan.revision, plan.rounds, plan.tenants.len()), (1, 5, 1));
    // It answers until it is told what it may do.
    let granted = loop {
        let (turn, grant) = until(&mut node, |message| match message {
            ToNode::Collect { turn, .. } => Some((Some(turn), None)),
            ToNode::Grant(grant) => Some((None, Some(grant))),
            _ => None,
        });
        if let Some(turn) = turn {
            let report = Report { revision: 1, turn, capacity_left: 100, ..Report::default() };
            node.say(&FromNode::Report(report));
        }
        if let Some(grant) = grant.filter(|grant| !grant.shares.is_empty()) {
            break grant;
        }
    };
    // 800 per second are 80 in a period of 100 ms.
    assert_eq!(granted.shares[0].tenant, 0);
    assert!((1..=80).contains(&granted.shares[0].reserved), "{granted:?}");
    let status = daemon.wait_for("the node", |status| {
        status.cluster.as_ref().is_some_and(|cluster| cluster.nodes[0].is_connected)
    });
    let cluster = status.cluster.unwrap();
    assert_eq!((cluster.nodes[0].name.as_str(), cluster.nodes[0].pid), ("a", 7));
    assert_eq!(cluster.tenants[0].reserved_operations, 80);
}

#[test]
fn who_is_no_node_of_the_cluster_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = |mut node: Client<ToNode>| {
        until(&mut node, |message| match message {
            ToNode::Refused { reason, .. } => Some(reason),
            _ => None,
        })
    };
    let daemon = start(directory.path());
    let reason = refusal(node(&daemon, "z"));
    assert!(reason.contains("\"z\""), "{reason}");
    let elsewhere = tempfile::tempdir().unwrap();
    let alone = Running::start(elsewhere.path());
    let reason = refusal(node(&alone, "a"));
    assert!(reason.contains("no cluster"), "{reason}");
}

#[test]
fn a_policy_that_the_nodes_cannot_keep_is_refused_with_the_proof() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    let policy = POLICY.replace("800 iops", "1200 iops");
    let request = Request::Apply { policy, source: "t".into(), dry_run: false, expect: 0 };
    let Reply::Error { code, message } = daemon.ask(&request) else { panic!("accepted") };
    assert_eq!(code, 4);
    let proof = "node a can do 1k iops; oltp is promised 1200 iops there";
    assert!(message.contains(proof), "{message}");
}

#[test]
fn gateways_hear_every_policy() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = start(directory.path());
    let mut early = gateway(&daemon, VERSION);
    daemon.apply(POLICY);
    let mut late = gateway(&daemon, VERSION);
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
    let reason = until(&mut gateway(&daemon, VERSION + 1), |message| match message {
        ToGateway::Refused { reason, .. } => Some(reason),
        ToGateway::Policy { .. } => None,
    });
    assert!(reason.contains("same release"), "{reason}");
}
