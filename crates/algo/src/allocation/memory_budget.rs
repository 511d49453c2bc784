//! Memory budget of a gateway: bounds the memory that requests of each client may use.
//!
//! # Problem
//! A request of 30 bytes can request 32 MiB, and a client that does not read the replies
//! leaves them with the gateway. 24 such clients took more than 2 GB. The memory of all clients
//! together must have a bound, and a client that reads must be served whatever the others do.
//!
//! # Model
//! A client's *load* is the bytes of its requests from the moment in which the request is admitted
//! until the kernel has taken the reply. The budget is one worker's, so that no lock is needed.
//!
//! # Mechanism
//! A request is admitted if one of these holds:
//!
//! - *floor*: the client's load with it is at most [`SHARE_MIN`];
//! - *share*: the client's load with it is at most its share, `limit / clients` but at most half of
//!   the limit, and the load of all clients with it is at most the limit, without the large
//!   request;
//! - *large request*: it is larger than the share, the client has no load, and no other client's
//!   large request is in flight. It has to be at most `large_limit` bytes.
//!
//! A client that is refused is not read from until memory was released. Example with a limit of
//! 32 MiB and four clients: each may have 8 MiB in flight. A client that requests 32 MiB at once
//! waits until its other requests are done, and then until no other large request is in flight.
//!
//! # Bound
//! `limit + large_limit + clients * SHARE_MIN` bytes. Bytes that a client has sent and the gateway
//! has not parsed come on top; the gateway bounds them by its read buffer.

/// Memory that each client may use whatever other clients do, in bytes: sixteen requests of 4 KiB.
/// Chosen by hand.
pub const SHARE_MIN: usize = 64 << 10;

