//! `tidegate-lab bench`: the command that runs the benchmarks.

use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use crate::bench::{self, Bench, HostsSize, Row, WindowPlan};
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::programs;
use tidegate_console::table::{Cell, Table};

/// Measure what Tidegate costs, beside its peers
///
/// Each number is the median of many short windows; those in which something disturbed the machine
/// are left out, and peers are measured in turns with ours. With --json, one object per line and
/// row. The exit code is 99 if a promise was not kept.
///
/// All of it takes more than an hour, with the probes: backups 30 minutes, path and isolation some
/// six each; stage, shim, apply, haechi and idle are done within a minute each.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What a controller costs is measured by `cargo run --release -p tidegate-controller --example
thousand_stages`.

Examples:
  tidegate-lab bench
  tidegate-lab bench shim --json
  tidegate-lab bench scheduler --probes
  tidegate-lab bench isolation --simulated
  tidegate-lab bench hosts --stages 100 --hosts 8 --seconds 90")]
pub(crate) struct Args {
    /// The benches to run; all if none is named
    #[arg(value_name = "NAME", value_enum)]
    names: Vec<Bench>,

    /// Only see that everything works: fewer and shorter windows, and no verdict on times
    #[arg(long)]
    quick: bool,

    /// Of the scheduler: how it behaves where others go wrong, instead of what it takes
    #[arg(long)]
    probes: bool,

    /// Of isolation: in virtual time alone, which is the same on every machine
    #[arg(long, conflicts_with = "probes")]
    simulated: bool,

    #[command(flatten)]
    hosts: HostsOptions,
}

// The size of the bench `hosts`. Clap would take a comment of documentation for the command's own.
#[derive(Debug, clap::Args)]
struct HostsOptions {
    /// Of hosts: programs under `tidegate run`, 50 by default
    #[arg(long, value_name = "N", conflicts_with_all = ["probes", "simulated"])]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(10..=500))]
    stages: Option<usize>,

    /// Of hosts: how many of them, 8 by default
    #[arg(long, value_name = "M", conflicts_with_all = ["probes", "simulated"])]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(2..=100))]
    hosts: Option<usize>,

    /// Of hosts: how long the demand changes, for ours and for the peer each; 60 by default
    #[arg(long, value_name = "S", conflicts_with_all = ["probes", "simulated"])]
    #[arg(value_parser = clap::value_parser!(u64).range(14..=3_600))]
    seconds: Option<u64>,
}

impl HostsOptions {
    /// The size of a run, if an option says something about it.
    fn size(&self, quick: bool) -> Option<HostsSize> {
        let Self { stages, hosts, seconds } = *self;
        let usual = if quick { HostsSize::QUICK } else { HostsSize::FULL };
        let is_chosen = stages.is_some() || hosts.is_some() || seconds.is_some();
        is_chosen.then(|| HostsSize {
            stages: stages.unwrap_or(usual.stages),
            hosts: hosts.unwrap_or(usual.hosts),
            seconds: seconds.unwrap_or(usual.seconds),
        })
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let names = if args.names.is_empty() { Bench::value_variants() } else { &args.names };
    let plan = if args.quick { WindowPlan::QUICK } else { WindowPlan::FULL };
    let shim = programs::shim();
    let shim = match &shim {
        Ok(path) => Ok(path.as_path()),
        Err(_) => Err("there is no shim: build it with `cargo build -p tidegate-preload`".into()),
    };
    // In virtual time each run is the same.
    let is_judged = !args.quick || args.probes || args.simulated;
    let (mut rows, mut written) = (Vec::new(), Ok(()));
    let mut report = |row: Row| {
        let row = if is_judged { row } else { row.unjudged() };
        if common.json && written.is_ok() {
            written = output::print_json(&row);
        }
        rows.push(row);
    };
    let part = (args.probes, args.simulated, names);
    match part {
        (false, false, names) => {
            match (args.hosts.size(args.quick), names) {
                (None, names) => bench::run(names, plan, shim, &mut report)?,
                (Some(size), [Bench::Hosts]) => bench::hosts(plan, size, &mut report)?,
                (Some(_), _) => {
                    let failure = Failure::new(Code::Usage, "only hosts has a size");
                    return Err(failure.help("tidegate-lab bench hosts --stages 100"));
                }
            }
            if args.names.is_empty() {
                bench::probe(plan, &mut report)?;
            }
        }
        (true, _, [Bench::Scheduler]) => bench::probe(plan, &mut report)?,
        (true, ..) => {
            let failure = Failure::new(Code::Usage, "only the scheduler is probed");
            return Err(failure.help("tidegate-lab bench scheduler --probes"));
        }
        (_, true, [Bench::Isolation]) => bench::simulate_isolation(plan, &mut report)?,
        (_, true, _) => {
            let failure = Failure::new(Code::Usage, "only isolation is simulated");
            return Err(failure.help("tidegate-lab bench isolation --simulated"));
        }
    }
    written?;
    if !common.json {
        output::print(&formatted(&rows, Paint::stdout()))?;
    }
    match rows.iter().any(|row| row.kept == Some(false)) {
        true => Err(Failure::silent(Code::Missed)),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn formatted(rows: &[Row], paint: Paint) -> String {
    let mut table =
        Table::new().left("BENCH").left("CASE").right("VALUE").left("UNIT").left("BETWEEN");
    table = table.left("PROMISE").right("PEER").right("BETTER").left("OF");
    for row in rows {
        let amount = |value| amount(value, row.unit);
        let number = |value: Option<f64>| value.map_or_else(String::new, amount);
        let between = |[low, high]: [f64; 2]| format!("{} .. {}", amount(low), amount(high));
        let (tone, mark) = match row.kept {
            Some(true) => (Tone::Good, "kept"),
            Some(false) => (Tone::Bad, "NOT KEPT"),
            None => (Tone::Plain, ""),
        };
        let promise = row.promise.as_deref().unwrap_or_default();
        let ratio = row.ratio.map_or_else(String::new, |ratio| {
            let spread = row.ratio_spread.map(|[low, high]| format!(" ({low:.2} .. {high:.2})"));
            match spread {
                Some(spread) => format!("{ratio:.2} x{spread}"),
                None => format!("{ratio:.1} x"),
            }
        });
        let of = [row.peer.as_deref(), row.reason.as_deref(), row.note.as_deref()];
        let of = of.into_iter().flatten().filter(|text| !text.is_empty());
        table.row([
            row.bench.into(),
            row.case.clone().into(),
            number(row.value).into(),
            row.unit.into(),
            row.spread.map_or_else(String::new, between).into(),
            Cell::toned(tone, [promise, mark].join(" ").trim()),
            number(row.peer_value).into(),
            ratio.into(),
            of.collect::<Vec<_>>().join(": ").into(),
        ]);
    }
    table.render(paint, usize::MAX)
}

/// With as many digits as mean something.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "ratio" => format!("{value:.3}"),
        "%" => format!("{value:.2}"),
        _ if value.abs() < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_the_promise_and_the_peer() {
        let row = Row {
            bench: "stage",
            case: "bucket".into(),
            unit: "ns",
            value: Some(9.04),
            spread: None,
            peer: Some("governor".into()),
            peer_value: Some(251.0),
            ratio: Some(27.8),
            ratio_spread: None,
            promise: Some("<= 12".into()),
            kept: Some(true),
            reason: None,
            note: None,
        };
        let without = Row { value: None, peer_value: None, ratio: None, kept: None, ..row.clone() };
        let without = Row { reason: Some("not built".into()), ..without };
        let table = formatted(&[row, without], Paint::none());
        assert!(table.contains("  9.0  ns             <= 12 kept   251  27.8 x  governor"));
        assert!(table.contains("governor: not built"), "{table}");
    }
}
