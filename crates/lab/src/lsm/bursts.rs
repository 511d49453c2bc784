//! When operations are due: a first valley, then peaks and valleys by turns until the end.
//!
//! The times do not depend on the store's replies. Where the store falls behind, operations wait,
//! and their latency counts from when they were due.

use tidegate_model::{Iops, Span, Time};

/// The rates of peaks and valleys, and how long each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bursts {
    pub(crate) valley: Iops,
    pub(crate) peak: Iops,
    pub(crate) first_valley: Span,
    pub(crate) peak_length: Span,
    pub(crate) valley_length: Span,
    pub(crate) total: Span,
}

/// A time with one rate.
#[derive(Clone, Copy, Debug)]
struct BurstPhase {
    from: Time,
    rate: Iops,
    /// Operations that are due in it.
    operations: u64,
}

impl BurstPhase {
    fn new(from: Time, to: Time, rate: Iops) -> Self {
        Self { from, rate, operations: within(to.since(from), rate) }
    }

    /// When the operation of this index in the phase is due.
    fn due(&self, index: u64) -> Time {
        let after = u128::from(index) * u128::from(Span::SECOND.0) / u128::from(self.rate.0);
        self.from.after(Span(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

/// Operations whose time is before `span`, if the first is due at once: rounded up.
fn within(span: Span, rate: Iops) -> u64 {
    let product = u128::from(span.0) * u128::from(rate.0);
    u64::try_from(product.div_ceil(u128::from(Span::SECOND.0))).unwrap_or(u64::MAX)
}

impl Bursts {
    fn phases(&self) -> impl Iterator<Item = BurstPhase> {
        let end = Time(self.total.0);
        let mut from = Time::ZERO;
        (0_u64..).map_while(move |number| {
            let (length, rate) = match number {
                0 => (self.first_valley, self.valley),
                odd if odd % 2 == 1 => (self.peak_length, self.peak),
                _ => (self.valley_length, self.valley),
            };
            let to = from.after(length).min(end);
            let phase = (from < end).then(|| BurstPhase::new(from, to, rate));
            from = to;
            phase
        })
    }

    /// When the operation of this index is due; none after the last.
    pub(crate) fn due(&self, index: u64) -> Option<Time> {
        let mut left = index;
        for phase in self.phases() {
            if left < phase.operations {
                return Some(phase.due(left));
            }
            left -= phase.operations;
        }
        None
    }

    /// Operations that are due before `time`.
    pub(crate) fn due_before(&self, time: Time) -> u64 {
        let before =
            |phase: BurstPhase| within(time.since(phase.from), phase.rate).min(phase.operations);
        self.phases().map(before).sum()
    }

    /// Operations that are due at all.
    pub(crate) fn count(&self) -> u64 {
        self.due_before(Time::MAX)
    }

    /// The end of the first peak.
    pub(crate) fn first_peak_end(&self) -> Time {
        Time(self.first_valley.0 + self.peak_length.0).min(Time(self.total.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Span {
        Span(ms * Span::MILLISECOND.0)
    }

    #[test]
    fn peaks_and_valleys_take_turns() {
        let bursts = Bursts {
            valley: Iops(10),
            peak: Iops(40),
            first_valley: ms(300),
            peak_length: ms(100),
            valley_length: ms(200),
            total: ms(700),
        };
        let dues = (0..).map_while(|index| bursts.due(index));
        let dues: Vec<u64> = dues.map(|due| due.0 / Span::MILLISECOND.0).collect();
        assert_eq!(dues, [0, 100, 200, 300, 325, 350, 375, 400, 500, 600, 625, 650, 675]);
        assert_eq!(bursts.count(), 13);
        assert_eq!(bursts.first_peak_end(), Time(ms(400).0));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_times(
            rates in (1_u64..2_000, 1_u64..2_000),
            lengths in (0_u64..500, 40_u64..500, 40_u64..500),
            total in 1_u64..1_500,
            at in 0_u64..2_000,
        ) {
            let bursts = Bursts {
                valley: Iops(rates.0),
                peak: Iops(rates.1),
                first_valley: ms(lengths.0),
                peak_length: ms(lengths.1),
                valley_length: ms(lengths.2),
                total: ms(total),
            };
            let dues: Vec<Time> = (0..).map_while(|index| bursts.due(index)).collect();
            prop_assert!(dues.is_sorted());
            prop_assert!(dues.iter().all(|due| due.0 < bursts.total.0));
            prop_assert_eq!(dues.len() as u64, bursts.count());
            let at = Time(ms(at).0);
            let before = dues.iter().filter(|due| **due < at).count();
            prop_assert_eq!(before as u64, bursts.due_before(at));
        }
    }
}
