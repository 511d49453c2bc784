//! Packets on their way: from the NIC of a host, through switches, to another host.
//!
//! # Problem
//! Tenants disturb each other in queues of switches, packet by packet. A simulated second of a
//! saturated 100 Gbit/s link is eight million packets, so the cost of a hop is the cost of a
//! simulation.
//!
//! # Model
//! Output-queued switches: a packet whose last bit has come in is in the queue of its egress port
//! at once, and in the shared buffer of the switch until its last bit has left. NICs of hosts are
//! ports with a buffer that is always large enough.
//!
//! # Mechanism
//! The owner of the queue of events sends packets ([`Network::send`]) and hands back the events
//! that the network requested ([`Network::on_event`]); a packet that has reached its host is
//! returned. Where nothing may be lost, a switch also counts the bytes from each neighbour and
//! tells it to pause and to resume. Per hop there is one event, the arrival of a packet, or two
//! ([`super::port`]).
//!
//! A packet of 1,502 bytes that crosses a dumbbell with lines of 100 Gbit/s and delays of 1.25, 10
//! and 1.25 us takes 3 * 120.16 ns + 12.5 us = 12.86048 us and three events.
//!
//! # Order
//! Packets that reach a switch in the same picosecond over different ports are served in the order
//! in which their arrivals were pushed. So two settings with the same times may differ there, for
//! instance one and two events per hop; each by itself is the same in each run. A packet that
//! leaves a port at a point in time is gone for a packet that arrives at that point.
//!
//! # What is left out
//! Time within a switch other than for queueing and sending; hosts that take in less than their
//! line brings; hosts with several NICs; links that fail.

use tidegate_model::{Class, Rate};

use super::buffer::{Ingress, NOTE, SwitchBuffer};
use super::leaving::{Leaving, Lists};
use super::line::Wire;
use super::packet::{FlowId, Mark, Packet, PacketKind};
use super::port::{NO_SWITCH, Note, Port};
use super::queue_stats::Counters;
use super::route::{END, Path, Paths};
use super::switch::{Depth, Marking, Pause, PortService, Switch};
use super::topology::{Graph, Host};
use tidegate_sim::rng::Stream;
use tidegate_sim::scenario::{ScenarioError, must};
use tidegate_sim::time::Picoseconds;

mod check;

pub use check::{InvariantViolation, Stuck};

/// Events of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// The last bit of a packet reaches the node behind the port that sent it.
    Arrive(Packet),
    /// A port is free for its next packet.
    Free(PortId),
    /// A port receives a note to pause a queue, or to resume it.
    Pause {
        /// Which port.
        port: PortId,
        /// Which of its queues.
        queue: u8,
        /// Pause; otherwise resume.
        is_pause: bool,
    },
}

/// The number of a port: link *l* of the topology has 2*l* at its first end and 2*l* + 1 at the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

/// Hosts, links and switches, and the packets in them.
#[derive(Debug)]
pub struct Network {
    rules: Rules,
    /// All that differ: in most networks a few, so that ports have room for what does.
    wires: Vec<Wire>,
    ports: Vec<Port>,
    leaving: Lists,
    buffers: Vec<SwitchBuffer>,
    /// By port, if there are pauses.
    ingress: Vec<Ingress>,
    paths: Paths,
    counts: PacketCounts,
}

/// Packets in all of the network since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Sent by hosts.
    pub sent: u64,
    /// Delivered to hosts.
    pub delivered: u64,
    /// Dropped by switches.
    pub dropped: u64,
    /// Packets whose arrival is due: on a line, or certain to be sent.
    pub on_lines: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    service: PortService,
    weights: Option<[u16; 3]>,
    marking: Marking,
    reserve: u64,
    pause: Option<Pause>,
    /// Whether departures are computed on arrival.
    is_computed: bool,
}

