//! The receiver of a flow: the bytes that have arrived, and the acknowledgements.
//!
//! # Problem
//! A receiver has to hand on every byte once and in order, whatever the network does to packets,
//! and to report enough about them that the sender guesses little, in as few packets as will do.
//!
//! # Mechanism
//! **Order.** The receiver keeps the bounds of data that has arrived out of order. Or it drops such
//! data, as NICs without memory for it do (go-back-N).
//!
//! **Times of acknowledgements.** The receiver acknowledges every n-th packet. It acknowledges at
//! once a packet that is out of order, fills a gap, is a duplicate or, as an option, ends a
//! message. A delayed acknowledgement is sent after a pause without packets, and before a packet
//! whose mark differs (RFC 8257, section 3.2).
//!
//! **Contents.** An acknowledgement carries the time at which the acknowledged packet was sent, and
//! its congestion mark. So the sender measures round trips without a list of sent packets, even of
//! packets that it has sent twice.
//!
//! A receiver that drops what is out of order reports it once for each gap: if it reported each
//! packet, the sender would send everything again once for each.
//!
//! Left out: bounds on its memory. Storage nodes and their clients reserve memory for all messages
//! that they expect.

use std::collections::VecDeque;

use tidegate_model::{Span, Time};

use crate::net::packet::{Mark, Packet};
use tidegate_sim::alarm::Alarm;
use tidegate_sim::time::Picoseconds;

/// When and how a receiver answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerPolicy {
    /// For every so many packets in order.
    pub(super) every: u32,
    /// Or when no more came for so long.
    pub(super) within: Span,
    /// Whether the end of a message is answered at once.
    pub(super) at_ends: bool,
    /// Whether what is out of order is kept.
    pub(super) keeps: bool,
}

/// The content of an answer beside its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerContent {
    /// The first byte that is missing.
    pub(super) sequence: u64,
    /// How many bytes after it the packet begins that is answered; zero if it is in order.
    pub(super) ahead: u32,
    pub(super) sent: Picoseconds,
    pub(super) mark: Mark,
}

/// The receiving end of a flow.
#[derive(Debug)]
pub(super) struct Inbox {
    answer_policy: AnswerPolicy,
    /// The first byte that is missing.
    next: u64,
    /// Ranges that have arrived behind it: first bytes and first bytes after, in order, with gaps
    /// between.
    ahead: VecDeque<(u64, u64)>,
    /// Where messages end that have not arrived, and their numbers.
    messages: VecDeque<(u64, u64)>,
    /// The last packet in order that was not answered, and how many there are.
    put_off: Option<Packet>,
    count: u32,
    deadline: Time,
    alarm: Alarm,
    /// The gap for which it has reported that it drops what is behind.
    complained: Option<u64>,
}

impl Inbox {
    pub(super) const fn new(answer_policy: AnswerPolicy) -> Self {
        Self {
            answer_policy,
            next: 0,
            ahead: VecDeque::new(),
            messages: VecDeque::new(),
            put_off: None,
            count: 0,
            deadline: Time::MAX,
            alarm: Alarm::OFF,
            complained: None,
        }
    }

    /// A message will end here. On a wire its bounds are in its own bytes; they are no business of
    /// the transport.
    pub(super) fn expect(&mut self, end: u64, number: u64) {
        self.messages.push_back((end, number));
    }

    /// How many bytes have arrived in order.
    pub(super) const fn delivered(&self) -> u64 {
        self.next
    }

