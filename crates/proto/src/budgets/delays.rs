//! Which gates of stages held a tenant's requests in the last minute, and what would change it.
//!
//! # Mechanism
//! A report has the time that requests of each channel waited in all, and the time at each of the
//! tenant's own buckets. A bucket counts as the tenant's *limit* while the rates of all its stages
//! add up to that limit, else as its *share*. What is left of the channels' time was spent at
//! gates that the policy adds to channels.
//!
//! A stage counts a wait at the gate a moment before it counts the same wait at the channel, and
//! its report reads the two at different moments. The time that gates are *ahead* is carried to
//! the next report. So over all reports the parts add up to the channels' time. At one report they
//! exceed it by the waits of requests between the two counts at most.
//!
//! # Bound
//! A tenant that waits all the time at a stage has 13 entries there. One without requests has none.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;

use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::text::listed;
use tidegate_model::{Policy, Span, Time};

use super::distribute::in_force;
use super::rules::tenant_id;
use super::window_stats::TrafficCounters;
use super::{Active, Budgets};
use crate::stats::delays::stages::{DelaysAtStage, StageCause, StageGate, StageWaits};
use crate::stats::delays::{UnknownTenant, WORTH_PERMILLE, permille};
use crate::stats::minute::{MINUTE, SEGMENT};

/// A limit of which so much is in force, in thousandths, sets the rate: changes by a hundredth are
/// not sent to stages.
const AT_LIMIT_PERMILLE: u64 = 980;

/// A rate of which so much was had, in thousandths, was used up.
const USED_UP_PERMILLE: u64 = 950;

/// A tenant's waits at one stage in the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentWaits {
    /// When each entry began; the latest last.
    entries: VecDeque<(Time, StageWaits)>,
    /// The growth by the report at hand.
    fresh: StageWaits,
    /// What buckets counted and channels did not yet.
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
        let fresh = core::mem::take(&mut self.fresh);
        while self.entries.front().is_some_and(|(began, _)| now.since(*began) > MINUTE) {
            self.entries.pop_front();
        }
        if fresh == StageWaits::default() {
            return;
        }
        match self.entries.back_mut().filter(|(began, _)| now.since(*began) <= SEGMENT) {
            Some((_, sum)) => *sum += fresh,
            None => self.entries.push_back((now, fresh)),
        }
    }

    /// The minute alone, for a share under a later policy whose counters begin anew.
    pub(super) fn under_later_policy(&self) -> Self {
        Self { entries: self.entries.clone(), ..Self::default() }
    }

    /// The waits of the last minute.
    fn sum(&self, now: Time) -> StageWaits {
        let entries = self.entries.iter().filter(|(began, _)| now.since(*began) <= MINUTE);
        entries.fold(StageWaits::default(), |mut sum, (_, waits)| {
            sum += *waits;
            sum
        })
    }
}

/// Whether a tenant's bucket has the rate of its limit while so much is in force at its stages.
pub(super) fn is_limit(policy: &Policy, tenant: usize, unit: Unit, in_force: Option<u64>) -> bool {
    let limit = policy.tenants[tenant].limit.get(unit);
    limit.zip(in_force).is_some_and(|(limit, rate)| permille(rate, limit) >= AT_LIMIT_PERMILLE)
}

impl Budgets {
    /// For how long gates of stages held requests of a tenant in the last minute, at each stage
    /// where it had some, and the causes.
    ///
    /// # Errors
    /// If the policy does not have the tenant.
    pub(crate) fn delays(
        &self,
        now: Time,
        tenant: &str,
    ) -> Result<(Vec<DelaysAtStage>, Vec<StageCause>), UnknownTenant> {
        let index = self.active.as_ref().and_then(|active| active.name_index.tenant(tenant));
        let (Some(active), Some(index)) = (&self.active, index) else {
            let policy = self.active.iter().flat_map(|active| &active.policy.tenants);
            let known = policy.map(|tenant| tenant.name.clone()).collect();
            return Err(UnknownTenant { name: tenant.into(), known });
        };
        let (mut stages, mut sum) = (Vec::new(), StageWaits::default());
        for (id, stage) in &self.stages {
            let Some(share) = stage.share_of(index).map(|at| &stage.shares[at]) else { continue };
            let (waits, waiting_requests) = (share.recent.sum(now), share.waiting_now);
            if waits == StageWaits::default() && waiting_requests == 0 {
                continue;
            }
            sum += waits;
            stages.push(DelaysAtStage {
                stage: id.0,
                host: stage.info.host.clone(),
                command: stage.info.command.clone(),
                span_ns: now.since(stage.joined).min(MINUTE).0,
                waits,
                mean_ns: waits.total_ns().checked_div(waits.requests),
                waiting_requests,
            });
        }
        let mut causes: Vec<_> = StageGate::ALL
            .into_iter()
            .filter_map(|gate| {
                let permille = permille(sum.of(gate), sum.total_ns());
                let (why, help) =
                    (permille >= WORTH_PERMILLE).then(|| self.explained(active, index, gate))?;
                Some(StageCause { gate, permille, why, help })
            })
            .collect();
        causes.sort_by_key(|cause| Reverse(cause.permille));
        Ok((stages, causes))
    }

