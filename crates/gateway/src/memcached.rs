//! The key-value front end: a pool of memcached nodes, as one memcached.
//!
//! A client uses the gateway like any memcached. Each node of the pool is a storage node in front
//! of one memcached. [`tidegate_wire::memcached`] parses the protocol; `connection` maps a key to
//! its node ([`crate::ketama`]), finds the tenant (the first rule of the policy that matches the
//! request, else the pool's own), sends requests to nodes as jobs, and returns the replies. A
//! gateway keeps no state, so gateways of the same pool are all alike, and a client may use any of
//! them.

mod connection;
mod in_flight;

pub(crate) use connection::Frontend;
pub use tidegate_wire::memcached::request::VALUE_MAX_DEFAULT;

pub use crate::pool::Pool;
