//! The inputs of the machine's task, and the answers that it gives.

use std::sync::Arc;
use std::time::Duration;

use tidegate_model::gate::Unit;
use tidegate_model::{Discipline, NodeId, Policy};
use tidegate_proto::controller::status::Status;
use tidegate_proto::controller::{ConnectionId, FromPeer, Peer, Waits};
use tidegate_proto::message::Hello;
use tidegate_proto::recording::collector::{CollectError, RecordingPart};
use tidegate_proto::stats::delays::{Delays, UnknownTenant};
use tidegate_proto::stats::latency::Latencies;
use tokio::sync::oneshot;

use crate::nodes::TenantNodes;
use crate::peer_link::PeerLink;

/// Inputs that may wait for the machine. While the queue is full, no connection is read.
pub(crate) const INPUTS_MAX: usize = 1024;

/// The answer to an operator who records.
pub(crate) type Recorded = Result<RecordingPart, CollectError>;

/// An input of the machine.
#[derive(Debug)]
pub(crate) enum Input {
    /// A peer has sent its hello; `peer` is its process.
    Joined { link: Arc<PeerLink>, peer: Peer, hello: Hello },
    /// A peer has sent a message.
    PeerMessage { connection: ConnectionId, message: FromPeer },
    /// A connection of a peer ended.
    Closed { connection: ConnectionId, reason: String },
    /// A request for the status.
    Survey { reply: oneshot::Sender<Survey> },
    /// A request for the reasons of a tenant's delays.
    Delays { tenant: String, reply: oneshot::Sender<Result<Delays, DelaysError>> },
    /// An operator records, and asks for the requests so far.
    Record { session: u64, is_last: bool, reply: oneshot::Sender<Recorded> },
    /// A policy is stored and has to be put in force.
    Apply {
        revision: u64,
        policy: Box<Policy>,
        tenant_nodes: TenantNodes,
        done: oneshot::Sender<()>,
    },
    /// A choice of schedulers is stored and has to be put in force.
    Choose { nodes: Vec<NodeId>, chosen: Option<Discipline>, done: oneshot::Sender<()> },
}

/// The status and health.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) status: Status,
    /// How long requests waited at tenants' buckets.
    pub(crate) waits: Vec<(String, Unit, Waits)>,
    /// The latencies of requests at gateways and nodes.
    pub(crate) latency: Latencies,
    /// How long the last cycles took, from the first request to the last new rate.
    pub(crate) cycles: Vec<Duration>,
}

/// The daemon is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller is stopping")]
pub(crate) struct Stopping;

/// Why a tenant's delays cannot be explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DelaysError {
    #[error(transparent)]
    Unknown(#[from] UnknownTenant),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}
