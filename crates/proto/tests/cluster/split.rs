//! Promises that hold for several data nodes: shares add up to no more than is promised, whatever
//! is lost or late and whichever process dies, and go where they are wanted.
//!
//! Data nodes are pretended ones here. Each has periods of its own, holds shares from the beginning
//! of one, and says so when that has come. It serves a tenant the smaller of demand and share.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_model::{Iops, Policy, Span, TenantIndex, Time};
use tidegate_proto::cluster::split::{AWAY, NodeSetup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::data_node::{DataNodeReport, FromDataNode, TenantReport, ToDataNode};
use tidegate_proto::message::{Hello, VERSION};

const MS: u64 = Span::MILLISECOND.0;
/// How often anything happens.
const STEP: Span = Span(10 * MS);
/// T of all nodes.
const PERIOD: Span = Span(500 * MS);
/// Between two rounds.
const ROUND: Span = Span(100 * MS);
const CAPACITY: u64 = 1_000;
const CLIENT: u64 = 800;
const NODES: usize = 4;

/// The reservation of each tenant, in operations per second.
const PROMISED: [u64; 3] = [1_200, 600, 300];
/// The last one has a limit.
const LIMIT: u64 = 900;

fn policy() -> Policy {
    let [a, b, c] = PROMISED;
    let text = format!(
        "redistribute = \"100ms\"\n\
         tenant = [\n\
         {{ name = \"a\", reservation = \"{a} iops\" }},\n\
         {{ name = \"b\", reservation = \"{b} iops\" }},\n\
         {{ name = \"c\", reservation = \"{c} iops\", limit = \"{LIMIT} iops\" }},\n\
         ]"
    );
    Policy::parse(&text).unwrap()
}

/// A tenant's reservation and limit at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holds {
    reserved: u64,
    allowed: u64,
}

impl Holds {
    fn max(self, other: Self) -> Self {
        let Self { reserved, allowed } = other;
        Self { reserved: self.reserved.max(reserved), allowed: self.allowed.max(allowed) }
    }
}

#[derive(Debug, Default)]
struct Fake {
    connection: Option<ConnectionId>,
    /// On their way, with the time at which they are there.
    up: VecDeque<(Time, FromDataNode)>,
    down: VecDeque<(Time, ToDataNode)>,
    revision: u64,
    /// In force, and from the next period on.
    holds: [Holds; 3],
    next: [Holds; 3],
    serial: u64,
    is_due: bool,
    ends: Time,
    wants: [u64; 3],
    /// Operations done in the last period, and the unmet ones.
    did: [(u64, u64); 3],
    /// Whether its clients know how much they want.
    knows: bool,
    /// Until then it answers no question.
    mute: Time,
}

impl Fake {
    fn report(&self, round: u64) -> DataNodeReport {
        let tenant = |tenant: usize| {
            let (mut holds, next) = (self.holds[tenant], self.next[tenant]);
            if holds.allowed == u64::MAX {
                holds.allowed = next.allowed;
            }
            let holds = holds.max(next);
            let (done, unmet) = self.did[tenant];
            let clients = u32::from(self.wants[tenant] > 0);
            TenantReport {
                tenant: TenantIndex::at(tenant),
                reserved: holds.reserved,
                allowed: holds.allowed,
                clients,
                most: u64::from(clients) * CLIENT,
                done,
                wants_more: unmet > 0,
                unmet: self.knows.then_some(unmet),
                ..TenantReport::default()
            }
        };
        DataNodeReport {
            revision: self.revision,
            round,
            capacity: Iops(CAPACITY),
            tenants: (0..3).map(tenant).collect(),
            ..DataNodeReport::default()
        }
    }

    fn receive(&mut self, now: Time, message: ToDataNode) -> Option<FromDataNode> {
        match message {
            ToDataNode::Policy { revision, .. } => self.revision = revision,
            ToDataNode::Collect { round } if self.mute <= now => {
                return Some(FromDataNode::Report(self.report(round)));
            }
            ToDataNode::Grant(grant) if grant.revision == self.revision => {
                for share in grant.shares {
                    let holds = Holds { reserved: share.reserved, allowed: share.allowed };
                    self.next[share.tenant.index()] = holds;
                }
                (self.serial, self.is_due) = (grant.serial, true);
            }
            _ => {}
        }
        None
    }

