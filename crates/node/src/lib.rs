//! The storage-node daemon: queues, the node scheduler, and the stores. And, in [`memory`], the
//! data node, whose memory clients read and write themselves.
//!
//! ```text
//!  gateway (same process) ──────────────┐            ┌─ memory: done on the spot
//!                                       ▼            │
//!  gateway ── socket ── worker ──▶ live: machine ──▶ engine ─▶ store
//!                          ▲            │    ▲       │
//!                          └── message_queue ─┘  agent    └─ files: io_uring, threads
//!                                            │
//!                                       controller
//! ```
//!
//! `live` is the machine behind its locks, run by the threads that submit and finish jobs; `engine`
//! carries out dispatched work on a `store`; `agent` wakes the machine at its deadlines and
//! exchanges messages with the controller; `server` serves gateways of other processes. There is no
//! async runtime: a request's path is a socket read, two short locks of one shard, the work, and a
//! socket write.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test measures time"))]

mod agent;
mod config;
mod daemon;
mod engine;
mod live;
pub mod memory;
mod mutex;
mod path_check;
mod pieces;
mod server;
mod store;
mod threads;
pub mod volumes;

pub use config::{Config, Speed, StoreConfig};
pub use daemon::{Running, StartError, Status, start};
pub use mutex::MultiThreaded;
pub use server::ServerCounts;
#[cfg(feature = "faults")]
pub use store::faulty::FaultyDisk;
pub use tidegate_proto::session::Standing;
