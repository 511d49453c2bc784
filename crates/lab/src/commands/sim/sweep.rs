//! Many runs at once: a scenario at the points of a grid, and with some seeds at each.
//!
//! A run is one thread; points are what runs on all processors. Each point is a simulation of its
//! own with its own streams of random numbers. So the results do not depend on how many points run
//! at a time or which ends first, and rows are in the order of the grid. All points are read before
//! the first one runs, so a value that makes no sense is not found out after an hour.

use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use tidegate_model::{Span, Time};
use tidegate_netsim::net::InvariantViolation;
use toml::Table as Scenario;

use super::grid::{self, Axis};
use super::quoted;
use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::Paint;
use tidegate_console::table::Table;

/// The interval of a sweep's progress reports.
const NEWS: Span = Span(Span::SECOND.0 / 4);

/// A figure among the results of a point.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// In a table, and how it looks there.
    pub(super) head: String,
    pub(super) text: String,
    /// In a spreadsheet, with its unit; and as it is there.
    pub(super) column: String,
    pub(super) value: String,
}

impl Figure {
    /// One of which a spreadsheet has more digits than people read.
    pub(super) fn new(
        head: impl Into<String>,
        text: String,
        column: impl Into<String>,
        value: impl ToString,
    ) -> Self {
        let (head, column) = (head.into(), column.into());
        Self { head, text, column, value: value.to_string() }
    }
}

/// The results of a point.
#[derive(Clone, Debug, Default)]
pub(super) struct PointResult {
    pub(super) figures: Vec<Figure>,
    pub(super) json: Map<String, Value>,
    /// The fault found in the simulated network, if any.
    pub(super) fault: Option<InvariantViolation>,
}

/// A run of the sweep.
#[derive(Clone, Debug)]
pub(super) struct Point {
    values: Vec<toml::Value>,
    /// Where there are several: which of them.
    seed: Option<u64>,
    pub(super) scenario: Scenario,
}

/// A grid over a scenario.
#[derive(Debug)]
pub(super) struct Sweep {
    axes: Vec<Axis>,
    points: Vec<Point>,
}

impl Sweep {
    /// The points of some keys, each with so many seeds: that of the scenario and those after it.
    ///
    /// # Errors
    /// If a key cannot be set, or seeds are said twice.
    pub(super) fn new(
        scenario: &Scenario,
        axes: Vec<Axis>,
        seeds: Option<u32>,
        seed: Option<u64>,
    ) -> Result<Self, Failure> {
        let usage = |message: String| Failure::quoted(Code::Usage, &message);
        if axes.iter().any(|axis| axis.key == "seed") && (seeds.is_some() || seed.is_some()) {
            return Err(usage("seed is swept; leave out --seed and --seeds".into()));
        }
        let mut points = Vec::new();
        for values in grid::points(&axes).map_err(usage)? {
            let mut scenario = scenario.clone();
            for (axis, value) in axes.iter().zip(&values) {
                grid::set(&mut scenario, &axis.key, value.clone()).map_err(usage)?;
            }
            let first = scenario.get("seed").and_then(toml::Value::as_integer).unwrap_or(0);
            let first = seed.or(u64::try_from(first).ok()).unwrap_or(0);
            for number in 0..u64::from(seeds.unwrap_or(1)) {
                let seed = seeds.map(|_| first.wrapping_add(number)).or(seed);
                points.push(Point { values: values.clone(), seed, scenario: scenario.clone() });
            }
        }
        Ok(Self { axes, points })
    }

    /// Reads all points.
    ///
    /// # Errors
    /// The first that makes no sense, with its values.
    pub(super) fn read<S: Send>(
        &self,
        read: impl Fn(&Point) -> Result<S, Failure>,
    ) -> Result<Vec<S>, Failure> {
        let named = |point: &Point| read(point).map_err(|failure| failure.at(&self.name(point)));
        self.points.iter().map(named).collect()
    }

    /// A point's values, as a user writes them on the command line.
    fn name(&self, point: &Point) -> String {
        let values = self.axes.iter().zip(&point.values);
        let each = values.map(|(axis, value)| format!("{}={}", axis.key, grid::formatted(value)));
        let seed = point.seed.map(|seed| format!("seed={seed}"));
        each.chain(seed).collect::<Vec<_>>().join(" ")
    }

