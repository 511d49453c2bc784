//! libibverbs, opened on first use.
//!
//! One program runs with and without RDMA, and building it takes no header of libibverbs: the
//! structures and the table of functions are generated (`ibverbs.rs`, by `scripts/bindings.sh`),
//! and the functions are found by name at run time. The layout of the structures is part of the
//! library's stable interface (symbol version `IBVERBS_1.1`).
//!
//! Three functions are inline in C, so the library has none by their names: they are here.

use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_NOW};

use super::RdmaError;
use super::ibverbs::{Ibverbs, ibv_context, ibv_cq, ibv_port_attr, ibv_qp, ibv_send_wr, ibv_wc};

/// The library of this process: the same answer each time.
pub(super) fn library() -> Result<&'static Ibverbs, RdmaError> {
    static LIBRARY: OnceLock<Result<Ibverbs, RdmaError>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Ibverbs, RdmaError> {
    // SAFETY: the library's own initialisation asks nothing of us.
    let library = unsafe { Library::open(Some("libibverbs.so.1"), RTLD_NOW) }
        .map_err(|error| RdmaError::NoLibrary { reason: error.to_string() })?;
    // SAFETY: the functions of these names have had these signatures since the library has had its
    // present interface.
    unsafe { Ibverbs::from_library(library) }
        .map_err(|error| RdmaError::OldLibrary { reason: error.to_string() })
}

/// `ibv_query_port`. The library's function of this name fills all but the last two fields, which
/// keep what they were.
///
/// # Safety
/// As the library's own.
pub(super) unsafe fn ibv_query_port(
    library: &Ibverbs,
    context: *mut ibv_context,
    port: u8,
    into: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller promised it, and the older structure is the beginning of this one.
    unsafe { library.ibv_query_port(context, port, std::ptr::from_mut(into).cast()) }
}

/// `ibv_poll_cq`: fills in completions and returns their number, negative if the device is broken.
///
/// # Safety
/// The queue is of an open device, and no other thread polls it.
pub(super) unsafe fn ibv_poll_cq(queue: *mut ibv_cq, into: &mut [ibv_wc]) -> c_int {
    // SAFETY: the queue stands, so its context does, whose driver takes as many completions as
    // there is space for.
    unsafe {
        let poll = (*(*queue).context).ops.poll_cq;
        poll.map_or(-1, |poll| poll(queue, into.len() as c_int, into.as_mut_ptr()))
    }
}

/// `ibv_post_send`: returns 0, or the error of the first request that was refused.
///
/// # Safety
/// The queue pair is of an open device. The requests, each of which points to the next, and what
/// they point to are as the device's driver wants them.
pub(super) unsafe fn ibv_post_send(queue_pair: *mut ibv_qp, requests: *mut ibv_send_wr) -> c_int {
    let mut refused = std::ptr::null_mut();
    // SAFETY: the queue pair stands, so its context does; of the requests, the caller promised.
    unsafe {
        let post = (*(*queue_pair).context).ops.post_send;
        post.map_or(libc::ENOSYS, |post| post(queue_pair, requests, &mut refused))
    }
}
