//! Segments: shared memory that an agent creates and every process of a stage maps.
//!
//! A segment is a file in a directory in memory that only its user may enter, or private memory of
//! one process and its forks. A process that attaches to it checks that the segment belongs to the
//! same release. The kernel shows whether any other process still maps it.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::clock;
use crate::layout::{MAGIC, SegmentLayout, VERSION};
use crate::record;

/// The environment variable with the path of a shim's segment.
pub const VARIABLE: &str = "TIDEGATE_SEGMENT";

/// A mapped segment. Dropping the last handle of a process unmaps it, unless a thread has waited at
/// a queue: see `record`.
#[derive(Debug)]
pub struct Segment {
    layout: NonNull<SegmentLayout>,
    /// For the process that made the file: locked, as a sign that it is in use.
    kept: Option<OwnedFd>,
    /// For the process that made the file: its name in the directory.
    name: String,
    /// One more than the index of this process among those of the segment; zero if it has none.
    process: AtomicU32,
}

// SAFETY: a layout is made of atomics and locks that are shared between processes anyway.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Deref for Segment {
    type Target = SegmentLayout;
    fn deref(&self) -> &SegmentLayout {
        // SAFETY: mapped for as long as `self` lives, at the length of a layout; every byte pattern
        // is valid for its fields.
        unsafe { self.layout.as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if record::any() {
            return;
        }
        // SAFETY: mapped with this length, and this handle is the only one. That it may fail does
        // not matter: the mapping then stays until the process ends.
        let _ =
            unsafe { rustix::mm::munmap(self.layout.as_ptr().cast(), size_of::<SegmentLayout>()) };
    }
}

impl Segment {
    /// A segment that only this process and its forks see.
    ///
    /// # Errors
    /// If memory cannot be mapped.
    pub fn private() -> io::Result<Self> {
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping where the kernel likes; nothing is there yet.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size_of::<SegmentLayout>(),
                PROT,
                flags,
            )?
        };
        Self::fresh(address)
    }

    /// A new segment in a file that other processes find at the path that is returned.
    ///
    /// # Errors
    /// If the directory cannot be made or belongs to another user, or the file cannot be made or
    /// mapped.
    pub fn create() -> io::Result<(Self, PathBuf)> {
        let directory = directory()?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("stage-{}-{:016x}", std::process::id(), u64::from_le_bytes(random));
        let path = directory.join(&name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        let made = allocate(&file).and_then(|()| Self::fresh(map(&file)?));
        let mut segment = made.inspect_err(|_| _ = rustix::fs::unlink(&path))?;
        (segment.kept, segment.name) = (Some(file), name);
        Ok((segment, path))
    }

    /// Maps the segment at `path`. Makes three system calls and no allocation.
    ///
    /// # Errors
    /// If there is none, or it belongs to another release.
    pub fn attach(path: &Path) -> io::Result<Self> {
        let file: OwnedFd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&file)?.st_size as usize != size_of::<SegmentLayout>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let address = map(&file)?;
        let layout = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let segment = Self::at(layout);
        let header = &segment.header;
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != VERSION
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(segment)
    }

    fn at(layout: NonNull<SegmentLayout>) -> Self {
        Self { layout, kept: None, name: String::new(), process: AtomicU32::new(0) }
    }

    /// The name of the segment's file in the directory of its user, if this process has made it;
    /// else empty.
    #[cfg(feature = "agent")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Notes the index of this process among those of the segment.
    pub(crate) fn join(&self, index: Option<usize>) {
        let before = self.process.load(Ordering::Relaxed);
        let number = index.map_or(0, |index| index as u32 + 1);
        if let Some(index) = index
            && before != number
        {
            // Of the program that this process ran before, or of one that ended unseen.
            self.storage.lose(index);
        }
        self.process.store(number, Ordering::Relaxed);
    }

    /// Changes the count of this process's requests at the storage, if it has one.
    pub(crate) fn open_requests(&self, change: impl FnOnce(&AtomicI32) -> i32) {
        let index = (self.process.load(Ordering::Relaxed) as usize).wrapping_sub(1);
        if let Some(open) = self.storage.open.get(index) {
            change(&open.0);
        }
    }

    /// Whether another process maps the segment; none if that cannot be read.
    #[cfg(feature = "agent")]
    pub fn is_used_by_others(&self) -> Option<bool> {
        tidegate_fabric::segment_use::is_used_by_others(self.kept.as_ref()?).ok()
    }

    /// The segment's file; none if only this process and its forks see the segment.
    #[cfg(feature = "agent")]
    pub(crate) fn identity(&self) -> Option<crate::usage::Identity> {
        crate::usage::Identity::of(self.kept.as_ref()?).ok()
    }

    /// Makes zeroed memory a segment.
    fn fresh(address: *mut std::ffi::c_void) -> io::Result<Self> {
        let layout = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let segment = Self::at(layout);
        segment.records.iter().for_each(|record| record.lock.initialise());
        clock::set(&segment.header.clock);
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        segment.header.first.store(u32::from_le_bytes(random), Ordering::Relaxed);
        segment.header.version.store(VERSION, Ordering::Relaxed);
        segment.header.length.store(size_of::<SegmentLayout>() as u32, Ordering::Relaxed);
        segment.header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }
}

