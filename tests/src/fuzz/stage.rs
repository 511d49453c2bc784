//! The stage's machine: whatever a controller says, the stage stays whole, answers once, and asks
//! for nothing that a segment cannot hold.

use std::collections::BTreeSet;

use tidegate_algo::classify::channel::{CHANNELS_MAX, QUEUES_MAX, WORDS_MAX};
use tidegate_model::gate::{Burst, Throughput, Unit};
use tidegate_model::policy::Fallback;
use tidegate_model::{
    Bytes, ChannelSpec, Class, Conditions, GateSpec, OperationSet, SizeRange, Span, StageId,
    TenantId, Time,
};
use tidegate_proto::codec::Decoder;
use tidegate_proto::message::{
    Differentiation, Enforcement, FromStage, Housekeeping, Rule, StageInfo, ToStage, VERSION,
};
use tidegate_proto::stage::plan::{Change, GateSetup, Plan};
use tidegate_proto::stage::{Machine, Output};

use super::codec;
use super::tape::Tape;

/// Gates that a segment has cells for.
const GATES_MAX: usize = tidegate_model::policy::limits::GATES;
/// Names that rules are about; few, so that they meet again.
const NAMES: [&str; 5] = ["a", "b", "c", "kv:bandwidth", ""];

/// The first byte says whether the stage carries content; the rest is what happens to it.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let carries_content = tape.flag();
    let mut world = StageWorld {
        machine: Machine::new(Time::ZERO, StageInfo::default(), carries_content),
        carries_content,
        now: Time::ZERO,
        is_linked: false,
        has_ended: false,
    };
    while !tape.is_over() && !world.has_ended {
        world.step(&mut tape);
    }
    if !world.has_ended {
        world.has_headroom_for_everything();
    }
}

/// The surroundings of the machine, as in a live stage.
struct StageWorld {
    machine: Machine,
    /// Whether gates may transform content. Only these keep their numbers.
    carries_content: bool,
    now: Time,
    is_linked: bool,
    has_ended: bool,
}

impl StageWorld {
    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(10) {
            0 => self.wait(tape),
            1 if self.is_linked => {
                self.is_linked = false;
                self.machine.on_closed(self.now, "it is gone");
                self.act(tape);
            }
            2 if self.is_linked => {
                let length = tape.below(200);
                let mut decoder = Decoder::<ToStage>::new();
                decoder.extend(tape.bytes(length));
                while let Ok(Some(message)) = decoder.next_message() {
                    self.receive(message, tape);
                }
            }
            3 if tape.byte() > 250 => {
                self.machine.on_end();
                self.has_ended = true;
                self.act(tape);
                assert!(!self.is_linked, "the end leaves the connection open");
            }
            4 => self.apply_own(tape),
            _ if self.is_linked => {
                let message = message(tape);
                self.receive(message, tape);
            }
            _ => self.wait(tape),
        }
        check_plan(self.machine.plan());
    }

    /// Lets time pass until something is due, or a little longer.
    fn wait(&mut self, tape: &mut Tape<'_>) {
        let Some(deadline) = self.machine.next_deadline() else { return };
        self.now = self.now.max(deadline).after(Span(u64::from(tape.byte()) << 20));
        self.machine.on_deadline(self.now);
        self.act(tape);
        let next = self.machine.next_deadline();
        assert!(next.is_none_or(|next| next > self.now), "it would spin: {:?}", self.machine);
    }

    fn receive(&mut self, message: ToStage, tape: &mut Tape<'_>) {
        if !self.is_linked {
            return;
        }
        let before = Outline::of(self.machine.plan());
        let applies = matches!(message, ToStage::Apply { .. });
        self.machine.on_message(self.now, message);
        let (applied, installs) = self.act(tape);
        assert_eq!(applied.len(), usize::from(applies), "one answer to one change");
        if applied.contains(&false) {
            assert_eq!(installs, 0, "what was refused takes effect");
            assert!(before == Outline::of(self.machine.plan()), "half of a change was kept");
        }
    }

    fn apply_own(&mut self, tape: &mut Tape<'_>) {
        let before = Outline::of(self.machine.plan());
        let rules = rules(tape);
        if self.machine.apply_own(&rules).is_err() {
            assert!(before == Outline::of(self.machine.plan()), "half of a change was kept");
        }
        self.act(tape);
    }

    /// Does what the machine says. Returns which changes it says took effect, and how many it
    /// installed.
    fn act(&mut self, tape: &mut Tape<'_>) -> (Vec<bool>, usize) {
        let (mut applied, mut installs) = (Vec::new(), 0);
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Connect => {
                    assert!(!self.is_linked, "a second connection");
                    self.is_linked = !tape.byte().is_multiple_of(4);
                    match self.is_linked {
                        true => self.machine.on_connected(self.now),
                        false => self.machine.on_closed(self.now, "nobody listens"),
                    }
                }
                Output::Close => self.is_linked = false,
                Output::Send(FromStage::Applied { error, .. }) => applied.push(error.is_none()),
                Output::Install(change) => {
                    check_change(&change);
                    installs += 1;
                }
                Output::Hello(_) | Output::Send(_) | Output::Report { .. } | Output::Notice(_) => {}
            }
        }
        (applied, installs)
    }

    /// However it came to be what it is, a stage that is cleared can be made as large as any: no
    /// number is lost on the way, but for those that stay with gates which transform content, and
    /// the error says so. And what fills it can be replaced by something else that does.
    fn has_headroom_for_everything(&mut self) {
        let clear = || Rule::Housekeeping(Housekeeping::Clear);
        self.machine.apply_own(&[clear()]).expect("everything can be removed");
        for name in ["one", "other"] {
            let mut rules = vec![clear()];
            for number in 0..GATES_MAX {
                let spec = match number {
                    0..QUEUES_MAX => GateSpec::Concurrency { depth: 1 },
                    _ => GateSpec::NoOp,
                };
                rules.push(set_gate(&format!("{name} {number}"), spec));
            }
            for number in 0..CHANNELS_MAX {
                rules.push(set_channel(&format!("{name} {number}"), Vec::new()));
            }
            let made = self.machine.apply_own(&rules);
            let is_kept =
                |reason: &str| reason.contains("stay with gates that compress or encrypt");
            let is_explained =
                self.carries_content && made.as_ref().is_err_and(|error| is_kept(&error.reason));
            assert!(made.is_ok() || is_explained, "there is no room for {name}: {made:?}");
            while self.machine.poll_output().is_some() {}
        }
    }
}

