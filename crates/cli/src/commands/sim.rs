//! `tidegate sim`: a scenario in the simulated world, from applications to devices.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_sim::dtm::{self, Plan};
use tidegate_sim::e2e::{Input, Run, Scenario};
use tidegate_sim::scenario::ScenarioError;

use super::Common;
use crate::experiment::interrupt::Interrupt;
use crate::experiment::plot;
use crate::failure::{Code, Failure};
use crate::output::{self, Paint};
use crate::policy_file::PolicyFile;
use crate::text_file;

mod grid;
mod packets;
mod policy;
mod slots;
mod sweep;
mod watch;

use grid::Axis;
use sweep::{Shown, Sweep};
use watch::Watch;

/// Simulate applications, network, servers and drives, packet by packet
///
/// The scenario says who asks for what, how hosts are linked, by which law their flows give way,
/// and what the servers are made of. Prints what each application got at each stage of the way, and
/// the links at which most waited. The same scenario and seed give the same numbers everywhere.
/// Ctrl-C ends a run early and prints what was simulated so far.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate sim scenarios/e2e/12-write-only.toml
  tidegate sim scenarios/e2e/12-write-only.toml --law dctcp
  tidegate sim scenarios/e2e/12-write-only.toml --out /tmp/run --json
  tidegate sim scenarios/e2e/12-write-only.toml --sweep transport.law=dctcp,qtcp --seeds 5
  tidegate sim --model dtm scenarios/dtm/three-classes.toml")]
pub(crate) struct Args {
    /// What is simulated, as TOML
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,

    /// How much of the world is simulated
    #[arg(long, value_enum, default_value_t = Model::Packets)]
    #[arg(env = "TIDEGATE_MODEL", hide_env_values = true)]
    model: Model,

    /// Another seed than the scenario's
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    seed: Option<u64>,

    /// Another law for flows that have the scenario's: dctcp, d2tcp, qtcp, dcqcn or qrdma; of the
    /// dtm model, dctcp or qtcp
    #[arg(long, value_name = "LAW", env = "TIDEGATE_LAW", hide_env_values = true)]
    law: Option<String>,

    /// Write what happened in each moment to this directory: to applications in series.csv and
    /// series.svg, and to each class at each link that it used in links.csv
    #[arg(long, value_name = "DIRECTORY", env = "TIDEGATE_OUT", hide_env_values = true)]
    out: Option<PathBuf>,

    /// Draw the picture to this file, which ends with .svg or .png
    #[arg(long, value_name = "FILE", env = "TIDEGATE_PLOT", hide_env_values = true)]
    #[arg(value_parser = picture)]
    plot: Option<PathBuf>,

    /// The policy that says of which class applications are, each the tenant of its name, and
    /// what classes weigh
    #[arg(long, value_name = "POLICY", env = "TIDEGATE_POLICY", hide_env_values = true)]
    policy: Option<PathBuf>,

    /// Run it with each of these values of a key, such as transport.law=dctcp,qtcp; with several of
    /// them, at each point of the grid. Writes sweep.csv to --out instead of series
    #[arg(long, value_name = "KEY=VALUE,..", env = "TIDEGATE_SWEEP", hide_env_values = true)]
    #[arg(conflicts_with = "plot")]
    sweep: Vec<Axis>,

    /// Run each point with so many seeds, from the scenario's on
    #[arg(long, value_name = "COUNT", env = "TIDEGATE_SEEDS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "plot")]
    seeds: Option<u32>,
}

/// How much of the world is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Model {
    /// Applications, flows, switches, servers and drives, packet by packet
    Packets,
    /// One link, by the equations of the paper's discrete-time model, a round trip at a time
    Dtm,
}

impl Model {
    /// What a scenario of this model begins with, and no other has.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Packets => &["network", "transport", "storage", "application"],
            Self::Dtm => &["capacity", "delay", "epsilon", "slots", "flow"],
        }
    }

    /// What a scenario of this model is called, and how it is run.
    const fn told(self) -> [&'static str; 2] {
        match self {
            Self::Packets => ["the simulation of packets", "run it with --model packets"],
            Self::Dtm => ["the discrete-time model", "run it with --model dtm"],
        }
    }

    /// Refuses a scenario that is one of the other model: in its own words, and not by the first
    /// key that this one does not know.
    fn expect(self, path: &Path, table: &toml::Table) -> Result<(), Failure> {
        let other = if self == Self::Dtm { Self::Packets } else { Self::Dtm };
        let first = |model: Self| model.keys().iter().find(|key| table.contains_key(**key));
        let (None, Some(key)) = (first(self), first(other)) else { return Ok(()) };
        let [name, remedy] = other.told();
        let message = format!("{} is a scenario of {name}: it has {key:?}", path.display());
        Err(Failure::new(Code::Invalid, message).help(remedy))
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let text = read(&args)?;
    let policy = args.policy.as_deref().map(PolicyFile::read).transpose()?;
    let order = Order { args: &args, policy, is_json: common.json };
    if !args.sweep.is_empty() || args.seeds.is_some() {
        return order.sweep(&text);
    }
    match args.model {
        Model::Packets => order.packets(&text),
        Model::Dtm => order.slots(&text),
    }
}

