//! The controller's machine among stages that are honest, stages that lie, and policies that
//! change: nothing is sent to a closed peer, no stage is sent what it cannot do, and no limit is
//! given away twice.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tidegate_algo::concurrent::histogram::{BucketCounts, BucketIndex};
use tidegate_model::gate::Unit;
use tidegate_model::policy::Account;
use tidegate_model::{Policy, Span, StageId, Time};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::message::{
    Bypassed, ChannelReport, Coverage, Enforcement, FromStage, GateReport, Hello, Rule, RuleError,
    StageInfo, StageReport, ToStage, VERSION,
};
use tidegate_proto::stage::{self, Machine};

use super::tape::Tape;

/// Connections that are open at a time.
const STAGES_MAX: usize = 6;

/// Policies that follow each other: a budget, a device, a limit alone, nothing.
const POLICIES: [&str; 4] = [
    r#"
    budget = "1000B/s"
    tenant = [
        { name = "a", reservation = "600B/s" },
        { name = "b", limit = "300B/s", weight = 7, users = "1000" },
    ]
    match = [{ tenant = "b", process = "tar" }]
    "#,
    r#"
    budget = ["1TB/s", "1000 iops"]
    account = "device"
    redistribute = "10ms"
    tenant = [{ name = "b", reservation = ["1GB/s", "10 iops"] }, { name = "a" }]
    channel = [{ name = "x", tenant = "a", gates = [{ kind = "concurrency", depth = 3 }] }]
    match = [{ channel = "x", size = ">=1MiB" }]
    "#,
    r#"tenant = [{ name = "a", limit = "1MB/s", burst = "1h" }]"#,
    "",
];

static PARSED: LazyLock<[Policy; POLICIES.len()]> =
    LazyLock::new(|| POLICIES.map(|text| Policy::parse(text).expect("these are policies")));

/// The first byte chooses the policy of an earlier run; the rest is what happens.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let policies = &*PARSED;
    let first = tape.below(POLICIES.len() + 1);
    let earlier = policies.get(first).map(|policy| (1, policy.clone()));
    let mut world = ControllerWorld {
        controller: Controller::new(Time::ZERO, Setup::default(), earlier),
        policies,
        revision: 1,
        now: Time::ZERO,
        peers: BTreeMap::new(),
        connections: 0,
    };
    while !tape.is_over() {
        world.step(&mut tape);
    }
    world.hang_up();
}

/// A peer on a connection.
struct HonestPeer {
    /// Its machine, if it is honest.
    machine: Option<Machine>,
    /// Messages that were sent to it and that it has not read.
    inbox: Vec<ToStage>,
    /// The bytes that it counts.
    bytes: u64,
    /// The rates of its buckets, as sent.
    rates: BTreeMap<String, u64>,
}

struct ControllerWorld {
    controller: Controller,
    policies: &'static [Policy; POLICIES.len()],
    revision: u64,
    now: Time,
    peers: BTreeMap<ConnectionId, HonestPeer>,
    connections: u64,
}

