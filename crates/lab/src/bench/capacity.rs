//! Capacity: the budget that `capacity = "measured"` finds, beside what fio alone has.
//!
//! fio reads, or reads and writes, 4 KiB at random on a file, past the page cache. First it runs
//! alone at several depths. Its 99th percentile at depth 1, times the factor that the
//! documentation recommends, is the bound of latency, or five milliseconds if that is more. The
//! most that fio alone has within that bound is what the budget is compared with. Then fio runs at
//! the largest depth under a policy with a measured capacity and this bound. At last it runs alone
//! once more: where the two runs alone differ by more than the budget may be off, there is no
//! verdict. Promises:
//!
//! - The budget, once the search has had its time, is within 5 % of what fio alone has.
//! - In 95 % of seconds the 99th percentile of requests behind the gate is within the bound.
//! - A stall of two seconds is over within a period: nine tenths of the rate before are served
//!   within the bound. So they are three seconds after the device became half as fast, and five
//!   after it doubled.
//!
//! The file is on a file system on a loop device: as it is, and with what a cloud gives a volume,
//! as a limit of the kernel. That limit then becomes almost nothing for two seconds (the stall),
//! half, and whole again. Rates are the kernel's counts of the device. Times are those that the
//! stage counts, read from its segment.

use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_model::{Span, Time, amounts};

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::cgroup::IoLimits;
use crate::experiment::note_line;
use crate::experiment::quiet::{PriorityBoost, Quiet, QuietProbe};
use loads::{AloneRun, CapacityLoad, DEPTHS, most_within};
use score::kept_percent;
use testbed::{CapacityDevice, CapacityEvent, CapacityTestbed, MeasuredRun};

mod loads;
mod score;
mod testbed;

const BENCH: &str = "capacity";
/// How far the budget may be from what fio alone has, in per cent.
const OFF_PERCENT: f64 = 5.0;
/// The least part of seconds in which the bound is kept, in per cent.
const KEPT_PERCENT: f64 = 95.0;
/// How soon a stall is to be over (a period), and the search to follow, in seconds.
const STALL_SECONDS: f64 = 1.0;
const HALVED_SECONDS: f64 = 3.0;
const DOUBLED_SECONDS: f64 = 5.0;
/// Why there is no verdict.
const UNSTEADY: &str = "fio alone does not repeat itself that exactly";
const UNFILLED: &str = "fio keeps the bound at its largest depth: nothing is to be held back";

/// The lengths of a run.
#[derive(Clone, Copy, Debug)]
struct CapacityPlan {
    /// fio alone at one depth.
    alone: Span,
    /// The time of the search, which takes some seconds.
    search: Span,
    /// The time in which nothing changes.
    steady: Span,
    /// The time after an event.
    event: Span,
    /// How long the device stands still.
    stall: Span,
}

impl CapacityPlan {
    const FULL: Self = Self {
        alone: Span(2 * Span::SECOND.0),
        search: Span(15 * Span::SECOND.0),
        steady: Span(30 * Span::SECOND.0),
        event: Span(15 * Span::SECOND.0),
        stall: Span(2 * Span::SECOND.0),
    };
    /// Enough to see that everything works.
    const QUICK: Self = Self {
        alone: Span(200 * Span::MILLISECOND.0),
        search: Span::SECOND,
        steady: Span(2 * Span::SECOND.0),
        event: Span::SECOND,
        stall: Span(200 * Span::MILLISECOND.0),
    };
}

/// The runs on one device with one load.
struct CapacityCourse {
    name: String,
    bound: Span,
    /// fio alone at all depths, before and after the run under Tidegate.
    alone: [Vec<AloneRun>; 2],
    measured: MeasuredRun,
    quiet: Quiet,
}

/// Measures, and reports the rows.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let is_full = plan.is_full();
    let plan = if is_full { CapacityPlan::FULL } else { CapacityPlan::QUICK };
    let _priority_boost = PriorityBoost::raise();
    let mut testbed = match CapacityTestbed::new(plan, interrupt) {
        Ok(testbed) => testbed,
        Err(failure) => {
            interrupt.check()?;
            let row = Row::less(BENCH, "the budget, off fio's rate", "%", None);
            report(row.because(failure.to_string()));
            return Ok(());
        }
    };
    let volume = CapacityDevice::Limited(IoLimits::CLOUD_VOLUME);
    let devices = [("disk", CapacityDevice::Disk), ("volume", volume)];
    let (first_device, loads) = if is_full { (0, 2) } else { (1, 1) };
    for (device_name, device) in devices.into_iter().skip(first_device) {
        for load in CapacityLoad::ALL.into_iter().take(loads) {
            let name = format!("{device_name}, {}", load.name());
            let course =
                testbed.change_device(device).and_then(|()| measure(name.clone(), &testbed, load));
            match course {
                Ok(course) => course.report(report),
                Err(failure) => {
                    interrupt.check()?;
                    let case = format!("{name}: the budget, off fio's rate");
                    report(Row::less(BENCH, case, "%", None).because(failure.to_string()));
                }
            }
        }
    }
    Ok(())
}

