//! Both machines, the controller's and the stage's, with nothing between them.

use tidegate_model::gate::Throughput;
use tidegate_model::{Policy, Span, Time};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::message::{FromStage, StageInfo, StageReport};
use tidegate_proto::stage::{self, Machine};

use crate::world::MS;

const POLICY: &str = r#"
    budget = ["1000MiB/s", "100k iops"]
    fallback = "reservation"
    [[tenant]]
    name = "oltp"
    reservation = "600MiB/s"
    [[tenant]]
    name = "backup"
    limit = "20k iops"
    [[channel]]
    name = "scans"
    tenant = "oltp"
    gates = [
        { kind = "concurrency", depth = 2 },
        { kind = "token-bucket", rate = "100MiB/s" },
        { kind = "priority", depth = 4, order = ["foreground", "flush"] },
        { kind = "latency-probe" },
    ]
    [[match]]
    channel = "scans"
    path = "/var/lib/**"
    size = ">=1MiB"
    [[match]]
    tenant = "backup"
    process = ["restic", "borg*"]
"#;

const CONNECTION: ConnectionId = ConnectionId(1);

struct Pair {
    now: Time,
    controller: Controller,
    stage: Machine,
    is_connected: bool,
    /// Whether the stage may be told what it cannot do.
    may_refuse: bool,
    reports: u64,
}

impl Pair {
    fn new(tenant: &str) -> Self {
        let now = Time::ZERO;
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        let policy = Some((1, Policy::parse(POLICY).unwrap()));
        let mut pair = Self {
            now,
            controller: Controller::new(now, Setup::default(), policy),
            stage: Machine::new(now, info, false),
            is_connected: false,
            may_refuse: false,
            reports: 0,
        };
        pair.stage.on_deadline(now);
        pair.settle();
        pair
    }

    /// Carries everything that either has to say.
    fn settle(&mut self) {
        loop {
            if let Some(output) = self.stage.poll_output() {
                self.perform(output);
            } else if let Some(output) = self.controller.poll_output() {
                match output {
                    Output::Send { message: ToPeer::Stage(message), .. } => {
                        self.stage.on_message(self.now, message);
                    }
                    Output::Send { .. } => panic!("{output:?} to a stage"),
                    Output::Close { .. } => panic!("closed"),
                    Output::Event(_) | Output::Remember(_) => {}
                }
            } else {
                return;
            }
        }
    }

    fn perform(&mut self, output: stage::Output) {
        let now = self.now;
        let message = match output {
            stage::Output::Connect => return self.stage.on_connected(now),
            stage::Output::Hello(hello) => {
                self.is_connected = true;
                let peer = Peer { pid: 7, ..Peer::default() };
                return self.controller.on_hello(now, CONNECTION, peer, hello);
            }
            stage::Output::Send(message) => message,
            stage::Output::Report { round, .. } => {
                self.reports += 1;
                let at_ns = now.0;
                FromStage::Report(StageReport {
                    round,
                    at_ns,
                    processes: 1,
                    ..StageReport::default()
                })
            }
            stage::Output::Close => panic!("closed"),
            _ => return,
        };
        if let FromStage::Applied { error: Some(error), .. } = &message {
            assert!(self.may_refuse, "{error:?}");
        }
        if self.is_connected {
            self.controller.on_message(now, CONNECTION, FromPeer::Stage(message));
        }
    }

    fn run(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.now = self.now.after(Span(10 * MS));
            if self.controller.next_deadline() <= self.now && self.is_connected {
                self.controller.on_deadline(self.now);
            }
            if self.stage.next_deadline().is_some_and(|at| at <= self.now) {
                self.stage.on_deadline(self.now);
            }
            self.settle();
        }
    }

    fn rate(&self, name: &str) -> Option<u64> {
        let gate = self.stage.plan().gates().find(|(known, _)| *known == name)?.1;
        gate.rate.map(Throughput::per_second)
    }
}

#[test]
fn a_stage_applies_the_rules_of_a_controller() {
    let mut pair = Pair::new("oltp");
    pair.run(Span(3 * Span::SECOND.0));
    assert!(pair.stage.is_connected() && pair.reports >= 25);
    let names: Vec<&str> = pair.stage.plan().gates().map(|(name, _)| name).collect();
    let own = ["oltp:bandwidth", "oltp:operations", "scans:0", "scans:1", "scans:2", "scans:3"];
    assert_eq!(names, own);
    assert_eq!(pair.stage.plan().rules().len(), 1);
    assert_eq!(pair.rate("oltp:bandwidth"), Some(1_000 << 20));
    assert_eq!(pair.controller.status(pair.now).stages[0].revision, 1);
    // A new policy, with the same gates and fewer.
    let policy =
        POLICY.replace("600MiB/s", "500MiB/s").replace("{ kind = \"latency-probe\" },", "");
    pair.controller.apply(pair.now, 2, Policy::parse(&policy).unwrap());
    pair.settle();
    assert_eq!(pair.stage.info().revision, 2);
    assert_eq!(pair.stage.plan().gates().count(), 5);
}

#[test]
fn a_stage_without_a_tenant_takes_all_rules() {
    let mut pair = Pair::new("");
    pair.run(Span::SECOND);
    assert_eq!(pair.stage.plan().gates().count(), 8);
    assert_eq!(pair.stage.plan().channels().count(), 3);
    assert_eq!(pair.stage.plan().rules().len(), 2);
}

#[test]
fn what_a_stage_cannot_do_is_known_to_its_controller() {
    let mut pair = Pair::new("oltp");
    pair.run(Span::SECOND);
    pair.may_refuse = true;
    let compress = "{ kind = \"compress\", level = 3 },";
    let policy = POLICY.replace("{ kind = \"latency-probe\" },", compress);
    pair.controller.apply(pair.now, 2, Policy::parse(&policy).unwrap());
    let shown = |pair: &Pair| {
        let mut status = pair.controller.status(pair.now);
        assert_eq!(status.totals.rules_refused, 1);
        let stage = status.stages.remove(0);
        (stage.revision, stage.error)
    };
    pair.settle();
    let reason = "a compress gate needs the layered interface; this stage has none";
    assert_eq!(shown(&pair), (1, Some(reason.into())));
    assert_eq!(pair.stage.plan().gates().count(), 6, "it keeps what it had");
    // Rates for the gates that it has do not make up for the rest.
    pair.run(Span(3 * Span::SECOND.0));
    assert_eq!(shown(&pair), (1, Some(reason.into())));
    pair.controller.apply(pair.now, 3, Policy::parse(POLICY).unwrap());
    pair.settle();
    assert_eq!(shown(&pair), (3, None));
}

#[test]
fn without_its_controller_a_stage_goes_back_to_its_promise() {
    let mut pair = Pair::new("oltp");
    pair.run(Span::SECOND);
    assert_eq!(pair.rate("oltp:bandwidth"), Some(1_000 << 20));
    // The controller hangs: it takes everything and says nothing.
    pair.is_connected = false;
    let silent = Span(3 * Span::SECOND.0);
    pair.now = pair.now.after(silent);
    pair.stage.on_deadline(pair.now);
    assert_eq!(pair.rate("oltp:bandwidth"), Some(600 << 20));
}
