//! Races of monitors that start again, stand still or are two: R12 to R14.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::monitor::Denied;
use tidegate_onesided::haechi::words::{self, Pool};
use tidegate_onesided::haechi::{Monitor, MonitorEvent, TICK, region_layout};
use tidegate_onesided::one_sided::Operation;

use crate::memory::Node;
use crate::world::{CAPACITY, HaechiSim, PERIOD, WINDOW, percent, reserve, settings, slack};

const RULES: [Rules; 2] = [Rules::SOUND, Rules::UNPACED];

/// A monitor takes over, and the one before it goes on: it finds out by its next tick, makes
/// nothing, and what was promised and learned goes on.
#[test]
fn r12_a_second_monitor_stops_the_first() {
    for rules in RULES {
        for at in [10, 35, 60, 85] {
            let limited = Promise { reservation: 3_000, limit: 4_000 };
            let mut world = HaechiSim::new(rules, &[reserve(3_000), limited]);
            world.node.set(region_layout::LEARNED, 0);
            world.run_into_next(Span::ZERO);
            world.run_into_next(percent(at));
            let (before, epoch) = (world.issued(), world.epoch());
            let (mut former, _) = world.take_over();
            let (mut events, mut rounds) = (Vec::new(), 0);
            world.step();
            assert_eq!(world.epoch(), words::next(epoch), "its period begins at once");
            while !events.contains(&MonitorEvent::Superseded) {
                world.step();
                former.poll(world.now, &mut events).unwrap();
                rounds += 1;
                assert!(rounds < 50, "{rules:?}: it does not notice");
            }
            assert_eq!(former.next_deadline(), Time::MAX);
            world.run_into_next(Span::ZERO);
            let issued = world.issued() - before;
            // A client hears of it when it next asks the pool, or at the end of its own period, and
            // has until then what it had left.
            let left = if rules.paces { 0 } else { 6_000 * (100 - at) / 100 };
            assert!(issued <= CAPACITY + left + 2 * slack(2), "{rules:?}, {at}: {issued}");
            assert_eq!(world.monitor.promise(0), Some(reserve(3_000)));
            assert_eq!(world.monitor.promise(1), Some(limited));
            assert_eq!(world.monitor.capacity(), CAPACITY);
            let issued = world.issued_in(3);
            assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
            assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
            world.check_books();
        }
    }
}

/// The former monitor has looked at the pool before, and adds to it after: these tokens belong to
/// no client, and are taken away again.
#[test]
fn r12_what_a_former_monitor_still_adds_is_taken_away() {
    let mut world = HaechiSim::new(Rules::SOUND, &[reserve(1_000), reserve(1_000)]);
    world.run_into_next(percent(40));
    world.lever.hold();
    let is_change = |one: &Operation| matches!(one, Operation::FetchAdd { add, .. } if *add != 0);
    while !world.lever.pending().iter().any(is_change) {
        world.now = world.now.after(TICK);
        world.monitor.poll(world.now, &mut world.events).unwrap();
        while !world.lever.pending().iter().any(is_change) && world.lever.step() {}
        world.monitor.poll(world.now, &mut world.events).unwrap();
    }
    let (mut former, lever) = world.take_over();
    // No client takes anything while this goes on.
    world.clients.iter_mut().for_each(|client| client.is_stopped = true);
    world.run(Span(3 * TICK.0));
    world.node.set(region_layout::POOL, world.node.word(region_layout::POOL) + 3_000);
    lever.go();
    let foreign = world.pool().tokens;
    assert!(foreign > 3_000);
    world.run(Span(2 * TICK.0));
    assert!(world.pool().tokens < 1_000, "{}", world.pool().tokens);
    let mut events = Vec::new();
    former.poll(world.now.after(TICK), &mut events).unwrap();
    former.poll(world.now.after(Span(2 * TICK.0)), &mut events).unwrap();
    assert_eq!(events, [MonitorEvent::Superseded]);
}

/// Both begin a period at the same time, and the pool is of neither: the one that has the lease
/// begins another.
#[test]
fn r12_two_monitors_that_begin_together_leave_one_pool() {
    let mut world = HaechiSim::new(Rules::SOUND, &[reserve(1_000), reserve(1_000)]);
    world.run_into_next(Span::ZERO);
    // The former has read the lease, found that its period is over, and is about to begin.
    let is_write = |one: &Operation| matches!(one, Operation::Write { .. });
    world.lever.hold();
    while !world.lever.pending().iter().any(is_write) {
        while !world.lever.pending().iter().any(is_write) && world.lever.step() {}
        world.now = world.now.after(Span(TICK.0 / 4));
        world.monitor.poll(world.now, &mut world.events).unwrap();
    }
    let (mut former, lever) = world.take_over();
    world.run(Span(3 * TICK.0));
    lever.go();
    let mut events = Vec::new();
    for _ in 0..8 {
        world.run(TICK);
        former.poll(world.now, &mut events).unwrap();
    }
    assert!(events.contains(&MonitorEvent::Superseded));
    assert!(world.pool().is_of(world.epoch()));
    let issued = world.issued_in(3);
    assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
    assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
}

