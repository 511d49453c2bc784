//! `errno`, which belongs to the program.

use libc::c_int;

/// Keeps `errno` as it was until the value is dropped.
#[derive(Debug)]
pub(crate) struct Errno {
    location: *mut c_int,
    value: c_int,
}

impl Errno {
    #[inline]
    pub(crate) fn save() -> Self {
        // SAFETY: the location is this thread's and lives as long as the thread.
        unsafe {
            let location = libc::__errno_location();
            Self { location, value: *location }
        }
    }
}

impl Drop for Errno {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above; the value does not leave the thread, for a raw pointer is not `Send`.
        unsafe { *self.location = self.value }
    }
}

/// The value of `errno`, after a call that failed.
pub(crate) fn get() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`, for calls that the shim answers itself.
pub(crate) fn set(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}
