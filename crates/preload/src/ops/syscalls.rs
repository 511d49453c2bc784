//! Decisions for system calls by number, through the C library's `syscall`.

use libc::{c_int, c_long, iovec};
use tidegate_model::Operation;
use tidegate_stage::files::forget;

use super::programs::{self, Program};
use super::rings;
use super::{completions, copies, files, gate_descriptor_call, gate_transfer, lifecycle};
use crate::{raw, sandbox};

/// `io_pgetevents`, which the `libc` crate does not have.
const IO_PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// A system call's six arguments, of which it may have fewer.
pub(crate) type Arguments = [c_long; 6];

/// Makes a system call by number: those that move data pass the gates, those that make or end
/// descriptors are noticed, everything else goes straight through. `call` takes the arguments, of
/// which the length of a copy may be another one.
///
/// # Safety
/// The arguments are those of the system call.
pub(crate) unsafe fn gate_system_call(
    number: c_long,
    arguments: Arguments,
    call: impl Fn(Arguments) -> c_long,
) -> c_long {
    let [first, second, third, ..] = arguments;
    match number {
        libc::SYS_copy_file_range | libc::SYS_splice => {
            return copy(first, third, 4, arguments, call);
        }
        libc::SYS_sendfile => return copy(second, first, 3, arguments, call),
        // SAFETY: as the caller promises.
        libc::SYS_execve | libc::SYS_execveat => unsafe {
            return start_program(number, arguments, call);
        },
        _ => {}
    }
    if number == libc::SYS_io_submit {
        // SAFETY: as the caller promises.
        return unsafe { submit(arguments, call) };
    }
    let call = || call(arguments);
    let descriptor = first as c_int;
    // SAFETY: as the caller promises.
    if let Some((operation, bytes)) = unsafe { transfer(number, second, third) } {
        return gate_transfer(operation, descriptor, bytes, call);
    }
    match number {
        libc::SYS_fsync | libc::SYS_fdatasync => {
            gate_descriptor_call(Operation::Sync, descriptor, call)
        }
        libc::SYS_close => files::track_close(descriptor, call),
        libc::SYS_close_range => {
            files::track_close_range_call((first as u32, second as u32), third as c_int, call)
        }
        libc::SYS_unshare => files::track_unshare(first as c_int, libc::CLONE_FILES, call),
        libc::SYS_dup3 => track_dup2(second, call),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => track_dup2(second, call),
        libc::SYS_io_getevents | IO_PGETEVENTS => {
            completions::wait_for_context(first as usize, second, call)
        }
        libc::SYS_io_destroy => completions::end_context(first as usize, call),
        libc::SYS_io_uring_setup => rings::set_up_own_ring(call),
        // SAFETY: as the caller promises.
        libc::SYS_prctl => unsafe {
            lifecycle::track_prctl(first as c_int, (second as usize, third as usize), call)
        },
        // SAFETY: as the caller promises.
        libc::SYS_seccomp => unsafe { sandbox::on_seccomp_call(first, third, call) },
        _ => call(),
    }
}

/// The operation and the size of a call that moves data; none for other calls.
///
/// # Safety
/// The arguments are those of the call.
#[inline]
unsafe fn transfer(number: c_long, second: c_long, third: c_long) -> Option<(Operation, u64)> {
    let length = third as u64;
    // SAFETY: as the caller promises.
    let vectors = || unsafe { raw::total(at::<iovec>(second), third as c_int) };
    Some(match number {
        libc::SYS_read | libc::SYS_pread64 => (Operation::Read, length),
        libc::SYS_write | libc::SYS_pwrite64 => (Operation::Write, length),
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => (Operation::Read, vectors()),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => (Operation::Write, vectors()),
        _ => return None,
    })
}

/// Submits requests to the kernel's asynchronous I/O.
///
/// # Safety
/// The arguments are those of `io_submit`.
unsafe fn submit(arguments: Arguments, call: impl Fn(Arguments) -> c_long) -> c_long {
    let [context, count, blocks, ..] = arguments;
    let blocks = std::ptr::with_exposed_provenance_mut(blocks as usize);
    // SAFETY: as the caller promises.
    unsafe {
        rings::charge_io_submit(context as usize, count, blocks, |count, blocks| {
            let mut batch = arguments;
            (batch[1], batch[2]) = (count, blocks.expose_provenance() as c_long);
            call(batch)
        })
    }
}

/// Starts a program.
///
/// # Safety
/// The arguments are those of `execve` or `execveat`.
unsafe fn start_program(
    number: c_long,
    mut arguments: Arguments,
    call: impl FnOnce(Arguments) -> c_long,
) -> c_long {
    let [first, second, third, fourth, fifth, _] = arguments;
    // SAFETY: as the caller promises.
    unsafe {
        let (program, index) = if number == libc::SYS_execve {
            (Program::At(raw::path(at(first))), 2)
        } else {
            (programs::exec_target(first as c_int, raw::path(at(second)), fifth as c_int), 3)
        };
        let environment = if index == 2 { third } else { fourth };
        programs::gate_exec(program, at(environment), |environment| {
            arguments[index] = environment.expose_provenance() as c_long;
            call(arguments)
        })
    }
}

/// Copies, with the length at this index of the arguments.
fn copy(
    source: c_long,
    target: c_long,
    index: usize,
    mut arguments: Arguments,
    call: impl FnOnce(Arguments) -> c_long,
) -> c_long {
    copies::gate_copy(source as c_int, target as c_int, arguments[index] as usize, |length| {
        arguments[index] = length as c_long;
        call(arguments)
    })
}

/// As [`files::track_dup2`].
fn track_dup2(target: c_long, call: impl FnOnce() -> c_long) -> c_long {
    let result = call();
    forget(target as c_int);
    result
}

/// Converts an argument to the pointer that it stands for.
fn at<T>(argument: c_long) -> *const T {
    std::ptr::with_exposed_provenance(argument as usize)
}
