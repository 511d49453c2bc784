//! `tidegate repro`: a paper's experiments, with a verdict on each claim.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Common;
use super::demo::Wanted;
use crate::experiment::dsfq::DSFQ;
use crate::experiment::haechi::HAECHI;
use crate::experiment::pshift::PSHIFT;
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
  paio    4        what a stage costs, by request size and number of channels; only printed, so
                   --out, --seconds and --directory say nothing to it (a few seconds)
  paio    10       four tenants share a disk (about four minutes)
  pshift  3, 4     10,000 tenants on 64 nodes that are wholly reserved, simulated (two minutes)
  pshift  5, 6, 7  what it takes to divide tokens (a few seconds)
  pshift  8, 9     few tenants and 200 on up to eight nodes, simulated and live (half a minute)
  pshift  10       200 tenants on eight nodes with files, simulated and live (half a minute)

  dsfq    8 to 14  who gets how much of which node, simulated (a few seconds), and 8, 9, 11 and 12
                   live with fio (half a minute each)
  dsfq    burst, partition, unified
                   what that paper leaves open, and what is done about it here, simulated

  haechi  6 to 8   who reads how much of a data node without any control, simulated
  haechi  9 to 19  the same with reservations, by the text, by sound rules and without (all of them
                   some two minutes)
  haechi  steps, ablation, sensitivity
                   what becomes of it when the node changes, of each rule left out, and of other
                   numbers than were chosen (a minute)
  haechi  numbers  all that the paper prints beside what the model gives
  haechi  nodes    ten tenants on four data nodes, which that paper leaves open

Figures of pshift, dsfq and haechi go to the directory --out; --seconds, --directory, --no-cgroups
and --plain say nothing to them.

Examples:
  tidegate repro paio
  tidegate repro paio 10 --seconds 120 --out /tmp/figure10
  tidegate repro pshift 8 9 10
  tidegate repro dsfq 9 12 burst
  tidegate repro paio 4 --json | jq .measured")]
pub(crate) struct Args {
    /// The paper
    #[arg(value_name = "PAPER")]
    paper: Paper,

    /// Its figures; all of them if none is named
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,

    #[command(flatten)]
    wanted: Wanted,
}

/// A paper of which something can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Paper {
    /// PAIO: General, Portable I/O Optimizations With Minor Application Modifications (FAST 2022).
    Paio,
    /// Proportional-Share Scheduling for Distributed Storage Systems (FAST 2007).
    Dsfq,
    /// Haechi: A Token-based QoS Mechanism for One-sided I/Os in RDMA based Storage System
    /// (ICDCS 2021).
    Haechi,
    /// Scalable QoS for Distributed Storage Clusters using Dynamic Token Allocation (MSST 2019).
    Pshift,
}

impl Paper {
    /// The figures of it that can be repeated.
    const fn figures(self) -> &'static [&'static str] {
        match self {
            Self::Paio => &["4", "10"],
            Self::Dsfq => DSFQ.figures,
            Self::Haechi => HAECHI.figures,
            Self::Pshift => PSHIFT.figures,
        }
    }

    /// Those of `wanted`, each once and in order; all if there are none.
    fn choose(self, wanted: &[String]) -> Result<Vec<&'static str>, Failure> {
        let known = self.figures();
        match wanted.iter().find(|figure| !known.contains(&figure.as_str())) {
            None => {
                let is_wanted = |figure: &str| wanted.iter().any(|wanted| wanted == figure);
                let chosen = known.iter().copied();
                Ok(chosen.filter(|figure| wanted.is_empty() || is_wanted(figure)).collect())
            }
            Some(figure) => {
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
    let figures = args.paper.choose(&args.figures)?;
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
                    "4" => figure4::run(common.json)?,
                    _ => {
                        let options = wanted.options(SECONDS, "out/repro-paio-10", common);
                        verdict::figure10(&experiment::run(&options)?)
                    }
                })?;
            }
        }
        Paper::Dsfq => {
            let out: PathBuf = args.wanted.options(SECONDS, "out/repro-dsfq", common).out;
            DSFQ.run(&figures, &out, common.json, &mut note)?;
        }
        Paper::Haechi => {
            let out: PathBuf = args.wanted.options(SECONDS, "out/repro-haechi", common).out;
            HAECHI.run(&figures, &out, common.json, &mut note)?;
        }
        Paper::Pshift => {
            let out: PathBuf = args.wanted.options(SECONDS, "out/repro-pshift", common).out;
            PSHIFT.run(&figures, &out, common.json, &mut note)?;
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
        let choose = |paper: Paper, wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            paper.choose(&wanted)
        };
        assert_eq!(choose(Paper::Paio, &[]).unwrap(), ["4", "10"]);
        assert_eq!(choose(Paper::Pshift, &["10", "8", "3", "8"]).unwrap(), ["3", "8", "10"]);
        assert_eq!(choose(Paper::Dsfq, &["burst", "9"]).unwrap(), ["9", "burst"]);
        let refused = choose(Paper::Pshift, &["3", "11"]).unwrap_err().to_string();
        assert!(refused.contains("figure 11"), "{refused}");
    }
}
