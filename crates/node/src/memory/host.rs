//! State that the two threads of a data node share: the memory region, its monitor and sweeper, the
//! clients with their session slots, and the promises to them.
//!
//! A [`Host`] makes the region, or continues with that of the node's earlier incarnation if a
//! client returns it. It polls the monitor, gives clients session slots and takes them back, passes
//! on messages of the controller, and records that the memory is damaged or lost.

pub(super) mod remake;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};

use rustix::rand::{GetRandomFlags, getrandom};
use tidegate_algo::onesided::capacity::Profile;
use tidegate_algo::onesided::engine::Promise;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::memory::model;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_fabric::trusted::{self, FILE_MODE, Folder, Purpose, Secrecy};
use tidegate_model::cluster::{DataNode, MemoryTransport};
use tidegate_model::policy::Tenant;
use tidegate_model::{Bytes, Policy, SessionSlot, Span, Time};
use tidegate_onesided::data_node::{
    self, ClientIdentity, Hello, SessionRegistry, ShareAgent, SlotParameters, TokenRules, VERSION,
    Welcome,
};
use tidegate_onesided::haechi::monitor::MonitorSettings;
use tidegate_onesided::haechi::{Monitor, MonitorEvent, SessionParameters, region_layout};
use tidegate_onesided::integrity::Structure;
use tidegate_onesided::kv::{Area, BLOCK, HEADER, Layout, OpenError, Stock};
use tidegate_onesided::one_sided::{BufferPosition, Lost, Operation, RemoteMemory as _};
use tidegate_onesided::session_slots::{self, SlotDenied};
use tidegate_proto::data_node::{FromDataNode, Notice, ToDataNode};
use tidegate_proto::session::version::VersionMismatch;

use super::inspector::{Inspector, speed};
use super::rnic::{Own, Rnic};
use super::sweeper::Sweeper;
use super::{StartError, check_headroom};
use crate::mutex::lock;
use remake::RemadeStore;

/// The mean of a profile divided by its deviation; cluster files do not state the deviation.
const DEVIATION: u64 = 100;

/// How long the monitor waits for its RNIC before it polls it. An RNIC takes some microseconds; a
/// thread that sleeps wakes up after 50 at the earliest.
const POLL_INTERVAL: Span = Span(20 * Span::MICROSECOND.0);

/// Why the monitor's thread cannot go on with the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// The node's own RNIC does not reach it any more.
    Lost,
    /// This is not what it must be.
    Damaged(Structure),
}

/// Why a client does not get the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// A session slot is free when the period ends: the client is to request it again then.
    Wait,
    /// A message for people.
    Refused(String),
    /// The memory is damaged, and has to be made anew first.
    Damaged,
}

impl From<SlotDenied> for Denied {
    fn from(denied: SlotDenied) -> Self {
        match denied {
            SlotDenied::Wait => Self::Wait,
            SlotDenied::Refused(reason) => Self::Refused(reason),
        }
    }
}

/// A data node without its threads.
pub(super) struct Host {
    node: DataNode,
    rules: TokenRules,
    /// The file with the identity of the node's memory.
    note: PathBuf,
    clock: Clock,
    /// The RNIC by which clients reach the memory, where they do not map it.
    rnic: Option<Rnic>,
    inner: Mutex<HostState>,
    /// The monitor's thread, which rests while no client has a session slot.
    pulse: OnceLock<Thread>,
}

struct HostState {
    region: Arc<Region>,
    monitor: Monitor<Own>,
    sweeper: Sweeper,
    inspector: Inspector,
    /// The clients with their session slots, and the promises to tenants.
    share_agent: ShareAgent,
    /// The memory of this node's earlier incarnation, which a client may return.
    former: Option<MemoryIdentity>,
    /// Session slots of the earlier incarnation, whose clients have not reconnected yet.
    orphans: BTreeSet<SessionSlot>,
    /// Whether the node's own RNIC has lost the memory.
    is_lost: bool,
    /// The damaged structure of the memory, until there is other memory.
    damaged: Option<Structure>,
}

