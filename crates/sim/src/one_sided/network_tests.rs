//! Guarantees of a connection, in virtual time.

use tidegate_model::Span;

use super::super::nic::{Order, Service};
use super::*;

/// A page takes 10 us at a client and 1 us at the data node, and 2 us besides.
fn network() -> Network {
    let nics = NicModel {
        client: Iops(100_000),
        node: Iops(1_000_000),
        round_trip: Span(2_000),
        order: Order::Arrival,
        service: Service::Constant,
    };
    Network::new(&nics, 1 << 20, 4096, 1)
}

fn post(remote: &mut impl RemoteMemory, id: u64, operation: Operation) {
    remote.post(Post { id, operation }).unwrap();
    remote.flush(Time::ZERO).unwrap();
}

/// Runs to the end, and returns the completions of one client, with their times.
fn received(network: &Network, remote: &mut Endpoint) -> Vec<(u64, Done)> {
    let mut all = Vec::new();
    while network.next() < Picoseconds::MAX {
        let now = network.next();
        while network.advance(now).is_some() {}
        let mut done = Vec::new();
        remote.poll(now.time(), &mut done).unwrap();
        all.extend(done.into_iter().map(|done| (now.time().0, done)));
    }
    all
}

const fn read(buffer: u32, from: u64, length: u32) -> Operation {
    Operation::Read { from, into: BufferPosition::start(buffer), length }
}

#[test]
fn a_page_takes_its_time() {
    let network = network();
    let mut remote = network.connect(2);
    post(&mut remote, 7, read(0, 8192, 4096));
    post(&mut remote, 8, read(1, 8192, 4096));
    let times: Vec<_> =
        received(&network, &mut remote).into_iter().map(|(at, done)| (at, done.id)).collect();
    assert_eq!(times, [(13_000, 7), (23_000, 8)]);
    assert_eq!(network.counts(0), OperationCounts { data: 2, control: 0 });
}

#[test]
fn a_word_takes_what_its_bytes_take() {
    let network = network();
    let mut remote = network.connect(0);
    post(&mut remote, 1, Operation::WriteWord { word: 5, to: 8 });
    // 72 of 4,160 bytes.
    assert_eq!(received(&network, &mut remote)[0].0, 2_000 + 173 + 17);
    assert_eq!(network.counts(0), OperationCounts { data: 0, control: 1 });
}

#[test]
fn words_are_what_they_were() {
    let network = network();
    let mut remote = network.connect(1);
    post(&mut remote, 1, Operation::WriteWord { word: 40, to: 8 });
    post(&mut remote, 2, Operation::FetchAdd { at: 8, add: 2 });
    post(&mut remote, 3, Operation::CompareSwap { at: 8, expected: 41, new: 1 });
    post(&mut remote, 4, Operation::CompareSwap { at: 8, expected: 42, new: 43 });
    post(&mut remote, 5, read(0, 8, 8));
    let completions: Vec<_> =
        received(&network, &mut remote).into_iter().map(|(_, done)| done).collect();
    let words = [0, 40, 42, 42, 0];
    assert!(
        completions.iter().map(|done| done.word).eq(words)
            && completions.iter().map(|d| d.id).eq(1..=5)
    );
    assert_eq!(remote.buffer(0)[..8], 43u64.to_le_bytes());
}

/// Additions of several clients are atomic: each sees another count.
#[test]
fn additions_are_each_seen_once() {
    let network = network();
    let mut connections: Vec<Endpoint> = (0..4).map(|_| network.connect(0)).collect();
    for remote in &mut connections {
        (0..50).for_each(|id| post(remote, id, Operation::FetchAdd { at: 0, add: 1 }));
    }
    while network.next() < Picoseconds::MAX {
        let now = network.next();
        while network.advance(now).is_some() {}
    }
    let mut seen = Vec::new();
    for remote in &mut connections {
        let mut done = Vec::new();
        remote.poll(Time::ZERO, &mut done).unwrap();
        assert!(done.windows(2).all(|two| two[0].word < two[1].word));
        seen.extend(done.into_iter().map(|done| done.word));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..200));
}

/// A client's write is in memory when the link has done it, and not before. Code on the data node
/// sees it then, before the client sees its completion.
#[test]
fn who_is_at_the_node_sees_what_has_happened() {
    let network = network();
    let (mut remote, mut node) = (network.connect(1), network.connect_node(1));
    remote.buffer_mut(0)[..3].copy_from_slice(b"new");
    let length = 3;
    post(&mut remote, 1, Operation::Write { from: BufferPosition::start(0), to: 100, length });
    let mut read_at = |at| {
        let _ = network.advance(Picoseconds(at));
        post(&mut node, 9, read(0, 100, 3));
        let mut done = Vec::new();
        node.poll(Time::ZERO, &mut done).unwrap();
        assert_eq!(done, [Done { id: 9, word: 0 }]);
        node.buffer(0)[..3].to_vec()
    };
    // 67 of 4,160 bytes take 161 and 16 ns.
    assert_eq!(read_at(176_000), [0; 3]);
    assert_eq!(read_at(178_000), *b"new");
    assert_eq!(received(&network, &mut remote).len(), 1);
}

#[test]
fn what_is_only_there_in_name_is_left_alone() {
    let network = network();
    let mut remote = network.connect(1);
    remote.buffer_mut(0).fill(7);
    post(&mut remote, 1, Operation::Write { from: BufferPosition::start(0), to: 8192, length: 8 });
    post(&mut remote, 2, read(0, 16384, 8));
    // Half of this is real.
    post(&mut remote, 3, read(0, 4092, 8));
    received(&network, &mut remote);
    assert_eq!(remote.buffer(0)[..9], [0, 0, 0, 0, 7, 7, 7, 7, 7]);
}

#[test]
fn what_cannot_be_is_refused() {
    let network = network();
    let mut remote = network.connect(1);
    let refused = |remote: &mut Endpoint, operation| remote.post(Post { id: 1, operation });
    let (outside, unaligned) = (Err(PostError::Outside), Err(PostError::Unaligned));
    assert_eq!(refused(&mut remote, read(1, 0, 8)), outside);
    assert_eq!(refused(&mut remote, read(0, (1 << 20) - 4, 8)), outside);
    assert_eq!(refused(&mut remote, Operation::FetchAdd { at: 4, add: 1 }), unaligned);
    (0..DEPTH as u64).for_each(|id| post(&mut remote, id, Operation::FetchAdd { at: 0, add: 1 }));
    assert_eq!(refused(&mut remote, read(0, 0, 8)), Err(PostError::Full));
}

#[test]
#[should_panic(expected = "buffer 0 is under way")]
fn a_buffer_under_way_is_not_accessible() {
    let mut remote = network().connect(1);
    post(&mut remote, 1, read(0, 0, 8));
    remote.buffer(0);
}
