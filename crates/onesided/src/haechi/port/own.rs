//! Operations that the engine itself posts to the connection, and the use of their answers: grants,
//! reports and the pool.

use tidegate_algo::onesided::Mode;
use tidegate_algo::onesided::capacity::{PeriodUsage, WHOLE};
use tidegate_algo::onesided::monitor::ClientReport;
use tidegate_model::{Span, Time};

use super::{GUARD, IssueRight, OWN, Port, RETRY, word};
use crate::haechi::words::{self, FINALS, GRANT, Grant, PoolWord};
use crate::haechi::{TICK, region_layout};
use crate::one_sided::{BufferPosition, Done, Lost, Operation, Post, RemoteMemory, WORD};

/// How often a client reads its grant, at first and later.
const READ_PAUSE: [Span; 2] = [Span(50_000), TICK];

/// For how long it reads the grant often.
const EAGER: Span = Span(3 * Span::MILLISECOND.0);

/// How long a client waits between reports, at least and at most, in ticks. In between it reports
/// once in [`PER_REPORT`] operations; one that has nothing to do waits as long as it may.
const REPORT: [u64; 2] = [2, 5];

/// Operations for which a report is worth its own.
const PER_REPORT: u64 = 512;

/// Pool tokens for which it is worth asking for them. A client that gets fewer waits longer.
const PER_TAKE: u64 = 256;

const GRANT_READ: u64 = OWN | 1;
const REPORTED: u64 = OWN | 2;
const FINISHED: u64 = OWN | 3;
const TOOK: u64 = OWN | 4;

impl<F: RemoteMemory> Port<F> {
    fn post_own(&mut self, id: u64, operation: Operation) -> Result<(), Lost> {
        self.counts.own += 1;
        // Its window has headroom for these, and they are inside the control area.
        self.remote.post(Post { id, operation }).map_err(|_| Lost)
    }

    pub(super) fn read_grant(&mut self, now: Time) -> Result<(), Lost> {
        let end = self.balance.period().end();
        let is_due = now.after(GUARD) >= end && now.since(end) < EAGER;
        let is_eager = is_due || now.since(self.unsure) < EAGER;
        self.grant_read = now.after(READ_PAUSE[usize::from(!is_eager)]);
        if core::mem::replace(&mut self.own.grant_read, true) {
            return Ok(());
        }
        self.requested = now;
        self.post_own(
            GRANT_READ,
            Operation::Read {
                from: region_layout::line(region_layout::GRANTS, self.session_slot),
                into: BufferPosition::start(self.remote.buffers() - 1),
                length: (GRANT as u64 * WORD) as u32,
            },
        )
    }

    fn on_grant(&mut self, now: Time) -> Result<(), Lost> {
        let buffer = self.remote.buffer(self.remote.buffers() - 1);
        let words = core::array::from_fn(|at| word(buffer, at));
        let period = self.balance.period();
        match Grant::read(words, period.epoch) {
            Some(grant) if grant.epoch > period.epoch => return self.begin(grant, now),
            // Alone it stays until there is a new period.
            Some(_) if self.state == IssueRight::Alone => {}
            Some(grant) => {
                if grant.is_void {
                    self.balance.void();
                }
                if self.is_answer_current() && now < period.end() {
                    self.state = IssueRight::Sure;
                }
            }
            // The session slot is another's, or will be.
            None if words == [0; GRANT] => {
                self.balance.void();
                (self.state, self.confirmed) = (IssueRight::Unsure, now);
            }
            None => {}
        }
        self.unchanged = Some(self.requested);
        Ok(())
    }

    /// Whether the answer is to what it requested since it is unsure, after its report.
    pub(super) fn is_answer_current(&self) -> bool {
        !self.owes_report && self.requested >= self.unsure
    }

    /// A part of the period so far, in 255ths.
    fn part(&self, of: Span) -> u8 {
        let part = u128::from(of.0) * u128::from(WHOLE) / u128::from(self.length.0);
        part.min(WHOLE.into()) as u8
    }

    pub(super) fn send_final(&mut self) -> Result<(), Lost> {
        let epoch = self.balance.period().epoch;
        let outcome = PeriodUsage {
            completed: self.completed,
            starved: self.part(self.starved),
            backlogged: self.part(self.backlogged),
            unmet: self.unmet,
        };
        if core::mem::replace(&mut self.own.finish, true) {
            return Ok(());
        }
        let line = region_layout::line(region_layout::REPORTS, self.session_slot);
        let to = line + (FINALS as u64 + (epoch & 1)) * WORD;
        let word = words::last(epoch, &outcome);
        self.post_own(FINISHED, Operation::WriteWord { word, to })
    }

    /// How long to wait between reports, at least and at most: see [`REPORT`].
    fn report_pauses(&self) -> [Span; 2] {
        REPORT.map(|ticks| Span(ticks * self.rules.grain.tick.0))
    }

    /// For how long not to report, if there is as much to do as since the last report.
    fn report_pause(&self, now: Time) -> Span {
        let (passed, done) = (now.since(self.last_sent), self.counts.operations - self.reported);
        let pause = passed.0.saturating_mul(PER_REPORT) / done.max(1);
        let [least, most] = self.report_pauses();
        Span(pause).clamp(least, most)
    }

