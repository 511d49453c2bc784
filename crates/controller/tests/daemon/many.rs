//! Many tenants at several nodes: all messages about them arrive whole.

use std::fmt::Write as _;

use tidegate_model::{TenantIndex, Waits};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::codec::FRAME_MAX;
use tidegate_proto::message::{Hello, OperatorRequest, Reply, VERSION};
use tidegate_proto::stats::message::NodeCounts;

use crate::harness::{Client, Running};

const TENANTS: u16 = 2_000;
const NODES: usize = 8;

fn node(daemon: &Running, name: &str) -> Client<ToNode> {
    let mut node: Client<ToNode> = daemon.connect();
    let info = NodeInfo { name: name.into(), pid: 7, ..NodeInfo::default() };
    node.send(&Hello::Node { version: VERSION, info });
    while !matches!(node.receive(), ToNode::Plan(_)) {}
    // The node counts large numbers, in every field of every tenant.
    let big = u64::from(u32::MAX);
    let waits =
        Waits { operations: big, limit_ns: big, reservation_ns: big, turn_ns: big, device_ns: big };
    let tenants = (0..TENANTS).map(|tenant| (TenantIndex(tenant), waits)).collect();
    node.send(&FromNode::Counts(NodeCounts { revision: 1, tenants, ..NodeCounts::default() }));
    node
}

#[test]
fn the_status_of_2000_tenants_on_eight_nodes_is_served() {
    let (mut file, mut policy) = (String::new(), String::new());
    for at in 0..NODES {
        writeln!(file, "[[node]]\nname = \"node-{at}\"\nmemory = true\ncapacity = \"100k iops\"")
            .unwrap();
    }
    for at in 0..TENANTS {
        writeln!(policy, "[[tenant]]\nname = \"tenant-{at}\"\nreservation = \"100 iops\"").unwrap();
    }
    let daemon = Running::with_cluster(&file);
    daemon.apply(&policy);
    let _nodes: Vec<_> = (0..NODES).map(|at| node(&daemon, &format!("node-{at}"))).collect();
    let status = daemon.wait_for("all counts", |status| {
        let cluster = status.cluster.as_ref().unwrap();
        cluster.tenants.iter().all(|tenant| tenant.nodes.len() == NODES)
    });
    assert_eq!(status.tenants.len(), usize::from(TENANTS));
    let Reply::Json(text) = daemon.request(&OperatorRequest::Status) else { panic!("no status") };
    assert!(text.len() > FRAME_MAX, "{} bytes would fit a message", text.len());
    let Reply::Json(_) = daemon.request(&OperatorRequest::Delays { tenant: "tenant-7".into() })
    else {
        panic!("no delays")
    };
}

/// A node that reads late receives everything, though the plan alone is longer than what may
/// wait for a peer that does not read.
#[test]
fn a_node_with_10000_tenants_receives_them_all_though_it_reads_late() {
    const MANY: usize = 10_000;
    let file = "[[node]]\nname = \"a\"\nmemory = true\ncapacity = \"100k iops\"";
    let name = |at: usize| format!("{at:063}");
    let tenant = |at: usize| format!("{{name=\"{}\",reservation=\"1 iops\"}}", name(at));
    let tenants: Vec<String> = (0..MANY).map(tenant).collect();
    let daemon = Running::with_cluster(file);
    daemon.apply(&format!("tenant=[{}]", tenants.join(",")));
    let mut node: Client<ToNode> = daemon.connect();
    let info = NodeInfo { name: "a".into(), pid: 7, ..NodeInfo::default() };
    node.send(&Hello::Node { version: VERSION, info });
    // Meanwhile it is asked, in each round of more than a period.
    let begun = daemon.status().cluster.unwrap().period;
    daemon.wait_for("a period", |status| status.cluster.as_ref().unwrap().period > begun + 1);
    let mut names = None;
    loop {
        match node.receive() {
            ToNode::Plan(plan) => names = Some(plan.tenants),
            ToNode::Collect { round_id, .. } if round_id.period.0 > begun => break,
            _ => {}
        }
    }
    let names = names.unwrap();
    assert!(
        names.len() == MANY && names.iter().zip(0..).all(|(tenant, at)| tenant.name == name(at))
    );
}
