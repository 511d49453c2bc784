//! The buffer of a stream of the C library, seen from outside.
//!
//! A stream's functions do not call `read` and `write`. They move bytes between the program and a
//! buffer, and the C library exchanges the buffer with the kernel internally. The fill of the
//! buffer before and after a call shows how many bytes the kernel moved.

use std::ptr::null;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use libc::{FILE, c_char, c_int, c_void};

use crate::real::Real;

/// The head of glibc's `FILE`. It has not moved in twenty years, and cannot: programs have `getc`
/// and `putc` compiled into them, which use it. Other threads change it, hence the atomics.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct StdioStream {
    flags: AtomicI32,
    read_now: AtomicUsize,
    read_end: AtomicUsize,
    read_base: AtomicUsize,
    write_base: AtomicUsize,
    write_now: AtomicUsize,
    write_end: AtomicUsize,
    buffer_base: AtomicUsize,
    buffer_end: AtomicUsize,
    saved: [AtomicUsize; 3],
    markers: AtomicUsize,
    chain: AtomicPtr<StdioStream>,
    descriptor: AtomicI32,
    flags_more: AtomicI32,
    old_offset: AtomicI64,
    column: u16,
    vtable_offset: i8,
    short_buffer: c_char,
    lock: *mut c_void,
    /// The kernel's offset, if the stream has it.
    offset: AtomicI64,
}

const _: () = assert!(std::mem::offset_of!(StdioStream, descriptor) == 112);
const _: () = assert!(std::mem::offset_of!(StdioStream, offset) == 144);

/// Flags of a stream: it has no buffer, or its buffer is written out with each line.
const UNBUFFERED: i32 = 2;
const BY_LINE: i32 = 0x200;

/// The size of a buffer that a stream has not allocated yet; the kernel's word for the usual file.
const BUFFER: u64 = 4096;

/// Where a stream's buffer stands, to see whether a move in the file read anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferPosition {
    base: usize,
    end: usize,
    offset: i64,
}

impl BufferPosition {
    /// Bytes in the buffer.
    pub(crate) fn buffered(self) -> u64 {
        self.end.saturating_sub(self.base) as u64
    }
}

fn distance(from: &AtomicUsize, to: &AtomicUsize) -> u64 {
    to.load(Ordering::Relaxed).saturating_sub(from.load(Ordering::Relaxed)) as u64
}

impl StdioStream {
    /// The stream behind a pointer.
    ///
    /// # Safety
    /// `stream` is null or a stream that stays open during its use.
    #[inline]
    pub(crate) unsafe fn of<'a>(stream: *mut FILE) -> Option<&'a Self> {
        // SAFETY: as the caller promises; every field that is read is an atomic.
        unsafe { stream.cast::<Self>().as_ref() }
    }

    /// Its descriptor; negative for streams on memory or on a program's own functions.
    pub(crate) fn descriptor(&self) -> c_int {
        self.descriptor.load(Ordering::Relaxed)
    }

    /// Bytes that were read from the kernel and not yet taken.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        distance(&self.read_now, &self.read_end)
    }

    /// Bytes that were accepted and not yet written to the kernel.
    #[inline]
    pub(crate) fn pending(&self) -> u64 {
        distance(&self.write_base, &self.write_now)
    }

    /// Bytes that are accepted without a word to the kernel. None for streams that do not buffer
    /// whole blocks, or that were read from last.
    #[inline]
    pub(crate) fn writable(&self) -> u64 {
        match distance(&self.write_now, &self.write_end) {
            // Not used yet.
            0 if self.buffer_base.load(Ordering::Relaxed) == 0
                && self.flags.load(Ordering::Relaxed) & (UNBUFFERED | BY_LINE) == 0 =>
            {
                BUFFER - 1
            }
            space => space,
        }
    }

    /// How much it reads at once.
    pub(crate) fn buffer(&self) -> u64 {
        match distance(&self.buffer_base, &self.buffer_end) {
            0 => BUFFER,
            size => size,
        }
    }

    /// Where its buffer stands.
    pub(crate) fn position(&self) -> BufferPosition {
        BufferPosition {
            base: self.read_base.load(Ordering::Relaxed),
            end: self.read_end.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
        }
    }

    /// Whether what is available holds `delimiter` within `most` bytes. To be called while the
    /// stream is held, or when there is one thread.
    pub(crate) fn buffer_contains(&self, delimiter: u8, most: u64) -> bool {
        let length = self.available().min(most) as usize;
        let start = self.read_now.load(Ordering::Relaxed);
        let start = std::ptr::with_exposed_provenance::<c_void>(start);
        // SAFETY: the bytes from `start` on are in the buffer, which no other thread changes.
        length > 0 && !unsafe { libc::memchr(start, delimiter.into(), length) }.is_null()
    }

    fn file(&self) -> *mut FILE {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
}

/// A stream that other threads leave alone until the value is dropped, so that what is seen before
/// and after a call belongs to that call. The lock is the stream's own, which its functions take as
/// well, and may be taken again by who has it.
#[derive(Debug)]
pub(crate) struct StreamLock<'a>(Option<&'a StdioStream>);

impl<'a> StreamLock<'a> {
    /// Holds `stream` if there are other threads.
    #[inline]
    pub(crate) fn new(stream: &'a StdioStream) -> Self {
        if is_single_threaded() {
            return Self(None);
        }
        // SAFETY: a reference to a stream that is open.
        unsafe { flockfile(stream.file()) };
        Self(Some(stream))
    }

    /// Holds nothing, for functions whose caller holds the stream.
    pub(crate) const fn locked_by_caller() -> Self {
        Self(None)
    }
}

impl Drop for StreamLock<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(stream) = self.0 {
            // SAFETY: locked by `new` in this thread.
            unsafe { funlockfile(stream.file()) };
        }
    }
}

/// Stands for a C library without a flag for a single thread.
static UNKNOWN: c_char = 0;

/// Whether the process has one thread, as the C library reports since 2.32.
#[inline]
pub(crate) fn is_single_threaded() -> bool {
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static WORD: Real<*const c_char> =
        Real::new("__libc_single_threaded\0", (&raw const UNKNOWN).cast());
    // SAFETY: the address of a variable of the C library that only changes when a thread is
    // started, or of ours.
    unsafe { *WORD.get() != 0 }
}

/// Calls `see` with every open stream. The list is the C library's, and locked meanwhile.
pub(crate) fn each(mut see: impl FnMut(&StdioStream)) {
    type Lock = Option<unsafe extern "C" fn()>;
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static HEAD: Real<*const *mut StdioStream> = Real::new("_IO_list_all\0", null());
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static LOCK: Real<Lock> = Real::new("_IO_list_lock\0", null());
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static UNLOCK: Real<Lock> = Real::new("_IO_list_unlock\0", null());
    // SAFETY: the names are those of the head of the list and of two functions without arguments;
    // the list does not change between the two.
    unsafe {
        let (Some(head), Some(lock), Some(unlock)) =
            (HEAD.get().as_ref(), LOCK.get(), UNLOCK.get())
        else {
            return;
        };
        lock();
        let mut stream = *head;
        while let Some(next) = stream.as_ref() {
            see(next);
            stream = next.chain.load(Ordering::Relaxed);
        }
        unlock();
    }
}
