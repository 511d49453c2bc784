//! Arguments of C functions as Rust sees them.
//!
//! The kernel answers a pointer into nowhere with `EFAULT`; the shim would crash on it. It looks
//! only at what it must, and never behind a null pointer.

use std::ffi::CStr;

use libc::{c_char, c_int, iovec};

/// The most vectors in one call. With more of them the kernel refuses it.
const VECTORS_MAX: usize = 1024;

/// A path, if there is one.
///
/// # Safety
/// `path` is null or a C string, and lives as long as its use.
#[inline]
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as the caller promises.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// How many bytes `count` vectors ask for; zero if the kernel will refuse them.
///
/// # Safety
/// `vectors` is null or points to `count` of them.
#[inline]
pub(crate) unsafe fn total(vectors: *const iovec, count: c_int) -> u64 {
    let count = usize::try_from(count).unwrap_or(0);
    if vectors.is_null() || !vectors.is_aligned() || count > VECTORS_MAX {
        return 0;
    }
    // SAFETY: as the caller promises.
    let vectors = unsafe { std::slice::from_raw_parts(vectors, count) };
    vectors.iter().fold(0, |sum: u64, vector| sum.saturating_add(vector.iov_len as u64))
}

/// The strings of an array that ends with a null pointer: an environment. None without an array.
///
/// # Safety
/// `array` is null or such an array, and lives as long as its use.
pub(crate) unsafe fn strings<'a>(
    mut array: *const *const c_char,
) -> impl Iterator<Item = &'a CStr> {
    std::iter::from_fn(move || {
        if array.is_null() {
            return None;
        }
        // SAFETY: as the caller promises; the step stays within the array, whose end is not passed.
        unsafe {
            let string = path(*array)?;
            array = array.add(1);
            Some(string)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_the_kernel_refuses_count_nothing() {
        let vector = iovec { iov_base: std::ptr::null_mut(), iov_len: 7 };
        let vectors = [vector; 3];
        // SAFETY: as many as there are, or none that is looked at.
        unsafe {
            assert_eq!(total(vectors.as_ptr(), 3), 21);
            assert_eq!(total(vectors.as_ptr(), -1), 0);
            assert_eq!(total(vectors.as_ptr(), 1025), 0);
            assert_eq!(total(std::ptr::null(), 3), 0);
        }
    }

    #[test]
    fn an_environment_ends_with_a_null_pointer() {
        let array = [c"A=1".as_ptr(), c"B=2".as_ptr(), std::ptr::null()];
        // SAFETY: a terminated array of C strings, and none at all.
        unsafe {
            assert!(strings(array.as_ptr()).eq([c"A=1", c"B=2"]));
            assert_eq!(strings(std::ptr::null()).count(), 0);
        }
    }
}
