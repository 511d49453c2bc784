//! Benchmark of the accuracy of a rate limit, live: threads send a stage the next request as soon
//! as they were granted the last. The bench counts the grants in every window of one second, from
//! the first after the limit was set.
//!
//! The threads do nothing else, so the bench measures the stage: its decisions, its clock, and its
//! sleeps. A request is indivisible, so a window may hold one more or one less of them; the rest of
//! the difference is the deviation. Windows are counted as in `algo`'s test of the same promise in
//! virtual time: one begins at every grant.
//!
//! Cases that hardly use a core run at the same time, up to so many grants per second.

use std::thread;

use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{GateSpec, Operation, Rate, Span, Time};
use tidegate_proto::message::Rule;
use tidegate_stage::{Request, Stage, StageAgent};

use super::stage::one_gate;
use super::window::{BUSY, WindowPlan};
use super::{Row, peers};
use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "limits";
/// How far off a window may be, in per cent of the rate.
const DEVIATION: f64 = 2.0;
/// Deviations up to this, in per cent, are rounding errors and count as zero.
const ROUNDING: f64 = 1e-9;
const MIB: u64 = 1 << 20;
const RATES: [u64; 4] = [MIB, 10 * MIB, 100 * MIB, 1_000 * MIB];
const THREADS: [usize; 3] = [1, 8, 64];
/// A request of this many bursts leaves a debt for most of a second.
const LARGE_BURSTS: u64 = 64;
/// Grants per second of cases that run at the same time. Each wakes a thread, which takes some ten
/// microseconds of a core: all of these take a tenth of two cores.
const GRANTS_TOGETHER: u64 = 20_000;
/// How long a case runs: three seconds' worth of windows.
const LENGTH: Span = Span(4 * Span::SECOND.0);
const LENGTH_SHORT: Span = Span(1_100 * Span::MILLISECOND.0);
/// A case is measured again, at most so often, if the machine stood still meanwhile.
const ATTEMPTS: usize = 4;
/// A machine whose sleepers wake this late keeps them from their grants: a burst is ten
/// milliseconds, and tokens beyond it are lost while all threads sleep.
const STALL: Span = Span(5 * Span::MILLISECOND.0);
/// The interval at which the witness of that samples.
const WITNESS: Span = Span::MILLISECOND;

/// A limit, and the requests and threads that meet it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    /// In bytes per second.
    rate: u64,
    /// Bytes of a request.
    cost: u64,
    threads: usize,
}

impl Case {
    /// Every case that is worth its time.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for rate in RATES {
            let burst = Burst::DEFAULT.tokens(rate);
            for cost in [4 << 10, 64 << 10, burst, LARGE_BURSTS * burst] {
                all.extend(THREADS.map(|threads| Self { rate, cost, threads }));
            }
        }
        all
    }

    fn grants_per_second(self) -> u64 {
        self.rate / self.cost
    }

    fn title(self) -> String {
        let burst = Burst::DEFAULT.tokens(self.rate);
        let of = match self.cost / burst {
            1 if self.cost == burst => " (the burst)",
            LARGE_BURSTS => " (64 bursts)",
            _ => "",
        };
        let (rate, cost) = (amounts::bandwidth(self.rate), amounts::bytes(self.cost));
        let threads = amounts::plural(self.threads as u64, "thread");
        format!("{rate}, requests of {cost}{of}, {threads}")
    }
}

/// Cases that run at the same time, the busiest first.
fn groups(mut cases: Vec<Case>) -> Vec<Vec<Case>> {
    cases.sort_by_key(|case| std::cmp::Reverse(case.grants_per_second()));
    let mut groups: Vec<Vec<Case>> = Vec::new();
    for case in cases {
        let load = |group: &Vec<Case>| group.iter().map(|c| c.grants_per_second()).sum::<u64>();
        let fits =
            |group: &&mut Vec<Case>| load(group) + case.grants_per_second() <= GRANTS_TOGETHER;
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups
}

/// The deviations of a run's windows from the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extremes {
    /// The emptiest and the fullest window, in per cent of the rate away from it.
    least: f64,
    most: f64,
    /// By how much they are off beyond one request.
    pub(super) worst: f64,
}

impl Extremes {
    /// Checks every window that begins at one of `grants` and ends before `end`.
    pub(super) fn of(grants: &mut [Time], end: Time, rate: u64, cost: u64) -> Option<Self> {
        grants.sort_unstable();
        let (mut least, mut most) = (usize::MAX, 0);
        let mut next = 0;
        for (index, begin) in grants.iter().enumerate() {
            let over = begin.after(Span::SECOND);
            if over > end {
                break;
            }
            while next < grants.len() && grants[next] < over {
                next += 1;
            }
            least = least.min(next - index);
            most = most.max(next - index);
        }
        let share = |count: usize| (count as f64 * cost as f64 / rate as f64 - 1.0) * 100.0;
        let one = cost as f64 / rate as f64 * 100.0;
        let (least, most) = (most > 0).then_some((share(least), share(most)))?;
        let worst = (most - one).max(-least - one);
        Some(Self { least, most, worst: if worst > ROUNDING { worst } else { 0.0 } })
    }
}

