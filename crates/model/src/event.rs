//! Events: facts that components report. They become the controller's log lines and the stream of
//! `GET /v1/events`.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::discipline::Discipline;
use crate::gate::Throughput;
use crate::id::{PeriodNumber, SessionSlot, StageId};

/// The reason of a disconnect that the peer had announced.
pub const DISCONNECTED: &str = "disconnected";

/// A decision or an observation of a component. Events hold facts only; the reader of the stream
/// decides on the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A policy became the one in force.
    PolicyApplied {
        /// Its revision, counting from one.
        revision: u64,
    },
    /// A stage connected and was accepted.
    StageJoined {
        /// Its number.
        stage: StageId,
        /// The tenant it acts for, or empty.
        tenant: String,
        /// The process that speaks for it.
        pid: u32,
    },
    /// A stage is gone and its share is free.
    StageLeft {
        /// Its number.
        stage: StageId,
        /// The tenant it acted for, or empty.
        tenant: String,
        /// The process that spoke for it.
        pid: u32,
        /// The reason, for people; [`DISCONNECTED`] if it closed the connection itself.
        reason: String,
    },
    /// A stage was turned away.
    StageRefused {
        /// The process that connected.
        pid: u32,
        /// Why, in words for people.
        reason: String,
    },
    /// A stage did not take the rules that it was sent; it goes on with those that it had before.
    RulesRefused {
        /// The stage's number.
        stage: StageId,
        /// The revision of the policy that the rules are from.
        revision: u64,
        /// Why, in words for people.
        reason: String,
    },
    /// A tenant's allocation changed by more than the threshold.
    RateChanged {
        /// The tenant.
        tenant: String,
        /// The rate that the tenant may use from now on.
        rate: Throughput,
    },
    /// A storage node connected and was accepted.
    NodeJoined {
        /// Its name.
        node: String,
        /// Whether it is the process that was there before, and holds what it held.
        is_known: bool,
    },
    /// A connection to a storage node ended. The tokens of the node stay its own until its lease is
    /// over.
    NodeLeft {
        /// Its name.
        node: String,
        /// The reason, for people; [`DISCONNECTED`] if it closed the connection itself.
        reason: String,
    },
    /// A storage node was turned away.
    NodeRefused {
        /// The name that it gave.
        node: String,
        /// Why, in words for people.
        reason: String,
    },
    /// A storage node does not answer, or does again.
    NodeSilent {
        /// Its name.
        node: String,
        /// Whether it is silent.
        is_silent: bool,
    },
    /// Another scheduler was chosen for a storage node, or the choice was taken back.
    SchedulerChosen {
        /// The node's name.
        node: String,
        /// The discipline that the node schedules by from now on.
        scheduler: Discipline,
    },
    /// A period ended in which a tenant got less at all nodes together than its reservation, though
    /// its demand was larger.
    ReservationMissed {
        /// The tenant.
        tenant: String,
        /// The period.
        period: PeriodNumber,
        /// Operations that it was served.
        served_operations: u64,
        /// Operations that it was promised.
        reserved_operations: u64,
    },
    /// The same in bytes, of which the tenant has a reservation on a resource of nodes.
    BytesMissed {
        /// The tenant.
        tenant: String,
        /// The period.
        period: PeriodNumber,
        /// Bytes that it was served.
        served_bytes: u64,
        /// Bytes that it was promised.
        reserved_bytes: u64,
    },
    /// A period ended at a data node in which a tenant got less there than its share, though its
    /// demand was larger.
    ShareMissed {
        /// The data node.
        node: String,
        /// The tenant.
        tenant: String,
        /// Operations per second that it did.
        done_operations_per_second: u64,
        /// Operations per second that are its share.
        reserved_operations_per_second: u64,
    },
    /// A client of a data node did more than it had tokens for, and is shut out.
    ClientOverstepped {
        /// The data node.
        node: String,
        /// The tenant that it acts for, or empty.
        tenant: String,
        /// Its session slot.
        #[serde(rename = "seat")]
        session_slot: SessionSlot,
        /// Operations done and under way in the period.
        issued_operations: u64,
        /// Operations that it had tokens for.
        token_operations: u64,
    },
    /// A client of a data node was silent for three periods, and is shut out.
    ClientEvicted {
        /// The data node.
        node: String,
        /// The tenant that it acts for, or empty.
        tenant: String,
        /// Its session slot.
        #[serde(rename = "seat")]
        session_slot: SessionSlot,
    },
    /// A client of a data node has not used its reservation, which may be too large.
    ReservationUnused {
        /// The data node.
        node: String,
        /// The tenant that it acts for, or empty.
        tenant: String,
        /// Its session slot.
        #[serde(rename = "seat")]
        session_slot: SessionSlot,
        /// In so many periods.
        periods: u32,
    },
    /// A data node goes on with other memory, because a client was shut out.
    MemoryMoved {
        /// The data node.
        node: String,
        /// How long nothing was answered.
        took_ns: u64,
    },
    /// A client damaged a structure of a data node's memory, and the node goes on with other
    /// memory.
    MemoryDamaged {
        /// The data node.
        node: String,
        /// Which structure, in words for people.
        structure: String,
        /// Whether what was stored is still there; if not, the store is empty.
        is_store_kept: bool,
        /// How long nothing was answered.
        took_ns: u64,
    },
    /// A data node's monitor looked later than it should have: its machine had no time for it.
    MonitorLate {
        /// The data node.
        node: String,
        /// By so much.
        late_ns: u64,
    },
    /// A data node's measured capacity differs from the capacity known before.
    CapacityLearned {
        /// The data node.
        node: String,
        /// The capacity known before.
        before_operations_per_second: u64,
        /// The capacity measured now.
        operations_per_second: u64,
    },
    /// The measured capacity of a resource of files has changed by a quarter or more, for a second.
    CapacityFound {
        /// The resource.
        resource: String,
        /// The capacity of the last such event, or with which the search began, for requests as
        /// they come now.
        before_operations_per_second: u64,
        /// The capacity, for requests as they come now.
        operations_per_second: u64,
        /// The same in bytes.
        bytes_per_second: u64,
        /// The evidence, in words for people.
        reason: String,
    },
    /// A gateway connected and was accepted.
    GatewayJoined {
        /// Its name.
        gateway: String,
    },
    /// A connection to a gateway ended. It serves by the last policy that it received.
    GatewayLeft {
        /// Its name.
        gateway: String,
        /// The reason, for people; [`DISCONNECTED`] if it closed the connection itself.
        reason: String,
    },
    /// A gateway was turned away.
    GatewayRefused {
        /// The name that it gave.
        gateway: String,
        /// Why, in words for people.
        reason: String,
    },
}
