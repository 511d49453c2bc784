//! The sender's list of unacknowledged packets.
//!
//! # Problem
//! A sender has to find out how much is under way, and what of it is lost, from answers that may be
//! lost, late or out of order themselves; and to send the same byte again only if it has to.
//!
//! # Mechanism
//! Every packet is an entry in a list, in the order of its bytes, and keeps its bounds for ever. An
//! answer reports up to where everything has arrived, and which packet it answers: when that was
//! sent and, if something before it is missing, where it begins (a selective acknowledgement of one
//! packet, RFC 2018).
//!
//! A packet is *lost* if three packets that were sent after it are known to have arrived: the rule
//! of three duplicates (RFC 5681), for packets that were sent again as well as for new ones, since
//! it goes by when something was sent last, not by its position in the bytes. So a network that
//! delays a packet behind at most two others never makes a sender repeat one; and a repeated packet
//! that is lost again is found out in a round trip, not by a timeout. Packets that were sent in the
//! same instant left in the order of their bytes, as repeated ones go first.
//!
//! Example: five packets at time 1, the second is lost. The answers for the third, fourth and fifth
//! come: it is lost. It is sent again at 9, with two new ones, and lost again. The answers for the
//! two are only two; with the next one it is lost a second time.
//!
//! The last packets of all that is sent have nothing behind them and are left to the timeout, which
//! takes everything for lost.

use std::collections::VecDeque;

use crate::net::packet::Packet;
use tidegate_sim::time::Picoseconds;

/// How many packets that were sent later have to arrive before one is lost.
const LATER: usize = 3;

/// Packets that a sender has sent, from the first byte that is not acknowledged.
#[derive(Debug)]
pub(super) struct Outbox {
    packets: VecDeque<Sent>,
    /// The first byte that is not acknowledged.
    acknowledged: u64,
    /// The first byte that was never sent.
    next: u64,
    /// Payload that is neither lost nor known to have arrived.
    in_flight: u64,
    /// How many packets are lost, and before which byte none is.
    lost: u32,
    lost_from: u64,
    /// How many packets have arrived before one that has not, and the last of them.
    arrived: u32,
    arrived_last: u64,
    /// When and what the packets were sent that arrived, of the three that were sent last.
    latest: [(Picoseconds, u64); LATER],
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    start: u64,
    /// When it was sent last.
    at: Picoseconds,
    bytes: u16,
    state: PacketState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketState {
    InFlight,
    Lost,
    Arrived,
}

/// The effect of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Bytes that are now known to have arrived and were not before.
    pub(super) delivered: u64,
    /// Whether something is lost that was not before.
    pub(super) is_loss: bool,
}

impl Outbox {
    /// Of a sender that has sent nothing.
    pub(super) const NEW: Self = Self {
        packets: VecDeque::new(),
        acknowledged: 0,
        next: 0,
        in_flight: 0,
        lost: 0,
        lost_from: 0,
        arrived: 0,
        arrived_last: 0,
        latest: [(Picoseconds::ZERO, 0); LATER],
    };

    /// The first byte that is not acknowledged.
    pub(super) const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The first byte that was never sent.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Payload under way, by the answers so far.
    pub(super) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Whether everything that was sent is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether something is lost and was not sent again.
    pub(super) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// The size of the first lost packet, if there is one.
    pub(super) fn lost(&mut self) -> Option<u16> {
        self.first_lost().map(|at| self.packets[at].bytes)
    }

    /// Sends so many new bytes. Where they begin.
    pub(super) fn send(&mut self, now: Picoseconds, bytes: u16) -> u64 {
        let start = self.next;
        self.packets.push_back(Sent { start, at: now, bytes, state: PacketState::InFlight });
        self.next += u64::from(bytes);
        self.in_flight += u64::from(bytes);
        start
    }

    /// Sends the first lost packet again. Where it begins.
    ///
    /// # Panics
    /// If nothing is lost.
    pub(super) fn send_again(&mut self, now: Picoseconds) -> u64 {
        let at = self.first_lost().expect("whoever calls has seen that something is lost");
        let packet = &mut self.packets[at];
        (packet.at, packet.state) = (now, PacketState::InFlight);
        self.lost -= 1;
        self.lost_from = packet.start + 1;
        self.in_flight += u64::from(packet.bytes);
        packet.start
    }

