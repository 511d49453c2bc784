//! Reservations and limits for one-sided (RDMA) I/O, as in Haechi (Liu and Varman).
//!
//! # Problem
//! Clients read and write the memory of a data node by one-sided operations. The node's processor
//! sees none of them, so no scheduler there can give a client what it was promised: a client that
//! issues more gets more.
//!
//! # Model
//! Time goes by in *periods*. The node can do so many operations in one, its *capacity* Ω, and
//! promises each client R of them if it requests them in time. One token is the right to one
//! operation. At the beginning of a period each client is given R *reservation tokens*; the others,
//! Ω − ΣR, are *pool tokens*, which a client that has used up its own takes in batches from one
//! word in the node's memory, by a one-sided fetch-and-add. A client without demand yields its
//! reservation tokens bit by bit, and they become pool tokens (*conversion*), so that no operation
//! is lost.
//!
//! # Mechanism
//! [`engine`] holds the tokens of one client. [`monitor`] decides how many pool tokens there are.
//! [`capacity`] learns Ω from period to period, and [`admission`] refuses what cannot be promised.
//! [`blocks`] bounds the free blocks that a client of the node's key-value store may hold.
//! Both sides read the clock themselves and derive what is due from the time that has passed,
//! never from the number of times they read it.
//!
//! There are two sets of [`Rules`]. *Paper* is the text as it stands. *Sound* departs from it where
//! the text loses a promise; where and why stands in the modules. Each module's may be chosen by
//! itself, to see what it does.
//!
//! Bounds. Counts are below 2^26 per client and period, as the words that carry them are.

pub mod admission;
pub mod blocks;
pub mod capacity;
pub mod engine;
pub mod monitor;

use tidegate_model::{Span, Time};

/// The largest count of operations in a period, of one client or of the node: what words carry.
pub const COUNT_MAX: u64 = (1 << 26) - 1;

/// Which rules a data node and its clients go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// By which a client loses tokens: [`engine`].
    pub tokens: Mode,
    /// By which there are pool tokens: [`monitor`].
    pub pool: Mode,
    /// By which the capacity is learned, and promised: [`capacity`], [`admission`].
    pub capacity: Mode,
    /// Whether what clients yield becomes pool tokens. Without it this is Basic Haechi.
    pub converts: bool,
    /// Whether tokens are given out over the period at the rate at which they can be used, rather
    /// than all at its beginning. Sound pools only.
    pub paces: bool,
    /// How finely all this is done.
    pub grain: Grain,
}

impl Rules {
    /// The text.
    pub const PAPER: Self = Self {
        tokens: Mode::Paper,
        pool: Mode::Paper,
        capacity: Mode::Paper,
        converts: true,
        paces: false,
        grain: Grain::CHOSEN,
    };
    /// The text without conversion.
    pub const BASIC: Self = Self { converts: false, ..Self::PAPER };
    /// The sound rules, with pacing.
    pub const SOUND: Self = Self { paces: true, ..Self::UNPACED };
    /// The sound rules, with all tokens at the beginning of a period.
    pub const UNPACED: Self =
        Self { tokens: Mode::Sound, pool: Mode::Sound, capacity: Mode::Sound, ..Self::PAPER };
}

/// The rules of the paper, or sound ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As in the paper, also where that loses a promise.
    Paper,
    /// With the departures that [`engine`], [`monitor`] and [`capacity`] list.
    Sound,
}

/// How finely time and tokens are divided: what could be chosen otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// How often both sides evaluate the time that has passed: δ and the check interval.
    pub tick: Span,
    /// Pool tokens to take at a time, at most: B.
    pub batch: u16,
    /// Paced reservation tokens are all due this part of a period before its end, so that a client
    /// that others held up can catch up in it; at least 1.
    pub margin: u64,
}

impl Grain {
    /// The paper's δ, check interval and B.
    pub const CHOSEN: Self = Self { tick: Span::MILLISECOND, batch: 1_000, margin: 50 };
}

/// The part of `count` that is due when `passed` of a period is over: `count × passed ÷ period`,
/// rounded down, and all of it from the period's end on.
pub(crate) fn due(count: u64, passed: Span, period: Span) -> u64 {
    if passed.0 >= period.0 {
        return count;
    }
    // Less than `count`, so it fits.
    (u128::from(count) * u128::from(passed.0) / u128::from(period.0)) as u64
}

/// One period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its number, from 1; 0 is before the first.
    pub epoch: u64,
    /// When it began.
    pub begun: Time,
    /// How long it takes.
    pub length: Span,
}

impl Period {
    /// The part of `count` that is due at `now`.
    pub fn due(&self, count: u64, now: Time) -> u64 {
        due(count, now.since(self.begun), self.length)
    }

    /// The part of `count` that is due at `now` if all of it is to be due a [margin](Grain)th of
    /// the period before its end.
    pub fn due_early(&self, count: u64, margin: u64, now: Time) -> u64 {
        due(count, now.since(self.begun), self.early(margin))
    }

    /// How long it takes until all paced reservation tokens are due.
    pub fn early(&self, margin: u64) -> Span {
        Span(self.length.0 - self.length.0 / margin)
    }

    /// When it is over.
    pub fn end(&self) -> Time {
        self.begun.after(self.length)
    }
}
