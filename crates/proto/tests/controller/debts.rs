//! A limit holds for all programs of a tenant, whichever of them start, end or are killed.

use proptest::prelude::*;
use tidegate_model::Span;
use tidegate_proto::message::{Enforcement, FromStage, Rule};

use crate::short_programs::{BURST, Bench, INTERVAL, LIMIT, POLICY};
use crate::world::{MIB, MS};

/// Programs of one request of 4 MiB each, so many at a time, for a while. Returns the bench.
fn short_programs(at_a_time: u64, seconds: u64) -> Bench {
    let mut bench = Bench::new();
    let mut live: Vec<u64> = (0..at_a_time).map(|_| bench.start(4 * MIB, 1)).collect();
    for _ in 0..seconds * 1_000 {
        bench.step();
        for slot in &mut live {
            if bench.is_done(*slot) {
                bench.end(*slot);
                *slot = bench.start(4 * MIB, 1);
            }
        }
    }
    bench
}

#[test]
fn short_programs_have_no_more_than_their_tenants_limit_and_no_less() {
    for at_a_time in [1, 2, 5, 40] {
        let bench = short_programs(at_a_time, 200);
        let first = at_a_time * 4 * MIB;
        let most = 200 * LIMIT * 101 / 100 + BURST + INTERVAL + first;
        assert!(bench.served <= most, "{} of {most} with {at_a_time}", bench.served);
        // Those that wait at the end have paid for most of theirs.
        let least = 200 * LIMIT * 95 / 100 - first;
        assert!(bench.served >= least, "{} of {least} with {at_a_time}", bench.served);
    }
}

/// A program that goes on has its share while others of its tenant wait for what short ones had.
#[test]
fn a_program_that_goes_on_is_not_held() {
    let mut bench = Bench::new();
    let long = bench.start(4 << 10, u32::MAX);
    bench.run(2_000);
    let short = bench.start(4 * MIB, 1);
    bench.run(100);
    assert!(bench.is_done(short));
    bench.end(short);
    let (holds, before) = (bench.holds, bench.programs[&long].left);
    bench.run(4_000);
    assert_eq!(bench.holds, holds, "there is none to be held");
    let alone = u64::from(before - bench.programs[&long].left) * (4 << 10);
    assert!(alone >= 4 * LIMIT * 98 / 100, "{alone} bytes");
    let waits = bench.start(4 * MIB, 1);
    assert_eq!(bench.holds, holds + 1);
    bench.run(1_000);
    assert!(!bench.is_done(waits), "its tenant has had 4 MiB too much");
}

/// Programs that run pay their own debts by waiting; no other program waits for these.
#[test]
fn a_program_does_not_wait_for_what_others_pay_by_themselves() {
    let mut bench = Bench::new();
    let large: Vec<u64> = (0..3).map(|_| bench.start(4 * MIB, u32::MAX)).collect();
    bench.run(2_000);
    assert_eq!(bench.served, 12 * MIB);
    let next = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(next));
    // One of them connects anew, with its debt.
    let program = bench.programs.get_mut(&large[0]).unwrap();
    let fake = bench.world.stages.remove(&program.stage).unwrap();
    bench.world.controller.on_closed(bench.world.now, program.stage, "gone");
    let (done_bytes, waited_ns) = (fake.done_bytes, fake.waited_ns);
    program.stage = bench.world.rejoin(fake, Span::ZERO);
    let fake = bench.world.stage(program.stage);
    (fake.done_bytes, fake.waited_ns) = (done_bytes, waited_ns);
    bench.run(500);
    bench.end(next);
    let next = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(next));
    assert_eq!(bench.holds, 0);
    // Its debt is left behind as it ends.
    bench.end(large[0]);
    bench.start(4 << 10, 1);
    assert_eq!(bench.holds, 1);
}

/// Programs wait for a minute at most, whatever was reported.
#[test]
fn a_debt_is_a_minute_at_most() {
    for bytes in [600 * MIB, u64::MAX] {
        let mut bench = Bench::new();
        let liar = bench.start(4 << 10, 1);
        bench.run(200);
        bench.world.stage(bench.programs[&liar].stage).done_bytes = bytes;
        bench.end(liar);
        let next = bench.start(4 << 10, 1);
        bench.run(55_000);
        assert!(!bench.is_done(next));
        bench.run(6_000);
        assert!(bench.is_done(next));
    }
}

