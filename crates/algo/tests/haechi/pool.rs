//! The data node's account of tokens, against clients that take what is there and report anything.

use proptest::prelude::*;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::{ClientReport, TokenAccount};
use tidegate_algo::onesided::{Period, Rules};
use tidegate_model::{Span, Time};

fn new_pool(rules: Rules, capacity: u64, reservations: &[u64]) -> (TokenAccount, i64) {
    let mut pool = TokenAccount::new(rules, Span::SECOND);
    let period = Period { epoch: 1, begun: Time::ZERO, length: Span::SECOND };
    let promise = |reservation: &u64| Some(Promise { reservation: *reservation, limit: u64::MAX });
    let first = pool.begin(period, capacity, reservations.iter().map(promise));
    pool.opened(first as i64);
    (pool, first as i64)
}

/// The text: Ω − ΣR until a client takes, then max(Ω (T − t) ÷ T − L, 0), whatever was taken.
#[test]
fn the_text_forgets_what_was_taken() {
    let (mut pool, first) = new_pool(Rules::PAPER, 1_000, &[300, 300]);
    assert_eq!(first, 400);
    assert_eq!(pool.target(Time(500_000_000)), 400);
    pool.changed(150, 150);
    assert_eq!(pool.target(Time(500_000_000)), 0, "nothing was yielded");
    pool.on_report(
        Time(500_000_000),
        0,
        Some(ClientReport { residual: 100, ..ClientReport::default() }),
    );
    assert_eq!(pool.target(Time(500_000_000)), 100);
    let (mut basic, _) = new_pool(Rules::BASIC, 1_000, &[300, 300]);
    basic.changed(150, 150);
    assert_eq!(basic.target(Time(500_000_000)), 150, "it only shrinks");
}

/// A client that used pool tokens while its own came due has some of its own left. It has done more
/// than is due, so no client is held for it; before, all others were, and the node had nothing to
/// do.
#[test]
fn a_client_that_used_pool_tokens_first_is_not_behind() {
    for (completed, held) in [(260, 0), (200, 255)] {
        let (mut pool, _) = new_pool(Rules::SOUND, 1_000, &[500, 0]);
        let now = Time(500_000_000);
        let report =
            ClientReport { residual: 300, completed, is_busy: true, ..ClientReport::default() };
        pool.on_report(now, 0, Some(report));
        pool.target(now);
        assert_eq!(pool.held(), held, "{completed} of 255 that are due");
    }
}

/// The throttle: 10,000 of 20,000 are reserved, so others get 10 in a millisecond. After 490 ms
/// half of the reservation is due. For a client that is behind by 2 ms of it the throttle stays
/// open; by 5 ms it is shut, and in between open in proportion. For a client that waits for tokens
/// it stays open, too.
#[test]
fn the_later_a_client_is_the_less_other_clients_get() {
    let target = |behind: u64, is_busy, is_starved| {
        let (mut pool, _) = new_pool(Rules::SOUND, 20_000, &[10_000, 0]);
        let [before, now] = [485, 490].map(|at| Time(at * 1_000_000));
        let left = pool.target(before);
        pool.changed(0, left);
        pool.changed(0, 0);
        let completed = 5_000 - behind;
        let residual = 10_000 - completed;
        let report =
            ClientReport { residual, completed, is_busy, is_starved, ..ClientReport::default() };
        pool.on_report(now, 0, Some(report));
        (pool.target(now), pool.held())
    };
    let all = target(0, true, false);
    assert!((48..=50).contains(&all.0) && all.1 == 0, "{all:?}");
    for (behind, part) in [(20, 255), (25, 213), (35, 131), (45, 49), (50, 8), (51, 0)] {
        assert_eq!(target(behind, true, false), (all.0 * part / 255, 255 - part as u8));
        assert_eq!(target(behind, true, true), all, "it waits for tokens");
    }
}

/// A client had nothing to do for 250 of 500 ms, and has yielded half of its 10,000 by then. By
/// what is due a fiftieth of the period early it is behind by 102, more than 5 ms, when it comes
/// back. It was not late, so the pool does not wait for it until it falls behind from there on.
#[test]
fn a_client_that_comes_back_is_not_behind() {
    let half = Span(500_000_000);
    let mut pool = TokenAccount::new(Rules::SOUND, half);
    let period = Period { epoch: 1, begun: Time::ZERO, length: half };
    pool.begin(period, 20_000, [Some(Promise { reservation: 10_000, limit: u64::MAX })]);
    let idle = ClientReport { residual: 5_000, yielded: 5_000, ..ClientReport::default() };
    let mut held = |now, report| {
        pool.on_report(Time(now), 0, Some(report));
        pool.target(Time(now));
        pool.held()
    };
    assert_eq!(held(250_000_000, idle), 0);
    let back = ClientReport { is_busy: true, ..idle };
    assert_eq!(held(250_000_000, back), 0);
    // In 5 ms 102 become due. So far behind it may be, and no more.
    let on = |completed| ClientReport { residual: 5_000 - completed, completed, ..back };
    assert_eq!(held(255_000_000, on(102)), 0);
    assert_eq!(held(255_000_000, on(0)), 255);
}

