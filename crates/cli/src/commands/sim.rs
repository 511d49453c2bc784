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
use crate::failure::{Code, Failure};
use crate::output::{self, Paint};
use crate::text_file;

mod packets;
mod slots;
mod watch;

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
    match args.model {
        Model::Packets => run_packets(&args, &text, common),
        Model::Dtm => run_slots(&args, &text, common),
    }
}

fn run_packets(args: &Args, text: &str, common: &Common) -> Result<ExitCode, Failure> {
    let scenario = packets_of(args, text)?;
    prepare(args)?;
    let interrupt = Interrupt::listen()?;
    let mut watch = Watch::start(common.json);
    let run = Run::new(&scenario).opening(|file| open(&args.scenario, file));
    let run = if args.out.is_some() { run.with_ports() } else { run };
    let outcome = run.go_while(|progress| {
        watch.on_progress(progress);
        interrupt.check().is_ok()
    });
    watch.end();
    let outcome = outcome.map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    if let Some(directory) = &args.out {
        write(directory, "series.csv", &packets::csv(&outcome))?;
        write(directory, "links.csv", &packets::links_csv(&outcome))?;
        write(directory, "series.svg", &packets::drawn(&scenario.name, &outcome))?;
    }
    if common.json {
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

fn run_slots(args: &Args, text: &str, common: &Common) -> Result<ExitCode, Failure> {
    let plan = slots_of(args, text)?;
    prepare(args)?;
    let outcome = dtm::run(&plan).map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    if let Some(directory) = &args.out {
        write(directory, "series.csv", &outcome.csv())?;
        write(directory, "series.svg", &slots::drawn(&plan.name, &outcome))?;
    }
    if common.json {
        output::print_json(&slots::told_as_json(&plan, &outcome))?;
    } else {
        output::print(&slots::told(&plan, &outcome, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
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

fn packets_of(args: &Args, text: &str) -> Result<Scenario, Failure> {
    let wrong = |error: ScenarioError| invalid(&args.scenario, &error.to_string());
    let mut scenario = Scenario::parse(text).map_err(wrong)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if let Some(law) = &args.law {
        let law = law.parse().map_err(|error: String| Failure::quoted(Code::Usage, &error))?;
        scenario.transport.law = law;
        scenario.check().map_err(wrong)?;
    }
    Ok(scenario)
}

fn slots_of(args: &Args, text: &str) -> Result<Plan, Failure> {
    let mut plan =
        Plan::parse(text).map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    plan.seed = args.seed.unwrap_or(plan.seed);
    plan.law = match args.law.as_deref() {
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

/// A recording, read in pieces that are large beside what a system call costs. Its name is one
/// beside the scenario, wherever that is run from.
fn open(scenario: &Path, file: &str) -> io::Result<Input> {
    let path = scenario.parent().unwrap_or(Path::new("")).join(file);
    Ok(Box::new(BufReader::with_capacity(256 << 10, File::open(path)?)))
}

/// Makes the directory for what is to be written: before minutes of work, and not after.
fn prepare(args: &Args) -> Result<(), Failure> {
    let Some(directory) = &args.out else { return Ok(()) };
    fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))
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
