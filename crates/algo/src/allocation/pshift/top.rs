//! Faster, approximate division of tokens over storage nodes: only the largest shares move (pShift
//! paper, §III-C).

use alloc::vec::Vec;

use super::shift::{Bounds, Shifting};
use super::{Configuration, Share};

/// Between which bounds the tokens of each share may move.
pub(super) struct Among {
    low: Vec<u32>,
    high: Vec<u32>,
}

impl Bounds for Among {
    fn give(&self, index: usize, share: &Share) -> u32 {
        share.tokens - self.low[index]
    }

    fn take(&self, index: usize, share: &Share) -> u32 {
        self.high[index] - share.tokens
    }
}

impl Shifting {
    /// Of each server the shares with `most` tokens may give them, and those with most demand to
    /// spare may take some; ties to the bucket that comes first.
    pub(super) fn among(&mut self, configuration: &Configuration, most: usize) -> Among {
        let shares = &configuration.shares;
        let tokens = || shares.iter().map(|share| share.tokens).collect();
        let mut among = Among { low: tokens(), high: tokens() };
        for mut refs in self.shares_of(configuration) {
            for &index in largest(&mut refs, most, |index| shares[index].tokens) {
                among.low[index] = 0;
            }
            for &index in largest(&mut refs, most, |index| shares[index].spare()) {
                among.high[index] = shares[index].demand;
            }
        }
        among
    }
}

fn largest(refs: &mut [usize], most: usize, size: impl Fn(usize) -> u32) -> &[usize] {
    if let Some(last) = most.checked_sub(1).filter(|last| *last < refs.len()) {
        refs.select_nth_unstable_by_key(last, |&index| (core::cmp::Reverse(size(index)), index));
    }
    &refs[..most.min(refs.len())]
}