/// A session slot for a client of `tenant`, and its promise: the slot that an earlier incarnation
/// of this node gave it, or a free one.
fn take_session_slot(
    monitor: &mut Monitor<Own>,
    share_agent: &ShareAgent,
    orphans: &mut BTreeSet<SessionSlot>,
    (tenant, hello): (Option<&Tenant>, &Hello),
) -> Result<(SessionSlot, Promise), Denied> {
    let earlier = hello.session_slot.filter(|number| orphans.contains(number));
    if earlier.is_none() {
        let clients = |name: &str| share_agent.registry.clients_of(name);
        let mut slots = monitor.slots();
        // Some periods later there will be no slot whose client has not come back.
        slots.leaving = slots.taken.min(slots.leaving + orphans.len());
        session_slots::admit(share_agent.policy(), tenant, clients, slots)?;
    }
    let promise = share_agent.registry.offer(tenant, hello).map_err(Denied::Refused)?;
    earlier.iter().for_each(|number| _ = orphans.remove(number));
    let number = match earlier {
        Some(number) => monitor.renew(number, promise).map(|()| number),
        None => monitor.admit(promise).inspect(|number| {
            let name = tenant.map_or("", |tenant| &tenant.name);
            let allowed = |number| monitor.allowed(number);
            let rest = share_agent.registry.rest(name, promise.limit, allowed);
            monitor.start_early(*number, rest);
        }),
    };
    let number = number.map_err(|denied| Denied::Refused(denied.to_string()))?;
    Ok((number, promise))
}

impl Host {
    /// Makes the memory and its contents.
    pub(super) fn new(
        node: DataNode,
        rules: TokenRules,
        note: PathBuf,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let region = region(&node)?;
        if let Some(speed) = speed(&node) {
            model::set(&region, region_layout::NIC, speed);
        }
        format(&region)?;
        let rnic = match node.transport {
            MemoryTransport::Verbs => Some(Rnic::open(node.device.as_deref(), &region)?),
            MemoryTransport::Shm | MemoryTransport::Model => None,
        };
        let monitor = monitor((&node, rules), rnic.as_ref(), &region, clock.now())?;
        let share_agent = ShareAgent::new(SessionRegistry::new(node.period, node.client));
        // Only the node has memory behind an RNIC, so no client can return it.
        let former = if rnic.is_some() { None } else { MemoryIdentity::noted(&note) };
        let orphans = BTreeSet::new();
        let sweeper = sweeper(&node, rnic.as_ref(), &region, true)?;
        let inspector = Inspector::new(&node, &region).map_err(StartError::Store)?;
        let inner = Mutex::new(HostState {
            region,
            monitor,
            sweeper,
            inspector,
            share_agent,
            former,
            orphans,
            is_lost: false,
            damaged: None,
        });
        Ok(Self { node, rules, note, clock, rnic, inner, pulse: OnceLock::new() })
    }

    /// The RNIC of the memory, if clients do not map it.
    pub(super) fn rnic(&self) -> Option<&Rnic> {
        self.rnic.as_ref()
    }

    /// Whether a client may still return the memory of this node's earlier incarnation.
    pub(super) fn is_incomplete(&self) -> bool {
        lock(&self.inner).former.is_some()
    }

    /// Continues with this memory if it is that of this node's earlier incarnation.
    ///
    /// # Errors
    /// If it is, and cannot be used.
    pub(super) fn adopt(&self, file: OwnedFd) -> Result<bool, StartError> {
        let mut inner = lock(&self.inner);
        if inner.former.is_none() || MemoryIdentity::of(&file)? != inner.former {
            return Ok(false);
        }
        let region = Arc::new(Region::from_fd(file)?);
        let problem = |what| Err(StartError::Io(io::Error::other(what)));
        if region.length() != self.node.memory.0 {
            return problem("its size is another than in the file");
        }
        if word(&region, region_layout::LAYOUT) != region_layout::VERSION {
            return problem("it is of another release");
        }
        let sweeper = sweeper(&self.node, None, &region, false)?;
        let mut inspector = Inspector::new(&self.node, &region).map_err(StartError::Store)?;
        let damaged = inspector.inspect_store();
        let monitor = monitor((&self.node, self.rules), None, &region, self.clock.now())?;
        let damaged = damaged.or((!monitor.is_feasible()).then_some(Structure::Grants));
        if let Some(structure) = damaged {
            return Err(StartError::Io(io::Error::other(format!("{structure} is damaged"))));
        }
        // That incarnation may have ended while it moved away from this memory.
        set_left(&region, false);
        let session_slots = (0..self.node.session_slots as u16)
            .map(SessionSlot)
            .filter(|session_slot| monitor.promise(*session_slot).is_some());
        inner.orphans = session_slots.collect();
        (inner.region, inner.monitor, inner.sweeper) = (region, monitor, sweeper);
        (inner.inspector, inner.former) = (inspector, None);
        self.pulse.get().inspect(|thread| thread.unpark());
        Ok(true)
    }

