#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::string::String;
use alloc::{format, vec};

use proptest::prelude::*;
use tidegate_model::policy::GateKind;
use tidegate_model::{Iops, NodeId, PeriodNumber, Policy, Rate, Time};

use super::*;
use crate::cluster::accounts::Accounts;
use crate::cluster::message::{FromNode, NodeInfo, NodeReport, TenantReport, ToNode};
use crate::cluster::{Cluster, NodeSetup, Setup};
use crate::session::{Action, PeerId, ToPeer};

const NODES: usize = 3;

/// Promises of three tenants, in three policies that follow each other.
const POLICIES: [&str; 3] = [
    r#"tenant = [
        { name = "a", reservation = "100 iops" },
        { name = "b", limit = "300 iops" },
        { name = "c" },
    ]"#,
    r#"tenant = [
        { name = "c", reservation = "900 iops" },
        { name = "a", reservation = "1500 iops", limit = "1600 iops" },
        { name = "b" },
    ]"#,
    r#"
    resource = [{ name = "cluster" }]
    tenant = [
        { name = "a", on.cluster = { reservation = ["300 iops", "1MiB/s"] } },
        { name = "b", on.cluster = { limit = ["200 iops", "2MiB/s"] } },
        { name = "c", on.cluster = { reservation = "4MiB/s" } },
    ]"#,
];

fn policy(index: usize) -> Policy {
    let head = "period = \"1s\"\nredistribute = \"200ms\"\n";
    at_nodes(&format!("{head}{}", POLICIES[index]))
}

/// A policy as the cluster sees it: with the promises of the nodes' resource, if there is one.
fn at_nodes(policy: &str) -> Policy {
    Policy::parse(policy).unwrap().at(GateKind::Node)
}

/// A node as the controller sees it.
#[derive(Default)]
struct Node {
    is_connected: bool,
    revision: u64,
    /// Whether its answers wait until it is heard again.
    is_late: bool,
    late: Vec<FromNode>,
    /// By tenant.
    demands: [u64; NODES],
    served: [u64; NODES],
    served_before: [u64; NODES],
    period: PeriodNumber,
}

impl Node {
    fn answer(&mut self, message: &ToNode) -> Option<FromNode> {
        let revision = self.revision;
        match message {
            ToNode::Plan(plan) => {
                self.revision = plan.revision;
                None
            }
            ToNode::Collect { round_id, complete, .. } => {
                if core::mem::replace(&mut self.period, round_id.period) != round_id.period {
                    self.served_before = core::mem::take(&mut self.served);
                }
                let numbers = (0..).map(TenantIndex).zip(self.demands).zip(&mut self.served);
                let numbers = numbers.map(|((tenant, expected), served)| {
                    *served += expected / 5;
                    let (waiting, is_elastic) = (expected / 2, expected % 3 == 1);
                    TenantReport { tenant, served: *served, expected, waiting, is_elastic }
                });
                let tenants: Vec<TenantReport> = numbers.collect();
                let before = (0..).map(TenantIndex).zip(self.served_before);
                let before = before.filter(|(_, served)| *complete && *served > 0).collect();
                Some(FromNode::Report(NodeReport {
                    revision,
                    round_id: *round_id,
                    capacity_left: 500,
                    bytes: tenants.clone(),
                    tenants,
                    before,
                    ..NodeReport::default()
                }))
            }
            ToNode::Grant(grant) | ToNode::Renew { grant, .. } => Some(FromNode::Granted {
                revision,
                serial: grant.serial,
                shares: grant.shares.clone(),
                bytes: grant.bytes.clone(),
            }),
            _ => None,
        }
    }
}

/// A cluster with nodes that take every grant.
struct ClusterSim {
    cluster: Cluster,
    /// Whether all tenants are awake whenever something happens.
    is_dense: bool,
    now: u64,
    revision: u64,
    nodes: [Node; NODES],
    sent: Vec<Action>,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    /// A node's process is another one.
    Replace(usize),
    Leave(usize),
    /// A node's answers come late from now on, or what was late comes.
    Late(usize, bool),
    Demand(usize, usize, u64),
    Apply(usize),
    Pass(u64),
}

