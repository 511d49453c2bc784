//! Types of Tidegate: quantities with units, identities, the tag that travels with every request,
//! the policy with the tenants' promises, and the cluster that has to keep them.
//!
//! This is the innermost crate. It names things and checks that what it names is possible; it
//! decides nothing, and it has no clock, no thread, no socket and no randomness.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod amounts;
pub mod cluster;
pub mod conditions;
pub mod cost;
pub mod discipline;
pub mod event;
pub mod gate;
pub mod id;
pub mod operation;
pub mod origin;
pub mod policy;
pub mod tag;
pub mod text;
pub mod units;
pub mod unix_time;
pub mod waits;

pub use cluster::Cluster;
pub use conditions::{Conditions, SizeRange, StorageConditions};
pub use cost::CostModel;
pub use discipline::Discipline;
pub use event::Event;
pub use gate::{ChannelSpec, GateSpec};
pub use id::{
    ContextId, DataNodeId, GatewayId, NodeId, PartNumber, PeriodNumber, SessionSlot, StageId,
    TenantId, TenantIndex,
};
pub use operation::{Operation, OperationSet};
pub use origin::Origin;
pub use policy::{Policy, PolicyError};
pub use tag::{Class, ClassWeights, Tag};
pub use text::TextError;
pub use units::{Bytes, Iops, Portion, Rate, Span, Time};
pub use unix_time::UnixTime;
pub use waits::{WaitRule, Waits};