    /// Writes the identity of the node's memory to a file, for its next incarnation. If that fails,
    /// the memory is merely not found again.
    pub(super) fn settle(&self) {
        if self.rnic.is_some() {
            return;
        }
        let mut inner = lock(&self.inner);
        inner.former = None;
        let noted = MemoryIdentity::of(&*inner.region)
            .and_then(|identity| identity.map_or(Ok(()), |identity| identity.note(&self.note)));
        if let Err(error) = noted {
            let path = self.note.display();
            tracing::warn!(
                %path,
                %error,
                "the memory will not be found again: its file is not written"
            );
        }
    }

    /// Polls the monitor, and returns the time of the next poll; it is woken when a client takes a
    /// session slot.
    ///
    /// # Errors
    /// If the node's own RNIC does not reach the memory any more, or the memory is damaged.
    pub(super) fn tick(&self, events: &mut Vec<MonitorEvent>) -> Result<Time, Halt> {
        self.pulse.get_or_init(thread::current);
        let mut inner = lock(&self.inner);
        if let Some(structure) = inner.damaged {
            return Err(Halt::Damaged(structure));
        }
        let HostState {
            monitor, sweeper, inspector, share_agent, orphans, is_lost, damaged, ..
        } = &mut *inner;
        let now = self.clock.now();
        let is_idle = |share_agent: &ShareAgent, monitor: &Monitor<Own>| {
            share_agent.registry.session_count() == 0
                && orphans.is_empty()
                && monitor.slots().taken == 0
        };
        // Without clients no period need begin.
        if !is_idle(share_agent, monitor) || !monitor.is_resting() {
            monitor.poll(now, events).map_err(|Lost| {
                *is_lost = true;
                Halt::Lost
            })?;
        }
        for event in &*events {
            if let MonitorEvent::Over(summary) = event {
                share_agent.on_period(summary);
                if share_agent.is_owed() {
                    share_agent.settle(monitor);
                }
            }
        }
        let is_alone = share_agent.registry.session_count() == 0 && orphans.is_empty();
        let is_idle = is_idle(share_agent, monitor);
        if let Some(structure) = inspector.poll(now, is_idle, monitor) {
            *damaged = Some(structure);
            return Err(Halt::Damaged(structure));
        }
        let poll_at = match is_idle {
            true => Time::MAX,
            // Slots of clients that have left are free once another period begins.
            false if monitor.is_waiting() => now.after(POLL_INTERVAL),
            false => monitor.next_deadline(),
        };
        let sweeps =
            sweeper.poll(now, is_alone, |session_slot| share_agent.registry.has(session_slot));
        let Stock { blocks, free } = sweeper.stock();
        let bytes = |blocks: u32| Bytes(u64::from(blocks) * u64::from(BLOCK));
        share_agent.on_store(bytes(blocks), bytes(blocks - free));
        Ok(poll_at.min(sweeps).min(inspector.next()))
    }

    /// Whether the node has to move, because blocks run low in memory that must not be swept.
    pub(super) fn is_move_due(&self) -> bool {
        let now = self.clock.now();
        lock(&self.inner).sweeper.is_move_due(now)
    }

    /// Whether the node's own RNIC has lost the memory, and the memory was not made anew since.
    pub(super) fn is_lost(&self) -> bool {
        lock(&self.inner).is_lost
    }

    /// The damaged structure of the memory, if that was not made anew since.
    pub(super) fn damaged(&self) -> Option<Structure> {
        lock(&self.inner).damaged
    }

    /// Records that the monitor's thread has failed on the memory's contents.
    pub(super) fn fail(&self) {
        lock(&self.inner).damaged.get_or_insert(Structure::Unknown);
    }

    /// Records that a session slot is free: the client of this node's earlier incarnation has not
    /// reconnected.
    pub(super) fn forget(&self, session_slot: SessionSlot) {
        lock(&self.inner).orphans.remove(&session_slot);
    }

