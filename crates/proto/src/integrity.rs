//! The structures of a data node's memory, by which a damage is reported.
//!
//! # Problem
//! Every client of a data node can write to all of its memory. A wild or hostile write to the words
//! that the node and its clients share leaves the memory useless for all of them.
//!
//! # Mechanism
//! The node compares its own words with the memory, and the words of clients with the values that a
//! client could have written: [`Monitor::inspect`](crate::haechi::Monitor::inspect) does that for
//! the control words, and the store's inspector for the index and the pool. A damaged structure is
//! named by a [`Structure`]; the node then gives its clients other memory.
//!
//! # Bound
//! Damage that looks like a client's write is not found: an index entry that was zeroed is a key
//! without a value, and the bytes of a value are checked by its reader.

use core::fmt;

/// A structure in a data node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// The words that identify the memory, and its version.
    Header,
    /// The word of pool tokens.
    TokenPool,
    /// The number of the monitor that is at work.
    Lease,
    /// The capacity that the node has learned.
    Capacity,
    /// The word that marks that the node goes on with other memory.
    Left,
    /// The words of the modelled network card.
    Card,
    /// The grants to clients.
    Grants,
    /// The store's header.
    StoreHeader,
    /// How many of the store's blocks were taken and given.
    BlockPool,
    /// Since when clients have had blocks.
    Census,
    /// Which block has the value of which key.
    Index,
    /// Which blocks are free.
    FreeBlocks,
    /// None in particular: the node's own thread failed on the content of the memory.
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
            Self::Card => "the modelled card",
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
