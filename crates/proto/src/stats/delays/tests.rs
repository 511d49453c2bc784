#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::string::ToString;

use proptest::prelude::*;
use tidegate_model::policy::GateKind;
use tidegate_model::{NodeId, Policy};

use super::*;
use crate::cluster::status::{ClusterTenant, NodeStatus, TenantAtNode};
use crate::session::PeerId;
use crate::stats::message::NodeCounts;

const POLICY: &str = r#"
    [[tenant]]
    name = "oltp"
    reservation = "10k iops"
    [[tenant]]
    name = "backup"
    limit = "2k iops"
    [[tenant]]
    name = "web"
    weight = 300
    [[tenant]]
    name = "batch"
"#;

const OLTP: TenantIndex = TenantIndex(0);
const BACKUP: TenantIndex = TenantIndex(1);
const WEB: TenantIndex = TenantIndex(2);
const BATCH: TenantIndex = TenantIndex(3);

fn second(count: u64) -> Time {
    Time(count * Span::SECOND.0)
}

/// Two nodes with a policy, of which one was read at second 0, before any request.
fn stats() -> ClusterStats {
    let mut stats = ClusterStats::new(&["a".into(), "b".into()], &["g".into()]);
    stats.apply(1, &Policy::parse(POLICY).unwrap());
    stats.on_node(second(0), NodeId(0), true);
    stats.on_node_counts(second(0), NodeId(0), NodeCounts { revision: 1, ..NodeCounts::default() });
    stats
}

/// A tenant's counts per second: requests served, and requests that each rule holds.
#[derive(Clone, Copy)]
struct Pace {
    tenant: TenantIndex,
    served: u64,
    limit: u64,
    reservation: u64,
    behind: u64,
    device: u64,
}

const IDLE: Pace =
    Pace { tenant: TenantIndex(0), served: 0, limit: 0, reservation: 0, behind: 0, device: 0 };

/// Ten seconds of a node that serves tenants at these paces, with this many at its store.
fn ten_seconds(discipline: Discipline, in_flight: u32, paces: &[Pace]) -> ClusterStats {
    bounded_ten_seconds(discipline, (in_flight, None), paces)
}

/// The same, with this many at a time that its bound of latency lets there.
fn bounded_ten_seconds(
    discipline: Discipline,
    (in_flight, bound): (u32, Option<u32>),
    paces: &[Pace],
) -> ClusterStats {
    let mut stats = stats();
    for at in 1..=10 {
        let waits = paces.iter().map(|pace| {
            let waits = Waits {
                operations: pace.served * at,
                limit_ns: pace.limit * second(at).0,
                reservation_ns: pace.reservation * second(at).0,
                turn_ns: pace.behind * second(at).0,
                device_ns: pace.device * second(at).0,
            };
            (pace.tenant, waits)
        });
        let counts = NodeCounts {
            revision: 1,
            served: paces.iter().map(|pace| pace.served * at).sum(),
            in_flight,
            depth: 32,
            bound,
            discipline,
            tenants: waits.collect(),
            ..NodeCounts::default()
        };
        stats.on_node_counts(second(at), NodeId(0), counts);
    }
    stats
}

/// The cluster's status: a node that can do 20k operations per second, 10k of which are kept for
/// oltp.
fn status() -> ClusterStatus {
    let there = TenantAtNode { reserved_operations: 10_000, ..TenantAtNode::default() };
    let oltp = ClusterTenant { name: "oltp".into(), nodes: vec![there], ..Default::default() };
    let node = NodeStatus { name: "a".into(), capacity_operations: 20_000, ..Default::default() };
    ClusterStatus {
        period_ns: Span::SECOND.0,
        tenants: vec![oltp],
        nodes: vec![node],
        ..ClusterStatus::default()
    }
}

fn delays_of(stats: &ClusterStats, tenant: &str) -> Delays {
    stats.delays(second(10), tenant, &status()).unwrap()
}

/// The only cause: its rule and its lines.
#[track_caller]
fn cause(stats: &ClusterStats, tenant: &str) -> (WaitRule, String, String) {
    let [cause] = delays_of(stats, tenant).causes.try_into().unwrap();
    assert_eq!(cause.node, "a");
    (cause.rule, cause.why, cause.help)
}

