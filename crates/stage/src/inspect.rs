//! Inspection of a program file before its start: whether the loader will put the shim into it.
//!
//! The loader puts the shim into programs that are dynamically linked with glibc and gain no rights
//! over the process that starts them. The first bytes of the file and its mode show this. Nothing
//! here allocates, and a child of `vfork` may call it.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::bypass::Bypass;
use crate::scratch;

/// Result of the inspection of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The shim will be in it.
    Covered,
    /// It is a script, and the shim will be in its interpreter.
    Script,
    /// The shim will not be in it, or the program will not go through it, for this reason.
    Not(Bypass),
}

/// Returns the verdict on the program at `path`. For a script, its interpreter is inspected.
///
/// # Errors
/// If the file is not there, is no program, or cannot be read.
///
/// ```
/// use tidegate_stage::inspect::{Verdict, program};
/// assert_eq!(program(c"/nowhere"), Err(rustix::io::Errno::NOENT));
/// ```
pub fn program(path: &CStr) -> Result<Verdict, Errno> {
    program_at(CWD, path)
}

/// Returns the verdict on the program at `path`, which begins at `folder` if it is relative.
///
/// # Errors
/// As [`program`].
pub fn program_at(folder: BorrowedFd<'_>, path: &CStr) -> Result<Verdict, Errno> {
    let file = match rustix::fs::openat(folder, path, FLAGS, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ACCESS) if may_run(folder, path) => {
            return Ok(Verdict::Not(Bypass::Unreadable));
        }
        Err(error) => return Err(error),
    };
    // The loader itself has no loader. It may be called with a program, and then takes the shim.
    if is_loader(path.to_bytes()) {
        return Ok(Verdict::Covered);
    }
    inspect(file.as_fd(), SCRIPTS_MAX)
}

/// How a program is opened to be inspected.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// How many interpreters the kernel follows that are scripts themselves.
const SCRIPTS_MAX: u32 = 5;

/// Whether a file may be run: the kernel would start it.
fn may_run(folder: BorrowedFd<'_>, path: &CStr) -> bool {
    let is_file = rustix::fs::statat(folder, path, AtFlags::empty())
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile);
    is_file && rustix::fs::accessat(folder, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Whether this process may read the file at `path`, as the user that it acts for.
pub fn is_readable(path: &CStr) -> bool {
    is_accessible(path, Access::READ_OK)
}

fn is_accessible(path: &CStr, access: Access) -> bool {
    rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

/// Whether a program that this process starts may read and write the file at `path`, which only its
/// owner may. Capabilities that let this process do so are gone then, unless its user is root.
pub fn is_open_to_programs(path: &CStr) -> bool {
    let user = rustix::process::geteuid();
    let is_owner = || rustix::fs::stat(path).is_ok_and(|status| status.st_uid == user.as_raw());
    is_accessible(path, Access::READ_OK.union(Access::WRITE_OK)) && (user.is_root() || is_owner())
}

/// Whether the loader will ignore the shim in whatever this process starts: it acts for another
/// user or group than it belongs to.
pub fn is_secure() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() != geteuid() || getgid() != getegid()
}

/// Returns the verdict on an open program.
///
/// # Errors
/// If it is no program, or cannot be read: it may be open for being run only.
pub fn open_program(descriptor: i32) -> Result<Verdict, Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the caller is about to run it; if it is not open, the kernel reports it.
    inspect(unsafe { BorrowedFd::borrow_raw(descriptor) }, SCRIPTS_MAX)
}

/// The longest path that is inspected.
const PATH_MAX: usize = scratch::PAGE;

/// Returns the verdict on the program that `execvp` runs for `name`. With a slash in it, `name` is
/// the path; else the program is the first match in the directories of `search`, the value of
/// `PATH`.
///
/// # Errors
/// As [`program`]; if none is found, that it is not there.
pub fn program_in(name: &CStr, search: Option<&[u8]>) -> Result<Verdict, Errno> {
    let bytes = name.to_bytes();
    if bytes.contains(&b'/') {
        return program(name);
    }
    // The C library's default without a `PATH`.
    let search = search.unwrap_or(b"/bin:/usr/bin");
    scratch::with_page(|path| found_in(bytes, search, path))
}

/// The same, with a buffer for a path.
fn found_in(bytes: &[u8], search: &[u8], path: &mut [u8; PATH_MAX]) -> Result<Verdict, Errno> {
    for directory in search.split(|byte| *byte == b':') {
        let length = directory.len() + 1 + bytes.len();
        if length >= PATH_MAX {
            continue;
        }
        path[..directory.len()].copy_from_slice(directory);
        path[directory.len()] = b'/';
        path[directory.len() + 1..length].copy_from_slice(bytes);
        path[length] = 0;
        // An empty directory is the working directory.
        let start = usize::from(directory.is_empty());
        let Ok(path) = CStr::from_bytes_with_nul(&path[start..=length]) else { continue };
        if rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
            return program(path);
        }
    }
    Err(Errno::NOENT)
}

