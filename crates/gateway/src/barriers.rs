//! Barriers before parts of volumes: no request passes while a write may still happen that was
//! reported as failed, or whose client has disconnected.
//!
//! # Problem
//! A write may be carried out after its end here: its client disconnected while it was on its way,
//! or it failed with its link. A later request of another session may take another way to the node
//! (the other link, or another worker's) and arrive first. Then the earlier write replaces what was
//! acknowledged later.
//!
//! # Mechanism
//! Each part has a count of such writes, of all workers of the gateway:
//!
//! - jobs that change the part and whose client has disconnected, until they come back from the
//!   node. They are cancelled, so that is soon.
//! - links on which such jobs failed, until the node has accepted the link's next connection.
//!   Before that it ends the earlier one ([`tidegate_proto::data::LinkIdentity`]).
//! - workers that have not yet searched for disconnected clients, when a session opens the volume:
//!   the successor of a client that died must not overtake writes whose worker has not noticed the
//!   disconnect.
//!
//! While the count is not zero, requests for the part wait, and every worker is woken when it
//! becomes zero. Behind a link that is down they wait as long as a request waits for an unreachable
//! node, and then fail. Otherwise they wait until the node has replied, as the earlier requests do.
//!
//! A worker raises a barrier before it reports the failure to the client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_fabric::reactor::MessageQueue;

use crate::message::Message;
use crate::volumes::VolumeIndex;

/// Why a barrier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A job is in flight whose client has disconnected, or may have.
    Client,
    /// Jobs failed with their link, which is down.
    Link,
}

impl Cause {
    /// One in the count of this cause: one half of the number is for each.
    const fn one(self) -> u64 {
        match self {
            Self::Client => 1,
            Self::Link => 1 << 32,
        }
    }
}

/// The barriers before all parts of the volumes, or of the pool, that some workers serve.
#[derive(Debug)]
pub(crate) struct Barriers {
    /// By volume and part.
    parts: Vec<Box<[AtomicU64]>>,
    workers: Mutex<Vec<WorkerChecks>>,
}

#[derive(Debug)]
struct WorkerChecks {
    message_queue: Arc<MessageQueue<Message>>,
    /// The volumes that the worker has to search for disconnected clients.
    unchecked: Vec<VolumeIndex>,
}

impl Barriers {
    /// None before volumes with so many parts.
    pub(crate) fn new(parts: impl IntoIterator<Item = usize>) -> Arc<Self> {
        let part = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (parts, workers) = (parts.into_iter().map(part).collect(), Mutex::default());
        Arc::new(Self { parts, workers })
    }

    /// Adds a worker, which leaves when the returned value is dropped.
    pub(crate) fn join(self: &Arc<Self>, message_queue: Arc<MessageQueue<Message>>) -> Membership {
        self.workers()
            .push(WorkerChecks { message_queue: message_queue.clone(), unchecked: Vec::new() });
        Membership { barriers: self.clone(), message_queue }
    }

    /// Whether a barrier stands before this part.
    #[inline]
    pub(crate) fn holds(&self, volume: VolumeIndex, part: u32) -> bool {
        self.parts[volume.0][part as usize].load(Ordering::Acquire) != 0
    }

    /// Whether it stands because of a link that is down.
    pub(crate) fn awaits_link(&self, volume: VolumeIndex, part: u32) -> bool {
        self.parts[volume.0][part as usize].load(Ordering::Acquire) >= Cause::Link.one()
    }

    /// One more of this cause.
    pub(crate) fn raise(&self, volume: VolumeIndex, part: u32, cause: Cause) {
        self.parts[volume.0][part as usize].fetch_add(cause.one(), Ordering::AcqRel);
    }

    /// One less of this cause. If it was the last, workers check the requests that wait.
    pub(crate) fn lower(&self, volume: VolumeIndex, part: u32, cause: Cause) {
        self.lower_locked(volume, part, cause, &self.workers());
    }

    /// Lowers the barrier of a volume's clients before each of its parts.
    fn lower_all(&self, volume: VolumeIndex, workers: &[WorkerChecks]) {
        for part in 0..self.count(volume) {
            self.lower_locked(volume, part, Cause::Client, workers);
        }
    }

    fn lower_locked(&self, volume: VolumeIndex, part: u32, cause: Cause, workers: &[WorkerChecks]) {
        let before = self.parts[volume.0][part as usize].fetch_sub(cause.one(), Ordering::AcqRel);
        assert!(before >= cause.one(), "a barrier was lowered that was not raised");
        if before == cause.one() {
            workers.iter().for_each(|worker| worker.message_queue.wake());
        }
    }

