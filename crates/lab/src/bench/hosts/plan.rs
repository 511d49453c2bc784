//! The plan of the hosts benchmark: its tenants, their policies, and the changes of demand.

use tidegate_model::{Rate, Span, Time};

/// The budget of all tenants together: what the tenants' programs read from the page cache costs
/// two processors little, and two per cent of a tenant's part are many requests.
pub(super) const CAPACITY: Rate = Rate(32 << 20);

/// The bound that a policy sets for a tenant, in per cent of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Reservation(u64),
    Limit(u64),
    None,
}

/// A tenant, with programs on all hosts.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostsTenant {
    pub(super) name: &'static str,
    pub(super) bound: Bound,
}

/// The tenant whose demand moves from host to host.
const MOVING: usize = 0;

/// Nearly all is reserved: what is left over would hide a reservation that is not kept.
pub(super) const TENANTS: [HostsTenant; 5] = [
    HostsTenant { name: "gold", bound: Bound::Reservation(45) },
    HostsTenant { name: "silver", bound: Bound::Reservation(30) },
    HostsTenant { name: "bronze", bound: Bound::Reservation(20) },
    HostsTenant { name: "scratch", bound: Bound::None },
    HostsTenant { name: "batch", bound: Bound::Limit(5) },
];

/// The host whose link is cut.
pub(super) const CUT_HOST: usize = 0;

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostsSize {
    /// Programs under `tidegate run`, each a stage.
    pub(crate) stages: usize,
    pub(crate) hosts: usize,
    /// How long demand changes, without the start of programs.
    pub(crate) seconds: u64,
}

impl HostsSize {
    pub(crate) const FULL: Self = Self { stages: 50, hosts: 8, seconds: 60 };
    /// Enough to see that everything works.
    pub(crate) const QUICK: Self = Self { stages: 10, hosts: 2, seconds: 14 };

    /// The tenant of a stage, by its index in [`TENANTS`].
    pub(super) const fn tenant(self, stage: usize) -> usize {
        stage % TENANTS.len()
    }

    /// The host of a stage. The stages of each tenant are spread over all hosts.
    pub(super) const fn host(self, stage: usize) -> usize {
        (stage / TENANTS.len() + stage % TENANTS.len()) % self.hosts
    }

    /// The name of a host, and of its certificate: a name must not end with a number.
    pub(super) fn host_name(host: usize) -> String {
        let digit_name = |digit: usize| char::from(b'a' + (digit % 26) as u8);
        format!("host-{}{}", digit_name(host / 26), digit_name(host))
    }

    fn host_names(self) -> Vec<String> {
        (0..self.hosts).map(Self::host_name).collect()
    }

    /// All names of certificates, for `tidegate certify --user`.
    pub(super) fn users(self) -> String {
        self.host_names().join(",")
    }

    fn static_rate(self) -> Rate {
        Rate(CAPACITY.0 / self.stages as u64)
    }
}

/// The two ways in which the capacity is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostsDivision {
    /// One budget, which follows demand.
    Tidegate,
    /// A limit for each program: an equal part of the capacity.
    Static,
}

/// The time over which promises are counted.
pub(super) const PERIOD: Span = Span::SECOND;
/// The time between two distributions: all that converges is measured in it.
pub(super) const INTERVAL: Span = Span(100 * Span::MILLISECOND.0);

impl HostsDivision {
    /// The tenant that a stage acts for.
    pub(super) fn tenant(self, size: HostsSize, stage: usize) -> String {
        match self {
            Self::Tidegate => TENANTS[size.tenant(stage)].name.into(),
            Self::Static => format!("stage-{stage}"),
        }
    }

    pub(super) fn policy(self, size: HostsSize) -> String {
        let head = format!("period = \"{PERIOD}\"\nredistribute = \"{INTERVAL}\"\n");
        let users: Vec<String> =
            size.host_names().iter().map(|host| format!("cert:{host}")).collect();
        let tenant = |name: &str, bound: &str| {
            format!("[[tenant]]\nname = \"{name}\"\nusers = {users:?}\n{bound}")
        };
        match self {
            Self::Tidegate => {
                let tenants = TENANTS.iter().map(|one| tenant(one.name, &one.bound.text()));
                format!("budget = \"{CAPACITY}\"\n{head}{}", tenants.collect::<String>())
            }
            Self::Static => {
                let bound = format!("limit = \"{}\"\n", size.static_rate());
                let tenants =
                    (0..size.stages).map(|stage| tenant(&self.tenant(size, stage), &bound));
                format!("{head}{}", tenants.collect::<String>())
            }
        }
    }
}

impl Bound {
    fn text(self) -> String {
        match self {
            Self::Reservation(percent) => format!("reservation = \"{}\"\n", share(percent)),
            Self::Limit(percent) => format!("limit = \"{}\"\n", share(percent)),
            Self::None => String::new(),
        }
    }
}

/// A part of the capacity, in per cent of it.
pub(super) const fn share(percent: u64) -> Rate {
    Rate(CAPACITY.0 * percent / 100)
}

/// The change at the beginning of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepChange {
    /// Programs stop or go on.
    Demand,
    /// The link of [`CUT_HOST`] is cut.
    Cut,
    /// It is still cut.
    StillCut,
    /// It carries data again.
    Return,
}

/// A time in which demand stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) begin: Time,
    pub(super) end: Time,
    pub(super) change: StepChange,
    /// The stages whose programs request all that they can get.
    pub(super) requests: Vec<bool>,
}

