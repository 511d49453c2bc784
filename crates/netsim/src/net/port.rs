//! The egress side of a port: its queues, and which packet is sent next.
//!
//! # Problem
//! A port sends one packet at a time. Urgent packets must not wait behind bulk (section 3.1.3 of
//! the end-to-end paper), and classes may be promised shares of the line.
//!
//! # Mechanism
//! Up to four queues. Queue 0 is strict: whenever the line becomes free and it holds a packet, that
//! is the next. A packet that is being sent is not interrupted, so an urgent packet waits for other
//! classes for at most one packet at each port: 120 ns for 1,502 bytes at 100 Gbit/s.
//!
//! Queues 1 to 3 take turns by surplus round robin (Adiseshu, Parulkar and Varghese, 1996): at its
//! turn a queue is credited its weight times [`QUANTUM`] bytes, and sends while its credit is above
//! zero; what it overdraws is missing in its next turn. So long-run shares of *bytes* are those of
//! the weights, whatever the sizes of packets. With weights 3, 2, 1 and packets of 1,500 bytes, a
//! round is three of high, two of medium and one of low. A queue that is empty or paused at its
//! turn gets nothing, and keeps no credit.
//!
//! # Departures
//! Where packets leave in the order in which they come, and no neighbour can pause the port, the
//! time of a departure is known on arrival: the packet's arrival at the next node is the only
//! event. The content of the port is brought up to date when it is read ([`Port::leaving`] gives
//! the departures). Otherwise a port that is busy and has packets waiting has one more event at
//! each departure.

use core::mem;
use std::collections::VecDeque;

use tidegate_model::Class;

use super::leaving::{Leaving, Lists, PortList};
use super::packet::Packet;
use super::queue_stats::{Counters, Losses, QueueStats};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

/// Bytes that a weight of one is worth in a round: about the largest packet that is usual, so that
/// equal packets take turns in whole numbers.
const QUANTUM: i64 = 1_500;

/// Queues of a port, at most.
pub(super) const QUEUES: usize = 4;

/// The switch of a port that belongs to a host.
pub(super) const NO_SWITCH: u32 = u32::MAX;

/// A port of a switch, or the NIC of a host. Large networks are slow by what they touch, not by
/// what they compute: so where there is one queue, a packet touches the first cache line and that
/// of its class, and what few packets touch lies elsewhere.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Port {
    /// The packet whose last bit leaves first, or [`Leaving::NONE`] if there is none. With
    /// departures as events there is none.
    first: Leaving,
    /// When the last bit of what is sent, or is certain to be sent, leaves.
    pub(super) busy_until: Picoseconds,
    /// Its wire, by the network's list of them.
    pub(super) wire: u32,
    pub(super) switch: u32,
    rest: Box<Rest>,
    /// Whether an event for its next departure is due.
    pub(super) is_awaited: bool,
    /// Bits of queues that are paused, and of those where packets wait.
    paused: u8,
    filled: u8,
    current_queue: u8,
    /// The packets that leave after the first, in this order.
    others: PortList,
    pub(super) queues: [QueueContent; QUEUES],
    pub(super) queue_stats: [QueueStats; QUEUES],
}

const _: () = assert!(mem::offset_of!(Port, queues) + size_of::<QueueContent>() <= 64);
const _: () = assert!(mem::offset_of!(Port, queue_stats) == 128);

/// The part of a port that is touched by few packets.
#[derive(Debug)]
pub(super) struct Rest {
    waiting: [VecDeque<Packet>; QUEUES],
    credit: [i64; QUEUES],
    /// Notes to the neighbour, before everything else.
    pub(super) notes: VecDeque<Note>,
    /// By class: but its pauses, which are counted by queue.
    pub(super) losses: [Losses; QUEUES],
    pauses: [Paused; QUEUES],
    pub(super) random: Stream,
}

/// The content of a queue, with the packet that is being sent of it. Packed, so that a port's four
/// fit beside the other fields that are touched with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(super) struct QueueContent {
    pub bytes: u64,
    pub packets: u32,
}

/// A note to a neighbour to pause a queue, or to resume it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub queue: u8,
    pub is_pause: bool,
}

/// How long a queue was paused, and since when it is.
#[derive(Clone, Copy, Debug, Default)]
struct Paused {
    total: Picoseconds,
    since: Picoseconds,
}

impl Port {
    pub(super) fn new(wire: u32, switch: u32, random: Stream) -> Self {
        let rest = Rest {
            waiting: Default::default(),
            credit: [0; QUEUES],
            notes: VecDeque::new(),
            losses: Default::default(),
            pauses: Default::default(),
            random,
        };
        Self {
            first: Leaving::NONE,
            busy_until: Picoseconds::ZERO,
            wire,
            switch,
            rest: Box::new(rest),
            is_awaited: false,
            paused: 0,
            filled: 0,
            current_queue: 1,
            others: PortList::default(),
            queues: Default::default(),
            queue_stats: Default::default(),
        }
    }

    /// The fields that few packets touch.
    #[inline]
    pub(super) fn rest(&mut self) -> &mut Rest {
        &mut self.rest
    }

    #[inline]
    pub(super) fn enter(&mut self, now: Picoseconds, queue: usize, packet: &Packet) {
        let held = &mut self.queues[queue];
        held.bytes += u64::from(packet.wire);
        held.packets += 1;
        self.queue_stats[packet.class as usize].enter(now, packet.wire);
    }

