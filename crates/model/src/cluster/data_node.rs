//! Data nodes: nodes whose memory clients read and write themselves.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::Address;
use crate::units::{Bytes, Iops, Span};

/// A node whose memory clients read and write themselves, by tokens (Haechi): those on its machine,
/// or with [`MemoryTransport::Verbs`] those that an RNIC reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataNode {
    /// Its name.
    pub name: String,
    /// Where clients request a session slot: a Unix socket, or with [`MemoryTransport::Verbs`] a
    /// TCP port where they have to show a certificate.
    pub listen: Address,
    /// How much memory it has, a multiple of 4 KiB, [`Self::MEMORY_MIN`] at least.
    pub memory: Bytes,
    /// C_G: the profiled capacity of the node, in operations of 4 KiB per second.
    pub capacity: Iops,
    /// C_L: the part of that capacity that one client alone can use.
    pub client: Iops,
    /// T, 10 ms to 10 s. Reservations per second are divided over the periods of a second.
    pub period: Span,
    /// The number of session slots for clients, 1 to [`Self::SESSION_SLOTS_MAX`].
    pub session_slots: u32,
    /// Operations that a client keeps under way at most, 1 to [`Self::WINDOW_MAX`].
    pub window: u32,
    /// Whether the node spreads tokens over the period; otherwise all are there at its beginning.
    pub is_paced: bool,
    /// The transport that carries operations out.
    pub transport: MemoryTransport,
    /// With [`MemoryTransport::Verbs`], the RDMA device; none for the first that carries packets.
    pub device: Option<String>,
}

impl DataNode {
    /// The least memory: a megabyte for words of control, and space for some values.
    pub const MEMORY_MIN: Bytes = Bytes(4 << 20);
    /// The most memory.
    pub const MEMORY_MAX: Bytes = Bytes(8 << 40);
    /// The default period of a data node.
    pub const PERIOD: Span = Span::SECOND;
    /// The shortest period: ten polls of the monitor.
    pub const PERIOD_MIN: Span = Span(10 * Span::MILLISECOND.0);
    /// The longest period.
    pub const PERIOD_MAX: Span = Span(10 * Span::SECOND.0);
    /// The default number of session slots.
    pub const SESSION_SLOTS: u32 = 64;
    /// The most session slots.
    pub const SESSION_SLOTS_MAX: u32 = 256;
    /// The default window of a data node.
    pub const WINDOW: u32 = 64;
    /// The largest window.
    pub const WINDOW_MAX: u32 = 1000;
    /// The most operations in a period: what words of control can count.
    pub const COUNT_MAX: u64 = (1 << 26) - 1;

    /// How many operations of a period are so many per second.
    pub fn per_period(&self, rate: Iops) -> u64 {
        let count = u128::from(rate.0) * u128::from(self.period.0) / u128::from(Span::SECOND.0);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// The transport that carries out operations on a data node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryTransport {
    /// The processors of clients, at once.
    #[default]
    Shm,
    /// The same, behind the model of a NIC that does `capacity` in all and `client` for
    /// each.
    Model,
    /// RNICs, the client's and the node's.
    Verbs,
}
