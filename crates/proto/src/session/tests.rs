#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use tidegate_model::Policy;

use super::*;
use crate::cluster;
use crate::cluster::NodeSetup;
use crate::cluster::split;
use crate::controller::{Controller, Output, Setup};
use crate::data_node;

const MINUTE: Span = Span(60 * Span::SECOND.0);
const STEP: Span = Span(10 * Span::MILLISECOND.0);

/// A process of a peer.
struct Process {
    session: PeerSession,
    peer: Peer,
    connection: Option<ConnectionId>,
    refusals: Vec<String>,
}

/// Two processes of one name, and their controller.
struct Twins {
    controller: Controller,
    now: Time,
    hello: Hello,
    processes: [Process; 2],
    connections: u64,
    /// When one has taken over from the other.
    takeovers: Vec<Time>,
    /// Whether refusals arrive.
    are_refused: bool,
}

impl Twins {
    fn new(hello: Hello, are_refused: bool) -> Self {
        let nodes = vec![NodeSetup { name: "n".into(), ..NodeSetup::default() }];
        let cluster = Some(cluster::Setup { nodes, is_first: true, ..cluster::Setup::default() });
        let data_nodes = vec![split::NodeSetup { name: "d".into(), ..Default::default() }];
        let gateways = vec!["g".into()];
        let setup = Setup { cluster, data_nodes, gateways, ..Setup::default() };
        let policy = Policy::parse("budget = \"1GB/s\"\n[[tenant]]\nname = \"t\"").unwrap();
        let process = |pid| Process {
            session: PeerSession::default(),
            peer: Peer { pid, ..Peer::default() },
            connection: None,
            refusals: Vec::new(),
        };
        Self {
            controller: Controller::new(Time::ZERO, setup, Some((1, policy))),
            now: Time::ZERO,
            hello,
            processes: [process(1), process(2)],
            connections: 0,
            takeovers: Vec::new(),
            are_refused,
        }
    }

    fn hellos() -> [Hello; 3] {
        let (version, info) = (VERSION, NodeInfo { name: "n".into(), ..NodeInfo::default() });
        [
            Hello::Node { version, info },
            Hello::Gateway { version, name: "g".into() },
            Hello::DataNode { version, name: "d".into() },
        ]
    }

    /// Runs for `span`. A process connects `lateness` after it might.
    fn run(&mut self, span: Span, lateness: Span) {
        let until = self.now.after(span);
        while self.now < until {
            for at in 0..2 {
                if self.processes[at].session.next_attempt().after(lateness) <= self.now {
                    self.connect(at);
                }
            }
            self.controller.on_deadline(self.now);
            self.perform();
            self.now = self.now.after(STEP);
        }
    }

    fn connect(&mut self, at: usize) {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let process = &mut self.processes[at];
        process.connection = Some(connection);
        process.session.on_connected();
        let (peer, hello) = (process.peer.clone(), self.hello.clone());
        if self.processes[1 - at].connection.is_some() {
            self.takeovers.push(self.now);
        }
        self.controller.on_hello(self.now, connection, peer, hello);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(output) = self.controller.poll_output() {
            match output {
                Output::Send { to, message } => self.deliver(to, &message),
                Output::Close { connection } => {
                    if let Some(process) = self.process(connection) {
                        process.connection = None;
                    }
                    let now = self.now;
                    let ended = self.processes.iter_mut().filter(|it| it.connection.is_none());
                    let ended = ended.filter(|it| it.session.next_attempt() == Time::MAX);
                    ended.for_each(|process| process.session.on_closed(now));
                }
                Output::Event(_) | Output::Remember(_) => {}
            }
        }
    }

