//! Files that the process has registered with its rings (`io_uring`).
//!
//! A request in a ring may name a file by its index among the registered ones. The kernel keeps
//! such a file open after the program has closed its descriptor, so the index is all that is known
//! at the request. Hence the table: it has what the descriptor was when it was registered.
//!
//! The table does not have every file. It has no files that the kernel opened directly into an
//! index, none beyond its size, and none after the rules have changed: the descriptor may be
//! another file's by then. A request for a file that the table does not have counts as one on
//! storage with any path. It so pays at the first rule that accepts the rest of it, and the
//! resource is charged rather than passed by.

use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Descriptor, DescriptorKind, Known};
use super::{File, MASK_WORDS, Mask, is_own, remembered};

/// The most registered files of a process that are remembered.
const REGISTERED_MAX: usize = 4_096;
/// How many cells a file may be in, from that of its hash on.
const PROBES: usize = 16;

/// A registered file.
struct Registered {
    /// The ring and the index; zero if the cell is free.
    key: AtomicU64,
    file: Descriptor<MASK_WORDS>,
}

/// Untouched pages of it cost nothing.
static REGISTERED: [Registered; REGISTERED_MAX] = [const {
    Registered {
        key: AtomicU64::new(0),
        file: Descriptor {
            state: AtomicU64::new(0),
            mask: [const { AtomicU64::new(0) }; MASK_WORDS],
        },
    }
}; REGISTERED_MAX];

/// Never zero: a ring has a descriptor, which is not negative.
fn key(ring: i32, index: u32) -> u64 {
    u64::from(ring.cast_unsigned().wrapping_add(1)) << 32 | u64::from(index)
}

/// The cells in which a file may be.
fn cells(key: u64) -> impl Iterator<Item = &'static Registered> {
    // Indexes of a ring follow one another, and so do their cells; rings begin far apart.
    let first = (key as usize).wrapping_add((key >> 32) as usize * 509);
    (0..PROBES).map(move |offset| &REGISTERED[first.wrapping_add(offset) % REGISTERED_MAX])
}

fn find(key: u64) -> Option<&'static Registered> {
    cells(key).find(|cell| cell.key.load(Ordering::Acquire) == key)
}

/// Returns what is known of a registered file under the table of `generation`; without that, a file
/// with any path.
pub(crate) fn lookup(ring: i32, index: u32, generation: u32) -> File {
    let found = find(key(ring, index)).and_then(|cell| remembered(&cell.file, generation));
    found.unwrap_or(File::Storage(Mask::ALL))
}

/// Remembers a registered file, unless there is no cell for it.
pub(crate) fn remember(ring: i32, index: u32, generation: u32, file: File) {
    let key = key(ring, index);
    forget(ring, index);
    let take = |cell: &&Registered| {
        cell.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let Some(cell) = cells(key).find(take) else { return };
    let known = match file {
        File::Storage(Mask(mask)) => Known { kind: DescriptorKind::Storage, mask },
        File::Other => Known { kind: DescriptorKind::Other, mask: [0; MASK_WORDS] },
    };
    if let Some(taken) = cell.file.take(cell.file.state()) {
        cell.file.give(taken, generation, &known);
    }
}

/// Forgets one registered file.
pub fn forget(ring: i32, index: u32) {
    find(key(ring, index)).into_iter().for_each(free);
}

/// Forgets all files of a ring.
pub fn forget_ring(ring: i32) {
    let ring = key(ring, 0) >> 32;
    let cells = REGISTERED.iter();
    cells.filter(|cell| cell.key.load(Ordering::Relaxed) >> 32 == ring).for_each(free);
}

/// Whether the table is about this process: a child of `vfork` finds its parent's.
pub(crate) fn may_remember() -> bool {
    is_own()
}

fn free(cell: &Registered) {
    cell.file.forget();
    cell.key.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings of different tests have different numbers, for the table is the process's.
    #[test]
    fn a_file_is_known_under_its_rules_until_it_is_forgotten() {
        let (some, all) = (File::Storage(Mask([5, 0, 0, 1])), File::Storage(Mask::ALL));
        remember(7, 0, 3, some);
        remember(7, 1, 3, File::Other);
        assert_eq!((lookup(7, 0, 3), lookup(7, 1, 3)), (some, File::Other));
        assert_eq!(lookup(7, 0, 4), all, "under other rules");
        assert_eq!((lookup(7, 2, 3), lookup(8, 0, 3)), (all, all), "never registered");
        remember(7, 0, 3, File::Other);
        assert_eq!(lookup(7, 0, 3), File::Other, "another file in its place");
        forget(7, 0);
        assert_eq!((lookup(7, 0, 3), lookup(7, 1, 3)), (all, File::Other));
        remember(8, 1, 3, some);
        forget_ring(7);
        assert_eq!((lookup(7, 1, 3), lookup(8, 1, 3)), (all, some));
    }

    #[test]
    fn files_beyond_the_table_have_any_path() {
        let most = REGISTERED_MAX as u32;
        (0..most + 99).for_each(|index| remember(1_000, index, 3, File::Other));
        let known = (0..most + 99).filter(|index| lookup(1_000, *index, 3) == File::Other).count();
        // Tests beside this one have a few.
        assert!((REGISTERED_MAX - 99..=REGISTERED_MAX).contains(&known), "{known}");
        forget_ring(1_000);
        assert_eq!(lookup(1_000, 0, 3), File::Storage(Mask::ALL));
    }
}
