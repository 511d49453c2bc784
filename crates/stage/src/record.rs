//! Per-thread records in shared memory: they show which threads hold or wait for queue permits, and
//! whether each is alive.
//!
//! A thread takes a *record* in the segment at its first queue gate and keeps it until it ends. The
//! record holds
//!
//! - whether the thread is alive: it holds a robust lock, which the kernel marks when the thread
//!   ends, however it ends (it returns, its process is killed or runs another program). A reader of
//!   the lock's word can be sure, without process numbers, which mean nothing in another namespace,
//!   outlive their process as long as its parent does not wait for it, and are given again;
//! - where to look whether the thread is stopped: its numbers, as `/proc` has them, and which
//!   `/proc` that is;
//! - which permits the thread holds, and at which depth of its stack it requested each. A thread
//!   that calls again from above has left the call: by `longjmp`, because it was cancelled, by an
//!   exception. Its permits are taken back then.
//!
//! ```text
//!   lock  generation  proc  pid  tid   permit 0 … 7          depth 0 … 7
//!    │      │            └────┴────┘     queue, slot, claim    stack addresses
//!    │      └ how often the record was taken: an owner is a record and a generation
//!    └ held by the thread, marked by the kernel
//! ```
//!
//! A child of `vfork` runs on the memory of its parent's thread, thread-local variables and the C
//! library's list of robust locks included, and so does what `clone` makes without memory of its
//! own. They *borrow* a record for one request: it has no lock but a word with their numbers, and
//! is free again when the request is done.
//!
//! A segment in which a thread of this process has a record must stay mapped: the C library's list
//! of the locks that a thread holds leads through it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags};

use crate::files;
use crate::layout::{RECORDS_MAX, Record, SegmentLayout, THREADS_MAX};
use crate::permit::Permit;

/// Bits of an owner that are the record's number; the rest is the generation.
const NUMBER_BITS: u32 = 11;
const _: () = assert!(RECORDS_MAX <= 1 << NUMBER_BITS);

/// Owner of a permit or slot: a record and its generation. Never zero.
pub(crate) type Owner = u32;

fn owner(number: usize, generation: u32) -> Owner {
    generation << NUMBER_BITS | number as u32
}

/// The number of an owner's record.
pub(crate) fn number(owner: Owner) -> usize {
    owner as usize % (1 << NUMBER_BITS)
}

pub(crate) fn record(layout: &SegmentLayout, owner: Owner) -> Option<&Record> {
    layout.records.get(number(owner))
}

#[derive(Clone, Copy)]
struct KnownThread {
    stage: usize,
    process: u32,
    thread: u32,
    owner: Owner,
}

thread_local! {
    /// This thread's record in the stage where it last waited. In a child of `fork` it is the
    /// parent's, and a child of `vfork` sees its parent's own: hence the numbers.
    static KNOWN: Cell<KnownThread> = const {
        Cell::new(KnownThread { stage: 0, process: 0, thread: 0, owner: 0 })
    };
}

