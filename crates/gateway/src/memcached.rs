//! The key-value front end: a pool of memcached nodes, as one memcached.
//!
//! A client uses the gateway like any memcached. [`tidegate_wire::memcached`] parses the protocol.
//! This module maps a key to its node ([`crate::ketama`]) and its tenant, sends requests to nodes
//! as jobs, and returns the replies. A gateway keeps no state, so gateways of the same pool are all
//! alike, and a client may use any of them.

mod connection;
mod in_flight;

pub(crate) use connection::Frontend;
pub use tidegate_wire::memcached::request::VALUE_MAX_DEFAULT;

use tidegate_fabric::service::Part;
use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_model::cluster::Geometry;
use tidegate_model::{Bytes, NodeId};

use crate::ketama::Server;

/// A pool, and its listener.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The address of the pool's listener.
    pub address: Address,
    /// The users whom the listener admits.
    pub access: ListenerAccess,
    /// The pool's name, which is sent to nodes.
    pub name: String,
    /// Its nodes, as indexes into the gateway's list of nodes, in the form in which keys are spread
    /// over them. At least one.
    pub nodes: Vec<(NodeId, Server)>,
    /// The tenant that owns the requests that no rule attributes.
    pub tenant: String,
    /// The longest value, in bytes.
    pub value_max: u32,
    /// Whether a client may delete all keys of the pool, also other clients' keys.
    pub flush_all: bool,
}

impl Pool {
    /// The pool's parts to open, each with its node.
    pub(crate) fn parts(&self) -> Vec<(NodeId, Part)> {
        let part = |(index, (node, _)): (u32, &(NodeId, Server))| {
            let (length, offset) = (Bytes::ZERO, Bytes::ZERO);
            let geometry = Geometry::single(length);
            (*node, Part { volume: self.name.clone(), index, length, offset, geometry })
        };
        (0..).zip(&self.nodes).map(part).collect()
    }
}