fn measure(
    name: String,
    testbed: &CapacityTestbed<'_>,
    load: CapacityLoad,
) -> Result<CapacityCourse, Failure> {
    let is_watched = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let show = |what: &str| note_line::show(is_watched, &format!("capacity, {name}: {what}"));
    let probe = QuietProbe::start();
    let run = || {
        show("fio alone");
        let before = testbed.alone(load)?;
        // There is a run at each depth.
        let bound = load.bound(before[0].p99);
        show("fio under a measured capacity");
        let measured = testbed.measured(load, bound)?;
        show("fio alone again");
        Ok::<_, Failure>((bound, [before, testbed.alone(load)?], measured))
    };
    let outcome = run();
    note_line::show(is_watched, "");
    let (bound, alone, measured) = outcome?;
    Ok(CapacityCourse { name, bound, alone, measured, quiet: probe.finish() })
}

impl CapacityCourse {
    fn report(&self, report: &mut dyn FnMut(Row)) {
        let within = self.alone.each_ref().map(|runs| most_within(runs, self.bound));
        let case = |what: &str| format!("{}: {what}", self.name);
        let [Some(before), Some(after)] = within else {
            let row = Row::less(BENCH, case("the budget, off fio's rate"), "%", None);
            report(row.because("fio alone is not within the bound at any depth"));
            return;
        };
        let reference = (before.iops + after.iops) / 2.0;
        let apart = 100.0 * (before.iops - after.iops).abs() / reference;
        let MeasuredRun { trace, steady, .. } = &self.measured;
        let budget = trace.budget(*steady);
        let off = budget.map(|budget| 100.0 * (budget - reference).abs() / reference);
        let row = Row::less(BENCH, case("the budget, off fio's rate"), "%", off);
        let row = row.promised(OFF_PERCENT).noted(format!(
            "{:.0} iops; fio alone {:.0} at depth {} and {:.0} at {}, which is {apart:.1} % apart; \
             bound {}",
            budget.unwrap_or(0.0),
            before.iops,
            before.depth,
            after.iops,
            after.depth,
            amounts::span(self.bound.0),
        ));
        // Where the largest depth is within the bound, no budget is too large; it may be too small.
        let is_filled = before.depth.max(after.depth) < DEPTHS[DEPTHS.len() - 1];
        let is_short = off.is_some_and(|off| off > OFF_PERCENT) && budget < Some(reference);
        report(match (is_filled || is_short, apart > OFF_PERCENT) {
            (false, _) => row.undecided(UNFILLED),
            (_, true) => row.undecided(UNSTEADY),
            (true, false) => self.judged(row),
        });
        let served = trace.rate(*steady);
        let row = Row::more(BENCH, case("requests of fio under it"), "iops", Some(served));
        report(row.beside("fio alone within the bound", Ok(reference)));
        report(self.judged(self.kept(case("p99 within the bound"))));
        self.events(served, report);
    }

    /// Takes the verdict away if the machine was too busy.
    fn judged(&self, row: Row) -> Row {
        row.unless_disturbed(self.quiet.disturbance())
    }

    fn kept(&self, case: String) -> Row {
        let MeasuredRun { trace, steady, .. } = &self.measured;
        let seconds = trace.seconds(*steady);
        let milliseconds = |span: Span| span.as_seconds() * 1e3;
        let percentiles = seconds.iter().flatten().map(|p99| milliseconds(*p99));
        let median = Median::of(percentiles).map_or(0.0, |median| median.value);
        let deepest = DEPTHS[DEPTHS.len() - 1];
        let alone = self.alone.iter().filter_map(|runs| runs.last());
        let alone = Median::of(alone.map(|run| milliseconds(run.p99)));
        let row = Row::more(BENCH, case, "% of seconds", kept_percent(&seconds, self.bound));
        row.promised(KEPT_PERCENT).noted(format!(
            "median of {} seconds {median:.2} ms, at depth {deepest} without a budget {:.2} ms",
            seconds.len(),
            alone.map_or(0.0, |alone| alone.value),
        ))
    }

