//! C functions of the key-value store in a data node's memory.

use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null};

use tidegate_model::Span;
use tidegate_onesided::kv::LayoutError;
use tidegate_stage::memory::{ENTRY_MAX, Error, KEY_MAX, Refused, Settings, Store, VALUE_MAX};

use crate::arguments::{Versioned, optional, out, sized, text};
use crate::layered::{Buffer, Bytes};
use crate::status::{
    Problem, TIDEGATE_CONTENDED, TIDEGATE_DAMAGED, TIDEGATE_FORKED, TIDEGATE_FULL,
    TIDEGATE_KEY_LENGTH, TIDEGATE_LATE, TIDEGATE_NOT_ADMITTED, TIDEGATE_OK, TIDEGATE_OTHER_VERSION,
    TIDEGATE_SYSTEM, TIDEGATE_THROTTLED, TIDEGATE_TOO_SMALL, TIDEGATE_UNREACHABLE,
    TIDEGATE_VALUE_LENGTH, guarded,
};

/// Bytes of the longest key; the shortest has one.
pub const TIDEGATE_KEY_MAX: usize = 250;
/// Bytes of the longest value.
pub const TIDEGATE_VALUE_MAX: usize = 4096;
/// Bytes of the longest key and value together.
pub const TIDEGATE_ENTRY_MAX: usize = 4144;

const _: () = assert!(TIDEGATE_KEY_MAX == KEY_MAX && TIDEGATE_VALUE_MAX == VALUE_MAX);
const _: () = assert!(TIDEGATE_ENTRY_MAX == ENTRY_MAX, "the header's numbers are the store's");

/// A client of a data node: keys and values in memory of that node, which this process reads and
/// writes by itself.
///
/// Every function may be called from any thread at any time, except that no other call may be under
/// way when the store is closed. Calls of several threads share what is promised to the store.
pub struct StoreHandle {
    store: Store,
    /// Where the data node listens, for messages.
    at: String,
}

/// Tenant and time-out of a store. A field that is zero has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreSettings {
    /// sizeof(tidegate_store_settings).
    pub size: usize,
    /// The tenant that the program acts for. By default the policy's match rules decide.
    pub tenant: *const c_char,
    /// How long to wait for the data node when the store is opened, and how long an operation may
    /// take, in nanoseconds. By default ten seconds.
    pub timeout_ns: u64,
    /// Of how many equal parts of what its tenant is promised the store has one. By default it has
    /// all that is left.
    pub parts: u32,
    /// For how many keys to remember where their values are, with 16 bytes each: a get of one of
    /// those takes one operation on the memory instead of three. By default 65,536.
    pub locations: u32,
    /// 1 to do without promises, tokens and limits, for measurements, which only root and the data
    /// node's own user may; 0 to have them.
    pub bare: c_int,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it begins with its size, and consists of integers and pointers.
unsafe impl Versioned for StoreSettings {
    const NAME: &'static str = "tidegate_store_settings";
}

/// A key to look up, and the result.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lookup {
    /// The key, set by the caller.
    pub key: Bytes,
    /// Where its value is to go, set by the caller.
    pub buffer: Buffer,
    /// The value, as tidegate_store_get() gives it.
    pub value: Bytes,
    /// How it went: what tidegate_store_get() would have returned.
    pub status: c_int,
    /// Zero.
    pub reserved: u32,
}

