//! pShift's movement of tokens between servers: along paths of length one while reading the buckets
//! in order, and along paths of any length by levels (Algorithm 5).

mod prefetch;
use super::{Configuration, Share, start};
use alloc::vec::Vec;
use core::mem;
use prefetch::{Open, TOGETHER};

/// The value of a solution, and the work that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SolverReport {
    /// How many tokens will be consumed: Φ.
    pub effective_capacity: u64,
    /// How many tokens overloaded servers have beyond their capacity.
    pub weak_excess: u64,
    /// Shift paths that were used since the last solution.
    pub paths: u64,
    /// Moves of tokens of one bucket between two servers: the hops of all paths.
    pub moves: u64,
    /// Tokens moved, counted in each hop.
    pub moved: u64,
    /// How often levels were found.
    pub rounds: u64,
}

/// How many tokens a share may give away or take.
pub(super) trait Bounds {
    fn give(&self, index: usize, share: &Share) -> u32;
    fn take(&self, index: usize, share: &Share) -> u32;
}

/// All that keeps the allocation prudent.
pub(super) struct Exact;

impl Bounds for Exact {
    fn give(&self, _: usize, share: &Share) -> u32 {
        share.tokens
    }

    fn take(&self, _: usize, share: &Share) -> u32 {
        share.spare()
    }
}

/// The level of a server from which no goal can be reached, as far as is known.
const NONE: u32 = u32::MAX;

/// A share, and its bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareRef {
    pub(super) share: u32,
    pub(super) bucket: u32,
}

/// A share that tokens can leave towards the next lower level, or reach from there, and the number
/// of its server's next one.
#[derive(Clone, Copy, Debug)]
struct Exit {
    share_ref: ShareRef,
    next: u32,
}

/// One hop of a path, between two shares of a bucket: `far` is on the goal's side.
#[derive(Clone, Copy, Debug)]
struct Hop {
    near: u32,
    far: u32,
}

/// From where to where paths are looked for. Roots are overloaded servers, which give, and goals
/// those with headroom, which take; or, if `PULL`, the other way round, with all signs and steps
/// reversed. Goals are those with less that can move: it is their shares that are examined to see
/// whether anything can be done.
pub(super) struct Way<'a, B, const PULL: bool>(&'a B);

impl<B: Bounds, const PULL: bool> Way<'_, B, PULL> {
    /// How much a share on the root's side can give, or take.
    fn near(&self, index: usize, share: &Share) -> u32 {
        if PULL { self.0.take(index, share) } else { self.0.give(index, share) }
    }

    pub(super) fn far(&self, index: usize, share: &Share) -> u32 {
        if PULL { self.0.give(index, share) } else { self.0.take(index, share) }
    }

    /// How much a root is to be rid of, or to get. A goal's is negative.
    fn want(&self, excess: i64) -> i64 {
        if PULL { -excess } else { excess }
    }

    /// The shares that tokens leave and reach.
    fn endpoints(&self, hop: Hop) -> [usize; 2] {
        let [near, far] = [hop.near as usize, hop.far as usize];
        if PULL { [far, near] } else { [near, far] }
    }
}

/// The state of a configuration while its tokens move.
#[derive(Clone, Debug, Default)]
pub(super) struct Shifting {
    /// By server: tokens less capacity. An overloaded server's is positive, with headroom it is
    /// negative.
    pub(super) excess: Vec<i64>,
    /// By server: where its shares are. One that has another server by now is stale, and one that
    /// came back may be there twice.
    refs: Vec<Vec<ShareRef>>,
    /// How many more may become stale before it is better to make the lists anew.
    bearable: usize,
    /// Whether `refs` has every share.
    is_indexed: bool,
    /// By server: the demand of all buckets together, once there is a list.
    demands: Vec<i64>,
    /// By server: the length of a shortest path to a goal.
    levels: Vec<u32>,
    /// By level: how many servers may still lead to a goal.
    alive: Vec<u32>,
    /// The exits that the search for levels has seen on its way.
    exits: Vec<Exit>,
    /// By server: its first exit that may still lead on; [`NONE`] if there is none.
    first_exits: Vec<u32>,
    /// Up to this level servers have all their exits. Those above are found by looking for them.
    exits_known: u32,
    /// By server: the index at which the search for a hop goes on.
    cursors: Vec<u32>,
    /// By bucket: the last search that has examined all of it.
    seen: Vec<u32>,
    searches: u32,
    queue: Vec<u32>,
    path: Vec<Hop>,
    scratch: Vec<(u64, u32)>,
    pub(super) former: Vec<Share>,
    outcome: SolverReport,
}

