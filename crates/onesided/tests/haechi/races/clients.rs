//! Races of clients that are late, stand still, die or come: R6 to R11, and R16 to R20.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::SUSPECT;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::monitor::EVICT;
use tidegate_onesided::haechi::{MonitorEvent, TICK, region_layout, words};
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Operation, Post, PostError, RemoteMemory,
};

use crate::sim::{
    CAPACITY, HaechiSim, LOCAL, PERIOD, POLL_INTERVAL, WINDOW, percent, reserve, slack,
};

const RULES: [Rules; 2] = [Rules::SOUND, Rules::UNPACED];

/// A grant is late by most of a period, then by more than one: nothing is begun twice, and periods
/// that were missed are not made up for.
#[test]
fn r06_a_late_grant_begins_one_period_once() {
    for late in [70, 140] {
        let mut sim = HaechiSim::new(Rules::UNPACED, &[reserve(2_000), reserve(2_000)]);
        sim.run_into_next(percent(90));
        let lever = sim.clients[0].lever.clone();
        lever.deafen();
        sim.run(percent(10 + late));
        let (issued, periods) = (lever.issued(), sim.clients[0].port.counts().periods);
        lever.go();
        sim.run(Span(4 * TICK.0));
        assert_eq!(sim.clients[0].port.counts().periods, periods + 1);
        // Once begun, it stays the same period, however often its grant is read.
        let usage = sim.clients[0].port.balance().usage();
        assert!(usage.reserved <= 2_000);
        let own = usage.reserved + sim.clients[0].port.balance().reserved() + usage.yielded;
        assert_eq!(own, 2_000);
        let epoch = sim.epoch();
        while sim.epoch() == epoch {
            sim.step();
        }
        assert!(lever.issued() - issued <= 2_000 + CAPACITY);
        // Now it knows when periods begin.
        sim.run(Span(2 * TICK.0));
        assert_eq!(sim.clients[0].port.balance().period().epoch, sim.epoch());
    }
}

/// A report of one period takes effect in the next: it says nothing of that.
#[test]
fn r07_a_report_of_another_period_counts_for_nothing() {
    let mut sim = HaechiSim::new(Rules::SOUND, &[reserve(2_000), reserve(2_000)]);
    sim.run_into_next(percent(60));
    let reported = sim.monitor.account().report(0).unwrap();
    assert!(reported.completed > 1_000);
    let lever = sim.clients[0].lever.clone();
    while !lever.pending().iter().any(|one| matches!(one, Operation::Write { .. })) {
        lever.go();
        lever.hold();
        sim.clients[0].poll(sim.now);
        sim.step();
    }
    sim.clients[0].is_stopped = true;
    // It was silent for some milliseconds when its old report arrives in the new period.
    sim.run_into_next(Span(5 * TICK.0));
    while lever.step() {}
    sim.run(Span(5 * TICK.0));
    assert_eq!(sim.monitor.account().report(0), None);
    assert!(sim.monitor.account().report(1).is_some());
}

/// The words of a report are seen one after the other, in either order, with any delay: no client
/// is accused, words of two periods are no report, and nothing is made of it.
#[test]
fn r08_a_torn_report_accuses_no_client() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(500), reserve(500)]);
        let lever = sim.clients[0].lever.clone();
        let mut torn = 0;
        for poll in 0..8_000u32 {
            lever.hold();
            sim.step();
            // Between reports it does a lot, so that two of them differ by much.
            let is_report = |one: &Operation| matches!(one, Operation::Write { .. });
            if lever.pending().iter().any(is_report) {
                while !is_report(&lever.pending()[0]) {
                    lever.step();
                }
                for _ in 0..poll % 3 {
                    lever.step();
                }
                sim.now = sim.now.after(TICK);
                sim.monitor.poll(sim.now, &mut sim.events).unwrap();
                torn += 1;
            }
            lever.go();
        }
        assert!(torn > 100);
        let accused = |event: &&MonitorEvent| matches!(event, MonitorEvent::Overstepped { .. });
        assert_eq!(sim.events.iter().find(accused), None);
        assert!(sim.summaries().count() > 2);
        sim.check_account();
    }
}

