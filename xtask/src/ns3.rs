//! `cargo xtask ns3`: the simulated network beside ns-3, on the same dumbbell.
//!
//! Three senders share a link that marks packets: a long round trip is a slow ramp, a short one a
//! queue that swings. DCTCP and QTCP run at three round-trip times in both simulators, and what
//! each flow gets and how long the queue is must agree. ns-3 is an oracle that somebody else wrote:
//! its DCTCP and its queue know nothing of ours.
//!
//! QTCP is written twice, there from the paper's equations on top of ns-3's DCTCP.
//!
//! The first part of each run does not count: windows grow by a packet in a round trip, and how
//! soon they are where they stay depends on what is not compared here, how a cut is spread over
//! its round trip. ns-3 spreads it, ours is at once. Then 50 ms of ns-3 or more count, in parts of
//! 10 ms. How far these lie apart says how sure their mean is, and a run whose mean is less sure
//! than [`CHANCE`] of what is allowed has failed: it compares nothing. Here ten times as much time
//! is counted, which costs less than a tenth as much.
//!
//! That is also what remains of a difference: `target/ns3-dumbbell --spread=false` has ns-3 cut at
//! once, and then QTCP's flows and queues were within 0.6 % of ours at 25 and 98 us, and as steady.
//!
//! Two flows of DCTCP that want more than they get are equals, and over 50 ms chance says which of
//! them is ahead, in ns-3 by up to a fourth; so what the two get on average is compared.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use serde_json::Value;

const USAGE: &str = "\
Runs one dumbbell in ns-3 and here, and compares.

Usage: cargo xtask ns3      needs g++ and Debian's libns3-dev (make validate-ns3 installs them)

Exit codes: 0 agrees, or skipped with a printed reason, 1 differs, 2 usage.";

/// One dumbbell.
#[derive(Clone, Copy, Debug)]
struct DumbbellRun {
    /// Round-trip time without queues, in microseconds.
    rtt: u32,
    /// How much does not count, in milliseconds.
    skip: u32,
    /// How much then counts in ns-3, in milliseconds: of DCTCP and of QTCP.
    counts: [u32; 2],
}

/// The time that does not count is about twice the longest ramp: by 98 us and a queue of 140, 956
/// packets are under way, of which high of QTCP is promised 478. The first marks leave it some 100,
/// so 378 round trips of 98 to 115 us are missing, which is 40 ms. By 62 and 25 us it is 16 and 3.
///
/// The time that counts follows from [`CHANCE`]. In ns-3 the goodput of a QTCP flow in 10 ms
/// deviates by up to 2 %, for which five parts are enough. Low of DCTCP asks for little less than
/// an even share: now and then it falls back and catches up later. It deviates by 4 % by 25 us and
/// 5 % by 98 us.
const RUNS: [DumbbellRun; 3] = [
    DumbbellRun { rtt: 25, skip: 10, counts: [100, 50] },
    DumbbellRun { rtt: 62, skip: 30, counts: [100, 50] },
    DumbbellRun { rtt: 98, skip: 70, counts: [150, 50] },
];
const ALGORITHMS: [&str; 2] = ["dctcp", "qtcp"];
/// How many times as much is counted here.
const LONGER: u32 = 10;
/// How far what a flow gets may lie from ns-3's, and the mean queue.
const GOODPUT: f64 = 0.05;
const QUEUE: f64 = 0.10;
/// How large the standard error of ns-3's mean may be, as a part of that: what is allowed is three
/// of them at least, so that chance alone makes more in one of 370 cases.
const CHANCE: f64 = 1.0 / 3.0;
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

/// Returns the tool that is not installed here, with the command that installs it.
fn missing() -> Option<String> {
    let is_there = Command::new("g++").arg("--version").output().is_ok();
    if !is_there {
        return Some("there is no g++; apt-get install g++".into());
    }
    let header = Path::new("/usr/include/ns3/core-module.h");
    (!header.exists()).then(|| "ns-3 is not installed; apt-get install libns3-dev".into())
}

/// The results of one run in one simulator.
struct Measurements {
    goodput: Vec<f64>,
    queue: f64,
    /// The flows' goodput and the mean queue in each part of the time that counts, as far as the
    /// simulator reports them.
    batches: Vec<Vec<f64>>,
    /// Millions in a second of processor time.
    speed: f64,
    /// Processor time for a simulated second.
    cost: f64,
}

