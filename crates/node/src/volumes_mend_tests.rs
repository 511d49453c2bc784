//! The advice of errors is followed, and helps.

use super::*;

/// Does what the command says that an error has in brackets. A process of its own would hold the
/// locks of other tests until it has begun.
fn run_hint(error: &str) {
    let begin = error.rfind('(').unwrap() + 1;
    let command = &error[begin..begin + error[begin..].find(')').unwrap()];
    match command.split(' ').collect::<Vec<_>>()[..] {
        ["chmod", "go-w", path] => {
            let mode = fs::metadata(path).unwrap().mode() & !0o022;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        ["chown", owner, path] => {
            std::os::unix::fs::chown(path, Some(owner.parse().unwrap()), None).unwrap();
        }
        ["mv", "-T", from, to] => fs::rename(from, to).unwrap(),
        _ => panic!("{command} is no command"),
    }
}

#[test]
fn a_part_that_other_users_could_change_is_refused_with_the_command_that_mends_it() {
    let is_root = rustix::process::geteuid().is_root();
    for (name, is_device) in [("a/db.0", false), ("a/db.0.label", false), ("a", true)] {
        let folder = written(is_device);
        let path = folder.path().join(name);
        let serve = || served(folder.path(), SIZE, is_device);
        let plans = plans(folder.path(), SIZE, is_device);
        let expect = |word: &str| {
            let shown = show(&plans)[0].fault.clone().unwrap();
            let refused = [
                resize(&plans, Bytes(2 * SIZE), None).unwrap_err().to_string(),
                create(&plans, Creation::default()).unwrap_err().to_string(),
            ];
            // A device is refused as a whole, when its node starts.
            let error = match is_device {
                true => DeviceStore::new(&path, None).err().unwrap().to_string(),
                false => serve().unwrap_err(),
            };
            for error in [&error, &shown, &refused[0], &refused[1]] {
                assert!(error.contains(word), "{error}");
                assert!(error.contains(path.to_str().unwrap()), "{error}");
            }
            run_hint(&error);
            assert!(is_kept(&serve().unwrap()));
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        expect("has mode 0666");
        if is_root {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            expect("belongs to nobody (uid 65534)");
        }
        // An operator may let other users read.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(is_kept(&serve().unwrap()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
    }
}

#[test]
fn a_part_that_is_a_link_is_reported_with_the_remedy() {
    for (name, is_relative) in [("a/db.0", false), ("a/db.0.label", true)] {
        let folder = written(false);
        let (path, target) = (folder.path().join(name), folder.path().join("target"));
        fs::rename(&path, &target).unwrap();
        let target = if is_relative { Path::new("../target") } else { &target };
        std::os::unix::fs::symlink(target, &path).unwrap();
        let plans = plans(folder.path(), SIZE, false);
        let created = create(&plans, Creation::default()).unwrap_err().to_string();
        let shown = show(&plans)[0].fault.clone().unwrap();
        for error in [served(folder.path(), SIZE, false).unwrap_err(), created, shown] {
            assert!(error.contains("is a symbolic link to "), "{error}");
            assert!(error.contains("(mv -T "), "{error}");
        }
        run_hint(&served(folder.path(), SIZE, false).unwrap_err());
        assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
    }
}

/// Does what an error says to run, with a cluster file that says `size`.
fn run_resize(folder: &Path, size: u64, error: &str) -> Bytes {
    let begin = error.find("`tidegate volume resize CLUSTER db ").expect(error) + 35;
    let wanted: Bytes = error[begin..].split('`').next().unwrap().parse().unwrap();
    let stamp = resize(&plans(folder, size, false), wanted, None);
    stamp.unwrap_or_else(|refused| panic!("{error}: {refused}"));
    wanted
}

#[test]
fn every_hint_about_an_interrupted_resize_is_one_command_that_finishes_it() {
    let interrupted = || {
        let folder = written(false);
        resize(&plans(folder.path(), SIZE, false)[..1], Bytes(2 * SIZE), None).unwrap();
        folder
    };
    // Whatever the cluster file says by now, the node, `show`, `create` and `resize` agree.
    for size in [SIZE, 2 * SIZE, 4 * SIZE] {
        let errors = |folder: &Path| {
            let plans = plans(folder, size, false);
            let shown = show(&plans).into_iter().map(|part| part.fault.unwrap());
            let mut errors: Vec<_> = shown.collect();
            errors.push(served(folder, size, false).unwrap_err());
            errors.push(create(&plans, Creation::default()).unwrap_err().to_string());
            errors
        };
        for index in 0..errors(interrupted().path()).len() {
            let folder = interrupted();
            let error = errors(folder.path()).swap_remove(index);
            let finished = run_resize(folder.path(), size, &error);
            assert!(finished == Bytes(2 * SIZE) || size == 4 * SIZE, "{error}");
            let all = served(folder.path(), finished.0, false);
            assert!(is_kept(&all.unwrap_or_else(|refused| panic!("{error}: {refused}"))));
        }
    }
    let folder = interrupted();
    let plans_here = plans(folder.path(), SIZE, false);
    let error = resize(&plans_here, Bytes(SIZE), None).unwrap_err().to_string();
    assert!(error.contains("to 64KiB was interrupted"), "{error}");
    assert_eq!(run_resize(folder.path(), SIZE, &error), Bytes(2 * SIZE));
    // Steps that differ between machines leave generations that differ.
    resize(&plans_here[..1], Bytes(4 * SIZE), None).unwrap();
    resize(&plans_here[1..], Bytes(4 * SIZE), Some(5)).unwrap();
    served(folder.path(), 4 * SIZE, false).unwrap_err();
    let error = resize(&plans_here[..1], Bytes(4 * SIZE), Some(2)).unwrap_err().to_string();
    assert!(error.contains("has generation 3 already"), "{error}");
    resize(&plans_here[..1], Bytes(4 * SIZE), Some(5)).unwrap();
    assert!(is_kept(&served(folder.path(), 4 * SIZE, false).unwrap()));
}

#[test]
fn parts_of_two_volumes_are_distinguished_by_show() {
    let (folder, other) = (written(false), written(false));
    for name in ["db.1", "db.1.label"] {
        let (from, to) = (other.path().join("b").join(name), folder.path().join("b").join(name));
        fs::rename(from, to).unwrap();
    }
    let shown = show(&plans(folder.path(), SIZE, false));
    assert!(shown.iter().all(|part| part.fault.as_deref().unwrap().contains("has the UUID ")));
}

#[test]
fn a_damaged_copy_of_a_label_is_reported_with_the_command_that_rewrites_it() {
    // A volume that was only just created has its first copy at 4 KiB, and the last one at 0.
    for (offset, words) in [(4096, "clear-error CLUSTER db"), (0, "create CLUSTER db")] {
        let folder = written(false);
        let plans = plans(folder.path(), SIZE, false);
        LocalDisks.write(&folder.path().join("a/db.0.label"), offset + 100, b"damage").unwrap();
        let fault = show(&plans)[0].fault.clone().unwrap();
        assert!(fault.contains("one copy is damaged, at ") && fault.contains(words), "{fault}");
        assert!(!fault.contains("not finished"), "{fault}");
        match offset {
            0 => {
                let error = served(folder.path(), SIZE, false).unwrap_err();
                assert!(error.contains("one copy is damaged") && error.contains(words), "{error}");
                create(&plans, Creation::default()).unwrap();
            }
            _ => assert_eq!(clear_error(&plans), Ok(1)),
        }
        assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
        assert!(show(&plans).iter().all(|part| part.fault.is_none()));
    }
}

#[test]
fn a_truncated_file_is_reported_as_lost_data_and_not_as_another_size() {
    let folder = written(false);
    let (path, backup) = (folder.path().join("a/db.0"), folder.path().join("backup"));
    fs::copy(&path, &backup).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let plans = plans(folder.path(), SIZE, false);
    let adopt = Creation { adopt: true, ..Creation::default() };
    let errors = [
        served(folder.path(), SIZE, false).unwrap_err(),
        show(&plans)[0].fault.clone().unwrap(),
        create(&plans, adopt).unwrap_err().to_string(),
        resize(&plans, Bytes(2 * SIZE), None).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(
            error.contains("lost data: ") && error.contains("has 4KiB of the 16KiB"),
            "{error}"
        );
        assert!(error.contains("restore it from a backup (then run `tidegate volume create CL"));
        assert!(!error.contains("resize"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    fs::copy(&backup, &path).unwrap();
    create(&plans, adopt).unwrap();
    assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
}

/// Two volumes of one size in the same folders, each with its own data.
fn two_volumes() -> (tempfile::TempDir, [Vec<PartPlan>; 2]) {
    let folder = written(false);
    let db = plans(folder.path(), SIZE, false);
    let log = db.iter().map(|plan| PartPlan { volume: "log".into(), ..plan.clone() });
    let log: Vec<_> = log.collect();
    create(&log, Creation::default()).unwrap();
    (folder, [db, log])
}

fn exchange(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    for (from, to) in [(one, &*aside), (other, one), (&*aside, other)] {
        fs::rename(from, to).unwrap();
    }
}

#[test]
fn data_of_another_volume_are_named_and_never_taken_over() {
    let (folder, [db, log]) = two_volumes();
    let [own, other] = ["a/db.0", "a/log.0"].map(|name| folder.path().join(name));
    if LocalDisks.mark(&own).unwrap().is_none() {
        eprintln!("skipped: this file system has no attributes");
        return;
    }
    exchange(&own, &other);
    let adopt = Creation { adopt: true, ..Creation::default() };
    let errors = [
        served(folder.path(), SIZE, false).unwrap_err(),
        show(&db)[0].fault.clone().unwrap(),
        create(&db, adopt).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("has the data of part 0 of volume log"), "{error}");
        assert!(error.contains(&format!("this one belongs at {}", other.display())), "{error}");
        assert!(!error.contains("--adopt"), "{error}");
    }
    assert!(create(&log, adopt).is_err());
    // Also where the label is lost, and the data could be an old volume's.
    fs::remove_file(folder.path().join("a/db.0.label")).unwrap();
    let uuid = show(&db)[1].label.as_ref().map(|label| label.identity.stamp.uuid);
    let error = create(&db, Creation { uuid, ..adopt }).unwrap_err().to_string();
    assert!(error.contains("has the data of part 0 of volume log"), "{error}");
    exchange(&own, &other);
    create(&db, Creation { uuid, ..adopt }).unwrap();
    assert!(is_kept(&served(folder.path(), SIZE, false).unwrap()));
}

#[test]
fn parts_that_were_exchanged_with_their_labels_are_named_by_every_command() {
    let (folder, [db, _]) = two_volumes();
    for name in ["0", "0.label"] {
        let [own, other] =
            ["db", "log"].map(|volume| folder.path().join(format!("a/{volume}.{name}")));
        exchange(&own, &other);
    }
    let errors = [
        served(folder.path(), SIZE, false).unwrap_err(),
        show(&db)[0].fault.clone().unwrap(),
        create(&db, Creation::default()).unwrap_err().to_string(),
        resize(&db, Bytes(2 * SIZE), None).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("the label says part 0 of volume \"log\""), "{error}");
        assert!(!error.contains("resize"), "{error}");
    }
}

#[test]
fn data_are_seen_where_their_label_is_lost() {
    let folder = written(false);
    fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("a/db.0.label"))
        .unwrap()
        .set_len(0)
        .unwrap();
    fs::remove_file(folder.path().join("b/db.1.label")).unwrap();
    for report in show(&plans(folder.path(), SIZE, false)) {
        assert!(report.is_unmade && report.has_data, "{report:?}");
        assert!(report.fault.unwrap().contains("--adopt"));
    }
}

#[test]
fn a_volume_does_not_grow_over_another_one_or_over_the_end_of_its_device() {
    let folder = written(true);
    let plans = plans(folder.path(), SIZE, true);
    let next = |plan: &PartPlan| PartPlan {
        volume: "next".into(),
        index: 0,
        offset: Bytes(4096 + SIZE),
        geometry: Geometry { count: 1, size: Bytes(4096), ..plan.geometry },
        ..plan.clone()
    };
    create(&[next(&plans[0])], Creation::default()).unwrap();
    let error = resize(&plans, Bytes(3 * SIZE), None).unwrap_err().to_string();
    assert!(error.contains("part 0 of volume db at node a would overlap part 0 of volume next"));
    let error = resize(&plans, Bytes(1 << 20), None).unwrap_err().to_string();
    assert!(error.contains("whose labels begin at 64KiB"), "{error}");
    assert!(is_kept(&served(folder.path(), SIZE, true).unwrap()), "nothing was changed");
    resize(&plans, Bytes(2 * SIZE), None).unwrap();
    assert!(is_kept(&served(folder.path(), 2 * SIZE, true).unwrap()));
}

#[test]
fn a_generation_that_was_mistyped_is_refused() {
    let folder = written(false);
    let plans = plans(folder.path(), SIZE, false);
    for generation in [u64::MAX, 2_000, 0] {
        let error = resize(&plans, Bytes(2 * SIZE), Some(generation)).unwrap_err().to_string();
        assert!(error.contains("name a generation from 2 to 1002"), "{error}");
    }
    assert_eq!(resize(&plans, Bytes(2 * SIZE), Some(1_002)).unwrap().generation, 1_002);
}

#[test]
fn space_is_reserved_for_volumes_that_are_there_too() {
    let folder = written(false);
    let path = folder.path().join("a/db.0");
    fs::write(&path, []).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    let reserve = Creation { reserve: true, ..Creation::default() };
    create(&plans(folder.path(), SIZE, false), reserve).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, SIZE / 2);
}
