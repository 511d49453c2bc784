//! Benchmark of policy changes: how soon a new rate takes effect. `tidegate apply` changes the
//! limit of a program whose threads request tokens all the time, from 10 to 100 MiB/s and back.
//!
//! The time counts from the start of the command, by the grants that the threads see. A higher rate
//! holds with the first grant that the old rate and its burst cannot explain. A lower rate holds
//! from the moment on from which the new rate and its burst explain all grants. A burst is ten
//! milliseconds of its rate, so the first is found a millisecond too late, and the second up to a
//! millisecond too early.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidegate_model::gate::Burst;
use tidegate_model::{Operation, Span, Time};
use tidegate_stage::{Request, Settings, Stage, StageAgent};

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "apply";
/// How soon a new rate is to be there, in milliseconds.
const EFFECT_MS: f64 = 50.0;
const SLOW: u64 = 10 << 20;
const FAST: u64 = 100 << 20;
const TENANT: &str = "asks";
/// The requesting threads, and the size of a request: at the slow rate one is granted every 1.6 ms.
const THREADS: usize = 4;
const COST: u64 = 16 << 10;
/// How long a rate stays until the next is applied: twice what is promised, and more.
const PHASE: Span = Span(150 * Span::MILLISECOND.0);
/// How long the stage may take until it has its rules.
const PATIENCE: Span = Span(5 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

fn policy(rate: u64) -> String {
    format!("[[tenant]]\nname = \"{TENANT}\"\nlimit = \"{}MiB/s\"\n", rate >> 20)
}

/// An apply: what it changed, from when on, and how long the command took.
#[derive(Clone, Copy, Debug)]
struct AppliedChange {
    old: u64,
    new: u64,
    begin: Time,
    took: Span,
    /// Until when its rate was left alone.
    end: Time,
}

impl AppliedChange {
    /// When the first grant came that the old rate does not explain, for a higher rate; from when
    /// on the new rate explains all of them, for a lower one. `grants` are in order.
    fn seen(&self, grants: &[Time]) -> Option<Time> {
        let from = grants.partition_point(|at| *at < self.begin);
        let to = grants.partition_point(|at| *at < self.end);
        let grants = grants.get(from..to)?;
        let explained = |rate: u64, span: Span| {
            let burst = Burst::DEFAULT.tokens(rate);
            rate as f64 * span.as_seconds() + (burst + COST) as f64
        };
        let bytes = |count: usize| count as f64 * COST as f64;
        if self.new > self.old {
            let mut counted = grants.iter().enumerate();
            let is_new = |(index, at): &(usize, &Time)| {
                bytes(index + 1) > explained(self.old, at.since(self.begin))
            };
            return counted.find(is_new).map(|(_, at)| *at);
        }
        let is_old = |index: &usize| {
            bytes(grants.len() - index) > explained(self.new, self.end.since(grants[*index]))
        };
        match (0..grants.len()).rev().find(is_old) {
            // The next grant is the first that the new rate explains.
            Some(last) => grants.get(last + 1).copied(),
            None => Some(self.begin),
        }
    }
}

/// Sends requests until `is_over` is set. Returns the times of their grants.
fn request_repeatedly(stage: &Stage, is_over: &AtomicBool) -> Vec<Time> {
    let mut grants = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let admission = stage.enforce(&Request::new(Operation::Write, COST));
        grants.push(stage.now());
        admission.complete(COST);
    }
    grants
}

/// A controller, and a stage of this process that it has given the slow rate.
struct ApplyTestbed {
    agent: StageAgent,
    controller: Controller,
    scratch: Scratch,
    clock: Clock,
}

