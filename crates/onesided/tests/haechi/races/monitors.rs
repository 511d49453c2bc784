//! Races of monitors that start again, stand still or are two: R12 to R14.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::monitor::Denied;
use tidegate_onesided::haechi::words::{self, PoolWord};
use tidegate_onesided::haechi::{Monitor, MonitorEvent, TICK, region_layout};
use tidegate_onesided::one_sided::Operation;

use crate::memory::Node;
use crate::sim::{CAPACITY, HaechiSim, PERIOD, WINDOW, percent, reserve, settings, slack};

const RULES: [Rules; 2] = [Rules::SOUND, Rules::UNPACED];

/// A monitor takes over, and the one before it goes on: it finds out by its next tick, makes
/// nothing, and what was promised and learned goes on.
#[test]
fn r12_a_second_monitor_stops_the_first() {
    for rules in RULES {
        for at in [10, 35, 60, 85] {
            let limited = Promise { reservation: 3_000, limit: 4_000 };
            let mut sim = HaechiSim::new(rules, &[reserve(3_000), limited]);
            sim.node.set(region_layout::LEARNED, 0);
            sim.run_into_next(Span::ZERO);
            sim.run_into_next(percent(at));
            let (before, epoch) = (sim.issued(), sim.epoch());
            let (mut former, _) = sim.take_over();
            let (mut events, mut rounds) = (Vec::new(), 0);
            sim.step();
            assert_eq!(sim.epoch(), words::next(epoch), "its period begins at once");
            while !events.contains(&MonitorEvent::Superseded) {
                sim.step();
                former.poll(sim.now, &mut events).unwrap();
                rounds += 1;
                assert!(rounds < 50, "{rules:?}: it does not notice");
            }
            assert_eq!(former.next_deadline(), Time::MAX);
            sim.run_into_next(Span::ZERO);
            let issued = sim.issued() - before;
            // A client hears of it when it next asks the pool, or at the end of its own period, and
            // has until then what it had left.
            let left = if rules.paces { 0 } else { 6_000 * (100 - at) / 100 };
            assert!(issued <= CAPACITY + left + 2 * slack(2), "{rules:?}, {at}: {issued}");
            assert_eq!(sim.monitor.promise(SessionSlot(0)), Some(reserve(3_000)));
            assert_eq!(sim.monitor.promise(SessionSlot(1)), Some(limited));
            assert_eq!(sim.monitor.capacity(), CAPACITY);
            let issued = sim.issued_in(3);
            assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
            assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
            sim.check_account();
        }
    }
}

/// A client whose connection has ended, and one that has left by itself, have no session slot after
/// a takeover either: theirs are free at once, and no other client is refused.
#[test]
fn r12_slots_of_clients_that_have_left_are_free_after_a_takeover() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(1_000), reserve(1_000), reserve(1_000)]);
        sim.run_into_next(percent(20));
        sim.clients[0].is_stopped = true;
        sim.monitor.dismiss(SessionSlot(0));
        sim.clients[1].port.leave();
        // The node ends before the period does.
        let epoch = sim.epoch();
        sim.run(percent(40));
        assert_eq!((sim.epoch(), sim.monitor.slots().leaving), (epoch, 2), "{rules:?}");
        let _former = sim.take_over();
        sim.step();
        assert_ne!(sim.epoch(), epoch, "its period begins at once");
        let slots = sim.monitor.slots();
        assert_eq!((slots.taken, slots.leaving), (1, 0), "{rules:?}");
        let promise = |slot| sim.monitor.promise(SessionSlot(slot));
        assert_eq!([0, 1, 2].map(promise), [None, None, Some(reserve(1_000))]);
    }
}

