//! What each node is to hold: reservations first, then limits, then what nobody asks for yet.
//!
//! pShift ([`tidegate_algo::pshift`]) puts tokens where requests are expected and there is capacity
//! for them: first what is left of reservations, then what is left of limits, on the capacity and
//! the demand that remain (§III-D). Both go on from the last solution. Where not all can be met,
//! the shortfall is divided fairly.
//!
//! What waits is certain; what is expected may go elsewhere, and tokens that lie there for it are
//! lost if it does so after the last distribution. So tokens go to what waits first, and a second
//! solution goes on from there with all that is asked: it is optimal for that, and leaves the
//! tokens of the first where it can. With everything reserved and all tenants moving (experiment 1
//! of the paper) the operations that reservations miss fell by this from 23 in 10,000 to 1.
//!
//! That leaves over what a tenant was promised and is not expected to ask for. The paper keeps it
//! back. Here it is handed out too, as *stand-by*, because a request that comes a moment after the
//! distribution would otherwise be served as if nothing were promised or, under a limit, not at
//! all until the next: half of it in proportion to demand, half evenly over the tenant's nodes.
//! Stand-by of reservations avoids nodes that have no capacity left, where it would take from
//! those for whom the solution was made.

use alloc::vec::Vec;

use tidegate_algo::pshift::{Configuration, Outcome, Solver};

use super::ledger::{Counts, Tenant, When};

/// A node, as an allocation needs to know it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// What it can do until the end of the period.
    pub(super) capacity: u64,
    /// Whether it can be told something. What others hold stays theirs.
    pub(super) is_open: bool,
}

/// What cannot be met, and because of which nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Short {
    pub(super) nodes: Vec<u16>,
    /// Tenants by place, with what each is short of.
    pub(super) tenants: Vec<(usize, u64)>,
}

/// The solutions from which the next ones go on: of this period, and of the next.
#[derive(Debug, Default)]
pub(super) struct Solutions {
    reserved: [Option<Solver>; 2],
    allowed: [Option<Solver>; 2],
}

/// A tenant at a node.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    node: u16,
    is_open: bool,
    is_home: bool,
    /// What is asked for and has no tokens yet.
    demand: u64,
    /// How much of that waits already.
    waiting: u64,
    tokens: Counts,
}

/// A part of a cell's demand.
type Part = fn(&Cell) -> u64;

impl Solutions {
    /// Sets the target of every account of a period. Says what of the reservations cannot be met.
    pub(super) fn aim(&mut self, tenants: &mut [Tenant], places: &[Place], when: When) -> Short {
        let budgets: Vec<Counts> = tenants.iter().map(|t| budget(t, places, when)).collect();
        let mut rows: Vec<Vec<Cell>> = tenants.iter().map(|t| row(t, places, when)).collect();
        let open = |place: &Place| if place.is_open { place.capacity } else { 0 };
        let mut capacities: Vec<u64> = places.iter().map(open).collect();

        let wants: Vec<u64> = budgets.iter().map(|budget| budget.reserved).collect();
        let solver = &mut self.reserved[when as usize];
        let (found, short) = solve(solver, &wants, &rows, &capacities);
        for (cell, found) in rows.iter_mut().flatten().zip(found) {
            let capacity = &mut capacities[usize::from(cell.node)];
            *capacity = capacity.saturating_sub(found);
            cell.demand -= found;
            cell.tokens.reserved = found;
        }
        for (row, want) in rows.iter_mut().zip(&wants) {
            let spare = want - row.iter().map(|cell| cell.tokens.reserved).sum::<u64>();
            let is_free = |cell: &Cell| cell.is_open && capacities[usize::from(cell.node)] > 0;
            let is_any_free = row.iter().any(is_free);
            let takes = |cell: &Cell| if is_any_free { is_free(cell) } else { cell.is_open };
            spread(spare, row, takes, |cell, part| {
                cell.tokens.reserved += part;
                cell.demand = cell.demand.saturating_sub(part);
            });
        }

        let rest = |(tenant, budget): (&Tenant, &Counts)| match tenant.is_limited {
            true => budget.allowed - budget.reserved,
            false => 0,
        };
        let wants: Vec<u64> = tenants.iter().zip(&budgets).map(rest).collect();
        let solver = &mut self.allowed[when as usize];
        let (found, _) = solve(solver, &wants, &rows, &capacities);
        for (cell, found) in rows.iter_mut().flatten().zip(found) {
            cell.tokens.allowed = cell.tokens.reserved + found;
        }
        for ((row, want), tenant) in rows.iter_mut().zip(&wants).zip(tenants) {
            let extra = |cell: &Cell| cell.tokens.allowed - cell.tokens.reserved;
            let spare = want - row.iter().map(extra).sum::<u64>();
            spread(spare, row, |cell| cell.is_open, |cell, part| cell.tokens.allowed += part);
            let open = row.iter().enumerate().filter(|(_, cell)| cell.is_open);
            open.for_each(|(place, cell)| settle(tenant, place, when, cell.tokens));
        }
        short
    }
}

