//! Invariants of a network at any time, and detection of deadlocks.
//!
//! **Conservation.** Each packet that hosts have sent was delivered, was dropped, waits, or is on a
//! line; the counts of a port, a buffer or an ingress are the sums of their packets; no buffer
//! holds more than its size. All is counted anew, packet by packet, so this is for tests.
//!
//! **Deadlock.** Pauses make neighbours wait, and if packets wait for each other in a circle, for
//! ever. A port waits *for good* if it is paused, the neighbour that paused it holds more than
//! [`Pause::resume`](super::Pause::resume) bytes that came from it, and so much of that stands in
//! queues that wait for good themselves. To find the largest set of such queues, the check takes
//! all paused queues and strikes out those that do not wait for good, until none is struck out. For
//! instance, five switches in a circle whose hosts all send two switches on: each line of the
//! circle is paused by the next one. A queue that a resume is under way to does not count.

use core::fmt;

use super::super::port::{NO_SWITCH, QUEUES};
use super::{Network, PortId};
use tidegate_sim::time::Picoseconds;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvariantViolation {
    /// A count does not add up: a bug of the simulator.
    Count {
        /// The counted quantity, and its location.
        what: String,
        /// The expected count.
        expected: u64,
        /// The actual count.
        counted: u64,
    },
    /// Queues wait for each other for good. The network needs other routes, or larger thresholds.
    Deadlock(Vec<Stuck>),
}

/// A queue that waits for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its port.
    pub port: PortId,
    /// Which queue of the port.
    pub queue: u8,
    /// From which node to which one the port leads.
    pub between: [String; 2],
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { what, expected, counted } => {
                write!(f, "{what}: {counted} instead of {expected}")
            }
            Self::Deadlock(stuck) => {
                write!(f, "{} queues wait for each other for good:", stuck.len())?;
                for Stuck { queue, between: [from, to], .. } in stuck {
                    write!(f, " {from} to {to} (queue {queue});")?;
                }
                write!(f, " choose routes without a circle, or pause later")
            }
        }
    }
}

impl core::error::Error for InvariantViolation {}

fn must_be(
    counted: u64,
    expected: u64,
    what: impl Fn() -> String,
) -> Result<(), InvariantViolation> {
    if counted == expected {
        return Ok(());
    }
    Err(InvariantViolation::Count { what: what(), expected, counted })
}