    pub(super) fn send_report(&mut self, now: Time) -> Result<(), Lost> {
        let is_busy = self.is_busy();
        let [_, longest] = self.report_pauses();
        let pause = match (self.rules.pool, is_busy) {
            (Mode::Paper, _) => self.rules.grain.tick,
            (Mode::Sound, true) => self.report_pause(now),
            (Mode::Sound, false) => longest,
        };
        if self.own.report {
            self.report = now.after(READ_PAUSE[0]);
            return Ok(());
        }
        if self.state == IssueRight::Alone && !self.owes_report {
            // Operations that are done alone belong to no period of a monitor.
            self.report = now.after(longest);
            return Ok(());
        }
        self.report = now.after(pause);
        self.own.report = true;
        (self.last_sent, self.reported, self.owes_report) = (now, self.counts.operations, false);
        let counts = self.balance.usage();
        let is_starved = self.is_out_of_tokens();
        let report = ClientReport {
            residual: self.balance.reserved(),
            completed: self.completed,
            in_hand: self.balance.pool(),
            in_flight: self.in_flight.into(),
            obtained: counts.obtained,
            yielded: counts.yielded,
            is_busy,
            is_starved: is_starved && self.balance.lacks() > 0,
            is_limited: is_starved && self.balance.lacks() == 0,
            is_leaving: self.is_leaving,
        };
        self.beat = self.beat.wrapping_add(1);
        let words = words::report(self.balance.period().epoch, self.beat, &report);
        let buffer = self.remote.buffers() - 2;
        let bytes = self.remote.buffer_mut(buffer);
        for (at, word) in words.iter().enumerate() {
            bytes[at * WORD as usize..][..WORD as usize].copy_from_slice(&word.to_le_bytes());
        }
        self.post_own(
            REPORTED,
            Operation::Write {
                from: BufferPosition::start(buffer),
                to: region_layout::line(region_layout::REPORTS, self.session_slot),
                length: (words::REPORT as u64 * WORD) as u32,
            },
        )
    }

    /// Takes a batch from the pool if it is about to need one.
    pub(super) fn fetch(&mut self, now: Time) -> Result<(), Lost> {
        let mark = match self.rules.pool {
            Mode::Paper => 0,
            Mode::Sound => u64::from(self.window / 2),
        };
        let hand = self.balance.ready();
        let wants = self.state == IssueRight::Sure
            && self.own.take.is_none()
            && hand <= mark
            && self.balance.lacks() > 0
            && (hand < self.waiting.len() as u64 || self.in_flight >= self.window)
            && now >= self.retry
            && now < self.balance.period().end();
        if !wants {
            return Ok(());
        }
        let batch = u64::from(self.batch).min(self.balance.lacks());
        self.own.take = Some(batch);
        self.post_own(
            TOOK,
            Operation::FetchAdd { at: region_layout::POOL, add: batch.wrapping_neg() },
        )
    }

    fn on_pool(&mut self, now: Time, word: u64, batch: u64) {
        let pool = PoolWord::read(word);
        let period = self.balance.period();
        if !pool.is_of(period.epoch) {
            // A period has begun that this client has not noticed yet, or the answer is of the one
            // before. Either way these are not tokens of this one.
            self.retry = now.after(TICK);
            if pool.epoch.wrapping_sub(period.epoch as u16) as i16 > 0 {
                self.doubt(now);
            }
            return;
        }
        if self.state == IssueRight::Alone || now >= period.end().after(GUARD) {
            return;
        }
        let tokens = u64::try_from(pool.tokens).unwrap_or(0).min(batch);
        self.balance.put(tokens);
        self.again = if tokens > 0 { now } else { self.again };
        if tokens == batch {
            (self.retry, self.pause) = (now, RETRY[0]);
            return;
        }
        // Clients that found nothing together should not come back together. Nothing is to be left
        // when the period is over.
        let spread = (u64::from(self.session_slot.0) * 0x9E37 + u64::from(self.beat) * 0x79B9) % 16;
        let rest = period.end().since(now).0 / 2;
        let pause = (self.pause.0 + self.pause.0 * spread / 64).min(rest.max(RETRY[0].0));
        self.retry = now.after(Span(pause));
        let is_few = match self.rules.pool {
            Mode::Paper => tokens == 0,
            Mode::Sound => tokens < PER_TAKE,
        };
        self.pause = match is_few {
            true => Span((2 * self.pause.0).min(RETRY[1].0)),
            false => RETRY[0],
        };
    }

    pub(super) fn on_own(&mut self, now: Time, done: Done) -> Result<(), Lost> {
        match done.id {
            GRANT_READ => {
                self.own.grant_read = false;
                self.on_grant(now)?;
            }
            REPORTED => (self.own.report, self.last_arrived) = (false, self.last_sent),
            FINISHED => self.own.finish = false,
            _ => {
                if let Some(batch) = self.own.take.take() {
                    self.on_pool(now, done.word, batch);
                }
            }
        }
        Ok(())
    }
}
