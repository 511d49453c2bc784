//! Division of a shortfall among buckets: max-min fair in the met fractions of their reservations.
//!
//! # Problem
//! The optimum fixes how many tokens are consumed; the paper leaves open by which buckets. Let
//! `met` be how many tokens of a bucket are consumed, and `met / R` its *fraction*. Of all
//! allocations that are optimal, we want the max-min fair one: its smallest fraction is as large as
//! possible, then its second smallest, and so on.
//!
//! # Model
//! The vectors `met` of the optimal allocations are the bases of a polymatroid. There, the max-min
//! fair vector also minimises a sum of convex functions, one of each bucket's `met`, in integers:
//! token number `n` of a bucket costs `n / R`, and the cheapest tokens are consumed. Of two buckets
//! whose next tokens cost the same, the one with the smaller reservation is first: for it, a token
//! is the larger fraction.
//!
//! # Mechanism
//! Only the servers of the certificate's set T lack capacity, and only for buckets that have more
//! tokens than they request elsewhere. Such a bucket consumes all that it requests elsewhere. So
//! only the capacities of T remain to be divided, and they are used up. This is done by
//! decomposition (H. Groenevelt, 1991):
//!
//! 1. Pretend that T is one server, and divide its capacity: each next token goes to the bucket
//!    with the smallest fraction so far, ties to the bucket that comes first.
//! 2. Find an allocation with just these amounts, with the solver itself. If every token is
//!    consumed, this is the fair division.
//! 3. If not, the solver's certificate names servers T' for whose buckets the amounts were too
//!    high. Buckets that need T' get all that they request elsewhere in T; the capacity of T' is
//!    for them alone. So both sides are smaller problems of the same kind.
//!
//! # Guarantee
//! Exact, in integers: the sum is the optimum's, and no vector of `met` of an optimal allocation,
//! sorted by fractions, is lexicographically larger. Each server is in one problem at a time and
//! each split makes two of one, so there are fewer than twice as many solutions as servers, and one
//! if the first level fits. Which of two equal buckets has one token more depends on their order.

use alloc::vec::Vec;

use super::certificate::Cut;
use super::{Certificate, Configuration, Solver};

/// A fair division of what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// By bucket: how many of its tokens are consumed.
    pub met: Vec<u64>,
    /// By share: how many of its tokens are consumed. On no server are these more than its
    /// capacity, so a controller that grants these and no others has them consumed whatever order
    /// servers work in.
    pub granted: Vec<u32>,
}

/// A bucket in a problem.
#[derive(Clone, Copy, Debug)]
struct Member {
    bucket: usize,
    /// Tokens that it consumes on servers outside the problem.
    base: u64,
}

/// Servers all of whose capacity goes to some buckets.
#[derive(Debug)]
struct ServerGroup {
    members: Vec<Member>,
    servers: Vec<u32>,
}

impl Shares {
    /// Divides fairly, and moves tokens accordingly; the configuration's allocation is optimal and
    /// stays so.
    pub(super) fn of(configuration: &mut Configuration, certificate: &Certificate) -> Self {
        let buckets = 0..configuration.reservations.len();
        let met = buckets.map(|bucket| configuration.entitlement(bucket)).collect();
        let granted = configuration.shares.iter().map(|share| share.tokens).collect();
        let mut shares = Self { met, granted };
        let Ok(cut) = Cut::of(certificate.servers(), configuration) else { return shares };
        let member = |bucket| Member { bucket, base: cut.elsewhere(bucket) };
        let members: Vec<Member> = certificate.buckets(configuration).map(member).collect();
        let short: Vec<usize> = members.iter().map(|member| member.bucket).collect();
        let mut division = Division {
            left: configuration.capacities.clone(),
            part_of: certificate_parts(certificate, configuration),
            parts: 1,
            configuration,
            shares: &mut shares,
        };
        division.clear(&short);
        let mut parts = alloc::vec![ServerGroup { members, servers: certificate.servers().into() }];
        while let Some(part) = parts.pop() {
            parts.extend(division.divide(part).into_iter().flatten());
        }
        for bucket in short {
            shares.assign(configuration, bucket);
        }
        shares
    }

