//! Properties of a queue gate: at most `depth` requests in service, in order; a permit comes back
//! when its thread returns it, jumps, ends or is stopped; and every wait is counted.
#![cfg(feature = "agent")]
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use tidegate_algo::scheduling::queue::Order;

use super::*;
use crate::record::tests::eventually;
use crate::segment::Segment;

/// Bytes of a request.
const BYTES: u64 = 4096;

/// A stage with a queue gate, the second of its queues.
struct Gate(Segment);

const QUEUE: usize = 1;

impl Gate {
    fn new(depth: u32) -> Self {
        let segment = Segment::private().unwrap();
        segment.gates[0].queue.store(QUEUE as u32, Ordering::Relaxed);
        segment.gates[0].kind.store(GateKind::Queue as u32, Ordering::Relaxed);
        configure(&segment, QUEUE, |queue| queue.configure(Order::Fair, depth, &[1, 3]));
        Self(segment)
    }

    /// Acquires for a request in a flow, made at a depth of the stack.
    fn acquire(&self, flow: u8, depth: usize) -> (Span, Option<Permit>) {
        let cost = Cost { bytes: BYTES, operations: 1 };
        let flows = Flows(u64::from(flow) << (4 * QUEUE));
        acquire(&self.0, &self.0.gates[0], (cost, flows), depth)
    }

    fn line(&self) -> Line<'_> {
        Line::of(&self.0, QUEUE).unwrap()
    }

    /// How many requests wait, are in service, and are overdue.
    fn counts(&self) -> [u32; 3] {
        let state = self.line().snapshot();
        [state.waiting(), state.in_service(), state.overdue()].map(|set| set.count())
    }

    fn taken_slots(&self) -> usize {
        let generation =
            self.line().cell.slots.iter().map(|slot| slot.claim.load(Ordering::Relaxed));
        generation.filter(|claim| *claim as u32 != 0).count()
    }

    fn passed_over_depth(&self) -> u64 {
        self.0.bypasses[Bypass::OverDepth as usize].operations()
    }
}

#[test]
fn a_permit_is_a_word_and_no_permit_is_zero() {
    assert_eq!(Permit::from_word(0), None);
    for (queue, slot, generation) in [(1, 0, 0), (1, 511, 7), (255, 0xffff, u32::MAX), (2, 256, 1)]
    {
        let permit = Permit { queue: NonZeroU8::new(queue).unwrap(), slot, generation };
        assert_eq!(Permit::from_word(permit.to_word()), Some(permit));
        assert_eq!(permit.queue(), usize::from(queue) - 1);
        let word = u64::from(queue) + (u64::from(slot) << 8) + (u64::from(generation) << 32);
        assert_eq!(permit.to_word(), word);
    }
    assert_eq!(claim_word(3, 5), (3 << 32) + 5);
}

#[test]
fn a_request_that_need_not_wait_has_a_permit_at_once_and_leaves_nothing() {
    let gate = Gate::new(2);
    let (waited, first) = gate.acquire(1, 0);
    let second = gate.acquire(2, 0).1.unwrap();
    let first = first.unwrap();
    assert_eq!((waited, gate.counts()), (Span::ZERO, [0, 2, 0]));
    assert_ne!(first.slot, second.slot);
    let owner = record::own(&gate.0).unwrap();
    let request = gate.line().request(first.slot.into());
    assert_eq!((request.cost, request.flow, request.arrival), (BYTES, 1, 0));
    assert_eq!(gate.line().request(second.slot.into()).arrival, 1);
    assert!(gate.line().is_owned(first, owner) && !gate.line().is_owned(first, owner + 1));
    assert_eq!(record::record(&gate.0, owner).unwrap().noted().count(), 2);
    release(&gate.0, first, Some(BYTES));
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 1, 0], 1));
    // It was given back once; whoever has the slot now keeps it.
    let third = gate.acquire(1, 0).1.unwrap();
    assert_eq!(third.slot, first.slot, "a thread finds its last slot again");
    release(&gate.0, first, Some(BYTES));
    assert_eq!(gate.counts(), [0, 2, 0]);
    for permit in [second, third] {
        release(&gate.0, permit, None);
    }
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
    assert_eq!(record::record(&gate.0, owner).unwrap().noted().count(), 0);
    assert_eq!(gate.0.gates[0].delayed.load(Ordering::Relaxed), 0, "nobody waited");
    assert_eq!(waiting(&gate.0, QUEUE) + waiting(&gate.0, usize::MAX), 0);
}

