//! Benchmark of token division over servers (pShift): all anew from raw demands, and after one
//! bucket in a hundred has moved to other servers; beside a stock solver of maximum flows.
//!
//! Configurations are those of [`instance`](tidegate_algo::allocation::pshift::instance):
//! reservations are 0.9 or all of the capacities (r), demands 1.1 or 1.5 times the reservations
//! (m). Each solution is checked: its certificate must prove it, and its worth must be the peer's
//! maximum flow. A time is the median of many on one thread, the first allocation and all indices
//! included; of the peer, solving alone, without what it takes to build its graph.

use tidegate_algo::allocation::pshift::Solver;
use tidegate_algo::allocation::pshift::instance::Family;
use tidegate_model::Time;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::pshift::peer::{PEER, Peer, changes, follow};
use tidegate_console::clock::Clock;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "pshift";
/// Reservations and demands, in tenths.
const SHAPES: [(u32, u32); 4] = [(10, 11), (10, 15), (9, 11), (9, 15)];
/// The most time after such a change, in per cent of a solution from raw demands.
const CHANGED_PERCENT: f64 = 10.0;

/// How many servers and buckets, how often, and how long it may take for each shape, in
/// milliseconds.
struct Size {
    servers: u32,
    buckets: u32,
    rounds: usize,
    promises: [f64; 4],
}

const FULL: [Size; 3] = [
    Size { servers: 64, buckets: 10_000, rounds: 41, promises: [3.0, 1.2, 0.5, 0.5] },
    Size { servers: 256, buckets: 100_000, rounds: 15, promises: [60.0, 25.0, 10.0, 10.0] },
    Size { servers: 1_024, buckets: 1_000_000, rounds: 5, promises: [1_000.0; 4] },
];
const QUICK: [Size; 1] = [Size { servers: 16, buckets: 500, rounds: 5, promises: [3.0; 4] }];

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (sizes, mut peer) = match plan.is_full() {
        true => (&FULL[..], Peer::start(interrupt)),
        false => (&QUICK[..], Err("only measured in full".into())),
    };
    for size in sizes {
        for (shape, promise) in SHAPES.into_iter().zip(size.promises) {
            interrupt.check()?;
            let mut case = PshiftCase::new(size, shape);
            let promise = plan.is_full().then_some(promise);
            case.measure(promise, &mut peer, report);
        }
    }
    Ok(())
}

struct PshiftCase<'a> {
    size: &'a Size,
    family: Family,
    name: String,
    solver: Solver,
}

impl<'a> PshiftCase<'a> {
    fn new(size: &'a Size, (reserved_tenths, demand_tenths): (u32, u32)) -> Self {
        let &Size { servers, buckets, .. } = size;
        let family = Family { servers, buckets, reserved_tenths, demand_tenths };
        let [r, m] = [reserved_tenths, demand_tenths].map(|tenths| f64::from(tenths) / 10.0);
        let name = format!("{servers} x {buckets}, r {r:.1}, m {m:.1}");
        Self { size, family, name, solver: Solver::new(family.configuration()) }
    }

    fn measure(
        &mut self,
        promise: Option<f64>,
        peer: &mut Result<Peer, String>,
        report: &mut dyn FnMut(Row),
    ) {
        // Once, so that what only the first solution allocates is in no time.
        let outcome = self.solver.solve();
        let anew = Median::of((0..self.size.rounds).map(|_| {
            milliseconds(|| {
                self.solver.solve();
            })
        }));
        let certificate = self.solver.certificate();
        let proof = certificate.verify(self.solver.configuration());
        let (worth, all) = (outcome.effective_capacity, self.family.reserved());
        let row = Row::less(BENCH, &self.name, "ms", None).of_median(anew);
        let mut row = row.noted(format!("{worth} of {all} tokens are consumed"));
        if let Some(promise) = promise {
            row = row.promised(promise);
        }
        let solved = match peer {
            Ok(peer) => peer.solve(self.solver.configuration(), self.size.rounds),
            Err(reason) => Err(reason.clone()),
        };
        row = match solved {
            Ok((_, flow)) if flow != worth => wrong(row, format!("the maximum flow is {flow}")),
            Ok((time, _)) => row.beside(PEER, Ok(time)),
            Err(reason) => row.beside(PEER, Err(reason)),
        };
        report(match proof {
            Ok(()) => row,
            Err(flaw) => wrong(row, flaw.to_string()),
        });
        let Some(anew) = anew else { return };
        let shares = self.solver.configuration().shares().len();
        let case = format!("{}: for each share", self.name);
        report(Row::nanoseconds(BENCH, case, Some(anew.value * 1e6 / shares as f64)));
        report(self.changed(anew.value, promise.is_some()));
        if outcome.weak_excess > 0 {
            report(self.fair());
        }
    }

    /// One bucket in a hundred asks the same of other servers.
    fn changed(&mut self, anew: f64, is_promised: bool) -> Row {
        let mut is_proven = true;
        let times = (0..self.size.rounds as u64 + 1).map(|round| {
            let changes = changes(self.family, self.solver.configuration(), round + 2);
            let time = milliseconds(|| follow(&mut self.solver, &changes));
            if round % 8 == 0 {
                let certificate = self.solver.certificate();
                is_proven &= certificate.verify(self.solver.configuration()).is_ok();
            }
            time
        });
        // The first makes lists that later ones only keep.
        let median = Median::of(times.collect::<Vec<_>>().into_iter().skip(1));
        let percent = |time: f64| 100.0 * time / anew;
        let case = format!("{}: 1 % changed, of all anew", self.name);
        let mut row = Row::less(BENCH, case, "%", median.map(|median| percent(median.value)));
        if let Some(Median { value, low, high }) = median {
            row = row.between(percent(low), percent(high)).noted(format!("{value:.3} ms"));
        }
        match is_proven {
            true if is_promised => row.promised(CHANGED_PERCENT),
            true => row,
            false => wrong(row, "a solution was not proven".into()),
        }
    }

    fn fair(&mut self) -> Row {
        let mut met = 0;
        let rounds = self.size.rounds.div_ceil(5);
        let times = (0..rounds)
            .map(|_| milliseconds(|| met = self.solver.share_shortfall().met.iter().sum::<u64>()));
        let times = Median::of(times.collect::<Vec<_>>());
        let case = format!("{}: a fair division of what is missing", self.name);
        let row = Row::less(BENCH, case, "ms", None).of_median(times);
        row.noted(format!("{met} tokens are consumed"))
    }
}

/// A row whose time is worth nothing.
fn wrong(row: Row, reason: String) -> Row {
    Row { kept: Some(false), value: None, ..row.because(reason) }
}

fn milliseconds(work: impl FnOnce()) -> f64 {
    let clock = Clock::start();
    work();
    clock.now().since(Time::ZERO).as_seconds() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_can_be_measured() {
        let mut rows = Vec::new();
        let interrupt = Interrupt::default();
        super::rows(WindowPlan::TINY, &interrupt, &mut |row| rows.push(row)).unwrap();
        assert!(rows.len() >= 3 * SHAPES.len(), "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() && row.kept.is_none()), "{rows:#?}");
        assert!(rows[0].case.ends_with("500, r 1.0, m 1.1"), "{rows:#?}");
        assert_eq!(rows[0].peer.as_deref(), Some(PEER));
        assert_eq!(rows[0].reason.as_deref(), Some("only measured in full"));
    }
}
