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

use super::paper::{self, Figure, Paper};
use super::plot;
use paper::{
    ClaimSource, FigureContext, FigureResult, LIVE, SIMULATED, seconds, tenths, thousandths, timed,
};

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
    name: PAPER,
    figures: &[
        Figure::simulated(
            "3",
            "10,000 tenants on 64 nodes with every operation reserved",
            figure3::repeat,
        ),
        Figure::simulated(
            "4",
            "the same, by the number of active nodes and of moves in a period",
            figure4::repeat,
        ),
        Figure::live(
            "5",
            "the time to divide tokens, by the number of tenants and nodes",
            solver::threads,
        ),
        Figure::live(
            "6",
            "gains and losses if only the largest buckets of each server move",
            solver::among,
        ),
        Figure::live("7", "the time to divide tokens, by the number of buckets", figure7::run),
        Figure::simulated(
            "8",
            "four tenants on four nodes: round-robin, with reservations, with limits",
            figure8::repeat,
        )
        .and_live(figure8::live),
        Figure::simulated(
            "9",
            "ten and 200 tenants that move between eight nodes",
            figure9::repeat,
        )
        .and_live(figure9::live),
        Figure::simulated(
            "10",
            "200 tenants on eight nodes with files, 80 % reserved",
            figure10::repeat,
        )
        .and_live(figure10::live),
    ],
};
