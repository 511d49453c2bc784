//! The sizes of the experiment: those of the paper, scaled to two processors and some seconds.

use tidegate_model::{Iops, Rate, Span};

use crate::lsm::{Bursts, LsmPlannedLoad, OwnLimiter};

/// The profile of `tidegate run` for these stores.
const PROFILE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/profiles/lsm.toml"));

/// The priority of deep compactions in the profile, and the same with SILK's rule: they may be
/// paused, where PAIO leaves them a minimum rate.
const LOW: &str = "background = \"low\"";
const LOW_AND_PAUSED: &str = "background = \"low\"\nminimum = \"0B/s\"";

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

/// Of the rate that an unlimited disk reads at by itself, this many percent are the budget of reads
/// and writes together: the paper sets it closer to the device's limit than the clients need.
const BUDGET_PERCENT: u64 = 90;

/// A mixture of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LsmMixture {
    Half,
    ReadHeavy,
    WriteHeavy,
}

impl LsmMixture {
    pub(super) const fn read_percent(self) -> u64 {
        match self {
            Self::Half => 50,
            Self::ReadHeavy => 90,
            Self::WriteHeavy => 10,
        }
    }
}

/// The disk below a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LsmDisk {
    /// The real one, which the kernel limits.
    Limited,
    /// The real one as it is, in the place of the paper's SATA SSD.
    Real,
    /// One in memory as it is: a fast one, in the place of the paper's NVMe device.
    InMemory,
}

/// An experiment of the paper with RocksDB, and its figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LsmExperiment {
    pub(crate) figure: &'static str,
    pub(super) mixture: LsmMixture,
    pub(super) disk: LsmDisk,
}

impl LsmExperiment {
    pub(crate) const FIGURE_5: Self = Self::new("5", LsmMixture::Half, LsmDisk::Limited);
    pub(crate) const FIGURE_6: Self = Self::new("6", LsmMixture::ReadHeavy, LsmDisk::Limited);
    pub(crate) const FIGURE_7: Self = Self::new("7", LsmMixture::WriteHeavy, LsmDisk::Limited);
    pub(crate) const FIGURE_8: Self = Self::new("8", LsmMixture::Half, LsmDisk::Real);
    pub(crate) const FIGURE_9: Self = Self::new("9", LsmMixture::Half, LsmDisk::InMemory);
    const ALL: [Self; 5] =
        [Self::FIGURE_5, Self::FIGURE_6, Self::FIGURE_7, Self::FIGURE_8, Self::FIGURE_9];

    const fn new(figure: &'static str, mixture: LsmMixture, disk: LsmDisk) -> Self {
        Self { figure, mixture, disk }
    }

    pub(super) const fn systems(self) -> &'static [LsmSystem] {
        match self.disk {
            LsmDisk::Limited => &LsmSystem::LIMITED,
            LsmDisk::Real | LsmDisk::InMemory => &LsmSystem::UNLIMITED,
        }
    }

    /// The experiment of this figure, if it is one with RocksDB.
    pub(crate) fn find(figure: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.figure == figure)
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
    /// SILK's rules, on the hooks of Tidegate: all that they give to deep compactions is what no
    /// other kind of request wants. SILK also preempts compactions, which no program outside of
    /// the store can.
    Silk,
    /// `tidegate run --profile lsm`.
    Tidegate,
}

impl LsmSystem {
    /// The systems of figures 5 to 7.
    pub(super) const LIMITED: [Self; 5] =
        [Self::RocksDb, Self::AutoTuned, Self::Static, Self::Silk, Self::Tidegate];
    /// Those of figures 8 and 9.
    pub(super) const UNLIMITED: [Self; 3] = [Self::RocksDb, Self::Silk, Self::Tidegate];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "RocksDB",
            Self::AutoTuned => "auto-tuned",
            Self::Static => "static",
            Self::Silk => "SILK's rules",
            Self::Tidegate => "Tidegate",
        }
    }

    /// Its name among measured numbers.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::AutoTuned => "auto_tuned",
            Self::Static => "static",
            Self::Silk => "silk",
            Self::Tidegate => "tidegate",
        }
    }
}

