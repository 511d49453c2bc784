//! The users that a daemon trusts as owners of files, and the rights that a mode gives other users.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Stat, getxattr};
use rustix::process::{Gid, Uid, getegid, geteuid};

/// No user: the kernel keeps this number for "unchanged".
const NONE: u32 = u32::MAX;

/// A user who is trusted besides root and the daemon's own.
static TRUSTED: AtomicU32 = AtomicU32::new(NONE);

/// Trusts one more user as the owner of files and folders, in this process: the one who owns the
/// checkout that root works in, for example.
pub fn trust_owner(uid: u32) {
    TRUSTED.store(uid, Ordering::Relaxed);
}

/// The number of a user, who is given by name or by number.
///
/// # Errors
/// If this machine's `/etc/passwd` has no user of that name, in words for people.
pub fn user_number(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_meant = fields.next() == Some(text);
        fields.nth(1)?.parse().ok().filter(|_| is_meant)
    });
    found.ok_or_else(|| format!("/etc/passwd has no user {text:?}; give the user's number"))
}

/// Whether this user may own what the daemon trusts. The owner of `/` decides what every path
/// means; in a user namespace that is often a user without a number of its own.
pub(super) fn is_trusted(uid: u32) -> bool {
    let slash = rustix::fs::stat("/").ok().map(|slash| slash.st_uid);
    is_trusted_among(uid, geteuid().as_raw(), TRUSTED.load(Ordering::Relaxed), slash)
}

/// Whether a user is root, our own, the one that was named, or the owner of `/`.
fn is_trusted_among(uid: u32, own: u32, named: u32, slash: Option<u32>) -> bool {
    uid == 0 || uid == own || uid == named || slash == Some(uid)
}

/// Whether others than the owner may write.
pub(super) fn others_write(fd: BorrowedFd<'_>, stat: &Stat) -> bool {
    is_open_to(stat.st_mode, 0o2, || is_private(stat.st_gid, stat.st_uid) && !has_acl(fd))
}

/// Whether others than the owner may read. A file of root's that is readable for our own group is
/// how packages hand a key to a daemon.
pub(super) fn others_read(fd: BorrowedFd<'_>, stat: &Stat) -> bool {
    let is_handed = is_handed(stat.st_mode, (stat.st_uid, stat.st_gid), (geteuid(), getegid()));
    is_open_to(stat.st_mode, 0o6, || {
        (is_handed || is_private(stat.st_gid, stat.st_uid)) && !has_acl(fd)
    })
}

/// Whether a mode gives one of these bits to all users, or to a group that is not private.
fn is_open_to(mode: u32, bits: u32, is_group_private: impl Fn() -> bool) -> bool {
    mode & bits != 0 || mode & (bits << 3) != 0 && !is_group_private()
}

/// Whether a file is root's, and readable for our own group alone.
fn is_handed(mode: u32, (uid, gid): (u32, u32), (own, group): (Uid, Gid)) -> bool {
    uid == 0 && !own.is_root() && gid == group.as_raw() && mode & 0o027 == 0
}

/// Whether a group is its user's alone, as those are that `useradd` makes. Only what the machine's
/// own files say counts: a group of a directory service is never private.
fn is_private(gid: u32, uid: u32) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    is_private_by(&read("/etc/passwd"), &read("/etc/group"), gid, uid)
}

fn is_private_by(passwd: &str, group: &str, gid: u32, uid: u32) -> bool {
    let users = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((name, fields.nth(1)?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?))
    });
    let mut owner = None;
    for (name, user, primary) in users {
        if user == uid {
            owner = owner.or(Some(name));
        } else if primary == gid {
            return false;
        }
    }
    let Some(owner) = owner else { return false };
    let mut groups = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    groups.any(|fields| match fields[..] {
        [name, _, number, members] => {
            let mut members = members.split(',').filter(|member| !member.is_empty());
            number.parse() == Ok(gid) && name == owner && members.all(|member| member == owner)
        }
        _ => false,
    })
}

