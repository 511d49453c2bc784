//! Results of a DSFQ simulation.

use tidegate_model::Span;

use super::unfairness::Unfairness;

/// One stream at one brick in one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCell {
    /// Bytes that were served.
    pub bytes: u64,
    /// Requests, or parts of them, that were answered.
    pub requests: u64,
    /// How long those took in sum, as their threads saw it, in nanoseconds.
    pub took_ns: u64,
    /// For how long something was waiting, in nanoseconds.
    pub waiting_ns: u64,
    /// The longest time that one of those that went to the disks had waited, in nanoseconds.
    pub wait_most_ns: u64,
    /// Threads that asked at the end of the sample.
    pub threads: u32,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsfqReport {
    /// The seed that everything followed from.
    pub seed: u64,
    /// The time that one sample covers.
    pub sample: Span,
    /// The streams' names.
    pub streams: Vec<String>,
    /// How many bricks there are.
    pub bricks: usize,
    /// Per sample, stream by stream in the order of the bricks.
    pub samples: Vec<Vec<SampleCell>>,
    /// Between the first two streams at the first brick, in the whole run.
    pub unfairness: Unfairness,
    /// Messages of coordinators to bricks that no request carried, in the whole run.
    pub announced: u64,
    /// Events that the world went through.
    pub events: u64,
}

impl DsfqReport {
    /// Of a sample, a stream at one brick, or at all of them together.
    pub fn cell(&self, sample: usize, stream: usize, brick: Option<usize>) -> SampleCell {
        let cells = &self.samples[sample][stream * self.bricks..(stream + 1) * self.bricks];
        match brick {
            Some(brick) => cells[brick],
            None => cells.iter().fold(SampleCell::default(), |sum, cell| sum.and(cell)),
        }
    }

    /// Bytes per second of a stream at one brick, or at all of them, in each sample.
    pub fn rates(&self, stream: usize, brick: Option<usize>) -> Vec<f64> {
        let seconds = self.sample.as_seconds();
        let rate = |sample| self.cell(sample, stream, brick).bytes as f64 / seconds;
        (0..self.samples.len()).map(rate).collect()
    }

    /// Bytes per second of a stream at one brick, or at all of them, over the whole time.
    pub fn mean(&self, stream: usize, brick: Option<usize>) -> f64 {
        let rates = self.rates(stream, brick);
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    }

    /// Requests, or parts of them, of a stream at one brick, or at all of them, per second over the
    /// whole time.
    pub fn operations(&self, stream: usize, brick: Option<usize>) -> f64 {
        let whole = Span(self.sample.0 * self.samples.len() as u64);
        self.all(stream, brick).requests as f64 / whole.as_seconds()
    }

    /// How long a request of a stream took on average, in seconds; none if there were none.
    pub fn latency(&self, stream: usize, brick: Option<usize>) -> Option<f64> {
        let all = self.all(stream, brick);
        (all.requests > 0).then(|| Span(all.took_ns / all.requests).as_seconds())
    }

    fn all(&self, stream: usize, brick: Option<usize>) -> SampleCell {
        let cells = (0..self.samples.len()).map(|sample| self.cell(sample, stream, brick));
        cells.fold(SampleCell::default(), |sum, cell| sum.and(&cell))
    }

    /// A table for people and golden files: KiB of each stream at each brick, a line per sample,
    /// and the unfairness.
    pub fn table(&self) -> String {
        let mut text = format!("{:>8}", "");
        for stream in &self.streams {
            (0..self.bricks).for_each(|brick| text.push_str(&format!(" {stream:>7}@{brick}")));
        }
        text.push('\n');
        for (number, sample) in (1u64..).zip(&self.samples) {
            text.push_str(&format!("{:>8}", Span(self.sample.0 * number).to_string()));
            sample.iter().for_each(|cell| text.push_str(&format!(" {:>9}", cell.bytes >> 10)));
            text.push('\n');
        }
        let [measured, bound] = [self.unfairness.measured(), self.unfairness.bound()];
        let kib = |bytes: f64| bytes as u64 >> 10;
        text + &format!("unfairness {} of {} KiB\n", kib(measured), kib(bound))
    }
}

impl SampleCell {
    /// Both together. Of the threads the larger number counts, for one may ask several bricks.
    fn and(self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            requests: self.requests + other.requests,
            took_ns: self.took_ns + other.took_ns,
            waiting_ns: self.waiting_ns + other.waiting_ns,
            wait_most_ns: self.wait_most_ns.max(other.wait_most_ns),
            threads: self.threads.max(other.threads),
        }
    }
}
