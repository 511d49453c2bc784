//! Striping at a gateway: it splits a request into sub-requests for nodes, and joins their answers
//! into one.
//!
//! # Problem
//! A client requests a range of a volume; its bytes lie on several nodes, which answer in any
//! order, late, or, once the request is given up, too late. The client gets exactly one answer, and
//! the same one whatever the order.
//!
//! # Mechanism
//! Most requests lie in one stripe. Such a request becomes one sub-request with the client's own
//! ticket, and its answer is the request's: it is in no table. Every other request has a slot that
//! counts the sub-requests which are still out, and a bit for each of them. A sub-request's ticket
//! names its request:
//!
//! ```text
//!  63  62                          30 29            14 13          0
//! ┌───┬──────────────────────────────┬────────────────┬─────────────┐
//! │ 1 │ generation of the slot       │ slot           │ sub-request │
//! └───┴──────────────────────────────┴────────────────┴─────────────┘
//! ```
//!
//! Bit 63 distinguishes it from a client's ticket. A slot that is free for the next request gets
//! the next generation, so an answer that comes later belongs to no request.
//!
//! Example: a volume on nodes a, b and c in stripes of 64 KiB. A read of 64 KiB at 96 KiB becomes
//! sub-request 0, 32 KiB at b, and sub-request 1, 32 KiB at c. Both fail, c first: the request
//! fails with the fault of b, for sub-request 0 comes before sub-request 1.
//!
//! # Bound
//! A sub-request costs a shift and a compare if it is the whole request, else also a division; its
//! answer a bit. A generation lasts for 2^33 requests of one slot: hours at a million per second.
//!
//! Buffers are left out: a [`PartRange`] names its bytes of the request's buffer, and the buffer's
//! owner handles them.

use alloc::vec::Vec;

use tidegate_model::cluster::{Chunks, Layout, PartRange, Spans};

#[cfg(test)]
mod tests;

/// The most sub-requests of one request: a request of 64 MiB in the smallest stripes, and more than
/// any front end takes.
pub const SUB_REQUESTS_MAX: u32 = (1 << SUB_REQUEST_BITS) - 1;
/// The most requests at a time that are more than one sub-request.
pub const SPLIT_MAX: usize = 1 << SLOT_BITS;

const SUB_REQUEST_BITS: u32 = 14;
const SLOT_BITS: u32 = 16;
const GENERATION_BITS: u32 = 33;
const SPLIT: u64 = 1 << 63;
const _: () = assert!(SUB_REQUEST_BITS + SLOT_BITS + GENERATION_BITS == 63);

/// The extent of a request, as far as it decides how the request is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestExtent {
    /// These bytes, in this order: a sub-request for each run of them that lies together.
    Bytes {
        /// Where in the volume.
        offset: u64,
        /// How many.
        length: u32,
    },
    /// This range, with nothing in it that has an order (discard, zero): a sub-request for each
    /// part.
    Range {
        /// Where in the volume.
        offset: u64,
        /// How many bytes.
        length: u32,
    },
    /// Everything (flush): a sub-request for each part, of length zero.
    All,
}

/// Why a request is not taken. It was not split, and there will be no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// Its range is empty, or not within the volume.
    OutOfRange,
    /// It is more than [`SUB_REQUESTS_MAX`] sub-requests.
    TooLarge,
    /// [`SPLIT_MAX`] requests are out already.
    TooMany,
}

/// A sub-request: the part of a request for one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubRequest {
    /// Comes back with the answer.
    pub ticket: u64,
    /// Which part, where in it, and which bytes of the request.
    pub piece: PartRange,
    /// Whether it is the first one of its request for its part. A request is one operation at each
    /// node, however many stripes of it lie there.
    pub is_first: bool,
}

/// The one answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<F> {
    /// The client's ticket.
    pub ticket: u64,
    /// Whether all sub-requests went well; if not, why the first one in the request's order did
    /// not.
    pub outcome: Result<(), F>,
}

/// The requests of one gateway worker that are out at nodes. `F` is why a sub-request can fail.
#[derive(Debug)]
pub struct Gateway<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u16>,
}

/// A request that is more than one sub-request.
#[derive(Debug)]
struct Slot<F> {
    generation: u64,
    ticket: u64,
    /// Sub-requests that are out; zero if the slot is free.
    left: u32,
    /// A bit for each sub-request that is out, the first 64 here and the others in `more`.
    out: u64,
    more: Vec<u64>,
    /// The first sub-request that failed, in the request's order.
    fault: Option<(u32, F)>,
}

impl<F: Copy> Default for Gateway<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: Copy> Gateway<F> {
    /// A gateway without requests.
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Takes a request with the client's `ticket`, which comes back in its answer. All sub-requests
    /// have to be carried out and [answered](Self::on_answer).
    ///
    /// # Errors
    /// If it is not taken.
    ///
    /// # Panics
    /// If `ticket` has its top bit set: that bit distinguishes sub-requests from clients' requests.
    #[inline]
    pub fn on_request(
        &mut self,
        ticket: u64,
        layout: &Layout,
        extent: RequestExtent,
    ) -> Result<SubRequests, RequestRefusal> {
        assert!(ticket & SPLIT == 0, "a client's ticket has 63 bits");
        let runs = match extent {
            RequestExtent::Bytes { offset, length } | RequestExtent::Range { offset, length } => {
                if !layout.contains(offset, length) {
                    return Err(RequestRefusal::OutOfRange);
                }
                if let Some(piece) = layout.whole(offset, length) {
                    return Ok(SubRequests { ticket, runs: Runs::One(Some(piece)), firsts: 1 });
                }
                match extent {
                    RequestExtent::Bytes { .. } => Runs::Chunks(layout.chunks(offset, length)),
                    _ => Runs::Spans(layout.spans(offset, length)),
                }
            }
            RequestExtent::All if layout.parts() == 1 => Runs::One(Some(whole_part(0))),
            RequestExtent::All => Runs::Parts { next: 0, end: layout.parts() },
        };
        let ticket = match &runs {
            Runs::One(_) => ticket,
            runs => self.split(ticket, runs.left())?,
        };
        Ok(SubRequests { ticket, runs, firsts: layout.parts() })
    }