    /// Makes all workers search for disconnected clients of a volume. Until they have, barriers
    /// stand before its parts.
    pub(crate) fn open(&self, volume: VolumeIndex) {
        for worker in self.workers().iter_mut() {
            (0..self.count(volume)).for_each(|part| self.raise(volume, part, Cause::Client));
            worker.unchecked.push(volume);
            worker.message_queue.push(Message::CheckClients { volume });
        }
    }

    fn count(&self, volume: VolumeIndex) -> u32 {
        self.parts[volume.0].len() as u32
    }

    /// Each change of it is whole before anything else can fail.
    fn workers(&self) -> MutexGuard<'_, Vec<WorkerChecks>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's part in the barriers.
#[derive(Debug)]
pub(crate) struct Membership {
    barriers: Arc<Barriers>,
    message_queue: Arc<MessageQueue<Message>>,
}

impl Membership {
    pub(crate) fn barriers(&self) -> &Barriers {
        &self.barriers
    }

    /// The worker has searched for disconnected clients of this volume.
    pub(crate) fn on_clients_checked(&self, volume: VolumeIndex) {
        let mut workers = self.barriers.workers();
        let Some(own) = self.own(&workers) else { return };
        let unchecked = &mut workers[own].unchecked;
        let Some(at) = unchecked.iter().position(|unchecked| *unchecked == volume) else { return };
        unchecked.swap_remove(at);
        self.barriers.lower_all(volume, &workers);
    }

    /// The index of the worker itself.
    fn own(&self, workers: &[WorkerChecks]) -> Option<usize> {
        workers.iter().position(|other| Arc::ptr_eq(&other.message_queue, &self.message_queue))
    }
}

impl Drop for Membership {
    /// A worker that has ended has no clients, so it does not search for them.
    fn drop(&mut self) {
        let mut workers = self.barriers.workers();
        let Some(own) = self.own(&workers) else { return };
        for volume in workers.swap_remove(own).unchecked {
            self.barriers.lower_all(volume, &workers);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_fabric::reactor::Reactor;

    use super::*;

    const OTHER: VolumeIndex = VolumeIndex(0);
    const VOLUME: VolumeIndex = VolumeIndex(1);

    /// Whether the worker was woken, and the volumes that it has to search.
    fn wakes(reactor: &mut Reactor<Message>) -> Vec<VolumeIndex> {
        let mut messages = Vec::new();
        reactor.wait(Some(Duration::ZERO), &mut Vec::new(), &mut messages).unwrap();
        let check_clients = |message| match message {
            Message::CheckClients { volume } => volume,
            other => panic!("{other:?}"),
        };
        messages.into_iter().map(check_clients).collect()
    }

    #[test]
    fn a_barrier_holds_until_every_cause_is_gone() {
        let barriers = Barriers::new([1, 2]);
        let causes = [Cause::Link, Cause::Client, Cause::Link];
        causes.iter().for_each(|cause| barriers.raise(VOLUME, 1, *cause));
        for (at, cause) in causes.into_iter().enumerate() {
            assert!(
                barriers.holds(VOLUME, 1) && barriers.awaits_link(VOLUME, 1),
                "{at} are lowered"
            );
            barriers.lower(VOLUME, 1, cause);
        }
        assert!(!barriers.holds(VOLUME, 1) && !barriers.awaits_link(VOLUME, 1));
        barriers.raise(VOLUME, 1, Cause::Client);
        assert!(barriers.holds(VOLUME, 1) && !barriers.awaits_link(VOLUME, 1), "no link is down");
        assert!(
            ![(OTHER, 0), (VOLUME, 0)]
                .into_iter()
                .any(|(volume, part)| barriers.holds(volume, part))
        );
    }

    #[test]
    fn a_volume_is_open_once_every_worker_has_checked_its_clients_or_ended() {
        let barriers = Barriers::new([1, 2]);
        let mut reactors = [(); 3].map(|()| Reactor::new().unwrap());
        let [one, other, third] = reactors.each_ref().map(|it| barriers.join(it.message_queue()));
        barriers.open(VOLUME);
        barriers.open(VOLUME);
        let holds = || {
            [(OTHER, 0), (VOLUME, 0), (VOLUME, 1)]
                .map(|(volume, part)| barriers.holds(volume, part))
        };
        assert!(reactors.iter_mut().all(|reactor| wakes(reactor) == [VOLUME; 2]));
        one.on_clients_checked(VOLUME);
        one.on_clients_checked(VOLUME);
        // It holds no barrier any more.
        one.on_clients_checked(VOLUME);
        drop(other);
        third.on_clients_checked(VOLUME);
        assert_eq!(holds(), [false, true, true]);
        third.on_clients_checked(VOLUME);
        assert_eq!(holds(), [false; 3]);
    }
}
