//! Status codes of the C interface.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// It is done.
pub const TIDEGATE_OK: c_int = 0;
/// An argument is null, misaligned, out of range, not UTF-8, or a structure of an unknown size; or
/// an admission is not under way.
pub const TIDEGATE_INVALID: c_int = 1;
/// Something in the library went wrong. This is a defect: please report it.
pub const TIDEGATE_FAILURE: c_int = 2;
/// The operating system refused something: memory, a thread, random numbers.
pub const TIDEGATE_SYSTEM: c_int = 3;
/// A rule was refused; tidegate_error_detail() has the reason. Nothing was changed.
pub const TIDEGATE_REFUSED: c_int = 4;
/// The caller's buffer is too small, or content is larger than the caller allows.
pub const TIDEGATE_TOO_SMALL: c_int = 5;
/// A gate names a key that was not given when the stage was opened.
pub const TIDEGATE_NO_KEY: c_int = 6;
/// Content was changed, or was written with another key, for another place, or by no gate of this
/// channel.
pub const TIDEGATE_NOT_AUTHENTIC: c_int = 7;
/// The rules changed while a request was under way, or in the parent since this process was forked,
/// so that it is not known any more whether its content is to be encrypted or compressed.
pub const TIDEGATE_RULES_CHANGED: c_int = 8;
/// No data node listens there, or it does not answer; or it is gone, and without it there are no
/// tokens for the operation.
pub const TIDEGATE_UNREACHABLE: c_int = 9;
/// The data node does not let this client in: its policy has no such tenant, or the user may not
/// act for it, or not so much is left to promise.
pub const TIDEGATE_NOT_ADMITTED: c_int = 10;
/// The data node, or the store in its memory, is of another release.
pub const TIDEGATE_OTHER_VERSION: c_int = 11;
/// A key has no bytes, or too many.
pub const TIDEGATE_KEY_LENGTH: c_int = 12;
/// A value has too many bytes.
pub const TIDEGATE_VALUE_LENGTH: c_int = 13;
/// The store has no room for a key or its value.
pub const TIDEGATE_FULL: c_int = 14;
/// Others changed the same key again and again. Nothing was changed; try again.
pub const TIDEGATE_CONTENDED: c_int = 15;
/// The store, or a value in it, is not what was written.
pub const TIDEGATE_DAMAGED: c_int = 16;
/// An operation was not done in time: there were no tokens for it. A change may still be
/// made later.
pub const TIDEGATE_LATE: c_int = 17;
/// The store was opened by the process that this one was forked from.
pub const TIDEGATE_FORKED: c_int = 18;
/// This client's updates hold as many blocks of the store as they may at this time. Nothing was
/// changed; try again after two periods.
pub const TIDEGATE_THROTTLED: c_int = 19;
/// No controller has sent rules yet: none is there, or it has not answered, or it has no policy.
/// They may still come.
pub const TIDEGATE_NO_RULES: c_int = 20;
/// The controller refuses the stage: its policy has no such tenant, or the user may not act for it.
/// Or the stage cannot hold the rules of the policy.
pub const TIDEGATE_STAGE_REFUSED: c_int = 21;

const NAMES: [&CStr; 22] = [
    c"done",
    c"invalid argument",
    c"failure inside the library",
    c"the operating system refused",
    c"rule refused",
    c"buffer too small",
    c"no such key",
    c"content is not what a gate of this channel wrote",
    c"rules changed meanwhile",
    c"data node unreachable",
    c"not admitted by the data node",
    c"another version",
    c"key of an impossible length",
    c"value too long",
    c"store full",
    c"others were faster",
    c"store damaged",
    c"not done in time",
    c"store of another process",
    c"too many updates for the free space",
    c"no rules yet",
    c"stage refused by the controller",
];

/// Why a call ends early: a status, and words about it.
pub(crate) struct Problem(c_int, String);

impl Problem {
    pub(crate) fn new(status: c_int, detail: impl Into<String>) -> Self {
        Self(status, detail.into())
    }

    pub(crate) fn status(&self) -> c_int {
        self.0
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(TIDEGATE_INVALID, detail)
    }
}

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function of the interface.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Problem>) -> c_int {
    // Unwind safety: what a body leaves half done is one request's, and the caller gets the status.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => TIDEGATE_OK,
        Ok(Err(problem)) => note(problem),
        Err(_) => note(Problem::new(TIDEGATE_FAILURE, "a panic was caught; see standard error")),
    }
}

#[cold]
fn note(Problem(status, detail): Problem) -> c_int {
    let detail = CString::new(detail.replace('\0', "?")).unwrap_or_default();
    // Where the thread is about to end there is nowhere to keep it.
    let _ = DETAIL.try_with(|cell| cell.replace(detail));
    status
}

/// The meaning of a status, in a few words. Never null; the text lives as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_strerror(status: c_int) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|status| NAMES.get(status));
    name.copied().unwrap_or(c"unknown status").as_ptr()
}

/// The exact error of the function that failed last on this thread, in words for people. Never
/// null, empty if none has failed; the text lives until the next function fails on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_error_detail() -> *const c_char {
    let found = DETAIL.try_with(|cell| cell.try_borrow().map(|detail| detail.as_ptr()));
    found.ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status() {
        let status = guarded(|| panic!("this message on standard error is the test's"));
        assert_eq!(status, TIDEGATE_FAILURE);
        // SAFETY: never null, and read at once.
        let detail = unsafe { CStr::from_ptr(tidegate_error_detail()) };
        assert_eq!(detail, c"a panic was caught; see standard error");
    }
}