impl Network {
    /// A network in which no host has sent anything.
    ///
    /// # Errors
    /// If the buffer of a switch is too small for what is set aside in it, and how large it must
    /// be; or as [`super::NetworkPlan::check`] for the switch.
    pub fn new(graph: &Graph, switch: &Switch, seed: u64) -> Result<Self, ScenarioError> {
        switch.check()?;
        let first = graph.hosts() as u32;
        let (mut wires, mut ports) = (Vec::new(), Vec::<Port>::new());
        for (number, link) in (0..).zip(graph.links()) {
            let wire = number_of(&mut wires, Wire::new(link.line));
            for (end, node) in (0..).zip(link.ends) {
                let random = Stream::new(seed, "port", 2 * number + end);
                let switch = if node < first { NO_SWITCH } else { node - first };
                ports.push(Port::new(wire, switch, random));
            }
        }
        let queues = switch.service.queues();
        let ended = |port: &Port| Ingress::new(switch.pause, &wires[port.wire as usize], queues);
        let ingress: Vec<Ingress> = ports.iter().map(ended).collect();
        let paths = Paths::new(graph, seed);
        let mut buffers = Vec::new();
        for node in first..graph.nodes() as u32 {
            let own = paths.ports(node);
            let own_ingress = own.iter().map(|port| &ingress[*port as usize]);
            let most = |pause| own_ingress.map(|ingress| ingress.most(pause, queues)).sum::<u64>();
            let least = switch.reserve.0 * own.len() as u64 + switch.pause.map_or(0, most);
            let small = format!(
                "switch.buffer: {:?} sets {least}B aside for urgent packets and pauses, at {} \
                 ports; make it larger",
                graph.node_name(node),
                own.len()
            );
            must(least <= switch.buffer.0, &small)?;
            buffers.push(SwitchBuffer::new(switch, own.len()));
        }
        let counts = PacketCounts::default();
        let ingress = if switch.pause.is_some() { ingress } else { Vec::new() };
        Ok(Self {
            rules: Rules::new(switch),
            wires,
            ports,
            leaving: Lists::new(),
            buffers,
            ingress,
            paths,
            counts,
        })
    }

    /// Draws the paths of a flow, there and back.
    ///
    /// # Panics
    /// If there is no such host, or both are the same: what a host sends itself needs no network.
    pub fn connect(&mut self, flow: FlowId, source: Host, target: Host) -> Path {
        self.paths.connect(flow, source, target)
    }

    /// A host sends a packet; its [`Packet::route`] is the beginning of a path.
    #[inline]
    pub fn send(
        &mut self,
        now: Picoseconds,
        packet: Packet,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        self.counts.sent += 1;
        self.arrive(now, self.paths.port(packet.route), packet, later);
    }

    /// Handles an event that the network requested. A packet that has reached its host, if one has.
    #[inline]
    pub fn on_event(
        &mut self,
        now: Picoseconds,
        event: NetworkEvent,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) -> Option<Packet> {
        match event {
            NetworkEvent::Arrive(packet) => {
                self.counts.on_lines -= 1;
                let port = self.paths.port(packet.route);
                if port == END {
                    self.counts.delivered += 1;
                    return Some(packet);
                }
                self.arrive(now, port, packet, later);
            }
            NetworkEvent::Free(PortId(port)) => {
                self.ports[port as usize].is_awaited = false;
                self.settle(now, port, later);
                self.start(now, port, later);
            }
            NetworkEvent::Pause { port: PortId(port), queue, is_pause } => {
                self.ports[port as usize].set_paused(now, Note { queue, is_pause });
                self.nudge(now, port, later);
            }
        }
        None
    }

    /// Has what an event will touch brought near, some time before it happens; of no meaning
    /// otherwise. A processor waits for one thing after another that it needs, and for many at a
    /// time that are announced to it.
    #[inline]
    pub fn prefetch(&self, event: &NetworkEvent) -> u64 {
        let NetworkEvent::Arrive(packet) = event else { return 0 };
        let port = self.paths.port(packet.route);
        self.ports.get(port as usize).map_or(0, |port| port.prefetch(&self.leaving, packet.class))
    }