/// The former monitor has looked at the pool before, and adds to it after: these tokens belong to
/// no client, and are taken away again.
#[test]
fn r12_what_a_former_monitor_still_adds_is_taken_away() {
    let mut sim = HaechiSim::new(Rules::SOUND, &[reserve(1_000), reserve(1_000)]);
    sim.run_into_next(percent(40));
    sim.lever.hold();
    let is_change = |one: &Operation| matches!(one, Operation::FetchAdd { add, .. } if *add != 0);
    while !sim.lever.pending().iter().any(is_change) {
        sim.now = sim.now.after(TICK);
        sim.monitor.poll(sim.now, &mut sim.events).unwrap();
        while !sim.lever.pending().iter().any(is_change) && sim.lever.step() {}
        sim.monitor.poll(sim.now, &mut sim.events).unwrap();
    }
    let (mut former, lever) = sim.take_over();
    // No client takes anything while this goes on.
    sim.clients.iter_mut().for_each(|client| client.is_stopped = true);
    sim.run(Span(3 * TICK.0));
    sim.node.set(region_layout::POOL, sim.node.word(region_layout::POOL) + 3_000);
    lever.go();
    let foreign = sim.pool().tokens;
    assert!(foreign > 3_000);
    sim.run(Span(2 * TICK.0));
    assert!(sim.pool().tokens < 1_000, "{}", sim.pool().tokens);
    let mut events = Vec::new();
    former.poll(sim.now.after(TICK), &mut events).unwrap();
    former.poll(sim.now.after(Span(2 * TICK.0)), &mut events).unwrap();
    assert_eq!(events, [MonitorEvent::Superseded]);
}

/// Both begin a period at the same time, and the pool is of neither: the one that has the lease
/// begins another.
#[test]
fn r12_two_monitors_that_begin_together_leave_one_pool() {
    let mut sim = HaechiSim::new(Rules::SOUND, &[reserve(1_000), reserve(1_000)]);
    sim.run_into_next(Span::ZERO);
    // The former has read the lease, found that its period is over, and is about to begin.
    let is_write = |one: &Operation| matches!(one, Operation::Write { .. });
    sim.lever.hold();
    while !sim.lever.pending().iter().any(is_write) {
        while !sim.lever.pending().iter().any(is_write) && sim.lever.step() {}
        sim.now = sim.now.after(Span(TICK.0 / 4));
        sim.monitor.poll(sim.now, &mut sim.events).unwrap();
    }
    let (mut former, lever) = sim.take_over();
    sim.run(Span(3 * TICK.0));
    lever.go();
    let mut events = Vec::new();
    for _ in 0..8 {
        sim.run(TICK);
        former.poll(sim.now, &mut events).unwrap();
    }
    assert!(events.contains(&MonitorEvent::Superseded));
    assert!(sim.pool().is_of(sim.epoch()));
    let issued = sim.issued_in(3);
    assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
    assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
}

/// A client comes when another monitor has begun, and has not polled yet: it has a session slot of
/// its own, beside those that the former gave. If the region has not answered yet, it is told to
/// ask again.
#[test]
fn r12_a_client_that_connects_during_a_takeover_has_a_session_slot() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(2_000), reserve(2_000)]);
        sim.run_into_next(percent(40));
        let _former = sim.take_over();
        sim.join(reserve(1_000));
        assert_eq!(sim.clients[2].session_slot, SessionSlot(2));
        sim.issued_in(2);
        let promises =
            [0, 1, 2].map(SessionSlot).map(|session_slot| sim.monitor.promise(session_slot));
        assert_eq!(promises, [2_000, 2_000, 1_000].map(|all| Some(reserve(all))));
        for (client, promised) in sim.clients.iter().zip([2_000, 2_000, 1_000]) {
            assert!(client.port.balance().promise() == reserve(promised), "{rules:?}");
        }
        let mut late = HaechiSim::new(rules, &[reserve(2_000)]);
        late.run_into_next(percent(40));
        let (wire, lever) = late.node.connect();
        lever.hold();
        let next = Monitor::new(wire, settings(rules), late.now).map_err(|_| ()).unwrap();
        (late.monitor, late.lever) = (next, lever.clone());
        assert_eq!(late.monitor.admit(reserve(1)), Err(Denied::Opening));
        assert_eq!(late.monitor.renew(SessionSlot(0), reserve(1)), Err(Denied::Opening));
        lever.go();
        late.step();
        assert_eq!(late.monitor.admit(reserve(1)), Ok(SessionSlot(1)));
    }
}

