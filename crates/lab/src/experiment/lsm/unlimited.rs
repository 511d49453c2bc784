//! The claims about the tail latency of RocksDB on a disk without a limit (figures 8 and 9).
//!
//! The paper prints milliseconds of two devices and of a server with 36 processors. Only quotients
//! of two systems on one machine can be compared with those, so each claim is of such.

use std::ops::Range;

use serde_json::json;

use super::evidence::{HIGHEST, LsmEvidence, LsmNumber};
use super::plan::{LsmDisk, LsmSystem};
use super::score::LsmScore;
use crate::experiment::paper::tenths;
use crate::experiment::verdict::{Claim, at_least};

/// Nothing is in the way on a disk that reads so many times what RocksDB moves. Chosen by hand.
const SPARE_TIMES: f64 = 4.0;

/// All operations are served from this part of them on, in percent: some are under way at the end.
const ALL_PERCENT: f64 = 99.0;

const DEVIATION: (&str, LsmNumber) = ("variability of p99", |score| score.deviation_ms);

/// All seconds of a run.
const ALL: Range<usize> = 0..usize::MAX;

/// The numbers that the paper prints of a device: of RocksDB, of SILK, and of its own system.
struct PaperDevice {
    /// The highest latency of RocksDB, and the mark that the others never exceed, in milliseconds.
    highest_ms: [f64; 2],
    /// RocksDB's highest counts from the end of the first valley on.
    is_highest_of_busy: bool,
    /// Variability of the 99th percentile: RocksDB's, and that of the paper's system.
    deviation_ms: [f64; 2],
    /// Mean throughput of all three, in thousand operations per second.
    throughput: [f64; 3],
}

const SATA: PaperDevice = PaperDevice {
    highest_ms: [111.0, 25.0],
    is_highest_of_busy: false,
    deviation_ms: [21.0, 5.8],
    throughput: [7.46, 7.52, 8.88],
};

const NVME: PaperDevice = PaperDevice {
    highest_ms: [15.0, 6.0],
    is_highest_of_busy: true,
    deviation_ms: [2.5, 0.8],
    throughput: [14.39, 10.27, 13.11],
};

/// With one digit behind the point, and no more than the number.
fn tenths_below(number: f64) -> f64 {
    (number * 10.0).floor() / 10.0
}

