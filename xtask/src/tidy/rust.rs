//! Rules about Rust that neither the compiler nor clippy keeps: lengths, heads, sleeps, names,
//! texts of log lines.

use super::exceptions::{Rule, excepted};
use super::retired;
use crate::Finding;
use crate::files::TextFile;
use crate::source::{self, Line, has_word, is_noun, words};

const FUNCTION_LINES_MAX: usize = 60;
const FILE_LINES_MAX: usize = 600;

/// The rings that know no clock, no thread, no socket and no global.
const PURE_RINGS: &[&str] = &[
    "crates/model/src/",
    "crates/algo/src/",
    "crates/wire/src/",
    "crates/proto/src/",
    "crates/onesided/src/",
];

/// The heads of the macros that write a line of the log.
const LOG_CALLS: &[&str] = &[
    "tracing::trace!(",
    "tracing::debug!(",
    "tracing::info!(",
    "tracing::warn!(",
    "tracing::error!(",
];

/// Nouns that name nothing.
const EMPTY_NOUNS: &[&str] = &["manager", "helper", "util"];

pub(super) fn check(file: &TextFile) -> Vec<Finding> {
    let lines = source::lines(&file.text);
    let text_lines: Vec<&str> = file.text.lines().collect();
    let mut file_check = FileCheck { path: &file.path, lines: &lines, findings: Vec::new() };
    file_check.head(&file.text);
    file_check.lengths();
    for at in 0..lines.len() {
        file_check.purity(at);
        file_check.sleeps(at);
        file_check.log_texts(at, &text_lines[at..]);
        file_check.names(at);
    }
    file_check.findings.extend(retired::check(file, &lines));
    file_check.findings
}

/// One file under inspection.
struct FileCheck<'a> {
    path: &'a str,
    lines: &'a [Line],
    findings: Vec<Finding>,
}

impl FileCheck<'_> {
    fn find(&mut self, at: usize, what: impl Into<String>, mend: &str) {
        self.findings.push(Finding::new(self.path, at + 1, what, mend));
    }

    fn is_test(&self, at: usize) -> bool {
        self.lines[at].test || is_test_file(self.path)
    }

    /// A crate's first lines tell a newcomer what it is.
    fn head(&mut self, text: &str) {
        let root = self.path.ends_with("src/lib.rs") || self.path.ends_with("src/main.rs");
        let is_documented = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
        if root && !is_documented {
            self.find(0, "a crate without a head comment", "open with `//!` and what it is for");
        }
    }

    fn lengths(&mut self) {
        let own = self.lines.iter().filter(|line| !line.test).count();
        if own > FILE_LINES_MAX && !excepted(Rule::LongFile, self.path, "") {
            self.find(
                FILE_LINES_MAX,
                format!("{own} lines before tests"),
                "split the file by nouns, at most 600 lines each",
            );
        }
        for function in source::functions(self.lines) {
            let length = function.last - function.first + 1;
            if length > FUNCTION_LINES_MAX
                && !excepted(Rule::LongFunction, self.path, &function.name)
            {
                self.find(
                    function.first,
                    format!("`{}` has {length} lines", function.name),
                    "split it, at most 60 lines each",
                );
            }
        }
    }

    fn purity(&mut self, at: usize) {
        if self.is_test(at) || !PURE_RINGS.iter().any(|ring| self.path.starts_with(ring)) {
            return;
        }
        if self.lines[at].code.contains("extern crate std") {
            let mend = "this crate is pure: use core and alloc, or move it outward";
            self.find(at, "`extern crate std` in a pure ring", mend);
        }
    }

    fn sleeps(&mut self, at: usize) {
        let sleeps = has_word(&self.lines[at].code, "thread::sleep");
        if sleeps && self.is_test(at) && !excepted(Rule::Sleep, self.path, "") {
            self.find(at, "a test that sleeps", "wait for the condition, with a deadline");
        }
    }

    /// The text of a log line is fixed, so that programs find it; values are fields. `rest` is the
    /// file from this line on.
    fn log_texts(&mut self, at: usize, rest: &[&str]) {
        let code = &self.lines[at].code;
        let Some(call) = LOG_CALLS.iter().find(|call| code.contains(**call)) else { return };
        let text = rest.join("\n");
        let call = text.find(call).map_or("", |start| &text[start..]);
        if !self.is_test(at) && has_placeholder(call) {
            self.find(at, "a value in the text of a log line", "make it a field, as `%error`");
        }
    }

    fn names(&mut self, at: usize) {
        let code = &self.lines[at].code;
        let Some(name) = type_name(code) else { return };
        let is_empty = |word: &&str| EMPTY_NOUNS.iter().any(|noun| is_noun(word, noun));
        if let Some(word) = words(name).find(is_empty) {
            let what = format!("`{name}` says {word}");
            self.find(at, what, "name what it is or does, in a noun one could say aloud");
        }
    }
}

