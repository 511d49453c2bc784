//! Sizes of requests: constant, a number of blocks, or drawn from a table.

use serde::Deserialize;
use tidegate_model::Bytes;

use crate::rng::Stream;
use crate::scenario::{ScenarioError, must, text};

/// The largest request, 1 GiB; larger ones are split by every system that there is.
pub(super) const LARGEST: Bytes = Bytes(1 << 30);

/// How much a request moves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Sizes {
    /// Always the same: `{ fixed = "4KiB" }`.
    Fixed(#[serde(deserialize_with = "text")] Bytes),
    /// A number of blocks, each equally likely: `{ uniform = { block = "4KiB", least = 5, most =
    /// 30 } }`.
    Uniform(Blocks),
    /// One of some, each in proportion to its weight: `{ table = [["8KiB", 26], ["16KiB", 1]] }`.
    Table(Vec<Row>),
}

/// So many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// How large one is.
    #[serde(deserialize_with = "text")]
    pub block: Bytes,
    /// The least number, at least 1.
    pub least: u32,
    /// The greatest number.
    pub most: u32,
}

/// A size, and how often it occurs beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Row(#[serde(deserialize_with = "text")] pub Bytes, pub u32);

impl Sizes {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let whole = |size: Bytes| size.0 > 0 && size <= LARGEST;
        match self {
            Self::Fixed(size) => must(whole(*size), "sizes.fixed: from 1 byte to 1 GiB"),
            Self::Uniform(Blocks { block, least, most }) => {
                must(0 < *least && least <= most, "sizes.uniform: least from 1 to most")?;
                let fits = whole(*block) && block.0.saturating_mul(u64::from(*most)) <= LARGEST.0;
                must(fits, "sizes.uniform: most times block is from 1 byte to 1 GiB")
            }
            Self::Table(rows) => {
                must(rows.iter().all(|row| whole(row.0)), "sizes.table: from 1 byte to 1 GiB")?;
                let some = rows.iter().any(|row| row.1 > 0);
                must(some, "sizes.table: at least one row with a weight")
            }
        }
    }

    /// The largest that there can be.
    pub fn largest(&self) -> Bytes {
        match self {
            Self::Fixed(size) => *size,
            Self::Uniform(Blocks { block, most, .. }) => Bytes(block.0 * u64::from(*most)),
            Self::Table(rows) => {
                rows.iter().filter(|row| row.1 > 0).map(|row| row.0).max().unwrap_or_default()
            }
        }
    }

    /// The mean, exactly: so many bytes in so many requests.
    pub fn mean(&self) -> [u128; 2] {
        match self {
            Self::Fixed(size) => [u128::from(size.0), 1],
            Self::Uniform(Blocks { block, least, most }) => {
                [u128::from(block.0) * (u128::from(*least) + u128::from(*most)), 2]
            }
            Self::Table(rows) => rows.iter().fold([0, 0], |[bytes, weights], Row(size, weight)| {
                let weight = u128::from(*weight);
                [bytes + u128::from(size.0) * weight, weights + weight]
            }),
        }
    }
}

/// The same, ready to be drawn from.
#[derive(Clone, Debug)]
pub(super) enum SizeGenerator {
    Fixed(Bytes),
    Uniform(Blocks),
    /// Sizes, with the sum of the weights up to each, itself included.
    Table(Vec<(u64, Bytes)>),
}

impl SizeGenerator {
    pub(super) fn new(sizes: &Sizes) -> Self {
        match sizes {
            Sizes::Fixed(size) => Self::Fixed(*size),
            Sizes::Uniform(blocks) => Self::Uniform(*blocks),
            Sizes::Table(rows) => {
                let sums = rows.iter().scan(0, |sum, Row(size, weight)| {
                    *sum += u64::from(*weight);
                    Some((*sum, *size))
                });
                Self::Table(sums.collect())
            }
        }
    }

    pub(super) fn draw(&self, random: &mut Stream) -> Bytes {
        match self {
            Self::Fixed(size) => *size,
            Self::Uniform(Blocks { block, least, most }) => {
                Bytes(block.0 * random.within(u64::from(*least), u64::from(*most)))
            }
            Self::Table(sums) => {
                let total = sums.last().map_or(0, |(sum, _)| *sum);
                let point = random.below(total);
                sums[sums.partition_point(|(sum, _)| *sum <= point)].1
            }
        }
    }
}