/// Gives a new file its length, and all of its memory: where there is none left, a process that
/// writes to a page for the first time would be killed.
fn allocate(file: &OwnedFd) -> io::Result<()> {
    let length = size_of::<SegmentLayout>() as u64;
    rustix::fs::ftruncate(file, length)?;
    let Err(error) = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) else {
        return Ok(());
    };
    let error = io::Error::from(error);
    let message = format!(
        "its {} KiB of memory cannot be had ({error}); free some in /dev/shm, or make it larger \
         (mount -o remount,size=SIZE /dev/shm)",
        length.div_ceil(1024)
    );
    Err(io::Error::new(error.kind(), message))
}

const PROT: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn map(file: &OwnedFd) -> io::Result<*mut std::ffi::c_void> {
    // SAFETY: a new mapping where the kernel likes, of a file that has this length.
    let address = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            size_of::<SegmentLayout>(),
            PROT,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )?
    };
    Ok(address)
}

/// The directory of this user's segments, in memory: `/dev/shm/tidegate-<uid>`, mode 0700.
pub(crate) fn directory() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    let path = PathBuf::from(format!("/dev/shm/tidegate-{}", user.as_raw()));
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // A process that made the name first could watch this segment: the directory must belong to
    // this user, and be no link.
    let found = rustix::fs::lstat(&path)?;
    if !is_private_directory(found.st_mode, found.st_uid, user.as_raw()) {
        let message = format!("{} is not a private directory of this user", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(path)
}

/// Whether this is the mode of a directory that its owner alone may enter, and the owner the user.
fn is_private_directory(mode: u32, owner: u32, user: u32) -> bool {
    let is_directory = rustix::fs::FileType::from_raw_mode(mode).is_dir();
    is_directory && owner == user && mode & 0o077 == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A segment in a file, which is removed with it.
    struct Made(Segment, PathBuf);

    impl Made {
        fn new() -> Self {
            let (segment, path) = Segment::create().unwrap();
            Self(segment, path)
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.1);
        }
    }

    #[test]
    fn a_directory_of_segments_is_this_users_alone() {
        let directory = directory().unwrap();
        let mode = std::fs::metadata(directory).unwrap().permissions().mode();
        assert!(is_private_directory(mode, 5, 5) && is_private_directory(0o040_700, 5, 5));
        assert!(!is_private_directory(0o040_700, 6, 5), "another user's");
        assert!(!is_private_directory(0o100_600, 5, 5) && !is_private_directory(0o120_700, 5, 5));
        for mode in [0o040_701, 0o040_710, 0o040_755, 0o040_777] {
            assert!(!is_private_directory(mode, 5, 5), "{mode:o}");
        }
    }

    #[test]
    fn a_segment_is_its_makers_to_read_and_all_that_attach_share_it() {
        let Made(segment, path) = &Made::new();
        let found = std::fs::metadata(path).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o600);
        assert_eq!(found.len() as usize, size_of::<SegmentLayout>());
        let attached = Segment::attach(path).unwrap();
        attached.header.strict.store(7, Ordering::Relaxed);
        assert_eq!(segment.header.strict.load(Ordering::Relaxed), 7);
        #[cfg(feature = "agent")]
        {
            assert!(segment.identity().is_some() && attached.identity().is_none());
            assert_eq!(attached.is_used_by_others(), None, "only its maker is asked");
        }
    }

    #[test]
    fn what_is_no_segment_of_this_release_is_not_attached() {
        let Made(segment, path) = &Made::new();
        let kind = || Segment::attach(path).map(drop).map_err(|error| error.kind());
        assert_eq!(kind(), Ok(()));
        segment.header.version.store(VERSION + 1, Ordering::Relaxed);
        assert_eq!(kind(), Err(io::ErrorKind::InvalidData), "another release's");
        segment.header.version.store(VERSION, Ordering::Relaxed);
        segment.header.magic.store(0, Ordering::Relaxed);
        assert_eq!(kind(), Err(io::ErrorKind::InvalidData), "not made to the end");
        segment.header.magic.store(MAGIC, Ordering::Relaxed);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(size_of::<SegmentLayout>() as u64 + 4096).unwrap();
        assert_eq!(kind(), Err(io::ErrorKind::InvalidData), "of another length");
    }
}