    /// The index of the first lost packet.
    fn first_lost(&mut self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        let from = self.packets.partition_point(|packet| packet.start < self.lost_from);
        let mut rest = self.packets.range(from..);
        let index = from + rest.position(|packet| packet.state == PacketState::Lost)?;
        self.lost_from = self.packets[index].start;
        Some(index)
    }

    pub(super) fn on_answer(&mut self, answer: &Packet) -> News {
        let mut delivered = self.acknowledge(answer.sequence);
        let mut start = answer.sequence;
        if answer.ahead > 0 {
            start += u64::from(answer.ahead);
            delivered += self.arrive(start);
        }
        self.remember(answer.sent, start);
        let is_loss = self.arrived > 0 && self.find_losses();
        News { delivered, is_loss }
    }

    /// Takes an answer in of a receiver that keeps nothing that is out of order.
    pub(super) fn on_complaint(&mut self, answer: &Packet) -> News {
        let delivered = self.acknowledge(answer.sequence);
        let is_loss = answer.ahead > 0 && answer.sequence == self.acknowledged;
        if is_loss {
            self.lose_all();
        }
        News { delivered, is_loss }
    }

    /// Everything before this byte has arrived. How many bytes of that are news.
    fn acknowledge(&mut self, until: u64) -> u64 {
        let mut delivered = 0;
        while let Some(packet) = self.packets.front()
            && packet.start < until
        {
            let bytes = u64::from(packet.bytes);
            debug_assert!(packet.start + bytes <= until, "half a packet is acknowledged");
            match packet.state {
                PacketState::InFlight => self.in_flight -= bytes,
                PacketState::Lost => self.lost -= 1,
                PacketState::Arrived => self.arrived -= 1,
            }
            delivered += if packet.state == PacketState::Arrived { 0 } else { bytes };
            self.acknowledged = packet.start + bytes;
            self.packets.pop_front();
        }
        delivered
    }

    /// The packet that begins here has arrived. How many bytes of that are news.
    fn arrive(&mut self, start: u64) -> u64 {
        let Ok(at) = self.packets.binary_search_by_key(&start, |packet| packet.start) else {
            return 0; // an old answer
        };
        let packet = &mut self.packets[at];
        let bytes = u64::from(packet.bytes);
        match packet.state {
            PacketState::InFlight => self.in_flight -= bytes,
            PacketState::Lost => self.lost -= 1,
            PacketState::Arrived => return 0,
        }
        packet.state = PacketState::Arrived;
        self.arrived += 1;
        self.arrived_last = self.arrived_last.max(start);
        bytes
    }

    /// A packet has arrived that was sent then.
    fn remember(&mut self, at: Picoseconds, start: u64) {
        let mut key = (at, start);
        if self.latest.contains(&key) {
            return;
        }
        for latest in &mut self.latest {
            if key > *latest {
                core::mem::swap(latest, &mut key);
            }
        }
    }

    /// Finds out what is lost. Whether anything is that was not before.
    fn find_losses(&mut self) -> bool {
        let bound = self.latest[LATER - 1];
        let mut is_loss = false;
        for packet in &mut self.packets {
            if packet.start > self.arrived_last {
                break;
            }
            if packet.state == PacketState::InFlight && (packet.at, packet.start) < bound {
                packet.state = PacketState::Lost;
                self.in_flight -= u64::from(packet.bytes);
                self.lost_from =
                    if self.lost == 0 { packet.start } else { packet.start.min(self.lost_from) };
                self.lost += 1;
                is_loss = true;
            }
        }
        is_loss
    }

    /// Takes everything that is not known to have arrived for lost.
    pub(super) fn lose_all(&mut self) {
        for packet in &mut self.packets {
            if packet.state == PacketState::InFlight {
                packet.state = PacketState::Lost;
                self.lost += 1;
            }
        }
        (self.in_flight, self.lost_from) = (0, self.acknowledged);
    }

