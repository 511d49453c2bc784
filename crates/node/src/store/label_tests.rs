//! A part is served if its label is the one that is wanted, in every field; and a label is found,
//! or told to be damaged, whatever else lies where it stands.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;

use tidegate_fabric::service::Part;
use tidegate_model::cluster::{Geometry, PartIdentity, SyncError, Uuid, VolumeStamp};

use super::super::OpenError;
use super::super::disk::{Disk, LocalDisks};
use super::super::labelled::{describe, fits};
use super::*;

fn part() -> Part {
    let geometry = Geometry { count: 3, stripe: Bytes(65_536), size: Bytes(6 << 20) };
    let (length, offset) = (geometry.part_length(1), Bytes(4096));
    Part { volume: "db".into(), index: 1, length, offset, geometry }
}

fn label() -> Label {
    let Part { volume, index, offset, geometry, .. } = part();
    let stamp = VolumeStamp { uuid: Uuid(*b"0123456789abcdef"), generation: 1 };
    Label::new(PartIdentity { volume, index, offset, geometry, stamp })
}

/// A device of so many bytes, and where its labels begin.
fn device(length: u64) -> (tempfile::TempDir, Area) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    fs::File::create(&path).unwrap().set_len(length).unwrap();
    let area = Area::of(&path, Bytes(length)).unwrap();
    (folder, area)
}

#[test]
fn a_label_fits_its_part_and_no_other() {
    assert!(fits(&label(), &part()).is_ok());
    let refused = |change: &dyn Fn(&mut Label), word: &str| {
        let mut other = label();
        change(&mut other);
        let error = fits(&other, &part()).unwrap_err().to_string();
        assert!(error.contains("part 1 of volume \"db\"") && error.contains(word), "{error}");
    };
    refused(&|it| it.identity.volume = "other".into(), "the label says part 1 of volume \"other\"");
    refused(&|it| it.identity.index = 2, "the label says part 2 of volume \"db\"");
    refused(&|it| it.identity.geometry.count = 2, "in 2 parts");
    refused(&|it| it.identity.geometry.stripe = Bytes(4096), "stripes of 4KiB");
    refused(
        &|it| it.identity.geometry.size = Bytes(3 << 20),
        "`tidegate volume resize CLUSTER db 6MiB`",
    );
    refused(&|it| it.identity.offset = Bytes(8192), "begins at 8KiB of the device");
}

#[test]
fn the_labels_of_a_device_are_its_last_whole_mebibyte() {
    let begin = |usable: u64| Area::of(Path::new("x"), Bytes(usable)).map(|area| area.begin);
    assert_eq!(begin(AREA + 4096).unwrap(), 4096);
    assert_eq!(begin(AREA + 8191).unwrap(), 4096, "blocks are whole");
    assert_eq!(begin(10 * AREA).unwrap(), 9 * AREA);
    for too_few in [0, AREA - 1, AREA, AREA + 4095] {
        assert!(begin(too_few).unwrap_err().to_string().contains("too few"), "{too_few}");
    }
    let (_folder, area) = device(AREA + 65_536);
    let labels = area.read(&LocalDisks).unwrap();
    assert_eq!(labels.len(), 128);
    for (slot, (location, label)) in (0..).zip(&labels) {
        assert_eq!((location.offset, label), (65_536 + slot * 8192, &None));
    }
}

