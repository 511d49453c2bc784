//! The C library's own functions, which the hooks replace and call.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_long, c_void, ssize_t};

use crate::errno::{self, Errno};

/// Libraries that may be loaded where a search from the shim on does not see them: a plug-in that
/// the program opened brought them along.
const PRIVATE: [&CStr; 3] = [c"libaio.so.1", c"liburing.so.2", c"liburing.so.1"];

/// A function of the C library, or of whatever else stands behind the shim; `F` is its type. Found
/// when the program begins, or when it is first called, if that is before or there was none yet.
/// Or a variable; then `F` is the type of its address.
///
/// All of them lie side by side in a section of their own, so that they can be found together. Each
/// is `#[used]`: the optimizer may otherwise split a static into its fields, and leave only the one
/// that is written in the section, where the next entries are then read from wrong offsets.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Real<F> {
    name: &'static CStr,
    fallback: *const (),
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

// SAFETY: `absent` is the address of a function; the rest is shared as an atomic.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    /// The function with this name, written with its zero; `absent` is called instead if there
    /// is none.
    pub(crate) const fn new(name: &'static str, fallback: *const ()) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a name ends with its only zero")
        };
        Self { name, fallback, address: AtomicPtr::new(null_mut()), function: PhantomData }
    }

    /// The function.
    ///
    /// # Safety
    /// `F` must be its type.
    #[inline]
    pub(crate) unsafe fn get(&self) -> F {
        // Relaxed: what the address points at was there before any call.
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.find();
        }
        // SAFETY: of the same size, as `new` asserts, and the caller knows the type.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) }
    }

    /// Several threads may find it at once, and a signal handler while its thread does: all find
    /// the same. That there is none is not kept: the library that has it may be loaded later.
    #[cold]
    fn find(&self) -> *mut c_void {
        let _errno = Errno::save();
        let mut address = next(self.name);
        if address.is_null() {
            address = private(self.name);
        }
        if address.is_null() {
            return self.fallback.cast_mut().cast();
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Finds every function that was not called yet.
///
/// Finding one takes a lock of the loader, which a thread holds for as long as `dlopen` runs the
/// constructors of a library; if those wait for another thread, that one must not wait for the lock
/// at its first `read`. It also makes the loader forget the error that the program's next `dlerror`
/// would return. So everything is found when the program begins. It takes some 60 microseconds.
#[cfg(not(test))]
pub(crate) fn resolve_all() {
    type Entry = Real<extern "C" fn()>;
    unsafe extern "C" {
        #[link_name = "__start_tidegate_real"]
        static START: libc::c_char;
        #[link_name = "__stop_tidegate_real"]
        static STOP: libc::c_char;
    }
    // SAFETY: the linker puts the two around the section, in which there is nothing else; what type
    // a function or a variable has makes no difference to where its address is kept.
    let all = unsafe {
        let (start, stop) = (&raw const START, &raw const STOP);
        let bytes = stop.offset_from_unsigned(start);
        // Anything but whole entries means that a static lacks `#[used]`; each function is then
        // found at its first call.
        if !bytes.is_multiple_of(size_of::<Entry>()) {
            return;
        }
        std::slice::from_raw_parts(start.cast::<Entry>(), bytes / size_of::<Entry>())
    };
    for real in all.iter().filter(|real| real.address.load(Ordering::Relaxed).is_null()) {
        real.address.store(next(real.name), Ordering::Relaxed);
    }
}

/// There are none in tests, which have no hooks.
#[cfg(test)]
pub(crate) fn resolve_all() {}

/// The function that the program would have called without the shim; null if there is none.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: dlsym reads the name.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if found.is_null() {
            // The program must not find our failure in its next `dlerror`.
            libc::dlerror();
        }
        found
    }
}

/// The function with this name in a library that only a plug-in sees; null if there is none.
fn private(name: &CStr) -> *mut c_void {
    let mut found = null_mut();
    if !name.to_bytes().starts_with(b"io_") {
        return found;
    }
    for library in PRIVATE {
        // SAFETY: dlsym reads the name, and the call only checks whether the libraries are loaded.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if !handle.is_null() {
                found = libc::dlsym(handle, name.as_ptr());
                // The caller has loaded the library, so it stays without this reference.
                libc::dlclose(handle);
            }
            if !found.is_null() {
                break;
            }
            libc::dlerror();
        }
    }
    found
}

/// A type that C functions return, and what a function that is missing returns.
pub(crate) trait CallResult {
    /// A function that ignores its arguments and fails with ENOSYS. On the C ABIs of our targets
    /// the caller owns the arguments, and the lower half of a returned -1 is -1.
    const FALLBACK: *const () = fail_with_minus_one as *const ();

    /// How many bytes a data call with this result moved.
    #[inline]
    fn bytes_moved(&self) -> u64 {
        0
    }
}

impl CallResult for ssize_t {
    #[inline]
    fn bytes_moved(&self) -> u64 {
        u64::try_from(*self).unwrap_or(0)
    }
}

impl CallResult for c_long {
    #[inline]
    fn bytes_moved(&self) -> u64 {
        u64::try_from(*self).unwrap_or(0)
    }
}

impl CallResult for c_int {}

impl CallResult for usize {
    const FALLBACK: *const () = fail_with_null as *const ();
}

impl<T> CallResult for *mut T {
    const FALLBACK: *const () = fail_with_null as *const ();
}

impl CallResult for () {}

extern "C" fn fail_with_minus_one() -> c_long {
    errno::set(libc::ENOSYS);
    -1
}

extern "C" fn fail_with_null() -> *mut c_void {
    errno::set(libc::ENOSYS);
    null_mut()
}

/// For functions that return their error with a minus sign.
pub(crate) extern "C" fn fail_with_negative_errno() -> c_long {
    -c_long::from(libc::ENOSYS)
}
