//! Relative links of Markdown pages lead somewhere, the manual lists all of its pages, source files
//! that pages name exist, and functions that the tables of [`TABLES`] name are in their files.

use std::fs;
use std::io;
use std::path::{Component, Path};

use crate::Finding;
use crate::files::{self, TextFile};

const MANUAL: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Pages with tables of questions, files and functions.
const TABLES: &[&str] = &["ARCHITECTURE.md", "docs/src/code.md"];

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut pages = files::texts(root)?;
    let sources = pages.iter().filter(|file| file.extension() == "rs");
    let sources: Vec<String> = sources.map(|file| format!("/{}", file.path)).collect();
    pages.retain(|file| file.extension() == "md");
    let mut findings: Vec<Finding> =
        pages.iter().flat_map(|page| broken(page, |path| root.join(path).exists())).collect();
    findings.extend(unlisted(&pages));
    findings.extend(pages.iter().flat_map(|page| unknown_sources(page, &sources)));
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    for page in pages.iter().filter(|page| TABLES.contains(&page.path.as_str())) {
        findings.extend(unknown_functions(page, text));
    }
    Ok(findings)
}

/// Rust files that a page names in backticks, by a path or by the end of one, and that do not
/// exist. `sources` are the paths of all, from the root (`/`) on. The change log tells of the past.
fn unknown_sources(page: &TextFile, sources: &[String]) -> Vec<Finding> {
    let lines = page.text.lines().enumerate().filter(|_| page.path != "CHANGELOG.md");
    let mut findings = Vec::new();
    for (at, line) in lines {
        let words = files::code_in(line).flat_map(str::split_whitespace);
        let paths = words.filter(|word| word.ends_with(".rs") && word.contains('/'));
        for path in paths.flat_map(alternatives) {
            if !sources.iter().any(|source| source.ends_with(&format!("/{path}"))) {
                let what = format!("there is no file {path}");
                let help = "name the file that does it now";
                findings.push(Finding::new(&page.path, at + 1, what, help));
            }
        }
    }
    findings
}

/// The paths that one with alternatives stands for: `a/{b,c}.rs` for `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    match parts {
        None => vec![path.to_owned()],
        Some((head, (names, tail))) => {
            names.split(',').map(|name| format!("{head}{name}{tail}")).collect()
        }
    }
}

/// Functions of the page's tables that are not in the file named before them, and files without
/// one: a row has a file and then one function or several, each in backticks. `text` gives the
/// text of a file.
fn unknown_functions(page: &TextFile, text: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in page.text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let mut code = files::code_in(line).peekable();
        while let Some(file) = code.next() {
            if !file.ends_with(".rs") {
                continue;
            }
            let mut finding = |problem: String| {
                let help = "name the function that does it now";
                findings.push(Finding::new(&page.path, at + 1, problem, help));
            };
            if code.peek().is_none_or(|next| next.ends_with(".rs")) {
                finding(format!("{file} is named without a function"));
            }
            while let Some(function) = code.next_if(|next| !next.ends_with(".rs")) {
                let head = format!("fn {function}");
                let is_there = |text: String| {
                    let mut found = text.split(&head).skip(1);
                    found.any(|rest| rest.starts_with(['(', '<']))
                };
                if !text(file).is_some_and(is_there) {
                    finding(format!("{file} has no function {function}"));
                }
            }
        }
    }
    findings
}

/// The relative links of `page` whose target does not exist.
fn broken(page: &TextFile, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in relative_links(&page.text) {
        match resolve(&page.path, &target) {
            Some(path) if exists(&path) => {}
            _ => findings.push(Finding::new(
                &page.path,
                line,
                format!("a link to {target}, which does not exist"),
                "correct the path, relative to this page",
            )),
        }
    }
    findings
}

