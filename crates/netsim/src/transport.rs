//! Transport: flows that carry messages over a network in packets, under a congestion control.
//!
//! # Problem
//! The edge of a network decides how tenants disturb each other: how much a sender has under way,
//! how it reacts to a mark or a loss, how soon it is answered. So a simulation of classes needs
//! senders and receivers that behave as real ones do, packet by packet, at the cost of a few dozen
//! nanoseconds for each.
//!
//! # Model
//! A flow carries messages in one direction, in order, over any carrier of packets. Its two ends
//! share nothing: all that passes between them are packets, but for the numbers and bounds of
//! messages, which a real application would write into its bytes. Two kinds:
//!
//! - **with a window** (DCTCP, D2TCP, QTCP): so much may be under way; selective acknowledgements;
//!   each answer has the mark of the packet that it answers.
//! - **with a rate** (DCQCN, QRDMA): a packet when the rate allows; notifications of marks; after a
//!   loss, everything from there again, or what is lost.
//!
//! # Mechanism
//! [`Transport`] holds all flows of a simulation. It takes messages, packets and its own events,
//! and returns through [`Out`] the packets to send and the time of its next call. It keeps no queue
//! of events and needs nothing about the network between its ends:
//!
//! ```
//! use tidegate_model::{Class, Rate};
//! use tidegate_netsim::net::Path;
//! use tidegate_netsim::net::packet::{FlowId, Packet};
//! use tidegate_sim::time::Picoseconds;
//! use tidegate_netsim::transport::{CongestionControl, FlowEvent, FlowPlan, FlowRoute};
//! use tidegate_netsim::transport::{FlowMessage, Out, Transport};
//!
//! /// A network that takes no time and loses nothing.
//! #[derive(Default)]
//! struct Wire(Vec<Packet>, Vec<u64>);
//! impl Out for Wire {
//!     fn send(&mut self, packet: Packet) {
//!         self.0.push(packet);
//!     }
//!     fn later(&mut self, _at: Picoseconds, _event: FlowEvent) {}
//!     fn arrived(&mut self, _flow: FlowId, message: u64) {
//!         self.1.push(message);
//!     }
//! }
//!
//! let mut transport = Transport::default();
//! let path = Path { there: 0, back: 0 };
//! let flow_route = FlowRoute { path, class: Class::High, line: Rate(12_500_000_000) };
//! let flow = transport.open(&FlowPlan::of(CongestionControl::Dctcp), flow_route);
//! let (mut wire, now) = (Wire::default(), Picoseconds::ZERO);
//! transport.send(now, flow, FlowMessage { number: 7, bytes: 3_000, deadline: None }, &mut wire);
//! while !wire.0.is_empty() {
//!     let packet = wire.0.remove(0);
//!     transport.on_packet(now, &packet, &mut wire);
//! }
//! assert_eq!(wire.1, [7]);
//! assert!(!transport.is_busy(flow));
//! ```
//!
//! Timers are lazy: one event each, which checks when it comes whether it is due. So a packet of a
//! window costs no event beside those of the network, and one of a rate costs one.
//!
//! # What is left out
//! Opening and closing a connection; memory that a receiver runs out of; a stack's and a NIC's own
//! time; probes for what is lost at the end (it waits for the timeout); and messages that overtake
//! each other within a flow.

mod cc;
mod inbox;
mod outbox;
mod plan;
mod sender;

use tidegate_algo::congestion::d2tcp::D2tcp;
use tidegate_algo::congestion::dcqcn::{Limiter, Notifier};
use tidegate_algo::congestion::dctcp::{Dctcp, Start, Window};
use tidegate_algo::congestion::qrdma::Qrdma;
use tidegate_algo::congestion::qtcp::{Interference, Qtcp};
use tidegate_algo::congestion::quality::{Objective, Quality};
use tidegate_model::{Class, Rate, Span};

pub use plan::{
    Aim, Answers, Beginning, CongestionControl, FlowPlan, RateParameters, Repeat, Sizes,
};
pub use sender::Repeats;

use crate::net::Path;
use crate::net::packet::{FlowId, Mark, Packet, PacketKind};
use cc::{Depth, FlowControl, Speed};
use inbox::{AnswerContent, Inbox};
use sender::Sender;
use tidegate_sim::time::Picoseconds;

/// Bytes of a notification beyond the headers of each packet: RoCE's reserved ones.
const NOTIFICATION: u16 = 16;

/// The transport's interface to the simulation around it.
pub trait Out {
    /// Takes a packet to its [`Packet::route`].
    fn send(&mut self, packet: Packet);
    /// Calls [`Transport::on_event`] with this at that point.
    fn later(&mut self, at: Picoseconds, event: FlowEvent);
    /// When the NIC that a route begins at has sent all that it holds now, by the latest
    /// information. Without a NIC, at once.
    fn nic_free_at(&self, _route: u32) -> Picoseconds {
        Picoseconds::ZERO
    }
    /// The whole of a message is at its receiver.
    fn arrived(&mut self, flow: FlowId, message: u64);
}