    /// A period begins, if it is time for that.
    fn advance_period(&mut self, now: Time) -> Option<FromDataNode> {
        if now < self.ends {
            return None;
        }
        self.ends = self.ends.after(PERIOD);
        for ((did, wants), holds) in self.did.iter_mut().zip(self.wants).zip(self.holds) {
            *did = (wants.min(holds.reserved), wants.saturating_sub(holds.reserved));
        }
        self.holds = self.next;
        let serial = self.serial;
        core::mem::take(&mut self.is_due).then_some(FromDataNode::Granted { serial })
    }
}

struct ClusterTestbed {
    now: Time,
    split: Controller,
    nodes: [Fake; NODES],
    connections: u64,
}

impl ClusterTestbed {
    fn new() -> Self {
        let mut world = Self {
            now: Time::ZERO,
            split: Controller::new(Time::ZERO, setup(), None),
            nodes: Default::default(),
            connections: 0,
        };
        for (index, node) in (0..).zip(&mut world.nodes) {
            node.ends = Time(PERIOD.0 * index / NODES as u64);
        }
        world.split.apply(Time::ZERO, 1, policy());
        (0..NODES).for_each(|node| world.connect(node));
        world
    }

    fn connect(&mut self, node: usize) {
        self.connections += 1;
        let id = ConnectionId(self.connections);
        let fake = &mut self.nodes[node];
        (fake.connection, fake.serial, fake.is_due) = (Some(id), 0, false);
        (fake.up, fake.down) = Default::default();
        self.split.on_hello(self.now, id, Peer::default(), hello(VERSION, &name(node)));
    }

    /// A node's process dies, and another one starts and connects: it has no limits yet.
    fn replace(&mut self, node: usize) {
        let id = self.nodes[node].connection.take().unwrap();
        self.split.on_closed(self.now, id, "it died");
        let unlimited = [Holds { reserved: 0, allowed: u64::MAX }; 3];
        let ends = self.now.after(Span(6 * STEP.0));
        self.nodes[node] = Fake { holds: unlimited, next: unlimited, ends, ..Fake::default() };
        self.connect(node);
    }

    /// Another controller, with the policy of the last.
    fn restart(&mut self) {
        self.split = Controller::new(self.now, setup(), Some((1, policy())));
        self.nodes.iter_mut().for_each(|node| node.connection = None);
        (0..NODES).for_each(|node| self.connect(node));
    }

    fn step(&mut self) {
        let (now, there) = (self.now, self.now.after(STEP));
        for node in 0..NODES {
            if let Some(message) = self.nodes[node].advance_period(now) {
                self.nodes[node].up.push_back((there, message));
            }
            while let Some((_, message)) = self.nodes[node].down.pop_front_if(|it| it.0 <= now) {
                if let Some(answer) = self.nodes[node].receive(now, message) {
                    self.nodes[node].up.push_back((there, answer));
                }
            }
            let Some(id) = self.nodes[node].connection else { continue };
            while let Some((_, message)) = self.nodes[node].up.pop_front_if(|it| it.0 <= now) {
                self.split.on_message(now, id, FromPeer::DataNode(message));
            }
        }
        if self.split.next_deadline() <= now {
            self.split.on_deadline(now);
        }
        while let Some(output) = self.split.poll_output() {
            match output {
                Output::Send { to, message: ToPeer::DataNode(message) } => {
                    let node = self.nodes.iter_mut().find(|node| node.connection == Some(to));
                    node.into_iter().for_each(|it| it.down.push_back((there, message.clone())));
                }
                Output::Close { connection } => {
                    let node = self.nodes.iter().position(|it| it.connection == Some(connection));
                    if let Some(node) = node {
                        self.nodes[node].connection = None;
                        self.connect(node);
                    }
                }
                Output::Send { .. } => panic!("{output:?} to a data node"),
                Output::Event(_) | Output::Remember(_) => {}
            }
        }
        self.check();
        self.now = now.after(STEP);
    }

