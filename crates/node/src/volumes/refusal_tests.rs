//! Reasons not to create, grow or serve a volume: each is refused by name, and nothing is changed.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;

use super::*;

const SIZE: u64 = 65_536;

/// The only part of a volume, in a directory `a`, or on a device of this name.
fn plan(folder: &Path, volume: &str, is_device: bool) -> PartPlan {
    let path = folder.join("a");
    let store = match is_device {
        true => PartStore::Device(path, None),
        false => PartStore::Directory(path),
    };
    let (node, volume, offset) = ("n1".into(), volume.into(), Bytes::ZERO);
    let geometry = Geometry::single(Bytes(SIZE));
    PartPlan { node, store, volume, index: 0, offset, geometry, fallback: None }
}

fn directory() -> (tempfile::TempDir, PartPlan) {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "db", false);
    fs::create_dir(folder.path().join("a")).unwrap();
    (folder, plan)
}

fn device() -> (tempfile::TempDir, PartPlan) {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "db", true);
    fs::File::create(folder.path().join("a")).unwrap().set_len(3 << 20).unwrap();
    (folder, plan)
}

fn made(plan: &PartPlan) -> VolumeStamp {
    create(std::slice::from_ref(plan), Creation::default()).unwrap()
}

fn refusal(plan: &PartPlan, creation: Creation) -> String {
    create(std::slice::from_ref(plan), creation).unwrap_err().to_string()
}

const ADOPT: Creation = Creation { adopt: true, uuid: None, reserve: false };

#[test]
fn a_volume_has_a_random_uuid_of_version_four_or_the_one_that_is_given() {
    let uuids = [(); 8].map(|()| made(&directory().1).uuid);
    for (at, uuid) in uuids.iter().enumerate() {
        assert!(uuid.0[6] >> 4 == 4 && uuid.0[8] >> 6 == 2, "{uuid}");
        assert!(!uuids[..at].contains(uuid));
    }
    // Not the same bits in all of them, but for those six.
    let union = |and: fn(u8, u8) -> u8| {
        uuids
            .iter()
            .map(|uuid| uuid.0)
            .reduce(|one, other| std::array::from_fn(|at| and(one[at], other[at])))
    };
    let (all, any) = (union(|one, other| one & other), union(|one, other| one | other));
    let fixed: u32 =
        all.unwrap().iter().zip(any.unwrap()).map(|(a, b)| (!(a ^ b)).count_ones()).sum();
    assert!(fixed < 6 + 20, "{fixed} of 128 bits are the same in eight UUIDs");
    let (_folder, plan) = directory();
    let uuid = Some(Uuid([0x11; 16]));
    let stamp = create(std::slice::from_ref(&plan), Creation { uuid, ..Creation::default() });
    assert_eq!(stamp, Ok(VolumeStamp { uuid: Uuid([0x11; 16]), generation: 1 }));
    let other = Creation { uuid: Some(Uuid([0x22; 16])), ..Creation::default() };
    assert!(refusal(&plan, other).contains("has the UUID 11111111-"));
    assert_eq!(create(&[plan], Creation { uuid, ..Creation::default() }), stamp, "it is done");
}

#[test]
fn a_label_of_another_part_is_refused_whichever_field_differs() {
    for (folder, plan) in [directory(), device()] {
        made(&plan);
        let PartOnDisk { location, label, .. } = found(&LocalDisks, &plan).unwrap();
        let label = label.unwrap();
        let changes: [&dyn Fn(&mut PartIdentity); 6] = [
            &|it| it.volume = "other".into(),
            &|it| (it.index, it.geometry.count) = (1, 2),
            &|it| it.geometry.count = 2,
            &|it| it.geometry.stripe = Bytes(4096),
            &|it| it.offset = Bytes(4096),
            &|it| it.geometry.size = Bytes(2 * SIZE),
        ];
        let is_device = matches!(plan.store, PartStore::Device(..));
        // On a device, a slot with another name is another part's, and this one is not there.
        for (at, change) in changes.iter().enumerate().skip(if is_device { 2 } else { 0 }) {
            let mut other = label.clone();
            change(&mut other.identity);
            location.write(&LocalDisks, &mut other).unwrap();
            let is_named_otherwise = at < 2;
            let wanted_message = if is_named_otherwise {
                "is not here: the label says part "
            } else {
                "was made for"
            };
            let wanted_message = format!("part 0 of volume db at node n1 {wanted_message}");
            let shown = show(std::slice::from_ref(&plan))[0].fault.clone().unwrap();
            assert!(shown.contains(&wanted_message), "change {at}: {shown}");
            for creation in [Creation::default(), ADOPT] {
                let error = refusal(&plan, creation);
                assert!(
                    error.contains(&wanted_message) || error.contains("overlap"),
                    "change {at}: {error}"
                );
            }
            if at < 5 {
                let error = resize(std::slice::from_ref(&plan), Bytes(4 * SIZE), None).unwrap_err();
                let wanted_message = if is_named_otherwise {
                    &wanted_message
                } else {
                    "not there as it was created"
                };
                assert!(error.what.contains(wanted_message), "{at}: {error}");
            }
        }
        drop(folder);
    }
}

