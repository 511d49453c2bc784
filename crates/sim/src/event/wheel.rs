//! Events in a hierarchical timing wheel that skips empty time.
//!
//! Write a time as eleven digits of base 64. An event waits on the *level* of the highest digit in
//! which its time differs from now, in the *slot* of that digit. So everything on a level lies
//! before everything on the levels above it, slots of a level are in the order of time, and on
//! level 0 a slot is one single picosecond.
//!
//! To pop, take the first occupied slot of the lowest occupied level (two bit scans). If it is on
//! level 0, its first event is due. Otherwise now moves to the earliest event of the slot, and the
//! slot's events, which now agree with it in one more digit at least, are put on their new, lower
//! levels. For instance, at 0 with events at 70, 75 and 5000: 70 and 75 wait on level 1 in slot 1,
//! 5000 on level 2 in slot 1. The first pop moves now to 70, and finds 70 and 75 on level 0 in
//! slots 6 and 11. An event moves down at most ten times, whatever the distances; two or three
//! times in practice. A slot with one event is popped at once, without moving it.
//!
//! On the lower levels a slot is a list of links, which costs nothing to move and nothing to empty.
//! On the upper ones, where what is some nanoseconds ahead waits, its events lie one after the
//! other: a processor fetches what comes next before it is asked for. With links there, too, a
//! network of 1,024 hosts, in which 75,000 events wait, spent half its time waiting for memory. A
//! slot that becomes empty hands its memory to the next one of its level that does not.
//!
//! When a slot leaves the upper levels, all that is due in its 4,096 ps is known, and if that is
//! much it is *shown* ([`EventQueue::pop_glancing`]): a caller that then prefetches the data of all
//! these events waits for memory once, and not once for each event.
//!
//! Order among equals costs nothing: slots are appended to at the end. An event reaches a
//! slot from above only at the moment at which now enters the slot's range; before that moment
//! nothing can be pushed into it directly, and whatever is pushed afterwards has a later sequence
//! number.

use core::{array, mem};

use super::EventQueue;
use crate::time::Picoseconds;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;
/// Levels whose slots are lists of links. All that waits there is due within 64^2 ps: with 1,024
/// hosts, some 200 events, which stay in a core's first cache. Measured: with none small networks
/// were slower by two fifths; with three, where 14,000 events may be links, a large one by a third
/// and small ones as fast, within what runs differ by; with all the largest took twice as long.
const NEAR: usize = 2;
/// Events of the first slot of the upper levels that are shown before they are due: as many as
/// touch more than a core's cache holds until they come again. By hand.
const MANY: usize = 16;
const NONE: u32 = u32::MAX;

/// Events in a hierarchical timing wheel: O(1) amortised per event.
#[derive(Debug)]
pub struct Wheel<E> {
    now: u64,
    len: usize,
    /// One bit for each slot that holds something.
    occupied: [u64; LEVELS],
    near: Box<[[List; SLOTS]; NEAR]>,
    nodes: Vec<EventNode<E>>,
    /// The first of a list of nodes that are not in use.
    free: u32,
    far: Box<[[Row<E>; SLOTS]; LEVELS - NEAR]>,
    /// Memory of slots that are empty, by level: those of lower ones need less.
    spare: [Vec<Row<E>>; LEVELS - NEAR],
}

/// Events of a slot of the upper levels, with their times.
type Row<E> = Vec<(u64, E)>;

/// A list of nodes. Of no meaning while the slot's bit is not set.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct EventNode<E> {
    at: u64,
    next: u32,
    event: Option<E>,
}

impl<E> Default for Wheel<E> {
    fn default() -> Self {
        Self {
            now: 0,
            len: 0,
            occupied: [0; LEVELS],
            near: Box::new([[List { first: NONE, last: NONE }; SLOTS]; NEAR]),
            nodes: Vec::new(),
            free: NONE,
            far: Box::new(array::from_fn(|_| array::from_fn(|_| Vec::new()))),
            spare: array::from_fn(|_| Vec::new()),
        }
    }
}

impl<E> EventQueue<E> for Wheel<E> {
    #[inline]
    fn push(&mut self, at: Picoseconds, event: E) {
        let now = Picoseconds(self.now);
        assert!(at >= now, "an event at {at}, in the past of {now}");
        self.append(at.0, event);
        self.len += 1;
    }

