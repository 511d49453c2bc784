//! State after a crash between any two operations on files: the state before, the state after, or
//! an error that names the part. Never other data, never zeros in their place.
//!
//! The operations are recorded while they are done, and then done again in a new folder up to every
//! point. Each operation that no sync has covered by then may be there or not, and a write in
//! parts.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode};
use tidegate_fabric::service::Part;
use tidegate_model::cluster::SyncError;

use super::resize::resize_on;
use super::*;
use crate::store::{DeviceStore, Directory, Medium};

/// An operation, on a file by its number: the name that it has may change.
#[derive(Clone, Debug)]
enum Op {
    Create(PathBuf, usize),
    Rename(PathBuf, usize),
    SyncFolder,
    Write(usize, u64, Vec<u8>),
    Grow(usize, u64),
    Mark(usize, Uuid),
    Sync(usize),
}

/// The disks of this machine, and what is done to them.
#[derive(Default)]
struct Recorder {
    log: Mutex<(BTreeMap<PathBuf, usize>, Vec<Op>)>,
}

impl Recorder {
    fn file(&self, path: &Path) -> usize {
        let names = &mut self.log.lock().unwrap().0;
        let next = names.len();
        *names.entry(path.into()).or_insert(next)
    }

    fn note(&self, op: Op) {
        self.log.lock().unwrap().1.push(op);
    }
}

impl Disk for Recorder {
    fn length(&self, path: &Path) -> io::Result<u64> {
        LocalDisks.length(path)
    }

    fn read(&self, path: &Path, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        LocalDisks.read(path, offset, bytes)
    }

    fn create(&self, path: &Path) -> io::Result<()> {
        self.note(Op::Create(path.into(), self.file(path)));
        LocalDisks.create(path)
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.note(Op::Write(self.file(path), offset, bytes.into()));
        LocalDisks.write(path, offset, bytes)
    }

    fn grow(&self, path: &Path, length: u64, reserve: bool) -> io::Result<()> {
        self.note(Op::Grow(self.file(path), length));
        LocalDisks.grow(path, length, reserve)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.note(Op::Sync(self.file(path)));
        LocalDisks.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.file(from);
        self.note(Op::Rename(to.into(), file));
        self.log.lock().unwrap().0.insert(to.into(), file);
        LocalDisks.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Op::SyncFolder);
        LocalDisks.sync_folder(path)
    }

    fn mark(&self, path: &Path) -> io::Result<Option<Uuid>> {
        LocalDisks.mark(path)
    }

    fn set_mark(&self, path: &Path, uuid: Uuid) -> io::Result<bool> {
        self.note(Op::Mark(self.file(path), uuid));
        LocalDisks.set_mark(path, uuid)
    }
}

const STRIPE: u64 = 4096;
const SIZE: u64 = 8 * STRIPE;

/// Both parts of a volume in the directories `a` and `b`, or on devices of these names.
fn plans(folder: &Path, size: u64, is_device: bool) -> Vec<PartPlan> {
    let plan = |(index, node): (u32, &&str)| PartPlan {
        node: String::from(*node),
        store: match is_device {
            true => PartStore::Device(folder.join(node), None),
            false => PartStore::Directory(folder.join(node)),
        },
        volume: "db".into(),
        index,
        offset: Bytes(if is_device { 4096 } else { 0 }),
        geometry: Geometry { count: 2, stripe: Bytes(STRIPE), size: Bytes(size) },
        fallback: None,
    };
    (0..).zip(&["a", "b"]).map(plan).collect()
}

/// Folders, or devices without data of ours.
fn empty(is_device: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for node in ["a", "b"] {
        let path = folder.path().join(node);
        match is_device {
            true => fs::write(path, vec![0xee; (1 << 20) + 65_536]).unwrap(),
            false => fs::create_dir(path).unwrap(),
        }
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
            if let Some(mark) = LocalDisks.mark(&entry.path()).unwrap() {
                LocalDisks.set_mark(&to, mark).unwrap();
            }
        }
    }
}

