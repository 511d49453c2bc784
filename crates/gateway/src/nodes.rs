//! One worker's links to the nodes: each job goes to the node that has its part of the volume,
//! unless a barrier holds it back.
//!
//! **Links.** A [`LinkKind`] is a class, and whether requests are long (beyond 64 KiB). A node of
//! another process has a link for each kind that it was sent, so a long request does not delay
//! short ones, and a connection's packets have the code point of one class. The *main* link is that
//! of short requests of class medium. While the link of a kind is down, its jobs use that of class
//! medium, or else any other ([`siblings`]). A job waits only if its node has no link that is up.
//!
//! **Barriers.** After a client has disappeared, its last writes may still be carried out. Until
//! they are done, a barrier ([`crate::barriers`]) holds later jobs for the parts that they change.
//! Held jobs fail if a link stays down for too long.

mod siblings;
mod there;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tidegate_fabric::reactor::{MessageQueue, Reactor, Ready};
use tidegate_fabric::remote::{LinkSettings, Remote};
use tidegate_fabric::service::{Command, CompletionSink, Fault, Job, Part, Service, Session};
use tidegate_fabric::stream::Way;
use tidegate_model::{NodeId, PartNumber, Span, Time};
use tidegate_proto::data::LinkKind;

use self::there::{LinkChanges, There};
use crate::barriers::{Barriers, Membership};
use crate::clock;
use crate::links::{Common, Identities};
use crate::message::{LINK, Message};
use crate::owners::OwnerTable;
use crate::parts::{PartError, Recorded, VolumeParts};
use crate::reachability::{NodeLabel, Reporter};
use crate::unreported_costs::UnreportedCosts;
use crate::volumes::VolumeIndex;

/// Where a node is.
#[derive(Clone)]
pub enum NodeLocation {
    /// In this process.
    Here(Arc<dyn Service>),
    /// Behind a socket.
    There {
        /// Its name, for people.
        name: String,
        /// Its connection settings.
        way: Way,
    },
}

impl fmt::Debug for NodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("Here"),
            Self::There { name, way } => write!(f, "There({name} at {})", way.address),
        }
    }
}

impl NodeLocation {
    /// For people.
    pub(crate) fn label(&self) -> NodeLabel {
        match self {
            Self::Here(_) => NodeLabel::default(),
            Self::There { name, way } => {
                NodeLabel { name: name.clone(), address: way.address.to_string() }
            }
        }
    }
}

/// Requests and replies of more bytes are *long*: they use a connection of their own to the node,
/// so that a short one does not wait behind them. A socket's buffer holds three of them. Chosen by
/// hand.
pub(crate) const LONG: usize = 64 << 10;

/// Where a job goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) volume: VolumeIndex,
    pub(crate) part: u32,
    /// It counts as long, whatever its length.
    pub(crate) is_long: bool,
}

/// A job that waits at a barrier, with a deadline if a link is down.
struct BlockedJob {
    until: Time,
    target: Target,
    job: Job,
}

/// A worker's nodes.
pub(crate) struct Nodes {
    /// When the worker woke up, or took completed jobs, last: the arrival of requests.
    pub(crate) now: Time,
    nodes: Vec<NodeLocation>,
    patience: Span,
    dscp: bool,
    identities: Arc<Identities>,
    membership: Membership,
    /// Jobs that wait at barriers, in order of arrival.
    held: Vec<BlockedJob>,
    message_queue: Arc<MessageQueue<Message>>,
    slots: Vec<NodeSlot>,
    /// By volume and part.
    locations: Vec<Vec<PartLocation>>,
    /// By volume.
    known: Vec<VolumeParts>,
    /// Jobs for volumes that are refused.
    refused: Vec<Job>,
    /// The names of the tenants that the nodes were sent.
    names: Vec<String>,
    costs: UnreportedCosts,
    /// By node, what its links have reported for each other since the last [`Self::submit`].
    changes: Vec<LinkChanges>,
}

const MAIN: LinkKind = LinkKind::MAIN;

/// The links to a node, in the order of their kinds; the main one is among them.
struct NodeSlot(Vec<Link>);

impl NodeSlot {
    fn find(&mut self, kind: LinkKind) -> Option<&mut Link> {
        self.0.iter_mut().find(|link| link.kind == kind)
    }

