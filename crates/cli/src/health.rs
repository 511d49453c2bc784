//! Health of tenants, stages, nodes and gateways, as it follows from the controller's status, for
//! `status` and `top` alike: whether each tenant has its promise, how much of the programs' I/O
//! passes gates, the state of each peer, and warnings with the commands that help.

use tidegate_model::Span;
use tidegate_model::gate::Unit;
use tidegate_proto::cluster::status::{
    ClusterStatus, ClusterTenant, DataNodeStatus, GatewayStatus, NodeStatus, TenantAtDataNode,
};
use tidegate_proto::controller::status::{StageStatus, Status, TenantStatus, is_less};
use tidegate_stage::bypass::BYPASSES;

mod cluster;
pub(crate) mod resources;

use tidegate_console::amounts;
use tidegate_console::output::{Tone, on_one_line, shell_word};
use tidegate_console::table::cut;

/// A share of bytes unseen below this, in thousandths, is noise: the loader's reads, a shell's.
const UNSEEN_PERMILLE: u64 = 10;

/// Nor are fewer unseen bytes than this worth a word.
const UNSEEN_BYTES: u64 = 1 << 20;

/// How much of a command line names a stage in a sentence.
const COMMAND: usize = 40;

const UNITS: [Unit; 2] = [Unit::Bytes, Unit::Operations];

/// Where there is something to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataPlanes {
    /// Programs under `tidegate run`.
    pub(crate) stages: bool,
    /// The nodes of a cluster.
    pub(crate) nodes: bool,
}

/// Where there is something to see. Without a cluster it is stages that are waited for.
pub(crate) fn data_planes(status: &Status) -> DataPlanes {
    let nodes = status.cluster.is_some();
    DataPlanes { stages: !status.stages.is_empty() || !nodes, nodes }
}

/// A tenant, wherever its requests go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantHealth<'a> {
    /// The policy's entry for it, and its state at stages.
    pub(crate) status: &'a TenantStatus,
    /// Its state at nodes, where there is a cluster.
    nodes: Option<(&'a ClusterTenant, &'a ClusterStatus)>,
}

/// The policy's tenants, in its order.
pub(crate) fn tenants(status: &Status) -> impl Iterator<Item = TenantHealth<'_>> {
    let cluster = status.cluster.as_ref();
    status.tenants.iter().enumerate().map(move |(index, tenant)| {
        // Both lists are in the order of the policy.
        let nodes = cluster.and_then(|cluster| Some((cluster.tenants.get(index)?, cluster)));
        let nodes = nodes.filter(|(there, _)| there.name == tenant.name);
        TenantHealth { status: tenant, nodes }
    })
}

impl<'a> TenantHealth<'a> {
    /// Operations that nodes served in the last period, and clients did at data nodes, per second.
    pub(crate) fn at_nodes(&self) -> u64 {
        let served = self
            .nodes
            .map_or(0, |(tenant, cluster)| per_second(cluster, tenant.last_served_operations));
        self.at_data_nodes()
            .map(|there| there.operations_per_second)
            .fold(served, u64::saturating_add)
    }

    /// Its health at each data node where it has any activity.
    fn at_data_nodes(self) -> impl Iterator<Item = &'a TenantAtDataNode> {
        let nodes = self.nodes.into_iter().flat_map(|(_, cluster)| &cluster.data_nodes);
        nodes.flat_map(|node| &node.tenants).filter(move |there| there.name == self.status.name)
    }

    /// Operations that wait at nodes.
    pub(crate) fn queued(&self) -> u64 {
        self.nodes.map_or(0, |(tenant, _)| tenant.waiting_operations)
    }

    /// Operations in all, of the kind that [`Levels::measured`] is about.
    pub(crate) fn operations(&self) -> u64 {
        let there = self.nodes.map_or(0, |(tenant, _)| tenant.total_served_operations);
        let there =
            self.at_data_nodes().map(|it| it.total_operations).fold(there, u64::saturating_add);
        self.status.operations.saturating_add(there)
    }

    /// Whether no program acts for it, and nodes are where it is looked for.
    pub(crate) fn is_only_at_nodes(&self) -> bool {
        self.nodes.is_some() && self.status.stages == 0
    }

    /// Whether it has at nodes what it was promised, over the last period.
    fn met_at_nodes(&self) -> Met {
        let Some((tenant, _)) = self.nodes else { return Met::Idle };
        let (reserved, served) = (tenant.reserved_operations, tenant.last_served_operations);
        let is_short_of_bytes = is_less(tenant.last_served_bytes, tenant.reserved_bytes);
        let is_waiting = tenant.waiting_operations > 0;
        match met_of(reserved, served, tenant.is_met) {
            Met::Yes if is_short_of_bytes && is_waiting => Met::BoundIn(Unit::Operations),
            Met::Yes if is_short_of_bytes => Met::BoundElsewhere,
            Met::BoundElsewhere
                if tenant.reserved_bytes > 0 && !is_short_of_bytes && is_waiting =>
            {
                Met::BoundIn(Unit::Bytes)
            }
            met => met,
        }
    }
}

