//! Commands `cargo test` of the Markdown pages run a test: a filter that no test's name contains
//! succeeds, and shows nothing.

use std::io;
use std::path::Path;

use crate::Finding;
use crate::files::{self, TextFile};
use crate::source;

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let files = files::texts(root)?;
    let pages = files.iter().filter(|file| file.extension() == "md");
    Ok(pages.flat_map(|page| idle(page, &files)).collect())
}

/// A command: its package, the target of `--test`, and the filter of names.
#[derive(Debug, PartialEq, Eq)]
struct TestCommand<'a> {
    package: &'a str,
    target: Option<&'a str>,
    filter: Option<&'a str>,
}

/// The command in this code, if it tests a package.
fn command(code: &str) -> Option<TestCommand<'_>> {
    let mut words = code.split_whitespace().skip_while(|word| *word != "test").skip(1);
    code.contains("cargo test").then_some(())?;
    let (mut package, mut target, mut filter) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "-p" | "--package" => package = words.next(),
            "--test" => target = words.next(),
            "--features" => drop(words.next()),
            "--" => break,
            word if word.starts_with('-') => {}
            word => filter = filter.or(Some(word)),
        }
    }
    Some(TestCommand { package: package?, target, filter })
}

/// The commands of a page that run no test of `files`.
fn idle(page: &TextFile, files: &[TextFile]) -> Vec<Finding> {
    let lines = page.text.lines().enumerate();
    let code = lines.flat_map(|(at, line)| files::code_in(line).map(move |code| (at + 1, code)));
    let commands = code.filter_map(|(line, code)| Some((line, code, command(code)?)));
    commands
        .filter(|(.., command)| !runs(command, files))
        .map(|(line, code, _)| {
            let what = format!("`{code}` runs no test");
            Finding::new(&page.path, line, what, "name the tests as they are called now")
        })
        .collect()
}

/// Whether a file of the command's target has a test whose path contains the filter: each of the
/// filter's segments is in the file's path or in the name of a function.
fn runs(command: &TestCommand<'_>, files: &[TextFile]) -> bool {
    let Some(folder) = folder(command.package, files) else { return false };
    let target = command.target.map(|target| format!("{folder}tests/{target}"));
    let is_of_target = |path: &str| match &target {
        None => path.starts_with(&folder),
        Some(target) => {
            path.strip_prefix(&**target).is_some_and(|rest| rest.starts_with(['.', '/']))
        }
    };
    let has = |file: &TextFile, segment: &str| {
        let is_function = |code: &str| {
            code.split_once("fn ").is_some_and(|(_, name)| {
                name.split(['(', '<']).next().is_some_and(|name| name.contains(segment))
            })
        };
        file.path[folder.len()..].contains(segment)
            || file.text.contains(segment)
                && source::lines(&file.text).iter().any(|line| is_function(&line.code))
    };
    let segments: Vec<&str> =
        command.filter.unwrap_or_default().split("::").filter(|it| !it.is_empty()).collect();
    let of_target =
        files.iter().filter(|file| file.extension() == "rs" && is_of_target(&file.path));
    let mut with_tests = of_target.filter(|file| {
        file.text.contains("#[test]") || command.target.is_some() && segments.is_empty()
    });
    with_tests.any(|file| segments.iter().all(|segment| has(file, segment)))
}

/// The folder of a package, with a slash behind it.
fn folder(package: &str, files: &[TextFile]) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let is_manifest = |file: &&TextFile| {
        file.path.ends_with("Cargo.toml") && file.text.lines().any(|line| line == name)
    };
    files.iter().find(is_manifest).map(|file| file.path.replace("Cargo.toml", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn commands_that_run_no_test_are_found() {
        let files = [
            file("crates/cli/Cargo.toml", "[package]\nname = \"tidegate\"\n"),
            file("crates/cli/src/top.rs", "#[test]\nfn a_screen_is_drawn() {}\n"),
            file("crates/cli/src/plain.rs", "fn drawn() { \"#[test]\"; }\n"),
            file("crates/cli/tests/cli/live.rs", "#[test]\nfn answers() {}\n"),
        ];
        let runs =
            |text: &str| idle(&file("PROMISES.md", &format!("see `{text}`")), &files).is_empty();
        assert!(runs("cargo test -p tidegate"));
        assert!(runs("cargo test -p tidegate --lib screen"));
        assert!(runs("cargo test -p tidegate --test cli live::answers"));
        assert!(runs(
            "TIDEGATE_LONG=1 cargo test -p tidegate --features x --test cli -- --nocapture"
        ));
        assert!(runs("tidegate-lab bench path") && runs("cargo test"));
        assert!(!runs("cargo test -p tidegate lanes"));
        assert!(!runs("cargo test -p tidegate --test cli screen"));
        assert!(!runs("cargo test -p tidegate --test other"));
        assert!(!runs("cargo test -p tidegate-gone"));
    }
}