/// The monitor reports a client that does more than it has tokens for. (So that the test before
/// this one means something.)
#[test]
fn a_client_that_oversteps_is_reported() {
    let mut sim = HaechiSim::new(Rules::SOUND, &[reserve(500), reserve(500)]);
    sim.run_into_next(percent(20));
    // An engine that is not ours: it reports the truth, and issues what it likes.
    sim.clients[0].is_stopped = true;
    for beat in 1..9u16 {
        let report = tidegate_algo::onesided::monitor::ClientReport {
            residual: 300,
            completed: 300 * u64::from(beat),
            is_busy: true,
            ..Default::default()
        };
        let words = words::report(sim.epoch(), 1_000 + beat, &report);
        for (at, word) in words.iter().enumerate() {
            sim.node.set(
                region_layout::line(region_layout::REPORTS, SessionSlot(0)) + 8 * at as u64,
                *word,
            );
        }
        sim.run(Span(2 * TICK.0));
    }
    let reported = |event: &&MonitorEvent| {
        matches!(event, MonitorEvent::Overstepped { session_slot: SessionSlot(0), .. })
    };
    assert_eq!(sim.events.iter().filter(reported).count(), 1);
}

/// A client dies with all its tokens in hand: others use them soon, and its session slot is free
/// after three periods.
#[test]
fn r09_what_a_dead_client_had_goes_to_others() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(5_000), reserve(2_000), reserve(2_000)]);
        sim.run_into_next(percent(2));
        sim.clients[0].lever.cut();
        sim.clients[0].is_stopped = true;
        let died = sim.now;
        let mut before = sim.issued();
        // In the period of its death, too, all that is left of it.
        sim.run_into_next(Span::ZERO);
        let lost = CAPACITY * SUSPECT.0 / PERIOD.0;
        assert!(sim.issued() - before + lost + slack(3) > CAPACITY / 100 * 90, "{rules:?}");
        for period in 0..6 {
            before = sim.issued();
            sim.run_into_next(Span::ZERO);
            let issued = sim.issued() - before;
            assert!(issued <= CAPACITY + slack(3), "{rules:?}: {issued} in {period}");
            let most = if period < 3 { lost / 50 } else { 0 } + slack(3);
            assert!(issued + most >= CAPACITY, "{rules:?}: {issued} in {period}");
        }
        let evicted = |event: &&MonitorEvent| **event == MonitorEvent::Evicted(SessionSlot(0));
        assert_eq!(sim.events.iter().filter(evicted).count(), 1);
        let limit = died.after(Span((EVICT + 1) * PERIOD.0));
        assert!(sim.monitor.promise(SessionSlot(0)).is_none() && sim.now > limit);
        sim.check_account();
    }
}

/// A client stands still for about as long as it takes to be given up, comes back at every moment
/// of that, and also across the end of a period: what it had is used once, by it or by others.
#[test]
fn r10_a_client_that_was_given_up_wrongly_spends_no_token_twice() {
    let around = (SUSPECT.0 / POLL_INTERVAL.0 - 60)..(SUSPECT.0 / POLL_INTERVAL.0 + 60);
    for rules in RULES {
        for (begin, steps) in around.clone().step_by(3).map(|steps| (20, steps)).chain([
            (80, 1_000),
            (10, 3_800),
            (95, 4_400),
        ]) {
            let mut sim = HaechiSim::new(rules, &[reserve(6_000), reserve(1_000), reserve(1_000)]);
            sim.run_into_next(Span::ZERO);
            let before = sim.issued();
            let epoch = sim.epoch();
            sim.run(percent(begin));
            let lever = sim.clients[0].lever.clone();
            sim.clients[0].is_stopped = true;
            for _ in 0..steps {
                sim.step();
            }
            sim.clients[0].is_stopped = false;
            // Its first read of the grant is answered at once, and takes a while to be heard of.
            sim.clients[0].poll(sim.now);
            lever.deafen();
            sim.run(Span(steps % 7 * POLL_INTERVAL.0));
            lever.go();
            sim.run_into_next(Span::ZERO);
            let periods = sim.epoch() - epoch;
            let issued = sim.issued() - before;
            let most = periods * (CAPACITY + slack(3));
            assert!(issued <= most, "{rules:?}, {begin} %, {steps} steps: {issued} > {most}");
            sim.check_account();
            // And afterwards it has its reservation again.
            sim.run_into_next(Span::ZERO);
            let before = lever.issued();
            sim.run_into_next(Span::ZERO);
            let issued = lever.issued() - before;
            assert!(issued + slack(1) >= 6_000, "{rules:?}, {begin} %, {steps} steps: {issued}");
        }
    }
}