impl ApplyTestbed {
    fn make(interrupt: &Interrupt) -> Result<Self, Failure> {
        let fail = |what: &str| Failure::new(Code::Failure, what);
        let scratch = Scratch::new()?;
        let controller = Controller::start("controller", &policy(SLOW), &scratch, interrupt)?;
        let socket = controller.socket().to_owned();
        let settings = Settings { tenant: TENANT.into(), socket, ..Settings::default() };
        let agent = StageAgent::start(settings)
            .map_err(|error| fail("no stage can be made here").cause(error))?;
        let clock = Clock::start();
        while agent.stage().layout().header.generation.load(Ordering::Acquire) == 0 {
            if clock.now().0 > PATIENCE.0 {
                return Err(fail("the controller gave the stage no rules"));
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        Ok(Self { agent, controller, scratch, clock })
    }

    /// Applies a rate, and leaves it alone for a while.
    fn change(
        &self,
        (old, new): (u64, u64),
        interrupt: &Interrupt,
    ) -> Result<AppliedChange, Failure> {
        let stage = self.agent.stage();
        let begin = stage.now();
        self.controller.apply(&policy(new), &self.scratch.join("policy.toml"))?;
        let took = stage.now().since(begin);
        let rest = Span(PHASE.0.saturating_sub(took.0));
        interrupt.sleep_until(self.clock, self.clock.now().after(rest))?;
        Ok(AppliedChange { old, new, begin, took, end: stage.now() })
    }

    /// Goes up and down, so many times. Gives what was changed, and every grant in order.
    fn changes(
        &self,
        times: usize,
        interrupt: &Interrupt,
    ) -> Result<(Vec<AppliedChange>, Vec<Time>), Failure> {
        let (stage, is_over) = (self.agent.stage(), &AtomicBool::new(false));
        thread::scope(|scope| {
            let asking =
                [(); THREADS].map(|()| scope.spawn(move || request_repeatedly(stage, is_over)));
            let both = [(SLOW, FAST), (FAST, SLOW)];
            // The first phase is for the threads to begin, and for the burst to be spent.
            let begin = interrupt.sleep_until(self.clock, self.clock.now().after(PHASE));
            let mut change = |rates| self.change(rates, interrupt);
            let rates = both.into_iter().cycle().take(2 * times);
            let changes: Result<Vec<AppliedChange>, Failure> =
                begin.and_then(|()| rates.map(&mut change).collect());
            is_over.store(true, Ordering::Relaxed);
            let grants = asking.into_iter().filter_map(|thread| thread.join().ok());
            let mut grants = grants.flatten().collect::<Vec<_>>();
            grants.sort_unstable();
            changes.map(|changes| (changes, grants))
        })
    }
}

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let changed =
        ApplyTestbed::make(interrupt).and_then(|testbed| testbed.changes(plan.rounds, interrupt));
    interrupt.check()?;
    let (changes, grants) = match changed {
        Ok(changed) => changed,
        Err(failure) => {
            let row = Row::less(BENCH, "a new rate, worst", "ms", None).promised(EFFECT_MS);
            report(row.because(failure.to_string()));
            return Ok(());
        }
    };
    let milliseconds = |span: Span| span.as_seconds() * 1_000.0;
    for (name, new) in [("10 -> 100 MiB/s", FAST), ("100 -> 10 MiB/s", SLOW)] {
        let changes = changes.iter().filter(|change| change.new == new);
        // A rate that was not seen had no effect within the measured time.
        let seen = |change: &AppliedChange| {
            let at = change.seen(&grants).unwrap_or(change.end);
            milliseconds(at.since(change.begin))
        };
        let times = changes.map(seen).collect::<Vec<_>>();
        report_times(name, &times, true, report);
    }
    let took = changes.iter().map(|change| milliseconds(change.took)).collect::<Vec<_>>();
    report_times("the command itself, until it has ended", &took, false, report);
    Ok(())
}

fn report_times(name: &str, times: &[f64], is_promised: bool, report: &mut dyn FnMut(Row)) {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let worst = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let Some(median) = Median::of(times.iter().copied()) else { return };
    let case = format!("{name}, median of {}", times.len());
    report(Row::less(BENCH, case, "ms", Some(median.value)).between(least, worst));
    let row = Row::less(BENCH, format!("{name}, worst"), "ms", Some(worst));
    report(if is_promised { row.promised(EFFECT_MS) } else { row });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = Span::MILLISECOND.0;

    /// Grants at `old` until `at`, and at `new` from there on.
    fn grants(old: u64, new: u64, at: u64, end: u64) -> Vec<Time> {
        let (mut now, mut grants) = (0, Vec::new());
        while now < end {
            grants.push(Time(now));
            let rate = if now < at { old } else { new };
            now += COST * Span::SECOND.0 / rate;
        }
        grants
    }

    #[test]
    fn a_new_rate_is_seen_a_millisecond_from_when_it_is_there() {
        for (old, new) in [(SLOW, FAST), (FAST, SLOW)] {
            let (begin, end) = (Time(100 * MS), Time(300 * MS));
            let change = AppliedChange { old, new, begin, took: Span::ZERO, end };
            let seen = change.seen(&grants(old, new, 120 * MS, 400 * MS)).unwrap();
            assert!(seen.0.abs_diff(120 * MS) < 2 * MS, "{old} -> {new}: {seen:?}");
        }
    }

    #[test]
    fn a_rate_that_never_comes_is_not_seen() {
        let (begin, end, took) = (Time(100 * MS), Time(300 * MS), Span::ZERO);
        let up = AppliedChange { old: SLOW, new: FAST, begin, took, end };
        assert_eq!(up.seen(&grants(SLOW, SLOW, 0, 400 * MS)), None);
        let down = AppliedChange { old: FAST, new: SLOW, begin, took, end };
        let seen = down.seen(&grants(FAST, FAST, 0, 400 * MS)).unwrap_or(end);
        assert!(seen.0 > 295 * MS, "{seen:?}");
    }
}
