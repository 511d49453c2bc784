//! Grants that come late, twice, in another order or not at all; plans, connections and periods
//! that change meanwhile. Whatever happens: no tenant is served beyond its confirmed count, and no
//! request is lost or served twice.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidegate_model::policy::Fallback;
use tidegate_model::{Iops, PeriodNumber, Span, TenantIndex, Time};
use tidegate_proto::cluster::message::{FromNode, Grant, NodeInfo, Plan, RoundId, Share, ToNode};
use tidegate_proto::node::{Config, Node, Output, Pacing};

use crate::one_by_one::OneByOne;
use crate::world::{MS, at, plan};

const NAMES: [&str; 3] = ["a", "limited", "lesser"];
const COST_MAX: u64 = 3;

#[derive(Clone, Debug)]
enum Act {
    /// Time passes.
    Wait(u64),
    Push(usize, u32),
    /// The controller decides: for the period so many ahead, counts of the limited tenants.
    Decide(u64, u64, u64),
    /// The grant that was decided so many ago arrives, perhaps again.
    Deliver(usize),
    Collect,
    Reconnect,
    /// The same tenants, some of them, under a new revision.
    Plan(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u64..400).prop_map(Act::Wait),
        6 => (0usize..3, 1..=COST_MAX as u32).prop_map(|(tenant, cost)| Act::Push(tenant, cost)),
        3 => (0u64..2, 0u64..9, 0u64..9).prop_map(|(ahead, a, b)| Act::Decide(ahead, a, b)),
        4 => (0usize..5).prop_map(Act::Deliver),
        1 => Just(Act::Collect),
        1 => Just(Act::Reconnect),
        1 => (1usize..4).prop_map(Act::Plan),
    ]
}

struct Chaos {
    node: Node<u32>,
    now: Time,
    revision: u64,
    decided: Vec<Grant>,
    /// The most that was confirmed for each tenant, of this revision.
    confirmed: BTreeMap<String, u64>,
    names: Vec<&'static str>,
    pushed: u32,
    served: BTreeSet<u32>,
}

impl Chaos {
    fn new(pacing: Pacing) -> Self {
        let config = Config { depth: 2, pacing, ..Config::default() };
        let node = Node::new(at(0), NodeInfo::default(), config);
        node.on_connected(at(0));
        node.on_message(at(0), ToNode::Plan(plan(1, &NAMES, Fallback::Keep)));
        Self {
            node,
            now: at(0),
            revision: 1,
            decided: Vec::new(),
            confirmed: BTreeMap::new(),
            names: NAMES.to_vec(),
            pushed: 0,
            served: BTreeSet::new(),
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Wait(ms) => {
                let until = self.now.after(Span(ms * MS));
                while self.now < until {
                    self.now = self.node.next_deadline().clamp(self.now, until);
                    self.node.advance(self.now);
                    self.serve();
                }
            }
            Act::Push(tenant, cost) => {
                let slot = self.node.slot(NAMES[tenant]);
                self.node.on_request(self.now, slot, cost, self.pushed);
                self.pushed += 1;
            }
            Act::Decide(ahead, reserved, allowed) => self.decide(ahead, reserved, allowed),
            Act::Deliver(back) => {
                if let Some(index) = self.decided.len().checked_sub(back + 1) {
                    let grant = self.decided[index].clone();
                    self.node.on_message(self.now, ToNode::Grant(grant));
                }
            }
            Act::Collect => {
                let period = self.now.0 / Span::SECOND.0;
                let into = Span(self.now.0 % Span::SECOND.0);
                let round_id = RoundId { period: PeriodNumber(period), round: 0 };
                let collect = ToNode::Collect { round_id, into, complete: true };
                self.node.on_message(self.now, collect);
            }
            Act::Reconnect => {
                self.node.on_disconnected(self.now);
                self.node.on_connected(self.now);
            }
            Act::Plan(count) => {
                self.revision += 1;
                self.names = NAMES[..count].to_vec();
                self.confirmed.clear();
                let plan = plan(self.revision, &self.names, Fallback::Keep);
                self.node.on_message(self.now, ToNode::Plan(plan));
            }
        }
        self.take_outputs();
        self.serve();
    }

    fn decide(&mut self, ahead: u64, reserved: u64, allowed: u64) {
        let period = self.now.0 / Span::SECOND.0 + ahead;
        let into = if ahead > 0 { Span::ZERO } else { Span(self.now.0 % Span::SECOND.0) };
        let share = |tenant| Share { tenant, reserved, allowed };
        self.decided.push(Grant {
            revision: self.revision,
            round_id: RoundId { period: PeriodNumber(period), round: 0 },
            serial: self.decided.len() as u64 + 1,
            into,
            // For so long that the test does not see its end.
            lease: if ahead > 0 { 1_000 } else { 0 },
            shares: (1..self.names.len() as u16).map(TenantIndex).map(share).collect(),
        });
    }

