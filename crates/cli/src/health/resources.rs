//! The promises of named resources, as `status` and `top` show them.

use tidegate_model::gate::Unit;
use tidegate_proto::controller::status::{
    HeldStatus, PromiseStatus, ResourceStatus, Status, is_less,
};

use super::{Met, UNITS};
use tidegate_console::amounts;

/// A promise of a resource, to a tenant or to a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise<'a> {
    pub(crate) resource: &'a ResourceStatus,
    pub(crate) status: &'a PromiseStatus,
    is_group: bool,
}

/// The promises of all named resources: of each its tenants, and then its groups.
pub(crate) fn promises(status: &Status) -> impl Iterator<Item = Promise<'_>> {
    status.resources.iter().flat_map(|resource| {
        let of = |is_group| move |status| Promise { resource, status, is_group };
        let groups = resource.groups.iter().map(of(true));
        resource.tenants.iter().map(of(false)).chain(groups)
    })
}

/// The levels of a promise in both units.
type Pair = [Option<u64>; 2];

impl Promise<'_> {
    /// The tenant or the group.
    pub(crate) fn name(self) -> String {
        let PromiseStatus { name, group, .. } = self.status;
        match (self.is_group, group) {
            (true, _) => format!("group {name}"),
            (false, Some(group)) => format!("{name} ({group})"),
            (false, None) => name.clone(),
        }
    }

    pub(crate) fn reserved(self) -> String {
        levels(self.reservation())
    }

    pub(crate) fn limit(self) -> String {
        levels([self.status.limit_bytes_per_second, self.status.limit_operations_per_second])
    }

    /// Its service in the last period, in the units that are promised; of an empty promise in those
    /// of the resource's capacity, else in operations, which each kind of gate counts.
    pub(crate) fn measured(self) -> String {
        let (status, resource) = (self.status, self.resource);
        let limits = [status.limit_bytes_per_second, status.limit_operations_per_second];
        let [bytes, operations] = self.reservation();
        let promised = [bytes.or(limits[0]), operations.or(limits[1])];
        let capacity =
            [resource.capacity_bytes_per_second, resource.capacity_operations_per_second];
        let counted = [promised, capacity].into_iter().find(|pair| *pair != [None, None]);
        let counted = counted.unwrap_or([None, Some(0)]);
        let mut had = self.had();
        had.iter_mut().zip(counted).for_each(|(had, it)| *had = had.filter(|_| it.is_some()));
        levels(had)
    }

    /// The gate that held its requests longest, with its part of the time that they were held.
    pub(crate) fn held(self) -> String {
        let held = |held: &HeldStatus| {
            format!("{} {}", held.by.replace('_', " "), amounts::permille(held.permille))
        };
        self.status.held.as_ref().map_or("-".into(), held)
    }

    pub(crate) fn met(self) -> Met {
        let (reservation, had) = (self.reservation(), self.had());
        let pairs = UNITS.into_iter().zip(reservation.into_iter().zip(had));
        let short = pairs.filter(|(_, (promised, had))| is_short(*promised, *had));
        let short: Vec<Unit> = short.map(|(unit, _)| unit).collect();
        let is_promised = reservation.iter().any(|level| level.is_some_and(|it| it > 0));
        let is_idle = had.iter().all(|had| had.unwrap_or(0) == 0);
        match (is_promised, self.status.is_met) {
            (true, false) => Met::No,
            _ if is_idle => Met::Idle,
            (false, _) => Met::Nothing,
            (true, true) if short.is_empty() => Met::Yes,
            // The bucket of the short unit can have held single requests only: if it held the
            // tenant below its reservation, the promise would not be met.
            (true, true) => self
                .held_in()
                .filter(|unit| !short.contains(unit))
                .map_or(Met::BoundElsewhere, Met::BoundIn),
        }
    }

    /// The unit of the bucket at stages that held its requests longest, if one did.
    fn held_in(self) -> Option<Unit> {
        let held = self.status.held.as_ref()?;
        let of = [(Unit::Bytes, "bytes_"), (Unit::Operations, "operations_")];
        of.into_iter().find(|(_, begin)| held.by.starts_with(begin)).map(|(unit, _)| unit)
    }

    fn reservation(self) -> Pair {
        let status = self.status;
        [status.reservation_bytes_per_second, status.reservation_operations_per_second]
    }

    fn had(self) -> Pair {
        [self.status.bytes_per_second, Some(self.status.operations_per_second)]
    }
}

