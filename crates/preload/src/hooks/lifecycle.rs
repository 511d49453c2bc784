//! Hooks of calls that start programs or name threads, and the entry point for scopes.

use libc::{FILE, c_char, c_int, c_void, pid_t, pthread_t};
use tidegate_model::ContextId;
use tidegate_stage::scope::{self, ShimEnter};

use crate::cancel::track_cancel_type;
use crate::ops::lifecycle::{track_prctl, track_thread_name};
use crate::ops::programs::{
    Environment, Program, exec_target, gate_exec, gate_popen, gate_spawn, gate_system, inherited,
};
use crate::raw::path;
use crate::real::{CallResult, Real};

type Arguments = *const *const c_char;

hooks! {
    fn execve(name: *const c_char, arguments: Arguments, variables: Environment) -> c_int
        = gate_exec[Program::At(path(name)), variables] |variables|;
    fn execvpe(name: *const c_char, arguments: Arguments, variables: Environment) -> c_int
        = gate_exec[Program::Named(path(name)), variables] |variables|;
    fn execveat(
        directory: c_int, name: *const c_char, arguments: Arguments, variables: Environment,
        flags: c_int,
    ) -> c_int = gate_exec[exec_target(directory, path(name), flags), variables] |variables|;
    fn fexecve(fd: c_int, arguments: Arguments, variables: Environment) -> c_int
        = gate_exec[Program::Open(fd), variables] |variables|;
    fn posix_spawn(
        child: *mut pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, variables: Environment,
    ) -> c_int = gate_spawn[Program::At(path(name)), variables] |variables|;
    fn posix_spawnp(
        child: *mut pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, variables: Environment,
    ) -> c_int = gate_spawn[Program::Named(path(name)), variables] |variables|;
    fn system(command: *const c_char) -> c_int = gate_system[!command.is_null()];
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = gate_popen[];

    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = track_cancel_type[kind];
    fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int
        = track_thread_name[thread == libc::pthread_self()];
}

variadic_hooks! {
    fn prctl(option: c_int; first: usize, second: usize, third: usize, fourth: usize) -> c_int
        = track_prctl[option, (first, second)];
}

/// Hooks for functions that leave for another place and never return. A signal handler that leaves
/// so may have interrupted the shim; whatever it was doing there is over.
macro_rules! longjmp_hooks {
    ($($name:ident)*) => {$(
        #[doc = concat!("Hook for `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(environment: *mut c_void, value: c_int) -> ! {
            #[used]
            #[unsafe(link_section = "tidegate_real")]
            static REAL: Real<unsafe extern "C-unwind" fn(*mut c_void, c_int) -> !> =
                Real::new(concat!(stringify!($name), "\0"), <c_int as CallResult>::FALLBACK);
            crate::ops::threads::on_jump();
            // SAFETY: as for `hooks!`.
            unsafe { REAL.get()(environment, value) }
        }
    )*};
}

longjmp_hooks! { longjmp _longjmp siglongjmp __longjmp_chk }

type Execute = unsafe extern "C-unwind" fn(*const c_char, Arguments, Environment) -> c_int;

/// Hook for `execv`, which is `execve` with the environment of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(name: *const c_char, arguments: Arguments) -> c_int {
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static REAL: Real<Execute> = Real::new("execve\0", <c_int as CallResult>::FALLBACK);
    // SAFETY: as for `hooks!`.
    unsafe {
        let real = REAL.get();
        gate_exec(Program::At(path(name)), inherited(), |variables| {
            real(name, arguments, variables)
        })
    }
}

/// Hook for `execvp`, which is `execvpe` with the environment of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(name: *const c_char, arguments: Arguments) -> c_int {
    #[used]
    #[unsafe(link_section = "tidegate_real")]
    static REAL: Real<Execute> = Real::new("execvpe\0", <c_int as CallResult>::FALLBACK);
    // SAFETY: as for `hooks!`.
    unsafe {
        let real = REAL.get();
        gate_exec(Program::Named(path(name)), inherited(), |variables| {
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