/// The problem to report for `error` of the data node that listens at `at`.
#[cold]
fn problem(at: &str, error: &Error) -> Problem {
    let status = match error {
        Error::Operation(Refused::Key { .. }) => TIDEGATE_KEY_LENGTH,
        Error::Operation(Refused::Value { .. }) => TIDEGATE_VALUE_LENGTH,
        Error::Unreachable(_) | Error::Gone | Error::Outside(_) | Error::Moved => {
            TIDEGATE_UNREACHABLE
        }
        Error::Refused(_) => TIDEGATE_NOT_ADMITTED,
        Error::Version(_) | Error::Store(LayoutError::Version { .. }) => TIDEGATE_OTHER_VERSION,
        Error::Store(_) | Error::Corrupt => TIDEGATE_DAMAGED,
        Error::Memory(_) => TIDEGATE_SYSTEM,
        Error::Full | Error::Crowded => TIDEGATE_FULL,
        Error::Throttled => TIDEGATE_THROTTLED,
        Error::Contended => TIDEGATE_CONTENDED,
        Error::Late { .. } | Error::Operation(Refused::Busy) => TIDEGATE_LATE,
        Error::Forked => TIDEGATE_FORKED,
    };
    match error {
        Error::Operation(_) => Problem::new(status, error.to_string()),
        _ => Problem::new(status, format!("{at}: {error}")),
    }
}

/// Opens the store of the data node that listens on the Unix socket at the path `at`, waits for its
/// answer, and starts a thread that keeps the store's session slot while the program does
/// something else. A null pointer for `settings` means the defaults. The first operation may take
/// until the node's next period begins.
///
/// A store is the process's that opened it: in a child of fork() all functions but
/// tidegate_store_close() answer TIDEGATE_FORKED.
///
/// TIDEGATE_INVALID: a null or misaligned pointer for `at` or `store`, text that is not UTF-8.
/// TIDEGATE_UNREACHABLE: no data node listens there, or it does not answer in time.
/// TIDEGATE_NOT_ADMITTED: it lets this process not in, or not for this tenant.
/// TIDEGATE_OTHER_VERSION: it, or the store in its memory, is of another release.
/// TIDEGATE_DAMAGED: there is no store in its memory, or a damaged one.
/// TIDEGATE_SYSTEM: the memory cannot be mapped, or there is no thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_open(
    at: *const c_char,
    settings: *const StoreSettings,
    store: *mut *mut StoreHandle,
) -> c_int {
    guarded(|| {
        let target = out(store, "store")?;
        // SAFETY: not null and aligned, and the caller's variable for a pointer.
        unsafe { target.write(std::ptr::null_mut()) };
        // SAFETY: null, or text with a zero at its end.
        let at = unsafe { text(at, "at") }?.to_owned();
        // SAFETY: the caller passes null or settings that begin with their size.
        let settings = unsafe { read_settings(settings) }?;
        let store = Store::open(&at, settings).map_err(|error| problem(&at, &error))?;
        // SAFETY: as above.
        unsafe { target.write(Box::into_raw(Box::new(StoreHandle { store, at }))) };
        Ok(())
    })
}

/// # Safety
/// As for `tidegate_store_open`.
unsafe fn read_settings(settings: *const StoreSettings) -> Result<Settings, Problem> {
    let mut result = Settings::default();
    if settings.is_null() {
        return Ok(result);
    }
    // SAFETY: the caller's pointers are null or as the header requires.
    let (settings, tenant) = unsafe {
        let settings = sized(settings)?;
        (settings, optional(settings.tenant, "tenant")?)
    };
    result.tenant = tenant.unwrap_or_default().into();
    result.is_bare = settings.bare != 0;
    result.parts = settings.parts.max(1);
    if settings.timeout_ns > 0 {
        result.patience = Span(settings.timeout_ns);
    }
    if settings.locations > 0 {
        result.locations = settings.locations;
    }
    Ok(result)
}

/// Closes a store and gives its session slot back, which takes some milliseconds. Does nothing with
/// a null pointer. In a child of fork() it leaves the parent's store as it is.
///
/// TIDEGATE_INVALID: a misaligned pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_close(store: *mut StoreHandle) -> c_int {
    guarded(|| {
        if !store.is_null() {
            let store = out(store, "store")?;
            // SAFETY: made by `tidegate_store_open`, and the caller gives it up.
            drop(unsafe { Box::from_raw(store) });
        }
        Ok(())
    })
}

