//! Tests of every connection, for any back end: the contract of `onesided::one_sided`.
//!
//! A back end says in a [`Backend`] how clients of one region are made and how time passes, and has
//! all tests by `conformance!`. If its clients may be of several threads, it has those of
//! `conformance_among_threads!` too. This file needs no crate but `proto`, `model` and proptest, so
//! back ends of other crates include it by its path.
#![allow(dead_code, reason = "not every back end has threads")]
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its own functions too")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tidegate_model::Time;
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Operation, Post, PostError, RemoteMemory, WORD,
};

/// Clients of one region, and the time that passes for them.
pub(crate) trait Backend {
    type RemoteMemory: RemoteMemory;

    /// One more client, with four buffers or more. It reads the writes of the other clients.
    fn open(&mut self) -> Self::RemoteMemory;

    /// Where in the region anything may be written: 16 KiB or more, from a multiple of 64.
    fn area(&self) -> Range<u64>;

    /// The time, some of which has passed since this was last asked.
    fn pass(&mut self) -> Time;
}

/// The tests that every back end has. `$backend` makes a new [`Backend`].
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance::tests! { $backend;
            operations_have_their_documented_effect
            what_cannot_be_is_refused
            the_window_fills_and_empties
            a_buffer_is_not_seen_while_it_is_used
            bytes_go_where_they_belong
            the_region_is_as_simple_as_a_vector
        }
    };
}
pub(crate) use conformance;

/// Those of back ends whose clients may be of several threads. `$backend` makes a new [`Backend`]
/// whose clients take their times from `$clock`.
macro_rules! conformance_among_threads {
    ($backend:expr) => {
        $crate::conformance::tests! { $backend;
            writes_are_seen_in_their_order
            words_are_not_torn
            atomic_operations_are_atomic
        }
    };
}
pub(crate) use conformance_among_threads;

macro_rules! tests {
    ($backend:expr; $($name:ident)+) => {
        $(#[test] fn $name() { $crate::conformance::$name(&mut $backend); })+
    };
}
pub(crate) use tests;

/// How long anything may take until it counts as lost: much longer than it ever does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Posts, and waits until all of it is done. Tells the words in the order of the posts.
fn perform<F: RemoteMemory>(
    remote: &mut F,
    pass: &mut impl FnMut() -> Time,
    operations: &[Operation],
) -> Vec<u64> {
    for (id, operation) in (0..).zip(operations) {
        remote.post(Post { id, operation: *operation }).unwrap();
    }
    remote.flush(pass()).unwrap();
    let mut done = Vec::new();
    wait(remote, pass, operations.len(), &mut done);
    done.sort_by_key(|done| done.id);
    assert!(done.iter().map(|done| done.id).eq(0..operations.len() as u64), "{done:?}");
    done.iter().map(|done| done.word).collect()
}

fn wait<F: RemoteMemory>(
    remote: &mut F,
    pass: &mut impl FnMut() -> Time,
    count: usize,
    done: &mut Vec<Done>,
) {
    let deadline = Instant::now() + PATIENCE;
    while done.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} are done", done.len());
        remote.poll(pass(), done).unwrap();
    }
}

/// Does one thing and tells its word.
fn one<W: Backend>(backend: &mut W, remote: &mut W::RemoteMemory, operation: Operation) -> u64 {
    perform(remote, &mut || backend.pass(), &[operation])[0]
}

fn read(from: u64, length: u32) -> Operation {
    Operation::Read { from, into: BufferPosition::start(0), length }
}

fn write(to: u64, length: u32) -> Operation {
    Operation::Write { from: BufferPosition::start(0), to, length }
}

/// Bytes of which no two neighbours, and no two lengths of a cache line, are alike.
fn pattern(seed: u64) -> impl Iterator<Item = u8> {
    (0u64..).map(move |at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8)
}

fn fill<F: RemoteMemory>(remote: &mut F, buffer: u32, seed: u64) {
    remote.buffer_mut(buffer).iter_mut().zip(pattern(seed)).for_each(|(to, from)| *to = from);
}

