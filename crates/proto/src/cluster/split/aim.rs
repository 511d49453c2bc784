//! What share each data node is to have of each promise.
//!
//! Reservations go where they are used: as much as a tenant did at a node, of the share that it has
//! there; all of the share where it wanted more. What is left over goes to nodes where it wanted
//! more: as much as that was, where its clients know, so that two of them get what each wants at
//! once; else whatever there is. pShift ([`tidegate_algo::pshift`]) does both at once for all
//! tenants, so that no node is to keep more than it can do, and moves to other nodes what one of
//! them cannot keep. Nothing goes beyond what the clients that are at a node can be promised there.
//!
//! What a tenant did beyond its share does not count: it had that of what others left, and may lose
//! it. Counted, it would draw the promise to where it is needed least.
//!
//! What is not asked for stands by, half of it evenly at all nodes and half where the tenant is
//! active, as far as nodes have capacity left. So a tenant that begins somewhere has something
//! there at once. Until anybody has reported anything this is all there is: equal parts.
//!
//! Limits are divided likewise, by all that is done and not only what is reserved. Where a tenant
//! has clients it always keeps a small part ([`KEPT_PART`]) of its limit, for one that may do
//! nothing cannot show that it wants to.

use alloc::vec::Vec;

use tidegate_algo::pshift::Solver;

use super::super::allocate::{ALLOWED, Cell, RESERVED, allow, solve, spread};
use super::super::ledger::{Counts, Tenant};
use super::{Node, STANDING};
use crate::data_node::message::TenantReport;

/// One part in so many of a limit stays at each node where its tenant has clients.
const KEPT_PART: u64 = 64;

/// Half of what the solver can count.
const MOST: u64 = (u32::MAX / 2) as u64;

/// The solutions from which the next ones go on.
#[derive(Debug, Default)]
pub(super) struct Aim {
    reserved: Option<Solver>,
    allowed: Option<Solver>,
}

impl Aim {
    /// Sets the target of every share.
    pub(super) fn divide(&mut self, tenants: &mut [Tenant], nodes: &[Node]) {
        let can = |node: &Node| if node.is_open() { node.capacity().0.min(MOST) } else { 0 };
        let mut capacities: Vec<u64> = nodes.iter().map(can).collect();
        let budgets: Vec<Counts> = tenants.iter().map(|tenant| budget(tenant, nodes)).collect();
        let mut rows: Vec<Vec<Cell>> =
            (0..).zip(&*tenants).map(|(number, tenant)| row(number, tenant, nodes)).collect();

        let wants: Vec<u64> = budgets.iter().map(|budget| budget.reserved).collect();
        let (found, _) = solve(&mut self.reserved, (&wants, RESERVED), &rows, &capacities);
        for (cell, found) in rows.iter_mut().flatten().zip(found) {
            capacities[usize::from(cell.node)] -= found.min(capacities[usize::from(cell.node)]);
            cell.tokens.reserved = found;
        }
        for ((number, row), want) in (0..).zip(&mut rows).zip(&wants) {
            let spare = want - row.iter().map(|cell| cell.tokens.reserved).sum::<u64>();
            let most = |node: &Node| match told(number, node) {
                TenantReport { clients: 0, .. } => node.client.0,
                TenantReport { most, .. } => most,
            };
            let most: Vec<u64> = nodes.iter().map(most).collect();
            stand_by(spare, row, &mut capacities, &most);
        }
        for ((number, tenant), row) in (0..).zip(&*tenants).zip(&mut rows) {
            for (cell, node) in row.iter_mut().zip(nodes) {
                let told = told(number, node);
                let kept = if told.clients > 0 { tenant.promise.allowed / KEPT_PART } else { 0 };
                cell.given = cell.tokens.reserved;
                cell.expected = told.done.max(kept).min(MOST);
                let wanted = if told.wants_more { wanted(&told) } else { 0 };
                cell.demand = wanted.max(cell.expected);
            }
        }
        self.allow(tenants, &budgets, &mut rows, nodes);
        for (tenant, row) in tenants.iter_mut().zip(rows) {
            for (entry, cell) in tenant.entries.iter_mut().zip(row) {
                entry.account_mut(STANDING).target = cell.tokens;
            }
        }
    }