/// Whether a thread of this process has ever had a record.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether segments of this process must stay mapped.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Forgets this thread's record, which in a child of `fork` is its parent's.
pub(crate) fn forget() {
    KNOWN.set(KnownThread { stage: 0, process: 0, thread: 0, owner: 0 });
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn this_process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Returns the owner with which this thread waits at queues; none if all records are taken.
pub(crate) fn own(layout: &SegmentLayout) -> Option<Owner> {
    let (stage, thread) = (std::ptr::from_ref(layout).addr(), this_thread());
    let known = KNOWN.get();
    if (known.stage, known.thread) == (stage, thread) && is_current(layout, known.owner) {
        return Some(known.owner);
    }
    let process = this_process();
    let borrows = !files::is_own() || (known.process == process && known.thread != thread);
    if borrows {
        return borrow(layout, process, thread);
    }
    let thread_id = ThreadId::of_this_thread().unwrap_or_default();
    let owner = taken_before(layout, thread_id).or_else(|| take(layout, thread_id))?;
    KNOWN.set(KnownThread { stage, process, thread, owner });
    Some(owner)
}

/// The record that this thread has here already, if it has one: it may have been at another stage
/// meanwhile.
fn taken_before(layout: &SegmentLayout, thread_id: ThreadId) -> Option<Owner> {
    let numbers = 0..THREADS_MAX;
    let mut mine = numbers.filter(|number| layout.records[*number].thread_id() == thread_id);
    mine.find_map(|number| {
        let owner = owner(number, layout.records[number].generation.load(Ordering::Relaxed));
        (thread_id.proc != 0 && !is_gone(layout, owner)).then_some(owner)
    })
}

/// Takes a record until this thread ends.
fn take(layout: &SegmentLayout, thread_id: ThreadId) -> Option<Owner> {
    ANY.store(true, Ordering::Relaxed);
    // Not all from the front: threads that come together would try the same records.
    let first = layout.header.threads.fetch_add(1, Ordering::Relaxed) as usize;
    let mut numbers = (0..THREADS_MAX).map(|number| (first + number) % THREADS_MAX);
    let number = numbers.find(|number| layout.records[*number].lock.try_to_keep())?;
    Some(begin(layout, number, thread_id))
}

/// Returns a second owner for this thread, with which it gives back its permits. The thread needs
/// one while a signal has interrupted its own record in the middle of a change.
pub(crate) fn other(layout: &SegmentLayout) -> Option<Owner> {
    borrow(layout, this_process(), this_thread())
}

/// Takes a record for a request of a caller that has the memory of another thread.
fn borrow(layout: &SegmentLayout, process: u32, thread: u32) -> Option<Owner> {
    let borrower = u64::from(process) << 32 | u64::from(thread);
    let mut numbers = THREADS_MAX..RECORDS_MAX;
    let cell = |number: usize| &layout.records[number].borrower;
    if let Some(number) =
        numbers.clone().find(|number| cell(*number).load(Ordering::Relaxed) == borrower)
    {
        return Some(owner(number, layout.records[number].generation.load(Ordering::Relaxed)));
    }
    let take = |number: &usize| {
        let taken =
            cell(*number).compare_exchange(0, borrower, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    let number = numbers.find(take).or_else(|| {
        // Those that ended in the middle of a request.
        let mut numbers = THREADS_MAX..RECORDS_MAX;
        numbers.find(|number| {
            let found = cell(*number).load(Ordering::Relaxed);
            let record = &layout.records[*number];
            state_of_record(record) == ThreadState::Gone
                && cell(*number)
                    .compare_exchange(found, borrower, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })
    })?;
    Some(begin(layout, number, ThreadId::of_this_thread().unwrap_or_default()))
}

/// Begins a new generation of a record that this thread has just taken.
fn begin(layout: &SegmentLayout, number: usize, thread_id: ThreadId) -> Owner {
    let record = &layout.records[number];
    // The last owner's permits end here: no owner word matches them any more.
    let generations = 1 << (u32::BITS - NUMBER_BITS);
    let generation = (record.generation.load(Ordering::Relaxed) + 1) % generations;
    record.generation.store(generation.max(1), Ordering::Release);
    for (permit, depth) in record.permits.iter().zip(&record.depths) {
        permit.store(0, Ordering::Relaxed);
        depth.store(0, Ordering::Relaxed);
    }
    record.process.store(thread_id.process, Ordering::Relaxed);
    record.thread.store(thread_id.thread, Ordering::Relaxed);
    record.proc.store(thread_id.proc, Ordering::Release);
    owner(number, generation.max(1))
}

/// Gives a record back if it was borrowed and nothing is held by it any more.
pub(crate) fn give_back(layout: &SegmentLayout, owner: Owner) {
    let Some(record) = record(layout, owner) else { return };
    let is_empty = || record.permits.iter().all(|it| it.load(Ordering::Relaxed) == 0);
    if number(owner) >= THREADS_MAX && is_current(layout, owner) && is_empty() {
        record.borrower.store(0, Ordering::Release);
    }
}

/// Gives this thread's record back, for the thread ends. It holds nothing any more.
pub(crate) fn leave(layout: &SegmentLayout) {
    let known = KNOWN.get();
    let here = (std::ptr::from_ref(layout).addr(), this_thread());
    if (known.stage, known.thread) == here && is_current(layout, known.owner) {
        forget();
        layout.records[number(known.owner)].lock.release();
    }
}

/// Whether a record is still what it was when it was taken: another stage may have come to stand at
/// the address of one that is gone.
fn is_current(layout: &SegmentLayout, known: Owner) -> bool {
    let record = record(layout, known);
    known != 0
        && record
            .is_some_and(|it| owner(number(known), it.generation.load(Ordering::Acquire)) == known)
}

/// Whether the thread that had the record is gone. Takes no lock, and makes no system call but for
/// borrowers, which the kernel does not mark.
pub(crate) fn is_gone(layout: &SegmentLayout, who: Owner) -> bool {
    if !is_current(layout, who) {
        return true;
    }
    match record(layout, who) {
        Some(record) if number(who) < THREADS_MAX => record.lock.is_free(),
        Some(record) => {
            record.borrower.load(Ordering::Acquire) == 0
                || state_of_record(record) == ThreadState::Gone
        }
        None => true,
    }
}

impl Record {
    /// Notes a permit, and where on the stack it is requested. If the record is full, the permit
    /// comes back only when the thread finishes or ends.
    pub(crate) fn note(&self, permit: Permit, depth: usize) {
        let free = self.permits.iter().position(|it| it.load(Ordering::Relaxed) == 0);
        if let Some(index) = free {
            self.depths[index].store(depth as u64, Ordering::Relaxed);
            self.permits[index].store(permit.to_word(), Ordering::Relaxed);
        }
    }

    /// Forgets a permit that was given back.
    pub(crate) fn forget(&self, permit: Permit) {
        let word = permit.to_word();
        let noted = self.permits.iter().find(|it| it.load(Ordering::Relaxed) == word);
        noted.into_iter().for_each(|it| it.store(0, Ordering::Relaxed));
    }

    /// The permits that are noted, each with its depth.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (Permit, usize)> + '_ {
        self.permits.iter().zip(&self.depths).filter_map(|(permit, depth)| {
            let permit = Permit::from_word(permit.load(Ordering::Relaxed))?;
            Some((permit, depth.load(Ordering::Relaxed) as usize))
        })
    }

    fn thread_id(&self) -> ThreadId {
        ThreadId {
            proc: self.proc.load(Ordering::Acquire),
            process: self.process.load(Ordering::Relaxed),
            thread: self.thread.load(Ordering::Relaxed),
        }
    }
}

/// Where a thread is in `/proc`, which may be that of another namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadId {
    /// The device number of the `/proc`, or zero.
    proc: u64,
    process: u32,
    thread: u32,
}

impl ThreadId {
    /// As `/proc/thread-self` has it: `<process>/task/<thread>`.
    fn of_this_thread() -> Option<Self> {
        if !MAY_INSPECT.load(Ordering::Relaxed) {
            return None;
        }
        let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
        let (link, _) = rustix::fs::readlinkat_raw(CWD, c"/proc/thread-self", &mut buffer).ok()?;
        let mut numbers = link.split(|byte| *byte == b'/').filter_map(parse);
        let (process, thread) = (numbers.next()?, numbers.next()?);
        let (_, proc) = open_proc()?;
        Some(Self { proc, process, thread })
    }
}

fn parse(digits: &[u8]) -> Option<u32> {
    str::from_utf8(digits).ok()?.parse().ok()
}

/// The folder `/proc`, and its device number.
fn open_proc() -> Option<(rustix::fd::OwnedFd, u64)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(c"/proc", flags, Mode::empty()).ok()?;
    let device = rustix::fs::fstat(&folder).ok()?.st_dev;
    Some((folder, device))
}

/// Whether the state of threads may be read from the kernel: a program's filter on system calls may
/// forbid it.
static MAY_INSPECT: AtomicBool = AtomicBool::new(true);

/// Sets whether this process may open and read files of `/proc`. While it may not, it leaves it to
/// other processes and to the agent to find out which threads are stopped.
pub fn allow_inspection(may: bool) {
    MAY_INSPECT.store(may, Ordering::Relaxed);
}

/// State of a thread, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// It runs, or sleeps in a call, however long.
    Live,
    /// It was stopped: by a signal, a debugger or a freezer.
    Stopped,
    /// It has ended.
    Gone,
    /// It cannot be seen from here.
    Unknown,
}

