//! Gateways of other processes, through the client's side that gateways use.

use std::time::{Duration, Instant};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Reactor;
use tidegate_fabric::remote::{LinkSettings, Notice, Remote};
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_fabric::stream::Address;
use tidegate_model::cluster::Uuid;
use tidegate_model::{Bytes, Time};
use tidegate_node::{Config, Running, start};
use tidegate_proto::data::LinkIdentity;

use crate::support::{PATIENCE, config, job, part, read, write};

/// A link of the gateway `g`.
pub(crate) fn link(process: u8, link: u32) -> LinkIdentity {
    let process = Uuid([process; 16]);
    LinkIdentity { gateway: "g".into(), process, link, connection: 0 }
}

/// A gateway's worker with one node.
pub(crate) struct Worker {
    reactor: Reactor<()>,
    pub(crate) remote: Remote,
    begun: Instant,
    pub(crate) done: Vec<Job>,
}

impl Worker {
    pub(crate) fn new(address: &Address) -> Self {
        Self::of(address, link(1, 1))
    }

    /// The same, as this link.
    pub(crate) fn of(address: &Address, identity: LinkIdentity) -> Self {
        let remote = Remote::new(LinkSettings::new(address.clone(), identity), 1);
        Self { reactor: Reactor::new().unwrap(), remote, begun: Instant::now(), done: Vec::new() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }

    pub(crate) fn submit(&mut self, mut jobs: Vec<Job>) {
        let now = self.now();
        self.remote.submit(now, &mut jobs, &mut self.done);
        self.remote.flush(&self.reactor, now, &mut self.done);
    }

    fn run_once(&mut self) {
        let now = self.now();
        if now >= self.remote.next_deadline() {
            self.remote.on_deadline(&self.reactor, now, &mut self.done);
        }
        let mut ready = Vec::new();
        let patience = Some(Duration::from_millis(5));
        self.reactor.wait(patience, &mut ready, &mut Vec::new()).unwrap();
        let now = self.now();
        for ready in ready {
            self.remote.on_ready(&self.reactor, now, ready, &mut self.done);
            self.remote.release(&self.reactor, now, |_| false, &mut self.done);
        }
    }

    pub(crate) fn until(&mut self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            assert!(self.begun.elapsed() < PATIENCE, "it did not happen within a minute");
            self.run_once();
        }
    }

    fn request(&mut self, job: Job) -> Job {
        self.submit(vec![job]);
        self.until(|worker| !worker.done.is_empty());
        self.done.remove(0)
    }
}

fn listening(config: Config) -> (Running, Address) {
    let node = start(config).unwrap();
    let address = node.address().unwrap().clone();
    (node, address)
}

#[test]
fn bytes_go_there_and_back_over_both_kinds_of_socket() {
    let folder = tempfile::tempdir().unwrap();
    let tcp = Config { listen: Some("127.0.0.1:0".parse().unwrap()), ..config(folder.path()) };
    for config in [config(folder.path()), tcp] {
        let (node, address) = listening(config);
        let mut worker = Worker::new(&address);
        worker.remote.tenants(&["t".into()]);
        let number = worker.remote.open(part());
        // Five megabytes in one frame, and a thousand small ones.
        let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
        assert_eq!(worker.request(write(number, 1, 777, &large)).outcome, Ok(()));
        assert!(worker.request(read(number, 2, 777, 5_000_000)).buffer[..] == large[..]);
        worker.submit((0..1_000).map(|n| write(number, n, n * 8, &n.to_le_bytes())).collect());
        worker.until(|worker| worker.done.len() == 1_000);
        worker.done.clear();
        worker.submit((0..1_000).map(|n| read(number, n, n * 8, 8)).collect());
        worker.until(|worker| worker.done.len() == 1_000);
        assert!(worker.done.drain(..).all(|job| job.buffer[..] == job.ticket.to_le_bytes()));
        let map = worker.request(job(number, 3, Command::Map, 0, 8 << 20, Buffer::empty()));
        assert!(map.outcome == Ok(()) && map.buffer.len() >= 32);
        let outside = worker.request(read(number, 4, 16 << 20, 1));
        assert_eq!((outside.outcome, outside.buffer.len()), (Err(Fault::Invalid), 0));
        // It counts behind the answer.
        worker.until(|_| node.status().connections.answered == 2_004);
        assert_eq!(node.status().connections.open, 1);
    }
}

#[test]
fn a_gateway_that_does_not_read_is_not_read_from_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, address) = listening(config(folder.path()));
    let mut worker = Worker::new(&address);
    let number = worker.remote.open(part());
    worker.until(|worker| worker.remote.is_up());
    // Twelve times what may be unread, all asked for before the first answer is read.
    worker.submit((0..12_000).map(|n| read(number, n, 0, 16 << 10)).collect());
    worker.until(|worker| worker.done.len() == 12_000);
    let mut tickets: Vec<_> = worker.done.iter().map(|job| job.ticket).collect();
    tickets.sort_unstable();
    assert!(tickets.into_iter().eq(0..12_000));
    assert!(worker.done.iter().all(|job| job.outcome == Ok(()) && job.buffer.len() == 16 << 10));
}

#[test]
fn a_part_of_the_wrong_size_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (_node, address) = listening(config(folder.path()));
    let mut worker = Worker::new(&address);
    let number = worker.remote.open(part());
    assert_eq!(worker.request(read(number, 1, 0, 1)).outcome, Ok(()));
    let wrong = worker.remote.open(tidegate_fabric::service::Part { length: Bytes(5), ..part() });
    // It is not even sent.
    assert_eq!(worker.request(read(wrong, 2, 0, 1)).outcome, Err(Fault::Io));
    let notices: Vec<_> = std::iter::from_fn(|| worker.remote.poll_notice()).collect();
    assert!(
        matches!(&notices[2], Notice::PartRefused { part, reason }
            if *part == wrong && reason.contains("wrong size")),
        "{notices:?}"
    );
}

#[test]
fn a_node_that_comes_back_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let (node, address) = listening(config(folder.path()));
    let mut worker = Worker::new(&address);
    let number = worker.remote.open(part());
    assert_eq!(worker.request(read(number, 1, 0, 1)).outcome, Ok(()));
    node.stop();
    worker.until(|worker| !worker.remote.is_up());
    // It waits until the node is there again, and no client notices the restart.
    worker.submit(vec![read(number, 2, 0, 1)]);
    let (_node, _) = listening(config(folder.path()));
    worker.until(|worker| !worker.done.is_empty());
    assert_eq!((worker.done[0].ticket, worker.done[0].outcome), (2, Ok(())));
}