    fn main(&mut self) -> &mut Link {
        self.find(MAIN).expect("a node has a main link from the beginning")
    }
}

/// A link to a node, and the jobs that go there with the next batch.
struct Link {
    kind: LinkKind,
    connection: NodeConnection,
    batch: Vec<Job>,
}

/// The connection of a link.
enum NodeConnection {
    Here(Box<dyn Session>),
    There(Box<There>),
}

#[derive(Clone, Copy)]
struct PartLocation {
    node: NodeId,
    /// The part's number at the node.
    part: PartNumber,
}

impl Nodes {
    /// Opens all parts of all volumes, at their indexes in `nodes`. Parts of nodes behind sockets
    /// are opened when the link is up; jobs wait for that up to the time limit.
    pub(crate) fn open(
        nodes: &[NodeLocation],
        volumes: &[Vec<(NodeId, Part)>],
        (common, reporter): (&Common, &Reporter),
        reactor: &Reactor<Message>,
    ) -> Result<Self, PartError> {
        let Common { cost, patience, dscp, identities, barriers } = common.clone();
        let connection = |(id, node): (NodeId, &NodeLocation)| match node {
            NodeLocation::Here(service) => {
                let sink = NodeSink { message_queue: reactor.message_queue(), node: id };
                let mut session = service.session(Arc::new(sink));
                session.attach(reactor.registrar(), token(id, MAIN));
                NodeConnection::Here(session)
            }
            NodeLocation::There { way, .. } => {
                let settings = LinkSettings::new(way.clone(), identities.next());
                let settings = LinkSettings { patience, is_marked: dscp, ..settings };
                reporter.add_link(id);
                let remote = Remote::new(settings, token(id, MAIN));
                let there = There::new(remote, (id, MAIN), reporter.clone(), Vec::new());
                NodeConnection::There(Box::new(there))
            }
        };
        let connections = (0..).map(NodeId).zip(nodes).map(connection);
        let main = |connection| Link { kind: MAIN, connection, batch: Vec::new() };
        let mut slots: Vec<_> =
            connections.map(|connection| NodeSlot(vec![main(connection)])).collect();
        let mut known: Vec<_> = volumes.iter().map(|parts| VolumeParts::new(parts)).collect();
        let mut locations = Vec::new();
        for (volume, parts) in (0..).map(VolumeIndex).zip(volumes) {
            let open = |part| open(&mut slots, volume, part, &mut known[volume.0]);
            locations.push(parts.iter().map(open).collect::<Result<_, _>>()?);
        }
        let costs = UnreportedCosts::new(nodes.len(), cost);
        for (parts, known) in volumes.iter().zip(&known) {
            let name = parts.first().map_or("", |(_, part)| &part.volume);
            reporter.on_volume(name, known.fault(), known.mismatch());
        }
        let message_queue = reactor.message_queue();
        Ok(Self {
            now: clock::now(),
            nodes: nodes.to_vec(),
            patience,
            dscp,
            identities,
            membership: barriers.join(message_queue.clone()),
            held: Vec::new(),
            message_queue,
            slots,
            locations,
            known,
            refused: Vec::new(),
            names: Vec::new(),
            costs,
            changes: nodes.iter().map(|_| LinkChanges::default()).collect(),
        })
    }

