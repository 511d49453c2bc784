//! Disciplines, weights and tenants that change ten thousand times under load: every request is
//! answered exactly once, by the device or because its client has gone.

use proptest::prelude::*;
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::policy::Fallback;
use tidegate_model::{Discipline, Span, Time};
use tidegate_proto::cluster::message::{NodeInfo, Plan, ToNode};
use tidegate_proto::data::Command;
use tidegate_proto::data::pieces::PIECE;
use tidegate_proto::node::{Config, Node, NodeRequest};

use crate::one_by_one::{OneByOne, tag};
use crate::world::{MS, at, now_grant, plan};

const NAMES: [&str; 4] = ["a", "b", "limited", "lesser"];
const CLIENTS: usize = 3;
const CHANGES: usize = 10_000;

#[derive(Clone, Debug)]
enum Change {
    Discipline(usize),
    /// Of the tenants in their order; those with zero leave, or come back later.
    Weights([u32; 4]),
    /// Of one tenant: what is reserved, and what is allowed.
    Grant(u16, u64, u64),
    Elsewhere(usize, u64),
    /// A client goes, and what waits for it with it.
    Leave(usize),
    Wait(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let weight = prop_oneof![1 => Just(0u32), 3 => 1u32..1_000_000];
    prop_oneof![
        6 => (0..DISCIPLINES.len()).prop_map(Change::Discipline),
        2 => prop::array::uniform4(weight).prop_map(Change::Weights),
        4 => (0u16..4, 0u64..50, 0u64..50).prop_map(|(who, a, b)| Change::Grant(who, a, b)),
        2 => (0usize..4, 0u64..1 << 40).prop_map(|(who, work)| Change::Elsewhere(who, work)),
        1 => (0..CLIENTS).prop_map(Change::Leave),
        3 => (0u64..300).prop_map(Change::Wait),
    ]
}

/// How often each request was answered, and whose it is.
struct Count {
    client: usize,
    answers: u32,
}

struct Load {
    node: Node<usize>,
    now: Time,
    plan: Plan,
    grants: u64,
    counts: Vec<Count>,
    at_device: Vec<NodeRequest<usize>>,
}

impl Load {
    fn new() -> Self {
        let config = Config { depth: 3, ..Config::default() };
        let node = Node::new(at(0), NodeInfo::default(), config);
        let plan = plan(1, &NAMES, Fallback::Keep);
        node.on_connected(at(0));
        node.on_message(at(0), ToNode::Plan(plan.clone()));
        let (counts, at_device) = (Vec::new(), Vec::new());
        Self { node, now: at(0), plan, grants: 0, counts, at_device }
    }

    /// One request of each tenant, and a few answers, in an order that is not that of dispatch.
    fn work(&mut self, delay: u32) {
        for (number, name) in NAMES.iter().enumerate() {
            let (job, slot) = (self.counts.len(), self.node.slot(name));
            self.counts.push(Count { client: job % CLIENTS, answers: 0 });
            let length = PIECE * number as u32;
            let request = self.node.request(slot, Command::Read, length, &tag(delay), job);
            self.node.put(self.now, &mut vec![request]);
        }
        self.serve(5);
    }

    fn serve(&mut self, most: usize) {
        for _ in 0..most {
            while let Some(next) = self.node.next_dispatch(self.now) {
                self.at_device.push(next);
            }
            let Some(last) = self.at_device.len().checked_sub(1) else { return };
            let done = self.at_device.swap_remove(last / 2);
            self.counts[done.body].answers += 1;
            self.node.on_done(self.now, done);
        }
    }

    fn change(&mut self, change: &Change) {
        match *change {
            Change::Discipline(number) => {
                self.plan.discipline = Some(DISCIPLINES[number].0);
                self.node.on_message(self.now, ToNode::Plan(self.plan.clone()));
            }
            Change::Weights(weights) => {
                let discipline = self.plan.discipline;
                self.plan = plan(self.plan.revision + 1, &NAMES, Fallback::Keep);
                self.plan.discipline = discipline;
                for (tenant, weight) in self.plan.tenants.iter_mut().zip(weights) {
                    tenant.weight = weight;
                }
                self.plan.tenants.retain(|tenant| tenant.weight > 0);
                self.node.on_message(self.now, ToNode::Plan(self.plan.clone()));
            }
            Change::Grant(tenant, reserved, more) => {
                self.grants += 1;
                let period = self.now.0 / Span::SECOND.0;
                let into = self.now.0 % Span::SECOND.0 / MS;
                let shares = [(tenant, reserved, reserved + more)];
                let mut grant = now_grant(self.grants, period, into, &shares);
                grant.revision = self.plan.revision;
                self.node.on_message(self.now, ToNode::Grant(grant));
            }
            Change::Elsewhere(tenant, work) => {
                self.node.on_elsewhere(self.node.slot(NAMES[tenant]), work);
            }
            Change::Leave(client) => {
                let counts = &self.counts;
                let gone = self.node.cancel(self.now, |job| counts[*job].client == client);
                gone.into_iter().for_each(|gone| self.counts[gone.body].answers += 1);
            }
            Change::Wait(ms) => {
                self.now = self.now.after(Span(ms * MS));
                self.node.advance(self.now);
            }
        }
        while self.node.poll_output().is_some() {}
    }

    /// Ends all limits.
    fn finish(&mut self) {
        self.plan = plan(self.plan.revision + 1, &["a"], Fallback::Keep);
        self.plan.discipline = Some(Discipline::Unified);
        self.node.on_message(self.now, ToNode::Plan(self.plan.clone()));
        self.serve(usize::MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn every_request_is_answered_once_however_often_anything_changes(
        changes in prop::collection::vec(change(), CHANGES),
    ) {
        let mut load = Load::new();
        for (number, change) in changes.iter().enumerate() {
            load.work(number as u32);
            load.change(change);
        }
        load.finish();
        prop_assert_eq!(load.counts.len(), CHANGES * NAMES.len());
        let wrong = load.counts.iter().position(|count| count.answers != 1);
        prop_assert!(wrong.is_none(), "request {:?}", wrong);
        prop_assert_eq!(load.node.status(load.now).in_flight, 0);
    }
}