/// A client comes when another monitor has begun, and has not polled yet: it has a session slot of
/// its own, beside those that the former gave. If the region has not answered yet, it is told to
/// ask again.
#[test]
fn r12_a_client_that_connects_during_a_takeover_has_a_session_slot() {
    for rules in RULES {
        let mut world = HaechiSim::new(rules, &[reserve(2_000), reserve(2_000)]);
        world.run_into_next(percent(40));
        let _former = world.take_over();
        world.join(reserve(1_000));
        assert_eq!(world.clients[2].session_slot, 2);
        world.issued_in(2);
        let promises = [0, 1, 2].map(|session_slot| world.monitor.promise(session_slot));
        assert_eq!(promises, [2_000, 2_000, 1_000].map(|all| Some(reserve(all))));
        for (client, promised) in world.clients.iter().zip([2_000, 2_000, 1_000]) {
            assert!(client.port.balance().promise() == reserve(promised), "{rules:?}");
        }
        let mut late = HaechiSim::new(rules, &[reserve(2_000)]);
        late.run_into_next(percent(40));
        let (wire, lever) = late.node.connect();
        lever.hold();
        let next = Monitor::new(wire, settings(rules), late.now).map_err(|_| ()).unwrap();
        (late.monitor, late.lever) = (next, lever.clone());
        assert_eq!(late.monitor.admit(reserve(1)), Err(Denied::Opening));
        assert_eq!(late.monitor.renew(0, reserve(1)), Err(Denied::Opening));
        lever.go();
        late.step();
        assert_eq!(late.monitor.admit(reserve(1)), Ok(1));
    }
}

/// The monitor is gone: clients go on with what they are promised, and no more, without asking the
/// pool. When it is back, all is as before. Neither side spins meanwhile.
#[test]
fn r13_without_a_monitor_a_client_goes_on_with_its_reservation() {
    for rules in RULES {
        let mut world = HaechiSim::new(rules, &[reserve(3_000), reserve(2_000)]);
        world.run_into_next(percent(50));
        world.is_monitor_stopped = true;
        world.run(Span(3 * PERIOD.0));
        assert!(world.clients.iter().all(|client| client.port.is_alone()));
        let takes = |world: &HaechiSim| {
            let is_take = |one: &&Operation| matches!(one, Operation::FetchAdd { .. });
            world.clients[0].lever.log().iter().filter(is_take).count()
        };
        let (before, taken) = (world.issued(), takes(&world));
        world.run(Span(4 * PERIOD.0));
        let issued = world.issued() - before;
        assert!((4 * 5_000 - slack(2)..=5 * 5_000).contains(&issued), "{rules:?}: {issued}");
        assert_eq!(takes(&world), taken);
        // A client that waits for its deadlines only is not woken all the time.
        let client = &mut world.clients[1];
        client.wants = 0;
        let (end, mut rounds) = (world.now.after(PERIOD), 0);
        let mut now = world.now;
        while now < end {
            now = client.port.next_deadline().max(now.after(Span(1)));
            client.poll(now);
            rounds += 1;
        }
        assert!(rounds < 1_000, "{rules:?}: {rounds} turns");
        world.now = end;
        world.is_monitor_stopped = false;
        world.run(Span(2 * TICK.0));
        assert!(world.clients.iter().all(|client| !client.port.is_alone()));
        world.clients[1].wants = u64::MAX;
        let issued = world.issued_in(3);
        assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
        assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
    }
}

/// A client that slept for periods is not alone when it wakes: it looks first.
#[test]
fn r13_a_client_that_slept_is_not_alone() {
    let mut world = HaechiSim::new(Rules::UNPACED, &[reserve(3_000), reserve(2_000)]);
    world.run_into_next(percent(10));
    world.clients[0].is_stopped = true;
    world.run(Span(3 * PERIOD.0 - PERIOD.0 / 5));
    let (before, lever) = (world.issued(), world.clients[0].lever.clone());
    world.clients[0].is_stopped = false;
    world.run(Span(20 * TICK.0));
    assert!(!world.clients[0].port.is_alone());
    world.run_into_next(Span::ZERO);
    assert!(world.issued() - before <= CAPACITY, "{}", lever.issued());
}

/// Periods' numbers come round in words of 12 and of 16 bits, without any effect.
#[test]
fn r14_numbers_of_periods_come_round() {
    for (rules, first) in RULES.into_iter().flat_map(|rules| [(rules, 4_092), (rules, 65_532)]) {
        let node = Node::new();
        // As a monitor would have left it.
        node.set(region_layout::HEADER, region_layout::MAGIC);
        node.set(region_layout::LAYOUT, region_layout::VERSION);
        node.set(region_layout::POOL, Pool::word(first, 0));
        let mut world = HaechiSim::on(node, rules, &[]);
        world.step();
        world.join(reserve(3_000));
        world.join(reserve(2_000));
        world.run_into_next(Span::ZERO);
        let mut last = world.epoch();
        let numbers: Vec<_> = (0..6)
            .map(|_| {
                let before = world.issued();
                world.run_into_next(Span::ZERO);
                let issued = world.issued() - before;
                assert!((CAPACITY - slack(2)..=CAPACITY + slack(2)).contains(&issued), "{issued}");
                assert_eq!(world.epoch(), words::next(last));
                last = world.epoch();
                for session_slot in 0..2 {
                    let line = region_layout::line(region_layout::GRANTS, session_slot);
                    assert_ne!(world.node.word(line) >> 48 & 0xFFF, 0);
                }
                last
            })
            .collect();
        // One was left out.
        assert_eq!(numbers[5] - numbers[0], 6, "{numbers:?}");
        for summary in world.summaries().skip(2) {
            let done = summary.session_slots.iter().flatten().map(|(_, outcome)| outcome.completed);
            assert!(done.sum::<u64>() + slack(2) >= CAPACITY, "{summary:?}");
        }
        world.check_books();
        assert_eq!(WINDOW, 8);
    }
}
