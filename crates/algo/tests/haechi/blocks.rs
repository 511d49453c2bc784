//! The bound on the blocks that a client holds: against a search over all counts, and in stores
//! that greedy clients share.

use proptest::prelude::*;
use tidegate_algo::onesided::blocks::{BlockThreshold, FACTOR};

/// Whether a client may hold `held` blocks while `free` stay free, word for word.
fn is_allowed(threshold: BlockThreshold, held: u32, free: u32) -> bool {
    let beyond = i64::from(free) - i64::from(threshold.reserve());
    let shared = i64::from(threshold.guaranteed()) + i64::from(FACTOR) * beyond;
    held <= threshold.guaranteed() || beyond >= 0 && i64::from(held) <= shared
}

proptest! {
    #[test]
    fn a_grant_is_the_largest_allowed_count(
        blocks in 1..600u32,
        slots in 1..80u16,
        held in 0..600u32,
        free in 0..600u32,
        wanted in 0..600u32,
    ) {
        let threshold = BlockThreshold::new(blocks, slots);
        let counts = 0..=wanted.min(free);
        let most = counts.rev().find(|count| is_allowed(threshold, held + count, free - count));
        prop_assert_eq!(threshold.grant(held, free, wanted), most.unwrap_or(0));
    }

    /// Clients take and return blocks in any order, in a store without keys: whatever the others
    /// hold, each can still take its guaranteed blocks.
    #[test]
    fn guaranteed_blocks_stay_free_for_every_client(
        slots in 1..20u16,
        per_slot in 1..9u32,
        moves in prop::collection::vec((any::<u16>(), any::<bool>(), 1..100u32), 0..300),
    ) {
        let blocks = 8 * u32::from(slots) * per_slot;
        let threshold = BlockThreshold::new(blocks, slots);
        prop_assert_eq!(threshold.guaranteed(), per_slot);
        let (mut held, mut free) = (vec![0; usize::from(slots)], blocks);
        for (slot, takes, count) in moves {
            let held_by_slot = &mut held[usize::from(slot % slots)];
            match takes {
                true => {
                    let granted = threshold.grant(*held_by_slot, free, count);
                    (*held_by_slot, free) = (*held_by_slot + granted, free - granted);
                }
                false => {
                    let returned = count.min(*held_by_slot);
                    (*held_by_slot, free) = (*held_by_slot - returned, free + returned);
                }
            }
            let owed: u32 = held.iter().map(|held| per_slot.saturating_sub(*held)).sum();
            prop_assert!(free >= owed, "{free} free, {owed} guaranteed");
        }
    }

    /// Greedy clients that grow together leave an equal part, and a part of it to the next client.
    #[test]
    fn greedy_clients_leave_blocks_for_the_next_one(
        blocks in 2_000..20_000u32,
        greedy in 1..20u32,
        chunk in 1..8u32,
    ) {
        let threshold = BlockThreshold::new(blocks, 256);
        let (mut held, mut free) = (vec![0; greedy as usize], blocks);
        loop {
            let before = free;
            for held in &mut held {
                let granted = threshold.grant(*held, free, chunk);
                (*held, free) = (*held + granted, free - granted);
            }
            if free == before {
                break;
            }
        }
        let beyond = blocks - threshold.reserve();
        let fair = (beyond - greedy * threshold.guaranteed()) / (FACTOR * greedy + 1);
        // Rounding, and the chunks that clients have taken before others in the last rounds.
        let slack = 1 + FACTOR * chunk;
        prop_assert!(free >= threshold.reserve() + fair.saturating_sub(slack));
        let next = threshold.grant(0, free, u32::MAX);
        prop_assert!(next >= fair.saturating_sub(slack) / 2, "{next} of {free}");
    }
}

#[test]
fn one_greedy_client_takes_two_thirds_of_the_blocks_beyond_the_reserve() {
    let threshold = BlockThreshold::new(3_900, 256);
    assert_eq!((threshold.reserve(), threshold.guaranteed()), (487, 1));
    assert_eq!(threshold.grant(0, 3_900, u32::MAX), 2_275);
    assert_eq!(threshold.grant(2_275, 1_625, u32::MAX), 0);
    assert_eq!(threshold.grant(0, 1_625, u32::MAX), 759);
    assert_eq!(threshold.grant(0, 400, 10), 1, "the guaranteed block");
    assert_eq!(threshold.grant(0, 0, 10), 0, "the store is full");
}
