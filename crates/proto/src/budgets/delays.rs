//! Explanation of waits at stages: the gates that held a tenant's requests in the last minute, and
//! the remedy for each.
//!
//! The counts are those of [`recent_waits`](super::recent_waits). For each gate that held at least
//! a tenth of the waiting there is the evidence (the rate that decides, and what the tenant had),
//! and a remedy.
//!
//! The rates of a share in the last minute are not kept. So the share that is in force stands
//! beside the tenant's service in the last period, which is of the same time, and where none is in
//! force any more the evidence says so.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;

use tidegate_model::gate::Unit;
use tidegate_model::policy::{GateKind, Resource};
use tidegate_model::text::listed;
use tidegate_model::{Policy, Span, Time, amounts};

use super::distribute::in_force;
use super::rules::tenant_id;
use super::window_stats::per_second;
use super::{Active, Budgets};
use crate::stats::delays::stages::{DelaysAtStage, StageCause, StageGate, StageWaits};
use crate::stats::delays::{UnknownTenant, WORTH_PERMILLE, permille, remedy};
use crate::stats::minute::MINUTE;

/// A rate of which so much was had, in thousandths, was used up.
const USED_UP_PERMILLE: u64 = 950;

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
                ended_ns: None,
            });
        }
        let ended = self.ended.delays(now, tenant);
        ended.iter().for_each(|there| sum += there.waits);
        stages.extend(ended);
        let case = StageCase { budgets: self, active, index, stages: &stages };
        let mut causes: Vec<_> = StageGate::ALL
            .into_iter()
            .filter_map(|gate| {
                let permille = permille(sum.of(gate), sum.total_ns());
                let (why, help) = (permille >= WORTH_PERMILLE).then(|| case.explained(gate))?;
                let help = remedy(sum.of(gate), sum.requests, help);
                Some(StageCause { gate, permille, why, help })
            })
            .collect();
        causes.sort_by_key(|cause| Reverse(cause.permille));
        Ok((stages, causes))
    }

    /// The waits of each tenant at all stages in the last minute, by its index in the policy.
    pub(crate) fn recent_waits(&self, now: Time) -> Vec<StageWaits> {
        let mut sums = alloc::vec![StageWaits::default(); self.tenants.len()];
        for share in self.stages.values().flat_map(|stage| &stage.shares) {
            sums[share.tenant] += share.recent.sum(now);
        }
        if let Some(active) = &self.active {
            self.ended.add_to(now, &mut sums, |name| active.name_index.tenant(name));
        }
        sums
    }

    /// How long stages have been observed, a minute at most.
    pub(crate) fn observed(&self, now: Time) -> Span {
        now.since(self.started).min(MINUTE)
    }
}

/// A tenant, and the stages where it had requests in the last minute.
struct StageCase<'a> {
    budgets: &'a Budgets,
    active: &'a Active,
    index: usize,
    stages: &'a [DelaysAtStage],
}

