//! Hooks of calls that start programs or name threads, and the entry point for scopes.

use libc::{FILE, c_char, c_int, c_void, pid_t, pthread_t};
use tidegate_model::ContextId;
use tidegate_stage::scope::{self, ShimEnter};

use crate::cancel::types;
use crate::ops::lifecycle::{controls, names};
use crate::ops::programs::{Environment, Program, beside, inherited, pipes, runs, spawns, starts};
use crate::raw::path;
use crate::real::{CallResult, Real};

type Arguments = *const *const c_char;

hooks! {
    fn execve(name: *const c_char, arguments: Arguments, variables: Environment) -> c_int
        = starts[Program::At(path(name)), variables] |variables|;
    fn execvpe(name: *const c_char, arguments: Arguments, variables: Environment) -> c_int
        = starts[Program::Named(path(name)), variables] |variables|;
    fn execveat(
        directory: c_int, name: *const c_char, arguments: Arguments, variables: Environment,
        flags: c_int,
    ) -> c_int = starts[beside(directory, path(name), flags), variables] |variables|;
    fn fexecve(fd: c_int, arguments: Arguments, variables: Environment) -> c_int
        = starts[Program::Open(fd), variables] |variables|;
    fn posix_spawn(
        child: *mut pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, variables: Environment,
    ) -> c_int = spawns[Program::At(path(name)), variables] |variables|;
    fn posix_spawnp(
        child: *mut pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, variables: Environment,
    ) -> c_int = spawns[Program::Named(path(name)), variables] |variables|;
    fn system(command: *const c_char) -> c_int = runs[!command.is_null()];
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = pipes[];

    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = types[kind];
    fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int
        = names[thread == libc::pthread_self()];
}

variadic_hooks! {
    fn prctl(option: c_int; first: usize, second: usize, third: usize, fourth: usize) -> c_int
        = controls[option, (first, second)];
}

/// Hooks for functions that leave for another place and never return. A signal handler that leaves
/// so may have interrupted the shim; whatever it was doing there is over.
macro_rules! jumps {
    ($($name:ident)*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(environment: *mut c_void, value: c_int) -> ! {
            #[unsafe(link_section = "tidegate_real")]
            static REAL: Real<unsafe extern "C-unwind" fn(*mut c_void, c_int) -> !> =
                Real::new(concat!(stringify!($name), "\0"), <c_int as CallResult>::ABSENT);
            crate::ops::threads::on_jump();
            // SAFETY: as for `hooks!`.
            unsafe { REAL.get()(environment, value) }
        }
    )*};
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }

type Execute = unsafe extern "C-unwind" fn(*const c_char, Arguments, Environment) -> c_int;

/// Hook for `execv`, which is `execve` with the environment of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(name: *const c_char, arguments: Arguments) -> c_int {
    #[unsafe(link_section = "tidegate_real")]
    static REAL: Real<Execute> = Real::new("execve\0", <c_int as CallResult>::ABSENT);
    // SAFETY: as for `hooks!`.
    unsafe {
        let real = REAL.get();
        starts(Program::At(path(name)), inherited(), |variables| real(name, arguments, variables))
    }
}

/// Hook for `execvp`, which is `execvpe` with the environment of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(name: *const c_char, arguments: Arguments) -> c_int {
    #[unsafe(link_section = "tidegate_real")]
    static REAL: Real<Execute> = Real::new("execvpe\0", <c_int as CallResult>::ABSENT);
    // SAFETY: as for `hooks!`.
    unsafe {
        let real = REAL.get();
        starts(Program::Named(path(name)), inherited(), |variables| {
            real(name, arguments, variables)
        })
    }
}

/// Called by other copies of the stage's library in this process: a scope belongs to the copy that
/// sees the system calls.
///
/// # Safety
/// `name` is null or points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_shim_enter(name: *const u8, length: usize, id: u16) -> u16 {
    let id = if name.is_null() {
        ContextId(id)
    } else {
        // SAFETY: as the caller promises.
        scope::intern(unsafe { std::slice::from_raw_parts(name, length) })
    };
    scope::enter_here(id).0
}

const _: ShimEnter = tidegate_shim_enter;
