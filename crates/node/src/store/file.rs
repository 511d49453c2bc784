//! One file or device, and the effect of jobs on a range of it.
//!
//! All data go past the page cache (`O_DIRECT`), where the file system can do that: the node would
//! only double what its clients cache, and a write's cost would show up in another client's flush.
//! A read of less than whole pages reads the pages around it. A write of less than whole pages
//! reads its first and last page, changes them, and writes them back, while no other write has them
//! ([`super::pages`]). Nothing is written through the cache beside that: the kernel keeps both ways
//! coherent by folio, which is several pages since Linux 6.16 on ext4. If a cached write dirties a
//! folio while a direct write to another page of it ends, the kernel reports that data may be lost,
//! and fails the next sync.
//!
//! Without direct transfers everything goes through the cache.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use tidegate_fabric::buffer::{ALIGNMENT, Buffer};
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::Bytes;

use super::disk::opened;
use super::pages::{PageHold, PageHolds};
use super::parts::{Presence, is_durable};

/// As long as [`ALIGNMENT`], for offsets.
const PAGE: u64 = ALIGNMENT as u64;

/// Bytes written at a time where a range can only be cleared by writes.
const ZEROS: usize = 1 << 20;

/// Extents that one [`Command::Map`] reports.
const EXTENTS_MAX: usize = 256;

/// A file that holds one part or several.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    cached: File,
    /// None if the file system has no direct transfers.
    direct: Option<File>,
    /// Pages of direct writes that are under way.
    pages: Arc<PageHolds>,
    /// Only synced. The kernel reports an error of write-back once to each open descriptor, and a
    /// report to a durable write must not be kept from a flush.
    synced: File,
    syncs: Mutex<Syncs>,
    is_synced: Condvar,
    #[cfg(test)]
    pub(super) fails_next_sync: AtomicBool,
    has_failed: AtomicBool,
}

/// Syncs by number, from one.
#[derive(Debug, Default)]
struct Syncs {
    begun: u64,
    ended: u64,
    /// The `errno` of the first one that failed.
    error: Option<i32>,
}

/// Why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// The `errno` of a failed sync: acknowledged writes may be lost.
    pub(super) sync_error: Option<i32>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, sync_error: None }
    }
}

/// A part within a file.
#[derive(Debug)]
pub(super) struct Range<'a> {
    pub(super) files: &'a Files,
    /// Where the part begins, in bytes.
    pub(super) base: u64,
}

/// A job that the kernel can do by itself: so many bytes between a buffer and a place of a file.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Open for as long as the medium lives.
    pub(crate) descriptor: RawFd,
    pub(crate) offset: u64,
    pub(crate) is_write: bool,
    pub(crate) durable: bool,
    /// Keeps other writes from changing pages of this one until it has ended.
    pub(crate) hold: Option<PageHold>,
}

impl Files {
    /// Opens a file that exists.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (cached, synced) = (opened(path, true)?, opened(path, true)?);
        let mut options = OpenOptions::new();
        let flags = OFlags::DIRECT | OFlags::NOFOLLOW;
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        let direct = options.open(path);
        let direct = direct.ok().filter(reads_direct);
        let (pages, syncs, is_synced, has_failed) = Default::default();
        Ok(Self {
            path: path.into(),
            cached,
            direct,
            pages,
            synced,
            syncs,
            is_synced,
            #[cfg(test)]
            fails_next_sync: AtomicBool::new(false),
            has_failed,
        })
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    pub(super) fn file(&self) -> &File {
        &self.cached
    }

    /// Whether the path still names the open file, and the file has at least this length.
    pub(super) fn presence(&self, length: Bytes) -> Presence {
        let path = self.path.display();
        let found = match found_at(&self.path, &self.cached) {
            Ok(found) => found,
            Err(error) => return Presence::Displaced(format!("cannot be found: {path}: {error}")),
        };
        let is_removed = self.cached.metadata().is_ok_and(|open| open.nlink() == 0);
        let what = match found {
            FileAtPath::Same => return self.is_whole(length),
            FileAtPath::Other => "has another file in its place",
            FileAtPath::Nothing => "is not there any more",
        };
        match is_removed {
            true => Presence::Lost(format!(
                "{what}: {path} was removed while the node ran; stop the node and restore the file \
                 from a backup (then run `tidegate volume create` with --adopt)"
            )),
            false => Presence::Displaced(format!(
                "{what}: {path} was moved away or is hidden by a mount; bring it back"
            )),
        }
    }

