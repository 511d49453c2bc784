//! A pool of memcached nodes, as it is configured.

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