/// Does the first `count` operations again upon `before`; what no sync has covered is there if
/// `is_kept` says so, a write perhaps only up to some sector.
fn crashed(
    before: &Path,
    recorded: &Path,
    (names, ops): &(BTreeMap<PathBuf, usize>, Vec<Op>),
    count: usize,
    mut is_kept: impl FnMut(usize) -> usize,
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(before, folder.path());
    let here = |path: &Path| folder.path().join(path.strip_prefix(recorded).unwrap());
    let store = folder.path().join("inodes");
    fs::create_dir(&store).unwrap();
    let inode = |file: usize| {
        let known = names.iter().find(|(_, number)| **number == file).unwrap().0;
        let (own, there) = (store.join(file.to_string()), here(known));
        if own.exists() { own } else { there }
    };
    for (at, op) in ops[..count].iter().enumerate() {
        let later = &ops[at..count];
        let is_synced =
            |file: usize| later.iter().any(|op| matches!(op, Op::Sync(synced) if *synced == file));
        let is_named = later.iter().any(|op| matches!(op, Op::SyncFolder));
        match op {
            Op::Create(path, file) => {
                let own = store.join(file.to_string());
                fs::write(&own, "").unwrap();
                if is_named || is_kept(2) == 1 {
                    let _ = fs::remove_file(here(path));
                    fs::hard_link(own, here(path)).unwrap();
                }
            }
            Op::Rename(path, file) => {
                if is_named || is_kept(2) == 1 {
                    let own = store.join(file.to_string());
                    let begun = names.iter().filter(|(_, number)| *number == file);
                    begun.for_each(|(path, _)| drop(fs::remove_file(here(path))));
                    fs::hard_link(own, here(path)).unwrap();
                }
            }
            Op::Write(file, offset, bytes) => {
                let sectors = bytes.len() / 512;
                let kept = if is_synced(*file) { sectors } else { is_kept(sectors + 1) };
                let file = fs::OpenOptions::new().write(true).open(inode(*file)).unwrap();
                file.write_all_at(&bytes[..kept * 512], *offset).unwrap();
            }
            Op::Grow(file, length) if is_synced(*file) || is_kept(2) == 1 => {
                LocalDisks.grow(&inode(*file), *length, false).unwrap();
            }
            Op::Mark(file, uuid) if is_synced(*file) || is_kept(2) == 1 => {
                LocalDisks.set_mark(&inode(*file), *uuid).unwrap();
            }
            Op::Grow(..) | Op::Mark(..) | Op::Sync(_) | Op::SyncFolder => {}
        }
    }
    fs::remove_dir_all(store).unwrap();
    folder
}

/// The data of both parts as a node would serve them, with their stamps, or why it would not.
fn served(
    folder: &Path,
    size: u64,
    is_device: bool,
) -> Result<Vec<(VolumeStamp, Vec<u8>)>, String> {
    let each = |plan: PartPlan| {
        let length = plan.geometry.part_length(plan.index);
        let PartPlan { volume, index, offset, geometry, .. } = plan.clone();
        let part = Part { volume, index, length, offset, geometry };
        let path = plan.store.path();
        let opened = match is_device {
            true => DeviceStore::new(path, None).unwrap().open(&part),
            false => Directory::new(path).unwrap().open(&part),
        };
        let stamp = opened.map_err(|error| error.to_string())?.state.identity.unwrap();
        let mut data = vec![0; length.0 as usize];
        LocalDisks.read(&plan.data(), plan.offset().0, &mut data).unwrap();
        Ok((stamp, data))
    };
    let all = plans(folder, size, is_device).into_iter().map(each);
    let all: Vec<_> = all.collect::<Result<_, String>>()?;
    match all.iter().all(|(stamp, _)| *stamp == all[0].0) {
        true => Ok(all),
        false => Err("part 0 and part 1 of volume differ".into()),
    }
}

/// Looks at every crash of `act` upon `before`, and says how many there were.
fn every_crash(
    before: &Path,
    act: impl Fn(&dyn Disk, &Path),
    check: impl Fn(&Path, &str),
) -> usize {
    let folder = tempfile::tempdir().unwrap();
    copy(before, folder.path());
    let recorder = Recorder::default();
    act(&recorder, folder.path());
    let log = recorder.log.into_inner().unwrap();
    let mut state = 7_u64;
    for count in 0..=log.1.len() {
        for variant in 0..6 {
            // None, all, and some of what is not synced.
            let is_kept = |choices: usize| match variant {
                0 => 0,
                1 => choices - 1,
                _ => {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as usize % choices
                }
            };
            let crashed = crashed(before, folder.path(), &log, count, is_kept);
            check(crashed.path(), &format!("after {count} operations, variant {variant}"));
        }
    }
    log.1.len() + 1
}

#[test]
fn a_create_that_is_interrupted_anywhere_is_refused_by_name_or_done_and_can_be_finished() {
    for is_device in [false, true] {
        let before = empty(is_device);
        let points = every_crash(
            before.path(),
            |disk, folder| {
                create_on(disk, &plans(folder, SIZE, is_device), Creation::default()).unwrap();
            },
            |folder, when| {
                if let Err(error) = served(folder, SIZE, is_device) {
                    assert!(error.contains("part ") && error.contains("volume"), "{when}: {error}");
                }
                let plans = plans(folder, SIZE, is_device);
                let stamp = create(&plans, Creation::default());
                let stamp = stamp.unwrap_or_else(|error| panic!("{when}: {error}"));
                let all = served(folder, SIZE, is_device);
                let all = all.unwrap_or_else(|error| panic!("{when}: {error}"));
                let byte = if is_device { 0xee } else { 0 };
                let is_whole = |(found, data): &(VolumeStamp, Vec<u8>)| {
                    *found == stamp && data.iter().all(|found| *found == byte)
                };
                assert!(all.iter().all(is_whole), "{when}");
            },
        );
        assert!(points > 8, "{points} points");
    }
}

