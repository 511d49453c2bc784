use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;
use tidegate_model::Bytes;

use super::*;

const KIB: u64 = 1024;

fn layout(parts: u32) -> Layout {
    Layout::new(Bytes(1024 * KIB), parts, Bytes(4 * KIB))
}

fn bytes(offset: u64, length: u64) -> Reach {
    Reach::Bytes { offset, length: length as u32 }
}

#[test]
fn a_request_in_one_stripe_is_its_own_errand() {
    let mut gateway = Gateway::<u8>::new();
    let mut errands = gateway.on_request(7, &layout(3), bytes(5 * KIB, KIB)).unwrap();
    assert_eq!(errands.len(), 1);
    let errand = errands.next().unwrap();
    let piece = Piece { part: 1, offset: KIB, length: 1024, at: 0 };
    assert_eq!((errand, errands.next()), (Errand { ticket: 7, piece }, None));
    let answer = gateway.on_answer(7, Err(3)).unwrap();
    assert_eq!(answer, Answer { ticket: 7, outcome: Err(3) });
    assert_eq!(gateway.slots.len(), 0, "no table knows of it");
}

#[test]
fn the_first_fault_is_told_whatever_comes_first() {
    let mut gateway = Gateway::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let errands = gateway.on_request(9, &layout(3), bytes(0, 12 * KIB)).unwrap();
        let tickets: Vec<u64> = errands.map(|errand| errand.ticket).collect();
        let outcomes = [Ok(()), Err('b'), Err('c')];
        let answers = order.map(|place| gateway.on_answer(tickets[place], outcomes[place]));
        assert_eq!(answers, [None, None, Some(Answer { ticket: 9, outcome: Err('b') })]);
    }
    assert_eq!((gateway.slots.len(), gateway.split_count()), (1, 0));
}