    fn run(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.step();
        }
    }

    /// The shares in force at all nodes; limits at those that have one.
    fn sum(&self, tenant: usize) -> Holds {
        self.nodes.iter().fold(Holds::default(), |sum, node| {
            let Holds { reserved, allowed } = node.holds[tenant];
            let allowed = if allowed == u64::MAX { 0 } else { allowed };
            Holds { reserved: sum.reserved + reserved, allowed: sum.allowed + allowed }
        })
    }

    fn check(&self) {
        for (tenant, promised) in PROMISED.iter().enumerate() {
            let sum = self.sum(tenant);
            assert!(sum.reserved <= *promised, "{tenant} {sum:?}, {:?}", self.now);
        }
        assert!(self.sum(2).allowed <= LIMIT, "{:?}, {:?}", self.sum(2), self.now);
        for node in &self.nodes {
            let sum: u64 = node.holds.iter().map(|holds| holds.reserved).sum();
            assert!(sum <= CAPACITY, "{:?}", node.holds);
        }
    }

    fn reserved(&self, tenant: usize) -> [u64; NODES] {
        core::array::from_fn(|node| self.nodes[node].holds[tenant].reserved)
    }
}

fn setup() -> Setup {
    let node =
        |node| NodeSetup { name: name(node), capacity: Iops(CAPACITY), client: Iops(CLIENT) };
    Setup { data_nodes: (0..NODES).map(node).collect(), ..Setup::default() }
}

fn hello(version: u16, name: &str) -> Hello {
    Hello::DataNode { version, name: name.into() }
}

fn name(node: usize) -> String {
    format!("m{node}")
}

/// So long does it take until shares are where they are wanted: a period in which it shows, one
/// until they have fallen elsewhere and one until they have risen, and rounds and messages between.
const SETTLED: Span = Span(3 * PERIOD.0 + 3 * ROUND.0 + 10 * STEP.0);

#[test]
fn at_first_all_nodes_have_equal_parts() {
    let mut world = ClusterTestbed::new();
    world.run(Span(PERIOD.0 + 10 * STEP.0));
    assert_eq!(world.reserved(0), [300; NODES]);
    assert_eq!(world.sum(2), Holds { reserved: 300, allowed: LIMIT });
}

#[test]
fn a_promise_follows_its_demand_from_node_to_node() {
    let mut world = ClusterTestbed::new();
    for node in [2, 0, 3] {
        world.nodes.iter_mut().for_each(|node| node.wants = [0; 3]);
        world.nodes[node].wants[1] = 600;
        world.run(SETTLED);
        assert_eq!(world.reserved(1)[node], 600, "{:?}", world.reserved(1));
    }
}

/// Where no client knows how much it wants, two nodes have equal parts at first, of which one gives
/// some back.
#[test]
fn a_tenant_with_known_demand_has_its_promise_at_two_nodes_at_once() {
    for knows in [true, false] {
        let mut world = ClusterTestbed::new();
        world.nodes.iter_mut().for_each(|node| node.knows = knows);
        world.nodes[1].wants[1] = 600;
        world.run(SETTLED);
        assert_eq!(world.reserved(1)[1], 600);
        world.nodes[1].wants[1] = 0;
        (world.nodes[0].wants[1], world.nodes[3].wants[1]) = (500, 100);
        world.run(SETTLED);
        assert_eq!(world.reserved(1) == [500, 0, 0, 100], knows, "{:?}", world.reserved(1));
        world.run(SETTLED);
        assert_eq!(world.reserved(1), [500, 0, 0, 100]);
    }
}