/// Whether a tenant has at a data node what is its share there.
fn met_at_data_node(there: &TenantAtDataNode) -> Met {
    met_of(there.reserved_operations_per_second, there.operations_per_second, there.is_met)
}

/// Compares the service of a tenant with its reservation.
fn met_of(reserved: u64, served: u64, is_met: bool) -> Met {
    match (reserved, served, is_met) {
        (1.., _, false) => Met::No,
        (_, 0, _) => Met::Idle,
        (0, _, _) => Met::Nothing,
        (reserved, served, _) if is_less(served, reserved) => Met::BoundElsewhere,
        _ => Met::Yes,
    }
}

/// Converts a count in a period of the cluster to a rate per second.
pub(crate) fn per_second(cluster: &ClusterStatus, count: u64) -> u64 {
    let count = u128::from(count) * u128::from(Span::SECOND.0);
    u64::try_from(count / u128::from(cluster.period_ns.max(1))).unwrap_or(u64::MAX)
}

/// The levels of one tenant in one unit, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    pub(crate) reservation: Option<u64>,
    pub(crate) limit: Option<u64>,
    pub(crate) allocated: Option<u64>,
    /// None where the tenant may want more than is known.
    pub(crate) demand: Option<u64>,
    /// The rate in the last period.
    pub(crate) measured: u64,
}

/// The levels of a tenant in `unit`, at stages and nodes together.
pub(crate) fn levels(tenant: TenantHealth<'_>, unit: Unit) -> Levels {
    let levels = at_stages(tenant.status, unit);
    match unit {
        Unit::Bytes => levels,
        Unit::Operations => {
            let measured = levels.measured.saturating_add(tenant.at_nodes());
            Levels { measured, ..levels }
        }
    }
}

fn at_stages(tenant: &TenantStatus, unit: Unit) -> Levels {
    match unit {
        Unit::Bytes => Levels {
            reservation: tenant.reservation_bytes_per_second,
            limit: tenant.limit_bytes_per_second,
            allocated: tenant.allocated_bytes_per_second,
            demand: tenant.demand_bytes_per_second,
            measured: tenant.period_bytes_per_second,
        },
        Unit::Operations => Levels {
            reservation: tenant.reservation_operations_per_second,
            limit: tenant.limit_operations_per_second,
            allocated: tenant.allocated_operations_per_second,
            demand: tenant.demand_operations_per_second,
            measured: tenant.period_operations_per_second,
        },
    }
}

/// The units in which something is promised or allocated to a tenant, or served by nodes. If there
/// is none: operations at nodes, bytes elsewhere.
pub(crate) fn units(tenant: TenantHealth<'_>) -> Vec<Unit> {
    let counts = |unit: &Unit| {
        let levels = at_stages(tenant.status, *unit);
        let is_served = *unit == Unit::Operations && tenant.at_nodes() > 0;
        is_served || levels.reservation.or(levels.limit).or(levels.allocated).is_some()
    };
    let units: Vec<_> = UNITS.into_iter().filter(counts).collect();
    match units.is_empty() {
        false => units,
        true if tenant.is_only_at_nodes() => vec![Unit::Operations],
        true => vec![Unit::Bytes],
    }
}

/// One kind of level of a tenant in all of its units, or `none` where it has none.
pub(crate) fn text(
    tenant: TenantHealth<'_>,
    of: impl Fn(Levels) -> Option<u64>,
    none: &str,
) -> String {
    let shown = |unit| of(levels(tenant, unit)).map(|value| amounts::rate(unit, value));
    let shown: Vec<_> = units(tenant).into_iter().filter_map(shown).collect();
    if shown.is_empty() { none.into() } else { shown.join(", ") }
}

/// Whether a tenant has what it was promised. Of two places, the greater one is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Met {
    /// It has no demand.
    Idle,
    /// Nothing was promised to it.
    Nothing,
    /// It has its reservation.
    Yes,
    /// It has less than its reservation, and nothing of it waits: the program, the client or the
    /// storage that it uses is no faster.
    BoundElsewhere,
    /// It has less than its reservation in one unit, because a gate holds it in the other one, in
    /// which it has its reservation: its requests are smaller or larger than the two levels imply.
    BoundIn(Unit),
    /// It is held back below its reservation.
    No,
}

