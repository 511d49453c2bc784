//! Key distributions of YCSB: uniform, or Zipfian, with few keys that are requested very often.
//!
//! **Problem.** A store of *n* records is to be read as people read: the record of rank *k*, from
//! one, with a probability in proportion to `k^-s`. That many records have no room for a table of
//! probabilities in a processor's cache, and the popular ones must not lie side by side, or a cache
//! would see what no real store shows.
//!
//! **Mechanism.** Ranks are drawn by rejection-inversion (Hörmann and Derflinger, 1996): the
//! integral `H` of `x^-s` is inverted at a uniform point, which is a rank after rounding, and is
//! refused if the point lies above that rank's bar. Few are, nothing grows with `n`, and the
//! distribution is exact but for the rounding of doubles. Then a rank is *scrambled* by a
//! permutation of the records: four rounds of a Feistel network on the least even number of bits
//! that holds `n`, again and again until the result is a record (at most four times on average).
//! So each record has exactly one rank, which YCSB's hash does not give: there two ranks may fall
//! on one record, and some records are never read.
//!
//! Logarithms and powers are `libm`'s, in software, so that a seed gives the same records on every
//! machine.
//!
//! ```
//! use tidegate_sim::keys::Keys;
//! use tidegate_sim::rng::Stream;
//! let keys = Keys::zipf(1_000_000, 0.99, 7);
//! let mut random = Stream::new(1, "keys", 0);
//! let popular = keys.of_rank(0);
//! let often = (0..10_000).filter(|_| keys.draw(&mut random) == popular).count();
//! assert!((550..750).contains(&often), "{often}"); // 6.5 % of all
//! ```

use crate::rng::Stream;

/// How records are chosen.
#[derive(Clone, Debug)]
pub struct Keys {
    count: u64,
    /// None: all alike.
    zipf: Option<Zipf>,
    /// Of the permutation.
    rounds: [u64; 4],
    /// Bits of one half of a number in the permutation.
    half: u32,
}

/// Rejection-inversion over ranks from 1 to `count`.
#[derive(Clone, Copy, Debug)]
struct Zipf {
    exponent: f64,
    /// `H` at both ends of the ranks.
    first: f64,
    last: f64,
    /// A rank that is nearer than this to its point is never refused.
    sure: f64,
}

impl Keys {
    /// All of `count` records are alike.
    ///
    /// # Panics
    /// If there are none.
    pub fn uniform(count: u64) -> Self {
        assert!(count > 0, "there are no records to choose from");
        Self { count, zipf: None, rounds: [0; 4], half: 0 }
    }

    /// The record of rank `k` has a weight of `k^-exponent`; which one that is, `seed` says.
    ///
    /// # Panics
    /// If there are no records or more than 2^52, or the exponent is not from 0 to 4.
    pub fn zipf(count: u64, exponent: f64, seed: u64) -> Self {
        assert!((1..=1 << 52).contains(&count), "Zipf's distribution over {count} records");
        assert!((0.0..=4.0).contains(&exponent), "Zipf's distribution with exponent {exponent}");
        let mut random = Stream::new(seed, "permutation of records", 0);
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self {
            count,
            zipf: Some(Zipf::new(count, exponent)),
            rounds: [(); 4].map(|()| random.draw()),
            half: bits.div_ceil(2).max(1),
        }
    }

    /// How many records there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The next record, from 0.
    pub fn draw(&self, random: &mut Stream) -> u64 {
        match &self.zipf {
            None => random.below(self.count),
            Some(zipf) => self.of_rank(zipf.draw(self.count, random) - 1),
        }
    }

