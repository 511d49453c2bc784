//! Explanation of waits at nodes: the causes of a tenant's delays in the last minute, for `tidegate
//! explain` and `GET /v1/tenants/{name}/delays`.
//!
//! # Problem
//! A client that waits wants to know the cause and the remedy. A number of milliseconds gives
//! neither, and a guess is worse than no answer: an answer has counted facts only.
//!
//! # Mechanism
//! Nodes count for which rule requests waited ([`tidegate_model::waits`]), and are read once a
//! second. For each rule that held at least a tenth of the waiting, a [`Cause`] names the node
//! where it held most, the other tenants there with their amounts, and a remedy:
//!
//! - **limit**: whether the limit was used up over all nodes, or was met by bursts. The tenant's
//!   demand without the limit is unknown, and is not reported.
//! - **reservation**: the tenants whose reservations were served there, and how much can still be
//!   reserved.
//! - **turn**: the tenants that took turns with it, its part of their weights, and the service that
//!   it got; and the effect of twice the weight.
//! - **device**: how often the store was full, and how much of its work was the tenant's own. A
//!   store that was never full held no requests up: that is how long it takes.
//!
//! # Bound
//! An answer reads one tenant's counts at all nodes, and all tenants' counts at no more than four
//! nodes, one for each rule.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cmp::Reverse;
use core::fmt;

use serde::{Deserialize, Serialize};
use tidegate_algo::scheduling::scheduler::WEIGHT_MAX;
use tidegate_model::text::listed;
use tidegate_model::{Discipline, Policy, Span, TenantIndex, Time, WaitRule, Waits, amounts};

use self::stages::{DelaysAtStage, StageCause};
use super::minute::{Doing, Work};
use super::path::{PathDelays, PathTimes};
use super::{ClusterStats, TenantParameters};
use crate::status::cluster::ClusterStatus;
pub use crate::status::stage_waits as stages;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// A rule that held less of the waiting than this, in thousandths, is not worth a word.
pub(crate) const WORTH_PERMILLE: u64 = 100;

/// A wait per request that no client notices, in nanoseconds: a tenth of what a fast device takes.
const NEGLIGIBLE_NS: u64 = 10_000;

/// The remedy for waits of so many requests at one gate: none where they were short.
pub(crate) fn remedy(waited_ns: u64, requests: u64, help: String) -> String {
    match waited_ns.checked_div(requests) {
        Some(mean) if mean < NEGLIGIBLE_NS => {
            format!("nothing has to change: that is {} for each request", amounts::span(mean))
        }
        _ => help,
    }
}

/// A limit of which so much was used, in thousandths, was used up: the rest is what requests are
/// larger than what was left in a period.
const USED_UP_PERMILLE: u64 = 950;

/// A store that is full at one reading in so many is busy; at fewer it is by chance.
const BUSY: u32 = 10;

/// A tenant with at least this part of what a store does, in thousandths, waits for itself.
const OWN_PERMILLE: u64 = 500;

/// Delays of a tenant's requests in the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Delays {
    /// Its name.
    pub tenant: String,
    /// The window: a minute at most, less while the controller has not run so long.
    pub span_ns: u64,
    /// Served requests, and how long they were at nodes, at all of them together.
    pub waits: Waits,
    /// How long it was there on average, the time at the store included; none if nothing went to a
    /// store.
    pub mean_ns: Option<u64>,
    /// Its requests over gateways, as one sum of what clients waited; none if there were none.
    /// Unlike counts of nodes it counts each request once, whatever it costs.
    #[serde(default)]
    pub path: Option<PathDelays>,
    /// The same at each node where it had requests, in the order of the cluster file.
    pub nodes: Vec<DelaysAtNode>,
    /// The rules that caused at least a tenth of the waiting, the largest first.
    pub causes: Vec<Cause>,
    /// Its counts at each data node where one is not zero, in the order of the cluster file.
    #[serde(default)]
    pub data_nodes: Vec<DelaysAtDataNode>,
    /// Its requests at each stage where it had some, by the stage's number: what programs under
    /// `tidegate run` waited before their calls.
    #[serde(default)]
    pub stages: Vec<DelaysAtStage>,
    /// The gates that caused at least a tenth of the waiting at stages, the largest first.
    #[serde(default)]
    pub stage_causes: Vec<StageCause>,
}

