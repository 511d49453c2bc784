//! The cost of a large cluster of which little is active: 10,000 tenants on 64 nodes, of which one
//! in a hundred sends requests to its one node. In a second run these ask for more than their nodes
//! can do, so that reservations and limits are short of capacity in every distribution. The
//! controller and the nodes are the machines that ship, in one thread and on a virtual clock;
//! messages are encoded and decoded. The bench counts processor time, so other load of the machine
//! does not matter; sockets are left out.

use tidegate_model::Span;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use world::{ScaleDemand, Size, Usage, World};

mod world;

const BENCH: &str = "scale";

/// The bounds, in per cent of a processor and in milliseconds.
const CONTROLLER_PERCENT: f64 = 5.0;
const IDLE_NODE_PERCENT: f64 = 1.0;
const STATUS_MS: f64 = 100.0;

const FULL: Size = Size { tenants: 10_000, nodes: 64, one_in: 100 };
const QUICK: Size = Size { tenants: 400, nodes: 8, one_in: 100 };

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    for demand in [ScaleDemand::Met, ScaleDemand::Short] {
        rows_of(demand, plan, interrupt, report)?;
    }
    Ok(())
}

fn rows_of(
    demand: ScaleDemand,
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (size, seconds) = if plan.is_full() { (FULL, 10) } else { (QUICK, 1) };
    let mut world = World::new(size, demand);
    // The first two periods begin the counts.
    world.run(Span(2 * Span::SECOND.0));
    let mut usages = Vec::new();
    for _ in 0..seconds {
        interrupt.check()?;
        usages.push(world.run(Span::SECOND));
    }
    let Size { tenants, nodes, one_in } = size;
    let short = if demand == ScaleDemand::Short { ", their nodes short of capacity" } else { "" };
    let case = format!("{tenants} tenants on {nodes} nodes, one in {one_in} active{short}");
    let percent = |of: fn(&Usage) -> f64| Median::of(usages.iter().map(|usage| of(usage) / 10.0));
    let row = |what: &str, of| {
        Row::less(BENCH, format!("{case}: {what}"), "%", None).of_median(percent(of))
    };
    let promised = |row: Row, bound| if plan.is_full() { row.promised(bound) } else { row };
    let (status, length, _) = world.status();
    let kept =
        status.cluster.as_ref().map_or(0, |it| it.tenants.iter().filter(|it| it.is_met).count());
    let kept = format!(
        "{kept} of {tenants} tenants have their reservation; {} requests served",
        world.served
    );
    let controller = row("the controller", |usage| usage.controller).noted(kept.clone());
    report(promised(controller, CONTROLLER_PERCENT));
    report(promised(row("an idle node", |usage| usage.idle_node), IDLE_NODE_PERCENT));
    report(row("the busiest node", |usage| usage.busy_node));
    if demand == ScaleDemand::Met {
        let times = (0..9).map(|_| world.status().2 as f64 / 1e6);
        let row = Row::less(BENCH, format!("{case}: status"), "ms", None);
        let row = row.of_median(Median::of(times)).noted(format!("{length} B as JSON; {kept}"));
        report(promised(row, STATUS_MS));
    }
    Ok(())
}
