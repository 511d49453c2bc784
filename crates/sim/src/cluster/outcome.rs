//! Results of a simulated cluster's run.

use tidegate_model::Span;

use super::clients::SimPromise;
use crate::time::Picoseconds;

/// Results of a run. Counts are of requests that were answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterReport {
    /// The seed that everything followed from.
    pub seed: u64,
    /// The time over which a promise is counted.
    pub period: Span,
    /// The time that one row of `samples` covers.
    pub sample: Span,
    /// Reservation, limit and demand of each tenant.
    pub promises: Vec<SimPromise>,
    /// Per sample of the measured periods, the answered requests of each tenant.
    pub samples: Vec<Vec<u32>>,
    /// Every move of a tenant to other nodes within the measured periods, in the order of time,
    /// which counts from their beginning.
    pub moves: Vec<Move>,
    /// Requests that were made in the whole run.
    pub submitted: u64,
    /// Requests that were answered in the whole run.
    pub answered: u64,
    /// Messages from the controller to nodes, in the whole run.
    pub to_nodes: u64,
    /// Messages from nodes to the controller.
    pub from_nodes: u64,
    /// Events that the world went through.
    pub events: u64,
}

/// A tenant moves to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// When.
    pub at: Picoseconds,
    /// Which tenant.
    pub tenant: usize,
}

impl ClusterReport {
    /// How many periods were measured.
    pub fn periods(&self) -> usize {
        self.samples.len() / self.samples_per_period()
    }

    /// Returns the answered requests of each tenant in one measured period.
    ///
    /// # Panics
    /// If that period was not measured.
    pub fn served(&self, period: usize) -> Vec<u64> {
        let count = self.samples_per_period();
        let mut served = vec![0; self.promises.len()];
        for sample in &self.samples[period * count..(period + 1) * count] {
            for (sum, count) in served.iter_mut().zip(sample) {
                *sum += u64::from(*count);
            }
        }
        served
    }

    /// How many tenants got at least `permille` of their reservation in one measured period.
    pub fn met(&self, period: usize, permille: u64) -> usize {
        let served = self.served(period);
        let pairs = served.iter().zip(&self.promises);
        let met = pairs.filter(|(served, promise)| {
            let promised = in_period(promise.reservation.0, self.period);
            u128::from(**served) * 1_000 >= promised * u128::from(permille)
        });
        met.count()
    }

    /// How many tenants got more than their limit in one measured period.
    pub fn above_limit(&self, period: usize) -> usize {
        let served = self.served(period);
        let pairs = served.iter().zip(&self.promises);
        let above = pairs.filter(|(served, promise)| {
            let limit = promise.limit.map(|limit| in_period(limit.0, self.period));
            limit.is_some_and(|limit| u128::from(**served) > limit)
        });
        above.count()
    }

    fn samples_per_period(&self) -> usize {
        (self.period.0 / self.sample.0.max(1)).max(1) as usize
    }

    /// A table for people and golden files: one line for each sample, one column for each tenant.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (number, sample) in (1u64..).zip(&self.samples) {
            text.push_str(&format!("{:>8}", Span(self.sample.0 * number).to_string()));
            sample.iter().for_each(|count| text.push_str(&format!(" {count:>7}")));
            text.push('\n');
        }
        for period in 0..self.periods() {
            text.push_str(&format!("period {period}"));
            self.served(period).iter().for_each(|sum| text.push_str(&format!(" {sum:>7}")));
            text.push('\n');
        }
        text
    }
}

/// Returns the amount in a period at a rate per second, rounded down.
pub(super) fn in_period(per_second: u64, period: Span) -> u128 {
    u128::from(per_second) * u128::from(period.0) / u128::from(Span::SECOND.0)
}