    /// Why the first volume is not served, if none is.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let faults: Option<Vec<_>> = self.known.iter().map(VolumeParts::fault).collect();
        faults?.first().copied()
    }

    /// A part of a node of this process has another incarnation.
    pub(crate) fn on_incarnation(&mut self, node: NodeId, number: PartNumber, incarnation: u64) {
        for (known, locations) in self.known.iter_mut().zip(&self.locations) {
            let is_meant =
                |location: &PartLocation| location.node == node && location.part == number;
            if let Some(part) = locations.iter().position(is_meant) {
                known.on_incarnation(part as u32, incarnation);
            }
        }
    }

    /// Sends the names of the tenants. The list never shrinks.
    pub(crate) fn tenants(&mut self, table: &OwnerTable) {
        let names = table.names();
        self.costs.set_accounts(table.elsewhere());
        if names.len() == self.names.len() {
            return;
        }
        self.names = names.to_vec();
        for link in links(&mut self.slots) {
            link.connection.tenants(names);
        }
    }

    /// The incarnations that a session relies on if it opens the volume now.
    pub(crate) fn record(&self, volume: VolumeIndex) -> Recorded {
        self.known[volume.0].record()
    }

    /// The barriers before the parts.
    pub(crate) fn barriers(&self) -> &Barriers {
        self.membership.barriers()
    }

    /// All disconnected clients of this volume have been found.
    pub(crate) fn on_clients_checked(&self, volume: VolumeIndex) {
        self.membership.on_clients_checked(volume);
    }

    /// Puts a job into the next batch for the node that has this part, for a session that relies on
    /// the incarnations that it has `recorded`; where a barrier stands, it waits.
    pub(crate) fn queue(&mut self, target: Target, mut job: Job, recorded: &Recorded) {
        job.incarnation = self.known[target.volume.0].incarnation(recorded, target.part);
        if self.barriers().holds(target.volume, target.part) {
            let until = clock::now().after(self.patience);
            return self.held.push(BlockedJob { until, target, job });
        }
        self.batch(target, job);
    }

    /// Puts a job into the next batch for its node.
    fn batch(&mut self, Target { volume, part, is_long }: Target, mut job: Job) {
        let known = &self.known[volume.0];
        if known.fault().is_some() || known.is_lost(part, job.incarnation) {
            job.outcome = Err(Fault::Io);
            return self.refused.push(job);
        }
        let location = self.locations[volume.0][part as usize];
        job.part = location.part;
        job.tag.delay = self.costs.sent(location.node, &job);
        let is_data = matches!(job.command, Command::Read | Command::Write { .. });
        let is_bulk = is_long || (is_data && job.length as usize > LONG);
        let kind = match &self.nodes[location.node.index()] {
            NodeLocation::There { .. } => LinkKind { is_bulk, class: job.tag.class },
            // In this process nothing is written behind anything, but keys are passed on by the
            // node.
            NodeLocation::Here(_) => {
                LinkKind { is_bulk: is_bulk && job.command == Command::KeyValue, ..MAIN }
            }
        };
        self.link(location.node, kind).batch.push(job);
    }

    /// A link besides the main one.
    fn new_link(&mut self, node: NodeId, kind: LinkKind) -> Link {
        let main = self.slots[node.index()].main();
        let mut connection = match (&self.nodes[node.index()], &main.connection) {
            (NodeLocation::There { way, .. }, NodeConnection::There(main)) => {
                let settings = LinkSettings::new(way.clone(), self.identities.next());
                let (patience, is_marked) = (self.patience, self.dscp);
                let settings = LinkSettings { patience, kind, is_marked, ..settings };
                let remote = Remote::new(settings, token(node, kind));
                // Numbered as by the main link, which opened them in this order.
                let (parts, reporter) = (main.parts.clone(), main.reporter.clone());
                let there = There::new(remote, (node, kind), reporter, parts);
                NodeConnection::There(Box::new(there))
            }
            (NodeLocation::Here(service), _) => {
                let sink = NodeSink { message_queue: self.message_queue.clone(), node };
                let mut session = service.session(Arc::new(sink));
                session.carry_bulk();
                NodeConnection::Here(session)
            }
            (NodeLocation::There { .. }, NodeConnection::Here(_)) => {
                unreachable!("a node elsewhere has a link")
            }
        };
        connection.tenants(&self.names);
        Link { kind, connection, batch: Vec::new() }
    }

    /// Hands the batches over; jobs that finish at once are appended to `done`.
    pub(crate) fn submit(&mut self, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        loop {
            self.pass_barriers();
            self.redirect();
            self.costs.begin();
            done.append(&mut self.refused);
            self.send_batches(reactor, done);
            if !self.fence_lost_links(reactor, done) {
                return;
            }
        }
    }

    fn send_batches(&mut self, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        for (slot, changes) in self.slots.iter_mut().zip(&mut self.changes) {
            for link in slot.0.iter_mut().filter(|link| !link.batch.is_empty()) {
                match &mut link.connection {
                    NodeConnection::Here(session) => {
                        let now = clock::now();
                        link.batch.iter_mut().for_each(|job| job.times.sent = Some(now));
                        session.submit(&mut link.batch, done);
                    }
                    NodeConnection::There(there) => {
                        let now = clock::now();
                        there.remote.submit(now, &mut link.batch, done);
                        there.remote.flush(reactor, now, done);
                        there.on_notices(&mut self.known, self.membership.barriers(), changes);
                    }
                }
            }
        }
    }

    /// Puts the jobs that no barrier holds any more into the next batches.
    fn pass_barriers(&mut self) {
        if self.held.is_empty() {
            return;
        }
        for held in std::mem::take(&mut self.held) {
            match self.barriers().holds(held.target.volume, held.target.part) {
                true => self.held.push(held),
                false => self.batch(held.target, held.job),
            }
        }
    }

    /// Fails jobs that have waited long enough for a link that is down. Those that wait for the
    /// node's answers go on waiting.
    fn fail_held(&mut self, now: Time, done: &mut Vec<Job>) {
        let (barriers, patience) = (self.membership.barriers(), self.patience);
        let is_over = |held: &mut BlockedJob| {
            let is_due = held.until <= now;
            let is_over = is_due && barriers.awaits_link(held.target.volume, held.target.part);
            if is_due && !is_over {
                held.until = now.after(patience);
            }
            is_over
        };
        let failed = self.held.extract_if(.., is_over);
        done.extend(failed.map(|held| Job { outcome: Err(Fault::Io), ..held.job }));
    }

    /// Whether the job with this ticket waits at a barrier.
    pub(crate) fn is_held(&self, ticket: u64) -> bool {
        self.held.iter().any(|held| held.job.ticket == ticket)
    }

    /// Cancels jobs of a disconnected client that wait at barriers.
    pub(crate) fn cancel_held(&mut self, tickets: &[u64], done: &mut Vec<Job>) {
        if self.held.is_empty() {
            return;
        }
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        let cancelled = self.held.extract_if(.., |held| tickets.contains(&held.job.ticket));
        done.extend(cancelled.map(|held| Job { outcome: Err(Fault::Ending), ..held.job }));
    }

    /// Cancels these jobs, as far as they still wait. All are reported as finished nevertheless;
    /// those that finish at once are appended to `done`.
    pub(crate) fn cancel(
        &mut self,
        tickets: &[u64],
        reactor: &Reactor<Message>,
        done: &mut Vec<Job>,
    ) {
        // A job that is still in its batch has to reach the node before it can be cancelled.
        self.submit(reactor, done);
        for (slot, changes) in self.slots.iter_mut().zip(&mut self.changes) {
            for link in &mut slot.0 {
                match &mut link.connection {
                    NodeConnection::Here(session) => session.cancel(tickets),
                    NodeConnection::There(there) => {
                        there.remote.cancel(tickets, done);
                        there.remote.flush(reactor, clock::now(), done);
                        there.on_notices(&mut self.known, self.membership.barriers(), changes);
                    }
                }
            }
        }
    }

    /// The link with this token is ready.
    pub(crate) fn on_ready(
        &mut self,
        ready: Ready,
        reactor: &Reactor<Message>,
        done: &mut Vec<Job>,
    ) {
        let number = ready.token - LINK;
        let node = (number / LinkKind::COUNT) as usize;
        let slot = self.slots.get_mut(node);
        let is_meant = |link: &&mut Link| link.kind.number() == number % LinkKind::COUNT;
        let link = slot.and_then(|slot| slot.0.iter_mut().find(is_meant));
        let connection = link.map(|link| &mut link.connection);
        if let Some(NodeConnection::Here(session)) = connection {
            session.on_ready(ready, done);
        } else if let Some(NodeConnection::There(there)) = connection {
            let now = clock::now();
            let changes = &mut self.changes[node];
            let _entered = there.span.clone().entered();
            there.remote.on_ready(reactor, now, ready, done);
            there.on_notices(&mut self.known, self.membership.barriers(), changes);
            let parts = &there.parts;
            let is_refused = |job: &Job| {
                let (volume, part) = &parts[job.part.index()];
                let known = &self.known[volume.0];
                known.fault().is_some() || known.is_lost(part.index, job.incarnation)
            };
            there.remote.release(reactor, now, is_refused, done);
            there.on_notices(&mut self.known, self.membership.barriers(), changes);
        }
    }

    /// The next time to act without a message from a node.
    pub(crate) fn next_deadline(&self) -> Time {
        let deadline = |link: &Link| match &link.connection {
            NodeConnection::There(there) => there.remote.next_deadline(),
            NodeConnection::Here(_) => Time::MAX,
        };
        let links = self.slots.iter().flat_map(|slot| &slot.0).map(deadline);
        let held = self.held.iter().map(|held| held.until);
        links.chain(held).min().unwrap_or(Time::MAX).min(self.costs.ends())
    }

    /// Acts on the deadlines that have passed.
    pub(crate) fn on_deadline(
        &mut self,
        now: Time,
        reactor: &Reactor<Message>,
        done: &mut Vec<Job>,
    ) {
        if self.costs.ends() <= now {
            self.report_elsewhere(now, reactor, done);
        }
        self.fail_held(now, done);
        for (slot, changes) in self.slots.iter_mut().zip(&mut self.changes) {
            for link in &mut slot.0 {
                if let NodeConnection::There(there) = &mut link.connection
                    && there.remote.next_deadline() <= now
                {
                    let _entered = there.span.clone().entered();
                    there.remote.on_deadline(reactor, now, done);
                    there.on_notices(&mut self.known, self.membership.barriers(), changes);
                }
            }
        }
    }
}