    fn is_whole(&self, length: Bytes) -> Presence {
        match seek(&self.cached, SeekFrom::End(0)) {
            Ok(found) if found < length.0 => Presence::Lost(format!(
                "lost data: {} was cut off to {} while the node ran, and needs {length}; stop the \
                 node and restore the file from a backup (then run `tidegate volume create` with \
                 --adopt)",
                self.path.display(),
                Bytes(found),
            )),
            _ => Presence::Present,
        }
    }

    /// Makes all writes durable that were answered before. One sync at a time: calls that come
    /// while it runs share the next one, and none of them succeeds if another one got the error.
    /// Once one has failed, all do.
    pub(super) fn sync(&self) -> io::Result<()> {
        let lock = || self.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut syncs = lock();
        let needed = syncs.begun + 1;
        while syncs.ended < needed && syncs.error.is_none() {
            if syncs.begun > syncs.ended {
                syncs = self.is_synced.wait(syncs).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            syncs.begun += 1;
            drop(syncs);
            let done = self.sync_once();
            syncs = lock();
            syncs.ended = syncs.begun;
            if let Err(error) = done {
                syncs.error = syncs.error.or(Some(error.raw_os_error().unwrap_or(libc::EIO)));
            }
            self.is_synced.notify_all();
        }
        syncs.error.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn sync_once(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.fails_next_sync.swap(false, Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.synced.sync_data()
    }

    /// The `errno` of a failed sync, if a durable command failed with `errno` because of a sync, or
    /// if the cause is unknown. A full disk is no failed sync by itself.
    pub(super) fn sync_error(&self, command: Command, errno: i32) -> Option<i32> {
        let is_refused =
            [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EOPNOTSUPP, libc::EINVAL, libc::EAGAIN];
        match command {
            Command::Flush => Some(errno),
            _ if !is_durable(command) => None,
            _ if is_refused.contains(&errno) => {
                self.sync().err().map(|error| error.raw_os_error().unwrap_or(libc::EIO))
            }
            _ => Some(errno),
        }
    }

    /// The fault of a job that failed with `error`. The first one is also logged.
    fn fault(&self, job: &Job, error: &io::Error) -> Fault {
        let fault = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Fault::NoSpace,
            // The limit of file sizes, ours or the file system's.
            io::ErrorKind::FileTooLarge => Fault::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Fault::ReadOnly,
            io::ErrorKind::Unsupported => Fault::Unsupported,
            _ => Fault::Io,
        };
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            let operation = match job.command {
                Command::Read => "read",
                Command::Write { .. } => "write",
                Command::Discard { .. } => "discard",
                Command::Zero { .. } => "zero",
                Command::Map => "map",
                Command::Flush | Command::KeyValue => "flush",
            };
            // The offset of a flush is an incarnation.
            let range = (operation != "flush").then_some((job.offset, job.length));
            let (offset, length) = range.unzip();
            let path = self.path.display();
            tracing::warn!(%path, operation, offset, length, %error, "a request of a part failed");
        }
        fault
    }
}

/// The file now at a path, compared with the one that was opened there.
pub(super) enum FileAtPath {
    Same,
    Other,
    Nothing,
}

/// Compares the file at `path` with the open one. A block device may have many names.
pub(super) fn found_at(path: &Path, open: &File) -> io::Result<FileAtPath> {
    let open = open.metadata()?;
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileAtPath::Nothing),
        found => found?,
    };
    let is_same = match open.file_type().is_block_device() {
        true => found.file_type().is_block_device() && found.rdev() == open.rdev(),
        false => (found.dev(), found.ino()) == (open.dev(), open.ino()),
    };
    Ok(if is_same { FileAtPath::Same } else { FileAtPath::Other })
}

/// Whether a direct read works: some file systems accept the flag and refuse the transfer.
fn reads_direct(file: &File) -> bool {
    let mut page = Buffer::with_length(ALIGNMENT);
    file.read_at(&mut page, 0).is_ok()
}

