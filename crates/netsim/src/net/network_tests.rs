//! Invariants of the network, against oracles too simple to be wrong.

use std::fmt::Write as _;

use proptest::prelude::*;
use tidegate_model::{Bytes, Portion, Rate, Span};

use super::super::packet::PacketKind;
use super::super::switch::{BufferShare, Factor, Red};
use super::super::{Cable, Line, ListedTopology, Star, Topology};
use super::*;
use tidegate_sim::event::{EventQueue, Heap, Wheel};

#[path = "network_invariants_tests.rs"]
mod invariants;
#[path = "network_pauses_tests.rs"]
mod pauses;

enum SimEvent {
    Network(NetworkEvent),
    Send(Packet),
}

/// A network, its queue of events, and what has arrived.
struct TestNetwork {
    network: Network,
    events: Wheel<SimEvent>,
    now: Picoseconds,
    arrived: Vec<(Picoseconds, Packet)>,
    /// Whether two packets reached nodes at the same time.
    met: bool,
    last: Picoseconds,
}

impl TestNetwork {
    fn new(topology: &Topology, switch: &Switch) -> Self {
        let graph = topology.graph().unwrap();
        let network = Network::new(&graph, switch, 7).unwrap();
        let (now, last) = (Picoseconds::ZERO, Picoseconds::MAX);
        Self { network, events: Wheel::default(), now, arrived: Vec::new(), met: false, last }
    }

    fn connect(&mut self, flow: u32, source: u32, target: u32) -> Path {
        self.network.connect(FlowId(flow), Host(source), Host(target))
    }

    fn send(&mut self, at: u64, packet: Packet) {
        self.events.push(Picoseconds(at), SimEvent::Send(packet));
    }

    /// Lets one thing happen.
    fn step(&mut self) -> bool {
        let Some((now, sim_event)) = self.events.pop() else { return false };
        self.now = now;
        let events = &mut self.events;
        let later = &mut |at, event| events.push(at, SimEvent::Network(event));
        match sim_event {
            SimEvent::Send(packet) => {
                let packet = Packet { sent: now, ..packet };
                self.network.send(now, packet, later);
            }
            SimEvent::Network(event) => {
                if let NetworkEvent::Arrive(_) = event {
                    self.met |= self.last == now;
                    self.last = now;
                }
                let arrived = self.network.on_event(now, event, later);
                self.arrived.extend(arrived.map(|packet| (now, packet)));
            }
        }
        true
    }

    /// Lets everything happen, and checks everything each time.
    fn run(&mut self) {
        while self.step() {
            self.network.check().unwrap();
        }
        let PacketCounts { sent, delivered, dropped, on_lines } = self.network.counts();
        assert_eq!((sent, on_lines), (delivered + dropped, 0));
        assert_eq!(delivered, self.arrived.len() as u64);
    }

    /// All that all ports have counted, for all classes together.
    fn counters(&mut self) -> Vec<Counters> {
        let ports = 0..2 * self.network.paths.graph().links().len() as u32;
        let each = ports.flat_map(|port| CLASSES.map(|class| (PortId(port), class)));
        each.map(|(port, class)| self.network.counters(self.now, port, class)).collect()
    }
}

const CLASSES: [Class; 4] = [Class::Urgent, Class::High, Class::Medium, Class::Low];

const fn packet(flow: u32, route: u32, wire: u16, class: Class) -> Packet {
    Packet {
        sequence: 0,
        sent: Picoseconds::ZERO,
        flow: FlowId(flow),
        route,
        ahead: 0,
        payload: wire,
        wire,
        kind: PacketKind::Data,
        class,
        mark: Mark::Clear,
    }
}

const fn line(rate: u64, delay: u64) -> Line {
    Line { rate: Rate(rate), delay: Span(delay) }
}

/// 100 Gbit/s and 1 us: a byte takes 80 ps.
const FAST: Line = line(12_500_000_000, 1_000);

const fn star(hosts: u32) -> Topology {
    Topology::Star(Star { hosts, line: FAST })
}

