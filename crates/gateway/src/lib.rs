//! The gateway daemon: stock clients open volumes and pools here, and nodes behind it keep the
//! promises.
//!
//! A client opens a volume over NBD, or a pool as one [`memcached`]; the gateway splits its
//! requests along the volume's stripes or routes them by key, tags them with the tenant that the
//! policy or the export names, and passes them to nodes ([`tidegate_fabric::service`]), in the same
//! process or behind sockets. A gateway schedules nothing and stores nothing: nodes decide the
//! order of requests and hold all acknowledged data. The gateway sends each node the service that
//! its tenants have received at other nodes.
#![forbid(unsafe_code)]

mod access;
mod agent;
mod barriers;
mod clock;
mod config;
mod connection;
mod context;
mod counters;
mod in_flight;
pub mod ketama;
mod latency;
mod links;
pub mod memcached;
mod message;
mod nbd;
mod nodes;
mod owners;
mod parts;
mod pool;
mod programs;
mod reachability;
mod recorder;
mod running;
mod status;
mod unreported_costs;
mod users;
mod volumes;
mod worker;

pub use config::{Config, Limits, ListenerTls, StartError};
pub use nodes::NodeLocation;
pub use parts::PartError;
pub use running::{Running, start};
pub use tidegate_proto::stats::message::{AnsweredRequests, GatewayCounts};