/// Counts of a tenant at one data node. Clients do their operations there themselves, so throughput
/// and demand are known, and the waiting time of single requests is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DelaysAtDataNode {
    /// Its name.
    pub node: String,
    /// Its clients there.
    pub clients: u32,
    /// Its share of what is reserved for it.
    pub reserved_operations_per_second: u64,
    /// The most that it may do there; none for no limit.
    pub limit_operations_per_second: Option<u64>,
    /// Operations per second of the time in which it had demand.
    pub operations_per_second: u64,
    /// The window, a minute at most.
    pub span_ns: u64,
    /// For how much of that it had demand.
    pub demand_ns: u64,
    /// For how much of that its demand exceeded its throughput.
    pub starved_ns: u64,
    /// Operations of its share that it requested and missed.
    pub missed_operations: u64,
    /// The reason why it got no more, in one line for people.
    pub why: String,
    /// The remedy, likewise.
    pub help: String,
}

/// Delays of a tenant's requests at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DelaysAtNode {
    /// Its name.
    pub node: String,
    /// Served requests, and how long they were there.
    pub waits: Waits,
    /// How long it was there on average; none if nothing went to the store.
    pub mean_ns: Option<u64>,
    /// Operations served per second of the time in which it had requests there.
    pub operations_per_second: u64,
    /// For how long it had requests there, served or waiting.
    #[serde(default)]
    pub demand_ns: u64,
}

/// A cause of waiting, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cause {
    /// The rule.
    pub rule: WaitRule,
    /// Its part of all waiting, in thousandths.
    pub permille: u64,
    /// The node where it was largest.
    pub node: String,
    /// The evidence, in one line for people.
    pub why: String,
    /// The remedy, likewise.
    pub help: String,
}

/// The policy does not have a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTenant {
    /// The name that was asked for.
    pub name: String,
    /// The tenants that it has.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownTenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.known.is_empty() {
            return f.write_str("no tenant is in the policy in force; apply one that has some");
        }
        // The name comes from elsewhere; it is shortened before it is repeated.
        let name: String = self.name.chars().take(64).collect();
        write!(f, "the policy has no tenant {name:?}; it has {}", listed(&self.known))
    }
}

impl core::error::Error for UnknownTenant {}

impl ClusterStats {
    /// Why requests of a tenant waited in the last minute. `status` is what the cluster says of
    /// itself now.
    ///
    /// # Errors
    /// If the policy does not have the tenant.
    pub(crate) fn delays(
        &self,
        now: Time,
        tenant: &str,
        status: &ClusterStatus,
    ) -> Result<Delays, UnknownTenant> {
        let Some(&index) = self.indexes.get(tenant) else {
            let known = self.parameters.iter().map(|parameters| parameters.name.clone()).collect();
            return Err(UnknownTenant { name: tenant.into(), known });
        };
        let index = TenantIndex::at(index);
        let there: Vec<_> = self.nodes.iter().map(|node| node.minute.doing(now, index)).collect();
        let mut all = Doing::default();
        there.iter().for_each(|doing| all += *doing);
        let spans = self.nodes.iter().map(|node| node.minute.work(now).span.0);
        let path = self.path(now, index, &all.waits);
        let case = Case { stats: self, now, index, there: &there, all, status, path: &path };
        let mut causes: Vec<_> =
            WaitRule::ALL.into_iter().filter_map(|rule| case.cause(rule)).collect();
        causes.sort_by_key(|cause| Reverse(cause.permille));
        Ok(Delays {
            tenant: tenant.into(),
            span_ns: spans.max().unwrap_or(0),
            waits: all.waits,
            mean_ns: mean(&all.waits),
            nodes: case.nodes(),
            path,
            causes,
            // The parts that lead data nodes and stages add theirs.
            data_nodes: Vec::new(),
            stages: Vec::new(),
            stage_causes: Vec::new(),
        })
    }
}

impl ClusterStats {
    fn path(&self, now: Time, index: TenantIndex, waits: &Waits) -> Option<PathDelays> {
        let mut times = PathTimes::default();
        let paths = self.gateways.iter().filter_map(|gateway| gateway.paths.get(index.index()));
        paths.for_each(|path| times += path.sum(now));
        (times.requests > 0).then(|| PathDelays::new(&times, waits))
    }
}

/// A tenant's minute.
#[derive(Debug)]
struct Case<'a> {
    stats: &'a ClusterStats,
    now: Time,
    /// The tenant's.
    index: TenantIndex,
    /// Its counts at each node.
    there: &'a [Doing],
    all: Doing,
    status: &'a ClusterStatus,
    /// Its requests over gateways.
    path: &'a Option<PathDelays>,
}

