//! The experiment's demands on the machine: each tenant's promise, work and start.
//!
//! The four tenants are those of PAIO §9.3: promised 150, 200, 300 and 350 MiB/s of a disk that is
//! held at 1 GiB/s, with work in proportion 6 : 5 : 5 : 4 (epochs, in the paper). A slower disk is
//! shared in the same proportions: one factor scales every rate and all work, and so changes no
//! time.

use std::fmt;

use serde::Serialize;
use tidegate_model::{Rate, Span};

pub(crate) const MIB: u64 = 1 << 20;

/// A tenant counts as having its promise from this share of it on, in thousandths.
pub(crate) const KEPT_PERMILLE: u64 = 970;

/// After a tenant starts or ends, the others get this long to settle before promises count.
pub(crate) const SETTLING: Span = Span(2 * Span::SECOND.0);

/// Processes that read for a tenant. They let the gates share a bucket between processes, and are
/// so many that a tenant asks for its promise also where the disk is slow for a moment: five
/// requests of 1 MiB at a time are 350 MiB/s as long as each takes at most 14 ms.
pub(crate) const JOBS: u64 = 5;

/// The size of a request where the disk is fast. Large ones make the disk share evenly between
/// tenants without control, as a disk does that serves one request of each in turn.
pub(crate) const BLOCK: u64 = MIB;

/// Requests become smaller where rates are, down to this: a promise is counted in whole requests,
/// and one more or less in a second is not to matter.
const BLOCK_MIN: u64 = MIB / 16;

/// The smallest promise is about this many requests a second.
const BLOCKS_PER_SECOND: u64 = 128;

/// The part of a tenant's file that one of its jobs reads, over and over.
pub(crate) const REGION: u64 = 48 * MIB;

/// Name, promise in MiB/s, and epochs of the paper's instances.
const TENANTS: [(&str, u64, u64); 4] =
    [("I1", 150, 6), ("I2", 200, 5), ("I3", 300, 5), ("I4", 350, 4)];

/// The budget that tenants share, in MiB/s: the sum of all promises.
const BUDGET: u64 = 1_000;

/// The limit of the disk where tenants have no lower ones, in MiB/s: the paper's 1 GiB/s. It lies a
/// little above the budget, so that the disk's own limit and the shares of the budget do not fight
/// over the last request.
const DISK: u64 = 1_024;

/// The disk has to do this share of [`DISK`] by itself before that limit can be relied on.
const MARGIN_PERCENT: u64 = 120;

/// Scaled rates are a multiple of this many per cent, so that numbers stay readable.
const SCALE_STEP: u64 = 5;

/// One tenant is started after the other, with this share of a set-up's length between them.
const STAGGER_PERMILLE: u64 = 120;

/// Everything that is fixed before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExperimentPlan {
    /// Factor of every rate and all work, in per cent; 100 where the disk is as fast as the
    /// paper's.
    pub(crate) scale_percent: u64,
    /// The budget that tenants share, in bytes per second.
    pub(crate) budget: Rate,
    /// The limit of the disk, in bytes per second.
    pub(crate) disk: Rate,
    /// The size of a request, in bytes.
    pub(crate) block: u64,
    /// How much of its rate a tenant may catch up with at once, if not the policy's default.
    pub(crate) burst: Option<Span>,
    /// How long a set-up takes that wastes nothing.
    pub(crate) length: Span,
    /// The tenants, in the order in which they start.
    pub(crate) tenants: Vec<PlannedTenant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlannedTenant {
    pub(crate) name: &'static str,
    /// The promised rate, in bytes per second.
    pub(crate) promise: Rate,
    /// Bytes that the tenant reads before it ends.
    pub(crate) work: u64,
    /// When it starts, from the beginning of a set-up.
    pub(crate) starts: Span,
}

impl ExperimentPlan {
    pub(crate) const NAMES: [&str; 4] = [TENANTS[0].0, TENANTS[1].0, TENANTS[2].0, TENANTS[3].0];

    /// The experiment for a disk that can do `measured` by itself, with set-ups of `seconds`.
    pub(crate) fn new(measured: Rate, seconds: u64) -> Self {
        Self::scaled(scale_percent(measured), seconds)
    }

    /// The experiment with this factor, in per cent.
    pub(crate) fn scaled(scale_percent: u64, seconds: u64) -> Self {
        let scaled = |mib: u64| Rate(mib * MIB * scale_percent / 100);
        let length = Span(seconds * Span::SECOND.0);
        let budget = scaled(BUDGET);
        let epochs: u64 = TENANTS.iter().map(|(.., epochs)| epochs).sum();
        let tenants = TENANTS.iter().zip(0..).map(|(&(name, promise, own), index)| {
            // Whole requests for every job.
            let work = budget.0 * seconds * own / epochs / (JOBS * BLOCK) * (JOBS * BLOCK);
            let starts = Span(length.0 / 1000 * STAGGER_PERMILLE * index);
            PlannedTenant { name, promise: scaled(promise), work: work.max(JOBS * BLOCK), starts }
        });
        let tenants: Vec<PlannedTenant> = tenants.collect();
        let smallest = tenants.iter().map(|tenant| tenant.promise.0).min().unwrap_or(0);
        let block = (smallest / BLOCKS_PER_SECOND + 1).next_power_of_two() / 2;
        let block = block.clamp(BLOCK_MIN, BLOCK);
        let (disk, burst) = (scaled(DISK), None);
        Self { scale_percent, budget, disk, block, burst, length, tenants }
    }

