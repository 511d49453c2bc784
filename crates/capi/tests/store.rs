//! Stores as C calls them, without a data node: refused calls and their messages. Tests of calls
//! that succeed are in `tests/`, with a data node.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::{CStr, CString, c_int};
use std::mem::size_of;
use std::os::unix::net::UnixListener;
use std::ptr::{null, null_mut};

use tidegate::layered::{Buffer, Bytes};
use tidegate::status::*;
use tidegate::store::*;

fn detail() -> String {
    // SAFETY: never null, and read at once.
    unsafe { CStr::from_ptr(tidegate_error_detail()) }.to_string_lossy().into_owned()
}

fn settings() -> StoreSettings {
    StoreSettings {
        size: size_of::<StoreSettings>(),
        tenant: null(),
        timeout_ns: 1_000_000,
        parts: 0,
        locations: 0,
        bare: 0,
        reserved: 0,
    }
}

fn open(at: &CStr, settings: &StoreSettings) -> c_int {
    let mut store = null_mut();
    // SAFETY: everything outlives the call.
    let status = unsafe { tidegate_store_open(at.as_ptr(), settings, &raw mut store) };
    assert!(store.is_null(), "there is nothing to close");
    status
}

#[test]
fn a_missing_data_node_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.sock");
    let at = CString::new(path.to_str().unwrap()).unwrap();
    assert_eq!(open(&at, &settings()), TIDEGATE_UNREACHABLE);
    assert!(detail().starts_with(path.to_str().unwrap()), "{}", detail());
    assert!(detail().contains("tidegate up"), "{}", detail());
    let _silent = UnixListener::bind(&path).unwrap();
    assert_eq!(open(&at, &settings()), TIDEGATE_UNREACHABLE);
    assert!(detail().contains("does not answer"), "{}", detail());
}

#[test]
fn what_makes_no_sense_is_invalid() {
    let latin = CString::new(vec![0xe9]).unwrap();
    assert_eq!(open(&latin, &settings()), TIDEGATE_INVALID);
    assert_eq!(open(c"x", &StoreSettings { size: 3, ..settings() }), TIDEGATE_INVALID);
    let tenant = StoreSettings { tenant: latin.as_ptr(), ..settings() };
    assert_eq!(open(c"x", &tenant), TIDEGATE_INVALID);
    let (nothing, mut value) =
        (Bytes { data: null(), length: 0 }, Bytes { data: null(), length: 0 });
    let buffer = Buffer { data: null_mut(), capacity: 0 };
    let mut memory = [0u64; 8];
    let askew = memory.as_mut_ptr().wrapping_byte_add(1);
    // SAFETY: null and misaligned pointers are what is tried.
    let statuses = unsafe {
        assert_eq!(tidegate_store_close(null_mut()), TIDEGATE_OK);
        [
            tidegate_store_open(c"x".as_ptr(), null(), null_mut()),
            tidegate_store_open(null(), null(), memory.as_mut_ptr().cast()),
            tidegate_store_close(askew.cast()),
            tidegate_store_get(null(), nothing, buffer, &raw mut value),
            tidegate_store_get(askew.cast(), nothing, buffer, &raw mut value),
            tidegate_store_get_many(null(), null_mut(), 0),
            tidegate_store_put(null(), nothing, nothing),
            tidegate_store_delete(null(), nothing, null_mut()),
        ]
    };
    assert_eq!(statuses, [TIDEGATE_INVALID; 8]);
    assert_eq!(memory, [0; 8], "nothing was written");
}
