//! Page placement and garbage collection of a drive: the plane and chip of each page, and the
//! cleaning of blocks.
//!
//! # Mechanism
//! Page *n* of the drive belongs to plane *n* mod planes, so that neighbours are on different
//! channels, then chips, dies and planes (the order "CWDP" of Jung and Kandemir, ICS 2012). A read
//! goes to the chip of its plane. A write gets its page at once ([`Plane::allocate`]) and then
//! waits for the chip. A write of a part of a page that was written before reads the page first:
//! half a page of 8 KiB costs 4 KiB out, and 8 KiB in. If there is no room, it waits for a block.
//!
//! Cleaning a plane: choose a victim, read what it holds, program each page elsewhere as soon as it
//! is read, and erase the block when all are. A page that the host overwrites in between is not
//! programmed again. One block of a plane at a time.

use std::collections::VecDeque;

use tidegate_model::{Class, Portion};

use super::flash::{ChipWork, Flash, FlashEvent, Operation, OperationOwner};
use super::parameters::Parameters;
use super::plane::{Plane, Writer};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

/// A page, or a part of one, to be read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageAccess {
    /// Of the drive.
    pub(super) page: u32,
    pub(super) bytes: u32,
    pub(super) class: Class,
    pub(super) owner: OperationOwner,
}

/// A plane and what is going on in it.
#[derive(Debug)]
struct PlaneState {
    plane: Plane,
    /// The block that is being cleaned, and how many of its pages are on their way.
    victim: Option<(u32, u32)>,
    /// Writes that wait for room.
    stalled: VecDeque<PageAccess>,
}

/// The planes and chips of a drive.
#[derive(Debug)]
pub(super) struct Media {
    plane_states: Vec<PlaneState>,
    flash: Flash,
    page_bytes: u32,
}

impl Media {
    /// Erased planes and idle chips; or old ones, by the parameters.
    pub(super) fn new(parameters: &Parameters, seed: u64, drive: u64) -> Self {
        let planes = parameters.geometry.planes();
        let plane_state = |index: u32| {
            let number = drive << 32 | u64::from(index);
            let mut plane = Plane::new(parameters, Stream::new(seed, "plane", number));
            let before = Stream::new(seed, "before", number);
            age(&mut plane, parameters, before);
            PlaneState { plane, victim: None, stalled: VecDeque::new() }
        };
        Self {
            plane_states: (0..planes).map(plane_state).collect(),
            flash: Flash::new(parameters),
            page_bytes: parameters.geometry.page.0 as u32,
        }
    }

    /// How often something was done.
    pub(super) const fn done(&self, work: ChipWork) -> u64 {
        self.flash.done(work)
    }

    /// Whether nothing is to be done.
    pub(super) fn is_idle(&self) -> bool {
        self.flash.len() == 0
            && self.plane_states.iter().all(|plane_state| plane_state.stalled.is_empty())
    }

    /// Where a page of the drive is: its plane, and its number there.
    fn locate(&self, page: u32) -> (u32, u32) {
        let planes = self.plane_states.len() as u32;
        (page % planes, page / planes)
    }

    /// Reads a part of a page.
    pub(super) fn read(
        &mut self,
        now: Picoseconds,
        access: PageAccess,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let (plane, page) = self.locate(access.page);
        let PageAccess { bytes, class, owner, .. } = access;
        let operation =
            Operation { work: ChipWork::Read, class, owner, plane, page, physical: 0, bytes };
        self.flash.push(now, operation, later);
    }

    /// Has what a write of a page will touch brought near. Of no meaning otherwise.
    pub(super) fn prefetch(&self, page: u32) -> u32 {
        let (plane, page) = self.locate(page);
        self.plane_states[plane as usize].plane.prefetch(page)
    }

    /// Writes a part of a page.
    pub(super) fn write(
        &mut self,
        now: Picoseconds,
        access: PageAccess,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let (plane, _) = self.locate(access.page);
        let is_first = self.plane_states[plane as usize].stalled.is_empty();
        if !is_first || !self.try_write(now, access, later) {
            self.plane_states[plane as usize].stalled.push_back(access);
            self.flash.hurry(plane, true);
        }
        self.clean(now, plane, later);
    }

