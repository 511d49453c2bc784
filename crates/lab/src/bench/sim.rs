//! The cost of simulations: events and commands in a second of processor time.
//!
//! - *A dumbbell*: the whole simulation of `tidegate-lab sim`, three senders and one link. ns-3
//!   runs the same one in the same run (`validation/ns3`), where its libraries are installed.
//! - *Hosts*: fat trees of 16, 128 and 1,024, each host of which sends 30 Gbit/s to the one half
//!   the tree away. The time of an event comes from the second half of a run: the time before the
//!   first event does not count, and neither do pages of memory that the run touches first. (The
//!   difference of two runs, one twice as long, would include the memory that each asks the system
//!   for: with 1,024 hosts some 170 MB each.)
//! - *A drive* at a depth of 32, without a network.
//! - *A second of a fat tree* with ten servers, in a process of its own, whose memory is reported,
//!   too.
//!
//! Nothing here waits, so all times are those for which the thread had a processor. Of several runs
//! the fastest counts: other processes on the machine can only make a run slower.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tidegate_model::{Bytes, Class, Portion, Span};
use tidegate_netsim::e2e::{self, Scenario};
use tidegate_netsim::storage::Parameters;
use tidegate_netsim::storage::alone::{self, Arrivals, CommandFlow, Length};

use super::window::WindowPlan;
use super::{Row, child};
use crate::experiment::pace::processor_time;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

const BENCH: &str = "sim";
const DUMBBELL: &str = include_str!("../../../../scenarios/e2e/dumbbell.toml");
const FAT_TREE: &str = include_str!("../../../../scenarios/e2e/fat-tree.toml");
const NS3: &str = "ns-3";
const NS3_SOURCE: &str = include_str!("../../../../validation/ns3/dumbbell.cc");
const NS3_LIBRARIES: &str = include_str!("../../../../validation/ns3/libraries");

/// Millions of events, and how many times as fast as ns-3.
const EVENTS: f64 = 10.0;
const TIMES: f64 = 50.0;
/// The most time of an event in a run four times as long, as a multiple of that in the short run.
/// Chosen by hand: more than two equal runs differ on the machine.
const LONGER: f64 = 1.1;
/// Millions of commands.
const COMMANDS: f64 = 1.0;
/// Processor time of a simulated second, and megabytes.
const SECOND: f64 = 60.0;
const MEMORY: f64 = 500.0;

/// How long everything is simulated, and how often.
struct Size {
    rounds: usize,
    dumbbell: Span,
    /// Of a tree of 16 hosts; larger ones for as many times less.
    tree: Span,
    /// Ports of switches in the trees.
    ports: &'static [u32],
    drive: Span,
}

const FULL: Size = Size {
    rounds: 3,
    dumbbell: Span(50_000_000),
    tree: Span(6_400_000),
    ports: &[4, 8, 16],
    drive: Span(4_000_000_000),
};
const QUICK: Size = Size {
    rounds: 1,
    dumbbell: Span(1_000_000),
    tree: Span(100_000),
    ports: &[4],
    drive: Span(10_000_000),
};

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let size = if plan.is_full() { FULL } else { QUICK };
    dumbbell(plan, &size, report);
    interrupt.check()?;
    hosts(plan, &size, report);
    interrupt.check()?;
    drive(plan, &size, report);
    interrupt.check()?;
    second(plan, report);
    interrupt.check()
}

/// The processor time and the events of a run.
#[derive(Clone, Copy, Debug)]
struct Cost {
    seconds: f64,
    events: f64,
}

impl Cost {
    fn nanoseconds_per_event(self) -> f64 {
        self.seconds * 1e9 / self.events
    }
}

/// Processor time of this thread since then; more than none, since it is divided by.
fn seconds_since(begin: Span) -> f64 {
    Span(processor_time().0 - begin.0).as_seconds().max(1e-6)
}

fn run(scenario: &mut Scenario, length: Span) -> Cost {
    (scenario.length, scenario.skip) = (length, Span(length.0 / 5));
    let begin = processor_time();
    let outcome = e2e::run(scenario).expect("a scenario of the repository");
    Cost { seconds: seconds_since(begin), events: outcome.events as f64 }
}