#[test]
fn data_of_another_length_are_not_taken_over() {
    for (length, is_taken) in [(SIZE - 1, false), (SIZE, true), (SIZE + 1, false)] {
        let (folder, plan) = directory();
        fs::write(folder.path().join("a/db.0"), vec![7; length as usize]).unwrap();
        match is_taken {
            true => _ = create(&[plan], ADOPT).unwrap(),
            false => assert!(refusal(&plan, ADOPT).contains("is to have 64KiB"), "{length}"),
        }
        assert_eq!(fs::read(folder.path().join("a/db.0")).unwrap(), vec![7; length as usize]);
    }
}

#[test]
fn a_volume_whose_data_are_gone_is_not_made_anew() {
    let (folder, plan) = directory();
    made(&plan);
    fs::remove_file(folder.path().join("a/db.0")).unwrap();
    for creation in [Creation::default(), ADOPT] {
        assert!(refusal(&plan, creation).contains("the data of part 0 of volume db"));
    }
    let error = resize(std::slice::from_ref(&plan), Bytes(2 * SIZE), None).unwrap_err();
    assert!(error.what.contains("lacks its data"), "{error:?}");
    assert!(!folder.path().join("a/db.0").exists());
}

#[test]
fn truncated_data_are_reported_and_longer_ones_are_no_fault() {
    let (folder, plan) = directory();
    made(&plan);
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("a/db.0")).unwrap();
    for (length, is_fault) in [(SIZE - 1, true), (SIZE, false), (SIZE + 4096, false)] {
        file.set_len(length).unwrap();
        let fault = show(std::slice::from_ref(&plan))[0].fault.clone();
        let is_reported = fault.as_ref().is_some_and(|fault| fault.contains("lost data"));
        assert_eq!(is_reported, is_fault, "{fault:?}");
    }
}

#[test]
fn a_file_at_the_path_of_a_part_is_not_replaced() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let (folder, plan) = directory();
    let path = folder.path().join("a/db.0");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for creation in [Creation::default(), ADOPT] {
        assert!(refusal(&plan, creation).contains("a/db.0"));
    }
    assert!(!fs::metadata(&path).unwrap().is_file());
}

#[test]
fn only_create_makes_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), "db", false);
    resize(std::slice::from_ref(&plan), Bytes(2 * SIZE), None).unwrap_err();
    clear_error(std::slice::from_ref(&plan)).unwrap_err();
    assert!(show(std::slice::from_ref(&plan))[0].fault.is_some());
    assert!(!folder.path().join("a").exists());
    made(&plan);
    assert!(folder.path().join("a/db.0").is_file());
}

#[test]
fn parts_of_one_device_are_beside_each_other() {
    let (_folder, first) = device();
    let other = |volume: &str, index: u32, offset: u64| PartPlan {
        volume: volume.into(),
        index,
        offset: Bytes(offset),
        geometry: Geometry { count: 2, stripe: Bytes(4096), size: Bytes(2 * SIZE) },
        ..first.clone()
    };
    let middle = other("db", 0, 4 * SIZE);
    made(&middle);
    made(&middle);
    for (volume, index) in [("other", 0), ("db", 1), ("other", 1)] {
        for offset in [4 * SIZE, 4 * SIZE - 4096, 5 * SIZE - 4096] {
            let error = refusal(&other(volume, index, offset), Creation::default());
            assert!(error.contains("would overlap part 0 of volume db"), "{error}");
        }
    }
    made(&other("before", 0, 3 * SIZE));
    made(&other("after", 0, 5 * SIZE));
    // Up to where the labels begin, and no further.
    let end = (3 << 20) - (1 << 20) - SIZE;
    assert!(refusal(&other("last", 0, end + 4096), Creation::default()).contains("labels begin"));
    made(&other("last", 0, end));
}

