//! Decisions for asynchronous requests: `io_uring` and Linux AIO (`io_submit`).
//!
//! Such requests are charged when the program submits them: at their completion, no thread may be
//! there to wait. So short results are not refunded, and a gate that limits the requests in service
//! sees each request leave as soon as the program has handed it over.

use libc::{c_int, c_long, iovec};
use tidegate_model::Operation;
use tidegate_stage::files::forget;
use tidegate_stage::{Inside, Request, Stage, Subject};

use super::{Admitted, charge};
use crate::process::stage;
use crate::raw;

/// One request, as far as gates care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingRequest {
    operation: Operation,
    /// Negative for a number of the ring's own. Such a number stands for a file, or the program
    /// would not have registered it.
    descriptor: c_int,
    bytes: u64,
}

/// Marks a descriptor that is registered with a ring.
const REGISTERED: c_int = -2;

fn charge_request(stage: &'static Stage, entry: RingRequest) {
    if entry.descriptor == REGISTERED {
        let request = Request::new(entry.operation, entry.bytes).on(Subject::Path(b""));
        Admitted::enforce(stage, &request).complete(entry.bytes);
    } else {
        charge(stage, entry.operation, entry.descriptor, entry.bytes);
    }
}

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
        Some(RingRequest { operation, descriptor: self.descriptor as c_int, bytes })
    }
}

/// The size of the vectors that a request points to.
fn vectors(address: u64, count: u64) -> u64 {
    let vectors = std::ptr::with_exposed_provenance::<iovec>(address as usize);
    // SAFETY: the program that made the request promises that so many are there.
    unsafe { raw::total(vectors, c_int::try_from(count).unwrap_or(-1)) }
}

/// How many requests of one call are remembered until it is known how many were taken. Of larger
/// calls the rest is charged before the call.
const BATCH: usize = 64;

/// Submits requests to the kernel's asynchronous I/O. The requests that the kernel accepted are
/// charged after the call: a full queue accepts none, and the program tries again. They are read
/// before the call: when it returns, another thread may have seen them done and freed them.
///
/// # Safety
/// `blocks` points to `count` pointers to control blocks, as `io_submit` wants it.
pub(crate) unsafe fn charge_io_submit<T: Copy + Into<c_long>>(
    count: c_long,
    blocks: *const *const ControlBlock,
    call: impl FnOnce() -> T,
) -> T {
    let (Some(stage), Ok(count)) = (stage(), usize::try_from(count)) else { return call() };
    // libaio makes this call through `syscall`, which is seen as well: then it is charged already.
    if blocks.is_null() || Inside::enter().is_none() {
        return call();
    }
    let mut entries = [None; BATCH];
    for index in 0..count {
        // SAFETY: as the caller promises; what cannot be read the kernel will refuse.
        let block = unsafe { raw::value(blocks.wrapping_add(index)).and_then(|at| raw::value(at)) };
        let Some(block) = block else { break };
        match entries.get_mut(index) {
            Some(entry) => *entry = block.entry(),
            None => block.entry().into_iter().for_each(|entry| charge_request(stage, entry)),
        }
    }
    let result = {
        let _inside = Inside::enter();
        call()
    };
    let taken = usize::try_from(result.into()).unwrap_or(0);
    entries.iter().take(taken).flatten().for_each(|entry| charge_request(stage, *entry));
    result
}

/// The head of liburing's `struct io_uring`, which programs allocate themselves, so that it is the
/// same for every liburing that a program can be linked with.
#[repr(C)]
pub(crate) struct Ring {
    head: *const u32,
    tail: *const u32,
    mask: *const u32,
    count: *const u32,
    kernel_flags: *const u32,
    dropped: *const u32,
    array: *const u32,
    entries: *const RingEntry,
    /// Entries from here to `filled` were not handed over yet.
    sqe_head: u32,
    sqe_tail: u32,
    rest: [u64; 15],
    flags: u32,
}

const _: () = assert!(std::mem::offset_of!(Ring, flags) == 192);

