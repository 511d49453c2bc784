//! A controller and its stages on one clock. Messages take no time; programs use what their
//! buckets allow, as fluids.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_model::gate::Throughput;
use tidegate_model::{Event, GateSpec, Policy, Span, StageId, Time};
use tidegate_proto::controller::status::Status;
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::message::{
    ChannelReport, Differentiation, Enforcement, FromStage, GateReport, Held, HeldBucket, Hello,
    Housekeeping, Rule, RuleError, StageInfo, StageReport, ToStage, VERSION,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const MIB: u64 = 1 << 20;

/// The work of a background channel.
#[derive(Debug, Default)]
pub(crate) struct FakeFlow {
    /// Bytes per second that it wants.
    pub(crate) wants: u64,
    pub(crate) done_bytes: u64,
    waited_ns: u64,
}

/// A stage as a test plays it.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) tenant: String,
    pub(crate) id: StageId,
    pub(crate) pid: u32,
    pub(crate) revision: u64,
    /// Rates of buckets by name.
    pub(crate) rates: BTreeMap<String, Throughput>,
    /// Rates that are safe without a controller.
    pub(crate) safe: BTreeMap<String, Throughput>,
    pub(crate) gates: BTreeSet<String>,
    pub(crate) channels: BTreeSet<String>,
    pub(crate) default: Option<String>,
    /// Messages to it since the last look.
    pub(crate) received: Vec<ToStage>,
    /// Whether it answers.
    pub(crate) is_deaf: bool,
    /// Why it does not take rules that would make it anew, if it does not. It takes rates.
    pub(crate) refuses: Option<&'static str>,
    pub(crate) processes: u32,
    /// Bytes per second that its program wants.
    pub(crate) wants: u64,
    /// Its background channels, which are served before its own.
    pub(crate) background: BTreeMap<String, FakeFlow>,
    /// The size of its requests, if they are counted.
    pub(crate) request_bytes: u64,
    /// Of a thousand bytes, how many reach the device.
    pub(crate) device_permille: u64,
    pub(crate) done_bytes: u64,
    pub(crate) device_bytes: u64,
    /// Requests and how long they waited, by histogram bucket, reported on request.
    pub(crate) operations: u64,
    pub(crate) waiting: BucketCounts,
    pub(crate) waited_ns: u64,
    /// Bytes that requests wait with.
    pub(crate) waiting_tokens: u64,
    /// Until when buckets let no request pass, by name.
    pub(crate) held_until: BTreeMap<String, Time>,
}

impl Fake {
    /// Answers to rules.
    fn answer(&mut self, now: Time, revision: u64, rules: &[Rule]) -> FromStage {
        let is_whole = matches!(rules.first(), Some(Rule::Housekeeping(Housekeeping::Clear)));
        let refusal = self.refuses.filter(|_| is_whole);
        let error = refusal.map(|reason| RuleError { rule: 0, reason: reason.into() });
        if error.is_none() {
            self.apply(now, revision, rules);
        }
        FromStage::Applied { revision, error }
    }

    /// Brings the stage's parts to what a message says. Every name must lead somewhere.
    fn apply(&mut self, now: Time, revision: u64, rules: &[Rule]) {
        self.revision = revision;
        for rule in rules {
            match rule {
                Rule::Housekeeping(Housekeeping::Clear) => {
                    (self.rates, self.safe) = Default::default();
                    (self.gates, self.channels) = Default::default();
                    self.default = None;
                }
                Rule::Housekeeping(Housekeeping::SetGate { name, spec }) => {
                    self.gates.insert(name.clone());
                    if let GateSpec::TokenBucket { rate, .. } = spec {
                        self.safe.insert(name.clone(), *rate);
                        self.rates.insert(name.clone(), *rate);
                    }
                }
                Rule::Housekeeping(Housekeeping::SetChannel(channel)) => {
                    assert!(channel.gates.iter().all(|gate| self.gates.contains(gate)));
                    self.channels.insert(channel.name.clone());
                }
                Rule::Differentiation(Differentiation::Insert { channel, .. }) => {
                    assert!(self.channels.contains(channel));
                }
                Rule::Differentiation(Differentiation::Default { channel }) => {
                    assert!(self.channels.contains(channel));
                    self.default = Some(channel.clone());
                }
                Rule::Enforcement(Enforcement::Rate { gate, rate }) => {
                    assert!(self.gates.contains(gate), "no gate {gate}");
                    assert!(rate.per_second() > 0);
                    let known = self.rates.insert(gate.clone(), *rate);
                    assert_eq!(known.map(Throughput::unit), Some(rate.unit()));
                }
                Rule::Enforcement(Enforcement::Hold { gate, span }) => {
                    assert!(self.gates.contains(gate), "no gate {gate}");
                    self.held_until.insert(gate.clone(), now.after(*span));
                }
                other => panic!("never said: {other:?}"),
            }
        }
    }

