//! libibverbs, opened on first use.
//!
//! One program runs with and without RDMA, and building it takes no header of libibverbs: the calls
//! that are needed are found by name, and the structures that they pass are declared here. Their
//! layout is part of the library's stable interface (symbol version `IBVERBS_1.1`); the sizes are
//! asserted below, and what they mean is proved by every test over a device.
//!
//! Two calls have no name in the library, because in C they are inline functions: posting and
//! polling go through pointers that the device's driver left in its context.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::RdmaError;

/// A device in the library's list, opaque.
pub(super) enum Device {}

/// A protection domain, opaque.
pub(super) enum Domain {}

/// An open device. Only its beginning is declared: the library makes it and owns it.
#[repr(C)]
pub(super) struct Context {
    pub device: *mut Device,
    others: [*const c_void; 11],
    pub poll: unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int,
    more: [*const c_void; 13],
    pub post:
        unsafe extern "C" fn(*mut QueuePair, *mut WorkRequest, *mut *mut WorkRequest) -> c_int,
}

/// The beginning of a queue of completions.
#[repr(C)]
pub(super) struct CompletionQueue {
    pub context: *mut Context,
}

/// The beginning of a queue pair.
#[repr(C)]
pub(super) struct QueuePair {
    pub context: *mut Context,
    others: [*const c_void; 5],
    handle: u32,
    pub number: u32,
}

/// Registered memory.
#[repr(C)]
pub(super) struct Registration {
    context: *mut Context,
    domain: *mut Domain,
    address: *mut c_void,
    length: usize,
    handle: u32,
    pub local_key: u32,
    pub remote_key: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct DeviceLimits {
    names: [u64; 10],
    sizes: [u64; 2],
    vendor: [u32; 3],
    pub queue_pairs: c_int,
    pub requests: c_int,
    flags: u32,
    sges: [c_int; 2],
    queues: c_int,
    pub completions: c_int,
    registrations: c_int,
    domains: c_int,
    /// Reads and atomics under way that a queue pair answers at once.
    pub reads_answered: c_int,
    others: [c_int; 2],
    /// Reads and atomics under way that a queue pair may ask for.
    pub reads_outstanding: c_int,
    another: c_int,
    pub atomics: u32,
    rest: [c_int; 14],
    keys: u16,
    delay: u8,
    pub ports: u8,
}

/// [`DeviceLimits::atomics`] of a device that has none.
pub(super) const ATOMICS_NONE: u32 = 0;

/// The state of a port. The library's own version of this call fills all but the last two bytes.
#[repr(C)]
#[derive(Default)]
pub(super) struct Port {
    pub state: u32,
    mtu_max: u32,
    pub mtu: u32,
    pub gids: c_int,
    others: [u32; 4],
    keys: u16,
    pub lid: u16,
    rest: [u8; 10],
    pub link_layer: u8,
    flags: u8,
    more: u16,
}

/// [`Port::state`] of one that carries packets.
pub(super) const PORT_ACTIVE: u32 = 4;

/// [`Port::link_layer`] of RoCE.
pub(super) const LINK_ETHERNET: u8 = 2;

/// How much a queue pair holds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Capacity {
    pub requests: u32,
    pub receives: u32,
    pub sges: u32,
    pub receive_sges: u32,
    pub inline: u32,
}

/// The parameters of a new queue pair.
#[repr(C)]
pub(super) struct QueuePairPlan {
    pub name: *mut c_void,
    pub sent: *mut CompletionQueue,
    pub received: *mut CompletionQueue,
    pub shared: *mut c_void,
    pub capacity: Capacity,
    pub kind: u32,
    pub signals_all: c_int,
}

/// [`QueuePairPlan::kind`]: reliable and connected.
pub(super) const RELIABLE: u32 = 2;

/// The way to a peer's port. Its address may be seen as two words, so it is aligned like them.
#[repr(C, align(8))]
#[derive(Default)]
pub(super) struct AddressHandle {
    pub gid: [u8; 16],
    pub flow: u32,
    pub gid_index: u8,
    pub hops: u8,
    pub traffic_class: u8,
    pub lid: u16,
    pub service_level: u8,
    pub path: u8,
    pub rate: u8,
    pub is_global: u8,
    pub port: u8,
}