impl Case<'_> {
    fn nodes(&self) -> Vec<DelaysAtNode> {
        let nodes = self.stats.nodes.iter().zip(self.there);
        let busy = nodes.filter(|(_, doing)| !doing.is_nothing());
        let delays = busy.map(|(node, doing)| DelaysAtNode {
            node: node.name.clone(),
            waits: doing.waits,
            mean_ns: mean(&doing.waits),
            operations_per_second: doing.per_second(),
            demand_ns: doing.beside.span.0,
        });
        delays.collect()
    }

    fn cause(&self, rule: WaitRule) -> Option<Cause> {
        let permille = permille(self.all.waits.of(rule), self.all.waits.total_ns());
        let most = (0..self.there.len()).max_by_key(|at| {
            // The first of several.
            (self.there[*at].waits.of(rule), Reverse(*at))
        });
        let at = most.filter(|_| permille >= WORTH_PERMILLE)?;
        let (why, help) = match rule {
            WaitRule::Limit => self.limit(at),
            WaitRule::Reservation => self.reservation(at),
            WaitRule::Turn => self.explain_weight(at),
            WaitRule::Device => self.device(at),
        };
        let help = remedy(self.all.waits.of(rule), self.all.waits.operations, help);
        let node = self.stats.nodes[at].name.clone();
        Some(Cause { rule, permille, node, why, help })
    }

    fn parameters(&self) -> &TenantParameters {
        &self.stats.parameters[self.index.index()]
    }

    /// The node's work while the tenant had requests there.
    fn work(&self, at: usize) -> Work {
        self.there[at].beside
    }

    /// The parameters and counts of each other tenant at a node; most operations first.
    fn others(&self, at: usize) -> Vec<(&TenantParameters, Doing)> {
        let all = self.stats.nodes[at].minute.all(self.now).into_iter();
        let others = all.filter(|(index, _)| *index != self.index);
        let parameters = |index: TenantIndex| self.stats.parameters.get(index.index());
        let mut others: Vec<_> =
            others.filter_map(|(index, doing)| Some((parameters(index)?, doing))).collect();
        others.sort_by_key(|(_, doing)| Reverse(doing.waits.operations));
        others
    }

    fn limit(&self, at: usize) -> (String, String) {
        let TenantParameters { limit, other_limits, .. } = self.parameters();
        let got = self.there.iter().map(Doing::per_second).sum();
        let (held, seconds) = (self.there[at].limited, self.work(at).readings);
        let when = format!("requests waited for it in {held} of {seconds} s");
        let got_text = amounts::iops(got);
        if !other_limits.is_empty() {
            let own = limit.map(amounts::iops);
            let limits: Vec<String> = own.into_iter().chain(other_limits.iter().cloned()).collect();
            let why = format!("one of its limits is used up, {}: {when}", listed(&limits));
            return (why, "raise that limit; status has what it was served in each unit".into());
        }
        let Some(limit) = *limit else {
            let why = "it had a limit until the policy was changed".into();
            return (why, "nothing has to change: the policy in force has no limit for it".into());
        };
        let limit_text = amounts::iops(limit);
        if permille(got, limit) >= USED_UP_PERMILLE {
            let why =
                format!("its limit of {limit_text} is used up: it got {got_text}, and {when}");
            return (why, "raise the limit; it asks for more than that".into());
        }
        let why = format!(
            "its limit of {limit_text} is spread evenly over time, and it asks for more at a time: \
             it got {got_text}, and {when}"
        );
        (why, "raise the limit, or send requests more evenly".into())
    }

    fn reservation(&self, at: usize) -> (String, String) {
        let node = &self.stats.nodes[at];
        let reserved = self.reserved(at);
        let mut first: Vec<_> = self
            .others(at)
            .into_iter()
            .filter(|(_, doing)| doing.waits.operations > 0)
            .filter_map(|(parameters, doing)| {
                Some((*reserved.get(parameters.name.as_str())?, parameters, doing))
            })
            .collect();
        first.sort_by_key(|(reserved, _, doing)| Reverse((*reserved).min(doing.per_second())));
        let first = first.into_iter().map(|(reserved, parameters, doing)| {
            let [reserved, got] = [reserved, doing.per_second()].map(amounts::iops);
            format!("{} ({reserved} reserved, {got} served)", parameters.name)
        });
        let mut first: Vec<String> = first.collect();
        if first.is_empty() {
            first = vec!["a tenant whose reservation other nodes keep by now".into()];
        }
        let why = format!("reservations of others go first at {}: {}", node.name, listed(&first));
        let sum = reserved.values().fold(0, |sum: u64, reserved| sum.saturating_add(*reserved));
        let hint = match self.capacity(at) {
            0 => String::new(),
            can if can <= sum && self.measured(at) > sum => format!(
                "; all that {} is declared to do is reserved, though it can do about {}: declare \
                 more",
                node.name,
                amounts::iops(self.measured(at)),
            ),
            can if can <= sum => format!("; all that {} can do is reserved", node.name),
            can => {
                let rest = amounts::iops(can - sum);
                format!("; {rest} of what {} can do are not reserved", node.name)
            }
        };
        let own = match self.parameters().reservation {
            Some(own) => format!("raise its own reservation of {}", amounts::iops(own)),
            None => "give it a reservation of its own".into(),
        };
        (why, format!("{own}, or lower theirs{hint}"))
    }

    fn explain_weight(&self, at: usize) -> (String, String) {
        let node = &self.stats.nodes[at];
        let others = self.others(at);
        let others =
            others.iter().map(|(parameters, _)| (parameters.name.as_str(), parameters.weight));
        let mut others: Vec<(&str, u32)> = others.collect();
        if others.is_empty() {
            others.push(("requests of no tenant", Policy::WEIGHT));
        }
        let got = percent(self.there[at].waits.operations, self.work(at).operations);
        let got = format!("it got {got} of what was served");
        let order = match node.discipline() {
            Discipline::Fifo => "in the order of arrival",
            Discipline::RoundRobin => "one request of each in turn",
            _ => return self.weighed(at, &got, &others),
        };
        let names: Vec<String> = others.iter().map(|(name, _)| (*name).into()).collect();
        let why = format!("{} serves {order}, beside it {}; {got}", node.name, listed(&names));
        (why, "a scheduler that heeds weights, as `unified` does".into())
    }

    /// The turns of a scheduler that heeds weights.
    fn weighed(&self, at: usize, got: &str, others: &[(&str, u32)]) -> (String, String) {
        let node = &self.stats.nodes[at];
        let own = u64::from(self.parameters().weight);
        let sum: u64 = own + others.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>();
        let names = others.iter().map(|(name, weight)| format!("{name} ({weight})"));
        let names = listed(&names.collect::<Vec<_>>());
        let (name, part) = (&node.name, percent(own, sum));
        let mut why = format!(
            "it takes turns at {name} with {names}; its weight of {own} is {part} of all weights, \
             and {got}"
        );
        let elsewhere = self.all.waits.operations.saturating_sub(self.there[at].waits.operations);
        if node.discipline().observes_delays() && elsewhere > 0 {
            let part = percent(elsewhere, self.all.waits.operations);
            why += &format!("; {part} of what it got was at other nodes, which counts here");
        }
        let twice = (2 * own).min(u64::from(WEIGHT_MAX));
        let more = match percent(twice, sum - own + twice) {
            part if twice > own => format!("a weight of {twice} would be {part} of all weights"),
            _ => "its weight is the largest there is; lower those of others".into(),
        };
        let before = match (node.discipline().observes_promises(), self.parameters().reservation) {
            (false, _) => "",
            (true, None) => "; a reservation would go before turns",
            (true, Some(_)) => "; a larger reservation would go before turns",
        };
        (why, more + before)
    }

    fn device(&self, at: usize) -> (String, String) {
        let (node, work) = (&self.stats.nodes[at], self.work(at));
        let name = &node.name;
        if work.full * BUSY < work.readings {
            return self.no_full_store(at);
        }
        let own = permille(self.there[at].waits.operations, work.operations);
        let did = per_second(work.operations, work.span);
        let capacity = self.measured(at).max(did);
        let declared = self.status.nodes.get(at).and_then(|it| it.declared_operations_per_second);
        let capacity = match (capacity, declared) {
            (can, Some(declared)) if differs(can, declared) => {
                let [can, declared] = [can, declared].map(amounts::iops);
                format!(" (it can do about {can}, and is declared to do {declared})")
            }
            (can, _) if self.measured(at) > 0 => {
                format!(" (it can do about {})", amounts::iops(can))
            }
            _ => String::new(),
        };
        let at_a_time = match node.bound() {
            Some(bound) => format!(
                "{bound} of {} requests at a time, as its bound of latency lets there now",
                node.depth()
            ),
            None => format!("{} requests at a time", node.depth()),
        };
        let why = format!(
            "{name} did {}{capacity}, {} of it for this tenant; its store was full, with \
             {at_a_time}, in {} of {} s",
            amounts::iops(did),
            percent(self.there[at].waits.operations, work.operations),
            work.full,
            work.readings,
        );
        let help = match own >= OWN_PERMILLE {
            true => {
                "it waits behind its own requests: ask for fewer at a time, or for less, or lay \
                     its volumes over more nodes"
            }
            false => "less load there, a faster store, or volumes over more nodes",
        };
        let more = match node.bound() {
            Some(_) => "; a higher bound of latency lets more requests there",
            None => "",
        };
        (why, format!("{help}{more}"))
    }

    /// The times at the device of a node whose store was seldom full when it was read.
    fn no_full_store(&self, at: usize) -> (String, String) {
        let node = &self.stats.nodes[at];
        let why =
            format!("node {} was seldom full: this is the time that its store takes", node.name);
        let Some(path) = &self.path else { return (why, "a faster store".into()) };
        let of = |wanted: &str| {
            let part = path.parts.iter().find(|part| part.place == wanted);
            part.map_or(0, |part| part.ns)
        };
        let text = |ns| percent(ns, path.total_ns);
        let (way, behind) = (of("gateway").saturating_add(of("link")), of("full"));
        let store = of("store");
        if behind > store.max(way) {
            let why = format!(
                "over gateways {} of a request's time it waits at nodes behind its own requests, \
                 {} is the store's",
                text(behind),
                text(store),
            );
            let (depth, name) = (node.depth(), &node.name);
            let more = match node.bound() {
                Some(bound) => format!(
                    "raise the bound of latency: it lets {bound} of {depth} requests to the store \
                     of {name} now"
                ),
                None => format!("let more of them to the store: depth is {depth} at {name}"),
            };
            return (why, format!("ask for fewer at a time, or {more}"));
        }
        if way > store {
            let help = format!(
                "a change at nodes helps little: of a request over gateways {} of the time is the \
                 way to the node and back, and {} is the store's",
                text(way),
                text(store),
            );
            return (why, help);
        }
        (why, "a faster store".into())
    }

    /// Reservations kept at a node, per second, by the tenant's name.
    fn reserved(&self, at: usize) -> BTreeMap<&str, u64> {
        let Some(node) = self.status.nodes.get(at) else { return BTreeMap::new() };
        let period = Span(self.status.period_ns);
        let tenants = self.status.tenants.iter().filter_map(|tenant| {
            let there = tenant.nodes.iter().find(|there| there.id == node.id)?;
            let reserved = per_second(there.reserved_operations, period);
            (reserved > 0).then_some((tenant.name.as_str(), reserved))
        });
        tenants.collect()
    }

    /// A node's measured capacity per second, else the one that reservations are divided by; zero
    /// if that is not known.
    fn measured(&self, at: usize) -> u64 {
        let node = self.status.nodes.get(at);
        node.and_then(|node| node.measured_operations_per_second).unwrap_or(self.capacity(at))
    }

    /// The capacity that reservations at a node are divided by, per second; zero if not known.
    fn capacity(&self, at: usize) -> u64 {
        let capacity = self.status.nodes.get(at).map_or(0, |node| node.capacity_operations);
        per_second(capacity, Span(self.status.period_ns))
    }
}

impl Doing {
    /// Operations served per second of the time in which it had requests.
    fn per_second(&self) -> u64 {
        per_second(self.waits.operations, self.beside.span)
    }
}

/// Whether two rates differ by so much that both are worth a word.
const fn differs(rate: u64, other: u64) -> bool {
    rate.abs_diff(other) > other / 20
}

/// How long a request took on average.
fn mean(waits: &Waits) -> Option<u64> {
    waits.total_ns().checked_div(waits.operations)
}

/// Converts a count in a span to a rate per second, to the nearest.
fn per_second(count: u64, span: Span) -> u64 {
    let count = u128::from(count) * u128::from(Span::SECOND.0) + u128::from(span.0 / 2);
    let rate = count.checked_div(u128::from(span.0)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// At most 1,000: the count of the part may be ahead of the whole.
pub(crate) fn permille(part: u64, whole: u64) -> u64 {
    let part = u128::from(part.min(whole)) * 1000;
    part.checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// `21 %`, to the nearest.
fn percent(part: u64, whole: u64) -> String {
    format!("{} %", (permille(part, whole) + 5) / 10)
}

#[cfg(test)]
mod tests;
