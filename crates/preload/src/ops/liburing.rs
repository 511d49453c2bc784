//! Layouts of `io_uring` as liburing has them in the memory of a program.

use libc::c_int;

/// The head of liburing's `struct io_uring`, which programs allocate themselves, so that it is the
/// same for every liburing that a program can be linked with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    pub(super) head: *const u32,
    pub(super) tail: *const u32,
    pub(super) mask: *const u32,
    pub(super) count: *const u32,
    pub(super) kernel_flags: *const u32,
    pub(super) dropped: *const u32,
    pub(super) array: *const u32,
    pub(super) entries: *const RingEntry,
    /// Entries from here to `filled` were not handed over yet.
    pub(super) sqe_head: u32,
    pub(super) sqe_tail: u32,
    pub(super) rest: [u64; 4],
    pub(super) completed_head: *const u32,
    pub(super) completed_tail: *const u32,
    pub(super) completed_mask: *const u32,
    pub(super) completed_count: *const u32,
    pub(super) completed_flags: *const u32,
    pub(super) overflown: *const u32,
    pub(super) completions: *const RingCompletion,
    pub(super) more: [u64; 4],
    pub(super) flags: u32,
    pub(super) descriptor: c_int,
}

const _: () = assert!(std::mem::offset_of!(Ring, completed_head) == 104);
const _: () = assert!(std::mem::offset_of!(Ring, descriptor) == 196);

/// The kernel's `io_uring_sqe`.
#[repr(C)]
pub(super) struct RingEntry {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) priority: u16,
    pub(super) descriptor: c_int,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) operation_flags: u32,
    pub(super) user_data: [u32; 2],
    pub(super) buffer: u32,
    pub(super) source: c_int,
    pub(super) rest: [u32; 4],
}

const _: () = assert!(size_of::<RingEntry>() == 64);

/// The kernel's `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RingCompletion {
    pub(super) key: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}
