//! Help texts and manual pages.

use std::fs;
use std::path::Path;

use crate::tidegate_lab;

const COMMANDS: [&str; 8] = ["demo", "sim", "repro", "bench", "load", "kv", "completions", "man"];

fn output_of(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate_lab(directory.path()).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Lines end without blanks, as golden files do.
#[test]
fn help_is_what_it_was() {
    let text = output_of(&["sim", "--help"]);
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    insta::assert_snapshot!("help-sim", text);
}

#[test]
fn the_first_help_lists_every_command_and_the_book_has_a_section_for_each() {
    let text = output_of(&["--help"]);
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/commands.md");
    let book = fs::read_to_string(book).unwrap();
    for command in COMMANDS {
        assert!(text.contains(&format!("\n  {command} ")), "{command}\n{text}");
        let shared = ["completions", "man"].contains(&command);
        let section = format!("\n## `tidegate-lab {command}`");
        assert!(shared || book.contains(&section), "no section for {command}");
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate_lab(directory.path()).args(["man", "pages"]).output().unwrap();
    let written = String::from_utf8(output.stdout).unwrap();
    for command in COMMANDS {
        let page = format!("pages/tidegate-lab-{command}.1");
        assert!(written.contains(&page), "{page}\n{written}");
        assert!(fs::read_to_string(directory.path().join(page)).unwrap().contains(".SH SYNOPSIS"));
    }
}