/// The profile for stores with SILK's rule: its other lines are the same, so that the rules alone
/// differ.
pub(super) fn silk_profile() -> String {
    PROFILE.replace(LOW, LOW_AND_PAUSED)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LsmPlan {
    pub(super) experiment: LsmExperiment,
    pub(super) keys: u64,
    pub(super) bursts: Bursts,
    /// The kernel's limit of what is read, and of what is written; none if the disk has none.
    pub(super) limit: Option<Rate>,
    /// The rate that `tidegate run` allows both together. A compaction reads for a while and then
    /// writes, so no greater budget keeps both below the kernel's limit, and requests out of the
    /// queue at the disk, which does not know their kinds.
    pub(super) budget: Rate,
    /// The rate at which a disk without a limit reads by itself, once it is measured.
    pub(super) disk_rate: Option<Rate>,
}

impl LsmPlan {
    /// A run of so many seconds. All times are shortened in the same way, to whole milliseconds.
    /// A disk without a limit has its budget once it is [measured](Self::measured).
    pub(super) fn new(experiment: LsmExperiment, seconds: u64) -> Self {
        let scaled = |paper: u64| {
            let ms = paper * 1_000 * seconds / PAPER_SECONDS;
            Span(ms.max(1) * Span::MILLISECOND.0)
        };
        let limit = Rate(PAPER_LIMIT.0 / RATES);
        Self {
            experiment,
            keys: KEYS,
            bursts: Bursts {
                valley: Iops(PAPER_VALLEY.0 / RATES),
                peak: Iops(PAPER_PEAK.0 / RATES),
                first_valley: scaled(PAPER_FIRST_VALLEY),
                peak_length: scaled(PAPER_PEAK_LENGTH),
                valley_length: scaled(PAPER_VALLEY_LENGTH),
                total: Span(seconds * Span::SECOND.0),
            },
            limit: (experiment.disk == LsmDisk::Limited).then_some(limit),
            budget: limit,
            disk_rate: None,
        }
    }

    /// The same for a disk that reads at this rate by itself.
    pub(super) fn measured(self, rate: Rate) -> Self {
        let budget = Rate(rate.0 / 100 * BUDGET_PERCENT);
        Self { budget, disk_rate: Some(rate), ..self }
    }

    pub(super) fn load(&self, system: LsmSystem) -> LsmPlannedLoad {
        let limiter = match system {
            LsmSystem::RocksDb | LsmSystem::Silk | LsmSystem::Tidegate => OwnLimiter::None,
            // As RocksDB's authors advise: what the disk gives at most.
            LsmSystem::AutoTuned => OwnLimiter::AutoTuned(self.limit.unwrap_or(self.budget)),
            // The budget, half of which compactions read.
            LsmSystem::Static => OwnLimiter::Static(Rate(self.budget.0 / 2)),
        };
        LsmPlannedLoad {
            keys: self.keys,
            read_percent: self.experiment.mixture.read_percent(),
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
    use tidegate_model::Policy;

    use super::*;

    #[test]
    fn a_long_run_has_the_papers_times_and_a_short_one_is_shortened_evenly() {
        let seconds = |span: Span| span.as_seconds();
        let long = LsmPlan::new(LsmExperiment::FIGURE_5, PAPER_SECONDS);
        let Bursts { first_valley, peak_length, valley_length, .. } = long.bursts;
        assert_eq!([first_valley, peak_length, valley_length].map(seconds), [300.0, 100.0, 10.0]);
        assert_eq!((long.first_busy_second(), long.first_peak_end()), (300, 400));
        let short = LsmPlan::new(LsmExperiment::FIGURE_5, 24);
        let Bursts { first_valley, peak_length, valley_length, .. } = short.bursts;
        assert_eq!([first_valley, peak_length, valley_length].map(seconds), [6.0, 2.0, 0.2]);
    }

    #[test]
    fn own_limiters_are_of_their_systems_alone() {
        let plan = LsmPlan::new(LsmExperiment::FIGURE_5, 24);
        let limiters = LsmSystem::LIMITED.map(|system| plan.load(system).limiter);
        let expected = [
            OwnLimiter::None,
            OwnLimiter::AutoTuned(Rate(50 << 20)),
            OwnLimiter::Static(Rate(25 << 20)),
            OwnLimiter::None,
            OwnLimiter::None,
        ];
        assert_eq!(limiters, expected);
        assert_eq!((plan.limit, plan.budget), (Some(Rate(50 << 20)), Rate(50 << 20)));
    }

    #[test]
    fn a_disk_without_a_limit_has_the_budget_that_was_measured_and_the_papers_systems() {
        for experiment in [LsmExperiment::FIGURE_8, LsmExperiment::FIGURE_9] {
            let plan = LsmPlan::new(experiment, 24).measured(Rate(1_000));
            assert_eq!((plan.limit, plan.budget), (None, Rate(900)));
            let own = plan.experiment.systems().iter().map(|system| plan.load(*system).limiter);
            assert!(own.into_iter().all(|limiter| limiter == OwnLimiter::None));
        }
        assert_eq!(LsmExperiment::FIGURE_7.systems(), LsmSystem::LIMITED);
    }

    #[test]
    fn every_figure_is_found_by_its_name() {
        for one in LsmExperiment::ALL {
            assert_eq!(LsmExperiment::find(one.figure), Some(one));
        }
        assert_eq!(LsmExperiment::find("10"), None);
    }

    #[test]
    fn silks_rules_differ_from_the_profile_in_one_minimum_rate() {
        let background = |text: &str| {
            let policy = Policy::parse(text).unwrap();
            let of = |channel: &tidegate_model::policy::Channel| {
                let background = channel.background.unwrap();
                (channel.name.clone(), background.priority, background.minimum)
            };
            policy.channels.iter().map(of).collect::<Vec<_>>()
        };
        let (mut expected, silk) = (background(PROFILE), background(&silk_profile()));
        let deep = expected.iter_mut().find(|(name, ..)| name == "compaction-deep").unwrap();
        deep.2 = Some(Rate(0));
        assert_eq!(silk, expected);
        assert_eq!(silk_profile().lines().count(), PROFILE.lines().count() + 1);
    }
}