/// Bytes read from the beginning of a file: as many as the kernel reads.
const HEAD: usize = 256;
/// Bytes read at most from an ELF segment of the file.
const BLOCK: usize = scratch::PAGE;

/// Inspects an open file; scripts are followed to their interpreter so many times.
fn inspect(file: BorrowedFd<'_>, scripts: u32) -> Result<Verdict, Errno> {
    let status = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    let mut head = [0; HEAD];
    let length = rustix::io::pread(file, &mut head[..], 0)?;
    let head = &head[..length];
    if head.starts_with(b"#!") {
        return if scripts > 0 { script(head, scripts - 1) } else { Err(Errno::LOOP) };
    }
    if !head.starts_with(b"\x7fELF") {
        // A shell runs a file in a format unknown to the kernel as a script of its own.
        return Ok(Verdict::Script);
    }
    if gains_rights(file, &status) {
        return Ok(Verdict::Not(Bypass::SetuidProgram));
    }
    Ok(scratch::with_page(|block| elf(file, head, block)))
}

/// Returns the verdict on the interpreter in the first line of a script.
fn script(head: &[u8], scripts: u32) -> Result<Verdict, Errno> {
    let line = head[2..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let interpreter = words.next().ok_or(Errno::NOEXEC)?;
    let mut path = [0; 256];
    path.get_mut(..interpreter.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(interpreter);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    let file = match rustix::fs::open(path, FLAGS, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ACCESS) if may_run(CWD, path) => {
            return Ok(Verdict::Not(Bypass::Unreadable));
        }
        Err(error) => return Err(error),
    };
    let verdict = inspect(file.as_fd(), scripts)?;
    Ok(if verdict == Verdict::Covered { Verdict::Script } else { verdict })
}

/// Whether a program gets rights that its caller does not have. The loader then ignores the shim.
fn gains_rights(file: BorrowedFd<'_>, status: &rustix::fs::Stat) -> bool {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010; // with the right to run it; without, it means something else
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let another_user = status.st_mode & SET_USER != 0 && status.st_uid != user;
    let another_group = status.st_mode & SET_GROUP == SET_GROUP && status.st_gid != group;
    let mut attribute = [0u8; 64];
    let capable = user != 0
        && rustix::fs::fgetxattr(file, c"security.capability", &mut attribute[..]).is_ok();
    (another_user || another_group || capable) && !rustix::thread::no_new_privs().unwrap_or(false)
}

/// The machine of this library, as ELF numbers it.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
const LOADER: u32 = 3; // PT_INTERP
const NOTE: u32 = 4; // PT_NOTE
/// The most parts of a program that are inspected; there are about a dozen.
const PARTS_MAX: usize = 64;

/// Returns the verdict on an ELF file with this head; `block` is the buffer for one of its
/// segments.
fn elf(file: BorrowedFd<'_>, head: &[u8], block: &mut [u8; BLOCK]) -> Verdict {
    const WIDE: u8 = 2;
    if head.get(4) != Some(&WIDE) || half(head, 18) != MACHINE {
        // Another machine's loader would complain about the shim, and run on without.
        return Verdict::Not(Bypass::ForeignProgram);
    }
    let (start, size, count) = (long(head, 32), half(head, 54), half(head, 56));
    let (mut dynamic, mut foreign, mut go) = (false, false, false);
    for number in 0..u64::from(count).min(PARTS_MAX as u64) {
        let mut part = [0; 56];
        let offset = start.wrapping_add(number.wrapping_mul(size.into()));
        if rustix::io::pread(file, &mut part[..], offset) != Ok(part.len()) {
            break;
        }
        let (offset, length) = (long(&part, 8), long(&part, 32));
        match word(&part, 0) {
            LOADER => {
                dynamic = true;
                let path = content(file, offset, length, block);
                foreign = !is_loader(path.strip_suffix(b"\0").unwrap_or(path));
            }
            NOTE => go |= has_go_note(content(file, offset, length, block)),
            _ => {}
        }
    }
    match (foreign, go, dynamic) {
        // A foreign loader would not start it, so this comes first.
        (true, ..) => Verdict::Not(Bypass::ForeignProgram),
        (_, true, _) => Verdict::Not(Bypass::GoProgram),
        (.., false) => Verdict::Not(Bypass::StaticProgram),
        _ => Verdict::Covered,
    }
}

/// The first bytes of a part of the file.
fn content<'a>(
    file: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    block: &'a mut [u8; BLOCK],
) -> &'a [u8] {
    let length = usize::try_from(length).unwrap_or(BLOCK).min(BLOCK);
    let read = rustix::io::pread(file, &mut block[..length], offset).unwrap_or(0);
    &block[..read]
}

/// Whether this is the path of glibc's loader: `/lib64/ld-linux-x86-64.so.2`, or another
/// directory's.
fn is_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name == b"ld.so" || name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so")
}