impl StageCase<'_> {
    /// The evidence and the remedy for one gate.
    fn explained(&self, gate: StageGate) -> (String, String) {
        match gate {
            StageGate::BytesLimit => self.limit(Unit::Bytes),
            StageGate::OperationsLimit => self.limit(Unit::Operations),
            StageGate::BytesShare => self.share(Unit::Bytes),
            StageGate::OperationsShare => self.share(Unit::Operations),
            StageGate::Channel => added_gates(&self.active.policy, self.index),
        }
    }

    /// The tenant's service per second in the last period.
    fn had(&self, unit: Unit) -> u64 {
        let [bytes, operations, _] = self.budgets.tenants[self.index].per_second();
        match unit {
            Unit::Bytes => bytes,
            Unit::Operations => operations,
        }
    }

    /// The tenant's service per second in the last minute, while its stages were connected.
    fn mean(&self, unit: Unit) -> u64 {
        let rate = |there: &DelaysAtStage| {
            let count = match unit {
                Unit::Bytes => there.waits.bytes,
                Unit::Operations => there.waits.requests,
            };
            per_second(count, Span(there.span_ns))
        };
        self.stages.iter().map(rate).fold(0, u64::saturating_add)
    }

    fn limit(&self, unit: Unit) -> (String, String) {
        let Some(limit) = self.active.policy.tenants[self.index].limit.get(unit) else {
            let why = "it had a limit until the policy was changed".into();
            return (why, "nothing has to change: the policy in force has no limit for it".into());
        };
        let (mean, limit_text) = (self.mean(unit), amounts::rate(unit, limit));
        let had = self.had(unit).max(mean);
        if permille(had, limit) >= USED_UP_PERMILLE {
            let had = amounts::rate(unit, had);
            let why = format!("its limit of {limit_text} is used up: it had {had}");
            return (why, "raise the limit; it asks for more than that".into());
        }
        let mean = match mean {
            0 => format!("less than {}", amounts::rate(unit, 1)),
            mean => amounts::rate(unit, mean),
        };
        let why = format!(
            "its limit of {limit_text} held requests at times; in the last minute it had {mean} on \
             average, pauses and earlier limits included"
        );
        let help = "a larger limit; if it has pauses, a larger burst or steadier requests";
        (why, help.into())
    }

    fn share(&self, unit: Unit) -> (String, String) {
        let (policy, stages) = (&self.active.policy, &self.budgets.stages);
        let tenant = &policy.tenants[self.index];
        if policy.budget.get(unit).is_none() {
            let name = unit.name();
            let why = format!("its share of {name} held it until the policy was changed");
            return (
                why,
                format!("nothing has to change: the policy in force has no budget in {name}"),
            );
        }
        let own = match tenant.reservation.get(unit) {
            Some(_) => "a larger reservation or weight",
            None => "a reservation or a larger weight",
        };
        let measured = policy.resource_at(GateKind::Stage).filter(|it| it.measured.is_some());
        let help = match measured {
            Some(Resource { name, .. }) => format!("{own}, or a higher bound of latency of {name}"),
            None => format!("{own}, or a larger budget if the device allows it"),
        };
        if !stages.values().any(|stage| stage.share_of(self.index).is_some()) {
            let why = format!(
                "its share (weight {}) held these programs; all of them have ended",
                tenant.weight
            );
            return (why, help);
        }
        let rates = in_force(policy, unit, stages);
        let text = |rate: u64| match rate {
            u64::MAX => "not bounded".into(),
            rate => amounts::rate(unit, rate),
        };
        let (own, had) = (text(rates[self.index]), amounts::rate(unit, self.had(unit)));
        let mut others: Vec<_> = (0..rates.len())
            .filter(|at| *at != self.index && (1..u64::MAX).contains(&rates[*at]))
            .collect();
        others.sort_by_key(|at| Reverse(rates[*at]));
        let name = |at: &usize| format!("{} ({})", policy.tenants[*at].name, text(rates[*at]));
        let others: Vec<String> = others.iter().map(name).collect();
        let mut why = format!(
            "its share is {own} now (weight {}), and it had {had} in the last period",
            tenant.weight
        );
        if !others.is_empty() {
            why += &format!("; shares of others now: {}", listed(&others));
        }
        (why, help)
    }
}

/// The gates that the policy adds to channels of the tenant.
fn added_gates(policy: &Policy, index: usize) -> (String, String) {
    let id = tenant_id(index);
    let channels = policy.channels.iter().filter(|channel| channel.tenant == id);
    let named = channels.filter_map(|channel| {
        let kinds = channel.gates.iter().map(|gate| gate.kind().to_string());
        let background = channel.background.map(|_| "background".to_string());
        let kinds: Vec<_> = kinds.chain(background).collect();
        (!kinds.is_empty()).then(|| format!("{} ({})", channel.name, listed(&kinds)))
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        let why = "its channels had gates until the policy was changed".into();
        return (why, "nothing has to change: the policy in force has none for them".into());
    }
    let why = format!("gates that the policy adds to its channels: {}", listed(&named));
    let mut channels = policy.channels.iter().filter(|channel| channel.tenant == id);
    let help = match channels.any(|channel| channel.background.is_some()) {
        true => "a larger rate of the tenant, for background channels have what the others leave",
        false => "a larger depth or rate there, or fewer requests at a time",
    };
    (why, help.into())
}
