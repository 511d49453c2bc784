//! Every medium against a vector of bytes, and what makes each of them refuse.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job, Part};
use tidegate_model::cluster::Geometry;
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Tag, TenantId};

use super::*;
use crate::volumes::{self, Creation, PartPlan, PartStore};

/// Not a multiple of a page, so that the last block is a broken one.
const LENGTH: u64 = (1 << 20) + 70_000;

pub(super) fn part(volume: &str, length: u64, offset: u64) -> Part {
    let (length, offset) = (Bytes(length), Bytes(offset));
    Part { volume: volume.into(), index: 0, length, offset, geometry: Geometry::single(length) }
}

/// Makes the parts that a test opens.
pub(super) fn make(store: &PartStore, parts: &[Part]) {
    for part in parts {
        let Part { volume, index, offset, geometry, .. } = part.clone();
        let (node, store) = ("a".into(), store.clone());
        let plan = PartPlan { node, store, volume, index, offset, geometry, fallback: None };
        volumes::create(&[plan], Creation::default()).unwrap();
    }
}

pub(super) fn directory(folder: &Path, parts: &[Part]) -> Directory {
    make(&PartStore::Directory(folder.into()), parts);
    Directory::new(folder).unwrap()
}

pub(super) fn job(
    part: PartNumber,
    command: Command,
    offset: u64,
    length: u32,
    buffer: Buffer,
) -> Job {
    let tag = Tag {
        tenant: TenantId(0),
        context: ContextId::NONE,
        class: Class::Medium,
        operation: Operation::Read,
        cost: length,
        delay: 0,
    };
    Job::new(0, tag, command, (part, offset, length), buffer)
}

fn perform(medium: &dyn Medium, mut job: Job) -> Result<Buffer, Fault> {
    medium.perform(&mut std::iter::once(&mut job));
    job.outcome.map(|()| job.buffer)
}

pub(super) fn sized(path: &Path, length: u64) {
    fs::File::create(path).unwrap().set_len(length).unwrap();
}

/// One step: what, where, how long, and with which bytes.
type StoreStep = (Command, u64, u32, u8);

fn step() -> impl Strategy<Value = StoreStep> {
    let command = prop::sample::select(vec![
        Command::Read,
        Command::Write { durable: false },
        Command::Write { durable: true },
        Command::Discard { durable: false },
        Command::Discard { durable: true },
        Command::Zero { allocate: false, durable: false },
        Command::Zero { allocate: true, durable: true },
        Command::Flush,
        Command::Map,
    ]);
    // Half of the ranges are whole pages, some cross a chunk, some end where the part does.
    let range = prop_oneof![
        (0..LENGTH / 4096, 1u32..40).prop_map(|(page, pages)| (page * 4096, pages * 4096)),
        (0..LENGTH, 0u32..200_000),
    ];
    (command, range, 1u8..=255).prop_map(|(command, (offset, length), value)| {
        let length = u64::from(length).min(LENGTH - offset) as u32;
        (command, offset, length, value)
    })
}

