//! Hooks of calls that open, duplicate, close and control descriptors.

use libc::{AT_FDCWD, c_char, c_int, c_uint, termios, winsize};

use crate::ops::files::{
    gate_open, track_close_range, track_close_range_call, track_close_uncancelled, track_dup2,
    track_fcntl, track_login, track_new_descriptor, track_standard, track_unshare,
};
use crate::raw::path;

variadic_hooks! {
    fn open(name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[AT_FDCWD, path(name)];
    fn open64(name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[AT_FDCWD, path(name)];
    fn __open(name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[AT_FDCWD, path(name)];
    fn __open64(name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[AT_FDCWD, path(name)];
    fn openat(directory: c_int, name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[directory, path(name)];
    fn openat64(directory: c_int, name: *const c_char, flags: c_int; mode: c_uint) -> c_int
        = gate_open[directory, path(name)];
    fn fcntl(fd: c_int, command: c_int; argument: usize) -> c_int
        = track_fcntl[command, || hint(argument)];
    fn fcntl64(fd: c_int, command: c_int; argument: usize) -> c_int
        = track_fcntl[command, || hint(argument)];
    fn __fcntl(fd: c_int, command: c_int; argument: usize) -> c_int
        = track_fcntl[command, || hint(argument)];
}

/// The write hint that a command of `fcntl` has read, whether or not it was one.
unsafe fn hint(argument: usize) -> u64 {
    // SAFETY: the kernel has just read it there; it compares with the hints that exist only then.
    unsafe { std::ptr::with_exposed_provenance::<u64>(argument).read_unaligned() }
}

hooks! {
    fn __open_2(name: *const c_char, flags: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn __open64_2(name: *const c_char, flags: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn __openat_2(directory: c_int, name: *const c_char, flags: c_int) -> c_int
        = gate_open[directory, path(name)];
    fn __openat64_2(directory: c_int, name: *const c_char, flags: c_int) -> c_int
        = gate_open[directory, path(name)];
    fn creat(name: *const c_char, mode: c_uint) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn creat64(name: *const c_char, mode: c_uint) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkstemp(name: *mut c_char) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkstemp64(name: *mut c_char) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkostemp(name: *mut c_char, flags: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkostemp64(name: *mut c_char, flags: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkstemps(name: *mut c_char, suffix: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkstemps64(name: *mut c_char, suffix: c_int) -> c_int = gate_open[AT_FDCWD, path(name)];
    fn mkostemps(name: *mut c_char, suffix: c_int, flags: c_int) -> c_int
        = gate_open[AT_FDCWD, path(name)];
    fn mkostemps64(name: *mut c_char, suffix: c_int, flags: c_int) -> c_int
        = gate_open[AT_FDCWD, path(name)];

    fn close(fd: c_int) -> c_int = track_close_uncancelled[fd];
    fn __close(fd: c_int) -> c_int = track_close_uncancelled[fd];
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        = track_close_range_call[(first, last), flags];
    fn unshare(flags: c_int) -> c_int = track_unshare[flags, libc::CLONE_FILES];
    fn closefrom(first: c_int) -> () = track_close_range[first.max(0) as c_uint, c_uint::MAX];
    fn dup(fd: c_int) -> c_int = track_new_descriptor[];
    fn dup2(fd: c_int, target: c_int) -> c_int = track_dup2[target];
    fn __dup2(fd: c_int, target: c_int) -> c_int = track_dup2[target];
    fn dup3(fd: c_int, target: c_int, flags: c_int) -> c_int = track_dup2[target];
    fn daemon(keep_directory: c_int, keep_descriptors: c_int) -> c_int = track_standard[];
    fn login_tty(fd: c_int) -> c_int = track_login[fd];
    fn forkpty(
        main: *mut c_int,
        name: *mut c_char,
        attributes: *const termios,
        size: *const winsize,
    ) -> c_int = track_standard[];
}
