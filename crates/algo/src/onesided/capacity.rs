//! Capacity estimate of a data node, in operations per period.
//!
//! # Model
//! The node's processor sees no operation, so its only source is what clients report that they have
//! done, U, and whether they wanted more. A profile of the idle node gives the first estimate, and
//! how far it strays: Ω_prof and σ.
//!
//! # Mechanism
//! *Paper* (Algorithm 1): if U equals Ω, Ω grows by η. If U is below Ω and not below Ω_prof − 3 σ,
//! it goes into a history of M periods, whose mean is the next Ω. Else Ω stays. Because of tokens
//! in hand and under way U equals Ω about never, so Ω does not come back after the node was slow;
//! and what takes more than 3 σ of it is never seen.
//!
//! *Sound*: four facts of a period decide.
//! - *Full*: all tokens were used.
//! - *Short*: a client had work and no token, and no tokens were left over.
//! - *Busy*: a client was backlogged, with as many operations under way as it may, and did less
//!   than it could have done alone in that time (by its own bound C_L): so the node was its limit.
//! - *Held*: the monitor held back pool tokens, for a client that was behind with its reservation.
//!
//! | full | short | busy | held | Ω |
//! |---|---|---|---|---|
//! | yes | yes | any | any | grows by a step |
//! | no | yes | no | any | grows by a step |
//! | no | no | yes | no | goes three quarters of the way to U |
//! | no | any | yes | yes | the same if the client did far less than alone; else see below |
//! | else | | | | stays |
//!
//! In the fourth row the node may have had nothing to do while tokens were held. It could have done
//! at least U in the rest of the period alone: Ω goes towards that, by a step at least, but not
//! below U.
//!
//! A step doubles each time in a row, from η ÷ 4 to 16 η, as nothing is known of how far it is.
//! After a step that was too much it is a quarter of that.
//!
//! Tokens that clients yield in the last moments of a period come too late for other clients, and
//! do not count as unused.
//!
//! Bounds. After a step of capacity by a fraction s the error is s ÷ 4^k after k periods down. Up
//! it takes log2(1 + 4 s ÷ η) periods, seven for 30 %, and as many again as it takes to come down
//! by what was too much, two or three. It stays within what a period's ends hide
//! ([`Lesson::slack`]), as what is unused there looks the same as a node that is slower: with a
//! line at the node that is no more than the monitor lets build up.

use alloc::collections::VecDeque;

use tidegate_model::Span;

use super::{COUNT_MAX, Mode};

/// The largest step is so many times η, and the smallest η ÷ [`SMALLEST`].
const LARGEST: u64 = 16;
const SMALLEST: u64 = 4;

/// A part of a period, in 255ths.
pub const WHOLE: u8 = 255;

/// From this part of a period on a client counts as starved: with all tokens at once it is only at
/// its end.
const STARVED: u8 = WHOLE / 50;

/// And from this part of a period on others as held back.
const HELD: u8 = WHOLE / 16;

/// And as backlogged.
const BACKLOGGED: u8 = WHOLE / 2;

/// The start value of an estimate and the parameters of its steps.
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

/// One client's use of a period that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeriodUsage {
    /// Operations that were done in it.
    pub completed: u64,
    /// For which part of it there was work and no token.
    pub starved: u8,
    /// For which part of it as many operations were under way as may be.
    pub backlogged: u8,
    /// Operations that it still had to begin when the period ended, if it counts them.
    pub unmet: Option<u64>,
}

/// A period that is over.
#[derive(Clone, Copy, Debug)]
pub struct Lesson<'a> {
    /// Tokens that could be used: Ω as it was then, but for what was yielded too late.
    pub tokens: u64,
    /// How many of them may be unused at a period's ends although all were wanted: what may be
    /// in flight where the node keeps up, and what comes while both sides poll once.
    pub slack: u64,
    /// Pool tokens that no client took.
    pub spare: u64,
    /// For which part of it the monitor held back pool tokens, in 255ths.
    pub held: u8,
    /// The outcome of each client.
    pub outcomes: &'a [PeriodUsage],
}

/// The effect of a period on the estimate.
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
    /// By how much it moves next if there is no evidence of how far, and how it moved last.
    step: u64,
    last: Verdict,
}

impl Estimator {
    /// Starts from a profile, or from what was learned before.
    pub fn new(mode: Mode, profile: Profile, learned: Option<u64>) -> Self {
        let capacity = learned.unwrap_or(profile.mean).clamp(1, COUNT_MAX);
        let (step, last) = (profile.increment, Verdict::Kept);
        Self { mode, profile, capacity, history: VecDeque::new(), step, last }
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
        let Lesson { tokens, slack, spare, held, outcomes } = *lesson;
        let is_full = used + slack >= tokens;
        let is_held = held >= HELD;
        let is_short = spare <= slack + tokens / 100
            && outcomes.iter().any(|outcome| outcome.starved >= STARVED);
        let busy = |part| outcomes.iter().any(|outcome| self.is_witness(outcome, part));
        match (is_full, is_short) {
            (full, true) if full || !busy(50) => {
                self.update_step(Verdict::Raised);
                self.capacity + self.step
            }
            (false, short) if (is_held || !short) && busy(50) => {
                let is_sure = !is_held || busy(4);
                self.update_step(Verdict::Lowered);
                let could = match is_sure {
                    true => used,
                    false => used * u64::from(WHOLE) / u64::from(WHOLE - held).max(1),
                };
                let step = if is_sure { 0 } else { self.step };
                let towards = could + self.capacity.saturating_sub(could) / 4;
                towards.min(self.capacity.saturating_sub(step)).max(used)
            }
            _ => self.capacity,
        }
    }

    /// Sees how large the next step is.
    fn update_step(&mut self, next: Verdict) {
        let Profile { increment, .. } = self.profile;
        self.step = match core::mem::replace(&mut self.last, next) {
            Verdict::Kept => self.step,
            last if last == next => (2 * self.step).min(LARGEST * increment),
            _ => (self.step / 4).max(increment / SMALLEST),
        };
    }

    /// Whether its backlog proves that the node was busy: alone it could have done a
    /// `part`th more in that time.
    fn is_witness(&self, outcome: &PeriodUsage, part: u64) -> bool {
        let PeriodUsage { completed, backlogged, .. } = *outcome;
        let alone = super::due(self.profile.local, Span(backlogged.into()), Span(WHOLE.into()));
        backlogged >= BACKLOGGED && completed < alone - alone / part
    }
}
