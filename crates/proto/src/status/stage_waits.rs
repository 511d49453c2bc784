//! For how long gates of stages held a tenant's requests: the part of an account that is before the
//! kernel.
//!
//! # Problem
//! A program under `tidegate run` waits at gates of its stage before a request reaches the kernel.
//! Nodes do not see this time, and the wait of a call does not show its cause.
//!
//! # Model
//! A request waits at its gates one after the other. [`StageWaits`] are the sums of these times,
//! each under the gate where it was spent, so they add up to what requests waited before their
//! calls. Unlike [`Waits`](tidegate_model::Waits) of nodes they count requests, not units of cost,
//! and requests that did not wait add nothing. The time in the call itself is not measured: a clock
//! reading for each request would slow requests that do not wait.

use alloc::string::String;
#[cfg(feature = "schema")]
use alloc::{format, vec, vec::Vec};
use core::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tidegate_model::gate::Unit;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// A kind of gate at a stage, by the reason for its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StageGate {
    /// The tenant's bucket of bytes, at the rate of its own limit.
    BytesLimit,
    /// Its bucket of operations, at the rate of its own limit.
    OperationsLimit,
    /// Its bucket of bytes, at the rate that the controller gave it of a budget.
    BytesShare,
    /// Its bucket of operations, at such a rate.
    OperationsShare,
    /// Gates that the policy adds to channels: queues and further buckets.
    Channel,
}

impl StageGate {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 5] = [
        Self::BytesLimit,
        Self::OperationsLimit,
        Self::BytesShare,
        Self::OperationsShare,
        Self::Channel,
    ];

    /// The name of the gate, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BytesLimit => "bytes_limit",
            Self::OperationsLimit => "operations_limit",
            Self::BytesShare => "bytes_share",
            Self::OperationsShare => "operations_share",
            Self::Channel => "channel",
        }
    }

    /// A tenant's own bucket in `unit`, which has the rate of the tenant's limit or a lower one.
    pub(crate) const fn bucket(unit: Unit, is_limit: bool) -> Self {
        match (unit, is_limit) {
            (Unit::Bytes, true) => Self::BytesLimit,
            (Unit::Operations, true) => Self::OperationsLimit,
            (Unit::Bytes, false) => Self::BytesShare,
            (Unit::Operations, false) => Self::OperationsShare,
        }
    }
}

/// Requests of one tenant at stages, and for how long each kind of gate held them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageWaits {
    /// Requests that passed.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// For how long [`StageGate::BytesLimit`] held requests, all of them together.
    pub bytes_limit_ns: u64,
    /// The same of [`StageGate::OperationsLimit`].
    pub operations_limit_ns: u64,
    /// The same of [`StageGate::BytesShare`].
    pub bytes_share_ns: u64,
    /// The same of [`StageGate::OperationsShare`].
    pub operations_share_ns: u64,
    /// The same of [`StageGate::Channel`].
    pub channel_ns: u64,
}

impl StageWaits {
    /// For how long `gate` held requests, all of them together.
    pub const fn of(&self, gate: StageGate) -> u64 {
        match gate {
            StageGate::BytesLimit => self.bytes_limit_ns,
            StageGate::OperationsLimit => self.operations_limit_ns,
            StageGate::BytesShare => self.bytes_share_ns,
            StageGate::OperationsShare => self.operations_share_ns,
            StageGate::Channel => self.channel_ns,
        }
    }

    /// For how long requests waited at stages, all of them together.
    pub fn total_ns(&self) -> u64 {
        StageGate::ALL.into_iter().fold(0, |sum, gate| sum.saturating_add(self.of(gate)))
    }

    /// Adds a time to that of `gate`.
    pub(crate) const fn add(&mut self, gate: StageGate, ns: u64) {
        let sum = match gate {
            StageGate::BytesLimit => &mut self.bytes_limit_ns,
            StageGate::OperationsLimit => &mut self.operations_limit_ns,
            StageGate::BytesShare => &mut self.bytes_share_ns,
            StageGate::OperationsShare => &mut self.operations_share_ns,
            StageGate::Channel => &mut self.channel_ns,
        };
        *sum = sum.saturating_add(ns);
    }
}

impl AddAssign for StageWaits {
    fn add_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.bytes = self.bytes.saturating_add(other.bytes);
        StageGate::ALL.into_iter().for_each(|gate| self.add(gate, other.of(gate)));
    }
}

/// Delays of a tenant's requests at one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DelaysAtStage {
    /// The stage's number.
    pub stage: u64,
    /// Its host.
    pub host: String,
    /// Its command line.
    pub command: String,
    /// The window: a minute at most, less while the stage has not been connected so long.
    pub span_ns: u64,
    /// Requests that passed, and how long they waited.
    pub waits: StageWaits,
    /// How long a request waited on average; none if none passed.
    pub mean_ns: Option<u64>,
    /// Requests that wait for tokens of the tenant's buckets now.
    pub waiting_requests: u32,
    /// How long ago the stage ended; none while it is connected. It is kept for a minute.
    #[serde(default)]
    pub ended_ns: Option<u64>,
}

/// A cause of waiting at stages, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageCause {
    /// The gate.
    pub gate: StageGate,
    /// Its part of all waiting at stages, in thousandths.
    pub permille: u64,
    /// The evidence, in one line for people.
    pub why: String,
    /// The remedy, likewise.
    pub help: String,
}