#[test]
fn a_request_without_bytes_is_charged_like_a_small_one() {
    assert_eq!([0, 1, 511, 512, 513].map(weight), [512, 512, 512, 512, 513]);
}

#[test]
fn a_request_that_moved_less_than_requested_is_charged_less() {
    // The flow's charge is the distance by which its start tag is ahead afterwards.
    let next_start = |moved: Option<u64>| {
        let gate = Gate::new(2);
        let other = gate.acquire(2, 0).1.unwrap();
        let permit = gate.acquire(1, 0).1.unwrap();
        release(&gate.0, permit, moved);
        let state = gate.line().snapshot();
        release(&gate.0, other, None);
        state
    };
    assert_eq!(next_start(None), next_start(Some(BYTES)));
    assert_ne!(next_start(Some(1024)), next_start(Some(BYTES)));
    assert_eq!(next_start(Some(0)), next_start(Some(512)));
}

#[test]
fn a_waiting_request_goes_when_a_permit_comes_back_and_its_wait_is_counted() {
    let gate = Gate::new(1);
    let permit = gate.acquire(1, 0).1.unwrap();
    let (waited, second) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| gate.acquire(1, 0));
        eventually("another waits", || waiting(&gate.0, QUEUE) == 1);
        assert_eq!(gate.counts(), [1, 1, 0]);
        release(&gate.0, permit, None);
        waits.join().unwrap()
    });
    assert!(waited > Span::ZERO);
    let cell = &gate.0.gates[0];
    assert_eq!(cell.delayed.load(Ordering::Relaxed), 1);
    assert_eq!(cell.waited.load(Ordering::Relaxed), waited.0);
    // Another thread may finish what one began.
    release(&gate.0, second.unwrap(), None);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}

#[test]
fn a_request_that_is_admitted_before_its_thread_sleeps_has_waited() {
    let gate = Gate::new(1);
    let owner = record::own(&gate.0).unwrap();
    let arrive_now = || {
        let mut has_waited = false;
        let now = (clock::now(&gate.0.header.clock), 0);
        let request = QueueRequest { arrival: 0, cost: BYTES, flow: 1 };
        let permit = arrive(gate.line(), owner, request, now, &mut has_waited).unwrap();
        (permit, has_waited)
    };
    let (first, has_waited) = arrive_now();
    assert!(!has_waited, "it had its permit at once");
    // The first ends before the thread of the second asks whether it must sleep.
    let (second, has_waited) = arrive_now();
    release(&gate.0, first, None);
    assert_eq!(gate.counts(), [0, 1, 0]);
    assert!(has_waited);
    let end = wait_for_permit(gate.line(), &gate.0.gates[0], second, owner);
    assert!(matches!(end, WaitEnd::Admitted));
    release(&gate.0, second, None);
    // A clock that was set back takes no wait away.
    let cell = &gate.0.gates[0];
    assert_eq!(count_wait(cell, Span::ZERO), Span(1));
    assert_eq!(cell.delayed.load(Ordering::Relaxed), 1);
}

#[test]
fn a_gate_that_becomes_something_else_releases_its_waiters() {
    let gate = Gate::new(1);
    let permit = gate.acquire(1, 0).1.unwrap();
    let (_, second) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| gate.acquire(1, 0));
        eventually("another waits", || waiting(&gate.0, QUEUE) == 1);
        gate.0.gates[0].kind.store(GateKind::Open as u32, Ordering::Relaxed);
        waits.join().unwrap()
    });
    assert_eq!((second, gate.counts()), (None, [0, 1, 0]));
    release(&gate.0, permit, None);
    assert_eq!(gate.taken_slots(), 0);
}

