//! Decisions for calls that read directories.

use std::ffi::CStr;

use libc::{DIR, c_int, c_void};
use tidegate_model::Operation;
use tidegate_stage::files::forget;

use super::{charge, files, paths};
use crate::errno::Errno;
use crate::process::stage;

/// How far from the start of a `DIR` the first entry of its buffer lies at most, and the second at
/// least: after a head of some 48 bytes, and entries have at least 24.
const FIRST: usize = 64;

/// The descriptor of an open directory.
fn descriptor(directory: *mut DIR) -> c_int {
    if directory.is_null() {
        return -1;
    }
    let _errno = Errno::save();
    // SAFETY: the program's open directory, or one that was just opened.
    unsafe { libc::dirfd(directory) }
}

/// Opens a directory to read it.
pub(crate) fn gate_opendir(path: Option<&CStr>, call: impl FnOnce() -> *mut DIR) -> *mut DIR {
    let opened = paths::gate_path_call(Operation::Open, libc::AT_FDCWD, path, call);
    forget(descriptor(opened));
    opened
}

/// Ends it.
pub(crate) fn track_closedir(directory: *mut DIR, call: impl FnOnce() -> c_int) -> c_int {
    files::track_close(descriptor(directory), call)
}

/// Reads the next entry. The C library reads many from the kernel at once; the call that did so
/// returns the first of its buffer, and is charged for all of them afterwards.
pub(crate) fn charge_readdir(
    directory: *mut DIR,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let entry = call();
    if entry.addr().wrapping_sub(directory.addr()) < FIRST
        && let Some(stage) = stage()
    {
        charge(stage, Operation::List, descriptor(directory), 0);
    }
    entry
}