/// A client that comes back reads its grant before it is void, and the monitor makes it void
/// without knowing: it gives nothing away before it has looked for reports again, and finds one.
#[test]
fn r10_the_monitor_notices_a_client_that_returns_between_its_read_and_its_write() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(6_000), reserve(1_000), reserve(1_000)]);
        sim.run_into_next(percent(20));
        let before = sim.issued();
        sim.clients[0].is_stopped = true;
        // Until the monitor is about to say that it doubts.
        let silent = |sim: &HaechiSim| sim.events.contains(&MonitorEvent::Silent(SessionSlot(0)));
        let grants = region_layout::GRANTS;
        let writes = |one: &Operation| matches!(one, Operation::Write { to, .. } if *to == grants);
        while !sim.lever.pending().iter().any(writes) {
            sim.lever.go();
            sim.lever.hold();
            for _ in 0..2 {
                sim.monitor.poll(sim.now, &mut sim.events).unwrap();
                if sim.lever.pending().iter().any(writes) {
                    break;
                }
                while sim.lever.step() {}
            }
            if !sim.lever.pending().iter().any(writes) {
                sim.step();
            }
        }
        assert!(!silent(&sim));
        // Now the client comes back, finds its grant in order, and goes on.
        sim.clients[0].is_stopped = false;
        for _ in 0..3 {
            sim.clients[0].poll(sim.now);
        }
        sim.lever.go();
        let epoch = sim.epoch();
        sim.run_into_next(Span::ZERO);
        assert!(!silent(&sim), "{rules:?}: it was heard");
        assert_eq!(sim.epoch(), epoch + 1);
        assert!(sim.issued() - before <= CAPACITY + slack(3));
    }
}

/// Clocks of clients show other times and run at other speeds, and answers take a while: still both
/// sides begin periods together, also after a thousand of them and after one was missed by much.
#[test]
fn r11_clocks_that_drift_meet_once_a_period() {
    let mut sim = HaechiSim::new(Rules::UNPACED, &[reserve(3_000), reserve(3_000), reserve(3_000)]);
    sim.clients[0].ahead = Span(5 * Span::SECOND.0);
    sim.clients[1].drift = 300;
    sim.clients[2].drift = -300;
    // No client takes from the pool, which would tell.
    let mut apart = Span::ZERO;
    for period in 0..300 {
        for client in &mut sim.clients {
            client.wants = 2_000;
        }
        sim.run_into_next(Span(2 * TICK.0));
        if period == 100 {
            // Late by a third of a period.
            sim.run(percent(90));
            sim.clients[0].is_stopped = true;
            sim.run(percent(35));
            sim.clients[0].is_stopped = false;
            sim.run_into_next(Span(2 * TICK.0));
        }
        let begun = sim.monitor.account().period().begun;
        for client in &sim.clients {
            let period = client.port.balance().period();
            assert_eq!(period.epoch, sim.epoch());
            apart = apart.max(period.begun.since(client.time(begun)));
        }
        assert!(apart <= Span(2 * TICK.0), "{apart:?} in period {period}");
    }
}

/// Operations between the last report and the end of a period are counted in it, and none of them
/// in the next.
#[test]
fn r16_the_last_millisecond_counts() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(5_000), reserve(2_000)]);
        // The client's own count at the moment at which a period ends for it.
        let mut counted = Vec::new();
        let mut epochs = [0; 2];
        let mut before = [0; 2];
        for _ in 0..6 * PERIOD.0 / POLL_INTERVAL.0 {
            sim.step();
            for (at, client) in sim.clients.iter().enumerate() {
                let epoch = client.port.balance().period().epoch;
                if epoch != epochs[at] {
                    counted.push((epochs[at], at, client.completed - before[at]));
                    (epochs[at], before[at]) = (epoch, client.completed);
                }
            }
        }
        let mut compared = 0;
        for (epoch, at, completed) in counted.into_iter().filter(|(epoch, ..)| *epoch > 1) {
            let Some(summary) = sim.summaries().find(|summary| summary.epoch == epoch) else {
                continue;
            };
            // Those that came with the grant are of one period or the other.
            let reported = summary.session_slots[at].unwrap().1.completed;
            assert!(reported.abs_diff(completed) <= 16, "{rules:?}: {reported}, {completed}");
            compared += 1;
        }
        assert!(compared >= 6);
    }
}