impl Range<'_> {
    /// Carries out the job, whose range lies within the part.
    pub(super) fn perform(&self, job: &mut Job) -> Result<(), Failure> {
        // The offset of a flush is no position.
        let at = self.base.wrapping_add(job.offset);
        let length = u64::from(job.length);
        let done = match job.command {
            Command::Read => self.read(job, at),
            Command::Write { durable } => {
                if job.buffer.len() != job.length as usize {
                    return Err(Fault::Invalid.into());
                }
                self.write(&job.buffer, at, durable)
            }
            Command::Flush => self.files.sync(),
            Command::Discard { durable } => {
                let discarded = self.discard(at, length);
                discarded.and_then(|()| if durable { self.files.sync() } else { Ok(()) })
            }
            Command::Zero { allocate, durable } => {
                let cleared = self.zero(at, length, allocate);
                cleared.and_then(|()| if durable { self.files.sync() } else { Ok(()) })
            }
            Command::Map => self.map(at, length).map(|buffer| job.buffer = buffer),
            Command::KeyValue => return Err(Fault::Unsupported.into()),
        };
        done.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let sync_error = self.files.sync_error(job.command, errno);
            Failure { fault: self.files.fault(job, &error), sync_error }
        })
    }

    /// The transfer that a job is, if it is one of whole pages past the cache, and no other write
    /// is changing one of them.
    pub(super) fn transfer(&self, job: &Job) -> Option<Transfer> {
        let (is_write, durable) = match job.command {
            Command::Read => (false, false),
            Command::Write { durable } => (true, durable),
            _ => return None,
        };
        let offset = self.base + job.offset;
        let descriptor = self.files.direct.as_ref()?.as_raw_fd();
        if job.length == 0 || !is_aligned(offset, job.length as usize) {
            return None;
        }
        let hold = match is_write {
            true => Some(self.files.pages.try_shared(offset..offset + u64::from(job.length))?),
            false => None,
        };
        Some(Transfer { descriptor, offset, is_write, durable, hold })
    }

    fn read(&self, job: &mut Job, at: u64) -> io::Result<()> {
        let length = job.length as usize;
        if job.buffer.len() != length {
            job.buffer = Buffer::with_length(length);
        }
        match &self.files.direct {
            None => self.files.cached.read_exact_at(&mut job.buffer, at),
            Some(direct) if is_aligned(at, length) => direct.read_exact_at(&mut job.buffer, at),
            Some(direct) => {
                let pages = pages_around(at, length as u64);
                let mut whole = Buffer::with_length((pages.end - pages.start) as usize);
                let before = (at - pages.start) as usize;
                if read_pages(direct, &mut whole, pages.start)? < before + length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                job.buffer.copy_from_slice(&whole[before..before + length]);
                Ok(())
            }
        }
    }

    fn write(&self, bytes: &[u8], at: u64, durable: bool) -> io::Result<()> {
        let Some(direct) = &self.files.direct else {
            return write_all(&self.files.cached, bytes, at, durable);
        };
        let pages = pages_around(at, bytes.len() as u64);
        if bytes.is_empty() || is_aligned(at, bytes.len()) {
            let _held = self.files.pages.shared(pages);
            return write_all(direct, bytes, at, durable);
        }
        let mut whole = Buffer::zeroed((pages.end - pages.start) as usize);
        let (before, last) = ((at - pages.start) as usize, whole.len() - ALIGNMENT);
        let after = before + bytes.len();
        let _held = self.files.pages.alone(pages.clone());
        if before > 0 || last == 0 {
            read_pages(direct, &mut whole[..ALIGNMENT], pages.start)?;
        }
        if last > 0 && after < whole.len() {
            read_pages(direct, &mut whole[last..], pages.start + last as u64)?;
        }
        whole[before..after].copy_from_slice(bytes);
        write_all(direct, &whole, pages.start, durable)
    }

    /// Frees the space of whole pages where the file system can; other blocks stay as they are.
    fn discard(&self, at: u64, length: u64) -> io::Result<()> {
        let pages = pages_within(at, length);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.allocate(flags, pages) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn zero(&self, at: u64, length: u64, allocate: bool) -> io::Result<()> {
        let (end, pages) = (at + length, pages_within(at, length));
        if pages.is_empty() {
            return self.write_zeros(at, length);
        }
        let how = match allocate {
            true => FallocateFlags::ZERO_RANGE,
            false => FallocateFlags::PUNCH_HOLE,
        };
        match self.allocate(how | FallocateFlags::KEEP_SIZE, pages.clone()) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return self.write_zeros(at, length);
            }
            done => done?,
        }
        // The kernel would clear the rest of a page in its cache.
        self.write_zeros(at, pages.start - at)?;
        self.write_zeros(pages.end, end - pages.end)
    }

    /// Changes the allocation of whole pages.
    fn allocate(&self, how: FallocateFlags, pages: ops::Range<u64>) -> Result<(), Errno> {
        if pages.is_empty() {
            return Ok(());
        }
        let _held = self.files.pages.shared(pages.clone());
        fallocate(&self.files.cached, how, pages.start, pages.end - pages.start)
    }

    fn write_zeros(&self, mut at: u64, length: u64) -> io::Result<()> {
        let end = at + length;
        let zeros = Buffer::zeroed(ZEROS.min(length as usize));
        while at < end {
            // Up to the next boundary first, so that the rest is aligned.
            let boundary = (at / ZEROS as u64 + 1) * ZEROS as u64;
            let step = boundary.min(end).min(at + zeros.len() as u64) - at;
            self.write(&zeros[..step as usize], at, false)?;
            at += step;
        }
        Ok(())
    }

    fn map(&self, at: u64, length: u64) -> io::Result<Buffer> {
        let (mut position, end) = (at, at + length);
        let mut found = Vec::new();
        while position < end && found.len() < EXTENTS_MAX {
            let is_hole = match seek(&self.files.cached, SeekFrom::Data(position)) {
                Ok(data) => data > position,
                Err(Errno::NXIO) => true,
                // A device reports no holes.
                Err(_) => {
                    found.push((end - position, false));
                    break;
                }
            };
            let next = match is_hole {
                true => seek(&self.files.cached, SeekFrom::Data(position)),
                false => seek(&self.files.cached, SeekFrom::Hole(position)),
            };
            let next = next.unwrap_or(end).clamp(position + 1, end);
            found.push((next - position, is_hole));
            position = next;
        }
        Ok(extents(&found))
    }
}

