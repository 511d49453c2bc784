//! The interface of a stage to requests: classification, admission at gates, and completion.
//!
//! [`Stage::enforce`] finds the channel of a request by the rules, passes the gates of the channel
//! in order, and returns an [`Admission`]. At a gate that holds the request, the thread waits
//! ([`crate::gate`], [`crate::lease`]). When the request is done, its [`Admission`] gives back
//! tokens that it did not use and permits, and counts what it moved; some requests are timed, for
//! the capacity of the storage.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_algo::classify::channel::{
    Classifier, Destination, Flows, Gates, Mask, RuleTable, WORDS_MAX,
};
use tidegate_algo::concurrent::published::{VERSIONS, is_intact};
use tidegate_model::{Class, Operation, Span, Tag, TenantId, Time};

use crate::asynchronous::IN_FLIGHT;
use crate::bypass::Bypass;
use crate::clock;
use crate::files::{self, File, registered};
use crate::gate::{self, Hold, NO_PERMITS, Permits};
use crate::layout::{ChannelCell, CounterShard, Header, SegmentLayout};
use crate::lease;
use crate::local;
use crate::record;
use crate::segment::Segment;
use crate::wait::{self, Cost};

/// Of this many requests of a channel one is timed, unless a latency probe wants every one: two
/// readings of the clock cost more than all the rest.
const TIMED_ONE_IN: u64 = 64;
/// How long a request sleeps at most, while it waits for the first rules, before it checks again.
const FIRST_RULES: Span = Span(50 * Span::MILLISECOND.0);

/// A stage, as its requests see it.
#[derive(Clone, Debug)]
pub struct Stage {
    segment: Arc<Segment>,
}

/// Subject of a request, for rules on paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject<'a> {
    /// Nothing that has a path.
    #[default]
    None,
    /// An open file of this process.
    Descriptor(i32),
    /// A path. Compared with the rules each time.
    Path(&'a [u8]),
    /// A file that this process has registered with a ring.
    Registered {
        /// The ring's descriptor.
        ring: i32,
        /// The file's index.
        index: u32,
    },
}

/// A request, as gates see it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The operation of the request.
    pub operation: Operation,
    /// How much data it moves at most, in bytes; zero for operations that move none.
    pub bytes: u64,
    /// The file or path that the request is about.
    pub subject: Subject<'a>,
    /// Whether the time from its admission to its completion is the storage's.
    pub is_timed: bool,
}

impl<'a> Request<'a> {
    /// A request about nothing in particular.
    pub const fn new(operation: Operation, bytes: u64) -> Self {
        Self { operation, bytes, subject: Subject::None, is_timed: true }
    }

    /// The same request about `subject`.
    #[must_use]
    pub const fn on(self, subject: Subject<'a>) -> Self {
        Self { subject, ..self }
    }

    /// The same request where it is admitted and completed after the fact, or where another thread
    /// carries it out. Its data counts in full when it is admitted, and tells nothing about the
    /// storage's latency.
    #[must_use]
    pub const fn untimed(self) -> Self {
        Self { is_timed: false, ..self }
    }
}

/// Where a request belongs.
#[derive(Clone, Copy, Debug)]
struct RequestRoute {
    to: Destination,
    context: tidegate_model::ContextId,
    shard: u8,
    flows: Flows,
}

/// The outcome of classification.
#[derive(Clone, Copy, Debug)]
enum Sorted {
    /// It belongs to a channel.
    To(RequestRoute),
    /// It matches nothing, or there are no rules yet.
    Nowhere,
    /// It is not about storage.
    NotStorage,
}

