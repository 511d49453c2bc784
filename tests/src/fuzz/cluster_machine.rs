//! The cluster's machine among nodes that are honest, one that lies, and links that lose, double
//! and swap what is said: no token is created, and nothing is said to who is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use tidegate_model::{
    Class, ContextId, Iops, Operation, PeriodNumber, Policy, Span, Tag, TenantId, TenantIndex, Time,
};
use tidegate_proto::cluster::message::{
    FromNode, NodeInfo, NodeReport, RoundId, Share, TenantReport, ToNode,
};
use tidegate_proto::cluster::{NodeSetup, Setup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, ToPeer};
use tidegate_proto::data::Command;
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Node, Pacing};

use super::tape::Tape;

const MS: u64 = Span::MILLISECOND.0;

/// Honest nodes come first; the last one lies.
const NODES: [&str; 3] = ["a", "b", "liar"];
const HONEST: usize = 2;

/// Messages on their way at a time; a link that holds more loses them.
const MAIL_MAX: usize = 64;

const TAG: Tag = Tag {
    tenant: TenantId(1),
    context: ContextId::NONE,
    class: Class::Medium,
    operation: Operation::Read,
    cost: 4 << 10,
    delay: 0,
};

const PERIOD: u64 = 100 * MS;
const POLICY: &str = "period = \"100ms\"\nredistribute = \"20ms\"\n\
    tenant = [{ name = \"gold\", reservation = \"400 iops\" },\n\
              { name = \"silver\", reservation = \"300 iops\", limit = \"400 iops\" },\n\
              { name = \"bronze\", limit = \"200 iops\" }]";
const TENANTS: [&str; 3] = ["gold", "silver", "bronze"];

static PARSED: LazyLock<Policy> =
    LazyLock::new(|| Policy::parse(POLICY).expect("this is a policy"));

/// The input is what happens.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let mut world = ClusterWorld::new(tape.flag());
    while !tape.is_over() {
        world.step(&mut tape);
        world.act();
        world.note();
        world.nothing_is_given_twice();
    }
}

/// A process at an honest node.
struct Process {
    node: Node<()>,
    incarnation: u64,
    connection: Option<ConnectionId>,
    /// Whether the node was abandoned when the test looked at it last. Its service then may belong
    /// to a period that has another number by now, if no message had told it the number.
    was_abandoned: bool,
}

enum Message {
    Hello(NodeInfo),
    Down(ToNode),
    Up(FromNode),
    Closed,
}

/// The tokens and the service of one tenant at one process in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    served: u64,
    reserved: u64,
    allowed: Option<u64>,
    is_over: bool,
    /// Its process was killed: reservation tokens that it had and did not report are granted anew.
    is_dead: bool,
    is_abandoned: bool,
}

struct ClusterWorld {
    cluster: Option<Controller>,
    setup: Setup,
    revision: u64,
    now: Time,
    processes: Vec<Option<Process>>,
    incarnations: u64,
    liar: Option<ConnectionId>,
    connections: u64,
    open: BTreeSet<ConnectionId>,
    mail: Vec<(ConnectionId, usize, Message)>,
    held: BTreeMap<(u64, usize, usize, u64), Held>,
    /// The periods in which a run of the controller began. It cannot know of a process that ended
    /// in it what that had used.
    began_in: BTreeSet<u64>,
}