#[test]
fn a_node_that_exceeds_its_declared_capacity_is_not_reported_at_capacity() {
    let pace = Pace { tenant: BATCH, served: 12_000, device: 9, ..IDLE };
    let stats = ten_seconds(Discipline::Token, 32, &[pace]);
    let mut status = status();
    status.nodes[0].capacity_operations = 5_000;
    status.nodes[0].declared_operations_per_second = Some(5_000);
    for (estimate, can) in [(13_000, "13k iops"), (5_000, "12k iops")] {
        status.nodes[0].measured_operations_per_second = Some(estimate);
        stats.fill_status(second(10), &mut status);
        let delays = stats.delays(second(10), "batch", &status).unwrap();
        let did = format!(
            "a did 12k iops (it can do about {can}, and is declared to do 5k iops), 100 % of it"
        );
        assert!(delays.causes[0].why.starts_with(&did), "{}", delays.causes[0].why);
        let measured = status.nodes[0].measured_operations_per_second;
        assert_eq!(measured, Some(estimate.max(12_000)));
    }
}

#[test]
fn delays_cover_the_time_in_which_there_was_demand() {
    let backup = Pace { tenant: BACKUP, served: 1_990, limit: 15, device: 1, ..IDLE };
    let batch = Pace { tenant: BATCH, served: 1_990, ..IDLE };
    let mut stats = ten_seconds(Discipline::Token, 1, &[backup, batch]);
    // For half a minute more backup wants nothing, and batch goes on alone.
    let mut counts = NodeCounts { revision: 1, depth: 32, ..NodeCounts::default() };
    for at in 11..=40 {
        let waits = Waits { operations: 1_990 * at, ..Waits::ZERO };
        let was = Waits {
            operations: 19_900,
            limit_ns: 150 * Span::SECOND.0,
            device_ns: 10 * Span::SECOND.0,
            ..Waits::ZERO
        };
        counts.served = 19_900 + 1_990 * at;
        counts.tenants = [(BACKUP, was), (BATCH, waits)].into();
        stats.on_node_counts(second(at), NodeId(0), counts.clone());
    }
    let delays = stats.delays(second(40), "backup", &status()).unwrap();
    let there = &delays.nodes[0];
    assert_eq!((there.operations_per_second, there.demand_ns), (1_990, 10 * Span::SECOND.0));
    let why = &delays.causes[0].why;
    assert!(why.starts_with("its limit of 2k iops is used up: it got 1.99k iops"), "{why}");
    assert!(why.ends_with("waited for it in 10 of 10 s"), "{why}");
}

#[test]
fn a_wait_that_no_client_notices_needs_no_remedy() {
    let help = || String::from("raise the limit");
    let short = "nothing has to change: that is 505 ns for each request";
    assert_eq!(remedy(50_500, 100, help()), short);
    assert_eq!(remedy(100 * NEGLIGIBLE_NS, 100, help()), help());
    assert_eq!(remedy(0, 0, help()), help());
}

#[test]
fn a_limit_is_used_up_or_met_by_bursts() {
    let backup = Pace { tenant: BACKUP, served: 1_990, limit: 15, device: 1, ..IDLE };
    let stats = ten_seconds(Discipline::Token, 1, &[backup]);
    let (rule, why, help) = cause(&stats, "backup");
    assert_eq!(rule, WaitRule::Limit);
    let used_up = "its limit of 2k iops is used up: it got 1.99k iops, and requests waited for it \
                   in 10 of 10 s";
    assert_eq!(
        (why.as_str(), help.as_str()),
        (used_up, "raise the limit; it asks for more than that")
    );
    let delays = delays_of(&stats, "backup");
    assert_eq!((delays.span_ns, delays.waits.operations), (second(10).0, 19_900));
    // 16 requests at a time, 1,990 per second.
    assert_eq!(delays.mean_ns, Some(16 * Span::SECOND.0 / 1_990));
    assert_eq!(delays.causes[0].permille, 937);

    let bursts = Pace { served: 400, ..backup };
    let (_, why, help) = cause(&ten_seconds(Discipline::Token, 1, &[bursts]), "backup");
    assert!(why.contains("spread evenly over time") && why.contains("it got 400 iops"), "{why}");
    assert_eq!(help, "raise the limit, or send requests more evenly");
}

