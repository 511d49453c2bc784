//! `tidegate-lab demo`: four tenants on one disk, without control, with static limits and
//! with Tidegate; and one policy along the whole way of a request.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;

use crate::experiment::lsm::LsmOptions;
use crate::experiment::training::{PAPER_SECONDS, TenantWorkload};
use crate::experiment::{self, DemoOutcome, DiskChoice, Options, end_to_end};
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output;

/// Show what Tidegate is for: four tenants on one disk, three times over
///
/// Four fio processes read real files. They are promised 150, 200, 300 and 350 MiB/s, start one
/// after the other, and each reads a fixed amount as fast as it may: first without control, then
/// with static limits (of the kernel, where it has them and lets us), then with Tidegate. A disk
/// that is too slow for these numbers is shared in the same proportions, and that is said.
///
/// It takes a little under two minutes and 1 GiB of room, changes nothing, and writes a report.
/// The exit code is 99 if Tidegate did not keep a promise. Where others share the disk so that a
/// run proves nothing, it is repeated on a disk in memory, if the user is root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate-lab demo
  tidegate-lab demo --seconds 60 --out /tmp/demo
  tidegate-lab demo --disk memory
  tidegate-lab demo --json | jq '.setups[2].result.tenants'
  tidegate-lab demo end-to-end --short")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(flatten)]
    wanted: DemoOptions,

    /// The disk: the real one below --directory, one in memory, or both: in memory if the run on
    /// the real one proves nothing, because others share that disk
    #[arg(long, value_name = "DISK", env = "TIDEGATE_DISK", hide_env_values = true)]
    #[arg(default_value = "auto")]
    disk: Disk,

    #[command(subcommand)]
    other: Option<Other>,
}

/// Which disk the demo uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Disk {
    /// The real one, and one in memory if that proves nothing; only the real one with --directory
    Auto,
    /// The one below --directory
    Real,
    /// A loop device on a file in memory; needs root
    Memory,
}

/// Demonstrations beside the first.
#[derive(Debug, clap::Subcommand)]
enum Other {
    EndToEnd(EndToEnd),
}

/// Keep one policy along the whole way, and see what each gate is for
///
/// A database on a mounted file system, a client of NBD, a client of memcached and a client of a
/// data node are promised their part by one policy, beside a backup that asks for all that it can
/// get at each of the four. Ten acts differ only in the gates that are on: none, some, all with a
/// change of the policy in the middle, and each off alone.
///
/// It needs root, fio, nbdfuse, memcached and the kernel's loop devices, and says what is missing.
/// Each node imitates a slow device, so that two processors suffice. The exit code is 99 if a
/// promise was missed with everything on, and 1 if the machine was too busy to tell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate-lab demo end-to-end
  tidegate-lab demo end-to-end --short --out /tmp/demo
  tidegate-lab demo end-to-end --json | jq 'select(.verdict == \"missed\")'")]
struct EndToEnd {
    /// How long each act is measured [default: 20, or 12 with --short]
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_SECONDS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(end_to_end::SECONDS_MIN..=600))]
    seconds: Option<u64>,

    /// Five acts only: nothing on, everything on, and three gates off alone
    #[arg(long, env = "TIDEGATE_SHORT", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    short: bool,

    /// Run only this act, by its number; repeated for several
    #[arg(long, value_name = "NUMBER", conflicts_with = "short", value_parser = act)]
    act: Vec<usize>,

    /// Print no colours, also on a terminal
    #[arg(long, env = "TIDEGATE_PLAIN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    plain: bool,

    /// Where the page with timelines goes
    #[arg(long, value_name = "DIR", env = "TIDEGATE_OUT", hide_env_values = true)]
    #[arg(default_value = "out/demo")]
    out: PathBuf,
}

/// The options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DemoOptions {
    /// How long a set-up takes that wastes nothing; static limits take twice as long. With less
    /// than 15 seconds few of them count
    #[arg(long, value_name = "SECONDS", env = "TIDEGATE_SECONDS", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(4..=600))]
    seconds: Option<u64>,

    /// Where the report goes
    #[arg(long, value_name = "DIR", env = "TIDEGATE_OUT", hide_env_values = true)]
    pub(super) out: Option<PathBuf>,

    /// A directory on the disk to use, with 1 GiB of room for a while [default: /var/tmp]
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DIRECTORY", hide_env_values = true)]
    directory: Option<PathBuf>,

    /// Leave the kernel's control groups alone, and let Tidegate's buckets be the static limits
    #[arg(long, env = "TIDEGATE_NO_CGROUPS", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    no_cgroups: bool,

    /// Print one line a second, also on a terminal
    #[arg(long, env = "TIDEGATE_PLAIN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    plain: bool,
}