/// All clients have reached their limits and the node stands still: that says nothing of its
/// capacity. And no client passes its limit.
#[test]
fn r17_limits_are_not_a_lack_of_capacity() {
    for rules in RULES {
        let promise = Promise { reservation: 1_000, limit: 2_000 };
        let mut sim = HaechiSim::new(rules, &[promise, promise]);
        for _ in 0..8 {
            sim.run_into_next(percent(5));
            assert_eq!(sim.monitor.capacity(), CAPACITY, "{rules:?}");
        }
        for summary in sim.summaries().skip(1) {
            let done = summary.session_slots.iter().flatten().map(|(_, outcome)| outcome.completed);
            done.for_each(|done| assert!((1_992..=2_008).contains(&done), "{rules:?}: {done}"));
        }
    }
}

/// A client that joins within a period has a part from the next on; one that leaves keeps its own
/// until then. Its session slot is given to another client only afterwards, and its last words do
/// not count as the other client's.
#[test]
fn r18_clients_join_and_leave_between_periods() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(4_000), reserve(4_000)]);
        sim.run_into_next(percent(30));
        sim.join(reserve(2_000));
        let lever = sim.clients[2].lever.clone();
        sim.run(percent(60));
        assert_eq!(lever.issued(), 0);
        assert!(sim.monitor.admit(reserve(1)).is_err(), "all is promised");
        sim.run_into_next(percent(90));
        assert!(lever.issued() > 1_500, "{rules:?}: {}", lever.issued());
        // One leaves: its part is promised to another client, which gets it when the first is gone.
        sim.run_into_next(percent(10));
        sim.clients[1].port.leave();
        sim.run(Span(5 * TICK.0));
        let before = sim.clients[1].lever.issued();
        sim.join(reserve(4_000));
        assert_ne!(sim.clients[3].session_slot, SessionSlot(1));
        sim.run(percent(50));
        assert!(sim.clients[1].lever.issued() > before + 1_000, "it has its tokens yet");
        assert_eq!(sim.clients[3].lever.issued(), 0);
        sim.run_into_next(percent(50));
        assert!(sim.events.contains(&MonitorEvent::Left(SessionSlot(1))));
        assert!(sim.clients[3].lever.issued() > 1_000);
        // The session slot is free now, and the client that left has nothing, now and later.
        let before = sim.clients[1].lever.issued();
        sim.clients.truncate(4);
        let issued = sim.issued_in(4);
        assert_eq!(sim.clients[1].lever.issued(), before, "{rules:?}");
        assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(4)), "{issued:?}");
        sim.clients[3].port.leave();
        sim.run_into_next(percent(10));
        sim.join(reserve(3_000));
        assert_eq!(sim.clients[4].session_slot, SessionSlot(1), "{rules:?}");
        let left = sim.clients[1].lever.clone();
        let (before, lever) = (left.issued(), sim.clients[4].lever.clone());
        // A client that has left is fenced off before its session slot is another's.
        sim.clients[1].is_stopped = true;
        sim.run_into_next(percent(90));
        assert!(lever.issued() > 2_400, "{rules:?}: {}", lever.issued());
        assert_eq!(left.issued(), before);
    }
}

/// A client that is started early gets spare tokens within a few ticks, as far as it is allowed. No
/// client loses its reservation, no more is issued than the node can do, and the next period is one
/// for all.
#[test]
fn r20_an_early_client_takes_no_promised_token() {
    for rules in RULES {
        for limit in [u64::MAX, 50] {
            let mut sim = HaechiSim::new(rules, &[reserve(6_000)]);
            sim.run_into_next(percent(1));
            let before = sim.issued();
            sim.run(percent(29));
            sim.join(reserve(3_000));
            let (session_slot, lever) = (sim.clients[1].session_slot, sim.clients[1].lever.clone());
            sim.monitor.start_early(session_slot, limit);
            assert_eq!(sim.monitor.allowed(session_slot), limit);
            sim.run(percent(10));
            assert!(lever.issued() > 10, "{rules:?}: {}", lever.issued());
            sim.run_into_next(Span::ZERO);
            assert!(sim.issued() - before <= CAPACITY + slack(2), "{rules:?}");
            assert!(sim.clients[0].completed >= 6_000, "{rules:?}");
            let early = lever.issued();
            assert!(early <= limit.saturating_add(u64::from(WINDOW)), "{rules:?}: {early}");
            sim.run(Span(2 * TICK.0));
            let epochs = sim.clients.iter().map(|it| it.port.balance().period().epoch);
            assert!(epochs.eq([sim.epoch(); 2]), "{rules:?}");
            assert_eq!(sim.clients[1].port.balance().promise(), reserve(3_000));
            sim.run(percent(94));
            assert!(lever.issued() - early >= 2_700, "{rules:?}: {}", lever.issued() - early);
            assert!(!sim.events.iter().any(|it| matches!(it, MonitorEvent::Overstepped { .. })));
            sim.check_account();
        }
    }
}