/// A client can be promised no more than it can do, a node no more than it can; what is over goes
/// to other nodes.
#[test]
fn what_one_node_cannot_keep_is_kept_ready_at_others() {
    let mut world = ClusterTestbed::new();
    world.nodes[1].wants = [2_000, 600, 0];
    world.run(SETTLED);
    world.run(SETTLED);
    let [big, small] = [world.reserved(0), world.reserved(1)];
    assert_eq!(big[1] + small[1], CAPACITY, "{big:?} {small:?}");
    assert!(big[1] <= CLIENT && small[1] >= 300, "{big:?} {small:?}");
    assert_eq!(big.iter().sum::<u64>(), 1_200);
}

/// Shares that are in use stay, and the rest goes where more is wanted.
#[test]
fn nodes_that_do_not_need_it_give_it_up() {
    let mut world = ClusterTestbed::new();
    for (node, wants) in world.nodes.iter_mut().zip([100, 900, 200, 0]) {
        node.wants[0] = wants;
    }
    world.run(SETTLED);
    world.run(SETTLED);
    let reserved = world.reserved(0);
    assert!(reserved[0] >= 100 && reserved[1] == 800 && reserved[2] >= 200, "{reserved:?}");
}

/// The demand of a tenant is seen at a node where the tenant may do nothing.
#[test]
fn a_limit_follows_its_tenant() {
    let mut world = ClusterTestbed::new();
    for node in [0, 3, 1] {
        world.nodes.iter_mut().for_each(|node| node.wants[2] = 0);
        world.nodes[node].wants[2] = LIMIT;
        world.run(Span(3 * SETTLED.0));
        let allowed = world.nodes[node].holds[2].allowed;
        assert!(allowed >= LIMIT * 9 / 10, "{allowed}");
    }
}

/// A limit is on its way from one node to all others when a process starts that has none. The first
/// limit of the process is at most what the other nodes leave at that time.
#[test]
fn the_first_limit_of_a_process_is_what_other_nodes_leave() {
    let mut world = ClusterTestbed::new();
    world.nodes[1].wants[2] = LIMIT;
    world.run(Span(3 * SETTLED.0));
    world.nodes[1].wants[2] = 0;
    let allowed = |holds: &[Holds; 3]| holds[2].allowed;
    let most = allowed(&world.nodes[1].holds);
    assert!(most >= LIMIT * 9 / 10, "{most}");
    for _ in 0..100 {
        world.step();
        if allowed(&world.nodes[1].next) < most {
            break;
        }
    }
    assert_eq!(allowed(&world.nodes[1].holds), most, "the fall is not in force yet");
    world.replace(2);
    world.run(Span(20 * STEP.0));
    assert_eq!(allowed(&world.nodes[1].holds), most, "and is not yet");
    let first = allowed(&world.nodes[2].holds);
    assert!(first <= LIMIT - most, "{first} beside {most}");
    world.run(SETTLED);
    let first = allowed(&world.nodes[2].holds);
    assert!(first >= LIMIT / 5, "{first} in the end");
}

#[test]
fn lost_reports_and_a_lost_controller_leave_the_last_division() {
    let mut world = ClusterTestbed::new();
    world.nodes[2].wants[1] = 600;
    world.run(SETTLED);
    let settled = world.reserved(1);
    // Its present demand is unknown.
    world.nodes[2].mute = Time::MAX;
    world.nodes[2].wants[1] = 0;
    world.run(Span(AWAY.0 - 2 * ROUND.0));
    assert_eq!(world.reserved(1), settled);
    world.nodes[2].mute = world.now;
    world.nodes[2].wants[1] = 600;
    world.run(SETTLED);
    let settled = world.reserved(1);
    world.nodes.iter_mut().for_each(|node| node.connection = None);
    world.nodes[0].wants[1] = 600;
    world.run(Span(20 * PERIOD.0));
    assert_eq!(world.reserved(1), settled);
    // The next one begins with what it finds.
    world.restart();
    world.run(ROUND);
    assert_eq!(world.reserved(1), settled);
}

