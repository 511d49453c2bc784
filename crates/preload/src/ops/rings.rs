//! Decisions for asynchronous requests: `io_uring`, Linux AIO (`io_submit`) and POSIX AIO
//! (`aio_read`, `lio_listio`). Files that a program registers with a ring are tracked here as well.
//!
//! Such requests are charged when the program submits them: at their completion, no thread may be
//! there to wait. So short results are not refunded, and a gate that limits the requests in service
//! sees each request leave as soon as the program has handed it over. Where the capacity of the
//! storage is measured, polling the ring finds their times ([`super::completions`]).

use libc::{c_int, c_long, c_void, iovec};
use tidegate_model::Operation;
use tidegate_stage::files::{forget, registered};
use tidegate_stage::{Bypass, Inside, Request, Stage, Subject};

use super::completions::{self, CompletionRing};
use super::liburing::{Ring, RingEntry};
use super::{Admitted, MOVED_MAX, lifecycle};
use crate::guard::run_guarded;
use crate::process::{self, stage};
use crate::{raw, sandbox};

/// One request, as far as gates care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingRequest {
    operation: Operation,
    file: RingFile,
    bytes: u64,
}

/// The file of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingFile {
    /// By its descriptor.
    Open(c_int),
    /// By its index among the files that are registered with the ring.
    Registered(c_int),
}

impl RingRequest {
    /// The request in the ring with this descriptor. A request outside of a ring is on an open
    /// file.
    fn in_ring(self, ring: c_int) -> Request<'static> {
        let file = match self.file {
            RingFile::Open(descriptor) => Subject::Descriptor(descriptor),
            RingFile::Registered(index) => {
                Subject::Registered { ring, index: index.cast_unsigned() }
            }
        };
        Request::new(self.operation, self.bytes.min(MOVED_MAX)).on(file).untimed()
    }
}

/// Charges a request in the ring with this descriptor.
fn charge_request(stage: &'static Stage, ring: c_int, entry: RingRequest) {
    let request = entry.in_ring(ring);
    Admitted::enforce(stage, &request).complete(request.bytes);
}

/// Whether the request's time is to be known. The kernel may be queried for that, which a sandbox
/// may not allow.
fn is_probed(stage: &Stage, ring: c_int, entry: RingRequest) -> bool {
    lifecycle::rare_state() & process::SANDBOXED == 0 && stage.is_probed(&entry.in_ring(ring))
}

/// Stands for a ring where there is none.
const NO_RING: c_int = -1;

/// The kernel's `iocb`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: c_int,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

const _: () = assert!(size_of::<ControlBlock>() == 64);

impl ControlBlock {
    /// The operation of this entry, if it passes gates. Opcodes are those of the kernel's
    /// `aio_abi.h`.
    fn entry(&self) -> Option<RingRequest> {
        let (operation, bytes) = match self.opcode {
            0 => (Operation::Read, self.length),
            1 => (Operation::Write, self.length),
            2 | 3 => (Operation::Sync, 0),
            7 => (Operation::Read, vectors(self.buffer, self.length)),
            8 => (Operation::Write, vectors(self.buffer, self.length)),
            _ => return None,
        };
        Some(RingRequest { operation, file: RingFile::Open(self.descriptor as c_int), bytes })
    }
}

/// The size of the vectors that a request points to.
fn vectors(address: u64, count: u64) -> u64 {
    let vectors = std::ptr::with_exposed_provenance::<iovec>(address as usize);
    // SAFETY: the program that made the request promises that so many are there.
    unsafe { raw::total(vectors, c_int::try_from(count).unwrap_or(-1)) }
}

/// How many requests are handed over at a time, and remembered until it is known how many of them
/// were taken.
const BATCH: usize = 64;

/// Submits requests to the kernel's asynchronous I/O. More than [`BATCH`] go in several calls, up
/// to the first that does not take all of its requests, as the kernel itself would stop there.
///
/// # Safety
/// `blocks` points to `count` pointers to control blocks, as `io_submit` wants it.
pub(crate) unsafe fn charge_io_submit<T: Copy + Into<c_long> + TryFrom<c_long>>(
    context: usize,
    count: c_long,
    blocks: *mut *mut c_void,
    call: impl Fn(c_long, *mut *mut c_void) -> T,
) -> T {
    let (Some(stage), Ok(all)) = (stage(), usize::try_from(count)) else {
        return call(count, blocks);
    };
    // libaio makes this call through `syscall`, which is seen as well: then it is charged already.
    if blocks.is_null() || Inside::enter().is_none() {
        return call(count, blocks);
    }
    let mut taken = 0;
    loop {
        let (batch, from) = ((all - taken).min(BATCH), blocks.wrapping_add(taken));
        let call = || call(batch as c_long, from);
        // SAFETY: as the caller promises.
        let result = unsafe { charge_batch(stage, context, (batch, from.cast()), call) };
        let Ok(more) = usize::try_from(result.into()) else {
            let before = if taken > 0 { T::try_from(taken as c_long).ok() } else { None };
            return before.unwrap_or(result);
        };
        taken += more;
        if more < batch || taken >= all {
            return T::try_from(taken as c_long).unwrap_or(result);
        }
    }
}