fn compare(root: &Path) -> Result<bool, String> {
    let oracle = &build(root)?;
    let mut agrees = true;
    println!("RTT  LAW    WHO       HIGH   MEDIUM      LOW Gbps    QUEUE  M EVENTS/s  CPU s/s");
    for run in RUNS {
        // Both algorithms at a time, so that two processors take half as long.
        let pairs = thread::scope(|scope| {
            let both =
                [0, 1].map(|algorithm| scope.spawn(move || pair(root, oracle, algorithm, run)));
            both.map(|pair| pair.join().unwrap_or_else(|_| Err("a thread panicked".into())))
        });
        for (algorithm, pair) in ALGORITHMS.into_iter().zip(pairs) {
            let (theirs, ours) = pair?;
            print_row(run.rtt, algorithm, "ns-3", &theirs);
            print_row(run.rtt, algorithm, "here", &ours);
            agrees &= judge(algorithm, &theirs, &ours);
        }
    }
    Ok(agrees)
}

/// Returns the results of one run by one of the algorithms: those of ns-3, and those of our
/// simulator.
fn pair(
    root: &Path,
    oracle: &Path,
    algorithm: usize,
    run: DumbbellRun,
) -> Result<(Measurements, Measurements), String> {
    let DumbbellRun { rtt, skip, counts } = run;
    let (ms, longer) = (skip + counts[algorithm], skip + LONGER * counts[algorithm]);
    let algorithm = ALGORITHMS[algorithm];
    let theirs = [
        format!("--rtt={rtt}"),
        format!("--ms={ms}"),
        format!("--skip={skip}"),
        format!("--qtcp={}", algorithm == "qtcp"),
    ];
    let theirs = outcome(Command::new(oracle).args(theirs), ms)?;
    let run = [rtt, longer, skip].map(|number| number.to_string());
    let example = ["run", "--release", "--quiet", "--package", "tidegate-netsim"];
    let mut ours = Command::new("cargo");
    ours.current_dir(root).args(example).args(["--example", "dumbbell", "--", algorithm]);
    Ok((theirs, outcome(ours.args(run), longer)?))
}

fn build(root: &Path) -> Result<std::path::PathBuf, String> {
    let out = root.join("target/ns3-dumbbell");
    fs::create_dir_all(root.join("target")).map_err(|error| format!("target: {error}"))?;
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

fn outcome(command: &mut Command, milliseconds: u32) -> Result<Measurements, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let bad = |what: &str| format!("{command:?}: {what}\n{stderr}");
    if !output.status.success() {
        return Err(bad(&output.status.to_string()));
    }
    let value: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| bad(&error.to_string()))?;
    let number = |key: &str| value[key].as_f64().ok_or_else(|| bad(key));
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let seconds = number("cpu_seconds")?;
    Ok(Measurements {
        goodput: numbers(&value["goodput_gbps"]),
        queue: number("queue_mean")?,
        batches: value["parts"].as_array().into_iter().flatten().map(numbers).collect(),
        speed: number("events")? / seconds / 1e6,
        cost: seconds * 1e3 / f64::from(milliseconds),
    })
}

fn print_row(rtt: u32, algorithm: &str, who: &str, outcome: &Measurements) {
    let flows: String = outcome.goodput.iter().map(|gbps| format!("{gbps:>9.2}")).collect();
    let Measurements { queue, speed, cost, .. } = outcome;
    println!("{rtt:>3}  {algorithm:<6} {who}{flows}      {queue:>7.1} {speed:>11.2} {cost:>8.1}");
}