/// Only tokens that are due a fiftieth of the period early can be made good until its end. So in
/// 200 ms the throttle is closed after 4 ms rather than 5, in 50 ms after 1, and it begins to shut
/// at half of that.
#[test]
fn in_a_short_period_the_throttle_closes_early() {
    for (length, open, shut) in [(200, 99, 201), (50, 24, 51), (400, 99, 251)] {
        let length = Span(length * 1_000_000);
        let held = |behind| {
            let mut pool = TokenAccount::new(Rules::SOUND, length);
            let period = Period { epoch: 1, begun: Time::ZERO, length };
            let reservation = 50 * length.0 / 1_000_000;
            pool.begin(period, 2 * reservation, [Some(Promise { reservation, limit: u64::MAX })]);
            let now = Time(length.0 * 49 / 100);
            let completed = reservation / 2 - behind;
            let residual = reservation - completed;
            let report =
                ClientReport { residual, completed, is_busy: true, ..ClientReport::default() };
            pool.on_report(now, 0, Some(report));
            pool.target(now);
            pool.held()
        };
        assert_eq!(held(open), 0, "{length}");
        assert!(held(shut - 1) < 255 && held(shut) == 255, "{length}");
    }
}

/// Tokens reserved for an idle client come to other clients at any time, as if they were not
/// reserved. With a margin, a part of them came when the period was over.
#[test]
fn what_an_idle_client_leaves_comes_in_time() {
    let (mut alone, _) = new_pool(Rules::SOUND, 100_000, &[50_000]);
    let (mut beside, _) = new_pool(Rules::SOUND, 100_000, &[50_000, 40_000]);
    let (mut without, mut with) = (0, 0);
    for at in (5..=1_000).step_by(5) {
        let now = Time(at * 1_000_000);
        let yielded = 40 * at;
        let report =
            ClientReport { residual: 40_000 - yielded, yielded, ..ClientReport::default() };
        beside.on_report(now, 1, Some(report));
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

/// Tokens at once stood in a client's way: for the rest of the period they come bit by bit, and in
/// the next from its beginning.
#[test]
fn after_the_pool_was_held_for_a_client_it_is_a_stream() {
    let (mut pool, mut word) = new_pool(Rules::UNPACED, 1_000, &[400]);
    assert_eq!(word, 600);
    for (at, residual, target) in [
        (100_000_000, 380, 0),
        // It has caught up: 600 in 900 ms, for the 100 ms since the last call.
        (200_000_000, 310, 66),
    ] {
        let completed = 400 - residual;
        let report = ClientReport { residual, completed, is_busy: true, ..ClientReport::default() };
        pool.on_report(Time(at), 0, Some(report));
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
        let (mut pool, mut word) = new_pool(rules, capacity, &reservations);
        let (mut taken, mut now) = (0, Time::ZERO);
        let mut yielded = vec![0; reservations.len()];
        for (passed, who, take, is_reported) in moves {
            now = now.after(Span(passed));
            if now >= Time::ZERO.after(Span::SECOND) {
                break;
            }
            // A client takes; the pool counts what it got.
            taken += word.clamp(0, take);
            word -= take;
            if let Some(reservation) = reservations.get(who).filter(|_| is_reported) {
                let rest = reservation - yielded[who];
                yielded[who] += rest / 3;
                let report = ClientReport {
                    residual: rest - rest / 3,
                    yielded: yielded[who],
                    is_busy: take % 2 == 0,
                    ..ClientReport::default()
                };
                pool.on_report(now, who, Some(report));
            }
            // The monitor reads, decides and changes; in between a client takes again.
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
            // A silent client has its own tokens, or they were given away.
            let given: u64 = (0..reservations.len())
                .map(|who| if pool.is_suspect(who) { reservations[who] } else { yielded[who] })
                .sum();
            let own = reservations.iter().sum::<u64>() - given;
            prop_assert!(pool.granted() + word.max(0) as u64 + own <= capacity);
        }
    }

    /// Tokens in the word that the monitor did not make go with the next change.
    #[test]
    fn tokens_that_the_monitor_did_not_make_are_removed(
        foreign in 1i64..10_000, take in 0i64..200
    ) {
        let (mut pool, first) = new_pool(Rules::UNPACED, 1_000, &[300]);
        let word = first + foreign - take;
        pool.changed(word, word);
        let target = pool.target(Time::ZERO);
        prop_assert!(target <= first);
        prop_assert!(pool.granted() <= pool.minted());
    }
}