impl Nodes {
    /// Reports to the nodes the costs at other nodes that no request has reported.
    fn report_elsewhere(&mut self, now: Time, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        for (node, slot) in (0..).map(NodeId).zip(&mut self.slots) {
            let costs = self.costs.of(node);
            match &mut slot.main().connection {
                _ if costs.is_empty() => {}
                NodeConnection::Here(session) => session.elsewhere(costs),
                NodeConnection::There(there) => {
                    there.remote.elsewhere(costs);
                    there.remote.flush(reactor, now, done);
                    let changes = &mut self.changes[node.index()];
                    there.on_notices(&mut self.known, self.membership.barriers(), changes);
                }
            }
        }
        self.costs.end();
    }
}

impl NodeConnection {
    /// Whether a job goes to the node at once.
    fn takes_jobs(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::There(there) => there.remote.takes_jobs(),
        }
    }

    /// Whether it broke, or could not be made, and is not up again.
    fn is_down(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::There(there) => there.remote.is_down(),
        }
    }

    fn tenants(&mut self, names: &[String]) {
        match self {
            Self::Here(session) => session.tenants(names),
            Self::There(there) => there.remote.tenants(names),
        }
    }
}

/// All links to all nodes.
fn links(slots: &mut [NodeSlot]) -> impl Iterator<Item = &mut Link> {
    slots.iter_mut().flat_map(|slot| &mut slot.0)
}

