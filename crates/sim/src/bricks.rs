//! Simulation of DSFQ, fair queueing over several storage nodes, in the setting of its paper (§4):
//! streams whose threads reach bricks (nodes) through coordinators (gateways), in virtual time.
//!
//! ```text
//!  stream: threads ──▶ coordinators ──────────▶ bricks: node ──▶ disks
//!  one request each    what was sent elsewhere          │
//!                                                       └── controller: weights, promises
//! ```
//!
//! Brick, coordinator and stream are the paper's words for node, gateway and tenant. A brick is the
//! node's machine of the live system before an array of disks ([`Array`](crate::device::Array)); a
//! coordinator keeps the account that a live gateway keeps
//! ([`Elsewhere`](tidegate_algo::scheduling::dsfq::Elsewhere)), and reports in each request the
//! service that its stream has had elsewhere; weights and promises come from the controller's
//! machine. The world moves requests and messages, and counts.
//!
//! # Load
//! As Postmark in the paper: a thread has one request outstanding, of any size between two, and
//! asks again when it is answered. How many threads ask may change with time. A thread's data lies
//! on one brick; or in stripes over several, and each request is done when its parts are; or a
//! stream turns from brick to brick in bursts.
//!
//! # What is measured
//! For each stream at each brick and in each sample: bytes, requests, how long they took, and for
//! how long something was waiting. And for the first two streams how unfair it was at worst, beside
//! the bound of the paper's theorem 2 ([`Unfairness`]).
//!
//! ```
//! use tidegate_sim::bricks::{self, DsfqScenario};
//! let scenario = DsfqScenario::parse(r#"
//!     name = "two streams share a brick one to two"
//!     seed = 1
//!     discipline = "sfq"
//!     skip = "1s"
//!     length = "4s"
//!     sample = "1s"
//!     [bricks]
//!     count = 1
//!     [[stream]]
//!     name = "f"
//!     weight = 1
//!     threads = [{ on = [0], count = 30 }]
//!     [[stream]]
//!     name = "g"
//!     weight = 2
//!     threads = [{ on = [0], count = 30 }]
//! "#)?;
//! let outcome = bricks::run(&scenario)?;
//! let [f, g] = [0, 1].map(|stream| outcome.mean(stream, None));
//! assert!((1.8..2.2).contains(&(g / f)), "{f} {g}");
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod nodes;
mod outcome;
mod run;
mod scenario;
mod threads;
mod unfairness;

pub use outcome::{DsfqReport, SampleCell};
pub use run::run;
pub use scenario::{Bricks, ClientStream, DsfqScenario, Pulse, Threads, Wave};
pub use unfairness::Unfairness;

pub(crate) use nodes::DsfqSim;
pub(crate) use run::promised;
