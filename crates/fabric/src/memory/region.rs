//! Memory that several processes read and write without coordination.
//!
//! # Problem
//! Other processes change a region at any time, while Rust's references promise that nothing does
//! that. And mapped memory must stay there: a file that shrinks under a mapping kills any process
//! that touches the rest.
//!
//! # Mechanism
//! A region is a file without a name (a memfd), whose size is sealed: no process can change it any
//! more, nor seal more. It ends with the last process that holds or maps it, so a killed process
//! leaves no file behind.
//!
//! No reference to its bytes exists. They are reached in two ways, neither of which the compiler
//! may take apart or assume anything about: words as `AtomicU64`, and copies to and from private
//! memory that do what relaxed atomic loads and stores of each word, or of each byte beyond whole
//! words, would do. So a word in a longer copy is not torn either. On x86-64 a long copy is one
//! `rep movsq`, which is faster than a loop that the compiler must leave alone.
//!
//! Other processes see the writes of one client in their order: before each there is a release
//! fence (or it is a release itself). A read comes before all that the client does next: an acquire
//! fence follows. On x86-64 neither is an instruction: a string copy's stores may overtake each
//! other, never earlier stores nor later operations.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tidegate_onesided::one_sided::{Operation, WORD};

use super::buffers::Buffers;

/// The seals of a region: its size, and the set of seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// From so many words on a string copy is faster than a loop.
#[cfg(target_arch = "x86_64")]
const STRING_WORDS_MIN: usize = 16;

/// The memory of a data node, mapped. Unmapped when it is dropped.
///
/// ```
/// use std::os::fd::AsFd;
/// use tidegate_fabric::memory::region::Region;
///
/// let made = Region::create(4096)?;
/// let descriptor = made.as_fd().try_clone_to_owned()?; // which went through a socket
/// assert_eq!(Region::from_fd(descriptor)?.length(), 4096);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Region {
    address: NonNull<u8>,
    length: usize,
    file: OwnedFd,
}

