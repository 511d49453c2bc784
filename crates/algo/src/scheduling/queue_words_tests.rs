//! A queue's state as words in shared memory: every field has its offset, a slot is in one set, and
//! slots stay reserved for flows, also for one that joins.

use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

use super::*;

/// A state in which every word is different.
fn state(seed: u64) -> QueueState<8> {
    let mut words = vec![0; state_words(8)];
    let mut next = seed | 1;
    for word in &mut words {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = next;
    }
    QueueState::from_words(&words)
}

#[test]
fn a_state_of_512_slots_has_68_words_in_a_fixed_layout() {
    assert_eq!((state_words(8), state_words(1), QueueState::<8>::SLOTS), (68, 47, 512));
    let words: Vec<u64> = (1..=68).map(|word| (word << 32) + word + 100).collect();
    let state = QueueState::<8>::from_words(&words);
    let at = |index: usize| words[index];
    let wide = |index: usize| u128::from(at(index + 1)) << 64 | u128::from(at(index));
    assert_eq!(state.virtual_time, wide(0));
    for flow in 0..FLOWS {
        assert_eq!(state.start_tags[flow], wide(2 + 2 * flow), "flow {flow}");
        let pair = at(36 + flow / 2);
        let weight = if flow % 2 == 0 { pair as u32 } else { (pair >> 32) as u32 };
        assert_eq!(state.weights[flow], weight, "flow {flow}");
    }
    assert_eq!(state.arrivals, at(34));
    assert_eq!((state.depth, state.order), (at(35) as u32, (at(35) >> 32) as u32));
    let sets = [state.waiting.0, state.in_service.0, state.overdue.0];
    assert_eq!(sets.as_flattened(), &words[44..]);
    assert_eq!(
        QueueState::<8>::from_words(&[]),
        QueueState::new(),
        "words that are missing are zero"
    );
}

#[test]
fn a_slot_is_in_one_set_at_a_time() {
    let mut queue = QueueState::<1>::new();
    queue.configure(Order::Arrival, 1, &[]);
    let requests = |_| QueueRequest::default();
    for slot in [0, 1, 63] {
        assert!(queue.arrive(slot).is_some());
        assert_eq!(queue.arrive(slot), None, "it waits");
    }
    assert_eq!(queue.arrive(64), None, "there is no such slot");
    let first = queue.dispatch(requests).unwrap_or_else(|| unreachable!("three wait"));
    assert_eq!(queue.arrive(first), None, "it is in service");
    assert!(queue.pass_on(first) && !queue.pass_on(first));
    assert_eq!(queue.arrive(first), None, "it is overdue");
    assert!(queue.finish(first) && !queue.finish(first));
    assert!(queue.arrive(first).is_some());
}

proptest! {
    #[test]
    fn a_state_is_read_as_it_was_written(seed: u64) {
        let state = state(seed);
        let mut words = vec![7; state_words(8)];
        state.to_words(&mut words);
        prop_assert_eq!(&QueueState::<8>::from_words(&words), &state);
        prop_assert_eq!(QueueState::<8>::waiting_count(|at| words[at]), state.waiting.count());
        for slot in 0..600 {
            let found = QueueState::<8>::membership(|at| words[at], slot);
            prop_assert_eq!(found, (state.waiting.has(slot), state.in_service.has(slot)));
        }
    }

    /// A flow may have another slot if every other flow could still have all that are its own.
    #[test]
    fn every_flow_keeps_its_own_slots(
        taken in prop::collection::vec(0..60_usize, FLOWS),
        sets in prop::collection::vec(0..3_u8, 512),
    ) {
        let mut state = QueueState::<8>::new();
        let mut flows = Vec::new();
        for (flow, count) in taken.iter().enumerate() {
            for _ in 0..(*count).min(512 - flows.len()) {
                let slot = flows.len();
                match sets[slot] {
                    0 => state.waiting.insert(slot),
                    1 => state.in_service.insert(slot),
                    _ => state.overdue.insert(slot),
                }
                flows.push(flow as u8);
            }
        }
        let requests = |slot: usize| QueueRequest { flow: flows[slot], ..QueueRequest::default() };
        let count = |flow: usize| flows.iter().filter(|it| usize::from(**it) == flow).count();
        for flow in 0..20_u8 {
            let own = usize::from(flow).min(FLOWS - 1);
            let kept = (0..FLOWS).filter(|other| *other != own);
            let kept: usize = kept.map(|other| 16_usize.saturating_sub(count(other))).sum();
            prop_assert_eq!(state.has_headroom(flow, requests), flows.len() + kept < 512);
        }
    }

    #[test]
    fn a_flow_that_joins_is_not_behind_virtual_time(seed: u64, flow: u8) {
        let (before, mut after) = (state(seed), state(seed));
        after.joins(flow);
        for (at, tag) in after.start_tags.iter().enumerate() {
            let joins = at == usize::from(flow).min(FLOWS - 1);
            let wanted = if joins { before.virtual_time } else { 0 };
            prop_assert_eq!(*tag, before.start_tags[at].max(wanted));
        }
    }
}
