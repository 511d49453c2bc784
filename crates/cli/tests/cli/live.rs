//! With a controller: apply, status, top, and the end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::terminal::{on_a_terminal, shown_until};
use crate::{tidegate, transcript};

const POLICY: &str = "\
budget = \"100MiB/s\"

[[tenant]]
name = \"oltp\"
reservation = \"60MiB/s\"

[[tenant]]
name = \"backup\"
limit = \"20MiB/s\"
";

/// A controller in a directory of its own, ended when this is dropped.
struct Up {
    child: Child,
    ready: Value,
}

impl Up {
    /// Starts a controller and waits for it to say that it is ready.
    fn start(directory: &Path, more: &[&str]) -> Self {
        Self::start_with(directory, more, Stdio::inherit())
    }

    /// The same with a log of its own.
    fn start_with(directory: &Path, more: &[&str], log: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["up", "--json", "--no-http", "--state", "state", "--socket", "c.sock"])
            .args(more)
            .current_dir(directory)
            .env_remove("TIDEGATE_SOCKET")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, ready: serde_json::from_str(&line).unwrap() }
    }

    /// Sends SIGTERM and waits for the end.
    fn end(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn transcript_of(directory: &Path, arguments: &[&str]) -> String {
    let mut command = tidegate(directory);
    let output = command.env("TIDEGATE_SOCKET", "c.sock").args(arguments).output().unwrap();
    transcript(arguments, &output)
}

#[test]
fn every_line_of_the_log_is_an_object_where_programs_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let log = fs::File::create(directory.join("log")).unwrap();
    let up = Up::start_with(directory, &["--log-format", "json"], log.into());
    fs::write(directory.join("policy.toml"), POLICY).unwrap();
    transcript_of(directory, &["apply", "policy.toml"]);
    let pid = up.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(directory.join("log")).unwrap().contains("SIGHUP: ") {
        assert!(Instant::now() < deadline, "SIGHUP is not logged");
        thread::yield_now();
    }
    assert_eq!(up.end(), Some(0));
    let log = fs::read_to_string(directory.join("log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        let (module, part) = (&line["target"], &line["span"]["name"]);
        assert!(module.is_string() && part == "controller", "{line}");
    }
    let applied = |line: &&Value| line["fields"]["message"] == "policy applied";
    let applied = lines.iter().find(applied).unwrap_or_else(|| panic!("no policy in {log}"));
    assert_eq!((&applied["level"], &applied["fields"]["revision"]), (&"INFO".into(), &1.into()));
    assert_eq!(applied["target"], "tidegate_controller::log");
    assert!(applied["timestamp"].as_str().unwrap().ends_with('Z'), "{applied}");
}

#[test]
fn a_policy_is_applied_compared_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("one.toml"), POLICY).unwrap();
    let more = POLICY.replace("60MiB/s", "70MiB/s").replace("limit", "weight = 50\nlimit");
    fs::write(directory.join("two.toml"), more).unwrap();

    let up = Up::start(directory, &[]);
    assert_eq!(up.ready["ready"], true);
    assert_eq!(up.ready["revision"], 0);
    let all = [
        transcript_of(directory, &["apply", "one.toml", "--dry-run"]),
        transcript_of(directory, &["apply", "one.toml"]),
        transcript_of(directory, &["apply", "one.toml"]),
        transcript_of(directory, &["apply", "two.toml", "--expect", "7"]),
        transcript_of(directory, &["apply", "two.toml", "--expect", "1", "--dry-run"]),
        transcript_of(directory, &["apply", "two.toml", "--json"]),
    ];
    insta::assert_snapshot!(all.join("\n"));
    assert_eq!(up.end(), Some(0));

    let up = Up::start(directory, &[]);
    assert_eq!(up.ready["revision"], 2);
    assert_eq!(up.ready["tenants"], 2);
    assert_eq!(up.end(), Some(0));
    assert!(!directory.join("c.sock").exists());
}

#[test]
fn a_controller_starts_with_the_policy_that_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("one.toml"), POLICY).unwrap();
    let up = Up::start(directory, &["--policy", "one.toml"]);
    assert_eq!(up.ready["revision"], 1);

    let status = transcript_of(directory, &["status"]);
    let tenants = status.split("\n\n").nth(1).unwrap();
    insta::assert_snapshot!(tenants);

    let status = transcript_of(directory, &["status", "--json"]);
    let status: Value = serde_json::from_str(status.lines().nth(1).unwrap()).unwrap();
    assert_eq!(status["budget_bytes_per_second"], 100 << 20);
    assert_eq!(status["tenants"][0]["reservation_bytes_per_second"], 60 << 20);
    drop(up);
}

#[test]
fn top_stops_after_the_given_count() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("one.toml"), POLICY).unwrap();
    let up = Up::start(directory, &["--policy", "one.toml"]);

    let lines = transcript_of(directory, &["top", "--interval", "50ms", "--count", "3"]);
    assert_eq!(lines.matches("TENANT").count(), 1, "{lines}");
    assert_eq!(lines.matches(" oltp ").count(), 3, "{lines}");
    assert!(lines.ends_with("exit 0\n"), "{lines}");

    let objects =
        transcript_of(directory, &["top", "--json", "--interval", "50ms", "--count", "2"]);
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap()["at_ms"].as_u64();
    let times: Vec<_> = objects.lines().skip(1).take(2).map(parse).collect();
    assert!(times[0] < times[1], "{objects}");
    drop(up);
}

#[test]
fn a_second_controller_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let up = Up::start(directory, &[]);
    let second = ["up", "--no-http", "--state", "other"];
    let text = transcript_of(directory, &second).replace(&up.child.id().to_string(), "PID");
    insta::assert_snapshot!(text);
    drop(up);
}

const TOP: &str = concat!(env!("CARGO_BIN_EXE_tidegate"), " top --interval 50ms --socket c.sock");

#[test]
fn top_gives_the_terminal_back() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let up = Up::start(directory, &[]);
    // The count ends it if the key is not read.
    let mut script = on_a_terminal(directory, &format!("exec {TOP} --count 400"));
    let mut screen = script.stdout.take().unwrap();
    // The last line that is drawn names the keys.
    let first = shown_until(&mut screen, "quit");
    script.stdin.take().unwrap().write_all(b"q").unwrap();
    let rest = shown_until(&mut screen, "never shown");
    assert!(script.wait().unwrap().success(), "{first:?} {rest:?}");
    assert!(first.contains("\x1b[?1049h"), "{first:?}");
    assert!(rest.contains("\x1b[?1049l"), "{rest:?}");
    // Every picture hides the cursor anew.
    assert!(rest.matches("\x1b[?25l").count() < 300, "{rest:?}");
    drop(up);
}

#[test]
fn top_exits_with_its_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let up = Up::start(directory, &[]);
    // A pipe with a name outlives the terminal, and is closed by the last that has it open.
    assert!(Command::new("mkfifo").arg("alive").current_dir(directory).status().unwrap().success());
    let command =
        format!("exec 9> alive; trap : HUP; timeout --foreground -s KILL 60 {TOP}; echo $? >&9");
    let mut script = on_a_terminal(directory, &command);
    let mut alive = fs::File::open(directory.join("alive")).unwrap();
    shown_until(&mut script.stdout.take().unwrap(), "quit");
    script.kill().unwrap();
    script.wait().unwrap();
    let mut code = String::new();
    alive.read_to_string(&mut code).unwrap();
    // 128 and SIGHUP, not 137: it went by itself.
    assert_eq!(code.trim(), "129");
    drop(up);
}
