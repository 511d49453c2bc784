//! Costs of tenants' requests at other nodes that this worker has not reported to a node yet.
//!
//! The accounts are those of the whole gateway ([`tidegate_algo::scheduling::dsfq`]). A request
//! carries the cost of its tenant that was not reported to its node yet. The rest is sent at the
//! end of the *epoch*, [`REPORTED_WITHIN`] after the first request that may have left a rest. Then
//! no epoch runs until the next request: a worker without requests does not wake up.

use std::sync::Arc;

use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_fabric::service::Job;
use tidegate_model::{CostModel, NodeId, TenantId, Time};
use tidegate_proto::data::REPORTED_WITHIN;

use crate::clock;

/// The costs that this worker has to report.
pub(crate) struct UnreportedCosts {
    cost: CostModel,
    /// Whether the cluster has several nodes; with one node no service is elsewhere.
    has_others: bool,
    /// By the tenant's number.
    accounts: Vec<Arc<Elsewhere>>,
    /// The tenants whose requests were sent in this epoch, and the same as a flag for each tenant.
    senders: Vec<TenantId>,
    is_sender: Vec<bool>,
    ends: Time,
    /// Kept for its memory.
    costs: Vec<(TenantId, u64)>,
}

impl UnreportedCosts {
    /// Nothing yet, in a cluster of so many nodes.
    pub(crate) fn new(nodes: usize, cost: CostModel) -> Self {
        Self {
            cost,
            has_others: nodes > 1,
            accounts: Vec::new(),
            senders: Vec::new(),
            is_sender: Vec::new(),
            ends: Time::MAX,
            costs: Vec::new(),
        }
    }

    /// These are the accounts. There are never fewer than before.
    pub(crate) fn set_accounts(&mut self, accounts: &[Arc<Elsewhere>]) {
        self.accounts = accounts.to_vec();
        self.is_sender.resize(accounts.len(), false);
    }

    /// Accounts for a job to this node. Returns the cost elsewhere that the job reports to the
    /// node.
    pub(crate) fn sent(&mut self, node: NodeId, job: &Job) -> u32 {
        let number = usize::from(job.tag.tenant.0);
        let Some(account) = self.accounts.get(number).filter(|_| self.has_others) else { return 0 };
        if !std::mem::replace(&mut self.is_sender[number], true) {
            self.senders.push(job.tag.tenant);
        }
        account.sent(node.index(), job.command.work(&self.cost, job.length, &job.tag))
    }

    /// Begins an epoch if there is none and something was sent.
    pub(crate) fn begin(&mut self) {
        if self.ends == Time::MAX && !self.senders.is_empty() {
            self.ends = clock::now().after(REPORTED_WITHIN);
        }
    }

    /// When the epoch ends; [`Time::MAX`] if there is none.
    pub(crate) fn ends(&self) -> Time {
        self.ends
    }

    /// The costs by tenant that were not reported to this node yet.
    pub(crate) fn of(&mut self, node: NodeId) -> &[(TenantId, u64)] {
        let Self { accounts, senders, costs, .. } = self;
        let unreported = |tenant: &TenantId| {
            (*tenant, accounts[usize::from(tenant.0)].take_unreported(node.index()))
        };
        costs.clear();
        costs.extend(senders.iter().map(unreported).filter(|(_, cost)| *cost > 0));
        costs
    }

    /// The epoch ends.
    pub(crate) fn end(&mut self) {
        for tenant in self.senders.drain(..) {
            self.is_sender[usize::from(tenant.0)] = false;
        }
        self.ends = Time::MAX;
    }
}
