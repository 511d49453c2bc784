//! Cache entry of one descriptor, read by any thread without a lock.
//!
//! A sequence lock whose writers never wait: `state` has the kind, the generation of the table, and
//! a counter of changes. A writer takes the entry, writes the mask, and makes the entry known.
//! While the entry is taken, other writers store nothing. A reader loads the state before and after
//! it reads the mask. On a processor that reorders stores, three orders make this correct:
//!
//! - the mask is not written before the entry is taken: a release fence between the two, for a
//!   compare-and-exchange with release ordering lets later stores pass its own store;
//! - the mask is written before the entry is known: the second exchange releases;
//! - the mask is read before the state is read again: an acquire fence between the two.
//!
//! The two fences meet: a reader that sees a word of a mask to come also sees, at its second read,
//! that the entry was taken. `tests/descriptors.rs` has a model checker try every order.

use super::atomic::{AtomicU64, Ordering, fence};

/// One descriptor. `state` is: kind 2 bits, change counter 30 bits, generation 32 bits.
#[repr(C)]
pub(super) struct Descriptor<const WORDS: usize> {
    pub(super) state: AtomicU64,
    pub(super) mask: [AtomicU64; WORDS],
}

/// Where the bytes behind a descriptor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorKind {
    /// On storage.
    Storage,
    /// Elsewhere.
    Other,
}

/// Kind and mask of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known<const WORDS: usize> {
    pub(super) kind: DescriptorKind,
    /// The rules that accept its path, if it is on storage.
    pub(super) mask: [u64; WORDS],
}

const UNKNOWN: u64 = 0;
const STORAGE: u64 = 1;
const OTHER: u64 = 2;
/// A writer is at its mask, and no other thread may be.
const TAKEN: u64 = 3;
const KIND: u64 = 0b11;
const CHANGE: u64 = 0b100;
const CHANGES: u64 = 0xffff_fffc;

impl<const WORDS: usize> Descriptor<WORDS> {
    /// The state, to be handed to [`Self::take`] when it is known what the descriptor is.
    #[inline]
    pub(super) fn state(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// Returns the kind and the mask under the table of `generation`; none if they are unknown or a
    /// writer changes them.
    #[inline(always)]
    pub(super) fn known(&self, generation: u32) -> Option<Known<WORDS>> {
        let state = self.state.load(Ordering::Acquire);
        let kind = state & KIND;
        if kind == UNKNOWN || kind == TAKEN || (state >> 32) as u32 != generation {
            return None;
        }
        if kind == OTHER {
            return Some(Known { kind: DescriptorKind::Other, mask: [0; WORDS] });
        }
        let mask = core::array::from_fn(|word| self.mask[word].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = self.state.load(Ordering::Relaxed) == state;
        is_whole.then_some(Known { kind: DescriptorKind::Storage, mask })
    }

    /// Takes the entry, if nothing happened to the descriptor since the state was `seen` and no
    /// other writer has it. Gives the state, to be handed to [`Self::give`].
    pub(super) fn take(&self, seen: u64) -> Option<u64> {
        let taken = Self::changed(seen) | TAKEN;
        let is_free = seen & KIND != TAKEN;
        let exchange =
            || self.state.compare_exchange(seen, taken, Ordering::AcqRel, Ordering::Relaxed);
        (is_free && exchange().is_ok()).then_some(taken)
    }

    /// Writes what was found out into an entry that the thread has taken, and gives the entry back.
    /// If the descriptor was closed meanwhile, the state differs and nothing is kept.
    pub(super) fn give(&self, taken: u64, generation: u32, known: &Known<WORDS>) {
        let kind = match known.kind {
            DescriptorKind::Storage => {
                fence(Ordering::Release);
                let cells = self.mask.iter().zip(known.mask);
                cells.for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
                STORAGE
            }
            DescriptorKind::Other => OTHER,
        };
        let state = taken & CHANGES | kind | u64::from(generation) << 32;
        if self.state.compare_exchange(taken, state, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.abandon();
        }
    }

    /// Gives an entry back, if it is taken, by a thread that is no longer at it.
    pub(super) fn abandon(&self) {
        self.change(|state| (state & KIND == TAKEN).then_some(Self::changed(state)));
    }

    /// Forgets everything: the descriptor was closed, or its number stands for something new. An
    /// entry that is taken stays so: its writer notices.
    #[inline]
    pub(super) fn forget(&self) {
        self.change(|state| {
            let taken = if state & KIND == TAKEN { TAKEN } else { UNKNOWN };
            Some(Self::changed(state) | taken)
        });
    }

    #[inline]
    fn change(&self, to: impl Fn(u64) -> Option<u64>) {
        let mut state = self.state.load(Ordering::Relaxed);
        while let Some(next) = to(state) {
            let exchange =
                self.state.compare_exchange_weak(state, next, Ordering::Release, Ordering::Relaxed);
            match exchange {
                Ok(_) => return,
                Err(seen) => state = seen,
            }
        }
    }

    /// The state of an unknown descriptor after one more change.
    #[inline]
    fn changed(state: u64) -> u64 {
        (state & CHANGES).wrapping_add(CHANGE) & CHANGES
    }
}
