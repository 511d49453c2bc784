//! A storage node's machine under a controller that says anything and a world that does things in
//! any order: every request comes out once, no tenant is served beyond the confirmed counts, and
//! each that may be served is.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::cost::{Combine, DeviceCost, LineCost};
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::policy::Fallback;
use tidegate_model::tag::CLASSES;
use tidegate_model::{
    ClassWeights, ContextId, CostModel, Iops, NodeId, Operation, PeriodNumber, Span, Tag, TenantId,
    TenantIndex, Time,
};
use tidegate_proto::cluster::message::{
    BytePlan, FromNode, Grant, NodeInfo, Plan, RoundId, Share, TenantPlan, ToNode,
};
use tidegate_proto::data::Command;
use tidegate_proto::message::VERSION;
use tidegate_proto::node::{Config, Node, NodeRequest, Output, Pacing, TenantStatus};

use super::tape::Tape;

const NAMES: [&str; 4] = ["a", "b", "l", "m"];
const MS: u64 = Span::MILLISECOND.0;

/// Bytes that one unit of cost pays for.
const UNIT: u32 = 128 << 10;

/// Weights from next to nothing to the most that there is.
const COST: CostModel = {
    let line = LineCost { base: Span(1), per_mib: Span(1 << 24) };
    CostModel::Device(DeviceCost { read: line, write: line, combine: Combine::Sum })
};

/// The first bytes are a configuration; the rest is what happens.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let config = Config {
        depth: u32::from(tape.byte() % 5),
        shards: tape.below(4),
        capacity: tape.flag().then(|| Iops(tape.number())),
        pacing: if tape.flag() { Pacing::Even } else { Pacing::Paper },
        cost: COST,
        ..Config::default()
    };
    let info = NodeInfo { name: "n".into(), ..NodeInfo::default() };
    let mut world = NodeWorld {
        node: Node::new(Time::ZERO, info, config),
        depth: config.depth.max(1) as usize,
        now: Time::ZERO,
        serial: 0,
        pushed: 0,
        out: BTreeSet::new(),
        at_device: Vec::new(),
        confirmed: BTreeMap::new(),
    };
    while !tape.is_over() {
        world.step(&mut tape);
        world.read_confirmations();
        world.check_invariants();
    }
    world.end();
}

struct NodeWorld {
    node: Node<u32>,
    depth: usize,
    now: Time,
    serial: u64,
    pushed: u32,
    /// Requests that were dispatched or cancelled.
    out: BTreeSet<u32>,
    at_device: Vec<NodeRequest<u32>>,
    /// The most that the node has said to allow each tenant, since the plan.
    confirmed: BTreeMap<String, u64>,
}

