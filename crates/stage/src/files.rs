//! Cache of this process's open files: whether each is on storage, and the rules that accept its
//! path.
//!
//! The table caches the kernel's knowledge. On the first use of a descriptor the process queries
//! the kernel and fills the entry. An event on the descriptor clears the entry. So the origin of a
//! descriptor does not matter: `open`, inheritance, another process over a socket, or a system call
//! that is not intercepted. Two duties remain: every call that *ends* a descriptor clears its
//! entry, and a call that makes one clears the number's former entry.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{CWD, FileType};
use tidegate_algo::classify::channel::{Classifier, Mask, RuleTable, Words};

use crate::{identity, scratch};

/// Descriptors below this number are remembered; those above are queried each time. Programs
/// with more open files than this have a descriptor limit that an administrator raised.
pub const DESCRIPTORS_MAX: usize = 65_536;

/// Kind of a descriptor: on storage or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// A file on storage, with the rules that accept its path.
    Storage(Mask),
    /// Something else: a pipe, a socket, a terminal, a file in memory.
    Other,
}

/// The atomics of the entries; a test replaces them by those of a model checker.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
mod entry;
pub mod registered;

use entry::{Descriptor, DescriptorKind, Known};

/// Untouched pages of it cost nothing, so it is as large as it may have to be.
static ENTRIES: [Descriptor<MASK_WORDS>; DESCRIPTORS_MAX] = [const {
    Descriptor { state: AtomicU64::new(0), mask: [const { AtomicU64::new(0) }; MASK_WORDS] }
}; DESCRIPTORS_MAX];

/// The words of a [`Mask`].
const MASK_WORDS: usize = 4;

/// One more than the highest descriptor ever remembered, so that closing "all" does not walk pages
/// that were never touched.
static DESCRIPTORS_END: AtomicU32 = AtomicU32::new(0);

/// The process that the table is about; zero if it was not set. A child of `vfork` runs in the
/// memory of its parent with descriptors of its own: what it finds out is not for the table.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Says that the table is about the process with this number.
pub(crate) fn own(pid: u32) {
    OWNER.store(pid, Ordering::Relaxed);
}

/// Whether the table is about this process. A child of `vfork` finds its parent's here.
pub fn is_own() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner == 0 || owner == rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Set where asking the kernel could end the program: it has forbidden itself to.
static QUERIES_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Sets whether the kernel may be queried. While it may not, a descriptor that is not known yet is
/// taken for something else than storage; a caller that counts it otherwise checks [`known`] first.
pub fn allow_queries(may: bool) {
    QUERIES_FORBIDDEN.store(!may, Ordering::Release);
}

/// Set once two threads mean different files by one number.
static PARTED: AtomicBool = AtomicBool::new(false);

/// Notes that a thread goes on with a copy of the descriptors, so that from now on a number means
/// nothing without the thread. There is one table, so it is not used any more: each request queries
/// the kernel. Threads that do this are too few for a table each.
pub fn part() {
    PARTED.store(true, Ordering::SeqCst);
    forget_range(0, u32::MAX);
}

/// Status that a program has just queried, kept so that the stage need not query it again.
#[derive(Clone, Copy, Debug)]
struct CachedStatus {
    descriptor: i32,
    /// State of the descriptor's entry before the program's query. If the state differs when the
    /// status is needed, the number may stand for another file.
    state: u64,
    status: Status,
}

/// The fields of a file's status that locate its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// `st_mode`.
    pub mode: u32,
    /// `st_dev`.
    pub device: u64,
}

thread_local! {
    static CACHED_STATUS: Cell<CachedStatus> = const {
        let status = Status { mode: 0, device: 0 };
        Cell::new(CachedStatus { descriptor: -1, state: 0, status })
    };
}

thread_local! {
    /// The descriptor whose entry the thread is writing.
    static TAKEN: Cell<i32> = const { Cell::new(-1) };
}

/// Gives back what the thread was writing: a signal handler has interrupted it there and leaves for
/// another place.
pub fn abandon() {
    if let Ok(descriptor) = usize::try_from(TAKEN.replace(-1)) {
        ENTRIES[descriptor].abandon();
    }
}

/// Gives back what other threads were writing when this process was forked: they are not in it.
pub fn abandon_all() {
    let end = DESCRIPTORS_END.load(Ordering::Relaxed) as usize;
    ENTRIES[..end.min(DESCRIPTORS_MAX)].iter().for_each(Descriptor::abandon);
}

/// To be called before a program queries the status of `descriptor`; its result is for
/// [`cache_status`].
pub fn begin_query(descriptor: i32) -> Option<u64> {
    let entry = ENTRIES.get(usize::try_from(descriptor).ok()?)?;
    Some(entry.state())
}

/// Caches what a program found out about `descriptor`, as most programs do after opening a file.
pub fn cache_status(descriptor: i32, before: Option<u64>, status: Status) {
    if let Some(state) = before {
        CACHED_STATUS.set(CachedStatus { descriptor, state, status });
    }
}

/// Returns the cached kind of `descriptor` under the table of `generation`, without asking the
/// kernel.
pub fn known(descriptor: i32, generation: u32) -> Option<File> {
    let Ok(index) = usize::try_from(descriptor) else { return Some(File::Other) };
    remembered(ENTRIES.get(index)?, generation)
}

