//! The test bed of our scheduler: one node in virtual time. Its device serves one request after
//! the other, each in the same time.

use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::{Discipline, Span, Time};

/// How many requests a stream has waiting while its demand exceeds its service.
pub(super) const DEPTH: u32 = 4;
const PERIOD: Span = Span::SECOND;

/// One stream of requests, and its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestStream {
    pub(super) weight: u32,
    /// Requests per second; zero for none.
    pub(super) reservation: u64,
    /// Requests per second; zero for none.
    pub(super) limit: u64,
}

impl RequestStream {
    /// One that is promised nothing but its weight.
    pub(super) const fn weighing(weight: u32) -> Self {
        Self { weight, reservation: 0, limit: 0 }
    }

    fn counts(self) -> PeriodGrant {
        let allowed = if self.limit == 0 { u64::MAX } else { self.limit };
        PeriodGrant { reserved: self.reservation, allowed }
    }
}

/// A scheduler under a device: ours or the peer's.
pub(super) trait Subject {
    /// Begins anew with these streams, without requests.
    fn open(&mut self, streams: &[RequestStream]) -> Result<(), String>;

    /// Serves for so long, at most `rate` requests per second, while the streams with these numbers
    /// ask for more: how many of each stream were served.
    fn serve(&mut self, length: Span, rate: u64, active: &[usize]) -> Result<Vec<u64>, String>;
}

/// The node. Its jobs are the numbers of their streams.
#[derive(Debug)]
pub(super) struct Bed {
    scheduler: Scheduler<u32>,
    slots: Vec<Slot>,
    /// Of each stream, how many requests wait.
    waiting: Vec<u32>,
    now: Time,
    until: Time,
    /// The number of wakeups at which no stream was eligible.
    vain: u64,
}

impl Bed {
    /// A node with these streams, at the beginning of a period.
    pub(super) fn new(streams: &[RequestStream]) -> Self {
        let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
        let now = Time::ZERO;
        let until = now.after(PERIOD);
        scheduler.begin(now, until);
        let slots = streams.iter().map(|stream| join(&mut scheduler, now, *stream)).collect();
        let waiting = vec![0; streams.len()];
        Self { scheduler, slots, waiting, now, until, vain: 0 }
    }

    /// A node with these streams, with so many requests of each.
    pub(super) fn waiting(streams: &[RequestStream], depth: u32) -> Self {
        let mut bed = Self::new(streams);
        (0..streams.len()).for_each(|stream| bed.fill(stream, depth));
        bed
    }

    /// A node with these streams, with one request of each but the first.
    pub(super) fn waiting_but_first(streams: &[RequestStream]) -> Self {
        let mut bed = Self::new(streams);
        (1..streams.len()).for_each(|stream| bed.fill(stream, 1));
        bed
    }

    /// The number of wakeups for an eligible stream at which no stream was eligible.
    pub(super) const fn vain(&self) -> u64 {
        self.vain
    }

    /// Serves one request and takes in the next of the same stream, `step` after the last.
    pub(super) fn pair(&mut self, step: Span) {
        self.advance(self.now.after(step));
        if let Some(next) = self.scheduler.pop(self.now) {
            self.scheduler.complete(self.now, next.slot, next.cost);
            self.scheduler.push(self.now, next.slot, RequestCost::ONE, next.job);
        }
    }

    /// A stream joins that has a reservation, sends one request, is served and leaves.
    pub(super) fn visit(&mut self, stream: RequestStream) {
        let slot = join(&mut self.scheduler, self.now, stream);
        self.scheduler.push(self.now, slot, RequestCost::ONE, u32::MAX);
        let next = self.scheduler.pop(self.now);
        assert!(next.is_some_and(|next| next.slot == slot), "a reservation goes first");
        self.scheduler.complete(self.now, slot, 1);
        self.scheduler.remove(self.now, slot);
    }

    /// A stream that is known and has nothing waiting sends one request, and is served at once,
    /// for which it needs a reservation.
    pub(super) fn rejoin(&mut self, stream: usize) {
        let slot = self.slots[stream];
        self.scheduler.push(self.now, slot, RequestCost::ONE, stream as u32);
        let next = self.scheduler.pop(self.now);
        assert!(next.is_some_and(|next| next.slot == slot), "a reservation goes first");
        self.scheduler.complete(self.now, slot, 1);
    }

    /// Serves for so long, at most `rate` requests per second, while these streams ask for more:
    /// how many of each were served.
    pub(super) fn serve(&mut self, length: Span, rate: u64, active: &[usize]) -> Vec<u64> {
        let end = self.now.after(length);
        let step = Span(Span::SECOND.0 / rate);
        let mut served = vec![0; self.slots.len()];
        let mut has_waited = false;
        active.iter().for_each(|stream| self.fill(*stream, DEPTH));
        while self.now < end {
            let Some(next) = self.scheduler.pop(self.now) else {
                self.vain += u64::from(has_waited);
                has_waited = true;
                let eligible = self.scheduler.next_eligible().unwrap_or(Time::MAX);
                self.advance(eligible.min(self.until).min(end));
                continue;
            };
            has_waited = false;
            let stream = next.job as usize;
            served[stream] += 1;
            self.waiting[stream] -= 1;
            self.advance(self.now.after(step));
            self.scheduler.complete(self.now, next.slot, next.cost);
            if active.contains(&stream) {
                self.fill(stream, DEPTH);
            }
        }
        served
    }

    /// Sends requests of a stream until so many wait.
    fn fill(&mut self, stream: usize, depth: u32) {
        for _ in self.waiting[stream]..depth {
            self.scheduler.push(self.now, self.slots[stream], RequestCost::ONE, stream as u32);
        }
        self.waiting[stream] = depth;
    }

    /// Goes on to `now`, perhaps into the next period.
    fn advance(&mut self, now: Time) {
        self.now = now;
        while self.now >= self.until {
            let begin = self.until;
            self.until = begin.after(PERIOD);
            self.scheduler.begin(begin, self.until);
        }
    }
}

/// A scheduler alone, with so many streams that have so many requests waiting each.
pub(super) fn many_streams(count: u32, depth: u32) -> Scheduler<u32> {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
    for number in 0..count {
        let slot = join(&mut scheduler, Time::ZERO, RequestStream::weighing(1));
        (0..depth).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::ONE, number));
    }
    scheduler
}

pub(super) fn join<J>(scheduler: &mut Scheduler<J>, now: Time, stream: RequestStream) -> Slot {
    let slot = scheduler.add(TenantParameters::of_weight(stream.weight));
    scheduler.grant(now, slot, stream.counts());
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bed_serves_by_weight_and_keeps_a_limit_without_a_vain_poll() {
        let limited = RequestStream { limit: 10, ..RequestStream::weighing(1) };
        let mut bed = Bed::new(&[RequestStream::weighing(1), RequestStream::weighing(3), limited]);
        assert_eq!(bed.serve(Span::SECOND, 100, &[0, 1]), [25, 75, 0]);
        let served = bed.serve(Span(10 * Span::SECOND.0), 100, &[2]);
        assert_eq!(served[..2], [4, 4], "what was left of the others");
        assert!((95..=105).contains(&served[2]), "{served:?}");
        assert_eq!(bed.vain(), 0);
    }
}
