//! Division of tokens over the nodes: reservations, limits, and tokens without demand.
//!
//! pShift ([`tidegate_algo::allocation::pshift`]) puts tokens where requests are expected and there
//! is capacity for them: first the rest of the reservations, then the rest of the limits, on the
//! capacity and the demand that remain (§III-D). Both go on from the last solution. Where not all
//! can be met, the shortfall is divided fairly.
//!
//! Waiting requests are certain. Expected ones may go to another node, and their tokens are lost if
//! they do so after the last distribution. So tokens go to waiting requests first, and a second
//! solution goes on from there with all demand: it is optimal for that, and leaves the tokens of
//! the first where it can. With everything reserved and all tenants moving (experiment 1 of the
//! paper) the operations that reservations miss fell by this from 23 in 10,000 to 1.
//!
//! The further demand of elastic tenants comes last, because tokens for it at one node are missing
//! at another: a client with eight requests on a striped volume asks each of three nodes for a
//! third of its rate, and all eight may happen to wait at one of them. Were the tokens there, the
//! other nodes would have none, and the client would wait for those. For the same reason each step
//! is divided in proportion where it cannot be given whole, and a third solution shifts only the
//! tokens that overloaded nodes cannot serve.
//!
//! The part of a promise without expected demand is left over. The paper keeps it back. Here it is
//! handed out too, as *stand-by*: half of it in proportion to demand, half evenly over the tenant's
//! nodes. Without it, a request that comes a moment after the distribution would have no
//! reservation or, under a limit, wait until the next one. Stand-by of the reservation of a tenant
//! with demand avoids nodes that have no capacity left, where it would take from the tenants in the
//! solution. That of a tenant without demand is at its nodes whatever these have left: capacity at
//! a busy node comes and goes, and with each change the counts of all tenants would move.

use alloc::vec::Vec;

use tidegate_algo::allocation::pshift::{Configuration, Solver, SolverReport};
use tidegate_model::{NodeId, Portion, TenantIndex};

use super::awake::Awake;
use super::bounds::{GrantCounts, NodeAccounts, TenantBounds, When};
use super::groups::{self, Outlook};

/// A node, as an allocation needs to know it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCapacity {
    /// Its capacity in units of cost: in the rest of this period, or in the whole next one.
    pub(super) capacity: u64,
    /// Whether it can be sent counts. The other nodes keep the counts that they hold.
    pub(super) is_open: bool,
}

/// Reservations that cannot be met, and the nodes that cause it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Short {
    pub(super) nodes: Vec<NodeId>,
    /// Tenants, with the tokens that each is short of.
    pub(super) tenants: Vec<(TenantIndex, u64)>,
}

/// The solutions from which the next ones go on: of this period, and of the next.
#[derive(Debug, Default)]
pub(super) struct Solutions {
    reserved: [Solution; 2],
    allowed: [Solution; 2],
}

/// The last solution. Only tenants that were divided have a part in it, so that its cost is theirs:
/// where demand exceeds the capacity, the solver goes through all that it has, several times.
#[derive(Debug, Default)]
pub(super) struct Solution {
    /// The tenants, in the order of the policy: each is a bucket of the solver.
    who: Vec<usize>,
    /// None before the first solution.
    solver: Option<Solver>,
}

/// A tenant at a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) node: NodeId,
    pub(super) is_open: bool,
    pub(super) is_home: bool,
    /// Units of cost that wait.
    pub(super) waiting: u64,
    /// Expected demand, the waiting units included.
    pub(super) expected: u64,
    /// Demand that could be served, the expected part included.
    pub(super) demand: u64,
    /// The part of the demand that has tokens.
    pub(super) given: u64,
    pub(super) tokens: GrantCounts,
}

pub(super) type DemandLevel = fn(&Cell) -> u64;

/// Levels of demand for reservation tokens, the most certain first; each includes those before it.
pub(super) const RESERVED: &[DemandLevel] =
    &[|cell| cell.waiting, |cell| cell.expected, |cell| cell.demand];

/// Levels of demand for other tokens. A limited tenant asks for more wherever it is served, so it
/// can grow at all nodes alike before one node has all of its tokens.
pub(super) const ALLOWED: &[DemandLevel] = &[
    |cell| cell.waiting,
    |cell| cell.expected,
    |cell| 2 * cell.expected,
    |cell| cell.demand.max(2 * cell.expected),
];

