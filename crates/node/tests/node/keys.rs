//! Requests with keys, before a memcached that answers when it is told to.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Job};
use tidegate_fabric::stream::Address;
use tidegate_model::PartNumber;
use tidegate_node::{Config, StoreConfig, start};

use crate::support::{Client, PATIENCE, job};

const KEYS: usize = 16;

/// A request for all keys.
fn get(ticket: u64) -> Job {
    let line = ["get", &" k".repeat(KEYS), "\r\n"].concat();
    let length = line.len() as u32;
    let mut job =
        job(PartNumber(0), ticket, Command::KeyValue, 0, length, Buffer::from(line.as_bytes()));
    job.tag.cost = KEYS as u32;
    job
}

/// A memcached at `path`, whose values have as many bytes as it is told before each reply.
fn memcached(path: &std::path::Path) -> Sender<usize> {
    let listener = UnixListener::bind(path).unwrap();
    let (sender, sizes) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            if line == "version" {
                stream.write_all(b"VERSION 1\r\n").unwrap();
                continue;
            }
            let Ok(size) = sizes.recv() else { return };
            for key in line.split(' ').skip(1) {
                write!(stream, "VALUE {key} 0 {size}\r\n{}\r\n", "x".repeat(size)).unwrap();
            }
            write!(stream, "END\r\n").unwrap();
        }
    });
    sender
}

/// A request waits for all replies that are expected before it on one connection. So it counts as
/// many at the device as it has keys, and large values are asked for fewer keys at a time.
#[test]
fn a_neighbour_waits_for_a_bounded_number_of_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memcached");
    let answer = memcached(&path);
    let store = StoreConfig::Memcached { address: Address::Unix(path) };
    let node = start(Config { depth: 32, ..Config::new("a", store) }).unwrap();
    let mut client = Client::new(&node, &[]);
    // Requests fail until the node is connected with it.
    answer.send(1).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while client.request(get(0)).outcome.is_err() {
        assert!(Instant::now() < deadline, "the node connects with memcached");
    }
    let at_device = || (node.status().node.in_flight, node.status().node.waiting);
    assert!(client.submit((1..=5).map(get).collect()).is_empty());
    assert_eq!(at_device(), (32, 48), "two requests of sixteen keys");
    answer.send(512 << 10).unwrap();
    assert_eq!(client.finished().outcome, Ok(()));
    assert_eq!(at_device(), (16, 48), "eight such values are 4 MiB, and sixteen are there");
    for at_once in [(16, 32), (16, 16), (16, 0), (0, 0)] {
        answer.send(100).unwrap();
        let reply = client.finished();
        assert_eq!(reply.outcome, Ok(()));
        assert!(reply.buffer.ends_with(b"END\r\n") && reply.buffer.len() > KEYS * 100);
        assert_eq!(at_device(), at_once);
    }
    assert_eq!(client.count(), 0, "one answer each");
}
