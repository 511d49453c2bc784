//! Arguments of C functions as Rust sees them.
//!
//! The shim reads an argument of the kernel only if the memory is readable ([`Probe`]). If not, the
//! shim sees nothing, and the kernel answers the call with `EFAULT`. The shim reads an argument of
//! the C library itself without a probe.

use std::ffi::CStr;

use libc::{c_char, c_int, iovec};

use crate::probe::Probe;
use crate::process::stage;

/// The most vectors in one call. With more of them the kernel refuses it.
const VECTORS_MAX: usize = 1024;
/// The longest path that the kernel takes, with its zero.
const PATH_MAX: usize = 4096;

/// A path for the kernel, if there is one that it would take, and a stage in force.
///
/// # Safety
/// `path` is null, or a C string that lives as long as its use, or points to where nothing can be
/// read.
#[inline]
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    stage()?;
    // SAFETY: as the caller promises.
    unsafe { string(&mut Probe::new(), path, PATH_MAX) }
}

/// A string of at most so many bytes, with its zero, if all of it can be read.
///
/// # Safety
/// As for [`path`].
#[inline]
unsafe fn string<'a>(probe: &mut Probe, string: *const c_char, most: usize) -> Option<&'a CStr> {
    let mut length = 0;
    while length < most {
        let chunk = probe.readable_from(string.addr().checked_add(length)?).min(most - length);
        if chunk == 0 {
            return None;
        }
        // SAFETY: so many bytes can be read, by the kernel's answer.
        let found = unsafe { libc::strnlen(string.add(length), chunk) };
        length += found;
        if found < chunk {
            // SAFETY: bytes that can be read, and a zero behind them.
            return Some(unsafe {
                let bytes = std::slice::from_raw_parts(string.cast::<u8>(), length + 1);
                CStr::from_bytes_with_nul_unchecked(bytes)
            });
        }
    }
    None
}

/// A string that the C library will read.
///
/// # Safety
/// `text` is null or a C string, and lives as long as its use.
#[inline]
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// The value that a pointer for the kernel points to, if the memory is readable.
///
/// # Safety
/// `pointer` points to a value of this type, any bytes of which are one, or to where nothing can be
/// read.
#[inline]
pub(crate) unsafe fn value<T: Copy>(pointer: *const T) -> Option<T> {
    let is_readable = Probe::new().can_read(pointer.addr(), size_of::<T>());
    // SAFETY: as the caller promises.
    is_readable.then(|| unsafe { pointer.read_unaligned() })
}

/// So many values, as [`value`].
///
/// # Safety
/// As for [`value`]; they live as long as their use.
#[inline]
pub(crate) unsafe fn values<'a, T: Copy>(pointer: *const T, count: usize) -> Option<&'a [T]> {
    let length = size_of::<T>().checked_mul(count)?;
    let is_readable = pointer.is_aligned() && Probe::new().can_read(pointer.addr(), length);
    if !is_readable || count == 0 {
        return is_readable.then_some(&[]);
    }
    // SAFETY: as the caller promises.
    Some(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// How many bytes `count` vectors request; zero if the kernel will refuse them.
///
/// # Safety
/// `vectors` points to `count` of them, or to where not all of them can be read.
#[inline]
pub(crate) unsafe fn total(vectors: *const iovec, count: c_int) -> u64 {
    let count = usize::try_from(count).unwrap_or(0);
    if count > VECTORS_MAX {
        return 0;
    }
    // SAFETY: as the caller promises.
    let vectors = unsafe { values(vectors, count) }.unwrap_or_default();
    vectors.iter().fold(0, |sum: u64, vector| sum.saturating_add(vector.iov_len as u64))
}

/// The strings of an array that ends with a null pointer: an environment. It ends before what
/// cannot be read. None without an array.
///
/// # Safety
/// `array` is null or such an array, and lives as long as its use; or points to where nothing can
/// be read.
pub(crate) unsafe fn strings<'a>(
    mut array: *const *const c_char,
) -> impl Iterator<Item = &'a CStr> {
    // The array and its strings are often not in one page.
    let (mut of_array, mut of_strings) = (Probe::new(), Probe::new());
    std::iter::from_fn(move || {
        if !of_array.can_read(array.addr(), size_of::<*const c_char>()) {
            return None;
        }
        // SAFETY: as the caller promises; the step stays within the array, whose end is not passed.
        unsafe {
            let next = array.read_unaligned();
            if next.is_null() {
                return None;
            }
            array = array.add(1);
            string(&mut of_strings, next, usize::MAX)
        }
    })
}

/// The value of an environment variable, if it has this name.
pub(crate) fn value_of<'a>(variable: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    variable.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_the_kernel_refuses_are_not_read() {
        let vector = iovec { iov_base: std::ptr::null_mut(), iov_len: 7 };
        let vectors = [vector; 3];
        // SAFETY: as many as there are, or none that is read.
        unsafe {
            assert_eq!(total(vectors.as_ptr(), 3), 21);
            assert!(values(std::ptr::without_provenance::<iovec>(8), 3).is_none());
            assert!(values(std::ptr::without_provenance::<iovec>(3), 0).is_none(), "not aligned");
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
            let cut = [c"A=1".as_ptr(), std::ptr::without_provenance(16), std::ptr::null()];
            assert!(strings(cut.as_ptr()).eq([c"A=1"]), "it ends before what cannot be read");
        }
    }

    #[test]
    fn a_string_is_read_up_to_its_end_or_not_at_all() {
        let long = std::ffi::CString::new("x".repeat(10_000)).unwrap();
        let mut probe = Probe::new();
        // SAFETY: C strings, and a pointer to nowhere.
        unsafe {
            assert_eq!(string(&mut probe, c"abc".as_ptr(), 4), Some(c"abc"));
            assert_eq!(string(&mut probe, c"abc".as_ptr(), 3), None);
            assert_eq!(string(&mut probe, long.as_ptr(), usize::MAX), Some(long.as_c_str()));
            assert_eq!(string(&mut probe, long.as_ptr(), PATH_MAX), None);
            assert_eq!(string(&mut probe, std::ptr::null(), 9), None);
            assert_eq!(string(&mut probe, std::ptr::without_provenance(usize::MAX), 9), None);
        }
    }

    #[test]
    fn a_variable_has_exactly_its_name() {
        assert_eq!(value_of(c"A=b=c", b"A"), Some(&b"b=c"[..]));
        assert_eq!(value_of(c"AB=c", b"A"), None);
        assert_eq!(value_of(c"A", b"A"), None);
    }
}
