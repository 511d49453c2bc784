//! Changes the demands of one bucket, and leaves its tokens at their servers where the demand
//! allows.

use super::shift::{ShareRef, Shifting};
use super::{Configuration, Share};

impl Shifting {
    /// Gives a bucket other demands, and keeps its tokens where they are as far as it can be.
    pub(super) fn replace(
        &mut self,
        configuration: &mut Configuration,
        bucket: usize,
        demands: &[(u32, u32)],
    ) {
        let range = configuration.range(bucket);
        let amount = {
            let demand: u64 = demands.iter().map(|(_, demand)| u64::from(*demand)).sum();
            demand.min(configuration.reservations[bucket])
        };
        self.former.clear();
        self.former.extend_from_slice(&configuration.shares[range.clone()]);
        let mut kept = 0;
        for (number, index) in range.clone().enumerate() {
            let former = configuration.shares[index];
            self.excess[former.server as usize] -= i64::from(former.tokens);
            // A share without a new demand stays at its server, with a demand of zero.
            let (server, demand) = demands.get(number).copied().unwrap_or((former.server, 0));
            let mut tokens = 0;
            // A server may occur twice: the share at the same index comes first.
            let is_same = |at: &usize| self.former[*at].server == server;
            let others = 0..self.former.len();
            if let Some(at) = [number].into_iter().chain(others).find(is_same) {
                let former = &mut self.former[at];
                tokens = former.tokens.min(demand);
                former.tokens -= tokens;
            }
            let share = Share { server, demand, tokens };
            configuration.shares[index] = share;
            self.list_anew(ShareRef { share: index as u32, bucket: bucket as u32 }, former, share);
            self.excess[server as usize] += i64::from(tokens);
            kept += u64::from(tokens);
        }
        let row = &mut configuration.shares[range];
        if kept > amount {
            self.withdraw(row, kept - amount);
        } else {
            self.add(row, amount - kept);
        }
    }

    /// Takes tokens from a row: what is too much on overloaded servers first, then the first ones.
    fn withdraw(&mut self, row: &mut [Share], mut amount: u64) {
        for only_excess in [true, false] {
            for share in row.iter_mut() {
                let excess = &mut self.excess[share.server as usize];
                let most = if only_excess { (*excess).max(0) as u64 } else { u64::MAX };
                let taken = u64::from(share.tokens).min(amount).min(most);
                share.tokens -= taken as u32;
                *excess -= taken as i64;
                amount -= taken;
            }
        }
    }

    /// Gives tokens to a row that has so much demand to spare: where there is headroom first, then
    /// the first ones.
    fn add(&mut self, row: &mut [Share], mut amount: u64) {
        for only_headroom in [true, false] {
            for share in row.iter_mut() {
                let excess = &mut self.excess[share.server as usize];
                let most = if only_headroom { (-*excess).max(0) as u64 } else { u64::MAX };
                let given = u64::from(share.spare()).min(amount).min(most);
                share.tokens += given as u32;
                *excess += given as i64;
                amount -= given;
            }
        }
    }
}
