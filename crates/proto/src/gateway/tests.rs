use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;
use tidegate_model::Bytes;

use super::*;

const KIB: u64 = 1024;

fn layout(parts: u32) -> Layout {
    Layout::new(Bytes(1024 * KIB), parts, Bytes(4 * KIB))
}

fn bytes(offset: u64, length: u64) -> RequestExtent {
    RequestExtent::Bytes { offset, length: length as u32 }
}

#[test]
fn a_request_in_one_stripe_is_its_own_sub_request() {
    let mut gateway = Gateway::<u8>::new();
    let mut sub_requests = gateway.on_request(7, &layout(3), bytes(5 * KIB, KIB)).unwrap();
    assert_eq!(sub_requests.len(), 1);
    let sub_request = sub_requests.next().unwrap();
    let piece = PartRange { part: 1, offset: KIB, length: 1024, at: 0 };
    let whole = SubRequest { ticket: 7, piece, is_first: true };
    assert_eq!((sub_request, sub_requests.next()), (whole, None));
    let answer = gateway.on_answer(7, Err(3)).unwrap();
    assert_eq!(answer, Answer { ticket: 7, outcome: Err(3) });
    assert_eq!(gateway.slots.len(), 0, "no table knows of it");
}

#[test]
fn the_first_fault_in_request_order_is_reported() {
    let mut gateway = Gateway::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let sub_requests = gateway.on_request(9, &layout(3), bytes(0, 12 * KIB)).unwrap();
        let tickets: Vec<u64> = sub_requests.map(|sub_request| sub_request.ticket).collect();
        let outcomes = [Ok(()), Err('b'), Err('c')];
        let answers = order.map(|index| gateway.on_answer(tickets[index], outcomes[index]));
        assert_eq!(answers, [None, None, Some(Answer { ticket: 9, outcome: Err('b') })]);
    }
    assert_eq!((gateway.slots.len(), gateway.free.len()), (1, 1), "no split request is out");
}

