use super::*;
use proptest::prelude::*;
use tidegate_sim::event::{EventQueue, Heap, Wheel};
use tidegate_sim::rng::Stream;

const LINE: Rate = Rate(12_500_000_000);
const PATH: Path = Path { there: 0, back: 0 };
const ROUTE: FlowRoute = FlowRoute { path: PATH, class: Class::Medium, line: LINE };

fn micros(number: u64) -> Picoseconds {
    Picoseconds(number * 1_000_000)
}

/// Faults of a pipe: lost, marked and delayed packets.
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
enum SimEvent {
    Send(FlowMessage),
    Packet(Packet),
    Flow(FlowEvent),
    /// No packet passed it for long.
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

impl<Q: EventQueue<SimEvent>> Out for Pipe<Q> {
    fn send(&mut self, packet: Packet) {
        let mut packet = packet;
        let is_data = packet.kind == PacketKind::Data;
        let loss = if is_data { self.harm.data_lost } else { self.harm.answers_lost };
        if self.random.happens(loss) {
            self.lost += 1;
            return;
        }
        if !is_data {
            let delay = 10_000_000 + self.random.below(5_000_000);
            return self.queue.push(self.now.after(Picoseconds(delay)), SimEvent::Packet(packet));
        }
        if self.random.happens(self.harm.marked) {
            packet.mark = Mark::Congested;
        }
        if self.held.is_none() && self.random.happens(self.harm.held) {
            self.held = Some((packet, 2));
            self.queue.push(self.now.after(micros(30)), SimEvent::Release);
            return;
        }
        self.queue.push(self.now.after(micros(10)), SimEvent::Packet(packet));
        if let Some((held, left)) = &mut self.held {
            *left -= 1;
            if *left == 0 {
                let held = *held;
                self.held = None;
                self.queue.push(self.now.after(micros(10)), SimEvent::Packet(held));
            }
        }
    }

    fn later(&mut self, at: Picoseconds, event: FlowEvent) {
        self.queue.push(at, SimEvent::Flow(event));
    }

