//! The experiments of the pShift paper (§IV): what tenants get of a whole cluster, and what it
//! costs to find out who gets what where.
//!
//! ```text
//!  scenarios/pshift/*.toml ──▶ world: simulated ─┐
//!            (embedded)    └─▶ live: nodes here ─┴─▶ Outcome ──▶ judge ──▶ claims, picture
//!  instances of the solver ──▶ solver: figures 5, 6, 7 ────────────┘
//! ```
//!
//! A scenario says who is promised what and who asks for what. [`world`] runs it in the simulated
//! world; [`live`] runs the same scenario, scaled to this machine, on nodes in this process with a
//! controller beside it, and counts what was answered. Both give an
//! [`Outcome`](tidegate_sim::cluster::Outcome), and [`judge`] does not know which.
//!
//! Figures 1 and 2 of the paper are drawings. Each other figure gives some claims, a table for the
//! terminal, and a picture.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tidegate_model::{Span, Time};

use super::interrupt::Interrupt;
use super::unwritable;
use super::verdict::{Claim, Judged};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::output::{self, Paint};
use crate::table::Table;

mod figure10;
mod figure3;
mod figure4;
mod figure7;
mod figure8;
mod figure9;
mod judge;
mod live;
mod load;
mod plot;
mod solver;
mod world;

/// The figures that can be repeated.
pub(crate) const FIGURES: [u32; 8] = [3, 4, 5, 6, 7, 8, 9, 10];

/// The worlds of a claim.
const SIMULATED: &str = "simulated";
const LIVE: &str = "live";

/// What comes of a figure.
struct Part {
    claims: Vec<Claim>,
    table: Table,
    /// SVG.
    picture: String,
}

/// What figures need besides their scenarios.
struct Desk {
    interrupt: Interrupt,
    /// Whether somebody sees standard error.
    is_watched: bool,
}

impl Desk {
    /// Tells a watcher what is going on, in place of what was told before.
    fn note(&self, what: &str) {
        if self.is_watched {
            // Nobody is hurt if it is not seen.
            let _ = write!(io::stderr(), "\r\x1b[K{what}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.note("");
    }
}

/// Repeats figures, and tells each one's claims when it has them; tables go to standard output
/// unless it is for programs, pictures to the directory `out`.
///
/// # Errors
/// If something breaks, or somebody ends it. Claims that do not hold are no error here.
pub(crate) fn run(
    figures: &[u32],
    out: &Path,
    is_json: bool,
    tell: &mut dyn FnMut(&[Claim]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let is_watched = !is_json && io::stderr().is_terminal();
    let desk = Desk { interrupt: Interrupt::listen()?, is_watched };
    fs::create_dir_all(out).map_err(|error| unwritable(out, error))?;
    for figure in figures {
        let part = repeat(*figure, &desk)?;
        desk.note("");
        let path = write(*figure, &part, out)?;
        if !is_json {
            let table = part.table.render(Paint::stdout(), usize::MAX);
            output::print(&format!("Figure {figure}: {}\n{table}\n", path.display()))?;
        }
        tell(&part.claims)?;
        if !is_json {
            output::print("\n")?;
        }
    }
    Ok(())
}

fn repeat(figure: u32, desk: &Desk) -> Result<Part, Failure> {
    match figure {
        3 => figure3::repeat(desk),
        4 => figure4::repeat(desk),
        5 => solver::threads(desk),
        6 => solver::among(desk),
        7 => figure7::run(desk),
        8 => figure8::repeat(desk),
        9 => figure9::repeat(desk),
        _ => figure10::repeat(desk),
    }
}

fn write(figure: u32, part: &Part, out: &Path) -> Result<PathBuf, Failure> {
    let path = out.join(format!("figure-{figure}.svg"));
    fs::write(&path, &part.picture).map_err(|error| unwritable(&path, error))?;
    Ok(path)
}

/// What the claims of one run have in common.
#[derive(Clone, Copy)]
struct Source {
    figure: &'static str,
    world: &'static str,
    seed: Option<u64>,
    seconds: f64,
}

impl Source {
    /// A claim, the numbers that it was judged by, and the judgement.
    fn claim(self, text: impl Into<String>, measured: Value, judged: Judged) -> Claim {
        let (verdict, reason) = judged;
        let measured = match measured {
            Value::Object(measured) => measured,
            _ => Map::new(),
        };
        let Self { figure, world, seed, seconds } = self;
        let claim = text.into();
        Claim { paper: "pshift", figure, world, claim, measured, verdict, reason, seed, seconds }
    }
}

/// How long `work` takes, in seconds, and what it gives.
fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let clock = Clock::start();
    let result = work();
    (result, clock.now().since(Time::ZERO).as_seconds())
}

/// Seconds in a span.
fn seconds(span: Span) -> f64 {
    span.as_seconds()
}

/// With one digit behind the point, for people and programs alike.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// With three digits behind the point.
fn thousandths(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::Verdict;

    #[test]
    fn a_claim_has_what_all_claims_of_its_run_have() {
        let source = Source { figure: "3", world: SIMULATED, seed: Some(7), seconds: 1.5 };
        let measured = serde_json::json!({ "tenants": 3 });
        let claim = source.claim("it is so", measured, (Verdict::Holds, None));
        assert_eq!((claim.paper, claim.figure, claim.seed), ("pshift", "3", Some(7)));
        assert_eq!(claim.measured["tenants"], 3);
    }

    #[test]
    fn a_figure_is_written_where_it_is_wanted() {
        let out = tempfile::tempdir().unwrap();
        let part = Part { claims: Vec::new(), table: Table::new(), picture: "<svg/>".into() };
        let path = write(9, &part, out.path()).unwrap();
        assert_eq!(path, out.path().join("figure-9.svg"));
        assert_eq!(fs::read_to_string(path).unwrap(), "<svg/>");
        assert!(write(9, &part, Path::new("/proc/none")).is_err());
    }
}
