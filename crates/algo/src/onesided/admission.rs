//! Admission of clients to a data node: checks whether the node can keep their reservations.
//!
//! # Model
//! The node does at most C_G operations per period, a client at most C_L (Definition 2). Both must
//! hold: ΣR ≤ C_G, and each R ≤ C_L.
//!
//! That is enough if tokens are paced. If not, it is not (the paper's second example): clients with
//! small reservations use theirs at once and take an equal part of the node from those with large
//! ones, which cannot make up for it afterwards, as each can do no more than C_L alone. Whether all
//! are done in time if all begin at once is found by *filling*: all that are left go on at the same
//! rate, C_L or an equal part of C_G, until the one with the least left is done, and so on.
//!
//! Bounds. Exact, in integers.

use alloc::vec::Vec;

/// The capacities of a data node and of a client, in operations per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// C_G.
    pub global: u64,
    /// C_L.
    pub local: u64,
}

/// Why a reservation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationRefusal {
    /// All reservations together are more than the node can do.
    #[error(
        "all reservations together are {reserved} operations per period, and the node can do \
         {global}; lower them by {}",
        .reserved - .global
    )]
    Aggregate {
        /// The sum of the reservations, in operations per period.
        reserved: u64,
        /// The capacity of the node, in operations per period.
        global: u64,
    },
    /// One is more than a client can do.
    #[error(
        "client {client} reserves {reservation} operations per period, and a client can do \
         {local}; lower it, or reserve as several clients"
    )]
    Local {
        /// Which, in the order given.
        client: usize,
        /// Its reservation, in operations per period.
        reservation: u64,
        /// The capacity of a client, in operations per period.
        local: u64,
    },
    /// If all begin at once, this one is not done in time.
    #[error(
        "client {client} reserves {reservation} operations per period, and would get {done} if all \
         clients began at once; pace the tokens, or lower it"
    )]
    Burst {
        /// Which, in the order given.
        client: usize,
        /// Its reservation, in operations per period.
        reservation: u64,
        /// The operations of that reservation that would be done in time.
        done: u64,
    },
}

/// Whether these reservations, in operations per period, can be promised.
///
/// ```
/// use tidegate_algo::onesided::admission::{Capacity, ReservationRefusal, admit};
/// // The paper's second example.
/// let capacity = Capacity { global: 100, local: 50 };
/// let requested = [40, 10, 10, 10, 10];
/// assert_eq!(admit(capacity, &requested, true), Ok(()));
/// assert_eq!(
///     admit(capacity, &requested, false),
///     Err(ReservationRefusal::Burst { client: 0, reservation: 40, done: 35 })
/// );
/// ```
///
/// # Errors
/// The first thing that cannot be kept.
pub fn admit(
    capacity: Capacity,
    reservations: &[u64],
    is_paced: bool,
) -> Result<(), ReservationRefusal> {
    let Capacity { global, local } = capacity;
    let mut each = reservations.iter().enumerate();
    if let Some((client, reservation)) = each.find(|(_, reservation)| **reservation > local) {
        return Err(ReservationRefusal::Local { client, reservation: *reservation, local });
    }
    let reserved = reservations.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
    if reserved > global {
        return Err(ReservationRefusal::Aggregate { reserved, global });
    }
    if is_paced {
        return Ok(());
    }
    let served = fill(capacity, reservations);
    let short = |client: &usize| served[*client] < reservations[*client];
    match (0..served.len()).filter(short).max_by_key(|client| reservations[*client]) {
        None => Ok(()),
        Some(client) => Err(ReservationRefusal::Burst {
            client,
            reservation: reservations[client],
            done: served[client],
        }),
    }
}

/// How much of its demand each client is served within a period, if all begin at once and the node
/// is shared equally. Rounded down.
///
/// # Panics
/// If a sum of demands, or the product of both capacities, is more than a number can hold.
pub fn fill(capacity: Capacity, demands: &[u64]) -> Vec<u64> {
    let [global, local] = [capacity.global, capacity.local].map(u128::from);
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|client| demands[*client]);
    // All that are left have been served the same so far, `level`. First the node is the limit, and
    // it has done `together`; then each client is, and has done `alone` since. So the time is
    // together ÷ global + alone ÷ local, in periods.
    let (mut together, mut alone, mut level) = (0u128, 0u128, 0u128);
    let mut served = alloc::vec![0; demands.len()];
    for (at, client) in order.iter().enumerate() {
        let left = (demands.len() - at) as u128;
        let more = u128::from(demands[*client]) - level;
        let most = match local * left < global {
            false => (global - together) / left,
            true => (global * local - together * local - alone * global) / global,
        };
        let done = more.min(most);
        match local * left < global {
            false => together += done * left,
            true => alone += done,
        }
        level += done;
        order[at..].iter().for_each(|client| served[*client] = level as u64);
        if done < more {
            break;
        }
    }
    served
}
