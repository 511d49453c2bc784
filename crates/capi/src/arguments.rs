//! Conversion of C arguments to Rust types: text, arrays, variables for results, and structures of
//! programs that were built with an older or a newer header ([`sized`]).

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::status::Problem;

/// The text at `pointer`.
///
/// # Safety
/// If not null, it points to text with a zero at its end that lives and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Problem> {
    if pointer.is_null() {
        return Err(Problem::invalid(format!("{what} is null")));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Problem::invalid(format!("{what} is not UTF-8")))
}

/// The text at `pointer`, or none if it is null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Problem> {
    // SAFETY: the caller's promise is passed on.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what).map(Some) } }
}

/// The values at `pointer`, `count` of them.
///
/// # Safety
/// If not null, it points to so many values that live and stay as they are for `'a`.
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], Problem> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Problem::invalid(format!("{what} is null, misaligned or too long")));
    }
    // SAFETY: checked above, and the caller vouches for what is there.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The same, to change them.
///
/// # Safety
/// If not null, it points to so many values that live for `'a` and that no other thread uses.
pub(crate) unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    count: usize,
    what: &str,
) -> Result<&'a mut [T], Problem> {
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: nothing is read here; what is checked holds for both.
    unsafe { slice(pointer.cast_const(), count, what) }?;
    // SAFETY: checked above, and the caller vouches for what is there.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// A variable of the caller's for a value, which may not be initialised yet.
#[inline]
pub(crate) fn out<T>(pointer: *mut T, what: &str) -> Result<*mut T, Problem> {
    match !pointer.is_null() && pointer.is_aligned() {
        true => Ok(pointer),
        false => Err(Problem::invalid(format!("{what} is null or misaligned"))),
    }
}

/// A structure whose first field is its size, so that it can grow: a caller that was built with an
/// older header passes a shorter one, whose missing fields count as zero, and one that was built
/// with a newer header a longer one, whose further fields must be zero.
///
/// # Safety
/// Only for structures of C that begin with a `size_t` and for which all-zero bytes are a value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name, for messages.
    const NAME: &'static str;
}

/// The structure at `pointer`.
///
/// # Safety
/// If not null, it points to a size and as many bytes as that states.
pub(crate) unsafe fn sized<T: Versioned>(pointer: *const T) -> Result<T, Problem> {
    let name = T::NAME;
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Problem::invalid(format!("{name} is null or misaligned")));
    }
    // SAFETY: not null, aligned, and it begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < size_of::<usize>() || size > 4096 {
        let known = size_of::<T>();
        return Err(Problem::invalid(format!("the size of {name} is {size}, not {known}")));
    }
    // SAFETY: the caller vouches for as many bytes as the size states.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Problem::invalid(format!("{name} asks for more than this library knows")));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: both are at least `known` bytes long, and the new one is a value of its own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), known) };
    // SAFETY: all-zero is a value, and the bytes copied over it were written by C as this type,
    // which consists of integers and pointers.
    Ok(unsafe { value.assume_init() })
}