#[test]
fn limits_in_bytes_and_of_groups_are_named() {
    let policy = r#"
        [[resource]]
        name = "cluster"
        [[group]]
        name = "nightly"
        on.cluster.limit = "9k iops"
        [[tenant]]
        name = "oltp"
        [[tenant]]
        name = "backup"
        group = "nightly"
        on.cluster.limit = ["2k iops", "16MiB/s"]
    "#;
    let backup = Pace { tenant: BACKUP, served: 500, limit: 15, device: 1, ..IDLE };
    let mut stats = ten_seconds(Discipline::Token, 1, &[backup]);
    stats.apply(2, &Policy::parse(policy).unwrap().at(GateKind::Node));
    let (rule, why, help) = cause(&stats, "backup");
    assert_eq!(rule, WaitRule::Limit);
    let limits = "one of its limits is used up, 2k iops, 16 MiB/s and 9k iops of group nightly: \
                  requests waited for it in 10 of 10 s";
    assert_eq!(why, limits);
    assert!(help.starts_with("raise that limit"), "{help}");
}

#[test]
fn reservations_that_go_first_are_named_and_what_is_left_to_reserve() {
    let oltp = Pace { tenant: OLTP, served: 9_000, device: 3, ..IDLE };
    let batch = Pace { tenant: BATCH, served: 1_000, reservation: 9, device: 1, ..IDLE };
    let stats = ten_seconds(Discipline::Token, 32, &[oltp, batch]);
    let causes = delays_of(&stats, "batch").causes;
    assert_eq!([causes[0].rule, causes[1].rule], [WaitRule::Reservation, WaitRule::Device]);
    let first = "reservations of others go first at a: oltp (10k iops reserved, 9k iops served)";
    assert_eq!(causes[0].why, first);
    let help = "give it a reservation of its own, or lower theirs; 10k iops of what a can do are \
                not reserved";
    assert_eq!(causes[0].help, help);
}

#[test]
fn fair_shares_follow_weights_where_the_scheduler_has_them() {
    let web = Pace { tenant: WEB, served: 7_500, behind: 1, device: 30, ..IDLE };
    let batch = Pace { tenant: BATCH, served: 2_500, behind: 20, device: 1, ..IDLE };
    let (rule, why, help) = cause(&ten_seconds(Discipline::Sfq, 32, &[web, batch]), "batch");
    assert_eq!(rule, WaitRule::Turn);
    let weights = "it takes turns at a with web (300); its weight of 100 is 25 % of all weights, \
                   and it got 25 % of what was served";
    assert_eq!(
        (why.as_str(), help.as_str()),
        (weights, "a weight of 200 would be 40 % of all weights")
    );
    let (_, why, help) = cause(&ten_seconds(Discipline::Unified, 32, &[web, batch]), "batch");
    assert_eq!(why, weights, "it was served nowhere else");
    assert!(help.ends_with("; a reservation would go before turns"), "{help}");
    let (_, why, help) = cause(&ten_seconds(Discipline::Fifo, 32, &[web, batch]), "batch");
    let fifo = "a serves in the order of arrival, beside it web; it got 25 % of what was served";
    assert_eq!(
        (why.as_str(), help.as_str()),
        (fifo, "a scheduler that heeds weights, as `unified` does")
    );
    let (_, why, _) = cause(&ten_seconds(Discipline::RoundRobin, 32, &[batch]), "batch");
    assert!(why.contains("one request of each in turn, beside it requests of no tenant"), "{why}");
}