/// The kernel's `io_uring_sqe`.
#[repr(C)]
struct RingEntry {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: c_int,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    user_data: [u32; 2],
    buffer: u32,
    source: c_int,
    rest: [u32; 4],
}

const _: () = assert!(size_of::<RingEntry>() == 64);

/// `IORING_SETUP_SQE128`: every entry takes the place of two.
const WIDE: u32 = 1 << 10;
/// `IOSQE_FIXED_FILE`: the descriptor is the number of a registered file.
const FIXED: u8 = 1;
/// `IORING_OP_SPLICE`, and the same flag for its source.
const SPLICE: u8 = 30;
const SOURCE_FIXED: u32 = 1 << 31;

impl RingEntry {
    /// The read of the source, if this entry is a copy; [`Self::entry`] is the write to its target.
    fn source(&self) -> Option<RingRequest> {
        let fixed = self.operation_flags & SOURCE_FIXED != 0;
        let descriptor = if fixed { REGISTERED } else { self.source };
        let bytes = self.length.into();
        (self.opcode == SPLICE).then_some(RingRequest {
            operation: Operation::Read,
            descriptor,
            bytes,
        })
    }

    /// The operation of this entry, if it passes gates. Opcodes are those of the kernel's
    /// `io_uring.h`.
    fn entry(&self) -> Option<RingRequest> {
        let (operation, bytes) = match self.opcode {
            1 => (Operation::Read, vectors(self.address, self.length.into())),
            2 => (Operation::Write, vectors(self.address, self.length.into())),
            4 | 22 => (Operation::Read, self.length.into()),
            5 | 23 | SPLICE => (Operation::Write, self.length.into()),
            3 | 8 => (Operation::Sync, 0),
            17 | 55 => (Operation::Allocate, 0),
            _ => return None,
        };
        let descriptor = if self.flags & FIXED == 0 { self.descriptor } else { REGISTERED };
        Some(RingRequest { operation, descriptor, bytes })
    }
}

/// Submits the entries that were put into a ring since the last call. Each entry is submitted once,
/// whatever the result, so it is charged before the call.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up.
pub(crate) unsafe fn charge_io_uring_submit(
    ring: *const Ring,
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
    for number in 0..fresh.min(mask.saturating_add(1)) {
        let index = (ring.sqe_head.wrapping_add(number) & mask) << shift;
        // SAFETY: as above.
        let entry = unsafe { &*ring.entries.add(index as usize) };
        if entry.opcode == 19 && entry.flags & FIXED == 0 {
            forget(entry.descriptor);
        }
        entry
            .entry()
            .into_iter()
            .chain(entry.source())
            .for_each(|entry| charge_request(stage, entry));
    }
    call()
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
        RingRequest { operation, descriptor: block.aio_fildes, bytes }
    });
    let result = call();
    if let (Some(stage), Some(entry), 0) = (stage(), entry, result) {
        charge_request(stage, entry);
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
            charge_request(stage, RingRequest { operation, descriptor: block.aio_fildes, bytes });
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
        let write = RingRequest { operation: Operation::Write, descriptor: 7, bytes: 4096 };
        assert_eq!(block.entry(), Some(write));
        let vectors = [iovec { iov_base: std::ptr::null_mut(), iov_len: 100 }; 2];
        (block.opcode, block.buffer, block.length) =
            (7, vectors.as_ptr().expose_provenance() as u64, 2);
        let read = RingRequest { operation: Operation::Read, descriptor: 7, bytes: 200 };
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
        let write = RingRequest { operation: Operation::Write, descriptor: 5, bytes: 512 };
        assert_eq!(entry.entry(), Some(write));
        entry.flags = FIXED;
        assert_eq!(entry.entry().map(|entry| entry.descriptor), Some(REGISTERED));
        entry.opcode = 0;
        assert_eq!(entry.entry(), None, "a no-op asks for nothing");
        (entry.opcode, entry.flags) = (SPLICE, 0);
        let read = RingRequest { operation: Operation::Read, descriptor: 6, bytes: 512 };
        assert_eq!((entry.entry(), entry.source()), (Some(write), Some(read)));
    }
}