/// Runs a scenario for this long, and returns the cost of the second half.
fn second_half(scenario: &mut Scenario, length: Span) -> Cost {
    (scenario.length, scenario.skip) = (length, Span(length.0 / 5));
    scenario.sample = Span(length.0 / 2);
    let mut seen = Vec::new();
    let outcome = e2e::run_while(scenario, |progress| {
        seen.push((processor_time(), progress.events));
        true
    });
    outcome.expect("a scenario of the repository");
    let [(begin, before), (end, after)] = seen[..] else { panic!("two halves have two ends") };
    let seconds = Span(end.0 - begin.0).as_seconds().max(1e-6);
    Cost { seconds, events: (after - before) as f64 }
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text).expect("a scenario of the repository")
}

fn dumbbell(plan: WindowPlan, size: &Size, report: &mut dyn FnMut(Row)) {
    let mut scenario = scenario(DUMBBELL);
    let mut best = [f64::INFINITY; 2];
    let mut events = 0.0;
    for _ in 0..size.rounds {
        for (best, times) in best.iter_mut().zip([1, 4]) {
            let cost = run(&mut scenario, Span(size.dumbbell.0 * times));
            *best = best.min(cost.nanoseconds_per_event());
            events = cost.events / (size.dumbbell.0 * times) as f64 * 1e9;
        }
    }
    let [short, long] = best;
    let rate = Row::more(BENCH, "a dumbbell, events", "M/s", Some(1e3 / short));
    let longer = "a dumbbell for four times as long, an event, of before";
    let longer = Row::less(BENCH, longer, "ratio", Some(long / short));
    let second = "a dumbbell, a simulated second";
    let second = Row::less(BENCH, second, "s", Some(short * events / 1e9));
    if !plan.is_full() {
        let second = second.beside(NS3, Err("only measured in full".into()));
        return [rate, longer, second].into_iter().for_each(report);
    }
    report(rate.promised(EVENTS));
    report(longer.promised(LONGER));
    report(second.beside(NS3, ns3(size.dumbbell)).promised_times(TIMES));
}

/// Processor time for a simulated second of the dumbbell, in ns-3.
fn ns3(length: Span) -> Result<f64, String> {
    let libraries: Vec<String> =
        NS3_LIBRARIES.split_whitespace().map(|library| format!("-l{library}")).collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    let program =
        child::compile("c++", NS3_SOURCE, &["-x", "c++", "-std=c++17", "-O2"], &libraries)
            .map_err(|error| format!("no ns-3 to build against (libns3-dev): {error}"))?;
    let milliseconds = length.0 / 1_000_000;
    let printed = program.run(&["--rtt=25", &format!("--ms={milliseconds}"), "--skip=10"])?;
    let printed: Value =
        serde_json::from_str(&printed).map_err(|error| format!("ns-3: {error}"))?;
    let seconds = printed["cpu_seconds"].as_f64().ok_or("ns-3 reports no cpu_seconds")?;
    Ok(seconds * 1e3 / milliseconds as f64)
}

fn hosts(plan: WindowPlan, size: &Size, report: &mut dyn FnMut(Row)) {
    let mut first = None;
    for ports in size.ports {
        let hosts = ports.pow(3) / 4;
        let mut scenario = scenario(&tree(*ports, hosts));
        let length = size.tree.0 * 16 / u64::from(hosts);
        let mut best = f64::INFINITY;
        for _ in 0..size.rounds {
            let half = second_half(&mut scenario, Span(2 * length));
            best = best.min(half.nanoseconds_per_event());
        }
        let Some(least) = first else {
            first = Some(best);
            let case = format!("a fat tree of {hosts} hosts, an event");
            report(Row::nanoseconds(BENCH, case, Some(best)));
            continue;
        };
        // As the logarithm of the number of hosts, of which the smallest has 16.
        let bound = f64::from(hosts.ilog2()) / 4.0;
        let case = format!("a fat tree of {hosts} hosts, an event, of 16 hosts");
        let row = Row::less(BENCH, case, "ratio", Some(best / least));
        let row = row.noted(format!("{best:.0} ns"));
        report(if plan.is_full() { row.promised(bound) } else { row });
    }
}

