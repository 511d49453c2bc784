//! Connections that a new one of their gateway replaces: nothing of them happens after its welcome.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tidegate_fabric::service::Part;
use tidegate_model::{Iops, PartNumber};
use tidegate_node::{Config, Running, Speed, start};
use tidegate_proto::data::{
    Assembler, FromNode, JobHead, LinkIdentity, ReplyHead, RequestHead, ToNode, VERSION, decode,
    encode,
};

use crate::hostile::connect;
use crate::remote::link;
use crate::support::{Client, config, part, read, write};

/// A gateway's end of one connection.
struct Gateway {
    stream: UnixStream,
    assembler: Assembler<ReplyHead, Vec<u8>>,
    received: Vec<u8>,
}

impl Gateway {
    /// Connects and introduces itself.
    fn new(node: &Running, identity: &LinkIdentity) -> Self {
        let (assembler, received) = (Assembler::new(), Vec::new());
        let mut gateway = Self { stream: connect(node), assembler, received };
        gateway.send(&ToNode::Hello { version: VERSION, release: "test".into() });
        gateway.send(&ToNode::Identify(identity.clone()));
        let Part { volume, index, length, offset, geometry } = part();
        let part = PartNumber(0);
        gateway.send(&ToNode::Open { part, volume, index, length, offset, geometry });
        gateway
    }

    /// The same, and it is welcome.
    fn welcomed(node: &Running, identity: &LinkIdentity) -> Self {
        let mut gateway = Self::new(node, identity);
        gateway.is_welcome();
        gateway
    }

    fn send(&mut self, message: &ToNode) {
        let mut bytes = Vec::new();
        encode::<RequestHead, _>(message, &mut bytes).unwrap();
        // The node may have closed the connection already; its last message says why.
        let _ = self.stream.write_all(&bytes);
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut job = write(PartNumber(0), 1, offset, bytes);
        self.job(&job_head(&mut job), bytes);
    }

    fn job(&mut self, head: &JobHead, payload: &[u8]) {
        self.stream.write_all(&[&head.to_bytes()[..], payload].concat()).unwrap();
    }

    /// The next frame that the node sends; none if it has closed the connection.
    fn receive(&mut self) -> Option<(ReplyHead, Vec<u8>)> {
        loop {
            let mut input = &self.received[..];
            let frame = self.assembler.next(&mut input).unwrap();
            self.received = input.to_vec();
            if frame.is_some() {
                return frame;
            }
            let mut bytes = [0; 4096];
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                count => count.unwrap(),
            };
            self.received.extend_from_slice(&bytes[..count]);
        }
    }

    fn message(&mut self) -> FromNode {
        match self.receive() {
            Some((ReplyHead::Message(_), payload)) => decode(&payload).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until it is welcome and its part is open.
    fn is_welcome(&mut self) {
        assert!(matches!(self.message(), FromNode::Welcome { .. }));
        assert!(matches!(self.message(), FromNode::Opened { opened: Ok(_), .. }));
    }

    /// Waits until the job is done.
    fn is_answered(&mut self) {
        assert!(
            matches!(self.receive(), Some((ReplyHead::Answer(head), _)) if head.outcome.is_ok())
        );
    }
}

fn job_head(job: &mut tidegate_fabric::service::Job) -> JobHead {
    let (ticket, tag, command, length) = (job.ticket, job.tag, job.command, job.length);
    JobHead { ticket, tag, command, part: PartNumber(0), offset: job.offset, length }
}

fn connection(identity: LinkIdentity, connection: u64) -> LinkIdentity {
    LinkIdentity { connection, ..identity }
}

/// The first bytes of the part.
fn content(node: &Running) -> Vec<u8> {
    let mut client = Client::new(node, &[]);
    let number = client.part;
    client.request(read(number, 1, 0, 4)).buffer.to_vec()
}

/// Replies of 1 MiB after which the node reads no more: 16 MiB, and what a socket holds.
const UNREAD_REPLIES: u64 = 17;

/// A connection of whose bytes the node reads no more for the moment, with a write behind them.
fn stuck(node: &Running, identity: &LinkIdentity) -> Gateway {
    let mut gateway = Gateway::welcomed(node, identity);
    // More replies than may be unread: after some of them, the node serves no more.
    for _ in 0..40 {
        gateway.job(
            &JobHead { length: 1 << 20, ..job_head(&mut read(PartNumber(0), 1, 4096, 1 << 20)) },
            &[],
        );
    }
    while node.status().connections.answered < UNREAD_REPLIES {
        std::thread::yield_now();
    }
    gateway.write(0, b"late");
    gateway
}

#[test]
fn bytes_of_a_replaced_connection_that_were_not_read_are_never_carried_out() {
    let next_connection = [(1, 1, 2), (2, 1, 1), (2, 5, 1)];
    for (process, number, count) in next_connection {
        let folder = tempfile::tempdir().unwrap();
        let node = start(config(folder.path())).unwrap();
        let mut old = stuck(&node, &connection(link(1, 1), 1));
        let mut new = Gateway::welcomed(&node, &connection(link(process, number), count));
        new.write(0, b"next");
        new.is_answered();
        // The replies are read, and the node would go on with the write.
        while old.receive().is_some() {}
        assert_eq!(content(&node), b"next", "process {process}, link {number}");
    }
}

#[test]
fn a_lost_connection_is_fenced_over_another_link_of_its_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(config(folder.path())).unwrap();
    let mut lost = stuck(&node, &connection(link(1, 1), 1));
    let mut other = Gateway::welcomed(&node, &connection(link(1, 2), 1));
    other.send(&ToNode::Fence { link: 1, connection: 1 });
    assert_eq!(other.message(), FromNode::Fenced { link: 1, connection: 1 });
    other.write(0, b"next");
    other.is_answered();
    // The replies are read, and the node would go on with the write.
    while lost.receive().is_some() {}
    assert_eq!(content(&node), b"next");
    other.send(&ToNode::Fence { link: 2, connection: 0 });
    assert!(matches!(other.message(), FromNode::Refused { .. }), "its own link");
}

