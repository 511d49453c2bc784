//! The storage end: drives and persistent memory, from the command to its completion.
//!
//! # Parts
//! - [`Parameters`]: what a drive is made of, as TOML.
//! - [`Ssd`]: a drive. In front, submission queues and their arbitration; a link; a write cache;
//!   behind, pages mapped to planes that clean themselves, chips, and channels.
//! - [`Memory`]: persistent memory, in less than a microsecond.
//! - [`alone`]: a drive under synthetic load, without a network.
//! - [`NodeDrive`]: a drive behind a simulated storage node.
//!
//! Tests compare the times of a drive with those of MQSim, which simulates the same drive and load
//! in far more detail (`tests/storage.rs`; `examples/ssd.rs` prints both).

pub mod alone;
mod behind_node;
mod cache;
mod flash;
mod link;
mod media;
mod memory;
mod parameters;
mod plane;
mod ssd;
mod table;

pub use behind_node::{NodeDrive, NodeDriveEvent};
pub use memory::{Memory, MemoryParameters};
pub use parameters::{
    Before, Cache, CellTimes, ChannelBus, Choice, Cleaning, CommandOrder, Geometry, HostInterface,
    HostLinkParameters, Parameters, RoundRobinBurst, SECTOR, Shares,
};
pub use ssd::{Completion, Direction, DriveCommand, Ssd, SsdCounters, SsdEvent};