#[test]
fn a_flush_goes_to_every_part_and_a_discard_once_to_each() {
    let mut gateway = Gateway::<u8>::new();
    let mut chunks = |parts, extent| -> Vec<(u32, u64, u32)> {
        let sub_requests = gateway.on_request(1, &layout(parts), extent).unwrap();
        let piece = |sub_request: SubRequest| {
            (sub_request.piece.part, sub_request.piece.offset, sub_request.piece.length)
        };
        sub_requests.map(piece).collect()
    };
    assert_eq!(chunks(1, RequestExtent::All), [(0, 0, 0)]);
    assert_eq!(chunks(3, RequestExtent::All), [(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
    let extent = RequestExtent::Range { offset: 2048, length: 1 << 15 };
    assert_eq!(chunks(2, extent), [(0, 2048, 16_384), (1, 0, 16_384)]);
}

#[test]
fn what_is_not_taken() {
    let mut gateway = Gateway::<u8>::new();
    let mut refusal = |layout, extent| gateway.on_request(1, &layout, extent).err();
    assert_eq!(refusal(layout(2), bytes(0, 0)), Some(RequestRefusal::OutOfRange));
    assert_eq!(refusal(layout(2), bytes(1023 * KIB, 2 * KIB)), Some(RequestRefusal::OutOfRange));
    let large = Layout::new(Bytes(1 << 40), 2, Bytes(4096));
    assert_eq!(refusal(large, bytes(1, 64 << 20)), Some(RequestRefusal::TooLarge));
    for _ in 0..SPLIT_MAX {
        assert_eq!(refusal(layout(2), RequestExtent::All), None);
    }
    assert_eq!(refusal(layout(2), RequestExtent::All), Some(RequestRefusal::TooMany));
    assert_eq!(gateway.cancel(|_| true).len(), SPLIT_MAX);
    assert!(gateway.on_request(1, &layout(2), RequestExtent::All).is_ok());
}

#[test]
#[should_panic(expected = "63 bits")]
fn a_ticket_has_63_bits() {
    let _ = Gateway::<u8>::new().on_request(1 << 63, &layout(1), RequestExtent::All);
}

/// The next event, as numbers to choose by.
#[derive(Clone, Debug)]
enum GatewayStep {
    Send {
        parts: u32,
        offset: u64,
        length: u64,
        kind: u8,
    },
    /// The answer to one of the sub-requests that are out, or were.
    Answer {
        which: usize,
        fault: Option<u8>,
        again: bool,
    },
    Cancel {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = GatewayStep> {
    let request = (1u32..5, 0..1024 * KIB, 1..700 * KIB, 0u8..4);
    prop_oneof![
        2 => request.prop_map(|(parts, offset, length, kind)| {
            GatewayStep::Send { parts, offset, length: length.min(1024 * KIB - offset), kind }
        }),
        20 => (any::<usize>(), proptest::option::weighted(0.1, any::<u8>()), any::<bool>())
            .prop_map(|(which, fault, again)| GatewayStep::Answer { which, fault, again }),
        1 => any::<usize>().prop_map(|which| GatewayStep::Cancel { which }),
    ]
}

/// The same in the simplest way: every request with the outcomes that it has so far.
#[derive(Default)]
struct GatewayTestbed {
    gateway: Gateway<u8>,
    /// By client's ticket: for each sub-request its outcome, if there is one.
    requests: BTreeMap<u64, Vec<Option<Result<(), u8>>>>,
    /// Sub-requests that are out: ticket, request and index in it.
    out: Vec<(u64, u64, usize)>,
    /// Tickets of sub-requests that were answered, or are of requests that are over.
    late: Vec<u64>,
}

impl GatewayTestbed {
    fn request(&mut self, ticket: u64, parts: u32, extent: RequestExtent) {
        let sub_requests = self.gateway.on_request(ticket, &layout(parts), extent).unwrap();
        let tickets: Vec<u64> = sub_requests.map(|sub_request| sub_request.ticket).collect();
        self.requests.insert(ticket, alloc::vec![None; tickets.len()]);
        let out =
            tickets.iter().enumerate().map(|(index, sub_request)| (*sub_request, ticket, index));
        self.out.extend(out);
    }

    fn answer(&mut self, which: usize, outcome: Result<(), u8>) {
        let (sub_request, ticket, index) = self.out.swap_remove(which % self.out.len());
        let outcomes = self.requests.get_mut(&ticket).expect("it is out");
        outcomes[index] = Some(outcome);
        let whole = outcomes.iter().copied().collect::<Option<Vec<_>>>();
        let wanted =
            whole.map(|outcomes| Answer { ticket, outcome: outcomes.into_iter().collect() });
        assert_eq!(self.gateway.on_answer(sub_request, outcome), wanted);
        if wanted.is_some() {
            self.requests.remove(&ticket);
        }
        // Answers of whole requests are not distinguished.
        if sub_request & SPLIT != 0 {
            self.late.push(sub_request);
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
            self.late.extend(lost.map(|(sub_request, ..)| sub_request));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_request_is_answered_once(steps in proptest::collection::vec(step(), 0..400)) {
        let mut world = GatewayTestbed::default();
        for (ticket, step) in (0u64..).zip(steps) {
            match step {
                GatewayStep::Send { parts, offset, length, kind } => {
                    let length = length as u32;
                    let extent = match kind {
                        0 => RequestExtent::All,
                        1 => RequestExtent::Range { offset, length },
                        _ => RequestExtent::Bytes { offset, length },
                    };
                    world.request(ticket, parts, extent);
                }
                GatewayStep::Answer { which, again: true, .. } if !world.late.is_empty() => {
                    let late = world.late[which % world.late.len()];
                    prop_assert_eq!(world.gateway.on_answer(late, Err(1)), None);
                }
                GatewayStep::Answer { which, fault, .. } if !world.out.is_empty() => {
                    world.answer(which, fault.map_or(Ok(()), Err));
                }
                GatewayStep::Answer { .. } => {}
                GatewayStep::Cancel { which } => world.cancel(which),
            }
        }
        while !world.out.is_empty() {
            world.answer(0, Ok(()));
        }
        prop_assert!(world.requests.is_empty());
        prop_assert_eq!(world.gateway.slots.len(), world.gateway.free.len());
    }

    #[test]
    fn any_number_may_come_as_an_answer(ticket: u64) {
        let mut gateway = Gateway::<u8>::new();
        let out = gateway.on_request(1, &layout(4), RequestExtent::All).unwrap();
        let out: Vec<u64> = out.map(|sub_request| sub_request.ticket).collect();
        let answer = gateway.on_answer(ticket | SPLIT, Ok(()));
        prop_assert_eq!(answer, None);
        prop_assert_eq!(gateway.slots[0].left, 4 - u32::from(out.contains(&(ticket | SPLIT))));
    }

    #[test]
    fn sub_requests_tile_the_request(
        offset in 0..900 * KIB,
        length in 1..100 * KIB,
        parts in 1u32..9,
    ) {
        let sub_requests = Gateway::<u8>::new()
            .on_request(1, &layout(parts), bytes(offset, length))
            .unwrap();
        prop_assert_eq!(sub_requests.len(), sub_requests.clone().count());
        let end = sub_requests.fold(0, |at, sub_request| {
            assert_eq!(sub_request.piece.at, at);
            at + sub_request.piece.length
        });
        prop_assert_eq!(u64::from(end), length);
    }
}