/// A fat tree in which each host sends to the one half the tree away.
fn tree(ports: u32, hosts: u32) -> String {
    let mut text = format!(
        r#"
        name = "hosts"
        seed = 1
        length = "1ms"
        [network.topology.fat_tree]
        ports = {ports}
        line = {{ rate = "100Gbps", delay = "1250ns" }}
        [network.switch]
        buffer = "24MB"
        marking = {{ step = "140 packets" }}
        [transport]
        law = "dctcp"
        "#
    );
    for host in 0..hosts {
        let target = (host + hosts / 2) % hosts;
        text += &format!(
            r#"
            [[application]]
            from = {host}
            to = [{target}]
            [application.workload]
            name = "{host}"
            reads = "0%"
            sizes = {{ fixed = "64KiB" }}
            offsets = "uniform"
            space = "1GiB"
            load = {{ open = {{ rate = "30Gbps" }} }}
            "#
        );
    }
    text
}

fn drive(plan: WindowPlan, size: &Size, report: &mut dyn FnMut(Row)) {
    let mut drive = Parameters::default();
    drive.geometry.blocks = 256;
    for (case, reads) in [("4 KiB reads", Portion::WHOLE), ("4 KiB writes, cached", Portion(0))] {
        let flow = CommandFlow {
            class: Class::High,
            arrivals: Arrivals::Closed(32),
            reads,
            sizes: vec![(Bytes(4 << 10).0 as u32, 1)],
            spread: Portion(800_000),
        };
        let length = Length { total: size.drive, skip: Span::ZERO };
        let best = (0..size.rounds).map(|_| {
            let begin = processor_time();
            let outcome = alone::run(&drive, std::slice::from_ref(&flow), length, 1);
            let seconds = seconds_since(begin);
            outcome.flows[0].count() as f64 / seconds / 1e6
        });
        let best = best.fold(0.0, f64::max);
        let case = format!("a drive, {case} at a depth of 32");
        let row = Row::more(BENCH, case, "M/s", Some(best));
        report(if plan.is_full() { row.promised(COMMANDS) } else { row });
    }
}

/// A second of the fat tree, in a process of its own; without one, a moment of it.
fn second(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    if !plan.is_full() {
        return fat_tree(plan, report);
    }
    let printed = std::env::current_exe()
        .and_then(|program| Command::new(program).args(["bench", "fat-tree", "--json"]).output())
        .map_err(|error| format!("it cannot be started: {error}"));
    let rows = printed.map(|printed| {
        let lines = String::from_utf8_lossy(&printed.stdout).into_owned();
        let rows = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        rows.filter(|row| row["bench"] == BENCH).collect::<Vec<_>>()
    });
    for (case, unit, bound) in FAT_TREE_ROWS {
        let value = rows.as_ref().map_err(Clone::clone).and_then(|rows| {
            let row = rows.iter().find(|row| row["case"] == case);
            row.and_then(|row| row["value"].as_f64()).ok_or_else(|| "it failed".into())
        });
        let row = Row::less(BENCH, case, unit, value.as_ref().ok().copied()).promised(bound);
        report(match value {
            Ok(_) => row,
            Err(reason) => Row { reason: Some(reason), ..row },
        });
    }
}

const FAT_TREE_ROWS: [(&str, &str, f64); 2] = [
    ("a fat tree with ten servers, a simulated second", "s", SECOND),
    ("a fat tree with ten servers, most memory", "MB", MEMORY),
];

/// A second of the fat tree in this process, and the most memory that it has ever had.
pub(super) fn fat_tree(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let length = if plan.is_full() { Span::SECOND } else { Span(Span::MILLISECOND.0 / 2) };
    let cost = run(&mut scenario(FAT_TREE), length);
    let values = [Some(cost.seconds / length.as_seconds()), most_memory()];
    for ((case, unit, bound), value) in FAT_TREE_ROWS.into_iter().zip(values) {
        let row = Row::less(BENCH, case, unit, value);
        report(if plan.is_full() { row.promised(bound) } else { row });
    }
}

/// Megabytes; none where the system does not report it.
fn most_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1_024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_can_be_measured() {
        let mut rows = Vec::new();
        super::rows(WindowPlan::TINY, &Interrupt::default(), &mut |row| rows.push(row)).unwrap();
        assert_eq!(rows.len(), 8, "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() && row.kept.is_none()), "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some_and(|value| value > 0.0)), "{rows:#?}");
    }
}
