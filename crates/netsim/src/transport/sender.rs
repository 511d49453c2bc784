//! The sender of a flow: it cuts messages into packets, and sends them at the pace of its
//! congestion control.
//!
//! # Mechanism
//! Messages stand one after the other in a stream of bytes. A flow with a window sends while what
//! is under way fits into it, and a packet may carry the end of one message and the beginning of
//! the next. A flow with a rate sends a packet, and the next one when the rate allows and its
//! host's NIC has sent all that it held by then; a packet carries bytes of one message, as with
//! RDMA. Lost packets go first.
//!
//! So flows of one host take turns at its NIC, as queue pairs do, and hold one packet each there.
//! Were they to go by their rates alone, ten of them that may use all of the line would fill the
//! NIC with ten lines' worth, and what a notification takes from their rates would be felt when
//! all that is sent. While a NIC is paused, the time that it takes is unknown, and more waits
//! there.
//!
//! Round trips are smoothed by RFC 6298, and the timeout follows from them; each further timeout in
//! a row doubles it. An acknowledgement carries the time at which its packet was sent, so every
//! acknowledgement is a sample, even that of a packet that was sent twice (RFC 7323).
//!
//! Congestion control sees marks, losses and timeouts; after a loss, no other until everything is
//! acknowledged that was sent by then. Losses do not change a rate: DCQCN was made for networks
//! that lose nothing.

use std::collections::VecDeque;

use tidegate_algo::congestion::d2tcp::RemainingWork;
use tidegate_algo::congestion::dctcp::Ack;
use tidegate_algo::congestion::quality::{Objective, Transfer};
use tidegate_model::{Span, Time};

use super::cc::{Depth, FlowControl, time};
use super::outbox::Outbox;
use super::plan::Repeat;
use super::{FlowEvent, FlowMessage, FlowParameters, Out, What};
use crate::net::packet::{Mark, Packet, PacketKind};
use tidegate_sim::alarm::Alarm;
use tidegate_sim::time::Picoseconds;

/// How often a timeout is doubled at most.
const DOUBLINGS_MAX: u32 = 6;

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    control: FlowControl,
    repeat: Repeat,
    outbox: Outbox,
    /// Bytes of all messages so far.
    written: u64,
    messages: VecDeque<PendingMessage>,
    /// Which of them is being sent.
    current: usize,
    /// Whether the window is what keeps it from sending.
    is_limited: bool,
    /// A loss was answered; the next one counts when everything before this byte is acknowledged.
    recovery: Option<u64>,
    trip: Trip,
    /// When everything is taken for lost.
    deadline: Time,
    alarm: Alarm,
    /// Whether an event waits for when the rate allows the next packet.
    is_paced: bool,
    /// For the timer of a rate.
    period: Alarm,
    counts: Repeats,
}

/// A message that is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct PendingMessage {
    end: u64,
    at: Picoseconds,
    deadline: Option<Picoseconds>,
}

/// Counts of a flow's repeated packets and its timeouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Packets that it sent again.
    pub packets: u64,
    /// Times at which it took everything for lost.
    pub timeouts: u64,
}

/// Round trips, and what timeout follows from them.
#[derive(Clone, Copy, Debug)]
struct Trip {
    least: Span,
    /// Picoseconds; none before the first.
    smoothed: Option<u64>,
    deviation: u64,
    doublings: u32,
}

impl Trip {
    /// RFC 6298, section 2.
    fn observe(&mut self, Picoseconds(sample): Picoseconds) {
        let Some(smoothed) = &mut self.smoothed else {
            (self.smoothed, self.deviation) = (Some(sample), sample / 2);
            return;
        };
        self.deviation = self.deviation - self.deviation / 4 + smoothed.abs_diff(sample) / 4;
        *smoothed = *smoothed - *smoothed / 8 + sample / 8;
    }

    fn smoothed(&self) -> Span {
        Span(self.smoothed.unwrap_or(0) / 1_000)
    }

    fn timeout(&self) -> Span {
        let usual = self.smoothed.map_or(0, |smoothed| (smoothed + 4 * self.deviation) / 1_000);
        Span(self.least.0.max(usual) << self.doublings)
    }
}

