use super::*;
use crate::event::{Heap, Queue, Wheel};
use crate::rng::Stream;
use proptest::prelude::*;
use std::collections::VecDeque;

const LINE: Rate = Rate(12_500_000_000);
const ROAD: Road = Road { there: 0, back: 0, class: Class::Medium, line: LINE };

fn micros(number: u64) -> Picoseconds {
    Picoseconds(number * 1_000_000)
}

/// What a pipe does to packets.
#[derive(Clone, Copy, Debug)]
struct Harm {
    /// In a million.
    data_lost: u32,
    answers_lost: u32,
    marked: u32,
    /// How likely a packet of data is held back until two others have passed it.
    held: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Ask(Message),
    Packet(Packet),
    Flow(Event),
    /// Nobody passed it for long.
    Release,
}

/// Both ways between the ends of one flow. Everything takes 10 us; an answer up to 5 us more, so
/// that answers overtake each other.
struct Pipe<Q> {
    now: Picoseconds,
    queue: Q,
    harm: Harm,
    random: Stream,
    held: Option<(Packet, u32)>,
    arrived: Vec<(Picoseconds, u64)>,
    lost: u64,
}

impl<Q: Queue<Happening>> Out for Pipe<Q> {
    fn send(&mut self, packet: Packet) {
        let mut packet = packet;
        let is_data = packet.kind == Kind::Data;
        let loss = if is_data { self.harm.data_lost } else { self.harm.answers_lost };
        if self.random.happens(loss) {
            self.lost += 1;
            return;
        }
        if !is_data {
            let delay = 10_000_000 + self.random.below(5_000_000);
            return self.queue.push(self.now.after(Picoseconds(delay)), Happening::Packet(packet));
        }
        if self.random.happens(self.harm.marked) {
            packet.mark = Mark::Congested;
        }
        if self.held.is_none() && self.random.happens(self.harm.held) {
            self.held = Some((packet, 2));
            self.queue.push(self.now.after(micros(30)), Happening::Release);
            return;
        }
        self.queue.push(self.now.after(micros(10)), Happening::Packet(packet));
        if let Some((held, left)) = &mut self.held {
            *left -= 1;
            if *left == 0 {
                let held = *held;
                self.held = None;
                self.queue.push(self.now.after(micros(10)), Happening::Packet(held));
            }
        }
    }

    fn later(&mut self, at: Picoseconds, event: Event) {
        self.queue.push(at, Happening::Flow(event));
    }

    fn arrived(&mut self, _flow: FlowId, message: u64) {
        self.arrived.push((self.now, message));
    }
}

/// Carries messages of these sizes, each asked for so many microseconds after the one before, until
/// nothing happens any more. What arrived when, what was sent twice, and how much was lost.
fn carry<Q: Queue<Happening> + Default>(
    plan: &Plan,
    harm: Harm,
    messages: &[(u64, u64)],
) -> (Vec<(Picoseconds, u64)>, Repeats, u64) {
    let random = Stream::new(1, "pipe", 0);
    let (queue, arrived) = (Q::default(), Vec::new());
    let mut pipe = Pipe { now: micros(0), queue, harm, random, held: None, arrived, lost: 0 };
    let mut transport = Transport::default();
    let flow = transport.open(plan, ROAD);
    let (mut at, mut sum) = (micros(0), 0);
    for (number, (bytes, gap)) in (0..).zip(messages) {
        at = at.after(micros(*gap));
        sum += bytes;
        let deadline = Some(at.after(micros(99)));
        pipe.queue.push(at, Happening::Ask(Message { number, bytes: *bytes, deadline }));
    }
    let mut events = 0;
    while let Some((now, event)) = pipe.queue.pop() {
        pipe.now = now;
        match event {
            Happening::Ask(message) => transport.send(now, flow, message, &mut pipe),
            Happening::Packet(packet) => transport.on_packet(now, &packet, &mut pipe),
            Happening::Flow(event) => transport.on_event(now, event, &mut pipe),
            Happening::Release => {
                if let Some((packet, _)) = pipe.held.take() {
                    transport.on_packet(now, &packet, &mut pipe);
                }
            }
        }
        transport.check();
        events += 1;
        assert!(events < 200_000, "it does not come to an end");
    }
    assert!(!transport.is_busy(flow));
    assert_eq!(transport.delivered(flow), sum);
    (pipe.arrived, transport.repeats(flow), pipe.lost)
}

