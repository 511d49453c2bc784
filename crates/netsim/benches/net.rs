//! Events per second of processor time in a simulated network, and what a hop costs.
//!
//! Hosts send packets of 1,502 bytes at constant rates. *Dumbbell*: three senders offer 90, 60 and
//! 30 Gbit/s to a line of 100, so its queue is always long; it marks at 140 packets. *Fat tree*:
//! each of 16, 128 or 1,024 hosts offers 30 Gbit/s to one other, drawn once. Each row is run for
//! one span of simulated time and for four times as long: the cost of an event must not grow with
//! it. Where ports are in FIFO order a hop is one event; `departures` shows the same with two.
//! A word behind `--` shows the rows that contain
//! it. Small under `cargo test`.

use std::fs;
use std::time::Instant;

use tidegate_model::{Class, Span};
use tidegate_netsim::net::packet::{FlowId, Mark, Packet, PacketKind};
use tidegate_netsim::net::{Host, Network, NetworkEvent, NetworkPlan};
use tidegate_sim::event::{Events, Queue};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

const LINE: &str = r#"{ rate = "12.5GB/s", delay = "1250ns" }"#;
const WIRE: u16 = 1_502;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let only: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let (packets, rounds) = if is_bench { (1_000_000, 3) } else { (1_000, 1) };
    println!("{:<34} {:>8} {:>8} {:>10}", "", "M ev/s", "ns/hop", "4x as long");
    let trees: &[u32] = if is_bench { &[4, 8, 16] } else { &[4] };
    let services = [
        ("fifo", "", false),
        ("fifo, departures", "", true),
        ("urgent first", "service = \"urgent-first\"\nreserve = \"100kB\"", false),
        ("weighted", "service = { weighted = [3, 2, 1] }", false),
        ("fifo, pauses", "pause = { at = \"100kB\", resume = \"80kB\" }", false),
    ];
    for (name, keys, departure_events) in services {
        let row = |shape: &str, topology: String, gaps: &[u64]| {
            let mut plan = plan(&topology, keys);
            plan.switch.departure_events = departure_events;
            let title = format!("{shape}, {name}");
            if !only.iter().all(|word| title.contains(word)) {
                return;
            }
            let best = |packets: u64| {
                let runs = (0..rounds).map(|_| run(&plan, gaps, packets));
                runs.fold(Cost::WORST, Cost::or_better)
            };
            let (short, long) = (best(packets / 4), best(packets));
            let (rate, hop) = (long.events_per_microsecond, long.nanoseconds_per_hop);
            let ratio = long.nanoseconds_per_hop / short.nanoseconds_per_hop;
            println!("{title:<34} {rate:>8.1} {hop:>8.1} {ratio:>10.2}");
        };
        let middle = r#"{ rate = "12.5GB/s", delay = "10us" }"#;
        let dumbbell = format!("dumbbell = {{ pairs = 3, edge = {LINE}, middle = {middle} }}");
        row("dumbbell", dumbbell, &[133_511, 200_267, 400_533]);
        for ports in trees {
            let tree = format!("fat_tree = {{ ports = {ports}, line = {LINE} }}");
            let hosts = ports.pow(3) / 4;
            row(&format!("{hosts} hosts"), tree, &vec![400_533; hosts as usize]);
        }
    }
}

fn plan(topology: &str, keys: &str) -> NetworkPlan {
    let marking = "marking = { step = \"140 packets\" }";
    let text = format!("[topology]\n{topology}\n[switch]\nbuffer = \"24MB\"\n{marking}\n{keys}");
    NetworkPlan::parse(&text).expect("written above")
}

#[derive(Clone, Copy)]
struct Cost {
    events_per_microsecond: f64,
    nanoseconds_per_hop: f64,
}

impl Cost {
    const WORST: Self = Self { events_per_microsecond: 0.0, nanoseconds_per_hop: f64::INFINITY };

    fn or_better(self, other: Self) -> Self {
        if other.nanoseconds_per_hop < self.nanoseconds_per_hop { other } else { self }
    }
}

enum SimEvent {
    Network(NetworkEvent),
    /// A source sends its next packet.
    Source(u32),
}

/// One packet after the other, at a constant distance.
struct Source {
    packet: Packet,
    gap: Picoseconds,
}

/// Sends about so many packets: host `n` one each `gaps[n]` picoseconds.
fn run(plan: &NetworkPlan, gaps: &[u64], packets: u64) -> Cost {
    let graph = plan.graph().expect("checked");
    let mut network = Network::new(&graph, &plan.switch, 1).expect("a large buffer");
    let mut targets: Vec<u32> = (0..graph.hosts() as u32).collect();
    // Each host sends to another one: to the next one in a random circle.
    Stream::new(1, "targets", 0).shuffle(&mut targets);
    let mut events = Events::default();
    let mut sources = Vec::new();
    let mut random = Stream::new(1, "start", 0);
    for (number, gap) in (0..).zip(gaps) {
        let index = targets.iter().position(|host| *host == number).expect("all are there");
        let next = targets[(index + 1) % targets.len()];
        let target = if gaps.len() == 3 { number + 3 } else { next };
        let path = network.connect(FlowId(number), Host(number), Host(target));
        let packet = Packet {
            sequence: 0,
            sent: Picoseconds::ZERO,
            flow: FlowId(number),
            route: path.there,
            ahead: 0,
            payload: 1_448,
            wire: WIRE,
            kind: PacketKind::Data,
            class: [Class::Urgent, Class::High, Class::Medium, Class::Low][number as usize % 4],
            mark: Mark::Clear,
        };
        events.push(Picoseconds(random.below(*gap)), SimEvent::Source(number));
        sources.push(Source { packet, gap: Picoseconds(*gap) });
    }
    let per_second: f64 = gaps.iter().map(|gap| 1e12 / *gap as f64).sum();
    let end = Picoseconds::from(Span((packets as f64 / per_second * 1e9) as u64));
    let start = now();
    let (count, hops) = drive(&mut network, &mut events, &mut sources, end);
    let spent = (now() - start).max(1) as f64;
    Cost { events_per_microsecond: count / spent * 1e3, nanoseconds_per_hop: spent / hops }
}

/// Events until the end, and hops of packets among them.
fn drive(
    network: &mut Network,
    events: &mut Events<SimEvent>,
    sources: &mut [Source],
    end: Picoseconds,
) -> (f64, f64) {
    let (mut count, mut hops) = (0u64, 0u64);
    while let Some((now, sim_event)) = events.pop() {
        if now > end {
            break;
        }
        count += 1;
        match sim_event {
            SimEvent::Network(event) => {
                hops += u64::from(matches!(event, NetworkEvent::Arrive(_)));
                network.on_event(now, event, &mut |at, event| {
                    events.push(at, SimEvent::Network(event));
                });
            }
            SimEvent::Source(number) => {
                let Source { packet, gap } = &mut sources[number as usize];
                packet.sequence += u64::from(packet.payload);
                packet.sent = now;
                network.send(now, *packet, &mut |at, event| {
                    events.push(at, SimEvent::Network(event));
                });
                events.push(now.after(*gap), SimEvent::Source(number));
            }
        }
    }
    (count as f64, hops as f64)
}

/// Nanoseconds that this thread has run; of the wall clock where the system does not say.
fn now() -> u64 {
    thread_local!(static START: Instant = Instant::now());
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = text.split(' ').next().and_then(|number| number.parse().ok());
    ran.unwrap_or_else(|| START.with(|start| start.elapsed().as_nanos() as u64))
}
