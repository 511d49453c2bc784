//! Wrappers of C library calls: a hook describes the call, and its wrapper here asks the stage
//! before the call and reports to the stage after it.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{c_int, c_void};
use tidegate_model::Operation;
use tidegate_stage::files::{Status, begin_query, cache_status};
use tidegate_stage::{Admission, Bypass, Inside, Request, Stage, Subject};

use crate::cancel::CancelDeferred;
use crate::errno::Errno;
use crate::process::{self, stage};
use crate::real::CallResult;
use crate::sandbox;

pub(crate) mod completions;
pub(crate) mod copies;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod liburing;
pub(crate) mod lifecycle;
pub(crate) mod memory;
pub(crate) mod paths;
pub(crate) mod programs;
pub(crate) mod rings;
pub(crate) mod stdio;
pub(crate) mod syscalls;
pub(crate) mod threads;

/// The most bytes that one call moves, whatever it requests: the kernel's limit.
const MOVED_MAX: u64 = 0x7fff_f000;

/// A call that may be made, to be completed when it is done.
///
/// While the call itself runs, the thread is not [`Inside`]: a signal handler that interrupts a
/// long `read` is gated as ever, and a call that never returns, `execve` in a child of `vfork`,
/// leaves nothing behind.
///
/// Nothing is done when it is dropped: a thread may leave the call by a jump or because it is
/// cancelled, and what it holds stands in its record, from where it comes back.
pub(crate) enum Admitted {
    /// It was let through by the stage.
    Enforced(ManuallyDrop<Admission<'static>>),
    /// It came from inside the shim, or from a signal handler that interrupted the shim.
    Nested(&'static Stage),
    /// Its gates would need a system call that the program has forbidden itself.
    Sandboxed(&'static Stage),
    /// The shim is broken.
    Failed(&'static Stage),
}

impl Admitted {
    /// Enforces the request's rules; the thread may wait at gates.
    #[inline]
    pub(crate) fn enforce(stage: &'static Stage, request: &Request<'_>) -> Self {
        match lifecycle::rare_state() {
            0 => Self::enforce_guarded(stage, request),
            rare_state => Self::enforce_in_rare_state(stage, request, rare_state),
        }
    }

    /// The same in a process that has done what is seldom done.
    #[cold]
    #[inline(never)]
    fn enforce_in_rare_state(
        stage: &'static Stage,
        request: &Request<'_>,
        rare_state: u32,
    ) -> Self {
        let _deferred = (rare_state & process::CANCELLED_ANYWHERE != 0).then(CancelDeferred::new);
        if rare_state & process::SANDBOXED != 0 && sandbox::must_bypass(stage, request) {
            return Self::Sandboxed(stage);
        }
        Self::enforce_guarded(stage, request)
    }

    #[inline(always)]
    fn enforce_guarded(stage: &'static Stage, request: &Request<'_>) -> Self {
        let Some(_inside) = Inside::enter() else { return Self::inside(stage) };
        let _errno = Errno::save();
        // Written in place: what a closure returns is copied on its way to the caller, in chunks
        // that the processor waits for.
        let mut admitted = Self::Failed(stage);
        let enforce = || {
            if Inside::is_holding() {
                stage.reclaim();
            }
            admitted = Self::Enforced(ManuallyDrop::new(stage.enforce_in_call(request)));
            if let Self::Enforced(admission) = &admitted
                && admission.has_permits()
            {
                threads::watch_for_end();
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(enforce)) {
            // The panic's message is of no use here, and dropping it could panic again.
            std::mem::forget(panic);
        }
        admitted
    }

    /// A call from inside the shim, or from a thread in the kernel's strict mode.
    #[cold]
    fn inside(stage: &'static Stage) -> Self {
        if sandbox::is_strict() { Self::Sandboxed(stage) } else { Self::Nested(stage) }
    }

    /// Whether it passed the gates of a channel.
    pub(crate) fn is_gated(&self) -> bool {
        matches!(self, Self::Enforced(admission) if admission.is_gated())
    }

    /// Reports to the stage that the call moved `bytes`.
    #[inline]
    pub(crate) fn complete(self, bytes: u64) {
        match self {
            Self::Enforced(admission) => {
                // System calls of the stage leave `errno` alone.
                let _inside = Inside::enter();
                let admission = ManuallyDrop::into_inner(admission);
                let completed = catch_unwind(AssertUnwindSafe(|| admission.complete(bytes)));
                if let Err(panic) = completed {
                    std::mem::forget(panic);
                }
            }
            Self::Nested(stage) => stage.bypass(Bypass::Nested, bytes),
            Self::Sandboxed(stage) => stage.bypass(sandbox::SANDBOXED, bytes),
            Self::Failed(stage) => stage.bypass(Bypass::Failure, bytes),
        }
    }
}

/// Gates a call that moves at most `bytes` between memory and a descriptor.
#[inline]
pub(crate) fn gate_transfer<T: CallResult>(
    operation: Operation,
    descriptor: c_int,
    bytes: u64,
    call: impl FnOnce() -> T,
) -> T {
    let Some(stage) = stage() else { return call() };
    let request = Request::new(operation, bytes.min(MOVED_MAX));
    let admitted = Admitted::enforce(stage, &request.on(Subject::Descriptor(descriptor)));
    let result = call();
    admitted.complete(result.bytes_moved());
    result
}

/// Gates a call about an open file that moves no data.
pub(crate) fn gate_descriptor_call<T>(
    operation: Operation,
    descriptor: c_int,
    call: impl FnOnce() -> T,
) -> T {
    let Some(stage) = stage() else { return call() };
    let request = Request::new(operation, 0).on(Subject::Descriptor(descriptor));
    let admitted = Admitted::enforce(stage, &request);
    let result = call();
    admitted.complete(0);
    result
}

/// Gates a call that reads the status of an open file. First the call, then the gates: without its
/// result the stage would have to make the same call to find the gates.
pub(crate) fn gate_status_query(
    descriptor: c_int,
    status: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(stage) = stage() else { return call() };
    let before = begin_query(descriptor);
    let result = call();
    if result == 0 {
        // SAFETY: the call has succeeded, and has so filled a structure of this type.
        let status = unsafe { status.cast::<libc::stat>().read() };
        let status = Status { mode: status.st_mode, device: status.st_dev };
        cache_status(descriptor, before, status);
    }
    charge(stage, Operation::Stat, descriptor, 0);
    result
}

/// Gates a call that is about no file in particular. No rule with a path holds for it.
pub(crate) fn gate_call_without_file<T>(operation: Operation, call: impl FnOnce() -> T) -> T {
    let Some(stage) = stage() else { return call() };
    let admitted = Admitted::enforce(stage, &Request::new(operation, 0).on(Subject::Path(b"")));
    let result = call();
    admitted.complete(0);
    result
}

/// Charges bytes that were moved already, where the amount could not be known before the call, or
/// that will be moved while no call waits for it.
pub(crate) fn charge(stage: &'static Stage, operation: Operation, descriptor: c_int, bytes: u64) {
    let request = Request::new(operation, bytes).on(Subject::Descriptor(descriptor)).untimed();
    Admitted::enforce(stage, &request).complete(bytes);
}
