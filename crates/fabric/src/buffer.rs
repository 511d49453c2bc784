//! The bytes of one request, owned.
//!
//! Reads and writes that bypass the page cache need memory aligned to the device's blocks, and a
//! path that answers hundreds of thousands of requests a second must not allocate. So a [`Buffer`]
//! is made of whole aligned pages, and the memory of a dropped one stays with the thread that
//! dropped it until that thread needs one of the same size. A gateway's worker makes a buffer,
//! passes it to a node and gets it back with the answer: its steady state allocates nothing.
//!
//! Memory that is used again is not cleared first. Code that exposes a buffer's bytes must have
//! written all of them.
//!
//! A large request is served in pieces, by several threads at a time. [`Buffer::divide`] gives up a
//! buffer for buffers that lie one after the other in its memory, and [`Divided::join`] gets it
//! back when they are gone. Nothing is copied for that.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
type BufferPool = [Vec<Vec<Page>>; CLASSES];

thread_local! {
    static POOL: RefCell<BufferPool> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

/// From this class on, 256 KiB, all threads together keep as much as each does: where one thread
/// reads what another one writes, the memory goes from here to there for good, and to have new
/// memory from the kernel takes longer than to copy it.
const LARGE: usize = 6;

/// Memory of the classes from [`LARGE`] on that the thread had no room for.
static OVERFLOW: [Mutex<Vec<Vec<Page>>>; CLASSES - LARGE] =
    [const { Mutex::new(Vec::new()) }; CLASSES - LARGE];

/// The pages of a size class that all threads share; none if the class is not large.
fn large(class: usize) -> Option<MutexGuard<'static, Vec<Vec<Page>>>> {
    let kept = OVERFLOW.get(class.checked_sub(LARGE)?)?;
    // To push and pop leaves a vector whole.
    Some(kept.lock().unwrap_or_else(PoisonError::into_inner))
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
    memory: Memory,
    length: usize,
}

enum Memory {
    /// As many pages as the class has, or exactly enough if there is no class for so many.
    Own(Vec<Page>),
    /// A window of a divided buffer, which no other buffer has a part of.
    Window { shared: Arc<DividedPages>, start: usize, capacity: usize },
}

/// The memory of a divided buffer, which is accessed through windows alone.
struct DividedPages {
    first: NonNull<Page>,
    count: usize,
}

// SAFETY: the value owns its pages, and holds only their address. Their bytes are accessed through
// windows that do not overlap, each owned by one buffer.
unsafe impl Send for DividedPages {}
// SAFETY: as for `Send`.
unsafe impl Sync for DividedPages {}

impl DividedPages {
    fn new(pages: Vec<Page>) -> Self {
        let mut pages = ManuallyDrop::new(pages.into_boxed_slice());
        // A slice's pointer is not null.
        Self { first: NonNull::from(&mut **pages).cast(), count: pages.len() }
    }

    /// The pages, of which there are no windows any more.
    fn into_pages(self) -> Vec<Page> {
        let this = ManuallyDrop::new(self);
        let pages = NonNull::slice_from_raw_parts(this.first, this.count);
        // SAFETY: `new` took this very slice out of a box, and it is given back once: `this` is not
        // dropped, and `drop` is the only other place that does it.
        unsafe { Box::from_raw(pages.as_ptr()) }.into_vec()
    }
}

impl Drop for DividedPages {
    fn drop(&mut self) {
        let pages = NonNull::slice_from_raw_parts(self.first, self.count);
        // SAFETY: as in `into_pages`, which does not run this.
        drop(unsafe { Box::from_raw(pages.as_ptr()) });
    }
}