fn check(
    medium: &dyn Medium,
    number: PartNumber,
    steps: &[StoreStep],
) -> Result<(), TestCaseError> {
    let mut oracle = vec![0u8; LENGTH as usize];
    for (command, offset, length, value) in steps {
        let bytes = vec![*value; *length as usize];
        let range = *offset as usize..*offset as usize + *length as usize;
        let buffer = match command {
            Command::Write { .. } => Buffer::from(&bytes[..]),
            _ => Buffer::empty(),
        };
        let (offset, length) = match command {
            Command::Flush => (0, 0),
            _ => (*offset, *length),
        };
        let answer = perform(medium, job(number, *command, offset, length, buffer)).unwrap();
        match command {
            Command::Read => prop_assert!(answer[..] == oracle[range]),
            Command::Write { .. } => oracle[range].copy_from_slice(&bytes),
            Command::Zero { .. } => oracle[range].fill(0),
            Command::Discard { .. } => {
                // Zeros or what was there, byte by byte; whichever it is, it stays.
                let read = job(number, Command::Read, offset, length, Buffer::empty());
                let found = perform(medium, read).unwrap();
                let is_kept = |(found, was): (&u8, &u8)| *found == 0 || found == was;
                prop_assert!(found.iter().zip(&oracle[range.clone()]).all(is_kept));
                oracle[range].copy_from_slice(&found);
            }
            Command::Map => {
                let mut at = range.start;
                for extent in answer.chunks_exact(16) {
                    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                    let end = at + number(&extent[..8]) as usize;
                    let is_hole = number(&extent[8..]) == 3;
                    prop_assert!(end <= range.end && end > at);
                    prop_assert!(!is_hole || oracle[at..end].iter().all(|byte| *byte == 0));
                    at = end;
                }
                prop_assert!(at == range.end || answer.len() == 256 * 16);
            }
            Command::Flush | Command::KeyValue => {}
        }
    }
    let whole = job(number, Command::Read, 0, LENGTH as u32, Buffer::empty());
    prop_assert!(perform(medium, whole).unwrap()[..] == oracle);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn memory_is_a_vector_of_bytes(steps in prop::collection::vec(step(), 1..40)) {
        let memory = Memory::new(Bytes::MAX);
        let number = memory.open(&part("v", LENGTH, 0)).unwrap().number;
        check(&memory, number, &steps)?;
    }

    #[test]
    fn a_directory_is_a_vector_of_bytes(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path(), &[part("v", LENGTH, 0)]);
        let number = directory.open(&part("v", LENGTH, 0)).unwrap().number;
        check(&directory, number, &steps)?;
    }

    #[test]
    fn a_device_is_a_vector_of_bytes_and_its_neighbours_are_left_alone(
        steps in prop::collection::vec(step(), 1..40),
        base in prop_oneof![Just(8192u64), 1u64..8192],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let area = crate::store::label::AREA as usize;
        fs::write(&path, vec![0xee; (base + LENGTH) as usize + 9_096 + area]).unwrap();
        let begin = ((base + LENGTH + 9_096) / 4096 * 4096) as usize;
        make(&PartStore::Device(path.clone(), None), &[part("v", LENGTH, base)]);
        let device = DeviceStore::new(&path, None).unwrap();
        let number = device.open(&part("v", LENGTH, base)).unwrap().number;
        let zero = Command::Zero { allocate: true, durable: false };
        perform(&device, job(number, zero, 0, LENGTH as u32, Buffer::empty())).unwrap();
        check(&device, number, &steps)?;
        let bytes = fs::read(&path).unwrap();
        let (before, after) = (&bytes[..base as usize], &bytes[(base + LENGTH) as usize..begin]);
        prop_assert!(before.iter().chain(after).all(|byte| *byte == 0xee));
        prop_assert!(after.len() >= 5_000);
    }
}

#[test]
fn what_lies_outside_is_invalid() {
    let memory = Memory::new(Bytes::MAX);
    let number = memory.open(&part("v", 8192, 0)).unwrap().number;
    for (number, offset, length) in [
        (number, 8192, 1),
        (number, 1, 8192),
        (number, u64::MAX, 2),
        (PartNumber(number.0 + 1), 0, 1),
    ] {
        let read = job(number, Command::Read, offset, length, Buffer::empty());
        assert_eq!(perform(&memory, read), Err(Fault::Invalid));
    }
    let short = job(number, Command::Write { durable: false }, 0, 2, Buffer::from(&b"x"[..]));
    assert_eq!(perform(&memory, short), Err(Fault::Invalid));
    let get = job(number, Command::KeyValue, 0, 0, Buffer::empty());
    assert_eq!(perform(&memory, get), Err(Fault::Unsupported));
}

#[test]
fn a_part_is_there_again_and_of_the_right_size() {
    let folder = tempfile::tempdir().unwrap();
    let first = directory(folder.path(), &[part("v", 8192, 0)]);
    let number = first.open(&part("v", 8192, 0)).unwrap().number;
    assert_eq!(first.open(&part("v", 8192, 77)).unwrap().number, number);
    let write = job(number, Command::Write { durable: true }, 4096, 2, Buffer::from(&b"ok"[..]));
    perform(&first, write).unwrap();
    drop(first);
    assert_eq!(fs::metadata(folder.path().join("v.0")).unwrap().len(), 8192);
    let directory = Directory::new(folder.path()).unwrap();
    let error = directory.open(&part("v", 4096, 0)).unwrap_err().to_string();
    assert!(error.contains("a volume of 8KiB, and the cluster file says 4KiB"), "{error}");
    assert!(error.contains("part 0 of volume \"v\""), "{error}");
    let number = directory.open(&part("v", 8192, 0)).unwrap().number;
    let read = job(number, Command::Read, 4096, 2, Buffer::empty());
    assert_eq!(&perform(&directory, read).unwrap()[..], b"ok");
    fs::write(folder.path().join("w.0"), "short").unwrap();
    assert!(directory.open(&part("w", 8192, 0)).unwrap_err().to_string().contains("--adopt"));
}

