//! Jobs that are out at nodes, and whose replies they bring.

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Job};
use tidegate_model::{Class, ContextId, Tag, TenantId};
use tidegate_proto::memcached::conversation::{Ask, Ticket};

/// Where something is asked, and on whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The place in the pool's list of nodes.
    pub(super) node: u32,
    pub(super) tenant: TenantId,
}

/// A job that is out at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// The connection that it came on.
    pub(super) token: u64,
    pub(super) ticket: Ticket,
    /// The bytes of the request, and those expected of its reply.
    pub(super) bytes: usize,
    /// How many keys it is about.
    pub(super) keys: u32,
}

/// Jobs that are out at nodes: each is the seat of its ticket.
#[derive(Debug, Default)]
pub(super) struct Flights {
    seats: Vec<Option<Flight>>,
    free: Vec<u32>,
}

impl Flights {
    /// A job for what is asked on the connection `token`, which is charged with `bytes`.
    pub(super) fn launch(&mut self, token: u64, ask: &Ask<'_, Spot>, bytes: usize) -> Job {
        let seat = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() as u32 - 1
        });
        let flight = Flight { token, ticket: ask.ticket, bytes, keys: ask.keys };
        self.seats[seat as usize] = Some(flight);
        let tag = Tag {
            tenant: ask.place.tenant,
            context: ContextId::NONE,
            class: Class::default(),
            operation: ask.operation,
            cost: ask.keys,
            delay: 0,
        };
        Job {
            ticket: u64::from(seat),
            tag,
            command: Command::KeyValue,
            part: 0,
            incarnation: 0,
            offset: 0,
            // A request is at most a value of 128 MiB and a line.
            length: ask.bytes.len() as u32,
            buffer: Buffer::from(ask.bytes),
            outcome: Ok(()),
        }
    }

    /// Takes the record of a finished job out of its slot.
    pub(super) fn land(&mut self, job: &Job) -> Option<Flight> {
        let flight = self.seats.get_mut(usize::try_from(job.ticket).ok()?)?.take()?;
        self.free.push(job.ticket as u32);
        Some(flight)
    }

    /// The jobs of one connection.
    pub(super) fn of(&self, token: u64) -> Vec<u64> {
        let seats = self.seats.iter().zip(0..);
        let own = seats.filter(|(seat, _)| seat.is_some_and(|flight| flight.token == token));
        own.map(|(_, number)| number).collect()
    }

    /// Ends all that is out; what comes back of it later is nobody's.
    pub(super) fn abandon(&mut self) -> Vec<Flight> {
        std::mem::take(self).seats.into_iter().flatten().collect()
    }
}
