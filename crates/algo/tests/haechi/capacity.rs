//! The estimate of a node's capacity: the text's, and the sound one's steps.

use proptest::prelude::*;
use tidegate_algo::onesided::Mode;
use tidegate_algo::onesided::capacity::{Estimator, Lesson, PeriodUsage, Profile, Verdict, WHOLE};

const PROFILE: Profile =
    Profile { mean: 1_570_000, deviation: 10_000, local: 400_000, increment: 15_700, history: 3 };

fn lesson(tokens: u64, outcomes: &[PeriodUsage]) -> Lesson<'_> {
    Lesson { tokens, slack: 640 + tokens / 500, spare: 0, held: 0, outcomes }
}

/// Algorithm 1, line by line.
#[test]
fn the_text_is_unchanged() {
    let mut estimator = Estimator::new(Mode::Paper, PROFILE, None);
    let mut learn = |used| {
        let outcome = PeriodUsage { completed: used, ..PeriodUsage::default() };
        let tokens = estimator.capacity();
        let verdict = estimator.learn(&lesson(tokens, &[outcome]));
        (verdict, estimator.capacity())
    };
    assert_eq!(learn(1_570_000), (Verdict::Raised, 1_585_700));
    assert_eq!(learn(1_585_699), (Verdict::Lowered, 1_585_699), "it is off by one for ever");
    assert_eq!(learn(1_600_000), (Verdict::Kept, 1_585_699), "more than Ω is not covered");
    assert_eq!(learn(1_540_001), (Verdict::Lowered, 1_562_850), "the mean of two");
    assert_eq!(learn(1_540_000), (Verdict::Lowered, 1_555_233), "and of three");
    assert_eq!(learn(1_550_000), (Verdict::Lowered, 1_543_333), "the oldest is gone");
    assert_eq!(learn(1_539_999), (Verdict::Kept, 1_543_333), "below the bound is not seen");
}

/// A node that does `real`, and ten clients who want all of it and may have so much under way.
fn learn_period(estimator: &mut Estimator, real: u64) -> u64 {
    let tokens = estimator.capacity();
    let used = tokens.min(real);
    let (starved, backlogged) = if tokens <= real { (WHOLE / 2, WHOLE / 2) } else { (0, WHOLE) };
    let outcome = PeriodUsage { completed: used / 10, starved, backlogged, unmet: None };
    estimator.learn(&lesson(tokens, &[outcome; 10]));
    used
}

fn learn(estimator: &mut Estimator, lesson: &Lesson<'_>) -> u64 {
    estimator.learn(lesson);
    estimator.capacity()
}

/// Others starved for a client that was behind and could hardly have done more alone. The node may
/// have had nothing to do meanwhile: U says less than it can do.
#[test]
fn what_is_done_while_others_are_held_is_not_all_that_can_be() {
    let near = PeriodUsage { completed: 370_000, starved: 0, backlogged: WHOLE, unmet: None };
    let held =
        PeriodUsage { completed: 700_000, starved: WHOLE / 2, backlogged: WHOLE / 3, unmet: None };
    let outcomes = [near, held];
    let lesson = Lesson { held: WHOLE / 3, ..lesson(PROFILE.mean, &outcomes) };
    let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
    assert_eq!(learn(&mut estimator, &lesson), PROFILE.mean - PROFILE.increment, "a step");
    // Far from what it could have done alone it was held up by the node.
    let far = PeriodUsage { completed: 250_000, ..near };
    let outcomes = [far, held];
    let lesson = Lesson { outcomes: &outcomes, ..lesson };
    let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
    assert_eq!(learn(&mut estimator, &lesson), 950_000 + (PROFILE.mean - 950_000) / 4);
}

/// A client that starves although tokens are left waits for something else. Tokens yielded too late
/// do not show a lack of capacity.
#[test]
fn tokens_are_short_only_if_none_are_left() {
    let starved =
        PeriodUsage { completed: 750_000, starved: WHOLE / 2, backlogged: WHOLE / 4, unmet: None };
    let outcomes = [starved; 2];
    let short = Lesson { tokens: 1_500_000, ..lesson(PROFILE.mean, &outcomes) };
    let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
    assert_eq!(learn(&mut estimator, &short), PROFILE.mean + PROFILE.increment);
    let plenty = Lesson { spare: 100_000, ..lesson(PROFILE.mean, &outcomes) };
    let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
    assert_eq!(learn(&mut estimator, &plenty), PROFILE.mean);
}

proptest! {
    /// After a step of 10 to 30 % either way, all of the node but 1 % is used within 12 periods and
    /// no more is given out than 1 % above it within 8 of a step down.
    #[test]
    fn a_step_is_found(percent in 10u64..30, is_up: bool) {
        let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
        let real = match is_up {
            true => PROFILE.mean * (100 + percent) / 100,
            false => PROFILE.mean * (100 - percent) / 100,
        };
        (0..12).for_each(|_| _ = learn_period(&mut estimator, real));
        for _ in 0..20 {
            let used = learn_period(&mut estimator, real);
            prop_assert!(used * 100 >= real * 99, "{used} of {real}");
        }
        let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
        let real = PROFILE.mean * (100 - percent) / 100;
        (0..8).for_each(|_| _ = learn_period(&mut estimator, real));
        let learned = estimator.capacity();
        prop_assert!(learned * 100 <= real * 102, "{learned} of {real}");
    }

    /// Clients that want less than the capacity, or have a limit, teach the estimator nothing.
    #[test]
    fn little_demand_changes_nothing(done in 0u64..150_000, periods in 1usize..30) {
        let mut estimator = Estimator::new(Mode::Sound, PROFILE, None);
        for _ in 0..periods {
            let backlogged = WHOLE / 4;
            let outcome = PeriodUsage { completed: done, starved: 0, backlogged, unmet: None };
            let tokens = estimator.capacity();
            let verdict = estimator.learn(&lesson(tokens, &[outcome; 10]));
            prop_assert_eq!((verdict, estimator.capacity()), (Verdict::Kept, PROFILE.mean));
        }
    }
}
