//! As many tenants as a policy may have, with the longest names and the largest numbers: whatever
//! nodes, gateways, data nodes and their controller say of all of them arrives.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_model::policy::Fallback;
use tidegate_model::{Bytes, ClassWeights, Iops, PeriodNumber, Policy, Span, TenantIndex, Waits};
use tidegate_proto::cluster::message::{
    BytePlan, FromNode, Grant, NodeReport, PartFault, Plan, RoundId, Share, TenantPlan,
    TenantReport, ToNode,
};
use tidegate_proto::codec::{Decoder, FRAME_MAX, encode_pages};
use tidegate_proto::data_node;
use tidegate_proto::message::{FromGateway, ToGateway};
use tidegate_proto::stats::latency::{BUCKETS, LatencyCounts, RequestLatency};
use tidegate_proto::stats::message::{AnsweredRequests, GatewayCounts, NodeCounts, NodeLatency};

/// The most tenants of a policy.
const TENANTS: u16 = 60_000;
const MOST: u64 = u64::MAX;
const ROUND_ID: RoundId = RoundId { period: PeriodNumber(MOST), round: u32::MAX };

/// A name of 63 bytes, which is the longest.
fn name(at: TenantIndex) -> String {
    format!("{:063}", at.0)
}

fn each<T>(make: impl Fn(TenantIndex) -> T) -> Vec<T> {
    (0..TENANTS).map(TenantIndex).map(make).collect()
}

/// Whether `message` arrives, through a stream that is cut anywhere. Says how long it is.
fn arrives<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M) -> usize {
    let mut bytes = Vec::new();
    encode_pages(message, &mut bytes).unwrap();
    let (mut decoder, mut received) = (Decoder::<M>::of_pages(), None);
    for piece in bytes.chunks(65_536) {
        decoder.extend(piece);
        while let Some(message) = decoder.next_message().unwrap() {
            assert!(received.replace(message).is_none());
        }
    }
    assert!(received.as_ref() == Some(message), "something else was heard");
    bytes.len()
}

fn shares() -> Vec<Share> {
    each(|tenant| Share { tenant, reserved: MOST, allowed: MOST })
}

fn waits() -> Waits {
    Waits { operations: MOST, limit_ns: MOST, reservation_ns: MOST, turn_ns: MOST, device_ns: MOST }
}

#[test]
fn messages_of_a_controller_and_its_nodes_for_the_largest_policy_arrive() {
    let tenant = |at| TenantPlan {
        name: name(at),
        weight: u32::MAX,
        is_limited: true,
        minimum_ppm: u32::MAX,
        bytes: Some(BytePlan::default()),
    };
    let plan = Plan {
        revision: MOST,
        period: Span(MOST),
        rounds: u32::MAX,
        fallback: Fallback::Unlimited,
        discipline: None,
        class_weights: ClassWeights::new(255, 255, 255),
        capacity: [Some(u64::MAX); 2],
        tenants: each(tenant),
    };
    assert!(arrives(&ToNode::Plan(plan)) > FRAME_MAX, "it comes in pages");
    let (revision, serial) = (MOST, MOST);
    let grant = Grant {
        revision,
        round_id: ROUND_ID,
        serial,
        into: Span(MOST),
        lease: u32::MAX,
        shares: shares(),
        bytes: shares(),
    };
    arrives(&ToNode::Grant(grant.clone()));
    arrives(&ToNode::Renew { base: MOST, grant });
    arrives(&FromNode::Granted { revision, serial, shares: shares(), bytes: shares() });
    let report = |tenant| TenantReport {
        tenant,
        served: MOST,
        expected: MOST,
        waiting: MOST,
        is_elastic: true,
    };
    let report = NodeReport {
        revision,
        round_id: ROUND_ID,
        serial,
        capacity_left: MOST,
        tenants: each(report),
        bytes: each(report),
        before: each(|tenant| (tenant, MOST)),
        bytes_before: each(|tenant| (tenant, MOST)),
    };
    arrives(&FromNode::Report(report));
    let tenants = each(|tenant| (tenant, waits()));
    arrives(&FromNode::Counts(NodeCounts { tenants, ..NodeCounts::default() }));
    let reason = "x".repeat(200);
    let fault = |at| PartFault { volume: name(at), index: u32::MAX, reason: reason.clone() };
    assert!(arrives(&FromNode::Faults(each(fault))) > FRAME_MAX);
}

#[test]
fn messages_of_gateways_and_data_nodes_for_the_largest_policy_arrive() {
    let text = "[[tenant]]\nname = \"t\"\nreservation = \"1M iops\"\nlimit = \"2M iops\"";
    let mut policy = Policy::parse(text).unwrap();
    let tenant = policy.tenants[0].clone();
    policy.tenants = each(|at| {
        let mut tenant = tenant.clone();
        tenant.name = name(at);
        tenant
    });
    let revision = MOST;
    let length = arrives(&ToGateway::Policy { revision, policy: policy.clone() });
    assert!(length > FRAME_MAX, "it comes in pages");
    arrives(&data_node::ToDataNode::Policy { revision, policy });
    let flow = |at| AnsweredRequests { name: name(at), requests: MOST, bytes: MOST, errors: MOST };
    let (volumes, pools, tenants) = (each(flow), each(flow), each(flow));
    let counts = GatewayCounts { volumes, pools, tenants, ..GatewayCounts::default() };
    assert!(arrives(&FromGateway::Counts(counts)) > FRAME_MAX);
    let counts = LatencyCounts { total_ns: MOST, buckets: [MOST; BUCKETS] };
    let latency = |at| RequestLatency { tenant: name(at), operation: "flush".into(), counts };
    assert!(arrives(&FromGateway::Latency(each(latency))) > FRAME_MAX);
    let latency = NodeLatency { requests: each(latency), queued: each(latency) };
    assert!(arrives(&FromNode::Latency(latency)) > FRAME_MAX);
    let grant = data_node::Grant { revision, serial: MOST, shares: shares() };
    arrives(&data_node::ToDataNode::Grant(grant));
    let tenant = |tenant| data_node::TenantReport {
        tenant,
        reserved: MOST,
        allowed: MOST,
        clients: u32::MAX,
        most: MOST,
        done: MOST,
        wants_more: true,
        unmet: Some(MOST),
        operations: MOST,
        missed: MOST,
    };
    let report = data_node::DataNodeReport {
        revision,
        round: MOST,
        capacity: Iops(MOST),
        periods: MOST,
        operations: MOST,
        session_slots: u32::MAX,
        tenants: each(tenant),
        pool: MOST,
        memory: Bytes(MOST),
        used: Bytes(MOST),
    };
    assert!(arrives(&data_node::FromDataNode::Report(report)) > FRAME_MAX);
}
