//! Results of a simulation of one-sided access.

use tidegate_model::Span;
use tidegate_onesided::haechi::MonitorEvent;

use super::client::Latency;
use super::network::OperationCounts;

/// One period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Reads that each client has completed.
    pub completed: Vec<u64>,
    /// Reads of all jobs besides.
    pub background: u64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OneSidedReport {
    /// The seed that everything followed from.
    pub seed: u64,
    /// How long a period is.
    pub period: Span,
    /// The lesser of each client's reservation and demand, in reads per period.
    pub promised: Vec<u64>,
    /// The measured periods.
    pub samples: Vec<Sample>,
    /// How long each client's reads took, in all of them.
    pub latency: Vec<Latency>,
    /// Operations of each client at the data node, in the whole run.
    pub counts: Vec<OperationCounts>,
    /// Events of the monitor, if there is one, in the whole run.
    pub events: Vec<MonitorEvent>,
}

impl OneSidedReport {
    /// Reads of a client per second, period by period.
    pub fn rates(&self, client: usize) -> impl Iterator<Item = f64> {
        self.per_second(move |sample| sample.completed[client])
    }

    /// Reads of all clients per second, period by period, without those of background jobs.
    pub fn totals(&self) -> impl Iterator<Item = f64> {
        self.per_second(|sample| sample.completed.iter().sum())
    }

    /// Reads of a client per second, over the whole time.
    pub fn mean(&self, client: usize) -> f64 {
        self.rates(client).sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// Reads of all clients per second, over the whole time.
    pub fn total(&self) -> f64 {
        self.totals().sum::<f64>() / self.samples.len().max(1) as f64
    }

    fn per_second(&self, count: impl Fn(&Sample) -> u64) -> impl Iterator<Item = f64> {
        let seconds = self.period.as_seconds();
        self.samples.iter().map(move |sample| count(sample) as f64 / seconds)
    }

    /// By how much of its promise a client was served too little in the worst period, in percent;
    /// 0 if it always had it.
    pub fn missing_percent(&self, client: usize) -> f64 {
        let promised = self.promised[client];
        let least = self.samples.iter().map(|sample| sample.completed[client]).min().unwrap_or(0);
        promised.saturating_sub(least) as f64 * 100.0 / promised.max(1) as f64
    }

    /// A table for people and golden files: reads of each client, of all, and of jobs besides, a
    /// line per period.
    pub fn table(&self) -> String {
        let mut text = format!("{:>8}", "");
        (1..=self.latency.len())
            .for_each(|client| text += &format!(" {:>7}", format!("C{client}")));
        text += &format!(" {:>8} {:>8}\n", "all", "besides");
        for (number, sample) in (1u64..).zip(&self.samples) {
            text += &format!("{:>8}", Span(self.period.0 * number).to_string());
            sample.completed.iter().for_each(|count| text += &format!(" {count:>7}"));
            let all: u64 = sample.completed.iter().sum();
            text += &format!(" {all:>8} {:>8}\n", sample.background);
        }
        text
    }
}
