//! Properties of a node's scheduler, checked against the papers.
//!
//! Two oracles give the order of requests: the papers' tags, given on arrival and in exact
//! fractions (`textbook`), and the module's own words, by looking at all tenants for each request
//! (`machine`). The rest are properties over time: the service of two tenants in every interval in
//! which both waited, at one node and at all nodes together, in a small world with gateways, nodes
//! and time (`cluster`). Those print the measured value beside the promised one:
//! `cargo test -p tidegate-algo --test laws -- --nocapture`.

mod changed_periods;
mod classes;
mod cluster;
mod debt;
mod delays;
mod machine;
mod minimum;
mod promises;
mod removed_slots;
mod textbook;
mod theorems;
mod tokens;
mod waits;

use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_model::Discipline;

/// Weights that divide the scheduler's unit, so that its order is that of exact fractions.
const WEIGHTS: [u32; 14] = [1, 2, 3, 4, 5, 7, 9, 12, 13, 16, 100, 300, 720_720, 1_000_000];

/// The virtual length of a part of 2^16 of a unit of work at weight one: all [`WEIGHTS`] divide
/// it.
const PART: u128 = 720_720 * 1_000_000;

/// Bounds that are whole parts: κ of 0, 1/2, 9/8, 2, 3, 8 and 18 and none at all.
fn bounds() -> [Bound; 8] {
    let half = |minimum| Bound::leaving(minimum, 1, 2);
    [500_000, 400_000, 320_000, 250_000, 200_000, 100_000, 50_000, 0].map(half)
}

/// Factors of work and delays: the largest products are just below 2^32.
const SCALES: [u32; 2] = [1, 20_000_000];

/// Returns the delay that a discipline applies, in parts of 2^16 of a unit of work; debts aside.
fn applied_delay(discipline: Discipline, bound: Bound, work: u32, delay: u32) -> u64 {
    let delay = u64::from(delay) << 16;
    match discipline {
        Discipline::DsfqTotal => delay,
        Discipline::DsfqHybrid => delay.min(bound.of(work)),
        _ => 0,
    }
}

/// SplitMix64: numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From the first to the last, both included.
    fn within(&mut self, (first, last): (u32, u32)) -> u32 {
        first + (self.next() % u64::from(last - first + 1)) as u32
    }
}
