//! The node in front of a device that serves one request every 20 us, with tenants that each keep
//! five outstanding, as in the paper's Experiment 3; at the paper's rates.

use std::collections::VecDeque;

use tidegate_model::policy::Fallback;
use tidegate_model::{Iops, PeriodNumber, Span, Time};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, NodeReport, RoundId, ToNode};
use tidegate_proto::node::{Config, Node, NodeRequest, Output, Slot};

use crate::one_by_one::OneByOne;
use crate::world::{at, first_grant, plan};

const SERVICE: Span = Span(20 * Span::MICROSECOND.0);
const OUTSTANDING: u32 = 5;

/// A node whose device is busy until the first of `device` is done.
struct Server {
    node: Node<()>,
    now: Time,
    device: VecDeque<(Time, NodeRequest<()>)>,
    reports: Vec<NodeReport>,
}

impl Server {
    fn new(names: &[&str], grant: &[(u16, u64, u64)]) -> Self {
        let config = Config { depth: 4, capacity: None, ..Config::default() };
        let node = Node::new(at(0), NodeInfo::default(), config);
        node.on_message(at(0), ToNode::Plan(plan(1, names, Fallback::Keep)));
        node.on_message(at(0), ToNode::Grant(first_grant(1, 0, grant)));
        for name in names {
            let slot = node.slot(name);
            (0..OUTSTANDING).for_each(|_| node.on_request(at(0), slot, 1, ()));
        }
        Self { node, now: at(0), device: VecDeque::new(), reports: Vec::new() }
    }

    /// Lets time pass, and asks for a report five times a second.
    fn run(&mut self, until: Time) {
        let mut question = 1;
        while self.now < until {
            while let Some(next) = self.node.next_dispatch(self.now) {
                let free = self.device.back().map_or(self.now, |(done, _)| *done);
                self.device.push_back((free.after(SERVICE), next));
            }
            let collect_at = at(question * 200 - 1);
            let done = self.device.front().map_or(Time::MAX, |(done, _)| *done);
            self.now = done.min(self.node.next_deadline()).min(collect_at).min(until);
            if self.now == done {
                let (_, done) = self.device.pop_front().unwrap();
                let slot = done.slot();
                self.node.on_done(self.now, done);
                self.node.on_request(self.now, slot, 1, ());
            }
            self.node.advance(self.now);
            if self.now == collect_at {
                question += 1;
                let round_id =
                    RoundId { period: PeriodNumber(self.now.0 / Span::SECOND.0), round: 0 };
                let into = Span(self.now.0 % Span::SECOND.0);
                self.node.on_message(self.now, ToNode::Collect { round_id, into, complete: true });
            }
            while let Some(output) = self.node.poll_output() {
                if let Output::Send(FromNode::Report(report)) = output {
                    self.reports.push(report);
                }
            }
        }
    }

    fn served(&self) -> Vec<u64> {
        let status = self.node.status(self.now);
        status.tenants[1..].iter().map(|tenant| tenant.served).collect()
    }
}

/// The server that all four buckets use. The first bucket uses no other and is promised 30,000; the
/// others have their promises elsewhere, and what is left here is for all.
#[test]
fn reservations_are_served_first_and_then_tenants_alternate() {
    let names = ["b1", "b2", "b3", "b4"];
    let mut server = Server::new(&names, &[(0, 30_000, 0), (1, 4_000, 0)]);
    // Two have reservations: they alternate, until the second has its 4,000.
    server.run(at(160));
    assert_eq!(server.served(), [4_003, 4_000, 0, 0]);
    server.run(at(680));
    assert_eq!(server.served(), [30_001, 4_001, 1, 0]);
    server.run(at(999));
    assert_eq!(server.served(), [33_989, 7_988, 3_988, 3_988]);
}

#[test]
fn without_reservations_all_have_the_same() {
    let mut server = Server::new(&["b1", "b2", "b3", "b4"], &[]);
    server.run(at(999));
    assert_eq!(server.served(), [12_489, 12_488, 12_488, 12_488]);
}

/// The node reports its capacity, and as elastic the tenants that ask for all that they can get:
/// they could use all of it. The demand of a tenant that has got nothing yet is unknown.
#[test]
fn capacity_and_demand_are_estimated() {
    let mut server = Server::new(&["b1", "b2"], &[(0, 30_000, 0)]);
    server.run(at(999));
    assert_eq!(server.node.status(server.now).capacity_per_second, 50_000);
    let left: Vec<u64> = server.reports.iter().map(|report| report.capacity_left).collect();
    assert_eq!(left, [40_050, 30_050, 20_050, 10_050, 50]);
    for report in &server.reports[1..] {
        let mut served = report.tenants.iter().filter(|tenant| tenant.served > 0);
        assert!(served.all(|tenant| tenant.is_elastic));
    }
}

/// 2,000 per second are let through evenly: while the device is idle most of the time, each request
/// waits as long as the others.
#[test]
fn a_limit_is_kept_evenly() {
    let mut server = Server::new(&["limited"], &[(0, 0, 2_000)]);
    let mut last = 0;
    for step in 1..=3_999 {
        server.run(at(step).min(at(3_999)));
        let status = server.node.status(server.now);
        let total = status.tenants[1].served_total;
        assert!((1..=3).contains(&(total - last)), "{} at {step} ms", total - last);
        last = total;
    }
    assert_eq!(last, 7_998);
}

/// A device that was declared three times as fast as it is; the node finds out.
#[test]
fn a_wrong_declaration_is_mended() {
    let config = Config { capacity: Some(Iops(150_000)), depth: 4, ..Config::default() };
    let mut server = Server::new(&["b1"], &[]);
    let node = Node::new(at(0), NodeInfo::default(), config);
    assert_eq!(node.status(at(0)).capacity_per_second, 150_000);
    server.node = node;
    (0..OUTSTANDING).for_each(|_| server.node.on_request(at(0), Slot::UNATTRIBUTED, 1, ()));
    server.node.on_message(at(0), ToNode::Plan(plan(1, &[], Fallback::Keep)));
    server.run(at(999));
    let capacities = server.reports.iter().map(|report| report.capacity_left);
    assert_eq!(capacities.collect::<Vec<_>>(), [80_100, 45_075, 25_062, 11_306, 53]);
}