impl ControllerWorld {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(10) {
            0 | 1 => self.connect(tape),
            2 if tape.flag() => self.close(tape),
            3 if tape.flag() => {
                self.revision += 1;
                let policy = tape.pick(self.policies).clone();
                self.controller.apply(self.now, self.revision, policy);
            }
            4 => self.lie(tape),
            5 => {
                let status = self.controller.status(self.now);
                let text = serde_json::to_string(&status).expect("a status is data");
                assert!(text.len() < 1 << 20, "a status of {} bytes", text.len());
                assert_eq!(status.stages.len(), self.peers.len());
            }
            6 | 7 => self.read(tape),
            _ => self.wait(tape),
        }
        self.act();
        self.nothing_is_given_twice();
    }

    fn wait(&mut self, tape: &mut Tape<'_>) {
        let late = Span(u64::from(tape.byte()).pow(2) * 1_000_000);
        self.now = self.now.max(self.controller.next_deadline()).after(late);
        self.controller.on_deadline(self.now);
        assert!(self.controller.next_deadline() > self.now, "it would spin");
    }

    fn connect(&mut self, tape: &mut Tape<'_>) {
        if self.peers.len() == STAGES_MAX {
            return;
        }
        self.connections += 1;
        let id = ConnectionId(self.connections);
        let info = StageInfo {
            stage: StageId(if tape.byte() > 200 { tape.number() } else { 0 }),
            tenant: (*tape.pick(&["a", "b", "", "a", "nobody"])).into(),
            revision: if tape.byte() > 200 { tape.number() } else { 0 },
            ..StageInfo::default()
        };
        let pid = u32::from(tape.byte() % 4);
        let peer = Peer { uid: 1000, pid, ..Peer::default() };
        let version = if tape.byte() > 250 { tape.word() as u16 } else { VERSION };
        let machine = (!tape.byte().is_multiple_of(4)).then(|| {
            let mut machine = Machine::new(self.now, info.clone(), true);
            machine.on_connected(self.now);
            machine
        });
        let (inbox, rates) = (Vec::new(), BTreeMap::new());
        self.peers.insert(id, HonestPeer { machine, inbox, bytes: 0, rates });
        self.controller.on_hello(self.now, id, peer, Hello::Stage { version, info });
    }

    fn some_peer(&self, tape: &mut Tape<'_>) -> Option<ConnectionId> {
        let at = tape.below(self.peers.len());
        self.peers.keys().nth(at).copied()
    }

    fn close(&mut self, tape: &mut Tape<'_>) {
        if let Some(id) = self.some_peer(tape) {
            self.peers.remove(&id);
            self.controller.on_closed(self.now, id, "it is gone");
        }
    }

    /// An honest stage reads its messages, and answers.
    fn read(&mut self, tape: &mut Tape<'_>) {
        let Some(id) = self.some_peer(tape) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Some(machine) = &mut peer.machine else { return };
        for message in peer.inbox.drain(..) {
            machine.on_message(self.now, message);
        }
        while let Some(output) = machine.poll_output() {
            let answer = match output {
                stage::Output::Send(FromStage::Applied { error: Some(error), .. }) => {
                    panic!("an honest stage is told what it cannot do: {error:?}");
                }
                stage::Output::Send(message) => message,
                stage::Output::Report { round, .. } => {
                    peer.bytes += tape.number() >> 24;
                    FromStage::Report(honest(machine, self.now, round, peer.bytes))
                }
                _ => continue,
            };
            self.controller.on_message(self.now, id, FromPeer::Stage(answer));
        }
        // It has read all that was sent to it.
        let revision = self.controller.policy().map(|(revision, _)| revision);
        let is_welcome = machine.is_connected() && revision.is_some();
        assert!(!is_welcome || revision == Some(machine.info().revision), "{revision:?}");
    }

    /// A peer on a connection sends an arbitrary message.
    fn lie(&mut self, tape: &mut Tape<'_>) {
        let Some(id) = self.some_peer(tape) else { return };
        let message = match tape.below(8) {
            0 => FromStage::Disconnect,
            1 => FromStage::Unused,
            2 => {
                let reason = "é".repeat(tape.below(256));
                let error = tape.flag().then_some(RuleError { rule: 0, reason });
                FromStage::Applied { revision: tape.number(), error }
            }
            _ => FromStage::Report(lies(tape)),
        };
        self.controller.on_message(self.now, id, FromPeer::Stage(message));
    }

    /// Performs what the machine says.
    fn act(&mut self) {
        let mut count = 0;
        while let Some(output) = self.controller.poll_output() {
            count += 1;
            assert!(count < 10_000, "it does not stop talking");
            match output {
                Output::Send { to, message: ToPeer::Stage(message) } => {
                    let peer = self.peers.get_mut(&to);
                    let peer = peer.unwrap_or_else(|| panic!("{to:?} is gone, but: {message:?}"));
                    if let ToStage::Apply { rules, .. } = &message {
                        rules.iter().for_each(|rule| note_rate(&mut peer.rates, rule));
                    }
                    peer.inbox.push(message);
                }
                Output::Close { connection } => {
                    let closed = self.peers.remove(&connection);
                    assert!(closed.is_some(), "it closes what is closed");
                }
                Output::Send { .. } => panic!("{output:?} to a stage"),
                Output::Event(event) => {
                    serde_json::to_string(&event).expect("an event is data");
                }
                Output::Remember(outstanding) => {
                    serde_json::to_string(&outstanding).expect("what is kept is data");
                }
            }
        }
    }

    /// The buckets of a tenant on all stages together are within its limit, and all buckets within
    /// the budget, but for the hundredth with which a stage starts before the others have made
    /// room, and the least rate of a bucket.
    fn nothing_is_given_twice(&self) {
        let Some((_, policy)) = self.controller.policy() else { return };
        if policy.account == Account::Device {
            return;
        }
        let rates = || self.peers.values().flat_map(|peer| &peer.rates);
        let is_within = |level: u64, of: &dyn Fn(&str) -> bool| {
            let sum: u128 = rates().filter(|it| of(it.0)).map(|(_, rate)| u128::from(*rate)).sum();
            let most = u128::from(level) + u128::from(level / 100) + rates().count() as u128;
            assert!(sum <= most, "{sum} of {level}");
        };
        for (unit, suffix) in [(Unit::Bytes, ":bandwidth"), (Unit::Operations, ":operations")] {
            if let Some(budget) = policy.budget.get(unit) {
                is_within(budget, &|name| name.ends_with(suffix));
            }
            for tenant in &policy.tenants {
                let name = format!("{}{suffix}", tenant.name);
                let limit = tenant.limit.get(unit);
                limit.into_iter().for_each(|limit| is_within(limit, &|bucket| bucket == name));
            }
        }
    }

    /// All peers leave, and nothing of them stays.
    fn hang_up(mut self) {
        while let Some((id, _)) = self.peers.pop_first() {
            self.controller.on_closed(self.now, id, "it is gone");
            self.act();
        }
        let status = self.controller.status(self.now);
        assert!(status.stages.is_empty());
        assert_eq!((status.totals.stages, status.totals.processes), (0, 0));
    }
}