#[test]
fn service_at_other_nodes_counts_where_the_scheduler_observes_it() {
    let web = Pace { tenant: WEB, served: 3_000, ..IDLE };
    let batch = Pace { tenant: BATCH, served: 1_000, behind: 20, ..IDLE };
    let mut stats = ten_seconds(Discipline::DsfqTotal, 32, &[web, batch]);
    let there = NodeId(1);
    stats.on_node(second(0), there, true);
    for at in 0..=10 {
        let batch = Waits { operations: 3_000 * at, ..Waits::ZERO };
        let tenants = vec![(BATCH, batch)];
        let counts = NodeCounts { revision: 1, served: 3_000 * at, tenants, ..Default::default() };
        stats.on_node_counts(second(at), there, counts);
    }
    let (_, why, help) = cause(&stats, "batch");
    assert!(why.ends_with("; 75 % of what it got was at other nodes, which counts here"), "{why}");
    assert_eq!(help, "a weight of 200 would be 40 % of all weights");
    assert_eq!(delays_of(&stats, "batch").nodes[1].operations_per_second, 3_000);
}

#[test]
fn a_device_is_full_of_ones_own_or_of_others_or_not_at_all() {
    let batch = Pace { tenant: BATCH, served: 18_000, device: 40, ..IDLE };
    let web = Pace { tenant: WEB, served: 2_000, device: 4, ..IDLE };
    let full = ten_seconds(Discipline::Token, 32, &[batch, web]);
    let (rule, why, help) = cause(&full, "batch");
    assert_eq!(rule, WaitRule::Device);
    let busy = "a did 20k iops (it can do about 20k iops), 90 % of it for this tenant; its store \
                was full, with 32 requests at a time, in 10 of 10 s";
    assert_eq!(why, busy);
    assert!(help.starts_with("it waits behind its own requests"), "{help}");
    assert!(cause(&full, "web").2.starts_with("less load there"));
    let (_, why, help) = cause(&ten_seconds(Discipline::Token, 5, &[batch]), "batch");
    assert_eq!(why, "node a was seldom full: this is the time that its store takes");
    assert_eq!(help, "a faster store");
}

/// Requests that come at once wait for each other between two readings of the store.
#[test]
fn a_request_that_is_mostly_behind_ones_own_is_not_put_down_to_the_store() {
    let batch = Pace { tenant: BATCH, served: 18_000, device: 4, ..IDLE };
    let mut stats = ten_seconds(Discipline::Token, 5, &[batch]);
    let indexes = stats.indexes.clone();
    let later = PathTimes { requests: 9, gateway_ns: 10, link_ns: 12, queue_ns: 68, store_ns: 10 };
    for (at, times) in [(8, PathTimes::default()), (9, later)] {
        stats.gateways[0].on_paths(second(at), vec![("batch".into(), times)], &indexes);
    }
    let (_, why, help) = cause(&stats, "batch");
    let expected = "over gateways 68 % of a request's time it waits at nodes behind its own \
                    requests, 10 % is the store's";
    assert_eq!(why, expected);
    assert!(
        help.starts_with("ask for fewer at a time, or let more of them to the store"),
        "{help}"
    );
}

/// A node's store is full with as many requests as its bound of latency lets there.
#[test]
fn a_store_is_full_at_its_bound_of_latency() {
    let batch = Pace { tenant: BATCH, served: 900, device: 9, ..IDLE };
    let other = Pace { tenant: WEB, served: 900, device: 9, ..IDLE };
    let all = "with 32 requests at a time";
    let some = "with 4 of 32 requests at a time, as its bound of latency lets there now";
    for (bound, expected) in [(Some(4), some), (Some(32), all), (None, all)] {
        let there = (bound.unwrap_or(32), bound);
        let stats = bounded_ten_seconds(Discipline::Token, there, &[batch, other]);
        let (rule, why, help) = cause(&stats, "batch");
        assert_eq!(rule, WaitRule::Device);
        assert!(why.ends_with(&format!("its store was full, {expected}, in 10 of 10 s")), "{why}");
        assert_eq!(help.contains("a higher bound of latency"), expected == some, "{help}");
    }
    // With the whole depth free it was not full.
    let stats = bounded_ten_seconds(Discipline::Token, (4, Some(32)), &[batch]);
    assert!(cause(&stats, "batch").1.contains("was seldom full"));
}