    /// Takes the answer to a sub-request. If it is the last one of its request, returns the
    /// request's answer. Answers without a request, and second answers, are dropped.
    ///
    /// The answer to a sub-request that was a whole request goes through as it is. That it comes
    /// only once is the link's duty: there a job is a value, which can be handed back once.
    #[inline]
    pub fn on_answer(&mut self, ticket: u64, outcome: Result<(), F>) -> Option<Answer<F>> {
        if ticket & SPLIT == 0 {
            return Some(Answer { ticket, outcome });
        }
        self.join(ticket, outcome)
    }

    /// Gives up on the split requests for whose tickets `is_lost` is true; they are returned. Their
    /// sub-requests may still be answered, but they will not be.
    pub fn cancel(&mut self, mut is_lost: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut lost = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.left > 0 && is_lost(slot.ticket) {
                lost.push(slot.ticket);
                slot.retire();
                // There are at most 2^16 slots.
                self.free.push(index as u16);
            }
        }
        lost
    }

    /// A slot for a request of `count` sub-requests; returns the ticket of the first.
    fn split(&mut self, ticket: u64, count: u32) -> Result<u64, RequestRefusal> {
        if count > SUB_REQUESTS_MAX {
            return Err(RequestRefusal::TooLarge);
        }
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None if self.slots.len() == SPLIT_MAX => return Err(RequestRefusal::TooMany),
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    ticket: 0,
                    left: 0,
                    out: 0,
                    more: Vec::new(),
                    fault: None,
                });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[index];
        slot.ticket = ticket;
        slot.left = count;
        slot.out = ones(count);
        slot.more.extend((1..count.div_ceil(64)).map(|word| ones(count - 64 * word)));
        let generation = slot.generation << (SLOT_BITS + SUB_REQUEST_BITS);
        Ok(SPLIT | generation | (index as u64) << SUB_REQUEST_BITS)
    }

    fn join(&mut self, ticket: u64, outcome: Result<(), F>) -> Option<Answer<F>> {
        let sub_request = (ticket & u64::from(SUB_REQUESTS_MAX)) as u32;
        let index = (ticket >> SUB_REQUEST_BITS) as usize % SPLIT_MAX;
        let generation = (ticket & !SPLIT) >> (SLOT_BITS + SUB_REQUEST_BITS);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let word = match sub_request / 64 {
            0 => &mut slot.out,
            word => slot.more.get_mut(word as usize - 1)?,
        };
        let bit = 1 << (sub_request % 64);
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        if let Err(fault) = outcome
            && slot.fault.is_none_or(|(first, _)| sub_request < first)
        {
            slot.fault = Some((sub_request, fault));
        }
        slot.left -= 1;
        if slot.left > 0 {
            return None;
        }
        let outcome = slot.fault.map_or(Ok(()), |(_, fault)| Err(fault));
        let answer = Answer { ticket: slot.ticket, outcome };
        slot.retire();
        self.free.push(index as u16);
        Some(answer)
    }
}

impl<F> Slot<F> {
    /// Frees the slot for another request; late answers then belong to no request.
    fn retire(&mut self) {
        self.generation = (self.generation + 1) % (1 << GENERATION_BITS);
        (self.left, self.out, self.fault) = (0, 0, None);
        self.more.clear();
    }
}

/// A word with the lowest `count` bits set, all of them from 64 on.
const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

const fn whole_part(part: u32) -> PartRange {
    PartRange { part, offset: 0, length: 0, at: 0 }
}

/// The sub-requests of one request, in its order.
#[derive(Clone, Debug)]
pub struct SubRequests {
    /// The next one's.
    ticket: u64,
    runs: Runs,
    /// How many of the next are the first for their part: stripes go over all parts in turn.
    firsts: u32,
}

#[derive(Clone, Debug)]
enum Runs {
    One(Option<PartRange>),
    Chunks(Chunks),
    Spans(Spans),
    Parts { next: u32, end: u32 },
}

impl Runs {
    fn left(&self) -> u32 {
        match self {
            Self::One(piece) => u32::from(piece.is_some()),
            Self::Chunks(chunks) => chunks.count_left(),
            Self::Spans(spans) => spans.count_left(),
            Self::Parts { next, end } => end - next,
        }
    }
}

impl Iterator for SubRequests {
    type Item = SubRequest;

    #[inline]
    fn next(&mut self) -> Option<SubRequest> {
        let piece = match &mut self.runs {
            Runs::One(piece) => piece.take(),
            Runs::Chunks(chunks) => chunks.next(),
            Runs::Spans(spans) => spans.next(),
            Runs::Parts { next, end } => (*next < *end).then(|| {
                *next += 1;
                whole_part(*next - 1)
            }),
        }?;
        let (ticket, is_first) = (self.ticket, self.firsts > 0);
        self.ticket += 1;
        self.firsts = self.firsts.saturating_sub(1);
        Some(SubRequest { ticket, piece, is_first })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.runs.left() as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for SubRequests {}
