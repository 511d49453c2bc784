//! The RocksDB of this machine, by its interface for C: the library is opened at run time, so
//! building this program takes neither the library nor its headers.
//!
//! The library is the distribution's, without any change. Its interface for C has handles only, so
//! that it is the same in all versions of the last years.
#![allow(unsafe_code, reason = "calls of a library for C; safe wrappers are all that leaves here")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use libloading::Library;
use tidegate_model::Rate;

/// Names of the library, the one of the distribution's package for developers first.
const NAMES: [&str; 6] = [
    "librocksdb.so",
    "librocksdb.so.7.8",
    "librocksdb.so.8.9",
    "librocksdb.so.9.10",
    "librocksdb.so.10",
    "librocksdb.so.6.11",
];

/// The advice where no such library is.
pub(crate) const REMEDY: &str = "install it, for example with `apt-get install librocksdb7.8`";

/// Sizes of the store, small enough that flushes and compactions of several levels happen within
/// seconds: a tenth of a percent of what a real store would have. Levels have ten times the size of
/// the one before, as is usual.
const WRITE_BUFFER: usize = 2 << 20;
const TABLE: u64 = 2 << 20;
const LEVEL_BASE: u64 = 8 << 20;
const BLOCK_CACHE: usize = 8 << 20;
/// As in the paper, one thread flushes and seven compact.
const FLUSHES: c_int = 1;
const COMPACTIONS: c_int = 7;
/// Bits of the Bloom filter for each key, as is usual.
const FILTER_BITS: f64 = 10.0;

/// The refill period and the fairness of limiters, as RocksDB has them by default.
const REFILL_US: i64 = 100_000;
const FAIRNESS: i32 = 10;
/// RocksDB's number for limiters of writes alone, as they are by default.
const WRITES_ONLY: c_int = 1;

/// A handle of the library.
type Handle = *mut c_void;
/// Where a call puts the text of its error.
type ErrorText = *mut *mut c_char;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of these names, which begin with `rocksdb_`.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "names of the library")]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// The library is RocksDB, and stays open.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: RocksDB's header has these signatures.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(
                            concat!("rocksdb_", stringify!($name), "\0").as_bytes(),
                        )?,)*
                    })
                }
            }
        }
    };
}

functions! {
    options_create() -> Handle;
    options_destroy(Handle);
    options_set_create_if_missing(Handle, u8);
    options_set_write_buffer_size(Handle, usize);
    options_set_target_file_size_base(Handle, u64);
    options_set_max_bytes_for_level_base(Handle, u64);
    options_set_max_background_flushes(Handle, c_int);
    options_set_max_background_compactions(Handle, c_int);
    options_set_compression(Handle, c_int);
    options_set_use_direct_reads(Handle, u8);
    options_set_use_direct_io_for_flush_and_compaction(Handle, u8);
    options_set_block_based_table_factory(Handle, Handle);
    options_set_ratelimiter(Handle, Handle);
    options_enable_statistics(Handle);
    options_statistics_get_string(Handle) -> *mut c_char;
    block_based_options_create() -> Handle;
    block_based_options_destroy(Handle);
    block_based_options_set_block_cache(Handle, Handle);
    block_based_options_set_filter_policy(Handle, Handle);
    cache_create_lru(usize) -> Handle;
    cache_destroy(Handle);
    filterpolicy_create_bloom_full(f64) -> Handle;
    ratelimiter_create(i64, i64, i32) -> Handle;
    ratelimiter_destroy(Handle);
    writeoptions_create() -> Handle;
    writeoptions_destroy(Handle);
    writeoptions_disable_WAL(Handle, c_int);
    readoptions_create() -> Handle;
    readoptions_destroy(Handle);
    flushoptions_create() -> Handle;
    flushoptions_destroy(Handle);
    open(Handle, *const c_char, ErrorText) -> Handle;
    close(Handle);
    put(Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorText);
    get(Handle, Handle, *const c_char, usize, *mut usize, ErrorText) -> *mut c_char;
    flush(Handle, Handle, ErrorText);
    free(Handle);
}

/// `rocksdb_ratelimiter_create_auto_tuned`, in newer versions.
type CreateTuned = unsafe extern "C" fn(i64, i64, i32) -> Handle;
/// `rocksdb::NewGenericRateLimiter` of C++, with RocksDB's mode and whether it tunes itself.
type NewTuned = unsafe extern "C" fn(i64, i64, i32, c_int, bool) -> Handle;

/// A way to make a limiter that tunes itself.
#[derive(Clone, Copy)]
enum Tuned {
    Create(CreateTuned),
    New(NewTuned),
}