    /// Gives a client a session slot, and the region.
    ///
    /// # Errors
    /// The reason, for people; or that a slot is free once the period ends.
    pub(super) fn open_session(
        &self,
        identity: &ClientIdentity,
        hello: &Hello,
    ) -> Result<(Welcome, Arc<Region>), Denied> {
        VersionMismatch::check(("client", hello.version), ("data node", VERSION))
            .map_err(|mismatch| Denied::Refused(mismatch.to_string()))?;
        let inner = &mut *lock(&self.inner);
        inner.damaged = inner.damaged.or_else(|| inner.inspector.check(&inner.monitor));
        if inner.damaged.is_some() {
            return Err(Denied::Damaged);
        }
        let now = self.clock.now();
        inner.inspector.wake(now);
        let HostState { monitor, share_agent, orphans, .. } = inner;
        let tenant = tenant(share_agent.policy(), identity, hello).map_err(Denied::Refused)?;
        let name = tenant.map_or("", |tenant| &tenant.name).to_owned();
        let session_slot = match hello.is_bare {
            true => None,
            false => {
                let (number, promise) =
                    take_session_slot(monitor, share_agent, orphans, (tenant, hello))?;
                share_agent.registry.add(number, &name, hello);
                // Tenants with equal shares have smaller ones now.
                share_agent.settle(monitor);
                self.pulse.get().inspect(|thread| thread.unpark());
                let Self { rules, node: DataNode { period, client, .. }, .. } = *self;
                let reservation = promise.reservation;
                Some(SlotParameters { number, rules, period, client, reservation })
            }
        };
        inner.sweeper.admit(now, session_slot.as_ref().map(|session_slot| session_slot.number));
        let DataNode { transport, window, .. } = self.node;
        let welcome =
            Welcome { tenant: name, session_slot, transport, window, store: region_layout::DATA };
        Ok((welcome, inner.region.clone()))
    }

    /// Takes a client's session slot back, if it has one.
    pub(super) fn leave(&self, session_slot: Option<SessionSlot>) {
        let HostState { monitor, sweeper, share_agent, .. } = &mut *lock(&self.inner);
        if let Some(session_slot) = session_slot {
            share_agent.registry.leave(session_slot);
            monitor.dismiss(session_slot);
            // The remaining clients may have more now.
            share_agent.settle(monitor);
            if share_agent.registry.session_count() == 0 {
                share_agent.on_no_clients();
            }
        }
        sweeper.leave(self.clock.now(), session_slot);
        self.pulse.get().inspect(|thread| thread.unpark());
    }

    /// Whether a session slot is that of a client of this node's earlier incarnation, which has not
    /// reconnected.
    #[cfg(test)]
    fn is_orphan(&self, session_slot: SessionSlot) -> bool {
        lock(&self.inner).orphans.contains(&session_slot)
    }

    /// The tenant of a session slot; empty without a client.
    pub(super) fn tenant(&self, session_slot: SessionSlot) -> String {
        lock(&self.inner).share_agent.registry.tenant(session_slot).into()
    }

    /// The tenants that have clients, for people.
    pub(super) fn tenants(&self) -> String {
        lock(&self.inner).share_agent.registry.tenants().join(", ")
    }

    /// Whether a session slot is taken by a client that has not left.
    pub(super) fn has_client(&self, session_slot: SessionSlot) -> bool {
        lock(&self.inner).share_agent.registry.has(session_slot)
    }

    /// How many session slots are taken.
    pub(super) fn client_count(&self) -> usize {
        lock(&self.inner).share_agent.registry.session_count()
    }

    /// A connection to the controller was made, the first one or a later one.
    pub(super) fn connected(&self) {
        lock(&self.inner).share_agent.on_connected();
    }

    /// Handles a message of the controller.
    pub(super) fn receive(&self, message: ToDataNode) {
        let HostState { monitor, share_agent, .. } = &mut *lock(&self.inner);
        share_agent.on_message(message, monitor);
        if share_agent.is_owed() {
            tracing::warn!("promises exceed this node's capacity; the node tries again");
        }
    }

    /// The next message to the controller.
    pub(super) fn poll_output(&self) -> Option<FromDataNode> {
        lock(&self.inner).share_agent.poll_output()
    }

    /// The memory was made anew because this structure was damaged.
    pub(super) fn remade(&self, structure: Structure, store: RemadeStore, took: Span) {
        let is_store_kept = store == RemadeStore::Kept;
        lock(&self.inner).share_agent.on_remade(structure, is_store_kept, took);
    }

    /// Queues a notice for the controller.
    pub(super) fn notice(&self, notice: Notice) {
        lock(&self.inner).share_agent.on_notice(notice);
    }

    pub(super) fn end(&self) {
        lock(&self.inner).share_agent.on_ending();
    }

    /// Continues with the memory as it is. The clients in `left` may still have it: a client that
    /// is shut out has it, too.
    pub(super) fn stay(&self, session_slots: impl Iterator<Item = Option<SessionSlot>>) {
        session_slots.for_each(|session_slot| self.leave(session_slot));
        lock(&self.inner).sweeper.doubt();
    }
}

