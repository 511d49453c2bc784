//! Every byte is seen once.

use std::sync::atomic::Ordering;

use tidegate_model::Operation;
use tidegate_stage::Bypass;

use crate::support::{Bench, build, run};

#[test]
fn data_in_every_way_that_the_c_library_has() {
    let bench = Bench::new();
    bench.program("data.c", &[]);
    assert_eq!(bench.count(Operation::Write), (11, 3631));
    assert_eq!(bench.count(Operation::Read), (16, 3564));
    assert_eq!(bench.count(Operation::Sync).0, 5, "msync is about no file");
    assert_eq!(bench.count(Operation::Allocate).0, 4);
    assert_eq!(bench.count(Operation::Open).0, 1);
    assert_eq!(bench.bypassed(Bypass::Mapping), (1, 8192));
}

#[test]
fn descriptors_that_change_their_meaning() {
    let bench = Bench::new();
    bench.program("descriptors.c", &[]);
    assert_eq!(bench.count(Operation::Write), (8, 80));
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

#[test]
fn standard_descriptors_that_the_c_library_replaces() {
    let bench = Bench::new();
    bench.program("standard.c", &["-lutil"]);
    assert_eq!(bench.count(Operation::Write), (3, 30));
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

#[test]
fn results_and_errors_are_those_of_the_c_library() {
    let bench = Bench::new();
    bench.program("errors.c", &[]);
    assert_eq!(bench.count(Operation::Write).1, 10);
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

#[test]
fn streams_count_when_their_buffer_meets_the_kernel() {
    let bench = Bench::new();
    bench.program("stdio.c", &[]);
    // 25 writes of lines; 12 blocks at once, the rest at the flush, five bytes at the end.
    assert_eq!(bench.count(Operation::Write), (25 + 3, 100_000 + 50_001 + 5));
    let (operations, bytes) = bench.count(Operation::Read);
    // The first move reads its block again: only then the stream knows where it is in the file.
    assert_eq!(bytes, 4 * 100_000 + 3 * 4096);
    // Three times the blocks and the end, one large read, three blocks between the moves.
    assert_eq!(operations, 3 * 26 + 1 + 3);
}

#[test]
fn streams_that_threads_share() {
    let bench = Bench::new();
    let length: u64 = bench.program("shared.c", &[]).trim().parse().unwrap();
    assert_eq!(bench.count(Operation::Write).1, length);
    assert_eq!(bench.count(Operation::Read).1, length);
    // Two threads may both find the buffer full; one of them writes it, and the other's write at
    // the gate was for nothing.
    let blocks = length.div_ceil(4096);
    assert!((blocks..blocks * 2).contains(&bench.count(Operation::Write).0));
}

#[test]
fn streams_that_are_never_closed() {
    let bench = Bench::new();
    bench.program("exit.c", &[]);
    assert_eq!(bench.count(Operation::Write), (2, 7 + 6));
}

#[test]
fn printing_with_any_number_of_arguments() {
    let bench = Bench::new();
    let length: u64 = bench.program("printf.c", &[]).trim().parse().unwrap();
    let optimized = build(&bench.programs, "printf.c", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    run(&mut bench.command(optimized));
    assert!(length > 50_000, "{length}");
    assert_eq!(bench.count(Operation::Write).1, 2 * length);
}

#[test]
fn copies_pay_on_both_sides() {
    let bench = Bench::new();
    bench.program("copies.c", &[]);
    let length = (3 << 20) + 100;
    let (writes, written) = bench.count(Operation::Write);
    assert_eq!(written, length + 3 * length + 5000);
    let (reads, read) = bench.count(Operation::Read);
    assert_eq!(read, 3 * length + 5000 + 300);
    // In chunks of a mebibyte; the copy beyond the end asks to write and moves nothing.
    assert_eq!((writes, reads), (4 + 3 * 4 + 1 + 1 + 1, 3 * 4 + 1 + 1));
}

#[test]
fn requests_that_are_handed_over() {
    let bench = Bench::new();
    bench.program("rings.c", &["-laio", "-luring"]);
    assert_eq!(bench.count(Operation::Write), (2 + 3 + 1, 1300 + 6000 + 40));
    assert_eq!(bench.count(Operation::Read), (2 + 3 + 1, 800 + 900 + 40));
    assert_eq!(bench.count(Operation::Sync).0, 3);
    assert_eq!(bench.bypassed(Bypass::Nested).0, 0);
}

/// Each of them once, however often the program tries.
#[test]
fn more_requests_than_the_kernel_takes() {
    let bench = Bench::new();
    bench.program("batches.c", &["-laio"]);
    assert_eq!(bench.count(Operation::Write), (300, 3000));
}

/// The times of requests in rings are found by polling the rings, where polls are close enough
/// together. Those of POSIX, two of each kind here, have no ring.
#[test]
fn requests_that_are_handed_over_are_timed_by_polling() {
    let bench = Bench::new();
    let channels = &bench.segment.channels;
    channels.iter().for_each(|channel| channel.probed.store(1, Ordering::Relaxed));
    let storage = &bench.segment.storage;
    let timed = || storage.service.counts().total();
    for round in 1..=60 {
        bench.program("rings.c", &["-laio", "-luring"]);
        assert_eq!((storage.reads.operations(), storage.reads.bytes()), (6 * round, 1740 * round));
        assert_eq!(
            (storage.writes.operations(), storage.writes.bytes()),
            (6 * round, 7340 * round)
        );
        assert_eq!(storage.begun.operations(), 12 * round);
        assert!(timed() <= 10 * round, "{} in {round} rounds", timed());
        if timed() > 2 {
            break;
        }
    }
    assert!(timed() > 2, "none of 600 requests was timed");
    let before = timed();
    bench.program("data.c", &[]);
    assert!(timed() > before);
    let answered = storage.reads.operations() + storage.writes.operations();
    assert_eq!(storage.begun.operations(), answered);
}

#[test]
fn requests_on_files_that_are_registered_with_a_ring() {
    let bench = Bench::new();
    let program = build(&bench.programs, "registered.c", &["-luring"]);
    run(bench.command(&program).arg(&program));
    assert_eq!(bench.count(Operation::Write), (10 + 1, 1000 + 7));
    assert_eq!(bench.count(Operation::Read), (2, 110), "those of the other file are not counted");
}

#[test]
fn names_and_attributes() {
    let bench = Bench::new();
    bench.program("metadata.c", &[]);
    let operations = |operation| bench.count(operation).0;
    assert_eq!(operations(Operation::Open), 203);
    assert_eq!(operations(Operation::Stat), 9);
    assert_eq!(operations(Operation::Link), 7);
    assert_eq!(operations(Operation::List), 1);
    assert_eq!(operations(Operation::Attribute), 5);
}
