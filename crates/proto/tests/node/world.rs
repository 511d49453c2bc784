//! Helpers of the tests: messages with little to say, and a node that answers them.

use crate::one_by_one::OneByOne;
use tidegate_model::policy::Fallback;
use tidegate_model::{PeriodNumber, Span, TenantIndex, Time};
use tidegate_proto::cluster::message::{
    FromNode, Grant, NodeInfo, NodeReport, Plan, RoundId, Share, TenantPlan, ToNode,
};
use tidegate_proto::node::{Config, Node, Output, Slot, TenantStatus};

pub(crate) const MS: u64 = Span::MILLISECOND.0;

/// This many milliseconds after the start.
pub(crate) const fn at(ms: u64) -> Time {
    Time(ms * MS)
}

/// A plan of periods of one second with five rounds. Limited tenants begin with `l`.
pub(crate) fn plan(revision: u64, names: &[&str], fallback: Fallback) -> Plan {
    let tenant = |name: &&str| TenantPlan {
        name: (*name).into(),
        weight: 100,
        is_limited: name.starts_with('l'),
        minimum_ppm: 10_000,
        bytes: None,
    };
    let tenants = names.iter().map(tenant).collect();
    Plan { revision, period: Span::SECOND, rounds: 5, fallback, tenants, ..Plan::default() }
}

/// A node as the tests talk to it.
pub(crate) struct NodeTestbed {
    pub(crate) node: Node<u32>,
}

impl NodeTestbed {
    /// A node with this plan, whose first period has number 10 and begins at once.
    pub(crate) fn with_plan(plan: Plan) -> Self {
        let config = Config { depth: 4, ..Config::default() };
        let mut world = Self { node: Node::new(at(0), NodeInfo::default(), config) };
        world.node.on_connected(at(0));
        world.node.on_message(at(0), ToNode::Plan(plan));
        world.collect(0, 10, 0).unwrap();
        world
    }

    /// Asks for a complete report.
    pub(crate) fn collect(&mut self, now: u64, period: u64, into: u64) -> Option<NodeReport> {
        let (round_id, into) =
            (RoundId { period: PeriodNumber(period), round: 0 }, Span(into * MS));
        self.node.on_message(at(now), ToNode::Collect { round_id, into, complete: true });
        match self.answer()? {
            FromNode::Report(report) => Some(report),
            FromNode::Rest { revision, round_id, serial, capacity_left } => Some(NodeReport {
                revision,
                round_id,
                serial,
                capacity_left,
                ..NodeReport::default()
            }),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a renewal of the lease with the serial `base`; returns what is in force of the tenants
    /// that it names, or nothing if it was not taken.
    pub(crate) fn renew(
        &mut self,
        now: u64,
        base: u64,
        grant: Grant,
    ) -> Option<Vec<(u16, u64, u64)>> {
        let serial = grant.serial;
        self.node.on_message(at(now), ToNode::Renew { base, grant });
        let (answered, shares) = match self.answer().unwrap() {
            FromNode::Granted { serial, shares, .. } => (serial, Some(shares)),
            FromNode::Unrenewed { serial, .. } => (serial, None),
            other => panic!("{other:?}"),
        };
        assert_eq!(answered, serial);
        let counts = |share: &Share| (share.tenant.0, share.reserved, share.allowed);
        shares.map(|shares| shares.iter().map(counts).collect())
    }

    /// Sends a grant with these tenants, reserved and allowed counts; returns those in force.
    pub(crate) fn grant(&mut self, now: u64, grant: Grant) -> Vec<(u16, u64, u64)> {
        let serial = grant.serial;
        self.node.on_message(at(now), ToNode::Grant(grant));
        match self.answer().unwrap() {
            FromNode::Granted { serial: answered, shares, .. } => {
                assert_eq!(answered, serial);
                shares.iter().map(|share| (share.tenant.0, share.reserved, share.allowed)).collect()
            }
            FromNode::Unrenewed { .. } => vec![],
            other => panic!("{other:?}"),
        }
    }

    /// The next message to the controller but [`FromNode::Awake`]. There are no others behind it.
    pub(crate) fn answer(&mut self) -> Option<FromNode> {
        let mut sent = None;
        while let Some(output) = self.node.poll_output() {
            if let Output::Send(message) = output
                && message != FromNode::Awake
            {
                assert!(sent.replace(message).is_none());
            }
        }
        sent
    }

    /// Requests of cost one for the tenant with this name.
    pub(crate) fn push(&mut self, now: u64, name: &str, jobs: std::ops::Range<u32>) {
        let slot = self.node.slot(name);
        jobs.for_each(|job| self.node.on_request(at(now), slot, 1, job));
    }

    /// Serves everything that may be served, at once.
    pub(crate) fn serve(&mut self, now: u64) -> Vec<u32> {
        let mut served = Vec::new();
        while let Some(next) = self.node.next_dispatch(at(now)) {
            served.push(next.body);
            self.node.on_done(at(now), next);
        }
        served
    }

    /// When the period that is running at `now` ends, in nanoseconds.
    pub(crate) fn period_end(&self, now: u64) -> Time {
        at(now).after(Span(self.node.status(at(now)).period_left_ns.unwrap()))
    }

    /// The status of a tenant; the default tenant's name is empty.
    pub(crate) fn tenant(&self, now: u64, name: &str) -> TenantStatus {
        let status = self.node.status(at(now));
        status.tenants.into_iter().find(|tenant| tenant.name == name).unwrap()
    }
}

/// A grant in the middle of a period, at `into` milliseconds.
pub(crate) fn now_grant(serial: u64, period: u64, into: u64, shares: &[(u16, u64, u64)]) -> Grant {
    let shares = shares
        .iter()
        .map(|&(tenant, reserved, allowed)| Share {
            tenant: TenantIndex(tenant),
            reserved,
            allowed,
        })
        .collect();
    let round_id = RoundId { period: PeriodNumber(period), round: 1 };
    Grant { revision: 1, round_id, serial, into: Span(into * MS), lease: 0, shares, bytes: vec![] }
}

/// A grant that says with what a period begins, and for two periods more.
pub(crate) fn first_grant(serial: u64, period: u64, shares: &[(u16, u64, u64)]) -> Grant {
    Grant { lease: 2, ..now_grant(serial, period, 0, shares) }
}

/// The default tenant's slot.
pub(crate) const UNATTRIBUTED: Slot = Slot::UNATTRIBUTED;
