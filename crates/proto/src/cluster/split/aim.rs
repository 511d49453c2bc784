//! Division of each promise into shares of the data nodes.
//!
//! Reservations go where they are used. At each node a tenant keeps the part of its share that it
//! used, or all of the share where it wanted more. The rest goes to nodes where it wanted more: the
//! wanted amount where its clients know it, so that two nodes get theirs at once; else as much as
//! is left. pShift ([`tidegate_algo::allocation::pshift`]) does both at once for all tenants. It
//! gives no node more than its capacity, and moves the excess to other nodes. No share exceeds the
//! most that the clients at a node can be promised.
//!
//! Operations beyond a share do not count: the tenant used tokens that other tenants left, and may
//! lose them. Counted, they would draw the promise to where it is needed least.
//!
//! The part of a promise without demand stands by, half of it evenly at all nodes and half where
//! the tenant is active, as far as nodes have capacity left. So a tenant that begins at a node has
//! a share there at once. Before the first report all of the promise stands by: in equal parts.
//!
//! Limits are divided likewise, by all operations and not only the reserved ones. Where a tenant
//! has clients it always keeps a small part ([`KEPT_PART`]) of its limit: a tenant without tokens
//! cannot show its demand.

use alloc::vec::Vec;

use tidegate_model::TenantIndex;

use super::super::allocate::{ALLOWED, Cell, RESERVED, Solution, allow, solve, spread};
use super::super::bounds::{GrantCounts, TenantBounds};
use super::{DataNodeState, STANDING};
use crate::data_node::TenantReport;

/// One part in so many of a limit stays at each node where its tenant has clients.
const KEPT_PART: u64 = 64;

/// Half of what the solver can count.
const MOST: u64 = (u32::MAX / 2) as u64;

/// The solutions from which the next ones go on.
#[derive(Debug, Default)]
pub(super) struct Aim {
    reserved: Solution,
    allowed: Solution,
}