/// What somebody wants to see.
struct Order<'a> {
    args: &'a Args,
    policy: Option<PolicyFile>,
    is_json: bool,
}

impl Order<'_> {
    fn packets(&self, text: &str) -> Result<ExitCode, Failure> {
        let args = self.args;
        let scenario = self.packets_of(Scenario::parse(text), args.seed)?;
        self.prepare()?;
        let interrupt = Interrupt::listen()?;
        let mut watch = Watch::start(self.is_json);
        let run = self.begin(&scenario);
        let run = if args.out.is_some() { run.with_ports() } else { run };
        let outcome = run.go_while(|progress| {
            watch.on_progress(progress);
            interrupt.check().is_ok()
        });
        watch.end();
        let outcome = outcome.map_err(|error| self.invalid(&error))?;
        if let Some(directory) = &args.out {
            write(directory, "series.csv", &packets::csv(&outcome))?;
            write(directory, "links.csv", &packets::links_csv(&outcome))?;
        }
        self.draw(|| packets::drawn(&scenario.name, &outcome))?;
        if self.is_json {
            output::print_json(&packets::told_as_json(&scenario, &outcome))?;
        } else {
            output::print(&packets::told(&scenario, &outcome, Paint::stdout()))?;
        }
        if let Some(fault) = &outcome.fault {
            return Err(Failure::quoted(Code::Failure, fault));
        }
        interrupt.check()?;
        Ok(ExitCode::SUCCESS)
    }

    fn slots(&self, text: &str) -> Result<ExitCode, Failure> {
        let plan = self.slots_of(Plan::parse(text), self.args.seed)?;
        self.prepare()?;
        let outcome = dtm::run(&plan).map_err(|error| self.invalid(&error))?;
        if let Some(directory) = &self.args.out {
            write(directory, "series.csv", &outcome.csv())?;
        }
        self.draw(|| slots::drawn(&plan.name, &outcome))?;
        if self.is_json {
            output::print_json(&slots::told_as_json(&plan, &outcome))?;
        } else {
            output::print(&slots::told(&plan, &outcome, Paint::stdout()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn sweep(&self, text: &str) -> Result<ExitCode, Failure> {
        let args = self.args;
        let table = toml::from_str(text).map_err(|error: toml::de::Error| {
            invalid(&args.scenario, error.to_string().trim_end())
        })?;
        let sweep = Sweep::new(&table, args.sweep.clone(), args.seeds, args.seed)?;
        let shown = match args.model {
            Model::Packets => self.sweep_packets(&sweep),
            Model::Dtm => self.sweep_slots(&sweep),
        };
        let (shown, interrupt) = shown?;
        if let Some(directory) = &args.out {
            write(directory, "sweep.csv", &sweep.csv(&shown))?;
        }
        let told = match self.is_json {
            true => sweep.json(&shown),
            false => sweep.told(&shown, Paint::stdout()),
        };
        output::print(&told)?;
        if let Some(fault) = shown.iter().flatten().find_map(|shown| shown.fault.as_ref()) {
            return Err(Failure::quoted(Code::Failure, fault));
        }
        interrupt.check()?;
        Ok(ExitCode::SUCCESS)
    }

    fn sweep_packets(&self, sweep: &Sweep) -> Result<(Vec<Option<Shown>>, Interrupt), Failure> {
        let scenarios = sweep
            .read(|point| self.packets_of(Scenario::of(point.scenario.clone()), point.seed()))?;
        self.prepare()?;
        let interrupt = Interrupt::listen()?;
        let shown = sweep.run(&scenarios, &interrupt, !self.is_json, |scenario, goes_on| {
            let mut is_whole = true;
            let outcome = self.begin(scenario).go_while(|_| {
                is_whole = goes_on();
                is_whole
            });
            let outcome = outcome.map_err(|error| self.invalid(&error))?;
            Ok(is_whole.then(|| packets::shown(scenario, &outcome)))
        });
        Ok((shown?, interrupt))
    }

    fn sweep_slots(&self, sweep: &Sweep) -> Result<(Vec<Option<Shown>>, Interrupt), Failure> {
        let plans =
            sweep.read(|point| self.slots_of(Plan::of(point.scenario.clone()), point.seed()))?;
        self.prepare()?;
        let interrupt = Interrupt::listen()?;
        let shown = sweep.run(&plans, &interrupt, !self.is_json, |plan, _| {
            let outcome = dtm::run(plan).map_err(|error| self.invalid(&error))?;
            Ok(Some(slots::shown(plan, &outcome)))
        });
        Ok((shown?, interrupt))
    }

    /// A run that opens recordings beside the scenario.
    fn begin<'a>(&'a self, scenario: &'a Scenario) -> Run<'a> {
        Run::new(scenario).opening(|file| open(&self.args.scenario, file))
    }

    /// A scenario with what the command line says instead.
    fn packets_of(
        &self,
        read: Result<Scenario, ScenarioError>,
        seed: Option<u64>,
    ) -> Result<Scenario, Failure> {
        let mut scenario = read.map_err(|error| self.invalid(&error))?;
        scenario.seed = seed.unwrap_or(scenario.seed);
        if let Some(law) = &self.args.law {
            let law = law.parse().map_err(|error: String| Failure::quoted(Code::Usage, &error))?;
            scenario.transport.law = law;
        }
        if let Some(policy) = &self.policy {
            policy::apply(&mut scenario, policy)?;
        }
        scenario.check().map_err(|error| self.invalid(&error))?;
        Ok(scenario)
    }

    fn slots_of(
        &self,
        read: Result<Plan, ScenarioError>,
        seed: Option<u64>,
    ) -> Result<Plan, Failure> {
        if self.policy.is_some() {
            let message = "the discrete-time model has flows with shares, and no tenants";
            return Err(Failure::new(Code::Usage, message).help("leave out --policy"));
        }
        let mut plan = read.map_err(|error| self.invalid(&error))?;
        plan.seed = seed.unwrap_or(plan.seed);
        plan.law = match self.args.law.as_deref() {
            None => plan.law,
            Some("qtcp") => dtm::Law::Qtcp,
            Some("dctcp") => dtm::Law::Dctcp,
            Some(law) => {
                let message = format!("the discrete-time model has no law {law:?}");
                return Err(Failure::new(Code::Usage, message).help("use dctcp or qtcp"));
            }
        };
        Ok(plan)
    }

    /// Makes the directory for what is to be written: before minutes of work, and not after.
    fn prepare(&self) -> Result<(), Failure> {
        let Some(directory) = &self.args.out else { return Ok(()) };
        fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))
    }

    /// Writes the picture to where somebody wants it.
    fn draw(&self, drawn: impl FnOnce() -> String) -> Result<(), Failure> {
        let Args { out, plot, .. } = self.args;
        if out.is_none() && plot.is_none() {
            return Ok(());
        }
        let svg = drawn();
        if let Some(directory) = out {
            write(directory, "series.svg", &svg)?;
        }
        let Some(path) = plot else { return Ok(()) };
        let bytes = match is_png(path) {
            false => svg.into_bytes(),
            true => plot::png(&svg).map_err(|error| {
                Failure::new(Code::Failure, format!("cannot draw {}", path.display())).cause(error)
            })?,
        };
        fs::write(path, bytes).map_err(|error| unwritten(path, &error))
    }

    fn invalid(&self, error: &ScenarioError) -> Failure {
        invalid(&self.args.scenario, &error.to_string())
    }
}

/// The scenario's text, if it is one of the model that was asked for.
fn read(args: &Args) -> Result<String, Failure> {
    let name = args.scenario.display().to_string();
    let text = fs::read_to_string(&args.scenario)
        .map_err(|error| text_file::unreadable("scenario", &name, &error))?;
    // What is no TOML at all is refused by the scenario's own reader, which names the line.
    if let Ok(table) = toml::from_str(&text) {
        args.model.expect(&args.scenario, &table)?;
    }
    Ok(text)
}

/// A file for a picture: what it ends with says what it is.
fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|end| end == "svg");
    if is_svg || is_png(&path) { Ok(path) } else { Err("end it with .svg or .png".into()) }
}

fn is_png(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "png")
}

/// A recording, read in pieces that are large beside what a system call costs. Its name is one
/// beside the scenario, wherever that is run from.
fn open(scenario: &Path, file: &str) -> io::Result<Input> {
    let path = scenario.parent().unwrap_or(Path::new("")).join(file);
    Ok(Box::new(BufReader::with_capacity(256 << 10, File::open(path)?)))
}

fn invalid(path: &Path, what: &str) -> Failure {
    Failure::new(Code::Invalid, format!("{}: {what}", path.display()))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::Failure, format!("cannot write {}: {error}", path.display()))
        .help("name a directory that is yours with --out")
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = directory.join(name);
    fs::write(&path, text).map_err(|error| unwritten(&path, &error))
}

/// A name as a field (RFC 4180).
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    name.to_owned()
}
