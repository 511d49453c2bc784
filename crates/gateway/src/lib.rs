//! The gateway daemon: where stock clients find volumes, and behind which nodes keep promises.
//!
//! A client opens a volume over NBD, or a pool as one [`memcached`]; its requests are cut along
//! the volume's stripes or find their node by their key, are tagged with the tenant that the policy
//! or the export says, and handed to nodes ([`tidegate_fabric::service`]), in the same process or
//! behind sockets. Gateways order nothing and keep nothing: who is served when
//! is for nodes to say, and what was acknowledged is with them. Of what a node cannot see, that its
//! tenants were served at others, they tell it.
#![forbid(unsafe_code)]

mod access;
mod agent;
mod barriers;
mod clock;
mod config;
mod connection;
mod in_flight;
pub mod ketama;
mod latency;
mod links;
pub mod memcached;
mod nbd;
mod nodes;
mod owners;
mod parts;
mod reachability;
mod running;
mod status;
mod unreported_costs;
mod users;
mod volumes;
mod worker;

pub use config::{Config, Limits, ListenerTls, StartError};
pub use nodes::{Node, PartError};
pub use running::{Running, start};
pub use tidegate_proto::stats::message::{Flow, GatewayCounts};
