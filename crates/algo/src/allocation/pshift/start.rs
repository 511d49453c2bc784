//! The first allocation: each bucket's tokens in proportion to its demands (Algorithm 3), in
//! integers, by largest remainder.
//!
//! `tokens = A d / D` with `A <= D`, so it never exceeds `d`, rounded up or not. A division takes
//! as long as everything else together, so there is one for each bucket, and a multiplication by
//! the reciprocal for each share. The tokens that rounding down has left, fewer than there are
//! shares, go to the largest remainders. Eight shares at most are ranked by comparing each with
//! each, which needs no branch; more are selected.

use alloc::vec::Vec;

use super::{Configuration, Share};

/// How many shares are ranked by comparing each with each.
const COMPARED_MAX: usize = 8;
/// Below this, demands and remainders are positive in 32 bits with a sign, and products fit in 64.
const SMALL: u64 = 1 << 31;

/// Gives the buckets of `rows` their first tokens, and adds them to `loads`, one for each server.
/// `shares` begins with the first one of the first bucket.
pub(super) fn start(
    rows: &[u32],
    reservations: &[u64],
    shares: &mut [Share],
    loads: &mut [i64],
    scratch: &mut Vec<(u64, u32)>,
) {
    let mut rest = shares;
    for (bounds, reservation) in rows.windows(2).zip(reservations) {
        let (row, after) = rest.split_at_mut((bounds[1] - bounds[0]) as usize);
        rest = after;
        let demand: u64 = row.iter().map(|share| u64::from(share.demand)).sum();
        divide(demand.min(*reservation), demand, row, scratch);
        for share in row {
            loads[share.server as usize] += i64::from(share.tokens);
        }
    }
}

/// Divides `amount` over a row in proportion to its demands, whose sum is `demand`.
fn divide(amount: u64, demand: u64, row: &mut [Share], scratch: &mut Vec<(u64, u32)>) {
    if amount == demand {
        row.iter_mut().for_each(|share| share.tokens = share.demand);
    } else if row.len() <= COMPARED_MAX && demand < SMALL {
        divide_few(amount, demand, row);
    } else {
        divide_many(amount, demand, row, scratch);
    }
}

/// With `x = amount * d < demand^2`, `x * floor((2^64 - 1) / demand) / 2^64` is less than `x /
/// demand` by less than one: so it is the quotient, or one too small.
fn divide_few(amount: u64, demand: u64, row: &mut [Share]) {
    let reciprocal = u64::MAX / demand;
    let mut remainders = [-2_i32; COMPARED_MAX];
    let mut left = amount;
    for (share, remainder) in row.iter_mut().zip(&mut remainders) {
        let product = amount * u64::from(share.demand);
        let mut quotient = ((u128::from(product) * u128::from(reciprocal)) >> 64) as u64;
        let mut over = product - quotient * demand;
        let is_short = over >= demand;
        quotient += u64::from(is_short);
        over -= if is_short { demand } else { 0 };
        share.tokens = quotient as u32;
        *remainder = over as i32;
        left -= quotient;
    }
    for (index, share) in row.iter_mut().enumerate() {
        let own = remainders[index];
        let mut before = 0;
        for (other, remainder) in remainders.iter().enumerate() {
            before += i32::from(*remainder > own - i32::from(other < index));
        }
        share.tokens += u32::from((before as u64) < left);
    }
}

fn divide_many(amount: u64, demand: u64, row: &mut [Share], scratch: &mut Vec<(u64, u32)>) {
    scratch.clear();
    let mut left = amount;
    for (index, share) in row.iter_mut().enumerate() {
        let product = u128::from(amount) * u128::from(share.demand);
        let quotient = (product / u128::from(demand)) as u64;
        share.tokens = quotient as u32;
        left -= quotient;
        let remainder = (product % u128::from(demand)) as u64;
        scratch.push((u64::MAX - remainder, index as u32));
    }
    let left = left as usize;
    if left == 0 {
        return;
    }
    scratch.select_nth_unstable(left - 1);
    for &(_, index) in &scratch[..left] {
        row[index as usize].tokens += 1;
    }
}

impl Configuration {
    /// Whether the allocation is prudent and gives each bucket all its tokens.
    pub(super) fn is_complete(&self) -> bool {
        self.shares.iter().all(|share| share.tokens <= share.demand)
            && (0..self.reservations.len()).all(|bucket| {
                let tokens: u64 = self.row(bucket).map(|share| u64::from(share.tokens)).sum();
                tokens == self.entitlement(bucket)
            })
    }
}

/// The same on all cores: the buckets are halved until a part is small. Sums of loads do not depend
/// on their order.
#[cfg(feature = "parallel")]
pub(super) mod parallel {
    use super::{Share, Vec};

    /// Fewer buckets than this are not worth another thread. Chosen by hand.
    const PART: usize = 2_048;

    pub(in super::super) fn start(
        rows: &[u32],
        reservations: &[u64],
        shares: &mut [Share],
        loads: &mut [i64],
    ) {
        if reservations.len() <= PART {
            return super::start(rows, reservations, shares, loads, &mut Vec::new());
        }
        let half = reservations.len() / 2;
        let (left, right) = shares.split_at_mut((rows[half] - rows[0]) as usize);
        let mut others = alloc::vec![0; loads.len()];
        rayon::join(
            || start(&rows[..=half], &reservations[..half], left, loads),
            || start(&rows[half..], &reservations[half..], right, &mut others),
        );
        loads.iter_mut().zip(&others).for_each(|(load, other)| *load += other);
    }
}
