//! The bound on the blocks that a client holds: against a search over all counts, and in stores
//! that greedy clients share.

use proptest::prelude::*;
use tidegate_algo::onesided::blocks::BlockThreshold;

/// The reserve of a store, and the blocks of it that are guaranteed to each of its clients.
fn reserve(blocks: u32, slots: u16) -> [u32; 2] {
    let reserve = blocks / 8;
    [reserve, (reserve / u32::from(slots)).max(1)]
}

/// Whether a client may hold `held` blocks while `free` stay free, word for word.
fn is_allowed([reserve, guaranteed]: [u32; 2], held: u32, free: u32) -> bool {
    let beyond = i64::from(free) - i64::from(reserve);
    let is_shared = beyond >= 0 && i64::from(held) <= i64::from(guaranteed) + 2 * beyond;
    held <= guaranteed || is_shared
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
        let reserve = reserve(blocks, slots);
        let most = counts.rev().find(|count| is_allowed(reserve, held + count, free - count));
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
        prop_assert_eq!(reserve(blocks, slots)[1], per_slot);
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
        let [reserve, guaranteed] = reserve(blocks, 256);
        let fair = (blocks - reserve - greedy * guaranteed) / (2 * greedy + 1);
        // Rounding, and the chunks that clients have taken before others in the last rounds.
        let slack = 1 + 2 * chunk;
        prop_assert!(free >= reserve + fair.saturating_sub(slack));
        let next = threshold.grant(0, free, u32::MAX);
        prop_assert!(next >= fair.saturating_sub(slack) / 2, "{next} of {free}");
    }
}

#[test]
fn one_greedy_client_takes_two_thirds_of_the_blocks_beyond_the_reserve() {
    let threshold = BlockThreshold::new(3_900, 256);
    assert_eq!(threshold.grant(0, 3_900, u32::MAX), 2_275);
    assert_eq!(threshold.grant(2_275, 1_625, u32::MAX), 0);
    assert_eq!(threshold.grant(0, 1_625, u32::MAX), 759);
    assert_eq!(threshold.grant(0, 400, 10), 1, "the guaranteed block");
    assert_eq!(threshold.grant(0, 0, 10), 0, "the store is full");
}