/// Submits at most [`BATCH`] requests. Those that the kernel accepted are charged after the call: a
/// full queue accepts none, and the program tries again. They are read before the call: when it
/// returns, another thread may have seen them done and freed them.
///
/// # Safety
/// As for [`charge_io_submit`].
unsafe fn charge_batch<T: Copy + Into<c_long>>(
    stage: &'static Stage,
    context: usize,
    (count, blocks): (usize, *const *const ControlBlock),
    call: impl FnOnce() -> T,
) -> T {
    let mut entries = [None; BATCH];
    for (index, entry) in entries.iter_mut().enumerate().take(count) {
        // SAFETY: as the caller promises; what cannot be read the kernel will refuse.
        let block = unsafe {
            raw::value(blocks.wrapping_add(index)).and_then(|at| Some((at, raw::value(at)?)))
        };
        let Some((at, block)) = block else { break };
        *entry = block.entry().map(|entry| (at.addr() as u64, entry));
    }
    let ring = CompletionRing::Context(context);
    let probed = entries.iter().flatten();
    let probed = probed.filter(|(_, entry)| is_probed(stage, NO_RING, *entry));
    completions::begin(stage, ring, probed.map(|(key, _)| *key));
    let result = {
        let _inside = Inside::enter();
        call()
    };
    let taken = usize::try_from(result.into()).unwrap_or(0);
    let left = entries.iter().skip(taken).flatten().map(|(key, _)| *key);
    completions::cancel(stage, ring, left);
    for (_, entry) in entries.iter().take(taken).flatten() {
        completions::charge(stage, ring, || charge_request(stage, NO_RING, *entry));
    }
    result
}

/// Makes a ring that the program drives itself. Its requests pass no gate, which is counted.
pub(crate) fn set_up_own_ring<T>(call: impl FnOnce() -> T) -> T {
    if let Some(stage) = stage() {
        stage.bypass(Bypass::OwnRing, 0);
    }
    call()
}

/// `IORING_SETUP_SQE128`: every entry takes the place of two.
const WIDE: u32 = 1 << 10;
/// `IOSQE_FIXED_FILE`: the descriptor is the number of a registered file.
const FIXED: u8 = 1;
/// `IOSQE_CQE_SKIP_SUCCESS`: the request has a completion only if it fails.
const SKIP_SUCCESS: u8 = 1 << 6;
/// `IORING_OP_SPLICE`, and the same flag for its source.
const SPLICE: u8 = 30;
const SOURCE_FIXED: u32 = 1 << 31;
/// Opcodes of entries that change what stands behind a descriptor or an index.
const ACCEPT: u8 = 13;
const OPEN: u8 = 18;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const OPEN_HOW: u8 = 28;
const SOCKET: u8 = 45;

impl RingEntry {
    /// The number that the program gave to the request.
    fn key(&self) -> u64 {
        u64::from(self.user_data[0]) | u64::from(self.user_data[1]) << 32
    }

    /// Whether the request has a completion in any case. Others cannot be followed: they would stay
    /// in flight for ever.
    fn has_completion(&self) -> bool {
        self.flags & SKIP_SUCCESS == 0
    }

    /// The read of the source, if this entry is a copy; [`Self::entry`] is the write to its target.
    fn source(&self) -> Option<RingRequest> {
        let is_registered = self.operation_flags & SOURCE_FIXED != 0;
        let file = RingFile::of(self.source, is_registered);
        let bytes = self.length.into();
        let operation = Operation::Read;
        (self.opcode == SPLICE).then_some(RingRequest { operation, file, bytes })
    }

