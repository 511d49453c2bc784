//! The state of the process, as the shim knows it: its stage, the rare states that each request
//! checks (a seccomp filter, threads that may be cancelled anywhere, names given to other threads),
//! and the system calls that the program has not forbidden itself.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_stage::Stage;

/// Set by the constructor and never removed: a thread may be in a gate when the program ends.
static STAGE: OnceLock<Stage> = OnceLock::new();

/// The path of its segment, as the environment had it when the program began.
static SEGMENT: OnceLock<Box<[u8]>> = OnceLock::new();

/// The stage of this process, if it has one and the constructor has run.
#[inline]
pub(crate) fn stage() -> Option<&'static Stage> {
    STAGE.get()
}

/// The path of the segment of that stage.
pub(crate) fn segment() -> Option<&'static [u8]> {
    SEGMENT.get().map(|path| &**path)
}

/// Gives the process its stage, which has its segment at `path`. Returns whether it had none.
pub(crate) fn set_stage(stage: Stage, path: &[u8]) -> bool {
    let _ = SEGMENT.set(path.into());
    STAGE.set(stage).is_ok()
}

/// The state that each request checks first, in one word, so that one load suffices: a bit for each
/// rare act of the process, and the number of names that threads have given to other threads.
pub(crate) static RARE_STATE: AtomicU32 = AtomicU32::new(0);
/// The process has forbidden itself system calls.
pub(crate) const SANDBOXED: u32 = 1 << 31;
/// A thread of the process may be cancelled at any instruction.
pub(crate) const CANCELLED_ANYWHERE: u32 = 1 << 30;
pub(crate) const RARE_BITS: u32 = SANDBOXED | CANCELLED_ANYWHERE;

/// Sets or clears a bit.
pub(crate) fn set_rare_state(bit: u32, set: bool) {
    if set {
        RARE_STATE.fetch_or(bit, Ordering::Release);
    } else {
        RARE_STATE.fetch_and(!bit, Ordering::Release);
    }
}

/// Calls that the shim makes for itself, a bit each.
pub(crate) type CallSet = u32;
/// To find out whether memory can be read.
pub(crate) const PROBE: CallSet = 1 << 13;
/// All of them.
pub(crate) const ALL: CallSet = (1 << 14) - 1;

/// The calls that the process may still make, as bits of [`CallSet`].
pub(crate) static ALLOWED: AtomicU32 = AtomicU32::new(ALL);

thread_local! {
    /// Whether the thread is in strict mode.
    pub(crate) static STRICT: Cell<bool> = const { Cell::new(false) };
}

/// Whether any of these calls may end the program.
pub(crate) fn is_forbidden(needs: CallSet) -> bool {
    ALLOWED.load(Ordering::Relaxed) & needs != needs
}

/// Whether the kernel must not be queried whether memory can be read.
#[inline]
pub(crate) fn must_not_probe() -> bool {
    is_forbidden(PROBE) || STRICT.get()
}

/// Whether the thread is in strict mode.
#[cold]
pub(crate) fn is_strict() -> bool {
    STRICT.get()
}
