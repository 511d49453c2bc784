//! How exactly a bucket holds its rate, in virtual time: every rate, request size and number of
//! takers that is promised, and every window of one second, from the first on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
use tidegate_model::Time;
use tidegate_model::gate::Burst;

const SECOND: u64 = 1_000_000_000;
const RUN: u64 = 4 * SECOND;

/// Takers in closed loops that take again as soon as they were granted. Grants as (time, bytes).
fn grants(bucket: &TokenBucket, takers: usize, cost: u64) -> Vec<(u64, u64)> {
    let mut arrivals: BinaryHeap<_> = (0..takers).map(|taker| Reverse((0, taker))).collect();
    let mut grants = Vec::new();
    while let Some(Reverse((now, taker))) = arrivals.pop() {
        if now > RUN {
            continue;
        }
        let at = match bucket.take_in(taker, cost, || Time(now)) {
            Take::Granted => now,
            Take::Wait(due) => bucket.ready_at(due).0.max(now),
        };
        grants.push((at, cost));
        // Time moves on by a nanosecond, so that a full bucket does not grant for ever.
        arrivals.push(Reverse((at + 1, taker)));
    }
    grants.sort_unstable();
    grants
}

/// The least and the most bytes in any second that begins at a grant and ends within the run.
fn extremes(grants: &[(u64, u64)]) -> (u64, u64) {
    let (mut least, mut most) = (u64::MAX, 0);
    let (mut end, mut sum) = (0, 0);
    for (index, (begin, cost)) in grants.iter().enumerate() {
        if begin + SECOND > RUN {
            break;
        }
        while end < grants.len() && grants[end].0 < begin + SECOND {
            sum += grants[end].1;
            end += 1;
        }
        least = least.min(sum);
        most = most.max(sum);
        sum -= cost;
        assert!(index < end);
    }
    (least, most)
}

#[test]
fn every_second_is_within_two_per_cent_and_one_request() {
    for rate in [1u64 << 20, 10 << 20, 100 << 20, 1000 << 20] {
        let burst = Burst::DEFAULT.tokens(rate);
        for cost in [4_096, 65_536, burst, 8 * burst, 64 * burst] {
            for takers in [1, 8, 64] {
                let bucket = TokenBucket::new(rate, burst, Time::ZERO);
                let (least, most) = extremes(&grants(&bucket, takers, cost));
                let (rate, cost) = (rate as f64, cost as f64);
                // A request is indivisible: a window holds one more or one less of them.
                let case = format!("{rate} B/s, requests of {cost}, {takers} takers");
                assert!(most as f64 <= rate * 1.02 + cost, "{case}: {most} in a second");
                assert!(least as f64 >= rate * 0.98 - cost, "{case}: {least} in a second");
            }
        }
    }
}

#[test]
fn small_requests_are_within_two_per_cent_outright() {
    for rate in [1u64 << 20, 10 << 20, 100 << 20, 1000 << 20] {
        let bucket = TokenBucket::new(rate, Burst::DEFAULT.tokens(rate), Time::ZERO);
        let (least, most) = extremes(&grants(&bucket, 8, 4_096));
        assert!(most as f64 <= rate as f64 * 1.02, "{rate}: {most}");
        assert!(least as f64 >= rate as f64 * 0.98, "{rate}: {least}");
    }
}