// SAFETY: nothing of a region belongs to a thread, and the mapping stays until it is dropped.
unsafe impl Send for Region {}
// SAFETY: its bytes are only reached by atomic operations and by copies that are as good as those.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `length` bytes, all zero, on huge pages where the kernel gives them for memory
    /// of this kind. Memory is taken when it is first touched: see [`Self::populate`].
    ///
    /// # Errors
    /// If there is no descriptor or no address space left, or `length` is 0.
    pub fn create(length: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("tidegate-region", flags)?;
        rustix::fs::ftruncate(&file, length)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Self::map(file, length)
    }

    /// Maps a region that another process has made.
    ///
    /// # Errors
    /// `InvalidData` if the descriptor is not a region's; else as [`Self::create`].
    pub fn from_fd(file: OwnedFd) -> io::Result<Self> {
        let problem = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|_| problem("the descriptor is not that of memory"))?;
        if !seals.contains(SEALS) {
            return Err(problem("the memory could change its size under its readers"));
        }
        let length = rustix::fs::fstat(&file)?.st_size;
        Self::map(file, length.cast_unsigned())
    }

    fn map(file: OwnedFd, length: u64) -> io::Result<Self> {
        let size = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes, of a file that has this length for good.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, protection, flags, file.as_fd(), 0)?
        };
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let region = Self { address, length: size, file };
        // Ordinary pages do as well, and are all there is where the kernel has no huge ones.
        let _ = region.advise(Advice::LinuxHugepage);
        Ok(region)
    }

    /// Takes all memory now, and maps it in this process; what another process has taken is only
    /// mapped. Without this, the first touch of each page takes microseconds, and if there is no
    /// memory left it is too late for an error.
    ///
    /// # Errors
    /// If there is not so much memory, or the kernel is older than 5.14.
    pub fn populate(&self) -> io::Result<()> {
        rustix::io::retry_on_intr(|| self.advise(Advice::LinuxPopulateWrite)).map_err(Into::into)
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: exactly this mapping, and none of the advice given here changes what it holds.
        unsafe { rustix::mm::madvise(self.address.as_ptr().cast(), self.length, advice) }
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// Where its bytes are, for an RNIC that reaches them. No reference may be made of it.
    #[cfg(feature = "verbs")]
    pub(super) fn mapped(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.address.as_ptr(), self.length)
    }

    /// Prefetches for an operation that is soon to be carried out. The first cache line that it
    /// reads is fetched meanwhile, which takes most of the time; the hardware prefetches the rest.
    ///
    /// # Panics
    /// As [`Self::perform`].
    #[inline]
    pub(super) fn announce(&self, operation: &Operation) {
        if let Operation::Read { from, length, .. } = *operation {
            prefetch(self.part(from, length as usize));
        }
    }

    /// Carries out an operation, and returns the former value of the word, for atomic operations;
    /// else 0.
    ///
    /// # Panics
    /// If [`Operation::check`] refuses it.
    #[inline]
    pub(super) fn perform(&self, operation: &Operation, buffers: &mut Buffers) -> u64 {
        match *operation {
            Operation::Read { from, into, length } => {
                let start = into.offset as usize;
                let bytes = &mut buffers.bytes_mut(into.buffer)[start..start + length as usize];
                self.read(from, bytes);
                0
            }
            Operation::Write { from, to, length } => {
                let start = from.offset as usize;
                let bytes = &buffers.bytes(from.buffer)[start..start + length as usize];
                self.write(to, bytes);
                0
            }
            Operation::WriteWord { word, to } => {
                self.word(to).store(word, Release);
                0
            }
            Operation::FetchAdd { at, add } => self.word(at).fetch_add(add, SeqCst),
            Operation::CompareSwap { at, expected, new } => {
                let swap = self.word(at).compare_exchange(expected, new, SeqCst, SeqCst);
                swap.unwrap_or_else(|found| found)
            }
        }
    }

    /// One word.
    ///
    /// # Panics
    /// If it is not inside the region, or not at a multiple of eight.
    #[inline]
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(WORD), "a word lies at a multiple of eight");
        let address = self.part(at, WORD as usize);
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, since a mapping
        // begins at a page; and every process reaches it by atomic operations or what is as good.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    /// Whether a word, if there is one, marks the region as left. All that this thread has read or
    /// swapped before was there before the word was set, if it is not: its reads are followed by an
    /// acquire fence, and its swaps are in one order with this.
    #[inline]
    pub(super) fn is_left(&self, left: Option<u64>) -> bool {
        left.is_some_and(|left| self.word(left).load(SeqCst) != 0)
    }

    /// Copies the bytes at `from`.
    ///
    /// # Panics
    /// If they are not all inside the region.
    #[inline]
    fn read(&self, from: u64, into: &mut [u8]) {
        let source = self.part(from, into.len());
        // SAFETY: as many bytes are there, in the mapping and in the slice, which is private.
        unsafe { copy_out(source, into.as_mut_ptr(), into.len()) };
        fence(Acquire);
    }

    /// Copies bytes to `to`.
    ///
    /// # Panics
    /// As [`Self::read`].
    #[inline]
    fn write(&self, to: u64, from: &[u8]) {
        let target = self.part(to, from.len());
        fence(Release);
        // SAFETY: as many bytes are there, in the mapping and in the slice, which is private.
        unsafe { copy_in(from.as_ptr(), target, from.len()) };
    }

    /// Where `length` bytes at `at` are.
    #[inline]
    fn part(&self, at: u64, length: usize) -> *mut u8 {
        let is_inside = at.checked_add(length as u64).is_some_and(|end| end <= self.length());
        assert!(is_inside, "beyond the region");
        // SAFETY: inside the mapping, so its length fits an `isize`.
        unsafe { self.address.as_ptr().add(at as usize) }
    }
}

/// Begins to fetch a cache line.
#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: it changes nothing that a program can see, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// Does nothing: other processors have no such instruction that is stable.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch(_: *const u8) {}

/// Bytes before the first whole word of the region, at most `length`.
#[inline]
fn head(shared: *const u8, length: usize) -> usize {
    shared.align_offset(WORD as usize).min(length)
}

