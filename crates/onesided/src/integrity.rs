//! The structures of a data node's memory, to name a damaged one.
//!
//! # Problem
//! Every client of a data node can write to all of its memory. A wild or hostile write to the words
//! that the node and its clients share leaves the memory useless for all of them.
//!
//! # Mechanism
//! The node compares the words that it has written with the memory, and clients' words with those
//! that a client could have written. [`Monitor::inspect`](crate::haechi::Monitor::inspect) does
//! that for the words of control, and the store's inspector for the index and the pool. A damaged
//! structure is named by a [`Structure`]; the node then gives its clients other memory.
//!
//! # Bound
//! Damage that looks like a client's own write is not found: an index entry that was zeroed is a
//! key that has no value. The reader of a value checks the value's own bytes.

use core::fmt;

/// A structure in a data node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// The word that identifies the memory, and its version.
    Header,
    /// The word of pool tokens.
    TokenPool,
    /// The number of the monitor that is at work.
    Lease,
    /// The learned capacity of the node.
    Capacity,
    /// The word that marks the memory as left for other memory.
    Left,
    /// The words of the modelled NIC.
    Nic,
    /// The grants to clients.
    Grants,
    /// The store's header.
    StoreHeader,
    /// The counts of the store's blocks that were taken and given.
    BlockPool,
    /// The rounds since which clients have had blocks.
    Census,
    /// The index: the block with the value of each key.
    Index,
    /// The ring of free blocks.
    FreeBlocks,
    /// None in particular: the node's own thread could not go on with the memory's content.
    Unknown,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "the header",
            Self::TokenPool => "the token pool",
            Self::Lease => "the monitor's lease",
            Self::Capacity => "the learned capacity",
            Self::Left => "the mark of memory that was left",
            Self::Nic => "the NIC model's words",
            Self::Grants => "the grants",
            Self::StoreHeader => "the store's header",
            Self::BlockPool => "the store's block pool",
            Self::Census => "the store's census of clients",
            Self::Index => "the store's index",
            Self::FreeBlocks => "the store's list of free blocks",
            Self::Unknown => "a structure that the monitor failed on",
        })
    }
}
