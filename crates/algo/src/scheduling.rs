//! Which request is next: the queue of a stage, the scheduler of a node with its shards, and fair
//! shares over many nodes; and when a worker looks for the next one.

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