    /// How long stages have been observed, a minute at most.
    pub(crate) fn observed(&self, now: Time) -> Span {
        now.since(self.started).min(MINUTE)
    }

    /// The evidence and the remedy for one gate.
    fn explained(&self, active: &Active, index: usize, gate: StageGate) -> (String, String) {
        match gate {
            StageGate::BytesLimit => self.limit(active, index, Unit::Bytes),
            StageGate::OperationsLimit => self.limit(active, index, Unit::Operations),
            StageGate::BytesShare => self.share(active, index, Unit::Bytes),
            StageGate::OperationsShare => self.share(active, index, Unit::Operations),
            StageGate::Channel => added_gates(&active.policy, index),
        }
    }

    /// What the tenant had per second in the last period.
    fn had(&self, index: usize, unit: Unit) -> u64 {
        let [bytes, operations, _] = self.tenants[index].per_second();
        match unit {
            Unit::Bytes => bytes,
            Unit::Operations => operations,
        }
    }

    fn limit(&self, active: &Active, index: usize, unit: Unit) -> (String, String) {
        let Some(limit) = active.policy.tenants[index].limit.get(unit) else {
            let why = "it had a limit until the policy was changed".into();
            return (why, "nothing has to: the policy in force has no limit for it".into());
        };
        let had = self.had(index, unit);
        let (limit_text, had_text) = (Throughput::new(unit, limit), readable(unit, had));
        if permille(had, limit) >= USED_UP_PERMILLE {
            let why = format!("its limit of {limit_text} is used up: it had {had_text}");
            return (why, "raise the limit; it asks for more than that".into());
        }
        let why = format!("bursts met its limit of {limit_text}; it had {had_text} on average");
        (why, "a larger burst or limit, or steadier requests".into())
    }

    fn share(&self, active: &Active, index: usize, unit: Unit) -> (String, String) {
        let rates = in_force(&active.policy, unit, &self.stages);
        let tenant = &active.policy.tenants[index];
        let text = |rate: u64| readable(unit, rate);
        let own = match rates[index] {
            u64::MAX => "not bounded now".into(),
            rate => text(rate),
        };
        let had = text(self.had(index, unit));
        let mut others: Vec<_> = (0..rates.len())
            .filter(|at| *at != index && (1..u64::MAX).contains(&rates[*at]))
            .collect();
        others.sort_by_key(|at| Reverse(rates[*at]));
        let name =
            |at: &usize| format!("{} ({})", active.policy.tenants[*at].name, text(rates[*at]));
        let others: Vec<String> = others.iter().map(name).collect();
        let mut why =
            format!("its share is {own} (weight {}), of which it had {had}", tenant.weight);
        if !others.is_empty() {
            why += &format!("; shares of others: {}", listed(&others));
        }
        let help = match tenant.reservation.get(unit) {
            Some(_) => "a larger reservation or weight, or a larger budget if the device allows it",
            None => "a reservation or a larger weight, or a larger budget if the device allows it",
        };
        (why, help.into())
    }
}

/// A measured rate for people: bytes to the nearest MiB or KiB if there are ten of it.
fn readable(unit: Unit, rate: u64) -> String {
    let steps = [1u64 << 20, 1 << 10].into_iter().filter(|_| unit == Unit::Bytes);
    let step = steps.filter(|step| rate >= 10 * step).max().unwrap_or(1);
    let rate = (rate / step).saturating_add(u64::from(rate % step > step / 2));
    Throughput::new(unit, rate.saturating_mul(step)).to_string()
}

/// The gates that the policy adds to channels of the tenant.
fn added_gates(policy: &Policy, index: usize) -> (String, String) {
    let id = tenant_id(index);
    let channels = policy.channels.iter().filter(|channel| channel.tenant == id);
    let named = channels.filter(|channel| !channel.gates.is_empty()).map(|channel| {
        let kinds: Vec<_> = channel.gates.iter().map(|gate| gate.kind().to_string()).collect();
        format!("{} ({})", channel.name, listed(&kinds))
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        let why = "its channels had gates until the policy was changed".into();
        return (why, "nothing has to: the policy in force has none for them".into());
    }
    let why = format!("gates that the policy adds to its channels: {}", listed(&named));
    (why, "a larger depth or rate there, or fewer requests at a time".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        assert!(recent.entries.len() <= 13, "{}", recent.entries.len());
        let sum = recent.sum(now);
        assert!((540..=600).contains(&sum.requests), "{}", sum.requests);
        assert_eq!((sum.bytes_limit_ns, sum.channel_ns), (sum.requests * 100, 0));
        assert_eq!(recent.sum(Time(400 * Span::SECOND.0)), StageWaits::default());
    }
}
