//! Optimality proof of a token allocation: a minimum cut whose value equals the allocated capacity.
//!
//! Let T be any set of servers. A token that is consumed, is consumed on a server of T or
//! elsewhere. Those of T consume their capacities at most; elsewhere, a bucket consumes at most
//! what it has, and at most its demand there. But it has no more than the smaller of its
//! reservation and its demand. So the effective capacity of any allocation is at most
//!
//! ```text
//! bound(T) = sum over T of C  +  sum over buckets of min(R, demand outside T)
//! ```
//!
//! An allocation that reaches a bound is the best, and so is the bound. Such a T names what is
//! short: its servers are busy to the last operation with the tokens of buckets that request more
//! than what they can have elsewhere.

use alloc::vec::Vec;

use super::Configuration;

/// A set of servers that bounds what any allocation is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    servers: Vec<u32>,
    bound: u64,
}

/// Why a certificate proves nothing about a configuration's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The set names a server that is not there, or one twice.
    #[error("server {server} is no server of a set")]
    Server {
        /// Its number.
        server: u32,
    },
    /// A bucket has more tokens on a server than demand.
    #[error("bucket {bucket} has tokens that it has no demand for")]
    Imprudent {
        /// The bucket.
        bucket: usize,
    },
    /// A bucket has not all tokens that it can use, or more.
    #[error("bucket {bucket} has not as many tokens as it can use")]
    Tokens {
        /// The bucket.
        bucket: usize,
    },
    /// The bound is not that of this set of servers.
    #[error("the bound of these servers is {bound}")]
    Bound {
        /// The bound of the set.
        bound: u64,
    },
    /// There may be a better allocation, but none better than the bound.
    #[error("{effective_capacity} tokens are consumed; {bound} might be")]
    Loose {
        /// How many tokens will be consumed.
        effective_capacity: u64,
        /// The most that could be.
        bound: u64,
    },
}

impl Certificate {
    pub(super) fn new(servers: Vec<u32>, configuration: &Configuration) -> Self {
        let bound = Cut::of(&servers, configuration).map_or(0, |cut| cut.bound());
        Self { servers, bound }
    }

    /// The servers of the set, in ascending order: the bottleneck. None if nothing is short.
    #[must_use]
    pub fn servers(&self) -> &[u32] {
        &self.servers
    }

    /// The most tokens that any allocation can have consumed.
    #[must_use]
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The buckets that need these servers for more than they request elsewhere: only these can be
    /// short of anything, and together they are.
    pub fn buckets<'a>(
        &'a self,
        configuration: &'a Configuration,
    ) -> impl Iterator<Item = usize> + 'a {
        let cut = Cut::of(&self.servers, configuration).ok();
        let buckets = cut.is_some().then_some(0..configuration.reservations.len());
        let needs = move |bucket: &usize| {
            let elsewhere = cut.as_ref().map_or(0, |cut| cut.elsewhere(*bucket));
            elsewhere < configuration.entitlement(*bucket)
        };
        buckets.into_iter().flatten().filter(needs)
    }

    /// Checks that the configuration's allocation is prudent, gives each bucket all tokens that it
    /// can use, and that no allocation has a larger effective capacity.
    ///
    /// # Errors
    /// The first of these conditions that does not hold.
    pub fn verify(&self, configuration: &Configuration) -> Result<(), Flaw> {
        for bucket in 0..configuration.reservations.len() {
            if configuration.row(bucket).any(|share| share.tokens > share.demand) {
                return Err(Flaw::Imprudent { bucket });
            }
            let tokens: u64 = configuration.row(bucket).map(|share| u64::from(share.tokens)).sum();
            if tokens != configuration.entitlement(bucket) {
                return Err(Flaw::Tokens { bucket });
            }
        }
        let bound = Cut::of(&self.servers, configuration)?.bound();
        if bound != self.bound {
            return Err(Flaw::Bound { bound });
        }
        match configuration.effective_capacity() {
            reached if reached == bound => Ok(()),
            effective_capacity => Err(Flaw::Loose { effective_capacity, bound }),
        }
    }
}

/// A set of servers, by server.
pub(super) struct Cut<'a> {
    configuration: &'a Configuration,
    is_inside: Vec<bool>,
}

impl<'a> Cut<'a> {
    pub(super) fn of(servers: &[u32], configuration: &'a Configuration) -> Result<Self, Flaw> {
        let mut is_inside = alloc::vec![false; configuration.capacities.len()];
        for &server in servers {
            match is_inside.get_mut(server as usize) {
                Some(inside) if !*inside => *inside = true,
                _ => return Err(Flaw::Server { server }),
            }
        }
        Ok(Self { configuration, is_inside })
    }

    pub(super) fn has(&self, server: u32) -> bool {
        self.is_inside[server as usize]
    }

    /// A bucket's demand outside the set.
    pub(super) fn elsewhere(&self, bucket: usize) -> u64 {
        let outside = self.configuration.row(bucket).filter(|share| !self.has(share.server));
        outside.map(|share| u64::from(share.demand)).sum()
    }

    /// Capacities may be as large as they like; a bound that does not fit proves nothing anyway.
    fn bound(&self) -> u64 {
        let inside = self.configuration.capacities.iter().zip(&self.is_inside);
        let inside = inside.filter(|(_, inside)| **inside).map(|(capacity, _)| *capacity);
        let reservations = self.configuration.reservations.iter().enumerate();
        let outside = reservations.map(|(bucket, most)| self.elsewhere(bucket).min(*most));
        inside.chain(outside).fold(0, u64::saturating_add)
    }
}