/// A plan as far as it can be compared.
#[derive(PartialEq)]
struct Outline {
    gates: Vec<(String, tidegate_proto::stage::plan::Gate)>,
    channels: Vec<(String, tidegate_proto::stage::plan::Channel)>,
    rules: Vec<(Conditions, String)>,
}

impl Outline {
    fn of(plan: &Plan) -> Self {
        Self {
            gates: plan.gates().map(|(name, gate)| (name.into(), gate.clone())).collect(),
            channels: plan.channels().map(|(name, c)| (name.into(), c.clone())).collect(),
            rules: plan.rules().to_vec(),
        }
    }
}

/// No two things share a number, and every name leads somewhere.
fn check_plan(plan: &Plan) {
    let distinct =
        |numbers: Vec<u8>| numbers.iter().collect::<BTreeSet<_>>().len() == numbers.len();
    assert!(distinct(plan.gates().map(|(_, gate)| gate.number).collect()), "{plan:?}");
    assert!(distinct(plan.gates().filter_map(|(_, gate)| gate.queue).collect()), "{plan:?}");
    assert!(distinct(plan.channels().map(|(_, channel)| channel.number).collect()), "{plan:?}");
    let known: BTreeSet<&str> = plan.channels().map(|(name, _)| name).collect();
    assert!(plan.rules().iter().all(|(_, name)| known.contains(name.as_str())), "{plan:?}");
    let gates: BTreeSet<&str> = plan.gates().map(|(name, _)| name).collect();
    let mut named = plan.channels().flat_map(|(_, channel)| &channel.spec.gates);
    assert!(named.all(|name| gates.contains(name.as_str())), "{plan:?}");
}

/// Checks that a change fits the segment.
fn check_change(change: &Change) {
    for gate in &change.gates {
        assert!(usize::from(gate.number) < GATES_MAX);
        if let GateSetup::Queue { queue, .. } = gate.setup {
            assert!(usize::from(queue) < QUEUES_MAX);
        }
        if let GateSetup::Bucket { burst, .. } = gate.setup {
            assert!(burst > 0, "a bucket that never opens");
        }
    }
    assert!(change.channels.iter().all(|channel| usize::from(channel.number) < CHANNELS_MAX));
    assert!(change.words.as_ref().is_none_or(|words| words.len() <= WORDS_MAX));
    assert!(change.holds.iter().all(|hold| usize::from(hold.number) < GATES_MAX));
    let set: BTreeSet<u8> = change.gates.iter().map(|gate| gate.number).collect();
    assert!(change.retired.iter().all(|number| !set.contains(number)), "set and retired");
}

