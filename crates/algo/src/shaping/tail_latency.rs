//! Tail latency of a store that works in the background: the rates of flushes and compactions.
//!
//! # Problem
//! A log-structured merge tree answers its clients in the foreground. In the background it writes
//! full memory tables to level 0 (*flushes*), merges level 0 into level 1 (*low compactions*), and
//! merges deeper levels (*high compactions*). All of it uses one device. Clients wait for the
//! background twice: while it uses up the device, and where level 0 is full because flushes and low
//! compactions were too slow. High compactions can be put off for long; the other two cannot. SILK
//! schedules them inside the store. PAIO (§8.1, Algorithm 1) does it from outside, with a rate for
//! each kind of background work.
//!
//! # Model
//! A budget, in bytes per second, is all that the store may use (the paper's KVS_B). Its foreground
//! was measured at some rate (Fg). Each background flow has a [`FlowPriority`], a minimum rate
//! (min_B), and a demand: none if it is idle, and unbounded while its requests have to wait. An
//! active flow is one with demand.
//!
//! # Mechanism
//! 1. The foreground counts with its measured rate. While its requests wait it counts with twice
//!    that, and with a sixteenth of the budget at least. It leaves the minimum rates of all flows
//!    in any case; together they are at most half of the budget.
//! 2. Every flow gets its minimum.
//! 3. What is left goes to active flows of high priority, in equal parts, up to their demand.
//! 4. What these do not want goes to active flows of low priority, in the same way.
//! 5. What no flow wants is headroom: for active flows of high priority; without these for those of
//!    low priority; without any active flow for all flows of low priority.
//!
//! Example, in MiB/s: the budget is 200, the foreground uses 50, and three flows (flush, low and
//! high compactions) have a minimum of 10 each. So 150 are left, of which 120 are divided.
//!
//! | active flows | flush | low | high | as printed in the paper |
//! |---|---|---|---|---|
//! | all, backlogged | 70 | 70 | 10 | 75, 75, 10 |
//! | flush and high | 130 | 10 | 10 | 150, 10, 10 |
//! | low and high | 10 | 130 | 10 | 10, 150, 10 |
//! | high | 10 | 10 | 130 | 10, 10, 150 |
//! | flush wants 30, low and high are backlogged | 30 | 110 | 10 | 75, 75, 10 |
//! | flush and low want 30 each, high is backlogged | 30 | 30 | 90 | 75, 75, 10 |
//!
//! # Beyond the paper
//! - **The budget holds.** With the paper's rates, foreground and background add up to the budget
//!   and one minimum (first row) or two, and to the budget and two or three minimum rates where the
//!   foreground uses all of it. Here the foreground's part and the background's rates never add up
//!   to more than the budget. Minimum rates that do not fit are lowered, all by the same factor.
//! - **Nothing is lost.** The paper gives an active flow its part whether or not it wants it, and
//!   divides the rate of high compactions over all threads even if one of them works.
//! - **A foreground that waits is given way.** Where the background uses up what it got, a
//!   foreground that grows shares the budget with it and cannot show how much it wants. Counted
//!   twice, it has what it wants after a few cycles. One that waits behind a single large request
//!   takes no more than its own rate from the background.
//!
//! # Left out
//! No work is preempted. A high compaction keeps its thread while it has its minimum only, so a low
//! one may have to wait for a free thread of the store; SILK stops the high one then.

use alloc::vec;
use alloc::vec::Vec;

use tidegate_model::policy::FlowPriority;

use crate::shaping::fair_share::{TenantDemand, allocate};

/// The minimum rates take at most one part in this many of the budget, and the foreground has the
/// rest whenever it wants it. A store with more background than that falls behind anyway. Chosen by
/// hand.
const MINIMUM_RATES_PART: u64 = 2;

/// The foreground counts with this many times its measured rate while its requests wait. Twice is
/// the usual step of a search upwards: it comes from a tenth to all of a budget in four cycles.
const GROWTH: u64 = 2;

/// A foreground that waits counts with at least one part in this many of the budget, however little
/// of it was served. Chosen by hand.
const START_PART: u64 = 16;

/// The use of the budget by clients of the store in the last cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForegroundUse {
    /// Bytes per second.
    pub rate: u64,
    /// Whether its requests waited for the budget.
    pub has_waited: bool,
}

impl ForegroundUse {
    /// The rate that it counts with.
    fn counted(self, budget: u64) -> u64 {
        match self.has_waited {
            true => self.rate.saturating_mul(GROWTH).max(budget / START_PART),
            false => self.rate,
        }
    }
}

/// One kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundFlow {
    /// Whether clients wait for it sooner or later.
    pub priority: FlowPriority,
    /// The rate that it has in any case, in bytes per second.
    pub minimum: u64,
    /// The rate that it wants, in bytes per second: zero while it is idle, [`u64::MAX`] while its
    /// requests have to wait.
    pub demand: u64,
}

