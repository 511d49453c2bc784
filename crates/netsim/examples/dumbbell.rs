//! Three flows share a link that marks packets: `dumbbell LAW ROUND_TRIP_US END_MS SKIP_MS`, for
//! instance `dumbbell qtcp 25 50 10`. Prints one line of JSON. A plan may replace the name, as
//! `dumbbell 'law = "qrdma"; rate.aim = "before"' 25 200 100`, with semicolons between its lines.
//!
//! The setting of figure 8 of the end-to-end QoS paper. Senders on lines of 100 Gbit/s offer 90, 60
//! and 30, in chunks of 64 KiB that come whatever became of those before, to a link of 100 behind a
//! queue that marks every packet that finds 140, or by chance for flows with a rate. Of the way
//! there, the first and the last line are a tenth each. Flows that go by promises are promised
//! 3 : 2 : 1 of the link's payload.

use std::process::ExitCode;
use std::{env, fs};

use tidegate_algo::congestion::quality::Objective;
use tidegate_model::{Class, Rate};
use tidegate_netsim::net::packet::{FlowId, Packet};
use tidegate_netsim::net::{self, Host, Network, PortId};
use tidegate_netsim::transport::{self, FlowMessage, FlowRoute, Out, Transport};
use tidegate_sim::event::{EventQueue, Events};
use tidegate_sim::scenario::ScenarioError;
use tidegate_sim::time::Picoseconds;