/// A case with its stage. The limit is in force from the moment that it is made.
struct LimitTestbed {
    case: Case,
    agent: StageAgent,
    begin: Time,
}

impl LimitTestbed {
    fn make(case: Case) -> Option<Self> {
        let rate = Throughput::Bandwidth(Rate(case.rate));
        let bucket = GateSpec::TokenBucket { rate, burst: Burst::DEFAULT };
        let agent = one_gate(bucket)?;
        let begin = agent.stage().now();
        Some(Self { case, agent, begin })
    }

    /// Releases waiting threads: with large requests and many threads they may wait for minutes.
    fn open(&self) {
        let _ = self.agent.apply(vec![Rule::gate("g", GateSpec::NoOp)]);
    }
}

/// Sends requests until `end`. Returns the times of their grants.
fn request_repeatedly(stage: &Stage, cost: u64, end: Time) -> Vec<Time> {
    let mut grants = Vec::new();
    loop {
        let admission = stage.enforce(&Request::new(Operation::Write, cost));
        let now = stage.now();
        admission.complete(cost);
        if now >= end {
            return grants;
        }
        grants.push(now);
    }
}

/// Sleeps and wakes until `end`; how late it woke at worst.
fn witness(clock: Clock, end: Time) -> Span {
    let mut worst = Span::ZERO;
    while clock.now() < end {
        let due = clock.now().after(WITNESS);
        clock.sleep_until(due);
        worst = worst.max(clock.now().since(due));
    }
    worst
}

#[derive(Clone, Copy, Debug)]
struct CaseOutcome {
    case: Case,
    extremes: Option<Extremes>,
    /// How late the machine woke sleepers meanwhile.
    stall: Span,
    /// How often the case was measured.
    attempts: usize,
}

impl CaseOutcome {
    fn is_exact(&self) -> bool {
        self.extremes.is_some_and(|extremes| extremes.worst <= DEVIATION)
    }

    /// Whether it measures the machine more than the stage.
    fn is_disturbed(&self) -> bool {
        !self.is_exact() && self.stall > STALL
    }
}

/// Measures cases, all at the same time.
fn measure(cases: &[Case], length: Span, interrupt: &Interrupt) -> Vec<CaseOutcome> {
    let testbeds = cases.iter().filter_map(|case| LimitTestbed::make(*case)).collect::<Vec<_>>();
    let clock = Clock::start();
    let over = clock.now().after(length);
    thread::scope(|scope| {
        let watching = scope.spawn(move || witness(clock, over));
        let asking = testbeds.iter().map(|testbed| {
            let (stage, end) = (testbed.agent.stage(), testbed.begin.after(length));
            let cost = testbed.case.cost;
            let start = |_| scope.spawn(move || request_repeatedly(stage, cost, end));
            (0..testbed.case.threads).map(start).collect::<Vec<_>>()
        });
        let asking = asking.collect::<Vec<_>>();
        // The caller reports an interrupt, after all threads here have ended.
        let _ = interrupt.sleep_until(clock, over);
        testbeds.iter().for_each(LimitTestbed::open);
        let stall = watching.join().unwrap_or(Span(u64::MAX));
        let outcome =
            |(testbed, threads): (&LimitTestbed, Vec<thread::ScopedJoinHandle<'_, Vec<Time>>>)| {
                let grants = threads.into_iter().filter_map(|thread| thread.join().ok());
                let mut grants = grants.flatten().collect::<Vec<_>>();
                let Case { rate, cost, .. } = testbed.case;
                let extremes = Extremes::of(&mut grants, testbed.begin.after(length), rate, cost);
                CaseOutcome { case: testbed.case, extremes, stall, attempts: 1 }
            };
        testbeds.iter().zip(asking).map(outcome).collect()
    })
}

/// A row for the result of the last attempt.
fn row(outcome: CaseOutcome) -> Row {
    let CaseOutcome { case, extremes, stall, attempts } = outcome;
    let worst = extremes.map(|extremes| extremes.worst);
    let row = Row::less(BENCH, case.title(), "%", worst).promised(DEVIATION);
    let row = match extremes {
        Some(Extremes { least, most, .. }) => row.between(least, most),
        None => row.because("no window of a second could be counted"),
    };
    let row = if attempts > 1 { row.noted(format!("attempt {attempts}")) } else { row };
    if outcome.is_disturbed() {
        let late = amounts::span(stall.0);
        let why = format!("{BUSY}: a thread that only slept woke {late} late");
        return row.undecided(why);
    }
    row
}

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (length, attempts) = if plan.is_full() { (LENGTH, ATTEMPTS) } else { (LENGTH_SHORT, 1) };
    let mut wanted = Case::all();
    if !plan.is_full() {
        wanted.retain(|case| case.threads == 8);
    }
    let (mut cases, mut finished) = (wanted.clone(), Vec::new());
    for attempt in 1..=attempts {
        for group in groups(std::mem::take(&mut cases)) {
            for outcome in measure(&group, length, interrupt) {
                match outcome.is_disturbed() && attempt < attempts {
                    true => cases.push(outcome.case),
                    false => finished.push(CaseOutcome { attempts: attempt, ..outcome }),
                }
            }
            interrupt.check()?;
        }
    }
    for case in wanted {
        match finished.iter().find(|outcome| outcome.case == case) {
            Some(outcome) => report(row(*outcome)),
            None => {
                report(Row::less(BENCH, case.title(), "%", None).because("no stage can be made"))
            }
        }
    }
    if plan.is_full() { beside_peers(interrupt, report) } else { Ok(()) }
}