/// A volume that was created, with data.
fn written(is_device: bool) -> tempfile::TempDir {
    let folder = empty(is_device);
    let plans = plans(folder.path(), SIZE, is_device);
    create(&plans, Creation::default()).unwrap();
    for plan in plans {
        let data = vec![plan.index as u8 + 1; SIZE as usize / 2];
        LocalDisks.write(&plan.data(), plan.offset().0, &data).unwrap();
    }
    folder
}

fn is_kept(all: &[(VolumeStamp, Vec<u8>)]) -> bool {
    let is_kept = |(index, (_, data)): (u8, &(VolumeStamp, Vec<u8>))| {
        data[..SIZE as usize / 2].iter().all(|byte| *byte == index + 1)
    };
    (0..).zip(all).all(is_kept)
}

#[test]
fn a_resize_that_is_interrupted_anywhere_leaves_the_old_size_or_the_new_one() {
    for is_device in [false, true] {
        let before = written(is_device);
        let points = every_crash(
            before.path(),
            |disk, folder| {
                let plans = plans(folder, SIZE, is_device);
                let stamp = resize_on(disk, &plans, Bytes(2 * SIZE), None).unwrap();
                assert_eq!(stamp.generation, 2);
            },
            |folder, when| {
                let (old, new) =
                    (served(folder, SIZE, is_device), served(folder, 2 * SIZE, is_device));
                assert!(old.is_err() || new.is_err(), "{when}");
                for found in [old, new] {
                    match found {
                        Ok(all) => assert!(is_kept(&all), "{when}"),
                        Err(error) => assert!(error.contains("part "), "{when}: {error}"),
                    }
                }
                let plans = plans(folder, SIZE, is_device);
                resize(&plans, Bytes(2 * SIZE), None)
                    .unwrap_or_else(|error| panic!("{when}: {error}"));
                let all = served(folder, 2 * SIZE, is_device);
                let all = all.unwrap_or_else(|error| panic!("{when}: {error}"));
                assert!(is_kept(&all) && all[0].0.generation == 2, "{when}");
            },
        );
        assert!(points > 4, "{points} points");
    }
}

#[test]
fn an_error_that_is_stored_while_the_machine_crashes_is_there_or_not_and_the_part_is() {
    for is_device in [false, true] {
        let before = written(is_device);
        every_crash(
            before.path(),
            |disk, folder| {
                let plan = &plans(folder, SIZE, is_device)[0];
                for _ in 0..2 {
                    let PartOnDisk { location, label, .. } = found(disk, plan).unwrap();
                    let mut label = label.unwrap();
                    label.error = Some(SyncError { errno: 28, at_seconds: 1 });
                    label.error_count += 1;
                    location.write(disk, &mut label).unwrap();
                }
            },
            |folder, when| {
                let all = served(folder, SIZE, is_device);
                assert!(is_kept(&all.unwrap_or_else(|error| panic!("{when}: {error}"))), "{when}");
                let plans = plans(folder, SIZE, is_device);
                let count = show(&plans)[0].label.as_ref().unwrap().error_count;
                assert_eq!(clear_error(&plans).unwrap() as u64, count.min(1), "{when}");
                assert!(show(&plans).iter().all(|part| part.fault.is_none()), "{when}");
            },
        );
    }
}

#[test]
fn a_part_that_is_gone_or_another_is_named_and_never_made_anew() {
    let names = |folder: &Path, word: &str| {
        let error = served(folder, SIZE, false).unwrap_err();
        assert!(error.contains("part ") && error.contains("db") && error.contains(word), "{error}");
    };
    // A part is moved away, and a folder is not mounted.
    let folder = written(false);
    fs::remove_file(folder.path().join("b/db.1")).unwrap();
    names(folder.path(), "is not in");
    fs::remove_dir_all(folder.path().join("b")).unwrap();
    names(folder.path(), "mounted");
    let plans_here = plans(folder.path(), SIZE, false);
    let error = create(&plans_here, Creation::default()).unwrap_err().to_string();
    assert!(error.contains("missing") && error.contains("--uuid"), "{error}");
    assert!(!folder.path().join("b/db.1").exists());
    // The nodes' folders are swapped.
    let folder = written(false);
    for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
        fs::rename(folder.path().join(from), folder.path().join(to)).unwrap();
    }
    names(folder.path(), "is not in");
    // A file of the same name and size takes its place.
    let folder = written(false);
    let path = folder.path().join("a/db.0");
    let bytes = fs::read(&path).unwrap();
    if LocalDisks.mark(&path).unwrap().is_some() {
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        names(folder.path(), "without the attribute");
        let creation = Creation { adopt: true, ..Creation::default() };
        create(&plans(folder.path(), SIZE, false), creation).unwrap();
        served(folder.path(), SIZE, false).unwrap();
    }
    // The cluster file says another size or stripe.
    assert!(served(folder.path(), 2 * SIZE, false).unwrap_err().contains("tidegate volume resize"));
    let mut other = plans(folder.path(), SIZE, false);
    other.iter_mut().for_each(|plan| plan.geometry.stripe = Bytes(2 * STRIPE));
    assert!(create(&other, Creation::default()).unwrap_err().what.contains("was made for"));
    assert!(show(&other).iter().all(|part| part.fault.is_some()));
}