/// Whether one of the notes is the number that Go gives to what it builds.
fn has_go_note(mut notes: &[u8]) -> bool {
    const GO: (&[u8], u32) = (b"Go\0\0", 4);
    while notes.len() >= 12 {
        let (name, description) = (word(notes, 0) as usize, word(notes, 4) as usize);
        if word(notes, 8) == GO.1 && notes[12..].starts_with(GO.0) {
            return true;
        }
        let next = name.next_multiple_of(4).saturating_add(description.next_multiple_of(4));
        notes = notes.get(next.saturating_add(12)..).unwrap_or_default();
    }
    false
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_ne_bytes(b.try_into().unwrap_or_default()))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().unwrap_or_default()))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// This test, which is linked like the programs that the shim is for.
    fn this() -> PathBuf {
        std::env::current_exe().unwrap()
    }

    fn inspected(path: &Path) -> Result<Verdict, Errno> {
        program(&CString::new(path.as_os_str().as_encoded_bytes()).unwrap())
    }

    /// Calls `see` with a program file of this content.
    fn with_file(name: &str, content: &[u8], see: impl FnOnce(&Path)) {
        let path = this().with_file_name(format!("inspected-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        see(&path);
        fs::remove_file(&path).unwrap();
    }

    /// The content of this test with this change to one part of it.
    fn changed(kind: u32, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut content = fs::read(this()).unwrap();
        let (start, size, count) = (long(&content, 32), half(&content, 54), half(&content, 56));
        for number in 0..u64::from(count) {
            let offset = (start + number * u64::from(size)) as usize;
            if word(&content, offset) == kind {
                change(&mut content[offset..]);
            }
        }
        content
    }

    #[test]
    fn programs_for_this_c_library_are_covered() {
        assert_eq!(inspected(&this()), Ok(Verdict::Covered));
        let file = fs::File::open(this()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(open_program(number), Ok(Verdict::Covered));
        assert_eq!(open_program(-1), Err(Errno::BADF));
    }

    #[test]
    fn scripts_are_what_their_interpreter_is() {
        let line = format!("#! {} -x\nrest", this().display());
        with_file("script", line.as_bytes(), |path| {
            assert_eq!(inspected(path), Ok(Verdict::Script));
        });
        with_file("shell", b"echo for a shell", |path| {
            assert_eq!(inspected(path), Ok(Verdict::Script));
        });
        with_file("lost", b"#!/nowhere\n", |path| assert_eq!(inspected(path), Err(Errno::NOENT)));
        with_file("empty", b"#!\n", |path| assert_eq!(inspected(path), Err(Errno::NOEXEC)));
    }

    #[test]
    fn programs_without_a_loader_are_static() {
        let content = changed(LOADER, |part| part[..4].copy_from_slice(&0u32.to_ne_bytes()));
        with_file("static", &content, |path| {
            assert_eq!(inspected(path), Ok(Verdict::Not(Bypass::StaticProgram)));
        });
    }

    #[test]
    fn programs_for_another_machine_or_library_are_foreign() {
        let foreign = Ok(Verdict::Not(Bypass::ForeignProgram));
        let mut content = fs::read(this()).unwrap();
        content[18] ^= 1;
        with_file("machine", &content, |path| assert_eq!(inspected(path), foreign));
        // Cut short, the path of its loader is none of glibc's.
        let content = changed(LOADER, |part| part[32..40].copy_from_slice(&8u64.to_ne_bytes()));
        with_file("library", &content, |path| assert_eq!(inspected(path), foreign));
    }

    #[test]
    fn go_is_known_by_its_note() {
        let mut notes = Vec::new();
        let mut note = |name: &[u8], kind: u32, description: &[u8]| {
            notes.extend((name.len() as u32).to_ne_bytes());
            notes.extend((description.len() as u32).to_ne_bytes());
            notes.extend(kind.to_ne_bytes());
            notes.extend(name);
            notes.extend(description);
            notes.resize(notes.len().next_multiple_of(4), 0);
            has_go_note(&notes)
        };
        assert!(!note(b"GNU\0", 4, b"12345"));
        assert!(!note(b"GNU\0", 1, b""));
        assert!(note(b"Go\0\0", 4, b"abc"));
        assert!(!has_go_note(&[0xff; 40]));
    }

    #[test]
    fn rights_are_gained_from_another_owner() {
        with_file("rights", &fs::read(this()).unwrap(), |path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(inspected(path), Ok(Verdict::Covered), "one's own are nothing new");
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(path, Some(1), None).unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o4755)).unwrap();
                assert_eq!(inspected(path), Ok(Verdict::Not(Bypass::SetuidProgram)));
            }
        });
    }

    #[test]
    fn a_name_is_resolved_as_by_the_c_library() {
        let this = this();
        let name = CString::new(this.file_name().unwrap().as_encoded_bytes()).unwrap();
        let search = format!("/nowhere::{}", this.parent().unwrap().display());
        assert_eq!(program_in(&name, Some(search.as_bytes())), Ok(Verdict::Covered));
        assert_eq!(program_in(&name, Some(b"/nowhere")), Err(Errno::NOENT));
        assert_eq!(program_in(c"/nowhere/x", Some(search.as_bytes())), Err(Errno::NOENT));
        assert_eq!(program_in(c"sh", None), Ok(Verdict::Covered), "the usual places");
        assert_eq!(inspected(Path::new("/")), Err(Errno::ACCESS));
    }
}