/// A program whose supervisor was killed may use its safe rate as long as it is there. It is idle,
/// which the controller cannot see: later programs of the tenant have the rest of the limit, and
/// debts are paid from that.
#[test]
fn an_idle_program_without_its_supervisor_leaves_the_tenant_most_of_its_limit() {
    let mut bench = Bench::new();
    let idle = bench.start(4 << 10, 1);
    bench.run(500);
    bench.kill(idle);
    bench.run(5_000);
    for _ in 0..3 {
        let next = bench.start(4 * MIB, 1);
        // 4 MiB take 5.4 s at three quarters of the limit.
        bench.run(6_500);
        assert!(bench.is_done(next));
        bench.end(next);
    }
    let steady = bench.start(64 << 10, 1_000);
    bench.run(6_500);
    let before = bench.served;
    bench.run(4_000);
    let rate = (bench.served - before) / 4;
    assert!((LIMIT * 72 / 100..=LIMIT * 76 / 100).contains(&rate), "{rate}");
    bench.end(steady);
}

/// A program whose supervisor was killed pays its own debt by waiting, as others do.
#[test]
fn a_killed_supervisor_leaves_no_debt_that_was_paid() {
    let mut bench = Bench::new();
    let first = bench.start(4 * MIB, 1);
    bench.run(200);
    bench.kill(first);
    let next = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(next), "it is there and pays by itself");
    bench.end(next);
    // 0.2 s and this are what the first one's request takes at the limit.
    bench.run(4_000);
    bench.end(first);
    let next = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(next));
    assert_eq!(bench.holds, 0);
}

/// Leaves a debt of 4 MiB and starts a program that waits for it.
fn waiting() -> (Bench, u64) {
    let mut bench = Bench::new();
    let first = bench.start(4 * MIB, 1);
    bench.run(50);
    bench.end(first);
    let next = bench.start(4 << 10, 1);
    bench.run(1_000);
    assert!(!bench.is_done(next));
    (bench, next)
}

#[test]
fn a_limit_that_changes_holds_for_debts_from_then_on() {
    let limits = |limit: &str| POLICY.replace("limit = \"1MiB/s\"", limit);
    let (mut bench, next) = waiting();
    bench.world.apply(2, &limits(""));
    bench.run(150);
    assert!(bench.is_done(next), "without a limit there is no debt");
    let (mut bench, next) = waiting();
    bench.world.apply(2, &limits("limit = \"4MiB/s\""));
    bench.run(1_000);
    assert!(bench.is_done(next), "2.9 MiB are 0.7 s");
    let (mut bench, next) = waiting();
    bench.world.apply(2, &limits("limit = \"2MiB/s\"\nburst = \"4MiB\""));
    bench.run(150);
    assert!(bench.is_done(next), "all of it is a burst");
    let (mut bench, next) = waiting();
    bench.world.apply(2, &POLICY.replace("short", "long"));
    bench.world.apply(3, POLICY);
    bench.programs.remove(&next);
    let next = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(next), "a tenant that comes back owes nothing");
}

/// Programs within a limit owe nothing by a lower one.
#[test]
fn a_lower_limit_makes_no_debts() {
    let policy = |limit: &str| {
        POLICY.replace("limit = \"1MiB/s\"", &format!("limit = \"{limit}\"\nburst = \"1s\""))
    };
    let mut bench = Bench::new();
    bench.world.apply(2, &policy("8MiB/s"));
    let long = bench.start(4 << 10, 0);
    bench.run(2_000);
    bench.programs.get_mut(&long).unwrap().left = u32::MAX;
    bench.run(300);
    assert!(bench.served > 8 * MIB, "a burst");
    bench.world.apply(3, &policy("64KiB/s"));
    bench.run(10);
    bench.end(long);
    let next = bench.start(4 << 10, 1);
    assert_eq!(bench.holds, 0);
    // Its bucket has 10 ms of the rate.
    bench.run(60);
    assert!(bench.is_done(next));
}

