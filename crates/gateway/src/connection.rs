//! One client's connection: from what can be read on it to requests, and from answers to what is
//! written on it.
//!
//! A connection that has as much under way as it may is not read from; its client's socket fills
//! up, and the client waits. Bytes that were read before are held until there is room. A request is
//! under way from when its head has arrived until the kernel has taken the reply
//! ([`tidegate_algo::memory_budget`]). So a client that does not read its replies reaches its
//! share, and is not read from either.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use tidegate_algo::access;
use tidegate_algo::memory_budget::MemoryBudget;
use tidegate_algo::owner::Asked;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_model::{Bytes, Time};

use crate::access::{Identity, Restrictions};
use crate::barriers::Cause;
use crate::config::Lock;
use crate::flights::{Flight, Flights, Landed, operation};
use crate::nbd::wire::{self, Errno, command, flag};
use crate::nbd::{
    Action, Encryption, Entered, Handshake, HandshakeError, Receiver, Refusal, Request,
    RequestError, Step, reply,
};
use crate::nodes::{Nodes, Target};
use crate::owners::{Owner, Table};
use crate::parts::Recorded;
use crate::volumes::{Visible, Volumes};
use crate::worker::{self, Charge, Hall};

/// The charge of a reply besides its data, in bytes; an error message fits in. A client that asks
/// for replies without data, and does not read, thus reaches its share, too.
const ANSWER: usize = 128;

/// State that the connections of one worker share.
pub(crate) struct Shop {
    pub(crate) volumes: Volumes,
    pub(crate) nodes: Nodes,
    pub(crate) flights: Flights,
    pub(crate) hall: Arc<Hall>,
    pub(crate) budget: MemoryBudget,
    pub(crate) lock: Option<Lock>,
    /// The owners of requests.
    pub(crate) table: Arc<Table>,
    /// The names of the cluster's parties: their certificates are no client's.
    pub(crate) parties: Arc<[String]>,
    /// New requests are refused.
    pub(crate) is_ending: bool,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Goodbye {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the connection is gone: {0}")]
    Io(#[from] io::Error),
}

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its number at the worker.
    token: u64,
    stream: Stream,
    identity: Identity,
    out: Outgoing,
    phase: Phase,
    /// Received bytes that have to wait.
    held: Vec<u8>,
    /// Requests that are out at nodes, and the bytes that they carry.
    requests: usize,
    bytes: usize,
    /// The bytes that the budget is charged with for it, and the bytes that it has sent and
    /// received.
    charged: usize,
    moved: u64,
    /// The client has said that it leaves: it is answered, and then that is all.
    is_leaving: bool,
    /// Once it is answered, it goes on encrypted.
    is_encrypting: bool,
    /// Why it may not open the first export that it was refused, and whether that was told.
    denial: RefCell<Option<String>>,
    is_denial_told: bool,
}

#[derive(Debug)]
enum Phase {
    Shaking(Handshake),
    Serving(Box<Client>),
}

#[derive(Debug)]
struct Client {
    entered: Entered,
    owner: Owner,
    restrictions: Restrictions,
    receiver: Receiver,
    /// The incarnations of parts that its flushes rely on.
    recorded: Recorded,
}

impl Connection {
    /// A client that has just come, and is greeted.
    fn new(token: u64, stream: Stream, lock: Option<&Lock>) -> Self {
        let encryption = match lock {
            None => Encryption::Absent,
            Some(Lock { is_required: false, .. }) => Encryption::Offered,
            Some(Lock { is_required: true, .. }) => Encryption::Required,
        };
        let mut said = Vec::new();
        let phase = Phase::Shaking(Handshake::begin(encryption, &mut said));
        let mut out = Outgoing::new();
        out.push(&said);
        Self {
            token,
            identity: Identity::of(&stream),
            stream,
            out,
            phase,
            held: Vec::new(),
            requests: 0,
            bytes: 0,
            charged: 0,
            moved: 0,
            is_leaving: false,
            is_encrypting: false,
            denial: RefCell::new(None),
            is_denial_told: false,
        }
    }

    /// Whether as much is under way as may be. Where others have left since, an answer to what is
    /// under way has it looked at again.
    fn is_full(&self, hall: &Hall) -> bool {
        hall.limits.is_reached(hall.present(), self.requests)
    }

    /// Whether a request has arrived that was not admitted.
    fn is_pending(&self) -> bool {
        matches!(&self.phase, Phase::Serving(client) if client.receiver.is_pending())
    }