/// The store behind a handle.
///
/// # Safety
/// Null, or from `tidegate_store_open` and not closed during `'a`.
#[inline]
unsafe fn handle<'a>(store: *const StoreHandle) -> Result<&'a StoreHandle, Problem> {
    let store = out(store.cast_mut(), "store")?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { &*store })
}

/// No value.
const NOTHING: Bytes = Bytes { data: null(), length: 0 };

impl Buffer {
    /// Copies a value here, and returns its location. A buffer that is too small gets nothing, and
    /// only the length is returned.
    ///
    /// # Safety
    /// The buffer is the caller's, and no other thread uses it.
    unsafe fn take(self, value: &[u8]) -> Bytes {
        if value.len() > self.capacity {
            return Bytes { data: null(), length: value.len() };
        }
        // A value of no bytes must differ from none.
        let data = NonNull::new(self.data).unwrap_or(NonNull::dangling());
        // SAFETY: it is the caller's, has room for it, and is none of ours.
        unsafe { data.as_ptr().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        Bytes { data: data.as_ptr(), length: value.len() }
    }

    fn check(self) -> Result<(), Problem> {
        match self.capacity {
            0 => Ok(()),
            _ => out(self.data, "the buffer").map(|_| ()),
        }
    }

    #[cold]
    fn too_small(self, value: Bytes) -> Problem {
        let (length, capacity) = (value.length, self.capacity);
        let detail = format!("the value has {length} bytes and the buffer {capacity}");
        Problem::new(TIDEGATE_TOO_SMALL, detail)
    }
}

/// Copies the value of a key into `buffer`. `*value` is its location there and its length; its
/// pointer is null if the key has no value, which is no error, and not null if the value has no
/// bytes.
///
/// TIDEGATE_INVALID: a null or misaligned pointer. TIDEGATE_TOO_SMALL: the value does not fit;
/// `value->length` is its length. A buffer of TIDEGATE_VALUE_MAX bytes is never too small.
/// TIDEGATE_KEY_LENGTH: the key has no bytes, or more than TIDEGATE_KEY_MAX. TIDEGATE_DAMAGED: the
/// store does not hold what was written to it. TIDEGATE_CONTENDED: others changed the key again and
/// again; try again. TIDEGATE_LATE: it was not done within the store's timeout, as there were no
/// tokens for it. TIDEGATE_UNREACHABLE: the same, and the data node is gone; or it does not let
/// this client in any more. TIDEGATE_FORKED: another process has opened the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_get(
    store: *const StoreHandle,
    key: Bytes,
    buffer: Buffer,
    value: *mut Bytes,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let StoreHandle { store, at } = unsafe { handle(store) }?;
        let target = out(value, "value")?;
        // SAFETY: not null and aligned, and the caller's variable for a result.
        unsafe { target.write(NOTHING) };
        buffer.check()?;
        // SAFETY: the caller's bytes, for as long as the call takes.
        let key = unsafe { key.slice("the key") }?;
        // SAFETY: the buffer is the caller's, for as long as the call takes.
        let found = store.get_with(key, |value| unsafe { buffer.take(value) });
        let Some(value) = found.map_err(|error| problem(at, &error))? else { return Ok(()) };
        // SAFETY: as above.
        unsafe { target.write(value) };
        if value.data.is_null() { Err(buffer.too_small(value)) } else { Ok(()) }
    })
}

/// tidegate_store_get() for many keys, which are looked for together: their first operations go at
/// once, and none waits for another (as far as the data node's window allows, and 64 at a time).
/// Keys and buffers are the caller's; buffers must not overlap.
///
/// Each lookup has its status. The function returns TIDEGATE_OK if all went well, else the status
/// of one that did not, for which tidegate_error_detail() has words.
///
/// TIDEGATE_INVALID: a null or misaligned pointer; nothing was looked for then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_get_many(
    store: *const StoreHandle,
    lookups: *mut Lookup,
    count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let handle = unsafe { handle(store) }?;
        // SAFETY: the caller's lookups, which no other thread uses during the call.
        let lookups = unsafe { crate::arguments::slice_mut(lookups, count, "lookups") }?;
        for lookup in lookups.iter_mut() {
            (lookup.value, lookup.status) = (NOTHING, UNREPORTED);
            lookup.buffer.check()?;
            // SAFETY: the caller's bytes, for as long as the call takes.
            unsafe { lookup.key.slice("a key") }?;
        }
        look_up_all(handle, lookups)
    })
}

