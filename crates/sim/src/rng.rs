//! Randomness with one source: a seed per run, a named stream per component.
//!
//! **Problem.** If components shared one generator, a message more on one link would change every
//! service time that follows, and two runs that differ in one parameter could not be compared.
//!
//! **Mechanism.** Draw `k` of a stream is `mix(seed·A + stream·B + (k+1)·C)`, with SplitMix64's
//! finaliser for `mix`: a function of three numbers and not a chain of states, so a stream is
//! sixteen bytes, starts anywhere, and never meets another. A stream's number comes from the name
//! of the component and its index.
//!
//! Everything here is integer arithmetic: a logarithm or a power of the mathematics library may
//! differ in the last bit from one platform to the next, and with it the order of events. So
//! exponential times are made by comparison of uniform numbers alone ([`Stream::exponential`]),
//! and Zipf's weights by integer square roots ([`Zipf`]).

use crate::time::Picoseconds;

/// The random numbers of one component.
///
/// ```
/// use tidegate_sim::rng::Stream;
/// let draw = |seed, name, index| Stream::new(seed, name, index).draw();
/// assert_eq!(draw(7, "arrivals", 3), draw(7, "arrivals", 3));
/// assert_ne!(draw(7, "arrivals", 3), draw(8, "arrivals", 3));
/// assert_ne!(draw(7, "arrivals", 3), draw(7, "arrivals", 4));
/// assert_ne!(draw(7, "arrivals", 3), draw(7, "device", 3));
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    base: u64,
    drawn: u64,
}

const SEED_STEP: u64 = 0xD134_2543_DE82_EF95;
const STREAM_STEP: u64 = 0xA076_1D64_78BD_642F;
const DRAW_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's finaliser: every bit of the input changes each bit of the output half of the time.
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

impl Stream {
    /// The stream of the component called `name`, number `index` of its kind, in the run of `seed`.
    pub fn new(seed: u64, name: &str, index: u64) -> Self {
        // FNV-1a; the index is mixed in as if it were the last letter.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let stream = mix(hash.wrapping_add(index.wrapping_mul(DRAW_STEP)));
        let base = seed.wrapping_mul(SEED_STEP).wrapping_add(stream.wrapping_mul(STREAM_STEP));
        Self { base, drawn: 0 }
    }

    /// The next number, any of 2⁶⁴ equally likely.
    pub const fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        mix(self.base.wrapping_add(self.drawn.wrapping_mul(DRAW_STEP)))
    }

    /// A number below `bound`, each equally likely; zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire's multiplication: the high half is the answer; the low half identifies the few
        // draws that would make small answers a little likelier.
        let threshold = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let product = u128::from(self.draw()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number from `least` to `most`, both possible, each equally likely.
    ///
    /// # Panics
    /// If `least` is greater than `most`.
    pub fn within(&mut self, least: u64, most: u64) -> u64 {
        assert!(least <= most, "nothing lies from {least} to {most}");
        match (most - least).checked_add(1) {
            Some(count) => least + self.below(count),
            None => self.draw(),
        }
    }

    /// Whether something happens that happens `per_million` times in a million.
    pub fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// A time between events that have no memory, with this mean.
    ///
    /// After von Neumann (1951): draw `u₁ > u₂ > … > uₙ ≤ uₙ₊₁`. The run's length `n` is odd with
    /// probability e^-u₁, so accepting u₁ then gives the fraction of an exponential number; each
    /// run with an even `n`, of probability 1/e, adds one whole. It takes 4.3 draws on average.
    pub fn exponential(&mut self, mean: Picoseconds) -> Picoseconds {
        let mut whole = 0u128;
        loop {
            let first = self.draw();
            let (mut last, mut odd) = (first, true);
            loop {
                let next = self.draw();
                if next >= last {
                    break;
                }
                (last, odd) = (next, !odd);
            }
            if odd {
                let times = (whole << 64) | u128::from(first);
                return Picoseconds(((u128::from(mean.0) * times) >> 64) as u64);
            }
            whole += 1;
        }
    }

    /// Puts `items` into any order, each equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Some `count` of the numbers below `bound`, in a random order; all of them if there are not
    /// more.
    pub fn choose(&mut self, count: usize, bound: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..bound).collect();
        let count = count.min(bound);
        for index in 0..count {
            let other = index + self.below((bound - index) as u64) as usize;
            all.swap(index, other);
        }
        all.truncate(count);
        all
    }
}

/// Zipf's distribution over ranks from zero: rank `j` has the weight `(j+1)^-s`.
///
/// ```
/// use tidegate_sim::rng::{Stream, Zipf};
/// let zipf = Zipf::new(8, 1); // s = 1/2
/// let mut random = Stream::new(1, "example", 0);
/// assert!(zipf.draw(&mut random) < 8);
/// assert_eq!(zipf.weight(0), 2 * zipf.weight(3));
/// ```
#[derive(Clone, Debug)]
pub struct Zipf {
    /// The sum of the weights up to each rank, itself included.
    sums: Vec<u64>,
}

/// The weight of rank 0: forty bits, so that even 2²³ ranks have a sum that fits.
const UNIT: u64 = 1 << 40;

