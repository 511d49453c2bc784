//! `tidegate repro`: a paper's experiments, with a verdict on each claim.

use std::process::ExitCode;

use super::Common;
use super::demo::Wanted;
use crate::experiment::verdict::{self, Claim, Verdict};
use crate::experiment::{self, figure4};
use crate::failure::{Code, Failure};
use crate::output::{self, Paint};

/// Repeat a paper's experiments, and say which of its claims hold here
///
/// Each claim is a line: whether it holds, differs (and how) or fails. With --json it is one object
/// for each claim, with all that was measured. The exit code is 0 only if nothing fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Papers and their figures:
  paio  4   what a stage costs, by request size and number of channels; only printed, so
            --out, --seconds and --directory say nothing to it (a few seconds)
  paio  10  four tenants share a disk (about four minutes)

Examples:
  tidegate repro paio
  tidegate repro paio 10 --seconds 120 --out /tmp/figure10
  tidegate repro paio 4 --json | jq .measured")]
pub(crate) struct Args {
    /// The paper
    #[arg(value_name = "PAPER")]
    paper: Paper,

    /// Its figures; all of them if none is named
    #[arg(value_name = "FIGURE")]
    figures: Vec<Figure>,

    #[command(flatten)]
    wanted: Wanted,
}

/// A paper of which something can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Paper {
    /// PAIO: General, Portable I/O Optimizations With Minor Application Modifications (FAST 2022).
    Paio,
}

/// A figure of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Figure {
    /// Scaling and cost of a stage.
    #[value(name = "4")]
    Four,
    /// Bandwidth of four tenants on one disk.
    #[value(name = "10")]
    Ten,
}

/// Long enough that what counts is more than what settles.
const SECONDS: u64 = 60;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let Paper::Paio = args.paper;
    let mut figures = args.figures;
    if figures.is_empty() {
        figures = vec![Figure::Four, Figure::Ten];
    }
    figures.sort_unstable();
    figures.dedup();
    let mut fails = false;
    for figure in figures {
        let claims = match figure {
            Figure::Four => figure4::run(common.json)?,
            Figure::Ten => {
                let options = args.wanted.clone().options(SECONDS, "out/repro-paio-10", common);
                verdict::figure10(&experiment::run(&options)?)
            }
        };
        tell(&claims, common)?;
        fails |= claims.iter().any(|claim| claim.verdict == Verdict::Fails);
    }
    // The lines have said it.
    if fails { Err(Failure::silent(Code::Missed)) } else { Ok(ExitCode::SUCCESS) }
}

fn tell(claims: &[Claim], common: &Common) -> Result<(), Failure> {
    for claim in claims {
        match common.json {
            true => output::print_json(claim)?,
            false => output::print(&claim.told(Paint::stdout()))?,
        }
    }
    Ok(())
}