    fn process(&mut self, connection: ConnectionId) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.connection == Some(connection))
    }

    fn deliver(&mut self, to: ConnectionId, message: &ToPeer) {
        let (now, are_refused) = (self.now, self.are_refused);
        let Some(process) = self.process(to) else { return };
        let refusal = match message {
            ToPeer::Node(message) => message.refusal(),
            ToPeer::Gateway(message) => message.refusal(),
            ToPeer::DataNode(message) => message.refusal(),
            ToPeer::Stage(_) => None,
        };
        if let Some((reason, _)) = refusal {
            if !are_refused {
                return;
            }
            process.refusals.push(reason.into());
            process.connection = None;
        }
        match message {
            ToPeer::Node(message) => process.session.on_message(now, message),
            ToPeer::Gateway(message) => process.session.on_message(now, message),
            ToPeer::DataNode(message) => process.session.on_message(now, message),
            ToPeer::Stage(_) => {}
        }
        // A data node that does not answer is disconnected.
        if let ToPeer::DataNode(ToDataNode::Collect { round }) = *message {
            let report = data_node::DataNodeReport {
                revision: 1,
                round,
                ..data_node::DataNodeReport::default()
            };
            let report = FromPeer::DataNode(FromDataNode::Report(report));
            self.controller.on_message(now, to, report);
        }
    }

    fn takeovers_in(&self, begin: Time, span: Span) -> usize {
        let in_it = |at: &&Time| **at >= begin && **at < begin.after(span);
        self.takeovers.iter().filter(in_it).count()
    }

    fn warning(&self) -> Option<TakeoverStatus> {
        let cluster = self.controller.status(self.now).cluster.unwrap();
        let nodes = cluster.nodes.iter().map(|it| &it.takeover);
        let gateways = cluster.gateways.iter().map(|it| &it.takeover);
        let data_nodes = cluster.data_nodes.iter().map(|it| &it.takeover);
        nodes.chain(gateways).chain(data_nodes).find_map(Clone::clone)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// With the refusal each of them comes back once in `REFUSED_WAIT`; without it, once in
    /// `RETRY_MAX`, besides the first few attempts.
    #[test]
    fn two_processes_of_one_name_replace_each_other_seldom(
        kind in 0_usize..3,
        are_refused: bool,
        lateness in 0_u64..500,
    ) {
        let mut twins = Twins::new(Twins::hellos()[kind].clone(), are_refused);
        twins.run(Span(4 * MINUTE.0), Span(lateness * Span::MILLISECOND.0));
        let doublings = 7;
        let most = match are_refused {
            true => 1,
            false => (MINUTE.0 / RETRY_MAX.0) as usize,
        };
        prop_assert!(twins.takeovers.len() > 2, "they are twins");
        for minute in 0..4 {
            let count = twins.takeovers_in(Time(minute * MINUTE.0), MINUTE);
            let first = if minute == 0 { 2 * doublings } else { 0 };
            prop_assert!(count <= most + first, "minute {minute}: {count}");
        }
    }
}

#[test]
fn the_process_that_is_replaced_is_sent_the_reason() {
    for hello in Twins::hellos() {
        let mut twins = Twins::new(hello, true);
        twins.run(Span::SECOND, Span::ZERO);
        let [first, second] = &twins.processes;
        assert_eq!((first.refusals.len(), second.refusals.len()), (1, 0));
        let reason = &first.refusals[0];
        assert!(reason.starts_with("another process uses the name"), "{reason}");
        assert!(reason.contains("process 2") && reason.contains("name of its own"), "{reason}");
        assert_eq!(first.session.standing(), Standing::Refused);
        assert_eq!(second.session.standing(), Standing::Joined);
    }
}

#[test]
fn operators_are_warned_from_the_second_takeover_on_for_a_while() {
    for hello in Twins::hellos() {
        let mut twins = Twins::new(hello, true);
        twins.run(Span::SECOND, Span::ZERO);
        assert_eq!((twins.takeovers.len(), twins.warning()), (1, None), "it may be a restart");
        twins.run(MINUTE, Span::ZERO);
        let warning = twins.warning().unwrap();
        assert_eq!((warning.times, warning.within_ns), (2, 5 * MINUTE.0));
        assert_eq!(
            [&*warning.process, &*warning.earlier],
            ["process 1 on the controller's machine", "process 2 on the controller's machine"]
        );
        // The other one ends for good.
        let hello = twins.hello.clone();
        twins.processes[1].session = PeerSession::default();
        twins.processes[1].session.on_connected();
        twins.run(Span(5 * MINUTE.0), Span::ZERO);
        assert_eq!(twins.warning(), None, "{hello:?}");
    }
}

#[test]
fn a_process_that_connects_anew_takes_nothing_over() {
    for hello in Twins::hellos() {
        let mut twins = Twins::new(hello, true);
        for connection in 1..5 {
            twins.processes[0].connection = None;
            twins.connect(0);
            assert_eq!(twins.processes[0].connection, Some(ConnectionId(connection)));
        }
        assert_eq!((twins.warning(), &twins.processes[0].refusals), (None, &Vec::new()));
    }
}

#[test]
fn the_protocol_identifies_processes_of_other_machines() {
    let [node, gateway, data_node] = Twins::hellos();
    let peer = |address: &str| Peer { address: address.into(), ..Peer::default() };
    let [first, again] = ["10.0.0.1:4000", "10.0.0.1:4001"].map(peer);
    assert_eq!(first.process(&node), "process 0 on  (10.0.0.1)");
    assert_eq!(first.process(&node), again.process(&node), "only the port is another one");
    for hello in [gateway, data_node] {
        assert_eq!(first.process(&hello), "10.0.0.1:4000");
        assert_ne!(first.process(&hello), again.process(&hello));
    }
}

#[test]
fn only_a_connection_that_lasted_makes_the_next_failure_a_first_one() {
    let mut session = PeerSession::default();
    let mut now = Time::ZERO;
    let mut waits = Vec::new();
    let steady = Span(STEADY * RETRY_MAX.0);
    for up in [Span::ZERO, Span(steady.0 - 1), Span::ZERO, steady, Span::ZERO] {
        session.on_connected();
        session.on_message(now, &ToGateway::Count);
        now = now.after(up);
        session.on_message(now, &ToGateway::Count);
        session.on_closed(now);
        waits.push(session.next_attempt().since(now).0 / RETRY_MIN.0);
        now = session.next_attempt();
    }
    assert_eq!(waits, [1, 2, 4, 1, 2]);
}