/// Whether an access control list says more than the mode; also if that cannot be found out.
fn has_acl(fd: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut bytes = [0_u8; 1];
    let found = getxattr(path, "system.posix_acl_access", &mut bytes[..]);
    !matches!(found, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP))
}

/// A user's name and number, for people.
pub(super) fn name(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    match found {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000:::\nbob:x:1001:1001:::\n\
                          cy:x:1002:1000:::\n";

    #[test]
    fn root_ourselves_the_named_user_and_the_owner_of_everything_are_trusted() {
        let trusted = |uid| is_trusted_among(uid, 1000, 1001, Some(1002));
        assert!([0, 1000, 1001, 1002].into_iter().all(trusted));
        assert!(![1, 999, 1003, u32::MAX].into_iter().any(trusted));
        assert!(!is_trusted_among(1002, 1000, 1001, None), "nobody knows whose `/` is");
    }

    #[test]
    fn a_user_whom_an_operator_names_is_trusted_and_no_other() {
        let (named, other) = (4_000_000_000, 4_000_000_001);
        assert!(!is_trusted(named));
        trust_owner(named);
        assert!(is_trusted(named) && !is_trusted(other) && is_trusted(geteuid().as_raw()));
    }

    #[test]
    fn a_user_is_given_by_name_or_by_number() {
        assert_eq!(user_number("17"), Ok(17));
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        for line in passwd.lines() {
            let fields: Vec<_> = line.split(':').collect();
            assert_eq!(user_number(fields[0]), Ok(fields[2].parse().unwrap()), "{line}");
        }
        let unknown = user_number("no such user").unwrap_err();
        assert!(unknown.contains("no user \"no such user\""), "{unknown}");
    }

    #[test]
    fn a_mode_is_open_to_all_or_to_a_group_that_is_not_private() {
        let (private, shared) = (|| true, || false);
        for (mode, write, read) in [
            (0o600, [false, false], [false, false]),
            (0o640, [false, false], [false, true]),
            (0o660, [false, true], [false, true]),
            (0o604, [false, false], [true, true]),
            (0o602, [true, true], [true, true]),
            (0o666, [true, true], [true, true]),
            (0o711, [false, false], [false, false]),
        ] {
            let open = |bits| [is_open_to(mode, bits, private), is_open_to(mode, bits, shared)];
            assert_eq!((open(0o2), open(0o6)), (write, read), "{mode:o}");
        }
    }

    #[test]
    fn a_file_is_handed_to_us_by_root_for_our_group_to_read() {
        let (me, mine) = (Uid::from_raw(1000), Gid::from_raw(50));
        assert!(is_handed(0o640, (0, 50), (me, mine)) && is_handed(0o440, (0, 50), (me, mine)));
        assert!(!is_handed(0o640, (1, 50), (me, mine)), "not root's");
        assert!(!is_handed(0o640, (0, 51), (me, mine)), "another group's");
        assert!(!is_handed(0o640, (0, 50), (Uid::ROOT, mine)), "root needs no group");
        for mode in [0o660, 0o644, 0o641, 0o642] {
            assert!(!is_handed(mode, (0, 50), (me, mine)), "{mode:o} says more");
        }
    }

    #[test]
    fn a_group_is_private_if_its_user_is_its_only_member() {
        let group = |members: &str| format!("root:x:0:\nann:x:1000:\nbob:x:1001:{members}\n");
        assert!(is_private_by(PASSWD, &group(""), 1001, 1001));
        assert!(is_private_by(PASSWD, &group("bob"), 1001, 1001));
        assert!(is_private_by(PASSWD, &group(""), 0, 0));
        assert!(!is_private_by(PASSWD, &group("bob,ann"), 1001, 1001), "another member");
        assert!(!is_private_by(PASSWD, &group(""), 1000, 1000), "cy's primary group, too");
        assert!(!is_private_by(PASSWD, &group(""), 1001, 1000), "another's group");
        assert!(!is_private_by(PASSWD, "staff:x:1001:\n", 1001, 1001), "another's name");
        assert!(!is_private_by("", "", 1001, 1001), "nothing is known");
    }
}
