//! Hooks of metadata calls: names, attributes and directories of files. Each costs one operation.

use libc::{AT_FDCWD, DIR, c_char, c_int, c_uint, c_void, dev_t, gid_t, mode_t, size_t, ssize_t};
use libc::{timespec, uid_t};
use tidegate_model::Operation::{Attribute, Link, List, Stat};

use crate::ops::directories::{charge_readdir, gate_opendir, track_closedir};
use crate::ops::paths::gate_path_call;
use crate::ops::{gate_descriptor_call, gate_status_query};
use crate::raw::path;

type Name = *const c_char;

hooks! {
    fn stat(name: Name, status: *mut c_void) -> c_int = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn stat64(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn lstat(name: Name, status: *mut c_void) -> c_int = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn lstat64(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn fstat(fd: c_int, status: *mut c_void) -> c_int = gate_status_query[fd, status];
    fn fstat64(fd: c_int, status: *mut c_void) -> c_int = gate_status_query[fd, status];
    fn fstatat(directory: c_int, name: Name, status: *mut c_void, flags: c_int) -> c_int
        = gate_path_call[Stat, directory, path(name)];
    fn fstatat64(directory: c_int, name: Name, status: *mut c_void, flags: c_int) -> c_int
        = gate_path_call[Stat, directory, path(name)];
    fn statx(
        directory: c_int, name: Name, flags: c_int, mask: c_uint, status: *mut c_void,
    ) -> c_int = gate_path_call[Stat, directory, path(name)];
    // Functions that programs built before glibc 2.33 call.
    fn __xstat(version: c_int, name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn __xstat64(version: c_int, name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn __lxstat(version: c_int, name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn __lxstat64(version: c_int, name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn __fxstat(version: c_int, fd: c_int, status: *mut c_void) -> c_int
        = gate_descriptor_call[Stat, fd];
    fn __fxstat64(version: c_int, fd: c_int, status: *mut c_void) -> c_int
        = gate_descriptor_call[Stat, fd];
    fn __fxstatat(
        version: c_int, directory: c_int, name: Name, status: *mut c_void, flags: c_int,
    ) -> c_int = gate_path_call[Stat, directory, path(name)];
    fn __fxstatat64(
        version: c_int, directory: c_int, name: Name, status: *mut c_void, flags: c_int,
    ) -> c_int = gate_path_call[Stat, directory, path(name)];
    fn access(name: Name, mode: c_int) -> c_int = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn eaccess(name: Name, mode: c_int) -> c_int = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn euidaccess(name: Name, mode: c_int) -> c_int = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn faccessat(directory: c_int, name: Name, mode: c_int, flags: c_int) -> c_int
        = gate_path_call[Stat, directory, path(name)];
    fn readlink(name: Name, buffer: *mut c_char, size: size_t) -> ssize_t
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn readlinkat(directory: c_int, name: Name, buffer: *mut c_char, size: size_t) -> ssize_t
        = gate_path_call[Stat, directory, path(name)];
    fn statfs(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn statfs64(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn fstatfs(fd: c_int, status: *mut c_void) -> c_int = gate_descriptor_call[Stat, fd];
    fn fstatfs64(fd: c_int, status: *mut c_void) -> c_int = gate_descriptor_call[Stat, fd];
    fn statvfs(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn statvfs64(name: Name, status: *mut c_void) -> c_int
        = gate_path_call[Stat, AT_FDCWD, path(name)];
    fn fstatvfs(fd: c_int, status: *mut c_void) -> c_int = gate_descriptor_call[Stat, fd];
    fn fstatvfs64(fd: c_int, status: *mut c_void) -> c_int = gate_descriptor_call[Stat, fd];
}

hooks! {
    fn unlink(name: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn unlinkat(directory: c_int, name: Name, flags: c_int) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn remove(name: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn rename(name: Name, target: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn renameat(directory: c_int, name: Name, to: c_int, target: Name) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn renameat2(
        directory: c_int, name: Name, to: c_int, target: Name, flags: c_uint,
    ) -> c_int = gate_path_call[Link, directory, path(name)];
    fn link(name: Name, target: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn linkat(directory: c_int, name: Name, to: c_int, target: Name, flags: c_int) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn symlink(content: Name, name: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn symlinkat(content: Name, directory: c_int, name: Name) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn mkdir(name: Name, mode: mode_t) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn mkdirat(directory: c_int, name: Name, mode: mode_t) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn mkdtemp(name: *mut c_char) -> *mut c_char = gate_path_call[Link, AT_FDCWD, path(name)];
    fn rmdir(name: Name) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn mkfifo(name: Name, mode: mode_t) -> c_int = gate_path_call[Link, AT_FDCWD, path(name)];
    fn mkfifoat(directory: c_int, name: Name, mode: mode_t) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn mknod(name: Name, mode: mode_t, device: dev_t) -> c_int
        = gate_path_call[Link, AT_FDCWD, path(name)];
    fn mknodat(directory: c_int, name: Name, mode: mode_t, device: dev_t) -> c_int
        = gate_path_call[Link, directory, path(name)];
    fn __xmknod(version: c_int, name: Name, mode: mode_t, device: *mut dev_t) -> c_int
        = gate_path_call[Link, AT_FDCWD, path(name)];
    fn __xmknodat(
        version: c_int, directory: c_int, name: Name, mode: mode_t, device: *mut dev_t,
    ) -> c_int = gate_path_call[Link, directory, path(name)];
}

hooks! {
    fn opendir(name: Name) -> *mut DIR = gate_opendir[path(name)];
    fn closedir(directory: *mut DIR) -> c_int = track_closedir[directory];
    fn readdir(directory: *mut DIR) -> *mut c_void = charge_readdir[directory];
    fn readdir64(directory: *mut DIR) -> *mut c_void = charge_readdir[directory];
    fn getdents64(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t
        = gate_descriptor_call[List, fd];
}

hooks! {
    fn chmod(name: Name, mode: mode_t) -> c_int = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lchmod(name: Name, mode: mode_t) -> c_int = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn fchmod(fd: c_int, mode: mode_t) -> c_int = gate_descriptor_call[Attribute, fd];
    fn fchmodat(directory: c_int, name: Name, mode: mode_t, flags: c_int) -> c_int
        = gate_path_call[Attribute, directory, path(name)];
    fn chown(name: Name, user: uid_t, group: gid_t) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lchown(name: Name, user: uid_t, group: gid_t) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int = gate_descriptor_call[Attribute, fd];
    fn fchownat(directory: c_int, name: Name, user: uid_t, group: gid_t, flags: c_int) -> c_int
        = gate_path_call[Attribute, directory, path(name)];
    fn utime(name: Name, times: *const c_void) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn utimes(name: Name, times: *const c_void) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lutimes(name: Name, times: *const c_void) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn futimes(fd: c_int, times: *const c_void) -> c_int = gate_descriptor_call[Attribute, fd];
    fn futimens(fd: c_int, times: *const timespec) -> c_int = gate_descriptor_call[Attribute, fd];
    fn futimesat(directory: c_int, name: Name, times: *const c_void) -> c_int
        = gate_path_call[Attribute, directory, path(name)];
    fn utimensat(directory: c_int, name: Name, times: *const timespec, flags: c_int) -> c_int
        = gate_path_call[Attribute, directory, path(name)];

    fn getxattr(name: Name, key: Name, value: *mut c_void, size: size_t) -> ssize_t
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lgetxattr(name: Name, key: Name, value: *mut c_void, size: size_t) -> ssize_t
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn fgetxattr(fd: c_int, key: Name, value: *mut c_void, size: size_t) -> ssize_t
        = gate_descriptor_call[Attribute, fd];
    fn setxattr(
        name: Name, key: Name, value: *const c_void, size: size_t, flags: c_int,
    ) -> c_int = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lsetxattr(
        name: Name, key: Name, value: *const c_void, size: size_t, flags: c_int,
    ) -> c_int = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn fsetxattr(
        fd: c_int, key: Name, value: *const c_void, size: size_t, flags: c_int,
    ) -> c_int = gate_descriptor_call[Attribute, fd];
    fn listxattr(name: Name, keys: *mut c_char, size: size_t) -> ssize_t
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn llistxattr(name: Name, keys: *mut c_char, size: size_t) -> ssize_t
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn flistxattr(fd: c_int, keys: *mut c_char, size: size_t) -> ssize_t
        = gate_descriptor_call[Attribute, fd];
    fn removexattr(name: Name, key: Name) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn lremovexattr(name: Name, key: Name) -> c_int
        = gate_path_call[Attribute, AT_FDCWD, path(name)];
    fn fremovexattr(fd: c_int, key: Name) -> c_int = gate_descriptor_call[Attribute, fd];
}
