//! Order between writes of the same pages of a file.
//!
//! A write of less than whole pages past the page cache reads its first and last page, changes
//! them, and writes them back. A write of the same pages between the two would be lost. So each
//! write holds its pages while it is under way: one of whole pages together with others of whole
//! pages, as the kernel orders those; one that changes pages alone.
//!
//! Writes that meet go in the order in which they came, so no write waits for later ones.
//!
//! # Cost
//! A write of whole pages takes the lock twice, and looks at other writes only while one of them
//! changes pages.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::mutex::lock;

/// The pages that writes under way hold, of one file. Ranges are in bytes.
#[derive(Debug, Default)]
pub(super) struct PageHolds {
    writes: Mutex<Writes>,
    is_released: Condvar,
}

#[derive(Debug, Default)]
struct Writes {
    /// In the order in which they came: those that hold their pages, and those that wait.
    list: Vec<HeldPages>,
    last: u64,
    /// How many of them hold their pages alone, or wait for that.
    alone: usize,
}

#[derive(Clone, Debug)]
struct HeldPages {
    id: u64,
    pages: Range<u64>,
    is_alone: bool,
}

/// Pages that a write holds until this is dropped.
#[derive(Debug)]
pub(crate) struct PageHold {
    holds: Arc<PageHolds>,
    id: u64,
}

impl PageHolds {
    /// Holds whole pages together with other writes of whole pages, if no write that holds or
    /// wants one of them alone came before.
    pub(super) fn try_shared(self: &Arc<Self>, pages: Range<u64>) -> Option<PageHold> {
        let mut writes = lock(&self.writes);
        let new = HeldPages { id: writes.last + 1, pages, is_alone: false };
        let id = writes.is_free(&new).then(|| writes.add(new))?;
        drop(writes);
        Some(PageHold { holds: self.clone(), id })
    }

    /// The same, but waits for such writes.
    pub(super) fn shared(self: &Arc<Self>, pages: Range<u64>) -> PageHold {
        self.wait(pages, false)
    }

    /// Holds pages alone; waits for all writes of these pages that came before.
    pub(super) fn alone(self: &Arc<Self>, pages: Range<u64>) -> PageHold {
        self.wait(pages, true)
    }

    fn wait(self: &Arc<Self>, pages: Range<u64>, is_alone: bool) -> PageHold {
        let mut writes = lock(&self.writes);
        let new = HeldPages { id: writes.last + 1, pages, is_alone };
        let id = writes.add(new.clone());
        while !writes.is_free(&new) {
            writes = self.is_released.wait(writes).unwrap_or_else(PoisonError::into_inner);
        }
        drop(writes);
        PageHold { holds: self.clone(), id }
    }
}

impl Writes {
    /// Whether no write that came before meets `new`.
    fn is_free(&self, new: &HeldPages) -> bool {
        if self.alone == 0 {
            return true;
        }
        let mut before = self.list.iter().take_while(|other| other.id < new.id);
        !before.any(|other| {
            let meets = other.pages.start < new.pages.end && new.pages.start < other.pages.end;
            meets && (other.is_alone || new.is_alone)
        })
    }

    fn add(&mut self, new: HeldPages) -> u64 {
        self.last = new.id;
        self.alone += usize::from(new.is_alone);
        self.list.push(new);
        self.last
    }
}

impl Drop for PageHold {
    fn drop(&mut self) {
        let mut writes = lock(&self.holds.writes);
        let Ok(at) = writes.list.binary_search_by_key(&self.id, |held| held.id) else { return };
        // A write waits only for one that is alone, or to be alone.
        let has_waiters = writes.alone > 0;
        writes.alone -= usize::from(writes.list.remove(at).is_alone);
        drop(writes);
        if has_waiters {
            self.holds.is_released.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn whole_pages_are_shared_and_changed_ones_are_not() {
        let holds = Arc::new(PageHolds::default());
        let first = holds.shared(0..8192);
        let second = holds.try_shared(4096..12_288).unwrap();
        let elsewhere = holds.alone(12_288..16_384);
        assert!(holds.try_shared(8192..16_384).is_none());
        assert!(holds.try_shared(8192..12_288).is_some(), "pages beside those are free");
        drop(elsewhere);
        assert!(holds.try_shared(8192..16_384).is_some());
        drop((first, second));
        drop(holds.alone(0..16_384));
        let writes = lock(&holds.writes);
        assert_eq!((writes.list.len(), writes.alone), (0, 0));
    }

    #[test]
    fn a_write_that_waits_to_be_alone_lets_no_later_one_pass() {
        let holds = Arc::new(PageHolds::default());
        let first = holds.shared(0..4096);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(holds.alone(0..4096)));
            while lock(&holds.writes).alone == 0 {
                thread::yield_now();
            }
            assert!(holds.try_shared(0..4096).is_none());
            assert!(!waiting.is_finished(), "the first one still holds the page");
            drop(first);
        });
        assert!(holds.try_shared(0..4096).is_some());
    }

    /// Reads and writes of a number that are not one step lose no change of it.
    #[test]
    fn no_change_is_lost() {
        const THREADS: u64 = 4;
        const CHANGES: u64 = 2_000;
        let holds = Arc::new(PageHolds::default());
        let pages: [AtomicU64; 2] = Default::default();
        let change = |pages: &[AtomicU64]| {
            for page in pages {
                let before = page.load(Ordering::Relaxed);
                thread::yield_now();
                page.store(before + 1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (holds, pages) = (&holds, &pages);
                scope.spawn(move || {
                    for count in 0..CHANGES {
                        match (number + count) % 3 {
                            0 => {
                                let _held = holds.alone(0..4096);
                                change(&pages[..1]);
                            }
                            1 => {
                                let _held = holds.alone(4096..8192);
                                change(&pages[1..]);
                            }
                            _ => {
                                let _held = holds.alone(0..8192);
                                change(pages);
                            }
                        }
                        drop(holds.shared(0..8192));
                    }
                });
            }
        });
        let total: u64 = pages.iter().map(|page| page.load(Ordering::Relaxed)).sum();
        let expected =
            (0..THREADS).flat_map(|number| (0..CHANGES).map(move |count| number + count));
        assert_eq!(total, expected.map(|sum| if sum % 3 == 2 { 2 } else { 1 }).sum::<u64>());
    }
}
