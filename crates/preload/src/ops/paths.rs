//! Decisions for calls that name a file by its path.
//!
//! Rules on paths are about absolute paths without detours, as `/proc/self/fd` shows them for open
//! files. The shim brings the path of a call into that form by its text alone. The shim does not
//! follow symbolic links, for that would be I/O of its own.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use libc::c_int;
use rustix::fs::CWD;
use tidegate_model::Operation;
use tidegate_stage::{Classifier, Request, RuleTable, Stage, Subject, scratch};

use super::Admitted;
use crate::guard::run_guarded;
use crate::process::stage;
use crate::sandbox;

/// The longest path that the kernel takes.
const LENGTH_MAX: usize = scratch::PAGE;

/// Where no storage is.
const MEMORY: [&[u8]; 3] = [b"/proc/", b"/sys/", b"/dev/"];

/// Gates a call that moves no data, about the file with this name in this directory, or about the
/// directory if there is no name.
pub(crate) fn gate_path_call<T>(
    operation: Operation,
    directory: c_int,
    path: Option<&CStr>,
    call: impl FnOnce() -> T,
) -> T {
    let Some(stage) = stage() else { return call() };
    let admitted = admit(stage, operation, directory, path);
    let result = call();
    admitted.complete(0);
    result
}

/// Enforces the rules for such a call.
pub(crate) fn admit(
    stage: &'static Stage,
    operation: Operation,
    directory: c_int,
    path: Option<&CStr>,
) -> Admitted {
    let request = Request::new(operation, 0);
    let path = path.map_or(&b""[..], CStr::to_bytes);
    if path.is_empty() {
        return Admitted::enforce(stage, &request.on(Subject::Descriptor(directory)));
    }
    if MEMORY.iter().any(|prefix| path.starts_with(prefix)) {
        // No descriptor at all is no storage.
        return Admitted::enforce(stage, &request.on(Subject::Descriptor(-1)));
    }
    if !uses_paths(stage) {
        return Admitted::enforce(stage, &request);
    }
    if path[0] == b'/' && is_plain(path) {
        return Admitted::enforce(stage, &request.on(Subject::Path(path)));
    }
    if path[0] != b'/' && sandbox::is_forbidden(sandbox::DIRECTORY) {
        return Admitted::Sandboxed(stage);
    }
    admit_resolved(stage, &request, directory, path)
}

/// Whether any rule in force has a path. If not, there is no need to find out.
fn uses_paths(stage: &Stage) -> bool {
    let layout = stage.layout();
    let generation = layout.header.generation.load(Ordering::Acquire) as usize;
    let table = &layout.tables[generation % layout.tables.len()];
    generation != 0 && RuleTable(&table[..]).uses(Classifier::Path)
}

/// Whether an absolute path has no detours.
fn is_plain(path: &[u8]) -> bool {
    let detour = |pair: &[u8]| pair[0] == b'/' && (pair[1] == b'/' || pair[1] == b'.');
    !path.windows(2).any(detour) && (path.len() == 1 || !path.ends_with(b"/"))
}

/// A path in the making: absolute, without detours, and without a slash at its end.
struct Buffer<'a> {
    bytes: &'a mut [u8; LENGTH_MAX],
    length: usize,
}

impl Buffer<'_> {
    /// Takes the steps of `path`. Gives up by forgetting all if it gets too long.
    fn walk(&mut self, path: &[u8]) {
        if path.first() == Some(&b'/') {
            self.length = 0;
        }
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    let parent = self.bytes[..self.length].iter().rposition(|byte| *byte == b'/');
                    self.length = parent.unwrap_or(0);
                }
                name => {
                    let end = self.length + 1 + name.len();
                    if end > LENGTH_MAX {
                        self.length = 0;
                        return;
                    }
                    self.bytes[self.length] = b'/';
                    self.bytes[self.length + 1..end].copy_from_slice(name);
                    self.length = end;
                }
            }
        }
    }
}

#[cold]
#[inline(never)]
fn admit_resolved(
    stage: &'static Stage,
    request: &Request<'_>,
    directory: c_int,
    path: &[u8],
) -> Admitted {
    scratch::with_page(|bytes| {
        let mut buffer = Buffer { bytes, length: 0 };
        run_guarded(|| {
            if path.starts_with(b"/") || start(&mut buffer, directory) {
                buffer.walk(path);
            }
        });
        Admitted::enforce(stage, &request.on(Subject::Path(&buffer.bytes[..buffer.length])))
    })
}

/// Begins where relative paths begin. The kernel is queried each time: a process changes its
/// directory in more ways than can be seen.
fn start(buffer: &mut Buffer<'_>, directory: c_int) -> bool {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let link = match u32::try_from(directory) {
        Ok(mut number) => {
            let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
            for digit in link[14..14 + digits].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
            CStr::from_bytes_until_nul(&link).unwrap_or(c"")
        }
        Err(_) => c"/proc/self/cwd",
    };
    // The kernel's answer has no detours.
    let Ok(length) = rustix::fs::readlinkat_raw(CWD, link, &mut buffer.bytes[..]) else {
        return false;
    };
    if buffer.bytes[0] != b'/' {
        return false;
    }
    buffer.length = if length == 1 { 0 } else { length };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(from: &str, path: &str) -> String {
        let mut buffer = Buffer { bytes: &mut [0; LENGTH_MAX], length: 0 };
        buffer.walk(from.as_bytes());
        buffer.walk(path.as_bytes());
        String::from_utf8_lossy(&buffer.bytes[..buffer.length]).into_owned()
    }

    #[test]
    fn a_path_is_brought_into_one_form() {
        assert_eq!(walked("/a/b", "c"), "/a/b/c");
        assert_eq!(walked("/a/b", "../c/./d//e/"), "/a/c/d/e");
        assert_eq!(walked("/a", "../../../b"), "/b");
        assert_eq!(walked("/a", "/b"), "/b");
        assert_eq!(walked("/a", &"x".repeat(LENGTH_MAX)), "");
    }

    #[test]
    fn most_paths_need_no_work() {
        assert!(is_plain(b"/a/b.c/d"));
        assert!(is_plain(b"/"));
        for path in ["/a//b", "/a/./b", "/a/..", "/a/"] {
            assert!(!is_plain(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn relative_paths_begin_at_the_working_directory() {
        let mut buffer = Buffer { bytes: &mut [0; LENGTH_MAX], length: 0 };
        assert!(start(&mut buffer, libc::AT_FDCWD));
        let here = std::env::current_dir().unwrap();
        assert_eq!(&buffer.bytes[..buffer.length], here.as_os_str().as_encoded_bytes());
        assert!(!start(&mut buffer, 1_000_000_007));
    }
}
