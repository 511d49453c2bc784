//! pShift paper, figure 7: the time of dividing tokens by the number of buckets, beside a stock
//! solver of maximum flows. The first panel is the paper's; the second goes on to 256 servers and a
//! hundred times as many buckets, and shows what is left to do if one bucket in a hundred has
//! moved.

use serde_json::{Map, Value, json};
use tidegate_algo::allocation::pshift::Solver;
use tidegate_algo::allocation::pshift::instance::Family;

use super::judge;
use super::peer::{PEER, Peer, changes, follow};
use super::plot::{Panel, Series, draw};
use super::solver::{ROUNDS, SERVERS, median, median_ms, source};
use super::{FigureContext, FigureResult, thousandths, timed};
use crate::experiment::verdict::{Check, order};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::table::Table;

/// The paper's numbers of buckets.
const FEW: [u32; 10] = [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000];

/// Many servers, their numbers of buckets, and of how many runs a time is the median there.
const SERVERS_MANY: u32 = 256;
const MANY: [u32; 5] = [20_000, 40_000, 60_000, 80_000, 100_000];
const ROUNDS_MANY: usize = 5;

/// Runs both panels.
pub(super) fn run(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut peer = Peer::found();
    let ((few, many), took) = timed(|| {
        let mut rows = |servers, rounds, counts: &[u32]| {
            let point =
                |buckets: &u32| Point::measure(context, servers, *buckets, rounds, &mut peer);
            counts.iter().map(point).collect::<Result<Vec<_>, _>>()
        };
        (rows(SERVERS, ROUNDS, &FEW), rows(SERVERS_MANY, ROUNDS_MANY, &MANY))
    });
    let (few, many) = (few?, many?);
    let why = json!(peer.err());
    let mut table = Table::new()
        .right("SERVERS")
        .right("BUCKETS")
        .right("MS")
        .right("1 % MOVED, MS")
        .right("OR-TOOLS, MS");
    for point in few.iter().chain(&many) {
        let formatted = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{ms:.3}").into());
        table.row([
            point.servers.to_string().into(),
            point.buckets.to_string().into(),
            formatted(Some(point.ms)),
            formatted(point.moved_ms),
            formatted(point.peer_ms),
        ]);
    }
    let claims = vec![
        source("7", took).claim(
            "with 64 servers, the time grows linearly with the number of buckets",
            measured(&few),
            [judge::linear(&line(&few, |point| Some(point.ms)))],
        ),
        source("7", took)
            .claim("it is faster than a maximum flow", beside(&few, &why), [beats(&few)])
            .skipped(missing(&few, &why)),
        source("7", took)
            .claim(
                "both are so with 256 servers and up to 100,000 buckets, beyond the paper",
                beside(&many, &why),
                [judge::linear(&line(&many, |point| Some(point.ms))), beats(&many)],
            )
            .skipped(missing(&many, &why))
            .ours(),
    ];
    let panels = [panel("64 servers, r = 1.0, m = 1.1", &few), panel("256 servers", &many)];
    Ok(FigureResult { claims, table, picture: draw("Time by the number of buckets", &panels) })
}

/// One point of the figure. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Point {
    servers: u32,
    buckets: u32,
    ms: f64,
    /// After one bucket in a hundred has moved; none where that is a handful.
    moved_ms: Option<f64>,
    peer_ms: Option<f64>,
}

impl Point {
    fn measure(
        context: &FigureContext,
        servers: u32,
        buckets: u32,
        rounds: usize,
        peer: &mut Result<Peer, String>,
    ) -> Result<Self, Failure> {
        context.note(&format!("figure 7: {servers} servers, {buckets} buckets"));
        let family = Family { servers, buckets, reserved_tenths: 10, demand_tenths: 11 };
        let mut solver = Solver::new(family.configuration());
        let worth = solver.solve().effective_capacity;
        let ms = median_ms(context, rounds, || _ = solver.solve())?;
        let solved = match peer {
            Ok(peer) => Some(peer.solve(solver.configuration(), rounds)),
            Err(_) => None,
        };
        let peer_ms = match solved {
            None => None,
            Some(Ok((_, flow))) if flow != worth => {
                let what = format!("the maximum flow is {flow} and not {worth}");
                return Err(Failure::new(Code::Failure, what));
            }
            Some(Ok((ms, _))) => Some(ms),
            Some(Err(why)) => {
                *peer = Err(why);
                None
            }
        };
        let moved_ms = (servers != SERVERS).then(|| moved_ms(&mut solver, family, rounds));
        Ok(Self { servers, buckets, ms, moved_ms, peer_ms })
    }
}

