//! Nodes that say what cannot be, and nodes that come and go all the time: what it does to others.

use std::collections::VecDeque;
use tidegate_model::{Event, PeriodNumber, Policy, Span, Time};
use tidegate_proto::cluster::message::{FromNode, Grant, NodeInfo, NodeReport, ToNode};
use tidegate_proto::cluster::{NodeSetup, Setup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, ToPeer};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_sim::cluster::ClusterTestbed;
use tidegate_sim::simulation::Fault;

use crate::{MS, slow};

const POLICY: &str = "period = \"1s\"\nredistribute = \"200ms\"\n\
    tenant = [{ name = \"gold\", reservation = \"1k iops\", limit = \"2k iops\" }]";

/// The hello of a node.
fn hello(info: NodeInfo) -> Hello {
    Hello::Node { version: VERSION, info }
}

/// The messages to all nodes.
fn sent(cluster: &mut Controller) -> VecDeque<ToNode> {
    let mut sent = VecDeque::new();
    while let Some(output) = cluster.poll_output() {
        if let Output::Send { message: ToPeer::Node(message), .. } = output {
            sent.push_back(message);
        }
    }
    sent
}

/// Lets a second pass in which a node answers every question, as of this serial. The grants.
fn answer(cluster: &mut Controller, from: Time, node: ConnectionId, serial: u64) -> Vec<Grant> {
    let mut grants = Vec::new();
    for tick in 0..200 {
        let now = from.after(Span(tick * 5 * MS));
        cluster.on_deadline(now);
        for message in sent(cluster) {
            match message {
                ToNode::Collect { round_id, .. } => {
                    let report =
                        NodeReport { revision: 1, round_id, serial, ..NodeReport::default() };
                    cluster.on_message(now, node, FromPeer::Node(FromNode::Report(report)));
                }
                ToNode::Grant(grant) => grants.push(grant),
                _ => {}
            }
        }
    }
    grants
}

#[test]
fn an_impossible_serial_stops_no_node_and_ends_with_its_process() {
    let nodes = vec![NodeSetup { name: "a".into(), ..NodeSetup::default() }];
    let setup = Setup { nodes, is_first: true, ..Setup::default() };
    let policy = Policy::parse(POLICY).unwrap();
    let mut cluster = Controller::of_nodes(Time::ZERO, setup, Some((1, policy)));
    let info = NodeInfo { name: "a".into(), ..NodeInfo::default() };
    cluster.on_hello(Time::ZERO, ConnectionId(1), Peer::default(), hello(info.clone()));
    answer(&mut cluster, Time::ZERO, ConnectionId(1), u64::MAX);
    let later = Time(Span::SECOND.0);
    cluster.on_hello(later, ConnectionId(2), Peer::default(), hello(info));
    let grants = answer(&mut cluster, later, ConnectionId(2), 0);
    assert_eq!(grants[0].serial, 1, "a new process has taken nothing yet");
    assert!(grants.iter().is_sorted_by(|a, b| a.serial < b.serial));
}

#[test]
fn nodes_that_come_and_go_silence_no_other_node() {
    let mut world = ClusterTestbed::new(POLICY, 1000, 4);
    // A question and its answer take less than half of what a round waits for them.
    world.links(slow(8, 8));
    for _ in 0..100 {
        (0..3).for_each(|node| world.befall(Fault::Hangs(node)));
        world.run(Span(15 * MS));
    }
    let silent = Event::NodeSilent { node: "n3".into(), is_silent: true };
    assert!(!world.events().contains(&silent), "it answered each question in time");
}

/// Nodes on a machine with a busy disk answer after the next round has begun.
#[test]
fn nodes_that_answer_late_are_not_silent() {
    let mut world = ClusterTestbed::new(POLICY, 1000, 2);
    world.run(Span(2 * Span::SECOND.0));
    world.links(slow(120, 140));
    world.run(Span(5 * Span::SECOND.0));
    let is_silent = |event: &Event| matches!(event, Event::NodeSilent { is_silent: true, .. });
    assert!(!world.events().iter().any(is_silent), "they answered every question");
}

#[test]
fn a_node_is_silent_once_it_has_answered_nothing_for_a_second() {
    let mut world = ClusterTestbed::new(POLICY, 1000, 2);
    world.run(Span(2 * Span::SECOND.0));
    let is_silent = |world: &ClusterTestbed| world.status().nodes[0].is_silent;
    world.befall(Fault::Cut(0, true));
    world.run(Span(900 * MS));
    assert!(!is_silent(&world), "a machine may be busy for so long");
    // A node at which nothing happens is asked once a period, of a second.
    world.run(Span(1_300 * MS));
    assert!(is_silent(&world));
    world.befall(Fault::Cut(0, false));
    world.run(Span(600 * MS));
    assert!(!is_silent(&world));
}

/// A controller that slept through the end of a period learns what happened since as of the
/// period in which it happened: what a process may have used of a limit there is used.
#[test]
fn a_process_that_ended_while_the_controller_slept_used_its_part() {
    let node = |name: &str| NodeSetup { name: name.into(), ..NodeSetup::default() };
    let setup = Setup { nodes: vec![node("a"), node("b")], is_first: true, ..Setup::default() };
    let policy = Policy::parse(POLICY).unwrap();
    let mut cluster = Controller::of_nodes(Time::ZERO, setup, Some((1, policy)));
    let info = |name: &str| NodeInfo { name: name.into(), ..NodeInfo::default() };
    for (number, name) in [(1, "a"), (2, "b")] {
        cluster.on_hello(Time::ZERO, ConnectionId(number), Peer::default(), hello(info(name)));
    }
    let second = Time(Span::SECOND.0);
    let mut allowed = [0; 2];
    let mut now = Time::ZERO;
    while now < second.after(Span(900 * MS)) {
        now = now.after(Span(5 * MS));
        let is_asleep = (995..1100).contains(&(now.0 / MS));
        if now == second.after(Span(100 * MS)) {
            // Meanwhile it began the period, used what it had, and was started again.
            cluster.on_hello(now, ConnectionId(3), Peer::default(), hello(info("a")));
        } else if !is_asleep {
            cluster.on_deadline(now);
        }
        while let Some(output) = cluster.poll_output() {
            let Output::Send { to, message: ToPeer::Node(message) } = output else { continue };
            let reply = match message {
                ToNode::Collect { round_id, .. } => {
                    FromNode::Report(NodeReport { revision: 1, round_id, ..NodeReport::default() })
                }
                ToNode::Grant(grant) => {
                    let node = usize::from(to == ConnectionId(2));
                    let is_new = to == ConnectionId(3);
                    if grant.round_id.period == PeriodNumber(1) {
                        let used = if is_new { 1000 } else { 0 };
                        allowed[node] = grant.shares[0].allowed + used;
                    }
                    let Grant { revision, serial, shares, .. } = grant;
                    FromNode::Granted { revision, serial, bytes: shares.clone(), shares }
                }
                _ => continue,
            };
            cluster.on_message(now, to, FromPeer::Node(reply));
        }
    }
    assert!(allowed[1] > 0 && allowed.iter().sum::<u64>() <= 2000, "{allowed:?} of 2000");
}
