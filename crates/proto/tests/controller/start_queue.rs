//! Programs that start while their tenant is over its limit go one after the other.

use std::ops::Range;

use crate::short_programs::{BURST, Bench, INTERVAL, LIMIT, POLICY};
use crate::world::MIB;
use tidegate_model::Span;

/// A tenant with a debt of 4 MiB from a program that has ended.
fn indebted() -> Bench {
    let mut bench = Bench::new();
    let first = bench.start(4 * MIB, 1);
    bench.run(50);
    bench.end(first);
    bench
}

/// Lets time pass until the program is done, at most so many milliseconds.
#[track_caller]
fn done_within(bench: &mut Bench, number: u64, milliseconds: u64) {
    for _ in 0..milliseconds {
        if bench.is_done(number) {
            return;
        }
        bench.step();
    }
    panic!("program {number} waits for more than {milliseconds} ms");
}

/// The most that may be owed at a time if one larger request goes at a time.
fn one_request(seconds: u64) -> f64 {
    (BURST + INTERVAL + 4 * MIB + seconds * LIMIT * 2 / 100) as f64
}

#[test]
fn programs_that_start_together_go_in_the_order_of_their_starts() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..20).map(|_| bench.start(4 * MIB, 1)).collect();
    let mut order = Vec::new();
    for _ in 0..90_000 {
        bench.step();
        let is_new = |it: &&u64| bench.is_done(**it) && !order.contains(*it);
        let done: Vec<u64> = programs.iter().filter(is_new).copied().collect();
        assert!(done.len() <= 1, "{done:?} at once");
        order.extend(done);
    }
    // All of them are still there: none owes what others would not wait for.
    assert_eq!(order, programs);
    assert!(bench.most <= one_request(90), "{}", bench.most);
}

#[test]
fn programs_that_replace_each_other_side_by_side_have_the_limit() {
    let mut bench = indebted();
    let mut live: Vec<u64> = (0..40).map(|_| bench.start(4 * MIB, 1)).collect();
    for _ in 0..200_000 {
        bench.step();
        for slot in &mut live {
            if bench.is_done(*slot) {
                bench.end(*slot);
                *slot = bench.start(4 * MIB, 1);
            }
        }
    }
    assert!(bench.most <= one_request(200), "{}", bench.most);
    let least = 200 * LIMIT * 95 / 100;
    assert!(bench.served >= least, "{} of {least}", bench.served);
}

/// A hundred requests of 4 KiB are 400 ms of the limit.
#[test]
fn small_requests_wait_for_the_debt_and_for_no_more_than_their_sizes() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..100).map(|_| bench.start(4 << 10, 1)).collect();
    bench.run(3_500);
    assert!(programs.iter().all(|it| !bench.is_done(*it)));
    // 50 ms of the debt were paid before they started.
    bench.run(4_000 + 400 + 200 - 3_500);
    assert!(programs.iter().all(|it| bench.is_done(*it)));
}

/// The program in front has 4 MiB, the ones behind it little.
#[test]
fn a_large_request_holds_back_small_ones_behind_it_for_its_own_time_only() {
    let mut bench = indebted();
    let large = bench.start(4 * MIB, 1);
    let small = bench.start(4 << 10, 1);
    bench.run(4_300);
    assert!(bench.is_done(large) && !bench.is_done(small));
    bench.run(4_000);
    assert!(bench.is_done(small));
}

#[test]
fn programs_that_run_on_do_not_hold_back_the_queue_for_ever() {
    for size in [4 << 10, 4 * MIB] {
        let mut bench = indebted();
        // It goes through the queue as well, and then goes on.
        let long = bench.start(size, u32::MAX);
        bench.run(10_000);
        let before = bench.programs[&long].left;
        for _ in 0..3 {
            let next = bench.start(4 * MIB, 1);
            done_within(&mut bench, next, 25_000);
            bench.end(next);
        }
        assert!(bench.programs[&long].left < before, "nor does the queue hold it back");
    }
}

