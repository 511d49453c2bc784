//! C functions that open, close and query a stage.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::Relaxed as RELAXED;

use tidegate_stage::transform::{Keys, Layered};
use tidegate_stage::{Bypass, NoRules, Stage, StageAgent};

use crate::arguments::{Versioned, optional, out, sized, slice, text};
use crate::status::{
    Problem, TIDEGATE_NO_RULES, TIDEGATE_STAGE_REFUSED, TIDEGATE_SYSTEM, TIDEGATE_TOO_SMALL,
    guarded,
};

/// A stage: gates that this process's requests pass, and the link to a controller that sets them.
///
/// Every function may be called from any thread at any time, except that no other call may be under
/// way, and no admission, when the stage is closed.
pub struct StageHandle {
    pub(crate) agent: StageAgent,
    pub(crate) stage: Stage,
    pub(crate) layered: Layered,
}

/// A key for gates that encrypt.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    /// The name that gates call it by.
    pub name: *const c_char,
    /// 32 bytes.
    pub bytes: *const u8,
}

/// Identity of a stage, and its controller. A field that is zero has its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Settings {
    /// sizeof(tidegate_settings).
    pub size: usize,
    /// The tenant that the program acts for. By default the policy's match rules decide.
    pub tenant: *const c_char,
    /// The controller's socket. By default $TIDEGATE_SOCKET, else where `tidegate up` listens.
    pub socket: *const c_char,
    /// Name of the program, for people. By default its command.
    pub command: *const c_char,
    /// 1 if content passes through tidegate_write() and tidegate_restore(), so that the policy may
    /// have it compressed and encrypted; 0 if not.
    pub layered: c_int,
    /// How many keys there are.
    pub key_count: usize,
    /// Keys for gates that encrypt. They are copied, and never leave the process.
    pub keys: *const Key,
}

// SAFETY: it begins with its size, and consists of integers and pointers.
unsafe impl Versioned for Settings {
    const NAME: &'static str = "tidegate_settings";
}

/// State of a stage.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    /// sizeof(tidegate_info), set by the caller.
    pub size: usize,
    /// How many sets of rules it has had; zero means that requests pass unhindered.
    pub generation: u32,
    /// Zero.
    pub reserved: u32,
    /// Requests that passed unhindered because they were about no storage.
    pub not_storage: u64,
    /// Requests that passed unhindered because a queue was full for two seconds.
    pub queue_full: u64,
}

/// Traffic of a channel. Counters only grow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counters {
    /// The channel's number, as in tidegate_tag. Channels are numbered from zero in the order in
    /// which they are made; the number of one that was removed is given again, last of all.
    pub channel: u32,
    /// Zero.
    pub reserved: u32,
    /// Requests that passed.
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Nanoseconds they waited, in all.
    pub waited_ns: u64,
}

/// The version of the library: 0x00MMmmpp for MM.mm.pp. To be compared with TIDEGATE_VERSION, that
/// of the header.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_version() -> u32 {
    TIDEGATE_VERSION
}

/// The version of this header.
pub const TIDEGATE_VERSION: u32 = 0x00_00_01_00;

/// Opens a stage and starts its thread, which connects to the controller. Returns at once, whether
/// or not a controller is there: without one, requests pass unhindered, and the thread goes on
/// trying. A null pointer for `settings` means the defaults.
///
/// After fork() the child's requests still pass the stage's gates and are counted; the thread and
/// the link stay with the parent. So in the child functions that change rules answer
/// TIDEGATE_REFUSED, and once the parent's rules have changed, content that may have to be
/// encrypted or compressed TIDEGATE_RULES_CHANGED. To be called once per process, usually, and
/// before threads that use it are started.
///
/// TIDEGATE_INVALID: a null or misaligned pointer for `stage`, a key that is not there.
/// TIDEGATE_SYSTEM: no memory for the segment, or no thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_stage_open(
    settings: *const Settings,
    stage: *mut *mut StageHandle,
) -> c_int {
    guarded(|| {
        let target = out(stage, "stage")?;
        // SAFETY: not null and aligned, and the caller's variable for a pointer.
        unsafe { target.write(std::ptr::null_mut()) };
        // SAFETY: the caller passes null or settings that begin with their size.
        let (settings, keys) = unsafe { read_settings(settings) }?;
        let agent = StageAgent::start(settings)
            .map_err(|error| Problem::new(TIDEGATE_SYSTEM, error.to_string()))?;
        let (stage, layered) = (agent.stage().clone(), agent.layered(keys));
        let handle = Box::into_raw(Box::new(StageHandle { agent, stage, layered }));
        // SAFETY: as above.
        unsafe { target.write(handle) };
        Ok(())
    })
}

/// # Safety
/// As for `tidegate_stage_open`.
unsafe fn read_settings(
    settings: *const Settings,
) -> Result<(tidegate_stage::Settings, Keys), Problem> {
    let mut result = tidegate_stage::Settings { layered: false, ..Default::default() };
    let mut keys = Keys::default();
    if settings.is_null() {
        return Ok((result, keys));
    }
    // SAFETY: the caller's pointers are null or as the header requires.
    unsafe {
        let settings = sized(settings)?;
        if let Some(tenant) = optional(settings.tenant, "tenant")? {
            result.tenant = tenant.into();
        }
        if let Some(socket) = optional(settings.socket, "socket")? {
            result.socket = socket.into();
        }
        if let Some(command) = optional(settings.command, "command")? {
            result.command = command.into();
        }
        result.layered = settings.layered != 0;
        for key in slice(settings.keys, settings.key_count, "keys")? {
            let bytes = slice(key.bytes, if key.bytes.is_null() { 0 } else { 32 }, "a key")?;
            let bytes = bytes.try_into().map_err(|_| Problem::invalid("a key is null"))?;
            keys = keys.with(text(key.name, "the name of a key")?, bytes);
        }
    }
    Ok((result, keys))
}

