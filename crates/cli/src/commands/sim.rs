//! `tidegate sim`: a scenario in the simulated world, from applications to devices.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use serde_json::{Value, json};
use tidegate_model::{Span, Time};
use tidegate_sim::e2e::{self, Egress, Moment, Outcome, Progress, Scenario, Service};

use super::Common;
use crate::amounts;
use crate::clock::Clock;
use crate::experiment::interrupt::Interrupt;
use crate::experiment::{moments, plot};
use crate::failure::{Code, Failure};
use crate::output::{self, Paint};
use crate::table::Table;
use crate::text_file;

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
  tidegate sim scenarios/e2e/12-write-only.toml --out /tmp/run --json")]
pub(crate) struct Args {
    /// What is simulated, as TOML
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,

    /// Another seed than the scenario's
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    seed: Option<u64>,

    /// Another law for flows that have the scenario's: dctcp, d2tcp, qtcp, dcqcn or qrdma
    #[arg(long, value_name = "LAW", env = "TIDEGATE_LAW", hide_env_values = true)]
    law: Option<String>,

    /// Write what happened in each moment to series.csv and series.svg in this directory
    #[arg(long, value_name = "DIRECTORY", env = "TIDEGATE_OUT", hide_env_values = true)]
    out: Option<PathBuf>,
}