    /// Writes if there is room.
    fn try_write(
        &mut self,
        now: Picoseconds,
        access: PageAccess,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) -> bool {
        let (plane, page) = self.locate(access.page);
        let PageAccess { bytes, class, owner, .. } = access;
        let state = &mut self.plane_states[plane as usize].plane;
        let is_update = bytes < self.page_bytes && state.is_written(page);
        let Some(physical) = state.allocate(page, Writer::Host) else { return false };
        let (work, bytes) = match is_update {
            true => (ChipWork::Update, self.page_bytes - bytes),
            false => (ChipWork::Program, bytes),
        };
        let operation = Operation { work, class, owner, plane, page, physical, bytes };
        self.flash.push(now, operation, later);
        true
    }

    /// Begins to clean a plane if it should and does not yet.
    fn clean(
        &mut self,
        now: Picoseconds,
        plane: u32,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let plane_state = &mut self.plane_states[plane as usize];
        if plane_state.victim.is_some() || !plane_state.plane.needs_cleaning() {
            return;
        }
        let Some((block, valid)) = plane_state.plane.victim() else { return };
        plane_state.victim = Some((block, valid));
        for physical in plane_state.plane.physical_pages(block) {
            if let Some(page) = plane_state.plane.held(physical) {
                let bytes = self.page_bytes;
                let operation = self::cleaning(ChipWork::MoveOut, plane, page, physical, bytes);
                self.flash.push(now, operation, later);
            }
        }
        if valid == 0 {
            self.flash.push(now, cleaning(ChipWork::Erase, plane, 0, block, 0), later);
        }
    }

    /// Handles an event of a channel or a chip. Returns the owner of the work that it finished for
    /// a command or the cache, if any.
    pub(super) fn on_event(
        &mut self,
        now: Picoseconds,
        event: FlashEvent,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) -> Option<OperationOwner> {
        let operation = self.flash.on_event(now, event, later)?;
        let Operation { work, plane, page, physical, owner, .. } = operation;
        let state = &mut self.plane_states[plane as usize].plane;
        match work {
            ChipWork::Read => return Some(owner),
            ChipWork::Update => {
                let bytes = self.page_bytes;
                let merged = Operation { work: ChipWork::Program, bytes, ..operation };
                self.flash.push(now, merged, later);
                return None;
            }
            ChipWork::Program => {
                state.programmed(physical);
                self.clean(now, plane, later);
                return Some(owner);
            }
            ChipWork::MoveOut => {
                // The host may have written it again while it was on its way.
                let is_current = state.held(physical) == Some(page);
                let moved = is_current.then(|| state.allocate(page, Writer::Cleaning));
                if let Some(physical) = moved {
                    let physical = physical.expect("cleaning has a block in reserve");
                    let bytes = self.page_bytes;
                    let operation = self::cleaning(ChipWork::MoveIn, plane, page, physical, bytes);
                    self.flash.push(now, operation, later);
                    return None;
                }
            }
            ChipWork::MoveIn => state.programmed(physical),
            ChipWork::Erase => {
                state.erased(physical);
                self.plane_states[plane as usize].victim = None;
                self.resume(now, plane, later);
                return None;
            }
        }
        self.moved(now, plane, later);
        None
    }

    /// A page of the victim needs no more; the last one leaves it to be erased.
    fn moved(
        &mut self,
        now: Picoseconds,
        plane: u32,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let Some((block, left)) = &mut self.plane_states[plane as usize].victim else { return };
        *left -= 1;
        if *left == 0 {
            let operation = cleaning(ChipWork::Erase, plane, 0, *block, 0);
            self.flash.push(now, operation, later);
        }
    }

    /// Writes what waited for room, as far as there is some.
    fn resume(
        &mut self,
        now: Picoseconds,
        plane: u32,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        while let Some(access) = self.plane_states[plane as usize].stalled.front().copied() {
            if !self.try_write(now, access, later) {
                break;
            }
            self.plane_states[plane as usize].stalled.pop_front();
        }
        // Other planes of the chip may still be without room.
        let chip = self.flash.chip(plane);
        let hurries = (0..self.plane_states.len() as u32)
            .filter(|other| self.flash.chip(*other) == chip)
            .any(|other| !self.plane_states[other as usize].stalled.is_empty());
        self.flash.hurry(plane, hurries);
        self.clean(now, plane, later);
    }

