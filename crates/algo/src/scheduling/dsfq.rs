//! Fair shares of many nodes together: what a gateway reports with a request, and how much of it a
//! node applies (Wang and Merchant, "Proportional-Share Scheduling for Distributed Storage
//! Systems", FAST 2007).
//!
//! # Problem
//! A node that schedules fairly sees only what comes to it. A tenant that is also served at other
//! nodes gets its whole share here nevertheless, and so more in sum than one whose data happen to
//! lie on this node alone.
//!
//! # Mechanism
//! A gateway that sends a tenant's requests reports to each node, with each request, the cost that
//! it has sent to *other* nodes since its last request to this one: the request's *delay* (Eq. 7 of
//! the paper: batchcost - cost). The node moves the request's start tag back by as much
//! ([`crate::scheduling::scheduler`]), as if the tenant had been served it here. No message is
//! needed for that.
//!
//! A gateway reports past service and nothing else; the node decides what to make of it
//! ([`Bound`]). Gateways need no weights, and a node may change its discipline while requests are
//! on their way.
//!
//! # Many gateways, and many workers of one
//! [`Elsewhere`] keeps, for each node, what was sent to it, what was sent in all, and how much of
//! the difference was reported already. A report raises the last number, by an atomic maximum; so
//! whichever thread sends next, each unit of cost is reported to a node exactly once, and Theorem 4
//! of the paper holds with workers for coordinators. Its exception is a tenant whose requests go to
//! disjoint nodes through different gateways, so that no next request could carry the delay.
//! [`Elsewhere::take_unreported`] closes it: what no request has picked up for a while goes to the
//! node alone, as the *virtual request* of the paper's Figure 4, but summed up. The node keeps it
//! for that tenant's next request, from any gateway.
//!
//! # Example
//! Unit costs, sent in this order to A, B, B, A, B, A: the requests to A carry 0, 2 and 1, those to
//! B carry 1, 0 and 1 (the paper's Fig. 5).

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// The cost of one tenant's requests through one gateway, and the part of it reported to each node.
///
/// ```
/// use tidegate_algo::scheduling::dsfq::Elsewhere;
/// let [a, b] = [0, 1];
/// let tenant = Elsewhere::new(2);
/// let delays = [a, b, b, a, b, a].map(|node| tenant.sent(node, 1));
/// assert_eq!(delays, [0, 1, 0, 2, 1, 1]);
/// assert_eq!(tenant.take_unreported(b), 1); // and if no further request goes to b
/// assert_eq!(tenant.take_unreported(b), 0); // it is reported once
/// ```
#[derive(Debug)]
pub struct Elsewhere {
    /// To all nodes.
    total: AtomicU64,
    nodes: Box<[Account]>,
}

#[derive(Debug, Default)]
struct Account {
    /// Cost of what was sent to it.
    sent: AtomicU64,
    /// Cost of what was sent to other nodes, as far as it was reported.
    reported: AtomicU64,
}

impl Elsewhere {
    /// Of a tenant that has sent nothing yet to any of so many nodes.
    pub fn new(nodes: usize) -> Self {
        let nodes = core::iter::repeat_with(Account::default).take(nodes).collect();
        Self { total: AtomicU64::new(0), nodes }
    }

    /// A request of this cost goes to this node. Returns its delay: the cost sent to other nodes
    /// and not yet reported. A rest that does not fit goes with the next request.
    ///
    /// # Panics
    /// If there is no such node.
    #[inline]
    pub fn sent(&self, node: usize, cost: u32) -> u32 {
        let account = &self.nodes[node];
        if self.nodes.len() == 1 {
            return 0;
        }
        let delay = self.take(account, u64::from(u32::MAX));
        // First here and then in the sum: a thread that reads the sum reads here at least what is
        // in it.
        account.sent.fetch_add(u64::from(cost), Ordering::Relaxed);
        self.total.fetch_add(u64::from(cost), Ordering::Release);
        delay as u32
    }

    /// Takes the cost that no request has reported to this node yet.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn take_unreported(&self, node: usize) -> u64 {
        self.take(&self.nodes[node], u64::MAX)
    }

    /// Cost of everything that was sent; zero with one node, which needs no reports.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn take(&self, account: &Account, most: u64) -> u64 {
        let total = self.total.load(Ordering::Acquire);
        let elsewhere = total.saturating_sub(account.sent.load(Ordering::Relaxed));
        let reported = account.reported.load(Ordering::Relaxed);
        if elsewhere <= reported {
            return 0;
        }
        let upto = elsewhere.min(reported.saturating_add(most));
        upto.saturating_sub(account.reported.fetch_max(upto, Ordering::Relaxed))
    }
}

/// How far a request may be delayed for what its tenant was served at other nodes, per unit of its
/// own cost: κ of Eq. 11 and 12. In parts of 2^16, rounded down, so that never more is taken from a
/// minimum share than may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound(u32);

impl Bound {
    /// No bound: TOTAL-DSFQ.
    pub const NONE: Self = Self(u32::MAX);
    /// No delay at all: each node for itself.
    pub const ZERO: Self = Self(0);

    /// The bound that leaves a tenant `minimum` millionths of each node, if `weight` of
    /// `weights` is its own: κ = (φ / φ_min - 1) / (1 - φ) with φ = `weight / weights`.
    ///
    /// Why that is enough: delayed as far as it may be, a request counts 1 + κ times, so the
    /// tenant competes with a weight of φ / (1 + κ) against at most 1 - φ, and gets
    /// φ / (1 + κ (1 - φ)) = φ_min of what there is.
    ///
    /// ```
    /// use tidegate_algo::scheduling::dsfq::Bound;
    /// assert_eq!(Bound::leaving(83_334, 1, 2).of(4_096) >> 16, 40_959); // 1/12 of two: κ = 10
    /// assert_eq!(Bound::leaving(500_000, 1, 2), Bound::ZERO);
    /// assert_eq!(Bound::leaving(0, 1, 2), Bound::NONE);
    /// ```
    pub fn leaving(minimum: u32, weight: u32, weights: u64) -> Self {
        const WHOLE: u128 = 1_000_000;
        let (minimum, weight) = (u128::from(minimum), u128::from(weight));
        let weights = u128::from(weights).max(weight);
        let others = weights - weight;
        if minimum == 0 || others == 0 {
            return Self::NONE;
        }
        // Twenty digits for each factor at most: weights are below 2^64, parts below 2^20.
        let above = (weight * WHOLE).saturating_sub(weights * minimum);
        let Some(below) = minimum.checked_mul(others) else { return Self::ZERO };
        Self(u32::try_from((above << 16) / below).unwrap_or(u32::MAX))
    }

    /// The most that a request of this cost may be delayed, in parts of 2^16 of a unit of cost.
    #[inline]
    pub const fn of(self, cost: u32) -> u64 {
        if self.0 == u32::MAX { u64::MAX } else { cost as u64 * self.0 as u64 }
    }
}

#[cfg(test)]
#[path = "dsfq_tests.rs"]
mod tests;
