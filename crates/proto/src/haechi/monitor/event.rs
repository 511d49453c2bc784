//! What a monitor tells.

use alloc::vec::Vec;

use tidegate_algo::haechi::admission::Refusal;
use tidegate_algo::haechi::capacity::{Outcome, Verdict};
use tidegate_algo::haechi::engine::Promise;

/// What happened that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A period is over.
    Over(Summary),
    /// A client stopped. Its tokens are given to others.
    Silent(u16),
    /// And has not come back: its seat is free. It is to be fenced off before the seat is given
    /// away.
    Evicted(u16),
    /// A client has given its seat back.
    Left(u16),
    /// A client did more than it had tokens for. It is to be fenced off.
    Overstepped {
        /// Which.
        seat: u16,
        /// Operations done and under way in the period.
        issued: u64,
        /// Tokens that it had.
        tokens: u64,
    },
    /// A client has not used its reservation in this many periods, and may have asked for too much.
    Unused {
        /// Which.
        seat: u16,
        /// Periods.
        periods: u32,
    },
    /// Another monitor has taken over. This one does nothing any more.
    Superseded,
}

/// A period that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its number.
    pub epoch: u64,
    /// Ω of it.
    pub capacity: u64,
    /// Pool tokens made and granted.
    pub minted: u64,
    /// Pool tokens granted.
    pub granted: u64,
    /// For which part of it pool tokens were held back, in 255ths.
    pub held: u8,
    /// What was learned.
    pub verdict: Verdict,
    /// What each client was promised and did, by seat; nothing for free seats.
    pub seats: Vec<Option<(Promise, Outcome)>>,
    /// Whether each had something to do when it ended, by what was last heard of it.
    pub busy: Vec<bool>,
}

/// Why a client gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// What it asks for cannot be promised.
    Infeasible(Refusal),
    /// There is no seat left, or no such seat.
    Full,
    /// Who has which seat has not been read yet.
    Opening,
}

impl core::fmt::Display for Denied {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Infeasible(refusal) => refusal.fmt(f),
            Self::Full => f.write_str("all seats of the data node are taken"),
            Self::Opening => {
                f.write_str("the data node has just begun, and reads who is there; ask again")
            }
        }
    }
}

impl core::error::Error for Denied {}
