//! The words of a data node's region on the wire: golden bits, and what does not fit.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use proptest::prelude::*;

use super::*;

#[test]
fn a_period_has_a_number_that_is_never_zero_in_a_word() {
    assert_eq!([0, 1, 4094, 4095, 4097].map(next), [1, 2, 4095, 4097, 4098]);
    // In both forms: 16 bits are never zero if twelve are not.
    let mut epoch = 0;
    for _ in 0..5_000 {
        epoch = next(epoch);
        assert!(epoch & 0xfff != 0);
    }
}

#[test]
fn golden_words_of_a_pool() {
    assert_eq!(PoolWord::word(0x1_0007, 5), 0x0007_4000_0000_0005);
    assert_eq!(
        PoolWord::word(7, -1),
        0x0007_3fff_ffff_ffff,
        "whoever takes too much borrows nothing"
    );
    assert_eq!(PoolWord::read(0x0007_3fff_ffff_fff0), PoolWord { epoch: 7, tokens: -16 });
    let pool = PoolWord { epoch: 7, tokens: 0 };
    assert!(pool.is_of(7) && pool.is_of(0x1_0007) && !pool.is_of(0x1007) && !pool.is_of(8));
}

fn grant() -> Grant {
    let promise = Promise { reservation: 100, limit: 300 };
    Grant { epoch: 9, is_void: true, is_late: false, has_left: false, batch: 0x1234, promise }
}

#[test]
fn golden_words_of_a_grant() {
    let words = [0x0009_0000_0001_1234, 0x0009_0000_0000_0064, 0x0009_0000_0000_012c];
    assert_eq!(grant().words(), words);
    let late = Grant { is_void: false, is_late: true, ..grant() };
    assert_eq!(late.words()[0], 0x0009_0000_0002_1234);
    let left = Grant { is_void: false, has_left: true, ..grant() };
    assert_eq!(left.words()[0], 0x0009_0000_0004_1234);
    for grant in [grant(), late, left] {
        assert_eq!(Grant::read(grant.words(), 0), Some(grant));
    }
}

#[test]
fn a_grant_is_read_whole_and_in_the_nearest_period() {
    assert_eq!(Grant::read([0; GRANT], 0), None, "zeros grant nothing");
    for other in 0..GRANT {
        let mut words = grant().words();
        words[other] = Grant { epoch: 10, ..grant() }.words()[other];
        assert_eq!(Grant::read(words, 9), None, "word {other} is of another period");
    }
    let read = |epoch: u64, known: u64| {
        Grant::read(Grant { epoch, ..grant() }.words(), known).map(|grant| grant.epoch)
    };
    assert_eq!(read(0x5_0001, 0x4_fffe), Some(0x5_0001), "across the end of 16 bits");
    assert_eq!(read(0x4_fffe, 0x5_0001), Some(0x4_fffe), "and backwards");
    assert_eq!(read(0x5_0001, 0), Some(1), "with nothing known, as it stands there");
    assert_eq!(read(0xffff, 1), None, "before the beginning is no period");
}

#[test]
fn a_promise_that_does_not_fit_is_as_large_as_fits_and_no_limit_stays_none() {
    let read = |reservation, limit| {
        let promise = Promise { reservation, limit };
        Grant::read(Grant { promise, ..grant() }.words(), 9).unwrap().promise
    };
    let most = (1 << 48) - 1;
    assert_eq!(read(most, most - 1), Promise { reservation: most, limit: most - 1 });
    assert_eq!(read(most + 1, u64::MAX), Promise { reservation: most, limit: u64::MAX });
    assert_eq!(read(0, most).limit, u64::MAX, "a limit that large is none");
}

#[test]
fn golden_words_of_a_report() {
    let whole = ClientReport {
        residual: 1,
        completed: 2,
        in_hand: 3,
        in_flight: 4,
        obtained: 5,
        yielded: 6,
        is_busy: true,
        is_starved: false,
        is_limited: true,
        is_leaving: false,
    };
    let words = report(0x1_7001, 0xabcd, &whole);
    let golden = [0x0010_0000_0400_0002, 0x0010_0003_0045_abcd, 0x0010_0000_1400_0006];
    assert_eq!(words, golden);
    assert_eq!((beat(words), read_report(words, 1)), (0xabcd, Some(whole)));
    assert_eq!(read_report(words, 0x1001), Some(whole), "of the number only twelve bits count");
    assert_eq!(read_report(words, 2), None);
    for at in 0..REPORT {
        let mut torn = words;
        torn[at] = report(2, 0, &whole)[at];
        assert_eq!(read_report(torn, 1), None, "word {at} is of another period");
    }
}