#[test]
fn a_greater_depth_admits_waiting_requests() {
    let gate = Gate::new(1);
    let first = gate.acquire(1, 0).1.unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(|| gate.acquire(1, 0).1)).collect();
        eventually("all wait", || waiting(&gate.0, QUEUE) == 20);
        // More than are dispatched in one round.
        configure(&gate.0, QUEUE, |queue| queue.configure(Order::Fair, 64, &[]));
        for thread in threads {
            release(&gate.0, thread.join().unwrap().unwrap(), None);
        }
    });
    assert_eq!(gate.passed_over_depth(), 0, "no permit was passed on");
    release(&gate.0, first, None);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}

#[test]
fn what_a_thread_held_in_calls_that_it_has_left_comes_back() {
    let gate = Gate::new(4);
    let outer = gate.acquire(1, 2000).1.unwrap();
    gate.acquire(1, 1000).1.unwrap();
    let lasting = gate.acquire(1, 0).1.unwrap();
    reclaim(&gate.0, |_| false);
    assert_eq!(gate.counts(), [0, 3, 0]);
    // The stack grows down: a call from above 1000 and below 2000 has left the inner one.
    reclaim(&gate.0, |depth| depth < 1500);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 2, 0], 2));
    reclaim(&gate.0, |_| true);
    assert_eq!(gate.counts(), [0, 1, 0], "what has no depth is given back by its owner alone");
    release(&gate.0, outer, None);
    assert_eq!(gate.counts(), [0, 1, 0], "it was given back");
    release(&gate.0, lasting, None);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}

#[test]
fn what_threads_that_ended_left_comes_back_wherever_they_were() {
    let gate = Gate::new(1);
    let owner_of = |permit: Permit| gate.line().slot(permit).claim.load(Ordering::Relaxed) as Owner;
    // One ends in service, and one in a slot before it had arrived there.
    let (in_service, unused) = std::thread::scope(|scope| {
        let ended_thread = scope.spawn(|| {
            let permit = gate.acquire(1, 0).1.unwrap();
            let owner = owner_of(permit);
            (owner, claim(gate.line(), owner, 0).unwrap())
        });
        ended_thread.join().unwrap()
    });
    assert!(record::is_gone(&gate.0, in_service) && owner_of(unused) == in_service);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 1, 0], 2));
    // The next thread frees the permit that it waits for, the agent all others.
    let (waited, permit) = gate.acquire(1, 0);
    assert!(waited >= Span(10 * Span::MILLISECOND.0) && gate.taken_slots() == 2);
    tidy(&gate.0, QUEUE);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 1, 0], 1));
    assert!(gate.line().is_owned(permit.unwrap(), record::own(&gate.0).unwrap()));
    release(&gate.0, permit.unwrap(), None);
}

/// A process in service and its copy that waits, both stopped until they are killed.
struct Stopped(Vec<libc::pid_t>);