    /// Writes down what the node confirms.
    fn take_outputs(&mut self) {
        while let Some(output) = self.node.poll_output() {
            if let Output::Send(FromNode::Granted { revision, shares, .. }) = output {
                assert_eq!(revision, self.revision);
                for share in shares {
                    let name = self.names[share.tenant.index()];
                    let most = self.confirmed.entry(name.into()).or_default();
                    *most = share.allowed.max(*most);
                }
            }
        }
    }

    /// Serves what may be served, and checks it.
    fn serve(&mut self) {
        let before = self.node.status(self.now);
        while let Some(next) = self.node.next_dispatch(self.now) {
            assert!(self.served.insert(next.body), "served twice");
            self.node.on_done(self.now, next);
        }
        let status = self.node.status(self.now);
        if status.is_abandoned {
            return;
        }
        for tenant in &status.tenants[1..] {
            let was = before.tenants.iter().find(|was| was.name == tenant.name).unwrap();
            let most = self.confirmed.get(&tenant.name).copied().unwrap_or(0);
            let is_limited = tenant.allowed.is_some();
            let has_grown = tenant.served > was.served;
            // The last request had a token left.
            assert!(
                !is_limited || !has_grown || tenant.served < most.saturating_add(COST_MAX),
                "{tenant:?}"
            );
            // No tenant waits while it has tokens, unless pacing holds it back.
            let may_wait = is_limited && tenant.served >= tenant.allowed.unwrap_or(0);
            let is_paced = self.node.next_deadline() > self.now;
            assert!(tenant.waiting == 0 || may_wait || (is_limited && is_paced), "{tenant:?}");
        }
    }
}

/// A number that a controller in its right mind would not say, or that it would.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..12, Just(u64::MAX), (0u64..3).prop_map(|less| u64::MAX - less), any::<u64>()]
}

fn message() -> impl Strategy<Value = ToNode> {
    let round_id = || {
        (number(), any::<u32>())
            .prop_map(|(period, round)| RoundId { period: PeriodNumber(period), round })
    };
    let share = (0u16..5, number(), number()).prop_map(|(tenant, reserved, allowed)| Share {
        tenant: TenantIndex(tenant),
        reserved,
        allowed,
    });
    let shares = prop::collection::vec(share, 0..4);
    let grant = (round_id(), number(), number(), any::<u32>(), shares, 0u64..3).prop_map(
        |(round_id, serial, into, lease, shares, revision)| {
            ToNode::Grant(Grant { revision, round_id, serial, into: Span(into), lease, shares })
        },
    );
    let plans = (0u64..3, number(), any::<u32>(), 0usize..4).prop_map(
        |(revision, period, rounds, count)| {
            let plan = plan(revision, &NAMES[..count], Fallback::Keep);
            ToNode::Plan(Plan { period: Span(period), rounds, ..plan })
        },
    );
    let collect = (round_id(), number(), any::<bool>()).prop_map(|(round_id, into, complete)| {
        ToNode::Collect { round_id, into: Span(into), complete }
    });
    prop_oneof![grant, plans, collect]
}

proptest! {
    /// Whatever a controller says, a node goes on, and tenants without limit are served at once.
    #[test]
    fn no_message_stops_a_node(
        messages in prop::collection::vec((message(), 0u64..3_000), 0..40)
    ) {
        let config = Config { capacity: Some(Iops(u64::MAX)), ..Config::default() };
        let node = Node::new(at(0), NodeInfo::default(), config);
        let mut now = at(0);
        for (message, wait) in messages {
            now = now.after(Span(wait * MS));
            node.advance(now);
            node.on_message(now, message);
            node.on_request(now, node.slot("limited"), 1, 0);
            node.on_request(now, node.slot("a"), 1, 1);
            let mut is_served = false;
            while let Some(next) = node.next_dispatch(now) {
                is_served |= next.body == 1;
                node.on_done(now, next);
            }
            prop_assert!(is_served);
            node.status(now);
        }
    }

    #[test]
    fn nothing_is_exceeded_and_nothing_lost(
        acts in prop::collection::vec(act(), 1..120), is_even: bool
    ) {
        let pacing = if is_even { Pacing::Even } else { Pacing::Paper };
        let mut chaos = Chaos::new(pacing);
        acts.iter().for_each(|act| chaos.act(act));
        let left = chaos.node.cancel(chaos.now, |_| true).into_iter();
        let mut left: Vec<u32> = left.map(|request| request.body).collect();
        left.sort_unstable();
        let is_left = |job: &u32| !chaos.served.contains(job);
        prop_assert_eq!(left, (0..chaos.pushed).filter(is_left).collect::<Vec<_>>());
    }
}
