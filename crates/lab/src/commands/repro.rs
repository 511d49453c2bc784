//! `tidegate-lab repro`: a paper's experiments, with a verdict on each claim.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;

use super::demo::DemoOptions;
use crate::experiment::dsfq::DSFQ;
use crate::experiment::e2e::E2E;
use crate::experiment::haechi::HAECHI;
use crate::experiment::kept::{KeptResult, Origin};
use crate::experiment::lsm::{self, LsmExperiment, LsmOptions};
use crate::experiment::page::date;
use crate::experiment::paper::{self, Figure, RunKind, Worlds};
use crate::experiment::pshift::PSHIFT;
use crate::experiment::training::TenantWorkload;
use crate::experiment::verdict::{Claim, Verdict};
use crate::experiment::{self, figure4, figure10, kept, recorded, table3};
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};

mod list;
mod page;
mod progress;
mod task;

use page::Section;
use progress::TaskTime;
use task::{FigureTask, ReproSession};

/// Repeat papers' experiments, and say which of their claims are reproduced here
///
/// Each claim is a line with the range, order or trend that is expected. The paper's claims are
/// reproduced, differ (by at most a factor of two), are not reproduced, are skipped, or were
/// disturbed by a busy machine; our own hold or fail. With --json each claim is an object with all
/// that was measured. The exit code is 0 only if our own claims hold, our numbers are those that
/// are recorded, and each claim that is not reproduced has a recorded reason; 1 if a live run was
/// disturbed, or one of several figures broke down.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Papers:
  paio    General, Portable I/O Optimizations With Minor Application Modifications (FAST 2022);
          some fifteen minutes, of which figure 4 and table 3 take a few seconds, figures 5 to 7
          (RocksDB) over two minutes each, and figures 8 and 9 one and a half
  pshift  Scalable QoS for Distributed Storage Clusters using Dynamic Token Allocation
          (MSST 2019); some five minutes
  dsfq    Proportional-Share Scheduling for Distributed Storage Systems (FAST 2007); some two
          minutes, without fio a few seconds
  e2e     Configuring and Coordinating End-to-End QoS for Emerging Storage Infrastructure (2024);
          simulated
  haechi  A Token-based QoS Mechanism for One-sided I/Os in RDMA based Storage System
          (ICDCS 2021); three minutes simulated, seven live

All figures, and a page with them, repro.html, go to the directory --out. A result that is there,
of the same program, machine and options, is shown again and not repeated, unless a claim was
skipped or disturbed: a command that was interrupted goes on where it was, and in figures 5 to 9 of
paio with the run that it was at. --no-cgroups, --plain and --workload are for figure 10 of paio,
--rounds for figures 5 to 9, --seconds and --directory for all of these, and so is --long, of figure
10 with training jobs. Figure 9 makes a disk in memory, and has no use for --directory.

Examples:
  tidegate-lab repro list
  tidegate-lab repro paio 10 --seconds 120 --out /tmp/figure10
  tidegate-lab repro paio 10 --workload torch
  tidegate-lab repro paio 5 --rounds 3
  tidegate-lab repro paio 8 9 table3
  tidegate-lab repro dsfq 9 12 burst
  tidegate-lab repro e2e 12 --seed 2
  tidegate-lab repro haechi 9 --world live
  tidegate-lab repro pshift 8 9 dsfq 8
  tidegate-lab repro all --world simulated
  tidegate-lab repro paio 4 --json | jq .measured")]
pub(crate) struct Args {
    /// Papers, each with its figures behind it; all figures of a paper without any. `all` is all
    /// papers. `list` prints what can be repeated, and which verdicts are recorded
    #[arg(value_name = "PAPER|FIGURE", required = true)]
    words: Vec<String>,

    /// Only this world: in virtual time, or on this machine; by default all that a figure has.
    /// Figures without it are skipped, or refused if they are named
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

    /// Repeat figures whose results are there
    #[arg(long, env = "TIDEGATE_AGAIN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    again: bool,

    /// How often each system runs of figures 5 to 9 of paio; the median counts
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_ROUNDS", hide_env_values = true)]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,

    /// The paper's times for figures 5 to 9 of paio, where each run of a system takes 20 minutes,
    /// and for training jobs of figure 10, where a set-up takes 52 and static limits twice as long
    #[arg(long, env = "TIDEGATE_LONG", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, conflicts_with = "seconds")]
    long: bool,