    /// The operation of this entry, if it passes gates. Opcodes are those of the kernel's
    /// `io_uring.h`.
    fn entry(&self) -> Option<RingRequest> {
        let (operation, bytes) = match self.opcode {
            // Of vectors in any memory, and in registered memory.
            1 | 60 => (Operation::Read, vectors(self.address, self.length.into())),
            2 | 61 => (Operation::Write, vectors(self.address, self.length.into())),
            4 | 22 => (Operation::Read, self.length.into()),
            5 | 23 | SPLICE => (Operation::Write, self.length.into()),
            3 | 8 => (Operation::Sync, 0),
            17 | 55 => (Operation::Allocate, 0),
            _ => return None,
        };
        let file = RingFile::of(self.descriptor, self.flags & FIXED != 0);
        Some(RingRequest { operation, file, bytes })
    }

    /// Forgets the files that this entry closes, or puts others in their place.
    fn forget_files(&self, ring: c_int) {
        // The entry has one more than an index, zero for a descriptor, and all ones for an index of
        // the kernel's choice.
        let index = self.source.cast_unsigned().checked_sub(1);
        match (self.opcode, index) {
            (CLOSE, None) => forget(self.descriptor),
            (CLOSE | OPEN | OPEN_HOW | ACCEPT | SOCKET, Some(index)) => {
                registered::forget(ring, index);
            }
            (FILES_UPDATE, _) => registered::forget_ring(ring),
            _ => {}
        }
    }
}

impl RingFile {
    fn of(number: c_int, is_registered: bool) -> Self {
        if is_registered { Self::Registered(number) } else { Self::Open(number) }
    }
}

/// Submits the entries that were put into a ring since the last call. Each entry is submitted once,
/// whatever the result, so it is charged before the call, which waits until `wanted` completions
/// are there.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up.
pub(crate) unsafe fn charge_io_uring_submit(
    ring: *const Ring,
    wanted: u32,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let (Some(stage), Some(ring)) = (stage(), unsafe { ring.as_ref() }) else { return call() };
    let shift = u32::from(ring.flags & WIDE != 0);
    let fresh = ring.sqe_tail.wrapping_sub(ring.sqe_head);
    if ring.mask.is_null() || ring.entries.is_null() {
        return call();
    }
    // SAFETY: the mask is one less than the number of entries, so that every index with it lies
    // within them.
    let mask = unsafe { ring.mask.read_volatile() };
    let entries = || {
        (0..fresh.min(mask.saturating_add(1))).map(|number| {
            let index = (ring.sqe_head.wrapping_add(number) & mask) << shift;
            // SAFETY: as above.
            unsafe { &*ring.entries.add(index as usize) }
        })
    };
    for entry in entries() {
        entry.forget_files(ring.descriptor);
        for request in entry.entry().into_iter().chain(entry.source()) {
            let charge = || charge_request(stage, ring.descriptor, request);
            completions::charge(stage, CompletionRing::Ring(ring), charge);
        }
    }
    let is_probed = |request: RingRequest| is_probed(stage, ring.descriptor, request);
    let probed =
        entries().filter(|entry| entry.has_completion() && entry.entry().is_some_and(is_probed));
    completions::begin(stage, CompletionRing::Ring(ring), probed.map(RingEntry::key));
    // SAFETY: as the caller promises.
    unsafe { completions::wait_for_ring(ring, wanted, call) }
}

/// Registers files with a ring, from the index `first` on. The kernel keeps them open for as long,
/// also after the program has closed their descriptors.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up; `descriptors` points to `count` descriptors,
/// or to where nothing can be read.
pub(crate) unsafe fn track_register_files(
    ring: *const Ring,
    first: u32,
    (descriptors, count): (*const c_int, u32),
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let (Some(stage), Some(ring)) = (stage(), unsafe { ring.as_ref() }) else { return call() };
    let result = call();
    if result < 0 {
        return result;
    }
    // SAFETY: as the caller promises.
    let descriptor = |index: u32| unsafe { raw::value(descriptors.wrapping_add(index as usize)) };
    if sandbox::is_forbidden(sandbox::REGISTRATION) {
        registered::forget_ring(ring.descriptor);
    } else {
        run_guarded(|| {
            let descriptors = (0..count).map(|index| descriptor(index).unwrap_or(-1));
            stage.register_files(ring.descriptor, first, descriptors);
        });
    }
    result
}

/// Takes all registered files from a ring.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up.
pub(crate) unsafe fn track_unregister_files<T>(ring: *const Ring, call: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller promises.
    unsafe { ring.as_ref() }.into_iter().for_each(|ring| registered::forget_ring(ring.descriptor));
    call()
}

/// Ends a ring.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up.
pub(crate) unsafe fn end_ring<T>(ring: *const Ring, call: impl FnOnce() -> T) -> T {
    // SAFETY: as the caller promises.
    unsafe {
        ring.as_ref().into_iter().for_each(|ring| completions::forget(CompletionRing::Ring(ring)));
        track_unregister_files(ring, call)
    }
}

