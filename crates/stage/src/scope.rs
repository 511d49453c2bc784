//! Context propagation: what a program says about why it does I/O (PAIO §4).
//!
//! A context is a name, `flush` for example. A thread is in one context at a time, and everything
//! it asks for is tagged with it. Names are interned once per process; entering a scope stores an
//! integer.
//!
//! A program that uses this library and runs under the shim as well has two copies of this module.
//! The shim's is the one that matters, because it sees the system calls, so scopes are handed to it
//! where it is there.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use tidegate_model::ContextId;

use crate::local;

/// The most contexts of one process. Later names count as no context.
pub const CONTEXTS_MAX: usize = 256;
/// The longest name, in bytes; longer ones are cut.
pub const NAME_MAX: usize = 63;

const WORDS: usize = (NAME_MAX + 1) / 8;

/// An interned name: its bytes, padded with zeros.
struct Name([AtomicU64; WORDS]);

static NAMES: [Name; CONTEXTS_MAX] =
    [const { Name([const { AtomicU64::new(0) }; WORDS]) }; CONTEXTS_MAX];
/// Names in use, and a lock bit: interning is rare and short, so that spinning is enough.
static COUNT: AtomicU32 = AtomicU32::new(1);
const LOCKED: u32 = 1 << 31;

fn padded(name: &[u8]) -> [u64; WORDS] {
    let mut bytes = [0; WORDS * 8];
    let length = name.len().min(NAME_MAX);
    bytes[..length].copy_from_slice(&name[..length]);
    let mut words = [0; WORDS];
    for (word, piece) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(piece.try_into().unwrap_or_default());
    }
    words
}

impl Name {
    fn is(&self, words: &[u64; WORDS]) -> bool {
        self.0.iter().zip(words).all(|(cell, word)| cell.load(Ordering::Relaxed) == *word)
    }
}

fn find(count: u32, words: &[u64; WORDS]) -> Option<ContextId> {
    let names = NAMES.iter().enumerate().take(count as usize).skip(1);
    names.into_iter().find(|(_, name)| name.is(words)).map(|(id, _)| ContextId(id as u16))
}

/// The id of the context with this name in this process. The empty name is no context.
pub fn intern(name: &[u8]) -> ContextId {
    if name.is_empty() {
        return ContextId::NONE;
    }
    let words = padded(name);
    if let Some(id) = find(COUNT.load(Ordering::Acquire) & !LOCKED, &words) {
        return id;
    }
    let count = loop {
        let count = COUNT.load(Ordering::Relaxed) & !LOCKED;
        let locked = COUNT.compare_exchange_weak(
            count,
            count | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if locked.is_ok() {
            break count;
        }
        std::hint::spin_loop();
    };
    let found = find(count, &words);
    let full = count as usize == CONTEXTS_MAX;
    if found.is_none() && !full {
        let cells = &NAMES[count as usize].0;
        cells.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
    }
    let new = found.is_none() && !full;
    COUNT.store(count + u32::from(new), Ordering::Release);
    found.unwrap_or(if full { ContextId::NONE } else { ContextId(count as u16) })
}

/// Calls `see` with the name of a context.
pub(crate) fn with_name<R>(id: ContextId, see: impl FnOnce(&[u8]) -> R) -> R {
    let mut bytes = [0; WORDS * 8];
    if let Some(name) = NAMES.get(usize::from(id.0)) {
        for (piece, cell) in bytes.chunks_exact_mut(8).zip(&name.0) {
            piece.copy_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes());
        }
    }
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    see(&bytes[..length])
}

/// What the shim exports for other copies of this module: interns a name and enters it, or, given
/// no name, enters the id. Returns the id that was left.
pub type ShimEnter = unsafe extern "C" fn(*const u8, usize, u16) -> u16;
/// The name under which it does.
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
    fn a_name_has_one_id_whoever_asks() {
        let ids = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| intern(b"interned by four")));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(ids.iter().all(|id| *id == ids[0] && *id != ContextId::NONE));
        assert_eq!(with_name(ids[0], <[u8]>::to_vec), b"interned by four");
        assert_eq!(intern(b""), ContextId::NONE);
    }

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