    /// Runs all points on all processors. Returns the results in the order of the points; none for
    /// points that were not done when the user ended the sweep.
    ///
    /// # Errors
    /// The first failure of a point, with its values. The others are not run to their ends then.
    pub(super) fn run<S: Send + Sync>(
        &self,
        scenarios: &[S],
        interrupt: &Interrupt,
        is_watched: bool,
        run: impl Fn(&S, &mut dyn FnMut() -> bool) -> Result<PointResult, Failure> + Sync,
    ) -> Result<Vec<Option<PointResult>>, Failure> {
        let board = Board::new(scenarios.len(), is_watched);
        let failed = AtomicUsize::new(0);
        let goes_on = || interrupt.check().is_ok() && failed.load(Ordering::Relaxed) == 0;
        let one = |(point, scenario): (&Point, &S)| {
            if !goes_on() {
                return Ok(None);
            }
            let mut is_whole = true;
            let shown = run(scenario, &mut || {
                board.report();
                is_whole = goes_on();
                is_whole
            });
            board.on_done();
            let shown = shown.map(|shown| is_whole.then_some(shown));
            shown.map_err(|failure| {
                failed.store(1, Ordering::Relaxed);
                failure.at(&self.name(point))
            })
        };
        let shown: Vec<_> = self.points.par_iter().zip(scenarios).map(one).collect();
        board.clear();
        shown.into_iter().collect()
    }

    fn seeded(&self) -> bool {
        self.points.iter().any(|point| point.seed.is_some())
    }

    /// The table of all results, for people.
    pub(super) fn formatted(&self, shown: &[Option<PointResult>], paint: Paint) -> String {
        let columns = Columns::of(shown, |figure| &figure.head);
        let mut table = Table::new();
        for axis in &self.axes {
            table = table.right_of(axis.key.clone());
        }
        if self.seeded() {
            table = table.right("seed");
        }
        for head in &columns.0 {
            table = table.right_of(head.clone());
        }
        for (point, shown) in self.done(shown) {
            let mut cells: Vec<String> = point.values.iter().map(grid::formatted).collect();
            cells.extend(point.seed.map(|seed| seed.to_string()));
            cells.extend(columns.row(shown, |figure| (&figure.head, &figure.text)));
            table.row(cells.into_iter().map(Into::into).collect::<Vec<_>>());
        }
        table.render(paint, usize::MAX)
    }

    /// A line for each point.
    pub(super) fn csv(&self, shown: &[Option<PointResult>]) -> String {
        let columns = Columns::of(shown, |figure| &figure.column);
        let heads = self.axes.iter().map(|axis| quoted(&axis.key));
        let seed = self.seeded().then(|| "seed".to_owned());
        let heads = heads.chain(seed).chain(columns.0.iter().map(|column| quoted(column)));
        let mut text = heads.collect::<Vec<_>>().join(",") + "\n";
        for (point, shown) in self.done(shown) {
            let mut fields: Vec<String> =
                point.values.iter().map(|value| quoted(&grid::formatted(value))).collect();
            fields.extend(point.seed.map(|seed| seed.to_string()));
            fields.extend(columns.row(shown, |figure| (&figure.column, &figure.value)));
            text += &(fields.join(",") + "\n");
        }
        text
    }

    /// An object for each point, a line each: what a single run says, and the point's values.
    pub(super) fn json(&self, shown: &[Option<PointResult>]) -> String {
        let line = |(point, shown): (&Point, &PointResult)| {
            let values = self.axes.iter().zip(&point.values);
            let values: Map<String, Value> =
                values.map(|(axis, value)| (axis.key.clone(), grid::json(value))).collect();
            let mut object = shown.json.clone();
            object.insert("point".into(), json!(values));
            Value::Object(object).to_string() + "\n"
        };
        self.done(shown).map(line).collect()
    }

    fn done<'a>(
        &'a self,
        shown: &'a [Option<PointResult>],
    ) -> impl Iterator<Item = (&'a Point, &'a PointResult)> {
        self.points.iter().zip(shown).filter_map(|(point, shown)| Some((point, shown.as_ref()?)))
    }
}

impl Point {
    /// The seed that this point is run with, if the sweep says one.
    pub(super) const fn seed(&self) -> Option<u64> {
        self.seed
    }
}

/// The columns of all points together, each once, in the order in which they first come: a class
/// that only some points have has no number at others.
struct Columns(Vec<String>);

impl Columns {
    fn of(shown: &[Option<PointResult>], name: impl Fn(&Figure) -> &String) -> Self {
        let mut all: Vec<String> = Vec::new();
        for figure in shown.iter().flatten().flat_map(|shown| &shown.figures) {
            if !all.contains(name(figure)) {
                all.push(name(figure).clone());
            }
        }
        Self(all)
    }

    fn row(&self, shown: &PointResult, of: impl Fn(&Figure) -> (&String, &String)) -> Vec<String> {
        let find = |column: &String| {
            let mut figures = shown.figures.iter().map(&of);
            let found = figures.find(|(name, _)| *name == column);
            found.map_or_else(String::new, |(_, text)| text.clone())
        };
        self.0.iter().map(find).collect()
    }
}