impl ClusterWorld {
    fn new(is_declared: bool) -> Self {
        let capacity = is_declared.then_some(Iops(1000));
        let node =
            |name: &&str| NodeSetup { name: (*name).into(), capacity, ..NodeSetup::default() };
        let nodes = NODES.iter().map(node).collect();
        let setup = Setup { nodes, is_first: true, ..Setup::default() };
        let cluster = Controller::of_nodes(Time::ZERO, setup.clone(), Some((1, PARSED.clone())));
        let mut world = Self {
            cluster: Some(cluster),
            setup: Setup { is_first: false, ..setup },
            revision: 1,
            now: Time::ZERO,
            processes: (0..HONEST).map(|_| None).collect(),
            incarnations: 0,
            liar: None,
            connections: 0,
            open: BTreeSet::new(),
            mail: Vec::new(),
            held: BTreeMap::new(),
            began_in: BTreeSet::new(),
        };
        (0..HONEST).for_each(|index| world.start(index));
        world
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(16) {
            0 => self.wait(tape),
            1 => self.connect(tape.below(HONEST)),
            2 if tape.byte() > 128 => self.hang_up(tape.below(HONEST)),
            3 if tape.byte() > 200 => {
                let index = tape.below(HONEST);
                self.hang_up(index);
                self.end_held(index);
                self.processes[index] = None;
                self.start(index);
            }
            4 if tape.byte() > 200 => self.replace_controller(tape.flag()),
            5 if tape.byte() > 200 => self.apply(),
            6 | 7 => self.request(tape),
            8 | 9 => self.lie(tape),
            10 if tape.byte() > 128 => drop(self.take_mail(tape)),
            10 => self.read_status(),
            _ => {
                for _ in 0..=tape.below(8) {
                    let is_doubled = tape.byte() > 230;
                    self.deliver(tape, is_doubled);
                    self.act();
                }
            }
        }
    }

    fn wait(&mut self, tape: &mut Tape<'_>) {
        let due = self.processes.iter().flatten().map(|process| process.node.next_deadline());
        let of_cluster = self.cluster.as_ref().map(Controller::next_deadline);
        let due = due.chain(of_cluster).min().unwrap_or(Time::MAX);
        let late = Span(u64::from(tape.byte()).pow(2) / 16 * MS / 4);
        let is_due = tape.flag() && due < Time::MAX;
        self.now = if is_due { self.now.max(due) } else { self.now }.after(late);
        for process in self.processes.iter_mut().flatten() {
            serve(&process.node, self.now);
            assert!(process.node.next_deadline() > self.now, "a node would spin");
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.on_deadline(self.now);
            assert!(cluster.next_deadline() > self.now, "the cluster would spin");
        }
    }

    fn start(&mut self, index: usize) {
        let info = NodeInfo { name: NODES[index].into(), ..NodeInfo::default() };
        let config = Config {
            depth: 4,
            capacity: Some(Iops(1000)),
            pacing: Pacing::Paper,
            ..Config::default()
        };
        let node = Node::new(self.now, info, config);
        self.incarnations += 1;
        self.processes[index] = Some(Process {
            node,
            incarnation: self.incarnations,
            connection: None,
            was_abandoned: false,
        });
        self.connect(index);
    }

    fn dial(&mut self) -> ConnectionId {
        self.connections += 1;
        ConnectionId(self.connections)
    }

    fn connect(&mut self, index: usize) {
        let connection = self.dial();
        let Some(process) = &mut self.processes[index] else { return };
        if process.connection.is_none() && self.cluster.is_some() {
            process.connection = Some(connection);
            let info = process.node.info();
            process.node.on_connected(self.now);
            self.mail.push((connection, index, Message::Hello(info)));
        }
    }

    /// The node's end is gone; the controller learns of it later.
    fn hang_up(&mut self, index: usize) {
        let Some(process) = &mut self.processes[index] else { return };
        if let Some(connection) = process.connection.take() {
            process.node.on_disconnected(self.now);
            self.mail.push((connection, index, Message::Closed));
        }
    }

    fn replace_controller(&mut self, is_back: bool) {
        (0..HONEST).for_each(|index| self.hang_up(index));
        self.mail.clear();
        self.open.clear();
        self.liar = None;
        self.began_in.insert(self.now.0 / PERIOD);
        let policy = Some((self.revision, PARSED.clone()));
        self.cluster = is_back.then(|| Controller::of_nodes(self.now, self.setup.clone(), policy));
    }

