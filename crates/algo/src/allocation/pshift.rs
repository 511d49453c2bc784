//! Dividing tokens over servers: pShift, which moves tokens from servers that have too many to
//! servers that have too few, until nothing is gained by moving any.
//!
//! # Problem
//! A *bucket* was promised `R` operations in a period (its reservation), and its requests arrive at
//! several *servers*. Its demand at each server in the period is about known, and so is the
//! capacity of each server. A server serves requests with a token first. How many of its
//! `min(R, demand)` tokens does each bucket get on each server, so that as many as can be are
//! consumed? A token is lost where there is no demand for it (a *strong* excess), or where a server
//! has more of them than capacity (a *weak* excess: the server is *overloaded*).
//!
//! # Model
//! An allocation without strong excess is *prudent*. Its value is its *effective capacity*: the sum
//! over the servers of the smaller of capacity and tokens. The optimum is the value of a maximum
//! flow from buckets through demands to servers. The paper (Y. Peng, Q. Liu, P.
//! Varman: *Scalable QoS for Distributed Storage Clusters using Dynamic Token Allocation*, MSST
//! 2019, §III) finds it by *shift paths*: an overloaded server gives tokens of one bucket to a
//! server that has demand to spare for it; if that one is full, it gives as many tokens of another
//! bucket to the next; and so on to one that has headroom. Servers on the way keep their total
//! number of tokens. When there is no shift path, the allocation is optimal.
//!
//! # Mechanism
//! 1. *Start* (Algorithm 3): a bucket's tokens in proportion to its demands, in integers by largest
//!    remainder, ties to the demand that is listed first.
//! 2. *Sweep*: paths of length one, bucket after bucket, each in memory once. It needs no index,
//!    and ends as soon as no server is overloaded, or none has headroom. Most configurations end
//!    here.
//! 3. *Shift* (Algorithm 5): servers get a *level*, their distance from a server with headroom;
//!    then tokens move along paths that go down a level with each step, until there is no such
//!    path; then levels are computed anew. Each round leaves only longer paths, so there are fewer
//!    rounds than servers. The token movement map of Algorithm 4 has an entry for any two
//!    servers and a bucket; here it is never made. An entry of it is
//!    `min(tokens here, spare demand there)`, which is computed from two shares of one bucket
//!    when needed. Instead the solver makes a list of each server's shares, when it first needs
//!    one.
//!
//! [`Solver::set`] and [`Solver::set_capacity`] apply the changes between two periods; the solver
//! keeps the tokens that are still prudent, and [`Solver::shift`] goes on from there. So an
//! unchanged configuration moves nothing, and the cost is that of the change.
//!
//! The paper's third example: server 1 is overloaded by 25 and server 3 has headroom for 25, but
//! they have no bucket in common that could move. Server 2, which is full, is the broker.
//!
//! ```
//! use tidegate_algo::allocation::pshift::{Configuration, Solver};
//! let mut configuration = Configuration::new(&[100, 100, 100]);
//! configuration.push(100, &[(0, 150), (1, 50)])?; // red
//! configuration.push(100, &[(1, 150), (2, 50)])?; // blue
//! configuration.push(100, &[(0, 50), (2, 50)])?; // green
//! let mut solver = Solver::new(configuration);
//! let outcome = solver.solve();
//! assert_eq!((outcome.effective_capacity, outcome.weak_excess), (300, 0));
//! let tokens = |bucket| solver.configuration().row(bucket).map(|share| share.tokens);
//! assert_eq!(tokens(0).collect::<Vec<_>>(), [50, 50]); // 25 red ones from server 1 to 2,
//! assert_eq!(tokens(1).collect::<Vec<_>>(), [50, 50]); // and 25 blue ones from 2 to 3.
//! assert_eq!(tokens(2).collect::<Vec<_>>(), [50, 50]);
//! # Ok::<(), tidegate_algo::allocation::pshift::Refused>(())
//! ```
//!
//! # Why one can believe it
//! A cut proves the result: for any set T of servers, no allocation has a larger effective
//! capacity than T's capacities and, for each bucket, the smaller of its tokens and its demand
//! outside T. With T the servers that tokens of overloaded servers can reach, this *is* the
//! effective capacity. [`Certificate::verify`] checks it in one pass, knowing nothing of how it
//! was found, and T names the servers that are the bottleneck.
//!
//! The optimum fixes how many tokens are not consumed, but not which tenants lose them.
//! [`Solver::share_shortfall`] divides them fairly.
//!
//! # Bounds
//! A demand is a `u32`, capacities and reservations are any `u64`; there are fewer than 2^31
//! shares. So no sum reaches 2^63, and nothing overflows. Memory is 12 bytes a share, and 8 more
//! once the lists are made. These grow to twice that while buckets change servers, and are then
//! made anew. After the first solution nothing else is allocated unless a configuration grows.

