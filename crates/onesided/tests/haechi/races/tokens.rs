//! Races about the pool: R1 to R5, and R15.

use tidegate_algo::onesided::Rules;
use tidegate_model::Span;
use tidegate_onesided::haechi::words::PoolWord;
use tidegate_onesided::haechi::{TICK, region_layout};
use tidegate_onesided::one_sided::Operation;

use crate::sim::{CAPACITY, HaechiSim, PERIOD, POLL_INTERVAL, WINDOW, percent, reserve, slack};

/// Both ways to give out pool tokens, and the text.
const RULES: [Rules; 4] = [Rules::SOUND, Rules::UNPACED, Rules::PAPER, Rules::BASIC];

/// The monitor reads the pool, a client takes from it, the monitor changes it: what was taken stays
/// taken, and all of it is in the books, though the client says nothing.
#[test]
fn r01_the_monitor_overwrites_nothing_that_is_taken() {
    for rules in [Rules::SOUND, Rules::UNPACED] {
        let mut sim = HaechiSim::new(rules, &[reserve(1_000), reserve(1_000)]);
        // The last of a period is not looked at, as what is taken while the next begins is lost.
        for _ in 0..5 {
            sim.run_into_next(Span::ZERO);
            let epoch = sim.epoch();
            while sim.now.after(Span(3 * TICK.0)) < sim.monitor.account().period().end() {
                sim.lever.hold();
                _ = sim.monitor.poll(sim.now, &mut sim.events);
                sim.clients.iter_mut().for_each(|client| client.poll(sim.now));
                while sim.lever.step() {}
                // Now the monitor knows what the pool was, and has posted what it adds.
                _ = sim.monitor.poll(sim.now, &mut sim.events);
                sim.clients.iter_mut().for_each(|client| client.poll(sim.now));
                sim.lever.go();
                sim.step();
            }
            assert_eq!(sim.epoch(), epoch);
            // A look at a time at which no client takes anything, and no report of theirs comes.
            sim.clients.iter().for_each(|client| client.lever.hold());
            sim.now = sim.now.after(TICK);
            sim.monitor.poll(sim.now, &mut sim.events).unwrap();
            let usages = sim.clients.iter().map(|client| client.port.balance().usage());
            let obtained: u64 = usages.map(|usage| usage.obtained).sum();
            assert_eq!(obtained, sim.monitor.account().granted(), "{rules:?}");
            sim.check_account();
            sim.clients.iter().for_each(|client| client.lever.go());
        }
    }
}

/// A word is atomic among operations of one RNIC only. So no peer writes the pool or reads it by
/// copying; all fetch and add, the monitor, too, through a connection of its own. (That a monitor's
/// connection is a queue pair of the same RNIC is the business of the connection that is made for
/// it.)
#[test]
fn r02_the_pool_is_changed_by_fetch_and_add_only() {
    for rules in RULES {
        let mut sim = HaechiSim::new(rules, &[reserve(1_000), reserve(1_000)]);
        sim.run(Span(3 * PERIOD.0));
        let clients = sim.clients.iter().map(|client| &client.lever);
        let mut adds = 0;
        for lever in clients.chain([&sim.lever]) {
            // The monitor's first look at the region is before any client is there.
            for operation in &lever.log()[usize::from(lever.log().len() > 1)..] {
                let (at, length) = operation.touches();
                if at < region_layout::POOL + 8 && at + length > region_layout::POOL {
                    assert!(matches!(operation, Operation::FetchAdd { .. }), "{operation:?}");
                    adds += 1;
                }
            }
        }
        assert!(adds > 300);
    }
}

/// Many take from an empty pool: it is overdrawn by a batch for each and poll, not for each round
/// of theirs, the monitor makes up for it at once, and the next tokens can be had.
#[test]
fn r03_an_overdrawn_pool_recovers() {
    let promises = [reserve(1_200); 8];
    let mut sim = HaechiSim::new(Rules::SOUND, &promises);
    sim.run_into_next(Span::ZERO);
    let (mut least, mut empty) = (0, 0);
    let reads = |sim: &HaechiSim| -> usize {
        let is_take = |one: &&Operation| matches!(one, Operation::FetchAdd { .. });
        sim.clients.iter().map(|client| client.lever.log().iter().filter(is_take).count()).sum()
    };
    let before = reads(&sim);
    for _ in 0..PERIOD.0 / POLL_INTERVAL.0 {
        sim.step();
        least = least.min(sim.pool().tokens);
        empty += u64::from(sim.pool().tokens <= 0);
    }
    let takes = (reads(&sim) - before) as u64;
    let batch = i64::from(WINDOW.max(CAPACITY as u32 / 50 / 8));
    assert!(least < 0, "nobody found it empty");
    assert!(least >= -2 * 8 * batch, "{least}");
    // With a pause of a tick at least after each failure, and a few that succeed.
    assert!(takes <= 8 * PERIOD.0 / TICK.0 + CAPACITY / 8, "{takes}");
    assert!(empty > 0);
    // One has enough, and what it yields is taken by the others, out of the same pool.
    sim.clients[0].wants = 0;
    let issued = sim.issued_in(3);
    let least = CAPACITY - slack(8);
    assert!(issued.iter().all(|issued| (least..=CAPACITY + slack(8)).contains(issued)));
    sim.check_account();
}

