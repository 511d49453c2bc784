//! Hooks of asynchronous I/O: libaio, liburing, POSIX asynchronous I/O.

use libc::{aiocb, c_int, c_long, c_uint, c_void, sigevent};
use tidegate_model::Operation::{Read, Sync, Write};

use crate::ops::rings::{ControlBlock, Ring, starts, starts_list, submit_ring, submits};

hooks! {
    fn io_submit(context: *mut c_void, count: c_long, blocks: *mut *mut c_void) -> c_int
        = submits[count, blocks.cast::<*const ControlBlock>()] or no_call;

    fn io_uring_submit(ring: *mut c_void) -> c_int
        = submit_ring[ring.cast::<Ring>()] or no_call;
    fn io_uring_submit_and_wait(ring: *mut c_void, count: c_uint) -> c_int
        = submit_ring[ring.cast::<Ring>()] or no_call;
    fn io_uring_submit_and_wait_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        signals: *mut c_void,
    ) -> c_int = submit_ring[ring.cast::<Ring>()] or no_call;
    fn io_uring_submit_and_wait_min_timeout(
        ring: *mut c_void, completion: *mut c_void, count: c_uint, time: *mut c_void,
        microseconds: c_uint, signals: *mut c_void,
    ) -> c_int = submit_ring[ring.cast::<Ring>()] or no_call;
    fn io_uring_submit_and_get_events(ring: *mut c_void) -> c_int
        = submit_ring[ring.cast::<Ring>()] or no_call;

    fn aio_read(block: *mut aiocb) -> c_int = starts[Read, block];
    fn aio_read64(block: *mut aiocb) -> c_int = starts[Read, block];
    fn aio_write(block: *mut aiocb) -> c_int = starts[Write, block];
    fn aio_write64(block: *mut aiocb) -> c_int = starts[Write, block];
    fn aio_fsync(operation: c_int, block: *mut aiocb) -> c_int = starts[Sync, block];
    fn aio_fsync64(operation: c_int, block: *mut aiocb) -> c_int = starts[Sync, block];
    fn lio_listio(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int = starts_list[blocks.cast(), count];
    fn lio_listio64(
        mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut sigevent,
    ) -> c_int = starts_list[blocks.cast(), count];
}
