#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use super::*;
use crate::message::{Hello, VERSION};
use alloc::vec;
use core::fmt::Debug;
use serde::de::DeserializeOwned;
use tidegate_model::Discipline;

/// Says that `message` is these bytes, and these bytes are `message`.
fn is<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M, golden: &[u8]) {
    assert_eq!(postcard::to_allocvec(message).unwrap(), golden, "{message:?}");
    assert_eq!(&postcard::from_bytes::<M>(golden).unwrap(), message);
}

const ROUND_ID: RoundId = RoundId { period: PeriodNumber(300), round: 4 };

fn shares() -> Vec<Share> {
    vec![
        Share { tenant: TenantIndex(0), reserved: 1, allowed: u64::MAX },
        Share { tenant: TenantIndex(200), reserved: 0, allowed: 128 },
    ]
}

#[test]
fn golden_bytes_of_a_node_s_hello() {
    assert_eq!(VERSION, 10, "a new version needs new golden bytes beside these");
    let info = NodeInfo {
        name: "n1".into(),
        pid: 300,
        host: "h".into(),
        release: "0.1".into(),
        revision: 2,
    };
    let golden = b"\x02\x01\x02n1\xac\x02\x01h\x030.1\x02";
    is(&Hello::Node { version: 1, info }, golden);
}

#[test]
fn golden_bytes_from_a_controller() {
    assert_eq!(VERSION, 10, "a new version needs new golden bytes beside these");
    is(&ToNode::Welcome { version: 1, node: NodeId(130) }, &[0, 1, 0x82, 1]);
    let refused = ToNode::Refused { version: 2, reason: "no".into(), retry: true };
    is(&refused, b"\x01\x02\x02no\x01");
    let tenant = |name: &str, weight, is_limited| TenantPlan {
        name: name.into(),
        weight,
        is_limited,
        minimum_ppm: 100,
        bytes: None,
    };
    let bytes = BytePlan { reserves_operations: true, is_reserved: false, is_limited: true };
    let plan = Plan {
        revision: 7,
        period: Span(300),
        rounds: 5,
        fallback: Fallback::Reservation,
        discipline: Some(Discipline::Unified),
        class_weights: ClassWeights::new(3, 2, 200),
        capacity: [Some(300), None],
        tenants: vec![
            TenantPlan { bytes: Some(bytes), ..tenant("kv", 100, true) },
            tenant("b", 1_000_000, false),
        ],
    };
    let golden = b"\x02\x07\xac\x02\x05\x01\x01\x06\x01\x03\x02\xc8\
                   \x01\xac\x02\x00\
                   \x02\x02kv\x64\x01\x64\x01\x01\x00\x01\x01b\xc0\x84\x3d\x00\x64\x00";
    is(&ToNode::Plan(plan), golden);
    let collect = ToNode::Collect { round_id: ROUND_ID, into: Span(1_000), complete: true };
    is(&collect, &[3, 0xac, 2, 4, 0xe8, 7, 1]);
    let grant = Grant {
        revision: 7,
        round_id: ROUND_ID,
        serial: 9,
        into: Span(1),
        lease: 2,
        shares: shares(),
        bytes: vec![Share { tenant: TenantIndex(1), reserved: 2, allowed: 3 }],
    };
    #[rustfmt::skip]
    let golden = [
        4, 7, 0xac, 2, 4, 9, 1, 2,
        2, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0xc8, 1, 0, 0x80, 1,
        1, 1, 2, 3,
    ];
    is(&ToNode::Grant(grant), &golden);
    let grant = Grant {
        revision: 7,
        round_id: ROUND_ID,
        serial: 9,
        into: Span(0),
        lease: 2,
        shares: vec![],
        bytes: vec![],
    };
    is(&ToNode::Renew { base: 300, grant }, &[6, 0xac, 2, 7, 0xac, 2, 4, 9, 0, 2, 0, 0]);
}

#[test]
fn golden_bytes_from_a_node() {
    assert_eq!(VERSION, 10, "a new version needs new golden bytes beside these");
    let report = NodeReport {
        revision: 7,
        round_id: ROUND_ID,
        serial: 9,
        capacity_left: 128,
        tenants: vec![TenantReport {
            tenant: TenantIndex(1),
            served: 2,
            expected: 129,
            waiting: 1,
            is_elastic: true,
        }],
        before: vec![(TenantIndex(0), 5), (TenantIndex(200), 1)],
        bytes: vec![TenantReport {
            tenant: TenantIndex(1),
            served: 2,
            expected: 3,
            waiting: 1,
            is_elastic: false,
        }],
        bytes_before: vec![(TenantIndex(0), 5)],
    };
    #[rustfmt::skip]
    let golden = [
        0, 7, 0xac, 2, 4, 9, 0x80, 1,
        1, 1, 2, 0x81, 1, 1, 1,
        2, 0, 5, 0xc8, 1, 1,
        1, 1, 2, 3, 1, 0,
        1, 0, 5,
    ];
    is(&FromNode::Report(report), &golden);
    let granted = FromNode::Granted { revision: 7, serial: 9, shares: shares(), bytes: vec![] };
    #[rustfmt::skip]
    let golden = [
        1, 7, 9,
        2, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0xc8, 1, 0, 0x80, 1,
        0,
    ];
    is(&granted, &golden);
    is(&FromNode::Disconnect, &[2]);
    let rest = FromNode::Rest { revision: 7, round_id: ROUND_ID, serial: 9, capacity_left: 128 };
    is(&rest, &[5, 7, 0xac, 2, 4, 9, 0x80, 1]);
    is(&FromNode::Awake, &[6]);
    is(&FromNode::Unrenewed { revision: 7, serial: 300 }, &[7, 7, 0xac, 2]);
    let fault = PartFault { volume: "v".into(), index: 300, reason: "x".into() };
    is(&FromNode::Faults(vec![fault]), b"\x04\x01\x01v\xac\x02\x01x");
    is(&FromNode::StoreFault(Some("x".into())), b"\x08\x01\x01x");
    is(&FromNode::StoreFault(None), &[8, 0]);
    is(&FromNode::CapacityKnown(true), &[10, 1]);
}