impl Sender {
    pub(super) const fn new(control: FlowControl, repeat: Repeat, timeout: Span) -> Self {
        let trip = Trip { least: timeout, smoothed: None, deviation: 0, doublings: 0 };
        Self {
            control,
            repeat,
            outbox: Outbox::NEW,
            written: 0,
            messages: VecDeque::new(),
            current: 0,
            is_limited: false,
            recovery: None,
            trip,
            deadline: Time::MAX,
            alarm: Alarm::OFF,
            is_paced: false,
            period: Alarm::OFF,
            counts: Repeats { packets: 0, timeouts: 0 },
        }
    }

    pub(super) const fn control(&self) -> &FlowControl {
        &self.control
    }

    pub(super) const fn control_mut(&mut self) -> &mut FlowControl {
        &mut self.control
    }

    pub(super) const fn counts(&self) -> Repeats {
        self.counts
    }

    pub(super) fn round_trip(&self) -> Span {
        self.trip.smoothed()
    }

    /// Whether anything is not acknowledged.
    pub(super) const fn is_busy(&self) -> bool {
        self.outbox.acknowledged() < self.written
    }

    /// Takes a message on. Where it ends.
    pub(super) fn enqueue(
        &mut self,
        now: Picoseconds,
        message: &FlowMessage,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) -> u64 {
        self.written += message.bytes;
        let (end, deadline) = (self.written, message.deadline);
        self.messages.push_back(PendingMessage { end, at: now, deadline });
        self.go_on(now, parameters, out);
        end
    }

    pub(super) fn on_answer(
        &mut self,
        now: Picoseconds,
        answer: &Packet,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) {
        let trip = now.since(answer.sent);
        self.trip.observe(trip);
        let news = match self.repeat {
            Repeat::Lost => self.outbox.on_answer(answer),
            Repeat::All => self.outbox.on_complaint(answer),
        };
        let (acknowledged, sent) = (self.outbox.acknowledged(), self.outbox.next());
        self.finish(acknowledged);
        self.set_work(acknowledged);
        if self.recovery.is_some_and(|end| acknowledged >= end) {
            self.recovery = None;
        }
        if let FlowControl::Window(window) = &mut self.control {
            window.on_ack(&Ack {
                now: now.time(),
                delivered: news.delivered,
                is_marked: answer.mark == Mark::Congested,
                acknowledged,
                sent,
                round_trip: Span(trip.0 / 1_000),
                is_limited: self.is_limited,
            });
            if news.is_loss && self.recovery.is_none() {
                window.on_loss(sent);
                self.recovery = Some(sent);
            }
        }
        if news.delivered > 0 {
            self.trip.doublings = 0;
            self.deadline = Time::MAX;
        }
        self.go_on(now, parameters, out);
    }

    /// The receiver met congestion.
    pub(super) fn on_notification(
        &mut self,
        now: Picoseconds,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) {
        if let FlowControl::Rate { speed, .. } = &mut self.control {
            speed.on_notification(now.time());
            self.set_period(now, parameters, out);
        }
    }

    /// An event of its own.
    pub(super) fn on_event(
        &mut self,
        now: Picoseconds,
        what: What,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) {
        match what {
            What::Timeout => {
                self.alarm.ring(now);
                if now >= Picoseconds::from(self.deadline) {
                    self.on_timeout();
                }
            }
            What::Pace => self.is_paced = false,
            What::Period => {
                self.period.ring(now);
                if let FlowControl::Rate { speed, .. } = &mut self.control {
                    speed.on_timer(now.time());
                    self.set_period(now, parameters, out);
                }
                return;
            }
            What::Answer => return,
        }
        self.go_on(now, parameters, out);
    }

    fn on_timeout(&mut self) {
        self.outbox.lose_all();
        self.deadline = Time::MAX;
        self.counts.timeouts += 1;
        self.trip.doublings = (self.trip.doublings + 1).min(DOUBLINGS_MAX);
        if let FlowControl::Window(window) = &mut self.control {
            window.on_timeout();
        }
    }

    /// Puts the timer of the rate into the queue of events, if it is not there.
    fn set_period(&mut self, now: Picoseconds, parameters: &FlowParameters, out: &mut impl Out) {
        if let FlowControl::Rate { speed, .. } = &self.control
            && let Some(due) = speed.limiter().due()
            && let Some(at) = self.period.set(now, due)
        {
            out.later(at, FlowEvent::new(parameters.flow, What::Period));
        }
    }