/// Which of its own limiters a store has on flushes and compactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnLimiter {
    None,
    /// Always this rate of writes.
    Static(Rate),
    /// A rate of writes up to this one, which follows the backlog.
    AutoTuned(Rate),
}

/// The library, opened once and never closed.
pub(crate) struct RocksDb {
    functions: Functions,
    tuned: Option<Tuned>,
}

impl RocksDb {
    /// Opens the library.
    ///
    /// # Errors
    /// If there is none, or one without these functions: why, and how to mend it.
    pub(crate) fn open() -> Result<Self, String> {
        let mut first = None;
        for name in NAMES {
            // SAFETY: the library's initialisation asks nothing of this program.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::of(library),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let why = first.map(|error| error.to_string()).unwrap_or_default();
        Err(format!("RocksDB's library is not here ({why}); {REMEDY}"))
    }

    fn of(library: Library) -> Result<Self, String> {
        // Its threads may run until this process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: a library of that name is RocksDB, and it is never closed.
        let functions = unsafe { Functions::of(library) }
            .map_err(|error| format!("RocksDB's library is of another version: {error}"))?;
        let create = b"rocksdb_ratelimiter_create_auto_tuned\0";
        let new = b"_ZN7rocksdb21NewGenericRateLimiterElliNS_11RateLimiter4ModeEb\0";
        // SAFETY: the header has this signature since there is such a function.
        let tuned = unsafe { library.get(create) }.map(|create| Tuned::Create(*create));
        // SAFETY: the mangled name says these types, of which an enumeration is an integer.
        let tuned = tuned.or_else(|_| unsafe { library.get(new) }.map(|new| Tuned::New(*new)));
        Ok(Self { functions, tuned: tuned.ok() })
    }

    /// The library's file, as the kernel has it.
    pub(crate) fn path() -> String {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
        paths.find(|path| path.contains("/librocksdb.so")).unwrap_or_default().to_owned()
    }

    /// Whether this version can make a limiter that tunes itself.
    pub(crate) fn can_auto_tune(&self) -> bool {
        self.tuned.is_some()
    }

    /// Opens a store, which is made if it is not there.
    ///
    /// # Errors
    /// If the library refuses, in its words.
    pub(crate) fn store(self, path: &Path, limiter: OwnLimiter) -> Result<LsmStore, String> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let f = self.functions;
        let options = self.options(limiter)?;
        // SAFETY: handles are those that the library has just made, and the path ends with a zero.
        unsafe {
            let write = (f.writeoptions_create)();
            // As in the paper, there is no log.
            (f.writeoptions_disable_WAL)(write, 1);
            let read = (f.readoptions_create)();
            let mut error = null_mut();
            let store = (f.open)(options, path.as_ptr(), &mut error);
            let opened = LsmStore { functions: f, store, options, write, read };
            opened.checked(error)?;
            Ok(opened)
        }
    }

    fn options(&self, limiter: OwnLimiter) -> Result<Handle, String> {
        let f = &self.functions;
        let limiter = self.limiter(limiter)?;
        // SAFETY: all handles are made here. The options keep what they are given: they share the
        // cache, the table's options and the limiter, and own the filter.
        unsafe {
            let options = (f.options_create)();
            (f.options_set_create_if_missing)(options, 1);
            (f.options_set_write_buffer_size)(options, WRITE_BUFFER);
            (f.options_set_target_file_size_base)(options, TABLE);
            (f.options_set_max_bytes_for_level_base)(options, LEVEL_BASE);
            (f.options_set_max_background_flushes)(options, FLUSHES);
            (f.options_set_max_background_compactions)(options, COMPACTIONS);
            // Past the page cache, so that the disk's limit is felt; without compression, as in
            // the paper.
            (f.options_set_compression)(options, 0);
            (f.options_set_use_direct_reads)(options, 1);
            (f.options_set_use_direct_io_for_flush_and_compaction)(options, 1);
            (f.options_enable_statistics)(options);
            let (table, cache) =
                ((f.block_based_options_create)(), (f.cache_create_lru)(BLOCK_CACHE));
            (f.block_based_options_set_block_cache)(table, cache);
            let filter = (f.filterpolicy_create_bloom_full)(FILTER_BITS);
            (f.block_based_options_set_filter_policy)(table, filter);
            (f.options_set_block_based_table_factory)(options, table);
            (f.cache_destroy)(cache);
            (f.block_based_options_destroy)(table);
            if let Some(limiter) = limiter {
                (f.options_set_ratelimiter)(options, limiter);
                (f.ratelimiter_destroy)(limiter);
            }
            Ok(options)
        }
    }