    /// Gives a bucket the tokens that are granted, and puts those that will not be consumed where
    /// there is demand.
    fn assign(&self, configuration: &mut Configuration, bucket: usize) {
        let mut unmet = configuration.entitlement(bucket) - self.met[bucket];
        let range = configuration.range(bucket);
        for (share, granted) in
            configuration.shares[range.clone()].iter_mut().zip(&self.granted[range])
        {
            let more = u64::from(share.demand - granted).min(unmet);
            share.tokens = granted + more as u32;
            unmet -= more;
        }
    }
}

/// By server: 1 for those of the set, 0 for the others.
fn certificate_parts(certificate: &Certificate, configuration: &Configuration) -> Vec<u32> {
    let mut parts = alloc::vec![0; configuration.capacities.len()];
    certificate.servers().iter().for_each(|server| parts[*server as usize] = 1);
    parts
}

/// A division while it is made.
struct Division<'a> {
    configuration: &'a Configuration,
    shares: &'a mut Shares,
    /// By server: capacity that is not given away for good.
    left: Vec<u64>,
    /// By server: the number of its part.
    part_of: Vec<u32>,
    parts: u32,
}

impl Division<'_> {
    /// Takes back what buckets have on the servers of all parts.
    fn clear(&mut self, buckets: &[usize]) {
        for &bucket in buckets {
            for index in self.configuration.range(bucket) {
                if self.part_of[self.configuration.shares[index].server as usize] > 0 {
                    self.shares.granted[index] = 0;
                }
            }
        }
    }

    /// Divides a part, or splits it in two.
    fn divide(&mut self, part: ServerGroup) -> Option<[ServerGroup; 2]> {
        let &first = part.servers.first()?;
        let number = self.part_of[first as usize];
        let buckets: Vec<BucketBounds> =
            part.members.iter().map(|member| self.bounds(*member, number)).collect();
        let capacity: u64 = part.servers.iter().map(|server| self.left[*server as usize]).sum();
        let base: u64 = part.members.iter().map(|member| member.base).sum();
        let targets = pour(base + capacity, &buckets);
        let mut solver = Solver::new(self.problem(&part, number, &targets));
        if solver.solve().weak_excess == 0 {
            self.grant(&part, number, &targets, solver.configuration());
            return None;
        }
        let short = solver.certificate();
        self.parts += 1;
        for &server in short.servers() {
            self.part_of[part.servers[server as usize] as usize] = self.parts;
        }
        Some(self.split(part, number, &targets))
    }

    /// Returns the bounds of a bucket's tokens in all.
    fn bounds(&self, member: Member, number: u32) -> BucketBounds {
        let inside = |index: &usize| self.is_in(*index, number);
        let demand = |index: usize| u64::from(self.configuration.shares[index].demand);
        let demand: u64 = self.configuration.range(member.bucket).filter(inside).map(demand).sum();
        BucketBounds {
            reservation: self.configuration.reservations[member.bucket],
            least: member.base,
            most: self.configuration.entitlement(member.bucket).min(member.base + demand),
        }
    }

    fn is_in(&self, index: usize, number: u32) -> bool {
        self.part_of[self.configuration.shares[index].server as usize] == number
    }

    /// A part as a configuration of its own: its servers in their order, its buckets in theirs.
    fn problem(&self, part: &ServerGroup, number: u32, targets: &[u64]) -> Configuration {
        let capacities: Vec<u64> =
            part.servers.iter().map(|server| self.left[*server as usize]).collect();
        let mut problem = Configuration::new(&capacities);
        let mut numbers = alloc::vec![0; self.left.len()];
        for (number, server) in part.servers.iter().enumerate() {
            numbers[*server as usize] = number as u32;
        }
        let mut demands = Vec::new();
        for (member, target) in part.members.iter().zip(targets) {
            demands.clear();
            for index in self.configuration.range(member.bucket) {
                if self.is_in(index, number) {
                    let share = &self.configuration.shares[index];
                    demands.push((numbers[share.server as usize], share.demand));
                }
            }
            let pushed = problem.push(target - member.base, &demands);
            debug_assert!(pushed.is_ok(), "a part of a configuration is one");
        }
        problem
    }

    /// Every target is met.
    fn grant(&mut self, part: &ServerGroup, number: u32, targets: &[u64], solved: &Configuration) {
        for (row, (member, target)) in part.members.iter().zip(targets).enumerate() {
            self.shares.met[member.bucket] = *target;
            let mut tokens = solved.row(row);
            for index in self.configuration.range(member.bucket) {
                if self.is_in(index, number)
                    && let Some(share) = tokens.next()
                {
                    self.shares.granted[index] = share.tokens;
                }
            }
        }
    }

    /// Splits a part whose servers have two numbers by now, `number` those that are not short.
    fn split(&mut self, part: ServerGroup, number: u32, targets: &[u64]) -> [ServerGroup; 2] {
        let mut others = ServerGroup { members: Vec::new(), servers: Vec::new() };
        let mut short = ServerGroup { members: Vec::new(), servers: Vec::new() };
        for server in part.servers {
            let is_other = self.part_of[server as usize] == number;
            if is_other { &mut others } else { &mut short }.servers.push(server);
        }
        for (mut member, target) in part.members.into_iter().zip(targets) {
            let range = self.configuration.range(member.bucket);
            let elsewhere = range.filter(|index| self.is_in(*index, number)).collect::<Vec<_>>();
            let demand = |index: &usize| self.configuration.shares[*index].demand;
            let demanded: u64 = elsewhere.iter().map(|index| u64::from(demand(index))).sum();
            if demanded >= target - member.base {
                others.members.push(member);
                continue;
            }
            for index in elsewhere {
                let share = &self.configuration.shares[index];
                self.shares.granted[index] = share.demand;
                self.left[share.server as usize] -= u64::from(share.demand);
            }
            member.base += demanded;
            short.members.push(member);
        }
        [others, short]
    }
}