    /// Checks what must always hold.
    #[cfg(test)]
    pub(super) fn check(&self, now: Picoseconds) {
        self.flash.check(now);
        for plane_state in &self.plane_states {
            plane_state.plane.check();
            let is_stuck = !plane_state.stalled.is_empty() && plane_state.victim.is_none();
            assert!(!is_stuck || self.flash.len() > 0, "a write waits for nobody");
        }
    }
}

/// Something that cleaning does.
const fn cleaning(work: ChipWork, plane: u32, page: u32, physical: u32, bytes: u32) -> Operation {
    let (class, owner) = (Class::Low, OperationOwner::Cleaning);
    Operation { work, class, owner, plane, page, physical, bytes }
}

/// Fills a plane and overwrites what it holds at random, before the run.
fn age(plane: &mut Plane, parameters: &Parameters, mut random: Stream) {
    let Parameters { before, .. } = parameters;
    let pages = u64::from(parameters.logical_pages());
    let filled = pages * u64::from(before.filled.0) / u64::from(Portion::WHOLE.0);
    (0..filled as u32).for_each(|page| {
        plane.age(page);
    });
    for _ in 0..filled * u64::from(before.overwrites) {
        plane.age(random.below(filled) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::{Choice, Cleaning, Geometry};
    use super::*;
    use tidegate_sim::event::{EventQueue, Events};

    /// One chip with one plane of 24 blocks.
    fn media() -> Media {
        let geometry = Geometry {
            channels: 1,
            chips: 1,
            dies: 1,
            planes: 1,
            blocks: 24,
            ..Geometry::default()
        };
        let mut cleaning = Cleaning { spare: Portion(400_000), reserve: 2, ..Cleaning::default() };
        (cleaning.threshold, cleaning.choice) = (Portion(200_000), Choice::Greedy);
        let geometry = Geometry { pages: 8, ..geometry };
        let parameters = Parameters { geometry, cleaning, ..Parameters::default() };
        parameters.check().unwrap();
        Media::new(&parameters, 1, 0)
    }

    fn access(page: u32) -> PageAccess {
        PageAccess { page, bytes: 8_192, class: Class::High, owner: OperationOwner::Command(page) }
    }

    /// Runs all events. Returns the finished owners, in order, and the time of the last event.
    fn finish(
        media: &mut Media,
        events: &mut Events<FlashEvent>,
    ) -> (Vec<OperationOwner>, Picoseconds) {
        let (mut order, mut last) = (Vec::new(), Picoseconds::ZERO);
        while let Some((now, event)) = events.pop() {
            order.extend(media.on_event(now, event, &mut |at, event| events.push(at, event)));
            last = now;
        }
        (order, last)
    }

    #[test]
    fn reads_go_before_programs() {
        let (mut media, mut events) = (media(), Events::default());
        let mut later = |at, event| events.push(at, event);
        media.write(Picoseconds::ZERO, access(1), &mut later);
        media.write(Picoseconds::ZERO, access(2), &mut later);
        media.read(Picoseconds::ZERO, access(3), &mut later);
        assert_eq!(finish(&mut media, &mut events).0, [1, 3, 2].map(OperationOwner::Command));
    }

    /// A host's write to a page that cleaning moves wins over the move. All pages are written, then
    /// every other one again: the victim is the first block, and holds the odd ones of its eight.
    #[test]
    fn what_is_overwritten_is_not_moved() {
        let (mut media, mut events, mut now) = (media(), Events::default(), Picoseconds::ZERO);
        for page in (0..112).chain((0..112).step_by(2)) {
            media.write(now, access(page), &mut |at, event| events.push(at, event));
            if media.plane_states[0].victim.is_some() {
                break;
            }
            now = finish(&mut media, &mut events).1;
        }
        assert_eq!(media.plane_states[0].victim, Some((0, 4)));
        media.write(now, access(1), &mut |at, event| events.push(at, event));
        finish(&mut media, &mut events);
        assert_eq!(media.done(ChipWork::MoveOut) - media.done(ChipWork::MoveIn), 1);
        media.check(Picoseconds::MAX);
    }
}
