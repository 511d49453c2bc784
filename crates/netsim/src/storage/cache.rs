//! The write cache of a drive: memory that holds writes until they are programmed to flash.
//!
//! # Problem
//! A program takes 750 us, and a host should not wait for it. With memory in front, a write is
//! complete when it has been copied there. But memory is no cure for lack of speed: when more is
//! written than chips can program, writes must wait for room, or all that is gained is a queue.
//!
//! # Mechanism
//! After MQSim's cache. A write takes one access to the memory's only port (4 KiB: 26 ns to open a
//! row and 20.48 us at 200 MB/s). A page that was not seen lately is *cold* and is sent to the
//! chips at once; a page that was is *hot*, stays, and is sent when its slot is needed, the least
//! recently written first. The data on their way to the chips are bounded by `programming_limit`;
//! while that is used up, or all slots hold data on their way, no write is taken over, and those
//! that wait are chosen by arbitration, as before the chips. Reads of pages in the cache find them
//! there, at the same port.
//!
//! For example with room for four sectors, all pages cold: of writes of two sectors, the first two
//! are taken over at once and the third when one of them is programmed. Hence under load the
//! writes come as fast as the chips program, and what a write waits for is room.
//!
//! # What is left out
//! Read caching. Losing power.

use tidegate_algo::scheduling::wrr::{Arbiter, Level};
use tidegate_model::Class;
use tidegate_model::tag::CLASSES;

use super::link::SerialServer;
use super::parameters::{self, Parameters, SECTOR, duration};
use super::table::Table;
use tidegate_sim::time::Picoseconds;

/// A part of a page that a command writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) command: u32,
    pub(super) class: Class,
    /// Of the drive.
    pub(super) page: u32,
    /// One bit for each sector of the page.
    pub(super) sectors: u32,
}

/// A page that leaves the cache to be programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) page: u32,
    pub(super) class: Class,
    pub(super) sectors: u32,
}

/// The result of taking a write over.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) write: Write,
    /// When it is in the cache.
    pub(super) at: Picoseconds,
    /// The sectors to program at once: those of the write itself, if its page is cold.
    pub(super) cold: Option<Leaving>,
    /// The page that has to make room for it, and when that page was read.
    pub(super) evicted: Option<(Picoseconds, Leaving)>,
}

/// The state of a page of the drive, in four bytes. Where most pages are written once, first
/// touches of this memory dominate the time of a run. With this bit, the index of the page in the
/// cache; otherwise, when it was seen last, as [`CachedPage::seen`].
const IN_CACHE: u32 = 1 << 31;

/// A page in the cache.
#[derive(Clone, Copy, Debug, Default)]
struct CachedPage {
    page: u32,
    /// When it was seen last, as a number of the times between which the cache forgets; zero if it
    /// never was.
    seen: u32,
    class: Class,
    sectors: u32,
    /// Whether something in it is not on its way to the chips.
    is_dirty: bool,
    /// How often it is on its way to them.
    leaving: u32,
    /// The dirty pages that were written next, later and earlier.
    later: u32,
    earlier: u32,
}

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Cache {
    parameters: parameters::Cache,
    /// By page of the drive.
    entries: Table<u32>,
    held: Vec<CachedPage>,
    free: Vec<u32>,
    slot_count: usize,
    /// The dirty page that was written last, and the one that was first.
    latest: u32,
    earliest: u32,
    port: SerialServer,
    /// Sectors that may be on their way to the chips, and those that are.
    programming_limit: u32,
    used: u32,
    waiting: Arbiter<Write>,
}

impl Cache {
    pub(super) fn new(drive: &Parameters) -> Self {
        let parameters = drive.cache;
        let pages = drive.capacity().0 / drive.geometry.page.0;
        let mut waiting = Arbiter::new(drive.chip_queues.arbitration());
        CLASSES.iter().for_each(|(class, _)| {
            waiting.add(Level::Of(*class));
        });
        Self {
            parameters,
            entries: Table::new(pages as usize),
            held: Vec::new(),
            free: Vec::new(),
            slot_count: (parameters.capacity.0 / drive.geometry.page.0) as usize,
            latest: NONE,
            earliest: NONE,
            port: SerialServer::default(),
            programming_limit: (drive.programming_limit().0 / u64::from(SECTOR)) as u32,
            used: 0,
            waiting,
        }
    }