#[test]
fn a_directory_is_one_nodes_and_its_names_are_plain() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path()).unwrap();
    let error = Directory::new(folder.path()).err().unwrap();
    assert_eq!(error.to_string(), "a node of this process uses it");
    for name in ["", "..", "a/b", ".x", "a b", &"x".repeat(201)] {
        let error = directory.open(&part(name, 4096, 0)).unwrap_err();
        assert!(matches!(error, OpenError::Name(_)), "{name}");
    }
    let entries = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(entries, 0, "nothing was made");
}

#[test]
fn parts_of_a_device_do_not_overlap_and_end_within() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    assert!(DeviceStore::new(&path, None).is_err());
    sized(&path, (64 << 10) + (1 << 20));
    let parts =
        [part("a", 16 << 10, 16 << 10), part("b", 32 << 10, 32 << 10), part("c", 4096, 12 << 10)];
    make(&PartStore::Device(path.clone(), None), &parts);
    let device = DeviceStore::new(&path, None).unwrap();
    device.open(&parts[0]).unwrap();
    let refused = |part| device.open(&part).unwrap_err();
    assert!(matches!(refused(part("b", 8 << 10, 12 << 10)), OpenError::Overlap { .. }));
    assert!(matches!(refused(part("b", 4 << 10, 28 << 10)), OpenError::Overlap { .. }));
    assert!(matches!(refused(part("b", 40 << 10, 32 << 10)), OpenError::Full { .. }));
    assert!(matches!(refused(part("b", u64::MAX, u64::MAX)), OpenError::Full { .. }));
    assert!(matches!(refused(part("a", 16 << 10, 32 << 10)), OpenError::Moved { .. }));
    assert!(matches!(refused(part("d", 4096, 4096)), OpenError::Unfit { .. }), "it was not made");
    device.open(&parts[1]).unwrap();
    device.open(&parts[2]).unwrap();
}

#[test]
fn memory_has_its_configured_capacity() {
    let memory = Memory::new(Bytes(1 << 20));
    memory.open(&part("a", 1 << 19, 0)).unwrap();
    let error = memory.open(&part("b", (1 << 19) + 1, 0)).unwrap_err();
    assert!(matches!(error, OpenError::Full { .. }), "{error}");
    memory.open(&part("b", 1 << 19, 0)).unwrap();
}

/// A file system of one megabyte, unmounted at the end; none where only root may mount.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "tidegate-test"])
            .arg(folder.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(folder)),
            _ => None,
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_store_reports_it_and_keeps_its_data() {
    let Some(small) = Small::mount() else {
        eprintln!("skipped: a small file system can only be mounted by root");
        return;
    };
    let directory = directory(small.0.path(), &[part("v", 4 << 20, 0)]);
    let number = directory.open(&part("v", 4 << 20, 0)).unwrap().number;
    let write = |at: u64| {
        let buffer = Buffer::from(&[7; 65_536][..]);
        perform(&directory, job(number, Command::Write { durable: false }, at, 65_536, buffer))
    };
    let written = (0..64).take_while(|count| write(count << 16).is_ok()).count() as u64;
    assert!((8..=16).contains(&written), "{written} of 64 KiB each");
    assert_eq!(write(written << 16).unwrap_err(), Fault::NoSpace);
    let read = job(number, Command::Read, (written - 1) << 16, 65_536, Buffer::empty());
    assert_eq!(&perform(&directory, read).unwrap()[..], [7; 65_536]);

    // A full store is no lost write, and a flush says so.
    let flush = job(number, Command::Flush, 0, 0, Buffer::empty());
    perform(&directory, flush).unwrap();
}

/// Requests that promise something, on a part whose incarnation the client knows.
fn durable(number: PartNumber, incarnation: u64) -> Vec<Job> {
    let page = || Buffer::from(&[7; 4096][..]);
    let zero = Command::Zero { allocate: true, durable: true };
    vec![
        Job { incarnation, ..job(number, Command::Flush, 0, 0, Buffer::empty()) },
        job(number, Command::Write { durable: true }, 0, 4096, page()),
        job(number, Command::Discard { durable: true }, 0, 4096, Buffer::empty()),
        job(number, zero, 0, 4096, Buffer::empty()),
    ]
}

