//! `tidegate-lab load`: a load that measures the response times of users.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::FalseyValueParser;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tidegate_model::{Bytes, Iops, Span};

use crate::load::expect::Expectation;
use crate::load::pace::{LoadStats, Series};
use crate::load::schedule::{Arrivals, Window};
use crate::load::target::Target;
use crate::load::{self, LoadParameters, Progress};
use tidegate_console::amounts;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::no_signals;
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};

/// The largest request: the limit of NBD servers.
const SIZE_MAX: u64 = 32 << 20;

/// Put a block device server or a memcached under load and tell how long answers took
///
/// With --rate, requests are sent when they are due, whatever the server does: a stall is in the
/// response times of all who would have asked meanwhile. Service times count from when a request
/// was sent. Without --rate, every connection keeps --depth requests under way.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Targets:
  nbd://HOST:PORT/EXPORT    nbd+unix:///EXPORT?socket=PATH
  memcached://HOST:PORT     memcached+unix:///?socket=PATH

Examples:
  tidegate-lab load nbd://127.0.0.1/vol --rate \"5k iops\" --read 70% --expect \"p99<2ms\"
  tidegate-lab load memcached://127.0.0.1 --depth 16 --zipf --fill
  tidegate-lab load nbd://127.0.0.1/vol --rate \"5k iops\" --json | jq .all.response.p99_ns")]
pub(crate) struct Args {
    /// The target of the load
    #[arg(value_name = "TARGET", value_parser = target)]
    target: Target,

    /// Send so many requests a second, like "5k iops"; as many as --depth allows if not said
    #[arg(long, value_name = "RATE", value_parser = rate, env = "TIDEGATE_RATE")]
    #[arg(hide_env_values = true)]
    rate: Option<Iops>,

    /// The moments between requests of a rate
    #[arg(long, value_enum, default_value = "constant", env = "TIDEGATE_ARRIVALS")]
    #[arg(value_name = "KIND", hide_env_values = true)]
    arrivals: Arrivals,

    /// How many requests a connection carries at most
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_DEPTH", hide_env_values = true)]
    #[arg(default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,

    /// How many connections there are
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_CONNECTIONS", hide_env_values = true)]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    connections: u32,

    /// How many threads share the connections
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_THREADS", hide_env_values = true)]
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: u32,

    #[arg(long, visible_alias = "seconds", value_name = "SPAN", help = load::DURATION_HELP)]
    #[arg(env = "TIDEGATE_DURATION", hide_env_values = true)]
    #[arg(default_value = "10s", value_parser = load::duration)]
    duration: Span,

    /// Load for so long before anything counts
    #[arg(long, value_name = "SPAN", env = "TIDEGATE_WARMUP", hide_env_values = true)]
    #[arg(default_value = "1s", value_parser = span)]
    warmup: Span,

    /// Bytes of a request, or of a value, up to 32MiB [default: 4KiB, or 100B for memcached]
    #[arg(long, value_name = "SIZE", env = "TIDEGATE_SIZE", hide_env_values = true)]
    #[arg(value_parser = size)]
    size: Option<u32>,

    /// The share of reads
    #[arg(long, value_name = "SHARE", env = "TIDEGATE_READ", hide_env_values = true)]
    #[arg(default_value = "100%", value_parser = share)]
    read: u64,

    /// How many keys there are, for memcached
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_KEYS", hide_env_values = true)]
    #[arg(default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,

    /// The prefix of keys, for memcached
    #[arg(long, value_name = "TEXT", env = "TIDEGATE_PREFIX", hide_env_values = true)]
    #[arg(default_value = "load:", value_parser = prefix)]
    prefix: String,

    /// Ask for few keys often and for many seldom, as the Yahoo! benchmark does
    #[arg(long, env = "TIDEGATE_ZIPF", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    zipf: bool,

    /// Store every key first
    #[arg(long, env = "TIDEGATE_FILL", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    fill: bool,

    /// Exit with 99 if this does not hold of the response times, like "p99<2ms" or "max<1s"
    #[arg(long, value_name = "BOUND", value_parser = expectation)]
    expect: Vec<Expectation>,