/// The rate of each flow, in their order. `budget` is the rate of foreground and background
/// together; [`u64::MAX`] is no bound, and the flows have none then.
///
/// ```
/// use tidegate_algo::shaping::tail_latency::{BackgroundFlow, ForegroundUse, background_rates};
/// use tidegate_model::policy::FlowPriority::{High, Low};
/// let flow = |priority, demand| BackgroundFlow { priority, minimum: 10, demand };
/// let foreground = ForegroundUse { rate: 50, has_waited: false };
/// let flows = [flow(High, u64::MAX), flow(High, u64::MAX), flow(Low, u64::MAX)];
/// assert_eq!(background_rates(200, foreground, &flows), [70, 70, 10]);
/// // The first wants less, and the second has the rest.
/// let flows = [flow(High, 30), flow(High, u64::MAX), flow(Low, u64::MAX)];
/// assert_eq!(background_rates(200, foreground, &flows), [30, 110, 10]);
/// ```
pub fn background_rates(
    budget: u64,
    foreground: ForegroundUse,
    flows: &[BackgroundFlow],
) -> Vec<u64> {
    if budget == u64::MAX {
        return vec![u64::MAX; flows.len()];
    }
    let mut rates = minimum_rates(budget, flows);
    // They are at most a part of the budget.
    let minimum: u64 = rates.iter().sum();
    let mut left = budget - minimum - foreground.counted(budget).min(budget - minimum);
    for priority in [FlowPriority::High, FlowPriority::Low] {
        let demand = |flow: &BackgroundFlow| match flow.priority == priority {
            true => flow.demand,
            false => 0,
        };
        if !raise(flows, demand, (&mut rates, &mut left)) {
            return rates;
        }
    }
    let takes_headroom = headroom(flows);
    let headroom = |flow: &BackgroundFlow| if takes_headroom(flow) { u64::MAX } else { 0 };
    raise(flows, headroom, (&mut rates, &mut left));
    rates
}

/// The minimum rate of each flow: its own, or where all together would take more than half of the
/// budget, its part of that half.
fn minimum_rates(budget: u64, flows: &[BackgroundFlow]) -> Vec<u64> {
    let all: u128 = flows.iter().map(|flow| u128::from(flow.minimum)).sum();
    let most = u128::from(budget / MINIMUM_RATES_PART);
    let fitted = |flow: &BackgroundFlow| match u128::from(flow.minimum) {
        minimum if all <= most => minimum as u64,
        // No more than `minimum`, as `most` is less than `all`; that is not zero then.
        minimum => (minimum * most / all) as u64,
    };
    flows.iter().map(fitted).collect()
}

/// Raises the rates of flows towards a ceiling, in equal steps, by what is left of the budget.
/// Whether all of them reached it; a flow above its ceiling has.
fn raise(
    flows: &[BackgroundFlow],
    ceiling: impl Fn(&BackgroundFlow) -> u64,
    (rates, left): (&mut [u64], &mut u64),
) -> bool {
    let missing = |(flow, rate): (&BackgroundFlow, &u64)| {
        let limit = ceiling(flow).saturating_sub(*rate);
        TenantDemand { limit, ..TenantDemand::BACKLOGGED }
    };
    let missing = Vec::from_iter(flows.iter().zip(&*rates).map(missing));
    let shares = allocate(*left, &missing);
    for (rate, share) in rates.iter_mut().zip(&shares) {
        *rate += share;
        *left -= share;
    }
    shares.iter().zip(&missing).all(|(share, missing)| *share == missing.limit)
}

