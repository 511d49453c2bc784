//! A family of configurations to measure with: as in the paper's evaluation (§IV-B), but specified
//! so exactly that any program can make the same ones.
//!
//! - Random numbers are counted, not drawn: number `k` of a stream is SplitMix64's finaliser of
//!   `seed * D1342543DE82EF95 + stream * A0761D6478BD642F + (k + 1) * 9E3779B97F4A7C15`.
//! - Bucket `i` draws a rank `j` out of `1..=buckets` with a probability in proportion to `j^-0.5`
//!   (stream 0, number `i`, its upper 53 bits as a fraction), and has the weight `j^-0.5`. The
//!   reservations are in proportion to the weights and add up to a given part of all capacities.
//! - Its demand is a given multiple of its reservation, rounded up.
//! - It has demands on 8 different servers (stream 1, numbers `8i..8i + 8`, modulo those that are
//!   left, counted past those that are taken), in proportion to `k^-0.5` with `k = 1..=8` in the
//!   order drawn.
//! - Every server can do 100,000 operations.
//!
//! Where something is divided, it is rounded by largest remainder, ties to the first. Square roots
//! are integers, scaled by 2^63 for the ranks' weights.

use alloc::vec::Vec;

use super::Configuration;

const SEED: u64 = 20_190_520;
const CAPACITY: u64 = 100_000;
const SPREAD: usize = 8;

/// The parameters of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// How many servers: 8 at least.
    pub servers: u32,
    /// How many buckets: 1 at least.
    pub buckets: u32,
    /// Reservations, in tenths of all capacities.
    pub reserved_tenths: u32,
    /// Each bucket's demand, in tenths of its reservation.
    pub demand_tenths: u32,
}

impl Family {
    /// The sum of all reservations.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        CAPACITY * u64::from(self.servers) * u64::from(self.reserved_tenths) / 10
    }

    /// Makes the configuration, without tokens.
    ///
    /// # Panics
    /// If there are fewer than 8 servers or no buckets, or their demands do not fit in 32 bits.
    #[must_use]
    pub fn configuration(&self) -> Configuration {
        assert!(self.servers >= 8 && self.buckets > 0, "8 servers and a bucket at least");
        let capacities = alloc::vec![CAPACITY; self.servers as usize];
        let mut configuration = Configuration::new(&capacities);
        let reservations = largest_remainder(self.reserved(), &self.weights());
        for (bucket, reservation) in reservations.into_iter().enumerate() {
            let demands = self.demands(bucket as u64, reservation, 1);
            assert!(configuration.push(reservation, &demands).is_ok(), "fewer than 2^31 shares");
        }
        configuration
    }

    /// Returns the servers of bucket `bucket` and its demand at each, for this reservation. The
    /// first placement is stream 1; any later stream moves the bucket to other servers.
    ///
    /// # Panics
    /// If its demand does not fit in 32 bits.
    #[must_use]
    pub fn demands(&self, bucket: u64, reservation: u64, stream: u64) -> [(u32, u32); SPREAD] {
        let demand = (reservation * u64::from(self.demand_tenths)).div_ceil(10);
        assert!(u32::try_from(demand).is_ok(), "the demand of one bucket");
        let weights: [u64; SPREAD] = core::array::from_fn(|k| weight(k as u64 + 1));
        let amounts = largest_remainder(demand, &weights);
        let mut taken: Vec<u32> = Vec::with_capacity(SPREAD);
        core::array::from_fn(|k| {
            let number = random(stream, 8 * bucket + k as u64);
            let mut server = (number % u64::from(self.servers - k as u32)) as u32;
            // Past those that are taken, which are in ascending order.
            let mut at = 0;
            while at < taken.len() && taken[at] <= server {
                server += 1;
                at += 1;
            }
            taken.insert(at, server);
            (server, amounts[k] as u32)
        })
    }

    /// The weight of each bucket, scaled by 2^63.
    fn weights(&self) -> Vec<u64> {
        let mut sums = Vec::with_capacity(self.buckets as usize);
        let mut sum = 0;
        for rank in 1..=u64::from(self.buckets) {
            sum += u128::from(weight(rank) >> 16);
            sums.push(sum);
        }
        let draw = |bucket: u64| {
            let part = u128::from(random(0, bucket) >> 11);
            let rank = sums.partition_point(|upto| upto << 53 <= part * sum);
            weight(rank as u64 + 1)
        };
        (0..u64::from(self.buckets)).map(draw).collect()
    }
}

/// `rank^-0.5`, scaled by 2^63.
fn weight(rank: u64) -> u64 {
    ((1_u128 << 126) / u128::from(rank)).isqrt() as u64
}

fn random(stream: u64, number: u64) -> u64 {
    let mut x = SEED.wrapping_mul(0xD134_2543_DE82_EF95);
    x = x.wrapping_add(stream.wrapping_mul(0xA076_1D64_78BD_642F));
    x = x.wrapping_add((number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Divides `total` in proportion to `weights`. All weights together fit in 96 bits, `total` in 32.
fn largest_remainder(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let product = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut parts: Vec<u64> = weights.iter().map(|w| (product(w) / sum) as u64).collect();
    let left = total - parts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&index| (core::cmp::Reverse(product(&weights[index]) % sum), index));
    order.iter().take(left as usize).for_each(|&index| parts[index] += 1);
    parts
}
