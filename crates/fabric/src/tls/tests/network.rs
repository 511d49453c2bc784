//! Two streams over a network that cuts their bytes anywhere, loses them, or changes them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::time::Duration;

use proptest::prelude::*;

use super::{Authority, Guard};
use crate::buffer::Buffer;
use crate::reactor::{Interest, Reactor};
use crate::stream::{Outgoing, Stream};

/// Two streams over a network that moves bytes when it is told to, and a reactor that has both.
struct Testbed {
    reactor: Reactor<()>,
    streams: [Stream; 2],
    outgoing: [Outgoing; 2],
    /// The other ends of their sockets.
    wires: [Stream; 2],
    /// Bytes that the network has taken from one end, for the other.
    transit: [VecDeque<u8>; 2],
    /// Bytes that a side has sent and the other has not received, and how many it has sent.
    due: [VecDeque<u8>; 2],
    sent: [u64; 2],
    flushes: u32,
}

impl Testbed {
    fn new() -> Self {
        let authority = Authority::new();
        let [a, b] = ["a", "b"].map(|name| Guard::new(&authority.identity(name)));
        let [(one, one_wire), (other, other_wire)] = [(); 2].map(|()| Stream::pair().unwrap());
        let streams = [one.connect_tls(&a, "b").unwrap(), other.accept_tls(&b).unwrap()];
        let reactor = Reactor::new().unwrap();
        for (token, stream) in (0..).zip(&streams) {
            reactor.add(stream, token, Interest::READ).unwrap();
        }
        Self {
            reactor,
            streams,
            outgoing: Default::default(),
            wires: [one_wire, other_wire],
            transit: Default::default(),
            due: Default::default(),
            sent: [0; 2],
            flushes: 0,
        }
    }

    fn send(&mut self, side: usize, length: usize) {
        let bytes = bytes(self.sent[side], length);
        self.sent[side] += length as u64;
        self.due[side].extend(&bytes);
        let mut buffer = Buffer::with_length(length);
        buffer.copy_from_slice(&Vec::from(bytes));
        self.outgoing[side].push_buffer(buffer);
        self.flush(side);
    }

    /// Sends what waits, and waits for what is to come.
    fn flush(&mut self, side: usize) {
        // In this way and the other, also after a socket that was full.
        self.flushes += 1;
        let is_awaited = !self.flushes.is_multiple_of(3);
        let write = !self.outgoing[side].flush_early(&self.streams[side], is_awaited).unwrap();
        let interest = Interest { read: true, write };
        self.reactor.change(&self.streams[side], side as u64, interest).unwrap();
    }

    /// Receives at most so many bytes; none if there are none now.
    fn receive(&mut self, side: usize, most: usize) -> io::Result<Option<usize>> {
        let mut bytes = vec![0; most];
        let count = match self.streams[side].read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            read => read?,
        };
        let wanted: Vec<u8> = self.due[1 - side].drain(..count).collect();
        assert!(bytes[..count] == wanted, "other bytes than were sent");
        Ok(Some(count))
    }

    /// Moves at most so many bytes from one side to the other. Says how many.
    fn transmit(&mut self, side: usize, most: usize) -> usize {
        let mut bytes = vec![0; most];
        if let Ok(count) = self.wires[side].read(&mut bytes) {
            self.transit[side].extend(&bytes[..count]);
        }
        let waiting = self.transit[side].make_contiguous();
        let length = waiting.len().min(most);
        let sent = self.wires[1 - side].send(&[IoSlice::new(&waiting[..length])]).unwrap_or(0);
        self.transit[side].drain(..sent);
        sent
    }

    /// Lets all that the reactor reports be done once, with pieces of this size. Says whether
    /// there was anything.
    fn round(&mut self, most: usize) -> io::Result<bool> {
        let mut ready = Vec::new();
        self.reactor.wait(Some(Duration::ZERO), &mut ready, &mut Vec::new())?;
        for ready in &ready {
            let side = ready.token as usize;
            if ready.read {
                self.receive(side, most)?;
            }
            self.flush(side);
        }
        Ok(!ready.is_empty())
    }

    /// Goes on until nothing moves any more.
    fn settle(&mut self, most: usize) -> io::Result<()> {
        for _ in 0..1_000_000 {
            let moved = self.transmit(0, most) + self.transmit(1, most);
            if !self.round(most)? && moved == 0 {
                return Ok(());
            }
        }
        panic!("it is busy with nothing");
    }
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize, usize),
    Receive(usize, usize),
    Transmit(usize, usize),
    Round(usize),
    Rekey(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let length = || prop_oneof![1usize..40, 10_000usize..20_000, 100_000usize..400_000];
    prop_oneof![
        (0usize..2, length()).prop_map(|(side, length)| Act::Send(side, length)),
        (0usize..2, length()).prop_map(|(side, length)| Act::Receive(side, length)),
        (0usize..2, length()).prop_map(|(side, length)| Act::Transmit(side, length)),
        length().prop_map(Act::Round),
        (0usize..2).prop_map(Act::Rekey),
    ]
}