impl LsmEvidence<'_> {
    /// The claims of figures 8 and 9.
    pub(super) fn unlimited_claims(&self) -> Vec<Claim> {
        let device = match self.plan.experiment.disk {
            LsmDisk::Limited | LsmDisk::Real => SATA,
            LsmDisk::InMemory => NVME,
        };
        vec![
            self.lower_spikes(&device),
            self.less_variable(&device),
            self.as_steady_as_silk(),
            self.mean_throughput(&device),
        ]
    }

    fn lower_spikes(&self, device: &PaperDevice) -> Claim {
        let seconds = if device.is_highest_of_busy { self.busy() } else { ALL };
        let [others, ours] = device.highest_ms;
        let text = format!(
            "RocksDB's latency has spikes{}, and under Tidegate they are as much lower as in the \
             paper ({others} ms and {ours} ms)",
            if device.is_highest_of_busy { " after the first valley" } else { "" },
        );
        self.fewer_times(&text, HIGHEST, &seconds, tenths_below(others / ours))
    }

    fn less_variable(&self, device: &PaperDevice) -> Claim {
        let [others, ours] = device.deviation_ms;
        let text = format!(
            "latency varies less under Tidegate, as much as in the paper ({others} ms and {ours} \
             ms): the mean distance of a second's p99 from their mean"
        );
        self.fewer_times(&text, DEVIATION, &ALL, tenths_below(others / ours))
    }

    /// RocksDB has at least so many times Tidegate's number.
    fn fewer_times(
        &self,
        text: &str,
        number: (&str, LsmNumber),
        seconds: &Range<usize>,
        least: f64,
    ) -> Claim {
        let systems = [LsmSystem::RocksDb, LsmSystem::Tidegate];
        let times = self.times(systems, seconds, number.1);
        let checks = vec![
            self.is_lower([LsmSystem::Tidegate, LsmSystem::RocksDb], seconds, number),
            at_least("RocksDB's", "times", least, times),
        ];
        let mut claim = self.measured_claim(text, &systems, checks);
        if self.outcome.is_ok() {
            claim.measured.insert("times_lower".into(), json!(times.map(tenths)));
        }
        // A disk with much to spare excuses a small advantage, and no disadvantage.
        match self.spare_disk().filter(|_| times.is_some_and(|times| times >= 1.0)) {
            Some(why) => claim.because(&why),
            None => claim,
        }
    }

    /// Why RocksDB's background is in nobody's way, if it is not: the disk could do much more.
    fn spare_disk(&self) -> Option<String> {
        let moved = |score: &LsmScore| score.read_bytes + score.written_bytes;
        let moved = self.number(LsmSystem::RocksDb, &ALL, moved)?;
        let disk = self.plan.disk_rate?;
        let [moved_mib, disk_mib] =
            [moved, disk.0 as f64].map(|bytes| (bytes / f64::from(1 << 20)).round());
        (moved * SPARE_TIMES < disk.0 as f64).then(|| {
            format!(
                "RocksDB alone moves {moved_mib} MiB/s, and this disk reads {disk_mib}: the \
                 background takes little from clients"
            )
        })
    }

    fn as_steady_as_silk(&self) -> Claim {
        let silk = [LsmSystem::Silk, LsmSystem::RocksDb];
        let checks = vec![
            self.is_lower(silk, &ALL, HIGHEST),
            self.is_lower(silk, &ALL, DEVIATION),
            self.is_like_silk(&ALL, HIGHEST),
            self.is_like_silk(&ALL, DEVIATION),
        ];
        let text = "SILK's rules (here without preemption) have lower spikes than RocksDB alone \
                    and vary less, and Tidegate is similar to them";
        let systems = [LsmSystem::RocksDb, LsmSystem::Silk, LsmSystem::Tidegate];
        self.measured_claim(text, &systems, checks)
    }

    fn mean_throughput(&self, device: &PaperDevice) -> Claim {
        let [rocksdb, silk, ours] = device.throughput;
        let least = |other: f64| tenths_below(ours * 100.0 / other);
        let checks = vec![
            self.serves(LsmSystem::RocksDb, least(rocksdb), &ALL),
            self.serves(LsmSystem::Silk, least(silk), &ALL),
        ];
        let text = format!(
            "mean throughput is as high beside the other systems as in the paper (thousands a \
             second: RocksDB {rocksdb}, SILK {silk}, its own {ours})"
        );
        let systems = [LsmSystem::RocksDb, LsmSystem::Silk, LsmSystem::Tidegate];
        let claim = self.measured_claim(&text, &systems, checks);
        let served = |system: &LsmSystem| self.number(*system, &ALL, |score| score.served_percent);
        let has_all = |system| served(system).is_some_and(|percent| percent >= ALL_PERCENT);
        match systems.iter().all(has_all) {
            true => claim.because("every system serves all that is due, so none is ahead"),
            false => claim,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Rate;

    use super::super::evidence::LsmOutcome;
    use super::super::plan::{LsmExperiment, LsmPlan};
    use super::super::runs::LsmSystemRuns;
    use super::super::score::tests::run;
    use super::*;
    use crate::experiment::verdict::Verdict;

    /// Each system's operations in a second, and its usual and its highest latency in microseconds.
    fn outcome(numbers: [(u64, u64, u64); 3]) -> LsmOutcome {
        let runs = |(system, (operations, usual_us, highest_us))| {
            let mut seconds = vec![(operations, usual_us); 24];
            seconds.iter_mut().skip(1).step_by(2).for_each(|second| second.1 = highest_us);
            LsmSystemRuns { system, runs: Ok(vec![run(&seconds)]) }
        };
        Ok(LsmSystem::UNLIMITED.into_iter().zip(numbers).map(runs).collect())
    }

    fn verdicts(experiment: LsmExperiment, outcome: &LsmOutcome) -> Vec<Verdict> {
        let plan = LsmPlan::new(experiment, 24);
        let claims = LsmEvidence { plan: &plan, outcome, seconds: 1.0 }.unlimited_claims();
        claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_numbers_hold_all_claims() {
        // Half of the seconds have the highest latency, so they vary by half of the difference.
        let sata = outcome([(746, 69_000, 111_000), (752, 15_600, 25_000), (888, 13_400, 25_000)]);
        assert_eq!(verdicts(LsmExperiment::FIGURE_8, &sata), [Verdict::Reproduced; 4]);
        let nvme = outcome([(1_439, 10_000, 15_000), (1_027, 4_400, 6_000), (1_311, 4_400, 6_000)]);
        assert_eq!(verdicts(LsmExperiment::FIGURE_9, &nvme), [Verdict::Reproduced; 4]);
    }

    #[test]
    fn a_disk_with_much_to_spare_excuses_a_small_advantage_and_nothing_else() {
        let reasons = |ours_us: u64, disk_mib: u64| {
            let numbers = [(100, 1_000, 9_000), (100, 1_000, 6_000), (100, 1_000, ours_us)];
            let mut outcome = outcome(numbers);
            for second in &mut outcome.as_mut().unwrap()[0].runs.as_mut().unwrap()[0].seconds {
                (second.disk_read_bytes, second.disk_written_bytes) = (20 << 20, 10 << 20);
            }
            let plan = LsmPlan::new(LsmExperiment::FIGURE_8, 24).measured(Rate(disk_mib << 20));
            let evidence = LsmEvidence { plan: &plan, outcome: &outcome, seconds: 1.0 };
            let claims = evidence.unlimited_claims();
            assert_eq!(claims[0].verdict, Verdict::NotReproduced);
            // All operations are served, whatever the disk does.
            assert!(claims[3].reason.as_ref().unwrap().ends_with("so none is ahead"));
            claims[0].reason.clone().unwrap()
        };
        let reason = reasons(8_000, 640);
        assert!(
            reason.contains("RocksDB alone moves 30 MiB/s, and this disk reads 640"),
            "{reason}"
        );
        for reason in [reasons(10_000, 640), reasons(8_000, 100)] {
            assert!(!reason.contains("RocksDB alone"), "{reason}");
        }
    }

    #[test]
    fn other_numbers_differ_or_are_not_reproduced() {
        use Verdict::{Differs, NotReproduced, Reproduced, Skipped};

        // As lower as by half of the paper's, similar to SILK's, and all systems serve all.
        let near = outcome([(800, 30_000, 60_000), (800, 15_600, 25_000), (800, 12_000, 25_000)]);
        let expected = [Differs, Differs, Reproduced, Differs];
        assert_eq!(verdicts(LsmExperiment::FIGURE_8, &near), expected);
        // On its fast device the paper's system serves less than RocksDB, and more than SILK.
        assert_eq!(verdicts(LsmExperiment::FIGURE_9, &near)[3], Differs);
        let other = outcome([(800, 1_000, 9_000), (800, 2_000, 10_000), (300, 1_000, 30_000)]);
        assert_eq!(verdicts(LsmExperiment::FIGURE_8, &other), [NotReproduced; 4]);
        assert_eq!(verdicts(LsmExperiment::FIGURE_8, &Err("no disk".into())), [Skipped; 4]);
    }
}
