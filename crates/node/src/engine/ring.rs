//! Asynchronous reads and writes by `io_uring`, and threads for all other jobs.
//!
//! A submitting thread puts the transfers of its batch into the ring and notifies the kernel once;
//! one thread waits for completions. Work that is no transfer of whole pages past the cache goes to
//! a [`ThreadPool`]. So does a transfer that was short or failed: the pool repeats it with plain
//! calls, and its result is final. Reads and writes may be done twice, and so one module handles
//! all errors.

use std::io;
use std::mem;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use tidegate_fabric::buffer::Buffer;

use super::pool::ThreadPool;
use super::{Engine, Sink, Work};
use crate::mutex::lock;
use crate::store::{Medium, PageHold, Transfer};
use crate::threads;

/// Threads beside the ring: flushes, discards, broken blocks.
const THREADS_MAX: usize = 16;

/// How long a submitting thread sleeps while the kernel is out of memory, at first and at most: the
/// time in which a device completes requests and frees some.
const PAUSE_FIRST: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// The entry that only wakes the waiting thread.
const WAKE: u64 = u64::MAX;

/// Transfers by the kernel, and threads for the rest.
pub(crate) struct Ring {
    shared: Arc<RingState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct RingState {
    ring: IoUring,
    /// The thread that holds this lock may put entries into the ring.
    slots: Mutex<RingSlots>,
    medium: Arc<dyn Medium>,
    sink: Arc<dyn Sink>,
    pool: ThreadPool,
    /// Whether a transfer has the I/O priority of its class.
    has_priorities: bool,
    /// Whether the kernel is out of memory, for a test.
    #[cfg(test)]
    is_refused: std::sync::atomic::AtomicBool,
}

/// Work whose buffers the kernel uses, by the number that its entry has, with the pages that it
/// holds.
#[derive(Default)]
struct RingSlots {
    work: Vec<Option<(Work, Option<PageHold>)>>,
    free: Vec<usize>,
    is_ending: bool,
}

impl RingSlots {
    fn is_empty(&self) -> bool {
        self.free.len() == self.work.len()
    }

    fn next(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.work.push(None);
            self.work.len() - 1
        })
    }
}

impl Drop for RingSlots {
    /// The kernel may still write to these, if their thread has ended before its time.
    fn drop(&mut self) {
        self.work.drain(..).for_each(mem::forget);
    }
}

impl Ring {
    /// Starts a ring for at most `depth` transfers at a time, which finish into `sink`. With
    /// `has_priorities` a transfer has the I/O priority of its class.
    ///
    /// # Errors
    /// If the kernel lacks or forbids rings, or has no more threads.
    pub(crate) fn start(
        depth: u32,
        has_priorities: bool,
        medium: Arc<dyn Medium>,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        // One more for the entry that wakes.
        let ring = IoUring::new((depth + 1).next_power_of_two())?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let threads = THREADS_MAX.min(depth as usize);
        let pool = ThreadPool::start(threads, has_priorities, medium.clone(), sink.clone())?;
        let shared = Arc::new(RingState {
            ring,
            slots: Mutex::default(),
            medium,
            sink,
            pool,
            has_priorities,
            #[cfg(test)]
            is_refused: false.into(),
        });
        let reaper = shared.clone();
        let thread = threads::spawn("ring", move || reaper.reap());
        match thread {
            Ok(thread) => Ok(Self { shared, thread: Mutex::new(Some(thread)) }),
            Err(error) => {
                shared.pool.stop();
                Err(error)
            }
        }
    }
}

impl Engine for Ring {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        let shared = &*self.shared;
        let mut others = Vec::new();
        let mut slots = lock(&shared.slots);
        let mut count = 0;
        for work in work.drain(..) {
            match shared.medium.transfer(&work.body.job).filter(|_| !slots.is_ending) {
                Some(transfer) => match shared.push(&mut slots, work, transfer) {
                    Ok(()) => count += 1,
                    Err(work) => others.push(work),
                },
                None => others.push(work),
            }
        }
        drop(slots);
        if count > 0 {
            shared.submit();
        }
        if !others.is_empty() {
            shared.pool.run(&mut others, done);
        }
    }

    fn stop(&self) {
        let wake = opcode::Nop::new().build().user_data(WAKE);
        let push = || {
            let mut slots = lock(&self.shared.slots);
            slots.is_ending = true;
            // SAFETY: the entry names no memory, and `slots` is locked, so no other thread pushes.
            unsafe { self.shared.ring.submission_shared().push(&wake) }.is_ok()
        };
        while !push() {
            self.shared.submit();
        }
        self.shared.submit();
        if let Some(thread) = lock(&self.thread).take() {
            // A thread's panic was reported already.
            let _ = thread.join();
        }
        self.shared.pool.stop();
    }
}

