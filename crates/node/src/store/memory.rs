//! Parts in memory: for tests, experiments, and data that may be lost.
//!
//! A part is an array of chunks. A chunk that was never written does not exist and reads as zeros;
//! so a large volume costs little until it is used. Each chunk has a lock of its own, held for one
//! copy: requests for different chunks never wait for each other.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part, PartState};
use tidegate_model::Bytes;

use super::incarnation;
use super::parts::{FoundPart, Parts, storage};
use super::{Medium, OpenError, name_of};

/// Bytes per chunk: large enough that the kernel gives cleared pages only as they are touched,
/// small enough that a sparse volume stays sparse.
const CHUNK: usize = 1 << 20;

/// Extents that one [`Command::Map`] reports.
const EXTENTS_MAX: usize = 256;

/// A chunk that was never written, or its bytes.
type Chunk = RwLock<Option<Box<[u8]>>>;

pub(crate) struct Memory {
    capacity: Bytes,
    parts: Parts<Vec<Chunk>>,
}

impl Memory {
    /// An empty store for parts of at most `capacity` bytes in total.
    pub(crate) fn new(capacity: Bytes) -> Self {
        Self { capacity, parts: Parts::default() }
    }
}

impl Medium for Memory {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        self.parts.open(part, |others| {
            let lengths = others.iter().map(|other| other.part.length);
            let others = lengths.fold(Bytes::ZERO, Bytes::saturating_add);
            let end = others.saturating_add(part.length);
            if end > self.capacity {
                return Err(OpenError::Full { what: name_of(part), end, capacity: self.capacity });
            }
            let chunks = part.length.0.div_ceil(CHUNK as u64);
            // It is empty now, so all writes acknowledged before are lost.
            let state = PartState { incarnation: incarnation::of_memory(), identity: None };
            let storage = (0..chunks).map(|_| Chunk::default()).collect();
            Ok(FoundPart { state, has_failed: false, storage })
        })
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        let parts = self.parts.read();
        for job in jobs {
            job.outcome = storage(&parts, job).and_then(|chunks| perform(chunks, job));
        }
    }

    fn outlives_node(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        match self.capacity {
            Bytes::MAX => "memory".into(),
            capacity => format!("memory, {capacity}"),
        }
    }
}

fn perform(chunks: &[Chunk], job: &mut Job) -> Result<(), Fault> {
    let (offset, length) = (job.offset, job.length as usize);
    match job.command {
        Command::Read => {
            if job.buffer.len() != length {
                job.buffer = Buffer::with_length(length);
            }
            for (chunk, at, range) in pieces(offset, length) {
                let target = &mut job.buffer[range];
                match &*read(&chunks[chunk]) {
                    Some(bytes) => target.copy_from_slice(&bytes[at..at + target.len()]),
                    None => target.fill(0),
                }
            }
        }
        Command::Write { .. } => {
            let source = job.buffer.get(..length).ok_or(Fault::Invalid)?;
            for (chunk, at, range) in pieces(offset, length) {
                let mut chunk = write(&chunks[chunk]);
                let bytes = chunk.get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
                bytes[at..at + range.len()].copy_from_slice(&source[range]);
            }
        }
        Command::Flush => {}
        Command::Discard { .. } | Command::Zero { .. } => {
            for (chunk, at, range) in pieces(offset, length) {
                let mut chunk = write(&chunks[chunk]);
                match &mut *chunk {
                    whole if range.len() == CHUNK => *whole = None,
                    Some(bytes) => bytes[at..at + range.len()].fill(0),
                    None => {}
                }
            }
        }
        Command::Map => job.buffer = map(chunks, offset, length),
        Command::KeyValue => return Err(Fault::Unsupported),
    }
    Ok(())
}

/// The chunks that a range touches: which, where in the chunk, and which bytes of the range.
fn pieces(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let storage = offset + done as u64;
        let (chunk, at) = ((storage / CHUNK as u64) as usize, (storage % CHUNK as u64) as usize);
        let range = done..length.min(done + CHUNK - at);
        done = range.end;
        (!range.is_empty()).then_some((chunk, at, range))
    })
}

/// Runs of chunks that exist or do not.
fn map(chunks: &[Chunk], offset: u64, length: usize) -> Buffer {
    let mut extents: Vec<(u64, bool)> = Vec::new();
    for (chunk, _, range) in pieces(offset, length) {
        let is_hole = read(&chunks[chunk]).is_none();
        let is_full = extents.len() == EXTENTS_MAX;
        match extents.last_mut() {
            Some((length, was_hole)) if *was_hole == is_hole => *length += range.len() as u64,
            _ if is_full => break,
            _ => extents.push((range.len() as u64, is_hole)),
        }
    }
    super::file::extents(&extents)
}

// A copy between slices of one length leaves a chunk consistent, whatever happens to its thread.
fn read(chunk: &Chunk) -> RwLockReadGuard<'_, Option<Box<[u8]>>> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(chunk: &Chunk) -> RwLockWriteGuard<'_, Option<Box<[u8]>>> {
    chunk.write().unwrap_or_else(PoisonError::into_inner)
}
