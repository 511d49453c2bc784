//! Invariants over random networks and random traffic.

use super::*;

/// A small network, and what is sent over it.
#[derive(Clone, Debug)]
struct Case {
    topology: Topology,
    /// Source, target and class.
    flows: Vec<(u32, u32, Class)>,
    /// When, of which flow, and how large.
    sends: Vec<(u64, usize, u16)>,
    incapable: bool,
}

impl Case {
    fn world(&self, switch: &Switch) -> TestNetwork {
        let mut world = TestNetwork::new(&self.topology, switch);
        let ends = self.flows.iter().enumerate();
        let paths =
            ends.map(|(flow, (source, target, _))| world.connect(flow as u32, *source, *target));
        let paths: Vec<Path> = paths.collect();
        let mark = if self.incapable { Mark::Incapable } else { Mark::Clear };
        let mut sends = self.sends.clone();
        sends.sort_unstable();
        for (number, (at, flow, wire)) in (0..).zip(sends) {
            let flow = flow % self.flows.len();
            let sent = packet(flow as u32, paths[flow].there, wire, self.flows[flow].2);
            world.send(at, Packet { sequence: number, mark, ..sent });
        }
        world
    }
}

/// One to four switches in a tree, with or without another way round; hosts at any of them. Rates
/// are crooked, so that packets hardly ever meet in one picosecond.
fn topology(circles: bool) -> impl Strategy<Value = Topology> {
    let rate = 1_000_000_000u64..4_000_000_000;
    let hosts = prop::collection::vec((0usize..4, rate.clone(), 0u64..3_000), 2..6);
    let links = prop::collection::vec((0usize..4, rate, 0u64..3_000), 3..6);
    (1usize..5, hosts, links).prop_map(move |(switches, hosts, links)| {
        let name = |kind: &str, number: usize| format!("{kind}{number}");
        let cable = |one: String, other: String, rate, delay| Cable {
            between: [one, other],
            rate: Rate(rate),
            delay: Span(delay),
        };
        let mut cables = Vec::new();
        for (host, (at, rate, delay)) in hosts.iter().enumerate() {
            cables.push(cable(name("h", host), name("s", at % switches), *rate, *delay));
        }
        for (number, (other, rate, delay)) in links.iter().enumerate() {
            // The first ones make a tree, the others circles.
            let (one, other) = (number + 1, other % switches.min(number + 1));
            if one < switches {
                cables.push(cable(name("s", one), name("s", other), *rate, *delay));
            } else if circles && one % switches != other {
                cables.push(cable(name("s", one % switches), name("s", other), *rate, *delay));
            }
        }
        Topology::List(ListedTopology {
            hosts: (0..hosts.len()).map(|host| name("h", host)).collect(),
            switches: (0..switches).map(|switch| name("s", switch)).collect(),
            links: cables,
        })
    })
}

fn case(circles: bool) -> impl Strategy<Value = Case> {
    let flow = (0u32..6, 1u32..6, 0usize..4);
    let flows = prop::collection::vec(flow, 1..6);
    let sends = prop::collection::vec((0u64..4_000_000, 0usize..6, 64u16..9_000), 1..120);
    let all = (topology(circles), flows, sends, prop::bool::weighted(0.2));
    all.prop_map(|(topology, flows, sends, incapable)| {
        let hosts = topology.graph().unwrap().hosts() as u32;
        let flows = flows.into_iter().map(|(source, distance, class)| {
            let (source, distance) = (source % hosts, 1 + distance % (hosts - 1));
            (source, (source + distance) % hosts, CLASSES[class])
        });
        Case { flows: flows.collect(), topology, sends, incapable }
    })
}

fn service() -> impl Strategy<Value = PortService> {
    prop_oneof![
        2 => Just(PortService::Fifo),
        1 => Just(PortService::UrgentFirst),
        1 => [1u16..5, 1u16..5, 1u16..5].prop_map(PortService::Weighted),
    ]
}

/// Buffers of a few packets to some hundred, so that there is loss, and there is none.
fn switch() -> impl Strategy<Value = Switch> {
    let share = prop_oneof![
        Just(BufferShare::Whole),
        (5_000u64..100_000).prop_map(|limit| BufferShare::Limit(Bytes(limit))),
        (16u32..1_024).prop_map(|parts| BufferShare::Dynamic(Factor(parts))),
    ];
    let marking = prop_oneof![
        Just(Marking::None),
        (1u32..30).prop_map(|packets| Marking::Step(Depth::Packets(packets))),
        (1u64..60_000).prop_map(|bytes| Marking::Step(Depth::Bytes(Bytes(bytes)))),
        (0u64..10_000, 1u64..30_000, 0u32..1_000_000).prop_map(|(from, more, most)| {
            let (from, to) = (Bytes(from), Bytes(from + more));
            Marking::Red(Red { from, to, most: Portion(most) })
        }),
    ];
    let all = (60_000u64..500_000, 0u64..6_000, share, service(), marking);
    all.prop_map(|(buffer, reserve, share, service, marking)| {
        let (buffer, reserve) = (Bytes(buffer), Bytes(reserve));
        Switch { buffer, reserve, share, service, marking, pause: None, departure_events: false }
    })
}

