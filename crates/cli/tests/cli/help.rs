//! Help texts, completions and manual pages of the commands.

use crate::tidegate;

const COMMANDS: [&str; 14] = [
    "up",
    "volume",
    "apply",
    "check",
    "certify",
    "run",
    "status",
    "scheduler",
    "top",
    "explain",
    "record",
    "kv",
    "completions",
    "man",
];

fn stdout_of(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate(directory.path()).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The help of one command. Lines end without blanks, as golden files do.
fn help(command: &str) -> String {
    let text = stdout_of(&[command, "--help"]);
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn help_is_what_it_was() {
    for command in COMMANDS {
        insta::assert_snapshot!(format!("help-{command}"), help(command));
    }
}

#[test]
fn the_first_help_lists_every_command_and_every_exit_code() {
    let text = stdout_of(&["--help"]);
    for command in COMMANDS {
        assert!(text.contains(&format!("\n  {command} ")), "{command}\n{text}");
    }
    for code in ["0  ok", "3  an invalid", "4  an infeasible", "5  no controller", "99  a prom"] {
        assert!(text.contains(code), "{code}\n{text}");
    }
}

#[test]
fn every_shell_gets_a_script_with_every_command() {
    for (shell, sign) in [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        let script = stdout_of(&["completions", shell]);
        assert!(script.contains(sign), "{shell}");
        assert!(script.contains("dry-run") && script.contains("fail-closed"), "{shell}");
        assert!(!script.contains("repro"), "{shell} completes commands of another program");
    }
}

#[test]
fn every_command_has_a_page_in_the_manual() {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate(directory.path()).args(["man", "pages"]).output().unwrap();
    let written = String::from_utf8(output.stdout).unwrap();
    for page in ["tidegate.1", "tidegate-up.1", "tidegate-run.1", "tidegate-top.1"] {
        assert!(written.contains(&format!("pages/{page}\n")), "{page}\n{written}");
        let text = std::fs::read_to_string(directory.path().join("pages").join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{page}");
    }
}