impl Stage {
    /// The stage in the segment at `path`.
    ///
    /// # Errors
    /// If there is none, or it belongs to another release.
    pub fn attach(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Arc::new(Segment::attach(path)?)))
    }

    /// The stage in `segment`.
    pub fn new(segment: Arc<Segment>) -> Self {
        Self { segment }
    }

    /// The memory of the stage.
    pub fn layout(&self) -> &SegmentLayout {
        &self.segment
    }

    /// Registers this process with the stage, so that its I/O is counted and its end noticed.
    /// Makes no more than one system call; may be called again after a fork.
    pub fn join(&self) {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        files::own(pid);
        IN_FLIGHT.forget_all();
        local::leave_shard();
        let cells = &self.segment.processes;
        let mine = |cell: &AtomicU32| cell.load(Ordering::Relaxed) == pid;
        let take = |cell: &AtomicU32| {
            cell.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = cells.iter().position(mine).or_else(|| cells.iter().position(take));
        self.segment.join(index);
    }

    /// Counts a call that is let through without passing a gate.
    #[inline]
    pub fn bypass(&self, reason: Bypass, bytes: u64) {
        self.segment.bypasses[reason as usize].count(local::shard(), bytes);
    }

    /// Lets a request pass the gates of its channel, which may take a while (PAIO's `enforce`).
    /// Returns when the request may go; the returned admission is to be completed when the request
    /// is done.
    ///
    /// A request that belongs to no channel passes at once, and is counted as unmatched.
    // Always part of its caller, with `sort` and `admit`: constants of the caller's request then
    // drop out, and to hand over an admission through memory takes a quarter of the time that all
    // of this takes.
    #[inline(always)]
    pub fn enforce(&self, request: &Request<'_>) -> Admission<'_> {
        self.enforced::<false>(request)
    }

    /// The same for a request that this thread makes and completes in its present call. If the
    /// thread calls again from further up its stack, it has left the call by a jump or an
    /// exception, or was cancelled there. The next call then gives back its permits at queues
    /// ([`Self::reclaim`]), and so the admission need not be dropped.
    #[inline(always)]
    pub fn enforce_in_call(&self, request: &Request<'_>) -> Admission<'_> {
        self.enforced::<true>(request)
    }

    #[inline(always)]
    fn enforced<const IN_CALL: bool>(&self, request: &Request<'_>) -> Admission<'_> {
        loop {
            let sorted = self.sort(request);
            let admitted = match sorted {
                Sorted::To(found) => self.admit::<IN_CALL>(request, found),
                Sorted::Nowhere | Sorted::NotStorage => Some((NO_PERMITS, None, Time::ZERO)),
            };
            // Otherwise its gates became others while it waited.
            if let Some((permits, shard, started)) = admitted {
                let Request { operation, bytes, .. } = *request;
                return Admission {
                    stage: self,
                    sorted,
                    operation,
                    bytes,
                    started,
                    permits,
                    shard,
                };
            }
        }
    }

    /// How many requests wait at the queue with this number.
    pub fn waiting_in_queue(&self, queue: usize) -> usize {
        lease::waiting(self.layout(), queue)
    }

    /// Gives back what this thread holds at queues of calls that it has left. To be called where
    /// [`Inside::is_holding`](crate::Inside::is_holding) is true, before the next call.
    #[cold]
    #[inline(never)]
    pub fn reclaim(&self) {
        let here = local::stack_depth();
        lease::reclaim(self.layout(), |depth| local::is_left(depth, here));
    }

    /// Gives back what this thread holds at queues, for it leaves all calls that it is in by a
    /// jump.
    pub fn leave_calls(&self) {
        lease::reclaim(self.layout(), |_| true);
    }

    /// The same at the end of this thread, together with its record in the stage.
    pub fn leave(&self) {
        self.leave_calls();
        record::leave(self.layout());
    }

    /// Notes that this process has registered descriptors with a ring, from an index on. A negative
    /// one stands for none.
    pub fn register_files(&self, ring: i32, first: u32, descriptors: impl Iterator<Item = i32>) {
        let generation = self.segment.header.generation.load(Ordering::Acquire);
        let table = RuleTable(&self.segment.tables[generation as usize % VERSIONS][..]);
        let may_remember = generation != 0 && registered::may_remember();
        for (index, descriptor) in (first..).zip(descriptors) {
            if descriptor < 0 || !may_remember {
                registered::forget(ring, index);
                continue;
            }
            let file = files::lookup(descriptor, generation, &table);
            registered::remember(ring, index, generation, file);
        }
        // Rules that came meanwhile may have been half read.
        if !is_intact(&self.segment.header.generation, generation) {
            registered::forget_ring(ring);
        }
    }

    /// Whether every request of some channel is timed.
    pub fn has_probes(&self) -> bool {
        let used = self.segment.header.channels.load(Ordering::Relaxed) as usize;
        let mut channels = self.segment.channels.iter().take(used);
        channels.any(|channel| channel.probed.load(Ordering::Relaxed) != 0)
    }

    /// Whether the request's time is to be known: it moves data, and every request of its channel
    /// is timed. Passes no gate.
    #[inline(never)]
    pub fn is_probed(&self, request: &Request<'_>) -> bool {
        if !moves_data(request.operation) {
            return false;
        }
        let Sorted::To(found) = self.sort(request) else { return false };
        self.channel(found).is_some_and(|channel| channel.probed.load(Ordering::Relaxed) != 0)
    }

    /// The tag of a request, without passing any gate.
    #[inline(never)]
    pub fn classify(&self, request: &Request<'_>) -> Tag {
        tag(request, self.sort(request))
    }

    #[inline(always)]
    fn sort(&self, request: &Request<'_>) -> Sorted {
        let header = &self.segment.header;
        loop {
            let generation = header.generation.load(Ordering::Acquire);
            if generation == 0 {
                if header.closed.load(Ordering::Relaxed) == 0 {
                    return Sorted::Nowhere;
                }
                wait_for_rules(header);
                continue;
            }
            let words: &[_; WORDS_MAX] = &self.segment.tables[generation as usize % VERSIONS];
            let table = RuleTable(&words[..]);
            let (context, shard, of_thread, flows) =
                local::known(self.layout(), generation, &table);
            let of_subject = match request.subject {
                // No rule with a path accepts the empty one.
                Subject::None if table.uses(Classifier::Path) => {
                    table.accepts(Classifier::Path, b"").0
                }
                Subject::None => Mask::ALL,
                Subject::Descriptor(descriptor) => {
                    match files::lookup(descriptor, generation, &table) {
                        File::Storage(mask) => mask,
                        File::Other => return Sorted::NotStorage,
                    }
                }
                Subject::Path(path) if table.uses(Classifier::Path) => {
                    table.accepts(Classifier::Path, path).0
                }
                Subject::Path(_) => Mask::ALL,
                Subject::Registered { ring, index } => {
                    match registered::lookup(ring, index, generation) {
                        File::Storage(mask) => mask,
                        File::Other => return Sorted::NotStorage,
                    }
                }
            };
            let masks = [&of_thread, &of_subject];
            let to = table.classify(request.operation, request.bytes, masks);
            // If newer rules have replaced the words meanwhile, what was read may be half of each.
            if is_intact(&header.generation, generation) {
                return match to {
                    Some(to) => Sorted::To(RequestRoute { to, context, shard, flows }),
                    None => Sorted::Nowhere,
                };
            }
        }
    }

    /// Passes the gates of a channel and counts. Gives the permits that the request holds, where it
    /// counts, and when its service began if it is timed. None if the request is to be sorted anew.
    ///
    /// The path of most requests stands here and is inlined into the caller; waiting and reading
    /// the clock are calls.
    #[inline(always)]
    fn admit<const IN_CALL: bool>(
        &self,
        request: &Request<'_>,
        found: RequestRoute,
    ) -> Option<(Permits, Option<&CounterShard>, Time)> {
        let layout = self.layout();
        let cost = Cost { bytes: request.bytes, operations: 1 };
        let mut gates = found.to.gates();
        let permits = loop {
            let Some(gate) = gates.next() else { break NO_PERMITS };
            if let Some(hold) = gate::pass(layout, gate, found.shard, cost) {
                break self.wait::<IN_CALL>((gate, hold), gates, cost, found)?;
            }
        };
        let Some(channel) = self.channel(found) else { return Some((permits, None, Time::ZERO)) };
        let shard = channel.passed.shard(found.shard);
        let before = shard.operation();
        if channel.probed.load(Ordering::Relaxed) != 0 {
            let Request { operation, bytes, is_timed, .. } = *request;
            let started = self.begin((operation, bytes, is_timed), found.shard);
            return Some((permits, Some(shard), started));
        }
        if request.is_timed && before.is_multiple_of(TIMED_ONE_IN) {
            return Some((permits, Some(shard), self.now()));
        }
        Some((permits, Some(shard), Time::ZERO))
    }

    /// Waits at the gate that holds a request, and passes those after it. None if the request is to
    /// be sorted anew; what it waited counts all the same.
    #[cold]
    #[inline(never)]
    fn wait<const IN_CALL: bool>(
        &self,
        held: (u8, Hold),
        rest: Gates,
        cost: Cost,
        found: RequestRoute,
    ) -> Option<Permits> {
        let depth = if IN_CALL { local::stack_depth() } else { 0 };
        let thread = (found.shard, found.flows, depth);
        let (permits, waited) =
            gate::wait(self.layout(), held, (found.to.gates(), rest), cost, thread);
        if waited > Span::ZERO
            && let Some(channel) = self.channel(found)
        {
            channel.waited.fetch_add(waited.0, Ordering::Relaxed);
            channel.waiting.record(waited);
        }
        permits
    }

    /// Counts a request of a channel of which every request is timed, and gives the time; zero for
    /// one that cannot be timed, which is counted as answered, too.
    #[inline(never)]
    fn begin(&self, (operation, bytes, is_timed): (Operation, u64, bool), shard: u8) -> Time {
        if moves_data(operation) {
            let cell = &self.segment.storage;
            cell.begun.count(shard, 0);
            match is_timed {
                true => self.segment.open_requests(|open| open.fetch_add(1, Ordering::Relaxed)),
                false => cell.answered(operation).count(shard, bytes),
            }
        }
        if is_timed { self.now() } else { Time::ZERO }
    }

    /// Counts a service that began at `started` and ends now, having moved so many bytes. Not a
    /// method of the admission: what another function is to see of it must be in memory.
    #[inline(never)]
    fn count_service(
        &self,
        (channel, shard): (u8, u8),
        started: Time,
        operation: Operation,
        bytes: u64,
    ) {
        let Some(channel) = self.segment.channels.get(usize::from(channel)) else { return };
        let took = self.now().since(started);
        channel.service.record(took);
        if moves_data(operation) && channel.probed.load(Ordering::Relaxed) != 0 {
            let cell = &self.segment.storage;
            // A read beyond the end, or a stream that only filled its buffer, did not reach it.
            if bytes > 0 {
                cell.service.record(took);
            }
            cell.answered(operation).count(shard, bytes);
            self.segment.open_requests(|open| open.fetch_sub(1, Ordering::Relaxed));
        }
    }

    /// The time on the stage's clock, which every process of the stage reads alike: nanoseconds of
    /// the kernel's monotonic clock, found without a system call.
    #[inline(never)]
    pub fn now(&self) -> Time {
        clock::now(&self.segment.header.clock)
    }

    #[inline]
    fn channel(&self, found: RequestRoute) -> Option<&ChannelCell> {
        self.segment.channels.get(usize::from(found.to.channel()))
    }
}

/// Whether the time that a request takes is one of the storage's for so much data. A flush takes
/// the time of all writes before it.
const fn moves_data(operation: Operation) -> bool {
    matches!(operation, Operation::Read | Operation::Write)
}

#[cold]
fn wait_for_rules(header: &Header) {
    wait::sleep(&header.generation, 0, FIRST_RULES);
}

/// A request that may go. To be completed when it is done; dropped without that, it counts as done
/// in full.
#[must_use = "a request that is admitted must be made and completed"]
#[derive(Debug)]
pub struct Admission<'a> {
    stage: &'a Stage,
    sorted: Sorted,
    operation: Operation,
    bytes: u64,
    /// When its service began, or zero if it is not timed.
    started: Time,
    permits: Permits,
    /// Where what it moves counts, if it belongs to a channel: found once, for finding it takes as
    /// long as counting.
    shard: Option<&'a CounterShard>,
}

impl Admission<'_> {
    /// The tag that the request carries from here on.
    pub fn tag(&self) -> Tag {
        tag(&Request::new(self.operation, self.bytes), self.sorted)
    }

    /// Whether the request holds permits at queues.
    #[inline]
    pub fn has_permits(&self) -> bool {
        self.permits[0].is_some()
    }

    /// Whether the request belongs to a channel.
    pub fn is_gated(&self) -> bool {
        matches!(self.sorted, Sorted::To(_))
    }

    /// The number of the channel that the request belongs to, if it belongs to one.
    pub fn channel(&self) -> Option<u8> {
        if let Sorted::To(found) = self.sorted { Some(found.to.channel()) } else { None }
    }

    /// The numbers of the gates that the request passed.
    #[cfg(feature = "transform")]
    pub(crate) fn gates(&self) -> impl Iterator<Item = u8> + use<> {
        let found = if let Sorted::To(found) = self.sorted { Some(found) } else { None };
        found.into_iter().flat_map(|found| found.to.gates())
    }

    /// Says that the request is done and moved `bytes`. Tokens that it took for more than that go
    /// back to their buckets.
    #[inline]
    pub fn complete(self, bytes: u64) {
        // Settled here and not when it is dropped as well.
        ManuallyDrop::new(self).settle(bytes);
    }

    #[inline]
    fn settle(&self, bytes: u64) {
        let layout = self.stage.layout();
        let found = match self.sorted {
            Sorted::To(found) => found,
            Sorted::Nowhere => {
                return layout.unmatched.passed.count(local::shard(), bytes);
            }
            Sorted::NotStorage => return self.stage.bypass(Bypass::NotStorage, bytes),
        };
        if let Some(shard) = self.shard {
            shard.moved(bytes);
        }
        if self.started != Time::ZERO {
            let place = (found.to.channel(), found.shard);
            self.stage.count_service(place, self.started, self.operation, bytes);
        }
        if bytes < self.bytes {
            let unused = Cost { bytes: self.bytes - bytes, operations: 0 };
            gate::give_back(layout, found.to.gates(), unused);
        }
        if self.has_permits() {
            gate::finish(layout, self.permits, bytes);
        }
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.settle(self.bytes);
    }
}

fn tag(request: &Request<'_>, sorted: Sorted) -> Tag {
    let cost = if request.bytes > 0 { request.bytes } else { 1 };
    let (tenant, context, class) = match sorted {
        Sorted::To(RequestRoute { to, context, .. }) => (to.tenant(), context, to.class()),
        Sorted::Nowhere | Sorted::NotStorage => {
            (TenantId::UNATTRIBUTED, local::context(), Class::default())
        }
    };
    Tag {
        tenant,
        context,
        class,
        operation: request.operation,
        cost: u32::try_from(cost).unwrap_or(u32::MAX),
        delay: 0,
    }
}
