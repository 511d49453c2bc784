//! The demand of a client in each period, and its times: the load of the Haechi paper (§III-B).
//!
//! A client drops the operations that it has not begun when their period ends.

use tidegate_model::{Iops, Span, Time};
use tidegate_stage::memory::Period;

/// When a client asks for what it wants of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RequestPattern {
    /// All of it at the beginning of a period.
    #[default]
    Burst,
    /// At equal distances.
    Constant,
}

/// How clients divide a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ReservationDivision {
    /// Equally.
    Uniform,
    /// By Zipf's distribution with exponent 0.6, two clients after the other alike, as in the
    /// Haechi paper.
    Zipf,
}

/// The exponent of the paper's reservations, and how many clients have the same.
const EXPONENT: f64 = 0.6;
const ALIKE: u64 = 2;

impl ReservationDivision {
    /// The part of `all` that the client with number `client` of `clients` has.
    pub(super) fn part(self, all: Iops, client: u64, clients: u64) -> Iops {
        let weight = |client: u64| match self {
            Self::Uniform => 1.0,
            Self::Zipf => ((client / ALIKE + 1) as f64).powf(-EXPONENT),
        };
        let weights: f64 = (0..clients).map(weight).sum();
        // Rounded down, so that parts are together no more than the whole.
        Iops((all.0 as f64 * weight(client) / weights) as u64)
    }
}

/// The demand of a client in each period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Operations per second, counted over a period; without it, as many as can be.
    pub(super) demand: Option<Iops>,
    pub(super) pattern: RequestPattern,
    /// Which client it is, of how many: those that ask at equal distances do not all do so at the
    /// same moments.
    pub(super) share: [u64; 2],
}

/// The rest of a client's demand in the current period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    wish: Wish,
    period: Period,
    count: u64,
    begun: u64,
}

impl Wish {
    /// The demand of a period that begins.
    pub(super) fn of(self, period: Period) -> Wanted {
        let count = self.demand.map_or(u64::MAX, |rate| per_period(rate, period.length));
        Wanted { wish: self, period, count, begun: 0 }
    }
}

/// How many operations of a period are so many per second.
fn per_period(rate: Iops, length: Span) -> u64 {
    let count = u128::from(rate.0) * u128::from(length.0) / u128::from(Span::SECOND.0);
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Wanted {
    pub(super) fn period(&self) -> Period {
        self.period
    }

    /// How many operations it wanted of it.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// When the next operation is due; none if it wants no more.
    pub(super) fn due(&self) -> Option<Time> {
        let Wish { demand, pattern, share: [number, of] } = self.wish;
        let after = match (pattern, demand) {
            (RequestPattern::Constant, Some(_)) => {
                // The first of each client is a part of a distance later than that of another.
                let parts = u128::from(self.begun) * u128::from(of) + u128::from(number);
                let all = u128::from(self.count.max(1)) * u128::from(of);
                Span(u64::try_from(u128::from(self.period.length.0) * parts / all).unwrap_or(0))
            }
            _ => Span::ZERO,
        };
        (self.begun < self.count).then(|| self.period.begun.after(after))
    }

    /// How many are due and not begun; none if as many are wanted as can be.
    pub(super) fn unmet(&self, now: Time) -> Option<u64> {
        let due = match (self.wish.pattern, self.wish.demand) {
            (_, None) => return None,
            (RequestPattern::Burst, Some(_)) => self.count,
            (RequestPattern::Constant, Some(_)) => {
                let passed = now.since(self.period.begun).0.min(self.period.length.0);
                let due = u128::from(self.count) * u128::from(passed);
                u64::try_from(due / u128::from(self.period.length.0.max(1))).unwrap_or(u64::MAX)
            }
        };
        Some(due.saturating_sub(self.begun))
    }

    /// It has begun one.
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Period = Period { epoch: 7, begun: Time(5_000), length: Span(1_000) };

    fn dues(demand: Option<Iops>, pattern: RequestPattern, number: u64) -> Vec<u64> {
        let mut wanted = Wish { demand, pattern, share: [number, 2] }.of(PERIOD);
        let next = || {
            let due = wanted.due()?;
            wanted.begin();
            Some(due.0)
        };
        std::iter::from_fn(next).take(5).collect()
    }

    #[test]
    fn what_is_wanted_is_due_at_once_or_at_distances() {
        let four = Some(Iops(4_000_000));
        assert_eq!(dues(four, RequestPattern::Burst, 1), [5_000; 4]);
        assert_eq!(dues(four, RequestPattern::Constant, 0), [5_000, 5_250, 5_500, 5_750]);
        assert_eq!(dues(four, RequestPattern::Constant, 1), [5_125, 5_375, 5_625, 5_875]);
        assert_eq!(dues(None, RequestPattern::Constant, 1), [5_000; 5]);
        assert!(dues(Some(Iops(0)), RequestPattern::Constant, 0).is_empty());
    }

    #[test]
    fn due_requests_that_have_not_begun_are_known_for_clients_with_a_demand() {
        let unmet = |demand, pattern, at| {
            let mut wanted = Wish { demand, pattern, share: [0, 1] }.of(PERIOD);
            wanted.begin();
            wanted.unmet(Time(at))
        };
        let four =
            |pattern| [5_000, 5_500, 9_000].map(|at| unmet(Some(Iops(4_000_000)), pattern, at));
        assert_eq!(four(RequestPattern::Burst), [Some(3); 3]);
        assert_eq!(four(RequestPattern::Constant), [0, 1, 3].map(Some));
        assert_eq!(unmet(None, RequestPattern::Burst, 5_500), None);
    }

    #[test]
    fn a_reservation_is_divided_as_the_papers_is() {
        let part =
            |division: ReservationDivision, client| division.part(Iops(1_413_000), client, 10).0;
        let zipf: Vec<u64> =
            (0..10).map(|client| part(ReservationDivision::Zipf, client)).collect();
        assert_eq!(zipf[..4], [236_047, 236_047, 155_733, 155_733]);
        assert_eq!(zipf[9], 89_870);
        assert!(zipf.iter().sum::<u64>() <= 1_413_000);
        assert_eq!(part(ReservationDivision::Uniform, 3), 141_300);
    }
}