impl Zipf {
    /// The distribution over `count` ranks with the exponent `s = halves / 2`.
    ///
    /// # Panics
    /// If there are no ranks, or more than 2²³.
    pub fn new(count: usize, halves: u32) -> Self {
        assert!((1..=1 << 23).contains(&count), "Zipf's distribution over {count} ranks");
        let weights = (1..=count as u128).map(|rank| weight(rank, halves));
        let sums = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { sums: sums.collect() }
    }

    /// A rank, by inversion of the cumulative distribution.
    pub fn draw(&self, random: &mut Stream) -> usize {
        let total = self.sums.last().copied().unwrap_or(0);
        let point = random.below(total);
        self.sums.partition_point(|sum| *sum <= point)
    }

    /// The weight of a rank, 2⁴⁰ for rank zero; at least one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn weight(&self, rank: usize) -> u64 {
        self.sums[rank] - rank.checked_sub(1).map_or(0, |below| self.sums[below])
    }
}

/// `UNIT · rank^(-halves/2)` as the root of `UNIT² / rank^halves`, rounded down, at least one.
fn weight(rank: u128, halves: u32) -> u64 {
    let square = u128::from(UNIT).pow(2);
    let power = rank.saturating_pow(halves);
    ((square / power).isqrt() as u64).max(1)
}

/// Divides `total` in proportion to `weights` into whole parts that sum to it: each gets its share
/// rounded down, and what is left goes one by one to the largest remainders, the first of equals.
/// Without any weight, all of it goes nowhere.
///
/// ```
/// use tidegate_sim::rng::apportion;
/// assert_eq!(apportion(10, &[1, 1, 1]), [4, 3, 3]);
/// assert_eq!(apportion(7, &[0, 5, 2]), [0, 5, 2]);
/// ```
pub fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut amounts: Vec<u64> = weights.iter().map(|weight| (exact(weight) / sum) as u64).collect();
    let left = total - amounts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|at| core::cmp::Reverse(exact(&weights[*at]) % sum));
    order.iter().take(left as usize).for_each(|at| amounts[*at] += 1);
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn amounts_sum_and_are_near(
            total: u32,
            weights in prop::collection::vec(0u64..1000, 1..20),
        ) {
            let amounts = apportion(u64::from(total), &weights);
            let sum: u64 = weights.iter().sum();
            prop_assume!(sum > 0);
            prop_assert_eq!(amounts.iter().sum::<u64>(), u64::from(total));
            for (amount, weight) in amounts.iter().zip(&weights) {
                let exact = u64::from(total) * weight;
                prop_assert!((amount * sum).abs_diff(exact) < sum);
            }
        }

        #[test]
        fn within_its_bounds(seed: u64, least: u64, count in 0u64..1000) {
            let most = least.saturating_add(count);
            let value = Stream::new(seed, "x", 0).within(least, most);
            prop_assert!((least..=most).contains(&value));
        }

        #[test]
        fn chosen_are_different(seed: u64, count in 0usize..20, bound in 0usize..20) {
            let mut chosen = Stream::new(seed, "x", 0).choose(count, bound);
            prop_assert_eq!(chosen.len(), count.min(bound));
            chosen.sort_unstable();
            chosen.dedup();
            prop_assert_eq!(chosen.len(), count.min(bound));
            prop_assert!(chosen.iter().all(|number| *number < bound));
        }
    }

    #[test]
    fn a_known_draw() {
        // SplitMix64 with state 0 begins with this number; stream and seed only move the state.
        let mut stream = Stream { base: 0, drawn: 0 };
        assert_eq!(stream.draw(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(stream.draw(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn exponential_times_have_no_memory() {
        let mut stream = Stream::new(1, "x", 0);
        let mean = Picoseconds(1_000_000);
        let times: Vec<u64> = (0..200_000).map(|_| stream.exponential(mean).0).collect();
        let average = times.iter().sum::<u64>() / 200_000;
        assert!(average.abs_diff(1_000_000) < 10_000, "{average}");
        // e^-1, e^-2 and e^-3 of them are longer than one, two and three means.
        for (means, expected) in [(1, 73_576), (2, 27_067), (3, 9_957)] {
            let longer = times.iter().filter(|time| **time > means * 1_000_000).count();
            assert!(longer.abs_diff(expected) < 800, "{means}: {longer}");
        }
    }

    #[test]
    fn the_papers_reservations() {
        // Experiment 1: each of 10,000 buckets draws its rank; promises range over (120, 13000).
        let zipf = Zipf::new(10_000, 1);
        let mut random = Stream::new(20_190_520, "reservations", 0);
        let weights: Vec<u64> = (0..10_000).map(|_| zipf.weight(zipf.draw(&mut random))).collect();
        let promised = apportion(6_400_000, &weights);
        assert_eq!(promised.iter().sum::<u64>(), 6_400_000);
        let (least, most) = (promised.iter().min().unwrap(), promised.iter().max().unwrap());
        assert!((120..140).contains(least) && (12_000..14_000).contains(most), "{least} {most}");
    }
}