#[test]
fn adopted_data_bear_the_mark_and_the_label_records_it() {
    let (folder, plan) = directory();
    made(&plan);
    let path = folder.path().join("a/db.0");
    if LocalDisks.mark(&path).unwrap().is_none() {
        eprintln!("skipped: this file system has no attributes");
        return;
    }
    let label = || found(&LocalDisks, &plan).unwrap().label.unwrap();
    let created = label();
    assert!(created.is_marked && created.fits_mark(LocalDisks.mark(&path).unwrap()));
    create(std::slice::from_ref(&plan), ADOPT).unwrap();
    assert_eq!(label(), created, "nothing was to be done");
    // As if it had been made where there are no attributes.
    let PartOnDisk { location, .. } = found(&LocalDisks, &plan).unwrap();
    location.write(&LocalDisks, &mut Label { is_marked: false, ..created }).unwrap();
    create(std::slice::from_ref(&plan), ADOPT).unwrap();
    assert!(label().is_marked);
}

#[test]
fn an_error_with_its_place_and_remedy_is_reported_once() {
    let path = Path::new("/store/db.0");
    let plain = failed(path, &"no space left");
    assert_eq!(plain.to_string(), "/store/db.0: no space left; mend that and do it again");
    let whole = failed(path, &"/store/db.0 is a link; remove it");
    assert_eq!((whole.what.as_str(), whole.help.as_str()), ("/store/db.0 is a link", "remove it"));
    let elsewhere = failed(path, &"something else; remove it");
    assert!(elsewhere.what.starts_with("/store/db.0: something else; "), "{elsewhere}");
}

/// A disk that cannot read this file, nor say how long it is.
struct Unreadable(PathBuf, rustix::io::Errno);

impl Unreadable {
    fn at(&self, path: &Path) -> io::Result<LocalDisks> {
        match path == self.0 {
            true => Err(self.1.into()),
            false => Ok(LocalDisks),
        }
    }
}

impl Disk for Unreadable {
    fn length(&self, path: &Path) -> io::Result<u64> {
        self.at(path)?.length(path)
    }
    fn read(&self, path: &Path, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.at(path)?.read(path, offset, bytes)
    }
    fn create(&self, path: &Path) -> io::Result<()> {
        LocalDisks.create(path)
    }
    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        LocalDisks.write(path, offset, bytes)
    }
    fn grow(&self, path: &Path, length: u64, reserve: bool) -> io::Result<()> {
        LocalDisks.grow(path, length, reserve)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        LocalDisks.sync(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        LocalDisks.rename(from, to)
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        LocalDisks.sync_folder(path)
    }
    fn mark(&self, path: &Path) -> io::Result<Option<Uuid>> {
        LocalDisks.mark(path)
    }
    fn set_mark(&self, path: &Path, uuid: Uuid) -> io::Result<bool> {
        LocalDisks.set_mark(path, uuid)
    }
}

#[test]
fn what_cannot_be_read_is_an_error_and_not_taken_for_missing() {
    let (folder, plan) = directory();
    let stamp = made(&plan);
    let data = plan.data();
    let label =
        LabelLocation::in_directory(data.parent().unwrap(), &plan.volume, plan.index, None).path;
    let files = || fs::read_dir(data.parent().unwrap()).unwrap().count();
    let before = files();
    for path in [&data, &label] {
        let disk = Unreadable(path.clone(), rustix::io::Errno::IO);
        let error = found(&disk, &plan).map(drop).unwrap_err().to_string();
        assert!(error.contains("Input/output error"), "{error}");
        let again = create_on(&disk, std::slice::from_ref(&plan), ADOPT).unwrap_err().to_string();
        assert!(again.contains("Input/output error"), "{again}");
    }
    let disk = Unreadable(data.clone(), rustix::io::Errno::IO);
    let made = make_data(&disk, data.parent().unwrap(), (&plan, stamp), false).unwrap_err();
    assert_eq!(made.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(files(), before, "nothing was made in its place");
    drop(folder);
}

/// A label that only another user may read is whole: the advice is not to replace it.
#[test]
fn a_label_that_this_user_may_not_read_is_no_damage() {
    let (folder, plan) = directory();
    made(&plan);
    let data = plan.data();
    let label =
        LabelLocation::in_directory(data.parent().unwrap(), &plan.volume, plan.index, None).path;
    let disk = Unreadable(label.clone(), rustix::io::Errno::ACCESS);
    let error = found(&disk, &plan).map(drop).unwrap_err();
    assert_eq!(error.help, "run the command as root or as the user that runs the node");
    let disk = Unreadable(label, rustix::io::Errno::IO);
    let error = found(&disk, &plan).map(drop).unwrap_err();
    assert!(error.help.starts_with("restore it from a backup"), "{error}");
    drop(folder);
}