/// The memory of one worker's clients.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    limit: usize,
    large_limit: usize,
    used: usize,
    /// The client whose large request is in flight, and the part of its load that is charged to
    /// `large_limit`.
    large: Option<u64>,
    large_used: usize,
    /// Bytes that were released since waiting clients were last resumed.
    released: usize,
    /// Clients that wait for memory.
    waiting: usize,
    clients: usize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, and of `large_limit` bytes for one large request at a time.
    pub const fn new(limit: usize, large_limit: usize) -> Self {
        Self {
            limit,
            large_limit,
            used: 0,
            large: None,
            large_used: 0,
            released: 0,
            waiting: 0,
            clients: 0,
        }
    }

    /// The bytes that all clients take up.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// The bytes that all clients may take up, besides the [`SHARE_MIN`] of each.
    pub const fn capacity(&self) -> usize {
        self.limit.saturating_add(self.large_limit)
    }

    /// A client has connected.
    pub const fn enter(&mut self) {
        self.clients += 1;
    }

    /// A client with this charge has left. Its memory at nodes, `remains`, is released as it comes
    /// back: see [`Self::release`].
    pub fn leave(&mut self, client: u64, charge: usize, remains: usize) {
        self.clients = self.clients.saturating_sub(1);
        self.charge(client, charge, remains);
        if self.large == Some(client) {
            (self.large, self.large_used) = (None, 0);
        }
    }

    /// The bytes that clients take up besides the large request.
    const fn common(&self) -> usize {
        self.used.saturating_sub(self.large_used)
    }

    /// The bytes that one client may take up, at least [`SHARE_MIN`].
    pub fn share(&self) -> usize {
        (self.limit / self.clients.max(2)).max(SHARE_MIN)
    }

    /// Whether `client`, which has this load, may have a request of `size` bytes. A request above
    /// the share becomes the large request.
    pub fn admits(&mut self, client: u64, load: usize, size: usize) -> bool {
        let (share, wanted) = (self.share(), load.saturating_add(size));
        if wanted <= SHARE_MIN {
            return true;
        }
        if size <= share {
            return wanted <= share && self.common().saturating_add(size) <= self.limit;
        }
        let is_free = self.large.is_none_or(|holder| holder == client);
        if load == 0 && size <= self.large_limit && is_free {
            self.large = Some(client);
            return true;
        }
        false
    }

    /// The bytes of further requests that a client with this load may have; more than zero for one
    /// without load. For requests whose size is an estimate.
    pub fn headroom(&self, load: usize) -> usize {
        let common = self.limit.saturating_sub(self.common());
        let share = self.share().saturating_sub(load).min(common);
        share.max(SHARE_MIN.saturating_sub(load))
    }

    /// Whether a reply of `size` bytes has to be dropped, whose size was not known when it was
    /// requested: the client has more than its share and the limit is reached, or everything is
    /// used up.
    pub fn overflows(&self, load: usize, size: usize) -> bool {
        let (used, wanted) = (self.used.saturating_add(size), load.saturating_add(size));
        let most = self.share().max(self.large_limit);
        wanted > most
            || (self.common().saturating_add(size) > self.limit && wanted > self.share())
            || (used > self.limit + self.large_limit && wanted > SHARE_MIN)
    }

    /// The charge of `client` was `before` bytes and is `now` bytes. A client that has at most
    /// [`SHARE_MIN`] bytes left no longer has the large request.
    pub fn charge(&mut self, client: u64, before: usize, now: usize) {
        self.used = (self.used + now).saturating_sub(before);
        self.released += before.saturating_sub(now);
        if self.large == Some(client) {
            // Load beyond `large_limit`, with a larger share, counts like any other load.
            self.large_used = if now > self.large_limit { self.large_limit } else { now };
            if now <= SHARE_MIN {
                (self.large, self.large_used) = (None, 0);
                self.released += SHARE_MIN;
            }
        }
    }

    /// Bytes of a client that has left are released, as its requests come back.
    pub fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        self.released += bytes;
    }

    /// A client that was refused waits.
    pub fn wait(&mut self) {
        self.waiting += 1;
    }

    /// Whether clients wait for memory.
    pub const fn is_contended(&self) -> bool {
        self.waiting > 0
    }

    /// Whether the clients that wait are to be checked again, because memory was released. If so,
    /// none of them waits any more.
    pub fn resumes(&mut self) -> bool {
        let resumes = self.waiting > 0 && self.released >= SHARE_MIN;
        if resumes {
            (self.waiting, self.released) = (0, 0);
        }
        resumes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const LIMIT: usize = 32 << 20;
    const LARGE_LIMIT: usize = 32 << 20;

    #[test]
    fn a_client_has_its_share_and_one_large_request_is_under_way() {
        let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
        budget.enter();
        assert_eq!(budget.share(), 16 << 20);
        (0..3).for_each(|_| budget.enter());
        assert_eq!(budget.share(), 8 << 20);
        assert!(budget.admits(1, 0, 8 << 20));
        budget.charge(1, 0, 8 << 20);
        assert!(!budget.admits(1, 8 << 20, 1), "its share is used up");
        assert!(budget.admits(2, 0, 32 << 20), "the large request");
        budget.charge(2, 0, 32 << 20);
        assert!(!budget.admits(3, 0, 32 << 20), "one large request at a time");
        assert!(budget.admits(3, 0, 1 << 20), "a large request keeps no other client out");
        budget.charge(4, 0, LIMIT - (8 << 20));
        assert!(!budget.admits(3, 0, 1 << 20), "the limit is reached");
        assert!(budget.admits(3, 0, SHARE_MIN), "there is always the floor");
        budget.wait();
        assert!(!budget.resumes());
        budget.charge(2, 32 << 20, 0);
        assert!(budget.resumes() && budget.admits(3, 0, 32 << 20));
        assert!(!budget.admits(4, 0, LARGE_LIMIT + 1), "larger than anything is admitted");
    }

    #[test]
    fn a_reply_is_dropped_where_its_client_has_more_than_its_share() {
        let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
        (0..4).for_each(|_| budget.enter());
        assert!(!budget.overflows(0, LARGE_LIMIT) && budget.overflows(0, LARGE_LIMIT + 1));
        budget.charge(1, 0, LIMIT);
        assert!(budget.overflows(8 << 20, 1));
        assert!(!budget.overflows(7 << 20, 1 << 20), "a client within its share is served");
        budget.charge(1, LIMIT, LIMIT + LARGE_LIMIT);
        assert!(budget.overflows(SHARE_MIN, 1) && !budget.overflows(0, SHARE_MIN));
    }

    #[test]
    fn a_reply_is_kept_up_to_each_of_the_bounds_and_not_beyond() {
        let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
        (0..4).for_each(|_| budget.enter());
        // The limit is reached and not passed: a client above its share is still served.
        budget.charge(1, 0, LIMIT - 1);
        assert!(!budget.overflows(8 << 20, 1) && budget.overflows(8 << 20, 2));
        // Everything is used up, and not more: so is one above the floor.
        budget.charge(1, LIMIT - 1, LIMIT + LARGE_LIMIT - 1);
        assert!(!budget.overflows(SHARE_MIN, 1) && budget.overflows(SHARE_MIN, 2));
    }

    #[test]
    fn waiting_clients_are_checked_again_once_a_floor_of_memory_is_released() {
        let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
        budget.enter();
        budget.charge(1, 0, 4 * SHARE_MIN);
        budget.release(SHARE_MIN);
        assert!(!budget.is_contended() && !budget.resumes(), "no client waits");
        budget.wait();
        assert!(budget.is_contended() && budget.resumes(), "it was released meanwhile");
        assert!(!budget.is_contended() && !budget.resumes(), "and is looked at once");
        // Bytes count whether they are released at once or one by one, by clients that stay or go.
        budget.wait();
        budget.charge(1, 4 * SHARE_MIN, 4 * SHARE_MIN - 7);
        budget.release(SHARE_MIN - 8);
        assert!(!budget.resumes());
        budget.release(1);
        assert!(budget.resumes());
        assert_eq!(budget.used(), 2 * SHARE_MIN, "what was taken less what was released");
    }

    #[test]
    fn memory_of_a_finished_large_request_counts_as_released() {
        for leaves in [false, true] {
            let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
            (0..2).for_each(|_| budget.enter());
            assert!(budget.admits(1, 0, 32 << 20) && !budget.admits(2, 0, 32 << 20));
            budget.wait();
            match leaves {
                true => budget.leave(1, 0, 0),
                // It had taken up nothing yet: that alone would release nothing.
                false => budget.charge(1, 0, 10),
            }
            assert!(budget.resumes(), "leaves {leaves}");
            assert!(budget.admits(2, 0, 32 << 20), "leaves {leaves}");
        }
    }

    proptest! {
        #[test]
        fn what_is_admitted_stays_within_the_bound(
            steps in prop::collection::vec((0..6_usize, 0..40_usize << 20, any::<bool>()), 0..200),
            clients in 1..6_usize,
        ) {
            let mut budget = MemoryBudget::new(LIMIT, LARGE_LIMIT);
            (0..clients).for_each(|_| budget.enter());
            let mut loads = vec![0_usize; clients];
            for (client, size, is_done) in steps {
                let client = client % clients;
                let load = loads[client];
                let next = match is_done {
                    true => load.saturating_sub(size),
                    false if budget.admits(client as u64, load, size) => load + size,
                    false => load,
                };
                budget.charge(client as u64, load, next);
                loads[client] = next;
                prop_assert_eq!(budget.used(), loads.iter().sum::<usize>());
                prop_assert!(budget.used() <= LIMIT + LARGE_LIMIT + clients * SHARE_MIN);
                // A client without load may always request something, and no client needs more
                // memory than there is for the floor.
                let idle = loads.iter().position(|load| *load == 0);
                if let Some(idle) = idle {
                    prop_assert!(budget.admits(idle as u64, 0, SHARE_MIN));
                    prop_assert!(budget.headroom(0) >= SHARE_MIN);
                }
            }
        }
    }
}
