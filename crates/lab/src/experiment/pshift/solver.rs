//! pShift paper, figures 5 and 6: the cost of dividing tokens, on the instances of the solver's own
//! bench: 64 servers of 100,000 operations a period, and up to 10,000 buckets on eight of them
//! each.

use std::thread;

use serde_json::{Map, json};
use tidegate_algo::allocation::pshift::instance::Family;
use tidegate_algo::allocation::pshift::{Configuration, Solver};
use tidegate_sim::rng::{Stream, apportion};

use super::judge;
use super::plot::{Panel, Series, draw};
use super::{ClaimSource, FigureContext, FigureResult, LIVE, PAPER, tenths, thousandths, timed};
use crate::experiment::verdict::{Check, at_least, at_most, order, order_by, rises};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::table::Table;

pub(super) const SERVERS: u32 = 64;
const BUCKETS: u32 = 10_000;
/// A time is the median of so many.
pub(super) const ROUNDS: usize = 15;

/// Figure 5's reservations, in tenths of the capacity, and demands, in hundredths of reservations.
const RESERVED: [u32; 2] = [10, 9];
const DEMANDED: [u64; 6] = [105, 110, 120, 130, 140, 150];
/// The paper's, with twelve threads: tens of milliseconds.
const PAPER_MS: f64 = 10.0;

/// Figure 6's numbers of buckets, and its exponents of reservations.
const AMONG: [usize; 6] = [100, 200, 500, 1_000, 2_000, 5_000];
const EXPONENTS: [f64; 6] = [0.0, 0.1, 0.25, 0.5, 1.0, 2.0];

fn family(buckets: u32, reserved_tenths: u32) -> Family {
    // Demands are in tenths; those of this family are made of other amounts than reservations.
    Family { servers: SERVERS, buckets, reserved_tenths, demand_tenths: 1 }
}

/// Buckets with these reservations, each of which asks for so many hundredths of it.
fn configuration(
    family: Family,
    reservations: &[u64],
    hundredths: u64,
) -> Result<Configuration, Failure> {
    let mut configuration = Configuration::new(family.configuration().capacities());
    for (bucket, reservation) in reservations.iter().enumerate() {
        // A tenth of this, rounded up, is the demand.
        let tenfold = (reservation * hundredths).div_ceil(10);
        let demands = family.demands(bucket as u64, tenfold, 1);
        configuration.push(*reservation, &demands).map_err(|error| {
            Failure::new(Code::Failure, "there is no such instance").cause(error)
        })?;
    }
    Ok(configuration)
}

/// The median of so many runs of `work`, in milliseconds, after one that is not counted.
pub(super) fn median_ms(
    context: &FigureContext,
    rounds: usize,
    mut work: impl FnMut(),
) -> Result<f64, Failure> {
    work();
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        context.interrupt.check()?;
        times.push(timed(&mut work).1 * 1_000.0);
    }
    Ok(median(times))
}

/// The median of some times, or of none NaN.
pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(super) fn source(figure: &'static str, seconds: f64) -> ClaimSource {
    ClaimSource { paper: PAPER, figure, world: LIVE, seed: None, seconds: tenths(seconds) }
}

/// Figure 5: the time all anew, by what is reserved and asked, and by the number of threads.
pub(super) fn threads(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (points, took) = timed(|| measured_threads(context));
    let points = points?;
    let counts = thread_counts();
    let at = |tenths: u32, hundredths: u64, threads: usize| {
        let same = |p: &&Anew| (p.reserved, p.demanded, p.threads) == (tenths, hundredths, threads);
        points.iter().find(same).map_or(f64::NAN, |point| point.ms)
    };
    let mut measured = Map::new();
    let mut table =
        Table::new().right("R").right("M").right("THREADS").right("MS").right("X 1 THREAD");
    for point in &points {
        let Anew { reserved, demanded, threads, ms } = *point;
        let name = format!("r_{reserved}_tenths_m_{demanded}_hundredths_{threads}_threads_ms");
        measured.insert(name, thousandths(ms).into());
        let speedup = at(reserved, demanded, 1) / ms;
        table.row([
            format!("{:.1}", f64::from(reserved) / 10.0).into(),
            format!("{:.2}", demanded as f64 / 100.0).into(),
            threads.to_string().into(),
            format!("{ms:.3}").into(),
            format!("{speedup:.2}").into(),
        ]);
    }
    let column = |tenths: u32| DEMANDED.map(|hundredths| at(tenths, hundredths, 1));
    let speedups = points.iter().map(|p| at(p.reserved, p.demanded, 1) / p.ms);
    let speedup = speedups.fold(1.0, f64::max);
    let worst = points.iter().map(|point| point.ms).fold(0.0, f64::max);
    let claims = vec![
        source("5", took).claim(
            "dividing anew takes longer the more is reserved and the less demand there is to spare",
            measured.clone().into(),
            harder(column(RESERVED[0]), column(RESERVED[1])),
        ),
        source("5", took).claim(
            "for 64 servers and 10,000 buckets it takes less than the paper's tens of milliseconds \
             on 12 threads",
            json!({ "longest_ms": thousandths(worst) }),
            [at_most("at the most", "ms", PAPER_MS, worst)],
        ),
        source("5", took)
            .claim(
                "threads make it faster, up to five times on twelve",
                json!({ "threads": counts.last(), "speedup": thousandths(speedup) }),
                [faster(&counts, speedup)],
            )
            .skipped(one_thread(&counts))
            .because(
                "what the paper parallelises, the map of all token movements, is not made here",
            ),
    ];
    let picture = picture_of_threads(&counts, &at);
    Ok(FigureResult { claims, table, picture })
}

