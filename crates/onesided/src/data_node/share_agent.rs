//! A data node's part in promises that hold for several nodes. It reports its clients' demand to
//! the controller, and gives the controller's shares to the monitor.
//!
//! # Mechanism
//! A tenant's demand follows from its clients' reports at the end of a period. Each states the
//! operations that it did, and for which part of the period it had work and no token, or as much
//! under way as may be. A client that was in one of these two states for half of the period, and
//! still had something to do at its end, wants more than it had. Any other client wanted as much as
//! it did. One that is done before the end, which is the aim of token pacing, does not want more,
//! however long it took. Only a client with a queue of its own can count its unmet demand. Where
//! one of a tenant's clients does not count it, that amount is not reported.
//!
//! A share that the controller sends goes to the monitor at once and takes effect when the next
//! period begins. Falls go before rises, so that the monitor has headroom for these. When that
//! period has begun, the node reports it to the controller ([`FromDataNode::Granted`]); at once, if
//! no client here has anything to lose.
//!
//! # Bounds
//! Operations of a client between the beginning of a period and the moment at which it has read its
//! grant, some 50 us, count by its former promise.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use tidegate_algo::onesided::capacity::{PeriodUsage, WHOLE};
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::policy::Tenant;
use tidegate_model::{Bytes, Iops, Policy, SessionSlot, Span, TenantIndex};

use super::registry::{SessionRegistry, TenantShare};
use crate::haechi::Monitor;
use crate::haechi::monitor::{Denied, Summary};
use crate::integrity::Structure;
use crate::one_sided::RemoteMemory;
use tidegate_proto::data_node::{
    DataNodeReport, FromDataNode, Grant, Notice, TenantReport, ToDataNode,
};

/// The part of a period, in 255ths, from which a client may want more: half. For that long it had
/// work and no token, or as much under way as may be.
const LONG: u16 = WHOLE as u16 / 2;

/// A tenant's demand and counts here.
#[derive(Clone, Copy, Debug)]
struct TenantCounters {
    /// In the last period.
    done: u64,
    wants_more: bool,
    /// How many more; none if a client that wants more does not count them.
    unmet: Option<u64>,
    /// Since the process began.
    operations: u64,
    missed: u64,
}

impl Default for TenantCounters {
    fn default() -> Self {
        Self { done: 0, wants_more: false, unmet: Some(0), operations: 0, missed: 0 }
    }
}

/// Grants that are in force when a period is over.
#[derive(Debug)]
struct DueGrants {
    /// The serial of the last of them.
    serial: u64,
    period: u64,
    /// The shares before them, or the greatest of several. One without a limit has none here.
    before: BTreeMap<String, TenantShare>,
}

/// The shares in force, and the clients with session slots. See the head of this file.
#[derive(Debug)]
pub struct ShareAgent {
    /// The clients with session slots.
    pub registry: SessionRegistry,
    policy: Option<(u64, Policy)>,
    /// In the order of their periods, each of which is there once.
    due: VecDeque<DueGrants>,
    serial: u64,
    /// Whether some client could not be given its promise.
    is_owed: bool,
    tenant_counters: BTreeMap<String, TenantCounters>,
    periods: u64,
    operations: u64,
    /// Tokens that clients took out of the pool in the last period.
    pool: u64,
    /// Bytes of the store, and those in use.
    store: [Bytes; 2],
    /// How often the memory was damaged, and which structure was last.
    remade: Option<(u64, Structure)>,
    outputs: VecDeque<FromDataNode>,
}

impl ShareAgent {
    /// One without a policy.
    pub const fn new(registry: SessionRegistry) -> Self {
        Self {
            registry,
            policy: None,
            due: VecDeque::new(),
            serial: 0,
            is_owed: false,
            tenant_counters: BTreeMap::new(),
            periods: 0,
            operations: 0,
            pool: 0,
            store: [Bytes(0); 2],
            remade: None,
            outputs: VecDeque::new(),
        }
    }

