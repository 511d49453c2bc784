//! Sessions of the live node: one for each worker of a gateway in the same process, and one for
//! each connection of a gateway of another process.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_fabric::reactor::{Ready, Registrar};
use tidegate_fabric::service::{CompletionSink, Job, OpenPart, Part, Service, Session};
use tidegate_model::TenantId;
use tidegate_proto::node::Slot;

use super::Live;
use crate::engine::{Body, Owner, Work};
use crate::mutex::lock;

/// A node in the same process.
pub(crate) struct Local(pub(crate) Arc<Live>);

impl Service for Local {
    fn session(&self, sink: Arc<dyn CompletionSink>) -> Box<dyn Session> {
        let owner = Arc::new(Owner::new(sink));
        let mut sessions = lock(&self.0.sessions);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(&owner));
        drop(sessions);
        Box::new(LocalSession {
            live: self.0.clone(),
            owner,
            names: Vec::new(),
            slots: Vec::new(),
            resolved_plans: None,
            requests: Vec::new(),
            batch: Vec::new(),
            finished: Vec::new(),
        })
    }
}

/// One session of a gateway.
pub(super) struct LocalSession {
    live: Arc<Live>,
    pub(super) owner: Arc<Owner>,
    names: Vec<String>,
    /// The slots of the names, as of plan number `resolved_plans`.
    pub(super) slots: Vec<Slot>,
    resolved_plans: Option<u64>,
    pub(super) requests: Vec<Work>,
    pub(super) batch: Vec<Work>,
    pub(super) finished: Vec<Work>,
}

impl LocalSession {
    pub(super) fn resolve_slots(&mut self, live: &Live) {
        if self.resolved_plans != Some(live.node.plans()) {
            let names = self.names.iter().map(String::as_str);
            self.resolved_plans = Some(live.node.resolve(names, &mut self.slots));
        }
    }

    /// Takes jobs out of their queues, and the pieces at the device that are not yet begun.
    fn withdraw(&self, is_meant: impl Fn(u64) -> bool) {
        let splits = lock(&self.owner.splits);
        let meant = splits.iter().filter(|(ticket, _)| is_meant(**ticket));
        meant.for_each(|(_, split)| split.stop());
        drop(splits);
        let is_ours = |body: &Body| Arc::ptr_eq(&body.owner, &self.owner);
        self.live.cancel(|body| is_ours(body) && is_meant(body.job.ticket));
    }
}

/// The slot of a tenant, given those of the tenants of a session, which count from one.
pub(super) fn slot(slots: &[Slot], tenant: TenantId) -> Slot {
    let index = usize::from(tenant.0).checked_sub(1);
    index.and_then(|index| slots.get(index)).copied().unwrap_or(Slot::UNATTRIBUTED)
}

impl Session for LocalSession {
    fn tenants(&mut self, names: &[String]) {
        self.names = names.to_vec();
        self.resolved_plans = None;
    }

    fn open(&mut self, part: &Part) -> Result<OpenPart, String> {
        let span = tracing::error_span!("part", volume = part.volume, part = part.index);
        let opened = span.in_scope(|| self.live.medium.open(part));
        let opened = opened.map_err(|error| error.to_string());
        let name = (part.volume.clone(), part.index);
        let mut refused = lock(&self.live.refused);
        match &opened {
            Ok(_) => drop(refused.remove(&name)),
            Err(reason) => {
                tracing::error!(volume = name.0, part = name.1, %reason, "part is refused");
                refused.insert(name, reason.clone());
            }
        }
        opened
    }

    fn submit(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        if !jobs.is_empty() {
            let live = self.live.clone();
            live.submit(self, jobs, done);
        }
    }

    fn carry_bulk(&mut self) {
        self.owner.is_bulk.store(true, Ordering::Relaxed);
    }

    fn attach(&mut self, registrar: Registrar, token: u64) {
        if let Some(engine) = self.live.engine.get() {
            engine.attach(&self.owner, registrar, token);
        }
    }

    fn on_ready(&mut self, ready: Ready, done: &mut Vec<Job>) {
        let Self { live, owner, batch, finished, .. } = self;
        live.receive(ready, (batch, finished), (owner, done));
    }

    fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        let live = self.live.clone();
        self.resolve_slots(&live);
        for (tenant, work) in costs {
            let slot = slot(&self.slots, *tenant);
            live.node.on_elsewhere(slot, *work);
        }
    }

    fn cancel(&mut self, tickets: &[u64]) {
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        self.withdraw(|ticket| tickets.contains(&ticket));
    }

    fn cancel_all(&mut self) {
        self.withdraw(|_| true);
    }
}

impl Drop for LocalSession {
    fn drop(&mut self) {
        self.owner.is_gone.store(true, Ordering::Relaxed);
        // No client waits for the replies.
        drop(self.live.node.cancel(self.live.clock, |body| Arc::ptr_eq(&body.owner, &self.owner)));
        self.live.detach(&self.owner);
    }
}