/// How far a sweep is, on one line of standard error.
struct Board {
    clock: Clock,
    count: usize,
    done: AtomicUsize,
    /// The time of the next progress report; none if standard error is no terminal.
    next: Option<Mutex<Time>>,
}

impl Board {
    fn new(count: usize, is_watched: bool) -> Self {
        let next = (is_watched && io::stderr().is_terminal()).then(|| Mutex::new(Time::ZERO));
        Self { clock: Clock::start(), count, done: AtomicUsize::new(0), next }
    }

    fn on_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.report();
    }

    fn report(&self) {
        let Some(next) = &self.next else { return };
        // Another thread is reporting.
        let Ok(mut next) = next.try_lock() else { return };
        let now = self.clock.now();
        if now < *next {
            return;
        }
        *next = now.after(NEWS);
        let done = self.done.load(Ordering::Relaxed);
        // A closed standard error needs no progress report.
        let _ = write!(io::stderr(), "\r{}\x1b[K", far(done, self.count, now.since(Time::ZERO)));
    }

    fn clear(&self) {
        if let Some(next) = &self.next {
            drop(next.lock().unwrap_or_else(PoisonError::into_inner));
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// How far it is after so much time.
fn far(done: usize, count: usize, took: Span) -> String {
    let formatted = format!("{done} of {count} points");
    if done == 0 {
        return formatted;
    }
    let left = took.0 as f64 * (count - done) as f64 / done as f64;
    format!("{formatted}, {} left", amounts::age(left as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two values of `law` and two seeds; the second has a class that the first does not have.
    fn swept() -> (Sweep, Vec<Option<PointResult>>) {
        let scenario: Scenario = toml::from_str("seed = 7\nlaw = \"x\"").unwrap();
        let axes = vec!["law=a,\"b,c\"".parse().unwrap()];
        let sweep = Sweep::new(&scenario, axes, Some(2), None).unwrap();
        let scenarios = sweep.read(|point| Ok(point.clone())).unwrap();
        let interrupt = Interrupt::default();
        let shown = sweep.run(&scenarios, &interrupt, false, |point, _| {
            let seed = point.seed().unwrap();
            let cc = point.scenario["law"].as_str().unwrap();
            let mut figures = vec![Figure::new("RATE", format!("{seed}.0"), "rate", seed)];
            if cc != "a" {
                figures.push(Figure::new("LOST", "1".into(), "lost", 1));
            }
            let json = Map::from_iter([("seed".to_owned(), json!(seed))]);
            Ok(PointResult { figures, json, fault: None })
        });
        (sweep, shown.unwrap())
    }

    #[test]
    fn rows_are_in_the_order_of_the_grid() {
        let (sweep, shown) = swept();
        let table = "law  seed  RATE  LOST\n  a     7   7.0\n  a     8   8.0\n\
                     b,c     7   7.0     1\nb,c     8   8.0     1\n";
        assert_eq!(sweep.formatted(&shown, Paint::none()), table);
        let csv = "law,seed,rate,lost\na,7,7,\na,8,8,\n\"b,c\",7,7,1\n\"b,c\",8,8,1\n";
        assert_eq!(sweep.csv(&shown), csv);
        let first = "{\"point\":{\"law\":\"a\"},\"seed\":7}\n";
        assert!(sweep.json(&shown).starts_with(first), "{}", sweep.json(&shown));
    }

    #[test]
    fn what_was_not_done_has_no_row() {
        let (sweep, mut shown) = swept();
        (shown[0], shown[3]) = (None, None);
        assert_eq!(sweep.formatted(&shown, Paint::none()).lines().count(), 3);
        assert_eq!(sweep.json(&shown).lines().count(), 2);
    }

    #[test]
    fn a_failure_names_its_point() {
        let (sweep, _) = swept();
        let scenarios = sweep.read(|point| Ok(point.clone())).unwrap();
        let shown = sweep.run(&scenarios, &Interrupt::default(), false, |point, _| {
            // One alone: of two, either may be the first.
            if point.scenario["law"].as_str() == Some("a") && point.seed() == Some(7) {
                return Err(Failure::new(Code::Failure, "it broke"));
            }
            Ok(PointResult { figures: Vec::new(), json: Map::new(), fault: None })
        });
        let formatted = serde_json::to_string(&shown.unwrap_err().to_json()).unwrap();
        assert!(formatted.contains("law=a seed=7: it broke"), "{formatted}");
    }

    #[test]
    fn how_far_it_is() {
        let took = Span(30 * Span::SECOND.0);
        assert_eq!(far(0, 12, took), "0 of 12 points");
        assert_eq!(far(3, 12, took), "3 of 12 points, 1 min 30 s left");
    }
}
