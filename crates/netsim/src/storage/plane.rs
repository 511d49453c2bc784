//! One plane of flash: the location of its pages, and the next block for garbage collection.
//!
//! # Problem
//! A page of flash is programmed once and erased only with its whole block. So a page that is
//! overwritten goes elsewhere, the old page becomes garbage, and blocks must be won back: their
//! valid pages are moved, then they are erased. How many pages move for each one that the host
//! writes (*write amplification*) is what the mapping and the choice of victims decide.
//!
//! # Model
//! Logical pages are dealt to planes for good (page *n* of the drive to plane *n* mod planes), so a
//! plane is a small drive of its own: its logical pages, fewer than its physical ones, in blocks.
//! The host's pages go to one open block and moved ones to another. Erased blocks wait in line and
//! are opened in that order, so all are used alike.
//!
//! # Mechanism
//! Two tables: where a logical page lies, and which logical page a physical one holds; a block
//! counts its valid pages. [`Plane::allocate`] takes the next page of an open block, points the
//! logical page at it, and makes the old page garbage, all in one step, so that the tables are
//! right at every moment. When the chip has done it, [`Plane::programmed`] notes it; a block with
//! pages that are still on their way is no victim.
//!
//! The victim is the full block with the fewest valid pages: of all (greedy), of log2(blocks)
//! random ones (as MQSim has it; Li, Lee and Lui, SIGMETRICS 2013), or any (random). For example
//! blocks of 4 pages, valid *A* 3, *B* 1, *C* 2: greedy moves one page, erases B, and has three
//! pages for the host. A sample without any garbage falls back to greedy.
//!
//! # What it promises
//! With uniform random writes over a part ρ of the physical pages and victims chosen at random, a
//! victim's valid part is ρ and the amplification 1 / (1 - ρ). Greedy tends, for large blocks, to
//! the victim's part *u* with ρ = (1 - u) / -ln u (Desnoyers, SYSTOR 2012). `plane_tests.rs`
//! compares the code with both.
//!
//! # What is left out
//! Bad blocks, wear, and copying inside a chip. Tables take eight bytes for each page of flash, but
//! only where something was written ([`Table`]).

use std::collections::VecDeque;

use super::parameters::{Choice, Parameters};
use super::table::Table;
use tidegate_sim::rng::Stream;

/// The writers that allocate pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The host; the last free blocks are not for it.
    Host,
    /// Cleaning, which may take the last one.
    Cleaning,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// How many of its pages hold something.
    valid: u16,
    /// How many have been given away since it was erased.
    allocated: u16,
    /// How many of these are still to be programmed.
    pending: u16,
}

/// The pages and blocks of a plane.
#[derive(Debug)]
pub(super) struct Plane {
    /// Of a logical page, where it lies, and one; zero if it was never written.
    mapping: Table<u32>,
    /// Of a physical page, the logical one that it holds, and one; zero if it holds none.
    holds: Table<u32>,
    blocks: Vec<Block>,
    pages: u32,
    /// The first of the blocks that were never opened: they come before those that were erased.
    fresh: u32,
    /// Erased blocks, the next to open first.
    erased: VecDeque<u32>,
    /// The block that is being filled, of the host and of cleaning.
    open: [Option<u32>; 2],
    reserve: u32,
    threshold: u32,
    choice: Choice,
    random: Stream,
}

impl Plane {
    pub(super) fn new(parameters: &Parameters, random: Stream) -> Self {
        let geometry = &parameters.geometry;
        Self {
            mapping: Table::new(parameters.logical_pages() as usize),
            holds: Table::new((geometry.blocks * geometry.pages) as usize),
            blocks: vec![Block::default(); geometry.blocks as usize],
            pages: geometry.pages,
            fresh: 0,
            erased: VecDeque::new(),
            open: [None; 2],
            reserve: parameters.cleaning.reserve,
            threshold: parameters.threshold_blocks().max(parameters.cleaning.reserve + 1),
            choice: parameters.cleaning.choice,
            random,
        }
    }

    /// Whether a logical page was ever written.
    pub(super) fn is_written(&self, logical: u32) -> bool {
        self.mapping.get(logical) != 0
    }

    /// Has what a write of a logical page will touch brought near. Of no meaning otherwise.
    pub(super) fn prefetch(&self, logical: u32) -> u32 {
        self.mapping.get(logical)
    }

    /// Gives a logical page the next physical one; none if there is no room.
    pub(super) fn allocate(&mut self, logical: u32, writer: Writer) -> Option<u32> {
        let block = self.open[writer as usize].or_else(|| self.open(writer))?;
        let state = &mut self.blocks[block as usize];
        let physical = block * self.pages + u32::from(state.allocated);
        state.allocated += 1;
        state.pending += 1;
        state.valid += 1;
        self.open[writer as usize] = (u32::from(state.allocated) < self.pages).then_some(block);
        *self.holds.at(physical) = logical + 1;
        let before = std::mem::replace(self.mapping.at(logical), physical + 1);
        if let Some(garbage) = before.checked_sub(1) {
            *self.holds.at(garbage) = 0;
            self.blocks[(garbage / self.pages) as usize].valid -= 1;
        }
        Some(physical)
    }