use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

mod certificate;
mod change;
pub mod instance;
mod shift;
mod shortfall;
mod start;
mod top;

pub use certificate::{Certificate, Flaw};
pub use shift::SolverReport;
pub use shortfall::Shares;

use shift::{Exact, Shifting};

/// A bucket on a server: its demand there, and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The server's number.
    pub server: u32,
    /// Operations that the bucket will request of the server in the period.
    pub demand: u32,
    /// Tokens that it has there.
    pub tokens: u32,
}

impl Share {
    /// Tokens that it could have more and would still consume: the paper's spare demand.
    fn spare(&self) -> u32 {
        self.demand - self.tokens
    }
}

/// Servers, buckets, their demands, and their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    capacities: Vec<u64>,
    reservations: Vec<u64>,
    /// Where each bucket's shares begin, and where the last ones end.
    rows: Vec<u32>,
    shares: Vec<Share>,
}

/// Why a bucket's demands are not taken; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no server of this number.
    #[error("there is no server {server}")]
    NoSuchServer {
        /// The number.
        server: u32,
    },
    /// A configuration has fewer than 2^31 shares.
    #[error("more than 2^31 shares")]
    TooMany,
    /// The bucket can hold fewer demands than this.
    #[error("the bucket has room for {capacity} demands")]
    Full {
        /// How many it can hold.
        capacity: usize,
    },
}

/// Whether so many more shares fit beside so many: there are fewer than 2^31.
const fn fits(shares: usize, more: usize) -> bool {
    shares.saturating_add(more) <= i32::MAX as usize
}

impl Configuration {
    /// Servers that can do so many operations in the period each, and no bucket.
    #[must_use]
    pub fn new(capacities: &[u64]) -> Self {
        let rows = alloc::vec![0];
        Self { capacities: capacities.into(), reservations: Vec::new(), rows, shares: Vec::new() }
    }

    /// Adds a bucket with a reservation, and its demands on servers. Gives its
    /// number. A server may occur with a demand of 0, to be used later; if it occurs twice, its
    /// demands add up.
    ///
    /// # Errors
    /// If there is no such server, or there are too many shares.
    pub fn push(&mut self, reservation: u64, demands: &[(u32, u32)]) -> Result<usize, Refused> {
        self.check(demands)?;
        if !fits(self.shares.len(), demands.len()) {
            return Err(Refused::TooMany);
        }
        let share = |&(server, demand): &(u32, u32)| Share { server, demand, tokens: 0 };
        self.shares.extend(demands.iter().map(share));
        self.rows.push(self.shares.len() as u32);
        self.reservations.push(reservation);
        Ok(self.reservations.len() - 1)
    }

    /// Adds a bucket as it is in `other`, with its tokens. Returns its number.
    ///
    /// # Errors
    /// As [`Self::push`].
    ///
    /// # Panics
    /// If `other` has no such bucket.
    pub fn push_from(&mut self, other: &Self, bucket: usize) -> Result<usize, Refused> {
        let row = &other.shares[other.range(bucket)];
        let is_unknown = |share: &&Share| share.server as usize >= self.capacities.len();
        if let Some(&Share { server, .. }) = row.iter().find(is_unknown) {
            return Err(Refused::NoSuchServer { server });
        }
        if !fits(self.shares.len(), row.len()) {
            return Err(Refused::TooMany);
        }
        self.shares.extend_from_slice(row);
        self.rows.push(self.shares.len() as u32);
        self.reservations.push(other.reservations[bucket]);
        Ok(self.reservations.len() - 1)
    }