/// The attributes that a queue pair takes on.
#[repr(C)]
#[derive(Default)]
pub(super) struct QueuePairState {
    pub state: u32,
    pub current: u32,
    pub mtu: u32,
    pub migration: u32,
    pub key: u32,
    pub first_received: u32,
    pub first_sent: u32,
    pub peer: u32,
    pub access: u32,
    pub capacity: Capacity,
    pub way: AddressHandle,
    pub other_way: AddressHandle,
    pub partition: u16,
    pub other_partition: u16,
    pub notifies: u8,
    pub draining: u8,
    pub reads_outstanding: u8,
    pub reads_answered: u8,
    pub not_ready_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub not_ready_retries: u8,
    pub other_port: u8,
    pub other_timeout: u8,
    pub rate: u32,
}

/// Values of [`QueuePairState::state`].
pub(super) mod state {
    pub(in super::super) const INITIAL: u32 = 1;
    pub(in super::super) const RECEIVES: u32 = 2;
    pub(in super::super) const SENDS: u32 = 3;
}

/// Which fields of a [`QueuePairState`] count.
pub(super) mod field {
    pub(in super::super) const STATE: c_int = 1;
    pub(in super::super) const ACCESS: c_int = 1 << 3;
    pub(in super::super) const PARTITION: c_int = 1 << 4;
    pub(in super::super) const PORT: c_int = 1 << 5;
    pub(in super::super) const WAY: c_int = 1 << 7;
    pub(in super::super) const MTU: c_int = 1 << 8;
    pub(in super::super) const TIMEOUT: c_int = 1 << 9;
    pub(in super::super) const RETRIES: c_int = 1 << 10;
    pub(in super::super) const NOT_READY_RETRIES: c_int = 1 << 11;
    pub(in super::super) const FIRST_RECEIVED: c_int = 1 << 12;
    pub(in super::super) const READS_ASKED: c_int = 1 << 13;
    pub(in super::super) const NOT_READY_TIMER: c_int = 1 << 15;
    pub(in super::super) const FIRST_SENT: c_int = 1 << 16;
    pub(in super::super) const READS_ANSWERED: c_int = 1 << 17;
    pub(in super::super) const PEER: c_int = 1 << 20;

    use std::ffi::c_int;
}

/// Access rights to registered memory, and through a queue pair.
pub(super) mod access {
    pub(in super::super) const LOCAL_WRITE: u32 = 1;
    pub(in super::super) const REMOTE_WRITE: u32 = 1 << 1;
    pub(in super::super) const REMOTE_READ: u32 = 1 << 2;
    pub(in super::super) const REMOTE_ATOMIC: u32 = 1 << 3;
}

/// One piece of local memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScatterGatherEntry {
    pub address: u64,
    pub length: u32,
    pub key: u32,
}

/// Where a read or a write goes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Plain {
    pub address: u64,
    pub key: u32,
}

/// Where an atomic operation goes, and its operands: what is added, or what is compared.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Atomic {
    pub address: u64,
    pub operand: u64,
    pub new: u64,
    pub key: u32,
}

/// The remote half of a work request, by its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Remote {
    pub plain: Plain,
    pub atomic: Atomic,
}

/// One operation, as a device takes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WorkRequest {
    pub id: u64,
    pub next: *mut WorkRequest,
    pub sges: *mut ScatterGatherEntry,
    pub count: c_int,
    pub opcode: u32,
    pub flags: u32,
    pub immediate: u32,
    pub remote: Remote,
    pub others: [u64; 7],
}

/// Values of [`WorkRequest::opcode`].
pub(super) mod opcode {
    pub(in super::super) const WRITE: u32 = 0;
    pub(in super::super) const READ: u32 = 4;
    pub(in super::super) const COMPARE_SWAP: u32 = 5;
    pub(in super::super) const FETCH_ADD: u32 = 6;
}

