//! Skips divisions of an idle cluster: while no tenant has demand, a division comes out as the last
//! one did.
//!
//! # Problem
//! A distribution looks at every tenant at every node, several times in a period. With thousands
//! of tenants an idle cluster would keep a processor busy with the same answer.
//!
//! # Mechanism
//! A period's accounts are *still* when they were divided while nothing was served, waited or was
//! expected anywhere. Such a division depends on the promises, and on which nodes can be sent
//! counts and have capacity. As long as these stay, and there is no demand, the targets stand, also
//! from one period to the next; unconfirmed counts are sent again as ever.
//!
//! Example: 2,000 tenants at eight nodes, one distribution each 200 ms. Idle, 16,000 accounts are
//! looked at whether they are still, and none is divided. One tenant sends one request: the next
//! report has it, and all accounts are divided.
//!
//! # Bound
//! A look takes as long as there are accounts, some nanoseconds each.

use alloc::vec::Vec;

use super::allocate::NodeCapacity;
use super::bounds::{GrantCounts, NodeAccounts, TenantBounds, When};

/// For each node, whether it can be sent counts, and whether it has capacity.
type Pattern = Vec<(bool, bool)>;

/// The patterns under which accounts were divided without demand; none where there was demand, or a
/// promise has changed since.
#[derive(Debug, Default)]
pub(super) struct Still {
    divided: [Option<Pattern>; 2],
}

fn pattern(nodes: &[NodeCapacity]) -> Pattern {
    nodes.iter().map(|node| (node.is_open, node.capacity > 0)).collect()
}

/// Whether nothing was served, waits or is expected anywhere, and everything that may be in force
/// is known.
fn is_quiet(tenants: &[TenantBounds]) -> bool {
    let is_idle = |entry: &NodeAccounts| {
        [entry.served, entry.demand, entry.expected, entry.waiting] == [0; 4]
    };
    tenants.iter().all(|tenant| {
        tenant.gone == GrantCounts::ZERO
            && tenant.unknown == [GrantCounts::ZERO; 2]
            && tenant.entries.iter().all(is_idle)
    })
}

impl Still {
    /// Promises have changed.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The accounts of the next period are those of the present one now.
    pub(super) fn begin_period(&mut self) {
        let [now, next] = &mut self.divided;
        if now != next {
            *now = None;
        }
    }