/// Some tenants while their tokens are divided; in the order of the policy, as all lists.
struct Division<'a> {
    who: &'a [usize],
    when: When,
    budgets: Vec<GrantCounts>,
    rows: Vec<Vec<Cell>>,
}

impl Solutions {
    /// Sets the target of every account of a period for the tenants that are awake, and for all
    /// others if theirs may come out differently. Returns the shortfall of the reservations.
    pub(super) fn aim(
        &mut self,
        (tenants, groups): (&mut [TenantBounds], &[GrantCounts]),
        awake: &mut Awake,
        nodes: &[NodeCapacity],
        (when, left): (When, Portion),
    ) -> Short {
        let who = awake.all();
        let mut division = Division::new((&who, when), (tenants, groups), nodes, left);
        let open = |node: &NodeCapacity| if node.is_open { node.capacity } else { 0 };
        let mut capacities: Vec<u64> = nodes.iter().map(open).collect();
        let short = self.reserve(&mut division, tenants, &mut capacities);
        division.spread_rest(tenants, &capacities);
        self.allow(&mut division, tenants, &capacities);
        let _ = division.settle(tenants);
        let pattern = nodes.iter().map(|node| node.is_open);
        if awake.is_pattern_new(when, pattern.collect()) {
            let is_awake = |tenant: &usize| who.binary_search(tenant).is_ok();
            let others: Vec<usize> = (0..tenants.len()).filter(|it| !is_awake(it)).collect();
            // They have no demand, so there is nothing to solve.
            let mut division = Division::new((&others, when), (tenants, groups), nodes, left);
            division.spread_rest(tenants, &capacities);
            let wants = division.beyond_reservations(tenants);
            allow(&mut division.rows, &wants, core::iter::repeat(0));
            for tenant in division.settle(tenants) {
                awake.wake(tenants, TenantIndex::at(tenant));
            }
        }
        short
    }

    /// Divides the reserved tokens by demand, and takes them from the capacities.
    fn reserve(
        &mut self,
        division: &mut Division<'_>,
        tenants: &[TenantBounds],
        capacities: &mut [u64],
    ) -> Short {
        let wants = division.budgets.iter().map(|budget| budget.reserved).collect::<Vec<_>>();
        let last = &mut self.reserved[division.when as usize];
        let solver = last.go_on(division.who, tenants, capacities);
        let question = (division.who, &wants[..], RESERVED);
        let (found, short) = solve(solver, question, &division.rows, capacities);
        for (cell, found) in division.rows.iter_mut().flatten().zip(found) {
            let capacity = &mut capacities[cell.node.index()];
            *capacity = capacity.saturating_sub(found);
            (cell.given, cell.tokens.reserved) = (found, found);
        }
        short
    }

    /// Divides the tokens between reservations and limits, by the demand and the capacities that
    /// are left.
    fn allow(&mut self, division: &mut Division<'_>, tenants: &[TenantBounds], capacities: &[u64]) {
        let wants = division.beyond_reservations(tenants);
        let last = &mut self.allowed[division.when as usize];
        let solver = last.go_on(division.who, tenants, capacities);
        let question = (division.who, &wants[..], ALLOWED);
        let (found, _) = solve(solver, question, &division.rows, capacities);
        allow(&mut division.rows, &wants, found.into_iter());
    }
}