const LINE: Rate = Rate(12_500_000_000);
const CLASSES: [Class; 3] = [Class::High, Class::Medium, Class::Low];
/// The load that each class offers, in Gbit/s, and its promised share of the link, in sixths.
const OFFERED: [(u64, u64); 3] = [(90, 3), (60, 2), (30, 1)];
/// How the queue marks for windows, and for rates (HPCC's simulator, for a line of 100 Gbit/s).
const STEP: &str = "{ step = '140 packets' }";
const CHANCE: &str = "{ red = { from = '400kB', to = '1600kB', most = '20%' } }";
const CHUNK: u64 = 65_536;
const MILLISECOND: u64 = 1_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let numbers = arguments.iter().skip(1).map(|text| text.parse().ok());
    let (Some(cc), Some(&[trip, end, skip])) =
        (arguments.first(), numbers.collect::<Option<Vec<u64>>>().as_deref())
    else {
        eprintln!("usage: dumbbell LAW ROUND_TRIP_US END_MS SKIP_MS");
        return ExitCode::from(2);
    };
    let plan = if cc.contains('=') { cc.replace(';', "\n") } else { format!("law = {cc:?}") };
    match run(&plan, trip, end, skip) {
        Ok(DumbbellReport { goodput: [high, medium, low], queue, events, seconds }) => {
            println!(
                "{{\"goodput_gbps\":[{high:.3},{medium:.3},{low:.3}],\"queue_mean\":{queue:.1},\
                 \"events\":{events},\"cpu_seconds\":{seconds:.3}}}"
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

/// Measurements after the skipped part of the run; `events` and `seconds` are of the whole run.
struct DumbbellReport {
    /// Payload in order at the receivers, in Gbit/s.
    goodput: [f64; 3],
    /// The mean queue before the shared link, in full packets.
    queue: f64,
    /// Events of the whole run, and its processor time in seconds.
    events: u64,
    seconds: f64,
}

enum SimEvent {
    Network(net::NetworkEvent),
    Flow(transport::FlowEvent),
    /// A sender is given its next chunk.
    Send(FlowId),
    /// Ends the current call of [`DumbbellSim::run_until`].
    Stop,
}

/// The transport's interface to the network and to the queue of events.
struct Around<'a> {
    now: Picoseconds,
    network: &'a mut Network,
    events: &'a mut Events<SimEvent>,
}

impl Out for Around<'_> {
    fn send(&mut self, packet: Packet) {
        let Self { now, network, events } = self;
        network.send(*now, packet, &mut |at, event| events.push(at, SimEvent::Network(event)));
    }

    fn later(&mut self, at: Picoseconds, event: transport::FlowEvent) {
        self.events.push(at, SimEvent::Flow(event));
    }

    fn arrived(&mut self, _flow: FlowId, _message: u64) {}
}

/// Three flows by this plan, for `end` milliseconds of which `skip` are not measured.
fn run(plan: &str, trip: u64, end: u64, skip: u64) -> Result<DumbbellReport, ScenarioError> {
    let plan = transport::FlowPlan::parse(plan)?;
    let (edge, middle) = (trip * 50, trip * 400);
    let marking = if plan.cc.is_window() { STEP } else { CHANCE };
    let wires = net::NetworkPlan::parse(&format!(
        "[topology.dumbbell]
         pairs = 3
         edge = {{ rate = '12.5GB/s', delay = '{edge}ns' }}
         middle = {{ rate = '12.5GB/s', delay = '{middle}ns' }}
         [switch]
         buffer = '6008kB'
         marking = {marking}"
    ))?;
    let mut network = Network::new(&wires.graph()?, &wires.switch, 1)?;
    let (mut transport, mut events) = (Transport::default(), Events::default());
    let mut middle = PortId(0);
    for (number, (_, promised)) in (0..).zip(OFFERED) {
        let path = network.connect(FlowId(number), Host(number), Host(number + 3));
        middle = network.ports_of(path.there).nth(1).unwrap_or(middle);
        let class = CLASSES[number as usize];
        let flow = transport.open(&plan, FlowRoute { path, class, line: LINE });
        let (payload, headers) = (plan.packet().payload, plan.packet().headers);
        let carried = LINE.0 * u64::from(payload) / u64::from(payload + headers);
        transport.promise(flow, Objective::Rate(Rate(carried * promised / 6)));
        events.push(Picoseconds::ZERO, SimEvent::Send(flow));
    }
    let (skip, end) = (Picoseconds(skip * MILLISECOND), Picoseconds(end * MILLISECOND));
    let started = processor_nanoseconds();
    let mut simulation = DumbbellSim { network, transport, events, count: 0 };
    simulation.run_until(skip);
    let (before, area) = (simulation.delivered(), simulation.queue(skip, middle) * skip.0 as f64);
    simulation.run_until(end);
    let (after, all) = (simulation.delivered(), simulation.queue(end, middle) * end.0 as f64);
    let picoseconds = end.since(skip).0 as f64;
    let wire = f64::from(plan.packet().payload + plan.packet().headers);
    Ok(DumbbellReport {
        goodput: [0, 1, 2].map(|at| (after[at] - before[at]) as f64 * 8_000.0 / picoseconds),
        queue: (all - area) / picoseconds / wire,
        events: simulation.count,
        seconds: (processor_nanoseconds() - started) as f64 / 1e9,
    })
}

struct DumbbellSim {
    network: Network,
    transport: Transport,
    events: Events<SimEvent>,
    count: u64,
}

impl DumbbellSim {
    /// Lets everything happen until then.
    fn run_until(&mut self, end: Picoseconds) {
        let Self { network, transport, events, count } = self;
        events.push(end, SimEvent::Stop);
        while let Some((now, sim_event)) = events.pop() {
            *count += 1;
            match sim_event {
                SimEvent::Stop => return,
                SimEvent::Network(event) => {
                    let later = &mut |at, event| events.push(at, SimEvent::Network(event));
                    if let Some(packet) = network.on_event(now, event, later) {
                        transport.on_packet(now, &packet, &mut Around { now, network, events });
                    }
                }
                SimEvent::Flow(event) => {
                    transport.on_event(now, event, &mut Around { now, network, events });
                }
                SimEvent::Send(flow) => {
                    let message = FlowMessage { number: 0, bytes: CHUNK, deadline: None };
                    let around = &mut Around { now, network, events };
                    transport.send(now, flow, message, around);
                    let gap = CHUNK * 8_000 / OFFERED[flow.0 as usize].0;
                    events.push(now.after(Picoseconds(gap)), SimEvent::Send(flow));
                }
            }
        }
    }

    fn delivered(&self) -> [u64; 3] {
        [0, 1, 2].map(|flow| self.transport.delivered(FlowId(flow)))
    }

    /// The mean queue of a port since the start, in bytes.
    fn queue(&mut self, now: Picoseconds, port: PortId) -> f64 {
        let classes = CLASSES.iter();
        classes.map(|class| self.network.counters(now, port, *class).mean_bytes).sum()
    }
}

/// How long this process has run on a processor; zero where the system does not say.
fn processor_nanoseconds() -> u64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts each flow's goodput in Gbit/s, within `tolerance`, and a mean queue of 115 to 145
    /// packets.
    #[track_caller]
    fn near(plan: &str, expected: [f64; 3], tolerance: f64) {
        let DumbbellReport { goodput, queue, .. } = run(plan, 25, 15, 5).unwrap();
        let is_near =
            goodput.iter().zip(expected).all(|(got, other)| (got - other).abs() < tolerance);
        assert!(is_near, "{goodput:.1?} instead of {expected:?}");
        assert!((115.0..145.0).contains(&queue), "a mean queue of {queue:.1} packets");
    }

    /// Alike, but that the third has all it asks for. ns-3 3.37: 34.8, 32.6 and 29.2.
    #[test]
    fn dctcp_divides_a_link_evenly() {
        near("law = 'dctcp'", [33.9, 32.7, 29.7], 2.0);
    }

    /// By promises. ns-3 3.37: 45.7, 33.4 and 17.4; the paper's figure 8: 48, 31 and 17.
    #[test]
    fn qtcp_divides_a_link_by_promises() {
        near("law = 'qtcp'", [47.5, 32.4, 16.6], 2.0);
    }

    /// Rates do the same with steps of 1 Gbit/s, ten times the usual ones, which would take 100 ms
    /// to get there. By promises the link is not quite full: what a squeeze took comes back late.
    #[test]
    fn rates_do_the_same_more_slowly() {
        let plan = |cc| format!("law = '{cc}'\nrate.additive = '125MB/s'\nrate.hyper = '500MB/s'");
        let [high, _, low] = run(&plan("dcqcn"), 25, 15, 8).unwrap().goodput;
        assert!((0.8..1.25).contains(&(high / low)), "{high:.1} beside {low:.1}");
        let [high, medium, low] = run(&plan("qrdma"), 25, 15, 8).unwrap().goodput;
        assert!((1.8..3.3).contains(&(high / low)), "{high:.1} beside {low:.1}");
        assert!((1.3..2.3).contains(&(medium / low)), "{medium:.1} beside {low:.1}");
    }

    /// Without a deadline, D2TCP is DCTCP, to the last byte.
    #[test]
    fn without_deadlines_d2tcp_is_dctcp() {
        let goodput = |cc| run(cc, 25, 3, 1).unwrap().goodput;
        assert_eq!(goodput("law = 'd2tcp'"), goodput("law = 'dctcp'"));
    }
}
