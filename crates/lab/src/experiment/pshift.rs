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

use super::paper::{self, Paper};
use super::plot;
use paper::{Desk, LIVE, Part, SIMULATED, Source, seconds, tenths, thousandths, timed};
use tidegate_console::failure::Failure;

mod figure10;
mod figure3;
mod figure4;
mod figure7;
mod figure8;
mod figure9;
mod judge;
mod live;
mod load;
mod solver;
mod world;

/// Its name in claims.
const PAPER: &str = "pshift";

/// The figures that can be repeated.
pub(crate) const PSHIFT: Paper = Paper {
    name: "pshift",
    figures: &["3", "4", "5", "6", "7", "8", "9", "10"],
    repeat,
    live: &[],
};

fn repeat(figure: &str, desk: &Desk) -> Result<Part, Failure> {
    match figure {
        "3" => figure3::repeat(desk),
        "4" => figure4::repeat(desk),
        "5" => solver::threads(desk),
        "6" => solver::among(desk),
        "7" => figure7::run(desk),
        "8" => figure8::repeat(desk),
        "9" => figure9::repeat(desk),
        _ => figure10::repeat(desk),
    }
}
