//! Requests that carry their content, so that gates may transform it.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};

use tidegate_stage::transform::TransformError;
use tidegate_stage::{Request as StageRequest, Subject};

use crate::admission::{self, Admission, operation};
use crate::arguments::{Versioned, optional, out, sized, slice};
use crate::stage::{StageHandle, handle};
use crate::status::{
    Problem, TIDEGATE_NO_KEY, TIDEGATE_NOT_AUTHENTIC, TIDEGATE_RULES_CHANGED, TIDEGATE_SYSTEM,
    TIDEGATE_TOO_SMALL, guarded,
};

/// A request with content.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LayeredRequest {
    /// sizeof(tidegate_request).
    pub size: usize,
    /// One of TIDEGATE_READ to TIDEGATE_SCAN.
    pub operation: u32,
    /// Zero.
    pub reserved: u32,
    /// The absolute path of the file it is about, for rules with a path, or null.
    pub path: *const c_char,
}

// SAFETY: it begins with its size, and consists of integers and pointers.
unsafe impl Versioned for LayeredRequest {
    const NAME: &'static str = "tidegate_request";
}

/// Bytes to read. The pointer may be null if the length is zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    /// Where they are.
    pub data: *const u8,
    /// How many there are.
    pub length: usize,
}

/// Room for bytes. The pointer may be null if the capacity is zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    /// Where it is.
    pub data: *mut u8,
    /// How many fit.
    pub capacity: usize,
}

impl Bytes {
    /// # Safety
    /// The bytes live and stay as they are for `'a`.
    pub(crate) unsafe fn slice<'a>(self, what: &str) -> Result<&'a [u8], Problem> {
        // SAFETY: the caller's promise.
        unsafe { slice(self.data, self.length, what) }
    }
}

impl From<TransformError> for Problem {
    fn from(error: TransformError) -> Self {
        let status = match error {
            TransformError::NoKey(_) => TIDEGATE_NO_KEY,
            TransformError::NotAuthentic | TransformError::NotCompressed => TIDEGATE_NOT_AUTHENTIC,
            TransformError::TooLarge => TIDEGATE_TOO_SMALL,
            TransformError::NoRandomness => TIDEGATE_SYSTEM,
            TransformError::RulesChanged | TransformError::Forked => TIDEGATE_RULES_CHANGED,
        };
        Self::new(status, error.to_string())
    }
}

/// The largest result that tidegate_write() can have for so many bytes of content, whatever the
/// gates.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_bound(length: usize) -> usize {
    // Each of eight gates may compress what cannot be compressed, which adds a 256th and a little,
    // or encrypt, which adds 29 bytes.
    length.saturating_add(length / 28).saturating_add(1024)
}

/// Lets a request with content pass its gates, as tidegate_enforce() does, and gives what is to be
/// written instead of the content: `*result` is the content itself if no gate of the channel
/// transforms it, which copies nothing, else it is in `buffer`. The admission is to be completed
/// with the length of the *content* when the result is written.
///
/// associated: data that is not written but must be the same when the content is read, such as
/// where it belongs, so that it cannot be moved elsewhere.
///
/// There is nothing to complete after an error, and what the request took is given back:
/// TIDEGATE_INVALID: a null or misaligned pointer, an unknown operation, a path that is not UTF-8.
/// TIDEGATE_NO_KEY: a gate names a key that was not given when the stage was opened.
/// TIDEGATE_TOO_SMALL: the result does not fit the buffer; `result->length` is its length, or use
/// tidegate_bound(). The request has passed its gates, and will do so again.
/// TIDEGATE_RULES_CHANGED: the rules changed meanwhile; make the request again. In a child of
/// fork() it stays so, for only the parent has the new rules; the child may open its own stage.
/// TIDEGATE_SYSTEM: there are no random numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_write(
    stage: *const StageHandle,
    request: *const LayeredRequest,
    content: Bytes,
    associated: Bytes,
    buffer: Buffer,
    result: *mut Bytes,
    admission: *mut Admission,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires; all of it outlives the call.
        let (stage, request, given, associated, path) = unsafe {
            let request = sized(request)?;
            let path = optional(request.path, "path")?;
            let (given, associated) = (content.slice("content")?, associated.slice("associated")?);
            (handle(stage)?, request, given, associated, path)
        };
        let target = admission::admission_out(admission)?;
        let result = out(result, "result")?;
        let subject = path.map_or(Subject::None, |path| Subject::Path(path.as_bytes()));
        let operation = operation(request.operation)?;
        let request = StageRequest::new(operation, given.len() as u64).on(subject);
        let (admitted, written) = stage.layered.write(&request, given, associated)?;
        // SAFETY: the buffer is the caller's, of the capacity that it gives; the target is checked.
        if let Err(problem) = unsafe { give(written, content, buffer, result) } {
            // It will not be made like this: what it took goes back.
            admitted.complete(0);
            return Err(problem);
        }
        // SAFETY: checked above, and the stage stays open while the admission lasts.
        unsafe { admission::put(target, admitted) };
        Ok(())
    })
}

/// Restores what tidegate_write() gave, after it was read: `*result` is the content itself if no
/// gate of the request's channel transforms it, else it is in `buffer`, whose capacity is the most
/// that is believed to belong there. The admission stays under way.
///
/// TIDEGATE_INVALID: a null or misaligned pointer, an admission that is not under way.
/// TIDEGATE_NO_KEY: a gate names a key that was not given when the stage was opened.
/// TIDEGATE_NOT_AUTHENTIC: the content, or the associated data, is not what was written.
/// TIDEGATE_TOO_SMALL: the result would be larger than the buffer.
/// TIDEGATE_RULES_CHANGED: as for tidegate_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_restore(
    stage: *const StageHandle,
    admission: *const Admission,
    content: Bytes,
    associated: Bytes,
    buffer: Buffer,
    result: *mut Bytes,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires; all of it outlives the call.
        let (stage, admission, given, associated) = unsafe {
            let (given, associated) = (content.slice("content")?, associated.slice("associated")?);
            (handle(stage)?, admission::get(admission)?, given, associated)
        };
        let result = out(result, "result")?;
        // Content that is not transformed needs no buffer.
        let largest = buffer.capacity.max(given.len());
        let restored = stage.layered.restore(admission, given, associated, largest)?;
        // SAFETY: the buffer is the caller's, of the capacity that it gives; the target is checked.
        unsafe { give(restored, content, buffer, result) }
    })
}

/// Gives the caller a result: where it gave the content, or in its buffer.
///
/// # Safety
/// The buffer has its stated capacity, and the result is a place for one.
unsafe fn give(
    made: Cow<'_, [u8]>,
    content: Bytes,
    buffer: Buffer,
    result: *mut Bytes,
) -> Result<(), Problem> {
    let (value, made) = match made {
        Cow::Borrowed(_) => (content, None),
        Cow::Owned(made) => (Bytes { data: buffer.data, length: made.len() }, Some(made)),
    };
    // SAFETY: the caller's promise.
    unsafe { result.write(value) };
    let Some(made) = made else { return Ok(()) };
    if made.len() > buffer.capacity || buffer.data.is_null() {
        let (length, capacity) = (made.len(), buffer.capacity);
        let detail = format!("the result has {length} bytes, the buffer {capacity}");
        return Err(Problem::new(TIDEGATE_TOO_SMALL, detail));
    }
    // SAFETY: it fits, as just checked, and what was made is memory of ours.
    unsafe { std::ptr::copy(made.as_ptr(), buffer.data, made.len()) };
    Ok(())
}
