//! `tidegate-lab kv`: starts clients of a data node with the given load, and shows one table of all
//! reports.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use clap::builder::FalseyValueParser;
use tidegate_model::{Bytes, Iops, Span};
use tidegate_stage::memory::{Settings, VALUE_MAX};

use super::client::{self, ClientWork};
use super::processes::{ClientProcesses, ended};
use super::report::{KvReport, ReportRow, Sum};
use super::wish::{RequestPattern, ReservationDivision, Wish};
use crate::load;
use crate::load::schedule::{Choice, Zipf};
use tidegate_console::command_line::Common;
use tidegate_console::data_node::DataNodeAddress;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output;

/// Bytes of a key.
const KEY: usize = 16;

/// Put a data node under load, by clients that are a process each
///
/// Each keeps as many gets and puts under way as it may, and what it reads is checked. A get takes
/// one operation on the memory if the client knows where the value is, and three if it does not;
/// promises are about those. A reservation is kept if it was done in a period, and if one was not,
/// the exit code is 99.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    address: DataNodeAddress,

    /// How many clients there are
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_CLIENTS", hide_env_values = true)]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,

    /// The tenant that a client acts for; repeated, of one client after the other, the last one of
    /// all others
    #[arg(long, value_name = "TENANT", env = "TIDEGATE_TENANT", hide_env_values = true)]
    tenant: Vec<String>,

    /// A client's part of its tenant's reservation, like "100k iops"; repeated, as --tenant. By
    /// default all clients of a tenant have equal parts
    #[arg(long, value_name = "RATE", value_parser = rate)]
    reservation: Vec<Iops>,

    /// The most that a client wants to do, likewise
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit: Vec<Iops>,

    /// Divide one --reservation between all clients; by default each has it whole
    #[arg(long, value_enum, value_name = "KIND", env = "TIDEGATE_DIVIDE", hide_env_values = true)]
    #[arg(requires = "reservation")]
    divide: Option<ReservationDivision>,

    /// A client's demand, like "5k iops", counted over a period; by default as much as it can get.
    /// Requests not begun when a period ends are dropped. Repeated, likewise
    #[arg(long, value_name = "RATE", value_parser = rate)]
    demand: Vec<Iops>,

    /// Its demand from the period on whose number it reads on standard input, likewise
    #[arg(long, hide = true, value_name = "RATE", value_parser = rate)]
    later: Vec<Iops>,

    /// When it asks for that
    #[arg(long, value_enum, default_value = "burst", env = "TIDEGATE_PATTERN")]
    #[arg(value_name = "KIND", hide_env_values = true)]
    pattern: RequestPattern,

    #[arg(long, visible_alias = "seconds", value_name = "SPAN", help = load::DURATION_HELP)]
    #[arg(env = "TIDEGATE_SECONDS", hide_env_values = true)]
    #[arg(default_value = "10s", value_parser = load::duration)]
    duration: Span,

    /// How many keys there are
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_KEYS", hide_env_values = true)]
    #[arg(default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// Bytes of a value
    #[arg(long, value_name = "SIZE", env = "TIDEGATE_VALUE", hide_env_values = true)]
    #[arg(default_value = "4KiB", value_parser = value)]
    value: usize,

    /// Of a hundred operations, how many read; the others write
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_READ_PERCENT", hide_env_values = true)]
    #[arg(default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=100))]
    read_percent: u64,

    /// How keys are chosen
    #[arg(long, value_enum, default_value = "uniform", env = "TIDEGATE_DISTRIBUTION")]
    #[arg(value_name = "KIND", hide_env_values = true)]
    distribution: Distribution,

    /// How many operations a client keeps under way; by default as many as the data node allows
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_DEPTH", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    depth: Option<u32>,

    /// Without tokens and limits, to see what those cost
    #[arg(long, env = "TIDEGATE_BARE", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    #[arg(conflicts_with_all = ["reservation", "limit"])]
    bare: bool,

    /// Never sleep: more operations for more of a processor
    #[arg(long, env = "TIDEGATE_SPIN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    spin: bool,

    /// Do not store the keys first: they are there from a former run
    #[arg(long, env = "TIDEGATE_NO_FILL", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    no_fill: bool,

    /// The seed of all random choices
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    #[arg(default_value_t = 1)]
    seed: u64,

    /// Be this one of the clients
    #[arg(long, hide = true)]
    client: Option<u64>,
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Distribution {
    /// All as often.
    Uniform,
    /// Few often and many seldom, as in the Yahoo! benchmark.
    Zipf,
}