impl Shifting {
    /// Gives all buckets their first tokens.
    pub(super) fn start(&mut self, configuration: &mut Configuration) {
        self.reset(configuration);
        let Configuration { rows, reservations, shares, .. } = configuration;
        start::start(rows, reservations, shares, &mut self.excess, &mut self.scratch);
    }

    #[cfg(feature = "parallel")]
    pub(super) fn start_parallel(&mut self, configuration: &mut Configuration) {
        self.reset(configuration);
        let Configuration { rows, reservations, shares, .. } = configuration;
        start::parallel::start(rows, reservations, shares, &mut self.excess);
    }

    fn reset(&mut self, configuration: &Configuration) {
        self.outcome = SolverReport::default();
        self.is_indexed = false;
        self.excess.clear();
        self.excess.extend(configuration.capacities.iter().map(|capacity| -signed(*capacity)));
    }

    /// Adds up each server's tokens.
    pub(super) fn measure(&mut self, configuration: &Configuration) {
        self.excess.clear();
        self.excess.extend(configuration.capacities.iter().map(|capacity| -signed(*capacity)));
        for share in &configuration.shares {
            self.excess[share.server as usize] += i64::from(share.tokens);
        }
    }

    /// A server can do more, or less, than it could.
    pub(super) fn resize(&mut self, server: usize, former: u64, capacity: u64) {
        self.excess[server] += signed(former) - signed(capacity);
    }

    /// Uses every path of length one that can be found by looking at each bucket once.
    pub(super) fn sweep(&mut self, configuration: &mut Configuration, bounds: &impl Bounds) {
        let mut overloaded = self.excess.iter().filter(|excess| **excess > 0).count();
        let mut underloaded = self.excess.iter().filter(|excess| **excess < 0).count();
        let Configuration { rows, shares, .. } = configuration;
        for row in rows.windows(2) {
            if overloaded == 0 || underloaded == 0 {
                return;
            }
            let (begin, end) = (row[0] as usize, row[1] as usize);
            for source in begin..end {
                let mut left = self.excess[shares[source].server as usize];
                if left <= 0 {
                    continue;
                }
                for target in begin..end {
                    let headroom = -self.excess[shares[target].server as usize];
                    if headroom <= 0 {
                        continue;
                    }
                    let give = bounds.give(source, &shares[source]);
                    let take = bounds.take(target, &shares[target]);
                    let amount = i64::from(give.min(take)).min(left).min(headroom);
                    if amount == 0 {
                        continue;
                    }
                    self.move_tokens(shares, [source, target], amount);
                    self.outcome.paths += 1;
                    underloaded -= usize::from(amount == headroom);
                    left -= amount;
                    if left == 0 {
                        overloaded -= 1;
                        break;
                    }
                }
            }
        }
    }

    /// Uses shift paths until there is none, and returns the value of the result.
    pub(super) fn shift(
        &mut self,
        configuration: &mut Configuration,
        bounds: &impl Bounds,
    ) -> SolverReport {
        loop {
            let is_any = |is: fn(&i64) -> bool| self.excess.iter().any(is);
            if !is_any(|excess| *excess > 0) || !is_any(|excess| *excess < 0) {
                break;
            }
            self.index_shares(configuration);
            let [give, take] = self.movable(configuration);
            let has_shifted = if take <= give {
                self.round(configuration, &Way::<_, false>(bounds))
            } else {
                self.round(configuration, &Way::<_, true>(bounds))
            };
            if !has_shifted {
                break;
            }
        }
        let mut outcome = mem::take(&mut self.outcome);
        for (excess, capacity) in self.excess.iter().zip(&configuration.capacities) {
            outcome.weak_excess += (*excess).max(0) as u64;
            outcome.effective_capacity +=
                if *excess >= 0 { *capacity } else { (signed(*capacity) + excess) as u64 };
        }
        outcome
    }