    /// A note for readers of scaled numbers; `None` if rates are the paper's.
    pub(crate) fn scale_note(&self, measured: Rate) -> Option<String> {
        (self.scale_percent != 100).then(|| {
            format!(
                "SCALED to {} % of the paper's rates: this disk reads {} by itself, and {} with \
                 some margin are needed for the real ones",
                self.scale_percent,
                Mib(measured),
                Mib(Rate(DISK * MIB * MARGIN_PERCENT / 100)),
            )
        })
    }

    /// The same with work in whole multiples of `unit` bytes.
    pub(crate) fn with_work_in(mut self, unit: u64) -> Self {
        for tenant in &mut self.tenants {
            tenant.work = (tenant.work / unit).max(1) * unit;
        }
        self
    }

    /// How long all set-ups take together, about. Static limits let the first tenant do all of its
    /// work at the rate of its promise, though the others have gone.
    pub(crate) fn expected(&self) -> Span {
        let alone = |tenant: &PlannedTenant| {
            tenant.starts.0 + tenant.work * 1000 / tenant.promise.0.max(1) * 1_000_000
        };
        let fixed = self.tenants.iter().map(alone).max().unwrap_or(0);
        Span(2 * self.length.0 + fixed)
    }
}

/// The largest readable factor at which the disk does what is asked with some margin.
fn scale_percent(measured: Rate) -> u64 {
    let able = measured.0 / (DISK * MIB / 100) * 100 / MARGIN_PERCENT;
    match able {
        100.. => 100,
        SCALE_STEP..100 => able / SCALE_STEP * SCALE_STEP,
        // A disk of some MiB/s: better a crooked number than none.
        _ => able.max(1),
    }
}

/// A rate in whole MiB/s, as the paper writes them.
pub(crate) struct Mib(pub(crate) Rate);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB/s", grouped((self.0.0 + MIB / 2) / MIB))
    }
}

/// `1,000`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_disk_runs_the_papers_numbers() {
        let plan = ExperimentPlan::new(Rate(1_500 * MIB), 25);
        assert_eq!(plan.scale_percent, 100);
        assert_eq!(plan.scale_note(Rate(1_500 * MIB)), None);
        assert_eq!((plan.budget, plan.disk), (Rate(1_000 * MIB), Rate(1_024 * MIB)));
        assert_eq!(plan.block, MIB);
        let formatted: Vec<String> = plan
            .tenants
            .iter()
            .map(|t| format!("{} {} {} MiB {}", t.name, Mib(t.promise), t.work / MIB, t.starts))
            .collect();
        assert_eq!(
            formatted,
            [
                "I1 150 MiB/s 7500 MiB 0ns",
                "I2 200 MiB/s 6250 MiB 3s",
                "I3 300 MiB/s 6250 MiB 6s",
                "I4 350 MiB/s 5000 MiB 9s",
            ]
        );
        assert_eq!(plan.expected(), Span(100 * Span::SECOND.0));
    }

    #[test]
    fn a_slow_disk_scales_rates_and_work_and_no_times() {
        let fast = ExperimentPlan::new(Rate(5_000 * MIB), 25);
        for (measured, percent) in [(1_229, 100), (1_228, 95), (700, 55), (100, 5), (13, 1)] {
            let plan = ExperimentPlan::new(Rate(measured * MIB), 25);
            assert_eq!(plan.scale_percent, percent, "{measured}");
            assert!(plan.disk.0 * MARGIN_PERCENT <= measured * MIB * 100 || percent == 1);
            for (tenant, whole) in plan.tenants.iter().zip(&fast.tenants) {
                assert_eq!(tenant.promise.0, whole.promise.0 * percent / 100);
                assert!(tenant.work.abs_diff(whole.work * percent / 100) < JOBS * BLOCK);
                assert_eq!(tenant.starts, whole.starts);
                assert!(tenant.work.is_multiple_of(JOBS * BLOCK));
            }
        }
        let block = |measured| ExperimentPlan::new(Rate(measured * MIB), 25).block >> 10;
        assert_eq!([1_100, 700, 300, 100, 13].map(block), [512, 512, 128, 64, 64]);
        assert!(ExperimentPlan::new(Rate(700 * MIB), 25).scale_note(Rate(700 * MIB)).is_some());
    }

    #[test]
    fn promises_fill_the_budget() {
        let plan = ExperimentPlan::new(Rate(800 * MIB), 60);
        let promised: u64 = plan.tenants.iter().map(|tenant| tenant.promise.0).sum();
        assert!(promised <= plan.budget.0 && promised + 4 > plan.budget.0);
        assert!(plan.disk > plan.budget);
    }

    #[test]
    fn numbers_are_grouped() {
        let formatted = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(formatted, ["0", "999", "1,000", "1,234,567"]);
    }
}