/// Tenants of a group with a limit.
#[test]
fn a_groups_limit_holds_for_the_short_programs_of_its_tenants() {
    let mut bench = Bench::new();
    let group = "[[group]]\nname = \"both\"\nlimit = \"1MiB/s\"\n";
    let policy = POLICY.replace("limit = \"1MiB/s\"", "group = \"both\"");
    let others = "[[tenant]]\nname = \"third\"\ngroup = \"both\"\n\
                  [[tenant]]\nname = \"promised\"\nreservation = \"100KiB/s\"\ngroup = \"both\"\n";
    bench.world.apply(2, &format!("{policy}{others}{group}"));
    let first = bench.start(4 * MIB, 1);
    bench.run(50);
    bench.end(first);
    let third = bench.world.join("third", 0);
    let of_third = |bench: &mut Bench| {
        let rules = bench.world.changes(third).into_iter().flatten();
        let hold = |rule| match rule {
            Rule::Enforcement(Enforcement::Hold { gate, span }) => Some((gate, span)),
            _ => None,
        };
        rules.filter_map(hold).collect::<Vec<_>>()
    };
    let holds = of_third(&mut bench);
    let [(gate, span)] = &holds[..] else { panic!("{holds:?}") };
    assert_eq!(gate, "third:bandwidth");
    // The excess of the group, and a second.
    assert!((4_500 * MS..5_000 * MS).contains(&span.0), "{span}");
    // A reservation holds, whatever others of the group had.
    let promised = bench.world.join("promised", 0);
    let is_hold = |rule| matches!(rule, Rule::Enforcement(Enforcement::Hold { .. }));
    assert!(!bench.world.changes(promised).into_iter().flatten().any(is_hold));
    bench.world.send(promised, FromStage::Disconnect);
    // As the group earns, its stages need not wait, whatever rates they have.
    bench.start(4 << 10, 1);
    bench.run(4_000);
    assert!(of_third(&mut bench).iter().all(|(_, span)| *span == Span::ZERO));
    let last = bench.start(4 << 10, 1);
    bench.run(1);
    assert!(bench.is_done(last));
}

/// A tenant within its limit is never held, also where reports are late.
#[test]
fn programs_within_their_limit_are_not_held() {
    let mut bench = Bench::new();
    let long = bench.start(4 << 10, u32::MAX);
    for round in 0..20 {
        // Its supervisor is stopped for a while.
        bench.world.stage(bench.programs[&long].stage).is_deaf = round % 10 == 5;
        let short = bench.start(4 << 10, 1);
        bench.run(97);
        bench.end(short);
        bench.run(903);
    }
    assert!(bench.served >= 20 * LIMIT * 9 / 10, "{} bytes", bench.served);
    assert_eq!(bench.holds, 0);
}

#[derive(Clone, Debug)]
enum Act {
    Start { size: u64, left: u32 },
    End(usize),
    Kill(usize),
    Run(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let size = prop_oneof![Just(4 << 10), Just(64 << 10), Just(MIB), Just(4 * MIB)];
    prop_oneof![
        6 => (size, prop_oneof![3 => Just(1u32), 1 => 1..50u32])
            .prop_map(|(size, left)| Act::Start { size, left }),
        4 => any::<usize>().prop_map(Act::End),
        1 => any::<usize>().prop_map(Act::Kill),
        6 => (1u64..700).prop_map(Act::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// In no window is more served than the limit allows, a burst and an interval, one larger
    /// request, and a burst and a larger request for each program at a time that did not wait at
    /// its start, or has had its first request, and for each killed supervisor. A hundredth of the
    /// limit is forgiven, and one is for programs that start.
    #[test]
    fn a_limit_holds_in_every_window(acts in prop::collection::vec(act(), 1..120)) {
        let mut bench = Bench::new();
        for act in acts {
            let pick = |index: usize, bench: &Bench| {
                let count = bench.programs.len();
                bench.programs.keys().nth(index.checked_rem(count)?).copied()
            };
            match act {
                Act::Start { size, left } => {
                    if bench.programs.len() == 8 {
                        let first = *bench.programs.keys().next().unwrap();
                        bench.end(first);
                    }
                    bench.start(size, left);
                }
                Act::End(index) => pick(index, &bench).into_iter().for_each(|it| bench.end(it)),
                Act::Kill(index) => pick(index, &bench).into_iter().for_each(|it| bench.kill(it)),
                Act::Run(milliseconds) => bench.run(milliseconds),
            }
        }
        let programs = (bench.there_max as u64 + 1) * (4 * MIB + BURST);
        let starting = bench.world.now.0 / MS * LIMIT / 1_000 / 50;
        let most = BURST + INTERVAL + programs + bench.lost + starting;
        prop_assert!(bench.most <= most as f64, "{} of {most} bytes", bench.most);
    }
}
