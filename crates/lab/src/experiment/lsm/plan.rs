//! The sizes of the experiment: those of the paper, scaled to two processors and some seconds.

use tidegate_model::{Iops, Rate, Span};

use crate::lsm::{Bursts, LsmPlannedLoad, OwnLimiter};

/// Rates are the paper's, divided by this: two processors serve no more.
const RATES: u64 = 4;

/// The paper's limit of the disk, and its rates of operations.
const PAPER_LIMIT: Rate = Rate(200 << 20);
const PAPER_PEAK: Iops = Iops(20_000);
const PAPER_VALLEY: Iops = Iops(5_000);

/// The paper's seconds: the first valley, each peak, each other valley, and the part that its
/// figures show.
const PAPER_FIRST_VALLEY: u64 = 300;
const PAPER_PEAK_LENGTH: u64 = 100;
const PAPER_VALLEY_LENGTH: u64 = 10;
pub(super) const PAPER_SECONDS: u64 = 1_200;

/// Keys of the store: 256 MiB, so that there are four levels. The paper has a hundred million.
const KEYS: u64 = 1 << 18;

/// The room that stores take on the disk, in MiB: the first, and what a run adds to its copy, of
/// which there is one at a time.
pub(super) const DISK_MIB: u64 = 2_048;

/// A mixture of reads and writes, and its figure in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LsmMixture {
    Half,
    ReadHeavy,
    WriteHeavy,
}

impl LsmMixture {
    pub(super) const fn figure(self) -> &'static str {
        match self {
            Self::Half => "5",
            Self::ReadHeavy => "6",
            Self::WriteHeavy => "7",
        }
    }

    pub(super) const fn read_percent(self) -> u64 {
        match self {
            Self::Half => 50,
            Self::ReadHeavy => 90,
            Self::WriteHeavy => 10,
        }
    }
}

/// The limiter of flushes and compactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LsmSystem {
    /// Nothing but the disk.
    RocksDb,
    /// RocksDB's limiter of writes, whose rate follows the backlog.
    AutoTuned,
    /// RocksDB's limiter of writes with one rate.
    Static,
    /// `tidegate run --profile lsm`.
    Tidegate,
}

impl LsmSystem {
    pub(super) const ALL: [Self; 4] =
        [Self::RocksDb, Self::AutoTuned, Self::Static, Self::Tidegate];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "RocksDB",
            Self::AutoTuned => "auto-tuned",
            Self::Static => "static",
            Self::Tidegate => "Tidegate",
        }
    }

    /// Its name among measured numbers.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::AutoTuned => "auto_tuned",
            Self::Static => "static",
            Self::Tidegate => "tidegate",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LsmPlan {
    pub(super) mixture: LsmMixture,
    pub(super) keys: u64,
    pub(super) bursts: Bursts,
    /// The kernel's limit of what is read, and of what is written.
    pub(super) limit: Rate,
    /// The rate that `tidegate run` allows both together. A compaction reads for a while and then
    /// writes, so no greater budget keeps both below the kernel's limit, and requests out of the
    /// queue at the disk, which does not know their kinds.
    pub(super) budget: Rate,
}

impl LsmPlan {
    /// A run of so many seconds. All times are shortened in the same way, to whole milliseconds.
    pub(super) fn new(mixture: LsmMixture, seconds: u64) -> Self {
        let scaled = |paper: u64| {
            let ms = paper * 1_000 * seconds / PAPER_SECONDS;
            Span(ms.max(1) * Span::MILLISECOND.0)
        };
        let limit = Rate(PAPER_LIMIT.0 / RATES);
        Self {
            mixture,
            keys: KEYS,
            bursts: Bursts {
                valley: Iops(PAPER_VALLEY.0 / RATES),
                peak: Iops(PAPER_PEAK.0 / RATES),
                first_valley: scaled(PAPER_FIRST_VALLEY),
                peak_length: scaled(PAPER_PEAK_LENGTH),
                valley_length: scaled(PAPER_VALLEY_LENGTH),
                total: Span(seconds * Span::SECOND.0),
            },
            limit,
            budget: limit,
        }
    }

    pub(super) fn load(&self, system: LsmSystem) -> LsmPlannedLoad {
        let limiter = match system {
            LsmSystem::RocksDb | LsmSystem::Tidegate => OwnLimiter::None,
            // As RocksDB's authors advise: what the disk gives at most.
            LsmSystem::AutoTuned => OwnLimiter::AutoTuned(self.limit),
            // The budget, half of which compactions read.
            LsmSystem::Static => OwnLimiter::Static(Rate(self.budget.0 / 2)),
        };
        LsmPlannedLoad {
            keys: self.keys,
            read_percent: self.mixture.read_percent(),
            bursts: self.bursts,
            limiter,
            seed: 1,
        }
    }

    /// The first whole second after the first valley.
    pub(super) fn first_busy_second(&self) -> usize {
        let seconds = self.bursts.first_valley.0.div_ceil(Span::SECOND.0);
        usize::try_from(seconds).unwrap_or(usize::MAX)
    }

    /// The first second after the first peak.
    pub(super) fn first_peak_end(&self) -> usize {
        let seconds = self.bursts.first_peak_end().0.div_ceil(Span::SECOND.0);
        usize::try_from(seconds).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_the_papers_times_and_a_short_one_is_shortened_evenly() {
        let seconds = |span: Span| span.as_seconds();
        let long = LsmPlan::new(LsmMixture::Half, PAPER_SECONDS);
        let Bursts { first_valley, peak_length, valley_length, .. } = long.bursts;
        assert_eq!([first_valley, peak_length, valley_length].map(seconds), [300.0, 100.0, 10.0]);
        assert_eq!((long.first_busy_second(), long.first_peak_end()), (300, 400));
        let short = LsmPlan::new(LsmMixture::Half, 24);
        let Bursts { first_valley, peak_length, valley_length, .. } = short.bursts;
        assert_eq!([first_valley, peak_length, valley_length].map(seconds), [6.0, 2.0, 0.2]);
    }

    #[test]
    fn own_limiters_are_of_their_systems_alone() {
        let plan = LsmPlan::new(LsmMixture::Half, 24);
        let limiters = LsmSystem::ALL.map(|system| plan.load(system).limiter);
        let expected = [
            OwnLimiter::None,
            OwnLimiter::AutoTuned(Rate(50 << 20)),
            OwnLimiter::Static(Rate(25 << 20)),
            OwnLimiter::None,
        ];
        assert_eq!(limiters, expected);
        assert_eq!(plan.budget, Rate(50 << 20));
    }
}
