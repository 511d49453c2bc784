//! An open part admits ranges within it and flushes of its incarnation, and nothing durable once a
//! sync has failed.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::{Arc, Mutex};

use tidegate_fabric::buffer::Buffer;
use tidegate_model::cluster::Geometry;
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Tag, TenantId};

use super::*;

const LENGTH: u64 = 8192;

/// A part that stores nothing: its incarnation is the number of the error.
struct Plain;

impl StoresErrors for Plain {
    fn store_error(&self, errno: i32) -> u64 {
        errno as u64
    }
}

fn part(volume: &str, index: u32) -> Part {
    let geometry = Geometry::single(Bytes(LENGTH));
    Part { volume: volume.into(), index, length: Bytes(LENGTH), offset: Bytes(4096), geometry }
}

fn opened(parts: &Parts<Plain>, part: &Part, has_failed: bool) -> OpenPart {
    let state = PartState { incarnation: 77, identity: None };
    parts.open(part, |_| Ok(FoundPart { state, has_failed, storage: Plain })).unwrap()
}

fn job(part: PartNumber, command: Command, offset: u64, length: u32) -> Job {
    let (tenant, context, class) = (TenantId(0), ContextId::NONE, Class::Medium);
    let tag = Tag { tenant, context, class, operation: Operation::Read, cost: 0, delay: 0 };
    let buffer = Buffer::empty();
    Job::new(0, tag, command, (part, offset, length), buffer)
}

fn check(parts: &Parts<Plain>, job: &Job) -> Result<(), Fault> {
    storage(&parts.read(), job).map(|_| ())
}

/// Every command, and whether it promises that something is durable.
fn commands() -> [(Command, bool); 9] {
    let zero = |durable| Command::Zero { allocate: true, durable };
    [
        (Command::Read, false),
        (Command::Map, false),
        (Command::KeyValue, false),
        (Command::Write { durable: false }, false),
        (Command::Discard { durable: false }, false),
        (zero(false), false),
        (Command::Write { durable: true }, true),
        (Command::Discard { durable: true }, true),
        (zero(true), true),
    ]
}

#[test]
fn a_part_has_one_number_however_often_it_is_opened() {
    let parts = Parts::default();
    let numbers = [("a", 0), ("b", 0), ("a", 1), ("b", 0), ("a", 0)]
        .map(|(volume, index)| opened(&parts, &part(volume, index), false).number);
    assert_eq!(numbers, [0, 1, 2, 1, 0].map(PartNumber));
    for (change, word) in [
        (Part { length: Bytes(4096), ..part("a", 0) }, "has 8KiB and is to have 4KiB"),
        (Part { offset: Bytes(0), ..part("a", 0) }, "begins at 4KiB"),
        (Part { geometry: Geometry::single(Bytes(4096)), ..part("a", 0) }, "was made for"),
    ] {
        let again = parts.open(&change, |_| unreachable!("it is open"));
        let error = again.unwrap_err().to_string();
        assert!(error.contains("part 0 of volume \"a\"") && error.contains(word), "{error}");
    }
}

#[test]
fn a_range_lies_within_its_part() {
    let parts = Parts::default();
    let number = opened(&parts, &part("a", 0), false).number;
    for (command, _) in commands() {
        let at = |offset, length| check(&parts, &job(number, command, offset, length));
        assert_eq!([at(0, LENGTH as u32), at(LENGTH, 0), at(LENGTH - 1, 1)], [Ok(()); 3]);
        let beyond = [at(0, LENGTH as u32 + 1), at(LENGTH, 1), at(u64::MAX, 1), at(u64::MAX, 0)];
        assert_eq!(beyond, [Err(Fault::Invalid); 4], "{command:?}");
    }
    assert_eq!(
        check(&parts, &job(PartNumber(1), Command::Read, 0, 1)),
        Err(Fault::Invalid),
        "no such part"
    );
}

#[test]
fn after_a_failed_sync_nothing_durable_is_promised_to_whoever_was_there_or_comes() {
    let parts = Parts::default();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let teller = reported.clone();
    parts.watch(Box::new(move |part, incarnation| {
        teller.lock().unwrap().push((part, incarnation));
    }));
    let [bad, good] = [0, 1].map(|index| opened(&parts, &part("a", index), false).number);
    let flush = |number, incarnation| {
        check(&parts, &Job { incarnation, ..job(number, Command::Flush, 0, 0) })
    };
    assert_eq!([flush(bad, 77), flush(bad, 0), flush(bad, 78)], [Ok(()), Ok(()), Err(Fault::Io)]);
    parts.fail(28, |number| number == bad);
    parts.fail(5, |number| number == bad);
    assert_eq!(
        *reported.lock().unwrap(),
        [(bad, 28)],
        "the first failure counts, and is told once"
    );
    assert_eq!([flush(bad, 77), flush(bad, 28), flush(bad, 0)], [Err(Fault::Io); 3]);
    assert_eq!(flush(good, 77), Ok(()), "another part is none the worse");
    assert_eq!(opened(&parts, &part("a", 0), false).state.incarnation, 28, "a new session gets it");
    for (command, durable) in commands() {
        let wanted = if durable { Err(Fault::Io) } else { Ok(()) };
        assert_eq!(check(&parts, &job(bad, command, 0, 1)), wanted, "{command:?}");
        assert_eq!(
            (is_durable(command), check(&parts, &job(good, command, 0, 1))),
            (durable, Ok(()))
        );
    }
    assert!(is_durable(Command::Flush));
    // An error that an earlier run stored is one, too.
    let stored = opened(&parts, &part("b", 0), true).number;
    assert_eq!(flush(stored, 77), Err(Fault::Io));
    let faults = parts.faults(|_| Some(String::from("why")));
    assert_eq!(faults.len(), 3);
    assert_eq!(faults[1], (String::from("a"), 1, String::from("why")));
}
