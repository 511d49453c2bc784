//! Request scheduling: the queue of a stage, the scheduler of a node with its shards, fair shares
//! over many nodes, and busy polling of workers.

pub mod busy_poll;
pub mod cost;
pub mod device;
pub mod dsfq;
mod phase;
pub mod queue;
pub mod scheduler;
pub mod shards;
mod turns;
pub mod wrr;
