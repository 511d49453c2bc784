//! Event queue of a simulation: in the order of time, and of insertion among equals.
//!
//! **Problem.** A simulation is one loop: take the earliest event, let it happen, note the events
//! that follow from it. The order must be total and must not depend on how the queue is built, or
//! two runs of one seed would differ.
//!
//! **Model.** Each event is pushed for a point that does not lie before the last event taken, and
//! gets the next sequence number. Events leave in the order of (time, sequence). An event is a
//! plain value of the world's enum, not a closure: it can be compared, printed and copied.
//!
//! **Mechanism.** Two queues keep this order, which a property test checks: [`Heap`], a binary
//! heap, O(log n) per event and simple enough to be the oracle; and [`Wheel`], a hierarchical
//! timing wheel with O(1) amortised. [`Events`] is the one that worlds use: the wheel, because it
//! is never slower here (`benches/events.rs` compares them on the spot).

mod heap;
mod wheel;

pub use heap::Heap;
pub use wheel::Wheel;

use crate::time::Picoseconds;

/// The queue that worlds use.
pub type Events<E> = Wheel<E>;

/// Events in the order of (time, insertion).
pub trait EventQueue<E> {
    /// Adds an event.
    ///
    /// # Panics
    /// If `at` lies before the time of the event that was taken last: what is past cannot change.
    fn push(&mut self, at: Picoseconds, event: E);

    /// Takes the earliest event; of those at the same time, the one that was pushed first.
    fn pop(&mut self) -> Option<(Picoseconds, E)> {
        self.pop_glancing(|_| ())
    }

    /// The same, and shows events that are due soon, where that helps: where there are many, each
    /// at most once. A caller that knows which memory they will touch can fetch it.
    fn pop_glancing(&mut self, glance: impl FnMut(&E)) -> Option<(Picoseconds, E)>;

    /// How many events wait.
    fn len(&self) -> usize;

    /// Whether nothing will happen any more.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pushes and pops as given, each push at a distance from the last pop.
    fn drive(queue: &mut impl EventQueue<u32>, acts: &[Option<u64>]) -> Vec<(Picoseconds, u32)> {
        let (mut now, mut number, mut out) = (Picoseconds::ZERO, 0, Vec::new());
        for act in acts {
            match act {
                Some(distance) => {
                    queue.push(now.after(Picoseconds(*distance)), number);
                    number += 1;
                }
                None => {
                    if let Some((at, event)) = queue.pop() {
                        now = at;
                        out.push((at, event));
                    }
                }
            }
        }
        out.extend(std::iter::from_fn(|| queue.pop()));
        assert!(queue.is_empty());
        out
    }

    fn act() -> impl Strategy<Value = Option<u64>> {
        let distance = prop_oneof![
            3 => 0u64..4,
            3 => 0u64..5_000,
            2 => (0u32..63, 0u64..1_000).prop_map(|(bit, more)| (1u64 << bit) + more),
            1 => Just(u64::MAX),
        ];
        prop_oneof![3 => distance.prop_map(Some), 2 => Just(None)]
    }

    proptest! {
        /// The oracle is a stable sort of everything that waits, before each pop.
        #[test]
        fn both_keep_the_order(acts in prop::collection::vec(act(), 0..400)) {
            #[derive(Default)]
            struct Sorted(Vec<(Picoseconds, u32)>);
            impl EventQueue<u32> for Sorted {
                fn push(&mut self, at: Picoseconds, event: u32) {
                    self.0.push((at, event));
                }
                fn pop_glancing(&mut self, _: impl FnMut(&u32)) -> Option<(Picoseconds, u32)> {
                    self.0.sort_by_key(|(at, _)| *at);
                    (!self.0.is_empty()).then(|| self.0.remove(0))
                }
                fn len(&self) -> usize {
                    self.0.len()
                }
            }
            let sorted = drive(&mut Sorted::default(), &acts);
            prop_assert_eq!(&drive(&mut Heap::default(), &acts), &sorted);
            prop_assert_eq!(&drive(&mut Wheel::default(), &acts), &sorted);
        }
    }

    /// All at once, before the first of them happens; the order is what it would be without.
    #[test]
    fn many_that_are_due_soon_are_shown() {
        let (mut wheel, mut shown, mut out) = (Wheel::default(), Vec::new(), Vec::new());
        // 8,192 to 12,288 ps is one slot.
        (0..100).rev().for_each(|number| wheel.push(Picoseconds(10_000 + number * 7), number));
        wheel.push(Picoseconds(20_000), 100);
        while let Some((_, event)) = wheel.pop_glancing(|event| shown.push(*event)) {
            assert_eq!(shown.len(), 100);
            out.push(event);
        }
        assert_eq!(out, (0..101).collect::<Vec<_>>());
        assert!(shown.iter().rev().copied().eq(0..100));
    }

    #[test]
    #[should_panic(expected = "the past")]
    fn the_heap_refuses_the_past() {
        drive(&mut Heap::default(), &[Some(5), None]);
        let mut heap = Heap::default();
        heap.push(Picoseconds(5), 0);
        heap.pop();
        heap.push(Picoseconds(4), 1);
    }

    #[test]
    #[should_panic(expected = "the past")]
    fn the_wheel_refuses_the_past() {
        let mut wheel = Wheel::default();
        wheel.push(Picoseconds(5), 0);
        wheel.pop();
        wheel.push(Picoseconds(4), 1);
    }
}
