//! Relative links of Markdown pages lead somewhere, and the book lists all of its pages.

use std::io;
use std::path::{Component, Path};

use crate::Finding;
use crate::files::{self, TextFile};

const BOOK: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut pages = files::texts(root)?;
    pages.retain(|file| file.extension() == "md");
    let mut findings: Vec<Finding> =
        pages.iter().flat_map(|page| broken(page, |path| root.join(path).exists())).collect();
    findings.extend(unlisted(&pages));
    Ok(findings)
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

/// The pages of the book that its table of contents does not name.
fn unlisted(pages: &[TextFile]) -> Vec<Finding> {
    let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) else { return Vec::new() };
    let links = relative_links(&summary.text);
    let listed: Vec<String> =
        links.iter().filter_map(|(_, target)| resolve(SUMMARY, target)).collect();
    pages
        .iter()
        .filter(|page| page.path.starts_with(BOOK) && page.path != SUMMARY)
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
    fn code_and_other_sites_are_no_links() {
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