/// The pages of the manual that its table of contents does not name.
fn unlisted(pages: &[TextFile]) -> Vec<Finding> {
    let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) else { return Vec::new() };
    let links = relative_links(&summary.text);
    let listed: Vec<String> =
        links.iter().filter_map(|(_, target)| resolve(SUMMARY, target)).collect();
    pages
        .iter()
        .filter(|page| page.path.starts_with(MANUAL) && page.path != SUMMARY)
        .filter(|page| !listed.contains(&page.path))
        .map(|page| {
            let mend = format!("add it to {SUMMARY}");
            Finding::new(&page.path, 1, "a page that the book does not list", mend)
        })
        .collect()
}

/// Links to files, with their lines: `[text](target)` and `[name]: target` outside code.
fn relative_links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let reference = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        for target in inline.chain(reference.map(|(_, target)| target)) {
            let path = target.split([' ', '#']).next().unwrap_or_default();
            let elsewhere = path.contains("://") || path.starts_with("mailto:");
            if !path.is_empty() && !elsewhere {
                found.push((at + 1, path.trim_matches(['<', '>']).to_owned()));
            }
        }
    }
    found
}

/// `target` as seen from `page`, relative to the root; nothing if it leaves the checkout.
fn resolve(page: &str, target: &str) -> Option<String> {
    let joined = Path::new(page).parent()?.join(target);
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn functions_of_tables_are_in_their_files() {
        let page = TextFile {
            path: "ARCHITECTURE.md".into(),
            text: "| where | `a.rs` `one`, `four` | `b.rs` `two` |\n`a.rs` `three`\n| `a.rs` |\n"
                .into(),
        };
        let texts = |path: &str| match path {
            "a.rs" => Some("pub fn one<T>() {}".to_owned()),
            _ => Some("fn two_more() {}".to_owned()),
        };
        let found: Vec<String> =
            unknown_functions(&page, texts).iter().map(Finding::to_string).collect();
        let expected = [
            "ARCHITECTURE.md:1: a.rs has no function four",
            "ARCHITECTURE.md:1: b.rs has no function two",
            "ARCHITECTURE.md:3: a.rs is named without a function",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        let is_expected = |(found, expected): (&String, &str)| found.starts_with(expected);
        assert!(found.iter().zip(expected).all(is_expected), "{found:?}");
        assert_eq!(unknown_functions(&page, |_| None).len(), 4);
    }

    #[test]
    fn sources_that_are_gone_are_found() {
        let text =
            "`a/src/{b}.rs` and `see src/b.rs`,\n`b.rs`, `src/{b,c}.rs`, src/d.rs, `/src/b.rs`";
        let sources = ["/a/src/b.rs".to_owned()];
        let found = unknown_sources(&page("README.md", text), &sources);
        let found: Vec<_> = found.iter().map(|it| (it.line, &*it.what)).collect();
        assert_eq!(found, [(2, "there is no file src/c.rs"), (2, "there is no file /src/b.rs")]);
        assert_eq!(unknown_sources(&page("CHANGELOG.md", text), &sources), []);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let page = page("docs/src/a.md", "see\n[b](papers/b.md#part) and [c](../../C.md \"c\")\n");
        let found = broken(&page, |path| path == "C.md");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].what.contains("papers/b.md"));
        assert!(broken(&page, |path| ["C.md", "docs/src/papers/b.md"].contains(&path)).is_empty());
    }

    #[test]
    fn a_link_out_of_the_checkout_is_found() {
        assert_eq!(broken(&page("a.md", "[b](../b.md)\n"), |_| true).len(), 1);
    }

    #[test]
    fn code_and_addresses_elsewhere_are_no_links() {
        let text = "```\n[a](b.md)\n```\n`[a](c.md)` [d](https://example.org) [e](#here)\n";
        assert_eq!(relative_links(text), []);
        assert_eq!(relative_links("[name]: there.md\n"), [(1, "there.md".to_owned())]);
    }

    #[test]
    fn a_page_outside_the_contents_is_found() {
        let pages = [page(SUMMARY, "- [A](a.md)\n"), page("docs/src/a.md", "")];
        assert_eq!(unlisted(&pages), []);
        let found = unlisted(&[page(SUMMARY, ""), page("docs/src/a.md", "")]);
        assert_eq!(found[0].file, "docs/src/a.md");
    }
}
