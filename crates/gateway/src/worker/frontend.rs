//! Interface between a worker and the protocol that its clients speak.

use std::io;
use std::sync::Arc;

use tidegate_algo::allocation::memory_budget::MemoryBudget;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::{Fault, Job};
use tidegate_fabric::stream::Stream;
use tidegate_model::Time;

use crate::nodes::Nodes;
use crate::owners::Table;

/// The service behind a listener, block devices or keys and values, and the state that the clients
/// of one worker share.
pub(crate) trait Frontend {
    /// A connected client.
    type Client: Client<Frontend = Self>;
    /// The reply to a request, from the nodes' replies.
    type Answer;

    /// Lets a client in, whose number at the worker is `token`.
    fn welcome(&mut self, token: u64, stream: Stream) -> Self::Client;

    /// The way to the nodes.
    fn nodes(&mut self) -> &mut Nodes;

    /// The memory of the clients.
    fn budget(&mut self) -> &mut MemoryBudget;

    /// The bytes with which an answer is charged while it is at nodes.
    fn charge_of(answer: &Self::Answer) -> usize;

    /// The same, for those who only look.
    fn nodes_deadline(&self) -> Time;

    /// From now on this table says whose requests are.
    fn on_table(&mut self, table: &Arc<Table>);

    /// The client that owns the finished job, and the reply if the request is complete.
    fn complete(&mut self, job: Job) -> Option<(u64, Self::Answer)>;

    /// Which volume or pool an answer is from, and the bytes that were moved, unless it failed.
    fn weigh(answer: &Self::Answer) -> (usize, Result<u64, Fault>);

    /// When the request was read, by the clock of the worker's batches ([`Nodes::now`]).
    fn received_at(answer: &Self::Answer) -> Time;

    /// The tickets of the jobs that are out for a client.
    fn sub_requests(&self, token: u64) -> Vec<u64>;

    /// A client has gone. Where its jobs at nodes may still change something, a barrier stands from
    /// now on, until they have come back.
    fn forsake(&mut self, token: u64);

    /// Nothing new is taken any more.
    fn begin_to_end(&mut self) {}

    /// Ends everything that is out, and says what those who wait for it are told.
    fn abandon(&mut self) -> Vec<(u64, Self::Answer)>;
}

/// One client's connection.
pub(crate) trait Client {
    /// Where it is.
    type Frontend: Frontend;
    /// Why it ends, in words for people.
    type CloseReason: std::error::Error + From<io::Error>;

    fn stream(&self) -> &Stream;

    /// Whether it has not yet said what it wants.
    fn is_shaking(&self) -> bool;

    /// The tenant that it came for, once it has said what it wants.
    fn tenant<'a>(&'a self, frontend: &'a Self::Frontend) -> &'a str;

    /// The volume that it has opened.
    fn volume(&self) -> Option<usize> {
        None
    }

    /// Whether it has said that it leaves.
    fn is_leaving(&self) -> bool {
        false
    }

    /// Whether requests of it are out.
    fn has_requests(&self) -> bool;

    /// Whether what is out for it has no sense once it is gone.
    fn is_waiting(&self) -> bool;

    /// From now on another table says whose its requests are.
    fn on_table(&mut self, frontend: &Self::Frontend);

    /// Reads once, and takes what has arrived; false if it has closed the connection. `scratch` is
    /// memory for what has no place of its own yet.
    fn receive(
        &mut self,
        scratch: &mut [u8],
        frontend: &mut Self::Frontend,
    ) -> Result<bool, Self::CloseReason>;

    /// Why it was not let do what it asked for, the first time that this is the case.
    fn take_denial(&mut self) -> Option<String>;

    /// Whether it is to go on encrypted now.
    fn is_encrypting(&self) -> bool {
        false
    }

    /// Has it go on encrypted, with another stream.
    fn encrypt(&mut self, _frontend: &Self::Frontend) -> Result<(), Self::CloseReason> {
        Ok(())
    }

    /// Queues an answer.
    fn answer(
        &mut self,
        answer: <Self::Frontend as Frontend>::Answer,
        frontend: &mut Self::Frontend,
    );

    /// Writes as much as it takes, and takes what had to wait for that. Says whether there was
    /// something to take.
    fn make_progress(&mut self, frontend: &mut Self::Frontend) -> Result<bool, Self::CloseReason>;

    /// The bytes of replies that are to be written to it.
    fn unsent(&self) -> usize;

    /// Whether it has sent a request for which there is no memory now.
    fn is_waiting_for_memory(&self) -> bool;

    /// The memory that it takes up, in bytes, and how much of that is at nodes.
    fn charge(&self) -> Charge;

    /// The events to wait for now.
    fn wanted(&self, frontend: &Self::Frontend) -> Interest;

    /// Whether this error says no more than that the client has left, when it might.
    fn has_left(&self, close_reason: &Self::CloseReason) -> bool;

    /// Whether there is nothing more to be done for it.
    fn is_over(&self, is_ending: bool) -> bool;
}

/// Whether an error on a connection says that its peer has closed it.
pub(crate) fn is_departure(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
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