impl Stopped {
    fn add(&mut self, gate: &Gate) {
        // SAFETY: the child allocates nothing and takes no lock but those of the segment, which are
        // made for it; it never returns from here.
        match unsafe { libc::fork() } {
            0 => {
                record::forget();
                let _ = gate.acquire(1, 0);
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            child => self.0.push(child),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        for child in &self.0 {
            // SAFETY: it is a child of this process that was not waited for.
            assert_eq!(unsafe { libc::kill(*child, signal) }, 0);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        for child in &self.0 {
            // SAFETY: as above.
            unsafe { libc::waitpid(*child, std::ptr::null_mut(), 0) };
        }
    }
}

#[test]
fn a_permit_of_a_stopped_process_passes_on_and_its_waiting_requests_are_withdrawn() {
    let gate = Gate::new(1);
    let mut children = Stopped(Vec::new());
    children.add(&gate);
    eventually("one is in service", || gate.counts() == [0, 1, 0]);
    children.add(&gate);
    eventually("the other waits", || gate.counts() == [1, 1, 0]);
    children.signal(libc::SIGSTOP);
    let line = gate.line();
    let claims = line.cell.slots.iter().map(|slot| slot.claim.load(Ordering::Acquire));
    let owners: Vec<Owner> = claims.map(|it| it as Owner).filter(|owner| *owner != 0).collect();
    assert_eq!(owners.len(), 2);
    let is_stopped =
        |owner: &Owner| record::thread_state(line.layout, *owner) == record::ThreadState::Stopped;
    eventually("both are stopped", || owners.iter().all(is_stopped));
    // As if the lease were over, and another thread had not checked for a while.
    let granted = clock::now(&gate.0.header.clock).0.saturating_sub(LEASE.0);
    line.cell.slots.iter().for_each(|slot| slot.granted.store(granted, Ordering::Relaxed));
    line.cell.last_check.store(0, Ordering::Relaxed);
    tidy(&gate.0, QUEUE);
    assert_eq!(gate.counts(), [0, 0, 1], "the holder is overdue, and none that is stopped waits");
    let (waited, permit) = gate.acquire(1, 0);
    let permit = permit.unwrap();
    assert_eq!((waited, gate.counts()), (Span::ZERO, [0, 1, 1]));
    assert_eq!(gate.passed_over_depth(), 1, "two are in service, and that is counted");
    assert_eq!(gate.taken_slots(), 3);
    configure(&gate.0, QUEUE, |_| {});
    assert_eq!(gate.passed_over_depth(), 1, "a change that puts none into service counts none");
    // When they run again, the one that waited arrives anew.
    children.signal(libc::SIGCONT);
    eventually("it waits again", || gate.counts() == [1, 1, 1]);
    release(&gate.0, permit, None);
    eventually("it is in service", || gate.counts() == [0, 1, 1]);
    drop(children);
    eventually("all is free", || {
        tidy(&gate.0, QUEUE);
        gate.taken_slots() == 0
    });
    assert_eq!(gate.counts(), [0, 0, 0]);
}

#[test]
fn a_holder_that_takes_long_keeps_its_permit_and_one_that_cannot_be_seen_does_not() {
    let gate = Gate::new(1);
    let permit = gate.acquire(1, 0).1.unwrap();
    let granted = &gate.line().slot(permit).granted;
    let now = clock::now(&gate.0.header.clock);
    let age = |span: Span| granted.store(now.0.saturating_sub(span.0), Ordering::Relaxed);
    let check_now = || {
        gate.line().cell.last_check.store(0, Ordering::Relaxed);
        tidy(&gate.0, QUEUE);
        gate.counts()
    };
    age(Span(3600 * Span::SECOND.0));
    assert_eq!(check_now(), [0, 1, 0], "it runs, so it takes long");
    // As if the thread were in another namespace.
    let owner = record::own(&gate.0).unwrap();
    let proc = &record::record(&gate.0, owner).unwrap().proc;
    let here = proc.swap(0, Ordering::Relaxed);
    age(Span(UNSEEN.0 / 2));
    assert_eq!(check_now(), [0, 1, 0]);
    age(Span(2 * UNSEEN.0));
    gate.line().cell.last_check.store(now.0, Ordering::Relaxed);
    tidy(&gate.0, QUEUE);
    let waits = (gate.counts(), clock::now(&gate.0.header.clock).since(now) < Span(LEASE.0 / 2));
    assert!(waits.0 == [0, 1, 0] || !waits.1, "another has looked just now");
    assert_eq!(check_now(), [0, 0, 1], "it is overdue");
    proc.store(here, Ordering::Relaxed);
    release(&gate.0, permit, None);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}

#[test]
fn sleep_ends_when_the_oldest_lease_does() {
    let gate = Gate::new(2);
    let permits = [(); 2].map(|()| gate.acquire(1, 0).1.unwrap());
    let granted = |ages: [u64; 2]| {
        let now = clock::now(&gate.0.header.clock).0;
        for (permit, age) in permits.iter().zip(ages) {
            gate.line().slot(*permit).granted.store(now - age, Ordering::Relaxed);
        }
        let until = until_next_check(gate.line());
        (until, clock::now(&gate.0.header.clock).0 - now)
    };
    let half = 50 * Span::MILLISECOND.0;
    let (until, passed) = granted([half, half / 2]);
    assert!(until <= Span(half) && until.0 + passed >= half, "{until}");
    assert_eq!(granted([10 * LEASE.0, 0]).0, SHORTEST, "it is due");
    gate.line().cell.last_check.store(u64::MAX / 2, Ordering::Relaxed);
    assert_eq!(granted([10 * LEASE.0, 0]).0, RECHECK, "another has just looked");
    for permit in permits {
        release(&gate.0, permit, None);
    }
}

/// Takes every slot of the queue, and arrives in none.
fn fill(gate: &Gate) -> Vec<Permit> {
    let owner = record::own(&gate.0).unwrap();
    std::iter::from_fn(|| claim(gate.line(), owner, 0)).collect()
}

/// Arrives as a request that has waited for a slot for so long already.
fn arrive_after(gate: &Gate, span: Span) -> Option<Permit> {
    let now = clock::now(&gate.0.header.clock);
    let begin = Time(now.0.saturating_sub(span.0));
    let request = QueueRequest { arrival: 0, cost: BYTES, flow: 1 };
    arrive(gate.line(), record::own(&gate.0)?, request, (begin, 0), &mut false)
}

#[test]
fn a_request_waits_half_a_minute_for_a_slot_and_is_woken_when_there_is_one() {
    let gate = Gate::new(1);
    let mut taken = fill(&gate);
    assert_eq!((taken.len(), gate.taken_slots()), (SLOTS_MAX, SLOTS_MAX));
    assert_eq!(arrive_after(&gate, Span(40 * Span::SECOND.0)), None, "it has waited long enough");
    let cell = gate.line().cell;
    let freed_before = cell.slot_freed.load(Ordering::SeqCst);
    let arrived = std::thread::scope(|scope| {
        let waits = scope.spawn(|| arrive_after(&gate, Span(15 * Span::SECOND.0)));
        eventually("it waits outside", || cell.outside.load(Ordering::SeqCst) == 1);
        release(&gate.0, taken.pop().unwrap(), None);
        waits.join().unwrap()
    });
    assert_eq!(arrived.map(|permit| usize::from(permit.slot)), Some(SLOTS_MAX - 1));
    assert!(cell.slot_freed.load(Ordering::SeqCst) > freed_before, "it was told of the slot");
    assert_eq!(cell.outside.load(Ordering::SeqCst), 0);
    let freed_before = cell.slot_freed.load(Ordering::SeqCst);
    taken.into_iter().chain(arrived).for_each(|permit| release(&gate.0, permit, None));
    assert_eq!(
        (gate.taken_slots(), cell.slot_freed.load(Ordering::SeqCst)),
        (0, freed_before),
        "none waits"
    );
}

#[test]
fn a_thread_that_finds_a_queue_full_of_slots_of_ended_threads_frees_them() {
    let gate = Gate::new(1);
    std::thread::scope(|scope| scope.spawn(|| fill(&gate)).join().unwrap());
    assert_eq!(gate.taken_slots(), SLOTS_MAX);
    let permit = arrive_after(&gate, Span(15 * Span::SECOND.0)).unwrap();
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 1, 0], 1));
    release(&gate.0, permit, None);
}

