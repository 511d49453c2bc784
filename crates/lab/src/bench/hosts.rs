//! Hosts: one budget over programs on many hosts, whose demand changes and of which one is cut off.
//!
//! Programs under `tidegate run --controller` connect over TLS to one controller, each host with a
//! state and a certificate of its own. They read from the page cache, all that they can get, so the
//! budget alone limits them. By a plan, the programs of some tenants on some hosts stop and go on;
//! in the middle the link of a host is cut for longer than its lease. Three promises are checked:
//!
//! - In each period a tenant has its reservation within 2 %, and no more than its limit by 2 %. A
//!   period counts if demand was the same for two intervals before it and until its end.
//! - Two intervals after a change of demand 95 % of the capacity are in use, and tenants that send
//!   requests have 95 % of their reservations.
//! - At no moment the rates in force at all stages together are more than the capacity.
//!
//! The peer is a static division: the same programs, each with a limit of an equal part of the
//! capacity. It runs after ours, with the same plan. A static limit needs no measurement to be
//! exact; the peer shows what following the demand is worth.
//!
//! The programs count what they read themselves. Rates in force are those of the buckets in the
//! stages' segments.

use std::io::IsTerminal;

use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_model::amounts;

use super::sample::Median;
use super::window::WindowPlan;
use super::{BRIEF, Row};
use crate::experiment::note_line;
use crate::experiment::quiet::{self, PriorityBoost};
pub(crate) use plan::HostsSize;
use plan::{Bound, CAPACITY, HostsDivision, HostsTenant, TENANTS, share};
use score::{CONVERGED_INTERVALS, Converged, FULFILLED_PERCENT, HostsScore, TenantScore};
use testbed::HostsTestbed;

mod link;
mod plan;
mod score;
mod testbed;

const BENCH: &str = "hosts";
/// How far a tenant may be from its promise in a period, in per cent.
const DEVIATION: f64 = 2.0;
const PEER: &str = "a static division";

/// A run with the seconds that were watched.
struct HostsRun {
    score: HostsScore,
    disturbed: usize,
    seconds: usize,
}

/// Measures, and reports the rows. `size` is that of the plan if it is none.
///
/// # Errors
/// If the user interrupts the run.
pub(super) fn rows(
    plan: WindowPlan,
    size: Option<HostsSize>,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let is_full = plan.is_full();
    let size = size.unwrap_or(if is_full { HostsSize::FULL } else { HostsSize::QUICK });
    let _priority_boost = PriorityBoost::raise();
    let ours = match measure(HostsDivision::Tidegate, size, interrupt) {
        Ok(run) => run,
        Err(failure) => {
            interrupt.check()?;
            let row = Row::more(BENCH, "reservations", "% promised", None);
            report(row.because(failure.to_string()));
            return Ok(());
        }
    };
    let peer = match is_full {
        true => {
            measure(HostsDivision::Static, size, interrupt).map_err(|failure| failure.to_string())
        }
        false => Err(BRIEF.to_owned()),
    };
    interrupt.check()?;
    let comparison = HostsComparison { size, ours, peer };
    comparison.report(report);
    Ok(())
}

fn measure(
    division: HostsDivision,
    size: HostsSize,
    interrupt: &Interrupt,
) -> Result<HostsRun, Failure> {
    let is_watched = std::io::stderr().is_terminal();
    let name = match division {
        HostsDivision::Tidegate => "hosts",
        HostsDivision::Static => PEER,
    };
    let show = |text: &str| note_line::show(is_watched, &format!("{name}: {text}"));
    show("programs start");
    let run = HostsTestbed::start(division, size, interrupt).and_then(|mut testbed| {
        let steps = plan::steps(size);
        let trace = testbed.run(&steps, &mut |line| show(line))?;
        let disturbed = trace.quiet.iter().filter(|is_quiet| !**is_quiet).count();
        let score = HostsScore::of(&trace, size, &steps);
        Ok(HostsRun { score, disturbed, seconds: trace.quiet.len() })
    });
    note_line::show(is_watched, "");
    run
}

/// The least, the median and the largest of some figures.
fn bounds(figures: &[f64]) -> Option<[f64; 3]> {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Median::of(figures.iter().copied()).map(|median| [least, median.value, most])
}

/// Ours beside the peer.
struct HostsComparison {
    size: HostsSize,
    ours: HostsRun,
    peer: Result<HostsRun, String>,
}

impl HostsComparison {
    fn report(&self, report: &mut dyn FnMut(Row)) {
        for (tenant, one) in TENANTS.iter().enumerate() {
            if let Some(row) = self.promise(tenant, *one) {
                report(self.judged(row));
            }
        }
        for name in plan::changes() {
            report(self.judged(self.convergence(name)));
        }
        report(self.judged(self.used()));
        report(self.judged(self.rates()));
        report(self.apart());
        report(self.time("it returns", |score| &score.returned));
    }

