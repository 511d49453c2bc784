//! Stages that ended in the last minute, and what their requests waited there.
//!
//! A program that ends takes its stage with it, often before its operator asks why it was slow. So
//! its account stays for a minute, as that of connected stages does.
//!
//! # Bound
//! At most [`ENDED_MAX`] stages, the latest: a script that starts thousands of short programs uses
//! no more memory.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::{Policy, Time};

use super::recent_waits::RecentWaits;
use super::stage::{Stage, Stages};
use crate::stats::delays::stages::{DelaysAtStage, StageWaits};
use crate::stats::minute::MINUTE;
use crate::status::EndedStageStatus;

/// The most ended stages that are kept. Chosen by hand.
pub(super) const ENDED_MAX: usize = 256;

/// One stage that ended.
#[derive(Debug)]
struct EndedStage {
    at: Time,
    joined: Time,
    /// Its number, host, command and tenant.
    status: EndedStageStatus,
    /// The waits of each tenant's requests there, by the tenant's name.
    waits: Vec<(String, RecentWaits)>,
}

/// The stages that ended in the last minute; the latest last.
#[derive(Debug, Default)]
pub(super) struct EndedStages(VecDeque<EndedStage>);

impl EndedStages {
    /// A stage has ended, for this reason.
    pub(super) fn push(&mut self, now: Time, (stage, policy): (&Stage, &Policy), reason: &str) {
        while self.0.len() >= ENDED_MAX || self.0.front().is_some_and(|it| is_old(now, it.at)) {
            self.0.pop_front();
        }
        let waits = stage.shares.iter().filter_map(|share| {
            let tenant = policy.tenants.get(share.tenant)?;
            let had_some = share.recent.sum(now) != StageWaits::default();
            had_some.then(|| (tenant.name.clone(), share.recent.clone()))
        });
        let status = EndedStageStatus {
            id: stage.info.stage.0,
            pid: stage.peer.pid,
            host: stage.info.host.clone(),
            command: stage.info.command.clone(),
            tenant: stage.info.tenant.clone(),
            reason: reason.into(),
            unmatched_bytes: stage.unmatched.total.bytes,
            unmatched_operations: stage.unmatched.total.operations,
            ..EndedStageStatus::default()
        };
        self.0.push_back(EndedStage {
            at: now,
            joined: stage.joined,
            status,
            waits: waits.collect(),
        });
    }

    fn recent(&self, now: Time) -> impl Iterator<Item = &EndedStage> {
        self.0.iter().filter(move |it| !is_old(now, it.at))
    }

    /// The account of each of them, the latest first, with the requests of its last minute; but not
    /// of programs that are there again in one of `stages`, with another number perhaps: they have
    /// not ended.
    pub(super) fn status(&self, now: Time, stages: &Stages) -> Vec<EndedStageStatus> {
        let program = |stage: &Stage| (stage.peer.pid, stage.info.host.clone());
        let there: BTreeSet<_> = stages.values().map(program).collect();
        let status = |ended: &EndedStage| {
            let mut waits = StageWaits::default();
            ended.waits.iter().for_each(|(_, recent)| waits += recent.sum(now));
            EndedStageStatus { ended_ns: now.since(ended.at).0, waits, ..ended.status.clone() }
        };
        let is_there = |ended: &EndedStageStatus| there.contains(&(ended.pid, ended.host.clone()));
        let mut all: Vec<_> = self.recent(now).map(status).filter(|it| !is_there(it)).collect();
        all.reverse();
        all
    }

    /// The waits of a tenant's requests at those where it had some.
    pub(super) fn delays(&self, now: Time, tenant: &str) -> Vec<DelaysAtStage> {
        let delays = self.recent(now).filter_map(|ended| {
            let (_, recent) = ended.waits.iter().find(|(name, _)| name == tenant)?;
            let waits = recent.sum(now);
            let EndedStageStatus { id, host, command, .. } = ended.status.clone();
            (waits != StageWaits::default()).then(|| DelaysAtStage {
                stage: id,
                host,
                command,
                span_ns: ended.at.since(ended.joined).min(MINUTE).0,
                waits,
                mean_ns: waits.total_ns().checked_div(waits.requests),
                waiting_requests: 0,
                ended_ns: Some(now.since(ended.at).0),
            })
        });
        delays.collect()
    }

    /// Adds what each tenant waited there to its sum; `index` finds its place.
    pub(super) fn add_to(
        &self,
        now: Time,
        sums: &mut [StageWaits],
        index: impl Fn(&str) -> Option<usize>,
    ) {
        for (name, recent) in self.recent(now).flat_map(|ended| &ended.waits) {
            if let Some(sum) = index(name).and_then(|index| sums.get_mut(index)) {
                *sum += recent.sum(now);
            }
        }
    }
}

fn is_old(now: Time, at: Time) -> bool {
    now.since(at) > MINUTE
}
