//! Decisions for calls that open, duplicate, close and control descriptors.
//!
//! **Opens** pass the gates as operations; closes do not, so that one use of a file is one
//! operation.
//!
//! **Descriptors.** The stage remembers what each descriptor number refers to, from the first gated
//! call on. The functions here remove the entry when the number gets another meaning: when it is
//! closed, replaced by `dup2` or inside the C library (`daemon`, `login_tty`, `forkpty`), or
//! returned by a call that makes a descriptor. Calls that make
//! descriptors but have no hook (`socket`, `pipe`, `accept`, a message with descriptors) return
//! free numbers, and the call that freed the number has removed its entry. A thread that stops
//! sharing its descriptors with others (`unshare`, `close_range`) gets entries of its own.
//!
//! **Hints.** A thread that declares how long a file's data will live (`F_SET_RW_HINT`) gets a
//! context of that name, unless the program has set one. RocksDB passes four bytes, where the
//! kernel reads eight and refuses them if the others are not zero. Such a hint counts as well: the
//! kernel does not take it, and the program's purpose is known.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU16, Ordering};

use libc::{FILE, c_int, c_uint};
use tidegate_model::{ContextId, Operation};
use tidegate_stage::files::{forget, forget_range, part};
use tidegate_stage::{Inside, scope};

use super::paths;
use crate::errno;
use crate::guard::run_guarded;
use crate::process::stage;
use crate::stream::{StdioStream, is_single_threaded};

/// Opens a file by name. Only opening is charged, not closing: one use of a file is one operation.
pub(crate) fn gate_open(
    directory: c_int,
    path: Option<&CStr>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    track_new_descriptor(|| paths::gate_path_call(Operation::Open, directory, path, call))
}

/// Opens a file by name as a stream.
pub(crate) fn gate_open_stream(path: Option<&CStr>, call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    let opened = paths::gate_path_call(Operation::Open, libc::AT_FDCWD, path, call);
    // SAFETY: what `fopen` returns.
    if let Some(stream) = unsafe { StdioStream::of(opened) } {
        forget(stream.descriptor());
    }
    opened
}

/// Returns a new descriptor.
pub(crate) fn track_new_descriptor(call: impl FnOnce() -> c_int) -> c_int {
    let made = call();
    forget(made);
    made
}

/// Ends a descriptor. Forgotten before: as soon as it is closed, another thread may get the number.
/// And forgotten after: until it is closed, another thread may use it and have it remembered.
pub(crate) fn track_close<T>(descriptor: c_int, call: impl FnOnce() -> T) -> T {
    forget(descriptor);
    let result = call();
    forget(descriptor);
    result
}

/// Gives the number `target` a new meaning. Forgotten after: until then, other threads may rightly
/// use the old one.
pub(crate) fn track_dup2(target: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    forget(target);
    result
}

/// Gives the numbers of the standard descriptors new meanings, inside the C library. In a process
/// that it forks, too; what this process has forgotten then, it finds out again.
pub(crate) fn track_standard(call: impl FnOnce() -> c_int) -> c_int {
    const LAST: c_uint = libc::STDERR_FILENO as c_uint;
    let result = call();
    forget_range(libc::STDIN_FILENO as c_uint, LAST);
    result
}

/// The same, from this descriptor, which the call closes.
pub(crate) fn track_login(descriptor: c_int, call: impl FnOnce() -> c_int) -> c_int {
    track_close(descriptor, || track_standard(call))
}

/// As [`track_close`], for a call in which a thread may be cancelled: what the shim itself closes
/// must not be where that happens.
pub(crate) fn track_close_uncancelled(descriptor: c_int, call: impl FnOnce() -> c_int) -> c_int {
    track_close(descriptor, || {
        if Inside::enter().is_none() {
            // SAFETY: the caller's own call, in a way in which no thread is cancelled.
            return unsafe { libc::syscall(libc::SYS_close, descriptor) } as c_int;
        }
        call()
    })
}

