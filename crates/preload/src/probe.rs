//! Checks that an address of the program can be read, before it is read.
//!
//! The kernel answers a pointer into nowhere with `EFAULT`; the shim would end the program by it.
//! So memory that the kernel would read is probed first, page by page, by a call that reads eight
//! bytes and then refuses: `rt_sigprocmask` with no such operation. It changes nothing, takes no
//! lock and no memory, and works in signal handlers and in children of `vfork`.
//!
//! A probe takes a tenth of a microsecond, so none is made where the answer is known: for the frame
//! that probes, the stack of the first thread above it, the program's own image, and the heap that
//! grows by `brk`. That leaves what lies in other mappings: heaps and stacks of other threads, and
//! large buffers.
//!
//! Another thread may take memory away between the check and the access. A program that does so
//! with what it has just handed over has a race without the shim as well; and one that takes away
//! parts of its own image or of that heap must not hand them over.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process;
use crate::real::Real;

/// Memory is mapped in units of this size, or of a multiple.
const PAGE: usize = 4096;

/// A range of addresses.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Range {
    const fn empty() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    #[inline]
    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        address >= start && address < self.end.load(Ordering::Relaxed)
    }
}

/// The most segments of a program's image that are remembered; there are four as a rule.
const SEGMENTS_MAX: usize = 6;
/// The readable segments of the program's own image, in whole pages.
static IMAGE: [Range; SEGMENTS_MAX] = [const { Range::empty() }; SEGMENTS_MAX];
/// Near the top of the first thread's stack, above everything that the program has put there.
static STACK_TOP: AtomicUsize = AtomicUsize::new(0);
/// How far below its top a frame is on that stack for sure: the kernel keeps 128 MiB free of
/// mappings there.
const STACK_SPAN: usize = 64 << 20;
/// From here on the heap that grows by `brk` can be read.
static HEAP_START: AtomicUsize = AtomicUsize::new(0);
/// The most pages that are checked to find where the heap begins.
const HEAP_PAGES_MAX: usize = 256;

/// The end of that heap, as the C library keeps it.
#[inline]
fn heap_end() -> usize {
    static NOWHERE: usize = 0;
    #[unsafe(link_section = "tidegate_real")]
    static END: Real<*const usize> = Real::new("__curbrk\0", (&raw const NOWHERE).cast());
    // SAFETY: the address of a pointer of the C library, or of ours. Another thread may change it
    // meanwhile: a word is read as a whole.
    unsafe { END.get().read_volatile() }
}

/// Finds out where memory is that can always be read. To be called when the program begins.
pub(crate) fn find_readable_memory() {
    // SAFETY: a question to the C library.
    let auxiliary = |kind| unsafe { libc::getauxval(kind) } as usize;
    STACK_TOP.store(auxiliary(libc::AT_EXECFN), Ordering::Relaxed);
    find_image(auxiliary(libc::AT_PHDR), auxiliary(libc::AT_PHNUM));
    let now = heap_end() / PAGE;
    if now > 0 {
        let pages = (now.saturating_sub(HEAP_PAGES_MAX)..now).rev();
        let start = pages.take_while(|page| is_page_readable(*page)).last().unwrap_or(now);
        HEAP_START.store(start * PAGE, Ordering::Relaxed);
    }
}

/// Remembers the segments of the program that can be read, by its own table.
fn find_image(table: usize, count: usize) {
    let table = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(table);
    if table.is_null() {
        return;
    }
    // SAFETY: their location and number are from the kernel.
    let segments = unsafe { std::slice::from_raw_parts(table, count) };
    let own = segments.iter().find(|segment| segment.p_type == libc::PT_PHDR);
    let Some(own) = own else { return };
    let offset = table.addr().wrapping_sub(own.p_vaddr as usize);
    let readable = |segment: &&libc::Elf64_Phdr| {
        segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_R != 0
    };
    for (range, segment) in IMAGE.iter().zip(segments.iter().filter(readable)) {
        let start = offset.wrapping_add(segment.p_vaddr as usize);
        let end = start.wrapping_add(segment.p_memsz as usize);
        // The kernel maps whole pages.
        range.end.store(end.next_multiple_of(PAGE), Ordering::Relaxed);
        range.start.store(start / PAGE * PAGE, Ordering::Relaxed);
    }
}

/// The knowledge of readable memory during one call.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The last pages that were found readable, by number.
    known: [usize; 2],
    /// An address in the caller's stack frame.
    frame: usize,
    /// Whether the kernel must not be queried; then everything is taken to be readable.
    may_not_query: bool,
}

impl Probe {
    #[inline]
    pub(crate) fn new() -> Self {
        let here = 0u8;
        // The frame that this is called from.
        let frame = (&raw const here).addr();
        Self { known: [frame / PAGE; 2], frame, may_not_query: process::must_not_probe() }
    }