pub(crate) fn operations_have_their_documented_effect<W: Backend>(backend: &mut W) {
    let (mut a, mut b) = (backend.open(), backend.open());
    let at = backend.area().start;
    fill(&mut a, 0, 1);
    one(backend, &mut a, write(at, BUFFER));
    one(backend, &mut b, read(at, BUFFER));
    assert!(a.buffer(0) == b.buffer(0), "what one writes the other reads");
    let reported = one(backend, &mut a, Operation::WriteWord { word: u64::MAX - 1, to: at + 8 });
    assert_eq!(reported, 0, "a write has nothing to tell");
    assert_eq!(one(backend, &mut b, Operation::FetchAdd { at: at + 8, add: 5 }), u64::MAX - 1);
    let swap = |expected, new| Operation::CompareSwap { at: at + 8, expected, new };
    assert_eq!(one(backend, &mut a, swap(3, 70)), 3, "it went around, and is swapped");
    assert_eq!(one(backend, &mut b, swap(3, 71)), 70, "this one is not");
    assert_eq!(one(backend, &mut b, swap(70, 1)), 70);
    let minus_one = 0u64.wrapping_sub(1);
    assert_eq!(one(backend, &mut a, Operation::FetchAdd { at: at + 8, add: minus_one }), 1);
    one(backend, &mut a, read(at, 24));
    assert_eq!(a.buffer(0)[8..16], [0; 8]);
    assert!(a.buffer(0)[..8] == b.buffer(0)[..8] && a.buffer(0)[16..24] == b.buffer(0)[16..24]);
}

pub(crate) fn what_cannot_be_is_refused<W: Backend>(backend: &mut W) {
    let mut remote = backend.open();
    let (end, at, buffers) = (remote.region(), backend.area().start, remote.buffers());
    let into = |buffer, offset, length| Operation::Read {
        from: at,
        into: BufferPosition { buffer, offset },
        length,
    };
    let outside = [
        read(end - 8, 9),
        read(end, 1),
        read(u64::MAX - 8, 64),
        write(end - 1, 2),
        write(u64::MAX, 1),
        read(at, 0),
        write(at, 0),
        read(at, BUFFER + 1),
        read(at, u32::MAX),
        into(0, 1, BUFFER),
        into(0, u32::MAX, 8),
        into(buffers, 0, 8),
        into(u32::MAX, 0, 8),
        Operation::WriteWord { word: 1, to: end },
        Operation::FetchAdd { at: end - end % WORD + WORD, add: 1 },
        Operation::CompareSwap { at: u64::MAX - 7, expected: 0, new: 1 },
    ];
    for (id, operation) in (0..).zip(outside) {
        assert_eq!(remote.post(Post { id, operation }), Err(PostError::Outside), "{operation:?}");
    }
    for off in 1..WORD {
        let to = at + off;
        for operation in [
            Operation::WriteWord { word: 1, to },
            Operation::FetchAdd { at: to, add: 1 },
            Operation::CompareSwap { at: to, expected: 0, new: 1 },
        ] {
            assert_eq!(remote.post(Post { id: off, operation }), Err(PostError::Unaligned));
        }
    }
    let whole = end - end % WORD - WORD;
    perform(&mut remote, &mut || backend.pass(), &[read(whole, 8), read(end - 1, 1)]);
    let mut done = Vec::new();
    remote.poll(backend.pass(), &mut done).unwrap();
    assert_eq!(done, [], "of what was refused nothing is heard");
}

pub(crate) fn the_window_fills_and_empties<W: Backend>(backend: &mut W) {
    let mut remote = backend.open();
    let at = backend.area().start;
    let mut id = 0;
    for _ in 0..2 {
        let (first, mut done) = (id, Vec::new());
        let operation = Operation::FetchAdd { at, add: 1 };
        let refused = loop {
            match remote.post(Post { id, operation }) {
                Ok(()) => id += 1,
                Err(error) => break error,
            }
            assert!(id < 1 << 20, "a window without an end");
        };
        assert_eq!(refused, PostError::Full);
        remote.flush(backend.pass()).unwrap();
        wait(&mut remote, &mut || backend.pass(), (id - first) as usize, &mut done);
        let ids: BTreeSet<_> = done.iter().map(|done| done.id).collect();
        assert!(ids.into_iter().eq(first..id), "each is done once, under its name");
    }
    assert_eq!(one(backend, &mut remote, Operation::FetchAdd { at, add: 0 }), id);
}