/// The shares of a node that is gone for long go to other nodes.
#[test]
fn a_node_that_does_not_return_loses_its_shares() {
    let mut world = ClusterTestbed::new();
    world.nodes[2].wants[1] = 600;
    world.run(SETTLED);
    let id = world.nodes[2].connection.take().unwrap();
    world.split.on_closed(world.now, id, "it died");
    world.nodes[2] = Fake { ends: Time::MAX, ..Fake::default() };
    world.nodes[0].wants[1] = 600;
    world.run(Span(AWAY.0 - ROUND.0));
    assert_eq!(world.reserved(1)[0], 0, "its clients may live");
    world.run(SETTLED);
    world.run(SETTLED);
    assert_eq!(world.reserved(1)[0], 600);
}

#[test]
fn strangers_are_refused() {
    let mut split = Controller::new(Time::ZERO, setup(), None);
    split.on_hello(Time::ZERO, ConnectionId(1), Peer::default(), hello(VERSION, "m9"));
    split.on_hello(Time::ZERO, ConnectionId(2), Peer::default(), hello(VERSION + 1, "m0"));
    let outputs: Vec<_> = std::iter::from_fn(|| split.poll_output()).collect();
    let reasons = outputs.iter().filter_map(|output| match output {
        Output::Send { message: ToPeer::DataNode(ToDataNode::Refused { reason, .. }), .. } => {
            Some(reason.as_str())
        }
        _ => None,
    });
    let reasons: Vec<_> = reasons.collect();
    assert!(reasons[0].contains("no data node named \"m9\""), "{reasons:?}");
    assert!(reasons[1].contains("run the same release on both"), "{reasons:?}");
    assert_eq!(reasons.len(), 2);
}

/// Anything at all, from a node that may be another program.
fn anything() -> impl Strategy<Value = FromDataNode> {
    let number = || prop_oneof![0..9u64, 0..2_000u64, Just(u64::MAX)];
    let numbers = || (number(), number(), number(), number());
    let wants = (any::<bool>(), prop::option::of(number()));
    let tenant = (0..5u16, numbers(), wants).prop_map(|(tenant, numbers, (wants_more, unmet))| {
        let (reserved, allowed, most, done) = numbers;
        let clients = (most % 3) as u32;
        let (tenant, rest) =
            (tenant, TenantReport { wants_more, unmet, ..TenantReport::default() });
        TenantReport { tenant: TenantIndex(tenant), reserved, allowed, clients, most, done, ..rest }
    });
    let report = (0..3u64, 0..40u64, number(), prop::collection::vec(tenant, 0..6)).prop_map(
        |(revision, round, capacity, tenants)| {
            let (capacity, rest) = (Iops(capacity), DataNodeReport::default());
            FromDataNode::Report(DataNodeReport { revision, round, capacity, tenants, ..rest })
        },
    );
    let granted = number().prop_map(|serial| FromDataNode::Granted { serial });
    prop_oneof![8 => report, 2 => granted, 1 => Just(FromDataNode::Disconnect)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Nothing that a node says ends the controller, or makes it promise more than there is.
    #[test]
    fn grants_stay_within_promises_whatever_nodes_report(
        messages in prop::collection::vec((0..NODES, anything(), 0..9u64), 0..80),
    ) {
        let mut split = Controller::new(Time::ZERO, setup(), None);
        split.apply(Time::ZERO, 1, policy());
        let mut is_open = [false; NODES];
        let mut now = Time::ZERO;
        for (node, message, steps) in messages {
            let id = ConnectionId(node as u64);
            if !std::mem::replace(&mut is_open[node], true) {
                split.on_hello(now, id, Peer::default(), hello(VERSION, &name(node)));
            }
            split.on_message(now, id, FromPeer::DataNode(message));
            now = now.after(Span(steps * STEP.0));
            if split.next_deadline() <= now {
                split.on_deadline(now);
            }
            while let Some(output) = split.poll_output() {
                let grant = match output {
                    Output::Send { message: ToPeer::DataNode(ToDataNode::Grant(grant)), .. } => {
                        grant
                    }
                    Output::Close { connection } => {
                        is_open[connection.0 as usize] = false;
                        continue;
                    }
                    _ => continue,
                };
                for share in grant.shares {
                    let promised = PROMISED[share.tenant.index()];
                    prop_assert!(share.reserved <= promised, "{share:?}");
                }
            }
        }
    }
}
