//! Context propagation: the purpose of I/O, as the program declares it (PAIO §4).
//!
//! A context is a name, `flush` for example. A thread is in one context at a time, and everything
//! it requests is tagged with it. Names are interned once per process; entering a scope stores an
//! integer.
//!
//! A program that uses this library and runs under the shim as well has two copies of this module.
//! Only the shim sees the system calls. So under the shim, this library passes scopes on to the
//! shim's copy.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use tidegate_model::ContextId;

pub use crate::context_names::{CONTEXTS_MAX, NAME_MAX, intern};
use crate::local;

/// Function that the shim exports for other copies of this module. It interns a name and enters its
/// context, or, without a name, enters the id. Returns the id of the former context.
pub type ShimEnter = unsafe extern "C" fn(*const u8, usize, u16) -> u16;
/// Name under which the shim exports it.
pub const SHIM_ENTER: &CStr = c"tidegate_shim_enter";

/// Looked up once: 0 unknown, 1 absent, else the function.
static SHIM: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
const ABSENT: *mut libc::c_void = std::ptr::without_provenance_mut(1);

fn shim() -> Option<ShimEnter> {
    let mut found = SHIM.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: dlsym only reads the name.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SHIM_ENTER.as_ptr()) };
        if found.is_null() {
            found = ABSENT;
        }
        SHIM.store(found, Ordering::Relaxed);
    }
    if found == ABSENT {
        return None;
    }
    // SAFETY: the shim defines the symbol with this type.
    Some(unsafe { std::mem::transmute::<*mut libc::c_void, ShimEnter>(found) })
}

/// Puts this thread into a context of this copy of the module, and returns the one it leaves.
#[inline]
pub fn enter_here(context: ContextId) -> ContextId {
    local::enter(context)
}

/// Puts this thread into the context with this name, and returns the one it leaves.
pub fn enter_named(name: &[u8]) -> ContextId {
    match shim() {
        // SAFETY: pointer and length are those of a live slice.
        Some(enter) => ContextId(unsafe { enter(name.as_ptr(), name.len(), 0) }),
        None => local::enter(intern(name)),
    }
}

/// Puts this thread back into a context that [`enter_named`] returned.
pub fn enter(context: ContextId) -> ContextId {
    match shim() {
        // SAFETY: without a name there is nothing to read.
        Some(enter) => ContextId(unsafe { enter(std::ptr::null(), 0, context.0) }),
        None => local::enter(context),
    }
}

/// A stretch of code whose requests have one context; it ends when the value is dropped. Scopes
/// nest, and belong to the thread that entered them.
///
/// ```
/// use tidegate_stage::Scope;
/// let _compaction = Scope::enter("compaction");
/// {
///     let _sync = Scope::enter("sync");
///     // requests made here are "sync"
/// }
/// // and here "compaction"
/// ```
#[must_use = "the scope ends at once if it is not kept"]
#[derive(Debug)]
pub struct Scope {
    previous: ContextId,
    /// A thread's context is its own.
    thread: PhantomData<*const ()>,
}

impl Scope {
    /// Enters the context with this name.
    pub fn enter(name: &str) -> Self {
        Self { previous: enter_named(name.as_bytes()), thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        enter(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_end() {
        let outer = Scope::enter("outer");
        let id = local::context();
        {
            let _inner = Scope::enter("inner");
            assert_ne!(local::context(), id);
        }
        assert_eq!(local::context(), id);
        drop(outer);
        assert_eq!(local::context(), ContextId::NONE);
    }
}
