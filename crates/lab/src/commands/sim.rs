//! `tidegate-lab sim`: the simulation of a scenario, from applications to devices.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_model::Span;
use tidegate_netsim::dtm::{self, DtmPlan};
use tidegate_netsim::e2e::{Run, Scenario};
use tidegate_netsim::net::InvariantViolation;
use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::twin::Service;

use crate::experiment::plot;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;

mod grid;
mod packets;
mod policy;
mod slots;
mod source;
mod sweep;
mod twin;
mod watch;
mod written;

use grid::Axis;
use source::Source;
use sweep::{PointResult, Sweep};
use watch::ProgressReport;
use written::Files;

/// Slots of the discrete-time model between two progress reports: a slot of few flows
/// takes not much longer than reading the clock.
const SLOTS_PER_REPORT: u32 = 16;

/// Simulate applications, network, servers and drives, packet by packet
///
/// The scenario describes applications and their requests, the links between hosts, the congestion
/// control of flows, and the servers. Prints the service of each application at each step of the
/// way, and the links with the longest queues. The same scenario and seed give the same numbers
/// everywhere. Ctrl-C ends a run early and prints the results so far.
///
/// With --load there is no scenario: the load that `tidegate record` has recorded is replayed on
/// the nodes of a cluster file, under a policy that need not be in force. With a second --policy it
/// is replayed under both, one row below the other.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate-lab sim scenarios/e2e/12-write-only.toml
  tidegate-lab sim scenarios/e2e/12-write-only.toml --law dctcp
  tidegate-lab sim scenarios/e2e/12-write-only.toml --out /tmp/run --json
  tidegate-lab sim scenarios/e2e/12-write-only.toml --sweep transport.law=dctcp,qtcp --seeds 5
  tidegate-lab sim --model dtm scenarios/dtm/three-classes.toml
  tidegate-lab sim --cluster scenarios/twin/cluster.toml --load scenarios/twin/morning.recording \\
    --recorded-under scenarios/twin/policy.toml --policy scenarios/twin/change.toml")]
pub(crate) struct Args {
    /// The scenario, as TOML
    #[arg(value_name = "SCENARIO", required_unless_present = "load")]
    scenario: Option<PathBuf>,

    /// Replay the load of this recording instead, with --cluster and --policy
    #[arg(long, value_name = "RECORDING", env = "TIDEGATE_LOAD", hide_env_values = true)]
    #[arg(conflicts_with_all = ["scenario", "cc", "out", "plot", "sweep", "seeds"])]
    load: Option<PathBuf>,

    /// With --load: the cluster file that names nodes and volumes
    #[arg(long, value_name = "CLUSTER", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    #[arg(conflicts_with = "scenario")]
    cluster: Option<PathBuf>,

    /// With --load: replay only this much of the recording, from its beginning, such as 10min
    #[arg(long, value_name = "TIME", env = "TIDEGATE_SPAN", hide_env_values = true)]
    #[arg(value_parser = twin::span, requires = "load")]
    span: Option<Span>,

    /// With --load: how long devices take for each unit of cost, such as 100us, or 200us,8 if they
    /// serve eight requests at once; by default by the model or capacity of each node, one at once
    #[arg(long, value_name = "TIME[,COUNT]", env = "TIDEGATE_SERVICE", hide_env_values = true)]
    #[arg(value_parser = twin::service, requires = "load")]
    service: Option<Service>,

    /// With --load: the policy that was in force during the recording. Replays then find the time
    /// of the way to devices, and the times of devices whose speed the cluster file does not
    /// declare
    #[arg(long, value_name = "POLICY", env = "TIDEGATE_RECORDED_UNDER", hide_env_values = true)]
    #[arg(requires = "load", conflicts_with = "service")]
    recorded_under: Option<PathBuf>,

    /// How much of the world is simulated
    #[arg(long, value_enum, default_value_t = Model::Packets)]
    #[arg(env = "TIDEGATE_MODEL", hide_env_values = true, conflicts_with = "load")]
    model: Model,

    /// Another seed than the scenario's: a whole number, at least 0
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    #[arg(allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Another law for flows that have the scenario's: dctcp, d2tcp, qtcp, dcqcn or qrdma; of the
    /// dtm model, dctcp or qtcp
    #[arg(long = "law", value_name = "LAW", env = "TIDEGATE_LAW", hide_env_values = true)]
    cc: Option<String>,

