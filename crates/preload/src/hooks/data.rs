//! Hooks of calls that read, write and sync data.

use libc::{c_int, c_uint, c_void, iovec, off_t, off64_t, size_t, ssize_t};
use tidegate_model::Operation::{Allocate, Read, Sync, Write};

use crate::ops::paths::named;
use crate::ops::{at_large, moves, opened};
use crate::raw::{path, total};

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn __read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn __pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t
        = moves[Read, fd, count as u64];
    fn __pread_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, size: size_t,
    ) -> ssize_t = moves[Read, fd, count as u64];
    fn __pread64_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t, size: size_t,
    ) -> ssize_t = moves[Read, fd, count as u64];
    fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = moves[Read, fd, total(vectors, count)];
    fn preadv(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = moves[Read, fd, total(vectors, count)];
    fn preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = moves[Read, fd, total(vectors, count)];
    fn preadv2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = moves[Read, fd, total(vectors, count)];
    fn preadv64v2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int,
    ) -> ssize_t = moves[Read, fd, total(vectors, count)];

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t
        = moves[Write, fd, count as u64];
    fn __write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t
        = moves[Write, fd, count as u64];
    fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t
        = moves[Write, fd, count as u64];
    fn pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t
        = moves[Write, fd, count as u64];
    fn __pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t
        = moves[Write, fd, count as u64];
    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = moves[Write, fd, total(vectors, count)];
    fn pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = moves[Write, fd, total(vectors, count)];
    fn pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = moves[Write, fd, total(vectors, count)];
    fn pwritev2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = moves[Write, fd, total(vectors, count)];
    fn pwritev64v2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int,
    ) -> ssize_t = moves[Write, fd, total(vectors, count)];

    fn fsync(fd: c_int) -> c_int = opened[Sync, fd];
    fn fdatasync(fd: c_int) -> c_int = opened[Sync, fd];
    fn syncfs(fd: c_int) -> c_int = opened[Sync, fd];
    fn sync() -> () = at_large[Sync];
    fn sync_file_range(fd: c_int, offset: off64_t, count: off64_t, flags: c_uint) -> c_int
        = opened[Sync, fd];
    fn msync(address: *mut c_void, length: size_t, flags: c_int) -> c_int = at_large[Sync];

    fn ftruncate(fd: c_int, length: off_t) -> c_int = opened[Allocate, fd];
    fn ftruncate64(fd: c_int, length: off64_t) -> c_int = opened[Allocate, fd];
    fn truncate(name: *const libc::c_char, length: off_t) -> c_int
        = named[Allocate, libc::AT_FDCWD, path(name)];
    fn truncate64(name: *const libc::c_char, length: off64_t) -> c_int
        = named[Allocate, libc::AT_FDCWD, path(name)];
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int
        = opened[Allocate, fd];
    fn fallocate64(fd: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int
        = opened[Allocate, fd];
    fn posix_fallocate(fd: c_int, offset: off_t, length: off_t) -> c_int = opened[Allocate, fd];
    fn posix_fallocate64(fd: c_int, offset: off64_t, length: off64_t) -> c_int
        = opened[Allocate, fd];
}
