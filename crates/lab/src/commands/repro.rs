//! `tidegate-lab repro`: a paper's experiments, with a verdict on each claim.

use std::process::ExitCode;

use super::demo::Wanted;
use crate::experiment::dsfq::DSFQ;
use crate::experiment::e2e::E2E;
use crate::experiment::haechi::HAECHI;
use crate::experiment::paper::{self, Order, RunKind};
use crate::experiment::pshift::PSHIFT;
use crate::experiment::verdict::{Claim, Verdict};
use crate::experiment::{self, figure4, figure10, recorded};
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::{self, Paint};

/// Repeat a paper's experiments, and say which of its claims are reproduced here
///
/// Each claim is a line with the range, order or trend that is expected. The paper's claims are
/// reproduced, differ (by at most a factor of two), are not reproduced, are skipped, or were
/// disturbed by a busy machine; our own hold or fail. With --json each claim is an object with all
/// that was measured. The exit code is 0 only if our own claims hold, our numbers are those that
/// are recorded, and each claim that is not reproduced has a recorded reason; 1 if a live run was
/// disturbed.
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

  e2e     7 to 23  applications, network, servers and drives in one clock, simulated

  haechi  6 to 8   who reads how much of a data node without any control, simulated
  haechi  9 to 19  the same with reservations, by the text, by sound rules and without (all of them
                   some two minutes)
  haechi  7, 8, 9, 11, 13, 16
                   live, too: a data node, and ten clients that are a process each (some six
                   minutes; --world says which)
  haechi  steps, ablation, sensitivity
                   what becomes of it when the node changes, of each rule left out, and of other
                   numbers than were chosen (a minute)
  haechi  numbers  all that the paper prints beside what the model gives
  haechi  nodes    ten tenants on four data nodes, which that paper leaves open, simulated and live

Figures of pshift, dsfq, e2e and haechi go to the directory --out; --seconds, --directory,
--no-cgroups and --plain say nothing to them.

Examples:
  tidegate-lab repro paio
  tidegate-lab repro paio 10 --seconds 120 --out /tmp/figure10
  tidegate-lab repro pshift 8 9 10
  tidegate-lab repro dsfq 9 12 burst
  tidegate-lab repro e2e 12 --seed 2
  tidegate-lab repro haechi 9 --world live
  tidegate-lab repro paio 4 --json | jq .measured")]
pub(crate) struct Args {
    /// The paper
    #[arg(value_name = "PAPER")]
    paper: Paper,

    /// Its figures; all of them if none is named
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,

    /// Only this world of haechi's figures; by default both, where there are two
    #[arg(long, value_enum, value_name = "WORLD", env = "TIDEGATE_WORLD", hide_env_values = true)]
    world: Option<RunKind>,

    /// How many periods of a second each live run of haechi measures; by default 6, 3 of figure 7
    /// and 15 of figure 16
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_PERIODS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=600))]
    periods: Option<u16>,

    /// The seed of simulated runs, in place of those in their scenarios; where a figure takes
    /// several, of the first
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    seed: Option<u64>,

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
    /// Configuring and Coordinating End-to-End QoS for Emerging Storage Infrastructure (2024).
    E2e,
    /// Haechi: A Token-based QoS Mechanism for One-sided I/Os in RDMA based Storage System
    /// (ICDCS 2021).
    Haechi,
    /// Scalable QoS for Distributed Storage Clusters using Dynamic Token Allocation (MSST 2019).
    Pshift,
}

impl Paper {
    /// The paper's figures, but for those that are like nothing else.
    const fn set(self) -> Option<&'static paper::Paper> {
        match self {
            Self::Paio => None,
            Self::Dsfq => Some(&DSFQ),
            Self::E2e => Some(&E2E),
            Self::Haechi => Some(&HAECHI),
            Self::Pshift => Some(&PSHIFT),
        }
    }

    /// The figures of it that can be repeated in that world.
    fn figures(self, world: Option<RunKind>) -> Vec<&'static str> {
        let Some(set) = self.set() else { return vec!["4", "10"] };
        set.figures.iter().copied().filter(|figure| set.is_in(figure, world)).collect()
    }

    /// Those of `wanted`, each once and in order; all if there are none.
    fn choose(
        self,
        wanted: &[String],
        world: Option<RunKind>,
    ) -> Result<Vec<&'static str>, Failure> {
        let known = self.figures(world);
        match wanted.iter().find(|figure| !known.contains(&figure.as_str())) {
            None => {
                let is_wanted = |figure: &str| wanted.iter().any(|wanted| wanted == figure);
                let chosen = known.into_iter();
                Ok(chosen.filter(|figure| wanted.is_empty() || is_wanted(figure)).collect())
            }
            Some(figure) => {
                let there = if world.is_some() { " in this world" } else { "" };
                let what = format!("figure {figure} of this paper cannot be repeated{there}");
                let help = format!("its figures are {}", known.join(", "));
                Err(Failure::new(Code::Usage, what).help(help))
            }
        }
    }
}

/// Long enough that the measured time exceeds the settling time.
const SECONDS: u64 = 60;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let figures = args.paper.choose(&args.figures, args.world)?;
    let (mut is_bad, mut is_disturbed) = (false, false);
    let mut note = |claims: Vec<Claim>| {
        for mut claim in claims {
            // Records are of the scenarios' own seeds.
            claim.regression = recorded::regression(&claim).filter(|_| args.seed.is_none());
            is_bad |= claim.is_bad();
            is_disturbed |= claim.verdict == Verdict::Disturbed;
            report(&claim, common)?;
        }
        Ok(())
    };
    if let Some(set) = args.paper.set() {
        let out = format!("out/repro-{}", set.name);
        let out = args.wanted.options(SECONDS, &out, common).out;
        let (figures, out, is_json) = (&figures[..], &out, common.json);
        let (world, periods, seed) = (args.world, args.periods.map(usize::from), args.seed);
        set.run(&Order { figures, out, is_json, world, periods, seed }, &mut note)?;
    } else {
        for figure in figures {
            let wanted = args.wanted.clone();
            note(match figure {
                "4" => figure4::run(common.json)?,
                _ => {
                    let options = wanted.options(SECONDS, "out/repro-paio-10", common);
                    figure10::claims(&experiment::run(&options)?)
                }
            })?;
        }
    }
    // The lines have the reason.
    match (is_bad, is_disturbed) {
        (true, _) => Err(Failure::silent(Code::Missed)),
        (false, true) => Err(Failure::silent(Code::Failure)),
        (false, false) => Ok(ExitCode::SUCCESS),
    }
}

fn report(claim: &Claim, common: &Common) -> Result<(), Failure> {
    match common.json {
        true => output::print_json(claim),
        false => output::print(&claim.formatted(Paint::stdout())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_once_and_in_order() {
        let choose = |paper: Paper, wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            paper.choose(&wanted, None)
        };
        assert_eq!(choose(Paper::Paio, &[]).unwrap(), ["4", "10"]);
        assert_eq!(choose(Paper::Pshift, &["10", "8", "3", "8"]).unwrap(), ["3", "8", "10"]);
        assert_eq!(choose(Paper::Dsfq, &["burst", "9"]).unwrap(), ["9", "burst"]);
        let refused = choose(Paper::Pshift, &["3", "11"]).unwrap_err().to_string();
        assert!(refused.contains("figure 11"), "{refused}");
        let live = |figure: &str| Paper::Haechi.choose(&[figure.into()], Some(RunKind::Live));
        assert_eq!(live("9").unwrap(), ["9"]);
        assert!(live("10").unwrap_err().to_string().ends_with("repeated in this world"));
    }
}
