//! Thread-local state: a thread's context, and the masks of rules that accept it.
//!
//! Thread-local cells without destructors: they are there from a thread's first instruction to its
//! last, in signal handlers too, and using them never allocates.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use tidegate_algo::classify::channel::{Classifier, Flows, Mask, RuleTable, Words};
use tidegate_algo::shaping::token_bucket::SHARDS;
use tidegate_model::ContextId;

use crate::asynchronous::Watch;
use crate::context_names;
use crate::identity;
use crate::layout::SegmentLayout;
use crate::record;

/// Contexts whose masks a thread remembers. More than a thread alternates between at a time.
const REMEMBERED: usize = 4;

/// The rules and flows of a thread in one context, under one table. Field by field in cells: copied
/// as a whole, a value that was just written would be read back in chunks of another size, and the
/// processor would wait for it.
struct Known {
    /// Which stage, as the address of its layout, and which of its tables.
    stage: Cell<usize>,
    generation: Cell<u32>,
    context: Cell<ContextId>,
    mask: Cell<Mask>,
    flows: Cell<Flows>,
}

impl Known {
    const fn nothing() -> Self {
        Self {
            stage: Cell::new(0),
            generation: Cell::new(0),
            context: Cell::new(ContextId(u16::MAX)),
            mask: Cell::new(Mask([0; 4])),
            flows: Cell::new(Flows(0)),
        }
    }
}

struct Local {
    /// Where on its stack the thread was when it came inside the shim; [`OUTSIDE`] or [`FOR_GOOD`].
    entered_at: Cell<usize>,
    /// Whether the thread holds permits of calls that it is in, or has left without a word.
    holds: Cell<bool>,
    context: Cell<ContextId>,
    /// The shard in which the thread counts and caches tokens.
    shard: Cell<u8>,
    known: [Known; REMEMBERED],
    /// Polls a ring while the thread waits.
    watch: Cell<Option<Watch>>,
}

/// Instead of a stack address: the thread is not inside the shim.
const OUTSIDE: usize = 0;
/// Instead of a stack address: the thread is inside and stays there.
const FOR_GOOD: usize = usize::MAX;

/// Instead of a shard: none yet.
const NO_SHARD: u8 = u8::MAX;

thread_local! {
    static LOCAL: Local = const {
        Local {
            entered_at: Cell::new(OUTSIDE),
            holds: Cell::new(false),
            context: Cell::new(ContextId::NONE),
            shard: Cell::new(NO_SHARD),
            known: [const { Known::nothing() }; REMEMBERED],
            watch: Cell::new(None),
        }
    };
}

/// Puts the thread into `context` and returns the one it leaves.
#[inline]
pub(crate) fn enter(context: ContextId) -> ContextId {
    LOCAL.with(|local| local.context.replace(context))
}

/// The thread's context.
#[inline]
pub(crate) fn context() -> ContextId {
    LOCAL.with(|local| local.context.get())
}

/// Gives the thread another watch, or none, and returns the one before.
pub(crate) fn watch(watch: Option<Watch>) -> Option<Watch> {
    LOCAL.with(|local| local.watch.replace(watch))
}

/// The thread's watch.
pub(crate) fn watched() -> Option<Watch> {
    LOCAL.with(|local| local.watch.get())
}

/// The thread's shard; some other one before the thread has made a request that belongs to storage.
#[inline]
pub(crate) fn shard() -> u8 {
    LOCAL.with(|local| local.shard.get())
}

/// Has the thread find a shard again: after a fork there are two with the same.
pub(crate) fn leave_shard() {
    LOCAL.with(|local| local.shard.set(NO_SHARD));
    // The permits that this thread noted belong to its parent's thread.
    holds(false);
    record::forget();
    forget_thread();
}

/// Forgets what is known of the thread: its name has changed.
pub fn forget_thread() {
    LOCAL.with(|local| local.known.iter().for_each(|known| known.stage.set(0)));
}