/// Closes a stage: disconnects from the controller and ends the thread, which takes some
/// milliseconds. Requests that still wait at its gates keep waiting, so there must be none. Does
/// nothing with a null pointer. In a child of fork() it frees what the child has of the stage, and
/// leaves the parent's as it is.
///
/// TIDEGATE_INVALID: a misaligned pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_stage_close(stage: *mut StageHandle) -> c_int {
    guarded(|| {
        if !stage.is_null() {
            let stage = out(stage, "stage")?;
            // SAFETY: made by `tidegate_stage_open`, and the caller gives it up.
            drop(unsafe { Box::from_raw(stage) });
        }
        Ok(())
    })
}

/// The stage behind a handle.
///
/// # Safety
/// Null, or from `tidegate_stage_open` and not closed during `'a`.
#[inline]
pub(crate) unsafe fn handle<'a>(stage: *const StageHandle) -> Result<&'a StageHandle, Problem> {
    let stage = out(stage.cast_mut(), "stage")?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { &*stage })
}

/// Whether a stage has rules, a controller's or the program's own. If not, tidegate_error_detail()
/// says why. Does not wait: a program that is to begin with rules calls it again after some
/// milliseconds, until it returns another status than TIDEGATE_NO_RULES.
///
/// TIDEGATE_INVALID: a null or misaligned pointer.
/// TIDEGATE_NO_RULES: no controller is there, or it has not answered yet, or it has no policy.
/// TIDEGATE_STAGE_REFUSED: the controller refuses the stage, or the stage cannot hold its rules.
/// The thread goes on trying if another policy could change that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_stage_ready(stage: *const StageHandle) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let handle = unsafe { handle(stage) }?;
        let has_rules = handle.stage.layout().header.generation.load(RELAXED) != 0;
        match handle.agent.no_rules().filter(|_| !has_rules) {
            None => Ok(()),
            Some(NoRules { reason, is_refused: true }) => {
                Err(Problem::new(TIDEGATE_STAGE_REFUSED, reason))
            }
            Some(NoRules { reason, .. }) => Err(Problem::new(TIDEGATE_NO_RULES, reason)),
        }
    })
}

/// Fills `info`, whose size the caller has set.
///
/// TIDEGATE_INVALID: a null or misaligned pointer, or a size that is not sizeof(tidegate_info).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_stage_info(stage: *const StageHandle, info: *mut Info) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let layout = unsafe { handle(stage) }?.stage.layout();
        let info = out(info, "info")?;
        // SAFETY: not null and aligned, and the caller has set this much of it.
        let size = unsafe { (*info).size };
        if size != size_of::<Info>() {
            return Err(Problem::invalid(format!("the size of tidegate_info is {size}")));
        }
        let bypassed = |reason: Bypass| layout.bypasses[reason as usize].operations();
        // Tables are numbered on from a random number, which distinguishes them from other stages'.
        let header = &layout.header;
        let (first, last) = (header.first.load(RELAXED).max(1), header.generation.load(RELAXED));
        let published = last.wrapping_sub(first).wrapping_add(1);
        let value = Info {
            size,
            generation: if last == 0 { 0 } else { published },
            reserved: 0,
            not_storage: bypassed(Bypass::NotStorage),
            queue_full: bypassed(Bypass::QueueFull),
        };
        // SAFETY: as above, and it has the size in its first field.
        unsafe { info.write(value) };
        Ok(())
    })
}

/// Reads the counters of every channel that anything has flowed through, in order of their numbers,
/// without stopping any request. Stores as many as there are in `count`, and the first `capacity`
/// of them at `counters`, which may be null if `capacity` is zero. There are never more than 128.
///
/// TIDEGATE_INVALID: a null or misaligned pointer.
/// TIDEGATE_TOO_SMALL: there are more than `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_collect(
    stage: *const StageHandle,
    counters: *mut Counters,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let layout = unsafe { handle(stage) }?.stage.layout();
        let target = out(count, "count")?;
        if capacity > 0 {
            out(counters, "counters")?;
        }
        let mut count = 0;
        let used = layout.header.channels.load(RELAXED) as usize;
        for (channel, cell) in (0u32..).zip(layout.channels.iter().take(used)) {
            let operations = cell.passed.operations();
            if operations == 0 {
                continue;
            }
            if count < capacity {
                let bytes = cell.passed.bytes();
                let waited_ns = cell.waited.load(RELAXED);
                let value = Counters { channel, reserved: 0, operations, bytes, waited_ns };
                // SAFETY: the caller has room for `capacity` of them.
                unsafe { counters.add(count).write(value) };
            }
            count += 1;
        }
        // SAFETY: not null and aligned, and the caller's variable for a number.
        unsafe { target.write(count) };
        match count > capacity {
            true => Err(Problem::new(TIDEGATE_TOO_SMALL, format!("there are {count} channels"))),
            false => Ok(()),
        }
    })
}