    /// Checks that the counts are those of the list.
    pub(super) fn check(&self) {
        let sum = |state| -> u64 {
            let those = self.packets.iter().filter(|packet| packet.state == state);
            those.map(|packet| u64::from(packet.bytes)).sum()
        };
        let count = |state| self.packets.iter().filter(|packet| packet.state == state).count();
        assert_eq!(self.in_flight, sum(PacketState::InFlight));
        assert_eq!(self.lost as usize, count(PacketState::Lost));
        assert_eq!(self.arrived as usize, count(PacketState::Arrived));
        let all = sum(PacketState::InFlight) + sum(PacketState::Lost) + sum(PacketState::Arrived);
        assert_eq!(self.next - self.acknowledged, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(sequence: u64, ahead: u32, sent: u64) -> Packet {
        crate::transport::tests::answer(sequence, ahead, Picoseconds(sent))
    }

    /// The example of the head, with packets of 10 bytes.
    #[test]
    fn a_repeated_packet_that_is_lost_is_found_out_without_a_timeout() {
        let mut outbox = Outbox::NEW;
        assert_eq!([(); 5].map(|()| outbox.send(Picoseconds(1), 10))[0], 0);
        assert_eq!(outbox.on_answer(&answer(10, 0, 1)), News { delivered: 10, is_loss: false });
        assert!(!outbox.on_answer(&answer(10, 10, 1)).is_loss);
        assert!(!outbox.on_answer(&answer(10, 20, 1)).is_loss);
        assert_eq!(outbox.on_answer(&answer(10, 30, 1)), News { delivered: 10, is_loss: true });
        assert_eq!((outbox.lost(), outbox.in_flight()), (Some(10), 0));
        assert_eq!(outbox.send_again(Picoseconds(9)), 10);
        assert_eq!([(); 3].map(|()| outbox.send(Picoseconds(9), 10)), [50, 60, 70]);
        assert_eq!(outbox.in_flight(), 40);
        assert!(!outbox.on_answer(&answer(10, 40, 9)).is_loss);
        assert!(!outbox.on_answer(&answer(10, 50, 9)).is_loss);
        assert!(outbox.on_answer(&answer(10, 60, 9)).is_loss);
        outbox.check();
        assert_eq!(outbox.send_again(Picoseconds(17)), 10);
        assert_eq!(outbox.on_answer(&answer(80, 0, 17)), News { delivered: 10, is_loss: false });
        assert!(outbox.is_empty());
        outbox.check();
    }

    /// The same answer again is no news, and does not count as another packet.
    #[test]
    fn an_answer_that_comes_again_is_no_evidence() {
        let mut outbox = Outbox::NEW;
        assert_eq!([(); 5].map(|()| outbox.send(Picoseconds(1), 10))[0], 0);
        assert_eq!(outbox.on_answer(&answer(0, 20, 1)), News { delivered: 10, is_loss: false });
        for _ in 0..5 {
            assert_eq!(outbox.on_answer(&answer(0, 20, 1)), News { delivered: 0, is_loss: false });
        }
        assert_eq!(outbox.in_flight(), 40);
    }

    /// A receiver that keeps nothing complains once; a late complaint is ignored.
    #[test]
    fn an_old_complaint_is_none() {
        let mut outbox = Outbox::NEW;
        assert_eq!([(); 4].map(|()| outbox.send(Picoseconds(1), 10)), [0, 10, 20, 30]);
        assert!(outbox.on_complaint(&answer(10, 10, 1)).is_loss);
        assert_eq!([(); 3].map(|()| outbox.send_again(Picoseconds(2))), [10, 20, 30]);
        assert_eq!(outbox.on_complaint(&answer(20, 0, 2)).delivered, 10);
        assert!(!outbox.on_complaint(&answer(10, 10, 1)).is_loss);
        assert_eq!((outbox.lost(), outbox.in_flight()), (None, 20));
        outbox.check();
    }

    /// Packets that are taken for lost and arrive after all are not sent again.
    #[test]
    fn what_was_taken_for_lost_may_arrive() {
        let mut outbox = Outbox::NEW;
        assert_eq!([(); 3].map(|()| outbox.send(Picoseconds(1), 10))[0], 0);
        outbox.lose_all();
        assert_eq!((outbox.lost(), outbox.in_flight()), (Some(10), 0));
        assert_eq!(outbox.on_answer(&answer(20, 0, 1)).delivered, 20);
        assert_eq!(outbox.send_again(Picoseconds(2)), 20);
        assert_eq!(outbox.lost(), None);
        outbox.check();
    }
}
