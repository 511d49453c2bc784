use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

const SEGMENT: u32 = 1_000;
const TRIP: Span = Span(25_000);
/// A segment of ten is acknowledged.
const ACK: Ack = Ack {
    now: Time::ZERO,
    delivered: 1448,
    is_marked: false,
    acknowledged: 1448,
    sent: 14_480,
    round_trip: TRIP,
    is_limited: true,
};

/// A sender that has always more, whose packets all arrive: rounds of as many segments as the
/// window lets out, of which the first `marked` are marked.
struct Sender {
    window: Window<Dctcp>,
    now: Time,
    acknowledged: u64,
}

impl Sender {
    fn new(alpha: f64) -> Self {
        let start = Start { segment: SEGMENT, alpha, ..Start::USUAL };
        Self { window: Window::new(start, Dctcp), now: Time::ZERO, acknowledged: 0 }
    }

    /// One round trip. Returns how many segments it had.
    fn round(&mut self, marked: impl Fn(u64) -> bool) -> u64 {
        let segment = u64::from(SEGMENT);
        let segments = self.window.bytes() / segment;
        self.now = self.now.after(TRIP);
        let sent = self.acknowledged + segments * segment;
        for index in 0..segments {
            self.acknowledged += segment;
            self.window.on_ack(&Ack {
                now: self.now,
                delivered: segment,
                is_marked: marked(index),
                acknowledged: self.acknowledged,
                // Segments that the acknowledgements of this round release follow those already
                // sent.
                sent: sent + (index + 1) * segment,
                round_trip: TRIP,
                is_limited: true,
            });
        }
        segments
    }
}

proptest! {
    /// Eq. 3, over the rounds as the machine sees them: acknowledgements one by one, each ending
    /// the round or not, against sums over slices of the list of them.
    #[test]
    fn alpha_is_the_faded_part_of_what_was_marked(
        acks in prop::collection::vec((1u64..3_000, any::<bool>(), 0u64..20_000), 1..200),
    ) {
        let mut window = Window::new(Start::USUAL, Dctcp);
        let (mut acknowledged, mut sent) = (0, 10_000);
        let (mut rounds, mut end): (Vec<Vec<(u64, bool)>>, u64) = (Vec::from([Vec::new()]), 0);
        for (delivered, is_marked, more) in acks {
            acknowledged += delivered;
            sent = (sent + more).max(acknowledged);
            let ack = Ack { delivered, is_marked, acknowledged, sent, ..ACK };
            window.on_ack(&ack);
            rounds.last_mut().unwrap().push((delivered, is_marked));
            if acknowledged >= end {
                end = sent;
                rounds.push(Vec::new());
            }
            let sum = |round: &[(u64, bool)], all: bool| -> f64 {
                round.iter().filter(|(_, marked)| all || *marked).map(|(b, _)| *b as f64).sum()
            };
            let done = &rounds[..rounds.len() - 1];
            let expected = done.iter().fold(1.0, |alpha, round| {
                15.0 / 16.0 * alpha + sum(round, false) / sum(round, true) / 16.0
            });
            prop_assert!((window.alpha() - expected).abs() < 1e-9);
            prop_assert!((0.0..=1.0).contains(&window.alpha()));
        }
    }

    /// Whatever its input, it is never less than a segment; and from one thing that was sent to
    /// its acknowledgement it shrinks at most once by marks, by half at most.
    #[test]
    fn one_cut_in_a_round_trip(
        steps in prop::collection::vec((0u8..20, 0u64..3_000, any::<bool>(), 0u64..9_000), 1..300),
    ) {
        let mut window = Window::new(Start::USUAL, Dctcp);
        let (mut acknowledged, mut sent, mut held) = (0u64, 10_000u64, None);
        for (step, delivered, is_marked, more) in steps {
            let before = window.bytes;
            match step {
                0 => window.on_loss(sent),
                1 => window.on_timeout(),
                _ => {
                    acknowledged += delivered;
                    sent = (sent + more).max(acknowledged);
                    let ack = Ack { delivered, is_marked, acknowledged, sent, ..ACK };
                    window.on_ack(&ack);
                }
            }
            prop_assert!(window.bytes >= window.segment);
            if window.bytes < before {
                prop_assert!(step < 2 || held.is_none_or(|held| acknowledged > held));
                prop_assert!(step == 1 || window.bytes >= before / 2.0);
                held = Some(sent);
            }
            if step == 1 {
                held = None;
            }
        }
    }
}

/// In slow start it doubles. After a cut it stays for the round trip, and grows by a segment in
/// each of those that follow.
#[test]
fn it_doubles_then_adds_one() {
    let mut sender = Sender::new(0.5);
    assert_eq!([(); 4].map(|()| sender.round(|_| false)), [10, 20, 40, 80]);
    let alpha = sender.window.alpha();
    assert_eq!(sender.round(|index| index == 0), 160);
    let left = 160.0 * (1.0 - alpha / 2.0);
    assert_eq!(sender.window.bytes(), (left * 1000.0) as u64);
    let mut last = left;
    for _ in 0..4 {
        sender.round(|_| false);
        let size = sender.window.bytes / 1000.0;
        assert!((0.97..1.01).contains(&(size - last)), "{last} {size}");
        last = size;
    }
}

/// With alpha 0 a mark changes nothing at once; with 1 it halves.
#[test]
fn how_deep_the_first_cut_is() {
    for (alpha, percent) in [(0.0, 100), (1.0, 53)] {
        let mut sender = Sender::new(alpha);
        sender.round(|_| false);
        let before = sender.window.bytes();
        sender.round(|_| true);
        let share = sender.window.bytes() * 100 / before;
        assert!(share.abs_diff(percent) <= 4, "{alpha}: {share} %");
    }
}

/// Everything that was sent before a cut may answer for the queue before it.
#[test]
fn it_is_held_until_something_newer_is_acknowledged() {
    let mut window = Window::new(Start::USUAL, Dctcp);
    let ack = |acknowledged| Ack { is_marked: true, acknowledged, ..ACK };
    window.on_ack(&ack(1448));
    let cut = window.bytes();
    window.on_ack(&ack(14_480));
    assert_eq!(window.bytes(), cut);
    window.on_ack(&ack(14_481));
    assert!(window.bytes() < cut);
}

#[test]
fn an_application_that_sends_little_does_not_grow_the_window() {
    let mut window = Window::new(Start::USUAL, Dctcp);
    window.on_ack(&Ack { is_limited: false, ..ACK });
    assert_eq!(window.bytes(), 14_480);
    window.on_ack(&ACK);
    assert_eq!(window.bytes(), 15_928);
}

#[test]
fn a_loss_halves_and_a_timeout_begins_again() {
    let mut sender = Sender::new(0.0);
    (0..4).for_each(|_| {
        sender.round(|_| false);
    });
    sender.window.on_loss(sender.acknowledged + 1);
    assert_eq!(sender.window.bytes(), 80_000);
    sender.window.on_timeout();
    assert_eq!((sender.window.bytes(), sender.window.threshold), (1_000, 40_000.0));
    sender.window.on_timeout();
    assert_eq!((sender.window.bytes(), sender.window.threshold), (1_000, 40_000.0));
    // Slow start, to the threshold.
    assert_eq!([(); 8].map(|()| sender.round(|_| false)), [1, 2, 4, 8, 16, 32, 40, 41]);
}