    /// The next message that has arrived as a whole and was not handed on.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let (_, number) = self.messages.pop_front_if(|(end, _)| *end <= self.next)?;
        Some(number)
    }

    /// A packet has arrived. Returns the answers: at most the one that was put off, and then this
    /// one.
    pub(super) fn on_packet(&mut self, packet: &Packet, now: Time) -> [Option<AnswerContent>; 2] {
        let (start, end) = (packet.sequence, packet.sequence + u64::from(packet.payload));
        if start == self.next {
            // The answer that was put off is for earlier packets, and not for this packet.
            let is_change = self.put_off.is_some_and(|other| other.mark != packet.mark);
            let earlier = if is_change { self.flush() } else { None };
            let was_gap = !self.ahead.is_empty();
            self.next = end;
            self.join();
            return [earlier, self.on_order(packet, was_gap, now)];
        }
        let earlier = self.flush();
        if start > self.next {
            if !self.answer_policy.keeps {
                let is_new = self.complained.replace(self.next) != Some(self.next);
                return [earlier, is_new.then(|| self.answer(packet))];
            }
            self.keep(start, end);
        }
        [earlier, Some(self.answer(packet))]
    }

    /// A packet has arrived that was the next, marked as those before it. Its answer, if that is
    /// not put off.
    fn on_order(&mut self, packet: &Packet, was_gap: bool, now: Time) -> Option<AnswerContent> {
        self.count += 1;
        let at_end = || self.answer_policy.at_ends && self.ends_at(self.next);
        if was_gap || self.count >= self.answer_policy.every || at_end() {
            self.put_off = None;
            self.count = 0;
            return Some(self.answer(packet));
        }
        if self.put_off.replace(*packet).is_none() {
            self.deadline = now.after(self.answer_policy.within);
        }
        None
    }

    /// Whether a message ends before this byte that has not been handed on.
    fn ends_at(&self, byte: u64) -> bool {
        self.messages.front().is_some_and(|(end, _)| *end <= byte)
    }

    /// The answer to a packet, by what has arrived by now.
    fn answer(&self, packet: &Packet) -> AnswerContent {
        let ahead = packet.sequence.saturating_sub(self.next) as u32;
        AnswerContent { sequence: self.next, ahead, sent: packet.sent, mark: packet.mark }
    }

    /// Returns the answer that was put off, if any.
    fn flush(&mut self) -> Option<AnswerContent> {
        self.count = 0;
        let packet = self.put_off.take()?;
        Some(self.answer(&packet))
    }

    /// When to call [`Self::on_alarm`], if that is to be put into the queue of events.
    pub(super) fn alarm(&mut self, now: Picoseconds) -> Option<Picoseconds> {
        self.put_off?;
        self.alarm.set(now, self.deadline)
    }

    /// The time has come for what was put off, or not yet.
    pub(super) fn on_alarm(&mut self, now: Picoseconds) -> Option<AnswerContent> {
        self.alarm.ring(now);
        if Picoseconds::from(self.deadline) <= now { self.flush() } else { None }
    }

    /// Keeps what is out of order.
    fn keep(&mut self, start: u64, end: u64) {
        let at = self.ahead.partition_point(|(_, other)| *other < start);
        match self.ahead.get_mut(at) {
            Some((from, to)) if *from <= end => {
                (*from, *to) = ((*from).min(start), (*to).max(end));
            }
            _ => self.ahead.insert(at, (start, end)),
        }
        let (_, end) = self.ahead[at];
        if let Some((from, to)) = self.ahead.get(at + 1).copied()
            && from <= end
        {
            self.ahead[at].1 = to.max(end);
            self.ahead.remove(at + 1);
        }
    }

    /// Moves on over what was kept.
    fn join(&mut self) {
        while let Some((_, end)) = self.ahead.pop_front_if(|(start, _)| *start <= self.next) {
            self.next = self.next.max(end);
        }
    }

    /// How many messages are yet to arrive.
    pub(super) fn expected(&self) -> usize {
        self.messages.len()
    }

    /// Checks that what it keeps is in order, with gaps between.
    pub(super) fn check(&self) {
        let mut last = self.next;
        for (start, end) in &self.ahead {
            assert!(last < *start && start < end);
            last = *end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::packet::{FlowId, PacketKind};
    use proptest::prelude::*;
    use tidegate_model::Class;

    const EVERY_SECOND: AnswerPolicy =
        AnswerPolicy { every: 2, within: Span(500_000), at_ends: false, keeps: true };

    fn data(sequence: u64, mark: Mark) -> Packet {
        Packet {
            sequence,
            sent: Picoseconds(sequence + 1),
            flow: FlowId(0),
            route: 0,
            ahead: 0,
            payload: 10,
            wire: 64,
            kind: PacketKind::Data,
            class: Class::Medium,
            mark,
        }
    }

    /// Answers, as the first missing byte, how far ahead, and whether marked.
    fn answers_of(
        answers: impl IntoIterator<Item = Option<AnswerContent>>,
    ) -> Vec<(u64, u32, bool)> {
        let answers = answers.into_iter().flatten();
        answers.map(|it| (it.sequence, it.ahead, it.mark == Mark::Congested)).collect()
    }

    /// Every second packet; at once where a packet is missing, was missing, or was there before;
    /// and before a packet that is marked where the last was not, for those before it alone (RFC
    /// 8257, section 3.2).
    #[test]
    fn when_it_answers() {
        let mut inbox = Inbox::new(EVERY_SECOND);
        let mut take =
            |sequence, mark| answers_of(inbox.on_packet(&data(sequence, mark), Time::ZERO));
        let (clear, marked) = (Mark::Clear, Mark::Congested);
        assert_eq!(take(0, clear), []);
        assert_eq!(take(10, clear), [(20, 0, false)]);
        assert_eq!(take(20, clear), []);
        assert_eq!(take(30, marked), [(30, 0, false)]);
        assert_eq!(take(40, marked), [(50, 0, true)]);
        assert_eq!(take(60, clear), [(50, 10, false)]);
        assert_eq!(take(80, clear), [(50, 30, false)]);
        assert_eq!(take(50, clear), [(70, 0, false)]);
        assert_eq!(take(50, clear), [(70, 0, false)]);
        assert_eq!(take(70, marked), [(90, 0, true)]);
        inbox.check();
    }

    proptest! {
        /// However many packets an answer is for, as many bytes are reported as marked as were.
        #[test]
        fn answers_report_which_bytes_were_marked(
            every in 1u32..6, marks in prop::collection::vec(any::<bool>(), 1..80),
        ) {
            let mut inbox = Inbox::new(AnswerPolicy { every, ..EVERY_SECOND });
            let mut answers = Vec::new();
            for (start, is_marked) in (0..).step_by(10).zip(&marks) {
                let mark = if *is_marked { Mark::Congested } else { Mark::Clear };
                answers.extend(inbox.on_packet(&data(start, mark), Time::ZERO));
            }
            answers.push(inbox.on_alarm(Picoseconds::from(Time(500_000))));
            let (mut reported, mut until) = (Vec::new(), 0);
            for (sequence, _, is_marked) in answers_of(answers) {
                reported.extend((until..sequence).step_by(10).map(|_| is_marked));
                until = sequence;
            }
            prop_assert_eq!(reported, marks);
        }
    }

    /// An event that comes for an answer that has gone is set anew for the next.
    #[test]
    fn what_is_put_off_goes_out_in_time() {
        let mut inbox = Inbox::new(EVERY_SECOND);
        let at = |nanoseconds| Picoseconds::from(Time(nanoseconds));
        assert_eq!(answers_of(inbox.on_packet(&data(0, Mark::Clear), Time(1_000))), []);
        assert_eq!(inbox.alarm(at(1_000)), Some(at(501_000)));
        assert_eq!(
            answers_of(inbox.on_packet(&data(10, Mark::Clear), Time(2_000))),
            [(20, 0, false)]
        );
        assert_eq!(answers_of(inbox.on_packet(&data(20, Mark::Clear), Time(3_000))), []);
        assert_eq!(inbox.alarm(at(3_000)), None, "there is one in the queue");
        assert_eq!(inbox.on_alarm(at(501_000)), None, "it is not time yet");
        assert_eq!(inbox.alarm(at(501_000)), Some(at(503_000)));
        assert_eq!(inbox.on_alarm(at(503_000)).map(|answer| answer.sequence), Some(30));
    }

    /// A receiver without memory reports each gap once.
    #[test]
    fn it_complains_once() {
        let answer_policy = AnswerPolicy { every: 16, at_ends: true, keeps: false, ..EVERY_SECOND };
        let mut inbox = Inbox::new(answer_policy);
        inbox.expect(20, 1);
        let mut take =
            |sequence| answers_of(inbox.on_packet(&data(sequence, Mark::Clear), Time::ZERO));
        assert_eq!(take(10), [(0, 10, false)]);
        assert_eq!(take(20), []);
        assert_eq!(take(0), []);
        assert_eq!(take(20), [(10, 0, false), (10, 10, false)]);
        assert_eq!(take(10), [(20, 0, false)]);
        assert_eq!(inbox.pop(), Some(1));
        assert_eq!(inbox.pop(), None);
    }
}
