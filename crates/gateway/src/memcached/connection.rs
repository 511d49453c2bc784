//! One memcached client: bytes in, its pipeline of requests, bytes out.
//!
//! The pipeline parses requests and keeps their order. This module finds the node of each key and
//! the tenant of the request, submits the jobs, and takes in the replies of the nodes. The worker
//! does not read from a client whose requests in flight have reached their limit, or for which
//! there is no memory. [`Frontend`] is what all memcached clients of a worker share.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use tidegate_algo::allocation::memory_budget::{MemoryBudget, SHARE_MIN};
use tidegate_algo::classify::owner::{Attribution, OwnerQuery};
use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Fault, Job, JobTimes};
use tidegate_fabric::stream::{Outgoing, Stream, is_departure};
use tidegate_model::{Bytes, Operation, Time};
use tidegate_wire::memcached::pipeline::{NodeRequest, OutputChunk, Pipeline};

use super::Pool;
use super::in_flight::{InFlight, InFlightRequest, RequestOwner};
use crate::access::{Identity, Restrictions};
use crate::context::ServerContext;
use crate::ketama::Ketama;
use crate::nodes::{LONG, Nodes, Target};
use crate::owners::{Owner, OwnerTable};
use crate::parts::Recorded;
use crate::programs::{ClientProgram, Programs};
use crate::volumes::VolumeIndex;
use crate::worker::{self, Charge};

/// The worker does not read from a client with so many bytes of unsent replies.
const OUTPUT_MAX: usize = 1 << 20;

/// The expected length of the reply for a key before the first reply, and at least, in bytes. A
/// request at its node is charged with the expected length; afterwards with the true one.
const ESTIMATE: usize = 16 << 10;
const ESTIMATE_MIN: usize = 128;

/// After so many short replies in a row a client's requests count as short again.
const SHORTS: u32 = 256;

/// The reply to a client that may not act for the tenant of a key.
const NOT_ALLOWED: &str = "CLIENT_ERROR the policy does not let this client use this key\r\n";

/// The error of memcached where it has no memory for a reply.
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory writing get response\r\n";

/// State that the connections of one worker share.
pub(crate) struct Frontend {
    pool: Arc<Pool>,
    circle: Ketama,
    owner: Owner,
    nodes: Nodes,
    in_flight: InFlight,
    context: Arc<ServerContext>,
    budget: MemoryBudget,
    table: Arc<OwnerTable>,
    programs: Arc<Programs>,
}

impl Frontend {
    pub(crate) fn new(
        pool: Arc<Pool>,
        nodes: Nodes,
        (context, budget): (Arc<ServerContext>, MemoryBudget),
        table: Arc<OwnerTable>,
    ) -> Self {
        let servers: Vec<_> = pool.nodes.iter().map(|(_, place)| place.clone()).collect();
        let (circle, owner) = (Ketama::plain(&servers), table.owner(&pool.name, &pool.tenant));
        let (in_flight, programs) = (InFlight::default(), Arc::default());
        Self { pool, circle, owner, nodes, in_flight, context, budget, table, programs }
    }

    /// The nodes that `flush_all` is sent to; none if clients may not empty the pool.
    fn everywhere(&self) -> Vec<RequestOwner> {
        let (operation, size) = (Operation::Delete, Bytes::ZERO);
        let query = OwnerQuery { operation, size, offset: None, key: None };
        let Attribution { tenant, class } = self.owner.of(query);
        let nodes = if self.pool.flush_all { self.pool.nodes.len() } else { 0 };
        (0..nodes as u32).map(|node| RequestOwner { node, tenant, class }).collect()
    }
}

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    token: u64,
    stream: Stream,
    identity: Identity,
    program: ClientProgram,
    /// The owner of its requests, if that is not the owner of the pool's.
    owner: Option<Owner>,
    restrictions: Restrictions,
    pipeline: Pipeline<RequestOwner, Buffer>,
    /// Received bytes that are not consumed.
    held: Vec<u8>,
    /// The length of `held` at which it is parsed again; zero until a reply has left.
    needed: usize,
    /// The bytes of requests that have no reply yet, and those expected of their replies.
    bytes: usize,
    /// The bytes of reply that are expected for each key: the most of late.
    estimate: usize,
    /// All its requests go to nodes as long ones, for they keep their order. A client changes over
    /// when it has no request in flight.
    is_long: bool,
    /// Short replies since the last long one, or since it connected.
    shorts: u32,
    /// How much input it may hold: the admitted bytes.
    input_max: usize,
    /// It needs to hold more, and was not admitted.
    is_pending: bool,
    /// The bytes that the budget is charged with for it, and the bytes that it has sent and
    /// received.
    charged: usize,
    moved: u64,
    output: Outgoing,
    /// The client has closed its side of the connection.
    is_silent: bool,
    /// It was denied a key, and the reason if that was not read yet.
    is_denied: bool,
    denial: Option<&'static str>,
}