/// A buffer that was given up for pieces of it.
///
/// ```
/// use tidegate_fabric::buffer::Buffer;
/// let mut divided = Buffer::zeroed(10_000).divide();
/// let mut pieces = [divided.cut(8_192), divided.cut(8_192)];
/// assert_eq!(pieces.each_ref().map(|piece| piece.len()), [8_192, 1_808]);
/// pieces[1].fill(7);
/// drop(pieces);
/// let whole = divided.join().expect("no piece is left");
/// assert_eq!((whole.len(), whole[8_191], whole[8_192]), (10_000, 0, 7));
/// ```
#[derive(Debug)]
pub struct Divided {
    shared: Arc<DividedPages>,
    length: usize,
    /// How much of it was cut off.
    cut: usize,
}

impl fmt::Debug for DividedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} pages)", self.count)
    }
}

impl Divided {
    /// The next `length` bytes, or fewer where it ends, as a buffer. It is aligned if what was cut
    /// off before is a multiple of [`ALIGNMENT`].
    pub fn cut(&mut self, length: usize) -> Buffer {
        let (start, capacity) = (self.cut, length.min(self.length - self.cut));
        self.cut += capacity;
        let shared = self.shared.clone();
        Buffer { memory: Memory::Window { shared, start, capacity }, length: capacity }
    }

    /// Whether a buffer is a piece of this one.
    pub fn is_piece(&self, buffer: &Buffer) -> bool {
        match &buffer.memory {
            Memory::Own(_) => false,
            Memory::Window { shared, .. } => Arc::ptr_eq(shared, &self.shared),
        }
    }

    /// The buffer, if none of its pieces is left.
    pub fn join(self) -> Option<Buffer> {
        let pages = Arc::into_inner(self.shared)?.into_pages();
        Some(Buffer { memory: Memory::Own(pages), length: self.length })
    }
}

impl Buffer {
    /// No bytes, and no memory.
    pub const fn empty() -> Self {
        Self { memory: Memory::Own(Vec::new()), length: 0 }
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
        let kept = kept.ok().flatten().or_else(|| large(class)?.pop());
        let pages = kept.unwrap_or_else(|| vec![Page([0; ALIGNMENT]); count]);
        Self { memory: Memory::Own(pages), length }
    }

