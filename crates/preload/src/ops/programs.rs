//! Decisions for calls that start programs.
//!
//! A program that is started is inspected first. If the shim will not be in it, that is counted by
//! reason and noted for the user; if it could not even start with the shim, which happens to
//! programs for another C library, it is started without. Where the user wants limits or nothing
//! (`--fail-closed`), it is not started: the call fails with `EACCES`.
//!
//! Nothing here writes to memory of the process but its own stack: the caller may be a child of
//! `vfork`.

use std::ffi::{CStr, c_char};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;
use std::sync::atomic::Ordering;

use libc::{FILE, c_int};
use tidegate_stage::inspect::{self, Verdict};
use tidegate_stage::segment::VARIABLE;
use tidegate_stage::{Bypass, Inside, Stage, scratch};

use crate::cancel::CancelDeferred;
use crate::errno::{self, Errno};
use crate::process::{segment, stage};
use crate::raw::value_of;
use crate::{raw, sandbox};

/// The loader's variable for the shim, and the name of our file.
const PRELOAD: &[u8] = b"LD_PRELOAD";
const SHIM: &[u8] = b"libtidegate_preload";

/// An environment, as `execve` takes it.
pub(crate) type Environment = *const *const c_char;

/// Which program is to be started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program<'a> {
    /// The file at this path.
    At(Option<&'a CStr>),
    /// The file with this name in the directories of `PATH`, or at this path if it has a slash.
    Named(Option<&'a CStr>),
    /// The file at this path, which begins at an open directory if it is relative.
    Beside(c_int, Option<&'a CStr>),
    /// An open file.
    Open(c_int),
}

/// Which program `execveat` starts: an open file, or the one with this name.
pub(crate) fn exec_target(directory: c_int, name: Option<&CStr>, flags: c_int) -> Program<'_> {
    match name {
        Some(name) if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 => {
            Program::Open(directory)
        }
        name if directory == libc::AT_FDCWD => Program::At(name),
        name => Program::Beside(directory, name),
    }
}

impl<'a> Program<'a> {
    /// The name of the program for messages to the user.
    fn name(self) -> &'a [u8] {
        match self {
            Self::At(name) | Self::Named(name) | Self::Beside(_, name) => {
                name.map_or(&b""[..], CStr::to_bytes)
            }
            Self::Open(_) => b"an open file",
        }
    }

    /// Inspects the program, and returns whether the shim will be in it.
    ///
    /// # Errors
    /// If the program will not start, or cannot be inspected.
    fn inspect(self) -> Result<Verdict, rustix::io::Errno> {
        const NONE: rustix::io::Errno = rustix::io::Errno::FAULT;
        match self {
            Self::At(path) => inspect::program(path.ok_or(NONE)?),
            Self::Open(descriptor) => inspect::open_program(descriptor),
            Self::Beside(directory, path) => {
                let path = path.ok_or(NONE)?;
                if path.to_bytes().starts_with(b"/") {
                    return inspect::program(path);
                }
                if directory < 0 {
                    return Err(rustix::io::Errno::BADF);
                }
                // SAFETY: the program's directory; if it is not open, the kernel reports it.
                inspect::program_at(unsafe { BorrowedFd::borrow_raw(directory) }, path)
            }
            Self::Named(name) => {
                // SAFETY: the environment of this process; a thread that changes it while another
                // starts a program by name confuses the C library as well.
                let mut variables = unsafe { raw::strings(inherited()) };
                let search = variables.find_map(|variable| value_of(variable, b"PATH"));
                inspect::program_in(name.ok_or(NONE)?, search)
            }
        }
    }
}

/// How a program is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// As the process requested.
    Unchanged,
    /// As the process requested, and the shim is expected to be in it.
    Covered,
    /// In an environment without the shim, which it could not start with.
    WithoutShim,
    /// Not at all.
    Not,
}

/// The kind of a program file, as far as the shim is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShimCoverage {
    /// The shim will be in it, if the loader can map it.
    Covered,
    /// The same, with the stage of another `tidegate run`, which counts it.
    Elsewhere,
    /// The shim will not be in it, for this reason.
    Lacks(Bypass),
    /// Nothing: it will not start.
    Nothing,
}

