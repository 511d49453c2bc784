//! The end of a period whose final reports are still missing: clients send them when they see the
//! next period begin. The monitor reads them, learns from them, and emits a summary.

use alloc::vec::Vec;

use tidegate_algo::onesided::capacity::{Lesson, PeriodUsage, WHOLE};
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::LINE;
use tidegate_model::{SessionSlot, Span, Time};

use super::{GRACE, Monitor, MonitorEvent, Summary, WRITE};
use crate::haechi::region_layout;
use crate::haechi::words::{self, FINALS};
use crate::one_sided::{Operation, RemoteMemory};

/// A period whose final words are still to be read.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    epoch: u64,
    pub(super) at: Time,
    capacity: u64,
    minted: u64,
    granted: u64,
    held: u8,
    /// Reservation tokens that were yielded too late to be used; then tokens that no client took.
    late: u64,
    spare: u64,
    session_slots: Vec<Option<(Promise, PeriodUsage)>>,
    busy: Vec<bool>,
}

impl<F: RemoteMemory> Monitor<F> {
    /// Notes the facts that are known of a period that is over.
    pub(super) fn shut(&mut self, now: Time, events: &mut Vec<MonitorEvent>) {
        if self.closing.is_some() {
            self.close(events);
        }
        let length = self.settings.parameters.period.0.max(1);
        let held = core::mem::take(&mut self.held).0.min(length);
        let result = |number: SessionSlot| {
            let session_slot =
                self.client_table.get(number).filter(|session_slot| session_slot.is_in)?;
            let report = self.account.report(number.index()).unwrap_or_default();
            let outcome = PeriodUsage { completed: report.completed, ..PeriodUsage::default() };
            Some((session_slot.promise, outcome))
        };
        let is_busy =
            |number: SessionSlot| self.account.report(number.index()).is_some_and(|it| it.is_busy);
        let all = || (0..self.settings.session_slots).map(SessionSlot);
        self.closing = Some(Closing {
            epoch: self.epoch,
            at: now.after(GRACE),
            capacity: self.account.capacity(),
            minted: self.account.minted(),
            granted: self.account.granted(),
            late: self.account.late(),
            spare: self.account.spare(),
            held: (u128::from(held) * u128::from(WHOLE) / u128::from(length)) as u8,
            session_slots: all().map(result).collect(),
            busy: all().map(is_busy).collect(),
        });
    }

    /// Whether all have written their final words of a period.
    pub(super) fn has_all_finals(&self, closing: &Closing) -> bool {
        let mut session_slots = (0..)
            .map(SessionSlot)
            .zip(&closing.session_slots)
            .filter(|(_, session_slot)| session_slot.is_some());
        session_slots.all(|(number, _)| {
            words::read_last(self.line(number)[final_at(closing.epoch)], closing.epoch).is_some()
        })
    }

    /// Reads the final words of the period before, and learns from it.
    pub(super) fn close(&mut self, events: &mut Vec<MonitorEvent>) {
        let Some(mut closing) = self.closing.take() else { return };
        let final_at = final_at(closing.epoch);
        for (number, session_slot) in closing.session_slots.iter_mut().enumerate() {
            let Some((_, outcome)) = session_slot else { continue };
            let word = self.line(SessionSlot::at(number))[final_at];
            *outcome = words::read_last(word, closing.epoch).unwrap_or(*outcome);
        }
        let outcomes: Vec<_> = closing.session_slots.iter().flatten().map(|(_, o)| *o).collect();
        let windows = u64::from(self.settings.window) * outcomes.len() as u64;
        let Closing { capacity, late, spare, held, .. } = closing;
        let line = self.due(capacity, LINE[0]);
        let lesson = Lesson {
            tokens: capacity.saturating_sub(late),
            slack: windows.min(line)
                + self.due(capacity, Span(2 * self.settings.parameters.rules.grain.tick.0)),
            spare,
            held,
            outcomes: &outcomes,
        };
        let verdict = self.estimator.learn(&lesson);
        let learned = self.estimator.capacity();
        self.account.revise(learned);
        self.published_capacity = learned;
        self.post(WRITE, Operation::WriteWord { word: learned, to: region_layout::LEARNED });
        for (number, result) in closing.session_slots.iter().enumerate() {
            events.extend(result.and_then(|result| {
                self.client_table.count_unused(SessionSlot::at(number), result)
            }));
        }
        let Closing { epoch, minted, granted, session_slots, busy, .. } = closing;
        let summary =
            Summary { epoch, capacity, minted, granted, held, verdict, session_slots, busy };
        events.push(MonitorEvent::Over(summary));
    }
}

/// Where the final word of a period is, in words from the beginning of the line.
const fn final_at(epoch: u64) -> usize {
    FINALS + (epoch & 1) as usize
}
