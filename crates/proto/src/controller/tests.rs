//! A controller accepts gateways and replaces them; the laws are in `tests/controller`.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::vec;

use tidegate_model::Span;

use super::*;
use crate::message::{FromGateway, ProcessId, StageInfo, VERSION};
use crate::stats::message::{AnsweredRequests, GatewayCounts};

const LINK: ConnectionId = ConnectionId(1);

/// With a gateway.
fn controller() -> Controller {
    let cluster = Some(cluster::Setup::default());
    let gateways = vec!["front".into()];
    Controller::new(Time::ZERO, Setup { cluster, gateways, ..Setup::default() }, None)
}

fn hello(version: u16, name: &str) -> Hello {
    Hello::Gateway { version, name: name.into() }
}

fn outputs(controller: &mut Controller) -> Vec<Output> {
    core::iter::from_fn(|| controller.poll_output()).collect()
}

fn counts(requests: u64) -> FromPeer {
    let flow = AnsweredRequests { name: "db".into(), requests, ..AnsweredRequests::default() };
    let counts = GatewayCounts { started_ms: 1, volumes: vec![flow], ..GatewayCounts::default() };
    FromPeer::Gateway(FromGateway::Counts(counts))
}

#[test]
fn a_gateway_that_the_cluster_does_not_have_is_refused() {
    let mut controller = controller();
    for (version, name, why) in [(VERSION + 1, "front", "same release"), (VERSION, "x", "\"x\"")] {
        controller.on_hello(Time::ZERO, LINK, Peer::default(), hello(version, name));
        let [refused, close, event] = outputs(&mut controller).try_into().unwrap();
        let Output::Send { message: ToPeer::Gateway(ToGateway::Refused { reason, .. }), .. } =
            refused
        else {
            panic!("{refused:?}")
        };
        assert!(reason.contains(why), "{reason}");
        assert_eq!(close, Output::Close { connection: LINK });
        assert_eq!(event, Output::Event(Event::GatewayRefused { gateway: name.into(), reason }));
    }
    let gateways = controller.sessions.gateways().count();
    assert_eq!((gateways, controller.stats.next_deadline()), (0, Time::MAX));
}

#[test]
fn a_new_connection_replaces_the_old_one() {
    let (mut controller, second) = (controller(), Time(Span::SECOND.0));
    controller.on_hello(Time::ZERO, LINK, Peer::default(), hello(VERSION, "front"));
    outputs(&mut controller);
    controller.on_hello(second, ConnectionId(2), Peer::default(), hello(VERSION, "front"));
    let outputs = outputs(&mut controller);
    assert_eq!(outputs[0], Output::Close { connection: LINK });
    assert!(matches!(&outputs[1], Output::Event(Event::GatewayLeft { .. })), "{outputs:?}");
    assert!(controller.sessions.gateways().eq([ConnectionId(2)]));
    controller.on_closed(second, LINK, "the old one");
    controller.on_message(second, LINK, counts(9));
    assert!(controller.sessions.gateways().eq([ConnectionId(2)]));
    let requests =
        |controller: &Controller| controller.status(second).cluster.unwrap().gateways[0].requests;
    assert_eq!(requests(&controller), 0);
    controller.on_message(second, ConnectionId(2), counts(9));
    assert_eq!(requests(&controller), 9);
}

#[test]
fn a_message_of_another_kind_than_the_hello_is_ignored() {
    let mut controller = controller();
    controller.on_hello(Time::ZERO, LINK, Peer::default(), hello(VERSION, "front"));
    outputs(&mut controller);
    controller.on_message(Time::ZERO, LINK, FromPeer::Node(FromNode::Disconnect));
    assert_eq!(outputs(&mut controller), []);
    controller.on_message(Time::ZERO, LINK, FromPeer::Gateway(FromGateway::Disconnect));
    assert_eq!(outputs(&mut controller)[0], Output::Close { connection: LINK });
}

#[test]
fn gateways_of_the_machine_receive_programs_and_their_end() {
    let policy = tidegate_model::Policy::parse("[[tenant]]\nname = \"kv\"").unwrap();
    let gateways = vec!["front".into(), "far".into()];
    let setup = Setup { gateways, space: "machine".into(), ..Setup::default() };
    let mut controller = Controller::new(Time::ZERO, setup, Some((1, policy)));
    let far = Peer { certificate: Some(vec!["far".into()]), ..Peer::default() };
    controller.on_hello(Time::ZERO, ConnectionId(5), far, hello(VERSION, "far"));
    controller.on_hello(Time::ZERO, LINK, Peer::default(), hello(VERSION, "front"));
    let programs = |controller: &mut Controller| {
        let of_programs = |output| match output {
            Output::Send {
                to,
                message: ToPeer::Gateway(ToGateway::Programs { is_first, joined, left, .. }),
            } => {
                assert_eq!(to, LINK);
                let tenants: Vec<_> = joined.into_iter().map(|it| it.tenant).collect();
                Some((is_first, tenants, left.len()))
            }
            _ => None,
        };
        outputs(controller).into_iter().filter_map(of_programs).collect::<Vec<_>>()
    };
    assert_eq!(programs(&mut controller), [(true, vec![], 0)]);
    let process = Some(ProcessId { pid: 7, started: 1 });
    let program = Peer { pid: 7, process, ..Peer::default() };
    let stage = |tenant: &str| {
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        Hello::Stage { version: VERSION, info }
    };
    controller.on_hello(Time::ZERO, ConnectionId(2), program.clone(), stage("no such"));
    assert_eq!(programs(&mut controller), [], "it was refused");
    controller.on_hello(Time::ZERO, ConnectionId(3), program, stage("kv"));
    assert_eq!(programs(&mut controller), [(false, vec!["kv".into()], 0)]);
    controller.on_hello(Time::ZERO, ConnectionId(6), Peer::default(), hello(VERSION, "front"));
    controller.on_closed(Time::ZERO, ConnectionId(6), "it is gone");
    outputs(&mut controller);
    controller.on_hello(Time::ZERO, LINK, Peer::default(), hello(VERSION, "front"));
    assert_eq!(programs(&mut controller), [(true, vec!["kv".into()], 0)]);
    controller.on_closed(Time::ZERO, ConnectionId(3), "it is gone");
    assert_eq!(programs(&mut controller), [(false, vec![], 1)]);
}