/// A flow's own events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEvent {
    flow: FlowId,
    what: What,
}

impl FlowEvent {
    const fn new(flow: FlowId, what: What) -> Self {
        Self { flow, what }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// No answer has come for long, perhaps.
    Timeout,
    /// An answer that was put off is due, perhaps.
    Answer,
    /// The rate allows the next packet.
    Pace,
    /// The rate may be raised, perhaps.
    Period,
}

/// A message for a flow to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMessage {
    /// Its number, reported when it arrives.
    pub number: u64,
    /// Its payload: 1 byte at least.
    pub bytes: u64,
    /// By when it should be acknowledged, for D2TCP.
    pub deadline: Option<Picoseconds>,
}

/// Where a flow goes, and as what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRoute {
    /// The ways there and back.
    pub path: Path,
    /// In which queues its packets wait. Answers to a flow with a rate are urgent: it has no other
    /// way to slow down.
    pub class: Class,
    /// The rate of the sender's line.
    pub line: Rate,
}

/// Properties of a flow that both its ends have.
#[derive(Clone, Copy, Debug)]
struct FlowParameters {
    flow: FlowId,
    path: Path,
    class: Class,
    /// Of what is answered.
    back_class: Class,
    sizes: Sizes,
}

/// A snapshot of a flow's control state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSnapshot {
    /// Bytes that may be under way; none for a flow with a rate.
    pub window: Option<u64>,
    /// How fast it may send, headers included; none for a flow with a window.
    pub rate: Option<Rate>,
    /// The smoothed part that was marked, 0 to 1.
    pub alpha: f64,
    /// The quality factor; one where its congestion control has none.
    pub quality: f64,
    /// The smoothed round trip; zero before the first.
    pub round_trip: Span,
}

#[derive(Debug)]
struct TransportFlow {
    parameters: FlowParameters,
    sender: Sender,
    inbox: Inbox,
    /// For a flow with a rate.
    notifier: Option<Notifier>,
}

/// All flows of a simulation, by number.
#[derive(Debug, Default)]
pub struct Transport {
    flows: Vec<TransportFlow>,
}

impl Transport {
    /// Opens a flow: the next number, from zero.
    ///
    /// # Panics
    /// If the plan does not pass [`FlowPlan::check`].
    pub fn open(&mut self, plan: &FlowPlan, flow_route: FlowRoute) -> FlowId {
        if let Err(error) = plan.check() {
            panic!("{error}");
        }
        let FlowRoute { path, class, line } = flow_route;
        let flow = FlowId(self.flows.len() as u32);
        let is_window = plan.cc.is_window();
        let back_class = if is_window { class } else { Class::Urgent };
        let limits = plan.rate.clone().unwrap_or_default();
        self.flows.push(TransportFlow {
            parameters: FlowParameters { flow, path, class, back_class, sizes: plan.packet() },
            sender: Sender::new(control(plan, &limits, line), plan.repeats(), plan.timeout),
            inbox: Inbox::new(plan.answer_policy()),
            notifier: (!is_window).then(|| Notifier::new(limits.notify())),
        });
        flow
    }

    /// How many flows there are.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// A flow is to carry a message, after those that it was given before.
    ///
    /// # Panics
    /// If the message is empty, or there is no such flow.
    pub fn send(&mut self, now: Picoseconds, id: FlowId, message: FlowMessage, out: &mut impl Out) {
        assert!(message.bytes > 0, "an empty message");
        let TransportFlow { parameters, sender, inbox, .. } = &mut self.flows[id.0 as usize];
        let end = sender.enqueue(now, &message, parameters, out);
        inbox.expect(end, message.number);
    }

    /// A packet has reached the host at the end of its way.
    #[inline]
    pub fn on_packet(&mut self, now: Picoseconds, packet: &Packet, out: &mut impl Out) {
        let flow = &mut self.flows[packet.flow.0 as usize];
        match packet.kind {
            PacketKind::Data => flow.on_data(now, packet, out),
            PacketKind::Acknowledgement => {
                flow.sender.on_answer(now, packet, &flow.parameters, out)
            }
            PacketKind::Notification => flow.sender.on_notification(now, &flow.parameters, out),
        }
    }

    /// Handles an event at a time that it requested.
    #[inline]
    pub fn on_event(&mut self, now: Picoseconds, event: FlowEvent, out: &mut impl Out) {
        let TransportFlow { parameters, sender, inbox, .. } =
            &mut self.flows[event.flow.0 as usize];
        if event.what != What::Answer {
            return sender.on_event(now, event.what, parameters, out);
        }
        if let Some(answer) = inbox.on_alarm(now) {
            out.send(parameters.answer(answer));
        } else if let Some(at) = inbox.alarm(now) {
            out.later(at, event);
        }
    }

    /// Promises a flow something else. Nothing if its congestion control uses none.
    ///
    /// # Panics
    /// If there is no such flow; as do all that follow.
    pub fn promise(&mut self, flow: FlowId, objective: Objective) {
        self.flows[flow.0 as usize].sender.control_mut().promise(objective);
    }

