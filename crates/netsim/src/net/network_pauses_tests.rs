//! Pauses: nothing is lost with the computed headroom, something is with less, and circles are
//! found.

use super::*;

/// Three hosts that send to a fourth as fast as they can, over a switch that pauses.
fn incast(headroom: Option<Bytes>, wire: u16) -> TestNetwork {
    let pause = Some(Pause { at: Bytes(50_000), resume: Bytes(40_000), headroom });
    let switch = Switch { pause, ..plain() };
    let mut world = TestNetwork::new(&star(4), &switch);
    for flow in 0..3 {
        let path = world.connect(flow, flow, 3);
        for _ in 0..2_000_000 / u32::from(wire) {
            world.send(0, packet(flow, path.there, wire, Class::Medium));
        }
    }
    world
}

/// The most that came in by one port and was in the switch.
fn most(world: &mut TestNetwork) -> u64 {
    let mut most = 0;
    while world.step() {
        let counts = world.network.ingress.iter().map(|ingress| ingress.queues[0].bytes);
        most = counts.max().max(Some(most)).unwrap_or(most);
    }
    most
}

#[test]
fn headroom_makes_it_lossless() {
    for wire in [200, 1_502, 9_000] {
        let mut world = incast(None, wire);
        let most = most(&mut world);
        let counts = world.network.counts();
        assert_eq!((counts.dropped, counts.sent), (0, counts.delivered));
        // 2 * 12,500 of the line, 64 of the note, 3 * 9,216 of packets.
        assert_eq!(world.network.ingress[1].headroom, 52_712);
        // Needed is what is under way for twice the delay, and hardly more: packets are small, and
        // no note waits behind data here.
        let needed = 50_000 + 25_000;
        assert!((needed - 1_000..needed + 2 * 9_000).contains(&most), "{wire}: {most}");
        for host in 0..3 {
            let nic = world.network.counters(world.now, PortId(2 * host), Class::Medium);
            // Each gets a third of the receiver's line, so it is paused for most of the time.
            let part = nic.paused.0 as f64 / world.now.0 as f64;
            assert!((0.55..0.7).contains(&part), "{part}");
        }
    }
}

#[test]
fn less_headroom_loses() {
    // Packets under way for twice the delay do not fit.
    let mut world = incast(Some(Bytes(24_000)), 1_502);
    let most = most(&mut world);
    assert!(most <= 74_000, "{most}");
    assert!(world.network.counts().dropped > 0);
    let mut world = incast(Some(Bytes(30_000)), 1_502);
    while world.step() {}
    assert_eq!(world.network.counts().dropped, 0);
}

/// A queue is paused, and the others of the line are not.
#[test]
fn pauses_are_by_class() {
    let pause = Some(Pause { at: Bytes(50_000), resume: Bytes(40_000), headroom: None });
    let service = PortService::Weighted([1, 1, 1]);
    let mut world = TestNetwork::new(&star(5), &Switch { pause, service, ..plain() });
    // Hosts 0 to 2 overload host 3 with low; host 0 sends a little of high to host 4 besides.
    for flow in 0..3 {
        let path = world.connect(flow, flow, 3);
        (0..1_000).for_each(|_| world.send(0, packet(flow, path.there, 1_502, Class::Low)));
    }
    let path = world.connect(3, 0, 4);
    for number in 0..100 {
        world.send(number * 1_000_000, packet(3, path.there, 1_502, Class::High));
    }
    world.run();
    assert_eq!(world.network.counts().dropped, 0);
    let least = world.network.unloaded(path.there, 1_502).0;
    let high = world.arrived.iter().filter(|(_, packet)| packet.class == Class::High);
    let waits: Vec<u64> = high.map(|(at, packet)| at.since(packet.sent).0 - least).collect();
    // Behind one packet of low at its NIC, and a note; the way from the switch is its own.
    assert!(waits.iter().all(|wait| *wait <= 120_160 + 2 * 5_120), "{waits:?}");
    let mut nic = |class| world.network.counters(world.now, PortId(0), class).paused.0;
    assert!(nic(Class::Low) > 0);
    assert_eq!(nic(Class::High), 0);
}

/// Five switches in a circle, a host at each that sends two switches on: the lines of the circle
/// are offered twice what they can carry, and each is paused by the next.
fn circle(at: u64) -> TestNetwork {
    let mut links = Vec::new();
    for node in 0..5 {
        let names = [format!("h{node}"), format!("s{node}"), format!("s{}", (node + 1) % 5)];
        let [host, one, other] = names;
        for between in [[host, one.clone()], [one, other]] {
            links.push(Cable { between, rate: FAST.rate, delay: FAST.delay });
        }
    }
    let names = |kind: &str| (0..5).map(|node| format!("{kind}{node}")).collect();
    let list = Topology::List(ListedTopology { hosts: names("h"), switches: names("s"), links });
    let pause = Some(Pause { at: Bytes(at), resume: Bytes(at / 2), headroom: None });
    let mut world = TestNetwork::new(&list, &Switch { pause, ..Switch::plain(Bytes(100_000_000)) });
    for flow in 0..5 {
        let path = world.connect(flow, flow, (flow + 2) % 5);
        (0..1_000).for_each(|_| world.send(0, packet(flow, path.there, 1_502, Class::Low)));
    }
    world
}

#[test]
fn a_circle_of_pauses_is_found() {
    let mut world = circle(50_000);
    let mut found = None;
    while world.step() {
        match world.network.check() {
            Ok(()) => assert_eq!(found, None, "what waits for good went on"),
            Err(fault) => _ = found.get_or_insert(fault),
        }
    }
    // Nothing happens any more, and packets are left.
    assert!(world.network.counts().delivered < 5_000);
    let Some(InvariantViolation::Deadlock(stuck)) = found else { panic!("{found:?}") };
    assert!(stuck.len() >= 5, "{stuck:?}");
    let text = world.network.check().unwrap_err().to_string();
    for node in 0..5 {
        assert!(text.contains(&format!("s{node} to s{} (queue 0);", (node + 1) % 5)), "{text}");
    }
    // With room for everything no port is paused, and none waits for good.
    let mut world = circle(5_000_000);
    while world.step() {}
    assert_eq!((world.network.check(), world.network.counts().delivered), (Ok(()), 5_000));
}

#[test]
fn a_buffer_without_space_for_headroom_is_refused() {
    let graph = star(4).graph().unwrap();
    let pause = Some(Pause { at: Bytes(100_000), resume: Bytes(90_000), headroom: None });
    let switch = Switch { pause, reserve: Bytes(1_000), ..Switch::plain(Bytes(614_847)) };
    // 4 * (100,000 + 52,712 + 1,000) = 614,848.
    let error = Network::new(&graph, &switch, 1).unwrap_err().to_string();
    assert!(error.contains("switch.buffer: \"switch 0\" sets 614848B aside"), "{error}");
    Network::new(&graph, &Switch { buffer: Bytes(614_848), ..switch }, 1).unwrap();
}
