//! Attaches the shim to the stage whose segment the environment names, before the program begins,
//! and keeps the stage in forked children. A program that must not run without its stage
//! (`--fail-closed`) is ended here if it has none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use libc::{c_char, c_int};
use tidegate_stage::segment::VARIABLE;
use tidegate_stage::{Inside, Stage, files, scratch};

use crate::errno::Errno;
use crate::ops::programs::NOT_STARTED;
use crate::process::stage;
use crate::raw::value_of;
use crate::real::resolve_all;
use crate::{probe, process, raw, sandbox};

/// Set to anything, it makes the shim print on standard error why it lets everything pass.
const DEBUG: &[u8] = b"TIDEGATE_DEBUG";

/// Set to anything but a word for no: this program must not run without its stage.
const FAIL_CLOSED: &[u8] = b"TIDEGATE_FAIL_CLOSED";

/// The function that glibc calls before the program begins, with the arguments of `main`.
/// Constructors of other libraries may have run before.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

/// The function that glibc calls when the program returns from `main` or calls `exit`, before glibc
/// flushes the streams.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = crate::ops::stdio::at_exit;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    let _errno = Errno::save();
    // A panic in here would be a defect of the shim; its message would only disturb the program.
    std::panic::set_hook(Box::new(|_| {}));
    let _inside = Inside::enter();
    resolve_all();
    probe::find_readable_memory();
    // SAFETY: glibc passes the environment, which no thread has changed so early.
    let variables = || unsafe { raw::strings(environment) };
    let value = |name: &[u8]| variables().find_map(|variable| value_of(variable, name));
    let is_strict = value(FAIL_CLOSED).is_some_and(is_enabled);
    let Some(path) = value(VARIABLE.as_bytes()) else {
        if is_strict {
            exit_before_main(b"TIDEGATE_SEGMENT is not in its environment");
        }
        return;
    };
    let attached = std::panic::catch_unwind(|| {
        let stage = Stage::attach(Path::new(OsStr::from_bytes(path)))?;
        stage.join();
        stage.layout().header.loaded.fetch_add(1, Ordering::Relaxed);
        std::io::Result::Ok(stage)
    });
    match attached {
        Ok(Ok(stage)) => install_stage(stage, path),
        _ if is_strict => exit_before_main(path),
        _ if value(DEBUG).is_some() => {
            debug_print(&[b"tidegate: no segment of this release at ", path])
        }
        _ => {}
    }
}

/// Whether a variable's value is none of the words that the command takes for no.
fn is_enabled(value: &[u8]) -> bool {
    let no: [&[u8]; 6] = [b"", b"0", b"n", b"no", b"f", b"false"];
    !no.iter().chain([&&b"off"[..]]).any(|no| no.eq_ignore_ascii_case(value))
}

/// Ends the program before its first instruction: it cannot have its stage, and is not to run
/// without.
fn exit_before_main(reason: &[u8]) -> ! {
    debug_print(&[
        b"tidegate: ended before it began (--fail-closed): no stage of this release that it may \
          open: ",
        reason,
    ]);
    // SAFETY: nothing of the program has run that would have to be undone.
    unsafe { libc::_exit(NOT_STARTED) }
}

/// Gives this process its stage, and those that it forks.
fn install_stage(stage: Stage, path: &[u8]) {
    if process::set_stage(stage, path) {
        // SAFETY: what runs in the child does nothing that is forbidden there. If there is no
        // memory for it, children draw on the same buckets but are not listed.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// In the child of a fork there is one thread, the one that forked.
unsafe extern "C" fn forked() {
    let _errno = Errno::save();
    Inside::reset();
    files::abandon_all();
    scratch::abandon_others();
    if let Some(stage) = stage()
        && !sandbox::is_forbidden(sandbox::CHILD)
    {
        // Which forgets the thread.
        sandbox::forget_cached_thread();
        stage.join();
    }
}

/// Writes one line to standard error, if that works.
fn debug_print(parts: &[&[u8]]) {
    let mut line = [0; 512];
    let mut length = 0;
    for byte in parts.iter().copied().flatten().take(line.len() - 1) {
        line[length] = *byte;
        length += 1;
    }
    line[length] = b'\n';
    // SAFETY: if the descriptor is not open, the kernel reports it.
    let standard_error = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(standard_error, &line[..=length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_no_are_those_of_the_command() {
        assert!(is_enabled(b"1") && is_enabled(b"true") && is_enabled(b"yes"));
        let no: [&[u8]; 5] = [b"", b"0", b"False", b"NO", b"off"];
        assert!(!no.iter().any(|no| is_enabled(no)));
    }
}
