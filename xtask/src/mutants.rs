//! `cargo xtask mutants`: whether the tests notice mistakes. cargo-mutants makes small mistakes in
//! the source (mutants), one at a time, and runs the tests of the crate; a mutant that no test
//! notices is a mistake that could be made.
//!
//! Which files are changed, and which tests are run for them, stands in `targets.rs`; which mutants
//! change nothing that a test could see stands in `equivalent.rs`, each with its reason. All of it
//! takes more than a night; a shard is an even sample of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

mod equivalent;
mod targets;

use equivalent::EQUIVALENT;
use targets::{MutantTarget, TARGETS};

const USAGE: &str = "\
Makes small mistakes in the source and runs the tests, to see whether they notice.

Usage: cargo xtask mutants [--shard K/N] [FILE...]

  --shard K/N   only the Kth of N even samples, counting from 0
  FILE          only these files, instead of all that xtask/src/mutants/targets.rs names

Prints a table of files, and the mutants that were missed. cargo-mutants is installed below
target/tools if the PATH has none; what it writes is in target/mutants/CRATE/mutants.out.

Exit codes: 0 at least 95 % are caught in sum, 1 fewer, 2 usage.";

/// Of a hundred mutants that are not equivalent, this many are to be caught.
const CAUGHT_PERCENT: usize = 95;

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let (shard, files) = match *arguments {
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--shard", shard, ref files @ ..] if is_shard(shard) => (Some(shard), files),
        ref files => (None, files),
    };
    if let Some(file) = files.iter().find(|file| package_of(file).is_none()) {
        eprintln!("{file} is not below crates/CRATE/src\n\n{USAGE}");
        return ExitCode::from(2);
    }
    match mutate(root, shard, files) {
        Ok(table) => table.print(),
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn is_shard(text: &str) -> bool {
    let Some((one, all)) = text.split_once('/') else { return false };
    match (one.parse::<u32>(), all.parse::<u32>()) {
        (Ok(one), Ok(all)) => one < all,
        _ => false,
    }
}

/// The folder of the crate that a file belongs to.
fn package_of(file: &str) -> Option<&str> {
    let (package, path) = file.strip_prefix("crates/")?.split_once('/')?;
    path.starts_with("src/").then_some(package)
}

/// The results of the mutants of one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileResults {
    caught: usize,
    missed: usize,
    equivalent: usize,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<String, FileResults>,
    /// The mutants that were not caught, with the reason where no test could catch them.
    notes: Vec<String>,
}

impl Table {
    /// Takes in one line of what cargo-mutants wrote: `FILE:LINE:COLUMN: MUTATION`.
    fn add(&mut self, root: &Path, line: &str, is_caught: bool) {
        let Some((file, rest)) = line.split_once(':') else { return };
        let row = self.rows.entry(file.into()).or_default();
        if is_caught {
            row.caught += 1;
            return;
        }
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        match reason(&text, file, rest) {
            Some(reason) => {
                row.equivalent += 1;
                self.notes.push(format!("equivalent: {line}: {reason}"));
            }
            None => {
                row.missed += 1;
                self.notes.push(format!("missed: {line}"));
            }
        }
    }

    /// Prints the table, and says whether that is enough.
    fn print(&self) -> ExitCode {
        self.notes.iter().for_each(|note| println!("{note}"));
        println!("{:50} {:>7} {:>7} {:>7} {:>10}", "", "mutants", "caught", "missed", "equivalent");
        let mut sum = FileResults::default();
        for (file, row) in &self.rows {
            print_row(file, row);
            sum.caught += row.caught;
            sum.missed += row.missed;
            sum.equivalent += row.equivalent;
        }
        print_row("all", &sum);
        ExitCode::from(u8::from(!sum.is_enough()))
    }
}

impl FileResults {
    /// Whether enough of them are caught. None at all is no proof.
    fn is_enough(&self) -> bool {
        let all = self.caught + self.missed;
        all > 0 && self.caught * 100 >= all * CAUGHT_PERCENT
    }
}

fn print_row(name: &str, row: &FileResults) {
    let FileResults { caught, missed, equivalent } = row;
    println!("{name:50} {:7} {caught:7} {missed:7} {equivalent:10}", caught + missed + equivalent);
}

/// Why a mutant, as `LINE:COLUMN: MUTATION` of a file, changes nothing, if it is one of those.
fn reason(text: &str, file: &str, mutant: &str) -> Option<&'static str> {
    let mut parts = mutant.splitn(3, ':');
    let line = parts.next()?.parse::<usize>().ok()?.checked_sub(1)?;
    let mutation = parts.nth(1)?.trim();
    let line = text.lines().nth(line)?;
    let is_it = |(start, code): &(&str, &str)| mutation.starts_with(start) && line.contains(code);
    let found = EQUIVALENT.iter().find(|it| it.file == file && it.mutants.iter().any(is_it));
    found.map(|it| it.reason)
}

/// Runs the crates one after the other.
fn mutate(root: &Path, shard: Option<&str>, files: &[&str]) -> Result<Table, String> {
    let program = installed(root)?;
    let mut table = Table::default();
    for target in TARGETS {
        let in_it = |file: &&&str| package_of(file) == Some(target.package);
        let chosen: Vec<&str> = match files {
            [] => target.files.to_vec(),
            _ => files.iter().filter(in_it).copied().collect(),
        };
        if !chosen.is_empty() {
            mutate_crate(root, &program, (target, shard), &chosen, &mut table)?;
        }
    }
    Ok(table)
}

