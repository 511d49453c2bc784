//! Resources: each kind of peer is sent the promises of the resource that it guards.

use tidegate_model::gate::{GateSpec, Throughput, Unit};
use tidegate_model::policy::Levels;
use tidegate_model::{Iops, Policy, Span, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::cluster::{self, NodeSetup, split};
use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer, Setup, ToPeer};
use tidegate_proto::data_node::ToDataNode;
use tidegate_proto::message::{
    Enforcement, Hello, Housekeeping, Rule, StageInfo, ToGateway, ToStage, VERSION,
};

use crate::world::{ControllerTestbed, MIB, MS};

const RESOURCES: &str = r#"
    [[resource]]
    name = "cluster"
    [[resource]]
    name = "files"
    path = "/srv/**"
    capacity = "1000 iops"
    [[resource]]
    name = "memory"
    data_nodes = ["m"]
    [[tenant]]
    name = "oltp"
    weight = 300
    on.cluster = { reservation = "90 iops", limit = "95 iops" }
    on.files = { limit = "50 iops", weight = 5 }
    on.memory = { reservation = "7 iops" }
"#;

/// Parts of the messages to a stage, a gateway, a node and a data node under a policy: the rules'
/// buckets with their rates, the gateway's policy, the node's weight and limit, the data node's
/// policy.
struct Sent {
    buckets: Vec<(String, Throughput)>,
    gateway: Policy,
    node: (u32, bool),
    data_node: Policy,
}

fn sent(policy: &str) -> Sent {
    let nodes = vec![NodeSetup { name: "a".into(), ..NodeSetup::default() }];
    let setup = Setup {
        cluster: Some(cluster::Setup { nodes, is_first: true, ..cluster::Setup::default() }),
        data_nodes: vec![split::NodeSetup { name: "m".into(), ..split::NodeSetup::default() }],
        gateways: vec!["front".into()],
        ..Setup::default()
    };
    let mut controller = Controller::new(Time::ZERO, setup, None);
    let info = StageInfo { tenant: "oltp".into(), ..StageInfo::default() };
    let node = NodeInfo { name: "a".into(), ..NodeInfo::default() };
    let version = VERSION;
    controller.apply(Time::ZERO, 1, Policy::parse(policy).unwrap());
    let hellos = [
        Hello::Stage { version, info },
        Hello::Gateway { version, name: "front".into() },
        Hello::Node { version, info: node },
        Hello::DataNode { version, name: "m".into() },
    ];
    for (number, hello) in (1..).zip(hellos) {
        controller.on_hello(Time::ZERO, ConnectionId(number), Peer::default(), hello);
    }
    let (mut buckets, mut gateway, mut node, mut data_node) = (Vec::new(), None, None, None);
    while let Some(output) = controller.poll_output() {
        let Output::Send { message, .. } = output else { continue };
        match message {
            ToPeer::Stage(ToStage::Apply { rules, .. }) => {
                for rule in rules {
                    match rule {
                        Rule::Enforcement(Enforcement::Rate { gate, rate }) => {
                            buckets.push((gate, rate));
                        }
                        Rule::Housekeeping(Housekeeping::SetGate { spec, .. }) => {
                            assert!(matches!(spec, GateSpec::TokenBucket { .. }));
                        }
                        _ => {}
                    }
                }
            }
            ToPeer::Gateway(ToGateway::Policy { policy, .. }) => gateway = Some(policy),
            ToPeer::Node(ToNode::Plan(plan)) => {
                node = Some((plan.tenants[0].weight, plan.tenants[0].is_limited));
            }
            ToPeer::DataNode(ToDataNode::Policy { policy, .. }) => data_node = Some(policy),
            _ => {}
        }
    }
    Sent { buckets, gateway: gateway.unwrap(), node: node.unwrap(), data_node: data_node.unwrap() }
}

