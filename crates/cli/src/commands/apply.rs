//! `tidegate apply`: makes a policy the one in force.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tidegate_proto::controller::status::{Applied, PolicyChange};
use tidegate_proto::message::OperatorRequest;

use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::operator::{self, Operator};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;

/// Put a policy in force, on all stages at once
///
/// The policy is checked here before the controller is asked, so a mistake is shown with its line.
/// All of it takes effect or nothing does, and it survives a restart of the controller.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate apply policies/shared-disk.toml --dry-run
  sed 's/150MiB/180MiB/' policies/shared-disk.toml | tidegate apply -")]
pub(crate) struct Args {
    /// The policy, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Only print the changes that the policy would make
    #[arg(long, env = "TIDEGATE_DRY_RUN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    dry_run: bool,

    /// Refuse unless this revision is in force, so that no other change is overwritten unseen
    #[arg(long, value_name = "REVISION", env = "TIDEGATE_EXPECT", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    expect: Option<u64>,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let file = PolicyFile::read(&args.file, Reader::User)?;
    file.check_feasible()?;
    let doubts = file.doubts();
    let request = OperatorRequest::Apply {
        policy: file.text,
        source: file.origin,
        dry_run: args.dry_run,
        expect: args.expect.unwrap_or(0),
    };
    let answer = Operator::connect(&common.socket())?.call(&request)?;
    let mut applied: Applied = operator::read(&answer)?;
    applied.warnings.extend(doubts);
    if common.json {
        output::print_json(&applied)?;
    } else {
        output::print(&render(&applied, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(applied: &Applied, paint: Paint) -> String {
    let changes: String = applied.changes.iter().map(|change| line(change, paint)).collect();
    let revision = applied.revision;
    let outcome = match (applied.dry_run, applied.is_changed) {
        (_, false) => format!("nothing to change: revision {revision} is in force already"),
        (true, true) if revision == 0 => "dry run: no policy is in force yet".into(),
        (true, true) => format!("dry run: revision {revision} stays in force"),
        (false, true) => format!("revision {revision} is in force"),
    };
    let warn = |warning: &String| format!("  {}: {warning}\n", paint.tone(Tone::Warn, "warning"));
    let warnings: String = applied.warnings.iter().map(warn).collect();
    format!("{changes}{outcome}\n{warnings}")
}

fn line(change: &PolicyChange, paint: Paint) -> String {
    let (mark, tone) = match change.change.as_str() {
        "added" => ("+", Tone::Good),
        "removed" => ("-", Tone::Bad),
        _ => ("~", Tone::Warn),
    };
    format!("{} {}\n", paint.tone(tone, mark), change.line)
}
