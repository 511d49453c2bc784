//! Times of requests, by tenant and operation.

use tidegate_model::policy::Fallback;
use tidegate_model::{Operation, Tag, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::data::Command;
use tidegate_proto::node::{Config, Node, NodeRequest, Slot};
use tidegate_proto::stats::latency::RequestLatency;

use crate::one_by_one::tag;
use crate::world::plan;

const LENGTH: u32 = 4_096;

fn node(config: Config) -> Node<&'static str> {
    Node::new(Time::ZERO, NodeInfo::default(), config)
}

fn apply(node: &Node<&str>, revision: u64, tenants: &[&str]) {
    node.on_message(Time::ZERO, ToNode::Plan(plan(revision, tenants, Fallback::Keep)));
}

/// Tenant, operation, requests, and the sums of latencies and of queue times.
fn times(node: &Node<&str>) -> Vec<(String, String, u64, u64, u64)> {
    let all = node.latency();
    let pairs = all.requests.into_iter().zip(all.queued);
    let row = |(latency, queued): (RequestLatency, RequestLatency)| {
        let RequestLatency { tenant, operation, counts } = latency;
        assert_eq!((&tenant, &operation), (&queued.tenant, &queued.operation));
        assert_eq!(counts.requests(), queued.counts.requests());
        (tenant, operation, counts.requests(), counts.total_ns, queued.counts.total_ns)
    };
    pairs.map(row).collect()
}

fn row(tenant: &str, operation: &str, rest: [u64; 3]) -> (String, String, u64, u64, u64) {
    let [requests, latency, queued] = rest;
    (tenant.into(), operation.into(), requests, latency, queued)
}

/// A request that waits for the device has a queue time; both have a latency.
#[test]
fn latency_counts_from_arrival_and_queue_time_until_dispatch() {
    let node = node(Config { depth: 1, ..Config::default() });
    apply(&node, 1, &["oltp", "backup"]);
    let oltp = node.slot("oltp");
    let write = Tag { operation: Operation::Write, ..tag(0) };
    let mut requests = vec![
        node.request(oltp, Command::Read, LENGTH, &tag(0), "first"),
        node.request(oltp, Command::Read, LENGTH, &write, "second"),
        node.request(Slot::UNATTRIBUTED, Command::Read, LENGTH, &tag(0), "third"),
    ];
    let mut batch = Vec::new();
    let home = node.submit(Time(100), &mut requests, &mut batch);
    for now in [150, 175, 190] {
        let mut finished = std::mem::take(&mut batch);
        assert_eq!(finished.len(), 1, "one is at the device");
        node.finish(home, Time(now), &mut finished, Some(&mut batch), |_, _| {});
    }
    // They are fair, and requests without a tenant are in the first slot.
    let expected = [
        row("", "read", [1, 50, 0]),
        row("oltp", "read", [1, 75, 50]),
        row("oltp", "write", [1, 90, 75]),
    ];
    assert_eq!(times(&node), expected);
}

/// A request in pieces counts once: from its arrival, with the queue time of its first piece.
#[test]
fn a_request_in_pieces_is_one_request() {
    let node = node(Config { depth: 1, ..Config::default() });
    let piece = |body| {
        let mut piece = node.request(Slot::UNATTRIBUTED, Command::Read, LENGTH, &tag(0), body);
        piece.is_piece = true;
        piece
    };
    let mut batch = Vec::new();
    node.put(Time(10), &mut vec![piece("first")]);
    node.fill(0, Time(14), &mut batch);
    let next = |_: &mut NodeRequest<_>, next: &mut Vec<_>| next.push(piece("second"));
    node.finish(0, Time(30), &mut std::mem::take(&mut batch), None, next);
    assert_eq!(times(&node), []);
    node.fill(0, Time(40), &mut batch);
    let answer = |request: &mut NodeRequest<_>, _: &mut Vec<_>| request.is_piece = false;
    node.finish(0, Time(60), &mut std::mem::take(&mut batch), None, answer);
    assert_eq!(times(&node), [row("", "read", [1, 50, 4])]);
}

/// A tenant that leaves takes its counts with it, and requests that come or finish for it then have
/// no tenant; one that comes in its slot begins at zero.
#[test]
fn a_tenant_that_leaves_takes_its_counts_with_it() {
    for shards in [1, 3] {
        let node = node(Config { shards, depth: 3, ..Config::default() });
        apply(&node, 1, &["a", "b", "c"]);
        let mut batch = Vec::new();
        let mut serve = |slot, at: u64| {
            node.put(Time(at), &mut vec![node.request(slot, Command::Read, LENGTH, &tag(0), "x")]);
            node.fill(0, Time(at), &mut batch);
            node.finish(0, Time(at + 1), &mut std::mem::take(&mut batch), None, |_, _| {});
        };
        let b = node.slot("b");
        serve(b, 1);
        serve(b, 2);
        assert_eq!(times(&node), [row("b", "read", [2, 2, 0])]);
        apply(&node, 2, &["a", "c"]);
        assert_eq!(times(&node), []);
        serve(b, 3);
        assert_eq!(times(&node), [row("", "read", [1, 1, 0])]);
        apply(&node, 3, &["a", "new", "c"]);
        serve(node.slot("new"), 4);
        serve(b, 5);
        let expected = [row("", "read", [2, 2, 0]), row("new", "read", [1, 1, 0])];
        assert_eq!(times(&node), expected);
    }
}
