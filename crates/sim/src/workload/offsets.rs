//! Offsets of requests: sequential, uniformly random, or skewed to few offsets.

use serde::Deserialize;
use tidegate_model::Bytes;

use super::WorkloadPlan;
use crate::keys::Keys;
use crate::rng::Stream;
use crate::scenario::{ScenarioError, must};

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Offsets {
    /// Each where the one before ended; from the start again when one no longer fits.
    Sequential,
    /// Anywhere, each place equally likely.
    Uniform,
    /// The place of rank `k` in proportion to `k^-s`, for instance `{ zipf = 0.99 }`; `s` is from 0
    /// to 4. Ranks lie in no order.
    Zipf(f64),
}

impl Offsets {
    pub(super) fn check(self) -> Result<(), ScenarioError> {
        let known = !matches!(self, Self::Zipf(exponent) if !(0.0..=4.0).contains(&exponent));
        must(known, "offsets.zipf: from 0.0 to 4.0")
    }
}

/// The same, ready to be drawn from.
///
/// Random places are multiples of `align` at which even the largest request ends within the space,
/// so that where a request goes does not depend on its size.
#[derive(Clone, Debug)]
pub(super) enum OffsetGenerator {
    Sequential { space: Bytes, next: Bytes },
    Random { align: Bytes, keys: Keys },
}

impl OffsetGenerator {
    pub(super) fn new(
        plan: &WorkloadPlan,
        offsets: Offsets,
        largest: Bytes,
        random: &mut Stream,
    ) -> Self {
        let WorkloadPlan { space, align, .. } = *plan;
        let count = (space.0 - largest.0) / align.0 + 1;
        match offsets {
            Offsets::Sequential => Self::Sequential { space, next: Bytes::ZERO },
            Offsets::Uniform => Self::Random { align, keys: Keys::uniform(count) },
            Offsets::Zipf(exponent) => {
                Self::Random { align, keys: Keys::zipf(count, exponent, random.draw()) }
            }
        }
    }

    pub(super) fn draw(&mut self, bytes: Bytes, random: &mut Stream) -> Bytes {
        match self {
            Self::Random { align, keys } => Bytes(keys.draw(random) * align.0),
            Self::Sequential { space, next } => {
                let fits = bytes.0 <= space.0 - next.0;
                let offset = if fits { *next } else { Bytes::ZERO };
                *next = Bytes(offset.0 + bytes.0);
                offset
            }
        }
    }
}
