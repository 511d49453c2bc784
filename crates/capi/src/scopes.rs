//! Contexts of a thread's requests (foreground, flush, compaction) in the C interface.

use std::ffi::c_char;
use std::panic::catch_unwind;

use tidegate_model::ContextId;
use tidegate_stage::scope;

use crate::arguments::text;

/// Enters a scope: from now on, requests of this thread are made in the context with this name
/// ("flush", "compaction", ...), until tidegate_scope_leave() is called with what this returns.
/// Scopes nest, and belong to the thread that entered them. Takes some 20 ns for a known name.
///
/// Names are cut after 63 bytes, and a process has at most 255 of them; later ones, a null pointer
/// and text that is not UTF-8 count as no context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_scope_enter(name: *const c_char) -> u16 {
    // SAFETY: the caller passes null or text with a zero at its end.
    let name = unsafe { text(name, "name") }.unwrap_or_default();
    catch_unwind(|| scope::enter_named(name.as_bytes()).0).unwrap_or(0)
}

/// Leaves a scope: the thread is again where it was when tidegate_scope_enter() returned
/// `previous`.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_scope_leave(previous: u16) {
    // The context cannot fail to change, and if it did no caller could be informed.
    let _ = catch_unwind(|| scope::enter(ContextId(previous)));
}

/// The number that the context with this name has in this process, for comparing it with the one in
/// a tag. Zero is no context; see tidegate_scope_enter() for names that count as none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_intern(name: *const c_char) -> u16 {
    // SAFETY: the caller passes null or text with a zero at its end.
    let name = unsafe { text(name, "name") }.unwrap_or_default();
    catch_unwind(|| scope::intern(name.as_bytes()).0).unwrap_or(0)
}