    /// Takes the verdict away if too many seconds were disturbed.
    fn judged(&self, row: Row) -> Row {
        let HostsRun { disturbed, seconds, .. } = self.ours;
        row.unless_disturbed(quiet::disturbance(disturbed, seconds, 1))
    }

    /// A row with a figure of ours and the same of the peer.
    fn beside(&self, row: Row, figure: impl Fn(&HostsScore) -> Result<f64, String>) -> Row {
        let value = figure(&self.ours.score);
        let row = match value {
            Ok(value) => Row { value: Some(value), reason: None, ..row },
            Err(reason) => row.because(reason),
        };
        row.beside(PEER, self.peer.as_ref().map_err(Clone::clone).and_then(|it| figure(&it.score)))
    }

    /// The row of a tenant with a bound.
    fn promise(&self, tenant: usize, one: HostsTenant) -> Option<Row> {
        let (percent, is_least) = match one.bound {
            Bound::Reservation(percent) => (percent, true),
            Bound::Limit(percent) => (percent, false),
            Bound::None => return None,
        };
        let figure = |score: &HostsScore| {
            let TenantScore { counted, .. } = &score.tenants[tenant];
            let [least, _, most] = bounds(counted).ok_or_else(no_period)?;
            Ok(if is_least { least } else { most })
        };
        let of = amounts::bandwidth(share(percent).0);
        let row = match is_least {
            true => {
                let case = format!("{}, {of} reserved: in a period, least", one.name);
                self.beside(Row::more(BENCH, case, "% promised", None), figure)
                    .promised(100.0 - DEVIATION)
            }
            false => {
                let case = format!("{}, limit {of}: in a period, most", one.name);
                self.beside(Row::less(BENCH, case, "%", None), figure).promised(100.0 + DEVIATION)
            }
        };
        let TenantScore { counted, changing } = &self.ours.score.tenants[tenant];
        let Some([least, median, most]) = bounds(counted) else { return Some(row) };
        let changing = bounds(changing).map_or_else(String::new, |[least, _, most]| {
            format!("; {least:.0} to {most:.0} in periods that begin with a change")
        });
        let note = format!("median {median:.2} of {} periods{changing}", counted.len());
        Some(row.between(least, most).noted(note))
    }

    /// The row of a change of demand.
    fn convergence(&self, name: &'static str) -> Row {
        fn times<'a>(score: &'a HostsScore, name: &str) -> &'a [Converged] {
            score.converged.get(name).map_or(&[], Vec::as_slice)
        }
        let row = self.time(name, |score| times(score, name));
        let row = row.promised(CONVERGED_INTERVALS as f64);
        let times = times(&self.ours.score, name);
        let found: Vec<f64> = times.iter().filter_map(|time| time.ok()).collect();
        match bounds(&found) {
            Some([least, median, most]) => {
                let note = format!("median {median:.1} of {} changes", found.len());
                row.between(least, most).noted(note)
            }
            None => row,
        }
    }

    /// A row of the longest of some times. Where ours is none, the value is how long was waited.
    fn time(&self, what: &str, times: impl Fn(&HostsScore) -> &[Converged]) -> Row {
        let case = format!("{what}: until {FULFILLED_PERCENT} % are used");
        let row = Row::less(BENCH, case, "intervals", None);
        let row = self.beside(row, |score| slowest(times(score)));
        let never = times(&self.ours.score).iter().filter_map(|time| time.err());
        match never.map(|it| it.waited).reduce(f64::max) {
            Some(waited) => Row { value: Some(waited), ratio: None, ..row },
            None => row,
        }
    }

    fn used(&self) -> Row {
        let figure =
            |score: &HostsScore| bounds(&score.used).map(|[least, ..]| least).ok_or_else(no_period);
        let row = Row::more(BENCH, "the capacity, in a period, least", "% used", None);
        let row = self.beside(row, figure).promised(FULFILLED_PERCENT);
        match bounds(&self.ours.score.used) {
            Some([least, median, most]) => {
                row.between(least, most).noted(format!("median {median:.2}"))
            }
            None => row,
        }
    }

    fn rates(&self) -> Row {
        let figure = |score: &HostsScore| score.rates.ok_or_else(|| "no rate was read".to_owned());
        let row = Row::less(BENCH, "rates in force, most, of the capacity", "%", None);
        let HostsSize { stages, hosts, .. } = self.size;
        let HostsRun { disturbed, seconds, .. } = self.ours;
        let note = format!(
            "{CAPACITY} over {stages} stages on {hosts} hosts; {disturbed} of {seconds} seconds \
             were disturbed"
        );
        self.beside(row, figure).promised(100.0).noted(note)
    }

    /// The use of the capacity while a host was cut off: until its lease is over it keeps rates.
    fn apart(&self) -> Row {
        let figure = |score: &HostsScore| {
            bounds(&score.used_apart).map(|[least, ..]| least).ok_or_else(no_period)
        };
        let case = "a host is cut off: the capacity, in a period, least";
        let row = self.beside(Row::more(BENCH, case, "% used", None), figure);
        let row = match bounds(&self.ours.score.used_apart) {
            Some([least, _, most]) => row.between(least, most),
            None => row,
        };
        match self.ours.score.apart {
            Some([first, last]) => row.noted(format!(
                "its programs had {first:.2} % of the capacity, and {last:.2} % behind the lease"
            )),
            None => row,
        }
    }
}