fn is_short(promised: Option<u64>, had: Option<u64>) -> bool {
    promised.zip(had).is_some_and(|(promised, had)| is_less(had, promised))
}

/// Bytes and operations, those that there are.
fn levels(pair: Pair) -> String {
    let shown = UNITS.into_iter().zip(pair);
    let shown: Vec<String> =
        shown.filter_map(|(unit, rate)| Some(amounts::rate(unit, rate?))).collect();
    if shown.is_empty() { "-".into() } else { shown.join(", ") }
}

/// The capacity of a resource in both units.
pub(crate) fn capacity(resource: &ResourceStatus) -> String {
    levels([resource.capacity_bytes_per_second, resource.capacity_operations_per_second])
}

/// Warns of groups that have less than their reservation.
pub(super) fn warn_of_groups(status: &Status, warn: &mut impl FnMut(String, &str)) {
    let groups = promises(status).filter(|promise| promise.is_group);
    for promise in groups.filter(|promise| promise.met() == Met::No) {
        let had = UNITS.into_iter().zip(promise.had()).zip(promise.reservation());
        let had = had.filter_map(|((unit, had), reserved): ((Unit, _), Option<u64>)| {
            reserved.and(Some(amounts::rate(unit, had?)))
        });
        let text = format!(
            "{} gets {} of the {} that it is promised on {}",
            promise.name(),
            had.collect::<Vec<_>>().join(", "),
            promise.reserved(),
            promise.resource.name,
        );
        warn(text, "if it stays so, the resource yields less than its capacity: lower promises");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(reserved: u64, had: u64, is_met: bool) -> PromiseStatus {
        PromiseStatus {
            name: "team".into(),
            reservation_operations_per_second: (reserved > 0).then_some(reserved),
            operations_per_second: had,
            bytes_per_second: Some(had << 20),
            is_met,
            ..PromiseStatus::default()
        }
    }

    /// A promise in both units of which the operations were had, and half of the bytes.
    fn in_both(reserved: u64, by: &str) -> PromiseStatus {
        let held = Some(HeldStatus { by: by.into(), permille: 800, wait_ns: 1 });
        let bytes = Some(reserved << 21);
        PromiseStatus {
            held,
            reservation_bytes_per_second: bytes,
            ..promise(reserved, reserved, true)
        }
    }

    #[test]
    fn a_promise_is_met_as_its_gates_say() {
        let cases = [
            (promise(100, 40, false), Met::No),
            (promise(100, 0, false), Met::No),
            (promise(100, 0, true), Met::Idle),
            (promise(100, 40, true), Met::BoundElsewhere),
            (in_both(100, "turn"), Met::BoundElsewhere),
            (in_both(100, "operations_share"), Met::BoundIn(Unit::Operations)),
            (in_both(100, "bytes_share"), Met::BoundElsewhere),
            (promise(100, 99, true), Met::Yes),
            (promise(0, 40, true), Met::Nothing),
        ];
        let resource = ResourceStatus::default();
        for (status, met) in cases {
            let promise = Promise { resource: &resource, status: &status, is_group: false };
            assert_eq!(promise.met(), met, "{status:?}");
        }
    }

    #[test]
    fn service_has_the_units_of_the_promise_or_else_of_the_capacity() {
        let measured = |reserved: u64, capacity: Pair| {
            let [capacity_bytes_per_second, capacity_operations_per_second] = capacity;
            let resource = ResourceStatus {
                capacity_bytes_per_second,
                capacity_operations_per_second,
                ..ResourceStatus::default()
            };
            let status = promise(reserved, 40, true);
            Promise { resource: &resource, status: &status, is_group: false }.measured()
        };
        assert_eq!(measured(100, [Some(1 << 30), None]), "40 iops");
        assert_eq!(measured(0, [Some(1 << 30), None]), "40 MiB/s");
        assert_eq!(measured(0, [Some(1 << 30), Some(100)]), "40 MiB/s, 40 iops");
        assert_eq!(measured(0, [None, None]), "40 iops");
    }

    #[test]
    fn a_group_below_its_reservation_is_a_warning() {
        let resource = ResourceStatus {
            name: "cluster".into(),
            groups: vec![promise(100, 40, false), promise(100, 40, true)],
            ..ResourceStatus::default()
        };
        let status = Status { resources: vec![resource], ..Status::default() };
        let mut texts = Vec::new();
        warn_of_groups(&status, &mut |text, _| texts.push(text));
        let expected = "group team gets 40 iops of the 100 iops that it is promised on cluster";
        assert_eq!(texts, [expected]);
    }
}
