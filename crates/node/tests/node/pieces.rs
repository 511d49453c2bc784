//! Large requests: one answer each, and served in pieces.

use std::time::Instant;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::{Bytes, Iops, PartNumber};
use tidegate_node::{Config, Running, Speed, StoreConfig, start};

use crate::support::{Client, PATIENCE, create, job, read, write};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A node whose device serves one unit after the other.
fn modelled(rate: u64, depth: u32) -> Running {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let speed = Some(Speed { rate: Iops(rate), variance: 0, seed: 1 });
    start(Config { depth, speed, ..Config::new("a", store) }).unwrap()
}

fn zero(part: PartNumber, ticket: u64, offset: u64, length: u64) -> Job {
    let command = Command::Zero { allocate: false, durable: false };
    job(part, ticket, command, offset, length as u32, Buffer::empty())
}

/// Nodes of every kind of engine.
fn nodes(folder: &std::path::Path) -> Vec<Running> {
    let path = folder.join("parts");
    create(&path);
    let directory = StoreConfig::Directory { path };
    let memory =
        Config { workers: 2, ..Config::new("a", StoreConfig::Memory { capacity: Bytes::MAX }) };
    let files = Config { depth: 4, ..Config::new("b", directory) };
    vec![start(memory).unwrap(), start(files).unwrap(), modelled(1_000_000, 4)]
}

#[test]
fn a_large_request_is_one_answer_with_all_of_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for node in nodes(folder.path()) {
        let mut client = Client::new(&node, &[]);
        let part = client.part;
        // Not where a page begins, and not a whole number of pieces.
        let bytes: Vec<u8> = (0..5 * MIB + 777).map(|at| (at % 251) as u8).collect();
        let (at, length) = (333 * KIB + 5, bytes.len() as u32);
        for durable in [false, true] {
            let mut wanted = write(part, 1, at, &bytes);
            wanted.command = Command::Write { durable };
            let answer = client.request(wanted);
            assert_eq!((answer.ticket, answer.outcome, answer.length), (1, Ok(()), length));
        }
        // Without memory for the answer, as it comes over a socket, and with.
        for buffer in [Buffer::empty(), Buffer::with_length(bytes.len())] {
            let answer = client.request(job(part, 2, Command::Read, at, length, buffer));
            assert_eq!((answer.outcome, answer.offset, answer.length), (Ok(()), at, length));
            assert!(answer.buffer[..] == bytes[..], "the bytes of each piece are in their place");
        }
        let answer = client.request(zero(part, 3, 0, 16 * MIB));
        assert_eq!((answer.outcome, answer.length), (Ok(()), 16 << 20));
        let answer = client.request(read(part, 4, 0, 16 << 20));
        assert!(answer.buffer.len() == 16 << 20 && answer.buffer.iter().all(|byte| *byte == 0));
        let zero = Command::Zero { allocate: true, durable: true };
        for command in [zero, Command::Discard { durable: true }] {
            let answer = client.request(job(part, 5, command, 1, 15 << 20, Buffer::empty()));
            assert_eq!((answer.outcome, answer.length), (Ok(()), 15 << 20), "{command:?}");
        }
        assert_eq!(client.count(), 0, "one answer each");
    }
}

#[test]
fn a_piece_that_fails_fails_the_request() {
    let folder = tempfile::tempdir().unwrap();
    for node in nodes(folder.path()) {
        let mut client = Client::new(&node, &[]);
        let part = client.part;
        // The part ends in the middle.
        let outside = client.request(read(part, 1, 15 * MIB, 2 << 20));
        assert_eq!((outside.ticket, outside.outcome), (1, Err(Fault::Invalid)));
        let outside = client.request(zero(part, 2, 10 * MIB, 16 * MIB));
        assert_eq!((outside.ticket, outside.outcome), (2, Err(Fault::Invalid)));
        assert_eq!(client.request(read(part, 3, 0, 4096)).outcome, Ok(()));
        assert_eq!(client.count(), 0, "one answer each");
    }
}

