use alloc::vec;

use super::*;
use crate::cluster::status::{ClusterGroup, ClusterTenant, NodeStatus, TenantAtDataNode};

const POLICY: &str = r#"
    [[resource]]
    name = "cluster"
    [[resource]]
    name = "files"
    path = "/srv/**"
    capacity = "1000 iops"
    [[resource]]
    name = "memory"
    data_nodes = ["m", "n"]
    [[group]]
    name = "team"
    on.cluster = { limit = "200 MiB/s" }
    on.files = { reservation = "100 iops" }
    [[tenant]]
    name = "oltp"
    on.cluster = { reservation = "90 iops", limit = "10 MiB/s" }
    on.memory = { reservation = "7 iops" }
    [[tenant]]
    name = "etl"
    group = "team"
    [[tenant]]
    name = "ml"
    group = "team"
    on.files = { limit = "30 iops" }
"#;

const MIB: u64 = 1 << 20;

fn at_node(name: &str, last_served_operations: u64, last_served_bytes: u64) -> ClusterTenant {
    ClusterTenant {
        name: name.into(),
        last_served_operations,
        last_served_bytes,
        is_met: true,
        ..ClusterTenant::default()
    }
}

fn at_stages(name: &str, operations: u64, is_waiting: bool) -> TenantStatus {
    TenantStatus {
        name: name.into(),
        period_operations_per_second: operations,
        demand_operations_per_second: (!is_waiting).then_some(operations),
        waiting_permille: if is_waiting { 900 } else { 0 },
        ..TenantStatus::default()
    }
}

fn data_node(operations_per_second: u64, is_met: bool) -> DataNodeStatus {
    let name = "oltp".into();
    let tenant = TenantAtDataNode { name, operations_per_second, is_met, ..Default::default() };
    DataNodeStatus { tenants: vec![tenant], ..DataNodeStatus::default() }
}

/// A status in which each gate reports something else, with periods of half a second.
fn status() -> Status {
    let node =
        |rate| NodeStatus { declared_operations_per_second: Some(rate), ..NodeStatus::default() };
    let cluster = ClusterStatus {
        period_ns: Span::SECOND.0 / 2,
        tenants: vec![
            ClusterTenant { is_met: false, ..at_node("oltp", 40, 4 * MIB) },
            at_node("etl", 0, 50 * MIB),
            ClusterTenant { gateway_bytes_per_second: 9, ..at_node("ml", 3, 20 * MIB) },
        ],
        groups: vec![ClusterGroup {
            name: "team".into(),
            limit_bytes: Some(1),
            is_met: true,
            ..ClusterGroup::default()
        }],
        nodes: vec![node(300), node(200)],
        data_nodes: vec![data_node(3, true), data_node(2, false)],
        ..ClusterStatus::default()
    };
    let tenants =
        vec![at_stages("oltp", 0, false), at_stages("etl", 40, false), at_stages("ml", 25, true)];
    Status { tenants, cluster: Some(cluster), ..Status::default() }
}

fn accounts(status: &Status) -> Vec<ResourceStatus> {
    let policy = Policy::parse(POLICY).unwrap();
    let stage = StageWaits { operations_share_ns: 70, channel_ns: 30, ..StageWaits::default() };
    let node = Waits { limit_ns: 10, device_ns: 30, ..Waits::ZERO };
    let waits = RecentWaits {
        stages: vec![StageWaits::default(), StageWaits::default(), stage],
        nodes: vec![node, Waits::ZERO, Waits::ZERO],
    };
    resources(&policy, status, &waits)
}

/// A line for each promise: its account in short.
fn lines(promises: &[PromiseStatus]) -> Vec<String> {
    let line = |it: &PromiseStatus| {
        let held = it.held.as_ref().map(|held| alloc::format!("{} {}", held.by, held.permille));
        let met = if it.is_met { "met" } else { "missed" };
        let (operations, bytes) = (it.operations_per_second, it.bytes_per_second);
        let held = held.unwrap_or_default();
        alloc::format!("{} {operations} {bytes:?} {met} {held}", it.name).trim_end().into()
    };
    promises.iter().map(line).collect()
}

#[test]
fn each_resource_has_the_account_of_the_gates_that_guard_it() {
    let accounts = accounts(&status());
    let [cluster, files, memory] = &accounts[..] else { panic!("three resources") };
    assert_eq!(
        lines(&cluster.tenants),
        [
            "oltp 80 Some(8388608) missed device 750",
            "etl 0 Some(104857600) met",
            "ml 6 Some(41943040) met",
        ]
    );
    assert_eq!(lines(&cluster.groups), ["team 6 Some(146800640) met"]);
    assert_eq!(cluster.capacity_operations_per_second, Some(500), "both nodes declare it");
    assert_eq!(cluster.capacity_bytes_per_second, None, "no node declares it");
    assert_eq!(
        lines(&files.tenants),
        ["etl 40 Some(0) met", "ml 25 Some(0) met operations_share 700"]
    );
    assert_eq!(files.capacity_operations_per_second, Some(1000));
    assert_eq!(lines(&memory.tenants), ["oltp 5 None missed"]);
    assert_eq!(memory.tenants[0].reservation_operations_per_second, Some(7));
    assert_eq!(memory.groups, []);
}

/// The group has 65 of its 100 while `ml` waits below its own limit of 30, and 69 while `ml` waits
/// at that limit: only the first is the group's miss.
#[test]
fn a_group_at_stages_misses_what_a_tenant_of_it_waits_for() {
    let mut status = status();
    status.tenants[2].limit_operations_per_second = Some(30);
    let files = |status: &Status| accounts(status).swap_remove(1);
    assert_eq!(lines(&files(&status).groups), ["team 65 Some(0) missed"]);
    status.tenants[2].period_operations_per_second = 30;
    assert_eq!(lines(&files(&status).groups), ["team 70 Some(0) met"]);
    status.tenants[2].limit_operations_per_second = None;
    assert_eq!(lines(&files(&status).groups), ["team 70 Some(0) missed"]);
    status.tenants[1].period_operations_per_second = 70;
    assert_eq!(lines(&files(&status).groups), ["team 100 Some(0) met"]);
}

#[test]
fn a_policy_without_resources_has_no_accounts() {
    let policy = Policy::parse("[[tenant]]\nname = \"oltp\"\nlimit = \"5 iops\"").unwrap();
    let waits = RecentWaits { stages: Vec::new(), nodes: Vec::new() };
    assert_eq!(resources(&policy, &status(), &waits), []);
}