/// Stages without requests, as of stopped threads, and stages that have gone.
#[test]
fn programs_that_do_not_wait_hold_back_no_other() {
    let mut bench = indebted();
    let [idle, stopped, killed, orphan, last] =
        [0, 1, 1, 0, 1].map(|left| bench.start(4 * MIB, left));
    bench.run(1_000);
    // Its lease in the table of waiters ends.
    let program = bench.programs.get_mut(&stopped).unwrap();
    (program.left, program.due) = (0, None);
    bench.end(killed);
    bench.kill(orphan);
    done_within(&mut bench, last, 4_500 - 1_000);
    // The idle one comes to its turn as soon as there is something to wait for.
    bench.programs.get_mut(&idle).unwrap().left = 1;
    bench.run(3_000);
    assert!(!bench.is_done(idle), "it waits for the last one");
    done_within(&mut bench, idle, 1_500);
}

/// Its tokens count as served until the limit has earned them, or until it ends.
#[test]
fn a_released_program_that_does_nothing_holds_back_others_for_its_own_time() {
    for ends in [false, true] {
        let mut bench = indebted();
        let silent = bench.start(4 * MIB, 1);
        let next = bench.start(4 * MIB, 1);
        bench.run(1_000);
        // Its thread does not wake.
        let id = bench.programs[&silent].stage;
        let program = bench.programs.get_mut(&silent).unwrap();
        (program.left, program.due) = (0, None);
        for _ in 0..3_500 {
            bench.world.stage(id).waiting_tokens = 4 * MIB;
            bench.run(1);
        }
        assert!(!bench.is_done(next));
        if ends {
            bench.end(silent);
            done_within(&mut bench, next, 200);
        } else {
            done_within(&mut bench, next, 4_300);
        }
    }
}

/// Lets these milliseconds pass, and returns the one in which each program was done. Asserts that
/// all were, in their order.
#[track_caller]
fn done_in_order(bench: &mut Bench, programs: &[u64], times: Range<u64>) -> Vec<u64> {
    let mut done = Vec::new();
    for at in times {
        bench.step();
        let is_next = programs.get(done.len()).is_some_and(|it| bench.is_done(*it));
        done.extend(is_next.then_some(at));
        assert!(programs[done.len()..].iter().all(|it| !bench.is_done(*it)), "{done:?}");
    }
    assert_eq!(done.len(), programs.len(), "{done:?}");
    done
}

/// Asserts that programs of a request of 4 MiB each were done in their order, the first one at
/// `first` and each a margin and a correction late at most.
#[track_caller]
fn assert_turns(done: &[u64], first: u64) {
    for (index, at) in (0..).zip(done) {
        let turn = first + 4_000 * index;
        assert!((turn..turn + 1_600).contains(at), "{index} at {at} ms, its turn was at {turn} ms");
    }
}

/// The debt is paid 3.85 s after they start: 50 ms before they do, and the allowance need not be.
const TURN: u64 = 3_840;

#[test]
fn programs_without_their_supervisors_go_in_their_turns_and_others_behind_them() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..4).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    programs[..2].iter().for_each(|it| bench.kill(*it));
    assert_turns(&done_in_order(&mut bench, &programs, 1_001..20_000), TURN);
    assert!(bench.most <= one_request(20), "{}", bench.most);
}

/// The first one keeps all of the tenant's safe rate. The second one has a 64th of that, and its
/// bucket would be full two seconds behind the end of its hold.
#[test]
fn a_program_without_its_supervisor_goes_in_its_turn_behind_another_one() {
    let mut bench = indebted();
    let first = bench.start(4 * MIB, 1);
    bench.run(100);
    bench.kill(first);
    let second = bench.start(4 * MIB, 1);
    bench.run(3_000);
    bench.kill(second);
    let programs = [first, second];
    let safe = programs.map(|program| bench.programs[&program].safe);
    assert_eq!(safe, [LIMIT / 4, LIMIT / 4 / 64]);
    assert_turns(&done_in_order(&mut bench, &programs, 3_101..12_000), TURN);
    assert!(bench.most <= one_request(12), "{}", bench.most);
}