fn no_period() -> String {
    "no period was undisturbed".into()
}

/// The longest of some times, or why there is none.
fn slowest(times: &[Converged]) -> Result<f64, String> {
    let never = |most: f64| format!("never more than {most:.0} %");
    let all: Result<Vec<f64>, String> =
        times.iter().map(|time| time.map_err(|it| never(it.most))).collect();
    all?.into_iter().reduce(f64::max).ok_or_else(|| "no change was undisturbed".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use score::Unfulfilled;

    const NEVER: Converged = Err(Unfulfilled { most: 80.0, waited: 30.0 });

    fn run(gold: Vec<f64>, time: Converged, disturbed: usize) -> HostsRun {
        let tenants = vec![TenantScore::default(); 5];
        let mut score = HostsScore { tenants, ..HostsScore::default() };
        for one in &mut score.tenants {
            one.counted = vec![100.0, 101.0];
        }
        score.tenants[0].counted = gold;
        for name in plan::changes() {
            score.converged.insert(name, vec![Ok(1.0), time]);
        }
        score.used = vec![97.0, 99.0];
        score.used_apart = vec![93.0];
        score.returned = vec![Ok(0.5)];
        score.rates = Some(99.5);
        score.apart = Some([12.0, 9.5]);
        HostsRun { score, disturbed, seconds: 50 }
    }

    fn rows(ours: HostsRun) -> Vec<Row> {
        let peer = Ok(run(vec![66.7], NEVER, 0));
        let mut rows = Vec::new();
        HostsComparison { size: HostsSize::FULL, ours, peer }.report(&mut |row| rows.push(row));
        rows
    }

    #[test]
    fn each_promise_has_a_row_beside_the_static_division() {
        let rows = rows(run(vec![98.5, 100.0, 103.0], Ok(1.9), 0));
        assert_eq!(rows.len(), 4 + 5 + 4, "{rows:#?}");
        let gold = &rows[0];
        assert_eq!((gold.value, gold.peer_value, gold.kept), (Some(98.5), Some(66.7), Some(true)));
        assert_eq!(gold.spread, Some([98.5, 103.0]));
        let limit = &rows[3];
        assert_eq!((limit.value, limit.kept), (Some(101.0), Some(true)));
        let change = &rows[4];
        assert_eq!((change.value, change.peer_value, change.kept), (Some(1.9), None, Some(true)));
        assert_eq!(change.reason.as_deref(), Some("never more than 80 %"));
        assert!(rows.iter().all(|row| row.kept != Some(false)), "{rows:#?}");
        let apart = rows[11].note.as_deref();
        assert!(apart.is_some_and(|note| note.ends_with("9.50 % behind the lease")), "{apart:?}");
        let promised = rows.iter().filter(|row| row.promise.is_some()).count();
        assert_eq!(promised, 4 + 5 + 2);
    }

    #[test]
    fn missed_promises_are_missed() {
        let late = rows(run(vec![97.9], Ok(2.1), 0));
        assert_eq!((late[0].kept, late[4].kept), (Some(false), Some(false)));
        let never = rows(run(vec![99.0], NEVER, 0));
        assert_eq!((never[4].kept, never[4].value), (Some(false), Some(30.0)));
        assert_eq!(never[4].reason.as_deref(), Some("never more than 80 %"));
    }

    #[test]
    fn a_disturbed_run_has_no_verdict() {
        let rows = rows(run(vec![97.9], NEVER, 11));
        assert!(rows.iter().all(|row| row.kept.is_none()), "{rows:#?}");
        assert!(rows[0].reason.as_deref().is_some_and(|why| why.starts_with("11 of 50")));
    }
}
