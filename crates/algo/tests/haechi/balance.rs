//! A client's tokens, against Definition 1 as it stands, an operation and a moment at a time.

use proptest::prelude::*;
use tidegate_algo::onesided::engine::{LEAD, Promise, TokenBalance};
use tidegate_algo::onesided::{Period, Rules};
use tidegate_model::{Span, Time};

const RULES: [Rules; 4] = [Rules::PAPER, Rules::BASIC, Rules::SOUND, Rules::UNPACED];

fn balance(rules: Rules, reservation: u64, limit: u64) -> TokenBalance {
    let mut balance = TokenBalance::new(rules, 1_000);
    let period = Period { epoch: 1, begun: Time::ZERO, length: Span::SECOND };
    balance.begin(period, Promise { reservation, limit });
    balance
}

/// The paper's first example: 40 used, which is more than 30, leaves 10 and yields none; 50 leave
/// none.
#[test]
fn a_client_that_used_its_tokens_in_time_yields_nothing() {
    for (used, left, yielded) in [(20, 20, 10), (40, 10, 0), (50, 0, 0)] {
        for rules in [Rules::PAPER, Rules::UNPACED] {
            let mut balance = balance(rules, 50, u64::MAX);
            assert!((0..used).all(|_| balance.take(Time::ZERO)));
            balance.note(Time::ZERO, false);
            balance.settle(Time(600_000_000));
            assert_eq!((balance.reserved(), balance.usage().yielded), (left, yielded));
        }
    }
}

/// A client that waits keeps its tokens however late it is; by the paper's text it loses them.
#[test]
fn a_client_that_waits_keeps_its_tokens() {
    for (rules, left) in [(Rules::SOUND, 50), (Rules::UNPACED, 50), (Rules::PAPER, 20)] {
        let mut balance = balance(rules, 50, u64::MAX);
        balance.note(Time(1), true);
        balance.settle(Time(600_000_000));
        assert_eq!(balance.reserved(), left, "{rules:?}");
    }
}

/// An idle client loses its late tokens at the rate C_L, not at once.
#[test]
fn arrears_go_as_fast_as_they_could_have_been_used() {
    let mut balance = balance(Rules::UNPACED, 500, u64::MAX);
    balance.note(Time(1), true);
    balance.note(Time(500_000_000), false);
    balance.settle(Time(600_000_000));
    // 500 were left, 250 beyond the bound. 0.1 s at 1,000 per second; the bound is 200.
    assert_eq!(balance.reserved(), 200 + 150);
    balance.settle(Time(800_000_000));
    assert_eq!(balance.reserved(), 100);
}

/// One with a limit takes no pool tokens in place of its own.
#[test]
fn a_limit_keeps_headroom_for_the_reservation() {
    let mut balance = balance(Rules::SOUND, 300, 500);
    assert_eq!(balance.lacks(), 200);
    balance.put(150);
    assert_eq!(balance.lacks(), 50);
    (0..100).for_each(|_| assert!(balance.take(Time::ZERO)));
    assert_eq!(balance.lacks(), 50);
}

proptest! {
    #[test]
    fn nothing_is_used_twice_nor_before_its_time(
        rule in 0usize..4,
        reservation in 0u64..300,
        over in 0u64..200,
        is_limited: bool,
        mut moves in proptest::collection::vec((0u64..1_200_000_000, 0u8..5, 0u64..40), 1..60),
    ) {
        let rules = RULES[rule];
        let limit = if is_limited { reservation + over } else { u64::MAX };
        let mut balance = balance(rules, reservation, limit);
        moves.sort_unstable();
        let (mut put, mut issued) = (0, 0);
        for (now, kind, count) in moves {
            let time = Time(now);
            match kind {
                0 => balance.note(time, count % 2 == 0),
                1 => {
                    balance.put(count);
                    put += count;
                }
                2 => balance.settle(time),
                _ => {
                    for _ in 0..count {
                        issued += u64::from(balance.take(time));
                    }
                }
            }
            let usage = balance.usage();
            prop_assert_eq!(usage.issued(), issued);
            // Every token is counted once.
            prop_assert_eq!(usage.reserved + usage.yielded + balance.reserved(), reservation);
            prop_assert_eq!(usage.obtained, put);
            prop_assert_eq!(usage.pooled + balance.pool(), put);
            prop_assert!(issued <= limit);
            prop_assert!(!is_limited || balance.headroom() == limit - issued);
            if rules.paces {
                // ρ, a margin early, and as much ahead as may be; no more is used of those.
                let length = Span::SECOND.0 - Span::SECOND.0 / rules.grain.margin;
                let due = u128::from(reservation) * u128::from(now + LEAD.0) / u128::from(length);
                prop_assert!(u128::from(usage.reserved) <= due.min(reservation.into()) );
            }
            if kind == 2 && rules.tokens == Rules::PAPER.tokens {
                let rho = reservation * now.min(Span::SECOND.0) / Span::SECOND.0;
                prop_assert!(balance.reserved() <= reservation - rho);
            }
            // When it says that one more is due, one is: a pace is exact to 57 us of a second.
            let mut then = balance.clone();
            while then.take(time) {}
            if let Some(due) = then.next_due().filter(|_| then.headroom() > 0) {
                prop_assert!(then.take(Time(due.0.max(now) + 100_000)), "{then:?}");
            }
        }
    }
}
