//! The interface of a stage to asynchronous requests, whose times are found by polling their rings:
//! see [`crate::asynchronous`].

use crate::asynchronous::{Completion, Completions, IN_FLIGHT, RingId, Watch};
use crate::local;
use crate::stage::Stage;

/// Asynchronous requests.
impl Stage {
    /// Notes requests with these keys, which this process is about to hand to a ring, and polls
    /// the ring for it: see [`crate::asynchronous`].
    pub fn begin_asynchronous(
        &self,
        seen: Completions,
        read: impl Fn(u32) -> Option<Completion>,
        keys: impl Iterator<Item = u64>,
    ) {
        self.poll(seen, false, read);
        IN_FLIGHT.begin(seen, keys, self.now());
    }

    /// Forgets requests that the kernel did not take.
    pub fn cancel_asynchronous(&self, ring: RingId, keys: impl Iterator<Item = u64>) {
        IN_FLIGHT.cancel(ring, keys);
    }

    /// Whether requests in this ring are timed.
    #[inline]
    pub fn follows(&self, ring: RingId) -> bool {
        IN_FLIGHT.follows(ring)
    }

    /// Whether requests that are timed are in flight in this ring.
    pub fn is_in_flight(&self, ring: RingId) -> bool {
        IN_FLIGHT.is_open(ring)
    }

    /// Runs `work`. While it waits at a gate, the watch polls its ring again and again, for as
    /// long as requests are in flight there.
    pub fn watching<R>(&self, watch: Watch, work: impl FnOnce() -> R) -> R {
        let before = local::watch(Some(watch));
        let result = work();
        local::watch(before);
        result
    }

    /// Polls the completions of a ring, of which `read` gives the one at a position, and takes
    /// in what that tells of the storage. `has_waited` says that a call of the program has waited,
    /// since the poll before, until the last of them came.
    pub fn poll(
        &self,
        seen: Completions,
        has_waited: bool,
        read: impl Fn(u32) -> Option<Completion>,
    ) {
        let record = |took| self.layout().storage.service.record(took);
        IN_FLIGHT.poll(seen, has_waited, self.now(), read, record);
    }

    /// Forgets a ring that this process ends.
    pub fn forget_ring(&self, ring: RingId) {
        IN_FLIGHT.forget(ring);
    }
}