    /// Whether it takes writes.
    pub(super) const fn is_on(&self) -> bool {
        self.parameters.writes
    }

    /// Whether no write waits, and nothing is on its way to the chips.
    pub(super) const fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.used == 0
    }

    /// When so many bytes have passed the port.
    fn pass(&mut self, now: Picoseconds, bytes: u32) -> Picoseconds {
        let parameters::Cache { rate, row, open, close, .. } = self.parameters;
        let bytes = u64::from(bytes);
        let rows = bytes.div_ceil(row.0);
        let row_time = rows * open.0 + (rows - 1) * close.0;
        self.port.take(now, duration(bytes, rate).after(Picoseconds(row_time * 1_000)))
    }

    /// When a part of a page was read from the cache, if all of it is there.
    pub(super) fn read(
        &mut self,
        now: Picoseconds,
        page: u32,
        sectors: u32,
    ) -> Option<Picoseconds> {
        let slot = self.find(page)?;
        let is_there = self.held[slot as usize].sectors & sectors == sectors;
        is_there.then(|| self.pass(now, sectors.count_ones() * SECTOR))
    }

    /// A write waits to be taken over.
    pub(super) fn push(&mut self, write: Write) {
        self.waiting.push(write.class as usize, write);
    }

    /// Takes the next write over, if there is room.
    pub(super) fn take(&mut self, now: Picoseconds) -> Option<Taken> {
        let is_full = self.held.len() - self.free.len() >= self.slot_count;
        // Small parts of many pages use up slots before they reach the limit of sectors.
        if self.used >= self.programming_limit || is_full && self.earliest == NONE {
            return None;
        }
        let (_, write) = self.waiting.pop()?;
        let Write { page, class, sectors, .. } = write;
        let mut evicted = None;
        let slot = match self.find(page) {
            Some(slot) => slot,
            None => {
                let leaving = if is_full { self.evict() } else { None };
                evicted = leaving.map(|leaving| {
                    (self.pass(now, leaving.sectors.count_ones() * SECTOR), leaving)
                });
                self.insert(page)
            }
        };
        let period = now.0 / 1_000 / self.parameters.forget.0;
        let period = (period % u64::from(IN_CACHE - 1)) as u32 + 1;
        let held = &mut self.held[slot as usize];
        let seen = std::mem::replace(&mut held.seen, period);
        (held.sectors, held.class) = (held.sectors | sectors, class);
        let is_cold = seen != period;
        if is_cold {
            held.leaving += 1;
            self.used += sectors.count_ones();
        } else {
            self.renew(slot);
        }
        let at = self.pass(now, sectors.count_ones() * SECTOR);
        let cold = is_cold.then_some(Leaving { page, class, sectors });
        Some(Taken { write, at, cold, evicted })
    }

    pub(super) fn programmed(&mut self, page: u32, sectors: u32) {
        self.used -= sectors;
        let Some(slot) = self.find(page) else { return };
        let held = &mut self.held[slot as usize];
        // It may have been evicted meanwhile, and be here anew.
        held.leaving = held.leaving.saturating_sub(1);
        if held.leaving == 0 && !held.is_dirty {
            self.remove(slot);
        }
    }

    #[inline]
    fn find(&self, page: u32) -> Option<u32> {
        let entry = self.entries.get(page);
        (entry & IN_CACHE != 0).then_some(entry & !IN_CACHE)
    }

    /// Has what a write of a page will touch brought near, some time before it comes. Of no meaning
    /// otherwise.
    #[inline]
    pub(super) fn prefetch(&self, page: u32) -> u32 {
        self.entries.get(page)
    }

    fn insert(&mut self, page: u32) -> u32 {
        let held = CachedPage { page, seen: self.entries.get(page), ..CachedPage::default() };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.held.push(held);
                self.held.len() as u32 - 1
            }
        };
        self.held[slot as usize] = held;
        *self.entries.at(page) = slot | IN_CACHE;
        slot
    }

    fn remove(&mut self, slot: u32) {
        let CachedPage { page, seen, .. } = self.held[slot as usize];
        *self.entries.at(page) = seen;
        self.free.push(slot);
    }

    /// The dirty page that was written least recently leaves; none if none is dirty.
    fn evict(&mut self) -> Option<Leaving> {
        let slot = (self.earliest != NONE).then_some(self.earliest)?;
        self.unlink(slot);
        self.remove(slot);
        let CachedPage { page, class, sectors, .. } = self.held[slot as usize];
        self.used += sectors.count_ones();
        Some(Leaving { page, class, sectors })
    }

    /// A page is dirty, and the one that was written last.
    fn renew(&mut self, slot: u32) {
        if self.held[slot as usize].is_dirty {
            self.unlink(slot);
        }
        let earlier = std::mem::replace(&mut self.latest, slot);
        let held = &mut self.held[slot as usize];
        (held.is_dirty, held.earlier, held.later) = (true, earlier, NONE);
        match earlier {
            NONE => self.earliest = slot,
            earlier => self.held[earlier as usize].later = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let CachedPage { earlier, later, .. } = self.held[slot as usize];
        match earlier {
            NONE => self.earliest = later,
            earlier => self.held[earlier as usize].later = later,
        }
        match later {
            NONE => self.latest = earlier,
            later => self.held[later as usize].earlier = earlier,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use tidegate_model::Bytes;

    /// A cache of eight pages, of which four may be on their way to the chips.
    fn small() -> Cache {
        let mut drive = Parameters::default();
        drive.cache.capacity = Bytes(8 * 8_192);
        drive.cache.programming_limit = Some(Bytes(4 * 8_192));
        drive.check().unwrap();
        Cache::new(&drive)
    }

    /// Also when it has left meanwhile.
    #[test]
    fn what_was_seen_lately_stays_until_the_cache_forgets() {
        let (mut cache, forget) = (small(), Parameters::default().cache.forget);
        let mut leaves = |at: u64, programmed: u32| {
            cache.push(Write { command: 0, class: Class::Low, page: 3, sectors: 1 });
            let taken = cache.take(Picoseconds(at)).expect("there is room");
            (0..programmed).for_each(|_| cache.programmed(3, 1));
            taken.cold.is_some()
        };
        assert!(leaves(0, 1));
        assert!(!leaves(1_000_000, 0));
        assert!(leaves(forget.0 * 1_000, 0));
    }

    proptest! {
        /// Whatever is written, no more pages are held than there is room for, what is on its way
        /// is bounded, and when all of it was programmed every write has been taken over.
        #[test]
        fn it_holds_no_more_than_its_capacity(
            writes in prop::collection::vec((0u32..40, 0u32..16, 1u32..9, 0usize..3), 1..200),
        ) {
            let (mut cache, now) = (small(), Picoseconds::ZERO);
            let (mut leaving, mut taken) = (VecDeque::new(), 0);
            let mut take_over = |cache: &mut Cache, leaving: &mut VecDeque<Leaving>| {
                while let Some(Taken { cold, evicted, .. }) = cache.take(now) {
                    taken += 1;
                    leaving.extend(evicted.map(|(_, page)| page).into_iter().chain(cold));
                    let pages = cache.held.len() - cache.free.len();
                    assert!(pages <= cache.slot_count, "{pages} pages of {}", cache.slot_count);
                    // Below the room before this write, which adds two pages of 16 sectors at most.
                    assert!(cache.used < cache.programming_limit + 32, "{} sectors", cache.used);
                }
            };
            for (page, first, count, programmed) in &writes {
                let sectors = (((1u32 << count) - 1) << first) & 0xFFFF;
                cache.push(Write { command: 0, class: Class::Low, page: *page, sectors });
                take_over(&mut cache, &mut leaving);
                let done = leaving.len().min(*programmed);
                for Leaving { page, sectors, .. } in leaving.drain(..done) {
                    cache.programmed(page, sectors.count_ones());
                }
            }
            loop {
                take_over(&mut cache, &mut leaving);
                let Some(Leaving { page, sectors, .. }) = leaving.pop_front() else { break };
                cache.programmed(page, sectors.count_ones());
            }
            prop_assert_eq!(taken, writes.len());
            prop_assert!(cache.is_idle());
        }
    }
}