/// Whether the programs of a tenant on a host send requests: in the first half of the hosts or not.
type DemandPattern = fn(tenant: usize, is_first_half: bool) -> bool;

const ALL: &str = "all request";

/// The changes of demand, again and again. After each, the tenants that go on want all there is.
const CHANGES: [(&str, DemandPattern); 5] = [
    ("gold stops", |tenant, _| tenant != MOVING),
    ("gold goes on at half of the hosts", |tenant, is_first| tenant != MOVING || is_first),
    ("gold moves to the other hosts", |tenant, is_first| tenant != MOVING || !is_first),
    ("tenants without reservation stop", |tenant, _| {
        matches!(TENANTS[tenant].bound, Bound::Reservation(_))
    }),
    ("they go on", |_, _| true),
];

/// The length of a step: a promise needs two periods in it, behind the time to converge.
const STEP: Span = Span(3 * Span::SECOND.0);
/// The same of a short run: one period.
const STEP_SHORT: Span = Span(1_500 * Span::MILLISECOND.0);

/// The steps at which the link is cut, and at which it returns. It is cut for longer than the lease
/// of a host, two periods.
const CUT: [(&str, StepChange); 3] = [
    ("a host is cut off", StepChange::Cut),
    (ALL, StepChange::StillCut),
    ("it returns", StepChange::Return),
];

/// The steps of a run, in order and without a gap.
pub(super) fn steps(size: HostsSize) -> Vec<Step> {
    let least = 1 + CHANGES.len() + CUT.len();
    let length = Span::SECOND.0 * size.seconds;
    let step = if length < least as u64 * STEP.0 { STEP_SHORT } else { STEP };
    let count = (length / step.0) as usize;
    let rounds = (count.saturating_sub(1 + CUT.len()) / CHANGES.len()).max(1);
    let requests = |demand: DemandPattern| -> Vec<bool> {
        let is_first = |stage| size.host(stage) < size.hosts / 2;
        (0..size.stages).map(|stage| demand(size.tenant(stage), is_first(stage))).collect()
    };
    let mut events = vec![(ALL, StepChange::Demand, requests(|_, _| true))];
    for round in 0..rounds {
        // After a round all programs send requests.
        events.extend(CHANGES.map(|(name, demand)| (name, StepChange::Demand, requests(demand))));
        if round == rounds / 2 {
            events.extend(CUT.map(|(name, change)| (name, change, requests(|_, _| true))));
        }
    }
    let at = |index: usize| Time(index as u64 * step.0);
    let events = events.into_iter().enumerate();
    let step = |(index, (name, change, requests))| {
        let (begin, end) = (at(index), at(index + 1));
        Step { name, begin, end, change, requests }
    };
    events.map(step).collect()
}

/// The names of changes of demand of which the time to converge is promised.
pub(super) fn changes() -> impl Iterator<Item = &'static str> {
    CHANGES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Policy;
    use tidegate_model::gate::Unit;

    #[test]
    fn policies_are_valid_and_promise_what_they_are_to() {
        for size in [HostsSize::FULL, HostsSize::QUICK] {
            let policy = Policy::parse(&HostsDivision::Tidegate.policy(size)).unwrap();
            assert_eq!(policy.budget.get(Unit::Bytes), Some(CAPACITY.0));
            let reserved = policy.tenants.iter().filter_map(|it| it.reservation.get(Unit::Bytes));
            assert_eq!(reserved.sum::<u64>(), share(45).0 + share(30).0 + share(20).0);
            let policy = Policy::parse(&HostsDivision::Static.policy(size)).unwrap();
            let limits = policy.tenants.iter().filter_map(|it| it.limit.get(Unit::Bytes));
            let sum: u64 = limits.sum();
            assert!(sum <= CAPACITY.0 && CAPACITY.0 - sum < size.stages as u64, "{sum}");
        }
    }

    #[test]
    fn every_tenant_is_on_every_host() {
        let size = HostsSize::FULL;
        for tenant in 0..TENANTS.len() {
            let own = (0..size.stages).filter(|stage| size.tenant(*stage) == tenant);
            let mut hosts: Vec<usize> = own.map(|stage| size.host(stage)).collect();
            hosts.sort_unstable();
            hosts.dedup();
            assert_eq!(hosts.len(), size.hosts, "tenant {tenant}");
        }
        assert_eq!(HostsSize::host_name(0), "host-aa");
        assert_eq!(HostsSize::host_name(27), "host-bb");
    }

    #[test]
    fn steps_follow_each_other_and_always_want_all_there_is() {
        for (size, rounds) in [(HostsSize::FULL, 3), (HostsSize::QUICK, 1)] {
            let steps = steps(size);
            assert_eq!(steps.len(), 1 + 3 + 5 * rounds);
            assert!(steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
            assert!(steps[steps.len() - 1].end.0 <= size.seconds * Span::SECOND.0);
            for step in &steps {
                // A tenant without a limit sends requests, so nothing is to stay unused.
                let is_greedy = |(stage, requests): (usize, &bool)| {
                    *requests && !matches!(TENANTS[size.tenant(stage)].bound, Bound::Limit(_))
                };
                assert!(step.requests.iter().enumerate().any(is_greedy), "{}", step.name);
            }
            let cut = steps.iter().position(|step| step.change == StepChange::Cut).unwrap();
            let returns = steps.iter().find(|step| step.change == StepChange::Return).unwrap();
            let lease = 2 * PERIOD.0;
            assert!(returns.begin.since(steps[cut].begin).0 > lease + lease / 4);
            assert!(steps[cut - 1].requests.iter().all(|requests| *requests));
        }
    }
}