    /// The rate of its bucket of bytes, per second; `u64::MAX` without one.
    pub(crate) fn rate(&self) -> u64 {
        let bucket = self.rates.get(&format!("{}:bandwidth", self.tenant));
        bucket.map_or(u64::MAX, |rate| rate.per_second())
    }

    /// The same in MiB per second.
    pub(crate) fn rate_mib(&self) -> u64 {
        self.rate() / MIB
    }

    /// Runs the program for a while.
    fn run(&mut self, span: Span) {
        let operations = self.rates.get(&format!("{}:operations", self.tenant));
        let operations = operations.map_or(u64::MAX, |rate| rate.per_second());
        let by_operations = match self.request_bytes {
            0 => u64::MAX,
            bytes => operations.saturating_mul(bytes),
        };
        let used = self.wants.min(self.run_background(span)).min(by_operations);
        let amount = (u128::from(used) * u128::from(span.0) / 1_000_000_000) as u64;
        self.done_bytes = self.done_bytes.saturating_add(amount);
        if let Some(operations) = self.done_bytes.checked_div(self.request_bytes) {
            self.operations = operations;
        }
        let device = amount / 1_000 * self.device_permille;
        self.device_bytes = self.device_bytes.saturating_add(device);
        if used < self.wants {
            self.waited_ns = self.waited_ns.saturating_add(span.0);
        }
    }

    /// The rate of a background channel's bucket, per second.
    pub(crate) fn background_rate(&self, channel: &str) -> u64 {
        self.rates[&format!("{channel}:background")].per_second()
    }

    /// Runs the background for a while, and returns the rate that it leaves of the tenant's.
    fn run_background(&mut self, span: Span) -> u64 {
        let rates: Vec<u64> =
            self.background.keys().map(|channel| self.background_rate(channel)).collect();
        let mut left = self.rate();
        for (flow, rate) in self.background.values_mut().zip(rates) {
            let used = flow.wants.min(rate).min(left);
            left -= used;
            flow.done_bytes += (u128::from(used) * u128::from(span.0) / 1_000_000_000) as u64;
            if rate < flow.wants {
                flow.waited_ns += span.0;
            }
        }
        left
    }

    pub(crate) fn report(&self, round: u64, now: Time) -> StageReport {
        let name = self.tenant.clone();
        let gate = format!("{name}:bandwidth");
        let (bytes, waited_ns) = (self.done_bytes, self.waited_ns);
        let (operations, waiting) = (self.operations, self.waiting.clone());
        let service = BucketCounts::default();
        let channel = ChannelReport { name, operations, bytes, waited_ns, waiting, service };
        let flow = |(name, flow): (&String, &FakeFlow)| {
            let (name, waited_ns) = (name.clone(), flow.waited_ns);
            ChannelReport { name, bytes: flow.done_bytes, waited_ns, ..ChannelReport::default() }
        };
        let bucket = |(name, flow): (&String, &FakeFlow)| {
            let (name, waited_ns) = (format!("{name}:background"), flow.waited_ns);
            GateReport { name, waited_ns, ..GateReport::default() }
        };
        let waiting_tokens = self.waiting_tokens;
        let own = GateReport { name: gate, waited_ns, waiting_tokens, ..GateReport::default() };
        StageReport {
            round,
            at_ns: now.0,
            channels: [channel].into_iter().chain(self.background.iter().map(flow)).collect(),
            gates: [own].into_iter().chain(self.background.iter().map(bucket)).collect(),
            processes: self.processes,
            device_bytes: self.device_bytes,
            ..StageReport::default()
        }
    }
}

/// The controller and all connected stages.
pub(crate) struct ControllerTestbed {
    pub(crate) now: Time,
    pub(crate) controller: Controller,
    pub(crate) stages: BTreeMap<ConnectionId, Fake>,
    pub(crate) events: Vec<Event>,
    /// Whether stages that say hello are of this machine, and their segments can be seen.
    pub(crate) is_watched: bool,
    /// Connections that the controller closed.
    pub(crate) closed: Vec<ConnectionId>,
    last: u64,
}

impl ControllerTestbed {
    pub(crate) fn new(policy: Option<&str>) -> Self {
        let policy = policy.map(|text| (1, Policy::parse(text).unwrap()));
        Self {
            now: Time::ZERO,
            controller: Controller::new(Time::ZERO, Setup::default(), policy),
            stages: BTreeMap::new(),
            events: Vec::new(),
            is_watched: false,
            closed: Vec::new(),
            last: 0,
        }
    }