    /// Whether anything of a flow is not acknowledged.
    pub fn is_busy(&self, flow: FlowId) -> bool {
        self.flows[flow.0 as usize].sender.is_busy()
    }

    /// Payload of a flow that is at its receiver, in order.
    pub fn delivered(&self, flow: FlowId) -> u64 {
        self.flows[flow.0 as usize].inbox.delivered()
    }

    /// Counts of a flow's repeated packets and its timeouts.
    pub fn repeats(&self, flow: FlowId) -> Repeats {
        self.flows[flow.0 as usize].sender.counts()
    }

    /// A snapshot of a flow's control state.
    pub fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        let sender = &self.flows[flow.0 as usize].sender;
        let control = sender.control();
        let (window, rate, alpha) = match control {
            FlowControl::Window(window) => (Some(window.bytes()), None, window.alpha()),
            FlowControl::Rate { speed, .. } => {
                (None, Some(speed.limiter().rate()), speed.limiter().alpha())
            }
        };
        let quality = control.factor();
        FlowSnapshot { window, rate, alpha, quality, round_trip: sender.round_trip() }
    }

    /// How many messages were requested and have not arrived.
    pub(crate) fn under_way(&self) -> usize {
        self.flows.iter().map(|flow| flow.inbox.expected()).sum()
    }

    /// Checks what must always hold; for tests and debug runs.
    ///
    /// # Panics
    /// If it does not: what either end of a flow counts must add up, and no byte be acknowledged
    /// that has not arrived, or arrive that was not sent.
    pub(crate) fn check(&self) {
        for TransportFlow { sender, inbox, .. } in &self.flows {
            let [acknowledged, sent, written] = sender.check();
            inbox.check();
            let bounds = [acknowledged, inbox.delivered(), sent, written];
            assert!(bounds.is_sorted(), "acknowledged, arrived, sent, asked for: {bounds:?}");
        }
    }
}

impl TransportFlow {
    fn on_data(&mut self, now: Picoseconds, packet: &Packet, out: &mut impl Out) {
        for answer in self.inbox.on_packet(packet, now.time()).into_iter().flatten() {
            out.send(self.parameters.answer(answer));
        }
        if let Some(at) = self.inbox.alarm(now) {
            out.later(at, FlowEvent::new(self.parameters.flow, What::Answer));
        }
        if let Some(notifier) = &mut self.notifier
            && packet.mark == Mark::Congested
            && notifier.on_marked(now.time())
        {
            out.send(self.parameters.notification(now));
        }
        while let Some(message) = self.inbox.pop() {
            out.arrived(self.parameters.flow, message);
        }
    }
}

impl FlowParameters {
    /// A packet that goes back.
    const fn answer(&self, answer: AnswerContent) -> Packet {
        Packet {
            sequence: answer.sequence,
            sent: answer.sent,
            flow: self.flow,
            route: self.path.back,
            ahead: answer.ahead,
            payload: 0,
            wire: self.sizes.headers,
            kind: PacketKind::Acknowledgement,
            class: self.back_class,
            mark: answer.mark,
        }
    }

    /// The same, because of a mark.
    const fn notification(&self, now: Picoseconds) -> Packet {
        let nothing = AnswerContent { sequence: 0, ahead: 0, sent: now, mark: Mark::Clear };
        let packet = self.answer(nothing);
        let wire = self.sizes.headers + NOTIFICATION;
        Packet { kind: PacketKind::Notification, wire, ..packet }
    }
}

/// The first control state of a flow. Until its first promise, a flow that goes by promises has
/// none: it is one of DCTCP or DCQCN.
fn control(plan: &FlowPlan, limits: &RateParameters, line: Rate) -> FlowControl {
    let quality = Quality::new(Objective::Rate(Rate::MAX), plan.gamma);
    let depth = match plan.cc {
        CongestionControl::Dctcp => Depth::Even(Dctcp),
        CongestionControl::D2tcp => Depth::Deadline(D2tcp::default()),
        CongestionControl::Qtcp => Depth::Promise(match plan.interference {
            Some(sigma) => Qtcp::with_interference(quality, Interference::new(sigma)),
            None => Qtcp::new(quality),
        }),
        CongestionControl::Dcqcn | CongestionControl::Qrdma => {
            let parameters = limits.parameters(line);
            let speed = if plan.cc == CongestionControl::Qrdma {
                Speed::Promise(Qrdma::new(parameters, quality, limits.aim.into()))
            } else {
                Speed::Even(Limiter::new(parameters))
            };
            return FlowControl::Rate { speed, free_at: Picoseconds::ZERO };
        }
    };
    let Beginning { first, alpha, gain } = plan.window.unwrap_or_default();
    let segment = u32::from(plan.packet().payload);
    FlowControl::Window(Window::new(Start { segment, window: first, alpha, gain }, depth))
}

#[cfg(test)]
#[path = "transport/tests.rs"]
mod tests;
