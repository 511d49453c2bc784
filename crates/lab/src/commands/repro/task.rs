//! A figure in one world: it is run, kept and shown as one.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use super::{Args, Chosen, DemoOptions, PAIO, Paio, PaioRequest, Paper, SECONDS};
use crate::experiment::kept::{self, KeptResult, Origin};
use crate::experiment::lsm::LsmExperiment;
use crate::experiment::paper::{Figure, FigureContext, Run, RunKind, Worlds};
use crate::experiment::training::TenantWorkload;
use crate::experiment::verdict::Claim;
use tidegate_console::clock::{Clock, unix_ms};
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_model::Time;

pub(super) struct FigureTask {
    pub(super) paper: &'static str,
    /// The name of its files: `9`, and `9-live` for a live task of its own.
    pub(super) name: String,
    /// The experiment, in a few words.
    pub(super) about: &'static str,
    pub(super) origin: Origin,
    /// Where its files go.
    pub(super) out: PathBuf,
    /// How long its runs take, if its plan says that.
    pub(super) planned_seconds: Option<f64>,
    /// The claim in the place of all others, where nothing can be measured.
    unmeasured: Claim,
    work: TaskWork,
}

enum TaskWork {
    /// Prints its result itself.
    Paio(Paio),
    Set(Run),
}

/// Context of all tasks of a command.
pub(super) struct ReproSession<'a> {
    args: &'a Args,
    common: &'a Common,
    commit: Option<String>,
    /// Made for the first task that needs it.
    context: Option<FigureContext>,
}

impl<'a> ReproSession<'a> {
    pub(super) fn new(args: &'a Args, common: &'a Common) -> Self {
        Self { args, common, commit: kept::commit(), context: None }
    }

    fn context(&mut self, progress: &str) -> Result<&FigureContext, Failure> {
        let context = match self.context.take() {
            Some(context) => context,
            None => FigureContext {
                interrupt: Interrupt::listen()?,
                progress: String::new(),
                is_watched: !self.common.json && io::stderr().is_terminal(),
                periods: self.args.periods.map(usize::from),
                seed: self.args.seed,
            },
        };
        let context = self.context.insert(context);
        context.progress = progress.to_owned();
        Ok(context)
    }
}

impl FigureTask {
    pub(super) fn picture_path(&self) -> PathBuf {
        self.out.join(format!("figure-{}.svg", self.name))
    }

    fn kept_path(&self) -> PathBuf {
        self.out.join(format!("figure-{}.json", self.name))
    }

    /// The result of an earlier command, whatever its origin.
    pub(super) fn earlier(&self) -> Option<KeptResult> {
        KeptResult::read(&self.kept_path())
    }

    /// Runs the task and keeps its result.
    ///
    /// # Errors
    /// If something breaks, or the user ends it. No verdict is an error here.
    pub(super) fn run(
        &self,
        session: &mut ReproSession<'_>,
        progress: &str,
    ) -> Result<KeptResult, Failure> {
        fs::create_dir_all(&self.out).map_err(|error| {
            let message = format!("cannot write {}", self.out.display());
            Failure::new(Code::Failure, message).cause(error)
        })?;
        let (origin, commit) = (self.origin.clone(), session.commit.clone());
        let (clock, mut result) = (Clock::start(), KeptResult::new(origin, commit, unix_ms()));
        match &self.work {
            TaskWork::Paio(repeat) => {
                let mut wanted = session.args.wanted.clone();
                wanted.out = Some(self.out.clone());
                let (args, common, origin) = (session.args, session.common, &self.origin);
                let request = PaioRequest { args, wanted, common, origin, progress };
                let (claims, text, pictures) = repeat(&request)?;
                result.set_claims(claims);
                (result.text, result.pictures) = (text, pictures);
            }
            TaskWork::Set(repeat) => {
                let context = session.context(progress)?;
                context.note("begins");
                let figure = repeat(context)?;
                context.clear();
                result.text = figure.table.render(Paint::none(), usize::MAX);
                kept::replace(&self.picture_path(), figure.picture.as_bytes())?;
                result.pictures = vec![figure.picture];
                result.set_claims(figure.claims);
                if !session.common.json {
                    let table = figure.table.render(Paint::stdout(), usize::MAX);
                    self.print(&table)?;
                }
            }
        }
        result.seconds = clock.now().since(Time::ZERO).as_seconds();
        result.write(&self.kept_path())?;
        Ok(result)
    }