    fn arrived(&mut self, _flow: FlowId, message: u64) {
        self.arrived.push((self.now, message));
    }
}

/// Carries messages of these sizes, each asked for so many microseconds after the one before, until
/// nothing happens any more. Returns the arrivals, the counts of repeats, and the lost packets.
fn carry<Q: EventQueue<SimEvent> + Default>(
    plan: &FlowPlan,
    harm: Harm,
    messages: &[(u64, u64)],
) -> (Vec<(Picoseconds, u64)>, Repeats, u64) {
    let random = Stream::new(1, "pipe", 0);
    let (queue, arrived) = (Q::default(), Vec::new());
    let mut pipe = Pipe { now: micros(0), queue, harm, random, held: None, arrived, lost: 0 };
    let mut transport = Transport::default();
    let flow = transport.open(plan, ROUTE);
    let (mut at, mut sum) = (micros(0), 0);
    for (number, (bytes, gap)) in (0..).zip(messages) {
        at = at.after(micros(*gap));
        sum += bytes;
        let deadline = Some(at.after(micros(99)));
        pipe.queue.push(at, SimEvent::Send(FlowMessage { number, bytes: *bytes, deadline }));
    }
    let mut events = 0;
    while let Some((now, event)) = pipe.queue.pop() {
        pipe.now = now;
        match event {
            SimEvent::Send(message) => transport.send(now, flow, message, &mut pipe),
            SimEvent::Packet(packet) => transport.on_packet(now, &packet, &mut pipe),
            SimEvent::Flow(event) => transport.on_event(now, event, &mut pipe),
            SimEvent::Release => {
                if let Some((packet, _)) = pipe.held.take() {
                    pipe.queue.push(now.after(micros(10)), SimEvent::Packet(packet));
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

fn plan() -> impl Strategy<Value = FlowPlan> {
    let cc_variants = vec![
        CongestionControl::Dctcp,
        CongestionControl::D2tcp,
        CongestionControl::Qtcp,
        CongestionControl::Dcqcn,
        CongestionControl::Qrdma,
    ];
    let answer =
        prop::option::of((1u32..5).prop_map(|every| Answers { every, within: Span(500_000) }));
    (prop::sample::select(cc_variants), answer, any::<bool>()).prop_map(|(cc, answer, is_lost)| {
        let repeat = if is_lost { Repeat::Lost } else { Repeat::All };
        let rate =
            (!cc.is_window()).then(|| RateParameters { repeat, ..RateParameters::default() });
        FlowPlan { answer, rate, ..FlowPlan::of(cc) }
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
        let outcome = carry::<Heap<SimEvent>>(&plan, harm, &messages);
        prop_assert_eq!(numbers(&outcome.0), (0..messages.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(&outcome, &carry::<Wheel<SimEvent>>(&plan, harm, &messages));
    }

    /// Where nothing is lost, nothing is sent twice: a packet may be late by two others, and an
    /// answer by any; but where everything is sent again, there is no being late.
    #[test]
    fn nothing_is_repeated_without_loss(
        plan in plan(), messages in messages(), marked in 0u32..500_000, held in 0u32..500_000,
    ) {
        let held = if plan.repeats() == Repeat::All { 0 } else { held };
        let harm = Harm { data_lost: 0, answers_lost: 0, marked, held };
        let (arrived, repeats, lost) = carry::<Heap<SimEvent>>(&plan, harm, &messages);
        prop_assert_eq!(lost, 0);
        prop_assert_eq!(arrived.len(), messages.len());
        prop_assert_eq!(repeats, Repeats::default());
    }
}

const SAFE: Harm = Harm { data_lost: 0, answers_lost: 0, marked: 0, held: 0 };

/// A window of ten packets, doubled each round trip: 1,000 packets take seven of them.
#[test]
fn a_window_opens() {
    let packet = Some(Sizes { payload: 1_000, headers: 54 });
    let plan = FlowPlan { packet, ..FlowPlan::of(CongestionControl::Dctcp) };
    let (arrived, ..) = carry::<Heap<SimEvent>>(&plan, SAFE, &[(1_000_000, 0)]);
    // 10 + 20 + ... + 640 = 1,270; each after a way there and back, of 20 to 25 us.
    let trips = (arrived[0].0.0 - micros(10).0) / micros(20).0;
    assert_eq!(trips, 6, "{:?}", arrived[0].0);
}

/// A rate of 100 Gbit/s: 1,024 bytes of 1,086 on the wire.
#[test]
fn a_rate_is_kept_to_the_picosecond() {
    let plan = FlowPlan::of(CongestionControl::Dcqcn);
    let (arrived, ..) = carry::<Heap<SimEvent>>(&plan, SAFE, &[(102_400, 0), (1, 0)]);
    let last = Picoseconds(99 * 1_086 * 80);
    assert_eq!(
        arrived,
        [(micros(10).after(last), 0), (micros(10).after(Picoseconds(100 * 1_086 * 80)), 1)]
    );
}

/// Takes everything and delivers nothing; keeps the last event for which it was asked.
struct Void {
    now: Picoseconds,
    sent: Vec<(Picoseconds, u64)>,
    event: Option<(Picoseconds, FlowEvent)>,
}

impl Void {
    const NEW: Self = Self { now: Picoseconds::ZERO, sent: Vec::new(), event: None };
}

impl Out for Void {
    fn send(&mut self, packet: Packet) {
        self.sent.push((self.now, packet.sequence));
    }

    fn later(&mut self, at: Picoseconds, event: FlowEvent) {
        assert!(self.event.replace((at, event)).is_none(), "one event for each timer");
    }

    fn arrived(&mut self, _flow: FlowId, _message: u64) {}
}

/// An answer to what was sent then.
pub(super) fn answer(sequence: u64, ahead: u32, sent: Picoseconds) -> Packet {
    Packet {
        sequence,
        sent,
        flow: FlowId(0),
        route: 0,
        ahead,
        payload: 0,
        wire: 54,
        kind: PacketKind::Acknowledgement,
        class: Class::Medium,
        mark: Mark::Clear,
    }
}

/// Nothing is answered until the third time: after the least timeout, and twice as long, and twice
/// as long again. The next message begins with the least.
#[test]
fn timeouts_double() {
    let (mut transport, mut void) = (Transport::default(), Void::NEW);
    let flow = transport.open(&FlowPlan::of(CongestionControl::Dctcp), ROUTE);
    let message = FlowMessage { number: 0, bytes: 100, deadline: None };
    transport.send(micros(0), flow, message, &mut void);
    for _ in 0..3 {
        let (at, event) = void.event.take().unwrap();
        void.now = at;
        transport.on_event(at, event, &mut void);
    }
    assert_eq!(void.sent, [0, 10_000, 30_000, 70_000].map(|at| (micros(at), 0)));
    assert_eq!(transport.repeats(flow), Repeats { packets: 3, timeouts: 3 });
    let (old, event) = void.event.take().unwrap();
    assert_eq!(old, micros(150_000));
    transport.on_packet(micros(70_020), &answer(100, 0, micros(70_000)), &mut void);
    assert_eq!(transport.snapshot(flow).round_trip, Span(20_000));
    transport.send(micros(145_000), flow, message, &mut void);
    assert_eq!(void.event, None, "the old one is still in the queue");
    transport.on_event(old, event, &mut void);
    assert_eq!(void.event, Some((micros(155_000), event)));
    assert_eq!(transport.repeats(flow).timeouts, 3);
}

/// Two of ten packets are lost: the window is halved once, and both are sent again.
#[test]
fn a_window_is_halved_once_for_all_that_is_lost() {
    let (mut transport, mut void) = (Transport::default(), Void::NEW);
    let flow = transport.open(&FlowPlan::of(CongestionControl::Dctcp), ROUTE);
    let message = FlowMessage { number: 0, bytes: 14_480, deadline: None };
    transport.send(micros(0), flow, message, &mut void);
    assert_eq!(void.sent.len(), 10);
    // The first and the fourth are missing.
    for packet in [1, 2, 4, 5, 6, 7, 8, 9] {
        let answer = answer(0, packet * 1_448, micros(0));
        transport.on_packet(micros(20), &answer, &mut void);
    }
    assert_eq!(void.sent[10..].iter().map(|(_, start)| *start).collect::<Vec<_>>(), [0, 4_344]);
    assert_eq!(transport.snapshot(flow).window, Some(5 * 1_448));
}

#[test]
fn plans_that_are_refused() {
    let refused = |text: &str, message: &str| {
        let error = FlowPlan::parse(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    refused("law = 'reno'", "reno");
    refused("law = 'dctcp'\nalhpa = 1", "alhpa");
    refused("law = 'dctcp'\nwindow.alpha = 1.5", "window.alpha: from 0.0 to 1.0");
    refused("law = 'dctcp'\nrate.volume = '1MB'", "only for dcqcn or qrdma");
    refused("law = 'qrdma'\nwindow.first = 2", "only for dctcp, d2tcp or qtcp");
    refused("law = 'dctcp'\ninterference = 0.05", "only for qtcp");
    refused("law = 'dctcp'\ntimeout = '100us'", "answer.within");
    refused("law = 'dctcp'\ntimeout = '61s'", "timeout: at most \"60s\"");
    refused("law = 'dctcp'\nanswer.every = 0", "answer.every: from 1 to 64");
    refused("law = 'dcqcn'\nrate.period = '0s'", "rate.period");
    refused("law = 'dcqcn'\nrate.additive = '0B/s'", "rate.additive");
    refused("law = 'dcqcn'\npacket = { payload = 10, headers = 62 }", "packet.payload");
}
