//! Memory for a path that does not lie on the stack: a signal handler with a small stack may open a
//! file, and must not allocate.
//!
//! A pool of pages that threads claim for as long as they need one, by a bit each. Where all are
//! claimed, the stack has to do. Untouched pages cost nothing.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a page: the longest path that the kernel takes, with its zero.
pub const PAGE: usize = 4096;

/// A bit for each page.
const PAGES: usize = 64;

#[repr(C, align(4096))]
struct Page(UnsafeCell<[u8; PAGE]>);

// SAFETY: only the thread that has claimed a page touches it.
unsafe impl Sync for Page {}

static POOL: [Page; PAGES] = [const { Page(UnsafeCell::new([0; PAGE])) }; PAGES];
/// Which pages are claimed.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Which of them this thread has claimed.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// Claims a page. Gives its bit.
fn claim() -> Option<u32> {
    let next = |claimed: u64| (claimed != u64::MAX).then(|| claimed | (claimed + 1));
    let claimed = CLAIMED.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).ok()?;
    let page = claimed.trailing_ones();
    HELD.set(HELD.get() | 1 << page);
    Some(page)
}

fn give_back(page: u32) {
    HELD.set(HELD.get() & !(1 << page));
    CLAIMED.fetch_and(!(1 << page), Ordering::Release);
}

/// Calls `see` with memory that is this call's alone, and may have the content that an earlier user
/// left.
pub fn with_page<R>(see: impl FnOnce(&mut [u8; PAGE]) -> R) -> R {
    let Some(page) = claim() else { return on_stack(see) };
    // SAFETY: claimed by this thread, which gives it back below. If a signal handler leaves from
    // within `see` for another place, no thread touches what is left of it any more.
    let result = see(unsafe { &mut *POOL[page as usize].0.get() });
    give_back(page);
    result
}

#[cold]
#[inline(never)]
fn on_stack<R>(see: impl FnOnce(&mut [u8; PAGE]) -> R) -> R {
    see(&mut [0; PAGE])
}

/// Gives back what this thread had: a signal handler has interrupted it and leaves for another
/// place.
pub fn abandon() {
    let held = HELD.replace(0);
    if held != 0 {
        CLAIMED.fetch_and(!held, Ordering::Release);
    }
}

/// Gives back what other threads had when this process was forked: they are not in it.
pub fn abandon_others() {
    CLAIMED.store(HELD.get(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_pages_of_their_own() {
        std::thread::scope(|scope| {
            for thread in 0..8u8 {
                scope.spawn(move || {
                    for round in 0..1_000 {
                        with_page(|page| {
                            page[..64].fill(thread ^ round as u8);
                            let inner = with_page(|page| {
                                page[..64].fill(!thread);
                                page[63]
                            });
                            assert_eq!(inner, !thread);
                            assert!(page[..64].iter().all(|byte| *byte == thread ^ round as u8));
                        });
                    }
                });
            }
        });
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    fn where_none_is_left_the_stack_has_to_do() {
        fn nested(depth: usize) -> usize {
            with_page(|page| {
                page[0] = depth as u8;
                let below = if depth > 0 { nested(depth - 1) } else { 0 };
                assert_eq!(page[0], depth as u8);
                below + 1
            })
        }
        assert_eq!(nested(PAGES + 3), PAGES + 4);
        // As a jump out of the middle leaves it.
        assert!(claim().is_some());
        abandon();
        assert_eq!(HELD.get(), 0);
    }
}
