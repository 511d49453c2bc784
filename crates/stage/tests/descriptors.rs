//! The cache entry of a descriptor, in every memory order that a weakly ordered processor allows
//! between the loads and stores of several threads.

#![allow(dead_code, reason = "the module is the stage's; the test needs parts of it")]

/// The atomics of the model checker, for the module under test.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}
#[path = "../src/files/entry.rs"]
mod entry;

use atomic::AtomicU64;
use entry::{Descriptor, DescriptorKind, Known};
use loom::sync::Arc;
use loom::thread;

const GENERATION: u32 = 7;

/// Two words are enough to see half of a mask.
type Small = Descriptor<2>;

fn storage(word: u64) -> Known<2> {
    Known { kind: DescriptorKind::Storage, mask: [word; 2] }
}

fn learn(entry: &Small, seen: u64, generation: u32, known: &Known<2>) {
    if let Some(taken) = entry.take(seen) {
        entry.give(taken, generation, known);
    }
}

fn entry() -> Arc<Small> {
    Arc::new(Descriptor { state: AtomicU64::new(0), mask: [AtomicU64::new(0), AtomicU64::new(0)] })
}

/// No reader takes words of two files as one mask, nor the mask of a file that was closed before.
#[test]
fn a_reader_never_sees_the_masks_of_two_files_in_one() {
    loom::model(|| {
        let entry = entry();
        learn(&entry, entry.state(), GENERATION, &storage(1));
        let writer = thread::spawn({
            let entry = Arc::clone(&entry);
            move || {
                entry.forget();
                learn(&entry, entry.state(), GENERATION, &storage(2));
            }
        });
        if let Some(Known { mask, .. }) = entry.known(GENERATION) {
            assert!(mask == [1, 1] || mask == [2, 2], "{mask:?}");
        }
        writer.join().unwrap();
        assert_eq!(entry.known(GENERATION), Some(storage(2)));
    });
}

/// Of two threads that find out what a descriptor is, under different tables, one is kept.
#[test]
fn two_threads_that_learn_at_once_leave_one_mask() {
    loom::model(|| {
        let entry = entry();
        let learns = |generation: u32| {
            let entry = Arc::clone(&entry);
            let known = storage(generation.into());
            move || learn(&entry, entry.state(), generation, &known)
        };
        let threads = [thread::spawn(learns(1)), thread::spawn(learns(2))];
        for generation in [1, 2] {
            if let Some(known) = entry.known(generation) {
                assert_eq!(known, storage(generation.into()));
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for generation in [1, 2] {
            if let Some(known) = entry.known(generation) {
                assert_eq!(known, storage(generation.into()));
            }
        }
    });
}

/// A status that was found before the descriptor was closed is not kept after.
#[test]
fn what_is_learned_of_a_closed_descriptor_is_not_kept() {
    loom::model(|| {
        let entry = entry();
        let seen = entry.state();
        let closer = thread::spawn({
            let entry = Arc::clone(&entry);
            move || entry.forget()
        });
        learn(&entry, seen, GENERATION, &storage(1));
        closer.join().unwrap();
        assert_eq!(entry.known(GENERATION), None);
    });
}

/// A thread may leave in the middle of writing, and another may close the descriptor then: the
/// entry is of use again.
#[test]
fn an_entry_that_was_left_in_the_middle_is_taken_again() {
    loom::model(|| {
        let entry = entry();
        assert!(entry.take(entry.state()).is_some());
        let closer = thread::spawn({
            let entry = Arc::clone(&entry);
            move || entry.forget()
        });
        learn(&entry, entry.state(), GENERATION, &storage(1));
        assert_eq!(entry.known(GENERATION), None, "somebody is at it");
        entry.abandon();
        closer.join().unwrap();
        learn(&entry, entry.state(), GENERATION, &storage(2));
        assert_eq!(entry.known(GENERATION), Some(storage(2)));
    });
}
