//! One queue pair of a client, and what is under way on it.
//!
//! Operations have slots in a ring, in the order in which they were taken. A queue pair works in
//! order, so what is under way is always one range of the ring, of which the RNIC has the beginning
//! (`done` to `handed`) and the next flush will hand over the rest (to `taken`).

use tidegate_onesided::data_node::rnic::{Endpoint, QueueAddress};

use super::device::QueuePair;
use super::ibverbs::{IBV_SEND_SIGNALED, ibv_send_wr, ibv_sge};
use super::{Lost, RdmaError};

/// Operations in a row that need not say when they are done, at most: what was freed by them is
/// known that much later. Chosen by hand, not measured.
const SILENT_MAX: u32 = 16;

/// The lowest bits of a request's id are its operation's number on its queue, above which is the
/// queue's index. At 10^8 operations a second they last for 22 years.
const NUMBER_BITS: u32 = 56;

/// The index of the queue that a request of this id went through.
pub(super) fn of(id: u64) -> usize {
    (id >> NUMBER_BITS) as usize
}

/// An operation that waits for its completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// The caller's id of the operation.
    pub id: u64,
    /// The buffer that it touches, if any.
    pub buffer: Option<u32>,
    /// Whether it changes the region.
    pub changes: bool,
    /// Where the RNIC leaves what a word was, if it does.
    pub word: Option<*const u64>,
}

/// A queue pair and its ring.
pub(super) struct QueuePairRing {
    pair: QueuePair,
    /// Places, less one.
    mask: u64,
    /// The upper bits of its requests' ids.
    id_prefix: u64,
    /// The requests for the RNIC. They point to scatter-gather entries and to the next request,
    /// none of which move.
    requests: Box<[ibv_send_wr]>,
    sges: Box<[ibv_sge]>,
    waiting: Box<[Waiting]>,
    /// How many operations were done, handed over and taken since the beginning.
    done: u64,
    handed: u64,
    taken: u64,
}

// SAFETY: the pointers lead into the queue's own boxes, and to memory that its owner keeps.
unsafe impl Send for QueuePairRing {}

impl QueuePairRing {
    /// The queue of this index at its client: a ring of `slots`, a power of two, before a queue
    /// pair that holds what is under way.
    pub(super) fn new(index: u64, pair: QueuePair, slots: u32) -> Self {
        assert!(slots.is_power_of_two(), "places are found by the lowest bits of a number");
        let slots = slots as usize;
        let unused = Waiting { id: 0, buffer: None, changes: false, word: None };
        Self {
            pair,
            mask: slots as u64 - 1,
            id_prefix: index << NUMBER_BITS,
            requests: vec![ibv_send_wr::default(); slots].into(),
            sges: vec![ibv_sge::default(); slots].into(),
            waiting: vec![unused; slots].into(),
            done: 0,
            handed: 0,
            taken: 0,
        }
    }

    pub(super) fn connect(&mut self, peer: &Endpoint, to: QueueAddress) -> Result<(), RdmaError> {
        self.pair.connect(peer, to)
    }

    /// Bytes that a request may carry in itself.
    pub(super) fn inline(&self) -> u32 {
        self.pair.inline()
    }

    /// The place that the next operation will have, from 0.
    pub(super) fn next_slot(&self) -> usize {
        self.slot(self.taken)
    }

    fn slot(&self, number: u64) -> usize {
        (number & self.mask) as usize
    }

    /// Takes an operation: its request without its pointers and its number, which are given here.
    pub(super) fn push(&mut self, waiting: Waiting, sge: ibv_sge, request: ibv_send_wr) {
        assert!(self.taken - self.done <= self.mask, "more than there is room for");
        let slot = self.next_slot();
        self.sges[slot] = sge;
        self.requests[slot] =
            ibv_send_wr { wr_id: self.id_prefix | self.taken, num_sge: 1, ..request };
        self.waiting[slot] = waiting;
        self.taken += 1;
    }

    /// Hands over what was taken, as one list.
    ///
    /// # Safety
    /// The memory that pieces lie in stays registered until the operations are done, or this queue
    /// is dropped.
    pub(super) unsafe fn flush(&mut self) -> Result<(), Lost> {
        if self.handed == self.taken {
            return Ok(());
        }
        let mut silent = 0;
        // From the last to the first, so that each knows where the next is.
        let (requests, sges) = (self.requests.as_mut_ptr(), self.sges.as_mut_ptr());
        let mut next: *mut ibv_send_wr = std::ptr::null_mut();
        for number in (self.handed..self.taken).rev() {
            let slot = self.slot(number);
            // SAFETY: a place is inside both boxes.
            let request = unsafe { &mut *requests.add(slot) };
            let speaks = next.is_null()
                || silent == SILENT_MAX
                || !self.waiting[slot].changes
                || self.waiting[slot].word.is_some();
            silent = if speaks { 0 } else { silent + 1 };
            request.send_flags |= if speaks { IBV_SEND_SIGNALED } else { 0 };
            // SAFETY: as above.
            (request.next, request.sg_list) = unsafe { (next, sges.add(slot)) };
            next = request;
        }
        self.handed = self.taken;
        // SAFETY: each request points to one piece and to the next, in boxes that do not move, and
        // the last to none. Of the memory of pieces, the caller promised.
        match unsafe { self.pair.post(next) } {
            true => Ok(()),
            false => Err(Lost),
        }
    }

    /// Reports all operations up to the completed request of this id: the queue pair works in
    /// order, so all before it are done.
    pub(super) fn settle(&mut self, id: u64, mut report: impl FnMut(Waiting)) {
        let number = id - self.id_prefix;
        while self.done <= number && self.done < self.handed {
            report(self.waiting[self.slot(self.done)]);
            self.done += 1;
        }
    }
}