    /// `length` zeros.
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::with_length(length);
        buffer.fill(0);
        buffer
    }

    /// The number of bytes that there is memory for.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Own(pages) => pages.len() * ALIGNMENT,
            Memory::Window { capacity, .. } => *capacity,
        }
    }

    /// Gives it up for [pieces](Divided::cut) of it.
    pub fn divide(mut self) -> Divided {
        let length = self.length;
        let pages = match &mut self.memory {
            Memory::Own(pages) => std::mem::take(pages),
            // A piece of a piece would have to refer to both: it is copied, which no caller needs
            // today.
            Memory::Window { .. } => {
                let mut copy = Self::from(&*self);
                match &mut copy.memory {
                    Memory::Own(pages) => std::mem::take(pages),
                    Memory::Window { .. } => Vec::new(),
                }
            }
        };
        Divided { shared: Arc::new(DividedPages::new(pages)), length, cut: 0 }
    }

    /// Where its bytes begin.
    fn first(&self) -> *const u8 {
        match &self.memory {
            Memory::Own(pages) => pages.as_ptr().cast(),
            // SAFETY: a window lies within the pages.
            Memory::Window { shared, start, .. } => unsafe {
                shared.first.as_ptr().cast::<u8>().add(*start)
            },
        }
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
        let Memory::Own(pages) = &mut self.memory else { return };
        let class = class(pages.len());
        if pages.is_empty() || class >= CLASSES {
            return;
        }
        let pages = std::mem::take(pages);
        // A thread that is ending has no pool any more, and the memory is freed.
        let _ = POOL.try_with(|pool| {
            let kept = &mut pool.borrow_mut()[class];
            let bytes = pages.len() * ALIGNMENT;
            if (kept.len() + 1) * bytes <= KEPT_MAX {
                kept.push(pages);
            } else if let Some(mut large) = large(class)
                && (large.len() + 1) * bytes <= KEPT_MAX
            {
                large.push(pages);
            }
        });
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        debug_assert!(self.length <= self.capacity());
        // SAFETY: there are `capacity` initialised bytes in one piece from there on, `Page` has no
        // padding, and every function that sets `length` keeps it within `capacity`. They belong to
        // this buffer: the vector is its own, and no other buffer has a part of its window.
        unsafe { slice::from_raw_parts(self.first(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.length <= self.capacity());
        let first = match &mut self.memory {
            Memory::Own(pages) => pages.as_mut_ptr().cast(),
            Memory::Window { .. } => self.first().cast_mut(),
        };
        // SAFETY: as for `deref`; the buffer is borrowed mutably, and any bytes make a `Page`. The
        // pointer may be written through: the vector's was made for that, a window's comes from
        // `NonNull::from(&mut _)`.
        unsafe { slice::from_raw_parts_mut(first, self.length) }
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
        let address = first.as_ptr();
        drop(first);
        let second = Buffer::with_length(8_192);
        assert_eq!(second.as_ptr(), address, "5000 and 8192 bytes are both two pages");
        assert_ne!(Buffer::with_length(8_192).as_ptr(), address, "it is in use");
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
    fn large_memory_comes_back_from_the_thread_that_dropped_it() {
        // As many as the thread that ends keeps itself, and as many more as all threads do.
        let (size, count) = (512 << 10, KEPT_MAX / (512 << 10));
        let mut many: Vec<_> = (0..2 * count).map(|_| Buffer::with_length(size)).collect();
        many.iter_mut().for_each(|buffer| buffer.fill(0xa5));
        std::thread::spawn(move || drop(many)).join().unwrap_or_else(|_| panic!("it drops"));
        // New memory is zeros. Another test may have had one of them meanwhile.
        let again: Vec<_> = (0..count).map(|_| Buffer::with_length(size)).collect();
        let used = again.iter().filter(|buffer| buffer.iter().all(|byte| *byte == 0xa5)).count();
        assert!(used > count / 2, "{used} of {count}");
        let kept = OVERFLOW[7 - LARGE].lock().map(|kept| kept.len());
        assert!(kept.is_ok_and(|kept| kept * size <= KEPT_MAX), "what all keep is bounded");
    }

    #[test]
    fn pieces_are_the_bytes_of_the_whole_and_nothing_else() {
        let mut whole = Buffer::with_length(300_000);
        whole.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
        let address = whole.as_ptr();
        let mut divided = whole.divide();
        let mut pieces: Vec<Buffer> = (0..4).map(|_| divided.cut(128 << 10)).collect();
        let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [128 << 10, 128 << 10, 300_000 - (256 << 10), 0]);
        assert!(pieces[1].iter().enumerate().all(|(at, byte)| *byte == at as u8));
        assert_eq!(pieces[2].capacity(), pieces[2].len(), "what lies behind is not its");
        std::thread::scope(|scope| {
            for (number, piece) in pieces.iter_mut().enumerate() {
                scope.spawn(move || piece.fill(number as u8));
            }
        });
        assert!(pieces.iter().all(|piece| divided.is_piece(piece)));
        assert!(!divided.is_piece(&Buffer::with_length(1)));
        drop(pieces);
        let whole = divided.join().unwrap_or_default();
        assert_eq!((whole.len(), whole.as_ptr()), (300_000, address));
        assert!(whole.iter().enumerate().all(|(at, byte)| *byte == (at >> 17) as u8));
    }

    #[test]
    fn a_buffer_with_pieces_is_not_joined() {
        let mut divided = Buffer::zeroed(8_192).divide();
        let piece = divided.cut(4_096);
        assert!(divided.join().is_none());
        assert!(piece.iter().all(|byte| *byte == 0), "the memory is there as long as a piece");
        let second = piece.divide().cut(9);
        assert_eq!(second.len(), 9);
    }

    #[test]
    #[should_panic(expected = "does not grow")]
    fn memory_does_not_grow() {
        Buffer::with_length(1).set_length(4_097);
    }
}