    /// Write a time series to this directory, which is made if need be: of applications in
    /// series.csv and series.svg, and of each class at each link that it used in links.csv. Times
    /// are nanoseconds and amounts bytes, as the heads of columns say
    #[arg(long, value_name = "DIRECTORY", env = "TIDEGATE_OUT", hide_env_values = true)]
    out: Option<PathBuf>,

    /// Draw the picture to this file, which ends with .svg or .png
    #[arg(long, value_name = "FILE", env = "TIDEGATE_PLOT", hide_env_values = true)]
    #[arg(value_parser = picture)]
    plot: Option<PathBuf>,

    /// The policy, as TOML. An application is the tenant of its name, and has this tenant's class
    /// and its part of links by weight. With --load, the policy to try, or two
    #[arg(long, value_name = "POLICY", env = "TIDEGATE_POLICY", hide_env_values = true)]
    policy: Vec<PathBuf>,

    /// Run the scenario with each of these values of a key, such as transport.law=dctcp,qtcp, with
    /// units as in the scenario (length=10ms,20ms); with several of them, at each point of the
    /// grid. Writes sweep.csv to --out instead of series
    #[arg(long, value_name = "KEY=VALUE,..", env = "TIDEGATE_SWEEP", hide_env_values = true)]
    #[arg(conflicts_with = "plot")]
    sweep: Vec<Axis>,

    /// Run each point with so many seeds, 1 to 100000, from the scenario's on
    #[arg(long, value_name = "COUNT", env = "TIDEGATE_SEEDS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "plot")]
    #[arg(allow_negative_numbers = true)]
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
    /// The top-level keys that only scenarios of this model have.
    const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Packets => &["network", "transport", "storage", "application"],
            Self::Dtm => &["capacity", "delay", "epsilon", "slots", "flow"],
        }
    }

    /// The name of this model in messages, and the advice how to run it.
    const fn name_and_remedy(self) -> [&'static str; 2] {
        match self {
            Self::Packets => ["the simulation of packets", "run it with --model packets"],
            Self::Dtm => ["the discrete-time model", "run it with --model dtm"],
        }
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let Some(scenario) = &args.scenario else {
        let order = twin::TwinFiles {
            load: args.load.as_deref().unwrap_or(Path::new("")),
            span: args.span,
            cluster: args.cluster.as_deref(),
            policies: &args.policy,
            service: args.service.unwrap_or(Service::Declared),
            recorded_under: args.recorded_under.as_deref(),
            seed: args.seed.unwrap_or(1),
        };
        return twin::run(&order, common);
    };
    let source = Source::read(scenario, args.model)?;
    if args.policy.len() > 1 {
        let failure = Failure::new(Code::Usage, "a scenario has one policy");
        return Err(failure.help("leave out one --policy; two are compared with --load"));
    }
    let policy = args.policy.first();
    let policy = policy.map(|path| PolicyFile::read(path, Reader::User)).transpose()?;
    let order = SimOrder { args: &args, source, policy, is_json: common.json };
    if !args.sweep.is_empty() || args.seeds.is_some() {
        return order.sweep();
    }
    match args.model {
        Model::Packets => order.packets(),
        Model::Dtm => order.slots(),
    }
}

/// A run or a sweep as requested on the command line.
struct SimOrder<'a> {
    args: &'a Args,
    source: Source,
    policy: Option<PolicyFile>,
    is_json: bool,
}

