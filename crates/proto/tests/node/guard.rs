//! A node in front of a device that takes many requests and serves one at a time, in their order:
//! reads with a reservation, which come at even distances, and other requests, of which there are
//! always more than the device takes.

use std::collections::VecDeque;

use tidegate_model::policy::Fallback;
use tidegate_model::{Span, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::node::{Config, Node, NodeRequest, Slot};

use crate::one_by_one::OneByOne;
use crate::world::{at, first_grant, plan};

const READ: Span = Span(100 * Span::MICROSECOND.0);
const OTHER: Span = Span(60 * Span::MICROSECOND.0);
/// Between two reads.
const PAUSE: Span = Span(500 * Span::MICROSECOND.0);
const OUTSTANDING: usize = 128;

/// The times of reads, and how many other requests were served.
struct Seen {
    reads: Vec<Span>,
    others: u64,
}

impl Seen {
    fn quantile(&mut self, percent: usize) -> Span {
        self.reads.sort_unstable();
        self.reads[self.reads.len() * percent / 100]
    }
}

struct Server {
    node: Node<Time>,
    reader: Slot,
    now: Time,
    device: VecDeque<(Time, NodeRequest<Time>)>,
}

impl Server {
    fn new(is_guarded: bool) -> Self {
        let config = Config { is_guarded, ..Config::default() };
        let node = Node::new(at(0), NodeInfo::default(), config);
        node.on_message(at(0), ToNode::Plan(plan(1, &["reader"], Fallback::Keep)));
        node.on_message(at(0), ToNode::Grant(first_grant(1, 0, &[(0, 4_000, u64::MAX)])));
        (0..OUTSTANDING).for_each(|_| node.on_request(at(0), Slot::UNATTRIBUTED, 1, at(0)));
        Self { reader: node.slot("reader"), node, now: at(0), device: VecDeque::new() }
    }

    /// Lets time pass, with reads or without.
    fn run(&mut self, until: Time, has_reads: bool) -> Seen {
        let mut seen = Seen { reads: Vec::new(), others: 0 };
        let mut next_read = if has_reads { self.now.after(PAUSE) } else { Time::MAX };
        while self.now < until {
            while let Some(next) = self.node.next_dispatch(self.now) {
                let free = self.device.back().map_or(self.now, |(done, _)| (*done).max(self.now));
                let service = if next.slot() == self.reader { READ } else { OTHER };
                self.device.push_back((free.after(service), next));
            }
            let done = self.device.front().map_or(Time::MAX, |(done, _)| *done);
            let deadline = self.node.next_deadline();
            assert!(done.min(next_read).min(deadline) < Time::MAX, "it would stand still");
            self.now = done.min(next_read).min(deadline).min(until);
            if self.now == done {
                let (_, done) = self.device.pop_front().unwrap();
                let (slot, came) = (done.slot(), done.body);
                self.node.on_done(self.now, done);
                if slot == self.reader {
                    seen.reads.push(self.now.since(came));
                } else {
                    seen.others += 1;
                    self.node.on_request(self.now, slot, 1, self.now);
                }
            }
            if self.now == next_read {
                self.node.on_request(self.now, self.reader, 1, self.now);
                next_read = next_read.after(PAUSE);
            }
            self.node.advance(self.now);
        }
        seen
    }
}

#[test]
fn reads_with_a_reservation_do_not_wait_for_a_full_device() {
    let mut free = Server::new(false).run(at(900), true);
    assert!(free.quantile(50) > Span(15 * READ.0), "{:?}", free.quantile(50));
    let mut server = Server::new(true);
    server.run(at(300), true);
    let mut guarded = server.run(at(900), true);
    assert!(guarded.quantile(50) <= Span(2 * READ.0), "{:?}", guarded.quantile(50));
    assert!(guarded.quantile(99) <= Span(4 * READ.0), "{:?}", guarded.quantile(99));
    // A probe takes 20 ms, and the device has no pauses beside it.
    let others = (600 - 20) * (PAUSE.0 - READ.0) / PAUSE.0 * Span::MILLISECOND.0 / OTHER.0;
    assert!(guarded.others * 100 >= others * 95, "{} of {others}", guarded.others);
}

/// The reader stops at any moment, also within the first probe.
#[test]
fn others_have_all_of_the_device_when_no_reads_come() {
    for stop in (2..60).step_by(4) {
        let mut server = Server::new(true);
        server.run(at(stop), true);
        // Up to a second of a lower limit, with which this device is busy all the same.
        let length = Span(1_200 * Span::MILLISECOND.0);
        let alone = server.run(server.now.after(length), false);
        let most = length.0 / OTHER.0;
        assert!(alone.others * 100 >= most * 95, "{} of {most} after {stop} ms", alone.others);
        assert!(server.device.len() >= 31, "all but one that is finished, after {stop} ms");
    }
}
