//! One worker's conversations with the nodes, and which part of which volume lies at which.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tidegate_fabric::reactor::{Mailbox, Reactor, Ready};
use tidegate_fabric::remote::{Notice, Remote, Settings};
use tidegate_fabric::service::{Command, Fault, Job, Outlet, Part, Service, Session};
use tidegate_fabric::tls::Way;
use tidegate_model::{NodeId, Span, Time};

use crate::barriers::{Barriers, Cause, Membership};
use crate::clock;
use crate::dues::Dues;
use crate::links::{Common, Identities};
use crate::owners::Table;
use crate::parts::{Recorded, VolumeParts};
use crate::reachability::Reporter;
use crate::worker::{LINK, Letter};

/// Where a node is.
#[derive(Clone)]
pub enum Node {
    /// In this process.
    Here(Arc<dyn Service>),
    /// Behind a socket.
    There {
        /// Its name, for people.
        name: String,
        /// The way to it.
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
    pub(crate) fn told(&self) -> String {
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
    /// It is taken to be long, whatever it says.
    pub(crate) is_long: bool,
}

/// A job that waits at a barrier, and until when if a link is down.
struct Held {
    until: Time,
    target: Target,
    job: Job,
}

/// The nodes that a worker talks to.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    patience: Span,
    identities: Arc<Identities>,
    membership: Membership,
    /// Jobs that wait at barriers, in the order in which they came.
    held: Vec<Held>,
    mailbox: Arc<Mailbox<Letter>>,
    seats: Vec<Seat>,
    /// By volume and part.
    places: Vec<Vec<Place>>,
    /// By volume.
    known: Vec<VolumeParts>,
    /// Jobs for volumes that are refused.
    refused: Vec<Job>,
    /// The names of the tenants that the nodes have heard.
    names: Vec<String>,
    dues: Dues,
}

struct Seat {
    line: Line,
    /// Jobs that go to the node with the next batch.
    batch: Vec<Job>,
    /// The same for long requests; none until the first one.
    bulk: Option<(Line, Vec<Job>)>,
}

impl Seat {
    /// The ways to the node, and what goes there with the next batch; the one for bulk is last.
    fn lines(&mut self) -> impl Iterator<Item = (&mut Line, &mut Vec<Job>)> {
        let bulk = self.bulk.as_mut().map(|(line, batch)| (line, batch));
        [(&mut self.line, &mut self.batch)].into_iter().chain(bulk)
    }
}

/// The way to a node.
enum Line {
    Here(Box<dyn Session>),
    There(Box<There>),
}

struct There {
    remote: Remote,
    /// The node's place among the nodes.
    seat: usize,
    /// It carries long requests. Whether the node is reachable is reported by the other link; the
    /// state of parts by both, because each may be the first to reach a new process of the node.
    is_bulk: bool,
    reporter: Reporter,
    /// By number there: the place in the list of volumes, and the part.
    parts: Vec<(usize, Part)>,
    /// Volumes and parts that jobs which failed with the link may still change.
    unsettled: Vec<(usize, u32)>,
    /// Parts that are open over this link, by number there.
    open: HashSet<u32>,
}

#[derive(Clone, Copy)]
struct Place {
    seat: usize,
    /// The part's number at the node.
    part: u32,
}

impl Nodes {
    /// Opens all parts of all volumes, which say at which place in `nodes` they lie. Nodes behind a
    /// socket are asked for their parts as soon as they are there; jobs wait for them as long as
    /// the patience says.
    pub(crate) fn open(
        nodes: &[Node],
        volumes: &[Vec<(NodeId, Part)>],
        (common, reporter): (&Common, &Reporter),
        reactor: &Reactor<Letter>,
    ) -> Result<Self, PartError> {
        let Common { cost, patience, identities, barriers } = common.clone();
        let line = |(seat, node): (usize, &Node)| match node {
            Node::Here(service) => {
                Line::Here(service.session(Arc::new(Desk { mailbox: reactor.mailbox(), seat })))
            }
            Node::There { way, .. } => {
                let settings = Settings::new(way.clone(), identities.next());
                let settings = Settings { patience, ..settings };
                reporter.add_link(seat);
                Line::There(Box::new(There {
                    remote: Remote::new(settings, token(seat, false)),
                    seat,
                    is_bulk: false,
                    reporter: reporter.clone(),
                    parts: Vec::new(),
                    unsettled: Vec::new(),
                    open: HashSet::new(),
                }))
            }
        };
        let lines = (0..).zip(nodes).map(line);
        let seat = |line| Seat { line, batch: Vec::new(), bulk: None };
        let mut seats: Vec<_> = lines.map(seat).collect();
        let mut known: Vec<_> = volumes.iter().map(|parts| VolumeParts::new(parts)).collect();
        let mut places = Vec::new();
        for (volume, parts) in volumes.iter().enumerate() {
            let open = |part| open(&mut seats, volume, part, &mut known[volume]);
            places.push(parts.iter().map(open).collect::<Result<_, _>>()?);
        }
        let dues = Dues::new(nodes.len(), cost);
        for (parts, known) in volumes.iter().zip(&known) {
            let name = parts.first().map_or("", |(_, part)| &part.volume);
            reporter.on_volume(name, known.fault(), known.mismatch());
        }
        let mailbox = reactor.mailbox();
        Ok(Self {
            nodes: nodes.to_vec(),
            patience,
            identities,
            membership: barriers.join(mailbox.clone()),
            held: Vec::new(),
            mailbox,
            seats,
            places,
            known,
            refused: Vec::new(),
            names: Vec::new(),
            dues,
        })
    }