#[test]
fn what_is_there_without_a_label_is_taken_over_only_on_request() {
    let folder = empty(false);
    for (index, node) in ["a", "b"].iter().enumerate() {
        let data = vec![index as u8 + 1; SIZE as usize / 2];
        fs::write(folder.path().join(node).join(format!("db.{index}")), data).unwrap();
    }
    let plans_here = plans(folder.path(), SIZE, false);
    let error = create(&plans_here, Creation::default()).unwrap_err().to_string();
    assert!(error.contains("--adopt"), "{error}");
    let adopt = Creation { adopt: true, ..Creation::default() };
    let wrong = create(&plans(folder.path(), 2 * SIZE, false), adopt).unwrap_err().to_string();
    assert!(wrong.contains("is to have"), "{wrong}");
    let stamp = create(&plans_here, adopt).unwrap();
    assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
    assert_eq!(create(&plans_here, Creation::default()), Ok(stamp), "it is done");
    assert!(resize(&plans_here, Bytes(SIZE / 2), None).unwrap_err().what.contains("already"));
    let running = Directory::new(&folder.path().join("a")).unwrap();
    assert!(clear_error(&plans_here).unwrap_err().what.contains("a node of this process uses it"));
    drop(running);
    // On a device, the last mebibyte is the labels'.
    let folder = empty(true);
    let mut high = plans(folder.path(), SIZE, true);
    high[0].offset = Bytes(60 << 10);
    let error = create(&high, adopt).unwrap_err().to_string();
    assert!(error.contains("labels begin at 64KiB"), "{error}");
}

#[test]
fn parts_of_one_volume_are_not_taken_for_each_other() {
    let folder = written(false);
    let [a, b] = ["a/db.0", "b/db.1"].map(|name| folder.path().join(name));
    if LocalDisks.mark(&a).unwrap().is_none() {
        eprintln!("skipped: this file system has no attributes");
        return;
    }
    let aside = folder.path().join("aside");
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        fs::rename(from, to).unwrap();
    }
    let error = served(folder.path(), SIZE, false).unwrap_err();
    assert!(error.contains("another part"), "{error}");
    let shown = show(&plans(folder.path(), SIZE, false));
    assert!(shown.iter().all(|part| part.fault.as_deref().unwrap().contains("another part")));
}

#[test]
fn no_volume_is_made_beside_parts_that_lie_in_another_order() {
    let folder = written(false);
    let mut swapped = plans(folder.path(), SIZE, false);
    let [first, second] = [0, 1].map(|index: usize| swapped[index].store.clone());
    (swapped[0].store, swapped[1].store) = (second, first);
    let error = create(&swapped, Creation::default()).unwrap_err().to_string();
    assert!(error.contains("order of `nodes`"), "{error}");
    assert!(!folder.path().join("a/db.1").exists() && !folder.path().join("b/db.0").exists());
    assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
}

#[test]
fn a_lost_label_is_reported_with_the_way_to_make_it_again() {
    let folder = written(false);
    let plans = plans(folder.path(), SIZE, false);
    fs::remove_file(folder.path().join("b/db.1.label")).unwrap();
    let adopt = Creation { adopt: true, ..Creation::default() };
    let error = create(&plans, adopt).unwrap_err().to_string();
    let uuid = show(&plans)[0].label.as_ref().unwrap().identity.stamp.uuid;
    assert!(error.contains(&format!("--adopt --uuid {uuid}")), "{error}");
    create(&plans, Creation { uuid: Some(uuid), ..adopt }).unwrap();
    assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
}

#[test]
fn a_pipe_at_the_path_of_a_part_is_an_error_and_not_waited_for() {
    for name in ["b/db.1", "b/db.1.label"] {
        let folder = written(false);
        let path = folder.path().join(name);
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        served(folder.path(), SIZE, false).unwrap_err();
        assert!(show(&plans(folder.path(), SIZE, false))[1].fault.is_some());
    }
}

#[path = "volumes_mend_tests.rs"]
mod mend;