impl Connection {
    fn new(token: u64, stream: Stream, frontend: &Frontend) -> Self {
        let mut client = Self {
            token,
            identity: Identity::of(&stream),
            program: ClientProgram::default(),
            owner: None,
            restrictions: Restrictions::default(),
            stream,
            pipeline: Pipeline::new(frontend.pool.value_max, frontend.everywhere()),
            held: Vec::new(),
            needed: 1,
            bytes: 0,
            estimate: ESTIMATE,
            // Until a reply has come their length is unknown.
            is_long: true,
            shorts: SHORTS - 1,
            input_max: SHARE_MIN,
            is_pending: false,
            charged: 0,
            moved: 0,
            output: Outgoing::new(),
            is_silent: false,
            is_denied: false,
            denial: None,
        };
        client.find_owner(frontend);
        client
    }

    /// Finds the owner of its requests, and its restrictions.
    fn find_owner(&mut self, frontend: &Frontend) {
        let Frontend { pool, owner: others, table, .. } = frontend;
        let client = (self.identity.client(&self.stream, table), self.program.tenant());
        let (owner, restrictions, not_counted) =
            Restrictions::of_pool(table, client, &pool.name, others);
        (self.owner, self.restrictions) = (owner, restrictions);
        self.program.note(not_counted);
    }

    /// The bytes of its requests and replies, from when a request is taken until the kernel has the
    /// reply.
    fn load(&self) -> usize {
        self.bytes + self.pipeline.stored() + self.output.len()
    }

    /// Reports the memory in use to the budget.
    fn settle(&mut self, budget: &mut MemoryBudget) {
        let input = if self.input_max > SHARE_MIN { self.input_max } else { self.held.len() };
        let now = self.load() + input;
        budget.charge(self.token, self.charged, now);
        self.charged = now;
    }

    /// Asks for memory if the input that is needed to go on is more than it may hold.
    fn reserve_input(&mut self, budget: &mut MemoryBudget) {
        self.is_pending = false;
        if self.needed > self.input_max {
            let wanted = self.needed.next_power_of_two();
            match budget.admits(self.token, 0, wanted) {
                true => self.input_max = wanted,
                false => self.is_pending = true,
            }
        } else if self.held.len() <= SHARE_MIN
            && self.needed <= SHARE_MIN
            && self.input_max > SHARE_MIN
        {
            self.input_max = SHARE_MIN;
            self.held.shrink_to(SHARE_MIN);
        }
    }

    /// Parses the held bytes, if progress is possible now, and requests memory for the rest of a
    /// request that was taken. Returns whether there was progress.
    fn go_on(&mut self, frontend: &mut Frontend) -> bool {
        let unsent = self.pipeline.unsent();
        if self.held.is_empty() && unsent == 0 {
            // All received bytes were consumed, so the limit of held bytes starts again.
            if self.pipeline.has_headroom() && frontend.budget.headroom(self.load()) > 0 {
                self.needed = 1;
            }
            return false;
        }
        if self.held.len() < self.needed {
            return false;
        }
        let held = std::mem::take(&mut self.held);
        let consumed = self.on_bytes(&held, frontend);
        self.held = held;
        self.held.drain(..consumed);
        consumed > 0 || self.pipeline.unsent() < unsent
    }

    /// Whether it may send requests now. If its requests have to use the other link from here on,
    /// those in flight have to complete first.
    fn has_way(&mut self) -> bool {
        let is_long = self.shorts < SHORTS || self.input_max > SHARE_MIN;
        if is_long != self.is_long && self.bytes == 0 {
            self.is_long = is_long;
        }
        is_long == self.is_long
    }