/// The tenant of a new client; none if it is a client that needs none.
fn tenant<'a>(
    policy: Option<&'a Policy>,
    identity: &ClientIdentity,
    hello: &Hello,
) -> Result<Option<&'a Tenant>, String> {
    let found = match policy {
        Some(policy) => {
            data_node::tenant(policy, identity, &hello.tenant)?.and_then(|id| policy.tenant(id))
        }
        None if !hello.tenant.is_empty() => {
            return Err("there is no policy, so there are no tenants; apply one".into());
        }
        None if identity.is_operator => None,
        None => return Err("there is no policy that admits clients; apply one".into()),
    };
    match hello.is_bare && !identity.is_operator {
        true => Err("only root and the data node's own user go without a session slot".into()),
        false => Ok(found),
    }
}

fn region(node: &DataNode) -> Result<Arc<Region>, StartError> {
    check_headroom(node.memory)?;
    let made = Region::create(node.memory.0).and_then(|region| {
        region.populate()?;
        Ok(Arc::new(region))
    });
    made.map_err(|error| StartError::Memory { size: node.memory, error })
}

/// Makes an empty store.
fn format(region: &Arc<Region>) -> Result<(), StartError> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty()).map_err(io::Error::from)?;
    let area = Area { at: region_layout::DATA, length: region.length() - region_layout::DATA };
    let layout = Layout::fill(area, u64::from_le_bytes(seed));
    let layout = layout.map_err(|error| StartError::Store(OpenError::Layout(error)))?;
    let mut remote = Shm::new(region.clone(), 1);
    remote.buffer_mut(0)[..HEADER].copy_from_slice(&layout.header());
    let (from, length) = (BufferPosition::start(0), HEADER as u32);
    let write = Operation::Write { from, to: region_layout::DATA, length };
    // The cluster file's checks ensure the size.
    let written = remote.perform(&write).map_err(|error| StartError::Io(io::Error::other(error)));
    written.map(|_| ())
}

/// A monitor over this memory, which has taken over the session slots in it and begun a period.
fn monitor(
    (node, rules): (&DataNode, TokenRules),
    rnic: Option<&Rnic>,
    region: &Arc<Region>,
    now: Time,
) -> Result<Monitor<Own>, StartError> {
    let DataNode { capacity, client, period, session_slots, window, .. } = *node;
    let mean = node.per_period(capacity);
    let profile = Profile {
        mean,
        deviation: mean / DEVIATION,
        local: node.per_period(client),
        increment: (mean / 100).max(1),
        history: 5,
    };
    let parameters =
        SessionParameters { rules: data_node::rules(rules), period, local_rate: client.0 };
    let session_slots = session_slots as u16;
    let settings = MonitorSettings { parameters, profile, session_slots, window };
    // A line of reports and one of grants for each session slot, and the header.
    let buffers = 2 * u32::from(session_slots).div_ceil(64) + 1;
    let remote = Own::new(rnic, region, buffers)?;
    let problem = |what| StartError::Io(io::Error::other(what));
    let mut monitor = Monitor::new(remote, settings, now)
        .map_err(|_| problem("the memory has no room for words of control"))?;
    // Its events here are those of an earlier incarnation, and are dropped.
    loop {
        monitor
            .poll(now, &mut Vec::new())
            .map_err(|_| problem("the RNIC does not reach the memory"))?;
        // An RNIC is done within microseconds, or has lost the memory within two seconds.
        if !monitor.is_waiting() {
            return Ok(monitor);
        }
        thread::yield_now();
    }
}

/// The sweeper of the store in this memory. See [`Sweeper::new`].
fn sweeper(
    node: &DataNode,
    rnic: Option<&Rnic>,
    region: &Arc<Region>,
    is_sure: bool,
) -> Result<Sweeper, StartError> {
    let own = Own::new(rnic, region, 1)?;
    Sweeper::new(own, region, node.period, is_sure).map_err(StartError::Store)
}

/// A word of a region; 0 if there is none.
fn word(region: &Arc<Region>, at: u64) -> u64 {
    Shm::new(region.clone(), 0).perform(&Operation::FetchAdd { at, add: 0 }).unwrap_or(0)
}

/// Marks in a region whether it was left, before any later store of this thread.
fn set_left(region: &Arc<Region>, is_left: bool) {
    let (word, to) = (u64::from(is_left), region_layout::LEFT);
    let set = Shm::new(region.clone(), 0).perform(&Operation::WriteWord { word, to });
    debug_assert!(set.is_ok(), "a region has control words");
    fence(SeqCst);
}

/// The identity of the memory, unique on this machine since it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryIdentity(String);

impl MemoryIdentity {
    fn of(file: impl AsFd) -> io::Result<Option<Self>> {
        let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else {
            return Ok(None);
        };
        let found = rustix::fs::fstat(file)?;
        Ok(Some(Self(format!("{} {} {}", boot.trim(), found.st_dev, found.st_ino))))
    }