    /// The bytes of its requests, from when they were admitted until the kernel has the replies.
    fn load(&self) -> usize {
        let arriving = match &self.phase {
            Phase::Shaking(_) => 0,
            Phase::Serving(client) => client.receiver.reserved(),
        };
        self.bytes + self.out.len() + arriving
    }

    /// Has the budget know what it takes up now.
    fn settle(&mut self, budget: &mut MemoryBudget) {
        let now = self.load() + self.held.len();
        budget.charge(self.token, self.charged, now);
        self.charged = now;
    }

    /// Takes what had to wait, if there is room now. Says whether something of it was taken.
    fn go_on(&mut self, shop: &mut Shop) -> Result<bool, Goodbye> {
        if (self.held.is_empty() && !self.is_pending()) || self.is_full(&shop.hall) {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        let was_pending = self.is_pending();
        self.take(&held, shop)?;
        Ok(self.held.len() < held.len() || (was_pending && !self.is_pending()))
    }

    fn take(&mut self, mut bytes: &[u8], shop: &mut Shop) -> Result<(), Goodbye> {
        while !self.is_leaving {
            let is_full = self.is_full(&shop.hall);
            match &mut self.phase {
                Phase::Shaking(handshake) => {
                    let mut said = Vec::new();
                    let visible = Visible {
                        volumes: &shop.volumes,
                        knowledge: shop.table.knowledge(&shop.parties),
                        client: self.identity.client(&self.stream, &shop.table),
                        denial: &self.denial,
                    };
                    let step = handshake.on_bytes(&mut bytes, &visible, &mut said);
                    self.out.push(&said);
                    match step? {
                        Step::More => return Ok(()),
                        Step::Left => self.is_leaving = true,
                        // The answer is sent before anything else is.
                        Step::Encrypt => self.is_encrypting = true,
                        Step::Entered(entered) => {
                            let client = self.identity.client(&self.stream, &shop.table);
                            let (owner, restrictions) = shop.owner(&entered, client);
                            let receiver = Receiver::default();
                            let recorded = shop.nodes.record(entered.export.volume);
                            shop.nodes.barriers().open(entered.export.volume);
                            let entered = *entered;
                            let client =
                                Client { entered, owner, restrictions, receiver, recorded };
                            self.phase = Phase::Serving(Box::new(client));
                        }
                    }
                }
                Phase::Serving(_) if is_full => {
                    self.held.extend_from_slice(bytes);
                    return Ok(());
                }
                Phase::Serving(_) => {
                    let load = self.load();
                    let Phase::Serving(client) = &mut self.phase else { return Ok(()) };
                    let admits = |size| shop.budget.admits(self.token, load, size + ANSWER);
                    match client.receiver.next_admitted(&mut bytes, admits)? {
                        None => {
                            // The bytes behind a request that waits; none are left if no request
                            // waits.
                            self.held.extend_from_slice(bytes);
                            return Ok(());
                        }
                        Some(request) => self.on_request(request, shop),
                    }
                    self.settle(&mut shop.budget);
                }
            }
        }
        Ok(())
    }

    fn on_request(&mut self, request: Request, shop: &mut Shop) {
        let Phase::Serving(client) = &self.phase else { return };
        let Request { cookie, offset, length, flags, .. } = request;
        let structured = client.entered.structured;
        let action = match client.entered.admit(&request) {
            Ok(action) => action,
            Err(refusal) => {
                shop.hall.counts.refuse();
                return reply::fail(&mut self.out, structured, cookie, refusal);
            }
        };
        let command = match action {
            Action::Leave => {
                self.is_leaving = true;
                return;
            }
            Action::Acknowledge if request.command == command::READ => {
                let nothing = std::iter::empty();
                return reply::data(&mut self.out, structured, cookie, (offset, 0), nothing);
            }
            Action::Acknowledge => return reply::done(&mut self.out, cookie),
            Action::Submit(_) if shop.is_ending => {
                shop.hall.counts.refuse();
                let refusal = Refusal { errno: Errno::Shutdown, message: "the gateway is ending" };
                return reply::fail(&mut self.out, structured, cookie, refusal);
            }
            Action::Submit(command) => command,
        };
        let size = Bytes(u64::from(length));
        let tenant = client.owner.of(Asked { operation: operation(command), size, key: None });
        if client.restrictions.deny(tenant) {
            shop.hall.counts.refuse();
            let message = "the policy does not let this client act for the request's tenant";
            let refusal = Refusal { errno: Errno::Perm, message };
            return reply::fail(&mut self.out, structured, cookie, refusal);
        }
        let flight = Flight {
            connection: self.token,
            cookie,
            command,
            tenant,
            volume: client.entered.export.volume,
            offset,
            length,
            one: flags & flag::REQ_ONE != 0,
            buffer: request.payload,
        };
        self.requests += 1;
        self.bytes += weight(&flight);
        let recorded = &client.recorded;
        let Shop { volumes, nodes, flights, .. } = shop;
        let layout = volumes.layout(flight.volume);
        let launched = flights.launch(flight, layout, |volume, part, job| {
            nodes.queue(Target { volume, part, is_long: false }, job, recorded);
        });
        if let Err((flight, fault)) = launched {
            shop.hall.counts.refuse();
            self.reply(Landed::new(flight, Err(fault)));
        }
    }

    /// Queues the answer to a request.
    fn reply(&mut self, landed: Landed) {
        let Phase::Serving(client) = &self.phase else { return };
        self.requests -= 1;
        self.bytes -= weight(&landed.flight);
        let structured = client.entered.structured;
        let Flight { cookie, command, offset, length, .. } = landed.flight;
        match (landed.outcome, command) {
            (Err(fault), _) => {
                let refusal = Refusal { errno: Errno::of(fault), message: wire::message(fault) };
                reply::fail(&mut self.out, structured, cookie, refusal);
            }
            (Ok(()), Command::Read) => {
                let range = (offset, length as usize);
                reply::data(&mut self.out, structured, cookie, range, landed.data());
            }
            (Ok(()), Command::Map) => reply::extents(&mut self.out, cookie, &landed.extents),
            (Ok(()), _) => reply::done(&mut self.out, cookie),
        }
    }
}

impl worker::Client for Connection {
    type Shop = Shop;
    type Goodbye = Goodbye;

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn is_shaking(&self) -> bool {
        matches!(self.phase, Phase::Shaking(_))
    }