    fn allow(
        &mut self,
        tenants: &[Tenant],
        budgets: &[Counts],
        rows: &mut [Vec<Cell>],
        nodes: &[Node],
    ) {
        let rest = |((tenant, budget), row): ((&Tenant, &Counts), &Vec<Cell>)| {
            let reserved: u64 = row.iter().map(|cell| cell.tokens.reserved).sum();
            if tenant.is_limited { budget.allowed.saturating_sub(reserved) } else { 0 }
        };
        let wants: Vec<u64> = tenants.iter().zip(budgets).zip(&*rows).map(rest).collect();
        // Who is allowed something may still find others in front of it.
        let boundless: Vec<u64> = nodes.iter().map(|_| MOST).collect();
        let (found, _) = solve(&mut self.allowed, (&wants, ALLOWED), rows, &boundless);
        allow(rows, &wants, &found);
        let unlimited = rows.iter_mut().zip(tenants).filter(|(_, tenant)| !tenant.is_limited);
        unlimited.flat_map(|(row, _)| row).for_each(|cell| cell.tokens.allowed = 0);
    }
}

/// What may be divided: what was promised, without what those hold who can be told nothing.
fn budget(tenant: &Tenant, nodes: &[Node]) -> Counts {
    let closed = tenant.entries.iter().zip(nodes).filter(|(_, node)| !node.is_open());
    let held =
        closed.fold(Counts::ZERO, |held, (entry, _)| held.plus(entry.account(STANDING).bound));
    let mut left = tenant.promise.minus(held);
    if tenant.is_limited {
        left.reserved = left.reserved.min(left.allowed);
    }
    left
}

/// What a node has said of a tenant.
fn told(number: u16, node: &Node) -> TenantReport {
    let tenants = node.report.iter().filter(|_| node.is_known).flat_map(|it| &it.tenants);
    let mut told = tenants.filter(|told| told.tenant == number);
    told.next().copied().unwrap_or_default()
}

/// How much a tenant wanted at a node, if its clients know it; else it may be any number more than
/// it did.
fn wanted(told: &TenantReport) -> u64 {
    match (told.wants_more, told.unmet) {
        (false, _) => told.done,
        (true, None) => MOST,
        (true, Some(unmet)) => told.done.saturating_add(unmet).min(MOST),
    }
}

/// How much of its reservation a tenant is to have where.
fn row(number: u16, tenant: &Tenant, nodes: &[Node]) -> Vec<Cell> {
    let cell = |(entry, node): (&super::Entry, &Node)| {
        let told = told(number, node);
        let share = entry.account(STANDING).said.reserved;
        let most = told.most.min(MOST);
        let used = share.min(wanted(&told));
        let expected = used.min(most);
        Cell {
            node: entry.node,
            is_open: node.is_open(),
            is_home: true,
            expected,
            demand: if told.wants_more { wanted(&told).min(most) } else { expected },
            ..Cell::default()
        }
    };
    tenant.entries.iter().zip(nodes).map(cell).collect()
}

/// Gives out what nobody asks for, as far as nodes have capacity left and no more than the most
/// that the tenant can be promised at each.
fn stand_by(mut spare: u64, row: &mut [Cell], capacities: &mut [u64], most: &[u64]) {
    // In each turn all is given out, or somebody has no room any more.
    for _ in 0..=row.len() {
        let room = |cell: &Cell| {
            let place = usize::from(cell.node);
            let alone = most[place].saturating_sub(cell.tokens.reserved);
            if cell.is_open { capacities[place].min(alone) } else { 0 }
        };
        let rooms: Vec<u64> = row.iter().map(room).collect();
        let mut given = 0;
        spread(
            spare,
            row,
            |cell| rooms[usize::from(cell.node)] > 0,
            |cell, part| {
                let place = usize::from(cell.node);
                let part = part.min(rooms[place]);
                cell.tokens.reserved += part;
                capacities[place] -= part;
                given += part;
            },
        );
        spare -= given;
        if spare == 0 || given == 0 {
            break;
        }
    }
}