    fn noted(path: &Path) -> Option<Self> {
        let bytes = trusted::read(path, Secrecy::Open).ok()?;
        String::from_utf8(bytes).ok().map(Self)
    }

    fn note(&self, path: &Path) -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = Folder::open(folder, Purpose::Public)?;
        Ok(folder.replace(name, self.0.as_bytes(), FILE_MODE)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use tidegate_model::{Cluster, TenantIndex};
    use tidegate_onesided::kv::{self, Answer, Client, Opening};
    use tidegate_proto::cluster::message::Share;
    use tidegate_proto::controller::Peer;
    use tidegate_proto::data_node::Grant;

    fn node() -> DataNode {
        let text = r#"
            [[data-node]]
            name = "m"
            listen = "unix:m.sock"
            memory = "8MiB"
            capacity = "1000 iops"
            client = "500 iops"
        "#;
        Cluster::parse(text).unwrap().data_nodes.remove(0)
    }

    /// Waits until a session slot has tokens: a period at most.
    fn until_granted(host: &Host, region: &Arc<Region>) {
        while word(region, region_layout::GRANTS) == 0 {
            host.tick(&mut Vec::new()).unwrap();
        }
    }

    fn host(policy: &str) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("m.region");
        let host = Host::new(node(), TokenRules::Sound, note, Clock::start()).unwrap();
        if let Ok(policy) = Policy::parse(policy) {
            apply(&host, 1, policy);
        }
        host
    }

    /// Puts a policy in force, with all of its promises at this node.
    fn apply(host: &Host, revision: u64, policy: Policy) {
        let whole = |(tenant, it): (TenantIndex, &tidegate_model::policy::Tenant)| Share {
            tenant,
            reserved: it.reservation.operations.map_or(0, |rate| rate.0),
            allowed: u64::MAX,
        };
        let shares = (0..).map(TenantIndex).zip(&policy.tenants).map(whole).collect();
        host.receive(ToDataNode::Policy { revision, policy });
        host.receive(ToDataNode::Grant(Grant { revision, serial: revision, shares }));
    }

    const POLICY: &str = r#"
        tenant = [
            { name = "a", reservation = "400 iops" },
            { name = "b", reservation = "700 iops" },
        ]
    "#;

    fn hello(tenant: &str, reservation: u64) -> Hello {
        let reservation = Some(tidegate_model::Iops(reservation));
        let (version, tenant) = (VERSION, tenant.into());
        Hello {
            version,
            tenant,
            reservation,
            limit: None,
            parts: 1,
            session_slot: None,
            is_bare: false,
        }
    }

    fn identity(uid: u32) -> ClientIdentity {
        let peer = Peer { uid, ..Peer::default() };
        ClientIdentity { peer, is_operator: uid == 0, ..ClientIdentity::default() }
    }

    fn reason(denied: &Denied) -> String {
        let Denied::Refused(reason) = denied else { panic!("{denied:?}") };
        reason.clone()
    }

    #[test]
    fn session_slots_are_given_as_far_as_promises_can_be_kept() {
        let host = host(POLICY);
        let try_open = |hello: Hello, uid| {
            host.open_session(&identity(uid), &hello).map(|(it, _)| it.session_slot)
        };
        let try_open = |hello, uid| try_open(hello, uid).map_err(|denied| reason(&denied));
        let session_slot = try_open(hello("a", 400), 7).unwrap().unwrap();
        assert_eq!((session_slot.number, session_slot.reservation), (SessionSlot(0), 400));
        let error = try_open(hello("b", 501), 7).unwrap_err();
        assert!(error.starts_with("client 1 reserves 501 operations per period"), "{error}");
        assert!(try_open(hello("b", 500), 7).is_ok());
        let error = try_open(hello("b", 200), 7).unwrap_err();
        assert!(error.contains("and the node can do 1000; lower them by 100"), "{error}");
        let old = Hello { version: VERSION + 1, ..hello("a", 0) };
        assert!(try_open(old, 7).unwrap_err().contains("run the same release on both"));
        let bare = || Hello { is_bare: true, ..hello("", 0) };
        assert_eq!(try_open(bare(), 0), Ok(None));
        assert!(try_open(Hello { tenant: "a".into(), ..bare() }, 7).is_err());
        assert_eq!(host.client_count(), 2);
        host.leave(Some(SessionSlot(0)));
        assert_eq!((host.client_count(), host.tenant(SessionSlot(1)).as_str()), (1, "b"));
        let half = "tenant = [{ name = \"b\", reservation = \"300 iops\" }]";
        apply(&host, 2, Policy::parse(half).unwrap());
        let promise = lock(&host.inner).monitor.promise(SessionSlot(1)).unwrap();
        assert_eq!(promise.reservation, 300);
    }