/// Copies from the region.
///
/// # Safety
/// There are `length` bytes at both, and no other code uses `into`.
#[inline]
unsafe fn copy_out(from: *mut u8, into: *mut u8, length: usize) {
    let head = head(from, length);
    let words = (length - head) / WORD as usize;
    let tail = head + words * WORD as usize;
    // SAFETY: bytes before and behind the words, all of them within `length`.
    let byte = |at| unsafe { into.add(at).write(AtomicU8::from_ptr(from.add(at)).load(Relaxed)) };
    (0..head).for_each(byte);
    // SAFETY: `words` whole words lie behind the head, aligned on the side of the region.
    unsafe {
        let (from, into) = (from.add(head).cast::<u64>(), into.add(head).cast::<u64>());
        if !string_copy(from, into, words) {
            let word =
                |at| into.add(at).write_unaligned(AtomicU64::from_ptr(from.add(at)).load(Relaxed));
            (0..words).for_each(word);
        }
    }
    (tail..length).for_each(byte);
}

/// Copies into the region.
///
/// # Safety
/// There are `length` bytes at both, and no other thread writes those at `from`.
#[inline]
unsafe fn copy_in(from: *const u8, into: *mut u8, length: usize) {
    let head = head(into, length);
    let words = (length - head) / WORD as usize;
    let tail = head + words * WORD as usize;
    // SAFETY: bytes before and behind the words, all of them within `length`.
    let byte = |at| unsafe { AtomicU8::from_ptr(into.add(at)).store(from.add(at).read(), Relaxed) };
    (0..head).for_each(byte);
    // SAFETY: `words` whole words lie behind the head, aligned on the side of the region.
    unsafe {
        let (from, into) = (from.add(head).cast::<u64>(), into.add(head).cast::<u64>());
        if !string_copy(from, into, words) {
            let word = |at| {
                AtomicU64::from_ptr(into.add(at)).store(from.add(at).read_unaligned(), Relaxed)
            };
            (0..words).for_each(word);
        }
    }
    (tail..length).for_each(byte);
}

/// Copies words with one instruction, if that is worth it.
///
/// # Safety
/// There are so many words at both, and at least the side of the region is aligned.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn string_copy(from: *const u64, into: *mut u64, words: usize) -> bool {
    if words < STRING_WORDS_MIN {
        return false;
    }
    // SAFETY: loads and stores those words and nothing else; each that is aligned as a whole, as a
    // relaxed atomic operation on it would.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rsi") from => _,
            inout("rdi") into => _,
            options(nostack, preserves_flags),
        );
    }
    true
}

/// Copies nothing: other processors have no such instruction.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn string_copy(_: *const u64, _: *mut u64, _: usize) -> bool {
    false
}

impl AsFd for Region {
    /// The descriptor to hand to another process, which can [`Region::from_fd`] it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and whatever borrows from it has ended. That it may fail
        // does not matter: the mapping then stays until the process ends.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn what_could_vanish_under_its_readers_is_no_region() {
        let refused = |file| Region::from_fd(file).unwrap_err().kind();
        assert_eq!(refused(memfd(SealFlags::empty())), io::ErrorKind::InvalidData);
        assert_eq!(refused(memfd(SealFlags::SHRINK)), io::ErrorKind::InvalidData);
        assert_eq!(refused(tempfile::tempfile().unwrap().into()), io::ErrorKind::InvalidData);
        assert_eq!(refused(std::io::pipe().unwrap().0.into()), io::ErrorKind::InvalidData);
        assert_eq!(Region::from_fd(memfd(SEALS)).unwrap().length(), 4096);
        assert!(Region::create(0).is_err() && Region::create(u64::MAX).is_err());
    }

    #[test]
    fn a_region_keeps_its_size() {
        let region = Region::create(10_000).unwrap();
        assert_eq!(rustix::fs::ftruncate(&region, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&region, 20_000), Err(rustix::io::Errno::PERM));
        let more = rustix::fs::fcntl_add_seals(&region, SealFlags::FUTURE_WRITE);
        assert_eq!(more, Err(rustix::io::Errno::PERM), "nobody can shut others out");
        region.populate().unwrap();
        assert_eq!(rustix::fs::fstat(&region).unwrap().st_blocks * 512, 3 * 4096);
    }

    #[test]
    #[should_panic(expected = "beyond the region")]
    fn beyond_the_region_there_is_nothing() {
        Region::create(4096).unwrap().read(4090, &mut [0; 7]);
    }
}