impl ClusterSim {
    fn new(is_dense: bool, policy: Policy) -> Self {
        let node = |index: usize| NodeSetup {
            name: format!("n{index}"),
            capacity: Some(Iops(1_000)),
            bandwidth: Some(Rate(4 << 20)),
            ..NodeSetup::default()
        };
        let nodes = (0..NODES).map(node).collect();
        let setup = Setup { nodes, is_first: true, ..Setup::default() };
        let cluster = Cluster::new(Time(0), setup, Some((1, policy)));
        let (nodes, sent) = (core::array::from_fn(|_| Node::default()), Vec::new());
        let mut sim = Self { cluster, is_dense, now: 0, revision: 1, nodes, sent };
        (0..NODES).for_each(|node| sim.act(Act::Replace(node)));
        sim
    }

    /// Before something happens.
    fn before(&mut self) {
        if self.is_dense {
            self.cluster.accounts.iter_mut().for_each(Accounts::wake_all);
        }
    }

    fn act(&mut self, act: Act) {
        self.before();
        match act {
            Act::Replace(node) => {
                self.act(Act::Leave(node));
                let demands = self.nodes[node].demands;
                self.nodes[node] = Node { is_connected: true, demands, ..Node::default() };
                let info = NodeInfo { name: format!("n{node}"), ..NodeInfo::default() };
                self.cluster.on_hello(Time(self.now), info).unwrap();
            }
            Act::Leave(node) => {
                if core::mem::take(&mut self.nodes[node].is_connected) {
                    self.nodes[node].late.clear();
                    self.cluster.on_closed(Time(self.now), NodeId::at(node), "gone");
                }
            }
            Act::Late(node, is_late) => {
                self.nodes[node].is_late = is_late;
                for message in core::mem::take(&mut self.nodes[node].late) {
                    self.before();
                    self.cluster.on_message(Time(self.now), NodeId::at(node), message);
                }
            }
            Act::Demand(node, tenant, count) => self.nodes[node].demands[tenant] = count,
            Act::Apply(index) => {
                self.revision += 1;
                self.cluster.apply(Time(self.now), self.revision, &policy(index));
            }
            Act::Pass(milliseconds) => self.pass(milliseconds),
        }
    }

    fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds * 1_000_000;
        loop {
            while let Some(action) = self.cluster.outbox.pop() {
                if let Action::Send { to: PeerId::Node(id), message: ToPeer::Node(message) } =
                    &action
                {
                    let node = &mut self.nodes[id.index()];
                    if node.is_connected
                        && let Some(answer) = node.answer(message)
                    {
                        if node.is_late {
                            node.late.push(answer);
                        } else {
                            self.before();
                            self.cluster.on_message(Time(self.now), *id, answer);
                        }
                    }
                }
                self.sent.push(action);
            }
            let next = self.cluster.next_deadline();
            if next.0 > end {
                break;
            }
            self.now = self.now.max(next.0);
            self.before();
            self.cluster.on_deadline(Time(self.now));
        }
        self.now = end;
    }

    fn awake(&self) -> usize {
        self.cluster.accounts.iter().map(|accounts| accounts.awake.all().len()).max().unwrap_or(0)
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (node, tenant) = (0..NODES, 0..NODES);
    let act = prop_oneof![
        1 => node.clone().prop_map(Act::Replace),
        1 => node.clone().prop_map(Act::Leave),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, is_late)| Act::Late(node, is_late)),
        3 => (node.clone(), tenant.clone(), 0..600u64).prop_map(|(n, t, c)| Act::Demand(n, t, c)),
        4 => (node, tenant).prop_map(|(n, t)| Act::Demand(n, t, 0)),
        1 => (0..POLICIES.len()).prop_map(Act::Apply),
        5 => (1..4_000u64).prop_map(Act::Pass),
    ];
    prop::collection::vec(act, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever demands, lost processes, late answers and policies: passing over tenants that rest
    /// changes no message.
    #[test]
    fn tenants_that_rest_would_have_come_out_the_same(
        acts in acts(),
        first in 0..POLICIES.len(),
    ) {
        let [sparse, dense] = [false, true].map(|is_dense| {
            let mut sim = ClusterSim::new(is_dense, policy(first));
            acts.iter().for_each(|act| sim.act(*act));
            sim.act(Act::Pass(5_000));
            sim
        });
        prop_assert_eq!(sparse.sent, dense.sent);
    }
}