/// One case beside peers that can make their callers wait, in turns, and both again if the machine
/// disturbed either.
fn beside_peers(interrupt: &Interrupt, report: &mut dyn FnMut(Row)) -> Result<(), Failure> {
    let case = Case { rate: 10 * MIB, cost: 64 << 10, threads: 1 };
    for (name, pace) in peers::paces() {
        for attempts in 1..=ATTEMPTS {
            let Some(ours) = measure(&[case], LENGTH, interrupt).pop() else { break };
            let peer = pace.as_ref().map_err(Clone::clone).map(|pace| beside(case, pace));
            interrupt.check()?;
            let ours = CaseOutcome { attempts, ..ours };
            let is_disturbed = peer.as_ref().is_ok_and(CaseOutcome::is_disturbed);
            if (ours.is_disturbed() || is_disturbed) && attempts < ATTEMPTS {
                continue;
            }
            let peer = peer.and_then(|peer| match (is_disturbed, peer.extremes) {
                (false, Some(extremes)) => Ok(extremes.worst),
                (true, _) => Err(BUSY.into()),
                (false, None) => Err("it granted nothing".into()),
            });
            report(row(ours).beside(name, peer));
            break;
        }
    }
    Ok(())
}

fn beside(case: Case, pace: &peers::Pace) -> CaseOutcome {
    let (burst, clock) = (Burst::DEFAULT.tokens(case.rate), Clock::start());
    let over = clock.now().after(LENGTH);
    let (stall, (mut grants, end)) = thread::scope(|scope| {
        let watching = scope.spawn(move || witness(clock, over));
        let paced = pace(case.rate, burst, case.cost, LENGTH);
        (watching.join().unwrap_or(Span(u64::MAX)), paced)
    });
    let extremes = Extremes::of(&mut grants, end, case.rate, case.cost);
    CaseOutcome { case, extremes, stall, attempts: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_from_every_grant() {
        // Ten requests of a tenth of the rate, then a gap of a tenth of a second, then ten more.
        let times = (0..10).chain(11..31).map(|tenth| Time(tenth * 100_000_000));
        let mut grants = times.collect::<Vec<_>>();
        let found = Extremes::of(&mut grants, Time(3_000_000_000), 1_000, 100).unwrap();
        assert!((found.least + 10.0).abs() < 1e-9 && found.most.abs() < 1e-9, "{found:?}");
        assert!(found.worst.abs() < 1e-9, "one request more or less is no deviation: {found:?}");
        let mut twice = grants.iter().chain(&grants).copied().collect::<Vec<_>>();
        let found = Extremes::of(&mut twice, Time(3_000_000_000), 1_000, 100).unwrap();
        assert!((found.worst - 90.0).abs() < 1e-9, "{found:?}");
        assert_eq!(Extremes::of(&mut [], Time(3_000_000_000), 1_000, 100), None);
    }

    #[test]
    fn groups_hold_every_case_once_and_are_not_too_busy() {
        let groups = groups(Case::all());
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), Case::all().len());
        for group in groups {
            let load = group.iter().map(|case| case.grants_per_second()).sum::<u64>();
            assert!(load <= GRANTS_TOGETHER || group.len() == 1, "{group:?}");
        }
    }

    #[test]
    fn a_case_shows_its_parameters() {
        let case = Case { rate: 10 * MIB, cost: 104_857, threads: 8 };
        assert_eq!(case.title(), "10 MiB/s, requests of 102.4 KiB (the burst), 8 threads");
    }

    #[test]
    fn what_the_machine_kept_from_waking_is_no_broken_promise() {
        let case = Case { rate: MIB, cost: 4096, threads: 1 };
        let extremes = Extremes { least: -9.0, most: 1.0, worst: 8.0 };
        let of = |stall| row(CaseOutcome { case, extremes: Some(extremes), stall, attempts: 2 });
        assert_eq!(of(Span::ZERO).kept, Some(false));
        let busy = of(Span::SECOND);
        assert_eq!((busy.kept, busy.value), (None, Some(8.0)));
        assert_eq!(busy.note.as_deref(), Some("attempt 2"));
        assert!(busy.reason.unwrap().contains("woke 1 s late"));
    }
}
