//! One tenant at a storage node: its plan, the counts in force, and the demand that it reports.
//!
//! # Units
//! Without named resources a tenant has counts of *units of cost*: one for each 128 KiB of a
//! request. Where the policy names the nodes as a resource it has counts of *operations*, one for
//! each request, and of *bytes* ([`BytePlan`](crate::cluster::message::BytePlan)).
//!
//! Demand is estimated in units of cost, because these say how many pieces wait for the device. The
//! other amounts follow from the mix of the requests that came recently: with twelve units, three
//! operations and 1.5 MiB, four expected units are one operation and 512 KiB. Waiting requests
//! count with their own operations and bytes.

use alloc::vec::Vec;

use tidegate_algo::capacity::estimate::{Demand, DemandSample};
use tidegate_algo::scheduling::scheduler::{
    Amounts, ByteCounters, PeriodGrant, Scheduler, Slot, SlotCounters,
};
use tidegate_model::cost::{BYTES_PER_TOKEN, Implied, OPERATION_BYTES_MAX, implied};
use tidegate_model::gate::Unit;
use tidegate_model::policy::Fallback;
use tidegate_model::{Span, TenantIndex, Time, Waits};

use super::shards::SlotGrant;
use crate::cluster::message::{NodeReport, Share, TenantPlan, TenantReport, UNITS};
use crate::data::pieces::PIECE;

// An operation implies the bytes that one costs where no resource is named.
const _: () = assert!(OPERATION_BYTES_MAX == PIECE as u64);

/// The counters of a tenant's slot, with those of bytes if they are counted.
pub(super) type Counters = (SlotCounters, Option<ByteCounters>);

/// The counts in force for a tenant, in each unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantGrant([PeriodGrant; 2]);

impl TenantGrant {
    const NOTHING: Self = Self([PeriodGrant::NOTHING; 2]);
    const UNLIMITED: Self = Self([PeriodGrant::UNLIMITED; 2]);

    pub(super) fn of(&self, unit: Unit) -> PeriodGrant {
        self.0[usize::from(unit == Unit::Bytes)]
    }

    pub(super) fn of_mut(&mut self, unit: Unit) -> &mut PeriodGrant {
        &mut self.0[usize::from(unit == Unit::Bytes)]
    }
}

/// One tenant of the plan.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) plan: TenantPlan,
    pub(super) slot: Slot,
    /// The counts with which a period begins without a grant; none if no grant has set them.
    pub(super) first: Option<TenantGrant>,
    /// The counts of the next period, if a grant for it has come.
    pub(super) coming: TenantGrant,
    pub(super) demand: Demand,
    /// The counts in force.
    pub(super) holds: TenantGrant,
    /// Those in force when the plan before was given up, if some had come since that plan; else
    /// those of an earlier plan.
    pub(super) granted: TenantGrant,
    /// The counters when the demand was estimated last.
    seen: SlotCounters,
    mix: Mix,
    /// The last report, in each unit.
    pub(super) last_report: [Option<TenantReport>; 2],
    /// The counts that were last reported on this connection.
    pub(super) counted: Waits,
}

/// Requests that came recently: units of cost, and what they were. Older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Mix {
    units: u64,
    amounts: Amounts,
    /// All that had come when this was last brought up to date.
    seen: Amounts,
}

impl Mix {
    /// So many units came, and so much has come in all.
    fn observe(&mut self, units: u64, all: Amounts) {
        if units > 0 {
            let half = |before: u64, all: u64, seen: u64| before / 2 + all.saturating_sub(seen);
            self.units = self.units / 2 + units;
            let Amounts { operations, bytes } = self.amounts;
            self.amounts = Amounts {
                operations: half(operations, all.operations, self.seen.operations),
                bytes: half(bytes, all.bytes, self.seen.bytes),
            };
        }
        self.seen = all;
    }

