//! Pacing of a load generator's thread: the request that may be sent now, and the response times,
//! without I/O.
//!
//! **Problem.** A generator that waits for an answer before it asks again stops asking while the
//! server stalls. The requests that users would have made meanwhile are missing from its numbers,
//! which are better the longer the stall is ("coordinated omission").
//!
//! **Mechanism.** When a request is due is decided beforehand. If it cannot be sent then, because
//! its connections carry as many as they may, it is sent late, and its *response* time counts from
//! when it was due. Its *service* time counts from when it was sent. A request that has not been
//! sent or answered at the end of the run counts with the time that it has taken until then.

use hdrhistogram::Histogram;
use tidegate_model::{Span, Time};

use super::schedule::{Schedule, Window};

/// The longest time that is told apart from longer ones.
const LONGEST: Span = Span(3_600 * Span::SECOND.0);

/// How requests follow one another.
#[derive(Clone, Debug)]
pub(crate) enum Drive {
    /// As scheduled, whatever the answers do.
    Open(Schedule),
    /// Whenever there is room.
    Closed,
}

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    /// There was no such key.
    Missed,
    Failed,
}

/// A thread's bookkeeping.
#[derive(Debug)]
pub(crate) struct Pace {
    drive: Drive,
    window: Window,
    /// By slot.
    in_flight: Vec<Option<SentRequest>>,
    free: Vec<u32>,
    stats: LoadStats,
}

#[derive(Clone, Copy, Debug)]
struct SentRequest {
    due: Time,
    sent: Time,
    kind: Direction,
}

/// The times of one kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// From when a request was sent until it was answered, in nanoseconds.
    pub(crate) service: Histogram<u64>,
    /// From when it was due until it was answered, in nanoseconds.
    pub(crate) response: Histogram<u64>,
}

/// The requests and answers of the measured window.
#[derive(Clone, Debug)]
pub(crate) struct LoadStats {
    pub(crate) reads: Series,
    pub(crate) writes: Series,
    /// Answered within the window, successfully.
    pub(crate) answered: u64,
    pub(crate) missed: u64,
    pub(crate) failed: u64,
    /// Due in the window, but neither sent nor failed before its end.
    pub(crate) unsent: u64,
    /// Sent, but not answered when we stopped waiting.
    pub(crate) unanswered: u64,
}

impl Pace {
    /// Bookkeeping for at most `capacity` requests at a time.
    pub(crate) fn new(drive: Drive, window: Window, capacity: u32) -> Self {
        let in_flight = (0..capacity).map(|_| None).collect();
        Self {
            drive,
            window,
            in_flight,
            free: (0..capacity).rev().collect(),
            stats: LoadStats::new(),
        }
    }

    /// When the next request is due; none if that is after the end.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        let due = match &self.drive {
            Drive::Open(schedule) => schedule.due(),
            Drive::Closed => now,
        };
        (due < self.window.until && now < self.window.until).then_some(due)
    }

    /// Whether there is room for a request.
    pub(crate) fn has_headroom(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many requests wait for their answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// The next request was sent; its slot. There must be room.
    pub(crate) fn sent(&mut self, now: Time, kind: Direction) -> u32 {
        let due = match &mut self.drive {
            Drive::Open(schedule) => {
                let due = schedule.due();
                schedule.advance();
                due
            }
            Drive::Closed => now,
        };
        let slot = self.free.pop().expect("a request is sent only if there is room");
        self.in_flight[slot as usize] = Some(SentRequest { due, sent: now, kind });
        slot
    }

    /// A request was answered. False if there is no such request.
    #[must_use]
    pub(crate) fn answered(&mut self, now: Time, slot: u32, ending: Ending) -> bool {
        let Some(request) = self.in_flight.get_mut(slot as usize).and_then(Option::take) else {
            return false;
        };
        self.free.push(slot);
        let stats = &mut self.stats;
        if self.window.contains(now) && ending != Ending::Failed {
            stats.answered += 1;
        }
        if self.window.contains(request.due) {
            match ending {
                Ending::Failed => stats.failed += 1,
                _ => stats.record(request.kind, now.since(request.due), now.since(request.sent)),
            }
            stats.missed += u64::from(ending == Ending::Missed);
        }
        true
    }

    pub(crate) fn end(mut self, now: Time) -> LoadStats {
        for request in self.in_flight.iter().flatten() {
            if self.window.contains(request.due) {
                let (response, service) = (now.since(request.due), now.since(request.sent));
                self.stats.record(request.kind, response, service);
                self.stats.unanswered += 1;
            }
        }
        let end = now.min(self.window.until);
        if let Drive::Open(schedule) = &mut self.drive {
            while schedule.due() < end {
                if self.window.contains(schedule.due()) {
                    self.stats.unsent += 1;
                    self.stats.late(now.since(schedule.due()));
                }
                schedule.advance();
            }
        }
        self.stats
    }
}

impl Series {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST.0, 3);
        let histogram = histogram.expect("these bounds are in order");
        Self { service: histogram.clone(), response: histogram }
    }

    /// How many were answered.
    pub(crate) fn count(&self) -> u64 {
        self.service.len()
    }

    /// The same of both.
    pub(crate) fn add(&mut self, other: &Self) {
        for (own, other) in
            [(&mut self.service, &other.service), (&mut self.response, &other.response)]
        {
            own.add(other).expect("all histograms have the same bounds");
        }
    }
}