/// The median time of dividing again after one bucket in a hundred has moved.
fn moved_ms(solver: &mut Solver, family: Family, rounds: usize) -> f64 {
    let round = |round: u64| {
        let changes = changes(family, solver.configuration(), round);
        timed(|| follow(solver, &changes)).1 * 1_000.0
    };
    // The first makes lists that later ones only keep.
    median((2..).map(round).take(rounds + 1).skip(1).collect())
}

fn line(points: &[Point], of: impl Fn(&Point) -> Option<f64>) -> Vec<(f64, f64)> {
    points.iter().filter_map(|point| Some((f64::from(point.buckets), of(point)?))).collect()
}

fn measured(points: &[Point]) -> Value {
    let named = |point: &Point| {
        (format!("{}_buckets_ms", point.buckets), Value::from(thousandths(point.ms)))
    };
    let mut measured: Map<String, Value> = points.iter().map(named).collect();
    let power = judge::power(&line(points, |point| Some(point.ms)));
    measured.insert("power".into(), thousandths(power).into());
    measured.into()
}

/// The last point, beside the peer's.
fn beside(points: &[Point], why: &Value) -> Value {
    let Some(last) = points.last() else { return Value::Null };
    json!({
        "buckets": last.buckets,
        "ms": thousandths(last.ms),
        "moved_ms": last.moved_ms.map(thousandths),
        "peer": PEER,
        "peer_ms": last.peer_ms.map(thousandths),
        "peer_reason": why,
        "power": thousandths(judge::power(&line(points, |point| Some(point.ms)))),
    })
}

/// The last point is below the peer's.
fn beats(points: &[Point]) -> Check {
    let last = points.last().and_then(|point| Some((point.ms, point.peer_ms?)));
    let (ms, peer) = last.unwrap_or((f64::NAN, f64::NAN));
    order("at last", "ms", &[("ours", ms), ("OR-tools", peer)])
}

/// Why there is nothing to compare with, if there is not.
fn missing<'a>(points: &[Point], why: &'a Value) -> Option<&'a str> {
    let has_peer = points.last().is_some_and(|point| point.peer_ms.is_some());
    (!has_peer).then(|| why.as_str().unwrap_or("OR-tools was not measured"))
}

fn panel(title: &str, points: &[Point]) -> Panel {
    let lines = [
        Series::line("pShift", line(points, |point| Some(point.ms))),
        Series::line("pShift, 1 % of buckets moved", line(points, |point| point.moved_ms)),
        Series::line("OR-tools, maximum flow", line(points, |point| point.peer_ms)),
    ];
    Panel::new(
        title,
        ["buckets", "milliseconds"],
        lines.into_iter().filter(|line| !line.points.is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    fn points(ms: [f64; 3], peer_ms: Option<f64>) -> Vec<Point> {
        let point = |(buckets, ms)| Point { servers: 64, buckets, ms, moved_ms: None, peer_ms };
        [100, 200, 300].into_iter().zip(ms).map(point).collect()
    }

    #[test]
    fn growth_and_the_peer_are_judged() {
        let why = json!("no OR-tools");
        let without = points([1.0, 2.0, 3.0], None);
        assert_eq!(missing(&without, &why), Some("no OR-tools"));
        assert_eq!(judge(&[beats(&without)]).verdict, Verdict::Skipped);
        for (peer_ms, verdict) in [(4.0, Verdict::Reproduced), (2.0, Verdict::NotReproduced)] {
            let points = points([1.0, 2.0, 3.0], Some(peer_ms));
            assert_eq!(judge(&[beats(&points)]).verdict, verdict);
            assert_eq!(missing(&points, &why), None);
        }
        let grows = |ms| line(&points(ms, None), |point| Some(point.ms));
        assert_eq!(
            judge(&[super::judge::linear(&grows([1.0, 2.0, 3.0]))]).verdict,
            Verdict::Reproduced
        );
        assert_ne!(
            judge(&[super::judge::linear(&grows([1.0, 8.0, 27.0]))]).verdict,
            Verdict::Reproduced
        );
    }

    #[test]
    fn moved_buckets_are_divided_again() {
        let family = Family { servers: 16, buckets: 500, reserved_tenths: 10, demand_tenths: 11 };
        let mut solver = Solver::new(family.configuration());
        solver.solve();
        assert!(moved_ms(&mut solver, family, 3) > 0.0);
        assert!(solver.certificate().verify(solver.configuration()).is_ok());
    }
}
