//! Simulated clusters: Tidegate's own machines in virtual time. Networks, transports and drives,
//! packet by packet, are in `tidegate-netsim`, on the same events, clock and randomness.
//!
//! The pure crates decide and talk without a clock, a thread or a socket; a *world* gives them
//! time, messages, devices and random numbers. The live daemons are one world, and this crate is
//! the other. So the results of a simulation are results of the code that ships.
//!
//! # Parts
//! - [`alarm`]: the next deadline of a machine, as one event.
//! - [`time`]: the clock, in picoseconds; the machines' nanoseconds are made at the edge.
//! - [`event`]: queues of events; a binary heap and a timing wheel with the same total order.
//! - [`rng`]: a named stream of random numbers for each component, all from one seed.
//! - [`keys`]: the records that requests are about, chosen as YCSB chooses them.
//! - [`link`]: messages that are late, lost, doubled or overtaken, and links that are cut.
//! - [`workload`]: requests of storage clients and their times, from a few parameters.
//! - [`trace`]: requests from published recordings of real systems.
//! - [`twin`]: a cluster with its own recorded load under another policy.
//! - [`isolation`]: a tenant with a reservation at a node, beside tenants without one.
//! - [`device`]: a storage device with a fixed rate and bounded variance.
//! - [`scenario`]: the description of a simulation, a TOML file with strict keys.
//! - [`bricks`]: streams that reach bricks through coordinators, the setting of the DSFQ paper.
//! - [`cluster`]: clients, nodes and a controller in one loop, and what a run shows.
//! - [`one_sided`]: clients that read a data node's memory through NICs, the setting of
//!   the Haechi paper.
//! - [`stages`]: programs with their stages on several hosts, under one controller.
//! - [`simulation`]: a controller and its peers, and all that goes wrong between them; clusters,
//!   bricks, data nodes and stages are kinds of it.
//! - [`seeds`]: simulations under faults, each from one number, and what must hold in all of them.
//!
//! ```
//! use tidegate_sim::cluster;
//! use tidegate_sim::scenario::Scenario;
//! let scenario = Scenario::parse(r#"
//!     name = "two tenants that share a node, each limited to 600 of its 1,000"
//!     seed = 1
//!     control = "tokens"
//!     period = "1s"
//!     redistribute = "200ms"
//!     skip = 1
//!     periods = 1
//!     sample = "1s"
//!     [nodes]
//!     count = 1
//!     rate = "1k iops"
//!     depth = 1
//!     [tenants]
//!     count = 2
//!     limit = "600 iops"
//!     [load]
//!     on = [[0], [0]]
//!     closed = { outstanding = 4 }
//! "#)?;
//! let outcome = cluster::run(&scenario)?;
//! assert!(outcome.served(0).iter().all(|served| (490..510).contains(served)));
//! assert_eq!(outcome, cluster::run(&scenario)?); // to the last event
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```
//!
//! # What makes two runs the same
//! 1. Everything that happens is an event, and events have a total order: time, then insertion.
//!    Nothing depends on which queue keeps it.
//! 2. Randomness has one source ([`rng::Stream`]). A component draws from its own stream. So a
//!    component that draws more does not change the numbers of others, and two runs that differ in
//!    one parameter meet the same arrivals and service times.
//! 3. Integers decide wherever they can. A congestion control's window, rate and alpha and the
//!    popularity of [`keys`] are doubles: of sums, products, quotients and roots,
//!    which IEEE 754 defines to the last bit, and of logarithms and powers in software (`libm`).
//! 4. No clock of the machine, no thread, no map whose order is not that of its keys.
//!
//! Runs are independent of each other: many can run at the same time, each on a thread of its own.
#![forbid(unsafe_code)]

pub mod alarm;
pub mod bricks;
pub mod cluster;
pub mod device;
pub mod event;
mod io_request;
pub mod isolation;
pub mod keys;
mod large;
pub mod link;
mod node;
pub mod one_sided;
mod requests;
pub mod rng;
pub mod scenario;
pub mod seeds;
pub mod simulation;
pub mod stages;
pub mod time;
pub mod trace;
mod trial;
pub mod twin;
pub mod workload;
