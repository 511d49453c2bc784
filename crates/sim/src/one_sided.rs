//! One-sided access in virtual time: clients that read a data node's memory through their
//! NICs, the setting of the Haechi paper (§III).
//!
//! ```text
//!  client ──▶ remote ──▶ its NIC ──┐
//!  client ──▶ remote ──▶ its NIC ──┼─▶ link of the data node ──▶ memory
//!  job in the background ──────────┘
//! ```
//!
//! [`Network`] gives each client a [`RemoteMemory`](tidegate_onesided::one_sided::RemoteMemory), so
//! code that runs over shared memory or RDMA runs here, too. The model of the NICs has two numbers
//! ([`NicModel`]), which are the paper's.
//!
//! # Load
//! A client keeps up to a window of reads of 4 KiB under way. In each period it wants so many, all
//! at the beginning or at equal distances ([`Pattern`]), and what it has not begun at the end it
//! does not want any more.
//!
//! # What is measured
//! The reads that each client completes in each period, and how long they took.
//!
//! ```
//! use tidegate_sim::one_sided::{self, Scenario};
//! let scenario = Scenario::parse(r#"
//!     name = "four clients saturate a data node, of which each could use a fourth alone"
//!     seed = 1
//!     period = "100ms"
//!     periods = 2
//!     cards = { client = "40k iops", node = "157k iops" }
//!     client = [{ count = 4 }]
//! "#)?;
//! let outcome = one_sided::run(&scenario)?;
//! assert!((156e3..158e3).contains(&outcome.total()));
//! assert!((39e3..40e3).contains(&outcome.mean(0)));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod client;
pub(crate) mod faults;
mod network;
mod nic;
pub mod nodes;
mod outcome;
mod run;
mod scenario;
mod world;

pub use client::Latency;
pub use network::{DEPTH, Endpoint, Loopback, Network, OperationCounts};
pub use nic::{HEAD, NicModel, Order, Service};
pub use outcome::{OneSidedReport, Sample};
pub use run::run;
pub use scenario::{Background, Change, Clients, Control, Pattern, Scenario};