    /// The rows of what changed below the program.
    fn events(&self, served: f64, report: &mut dyn FnMut(Row)) {
        let MeasuredRun { trace, events, .. } = &self.measured;
        for (event, range) in events {
            let (what, rate, bound) = match event {
                CapacityEvent::Stall => ("a stall", served, STALL_SECONDS),
                CapacityEvent::Halved => ("half of the limit", served / 2.0, HALVED_SECONDS),
                CapacityEvent::Doubled => ("twice the limit", served, DOUBLED_SECONDS),
            };
            let time = trace.recovered(*range, rate, self.bound);
            let seconds = time.unwrap_or(range.1.since(range.0)).as_seconds();
            let case = format!("{}: {what}, until 90 % are served within the bound", self.name);
            let row = Row::less(BENCH, case, "s", Some(seconds)).promised(bound);
            let row = if time.is_some() { row } else { row.because("not in this time") };
            // The range begins where the stall ends.
            let still = (Time(range.0.0.saturating_sub(Span::SECOND.0)), range.0);
            let row = match event {
                CapacityEvent::Stall => {
                    row.noted(format!("{:.0} iops in its last second", trace.rate(still)))
                }
                CapacityEvent::Halved | CapacityEvent::Doubled => row,
            };
            report(self.judged(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score::{CapacitySample, CapacityTrace};
    use tidegate_algo::concurrent::histogram::Histogram;

    const EVERY: u64 = 100 * Span::MILLISECOND.0;

    /// Forty seconds at 1,000 requests per second of a millisecond each; then nothing for half a
    /// second, 500 per second from 50 s on, of which each is slow for a second, and 1,000 from 60 s
    /// on.
    fn course(budget: u64, alone: [f64; 2]) -> CapacityCourse {
        let (histogram, mut completed) = (Histogram::default(), 0);
        let samples = (0..700u64).map(|tenth| {
            let at = Time(tenth * EVERY);
            let sample = CapacitySample { at, completed, times: histogram.counts(), budget };
            let count = match tenth {
                400..405 => 0,
                500..600 => 50,
                _ => 100,
            };
            completed += count;
            let time = if (500..510).contains(&tenth) { 9 } else { 1 };
            (0..count).for_each(|_| histogram.record(Span(time * Span::MILLISECOND.0)));
            sample
        });
        let at = |second: u64| Time(second * Span::SECOND.0);
        let run = |iops| AloneRun { depth: 8, iops, p99: Span(2 * Span::MILLISECOND.0) };
        let events = vec![
            (CapacityEvent::Stall, (at(40), at(50))),
            (CapacityEvent::Halved, (at(50), at(60))),
            (CapacityEvent::Doubled, (at(60), at(69))),
        ];
        CapacityCourse {
            name: "volume, random reads".into(),
            bound: Span(3 * Span::MILLISECOND.0),
            alone: alone.map(|iops| vec![run(iops)]),
            measured: MeasuredRun {
                trace: CapacityTrace(samples.collect()),
                steady: (at(10), at(40)),
                events,
            },
            quiet: Quiet::default(),
        }
    }

    fn rows(course: &CapacityCourse) -> Vec<Row> {
        let mut rows = Vec::new();
        course.report(&mut |row| rows.push(row));
        rows
    }

    #[test]
    fn a_course_has_its_rows_and_promises() {
        let rows = rows(&course(1_030, [990.0, 1_010.0]));
        assert_eq!(rows.len(), 6, "{rows:#?}");
        let [off, served, kept, stall, halved, doubled] = &rows[..] else { panic!("{rows:#?}") };
        assert!(off.value.is_some_and(|off| (off - 3.0).abs() < 1e-6), "{off:?}");
        assert_eq!((off.kept, kept.value, kept.kept), (Some(true), Some(100.0), Some(true)));
        assert!(served.ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 0.01), "{served:?}");
        let values = [stall, halved, doubled].map(|row| (row.value, row.kept));
        assert_eq!(values, [0.5, 1.0, 0.0].map(|value| (Some(value), Some(true))));
    }

    #[test]
    fn what_is_off_is_missed_and_what_does_not_repeat_itself_has_no_verdict() {
        assert_eq!(rows(&course(1_060, [1_000.0; 2]))[0].kept, Some(false));
        let unsteady = &rows(&course(1_060, [950.0, 1_050.0]))[0];
        assert_eq!((unsteady.kept, unsteady.reason.as_deref()), (None, Some(UNSTEADY)));
        let mut easy = course(1_060, [1_000.0; 2]);
        easy.alone[1][0].depth = 64;
        let easy = &rows(&easy)[0];
        assert_eq!((easy.kept, easy.reason.as_deref()), (None, Some(UNFILLED)));
        let mut short = course(940, [1_000.0; 2]);
        short.alone[1][0].depth = 64;
        assert_eq!(rows(&short)[0].kept, Some(false), "it is held back for nothing");
        let mut never = course(1_000, [1_000.0; 2]);
        never.bound = Span::MILLISECOND;
        let never = rows(&never);
        assert_eq!((never.len(), never[0].value, never[0].kept), (1, None, None));
    }
}
