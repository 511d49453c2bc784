//! The data node's books, against clients that take what is there and say what they like.

use proptest::prelude::*;
use tidegate_algo::haechi::engine::Promise;
use tidegate_algo::haechi::monitor::{Pool, Report};
use tidegate_algo::haechi::{Period, Rules};
use tidegate_model::{Span, Time};

fn books(rules: Rules, capacity: u64, reservations: &[u64]) -> (Pool, i64) {
    let mut pool = Pool::new(rules, Span::SECOND);
    let period = Period { epoch: 1, begun: Time::ZERO, length: Span::SECOND };
    let promise = |reservation: &u64| Some(Promise { reservation: *reservation, limit: u64::MAX });
    let first = pool.begin(period, capacity, reservations.iter().map(promise));
    pool.opened(first as i64);
    (pool, first as i64)
}

/// The text: Ω − ΣR until somebody takes, then max(Ω (T − t) ÷ T − L, 0), whatever was taken.
#[test]
fn the_text_forgets_what_was_taken() {
    let (mut pool, first) = books(Rules::PAPER, 1_000, &[300, 300]);
    assert_eq!(first, 400);
    assert_eq!(pool.target(Time(500_000_000)), 400);
    pool.changed(150, 150);
    assert_eq!(pool.target(Time(500_000_000)), 0, "nothing was yielded");
    pool.hear(Time(500_000_000), 0, Some(Report { residual: 100, ..Report::default() }));
    assert_eq!(pool.target(Time(500_000_000)), 100);
    let (mut basic, _) = books(Rules::BASIC, 1_000, &[300, 300]);
    basic.changed(150, 150);
    assert_eq!(basic.target(Time(500_000_000)), 150, "it only shrinks");
}

/// A client that used pool tokens while its own came due has some of its own left. It has done more
/// than is due, so nobody is held for it; before, all others were, and the node had nothing to do.
#[test]
fn who_used_pool_tokens_first_is_not_behind() {
    for (completed, is_held) in [(260, false), (200, true)] {
        let (mut pool, _) = books(Rules::SOUND, 1_000, &[500, 0]);
        let now = Time(500_000_000);
        let report = Report { residual: 300, completed, is_busy: true, ..Report::default() };
        pool.hear(now, 0, Some(report));
        pool.target(now);
        assert_eq!(pool.is_held(), is_held, "{completed} of 255 that are due");
    }
}

/// What is reserved for somebody who has nothing to do comes to others as if it were nobody's, at
/// any time; with a margin, a part of it came when the period was over.
#[test]
fn what_an_idle_client_leaves_comes_in_time() {
    let (mut alone, _) = books(Rules::SOUND, 100_000, &[50_000]);
    let (mut beside, _) = books(Rules::SOUND, 100_000, &[50_000, 40_000]);
    let (mut without, mut with) = (0, 0);
    for at in (5..=1_000).step_by(5) {
        let now = Time(at * 1_000_000);
        let yielded = 40 * at;
        let report = Report { residual: 40_000 - yielded, yielded, ..Report::default() };
        beside.hear(now, 1, Some(report));
        for (pool, tokens) in [(&mut alone, &mut without), (&mut beside, &mut with)] {
            // All of it is taken at once.
            let target = pool.target(now);
            pool.changed(0, target);
            pool.changed(0, 0);
            *tokens += target;
        }
        assert_eq!(with, without, "after {at} ms");
    }
    assert_eq!(with, 50_000);
}

/// Tokens at once stood in somebody's way: for the rest of the period they come bit by bit, and in
/// the next from its beginning.
#[test]
fn after_somebody_was_waited_for_the_pool_is_a_stream() {
    let (mut pool, mut word) = books(Rules::UNPACED, 1_000, &[400]);
    assert_eq!(word, 600);
    for (at, residual, target) in [
        (100_000_000, 380, 0),
        // It has caught up: 600 in 900 ms, for the 100 ms since it was looked last.
        (200_000_000, 310, 66),
    ] {
        let completed = 400 - residual;
        let report = Report { residual, completed, is_busy: true, ..Report::default() };
        pool.hear(Time(at), 0, Some(report));
        assert_eq!(pool.target(Time(at)), target);
        pool.changed(word, target);
        word = target;
    }
    let period = Period { epoch: 2, begun: Time(1_000_000_000), length: Span::SECOND };
    let promise = Promise { reservation: 400, limit: u64::MAX };
    assert_eq!(pool.begin(period, 1_000, [Some(promise)]), 0);
    pool.opened(0);
    assert_eq!(pool.target(Time(1_100_000_000)), 60);
}

proptest! {
    /// Whatever clients take, and whatever they say of it within the truth of what they yielded,
    /// no more is granted than made, and that with what is reserved and not yielded is within Ω.
    #[test]
    fn no_more_is_granted_than_made(
        is_paced: bool,
        capacity in 1u64..5_000,
        parts in proptest::collection::vec(0u64..100, 1..5),
        moves in proptest::collection::vec(
            (1u64..30_000_000, 0usize..5, 0i64..900, any::<bool>()), 1..80),
    ) {
        let rules = if is_paced { Rules::SOUND } else { Rules::UNPACED };
        let sum = parts.iter().sum::<u64>().max(1) * 2;
        let reservations: Vec<u64> = parts.iter().map(|part| capacity * part / sum).collect();
        let (mut pool, mut word) = books(rules, capacity, &reservations);
        let (mut taken, mut now) = (0, Time::ZERO);
        let mut yielded = vec![0; reservations.len()];
        for (passed, who, take, is_told) in moves {
            now = now.after(Span(passed));
            if now >= Time::ZERO.after(Span::SECOND) {
                break;
            }
            // Somebody takes; the pool tells what it got.
            taken += word.clamp(0, take);
            word -= take;
            if let Some(reservation) = reservations.get(who).filter(|_| is_told) {
                let rest = reservation - yielded[who];
                yielded[who] += rest / 3;
                let report = Report {
                    residual: rest - rest / 3,
                    yielded: yielded[who],
                    is_busy: take % 2 == 0,
                    ..Report::default()
                };
                pool.hear(now, who, Some(report));
            }
            // The monitor reads, decides and changes; in between somebody takes again.
            pool.changed(word, word);
            pool.suspects(now);
            pool.doubts(now);
            let add = pool.target(now) - word;
            taken += word.clamp(0, take / 2);
            word -= take / 2;
            pool.changed(word, word + add);
            word += add;
            prop_assert_eq!(pool.granted(), taken as u64);
            prop_assert!(pool.granted() <= pool.minted());
            // Who is not heard of has what is its own, or it was given away.
            let given: u64 = (0..reservations.len())
                .map(|who| if pool.is_suspect(who) { reservations[who] } else { yielded[who] })
                .sum();
            let own = reservations.iter().sum::<u64>() - given;
            prop_assert!(pool.granted() + word.max(0) as u64 + own <= capacity);
        }
    }

    /// What is in the word and was not made goes with the next change.
    #[test]
    fn what_nobody_made_is_taken_away(foreign in 1i64..10_000, take in 0i64..200) {
        let (mut pool, first) = books(Rules::UNPACED, 1_000, &[300]);
        let word = first + foreign - take;
        pool.changed(word, word);
        let target = pool.target(Time::ZERO);
        prop_assert!(target <= first);
        prop_assert!(pool.granted() <= pool.minted());
    }
}
