//! `tidegate repro`: a paper's experiments, with a verdict on each claim.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Common;
use super::demo::Wanted;
use crate::experiment::verdict::{self, Claim, Verdict};
use crate::experiment::{self, figure4, pshift};
use crate::failure::{Code, Failure};
use crate::output::{self, Paint};

/// Repeat a paper's experiments, and say which of its claims hold here
///
/// Each claim is a line: whether it holds, differs (and how) or fails. With --json it is one object
/// for each claim, with all that was measured. The exit code is 0 only if nothing fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Papers and their figures:
  paio    4        what a stage costs, by request size and number of channels; only printed, so
                   --out, --seconds and --directory say nothing to it (a few seconds)
  paio    10       four tenants share a disk (about four minutes)
  pshift  3, 4     10,000 tenants on 64 nodes that are wholly reserved, simulated (two minutes)
  pshift  5, 6, 7  what it takes to divide tokens (a few seconds)
  pshift  8, 9     few tenants and 200 on up to eight nodes, simulated and live (half a minute)
  pshift  10       200 tenants on eight nodes with files, simulated and live (half a minute)

Figures of pshift go to the directory --out; --seconds, --directory, --no-cgroups and --plain say
nothing to it.

Examples:
  tidegate repro paio
  tidegate repro paio 10 --seconds 120 --out /tmp/figure10
  tidegate repro pshift 8 9 10
  tidegate repro paio 4 --json | jq .measured")]
pub(crate) struct Args {
    /// The paper
    #[arg(value_name = "PAPER")]
    paper: Paper,

    /// Its figures; all of them if none is named
    #[arg(value_name = "FIGURE")]
    figures: Vec<u32>,

    #[command(flatten)]
    wanted: Wanted,
}

/// A paper of which something can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Paper {
    /// PAIO: General, Portable I/O Optimizations With Minor Application Modifications (FAST 2022).
    Paio,
    /// Scalable QoS for Distributed Storage Clusters using Dynamic Token Allocation (MSST 2019).
    Pshift,
}

impl Paper {
    /// The figures of it that can be repeated.
    const fn figures(self) -> &'static [u32] {
        match self {
            Self::Paio => &[4, 10],
            Self::Pshift => &pshift::FIGURES,
        }
    }

    /// Those of `wanted`, each once and in order; all if there are none.
    fn choose(self, mut wanted: Vec<u32>) -> Result<Vec<u32>, Failure> {
        if wanted.is_empty() {
            return Ok(self.figures().to_vec());
        }
        wanted.sort_unstable();
        wanted.dedup();
        match wanted.iter().find(|figure| !self.figures().contains(figure)) {
            None => Ok(wanted),
            Some(figure) => {
                let known: Vec<_> = self.figures().iter().map(u32::to_string).collect();
                let what = format!("figure {figure} of this paper cannot be repeated");
                let help = format!("its figures are {}", known.join(", "));
                Err(Failure::new(Code::Usage, what).help(help))
            }
        }
    }
}

/// Long enough that what counts is more than what settles.
const SECONDS: u64 = 60;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let figures = args.paper.choose(args.figures)?;
    let mut fails = false;
    let mut note = |claims: &[Claim]| {
        fails |= claims.iter().any(|claim| claim.verdict == Verdict::Fails);
        tell(claims, common)
    };
    match args.paper {
        Paper::Paio => {
            for figure in figures {
                let wanted = args.wanted.clone();
                note(&match figure {
                    4 => figure4::run(common.json)?,
                    _ => {
                        let options = wanted.options(SECONDS, "out/repro-paio-10", common);
                        verdict::figure10(&experiment::run(&options)?)
                    }
                })?;
            }
        }
        Paper::Pshift => {
            let out: PathBuf = args.wanted.options(SECONDS, "out/repro-pshift", common).out;
            pshift::run(&figures, &out, common.json, &mut note)?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_once_and_in_order() {
        assert_eq!(Paper::Paio.choose(Vec::new()).unwrap(), [4, 10]);
        assert_eq!(Paper::Pshift.choose(vec![8, 3, 8]).unwrap(), [3, 8]);
        let refused = Paper::Pshift.choose(vec![3, 11]).unwrap_err().to_string();
        assert!(refused.contains("figure 11"), "{refused}");
    }
}
