//! The steps of moving tokens, each by itself. That all of them together find the best allocation
//! is tested against maximum flow (`tests/pshift.rs`); these are about doing so in as little as is
//! promised.

use super::*;
use proptest::prelude::*;

/// Servers and buckets with their first tokens, and all lists.
fn started() -> impl Strategy<Value = (Configuration, Shifting)> {
    let capacities = prop::collection::vec(0_u64..60, 2..7);
    let row = (0_u64..80, prop::collection::vec((0_u32..7, 0_u32..40), 0..11));
    (capacities, prop::collection::vec(row, 0..14)).prop_map(|(capacities, rows)| {
        let mut configuration = Configuration::new(&capacities);
        for (reservation, mut demands) in rows {
            demands.iter_mut().for_each(|(server, _)| *server %= capacities.len() as u32);
            let _ = configuration.push(reservation, &demands);
        }
        let mut shifting = Shifting::default();
        shifting.start(&mut configuration);
        (configuration, shifting)
    })
}

fn excess(configuration: &Configuration) -> Vec<i64> {
    let mut fresh = Shifting::default();
    fresh.measure(configuration);
    fresh.excess
}

/// No bucket has tokens on an overloaded server and demand to spare on one with headroom.
fn check_no_direct_path(
    configuration: &Configuration,
    shifting: &Shifting,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&shifting.excess, &excess(configuration));
    for bucket in 0..configuration.reservations.len() {
        let at = |share: &Share| shifting.excess[share.server as usize];
        let givers = configuration.row(bucket).filter(|share| at(share) > 0);
        let takers = configuration.row(bucket).filter(|share| at(share) < 0);
        let can_give = givers.map(|share| share.tokens).max().unwrap_or(0);
        let can_take = takers.map(Share::spare).max().unwrap_or(0);
        prop_assert_eq!(can_give.min(can_take), 0, "bucket {}", bucket);
    }
    Ok(())
}

/// By server: how many steps it is from the next goal, by trying all steps until none is shorter.
fn distances<const PULL: bool>(configuration: &Configuration, shifting: &Shifting) -> Vec<u32> {
    let way = Way::<_, PULL>(&Exact);
    let goal = |excess: &i64| if way.want(*excess) < 0 { 0 } else { NONE };
    let mut distances: Vec<u32> = shifting.excess.iter().map(goal).collect();
    for _ in 0..distances.len() {
        for row in (0..configuration.reservations.len()).map(|at| configuration.range(at)) {
            let reached = nearest(configuration, &way, &distances, row.clone());
            for near in row {
                let share = &configuration.shares[near];
                if way.near(near, share) > 0 && reached != NONE {
                    let distance = &mut distances[share.server as usize];
                    *distance = (reached + 1).min(*distance);
                }
            }
        }
    }
    distances
}

/// The least distance of a bucket's shares on the goal's side.
fn nearest<const PULL: bool>(
    configuration: &Configuration,
    way: &Way<'_, Exact, PULL>,
    distances: &[u32],
    row: core::ops::Range<usize>,
) -> u32 {
    let open = row.filter(|far| way.far(*far, &configuration.shares[*far]) > 0);
    let far = open.map(|far| distances[configuration.shares[far].server as usize]);
    far.min().unwrap_or(NONE)
}

/// Finds levels until so many roots are found. Whatever was found, is right: the levels, how many
/// servers have each, and of those that are said to have them all, the exits.
fn check_levels<const PULL: bool>(
    configuration: &Configuration,
    shifting: &mut Shifting,
    roots: usize,
) -> Result<(), TestCaseError> {
    let way = Way::<_, PULL>(&Exact);
    let has_found = shifting.find_levels(configuration, &way, roots);
    let distances = distances::<PULL>(configuration, shifting);
    let is_root = |server: &usize| way.want(shifting.excess[*server]) > 0;
    let all: Vec<usize> = (0..distances.len()).filter(is_root).collect();
    let there = all.iter().filter(|root| distances[**root] != NONE).count();
    let found = all.iter().filter(|root| shifting.levels[**root] != NONE).count();
    prop_assert_eq!(has_found, there > 0);
    prop_assert!((roots.min(there)..=there).contains(&found), "{found} of {there}, {roots}");
    for (server, (level, distance)) in shifting.levels.iter().zip(&distances).enumerate() {
        prop_assert!(level == distance || *level == NONE && roots <= there, "server {server}");
        if *level == 0 || *level > shifting.exits_known || *level == NONE {
            continue;
        }
        let mut exits = Vec::new();
        let mut next = shifting.first_exits[server];
        while let Some(exit) = shifting.exits.get(next as usize) {
            exits.push(exit.share_ref.share as usize);
            next = exit.next;
        }
        exits.sort_unstable();
        let leads = |row: core::ops::Range<usize>| {
            nearest(configuration, &way, &distances, row) == level - 1
        };
        let rows = (0..configuration.reservations.len()).map(|at| configuration.range(at));
        let near = rows.filter(|row| leads(row.clone())).flatten().filter(|near| {
            let share = &configuration.shares[*near];
            share.server as usize == server && way.near(*near, share) > 0
        });
        prop_assert_eq!(exits, near.collect::<Vec<_>>(), "server {} at {}", server, level);
    }
    for (level, alive) in shifting.alive.iter().enumerate() {
        let there = shifting.levels.iter().filter(|it| **it == level as u32).count();
        prop_assert_eq!(*alive as usize, there, "at level {}", level);
    }
    Ok(())
}

