//! Memory layout of Haechi's control words in a data node's region, in bytes from its beginning.
//!
//! Node and clients write to different cache lines. A region begins with a megabyte of control
//! area, most of it unused; data begins at [`DATA`].

use tidegate_model::SessionSlot;

/// The number that marks memory as a region: "tidegate" as bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tidegate");

/// The version of this layout.
pub const VERSION: u64 = 1;

/// Clients of one data node.
pub const SESSION_SLOTS: u16 = 256;

/// Bytes of a cache line: the size of a grant and of a report.
pub const LINE: u64 = 64;

/// [`MAGIC`].
pub const HEADER: u64 = 0;
/// [`VERSION`].
pub const LAYOUT: u64 = 8;

/// The pool.
pub const POOL: u64 = 128;

/// The lease: the number of the monitor at work, which grows with each new monitor.
pub const LEASE: u64 = 256;
/// The learned capacity of the node, in operations per period.
pub const LEARNED: u64 = 264;

/// Zero, until the node goes on with a copy of the region: it writes another value here before it
/// begins to copy. No client ever writes to this line, so reading it costs nothing.
pub const LEFT: u64 = 384;

/// The shared state of the modelled NIC, a line for each item.
pub const NIC: u64 = 512;

/// The grants, a line each.
pub const GRANTS: u64 = 4096;
/// The reports, a line each.
pub const REPORTS: u64 = GRANTS + SESSION_SLOTS as u64 * LINE;

/// Where data begins.
pub const DATA: u64 = 1 << 20;

/// The line of a session slot in an area of lines.
pub const fn line(area: u64, session_slot: SessionSlot) -> u64 {
    area + session_slot.index() as u64 * LINE
}