fn picture_of_threads(counts: &[usize], at: &dyn Fn(u32, u64, usize) -> f64) -> String {
    let line = |(tenths, threads): (u32, usize)| {
        let points = DEMANDED.iter().map(|m| (*m as f64 / 100.0, at(tenths, *m, threads)));
        let name = format!("r = {:.1}, threads: {threads}", f64::from(tenths) / 10.0);
        Series::line(name, points.collect())
    };
    let lines = RESERVED.iter().flat_map(|tenths| counts.iter().map(move |n| (*tenths, *n)));
    let panel = Panel::new(
        "64 servers, 10,000 buckets, all anew",
        ["demand / reservation", "milliseconds"],
        lines.map(line),
    );
    draw("Time of dividing tokens", &[panel])
}

/// One point of figure 5.
#[derive(Clone, Copy, Debug)]
struct Anew {
    reserved: u32,
    demanded: u64,
    threads: usize,
    ms: f64,
}

fn measured_threads(context: &FigureContext) -> Result<Vec<Anew>, Failure> {
    let mut points = Vec::new();
    for reserved in RESERVED {
        let family = family(BUCKETS, reserved);
        let reservations = family.configuration().reservations().to_vec();
        for demanded in DEMANDED {
            context.note(&format!("figure 5: r = {reserved}/10, m = {demanded}/100"));
            let mut solver = Solver::new(configuration(family, &reservations, demanded)?);
            for threads in thread_counts() {
                let ms = solved_on(context, &mut solver, threads)?;
                points.push(Anew { reserved, demanded, threads, ms });
            }
        }
    }
    Ok(points)
}

/// One thread, and with the feature `parallel` as many more as there are processors.
fn thread_counts() -> Vec<usize> {
    let most = thread::available_parallelism().map_or(1, usize::from);
    (1..=if cfg!(feature = "parallel") { most } else { 1 }).collect()
}

#[cfg(feature = "parallel")]
fn solved_on(context: &FigureContext, solver: &mut Solver, threads: usize) -> Result<f64, Failure> {
    if threads == 1 {
        return median_ms(context, ROUNDS, || _ = solver.solve());
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool =
        pool.map_err(|error| Failure::new(Code::Failure, "no threads to be had").cause(error))?;
    pool.install(|| median_ms(context, ROUNDS, || _ = solver.solve_parallel()))
}

#[cfg(not(feature = "parallel"))]
fn solved_on(
    context: &FigureContext,
    solver: &mut Solver,
    _threads: usize,
) -> Result<f64, Failure> {
    median_ms(context, ROUNDS, || _ = solver.solve())
}

/// All of the capacity reserved takes longer than 0.9 of it, and little demand to spare longer than
/// much.
fn harder(full: [f64; 6], less: [f64; 6]) -> [Check; 2] {
    let tight = full[1];
    [
        order("", "ms", &[("r = 0.9", less[1]), ("r = 1.0", tight)]),
        order("", "ms", &[("m = 1.5", full[5]), ("m = 1.1", tight)]),
    ]
}

/// Why threads are not tried, if they are not.
fn one_thread(counts: &[usize]) -> Option<&'static str> {
    match (cfg!(feature = "parallel"), counts.last()) {
        (false, _) => Some("this program was built without the feature `parallel`"),
        (true, None | Some(1)) => Some("this machine has one processor"),
        (true, _) => None,
    }
}

/// So much of the speed of each more thread counts at least.
const SCALES: f64 = 0.25;

