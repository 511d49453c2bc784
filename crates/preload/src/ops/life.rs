//! Programs that a process starts, and names that its threads get.
//!
//! A program that is started is looked at first. If the shim will not be in it, that is counted by
//! reason; if it could not even start with the shim, which happens to programs for another C
//! library, it is started without. Nothing here writes to memory of the process but its own stack:
//! the caller may be a child of `vfork`.

use std::ffi::{CStr, c_char};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_long};
use tidegate_stage::inspect::{self, Verdict};
use tidegate_stage::segment::VARIABLE;
use tidegate_stage::{Bypass, forget_thread};

use super::safely;
use crate::attach::{stage, value_of};
use crate::{raw, sandbox};

/// Where the loader is told of the shim, and how our file is called.
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
    /// An open file.
    Open(c_int),
}

/// Which program `execveat` starts: an open file, or the one with this name. A name that is
/// relative to another directory than the working one is not found: nothing is known of it then.
pub(crate) fn beside(directory: c_int, name: Option<&CStr>, flags: c_int) -> Program<'_> {
    match name {
        Some(name) if name.is_empty() && flags & libc::AT_EMPTY_PATH != 0 => {
            Program::Open(directory)
        }
        name => Program::At(name),
    }
}

/// Starts a program in an environment, which `call` is given, perhaps changed.
///
/// # Safety
/// `environment` is null or an environment.
pub(crate) unsafe fn starts<T>(
    program: Program<'_>,
    environment: Environment,
    call: impl FnOnce(Environment) -> T,
) -> T {
    // SAFETY: as the caller promises.
    let looks = || unsafe { looks(program, environment) };
    let found = stage().and_then(|_| {
        if sandbox::is_restricted() { Some(Some(sandbox::SANDBOXED)) } else { safely(looks) }
    });
    let Some(Some(reason)) = found else { return call(environment) };
    if let Some(stage) = stage() {
        stage.bypass(reason, 0);
    }
    // Behind a filter the shim would be ended with the program that it comes with.
    if reason == Bypass::ForeignProgram || reason == sandbox::SANDBOXED {
        // SAFETY: as the caller promises.
        return unsafe { without_shim(environment, call) };
    }
    call(environment)
}