    #[inline]
    fn pop_glancing(&mut self, glance: impl FnMut(&E)) -> Option<(Picoseconds, E)> {
        let mut level = self.occupied.iter().position(|slots| *slots != 0)?;
        let mut slot = self.occupied[level].trailing_zeros() as usize;
        if self.is_crowded(level, slot) {
            self.lower(level, slot, glance);
            // The earliest of them agrees with now in every digit.
            (level, slot) = (0, self.now as usize % SLOTS);
        }
        let (at, event) = match level {
            ..NEAR => self.unlink(level, slot)?,
            _ => {
                let mut list = self.take_far(level, slot);
                let only = list.pop()?;
                self.spare[level - NEAR].push(list);
                only
            }
        };
        self.now = at;
        self.len -= 1;
        Some((Picoseconds(at), event))
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl<E> Wheel<E> {
    /// The level on which a time waits, and its slot there.
    #[inline]
    fn slot_of(&self, at: u64) -> (usize, usize) {
        // The highest digit that differs; 0 if none does.
        let level = ((at ^ self.now) | 1).ilog2() / DIGIT_BITS;
        (level as usize, (at >> (level * DIGIT_BITS)) as usize % SLOTS)
    }

    /// Puts an event at the end of the slot where its time belongs.
    #[inline]
    fn append(&mut self, at: u64, event: E) {
        let (level, slot) = self.slot_of(at);
        if level < NEAR {
            let node = self.node(EventNode { at, next: NONE, event: Some(event) });
            return self.link(level, slot, node);
        }
        let bit = 1 << slot;
        let list = &mut self.far[level - NEAR][slot];
        if self.occupied[level] & bit == 0 {
            self.occupied[level] |= bit;
            *list = self.spare[level - NEAR].pop().unwrap_or_default();
        }
        list.push((at, event));
    }

    /// A place for a node.
    #[inline]
    fn node(&mut self, node: EventNode<E>) -> u32 {
        let index = self.free;
        if index == NONE {
            assert!(self.nodes.len() < NONE as usize, "more events than numbers for them");
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = node;
        index
    }

    /// Puts a node at the end of a list.
    #[inline]
    fn link(&mut self, level: usize, slot: usize, node: u32) {
        let (list, bit) = (&mut self.near[level][slot], 1 << slot);
        if self.occupied[level] & bit == 0 {
            self.occupied[level] |= bit;
            list.first = node;
        } else {
            self.nodes[list.last as usize].next = node;
        }
        list.last = node;
    }

    /// Takes the first event of a list.
    #[inline]
    fn unlink(&mut self, level: usize, slot: usize) -> Option<(u64, E)> {
        let list = &mut self.near[level][slot];
        let index = list.first;
        let node = &mut self.nodes[index as usize];
        if index == list.last {
            self.occupied[level] &= !(1 << slot);
        } else {
            list.first = node.next;
        }
        (node.next, self.free) = (self.free, index);
        node.event.take().map(|event| (node.at, event))
    }

    /// Whether a slot that holds something has to be looked through for its first event.
    #[inline]
    fn is_crowded(&self, level: usize, slot: usize) -> bool {
        match level {
            0 => false,
            1..NEAR => self.near[level][slot].first != self.near[level][slot].last,
            _ => self.far[level - NEAR][slot].len() > 1,
        }
    }

    /// Takes all of a slot of the upper levels.
    fn take_far(&mut self, level: usize, slot: usize) -> Row<E> {
        self.occupied[level] &= !(1 << slot);
        mem::take(&mut self.far[level - NEAR][slot])
    }

    /// Moves now to the earliest event of a slot, and the slot's events to where they belong then.
    fn lower(&mut self, level: usize, slot: usize, mut glance: impl FnMut(&E)) {
        if level >= NEAR {
            let mut list = self.take_far(level, slot);
            self.now = list.iter().map(|(at, _)| *at).min().unwrap_or(self.now);
            if level == NEAR && list.len() >= MANY {
                list.iter().for_each(|(_, event)| glance(event));
            }
            list.drain(..).for_each(|(at, event)| self.append(at, event));
            return self.spare[level - NEAR].push(list);
        }
        let List { first, last } = self.near[level][slot];
        self.occupied[level] &= !(1 << slot);
        let (mut earliest, mut index) = (u64::MAX, first);
        loop {
            let node = &self.nodes[index as usize];
            earliest = earliest.min(node.at);
            if index == last {
                break;
            }
            index = node.next;
        }
        self.now = earliest;
        index = first;
        loop {
            let EventNode { at, next, .. } = self.nodes[index as usize];
            let (level, slot) = self.slot_of(at);
            self.link(level, slot, index);
            if index == last {
                break;
            }
            index = next;
        }
    }
}