    fn check(&self, demands: &[(u32, u32)]) -> Result<(), Refused> {
        let unknown = |(server, _): &&(u32, u32)| *server as usize >= self.capacities.len();
        match demands.iter().find(unknown) {
            Some(&(server, _)) => Err(Refused::NoSuchServer { server }),
            None => Ok(()),
        }
    }

    /// Each server's capacity in the period.
    #[must_use]
    pub fn capacities(&self) -> &[u64] {
        &self.capacities
    }

    /// Each bucket's reservation.
    #[must_use]
    pub fn reservations(&self) -> &[u64] {
        &self.reservations
    }

    /// A bucket's shares, in the order in which they were given.
    ///
    /// # Panics
    /// If there is no such bucket.
    pub fn row(&self, bucket: usize) -> impl ExactSizeIterator<Item = &Share> {
        self.shares[self.range(bucket)].iter()
    }

    /// All shares, one bucket after the other.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The part of a bucket's reservation that it can consume at all: the number of its tokens.
    ///
    /// # Panics
    /// If there is no such bucket.
    #[must_use]
    pub fn entitlement(&self, bucket: usize) -> u64 {
        let demand: u64 = self.row(bucket).map(|share| u64::from(share.demand)).sum();
        demand.min(self.reservations[bucket])
    }

    /// How many tokens will be consumed: the paper's effective system capacity.
    #[must_use]
    pub fn effective_capacity(&self) -> u64 {
        let mut loads = alloc::vec![0_u64; self.capacities.len()];
        for share in &self.shares {
            loads[share.server as usize] += u64::from(share.tokens.min(share.demand));
        }
        loads.iter().zip(&self.capacities).map(|(load, capacity)| load.min(capacity)).sum()
    }

    /// Where a bucket's shares are among [`Self::shares`].
    ///
    /// # Panics
    /// If there is no such bucket.
    #[must_use]
    pub fn range(&self, bucket: usize) -> Range<usize> {
        self.rows[bucket] as usize..self.rows[bucket + 1] as usize
    }
}

/// Finds the best allocation of a configuration, and keeps it best while that changes.
#[derive(Clone, Debug)]
pub struct Solver {
    configuration: Configuration,
    shifting: Shifting,
    /// Whether the allocation is prudent and gives each bucket all its tokens.
    is_complete: bool,
}

impl Solver {
    /// Takes a configuration as it is. The tokens that it has are where [`Solver::shift`] goes on,
    /// if its allocation is prudent and gives each bucket all its tokens.
    #[must_use]
    pub fn new(configuration: Configuration) -> Self {
        let mut shifting = Shifting::default();
        shifting.measure(&configuration);
        Self { is_complete: configuration.is_complete(), shifting, configuration }
    }

    /// The configuration, with the tokens of the last solution.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Divides all tokens anew, whatever was given before.
    pub fn solve(&mut self) -> SolverReport {
        self.start();
        self.shifting.sweep(&mut self.configuration, &Exact);
        self.shift()
    }

    /// [`Solver::solve`] on all cores. The result is the same.
    #[cfg(feature = "parallel")]
    pub fn solve_parallel(&mut self) -> SolverReport {
        self.shifting.start_parallel(&mut self.configuration);
        self.is_complete = true;
        self.shifting.sweep(&mut self.configuration, &Exact);
        self.shift()
    }

    /// Divides all tokens anew, but only searches better servers for the tokens of those `most`
    /// buckets of each server that have most of them there, and among those with most demand to
    /// spare there (§III-C). The allocation is prudent, and may not be the best; its
    /// [`Solver::certificate`] bounds what is missing.
    pub fn solve_among(&mut self, most: usize) -> SolverReport {
        self.start();
        let among = self.shifting.among(&self.configuration, most);
        self.shifting.sweep(&mut self.configuration, &among);
        self.shifting.shift(&mut self.configuration, &among)
    }