/// The least range of whole pages that has all of these bytes.
fn pages_around(at: u64, length: u64) -> ops::Range<u64> {
    at - at % PAGE..(at + length).next_multiple_of(PAGE)
}

/// The greatest range of whole pages within these bytes; an empty one at `at` if there is none.
fn pages_within(at: u64, length: u64) -> ops::Range<u64> {
    let (first, end) = (at.next_multiple_of(PAGE), (at + length) / PAGE * PAGE);
    if first < end { first..end } else { at..at }
}

/// Reads whole pages; fewer bytes than `pages` has only where the file ends.
fn read_pages(direct: &File, pages: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < pages.len() {
        match direct.read_at(&mut pages[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Within a page only at the end of the file.
        if !done.is_multiple_of(ALIGNMENT) {
            break;
        }
    }
    Ok(done)
}

fn write_all(file: &File, mut bytes: &[u8], mut at: u64, durable: bool) -> io::Result<()> {
    if !durable {
        return file.write_all_at(bytes, at);
    }
    while !bytes.is_empty() {
        match pwritev2(file, &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a transfer is one of whole pages.
fn is_aligned(at: u64, length: usize) -> bool {
    (at | length as u64).is_multiple_of(ALIGNMENT as u64)
}

/// The answer to [`Command::Map`]: extents by length, and whether they are holes.
pub(super) fn extents(found: &[(u64, bool)]) -> Buffer {
    /// A hole, which reads as zeros.
    const HOLE: u64 = 0b11;
    let mut buffer = Buffer::with_length(found.len() * 16);
    for ((length, is_hole), bytes) in found.iter().zip(buffer.chunks_exact_mut(16)) {
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes[8..].copy_from_slice(&if *is_hole { HOLE } else { 0 }.to_le_bytes());
    }
    buffer
}