/// Whether arrivals met in one picosecond, the arrived packets with times, and all counters.
fn outcome(mut world: TestNetwork) -> (bool, Vec<(Picoseconds, Packet)>, Vec<Counters>) {
    world.run();
    world.now = Picoseconds::SECOND;
    let counters = world.counters();
    (world.met, world.arrived, counters)
}

proptest! {
    /// Nothing is lost or made up, no buffer holds more than it can, no flow is reordered, and
    /// nothing is faster than its path.
    #[test]
    fn whatever_happens_adds_up(case in case(true), switch in switch()) {
        let mut world = case.world(&switch);
        world.run();
        let mut last = vec![None; case.flows.len()];
        for (at, packet) in &world.arrived {
            let last = &mut last[packet.flow.0 as usize];
            prop_assert!(*last < Some(packet.sequence));
            *last = Some(packet.sequence);
            // The hop behind the path's last port; its first is found from there.
            let first = (0..packet.route).rev().take_while(|hop| {
                world.network.paths.port(*hop) != END
            });
            let least = world.network.unloaded(first.last().unwrap(), packet.wire);
            prop_assert!(at.since(packet.sent) >= least);
        }
    }

    /// One event for each hop, and two: the same, where no packets meet in one picosecond.
    #[test]
    fn departures_can_be_computed(case in case(true), switch in switch()) {
        let switch = Switch { service: PortService::Fifo, ..switch };
        let computed = outcome(case.world(&switch));
        let events = outcome(case.world(&Switch { departure_events: true, ..switch }));
        prop_assume!(!computed.0);
        prop_assert_eq!(computed.1, events.1);
        prop_assert_eq!(computed.2, events.2);
    }

    /// A packet is marked exactly if it finds a queue of K packets: those whose last bit has not
    /// left. The oracle is a list of all departures.
    #[test]
    fn marks_are_those_of_the_step(
        limit in 1u32..12,
        mut sends in prop::collection::vec((0u64..3_000_000, 100u16..3_000), 1..80),
    ) {
        let marking = Marking::Step(Depth::Packets(limit));
        let mut world = TestNetwork::new(&star(2), &Switch { marking, ..plain() });
        // Straight into the switch: no two packets would meet behind one NIC.
        let path = world.connect(0, 0, 1);
        sends.sort_unstable();
        let mut departures: Vec<u64> = Vec::new();
        let mut expected = Vec::new();
        for (at, wire) in sends {
            world.send(at, packet(0, path.there + 1, wire, Class::Low));
            let found = departures.iter().filter(|departure| **departure > at).count();
            expected.push(found >= limit as usize);
            let start = departures.last().map_or(at, |last| at.max(*last));
            departures.push(start + u64::from(wire) * 80);
        }
        world.run();
        let marked = world.arrived.iter().map(|(_, packet)| packet.mark == Mark::Congested);
        prop_assert_eq!(marked.collect::<Vec<_>>(), expected);
    }

    /// An urgent packet that meets no other urgent one waits for at most one packet at each port,
    /// however much of the other classes waits there.
    #[test]
    fn urgent_waits_for_one_packet_at_each_port(
        weighted: bool,
        sends in prop::collection::vec((0u64..20_000_000, 0u32..3, 64u16..1_502), 50..300),
    ) {
        let service = match weighted {
            true => PortService::Weighted([3, 2, 1]),
            false => PortService::UrgentFirst,
        };
        let mut world = TestNetwork::new(&star(4), &Switch { service, ..plain() });
        let paths: Vec<Path> = (0..3).map(|flow| world.connect(flow, flow, 3)).collect();
        for (at, flow, wire) in sends {
            let class = CLASSES[flow as usize + 1];
            world.send(at, packet(flow, paths[flow as usize].there, wire, class));
        }
        for number in 0..10 {
            let urgent = packet(0, paths[0].there, 200, Class::Urgent);
            world.send(2_000_001 * number, urgent);
        }
        world.run();
        let most = world.network.unloaded(paths[0].there, 200).0 + 2 * 1_502 * 80;
        let urgent = world.arrived.iter().filter(|(_, packet)| packet.class == Class::Urgent);
        let times: Vec<u64> = urgent.map(|(at, packet)| at.since(packet.sent).0).collect();
        prop_assert_eq!(times.len(), 10);
        prop_assert!(times.iter().all(|time| *time <= most), "{:?}", times);
    }

    /// Whichever queue keeps the events, the run is the same.
    #[test]
    fn heap_and_wheel_agree(case in case(true), switch in switch()) {
        let mut world = case.world(&switch);
        let mut heap = Heap::default();
        while let Some((at, sim_event)) = world.events.pop() {
            heap.push(at, sim_event);
        }
        let mut arrived = Vec::new();
        while let Some((now, sim_event)) = heap.pop() {
            let later = &mut |at, event| heap.push(at, SimEvent::Network(event));
            match sim_event {
                SimEvent::Send(packet) => {
                    world.network.send(now, Packet { sent: now, ..packet }, later);
                }
                SimEvent::Network(event) => {
                    let packet = world.network.on_event(now, event, later);
                    arrived.extend(packet.map(|packet| (now, packet)));
                }
            }
        }
        prop_assert_eq!(arrived, outcome(case.world(&switch)).1);
    }

    /// Pauses lose nothing where no circle can arise, whatever the thresholds, because headroom is
    /// computed.
    #[test]
    fn pauses_lose_nothing(
        case in case(false), service in service(), at in 1u64..40_000, part in 0u64..100,
    ) {
        let pause = Some(Pause { at: Bytes(at), resume: Bytes(at * part / 100), headroom: None });
        let switch = Switch { service, pause, ..Switch::plain(Bytes(20_000_000)) };
        let mut world = case.world(&switch);
        world.run();
        prop_assert_eq!(world.network.counts().dropped, 0);
    }
}

