//! Words of Tidegate: quantities with units, identities, the tag that travels with every request,
//! and the policy that says who is promised what.
//!
//! This is the innermost ring. It names things and checks that what it names is possible; it
//! decides nothing, and it has no clock, no thread, no socket and no randomness.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod conditions;
pub mod event;
pub mod gate;
pub mod id;
pub mod operation;
pub mod policy;
pub mod tag;
pub mod units;

pub use conditions::{Conditions, SizeRange};
pub use event::Event;
pub use gate::{ChannelSpec, GateSpec};
pub use id::{ContextId, StageId, TenantId};
pub use operation::{Operation, OperationSet};
pub use policy::{Policy, PolicyError};
pub use tag::{Class, Tag};
pub use units::{Bytes, Iops, Rate, Span, Time};
