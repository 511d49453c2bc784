//! Events that a monitor emits.

use alloc::vec::Vec;

use tidegate_algo::onesided::admission::ReservationRefusal;
use tidegate_algo::onesided::capacity::{PeriodUsage, Verdict};
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::SessionSlot;

/// An event of a monitor, for the data node that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorEvent {
    /// A period is over.
    Over(Summary),
    /// A client stopped. Its tokens are given to other clients.
    Silent(SessionSlot),
    /// A silent client has not come back, so its session slot is free. It is to be fenced off
    /// before the slot is given away.
    Evicted(SessionSlot),
    /// A client has given its session slot back.
    Left(SessionSlot),
    /// A client did more than it had tokens for. It is to be fenced off.
    Overstepped {
        /// Which.
        session_slot: SessionSlot,
        /// Operations done and under way in the period.
        issued: u64,
        /// Tokens that it had.
        tokens: u64,
    },
    /// A client has not used its reservation in this many periods: it may be too large.
    Unused {
        /// Which.
        session_slot: SessionSlot,
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
    /// The verdict of the capacity estimator.
    pub verdict: Verdict,
    /// Promise and outcome of each client, by session slot; none for free slots.
    pub session_slots: Vec<Option<(Promise, PeriodUsage)>>,
    /// Whether each client had work when the period ended, by its last report.
    pub busy: Vec<bool>,
}

/// Why a client gets no session slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The requested promise cannot be kept.
    #[error("{0}")]
    Infeasible(ReservationRefusal),
    /// There is no session slot left, or no such session slot.
    #[error("all session slots of the data node are taken")]
    Full,
    /// The monitor has not yet read which client has which session slot.
    #[error("the data node has just begun, and reads who is there; ask again")]
    Opening,
}