pub(crate) fn a_buffer_is_not_seen_while_it_is_used<W: Backend>(backend: &mut W) {
    let (mut remote, mut other) = (backend.open(), backend.open());
    let at = backend.area().start;
    fill(&mut other, 0, 1);
    one(backend, &mut other, write(at, BUFFER));
    fill(&mut remote, 0, 2);
    let wanted = other.buffer(0).to_vec();
    remote.post(Post { id: 0, operation: read(at, BUFFER) }).unwrap();
    remote.flush(backend.pass()).unwrap();
    let mut done = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while done.is_empty() && Instant::now() < deadline {
        let seen = catch_unwind(AssertUnwindSafe(|| remote.buffer(0) == wanted));
        assert!(seen.unwrap_or(true), "it is all there, or not to be seen");
        remote.poll(backend.pass(), &mut done).unwrap();
    }
    assert!(remote.buffer(0) == wanted);
    remote.post(Post { id: 1, operation: write(at, BUFFER) }).unwrap();
    remote.flush(backend.pass()).unwrap();
    let changed = catch_unwind(AssertUnwindSafe(|| remote.buffer_mut(0).fill(0)));
    wait(&mut remote, &mut || backend.pass(), 2, &mut done);
    one(backend, &mut other, read(at, BUFFER));
    assert!(other.buffer(0) == wanted, "{}", changed.is_ok());
    let unknown = remote.buffers();
    catch_unwind(AssertUnwindSafe(|| remote.buffer(unknown)[0])).unwrap_err();
}

pub(crate) fn bytes_go_where_they_belong<W: Backend>(backend: &mut W) {
    let mut remote = backend.open();
    let at = backend.area().start;
    let whole: Vec<u8> = pattern(3).take(3 * 4096).collect();
    for (chunk, to) in whole.chunks(4096).zip((at..).step_by(4096)) {
        remote.buffer_mut(0)[..4096].copy_from_slice(chunk);
        one(backend, &mut remote, write(to, 4096));
    }
    for length in (1..=200).chain((200..BUFFER).step_by(101)).chain([4096, 4112, BUFFER]) {
        // All remainders of eight of both sides meet, and reads cross pages.
        let (skip, offset) = (u64::from(length) * 13 % 4099, (length / 8 * 3).min(BUFFER - length));
        remote.buffer_mut(1).fill(0xa5);
        let into = BufferPosition { buffer: 1, offset };
        one(backend, &mut remote, Operation::Read { from: at + skip, into, length });
        let mut wanted = vec![0xa5; BUFFER as usize];
        wanted[offset as usize..][..length as usize]
            .copy_from_slice(&whole[skip as usize..][..length as usize]);
        assert!(remote.buffer(1) == wanted, "{length} bytes from {skip} to {offset}");
    }
}

/// Something that is done at once, as seen from others.
#[derive(Clone, Debug)]
enum OperationStep {
    Writes(Vec<(u64, u32, u32)>),
    Read(u64, u32, u32),
    Word(u64, u64),
    Add(u64, u64),
    Swap(u64, bool, u64),
}

fn steps(size: u64) -> impl Strategy<Value = Vec<(bool, OperationStep)>> {
    let bytes = (any::<u32>(), 1..=BUFFER).prop_flat_map(move |(wide, most)| {
        // Short ones as often as long ones.
        let length = if wide % 2 == 0 { most } else { most % 40 + 1 };
        (0..=size - u64::from(length), 0..=BUFFER - length, Just(length))
    });
    let word = (0..size / WORD).prop_map(|word| word * WORD);
    let step = prop_oneof![
        prop::collection::vec(bytes.clone(), 1..=4).prop_map(OperationStep::Writes),
        bytes.prop_map(|(at, offset, length)| OperationStep::Read(at, offset, length)),
        (word.clone(), any::<u64>()).prop_map(|(at, word)| OperationStep::Word(at, word)),
        (word.clone(), any::<u64>()).prop_map(|(at, add)| OperationStep::Add(at, add)),
        (word, any::<bool>(), any::<u64>())
            .prop_map(|(at, hit, new)| OperationStep::Swap(at, hit, new)),
    ];
    prop::collection::vec((any::<bool>(), step), 1..40)
}

