//! For how long each gate of one stage held a tenant's requests in the last minute.
//!
//! # Mechanism
//! A report has the time that requests of each channel waited in all, and the time at each of the
//! tenant's own buckets. A bucket counts as the tenant's *limit* while the rates of all stages of
//! the tenant add up to that limit, else as its *share*. The rest of the channels' time was spent
//! at gates that the policy adds to channels.
//!
//! A stage counts a wait at the gate a moment before it counts the same wait at the channel, and
//! its report reads the two at different moments. So in one report the gates' time may be more
//! than the channels', by the waits that were counted at the gate only. The difference is taken
//! from the next report. Over all reports the parts add up to the channels' time.
//!
//! # Bound
//! A tenant that waits all the time at a stage has 13 entries there. One without requests has none.

use tidegate_model::gate::Unit;
use tidegate_model::{Policy, Time};

use super::window_stats::TrafficCounters;
use crate::stats::delays::permille;
use crate::stats::delays::stages::{StageGate, StageWaits};
use crate::stats::minute::Recent;

/// A limit of which so much is in force, in thousandths, sets the rate: changes by a hundredth are
/// not sent to stages.
const AT_LIMIT_PERMILLE: u64 = 980;

/// A tenant's waits at one stage in the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentWaits {
    minute: Recent<StageWaits>,
    /// The growth by the report at hand.
    fresh: StageWaits,
    /// Waits that buckets counted and channels did not yet.
    ahead_ns: u64,
}

impl RecentWaits {
    /// Notes what a bucket of the tenant held since the last report.
    pub(super) const fn on_bucket(&mut self, gate: StageGate, ns: u64) {
        self.fresh.add(gate, ns);
    }

    /// Notes what all channels of the tenant counted since the last report, after all buckets, and
    /// returns the growth by this report.
    pub(super) fn on_channels(&mut self, counted: TrafficCounters) -> StageWaits {
        let TrafficCounters { bytes, operations, waited_ns } = counted;
        let own = self.fresh.total_ns().saturating_add(self.ahead_ns);
        self.fresh.channel_ns = waited_ns.saturating_sub(own);
        self.ahead_ns = own.saturating_sub(waited_ns);
        (self.fresh.requests, self.fresh.bytes) = (operations, bytes);
        self.fresh
    }

    /// Adds the growth by a report at `now` to the minute.
    pub(super) fn add(&mut self, now: Time) {
        self.minute.add(now, core::mem::take(&mut self.fresh));
    }

    /// The minute alone, for a share under a later policy whose counters begin anew.
    pub(super) fn under_later_policy(&self) -> Self {
        Self { minute: self.minute.clone(), ..Self::default() }
    }

    /// The waits of the last minute.
    pub(super) fn sum(&self, now: Time) -> StageWaits {
        self.minute.sum(now)
    }
}

/// Whether a tenant's bucket has the rate of its limit while so much is in force at its stages.
pub(super) fn is_limit(policy: &Policy, tenant: usize, unit: Unit, in_force: Option<u64>) -> bool {
    let limit = policy.tenants[tenant].limit.get(unit);
    limit.zip(in_force).is_some_and(|(limit, rate)| permille(rate, limit) >= AT_LIMIT_PERMILLE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_model::Span;

    use super::*;

    /// A request: its wait at the tenant's bucket and at other gates, and the reports that count
    /// it, first at the gate and in the same report or a later one at the channel.
    fn request() -> impl Strategy<Value = (u64, u64, usize, usize)> {
        let wait = || prop_oneof![Just(0), 0u64..1_000_000];
        (wait(), wait(), 0usize..20, 0usize..3)
    }

    proptest! {
        #[test]
        fn parts_add_up_to_what_channels_counted(
            requests in proptest::collection::vec(request(), 0..100),
        ) {
            let (mut recent, mut sum) = (RecentWaits::default(), StageWaits::default());
            let mut channels = 0;
            // Each request is counted in all by the last report.
            for report in 0..23 {
                let own = requests.iter().filter(|(.., at, _)| *at == report);
                recent.on_bucket(StageGate::BytesShare, own.map(|(own, ..)| own).sum());
                let done = requests.iter().filter(|(.., at, later)| at + later == report);
                let waited_ns = done.clone().map(|(own, other, ..)| own + other).sum();
                let operations = done.count() as u64;
                channels += waited_ns;
                let counted = TrafficCounters { bytes: 0, operations, waited_ns };
                sum += recent.on_channels(counted);
                recent.add(Time(report as u64 * 1_000));
                // Never less than what is known to have waited.
                prop_assert_eq!(sum.total_ns(), channels + recent.ahead_ns);
            }
            prop_assert_eq!(recent.ahead_ns, 0);
            prop_assert_eq!(sum.requests, requests.len() as u64);
            prop_assert_eq!(sum.bytes_share_ns, requests.iter().map(|it| it.0).sum::<u64>());
            prop_assert_eq!(sum.channel_ns, requests.iter().map(|it| it.1).sum::<u64>());
            prop_assert_eq!(recent.sum(Time(0)), sum, "the minute has it all");
        }
    }

    #[test]
    fn a_minute_is_kept_in_few_entries() {
        let mut recent = RecentWaits::default();
        for tenth in 0..3_000 {
            recent.on_bucket(StageGate::BytesLimit, 100);
            recent.on_channels(TrafficCounters { bytes: 1, operations: 1, waited_ns: 100 });
            recent.add(Time(tenth * Span::SECOND.0 / 10));
        }
        let now = Time(300 * Span::SECOND.0);
        assert!(recent.minute.parts() <= 13, "{}", recent.minute.parts());
        let sum = recent.sum(now);
        assert!((540..=600).contains(&sum.requests), "{}", sum.requests);
        assert_eq!((sum.bytes_limit_ns, sum.channel_ns), (sum.requests * 100, 0));
        assert_eq!(recent.sum(Time(400 * Span::SECOND.0)), StageWaits::default());
    }
}
