//! Jobs in flight at nodes, and the connections that their replies are for.

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Job, JobTimes};
use tidegate_model::{Class, ContextId, PartNumber, Tag, TenantId, Time};
use tidegate_wire::memcached::pipeline::{NodeRequest, Ticket};

/// The node of a request, its tenant and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestOwner {
    /// The index in the pool's list of nodes.
    pub(super) node: u32,
    pub(super) tenant: TenantId,
    pub(super) class: Class,
}

/// A job in flight at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightRequest {
    /// The connection that it came on.
    pub(super) token: u64,
    pub(super) ticket: Ticket,
    /// When it was read.
    pub(super) received_at: Time,
    /// Set when it is complete.
    pub(super) times: JobTimes,
    /// The bytes of the request, and those expected of its reply.
    pub(super) bytes: usize,
    /// The number of its keys.
    pub(super) keys: u32,
}

/// Jobs in flight at nodes: a ticket is the index of its slot.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    slots: Vec<Option<InFlightRequest>>,
    free: Vec<u32>,
}

impl InFlight {
    /// A job for what is asked on the connection `token` and was read at `received_at`. The
    /// connection is charged with `bytes`.
    pub(super) fn submit(
        &mut self,
        (token, received_at): (u64, Time),
        ask: &NodeRequest<'_, RequestOwner>,
        bytes: usize,
    ) -> Job {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let (ticket, keys, times) = (ask.ticket, ask.keys, JobTimes::default());
        let request = InFlightRequest { token, ticket, received_at, times, bytes, keys };
        self.slots[slot as usize] = Some(request);
        let tag = Tag {
            tenant: ask.destination.tenant,
            context: ContextId::NONE,
            class: ask.destination.class,
            operation: ask.operation,
            cost: ask.keys,
            delay: 0,
        };
        Job {
            ticket: u64::from(slot),
            tag,
            command: Command::KeyValue,
            part: PartNumber(0),
            incarnation: 0,
            offset: 0,
            // A request is at most a value of 128 MiB and a line.
            length: ask.bytes.len() as u32,
            buffer: Buffer::from(ask.bytes),
            outcome: Ok(()),
            times,
        }
    }

    /// Takes the record of a finished job out of its slot.
    pub(super) fn complete(&mut self, job: &Job) -> Option<InFlightRequest> {
        let request = self.slots.get_mut(usize::try_from(job.ticket).ok()?)?.take()?;
        self.free.push(job.ticket as u32);
        Some(InFlightRequest { times: job.times, ..request })
    }

    /// The jobs of one connection.
    pub(super) fn of(&self, token: u64) -> Vec<u64> {
        let slots = self.slots.iter().zip(0..);
        let own = slots.filter(|(slot, _)| slot.is_some_and(|request| request.token == token));
        own.map(|(_, number)| number).collect()
    }

    /// Ends all jobs in flight; replies that come later are dropped.
    pub(super) fn abandon_all(&mut self) -> Vec<InFlightRequest> {
        std::mem::take(self).slots.into_iter().flatten().collect()
    }
}