pub(crate) fn the_region_is_as_simple_as_a_vector<W: Backend>(backend: &mut W) {
    let area = backend.area();
    let size = (area.end - area.start).min(16 << 10);
    let clients = [backend.open(), backend.open()];
    let state = RefCell::new((backend, clients, 0u64));
    let mut runner = TestRunner::new(Config::with_cases(64));
    let result = runner.run(&steps(size), |steps| {
        let (backend, clients, seed) = &mut *state.borrow_mut();
        let mut pass = || backend.pass();
        let mut bytes = contents(&mut clients[0], &mut pass, area.start, size);
        for (second, step) in steps {
            *seed += 1;
            check_step(
                &mut clients[usize::from(second)],
                &mut pass,
                area.start,
                &mut bytes,
                (&step, *seed),
            );
        }
        assert!(contents(&mut clients[0], &mut pass, area.start, size) == bytes);
        Ok(())
    });
    result.unwrap();
}

/// All bytes, in reads of 4 KiB.
fn contents<F: RemoteMemory>(
    remote: &mut F,
    pass: &mut impl FnMut() -> Time,
    start: u64,
    size: u64,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for from in (start..start + size).step_by(4096) {
        let length = (start + size - from).min(4096) as u32;
        perform(remote, pass, &[read(from, length)]);
        bytes.extend(&remote.buffer(0)[..length as usize]);
    }
    bytes
}

/// Does a step to the region and to the vector, and compares what they tell.
fn check_step<F: RemoteMemory>(
    remote: &mut F,
    pass: &mut impl FnMut() -> Time,
    start: u64,
    bytes: &mut [u8],
    (step, seed): (&OperationStep, u64),
) {
    let part = |at: u64, length: u32| at as usize..at as usize + length as usize;
    let word = |bytes: &[u8], at| u64::from_le_bytes(bytes[part(at, 8)].try_into().unwrap());
    let expected = |bytes: &[u8], at, hit: bool| word(bytes, at).wrapping_add(u64::from(!hit));
    match *step {
        OperationStep::Writes(ref writes) => {
            (0..writes.len() as u32)
                .for_each(|buffer| fill(remote, buffer, seed + u64::from(buffer)));
            let posts: Vec<_> = (0..)
                .zip(writes)
                .map(|(buffer, &(at, offset, length))| {
                    bytes[part(at, length)]
                        .copy_from_slice(&remote.buffer(buffer)[part(offset.into(), length)]);
                    Operation::Write {
                        from: BufferPosition { buffer, offset },
                        to: start + at,
                        length,
                    }
                })
                .collect();
            perform(remote, pass, &posts);
        }
        OperationStep::Read(at, offset, length) => {
            let into = BufferPosition { buffer: 1, offset };
            perform(remote, pass, &[Operation::Read { from: start + at, into, length }]);
            assert!(remote.buffer(1)[part(offset.into(), length)] == bytes[part(at, length)]);
        }
        OperationStep::Word(at, new) => {
            perform(remote, pass, &[Operation::WriteWord { word: new, to: start + at }]);
            bytes[part(at, 8)].copy_from_slice(&new.to_le_bytes());
        }
        OperationStep::Add(at, add) => {
            let reported = perform(remote, pass, &[Operation::FetchAdd { at: start + at, add }]);
            let old = word(bytes, at);
            assert_eq!(reported, [old]);
            bytes[part(at, 8)].copy_from_slice(&old.wrapping_add(add).to_le_bytes());
        }
        OperationStep::Swap(at, hit, new) => {
            let (old, expected) = (word(bytes, at), expected(bytes, at, hit));
            let swap = Operation::CompareSwap { at: start + at, expected, new };
            assert_eq!(perform(remote, pass, &[swap]), [old]);
            let new = if hit { new } else { old };
            bytes[part(at, 8)].copy_from_slice(&new.to_le_bytes());
        }
    }
}

/// A [`Backend`] whose clients may be of several threads.
pub(crate) trait Threads: Backend<RemoteMemory: Send> {
    /// The time for all threads.
    fn clock(&self) -> impl Fn() -> Time + Send + Sync + 'static;

    /// How often a thread does what it does.
    const ROUNDS: u64;
}