/// A client's promise changes between periods, also if grants are written anew within one because a
/// client is silent: no client is accused of the use of its grant.
#[test]
fn r18_a_promise_changes_between_periods() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(8_000), reserve(1_000)]);
        sim.run_into_next(percent(60));
        let epoch = sim.epoch();
        sim.monitor.renew(SessionSlot(0), reserve(500)).unwrap();
        sim.clients[1].is_stopped = true;
        sim.run(percent(39));
        assert_eq!(sim.epoch(), epoch);
        sim.clients[1].is_stopped = false;
        sim.run_into_next(Span::ZERO);
        sim.run_into_next(percent(10));
        let promised: Vec<u64> = sim
            .summaries()
            .filter(|summary| summary.epoch >= epoch)
            .map(|summary| summary.session_slots[0].map_or(0, |(promise, _)| promise.reservation))
            .collect();
        assert_eq!(promised, [8_000, 500], "{rules:?}");
        assert!(!sim.events.iter().any(|it| matches!(it, MonitorEvent::Overstepped { .. })));
        // A promise is refused if all promises together exceed the capacity; the former one stays.
        assert!(sim.monitor.renew(SessionSlot(0), reserve(9_001)).is_err());
        assert_eq!(sim.monitor.promise(SessionSlot(0)), Some(reserve(500)));
    }
}

/// An operation is one token, whatever it is: of a byte or of a whole buffer, a read, a write or a
/// change of a word. None is larger than a buffer, so none needs more.
#[test]
fn r19_an_operation_is_one_token_whatever_it_is() {
    let from = region_layout::DATA;
    let into = BufferPosition::start(0);
    let operations = [
        Operation::Read { from, into, length: 1 },
        Operation::Read { from, into, length: BUFFER },
        Operation::Write { from: into, to: from, length: BUFFER },
        Operation::WriteWord { word: 1, to: from },
        Operation::FetchAdd { at: from, add: 1 },
        Operation::CompareSwap { at: from, expected: 0, new: 1 },
    ];
    let mut sim = HaechiSim::new(Rules::UNPACED, &[reserve(100)]);
    sim.clients[0].wants = 0;
    sim.run_into_next(percent(1));
    let now = sim.now;
    let client = &mut sim.clients[0];
    for operation in operations {
        let before = client.port.balance().usage().issued();
        client.port.post(Post { id: 1, operation }).unwrap();
        client.poll(now);
        assert_eq!(client.port.balance().usage().issued(), before + 1, "{operation:?}");
    }
    let operation = Operation::Read { from, into, length: BUFFER + 1 };
    assert_eq!(client.port.post(Post { id: 1, operation }), Err(PostError::Outside));
}

/// The slowest of tests here takes a client that can do less than it could.
#[test]
fn a_client_that_is_looked_after_seldom_has_what_is_its_own() {
    let mut sim = HaechiSim::new(Rules::SOUND, &[reserve(1_000), reserve(1_000)]);
    sim.run_into_next(Span::ZERO);
    let lever = sim.clients[0].lever.clone();
    let before = lever.issued();
    // Once in seven milliseconds: it must ask each time whether it is still there.
    for _ in 0..5 * PERIOD.0 / Span::MILLISECOND.0 / 7 {
        sim.clients[0].is_stopped = true;
        sim.run(Span(7 * Span::MILLISECOND.0));
        sim.clients[0].is_stopped = false;
        sim.run(Span(4 * POLL_INTERVAL.0));
    }
    assert!(lever.issued() > before);
    assert!(!sim.events.contains(&MonitorEvent::Silent(SessionSlot(0))));
    assert!(Time::ZERO < sim.now && LOCAL > 0);
}
