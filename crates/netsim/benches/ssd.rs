//! Simulated commands per second of the processor's time: a drive under 4 KiB reads and writes.
//!
//! Beside it the same number of events through the same queue without a drive behind it, which is
//! the most that any drive could do. MQSim, in C++, is no package that one can install, so it is
//! not run here; it takes 9 to 12 events for such a command. Small under `cargo test`.

use std::sync::OnceLock;
use std::time::Instant;

use tidegate_model::{Class, Portion, Span};
use tidegate_netsim::storage::Parameters;
use tidegate_netsim::storage::alone::{Arrivals, Flow, Length, run};
use tidegate_sim::event::{Events, Queue};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (milliseconds, rounds) = if is_bench { (4_000, 5) } else { (2, 1) };
    println!("million per second                commands   events   events of the queue alone");
    for (name, reads, depth) in [
        ("4 KiB reads, depth 1", 1_000_000, 1),
        ("4 KiB reads, depth 32", 1_000_000, 32),
        ("4 KiB reads, depth 256", 1_000_000, 256),
        ("4 KiB writes, cache, depth 32", 0, 32),
        ("70 % reads, cache, depth 32", 700_000, 32),
    ] {
        let mut best = [0.0f64; 3];
        for _ in 0..rounds {
            // About as many commands at each depth.
            let milliseconds = milliseconds * 32 / u64::from(depth.min(32));
            let (commands, events, seconds) = drive(Portion(reads), depth, milliseconds);
            best[0] = best[0].max(commands as f64 / seconds / 1e6);
            best[1] = best[1].max(events as f64 / seconds / 1e6);
            best[2] = best[2].max(events as f64 / queue(depth.into(), events) / 1e6);
        }
        println!("{name:<32} {:>9.2} {:>8.1} {:>8.1}", best[0], best[1], best[2]);
    }
}

/// Commands, events, and the seconds that they took.
fn drive(reads: Portion, depth: u32, milliseconds: u64) -> (u64, u64, f64) {
    let mut drive = Parameters::default();
    drive.geometry.blocks = 256;
    let flow = Flow {
        class: Class::High,
        arrivals: Arrivals::Closed(depth),
        reads,
        sizes: vec![(4_096, 1)],
        spread: Portion(800_000),
    };
    let length = Length { total: Span(milliseconds * 1_000_000), skip: Span(0) };
    let start = seconds();
    let outcome = run(&drive, &[flow], length, 1);
    (outcome.flows[0].count(), outcome.events, (seconds() - start).max(1e-3))
}

/// Seconds for so many events, of which so many wait at a time.
fn queue(waiting: u64, events: u64) -> f64 {
    let mut random = Stream::new(1, "queue", 0);
    let mut queue = Events::default();
    let start = seconds();
    (0..waiting).for_each(|_| queue.push(Picoseconds(random.below(100_000_000)), ()));
    for _ in 0..events {
        let (now, ()) = queue.pop().expect("as many wait as before");
        queue.push(now.after(Picoseconds(random.below(100_000_000))), ());
    }
    (seconds() - start).max(1e-3)
}

/// Seconds for which this thread had a processor, so that others on the machine count less; where
/// the system does not say, seconds since the first call.
fn seconds() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let wall = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse::<f64>().ok());
    nanoseconds.map_or(wall, |nanoseconds| nanoseconds / 1e9)
}