impl RingState {
    /// Puts one transfer into the ring; returns the work if the ring is full.
    #[allow(clippy::result_large_err, reason = "the work is moved on, not reported")]
    fn push(
        &self,
        slots: &mut RingSlots,
        mut work: Work,
        mut transfer: Transfer,
    ) -> Result<(), Work> {
        let length = work.body.job.length as usize;
        if transfer.is_write && work.body.job.buffer.len() != length {
            return Err(work);
        }
        if work.body.job.buffer.len() != length {
            work.body.job.buffer = Buffer::with_length(length);
        }
        let number = slots.next();
        // Zero is that of the submitting thread.
        let priority = if self.has_priorities { work.body.job.tag.class.io_priority() } else { 0 };
        let hold = transfer.hold.take();
        let entry = entry(&mut work.body.job.buffer, &transfer, priority).user_data(number as u64);
        // SAFETY: `slots` is locked, so no other thread pushes. The descriptor is open as long as
        // the medium, which `self` holds. The buffer's memory is on the heap, stays where it is
        // while the work moves into its slot, and no thread touches it before the entry's
        // completion takes the work out; a slot that is never taken out is leaked.
        match unsafe { self.ring.submission_shared().push(&entry) } {
            Ok(()) => {
                slots.work[number] = Some((work, hold));
                Ok(())
            }
            Err(_) => {
                slots.free.push(number);
                Err(work)
            }
        }
    }

    /// Notifies the kernel of pushed entries. Not to be called with `slots` locked: the kernel may
    /// be out of memory until completions are taken in, which needs the lock.
    fn submit(&self) {
        let mut pause = PAUSE_FIRST;
        while let Err(error) = self.enter() {
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            // Out of memory for the moment, as a rule. The completions' queue has room for twice
            // the depth, so it is never full.
            tracing::debug!(%error, "the ring is busy");
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            // The thread that waits for completions notifies the kernel, too.
            if self.has_completions() {
                return;
            }
        }
    }

    fn enter(&self) -> io::Result<usize> {
        #[cfg(test)]
        if self.is_refused.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.ring.submitter().submit()
    }

    /// Whether the kernel was notified of all entries.
    fn has_completions(&self) -> bool {
        let _slots = lock(&self.slots);
        // SAFETY: `slots` is locked, so no other thread has the queue.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Takes completions until the end.
    fn reap(&self) {
        let (mut finished, mut again, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match self.ring.submitter().submit_and_wait(1) {
                Ok(_) => {}
                // Interrupted, or for the moment out of memory: completions can be read all the
                // same.
                Err(error) => tracing::debug!(%error, "waiting for the ring failed"),
            }
            let mut slots = lock(&self.slots);
            // SAFETY: no other thread takes completions.
            for completion in unsafe { self.ring.completion_shared() } {
                let number = completion.user_data();
                if number == WAKE {
                    continue;
                }
                let number = number as usize;
                let Some((mut work, hold)) = slots.work[number].take() else { continue };
                // Before the pool may hold these pages for the same work.
                drop(hold);
                slots.free.push(number);
                match usize::try_from(completion.result()) {
                    Ok(count) if count == work.body.job.length as usize => {
                        work.body.job.outcome = Ok(());
                        finished.push(work);
                    }
                    _ => {
                        failed.push(-completion.result());
                        again.push(work);
                    }
                }
            }
            let is_over = slots.is_ending && slots.is_empty();
            drop(slots);
            for (work, errno) in again.iter().zip(failed.drain(..)).filter(|(_, errno)| *errno > 0)
            {
                self.medium.on_failure(&work.body.job, errno);
            }
            if !again.is_empty() {
                self.pool.run(&mut again, &mut finished);
            }
            if !finished.is_empty() {
                self.sink.finished(&mut finished);
            }
            if is_over {
                return;
            }
        }
    }
}

fn entry(buffer: &mut Buffer, transfer: &Transfer, priority: u16) -> squeue::Entry {
    let descriptor = types::Fd(transfer.descriptor);
    // A frame's length has 32 bits.
    let (memory, length) = (buffer.as_mut_ptr(), buffer.len() as u32);
    match transfer.is_write {
        true => opcode::Write::new(descriptor, memory, length)
            .offset(transfer.offset)
            .ioprio(priority)
            .rw_flags(if transfer.durable { libc::RWF_DSYNC } else { 0 })
            .build(),
        false => opcode::Read::new(descriptor, memory, length)
            .offset(transfer.offset)
            .ioprio(priority)
            .build(),
    }
}

#[cfg(test)]
mod tests;
