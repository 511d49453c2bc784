use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A user who is not trusted: `nobody`.
const OTHER: u32 = 65_534;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Gives a file or a folder to another user; false where only root could, and tests run as another.
fn give_away(path: &Path) -> bool {
    chown(path, Some(OTHER), Some(OTHER)).is_ok()
}

fn refusal(path: &Path) -> String {
    let error = Folder::make(path, Purpose::Private).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    error.to_string()
}

#[test]
fn folders_are_made_for_their_owner_and_files_too() {
    let base = folder();
    let state = base.path().join("a/b");
    let made = Folder::make(&state, Purpose::Private).unwrap();
    assert_eq!((mode(&state), mode(state.parent().unwrap())), (0o700, 0o700));
    made.create("token", b"secret", FILE_MODE).unwrap();
    assert_eq!(mode(&state.join("token")), 0o600);
    assert_eq!(made.read("token", Secrecy::Secret).unwrap(), b"secret");
    let error = made.create("token", b"other", FILE_MODE).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
    made.replace("token", b"newer", FILE_MODE).unwrap();
    assert_eq!(made.read("token", Secrecy::Secret).unwrap(), b"newer");
    drop(made.open_file("lock", Access::Create).unwrap());
    assert_eq!(mode(&state.join("lock")), 0o600);
    assert_eq!(fs::read_dir(&state).unwrap().count(), 2, "nothing begun is left");
    assert_eq!(made.read("none", Secrecy::Open).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_folder_of_another_user_is_refused_wherever_it_is_on_the_way() {
    let base = folder();
    let prepared = base.path().join("prepared");
    fs::create_dir_all(prepared.join("state/deeper")).unwrap();
    if !give_away(&prepared) {
        return;
    }
    for path in ["prepared", "prepared/state", "prepared/state/deeper", "prepared/new"] {
        let refusal = refusal(&base.path().join(path));
        let wanted = format!("{} belongs to nobody (uid 65534)", prepared.display());
        assert!(refusal.contains(&wanted) && refusal.contains("(chown 0 "), "{refusal}");
    }
    assert!(!prepared.join("new").exists());
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let base = folder();
    let open = base.path().join("open");
    fs::create_dir_all(open.join("state")).unwrap();
    for bits in [0o777, 0o702] {
        set_mode(&open, bits);
        let refusal = refusal(&open.join("state"));
        assert!(refusal.contains(&format!("open has mode {bits:04o}")), "{refusal}");
        assert!(refusal.contains("(chmod go-w "), "{refusal}");
    }
    set_mode(&open, 0o755);
    Folder::make(&open.join("state"), Purpose::Private).unwrap();
}

#[test]
fn private_state_lies_in_a_shared_folder_only_below_one_of_ours() {
    let base = folder();
    let shared = base.path().join("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o1777);
    assert!(refusal(&shared).contains("where every user makes files"));
    let open = shared.join("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o1777);
    assert!(refusal(&open.join("state")).contains("open is in "));
    Folder::make(&shared.join("new/state"), Purpose::Private).unwrap();
    assert_eq!(mode(&shared.join("new")), 0o700);
    Folder::open(&shared, Purpose::Public).unwrap();
    let prepared = shared.join("prepared");
    fs::create_dir(&prepared).unwrap();
    if give_away(&prepared) {
        assert!(refusal(&prepared).contains("prepared belongs to nobody (uid 65534)"));
    }
}

#[test]
fn a_file_of_a_daemon_is_never_a_link() {
    let base = folder();
    let precious = base.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    let state = Folder::make(&base.path().join("state"), Purpose::Private).unwrap();
    for target in [precious.as_path(), Path::new("nowhere"), Path::new("/dev/null")] {
        symlink(target, state.path().join("lock")).unwrap();
        for access in [Access::Read, Access::Write, Access::Create] {
            let error = state.open_file("lock", access).unwrap_err().to_string();
            assert!(error.contains("state/lock is a symbolic link"), "{error}");
        }
        fs::remove_file(state.path().join("lock")).unwrap();
    }
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    // A link that is replaced is only a name.
    symlink(&precious, state.path().join("token")).unwrap();
    state.replace("token", b"new", FILE_MODE).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(state.read("token", Secrecy::Secret).unwrap(), b"new");
}

#[test]
fn what_another_user_planted_in_a_file_is_not_read() {
    let base = folder();
    let state = Folder::make(base.path(), Purpose::Private).unwrap();
    let path = base.path().join("token");
    fs::write(&path, "0123").unwrap();
    if give_away(&path) {
        let error = state.read("token", Secrecy::Open).unwrap_err().to_string();
        assert!(error.contains("token belongs to nobody (uid 65534)"), "{error}");
        chown(&path, Some(0), Some(0)).unwrap();
    }
    set_mode(&path, 0o644);
    let error = state.read("token", Secrecy::Secret).unwrap_err().to_string();
    assert!(error.contains("has mode 0644") && error.contains("(chmod 600 "), "{error}");
    assert_eq!(state.read("token", Secrecy::Open).unwrap(), b"0123");
    fs::hard_link(&path, base.path().join("lock")).unwrap();
    let error = state.open_file("lock", Access::Write).unwrap_err().to_string();
    assert!(error.contains("more names than this one"), "{error}");
    fs::create_dir(base.path().join("folder")).unwrap();
    let error = state.read("folder", Secrecy::Open).unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[test]
fn a_file_that_others_can_write_is_refused_unless_its_folder_keeps_them_out() {
    let base = folder();
    let path = base.path().join("store");
    fs::write(&path, "x").unwrap();
    set_mode(&path, 0o666);
    set_mode(base.path(), 0o755);
    let open = Folder::open(base.path(), Purpose::Private).unwrap();
    let error = open.open_file("store", Access::Write).unwrap_err().to_string();
    assert!(error.contains("store has mode 0666") && error.contains("chmod go-w"), "{error}");
    set_mode(base.path(), 0o700);
    let closed = Folder::open(base.path(), Purpose::Private).unwrap();
    drop(closed.open_file("store", Access::Write).unwrap());
    assert_eq!(mode(&path), 0o600, "what earlier releases left open is closed");
}

#[test]
fn a_pipe_does_not_make_a_daemon_wait() {
    let base = folder();
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        base.path().join("token"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    );
    made.unwrap();
    let state = Folder::open(base.path(), Purpose::Private).unwrap();
    let error = state.read("token", Secrecy::Secret).unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[test]
fn links_that_trusted_users_made_are_followed_on_the_way() {
    let base = folder();
    let real = base.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::write(real.join("ca.pem"), "certificate").unwrap();
    symlink("real", base.path().join("link")).unwrap();
    symlink("../real/./ca.pem", real.join("again.pem")).unwrap();
    symlink("loop", base.path().join("loop")).unwrap();
    let found = Folder::make(&base.path().join("link/state"), Purpose::Private).unwrap();
    assert_eq!(found.path(), real.canonicalize().unwrap().join("state"));
    assert_eq!(read(&base.path().join("link/again.pem"), Secrecy::Open).unwrap(), b"certificate");
    let error = read(&base.path().join("loop"), Secrecy::Open).unwrap_err();
    assert!(matches!(&error.problem, TrustProblem::Io(_)), "{error}");
    assert!(read(&real, Secrecy::Open).unwrap_err().to_string().contains("is not a file"));
    let missing = read(&real.join("none"), Secrecy::Open).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    // One of another user, even where that user cannot replace it.
    let planted = base.path().join("planted");
    symlink("real", &planted).unwrap();
    if std::os::unix::fs::lchown(&planted, Some(OTHER), None).is_ok() {
        let error = Folder::make(&planted.join("state"), Purpose::Private).unwrap_err().to_string();
        assert!(error.contains("planted is a link to real"), "{error}");
    }
}

#[test]
fn a_file_that_was_begun_is_gone_unless_it_was_published() {
    let base = folder();
    let state = Folder::open(base.path(), Purpose::Private).unwrap();
    fs::write(base.path().join(".store.new"), "left by a crash").unwrap();
    let begun = state.begin("store", FILE_MODE).unwrap();
    (&begun.file).write_all(b"half").unwrap();
    drop(begun);
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    let begun = state.begin("store", FILE_MODE).unwrap();
    (&begun.file).write_all(b"whole").unwrap();
    begun.publish(true).unwrap();
    assert_eq!(fs::read(base.path().join("store")).unwrap(), b"whole");
    state.rename("store", "aside").unwrap();
    assert!(state.has("aside") && !state.has("store"));
}

#[test]
fn a_name_with_a_slash_leads_nowhere() {
    let base = folder();
    let state = Folder::make(&base.path().join("state"), Purpose::Private).unwrap();
    for name in ["../x", "a/b", "..", ".", "", "/etc/passwd"] {
        let error = state.open_file(name, Access::Create).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
    }
}

/// Another user swaps a folder for a link, again and again. Whatever the walk sees, it never makes
/// or opens anything where the link leads.
#[test]
fn a_link_swapped_in_between_leads_nowhere() {
    let base = folder();
    let (yard, target) = (base.path().join("yard"), base.path().join("target"));
    fs::create_dir(&yard).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("lock"), "precious").unwrap();
    let is_done = AtomicBool::new(false);
    let (mut links, mut folders) = (0, 0);
    if !give_away(&yard) {
        return;
    }
    /// Ends the other user's loop however the test ends.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _done = Done(&is_done);
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                // Made aside, because it is the other user's from the first moment that it is seen.
                let aside = base.path().join("aside");
                let _ = symlink(&target, &aside);
                let _ = std::os::unix::fs::lchown(&aside, Some(OTHER), None);
                let _ = fs::rename(&aside, yard.join("state"));
                let _ = fs::remove_file(yard.join("state"));
                let _ = fs::create_dir(yard.join("state"));
                let _ = fs::remove_dir(yard.join("state"));
            }
        });
        for _ in 0..2_000 {
            let error = Folder::make(&yard.join("state"), Purpose::Private).unwrap_err();
            assert!(matches!(error.problem, TrustProblem::Owner { .. }), "{error}");
        }
        // Where the yard itself is shared, as /tmp is, links and folders are told apart.
        chown(&yard, Some(0), Some(0)).unwrap();
        set_mode(&yard, 0o1777);
        for _ in 0..2_000 {
            match Folder::make(&yard.join("state"), Purpose::Private) {
                Ok(state) => {
                    folders += 1;
                    assert_eq!(state.path(), yard.canonicalize().unwrap().join("state"));
                    // The folder may be gone again by now; then nothing is made.
                    let _ = state.open_file("lock", Access::Create);
                    let _ = unlinkat(&state.fd, "lock", AtFlags::empty());
                }
                Err(_) => links += 1,
            }
        }
    });
    assert!(links + folders == 2_000);
    assert_eq!(fs::read(target.join("lock")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    assert_eq!(fs::metadata(target.join("lock")).unwrap().uid(), 0);
}

#[test]
fn an_access_control_list_is_seen() {
    let base = folder();
    let path = base.path().join("state");
    fs::create_dir(&path).unwrap();
    set_mode(&path, 0o770);
    // Version 2: owner rwx, user 65534 rwx, group ---, mask rwx, others ---.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 7, OTHER),
        (4, 0, u32::MAX),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(bits.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&path, "system.posix_acl_access", &list, flags) {
        // This file system has none.
        Err(Errno::OPNOTSUPP) => {}
        set => {
            set.unwrap();
            assert!(refusal(&path).contains("has mode 0770"));
        }
    }
}

#[test]
fn a_folder_is_made_only_on_request() {
    let base = folder();
    let missing = base.path().join("a/b");
    let error = Folder::open(&missing, Purpose::Private).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    assert!(!base.path().join("a").exists());
}

#[test]
fn a_chain_of_links_has_an_end() {
    let base = folder();
    fs::create_dir(base.path().join("0")).unwrap();
    set_mode(&base.path().join("0"), 0o700);
    for link in 1..=walk::LINKS_MAX + 1 {
        symlink((link - 1).to_string(), base.path().join(link.to_string())).unwrap();
    }
    let open = |links: usize| Folder::open(&base.path().join(links.to_string()), Purpose::Private);
    assert!(open(1).is_ok() && open(walk::LINKS_MAX).is_ok());
    open(walk::LINKS_MAX + 1).unwrap_err();
}

#[test]
fn a_link_with_a_second_name_may_have_been_planted_where_others_write() {
    for (mode, is_followed) in [(0o700, true), (0o1777, false)] {
        let base = folder();
        let (open, ours) = (base.path().join("open"), base.path().join("ours"));
        fs::create_dir(&open).unwrap();
        fs::create_dir(&ours).unwrap();
        set_mode(&ours, 0o700);
        symlink(&ours, open.join("link")).unwrap();
        set_mode(&open, mode);
        Folder::open(&open.join("link"), Purpose::Private).unwrap();
        fs::hard_link(open.join("link"), open.join("planted")).unwrap();
        let planted = Folder::open(&open.join("planted"), Purpose::Private);
        assert_eq!(planted.is_ok(), is_followed, "{mode:o}");
    }
}

#[test]
fn what_earlier_releases_left_open_is_closed_when_it_is_opened() {
    let base = folder();
    set_mode(base.path(), 0o700);
    let state = Folder::open(base.path(), Purpose::Private).unwrap();
    for (before, after) in [(0o644, 0o600), (0o666, 0o600), (0o600, 0o600), (0o700, 0o700)] {
        fs::write(base.path().join("file"), "text").unwrap();
        set_mode(&base.path().join("file"), before);
        drop(state.open_file("file", Access::Write).unwrap());
        assert_eq!(mode(&base.path().join("file")), after, "{before:o}");
    }
}

#[test]
fn a_file_of_ours_is_closed_and_one_of_another_trusted_user_is_left_alone() {
    for (mode, uid, closed) in [
        (0o100_644, 5, Some(0o600)),
        (0o100_777, 5, Some(0o700)),
        (0o100_601, 5, Some(0o600)),
        (0o100_600, 5, None),
        (0o100_700, 5, None),
        (0o100_644, 6, None),
    ] {
        assert_eq!(closed_mode(mode, uid, 5), closed, "{mode:o} of user {uid}");
    }
}

#[test]
fn a_file_that_is_longer_than_any_of_its_kind_is_not_read() {
    const MOST: u64 = 16 << 20;
    let base = folder();
    set_mode(base.path(), 0o700);
    let state = Folder::open(base.path(), Purpose::Private).unwrap();
    let file = fs::File::create(base.path().join("policy")).unwrap();
    file.set_len(MOST).unwrap();
    assert_eq!(state.read("policy", Secrecy::Open).unwrap().len() as u64, MOST);
    file.set_len(MOST + 1).unwrap();
    let error = state.read("policy", Secrecy::Open).unwrap_err();
    assert!(matches!(error.problem, TrustProblem::Length { most: MOST }), "{error}");
}

#[test]
fn a_folder_is_flushed_and_where_that_fails_the_error_is_that_of_the_kernel() {
    let base = folder();
    Folder::make(&base.path().join("state"), Purpose::Private).unwrap().sync().unwrap();
    // A file system that keeps nothing refuses the flush.
    let error = Folder::open(Path::new("/proc"), Purpose::Source).unwrap().sync().unwrap_err();
    assert_eq!(error.path, Path::new("/proc"));
    assert_eq!(io::Error::from(error).raw_os_error(), Some(Errno::INVAL.raw_os_error()));
}

#[test]
fn a_folder_of_a_group_with_members_is_refused() {
    let base = folder();
    let state = base.path().join("state");
    fs::create_dir(&state).unwrap();
    set_mode(&state, 0o770);
    // A group that no file of this machine knows has members, for all that is known here.
    if chown(&state, None, Some(4_000_000_000)).is_ok() {
        assert!(refusal(&state).contains("state has mode 0770"));
    }
}

#[test]
fn a_volume_belongs_to_a_trusted_user_or_to_the_one_whose_folder_it_lies_in() {
    let base = folder();
    let theirs = base.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let (in_ours, in_theirs) = (base.path().join("disk"), theirs.join("disk"));
    let examined = |path: &Path| examine_volume_file(&fs::File::open(path).unwrap(), path);
    for path in [&in_ours, &in_theirs] {
        fs::write(path, "data").unwrap();
        set_mode(path, 0o644);
        examined(path).unwrap();
    }
    // Unlike with a daemon's own files, a private folder excuses nothing.
    set_mode(base.path(), 0o700);
    set_mode(&in_ours, 0o646);
    let error = examined(&in_ours).unwrap_err();
    assert!(
        matches!(error.problem, TrustProblem::Writable { mode: 0o646, is_folder: false }),
        "{error}"
    );
    set_mode(&in_ours, 0o644);
    if !give_away(&theirs) {
        return;
    }
    examined(&in_theirs).unwrap();
    assert!(give_away(&in_theirs) && give_away(&in_ours));
    examined(&in_theirs).unwrap();
    let error = examined(&in_ours).unwrap_err();
    assert!(matches!(error.problem, TrustProblem::Owner { uid: OTHER }), "{error}");
    let own = rustix::process::geteuid().as_raw();
    assert!(owns_folder(own, Path::new("disk")) && !owns_folder(OTHER, Path::new("disk")));
}

#[test]
fn a_disk_may_be_written_by_its_group_and_not_by_everybody() {
    let base = folder();
    let file = fs::File::create(base.path().join("disk")).unwrap();
    let is_accepted = |mode: u32| {
        let mut stat = fstat(&file).unwrap();
        stat.st_mode = mode;
        problem(&file, &stat, |_| true).is_none()
    };
    assert!(is_accepted(0o060_660) && is_accepted(0o060_600));
    assert!(!is_accepted(0o060_662) && !is_accepted(0o060_666));
    assert!(is_accepted(0o100_600) && !is_accepted(0o100_602));
    assert!(!is_accepted(0o020_600), "a terminal is no disk");
}