    /// A stage of a tenant whose program wants so many bytes per second.
    pub(crate) fn join(&mut self, tenant: &str, wants: u64) -> ConnectionId {
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        let id = self.hello(VERSION, 1_000, info);
        if let Some(stage) = self.stages.get_mut(&id) {
            stage.wants = wants;
        }
        id
    }

    /// A stage of user `uid` says hello. Without a process number in `info` it has one of its own.
    pub(crate) fn hello(&mut self, version: u16, uid: u32, info: StageInfo) -> ConnectionId {
        self.last += 1;
        let connection = ConnectionId(self.last);
        let pid = if info.pid == 0 { self.last as u32 } else { info.pid };
        let fake = Fake {
            tenant: info.tenant.clone(),
            pid,
            processes: 1,
            device_permille: 1_000,
            ..Fake::default()
        };
        self.stages.insert(connection, fake);
        let peer = Peer { uid, pid, is_watched: self.is_watched, ..Peer::default() };
        self.controller.on_hello(self.now, connection, peer, Hello::Stage { version, info });
        self.settle();
        connection
    }

    /// The peer closes its connection.
    pub(crate) fn leave(&mut self, connection: ConnectionId) {
        self.stages.remove(&connection);
        self.controller.on_closed(self.now, connection, "gone");
        self.settle();
    }

    /// A stage connects again, and says what it has.
    pub(crate) fn rejoin(&mut self, stage: Fake, lease: Span) -> ConnectionId {
        let bucket = |(gate, rate): (&String, &Throughput)| {
            let safe = stage.safe[gate];
            let until = stage.held_until.get(gate);
            let held = until.map_or(Span::ZERO, |until| until.since(self.now));
            HeldBucket { gate: gate.clone(), rate: *rate, safe, held }
        };
        let buckets = stage.rates.iter().map(bucket).collect();
        let info = StageInfo {
            tenant: stage.tenant.clone(),
            pid: stage.pid,
            stage: stage.id,
            revision: stage.revision,
            held: Held { buckets, lease, ..Held::default() },
            ..StageInfo::default()
        };
        let wants = stage.wants;
        let id = self.hello(VERSION, 1_000, info);
        self.stage(id).wants = wants;
        id
    }

    pub(crate) fn send(&mut self, connection: ConnectionId, message: FromStage) {
        self.controller.on_message(self.now, connection, FromPeer::Stage(message));
        self.settle();
    }

    pub(crate) fn apply(&mut self, revision: u64, text: &str) {
        self.controller.apply(self.now, revision, Policy::parse(text).unwrap());
        self.settle();
    }

    /// Delivers messages until none is left.
    pub(crate) fn settle(&mut self) {
        while let Some(output) = self.controller.poll_output() {
            match output {
                Output::Send { to, message: ToPeer::Stage(message) } => self.deliver(to, message),
                Output::Send { .. } => panic!("{output:?} to a stage"),
                Output::Close { connection } => {
                    self.stages.remove(&connection);
                    self.closed.push(connection);
                }
                Output::Event(event) => self.events.push(event),
                Output::Remember(_) => {}
            }
        }
    }

    fn deliver(&mut self, to: ConnectionId, message: ToStage) {
        let Some(stage) = self.stages.get_mut(&to) else { return };
        stage.received.push(message.clone());
        let answer = match message {
            ToStage::Welcome { stage: id, .. } => {
                stage.id = id;
                return;
            }
            ToStage::Apply { revision, rules } => stage.answer(self.now, revision, &rules),
            ToStage::Collect { round, detail } if !stage.is_deaf => {
                let mut report = stage.report(round, self.now);
                if !detail {
                    report.channels[0].waiting = BucketCounts::default();
                }
                FromStage::Report(report)
            }
            _ => return,
        };
        self.controller.on_message(self.now, to, FromPeer::Stage(answer));
    }

    /// Lets time pass, in steps of a millisecond.
    pub(crate) fn run(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.now = self.now.after(Span(MS));
            self.stages.values_mut().for_each(|stage| stage.run(Span(MS)));
            if self.controller.next_deadline() <= self.now {
                self.controller.on_deadline(self.now);
                self.settle();
            }
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.controller.status(self.now)
    }

    pub(crate) fn stage(&mut self, connection: ConnectionId) -> &mut Fake {
        self.stages.get_mut(&connection).unwrap()
    }

    /// Changes that a stage was sent since the last call.
    pub(crate) fn changes(&mut self, connection: ConnectionId) -> Vec<Vec<Rule>> {
        let received = std::mem::take(&mut self.stage(connection).received);
        let rules = |message| match message {
            ToStage::Apply { rules, .. } => Some(rules),
            _ => None,
        };
        received.into_iter().filter_map(rules).collect()
    }
}