#[test]
fn a_flush_goes_to_every_part_and_a_discard_once_to_each() {
    let mut gateway = Gateway::<u8>::new();
    let mut pieces = |parts, reach| -> Vec<(u32, u64, u32)> {
        let errands = gateway.on_request(1, &layout(parts), reach).unwrap();
        let piece = |errand: Errand| (errand.piece.part, errand.piece.offset, errand.piece.length);
        errands.map(piece).collect()
    };
    assert_eq!(pieces(1, Reach::All), [(0, 0, 0)]);
    assert_eq!(pieces(3, Reach::All), [(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
    let reach = Reach::Range { offset: 2048, length: 1 << 15 };
    assert_eq!(pieces(2, reach), [(0, 2048, 16_384), (1, 0, 16_384)]);
}

#[test]
fn what_is_not_taken() {
    let mut gateway = Gateway::<u8>::new();
    let mut refusal = |layout, reach| gateway.on_request(1, &layout, reach).err();
    assert_eq!(refusal(layout(2), bytes(0, 0)), Some(Refusal::OutOfRange));
    assert_eq!(refusal(layout(2), bytes(1023 * KIB, 2 * KIB)), Some(Refusal::OutOfRange));
    let large = Layout::new(Bytes(1 << 40), 2, Bytes(4096));
    assert_eq!(refusal(large, bytes(1, 64 << 20)), Some(Refusal::TooLarge));
    for _ in 0..SPLIT_MAX {
        assert_eq!(refusal(layout(2), Reach::All), None);
    }
    assert_eq!(refusal(layout(2), Reach::All), Some(Refusal::TooMany));
    assert_eq!(gateway.cancel(|_| true).len(), SPLIT_MAX);
    assert!(gateway.on_request(1, &layout(2), Reach::All).is_ok());
}

#[test]
#[should_panic(expected = "63 bits")]
fn a_ticket_has_63_bits() {
    let _ = Gateway::<u8>::new().on_request(1 << 63, &layout(1), Reach::All);
}

/// What happens next, as numbers to choose by.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        parts: u32,
        offset: u64,
        length: u64,
        kind: u8,
    },
    /// The answer to one of the errands that are out, or were.
    Answer {
        which: usize,
        fault: Option<u8>,
        again: bool,
    },
    Cancel {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let ask = (1u32..5, 0..1024 * KIB, 1..700 * KIB, 0u8..4);
    prop_oneof![
        2 => ask.prop_map(|(parts, offset, length, kind)| {
            Step::Ask { parts, offset, length: length.min(1024 * KIB - offset), kind }
        }),
        20 => (any::<usize>(), proptest::option::weighted(0.1, any::<u8>()), any::<bool>())
            .prop_map(|(which, fault, again)| Step::Answer { which, fault, again }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
    ]
}

/// The same in the simplest way: every request with the outcomes that it has so far.
#[derive(Default)]
struct World {
    gateway: Gateway<u8>,
    /// By client's ticket: for each errand its outcome, if there is one.
    requests: BTreeMap<u64, Vec<Option<Result<(), u8>>>>,
    /// Errands that are out: ticket, request and place in it.
    out: Vec<(u64, u64, usize)>,
    /// Tickets of errands that were answered, or are of requests that are over.
    late: Vec<u64>,
}

impl World {
    fn ask(&mut self, ticket: u64, parts: u32, reach: Reach) {
        let errands = self.gateway.on_request(ticket, &layout(parts), reach).unwrap();
        let tickets: Vec<u64> = errands.map(|errand| errand.ticket).collect();
        self.requests.insert(ticket, alloc::vec![None; tickets.len()]);
        let out = tickets.iter().enumerate().map(|(place, errand)| (*errand, ticket, place));
        self.out.extend(out);
    }

    fn answer(&mut self, which: usize, outcome: Result<(), u8>) {
        let (errand, ticket, place) = self.out.swap_remove(which % self.out.len());
        let outcomes = self.requests.get_mut(&ticket).expect("it is out");
        outcomes[place] = Some(outcome);
        let whole = outcomes.iter().copied().collect::<Option<Vec<_>>>();
        let wanted =
            whole.map(|outcomes| Answer { ticket, outcome: outcomes.into_iter().collect() });
        assert_eq!(self.gateway.on_answer(errand, outcome), wanted);
        if wanted.is_some() {
            self.requests.remove(&ticket);
        }
        // Answers of whole requests are not told apart.
        if errand & SPLIT != 0 {
            self.late.push(errand);
        }
    }

    fn cancel(&mut self, which: usize) {
        let Some(ticket) =
            self.out.get(which % self.out.len().max(1)).map(|(_, ticket, _)| *ticket)
        else {
            return;
        };
        let is_split = self.requests[&ticket].len() > 1;
        let lost = self.gateway.cancel(|lost| lost == ticket);
        assert_eq!(lost.len(), usize::from(is_split));
        if is_split {
            self.requests.remove(&ticket);
            let lost = self.out.extract_if(.., |(_, owner, _)| *owner == ticket);
            self.late.extend(lost.map(|(errand, ..)| errand));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_request_is_answered_once(steps in proptest::collection::vec(step(), 0..400)) {
        let mut world = World::default();
        for (ticket, step) in (0u64..).zip(steps) {
            match step {
                Step::Ask { parts, offset, length, kind } => {
                    let length = length as u32;
                    let reach = match kind {
                        0 => Reach::All,
                        1 => Reach::Range { offset, length },
                        _ => Reach::Bytes { offset, length },
                    };
                    world.ask(ticket, parts, reach);
                }
                Step::Answer { which, again: true, .. } if !world.late.is_empty() => {
                    let late = world.late[which % world.late.len()];
                    prop_assert_eq!(world.gateway.on_answer(late, Err(1)), None);
                }
                Step::Answer { which, fault, .. } if !world.out.is_empty() => {
                    world.answer(which, fault.map_or(Ok(()), Err));
                }
                Step::Answer { .. } => {}
                Step::Cancel { which } => world.cancel(which),
            }
        }
        while !world.out.is_empty() {
            world.answer(0, Ok(()));
        }
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.gateway.split_count(), 0);
    }

    #[test]
    fn any_number_may_come_as_an_answer(ticket: u64) {
        let mut gateway = Gateway::<u8>::new();
        let out = gateway.on_request(1, &layout(4), Reach::All).unwrap();
        let out: Vec<u64> = out.map(|errand| errand.ticket).collect();
        let answer = gateway.on_answer(ticket | SPLIT, Ok(()));
        prop_assert_eq!(answer, None);
        prop_assert_eq!(gateway.slots[0].left, 4 - u32::from(out.contains(&(ticket | SPLIT))));
    }

    #[test]
    fn errands_tile_the_request(offset in 0..900 * KIB, length in 1..100 * KIB, parts in 1u32..9) {
        let errands = Gateway::<u8>::new()
            .on_request(1, &layout(parts), bytes(offset, length))
            .unwrap();
        prop_assert_eq!(errands.len(), errands.clone().count());
        let end = errands.fold(0, |at, errand| {
            assert_eq!(errand.piece.at, at);
            at + errand.piece.length
        });
        prop_assert_eq!(u64::from(end), length);
    }
}