impl NodeWorld {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(12) {
            0 | 1 => {
                let slot = self.node.slot(NAMES.get(tape.below(5)).unwrap_or(&"nobody"));
                for _ in 0..=tape.below(8) {
                    let length = if tape.flag() { UNIT } else { tape.word() };
                    let tag = tag(self.pushed % 5 * 1_000);
                    let request = self.node.request(slot, Command::Read, length, &tag, self.pushed);
                    self.node.put(self.now, &mut vec![request]);
                    self.pushed += 1;
                }
            }
            2 | 3 => {
                while self.dispatch() {}
                if self.at_device.len() < self.depth {
                    self.all_go_that_may();
                }
            }
            4 => drop(self.dispatch()),
            5 if !self.at_device.is_empty() => {
                let done = self.at_device.swap_remove(tape.below(self.at_device.len()));
                self.node.finish(tape.below(4), self.now, &mut [done], None, |_, _| {});
            }
            6 => {
                let (divisor, rest) = (u32::from(tape.byte() % 4) + 1, tape.word());
                let cancelled = self.node.cancel(self.now, |job| job % divisor == rest % divisor);
                self.came_out(&cancelled);
            }
            7 if tape.flag() => {
                self.node.on_connected(self.now);
                self.node.on_elsewhere(self.node.slot(NAMES[0]), self.pushed.into());
            }
            7 => self.node.on_disconnected(self.now),
            8 => self.wait(tape),
            _ => {
                let message = self.message(tape);
                let revision = self.node.info().revision;
                self.node.on_message(self.now, message);
                if self.node.info().revision != revision {
                    // The allowed counts are void, and waiting requests are to be confirmed anew.
                    self.take_confirmations();
                    self.confirmed.clear();
                }
            }
        }
    }

    fn wait(&mut self, tape: &mut Tape<'_>) {
        let span = match tape.below(3) {
            0 => Span(u64::from(tape.byte()) * MS),
            1 => Span(tape.number() % (1 << 45)),
            _ => Span::ZERO,
        };
        let due = self.node.next_deadline();
        let is_due = tape.flag() && due < Time(1 << 62);
        self.now = if is_due { self.now.max(due) } else { self.now }.after(span);
        self.node.advance(self.now);
        while self.dispatch() {}
        assert!(self.node.next_deadline() > self.now, "it would spin");
    }

    /// Gives one request to the device, if there is one and room.
    fn dispatch(&mut self) -> bool {
        let before = self.node.status(self.now);
        let mut batch = Vec::new();
        self.node.fill_to(0, 1, self.now, &mut batch);
        self.came_out(&batch);
        let Some(next) = batch.pop() else { return false };
        let (slot, cost) = (next.slot(), next.units());
        self.at_device.push(next);
        assert!(self.at_device.len() <= self.depth, "more at the device than it takes");
        let status = self.node.status(self.now);
        assert_eq!(status.in_flight as usize, self.at_device.len());
        if !self.node.discipline().observes_promises() {
            return true;
        }
        let after = status.tenants.iter().find(|tenant| slot == self.node.slot(&tenant.name));
        let Some(TenantStatus { name, served, allowed: Some(allowed), .. }) = after else {
            return true;
        };
        let was = served - u64::from(cost).min(*served);
        assert!(was < *allowed, "{name} was served {served}, {allowed} of which are allowed");
        let most = self.confirmed.get(name).copied().unwrap_or(0);
        let is_within = status.is_abandoned || before.is_abandoned || *allowed <= most;
        assert!(is_within, "{name} is allowed {allowed}, {most} of which were confirmed");
        true
    }

    fn came_out(&mut self, requests: &[NodeRequest<u32>]) {
        for job in requests.iter().map(|request| request.body) {
            assert!(job < self.pushed && self.out.insert(job), "{job} came out twice");
        }
    }

    /// Reads what the node says, and writes down what it confirms.
    fn read_confirmations(&mut self) {
        let revision = self.node.info().revision;
        for (confirmed_revision, shares) in self.take_confirmations() {
            let status = self.node.status(self.now);
            for share in shares.iter().filter(|_| confirmed_revision == revision) {
                let tenant = &status.tenants[share.tenant.index() + 1];
                let most = self.confirmed.entry(tenant.name.clone()).or_default();
                *most = share.allowed.max(*most);
            }
        }
    }

    fn take_confirmations(&mut self) -> Vec<(u64, Vec<Share>)> {
        let mut granted = Vec::new();
        let mut outputs = 0;
        while let Some(output) = self.node.poll_output() {
            // It may also be time to say that a request has come, or whether the capacity is known.
            let is_news =
                matches!(output, Output::Send(FromNode::Awake | FromNode::CapacityKnown(_)));
            outputs += usize::from(!is_news);
            if let Output::Send(FromNode::Granted { revision, shares, .. }) = output {
                granted.push((revision, shares));
            }
        }
        assert!(outputs <= 2, "{outputs} answers to one message");
        granted
    }

    fn check_invariants(&mut self) {
        let status = self.node.status(self.now);
        // Costs are not kept here, but each is one at least.
        let waiting = u64::from(self.pushed) - self.out.len() as u64;
        assert!(status.waiting >= waiting && (status.waiting == 0) == (waiting == 0));
        let sum: u64 = status.tenants.iter().map(|tenant| tenant.waiting).sum();
        assert_eq!(sum, status.waiting);
    }

    /// Serves all requests that may go, and checks that all others are still there.
    fn end(&mut self) {
        loop {
            self.node.finish(0, self.now, &mut self.at_device, None, |_, _| {});
            self.at_device.clear();
            if !self.dispatch() {
                break;
            }
        }
        self.all_go_that_may();
        let left = self.node.cancel(self.now, |_| true);
        self.came_out(&left);
        assert_eq!(self.out.len(), self.pushed as usize, "requests are lost");
    }

    /// While the device has headroom, no request waits that may be served.
    fn all_go_that_may(&self) {
        for tenant in &self.node.status(self.now).tenants {
            let is_limited = tenant.allowed.is_some() && self.node.discipline().observes_promises();
            let bytes = tenant.bytes.filter(|_| self.node.discipline().observes_promises());
            let may = (!is_limited || tenant.allowed.is_none_or(|allowed| tenant.served < allowed))
                && bytes.is_none_or(|it| it.allowed.is_none_or(|allowed| it.served < allowed));
            let is_limited = is_limited || bytes.is_some_and(|bytes| bytes.allowed.is_some());
            let is_paced = is_limited && self.node.next_deadline() > self.now;
            assert!(tenant.waiting == 0 || !may || is_paced, "{tenant:?} waits for nothing");
        }
    }

    fn message(&mut self, tape: &mut Tape<'_>) -> ToNode {
        let status = self.node.status(self.now);
        let period = match tape.below(6) {
            0 => tape.number(),
            ahead => status.period.saturating_add(ahead as u64 / 2).saturating_sub(1),
        };
        let round_id = RoundId { period: PeriodNumber(period), round: tape.word() };
        let into = Span(if tape.flag() { 0 } else { tape.number() });
        match tape.below(8) {
            0 => ToNode::Welcome { version: VERSION, node: NodeId(tape.byte().into()) },
            1 => ToNode::Refused { version: VERSION, reason: "no".into(), retry: tape.flag() },
            2 => ToNode::Plan(plan(tape, status.revision)),
            3 => ToNode::Collect { round_id, into, complete: tape.flag() },
            _ => {
                self.serial = if tape.byte() > 240 { tape.number() } else { self.serial };
                self.serial = self.serial.saturating_add((tape.byte() % 3).into());
                let shares = (0..self.serial % 4).map(|_| share(tape)).collect();
                let lease = if tape.flag() { 0 } else { u32::from(tape.byte() % 4) };
                let is_other = tape.byte() > 240;
                let revision = if is_other { tape.number() } else { status.revision };
                let serial = self.serial;
                let bytes = (0..tape.below(3)).map(|_| share(tape)).collect();
                ToNode::Grant(Grant { revision, round_id, serial, into, lease, shares, bytes })
            }
        }
    }
}

