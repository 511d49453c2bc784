//! C functions that a program calls for each request.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use tidegate_model::Operation;
use tidegate_stage::{Request, Subject};

use crate::arguments::{optional, out};
use crate::stage::{StageHandle, handle};
use crate::status::{Problem, guarded};

/// Data from storage.
pub const TIDEGATE_READ: u32 = 0;
/// Data to storage.
pub const TIDEGATE_WRITE: u32 = 1;
/// Makes data durable.
pub const TIDEGATE_SYNC: u32 = 2;
/// Reserves or frees space.
pub const TIDEGATE_ALLOCATE: u32 = 3;
/// Opens, creates or closes a file.
pub const TIDEGATE_OPEN: u32 = 4;
/// Asks about a file.
pub const TIDEGATE_STAT: u32 = 5;
/// Reads a directory.
pub const TIDEGATE_LIST: u32 = 6;
/// Changes names.
pub const TIDEGATE_LINK: u32 = 7;
/// Reads or changes attributes.
pub const TIDEGATE_ATTRIBUTE: u32 = 8;
/// Reads one key.
pub const TIDEGATE_GET: u32 = 9;
/// Writes one key.
pub const TIDEGATE_PUT: u32 = 10;
/// Removes one key.
pub const TIDEGATE_DELETE: u32 = 11;
/// Reads a range of keys.
pub const TIDEGATE_SCAN: u32 = 12;

const _: () = assert!(TIDEGATE_READ == Operation::Read as u32, "the header's numbers are");
const _: () = assert!(TIDEGATE_SCAN == Operation::Scan as u32, "those of the model");

/// A request that may go, in memory of the caller, who need not initialise it. It may be moved, and
/// completed by another thread than the one that got it; it must not be copied and completed twice.
#[repr(C)]
pub struct Admission {
    /// The library's.
    pub opaque: [u64; 20],
}

/// Contents of an [`Admission`]'s memory.
#[repr(C)]
struct AdmissionSlot {
    /// [`LIVE`] from its admission to its completion.
    state: u64,
    admission: MaybeUninit<tidegate_stage::Admission<'static>>,
}

/// No text, small number or pointer looks like it, so that memory that was never an admission is
/// hardly taken for one.
const LIVE: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () =
    assert!(size_of::<AdmissionSlot>() <= size_of::<Admission>(), "an admission has room");
const _: () = assert!(align_of::<AdmissionSlot>() <= align_of::<Admission>(), "and is aligned");

/// The tag that a request carries from here on: 16 bytes, and the channel beside them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tag {
    /// The tenant, as the controller numbers tenants; zero is no tenant.
    pub tenant: u16,
    /// Why it is made; see tidegate_intern().
    pub context: u16,
    /// How urgent it is: one of TIDEGATE_URGENT to TIDEGATE_LOW.
    pub urgency: u8,
    /// The operation: one of TIDEGATE_READ to TIDEGATE_SCAN.
    pub operation: u8,
    /// Zero.
    pub reserved: u16,
    /// The cost: bytes, or 1 if it moves none.
    pub cost: u32,
    /// Cost that its tenant was served elsewhere; zero before a gateway has set it.
    pub delay: u32,
    /// The channel that it belongs to, or -1 if it belongs to none and passed unhindered.
    pub channel: i32,
}

pub(crate) fn operation(number: u32) -> Result<Operation, Problem> {
    let found = u8::try_from(number).ok().and_then(Operation::from_number);
    found.ok_or_else(|| Problem::invalid(format!("there is no operation {number}")))
}

/// # Safety
/// `target` is not null and has room for an admission, and the stage behind it stays open until it
/// is completed.
#[inline]
pub(crate) unsafe fn put(target: *mut Admission, admission: tidegate_stage::Admission<'_>) {
    // SAFETY: only the lifetime changes, and the caller vouches for it.
    let admission = unsafe {
        std::mem::transmute::<tidegate_stage::Admission<'_>, tidegate_stage::Admission<'static>>(
            admission,
        )
    };
    let slot = AdmissionSlot { state: LIVE, admission: MaybeUninit::new(admission) };
    // SAFETY: the target is large enough, as asserted, and aligned, as checked by `target`.
    unsafe { target.cast::<AdmissionSlot>().write(slot) };
}

/// Checks where an admission is to go.
#[inline]
pub(crate) fn admission_out(target: *mut Admission) -> Result<*mut Admission, Problem> {
    out(target, "admission")
}