/// Bits of [`WorkRequest::flags`].
pub(super) mod flag {
    pub(in super::super) const SIGNALLED: u32 = 1 << 1;
    pub(in super::super) const INLINE: u32 = 1 << 3;
}

/// That an operation, and all before it in its queue, came to an end. Of one that failed, only the
/// first two fields say anything.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub id: u64,
    pub status: u32,
    others: [u32; 9],
}

// On every platform with pointers of eight bytes the structures have these sizes.
const _: () = {
    assert!(size_of::<DeviceLimits>() == 232);
    assert!(size_of::<Port>() == 52);
    assert!(size_of::<QueuePairPlan>() == 64);
    assert!(size_of::<AddressHandle>() == 32);
    assert!(size_of::<QueuePairState>() == 144);
    assert!(size_of::<Registration>() == 48);
    assert!(size_of::<WorkRequest>() == 128);
    assert!(size_of::<Completion>() == 48);
    assert!(std::mem::offset_of!(Context, poll) == 8 + 11 * 8);
    assert!(std::mem::offset_of!(Context, post) == 8 + 25 * 8);
    assert!(std::mem::offset_of!(QueuePair, number) == 52);
};

macro_rules! calls {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The calls that have names.
        pub(super) struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// Finds them all.
            fn open() -> Result<Self, RdmaError> {
                let handle = open()?;
                Ok(Self { $($name: {
                    let name = concat!("ibv_", stringify!($name), "\0");
                    let found = find(handle, name)?;
                    type Call = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                    // SAFETY: the function of this name has had this signature since the library
                    // has had its present interface, and the library is never closed.
                    unsafe { std::mem::transmute::<*mut c_void, Call>(found) }
                },)* })
            }
        }
    };
}

calls! {
    get_device_list: fn(*mut c_int) -> *mut *mut Device;
    free_device_list: fn(*mut *mut Device);
    get_device_name: fn(*mut Device) -> *const c_char;
    open_device: fn(*mut Device) -> *mut Context;
    close_device: fn(*mut Context) -> c_int;
    query_device: fn(*mut Context, *mut DeviceLimits) -> c_int;
    query_port: fn(*mut Context, u8, *mut Port) -> c_int;
    query_gid: fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    alloc_pd: fn(*mut Context) -> *mut Domain;
    dealloc_pd: fn(*mut Domain) -> c_int;
    reg_mr: fn(*mut Domain, *mut c_void, usize, c_int) -> *mut Registration;
    dereg_mr: fn(*mut Registration) -> c_int;
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut CompletionQueue;
    destroy_cq: fn(*mut CompletionQueue) -> c_int;
    create_qp: fn(*mut Domain, *mut QueuePairPlan) -> *mut QueuePair;
    modify_qp: fn(*mut QueuePair, *mut QueuePairState, c_int) -> c_int;
    destroy_qp: fn(*mut QueuePair) -> c_int;
}

/// The library of this process: the same answer each time.
pub(super) fn library() -> Result<&'static Library, RdmaError> {
    static LIBRARY: OnceLock<Result<Library, RdmaError>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<*mut c_void, RdmaError> {
    // SAFETY: the name ends with a zero; the library's own initialisation asks nothing of us.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: after a failure it is a text, valid until this thread's next call of the loader.
    let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
    Err(RdmaError::NoLibrary { reason: reason.to_string_lossy().into_owned() })
}

/// The address of a function. `name` ends with a zero.
fn find(handle: *mut c_void, name: &'static str) -> Result<*mut c_void, RdmaError> {
    // SAFETY: the handle is of an open library, and the name ends with a zero.
    let found = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
    match found.is_null() {
        true => Err(RdmaError::OldLibrary { call: name.trim_end_matches('\0') }),
        false => Ok(found),
    }
}

impl Default for WorkRequest {
    fn default() -> Self {
        Self {
            id: 0,
            next: std::ptr::null_mut(),
            sges: std::ptr::null_mut(),
            count: 0,
            opcode: 0,
            flags: 0,
            immediate: 0,
            remote: Remote { atomic: Atomic::default() },
            others: [0; 7],
        }
    }
}