/// The exit code of a program that ends before it begins: as shells report one that they find and
/// cannot start.
pub(crate) const NOT_STARTED: c_int = 126;

/// The error of a program that is not started.
const REFUSED: c_int = libc::EACCES;

/// Starts a program in an environment, which `call` is given, perhaps changed. Fails in the way of
/// `execve`.
///
/// # Safety
/// `environment` is null or an environment.
pub(crate) unsafe fn gate_exec<T: From<i8>>(
    program: Program<'_>,
    environment: Environment,
    call: impl FnOnce(Environment) -> T,
) -> T {
    // SAFETY: as the caller promises.
    match unsafe { decide_start(program, environment) } {
        Start::Unchanged => call(environment),
        Start::Covered => {
            // A call that returns has not started another program.
            let failed = call(environment);
            uncount_start();
            failed
        }
        // SAFETY: as the caller promises.
        Start::WithoutShim => unsafe { without_shim(environment, call) },
        Start::Not => {
            errno::set(REFUSED);
            T::from(-1)
        }
    }
}

/// The same for `posix_spawn`, which returns its error.
///
/// # Safety
/// As for [`gate_exec`].
pub(crate) unsafe fn gate_spawn(
    program: Program<'_>,
    environment: Environment,
    call: impl FnOnce(Environment) -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { decide_start(program, environment) } {
        Start::Unchanged => call(environment),
        Start::Covered => {
            let error = call(environment);
            if error != 0 {
                uncount_start();
            }
            error
        }
        // SAFETY: as the caller promises.
        Start::WithoutShim => unsafe { without_shim(environment, call) },
        Start::Not => REFUSED,
    }
}

/// The shell that the C library runs, in the environment of the process.
const SHELL: Program<'static> = Program::At(Some(c"/bin/sh"));

/// Runs a command by a shell, if there is one.
pub(crate) fn gate_system(is_command: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !is_command {
        return call();
    }
    // SAFETY: the environment of this process.
    match unsafe { decide_start(SHELL, inherited()) } {
        Start::Not => {
            errno::set(REFUSED);
            -1
        }
        start => {
            let status = call();
            if status == -1 && start == Start::Covered {
                uncount_start();
            }
            status
        }
    }
}

/// Runs a command by a shell, with a pipe to it.
pub(crate) fn gate_popen(call: impl FnOnce() -> *mut FILE) -> *mut FILE {
    // SAFETY: the environment of this process.
    match unsafe { decide_start(SHELL, inherited()) } {
        Start::Not => {
            errno::set(REFUSED);
            std::ptr::null_mut()
        }
        start => {
            let pipe = call();
            if pipe.is_null() && start == Start::Covered {
                uncount_start();
            }
            pipe
        }
    }
}