/// # Safety
/// Null, or memory that `put` wrote or that the caller initialised.
pub(crate) unsafe fn get<'a>(
    admission: *const Admission,
) -> Result<&'a tidegate_stage::Admission<'static>, Problem> {
    let slot = admission_out(admission.cast_mut())?.cast::<AdmissionSlot>();
    // SAFETY: not null and aligned; the state is an integer whatever the memory was.
    if unsafe { (*slot).state } != LIVE {
        return Err(Problem::invalid("the admission is not under way"));
    }
    // SAFETY: by its state `put` wrote it and no call has completed it.
    Ok(unsafe { (*slot).admission.assume_init_ref() })
}

/// Lets a request pass the gates of its channel, which may take a while: the thread sleeps as long
/// as the rules in force demand. Returns when the request may be made, and fills `admission`, which
/// is to be completed with tidegate_complete() when it is done. Takes some 20 ns if there is
/// nothing to wait for, allocates nothing and makes no system call then.
///
/// operation: one of TIDEGATE_READ to TIDEGATE_SCAN. bytes: how much data it moves at most; zero
/// for operations that move none. path: the absolute path of the file it is about, or null. A
/// request without a path matches no rule with a path, and of resources of files only "/**".
///
/// A thread that has an admission under way must not make another request through the same queue
/// (concurrency, fair, priority) before it is completed: it might wait for its own turn, for good.
///
/// TIDEGATE_INVALID: a null or misaligned pointer for `stage` or `admission`, an unknown operation,
/// a path that is not UTF-8. There is nothing to complete then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_enforce(
    stage: *const StageHandle,
    operation: u32,
    bytes: u64,
    path: *const c_char,
    admission: *mut Admission,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open for as long as the admission lasts.
        let stage = unsafe { handle(stage) }?;
        let target = admission_out(admission)?;
        // SAFETY: null, or text with a zero at its end.
        let path = unsafe { optional(path, "path") }?;
        let subject = path.map_or(Subject::None, |path| Subject::Path(path.as_bytes()));
        let request = Request::new(self::operation(operation)?, bytes).on(subject);
        // SAFETY: checked above.
        unsafe { put(target, stage.stage.enforce(&request)) };
        Ok(())
    })
}

/// tidegate_enforce() for a request about an open file of this process, whose path is found out
/// when the descriptor is first used and then remembered. Requests about pipes, sockets, terminals
/// and files in memory pass unhindered. Call tidegate_forget() when the descriptor is closed.
///
/// TIDEGATE_INVALID: as for tidegate_enforce().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_enforce_descriptor(
    stage: *const StageHandle,
    operation: u32,
    bytes: u64,
    descriptor: c_int,
    admission: *mut Admission,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open for as long as the admission lasts.
        let stage = unsafe { handle(stage) }?;
        let target = admission_out(admission)?;
        let subject = Subject::Descriptor(descriptor);
        let request = Request::new(self::operation(operation)?, bytes).on(subject);
        // SAFETY: checked above.
        unsafe { put(target, stage.stage.enforce(&request)) };
        Ok(())
    })
}

/// Forgets what is known of a descriptor: it is being closed, or its number stands for another file
/// from now on.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_forget(descriptor: c_int) {
    tidegate_stage::files::forget(descriptor);
}

/// Says that a request is done and moved `bytes`; what it took from buckets for more than that goes
/// back, so zero is right for one that failed. To be called once for each admission, by any thread.
///
/// TIDEGATE_INVALID: a null pointer, or an admission that is not under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_complete(admission: *mut Admission, bytes: u64) -> c_int {
    guarded(|| {
        let slot = admission_out(admission)?.cast::<AdmissionSlot>();
        // SAFETY: not null and aligned; the state is an integer whatever the memory was.
        if unsafe { (*slot).state } != LIVE {
            return Err(Problem::invalid("the admission is not under way"));
        }
        // SAFETY: by its state `put` wrote it; from here on the state marks it as completed.
        let admission = unsafe {
            (*slot).state = 0;
            (*slot).admission.assume_init_read()
        };
        admission.complete(bytes);
        Ok(())
    })
}

/// Fills `tag` with the tag of an admission that is under way.
///
/// TIDEGATE_INVALID: a null pointer, or an admission that is not under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_admission_tag(
    admission: *const Admission,
    tag: *mut Tag,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or an admission.
        let admission = unsafe { get(admission) }?;
        let target = out(tag, "tag")?;
        let tag = admission.tag();
        let tag = Tag {
            tenant: tag.tenant.0,
            context: tag.context.0,
            urgency: tag.class as u8,
            operation: tag.operation as u8,
            reserved: 0,
            cost: tag.cost,
            delay: tag.delay,
            channel: admission.channel().map_or(-1, i32::from),
        };
        // SAFETY: not null and aligned, and a structure that the caller has for us.
        unsafe { target.write(tag) };
        Ok(())
    })
}