    /// When a port has sent what it holds, if it is not paused: the one at a hop of a path.
    pub fn free_at(&self, now: Picoseconds, hop: u32) -> Picoseconds {
        let port = &self.ports[self.paths.port(hop) as usize];
        let waiting = port.waiting_bytes(&self.leaving);
        port.busy_until.max(now).after(self.wires[port.wire as usize].time_of(waiting))
    }

    /// How long a packet of this size takes from a hop of its path to the host, if no other host
    /// sends.
    pub fn unloaded(&self, mut hop: u32, wire: u16) -> Picoseconds {
        let mut time = Picoseconds::ZERO;
        while self.paths.port(hop) != END {
            let line = self.wire(self.paths.port(hop));
            time = time.after(line.time(wire)).after(line.delay());
            hop += 1;
        }
        time
    }

    #[inline]
    fn wire(&self, port: u32) -> &Wire {
        &self.wires[self.ports[port as usize].wire as usize]
    }

    /// The ports that a path goes through, from its beginning.
    pub fn ports_of(&self, hop: u32) -> impl Iterator<Item = PortId> {
        (hop..).map(|hop| self.paths.port(hop)).take_while(|port| *port != END).map(PortId)
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + use<> {
        (0..self.ports.len() as u32).map(PortId)
    }

    /// The rate of the line behind a port.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn rate(&self, port: PortId) -> Rate {
        self.wire(port.0).rate()
    }