/// The monitor is gone: clients go on with what they are promised, and no more, without asking the
/// pool. When it is back, all is as before. Neither side spins meanwhile.
#[test]
fn r13_without_a_monitor_a_client_goes_on_with_its_reservation() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(3_000), reserve(2_000)]);
        sim.run_into_next(percent(50));
        sim.is_monitor_stopped = true;
        sim.run(Span(3 * PERIOD.0));
        assert!(sim.clients.iter().all(|client| client.port.is_alone()));
        let takes = |sim: &HaechiSim| {
            let is_take = |one: &&Operation| matches!(one, Operation::FetchAdd { .. });
            sim.clients[0].lever.log().iter().filter(is_take).count()
        };
        let (before, taken) = (sim.issued(), takes(&sim));
        sim.run(Span(4 * PERIOD.0));
        let issued = sim.issued() - before;
        assert!((4 * 5_000 - slack(2)..=5 * 5_000).contains(&issued), "{rules:?}: {issued}");
        assert_eq!(takes(&sim), taken);
        // A client that waits for its deadlines only is not woken all the time.
        let client = &mut sim.clients[1];
        client.wants = 0;
        let (end, mut rounds) = (sim.now.after(PERIOD), 0);
        let mut now = sim.now;
        while now < end {
            now = client.port.next_deadline().max(now.after(Span(1)));
            client.poll(now);
            rounds += 1;
        }
        assert!(rounds < 1_000, "{rules:?}: {rounds} turns");
        sim.now = end;
        sim.is_monitor_stopped = false;
        sim.run(Span(2 * TICK.0));
        assert!(sim.clients.iter().all(|client| !client.port.is_alone()));
        sim.clients[1].wants = u64::MAX;
        let issued = sim.issued_in(3);
        assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
        assert!(issued.iter().all(|issued| *issued + slack(2) >= CAPACITY), "{issued:?}");
    }
}

/// A client that slept for periods is not alone when it wakes: it looks first.
#[test]
fn r13_a_client_that_slept_is_not_alone() {
    let mut sim = HaechiSim::new(Rules::UNPACED, &[reserve(3_000), reserve(2_000)]);
    sim.run_into_next(percent(10));
    sim.clients[0].is_stopped = true;
    sim.run(Span(3 * PERIOD.0 - PERIOD.0 / 5));
    let (before, lever) = (sim.issued(), sim.clients[0].lever.clone());
    sim.clients[0].is_stopped = false;
    sim.run(Span(20 * TICK.0));
    assert!(!sim.clients[0].port.is_alone());
    sim.run_into_next(Span::ZERO);
    assert!(sim.issued() - before <= CAPACITY, "{}", lever.issued());
}

/// Periods' numbers come round in words of 12 and of 16 bits, without any effect.
#[test]
fn r14_numbers_of_periods_come_round() {
    for (rules, first) in RULES.into_iter().flat_map(|rules| [(rules, 4_092), (rules, 65_532)]) {
        let node = Node::new();
        // As a monitor would have left it.
        node.set(region_layout::HEADER, region_layout::MAGIC);
        node.set(region_layout::LAYOUT, region_layout::VERSION);
        node.set(region_layout::POOL, PoolWord::word(first, 0));
        let mut sim = HaechiSim::on(node, rules, &[]);
        sim.step();
        sim.join(reserve(3_000));
        sim.join(reserve(2_000));
        sim.run_into_next(Span::ZERO);
        let mut last = sim.epoch();
        let numbers: Vec<_> = (0..6)
            .map(|_| {
                let before = sim.issued();
                sim.run_into_next(Span::ZERO);
                let issued = sim.issued() - before;
                assert!((CAPACITY - slack(2)..=CAPACITY + slack(2)).contains(&issued), "{issued}");
                assert_eq!(sim.epoch(), words::next(last));
                last = sim.epoch();
                for session_slot in [0, 1].map(SessionSlot) {
                    let line = region_layout::line(region_layout::GRANTS, session_slot);
                    assert_ne!(sim.node.word(line) >> 48 & 0xFFF, 0);
                }
                last
            })
            .collect();
        // One was left out.
        assert_eq!(numbers[5] - numbers[0], 6, "{numbers:?}");
        for summary in sim.summaries().skip(2) {
            let done = summary.session_slots.iter().flatten().map(|(_, outcome)| outcome.completed);
            assert!(done.sum::<u64>() + slack(2) >= CAPACITY, "{summary:?}");
        }
        sim.check_account();
        assert_eq!(WINDOW, 8);
    }
}
