//! Programs that restrict their own system calls by seccomp.
//!
//! Behind a filter a system call may end the program, and the shim makes some that the program
//! would not: it queries what a descriptor is, it sleeps at a gate. So when the program is about to
//! install a filter, the filter is run here first, for every call that the shim may ever make
//! ([`filter`]). If all of them pass, nothing changes. If not, everything that can be found out is
//! found out while that is still allowed: the open descriptors and the calling
//! thread. From then on [`must_bypass`] checks each request before the stage does, and one that
//! would need a call that is not allowed passes without a gate, and is counted.
//!
//! Requests sleep on a futex, and on nothing else: programs with threads cannot do without it, so
//! that nearly every filter allows it, and only a futex can be woken when a limit is raised. Where
//! it is not allowed nothing that might wait is gated.
//!
//! A filter belongs to a thread and is inherited by those that it starts. Here it counts for the
//! whole process from the moment that any thread has it: which thread has which cannot be seen
//! without a call. The strict mode of the kernel, `read`, `write` and the end, is different: it
//! takes away the time-stamp counter as well, and such a thread can start no other. A thread in
//! strict mode counts as being inside the shim for good, so none of its calls passes a gate.
//!
//! While no filter is in the way, none of this is checked: the flag is a bit of a word that every
//! request reads anyway ([`process::RARE_STATE`]).

use std::cell::Cell;
use std::ffi::c_long;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags, RawDir};
use tidegate_model::{ContextId, Operation};
use tidegate_stage::files::{self, File};
use tidegate_stage::layout::{GateKind, SegmentLayout};
use tidegate_stage::{
    Bypass, Classifier, Inside, Request, RuleTable, Stage, Subject, record, scope, scratch,
};

use crate::filter::{self, BpfProgram, Call, Instruction};
use crate::guard::run_guarded;
use crate::process::{self, ALL, ALLOWED, CallSet, PROBE, STRICT, stage};
pub(crate) use crate::process::{is_forbidden, is_strict};
use crate::raw;

/// The reason under which calls are counted that a sandbox keeps from the gates.
pub(crate) const SANDBOXED: Bypass = Bypass::Sandboxed;

const FUTEX: CallSet = 1;
const STATUS: CallSet = 1 << 1;
const FILE_SYSTEM: CallSet = 1 << 2;
const LINK: CallSet = 1 << 3;
const PROCESS: CallSet = 1 << 4;
const THREAD_NAME: CallSet = 1 << 5;
const USER: CallSet = 1 << 6;
const OPEN: CallSet = 1 << 7;
const READ: CallSet = 1 << 8;
const CLOSE: CallSet = 1 << 9;
const MAP: CallSet = 1 << 10;
const CLOCK: CallSet = 1 << 11;
const INSPECT: CallSet = 1 << 12;

/// To find out what a descriptor is.
const DESCRIPTOR: CallSet = STATUS | FILE_SYSTEM | LINK | PROCESS;
/// To find out whether a file that is mapped is on storage.
pub(crate) const MAPPING: CallSet = STATUS | FILE_SYSTEM;
/// To find out what files are that are registered with a ring.
pub(crate) const REGISTRATION: CallSet = DESCRIPTOR;
/// To find out where a relative name begins.
pub(crate) const DIRECTORY: CallSet = LINK;
/// To find out whether a thread is stopped that holds a permit at a queue.
const THREAD_STATE: CallSet = OPEN | READ | CLOSE | STATUS | LINK;
/// To find out that a forked child is a process of its own.
pub(crate) const CHILD: CallSet = PROCESS;