/// Which flows have what no flow wants.
fn headroom(flows: &[BackgroundFlow]) -> impl Fn(&BackgroundFlow) -> bool + use<> {
    let has = |priority: FlowPriority, is_active: bool| {
        let is_one =
            |flow: &BackgroundFlow| flow.priority == priority && (flow.demand > 0 || !is_active);
        flows.iter().any(is_one)
    };
    let choices =
        [(FlowPriority::High, true), (FlowPriority::Low, true), (FlowPriority::Low, false)];
    let chosen = choices.into_iter().find(|(priority, is_active)| has(*priority, *is_active));
    move |flow| match chosen {
        Some((priority, is_active)) => flow.priority == priority && (flow.demand > 0 || !is_active),
        // There is no flow of low priority, and none is active.
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use FlowPriority::{High, Low};
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    use super::*;

    const ANY: u64 = u64::MAX;

    fn flow(priority: FlowPriority, demand: u64) -> BackgroundFlow {
        BackgroundFlow { priority, minimum: 10, demand }
    }

    fn measured(rate: u64) -> ForegroundUse {
        ForegroundUse { rate, has_waited: false }
    }

    /// Flush, low and high compactions with these demands.
    fn store(demands: [u64; 3]) -> [BackgroundFlow; 3] {
        let [flush, low, high] = demands;
        [flow(High, flush), flow(High, low), flow(Low, high)]
    }

    /// Algorithm 1 as the paper prints it.
    fn printed(foreground: u64, [flush, low, _]: [u64; 3]) -> [u64; 3] {
        const BUDGET: u64 = 200;
        const MINIMUM: u64 = 10;
        let left = BUDGET.saturating_sub(foreground).max(MINIMUM);
        match (flush > 0, low > 0) {
            (true, true) => [left / 2, left / 2, MINIMUM],
            (true, false) => [left, MINIMUM, MINIMUM],
            (false, true) => [MINIMUM, left, MINIMUM],
            (false, false) => [MINIMUM, MINIMUM, left],
        }
    }

    /// The four cases of the paper, with an idle foreground, a busy one and a greedy one.
    #[test]
    fn the_cases_of_the_paper() {
        let mut table = String::new();
        for foreground in [0, 50, 200] {
            for demands in [[ANY, ANY, ANY], [ANY, 0, ANY], [0, ANY, ANY], [0, 0, ANY]] {
                let ours = background_rates(200, measured(foreground), &store(demands));
                let paper = printed(foreground, demands);
                let sum = foreground + paper.iter().sum::<u64>();
                table += &format!("{foreground}: {ours:?}, printed {paper:?} = {sum}\n");
            }
        }
        let golden = "\
0: [95, 95, 10], printed [100, 100, 10] = 210
0: [180, 10, 10], printed [200, 10, 10] = 220
0: [10, 180, 10], printed [10, 200, 10] = 220
0: [10, 10, 180], printed [10, 10, 200] = 220
50: [70, 70, 10], printed [75, 75, 10] = 210
50: [130, 10, 10], printed [150, 10, 10] = 220
50: [10, 130, 10], printed [10, 150, 10] = 220
50: [10, 10, 130], printed [10, 10, 150] = 220
200: [10, 10, 10], printed [5, 5, 10] = 220
200: [10, 10, 10], printed [10, 10, 10] = 230
200: [10, 10, 10], printed [10, 10, 10] = 230
200: [10, 10, 10], printed [10, 10, 10] = 230
";
        assert_eq!(table, golden);
    }

    #[test]
    fn what_one_flow_does_not_want_another_has() {
        let rates = |demands| background_rates(200, measured(50), &store(demands));
        assert_eq!(rates([30, ANY, ANY]), [30, 110, 10]);
        assert_eq!(rates([30, 30, ANY]), [30, 30, 90]);
        // No flow wants the rest: active flows have it as headroom.
        assert_eq!(rates([30, 0, 40]), [100, 10, 40]);
        assert_eq!(rates([0, 0, 40]), [10, 10, 130]);
        assert_eq!(rates([0, 0, 0]), [10, 10, 130]);
        assert_eq!(background_rates(100, measured(0), &[flow(High, 0), flow(High, 0)]), [50, 50]);
    }

    #[test]
    fn low_priority_is_divided_over_active_flows_only() {
        let flows = [flow(Low, ANY), flow(Low, 0), flow(Low, 0)];
        assert_eq!(background_rates(200, measured(50), &flows), [130, 10, 10]);
    }

    #[test]
    fn minimum_rates_that_do_not_fit_are_lowered() {
        let rates = |budget, rate| background_rates(budget, measured(rate), &store([ANY; 3]));
        assert_eq!(rates(60, 60), [10, 10, 10]);
        assert_eq!(rates(30, 30), [5, 5, 5]);
        assert_eq!(rates(30, 0), [12, 12, 5]);
        assert_eq!(rates(0, 0), [0, 0, 0]);
        assert_eq!(rates(ANY, 5), [ANY; 3]);
        assert_eq!(background_rates(10, measured(5), &[]), [0; 0]);
    }

    /// A foreground that wants all of the budget, beside a background that does, too. Both use what
    /// they may, and what is beyond the budget is taken from both in proportion.
    #[test]
    fn a_foreground_that_waits_has_what_it_wants_after_a_few_cycles() {
        let mut foreground = ForegroundUse { rate: 20, has_waited: false };
        let mut rates = Vec::new();
        for _ in 0..5 {
            let background: u64 = background_rates(200, foreground, &store([ANY; 3])).iter().sum();
            foreground = ForegroundUse { rate: 200 - background, has_waited: true };
            rates.push(foreground.rate);
        }
        assert_eq!(rates, [20, 40, 80, 160, 170]);
        let starved = ForegroundUse { rate: 0, has_waited: true };
        assert_eq!(background_rates(160, starved, &[flow(Low, ANY)]), [150]);
    }

    /// The same division, unit by unit. Each unit goes to the flow that has had the fewest, of the
    /// first group that is not empty; headroom is counted by itself.
    fn unit_by_unit(budget: u64, foreground: u64, flows: &[BackgroundFlow]) -> Vec<u64> {
        let mut base = minimum_rates(budget, flows);
        let all: u64 = base.iter().sum();
        let mut rates = base.clone();
        let (mut left, mut has_headroom) = (budget - all - foreground.min(budget - all), false);
        while left > 0 && !flows.is_empty() {
            let is = |at: &usize, priority: FlowPriority| flows[*at].priority == priority;
            let wants = |at: &usize| rates[*at] < flows[*at].demand;
            let is_active = |at: &usize| flows[*at].demand > 0;
            let all = 0..flows.len();
            let groups = [
                Vec::from_iter(all.clone().filter(|at| is(at, High) && wants(at))),
                Vec::from_iter(all.clone().filter(|at| is(at, Low) && wants(at))),
                Vec::from_iter(all.clone().filter(|at| is(at, High) && is_active(at))),
                Vec::from_iter(all.clone().filter(|at| is(at, Low) && is_active(at))),
                Vec::from_iter(all.clone().filter(|at| is(at, Low))),
                Vec::from_iter(all),
            ];
            let chosen = groups.iter().position(|group| !group.is_empty()).unwrap();
            if chosen >= 2 && !has_headroom {
                (base, has_headroom) = (rates.clone(), true);
            }
            let next = groups[chosen].iter().min_by_key(|at| rates[**at] - base[**at]).unwrap();
            rates[*next] += 1;
            left -= 1;
        }
        rates
    }

    fn some_flow() -> impl Strategy<Value = BackgroundFlow> {
        let priority = prop_oneof![Just(High), Just(Low)];
        let demand = prop_oneof![Just(0), Just(ANY), 1u64..300];
        (priority, 0u64..60, demand).prop_map(|(priority, minimum, demand)| BackgroundFlow {
            priority,
            minimum,
            demand,
        })
    }

    proptest! {
        #[test]
        fn rates_are_those_of_a_division_unit_by_unit(
            budget in 0u64..600,
            foreground in 0u64..700,
            flows in prop::collection::vec(some_flow(), 0..6),
        ) {
            let rates = background_rates(budget, measured(foreground), &flows);
            let exact = unit_by_unit(budget, foreground, &flows);
            // Every share is rounded down.
            let is_near = |(rate, exact): (&u64, &u64)| rate <= exact && *exact <= rate + 1;
            prop_assert!(rates.iter().zip(&exact).all(is_near), "{rates:?} and not {exact:?}");
        }

        /// Whatever the flows: the budget holds, no more than rounding is lost, and each flow has
        /// its minimum.
        #[test]
        fn foreground_and_background_keep_to_the_budget(
            budget in 0u64..u64::MAX,
            rate in any::<u64>(),
            has_waited in any::<bool>(),
            flows in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 1..6),
        ) {
            let flows = Vec::from_iter(flows.into_iter().map(|(is_high, minimum, demand)| {
                let priority = if is_high { High } else { Low };
                BackgroundFlow { priority, minimum, demand }
            }));
            let foreground = ForegroundUse { rate, has_waited };
            let rates = background_rates(budget, foreground, &flows);
            let minimum = minimum_rates(budget, &flows);
            let least: u64 = minimum.iter().sum();
            let counted = foreground.counted(budget).min(budget - least);
            prop_assert!(counted >= rate.min(budget - least));
            let sum: u128 = rates.iter().copied().map(u128::from).sum();
            let all = sum + u128::from(counted);
            prop_assert!(all <= u128::from(budget));
            prop_assert!(all + flows.len() as u128 > u128::from(budget));
            prop_assert!(rates.iter().zip(&minimum).all(|(rate, minimum)| rate >= minimum));
            prop_assert!(least <= budget / 2);
        }

        /// More foreground never makes a flow faster, and more budget never slower.
        #[test]
        fn the_background_yields(
            budget in 0u64..1_000,
            more in 0u64..100,
            foreground in 0u64..1_000,
            flows in prop::collection::vec(some_flow(), 0..6),
        ) {
            let rates = |budget, foreground| background_rates(budget, measured(foreground), &flows);
            let sum = |rates: Vec<u64>| rates.into_iter().sum::<u64>();
            // Each share may be rounded down by one, and so may each minimum rate.
            let count = 2 * flows.len() as u64;
            let before = sum(rates(budget, foreground));
            prop_assert!(sum(rates(budget, foreground + more)) <= before + count);
            prop_assert!(sum(rates(budget + more, foreground)) + count >= before);
        }
    }
}
