//! The mapping beside a map, and write amplification beside the closed forms.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_model::Portion;

use super::super::parameters::{Cleaning, Geometry};
use super::*;

fn plane(blocks: u32, pages: u32, cleaning: Cleaning) -> (Plane, u32) {
    let geometry = Geometry { blocks, pages, ..Geometry::default() };
    let parameters = Parameters { geometry, cleaning, ..Parameters::default() };
    parameters.check().unwrap();
    let logical = parameters.logical_pages();
    (Plane::new(&parameters, Stream::new(1, "plane", 0)), logical)
}

proptest! {
    /// Any order of writes, programs, cleanings and erasures; the oracle is a map of pages.
    #[test]
    fn no_page_is_lost(
        choice in prop_oneof![Just(Choice::Greedy), Just(Choice::Sampled), Just(Choice::Random)],
        acts in prop::collection::vec((0u8..8, any::<u32>()), 0..800),
    ) {
        let threshold = Portion(100_000);
        let spare = Portion(400_000);
        let (mut plane, logical) =
            plane(24, 4, Cleaning { spare, threshold, reserve: 2, choice, first: true });
        let (mut map, mut pending) = (BTreeMap::new(), Vec::new());
        for (act, number) in acts {
            match act {
                0..6 => {
                    let page = number % logical;
                    if let Some(physical) = plane.allocate(page, Writer::Host) {
                        prop_assert!(!map.values().any(|used| *used == physical));
                        map.insert(page, physical);
                        pending.push(physical);
                    } else {
                        prop_assert!(plane.free() <= 2, "there is room");
                    }
                }
                6 => {
                    if let Some((block, valid)) = plane.victim() {
                        let held = plane.physical_pages(block);
                        let held = held.filter_map(|physical| plane.held(physical));
                        let pages: Vec<u32> = held.collect();
                        prop_assert_eq!(pages.len(), valid as usize);
                        for page in pages {
                            // A reserve of two: a victim's pages always find a free one.
                            let physical = plane.allocate(page, Writer::Cleaning).unwrap();
                            map.insert(page, physical);
                            pending.push(physical);
                        }
                        plane.erased(block);
                    }
                }
                _ => pending.drain(..).for_each(|physical| plane.programmed(physical)),
            }
            plane.check();
            for page in 0..logical {
                let physical = plane.mapping.get(page).checked_sub(1);
                prop_assert_eq!(physical, map.get(&page).copied());
            }
        }
    }
}

/// Pages written by host and cleaning together for one of the host, once it is steady.
fn amplification(choice: Choice, spare: u32) -> (f64, f64) {
    let cleaning = Cleaning {
        spare: Portion(spare),
        threshold: Portion(10_000),
        reserve: 1,
        choice,
        first: true,
    };
    let (mut plane, logical) = plane(512, 128, cleaning);
    let mut random = Stream::new(7, "writes", 0);
    (0..logical).for_each(|page| {
        plane.age(page);
    });
    let round = 2 * plane.holds.len() as u64;
    let mut write = || plane.age(random.below(u64::from(logical)) as u32);
    (0..round).for_each(|_| {
        write();
    });
    let moved: u64 = (0..round).map(|_| u64::from(write())).sum();
    plane.check();
    // Blocks that are kept free hold nothing, so the others are fuller.
    let used = plane.holds.len() as f64 - f64::from(plane.threshold * plane.pages);
    (1.0 + moved as f64 / round as f64, f64::from(logical) / used)
}

/// Random victims: a victim is as full as the plane.
#[test]
fn random_victims_are_as_full_as_the_plane() {
    for spare in [150_000, 300_000] {
        let (measured, full) = amplification(Choice::Random, spare);
        let expected = 1.0 / (1.0 - full);
        assert!((measured / expected - 1.0).abs() < 0.03, "{measured} for {expected}");
    }
}

/// Greedy: the valid part of a victim solves ρ = (1 - u) / -ln u in the limit of large blocks.
#[test]
fn greedy_victims_follow_the_closed_form() {
    for spare in [150_000, 300_000] {
        let (measured, full) = amplification(Choice::Greedy, spare);
        let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
        for _ in 0..60 {
            let middle: f64 = (low + high) / 2.0;
            let is_above = (1.0 - middle) / -middle.ln() > full;
            (low, high) = if is_above { (low, middle) } else { (middle, high) };
        }
        let expected = 1.0 / (1.0 - low);
        assert!((measured / expected - 1.0).abs() < 0.04, "{measured} for {expected}");
        // A sample of log2(blocks) lies between greedy and random, near greedy.
        let (sampled, _) = amplification(Choice::Sampled, spare);
        assert!(measured < sampled && sampled < 1.15 * measured, "{sampled} for {measured}");
    }
}
