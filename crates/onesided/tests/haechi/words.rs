//! The words that both sides write, as bytes: a change to one makes another version of them.

use proptest::prelude::*;
use tidegate_algo::onesided::capacity::PeriodUsage;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::ClientReport;
use tidegate_onesided::haechi::words::{self, Grant, PoolWord};

/// A report of all that can be told apart.
const REPORT: ClientReport = ClientReport {
    residual: 0x123_4567,
    completed: 0x765_4321 & ((1 << 26) - 1),
    in_hand: 0xABCDE,
    in_flight: 0x777,
    obtained: 5,
    yielded: 9,
    is_busy: true,
    is_starved: false,
    is_limited: true,
    is_leaving: false,
};

#[test]
fn words_are_these() {
    assert_eq!(PoolWord::word(0x1_0002, 0), 0x0002_4000_0000_0000);
    assert_eq!(PoolWord::word(2, -1), 0x0002_3FFF_FFFF_FFFF);
    let promise = Promise { reservation: 0x1234, limit: u64::MAX };
    let epoch = 0x1_0003;
    let grant =
        Grant { epoch, is_void: false, is_late: false, has_left: false, batch: 1000, promise };
    assert_eq!(
        grant.words(),
        [0x0003_0000_0000_03E8, 0x0003_0000_0000_1234, 0x0003_FFFF_FFFF_FFFF]
    );
    let void = Grant { is_void: true, ..grant };
    assert_eq!(void.words()[0], 0x0003_0000_0001_03E8);
    assert_eq!(
        words::report(0x5AB, 0xBEEF, &REPORT),
        [0x5AB4_8D15_9F65_4321, 0x5ABA_BCDE_7775_BEEF, 0x5AB0_0000_1400_0009]
    );
    let outcome = PeriodUsage { completed: 0x12_3456, starved: 7, backlogged: 255, unmet: None };
    assert_eq!(words::last(0x1FFF, &outcome), 0xFFF0_0012_3456_07FF);
    // 999 more and one are about 62 << 4.
    let hungry = PeriodUsage { unmet: Some(999), ..outcome };
    assert_eq!(words::last(0x1FFF, &hungry), 0xFFF0_0012_3456_07FF | 5 << 47 | 30 << 42);
}

#[test]
fn counts_that_do_not_fit_are_as_large_as_fits() {
    let all = u64::MAX;
    let report =
        ClientReport { residual: all, completed: all, in_hand: all, in_flight: all, ..REPORT };
    let report = ClientReport { obtained: all, yielded: all, ..report };
    let decoded = words::read_report(words::report(9, 1, &report), 9).unwrap();
    let most = (1 << 26) - 1;
    assert_eq!([decoded.residual, decoded.completed, decoded.obtained, decoded.yielded], [most; 4]);
    assert_eq!((decoded.in_hand, decoded.in_flight), ((1 << 20) - 1, (1 << 12) - 1));
    let outcome = PeriodUsage { completed: all, starved: 1, backlogged: 2, unmet: None };
    assert_eq!(words::read_last(words::last(9, &outcome), 9).unwrap().completed, most);
}

proptest! {
    /// Unmet demand is reported to a part in 32, and never as more than it was.
    #[test]
    fn unmet_counts_are_rounded(unmet in 0u64..(1 << 26) - 1, digits in 0u32..26) {
        let unmet = unmet >> digits;
        let outcome = PeriodUsage { unmet: Some(unmet), completed: 5, starved: 6, backlogged: 7 };
        let decoded = words::read_last(words::last(3, &outcome), 3).unwrap();
        prop_assert_eq!(PeriodUsage { unmet: Some(unmet), ..decoded }, outcome);
        let decoded = decoded.unmet.unwrap();
        let is_near = decoded <= unmet && (unmet - decoded) * 32 <= unmet + 1;
        prop_assert!(is_near, "{} of {}", decoded, unmet);
    }

    #[test]
    fn a_pool_is_read_as_it_was_written(epoch in 0u64..1 << 40, tokens in -(1i64 << 46)..1 << 46) {
        let pool = PoolWord::read(PoolWord::word(epoch, tokens));
        prop_assert_eq!(pool.tokens, tokens);
        prop_assert!(pool.is_of(epoch) && !pool.is_of(epoch + 1) && pool.is_of(epoch + (1 << 16)));
    }

    /// Also by a client that has missed up to half of all numbers, or is ahead by as many.
    #[test]
    fn a_grant_is_read_as_it_was_written(
        epoch in 1u64 << 15..1 << 40,
        known in -(1i64 << 14)..1 << 14,
        is_void: bool,
        is_late: bool,
        batch: u16,
        reservation in 0u64..1 << 26,
        limit in prop_oneof![Just(u64::MAX), 0u64..1 << 26],
    ) {
        let promise = Promise { reservation, limit };
        let grant = Grant { epoch, is_void, is_late, has_left: is_late, batch, promise };
        let known = epoch.checked_add_signed(known).unwrap();
        prop_assume!(epoch & 0xFFFF != 0);
        prop_assert_eq!(Grant::read(grant.words(), known), Some(grant));
        // Words of two periods are none.
        let mut mixed = grant.words();
        mixed[usize::from(batch % 3)] ^= 1 << 48;
        prop_assert_eq!(Grant::read(mixed, known), None);
    }

    #[test]
    fn a_report_is_read_in_its_period_only(
        epoch in 0u64..1 << 40,
        beat: u16,
        other in 1u64..1 << 12,
        counts in proptest::array::uniform4(0u64..1 << 26),
        in_hand in 0u64..1 << 20,
        in_flight in 0u64..1 << 12,
        flags in proptest::array::uniform4(any::<bool>()),
    ) {
        let [residual, completed, obtained, yielded] = counts;
        let [is_busy, is_starved, is_limited, is_leaving] = flags;
        let report = ClientReport {
            residual, completed, in_hand, in_flight, obtained, yielded,
            is_busy, is_starved, is_limited, is_leaving,
        };
        let words = words::report(epoch, beat, &report);
        prop_assert_eq!(words::beat(words), beat);
        prop_assert_eq!(words::read_report(words, epoch), Some(report));
        prop_assert_eq!(words::read_report(words, epoch + other), None);
        let later = words::report(epoch + other, beat, &report);
        for at in 0..3 {
            let mut mixed = words;
            mixed[at] = later[at];
            prop_assert_eq!(words::read_report(mixed, epoch), None);
        }
    }

    /// A number is never one of whose last bits none is set: that is the word of no period.
    #[test]
    fn no_period_has_the_number_of_none(epoch in 0u64..1 << 40) {
        let next = words::next(epoch);
        prop_assert!(next > epoch && next <= epoch + 2 && next & 0xFFF != 0);
    }
}