impl LoadStats {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        let (reads, writes) = (Series::new(), Series::new());
        let (answered, missed, failed, unsent, unanswered) = (0, 0, 0, 0, 0);
        Self { reads, writes, answered, missed, failed, unsent, unanswered }
    }

    fn record(&mut self, kind: Direction, response: Span, service: Span) {
        let series = match kind {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        };
        series.response.saturating_record(response.0.max(1));
        series.service.saturating_record(service.0.max(1));
    }

    /// Records an unsent request, whose kind is unknown, as the kind with more answers so far.
    fn late(&mut self, response: Span) {
        let is_reading = self.reads.count() >= self.writes.count();
        let series = if is_reading { &mut self.reads } else { &mut self.writes };
        series.response.saturating_record(response.0.max(1));
    }

    /// The same of both.
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.answered += other.answered;
        self.missed += other.missed;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
    }

    /// Reads and writes together.
    pub(crate) fn all(&self) -> Series {
        let mut all = self.reads.clone();
        all.add(&self.writes);
        all
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Iops;

    use super::super::schedule::Arrivals;
    use super::*;

    const MS: u64 = Span::MILLISECOND.0;

    fn window(until: u64) -> Window {
        Window { from: Time::ZERO, until: Time(until) }
    }

    fn open(rate: u64) -> Drive {
        Drive::Open(Schedule::new(Arrivals::Constant, Iops(rate), [0, 1], 1))
    }

    /// Runs against a server that serves one request after the other in 100 us each, and does
    /// nothing for 200 ms once a second has passed.
    fn stalled(drive: Drive) -> LoadStats {
        let (mut pace, mut now) = (Pace::new(drive, window(2_000 * MS), 1), Time::ZERO);
        while let Some(due) = pace.next_due(now) {
            now = now.max(due);
            let slot = pace.sent(now, Direction::Read);
            let stalls = (1_000 * MS..1_001 * MS).contains(&now.0);
            now = now.after(if stalls { Span(200 * MS) } else { Span(MS / 10) });
            assert!(pace.answered(now, slot, Ending::Done));
        }
        pace.end(now)
    }

    #[test]
    fn a_stall_is_in_the_response_times_of_all_due_requests() {
        let stats = stalled(open(1_000));
        assert_eq!((stats.answered, stats.unsent), (2_000, 0));
        let [service, response] = [&stats.reads.service, &stats.reads.response];
        // One request of 2,000 was served slowly; more than 200 were waited for.
        assert!(service.value_at_quantile(0.99) < MS);
        assert!(response.value_at_quantile(0.99) > 150 * MS);
        assert!(response.value_at_quantile(0.88) < MS);
        assert!(service.max() >= 200 * MS && response.max() >= 200 * MS);
    }

    #[test]
    fn a_closed_loop_sees_a_stall_once() {
        let stats = stalled(Drive::Closed);
        assert_eq!(stats.reads.response, stats.reads.service);
        assert!(stats.reads.response.value_at_quantile(0.999) < MS);
    }

    #[test]
    fn what_is_never_sent_or_answered_counts_with_the_time_it_took() {
        let mut pace = Pace::new(open(1_000), window(100 * MS), 2);
        pace.sent(Time::ZERO, Direction::Read);
        pace.sent(Time(MS), Direction::Write);
        assert!(!pace.has_headroom() && pace.next_due(Time(50 * MS)).is_some());
        assert_eq!((pace.next_due(Time(100 * MS)), pace.in_flight()), (None, 2));
        let stats = pace.end(Time(150 * MS));
        assert_eq!((stats.unanswered, stats.unsent, stats.answered), (2, 98, 0));
        let all = stats.all();
        assert_eq!((all.response.len(), all.service.len()), (100, 2));
        assert!(all.response.max() >= 150 * MS && all.response.min() > 50 * MS);
    }

    #[test]
    fn failures_have_no_time_and_warming_up_does_not_count() {
        let window = Window { from: Time(10), until: Time(20) };
        let mut pace = Pace::new(Drive::Closed, window, 4);
        for (sent, answered, ending) in
            [(5, 8, Ending::Done), (5, 12, Ending::Done), (12, 15, Ending::Failed)]
        {
            let slot = pace.sent(Time(sent), Direction::Read);
            assert!(pace.answered(Time(answered), slot, ending));
            assert!(!pace.answered(Time(answered), slot, ending), "answered twice");
        }
        let slot = pace.sent(Time(14), Direction::Write);
        assert!(pace.answered(Time(25), slot, Ending::Missed));
        assert!(!pace.answered(Time(25), 99, Ending::Done));
        let stats = pace.end(Time(25));
        // The second was answered in the window, and the last was due in it.
        assert_eq!((stats.answered, stats.failed, stats.missed), (1, 1, 1));
        assert_eq!((stats.reads.count(), stats.writes.count()), (0, 1));
        assert_eq!(stats.writes.service.max(), 11);
    }
}