/// Returns the context, the counter shard, the accepting rules and the flows of this thread and its
/// process, under the table of `generation`.
#[inline]
pub(crate) fn known<W: Words + ?Sized>(
    layout: &SegmentLayout,
    generation: u32,
    table: &RuleTable<'_, W>,
) -> (ContextId, u8, Mask, Flows) {
    LOCAL.with(
        #[inline(always)]
        |local| {
            let context = local.context.get();
            let stage = std::ptr::from_ref(layout).addr();
            let known = &local.known[usize::from(context.0) % REMEMBERED];
            if known.stage.get() != stage
                || known.generation.get() != generation
                || known.context.get() != context
            {
                let (mask, flows) = find_out(context, table);
                if local.shard.get() == NO_SHARD {
                    let number = layout.header.threads.fetch_add(1, Ordering::Relaxed);
                    local.shard.set((number % SHARDS as u32) as u8);
                }
                known.mask.set(mask);
                known.flows.set(flows);
                known.context.set(context);
                known.generation.set(generation);
                known.stage.set(stage);
            }
            (context, local.shard.get(), known.mask.get(), known.flows.get())
        },
    )
}

/// Queries everything that the rules depend on, once per thread, context and table.
#[cold]
fn find_out<W: Words + ?Sized>(context: ContextId, table: &RuleTable<'_, W>) -> (Mask, Flows) {
    let (mut mask, flows) =
        context_names::with_name(context, |name| table.accepts(Classifier::Context, name));
    if table.uses(Classifier::Workflow) {
        // PR_GET_NAME gives at most 16 bytes with the zero.
        let name = rustix::thread::name().unwrap_or_default();
        mask = mask.and(table.accepts(Classifier::Workflow, name.as_bytes()).0);
    }
    if table.uses(Classifier::Process) {
        mask = mask.and(identity::with_process(|name| table.accepts(Classifier::Process, name).0));
    }
    if table.uses(Classifier::Cgroup) {
        mask = mask.and(identity::with_cgroup(|path| table.accepts(Classifier::Cgroup, path).0));
    }
    if table.uses(Classifier::User) {
        mask = mask.and(identity::with_user(|user| table.accepts(Classifier::User, user).0));
    }
    (mask, flows)
}

/// About where on its stack the thread is: stacks grow down.
#[inline(always)]
pub(crate) fn stack_depth() -> usize {
    let depth: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) depth, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, sp", out(reg) depth, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let here = 0u8;
        depth = std::hint::black_box(&raw const here).addr();
    }
    depth
}

/// Says whether the thread holds permits of calls that it is in.
pub(crate) fn holds(does: bool) {
    LOCAL.with(|local| local.holds.set(does));
}

/// Less than what the kernel puts on a stack to run a signal's handler, and more than what the
/// shim's own functions take.
const SIGNAL_FRAME: usize = 1_024;
/// No more than a stack is deep: what is further away is on another one.
const STACK: usize = 8 << 20;

/// Whether a thread that is `here` on its stack has left the call that it made at `depth`. A
/// handler that interrupts a call is further down by more than a signal's frame; the next call from
/// the same place is not.
pub(crate) fn is_left(depth: usize, here: usize) -> bool {
    depth < here.saturating_add(SIGNAL_FRAME) && here < depth.saturating_add(STACK)
}

/// A thread's stay inside the shim. Calls that the thread makes meanwhile, because libc calls
/// itself or a signal handler interrupts, are let through.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    /// Enters, unless the thread is inside already.
    #[inline]
    pub fn enter() -> Option<Self> {
        LOCAL.with(|local| {
            let here = stack_depth();
            if local.entered_at.get() != OUTSIDE {
                return again(local, here);
            }
            local.entered_at.set(here);
            Some(Self(()))
        })
    }

    /// Never leaves.
    pub fn stay(self) {
        LOCAL.with(|local| local.entered_at.set(FOR_GOOD));
        std::mem::forget(self);
    }

    /// Whether the thread holds permits: then it is in a call that a handler has interrupted, or
    /// it has left one ([`Stage::reclaim`](crate::Stage::reclaim)).
    #[inline]
    pub fn is_holding() -> bool {
        LOCAL.with(|local| local.holds.get())
    }

    /// Leaves, whichever call entered: a thread that jumps is outside.
    pub fn reset() {
        LOCAL.with(leave);
    }
}

/// Enters once more if the thread has left the shim by a way that was not seen. It may have taken a
/// permit before it left.
#[cold]
#[inline(never)]
fn again(local: &Local, here: usize) -> Option<Inside> {
    // Calls that the shim itself makes are further down the stack, if only by the shim's own
    // frames.
    let depth = local.entered_at.get();
    let has_left = depth != FOR_GOOD && depth <= here && here < depth.saturating_add(STACK);
    has_left.then(|| {
        local.entered_at.set(here);
        local.holds.set(true);
        Inside(())
    })
}

#[inline]
fn leave(local: &Local) {
    local.entered_at.set(OUTSIDE);
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        LOCAL.with(leave);
    }
}
