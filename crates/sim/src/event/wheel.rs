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
//! Order among equals costs nothing: slots are lists, appended to at the end. An event reaches a
//! slot from above only at the moment at which now enters the slot's range; before that moment
//! nothing can be pushed into it directly, and whatever is pushed afterwards has a later sequence
//! number.

use super::Queue;
use crate::time::Picoseconds;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = u64::BITS.div_ceil(DIGIT_BITS) as usize;
const NONE: u32 = u32::MAX;

/// Events in a hierarchical timing wheel: O(1) amortised per event.
#[derive(Debug)]
pub struct Wheel<E> {
    now: u64,
    /// One bit for each slot that holds something.
    occupied: [u64; LEVELS],
    slots: Box<[[List; SLOTS]; LEVELS]>,
    nodes: Vec<Node<E>>,
    /// The first of a list of nodes that are not in use.
    free: u32,
    len: usize,
}

/// A list of nodes. Of no meaning while the slot's bit is not set.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node<E> {
    at: u64,
    next: u32,
    event: Option<E>,
}

impl<E> Default for Wheel<E> {
    fn default() -> Self {
        Self {
            now: 0,
            occupied: [0; LEVELS],
            slots: Box::new([[List { first: NONE, last: NONE }; SLOTS]; LEVELS]),
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }
}

impl<E> Queue<E> for Wheel<E> {
    fn push(&mut self, at: Picoseconds, event: E) {
        let now = Picoseconds(self.now);
        assert!(at >= now, "an event at {at}, in the past of {now}");
        let node = Node { at: at.0, next: NONE, event: Some(event) };
        let index = self.free;
        if index == NONE {
            assert!(self.nodes.len() < NONE as usize, "more events than numbers for them");
            self.nodes.push(node);
            self.append(self.nodes.len() as u32 - 1);
        } else {
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            self.append(index);
        }
        self.len += 1;
    }

    fn pop(&mut self) -> Option<(Picoseconds, E)> {
        let mut level = self.occupied.iter().position(|slots| *slots != 0)?;
        let mut slot = self.occupied[level].trailing_zeros() as usize;
        let mut list = self.slots[level][slot];
        if level > 0 && list.first != list.last {
            self.lower(level, slot);
            // The earliest of them agrees with now in every digit.
            (level, slot) = (0, self.now as usize % SLOTS);
            list = self.slots[level][slot];
        }
        let index = list.first;
        let node = &mut self.nodes[index as usize];
        if index == list.last {
            self.occupied[level] &= !(1 << slot);
        } else {
            self.slots[level][slot].first = node.next;
        }
        (node.next, self.free) = (self.free, index);
        self.now = node.at;
        self.len -= 1;
        node.event.take().map(|event| (Picoseconds(self.now), event))
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl<E> Wheel<E> {
    /// Puts a node at the end of the list where its time belongs.
    fn append(&mut self, index: u32) {
        let at = self.nodes[index as usize].at;
        // The highest digit that differs; 0 if none does.
        let level = ((at ^ self.now) | 1).ilog2() / DIGIT_BITS;
        let slot = (at >> (level * DIGIT_BITS)) as usize % SLOTS;
        let (level, bit) = (level as usize, 1 << slot);
        let list = &mut self.slots[level][slot];
        if self.occupied[level] & bit == 0 {
            self.occupied[level] |= bit;
            list.first = index;
        } else {
            self.nodes[list.last as usize].next = index;
        }
        list.last = index;
    }

    /// Moves now to the earliest event of a slot, and the slot's events to where they belong then.
    fn lower(&mut self, level: usize, slot: usize) {
        let List { first, last } = self.slots[level][slot];
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
            let next = self.nodes[index as usize].next;
            self.append(index);
            if index == last {
                break;
            }
            index = next;
        }
    }
}