    /// The program of the four tenants of figure 10 of paio
    #[arg(long, value_enum, default_value_t, env = "TIDEGATE_WORKLOAD", hide_env_values = true)]
    workload: TenantWorkload,

    #[command(flatten)]
    wanted: DemoOptions,
}

/// A paper of which something can be repeated.
#[derive(Clone, Copy)]
enum Paper {
    /// Its figures are like nothing else.
    Paio,
    Of(&'static paper::Paper),
}

/// All of them, in the order of their experiments' scale.
const PAPERS: [Paper; 5] =
    [Paper::Paio, Paper::Of(&PSHIFT), Paper::Of(&DSFQ), Paper::Of(&E2E), Paper::Of(&HAECHI)];

/// Repeats and prints a figure of PAIO, and returns its claims, its text and its pictures.
type Paio = fn(&PaioRequest<'_>) -> Result<PaioResult, Failure>;

type PaioResult = (Vec<Claim>, String, Vec<String>);

/// A figure of PAIO that is to be repeated.
struct PaioRequest<'a> {
    args: &'a Args,
    /// The options, with the folder of the paper.
    wanted: DemoOptions,
    common: &'a Common,
    origin: &'a Origin,
    /// How far the command is.
    progress: &'a str,
}

impl PaioRequest<'_> {
    fn lsm(&self, experiment: LsmExperiment) -> Result<PaioResult, Failure> {
        let options = self.args.lsm(self.wanted.clone(), self.common);
        lsm::run(experiment, &options, self.origin, self.progress)
    }

    fn four_tenants(&self) -> Result<PaioResult, Failure> {
        let options = self.args.four_tenants(self.wanted.clone(), self.common);
        let outcome = experiment::run(&options)?;
        let (text, pictures) = (outcome.description(Paint::none()), outcome.pictures().to_vec());
        Ok((figure10::claims(&outcome), text, pictures))
    }
}

const PAIO: [Figure<Paio>; 8] = [
    Figure::new(
        "4",
        "what a stage costs, by request size and number of channels",
        Worlds::Live,
        |request| figure4::run(!request.common.json),
    ),
    Figure::new(
        "5",
        "RocksDB's latency while it flushes and compacts; half of the operations read",
        Worlds::Live,
        |request| request.lsm(LsmExperiment::FIGURE_5),
    ),
    Figure::new("6", "the same; nine of ten read", Worlds::Live, |request| {
        request.lsm(LsmExperiment::FIGURE_6)
    }),
    Figure::new("7", "the same; nine of ten write", Worlds::Live, |request| {
        request.lsm(LsmExperiment::FIGURE_7)
    }),
    Figure::new("8", "the same as 5, on a disk without a limit", Worlds::Live, |request| {
        request.lsm(LsmExperiment::FIGURE_8)
    }),
    Figure::new("9", "the same, on a fast disk in memory", Worlds::Live, |request| {
        request.lsm(LsmExperiment::FIGURE_9)
    }),
    Figure::new("10", "four tenants share a disk", Worlds::Live, |request| request.four_tenants()),
    Figure::new("table3", "lines that are changed of programs", Worlds::Live, |request| {
        let is_printed = !request.common.json;
        let (claims, text) = table3::run(&request.wanted.directory(), is_printed)?;
        Ok((claims, text, Vec::new()))
    }),
];

impl Args {
    /// The options of figure 10 of PAIO.
    fn four_tenants(&self, wanted: DemoOptions, common: &Common) -> experiment::Options {
        let out = "out/repro-paio";
        match self.workload {
            TenantWorkload::Fio => wanted.options(SECONDS, out, common),
            TenantWorkload::Torch => wanted.training(SECONDS, self.long, out, common),
        }
    }

    /// The options of figures 5 to 9 of PAIO.
    fn lsm(&self, wanted: DemoOptions, common: &Common) -> LsmOptions {
        let options = wanted.lsm(self.rounds, self.long, "out/repro-paio", common);
        LsmOptions { is_again: self.again, ..options }
    }
}

