//! Style checks of the source that a machine can make.
//!
//! Rules about text (`text.rs`) look at every line of every file of a kind; rules about Rust
//! (`rust.rs`) look at code without comments and literals, and one of them at the words of
//! identifiers (`retired.rs`). One rule is about all files together (`type_names.rs`). Where a rule
//! must bend, the exception stands in one table with its reason (`exceptions.rs`), so that the rule
//! itself stays simple.

use std::io;
use std::path::Path;

use crate::Finding;
use crate::files::{self, TextFile};

mod exceptions;
mod retired;
mod rust;
mod text;
mod type_names;

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let files = files::texts(root)?;
    let mut findings: Vec<Finding> = files.iter().flat_map(check_file).collect();
    findings.extend(type_names::check(&files));
    Ok(findings)
}

/// Everything to mend in one file.
pub fn check_file(file: &TextFile) -> Vec<Finding> {
    let mut findings = text::check(file);
    if file.extension() == "rs" {
        findings.extend(rust::check(file));
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

#[cfg(test)]
fn check_text(path: &str, text: &str) -> Vec<String> {
    let file = TextFile { path: path.into(), text: text.into() };
    check_file(&file).iter().map(Finding::to_string).collect()
}
