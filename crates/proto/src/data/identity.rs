//! The identity of a link, by which a node ends the connections that a new one replaces.
//!
//! # Problem
//! A gateway that loses a link answers the link's requests with an error and connects again.
//! Requests of the old connection may still lie in a kernel, in the network or at the device. A
//! write that is carried out after it has failed would replace a later one that was acknowledged.
//!
//! # Mechanism
//! Each connection names its gateway, its link, its process, and its number among the connections
//! of that link. Before a node welcomes a connection it *fences* those that it replaces: reads
//! nothing more from them, withdraws their requests that wait, and waits for the others. A gateway
//! that cannot connect a link again has its lost connections fenced over another link of the same
//! process ([`super::ToNode::Fence`]).

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};
use tidegate_model::Class;
use tidegate_model::cluster::Uuid;

/// The identity of a connection between a gateway and a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkIdentity {
    /// The gateway's name.
    pub gateway: String,
    /// A number that the gateway's process drew when it started.
    pub process: Uuid,
    /// The number of the link in that process.
    pub link: u32,
    /// The number of the connection on that link, counting from one.
    pub connection: u64,
}

/// The requests that a link carries, and their replies. Those of a smaller kind are sent first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LinkKind {
    /// Long ones: forwarding for the link need not be quick, and short ones on another link do not
    /// wait behind them.
    pub is_bulk: bool,
    /// Of this class. The packets of the link have its code point ([`Class::dscp`]).
    pub class: Class,
}

impl LinkKind {
    /// How many kinds there are.
    pub const COUNT: u64 = 8;

    /// The kind of the link that every gateway has to each of its nodes.
    pub const MAIN: Self = Self { is_bulk: false, class: Class::Medium };

    /// Its number, below [`Self::COUNT`], in the order of kinds.
    pub const fn number(self) -> u64 {
        4 * self.is_bulk as u64 + self.class as u64
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = if self.is_bulk { "long " } else { "" };
        write!(f, "{length}{} requests", self.class)
    }
}

impl LinkIdentity {
    /// Whether the two belong to different processes of one gateway. They do not tell which is the
    /// later one.
    pub fn is_of_other_process(&self, other: &Self) -> bool {
        self.gateway == other.gateway && self.process != other.process
    }

    /// Whether this is the same link, connected later than `earlier`.
    pub fn is_later_than(&self, earlier: &Self) -> bool {
        self.is_link_of(earlier) && self.connection > earlier.connection
    }

    /// Whether a fence of this link, up to this connection, ends `other`.
    pub fn fences(&self, other: &Self) -> bool {
        self.is_link_of(other) && self.connection >= other.connection
    }

    /// Whether both are connections of the same link.
    pub fn is_link_of(&self, other: &Self) -> bool {
        let link = |of: &Self| (of.process, of.link);
        self.gateway == other.gateway && link(self) == link(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_compared_with_those_of_its_gateway_alone() {
        let of = |gateway: &str, process, link, connection| {
            let (gateway, process) = (gateway.into(), Uuid([process; 16]));
            LinkIdentity { gateway, process, link, connection }
        };
        let first = of("g", 1, 2, 3);
        assert!(of("g", 1, 2, 4).is_later_than(&first));
        for other in [of("g", 1, 2, 3), of("g", 1, 3, 4), of("g", 2, 2, 4), of("h", 1, 2, 4)] {
            assert!(!other.is_later_than(&first), "{other:?}");
        }
        assert!([3, 4].into_iter().all(|last| of("g", 1, 2, last).fences(&first)));
        for other in [of("g", 1, 2, 2), of("g", 1, 3, 4), of("g", 2, 2, 4), of("h", 1, 2, 4)] {
            assert!(!other.fences(&first), "{other:?}");
        }
        assert!(of("g", 2, 2, 3).is_of_other_process(&first));
        for other in [of("g", 1, 3, 4), of("h", 2, 2, 3)] {
            assert!(!other.is_of_other_process(&first), "{other:?}");
        }
    }
}