#[test]
fn a_thread_knows_whether_it_holds_permits_that_it_may_leave_behind() {
    let gate = Gate::new(4);
    let lasting = gate.acquire(1, 0).1.unwrap();
    assert!(!local::Inside::is_holding(), "it is given back wherever the thread is");
    let left = gate.acquire(1, 1000).1.unwrap();
    assert!(local::Inside::is_holding());
    reclaim(&gate.0, |_| true);
    assert!(!local::Inside::is_holding());
    for permit in [lasting, left] {
        release(&gate.0, permit, None);
    }
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}

#[test]
fn a_child_of_vfork_that_finishes_what_its_parent_began_keeps_no_record() {
    let gate = Gate::new(2);
    let [first, second] = [1, 2].map(|flow| gate.acquire(flow, 0).1.unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            record::tests::run_on_the_memory_of_another_thread();
            release(&gate.0, first, None);
            let own = gate.acquire(1, 0).1.unwrap();
            release(&gate.0, own, None);
        });
    });
    let borrowers = &gate.0.records[crate::layout::THREADS_MAX..];
    assert!(borrowers.iter().any(|record| record.generation.load(Ordering::Relaxed) > 0));
    assert!(borrowers.iter().all(|record| record.borrower.load(Ordering::Relaxed) == 0));
    release(&gate.0, second, None);
    assert_eq!((gate.counts(), gate.taken_slots()), ([0, 0, 0], 0));
}
