//! Hooks of asynchronous I/O: libaio, liburing, POSIX asynchronous I/O.

use libc::{aiocb, c_int, c_long, c_uint, c_void, sigevent};
use tidegate_model::Operation::{Read, Sync, Write};

use crate::ops::completions::{end_context, wait_for_context, wait_for_ring};
use crate::ops::liburing::Ring;
use crate::ops::rings::{
    charge_aio, charge_io_submit, charge_io_uring_submit, charge_lio_listio, end_ring,
    set_up_own_ring, track_register_files, track_unregister_files,
};

hooks! {
    fn io_submit(context: *mut c_void, count: c_long, blocks: *mut *mut c_void) -> c_int
        = charge_io_submit[context.expose_provenance(), count, blocks] |count, blocks|
        or fail_with_negative_errno;
    // Its form of before 2002 had other arguments; programs that were linked then are not served.
    fn io_getevents(
        context: *mut c_void, least: c_long, most: c_long, events: *mut c_void, time: *mut c_void,
    ) -> c_int = wait_for_context[context.expose_provenance(), least] or fail_with_negative_errno;
    fn io_pgetevents(
        context: *mut c_void, least: c_long, most: c_long, events: *mut c_void, time: *mut c_void,
        signals: *mut c_void,
    ) -> c_int = wait_for_context[context.expose_provenance(), least] or fail_with_negative_errno;
    fn io_destroy(context: *mut c_void) -> c_int
        = end_context[context.expose_provenance()] or fail_with_negative_errno;

    fn io_uring_submit(ring: *mut c_void) -> c_int
        = charge_io_uring_submit[ring.cast::<Ring>(), 0] or fail_with_negative_errno;
    fn io_uring_submit_and_wait(ring: *mut c_void, count: c_uint) -> c_int
        = charge_io_uring_submit[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_submit_and_wait_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        signals: *mut c_void,
    ) -> c_int = charge_io_uring_submit[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_submit_and_wait_min_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        microseconds: c_uint, signals: *mut c_void,
    ) -> c_int = charge_io_uring_submit[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_submit_and_wait_reg(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, region: c_int,
    ) -> c_int = charge_io_uring_submit[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    // liburing itself calls another function for its rings; this one is for programs.
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int = set_up_own_ring[]
        or fail_with_negative_errno;
    fn io_uring_submit_and_get_events(ring: *mut c_void) -> c_int
        = charge_io_uring_submit[ring.cast::<Ring>(), 0] or fail_with_negative_errno;
    // The inline functions of liburing that wait call this one.
    fn __io_uring_get_cqe(
        ring: *mut c_void, completion: *mut c_void, submit: c_uint, count: c_uint,
        signals: *mut c_void,
    ) -> c_int = wait_for_ring[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_wait_cqes(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        signals: *mut c_void,
    ) -> c_int = wait_for_ring[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_wait_cqes_min_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        microseconds: c_uint, signals: *mut c_void,
    ) -> c_int = wait_for_ring[ring.cast::<Ring>(), count] or fail_with_negative_errno;
    fn io_uring_wait_cqe_timeout(ring: *mut c_void, completion: *mut c_void, time: *mut c_void)
        -> c_int = wait_for_ring[ring.cast::<Ring>(), 1] or fail_with_negative_errno;
    fn io_uring_peek_batch_cqe(ring: *mut c_void, completions: *mut c_void, count: c_uint)
        -> c_int = wait_for_ring[ring.cast::<Ring>(), 0] or fail_with_negative_errno;

    fn io_uring_register_files(ring: *mut c_void, files: *const c_int, count: c_uint) -> c_int
        = track_register_files[ring.cast::<Ring>(), 0, (files, count)]
        or fail_with_negative_errno;
    fn io_uring_register_files_tags(
        ring: *mut c_void, files: *const c_int, tags: *const u64, count: c_uint,
    ) -> c_int = track_register_files[ring.cast::<Ring>(), 0, (files, count)]
        or fail_with_negative_errno;
    fn io_uring_register_files_update(
        ring: *mut c_void, first: c_uint, files: *const c_int, count: c_uint,
    ) -> c_int = track_register_files[ring.cast::<Ring>(), first, (files, count)]
        or fail_with_negative_errno;
    fn io_uring_register_files_update_tag(
        ring: *mut c_void, first: c_uint, files: *const c_int, tags: *const u64, count: c_uint,
    ) -> c_int = track_register_files[ring.cast::<Ring>(), first, (files, count)]
        or fail_with_negative_errno;
    fn io_uring_unregister_files(ring: *mut c_void) -> c_int
        = track_unregister_files[ring.cast::<Ring>()] or fail_with_negative_errno;
    fn io_uring_queue_exit(ring: *mut c_void) -> () = end_ring[ring.cast::<Ring>()];

    fn aio_read(block: *mut aiocb) -> c_int = charge_aio[Read, block];
    fn aio_read64(block: *mut aiocb) -> c_int = charge_aio[Read, block];
    fn aio_write(block: *mut aiocb) -> c_int = charge_aio[Write, block];
    fn aio_write64(block: *mut aiocb) -> c_int = charge_aio[Write, block];
    fn aio_fsync(operation: c_int, block: *mut aiocb) -> c_int = charge_aio[Sync, block];
    fn aio_fsync64(operation: c_int, block: *mut aiocb) -> c_int = charge_aio[Sync, block];
    fn lio_listio(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int = charge_lio_listio[blocks.cast(), count];
    fn lio_listio64(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int = charge_lio_listio[blocks.cast(), count];
}
