//! Hooks of calls that read, write and sync data, and of those that change the size of files.

use libc::{c_int, c_uint, c_void, iovec, off_t, off64_t, size_t, ssize_t};
use tidegate_model::Operation::{Allocate, Read, Sync, Write};

use crate::ops::paths::gate_path_call;
use crate::ops::{gate_call_without_file, gate_descriptor_call, gate_transfer};
use crate::raw::{path, total};

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn __read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn __pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t
        = gate_transfer[Read, fd, count as u64];
    fn __pread_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, size: size_t,
    ) -> ssize_t = gate_transfer[Read, fd, count as u64];
    fn __pread64_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t, size: size_t,
    ) -> ssize_t = gate_transfer[Read, fd, count as u64];
    fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = gate_transfer[Read, fd, total(vectors, count)];
    fn preadv(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = gate_transfer[Read, fd, total(vectors, count)];
    fn preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = gate_transfer[Read, fd, total(vectors, count)];
    fn preadv2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = gate_transfer[Read, fd, total(vectors, count)];
    fn preadv64v2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int,
    ) -> ssize_t = gate_transfer[Read, fd, total(vectors, count)];

    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t
        = gate_transfer[Write, fd, count as u64];
    fn __write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t
        = gate_transfer[Write, fd, count as u64];
    fn pwrite(fd: c_int, buffer: *const c_void, count: size_t, offset: off_t) -> ssize_t
        = gate_transfer[Write, fd, count as u64];
    fn pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t
        = gate_transfer[Write, fd, count as u64];
    fn __pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t
        = gate_transfer[Write, fd, count as u64];
    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = gate_transfer[Write, fd, total(vectors, count)];
    fn pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t) -> ssize_t
        = gate_transfer[Write, fd, total(vectors, count)];
    fn pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = gate_transfer[Write, fd, total(vectors, count)];
    fn pwritev2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int,
    ) -> ssize_t = gate_transfer[Write, fd, total(vectors, count)];
    fn pwritev64v2(
        fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int,
    ) -> ssize_t = gate_transfer[Write, fd, total(vectors, count)];

    fn fsync(fd: c_int) -> c_int = gate_descriptor_call[Sync, fd];
    fn fdatasync(fd: c_int) -> c_int = gate_descriptor_call[Sync, fd];
    fn syncfs(fd: c_int) -> c_int = gate_descriptor_call[Sync, fd];
    fn sync() -> () = gate_call_without_file[Sync];
    fn sync_file_range(fd: c_int, offset: off64_t, count: off64_t, flags: c_uint) -> c_int
        = gate_descriptor_call[Sync, fd];
    fn msync(address: *mut c_void, length: size_t, flags: c_int) -> c_int
        = gate_call_without_file[Sync];

    fn ftruncate(fd: c_int, length: off_t) -> c_int = gate_descriptor_call[Allocate, fd];
    fn ftruncate64(fd: c_int, length: off64_t) -> c_int = gate_descriptor_call[Allocate, fd];
    fn truncate(name: *const libc::c_char, length: off_t) -> c_int
        = gate_path_call[Allocate, libc::AT_FDCWD, path(name)];
    fn truncate64(name: *const libc::c_char, length: off64_t) -> c_int
        = gate_path_call[Allocate, libc::AT_FDCWD, path(name)];
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int
        = gate_descriptor_call[Allocate, fd];
    fn fallocate64(fd: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int
        = gate_descriptor_call[Allocate, fd];
    fn posix_fallocate(fd: c_int, offset: off_t, length: off_t) -> c_int
        = gate_descriptor_call[Allocate, fd];
    fn posix_fallocate64(fd: c_int, offset: off64_t, length: off64_t) -> c_int
        = gate_descriptor_call[Allocate, fd];
}
