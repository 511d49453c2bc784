//! Events in a binary heap: the simple queue, with which tests compare the timing wheel.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

use super::EventQueue;
use crate::time::Picoseconds;

/// Events in a binary heap: O(log n) per event.
#[derive(Debug)]
pub struct Heap<E> {
    waiting: BinaryHeap<ScheduledEvent<E>>,
    pushed: u64,
    now: Picoseconds,
}

#[derive(Debug)]
struct ScheduledEvent<E> {
    at: Picoseconds,
    sequence: u64,
    event: E,
}

impl<E> Default for Heap<E> {
    fn default() -> Self {
        Self { waiting: BinaryHeap::new(), pushed: 0, now: Picoseconds::ZERO }
    }
}

impl<E> EventQueue<E> for Heap<E> {
    fn push(&mut self, at: Picoseconds, event: E) {
        assert!(at >= self.now, "an event at {at}, in the past of {}", self.now);
        self.waiting.push(ScheduledEvent { at, sequence: self.pushed, event });
        self.pushed += 1;
    }

    fn pop_glancing(&mut self, _: impl FnMut(&E)) -> Option<(Picoseconds, E)> {
        let entry = self.waiting.pop()?;
        self.now = entry.at;
        Some((entry.at, entry.event))
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

// The earliest is the greatest, because a `BinaryHeap` gives out the greatest first.
impl<E> Ord for ScheduledEvent<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for ScheduledEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for ScheduledEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<E> Eq for ScheduledEvent<E> {}