/// Clients keep batches in hand that they do not use, and say nothing of it: nothing is made again
/// in their place.
#[test]
fn r04_tokens_in_hand_are_not_made_again() {
    for rules in [Rules::SOUND, Rules::UNPACED] {
        let mut sim = HaechiSim::new(rules, &[reserve(0), reserve(0), reserve(0)]);
        sim.run_into_next(percent(5));
        for poll in 0..200 {
            // They take when they have something to do, and then have not.
            for client in &mut sim.clients {
                client.wants = if poll % 10 < 2 { 20 } else { 0 };
            }
            sim.run(Span(4 * POLL_INTERVAL.0));
            let usages = sim.clients.iter().map(|client| client.port.balance().usage());
            let obtained: u64 = usages.map(|usage| usage.obtained).sum();
            let left = sim.pool().tokens.max(0).unsigned_abs();
            assert!(obtained + left <= CAPACITY, "{rules:?}: {obtained} and {left}");
            sim.check_account();
        }
    }
}

/// The answer to a fetch-and-add arrives when the next period has begun; tokens of the old one are
/// in hand; and the client does not hear of the new one. Nothing of it is used in the new period.
#[test]
fn r05_tokens_of_an_old_period_die() {
    for rules in [Rules::SOUND, Rules::UNPACED] {
        let mut sim = HaechiSim::new(rules, &[reserve(100), reserve(100)]);
        sim.run_into_next(percent(30));
        // Until it asks for a batch. It is answered much later, like all that it asks from then on.
        let lever = sim.clients[0].lever.clone();
        let takes = |one: &Operation| matches!(one, Operation::FetchAdd { .. });
        while !lever.pending().iter().any(takes) {
            lever.go();
            lever.hold();
            sim.step();
        }
        lever.go();
        lever.deafen();
        // Whatever it has in hand, it has when the period is over, and a guard later.
        sim.run_into_next(Span(2 * TICK.0));
        let balance = sim.clients[0].port.balance();
        assert_eq!(
            (balance.pool(), balance.reserved()),
            (0, 0),
            "{rules:?}: void, although unheard"
        );
        let issued = lever.issued();
        sim.run(Span(5 * TICK.0));
        assert_eq!(lever.issued(), issued);
        // The answer is of the old period.
        lever.go();
        sim.clients[0].poll(sim.now);
        assert_eq!(sim.clients[0].port.balance().pool(), 0, "{rules:?}: the old batch");
        // And afterwards all is as ever.
        sim.run_into_next(percent(50));
        assert!(lever.issued() > issued);
    }
}

/// Answers may come in another order than questions: that of the pool when the client has begun its
/// next period. It is of the old one all the same.
#[test]
fn r05_an_old_answer_is_not_of_the_new_period() {
    let mut sim = HaechiSim::new(Rules::UNPACED, &[reserve(100)]);
    sim.run_into_next(Span::ZERO);
    let lever = sim.clients[0].lever.clone();
    lever.keep_words();
    sim.run(percent(50));
    let before = sim.clients[0].port.balance().usage().obtained;
    assert!(sim.pool().tokens < CAPACITY as i64 - 100, "it has asked");
    sim.run_into_next(Span(3 * TICK.0));
    assert_eq!(sim.clients[0].port.balance().period().epoch, sim.epoch());
    lever.hold();
    sim.clients[0].poll(sim.now);
    assert_eq!((before, sim.clients[0].port.balance().usage().obtained), (0, 0));
    lever.go();
    sim.clients[0].poll(sim.now);
    let obtained = sim.clients[0].port.balance().usage().obtained;
    assert_eq!(obtained, 0, "what was asked before the period began");
}

/// The pool never shrinks, as all of the node is reserved: a client with nothing to do reports all
/// the same, and others get the tokens that it yields.
#[test]
fn r15_reports_come_though_the_pool_never_shrinks() {
    for rules in [Rules::SOUND, Rules::UNPACED] {
        let mut sim = HaechiSim::new(rules, &[reserve(4_000), reserve(6_000)]);
        sim.clients[1].wants = 0;
        let issued = sim.issued_in(4);
        assert!(issued.iter().all(|issued| *issued > 9_000), "{rules:?}: {issued:?}");
        assert!(issued.iter().all(|issued| *issued <= CAPACITY + slack(2)), "{issued:?}");
        sim.check_account();
    }
}

/// Pool words and their decoded form: used by the tests beside this one.
#[test]
fn a_pool_that_many_take_from_keeps_its_period() {
    let word = PoolWord::word(7, 10);
    let taken = (0..1_000_000).fold(word, |word: u64, _| word.wrapping_sub(1_000));
    assert_eq!(PoolWord::read(taken), PoolWord { epoch: 7, tokens: 10 - 1_000_000_000 });
}
