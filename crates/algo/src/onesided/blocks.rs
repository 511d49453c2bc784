//! Free blocks of a data node's store: how many of them one client may hold without a value.
//!
//! # Problem
//! All clients take blocks from one pool. An update takes a block and leaves another one, which
//! rests before its client may use it again. A client that updates fast enough would hold all free
//! blocks at rest, and the puts of all other clients would fail as in a full store. A fixed bound
//! wastes blocks while few clients are active, and does not add up once many are.
//!
//! # Model
//! A client *holds* the blocks that it took from the pool or removed from the index, and that no
//! key has. Blocks with a value belong to the store. Each client reads the number of free blocks
//! before it takes some. No process stands between the pool and the client, so the client itself
//! evaluates the rule, from these two numbers alone.
//!
//! # Mechanism
//! The *dynamic threshold* of shared-memory switches (Choudhury and Hahne): a client may hold at
//! most α times the blocks that stay free, with α = [`FACTOR`]. So a client that is alone gets two
//! thirds of the blocks, and what is left shrinks with the number of greedy clients but never
//! disappears. Two departures keep a minimum: an eighth of all blocks is a *reserve* that does not
//! count as free, and each client may hold its equal part of the reserve in any case.
//!
//! Example: a store of 3,900 blocks without keys has a reserve of 487, and one block of it is
//! guaranteed to each of 256 clients. A greedy client stops at 1 + 2 × (1,625 − 487) = 2,275 held
//! blocks up to rounding, and leaves 1,625. A second one stops at some 760 blocks.
//!
//! # Bounds
//! As long as keys leave the reserve free, each client can take its guaranteed blocks at any time.
//! k greedy clients that grow together leave one part in 2k + 1 of the blocks beyond the reserve;
//! one after another, each leaves a third of what it found, until a sweep returns blocks at rest
//! and clients take blocks anew. New keys may use the reserve, too: a store is full only when no
//! block is free.

/// α: how many blocks a client may hold for each one that stays free. A larger factor lets one
/// client update faster, a smaller one leaves more to the next client. Chosen by hand among the
/// powers of two that switches use: with 1, a client that is alone would have half of the blocks.
const FACTOR: u32 = 2;

/// One of this many blocks is in the reserve. Chosen by hand, below the quarter of free blocks at
/// which the node begins to sweep.
const RESERVE: u32 = 8;

/// The bound on what one client of a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockThreshold {
    /// Free blocks that only guaranteed requests take.
    reserve: u32,
    /// How many blocks each client may hold, however few are free.
    guaranteed: u32,
}

impl BlockThreshold {
    /// The bound in a store of so many blocks, with so many session slots for its clients.
    pub const fn new(blocks: u32, session_slots: u16) -> Self {
        let reserve = blocks / RESERVE;
        let slots = if session_slots == 0 { 1 } else { session_slots as u32 };
        // A client that could hold no block could put nothing.
        let guaranteed = if reserve < slots { 1 } else { reserve / slots };
        Self { reserve, guaranteed }
    }

    /// How many of the wanted blocks a client may take that holds `held`, while `free` are free.
    pub fn grant(&self, held: u32, free: u32, wanted: u32) -> u32 {
        let guaranteed = self.guaranteed.saturating_sub(held);
        // The most blocks c with held + c <= guaranteed + FACTOR x (free - c - reserve).
        let beyond = free.saturating_sub(self.reserve);
        let most = u64::from(self.guaranteed) + u64::from(FACTOR) * u64::from(beyond);
        let shared = most.saturating_sub(u64::from(held)) / (1 + u64::from(FACTOR));
        let shared = u32::try_from(shared).unwrap_or(u32::MAX).min(beyond);
        guaranteed.max(shared).min(free).min(wanted)
    }
}