    /// The operations and bytes that so many units are expected to be.
    fn of(&self, units: u64) -> Amounts {
        let part = |amount: u64| {
            let part = u128::from(units) * u128::from(amount) / u128::from(self.units.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let Amounts { operations, bytes } = self.amounts;
        Amounts { operations: part(operations), bytes: part(bytes) }
    }
}

/// The tokens that a slot used in this period.
pub(super) fn served<J>(scheduler: &Scheduler<J>, (unit, slot): (Unit, Slot)) -> u64 {
    match unit {
        Unit::Operations => scheduler.served(slot),
        Unit::Bytes => scheduler.byte_counters(slot).map_or(0, |counters| counters.served),
    }
}

impl Tenant {
    pub(super) fn new(plan: TenantPlan, slot: Slot) -> Self {
        Self {
            plan,
            slot,
            first: None,
            coming: TenantGrant::NOTHING,
            holds: TenantGrant::UNLIMITED,
            granted: TenantGrant::UNLIMITED,
            demand: Demand::default(),
            seen: SlotCounters::default(),
            mix: Mix::default(),
            last_report: [None; 2],
            counted: Waits::ZERO,
        }
    }

    /// The tenant by another plan: grants of the plan before are void.
    pub(super) fn replanned(self, plan: TenantPlan) -> Self {
        Self { plan, first: None, last_report: [None; 2], counted: Waits::ZERO, ..self }
    }

    /// The tenant in a period in which no grant has named it.
    pub(super) fn unnamed_now(self) -> Self {
        Self { holds: self.unnamed(), ..self }
    }

    fn is_limited(&self, unit: Unit) -> bool {
        match unit {
            Unit::Operations => self.plan.is_limited,
            Unit::Bytes => self.plan.bytes.is_some_and(|bytes| bytes.is_limited),
        }
    }

    /// Whether it has a reservation, but not in this unit.
    fn is_reserved_elsewhere(&self, unit: Unit) -> bool {
        self.plan.bytes.is_some_and(|bytes| match unit {
            Unit::Operations => bytes.is_reserved && !bytes.reserves_operations,
            Unit::Bytes => bytes.reserves_operations && !bytes.is_reserved,
        })
    }

    /// The counts in force in a period in which no grant has named it.
    pub(super) fn unnamed(&self) -> TenantGrant {
        TenantGrant(UNITS.map(|unit| match self.is_limited(unit) {
            true => PeriodGrant::NOTHING,
            false => PeriodGrant::UNLIMITED,
        }))
    }

    /// The counts with which it begins the next period.
    pub(super) fn upcoming(
        &self,
        coming: Option<u32>,
        lease: u32,
        fallback: Fallback,
    ) -> TenantGrant {
        match (coming, lease) {
            (Some(_), _) => self.coming,
            (None, 0) => TenantGrant(UNITS.map(|unit| self.abandoned(unit, fallback))),
            (None, _) => self.first.unwrap_or(self.unnamed()),
        }
    }

    /// The counts in force when the lease is over.
    fn abandoned(&self, unit: Unit, fallback: Fallback) -> PeriodGrant {
        let allowed = match (self.first.map(|first| first.of(unit)), fallback) {
            // A unit without a reservation beside one in the other keeps its limit.
            (Some(first), Fallback::Reservation) if self.is_reserved_elsewhere(unit) => {
                first.allowed
            }
            (Some(first), Fallback::Keep) => first.allowed,
            (Some(first), Fallback::Reservation) if self.is_limited(unit) => first.reserved,
            _ => u64::MAX,
        };
        PeriodGrant { reserved: 0, allowed }
    }

    /// The counts that a share gives it.
    pub(super) fn counts(&self, unit: Unit, share: &Share) -> PeriodGrant {
        let Share { reserved, allowed, .. } = *share;
        let allowed = if self.is_limited(unit) { allowed.max(reserved) } else { u64::MAX };
        PeriodGrant { reserved, allowed }
    }

    /// The counts in force that are reserved by its own or its group's promise, in each unit: in
    /// operations, and in bytes. Without a named resource there is nothing to compare them with.
    pub(super) fn explicit(&self) -> [u64; 2] {
        UNITS.map(|unit| match self.plan.bytes {
            Some(_) if !self.is_reserved_elsewhere(unit) => {
                amount(unit, self.holds.of(unit).reserved)
            }
            _ => 0,
        })
    }

    /// The counts in force, as its scheduler takes them. A reservation in one unit alone bounds the
    /// other unit, too: else flushes, which move no bytes, or operations of 32 MiB would go before
    /// every other tenant without an end. `among` is what such reservations imply in each unit.
    pub(super) fn slot_grant(&self, among: &[Implied; 2]) -> SlotGrant {
        self.of_scheduler(&self.holds, among)
    }

    /// The same of counts that were in force.
    pub(super) fn of_scheduler(&self, counts: &TenantGrant, among: &[Implied; 2]) -> SlotGrant {
        let [mut units, mut bytes] = UNITS.map(|unit| counts.of(unit));
        if self.is_reserved_elsewhere(Unit::Operations) {
            let reserved = amount(Unit::Bytes, bytes.reserved);
            units.reserved = implied(Unit::Bytes, reserved, among[0]);
        }
        if self.is_reserved_elsewhere(Unit::Bytes) {
            let reserved = implied(Unit::Operations, units.reserved, among[1]);
            bytes.reserved = reserved / BYTES_PER_TOKEN;
        }
        SlotGrant { units, bytes: self.plan.bytes.map(|_| bytes) }
    }

    /// Estimates its demand from what happened in the last `interval`.
    pub(super) fn observe(&mut self, now: Time, interval: Span, (counters, bytes): Counters) {
        let since = Time(now.0.saturating_sub(interval.0));
        let seen = core::mem::replace(&mut self.seen, counters);
        let arrived = counters.arrived - seen.arrived;
        self.mix.observe(arrived, bytes.unwrap_or_default().arrived);
        self.demand.observe(DemandSample {
            interval,
            backlogged: counters.backlogged.saturating_sub(seen.backlogged),
            arrived,
            came: difference(counters.came, seen.came.wrapping_add(since.0.wrapping_mul(arrived))),
            present: counters.present(),
            stayed: difference(counters.stayed(now), seen.stayed(since)),
        });
    }

    /// Adds its numbers to a report, those that differ from the last ones or, in a complete report,
    /// are not all zero. `left` is the rest of the period.
    pub(super) fn report(
        &mut self,
        (tenant, left, is_complete): (TenantIndex, Span, bool),
        (counters, bytes): &Counters,
        report: &mut NodeReport,
    ) {
        let SlotCounters { served, served_before, waiting, .. } = *counters;
        let expected = self.demand.expected(left, waiting);
        let is_elastic = waiting > 0 && self.demand.is_elastic();
        let mut numbers = TenantReport { tenant, served, expected, waiting, is_elastic };
        if let Some(counters) = bytes {
            let more = self.mix.of(expected.saturating_sub(waiting));
            let Amounts { operations, bytes } = counters.waiting;
            let tokens = |bytes: u64| bytes.div_ceil(BYTES_PER_TOKEN);
            numbers.waiting = operations;
            numbers.expected = operations.saturating_add(more.operations);
            let numbers = TenantReport {
                served: counters.served,
                expected: tokens(bytes.saturating_add(more.bytes)),
                waiting: tokens(bytes),
                ..numbers
            };
            let before = (is_complete, counters.served_before);
            add(
                &mut self.last_report[1],
                numbers,
                before,
                (&mut report.bytes, &mut report.bytes_before),
            );
        }
        let before = (is_complete, served_before);
        add(&mut self.last_report[0], numbers, before, (&mut report.tenants, &mut report.before));
    }
}

/// Adds the numbers of a tenant in one unit to the lists of a report.
fn add(
    last: &mut Option<TenantReport>,
    numbers: TenantReport,
    (is_complete, served_before): (bool, u64),
    (tenants, before): (&mut Vec<TenantReport>, &mut Vec<(TenantIndex, u64)>),
) {
    let is_new = last.replace(numbers) != Some(numbers);
    if if is_complete { numbers.served > 0 || numbers.expected > 0 } else { is_new } {
        tenants.push(numbers);
    }
    if is_complete && served_before > 0 {
        before.push((numbers.tenant, served_before));
    }
}

/// Tokens of a unit as amounts: operations, or bytes.
const fn amount(unit: Unit, tokens: u64) -> u64 {
    match unit {
        Unit::Operations => tokens,
        Unit::Bytes => tokens.saturating_mul(BYTES_PER_TOKEN),
    }
}

/// How much greater a sum of times is than another, both modulo 2^64; zero if it is smaller.
fn difference(sum: u64, other: u64) -> u128 {
    i64::try_from(sum.wrapping_sub(other)).map_or(0, |more| more.unsigned_abs().into())
}