/// A faster store would change little.
#[test]
fn a_request_that_is_mostly_on_its_way_is_not_put_down_to_the_store() {
    let batch = Pace { tenant: BATCH, served: 18_000, device: 4, ..IDLE };
    let mut stats = ten_seconds(Discipline::Token, 5, &[batch]);
    let indexes = stats.indexes.clone();
    let later = PathTimes { requests: 9, gateway_ns: 10, link_ns: 46, queue_ns: 4, store_ns: 40 };
    for (at, times) in [(8, PathTimes::default()), (9, later)] {
        stats.gateways[0].on_paths(second(at), vec![("batch".into(), times)], &indexes);
    }
    let (_, _, help) = cause(&stats, "batch");
    let expected = "a change at nodes helps little: of a request over gateways 56 % of the time is \
                    the way to the node and back, and 40 % is the store's";
    assert_eq!(help, expected);
}

#[test]
fn an_idle_tenant_has_no_delays_and_an_unknown_tenant_is_an_error() {
    let stats = ten_seconds(Discipline::Token, 0, &[]);
    let idle = Delays { tenant: "web".into(), span_ns: second(10).0, ..Delays::default() };
    assert_eq!(delays_of(&stats, "web"), idle);
    let error = stats.delays(second(10), "wbe", &status()).unwrap_err();
    let known = "the policy has no tenant \"wbe\"; it has oltp, backup, web and batch";
    assert_eq!(error.to_string(), known);
    let none =
        ClusterStats::new(&["a".into()], &[]).delays(second(0), "web", &status()).unwrap_err();
    assert!(none.to_string().starts_with("no tenant is in the policy"), "{none}");
}

#[derive(Clone, Debug)]
enum StatsStep {
    /// It serves so many requests, and is read so many seconds later.
    Serves(u64, u64),
    /// Its process ends, and another begins and is read.
    Dies,
    /// Another policy with the same tenants in another order holds, and the first again.
    Applies,
}

fn steps() -> impl Strategy<Value = Vec<StatsStep>> {
    let step = prop_oneof![
        30 => (0_u64..100, 1_u64..4).prop_map(|(count, apart)| StatsStep::Serves(count, apart)),
        1 => (0_u64..100, 4_u64..90).prop_map(|(count, apart)| StatsStep::Serves(count, apart)),
        1 => Just(StatsStep::Dies),
        1 => Just(StatsStep::Applies),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    /// Whatever happens, a minute has all that was counted in its last 55 seconds, nothing that
    /// began before it, and nothing from times without readings.
    #[test]
    fn a_minute_is_the_last_one(steps in steps()) {
        let mut stats = stats();
        let (mut now, mut revision, mut count) = (0, 1, 0);
        // When each reading's time began, and what was added in it.
        let mut added: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            match step {
                StatsStep::Serves(more, apart) => {
                    count += more;
                    if apart <= 3 {
                        added.push((now, more));
                    }
                    now += apart;
                    let waits = Waits { operations: count, turn_ns: 7 * count, ..Waits::ZERO };
                    let counts = NodeCounts {
                        revision,
                        served: count,
                        tenants: vec![(OLTP, waits)],
                        ..NodeCounts::default()
                    };
                    stats.on_node_counts(second(now), NodeId(0), counts);
                }
                StatsStep::Dies => {
                    stats.on_closed(PeerId::Node(NodeId(0)), "it is gone");
                    count = 0;
                    stats.on_node(second(now), NodeId(0), true);
                }
                StatsStep::Applies => {
                    let other = "tenant = [{ name = \"z\" }, { name = \"oltp\" }]";
                    let other = Policy::parse(other);
                    stats.apply(revision + 1, &other.unwrap());
                    revision += 2;
                    stats.apply(revision, &Policy::parse(POLICY).unwrap());
                }
            }
            let delays = stats.delays(second(now), "oltp", &status()).unwrap();
            let since = |back: u64| -> u64 {
                let kept = added.iter().filter(|(began, _)| began + back >= now);
                kept.map(|(_, count)| count).sum()
            };
            prop_assert!(delays.span_ns <= second(60).0);
            prop_assert!((since(55)..=since(60)).contains(&delays.waits.operations), "{delays:?}");
            prop_assert_eq!(delays.waits.turn_ns, 7 * delays.waits.operations);
        }
    }
}
