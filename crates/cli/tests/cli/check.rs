//! `tidegate check`, with every kind of mistake.

use std::fs;

use crate::{tidegate, transcript};

const CASES: &[(&str, &str)] = &[
    ("syntax.toml", "budget = \"100MiB/s\nperiod = \"1s\"\n"),
    ("unknown-field.toml", "[[tenant]]\nname = \"kv\"\nreserve = \"10MiB/s\"\n"),
    ("wrong-type.toml", "[[tenant]]\nname = \"kv\"\nlimit = 100\n"),
    ("missing-field.toml", "budget = \"100MiB/s\"\n\n[[tenant]]\nclass = \"high\"\n"),
    ("no-unit.toml", "period = \"1s\"\nbudget = \"1000\"\n"),
    ("wrong-unit.toml", "[[tenant]]\nname = \"kv\"\nlimit = \"100 MB\"\n"),
    ("class.toml", "[[tenant]]\nname = \"kv\"\nclass = \"hihg\"\n"),
    ("name-taken.toml", "[[tenant]]\nname = \"kv\"\n[[tenant]]\nname = \"kv\"\n"),
    (
        "contradiction.toml",
        "[[tenant]]\nname = \"kv\"\nlimit = \"1MiB/s\"\nreservation = \"2MiB/s\"\n",
    ),
    (
        "unknown-tenant.toml",
        "[[tenant]]\nname = \"backup\"\n[[match]]\ntenant = \"bakcup\"\nprocess = \"tar\"\n",
    ),
    (
        "unreachable-rule.toml",
        "[[tenant]]\nname = \"kv\"\n[[match]]\ntenant = \"kv\"\n[[match]]\ntenant = \"kv\"\n",
    ),
    (
        "gate.toml",
        "[[tenant]]\nname = \"kv\"\n\n[[channel]]\nname = \"c\"\ntenant = \"kv\"\n\
         gates = [{ kind = \"no-op\" }, { kind = \"token-bucket\" }]\n",
    ),
    (
        "row.toml",
        "budget = [\"1GiB/s\", \"20k iops\"]\n\n[[tenant]]\nname = \"kv\"\n\n\
         [[channel]]\nname = \"log\"\ntenant = \"kv\"\ngates = [\n\
         \x20 { kind = \"no-op\" }, { kind = \"no-op\" }, { kind = \"no-op\" },\n\
         \x20 { kind = \"no-op\" }, { kind = \"no-op\" }, { kind = \"no-op\" },\n\
         \x20 { kind = \"latency-probe\" },\n]\n",
    ),
    (
        "infeasible.toml",
        "budget = \"100MiB/s\"\n\n[[tenant]]\nname = \"oltp\"\nreservation = \"80MiB/s\"\n\n\
         [[tenant]]\nname = \"backup\"\nreservation = [\"40MiB/s\", \"10k iops\"]\n",
    ),
    ("umlaut.toml", "# größer als nötig\n[[tenant]]\nname = \"büro\"\n"),
    ("no-budget.toml", "[[tenant]]\nname = \"kv\"\nreservation = \"10MiB/s\"\n"),
    ("empty.toml", ""),
];

#[test]
fn every_mistake_is_shown_with_its_place_and_its_mending() {
    let directory = tempfile::tempdir().unwrap();
    let mut told = String::new();
    for (name, text) in CASES {
        fs::write(directory.path().join(name), text).unwrap();
        let arguments = ["check", name];
        let output = tidegate(directory.path()).args(arguments).output().unwrap();
        told += &(transcript(&arguments, &output) + "\n");
    }
    insta::assert_snapshot!(told);
}

#[test]
fn programs_get_a_verdict_whatever_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let mut told = String::new();
    for (name, text) in CASES {
        if ["no-unit.toml", "infeasible.toml", "no-budget.toml"].contains(name) {
            fs::write(directory.path().join(name), text).unwrap();
            let arguments = ["check", "--json", name];
            let output = tidegate(directory.path()).args(arguments).output().unwrap();
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
            told += &(transcript(&arguments, &output) + "\n");
        }
    }
    insta::assert_snapshot!(told);
}

#[test]
fn a_policy_may_come_through_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let policy = "budget = \"1GiB/s\"\n[[tenant]]\nname = \"kv\"\nreservation = \"1000MiB/s\"\n";
    let good = tidegate(directory.path()).args(["check", "-"]).write_stdin(policy).output();
    let bad = tidegate(directory.path()).args(["check", "-"]).write_stdin("budget = 5").output();
    let told =
        transcript(&["check", "-"], &good.unwrap()) + &transcript(&["check", "-"], &bad.unwrap());
    insta::assert_snapshot!(told);
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let directory = tempfile::tempdir().unwrap();
    let mut check = tidegate(directory.path());
    check.env("LC_ALL", "C").args(["check", "-"]).write_stdin("budget = 5");
    let output = check.output().unwrap();
    assert!(output.stderr.is_ascii());
}
