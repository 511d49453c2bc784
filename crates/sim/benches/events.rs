//! Heap against wheel: pops and pushes per second, at several numbers of waiting events.
//!
//! The "hold" model: pop an event, push it again at a random distance, so that the number that
//! waits stays as it is. Distances are uniform over a device's service times (1 to 100 us), or a
//! mix of 120 ns, 1.25 us, 10 us and 100 us, as in a network. Small under `cargo test`.
#![expect(clippy::disallowed_types, reason = "a benchmark measures time")]

use std::time::Instant;

use tidegate_sim::event::{EventQueue, Heap, Wheel};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (holds, rounds) = if is_bench { (2_000_000, 5) } else { (1_000, 1) };
    println!("million holds per second        heap    wheel");
    let most = if is_bench { 1_000_000 } else { 1_000 };
    for waiting in [100, 10_000, 100_000, 1_000_000].into_iter().filter(|count| *count <= most) {
        for (name, distance) in [("uniform", uniform as Distance), ("mixed", mixed)] {
            let best = |queue: fn(u64, u64, Distance) -> f64| {
                (0..rounds).map(|_| queue(waiting, holds, distance)).fold(0.0, f64::max)
            };
            let heap = best(|waiting, holds, distance| {
                hold(&mut Heap::default(), waiting, holds, distance)
            });
            let wheel = best(|waiting, holds, distance| {
                hold(&mut Wheel::default(), waiting, holds, distance)
            });
            println!("{waiting:>9} waiting, {name:<8} {heap:>8.1} {wheel:>8.1}");
        }
    }
}

type Distance = fn(&mut Stream) -> u64;

fn uniform(random: &mut Stream) -> u64 {
    random.within(1_000_000, 100_000_000)
}

fn mixed(random: &mut Stream) -> u64 {
    [120_000, 1_250_000, 10_000_000, 100_000_000][random.below(4) as usize]
}

/// Holds per microsecond of wall time.
fn hold(
    queue: &mut impl EventQueue<[u32; 3]>,
    waiting: u64,
    holds: u64,
    distance: Distance,
) -> f64 {
    let mut random = Stream::new(1, "hold", 0);
    for number in 0..waiting {
        queue.push(Picoseconds(distance(&mut random)), [number as u32; 3]);
    }
    let start = Instant::now();
    for _ in 0..holds {
        let (at, event) = queue.pop().expect("as many wait as before");
        queue.push(at.after(Picoseconds(distance(&mut random))), event);
    }
    holds as f64 / start.elapsed().as_micros().max(1) as f64
}
