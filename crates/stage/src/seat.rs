//! Who holds a place in a queue, and whether it still lives.
//!
//! A thread that waits at queues has a *seat* in the segment: a robust lock that it takes at its
//! first queue and keeps for its life. When the thread ends, however it ends (it returns, its
//! process is killed or turns into another program), the kernel marks the lock, and whoever tries
//! it next learns that its owner died. So anybody can tell for sure, without asking for process
//! numbers, which mean nothing in another namespace, outlive their process while nobody waits for
//! it, and are given again.
//!
//! A segment in which this process has a seat must stay mapped: the C library's list of the locks
//! that a thread holds leads through it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::layout::{Layout, SEATS_MAX};
use crate::lock::SharedLock;

/// A thread's place. All zero but for the lock is a free one.
#[derive(Debug)]
#[repr(C)]
pub struct Seat {
    /// Held by the thread that has the seat.
    pub lock: SharedLock,
    /// How often the seat was taken: an owner is a number and a turn.
    pub turn: AtomicU32,
}

/// A seat that was taken by somebody: number and turn in one word.
fn owner(number: usize, turn: u32) -> u32 {
    turn.wrapping_mul(SEATS_MAX as u32) | number as u32
}

thread_local! {
    /// The stage, the process and the owner that this thread is in it. In a child of `fork` it is
    /// the parent's, hence the process.
    static SEATED: Cell<(usize, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

/// Whether a thread of this process has ever had a seat.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether segments of this process must stay mapped.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// As whom this thread waits at queues; none if all seats are taken.
pub(crate) fn sit(layout: &Layout) -> Option<u32> {
    let here = (std::ptr::from_ref(layout).addr(), std::process::id());
    let (stage, process, known) = SEATED.get();
    if (stage, process) == here && is_ours(layout, known) {
        return Some(known);
    }
    ANY.store(true, Ordering::Relaxed);
    // Not all from the front: threads that come together would try the same seats.
    let first = layout.header.threads.fetch_add(1, Ordering::Relaxed) as usize;
    let mut numbers = (0..SEATS_MAX).map(|number| (first + number) % SEATS_MAX);
    let taken = numbers.find_map(|number| {
        let seat = &layout.seats[number];
        seat.lock.try_to_keep().then(|| {
            let turn = seat.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            owner(number, turn)
        })
    })?;
    SEATED.set((here.0, here.1, taken));
    Some(taken)
}

/// Whether a seat is still what it was when it was taken: another stage may have come to stand at
/// the address of one that is gone.
fn is_ours(layout: &Layout, known: u32) -> bool {
    let number = known as usize % SEATS_MAX;
    owner(number, layout.seats[number].turn.load(Ordering::Relaxed)) == known
}

/// Whether the thread that sat there is gone.
pub(crate) fn is_gone(layout: &Layout, who: u32) -> bool {
    let number = who as usize % SEATS_MAX;
    let seat = &layout.seats[number];
    if owner(number, seat.turn.load(Ordering::Relaxed)) != who {
        return true;
    }
    let is_gone = seat.lock.try_to_keep();
    if is_gone {
        // What else the dead one holds, in other queues, is its no more either.
        seat.turn.fetch_add(1, Ordering::Relaxed);
        seat.lock.release();
    }
    is_gone
}
