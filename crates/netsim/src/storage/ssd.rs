//! A drive: submission queues in front, a link, a cache, and chips behind channels.
//!
//! # Problem
//! Whether the classes of a policy get what they are promised is decided inside the drive as much
//! as in front of it: a command that was fetched early may still wait behind others before a chip.
//! To see what arbitration does at either queue, both are needed, with the times that commands
//! really spend in between.
//!
//! # Model
//! NVMe: a host puts commands into submission queues, each of a class. The controller has at most
//! `fetch_limit` commands at a time and fetches the next by arbitration. The way of a 4 KiB read
//! that meets no other command, with the default numbers:
//!
//! | ns | |
//! |---|---|
//! | 8 | the host rings the doorbell |
//! | 8 + 23 | the controller requests the entry, and has it |
//! | 290 | a command on the channel |
//! | 75,000 | the cells |
//! | 12,288 | the data on the channel |
//! | 1,248 + 11 | the data and the completion on the link |
//! | **88,876** | together |
//!
//! A larger command is split at pages, and completes when all of them are done. A write first
//! brings its data over the link; then the cache takes it over, or without one it is programmed.
//!
//! # What is left out
//! Several namespaces, commands other than read and write, errors, interrupts, polling, and the
//! time that firmware thinks. Pages that were never written are read from the cells like all
//! others, though a real drive need not check. Suspending a program for a read: MQSim has it
//! and never does it.

use core::hint::black_box;

use tidegate_algo::scheduling::wrr::{Arbiter, Level};
use tidegate_model::{Bytes, Class};

use super::cache::{Cache, Leaving, Taken, Write};
use super::flash::{self, ChipWork, OperationOwner};
use super::link::HostLink;
use super::media::{Media, PageAccess};
use super::parameters::{Parameters, SECTOR};
use crate::slots::Slots;
use tidegate_sim::time::Picoseconds;

/// The direction of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the drive to the host.
    Read,
    /// From the host to the drive.
    Write,
}

/// A host's command to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveCommand {
    /// Read or write.
    pub direction: Direction,
    /// Its class, for the queues inside the drive.
    pub class: Class,
    /// Where it begins on the drive, a multiple of 512 B.
    pub at: Bytes,
    /// How much it moves, a multiple of 512 B and not zero, at most 1 GiB.
    pub bytes: u32,
    /// The host's own number for it.
    pub tag: u64,
}

/// A command that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The queue into which it was put.
    pub queue: usize,
    /// The command.
    pub command: DriveCommand,
    /// When it was put there.
    pub submitted: Picoseconds,
}

/// Something that happens in a drive. It is given to `later`, and comes back at its time.
#[derive(Clone, Copy, Debug)]
pub struct SsdEvent(EventKind);

#[derive(Clone, Copy, Debug)]
enum EventKind {
    /// The controller has the entry of a command; its data; a page of it in the cache.
    Fetched(u32),
    Arrived(u32),
    Cached(u32),
    /// A page that leaves the cache was read from it.
    Evicted(u32),
    /// A channel or a chip has done something.
    Flash(flash::FlashEvent),
    /// The host has the completion.
    Complete(u32),
}

/// A command in the controller.
#[derive(Debug)]
struct Active {
    queue: usize,
    command: DriveCommand,
    submitted: Picoseconds,
    /// Pages that are not done.
    left: u32,
}

/// Counters of a drive since its start, in pages and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SsdCounters {
    /// Pages read for commands.
    pub reads: u64,
    /// Pages read because a part of them was written.
    pub updates: u64,
    /// Pages programmed for commands.
    pub programs: u64,
    /// Pages moved by cleaning.
    pub moves: u64,
    /// Blocks erased.
    pub erasures: u64,
}

/// A solid-state drive.
///
/// ```
/// use tidegate_model::{Bytes, Class};
/// use tidegate_sim::event::{EventQueue, Events};
/// use tidegate_netsim::storage::{Direction, DriveCommand, Parameters, Ssd};
/// use tidegate_sim::time::Picoseconds;
/// let mut drive = Ssd::new(&Parameters::default(), 1, 0);
/// let queue = drive.add_queue(Class::High);
/// let mut events = Events::default();
/// let (direction, class) = (Direction::Read, Class::High);
/// let command = DriveCommand { direction, class, at: Bytes(0), bytes: 4_096, tag: 7 };
/// drive.submit(Picoseconds::ZERO, queue, command, &mut |at, event| events.push(at, event));
/// let mut took = None;
/// while let Some((now, event)) = events.pop() {
///     let complete = drive.on_event(now, event, &mut |at, event| events.push(at, event));
///     if let Some(complete) = complete {
///         took = Some((complete.command.tag, now.since(complete.submitted)));
///     }
/// }
/// assert_eq!(took, Some((7, Picoseconds(88_876_000))));
/// ```
#[derive(Debug)]
pub struct Ssd {
    queues: Arbiter<(Picoseconds, DriveCommand)>,
    fetch_limit: usize,
    active: Slots<Active>,
    link: HostLink,
    cache: Cache,
    evicted: Slots<Leaving>,
    media: Media,
    page_bytes: u32,
    capacity: Bytes,
}