/// Returns the kind of `descriptor`, under the table of `generation`.
#[inline(always)]
pub(crate) fn lookup<W: Words + ?Sized>(
    descriptor: i32,
    generation: u32,
    table: &RuleTable<'_, W>,
) -> File {
    let Some(entry) = usize::try_from(descriptor).ok().and_then(|index| ENTRIES.get(index)) else {
        return find_out(descriptor, None, table);
    };
    match remembered(entry, generation) {
        Some(file) => file,
        None => remember(descriptor, entry, generation, table),
    }
}

/// Returns the cached kind in an entry, if the entry is of the table of `generation`.
#[inline(always)]
fn remembered(entry: &Descriptor<MASK_WORDS>, generation: u32) -> Option<File> {
    entry.known(generation).map(|known| match known {
        Known { kind: DescriptorKind::Storage, mask } => File::Storage(Mask(mask)),
        Known { kind: DescriptorKind::Other, .. } => File::Other,
    })
}

#[cold]
#[inline(never)]
fn remember<W: Words + ?Sized>(
    descriptor: i32,
    entry: &Descriptor<MASK_WORDS>,
    generation: u32,
    table: &RuleTable<'_, W>,
) -> File {
    // Before the kernel is queried: a thread that closes a range of descriptors after this sees
    // that the entry is to be forgotten, and one that did so before this has closed the descriptor
    // already. And before `PARTED` is read, for the same reason.
    DESCRIPTORS_END.fetch_max(descriptor as u32 + 1, Ordering::SeqCst);
    let seen = entry.state();
    let file = find_out(descriptor, Some(seen), table);
    if QUERIES_FORBIDDEN.load(Ordering::Acquire) || PARTED.load(Ordering::SeqCst) || !is_own() {
        return file;
    }
    let known = match file {
        File::Storage(Mask(mask)) => Known { kind: DescriptorKind::Storage, mask },
        File::Other => Known { kind: DescriptorKind::Other, mask: [0; MASK_WORDS] },
    };
    if let Some(taken) = entry.take(seen) {
        TAKEN.set(descriptor);
        entry.give(taken, generation, &known);
        TAKEN.set(-1);
    }
    file
}

/// Queries the kernel. A function of its own, like the query for the path: a request whose
/// descriptor is known must not pay for their frames, and the handler of a crash, which may be the
/// first to use its descriptor, has a small stack.
#[cold]
#[inline(never)]
fn find_out<W: Words + ?Sized>(
    descriptor: i32,
    seen: Option<u64>,
    table: &RuleTable<'_, W>,
) -> File {
    if descriptor < 0 || QUERIES_FORBIDDEN.load(Ordering::Acquire) {
        return File::Other;
    }
    // SAFETY: the descriptor is the caller's and stays open during the call that it is making; if
    // not, the kernel reports it.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let cached = CACHED_STATUS.get();
    let status = match cached.descriptor == descriptor && Some(cached.state) == seen {
        true => cached.status,
        false => match rustix::fs::fstat(file) {
            Ok(status) => Status { mode: status.st_mode, device: status.st_dev },
            Err(_) => return File::Other,
        },
    };
    match FileType::from_raw_mode(status.mode) {
        FileType::BlockDevice => {}
        FileType::RegularFile | FileType::Directory if !is_in_memory(file, status.device) => {}
        _ => return File::Other,
    }
    if !table.uses(Classifier::Path) {
        return File::Storage(Mask::ALL);
    }
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; 10];
    let digits = identity::digits(descriptor.unsigned_abs(), &mut digits);
    let length = 14 + digits.len();
    link[14..length].copy_from_slice(digits);
    let Ok(link) = std::ffi::CStr::from_bytes_with_nul(&link[..=length]) else {
        return File::Storage(Mask::ALL);
    };
    File::Storage(by_path(link, table))
}

/// The rules that accept the path of the open file behind `link`; those that accept none if it
/// cannot be had.
#[cold]
#[inline(never)]
fn by_path<W: Words + ?Sized>(link: &std::ffi::CStr, table: &RuleTable<'_, W>) -> Mask {
    scratch::with_page(|page| {
        let length = rustix::fs::readlinkat_raw(CWD, link, &mut page[..]).unwrap_or(0);
        table.accepts(Classifier::Path, &page[..length]).0
    })
}

/// Whether a file's bytes are in memory only: `tmpfs` (which is `/dev/shm`), `proc` and the like.
/// Those have no device, and get a number that has no major part; so has a file system of several
/// devices or of another machine, and only then the kernel is queried.
fn is_in_memory(file: BorrowedFd<'_>, device: u64) -> bool {
    if rustix::fs::major(device) != 0 {
        return false;
    }
    const MEMORY: [u64; 9] = [
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x9584_58f6, // hugetlbfs
    ];
    rustix::fs::fstatfs(file).is_ok_and(|status| MEMORY.contains(&(status.f_type as u64)))
}

/// Forgets what is known of a descriptor: it was closed, or its number stands for something new.
#[inline]
pub fn forget(descriptor: i32) {
    if let Some(entry) = usize::try_from(descriptor).ok().and_then(|index| ENTRIES.get(index)) {
        entry.forget();
    }
}

/// Forgets what is known of every descriptor from `first` to `last`, both included.
pub fn forget_range(first: u32, last: u32) {
    let end = last.saturating_add(1).min(DESCRIPTORS_END.load(Ordering::SeqCst));
    (first..end).for_each(|descriptor| forget(descriptor as i32));
}