fn message(tape: &mut Tape<'_>) -> ToStage {
    match tape.below(16) {
        0 => ToStage::Lease { round: tape.number(), length: Span(tape.number() >> 20) },
        1 => ToStage::Collect { round: tape.number(), detail: tape.flag() },
        2 if tape.byte() > 200 => ToStage::Refused {
            version: tape.word() as u16,
            reason: "full".into(),
            retry: tape.flag(),
        },
        3 => ToStage::Welcome {
            version: if tape.byte() > 250 { tape.word() as u16 } else { VERSION },
            stage: StageId(tape.number()),
            silence_max: Span(tape.number() >> 20),
            fallback: *tape.pick(&[Fallback::Keep, Fallback::Reservation, Fallback::Unlimited]),
        },
        _ => ToStage::Apply { revision: tape.number(), rules: rules(tape) },
    }
}

fn rules(tape: &mut Tape<'_>) -> Vec<Rule> {
    (0..=tape.below(8)).map(|_| rule(tape)).collect()
}

fn name(tape: &mut Tape<'_>) -> String {
    (*tape.pick(&NAMES)).into()
}

fn set_gate(name: &str, spec: GateSpec) -> Rule {
    Rule::Housekeeping(Housekeeping::SetGate { name: name.into(), spec })
}

fn set_channel(name: &str, gates: Vec<String>) -> Rule {
    let (name, tenant, class) = (name.into(), TenantId(1), Class::High);
    Rule::Housekeeping(Housekeeping::SetChannel(ChannelSpec { name, tenant, class, gates }))
}

fn rule(tape: &mut Tape<'_>) -> Rule {
    match tape.below(12) {
        2 => Rule::Housekeeping(Housekeeping::Clear),
        3 => Rule::Differentiation(Differentiation::Remove { index: tape.word() }),
        4 => Rule::Differentiation(Differentiation::Default { channel: name(tape) }),
        5 => Rule::Enforcement(Enforcement::Rate { gate: name(tape), rate: throughput(tape) }),
        6 => Rule::hold(name(tape), Span(tape.number())),
        7 => Rule::Differentiation(Differentiation::Insert {
            index: tape.word(),
            conditions: conditions(tape),
            channel: name(tape),
        }),
        8 | 9 => {
            let gates = (0..tape.below(4)).map(|_| name(tape)).collect();
            let name = name(tape);
            set_channel(&name, gates)
        }
        _ => {
            let name = name(tape);
            set_gate(&name, spec(tape))
        }
    }
}

fn throughput(tape: &mut Tape<'_>) -> Throughput {
    let unit = *tape.pick(&[Unit::Bytes, Unit::Bytes, Unit::Operations]);
    Throughput::new(unit, tape.number())
}

fn spec(tape: &mut Tape<'_>) -> GateSpec {
    let depth = tape.word();
    match tape.below(8) {
        0 => GateSpec::NoOp,
        1 => GateSpec::FairQueue { depth, weights: vec![(name(tape), tape.word())] },
        2 => GateSpec::Priority { depth, order: (0..tape.below(20)).map(|_| name(tape)).collect() },
        3 => GateSpec::Concurrency { depth },
        4 => GateSpec::LatencyProbe,
        5 => GateSpec::Compress { level: depth as i32 },
        _ => {
            let burst = match tape.flag() {
                true => Burst::Size(Bytes(tape.number())),
                false => Burst::Time(Span(tape.number())),
            };
            GateSpec::TokenBucket { rate: throughput(tape), burst }
        }
    }
}

fn conditions(tape: &mut Tape<'_>) -> Conditions {
    let mut texts = || match tape.below(4) {
        0 => vec!["{a,b}*".to_owned()],
        1 => vec!["/data/**".to_owned(), "x".repeat(tape.below(256))],
        _ => Vec::new(),
    };
    let (path, context, process) = (texts(), texts(), texts());
    let (one, two) = (tape.number(), tape.number());
    let size = SizeRange { min: Bytes(one.min(two)), max: Bytes(one.max(two)) };
    let operation = "metadata".parse().unwrap_or(OperationSet::EMPTY);
    let operation = if tape.flag() { operation } else { Conditions::default().operation };
    Conditions { path, context, process, size, operation, ..Conditions::default() }
}

/// A stage that is made in order, with the real messages behind it, and one that is made and
/// unmade.
pub fn seeds() -> Vec<Vec<u8>> {
    let frames: Vec<Vec<u8>> = codec::to_stage().iter().map(codec::frame).collect();
    let short_frames = frames.iter().filter(|frame| frame.len() < 200);
    let short_frames: Vec<u8> =
        short_frames.flat_map(|frame| [&[2, frame.len() as u8][..], frame].concat()).collect();
    let connected = vec![0, 0, 1, 1];
    let numbers = |step: u8| (0..250u8).map(move |at| at.wrapping_mul(step));
    vec![
        [connected.clone(), short_frames].concat(),
        [connected.clone(), numbers(37).collect()].concat(),
        [connected, numbers(91).collect()].concat(),
        numbers(53).collect(),
    ]
}