/// Saturated queues get bytes by their weights, whatever the sizes of their packets.
#[test]
fn weights_are_shares_of_bytes() {
    let service = PortService::Weighted([3, 2, 1]);
    let mut world = TestNetwork::new(&star(4), &Switch { service, ..plain() });
    for flow in 0..3u32 {
        let path = world.connect(flow, flow, 3);
        let wire = [300, 9_000, 1_500][flow as usize];
        let class = CLASSES[flow as usize + 1];
        let count = 3_000_000 / u64::from(wire);
        (0..count).for_each(|_| world.send(0, packet(flow, path.there, wire, class)));
    }
    let end = Picoseconds(300_000_000);
    while world.now < end && world.step() {}
    let bytes = CLASSES.map(|class| world.network.counters(end, PortId(7), class).bytes);
    let whole: u64 = bytes.iter().sum();
    assert!(whole > 3_600_000, "{bytes:?}");
    for (class, weight) in [(1, 3), (2, 2), (3, 1)] {
        // Off by at most a round and a packet of each class.
        assert!(bytes[class].abs_diff(whole * weight / 6) <= 20_000, "{bytes:?}");
    }
}

/// Urgent packets have the reserve to themselves, however full the rest is; the rest they share.
#[test]
fn the_reserve_is_for_urgent_packets() {
    let switch = Switch { reserve: Bytes(10_000), ..Switch::plain(Bytes(100_000)) };
    let mut world = TestNetwork::new(&star(4), &switch);
    let paths = [0, 1, 2].map(|flow| world.connect(flow, flow, 3));
    for number in 0..200 {
        for flow in [0u32, 1] {
            world.send(number, packet(flow, paths[flow as usize].there, 1_000, Class::Low));
        }
    }
    for number in 0..20 {
        // When 60 of 160 have left for good, and 60 wait: the shared part is full.
        world.send(8_000_000 + number, packet(2, paths[2].there, 1_000, Class::Urgent));
    }
    world.run();
    let counters = world.network.counters(world.now, PortId(7), Class::Low);
    assert_eq!(counters.most_bytes, 60_000);
    assert!(counters.dropped > 100, "{counters:?}");
    let urgent = world.network.counters(world.now, PortId(7), Class::Urgent);
    assert!(urgent.most_bytes >= 10_000 && urgent.packets >= 10, "{urgent:?}");
    // Ten that find nothing else free fit, and one that is being sent makes room for one more.
    assert!(urgent.most_bytes <= 12_000, "{urgent:?}");
}

/// With a factor of one, a single busy queue takes half of the buffer, and two take a third each.
#[test]
fn a_dynamic_share_keeps_some_free() {
    for (targets, expected) in [(1u32, 150_000), (2, 100_000)] {
        let share = BufferShare::Dynamic(Factor::ONE);
        let mut world =
            TestNetwork::new(&star(8), &Switch { share, ..Switch::plain(Bytes(300_000)) });
        for flow in 0..6u32 {
            let path = world.connect(flow, flow, 6 + flow % targets);
            for _ in 0..400 {
                world.send(0, packet(flow, path.there, 1_000, Class::Low));
            }
        }
        world.run();
        for target in 0..targets {
            let port = PortId(2 * (6 + target) + 1);
            let counters = world.network.counters(world.now, port, Class::Low);
            assert_eq!(counters.most_bytes, expected, "{targets}: {counters:?}");
        }
    }
}
