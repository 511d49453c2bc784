//! What is thought before and after a call. The hooks say what a call is; here the stage is asked.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::c_int;
use tidegate_model::Operation;
use tidegate_stage::{Admission, Bypass, Inside, Request, Stage, Subject};

use crate::attach::stage;
use crate::errno::Errno;
use crate::real::Outcome;

pub(crate) mod copies;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod life;
pub(crate) mod memory;
pub(crate) mod paths;
pub(crate) mod rings;
pub(crate) mod stdio;
pub(crate) mod syscalls;

/// What one call moves at most, whatever it asks for: the kernel's limit.
const MOVED_MAX: u64 = 0x7fff_f000;

/// A call that may be made, to be completed when it is done.
///
/// While the call itself runs, the thread is not [`Inside`]: a signal handler that interrupts a
/// long `read` is gated as ever, and a call that never returns, `execve` in a child of `vfork`,
/// leaves nothing behind.
pub(crate) enum Admitted {
    /// It was let through by the stage.
    Through(Admission<'static>),
    /// It came from inside the shim, or from a signal handler that interrupted the shim.
    Nested(&'static Stage),
    /// The shim is broken.
    Failed(&'static Stage),
}

impl Admitted {
    /// Asks the stage, which may take a while.
    #[inline]
    pub(crate) fn now(stage: &'static Stage, request: &Request<'_>) -> Self {
        let Some(_inside) = Inside::enter() else { return Self::Nested(stage) };
        let _errno = Errno::keep();
        life::notice_names();
        match catch_unwind(AssertUnwindSafe(|| stage.enforce(request))) {
            Ok(admission) => Self::Through(admission),
            Err(panic) => {
                // What it says is of no use here, and dropping it could panic again.
                std::mem::forget(panic);
                Self::Failed(stage)
            }
        }
    }

    /// Whether it passed the gates of a channel.
    pub(crate) fn is_gated(&self) -> bool {
        matches!(self, Self::Through(admission) if admission.is_gated())
    }

    /// Tells the stage that the call moved `bytes`.
    #[inline]
    pub(crate) fn complete(self, bytes: u64) {
        match self {
            Self::Through(admission) => {
                let _inside = Inside::enter();
                let _errno = Errno::keep();
                let completed = catch_unwind(AssertUnwindSafe(|| admission.complete(bytes)));
                if let Err(panic) = completed {
                    std::mem::forget(panic);
                }
            }
            Self::Nested(stage) => stage.bypass(Bypass::Nested, bytes),
            Self::Failed(stage) => stage.bypass(Bypass::Failure, bytes),
        }
    }
}

/// Thinks where the stage is not asked. None if the thread is inside already, or if this is where
/// the shim is broken.
pub(crate) fn safely<R>(think: impl FnOnce() -> R) -> Option<R> {
    let _inside = Inside::enter()?;
    let _errno = Errno::keep();
    match catch_unwind(AssertUnwindSafe(think)) {
        Ok(result) => Some(result),
        Err(panic) => {
            std::mem::forget(panic);
            if let Some(stage) = stage() {
                stage.bypass(Bypass::Failure, 0);
            }
            None
        }
    }
}

/// Makes a call that moves at most `bytes` between memory and a descriptor.
#[inline]
pub(crate) fn moves<T: Outcome>(
    operation: Operation,
    descriptor: c_int,
    bytes: u64,
    call: impl FnOnce() -> T,
) -> T {
    let Some(stage) = stage() else { return call() };
    let request = Request::new(operation, bytes.min(MOVED_MAX));
    let admitted = Admitted::now(stage, &request.on(Subject::Descriptor(descriptor)));
    let result = call();
    admitted.complete(result.moved());
    result
}

/// Makes a call about an open file that moves no data.
pub(crate) fn opened<T>(operation: Operation, descriptor: c_int, call: impl FnOnce() -> T) -> T {
    let Some(stage) = stage() else { return call() };
    let request = Request::new(operation, 0).on(Subject::Descriptor(descriptor));
    let admitted = Admitted::now(stage, &request);
    let result = call();
    admitted.complete(0);
    result
}

/// Makes a call that is about no file in particular. No rule that asks for a path holds for it.
pub(crate) fn at_large<T>(operation: Operation, call: impl FnOnce() -> T) -> T {
    let Some(stage) = stage() else { return call() };
    let admitted = Admitted::now(stage, &Request::new(operation, 0).on(Subject::Path(b"")));
    let result = call();
    admitted.complete(0);
    result
}

/// Pays for something that has happened already, where it could not be known before.
pub(crate) fn pays(stage: &'static Stage, operation: Operation, descriptor: c_int, bytes: u64) {
    let request = Request::new(operation, bytes).on(Subject::Descriptor(descriptor));
    Admitted::now(stage, &request).complete(bytes);
}
