//! Hooks of calls that map files into memory.

use libc::{c_int, c_void, off_t, off64_t, size_t};

use crate::ops::memory::count_mapping;

hooks! {
    fn mmap(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t,
    ) -> *mut c_void = count_mapping[length, protection, flags, fd];
    fn mmap64(
        address: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off64_t,
    ) -> *mut c_void = count_mapping[length, protection, flags, fd];
}
