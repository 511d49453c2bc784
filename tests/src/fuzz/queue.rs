//! The queue in shared memory: whatever is in it, no method panics, and a queue that nobody has
//! damaged keeps its promises.

use tidegate_algo::queue::{FLOWS, Order, Queue, SlotId};

use super::tape::Tape;

/// Slots of the queue; few, so that it is full at times.
const SLOTS: usize = 16;

/// The first byte says whether the memory begins damaged; the rest are operations.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    if tape.flag() {
        let mut queue = damaged(&mut tape);
        while !tape.is_over() {
            poke(&mut queue, &mut tape);
        }
        queue.repair();
        drain(&mut queue);
    } else {
        let mut run = Run::default();
        while !tape.is_over() {
            run.step(&mut tape);
        }
        drain(&mut run.queue);
    }
}

/// A queue whose bytes are the tape's.
fn damaged(tape: &mut Tape<'_>) -> Queue<SLOTS> {
    let mut queue = Queue::<SLOTS>::new();
    let bytes = tape.bytes(size_of::<Queue<SLOTS>>());
    // SAFETY: the source has at most as many bytes as the queue, the two do not overlap, and a
    // queue is made of integers, for which every pattern of bits is a value.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut queue).cast(), bytes.len());
    }
    queue
}

/// Calls that must be safe on any memory. The ids are real ones of other queues.
fn poke(queue: &mut Queue<SLOTS>, tape: &mut Tape<'_>) {
    let stranger = |tape: &mut Tape<'_>| {
        let mut other = Queue::<{ SLOTS + 8 }>::new();
        let count = tape.below(SLOTS + 8);
        (0..=count).filter_map(|_| other.arrive(0, 1, 1)).last()
    };
    let id = stranger(tape);
    match (tape.below(8), id) {
        (0, _) => drop(queue.arrive(tape.byte(), tape.number(), tape.word())),
        (1, _) => drop(queue.dispatch()),
        (2, Some(id)) => drop(queue.finish(id)),
        (3, Some(id)) => drop(queue.withdraw(id)),
        (4, Some(id)) => drop(queue.is_in_service(id)),
        (5, _) => {
            let dead = tape.word();
            queue.abandon(|owner| owner == dead);
        }
        (6, _) => queue.configure(order(tape), tape.word(), &[tape.word(); FLOWS + 2]),
        _ => {
            let _ = (queue.waiting(), queue.in_service());
        }
    }
}

fn order(tape: &mut Tape<'_>) -> Order {
    *tape.pick(&[Order::Arrival, Order::Fair, Order::Priority])
}

/// Everybody who waits gets a turn, and then it is empty.
fn drain(queue: &mut Queue<SLOTS>) {
    queue.configure(Order::Arrival, u32::MAX, &[]);
    let waiting = queue.waiting();
    let dispatched: Vec<SlotId> = std::iter::from_fn(|| queue.dispatch()).collect();
    assert_eq!(dispatched.len(), waiting as usize, "somebody is forgotten");
    assert!(dispatched.iter().all(|id| queue.finish(*id)), "a turn that cannot end");
    queue.abandon(|_| true);
    assert_eq!((queue.waiting(), queue.in_service()), (0, 0));
}

/// A queue and a list that says what must be in it.
#[derive(Default)]
struct Run {
    queue: Queue<SLOTS>,
    depth: u32,
    waiting: Vec<(SlotId, u32)>,
    serving: Vec<(SlotId, u32)>,
}

impl Run {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(8) {
            0..=2 => self.arrive(tape),
            3 | 4 => self.dispatch(),
            5 => self.leave(tape),
            6 => {
                let dead = u32::from(tape.byte() % 3);
                let gone = self.queue.abandon(|owner| owner == dead);
                let before = self.waiting.len() + self.serving.len();
                self.waiting.retain(|(_, owner)| *owner != dead);
                self.serving.retain(|(_, owner)| *owner != dead);
                assert_eq!(gone, before - self.waiting.len() - self.serving.len());
            }
            _ if tape.flag() => self.queue.repair(),
            _ => {
                self.depth = tape.word();
                self.queue.configure(order(tape), self.depth, &[tape.word(), tape.word()]);
            }
        }
        assert_eq!(self.queue.waiting() as usize, self.waiting.len());
        assert_eq!(self.queue.in_service() as usize, self.serving.len());
        assert!(self.serving.iter().all(|(id, _)| self.queue.is_in_service(*id)));
    }

    fn arrive(&mut self, tape: &mut Tape<'_>) {
        let owner = u32::from(tape.byte() % 3);
        let id = self.queue.arrive(tape.byte(), tape.number(), owner);
        let is_full = self.waiting.len() + self.serving.len() == SLOTS;
        assert_eq!(id.is_none(), is_full, "refused with room, or taken without");
        self.waiting.extend(id.map(|id| (id, owner)));
    }

    fn dispatch(&mut self) {
        let has_room = self.serving.len() < self.depth.max(1) as usize;
        let next = self.queue.dispatch();
        assert_eq!(next.is_some(), has_room && !self.waiting.is_empty());
        let Some(id) = next else { return };
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == id);
        let place = place.expect("somebody who waits is next");
        self.serving.push(self.waiting.remove(place));
    }

    fn leave(&mut self, tape: &mut Tape<'_>) {
        if tape.flag() && !self.serving.is_empty() {
            let (id, _) = self.serving.remove(tape.below(self.serving.len()));
            assert!(!self.queue.withdraw(id) && self.queue.finish(id) && !self.queue.finish(id));
        } else if !self.waiting.is_empty() {
            let (id, _) = self.waiting.remove(tape.below(self.waiting.len()));
            assert!(!self.queue.finish(id) && self.queue.withdraw(id) && !self.queue.withdraw(id));
        }
    }
}

/// A healthy run with a bit of everything, and memory full of ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let ones = vec![0xff; 1 + size_of::<Queue<SLOTS>>()];
    let damaged = [ones, vec![0, 0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1]].concat();
    let healthy: Vec<u8> = (0..200u8).map(|at| at.wrapping_mul(37) >> (at % 3)).collect();
    vec![[vec![0], healthy].concat(), damaged, vec![0, 0, 1, 2, 0, 9, 3, 5, 1]]
}
