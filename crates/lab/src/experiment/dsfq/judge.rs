//! DSFQ paper, figures 8 and 12: checks that hold for the simulated and for the live runs.

use tidegate_sim::bricks::DsfqReport;

use super::sweep::Sweep;
use super::{A, Check, EQUAL, F, G, MINIMUM, apart, mean, range, share, thousandths};
use crate::experiment::verdict::{at_least, at_most, between, near, rises};

/// Where the paper's g has its share: "around 13".
const KNEE: [f64; 2] = [12.0, 15.0];

/// g's fraction of the brick by its weight.
const SHARE: f64 = 2.0 / 3.0;

/// Latencies this far apart are the same, and throughputs too, in percent.
const SAME: f64 = 10.0;

/// Latency that grows is at least so many times what it was.
const LONGER: f64 = 1.2;

/// Totals can be balanced while g is served at most this many MB/s on B: the paper's 4, and 5 if
/// nothing that is cut from one request's delay is lost, which is κ = 10 times the twelfth of
/// 6 MB/s.
pub(super) const BALANCED: f64 = 4.0;
pub(super) const BALANCED_OWED: f64 = 5.0;

/// The paper's hybrid cuts delays by the size of the next request, however small, so it is looser.
pub(super) const NEARLY: f64 = 10.0;
/// A share is counted in whole requests.
const KEPT: f64 = 0.98;

/// The latency of a stream on A, in milliseconds.
pub(super) fn latency(outcome: &DsfqReport, stream: usize) -> Option<f64> {
    outcome.latency(stream, A).map(|seconds| seconds * 1e3)
}

/// The number of threads from which g has its share, if it ever has.
pub(super) fn knee(sweep: &Sweep) -> Option<u32> {
    let has = |(_, outcome): &&(u32, DsfqReport)| share(outcome) >= SHARE * (1.0 - EQUAL / 100.0);
    sweep.points.iter().find(has).map(|(count, _)| *count)
}

/// g's share grows up to the knee, which is where the paper's is, and stays there.
pub(super) fn grows_to_its_share(threads: &[u32], shares: &[f64], knee: Option<u32>) -> [Check; 3] {
    let index = threads.iter().position(|count| Some(*count) == knee);
    let index = index.unwrap_or(shares.len().saturating_sub(1));
    let percent = |shares: &[f64]| shares.iter().map(|share| share * 100.0).collect::<Vec<_>>();
    [
        between("threads for that", "", KNEE, knee.map_or(f64::INFINITY, f64::from)),
        rises(1.0, "its share before", "%", percent(&shares[..shares.len().min(index + 1)])),
        near("its share from then on", "%", 66.7, 3.3, percent(&shares[index..])),
    ]
}

/// The paper's claim about latencies.
pub(super) const LATENCIES: &str = "g's latency stays the same until it has its share; then more \
    threads give it more latency instead, and nothing changes for f";

/// Latencies and throughput below and above the number of threads that gives g its share.
pub(super) struct Latencies {
    /// Of g, before: least and most, in milliseconds.
    pub(super) before: [f64; 2],
    /// Of g, with the most threads.
    pub(super) last: f64,
    /// Throughput of f, after: least and most.
    other: [f64; 2],
}

impl Latencies {
    pub(super) fn of(sweep: &Sweep, knee: u32) -> Self {
        let (before, after): (Vec<_>, Vec<_>) =
            sweep.points.iter().partition(|(count, _)| *count < knee);
        Self {
            before: range(before.iter().filter_map(|(_, outcome)| latency(outcome, G))),
            last: after.last().and_then(|(_, outcome)| latency(outcome, G)).unwrap_or(0.0),
            other: range(after.iter().map(|(_, outcome)| mean(outcome, F, A))),
        }
    }

    /// Of f's throughput, in percent.
    pub(super) fn change(&self) -> f64 {
        let [low, high] = self.other;
        apart(low, high)
    }

    pub(super) fn checks(&self) -> [Check; 3] {
        let [least, most] = self.before;
        [
            at_most("before, g's latency varies by", "%", SAME, apart(least, most)),
            rises(LONGER, "then and with 20 threads it", "ms", [most, self.last]),
            at_most("f's throughput changes after by", "%", SAME, self.change()),
        ]
    }
}

/// g keeps a twelfth of brick A.
pub(super) fn has_minimum(sweep: &Sweep) -> Check {
    let shares: Vec<f64> = sweep.outcomes().map(|outcome| share(outcome) * 100.0).collect();
    at_least("of A", "%", thousandths(MINIMUM * KEPT * 100.0), shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn a_share_grows_and_stays() {
        let mut shares: Vec<f64> = (0..=13).map(|n| f64::from(n) / 20.0).collect();
        shares.extend([SHARE; 7]);
        let threads: Vec<u32> = (0..=20).collect();
        let verdict =
            |shares: &[f64], knee| judge(&grows_to_its_share(&threads, shares, knee)).verdict;
        assert_eq!(verdict(&shares, Some(13)), Verdict::Reproduced);
        assert_eq!(verdict(&shares, Some(5)), Verdict::NotReproduced);
        assert_eq!(verdict(&shares, None), Verdict::NotReproduced);
        shares[20] = 0.8;
        assert_eq!(verdict(&shares, Some(13)), Verdict::Differs);
    }
}