/// A medium whose next sync fails, and then every promise; reads and plain writes go on.
fn fails_from_here(medium: &dyn Medium, number: PartNumber, incarnation: u64) {
    for (first, job) in [(true, 0), (false, 0), (false, 1), (false, 2), (false, 3)] {
        let job = durable(number, incarnation).swap_remove(job);
        let command = job.command;
        assert_eq!(perform(medium, job), Err(Fault::Io), "{command:?}, first {first}");
    }
    let page = Buffer::from(&[7; 4096][..]);
    let write = Command::Write { durable: false };
    perform(medium, job(number, write, 0, 4096, page)).unwrap();
    perform(medium, job(number, Command::Read, 0, 4096, Buffer::empty())).unwrap();
    assert!(medium.faults().iter().any(|(volume, ..)| volume == "v"), "{:?}", medium.faults());
}

#[test]
fn a_failed_sync_is_stored_and_fails_every_flush_until_it_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let (path, wanted) = (folder.path().join("device"), part("v", 8192, 4096));
    sized(&path, (1 << 20) + 65_536);
    let stores = [PartStore::Directory(folder.path().join("parts")), PartStore::Device(path, None)];
    for store in stores {
        let offset = if matches!(store, PartStore::Device(..)) { 4096 } else { 0 };
        let plan = PartPlan {
            node: "a".into(),
            store: store.clone(),
            volume: "v".into(),
            index: 0,
            offset: Bytes(offset),
            geometry: wanted.geometry,
            fallback: None,
        };
        volumes::create(std::slice::from_ref(&plan), Creation::default()).unwrap();
        let open = || -> (Box<dyn Medium>, OpenPart) {
            let medium: Box<dyn Medium> = match &store {
                PartStore::Directory(path) => Box::new(Directory::new(path).unwrap()),
                PartStore::Device(path, size) => Box::new(DeviceStore::new(path, *size).unwrap()),
            };
            let opened = medium.open(&wanted).unwrap();
            (medium, opened)
        };
        let (before, reported) = match &store {
            PartStore::Directory(path) => {
                let medium = Directory::new(path).unwrap();
                let opened = medium.open(&wanted).unwrap();
                medium.fail_next_sync(opened.number);
                watched(&medium, opened)
            }
            PartStore::Device(path, size) => {
                let medium = DeviceStore::new(path, *size).unwrap();
                let opened = medium.open(&wanted).unwrap();
                medium.fail_next_sync();
                watched(&medium, opened)
            }
        };
        // A restart changes nothing, and a new session gets the same.
        let (medium, again) = open();
        assert!(again.state.incarnation == reported && reported != before);
        fails_from_here(&*medium, again.number, reported);
        drop(medium);
        assert!(volumes::show(std::slice::from_ref(&plan))[0].fault.is_some());
        assert_eq!(volumes::clear_error(std::slice::from_ref(&plan)), Ok(1));
        let (medium, cleared) = open();
        assert_eq!(cleared.state.incarnation, reported);
        for job in durable(cleared.number, reported) {
            perform(&*medium, job).unwrap();
        }
        let old = durable(cleared.number, before).swap_remove(0);
        assert_eq!(perform(&*medium, old), Err(Fault::Io), "who was there before has lost writes");
    }
}

/// Has a sync fail; the incarnation before, and the one that was told.
fn watched(medium: &dyn Medium, opened: OpenPart) -> (u64, u64) {
    let reported = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let teller = reported.clone();
    medium.watch(Box::new(move |part, incarnation| {
        teller.lock().unwrap().push((part, incarnation));
    }));
    fails_from_here(medium, opened.number, opened.state.incarnation);
    let reported = reported.lock().unwrap();
    assert!(reported.len() == 1 && reported[0].0 == opened.number, "{reported:?}");
    (opened.state.incarnation, reported[0].1)
}

/// A volume in a directory or on a device, its file there, and what opens it.
struct Opened {
    plan: PartPlan,
    file: PathBuf,
}

impl Opened {
    fn make(folder: &Path, is_device: bool) -> Self {
        let (file, store) = match is_device {
            true => {
                sized(&folder.join("device"), (1 << 20) + 65_536);
                let path = folder.join("device");
                (path.clone(), PartStore::Device(path, None))
            }
            false => (folder.join("parts/v.0"), PartStore::Directory(folder.join("parts"))),
        };
        let plan = PartPlan {
            node: "a".into(),
            store,
            volume: "v".into(),
            index: 0,
            offset: Bytes::ZERO,
            geometry: part("v", 8192, 0).geometry,
            fallback: None,
        };
        volumes::create(std::slice::from_ref(&plan), Creation::default()).unwrap();
        Self { plan, file }
    }

