//! Limits and reservations with requests of any cost: what went beyond them is paid back.

use proptest::prelude::*;
use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::{Class, Discipline, Span, Time};

/// The disciplines with promises.
const HEEDING: [Discipline; 2] = [Discipline::Token, Discipline::Unified];

/// A scheduler with one tenant that always has requests of one cost waiting.
struct Greedy {
    scheduler: Scheduler<()>,
    slot: Slot,
    cost: u32,
    now: Time,
    /// Units that were dispatched in all, and those of them that used reservation tokens.
    units: u64,
    by_reservation: u64,
}

impl Greedy {
    fn new(discipline: Discipline, pacing: Pacing, cost: u32) -> Self {
        let mut scheduler = Scheduler::new(discipline, pacing);
        let slot = scheduler.add(TenantParameters::of_weight(1));
        (0..2).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::of(cost), ()));
        Self { scheduler, slot, cost, now: Time::ZERO, units: 0, by_reservation: 0 }
    }

    /// A period with these counts; they change to the second ones in its middle.
    fn period(&mut self, counts: [PeriodGrant; 2], most: u64) {
        let begins = self.now;
        let until = begins.after(Span::SECOND);
        self.scheduler.begin(begins, until);
        for (half, counts) in counts.into_iter().enumerate() {
            self.now = begins.after(Span(half as u64 * Span::SECOND.0 / 2));
            let end = self.now.after(Span(Span::SECOND.0 / 2));
            self.scheduler.grant(self.now, self.slot, counts);
            while self.now < end {
                let mut left = most;
                while left > 0
                    && let Some(got) = self.scheduler.pop(self.now)
                {
                    left -= 1;
                    self.units += u64::from(got.cost);
                    self.by_reservation += if got.is_reserved { u64::from(got.cost) } else { 0 };
                    self.scheduler.push(self.now, self.slot, RequestCost::of(self.cost), ());
                }
                self.now = match self.scheduler.next_eligible() {
                    Some(next) if next > self.now => next.min(end),
                    _ => end,
                };
            }
        }
        self.now = until;
    }
}

/// The case: a limit of 50 in a period, and requests of 256.
#[test]
fn a_request_of_five_periods_is_paid_for_in_five_periods() {
    for discipline in HEEDING {
        for pacing in [Pacing::Even, Pacing::Paper] {
            let mut greedy = Greedy::new(discipline, pacing, 256);
            let counts = PeriodGrant { reserved: 0, allowed: 50 };
            (0..100).for_each(|_| greedy.period([counts; 2], 1_000));
            assert!(greedy.units.abs_diff(5_000) <= 256, "{discipline}: {}", greedy.units);
        }
    }
}

/// The debt of a discipline with limits is there after one without.
#[test]
fn debt_outlives_a_change_of_discipline() {
    let mut greedy = Greedy::new(Discipline::Token, Pacing::Paper, 256);
    let counts = PeriodGrant { reserved: 10, allowed: 50 };
    greedy.period([counts; 2], 1_000);
    assert_eq!((greedy.units, greedy.by_reservation), (256, 256));
    let now = greedy.now;
    greedy.scheduler.set_discipline(now, Discipline::Sfq);
    greedy.scheduler.set_discipline(now, Discipline::Unified);
    (0..4).for_each(|_| greedy.period([counts; 2], 1_000));
    assert_eq!(greedy.units, 256);
    greedy.period([counts; 2], 1_000);
    assert_eq!((greedy.units, greedy.by_reservation), (512, 256), "it may go, but not by right");
}

/// Nothing is owed for what was served while no limits held.
#[test]
fn no_debt_is_made_without_limits() {
    let mut greedy = Greedy::new(Discipline::Sfq, Pacing::Paper, 256);
    let counts = PeriodGrant { reserved: 10, allowed: 50 };
    greedy.period([counts; 2], 10);
    assert_eq!(greedy.units, 2 * 2_560);
    let now = greedy.now;
    greedy.scheduler.set_discipline(now, Discipline::Token);
    greedy.period([counts; 2], 1);
    assert_eq!(greedy.units, 2 * 2_560 + 256);
}

/// A finished request turned out to cost more than at its dispatch: the tenant pays for the rest.
#[test]
fn a_charge_is_paid_back_like_a_cost() {
    for discipline in HEEDING {
        let mut greedy = Greedy::new(discipline, Pacing::Even, 1);
        let counts = PeriodGrant { reserved: 0, allowed: 50 };
        greedy.period([counts; 2], 1_000);
        assert_eq!(greedy.units, 50);
        let more = RequestCost::of(100);
        greedy.scheduler.charge(greedy.now, (greedy.slot, Class::Medium), more, false);
        (0..4).for_each(|_| greedy.period([counts; 2], 1_000));
        assert_eq!(greedy.units, 150, "{discipline}");
    }
}

fn counts() -> impl Strategy<Value = PeriodGrant> {
    (0u64..40, 0u64..60)
        .prop_map(|(reserved, more)| PeriodGrant { reserved, allowed: reserved + more })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// In any row of periods: no more than was allowed in them, and one request; and of that by
    /// right no more than was reserved, and one request. The most that holds in a period counts,
    /// for what was used of it before it fell used reservation tokens.
    #[test]
    fn no_row_of_periods_has_more_than_its_counts(
        (discipline, is_even) in (prop::sample::select(HEEDING.to_vec()), any::<bool>()),
        cost in 1u32..300,
        rows in prop::collection::vec((counts(), counts()), 1..30),
        most in 1u64..100,
    ) {
        let pacing = if is_even { Pacing::Even } else { Pacing::Paper };
        let mut greedy = Greedy::new(discipline, pacing, cost);
        let mut seen = vec![(0u64, 0u64, 0u64, 0u64)];
        for (first, second) in rows {
            greedy.period([first, second], most);
            let (_, _, allowed, reserved) = seen[seen.len() - 1];
            let allowed = allowed + first.allowed.max(second.allowed);
            let reserved = reserved + first.reserved.max(second.reserved);
            let last = (greedy.units, greedy.by_reservation, allowed, reserved);
            for (units, by_reservation, allowed, reserved) in &seen {
                prop_assert!(last.0 - units <= last.2 - allowed + u64::from(cost));
                prop_assert!(last.1 - by_reservation <= last.3 - reserved + u64::from(cost));
            }
            seen.push(last);
        }
    }

    /// Over ten periods a limit holds within one request, for any cost.
    #[test]
    fn a_limit_is_met_over_ten_periods(
        (discipline, is_even) in (prop::sample::select(HEEDING.to_vec()), any::<bool>()),
        cost in 1u32..300,
        allowed in 1u64..200,
    ) {
        let pacing = if is_even { Pacing::Even } else { Pacing::Paper };
        let mut greedy = Greedy::new(discipline, pacing, cost);
        let counts = PeriodGrant { reserved: 0, allowed };
        (0..10).for_each(|_| greedy.period([counts; 2], u64::MAX));
        let apart = greedy.units.abs_diff(10 * allowed);
        prop_assert!(apart <= u64::from(cost), "{} of {}", greedy.units, 10 * allowed);
    }
}
