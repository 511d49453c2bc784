//! Properties of a thread's record: it belongs to one thread, shows when that thread is gone or
//! stopped, and lists the permits that the thread holds.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::layout::PERMITS_MAX;
use crate::segment::Segment;

fn permit(number: u64) -> Permit {
    Permit::from_word(number << 32 | 0x101).unwrap()
}

/// Has this thread look like a child of `vfork`, whose thread-local memory is its parent's.
pub(crate) fn run_on_the_memory_of_another_thread() {
    KNOWN.set(KnownThread { stage: 0, process: this_process(), thread: 1, owner: 0 });
}

/// A child process that waits until it is killed.
struct Child(libc::pid_t);

impl Child {
    fn fork(body: impl FnOnce()) -> Self {
        // SAFETY: the child allocates nothing and takes no lock but those of the segment, which are
        // made for it; it never returns from here.
        match unsafe { libc::fork() } {
            0 => {
                body();
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            child => Self(child),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: it is a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        // SAFETY: as above.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Waits until a condition holds, and fails if that takes too long.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited a minute until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn an_owner_is_a_record_and_a_generation() {
    for at in [0, 1, THREADS_MAX - 1, THREADS_MAX, RECORDS_MAX - 1] {
        for generation in [1, 2, 77, (1 << (u32::BITS - NUMBER_BITS)) - 1] {
            let owner = owner(at, generation);
            assert!(owner != 0 && number(owner) == at && owner >> NUMBER_BITS == generation);
        }
    }
}

#[test]
fn a_thread_has_one_record_until_it_leaves_or_ends() {
    let segment = Segment::private().unwrap();
    let mine = own(&segment).unwrap();
    assert_eq!(own(&segment), Some(mine));
    assert!(number(mine) < THREADS_MAX && any());
    let (sender, receiver) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let stage = &segment;
    std::thread::scope(|scope| {
        let theirs = scope.spawn(move || {
            sender.send(own(stage).unwrap()).unwrap();
            ended.recv().unwrap_err();
        });
        let other = receiver.recv().unwrap();
        assert_ne!(number(other), number(mine), "no two threads have one record");
        assert!(!is_gone(&segment, other) && !is_gone(&segment, mine));
        drop(end);
        theirs.join().unwrap();
        assert!(is_gone(&segment, other), "its thread has ended");
    });
    leave(&segment);
    assert!(is_gone(&segment, mine), "it was given back");
    leave(&segment);
    assert!(is_gone(&segment, 0) && is_gone(&segment, Owner::MAX), "no such records");
}

#[test]
fn a_thread_that_was_at_another_stage_finds_its_record_again() {
    let (one, other) = (Segment::private().unwrap(), Segment::private().unwrap());
    let mine = own(&one).unwrap();
    own(&other).unwrap();
    assert_eq!(own(&one), Some(mine));
    forget();
    assert_eq!(own(&one), Some(mine), "and so does one that forgot");
    // A record of a thread that has ended is not taken for that of a later one.
    let taken = || std::thread::scope(|scope| scope.spawn(|| own(&one).unwrap()).join().unwrap());
    let (first, second) = (taken(), taken());
    assert!(first != second && is_gone(&one, first));
}

#[test]
fn a_new_owner_of_a_record_holds_nothing_of_the_last_owner() {
    let segment = Segment::private().unwrap();
    let thread_id = ThreadId { proc: 5, process: 6, thread: 7 };
    let first = begin(&segment, 3, thread_id);
    assert_eq!(segment.records[3].thread_id(), thread_id);
    segment.records[3].note(permit(1), 9);
    assert_eq!(segment.records[3].noted().collect::<Vec<_>>(), [(permit(1), 9)]);
    let second = begin(&segment, 3, ThreadId::default());
    assert_eq!((number(first), number(second)), (3, 3));
    assert!(!is_current(&segment, first) && is_current(&segment, second));
    assert_eq!(segment.records[3].noted().count(), 0);
    assert_eq!(segment.records[3].thread_id(), ThreadId::default());
    // After the last generation comes the first again, and never zero.
    let last = (1 << (u32::BITS - NUMBER_BITS)) - 1;
    segment.records[3].generation.store(last - 1, Ordering::Relaxed);
    let generations = [(); 3].map(|()| begin(&segment, 3, thread_id) >> NUMBER_BITS);
    assert_eq!(generations, [last, 1, 2]);
}

#[test]
fn a_record_knows_eight_permits_each_with_its_depth() {
    let segment = Segment::private().unwrap();
    let record = &segment.records[0];
    for number in 1..=PERMITS_MAX {
        record.note(permit(number as u64), 100 + number);
    }
    record.note(permit(9), 109);
    let noted = || record.noted().map(|(_, depth)| depth).collect::<Vec<_>>();
    assert_eq!(noted(), [101, 102, 103, 104, 105, 106, 107, 108], "there is no room for a ninth");
    record.forget(permit(3));
    record.forget(permit(9));
    assert_eq!(noted(), [101, 102, 104, 105, 106, 107, 108]);
    record.note(permit(10), 110);
    assert_eq!(noted(), [101, 102, 110, 104, 105, 106, 107, 108]);
}

#[test]
fn a_borrowed_record_is_free_again_once_nothing_is_held_by_it() {
    let segment = Segment::private().unwrap();
    let borrowed = other(&segment).unwrap();
    assert!(number(borrowed) >= THREADS_MAX && !is_gone(&segment, borrowed));
    assert_eq!(other(&segment), Some(borrowed), "one for all requests of a thread");
    let theirs = std::thread::scope(|scope| scope.spawn(|| other(&segment)).join().unwrap());
    assert_ne!(theirs, Some(borrowed));
    let record = record(&segment, borrowed).unwrap();
    record.note(permit(1), 0);
    give_back(&segment, borrowed);
    assert!(!is_gone(&segment, borrowed), "a permit is held by it");
    record.forget(permit(1));
    give_back(&segment, borrowed + (1 << NUMBER_BITS));
    assert!(!is_gone(&segment, borrowed), "another turn is not this one's to give back");
    give_back(&segment, borrowed);
    assert!(is_gone(&segment, borrowed));
    // A thread's own record is never given back like this.
    let mine = own(&segment).unwrap();
    give_back(&segment, mine);
    assert_eq!((own(&segment), is_gone(&segment, mine)), (Some(mine), false));
}

#[test]
fn records_of_borrowers_that_ended_are_borrowed_again() {
    let segment = Segment::private().unwrap();
    let borrow_all = |count: usize| {
        let borrow = |_| std::thread::scope(|it| it.spawn(|| other(&segment)).join().unwrap());
        (0..count).map(borrow).collect::<Vec<_>>()
    };
    // All of these threads have ended, but the kernel may need a moment to say so.
    let first = borrow_all(RECORDS_MAX - THREADS_MAX);
    assert!(first.iter().all(Option::is_some));
    eventually("a record is free", || other(&segment).is_some());
    let mine = other(&segment).unwrap();
    assert!(number(mine) >= THREADS_MAX && !is_gone(&segment, mine));
    assert!(first.iter().flatten().all(|it| *it != mine), "it is another turn");
}

#[test]
fn all_records_can_be_taken_and_the_next_thread_has_none() {
    let segment = Segment::private().unwrap();
    // A lock that is held looks like this to every thread: its word has a thread's number.
    let thread_id = ThreadId::of_this_thread().unwrap();
    let taken = (0..THREADS_MAX).filter_map(|_| take(&segment, thread_id)).count();
    assert_eq!(taken, THREADS_MAX);
    assert_eq!(take(&segment, thread_id), None);
    segment.records[5].lock.release();
    assert_eq!(take(&segment, thread_id).map(number), Some(5));
}

#[test]
fn the_kernel_shows_whether_an_owner_runs_is_stopped_or_is_gone() {
    let (segment, path) = Segment::create().unwrap();
    let _ = std::fs::remove_file(path);
    let cell = &segment.header.closed;
    let child = Child::fork(|| {
        forget();
        cell.store(own(&segment).unwrap_or(u32::MAX), Ordering::Release);
    });
    eventually("the child has a record", || cell.load(Ordering::Acquire) != 0);
    let owner = cell.load(Ordering::Acquire);
    assert_eq!(thread_state(&segment, owner), ThreadState::Live);
    child.signal(libc::SIGSTOP);
    eventually("it is stopped", || thread_state(&segment, owner) == ThreadState::Stopped);
    assert!(!is_gone(&segment, owner), "a stopped thread still has its record");
    child.signal(libc::SIGCONT);
    eventually("it goes on", || thread_state(&segment, owner) == ThreadState::Live);
    child.signal(libc::SIGKILL);
    eventually("it is gone", || is_gone(&segment, owner));
    // Its lock says that a thread has ended; `/proc` alone would be no proof.
    let record = record(&segment, owner).unwrap();
    eventually("it is a zombie", || state_of_record(record) == ThreadState::Gone);
    assert_eq!(thread_state(&segment, owner), ThreadState::Unknown);
    drop(child);
    assert_eq!(state_of_record(record), ThreadState::Gone, "and no process at all any more");
    assert_eq!(thread_state(&segment, Owner::MAX), ThreadState::Gone, "there is no such record");
}

#[test]
fn a_thread_in_another_proc_cannot_be_seen() {
    let segment = Segment::private().unwrap();
    let here = ThreadId::of_this_thread().unwrap();
    let seen = |thread_id| {
        let owner = begin(&segment, THREADS_MAX, thread_id);
        thread_state(&segment, owner)
    };
    assert_eq!(seen(here), ThreadState::Live);
    assert_eq!(seen(ThreadId { proc: 0, ..here }), ThreadState::Unknown);
    assert_eq!(seen(ThreadId { proc: here.proc + 1, ..here }), ThreadState::Unknown);
    assert_eq!(seen(ThreadId { thread: u32::MAX, ..here }), ThreadState::Gone);
    assert_eq!(here.process, std::process::id());
}