    /// Passes the rest of the first message to a congestion control with deadlines or latencies.
    fn set_work(&mut self, acknowledged: u64) {
        let message = self.messages.front();
        let left = |message: &PendingMessage| message.end - acknowledged;
        if let FlowControl::Window(window) = &mut self.control
            && let Depth::Deadline(cc) = window.control_mut()
        {
            cc.set(message.and_then(|message| {
                Some(RemainingWork { left: left(message), deadline: message.deadline?.time() })
            }));
        } else if let Some(quality) = self.control.quality_mut()
            && let Objective::Latency(_) = quality.objective()
        {
            quality.carry(
                message.map(|message| Transfer {
                    requested_at: message.at.time(),
                    left: left(message),
                }),
            );
        }
    }

    /// Drops the messages that are acknowledged.
    fn finish(&mut self, acknowledged: u64) {
        while self.messages.pop_front_if(|other| other.end <= acknowledged).is_some() {
            self.current = self.current.saturating_sub(1);
        }
    }

    /// Sends what may be sent, and sees to the timers.
    fn go_on(&mut self, now: Picoseconds, parameters: &FlowParameters, out: &mut impl Out) {
        self.is_limited = false;
        while let Some(bytes) = self.outbox.lost().or_else(|| self.unsent(parameters)) {
            if !self.may_send(now, bytes, parameters, out) {
                break;
            }
            self.transmit(now, bytes, parameters, out);
        }
        if self.outbox.is_empty() {
            self.deadline = Time::MAX;
            return;
        }
        if self.deadline == Time::MAX {
            self.deadline = now.time().after(self.trip.timeout());
        }
        if let Some(at) = self.alarm.set(now, self.deadline) {
            out.later(at, FlowEvent::new(parameters.flow, What::Timeout));
        }
    }

    /// How many bytes the next new packet carries; none if there is nothing to send.
    fn unsent(&mut self, parameters: &FlowParameters) -> Option<u16> {
        let next = self.outbox.next();
        let end = match &self.control {
            FlowControl::Window(_) => self.written,
            FlowControl::Rate { .. } => {
                while self.messages.get(self.current).is_some_and(|message| message.end <= next) {
                    self.current += 1;
                }
                self.messages.get(self.current).map_or(next, |message| message.end)
            }
        };
        let left = (end - next).min(u64::from(parameters.sizes.payload)) as u16;
        (left > 0).then_some(left)
    }

    /// Whether a packet may go. If the rate forbids it for now, sets a timer to try again.
    fn may_send(
        &mut self,
        now: Picoseconds,
        bytes: u16,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) -> bool {
        match &self.control {
            FlowControl::Window(window) => {
                let in_flight = self.outbox.in_flight();
                // A window is a segment at least: where nothing is under way, one packet may go.
                let may = in_flight + u64::from(bytes) <= window.bytes();
                self.is_limited = !may;
                may
            }
            FlowControl::Rate { free_at, .. } => {
                let may = *free_at <= now;
                if !may && !self.is_paced {
                    self.is_paced = true;
                    out.later(*free_at, FlowEvent::new(parameters.flow, What::Pace));
                }
                may
            }
        }
    }

    /// Sends one packet: what was lost, else what is new.
    fn transmit(
        &mut self,
        now: Picoseconds,
        bytes: u16,
        parameters: &FlowParameters,
        out: &mut impl Out,
    ) {
        let sequence = if self.outbox.has_lost() {
            self.counts.packets += 1;
            self.outbox.send_again(now)
        } else {
            self.outbox.send(now, bytes)
        };
        let wire = bytes + parameters.sizes.headers;
        if let FlowControl::Rate { speed, free_at } = &mut self.control {
            *free_at = now.after(time(wire, speed.limiter().rate()));
            speed.on_sent(now.time(), u64::from(bytes));
        }
        out.send(Packet {
            sequence,
            sent: now,
            flow: parameters.flow,
            route: parameters.path.there,
            ahead: 0,
            payload: bytes,
            wire,
            kind: PacketKind::Data,
            class: parameters.class,
            mark: Mark::Clear,
        });
        if let FlowControl::Rate { free_at, .. } = &mut self.control {
            *free_at = (*free_at).max(out.nic_free_at(parameters.path.there));
        }
    }

    /// Checks its counts. Returns the first byte that is not acknowledged, that was never sent, and
    /// that was never requested.
    pub(super) fn check(&self) -> [u64; 3] {
        self.outbox.check();
        [self.outbox.acknowledged(), self.outbox.next(), self.written]
    }
}