fn note_rate(rates: &mut BTreeMap<String, u64>, rule: &Rule) {
    match rule {
        Rule::Enforcement(Enforcement::Rate { gate, rate }) => {
            rates.insert(gate.clone(), rate.per_second());
        }
        Rule::Housekeeping(tidegate_proto::message::Housekeeping::Clear) => rates.clear(),
        _ => {}
    }
}

/// Returns the report of an honest stage with these channels and gates.
fn honest(machine: &Machine, now: Time, round: u64, bytes: u64) -> StageReport {
    let channels = machine.plan().channels().map(|(name, _)| ChannelReport {
        name: name.into(),
        operations: bytes / 4_096,
        bytes,
        ..ChannelReport::default()
    });
    let gates = machine.plan().gates().map(|(name, gate)| GateReport {
        name: name.into(),
        waited_ns: bytes,
        rate: gate.rate,
        ..GateReport::default()
    });
    let (channels, gates) = (channels.collect(), gates.collect());
    StageReport { round, at_ns: now.0, channels, gates, processes: 1, ..StageReport::default() }
}

fn lies(tape: &mut Tape<'_>) -> StageReport {
    let name = |tape: &mut Tape<'_>| {
        String::from(*tape.pick(&["a", "b", "x", "a:bandwidth", "b:operations", "", ":", "é"]))
    };
    let counts = |tape: &mut Tape<'_>| -> BucketCounts {
        let count = (BucketIndex(tape.word() as u16), tape.number());
        vec![count; tape.below(40)].into_iter().collect()
    };
    let channel = |tape: &mut Tape<'_>| ChannelReport {
        name: name(tape),
        operations: tape.number(),
        bytes: tape.number(),
        waited_ns: tape.number(),
        waiting: [(BucketIndex(tape.word() as u16), tape.number())].into(),
        service: counts(tape),
    };
    let gate = |tape: &mut Tape<'_>| GateReport {
        name: name(tape),
        delayed: tape.number(),
        waited_ns: tape.number(),
        waiting_now: tape.word(),
        waiting_tokens: tape.number(),
        waiting: counts(tape),
        rate: None,
    };
    let bypass = Bypassed { reason: name(tape), calls: tape.number(), bytes: tape.number() };
    let coverage = Coverage {
        seen_bytes: tape.number(),
        syscall_bytes: tape.number(),
        bypasses: vec![bypass; tape.below(256)],
    };
    StageReport {
        round: tape.number(),
        at_ns: tape.number(),
        channels: (0..tape.below(4)).map(|_| channel(tape)).collect(),
        gates: (0..tape.below(4)).map(|_| gate(tape)).collect(),
        processes: tape.word(),
        device_bytes: tape.number(),
        coverage,
    }
}

/// Histories of different rhythm.
pub fn seeds() -> Vec<Vec<u8>> {
    let numbers = |step: u8| (0..240u8).map(move |at| at.wrapping_mul(step)).collect::<Vec<u8>>();
    let calm =
        [0u8, 0, 0, 0, 0, 0, 0, 1, 1, 6, 0, 8, 0, 7, 0, 8, 1, 6, 1, 9, 0, 3, 1, 2, 6, 0, 8, 0];
    let mut seeds = vec![calm.repeat(4)];
    seeds.extend(
        [[0].as_slice(), &[1], &[2], &[4]]
            .iter()
            .zip([37, 53, 91, 11])
            .map(|(first, step)| [first.to_vec(), numbers(step)].concat()),
    );
    seeds
}