impl Met {
    /// In one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Nothing => "-",
            Self::Idle => "idle",
            Self::Yes | Self::BoundElsewhere | Self::BoundIn(_) => "yes",
            Self::No => "NO",
        }
    }

    /// In a few words, with what bounds the tenant where no promise does.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::BoundElsewhere => "yes, program or storage is slower",
            Self::BoundIn(Unit::Bytes) => "yes, bytes are what holds it",
            Self::BoundIn(Unit::Operations) => "yes, operations are what holds it",
            _ => self.word(),
        }
    }

    /// How it stands out.
    pub(crate) fn tone(self) -> Tone {
        match self {
            Self::Nothing => Tone::Plain,
            Self::Idle => Tone::Faint,
            Self::Yes | Self::BoundElsewhere | Self::BoundIn(_) => Tone::Good,
            Self::No => Tone::Bad,
        }
    }
}

/// Whether `tenant` has what it was promised, over the last period.
pub(crate) fn met(tenant: TenantHealth<'_>) -> Met {
    let there = tenant.at_data_nodes().map(met_at_data_node);
    there.fold(met_at_stages(tenant.status).max(tenant.met_at_nodes()), Met::max)
}

fn met_at_stages(tenant: &TenantStatus) -> Met {
    if UNITS.into_iter().any(|unit| tenant.misses(unit)) {
        return Met::No;
    }
    let promised = |levels: Levels| Some((levels.reservation?, levels.measured));
    let promised = UNITS.into_iter().filter_map(|unit| promised(at_stages(tenant, unit)));
    let is_all_there = promised.clone().all(|(promised, measured)| !is_less(measured, promised));
    let flows = tenant.period_bytes_per_second > 0 || tenant.period_operations_per_second > 0;
    match (promised.count(), flows, is_all_there) {
        (_, false, _) => Met::Idle,
        (0, true, _) => Met::Nothing,
        (_, true, true) => Met::Yes,
        (_, true, false) => bound_at_stages(tenant).map_or(Met::BoundElsewhere, Met::BoundIn),
    }
}

/// The unit in which requests of the tenant wait at stages because all of its rate is used up; none
/// if they do not wait.
fn bound_at_stages(tenant: &TenantStatus) -> Option<Unit> {
    let is_used_up = |unit: &Unit| {
        let Levels { allocated, measured, .. } = at_stages(tenant, *unit);
        allocated.is_some_and(|allocated| !is_less(measured, allocated))
    };
    UNITS.into_iter().filter(|_| tenant.waiting_permille > 0).find(is_used_up)
}

/// The part of a stage's bytes that passed its gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) seen: u64,
    /// Bytes that were let through for a reason that an operator can mend.
    pub(crate) passed: u64,
    /// Bytes moved by system calls that the stage did not see.
    pub(crate) unseen: u64,
}

/// The bytes of a stage: those that passed its gates, and the others.
pub(crate) fn covered(stage: &StageStatus) -> Covered {
    let coverage = &stage.coverage;
    let sum = |is_wanted: fn(&str) -> bool| {
        let wanted = coverage.bypasses.iter().filter(|bypass| is_wanted(&bypass.reason));
        wanted.map(|bypass| bypass.bytes).fold(0, u64::saturating_add)
    };
    let harmless = sum(|reason| reason != "nested" && is_harmless(reason));
    // Page faults are no system calls, so what is mapped is not part of what these moved.
    let passed = sum(|reason| reason != "mapping" && !is_harmless(reason));
    let known = coverage.seen_bytes.saturating_add(harmless).saturating_add(passed);
    Covered {
        seen: coverage.seen_bytes,
        passed,
        unseen: coverage.syscall_bytes.saturating_sub(known),
    }
}

impl Covered {
    /// The part that passed the gates in thousandths; none while nothing on storage moved. Unseen
    /// bytes count if they are more than what loaders read: beside a program that moves bytes
    /// between devices in memory those would be all that there is.
    pub(crate) fn permille(self) -> Option<u64> {
        let unseen = if self.is_much_unseen() { self.unseen } else { 0 };
        let all = u128::from(self.seen) + u128::from(self.passed) + u128::from(unseen);
        let share = (u128::from(self.seen) * 1000).checked_div(all)?;
        u64::try_from(share).ok()
    }

    /// Whether the unseen traffic is worth a warning.
    pub(crate) fn is_much_unseen(self) -> bool {
        let all = self.seen.saturating_add(self.passed).saturating_add(self.unseen);
        self.unseen > UNSEEN_BYTES && self.unseen > all / 1000 * UNSEEN_PERMILLE
    }
}