#[test]
fn every_peer_has_the_promises_of_its_resource() {
    let Sent { buckets, gateway, node, data_node } = sent(RESOURCES);
    assert_eq!(buckets, [("oltp:operations".into(), Throughput::new(Unit::Operations, 50))]);
    let levels = |operations| Levels { operations, ..Levels::default() };
    assert_eq!(gateway.tenants[0].reservation, levels(Some(Iops(90))));
    assert_eq!(node, (300, true));
    assert_eq!(data_node.tenants[0].reservation, levels(Some(Iops(7))));
    assert_eq!(data_node.tenants[0].limit, Levels::default());
}

#[test]
fn a_policy_without_resources_is_sent_as_it_is() {
    let text = "budget = \"1000 iops\"\n[[tenant]]\nname = \"oltp\"\nlimit = \"50 iops\"\n";
    let Sent { buckets, gateway, node, data_node } = sent(text);
    let policy = Policy::parse(text).unwrap();
    assert_eq!(buckets, [("oltp:operations".into(), Throughput::new(Unit::Operations, 50))]);
    assert_eq!((&gateway, &data_node), (&policy, &policy));
    assert_eq!(node, (Policy::WEIGHT, true));
}

/// Bytes bind, and a tenant is promised operations. Its program has them, as the bytes of these
/// operations are reserved, too.
#[test]
fn reserved_operations_are_had_where_bytes_are_scarce() {
    let policy = r#"
        [[resource]]
        name = "disk"
        path = "/srv/**"
        capacity = ["10k iops", "100MiB/s"]
        [[tenant]]
        name = "large"
        on.disk = { reservation = "300 iops" }
        [[tenant]]
        name = "bulk"
    "#;
    let mut world = ControllerTestbed::new(Some(policy));
    let stages = ["large", "bulk"].map(|tenant| world.join(tenant, 1_000 * MIB));
    for (stage, request_bytes) in stages.into_iter().zip([MIB / 4, MIB]) {
        world.stage(stage).request_bytes = request_bytes;
    }
    let operations = |world: &mut ControllerTestbed| stages.map(|it| world.stage(it).operations);
    world.run(Span(3_000 * MS));
    let before = operations(&mut world);
    world.run(Span(4_000 * MS));
    let [large, bulk] = operations(&mut world);
    let (large, bulk) = (large - before[0], bulk - before[1]);
    assert!(large >= 4 * 300, "{large} in four seconds");
    // Each has half of the 25 MiB/s that are left, but for what the mix of requests may be off by.
    assert!((4 * 345..=4 * 351).contains(&large), "{large} in four seconds");
    assert!((4 * 11..=4 * 13).contains(&bulk), "{bulk} in four seconds");
}

/// A tenant is promised 500 operations and 20 MiB/s, and its requests are of 4 KiB, so that 5,120
/// operations would go with its bytes. A tenant of the same weight has its half of what is left.
#[test]
fn reserved_bytes_beside_reserved_operations_take_no_more_operations() {
    let policy = r#"
        [[resource]]
        name = "disk"
        path = "/srv/**"
        capacity = ["2k iops", "200MiB/s"]
        [[tenant]]
        name = "promised"
        on.disk = { reservation = ["500 iops", "20MiB/s"] }
        [[tenant]]
        name = "other"
    "#;
    let mut world = ControllerTestbed::new(Some(policy));
    let stages = ["promised", "other"].map(|tenant| world.join(tenant, 1_000 * MIB));
    for stage in stages {
        world.stage(stage).request_bytes = 4 << 10;
    }
    let operations = |world: &mut ControllerTestbed| stages.map(|it| world.stage(it).operations);
    world.run(Span(3_000 * MS));
    let before = operations(&mut world);
    world.run(Span(4_000 * MS));
    let [promised, other] = operations(&mut world);
    let (promised, other) = (promised - before[0], other - before[1]);
    assert!((4 * 1_225..=4 * 1_275).contains(&promised), "{promised} in four seconds");
    assert!((4 * 725..=4 * 775).contains(&other), "{other} in four seconds");
}