    /// Whether all of these bytes can be read.
    #[inline]
    pub(crate) fn can_read(&mut self, address: usize, length: usize) -> bool {
        let Some(last) = length.checked_sub(1) else { return true };
        let Some(end) = address.checked_add(last) else { return false };
        (address / PAGE..=end / PAGE).all(|page| self.is_readable(page))
    }

    /// How many bytes from `address` on lie in a page that can be read, which is the whole rest of
    /// the page or nothing.
    #[inline]
    pub(crate) fn readable_from(&mut self, address: usize) -> usize {
        let page = address / PAGE;
        if self.is_readable(page) { (page + 1) * PAGE - address } else { 0 }
    }

    /// Whether the page at this address lies where memory can always be read.
    #[inline]
    fn is_part_of_program(&self, page: usize) -> bool {
        let top = STACK_TOP.load(Ordering::Relaxed);
        let on_stack = self.frame < top && top - self.frame < STACK_SPAN;
        if on_stack && page > self.frame && page < top {
            return true;
        }
        let heap = HEAP_START.load(Ordering::Relaxed);
        if page >= heap && heap != 0 && page.saturating_add(PAGE) <= heap_end() {
            return true;
        }
        IMAGE.iter().any(|segment| segment.contains(page))
    }

    #[inline]
    fn is_readable(&mut self, page: usize) -> bool {
        if self.known.contains(&page) || self.may_not_query {
            return true;
        }
        let is_readable = self.is_part_of_program(page * PAGE) || is_page_readable(page);
        if is_readable {
            self.known[1] = page;
        }
        is_readable
    }
}

/// Queries the kernel. The first page is never mapped, and the kernel would not read a null
/// pointer.
#[inline]
fn is_page_readable(page: usize) -> bool {
    const BAD_ADDRESS: isize = -(libc::EFAULT as isize);
    page != 0 && raw_sigprocmask(page * PAGE) != BAD_ADDRESS
}

/// `rt_sigprocmask(~0, address, NULL, 8)`, with the kernel's result.
#[cfg(target_arch = "x86_64")]
#[inline]
fn raw_sigprocmask(address: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel reads eight bytes and refuses the operation; it writes to nothing. A
    // system call destroys the two registers that are named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask as isize => result,
            in("rdi") usize::MAX,
            in("rsi") address,
            in("rdx") 0usize,
            in("r10") 8usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
    }
    result
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[inline]
fn raw_sigprocmask(address: usize) -> isize {
    let result: isize;
    // SAFETY: as above; a system call keeps every register but the one of the result.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") libc::SYS_rt_sigprocmask as usize,
            inlateout("x0") usize::MAX => result,
            in("x1") address,
            in("x2") 0usize,
            in("x3") 8usize,
            options(nostack, readonly),
        );
    }
    result
}

/// Where the call is not known how to be made by hand, everything is taken to be readable.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn raw_sigprocmask(_: usize) -> isize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_known_before_it_is_read() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let length = 3 * PAGE;
        // SAFETY: new memory, of which the middle is taken away again; it is not touched.
        let start = unsafe {
            let flags = MapFlags::PRIVATE;
            let start = mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ, flags);
            let start = start.unwrap();
            munmap(start.byte_add(PAGE), PAGE).unwrap();
            start.addr()
        };
        let mut probe = Probe::new();
        assert!(probe.can_read(start, PAGE) && probe.can_read(start + 2 * PAGE, PAGE));
        assert!(!probe.can_read(start, PAGE + 1) && !probe.can_read(start, length));
        assert!(!probe.can_read(start + PAGE + 8, 1));
        assert!(probe.can_read(start + PAGE, 0), "nothing is everywhere");
        assert_eq!(probe.readable_from(start + PAGE - 7), 7);
        assert_eq!(probe.readable_from(start + PAGE), 0);
        for address in [0, 1, 16, PAGE - 1, 1 << 63, usize::MAX] {
            assert!(!probe.can_read(address, 1), "{address:#x}");
        }
        assert!(!probe.can_read(usize::MAX, 2), "around the end");
        let own = 5u64;
        assert!(probe.can_read((&raw const own).addr(), 8));
    }

    /// Memory that the probe takes to be readable without a system call is readable, by the kernel.
    #[test]
    fn what_is_known_of_the_program_is_so() {
        find_readable_memory();
        let probe = Probe::new();
        let image = IMAGE.iter().map(|segment| segment.start.load(Ordering::Relaxed));
        let heap = HEAP_START.load(Ordering::Relaxed);
        let literal = c"literal".as_ptr().addr() / PAGE * PAGE;
        assert!(probe.is_part_of_program(literal), "a literal lies in the image");
        for start in image.chain([heap]).filter(|start| *start > 0) {
            for page in (start..start + 64 * PAGE).step_by(PAGE) {
                assert!(
                    !probe.is_part_of_program(page) || is_page_readable(page / PAGE),
                    "{page:#x}"
                );
            }
        }
        assert!(!probe.is_part_of_program(heap_end()), "the heap ends there");
        assert!(heap < heap_end());
    }
}
