use super::*;
use crate::event::{Heap, Queue, Wheel};
use crate::rng::Stream;
use proptest::prelude::*;

const LINE: Rate = Rate(12_500_000_000);
const PATH: Path = Path { there: 0, back: 0 };
const ROAD: Road = Road { path: PATH, class: Class::Medium, line: LINE };

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
                    pipe.queue.push(now.after(micros(10)), Happening::Packet(packet));
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