/// The calls behind the bits, with those arguments that filters are known to check.
const CALLS: [(CallSet, Call); 25] = [
    (FUTEX, call_of(libc::SYS_futex, Some(libc::FUTEX_WAIT as u32))),
    (FUTEX, call_of(libc::SYS_futex, Some(libc::FUTEX_WAKE as u32))),
    (STATUS, call_of(libc::SYS_fstat, None)),
    (FILE_SYSTEM, call_of(libc::SYS_fstatfs, None)),
    (LINK, call_of(libc::SYS_readlinkat, None)),
    (PROCESS, call_of(libc::SYS_getpid, None)),
    (PROCESS, call_of(libc::SYS_gettid, None)),
    (
        THREAD_NAME,
        Call { number: libc::SYS_prctl, arguments: [Some(libc::PR_GET_NAME as u32), None] },
    ),
    (USER, call_of(libc::SYS_geteuid, None)),
    (OPEN, call_of(libc::SYS_openat, None)),
    (OPEN, call_of(OPEN_BY_NAME, None)),
    (READ, call_of(libc::SYS_read, None)),
    (CLOSE, call_of(libc::SYS_close, None)),
    (MAP, call_of(libc::SYS_mmap, None)),
    (CLOCK, call_of(libc::SYS_clock_gettime, None)),
    // To find out whether memory can be read.
    (PROBE, Call { number: libc::SYS_rt_sigprocmask, arguments: [Some(u32::MAX), None] }),
    // To find out what a program is that is to be started.
    (INSPECT, call_of(libc::SYS_pread64, None)),
    (INSPECT, call_of(libc::SYS_newfstatat, None)),
    (INSPECT, call_of(libc::SYS_fgetxattr, None)),
    (INSPECT, call_of(libc::SYS_faccessat, None)),
    (INSPECT, call_of(libc::SYS_faccessat2, None)),
    (INSPECT, call_of(libc::SYS_getuid, None)),
    (INSPECT, call_of(libc::SYS_getgid, None)),
    (INSPECT, call_of(libc::SYS_getegid, None)),
    (
        INSPECT,
        Call { number: libc::SYS_prctl, arguments: [Some(libc::PR_GET_NO_NEW_PRIVS as u32), None] },
    ),
];

/// The older call beside `openat`, on machines that have one.
#[cfg(target_arch = "x86_64")]
const OPEN_BY_NAME: c_long = libc::SYS_open;
#[cfg(not(target_arch = "x86_64"))]
const OPEN_BY_NAME: c_long = libc::SYS_openat;

const fn call_of(number: c_long, second: Option<u32>) -> Call {
    Call { number, arguments: [None, second] }
}

/// The facts known about the process for good: [`LINK`] for its name, [`READ`] for its group.
static IDENTITY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The table and the context under which the stage has this thread.
    static CACHED_THREAD: Cell<(u32, ContextId)> = const { Cell::new((0, ContextId::NONE)) };
}

/// The effect of this process's filters on the start of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecPolicy {
    /// The shim may inspect the program.
    Known,
    /// Inspecting the program may end this process, but no filter is in the way of the shim.
    Unknown,
    /// A filter forbids calls that the shim would make in the program.
    WithoutShim,
}

/// Returns the effect of this process's filters on a program that it starts.
pub(crate) fn exec_policy() -> ExecPolicy {
    if is_forbidden(ALL & !INSPECT & !PROBE) {
        ExecPolicy::WithoutShim
    } else if is_forbidden(INSPECT) {
        ExecPolicy::Unknown
    } else {
        ExecPolicy::Known
    }
}

/// The thread leaves for another place with `longjmp`: if it was inside the shim, it is no more,
/// but for one in strict mode.
pub(crate) fn on_jump() {
    if !STRICT.get() {
        files::abandon();
        scratch::abandon();
        Inside::reset();
    }
}

/// Forgets that the stage knows this thread, because the stage is about to forget it.
pub(crate) fn forget_cached_thread() {
    CACHED_THREAD.set((0, ContextId::NONE));
}

/// Whether a request must pass without a gate, because the gate would need a call that may end the
/// program. To be checked in a process that has forbidden itself any.
#[cold]
#[inline(never)]
pub(crate) fn must_bypass(stage: &Stage, request: &Request<'_>) -> bool {
    let allowed = ALLOWED.load(Ordering::Relaxed);
    let layout = stage.layout();
    let generation = layout.header.generation.load(Ordering::Acquire);
    if generation == 0 {
        // Without rules it passes, or sleeps until there are some.
        return layout.header.closed.load(Ordering::Relaxed) != 0 && allowed & FUTEX == 0;
    }
    let table = RuleTable(&layout.tables[generation as usize % layout.tables.len()][..]);
    if !is_thread_cached(allowed, generation, |classifier| table.uses(classifier)) {
        return true;
    }
    if let Subject::Descriptor(descriptor) = request.subject {
        match files::known(descriptor, generation) {
            Some(File::Other) => return false,
            None if allowed & DESCRIPTOR != DESCRIPTOR => return true,
            _ => {}
        }
    }
    let waits = FUTEX | CLOCK;
    allowed & waits != waits || (allowed & PROCESS == 0 && has_queue(layout))
}

