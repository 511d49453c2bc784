//! End-to-end simulation: applications, flows, switches, queues of servers, and devices on one
//! virtual clock.
//!
//! **Problem.** Where requests of tenants meet, the one with the most of them wins: in the buffer
//! of a switch, in a submission queue, before a chip. A guard at one of these places moves the
//! crowd to the next. The effect of a policy end to end is only visible where all of them are.
//!
//! **Model.** An application makes requests ([`tidegate_sim::workload`]) to storage that is striped
//! over servers. Each has a connection to each of its servers: a flow there and one back
//! ([`crate::transport`]), through hosts' NICs and switches ([`crate::net`]). Commands go as NVMe
//! over Fabrics ([`command`]) into a submission queue of their own, and are fetched and done by
//! class, or not, as the drive is configured ([`crate::storage`]). The class of the application is
//! the tag that all of them see. Without storage, an application's requests are messages that are
//! taken in, which is what papers on transports simulate.
//!
//! **Mechanism.** One queue of events for everything; one loop ([`run`]). Promises of classes are
//! divided among flows ([`promises`]), at every link.
//!
//! This is what Gupta, Kant, Pal and Biswas call DiffERSim in "Configuring and Coordinating
//! End-to-End QoS for Emerging Storage Infrastructure" (2024), with the congestion controls of
//! `tidegate-algo`.
//!
//! **What is left out.** Host software, caches of hosts, losses of servers; admission.

mod check;
mod command;
mod hops;
mod location;
mod outcome;
mod promises;
mod request_source;
mod run;
mod scenario;
mod server;
mod simulation;

pub use hops::{Hop, HopMoment};
pub use outcome::{Amount, E2eReport, Egress, Moment, ServiceReport};
pub use run::{E2eProgress, Input, Run, run, run_while};
pub use scenario::{Application, Fabrics, Promises, Scenario, ServerDevice, Storage};
