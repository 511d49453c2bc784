//! Where quality of service must be in a drive: `cargo run --release -p tidegate-sim --example
//! storage_end -- [SEED]…`.
//!
//! The setting of figure 7 of the end-to-end paper, with synthetic flows of the described shape in
//! place of the traces: three applications that mostly read, in bursts, with widely different
//! sizes. (a) High asks most and low least; (b) high and medium ask little and low most. Each in
//! three scenarios: no classes anywhere; weights 3 : 2 : 1 where commands are fetched; and also
//! before the chips. Mean latencies in microseconds.
//!
//! The paper's claims of (a): without classes high is worst and low best; with weights at the
//! queues high and medium gain, low loses, and high is still worst; with weights before the chips
//! as well, high is best and low worst. Of (b): weights at the queues are enough. A `+` or `-`
//! behind each scenario says whether its latencies are in the order claimed.
//!
//! What to expect: the drive decides. The order of the third scenario appears wherever commands
//! wait before the chips; that of the second in (a) only where they wait there much longer than in
//! the queues, because otherwise the weights at the queues are enough, or there is nothing to
//! weigh. The paper says neither how many chips its drive has nor how many commands it fetches.

use tidegate_model::{Bytes, Class, Portion, Rate, Span};
use tidegate_sim::storage::alone::{Asks, Flow, Length, run};
use tidegate_sim::storage::{Order, Parameters, Shares, Turns};

/// How many commands are in a burst of high, medium and low.
const CASES: [(&str, [u32; 3]); 2] =
    [("(a) high asks most", [20, 16, 12]), ("(b) low asks most", [8, 12, 28])];

/// Sizes, each with a weight.
const SIZES: [(u32, u64); 3] = [(4_096, 60), (8_192, 30), (16_384, 10)];

fn main() {
    let mut seeds: Vec<u64> =
        std::env::args().skip(1).filter_map(|seed| seed.parse().ok()).collect();
    if seeds.is_empty() {
        seeds.push(1);
    }
    for (case, (name, bursts)) in CASES.into_iter().enumerate() {
        println!("{name:<26}   nowhere             at the queues       and before the chips");
        for fetch_limit in [32, 64, 128, 256] {
            for load_percent in [30, 40, 50, 60] {
                for seed in &seeds {
                    let found = [1, 2, 3].map(|scenario| {
                        means(&drive(scenario, fetch_limit), &flows(bursts, load_percent), *seed)
                    });
                    let [none, queues, chips] = found;
                    let holds = verdict(case, found);
                    print!("{fetch_limit:>4} inside, load {load_percent} %  ");
                    for (means, holds) in [none, queues, chips].into_iter().zip(holds) {
                        let [high, medium, low] = means;
                        let sign = if holds { '+' } else { '-' };
                        print!("  {high:5.0} {medium:5.0} {low:5.0} {sign}");
                    }
                    println!();
                }
            }
        }
    }
}

/// Whether the latencies of each scenario are in the order that the paper claims.
fn verdict(case: usize, [none, queues, chips]: [[f64; 3]; 3]) -> [bool; 3] {
    let rises = |[high, medium, low]: [f64; 3]| high < medium && medium < low;
    let [high, medium, low] = queues;
    if case == 1 {
        return [true, rises(queues), rises(chips)];
    }
    let moves = high < none[0] && medium < none[1] && low > none[2];
    let falls = none[0] > none[1] && none[1] > none[2];
    [falls, moves && high > medium && high > low, rises(chips)]
}

fn means(drive: &Parameters, flows: &[Flow], seed: u64) -> [f64; 3] {
    let length = Length { total: Span::SECOND, skip: Span(100_000_000) };
    let outcome = run(drive, flows, length, seed);
    [0, 1, 2].map(|flow: usize| outcome.flows[flow].mean())
}

/// Sixteen chips that read in 20 us: what the paper's latencies of 40 to 90 us suggest.
fn drive(scenario: u32, fetch_limit: u32) -> Parameters {
    let mut drive = Parameters::default();
    let geometry = &mut drive.geometry;
    (geometry.channels, geometry.chips, geometry.blocks, geometry.pages) = (4, 4, 512, 64);
    (drive.times.read, drive.times.program) = (Span(20_000), Span(200_000));
    drive.channel.rate = Rate(1_200_000_000);
    drive.cache.rate = Rate(12_800_000_000);
    drive.cache.capacity = Bytes(64 << 20);
    drive.host.fetch_limit = fetch_limit;
    let weighted = Order::Weighted(Shares::default());
    drive.host.arbitration =
        if scenario == 1 { Order::RoundRobin(Turns::default()) } else { weighted };
    drive.chip_queues = if scenario == 3 { weighted } else { Order::Arrival };
    drive
}

/// Flows that together keep the chips busy for a part of the time: a page takes about 27 us of one
/// of sixteen, and its wait for the bus, so that more than 60 % is too much.
fn flows(bursts: [u32; 3], load_percent: u64) -> Vec<Flow> {
    let weights: u64 = SIZES.iter().map(|(_, weight)| weight).sum();
    let pages: u64 =
        SIZES.iter().map(|(size, weight)| u64::from(size.div_ceil(8_192)) * weight).sum();
    let commands = u64::from(bursts.iter().sum::<u32>());
    let every = Span(commands * pages * 27_000 / 16 / weights * 100 / load_percent);
    let classes = [Class::High, Class::Medium, Class::Low];
    let flow = |(class, burst): (Class, u32)| Flow {
        class,
        asks: Asks::Open { burst, every },
        reads: Portion::WHOLE,
        sizes: SIZES.to_vec(),
        spread: Portion(800_000),
    };
    classes.into_iter().zip(bursts).map(flow).collect()
}