/// Whether the stage knows the thread under this table, or may query what the table depends on.
fn is_thread_cached(allowed: CallSet, generation: u32, uses: impl Fn(Classifier) -> bool) -> bool {
    let context = scope::enter_here(ContextId::NONE);
    scope::enter_here(context);
    let here = (generation, context);
    if CACHED_THREAD.get() == here {
        return true;
    }
    let identity = IDENTITY.load(Ordering::Relaxed);
    let group = OPEN | READ | CLOSE;
    let barred = (uses(Classifier::Workflow) && allowed & THREAD_NAME == 0)
        || (uses(Classifier::User) && allowed & USER == 0)
        || (uses(Classifier::Process) && (allowed | identity) & LINK == 0)
        || (uses(Classifier::Cgroup) && identity & READ == 0 && allowed & group != group);
    if !barred {
        CACHED_THREAD.set(here);
    }
    !barred
}

/// Whether any gate is a queue, which identifies its waiting threads.
fn has_queue(layout: &SegmentLayout) -> bool {
    layout.gates.iter().any(|gate| gate.kind.load(Ordering::Relaxed) == GateKind::Queue as u32)
}

/// Sets the calls that the process may make.
fn allow(allowed: CallSet) {
    ALLOWED.store(allowed, Ordering::Relaxed);
    files::allow_queries(allowed & DESCRIPTOR == DESCRIPTOR);
    record::allow_inspection(allowed & THREAD_STATE == THREAD_STATE);
    process::set_rare_state(process::SANDBOXED, allowed != ALL);
}

/// Takes the calls `lost` from the process, and gives them back if `call` fails.
fn with_forbidden<T: Copy + Into<c_long>>(lost: CallSet, call: impl FnOnce() -> T) -> T {
    let before = ALLOWED.load(Ordering::Relaxed);
    if lost & before == 0 {
        return call();
    }
    // Before the call: other threads may have the filter at once.
    allow(before & !lost);
    let result = call();
    if result.into() < 0 {
        allow(before);
    }
    result
}

/// Installs a filter.
///
/// # Safety
/// `program` is a `struct sock_fprog`, or points to where nothing can be read.
pub(crate) unsafe fn install_filter<T: Copy + Into<c_long>>(
    program: *const BpfProgram,
    call: impl FnOnce() -> T,
) -> T {
    // SAFETY: as the caller promises.
    let program = || unsafe { raw::value(program) };
    let Some((stage, program)) = stage().zip(program()) else { return call() };
    // A child of vfork has its parent's memory, and what it may not do is not its parent's matter.
    if !is_forbidden(PROCESS) && !files::is_own() {
        return call();
    }
    // SAFETY: as the caller promises.
    let lost = forbidden_by(stage, unsafe { program.instructions() });
    if lost != 0 {
        cache_before_filter();
    }
    with_forbidden(lost, call)
}

/// The calls that a filter takes from the process.
fn forbidden_by(stage: &Stage, program: &[Instruction]) -> CallSet {
    let refused = CALLS.iter().filter(|(_, call)| !filter::passes(program, call));
    let lost = refused.fold(0, |lost, (need, _)| lost | need);
    if lost & CLOCK != 0 && reads_clock_without_calls(stage) { lost & !CLOCK } else { lost }
}

/// Whether the time can be had without a system call: from the counter, or from the kernel's clock
/// where the C library reads that one in memory.
fn reads_clock_without_calls(stage: &Stage) -> bool {
    const IN_MEMORY: [&[u8]; 4] =
        [b"tsc\n", b"kvm-clock\n", b"hyperv_clocksource_tsc_page\n", b"arch_sys_counter\n"];
    if stage.layout().header.clock.read()[2] != 0 {
        return true;
    }
    let name = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let mut found = [0; 32];
    run_guarded(|| {
        if is_forbidden(OPEN | READ | CLOSE) {
            return false;
        }
        let file = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let length = file.and_then(|file| rustix::io::read(&file, &mut found[..]));
        length.is_ok_and(|length| IN_MEMORY.contains(&&found[..length]))
    }) == Some(true)
}

