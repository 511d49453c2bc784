//! Decisions for the C library's streams (stdio).
//!
//! The gates charge the I/O of a stream on its file, not the calls of the program on its stream. So
//! ten thousand lines written with `fputs` cost forty writes of 4 KiB. Most calls only touch the
//! stream's buffer; the shim sees this by the buffer's fill, and makes such calls at once. If the
//! buffer will meet the kernel, the call passes the gates first, with its largest possible size.
//! The fill afterwards shows how many bytes the call really moved.

use libc::{FILE, c_int};
use tidegate_model::Operation;
use tidegate_stage::files::forget;
use tidegate_stage::{Request, Stage, Subject};

use super::{Admitted, MOVED_MAX, charge, files, paths};
use crate::guard::run_guarded;
use crate::process::stage;
use crate::stream::{self, StdioStream, StreamLock};

/// The function that locks the stream, so that only one thread uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// The function itself.
    Own,
    /// Its caller: the `_unlocked` functions.
    Caller,
}

impl Lock {
    #[inline]
    fn hold(self, stream: &StdioStream) -> StreamLock<'_> {
        match self {
            Self::Own => StreamLock::new(stream),
            Self::Caller => StreamLock::locked_by_caller(),
        }
    }
}

/// A call on a stream that passes the gates.
struct Gated<'a> {
    stage: &'static Stage,
    stream: &'a StdioStream,
    operation: Operation,
    most: u64,
    admitted: Admitted,
}

impl<'a> Gated<'a> {
    fn admit(
        stage: &'static Stage,
        stream: &'a StdioStream,
        operation: Operation,
        most: u64,
    ) -> Self {
        let most = most.min(MOVED_MAX);
        let subject = Subject::Descriptor(stream.descriptor());
        let admitted = Admitted::enforce(stage, &Request::new(operation, most).on(subject));
        Self { stage, stream, operation, most, admitted }
    }

    /// Completes the call, and charges bytes beyond the admitted size in addition: a line longer
    /// than the buffer takes several reads.
    fn complete(self, moved: u64) {
        let descriptor = self.stream.descriptor();
        self.admitted.complete(moved.min(self.most));
        if moved > self.most {
            charge(self.stage, self.operation, descriptor, moved - self.most);
        }
    }
}

/// The bytes that a reading call requests.
pub(crate) struct Wanted<E> {
    /// The most bytes.
    pub(crate) most: u64,
    /// Whether the buffer holds enough bytes to answer without the kernel.
    pub(crate) enough: E,
}

pub(crate) fn byte() -> Wanted<impl Fn(&StdioStream) -> bool> {
    Wanted { most: 1, enough: |stream: &StdioStream| stream.available() > 0 }
}

pub(crate) fn bytes(most: u64) -> Wanted<impl Fn(&StdioStream) -> bool> {
    Wanted { most, enough: move |stream: &StdioStream| stream.available() >= most }
}

/// Bytes up to a delimiter, but so many at most.
pub(crate) fn until(delimiter: c_int, most: u64) -> Wanted<impl Fn(&StdioStream) -> bool> {
    let enough = move |stream: &StdioStream| {
        stream.available() >= most || stream.buffer_contains(delimiter as u8, most)
    };
    // Of a line of unknown length the first buffer is charged; the rest of a longer one after the
    // call.
    Wanted { most: if most == u64::MAX { 1 } else { most }, enough }
}

/// Reads from a stream; `taken` converts the result into bytes.
#[inline]
pub(crate) fn gate_stream_read<T, E: Fn(&StdioStream) -> bool>(
    stream: Option<&StdioStream>,
    lock: Lock,
    wanted: Wanted<E>,
    taken: impl FnOnce(&T) -> u64,
    call: impl FnOnce() -> T,
) -> T {
    let (Some(stage), Some(stream)) = (stage(), stream) else { return call() };
    {
        let _held = lock.hold(stream);
        if (wanted.enough)(stream) {
            return call();
        }
    }
    let most = wanted.most.saturating_sub(stream.available()).saturating_add(stream.buffer());
    let gated = Gated::admit(stage, stream, Operation::Read, most);
    let (result, fetched) = {
        let _held = lock.hold(stream);
        let before = stream.available();
        let result = call();
        let after = taken(&result).saturating_add(stream.available());
        (result, after.saturating_sub(before))
    };
    gated.complete(fetched);
    result
}

/// Writes `length` bytes to a stream; `taken` converts the result into bytes.
#[inline]
pub(crate) fn gate_stream_write<T>(
    stream: Option<&StdioStream>,
    lock: Lock,
    length: u64,
    taken: impl FnOnce(&T) -> u64,
    call: impl FnOnce() -> T,
) -> T {
    let (Some(stage), Some(stream)) = (stage(), stream) else { return call() };
    let write = || {
        let before = stream.pending();
        let result = call();
        let accepted = before.saturating_add(taken(&result));
        (result, accepted.saturating_sub(stream.pending()))
    };
    let held = lock.hold(stream);
    if length <= stream.writable() {
        let (result, flushed) = write();
        drop(held);
        if flushed > 0 {
            // A buffer that was not made yet turned out smaller than usual.
            charge(stage, Operation::Write, stream.descriptor(), flushed);
        }
        return result;
    }
    // No thread waits at a gate with a stream held.
    drop(held);
    let most = stream.pending().saturating_add(length);
    let gated = Gated::admit(stage, stream, Operation::Write, most);
    let held = lock.hold(stream);
    let (result, flushed) = write();
    drop(held);
    gated.complete(flushed);
    result
}