#[test]
fn an_idle_cluster_has_no_tenant_awake() {
    for index in 0..POLICIES.len() {
        let mut sim = ClusterSim::new(false, policy(index));
        sim.act(Act::Pass(4_000));
        for _ in 0..30 {
            sim.act(Act::Pass(100));
            assert_eq!(sim.awake(), 0);
        }
        sim.act(Act::Demand(1, 0, 6));
        sim.act(Act::Pass(300));
        assert_eq!(sim.awake(), 1);
        // Two periods after its last request it rests again.
        sim.act(Act::Demand(1, 0, 0));
        sim.act(Act::Pass(3_000));
        assert_eq!(sim.awake(), 0);
    }
}

/// Of a group with a promise all tenants are awake or none is, since its tokens are divided over
/// all of them. Tenants outside rest.
#[test]
fn tenants_of_a_group_wake_and_rest_together() {
    let policy = r#"
        period = "1s"
        redistribute = "200ms"
        resource = [{ name = "cluster" }]
        group = [
            { name = "g", on.cluster = { reservation = "500 iops" } },
            { name = "empty" },
        ]
        tenant = [
            { name = "a", group = "g", on.cluster = { reservation = "300 iops" } },
            { name = "b", group = "g" },
            { name = "c", group = "empty" },
        ]"#;
    let mut sim = ClusterSim::new(false, at_nodes(policy));
    sim.act(Act::Pass(4_000));
    let awake = |sim: &ClusterSim| sim.cluster.accounts[0].awake.all();
    assert_eq!(awake(&sim), [0; 0]);
    for (tenant, expected) in [(1, vec![0, 1]), (0, vec![0, 1]), (2, vec![2])] {
        sim.act(Act::Demand(1, tenant, 6));
        for _ in 0..30 {
            sim.act(Act::Pass(100));
            assert!(awake(&sim).is_empty() || awake(&sim) == expected, "{:?}", awake(&sim));
        }
        assert_eq!(awake(&sim), expected);
        sim.act(Act::Demand(1, tenant, 0));
        sim.act(Act::Pass(3_000));
        assert_eq!(awake(&sim), [0; 0]);
    }
}

/// The tenants that are awake after each of ten seconds, of so many of which the first three have
/// demand at one node after the other.
fn awake_each_second(
    count: usize,
    reservation: &str,
    demand: impl Fn(usize) -> u64,
) -> (Vec<usize>, Vec<usize>) {
    let tenant = |index: usize| {
        format!(
            "[[tenant]]\nname = \"t{index}\"\n{}\n",
            match index % 3 {
                0 => format!("reservation = {reservation:?}"),
                1 => "limit = \"9 iops\"".into(),
                _ => String::new(),
            }
        )
    };
    let tenants: String = (0..count).map(tenant).collect();
    let mut sim = ClusterSim::new(false, at_nodes(&tenants));
    sim.act(Act::Pass(4_000));
    let (mut awake, mut named) = (vec![], vec![]);
    for second in 0..10 {
        sim.sent.clear();
        for tenant in 0..3 {
            sim.act(Act::Demand(second % NODES, tenant, demand(second)));
        }
        for _ in 0..10 {
            sim.act(Act::Pass(100));
            awake.push(sim.awake());
        }
        named.push(sim.sent.iter().map(shares).sum());
    }
    (awake, named)
}

/// The shares that a message names.
fn shares(action: &Action) -> usize {
    match action {
        Action::Send {
            message: ToPeer::Node(ToNode::Grant(grant) | ToNode::Renew { grant, .. }),
            ..
        } => grant.shares.len() + grant.bytes.len(),
        _ => 0,
    }
}

/// As many accounts are gone through, and as many counts are sent, with 2,000 tenants as with 20,
/// of which the same three have demand.
#[test]
fn cost_follows_change_and_not_size() {
    let [few, many] = [20, 2_000].map(|count| awake_each_second(count, "1 iops", |_| 5));
    assert_eq!(few, many);
    assert!(few.0.iter().all(|awake| *awake == 3), "{few:?}");
}

/// The same where a node has no capacity left beside the reservations of those three in one second,
/// and in the next it has.
#[test]
fn cost_follows_change_where_capacity_comes_and_goes() {
    let demand = |second: usize| if second.is_multiple_of(2) { 600 } else { 50 };
    let [few, many] = [20, 2_000].map(|count| awake_each_second(count, "600 iops", demand));
    assert_eq!(few, many);
    assert!(few.0.iter().all(|awake| *awake == 3), "{few:?}");
}