/// A program that was counted as started has not been.
fn uncount_start() {
    if let Some(stage) = stage() {
        stage.layout().header.started.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Inspects a program, and counts and notes it if the shim will not be in it.
unsafe fn decide_start(program: Program<'_>, environment: Environment) -> Start {
    let Some(stage) = stage() else { return Start::Unchanged };
    let is_strict = stage.layout().header.strict.load(Ordering::Relaxed) != 0;
    // SAFETY: as the caller promises.
    let inspection = || unsafe { inspect_coverage(program, environment) };
    let found = match sandbox::exec_policy() {
        sandbox::ExecPolicy::Known => inspect_guarded(stage, inspection),
        sandbox::ExecPolicy::Unknown if !is_strict => return Start::Unchanged,
        sandbox::ExecPolicy::Unknown | sandbox::ExecPolicy::WithoutShim => {
            ShimCoverage::Lacks(sandbox::SANDBOXED)
        }
    };
    let reason = match found {
        // Where no program may pass these gates, the run's report names those of other stages, too.
        ShimCoverage::Elsewhere if !is_strict => return Start::Unchanged,
        ShimCoverage::Covered | ShimCoverage::Elsewhere => {
            stage.layout().header.started.fetch_add(1, Ordering::Relaxed);
            return Start::Covered;
        }
        // Of a program that may not be read nothing is known; most have the shim.
        ShimCoverage::Lacks(Bypass::Unreadable) if !is_strict => return Start::Unchanged,
        ShimCoverage::Lacks(reason) => reason,
        ShimCoverage::Nothing => return Start::Unchanged,
    };
    stage.layout().programs.note(program.name(), reason, is_strict);
    if is_strict {
        stage.bypass(Bypass::Refused, 0);
        return Start::Not;
    }
    stage.bypass(reason, 0);
    // Behind a filter the shim would be ended with the program that it comes with.
    if reason == Bypass::ForeignProgram || reason == sandbox::SANDBOXED {
        return Start::WithoutShim;
    }
    Start::Unchanged
}

/// Runs an inspection, also in a signal handler that has interrupted the shim: no state here
/// depends on the interrupted call. A panic of the inspection becomes the reason
/// [`Bypass::Failure`].
fn inspect_guarded(stage: &Stage, inspection: impl FnOnce() -> ShimCoverage) -> ShimCoverage {
    let _deferred = CancelDeferred::new();
    let _inside = Inside::enter();
    let _errno = Errno::save();
    catch_unwind(AssertUnwindSafe(inspection)).unwrap_or_else(|panic| {
        // The panic's message is of no use here, and dropping it could panic again.
        std::mem::forget(panic);
        stage.bypass(Bypass::Failure, 0);
        ShimCoverage::Lacks(Bypass::Failure)
    })
}

/// Checks whether the shim will be in a program.
unsafe fn inspect_coverage(program: Program<'_>, environment: Environment) -> ShimCoverage {
    match program.inspect() {
        Ok(Verdict::Not(reason)) => ShimCoverage::Lacks(reason),
        // SAFETY: as the caller promises.
        Ok(Verdict::Covered | Verdict::Script) => match unsafe { lacks_shim(environment) } {
            Some(reason) => ShimCoverage::Lacks(reason),
            // SAFETY: as the caller promises.
            None if unsafe { names_other(environment, segment()) } => ShimCoverage::Elsewhere,
            None => ShimCoverage::Covered,
        },
        // It will not start, and the kernel reports why.
        Err(_) => ShimCoverage::Nothing,
    }
}

/// The environment of this process.
pub(crate) fn inherited() -> Environment {
    unsafe extern "C" {
        static environ: Environment;
    }
    // SAFETY: a pointer that the C library keeps.
    unsafe { environ }
}

/// Why a program in this environment will not have the shim and its stage, if so.
unsafe fn lacks_shim(environment: Environment) -> Option<Bypass> {
    let (mut shim, mut segment) = (None, None);
    // SAFETY: as the caller promises.
    for variable in unsafe { raw::strings(environment) } {
        if let Some(libraries) = value_of(variable, PRELOAD) {
            let mut libraries = libraries.split(|byte| matches!(byte, b':' | b' '));
            shim = libraries.find(|name| name.windows(SHIM.len()).any(|part| part == SHIM));
        } else if let Some(path) = value_of(variable, VARIABLE.as_bytes()) {
            segment = Some(path);
        }
    }
    let (Some(shim), Some(segment)) = (shim, segment) else { return Some(Bypass::Unloaded) };
    if inspect::is_secure() {
        return Some(Bypass::SetuidProgram);
    }
    // The loader looks for a name without a slash in places that are not known here.
    let has_shim = !shim.contains(&b'/') || with_path(shim, inspect::is_readable);
    let has_segment = with_path(segment, inspect::is_open_to_programs);
    (!has_shim || !has_segment).then_some(Bypass::Unreachable)
}

/// Whether a program in this environment will have another segment than `own`, the one of this
/// process.
unsafe fn names_other(environment: Environment, own: Option<&[u8]>) -> bool {
    // SAFETY: as the caller promises.
    let mut variables = unsafe { raw::strings(environment) };
    let named = variables.find_map(|variable| value_of(variable, VARIABLE.as_bytes()));
    own.is_some() && named != own
}

/// Checks a path; of one that is too long nothing is known, and it is taken to be there.
fn with_path(path: &[u8], check: impl FnOnce(&CStr) -> bool) -> bool {
    scratch::with_page(|page| {
        let Some(entry) = page.get_mut(..=path.len()) else { return true };
        entry[..path.len()].copy_from_slice(path);
        entry[path.len()] = 0;
        CStr::from_bytes_with_nul(entry).is_ok_and(check)
    })
}

/// Calls `call` with the environment without the variables for the shim's loader.
///
/// The copy lies on the stack, for the caller may be a child of `vfork`; and no more of the stack
/// is used than the environment needs, for the caller may be a signal handler.
unsafe fn without_shim<T>(environment: Environment, call: impl FnOnce(Environment) -> T) -> T {
    // SAFETY: as the caller promises, here and below.
    unsafe {
        match raw::strings(environment).count() {
            0..64 => with_copy::<64, T>(environment, call),
            64..256 => with_copy::<256, T>(environment, call),
            256..1024 => with_copy::<1024, T>(environment, call),
            _ => call(environment),
        }
    }
}

#[inline(never)]
unsafe fn with_copy<const LENGTH: usize, T>(
    environment: Environment,
    call: impl FnOnce(Environment) -> T,
) -> T {
    let mut copy = [null::<c_char>(); LENGTH];
    // SAFETY: as the caller promises.
    let variables = unsafe { raw::strings(environment) };
    let kept = variables.filter(|variable| value_of(variable, PRELOAD).is_none());
    // The last entry stays null.
    for (entry, variable) in copy[..LENGTH - 1].iter_mut().zip(kept) {
        *entry = variable.as_ptr();
    }
    call(copy.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[&CStr]) -> Vec<*const c_char> {
        variables.iter().map(|variable| variable.as_ptr()).chain([null()]).collect()
    }

    fn lacks(variables: &[&CStr]) -> Option<Bypass> {
        // SAFETY: a terminated array of C strings.
        unsafe { lacks_shim(environment(variables).as_ptr()) }
    }

    #[test]
    fn an_environment_carries_the_shim_with_both_variables() {
        let file = std::env::temp_dir().join(format!("libtidegate_preload-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let value =
            |name: &str| std::ffi::CString::new(format!("{name}{}", file.display())).unwrap();
        let (shim, segment) = (value("LD_PRELOAD=/usr/lib/a.so:"), value("TIDEGATE_SEGMENT="));
        assert_eq!(lacks(&[c"A=1", &shim, &segment]), None);
        assert_eq!(lacks(&[&shim]), Some(Bypass::Unloaded));
        assert_eq!(lacks(&[&segment]), Some(Bypass::Unloaded));
        assert_eq!(lacks(&[]), Some(Bypass::Unloaded));
        assert_eq!(lacks(&[c"LD_PRELOAD=/usr/lib/a.so", &segment]), Some(Bypass::Unloaded));
        let nowhere = c"TIDEGATE_SEGMENT=/nowhere/segment";
        assert_eq!(lacks(&[&shim, nowhere]), Some(Bypass::Unreachable));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(lacks(&[&shim, &segment]), Some(Bypass::Unreachable), "without the shim");
    }

    #[test]
    fn a_program_with_another_segment_is_counted_by_another_stage() {
        let other = |variables: &[&CStr], own: Option<&[u8]>| {
            // SAFETY: a terminated array of C strings.
            unsafe { names_other(environment(variables).as_ptr(), own) }
        };
        let variables = [c"A=1", c"TIDEGATE_SEGMENT=/dev/shm/inner"];
        assert!(other(&variables, Some(b"/dev/shm/outer")));
        assert!(!other(&variables, Some(b"/dev/shm/inner")));
        assert!(!other(&variables, None));
    }

    #[test]
    fn a_foreign_program_gets_the_environment_less_the_shim() {
        let variables = environment(&[c"A=1", c"LD_PRELOAD=x", c"B=2"]);
        // SAFETY: terminated arrays of C strings.
        unsafe {
            without_shim(variables.as_ptr(), |left| {
                assert!(raw::strings(left).eq([c"A=1", c"B=2"]));
            });
            for many in [63, 64, 255, 256, 1023] {
                let many = environment(&vec![c"A=1"; many]);
                without_shim(many.as_ptr(), |left| {
                    assert_ne!(left, many.as_ptr());
                    assert_eq!(raw::strings(left).count(), many.len() - 1);
                });
            }
            let many = environment(&[c"A=1"; 1024]);
            without_shim(many.as_ptr(), |left| assert_eq!(left, many.as_ptr()));
        }
    }
}
