//! Polls the completion rings of the program, for the times of asynchronous requests: see
//! [`tidegate_stage::asynchronous`].

use libc::{c_int, c_long};
use tidegate_stage::Stage;
use tidegate_stage::asynchronous::{Completion, Completions, RingId, Watch};

use super::liburing::Ring;
use crate::guard::run_guarded;
use crate::process::stage;
use crate::raw;

/// The head of the memory that a context of Linux AIO points to: the kernel's `struct aio_ring`.
/// Its completions follow.
#[repr(C)]
#[derive(Clone, Copy)]
struct AioHead {
    id: u32,
    count: u32,
    head: u32,
    tail: u32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    length: u32,
}

/// The kernel's mark of such a ring.
const AIO_MAGIC: u32 = 0xa10a_10a1;

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AioEvent {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

/// Where completions of this process are.
#[derive(Clone, Copy)]
pub(crate) enum CompletionRing<'a> {
    /// A context of Linux AIO, by its address, at which a page begins.
    Context(usize),
    /// A ring of liburing.
    Ring(&'a Ring),
}

impl CompletionRing<'_> {
    /// A watch of it. Which of the two it is stands in the lowest bit of the address.
    fn watch(self) -> Watch {
        let ring = match self {
            Self::Context(address) => address,
            Self::Ring(ring) => std::ptr::from_ref(ring).expose_provenance() | 1,
        };
        Watch { poll: watch, ring }
    }

    fn id(self) -> RingId {
        match self {
            Self::Context(address) => RingId::of_context(address),
            Self::Ring(ring) => RingId::of_descriptor(ring.descriptor),
        }
    }

    /// Whether the kernel writes each completion into the ring as soon as the request is done. The
    /// times of others would be those of the program between two of its calls.
    fn is_prompt(self) -> bool {
        match self {
            Self::Context(_) => true,
            Self::Ring(of) => {
                // SAFETY: as in `seen`.
                let state = unsafe { raw::value(of.kernel_flags) };
                of.flags & LATE_COMPLETIONS == 0
                    && state.is_some_and(|state| state & OVERFLOWN == 0)
            }
        }
    }

    /// [`Self::seen`] of a ring of which requests are followed. Where the ring has overflown,
    /// completions wait outside of it for a call of the program: then all are forgotten.
    fn followed(self, stage: &Stage) -> Option<(Completions, u32)> {
        if self.is_prompt() {
            return self.seen();
        }
        stage.forget_ring(self.id());
        None
    }

    /// The ring's state, and how many completions the program has not taken yet. None if the ring
    /// cannot be read.
    fn seen(self) -> Option<(Completions, u32)> {
        let ring = self.id();
        match self {
            Self::Context(address) => {
                let head = std::ptr::with_exposed_provenance::<AioHead>(address);
                // SAFETY: any bytes are a head; what cannot be read is none.
                let head = unsafe { raw::value(head) }?;
                if head.magic != AIO_MAGIC || head.compatible != 1 || head.count == 0 {
                    return None;
                }
                let AioHead { head, tail, count, .. } = head;
                let left = if tail >= head {
                    tail - head
                } else {
                    count.saturating_add(tail).saturating_sub(head)
                };
                Some((Completions { ring, tail, modulus: count, size: count }, left))
            }
            Self::Ring(of) => {
                // SAFETY: the kernel's words of a ring that liburing has set up; what cannot be
                // read is none. The kernel writes the tail after the completions before it.
                let (head, tail, mask) = unsafe {
                    (
                        raw::value(of.completed_head)?,
                        raw::value(of.completed_tail)?,
                        raw::value(of.completed_mask)?,
                    )
                };
                let size = mask.wrapping_add(1);
                Some((Completions { ring, tail, modulus: 0, size }, tail.wrapping_sub(head)))
            }
        }
    }

    /// The completion at a position.
    fn completion(self, position: u32) -> Option<Completion> {
        match self {
            Self::Context(address) => {
                let offset = size_of::<AioHead>() + position as usize * size_of::<AioEvent>();
                let event =
                    std::ptr::with_exposed_provenance::<AioEvent>(address.checked_add(offset)?);
                // SAFETY: any bytes are an event; what cannot be read is none.
                let event = unsafe { raw::value(event) }?;
                Some(Completion { key: event.request, moved: event.result > 0 })
            }
            Self::Ring(of) => {
                // SAFETY: as in `seen`; the mask keeps the position within the ring.
                let completion = unsafe {
                    let mask = raw::value(of.completed_mask)?;
                    let wide = u32::from(of.flags & WIDE_COMPLETIONS != 0);
                    raw::value(of.completions.wrapping_add(((position & mask) << wide) as usize))
                }?;
                Some(Completion { key: completion.key, moved: completion.result > 0 })
            }
        }
    }
}

/// `IORING_SETUP_CQE32`: every completion takes the place of two.
const WIDE_COMPLETIONS: u32 = 1 << 11;

/// Flags of rings whose completions appear only while the program is in a call:
/// `IORING_SETUP_IOPOLL`, `IORING_SETUP_COOP_TASKRUN` and `IORING_SETUP_DEFER_TASKRUN`.
const LATE_COMPLETIONS: u32 = 1 | 1 << 8 | 1 << 13;

/// `IORING_SQ_CQ_OVERFLOW`: completions found no space in the ring.
const OVERFLOWN: u32 = 1 << 1;

