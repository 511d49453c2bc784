//! A packet in the network, as a plain value.
//!
//! A simulated second at 100 Gbit/s is some ten million packets and six hops for each. So a packet
//! is forty bytes that are copied with its event, and nothing is allocated for it. Properties that
//! all packets of a flow share (its ends, its sizes, its congestion control) stay with the flow. A
//! packet has the inputs of a switch's decisions (class, congestion mark, size), and the reports of
//! the ends to each other (sequence, mark, time).
//!
//! A table of the network has the routes: one there and one back for each flow. A packet carries
//! the index of its next port in that table, so forwarding is one look-up.

use tidegate_model::Class;

use tidegate_sim::time::Picoseconds;

/// The number of a flow: a connection's data in one direction, with what is answered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// A packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Data: the number of its first payload byte. Acknowledgement: that of the first byte that is
    /// still missing.
    pub sequence: u64,
    /// Data: when its first bit left. Acknowledgement: the same of the packet that it answers, so
    /// that the sender sees one round trip without keeping a list.
    pub sent: Picoseconds,
    /// The flow that it belongs to.
    pub flow: FlowId,
    /// The index of its next port in the network's table of routes.
    pub route: u32,
    /// Acknowledgement: how many bytes after `sequence` the payload starts that it answers; zero if
    /// nothing is missing before it. A selective acknowledgement (RFC 2018) of one packet.
    pub ahead: u32,
    /// Bytes for the receiver: 0 to 9,000.
    pub payload: u16,
    /// Bytes that take time on a wire and room in a buffer: the payload and every header.
    pub wire: u16,
    /// Its purpose.
    pub kind: PacketKind,
    /// Which queue it waits in.
    pub class: Class,
    /// Whether it met congestion.
    pub mark: Mark,
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Carries payload.
    Data,
    /// Says what has arrived.
    Acknowledgement,
    /// Notifies a sender by rate that a packet of its met congestion (DCQCN's CNP).
    Notification,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Its sender ignores marks: a switch that would mark it drops it.
    Incapable,
    /// No congestion so far.
    Clear,
    /// Congestion experienced. In an acknowledgement: the packet that it answers was marked.
    Congested,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the event's own number and the queue's links it stays within a cache line.
    #[test]
    fn a_packet_is_forty_bytes() {
        assert_eq!(size_of::<Packet>(), 40);
    }
}
