//! One client: bytes in, its conversation, bytes out.

use std::io::{self, Read};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_proto::memcached::conversation::{Ask, Conversation, Piece, Ticket};

use super::worker::{Shop, Spot};

/// A client that leaves so many bytes of replies in our hands is not listened to.
const OUTPUT_MAX: usize = 1 << 20;

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    token: u64,
    stream: Stream,
    conversation: Conversation<Spot, Buffer>,
    /// What was read and is not consumed.
    held: Vec<u8>,
    /// How long that has to be before it is looked at again; zero until a reply has left.
    needed: usize,
    output: Outgoing,
    /// The client says nothing more.
    is_silent: bool,
    /// What the reactor waits for.
    pub(super) interest: Interest,
    /// Whether the worker has it on its list of those that something was done for.
    pub(super) is_listed: bool,
}

impl Connection {
    pub(super) fn new(token: u64, stream: Stream, shop: &Shop) -> Self {
        Self {
            token,
            stream,
            conversation: Conversation::new(shop.value_max, shop.everywhere.clone()),
            held: Vec::new(),
            needed: 1,
            output: Outgoing::new(),
            is_silent: false,
            interest: Interest::READ,
            is_listed: false,
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Reads once, and asks for what was read.
    pub(super) fn receive(&mut self, scratch: &mut [u8], shop: &mut Shop) -> io::Result<()> {
        let count = match self.stream.read(scratch) {
            Ok(0) => {
                self.is_silent = true;
                return Ok(());
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.held.is_empty() {
            let consumed = self.hear(&scratch[..count], shop);
            self.held.extend_from_slice(&scratch[consumed..count]);
        } else {
            self.held.extend_from_slice(&scratch[..count]);
            self.go_on(shop);
        }
        Ok(())
    }

    /// Looks at what is held, if that makes sense now.
    pub(super) fn go_on(&mut self, shop: &mut Shop) {
        if self.held.len() < self.needed || self.held.is_empty() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let consumed = self.hear(&held, shop);
        self.held = held;
        self.held.drain(..consumed);
    }

    fn hear(&mut self, input: &[u8], shop: &mut Shop) -> usize {
        let Shop { circle, owner, nodes, flights, .. } = shop;
        // There is at least one node, so somebody owns the key.
        let spot = |key: &[u8], operation| Spot {
            node: circle.owner(key).unwrap_or_default(),
            tenant: owner(key, operation),
        };
        let token = self.token;
        let progress = self.conversation.on_input(input, spot, |ask: Ask<'_, Spot>| {
            let job = flights.launch(token, &ask);
            nodes[ask.place.node].queue(job);
        });
        self.needed = progress.needed;
        progress.consumed
    }

    /// Takes in a node's reply.
    pub(super) fn answer(&mut self, ticket: Ticket, reply: Result<Buffer, &'static str>) {
        self.conversation.on_reply(ticket, reply);
    }

    /// Writes as much as there is and the client takes, and goes on with what had to wait for that.
    pub(super) fn flush(&mut self, shop: &mut Shop) -> io::Result<()> {
        while let Some(piece) = self.conversation.poll_output() {
            match piece {
                Piece::Reply(buffer) => self.output.push_buffer(buffer),
                piece => self.output.push(&piece),
            }
        }
        self.output.flush(&self.stream)?;
        if self.needed == 0 && self.output.len() < OUTPUT_MAX {
            self.go_on(shop);
        }
        Ok(())
    }

    /// What to wait for now.
    pub(super) fn wanted(&self) -> Interest {
        let read = self.needed > 0 && self.output.len() < OUTPUT_MAX && !self.is_silent;
        Interest { read, write: !self.output.is_empty() }
    }

    /// Whether there is nothing more to be done for it.
    pub(super) fn is_over(&self, is_ending: bool) -> bool {
        let is_done = self.conversation.ahead() == 0 && self.output.is_empty();
        is_done && (self.conversation.is_over() || self.is_silent || is_ending)
    }
}
