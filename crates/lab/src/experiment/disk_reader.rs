//! The speed of a disk by itself, as fio reads from it.

use std::path::{Path, PathBuf};

use tidegate_model::{Rate, Span, Time};

use super::cgroup::Throttle;
use super::child::{Child, Start};
use super::disk::Disk;
use super::fio::{self, Amount, FioWork};
use super::plan::{BLOCK, ExperimentPlan, Mib};
use super::scratch::Scratch;
use super::witness::{CountedBytes, Witness};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How long the disk is measured by itself, at least and at most: as long as a set-up takes within
/// these. Virtual disks may be faster in the first seconds than for good; one was 770 MiB/s for
/// eight seconds, and then 560 to 670.
const PROBE_SECONDS: [u64; 2] = [2, 12];

/// How long it is measured under the kernel's limit, and with small requests.
const PROBE_LIMITED: Span = Span(1000 * Span::MILLISECOND.0);

/// The interval of samples while it is measured.
const POLL_INTERVAL: Span = Span(10 * Span::MILLISECOND.0);

/// A limit of the kernel that lets through more than this percentage of it has no effect. On some
/// file systems and devices it has none, and the kernel reports no error.
const LIMIT_PERCENT_MAX: u64 = 115;

/// Measures the disk below a file.
pub(crate) struct DiskReader<'a> {
    /// The file, which is laid out for fio ([`super::files::FileLayout::FIO`]).
    pub(crate) file: &'a Path,
    /// The reports of fio.
    pub(crate) scratch: &'a Scratch,
    pub(crate) interrupt: &'a Interrupt,
}

impl DiskReader<'_> {
    /// The experiment for this disk, and the disk's rate by itself.
    pub(super) fn plan(&self, seconds: u64) -> Result<(ExperimentPlan, Rate), Failure> {
        let measured = self.sustained(seconds)?;
        let mut plan = ExperimentPlan::new(measured, seconds);
        // A disk that has to move its heads does better with large requests than with fine counts.
        if plan.block < BLOCK && self.read_for(PROBE_LIMITED, plan.block, None)? < plan.disk {
            plan.block = BLOCK;
        }
        Ok((plan, measured))
    }

    /// The rate that the disk keeps up in runs of so many seconds, with large requests: that of its
    /// slowest second.
    pub(crate) fn sustained(&self, seconds: u64) -> Result<Rate, Failure> {
        let [least, most] = PROBE_SECONDS;
        let time = Span(Span::SECOND.0 * seconds.clamp(least, most));
        self.read_for(time, BLOCK, None)
    }

    /// How fast the disk reads for four jobs with requests of `block` bytes, in a control group if
    /// one is named: in its slowest whole second, or in all of `time` if that has none.
    fn read_for(&self, time: Span, block: u64, group: Option<PathBuf>) -> Result<Rate, Failure> {
        let report_path = self.scratch.join("probe.json");
        let amount = Amount::Time(time);
        let work = FioWork { name: "probe", file: self.file, block, amount };
        let start = Start {
            name: "probe".into(),
            program: "fio".into(),
            arguments: fio::arguments(work, &report_path),
            group,
            ..Start::default()
        };
        let mut process = Child::start(&start, self.scratch.path())?;
        let (clock, mut witness) =
            (Clock::start(), Witness::new(process.pid(), CountedBytes::Disk));
        let mut slowest = SlowestSecond::default();
        while !process.has_ended().map_err(no_direct)? {
            slowest.sample(clock.now(), witness.sample().bytes);
            self.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let report = fio::read_report(&report_path)?;
        // The witness has missed the beginning and the end, but not most of it.
        if witness.sample().bytes < report.bytes / 2 {
            let why = "the kernel counts no reads of a disk for files in that directory";
            return Err(no_direct(Failure::new(Code::Failure, why)));
        }
        Ok(slowest.rate.map_or(report.rate, |rate| Rate(rate.0.min(report.rate.0))))
    }

    /// The kernel's limits on this disk, or why they are not used.
    pub(super) fn throttle(
        &self,
        disk: Disk,
        limit: Rate,
    ) -> Result<Result<Throttle, String>, Failure> {
        let throttle = match Throttle::new(disk) {
            Ok(throttle) => throttle,
            Err(why) => return Ok(Err(why)),
        };
        let group = match throttle.group("probe", limit) {
            Ok(group) => group,
            Err(why) => return Ok(Err(why)),
        };
        let measured = self.read_for(PROBE_LIMITED, BLOCK, Some(group.processes()))?;
        drop(group);
        if measured.0 > limit.0 / 100 * LIMIT_PERCENT_MAX {
            let description = throttle.description();
            let why = format!("{description} lets through {} of {}", Mib(measured), Mib(limit));
            return Ok(Err(why));
        }
        Ok(Ok(throttle))
    }
}

/// The rate of the slowest whole second of a measurement, from the first bytes on.
#[derive(Debug, Default)]
struct SlowestSecond {
    /// When the running second began, and the bytes until then.
    second: Option<(Time, u64)>,
    rate: Option<Rate>,
}

impl SlowestSecond {
    /// Takes in the bytes of the whole measurement until `now`.
    fn sample(&mut self, now: Time, bytes: u64) {
        let Some((began, before)) = self.second else {
            self.second = (bytes > 0).then_some((now, bytes));
            return;
        };
        let passed = now.since(began);
        if passed < Span::SECOND {
            return;
        }
        let scaled = u128::from(bytes - before) * u128::from(Span::SECOND.0);
        let rate = Rate(u64::try_from(scaled / u128::from(passed.0)).unwrap_or(u64::MAX));
        self.rate = Some(self.rate.map_or(rate, |least| least.min(rate)));
        self.second = Some((now, bytes));
    }
}

fn no_direct(failure: Failure) -> Failure {
    failure.help(
        "name a directory on a real disk with --directory: the experiment reads past the page \
         cache (O_DIRECT), and file systems in memory are no disks",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_whole_second_counts() {
        let mut slowest = SlowestSecond::default();
        let mut bytes = 0;
        for step in 0..600 {
            slowest.sample(Time(step * 10 * Span::MILLISECOND.0), bytes);
            bytes += match step {
                0..50 => 0,
                50..250 => 100,
                250..400 => 60,
                _ => 80,
            };
        }
        assert_eq!(slowest.rate, Some(Rate(6_000)));
        let mut short = SlowestSecond::default();
        short.sample(Time(0), 1);
        short.sample(Time(Span::SECOND.0 - 1), 1 << 40);
        assert_eq!(short.rate, None);
    }
}