    /// The result where the figure broke down. It is kept nowhere, so the next command tries again.
    pub(super) fn broken(&self, session: &ReproSession<'_>, failure: &Failure) -> KeptResult {
        let (origin, commit) = (self.origin.clone(), session.commit.clone());
        let mut result = KeptResult::new(origin, commit, unix_ms());
        let why = failure.to_line();
        result.set_claims(vec![self.unmeasured.clone().skipped(Some(why.as_str()))]);
        result
    }

    /// Prints the table below the name of the figure and its picture.
    pub(super) fn print(&self, table: &str) -> Result<(), Failure> {
        let path = match &self.work {
            TaskWork::Paio(_) => String::new(),
            TaskWork::Set(_) => format!(": {}", self.picture_path().display()),
        };
        output::print(&format!("Figure {}{path}\n{table}\n", self.name))
    }
}

/// The tasks of the chosen figures, in their order.
///
/// # Errors
/// If this program's own file cannot be found.
pub(super) fn tasks(
    chosen: &[Chosen],
    args: &Args,
    common: &Common,
) -> Result<Vec<FigureTask>, Failure> {
    let (here, mut tasks) = (Origin::here()?, Vec::new());
    let shared_options = (options(args), None);
    for Chosen { paper, figures, .. } in chosen {
        let mut wanted = args.wanted.clone();
        if chosen.len() > 1 {
            wanted.out = wanted.out.map(|out| out.join(paper.name()));
        }
        let name = paper.name();
        let shared = wanted.clone().options(SECONDS, &format!("out/repro-{name}"), common);
        let mut add =
            |figure: Figure<()>, kind, suffixes: [&str; 2], options: &TaskOptions, work| {
                let ((words, planned_seconds), paper) = (options.clone(), name);
                let unmeasured = figure.skipped(paper, kind);
                let (Figure { name, about, .. }, [suffix, world]) = (figure, suffixes);
                let command = format!("tidegate-lab repro {paper} {name}{world}{words}");
                let (name, out) = (format!("{name}{suffix}"), shared.out.clone());
                let origin = Origin { command, ..here.clone() };
                tasks.push(FigureTask {
                    paper,
                    name,
                    about,
                    origin,
                    out,
                    planned_seconds,
                    unmeasured,
                    work,
                });
            };
        match paper {
            Paper::Paio => {
                for one in PAIO.iter().filter(|figure| figures.contains(&figure.name)) {
                    let options = options_of_paio(one.name, args, &wanted, common);
                    let suffix = match (one.name, args.workload) {
                        ("10", TenantWorkload::Torch) => "-torch",
                        _ => "",
                    };
                    for (kind, repeat) in one.parts(args.world) {
                        let work = TaskWork::Paio(repeat);
                        add(one.described(), kind, [suffix, ""], &options, work);
                    }
                }
            }
            Paper::Of(set) => {
                for one in set.figures.iter().filter(|figure| figures.contains(&figure.name)) {
                    for (kind, repeat) in one.parts(args.world) {
                        let (suffixes, work) = (suffixes(one.worlds, kind), TaskWork::Set(repeat));
                        add(one.described(), kind, suffixes, &shared_options, work);
                    }
                }
            }
        }
    }
    Ok(tasks)
}

/// The suffixes of a task of a figure in these worlds, behind the figure's name: in the names of
/// its files, and in its command.
const fn suffixes(worlds: Worlds, kind: RunKind) -> [&'static str; 2] {
    match (worlds, kind) {
        (Worlds::Both, RunKind::Simulated) => ["", " --world simulated"],
        (Worlds::Both, RunKind::Live) => ["-live", " --world live"],
        (Worlds::Simulated | Worlds::Live, _) => ["", ""],
    }
}

/// The options that a result depends on, and how long its runs take, if its plan says that.
type TaskOptions = (String, Option<f64>);

/// Those of a figure of PAIO.
fn options_of_paio(
    figure: &str,
    args: &Args,
    wanted: &DemoOptions,
    common: &Common,
) -> TaskOptions {
    match (figure, LsmExperiment::find(figure)) {
        ("10", _) => (args.four_tenants(wanted.clone(), common).words(), None),
        (_, Some(experiment)) => {
            let options = args.lsm(wanted.clone(), common);
            let planned_seconds = options.planned_seconds(experiment) as f64;
            (options.words(experiment), Some(planned_seconds))
        }
        ("table3", _) => {
            let directory = wanted.directory();
            let directory = output::shell_word(&directory.to_string_lossy());
            (format!(" --directory {directory}"), None)
        }
        (_, None) => (String::new(), None),
    }
}