#[test]
fn other_links_and_other_gateways_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(config(folder.path())).unwrap();
    let mut old = stuck(&node, &connection(link(1, 1), 1));
    let stranger = LinkIdentity { gateway: "h".into(), ..connection(link(2, 1), 2) };
    for identity in [connection(link(1, 2), 2), stranger] {
        let mut new = Gateway::welcomed(&node, &identity);
        new.write(0, b"next");
        new.is_answered();
    }
    for _ in 0..41 {
        old.is_answered();
    }
    assert_eq!(content(&node), b"late");
}

#[test]
fn a_new_connection_waits_for_what_is_at_the_device_and_for_it_alone() {
    for is_closed in [true, false] {
        // Where this machine stands still for a second, the device is done before anything is seen.
        let is_seen = (0..20).any(|_| waits_for_the_device_alone(is_closed));
        assert!(is_seen, "gateways that replace nothing wait for the device");
    }
}

/// Has a connection replace one whose job is at the device, which takes a second for each, and
/// returns whether a gateway that replaces nothing was welcome within that second.
fn waits_for_the_device_alone(is_closed: bool) -> bool {
    const JOBS: u64 = 40;
    let folder = tempfile::tempdir().unwrap();
    let speed = Speed { rate: Iops(1), variance: 0, seed: 1 };
    let config = Config { speed: Some(speed), depth: 1, ..config(folder.path()) };
    let node = start(config).unwrap();
    let mut old = Gateway::welcomed(&node, &connection(link(1, 1), 1));
    let begun = Instant::now();
    for _ in 0..JOBS {
        old.job(&job_head(&mut read(PartNumber(0), 1, 0, 4)), &[]);
    }
    while node.status().node.in_flight == 0 {
        std::thread::yield_now();
    }
    if is_closed {
        drop(old);
    }
    let mut new = Gateway::new(&node, &connection(link(2, 1), 1));
    let stranger = LinkIdentity { gateway: "h".into(), ..connection(link(3, 1), 1) };
    Gateway::welcomed(&node, &stranger);
    let is_at_once = begun.elapsed() < Duration::from_secs(1);
    new.is_welcome();
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(1), "it is welcome while a job is at the device");
    assert!(waited < Duration::from_secs(JOBS), "what waits is withdrawn");
    is_at_once
}

#[test]
fn a_second_process_with_the_same_name_is_served_and_the_first_one_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(config(folder.path())).unwrap();
    let mut first = Gateway::welcomed(&node, &connection(link(1, 1), 1));
    let mut second = Gateway::welcomed(&node, &connection(link(2, 1), 1));
    let FromNode::Refused { reason, .. } = first.message() else { panic!("it is not told") };
    assert!(reason.contains("another process of this gateway's name"), "{reason}");
    assert!(first.receive().is_none(), "its connection is closed");
    for count in 2..5 {
        let mut again = Gateway::new(&node, &connection(link(1, 1), count));
        let FromNode::Refused { reason, .. } = again.message() else { panic!("it is served") };
        assert!(reason.contains("\"g\" runs twice"), "{reason}");
        second.write(0, b"next");
        second.is_answered();
    }
    drop(second);
    // It may take a moment until the node knows that.
    for count in 5.. {
        let mut again = Gateway::new(&node, &connection(link(1, 1), count));
        match again.message() {
            FromNode::Welcome { .. } => break,
            other => assert!(matches!(other, FromNode::Refused { .. }), "{other:?}"),
        }
    }
}