    fn on_bytes(&mut self, input: &[u8], frontend: &mut Frontend) -> usize {
        if !self.has_way() {
            self.needed = 0;
            return 0;
        }
        let (load, is_long) = (self.load(), self.is_long);
        let Frontend { circle, owner, nodes, in_flight, context, budget, .. } = frontend;
        let clients = context.present().max(1);
        let owner = self.owner.as_ref().unwrap_or(owner);
        let owner_of = |key: &[u8], operation| {
            let query = OwnerQuery { operation, size: Bytes::ZERO, offset: None, key: Some(key) };
            let Attribution { tenant, class } = owner.of(query);
            // There is at least one node, so the key has an owner.
            let node = circle.owner(key).unwrap_or_default() as u32;
            RequestOwner { node, tenant, class }
        };
        let (token, bytes, estimate) = (self.token, &mut self.bytes, self.estimate);
        self.pipeline.set_pending_max(context.limits.all_requests / clients);
        self.pipeline.set_credit(budget.headroom(load), estimate);
        let (restrictions, mut denied) = (&self.restrictions, Vec::new());
        let progress =
            self.pipeline.on_input(input, owner_of, |ask: NodeRequest<'_, RequestOwner>| {
                if restrictions.deny(ask.destination.tenant) {
                    return denied.push(ask.ticket);
                }
                let reply = estimate.saturating_mul(ask.keys as usize);
                let charge = ask.bytes.len().saturating_add(reply);
                let job = in_flight.submit((token, nodes.now), &ask, charge);
                *bytes += charge;
                let target =
                    Target { volume: VolumeIndex::POOL, part: ask.destination.node, is_long };
                nodes.queue(target, job, &Recorded::default());
            });
        for ticket in denied {
            if !std::mem::replace(&mut self.is_denied, true) {
                self.denial = Some(NOT_ALLOWED.trim_end());
            }
            context.counts.refuse();
            self.pipeline.on_reply(ticket, Err(NOT_ALLOWED));
        }
        // Zero where it depends on a reply, or on what the kernel takes.
        self.needed = progress.needed;
        progress.consumed
    }

    /// Takes a reply, or drops it if there is no memory for it.
    fn take_reply(
        &mut self,
        request: InFlightRequest,
        reply: Result<Buffer, Fault>,
        budget: &mut MemoryBudget,
    ) {
        let InFlightRequest { ticket, bytes, keys, .. } = request;
        self.bytes -= bytes;
        self.settle(budget);
        let length = reply.as_ref().map_or(0, |reply| reply.len());
        self.shorts = if length > LONG { 0 } else { self.shorts.saturating_add(1).min(SHORTS) };
        let by_key = (length / keys.max(1) as usize).max(ESTIMATE_MIN);
        self.estimate = by_key.max(self.estimate - self.estimate / 8);
        let is_too_much = length > 0 && budget.overflows(self.load(), length);
        let reply = if is_too_much { Err(OUT_OF_MEMORY) } else { reply.map_err(complaint) };
        self.pipeline.on_reply(ticket, reply);
    }
}

impl worker::Client for Connection {
    type Frontend = Frontend;
    type CloseReason = io::Error;

    fn stream(&self) -> &Stream {
        &self.stream
    }

    /// A client of memcached has no handshake. One that has never sent anything counts as one in
    /// its handshake.
    fn is_handshaking(&self) -> bool {
        self.moved == 0
    }

    fn tenant<'a>(&'a self, frontend: &'a Frontend) -> &'a str {
        &frontend.pool.tenant
    }

    fn volume_name<'a>(&'a self, frontend: &'a Frontend) -> &'a str {
        &frontend.pool.name
    }

    fn has_requests(&self) -> bool {
        self.pipeline.pending() > 0
    }

    fn is_waiting(&self) -> bool {
        self.pipeline.pending() > 0
    }

    fn on_table(&mut self, frontend: &Frontend) {
        self.find_owner(frontend);
        self.pipeline.set_flush_destinations(frontend.everywhere());
    }