    /// The same promises under another revision.
    fn apply(&mut self) {
        self.revision += 1;
        if let Some(cluster) = &mut self.cluster {
            cluster.apply(self.now, self.revision, PARSED.clone());
        }
    }

    fn request(&mut self, tape: &mut Tape<'_>) {
        let index = tape.below(HONEST);
        let Some(process) = &mut self.processes[index] else { return };
        let slot = process.node.slot(TENANTS[tape.below(TENANTS.len())]);
        let request = || process.node.request(slot, (Command::Read, 4 << 10), &TAG, ());
        let mut requests: Vec<_> = (0..tape.byte() / 2).map(|_| request()).collect();
        process.node.put(self.now, &mut requests);
        serve(&process.node, self.now);
    }

    fn take_mail(&mut self, tape: &mut Tape<'_>) -> Option<(ConnectionId, usize, Message)> {
        let at = tape.below(self.mail.len());
        // In order, most often.
        let at = if tape.byte() > 128 { at } else { 0 };
        (at < self.mail.len()).then(|| self.mail.remove(at))
    }

    fn deliver(&mut self, tape: &mut Tape<'_>, is_doubled: bool) {
        let Some((connection, index, message)) = self.take_mail(tape) else { return };
        if is_doubled && self.mail.len() < MAIL_MAX {
            match &message {
                Message::Down(message) => {
                    self.mail.push((connection, index, Message::Down(message.clone())));
                }
                Message::Up(message) => {
                    self.mail.push((connection, index, Message::Up(message.clone())));
                }
                Message::Hello(_) | Message::Closed => {}
            }
        }
        let process = self.processes[index].as_mut();
        let process = process.filter(|process| process.connection == Some(connection));
        match (message, &mut self.cluster, process) {
            (Message::Hello(info), Some(cluster), Some(_)) => {
                self.open.insert(connection);
                let hello = Hello::Node { version: VERSION, info };
                cluster.on_hello(self.now, connection, Peer::default(), hello);
            }
            (Message::Up(message), Some(cluster), _) => {
                cluster.on_message(self.now, connection, FromPeer::Node(message));
            }
            (Message::Closed, Some(cluster), _) => {
                self.open.remove(&connection);
                cluster.on_closed(self.now, connection, "it hung up");
            }
            (Message::Down(message), _, Some(process)) => {
                process.node.on_message(self.now, message);
            }
            _ => {}
        }
    }

    /// The last node says what it likes; or somebody who is no node does.
    fn lie(&mut self, tape: &mut Tape<'_>) {
        let id = self.dial();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(liar) = self.liar.filter(|_| tape.byte() < 250) else {
            let name = if tape.byte() > 200 { "nobody" } else { NODES[HONEST] };
            let version = if tape.byte() > 200 { tape.word() as u16 } else { VERSION };
            let revision = if tape.flag() { 0 } else { tape.number() };
            let info = NodeInfo { name: name.into(), revision, ..NodeInfo::default() };
            self.open.insert(id);
            self.liar = Some(id);
            return cluster.on_hello(self.now, id, Peer::default(), Hello::Node { version, info });
        };
        match tape.below(12) {
            0 if tape.flag() => {
                self.liar = None;
                self.open.remove(&liar);
                cluster.on_closed(self.now, liar, "it is gone");
            }
            1 if tape.flag() => {
                cluster.on_message(self.now, liar, FromPeer::Node(FromNode::Disconnect));
            }
            2..5 => {
                let shares = (0..tape.below(5)).map(|_| share(tape)).collect();
                let revision = if tape.byte() > 240 { tape.number() } else { self.revision };
                let serial = tape.number();
                let granted = FromNode::Granted { revision, serial, shares };
                cluster.on_message(self.now, liar, FromPeer::Node(granted));
            }
            _ => {
                let period = cluster.status(self.now).cluster.map_or(0, |it| it.period);
                let period = if tape.byte() > 240 { tape.number() } else { period };
                let report = NodeReport {
                    revision: if tape.byte() > 240 { tape.number() } else { self.revision },
                    round_id: RoundId {
                        period: PeriodNumber(period),
                        round: u32::from(tape.byte() % 6),
                    },
                    serial: tape.number(),
                    capacity_left: tape.number(),
                    tenants: (0..tape.below(5)).map(|_| tenant_report(tape)).collect(),
                    before: (0..tape.below(3))
                        .map(|_| (tenant(tape.byte()), tape.number()))
                        .collect(),
                };
                cluster.on_message(self.now, liar, FromPeer::Node(FromNode::Report(report)));
            }
        }
    }

