//! Exit codes, and what is said with them.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::{tidegate, transcript};

fn transcript_of(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("good.toml"), "[[tenant]]\nname = \"kv\"\n").unwrap();
    let output = tidegate(directory.path()).args(arguments).output().unwrap();
    transcript(arguments, &output)
}

#[test]
fn without_a_controller_commands_explain_how_to_start_one() {
    let all = [
        transcript_of(&["apply", "good.toml"]),
        transcript_of(&["status"]),
        transcript_of(&["top", "--plain"]),
        transcript_of(&["top", "--json"]),
        transcript_of(&["status", "--json", "--socket", "elsewhere.sock"]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_policy_that_cannot_be_read_is_invalid() {
    let all = [
        transcript_of(&["check", "nowhere.toml"]),
        transcript_of(&["apply", "."]),
        transcript_of(&["up", "--policy", "nowhere.toml", "--json"]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn an_invalid_command_line_is_refused() {
    let all = [
        transcript_of(&["check"]),
        transcript_of(&["chekc", "good.toml"]),
        transcript_of(&["apply", "good.toml", "--expect", "0"]),
        transcript_of(&["top", "--interval", "5"]),
        transcript_of(&["top", "--interval", "1ms"]),
        transcript_of(&["up", "--no-http", "--http", "127.0.0.1:1"]),
        transcript_of(&["up", "--http", "7171"]),
        transcript_of(&["run", "--tennant", "kv", "--", "true"]),
        transcript_of(&["run", "--quiet", "--report", "true"]),
        transcript_of(&["completions", "tcsh"]),
        transcript_of(&["completions", "tcsh", "--json"]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn usage_shows_no_option_of_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = tidegate(directory.path());
    let output = command.arg("explain").env("TIDEGATE_SOCKET", "a.sock").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("Usage: tidegate explain ") && !text.contains("--socket"), "{text}");
}

/// A socket in the environment is no second choice: it is there for all other commands.
#[test]
fn a_program_has_one_controller() {
    let there = ["run", "--controller", "storage.example.com:7300", "--tls", "nowhere"];
    let both = [&there[..], &["--socket", "here.sock", "--", "true"]].concat();
    let one = [&there[..], &["--", "true"]].concat();
    let all = [transcript_of(&both), transcript_of(&one)];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_program_is_not_started_without_a_shim() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = tidegate(directory.path());
    let arguments = ["run", "--tenant", "kv", "--", "true"];
    let output = run.env("TIDEGATE_SHIM", "no-shim.so").args(arguments).output().unwrap();
    insta::assert_snapshot!(transcript(&arguments, &output));
}

#[test]
fn flags_can_be_set_in_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let status = |name: &str, value: &str| {
        let mut status = tidegate(directory.path());
        let output = status.env(name, value).arg("status").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(status("TIDEGATE_SOCKET", "there.sock").contains("listens at there.sock"));
    assert!(status("TIDEGATE_JSON", "1").starts_with("{\"error\":"));
    assert!(!status("TIDEGATE_JSON", "0").starts_with("{"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    // The pages of all commands are more than a pipe holds, so that the write fails for certain.
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["completions", "zsh", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut complained = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(complained, "");
}

#[test]
fn a_command_that_has_moved_names_its_successor() {
    let moved: [(&[&str], &str); 5] = [
        (&["repro", "e2e", "7", "--json"], "run: tidegate-lab repro e2e 7 --json"),
        (
            &["load", "nbd://host/volume", "--help"],
            "run: tidegate-lab load nbd://host/volume --help",
        ),
        (&["kv", "bench", "--at", "m.sock"], "run: tidegate-lab kv --at m.sock"),
        (
            &["sim", "--", "a b.toml", "$(it's)", ""],
            r"run: tidegate-lab sim -- 'a b.toml' '$(it'\''s)' ''",
        ),
        (&["help", "demo"], "run: tidegate-lab demo"),
    ];
    let directory = tempfile::tempdir().unwrap();
    for (typed, command) in moved {
        let output = tidegate(directory.path()).args(typed).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("has moved to `tidegate-lab") && error.contains(command), "{error}");
    }
}