impl Paper {
    const fn name(self) -> &'static str {
        match self {
            Self::Paio => "paio",
            Self::Of(set) => set.name,
        }
    }

    fn find(name: &str) -> Option<Self> {
        PAPERS.into_iter().find(|paper| paper.name() == name)
    }

    /// Its figures, without the work.
    fn figures(self) -> Vec<Figure<()>> {
        match self {
            Self::Paio => PAIO.iter().map(Figure::described).collect(),
            Self::Of(set) => set.figures.iter().map(Figure::described).collect(),
        }
    }

    /// All of its figures in that world.
    fn all(self, world: Option<RunKind>) -> Chosen {
        let (there, other): (Vec<_>, Vec<_>) =
            self.figures().into_iter().partition(|figure| figure.is_in(world));
        let skipped = |world| other.iter().map(|one| one.skipped(self.name(), world)).collect();
        Chosen {
            paper: self,
            figures: there.iter().map(|figure| figure.name).collect(),
            skipped: world.map_or_else(Vec::new, skipped),
        }
    }
}

/// Figures of one paper, each once and in the paper's order.
struct Chosen {
    paper: Paper,
    figures: Vec<&'static str>,
    /// Claims of those that were meant, too, and have nothing to show in the chosen world.
    skipped: Vec<Claim>,
}

/// The papers and figures that a user's words choose.
///
/// # Errors
/// If a word is no paper, or no figure of the paper before it, or what was named has nothing to
/// show in that world.
fn choose(words: &[String], world: Option<RunKind>) -> Result<Vec<Chosen>, Failure> {
    if words == ["all"] {
        return Ok(PAPERS.into_iter().map(|paper| paper.all(world)).collect());
    }
    let mut wanted: Vec<(Paper, Vec<&str>)> = Vec::new();
    for word in words {
        match (Paper::find(word), wanted.last_mut()) {
            (Some(paper), _) => wanted.push((paper, Vec::new())),
            (None, Some((_, figures))) => figures.push(word),
            (None, None) => return Err(unknown(word)),
        }
    }
    wanted.into_iter().map(|(paper, figures)| of_paper(paper, &figures, world)).collect()
}

fn unknown(word: &str) -> Failure {
    let names = PAPERS.map(Paper::name).join(", ");
    let help = format!("papers are {names}; `tidegate-lab repro list` has their figures");
    Failure::new(Code::Usage, format!("\"{word}\" is no paper")).help(help)
}

fn of_paper(paper: Paper, wanted: &[&str], world: Option<RunKind>) -> Result<Chosen, Failure> {
    let (mut chosen, name) = (paper.all(world), paper.name());
    let there = if world.is_some() { " in this world" } else { "" };
    if chosen.figures.is_empty() {
        let worlds = paper.figures()[0].worlds.names().join(", ");
        let what = format!("{name} cannot be repeated{there}");
        return Err(Failure::new(Code::Usage, what).help(format!("its figures are {worlds}")));
    }
    if let Some(figure) = wanted.iter().find(|figure| !chosen.figures.contains(figure)) {
        let what = format!("figure {figure} of {name} cannot be repeated{there}");
        let help = format!("its figures{there} are {}", chosen.figures.join(", "));
        return Err(Failure::new(Code::Usage, what).help(help));
    }
    if !wanted.is_empty() {
        chosen.figures.retain(|figure| wanted.contains(figure));
        chosen.skipped.clear();
    }
    Ok(chosen)
}

/// The exit code of failures that are of one figure alone.
const BROKEN: u8 = 1;

/// Long enough that the measured time exceeds the settling time.
const SECONDS: u64 = 60;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    if args.words == ["list"] {
        return list::print(common);
    }
    let chosen = choose(&args.words, args.world)?;
    let tasks = task::tasks(&chosen, &args, common)?;
    let mut tallies = repeat(&tasks, chosen.len() > 1, &args, common)?;
    for claim in chosen.iter().flat_map(|one| &one.skipped) {
        tallies.add(claim);
        report(claim, common)?;
    }
    if chosen.len() > 1 && !common.json {
        output::print(&tallies.table().render(Paint::stdout(), usize::MAX))?;
    }
    // The lines have the reason.
    match (tallies.is_bad, tallies.is_disturbed || tallies.is_broken) {
        (true, _) => Err(Failure::silent(Code::Missed)),
        (false, true) => Err(Failure::silent(Code::Failure)),
        (false, false) => Ok(ExitCode::SUCCESS),
    }
}

