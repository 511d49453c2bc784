//! A disk that loses data that were not synced, for tests of all layers above it.
//!
//! It behaves as a kernel with a page cache does. A write is in the cache until a sync. A sync that
//! fails removes the blocks from the list of dirty blocks and reports the error to one caller; the
//! next sync succeeds. A crash of the machine keeps any subset of the unsynced blocks. The node
//! above it is as it ships: open parts, their incarnations and their errors are the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part, PartState};
use tidegate_model::cluster::{Uuid, VolumeStamp};

use super::parts::{FoundPart, Parts, StoresErrors, Watcher, is_durable, storage};
use super::{Medium, OpenError};
use crate::mutex::lock;

/// The bytes that a disk writes as a whole.
const BLOCK: usize = 512;

/// A disk that outlives its node. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk(Arc<Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    parts: BTreeMap<(String, u32), Stored>,
    boots: u64,
    fails_next_sync: bool,
}

#[derive(Debug, Default)]
struct Stored {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks that the next sync will write.
    dirty: BTreeSet<usize>,
    has_error: bool,
    error_count: u64,
}

impl PartialEq for FaultyDisk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FaultyDisk {}

impl FaultyDisk {
    /// The machine crashes, and restarts: a block that was not synced is kept if `is_kept` returns
    /// true.
    pub fn crash(&self, mut is_kept: impl FnMut() -> bool) {
        let mut state = lock(&self.0);
        state.boots += 1;
        for stored in state.parts.values_mut() {
            for block in std::mem::take(&mut stored.dirty) {
                if is_kept() {
                    stored.write_back(block);
                }
            }
            stored.cached.clone_from(&stored.durable);
        }
    }

    /// The next sync fails.
    pub fn fail_next_sync(&self) {
        lock(&self.0).fails_next_sync = true;
    }

    /// Clears the errors, as `tidegate volume clear-error` does while the node is stopped.
    pub fn clear_errors(&self) {
        lock(&self.0).parts.values_mut().for_each(|stored| stored.has_error = false);
    }
}

impl Stored {
    fn write_back(&mut self, block: usize) {
        let end = self.cached.len().min((block + 1) * BLOCK);
        let range = block * BLOCK..end;
        self.durable[range.clone()].copy_from_slice(&self.cached[range]);
    }

    fn change(&mut self, offset: usize, bytes: &[u8]) {
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(offset / BLOCK..(offset + bytes.len()).div_ceil(BLOCK));
    }
}

impl DiskState {
    fn sync(&mut self, name: &(String, u32)) -> Result<(), i32> {
        let fails = std::mem::take(&mut self.fails_next_sync);
        let Some(stored) = self.parts.get_mut(name) else { return Ok(()) };
        let dirty = std::mem::take(&mut stored.dirty);
        if fails {
            return Err(libc::EIO);
        }
        dirty.into_iter().for_each(|block| stored.write_back(block));
        Ok(())
    }
}

/// The store of one incarnation of a node.
pub(crate) struct Faulty {
    disk: FaultyDisk,
    parts: Parts<FaultyPart>,
}

struct FaultyPart {
    disk: FaultyDisk,
    name: (String, u32),
}

impl FaultyPart {
    fn incarnation(state: &DiskState, stored: &Stored) -> u64 {
        1 + (state.boots << 32 | stored.error_count)
    }
}

impl StoresErrors for FaultyPart {
    fn store_error(&self, _: i32) -> u64 {
        let mut state = lock(&self.disk.0);
        if let Some(stored) = state.parts.get_mut(&self.name) {
            (stored.has_error, stored.error_count) = (true, stored.error_count + 1);
        }
        state.parts.get(&self.name).map_or(1, |stored| Self::incarnation(&state, stored))
    }
}

impl Faulty {
    pub(crate) fn new(disk: FaultyDisk) -> Self {
        Self { disk, parts: Parts::default() }
    }

    fn perform_one(&self, job: &mut Job) -> Result<(), (Fault, Option<i32>)> {
        let parts = self.parts.read();
        let part = storage(&parts, job).map_err(|fault| (fault, None))?;
        let mut state = lock(&self.disk.0);
        let Some(stored) = state.parts.get_mut(&part.name) else {
            return Err((Fault::Invalid, None));
        };
        let (at, length) = (job.offset as usize, job.length as usize);
        match job.command {
            Command::Read => job.buffer = Buffer::from(&stored.cached[at..at + length]),
            Command::Write { .. } => stored.change(at, &job.buffer),
            Command::Discard { .. } | Command::Zero { .. } => stored.change(at, &vec![0; length]),
            Command::Flush => {}
            Command::Map | Command::KeyValue => return Err((Fault::Unsupported, None)),
        }
        match is_durable(job.command) {
            true => state.sync(&part.name).map_err(|errno| (Fault::Io, Some(errno))),
            false => Ok(()),
        }
    }
}

impl Medium for Faulty {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        self.parts.open(part, |_| {
            let name = (part.volume.clone(), part.index);
            let mut state = lock(&self.disk.0);
            let stored = state.parts.entry(name.clone()).or_default();
            for bytes in [&mut stored.cached, &mut stored.durable] {
                bytes.resize(part.length.0 as usize, 0);
            }
            let has_failed = stored.has_error;
            let incarnation = FaultyPart::incarnation(&state, &state.parts[&name]);
            let stamp = VolumeStamp { uuid: Uuid([1; 16]), generation: 1 };
            let state = PartState { incarnation, identity: Some(stamp) };
            let storage = FaultyPart { disk: self.disk.clone(), name };
            Ok(FoundPart { state, has_failed, storage })
        })
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        for job in jobs {
            let done = self.perform_one(job);
            if let Err((_, Some(errno))) = done {
                self.parts.fail(errno, |number| number == job.part);
            }
            job.outcome = done.map_err(|(fault, _)| fault);
        }
    }

    fn watch(&self, watcher: Watcher) {
        self.parts.watch(watcher);
    }

    fn describe(&self) -> String {
        "a disk that may fail".into()
    }
}
