//! Rules about any text: columns, tabs, trailing blanks, the last newline, banned words.

use crate::Finding;
use crate::files::TextFile;
use crate::source::has_word;

/// The longest line, in characters.
const COLUMNS_MAX: usize = 100;

/// Texts that a reader should never meet: words that put work off, and places that only the author
/// sees. Spelled in halves, so that this file may pass its own rule.
const WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
const PRIVATE_PATHS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("shared/", "notes"),
    concat!("shared/", "seeds"),
    concat!("shared/", "design"),
    concat!("shared/", "style"),
];

pub(super) fn check(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let kind = file.extension();
    let narrow = matches!(kind, "rs" | "toml" | "sh" | "py");
    let plain = narrow || matches!(kind, "md" | "c" | "h" | "cc" | "cpp" | "hpp");
    for (at, line) in file.text.lines().enumerate() {
        let mut find =
            |what: &str, mend: &str| findings.push(Finding::new(&file.path, at + 1, what, mend));
        let columns = line.chars().count();
        // Addresses cannot be broken, nor can the lines of a picture or a sentence that a test
        // expects.
        let expected = ["<", "@\""].iter().any(|start| line.trim_start().starts_with(start));
        if narrow && columns > COLUMNS_MAX && !line.contains("://") && !expected {
            find(&format!("{columns} columns"), "break the line at 100");
        }
        if plain && line.contains('\t') {
            find("a tab", "use spaces");
        }
        if plain && line.ends_with([' ', '\t', '\r']) {
            find("a trailing blank", "remove it");
        }
        for word in WORDS.iter().filter(|word| has_word(line, word)) {
            find(&format!("the word {word}"), "do it, or delete the note");
        }
        for path in PRIVATE_PATHS.iter().filter(|path| names_path(line, path)) {
            find(&format!("a private place ({path})"), "say it here, in the project's own words");
        }
    }
    if plain && !file.text.is_empty() && !file.text.ends_with('\n') {
        let last = file.text.lines().count();
        findings.push(Finding::new(&file.path, last, "no newline at the end", "add one"));
    }
    findings
}

/// Whether `line` names `path` as a path of its own, not as the tail of a longer name.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
            || line[..at].ends_with("..")
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::check_text;

    #[track_caller]
    fn silent(path: &str, text: &str) {
        assert_eq!(check_text(path, text), [""; 0]);
    }

    #[test]
    fn long_lines() {
        let long = format!("# {}\n", "x".repeat(99));
        assert_eq!(check_text("a.sh", &long), ["a.sh:1: 101 columns; break the line at 100"]);
        silent("a.sh", &format!("# {}\n", "ä".repeat(98)));
        silent("a.md", &long);
        silent("a.sh", &format!("# https://example.org/{}\n", "x".repeat(99)));
    }

    #[test]
    fn tabs_and_blanks() {
        assert_eq!(check_text("a.py", "\tpass\n"), ["a.py:1: a tab; use spaces"]);
        assert_eq!(check_text("a.md", "one\ntwo \n"), ["a.md:2: a trailing blank; remove it"]);
        silent("Makefile", "all:\n\ttrue\n");
        silent("a.py", "if x:\n    pass\n");
    }

    #[test]
    fn last_newline() {
        assert_eq!(check_text("a.toml", "a = 1"), ["a.toml:1: no newline at the end; add one"]);
        silent("a.toml", "a = 1\n");
        silent("a.toml", "");
    }

    #[test]
    fn words_that_put_work_off() {
        let word = super::WORDS[0];
        assert_eq!(
            check_text("README", &format!("fine\n{word}: more\n")),
            [format!("README:2: the word {word}; do it, or delete the note")]
        );
        silent("a.sh", "mktemp /tmp/a.XXXXXX\n");
    }

    #[test]
    fn private_paths() {
        let path = super::PRIVATE_PATHS[0];
        assert_eq!(check_text("a.md", &format!("see {path}main\n")).len(), 1);
        assert_eq!(
            check_text("a.md", &format!("see ../{}/x.md\n", super::PRIVATE_PATHS[1])).len(),
            1
        );
        silent("a.md", &format!("see home{path}main\n"));
        silent("a.md", "shared state\n");
    }
}