/// Advice to a user about a reason for letting calls through.
fn advice(reason: &str) -> &'static str {
    let known = BYPASSES.iter().find(|(_, name, _)| *name == reason);
    known.map_or("see the release notes of the stage: it is newer", |(_, _, advice)| advice)
}

fn is_harmless(reason: &str) -> bool {
    advice(reason).starts_with("nothing")
}

/// A fault that an operator should check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Warning {
    /// The fault, and its place.
    pub(crate) text: String,
    /// How to mend it.
    pub(crate) help: String,
}

/// All faults that an operator should check, the worst first.
pub(crate) fn warnings(status: &Status) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let cluster = status.cluster.as_ref();
    let mut warn = |text: String, help: &str| {
        let [text, help] = [&*text, help].map(|it| on_one_line(&pasteable(it, cluster)));
        warnings.push(Warning { text, help });
    };
    if status.revision == 0 {
        warn("no policy is in force".into(), "apply one with `tidegate apply FILE`");
    }
    for tenant in &status.tenants {
        for unit in UNITS.into_iter().filter(|unit| tenant.misses(*unit)) {
            let Levels { reservation, measured, .. } = at_stages(tenant, unit);
            let (got, promised) =
                (amounts::rate(unit, measured), amounts::rate(unit, reservation.unwrap_or(0)));
            warn(
                format!("{} gets {got} of the {promised} that it is promised", tenant.name),
                "if it stays so, the storage yields less than the budget says: lower the budget",
            );
        }
    }
    if let Some(measured) = status.measured.as_ref().filter(|measured| measured.is_short) {
        warn(
            format!("{} yields less than is reserved of it", measured.resource),
            "if it stays so, lower reservations, or allow a longer latency: reservations are \
             admitted nevertheless, and may take longer than the bound",
        );
    }
    if let Some(cluster) = &status.cluster {
        cluster::warn_of_cluster(cluster, &mut warn);
    }
    resources::warn_of_groups(status, &mut warn);
    for stage in &status.stages {
        warn_of_stage(stage, &mut warn);
    }
    if status.totals.unmatched_bytes > UNSEEN_BYTES {
        let amount = amounts::bytes(status.totals.unmatched_bytes);
        warn(
            format!("{amount} matched no rule and passed unhindered"),
            "add a [[match]] rule to the policy, or name the tenant: `tidegate run --tenant NAME`",
        );
    }
    warnings
}

/// The same with its commands as they can be pasted: the component that advises one often does not
/// know where the cluster's file is, and writes `CLUSTER`.
fn pasteable(text: &str, cluster: Option<&ClusterStatus>) -> String {
    let Some(ClusterStatus { file, state, .. }) = cluster.filter(|it| !it.file.is_empty()) else {
        return text.into();
    };
    let words = format!(" {} --state {}", shell_word(file), shell_word(state));
    let mut pasteable = String::new();
    for (index, section) in text.split('`').enumerate() {
        let is_command = index % 2 == 1 && section.starts_with("tidegate ");
        pasteable += if index == 0 { "" } else { "`" };
        pasteable +=
            &if is_command { section.replacen(" CLUSTER", &words, 1) } else { section.into() };
    }
    pasteable
}

/// How the controller stands with a node or gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerHealth {
    Up,
    /// It is connected, and does not answer.
    Silent,
    /// It answers, and parts of volumes or its whole store cannot be served.
    Faulty,
    Away,
}

impl PeerHealth {
    pub(crate) fn of_node(node: &NodeStatus) -> Self {
        let is_faulty = node.store_fault.is_some() || !node.faults.is_empty();
        match Self::of(node.is_connected, node.is_silent) {
            Self::Up if is_faulty => Self::Faulty,
            state => state,
        }
    }

    pub(crate) fn of_data_node(node: &DataNodeStatus) -> Self {
        Self::of(node.is_connected, node.is_silent)
    }

    pub(crate) fn of_gateway(gateway: &GatewayStatus) -> Self {
        Self::of(gateway.is_connected, gateway.is_silent)
    }

    fn of(is_connected: bool, is_silent: bool) -> Self {
        match (is_connected, is_silent) {
            (true, false) => Self::Up,
            (true, true) => Self::Silent,
            (false, _) => Self::Away,
        }
    }

    /// In one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Faulty => "faulty",
            Self::Away => "away",
        }
    }

    /// How it stands out.
    pub(crate) fn tone(self) -> Tone {
        match self {
            Self::Up => Tone::Good,
            Self::Silent => Tone::Warn,
            Self::Faulty | Self::Away => Tone::Bad,
        }
    }
}