impl Ssd {
    /// A drive with nothing to do and without queues; number `drive` of the run of `seed`.
    ///
    /// # Panics
    /// If the parameters do not pass their own check.
    pub fn new(parameters: &Parameters, seed: u64, drive: u64) -> Self {
        if let Err(error) = parameters.check() {
            panic!("a drive that cannot be built: {error}");
        }
        Self {
            queues: Arbiter::new(parameters.host.arbitration.arbitration()),
            fetch_limit: parameters.host.fetch_limit as usize,
            active: Slots::default(),
            link: HostLink::new(parameters.link),
            cache: Cache::new(parameters),
            evicted: Slots::default(),
            media: Media::new(parameters, seed, drive),
            page_bytes: parameters.geometry.page.0 as u32,
            capacity: parameters.capacity(),
        }
    }

    /// Adds a submission queue of a class; its number is how many there were before.
    pub fn add_queue(&mut self, class: Class) -> usize {
        self.queues.add(Level::Of(class))
    }

    /// How much it holds.
    pub const fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// How many commands wait in its queues, and how many are in its controller.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.queues.len(), self.active.len())
    }

    /// Whether it has nothing left to do: no command, and nothing in the cache on its way.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == (0, 0) && self.cache.is_idle() && self.media.is_idle()
    }

    /// The counters of the drive so far.
    pub const fn counts(&self) -> SsdCounters {
        SsdCounters {
            reads: self.media.done(ChipWork::Read),
            updates: self.media.done(ChipWork::Update),
            programs: self.media.done(ChipWork::Program),
            moves: self.media.done(ChipWork::MoveIn),
            erasures: self.media.done(ChipWork::Erase),
        }
    }

    /// The host puts a command into a queue and rings the doorbell.
    ///
    /// # Panics
    /// If there is no such queue, or the command is not made of whole sectors of this drive.
    pub fn submit(
        &mut self,
        now: Picoseconds,
        queue: usize,
        command: DriveCommand,
        later: &mut impl FnMut(Picoseconds, SsdEvent),
    ) {
        let DriveCommand { at, bytes, .. } = command;
        let is_whole = bytes.is_multiple_of(SECTOR) && at.0.is_multiple_of(u64::from(SECTOR));
        let fits = at.0 + u64::from(bytes) <= self.capacity.0 && (1..=1 << 30).contains(&bytes);
        assert!(is_whole && fits, "{bytes} bytes at {at} of a drive of {}", self.capacity);
        self.queues.push(queue, (now, command));
        self.fetch(now, later);
    }

    /// Fetches commands while the controller has free slots.
    fn fetch(&mut self, now: Picoseconds, later: &mut impl FnMut(Picoseconds, SsdEvent)) {
        while self.active.len() < self.fetch_limit
            && let Some((queue, (submitted, command))) = self.queues.pop()
        {
            let rung_at = self.link.ring(submitted).max(now);
            let fetched = self.link.fetch(rung_at);
            let slot = self.active.put(Active { queue, command, submitted, left: 0 });
            later(fetched, SsdEvent(EventKind::Fetched(slot)));
        }
    }

    /// Something that `later` was given happens now. The command that is complete by it, if any.
    pub fn on_event(
        &mut self,
        now: Picoseconds,
        event: SsdEvent,
        later: &mut impl FnMut(Picoseconds, SsdEvent),
    ) -> Option<Completion> {
        match event.0 {
            EventKind::Fetched(slot) => {
                let DriveCommand { direction, at, bytes, .. } = self.active.at(slot).command;
                match direction {
                    Direction::Read => self.read(now, slot, later),
                    Direction::Write => {
                        // Of a large drive, what is known of a page is far away: it comes
                        // while other things happen.
                        let page = (at.0 / u64::from(self.page_bytes)) as u32;
                        black_box(self.cache.prefetch(page) ^ self.media.prefetch(page));
                        let arrived = self.link.pull(now, bytes);
                        later(arrived, SsdEvent(EventKind::Arrived(slot)));
                    }
                }
            }
            EventKind::Arrived(slot) => self.write(now, slot, later),
            EventKind::Cached(slot) => self.page_done(now, slot, later),
            EventKind::Evicted(slot) => {
                let leaving = self.evicted.take(slot);
                self.program(now, leaving, later);
            }
            EventKind::Flash(event) => {
                let done = self.media.on_event(now, event, &mut |at, event| {
                    later(at, SsdEvent(EventKind::Flash(event)));
                });
                match done {
                    Some(OperationOwner::Command(slot)) => self.page_done(now, slot, later),
                    Some(OperationOwner::Cache { page, sectors }) => {
                        self.cache.programmed(page, sectors);
                        self.take_over(now, later);
                    }
                    Some(OperationOwner::Cleaning) | None => {}
                }
            }
            EventKind::Complete(slot) => {
                let Active { queue, command, submitted, .. } = self.active.take(slot);
                self.fetch(now, later);
                return Some(Completion { queue, command, submitted });
            }
        }
        None
    }

    /// The pages of a command, each with one bit for every sector that it touches; noted as left.
    fn split(&mut self, slot: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let page = u64::from(self.page_bytes / SECTOR);
        let Active { command: DriveCommand { at, bytes, .. }, left, .. } = self.active.at(slot);
        let first = at.0 / u64::from(SECTOR);
        let end = first + u64::from(*bytes / SECTOR);
        let pages = first / page..end.div_ceil(page);
        *left = (pages.end - pages.start) as u32;
        pages.map(move |number| {
            let from = first.max(number * page) - number * page;
            let to = end.min((number + 1) * page) - number * page;
            (number as u32, ((1u64 << to) - (1u64 << from)) as u32)
        })
    }

    fn read(&mut self, now: Picoseconds, slot: u32, later: &mut impl FnMut(Picoseconds, SsdEvent)) {
        let class = self.active.at(slot).command.class;
        for (page, sectors) in self.split(slot) {
            if let Some(at) = self.cache.read(now, page, sectors) {
                later(at, SsdEvent(EventKind::Cached(slot)));
                continue;
            }
            let bytes = sectors.count_ones() * SECTOR;
            let access = PageAccess { page, bytes, class, owner: OperationOwner::Command(slot) };
            self.media
                .read(now, access, &mut |at, event| later(at, SsdEvent(EventKind::Flash(event))));
        }
    }

    fn write(
        &mut self,
        now: Picoseconds,
        slot: u32,
        later: &mut impl FnMut(Picoseconds, SsdEvent),
    ) {
        let class = self.active.at(slot).command.class;
        for (page, sectors) in self.split(slot) {
            if self.cache.is_on() {
                self.cache.push(Write { command: slot, class, page, sectors });
                continue;
            }
            let bytes = sectors.count_ones() * SECTOR;
            let access = PageAccess { page, bytes, class, owner: OperationOwner::Command(slot) };
            self.media
                .write(now, access, &mut |at, event| later(at, SsdEvent(EventKind::Flash(event))));
        }
        self.take_over(now, later);
    }

    /// Lets the cache take writes over while it has room.
    fn take_over(&mut self, now: Picoseconds, later: &mut impl FnMut(Picoseconds, SsdEvent)) {
        while let Some(Taken { write, at, cold, evicted }) = self.cache.take(now) {
            later(at, SsdEvent(EventKind::Cached(write.command)));
            if let Some((at, leaving)) = evicted {
                let slot = self.evicted.put(leaving);
                later(at, SsdEvent(EventKind::Evicted(slot)));
            }
            cold.into_iter().for_each(|leaving| self.program(now, leaving, later));
        }
    }

    /// Programs a page that leaves the cache.
    fn program(
        &mut self,
        now: Picoseconds,
        leaving: Leaving,
        later: &mut impl FnMut(Picoseconds, SsdEvent),
    ) {
        let Leaving { page, class, sectors } = leaving;
        let sectors = sectors.count_ones();
        let owner = OperationOwner::Cache { page, sectors };
        let access = PageAccess { page, bytes: sectors * SECTOR, class, owner };
        self.media
            .write(now, access, &mut |at, event| later(at, SsdEvent(EventKind::Flash(event))));
    }

    /// A page of a command is done; after the last one the host gets the completion.
    fn page_done(
        &mut self,
        now: Picoseconds,
        slot: u32,
        later: &mut impl FnMut(Picoseconds, SsdEvent),
    ) {
        let Active { command: DriveCommand { direction, bytes, .. }, left, .. } =
            self.active.at(slot);
        *left -= 1;
        if *left == 0 {
            let data = (*direction == Direction::Read).then_some(*bytes);
            later(self.link.complete(now, data), SsdEvent(EventKind::Complete(slot)));
        }
    }
}

#[cfg(test)]
#[path = "ssd_tests.rs"]
mod tests;