/// The bounds of a bucket's tokens when amounts are poured.
#[derive(Clone, Copy, Debug)]
struct BucketBounds {
    reservation: u64,
    least: u64,
    most: u64,
}

/// Divides `total` over the buckets: one after the other gets a token, always the one with the
/// smallest part of its reservation, of equals the one of which it is a larger part, but each its
/// least in any case and its most at most. `total` lies between the sums of both.
///
/// Token `n` of a bucket is one of those with a part below `level` if `n / R < level`; so a bucket
/// has `ceil(level R)` of these. The highest level for which there is enough is found bit by bit,
/// to less than the distance of two tokens of any bucket. So one more token each, at most, is left
/// to give.
fn pour(total: u64, buckets: &[BucketBounds]) -> Vec<u64> {
    let up_to = |level: u64, bounds: &BucketBounds| {
        let part = u128::from(level) * u128::from(bounds.reservation) + u128::from(u64::MAX);
        ((part >> 64) as u64).min(bounds.most).max(bounds.least)
    };
    let sum = |level: u64| buckets.iter().map(|bounds| up_to(level, bounds)).sum::<u64>();
    let largest = buckets.iter().map(|bounds| bounds.reservation).max().unwrap_or(0);
    let bits = (u64::BITS - largest.leading_zeros() + 1).min(u64::BITS);
    let mut level = 0;
    for bit in (u64::BITS - bits..u64::BITS).rev() {
        if sum(level | 1 << bit) <= total {
            level |= 1 << bit;
        }
    }
    let mut amounts: Vec<u64> = buckets.iter().map(|bounds| up_to(level, bounds)).collect();
    let left = (total - amounts.iter().sum::<u64>()) as usize;
    let mut next: Vec<usize> =
        (0..buckets.len()).filter(|&index| amounts[index] < buckets[index].most).collect();
    let order = |one: &usize, other: &usize| {
        let part = |index: usize, by: usize| {
            u128::from(amounts[index]) * u128::from(buckets[by].reservation)
        };
        let reservation = |index: usize| buckets[index].reservation;
        part(*one, *other)
            .cmp(&part(*other, *one))
            .then(reservation(*one).cmp(&reservation(*other)))
            .then(one.cmp(other))
    };
    if let Some(last) = left.checked_sub(1).filter(|last| *last < next.len()) {
        next.select_nth_unstable_by(last, order);
    }
    for &index in next.iter().take(left) {
        amounts[index] += 1;
    }
    amounts
}
