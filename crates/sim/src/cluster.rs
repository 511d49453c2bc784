//! A simulated cluster: clients, storage nodes with their devices, a controller, and the links
//! between them, in virtual time.
//!
//! Nodes and controller are the state machines of the live system. The simulation gives them time
//! and messages, performs their outputs, and counts. Clients send their requests straight to the
//! nodes, as in the pShift paper; gateways and networks are not simulated here. Messages between
//! nodes and controller take the time of their link, which may also lose, repeat or delay them.
//!
//! Without control, the same controller runs with a policy without promises: every node serves its
//! tenants in turn.

mod clients;
mod counts;
mod nodes;
mod outcome;
mod run;
mod testbed;

pub use clients::SimPromise;
pub use counts::{Promised, TokenCounts};
pub use outcome::{ClusterReport, Move};
pub use run::run;
pub use testbed::ClusterTestbed;

pub(crate) use counts::in_tokens_of_bytes;
pub(crate) use nodes::{ClusterEvent, ClusterSim, LENGTH, Setup};
pub(crate) use run::{in_bytes, policy};
