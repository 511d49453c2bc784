//! Guarantees for one-sided I/O: the engine at the client and the monitor at the data node.
//!
//! # Problem
//! Both sides must agree how many operations each client may issue, over the same one-sided
//! operations that they are about: neither side waits for the other, and each may stop, start again
//! or be late at any moment.
//!
//! # Mechanism
//! They communicate through *words* at fixed offsets of the region ([`words`] and
//! [`region_layout`]). The monitor writes each client's *grant* once a period and adds to the
//! *pool*; clients read their grants, take from the pool and write *reports*. Each word names its
//! period, and counts for nothing in another, so nothing that is late can do harm.
//!
//! [`Port`] is a client's engine: a [`RemoteMemory`](crate::one_sided::RemoteMemory) in front of
//! another one, which passes on the operations that have a token. [`Monitor`] is the data node's
//! monitor. It needs a connection, too, because only connections change the pool.
//!
//! The paper's monitor sends each client a message when a period begins, and another when it is to
//! report. Here clients read their grants when a period is over by their own clocks, and report as
//! long as they have something to do: nothing is sent that could be lost.
//!
//! Bounds. Counts are below 2^26 per client and period. The period's number in a word comes round
//! after 2^12 periods, and a client that was silent for three has been evicted.

pub mod monitor;
pub mod port;
pub mod region_layout;
pub mod words;

pub use monitor::{Monitor, MonitorEvent};
pub use port::Port;

use tidegate_algo::onesided::{Grain, Rules};
use tidegate_model::Span;

/// How often both sides evaluate the passage of time, by default.
pub const TICK: Span = Grain::CHOSEN.tick;

/// Parameters that client and data node agree on when they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// The rules, the same for all.
    pub rules: Rules,
    /// T.
    pub period: Span,
    /// C_L: operations per second.
    pub local_rate: u64,
}