const fn plain() -> Switch {
    Switch::plain(Bytes(10_000_000))
}

/// An answer's mark is its receiver's word. A switch that set it where answers wait would tell the
/// sender of congestion that its data never met.
#[test]
fn data_are_marked_and_answers_are_not() {
    let marking = Marking::Step(Depth::Packets(0));
    let mut world = TestNetwork::new(&star(2), &Switch { marking, ..plain() });
    let Path { there, .. } = world.connect(0, 0, 1);
    for (at, kind) in [PacketKind::Data, PacketKind::Acknowledgement, PacketKind::Notification]
        .into_iter()
        .enumerate()
    {
        world.send(at as u64, Packet { kind, ..packet(0, there, 54, Class::High) });
    }
    world.run();
    let marks = world.arrived.iter().map(|(_, packet)| packet.mark);
    assert_eq!(marks.collect::<Vec<_>>(), [Mark::Congested, Mark::Clear, Mark::Clear]);
}

/// Exact to the picosecond: when packets of 1,502 and 54 bytes get through three hops, one behind
/// the other and against each other.
#[test]
fn times_are_exact() {
    let dumbbell = super::super::Dumbbell {
        pairs: 1,
        edge: line(12_500_000_000, 1_250),
        middle: line(3_000_000_000, 10_000),
    };
    for departure_events in [false, true] {
        let switch = Switch { departure_events, ..plain() };
        let mut world = TestNetwork::new(&Topology::Dumbbell(dumbbell.clone()), &switch);
        let path = world.connect(0, 0, 1);
        for sequence in 0..3 {
            let data = packet(0, path.there, 1_502, Class::Low);
            world.send(0, Packet { sequence, ..data });
        }
        world.send(1, packet(0, path.back, 54, Class::Low));
        world.run();
        let mut table = String::new();
        for (at, packet) in &world.arrived {
            let _ = writeln!(table, "{:>4} {} {:>9}ps", packet.wire, packet.sequence, at.0);
        }
        // 4,320 + 1,250,000 + 18,000 + 10,000,000 + 4,320 + 1,250,000, sent at 1.
        // 120,160 + 1,250,000 + 500,667 + 10,000,000 + 120,160 + 1,250,000; then each 500,667.
        let expected = "  54 0  12526641ps\n1502 0  13240987ps\n1502 1  13741654ps\n\
                        1502 2  14242321ps\n";
        assert_eq!(table, expected);
        assert_eq!(world.network.unloaded(path.there, 1_502), Picoseconds(13_240_987));
        assert_eq!(world.network.unloaded(path.back, 54), Picoseconds(12_526_640));
    }
}

/// A line that is offered 190 % is busy without a gap, and counts what it did.
#[test]
fn a_saturated_line_is_never_idle() {
    for service in [PortService::Fifo, PortService::UrgentFirst, PortService::Weighted([3, 2, 1])] {
        let mut world = TestNetwork::new(&star(4), &Switch { service, ..plain() });
        for flow in 0..3 {
            let path = world.connect(flow, flow, 3);
            let class = CLASSES[flow as usize + 1];
            let (count, gap) = [(450, 133_333), (300, 200_000), (150, 400_000)][flow as usize];
            for number in 0..count {
                let at = number * gap;
                world.send(at, packet(flow, path.there, 1_500, class));
            }
        }
        world.run();
        let (first, _) = world.arrived[0];
        let (last, _) = world.arrived[899];
        // 899 packets of 120,000 ps after the first.
        assert_eq!(last.since(first), Picoseconds(899 * 120_000));
        let counters = world.counters();
        // The switch's port to host 3 is port 7.
        let bytes: u64 = counters[28..].iter().map(|counters| counters.bytes).sum();
        assert_eq!(bytes, 900 * 1_500);
        let most: u64 = counters[28..].iter().map(|counters| counters.most_bytes).sum();
        assert!(most > 300_000, "{most}");
    }
}