impl SimOrder<'_> {
    fn packets(&self) -> Result<ExitCode, Failure> {
        let args = self.args;
        let wrong = |error| self.source.wrong(error);
        let scenario =
            self.packets_of(Scenario::parse(&self.source.text), args.seed)?.map_err(wrong)?;
        let interrupt = self.prepare()?;
        let mut watch = ProgressReport::start(self.is_json);
        let run = self.begin(&scenario);
        let run = if args.out.is_some() { run.with_ports() } else { run };
        let outcome = run.go_while(|progress| {
            watch.report(|took| watch::far(progress, took));
            interrupt.check().is_ok()
        });
        watch.end();
        let outcome = outcome.map_err(wrong)?;
        let written = self.write(|files, directory| {
            files.add(&directory.join("series.csv"), |to| packets::csv(&outcome, to))?;
            files.add(&directory.join("links.csv"), |to| packets::links_csv(&outcome, to))
        });
        let written =
            written.and_then(|files| self.draw(files, || packets::drawn(&scenario.name, &outcome)));
        if self.is_json {
            output::print_json(&packets::to_json(&scenario, &outcome))?;
        } else {
            output::print(&packets::formatted(&scenario, &outcome, Paint::stdout()))?;
        }
        written?;
        self.good(outcome.fault.as_ref())?;
        interrupt.check()?;
        Ok(ExitCode::SUCCESS)
    }

    fn slots(&self) -> Result<ExitCode, Failure> {
        let wrong = |error| self.source.wrong(error);
        let plan =
            self.slots_of(DtmPlan::parse(&self.source.text), self.args.seed)?.map_err(wrong)?;
        let interrupt = self.prepare()?;
        let mut watch = ProgressReport::start(self.is_json);
        let outcome = dtm::run_while(&plan, |done| {
            if done.is_multiple_of(SLOTS_PER_REPORT) {
                watch.report(|took| watch::far_of_slots(done, plan.slots, took));
            }
            interrupt.check().is_ok()
        });
        watch.end();
        let outcome = outcome.map_err(wrong)?;
        let written = self.write(|files, directory| {
            files.add(&directory.join("series.csv"), |to| outcome.write_csv(to))
        });
        let written =
            written.and_then(|files| self.draw(files, || slots::drawn(&plan.name, &outcome)));
        if self.is_json {
            output::print_json(&slots::to_json(&plan, &outcome))?;
        } else {
            output::print(&slots::formatted(&plan, &outcome, Paint::stdout()))?;
        }
        written?;
        interrupt.check()?;
        Ok(ExitCode::SUCCESS)
    }

    fn sweep(&self) -> Result<ExitCode, Failure> {
        let args = self.args;
        let table = self.source.table()?;
        let sweep = Sweep::new(&table, args.sweep.clone(), args.seeds, args.seed)?;
        let shown = match args.model {
            Model::Packets => self.sweep_packets(&sweep),
            Model::Dtm => self.sweep_slots(&sweep),
        };
        let (shown, interrupt) = shown?;
        let written = self.write(|files, directory| {
            let csv = sweep.csv(&shown);
            files.add(&directory.join("sweep.csv"), |to| to.write_all(csv.as_bytes()))
        });
        let written = written.and_then(Files::keep);
        let formatted = match self.is_json {
            true => sweep.json(&shown),
            false => sweep.formatted(&shown, Paint::stdout()),
        };
        output::print(&formatted)?;
        written?;
        self.good(shown.iter().flatten().find_map(|shown| shown.fault.as_ref()))?;
        interrupt.check()?;
        Ok(ExitCode::SUCCESS)
    }

    fn sweep_packets(
        &self,
        sweep: &Sweep,
    ) -> Result<(Vec<Option<PointResult>>, Interrupt), Failure> {
        let own = Scenario::parse(&self.source.text).err();
        let wrong = |error| self.source.wrong_at_point(error, own.as_ref());
        let scenarios = sweep.read(|point| {
            self.packets_of(Scenario::of(point.scenario.clone()), point.seed())?.map_err(wrong)
        })?;
        let interrupt = self.prepare()?;
        let shown = sweep.run(&scenarios, &interrupt, !self.is_json, |scenario, goes_on| {
            let outcome = self.begin(scenario).go_while(|_| goes_on()).map_err(wrong)?;
            Ok(packets::shown(scenario, &outcome))
        });
        Ok((shown?, interrupt))
    }

    fn sweep_slots(&self, sweep: &Sweep) -> Result<(Vec<Option<PointResult>>, Interrupt), Failure> {
        let own = DtmPlan::parse(&self.source.text).err();
        let wrong = |error| self.source.wrong_at_point(error, own.as_ref());
        let plans = sweep.read(|point| {
            self.slots_of(DtmPlan::of(point.scenario.clone()), point.seed())?.map_err(wrong)
        })?;
        let interrupt = self.prepare()?;
        let shown = sweep.run(&plans, &interrupt, !self.is_json, |plan, goes_on| {
            let outcome = dtm::run_while(plan, |_| goes_on()).map_err(wrong)?;
            Ok(slots::shown(plan, &outcome))
        });
        Ok((shown?, interrupt))
    }

    /// A run that opens recordings beside the scenario.
    fn begin<'a>(&'a self, scenario: &'a Scenario) -> Run<'a> {
        Run::new(scenario).opening(|file| self.source.open(file))
    }

    /// A scenario with the command line's values, or its fault.
    fn packets_of(
        &self,
        read: Result<Scenario, ScenarioError>,
        seed: Option<u64>,
    ) -> Result<Result<Scenario, ScenarioError>, Failure> {
        let Ok(mut scenario) = read else { return Ok(read) };
        scenario.seed = seed.unwrap_or(scenario.seed);
        if let Some(cc) = &self.args.cc {
            let cc = cc.parse().map_err(|error: String| Failure::quoted(Code::Usage, &error))?;
            scenario.transport.cc = cc;
        }
        if let Some(policy) = &self.policy {
            policy::apply(&mut scenario, policy)?;
        }
        let checked = scenario.check().and_then(|()| {
            // Rates are those of whole moments: without one, all would be shown as zero.
            let Scenario { length, skip, sample, .. } = scenario;
            let none = "sample: no moment of that length lies between skip and length; shorten it";
            let is_some = length.0 / sample.0 > skip.0.div_ceil(sample.0);
            is_some.then_some(()).ok_or_else(|| ScenarioError::new(none))
        });
        Ok(checked.map(|()| scenario))
    }

    fn slots_of(
        &self,
        read: Result<DtmPlan, ScenarioError>,
        seed: Option<u64>,
    ) -> Result<Result<DtmPlan, ScenarioError>, Failure> {
        if self.policy.is_some() {
            let message = "the discrete-time model has flows with shares, and no tenants";
            return Err(Failure::new(Code::Usage, message).help("leave out --policy"));
        }
        let Ok(mut plan) = read else { return Ok(read) };
        plan.seed = seed.unwrap_or(plan.seed);
        plan.cc = match self.args.cc.as_deref() {
            None => plan.cc,
            Some("qtcp") => dtm::CongestionControl::Qtcp,
            Some("dctcp") => dtm::CongestionControl::Dctcp,
            Some(cc) => {
                let message = format!("the discrete-time model has no law {cc:?}");
                return Err(Failure::new(Code::Usage, message).help("use dctcp or qtcp"));
            }
        };
        Ok(Ok(plan))
    }

    /// Listens for Ctrl-C, and makes the directory for what is to be written and tries it: before
    /// minutes of work, and not after.
    fn prepare(&self) -> Result<Interrupt, Failure> {
        let interrupt = Interrupt::listen()?;
        self.args.out.as_deref().map_or(Ok(()), written::prepare)?;
        self.args.plot.as_deref().map_or(Ok(()), written::prepare_file)?;
        Ok(interrupt)
    }

    /// Writes the files of `--out` into its directory, if the option is set.
    fn write(
        &self,
        write: impl FnOnce(&mut Files, &Path) -> Result<(), Failure>,
    ) -> Result<Files, Failure> {
        let mut files = Files::default();
        if let Some(directory) = &self.args.out {
            write(&mut files, directory)?;
        }
        Ok(files)
    }

    /// Adds the picture for `--out` and `--plot`, and keeps all files.
    fn draw(&self, mut files: Files, drawn: impl FnOnce() -> String) -> Result<(), Failure> {
        let Args { out, plot, .. } = self.args;
        if out.is_none() && plot.is_none() {
            return Ok(());
        }
        let svg = drawn();
        if let Some(directory) = out {
            files.add(&directory.join("series.svg"), |to| to.write_all(svg.as_bytes()))?;
        }
        if let Some(path) = plot {
            let bytes = match is_png(path) {
                false => svg.into_bytes(),
                true => plot::png(&svg).map_err(|error| {
                    let message = format!("cannot draw {}", path.display());
                    Failure::new(Code::Failure, message).cause(error)
                })?,
            };
            files.add(path, |to| to.write_all(&bytes))?;
        }
        files.keep()
    }

    /// Refuses a run in which something did not hold: mostly, queues waited for each other for
    /// good, which only pauses do. The report of the simulation comes before.
    fn good(&self, fault: Option<&InvariantViolation>) -> Result<(), Failure> {
        let Some(fault) = fault else { return Ok(()) };
        let formatted = fault.to_string();
        Err(match fault {
            InvariantViolation::Count { .. } => Failure::quoted(Code::Failure, &formatted),
            InvariantViolation::Deadlock(_) => {
                let pauses = ScenarioError::new(formatted).within("network.switch.pause");
                self.source.wrong(pauses).coded(Code::Failure)
            }
        })
    }
}

/// A file for a picture: its extension names the format.
fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|end| end == "svg");
    if is_svg || is_png(&path) { Ok(path) } else { Err("end it with .svg or .png".into()) }
}

fn is_png(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "png")
}

/// A name as a field (RFC 4180).
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    name.to_owned()
}
