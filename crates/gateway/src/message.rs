//! Messages to a worker, and the tokens of its links to nodes.

use tidegate_fabric::service::Job;
use tidegate_model::{NodeId, PartNumber, Time};

use crate::volumes::VolumeIndex;

/// Tokens from here on, below the listeners', are those of nodes.
pub(crate) const LINK: u64 = 1 << 62;

/// Messages from other threads to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// A node has finished a job.
    Finished(Job),
    /// A part of a node of this process, as the node numbers it, has another incarnation.
    Incarnation { node: NodeId, part: PartNumber, incarnation: u64 },
    /// A session opens a volume: disconnected clients of the volume have to be closed first.
    CheckClients { volume: VolumeIndex },
    /// The gateway ends: at this time at the latest.
    End(Time),
}