/// Bytes that differ from their neighbours, by the number of bytes sent before.
fn bytes(from: u64, length: usize) -> VecDeque<u8> {
    (from..from + length as u64).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

#[test]
fn records_may_be_cut_anywhere() {
    let mut testbed = Testbed::new();
    for (side, length) in [(0, 1), (0, 3_000), (1, 17_000)] {
        testbed.send(side, length);
        testbed.settle(1).unwrap();
    }
    assert!(testbed.due.iter().all(VecDeque::is_empty));
}

#[test]
fn a_peer_that_does_not_read_is_waited_for() {
    const LENGTH: usize = 32 << 20;
    let mut testbed = Testbed::new();
    testbed.settle(1 << 20).unwrap();
    testbed.send(0, LENGTH);
    for _ in 0..1_000 {
        testbed.flush(0);
    }
    // A socket's buffers hold less than this.
    assert!(testbed.outgoing[0].len() > LENGTH - (4 << 20));
    assert!(!testbed.round(1).unwrap(), "it is reported that something can be done");
    testbed.settle(1 << 20).unwrap();
    assert!(testbed.outgoing[0].is_empty() && testbed.due[0].is_empty());
}

#[test]
fn bytes_that_count_as_sent_arrive_though_the_stream_is_closed() {
    let mut testbed = Testbed::new();
    testbed.settle(1 << 20).unwrap();
    testbed.send(0, 4 << 20);
    let sent = testbed.due[0].len() - testbed.outgoing[0].len();
    testbed.streams[0] = Stream::pair().unwrap().0;
    let mut received = 0;
    while testbed.transmit(0, 1 << 20) > 0 {
        while let Ok(Some(count @ 1..)) = testbed.receive(1, 1 << 20) {
            received += count;
        }
    }
    assert!(sent > 0 && received >= sent, "{received} of {sent}");
}

#[test]
fn a_connection_that_is_cut_is_an_error_behind_its_last_bytes() {
    let mut testbed = Testbed::new();
    testbed.send(0, 100_000);
    testbed.settle(1 << 20).unwrap();
    testbed.send(0, 100);
    assert!(testbed.transmit(0, 1 << 20) > 100);
    testbed.wires[1].finish().unwrap();
    assert_eq!(testbed.receive(1, 60).unwrap(), Some(60));
    assert_eq!(testbed.receive(1, 60).unwrap(), Some(40));
    for _ in 0..2 {
        let error = testbed.receive(1, 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(error.to_string(), "the connection was cut off: its end was not announced");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn all_bytes_arrive_once_in_order_and_nothing_spins(
        acts in prop::collection::vec(act(), 1..60),
        closes_first in 0usize..2,
        most in prop_oneof![1_000usize..5_000, 100_000usize..400_000],
    ) {
        let mut testbed = Testbed::new();
        for act in acts {
            match act {
                Act::Send(side, length) => testbed.send(side, length),
                Act::Receive(side, most) => drop(testbed.receive(side, most).unwrap()),
                Act::Transmit(side, most) => drop(testbed.transmit(side, most)),
                Act::Round(most) => drop(testbed.round(most).unwrap()),
                Act::Rekey(side) => testbed.streams[side].tls().unwrap().rekey(),
            }
        }
        testbed.settle(most).unwrap();
        prop_assert!(testbed.due.iter().all(VecDeque::is_empty), "bytes do not arrive");
        // One side ends, and then the other.
        for side in [closes_first, 1 - closes_first] {
            testbed.send(side, 100);
            testbed.streams[side].finish().unwrap();
            while testbed.transmit(side, most) > 0 {}
            prop_assert_eq!(testbed.receive(1 - side, 400_000).unwrap(), Some(100));
            prop_assert_eq!(testbed.receive(1 - side, 400_000).unwrap(), Some(0));
        }
    }

    #[test]
    fn a_changed_byte_is_an_error_and_no_other_bytes(
        at in 0usize..30_000,
        flipped in 1u8..,
        length in prop_oneof![1usize..40, 20_000usize..40_000],
    ) {
        let mut testbed = Testbed::new();
        testbed.send(0, length);
        let (mut moved, mut is_changed) = (0, false);
        for _ in 0..1_000 {
            testbed.transmit(1, 1_000);
            let arrived = wire_bytes(&mut testbed.wires[0]);
            testbed.transit[0].extend(arrived);
            let index = at.checked_sub(moved).filter(|_| !is_changed);
            if let Some(byte) = index.and_then(|index| testbed.transit[0].get_mut(index)) {
                *byte ^= flipped;
                is_changed = true;
            }
            moved += testbed.transmit(0, 1_000);
            if testbed.round(4_000).is_err() || testbed.due[0].is_empty() {
                break;
            }
        }
        // Bytes that are not protected may be changed, and a length may be waited for.
        if !testbed.due[0].is_empty() {
            testbed.wires[1].finish().unwrap();
            let ended = (0..100).find_map(|_| testbed.receive(1, 4_000).err());
            prop_assert!(ended.is_some(), "it has ended in good order");
        }
    }

    #[test]
    fn whatever_comes_from_outside_is_an_error_inside_and_no_more(
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        keep in 0usize..2_000,
        is_flipped: bool,
    ) {
        // A true beginning, of which one byte may be another, and then anything.
        let mut testbed = Testbed::new();
        testbed.round(1).unwrap();
        let mut sent = wire_bytes(&mut testbed.wires[0]);
        sent.truncate(keep);
        if let (true, Some(byte)) = (is_flipped, sent.last_mut()) {
            *byte ^= 1;
        }
        sent.extend(garbage);
        testbed.wires[1].send(&[IoSlice::new(&sent)]).unwrap();
        testbed.wires[1].finish().unwrap();
        let inside = &mut testbed.streams[1];
        prop_assert!(inside.read(&mut [0; 8]).is_err(), "it is accepted");
    }
}

fn wire_bytes(wire: &mut Stream) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = wire.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}