    /// Counts a packet out.
    #[inline]
    pub(super) fn leave(&mut self, queue: usize, left: &Leaving) {
        let held = &mut self.queues[queue];
        held.bytes -= u64::from(left.wire);
        held.packets -= 1;
        self.queue_stats[left.class as usize].leave(left.at, left.wire);
    }

    /// Notes whose departure is certain, after all others.
    #[inline]
    pub(super) fn push_leaving(&mut self, lists: &mut Lists, left: Leaving) {
        if self.first.at == Picoseconds::MAX {
            self.first = left;
        } else {
            lists.push(&mut self.others, left);
        }
    }

    /// Takes the next one that has left until now.
    #[inline]
    pub(super) fn pop_left(&mut self, lists: &mut Lists, now: Picoseconds) -> Option<Leaving> {
        if self.first.at > now {
            return None;
        }
        let next = lists.pop(&mut self.others).unwrap_or(Leaving::NONE);
        Some(mem::replace(&mut self.first, next))
    }

    /// Packets whose departure is certain, in this order.
    pub(super) fn leaving<'a>(&'a self, lists: &'a Lists) -> impl Iterator<Item = &'a Leaving> {
        let first = Some(&self.first).filter(|left| left.at < Picoseconds::MAX);
        first.into_iter().chain(lists.iter(self.others))
    }

    /// Has what a packet of a class will touch brought near. Of no meaning otherwise.
    #[inline]
    pub(super) fn prefetch(&self, lists: &Lists, class: Class) -> u64 {
        lists.prefetch(self.others) ^ self.queue_stats[class as usize].held
    }

    /// Bytes of packets whose departure is not certain.
    pub(super) fn waiting_bytes(&self, lists: &Lists) -> u64 {
        if self.filled == 0 {
            return 0;
        }
        let held: u64 = self.queues.iter().map(|held| held.bytes).sum();
        held - self.leaving(lists).map(|left| u64::from(left.wire)).sum::<u64>()
    }

    /// Bytes of its urgent packets.
    #[inline]
    pub(super) const fn urgent(&self) -> u64 {
        self.queue_stats[Class::Urgent as usize].held
    }

    pub(super) fn push(&mut self, queue: usize, packet: Packet) {
        self.filled |= 1 << queue;
        self.rest.waiting[queue].push_back(packet);
    }

    /// Takes the packet that is next, if one may go. Without weights, of the first queue that is
    /// ready.
    pub(super) fn pop(&mut self, weights: Option<[u16; 3]>) -> Option<Packet> {
        let ready = self.filled & !self.paused;
        if ready == 0 {
            return None;
        }
        let queue = match weights {
            Some(weights) if ready & 1 == 0 => self.next_weighted(ready, weights),
            _ => ready.trailing_zeros() as usize,
        };
        let packet = self.rest.waiting[queue].pop_front()?;
        if self.rest.waiting[queue].is_empty() {
            self.filled &= !(1 << queue);
        }
        self.rest.credit[queue] -= i64::from(packet.wire);
        Some(packet)
    }

    /// Whether a packet waits that may go.
    pub(super) const fn is_ready(&self) -> bool {
        self.filled & !self.paused != 0
    }

    /// Picks the next of queues 1 to 3. A ready queue gains credit in each round, so this ends:
    /// after six rounds at most, if packets have 9,000 bytes.
    fn next_weighted(&mut self, ready: u8, weights: [u16; 3]) -> usize {
        loop {
            let queue = usize::from(self.current_queue);
            let is_ready = ready & (1 << queue) != 0;
            if is_ready && self.rest.credit[queue] > 0 {
                return queue;
            }
            if !is_ready {
                self.rest.credit[queue] = self.rest.credit[queue].min(0);
            }
            self.current_queue = self.current_queue % 3 + 1;
            let next = usize::from(self.current_queue);
            self.rest.credit[next] += i64::from(weights[next - 1]) * QUANTUM;
        }
    }

    /// Pauses a queue, or resumes it.
    pub(super) fn set_paused(&mut self, now: Picoseconds, note: Note) {
        let bit = 1 << note.queue;
        let was_paused = self.paused & bit != 0;
        if was_paused == note.is_pause {
            return;
        }
        self.paused ^= bit;
        let pause = &mut self.rest.pauses[usize::from(note.queue)];
        if note.is_pause {
            pause.since = now;
        } else {
            pause.total = pause.total.after(now.since(pause.since));
        }
    }

    pub(super) const fn is_paused(&self, queue: usize) -> bool {
        self.paused & (1 << queue) != 0
    }

    /// The counters of a class, which waits in this queue.
    pub(super) fn counters(&self, now: Picoseconds, class: Class, queue: usize) -> Counters {
        let Paused { total, since } = self.rest.pauses[queue];
        let paused = if self.is_paused(queue) { total.after(now.since(since)) } else { total };
        let losses = Losses { paused, ..self.rest.losses[class as usize] };
        self.queue_stats[class as usize].counters(now, losses)
    }

    pub(super) fn waiting(&self, queue: usize) -> impl Iterator<Item = &Packet> {
        self.rest.waiting[queue].iter()
    }
}