    fn tenant<'a>(&'a self, _: &'a Shop) -> &'a str {
        match &self.phase {
            Phase::Shaking(_) => "",
            Phase::Serving(client) => &client.entered.export.tenant,
        }
    }

    fn volume(&self) -> Option<usize> {
        match &self.phase {
            Phase::Shaking(_) => None,
            Phase::Serving(client) => Some(client.entered.export.volume),
        }
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    fn has_requests(&self) -> bool {
        self.requests > 0
    }

    /// Requests from before the client's announcement that it leaves are carried out, also if it
    /// does not wait for the answers.
    fn is_waiting(&self) -> bool {
        self.has_requests() && !self.is_leaving
    }

    fn on_table(&mut self, shop: &Shop) {
        let identity = self.identity.client(&self.stream, &shop.table);
        if let Phase::Serving(client) = &mut self.phase {
            (client.owner, client.restrictions) = shop.owner(&client.entered, identity);
        }
    }

    fn receive(&mut self, scratch: &mut [u8], shop: &mut Shop) -> Result<bool, Goodbye> {
        let vacancy = match &mut self.phase {
            Phase::Shaking(_) => &mut [],
            Phase::Serving(client) => client.receiver.vacancy(),
        };
        let direct = vacancy.len();
        let count = {
            // The rest of a large write goes to its place, and whatever is behind it to scratch.
            let mut slices = [IoSliceMut::new(vacancy), IoSliceMut::new(scratch)];
            let slices = if direct == 0 { &mut slices[1..] } else { &mut slices[..] };
            match self.stream.receive(slices) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Goodbye::Io(error)),
            }
        };
        self.moved += count as u64;
        if let Phase::Serving(client) = &mut self.phase {
            client.receiver.on_filled(count.min(direct));
        }
        self.take(&scratch[..count.saturating_sub(direct)], shop)?;
        self.settle(&mut shop.budget);
        Ok(true)
    }

    fn take_denial(&mut self) -> Option<String> {
        let denial = self.denial.get_mut().take().filter(|_| !self.is_denial_told)?;
        self.is_denial_told = true;
        Some(denial)
    }

    fn is_encrypting(&self) -> bool {
        self.is_encrypting && self.out.is_empty()
    }

    fn encrypt(&mut self, shop: &Shop) -> Result<(), Goodbye> {
        self.is_encrypting = false;
        let lock = shop.lock.as_ref();
        Ok(lock.map_or(Ok(()), |lock| lock.guard.encrypt(&mut self.stream))?)
    }

