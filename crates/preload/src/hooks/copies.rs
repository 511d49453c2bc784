//! Hooks of calls that copy data inside the kernel.

use libc::{c_int, c_uint, c_ulong, off_t, off64_t, size_t, ssize_t};

use crate::ops::copies::{gate_copy, gate_ioctl};

hooks! {
    fn sendfile(target: c_int, source: c_int, offset: *mut off_t, length: size_t) -> ssize_t
        = gate_copy[source, target, length] |length|;
    fn sendfile64(target: c_int, source: c_int, offset: *mut off64_t, length: size_t) -> ssize_t
        = gate_copy[source, target, length] |length|;
    fn copy_file_range(
        source: c_int, source_offset: *mut off64_t, target: c_int, target_offset: *mut off64_t,
        length: size_t, flags: c_uint,
    ) -> ssize_t = gate_copy[source, target, length] |length|;
    fn splice(
        source: c_int, source_offset: *mut off64_t, target: c_int, target_offset: *mut off64_t,
        length: size_t, flags: c_uint,
    ) -> ssize_t = gate_copy[source, target, length] |length|;
}

variadic_hooks! {
    fn ioctl(fd: c_int, request: c_ulong; argument: usize) -> c_int = gate_ioctl[fd, request];
}