fn mutate_crate(
    root: &Path,
    program: &Path,
    (target, shard): (&MutantTarget, Option<&str>),
    files: &[&str],
    table: &mut Table,
) -> Result<(), String> {
    let out = root.join("target/mutants").join(target.package);
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut command = Command::new(program);
    // Debug information makes each mutant's build several times slower, and no test reads it.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
    // One function differs from build to build.
    command.env("CARGO_INCREMENTAL", "1");
    command.args(["mutants", "--no-config", "--no-shuffle", "--minimum-test-timeout", "60"]);
    command.args(["--exclude", "**/*tests.rs", "--exclude", "**/tests/**"]);
    // Output for developers alone.
    command.args(["--exclude-re", "impl fmt::Debug"]);
    command.arg("--output").arg(&out).current_dir(root);
    if let Some(shard) = shard {
        command.args(["--shard", shard, "--sharding", "round-robin"]);
    }
    files.iter().for_each(|file| _ = command.args(["--file", file]));
    target.features.iter().for_each(|feature| _ = command.args(["--features", feature]));
    // For all calls of cargo, or each mutant would be built with all tests and benches.
    target.tests.iter().for_each(|test| _ = command.arg(format!("--cargo-arg={test}")));
    // It ends with 2 if something was missed, and with 3 if something hung.
    let status = command.status().map_err(|error| format!("cargo-mutants: {error}"))?;
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("cargo-mutants failed in {} ({status})", target.package));
    }
    // A test that hangs is noticed, too.
    for (name, is_caught) in [("caught.txt", true), ("timeout.txt", true), ("missed.txt", false)] {
        let path = out.join("mutants.out").join(name);
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().for_each(|line| table.add(root, line, is_caught));
    }
    Ok(())
}

/// The program cargo-mutants: of the PATH, or installed below `target/tools`.
fn installed(root: &Path) -> Result<PathBuf, String> {
    let is_there = |program: &Path| {
        let mut version = Command::new(program);
        version.args(["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    let tools = root.join("target/tools");
    let candidates = [PathBuf::from("cargo-mutants"), tools.join("bin/cargo-mutants")];
    if let Some(program) = candidates.iter().find(|program| is_there(program)) {
        return Ok(program.clone());
    }
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["install", "--locked", "cargo-mutants", "--root"])
        .arg(&tools)
        .current_dir(root)
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(tools.join("bin/cargo-mutants")),
        Ok(status) => Err(format!("cargo-mutants cannot be installed ({status})")),
        Err(error) => Err(format!("cargo cannot be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::equivalent::Equivalent;
    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn a_shard_is_one_of_several() {
        assert!(is_shard("0/8") && is_shard("7/8"));
        assert!(!is_shard("8/8") && !is_shard("1") && !is_shard("a/b") && !is_shard("0/0"));
    }

    #[test]
    fn every_pattern_of_the_targets_names_files_of_its_crate() {
        for target in TARGETS {
            for pattern in target.files {
                assert_eq!(package_of(pattern), Some(target.package), "{pattern}");
                let folder = pattern.strip_suffix("/*.rs");
                let is_there = match folder {
                    Some(folder) => root().join(folder).is_dir(),
                    None => root().join(pattern).is_file(),
                };
                assert!(is_there, "{pattern} names nothing");
            }
        }
    }

    #[test]
    fn equivalent_mutants_are_still_in_the_source() {
        for Equivalent { file, reason, mutants } in EQUIVALENT {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            for (mutation, code) in *mutants {
                assert!(text.contains(code), "{file} has no {code:?} any more: {mutation}");
            }
            assert!(!reason.is_empty() && !mutants.is_empty());
        }
    }

    #[test]
    fn a_table_counts_caught_and_possible_mutants() {
        let mut table = Table::default();
        let first = EQUIVALENT.first().unwrap_or_else(|| unreachable!("there are some"));
        let (mutation, code) = first.mutants[0];
        let text = fs::read_to_string(root().join(first.file)).unwrap_or_default();
        let line = text.lines().position(|line| line.contains(code)).unwrap_or_default() + 1;
        table.add(root(), &format!("{}:{line}:1: {mutation}", first.file), false);
        table.add(root(), &format!("{}:1:1: {mutation}", first.file), false);
        table.add(root(), &format!("{}:1:1: replace a with b", first.file), true);
        assert_eq!(table.rows[first.file], FileResults { caught: 1, missed: 1, equivalent: 1 });
        assert!(table.notes[0].starts_with("equivalent") && table.notes[0].ends_with(first.reason));
        assert!(table.notes[1].starts_with("missed"));
    }

    #[test]
    fn nineteen_of_twenty_are_enough_and_nothing_is_not() {
        let row = |caught, missed| FileResults { caught, missed, equivalent: 7 };
        assert!(row(19, 1).is_enough() && row(1, 0).is_enough());
        assert!(!row(18, 1).is_enough() && !row(0, 0).is_enough());
    }
}