/// Returns the state of an owner's thread, as the kernel shows it.
pub(crate) fn thread_state(layout: &SegmentLayout, who: Owner) -> ThreadState {
    match record(layout, who) {
        // The lock of an ended thread shows its end.
        Some(record) if number(who) < THREADS_MAX => match state_of_record(record) {
            ThreadState::Gone => ThreadState::Unknown,
            thread_state => thread_state,
        },
        Some(record) => state_of_record(record),
        None => ThreadState::Gone,
    }
}

fn state_of_record(record: &Record) -> ThreadState {
    let thread_id = record.thread_id();
    if thread_id.proc == 0 || !MAY_INSPECT.load(Ordering::Relaxed) {
        return ThreadState::Unknown;
    }
    let Some((folder, device)) = open_proc() else { return ThreadState::Unknown };
    if device != thread_id.proc {
        return ThreadState::Unknown;
    }
    let mut buffer = [0; 512];
    let stat = match file_of(&folder, thread_id, b"stat", &mut buffer) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => return ThreadState::Gone,
        Err(_) => return ThreadState::Unknown,
    };
    // The name, in parentheses, may hold anything.
    let end = stat.iter().rposition(|byte| *byte == b')');
    match end.and_then(|end| stat.get(end + 2)) {
        Some(b'T' | b't') => ThreadState::Stopped,
        Some(b'Z' | b'X' | b'x') => ThreadState::Gone,
        // A freezer leaves its threads asleep, or as if they waited for a device.
        Some(b'S' | b'D' | b'I') if is_frozen(&folder, thread_id) => ThreadState::Stopped,
        Some(_) => ThreadState::Live,
        None => ThreadState::Unknown,
    }
}