/// Not looked for yet.
const UNREPORTED: c_int = -1;

/// Looks for keys whose pointers have been checked. Gives the first problem.
fn look_up_all(
    StoreHandle { store, at }: &StoreHandle,
    lookups: &mut [Lookup],
) -> Result<(), Problem> {
    // SAFETY: the caller's bytes, for as long as the call takes.
    let keys = lookups.iter().map(|lookup| unsafe { lookup.key.slice("a key") });
    let keys = keys.collect::<Result<Vec<&[u8]>, Problem>>()?;
    let mut first = Ok(());
    let mut note = |lookup: &mut Lookup, problem: Problem| {
        lookup.status = problem.status();
        if first.is_ok() {
            first = Err(problem);
        }
    };
    let found = store.get_many(&keys, |target, value| {
        let lookup = &mut lookups[target];
        lookup.status = TIDEGATE_OK;
        match value {
            Ok(None) => {}
            Ok(Some(value)) => {
                // SAFETY: the buffer is the caller's, for as long as the call takes.
                lookup.value = unsafe { lookup.buffer.take(value) };
                if lookup.value.data.is_null() {
                    note(lookup, lookup.buffer.too_small(lookup.value));
                }
            }
            Err(error) => note(lookup, problem(at, &error)),
        }
    });
    if let Err(error) = found {
        let rest = lookups.iter_mut().filter(|lookup| lookup.status == UNREPORTED);
        rest.for_each(|lookup| note(lookup, problem(at, &error)));
    }
    first
}

/// Gives a key a value, whether it has one or not. Both are copied before it returns; who reads
/// sees the old value or the new one.
///
/// TIDEGATE_VALUE_LENGTH: the value has more than TIDEGATE_VALUE_MAX bytes, or key and value
/// together more than TIDEGATE_ENTRY_MAX.
/// TIDEGATE_FULL: the store has no room for it. TIDEGATE_THROTTLED: this client updates faster than
/// the store's free space allows.
/// TIDEGATE_LATE, TIDEGATE_UNREACHABLE: as for tidegate_store_get(); it may happen yet.
/// Others as for tidegate_store_get().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_put(
    store: *const StoreHandle,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let StoreHandle { store, at } = unsafe { handle(store) }?;
        // SAFETY: the caller's bytes, for as long as the call takes.
        let (key, value) = unsafe { (key.slice("the key")?, value.slice("the value")?) };
        store.put(key, value).map_err(|error| problem(at, &error))
    })
}

/// Takes a key's value away. `*had` is 1 if there was one, else 0, which is no error either way;
/// `had` may be null.
///
/// TIDEGATE_LATE, TIDEGATE_UNREACHABLE: as for tidegate_store_get(); it may happen yet.
/// Others as for tidegate_store_get().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_store_delete(
    store: *const StoreHandle,
    key: Bytes,
    had: *mut c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let StoreHandle { store, at } = unsafe { handle(store) }?;
        let target = if had.is_null() { None } else { Some(out(had, "had")?) };
        // SAFETY: the caller's bytes, for as long as the call takes.
        let key = unsafe { key.slice("the key") }?;
        let is_deleted = store.delete(key).map_err(|error| problem(at, &error))?;
        if let Some(target) = target {
            // SAFETY: not null and aligned, and the caller's variable for a number.
            unsafe { target.write(is_deleted.into()) };
        }
        Ok(())
    })
}
