//! The cost of a request in the fair queueing of nodes.
//!
//! Tenants share requests, bytes, or a device's time. A cluster has one such cost for all its
//! nodes, because the service that a tenant gets at one node counts at the other nodes.

use crate::units::Span;

/// The bytes for which a token of bytes stands, at nodes: small enough to be exact in a period of
/// tens of milliseconds, and large enough that 32 bits hold the tokens of a period of 4 TiB.
pub const BYTES_PER_TOKEN: u64 = 1024;

/// The unit of cost that tenants share at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostModel {
    /// Requests: each costs one; of several keys, one for each.
    #[default]
    Requests,
    /// Bytes that are read or written; requests that move none cost one.
    Bytes,
    /// Nanoseconds of a device.
    Device(DeviceCost),
}

/// The device time that a request costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCost {
    /// Of a read, or anything else that moves no bytes to the device.
    pub read: LineCost,
    /// Of a write.
    pub write: LineCost,
    /// How the two parts make one.
    pub combine: Combine,
}

/// A time that grows with the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCost {
    /// For the request itself.
    pub base: Span,
    /// For each MiB that it moves.
    pub per_mib: Span,
}

/// How the time for the request and that for its bytes make one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// One after the other: a disk that seeks and then reads.
    #[default]
    Sum,
    /// At the same time, so that the longer one decides: a device that is bound by requests if
    /// they are small and by its bandwidth if they are large. A sum would make it look slower than
    /// it is at sizes in between.
    Max,
}