/// Polls the ring of a watch, and says whether requests are in flight there. The thread is
/// inside the shim.
fn watch(ring: usize) -> bool {
    let Some(stage) = stage() else { return false };
    if ring & 1 == 0 {
        return poll_ring(stage, CompletionRing::Context(ring));
    }
    let of = std::ptr::with_exposed_provenance::<Ring>(ring & !1);
    // SAFETY: any bytes are a ring; what cannot be read is none, as after a jump out of the call
    // whose ring it was.
    let of = unsafe { raw::value(of) };
    of.is_some_and(|of| poll_ring(stage, CompletionRing::Ring(&of)))
}

/// Polls a ring, and says whether requests are in flight there.
fn poll_ring(stage: &'static Stage, source: CompletionRing<'_>) -> bool {
    if let Some((seen, _)) = source.followed(stage) {
        stage.poll(seen, false, |position| source.completion(position));
    }
    stage.is_in_flight(source.id())
}

/// Polls a ring, if requests in it are timed.
fn poll(stage: &'static Stage, source: CompletionRing<'_>) {
    if stage.follows(source.id()) {
        run_guarded(|| poll_ring(stage, source));
    }
}

/// Charges a request, which may wait at gates, and polls its ring meanwhile and after that, if
/// requests in the ring are timed.
pub(crate) fn charge(stage: &'static Stage, source: CompletionRing<'_>, charge: impl FnOnce()) {
    if !stage.follows(source.id()) {
        return charge();
    }
    stage.watching(source.watch(), charge);
    poll(stage, source);
}

/// Notes requests with these keys, which are about to be handed over. The keys are not asked for
/// where no request is timed.
pub(crate) fn begin(
    stage: &'static Stage,
    source: CompletionRing<'_>,
    keys: impl Iterator<Item = u64>,
) {
    if !stage.has_probes() {
        return;
    }
    run_guarded(|| {
        let mut keys = keys.peekable();
        if keys.peek().is_some()
            && source.is_prompt()
            && let Some((seen, _)) = source.seen()
        {
            stage.begin_asynchronous(seen, |position| source.completion(position), keys);
        }
    });
}

/// Forgets requests that the kernel did not take.
pub(crate) fn cancel(
    stage: &'static Stage,
    source: CompletionRing<'_>,
    keys: impl Iterator<Item = u64>,
) {
    if stage.follows(source.id()) {
        run_guarded(|| stage.cancel_asynchronous(source.id(), keys));
    }
}

/// Makes a call that waits until `wanted` completions are there, zero for a call that does not
/// wait. `taken` tells of its result how many the call itself has taken out of the ring; none if it
/// failed.
fn wait_for<T: Copy>(
    source: CompletionRing<'_>,
    wanted: u32,
    taken: impl FnOnce(T) -> Option<u32>,
    call: impl FnOnce() -> T,
) -> T {
    let Some(stage) = stage().filter(|stage| stage.follows(source.id())) else { return call() };
    let read = |position| source.completion(position);
    let poll = || {
        let (seen, left) = source.followed(stage)?;
        stage.poll(seen, false, read);
        Some(left)
    };
    // Only a call that waits may have waited.
    let before = (wanted > 0).then(|| run_guarded(poll)).flatten().flatten();
    let result = call();
    let taken = taken(result);
    run_guarded(|| {
        let (seen, left) = source.followed(stage)?;
        let is_there = taken.is_some_and(|taken| taken.saturating_add(left) >= wanted);
        let has_waited = is_there && before.is_some_and(|before| before < wanted);
        stage.poll(seen, has_waited, read);
        Some(())
    });
    result
}

/// Waits for completions of a context of Linux AIO.
pub(crate) fn wait_for_context<T: Copy + Into<c_long>>(
    context: usize,
    wanted: c_long,
    call: impl FnOnce() -> T,
) -> T {
    let wanted = u32::try_from(wanted).unwrap_or(0);
    wait_for(
        CompletionRing::Context(context),
        wanted,
        |result| u32::try_from(result.into()).ok(),
        call,
    )
}

/// Waits for completions of a ring of liburing.
///
/// # Safety
/// `ring` is null or a ring that liburing has set up.
pub(crate) unsafe fn wait_for_ring(
    ring: *const Ring,
    wanted: u32,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some(ring) = (unsafe { ring.as_ref() }) else { return call() };
    // Completions stay in the ring until the program says that it has seen them.
    wait_for(CompletionRing::Ring(ring), wanted, |result| (result >= 0).then_some(0), call)
}

/// Ends a context of Linux AIO.
pub(crate) fn end_context<T>(context: usize, call: impl FnOnce() -> T) -> T {
    forget(CompletionRing::Context(context));
    call()
}

/// Forgets a ring that the program ends, after a last poll.
pub(crate) fn forget(source: CompletionRing<'_>) {
    if let Some(stage) = stage().filter(|stage| stage.follows(source.id())) {
        poll(stage, source);
        run_guarded(|| stage.forget_ring(source.id()));
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn rings_with_late_completions_give_no_times() {
        // SAFETY: null pointers and zeros are a ring that was not set up.
        let mut ring: Ring = unsafe { MaybeUninit::zeroed().assume_init() };
        let is_prompt = |ring: &Ring| CompletionRing::Ring(ring).is_prompt();
        assert!(!is_prompt(&ring), "its state cannot be read");
        let mut state = 0;
        ring.kernel_flags = &raw const state;
        assert!(is_prompt(&ring));
        // SQPOLL, CQSIZE and SINGLE_ISSUER.
        ring.flags = 1 << 1 | 1 << 3 | 1 << 12;
        assert!(is_prompt(&ring));
        for late in [0, 8, 13] {
            assert!(!is_prompt(&Ring { flags: 1 << late, ..ring }), "flag {late}");
        }
        state = OVERFLOWN | 1;
        ring.kernel_flags = &raw const state;
        assert!(!is_prompt(&ring));
    }
}