/// Two packets of 1,000 bytes at once: held are 2,000 bytes for 80 ns, then 1,000 for 80 ns.
#[test]
fn the_mean_queue_is_an_integral() {
    for departure_events in [false, true] {
        let mut world = TestNetwork::new(&star(3), &Switch { departure_events, ..plain() });
        let paths = [world.connect(0, 0, 2), world.connect(1, 1, 2)];
        for (flow, path) in (0..).zip(paths) {
            world.send(0, packet(flow, path.there, 1_000, Class::Medium));
        }
        world.run();
        let end = Picoseconds(4_000_000);
        let counters = world.network.counters(end, PortId(5), Class::Medium);
        assert_eq!(counters.mean_bytes, (2_000.0 * 80e3 + 1_000.0 * 80e3) / 4e6);
        assert_eq!((counters.most_bytes, counters.packets), (2_000, 2));
        let other = world.network.counters(end, PortId(5), Class::High);
        assert_eq!(other, Counters::default());
    }
}

/// Of flows between two hosts of different pods, each of the (k/2)² paths gets its part, within
/// four and a half standard deviations: 1 in 147,000 for each if the draw is fair, and the seed
/// stands.
#[test]
fn flows_are_spread_evenly() {
    for (k, flows) in [(4u32, 4_000u32), (8, 8_000)] {
        let tree = super::super::FatTree { ports: k, line: FAST };
        let mut world = TestNetwork::new(&Topology::FatTree(tree), &plain());
        let last = k * k * k / 4 - 1;
        let mut counts = std::collections::BTreeMap::new();
        for flow in 0..flows {
            let path = world.connect(flow, 0, last);
            for hop in [path.there, path.back] {
                let ports: Vec<_> = world.network.ports_of(hop).collect();
                assert_eq!(ports.len(), 6);
                *counts.entry(ports).or_insert(0u32) += 1;
            }
        }
        let choices = k * k / 4;
        assert_eq!(counts.len(), 2 * choices as usize);
        let part = 1.0 / f64::from(choices);
        let mean = f64::from(flows) * part;
        let bound = 4.5 * (mean * (1.0 - part)).sqrt();
        assert!(
            counts.values().all(|count| (f64::from(*count) - mean).abs() < bound),
            "{counts:?}"
        );
    }
}

/// Paths depend on the seed and on the flow, and on nothing else.
#[test]
fn paths_are_drawn_by_flow() {
    let tree = Topology::FatTree(super::super::FatTree { ports: 8, line: FAST });
    let graph = tree.graph().unwrap();
    let paths = |seed, flows: &[u32]| {
        let mut network = Network::new(&graph, &plain(), seed).unwrap();
        let each = flows.iter().map(|flow| {
            let path = network.connect(FlowId(*flow), Host(0), Host(127));
            network.ports_of(path.there).collect::<Vec<_>>()
        });
        each.collect::<Vec<_>>()
    };
    assert_eq!(paths(1, &[1, 2, 3, 4])[2..], paths(1, &[3, 4]));
    assert_ne!(paths(1, &[1, 2, 3, 4]), paths(2, &[1, 2, 3, 4]));
}

#[test]
fn red_chooses_with_its_probability() {
    let red = Red { from: Bytes(5_000), to: Bytes(200_000), most: Portion(10_000) };
    let mut random = Stream::new(1, "port", 0);
    let mut count = |held| (0..100_000).filter(|_| red.chooses(held, &mut random)).count();
    assert_eq!(count(5_000), 0);
    assert_eq!(count(200_001), 100_000);
    // 1 % at the end, 0.5 % half-way: within five standard deviations of 32 and 22.
    assert!(count(200_000).abs_diff(1_000) < 160);
    assert!(count(102_500).abs_diff(500) < 110);
}

/// An event is no larger than its packet, so that a queue of them stays small.
#[test]
fn an_event_is_forty_bytes() {
    assert_eq!((size_of::<NetworkEvent>(), size_of::<Option<NetworkEvent>>()), (40, 40));
}
