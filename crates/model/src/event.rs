//! What happened: one stream of facts that becomes logs, traces and the watch API.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::discipline::Discipline;
use crate::gate::Throughput;
use crate::id::StageId;

/// Something that a party decided or noticed. Facts only; whoever reads the stream decides what to
/// print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A policy became the one in force.
    PolicyApplied {
        /// Its revision, counting from one.
        revision: u64,
    },
    /// A stage said hello and was accepted.
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
        /// Why, in words for people.
        reason: String,
    },
    /// A stage was turned away.
    StageRefused {
        /// The process that asked.
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
        /// What it may use from now on.
        rate: Throughput,
    },
    /// A storage node said hello and was accepted.
    NodeJoined {
        /// Its name.
        node: String,
        /// Whether it is the process that was there before, and holds what it held.
        is_known: bool,
    },
    /// A connection to a storage node ended. What it had stays its own until its lease is over.
    NodeLeft {
        /// Its name.
        node: String,
        /// Why, in words for people.
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
        /// What it schedules by from now on.
        scheduler: Discipline,
    },
    /// A period ended in which a tenant got less at all nodes together than it was promised, though
    /// it asked for more.
    ReservationMissed {
        /// The tenant.
        tenant: String,
        /// The period.
        period: u64,
        /// Operations that it was served.
        served_operations: u64,
        /// Operations that it was promised.
        reserved_operations: u64,
    },
    /// A gateway said hello and was accepted.
    GatewayJoined {
        /// Its name.
        gateway: String,
    },
    /// A connection to a gateway ended. It serves by the last policy that it heard.
    GatewayLeft {
        /// Its name.
        gateway: String,
        /// Why, in words for people.
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