    fn limiter(&self, limiter: OwnLimiter) -> Result<Option<Handle>, String> {
        let rate = |rate: Rate| i64::try_from(rate.0).unwrap_or(i64::MAX);
        let create = self.functions.ratelimiter_create;
        match limiter {
            OwnLimiter::None => Ok(None),
            OwnLimiter::Static(limit) => {
                // SAFETY: the function takes numbers alone.
                let limiter = unsafe { create(rate(limit), REFILL_US, FAIRNESS) };
                Ok(Some(limiter))
            }
            OwnLimiter::AutoTuned(limit) => match self.tuned {
                None => Err("this version of RocksDB makes no auto-tuned limiter for C".into()),
                Some(Tuned::Create(tuned)) => {
                    // SAFETY: the function takes numbers alone.
                    let limiter = unsafe { tuned(rate(limit), REFILL_US, FAIRNESS) };
                    Ok(Some(limiter))
                }
                // SAFETY: a limiter for C is a shared pointer of C++ and nothing else. Its first
                // word is the object, the second what deletes the object that was there first. So
                // another object can be put there, which is never deleted.
                Some(Tuned::New(new)) => unsafe {
                    let handle = create(rate(limit), REFILL_US, FAIRNESS);
                    *handle.cast::<Handle>() =
                        new(rate(limit), REFILL_US, FAIRNESS, WRITES_ONLY, true);
                    Ok(Some(handle))
                },
            },
        }
    }
}

/// An open store. Dropping it closes it; what is in memory alone is lost, for there is no log.
pub(crate) struct LsmStore {
    functions: Functions,
    /// Null if it could not be opened.
    store: Handle,
    options: Handle,
    write: Handle,
    read: Handle,
}

// SAFETY: all functions of an open store may be called by several threads at once, and the options
// are only read.
unsafe impl Send for LsmStore {}
// SAFETY: as above.
unsafe impl Sync for LsmStore {}

impl LsmStore {
    /// # Errors
    /// If the store refuses, in its words.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let mut error = null_mut();
        // SAFETY: the store is open, and both slices live until the call ends.
        unsafe {
            (self.functions.put)(
                self.store,
                self.write,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                &mut error,
            );
        }
        self.checked(error)
    }

    /// The length of the value of a key; none if there is no value.
    ///
    /// # Errors
    /// If the store cannot read, in its words.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let (mut error, mut length) = (null_mut(), 0);
        // SAFETY: the store is open, and the key lives until the call ends. The value is ours.
        let is_there = unsafe {
            let get = self.functions.get;
            let value =
                get(self.store, self.read, key.as_ptr().cast(), key.len(), &mut length, &mut error);
            (self.functions.free)(value.cast());
            !value.is_null()
        };
        self.checked(error)?;
        Ok(is_there.then_some(length))
    }

    /// Writes what is in memory to a table, and waits until it is there.
    ///
    /// # Errors
    /// If the store cannot write, in its words.
    pub(crate) fn flush(&self) -> Result<(), String> {
        let mut error = null_mut();
        // SAFETY: the store is open, and the options are made and destroyed here.
        unsafe {
            let options = (self.functions.flushoptions_create)();
            (self.functions.flush)(self.store, options, &mut error);
            (self.functions.flushoptions_destroy)(options);
        }
        self.checked(error)
    }

    /// A counter of the store's own, like `rocksdb.flush.write.bytes`; zero if there is none.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        // SAFETY: the options are the store's, and the text is ours and ends with a zero.
        let text = unsafe {
            let text = (self.functions.options_statistics_get_string)(self.options);
            owned(&self.functions, text)
        };
        let prefix = format!("{name} COUNT : ");
        let found = text.lines().find_map(|line| line.strip_prefix(&prefix));
        found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    fn checked(&self, error: *mut c_char) -> Result<(), String> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the library made the text for its caller, with a zero at the end.
        Err(unsafe { owned(&self.functions, error) })
    }
}

/// Takes a text that the library has made; nothing if it is null.
///
/// # Safety
/// It is null, or it ends with a zero and is the caller's.
unsafe fn owned(functions: &Functions, text: *mut c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller promised it.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        (functions.free)(text.cast());
        copy
    }
}

impl Drop for LsmStore {
    fn drop(&mut self) {
        let f = &self.functions;
        // SAFETY: no call is under way, and no handle is used after this.
        unsafe {
            if !self.store.is_null() {
                (f.close)(self.store);
            }
            (f.readoptions_destroy)(self.read);
            (f.writeoptions_destroy)(self.write);
            (f.options_destroy)(self.options);
        }
    }
}