/// The cluster in a few words: `3 nodes, 1 gateway`; of those that are not all there, how many are.
/// Data nodes are included where there are some.
pub(crate) fn components(cluster: &ClusterStatus) -> String {
    let is_up = |node: &&NodeStatus| PeerHealth::of_node(node) == PeerHealth::Up;
    let nodes = counted(cluster.nodes.iter().filter(is_up).count(), cluster.nodes.len(), "node");
    let is_up = |gateway: &&GatewayStatus| PeerHealth::of_gateway(gateway) == PeerHealth::Up;
    let up = cluster.gateways.iter().filter(is_up).count();
    let gateways = counted(up, cluster.gateways.len(), "gateway");
    let is_up = |node: &&DataNodeStatus| PeerHealth::of_data_node(node) == PeerHealth::Up;
    let up = cluster.data_nodes.iter().filter(is_up).count();
    let data_nodes = counted(up, cluster.data_nodes.len(), "data node");
    match (cluster.data_nodes.is_empty(), cluster.nodes.is_empty()) {
        (true, _) => format!("{nodes}, {gateways}"),
        (false, true) => data_nodes,
        (false, false) => format!("{nodes}, {gateways}, {data_nodes}"),
    }
}

/// The capacity of a node in operations per second, as measured, and at least its rate of service;
/// none if the node never reported, or is to find it and its store was never busy.
pub(crate) fn capacity(cluster: &ClusterStatus, node: &NodeStatus) -> Option<u64> {
    // A controller of an earlier release sends no measured one.
    let estimated = per_second(cluster, node.capacity_operations);
    let estimate = node.measured_operations_per_second.unwrap_or(estimated);
    let is_known = node.reported_ns.is_some() && estimate > 0;
    is_known.then(|| estimate.max(node.served_operations_per_second))
}

/// How much of a data node's store is in use: `3.2GiB of 4GiB`.
pub(crate) fn memory(node: &DataNodeStatus) -> String {
    match node.memory_bytes {
        0 => "-".into(),
        bytes => format!("{} of {}", amounts::bytes(node.used_bytes), amounts::bytes(bytes)),
    }
}

/// How much of a node's depth is taken: `3 of 32`.
pub(crate) fn at_store(node: &NodeStatus) -> String {
    match node.depth_requests {
        0 => "-".into(),
        depth => format!("{} of {depth}", node.in_flight_requests),
    }
}

/// Where a gateway is found.
pub(crate) fn addresses(gateway: &GatewayStatus) -> String {
    let nbd = gateway.nbd.iter().map(|address| format!("nbd {address}"));
    let memcached = gateway.memcached.iter().map(|address| format!("memcached {address}"));
    nbd.chain(memcached).collect::<Vec<_>>().join(", ")
}

fn counted(up: usize, all: usize, noun: &str) -> String {
    let all_of_them = amounts::plural(all as u64, noun);
    if up == all { all_of_them } else { format!("{up} of {all_of_them}") }
}

/// Whether the stage has come over the network. Only there a certificate names its user, and no
/// name of a Unix user has a colon.
fn is_elsewhere(stage: &StageStatus) -> bool {
    stage.user.starts_with("cert:")
}