    /// Only the first step: all tokens in proportion to demands.
    pub fn start(&mut self) {
        self.shifting.start(&mut self.configuration);
        self.is_complete = true;
    }

    /// Goes on from the tokens there are, until there is no shift path.
    pub fn shift(&mut self) -> SolverReport {
        if !self.is_complete {
            return self.solve();
        }
        self.shifting.shift(&mut self.configuration, &Exact)
    }

    /// Changes what a server can do in the period. [`Solver::shift`] is to be called when all
    /// changes are made.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn set_capacity(&mut self, server: usize, capacity: u64) {
        let former = mem::replace(&mut self.configuration.capacities[server], capacity);
        self.shifting.resize(server, former, capacity);
    }

    /// Changes a bucket's reservation and demands. The tokens that it had on the same
    /// servers stay, as far as its demand there allows; what is too much is taken from overloaded
    /// servers first, and what is missing is put where there is headroom first. [`Solver::shift`]
    /// is to be called when all changes are made.
    ///
    /// A bucket can hold as many demands as when it was pushed.
    ///
    /// # Errors
    /// If it cannot hold so many demands, or there is no such server.
    ///
    /// # Panics
    /// If there is no such bucket.
    pub fn set(
        &mut self,
        bucket: usize,
        reservation: u64,
        demands: &[(u32, u32)],
    ) -> Result<(), Refused> {
        self.configuration.check(demands)?;
        let capacity = self.configuration.range(bucket).len();
        if demands.len() > capacity {
            return Err(Refused::Full { capacity });
        }
        if !self.is_complete {
            self.start();
        }
        self.configuration.reservations[bucket] = reservation;
        self.shifting.replace(&mut self.configuration, bucket, demands);
        Ok(())
    }

    /// Returns the proof that the last solution is optimal: see [`Certificate`].
    pub fn certificate(&mut self) -> Certificate {
        if !self.is_complete {
            self.start();
        }
        let servers = self.shifting.reached(&self.configuration);
        Certificate::new(servers, &self.configuration)
    }

    /// Divides what is missing fairly, without more of it missing: see [`Shares`]. It costs a few
    /// solutions of that part of the configuration that is short of capacity.
    pub fn share_shortfall(&mut self) -> Shares {
        let certificate = self.certificate();
        let shares = Shares::of(&mut self.configuration, &certificate);
        self.shifting.measure(&self.configuration);
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bucket between two others goes on in a configuration of its own.
    #[test]
    fn a_bucket_of_another_configuration_keeps_its_tokens() -> Result<(), Refused> {
        let mut all = Configuration::new(&[5, 5, 5]);
        all.push(0, &[(0, 0), (1, 0)])?;
        all.push(9, &[(0, 7), (2, 7)])?;
        all.push(0, &[(1, 0)])?;
        let mut solver = Solver::new(all);
        let report = solver.solve();
        let mut some = Configuration::new(&[5, 5, 5]);
        assert_eq!(some.push_from(solver.configuration(), 1), Ok(0));
        assert!(some.row(0).eq(solver.configuration().row(1)));
        let mut again = Solver::new(some);
        let SolverReport { effective_capacity, weak_excess, moved, .. } = again.shift();
        assert_eq!((effective_capacity, weak_excess), (9, report.weak_excess));
        assert_eq!(moved, 0, "the solution was there");
        let mut few = Configuration::new(&[5, 5]);
        let refused = few.push_from(solver.configuration(), 1);
        assert_eq!(refused, Err(Refused::NoSuchServer { server: 2 }));
        Ok(())
    }

    /// More than there is memory for in a test, so the test calls only the check.
    #[test]
    fn shares_have_numbers_of_31_bits() {
        assert!(fits(0, 0) && fits((1 << 31) - 2, 1));
        assert!(!fits((1 << 31) - 1, 1) && !fits(0, 1 << 31) && !fits(1, usize::MAX));
    }
}
