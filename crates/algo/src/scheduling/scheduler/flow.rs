//! A tenant's requests of one class, and their position in the fair queue of the class.

use tidegate_model::Discipline;

use super::UNIT;
use super::requests::{QueuedRequest, SlotQueue};
use crate::scheduling::dsfq::Bound;

/// The classes that share by weight, as indices.
pub(super) const HIGH: usize = 0;
/// Also the class of all requests while classes have no weights.
pub(super) const MEDIUM: usize = 1;
pub(super) const LOW: usize = 2;

/// The requests of one tenant and one class that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The finish tag of the last request in the fair phase.
    finish_tag: u128,
    /// Work by which later requests are to be delayed, in parts of 2^16 of a unit.
    debt: u64,
    pub(super) queue: SlotQueue,
}

/// A tenant's parameters in a fair queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowShare {
    /// [`UNIT`] divided by the weight.
    pub(super) stride: u64,
    pub(super) bound: Bound,
}

impl FlowShare {
    pub(super) fn length(self, work: u64) -> u128 {
        u128::from(work) * u128::from(self.stride)
    }

    /// The length of so many parts of 2^16 of a unit of work.
    fn delayed(self, parts: u64) -> u128 {
        self.length(parts) >> 16
    }
}

impl Flow {
    pub(super) const EMPTY: Self = Self { finish_tag: 0, debt: 0, queue: SlotQueue::EMPTY };

    /// The start tag in the fair phase of `first`, its first waiting request, at this virtual time.
    pub(super) fn start_tag<J>(
        &self,
        share: FlowShare,
        discipline: Discipline,
        virtual_time: u128,
        first: &QueuedRequest<J>,
    ) -> u128 {
        let delay = match discipline {
            Discipline::Fifo => return u128::from(first.number),
            Discipline::DsfqTotal | Discipline::DsfqHybrid | Discipline::Unified => {
                share.delayed(self.applied(share, discipline, first))
            }
            _ => 0,
        };
        virtual_time.max(self.finish_tag.saturating_add(delay))
    }

    /// The work by which a request is delayed, in parts of 2^16 of a unit: a bound is seldom a
    /// whole number of the smallest requests.
    fn applied<J>(
        &self,
        share: FlowShare,
        discipline: Discipline,
        request: &QueuedRequest<J>,
    ) -> u64 {
        let delay = u64::from(request.delay) << 16;
        match discipline {
            Discipline::DsfqTotal => delay,
            Discipline::DsfqHybrid => delay.min(share.bound.of(request.work)),
            Discipline::Unified => {
                delay.saturating_add(self.debt).min(share.bound.of(request.work))
            }
            _ => 0,
        }
    }

    /// Moves the finish tag past a request with this start tag, and returns the request's length.
    pub(super) fn advance<J>(
        &mut self,
        share: FlowShare,
        discipline: Discipline,
        start_tag: u128,
        request: &QueuedRequest<J>,
    ) -> u128 {
        let length = match discipline {
            Discipline::Fifo => return 0,
            Discipline::RoundRobin => u128::from(UNIT),
            Discipline::Token => share.length(u64::from(request.cost)),
            _ => share.length(u64::from(request.work)),
        };
        self.finish_tag = start_tag.saturating_add(length);
        length
    }

    /// Moves the finish tag by a length that was not known at the dispatch.
    pub(super) fn extend(&mut self, virtual_time: u128, length: u128) {
        self.finish_tag = virtual_time.max(self.finish_tag).saturating_add(length);
    }

    /// Notes the rest of the delay of a request with this start tag, at most as much as virtual
    /// time moved in the `window`.
    pub(super) fn owe<J>(
        &mut self,
        share: FlowShare,
        start_tag: u128,
        window: u128,
        request: &QueuedRequest<J>,
    ) {
        let delay = self.debt.saturating_add(u64::from(request.delay) << 16);
        let rest = delay - self.applied(share, Discipline::Unified, request);
        self.debt = 0;
        if rest == 0 {
            return;
        }
        // Its start tag without a bound; behind `start_tag` if virtual time has not passed that.
        let whole = self.finish_tag.saturating_add(share.delayed(delay));
        let ahead = whole.saturating_sub(start_tag).min(window);
        self.debt = if ahead >= share.delayed(rest) {
            rest
        } else {
            // Less than the rest, which is below 2^64 parts and so 2^108 long.
            ((ahead << 16) / u128::from(share.stride)) as u64
        };
    }

    /// Forgives the lead over `virtual_time`.
    pub(super) fn forgive(&mut self, virtual_time: u128) {
        self.finish_tag = virtual_time.min(self.finish_tag);
    }

    /// Begins anew in a new fair queue.
    pub(super) const fn restart(&mut self) {
        (self.finish_tag, self.debt) = (0, 0);
    }
}