/// Whether a string of the macro call at the head of `text` has a placeholder: `{` outside of
/// `{{`.
fn has_placeholder(text: &str) -> bool {
    let (mut depth, mut is_string) = (0, false);
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if is_string => drop(chars.next()),
            '"' => is_string = !is_string,
            '{' if is_string && chars.next_if_eq(&'{').is_none() => return true,
            _ if is_string => {}
            '(' => depth += 1,
            ')' if depth == 1 => return false,
            ')' => depth -= 1,
            _ => {}
        }
    }
    false
}

/// Whether all of a file is for tests or benches.
pub(super) fn is_test_file(path: &str) -> bool {
    let folders = ["tests/", "benches/", "fuzz/"];
    let named = ["/tests.rs", "_test.rs", "_tests.rs", "_fuzz.rs"];
    folders.iter().any(|folder| path.starts_with(folder) || path.contains(&format!("/{folder}")))
        || named.iter().any(|name| path.ends_with(name))
}

/// The name of the type that a line of code declares.
pub(super) fn type_name(code: &str) -> Option<&str> {
    let mut tokens = code.split_whitespace().skip_while(|token| {
        token.starts_with("pub") || matches!(*token, "unsafe" | "auto") || token.ends_with(')')
    });
    let keyword = tokens.next()?;
    if !matches!(keyword, "struct" | "enum" | "union" | "trait" | "type") {
        return None;
    }
    let rest = tokens.next()?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use crate::tidy::check_text;

    #[track_caller]
    fn finds(path: &str, text: &str, what: &str) {
        let found = check_text(path, text);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(what), "{found:#?}");
    }

    #[track_caller]
    fn silent(path: &str, text: &str) {
        assert_eq!(check_text(path, text), [""; 0]);
    }

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions() {
        finds("crates/cli/src/a.rs", &function_of(61), ":1: `long` has 61 lines; split it");
        silent("crates/cli/src/a.rs", &function_of(60));
    }

    #[test]
    fn long_files() {
        let text = "const A: u8 = 1;\n".repeat(601);
        finds("crates/cli/src/a.rs", &text, "601 lines before tests");
        let tests = "#[cfg(test)]\nmod tests {\n    const A: u8 = 1;\n}\n";
        let text = "const A: u8 = 1;\n".repeat(600) + &tests.repeat(100);
        silent("crates/cli/src/a.rs", &text);
    }

    #[test]
    fn pure_rings() {
        finds("crates/model/src/a.rs", "extern crate std;\n", "`extern crate std`");
        silent("crates/algo/src/a.rs", "#[cfg(test)]\nextern crate std;\n");
        silent("crates/algo/src/a.rs", "// extern crate std\nuse core::fmt;\n");
        silent("crates/algo/tests/a.rs", "extern crate std;\n");
        silent("crates/stage/src/a.rs", "extern crate std;\n");
    }

    #[test]
    fn sleeps() {
        let text = "fn a() {\n    std::thread::sleep(A);\n}\n";
        finds("tests/tests/a.rs", text, ":2: a test that sleeps");
        finds("crates/cli/src/a.rs", &format!("#[cfg(test)]\n{text}"), "a test that sleeps");
        silent("crates/cli/src/a.rs", text);
        silent("tests/src/lib.rs", &format!("//! Waiting.\n{text}"));
    }

    #[test]
    fn values_in_log_texts() {
        let text = "fn a() {\n    tracing::warn!(node, \"{node} is away\");\n}\n";
        finds("crates/node/src/a.rs", text, ":2: a value in the text of a log line");
        let text = "fn a() {\n    tracing::info!(\n        a,\n        \"a \\\"{a}\"\n    );\n}\n";
        finds("crates/node/src/a.rs", text, ":2: a value in the text of a log line");
        silent("crates/node/src/a.rs", "fn a() {\n    tracing::warn!(a = b(), \"{{}}\");\n}\n");
        let text = "fn a() {\n    tracing::warn!(\"b\");\n    c(\"{d}\");\n}\n";
        silent("crates/node/src/a.rs", text);
        silent("tests/tests/a.rs", "fn a() {\n    tracing::warn!(\"{b}\");\n}\n");
    }

    #[test]
    fn empty_nouns() {
        finds("crates/cli/src/a.rs", "pub(crate) struct LinkManager {\n}\n", "says Manager");
        finds("crates/cli/src/a.rs", "trait Utils: Sized {}\n", "`Utils` says Utils");
        silent("crates/cli/src/a.rs", "struct Utilization;\nenum Link {}\n");
        silent("crates/cli/src/a.rs", "fn a(helper: Helper) {}\n");
    }

    #[test]
    fn heads() {
        finds("crates/cli/src/main.rs", "fn main() {}\n", "a crate without a head comment");
        silent("crates/cli/src/main.rs", "//! The command.\nfn main() {}\n");
        silent("crates/cli/src/a.rs", "fn a() {}\n");
    }
}