/// Whether a thread that sleeps does so in the kernel's freezer.
fn is_frozen(folder: &rustix::fd::OwnedFd, thread_id: ThreadId) -> bool {
    let mut buffer = [0; 64];
    is_freezer(file_of(folder, thread_id, b"wchan", &mut buffer).unwrap_or(&[]))
}

/// Whether a thread that sleeps in this function of the kernel is in a freezer: that of version 1
/// of control groups and of suspend, or that of version 2, which many compilers make a part of
/// `get_signal`. Any other thread that stops there does not sleep, as the kernel shows it.
fn is_freezer(function: &[u8]) -> bool {
    let has = |name: &[u8]| function.windows(name.len()).any(|part| part == name);
    has(b"freezer") || has(b"refrigerator") || has(b"get_signal")
}

/// Reads a file about a thread.
fn file_of<'a>(
    folder: &rustix::fd::OwnedFd,
    thread_id: ThreadId,
    name: &[u8],
    buffer: &'a mut [u8],
) -> rustix::io::Result<&'a [u8]> {
    let (mut process, mut thread) = ([0; 10], [0; 10]);
    let process = crate::identity::digits(thread_id.process, &mut process);
    let thread = crate::identity::digits(thread_id.thread, &mut thread);
    let mut path = [0; 48];
    let mut length = 0;
    for byte in [process, b"/task/", thread, b"/", name].into_iter().flatten() {
        path[length] = *byte;
        length += 1;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, &path[..length], flags, Mode::empty())?;
    let length = rustix::io::read(&file, &mut *buffer)?;
    Ok(&buffer[..length])
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(crate) mod tests;

#[cfg(test)]
#[path = "freezer_tests.rs"]
mod freezer_tests;