/// Finds out what may not be found out later. A program gives up gaining rights before it installs
/// a filter, so this is done then, too: the filter itself may be installed in a way that cannot be
/// seen.
pub(crate) fn cache_before_filter() {
    let Some(stage) = stage() else { return };
    if is_forbidden(DESCRIPTOR | OPEN | CLOSE) || !files::is_own() {
        return;
    }
    run_guarded(|| {
        // The first reading of the kernel's clock finds its location.
        stage.now();
        cache_thread(stage);
        each_open(|descriptor| {
            let subject = Subject::Descriptor(descriptor);
            stage.classify(&Request::new(Operation::Read, 0).on(subject));
        });
    });
}

/// Makes the stage know this thread.
fn cache_thread(stage: &Stage) {
    let layout = stage.layout();
    let generation = layout.header.generation.load(Ordering::Acquire);
    stage.classify(&Request::new(Operation::Read, 0).on(Subject::Path(b"")));
    let table = RuleTable(&layout.tables[generation as usize % layout.tables.len()][..]);
    if generation == 0 || layout.header.generation.load(Ordering::Acquire) != generation {
        return;
    }
    let context = scope::enter_here(ContextId::NONE);
    scope::enter_here(context);
    CACHED_THREAD.set((generation, context));
    for (classifier, need) in [(Classifier::Process, LINK), (Classifier::Cgroup, READ)] {
        if table.uses(classifier) {
            IDENTITY.fetch_or(need, Ordering::Relaxed);
        }
    }
}

/// How many descriptors are tried where the kernel gives no list.
const DESCRIPTORS_TRIED: i32 = 1_024;

/// Calls `see` with every open descriptor.
fn each_open(mut see: impl FnMut(i32)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(list) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else {
        for descriptor in 0..DESCRIPTORS_TRIED {
            // SAFETY: if the descriptor is not open, the kernel reports it.
            let tried = unsafe { BorrowedFd::borrow_raw(descriptor) };
            if rustix::io::fcntl_getfd(tried).is_ok() {
                see(descriptor);
            }
        }
        return;
    };
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&list, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = str::from_utf8(entry.file_name().to_bytes()).ok();
        let descriptor = name.and_then(|name| name.parse().ok());
        // The list's own is gone in a moment, and must not be known then.
        if let Some(descriptor) = descriptor.filter(|descriptor| *descriptor != list.as_raw_fd()) {
            see(descriptor);
        }
    }
}

/// Enters the kernel's strict mode.
fn enter_strict_mode<T: Copy + Into<c_long>>(call: impl FnOnce() -> T) -> T {
    if stage().is_none() {
        return call();
    }
    STRICT.set(true);
    // None if a handler does this that has interrupted the shim: then it is inside already.
    let inside = Inside::enter();
    let result = call();
    if result.into() < 0 {
        STRICT.set(false);
    } else {
        inside.into_iter().for_each(Inside::stay);
    }
    result
}

/// `prctl(PR_SET_SECCOMP)`, with its next two arguments.
///
/// # Safety
/// They are those of the call.
pub(crate) unsafe fn on_seccomp_mode<T: Copy + Into<c_long>>(
    mode: usize,
    argument: usize,
    call: impl FnOnce() -> T,
) -> T {
    const STRICT: usize = 1;
    const FILTER: usize = 2;
    match mode {
        STRICT => enter_strict_mode(call),
        // SAFETY: as the caller promises.
        FILTER => unsafe { install_filter(std::ptr::with_exposed_provenance(argument), call) },
        _ => call(),
    }
}

/// `seccomp`, which the C library has no function for, with its first and its third argument.
///
/// # Safety
/// As for [`on_seccomp_mode`].
pub(crate) unsafe fn on_seccomp_call(
    operation: c_long,
    argument: c_long,
    call: impl FnOnce() -> c_long,
) -> c_long {
    // The two operations are the modes of prctl less one; all others change nothing.
    match operation {
        // SAFETY: as the caller promises.
        0 | 1 => unsafe { on_seccomp_mode(operation as usize + 1, argument as usize, call) },
        _ => call(),
    }
}

/// `prctl(PR_SET_TSC)`: a program may forbid itself the time-stamp counter, from which the time is
/// read; then a thread that reads the counter gets a signal.
pub(crate) fn on_set_tsc<T: Copy + Into<c_long>>(mode: usize, call: impl FnOnce() -> T) -> T {
    const FORBIDDEN: usize = libc::PR_TSC_SIGSEGV as usize;
    if mode == FORBIDDEN {
        return with_forbidden(CLOCK, call);
    }
    let result = call();
    if result.into() >= 0 {
        allow(ALLOWED.load(Ordering::Relaxed) | CLOCK);
    }
    result
}