impl Aim {
    /// Sets the target of every share.
    pub(super) fn divide(&mut self, tenants: &mut [TenantBounds], nodes: &[DataNodeState]) {
        let can =
            |node: &DataNodeState| if node.is_open() { node.capacity().0.min(MOST) } else { 0 };
        let mut capacities: Vec<u64> = nodes.iter().map(can).collect();
        let budgets: Vec<GrantCounts> =
            tenants.iter().map(|tenant| budget(tenant, nodes)).collect();
        let mut rows: Vec<Vec<Cell>> = (0..)
            .map(TenantIndex)
            .zip(&*tenants)
            .map(|(number, tenant)| row(number, tenant, nodes))
            .collect();

        let wants: Vec<u64> = budgets.iter().map(|budget| budget.reserved).collect();
        let who: Vec<usize> = (0..tenants.len()).collect();
        let solver = self.reserved.go_on(&who, tenants, &capacities);
        let (found, _) = solve(solver, (&who, &wants, RESERVED), &rows, &capacities);
        for (cell, found) in rows.iter_mut().flatten().zip(found) {
            capacities[cell.node.index()] -= found.min(capacities[cell.node.index()]);
            cell.tokens.reserved = found;
        }
        for ((number, row), want) in (0..).map(TenantIndex).zip(&mut rows).zip(&wants) {
            let spare = want - row.iter().map(|cell| cell.tokens.reserved).sum::<u64>();
            let most = |node: &DataNodeState| match tenant_report(number, node) {
                TenantReport { clients: 0, .. } => node.client.0,
                TenantReport { most, .. } => most,
            };
            let most: Vec<u64> = nodes.iter().map(most).collect();
            give_standby(spare, row, &mut capacities, &most);
        }
        for ((number, tenant), row) in (0..).map(TenantIndex).zip(&*tenants).zip(&mut rows) {
            for (cell, node) in row.iter_mut().zip(nodes) {
                let tenant_report = tenant_report(number, node);
                let kept =
                    if tenant_report.clients > 0 { tenant.promise.allowed / KEPT_PART } else { 0 };
                cell.given = cell.tokens.reserved;
                cell.expected = tenant_report.done.max(kept).min(MOST);
                let wanted = if tenant_report.wants_more { wanted(&tenant_report) } else { 0 };
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
        tenants: &[TenantBounds],
        budgets: &[GrantCounts],
        rows: &mut [Vec<Cell>],
        nodes: &[DataNodeState],
    ) {
        let rest = |((tenant, budget), row): ((&TenantBounds, &GrantCounts), &Vec<Cell>)| {
            let reserved: u64 = row.iter().map(|cell| cell.tokens.reserved).sum();
            if tenant.is_limited { budget.allowed.saturating_sub(reserved) } else { 0 }
        };
        let wants: Vec<u64> = tenants.iter().zip(budgets).zip(&*rows).map(rest).collect();
        // A limit promises no capacity: requests of other tenants may still go first.
        let boundless: Vec<u64> = nodes.iter().map(|_| MOST).collect();
        let who: Vec<usize> = (0..tenants.len()).collect();
        let solver = self.allowed.go_on(&who, tenants, &boundless);
        let (found, _) = solve(solver, (&who, &wants, ALLOWED), rows, &boundless);
        allow(rows, &wants, found.into_iter());
        let unlimited = rows.iter_mut().zip(tenants).filter(|(_, tenant)| !tenant.is_limited);
        unlimited.flat_map(|(row, _)| row).for_each(|cell| cell.tokens.allowed = 0);
    }
}

/// The counts that may be divided: the promise, without the bounds of nodes that are not open.
fn budget(tenant: &TenantBounds, nodes: &[DataNodeState]) -> GrantCounts {
    let closed = tenant.entries.iter().zip(nodes).filter(|(_, node)| !node.is_open());
    let in_force = closed.map(|(entry, _)| entry.account(STANDING).in_force());
    let held = in_force.fold(GrantCounts::ZERO, GrantCounts::plus);
    let mut left = tenant.promise.minus(held);
    if tenant.is_limited {
        left.reserved = left.reserved.min(left.allowed);
    }
    left
}

/// The last report of a node on a tenant; zeros without one on this connection.
fn tenant_report(number: TenantIndex, node: &DataNodeState) -> TenantReport {
    let tenants = node.report.iter().filter(|_| node.is_known).flat_map(|it| &it.tenants);
    let mut tenant_report = tenants.filter(|tenant_report| tenant_report.tenant == number);
    tenant_report.next().copied().unwrap_or_default()
}

/// The demand of a tenant at a node, per second; [`MOST`] if it wanted more and its clients do not
/// know how much.
fn wanted(tenant_report: &TenantReport) -> u64 {
    match (tenant_report.wants_more, tenant_report.unmet) {
        (false, _) => tenant_report.done,
        (true, None) => MOST,
        (true, Some(unmet)) => tenant_report.done.saturating_add(unmet).min(MOST),
    }
}

/// The demand of a tenant for its reservation, by node.
fn row(number: TenantIndex, tenant: &TenantBounds, nodes: &[DataNodeState]) -> Vec<Cell> {
    let cell = |(entry, node): (&super::NodeAccounts, &DataNodeState)| {
        let tenant_report = tenant_report(number, node);
        let share = entry.account(STANDING).sent.reserved;
        let most = tenant_report.most.min(MOST);
        let used = share.min(wanted(&tenant_report));
        let expected = used.min(most);
        Cell {
            node: entry.node,
            is_open: node.is_open(),
            is_home: true,
            expected,
            demand: if tenant_report.wants_more {
                wanted(&tenant_report).min(most)
            } else {
                expected
            },
            ..Cell::default()
        }
    };
    tenant.entries.iter().zip(nodes).map(cell).collect()
}

/// Gives out the reservation without demand, as far as nodes have capacity left and no more than
/// the most that the tenant can be promised at each.
fn give_standby(mut spare: u64, row: &mut [Cell], capacities: &mut [u64], most: &[u64]) {
    // Each pass gives out all, or fills at least one more node.
    for _ in 0..=row.len() {
        let headroom = |cell: &Cell| {
            let index = cell.node.index();
            let alone = most[index].saturating_sub(cell.tokens.reserved);
            if cell.is_open { capacities[index].min(alone) } else { 0 }
        };
        let headrooms: Vec<u64> = row.iter().map(headroom).collect();
        let mut given = 0;
        spread(
            spare,
            row,
            |cell| headrooms[cell.node.index()] > 0,
            |cell, part| {
                let index = cell.node.index();
                let part = part.min(headrooms[index]);
                cell.tokens.reserved += part;
                capacities[index] -= part;
                given += part;
            },
        );
        spare -= given;
        if spare == 0 || given == 0 {
            break;
        }
    }
}
