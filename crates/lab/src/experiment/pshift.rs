//! The experiments of the pShift paper (§IV): the service of tenants with reservations and limits
//! over a whole cluster, and the cost of dividing their tokens over its nodes.
//!
//! ```text
//!  scenarios/pshift/*.toml ──▶ simulated ─────────┐
//!            (embedded)    └─▶ live: nodes here ─┴─▶ ClusterReport ──▶ figureN ──▶ claims, picture
//!  inputs of the solver ───────▶ solver: times of figures 5, 6, 7 ───┘
//! ```
//!
//! A scenario has the tenants' promises and their load. [`simulated`] runs it in the simulated
//! world; [`live`] runs the same scenario, scaled to this machine, on nodes in this process with a
//! controller beside it, and counts what was answered. Both return a
//! [`ClusterReport`](tidegate_sim::cluster::ClusterReport), and the module of the figure judges the
//! two alike; checks that several figures share are in [`judge`].
//!
//! Figures 1 and 2 of the paper are drawings. Each other figure gives some claims, a table for the
//! terminal, and a picture.

use super::paper::{self, Paper};
use super::plot;
use paper::{
    ClaimSource, FigureContext, FigureResult, LIVE, SIMULATED, seconds, tenths, thousandths, timed,
};
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
pub(crate) mod peer;
mod simulated;
mod solver;

/// Its name in claims.
const PAPER: &str = "pshift";

/// The figures that can be repeated.
pub(crate) const PSHIFT: Paper = Paper {
    name: "pshift",
    figures: &["3", "4", "5", "6", "7", "8", "9", "10"],
    repeat,
    live: &[],
};

fn repeat(figure: &str, context: &FigureContext) -> Result<FigureResult, Failure> {
    match figure {
        "3" => figure3::repeat(context),
        "4" => figure4::repeat(context),
        "5" => solver::threads(context),
        "6" => solver::among(context),
        "7" => figure7::run(context),
        "8" => figure8::repeat(context),
        "9" => figure9::repeat(context),
        _ => figure10::repeat(context),
    }
}