    fn answer(&mut self, landed: Landed, _: &mut Shop) {
        self.reply(landed);
    }

    fn look_after(&mut self, shop: &mut Shop) -> Result<bool, Goodbye> {
        let before = self.out.len();
        self.out.flush(&self.stream)?;
        self.moved += (before - self.out.len()) as u64;
        self.settle(&mut shop.budget);
        let is_more = self.go_on(shop);
        self.settle(&mut shop.budget);
        is_more
    }

    fn unsent(&self) -> usize {
        self.out.len()
    }

    fn is_waiting_for_memory(&self) -> bool {
        self.is_pending()
    }

    fn charge(&self) -> Charge {
        Charge { all: self.charged, at_nodes: self.bytes.min(self.charged), moved: self.moved }
    }

    fn wanted(&self, shop: &Shop) -> Interest {
        let is_able = !self.is_leaving && !self.is_encrypting;
        let read =
            is_able && self.held.is_empty() && !self.is_pending() && !self.is_full(&shop.hall);
        Interest { read, write: !self.out.is_empty() }
    }

    /// A client that has said that it leaves need not wait for the answer, and one that has chosen
    /// no export yet owes nothing.
    fn has_left(&self, goodbye: &Goodbye) -> bool {
        let may_leave = self.is_leaving || self.is_shaking();
        may_leave && matches!(goodbye, Goodbye::Io(error) if worker::is_departure(error))
    }

    fn is_over(&self, is_ending: bool) -> bool {
        let is_idle =
            self.requests == 0 && self.out.is_empty() && self.held.is_empty() && !self.is_pending();
        (self.is_leaving || is_ending) && is_idle
    }
}

impl Shop {
    /// The owner of requests through an export, and the restrictions of its client.
    fn owner(&self, entered: &Entered, client: access::Client<'_>) -> (Owner, Restrictions) {
        let export = &entered.export;
        let volume = self.volumes.volume(export.volume);
        let owner = self.table.owner(&volume.name, &export.tenant);
        let opened = (volume, &*export.tenant);
        let restrictions =
            Restrictions::of_export(&self.table, &self.parties, client, opened, &owner);
        (owner, restrictions)
    }
}

impl worker::Shop for Shop {
    type Client = Connection;
    type Answer = Landed;

    fn welcome(&mut self, token: u64, stream: Stream) -> Connection {
        Connection::new(token, stream, self.lock.as_ref())
    }

    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn budget(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    fn charge_of(landed: &Landed) -> usize {
        weight(&landed.flight)
    }

    fn nodes_deadline(&self) -> Time {
        self.nodes.next_deadline()
    }

    fn on_table(&mut self, table: &Arc<Table>) {
        self.table = table.clone();
    }

    fn land(&mut self, job: Job) -> Option<(u64, Landed)> {
        if let Some((volume, part)) = self.flights.settle(job.ticket) {
            self.nodes.barriers().lower(volume, part, Cause::Client);
        }
        let landed = self.flights.land(|volume| *self.volumes.layout(volume), job)?;
        Some((landed.flight.connection, landed))
    }

    fn weigh(landed: &Landed) -> (usize, Result<u64, Fault>) {
        let Landed { flight, outcome, .. } = landed;
        (flight.volume, outcome.map(|()| weight(flight) as u64))
    }

    fn forsake(&mut self, token: u64) {
        let Self { flights, nodes, volumes, .. } = self;
        let is_own = |flight: &Flight| flight.connection == token;
        let layout = |volume| *volumes.layout(volume);
        for (volume, part) in flights.forsake(is_own, |ticket| nodes.is_held(ticket), layout) {
            nodes.barriers().raise(volume, part, Cause::Client);
        }
    }

    fn errands(&self, token: u64) -> Vec<u64> {
        self.flights.errands(|flight| flight.connection == token)
    }

    fn begin_to_end(&mut self) {
        self.is_ending = true;
    }

    fn abandon(&mut self) -> Vec<(u64, Landed)> {
        let ended = |flight: Flight| (flight.connection, Landed::new(flight, Err(Fault::Ending)));
        self.flights.abandon().into_iter().map(ended).collect()
    }
}

/// The memory that a request takes up.
fn weight(flight: &Flight) -> usize {
    match flight.command {
        Command::Read | Command::Write { .. } => flight.length as usize,
        _ => 0,
    }
}