    /// Why the first volume is not served, if none is.
    pub(crate) fn refusal(&self) -> Option<&str> {
        let faults: Option<Vec<_>> = self.known.iter().map(VolumeParts::fault).collect();
        faults?.first().copied()
    }

    /// A part of a node of this process has another incarnation.
    pub(crate) fn on_incarnation(&mut self, seat: usize, number: u32, incarnation: u64) {
        for (known, places) in self.known.iter_mut().zip(&self.places) {
            let is_meant = |place: &Place| place.seat == seat && place.part == number;
            if let Some(part) = places.iter().position(is_meant) {
                known.on_incarnation(part as u32, incarnation);
            }
        }
    }

    /// Says who the tenants are. There are never fewer than before.
    pub(crate) fn tenants(&mut self, table: &Table) {
        let names = table.names();
        self.dues.set_accounts(table.elsewhere());
        if names.len() == self.names.len() {
            return;
        }
        self.names = names.to_vec();
        for (line, _) in self.seats.iter_mut().flat_map(Seat::lines) {
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

    /// All clients of this volume that have gone are known.
    pub(crate) fn on_looked(&self, volume: usize) {
        self.membership.on_looked(volume);
    }

    /// Puts a job into the next batch for the node that has this part, for a session that relies on
    /// the incarnations that it has `recorded`; where a barrier stands, it waits.
    pub(crate) fn queue(&mut self, target: Target, mut job: Job, recorded: &Recorded) {
        job.incarnation = self.known[target.volume].incarnation(recorded, target.part);
        if self.barriers().stands(target.volume, target.part) {
            let until = clock::now().after(self.patience);
            return self.held.push(Held { until, target, job });
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
        let place = self.places[volume][part as usize];
        job.part = place.part;
        job.tag.delay = self.dues.sent(place.seat, &job);
        let seat = &mut self.seats[place.seat];
        // In this process nothing is written behind anything, but keys are passed on by the node.
        let may_be = job.command == Command::KeyValue || matches!(seat.line, Line::There(_));
        let is_data = matches!(job.command, Command::Read | Command::Write { .. });
        if may_be && (is_long || (is_data && job.length as usize > LONG)) {
            self.bulk(place.seat).push(job);
        } else {
            seat.batch.push(job);
        }
    }

    /// The next batch of long requests to this node.
    fn bulk(&mut self, number: usize) -> &mut Vec<Job> {
        let seat = &mut self.seats[number];
        let (_, batch) = seat.bulk.get_or_insert_with(|| {
            let mut line = match &self.nodes[number] {
                Node::Here(service) => {
                    let desk = Desk { mailbox: self.mailbox.clone(), seat: number };
                    let mut session = service.session(Arc::new(desk));
                    session.carry_bulk();
                    Line::Here(session)
                }
                Node::There { way, .. } => {
                    let settings = Settings::new(way.clone(), self.identities.next());
                    let settings = Settings { patience: self.patience, is_bulk: true, ..settings };
                    let mut remote = Remote::new(settings, token(number, true));
                    let Line::There(there) = &seat.line else {
                        unreachable!("a node elsewhere has a link")
                    };
                    let (parts, reporter) = (there.parts.clone(), there.reporter.clone());
                    // Numbered as by the other link, which opened them in this order.
                    for (_, part) in &parts {
                        remote.open(part.clone());
                    }
                    let (seat, unsettled) = (number, Vec::new());
                    let is_bulk = true;
                    Line::There(Box::new(There {
                        remote,
                        seat,
                        is_bulk,
                        reporter,
                        parts,
                        unsettled,
                        open: HashSet::new(),
                    }))
                }
            };
            line.tenants(&self.names);
            (line, Vec::new())
        });
        batch
    }

    /// Hands the batches over; what is finished at once is appended to `done`.
    pub(crate) fn submit(&mut self, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        self.pass_barriers();
        self.dues.begin();
        done.append(&mut self.refused);
        let lines = self.seats.iter_mut().flat_map(Seat::lines);
        for (line, batch) in lines.filter(|(_, batch)| !batch.is_empty()) {
            match line {
                Line::Here(session) => session.submit(batch, done),
                Line::There(there) => {
                    let now = clock::now();
                    there.remote.submit(now, batch, done);
                    there.remote.flush(reactor, now, done);
                    there.tell(&mut self.known, self.membership.barriers());
                }
            }
        }
    }

    /// Puts jobs into the next batches that no barrier keeps waiting any more.
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
        let is_over = |held: &mut Held| {
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

    /// Gives up jobs of a client that has gone and that wait at barriers.
    pub(crate) fn cancel_held(&mut self, tickets: &[u64], done: &mut Vec<Job>) {
        if self.held.is_empty() {
            return;
        }
        let tickets: HashSet<u64> = tickets.iter().copied().collect();
        let cancelled = self.held.extract_if(.., |held| tickets.contains(&held.job.ticket));
        done.extend(cancelled.map(|held| Job { outcome: Err(Fault::Ending), ..held.job }));
    }

    /// Gives up on these jobs, as far as they still wait. All come back nevertheless; what does at
    /// once is appended to `done`.
    pub(crate) fn cancel(
        &mut self,
        tickets: &[u64],
        reactor: &Reactor<Letter>,
        done: &mut Vec<Job>,
    ) {
        // A job that is still in its batch has to be there before it can be cancelled.
        self.submit(reactor, done);
        for (line, _) in self.seats.iter_mut().flat_map(Seat::lines) {
            match line {
                Line::Here(session) => session.cancel(tickets),
                Line::There(there) => {
                    there.remote.cancel(tickets, done);
                    there.remote.flush(reactor, clock::now(), done);
                    there.tell(&mut self.known, self.membership.barriers());
                }
            }
        }
    }

    /// Something can be done on the link with this token.
    pub(crate) fn on_ready(
        &mut self,
        ready: Ready,
        reactor: &Reactor<Letter>,
        done: &mut Vec<Job>,
    ) {
        let (seat, line) = ((ready.token - LINK) as usize / 2, (ready.token - LINK) as usize % 2);
        let line = self.seats.get_mut(seat).and_then(|seat| seat.lines().nth(line));
        if let Some((Line::There(there), _)) = line {
            let now = clock::now();
            there.remote.on_ready(reactor, now, ready, done);
            there.tell(&mut self.known, self.membership.barriers());
            let parts = &there.parts;
            let is_refused = |job: &Job| {
                let (volume, part) = &parts[job.part as usize];
                let known = &self.known[*volume];
                known.fault().is_some() || known.is_lost(part.index, job.incarnation)
            };
            there.remote.release(reactor, now, is_refused, done);
            there.tell(&mut self.known, self.membership.barriers());
        }
    }

    /// When there is something to do without a node having said anything.
    pub(crate) fn next_deadline(&self) -> Time {
        let deadline = |line: &Line| match line {
            Line::There(there) => there.remote.next_deadline(),
            Line::Here(_) => Time::MAX,
        };
        let bulk = |seat: &Seat| seat.bulk.as_ref().map_or(Time::MAX, |(line, _)| deadline(line));
        let seat = |seat: &Seat| deadline(&seat.line).min(bulk(seat));
        let held = self.held.iter().map(|held| held.until).min().unwrap_or(Time::MAX);
        self.seats.iter().map(seat).min().unwrap_or(Time::MAX).min(self.dues.ends()).min(held)
    }

    /// Does what is to be done at a time that has come.
    pub(crate) fn on_deadline(
        &mut self,
        now: Time,
        reactor: &Reactor<Letter>,
        done: &mut Vec<Job>,
    ) {
        if self.dues.ends() <= now {
            self.tell_elsewhere(now, reactor, done);
        }
        self.fail_held(now, done);
        for (line, _) in self.seats.iter_mut().flat_map(Seat::lines) {
            if let Line::There(there) = line
                && there.remote.next_deadline() <= now
            {
                there.remote.on_deadline(reactor, now, done);
                there.tell(&mut self.known, self.membership.barriers());
            }
        }
    }
}

impl Nodes {
    /// Tells the nodes what tenants were sent elsewhere and no request has told them.
    fn tell_elsewhere(&mut self, now: Time, reactor: &Reactor<Letter>, done: &mut Vec<Job>) {
        for (node, seat) in self.seats.iter_mut().enumerate() {
            let costs = self.dues.of(node);
            match &mut seat.line {
                _ if costs.is_empty() => {}
                Line::Here(session) => session.elsewhere(costs),
                Line::There(there) => {
                    there.remote.elsewhere(costs);
                    there.remote.flush(reactor, now, done);
                    there.tell(&mut self.known, self.membership.barriers());
                }
            }
        }
        self.dues.end();
    }
}

impl Line {
    fn tenants(&mut self, names: &[String]) {
        match self {
            Self::Here(session) => session.tenants(names),
            Self::There(there) => there.remote.tenants(names),
        }
    }
}

/// The token of a link.
fn token(seat: usize, is_bulk: bool) -> u64 {
    LINK + 2 * seat as u64 + u64::from(is_bulk)
}

impl There {
    /// Notes and says what became known.
    fn tell(&mut self, known: &mut [VolumeParts], barriers: &Barriers) {
        while let Some(notice) = self.remote.poll_notice() {
            if matches!(notice, Notice::Up { .. }) {
                for (volume, part) in self.unsettled.drain(..) {
                    barriers.lower(volume, part, Cause::Link);
                }
            }
            if matches!(notice, Notice::Down { .. }) {
                for part in self.open.drain() {
                    let (volume, part) = &self.parts[part as usize];
                    known[*volume].on_link_lost(part.index);
                }
            }
            match notice {
                Notice::Unsettled { part } => {
                    let (volume, part) = &self.parts[part as usize];
                    barriers.raise(*volume, part.index, Cause::Link);
                    self.unsettled.push((*volume, part.index));
                }
                Notice::Up { .. } | Notice::Down { .. } if self.is_bulk => {}
                Notice::Up { .. } => self.reporter.on_up(self.seat),
                Notice::Down { reason } => self.reporter.on_away(self.seat, reason),
                Notice::PartRefused { part, reason } => {
                    self.note(known, part, |known, index| known.on_refused(index, reason));
                }
                Notice::PartReady { part, state } => {
                    let is_new = self.open.insert(part);
                    self.note(known, part, |known, index| {
                        known.on_open(index, state);
                        if is_new {
                            known.on_link(index);
                        }
                    });
                }
                Notice::Incarnation { part, incarnation } => {
                    self.note(known, part, |known, index| known.on_incarnation(index, incarnation));
                }
            }
        }
    }

    /// Notes something about a part, and says so if its volume is served no longer, or again.
    fn note(&self, known: &mut [VolumeParts], part: u32, note: impl FnOnce(&mut VolumeParts, u32)) {
        let (volume, part) = &self.parts[part as usize];
        let known = &mut known[*volume];
        let before = [known.fault(), known.mismatch()].map(|it| it.map(String::from));
        note(known, part.index);
        let now = [known.fault(), known.mismatch()];
        if before.each_ref().map(Option::as_deref) != now {
            self.reporter.on_volume(&part.volume, now[0], now[1]);
        }
    }
}

/// The number of a part that a node of this process refuses: no job goes there.
const REFUSED: u32 = u32::MAX;

fn open(
    seats: &mut [Seat],
    volume: usize,
    (node, part): &(NodeId, Part),
    known: &mut VolumeParts,
) -> Result<Place, PartError> {
    let seat = usize::from(node.0);
    let refuse = |reason| PartError { volume: part.volume.clone(), index: part.index, reason };
    let number = match seats.get_mut(seat).map(|seat| &mut seat.line) {
        Some(Line::Here(session)) => match session.open(part) {
            Ok(opened) => {
                known.on_open(part.index, opened.state);
                known.on_link(part.index);
                opened.number
            }
            Err(reason) => {
                known.on_refused(part.index, reason);
                REFUSED
            }
        },
        Some(Line::There(there)) => {
            there.parts.push((volume, part.clone()));
            there.reporter.uses(seat);
            there.remote.open(part.clone())
        }
        None => return Err(refuse(format!("there is no node {node}"))),
    };
    Ok(Place { seat, part: number })
}

/// Where nodes put what they finish later.
struct Desk {
    mailbox: Arc<Mailbox<Letter>>,
    seat: usize,
}

impl Outlet for Desk {
    fn finished(&self, jobs: &mut Vec<Job>) {
        self.mailbox.extend(jobs.drain(..).map(Letter::Finished));
    }

    fn incarnation(&self, part: u32, incarnation: u64) {
        self.mailbox.push(Letter::Incarnation { node: self.seat, part, incarnation });
    }
}
