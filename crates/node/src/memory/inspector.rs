//! Inspection of the memory: every client can write to all of it, so the node checks whether the
//! structures that it shares with its clients are still in a reachable state.
//!
//! # Mechanism
//! The control words, the grants and the store's words are compared every [`CHECK`], some 20 KB;
//! the store's index and list of free blocks follow in portions, all of it within [`PASS`]. While
//! no client has a session slot only the words are inspected, once a second. The memory is
//! inspected before a client receives it.
//!
//! The processor reads also where clients come through an RNIC: it changes nothing.

use std::sync::Arc;

use tidegate_fabric::clock::kernel_time;
use tidegate_fabric::memory::model::{self, Speed};
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_model::cluster::{DataNode, MemoryTransport};
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::{Monitor, region_layout};
use tidegate_onesided::integrity::Structure;
use tidegate_onesided::kv::{self, Layout, OpenError, Opening};
use tidegate_onesided::one_sided::{BUFFER, BufferPosition, Operation, RemoteMemory as _};

use super::rnic::Own;

/// The interval between checks of the words while clients are connected.
pub(super) const CHECK: Span = Span(10 * Span::MILLISECOND.0);

/// The interval without clients.
pub(super) const IDLE_CHECK: Span = Span::SECOND;

/// The time in which the index and the list of free blocks are checked, while clients are
/// connected.
pub(super) const PASS: Span = Span(5 * Span::SECOND.0);

/// How far a modelled NIC may be ahead of the time: twice the service time of all operations that
/// its clients can have in flight is less, at any speed of the NIC. Chosen by hand.
const NIC_AHEAD: Span = Span(600 * Span::SECOND.0);

/// Inspects the memory of a data node.
pub(super) struct Inspector {
    memory: Shm,
    region: Arc<Region>,
    store: kv::Inspector,
    /// The speed of the modelled NIC, if there is one.
    rnic: Option<Speed>,
    at: Time,
}

/// The speed of this node's modelled NIC; none with another transport.
pub(super) fn speed(node: &DataNode) -> Option<Speed> {
    (node.transport == MemoryTransport::Model).then(|| Speed::new(node.capacity, node.client))
}

impl Inspector {
    /// Of this memory, which has a store.
    ///
    /// # Errors
    /// If there is no store that this release can use.
    pub(super) fn new(node: &DataNode, region: &Arc<Region>) -> Result<Self, OpenError> {
        let layout = Opening::at_once(Shm::new(region.clone(), 1), region_layout::DATA)?;
        Ok(Self::of(node, region, layout))
    }

    fn of(node: &DataNode, region: &Arc<Region>, layout: Layout) -> Self {
        let memory = Shm::new(region.clone(), 1);
        let (store, rnic) = (kv::Inspector::new(layout), speed(node));
        Self { memory, region: region.clone(), store, rnic, at: Time::ZERO }
    }

    /// Runs the checks that are due, and returns the damaged structure.
    pub(super) fn poll(
        &mut self,
        now: Time,
        is_idle: bool,
        monitor: &Monitor<Own>,
    ) -> Option<Structure> {
        if now < self.at {
            return None;
        }
        self.at = now.after(if is_idle { IDLE_CHECK } else { CHECK });
        let damaged = self.check(monitor);
        if damaged.is_some() || is_idle {
            return damaged;
        }
        let chunk = u128::from(self.store.length()) * u128::from(CHECK.0) / u128::from(PASS.0);
        let (memory, store) = (&mut self.memory, &mut self.store);
        store.scan(u64::try_from(chunk).unwrap_or(u64::MAX) + 1, &mut |at, into| {
            read(memory, at, into)
        })
    }

    /// When it is to be polled again.
    pub(super) const fn next(&self) -> Time {
        self.at
    }

    /// A client connects: rare checks become frequent.
    pub(super) fn wake(&mut self, now: Time) {
        self.at = self.at.min(now);
    }

    /// Checks the control words, the grants and the store's words.
    pub(super) fn check(&mut self, monitor: &Monitor<Own>) -> Option<Structure> {
        let memory = &mut self.memory;
        let mut read = |at, into: &mut [u8]| read(memory, at, into);
        let damaged = monitor.inspect(&mut read).or_else(|| self.store.check(&mut read));
        damaged.or_else(|| {
            let now = kernel_time();
            let is_sound = |speed| {
                model::is_sound(&self.region, region_layout::NIC, speed, now.after(NIC_AHEAD))
            };
            (!self.rnic.is_none_or(is_sound)).then_some(Structure::Nic)
        })
    }

    /// Checks the whole store, at once.
    pub(super) fn inspect_store(&mut self) -> Option<Structure> {
        let memory = &mut self.memory;
        self.store.check_all(&mut |at, into| read(memory, at, into))
    }
}

/// Copies bytes of the memory.
fn read(memory: &mut Shm, at: u64, into: &mut [u8]) {
    for (from, into) in (at..).step_by(BUFFER as usize).zip(into.chunks_mut(BUFFER as usize)) {
        let length = into.len() as u32;
        let done =
            memory.perform(&Operation::Read { from, into: BufferPosition::start(0), length });
        // The bytes to inspect were laid out in this region.
        debug_assert!(done.is_ok(), "{done:?}");
        into.copy_from_slice(&memory.buffer(0)[..into.len()]);
    }
}