    fn free(&self) -> usize {
        self.blocks.len() - self.fresh as usize + self.erased.len()
    }

    fn open(&mut self, writer: Writer) -> Option<u32> {
        let kept = if writer == Writer::Host { self.reserve as usize } else { 0 };
        if self.free() <= kept {
            return None;
        }
        if self.fresh < self.blocks.len() as u32 {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        self.erased.pop_front()
    }

    /// The chip has programmed a page.
    pub(super) fn programmed(&mut self, physical: u32) {
        self.blocks[(physical / self.pages) as usize].pending -= 1;
    }

    /// Whether fewer blocks are free than should be.
    pub(super) fn needs_cleaning(&self) -> bool {
        self.free() < self.threshold as usize
    }

    /// The block to clean, and how many pages it holds; none if no block can be.
    pub(super) fn victim(&mut self) -> Option<(u32, u32)> {
        let sampled = match self.choice {
            Choice::Greedy => None,
            Choice::Sampled => (0..self.blocks.len().ilog2())
                .fold(None, |best, _| self.draw().map_or(best, |block| self.better(best, block))),
            Choice::Random => self.draw(),
        };
        let all = 0..self.blocks.len() as u32;
        let best = sampled.or_else(|| all.fold(None, |best, block| self.better(best, block)));
        best.map(|block| (block, u32::from(self.blocks[block as usize].valid)))
    }

    /// A random block that could be cleaned, with garbage or without. Hardly any are open or free,
    /// so a few draws are enough.
    fn draw(&mut self) -> Option<u32> {
        for _ in 0..16 {
            let block = self.random.below(self.blocks.len() as u64) as u32;
            if self.is_full(block) {
                return Some(block);
            }
        }
        None
    }

    fn is_full(&self, block: u32) -> bool {
        let state = self.blocks[block as usize];
        u32::from(state.allocated) == self.pages && state.pending == 0
    }

    /// Of two blocks the one to clean. Not one without garbage: that would win nothing.
    fn better(&self, best: Option<u32>, other: u32) -> Option<u32> {
        let valid = |block: u32| self.blocks[block as usize].valid;
        let is_better = best.is_none_or(|best| valid(other) < valid(best));
        let can_win = self.is_full(other) && u32::from(valid(other)) < self.pages;
        if is_better && can_win { Some(other) } else { best }
    }

    pub(super) const fn physical_pages(&self, block: u32) -> core::ops::Range<u32> {
        block * self.pages..(block + 1) * self.pages
    }

    /// The logical page that a physical one holds, if it holds any.
    pub(super) fn held(&self, physical: u32) -> Option<u32> {
        self.holds.get(physical).checked_sub(1)
    }

    /// The block is erased, and free.
    ///
    /// # Panics
    /// If it holds something: what is erased is lost.
    pub(super) fn erased(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        assert!(state.valid == 0 && state.pending == 0, "block {block} still holds pages");
        *state = Block::default();
        self.erased.push_back(block);
    }

    /// Writes a page and cleans, all at once: how a drive gets old before a run. How many pages
    /// were moved.
    pub(super) fn age(&mut self, logical: u32) -> u32 {
        let mut moved = 0;
        while self.needs_cleaning()
            && let Some((block, valid)) = self.victim()
        {
            for physical in self.physical_pages(block) {
                let physical =
                    self.held(physical).and_then(|page| self.allocate(page, Writer::Cleaning));
                physical.into_iter().for_each(|physical| self.programmed(physical));
            }
            self.erased(block);
            moved += valid;
        }
        let physical = self.allocate(logical, Writer::Host).expect("cleaning has made room");
        self.programmed(physical);
        moved
    }

    /// Checks what must always hold.
    ///
    /// # Panics
    /// If it does not: both tables must be inverse to each other, and every block in one state.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut written = 0;
        for logical in 0..self.mapping.len() as u32 {
            let Some(physical) = self.mapping.get(logical).checked_sub(1) else { continue };
            assert_eq!(self.held(physical), Some(logical), "page {logical} is lost");
            written += 1;
        }
        let all = 0..self.blocks.len() as u32 * self.pages;
        assert_eq!(written, all.filter(|physical| self.held(*physical).is_some()).count());
        let mut free = vec![false; self.blocks.len()];
        free[self.fresh as usize..].fill(true);
        self.erased.iter().for_each(|block| free[*block as usize] = true);
        assert_eq!(free.iter().filter(|free| **free).count(), self.free(), "one is free twice");
        for (index, block) in self.blocks.iter().enumerate() {
            let valid =
                self.physical_pages(index as u32).filter(|physical| self.held(*physical).is_some());
            assert_eq!(valid.count(), usize::from(block.valid), "block {index}");
            assert!(block.valid <= block.allocated && block.pending <= block.allocated);
            assert!(!free[index] || block.allocated == 0, "block {index} is free and not erased");
            let is_open = self.open.contains(&Some(index as u32));
            let is_full = u32::from(block.allocated) == self.pages;
            assert!(free[index] || is_open || is_full, "block {index} is in no state");
        }
    }
}

#[cfg(test)]
#[path = "plane_tests.rs"]
mod tests;