/// Reads items. The C library does so byte by byte in any case; called for single bytes, it also
/// returns how many there were of an item that the file ended in.
pub(crate) fn gate_fread(
    stream: Option<&StdioStream>,
    lock: Lock,
    (size, count): (usize, usize),
    call: impl FnOnce(usize, usize) -> usize,
) -> usize {
    let Some(total) = size.checked_mul(count).filter(|total| *total > 0) else {
        return call(size, count);
    };
    let taken = |moved: &usize| *moved as u64;
    let moved = gate_stream_read(stream, lock, bytes(total as u64), taken, || call(1, total));
    if moved == total { count } else { moved / size }
}

pub(crate) fn gate_fwrite(
    stream: Option<&StdioStream>,
    lock: Lock,
    (size, count): (usize, usize),
    call: impl FnOnce(usize, usize) -> usize,
) -> usize {
    let Some(total) = size.checked_mul(count).filter(|total| *total > 0) else {
        return call(size, count);
    };
    let moved =
        gate_stream_write(stream, lock, total as u64, |moved| *moved as u64, || call(1, total));
    if moved == total { count } else { moved / size }
}

/// Writes something whose length is known, and charged, only after the call.
pub(crate) fn charge_stream_print(
    stream: Option<&StdioStream>,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(stage), Some(stream)) = (stage(), stream) else { return call() };
    let (result, flushed) = {
        let _held = Lock::Own.hold(stream);
        let before = stream.pending();
        let result = call();
        let accepted = before.saturating_add(u64::try_from(result).unwrap_or(0));
        (result, accepted.saturating_sub(stream.pending()))
    };
    if flushed > 0 {
        charge(stage, Operation::Write, stream.descriptor(), flushed);
    }
    result
}

/// The same, to a descriptor.
pub(crate) fn charge_descriptor_print(descriptor: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if let (Some(stage), 1..) = (stage(), result) {
        charge(stage, Operation::Write, descriptor, result as u64);
    }
    result
}

/// Writes out what a stream holds; or every stream, if none is given.
pub(crate) fn gate_fflush(
    stream: Option<&StdioStream>,
    lock: Lock,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(stage) = stage() else { return call() };
    let Some(stream) = stream else {
        charge_all_streams(stage);
        return call();
    };
    let pending = stream.pending();
    if pending == 0 {
        return call();
    }
    let gated = Gated::admit(stage, stream, Operation::Write, pending);
    let (result, flushed) = {
        let _held = lock.hold(stream);
        let before = stream.pending();
        let result = call();
        (result, before.saturating_sub(stream.pending()))
    };
    gated.complete(flushed);
    result
}

/// Moves in a file. The C library flushes the buffer, and reads the block of the new position; the
/// shim sees both only afterwards.
pub(crate) fn charge_fseek<T>(stream: Option<&StdioStream>, call: impl FnOnce() -> T) -> T {
    let (Some(stage), Some(stream)) = (stage(), stream) else { return call() };
    let (result, flushed, fetched) = {
        let _held = Lock::Own.hold(stream);
        let (pending, position) = (stream.pending(), stream.position());
        let result = call();
        let now = stream.position();
        let fetched = if now == position { 0 } else { now.buffered() };
        (result, pending.saturating_sub(stream.pending()), fetched)
    };
    if flushed > 0 {
        charge(stage, Operation::Write, stream.descriptor(), flushed);
    }
    if fetched > 0 {
        charge(stage, Operation::Read, stream.descriptor(), fetched);
    }
    result
}

/// Ends a stream. After the call there is nothing to inspect any more.
pub(crate) fn gate_fclose(stream: Option<&StdioStream>, call: impl FnOnce() -> c_int) -> c_int {
    let Some(stream) = stream else { return call() };
    let descriptor = stream.descriptor();
    let pending = stream.pending();
    let admitted = stage().filter(|_| pending > 0).map(|stage| {
        let subject = Subject::Descriptor(descriptor);
        Admitted::enforce(stage, &Request::new(Operation::Write, pending).on(subject))
    });
    // After the gates, which remember it.
    let result = files::track_close(descriptor, call);
    if let Some(admitted) = admitted {
        admitted.complete(if result == 0 { pending } else { 0 });
    }
    result
}

/// Ends a stream and opens another file in its place.
pub(crate) fn gate_freopen(
    stream: Option<&StdioStream>,
    path: Option<&std::ffi::CStr>,
    call: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    if let (Some(stage), Some(stream)) = (stage(), stream) {
        let pending = stream.pending();
        if pending > 0 {
            charge(stage, Operation::Write, stream.descriptor(), pending);
        }
        forget(stream.descriptor());
    }
    let opened = paths::gate_path_call(Operation::Open, libc::AT_FDCWD, path, call);
    // SAFETY: what `freopen` returns.
    if let Some(stream) = unsafe { StdioStream::of(opened) } {
        forget(stream.descriptor());
    }
    opened
}

/// The most streams that are charged when all are written out.
const STREAMS_MAX: usize = 64;

/// Charges the buffers of all streams, which are about to be flushed. The streams are not locked:
/// for a thread that writes meanwhile, the charge is off by a buffer.
fn charge_all_streams(stage: &'static Stage) {
    let mut found = [(0, 0); STREAMS_MAX];
    let mut count = 0;
    run_guarded(|| {
        stream::each(|stream| {
            let pending = stream.pending();
            if pending > 0 && count < STREAMS_MAX {
                found[count] = (stream.descriptor(), pending);
                count += 1;
            }
        });
    });
    for (descriptor, pending) in &found[..count] {
        charge(stage, Operation::Write, *descriptor, *pending);
    }
}

/// When the program ends, the C library writes out what is left in its streams.
pub(crate) extern "C" fn at_exit() {
    if let Some(stage) = stage() {
        charge_all_streams(stage);
    }
}