/// Says what differs; whether nothing does.
fn judge(algorithm: &str, theirs: &Measurements, ours: &Measurements) -> bool {
    let mut agrees = theirs.goodput.len() == 3 && ours.goodput.len() == 3;
    let mut least_sure: f64 = 0.0;
    let mut hold = |what: &str, theirs: f64, ours: f64, within: f64, chance: f64| {
        let apart = (ours / theirs - 1.0).abs();
        least_sure = least_sure.max(chance);
        if apart.is_nan() || apart > within {
            println!("     differs: {what} is {:.1} % from ns-3's", apart * 100.0);
            agrees = false;
        }
        if chance.is_nan() || chance > within * CHANCE {
            println!("     unsure: {what} is {:.1} % by chance in ns-3", chance * 100.0);
            agrees = false;
        }
    };
    let batches: Vec<Vec<f64>> =
        theirs.batches.iter().map(|batch| compared(algorithm, batch)).collect();
    let (flows, others) =
        (compared(algorithm, &theirs.goodput), compared(algorithm, &ours.goodput));
    for (at, (theirs, ours)) in flows.into_iter().zip(others).enumerate() {
        let chance = chance(batches.iter().filter_map(|batch| batch.get(at).copied()));
        hold(&format!("the goodput of {ours:.2}"), theirs, ours, GOODPUT, chance);
    }
    let chance = chance(theirs.batches.iter().filter_map(|batch| batch.get(3).copied()));
    hold("the mean queue", theirs.queue, ours.queue, QUEUE, chance);
    let speed = theirs.cost / ours.cost;
    println!("     by chance {:.1} % at most; {speed:.0} times as fast", least_sure * 100.0);
    if speed.is_nan() || speed < SPEED {
        println!("     differs: {SPEED} times are promised");
        agrees = false;
    }
    agrees
}

/// Returns the goodputs to compare, from those of high, medium and low.
fn compared(algorithm: &str, flows: &[f64]) -> Vec<f64> {
    match (algorithm, flows) {
        ("dctcp", [high, medium, low, ..]) => vec![(high + medium) / 2.0, *low],
        (_, flows) => flows.iter().take(3).copied().collect(),
    }
}

/// The standard error of the mean of these, as a part of it; no number if they are too few.
fn chance(batches: impl Iterator<Item = f64>) -> f64 {
    let batches: Vec<f64> = batches.collect();
    let count = batches.len() as f64;
    let mean = batches.iter().sum::<f64>() / count;
    let squares: f64 = batches.iter().map(|batch| (batch - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(goodput: [f64; 3], queue: f64, cost: f64) -> Measurements {
        let batches = [0.99, 1.0, 1.01, 1.0]
            .map(|times| goodput.iter().chain([&queue]).map(|number| number * times).collect());
        Measurements { goodput: goodput.into(), queue, batches: batches.into(), speed: 1.0, cost }
    }

    #[test]
    fn differences_are_reported() {
        let theirs = outcome([48.0, 32.0, 16.0], 120.0, 100.0);
        let judge = |algorithm, goodput, queue, cost| {
            judge(algorithm, &theirs, &outcome(goodput, queue, cost))
        };
        assert!(judge("qtcp", [47.0, 33.0, 16.7], 130.0, 1.0));
        assert!(!judge("qtcp", [47.0, 33.0, 16.9], 130.0, 1.0), "low has a twentieth more");
        assert!(!judge("qtcp", [47.0, 33.0, 15.1], 130.0, 1.0), "low has a twentieth less");
        assert!(!judge("qtcp", [47.0, 33.0, 16.7], 133.0, 1.0), "the queue is a tenth longer");
        assert!(!judge("qtcp", [47.0, 33.0, f64::NAN], 130.0, 1.0));
        assert!(!judge("qtcp", [47.0, 33.0, 16.7], 130.0, 3.0), "it is slow");
        assert!(!judge("qtcp", [44.0, 36.0, 16.0], 120.0, 1.0), "high and medium are apart");
        assert!(judge("dctcp", [44.0, 36.0, 16.0], 120.0, 1.0), "their mean is the same");
    }

    #[test]
    fn an_oracle_by_chance_is_none() {
        let ours = outcome([48.0, 32.0, 16.0], 120.0, 1.0);
        let mut theirs = outcome([48.0, 32.0, 16.0], 120.0, 100.0);
        assert!(judge("qtcp", &theirs, &ours));
        // Two parts of four a tenth up or down: 8.2 % are deviation, 4.1 % are left in the mean.
        for (batch, times) in theirs.batches.iter_mut().zip([1.1, 0.9, 1.0, 1.0]) {
            batch[2] = 16.0 * times;
        }
        assert!((chance(theirs.batches.iter().map(|batch| batch[2])) - 0.0408).abs() < 1e-4);
        assert!(!judge("qtcp", &theirs, &ours));
        theirs.batches.truncate(1);
        assert!(!judge("qtcp", &theirs, &ours), "one part says nothing of chance");
    }
}
