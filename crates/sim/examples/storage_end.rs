//! Where quality of service must be in a drive: `cargo run --release -p tidegate-sim --example
//! storage_end -- [SEED]…`.
//!
//! The setting of figure 7 of the end-to-end paper, with synthetic flows of the described shape in
//! place of the traces: three applications that mostly read, in bursts, with widely different
//! sizes. (a) High asks most and low least; (b) high and medium ask little and low most. Each in
//! three scenarios: no classes anywhere; weights 3 : 2 : 1 where commands are fetched; and also
//! before the chips. Mean latencies in microseconds, at several loads.

use tidegate_model::{Bytes, Class, Portion, Rate, Span};
use tidegate_sim::storage::alone::{Asks, Flow, Length, run};
use tidegate_sim::storage::{Order, Parameters, Shares, Turns};

/// How many commands are in a burst of high, medium and low.
const CASES: [(&str, [u32; 3]); 2] =
    [("(a) high asks most", [24, 16, 8]), ("(b) low asks most", [6, 10, 32])];

fn main() {
    let mut seeds: Vec<u64> =
        std::env::args().skip(1).filter_map(|seed| seed.parse().ok()).collect();
    if seeds.is_empty() {
        seeds.push(1);
    }
    for (name, bursts) in CASES {
        println!("{name}          nowhere            at the queues          and at the chips");
        for every in [1_200, 800, 600, 500, 450, 400] {
            for seed in &seeds {
                let latencies = [1, 2, 3].map(|scenario| {
                    let drive = drive(scenario);
                    let flows = flows(bursts, Span(every * 1_000));
                    let length = Length { total: Span::SECOND, skip: Span(100_000_000) };
                    let outcome = run(&drive, &flows, length, *seed);
                    let means: Vec<String> =
                        outcome.flows.iter().map(|flow| format!("{:6.0}", flow.mean())).collect();
                    means.join(" ")
                });
                println!("every {every:>5} us  {}", latencies.join("   "));
            }
        }
    }
}

/// A drive that reads in 20 us: what the paper's latencies of 40 to 90 us suggest.
fn drive(scenario: u32) -> Parameters {
    let mut drive = Parameters::default();
    drive.geometry.blocks = 512;
    drive.times.read = Span(20_000);
    drive.times.program = Span(200_000);
    drive.channel.rate = Rate(1_200_000_000);
    drive.cache.rate = Rate(12_800_000_000);
    drive.cache.capacity = Bytes(64 << 20);
    drive.host.fetch_limit = 32;
    let weighted = Order::Weighted(Shares::default());
    drive.host.arbitration =
        if scenario == 1 { Order::RoundRobin(Turns::default()) } else { weighted };
    drive.chip_queues = if scenario == 3 { weighted } else { Order::Arrival };
    drive
}

fn flows(bursts: [u32; 3], every: Span) -> Vec<Flow> {
    let classes = [Class::High, Class::Medium, Class::Low];
    let flow = |(class, burst): (Class, u32)| Flow {
        class,
        asks: Asks::Open { burst, every },
        reads: Portion(850_000),
        sizes: vec![(4_096, 40), (8_192, 25), (16_384, 15), (32_768, 12), (65_536, 8)],
        spread: Portion(800_000),
    };
    classes.into_iter().zip(bursts).map(flow).collect()
}