    fn read_status(&self) {
        let Some(cluster) = &self.cluster else { return };
        let text = serde_json::to_string(&cluster.status(self.now)).expect("a status is data");
        assert!(text.len() < 1 << 14, "a status of {} bytes", text.len());
    }

    /// Does what the machines want done.
    fn act(&mut self) {
        let mut outputs = 0;
        while let Some(output) = self.cluster.as_mut().and_then(Controller::poll_output) {
            outputs += 1;
            match output {
                Output::Send { to, message: ToPeer::Node(message) } => {
                    assert!(self.open.contains(&to), "{message:?} to who is gone");
                    let index = self.index_of(to);
                    if let Some(index) = index.filter(|_| self.mail.len() < MAIL_MAX) {
                        self.mail.push((to, index, Message::Down(message)));
                    }
                }
                Output::Close { connection } => {
                    assert!(self.open.remove(&connection), "closed twice");
                    if self.liar == Some(connection) {
                        self.liar = None;
                    }
                    if let Some(index) = self.index_of(connection)
                        && let Some(process) = &mut self.processes[index]
                    {
                        process.connection = None;
                        process.node.on_disconnected(self.now);
                    }
                }
                Output::Send { .. } => panic!("{output:?} to a node"),
                Output::Event(_) => {}
            }
        }
        // A round has a question, two grants and perhaps events for each node and tenant; a period
        // that ends in it has as many.
        assert!(outputs <= 64, "{outputs} outputs at once");
        for index in 0..HONEST {
            let Some(process) = &mut self.processes[index] else { continue };
            while let Some(output) = process.node.poll_output() {
                if let (node::Output::Send(message), Some(connection)) =
                    (output, process.connection)
                    && self.mail.len() < MAIL_MAX
                {
                    self.mail.push((connection, index, Message::Up(message)));
                }
            }
        }
    }

    fn index_of(&self, connection: ConnectionId) -> Option<usize> {
        let is_his = |process: &Process| process.connection == Some(connection);
        self.processes.iter().position(|process| process.as_ref().is_some_and(is_his))
    }

    /// Writes down what each process has in the period that runs there.
    fn note(&mut self) {
        for (index, process) in self.processes.iter_mut().enumerate() {
            let Some(Process { node, incarnation, was_abandoned, .. }) = process else { continue };
            let status = node.status(self.now);
            let is_abandoned = std::mem::replace(was_abandoned, status.is_abandoned);
            for (number, tenant) in status.tenants.into_iter().skip(1).enumerate() {
                for ((period, ..), held) in self.held.iter_mut().filter(|((_, t, p, l), held)| {
                    (*t, *p, *l) == (number, index, *incarnation) && !held.is_over
                }) {
                    if *period != status.period {
                        held.is_over = true;
                        if *period + 1 == status.period {
                            held.served = tenant.served_before;
                        }
                    }
                }
                let held =
                    self.held.entry((status.period, number, index, *incarnation)).or_default();
                held.served = tenant.served;
                held.reserved = tenant.reserved;
                held.allowed = tenant.allowed;
                held.is_abandoned |= status.is_abandoned || is_abandoned;
            }
        }
        let newest = self.held.last_key_value().map_or(0, |((period, ..), _)| *period);
        self.held = self.held.split_off(&(newest.saturating_sub(4), 0, 0, 0));
    }