    /// The record of a rank, both from 0.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of_rank(&self, rank: u64) -> u64 {
        assert!(rank < self.count, "there is no rank {rank}");
        if self.half == 0 {
            return rank;
        }
        let mask = (1 << self.half) - 1;
        let mut number = rank;
        loop {
            let (mut left, mut right) = (number >> self.half, number & mask);
            for round in self.rounds {
                let mixed = (right ^ round).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                (left, right) = (right, (left ^ mixed) & mask);
            }
            number = (left << self.half) | right;
            if number < self.count {
                return number;
            }
        }
    }
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let zipf = Self { exponent, first: 0.0, last: 0.0, sure: 0.0 };
        Self {
            first: zipf.integral(1.5) - 1.0,
            last: zipf.integral(count as f64 + 0.5),
            sure: 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.height(2.0)),
            ..zipf
        }
    }

    /// A rank from 1.
    fn draw(&self, count: u64, random: &mut Stream) -> u64 {
        loop {
            // 53 bits, so that both ends are possible and every value is exact.
            let uniform = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
            let point = self.last + uniform * (self.first - self.last);
            let x = self.inverse(point);
            let rank = (x.round() as u64).clamp(1, count);
            let near = rank as f64 - x <= self.sure;
            if near || point >= self.integral(rank as f64 + 0.5) - self.height(rank as f64) {
                return rank;
            }
        }
    }

    /// `x^-s`.
    fn height(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of that from 1 to `x`: `(x^(1-s) - 1) / (1-s)`, and `ln x` for `s = 1`.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        log * quotient(libm::expm1, (1.0 - self.exponent) * log)
    }

    /// The inverse of [`Self::integral`].
    fn inverse(&self, value: f64) -> f64 {
        let product = (value * (1.0 - self.exponent)).max(-1.0);
        libm::exp(value * quotient(libm::log1p, product))
    }
}

/// `function(x) / x`, where both go to zero and their quotient to one.
fn quotient(function: fn(f64) -> f64, x: f64) -> f64 {
    if x.abs() > 1e-8 { function(x) / x } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_rank_is_one_record(count in 1u64..3_000, seed: u64) {
            let keys = Keys::zipf(count, 0.99, seed);
            let mut records: Vec<u64> = (0..count).map(|rank| keys.of_rank(rank)).collect();
            records.sort_unstable();
            prop_assert!(records.into_iter().eq(0..count));
        }

        /// The oracle is the sum of all weights.
        #[test]
        fn ranks_are_as_frequent_as_they_should_be(
            count in 1u64..40, tenths in 0u32..25, seed: u64,
        ) {
            const DRAWS: u32 = 20_000;
            let exponent = f64::from(tenths) / 10.0;
            let keys = Keys::zipf(count, exponent, seed);
            let mut random = Stream::new(seed, "keys", 0);
            let mut seen = vec![0u32; count as usize];
            (0..DRAWS).for_each(|_| seen[keys.draw(&mut random) as usize] += 1);
            let weight = |rank: u64| (rank as f64 + 1.0).powf(-exponent);
            let sum: f64 = (0..count).map(weight).sum();
            for rank in 0..count {
                let share = weight(rank) / sum;
                let expected = share * f64::from(DRAWS);
                let sigma = (expected * (1.0 - share)).sqrt();
                let off = (f64::from(seen[keys.of_rank(rank) as usize]) - expected).abs();
                prop_assert!(off <= 6.0 * sigma + 1.0, "rank {rank}: {off} off {expected}");
            }
        }
    }

    #[test]
    fn all_are_alike() {
        let keys = Keys::uniform(4);
        let mut random = Stream::new(1, "keys", 0);
        let mut seen = [0u32; 4];
        (0..40_000).for_each(|_| seen[keys.draw(&mut random) as usize] += 1);
        assert!(seen.iter().all(|seen| (9_700..10_300).contains(seen)), "{seen:?}");
    }

    /// The same everywhere.
    #[test]
    fn a_known_draw() {
        let keys = Keys::zipf(1 << 20, 0.99, 1);
        let mut random = Stream::new(1, "keys", 0);
        let drawn: Vec<u64> = (0..4).map(|_| keys.draw(&mut random)).collect();
        assert_eq!(drawn, [236_745, 133_587, 252_498, 424_230]);
    }
}