/// The options that a result depends on.
pub(super) fn options(args: &Args) -> String {
    let periods = args.periods.map(|periods| format!(" --periods {periods}"));
    let seed = args.seed.map(|seed| format!(" --seed {seed}"));
    [periods, seed].into_iter().flatten().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiment::kept::tests::result;

    /// Figure 9 of dsfq, which cannot be run.
    pub(in crate::commands::repro) fn task() -> FigureTask {
        let origin = result("tidegate-lab repro dsfq 9").origin;
        let work = TaskWork::Paio(|_| Err(Failure::new(Code::Failure, "not here")));
        let (name, about) = ("9".into(), "equal totals");
        let unmeasured = Figure::new("9", about, Worlds::Both, ());
        FigureTask {
            paper: "dsfq",
            name,
            about,
            origin,
            out: PathBuf::new(),
            planned_seconds: None,
            unmeasured: unmeasured.skipped("dsfq", RunKind::Simulated),
            work,
        }
    }

    /// The commands that repeat what a command line chooses, each by itself.
    fn commands(words: &str) -> Vec<String> {
        use clap::Parser;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
            #[command(flatten)]
            common: Common,
        }
        let Line { args, common } = Line::parse_from(words.split(' '));
        let chosen = super::super::choose(&args.words, args.world).unwrap();
        let tasks = tasks(&chosen, &args, &common).unwrap();
        tasks.into_iter().map(|task| task.origin.command).collect()
    }

    #[test]
    fn a_command_has_all_options_of_its_part() {
        assert_eq!(
            commands("repro dsfq burst haechi 9 --seed 3"),
            [
                "tidegate-lab repro dsfq burst --seed 3",
                "tidegate-lab repro haechi 9 --world simulated --seed 3",
                "tidegate-lab repro haechi 9 --world live --seed 3",
            ]
        );
        assert_eq!(
            commands("repro dsfq 8 10 pshift 5 8"),
            [
                "tidegate-lab repro dsfq 8 --world simulated",
                "tidegate-lab repro dsfq 8 --world live",
                "tidegate-lab repro dsfq 10",
                "tidegate-lab repro pshift 5",
                "tidegate-lab repro pshift 8 --world simulated",
                "tidegate-lab repro pshift 8 --world live",
            ]
        );
        assert_eq!(
            commands("repro pshift --world live"),
            [
                "tidegate-lab repro pshift 5",
                "tidegate-lab repro pshift 6",
                "tidegate-lab repro pshift 7",
                "tidegate-lab repro pshift 8 --world live",
                "tidegate-lab repro pshift 9 --world live",
                "tidegate-lab repro pshift 10 --world live",
            ]
        );
    }

    #[test]
    fn figures_of_paio_have_their_own_options() {
        let demo = "--seconds 60 --directory /var/tmp";
        let lsm = |figure: u32, rest: &str| format!("tidegate-lab repro paio {figure} --{rest}");
        assert_eq!(
            commands("repro paio"),
            [
                "tidegate-lab repro paio 4".to_owned(),
                lsm(5, "seconds 24 --rounds 1 --directory /var/tmp"),
                lsm(6, "seconds 24 --rounds 1 --directory /var/tmp"),
                lsm(7, "seconds 24 --rounds 1 --directory /var/tmp"),
                lsm(8, "seconds 24 --rounds 1 --directory /var/tmp"),
                lsm(9, "seconds 24 --rounds 1"),
                format!("tidegate-lab repro paio 10 {demo}"),
                "tidegate-lab repro paio table3 --directory /var/tmp".to_owned(),
            ]
        );
        assert_eq!(
            commands("repro paio 7 --long --rounds 3"),
            [lsm(7, "seconds 1200 --rounds 3 --directory /var/tmp")]
        );
        assert_eq!(commands("repro paio 9 --long"), [lsm(9, "seconds 1200 --rounds 1")]);
        assert!(commands("repro paio 10 --no-cgroups")[0].ends_with("/var/tmp --no-cgroups"));
        let training = |seconds: u32| {
            let options = format!("--seconds {seconds} --directory /var/tmp --workload torch");
            format!("tidegate-lab repro paio 10 {options}")
        };
        assert_eq!(commands("repro paio 10 --workload torch"), [training(60)]);
        assert_eq!(commands("repro paio 10 --workload torch --long"), [training(3120)]);
    }
}