    fn end_held(&mut self, index: usize) {
        let Some(Process { incarnation, .. }) = self.processes[index] else { return };
        let held =
            self.held.iter_mut().filter(|((_, _, p, l), _)| (*p, *l) == (index, incarnation));
        held.for_each(|(_, held)| (held.is_over, held.is_dead) = (true, true));
    }

    /// Neither a limit nor a reservation is in force twice.
    fn nothing_is_given_twice(&self) {
        let mut sums: BTreeMap<(u64, usize), (u64, u64, u64, bool)> = BTreeMap::new();
        for ((period, tenant, ..), held) in &self.held {
            if held.is_dead && self.began_in.contains(period) {
                continue;
            }
            let sum = sums.entry((*period, *tenant)).or_default();
            sum.0 += match held.allowed {
                Some(allowed) if !held.is_over => allowed.max(held.served),
                _ => held.served,
            };
            sum.1 += match (held.is_dead, held.is_over) {
                (true, _) => 0,
                (false, true) => held.reserved.min(held.served),
                (false, false) => held.reserved,
            };
            sum.2 += held.served;
            sum.3 |= held.is_abandoned;
        }
        let promised = |iops: Option<Iops>| iops.map(|iops| iops.0 * PERIOD / Span::SECOND.0);
        for ((period, tenant), (allowed, reserved, served, is_abandoned)) in sums {
            let promise = &PARSED.tenants[tenant];
            let context =
                || format!("{} in {period} at {}: {:#?}", promise.name, self.now, self.held);
            if let Some(limit) = promised(promise.limit.operations).filter(|_| !is_abandoned) {
                assert!(allowed <= limit, "{allowed} of {limit} allowed: {}", context());
            }
            let most = promised(promise.reservation.operations).unwrap_or(0).max(served);
            assert!(reserved <= most, "{reserved} of {most} reserved: {}", context());
        }
    }
}

fn tenant(byte: u8) -> TenantIndex {
    TenantIndex(u16::from(byte % 5))
}

fn share(tape: &mut Tape<'_>) -> Share {
    Share { tenant: tenant(tape.byte()), reserved: tape.number(), allowed: tape.number() }
}

fn tenant_report(tape: &mut Tape<'_>) -> TenantReport {
    let byte = tape.byte();
    let (tenant, is_elastic) = (tenant(byte), byte & 0x80 != 0);
    let (served, expected) = (tape.number(), tape.number());
    // Any number waits, whatever is expected.
    TenantReport { tenant, served, expected, waiting: served, is_elastic }
}

/// A few periods of a quiet cluster with some load, and one with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    let talk = [15, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let calm: Vec<u8> = [0, 0, 1].into_iter().chain(talk).collect();
    let requests = [6, 0, 0, 60, 6, 1, 1, 40, 7, 0, 2, 30, 7, 1, 2, 30];
    let round = [&calm[..], &requests, &calm].concat();
    let quiet = [vec![1], talk.to_vec(), round.repeat(12)].concat();
    let lie = [8, 0, 0, 0, 0, 8, 0, 7, 0, 0, 0, 0, 0, 2, 7, 2, 7, 1, 1, 2, 7, 2, 7, 0];
    let faults = [
        round.repeat(4),
        vec![2, 200, 0],
        calm.repeat(3),
        vec![1, 0],
        round.repeat(4),
        vec![3, 255, 1],
        round.repeat(6),
        lie.to_vec(),
        round.repeat(6),
        vec![4, 255, 1, 1, 0, 1, 1],
        round.repeat(20),
        vec![5, 255],
        round.repeat(6),
    ];
    vec![quiet, [vec![0], faults.concat()].concat()]
}

/// Everything that may be served is, at once.
fn serve(node: &Node<()>, now: Time) {
    node.advance(now);
    let mut batch = Vec::new();
    loop {
        node.fill(0, now, &mut batch);
        if batch.is_empty() {
            return;
        }
        node.finish(0, now, &mut batch, None, |_, _| {});
        batch.clear();
    }
}
