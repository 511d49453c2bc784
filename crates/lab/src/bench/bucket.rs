//! The time of one decision of a token bucket that never runs empty, compared with other rate
//! limiters.

use std::hint::black_box;

use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
use tidegate_model::Time;

use super::stage::{PAGE, agent};
use super::window::{BUSY, Contestant, Ours, WindowPlan, contest};
use super::{Row, peers};

const BENCH: &str = "stage";
/// The most time of a decision: by one thread, with the stage's clock, and by two threads on one
/// bucket.
const ALONE_NS: f64 = 12.0;
const TOGETHER_NS: f64 = 40.0;
/// Tokens per second that no request waits for.
const RATE: u64 = (1 << 40) - 1;

pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    // For its clock, which is what a bucket in a stage is asked with.
    let Some(agent) = agent(vec![]) else {
        let row = Row::nanoseconds(BENCH, "bucket", None);
        return report(row.because("no stage can be made here"));
    };
    let take = |bucket: &TokenBucket, shard, cost, calls| {
        for _ in 0..calls {
            let now = || agent.stage().now();
            let taken = black_box(bucket).take_in(shard, black_box(cost), now);
            black_box(taken == Take::Granted);
        }
    };
    // One that is far from empty, and one so small that every taker has to look at the clock.
    let (large, small) = (TokenBucket::default(), TokenBucket::default());
    large.configure(RATE, RATE / 2, Time::ZERO);
    small.configure(RATE, 63, Time::ZERO);
    let mut large = Ours::new(|thread, calls| take(&large, thread, PAGE, calls));
    let mut small = Ours::new(|thread, calls| take(&small, thread, 1, calls));
    let mut peers = peers::limiters();
    for (threads, case, promise) in
        [(1, "bucket", ALONE_NS), (2, "bucket, two threads on one", TOGETHER_NS)]
    {
        let mut all: Vec<(usize, &mut dyn Contestant)> =
            vec![(threads, &mut large), (threads, &mut small)];
        for (_, peer) in &mut peers {
            if let Ok(peer) = peer {
                all.push((threads, &mut **peer));
            }
        }
        let mut values = contest(plan, &mut all).into_iter();
        let (ours, looking) = (values.next().flatten(), values.next().flatten());
        for (name, peer) in &peers {
            let value = match peer {
                Ok(_) => values.next().flatten().ok_or_else(|| BUSY.to_owned()),
                Err(reason) => Err(reason.clone()),
            };
            report(Row::nanoseconds(BENCH, case, ours).promised(promise).beside(name, value));
        }
        report(Row::nanoseconds(BENCH, format!("{case}, looking at the clock each time"), looking));
    }
}