#[test]
fn golden_words_of_a_final() {
    let outcome = PeriodUsage { completed: 9, starved: 3, backlogged: 255, unmet: Some(999) };
    let word = last(0x2005, &outcome);
    // 1,000 is 62 << 4, and stands there as 30 with a shift of 4 and one.
    assert_eq!(word, 5 << 52 | (5 << 5 | 30) << 42 | 9 << 16 | 3 << 8 | 255);
    assert_eq!(read_last(word, 5), Some(PeriodUsage { unmet: Some(991), ..outcome }));
    assert_eq!(read_last(word, 4), None);
    let unknown = PeriodUsage { unmet: None, ..outcome };
    assert_eq!(read_last(last(5, &unknown), 5), Some(unknown));
    let none = PeriodUsage { unmet: Some(0), ..outcome };
    assert_eq!(read_last(last(5, &none), 5), Some(none));
}

#[test]
fn a_rough_count_is_exact_up_to_63_and_loses_less_than_a_32nd() {
    assert!((0..64).all(|value| count(rough(value)) == value));
    for value in (64..1 << 16).chain((1 << 25..1 << 26).step_by(977)) {
        let read = count(rough(value));
        assert!(read <= value && value - read < value.div_ceil(32), "{value} was {read}");
        assert!(rough(value) < 1 << ROUGH);
    }
    assert_eq!(rough(u64::MAX), rough((1 << COUNT) - 1), "as much as fits");
}

proptest! {
    #[test]
    fn a_pool_is_read_as_it_was_written(epoch: u64, tokens in -(1_i64 << 45)..1 << 45) {
        let pool = PoolWord::read(PoolWord::word(epoch, tokens));
        prop_assert_eq!(pool, PoolWord { epoch: epoch as u16, tokens });
        prop_assert!(pool.is_of(epoch));
    }

    #[test]
    fn a_grant_is_read_as_it_was_written(
        epoch in 1_u64..1 << 40, ahead in -30_000_i64..30_000, is_void: bool, is_late: bool,
        batch: u16, reservation in 0_u64..1 << 48, limit in 0_u64..(1 << 48) - 1,
    ) {
        let epoch = if epoch & 0xffff == 0 { epoch + 1 } else { epoch };
        let known = epoch.saturating_add_signed(ahead).max(1);
        let promise = Promise { reservation, limit };
        let grant = Grant { epoch, is_void, is_late, has_left: is_late, batch, promise };
        prop_assert_eq!(Grant::read(grant.words(), known), Some(grant));
    }

    #[test]
    fn a_report_is_as_it_was_or_as_much_as_fits(
        counts: [u64; 4], small in prop::bool::ANY, hands: [u64; 2], flags: [bool; 4], epoch: u64,
        beat_now: u16,
    ) {
        let fits = |value: u64, bits: u32| value.min((1 << bits) - 1);
        let cut = |value: u64, bits: u32| if small { value >> (64 - bits) } else { value };
        let [residual, completed, obtained, yielded] = counts.map(|value| cut(value, 26));
        let (in_hand, in_flight) = (cut(hands[0], 20), cut(hands[1], 12));
        let [is_busy, is_starved, is_limited, is_leaving] = flags;
        let whole = ClientReport {
            residual, completed, in_hand, in_flight, obtained, yielded, is_busy, is_starved,
            is_limited, is_leaving,
        };
        let words = report(epoch, beat_now, &whole);
        prop_assert_eq!(beat(words), beat_now);
        let read = read_report(words, epoch).unwrap();
        prop_assert_eq!(read, ClientReport {
            residual: fits(residual, 26), completed: fits(completed, 26),
            in_hand: fits(in_hand, 20), in_flight: fits(in_flight, 12),
            obtained: fits(obtained, 26), yielded: fits(yielded, 26), ..whole
        });
    }
}