fn share(tape: &mut Tape<'_>) -> Share {
    let tenant = if tape.byte() > 250 { tape.number() as u16 } else { tape.byte().into() };
    Share { tenant: TenantIndex(tenant % 6), reserved: tape.number(), allowed: tape.number() }
}

fn tag(delay: u32) -> Tag {
    Tag {
        tenant: TenantId(1),
        context: ContextId::NONE,
        class: CLASSES[delay as usize % CLASSES.len()].0,
        operation: Operation::Read,
        cost: 1,
        delay,
    }
}

fn plan(tape: &mut Tape<'_>, revision: u64) -> Plan {
    let tenant = |name: &str, weight| TenantPlan {
        name: name.into(),
        weight,
        is_limited: name >= "l",
        minimum_ppm: weight % 1_000_000,
        bytes: weight.is_multiple_of(4).then(|| BytePlan {
            reserves_operations: weight.is_multiple_of(8),
            is_reserved: weight.is_multiple_of(3),
            is_limited: name >= "m",
        }),
    };
    let names = tape.byte();
    let is_in = |index: &usize| names >> index & 1 == 1;
    let tenants = (0..NAMES.len()).filter(is_in).map(|index| tenant(NAMES[index], tape.word()));
    let tenants = tenants.collect();
    Plan {
        revision: if tape.byte() > 240 { tape.number() } else { revision.wrapping_add(1) },
        period: Span(if tape.flag() { 100 * MS } else { tape.number() }),
        rounds: if tape.flag() { 5 } else { tape.word() },
        fallback: *tape.pick(&[Fallback::Keep, Fallback::Reservation, Fallback::Unlimited]),
        discipline: DISCIPLINES.get(usize::from(names >> 4)).map(|(discipline, _)| *discipline),
        class_weights: ClassWeights::new(3, 2, 1).filter(|_| names.is_multiple_of(3)),
        capacity: [names & 1, names & 2].map(|bit| (bit > 0).then_some(1_000)),
        tenants,
    }
}

/// A plan, a question, counts for this period and the next, and requests in between.
pub fn seeds() -> Vec<Vec<u8>> {
    let plan = [11, 0, 1, 0, 0, 0, 0, 2, 0x2f, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0];
    let push = |name: u8| [0, name, 3, 1, 1, 1, 1];
    let grant = |ahead: u8, lease: u8| {
        let share = |tenant: u8| [0, tenant, 0, 2, 0, 4];
        let head = [11, 2 * ahead + 2, 0, 0, 1, 7, 0, 1];
        [&head[..], &share(2), &[lease & 1, lease, 0]].concat()
    };
    let inputs = [
        vec![2, 2, 0, 1],
        vec![7, 1],
        plan.to_vec(),
        vec![11, 2, 0, 0, 1, 3, 1],
        push(0).to_vec(),
        push(2).to_vec(),
        grant(0, 0),
        vec![2, 5, 0, 2],
        grant(1, 3),
        vec![8, 2, 1, 2, 5, 0, 5, 0, 2],
        push(3).to_vec(),
        vec![6, 1, 0, 3, 8, 0, 200, 1, 2],
        vec![7, 0, 8, 0, 255, 1, 2, 5, 0, 2],
    ];
    let inputs = inputs.concat();
    let again = [&inputs[..], &plan, &inputs[5..]].concat();
    vec![inputs, again]
}