/// After so long people want to know how far it is, and then as often.
const PATIENCE: Span = Span(2 * Span::SECOND.0);
/// How many links are printed.
const LINKS: usize = 5;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let scenario = read(&args)?;
    if let Some(directory) = &args.out {
        // Before minutes of work, and not after.
        fs::create_dir_all(directory).map_err(|error| unwritten(directory, &error))?;
    }
    let interrupt = Interrupt::listen()?;
    let mut watch = Watch::start(common.json);
    let outcome = e2e::run_while(&scenario, |progress| {
        watch.on_progress(progress);
        interrupt.check().is_ok()
    });
    watch.end();
    let outcome = outcome.map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    if let Some(directory) = &args.out {
        write(directory, "series.csv", &csv(&outcome))?;
        write(directory, "series.svg", &drawn(&scenario.name, &outcome))?;
    }
    if common.json {
        output::print_json(&told_as_json(&scenario, &outcome))?;
    } else {
        output::print(&told(&scenario, &outcome, Paint::stdout()))?;
    }
    if let Some(fault) = &outcome.fault {
        return Err(Failure::quoted(Code::Failure, fault));
    }
    interrupt.check()?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> Result<Scenario, Failure> {
    let name = args.scenario.display().to_string();
    let text = fs::read_to_string(&args.scenario)
        .map_err(|error| text_file::unreadable("scenario", &name, &error))?;
    let mut scenario =
        Scenario::parse(&text).map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if let Some(law) = &args.law {
        let law = law.parse().map_err(|error: String| Failure::quoted(Code::Usage, &error))?;
        scenario.transport.law = law;
        scenario.check().map_err(|error| invalid(&args.scenario, &error.to_string()))?;
    }
    Ok(scenario)
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

/// Says how far a long run is, on standard error, where people see it.
struct Watch {
    clock: Clock,
    is_wanted: bool,
    next: Time,
    is_shown: bool,
}

impl Watch {
    fn start(is_json: bool) -> Self {
        let is_wanted = !is_json && io::stderr().is_terminal();
        let next = Time::ZERO.after(PATIENCE);
        Self { clock: Clock::start(), is_wanted, next, is_shown: false }
    }

    fn on_progress(&mut self, progress: &Progress) {
        let now = self.clock.now();
        if !self.is_wanted || now < self.next {
            return;
        }
        self.next = now.after(Span(Span::SECOND.0 / 4));
        self.is_shown = true;
        // Whoever closed standard error does not want to know.
        let _ = write!(io::stderr(), "\r{}\x1b[K", far(progress, now.since(Time::ZERO)));
    }

    fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// How far a run is after so much time of ours.
fn far(progress: &Progress, took: Span) -> String {
    let Progress { now, length, events } = *progress;
    let part = now.0 as f64 / length.0.max(1) as f64;
    let left = Span((took.0 as f64 * (1.0 - part) / part.max(1e-9)) as u64);
    let speed = events as f64 / took.as_seconds().max(1e-9);
    format!(
        "{now} of {length}, {} events/s, {} left",
        amounts::count(speed as u64),
        amounts::age(left.0)
    )
}

/// In gigabits per second.
fn gbps(bits: f64) -> String {
    format!("{:.2}", bits / 1e9)
}

fn told(scenario: &Scenario, outcome: &Outcome, paint: Paint) -> String {
    format!(
        "{}\n\n{}\nTHERE, STORED and BACK are Gbit/s.\n\n{}\n{} simulated, {} counted; {} events; \
         seed {}\n",
        scenario.name,
        applications(outcome).render(paint, usize::MAX),
        links(outcome).render(paint, usize::MAX),
        outcome.length,
        outcome.counted(),
        amounts::count(outcome.events),
        outcome.seed
    )
}

fn applications(outcome: &Outcome) -> Table {
    let mut table = Table::new().left("APPLICATION").left("CLASS");
    for head in ["ASKED", "DONE", "THERE", "STORED", "BACK", "p50", "p99", "DEVICE p50", "p99"] {
        table = table.right(head);
    }
    let mut table = table.right("LATE");
    for one in &outcome.applications {
        table.row([
            one.name.as_str().into(),
            one.class.name().into(),
            amounts::count(one.asked.requests).into(),
            amounts::count(one.done.requests).into(),
            gbps(outcome.rate(one, |moment| moment.there)).into(),
            gbps(outcome.rate(one, |moment| moment.stored)).into(),
            gbps(outcome.rate(one, |moment| moment.back)).into(),
            amounts::span(one.latency.value_at_quantile(0.5)).into(),
            amounts::span(one.latency.value_at_quantile(0.99)).into(),
            amounts::span(one.device.value_at_quantile(0.5)).into(),
            amounts::span(one.device.value_at_quantile(0.99)).into(),
            amounts::count(one.late).into(),
        ]);
    }
    table
}

fn links(outcome: &Outcome) -> Table {
    let mut table = Table::new().left("LINK");
    for head in ["BUSY", "QUEUE", "MOST", "MARKED", "DROPPED"] {
        table = table.right(head);
    }
    for port in busiest(outcome) {
        let [from, to] = &port.between;
        table.row([
            format!("{from} to {to}").into(),
            amounts::permille((port.busy * 1_000.0).round() as u64).into(),
            amounts::bytes(port.queue_mean.round() as u64).into(),
            amounts::bytes(port.queue_most).into(),
            amounts::count(port.marked).into(),
            amounts::count(port.dropped).into(),
        ]);
    }
    table
}

/// The links at which most waited.
fn busiest(outcome: &Outcome) -> Vec<&Egress> {
    let mut ports: Vec<&Egress> = outcome.ports.iter().collect();
    ports.sort_by(|one, other| other.queue_mean.total_cmp(&one.queue_mean));
    ports.truncate(LINKS);
    ports
}

const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99_9", 0.999),
    ("p99_99", 0.9999),
];

fn told_as_json(scenario: &Scenario, outcome: &Outcome) -> Value {
    let quantiles = |times: &hdrhistogram::Histogram<u64>| -> Value {
        let each =
            QUANTILES.map(|(name, at)| (name.to_owned(), times.value_at_quantile(at).into()));
        let mut all: serde_json::Map<String, Value> = each.into_iter().collect();
        all.insert("mean".into(), times.mean().into());
        all.insert("count".into(), times.len().into());
        all.into()
    };
    let application = |one: &Service| {
        json!({
            "name": one.name,
            "class": one.class.name(),
            "asked_requests": one.asked.requests,
            "asked_bytes": one.asked.bytes,
            "done_requests": one.done.requests,
            "done_bytes": one.done.bytes,
            "late_requests": one.late,
            "there_bits_per_second": outcome.rate(one, |moment| moment.there),
            "stored_bits_per_second": outcome.rate(one, |moment| moment.stored),
            "back_bits_per_second": outcome.rate(one, |moment| moment.back),
            "latency_ns": quantiles(&one.latency),
            "device_ns": quantiles(&one.device),
        })
    };
    let link = |port: &Egress| {
        json!({
            "from": port.between[0],
            "to": port.between[1],
            "packets": port.packets,
            "bytes": port.bytes,
            "busy": port.busy,
            "marked_packets": port.marked,
            "dropped_packets": port.dropped,
            "queue_mean_bytes": port.queue_mean,
            "queue_most_bytes": port.queue_most,
        })
    };
    json!({
        "name": scenario.name,
        "seed": outcome.seed,
        "simulated_ns": outcome.length.0,
        "counted_ns": outcome.counted().0,
        "events": outcome.events,
        "fault": outcome.fault,
        "applications": outcome.applications.iter().map(application).collect::<Vec<_>>(),
        "links": outcome.ports.iter().map(link).collect::<Vec<_>>(),
    })
}

/// Every moment of every application.
fn csv(outcome: &Outcome) -> String {
    let mut text = "ns,application,class,there_bytes,stored_bytes,back_bytes,window_bytes,alpha,\
                    quality\n"
        .to_owned();
    for one in &outcome.applications {
        for (number, moment) in (1u64..).zip(&one.series) {
            let Moment { there, stored, back, quality, alpha, window } = moment;
            let (at, name, class) =
                (outcome.sample.0 * number, quoted(&one.name), one.class.name());
            let _ = writeln!(
                text,
                "{at},{name},{class},{there},{stored},{back},{window:.0},{alpha:.4},{quality:.4}"
            );
        }
    }
    text
}

/// A name as a field (RFC 4180).
fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    name.to_owned()
}