fn plan() -> impl Strategy<Value = Plan> {
    let laws = vec![Law::Dctcp, Law::D2tcp, Law::Qtcp, Law::Dcqcn, Law::Qrdma];
    let answer =
        prop::option::of((1u32..5).prop_map(|every| Answers { every, within: Span(500_000) }));
    (prop::sample::select(laws), answer, any::<bool>()).prop_map(|(law, answer, is_lost)| {
        let repeat = if is_lost { Repeat::Lost } else { Repeat::All };
        let rate = (!law.is_window()).then(|| Limits { repeat, ..Limits::default() });
        Plan { answer, rate, ..Plan::of(law) }
    })
}

fn messages() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((prop_oneof![1u64..100, 1u64..20_000], 0u64..100), 1..9)
}

/// Each message once, in order.
fn numbers(arrived: &[(Picoseconds, u64)]) -> Vec<u64> {
    arrived.iter().map(|(_, number)| *number).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the network does, every message arrives once and in order, and then nothing happens
    /// any more; and whichever queue the events are in, at the same times.
    #[test]
    fn everything_arrives(
        plan in plan(), messages in messages(),
        data_lost in 0u32..100_000, answers_lost in 0u32..200_000,
        marked in 0u32..500_000, held in 0u32..500_000,
    ) {
        let harm = Harm { data_lost, answers_lost, marked, held };
        let outcome = carry::<Heap<Happening>>(&plan, harm, &messages);
        prop_assert_eq!(numbers(&outcome.0), (0..messages.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(&outcome, &carry::<Wheel<Happening>>(&plan, harm, &messages));
    }

    /// Where nothing is lost, nothing is sent twice: a packet may be late by two others, and an
    /// answer by any; but where everything is sent again, there is no being late.
    #[test]
    fn nothing_is_repeated_without_loss(
        plan in plan(), messages in messages(), marked in 0u32..500_000, held in 0u32..500_000,
    ) {
        let held = if plan.repeats() == Repeat::All { 0 } else { held };
        let harm = Harm { data_lost: 0, answers_lost: 0, marked, held };
        let (arrived, repeats, lost) = carry::<Heap<Happening>>(&plan, harm, &messages);
        prop_assert_eq!(lost, 0);
        prop_assert_eq!(arrived.len(), messages.len());
        prop_assert_eq!(repeats, Repeats::default());
    }
}

/// Three senders on lines of 100 Gbit/s, a queue before a line as fast that marks every packet that
/// finds 140, and receivers: the dumbbell of the paper's figure 8.
struct Dumbbell {
    now: Picoseconds,
    queue: Wheel<Step>,
    /// When the lines of the senders, and the shared one, are free.
    free: [Picoseconds; 4],
    /// When the packets leave that wait before the shared line.
    leaving: VecDeque<Picoseconds>,
    /// One way, but for time on lines: to the queue, and from there.
    ways: [Picoseconds; 2],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A sender has more to send.
    Ask(FlowId),
    /// A packet is at the shared line.
    Middle(Packet),
    End(Packet),
    Flow(Event),
}

impl Dumbbell {
    /// When the last bit of a packet has left that is given to a line now.
    fn depart(&mut self, line: usize, wire: u16) -> Picoseconds {
        self.free[line] = self.free[line].max(self.now).after(Picoseconds(u64::from(wire) * 80));
        self.free[line]
    }

    fn pass(&mut self, mut packet: Packet) {
        while self.leaving.pop_front_if(|at| *at <= self.now).is_some() {}
        assert!(self.leaving.len() < 4_000);
        if self.leaving.len() >= 140 {
            packet.mark = Mark::Congested;
        }
        let at = self.depart(3, packet.wire);
        self.leaving.push_back(at);
        self.queue.push(at.after(self.ways[1]), Step::End(packet));
    }
}

impl Out for Dumbbell {
    fn send(&mut self, packet: Packet) {
        if packet.kind == Kind::Data {
            let at = self.depart(packet.flow.0 as usize, packet.wire);
            self.queue.push(at.after(self.ways[0]), Step::Middle(packet));
        } else {
            let at = self.now.after(self.ways[0]).after(self.ways[1]);
            self.queue.push(at, Step::End(packet));
        }
    }

    fn later(&mut self, at: Picoseconds, event: Event) {
        self.queue.push(at, Step::Flow(event));
    }

    fn arrived(&mut self, _flow: FlowId, _message: u64) {}
}

/// The rates in Gbit/s of three flows that are offered 90, 60 and 30, in chunks of 64 KiB, from
/// `skip` milliseconds to `end`, with a round trip of 25 us.
fn shares(plan: &Plan, skip: u64, end: u64) -> [f64; 3] {
    let ways = [Picoseconds(1_250_000), Picoseconds(11_250_000)];
    let (queue, free, leaving) = (Wheel::default(), Default::default(), VecDeque::new());
    let mut bell = Dumbbell { now: micros(0), queue, free, leaving, ways };
    let mut transport = Transport::default();
    for promised in [3, 2, 1] {
        let flow = transport.open(plan, ROAD);
        let payload = LINE.0 * u64::from(plan.packet().payload);
        let wire = u64::from(plan.packet().payload + plan.packet().headers);
        transport.promise(flow, Objective::Rate(Rate(payload / wire * promised / 6)));
        bell.queue.push(micros(0), Step::Ask(flow));
    }
    let (skip, end) = (micros(skip * 1_000), micros(end * 1_000));
    let mut before = [0; 3];
    let delivered = |transport: &Transport| [0, 1, 2].map(|at| transport.delivered(FlowId(at)));
    while let Some((now, step)) = bell.queue.pop() {
        if bell.now < skip && now >= skip {
            before = delivered(&transport);
        }
        if now >= end {
            break;
        }
        bell.now = now;
        match step {
            Step::Ask(flow) => {
                let message = Message { number: 0, bytes: 65_536, deadline: None };
                transport.send(now, flow, message, &mut bell);
                let gap = 65_536 * 8_000 / (90 - 30 * u64::from(flow.0));
                bell.queue.push(now.after(Picoseconds(gap)), step);
            }
            Step::Middle(packet) => bell.pass(packet),
            Step::End(packet) => transport.on_packet(now, &packet, &mut bell),
            Step::Flow(event) => transport.on_event(now, event, &mut bell),
        }
    }
    let after = delivered(&transport);
    let seconds = (end.0 - skip.0) as f64 / 1e12;
    [0, 1, 2].map(|at| (after[at] - before[at]) as f64 * 8e-9 / seconds)
}

/// Rates within so many Gbit/s.
#[track_caller]
fn near(rates: [f64; 3], expected: [f64; 3], tolerance: f64) {
    let is_near = rates.iter().zip(expected).all(|(rate, other)| (rate - other).abs() < tolerance);
    assert!(is_near, "{rates:.1?} instead of {expected:?}");
}

/// Alike, but that the third has all it asks for. ns-3 3.37: 34.8, 32.6 and 29.2.
#[test]
fn dctcp_divides_a_link_evenly() {
    near(shares(&Plan::of(Law::Dctcp), 4, 20), [33.5, 33.0, 30.0], 2.0);
}

/// By promises of 3 : 2 : 1. ns-3 3.37: 47.8, 32.1 and 16.7; the paper's figure 8: 48, 31 and 17.
#[test]
fn qtcp_divides_a_link_by_promises() {
    near(shares(&Plan::of(Law::Qtcp), 4, 20), [47.4, 32.3, 16.7], 1.5);
}