fn warn_of_stage(stage: &StageStatus, warn: &mut impl FnMut(String, &str)) {
    let name = format!("stage {} ({})", stage.id, cut(&on_one_line(&stage.command), COMMAND));
    if stage.is_disconnected && is_elsewhere(stage) {
        warn(
            format!("{name} is cut off from the controller, and its programs may go on"),
            "see whether its host and the link work, and `tidegate run` there; its programs have \
             their safe share, which no other program gets meanwhile",
        );
    } else if stage.is_disconnected {
        warn(
            format!("{name} has lost its supervisor, and its programs may go on"),
            "they have their safe share, which no other program gets meanwhile; to end that, end \
             them, or start them anew with `tidegate run`",
        );
    } else if stage.is_silent {
        warn(
            format!("{name} has stopped answering"),
            "see whether its process is stopped; if it is, its share is free soon",
        );
    }
    if let Some(error) = &stage.error {
        warn(
            format!("{name} did not take the last rules: {error}"),
            match stage.revision {
                0 => "it has none and holds nothing back; mend the policy and apply it again",
                _ => "it keeps the ones before; mend the policy and apply it again",
            },
        );
    }
    let covered = covered(stage);
    if covered.is_much_unseen() {
        let (unseen, all) = (covered.unseen, covered.seen + covered.passed + covered.unseen);
        warn(
            format!("{name}: {} of {} were not seen", amounts::bytes(unseen), amounts::bytes(all)),
            "raw system calls or programs without the shim moved them; serve their files otherwise",
        );
    }
    for bypass in stage.coverage.bypasses.iter().filter(|bypass| !is_harmless(&bypass.reason)) {
        let amount = match bypass.bytes {
            0 => String::new(),
            bytes => format!(" with {}", amounts::bytes(bytes)),
        };
        let (reason, calls) = (&bypass.reason, amounts::count(bypass.calls));
        let plural = if bypass.calls == 1 { "" } else { "s" };
        warn(format!("{name}: {calls} call{plural}{amount} passed by ({reason})"), advice(reason));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_proto::cluster::status::{PartFaultStatus, TakeoverStatus};
    use tidegate_proto::controller::status::{BypassStatus, CoverageStatus};

    use super::*;

    fn tenant() -> TenantStatus {
        TenantStatus {
            name: "oltp".into(),
            reservation_bytes_per_second: Some(100 << 20),
            period_bytes_per_second: 60 << 20,
            waiting_permille: 400,
            ..TenantStatus::default()
        }
    }

    fn met(tenant: &TenantStatus) -> Met {
        super::met(TenantHealth { status: tenant, nodes: None })
    }

    /// A tenant that is promised 500 operations per period of half a second.
    fn at_nodes(last_served_operations: u64, is_met: bool) -> Status {
        let name = String::from("oltp");
        let there = ClusterTenant {
            name: name.clone(),
            reserved_operations: 500,
            last_served_operations,
            is_met,
            ..ClusterTenant::default()
        };
        let tenants = vec![there];
        let cluster = ClusterStatus { period_ns: 500_000_000, tenants, ..ClusterStatus::default() };
        let here = TenantStatus { name, ..TenantStatus::default() };
        let here = TenantStatus { reservation_operations_per_second: Some(1_000), ..here };
        let (tenants, cluster) = (vec![here], Some(cluster));
        Status { revision: 1, tenants, cluster, ..Status::default() }
    }

    #[test]
    fn what_nodes_serve_is_part_of_what_a_tenant_gets() {
        let health_of = |status: &Status| {
            let tenant = tenants(status).next().unwrap();
            (text(tenant, |levels| Some(levels.measured), "-"), super::met(tenant).words())
        };
        assert_eq!(health_of(&at_nodes(0, true)), ("0 iops".into(), "idle"));
        assert_eq!(
            health_of(&at_nodes(400, true)),
            ("800 iops".into(), "yes, program or storage is slower")
        );
        assert_eq!(health_of(&at_nodes(500, true)), ("1k iops".into(), "yes"));
        let mut missed = at_nodes(400, false);
        assert_eq!(health_of(&missed), ("800 iops".into(), "NO"));
        let texts = warnings(&missed).into_iter().map(|warning| warning.text);
        let expected = "oltp gets 800 iops of the 1k iops that it is promised at nodes";
        assert_eq!(texts.collect::<Vec<_>>(), [expected]);
        missed.tenants[0].period_operations_per_second = 300;
        assert_eq!(health_of(&missed), ("1.1k iops".into(), "NO"), "at nodes it still misses it");
    }

    /// A promise is missed because a node is away, and not because nodes are slow.
    #[test]
    fn a_missed_promise_is_put_down_to_the_node_that_cannot_serve() {
        let node = |name: &str| NodeStatus {
            name: name.into(),
            is_connected: true,
            ..NodeStatus::default()
        };
        let mut missed = at_nodes(400, false);
        missed.cluster.as_mut().unwrap().nodes = vec![node("a"), node("b")];
        let help = |status: &Status| warnings(status).pop().unwrap().help;
        assert_eq!(help(&missed), "if it stays so, nodes do less than they are declared to");
        missed.cluster.as_mut().unwrap().nodes[1].is_connected = false;
        let cause = "promises at node b cannot be kept while it does not serve: mend that first";
        assert_eq!(help(&missed), cause);
    }

    #[test]
    fn a_node_whose_memcached_is_away_is_faulty_and_shows_the_address() {
        let fault = "memcached at 127.0.0.1:11212 is away: Connection refused (os error 111)";
        let node = NodeStatus {
            name: "m2".into(),
            is_connected: true,
            store_fault: Some(fault.into()),
            ..NodeStatus::default()
        };
        assert_eq!(PeerHealth::of_node(&node), PeerHealth::Faulty);
        let cluster = ClusterStatus { nodes: vec![node], ..ClusterStatus::default() };
        assert_eq!(components(&cluster), "0 of 1 node, 0 gateways");
        let status = Status { revision: 1, cluster: Some(cluster), ..Status::default() };
        let texts = warnings(&status).into_iter().map(|warning| warning.text);
        assert_eq!(texts.collect::<Vec<_>>(), [format!("node m2: {fault}")]);
    }

    #[test]
    fn processes_of_one_name_are_a_warning_with_both_addresses() {
        let takeover = TakeoverStatus {
            times: 3,
            within_ns: 300_000_000_000,
            process: "10.0.0.2:4000".into(),
            earlier: "10.0.0.1:5000".into(),
        };
        let takeover = Some(takeover);
        let gateway = GatewayStatus { name: "g".into(), takeover, ..GatewayStatus::default() };
        let gateways = vec![GatewayStatus { is_connected: true, ..gateway }];
        let cluster = Some(ClusterStatus { gateways, ..ClusterStatus::default() });
        let warnings = warnings(&Status { revision: 1, cluster, ..Status::default() });
        let [Warning { text, help }] = &*warnings else { panic!("{warnings:?}") };
        let wanted = "several processes use the name of gateway g: they took over from each other \
                      3 times in 5min, last 10.0.0.2:4000 from 10.0.0.1:5000";
        assert_eq!(text, wanted);
        assert!(help.starts_with("end one of the two processes"), "{help}");
    }

    #[test]
    fn what_is_advised_can_be_pasted() {
        let node = NodeStatus { name: "b".into(), ..NodeStatus::default() };
        let reason = "it is not there; run `tidegate volume create CLUSTER db --adopt`";
        let fault = PartFaultStatus { volume: "db".into(), part: 1, reason: reason.into() };
        let node = NodeStatus { faults: vec![fault], ..node };
        let (file, state) = ("/etc/my cluster.toml".into(), "/srv/it's".into());
        let mut cluster = ClusterStatus { nodes: vec![node], ..ClusterStatus::default() };
        let texts = |cluster: &ClusterStatus| {
            let cluster = Some(cluster.clone());
            let warnings = warnings(&Status { revision: 1, cluster, ..Status::default() });
            warnings.into_iter().map(|it| format!("{}: {}", it.text, it.help)).collect::<Vec<_>>()
        };
        assert!(texts(&cluster)[0].contains("`tidegate up CLUSTER --role"), "its place is unknown");
        (cluster.file, cluster.state) = (file, state);
        let index = r"'/etc/my cluster.toml' --state '/srv/it'\''s'";
        assert_eq!(
            texts(&cluster),
            [
                format!("node b is away: start it: `tidegate up {index} --role node --name b`"),
                format!(
                    "part 1 of volume db at node b: it is not there; run `tidegate volume create \
                     {index} db --adopt`: see `tidegate volume show {index}` on the machine of \
                     each of its nodes"
                ),
            ]
        );
    }

    #[test]
    fn a_cluster_is_as_much_as_is_there() {
        let node = |is_connected| NodeStatus { is_connected, ..NodeStatus::default() };
        let gateway = GatewayStatus { is_connected: true, ..GatewayStatus::default() };
        let mut cluster = ClusterStatus {
            nodes: vec![node(true), node(true)],
            gateways: vec![gateway],
            ..ClusterStatus::default()
        };
        assert_eq!(components(&cluster), "2 nodes, 1 gateway");
        cluster.nodes[1].is_silent = true;
        cluster.gateways.push(GatewayStatus::default());
        assert_eq!(components(&cluster), "1 of 2 nodes, 1 of 2 gateways");
    }

    #[test]
    fn a_promise_is_missed_only_by_who_waits_for_it() {
        assert_eq!(met(&tenant()), Met::No);
        let slow_disk = TenantStatus { waiting_permille: 0, ..tenant() };
        assert_eq!(met(&slow_disk), Met::BoundElsewhere, "no gate holds it back");
        let demands_less = TenantStatus { demand_bytes_per_second: Some(75 << 20), ..tenant() };
        assert_eq!(met(&demands_less), Met::BoundElsewhere);
        let kept = TenantStatus { period_bytes_per_second: 98 << 20, ..tenant() };
        assert_eq!(met(&kept), Met::Yes);
        let other = TenantStatus { reservation_bytes_per_second: None, ..tenant() };
        assert_eq!(met(&other), Met::Nothing);
        assert_eq!(met(&TenantStatus::default()), Met::Idle);
    }

    /// Its requests are small: it has all of its operations, and few bytes.
    #[test]
    fn a_gate_in_the_other_unit_is_what_holds_a_tenant() {
        let small = TenantStatus {
            reservation_operations_per_second: Some(500),
            allocated_operations_per_second: Some(1_250),
            period_operations_per_second: 1_240,
            demand_bytes_per_second: Some(70 << 20),
            ..tenant()
        };
        assert_eq!(met(&small), Met::BoundIn(Unit::Operations));
        let calm = TenantStatus { waiting_permille: 0, ..small.clone() };
        assert_eq!(met(&calm), Met::BoundElsewhere, "none of its requests waits");
        let slow = TenantStatus { period_operations_per_second: 700, ..small };
        assert_eq!(met(&slow), Met::BoundElsewhere, "rate is left");
        let status = |operations: u64, bytes: u64, waiting: u64| {
            let mut status = at_nodes(operations, true);
            let there = &mut status.cluster.as_mut().unwrap().tenants[0];
            (there.reserved_bytes, there.last_served_bytes) = (100 << 20, bytes << 20);
            there.waiting_operations = waiting;
            super::met(tenants(&status).next().unwrap())
        };
        assert_eq!(status(500, 60, 4), Met::BoundIn(Unit::Operations));
        assert_eq!(status(500, 60, 0), Met::BoundElsewhere);
        assert_eq!(status(300, 100, 4), Met::BoundIn(Unit::Bytes));
        assert_eq!(status(300, 60, 4), Met::BoundElsewhere);
    }

    #[test]
    fn levels_are_shown_in_the_units_of_the_promise() {
        let mut tenant = tenant();
        let text = |tenant: &TenantStatus, of: fn(Levels) -> Option<u64>| {
            text(TenantHealth { status: tenant, nodes: None }, of, "-")
        };
        assert_eq!(text(&tenant, |levels| levels.reservation), "100 MiB/s");
        assert_eq!(text(&tenant, |levels| levels.limit), "-");
        tenant.limit_operations_per_second = Some(30_000);
        tenant.period_operations_per_second = 22_700;
        assert_eq!(text(&tenant, |levels| Some(levels.measured)), "60 MiB/s, 22.7k iops");
    }

    fn stage(seen_mib: u64, syscall_mib: u64, bypasses: &[(&str, u64)]) -> StageStatus {
        let bypass = |(reason, mib): &(&str, u64)| BypassStatus {
            reason: (*reason).into(),
            calls: 3,
            bytes: mib << 20,
        };
        let coverage = CoverageStatus {
            seen_bytes: seen_mib << 20,
            syscall_bytes: syscall_mib << 20,
            device_bytes: 0,
            bypasses: bypasses.iter().map(bypass).collect(),
        };
        StageStatus { id: 7, command: "tar".into(), coverage, ..StageStatus::default() }
    }

    fn texts(stage: &StageStatus) -> Vec<String> {
        let mut texts = Vec::new();
        warn_of_stage(stage, &mut |text, _| texts.push(text));
        texts
    }

    #[test]
    fn a_stage_without_its_supervisor_is_not_one_that_is_stopped() {
        let silent = StageStatus { is_silent: true, ..stage(0, 0, &[]) };
        assert_eq!(texts(&silent), ["stage 7 (tar) has stopped answering"]);
        let disconnected = StageStatus { is_disconnected: true, ..silent };
        let warned = "stage 7 (tar) has lost its supervisor, and its programs may go on";
        assert_eq!(texts(&disconnected), [warned]);
        let elsewhere = StageStatus { user: "cert:ann".into(), ..disconnected };
        let warned = "stage 7 (tar) is cut off from the controller, and its programs may go on";
        assert_eq!(texts(&elsewhere), [warned]);
    }

    #[test]
    fn pipes_and_mappings_are_not_unseen_bytes() {
        let stage = stage(300, 400, &[("not_storage", 100), ("nested", 300)]);
        assert_eq!(covered(&stage).permille(), Some(1000));
        assert_eq!(texts(&stage), [""; 0]);
        let stage = self::stage(300, 300, &[("mapping", 50)]);
        assert_eq!(covered(&stage).unseen, 0);
        assert_eq!(texts(&stage), ["stage 7 (tar): 3 calls with 50 MiB passed by (mapping)"]);
    }

    /// A program that copies `/dev/zero` to `/dev/null`: the loader's reads were not seen.
    #[test]
    fn what_is_no_storage_counts_neither_as_covered_nor_as_uncovered() {
        let idle = stage(0, 8_001, &[("not_storage", 8_000)]);
        assert_eq!(covered(&idle).permille(), None);
        assert_eq!(texts(&idle), [""; 0]);
        let little = stage(3, 8_004, &[("not_storage", 8_000)]);
        assert_eq!(covered(&little).permille(), Some(1000));
    }

    #[test]
    fn unseen_bytes_are_reported() {
        let stage = stage(300, 400, &[]);
        assert_eq!(covered(&stage).permille(), Some(750));
        assert_eq!(texts(&stage), ["stage 7 (tar): 100 MiB of 400 MiB were not seen"]);
        assert_eq!(texts(&self::stage(300, 302, &[])), [""; 0]);
        assert_eq!(covered(&self::stage(0, 0, &[])).permille(), None);
    }
}