fn drawn(title: &str, outcome: &Outcome) -> String {
    plot::draw(
        title,
        &[
            moments::rates(outcome, "arriving at servers", |moment| moment.there),
            moments::rates(outcome, "done by devices", |moment| moment.stored),
            moments::rates(outcome, "arriving back", |moment| moment.back),
            moments::panel(outcome, "quality factor", "Q, up to 3", |moment| {
                moment.quality.min(3.0)
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "two, and a third"
        seed = 1
        length = "2ms"
        sample = "1ms"
        [network.topology.dumbbell]
        pairs = 1
        edge = { rate = "10Gbps", delay = "1us" }
        middle = { rate = "10Gbps", delay = "1us" }
        [network.switch]
        buffer = "1MB"
        [transport]
        law = "dctcp"
        [[application]]
        from = 0
        to = [1]
        [application.workload]
        name = "a, b"
        reads = "0%"
        sizes = { fixed = "10kB" }
        offsets = "sequential"
        space = "1GB"
        load = { open = { rate = "1Gbps" } }
    "#;

    #[test]
    fn what_is_told() {
        let scenario = Scenario::parse(SMALL).unwrap();
        let outcome = e2e::run(&scenario).unwrap();
        insta::assert_snapshot!(told(&scenario, &outcome, Paint::none()));
        insta::assert_snapshot!(csv(&outcome));
    }

    #[test]
    fn how_far_it_is() {
        let progress = Progress {
            now: Span(10 * Span::MILLISECOND.0),
            length: Span(50 * Span::MILLISECOND.0),
            events: 9_000_000,
        };
        let text = far(&progress, Span(3 * Span::SECOND.0));
        assert_eq!(text, "10ms of 50ms, 3M events/s, 12 s left");
    }
}