/// Why the shim will not be in a program, if so.
unsafe fn looks(program: Program<'_>, environment: Environment) -> Option<Bypass> {
    let verdict = match program {
        Program::At(path) => inspect::program(path?),
        Program::Open(descriptor) => inspect::open_program(descriptor),
        Program::Named(name) => {
            // SAFETY: the environment of this process; a thread that changes it while another
            // starts a program by name confuses the C library as well.
            let mut variables = unsafe { raw::strings(inherited()) };
            let search = variables.find_map(|variable| value_of(variable, b"PATH"));
            inspect::program_in(name?, search)
        }
    };
    match verdict {
        Ok(Verdict::Not(reason)) => Some(reason),
        Ok(Verdict::Covered | Verdict::Script) => {
            // SAFETY: as the caller promises.
            let carries = unsafe { carries_shim(environment) };
            (!carries).then_some(Bypass::Unloaded)
        }
        // It will not start, or it may be run but not read; in that case nothing is known of it.
        Err(_) => None,
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

/// Whether a program in this environment will have the shim and find the segment.
unsafe fn carries_shim(environment: Environment) -> bool {
    let (mut shim, mut segment) = (false, false);
    // SAFETY: as the caller promises.
    for variable in unsafe { raw::strings(environment) } {
        if let Some(libraries) = value_of(variable, PRELOAD) {
            shim |= libraries.windows(SHIM.len()).any(|part| part == SHIM);
        }
        segment |= value_of(variable, VARIABLE.as_bytes()).is_some();
    }
    shim && segment
}

/// The most variables of an environment that is copied: eight kilobytes of a stack.
const VARIABLES_MAX: usize = 1024;

/// Calls `call` with the environment less what tells the loader of the shim.
#[inline(never)]
unsafe fn without_shim<T>(environment: Environment, call: impl FnOnce(Environment) -> T) -> T {
    let mut copy = [null::<c_char>(); VARIABLES_MAX + 1];
    let mut count = 0;
    // SAFETY: as the caller promises.
    for variable in unsafe { raw::strings(environment) } {
        if value_of(variable, PRELOAD).is_some() {
            continue;
        }
        if count == VARIABLES_MAX {
            return call(environment);
        }
        copy[count] = variable.as_ptr();
        count += 1;
    }
    call(copy.as_ptr())
}

/// Gives a thread a name. Its own it can forget at once; another thread has to be told.
pub(crate) fn names<T>(own: bool, call: impl FnOnce() -> T) -> T {
    let result = call();
    if own {
        renamed();
    } else {
        NEWS.fetch_add(1, Ordering::Release);
    }
    result
}

#[cold]
#[inline(never)]
fn renamed() {
    sandbox::forgets_thread();
    forget_thread();
}

/// What a request has to know beforehand, in one word, so that it looks once: what the process has
/// done that is seldom done, a bit each, and how often a thread was given a name by another one.
static NEWS: AtomicU32 = AtomicU32::new(0);
/// It has forbidden itself system calls.
pub(crate) const SANDBOXED: u32 = 1 << 31;
/// One of its threads may be cancelled at any instruction.
pub(crate) const CANCELLED_ANYWHERE: u32 = 1 << 30;
const BITS: u32 = SANDBOXED | CANCELLED_ANYWHERE;

thread_local! {
    /// What of the names this thread has noticed.
    static NOTICED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Forgets what is known of this thread if any thread was given a name by another one. Gives the
/// bits.
#[inline]
pub(crate) fn news() -> u32 {
    let news = NEWS.load(Ordering::Acquire);
    if news == 0 {
        return 0;
    }
    let names = news & !BITS;
    if NOTICED.replace(names) != names {
        renamed();
    }
    news & BITS
}

/// Sets or clears a bit.
pub(crate) fn tell(bit: u32, set: bool) {
    if set {
        NEWS.fetch_or(bit, Ordering::Release);
    } else {
        NEWS.fetch_and(!bit, Ordering::Release);
    }
}

/// Controls the thread or process.
///
/// # Safety
/// `first` and `second` are the arguments that go with the option.
pub(crate) unsafe fn controls<T: Copy + Into<c_long>>(
    option: c_int,
    (first, second): (usize, usize),
    call: impl FnOnce() -> T,
) -> T {
    match option {
        libc::PR_SET_NAME => names(true, call),
        // SAFETY: as the caller promises.
        libc::PR_SET_SECCOMP => unsafe { sandbox::enters(first, second, call) },
        libc::PR_SET_NO_NEW_PRIVS => {
            sandbox::prepares();
            call()
        }
        libc::PR_SET_TSC => sandbox::sets_counter(first, call),
        _ => call(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[&CStr]) -> Vec<*const c_char> {
        variables.iter().map(|variable| variable.as_ptr()).chain([null()]).collect()
    }

    #[test]
    fn an_environment_carries_the_shim_with_both_variables() {
        let shim = c"LD_PRELOAD=/usr/lib/a.so:/opt/libtidegate_preload.so";
        let segment = c"TIDEGATE_SEGMENT=/dev/shm/x";
        let carries = |variables: &[&CStr]| {
            // SAFETY: a terminated array of C strings.
            unsafe { carries_shim(environment(variables).as_ptr()) }
        };
        assert!(carries(&[c"A=1", shim, segment]));
        assert!(!carries(&[shim]) && !carries(&[segment]) && !carries(&[]));
        assert!(!carries(&[c"LD_PRELOAD=/usr/lib/a.so", segment]));
    }

    #[test]
    fn a_foreign_program_gets_the_environment_less_the_shim() {
        let variables = environment(&[c"A=1", c"LD_PRELOAD=x", c"B=2"]);
        // SAFETY: terminated arrays of C strings.
        unsafe {
            without_shim(variables.as_ptr(), |left| {
                assert!(raw::strings(left).eq([c"A=1", c"B=2"]));
            });
            let many = environment(&[c"A=1"; VARIABLES_MAX + 1]);
            without_shim(many.as_ptr(), |left| assert_eq!(left, many.as_ptr()));
        }
    }
}