fn row(tenant: &Tenant, places: &[Place], when: When) -> Vec<Cell> {
    let cell = |entry: &super::ledger::Entry| {
        let demand = match when {
            When::Now => entry.demand,
            When::Next => entry.served.saturating_add(entry.demand),
        };
        let is_open = places[usize::from(entry.node)].is_open;
        // The solver's measure; a node does not serve more in a period.
        let demand = if is_open { demand.min(u64::from(u32::MAX)) } else { 0 };
        // In the next period, nobody knows what of it will still wait.
        let waiting = if when == When::Now { entry.waiting } else { 0 };
        let is_home = entry.is_home;
        Cell { node: entry.node, is_open, is_home, demand, waiting, tokens: Counts::ZERO }
    };
    tenant.entries.iter().map(cell).collect()
}

/// The tokens that may be divided: what was promised, without what was served at nodes that can be
/// told something, and without what others may hold. Nothing if no node can be told anything.
fn budget(tenant: &Tenant, places: &[Place], when: When) -> Counts {
    let mut used = tenant.beyond_reach(when);
    let mut is_any_open = false;
    for entry in &tenant.entries {
        let served = if when == When::Now { entry.served } else { 0 };
        let bound = entry.account(when).bound;
        let is_open = places[usize::from(entry.node)].is_open;
        is_any_open |= is_open;
        used = used.plus(if is_open {
            Counts { reserved: served, allowed: served }
        } else {
            Counts { reserved: bound.reserved.max(served), allowed: bound.allowed.max(served) }
        });
    }
    let mut left = if is_any_open { tenant.promise.minus(used) } else { Counts::ZERO };
    if tenant.is_limited {
        left.reserved = left.reserved.min(left.allowed);
    }
    left
}

/// Writes down what an account is to be, from the tokens that it is to have.
fn settle(tenant: &mut Tenant, place: usize, when: When, tokens: Counts) {
    let is_limited = tenant.is_limited;
    let entry = &mut tenant.entries[place];
    let served = if when == When::Now { entry.served } else { 0 };
    let account = entry.account_mut(when);
    account.target = Counts {
        // Any count up to what was served is no token. The one that is there needs no message.
        reserved: match tokens.reserved {
            0 => served.min(account.bound.reserved),
            more => served.saturating_add(more),
        },
        allowed: if is_limited { served.saturating_add(tokens.allowed) } else { 0 },
    };
}

/// Divides `amount` exactly over the cells that take it: half evenly over the tenant's own nodes,
/// or over all where none of its own takes any; half where there is demand.
fn spread(
    amount: u64,
    row: &mut [Cell],
    takes: impl Fn(&Cell) -> bool,
    give: impl Fn(&mut Cell, u64),
) {
    let is_at_home = row.iter().any(|cell| takes(cell) && cell.is_home);
    let is_even = |cell: &Cell| cell.is_home || !is_at_home;
    let count = row.iter().filter(|cell| takes(cell) && is_even(cell)).count() as u64;
    let sum: u64 = row.iter().filter(|cell| takes(cell)).map(|cell| cell.demand).sum();
    let even = (sum / count.max(1)).max(1);
    let (mut left, mut weights) = (amount, sum + even * count);
    for cell in row.iter_mut().filter(|cell| takes(cell)) {
        let weight = cell.demand + if is_even(cell) { even } else { 0 };
        if weight == 0 {
            continue;
        }
        let part = (u128::from(left) * u128::from(weight) / u128::from(weights)) as u64;
        (left, weights) = (left - part, weights - weight);
        give(cell, part);
    }
}

/// Tokens for each cell, of all rows in turn: at most what its tenant wants in sum, at most its
/// demand, and as many as nodes have capacity for.
fn solve(
    last: &mut Option<Solver>,
    wants: &[u64],
    rows: &[Vec<Cell>],
    capacities: &[u64],
) -> (Vec<u64>, Short) {
    let of = |row: &[Cell], part: Part| -> Vec<(u32, u32)> {
        row.iter().map(|cell| (u32::from(cell.node), part(cell) as u32)).collect()
    };
    let solver = last.get_or_insert_with(|| {
        let mut configuration = Configuration::new(capacities);
        for (want, row) in wants.iter().zip(rows) {
            let pushed = configuration.push(*want, &of(row, |_| 0));
            assert!(pushed.is_ok(), "fewer than 2^31 pairs of a tenant and a node that exists");
        }
        Solver::new(configuration)
    });
    for (server, capacity) in capacities.iter().enumerate() {
        solver.set_capacity(server, *capacity);
    }
    let mut outcome = Outcome::default();
    let certain: Part = |cell| cell.waiting.min(cell.demand);
    for part in [certain, |cell| cell.demand] {
        for (bucket, (want, row)) in wants.iter().zip(rows).enumerate() {
            let set = solver.set(bucket, *want, &of(row, part));
            assert!(set.is_ok(), "a row has as many cells as when it was pushed");
        }
        outcome = solver.shift();
    }
    if outcome.weak_excess == 0 {
        let tokens = solver.configuration().shares().iter().map(|share| u64::from(share.tokens));
        return (tokens.collect(), Short::default());
    }
    let shares = solver.share_shortfall();
    let nodes = solver.certificate().servers().iter().map(|server| *server as u16).collect();
    let configuration = solver.configuration();
    let missing = |(bucket, met): (usize, &u64)| (bucket, configuration.entitlement(bucket) - met);
    let tenants = shares.met.iter().enumerate().map(missing).filter(|(_, missing)| *missing > 0);
    let short = Short { nodes, tenants: tenants.collect() };
    (shares.granted.iter().map(|granted| u64::from(*granted)).collect(), short)
}