    /// The policy in force, if there is one.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref().map(|(_, policy)| policy)
    }

    /// There is a connection to a controller, perhaps another one than before.
    pub fn on_connected(&mut self) {
        self.outputs.clear();
        self.serial = 0;
        self.due.iter_mut().for_each(|due| due.serial = 0);
        self.report_remade();
    }

    /// The controller has sent a message.
    pub fn on_message<F: RemoteMemory>(&mut self, message: ToDataNode, monitor: &mut Monitor<F>) {
        match message {
            ToDataNode::Policy { revision, policy } => {
                self.registry.keep_shares(&policy);
                let is_there = |tenant: &String| policy.tenant_named(tenant).is_some();
                self.due.iter_mut().for_each(|due| due.before.retain(|it, _| is_there(it)));
                self.tenant_counters.retain(|tenant, _| is_there(tenant));
                self.policy = Some((revision, policy));
                self.settle(monitor);
            }
            ToDataNode::Collect { round } => {
                let report = self.report(round, monitor.capacity());
                self.outputs.push_back(FromDataNode::Report(report));
            }
            ToDataNode::Grant(grant) => self.on_grant(&grant, monitor),
            // The connection ends, and the caller reports it.
            ToDataNode::Refused { .. } => {}
        }
    }

    fn on_grant<F: RemoteMemory>(&mut self, grant: &Grant, monitor: &mut Monitor<F>) {
        let Some((_, policy)) = self.policy.as_ref().filter(|it| it.0 == grant.revision) else {
            return;
        };
        let mut before = BTreeMap::new();
        for share in &grant.shares {
            let Some(tenant) = policy.tenants.get(share.tenant.index()) else { continue };
            let former = self.registry.share(&tenant.name);
            let allowed = if former.allowed == u64::MAX { 0 } else { former.allowed };
            before.insert(tenant.name.clone(), TenantShare { allowed, ..former });
            let part = TenantShare { reserved: share.reserved, allowed: share.allowed };
            self.registry.set_share(&tenant.name, part);
        }
        self.serial = grant.serial;
        let is_less = self.settle(monitor);
        let period = monitor.epoch();
        let is_due = is_less && period > 0;
        match self.due.back_mut() {
            // It follows one that is not in force yet.
            Some(last) if !is_due || last.period == period => last.add(grant.serial, before),
            _ if is_due => self.due.push_back(DueGrants { serial: self.serial, period, before }),
            _ => self.confirm(),
        }
    }

    /// Gives all clients their promises, from the next period on; those that cannot be given yet,
    /// later. Returns whether any client's promise is less than before.
    pub fn settle<F: RemoteMemory>(&mut self, monitor: &mut Monitor<F>) -> bool {
        self.is_owed = false;
        let promises = self.registry.promises(self.policy());
        let before = |session_slot| {
            monitor.promise(session_slot).unwrap_or(Promise { reservation: 0, limit: 0 })
        };
        let changes = promises
            .into_iter()
            .map(|(session_slot, promise)| (session_slot, before(session_slot), promise));
        let changes: Vec<_> = changes.filter(|(_, before, promise)| before != promise).collect();
        let is_raised = |(_, before, promise): &(SessionSlot, Promise, Promise)| {
            promise.reservation > before.reservation
        };
        let (more, less): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_raised);
        let mut is_less = !less.is_empty();
        for (session_slot, before, promise) in less.into_iter().chain(more) {
            is_less |= promise.limit < before.limit;
            let denied: Result<(), Denied> = monitor.renew(session_slot, promise);
            if denied.is_err() {
                self.is_owed = true;
                // The former limit goes, also where the reservation cannot be kept yet: it may be
                // another node's now. Where the monitor knows no promises yet, none is in force.
                let reservation = before.reservation.min(promise.limit);
                let _ = monitor.renew(session_slot, Promise { reservation, ..promise });
            }
        }
        is_less
    }

    /// Whether some client could not be given its promise: [`Self::settle`] is to be tried again
    /// when a period is over.
    pub const fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// A period is over: the monitor has sent its summary.
    pub fn on_period(&mut self, summary: &Summary) {
        self.periods += 1;
        self.rest();
        self.pool = summary.granted;
        for (session_slot, (result, is_busy)) in
            (0..).map(SessionSlot).zip(summary.session_slots.iter().zip(&summary.busy))
        {
            let Some((promise, outcome)) = result else { continue };
            self.operations += outcome.completed;
            let tenant = self.registry.tenant(session_slot);
            if tenant.is_empty() {
                continue;
            }
            let counters = self.tenant_counters.entry(tenant.into()).or_default();
            counters.done += outcome.completed;
            counters.operations += outcome.completed;
            if wants_more(promise, outcome, *is_busy) {
                counters.wants_more = true;
                let both = counters.unmet.zip(outcome.unmet);
                counters.unmet = both.map(|(sum, more)| sum.saturating_add(more));
                counters.missed += promise.reservation.saturating_sub(outcome.completed);
            }
        }
        let is_over = |due: &DueGrants| due.period <= summary.epoch;
        let mut last = None;
        while self.due.front().is_some_and(is_over) {
            last = self.due.pop_front().map(|due| due.serial);
        }
        match last {
            Some(_) if self.due.is_empty() => self.confirm(),
            Some(serial) => self.outputs.push_back(FromDataNode::Granted { serial }),
            None => {}
        }
    }

    /// No client has anything here any more that could be taken away: all shares are in force.
    pub fn on_no_clients(&mut self) {
        self.rest();
        if !core::mem::take(&mut self.due).is_empty() {
            self.confirm();
        }
    }

    /// So many bytes the store has for values, and so many of them are in use.
    pub fn on_store(&mut self, memory: Bytes, used: Bytes) {
        self.store = [memory, used];
    }

    /// The node has a notice for the controller.
    pub fn on_notice(&mut self, notice: Notice) {
        self.outputs.push_back(FromDataNode::Noticed(notice));
    }

    /// This structure of the memory was damaged, so the node goes on with other memory, which took
    /// so long to make.
    pub fn on_remade(&mut self, structure: Structure, is_store_kept: bool, took: Span) {
        let times = self.remade.map_or(0, |(times, _)| times) + 1;
        self.remade = Some((times, structure));
        let structure = structure.to_string();
        self.on_notice(Notice::Damaged { structure, is_store_kept, took });
        self.report_remade();
    }

    fn report_remade(&mut self) {
        if let Some((times, structure)) = self.remade {
            let structure = structure.to_string();
            self.outputs.push_back(FromDataNode::Remade { times, structure });
        }
    }

    /// Clears the counts of the last period: no client has done or wanted anything.
    fn rest(&mut self) {
        self.pool = 0;
        for counters in self.tenant_counters.values_mut() {
            let TenantCounters { operations, missed, .. } = *counters;
            *counters = TenantCounters { operations, missed, ..TenantCounters::default() };
        }
    }

    fn confirm(&mut self) {
        self.outputs.push_back(FromDataNode::Granted { serial: self.serial });
    }

    /// The node ends.
    pub fn on_ending(&mut self) {
        self.outputs.push_back(FromDataNode::Disconnect);
    }

    /// The next message to the controller.
    pub fn poll_output(&mut self) -> Option<FromDataNode> {
        self.outputs.pop_front()
    }

    /// The answer to a question, from a node that can do so much in a period.
    fn report(&self, round: u64, capacity: u64) -> DataNodeReport {
        let (revision, tenants) = match &self.policy {
            Some((revision, policy)) => (*revision, &policy.tenants[..]),
            None => (0, &[][..]),
        };
        let result = |(index, tenant)| self.tenant(index, tenant);
        DataNodeReport {
            revision,
            round,
            capacity: Iops(self.registry.per_second(capacity)),
            periods: self.periods,
            operations: self.operations,
            session_slots: self.registry.session_count() as u32,
            tenants: (0..).map(TenantIndex).zip(tenants).filter_map(result).collect(),
            pool: self.registry.per_second(self.pool),
            memory: self.store[0],
            used: self.store[1],
        }
    }

    /// The most that may be in force of a tenant: its share, and those before grants that are not
    /// in force yet. A tenant that has its first limit may have none until the next period begins.
    /// It counts with that limit: whatever comes before, no other node may be given it.
    pub fn in_force(&self, tenant: &str) -> TenantShare {
        let before = self.due.iter().filter_map(|due| due.before.get(tenant));
        before.fold(self.registry.share(tenant), |most, before| most.greatest(*before))
    }

    fn tenant(&self, index: TenantIndex, tenant: &Tenant) -> Option<TenantReport> {
        let share = self.registry.share(&tenant.name);
        let in_force = self.in_force(&tenant.name);
        let (clients, most) = self.registry.clients(tenant);
        let counters = self.tenant_counters.get(&tenant.name);
        if share == TenantShare::NOTHING && in_force == share && clients == 0 && counters.is_none()
        {
            return None;
        }
        let TenantCounters { done, wants_more, unmet, operations, missed } =
            counters.copied().unwrap_or_default();
        Some(TenantReport {
            tenant: index,
            reserved: in_force.reserved,
            allowed: in_force.allowed,
            clients,
            most,
            done: self.registry.per_second(done),
            wants_more,
            unmet: unmet.map(|count| self.registry.per_second(count)),
            operations,
            missed,
        })
    }
}

impl DueGrants {
    /// Another grant comes into force with these.
    fn add(&mut self, serial: u64, before: BTreeMap<String, TenantShare>) {
        self.serial = serial;
        for (tenant, share) in before {
            let most = self.before.entry(tenant).or_insert(share);
            *most = most.greatest(share);
        }
    }
}

/// Whether a client wanted more than it did, if it was busy at the end or not.
fn wants_more(promise: &Promise, outcome: &PeriodUsage, is_busy: bool) -> bool {
    let PeriodUsage { completed, starved, backlogged, .. } = *outcome;
    let is_limited = completed.saturating_add(completed / 64) >= promise.limit;
    is_limited || (is_busy && u16::from(starved) + u16::from(backlogged) >= LONG)
}