#[test]
fn a_label_is_written_beside_its_older_copy_and_touches_no_neighbour() {
    let (folder, area) = device(AREA + 65_536);
    let slots = [4, 5].map(|slot| area.location(slot));
    for (location, index) in slots.iter().zip(0..) {
        let mut label = label();
        label.identity.index = index;
        location.make(&LocalDisks, &label).unwrap();
        for sequence in 2..5 {
            location.write(&LocalDisks, &mut label).unwrap();
            assert_eq!(label.sequence, sequence);
            assert_eq!(location.read(&LocalDisks).unwrap(), Some(label.clone()));
        }
        // Copies alternate: an even number is in the first block, and an odd one in the second.
        let bytes = fs::read(folder.path().join("device")).unwrap();
        let copy = |block: u64| {
            let at = (location.offset + block * 4096) as usize;
            Label::parse(bytes[at..at + Label::LENGTH].try_into().unwrap()).unwrap().sequence
        };
        assert_eq!([copy(0), copy(1)], [4, 3]);
    }
    let found = area.read(&LocalDisks).unwrap();
    let indices = found.iter().filter_map(|(_, label)| Some(label.as_ref()?.identity.index));
    assert_eq!(indices.collect::<Vec<_>>(), [0, 1]);
    let bytes = fs::read(folder.path().join("device")).unwrap();
    let used = |range: std::ops::Range<usize>| bytes[range].iter().any(|byte| *byte != 0);
    assert!(!used(0..65_536 + 4 * 8192) && !used(65_536 + 6 * 8192..bytes.len()));
}

#[test]
fn what_is_no_label_is_none_and_what_was_one_is_damaged() {
    let (clear, whole) = ([0; Label::LENGTH], label().to_bytes());
    let foreign = [0xee; Label::LENGTH];
    let (mut damaged, mut later) = (whole, whole);
    damaged[100] ^= 1;
    later[8] = 2;
    let found = |first: [u8; Label::LENGTH], second: [u8; Label::LENGTH]| {
        let mut bytes = vec![0; SLOT as usize];
        bytes[..Label::LENGTH].copy_from_slice(&first);
        bytes[BLOCK as usize..][..Label::LENGTH].copy_from_slice(&second);
        match parse(&bytes) {
            Ok(label) => Ok(label.is_some()),
            Err(LabelAccessError::Label(error)) => Err(error),
            Err(LabelAccessError::Io(error)) => panic!("{error}"),
        }
    };
    let both = |one: [u8; Label::LENGTH], other: [u8; Label::LENGTH]| {
        assert_eq!(found(one, other), found(other, one), "the order of copies is no matter");
        found(one, other)
    };
    for beside in [clear, foreign, damaged, later] {
        assert_eq!(both(whole, beside), Ok(true), "one whole copy is enough");
    }
    assert_eq!([both(clear, clear), both(clear, foreign), both(foreign, foreign)], [Ok(false); 3]);
    assert_eq!(both(clear, damaged), Ok(false), "a first label that was only begun");
    assert_eq!(both(foreign, damaged), Err(LabelError::Damaged));
    assert_eq!(both(damaged, damaged), Err(LabelError::Damaged));
    assert_eq!(both(clear, later), Err(LabelError::Version(2)));
    assert_eq!(LabelAccessError::Label(LabelError::Absent).to_string(), "there is no label");
}

#[test]
fn a_label_in_a_directory_has_its_name_once_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let location = LabelLocation::in_directory(folder.path(), "db", 1, None);
    assert_eq!(location.read(&LocalDisks).unwrap(), None);
    // The rest of an interrupted attempt does no harm.
    fs::write(folder.path().join(".db.1.label.new"), "half").unwrap();
    location.make(&LocalDisks, &label()).unwrap();
    assert_eq!(location.read(&LocalDisks).unwrap(), Some(label()));
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["db.1.label"]);
    fs::write(folder.path().join("db.1.label"), "short").unwrap();
    assert_eq!(
        location.read(&LocalDisks).unwrap(),
        None,
        "what is cut off at its beginning is no label"
    );
}

/// A machine of which one folder takes no writes, as a file system that has met an error.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn at(&self, path: &Path) -> io::Result<LocalDisks> {
        match path.starts_with(&self.0) {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(LocalDisks),
        }
    }
}

