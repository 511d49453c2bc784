//! The interface of a storage node to the code that brings it requests from gateways.
//!
//! The node implements [`Service`]. A gateway in the node's process calls it. For a gateway of
//! another process, the node's server calls it for each connection, and the gateway's end of the
//! connection is a [`crate::remote::Remote`], which is no [`Session`].
//!
//! The caller opens a [`Session`], announces the tenants, opens parts of volumes, and then submits
//! [`Job`]s in batches. [`Session::submit`] returns jobs that finish at once; the others go to the
//! session's [`CompletionSink`], on the thread that finished them.

use std::sync::Arc;

use tidegate_model::cluster::Geometry;
use tidegate_model::{Bytes, PartNumber, Tag, TenantId, Time};
pub use tidegate_proto::data::{Command, Fault, PartState, Stay};

use crate::buffer::Buffer;
use crate::reactor::{Ready, Registrar};

/// A storage node, to the code that brings it requests.
pub trait Service: Send + Sync {
    /// Opens a session. Jobs that are not finished within [`Session::submit`] go to `sink`.
    fn session(&self, sink: Arc<dyn CompletionSink>) -> Box<dyn Session>;
}

/// One gateway worker's session with a node. Dropping it cancels the jobs in the node's queues;
/// jobs at the device finish, and their results are dropped.
pub trait Session: Send {
    /// Announces the tenants: the tag's [`tidegate_model::TenantId`] 1 is the first of them in
    /// every job that is submitted from here on. Requests of names that the node's plan does not
    /// have are unattributed.
    fn tenants(&mut self, names: &[String]);

    /// Makes a part of a volume ready. Jobs name it by the number that is returned.
    ///
    /// # Errors
    /// A reason for people: it is missing, was made for another volume or geometry, overlaps with
    /// another, or cannot be read.
    fn open(&mut self, part: &Part) -> Result<OpenPart, String>;

    /// Takes all of `jobs`. Those that are finished at once are appended to `done`.
    fn submit(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>);

    /// Cancels jobs whose client has disconnected. Those in the node's queues may be returned at
    /// once, as [`Fault::Ending`], instead of using up their tenant's promise; those at the device
    /// are returned when they are done, and every job is returned once.
    fn cancel(&mut self, tickets: &[u64]) {
        let _ = tickets;
    }

    /// Cancels all jobs, as [`Self::cancel`] does some. To be called after the last job.
    fn cancel_all(&mut self) {}

    /// From now on this session carries long requests and replies. Those of other sessions do not
    /// wait behind them where the node passes requests on.
    fn carry_bulk(&mut self) {}

    /// Lets the node receive on the caller's thread: it may add one descriptor with this token to
    /// the caller's reactor, and then [`Self::on_ready`] is to be called for its events.
    fn attach(&mut self, registrar: Registrar, token: u64) {
        let _ = (registrar, token);
    }

    /// The node's descriptor is ready. Jobs that are finished by that are appended to `done`.
    fn on_ready(&mut self, ready: Ready, done: &mut Vec<Job>) {
        let _ = (ready, done);
    }

    /// Takes tenants' costs at other nodes that no job has reported and none will report.
    fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        let _ = costs;
    }
}

/// The receiver of a session's jobs that were not finished at once. Called from the node's threads;
/// it must not block.
pub trait CompletionSink: Send + Sync {
    /// Takes all of `jobs`.
    fn finished(&self, jobs: &mut Vec<Job>);

    /// Acknowledged writes to a part may have been lost: it has another incarnation now, for
    /// clients that open its volume from here on. The part is numbered as by [`Session::open`];
    /// one that the session has not opened is not meant.
    fn incarnation(&self, part: PartNumber, incarnation: u64) {
        let _ = (part, incarnation);
    }
}

/// A part that a session has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPart {
    /// The number by which jobs name it.
    pub number: PartNumber,
    /// Its incarnation and its identity.
    pub state: PartState,
}

/// A part of a volume at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The volume's name.
    pub volume: String,
    /// Which of its parts, counting from zero.
    pub index: u32,
    /// Its length.
    pub length: Bytes,
    /// Where it begins in the node's store, if the store is one device for all volumes.
    pub offset: Bytes,
    /// The volume's.
    pub geometry: Geometry,
}

/// A request, and later its reply.
#[derive(Debug)]
pub struct Job {
    /// The submitter's number for it; comes back unchanged.
    pub ticket: u64,
    /// Its tenant, its operation and its cost.
    pub tag: Tag,
    /// Its command.
    pub command: Command,
    /// The part, as numbered by [`Session::open`].
    pub part: PartNumber,
    /// The incarnation of the part that the client relies on; zero for none. A flush takes it to
    /// the node.
    pub incarnation: u64,
    /// Where in the part, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// The bytes to write; in the answer to a read, the bytes that were read.
    pub buffer: Buffer,
    /// Its result; without a meaning before its end.
    pub outcome: Result<(), Fault>,
    /// When it went to its node, and how long it was there.
    pub times: JobTimes,
}

impl Job {
    /// A request for so many bytes of a part from an offset on, which relies on no incarnation and
    /// has not been sent.
    pub fn new(
        ticket: u64,
        tag: Tag,
        command: Command,
        (part, offset, length): (PartNumber, u64, u32),
        buffer: Buffer,
    ) -> Self {
        let (incarnation, outcome, times) = (0, Ok(()), JobTimes::default());
        Self { ticket, tag, command, part, incarnation, offset, length, buffer, outcome, times }
    }
}

/// When a job went to its node, and how long it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobTimes {
    /// When its submitter sent it, by the submitter's clock; none while it waits for the node.
    pub sent: Option<Time>,
    /// As the node tells with the answer.
    pub stay: Stay,
}