/// Where files of the experiments lie, unless the user names a directory.
const DIRECTORY: &str = "/var/tmp";

impl DemoOptions {
    /// Where files lie.
    pub(super) fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| DIRECTORY.into())
    }

    /// The options of the experiments with RocksDB; `out` is the default.
    pub(super) fn lsm(self, rounds: u16, is_long: bool, out: &str, common: &Common) -> LsmOptions {
        LsmOptions {
            seconds: LsmOptions::seconds(self.seconds, is_long),
            rounds,
            out: self.out.clone().unwrap_or_else(|| out.into()),
            directory: self.directory(),
            json: common.json,
            is_again: false,
        }
    }

    /// The options of figure 10 with training jobs; `seconds` and `out` are the defaults.
    pub(super) fn training(
        self,
        seconds: u64,
        is_long: bool,
        out: &str,
        common: &Common,
    ) -> Options {
        let options = self.options(seconds, out, common);
        let seconds = if is_long { PAPER_SECONDS } else { options.seconds };
        Options { workload: TenantWorkload::Torch, seconds, ..options }
    }

    /// The experiment's options; `seconds` and `out` are the defaults.
    pub(crate) fn options(self, seconds: u64, out: &str, common: &Common) -> Options {
        Options {
            workload: TenantWorkload::Fio,
            seconds: self.seconds.unwrap_or(seconds),
            out: self.out.clone().unwrap_or_else(|| out.into()),
            disk: DiskChoice::Below(self.directory()),
            repeats: None,
            no_cgroups: self.no_cgroups,
            plain: self.plain,
            json: common.json,
        }
    }
}

/// So that three set-ups, one of which takes twice as long, and all around them take less than two
/// minutes.
const SECONDS: u64 = 25;

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    if let Some(Other::EndToEnd(wanted)) = args.other {
        return end_to_end(wanted, common);
    }
    let outcome = four_tenants(args, common)?;
    if common.json {
        output::print_json(&outcome.to_json())?;
    }
    match (outcome.is_kept(), outcome.excuse()) {
        (true, _) => Ok(ExitCode::SUCCESS),
        (false, Some(why)) => Err(unproven(why)),
        // The summary has the reason.
        (false, None) => Err(Failure::silent(Code::Missed)),
    }
}

/// Runs the experiment on the disk that is wanted.
fn four_tenants(args: Args, common: &Common) -> Result<DemoOutcome, Failure> {
    let is_named = args.wanted.directory.is_some();
    let mut options = args.wanted.options(SECONDS, "out/demo", common);
    if args.disk == Disk::Memory {
        options.disk = DiskChoice::InMemory;
    }
    let outcome = experiment::run(&options)?;
    let may_repeat = args.disk == Disk::Auto && !is_named && !outcome.is_kept();
    let Some(why) = outcome.excuse().filter(|_| may_repeat && experiment::has_memory_disk()) else {
        return Ok(outcome);
    };
    if !common.json {
        let text = format!("\nThis run proves nothing: {why}. Once more, on a disk in memory.\n\n");
        output::print(&text)?;
    }
    options.out.push("memory");
    experiment::run(&Options { disk: DiskChoice::InMemory, repeats: Some(why), ..options })
}

/// How long an act takes if nothing is said, and in a short run.
const ACT_SECONDS: [u64; 2] = [20, 12];

fn end_to_end(wanted: EndToEnd, common: &Common) -> Result<ExitCode, Failure> {
    let EndToEnd { seconds, short: is_short, act: acts, plain, out } = wanted;
    let seconds = seconds.unwrap_or(ACT_SECONDS[usize::from(is_short)]);
    let options = end_to_end::Options { seconds, is_short, acts, plain, out, json: common.json };
    let outcome = end_to_end::run(&options)?;
    if common.json {
        outcome.rows().iter().try_for_each(output::print_json)?;
    }
    match outcome.excuse() {
        Some(why) => Err(unproven(why)),
        None if outcome.is_kept() => Ok(ExitCode::SUCCESS),
        // The table has the reason.
        None => Err(Failure::silent(Code::Missed)),
    }
}

fn act(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=end_to_end::ACT_COUNT).contains(number));
    number.ok_or_else(|| format!("acts have the numbers 1 to {}", end_to_end::ACT_COUNT))
}

fn unproven(why: String) -> Failure {
    Failure::new(Code::Failure, "this run proves nothing")
        .cause(why)
        .help("run it again when the machine and its disk are quiet")
}
