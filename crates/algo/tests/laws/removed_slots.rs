//! Requests whose tenant's slot is removed: they go on without a tenant.

use tidegate_algo::scheduling::scheduler::{
    Pacing, RequestCost, Scheduler, Slot, TenantParameters, WINDOW,
};
use tidegate_model::{Discipline, Time};

/// Requests of a slot that is removed come behind later ones, so the numbers in which a FIFO serves
/// go back.
#[test]
fn a_fifo_serves_older_requests_behind_later_ones() {
    let mut scheduler = Scheduler::new(Discipline::Fifo, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.push(Time::ZERO, slot, RequestCost::ONE, 0);
    (1..4).for_each(|job| scheduler.push(Time::ZERO, Slot::UNATTRIBUTED, RequestCost::ONE, job));
    scheduler.remove(Time::ZERO, slot);
    let pop = |scheduler: &mut Scheduler<u32>| scheduler.pop(Time::ZERO).map(|next| next.job);
    let mut order: Vec<_> = (0..3).map(|_| pop(&mut scheduler)).collect();
    (0..2 * WINDOW).for_each(|_| scheduler.begin(Time::ZERO, Time(1_000)));
    order.push(pop(&mut scheduler));
    scheduler.push(Time::ZERO, Slot::UNATTRIBUTED, RequestCost::ONE, 4);
    order.push(pop(&mut scheduler));
    assert_eq!(order, [1, 2, 3, 0, 4].map(Some));
}