impl Disk for ReadOnly {
    fn length(&self, path: &Path) -> io::Result<u64> {
        LocalDisks.length(path)
    }
    fn read(&self, path: &Path, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        LocalDisks.read(path, offset, bytes)
    }
    fn create(&self, path: &Path) -> io::Result<()> {
        self.at(path)?.create(path)
    }
    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.at(path)?.write(path, offset, bytes)
    }
    fn grow(&self, path: &Path, length: u64, reserve: bool) -> io::Result<()> {
        self.at(path)?.grow(path, length, reserve)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.at(path)?.sync(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.at(to)?.rename(from, to)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.at(path)?.sync_folder(path)
    }
    fn mark(&self, path: &Path) -> io::Result<Option<Uuid>> {
        LocalDisks.mark(path)
    }
    fn set_mark(&self, path: &Path, uuid: Uuid) -> io::Result<bool> {
        self.at(path)?.set_mark(path, uuid)
    }
}

#[test]
fn an_error_is_stored_though_the_file_system_takes_no_more_writes() {
    let folder = tempfile::tempdir().unwrap();
    let [parts, fallback] = ["parts", "labels"].map(|name| folder.path().join(name));
    fs::create_dir(&parts).unwrap();
    let broken = ReadOnly(parts.clone());
    let location = LabelLocation::in_directory(&parts, "db", 1, Some(&fallback));
    location.make(&LocalDisks, &label()).unwrap();
    let mut latest = label();
    let error = SyncError { errno: libc::EIO, at_seconds: 7 };
    latest.error = Some(error);
    let nowhere = LabelLocation::in_directory(&parts, "db", 1, None);
    assert!(nowhere.write(&broken, &mut latest.clone()).is_err(), "there is no other place");
    location.write(&broken, &mut latest).unwrap();
    // A later process reads the error, and clears it once the part can be written again.
    let mut found = location.read(&LocalDisks).unwrap().unwrap();
    assert_eq!((&found, found.error), (&latest, Some(error)));
    found.error = None;
    location.write(&LocalDisks, &mut found).unwrap();
    for location in [&location, &nowhere] {
        assert_eq!(location.read(&LocalDisks).unwrap().as_ref(), Some(&found));
    }
    // Another volume of this name has nothing to do with it.
    let mut other = label();
    other.identity.stamp.uuid = Uuid([7; 16]);
    location.write(&broken, &mut latest).unwrap();
    fs::remove_file(parts.join("db.1.label")).unwrap();
    location.make(&LocalDisks, &other).unwrap();
    assert_eq!(location.read(&LocalDisks).unwrap(), Some(other));
}

#[test]
fn errors_name_the_part_and_what_to_do() {
    let what = || String::from("part 1 of volume \"db\"");
    let (found, wanted) = (Bytes(4096), Bytes(8192));
    for (error, word) in [
        (OpenError::Name("a/b".into()), "\"a/b\" can be no volume's name"),
        (OpenError::WrongSize { what: what(), found, wanted }, "has 4KiB and is to have 8KiB"),
        (OpenError::Moved { what: what(), found, wanted }, "begins at 4KiB"),
        (OpenError::Overlap { what: what(), other: "part 0".into() }, "would overlap part 0"),
        (OpenError::Full { what: what(), end: wanted, capacity: found }, "there is room for 4KiB"),
    ] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_copy_lies_in_another_folder_or_nowhere() {
    let (folder, other) = (Path::new("/store"), Path::new("/state"));
    let copy = |fallback| LabelLocation::in_directory(folder, "db", 1, fallback).fallback;
    assert_eq!(copy(Some(other)), Some("/state/db.1.label".into()));
    assert_eq!((copy(Some(folder)), copy(None)), (None, None), "the label is no copy of itself");
}

#[test]
fn a_stored_error_names_its_time_its_cause_and_the_remedy() {
    let errno = rustix::io::Errno::NOSPC.raw_os_error();
    let error = SyncError { errno, at_seconds: 1_709_210_096 };
    let message = describe(error, "/store/db.1.label");
    assert!(
        message.starts_with("a sync failed at 2024-02-29T12:34:56Z: No space left"),
        "{message}"
    );
    assert!(
        message.contains("check /store/db.1.label") && message.contains("clear-error"),
        "{message}"
    );
}