/// Repeats all tasks without a result, and shows the results of all. The report is there from the
/// first on.
fn repeat(
    tasks: &[FigureTask],
    are_several_papers: bool,
    args: &Args,
    common: &Common,
) -> Result<Tallies, Failure> {
    let report_path = report_path(tasks, are_several_papers, args);
    let earlier: Vec<_> = tasks.iter().map(FigureTask::earlier).collect();
    let is_kept =
        |task: &FigureTask, result: &KeptResult| !args.again && result.is_of(&task.origin);
    let time = |(task, earlier): (&FigureTask, &Option<KeptResult>)| match earlier {
        Some(result) if is_kept(task, result) => TaskTime::Kept,
        Some(result) => TaskTime::Earlier(result.seconds),
        None => task.planned_seconds.map_or(TaskTime::Unknown, TaskTime::Planned),
    };
    let mut times: Vec<TaskTime> = tasks.iter().zip(&earlier).map(time).collect();
    let (mut session, mut tallies) = (ReproSession::new(args, common), Tallies::default());
    let (mut sections, mut paper) = (Vec::new(), "");
    for (index, (task, earlier)) in tasks.iter().zip(earlier).enumerate() {
        if are_several_papers && paper != task.paper && !common.json {
            output::print(&format!("{}\n", Paint::stdout().tone(Tone::Bold, task.paper)))?;
        }
        paper = task.paper;
        let result = match earlier.filter(|result| is_kept(task, result)) {
            Some(result) => {
                show_kept(task, &result, common)?;
                result
            }
            None => {
                let name = format!("{} {}", task.paper, task.name);
                let progress = progress::progress(&name, index, &times);
                announce(&progress, tasks.len(), common);
                let (result, is_broken) = run_task(task, &mut session, &progress, tasks.len())?;
                // The time until it broke down says nothing of the others'.
                times[index] =
                    if is_broken { times[index] } else { TaskTime::Done(result.seconds) };
                tallies.is_broken |= is_broken;
                result
            }
        };
        let mut claims: Vec<Claim> = result.claims().collect();
        for claim in &mut claims {
            // Records are of the scenarios' own seeds.
            claim.regression = recorded::regression(claim).filter(|_| args.seed.is_none());
            tallies.add(claim);
            report(claim, common)?;
        }
        sections.push(Section::new(task, result, claims));
        let page = page::render(&sections, tasks.len(), &command(args));
        kept::replace(&report_path, page.as_bytes())?;
        if !common.json {
            output::print("\n")?;
        }
    }
    if !common.json {
        output::print(&format!("Report: {}\n", report_path.display()))?;
    }
    Ok(tallies)
}

/// Runs one of `count` tasks, and says whether it broke down: the others may work.
///
/// # Errors
/// If it breaks down alone, or the user ends the command.
fn run_task(
    task: &FigureTask,
    session: &mut ReproSession<'_>,
    progress: &str,
    count: usize,
) -> Result<(KeptResult, bool), Failure> {
    match task.run(session, progress) {
        Ok(result) => Ok((result, false)),
        // A command that the user ends has another code.
        Err(failure) if count > 1 && failure.number() == BROKEN => {
            Ok((task.broken(session, &failure), true))
        }
        Err(failure) => Err(failure),
    }
}

/// Beside the pictures of one paper, and above the folders of several.
fn report_path(tasks: &[FigureTask], are_several_papers: bool, args: &Args) -> PathBuf {
    let directory = match (are_several_papers, tasks.first()) {
        (false, Some(task)) => task.out.clone(),
        _ => args.wanted.out.clone().unwrap_or_else(|| "out".into()),
    };
    directory.join("repro.html")
}

fn show_kept(task: &FigureTask, result: &KeptResult, common: &Common) -> Result<(), Failure> {
    if common.json {
        return Ok(());
    }
    let when = date(result.at_ms);
    task.print(&format!("Kept from {when}; --again repeats it.\n{}", result.text))
}

/// Says in a log what is begun. On a terminal notes do.
fn announce(progress: &str, count: usize, common: &Common) {
    if count > 1 && !common.json && !io::stderr().is_terminal() {
        // A lost line does no harm.
        let _ = writeln!(io::stderr(), "{progress}");
    }
}

/// The command line that chooses what this one does.
fn command(args: &Args) -> String {
    let words = args.words.iter().map(|word| output::shell_word(word)).collect::<Vec<_>>();
    let world = args.world.map(|world| format!(" --world {}", world.name())).unwrap_or_default();
    format!("tidegate-lab repro {}{world}{}", words.join(" "), task::options(args))
}

/// How many claims of each paper have which verdict.
#[derive(Default)]
struct Tallies {
    verdicts: BTreeMap<&'static str, BTreeMap<&'static str, usize>>,
    is_bad: bool,
    is_disturbed: bool,
    /// A figure broke down.
    is_broken: bool,
}

