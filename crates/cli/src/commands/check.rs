//! `tidegate check`: is this a policy, and can it be kept?

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_model::Policy;
use tidegate_model::gate::Unit;

use super::Common;
use crate::amounts;
use crate::failure::{Failure, Told};
use crate::output::{self, Paint, Tone};
use crate::policy_file::PolicyFile;

/// Check a policy without a controller: its form, its meaning, and whether it can be kept
///
/// Exits with 0 for a policy that can be applied, 3 for one that is invalid and 4 for one that
/// promises more than there is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tidegate check policies/shared-disk.toml")]
pub(crate) struct Args {
    /// The policy, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The answer for programs.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    verdict: &'static str,
    file: &'a str,
    tenants: u64,
    channels: u64,
    rules: u64,
    sums: Vec<Sum>,
    warnings: Vec<String>,
}

/// The answer for programs where the policy is not valid.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    told: Told<'a>,
}

/// What is promised of what there is, in one unit.
#[derive(Debug, Serialize)]
struct Sum {
    unit: &'static str,
    reserved_per_second: u64,
    budget_per_second: Option<u64>,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let read = PolicyFile::read(&args.file);
    let checked = read.and_then(|file| file.check_feasible().map(|()| file));
    let file = match checked {
        // A program that asks for a verdict gets one on standard output, whatever it is.
        Err(failure) if common.json => {
            let (verdict, told) = (failure.word(), failure.to_json());
            output::print_json(&Refused { verdict, told })?;
            return Err(failure.untold());
        }
        checked => checked?,
    };
    let policy = &file.policy;
    let verdict = Verdict {
        verdict: "valid",
        file: &file.name,
        tenants: policy.tenants.len() as u64,
        channels: policy.channels.len() as u64,
        rules: policy.matches.len() as u64,
        sums: sums(policy),
        warnings: warnings(policy),
    };
    if common.json {
        output::print_json(&verdict)?;
    } else {
        output::print(&told(&verdict, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn sums(policy: &Policy) -> Vec<Sum> {
    let sum = |unit, name| {
        let reserved = policy.tenants.iter().filter_map(|tenant| tenant.reservation.get(unit));
        let reserved_per_second = reserved.fold(0, u64::saturating_add);
        let budget_per_second = policy.budget.get(unit);
        Sum { unit: name, reserved_per_second, budget_per_second }
    };
    let mut sums = vec![sum(Unit::Bytes, "bytes"), sum(Unit::Operations, "operations")];
    sums.retain(|sum| sum.reserved_per_second > 0 || sum.budget_per_second.is_some());
    sums
}

/// What is allowed, but hardly meant.
fn warnings(policy: &Policy) -> Vec<String> {
    let mut warnings = Vec::new();
    for (unit, name, example) in
        [(Unit::Bytes, "bandwidth", "1000MiB/s"), (Unit::Operations, "operations", "50k iops")]
    {
        let reserves = policy.tenants.iter().any(|tenant| tenant.reservation.get(unit).is_some());
        if reserves && policy.budget.get(unit).is_none() {
            warnings.push(format!(
                "{name} is reserved, but without a budget of it nobody is held back to keep the \
                 reservation; add budget = \"{example}\", for example"
            ));
        }
    }
    if policy.tenants.is_empty() {
        warnings.push("there is no tenant, so nobody is promised anything".into());
    }
    warnings
}

fn told(verdict: &Verdict<'_>, paint: Paint) -> String {
    let mut text = format!(
        "{}: {}: {}, {}, {}\n",
        verdict.file,
        paint.tone(Tone::Good, verdict.verdict),
        amounts::plural(verdict.tenants, "tenant"),
        amounts::plural(verdict.channels, "channel"),
        amounts::plural(verdict.rules, "rule"),
    );
    for Sum { unit, reserved_per_second: reserved, budget_per_second } in &verdict.sums {
        let level = if *unit == "bytes" { amounts::bandwidth } else { amounts::iops };
        text += &match budget_per_second {
            Some(budget) => {
                let share = u128::from(*reserved) * 1000 / u128::from(*budget).max(1);
                let share = amounts::permille(u64::try_from(share).unwrap_or(u64::MAX));
                format!("  reserved {} of {} ({share})\n", level(*reserved), level(*budget))
            }
            None => format!("  reserved {}\n", level(*reserved)),
        };
    }
    for warning in &verdict.warnings {
        text += &format!("  {}: {warning}\n", paint.tone(Tone::Warn, "warning"));
    }
    text
}