    /// The seed of all random choices
    #[arg(long, value_name = "NUMBER", env = "TIDEGATE_SEED", hide_env_values = true)]
    #[arg(default_value_t = 1)]
    seed: u64,
}

fn target(text: &str) -> Result<Target, String> {
    text.parse()
}

fn expectation(text: &str) -> Result<Expectation, String> {
    text.parse()
}

fn rate(text: &str) -> Result<Iops, String> {
    match text.parse::<Iops>() {
        Ok(Iops(0)) => Err("nothing would ever be sent; use at least \"1 iops\"".into()),
        rate => rate.map_err(|error| error.to_string()),
    }
}

fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|error| error.to_string())
}

fn size(text: &str) -> Result<u32, String> {
    let size = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    let size = u32::try_from(size.0).ok().filter(|size| (1..=SIZE_MAX).contains(&u64::from(*size)));
    size.ok_or_else(|| "use 1B to 32MiB".into())
}

/// `70%` in thousandths.
fn share(text: &str) -> Result<u64, String> {
    let percent = text.strip_suffix('%').and_then(|text| text.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(|percent| (percent * 10.0).round() as u64).ok_or("write it like 70%".into())
}

fn prefix(text: &str) -> Result<String, String> {
    let is_fit = text.len() <= 200 && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_fit.then(|| text.to_owned()).ok_or("use up to 200 letters, digits and signs".into())
}

impl Args {
    fn plan(&self) -> LoadParameters {
        let usual = if matches!(self.target, Target::Nbd { .. }) { 4_096 } else { 100 };
        LoadParameters {
            target: self.target.clone(),
            rate: self.rate,
            arrivals: self.arrivals,
            depth: self.depth,
            connections: self.connections,
            threads: self.threads,
            warmup: self.warmup,
            duration: self.duration,
            size: self.size.unwrap_or(usual),
            reads_permille: self.read,
            keys: self.keys,
            is_zipf: self.zipf,
            prefix: self.prefix.clone(),
            fill: self.fill,
            seed: self.seed,
        }
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&stop)).map_err(no_signals)?;
    }
    let plan = args.plan();
    let is_watched = !common.json && io::stderr().is_terminal();
    let (stats, window) = load::run(&plan, Arc::clone(&stop), |progress| {
        if is_watched {
            watch(progress);
        }
    })?;
    if is_watched {
        // The terminal gets a clean line again; a failure of this write has no effect.
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
    let report = LoadReport::new(&plan, &stats, window, &args.expect);
    if common.json {
        output::print_json(&report)?;
    } else {
        output::print(&formatted(&report, Paint::stdout()))?;
    }
    match report.expectations.iter().all(|expected| expected.kept) {
        // The exit code that shells give to a command that SIGINT ended.
        _ if stop.load(Ordering::Relaxed) => Err(Failure::silent(Code::Other(130))),
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::silent(Code::Missed)),
    }
}