fn rate(text: &str) -> Result<Iops, String> {
    text.parse::<Iops>().map_err(|error| error.to_string())
}

fn value(text: &str) -> Result<usize, String> {
    let size = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    let most = VALUE_MAX.min(tidegate_stage::memory::ENTRY_MAX - KEY);
    let size = usize::try_from(size.0).ok().filter(|size| (8..=most).contains(size));
    size.ok_or_else(|| format!("use 8B to {most}B"))
}

/// Of a list that was given for one client after the other, what is for this one.
fn at<T: Clone>(list: &[T], client: u64) -> Option<T> {
    let index = usize::try_from(client).unwrap_or(usize::MAX);
    list.get(index).or(list.last()).cloned()
}

impl Args {
    fn work(&self, client: u64) -> ClientWork {
        let keys = match self.distribution {
            Distribution::Uniform => Choice::Uniform(self.keys),
            Distribution::Zipf => Choice::Zipf(Arc::new(Zipf::new(self.keys))),
        };
        let locations = self.keys.saturating_mul(4).min(1 << 24) as u32;
        let tenant = at(&self.tenant, client).unwrap_or_default();
        let others = (0..self.clients)
            .filter(|other| at(&self.tenant, *other).unwrap_or_default() == tenant);
        let reservation = at(&self.reservation, client);
        let divided = |all| match self.divide {
            Some(division) => division.part(all, client, self.clients),
            None => all,
        };
        let settings = Settings {
            parts: others.count() as u32,
            tenant,
            reservation: reservation.map(divided),
            limit: at(&self.limit, client),
            outstanding: self.depth.unwrap_or(0),
            locations,
            is_bare: self.bare,
            ..Settings::default()
        };
        ClientWork {
            settings,
            keys,
            value: self.value,
            read_percent: self.read_percent,
            wish: Wish {
                demand: at(&self.demand, client),
                pattern: self.pattern,
                share: [client, self.clients],
            },
            later: at(&self.later, client),
            duration: self.duration,
            spins: self.spin,
            seed: self.seed,
            fills: !self.no_fill,
        }
    }
}

pub(crate) fn run(bench: Args, common: &Common) -> Result<ExitCode, Failure> {
    if let Some(client) = bench.client {
        client::run(&bench.address, bench.work(client))?;
        return Ok(ExitCode::SUCCESS);
    }
    bench.address.check()?;
    let fail = |error| Failure::new(Code::Failure, "cannot start clients").cause(error);
    let program = std::env::current_exe().map_err(fail)?;
    let mut processes = ClientProcesses::start(bench.clients, |client| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).args(["--client", &client.to_string()]);
        command
    })?;
    // No handler for signals is installed here: they end this process, and with it the clients.
    let interrupt = Interrupt::default();
    processes.wait_until_ready(&interrupt)?;
    if !common.json {
        output::print(&format!("{}\n", KvReport::HEADS))?;
    }
    processes.go();
    let all = watch(&mut processes, &interrupt, common.json)?;
    print(&all.report(None), common.json)?;
    if all.wrong() > 0 {
        return Err(Failure::new(Code::Failure, "values came back that were never stored there"));
    }
    match all.is_kept() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::silent(Code::Missed)),
    }
}

fn print(report: &KvReport, json: bool) -> Result<(), Failure> {
    match json {
        true => output::print_json(report)?,
        false => output::print(&format!("{}\n", report.line()))?,
    }
    Ok(())
}

/// Prints each second that all clients reported, and returns the sum of all.
fn watch(
    processes: &mut ClientProcesses,
    interrupt: &Interrupt,
    json: bool,
) -> Result<Sum, Failure> {
    let mut rows: Vec<Vec<ReportRow>> = (0..processes.clients()).map(|_| Vec::new()).collect();
    let mut printed = 0;
    while let Some((client, row)) = processes.next(interrupt)? {
        rows[client].push(row);
        while rows.iter().all(|rows| rows.len() > printed) {
            let mut sum = Sum::new();
            rows.iter().for_each(|rows| sum.add(&rows[printed]));
            printed += 1;
            print(&sum.report(Some(printed as u64)), json)?;
        }
    }
    let mut all = Sum::new();
    for rows in rows {
        let whole = rows.into_iter().reduce(ReportRow::and);
        all.add(&whole.ok_or_else(ended)?);
    }
    Ok(all)
}