/// One request at the device at a time: the second request is there after a piece of the first.
#[test]
fn a_neighbour_waits_for_a_piece_and_not_for_a_request() {
    let node = modelled(200, 1);
    for (number, command) in
        [Command::Read, Command::Zero { allocate: false, durable: false }].into_iter().enumerate()
    {
        let [mut greedy, mut neighbour] = [Client::new(&node, &[]), Client::new(&node, &["b"])];
        let part = greedy.part;
        // 64 units, or a third of a second.
        let large = job(part, 1, command, 0, 8 << 20, Buffer::empty());
        assert!(greedy.submit(vec![large]).is_empty());
        assert!(neighbour.submit(vec![read(part, 2, 0, 4096)]).is_empty());
        assert_eq!(neighbour.finished().outcome, Ok(()));
        assert_eq!(greedy.count(), 0, "{number}: it has not waited for all of it");
        assert_eq!(greedy.finished().outcome, Ok(()));
    }
}

/// A request of the same tenant waits for the pieces that may be ahead, and not for all of them.
#[test]
fn a_large_request_does_not_stop_its_tenant() {
    let node = modelled(400, 1);
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    assert!(client.submit(vec![read(part, 1, 0, 16 << 20), read(part, 2, 0, 512)]).is_empty());
    assert_eq!(client.finished().ticket, 2);
    assert_eq!(client.finished().ticket, 1);
}

#[test]
fn a_large_request_is_given_up_between_its_pieces() {
    for depth in [1, 64] {
        let node = modelled(20, depth);
        let mut client = Client::new(&node, &[]);
        let part = client.part;
        // 128 units: more than six seconds of work, of which at most 16 pieces are there.
        assert!(client.submit(vec![read(part, 7, 0, 16 << 20)]).is_empty());
        client.cancel(&[7]);
        let answer = client.finished();
        assert_eq!((answer.ticket, answer.outcome), (7, Err(Fault::Ending)));
        let served = node.status().node.tenants[0].served_total;
        assert!(served < 128, "{served} units");
        assert_eq!(client.request(read(part, 8, 0, 1)).outcome, Ok(()));
        assert_eq!(client.count(), 0, "one answer each");
        assert_eq!(node.status().node.waiting, 0);
    }
}

#[test]
fn a_large_request_fails_when_its_node_ends() {
    let node = modelled(10, 2);
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    assert!(client.submit(vec![read(part, 1, 0, 16 << 20), zero(part, 2, 0, 16 * MIB)]).is_empty());
    node.stop();
    let mut outcomes = [client.finished(), client.finished()].map(|job| (job.ticket, job.outcome));
    outcomes.sort_unstable_by_key(|(ticket, _)| *ticket);
    assert_eq!(outcomes, [(1, Err(Fault::Ending)), (2, Err(Fault::Ending))]);
    assert_eq!(client.count(), 0);
}

/// A job that leaves with its session makes no more pieces.
#[test]
fn the_pieces_of_a_closed_session_are_dropped_with_it() {
    let node = modelled(2, 1);
    let mut leaving = Client::new(&node, &[]);
    let part = leaving.part;
    // 128 units: more than a minute of work.
    leaving.submit(vec![read(part, 1, 0, 16 << 20)]);
    drop(leaving);
    let mut client = Client::new(&node, &[]);
    let begun = Instant::now();
    assert_eq!(client.request(read(part, 2, 0, 1)).outcome, Ok(()));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

/// The device writes zeros: 16 MiB of them take it as long as 128 reads, and count as that.
#[test]
fn zeros_cost_what_the_device_took_for_them() {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let speed = Some(Speed { rate: Iops(2_000), variance: 0, seed: 1 });
    let capacity = Some(Iops(2_000));
    let node = start(Config { depth: 8, speed, capacity, ..Config::new("a", store) }).unwrap();
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    for ticket in 0..4 {
        assert_eq!(client.request(zero(part, ticket, 0, 16 * MIB)).outcome, Ok(()));
    }
    let status = node.status().node;
    let served = status.tenants[0].served_total;
    // The delay of a sleeping thread counts as device time, too; the cost is never below the time.
    assert!((460..1_500).contains(&served), "{served} of 512");
    // And memory that has nothing to do for them costs one for each piece.
    let memory = start(Config::new("m", StoreConfig::Memory { capacity: Bytes::MAX })).unwrap();
    let mut client = Client::new(&memory, &[]);
    assert_eq!(client.request(zero(client.part, 1, 0, MIB)).outcome, Ok(()));
    assert!(memory.status().node.tenants[0].served_total < 64);
}