impl<'a> Division<'a> {
    fn new(
        (who, when): (&'a [usize], When),
        (tenants, groups): (&mut [TenantBounds], &[GrantCounts]),
        nodes: &[NodeCapacity],
        left: Portion,
    ) -> Self {
        let of = |index: &usize| &tenants[*index];
        let used: Vec<GrantCounts> = who.iter().map(|it| used(of(it), nodes, when)).collect();
        let pairs = who.iter().zip(&used);
        let mut budgets: Vec<GrantCounts> =
            pairs.map(|(it, used)| budget(of(it), nodes, *used)).collect();
        let rows: Vec<Vec<Cell>> = who.iter().map(|it| row(of(it), nodes, when)).collect();
        let sum = |row: &Vec<Cell>, of: fn(&Cell) -> u64| row.iter().map(of).sum::<u64>();
        let demand =
            |row: &Vec<Cell>| (sum(row, |cell| cell.expected), sum(row, |cell| cell.demand));
        let demands: Vec<(u64, u64)> = rows.iter().map(demand).collect();
        for (index, (expected, demand)) in who.iter().zip(&demands) {
            let tenant = &mut tenants[*index];
            tenant.is_divided_idle[when as usize] = [*expected, *demand, tenant.served()] == [0; 3];
        }
        let outlook = Outlook { who, used: &used, demands: &demands, left };
        if !groups.is_empty() {
            let before = budgets.clone();
            groups::share(groups, tenants, outlook, &mut budgets);
            if when == When::Now {
                groups::note_divided(tenants, outlook, (&before, &budgets));
            }
        }
        Self { who, when, budgets, rows }
    }

    /// Divides the rest of the reserved tokens: those of a tenant with demand where there is
    /// capacity left.
    fn spread_rest(&mut self, tenants: &[TenantBounds], capacities: &[u64]) {
        for ((row, budget), tenant) in self.rows.iter_mut().zip(&self.budgets).zip(self.who) {
            let is_idle = tenants[*tenant].is_divided_idle[self.when as usize];
            let divided = row.iter().map(|cell| cell.tokens.reserved).sum::<u64>();
            let spare = budget.reserved - divided;
            let has_left = |cell: &Cell| is_idle || capacities[cell.node.index()] > 0;
            let is_free = |cell: &Cell| cell.is_open && has_left(cell);
            let is_any_free = row.iter().any(is_free);
            let takes = |cell: &Cell| if is_any_free { is_free(cell) } else { cell.is_open };
            spread(spare, row, takes, |cell, part| {
                cell.given += part;
                cell.tokens.reserved += part;
            });
        }
    }

    /// The tokens between reservations and limits.
    fn beyond_reservations(&self, tenants: &[TenantBounds]) -> Vec<u64> {
        let rest = |(tenant, budget): (&usize, &GrantCounts)| match tenants[*tenant].is_limited {
            true => budget.allowed - budget.reserved,
            false => 0,
        };
        self.who.iter().zip(&self.budgets).map(rest).collect()
    }

    /// Sets the targets. Returns the tenants of which one differs from the one before.
    fn settle(&self, tenants: &mut [TenantBounds]) -> Vec<usize> {
        let mut changed = Vec::new();
        for (row, tenant) in self.rows.iter().zip(self.who) {
            let mut is_changed = false;
            let open = row.iter().enumerate().filter(|(_, cell)| cell.is_open);
            for (index, cell) in open {
                is_changed |= settle(&mut tenants[*tenant], index, self.when, cell.tokens);
            }
            changed.extend(is_changed.then_some(*tenant));
        }
        changed
    }
}

fn row(tenant: &TenantBounds, nodes: &[NodeCapacity], when: When) -> Vec<Cell> {
    let cell = |entry: &NodeAccounts| {
        let NodeAccounts { node, is_home, served, demand, expected, waiting, .. } = *entry;
        let is_open = nodes[node.index()].is_open;
        // Twice that is the solver's measure; a node does not serve more in a period.
        let most = if is_open { u64::from(u32::MAX / 2) } else { 0 };
        let measured = |amount: u64| amount.min(most);
        let cell = Cell { node, is_open, is_home, ..Cell::default() };
        match when {
            When::Now => Cell {
                waiting: measured(waiting),
                expected: measured(expected),
                demand: measured(demand),
                ..cell
            },
            // The part of it that will wait then is unknown.
            When::Next => Cell {
                expected: measured(served.saturating_add(expected)),
                demand: measured(served.saturating_add(demand)),
                ..cell
            },
        }
    };
    tenant.entries.iter().map(cell).collect()
}

/// The tokens that may not be divided: units served at open nodes, and counts that other nodes may
/// hold.
fn used(tenant: &TenantBounds, nodes: &[NodeCapacity], when: When) -> GrantCounts {
    let mut used = tenant.unaccounted(when);
    for entry in &tenant.entries {
        let is_open = nodes[entry.node.index()].is_open;
        used = used.plus(if is_open { entry.used(when) } else { entry.used_at_most(when) });
    }
    used
}

/// The tokens that may be divided: the promise, and what the tenant can have of its group's,
/// without the used ones. Zero if no node is open.
fn budget(tenant: &TenantBounds, nodes: &[NodeCapacity], used: GrantCounts) -> GrantCounts {
    let is_any_open = tenant.entries.iter().any(|entry| nodes[entry.node.index()].is_open);
    let mut left = if is_any_open { tenant.most().minus(used) } else { GrantCounts::ZERO };
    if tenant.is_limited {
        left.reserved = left.reserved.min(left.allowed);
    }
    left
}

/// Sets the target of an account from the tokens that it is to have. Whether it was another.
fn settle(tenant: &mut TenantBounds, index: usize, when: When, tokens: GrantCounts) -> bool {
    let is_limited = tenant.is_limited;
    let entry = &mut tenant.entries[index];
    let served = if when == When::Now { entry.served } else { 0 };
    let account = entry.account_mut(when);
    let target = GrantCounts {
        // A count up to the units served is no token. The present count needs no message.
        reserved: match tokens.reserved {
            0 => served.min(account.in_force().reserved),
            more => served.saturating_add(more),
        },
        allowed: if is_limited { served.saturating_add(tokens.allowed) } else { 0 },
    };
    core::mem::replace(&mut account.target, target) != target
}

/// Gives each cell the tokens found for it beside the reserved ones, and divides the rest of its
/// tenant's tokens.
pub(super) fn allow(rows: &mut [Vec<Cell>], wants: &[u64], found: impl Iterator<Item = u64>) {
    for (cell, found) in rows.iter_mut().flatten().zip(found) {
        cell.tokens.allowed = cell.tokens.reserved + found;
    }
    for (row, want) in rows.iter_mut().zip(wants) {
        let extra = |cell: &Cell| cell.tokens.allowed - cell.tokens.reserved;
        let spare = want - row.iter().map(extra).sum::<u64>();
        spread(spare, row, |cell| cell.is_open, |cell, part| cell.tokens.allowed += part);
    }
}

/// Divides `amount` exactly over the cells that take it: half evenly over the tenant's own nodes,
/// or over all where none of its own takes any; half in proportion to the expected demand.
pub(super) fn spread(
    amount: u64,
    row: &mut [Cell],
    takes: impl Fn(&Cell) -> bool,
    mut give: impl FnMut(&mut Cell, u64),
) {
    let is_at_home = row.iter().any(|cell| takes(cell) && cell.is_home);
    let is_even = |cell: &Cell| cell.is_home || !is_at_home;
    let count = row.iter().filter(|cell| takes(cell) && is_even(cell)).count() as u64;
    let sum: u64 = row.iter().filter(|cell| takes(cell)).map(|cell| cell.expected).sum();
    let even = (sum / count.max(1)).max(1);
    let (mut left, mut weights) = (amount, sum + even * count);
    for cell in row.iter_mut().filter(|cell| takes(cell)) {
        let weight = cell.expected + if is_even(cell) { even } else { 0 };
        if weight == 0 {
            continue;
        }
        let part = (u128::from(left) * u128::from(weight) / u128::from(weights)) as u64;
        (left, weights) = (left - part, weights - weight);
        give(cell, part);
    }
}

/// Divides `amount` over a row: to the first of the parts as far as it goes, the rest to the next
/// one, and in proportion where it does not suffice.
fn divide(amount: u64, row: &[Cell], levels: &[DemandLevel]) -> Vec<u64> {
    let mut tokens = alloc::vec![0; row.len()];
    let mut left = amount;
    for part in levels {
        let lacks = |cell: &Cell, has: u64| part(cell).saturating_sub(cell.given + has);
        let mut weights: u64 = row.iter().zip(&tokens).map(|(cell, has)| lacks(cell, *has)).sum();
        let mut rest = left.min(weights);
        left -= rest;
        for (cell, has) in row.iter().zip(&mut tokens) {
            let weight = lacks(cell, *has);
            if weight == 0 {
                continue;
            }
            let more = u128::from(rest) * u128::from(weight) / u128::from(weights);
            (rest, weights) = (rest - more as u64, weights - weight);
            *has += more as u64;
        }
    }
    tokens
}

impl Solution {
    /// The solver of these tenants. Those that were among its last ones have the tokens of the last
    /// solution, and the others none: they had no demand.
    pub(super) fn go_on(
        &mut self,
        who: &[usize],
        tenants: &[TenantBounds],
        capacities: &[u64],
    ) -> &mut Solver {
        if self.who == who {
            return self.solver.get_or_insert_with(|| Solver::new(Configuration::new(capacities)));
        }
        let last = self.solver.take();
        let mut configuration = Configuration::new(capacities);
        for tenant in who {
            let bucket = self.who.binary_search(tenant).ok();
            let pushed = match bucket.zip(last.as_ref()) {
                Some((bucket, last)) => configuration.push_from(last.configuration(), bucket),
                None => {
                    let node = |entry: &NodeAccounts| (u32::from(entry.node.0), 0);
                    let nothing: Vec<_> = tenants[*tenant].entries.iter().map(node).collect();
                    configuration.push(0, &nothing)
                }
            };
            assert!(pushed.is_ok(), "fewer than 2^31 pairs of a tenant and a node that exists");
        }
        self.who = who.into();
        self.solver.insert(Solver::new(configuration))
    }
}

/// Tokens for each cell, of all rows in turn: in sum at most the `wants` of its tenant, at each
/// cell at most the demand without tokens, and as many as nodes have capacity for. `who` are the
/// tenants of the rows and of the solver.
pub(super) fn solve(
    solver: &mut Solver,
    (who, wants, levels): (&[usize], &[u64], &[DemandLevel]),
    rows: &[Vec<Cell>],
    capacities: &[u64],
) -> (Vec<u64>, Short) {
    for (server, capacity) in capacities.iter().enumerate() {
        solver.set_capacity(server, *capacity);
    }
    // Waiting requests up to `want`; all demand up to `want`; and all demand of each cell.
    let (certain, all) = (&levels[..1], &levels[levels.len() - 1..]);
    let stages = [(certain, false), (levels, false), (all, true)];
    let wanted: u64 = wants.iter().fold(0, |sum, want| sum.saturating_add(*want));
    let mut outcome = SolverReport::default();
    for (levels, is_beyond) in stages {
        for (bucket, (want, row)) in wants.iter().zip(rows).enumerate() {
            let amount = if is_beyond { u64::MAX } else { *want };
            let amounts = divide(amount, row, levels).into_iter();
            let demands = row.iter().zip(amounts).map(|(c, n)| (u32::from(c.node.0), n as u32));
            let set = solver.set(bucket, *want, &demands.collect::<Vec<_>>());
            assert!(set.is_ok(), "a row has as many cells as when it was pushed");
        }
        outcome = solver.shift();
        // Enough if every wanted token will be used, or if the second stage overloads no node.
        let is_enough = levels.len() > 1 && outcome.weak_excess == 0;
        if is_enough || outcome.effective_capacity == wanted {
            break;
        }
    }
    if outcome.weak_excess == 0 {
        let shares = solver.configuration().shares().iter();
        return (shares.map(|share| u64::from(share.tokens)).collect(), Short::default());
    }
    let shares = solver.share_shortfall();
    let nodes =
        solver.certificate().servers().iter().map(|server| NodeId(*server as u16)).collect();
    let configuration = solver.configuration();
    let missing = |(bucket, tenant): (usize, &usize)| {
        let missing = configuration.entitlement(bucket) - shares.met[bucket];
        (TenantIndex::at(*tenant), missing)
    };
    let tenants = who.iter().enumerate().map(missing).filter(|(_, missing)| *missing > 0);
    let short = Short { nodes, tenants: tenants.collect() };
    (shares.granted.iter().map(|granted| u64::from(*granted)).collect(), short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(demands: &[[u64; 3]]) -> Vec<Cell> {
        let cell = |&[waiting, expected, demand]: &[u64; 3]| Cell {
            waiting,
            expected,
            demand,
            ..Cell::default()
        };
        demands.iter().map(cell).collect()
    }

    /// Eight requests of a striped client wait at one node of three, from each of which a hundred
    /// are expected.
    #[test]
    fn where_all_waits_is_not_given_all() {
        let row = row(&[[8, 108, 5_000], [0, 100, 100], [0, 100, 100]]);
        assert_eq!(divide(5, &row, ALLOWED), [5, 0, 0]);
        assert_eq!(divide(158, &row, ALLOWED), [58, 50, 50]);
        assert_eq!(divide(308, &row, ALLOWED), [108, 100, 100]);
        assert_eq!(divide(462, &row, ALLOWED), [162, 150, 150]);
        assert_eq!(divide(1_000, &row, ALLOWED), [600, 200, 200]);
        assert_eq!(divide(1_000, &row, RESERVED), [800, 100, 100]);
        assert_eq!(divide(9_999, &row, RESERVED), [5_000, 100, 100]);
    }

    #[test]
    fn what_has_tokens_is_not_given_more() {
        let mut row = row(&[[8, 108, 108], [0, 100, 100]]);
        row[0].given = 100;
        assert_eq!(divide(54, &row, RESERVED), [4, 50]);
        assert_eq!(divide(0, &row, RESERVED), [0, 0]);
    }
}
