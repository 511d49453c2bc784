//! Words that many change without a lock, and the leases that a stage's queues build on them, in
//! every order in which a weakly ordered processor may make the loads and stores of several threads
//! visible to each other.

#![allow(dead_code, unreachable_pub, reason = "the module is the library's")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

/// The atomics of the model checker, for the module under test.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}
#[path = "../src/concurrent/versioned.rs"]
mod versioned;

extern crate alloc;

use alloc::collections::BTreeSet;

use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU64, Ordering};
use versioned::{ChangeResult, Head, Operations, Versioned, VersionedBuffer};

struct Memory<const W: usize> {
    heads: Vec<Head>,
    buffers: Vec<VersionedBuffer<W>>,
    writers: Vec<Operations>,
}

impl<const W: usize> Memory<W> {
    fn new(heads: usize, writers: usize) -> Arc<Self> {
        Arc::new(Self {
            heads: (0..heads).map(|_| Head::default()).collect(),
            buffers: (0..heads + writers).map(|_| VersionedBuffer::default()).collect(),
            writers: (0..writers).map(|_| Operations::default()).collect(),
        })
    }

    fn shared(&self) -> Versioned<'_, W> {
        Versioned { heads: &self.heads, buffers: &self.buffers, writers: &self.writers }
    }
}

/// Adds one to every word.
fn count<const W: usize>(words: &mut [u64; W]) -> ChangeResult<()> {
    assert!(words.iter().all(|word| *word == words[0]), "{words:?} is half of two versions");
    words.iter_mut().for_each(|word| *word += 1);
    ChangeResult::Made(())
}

/// Runs `body` in every order with at most so many preemptions: in a release build
/// (`cargo xtask loom`); in others with one less, which takes seconds.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions - usize::from(cfg!(debug_assertions)));
    model.check(body);
}

/// Runs `body` once, in one thread: the module's atomics are the model checker's.
fn loom_alone(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 1_000_000;
    model.check(body);
}

#[test]
fn changes_are_whole_and_none_is_lost() {
    explore(2, || {
        let memory = Memory::<2>::new(1, 2);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.shared().change(0, 1, count).unwrap();
            other.shared().change(0, 1, count).unwrap();
        });
        memory.shared().change(0, 0, count).unwrap();
        let words = memory.shared().snapshot(0, |word| [word(0), word(1)]);
        assert_eq!(words[0], words[1], "half of two versions");
        thread.join().unwrap();
        assert_eq!(memory.shared().snapshot(0, |word| [word(0), word(1)]), [3, 3]);
    });
}

