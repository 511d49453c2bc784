//! The queue in shared memory: whatever is in it, no method panics, and a queue that is intact
//! keeps its promises.

use tidegate_algo::scheduling::queue::{FLOWS, Order, QueueRequest, QueueState, state_words};

use super::tape::Tape;

/// Slots that are used; few, so that all are taken at times.
const SLOTS: usize = 16;

type Queue = QueueState<1>;

/// The first byte says whether the memory begins damaged; the rest are operations.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    if tape.flag() {
        let mut queue = damaged(&mut tape);
        while !tape.is_over() {
            poke(&mut queue, &mut tape);
        }
        (0..Queue::SLOTS).for_each(|slot| while queue.drop_request(slot) {});
        drain(&mut queue, &[QueueRequest::default(); SLOTS]);
    } else {
        let mut run = Run::default();
        while !tape.is_over() {
            run.step(&mut tape);
        }
        drain(&mut run.queue, &run.requests);
    }
}

/// A queue whose words are the tape's.
fn damaged(tape: &mut Tape<'_>) -> Queue {
    let bytes = tape.bytes(8 * state_words(1));
    let words = bytes.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    Queue::from_words(&words.collect::<Vec<_>>())
}

/// Calls that must be safe on any memory.
fn poke(queue: &mut Queue, tape: &mut Tape<'_>) {
    let slot = tape.below(Queue::SLOTS + 8);
    let request = QueueRequest { arrival: tape.number(), cost: tape.number(), flow: tape.byte() };
    match tape.below(9) {
        0 => _ = queue.arrive(slot),
        1 => _ = queue.dispatch(|_| request),
        2 => _ = queue.finish(slot),
        3 => _ = queue.withdraw(slot),
        4 => _ = queue.finish_having_used(slot, tape.number(), request),
        5 => _ = queue.pass_on(slot),
        6 => queue.configure(order(tape), tape.word(), &[tape.word(); FLOWS + 2]),
        7 => queue.joins(tape.byte()),
        _ => _ = (queue.has_headroom(tape.byte(), |_| request), queue.exceeds_depth()),
    }
}

fn order(tape: &mut Tape<'_>) -> Order {
    *tape.pick(&[Order::Arrival, Order::Fair, Order::Priority])
}

/// Every request that waits is served, and then the queue is empty.
fn drain(queue: &mut Queue, requests: &[QueueRequest; SLOTS]) {
    queue.configure(Order::Arrival, u32::MAX, &[]);
    let waiting = queue.waiting().count();
    let dispatched: Vec<usize> =
        std::iter::from_fn(|| queue.dispatch(|slot| requests[slot])).collect();
    assert_eq!(dispatched.len(), waiting as usize, "a request is forgotten");
    assert!(dispatched.iter().all(|slot| queue.finish(*slot)), "a permit that cannot end");
    (0..SLOTS).for_each(|slot| _ = queue.drop_request(slot));
    assert_eq!((queue.waiting().count(), queue.in_service().count()), (0, 0));
}

/// A queue and lists that say what must be in it.
#[derive(Default)]
struct Run {
    queue: Queue,
    requests: [QueueRequest; SLOTS],
    depth: u32,
    waiting: Vec<usize>,
    serving: Vec<usize>,
    overdue: Vec<usize>,
}

impl Run {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(8) {
            0..=2 => self.arrive(tape),
            3 | 4 => self.dispatch(),
            5 => self.leave(tape),
            6 => self.pass_on(tape),
            _ if tape.flag() => {
                let mut words = [0; state_words(1)];
                self.queue.to_words(&mut words);
                let read = Queue::from_words(&words);
                assert_eq!(read, self.queue, "the words say something else");
                self.queue = read;
            }
            _ => {
                self.depth = tape.word();
                self.queue.configure(order(tape), self.depth, &[tape.word(), tape.word()]);
            }
        }
        assert_eq!(self.queue.waiting().count() as usize, self.waiting.len());
        assert_eq!(self.queue.in_service().count() as usize, self.serving.len());
        assert_eq!(self.queue.overdue().count() as usize, self.overdue.len());
        assert!(self.serving.iter().all(|slot| self.queue.in_service().has(*slot)));
    }

    fn arrive(&mut self, tape: &mut Tape<'_>) {
        let slot = tape.below(SLOTS);
        let is_used =
            [&self.waiting, &self.serving, &self.overdue].iter().any(|it| it.contains(&slot));
        let arrival = self.queue.arrive(slot);
        assert_eq!(arrival.is_none(), is_used, "refused though free, or taken twice");
        if let Some(arrival) = arrival {
            let flow = tape.byte();
            self.requests[slot] = QueueRequest { arrival, cost: tape.number(), flow };
            self.queue.joins(flow);
            self.waiting.push(slot);
        }
    }

    fn dispatch(&mut self) {
        let has_headroom = self.serving.len() < self.depth.max(1) as usize;
        let next = self.queue.dispatch(|slot| self.requests[slot]);
        assert_eq!(next.is_some(), has_headroom && !self.waiting.is_empty());
        let Some(slot) = next else { return };
        let index = self.waiting.iter().position(|waiting| *waiting == slot);
        let index = index.expect("a request that waits is next");
        self.serving.push(self.waiting.remove(index));
    }

    fn leave(&mut self, tape: &mut Tape<'_>) {
        let queue = &mut self.queue;
        if tape.flag() && !self.serving.is_empty() {
            let slot = self.serving.remove(tape.below(self.serving.len()));
            assert!(!queue.withdraw(slot) && queue.finish(slot) && !queue.finish(slot));
        } else if tape.flag() && !self.overdue.is_empty() {
            let slot = self.overdue.remove(tape.below(self.overdue.len()));
            assert!(!queue.withdraw(slot) && queue.finish(slot) && !queue.finish(slot));
        } else if !self.waiting.is_empty() {
            let slot = self.waiting.remove(tape.below(self.waiting.len()));
            assert!(!queue.finish(slot) && queue.withdraw(slot) && !queue.withdraw(slot));
        }
    }

    fn pass_on(&mut self, tape: &mut Tape<'_>) {
        if !self.serving.is_empty() {
            let slot = self.serving.remove(tape.below(self.serving.len()));
            assert!(self.queue.pass_on(slot) && !self.queue.pass_on(slot));
            self.overdue.push(slot);
        }
    }
}

/// A healthy run with a bit of everything, and memory full of ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let ones = vec![0xff; 1 + 8 * state_words(1)];
    let damaged = [ones, vec![0, 0, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1]].concat();
    let healthy: Vec<u8> = (0..200u8).map(|at| at.wrapping_mul(37) >> (at % 3)).collect();
    vec![[vec![0], healthy].concat(), damaged, vec![0, 0, 1, 2, 0, 9, 3, 5, 1]]
}