    /// How many tokens overloaded servers have, and how much demand to spare those with headroom.
    fn movable(&self, configuration: &Configuration) -> [i64; 2] {
        let [mut give, mut take] = [0; 2];
        for (server, excess) in self.excess.iter().enumerate().filter(|(_, excess)| **excess != 0) {
            let tokens = excess + signed(configuration.capacities[server]);
            match *excess > 0 {
                true => give += tokens,
                false => take += self.demands[server] - tokens,
            }
        }
        [give, take]
    }

    /// Uses paths of length one, and then those that are shortest, until all of these are blocked.
    /// Whether there may be more.
    fn round<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &mut Configuration,
        way: &Way<'_, B, PULL>,
    ) -> bool {
        self.shift_directly(configuration, way);
        // A server with headroom and no demand to spare is no root: no search will find it.
        let is_open = |(server, excess): &(usize, &i64)| {
            let tokens = *excess + signed(configuration.capacities[*server]);
            way.want(**excess) > 0 && (**excess > 0 || tokens < self.demands[*server])
        };
        let roots = self.excess.iter().enumerate().filter(is_open).count();
        if roots == 0 || !self.find_levels(configuration, way, roots) {
            return false;
        }
        self.outcome.rounds += 1;
        self.cursors.clear();
        self.cursors.resize(self.excess.len(), 0);
        for root in 0..self.excess.len() {
            while way.want(self.excess[root]) > 0 && self.find_path(configuration, way, root) {
                self.use_path(configuration, way, root);
            }
        }
        true
    }

    /// Uses every path of length one, from what the goals have.
    fn shift_directly<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &mut Configuration,
        way: &Way<'_, B, PULL>,
    ) {
        for goal in 0..self.excess.len() {
            let mut rest = self.movable_at::<PULL>(goal, configuration);
            let refs = mem::take(&mut self.refs[goal]);
            for some in refs.rchunks(TOGETHER) {
                if rest <= 0 || way.want(self.excess[goal]) >= 0 {
                    break;
                }
                let open = Open::of((goal, some), configuration, way);
                rest -= open.amount;
                for share_ref in open.iter() {
                    self.fill_directly(configuration, way, goal, *share_ref);
                }
            }
            self.refs[goal] = refs;
        }
    }

    /// Moves what can be moved between a goal's share and others of its bucket on roots.
    fn fill_directly<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &mut Configuration,
        way: &Way<'_, B, PULL>,
        goal: usize,
        share_ref: ShareRef,
    ) {
        let far = share_ref.share as usize;
        let mut headroom = -way.want(self.excess[goal]);
        for near in configuration.range(share_ref.bucket as usize) {
            let shares = &mut configuration.shares;
            let most = way.want(self.excess[shares[near].server as usize]).min(headroom);
            if most <= 0 {
                continue;
            }
            let can = way.near(near, &shares[near]).min(way.far(far, &shares[far]));
            let amount = i64::from(can).min(most);
            if amount > 0 {
                let hop = Hop { near: near as u32, far: far as u32 };
                self.move_tokens(shares, way.endpoints(hop), amount);
                self.outcome.paths += 1;
                headroom -= amount;
            }
        }
    }

    /// How much can move on the goal's side at all shares of a server.
    fn movable_at<const PULL: bool>(&self, server: usize, configuration: &Configuration) -> i64 {
        let tokens = self.excess[server] + signed(configuration.capacities[server]);
        if PULL { tokens } else { self.demands[server] - tokens }
    }

    /// Finds how far each server is from a goal, until as many roots are found. Whether there is
    /// one.
    fn find_levels<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &Configuration,
        way: &Way<'_, B, PULL>,
        roots: usize,
    ) -> bool {
        self.begin_search(configuration, |excess| way.want(excess) < 0);
        let (mut at, mut found) = (0, 0);
        while let Some(&far) = self.queue.get(at) {
            at += 1;
            let level = self.levels[far as usize] + 1;
            self.exits_known = level - 1;
            if self.movable_at::<PULL>(far as usize, configuration) == 0 {
                continue;
            }
            let refs = mem::take(&mut self.refs[far as usize]);
            for some in refs.rchunks(TOGETHER) {
                if found == roots {
                    break;
                }
                let open = Open::of((far as usize, some), configuration, way);
                for share_ref in open.iter() {
                    found += self.find_exits(configuration, way, level, share_ref.bucket);
                }
            }
            self.refs[far as usize] = refs;
            if found == roots {
                return true;
            }
        }
        self.exits_known = NONE;
        found > 0
    }

    /// Notes which shares of a bucket tokens can leave towards a server below `level`. How many
    /// roots are found by that.
    fn find_exits<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &Configuration,
        way: &Way<'_, B, PULL>,
        level: u32,
        bucket: u32,
    ) -> usize {
        let mut found = 0;
        if mem::replace(&mut self.seen[bucket as usize], self.searches) == self.searches {
            return found;
        }
        for index in configuration.range(bucket as usize) {
            let other = &configuration.shares[index];
            let near = other.server as usize;
            if self.levels[near] < level || way.near(index, other) == 0 {
                continue;
            }
            let share_ref = ShareRef { share: index as u32, bucket };
            let next = mem::replace(&mut self.first_exits[near], self.exits.len() as u32);
            self.exits.push(Exit { share_ref, next });
            if self.levels[near] > level {
                self.levels[near] = level;
                self.alive[level as usize] += 1;
                self.queue.push(near as u32);
                found += usize::from(way.want(self.excess[near]) > 0);
            }
        }
        found
    }

    /// Finds a path from `root` to a goal, down a level with each step. A dead end is not tried
    /// again before there are new levels.
    fn find_path<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &Configuration,
        way: &Way<'_, B, PULL>,
        root: usize,
    ) -> bool {
        self.path.clear();
        let mut here = root;
        loop {
            let level = self.levels[here];
            if level == NONE {
                return false;
            }
            if way.want(self.excess[here]) < 0 {
                return true;
            }
            if let Some(hop) = self.find_hop(configuration, way, here) {
                self.path.push(hop);
                here = configuration.shares[hop.far as usize].server as usize;
                continue;
            }
            self.alive[level as usize] -= 1;
            self.levels[here] = NONE;
            let Some(hop) = self.path.pop() else { return false };
            here = configuration.shares[hop.near as usize].server as usize;
        }
    }

    fn find_hop<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &Configuration,
        way: &Way<'_, B, PULL>,
        here: usize,
    ) -> Option<Hop> {
        let next = self.levels[here].checked_sub(1)?;
        if self.alive[next as usize] == 0 {
            return None;
        }
        let leads = |&ShareRef { share, bucket }: &ShareRef| {
            let own = &configuration.shares[share as usize];
            if own.server as usize != here || way.near(share as usize, own) == 0 {
                return None;
            }
            let far = configuration.range(bucket as usize).find(|index| {
                let other = &configuration.shares[*index];
                self.levels[other.server as usize] == next && way.far(*index, other) > 0
            })?;
            Some(Hop { near: share, far: far as u32 })
        };
        if self.levels[here] <= self.exits_known {
            while let Some(exit) = self.exits.get(self.first_exits[here] as usize) {
                if let Some(hop) = leads(&exit.share_ref) {
                    return Some(hop);
                }
                self.first_exits[here] = exit.next;
            }
            return None;
        }
        while let Some(share_ref) = self.refs[here].get(self.cursors[here] as usize) {
            if let Some(hop) = leads(share_ref) {
                return Some(hop);
            }
            self.cursors[here] += 1;
        }
        None
    }

    /// Moves as much along the path as the overloaded server at one end has too much, the one at
    /// the other end has headroom for, and every hop bears.
    fn use_path<B: Bounds, const PULL: bool>(
        &mut self,
        configuration: &mut Configuration,
        way: &Way<'_, B, PULL>,
        root: usize,
    ) {
        let path = mem::take(&mut self.path);
        let Some(last) = path.last() else { return };
        let shares = &configuration.shares;
        let goal = shares[last.far as usize].server as usize;
        let mut amount = self.excess[root].abs().min(self.excess[goal].abs());
        for &Hop { near, far } in &path {
            let near = way.near(near as usize, &shares[near as usize]);
            let far = way.far(far as usize, &shares[far as usize]);
            amount = amount.min(i64::from(near.min(far)));
        }
        for hop in &path {
            self.move_tokens(&mut configuration.shares, way.endpoints(*hop), amount);
        }
        self.path = path;
        self.outcome.paths += 1;
    }

    fn move_tokens(&mut self, shares: &mut [Share], [source, target]: [usize; 2], amount: i64) {
        let source = &mut shares[source];
        source.tokens -= amount as u32;
        self.excess[source.server as usize] -= amount;
        let target = &mut shares[target];
        target.tokens += amount as u32;
        self.excess[target.server as usize] += amount;
        self.outcome.moves += 1;
        self.outcome.moved += amount as u64;
    }

    /// Makes the list of each server's shares, if it is not there.
    pub(super) fn index_shares(&mut self, configuration: &Configuration) {
        if self.is_indexed {
            return;
        }
        self.refs.resize(configuration.capacities.len(), Vec::new());
        // Twice the mean: lists of one length would all outgrow their memory in the same round.
        let capacity = 2 * configuration.shares.len() / configuration.capacities.len().max(1);
        for refs in &mut self.refs {
            refs.clear();
            refs.reserve(capacity);
        }
        self.demands.clear();
        self.demands.resize(configuration.capacities.len(), 0);
        self.bearable = configuration.shares.len();
        for (bucket, row) in configuration.rows.windows(2).enumerate() {
            for index in row[0]..row[1] {
                let Share { server, demand, .. } = configuration.shares[index as usize];
                self.demands[server as usize] += i64::from(demand);
                self.refs[server as usize].push(ShareRef { share: index, bucket: bucket as u32 });
            }
        }
        self.is_indexed = true;
    }

    /// Follows a share that was `former`, if there are lists. To take it off a list would be to
    /// look for it; once every other entry may be stale, lists are made anew, when they are needed.
    pub(super) fn list_anew(&mut self, share_ref: ShareRef, former: Share, share: Share) {
        if !self.is_indexed {
            return;
        }
        self.demands[former.server as usize] -= i64::from(former.demand);
        self.demands[share.server as usize] += i64::from(share.demand);
        if share.server != former.server {
            self.refs[share.server as usize].push(share_ref);
            self.is_indexed = self.bearable > 0;
            self.bearable = self.bearable.saturating_sub(1);
        }
    }

    fn begin_search(&mut self, configuration: &Configuration, is_goal: impl Fn(i64) -> bool) {
        if self.searches == u32::MAX {
            self.seen.fill(0);
            self.searches = 0;
        }
        self.searches += 1;
        self.seen.resize(configuration.reservations.len(), 0);
        self.queue.clear();
        self.levels.clear();
        self.levels.resize(self.excess.len(), NONE);
        self.exits.clear();
        self.first_exits.clear();
        self.first_exits.resize(self.excess.len(), NONE);
        self.alive.clear();
        self.alive.resize(self.excess.len(), 0);
        for server in (0..self.excess.len()).filter(|server| is_goal(self.excess[*server])) {
            self.levels[server] = 0;
            self.alive[0] += 1;
            self.queue.push(server as u32);
        }
    }

    /// The servers that tokens of overloaded servers can reach, these included, in ascending order.
    pub(super) fn reached(&mut self, configuration: &Configuration) -> Vec<u32> {
        if self.excess.iter().any(|excess| *excess > 0) {
            self.index_shares(configuration);
            // There is no such number of roots: the search goes on to the end.
            self.find_levels(configuration, &Way::<_, true>(&Exact), usize::MAX);
        } else {
            self.queue.clear();
        }
        let mut servers = self.queue.clone();
        servers.sort_unstable();
        servers
    }

    /// By server: its shares.
    pub(super) fn shares_of(&mut self, configuration: &Configuration) -> Vec<Vec<usize>> {
        self.index_shares(configuration);
        let all = |refs: &Vec<ShareRef>| refs.iter().map(|at| at.share as usize).collect();
        self.refs.iter().map(all).collect()
    }
}

/// A capacity as an amount with a sign. No server has as many tokens as the largest of these.
fn signed(capacity: u64) -> i64 {
    i64::try_from(capacity).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "shift_tests.rs"]
mod tests;