    /// Whether a division of a period would come out as the last one. If not, one is made now.
    pub(super) fn holds(
        &mut self,
        tenants: &[TenantBounds],
        nodes: &[NodeCapacity],
        when: When,
    ) -> bool {
        let pattern = is_quiet(tenants).then(|| pattern(nodes));
        let last = core::mem::replace(&mut self.divided[when as usize], pattern);
        last.is_some() && last == self.divided[when as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_model::{Iops, NodeId, Policy, TenantIndex, Time};

    use super::*;
    use crate::cluster::message::{FromNode, NodeInfo, NodeReport, TenantReport, ToNode};
    use crate::cluster::{Cluster, NodeSetup, Setup};
    use crate::session::{Action, PeerId, ToPeer};

    const POLICY: &str = r#"
        period = "1s"
        redistribute = "200ms"
        tenant = [
            { name = "a", reservation = "100 iops" },
            { name = "b", LIMIT = "300 iops" },
            { name = "c" },
        ]
    "#;

    const NAMES: [&str; 3] = ["x", "y", "z"];

    /// A cluster with nodes that take every grant, and report the demand in `node_demands`.
    struct IdleSim {
        cluster: Cluster,
        /// Whether everything is divided in every round.
        divides_always: bool,
        now: u64,
        is_connected: [bool; 3],
        /// The demand at each node, by tenant.
        node_demands: [[u64; 3]; 3],
        sent: Vec<Action>,
    }

    impl IdleSim {
        fn new(divides_always: bool, has_limits: bool) -> Self {
            let node = |name: &str| NodeSetup {
                name: name.into(),
                capacity: Some(Iops(1_000)),
                ..NodeSetup::default()
            };
            let nodes = NAMES.map(node).into();
            let setup = Setup { nodes, is_first: true, ..Setup::default() };
            let limit = if has_limits { "limit" } else { "reservation" };
            let policy = Policy::parse(&POLICY.replace("LIMIT", limit)).unwrap();
            Self {
                cluster: Cluster::new(Time(0), setup, Some((1, policy))),
                divides_always,
                now: 0,
                is_connected: [false; 3],
                node_demands: [[0; 3]; 3],
                sent: Vec::new(),
            }
        }

        fn join(&mut self, node: usize) {
            self.is_connected[node] = true;
            let info = NodeInfo { name: NAMES[node].into(), ..NodeInfo::default() };
            self.cluster.on_hello(Time(self.now), info).unwrap();
        }

        fn leave(&mut self, node: usize) {
            if core::mem::take(&mut self.is_connected[node]) {
                self.cluster.on_closed(Time(self.now), NodeId(node as u16), "gone");
            }
        }

        fn pass(&mut self, milliseconds: u64) {
            let end = self.now + milliseconds * 1_000_000;
            loop {
                while let Some(action) = self.cluster.outbox.pop() {
                    if let Action::Send { to: PeerId::Node(node), message } = &action
                        && let ToPeer::Node(message) = message
                    {
                        self.answer(*node, message);
                    }
                    self.sent.push(action);
                }
                let next = self.cluster.next_deadline();
                if next.0 > end {
                    break;
                }
                self.now = self.now.max(next.0);
                if self.divides_always {
                    self.cluster.accounts.iter_mut().for_each(|accounts| accounts.still.reset());
                }
                self.cluster.on_deadline(Time(self.now));
            }
            self.now = end;
        }

        fn answer(&mut self, id: NodeId, message: &ToNode) {
            let node = usize::from(id.0);
            if !self.is_connected[node] {
                return;
            }
            let answer = match message {
                ToNode::Collect { round_id, .. } => {
                    let demands = (0..).zip(self.node_demands[node]);
                    let tenants = demands.map(|(tenant, demands)| TenantReport {
                        tenant: TenantIndex(tenant),
                        served: 0,
                        expected: demands,
                        waiting: demands / 2,
                        is_elastic: false,
                    });
                    let report = NodeReport {
                        revision: 1,
                        round_id: *round_id,
                        capacity_left: 500,
                        tenants: tenants.collect(),
                        ..NodeReport::default()
                    };
                    FromNode::Report(report)
                }
                ToNode::Grant(grant) => {
                    let (revision, serial) = (grant.revision, grant.serial);
                    FromNode::Granted {
                        revision,
                        serial,
                        shares: grant.shares.clone(),
                        bytes: grant.bytes.clone(),
                    }
                }
                _ => return,
            };
            if self.divides_always {
                self.cluster.accounts.iter_mut().for_each(|accounts| accounts.still.reset());
            }
            self.cluster.on_message(Time(self.now), id, answer);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Join(usize),
        Leave(usize),
        Demand(usize, usize, u64),
        Pass(u64),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            1 => (0..3usize).prop_map(Act::Join),
            1 => (0..3usize).prop_map(Act::Leave),
            2 => (0..3usize, 0..3usize, 0..400u64).prop_map(|(n, t, c)| Act::Demand(n, t, c)),
            3 => (0..3usize, 0..3usize).prop_map(|(n, t)| Act::Demand(n, t, 0)),
            4 => (1..3_000u64).prop_map(Act::Pass),
        ];
        prop::collection::vec(act, 0..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_not_divided_anew_would_have_come_out_the_same(
            acts in acts(),
            has_limits: bool,
        ) {
            let mut worlds = [false, true].map(|always| IdleSim::new(always, has_limits));
            for world in &mut worlds {
                (0..3).for_each(|node| world.join(node));
                for act in &acts {
                    match *act {
                        Act::Join(node) => {
                            world.leave(node);
                            world.join(node);
                        }
                        Act::Leave(node) => world.leave(node),
                        Act::Demand(node, tenant, count) => {
                            world.node_demands[node][tenant] = count;
                        }
                        Act::Pass(time) => world.pass(time),
                    }
                }
                world.pass(5_000);
            }
            let [some, all] = worlds;
            prop_assert_eq!(some.sent, all.sent);
        }
    }

    #[test]
    fn an_idle_cluster_does_not_divide() {
        let mut world = IdleSim::new(false, true);
        (0..3).for_each(|node| world.join(node));
        world.pass(3_000);
        for _ in 0..50 {
            world.pass(100);
            assert!(world.cluster.accounts[0].still.divided.iter().all(Option::is_some));
        }
        world.node_demands[1][0] = 7;
        world.pass(300);
        assert_eq!(world.cluster.accounts[0].still.divided[0], None, "somebody asks for something");
    }
}
