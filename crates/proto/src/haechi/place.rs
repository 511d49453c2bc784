//! Where the control words are, in bytes from the beginning of the region.
//!
//! What different parties write is in different cache lines. A region begins with a megabyte of
//! control area, of which little is used; data begins at [`DATA`].

/// What tells a region from other memory: "tidegate" as bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tidegate");

/// The version of this layout.
pub const VERSION: u64 = 1;

/// Clients of one data node.
pub const SEATS: u16 = 256;

/// Bytes of a cache line, which is what a grant and a report take.
pub const LINE: u64 = 64;

/// [`MAGIC`].
pub const HEADER: u64 = 0;
/// [`VERSION`].
pub const LAYOUT: u64 = 8;

/// The pool.
pub const POOL: u64 = 128;

/// Which monitor is at work: a number that grows with each.
pub const LEASE: u64 = 256;
/// What it has learned of the node's capacity, in operations per period.
pub const LEARNED: u64 = 264;

/// Zero, until the node goes on with a copy of the region: it writes something else here before it
/// begins to copy. Nobody else ever writes to its line, so that to look at it costs nothing.
pub const LEFT: u64 = 384;

/// A line for each of what the model of a network card shares.
pub const CARD: u64 = 512;

/// The grants, a line each.
pub const GRANTS: u64 = 4096;
/// The reports, a line each.
pub const REPORTS: u64 = GRANTS + SEATS as u64 * LINE;

/// Where data begins.
pub const DATA: u64 = 1 << 20;

/// The line of a seat in an area of lines.
pub const fn line(area: u64, seat: u16) -> u64 {
    area + seat as u64 * LINE
}