impl Network {
    /// Checks everything.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        let waiting: usize = self.queues().map(|(port, queue)| self.waiting(port, queue)).sum();
        let counts = self.counts;
        let known = counts.delivered + counts.dropped + counts.on_lines + waiting as u64;
        must_be(known, counts.sent, || "packets".to_owned())?;
        (0..self.ports.len()).try_for_each(|port| self.check_port(port))?;
        (0..self.buffers.len()).try_for_each(|switch| self.check_buffer(switch))?;
        self.check_ingress()?;
        match self.stuck() {
            stuck if stuck.is_empty() => Ok(()),
            stuck => Err(InvariantViolation::Deadlock(stuck)),
        }
    }

    fn queues(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.ports.len()).flat_map(|port| (0..QUEUES).map(move |queue| (port, queue)))
    }

    fn waiting(&self, port: usize, queue: usize) -> usize {
        self.ports[port].waiting(queue).count()
    }

    /// Whether a port counts what it holds.
    fn check_port(&self, index: usize) -> Result<(), InvariantViolation> {
        let port = &self.ports[index];
        let mut bytes = [[0; QUEUES]; 2];
        let mut packets = [0; QUEUES];
        let mut last = Picoseconds::ZERO;
        let waiting = (0..QUEUES).flat_map(|queue| port.waiting(queue));
        let waiting = waiting.map(|packet| (packet.class, packet.wire));
        let leaving = port.leaving(&self.leaving).map(|left| (left.class, left.wire));
        for (class, wire) in waiting.chain(leaving) {
            let queue = self.rules.service.queue(class);
            bytes[0][queue] += u64::from(wire);
            bytes[1][class as usize] += u64::from(wire);
            packets[queue] += 1;
        }
        for number in 0..QUEUES {
            let what = |what: &str| format!("port {index}, {what} {number}");
            let (held, class) = (port.queues[number], port.queue_stats[number].held);
            must_be(held.bytes, bytes[0][number], || what("bytes of queue"))?;
            must_be(held.packets.into(), packets[number], || what("packets of queue"))?;
            must_be(class, bytes[1][number], || what("bytes of class"))?;
        }
        for left in port.leaving(&self.leaving) {
            must_be(u64::from(left.at >= last), 1, || format!("port {index}, order"))?;
            last = left.at;
        }
        must_be(u64::from(last <= port.busy_until), 1, || format!("port {index}, busy"))
    }

    /// Whether a buffer counts what its ports hold, and has room for it.
    fn check_buffer(&self, switch: usize) -> Result<(), InvariantViolation> {
        let buffer = &self.buffers[switch];
        let own = self.ports.iter().filter(|port| port.switch == switch as u32);
        let shared = own.map(|port| {
            let all: u64 = port.queues.iter().map(|held| held.bytes).sum();
            all - port.urgent().min(self.rules.reserve)
        });
        must_be(buffer.used, shared.sum(), || format!("switch {switch}, bytes shared"))?;
        let fits = buffer.used <= buffer.size;
        must_be(u64::from(fits), 1, || format!("switch {switch}, bytes within its buffer"))
    }

    /// Whether what came in by each port is what is there of it.
    fn check_ingress(&self) -> Result<(), InvariantViolation> {
        let mut there = vec![[0; QUEUES]; self.ingress.len()];
        for (port, queue) in self.queues().filter(|_| self.rules.pause.is_some()) {
            for (ingress, wire) in self.waiting_from(port, queue) {
                there[ingress as usize][queue] += u64::from(wire);
            }
        }
        let own = self.ports.iter().filter(|port| port.switch != NO_SWITCH);
        for left in
            own.flat_map(|port| port.leaving(&self.leaving)).filter(|_| self.rules.pause.is_some())
        {
            let queue = self.rules.service.queue(left.class);
            there[left.ingress as usize][queue] += u64::from(left.wire);
        }
        for (index, (ingress, there)) in self.ingress.iter().zip(there).enumerate() {
            for (count, there) in ingress.queues.iter().zip(there) {
                must_be(count.bytes, there, || format!("bytes that came by port {index}"))?;
            }
        }
        Ok(())
    }

    /// Packets that wait in a queue: the port by which each came into the switch, and its bytes.
    fn waiting_from(&self, port: usize, queue: usize) -> impl Iterator<Item = (u32, u16)> {
        let own = Some(&self.ports[port]).filter(|port| port.switch != NO_SWITCH);
        let waiting = own.into_iter().flat_map(move |port| port.waiting(queue));
        waiting.map(|packet| (self.came_by(packet), packet.wire))
    }

    /// Bytes that came by a port and wait in a queue of another.
    fn held_from(&self, ingress: usize, port: usize, queue: usize) -> u64 {
        let waiting = self.waiting_from(port, queue);
        let own = waiting.filter(|(other, _)| *other == ingress as u32);
        own.map(|(_, wire)| u64::from(wire)).sum()
    }

    /// The queues that wait for good.
    fn stuck(&self) -> Vec<Stuck> {
        let Some(pause) = self.rules.pause else { return Vec::new() };
        let peer_has_paused =
            |port: usize, queue: usize| self.ingress[port ^ 1].queues[queue].is_paused;
        let paused = |&(port, queue): &(usize, usize)| {
            self.ports[port].is_paused(queue) && peer_has_paused(port, queue)
        };
        let mut stuck: Vec<_> = self.queues().filter(paused).collect();
        loop {
            let waits = |&(port, queue): &(usize, usize)| {
                let ahead = stuck.iter().filter(|(_, other)| *other == queue);
                let held: u64 = ahead.map(|(at, _)| self.held_from(port ^ 1, *at, queue)).sum();
                held > pause.resume.0
            };
            let still: Vec<_> = stuck.iter().copied().filter(waits).collect();
            if still.len() == stuck.len() {
                break;
            }
            stuck = still;
        }
        let graph = self.paths.graph();
        let stuck = stuck.into_iter().map(|(port, queue)| {
            let ends = [port as u32 ^ 1, port as u32].map(|port| graph.far(port));
            let between = ends.map(|node| graph.node_name(node).to_owned());
            Stuck { port: PortId(port as u32), queue: queue as u8, between }
        });
        stuck.collect()
    }
}