    #[test]
    fn without_a_policy_operators_come_in_and_nothing_is_promised() {
        let host = host("[");
        let anonymous = |uid| {
            let answer = host.open_session(&identity(uid), &hello("", 0));
            answer.map(|(it, _)| it.tenant).map_err(|denied| reason(&denied))
        };
        assert_eq!(anonymous(0), Ok(String::new()));
        assert!(anonymous(7).unwrap_err().starts_with("there is no policy that admits"));
        assert!(host.open_session(&identity(0), &hello("a", 0)).is_err());
        assert!(host.open_session(&identity(0), &hello("", 1)).is_err());
    }

    #[test]
    fn memory_of_an_earlier_incarnation_is_adopted_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let live = || {
            let note = folder.path().join("m.region");
            let host = Host::new(node(), TokenRules::Sound, note, Clock::start()).unwrap();
            apply(&host, 1, Policy::parse(POLICY).unwrap());
            host
        };
        let first = live();
        assert!(!first.is_incomplete());
        first.settle();
        let (welcome, memory) = first.open_session(&identity(0), &hello("a", 300)).unwrap();
        until_granted(&first, &memory);
        drop(first);
        let second = live();
        assert!(second.is_incomplete());
        let file = |region: &Region| region.as_fd().try_clone_to_owned().unwrap();
        let other = Region::create(8 << 20).unwrap();
        assert!(!second.adopt(file(&other)).unwrap() && second.is_incomplete());
        set_left(&memory, true);
        assert!(second.adopt(file(&memory)).unwrap() && !second.is_incomplete());
        assert_eq!(word(&memory, region_layout::LEFT), 0, "it goes on with it");
        assert!(!second.adopt(file(&memory)).unwrap(), "once");
        let session_slot = welcome.session_slot.map(|session_slot| session_slot.number);
        let again = Hello { session_slot, ..hello("a", 300) };
        let (welcome, _) = second.open_session(&identity(0), &again).unwrap();
        assert_eq!(welcome.session_slot.map(|session_slot| session_slot.number), session_slot);
        let (welcome, _) =
            second.open_session(&identity(0), &Hello { session_slot, ..hello("a", 1) }).unwrap();
        assert_ne!(
            welcome.session_slot.map(|session_slot| session_slot.number),
            session_slot,
            "it has its client again"
        );
    }

    /// All slots are those of clients of the earlier incarnation: one that has left before it ended
    /// has none, and for the slot of one that may come back, a new client waits.
    #[test]
    fn a_restarted_node_gives_away_slots_of_clients_that_have_left() {
        let folder = tempfile::tempdir().unwrap();
        let live = || {
            let node = DataNode { session_slots: 2, ..node() };
            let note = folder.path().join("m.region");
            let host = Host::new(node, TokenRules::Sound, note, Clock::start()).unwrap();
            apply(&host, 1, Policy::parse("[[tenant]]\nname = \"a\"").unwrap());
            host
        };
        let (first, slots) = (live(), [0, 1].map(SessionSlot));
        first.settle();
        let open = |host: &Host| host.open_session(&identity(0), &hello("a", 0));
        let (_, memory) = open(&first).unwrap();
        open(&first).unwrap();
        let line = |slot| region_layout::line(region_layout::GRANTS, slot);
        let until = |is: &dyn Fn() -> bool| {
            while !is() {
                first.tick(&mut Vec::new()).unwrap();
            }
        };
        until(&|| slots.iter().all(|slot| word(&memory, line(*slot)) != 0));
        first.leave(Some(slots[0]));
        let before = word(&memory, line(slots[0]));
        until(&|| word(&memory, line(slots[0])) != before);
        drop(first);
        let second = live();
        assert!(second.adopt(memory.as_fd().try_clone_to_owned().unwrap()).unwrap());
        assert_eq!(slots.map(|slot| second.is_orphan(slot)), [false, true]);
        let (welcome, _) = open(&second).unwrap();
        assert_eq!(welcome.session_slot.map(|slot| slot.number), Some(slots[0]));
        assert_eq!(open(&second).map(|_| ()), Err(Denied::Wait), "the other may come back");
        let again = Hello { session_slot: Some(slots[1]), ..hello("a", 0) };
        assert!(second.open_session(&identity(0), &again).is_ok());
        let Err(Denied::Refused(reason)) = open(&second) else { panic!("all have their clients") };
        assert!(reason.contains("2 of them by tenant \"a\""), "{reason}");
    }

    fn client(shm: Shm) -> Client<Shm> {
        let mut opening = Opening::new(shm, region_layout::DATA);
        while !opening.poll(Time::ZERO).unwrap() {}
        let (locations, extent, rest) = (8, 16, Span::ZERO);
        let settings =
            kv::ClientSettings { outstanding: 8, locations, extent, session_slot: None, rest };
        opening.client(settings).unwrap()
    }

    /// A client that ignores notices, and puts numbers under the same keys as long as each put
    /// succeeds. `acknowledged` has the last number stored under each.
    fn deaf(region: Arc<Region>, acknowledged: &[AtomicU64; 8]) {
        let mut client = client(Shm::new(region, 16).until_left(region_layout::LEFT));
        let mut outcomes = Vec::new();
        for number in 1u64.. {
            for key in 0..8 {
                client.put(&[key], &number.to_le_bytes(), u64::from(key)).unwrap();
            }
            while client.outstanding() > 0 {
                if client.poll(Time::ZERO, &mut outcomes).is_err() {
                    return;
                }
                for outcome in outcomes.drain(..) {
                    assert_eq!(outcome.answer, Answer::Stored);
                    acknowledged[outcome.token as usize].store(number, Ordering::Release);
                }
            }
        }
    }

    fn number(region: &Arc<Region>, key: u8) -> u64 {
        let mut client = client(Shm::new(region.clone(), 1));
        let mut outcomes = Vec::new();
        client.get(&[key], 0).unwrap();
        while client.outstanding() > 0 {
            client.poll(Time::ZERO, &mut outcomes).unwrap();
        }
        let answer = outcomes.remove(0).answer;
        let Answer::Found(value) = answer else { panic!("{key} is {answer:?}") };
        u64::from_le_bytes(client.value(&value).try_into().unwrap())
    }

    #[test]
    fn acknowledged_writes_are_in_the_memory_that_the_node_continues_with() {
        let host = host(POLICY);
        for _ in 0..20 {
            let old = lock(&host.inner).region.clone();
            let acknowledged = [const { AtomicU64::new(0) }; 8];
            thread::scope(|scope| {
                scope.spawn(|| deaf(old.clone(), &acknowledged));
                while acknowledged
                    .iter()
                    .any(|acknowledged| acknowledged.load(Ordering::Acquire) < 10)
                {
                    thread::yield_now();
                }
                host.move_memory().unwrap();
            });
            let new = lock(&host.inner).region.clone();
            assert_eq!([&old, &new].map(|region| word(region, region_layout::LEFT)), [1, 0]);
            for (key, acknowledged) in (0..).zip(acknowledged) {
                let (found, acknowledged) = (number(&new, key), acknowledged.into_inner());
                assert!(found >= acknowledged, "{found} is there, and {acknowledged} was told");
            }
        }
    }

    #[test]
    fn what_is_cleared_has_the_store_and_no_grants() {
        let host = host(POLICY);
        let (_, region) = host.open_session(&identity(0), &hello("a", 1)).unwrap();
        until_granted(&host, &region);
        let kept = [
            region_layout::HEADER,
            region_layout::POOL,
            region_layout::DATA,
            region_layout::DATA + 56,
        ];
        let before = kept.map(|at| word(&region, at));
        let last = region_layout::DATA - 8;
        let write = Operation::WriteWord { word: 7, to: last };
        Shm::new(region.clone(), 0).perform(&write).unwrap();
        remake::clear(&region, region_layout::GRANTS, region_layout::DATA).unwrap();
        assert_eq!((word(&region, region_layout::GRANTS), word(&region, last)), (0, 0));
        assert_eq!(kept.map(|at| word(&region, at)), before);
    }

    #[test]
    fn a_copy_has_the_store_and_no_grants() {
        let host = host(POLICY);
        let (_, old) = host.open_session(&identity(0), &hello("a", 1)).unwrap();
        until_granted(&host, &old);
        host.move_memory().unwrap();
        let (_, new) = host.open_session(&identity(0), &hello("a", 1)).unwrap();
        assert_eq!((word(&new, region_layout::GRANTS), host.client_count()), (0, 1));
        assert_eq!(word(&new, region_layout::LEASE), word(&old, region_layout::LEASE) + 1);
        for at in [
            region_layout::HEADER,
            region_layout::LAYOUT,
            region_layout::DATA,
            region_layout::DATA + 56,
        ] {
            assert_eq!(word(&new, at), word(&old, at), "{at}");
        }
    }
}
