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
                true => Device::new(&path, None).err().unwrap().to_string(),
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
fn a_part_that_is_a_link_is_told_with_what_to_do() {
    for name in ["a/db.0", "a/db.0.label"] {
        let folder = written(false);
        let (path, target) = (folder.path().join(name), folder.path().join("target"));
        fs::rename(&path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
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
fn parts_of_two_volumes_are_told_apart_by_show() {
    let (folder, other) = (written(false), written(false));
    for name in ["db.1", "db.1.label"] {
        let (from, to) = (other.path().join("b").join(name), folder.path().join("b").join(name));
        fs::rename(from, to).unwrap();
    }
    let shown = show(&plans(folder.path(), SIZE, false));
    assert!(shown.iter().all(|part| part.fault.as_deref().unwrap().contains("has the UUID ")));
}

#[test]
fn a_damaged_copy_of_a_label_is_told_with_the_command_that_writes_it_anew() {
    // A volume that was only just created has its first copy at 4 KiB, and the last one at 0.
    for (offset, words) in [(4096, "clear-error CLUSTER db"), (0, "create CLUSTER db")] {
        let folder = written(false);
        let plans = plans(folder.path(), SIZE, false);
        Host.write(&folder.path().join("a/db.0.label"), offset + 100, b"damage").unwrap();
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
fn a_file_that_was_cut_off_is_told_as_lost_data_and_not_as_another_size() {
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
