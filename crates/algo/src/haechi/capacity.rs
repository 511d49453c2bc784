//! How many operations the node can do in a period.
//!
//! # Model
//! The node's processor sees no operation, so all there is to go by is what clients say they have
//! done, U, and whether they wanted more. A profile of the idle node gives the first estimate, and
//! how far it strays: Ω_prof and σ.
//!
//! # Mechanism
//! *Paper* (Algorithm 1): if U equals Ω, Ω grows by η. If U is below Ω and not below Ω_prof − 3 σ,
//! it goes into a history of M periods, whose mean is the next Ω. Else Ω stays. Because of tokens
//! in hand and under way U equals Ω about never, so Ω does not come back after the node was slow;
//! and what takes more than 3 σ of it is never seen.
//!
//! *Sound*: who wanted more decides.
//! - Somebody was *starved*, with work and without a token, and U comes up to Ω: Ω is too small. It
//!   grows by η, and twice as much with each period in a row, as nothing is known of how far it is.
//!   When that proves to be too much, the next attempt is made a period later than the one before,
//!   at most [`PATIENCE`] periods.
//! - U is below Ω, somebody was *backlogged*, with as many operations under way as it may, and
//!   nobody was starved: the node did all it could, and that was U. Ω goes three quarters of the
//!   way there. Who did as much as a client can do alone (C_L) is no witness.
//! - Both or neither: nothing is learned.
//!
//! Bounds. After a step of capacity by a fraction s the error is s ÷ 4^k after k periods down, and
//! up it takes log2(1 + s ÷ η) periods.

use alloc::collections::VecDeque;

use tidegate_model::Span;

use super::{COUNT_MAX, Mode};

/// How often the increment doubles at most.
const DOUBLINGS: u32 = 4;

/// For how many periods at most an estimate stays that was too high when it was raised last.
pub const PATIENCE: u32 = 4;

/// A part of a period, in 255ths.
pub const WHOLE: u8 = 255;

/// From this part of a period on a client counts as starved.
const STARVED: u8 = WHOLE / 8;

/// And as backlogged.
const BACKLOGGED: u8 = WHOLE / 2;

/// What an estimate starts from and how it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Ω_prof: operations per period of the idle node.
    pub mean: u64,
    /// σ of it.
    pub deviation: u64,
    /// C_L: operations per period that one client can do.
    pub local: u64,
    /// η: what the estimate grows by.
    pub increment: u64,
    /// M: periods of history.
    pub history: usize,
}

impl Profile {
    /// Of a node that did so many operations in each period of a profiling run.
    ///
    /// Returns nothing for no sample. η is a hundredth and M is 5, which the paper leaves open.
    pub fn of(samples: &[u64], local: u64) -> Option<Self> {
        let count = u64::try_from(samples.len()).ok().filter(|count| *count > 0)?;
        let mean = samples.iter().sum::<u64>() / count;
        let squares = samples.iter().map(|sample| u128::from(sample.abs_diff(mean)).pow(2));
        let variance = squares.sum::<u128>() / u128::from(count);
        let deviation = u64::try_from(variance.isqrt()).unwrap_or(u64::MAX);
        Some(Self { mean, deviation, local, increment: (mean / 100).max(1), history: 5 })
    }
}

/// What a client did in a period that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations that were done in it.
    pub completed: u64,
    /// For which part of it there was work and no token.
    pub starved: u8,
    /// For which part of it as many operations were under way as may be.
    pub backlogged: u8,
}

/// A period that is over.
#[derive(Clone, Copy, Debug)]
pub struct Lesson<'a> {
    /// Ω as it was then.
    pub tokens: u64,
    /// How many operations may be under way together.
    pub windows: u64,
    /// For which part of it the monitor held back pool tokens, in 255ths.
    pub held: u8,
    /// What each client did.
    pub outcomes: &'a [Outcome],
}

/// What was learned from a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node can do more.
    Raised,
    /// It could not do as much.
    Lowered,
    /// Nothing.
    Kept,
}

/// The estimate of a node's capacity.
#[derive(Clone, Debug)]
pub struct Estimator {
    mode: Mode,
    profile: Profile,
    capacity: u64,
    history: VecDeque<u64>,
    /// How often in a row it was raised.
    raised: u32,
    /// How many periods it stays after it was too high, and how many of them are left.
    pause: u32,
    resting: u32,
}

impl Estimator {
    /// Starts from what a profile says, or from what was learned before.
    pub fn new(mode: Mode, profile: Profile, learned: Option<u64>) -> Self {
        let capacity = learned.unwrap_or(profile.mean).clamp(1, COUNT_MAX);
        Self { mode, profile, capacity, history: VecDeque::new(), raised: 0, pause: 0, resting: 0 }
    }

    /// Ω: operations per period.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes in what all clients did in a period.
    pub fn learn(&mut self, lesson: &Lesson<'_>) -> Verdict {
        let used: u64 = lesson.outcomes.iter().map(|outcome| outcome.completed).sum();
        let next = match self.mode {
            Mode::Paper => self.text(used),
            Mode::Sound => self.sound(lesson, used),
        };
        let before = core::mem::replace(&mut self.capacity, next.clamp(1, COUNT_MAX));
        match self.capacity.cmp(&before) {
            core::cmp::Ordering::Greater => Verdict::Raised,
            core::cmp::Ordering::Less => Verdict::Lowered,
            core::cmp::Ordering::Equal => Verdict::Kept,
        }
    }

    fn text(&mut self, used: u64) -> u64 {
        let Profile { mean, deviation, increment, history, .. } = self.profile;
        let least = mean.saturating_sub(3 * deviation);
        if used == self.capacity {
            return self.capacity + increment;
        }
        if !(least..self.capacity).contains(&used) {
            return self.capacity;
        }
        self.history.push_back(used);
        if self.history.len() > history {
            self.history.pop_front();
        }
        self.history.iter().sum::<u64>() / self.history.len() as u64
    }

    fn sound(&mut self, lesson: &Lesson<'_>, used: u64) -> u64 {
        let Lesson { tokens, windows, held, outcomes } = *lesson;
        // What may be under way at both ends, and a period's grain.
        let slack = windows + tokens / 500;
        let is_full = used + slack >= tokens;
        let starved = outcomes.iter().any(|outcome| outcome.starved >= STARVED);
        // Whom the monitor made wait for somebody who was behind says nothing of the capacity.
        let starved = starved && held < STARVED;
        let witness = outcomes.iter().any(|outcome| self.is_witness(outcome));
        let raised = core::mem::take(&mut self.raised);
        match (is_full, starved, witness) {
            (true, true, _) if self.resting > 0 => {
                self.resting -= 1;
                self.capacity
            }
            (true, true, _) => {
                self.raised = (raised + 1).min(DOUBLINGS);
                // Twice in a row is more than a trial.
                self.pause = if raised > 0 { 0 } else { self.pause };
                self.capacity + (self.profile.increment << raised)
            }
            (false, false, true) => {
                if raised > 0 {
                    self.pause = (self.pause + 1).min(PATIENCE);
                }
                self.resting = self.pause;
                used + self.capacity.saturating_sub(used) / 4
            }
            _ => self.capacity,
        }
    }

    fn is_witness(&self, outcome: &Outcome) -> bool {
        let Outcome { completed, backlogged, .. } = *outcome;
        let alone = super::due(self.profile.local, Span(backlogged.into()), Span(WHOLE.into()));
        backlogged >= BACKLOGGED && completed < alone - alone / 50
    }
}
