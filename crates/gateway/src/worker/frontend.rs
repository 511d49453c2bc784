//! Interface between a worker and a protocol. A [`Frontend`] is what all clients of one worker
//! share: the links to nodes, requests in flight, memory. A [`Client`] is one connection.

use std::io;
use std::sync::Arc;

use tidegate_algo::allocation::memory_budget::MemoryBudget;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Fault, Job, JobTimes};
use tidegate_fabric::stream::Stream;
use tidegate_model::Time;

use crate::nodes::Nodes;
use crate::owners::OwnerTable;
use crate::programs::Programs;
use crate::recorder::Extent;
use crate::volumes::VolumeIndex;

/// The service behind a listener, block devices or keys and values, and the state that the clients
/// of one worker share.
pub(crate) trait Frontend {
    /// A connected client.
    type Client: Client<Frontend = Self>;
    /// The reply to a request, from the nodes' replies.
    type Answer;

    /// Accepts a client, whose number at the worker is `token`.
    fn welcome(&mut self, token: u64, stream: Stream) -> Self::Client;

    /// The links to the nodes.
    fn nodes(&mut self) -> &mut Nodes;

    /// The memory of the clients.
    fn budget(&mut self) -> &mut MemoryBudget;

    /// The bytes with which a request is charged while it is at nodes.
    fn charge_of(answer: &Self::Answer) -> usize;

    /// The same, read-only.
    fn nodes_deadline(&self) -> Time;

    /// Replaces the table of the owners of requests.
    fn on_table(&mut self, table: &Arc<OwnerTable>);

    /// Replaces the programs that clients may be.
    fn on_programs(&mut self, programs: Arc<Programs>);

    /// The client that owns the finished job, and the reply if the request is complete.
    fn complete(&mut self, job: Job) -> Option<(u64, Self::Answer)>;

    /// The volume or pool of a reply, and the bytes that were moved, unless it failed.
    fn weigh(answer: &Self::Answer) -> (VolumeIndex, Result<u64, Fault>);

    /// When the request was read, by the clock of the worker's batches ([`Nodes::now`]).
    fn received_at(answer: &Self::Answer) -> Time;

    /// The times of the request's job that was answered last.
    fn times(answer: &Self::Answer) -> JobTimes;

    /// The volume of a reply and the extent of its request, if requests are recorded here.
    fn extent(&self, _answer: &Self::Answer) -> Option<(&str, Extent)> {
        None
    }

    /// The tickets of a client's jobs in flight.
    fn sub_requests(&self, token: u64) -> Vec<u64>;

    /// Abandons the jobs of a client that has disconnected. Where its jobs at nodes may still
    /// change data, a barrier stands from now on, until they are finished.
    fn abandon(&mut self, token: u64);

    /// Refuses new requests from now on.
    fn begin_to_end(&mut self) {}

    /// Ends all requests in flight, and returns the replies for the clients that wait.
    fn abandon_all(&mut self) -> Vec<(u64, Self::Answer)>;
}

/// One client's connection.
pub(crate) trait Client {
    /// Its socket.
    type Frontend: Frontend;
    /// Why it ends, for the log.
    type CloseReason: std::error::Error + From<io::Error>;

    fn stream(&self) -> &Stream;

    /// Whether it has neither an export nor sent a request.
    fn is_handshaking(&self) -> bool;

    /// Its tenant, once its handshake is done.
    fn tenant<'a>(&'a self, frontend: &'a Self::Frontend) -> &'a str;

    /// The tenant of its requests without a rule, which a recording names.
    fn owner_name(&self) -> &str {
        ""
    }

    /// The volume that it has opened.
    fn volume(&self) -> Option<VolumeIndex> {
        None
    }

    /// The name of the volume or pool that it has opened, or an empty one.
    fn volume_name<'a>(&'a self, frontend: &'a Self::Frontend) -> &'a str;

    /// Whether it has announced its disconnect.
    fn is_leaving(&self) -> bool {
        false
    }

    /// Whether it has requests in flight.
    fn has_requests(&self) -> bool;

    /// Whether its requests in flight are cancelled after its disconnect.
    fn is_waiting(&self) -> bool;

    /// Replaces the table of the owners of its requests.
    fn on_table(&mut self, frontend: &Self::Frontend);

    /// Reads once, and consumes the bytes; false if the client has closed the connection. `scratch`
    /// is memory for bytes without a buffer of their own.
    fn receive(
        &mut self,
        scratch: &mut [u8],
        frontend: &mut Self::Frontend,
    ) -> Result<bool, Self::CloseReason>;

    /// The reason of its first denied request, once.
    fn take_denial(&mut self) -> Option<String>;

    /// Why requests of a client that is a program do not count for the program's tenant, once for
    /// each reason.
    fn take_fallback(&mut self) -> Option<String>;

    /// Whether it has to switch to TLS now.
    fn is_encrypting(&self) -> bool {
        false
    }

    /// Switches it to an encrypted stream.
    fn encrypt(&mut self, _frontend: &Self::Frontend) -> Result<(), Self::CloseReason> {
        Ok(())
    }

    /// Queues a reply.
    fn answer(
        &mut self,
        answer: <Self::Frontend as Frontend>::Answer,
        frontend: &mut Self::Frontend,
    );

    /// Writes as much as the socket takes, and consumes input that had to wait for that. Returns
    /// whether there was such input.
    fn make_progress(&mut self, frontend: &mut Self::Frontend) -> Result<bool, Self::CloseReason>;

    /// The bytes of replies that are to be written to it.
    fn unsent(&self) -> usize;

    /// Whether it has sent a request that waits for memory.
    fn is_waiting_for_memory(&self) -> bool;

    /// The memory that it takes up, in bytes, and how much of that is at nodes.
    fn charge(&self) -> Charge;

    /// The events to wait for now.
    fn wanted(&self, frontend: &Self::Frontend) -> Interest;

    /// Whether this error means only that the client has disconnected.
    fn has_left(&self, close_reason: &Self::CloseReason) -> bool;

    /// Whether the connection is finished.
    fn is_over(&self, is_ending: bool) -> bool;
}

/// The memory that a client takes up, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// All that the budget is charged with.
    pub(crate) all: usize,
    /// As much of it as is at nodes, and comes back without the client.
    pub(crate) at_nodes: usize,
    /// Bytes that the client has sent and received so far.
    pub(crate) moved: u64,
}