/// One client writes bytes, then a word that tells how often. A client that has read the word finds
/// bytes that are as new, or newer.
pub(crate) fn writes_are_seen_in_their_order<W: Threads>(backend: &mut W) {
    let (mut writer, mut reader) = (backend.open(), backend.open());
    let (at, clock) = (backend.area().start, backend.clock());
    let (reported, length) = (at + 8192, 4096);
    let mut pass = &clock;
    perform(&mut writer, &mut pass, &[Operation::WriteWord { word: 0, to: reported }]);
    writer.buffer_mut(0).fill(0);
    perform(&mut writer, &mut pass, &[write(at, length)]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut pass = &clock;
            for round in 1..=W::ROUNDS {
                let words = writer.buffer_mut(0).as_chunks_mut().0;
                words.iter_mut().for_each(|word: &mut [u8; 8]| *word = round.to_le_bytes());
                let announce = Operation::WriteWord { word: round, to: reported };
                perform(&mut writer, &mut pass, &[write(at, length), announce]);
            }
        });
        let mut pass = &clock;
        loop {
            perform(&mut reader, &mut pass, &[read(reported, 8)]);
            let round = words(&reader, 8).next().unwrap();
            perform(&mut reader, &mut pass, &[read(at, length)]);
            assert!(words(&reader, length).all(|word| word >= round), "older than {round}");
            if round == W::ROUNDS {
                break;
            }
        }
    });
}

/// The words of the first buffer.
fn words<F: RemoteMemory>(remote: &F, length: u32) -> impl Iterator<Item = u64> {
    remote.buffer(0)[..length as usize].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Both halves of every word are alike, however words are written and read.
pub(crate) fn words_are_not_torn<W: Threads>(backend: &mut W) {
    let (mut writer, mut reader) = (backend.open(), backend.open());
    let (at, clock) = (backend.area().start, backend.clock());
    let mut pass = &clock;
    writer.buffer_mut(0).fill(0);
    perform(&mut writer, &mut pass, &[write(at, BUFFER)]);
    thread::scope(|scope| {
        let write = scope.spawn(|| {
            let mut pass = &clock;
            for round in 1..=W::ROUNDS {
                let twice = round << 32 | round;
                let words = writer.buffer_mut(0).as_chunks_mut().0;
                words.iter_mut().for_each(|word: &mut [u8; 8]| *word = twice.to_le_bytes());
                let one = Operation::WriteWord { word: twice, to: at + 512 };
                perform(&mut writer, &mut pass, &[write(at, 4099), one, write(at, 61)]);
            }
        });
        let mut pass = &clock;
        let mut round = 0;
        while !write.is_finished() {
            round += 1;
            let (skip, length) = [(0, 4096), (0, 56), (512, 8)][round % 3];
            perform(&mut reader, &mut pass, &[read(at + skip, length)]);
            let torn = words(&reader, length).find(|word| word >> 32 != word & 0xffff_ffff);
            assert_eq!(torn, None, "in {length} bytes");
        }
    });
}

/// Four clients add to one word and swap another: no addition and no swap is lost.
pub(crate) fn atomic_operations_are_atomic<W: Threads>(backend: &mut W) {
    let (at, clock) = (backend.area().start, backend.clock());
    let swapped = at + 64;
    let mut fabrics: Vec<_> = (0..4).map(|_| backend.open()).collect();
    let clear = [at, swapped].map(|to| Operation::WriteWord { word: 0, to });
    perform(&mut fabrics[0], &mut &clock, &clear);
    let start = Barrier::new(fabrics.len());
    let count = |remote: &mut W::RemoteMemory| {
        let mut pass = &clock;
        start.wait();
        let (mut seen, mut swaps, mut expected) = (Vec::new(), 0, 0);
        for _ in 0..W::ROUNDS {
            let add = Operation::FetchAdd { at, add: 1 };
            let swap = Operation::CompareSwap { at: swapped, expected, new: expected + 1 };
            let reported =
                perform(remote, &mut pass, &[add, swap, add, add, add, add, add, add, add]);
            seen.extend([&reported[..1], &reported[2..]].concat());
            swaps += u64::from(reported[1] == expected);
            expected = if reported[1] == expected { expected + 1 } else { reported[1] };
        }
        (seen, swaps)
    };
    let reported: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            fabrics.iter_mut().map(|remote| scope.spawn(|| count(remote))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let seen: BTreeSet<_> = reported.iter().flat_map(|(seen, _)| seen.iter().copied()).collect();
    assert!(seen.into_iter().eq(0..4 * 8 * W::ROUNDS), "each count was told to one");
    let swaps: u64 = reported.iter().map(|(_, swaps)| swaps).sum();
    assert_eq!(one(backend, &mut fabrics[0], Operation::FetchAdd { at: swapped, add: 0 }), swaps);
}
