//! `cargo xtask`: what the repository asks of itself, checked by a machine.
//!
//! Each command is one arm below and one module of the library; `cargo test` runs the same checks
//! (`tests/repository.rs`), so a command is for the moment when one wants a single answer fast.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use xtask::{Finding, arrows, circles, commands, links, tidy};

mod fuzz;
mod loom;
mod mutants;
mod ns3;
mod seeds;

const USAGE: &str = "\
Checks the repository.

Usage: cargo xtask COMMAND

  tidy     how the source is written: lengths, clocks, names, retired words
  arrows   which crate depends on which, and that the pure rings are pure
  circles  that modules of one folder do not use each other in a circle
  links    relative links of the Markdown pages, source files that they name, and the book's
           table of contents
  commands that each `cargo test` of the Markdown pages runs a test
  check    all of these
  fuzz     looks for inputs that break something, see `cargo xtask fuzz help`
  seeds    runs simulations under faults, see `cargo xtask seeds help`
  loom     tries all orders in which threads may meet in lock-free code
  mutants  makes small mistakes and sees whether tests notice, see `cargo xtask mutants help`
  ns3      compares the simulated network with ns-3, see `cargo xtask ns3 help`

Exit codes: 0 nothing found, 1 findings, 2 usage.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = xtask::root();
    let found = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::check(&root),
        ["arrows"] => arrows::check(&root),
        ["circles"] => circles::check(&root),
        ["links"] => links::check(&root),
        ["commands"] => commands::check(&root),
        ["check"] => check(&root),
        ["fuzz", ref rest @ ..] => return fuzz::run(&root, rest),
        ["seeds", ref rest @ ..] => return seeds::run(&root, rest),
        ["loom", ref rest @ ..] => return loom::run(&root, rest),
        ["mutants", ref rest @ ..] => return mutants::run(&root, rest),
        ["ns3", ref rest @ ..] => return ns3::run(&root, rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    report(found)
}

/// Every check in turn; the findings of all, so that one run shows everything there is to mend.
fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = tidy::check(root)?;
    findings.extend(arrows::check(root)?);
    findings.extend(circles::check(root)?);
    findings.extend(links::check(root)?);
    findings.extend(commands::check(root)?);
    Ok(findings)
}

fn report(found: io::Result<Vec<Finding>>) -> ExitCode {
    match found {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            findings.iter().for_each(|finding| println!("{finding}"));
            eprintln!("{} to mend", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cargo xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
