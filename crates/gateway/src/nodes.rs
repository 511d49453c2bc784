//! One worker's links to the nodes, and the node of each part of each volume.

mod there;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tidegate_fabric::reactor::{MessageQueue, Reactor, Ready};
use tidegate_fabric::remote::{Remote, Settings};
use tidegate_fabric::service::{Command, CompletionSink, Fault, Job, Part, Service, Session};
use tidegate_fabric::stream::Way;
use tidegate_model::{NodeId, PartNumber, Span, Time};

use self::there::There;
use crate::barriers::{Barriers, Membership};
use crate::clock;
use crate::links::{Common, Identities};
use crate::owners::Table;
use crate::parts::{Recorded, VolumeParts};
use crate::reachability::Reporter;
use crate::unreported_costs::UnreportedCosts;
use crate::worker::{LINK, Message};

/// Where a node is.
#[derive(Clone)]
pub enum Node {
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

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("Here"),
            Self::There { name, way } => write!(f, "There({name} at {})", way.address),
        }
    }
}

impl Node {
    /// For people.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Here(_) => String::new(),
            Self::There { name, way } => format!("{name} at {}", way.address),
        }
    }
}

/// Why a part of a volume cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume}, part {index}: {reason}")]
pub struct PartError {
    /// The volume's name, or the pool's.
    pub volume: String,
    /// Which of its parts.
    pub index: u32,
    /// The node's message.
    pub reason: String,
}

/// Requests and replies of more bytes are *long*: they use a connection of their own to the node,
/// so that a short one does not wait behind them. A socket's buffer holds three of them. Chosen by
/// hand.
pub(crate) const LONG: usize = 64 << 10;

/// Where a job goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The place in the list of volumes, or of pools.
    pub(crate) volume: usize,
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
    nodes: Vec<Node>,
    patience: Span,
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
}

struct NodeSlot {
    line: NodeConnection,
    /// Jobs that go to the node with the next batch.
    batch: Vec<Job>,
    /// The same for long requests; none until the first one.
    bulk: Option<(NodeConnection, Vec<Job>)>,
}

impl NodeSlot {
    /// The links to the node, and the next batch of each; the link for bulk is last.
    fn lines(&mut self) -> impl Iterator<Item = (&mut NodeConnection, &mut Vec<Job>)> {
        let bulk = self.bulk.as_mut().map(|(line, batch)| (line, batch));
        [(&mut self.line, &mut self.batch)].into_iter().chain(bulk)
    }
}

/// The link to a node.
enum NodeConnection {
    Here(Box<dyn Session>),
    There(Box<There>),
}

#[derive(Clone, Copy)]
struct PartLocation {
    slot: usize,
    /// The part's number at the node.
    part: PartNumber,
}

