//! Other memory for a data node: it moves away from a client, or makes damaged memory anew.
//!
//! # Mechanism
//! New memory gets its control words from the monitor, never from the old memory, which clients
//! write to. The store is copied after the old memory is marked as left, and the copy, which no
//! other process has, is checked. A damaged store is not copied: the new memory has an empty one
//! then. Where there is no headroom for a second memory, and behind an RNIC, where clients can be
//! shut out, the memory stays and is made anew in place.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::sendfile;
use tidegate_fabric::memory::model;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
use tidegate_onesided::haechi::region_layout;
use tidegate_onesided::integrity::Structure;
use tidegate_onesided::one_sided::{BUFFER, BufferPosition, Operation};

use super::super::StartError;
use super::super::inspector::{Inspector, speed};
use super::{Host, format, monitor, region, set_left, sweeper};
use crate::mutex::lock;

/// The largest piece that is copied at once.
const CHUNK: u64 = 1 << 30;

/// The state of the store after its memory was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RemadeStore {
    /// It is complete.
    Kept,
    /// This structure was damaged, so the store is empty now.
    Emptied(Structure),
}

impl Host {
    /// Continues with a copy of the memory, in which no client has a session slot. No process may
    /// use the old one any more. Behind an RNIC it is the same memory, and no client may reach it.
    ///
    /// A client that is stopped in the middle of an operation cannot answer. So the old memory is
    /// marked as left before the first byte of the store is copied, and clients check that mark
    /// after each operation (`remote::memory::shm` explains why that is enough).
    ///
    /// # Errors
    /// If there is not enough memory, or the RNIC cannot be used. The old memory stays in use then.
    pub(in super::super) fn move_memory(&self) -> Result<RemadeStore, StartError> {
        let old = lock(&self.inner).region.clone();
        if self.rnic.is_some() {
            return self.make_anew_in_place(&old);
        }
        let new = region(&self.node)?;
        set_left(&old, true);
        let moved = self.go_on_with(&old, new).inspect_err(|_| set_left(&old, false))?;
        self.settle();
        Ok(moved)
    }

    /// As [`Self::move_memory`], because a structure of the memory is damaged. Where there is no
    /// headroom for a copy, the memory is made anew in place, with an empty store.
    ///
    /// # Errors
    /// If the RNIC cannot be used.
    pub(in super::super) fn remake(&self, damaged: Structure) -> Result<RemadeStore, StartError> {
        match self.move_memory() {
            Err(error @ StartError::Memory { .. }) => {
                tracing::warn!(%error, "the damaged memory is emptied in place");
                let old = lock(&self.inner).region.clone();
                let control = self.control_words();
                wipe(&old)?;
                self.fill(&old, &control)?;
                self.begin_anew(old)?;
                // Disconnected clients still map it.
                lock(&self.inner).sweeper.doubt();
                Ok(RemadeStore::Emptied(damaged))
            }
            remade => remade,
        }
    }

    fn control_words(&self) -> [(u64, u64); 5] {
        lock(&self.inner).monitor.control_words()
    }

    /// Copies the store to new memory, and continues there.
    fn go_on_with(&self, old: &Region, mut new: Arc<Region>) -> Result<RemadeStore, StartError> {
        let control = self.control_words();
        copy(old, &new, region_layout::DATA, old.length())?;
        let store = self.inspect_store(&new);
        if store != RemadeStore::Kept {
            drop(new);
            new = region(&self.node)?;
            self.fill(&new, &control)?;
        } else {
            self.write_control(&new, &control);
        }
        self.begin_anew(new)?;
        Ok(store)
    }

    /// Continues with the same memory, which no client reaches.
    fn make_anew_in_place(&self, memory: &Arc<Region>) -> Result<RemadeStore, StartError> {
        let (control, store) = (self.control_words(), self.inspect_store(memory));
        match store {
            RemadeStore::Kept => {
                clear(memory, 0, region_layout::DATA)?;
                self.write_control(memory, &control);
            }
            RemadeStore::Emptied(_) => {
                wipe(memory)?;
                self.fill(memory, &control)?;
            }
        }
        self.begin_anew(memory.clone())?;
        Ok(store)
    }

    /// Whether the store can be kept. No other process has or reaches its memory.
    fn inspect_store(&self, memory: &Arc<Region>) -> RemadeStore {
        match Inspector::new(&self.node, memory).map(|mut inspector| inspector.inspect_store()) {
            Ok(None) => RemadeStore::Kept,
            Ok(Some(structure)) => RemadeStore::Emptied(structure),
            Err(_) => RemadeStore::Emptied(Structure::StoreHeader),
        }
    }

    /// Turns zeroed memory into that of a node with an empty store.
    fn fill(&self, memory: &Arc<Region>, control: &[(u64, u64)]) -> Result<(), StartError> {
        format(memory)?;
        self.write_control(memory, control);
        Ok(())
    }

    fn write_control(&self, memory: &Arc<Region>, control: &[(u64, u64)]) {
        if let Some(speed) = speed(&self.node) {
            model::set(memory, region_layout::NIC, speed);
        }
        for (to, word) in control.iter().copied() {
            let written = Shm::new(memory.clone(), 0).perform(&Operation::WriteWord { word, to });
            debug_assert!(written.is_ok(), "a region has control words");
        }
    }

    /// Continues with this memory, in which no client has a session slot.
    fn begin_anew(&self, region: Arc<Region>) -> Result<(), StartError> {
        let rnic = self.rnic.as_ref();
        let monitor = monitor((&self.node, self.rules), rnic, &region, self.clock.now())?;
        let sweeper = sweeper(&self.node, rnic, &region, true)?;
        let inspector = Inspector::new(&self.node, &region).map_err(StartError::Store)?;
        let mut inner = lock(&self.inner);
        (inner.region, inner.monitor, inner.sweeper) = (region, monitor, sweeper);
        inner.inspector = inspector;
        inner.share_agent.registry.clear();
        inner.share_agent.on_no_clients();
        inner.orphans.clear();
        (inner.is_lost, inner.damaged) = (false, None);
        drop(inner);
        self.pulse.get().inspect(|thread| thread.unpark());
        Ok(())
    }
}

/// Zeroes a part of memory that no client reaches.
pub(super) fn clear(memory: &Arc<Region>, start: u64, end: u64) -> io::Result<()> {
    let mut remote = Shm::new(memory.clone(), 1);
    for to in (start..end).step_by(BUFFER as usize) {
        let length = u64::from(BUFFER).min(end - to) as u32;
        let write = Operation::Write { from: BufferPosition::start(0), to, length };
        remote.perform(&write).map_err(io::Error::other)?;
    }
    Ok(())
}

fn wipe(memory: &Arc<Region>) -> io::Result<()> {
    clear(memory, 0, memory.length())
}

/// Copies a part of a region to the same offset of another.
fn copy(from: &Region, to: &Region, start: u64, end: u64) -> io::Result<()> {
    let mut target = File::from(to.as_fd().try_clone_to_owned()?);
    target.seek(SeekFrom::Start(start))?;
    let mut at = start;
    while at < end {
        let chunk = (end - at).min(CHUNK) as usize;
        if sendfile(&target, from.as_fd(), Some(&mut at), chunk)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