    /// The names of the nodes that a port links: its own, and the one behind it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn ends(&self, port: PortId) -> [&str; 2] {
        let graph = self.paths.graph();
        [port.0 ^ 1, port.0].map(|port| graph.node_name(graph.far(port)))
    }

    /// Packets in all of the network.
    pub const fn counts(&self) -> PacketCounts {
        self.counts
    }

    /// The counters of a port for a class until now.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn counters(&mut self, now: Picoseconds, port: PortId, class: Class) -> Counters {
        if self.rules.pause.is_none() {
            self.settle(now, port.0, &mut |_, _| unreachable!("nobody is told to resume"));
        }
        let queue = self.rules.service.queue(class);
        self.ports[port.0 as usize].counters(now, class, queue)
    }

    /// A packet has come to the node of a port, to be sent by it.
    #[inline]
    fn arrive(
        &mut self,
        now: Picoseconds,
        index: u32,
        mut packet: Packet,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        self.settle(now, index, later);
        let rules = self.rules;
        let queue = rules.service.queue(packet.class);
        let is_switch = self.ports[index as usize].switch != NO_SWITCH;
        if is_switch && !self.admit(now, index, &mut packet) {
            self.ports[index as usize].rest().losses[packet.class as usize].dropped += 1;
            self.counts.dropped += 1;
            return;
        }
        let port = &mut self.ports[index as usize];
        port.enter(now, queue, &packet);
        if rules.is_computed {
            let from = now.max(port.busy_until);
            self.transmit(from, index, packet, later);
            return;
        }
        port.push(queue, packet);
        if let Some(pause) = rules.pause.filter(|_| is_switch) {
            self.come_in(now, &packet, pause, later);
        }
        self.nudge(now, index, later);
    }

    /// Whether a switch takes a packet, and marks it if it is to be marked.
    #[inline]
    fn admit(&mut self, now: Picoseconds, index: u32, packet: &mut Packet) -> bool {
        let need = self.need(index, packet);
        if !self.has_space(index, packet, need) {
            let switch = self.ports[index as usize].switch;
            // Packets that have left since the switch was last settled may make room.
            self.settle_switch(now, switch);
            if !self.has_space(index, packet, need) {
                return false;
            }
        }
        let rules = self.rules;
        let port = &mut self.ports[index as usize];
        let held = port.queues[rules.service.queue(packet.class)];
        // The mark of an answer is its receiver's echo (RFC 3168, section 6.1.4).
        let is_long = packet.kind == PacketKind::Data
            && match rules.marking {
                Marking::None => false,
                Marking::Step(Depth::Packets(packets)) => held.packets >= packets,
                Marking::Step(Depth::Bytes(bytes)) => held.bytes >= bytes.0,
                Marking::Red(red) => red.chooses(held.bytes, &mut port.rest().random),
            };
        if is_long {
            if packet.mark == Mark::Incapable {
                return false;
            }
            port.rest().losses[packet.class as usize].marked +=
                u64::from(packet.mark == Mark::Clear);
            packet.mark = Mark::Congested;
        }
        self.buffers[port.switch as usize].used += need;
        true
    }

    /// How much of the shared part a packet takes.
    #[inline]
    fn need(&self, index: u32, packet: &Packet) -> u64 {
        let wire = u64::from(packet.wire);
        if packet.class != Class::Urgent {
            return wire;
        }
        let urgent = self.ports[index as usize].urgent();
        self.rules.beyond_reserve(urgent + wire) - self.rules.beyond_reserve(urgent)
    }

    #[inline]
    fn has_space(&self, index: u32, packet: &Packet, need: u64) -> bool {
        let port = &self.ports[index as usize];
        let queue = self.rules.service.queue(packet.class);
        if let Some(pause) = self.rules.pause {
            let ingress = &self.ingress[self.came_by(packet) as usize];
            let after = ingress.queues[queue].bytes + u64::from(packet.wire);
            return after <= pause.at.0 + ingress.headroom;
        }
        let is_reserved = queue == 0 && self.rules.reserve > 0;
        let reserved = if is_reserved { port.urgent().min(self.rules.reserve) } else { 0 };
        let held = port.queues[queue].bytes - reserved;
        self.buffers[port.switch as usize].has_space(held, need)
    }

    /// The port by which a packet came into the switch that it is in.
    #[inline]
    fn came_by(&self, packet: &Packet) -> u32 {
        self.paths.port(packet.route - 1) ^ 1
    }

    /// Counts out what has left a port until now.
    #[inline]
    fn settle(
        &mut self,
        now: Picoseconds,
        index: u32,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        loop {
            let port = &mut self.ports[index as usize];
            let Some(left) = port.pop_left(&mut self.leaving, now) else { return };
            port.leave(self.rules.service.queue(left.class), &left);
            if port.switch == NO_SWITCH {
                continue;
            }
            let mut freed = u64::from(left.wire);
            if left.class == Class::Urgent {
                let urgent = port.urgent();
                freed =
                    self.rules.beyond_reserve(urgent + freed) - self.rules.beyond_reserve(urgent);
            }
            self.buffers[port.switch as usize].used -= freed;
            if let Some(pause) = self.rules.pause {
                self.go_out(now, left, pause, later);
            }
        }
    }

    /// The same at all ports of a switch; not where a neighbour would be sent a resume.
    fn settle_switch(&mut self, now: Picoseconds, switch: u32) {
        if self.rules.pause.is_some() {
            return;
        }
        let node = self.paths.graph().hosts() as u32 + switch;
        for nth in 0..self.paths.ports(node).len() {
            let port = self.paths.ports(node)[nth];
            self.settle(now, port, &mut |_, _| unreachable!("nobody is told to resume"));
        }
    }

    /// Sends a packet from a point in time on at which its port is free.
    #[inline]
    fn transmit(
        &mut self,
        from: Picoseconds,
        index: u32,
        mut packet: Packet,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        let counts_ingress = self.rules.pause.is_some();
        let is_switch = self.ports[index as usize].switch != NO_SWITCH;
        let ingress = if counts_ingress && is_switch { self.came_by(&packet) } else { u32::MAX };
        let port = &mut self.ports[index as usize];
        let wire = self.wires[port.wire as usize];
        let at = from.after(wire.time(packet.wire));
        port.busy_until = at;
        let left = Leaving { at, ingress, wire: packet.wire, class: packet.class };
        port.push_leaving(&mut self.leaving, left);
        packet.route += 1;
        self.counts.on_lines += 1;
        later(at.after(wire.delay()), NetworkEvent::Arrive(packet));
    }

    /// Sends what is next, at a port that is free.
    fn start(
        &mut self,
        now: Picoseconds,
        index: u32,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        let port = &mut self.ports[index as usize];
        debug_assert!(port.busy_until <= now && !port.is_awaited);
        let is_note = if let Some(Note { queue, is_pause }) = port.rest().notes.pop_front() {
            let wire = self.wires[port.wire as usize];
            port.busy_until = now.after(wire.time(NOTE));
            let at = port.busy_until.after(wire.delay());
            later(at, NetworkEvent::Pause { port: PortId(index ^ 1), queue, is_pause });
            true
        } else if let Some(packet) = port.pop(self.rules.weights) {
            self.transmit(now, index, packet, later);
            false
        } else {
            return;
        };
        // With pauses, what leaves is to be counted out at once: a neighbour may wait for it.
        let port = &mut self.ports[index as usize];
        if is_note || self.rules.pause.is_some() || port.is_ready() {
            port.is_awaited = true;
            later(port.busy_until, NetworkEvent::Free(PortId(index)));
        }
    }

    /// Sees to it that a port with something to send sends it when it can.
    fn nudge(
        &mut self,
        now: Picoseconds,
        index: u32,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        let port = &mut self.ports[index as usize];
        if port.is_awaited {
            return;
        }
        if port.busy_until <= now {
            self.start(now, index, later);
        } else {
            port.is_awaited = true;
            later(port.busy_until, NetworkEvent::Free(PortId(index)));
        }
    }

    /// Counts in what a switch has taken from a neighbour, and sends it a pause if it is too much.
    fn come_in(
        &mut self,
        now: Picoseconds,
        packet: &Packet,
        pause: Pause,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        let (port, queue) = (self.came_by(packet), self.rules.service.queue(packet.class));
        let count = &mut self.ingress[port as usize].queues[queue];
        count.bytes += u64::from(packet.wire);
        if count.bytes >= pause.at.0 && !count.is_paused {
            count.is_paused = true;
            self.send_note(now, port, Note { queue: queue as u8, is_pause: true }, later);
        }
    }

    /// Counts out what a switch has sent on, and sends a resume to the neighbour that it came from.
    fn go_out(
        &mut self,
        now: Picoseconds,
        left: Leaving,
        pause: Pause,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        let queue = self.rules.service.queue(left.class);
        let count = &mut self.ingress[left.ingress as usize].queues[queue];
        count.bytes -= u64::from(left.wire);
        if count.bytes <= pause.resume.0 && count.is_paused {
            count.is_paused = false;
            self.send_note(now, left.ingress, Note { queue: queue as u8, is_pause: false }, later);
        }
    }

    fn send_note(
        &mut self,
        now: Picoseconds,
        port: u32,
        note: Note,
        later: &mut impl FnMut(Picoseconds, NetworkEvent),
    ) {
        self.ports[port as usize].rest().notes.push_back(note);
        self.nudge(now, port, later);
    }
}

/// The number of a wire in a list, to which it is added if it is not there.
fn number_of(wires: &mut Vec<Wire>, wire: Wire) -> u32 {
    let number = wires.iter().position(|other| *other == wire).unwrap_or_else(|| {
        wires.push(wire);
        wires.len() - 1
    });
    number as u32
}

impl Rules {
    fn new(switch: &Switch) -> Self {
        let Switch { service, marking, pause, .. } = *switch;
        let weights =
            if let PortService::Weighted(weights) = service { Some(weights) } else { None };
        let is_ordered = service == PortService::Fifo && pause.is_none();
        let is_computed = is_ordered && !switch.departure_events;
        Self { service, weights, marking, reserve: switch.reserve.0, pause, is_computed }
    }

    /// How much a port with so much urgent takes of the shared part for it.
    #[inline]
    const fn beyond_reserve(&self, urgent: u64) -> u64 {
        urgent.saturating_sub(self.reserve)
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
