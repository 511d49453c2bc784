//! Simulated networks, transports and drives, and the whole path of a request over them: the
//! setting of the end-to-end paper.
//!
//! Events, the clock, randomness, workloads and recordings are those of `tidegate-sim`, with the
//! same rules for what makes two runs the same; congestion control is that of `tidegate-algo`.
//!
//! # Parts
//! - [`net`]: hosts, links and switches, packet by packet.
//! - [`transport`]: flows over the network, by window or by rate, with the papers' congestion
//!   controls.
//! - [`storage`]: drives and persistent memory, from the command to its completion.
//! - [`e2e`]: the whole path in one clock: applications, flows, switches, servers and drives.
//! - [`isolation`]: drives behind a node, for a tenant beside aggressive ones.
//! - [`dtm`]: the end-to-end paper's discrete-time model of its transport, in slots of a round
//!   trip.
#![forbid(unsafe_code)]

pub mod dtm;
pub mod e2e;
pub mod isolation;
pub mod net;
mod slots;
pub mod storage;
pub mod transport;
