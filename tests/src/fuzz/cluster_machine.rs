//! The cluster's machine among nodes that are honest, one that lies, and links that lose, double
//! and swap messages: no token is created, and nothing is sent on a connection that is over.

use std::sync::LazyLock;

use tidegate_model::{PeriodNumber, Policy, Span, TenantIndex};
use tidegate_proto::cluster::message::{
    FromNode, NodeInfo, NodeReport, RoundId, Share, TenantReport,
};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_sim::cluster::{ClusterTestbed, Promised, TokenCounts};
use tidegate_sim::link::Conduct;
use tidegate_sim::simulation::Fault;

use super::tape::Tape;

const MS: u64 = Span::MILLISECOND.0;

/// Honest nodes come first; the last one also sends messages that it likes.
const NODES: u16 = 3;
const HONEST: u16 = 2;
const LIAR: u16 = HONEST;

const POLICY: &str = "period = \"100ms\"\nredistribute = \"20ms\"\n\
    tenant = [{ name = \"gold\", reservation = \"400 iops\" },\n\
              { name = \"silver\", reservation = \"300 iops\", limit = \"400 iops\" },\n\
              { name = \"bronze\", limit = \"200 iops\" }]";
const TENANTS: [&str; 3] = ["gold", "silver", "bronze"];

static PROMISED: LazyLock<Vec<Promised>> =
    LazyLock::new(|| Promised::of(&Policy::parse(POLICY).expect("this is a policy")));

/// The input is what happens.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let mut testbed = ClusterTestbed::new(POLICY, 1_000, NODES);
    testbed.is_watched = false;
    let counts = TokenCounts::default();
    let mut world = ClusterWorld { testbed, counts, has_controller: true };
    while !tape.is_over() {
        world.step(&mut tape);
        world.nothing_is_given_twice();
    }
}

struct ClusterWorld {
    testbed: ClusterTestbed,
    counts: TokenCounts,
    has_controller: bool,
}

impl ClusterWorld {
    fn step(&mut self, tape: &mut Tape<'_>) {
        let node = u16::from(tape.byte()) % NODES;
        match tape.below(16) {
            0..=3 => {
                let late = u64::from(tape.byte()).pow(2) / 16 * MS / 4;
                self.testbed.run(Span(late + 1));
            }
            4 if tape.byte() > 128 => self.testbed.befall(Fault::Hangs(node)),
            5 if tape.byte() > 200 => {
                self.testbed.befall(Fault::Dies(node));
                self.testbed.befall(Fault::Returns(node));
            }
            6 if tape.byte() > 200 => self.replace_controller(tape.flag()),
            7 if tape.byte() > 200 && self.has_controller => self.testbed.apply(POLICY),
            8 | 9 => {
                let rate = u32::from(tape.byte()) * 8;
                self.testbed.demand(node, TENANTS[tape.below(TENANTS.len())], rate);
            }
            10..13 => self.lie(tape),
            13 => self.testbed.links(conduct(tape)),
            14 => self.read_status(),
            _ => self.testbed.befall(Fault::Cut(node, tape.byte() > 200)),
        }
    }

    fn replace_controller(&mut self, is_back: bool) {
        self.has_controller = is_back;
        self.testbed.befall(Fault::ControllerDies);
        if is_back {
            self.testbed.befall(Fault::ControllerReturns);
        }
    }

    /// The last node says what it likes; or a peer that is no node does.
    fn lie(&mut self, tape: &mut Tape<'_>) {
        if !self.has_controller {
            return;
        }
        let message = match tape.below(12) {
            0 => {
                let name = if tape.flag() { "nobody" } else { "n2" };
                let version = if tape.byte() > 200 { tape.word() as u16 } else { VERSION };
                let revision = if tape.flag() { 0 } else { tape.number() };
                let info = NodeInfo { name: name.into(), revision, ..NodeInfo::default() };
                return self.testbed.meet(Hello::Node { version, info });
            }
            1 if tape.flag() => FromNode::Disconnect,
            2..5 => {
                let shares = (0..tape.below(5)).map(|_| share(tape)).collect();
                let (revision, serial) = (self.revision(tape), tape.number());
                let bytes = (0..tape.below(3)).map(|_| share(tape)).collect();
                FromNode::Granted { revision, serial, shares, bytes }
            }
            _ => {
                let period = self.testbed.status().period;
                let period = if tape.byte() > 240 { tape.number() } else { period };
                FromNode::Report(NodeReport {
                    revision: self.revision(tape),
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
                    bytes: (0..tape.below(3)).map(|_| tenant_report(tape)).collect(),
                    bytes_before: (0..tape.below(3))
                        .map(|_| (tenant(tape.byte()), tape.number()))
                        .collect(),
                })
            }
        };
        self.testbed.say(LIAR, message);
    }

    fn revision(&self, tape: &mut Tape<'_>) -> u64 {
        if tape.byte() > 240 { tape.number() } else { self.testbed.revision() }
    }

    fn read_status(&self) {
        if self.has_controller {
            let text = serde_json::to_string(&self.testbed.status()).expect("a status is data");
            assert!(text.len() < 1 << 14, "a status of {} bytes", text.len());
        }
    }

    /// Notes what each honest process has in the period that runs there. Neither a limit nor a
    /// reservation is in force twice.
    fn nothing_is_given_twice(&mut self) {
        let nodes = self.testbed.statuses();
        self.counts.note(&nodes[..usize::from(HONEST)]);
        let limits = self.counts.check_limits(&PROMISED, 0);
        let result = limits.and_then(|()| self.counts.check_reservations(&PROMISED, 0));
        result.unwrap_or_else(|what| panic!("at {}: {what}", self.testbed.now()));
        // A round has a question, two grants and perhaps events for each node and tenant; a period
        // that ends in it has as many.
        let outputs = self.testbed.outputs_at_once();
        assert!(outputs <= 64, "{outputs} outputs at once");
    }
}

/// Links that lose, delay, double and swap messages.
fn conduct(tape: &mut Tape<'_>) -> Conduct {
    let least = u64::from(tape.byte() % 32);
    let most = least + u64::from(tape.byte() % 64);
    let [least, most] = [least, most].map(|ms| Span(ms * MS).into());
    let [lost, doubled, stray] = [0; 3].map(|_| u32::from(tape.byte()) * 2_000);
    Conduct { least, most, lost, doubled, stray, ..Conduct::default() }
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
    let wait = [0, 0, 12].repeat(8);
    let requests = [0, 8, 60, 0, 1, 8, 40, 1, 0, 9, 30, 2, 1, 9, 30, 2];
    let round = [&wait[..], &requests, &wait].concat();
    let lie = [0, 10, 7, 0, 0, 0, 0, 0, 2, 0, 7, 0, 7, 0, 11, 2, 1, 0, 9, 1, 0, 3, 0, 3];
    let faults = [
        round.repeat(4),
        vec![0, 4, 200],
        round.repeat(4),
        vec![1, 5, 255],
        round.repeat(6),
        vec![0, 13, 4, 20, 20, 20, 20],
        round.repeat(6),
        lie.to_vec(),
        round.repeat(6),
        vec![0, 6, 255, 1],
        round.repeat(20),
        vec![0, 7, 255],
        round.repeat(6),
    ];
    vec![round.repeat(12), faults.concat()]
}