fn watch(progress: Progress) {
    let Progress { elapsed, whole, answers, failures } = progress;
    let seconds = elapsed.as_seconds();
    let line = format!(
        "\r\x1b[K{} of {}: {} answers, {} on average, {}",
        amounts::age(elapsed.0.min(whole.0)),
        amounts::age(whole.0),
        amounts::count(answers),
        amounts::iops((answers as f64 / seconds.max(0.001)) as u64),
        amounts::plural(failures, "failure"),
    );
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The answer for programs.
#[derive(Debug, Serialize)]
struct LoadReport {
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_second: Option<u64>,
    achieved_per_second: f64,
    bytes_per_second: f64,
    connections: u32,
    depth: u32,
    size_bytes: u32,
    seed: u64,
    answered: u64,
    missed: u64,
    failed: u64,
    unsent: u64,
    unanswered: u64,
    all: Times,
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writes: Option<Times>,
    expectations: Vec<Expected>,
}

/// The times of one kind of request.
#[derive(Debug, Serialize)]
struct Times {
    count: u64,
    service: Percentiles,
    response: Percentiles,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    mean_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    p99_99_ns: u64,
    max_ns: u64,
}

#[derive(Debug, Serialize)]
struct Expected {
    bound: String,
    value_ns: u64,
    kept: bool,
}

impl LoadReport {
    fn new(
        plan: &LoadParameters,
        stats: &LoadStats,
        window: Window,
        expected: &[Expectation],
    ) -> Self {
        let all = stats.all();
        let seconds = window.length().as_seconds();
        let achieved_per_second = stats.answered as f64 / seconds.max(1e-9);
        let expectations = expected.iter().map(|expected| {
            let (value, kept) = expected.check(&all);
            Expected { bound: expected.to_string(), value_ns: value.0, kept }
        });
        let is_mixed = stats.reads.count() > 0 && stats.writes.count() > 0;
        Self {
            seconds,
            rate_per_second: plan.rate.map(|rate| rate.0),
            achieved_per_second,
            bytes_per_second: achieved_per_second * f64::from(plan.size),
            connections: plan.connections,
            depth: plan.depth,
            size_bytes: plan.size,
            seed: plan.seed,
            answered: stats.answered,
            missed: stats.missed,
            failed: stats.failed,
            unsent: stats.unsent,
            unanswered: stats.unanswered,
            all: Times::of(&all),
            reads: is_mixed.then(|| Times::of(&stats.reads)),
            writes: is_mixed.then(|| Times::of(&stats.writes)),
            expectations: expectations.collect(),
        }
    }
}

impl Times {
    fn of(series: &Series) -> Self {
        let percentiles = |of: &hdrhistogram::Histogram<u64>| Percentiles {
            mean_ns: of.mean() as u64,
            p50_ns: of.value_at_quantile(0.5),
            p90_ns: of.value_at_quantile(0.9),
            p99_ns: of.value_at_quantile(0.99),
            p99_9_ns: of.value_at_quantile(0.999),
            p99_99_ns: of.value_at_quantile(0.9999),
            max_ns: of.max(),
        };
        let (service, response) = (percentiles(&series.service), percentiles(&series.response));
        Self { count: series.count(), service, response }
    }
}

fn formatted(report: &LoadReport, paint: Paint) -> String {
    let achieved = amounts::iops(report.achieved_per_second as u64);
    let wanted = report.rate_per_second.map(|rate| format!(" of {}", amounts::iops(rate)));
    let mut text = format!(
        "{achieved}{}, {}, {} in {:.1} s",
        wanted.unwrap_or_default(),
        amounts::bandwidth(report.bytes_per_second as u64),
        amounts::plural(report.failed, "failure"),
        report.seconds,
    );
    for (count, what) in [
        (report.missed, "without a value"),
        (report.unsent, "never sent"),
        (report.unanswered, "never answered"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    let mut table = Table::new().left("TIME").left("OF").right("MEAN").right("P50").right("P90");
    table = table.right("P99").right("P99.9").right("P99.99").right("MAX");
    let kinds = [("all", Some(&report.all)), ("reads", report.reads.as_ref())];
    for (name, times) in kinds.into_iter().chain([("writes", report.writes.as_ref())]) {
        let Some(times) = times else { continue };
        for (kind, of) in [("response", &times.response), ("service", &times.service)] {
            let cell = |ns: u64| Cell::from(amounts::span(ns));
            table.row([
                kind.into(),
                name.into(),
                cell(of.mean_ns),
                cell(of.p50_ns),
                cell(of.p90_ns),
                cell(of.p99_ns),
                cell(of.p99_9_ns),
                cell(of.p99_99_ns),
                cell(of.max_ns),
            ]);
        }
    }
    text += "\n";
    text += &table.render(paint, usize::MAX);
    for Expected { bound, value_ns, kept } in &report.expectations {
        let (tone, word) = if *kept { (Tone::Good, "kept") } else { (Tone::Bad, "MISSED") };
        let value = amounts::span(*value_ns);
        text += &format!("{bound}: {}: it is {value}\n", paint.tone(tone, word));
    }
    text
}
