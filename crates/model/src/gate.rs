//! Specifications of gates and channels, by which a policy, a controller and a stage describe
//! enforcement (PAIO §3.1, where a gate is an *enforcement object*).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::id::TenantId;
use crate::tag::Class;
use crate::units::{Bytes, Iops, Rate, Span};

/// The unit of one token of a bucket.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Unit {
    /// One byte of data.
    #[default]
    Bytes,
    /// One operation of any kind.
    Operations,
}

impl Unit {
    /// The plural, for people and programs: `bytes`, `operations`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Operations => "operations",
        }
    }

    /// The other unit.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Bytes => Self::Operations,
            Self::Operations => Self::Bytes,
        }
    }
}

/// A rate in either unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Throughput {
    /// Bytes per second.
    Bandwidth(Rate),
    /// Operations per second.
    Operations(Iops),
}

impl Throughput {
    /// The unit of the rate.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Bandwidth(_) => Unit::Bytes,
            Self::Operations(_) => Unit::Operations,
        }
    }
    /// The number of units per second.
    pub const fn per_second(self) -> u64 {
        match self {
            Self::Bandwidth(rate) => rate.0,
            Self::Operations(iops) => iops.0,
        }
    }
    /// `per_second` of `unit`.
    pub const fn new(unit: Unit, per_second: u64) -> Self {
        match unit {
            Unit::Bytes => Self::Bandwidth(Rate(per_second)),
            Unit::Operations => Self::Operations(Iops(per_second)),
        }
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth(rate) => rate.fmt(f),
            Self::Operations(iops) => iops.fmt(f),
        }
    }
}

/// How much may pass at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Burst {
    /// This many bytes (or, for a bucket of operations, this many operations).
    Size(Bytes),
    /// The tokens that the rate yields in this time: the burst grows with the rate.
    Time(Span),
}

impl Burst {
    /// Ten milliseconds of the rate: one per cent of any second, so that a limit holds within two
    /// per cent over every second, and ten times what a sleep on a busy machine overshoots.
    pub const DEFAULT: Self = Self::Time(Span(10 * Span::MILLISECOND.0));

    /// The number of tokens it amounts to at `per_second` tokens per second; at least one, for a
    /// bucket that can hold nothing never opens.
    pub fn tokens(self, per_second: u64) -> u64 {
        let tokens = match self {
            Self::Size(size) => size.0,
            Self::Time(span) => {
                let tokens = u128::from(per_second) * u128::from(span.0) / 1_000_000_000;
                u64::try_from(tokens).unwrap_or(u64::MAX)
            }
        };
        tokens.max(1)
    }
}

impl Default for Burst {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One gate: a mechanism that admits, orders, paces, measures or transforms requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateSpec {
    /// Lets every request through.
    NoOp,
    /// Paces requests to a rate (PAIO's DRL). Unused tokens are kept up to the burst; a request
    /// larger than the burst passes once the bucket is full and leaves a debt.
    TokenBucket {
        /// Tokens per second.
        rate: Throughput,
        /// How many tokens the bucket holds.
        burst: Burst,
    },
    /// Start-time fair queueing between contexts, with at most `depth` requests in service.
    FairQueue {
        /// Requests in service at a time; at least one.
        depth: u32,
        /// Patterns of contexts with their weights, first match; whatever matches none weighs 1.
        weights: Vec<(String, u32)>,
    },
    /// Strict priority between contexts, with at most `depth` requests in service.
    Priority {
        /// Requests in service at a time; at least one.
        depth: u32,
        /// Patterns of contexts, most urgent first; whatever matches none comes last.
        order: Vec<String>,
    },
    /// At most `depth` requests in service, first come, first served.
    Concurrency {
        /// Requests in service at a time; at least one.
        depth: u32,
    },
    /// Times the service of every request in the channel, where other channels time a sample.
    LatencyProbe,
    /// Compresses what is written and restores what is read (layered API only).
    Compress {
        /// Zstandard level, 1 (fast) to 19 (small).
        level: i32,
    },
    /// Encrypts what is written with AES-256-GCM and checks and decrypts what is read (layered API
    /// only).
    Encrypt {
        /// The name of a key that the program gave to its stage; keys never travel.
        key: String,
    },
}

impl GateSpec {
    /// The kind's name in policies and reports.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoOp => "no-op",
            Self::TokenBucket { .. } => "token-bucket",
            Self::FairQueue { .. } => "fair-queue",
            Self::Priority { .. } => "priority",
            Self::Concurrency { .. } => "concurrency",
            Self::LatencyProbe => "latency-probe",
            Self::Compress { .. } => "compress",
            Self::Encrypt { .. } => "encrypt",
        }
    }

    /// Whether it changes a request's content, which only the layered API can carry.
    pub const fn transforms(&self) -> bool {
        matches!(self, Self::Compress { .. } | Self::Encrypt { .. })
    }
}

/// A stream of requests and the gates that they pass, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSpec {
    /// Its name, unique in a stage.
    pub name: String,
    /// The tenant that owns the requests in this channel.
    pub tenant: TenantId,
    /// The owner's class.
    pub class: Class,
    /// Names of its gates, in the order in which a request passes them. Channels may share a gate.
    pub gates: Vec<String>,
}