impl Tallies {
    fn add(&mut self, claim: &Claim) {
        self.is_bad |= claim.is_bad();
        self.is_disturbed |= claim.verdict == Verdict::Disturbed;
        let verdicts = self.verdicts.entry(claim.paper).or_default();
        *verdicts.entry(claim.verdict.name()).or_default() += 1;
    }

    fn table(&self) -> Table {
        let mut table = Table::new().left("PAPER").left("CLAIMS");
        for (paper, verdicts) in &self.verdicts {
            table.row([Cell::from(*paper), Cell::from(list::counts(verdicts))]);
        }
        table
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

    fn chosen(words: &str, world: Option<RunKind>) -> Result<Vec<(&'static str, String)>, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let chosen = choose(&words, world).map_err(|failure| failure.to_string())?;
        let named = |one: Chosen| (one.paper.name(), one.figures.join(" "));
        Ok(chosen.into_iter().map(named).collect())
    }

    #[test]
    fn figures_are_chosen_once_and_in_order() {
        let one = |words: &str| chosen(words, None).unwrap().remove(0).1;
        assert_eq!(one("paio"), "4 5 6 7 8 9 10 table3");
        assert_eq!(one("pshift 10 8 3 8"), "3 8 10");
        assert_eq!(one("dsfq burst 9"), "9 burst");
        let refused = chosen("pshift 3 11", None).unwrap_err();
        assert!(refused.contains("figure 11 of pshift"), "{refused}");
        let live = |words| chosen(words, Some(RunKind::Live));
        assert_eq!(live("haechi 9").unwrap()[0].1, "9");
        assert!(live("haechi 10").unwrap_err().ends_with("repeated in this world"));
        assert!(live("dsfq 10").unwrap_err().ends_with("repeated in this world"));
        assert_eq!(live("dsfq").unwrap()[0].1, "8 9 11 12");
        assert_eq!(live("pshift").unwrap()[0].1, "5 6 7 8 9 10");
        assert_eq!(live("paio").unwrap()[0].1, "4 5 6 7 8 9 10 table3");
        let simulated = |words| chosen(words, Some(RunKind::Simulated));
        assert_eq!(simulated("pshift").unwrap()[0].1, "3 4 8 9 10");
        assert!(simulated("pshift 8 5").unwrap_err().contains("figure 5 of pshift"));
        assert_eq!(simulated("paio").unwrap_err(), "paio cannot be repeated in this world");
        assert_eq!(live("e2e").unwrap_err(), "e2e cannot be repeated in this world");
    }

    #[test]
    fn figures_without_the_chosen_world_are_skipped_with_a_reason() {
        let skipped = |words: &str, world| -> Vec<(String, Option<String>)> {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let chosen = choose(&words, world).unwrap();
            let claims = chosen.into_iter().flat_map(|one| one.skipped);
            let shown = |claim: Claim| {
                assert_eq!(claim.verdict, Verdict::Skipped);
                assert_eq!(Some(claim.world), world.map(RunKind::name));
                (format!("{} {}", claim.paper, claim.figure), claim.reason)
            };
            claims.map(shown).collect()
        };
        let of_live = Some("this figure runs live only".to_owned());
        let expected =
            ["pshift 5", "pshift 6", "pshift 7"].map(|one| (one.into(), of_live.clone()));
        assert_eq!(skipped("pshift", Some(RunKind::Simulated)), expected);
        assert_eq!(skipped("pshift 8", Some(RunKind::Simulated)), []);
        assert_eq!(skipped("all", None), []);
        let all = skipped("all", Some(RunKind::Live));
        assert!(all.iter().any(|one| one.0 == "e2e 7") && all.iter().any(|one| one.0 == "dsfq 10"));
        assert!(all.iter().all(|one| one.1.as_deref() == Some("this figure is simulated only")));
    }

    #[test]
    fn figures_belong_to_the_paper_before_them() {
        let several = chosen("pshift 3 dsfq 8 9 e2e 12", None).unwrap();
        let expected = [("pshift", "3"), ("dsfq", "8 9"), ("e2e", "12")];
        assert_eq!(several, expected.map(|(paper, figures)| (paper, figures.to_owned())));
        let all = chosen("all", None).unwrap();
        assert_eq!(all.iter().map(|one| one.0).collect::<Vec<_>>(), PAPERS.map(Paper::name));
        assert!(chosen("8 dsfq", None).unwrap_err().contains("\"8\" is no paper"));
        assert!(chosen("dsfq all", None).unwrap_err().contains("figure all of dsfq"));
    }
}