    fn medium(&self) -> Box<dyn Medium> {
        match &self.plan.store {
            PartStore::Directory(path) => Box::new(Directory::new(path).unwrap()),
            PartStore::Device(path, size) => Box::new(DeviceStore::new(path, *size).unwrap()),
        }
    }
}

/// Every request of the part fails, and the fault has these words.
fn expect_absent(medium: &dyn Medium, number: PartNumber, words: &str) {
    medium.inspect();
    let jobs = durable(number, 0).into_iter();
    for job in jobs.chain([job(number, Command::Read, 0, 4096, Buffer::empty())]) {
        let command = job.command;
        assert_eq!(perform(medium, job), Err(Fault::Io), "{words}: {command:?}");
    }
    let faults = medium.faults();
    assert!(faults.len() == 1 && faults[0].2.contains(words), "{words}: {faults:?}");
}

fn expect_present(medium: &dyn Medium, number: PartNumber, incarnation: u64) {
    medium.inspect();
    for job in durable(number, incarnation) {
        perform(medium, job).unwrap();
    }
    perform(medium, job(number, Command::Read, 0, 4096, Buffer::empty())).unwrap();
    assert_eq!(medium.faults(), []);
}

#[test]
fn a_part_that_is_moved_under_a_running_node_fails_until_it_is_back() {
    for is_device in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::make(folder.path(), is_device);
        let away = folder.path().join("away");
        let medium = opened.medium();
        let OpenPart { number, state } = medium.open(&part("v", 8192, 0)).unwrap();
        expect_present(&*medium, number, state.incarnation);
        fs::rename(&opened.file, &away).unwrap();
        expect_absent(&*medium, number, "is not there any more");
        fs::write(&opened.file, vec![0; 8192]).unwrap();
        expect_absent(&*medium, number, "has another file in its place");
        fs::rename(&away, &opened.file).unwrap();
        expect_present(&*medium, number, state.incarnation);
        if !is_device {
            let label = opened.file.with_file_name("v.0.label");
            fs::rename(&label, &away).unwrap();
            expect_absent(&*medium, number, "lacks its label");
            fs::rename(&away, &label).unwrap();
            expect_present(&*medium, number, state.incarnation);
        }
    }
}

#[test]
fn a_part_that_is_removed_or_cut_off_under_a_running_node_fails_and_so_do_flushes_after_it_is_back()
{
    let cases = [(false, false), (false, true), (true, true)];
    for (is_device, is_cut) in cases {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::make(folder.path(), is_device);
        let backup = folder.path().join("backup");
        fs::copy(&opened.file, &backup).unwrap();
        let medium = opened.medium();
        let OpenPart { number, state } = medium.open(&part("v", 8192, 0)).unwrap();
        let length = fs::metadata(&opened.file).unwrap().len();
        let file = || fs::OpenOptions::new().write(true).open(&opened.file).unwrap();
        let words = match is_cut {
            true => {
                file().set_len(4096).unwrap();
                "was cut off to 4KiB"
            }
            false => {
                fs::remove_file(&opened.file).unwrap();
                "was removed while the node ran"
            }
        };
        expect_absent(&*medium, number, words);
        // A file of the same length is not what was lost.
        match is_cut {
            true => file().set_len(length).unwrap(),
            false => sized(&opened.file, length),
        }
        expect_absent(&*medium, number, words);
        drop(medium);
        // The fault's advice helps: the backup is adopted, without the writes acknowledged since.
        fs::copy(&backup, &opened.file).unwrap();
        let plans = std::slice::from_ref(&opened.plan);
        let adopt = Creation { adopt: true, ..Creation::default() };
        volumes::create(plans, adopt).unwrap();
        let medium = opened.medium();
        let again = medium.open(&part("v", 8192, 0)).unwrap();
        perform(&*medium, job(number, Command::Read, 0, 4096, Buffer::empty())).unwrap();
        // The device's label went with its end.
        if !is_device {
            assert_ne!(again.state.incarnation, state.incarnation);
            fails_from_here(&*medium, again.number, again.state.incarnation);
            drop(medium);
            assert_eq!(volumes::clear_error(plans), Ok(1));
        }
    }
}
