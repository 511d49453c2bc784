//! Decisions for calls that copy data inside the kernel, from one descriptor to another.
//!
//! Each side on storage passes gates: a read of the source and a write of the target. Permits of
//! queues are held during the call for one side only: if both sides waited in one queue, a request
//! that holds its first permit could wait for its second for ever. So the write is admitted before
//! the call, and the read passes its gates after the call, for the bytes that were copied. If no
//! gate applies to the write (the target is a socket, or no rule matches), the read is admitted
//! before the call instead.
//!
//! Copies are made in chunks. A program may request two gigabytes at once, and one request of that
//! size would leave nothing for other requests. A copy may be shorter than requested, and callers
//! of these calls continue from there. `read` and `write` are never cut: they may be short too, but
//! programs rely on full transfers.
//!
//! A clone of a file (`FICLONE`) moves no data and counts as one write.

use libc::{c_int, c_ulong};
use tidegate_model::Operation;
use tidegate_stage::{Request, Subject};

use super::{Admitted, charge, gate_descriptor_call};
use crate::process::stage;
use crate::real::CallResult;

/// The most that one call copies.
const CHUNK_MAX: usize = 1 << 20;

/// Copies at most `length` bytes.
pub(crate) fn gate_copy<T: CallResult>(
    source: c_int,
    target: c_int,
    length: usize,
    call: impl FnOnce(usize) -> T,
) -> T {
    let Some(stage) = stage() else { return call(length) };
    let length = length.min(CHUNK_MAX);
    let admit = |operation, descriptor| {
        let request = Request::new(operation, length as u64);
        Admitted::enforce(stage, &request.on(Subject::Descriptor(descriptor)))
    };
    let write = admit(Operation::Write, target);
    let read = (!write.is_gated()).then(|| admit(Operation::Read, source));
    let result = call(length);
    let moved = result.bytes_moved();
    write.complete(moved);
    match read {
        Some(read) => read.complete(moved),
        None if moved > 0 => charge(stage, Operation::Read, source, moved),
        None => {}
    }
    result
}

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;

/// Asks a device or file system for something. A clone moves no data, but it is a write.
pub(crate) fn gate_ioctl(
    descriptor: c_int,
    request: c_ulong,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match request {
        FICLONE | FICLONERANGE => gate_descriptor_call(Operation::Write, descriptor, call),
        _ => call(),
    }
}