/// The programs in front of it have gone, and it cannot be told so: its turn stays at 44 s. The
/// limit is there for others until then.
#[test]
fn programs_wait_for_one_without_its_supervisor_only_as_its_turn_comes() {
    let mut bench = indebted();
    let front: Vec<u64> = (0..10).map(|_| bench.start(4 * MIB, 1)).collect();
    let orphan = bench.start(4 * MIB, 1);
    bench.run(1_000);
    bench.kill(orphan);
    front.into_iter().for_each(|it| bench.end(it));
    let mut at = 1_000;
    let mut run_until = |bench: &mut Bench, number: u64, end: u64| {
        while at < end && !bench.is_done(number) {
            bench.step();
            at += 1;
        }
        at
    };
    for turn in [TURN, TURN + 4_000] {
        let next = bench.start(4 * MIB, 1);
        let done = run_until(&mut bench, next, 30_000);
        assert!(
            (turn - 100..turn + 500).contains(&done),
            "at {done} ms, its turn was at {turn} ms"
        );
        bench.end(next);
    }
    run_until(&mut bench, orphan, 42_000);
    let behind = bench.start(4 * MIB, 1);
    let first = run_until(&mut bench, orphan, 60_000);
    assert!((TURN + 40_000..TURN + 41_600).contains(&first), "{first}");
    assert!(!bench.is_done(behind), "its request is not paid before the other one's turn");
    let second = run_until(&mut bench, behind, 60_000);
    assert!(second >= first + 3_500, "{first} {second}");
    assert!(bench.most <= one_request(60), "{}", bench.most);
}

#[test]
fn programs_without_a_controller_go_in_their_turns() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..5).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    let done = bench.run_alone(25_000);
    let done: Vec<u64> = programs.iter().map(|it| done[it]).collect();
    assert_turns(&done, TURN - 1_000);
    assert!(bench.most <= one_request(25), "{}", bench.most);
}

/// The controller refuses them under the new policy.
#[test]
fn programs_of_a_tenant_that_is_renamed_go_in_their_turns() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..5).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    let before = bench.world.closed.len();
    bench.world.apply(2, &POLICY.replace("\"short\"", "\"renamed\""));
    assert_eq!(bench.world.closed.len() - before, 5);
    let done = bench.run_alone(25_000);
    let done: Vec<u64> = programs.iter().map(|it| done[it]).collect();
    assert_turns(&done, TURN - 1_000);
}

/// Its request went when its turn came, and no report says so.
#[test]
fn programs_wait_for_a_released_one_that_was_killed_before_it_reported() {
    let mut bench = indebted();
    let [first, next] = [1, 1].map(|left| bench.start(4 * MIB, left));
    done_within(&mut bench, first, 4_500);
    bench.kill(first);
    bench.end(first);
    bench.run(3_500);
    assert!(!bench.is_done(next));
    done_within(&mut bench, next, 800);
}

#[test]
fn a_program_that_connects_anew_keeps_its_turn() {
    let mut bench = indebted();
    let [first, second] = [1, 1].map(|left| bench.start(4 * MIB, left));
    bench.run(1_000);
    let program = bench.programs.get_mut(&first).unwrap();
    let fake = bench.world.stages.remove(&program.stage).unwrap();
    bench.world.controller.on_closed(bench.world.now, program.stage, "gone");
    program.stage = bench.world.rejoin(fake, Span::ZERO);
    done_within(&mut bench, first, 3_500);
    assert!(!bench.is_done(second));
    done_within(&mut bench, second, 4_500);
}

#[test]
fn a_limit_that_changes_holds_for_the_queue() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..5).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    bench.world.apply(2, &POLICY.replace("limit = \"1MiB/s\"", "limit = \"4MiB/s\""));
    // 3 MiB are left of the debt.
    bench.run(750 + 100 + 4_000);
    assert!(programs.iter().all(|it| bench.is_done(*it)));
}

/// The gate of the new unit is a new one, without debts: all would go at once there.
#[test]
fn programs_that_wait_go_on_waiting_where_the_unit_of_the_limit_changes() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..5).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    let idle = bench.world.join("other", 0);
    bench.world.apply(2, &POLICY.replace("limit = \"1MiB/s\"", "limit = \"1 iops\""));
    let now = bench.world.now;
    for program in &programs {
        let held = &bench.world.stage(bench.programs[program].stage).held_until;
        assert!(held.get("short:operations").is_some_and(|until| *until > now), "{held:?}");
    }
    assert!(bench.world.stage(idle).held_until.is_empty());
}

#[test]
fn a_controller_that_starts_anew_goes_on_with_the_queue() {
    let mut bench = indebted();
    let programs: Vec<u64> = (0..5).map(|_| bench.start(4 * MIB, 1)).collect();
    bench.run(1_000);
    bench.restart();
    // It knows nothing of the debt, and of the queue all.
    for (index, program) in programs.iter().enumerate() {
        done_within(&mut bench, *program, if index == 0 { 500 } else { 4_300 });
        assert!(programs[index + 1..].iter().all(|it| !bench.is_done(*it)), "{index}");
    }
}