#[test]
fn a_reader_sees_one_version_while_buffers_go_round() {
    explore(3, || {
        let memory = Memory::<2>::new(1, 1);
        memory.shared().change(0, 0, count).unwrap();
        let other = Arc::clone(&memory);
        // The reader is the thread that is started: loom takes what the first thread has read for
        // done.
        let thread = thread::spawn(move || {
            let words = other.shared().snapshot(0, |word| [word(0), word(1)]);
            assert_eq!(words[0], words[1], "half of two versions");
        });
        // The second change writes the buffer that the reader may still be reading.
        memory.shared().change(0, 0, count).unwrap();
        memory.shared().change(0, 0, count).unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn heads_that_share_buffers_do_not_mix() {
    explore(2, || {
        let memory = Memory::<1>::new(2, 2);
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.shared().change(1, 1, count).unwrap();
            other.shared().change(0, 1, count).unwrap();
        });
        memory.shared().change(0, 0, count).unwrap();
        memory.shared().change(0, 0, count).unwrap();
        thread.join().unwrap();
        let words = [0, 1].map(|head| memory.shared().snapshot(head, |word| word(0)));
        assert_eq!(words, [3, 1]);
    });
}

/// Twenty writers hold a buffer each, in the middle of an operation; two structures have theirs. So
/// one buffer is free, or none, and that one is found wherever it is. A held buffer is never given
/// away.
#[test]
fn of_all_buffers_the_one_that_is_free_is_claimed() {
    loom_alone(|| {
        const WRITERS: usize = 20;
        let memory = Memory::<1>::new(2, WRITERS);
        let shared = memory.shared();
        // The last writer first, some of them more often, so that their operations differ.
        for writer in (0..WRITERS).rev() {
            for _ in 0..writer % 3 + 1 {
                shared.change(1, writer, count).unwrap();
                shared.change(0, writer, count).unwrap();
            }
        }
        let current = [0, 1].map(|head| {
            let named = memory.heads[head].0.load(Ordering::Relaxed);
            usize::from(named as u16) - 1
        });
        let mut held: Vec<usize> = (0..WRITERS)
            .map(|writer| {
                let operation = memory.writers[writer].begin();
                shared.claim(writer % 2, writer, operation).unwrap()
            })
            .collect();
        let all: BTreeSet<usize> = held.iter().chain(&current).copied().collect();
        assert_eq!(all.len(), WRITERS + 2, "each has its own: {held:?} {current:?}");
        for writer in 0..WRITERS {
            // Its new operation ends the one before, and frees that buffer alone.
            let operation = memory.writers[writer].begin();
            let found = shared.claim(1, writer, operation);
            assert_eq!(found, Some(held[writer]), "writer {writer}");
            // Another writer's claim would have found it, too, from wherever it searches.
            let other = (writer + 7) % WRITERS;
            memory.writers[writer].begin();
            let operation = memory.writers[other].begin();
            let freed = BTreeSet::from([held[writer], held[other]]);
            let found = shared.claim(0, other, operation).unwrap();
            assert!(freed.contains(&found), "writer {other} has {found} of {freed:?}");
            held[writer] = *freed.iter().find(|number| **number != found).unwrap();
            held[other] = found;
            let operation = memory.writers[writer].begin();
            assert_eq!(shared.claim(0, writer, operation), Some(held[writer]));
        }
    });
}

/// Each change has a number, and so has each of a writer's operations: nothing that was seen once
/// comes again.
#[test]
fn heads_and_operations_count() {
    loom_alone(|| {
        let memory = Memory::<1>::new(1, 2);
        for round in 0..9 {
            memory.shared().change(0, 1, |words| {
                assert!(memory.writers[1].is_busy() && !memory.writers[0].is_busy());
                count(words)
            });
            assert!(!memory.writers[1].is_busy(), "its operation has ended");
            assert_eq!(memory.heads[0].0.load(Ordering::Relaxed) >> 16, round + 1);
            assert_eq!(memory.writers[1].0.load(Ordering::Relaxed), 2 * round + 2);
            assert_eq!(memory.shared().snapshot(0, |word| word(0)), round + 1);
        }
        // One that was left in the middle is ended by the next.
        assert_eq!([(); 3].map(|()| memory.writers[0].begin()), [1, 3, 5]);
        assert!(memory.writers[0].is_busy());
        let kept = memory.shared().change(0, 0, |words| ChangeResult::None(words[0]));
        assert_eq!((kept, memory.heads[0].0.load(Ordering::Relaxed) >> 16), (Some(9), 9));
    });
}

/// The lease of a queue gate of depth one, as `stage::lease` does it with more slots: a slot is
/// claimed, its request waits, is in service, and is dropped by others if its owner is gone.
struct Gate {
    memory: Arc<Memory<1>>,
    /// How often each slot was taken in the upper half, its owner in the lower.
    claims: [AtomicU64; 2],
}

/// The bits of the one word: waiting in the lower half, in service in the upper.
const SERVICE: u32 = 8;

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { memory: Memory::new(1, 2), claims: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    /// Puts the first that waits into service if none is there.
    fn dispatch(word: &mut u64) {
        let waiting = *word & 0xff;
        if *word >> SERVICE == 0 && waiting != 0 {
            let first = waiting & waiting.wrapping_neg();
            *word = (*word ^ first) | first << SERVICE;
        }
    }

    fn advance(&self, writer: usize, change: impl Fn(&mut u64)) {
        let changed = self.memory.shared().change(0, writer, |words| {
            change(&mut words[0]);
            Self::dispatch(&mut words[0]);
            ChangeResult::Made(())
        });
        changed.unwrap();
    }

    /// Claims the slot for the owner; the claim, if it was free.
    fn claim(&self, slot: usize, owner: u64) -> Option<u64> {
        let found = self.claims[slot].load(Ordering::Relaxed);
        if found as u32 != 0 {
            return None;
        }
        let claim = ((found >> 32) + 1) << 32 | owner;
        let cell = &self.claims[slot];
        let taken = cell.compare_exchange(found, claim, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(|_| claim)
    }

    fn arrive(&self, slot: usize, claim: u64, writer: usize) {
        self.advance(writer, |word| {
            if self.claims[slot].load(Ordering::Acquire) == claim {
                *word |= 1 << slot;
            }
        });
    }

    /// Takes the request out of the queue that was there under this claim, and frees the slot.
    fn drop_request(&self, slot: usize, claim: u64, writer: usize) {
        self.advance(writer, |word| {
            if self.claims[slot].load(Ordering::Acquire) == claim {
                *word &= !(1 << slot | 1 << (slot as u32 + SERVICE));
            }
        });
        let free = claim & !u64::from(u32::MAX);
        let cell = &self.claims[slot];
        let _ = cell.compare_exchange(claim, free, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn word(&self) -> u64 {
        self.memory.shared().snapshot(0, |word| word(0))
    }
}

/// Two threads that both find the holder gone drop its request once: the request of who has taken
/// the slot meanwhile stays.
#[test]
fn a_slot_that_was_taken_anew_is_not_dropped_with_the_dead() {
    explore(2, || {
        let gate = Gate::new();
        let dead = gate.claim(0, 7).unwrap();
        gate.arrive(0, dead, 0);
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || {
            other.drop_request(0, dead, 1);
            let mine = other.claim(0, 8);
            if let Some(mine) = mine {
                other.arrive(0, mine, 1);
            }
            mine.is_some()
        });
        gate.drop_request(0, dead, 0);
        let taken = thread.join().unwrap();
        assert!(taken, "the slot was freed");
        assert_eq!(gate.word(), 1 << SERVICE, "and its new request is in service");
    });
}

/// Of two requests at a depth of one, one is in service at a time, and when both are through the
/// queue is empty.
#[test]
fn a_permit_is_given_to_one_and_never_lost() {
    explore(2, || {
        let gate = Gate::new();
        let pass = |gate: &Gate, slot: usize, writer: usize| {
            let claim = gate.claim(slot, slot as u64 + 1).unwrap();
            gate.arrive(slot, claim, writer);
            let served = gate.word() >> SERVICE;
            assert!(served.count_ones() <= 1, "{served:b} in service at once");
            assert_ne!(served, 0, "a request waits, and the permit is nobody's");
            gate.drop_request(slot, claim, writer);
        };
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || pass(&other, 1, 1));
        pass(&gate, 0, 0);
        thread.join().unwrap();
        assert_eq!(gate.word(), 0);
    });
}