fn faster(counts: &[usize], speedup: f64) -> Check {
    let most = counts.last().copied().unwrap_or(1);
    at_least(format!("with {most}"), "times", 1.0 + SCALES * (most - 1) as f64, speedup)
}

/// Figure 6: what is left of the excess if only the largest shares of each server may move.
pub(super) fn among(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (rows, took) = timed(|| EXPONENTS.map(|exponent| Removed::measure(context, exponent)));
    let rows = rows.into_iter().collect::<Result<Vec<Removed>, _>>()?;
    let mut measured = Map::new();
    for (exponent, row) in EXPONENTS.iter().zip(&rows) {
        for (most, percent) in AMONG.iter().zip(&row.percent) {
            let hundredths = (exponent * 100.0).round();
            let name = format!("s_{hundredths}_hundredths_{most}_buckets_percent");
            measured.insert(name, tenths(*percent).into());
        }
    }
    let (some, all) = (rows[3].ms[2], rows[3].all_ms);
    let claims = vec![
        source("6", took).claim(
            "the 2,000 largest of 10,000 buckets are enough to remove all weak excess that can be, \
             and 500 remove most of it, however reservations are distributed",
            measured.clone().into(),
            enough(&rows),
        ),
        source("6", took).claim(
            "the more skewed reservations are, the fewer buckets are needed",
            measured.into(),
            skewed(&rows),
        )
        .because(
            "it is so up to s = 1; at s = 2 most of the weak excess can be removed only through \
             buckets that are not among the 100 largest of their servers",
        ),
        source("6", took).claim(
            "with few buckets it is faster, up to five times",
            json!({ "most_500_ms": thousandths(some), "all_ms": thousandths(all) }),
            [order_by(QUICKER, "", "ms", &[("500", some), ("all", all)])],
        )
        .because("what is left out was cheap to look at, for no map of token movements is made"),
    ];
    Ok(FigureResult {
        claims,
        table: table_of_removed(&rows),
        picture: picture_of_removed(&rows, all),
    })
}

fn table_of_removed(rows: &[Removed]) -> Table {
    let mut table = Table::new()
        .right("S")
        .right("100")
        .right("200")
        .right("500")
        .right("1,000")
        .right("2,000")
        .right("5,000")
        .right("500, MS")
        .right("ALL, MS");
    for (exponent, row) in EXPONENTS.iter().zip(rows) {
        let formatted = |value: f64| format!("{value:.1} %").into();
        let [a, b, c, d, e, f] = row.percent;
        let (some, all) = (format!("{:.2}", row.ms[2]), format!("{:.2}", row.all_ms));
        let exponent = exponent.to_string();
        table.row([
            exponent.into(),
            formatted(a),
            formatted(b),
            formatted(c),
            formatted(d),
            formatted(e),
            formatted(f),
            some.into(),
            all.into(),
        ]);
    }
    table
}

fn picture_of_removed(rows: &[Removed], all_ms: f64) -> String {
    let lines = |of: &dyn Fn(&Removed) -> [f64; 6]| {
        let line = |(exponent, row): (&f64, &Removed)| {
            let points = AMONG.iter().zip(of(row)).map(|(most, y)| (*most as f64, y));
            Series::line(format!("s = {exponent}"), points.collect())
        };
        EXPONENTS.iter().zip(rows).map(line).collect::<Vec<_>>()
    };
    let panels = [
        Panel::new(
            "(a) Weak excess removed, of what can be",
            ["buckets of each server", "%"],
            lines(&|row| row.percent),
        ),
        Panel::new(
            "(b) Time, one thread",
            ["buckets of each server", "milliseconds"],
            lines(&|row| row.ms),
        )
        .with_levels(vec![("all buckets, s = 0.5".into(), all_ms)]),
    ];
    draw("Only the largest buckets move", &panels)
}

/// One line of figure 6.
#[derive(Clone, Copy, Debug, Default)]
struct Removed {
    /// The part of the removable weak excess that is removed, in percent.
    percent: [f64; 6],
    ms: [f64; 6],
    /// Time with all buckets, in milliseconds.
    all_ms: f64,
}

impl Removed {
    fn measure(context: &FigureContext, exponent: f64) -> Result<Self, Failure> {
        context.note(&format!("figure 6: s = {exponent}"));
        let family = family(BUCKETS, 10);
        let reservations = reservations(BUCKETS, exponent, family.reserved());
        let mut solver = Solver::new(configuration(family, &reservations, 110)?);
        solver.start();
        let before = solver.configuration().effective_capacity();
        let best = solver.solve().effective_capacity;
        let mut removed = Self::default();
        for (index, most) in AMONG.into_iter().enumerate() {
            let worth = solver.solve_among(most).effective_capacity;
            removed.percent[index] = match best - before {
                0 => 100.0,
                all => judge::percent(worth.saturating_sub(before), all),
            };
            removed.ms[index] = median_ms(context, ROUNDS, || _ = solver.solve_among(most))?;
        }
        removed.all_ms = median_ms(context, ROUNDS, || _ = solver.solve())?;
        Ok(removed)
    }
}

