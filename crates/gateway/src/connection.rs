//! One client's connection: from what can be read on it to requests, and from answers to what is
//! written on it.
//!
//! A connection that has as much under way as it may is not read from; its client's socket fills
//! up, and the client waits. What had already been read is held until there is room.

use std::io::{self, IoSliceMut};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::Command;
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_model::TenantId;

use crate::config::Limits;
use crate::flights::{Flight, Flights, Landed};
use crate::nbd::wire::{self, Errno, command, flag};
use crate::nbd::{
    Action, Entered, Handshake, HandshakeError, Receiver, Refusal, Request, RequestError, Step,
    reply,
};
use crate::nodes::Nodes;
use crate::volumes::Volumes;

/// What the connections of one worker share.
pub(crate) struct Shop {
    pub(crate) volumes: Volumes,
    pub(crate) nodes: Nodes,
    pub(crate) flights: Flights,
    pub(crate) limits: Limits,
    /// New requests are refused.
    pub(crate) is_ending: bool,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Goodbye {
    #[error("it has closed the connection")]
    Closed,
    #[error("it has chosen no export in time")]
    TooLate,
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
    /// What the reactor waits for.
    pub(crate) interest: Interest,
    /// Whether the worker has it on its list of those that something was done for.
    pub(crate) is_listed: bool,
}

#[derive(Debug)]
enum Phase {
    Shaking(Handshake),
    Serving(Box<Client>),
}

#[derive(Debug)]
struct Client {
    entered: Entered,
    tenant: TenantId,
    receiver: Receiver,
}

impl Connection {
    /// A client that has just come, and is greeted.
    pub(crate) fn new(token: u64, stream: Stream) -> Self {
        let mut said = Vec::new();
        let phase = Phase::Shaking(Handshake::begin(&mut said));
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
            interest: Interest::READ,
            is_listed: false,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn is_shaking(&self) -> bool {
        matches!(self.phase, Phase::Shaking(_))
    }

    /// Requests that are out at nodes.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Whether the client has said that it leaves. What it had asked before is carried out, also
    /// if it does not wait for the answers.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whose requests come on it.
    pub(crate) fn tenant(&self) -> TenantId {
        match &self.phase {
            Phase::Shaking(_) => TenantId::NOBODY,
            Phase::Serving(client) => client.tenant,
        }
    }

    /// Whether there is nothing left to do for a client that leaves, or that is to leave.
    pub(crate) fn is_over(&self, is_ending: bool) -> bool {
        let is_idle = self.requests == 0 && self.out.is_empty() && self.held.is_empty();
        (self.is_leaving || is_ending) && is_idle
    }

    /// Whether as much is under way as may be.
    fn is_full(&self, limits: &Limits) -> bool {
        self.requests >= limits.requests
            || self.bytes >= limits.bytes
            || self.out.len() >= limits.bytes
    }

    /// What to wait for now.
    pub(crate) fn wanted(&self, limits: &Limits) -> Interest {
        let read = !self.is_leaving && self.held.is_empty() && !self.is_full(limits);
        Interest { read, write: !self.out.is_empty() }
    }

    /// Reads once, and takes what has arrived. `scratch` is memory for what has no place of its
    /// own yet.
    pub(crate) fn receive(&mut self, scratch: &mut [u8], shop: &mut Shop) -> Result<(), Goodbye> {
        let vacancy = match &mut self.phase {
            Phase::Shaking(_) => &mut [],
            Phase::Serving(client) => client.receiver.vacancy(),
        };
        let direct = vacancy.len();
        let count = {
            // The rest of a large write goes to its place, and whatever is behind it to scratch.
            let mut slices = [IoSliceMut::new(vacancy), IoSliceMut::new(scratch)];
            let slices = if direct == 0 { &mut slices[1..] } else { &mut slices[..] };
            match rustix::io::retry_on_intr(|| rustix::io::readv(&self.stream, slices)) {
                Ok(0) => return Err(Goodbye::Closed),
                Ok(count) => count,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(Goodbye::Io(error.into())),
            }
        };
        if let Phase::Serving(client) = &mut self.phase {
            client.receiver.on_filled(count.min(direct));
        }
        self.take(&scratch[..count.saturating_sub(direct)], shop)
    }

    /// Takes what had to wait, if there is room now. Says whether there was something to take.
    pub(crate) fn go_on(&mut self, shop: &mut Shop) -> Result<bool, Goodbye> {
        if self.held.is_empty() || self.is_full(&shop.limits) {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        self.take(&held, shop)?;
        Ok(true)
    }

    fn take(&mut self, mut bytes: &[u8], shop: &mut Shop) -> Result<(), Goodbye> {
        while !self.is_leaving {
            let is_full = self.is_full(&shop.limits);
            match &mut self.phase {
                Phase::Shaking(handshake) => {
                    let mut said = Vec::new();
                    let step = handshake.on_bytes(&mut bytes, &shop.volumes, &mut said);
                    self.out.push(&said);
                    match step? {
                        Step::More => return Ok(()),
                        Step::Left => self.is_leaving = true,
                        Step::Entered(entered) => {
                            let tenant = shop.nodes.enter(&entered.export.tenant);
                            let receiver = Receiver::default();
                            let client = Client { entered: *entered, tenant, receiver };
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
            Err(refusal) => return reply::fail(&mut self.out, structured, cookie, refusal),
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
                let refusal = Refusal { errno: Errno::Shutdown, message: "the gateway is ending" };
                return reply::fail(&mut self.out, structured, cookie, refusal);
            }
            Action::Submit(command) => command,
        };
        let flight = Flight {
            connection: self.token,
            cookie,
            command,
            tenant: client.tenant,
            volume: client.entered.export.volume,
            offset,
            length,
            one: flags & flag::REQ_ONE != 0,
            buffer: request.payload,
        };
        self.requests += 1;
        self.bytes += weight(&flight);
        let Shop { volumes, nodes, flights, .. } = shop;
        let layout = volumes.layout(flight.volume);
        let launched = flights.launch(flight, layout, |volume, part, job| {
            nodes.queue(volume, part, job);
        });
        if let Err((flight, fault)) = launched {
            self.answer(Landed { flight, outcome: Err(fault), extents: Vec::new() });
        }
    }

    /// Queues the answer to a request.
    pub(crate) fn answer(&mut self, landed: Landed) {
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

    /// Writes as much as the client takes.
    pub(crate) fn flush(&mut self) -> Result<(), Goodbye> {
        self.out.flush(&self.stream)?;
        Ok(())
    }
}

/// The memory that a request takes up.
fn weight(flight: &Flight) -> usize {
    match flight.command {
        Command::Read | Command::Write { .. } => flight.length as usize,
        _ => 0,
    }
}