/// Starts one request of POSIX asynchronous I/O. The C library's threads that carry it out are not
/// seen.
///
/// # Safety
/// `block` is null or a control block.
pub(crate) unsafe fn charge_aio(
    operation: Operation,
    block: *const libc::aiocb,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as the caller promises. Read before: it may be done and gone after.
    let entry = unsafe { block.as_ref() }.map(|block| {
        let bytes = if operation == Operation::Sync { 0 } else { block.aio_nbytes as u64 };
        RingRequest { operation, file: RingFile::Open(block.aio_fildes), bytes }
    });
    let result = call();
    if let (Some(stage), Some(entry), 0) = (stage(), entry, result) {
        charge_request(stage, NO_RING, entry);
    }
    result
}

/// Starts a list of requests of POSIX asynchronous I/O.
///
/// # Safety
/// `blocks` points to `count` pointers, null or to control blocks.
pub(crate) unsafe fn charge_lio_listio(
    blocks: *const *const libc::aiocb,
    count: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(stage), Ok(count)) = (stage(), usize::try_from(count)) else { return call() };
    if !blocks.is_null() {
        for index in 0..count {
            // SAFETY: as the caller promises.
            let Some(block) = (unsafe { blocks.add(index).read().as_ref() }) else { continue };
            let operation = match block.aio_lio_opcode {
                libc::LIO_READ => Operation::Read,
                libc::LIO_WRITE => Operation::Write,
                _ => continue,
            };
            let bytes = block.aio_nbytes as u64;
            let file = RingFile::Open(block.aio_fildes);
            charge_request(stage, NO_RING, RingRequest { operation, file, bytes });
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_block_describes_its_request() {
        let mut block: ControlBlock = ControlBlock {
            data: 0,
            key: 0,
            rw_flags: 0,
            opcode: 1,
            priority: 0,
            descriptor: 7,
            buffer: 0,
            length: 4096,
            offset: 0,
            reserved: 0,
            flags: 0,
            event: 0,
        };
        let write =
            RingRequest { operation: Operation::Write, file: RingFile::Open(7), bytes: 4096 };
        assert_eq!(block.entry(), Some(write));
        let vectors = [iovec { iov_base: std::ptr::null_mut(), iov_len: 100 }; 2];
        (block.opcode, block.buffer, block.length) =
            (7, vectors.as_ptr().expose_provenance() as u64, 2);
        let read = RingRequest { operation: Operation::Read, file: RingFile::Open(7), bytes: 200 };
        assert_eq!(block.entry(), Some(read));
        block.opcode = 6;
        assert_eq!(block.entry(), None, "a no-op asks for nothing");
    }

    #[test]
    fn a_ring_entry_describes_its_request() {
        let mut entry = RingEntry {
            opcode: 23,
            flags: 0,
            priority: 0,
            descriptor: 5,
            offset: 0,
            address: 0,
            length: 512,
            operation_flags: 0,
            user_data: [0; 2],
            buffer: 0,
            source: 6,
            rest: [0; 4],
        };
        let write =
            RingRequest { operation: Operation::Write, file: RingFile::Open(5), bytes: 512 };
        assert_eq!(entry.entry(), Some(write));
        entry.flags = FIXED;
        assert_eq!(entry.entry().map(|entry| entry.file), Some(RingFile::Registered(5)));
        assert!(entry.has_completion());
        entry.flags = SKIP_SUCCESS | FIXED;
        assert!(entry.entry().is_some() && !entry.has_completion(), "charged, and not followed");
        entry.flags = FIXED;
        let vectors = [iovec { iov_base: std::ptr::null_mut(), iov_len: 100 }; 2];
        (entry.address, entry.length) = (vectors.as_ptr().expose_provenance() as u64, 2);
        for (opcode, operation) in [
            (1, Operation::Read),
            (2, Operation::Write),
            (60, Operation::Read),
            (61, Operation::Write),
        ] {
            entry.opcode = opcode;
            let found = entry.entry().map(|entry| (entry.operation, entry.bytes));
            assert_eq!(found, Some((operation, 200)), "opcode {opcode}");
        }
        (entry.length, entry.opcode) = (512, 0);
        assert_eq!(entry.entry(), None, "a no-op asks for nothing");
        (entry.opcode, entry.flags) = (SPLICE, 0);
        let read = RingRequest { operation: Operation::Read, file: RingFile::Open(6), bytes: 512 };
        assert_eq!((entry.entry(), entry.source()), (Some(write), Some(read)));
    }
}
