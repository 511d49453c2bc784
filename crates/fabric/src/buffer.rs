//! The bytes of one request, owned.
//!
//! Reads and writes that bypass the page cache want memory aligned to the device's blocks, and a
//! path that answers hundreds of thousands of requests a second wants no allocator in it. So a
//! [`Buffer`] is made of whole aligned pages, and the memory of a dropped one stays with the thread
//! that dropped it until that thread wants one of the same size. A gateway's worker makes a buffer,
//! passes it to a node and gets it back with the answer: its steady state allocates nothing.
//!
//! Memory that is used again is not cleared first. Whoever shows a buffer's bytes to somebody must
//! have written all of them.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

/// The alignment of every buffer, in bytes: no block device has larger blocks on Linux.
pub const ALIGNMENT: usize = 4096;

/// Sizes that are kept for later: 1, 2, 4, … pages, up to 1 MiB. Larger ones are rare, and what
/// they carry takes longer than an allocation.
const CLASSES: usize = 9;

/// Bytes that a thread keeps of each size: a thousand requests of 4 KiB, four of 1 MiB.
const KEPT_MAX: usize = 4 << 20;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Memory by class.
type Pool = [Vec<Vec<Page>>; CLASSES];

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

/// Bytes, aligned to [`ALIGNMENT`].
///
/// ```
/// use tidegate_fabric::buffer::Buffer;
/// let mut buffer = Buffer::with_length(10_000);
/// buffer.fill(7);
/// assert_eq!(buffer.len(), 10_000);
/// assert_eq!(buffer.as_ptr() as usize % 4096, 0);
/// buffer.set_length(3);
/// assert_eq!(&buffer[..], [7, 7, 7]);
/// ```
pub struct Buffer {
    /// As many as the class has, or exactly enough if there is no class for so many.
    pages: Vec<Page>,
    length: usize,
}

impl Buffer {
    /// No bytes, and no memory.
    pub const fn empty() -> Self {
        Self { pages: Vec::new(), length: 0 }
    }

    /// `length` bytes. Their values are whatever an earlier buffer of this thread left there.
    pub fn with_length(length: usize) -> Self {
        if length == 0 {
            return Self::empty();
        }
        let needed = length.div_ceil(ALIGNMENT);
        let class = class(needed);
        let count = if class < CLASSES { 1 << class } else { needed };
        let kept = POOL.try_with(|pool| pool.borrow_mut().get_mut(class).and_then(Vec::pop));
        let pages = kept.ok().flatten().unwrap_or_else(|| vec![Page([0; ALIGNMENT]); count]);
        Self { pages, length }
    }

    /// `length` zeros.
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::with_length(length);
        buffer.fill(0);
        buffer
    }

    /// The number of bytes that there is memory for.
    pub fn capacity(&self) -> usize {
        self.pages.len() * ALIGNMENT
    }

    /// Shortens the buffer, or lengthens it within its memory; what is added has any values.
    ///
    /// # Panics
    /// If `length` is more than [`Self::capacity`].
    pub fn set_length(&mut self, length: usize) {
        assert!(length <= self.capacity(), "a buffer's memory does not grow");
        self.length = length;
    }
}

/// Which class holds `pages` of them; [`CLASSES`] or more if none does.
fn class(pages: usize) -> usize {
    pages.next_power_of_two().trailing_zeros() as usize
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let class = class(self.pages.len());
        if self.pages.is_empty() || class >= CLASSES {
            return;
        }
        let pages = std::mem::take(&mut self.pages);
        // A thread that is ending has no pool any more, and the memory is freed.
        let _ = POOL.try_with(|pool| {
            let kept = &mut pool.borrow_mut()[class];
            if (kept.len() + 1) * pages.len() * ALIGNMENT <= KEPT_MAX {
                kept.push(pages);
            }
        });
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        debug_assert!(self.length <= self.capacity());
        // SAFETY: the vector owns `capacity` initialised bytes in one piece, `Page` has no padding,
        // and every function that sets `length` keeps it within `capacity`.
        unsafe { slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.length <= self.capacity());
        // SAFETY: as for `deref`; the vector is borrowed mutably, and any bytes make a `Page`.
        unsafe { slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_length(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_and_all_of_it_is_usable() {
        for length in [1, 511, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let mut buffer = Buffer::with_length(length);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            buffer.fill(0xa5);
            assert!(buffer.iter().all(|byte| *byte == 0xa5) && buffer.len() == length);
            assert!(buffer.capacity() >= length);
        }
        assert!(Buffer::empty().is_empty() && Buffer::with_length(0).capacity() == 0);
    }

    #[test]
    fn memory_is_used_again_by_the_thread_that_dropped_it() {
        let first = Buffer::with_length(5_000);
        let place = first.as_ptr();
        drop(first);
        let second = Buffer::with_length(8_192);
        assert_eq!(second.as_ptr(), place, "5000 and 8192 bytes are both two pages");
        assert_ne!(Buffer::with_length(8_192).as_ptr(), place, "it is in use");
        drop(second);
        assert!(Buffer::zeroed(8_192).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_a_thread_keeps_is_bounded() {
        let many: Vec<_> = (0..2_000).map(|_| Buffer::with_length(1)).collect();
        drop(many);
        let kept = POOL.with(|pool| pool.borrow()[0].len());
        assert_eq!(kept * ALIGNMENT, KEPT_MAX);
    }

    #[test]
    #[should_panic(expected = "does not grow")]
    fn memory_does_not_grow() {
        Buffer::with_length(1).set_length(4_097);
    }
}