impl Nodes {
    /// Opens all parts of all volumes, at their indexes in `nodes`. Parts of nodes behind sockets
    /// are opened when the link is up; jobs wait for that up to the time limit.
    pub(crate) fn open(
        nodes: &[Node],
        volumes: &[Vec<(NodeId, Part)>],
        (common, reporter): (&Common, &Reporter),
        reactor: &Reactor<Message>,
    ) -> Result<Self, PartError> {
        let Common { cost, patience, identities, barriers } = common.clone();
        let line = |(slot, node): (usize, &Node)| match node {
            Node::Here(service) => {
                let sink = NodeSink { message_queue: reactor.message_queue(), slot };
                let mut session = service.session(Arc::new(sink));
                session.attach(reactor.registrar(), token(slot, false));
                NodeConnection::Here(session)
            }
            Node::There { way, .. } => {
                let settings = Settings::new(way.clone(), identities.next());
                let settings = Settings { patience, ..settings };
                reporter.add_link(slot);
                let remote = Remote::new(settings, token(slot, false));
                NodeConnection::There(Box::new(There::new(
                    remote,
                    slot,
                    false,
                    reporter.clone(),
                    Vec::new(),
                )))
            }
        };
        let lines = (0..).zip(nodes).map(line);
        let slot = |line| NodeSlot { line, batch: Vec::new(), bulk: None };
        let mut slots: Vec<_> = lines.map(slot).collect();
        let mut known: Vec<_> = volumes.iter().map(|parts| VolumeParts::new(parts)).collect();
        let mut locations = Vec::new();
        for (volume, parts) in volumes.iter().enumerate() {
            let open = |part| open(&mut slots, volume, part, &mut known[volume]);
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
        })
    }

    /// Why the first volume is not served, if none is.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let faults: Option<Vec<_>> = self.known.iter().map(VolumeParts::fault).collect();
        faults?.first().copied()
    }

    /// A part of a node of this process has another incarnation.
    pub(crate) fn on_incarnation(&mut self, slot: usize, number: PartNumber, incarnation: u64) {
        for (known, locations) in self.known.iter_mut().zip(&self.locations) {
            let is_meant =
                |location: &PartLocation| location.slot == slot && location.part == number;
            if let Some(part) = locations.iter().position(is_meant) {
                known.on_incarnation(part as u32, incarnation);
            }
        }
    }

    /// Sends the names of the tenants. The list never shrinks.
    pub(crate) fn tenants(&mut self, table: &Table) {
        let names = table.names();
        self.costs.set_accounts(table.elsewhere());
        if names.len() == self.names.len() {
            return;
        }
        self.names = names.to_vec();
        for (line, _) in self.slots.iter_mut().flat_map(NodeSlot::lines) {
            line.tenants(names);
        }
    }

    /// The incarnations that a session relies on if it opens the volume now.
    pub(crate) fn record(&self, volume: usize) -> Recorded {
        self.known[volume].record()
    }

    /// The barriers before the parts.
    pub(crate) fn barriers(&self) -> &Barriers {
        self.membership.barriers()
    }

    /// All disconnected clients of this volume have been found.
    pub(crate) fn on_clients_checked(&self, volume: usize) {
        self.membership.on_clients_checked(volume);
    }

    /// Puts a job into the next batch for the node that has this part, for a session that relies on
    /// the incarnations that it has `recorded`; where a barrier stands, it waits.
    pub(crate) fn queue(&mut self, target: Target, mut job: Job, recorded: &Recorded) {
        job.incarnation = self.known[target.volume].incarnation(recorded, target.part);
        if self.barriers().stands(target.volume, target.part) {
            let until = clock::now().after(self.patience);
            return self.held.push(BlockedJob { until, target, job });
        }
        self.batch(target, job);
    }

    /// Puts a job into the next batch for its node.
    fn batch(&mut self, Target { volume, part, is_long }: Target, mut job: Job) {
        let known = &self.known[volume];
        if known.fault().is_some() || known.is_lost(part, job.incarnation) {
            job.outcome = Err(Fault::Io);
            return self.refused.push(job);
        }
        let location = self.locations[volume][part as usize];
        job.part = location.part;
        job.tag.delay = self.costs.sent(location.slot, &job);
        let slot = &mut self.slots[location.slot];
        // In this process nothing is written behind anything, but keys are passed on by the node.
        let may_be =
            job.command == Command::KeyValue || matches!(slot.line, NodeConnection::There(_));
        let is_data = matches!(job.command, Command::Read | Command::Write { .. });
        if may_be && (is_long || (is_data && job.length as usize > LONG)) {
            self.bulk(location.slot).push(job);
        } else {
            slot.batch.push(job);
        }
    }

    /// The next batch of long requests to this node.
    fn bulk(&mut self, number: usize) -> &mut Vec<Job> {
        let slot = &mut self.slots[number];
        let (_, batch) = slot.bulk.get_or_insert_with(|| {
            let mut line = match &self.nodes[number] {
                Node::Here(service) => {
                    let sink = NodeSink { message_queue: self.message_queue.clone(), slot: number };
                    let mut session = service.session(Arc::new(sink));
                    session.carry_bulk();
                    NodeConnection::Here(session)
                }
                Node::There { way, .. } => {
                    let settings = Settings::new(way.clone(), self.identities.next());
                    let settings = Settings { patience: self.patience, is_bulk: true, ..settings };
                    let remote = Remote::new(settings, token(number, true));
                    let NodeConnection::There(there) = &slot.line else {
                        unreachable!("a node elsewhere has a link")
                    };
                    // Numbered as by the other link, which opened them in this order.
                    let (parts, reporter) = (there.parts.clone(), there.reporter.clone());
                    NodeConnection::There(Box::new(There::new(
                        remote, number, true, reporter, parts,
                    )))
                }
            };
            line.tenants(&self.names);
            (line, Vec::new())
        });
        batch
    }

    /// Hands the batches over; jobs that finish at once are appended to `done`.
    pub(crate) fn submit(&mut self, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        self.pass_barriers();
        self.costs.begin();
        done.append(&mut self.refused);
        let lines = self.slots.iter_mut().flat_map(NodeSlot::lines);
        for (line, batch) in lines.filter(|(_, batch)| !batch.is_empty()) {
            match line {
                NodeConnection::Here(session) => {
                    let now = clock::now();
                    batch.iter_mut().for_each(|job| job.times.sent = Some(now));
                    session.submit(batch, done);
                }
                NodeConnection::There(there) => {
                    let now = clock::now();
                    there.remote.submit(now, batch, done);
                    there.remote.flush(reactor, now, done);
                    there.on_notices(&mut self.known, self.membership.barriers());
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
            match self.barriers().stands(held.target.volume, held.target.part) {
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
        for (line, _) in self.slots.iter_mut().flat_map(NodeSlot::lines) {
            match line {
                NodeConnection::Here(session) => session.cancel(tickets),
                NodeConnection::There(there) => {
                    there.remote.cancel(tickets, done);
                    there.remote.flush(reactor, clock::now(), done);
                    there.on_notices(&mut self.known, self.membership.barriers());
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
        let (slot, line) = ((ready.token - LINK) as usize / 2, (ready.token - LINK) as usize % 2);
        let line = self.slots.get_mut(slot).and_then(|slot| slot.lines().nth(line));
        if let Some((NodeConnection::Here(session), _)) = line {
            session.on_ready(ready, done);
        } else if let Some((NodeConnection::There(there), _)) = line {
            let now = clock::now();
            there.remote.on_ready(reactor, now, ready, done);
            there.on_notices(&mut self.known, self.membership.barriers());
            let parts = &there.parts;
            let is_refused = |job: &Job| {
                let (volume, part) = &parts[job.part.index()];
                let known = &self.known[*volume];
                known.fault().is_some() || known.is_lost(part.index, job.incarnation)
            };
            there.remote.release(reactor, now, is_refused, done);
            there.on_notices(&mut self.known, self.membership.barriers());
        }
    }

    /// The next time to act without a message from a node.
    pub(crate) fn next_deadline(&self) -> Time {
        let deadline = |line: &NodeConnection| match line {
            NodeConnection::There(there) => there.remote.next_deadline(),
            NodeConnection::Here(_) => Time::MAX,
        };
        let bulk =
            |slot: &NodeSlot| slot.bulk.as_ref().map_or(Time::MAX, |(line, _)| deadline(line));
        let slot = |slot: &NodeSlot| deadline(&slot.line).min(bulk(slot));
        let held = self.held.iter().map(|held| held.until).min().unwrap_or(Time::MAX);
        self.slots.iter().map(slot).min().unwrap_or(Time::MAX).min(self.costs.ends()).min(held)
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
        for (line, _) in self.slots.iter_mut().flat_map(NodeSlot::lines) {
            if let NodeConnection::There(there) = line
                && there.remote.next_deadline() <= now
            {
                there.remote.on_deadline(reactor, now, done);
                there.on_notices(&mut self.known, self.membership.barriers());
            }
        }
    }
}

impl Nodes {
    /// Reports to the nodes the costs at other nodes that no request has reported.
    fn report_elsewhere(&mut self, now: Time, reactor: &Reactor<Message>, done: &mut Vec<Job>) {
        for (node, slot) in self.slots.iter_mut().enumerate() {
            let costs = self.costs.of(node);
            match &mut slot.line {
                _ if costs.is_empty() => {}
                NodeConnection::Here(session) => session.elsewhere(costs),
                NodeConnection::There(there) => {
                    there.remote.elsewhere(costs);
                    there.remote.flush(reactor, now, done);
                    there.on_notices(&mut self.known, self.membership.barriers());
                }
            }
        }
        self.costs.end();
    }
}

impl NodeConnection {
    fn tenants(&mut self, names: &[String]) {
        match self {
            Self::Here(session) => session.tenants(names),
            Self::There(there) => there.remote.tenants(names),
        }
    }
}

/// The token of a link.
fn token(slot: usize, is_bulk: bool) -> u64 {
    LINK + 2 * slot as u64 + u64::from(is_bulk)
}

/// The number of a part that a node of this process refuses: no job goes there.
const REFUSED: u32 = u32::MAX;

fn open(
    slots: &mut [NodeSlot],
    volume: usize,
    (node, part): &(NodeId, Part),
    known: &mut VolumeParts,
) -> Result<PartLocation, PartError> {
    let slot = usize::from(node.0);
    let refuse = |reason| PartError { volume: part.volume.clone(), index: part.index, reason };
    let number = match slots.get_mut(slot).map(|slot| &mut slot.line) {
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
            there.reporter.uses(slot);
            there.remote.open(part.clone())
        }
        None => return Err(refuse(format!("there is no node {node}"))),
    };
    Ok(PartLocation { slot, part: number })
}

/// The sink of jobs that nodes finish later.
struct NodeSink {
    message_queue: Arc<MessageQueue<Message>>,
    slot: usize,
}

impl CompletionSink for NodeSink {
    fn finished(&self, jobs: &mut Vec<Job>) {
        self.message_queue.extend(jobs.drain(..).map(Message::Finished));
    }

    fn incarnation(&self, part: PartNumber, incarnation: u64) {
        self.message_queue.push(Message::Incarnation { node: self.slot, part, incarnation });
    }
}
