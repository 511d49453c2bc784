//! Decisions for files that are mapped into memory. The shim cannot see accesses to a mapping, so
//! it counts the mapping itself.

use std::os::fd::BorrowedFd;

use libc::{c_int, c_void};
use rustix::fs::FileType;
use tidegate_stage::Bypass;

use crate::guard::run_guarded;
use crate::process::stage;
use crate::sandbox;

/// Maps memory.
pub(crate) fn count_mapping(
    length: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let result = call();
    // Code is mapped once and small; that it is read is no news.
    let data = flags & libc::MAP_ANONYMOUS == 0 && protection & libc::PROT_EXEC == 0;
    if !data || descriptor < 0 || result == libc::MAP_FAILED {
        return result;
    }
    if let Some(stage) = stage() {
        if sandbox::is_forbidden(sandbox::MAPPING) || sandbox::is_strict() {
            stage.bypass(sandbox::SANDBOXED, length as u64);
        } else if run_guarded(|| is_on_storage(descriptor)) == Some(true) {
            stage.bypass(Bypass::Mapping, length as u64);
        }
    }
    result
}

/// Whether a file that can be mapped is on storage.
fn is_on_storage(descriptor: c_int) -> bool {
    // SAFETY: the program has just used it; if it is closed by now, the kernel reports it.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let regular = rustix::fs::fstat(file)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile);
    // tmpfs (shared memory as well), ramfs and hugetlbfs: the file systems in memory whose files
    // are mapped for their data.
    const MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    regular && rustix::fs::fstatfs(file).is_ok_and(|s| !MEMORY.contains(&(s.f_type as u64)))
}
