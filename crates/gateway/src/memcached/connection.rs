//! One client: bytes in, its conversation, bytes out.

use std::io::{self, Read};
use std::sync::Arc;

use tidegate_algo::owner::Asked;
use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Fault, Job};
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_model::{Bytes, Operation, Time};
use tidegate_proto::memcached::conversation::{Ask, Conversation, Piece};

use super::Pool;
use super::flights::{Flight, Flights, Spot};
use crate::ketama::Ketama;
use crate::nodes::Nodes;
use crate::owners::{Owner, Table};
use crate::parts::Recorded;
use crate::worker::{self, Hall};

/// A client that leaves so many bytes of replies in our hands is not listened to.
const OUTPUT_MAX: usize = 1 << 20;

/// What the connections of one worker share.
pub(crate) struct Shop {
    pool: Arc<Pool>,
    circle: Ketama,
    owner: Owner,
    nodes: Nodes,
    flights: Flights,
    hall: Arc<Hall>,
}

impl Shop {
    pub(crate) fn new(pool: Arc<Pool>, nodes: Nodes, hall: Arc<Hall>, table: &Table) -> Self {
        let places: Vec<_> = pool.nodes.iter().map(|(_, place)| place.clone()).collect();
        let (circle, owner) = (Ketama::plain(&places), table.owner(&pool.name, &pool.tenant));
        Self { pool, circle, owner, nodes, flights: Flights::default(), hall }
    }

    /// Where `flush_all` goes: nowhere if the pool is not to be emptied.
    fn everywhere(&self) -> Vec<Spot> {
        let asked = Asked { operation: Operation::Delete, size: Bytes::ZERO, key: None };
        let tenant = self.owner.of(asked);
        let nodes = if self.pool.flush_all { self.pool.nodes.len() } else { 0 };
        (0..nodes as u32).map(|node| Spot { node, tenant }).collect()
    }
}

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    token: u64,
    stream: Stream,
    conversation: Conversation<Spot, Buffer>,
    /// What was read and is not consumed.
    held: Vec<u8>,
    /// How long that has to be before it is looked at again; zero until a reply has left.
    needed: usize,
    /// What requests without a reply carry.
    bytes: usize,
    output: Outgoing,
    /// The client says nothing more.
    is_silent: bool,
}

impl Connection {
    fn new(token: u64, stream: Stream, shop: &Shop) -> Self {
        Self {
            token,
            stream,
            conversation: Conversation::new(shop.pool.value_max, shop.everywhere()),
            held: Vec::new(),
            needed: 1,
            bytes: 0,
            output: Outgoing::new(),
            is_silent: false,
        }
    }

    /// Looks at what is held, if that makes sense now. Says whether anything came of it.
    fn go_on(&mut self, shop: &mut Shop) -> bool {
        if self.held.len() < self.needed || self.held.is_empty() {
            return false;
        }
        let held = std::mem::take(&mut self.held);
        let consumed = self.hear(&held, shop);
        self.held = held;
        self.held.drain(..consumed);
        consumed > 0
    }

    fn hear(&mut self, input: &[u8], shop: &mut Shop) -> usize {
        let Shop { circle, owner, nodes, flights, hall, .. } = shop;
        let clients = hall.present().max(1);
        if hall.limits.is_reached(clients, 0, self.bytes) {
            // The next reply has it looked at again.
            self.needed = 0;
            return 0;
        }
        let spot = |key: &[u8], operation| Spot {
            // There is at least one node, so somebody owns the key.
            node: circle.owner(key).unwrap_or_default() as u32,
            tenant: owner.of(Asked { operation, size: Bytes::ZERO, key: Some(key) }),
        };
        let (token, bytes) = (self.token, &mut self.bytes);
        self.conversation.set_ahead_max(hall.limits.all_requests / clients);
        let progress = self.conversation.on_input(input, spot, |ask: Ask<'_, Spot>| {
            let job = flights.launch(token, &ask);
            *bytes += ask.bytes.len();
            nodes.queue((0, ask.place.node), job, &Recorded::default());
        });
        self.needed = progress.needed;
        progress.consumed
    }
}

impl worker::Client for Connection {
    type Shop = Shop;
    type Goodbye = io::Error;

    fn stream(&self) -> &Stream {
        &self.stream
    }

    /// A client of memcached says nothing before its first request.
    fn is_shaking(&self) -> bool {
        false
    }

    fn is_waiting(&self) -> bool {
        self.conversation.ahead() > 0
    }

    fn on_table(&mut self, shop: &Shop) {
        self.conversation.flush_at(shop.everywhere());
    }

    fn receive(&mut self, scratch: &mut [u8], shop: &mut Shop) -> io::Result<bool> {
        let count = match self.stream.read(scratch) {
            Ok(0) => {
                self.is_silent = true;
                return Ok(true);
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        if self.held.is_empty() {
            let consumed = self.hear(&scratch[..count], shop);
            self.held.extend_from_slice(&scratch[consumed..count]);
        } else {
            self.held.extend_from_slice(&scratch[..count]);
            self.go_on(shop);
        }
        Ok(true)
    }

    fn answer(&mut self, (Flight { ticket, bytes, .. }, reply): Reply) {
        self.bytes -= bytes;
        self.conversation.on_reply(ticket, reply.map_err(complaint));
    }

    fn look_after(&mut self, shop: &mut Shop) -> io::Result<bool> {
        while let Some(piece) = self.conversation.poll_output() {
            match piece {
                Piece::Reply(buffer) => self.output.push_buffer(buffer),
                piece => self.output.push(&piece),
            }
        }
        self.output.flush(&self.stream)?;
        if let (true, Some(goodbye)) = (self.is_over(false), self.conversation.goodbye()) {
            return Err(io::Error::other(goodbye));
        }
        Ok(self.needed == 0 && self.output.len() < OUTPUT_MAX && self.go_on(shop))
    }

    fn wanted(&self, _: &Shop) -> Interest {
        let read = self.needed > 0 && self.output.len() < OUTPUT_MAX && !self.is_silent;
        Interest { read, write: !self.output.is_empty() }
    }

    fn is_over(&self, is_ending: bool) -> bool {
        let is_done = self.conversation.ahead() == 0 && self.output.is_empty();
        is_done && (self.conversation.is_over() || self.is_silent || is_ending)
    }
}

/// What a node says, or why it does not.
type Reply = (Flight, Result<Buffer, Fault>);

impl worker::Shop for Shop {
    type Client = Connection;
    type Answer = Reply;

    fn welcome(&mut self, token: u64, stream: Stream) -> Connection {
        Connection::new(token, stream, self)
    }

    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn nodes_deadline(&self) -> Time {
        self.nodes.next_deadline()
    }

    fn on_table(&mut self, table: &Arc<Table>) {
        self.owner = table.owner(&self.pool.name, &self.pool.tenant);
    }

    fn land(&mut self, job: Job) -> Option<(u64, Reply)> {
        let flight = self.flights.land(&job)?;
        Some((flight.token, (flight, job.outcome.map(|()| job.buffer))))
    }

    fn weigh((_, reply): &Reply) -> (usize, Result<u64, Fault>) {
        (0, reply.as_ref().map(|reply| reply.len() as u64).map_err(|fault| *fault))
    }

    fn errands(&self, token: u64) -> Vec<u64> {
        self.flights.of(token)
    }

    fn abandon(&mut self) -> Vec<(u64, Reply)> {
        let ended = |flight: Flight| (flight.token, (flight, Err(Fault::Ending)));
        self.flights.abandon().into_iter().map(ended).collect()
    }
}

/// A fault in memcached's words.
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