/// Ends a range of descriptors; before and after, as above.
pub(crate) fn track_close_range<T>(first: c_uint, last: c_uint, call: impl FnOnce() -> T) -> T {
    forget_range(first, last);
    let result = call();
    forget_range(first, last);
    result
}

/// Gives the thread descriptors of its own, if it shares them with others and the flag is set.
pub(crate) fn track_unshare<T>(flags: c_int, flag: c_int, call: impl FnOnce() -> T) -> T {
    if flags & flag != 0 && !is_single_threaded() {
        part();
    }
    call()
}

/// Ends a range of descriptors, perhaps in a copy that the thread gets for that.
pub(crate) fn track_close_range_call<T>(
    (first, last): (c_uint, c_uint),
    flags: c_int,
    call: impl FnOnce() -> T,
) -> T {
    const UNSHARE: c_int = 2;
    track_unshare(flags, UNSHARE, || track_close_range(first, last, call))
}

const F_SET_RW_HINT: c_int = 1036;
const F_SET_FILE_RW_HINT: c_int = 1038;

/// Controls a descriptor: some commands make a new one, some declare the lifetime of data.
pub(crate) fn track_fcntl(
    command: c_int,
    hint: impl FnOnce() -> u64,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => track_new_descriptor(call),
        F_SET_RW_HINT | F_SET_FILE_RW_HINT => {
            let result = call();
            // A hint that is none is refused once it was read; a command that is none, before.
            let is_refused =
                || result < 0 && command == F_SET_RW_HINT && errno::get() == libc::EINVAL;
            if stage().is_some() && (result == 0 || is_refused()) {
                let hint = hint();
                run_guarded(|| apply_hint(hint));
            }
            result
        }
        _ => call(),
    }
}

/// Contexts of the hints from 2 on, in the kernel's numbers: `RWH_WRITE_LIFE_SHORT` and so on.
const HINTS: [&[u8]; 4] = [b"hint-short", b"hint-medium", b"hint-long", b"hint-extreme"];

/// Their ids, once known.
static CONTEXTS: [AtomicU16; HINTS.len()] = [const { AtomicU16::new(0) }; HINTS.len()];

/// A thread that declares the lifetime of a file's data declares the purpose of its work: a store
/// that compacts level 3 calls its output "long", and what it reads from there on is read for that.
/// So the hint becomes the thread's context, unless the program has set one itself.
fn apply_hint(hint: u64) {
    let hint = hint as u32; // The other half is not always set.
    let is_hint = |context: ContextId| {
        context == ContextId::NONE
            || CONTEXTS.iter().any(|known| known.load(Ordering::Relaxed) == context.0)
    };
    let wanted = match usize::try_from(hint).ok().and_then(|hint| hint.checked_sub(2)) {
        Some(index) if index < HINTS.len() => {
            let id = scope::intern(HINTS[index]);
            CONTEXTS[index].store(id.0, Ordering::Relaxed);
            id
        }
        _ => ContextId::NONE,
    };
    let previous = scope::enter_here(wanted);
    if !is_hint(previous) {
        scope::enter_here(previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The context that the thread is in; asking does not change it.
    fn context() -> ContextId {
        let context = scope::enter_here(ContextId::NONE);
        scope::enter_here(context);
        context
    }

    #[test]
    fn the_last_hint_is_the_context_unless_there_is_another() {
        apply_hint(3);
        assert_eq!(context(), scope::intern(b"hint-medium"));
        apply_hint(5);
        assert_eq!(context(), scope::intern(b"hint-extreme"));
        apply_hint(0);
        assert_eq!(context(), ContextId::NONE);
        apply_hint(9);
        assert_eq!(context(), ContextId::NONE);
        apply_hint(0x5555_5555_0000_0004);
        assert_eq!(context(), scope::intern(b"hint-long"));
        apply_hint(1);
        let own = scope::intern(b"own");
        scope::enter_here(own);
        apply_hint(2);
        assert_eq!(context(), own);
        scope::enter_here(ContextId::NONE);
    }
}