/// The token of a link.
fn token(node: NodeId, kind: LinkKind) -> u64 {
    LINK + LinkKind::COUNT * u64::from(node.0) + kind.number()
}

/// The number of a part that a node of this process refuses: no job goes there.
const REFUSED: u32 = u32::MAX;

fn open(
    slots: &mut [NodeSlot],
    volume: VolumeIndex,
    (node, part): &(NodeId, Part),
    known: &mut VolumeParts,
) -> Result<PartLocation, PartError> {
    let refuse = |reason| PartError { volume: part.volume.clone(), index: part.index, reason };
    let number = match slots.get_mut(node.index()).map(|slot| &mut slot.main().connection) {
        Some(NodeConnection::Here(session)) => match session.open(part) {
            Ok(opened) => {
                known.on_open(part.index, opened.state);
                known.on_link(part.index);
                opened.number
            }
            Err(reason) => {
                known.on_refused(part.index, reason);
                PartNumber(REFUSED)
            }
        },
        Some(NodeConnection::There(there)) => {
            there.parts.push((volume, part.clone()));
            there.reporter.uses(*node);
            there.remote.open(part.clone())
        }
        None => return Err(refuse(format!("there is no node {node}"))),
    };
    Ok(PartLocation { node: *node, part: number })
}

/// The sink of jobs that nodes finish later.
struct NodeSink {
    message_queue: Arc<MessageQueue<Message>>,
    node: NodeId,
}

impl CompletionSink for NodeSink {
    fn finished(&self, jobs: &mut Vec<Job>) {
        self.message_queue.extend(jobs.drain(..).map(Message::Finished));
    }

    fn incarnation(&self, part: PartNumber, incarnation: u64) {
        self.message_queue.push(Message::Incarnation { node: self.node, part, incarnation });
    }
}
