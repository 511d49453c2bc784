//! Decisions for calls that copy data inside the kernel, from one descriptor to another.
//!
//! Each side that is on storage moves the data, so each is charged: a read of the source and a
//! write of the target. A permit of a queue is held for one side only; if both sides waited in one
//! queue, a request that holds its first permit would wait for its second for ever. So the write is
//! admitted before and the read charged after, or, where the target is no storage, the read is
//! admitted before.
//!
//! Copies are made in chunks. A program may request two gigabytes at once, and one request of that
//! size would leave nothing for other requests. All these calls may move less than requested, and
//! their callers go on from there. `read` and `write` may as well, but programs rely on their being
//! whole; they are never cut.

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