/// Reservations that add up to `total`: each bucket draws a rank by Zipf's law with this exponent,
/// and has that rank's weight.
fn reservations(buckets: u32, exponent: f64, total: u64) -> Vec<u64> {
    let weights: Vec<u64> =
        (1..=buckets).map(|rank| (f64::from(rank).powf(-exponent) * 1e12) as u64).collect();
    let sums = weights.iter().scan(0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    let sums: Vec<u64> = sums.collect();
    let all = sums.last().copied().unwrap_or(1);
    let mut random = Stream::new(1, "reservations", 0);
    let mut draw = || {
        let point = random.below(all);
        weights[sums.partition_point(|sum| *sum <= point)]
    };
    let drawn: Vec<u64> = (0..buckets).map(|_| draw()).collect();
    apportion(total, &drawn)
}

fn enough(rows: &[Removed]) -> [Check; 2] {
    let removed = |at: usize| rows.iter().map(|row| row.percent[at]).collect::<Vec<f64>>();
    [at_least("500 remove", "%", 70.0, removed(2)), at_least("2,000 remove", "%", 99.9, removed(4))]
}

/// From each exponent to the next, no number of buckets removes less.
fn skewed(rows: &[Removed]) -> Vec<Check> {
    let check = |(at, most): (usize, &usize)| {
        let removed: Vec<f64> = rows.iter().map(|row| row.percent[at]).collect();
        rises(0.99, format!("with {most}"), "%", removed)
    };
    AMONG.iter().enumerate().map(check).collect()
}

/// Faster by less is chance. The paper's is up to five times.
const QUICKER: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn instances_are_those_of_the_bench() {
        for (hundredths, tenths) in [(110, 11), (150, 15)] {
            let wanted = Family { demand_tenths: tenths, ..family(300, 9) };
            let wanted = wanted.configuration();
            let ours = configuration(family(300, 9), wanted.reservations(), hundredths).unwrap();
            assert_eq!(ours, wanted);
        }
    }

    #[test]
    fn reservations_add_up_and_are_as_skewed_as_they_are_to_be() {
        for exponent in EXPONENTS {
            let all = reservations(1_000, exponent, 500_000);
            assert_eq!(all.iter().sum::<u64>(), 500_000);
        }
        assert!(reservations(1_000, 0.0, 500_000).iter().all(|one| *one == 500));
        let half = reservations(10_000, 0.5, 6_400_000);
        let (least, most) = (half.iter().min().unwrap(), half.iter().max().unwrap());
        assert!((100..200).contains(least) && (8_000..14_000).contains(most), "{least} {most}");
    }

    #[test]
    fn times_are_judged() {
        let of = |checks: &[Check]| judge(checks).verdict;
        let (good, bad) = (Verdict::Reproduced, Verdict::NotReproduced);
        assert_eq!(of(&harder([4.0, 3.0, 2.0, 2.0, 2.0, 1.0], [1.0; 6])), good);
        assert_eq!(of(&harder([1.0; 6], [1.0; 6])), Verdict::Differs);
        assert_eq!(of(&harder([1.0, 2.0, 3.0, 3.0, 3.0, 3.0], [1.0; 6])), bad);
        assert_eq!(
            (of(&[faster(&[1, 2], 1.3)]), of(&[faster(&[1, 2], 1.0)])),
            (good, Verdict::Differs)
        );
        assert!(one_thread(&[1]).is_some());
    }

    #[test]
    fn what_is_removed_is_judged() {
        let row = |percent| Removed { percent, ..Removed::default() };
        let good = row([30.0, 60.0, 80.0, 90.0, 100.0, 100.0]);
        let bad = row([14.0, 60.0, 69.0, 90.0, 100.0, 100.0]);
        let of = |checks: &[Check]| judge(checks).verdict;
        assert_eq!(of(&enough(&[good; 6])), Verdict::Reproduced);
        assert_eq!(of(&enough(&[good, bad])), Verdict::Differs);
        assert_eq!(of(&skewed(&[bad, good])), Verdict::Reproduced);
        assert_eq!(of(&skewed(&[bad, good, bad])), Verdict::NotReproduced);
        assert_eq!(of(&skewed(&[good, bad])), Verdict::NotReproduced);
    }
}