/// To take a share off its server's list would be to look for it.
#[test]
fn lists_are_kept_until_every_other_entry_may_be_stale() {
    let mut configuration = Configuration::new(&[1, 1]);
    (0..5).for_each(|_| assert!(configuration.push(1, &[(0, 1)]).is_ok()));
    let mut shifting = Shifting::default();
    shifting.start(&mut configuration);
    shifting.index_shares(&configuration);
    let former = configuration.shares[0];
    for moved in 1..=6 {
        shifting.list_anew(ShareRef::default(), former, Share { server: 1, ..former });
        assert_eq!(shifting.is_indexed, moved <= 5, "after {moved}");
    }
}

proptest! {
    /// Nor does it give a server more than there is headroom for, or take more than is too much;
    /// and it needs no lists.
    #[test]
    fn a_sweep_leaves_no_path_of_length_one((mut configuration, mut shifting) in started()) {
        let before = shifting.excess.clone();
        shifting.sweep(&mut configuration, &Exact);
        for (before, after) in before.iter().zip(&shifting.excess) {
            prop_assert!((0.min(*before)..=0.max(*before)).contains(after), "{before} {after}");
        }
        check_no_direct_path(&configuration, &shifting)?;
        let gone = |excess: &[i64]| excess.iter().map(|it| (*it).max(0)).sum::<i64>();
        let outcome = shifting.outcome;
        prop_assert_eq!(outcome.moved as i64, gone(&before) - gone(&shifting.excess));
        prop_assert_eq!(outcome.paths, outcome.moves);
        prop_assert!(!shifting.is_indexed);
    }

    /// The same from the lists, from either end.
    #[test]
    fn paths_of_length_one_are_used_first(
        (mut configuration, mut shifting) in started(), from_headroom: bool,
    ) {
        shifting.index_shares(&configuration);
        match from_headroom {
            true => shifting.shift_directly(&mut configuration, &Way::<_, true>(&Exact)),
            false => shifting.shift_directly(&mut configuration, &Way::<_, false>(&Exact)),
        }
        check_no_direct_path(&configuration, &shifting)?;
        prop_assert_eq!(shifting.outcome.paths, shifting.outcome.moves);
    }

    /// The length of the shortest path from each server, for paths from either end; and where
    /// tokens leave each server on such paths.
    #[test]
    fn levels_are_distances(
        (configuration, mut shifting) in started(),
        from_headroom: bool,
        roots in prop_oneof![Just(usize::MAX), 1_usize..4],
    ) {
        shifting.index_shares(&configuration);
        match from_headroom {
            true => check_levels::<true>(&configuration, &mut shifting, roots)?,
            false => check_levels::<false>(&configuration, &mut shifting, roots)?,
        }
    }

    /// Where no server has too many tokens, or none has headroom, there is nothing to search.
    #[test]
    fn lists_are_made_where_tokens_could_move((mut configuration, mut shifting) in started()) {
        shifting.sweep(&mut configuration, &Exact);
        let signs = [1, -1].map(|sign| shifting.excess.iter().any(|it| it.signum() == sign));
        shifting.shift(&mut configuration, &Exact);
        prop_assert_eq!(shifting.is_indexed, signs == [true, true]);
    }

    /// The tokens that can leave overloaded servers and those that servers with headroom can take
    /// are both counted: paths are searched from the end that has fewer.
    #[test]
    fn movable_tokens_are_counted_at_both_servers((configuration, mut shifting) in started()) {
        shifting.index_shares(&configuration);
        let sum = |sign: i64, what: fn(&Share) -> u32| {
            let shares = configuration.shares.iter();
            let at = shares.filter(|share| shifting.excess[share.server as usize].signum() == sign);
            at.map(|share| i64::from(what(share))).sum::<i64>()
        };
        let wanted = [sum(1, |share| share.tokens), sum(-1, Share::spare)];
        prop_assert_eq!(shifting.movable(&configuration), wanted);
    }

    /// The shares of a server that are examined together: all that can take tokens, and no other.
    #[test]
    fn shares_are_open_where_tokens_can_move((configuration, mut shifting) in started()) {
        shifting.index_shares(&configuration);
        for (server, refs) in shifting.refs.iter().enumerate() {
            for some in refs.rchunks(TOGETHER) {
                let open = Open::of((server, some), &configuration, &Way::<_, false>(&Exact));
                let spare = |at: &ShareRef| configuration.shares[at.share as usize].spare();
                let wanted = some.iter().rev().filter(|share_ref| spare(share_ref) > 0);
                let wanted: Vec<u32> = wanted.map(|share_ref| share_ref.share).collect();
                let found: Vec<u32> = open.iter().map(|share_ref| share_ref.share).collect();
                prop_assert_eq!(found, wanted);
                let amount: i64 = some.iter().map(|share_ref| i64::from(spare(share_ref))).sum();
                prop_assert_eq!(open.amount, amount);
            }
        }
    }
}
