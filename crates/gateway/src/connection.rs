//! One client's connection: from what can be read on it to requests, and from answers to what is
//! written on it.
//!
//! A connection that has as much under way as it may is not read from; its client's socket fills
//! up, and the client waits. What had already been read is held until there is room.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use tidegate_algo::owner::Asked;
use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_model::{Bytes, Time};

use crate::config::Lock;
use crate::flights::{Flight, Flights, Landed, operation};
use crate::nbd::wire::{self, Errno, command, flag};
use crate::nbd::{
    Action, Encryption, Entered, Handshake, HandshakeError, Receiver, Refusal, Request,
    RequestError, Step, reply,
};
use crate::nodes::Nodes;
use crate::owners::{Owner, Table};
use crate::parts::Recorded;
use crate::volumes::Volumes;
use crate::worker::{self, Hall};

/// What the connections of one worker share.
pub(crate) struct Shop {
    pub(crate) volumes: Volumes,
    pub(crate) nodes: Nodes,
    pub(crate) flights: Flights,
    pub(crate) hall: Arc<Hall>,
    pub(crate) lock: Option<Lock>,
    /// Whose requests are.
    pub(crate) table: Arc<Table>,
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
    out: Outgoing,
    phase: Phase,
    /// What was read and has to wait.
    held: Vec<u8>,
    /// Requests that are out at nodes, and the bytes that they carry.
    requests: usize,
    bytes: usize,
    /// The client has said that it leaves: it is answered, and then that is all.
    is_leaving: bool,
    /// Once it is answered, it goes on encrypted.
    is_encrypting: bool,
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
    receiver: Receiver,
    /// What its flushes rely on.
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
            stream,
            out,
            phase,
            held: Vec::new(),
            requests: 0,
            bytes: 0,
            is_leaving: false,
            is_encrypting: false,
        }
    }

    /// Whether as much is under way as may be. Where others have left since, an answer to what is
    /// under way has it looked at again.
    fn is_full(&self, hall: &Hall) -> bool {
        hall.limits.is_reached(hall.present(), self.requests, self.bytes)
            || self.out.len() >= hall.limits.bytes
    }

    /// Takes what had to wait, if there is room now. Says whether there was something to take.
    fn go_on(&mut self, shop: &mut Shop) -> Result<bool, Goodbye> {
        if self.held.is_empty() || self.is_full(&shop.hall) {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        self.take(&held, shop)?;
        Ok(true)
    }

    fn take(&mut self, mut bytes: &[u8], shop: &mut Shop) -> Result<(), Goodbye> {
        while !self.is_leaving {
            let is_full = self.is_full(&shop.hall);
            match &mut self.phase {
                Phase::Shaking(handshake) => {
                    let mut said = Vec::new();
                    let step = handshake.on_bytes(&mut bytes, &shop.volumes, &mut said);
                    self.out.push(&said);
                    match step? {
                        Step::More => return Ok(()),
                        Step::Left => self.is_leaving = true,
                        // The answer is sent before anything else is.
                        Step::Encrypt => self.is_encrypting = true,
                        Step::Entered(entered) => {
                            let owner = shop.owner(&entered);
                            let receiver = Receiver::default();
                            let recorded = shop.nodes.record(entered.export.volume);
                            let client = Client { entered: *entered, owner, receiver, recorded };
                            self.phase = Phase::Serving(Box::new(client));
                        }
                    }
                }
                Phase::Serving(_) if is_full => {
                    self.held.extend_from_slice(bytes);
                    return Ok(());
                }
                Phase::Serving(client) => match client.receiver.next_request(&mut bytes)? {
                    None => return Ok(()),
                    Some(request) => self.on_request(request, shop),
                },
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
                return reply::data(&mut self.out, structured, cookie, offset, Buffer::empty());
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
        let asked = Asked { operation: operation(command), size, key: None };
        let flight = Flight {
            connection: self.token,
            cookie,
            command,
            tenant: client.owner.of(asked),
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
            nodes.queue((volume, part), job, recorded);
        });
        if let Err((flight, fault)) = launched {
            shop.hall.counts.refuse();
            self.reply(Landed { flight, outcome: Err(fault), extents: Vec::new() });
        }
    }

    /// Queues the answer to a request.
    fn reply(&mut self, landed: Landed) {
        let Phase::Serving(client) = &self.phase else { return };
        let Landed { flight, outcome, extents } = landed;
        self.requests -= 1;
        self.bytes -= weight(&flight);
        let structured = client.entered.structured;
        let Flight { cookie, command, offset, buffer, .. } = flight;
        match (outcome, command) {
            (Err(fault), _) => {
                let refusal = Refusal { errno: Errno::of(fault), message: wire::message(fault) };
                reply::fail(&mut self.out, structured, cookie, refusal);
            }
            (Ok(()), Command::Read) => {
                reply::data(&mut self.out, structured, cookie, offset, buffer);
            }
            (Ok(()), Command::Map) => reply::extents(&mut self.out, cookie, &extents),
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

    /// What a client had asked before it said that it leaves is carried out, also if it does not
    /// wait for the answers.
    fn is_waiting(&self) -> bool {
        self.requests > 0 && !self.is_leaving
    }

    fn on_table(&mut self, shop: &Shop) {
        if let Phase::Serving(client) = &mut self.phase {
            client.owner = shop.owner(&client.entered);
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
        if let Phase::Serving(client) = &mut self.phase {
            client.receiver.on_filled(count.min(direct));
        }
        self.take(&scratch[..count.saturating_sub(direct)], shop)?;
        Ok(true)
    }

    fn is_encrypting(&self) -> bool {
        self.is_encrypting && self.out.is_empty()
    }

    fn encrypt(&mut self, shop: &Shop) -> Result<(), Goodbye> {
        self.is_encrypting = false;
        let lock = shop.lock.as_ref();
        Ok(lock.map_or(Ok(()), |lock| lock.guard.encrypt(&mut self.stream))?)
    }

    fn answer(&mut self, landed: Landed) {
        self.reply(landed);
    }

    fn look_after(&mut self, shop: &mut Shop) -> Result<bool, Goodbye> {
        self.out.flush(&self.stream)?;
        self.go_on(shop)
    }

    fn wanted(&self, shop: &Shop) -> Interest {
        let is_able = !self.is_leaving && !self.is_encrypting;
        let read = is_able && self.held.is_empty() && !self.is_full(&shop.hall);
        Interest { read, write: !self.out.is_empty() }
    }

    fn is_over(&self, is_ending: bool) -> bool {
        let is_idle = self.requests == 0 && self.out.is_empty() && self.held.is_empty();
        (self.is_leaving || is_ending) && is_idle
    }
}

impl Shop {
    /// Whose requests come through an export.
    fn owner(&self, entered: &Entered) -> Owner {
        let export = &entered.export;
        self.table.owner(self.volumes.name(export.volume), &export.tenant)
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

    fn nodes_deadline(&self) -> Time {
        self.nodes.next_deadline()
    }

    fn on_table(&mut self, table: &Arc<Table>) {
        self.table = table.clone();
    }

    fn land(&mut self, job: Job) -> Option<(u64, Landed)> {
        let landed = self.flights.land(|volume| *self.volumes.layout(volume), job)?;
        Some((landed.flight.connection, landed))
    }

    fn weigh(landed: &Landed) -> (usize, Result<u64, Fault>) {
        let Landed { flight, outcome, .. } = landed;
        (flight.volume, outcome.map(|()| weight(flight) as u64))
    }

    fn errands(&self, token: u64) -> Vec<u64> {
        self.flights.errands(|flight| flight.connection == token)
    }

    fn begin_to_end(&mut self) {
        self.is_ending = true;
    }

    fn abandon(&mut self) -> Vec<(u64, Landed)> {
        let ended = |flight: Flight| {
            let outcome = Err(Fault::Ending);
            (flight.connection, Landed { flight, outcome, extents: Vec::new() })
        };
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
