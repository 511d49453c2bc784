//! `cargo xtask ns3`: the simulated network beside ns-3, on the same dumbbell.
//!
//! Three senders share a link that marks packets: a long round trip is a slow ramp, a short one a
//! queue that swings. DCTCP and QTCP run at three round-trip times in both simulators, and what
//! each flow gets and how long the queue is must agree. ns-3 is an oracle that somebody else wrote:
//! its DCTCP and its queue know nothing of ours.
//!
//! The first part of each run does not count: where windows are a packet per round trip away from
//! each other, tens of milliseconds pass until they are not, and how long exactly depends on what
//! is not compared here (how a cut is spread over its round trip). Two flows of DCTCP that want
//! more than they get are equals, and over 50 ms chance says which of them is ahead, in ns-3 by up
//! to a fourth; so what the two get on average is compared. Here ten times as much time is counted,
//! which costs less than a tenth as much.

use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;

const USAGE: &str = "\
Runs one dumbbell in ns-3 and here, and compares.

Usage: cargo xtask ns3      needs g++ and Debian's libns3-dev (make validate-ns3 installs them)

Exit codes: 0 agrees, or skipped with a printed reason, 1 differs, 2 usage.";

/// Round-trip time without queues in microseconds; how long to simulate, and how much of that is
/// not counted, in milliseconds.
const RUNS: [[u32; 3]; 3] = [[25, 50, 10], [62, 80, 30], [98, 120, 70]];
/// How many times as much is counted here.
const LONGER: u32 = 10;
/// How far what a flow gets may lie from ns-3's, and the mean queue. ns-3 is no surer than that of
/// the lowest flow: with the window as a bound of Q, which is hardly ever in force with windows of
/// this size, ns-3 itself gives it 16.8 instead of 15.8 Gbit/s at 98 us.
const GOODPUT: f64 = 0.06;
const QUEUE: f64 = 0.10;
/// How many times as fast as ns-3 this is at least, by processor time.
const SPEED: f64 = 50.0;

const LIBRARIES: &str = include_str!("../../validation/ns3/libraries");

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    match arguments {
        [] => {}
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    if let Some(missing) = missing() {
        println!("skipped: {missing}");
        let is_wanted = std::env::var_os("TIDEGATE_NO_SKIP").is_some();
        return if is_wanted { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    match compare(root) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// What is not installed here.
fn missing() -> Option<String> {
    let is_there = Command::new("g++").arg("--version").output().is_ok();
    if !is_there {
        return Some("there is no g++; apt-get install g++".into());
    }
    let header = Path::new("/usr/include/ns3/core-module.h");
    (!header.exists()).then(|| "ns-3 is not installed; apt-get install libns3-dev".into())
}

/// What one simulator says of one run.
struct Outcome {
    goodput: Vec<f64>,
    queue: f64,
    /// Millions in a second of processor time.
    speed: f64,
    /// Processor time for a simulated second.
    cost: f64,
}

fn compare(root: &Path) -> Result<bool, String> {
    let oracle = build(root)?;
    let mut agrees = true;
    println!("RTT  LAW    WHO       HIGH   MEDIUM      LOW Gbps    QUEUE  M EVENTS/s  CPU s/s");
    for [rtt, ms, skip] in RUNS {
        for law in ["dctcp", "qtcp"] {
            let longer = skip + LONGER * (ms - skip);
            let run = [rtt, longer, skip].map(|number| number.to_string());
            let theirs = [
                format!("--rtt={rtt}"),
                format!("--ms={ms}"),
                format!("--skip={skip}"),
                format!("--qtcp={}", law == "qtcp"),
            ];
            let theirs = outcome(Command::new(&oracle).args(theirs), ms)?;
            let example = ["run", "--release", "--quiet", "--package", "tidegate-sim"];
            let mut ours = Command::new("cargo");
            ours.current_dir(root).args(example).args(["--example", "dumbbell", "--", law]);
            let ours = outcome(ours.args(run), longer)?;
            print_row(rtt, law, "ns-3", &theirs);
            print_row(rtt, law, "here", &ours);
            agrees &= judge(law, &theirs, &ours);
        }
    }
    Ok(agrees)
}

fn build(root: &Path) -> Result<std::path::PathBuf, String> {
    let out = root.join("target/ns3-dumbbell");
    let libraries = LIBRARIES.split_whitespace().map(|name| format!("-l{name}"));
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-std=c++17"]).arg(root.join("validation/ns3/dumbbell.cc"));
    let built = compiler.arg("-o").arg(&out).args(libraries).status();
    match built {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => Err(format!("g++ could not build validation/ns3/dumbbell.cc: {status}")),
        Err(error) => Err(format!("g++: {error}")),
    }
}

fn outcome(command: &mut Command, milliseconds: u32) -> Result<Outcome, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    let bad = |what: &str| format!("{command:?}: {what}\n{says}");
    if !output.status.success() {
        return Err(bad(&output.status.to_string()));
    }
    let value: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| bad(&error.to_string()))?;
    let number = |key: &str| value[key].as_f64().ok_or_else(|| bad(key));
    let flows = value["goodput_gbps"].as_array().ok_or_else(|| bad("goodput_gbps"))?;
    let seconds = number("cpu_seconds")?;
    Ok(Outcome {
        goodput: flows.iter().filter_map(Value::as_f64).collect(),
        queue: number("queue_mean")?,
        speed: number("events")? / seconds / 1e6,
        cost: seconds * 1e3 / f64::from(milliseconds),
    })
}

fn print_row(rtt: u32, law: &str, who: &str, outcome: &Outcome) {
    let flows: String = outcome.goodput.iter().map(|gbps| format!("{gbps:>9.2}")).collect();
    let Outcome { queue, speed, cost, .. } = outcome;
    println!("{rtt:>3}  {law:<6} {who}{flows}      {queue:>7.1} {speed:>11.2} {cost:>8.1}");
}

/// Says what differs; whether nothing does.
fn judge(law: &str, theirs: &Outcome, ours: &Outcome) -> bool {
    let mut agrees = theirs.goodput.len() == 3 && ours.goodput.len() == 3;
    let mut hold = |what: &str, theirs: f64, ours: f64, within: f64| {
        let apart = (ours / theirs - 1.0).abs();
        if apart.is_nan() || apart > within {
            println!("     differs: {what} is {:.1} % from ns-3's", apart * 100.0);
            agrees = false;
        }
    };
    let compared = |outcome: &Outcome| match (law, &outcome.goodput[..]) {
        ("dctcp", [high, medium, low]) => vec![(high + medium) / 2.0, *low],
        (_, flows) => flows.to_vec(),
    };
    for (theirs, ours) in compared(theirs).into_iter().zip(compared(ours)) {
        hold(&format!("the goodput of {ours:.2}"), theirs, ours, GOODPUT);
    }
    hold("the mean queue", theirs.queue, ours.queue, QUEUE);
    let speed = theirs.cost / ours.cost;
    println!("     {speed:.0} times as fast");
    if speed < SPEED {
        println!("     differs: {SPEED} times are promised");
        agrees = false;
    }
    agrees
}