    fn receive(&mut self, scratch: &mut [u8], frontend: &mut Frontend) -> io::Result<bool> {
        if self.program.look_up(&self.stream, &frontend.programs) {
            self.find_owner(frontend);
        }
        let slices = &mut [IoSliceMut::new(scratch)];
        let (count, is_other) = match self.program.receive(&self.stream, slices) {
            Ok((0, _)) => {
                self.is_silent = true;
                return Ok(true);
            }
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        self.moved += count as u64;
        if is_other {
            self.find_owner(frontend);
        }
        if self.held.is_empty() {
            let consumed = self.on_bytes(&scratch[..count], frontend);
            self.held.extend_from_slice(&scratch[consumed..count]);
        } else {
            self.held.extend_from_slice(&scratch[..count]);
            self.go_on(frontend);
        }
        self.settle(&mut frontend.budget);
        Ok(true)
    }

    fn take_denial(&mut self) -> Option<String> {
        self.denial.take().map(String::from)
    }

    fn take_fallback(&mut self) -> Option<String> {
        self.program.take_fallback()
    }

    fn answer(&mut self, (request, reply): Reply, frontend: &mut Frontend) {
        self.take_reply(request, reply, &mut frontend.budget);
        self.settle(&mut frontend.budget);
    }

    fn make_progress(&mut self, frontend: &mut Frontend) -> io::Result<bool> {
        while let Some(piece) = self.pipeline.poll_output() {
            match piece {
                OutputChunk::Reply(buffer) => self.output.push_buffer(buffer),
                piece => self.output.push(&piece),
            }
        }
        let before = self.output.len();
        self.output.flush(&self.stream)?;
        self.moved += (before - self.output.len()) as u64;
        if let (true, Some(reason)) = (self.is_over(false), self.pipeline.close_reason()) {
            return Err(io::Error::other(reason));
        }
        let is_more = self.needed == 0 && self.output.len() < OUTPUT_MAX && self.go_on(frontend);
        self.reserve_input(&mut frontend.budget);
        self.settle(&mut frontend.budget);
        Ok(is_more)
    }

    fn unsent(&self) -> usize {
        self.pipeline.stored() + self.output.len()
    }

    fn is_waiting_for_memory(&self) -> bool {
        self.is_pending
    }

    fn charge(&self) -> Charge {
        Charge { all: self.charged, at_nodes: self.bytes.min(self.charged), moved: self.moved }
    }

    fn wanted(&self, _: &Frontend) -> Interest {
        let has_headroom = self.output.len() < OUTPUT_MAX && !self.is_pending;
        let read = self.needed > 0 && has_headroom && !self.is_silent;
        Interest { read, write: !self.output.is_empty() }
    }

    /// A client that has closed its side need not wait for replies.
    fn has_left(&self, reason: &io::Error) -> bool {
        (self.is_silent || self.pipeline.is_over()) && is_departure(reason)
    }

    fn is_over(&self, is_ending: bool) -> bool {
        let is_done = self.pipeline.pending() == 0 && self.output.is_empty();
        is_done && (self.pipeline.is_over() || self.is_silent || is_ending)
    }
}

/// A job with the reply of its node, or with the fault that took its place.
type Reply = (InFlightRequest, Result<Buffer, Fault>);

impl worker::Frontend for Frontend {
    type Client = Connection;
    type Answer = Reply;

    fn welcome(&mut self, token: u64, stream: Stream) -> Connection {
        Connection::new(token, stream, self)
    }

    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn budget(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    fn charge_of((request, _): &Reply) -> usize {
        request.bytes
    }

    fn nodes_deadline(&self) -> Time {
        self.nodes.next_deadline()
    }

    fn on_table(&mut self, table: &Arc<OwnerTable>) {
        self.table = table.clone();
        self.owner = table.owner(&self.pool.name, &self.pool.tenant);
    }

    fn on_programs(&mut self, programs: Arc<Programs>) {
        self.programs = programs;
    }

    fn complete(&mut self, job: Job) -> Option<(u64, Reply)> {
        let request = self.in_flight.complete(&job)?;
        Some((request.token, (request, job.outcome.map(|()| job.buffer))))
    }

    fn weigh((_, reply): &Reply) -> (VolumeIndex, Result<u64, Fault>) {
        (VolumeIndex::POOL, reply.as_ref().map(|reply| reply.len() as u64).map_err(|fault| *fault))
    }

    fn received_at((request, _): &Reply) -> Time {
        request.received_at
    }

    fn times((request, _): &Reply) -> JobTimes {
        request.times
    }

    /// Requests for keys have no order across connections.
    fn abandon(&mut self, _: u64) {}

    fn sub_requests(&self, token: u64) -> Vec<u64> {
        self.in_flight.of(token)
    }

    fn abandon_all(&mut self) -> Vec<(u64, Reply)> {
        let ended = |request: InFlightRequest| (request.token, (request, Err(Fault::Ending)));
        self.in_flight.abandon_all().into_iter().map(ended).collect()
    }
}

/// The memcached error line of a fault.
fn complaint(fault: Fault) -> &'static str {
    match fault {
        Fault::NoSpace => "SERVER_ERROR out of memory storing object\r\n",
        Fault::Ending => "SERVER_ERROR the gateway is ending\r\n",
        Fault::Invalid | Fault::ReadOnly | Fault::Unsupported => {
            "SERVER_ERROR the node does not take this request\r\n"
        }
        Fault::Io => "SERVER_ERROR the node is away\r\n",
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
