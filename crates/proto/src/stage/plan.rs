//! The plan of a stage: gates, channels and rules by name, and their numbers in the segment.
//!
//! A message's rules are applied to a draft. If one is wrong the draft is thrown away and the stage
//! is as it was; if all are right the draft is compiled and becomes the plan, and the difference is
//! the [`Change`] to the segment. Gates and channels keep their numbers as long as their names
//! live, so that a new policy does not move the counters, tokens or waiters of those that it leaves
//! alone.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tidegate_algo::classify::channel::{
    self, CHANNELS_MAX, ChannelEntry, FLOWS_MAX, GATES_PER_CHANNEL, QUEUES_MAX, Source,
};
use tidegate_model::gate::Throughput;
use tidegate_model::policy::{Fallback, limits};
use tidegate_model::{ChannelSpec, Conditions, GateSpec, Span};

use crate::message::{Differentiation, Enforcement, Housekeeping, Rule, RuleError};

mod setup;

pub use setup::GateSetup;

/// The most gates of a stage: numbers are bytes, and one of them means "none".
const GATES_MAX: usize = limits::GATES;
/// The number of a new gate or channel, before the whole message is known and numbers are given
/// out. No gate has it: there are 255, from zero; and no channel.
const UNNUMBERED: u8 = u8::MAX;
/// A new transformation takes a free number while at most this many numbers belong to
/// transformations without a gate, else the oldest of those. So many changes of a key pass before a
/// number stands for another one.
const TRANSFORMATIONS_KEPT: usize = 16;
/// The most queue gates that one request passes: it holds a permit at each.
const QUEUES_PER_CHANNEL: usize = limits::QUEUES_PER_CHANNEL;

/// A gate by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Its number in the segment.
    pub number: u8,
    /// The queue behind it, if it is a queue gate.
    pub queue: Option<u8>,
    /// Its kind and parameters; the rate of a bucket here is the one that is safe without a
    /// controller.
    pub spec: GateSpec,
    /// The rate in force, of a bucket.
    pub rate: Option<Throughput>,
}

/// A channel by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its number in the segment.
    pub number: u8,
    /// Its name, tenant, class and gates.
    pub spec: ChannelSpec,
}

/// A change to a segment, to be applied in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Gates to set.
    pub gates: Vec<SetGate>,
    /// Channels whose counters begin at zero, and whether every request is timed.
    pub channels: Vec<SetChannel>,
    /// Buckets that are to let no request pass for a while.
    pub holds: Vec<Hold>,
    /// The compiled table to publish, if it changes.
    pub words: Option<Vec<u64>>,
    /// Gates that are no longer used; requests that wait there are to be sorted anew.
    pub retired: Vec<u8>,
}

/// A gate to set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetGate {
    /// Its number.
    pub number: u8,
    /// Whether it is new, so that its counters begin at zero.
    pub fresh: bool,
    /// Its behaviour.
    pub setup: GateSetup,
}

/// A bucket that is to let no request pass for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The number of the gate.
    pub number: u8,
    /// For how long from now; zero to end an earlier hold.
    pub span: Span,
}

/// A channel to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetChannel {
    /// Its number.
    pub number: u8,
    /// Whether it is new, so that its counters begin at zero.
    pub fresh: bool,
    /// Whether every request is timed.
    pub probed: bool,
}

/// Gates, channels and rules.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    layered: bool,
    gates: BTreeMap<String, Gate>,
    channels: BTreeMap<String, Channel>,
    rules: Vec<(Conditions, String)>,
    default: Option<String>,
    /// Numbers in the order in which they became free: the one that was free longest is used next,
    /// so that a late reader of an old table finds an idle gate rather than a stranger's.
    free_gates: Numbers,
    transformations: Transformations,
    free_channels: Numbers,
    free_queues: Numbers,
}

/// Numbers to give out.
#[derive(Clone, Debug, Default)]
struct Numbers {
    given: usize,
    freed: VecDeque<u8>,
}

impl Numbers {
    fn take(&mut self, most: usize) -> Option<u8> {
        if self.given < most {
            self.given += 1;
            return Some((self.given - 1) as u8);
        }
        self.freed.pop_front()
    }

    fn give_back(&mut self, number: u8) {
        self.freed.push_back(number);
    }
}

/// The numbers of gates that transform content, the one longest out of use first.
///
/// Such a number belongs to the transformation, not to a name. When no gate makes the
/// transformation any more, the number goes to another one or stays where it is. So a request that
/// an older table has sorted still finds a gate that transforms: its content does not pass in plain
/// text because its gate is gone, or has become one that only counts.
#[derive(Clone, Debug, Default)]
struct Transformations(VecDeque<(GateSpec, u8)>);

type PlanResult<T> = Result<T, String>;

impl Plan {
    /// A plan with nothing in it.
    pub fn new(layered: bool) -> Self {
        Self { layered, ..Self::default() }
    }

    /// Gates by name.
    pub fn gates(&self) -> impl Iterator<Item = (&str, &Gate)> {
        self.gates.iter().map(|(name, gate)| (name.as_str(), gate))
    }

    /// Channels by name.
    pub fn channels(&self) -> impl Iterator<Item = (&str, &Channel)> {
        self.channels.iter().map(|(name, channel)| (name.as_str(), channel))
    }

    /// Whether there is a gate of this name.
    pub fn has_gate(&self, name: &str) -> bool {
        self.gates.contains_key(name)
    }

    /// Rules in order, with the name of the channel that each one leads to.
    pub fn rules(&self) -> &[(Conditions, String)] {
        &self.rules
    }

    /// Applies `rules`, all or none, and returns the change to the segment, if any.
    ///
    /// # Errors
    /// Which rule is wrong, and why; the plan is then as it was.
    pub fn apply(&mut self, rules: &[Rule]) -> Result<Option<Change>, RuleError> {
        let mut draft = self.clone();
        let mut before = Before { gates: self.gates.clone(), channels: self.channels.clone() };
        for (index, rule) in rules.iter().enumerate() {
            let error = |reason| RuleError { rule: index as u32, reason };
            draft.apply_one(rule, &before).map_err(error)?;
        }
        let last = rules.len().saturating_sub(1) as u32;
        let error = |reason| RuleError { rule: last, reason };
        draft.number(&before).map_err(error)?;
        let structural = |rule: &Rule| !matches!(rule, Rule::Enforcement(_));
        let mut words = None;
        if rules.iter().any(structural) {
            draft.check().map_err(error)?;
            words = Some(draft.compile().map_err(error)?);
        }
        let mut change = draft.change_from(&mut before, words);
        change.holds = draft.holds(rules);
        *self = draft;
        Ok(if change == Change::default() { None } else { Some(change) })
    }

    fn apply_one(&mut self, rule: &Rule, before: &Before) -> PlanResult<()> {
        match rule {
            Rule::Housekeeping(rule) => self.keep_house(rule, before),
            Rule::Differentiation(rule) => self.differentiate(rule),
            Rule::Enforcement(rule) => self.enforce(rule),
        }
    }

    fn keep_house(&mut self, rule: &Housekeeping, before: &Before) -> PlanResult<()> {
        match rule {
            Housekeeping::SetGate { name, spec } => self.set_gate(name, spec, before),
            Housekeeping::SetChannel(spec) => {
                let known = self.channels.get(&spec.name).or(before.channels.get(&spec.name));
                let number = known.map_or(UNNUMBERED, |channel| channel.number);
                self.channels.insert(spec.name.clone(), Channel { number, spec: spec.clone() });
                Ok(())
            }
            Housekeeping::UnusedGate | Housekeeping::UnusedChannel => {
                Err(String::from("this release has no such rule"))
            }
            Housekeeping::Clear => {
                self.gates.clear();
                self.channels.clear();
                self.rules.clear();
                self.default = None;
                Ok(())
            }
        }
    }

    fn set_gate(&mut self, name: &str, spec: &GateSpec, before: &Before) -> PlanResult<()> {
        if spec.transforms() && !self.layered {
            let kind = spec.kind();
            return Err(format!("a {kind} gate needs the layered interface; this stage has none"));
        }
        // The number of a transformation is its own: none is kept where either is one.
        let kept = |gate: &&Gate| !gate.spec.transforms() && !spec.transforms();
        let known = self.gates.get(name).filter(kept);
        let known = known.or_else(|| before.gates.get(name).filter(kept));
        let number = known.map_or(UNNUMBERED, |gate| gate.number);
        let queue = known.and_then(|gate| gate.queue).filter(|_| flows(spec).is_some());
        let rate = match spec {
            GateSpec::TokenBucket { rate, .. } => Some(*rate),
            _ => None,
        };
        self.gates.insert(name.into(), Gate { number, queue, spec: spec.clone(), rate });
        Ok(())
    }

    fn differentiate(&mut self, rule: &Differentiation) -> PlanResult<()> {
        let known = |channel: &String| match self.channels.contains_key(channel) {
            true => Ok(()),
            false => Err(no_such("channel", channel)),
        };
        match rule {
            Differentiation::Insert { index, conditions, channel } => {
                known(channel)?;
                let index = (*index as usize).min(self.rules.len());
                self.rules.insert(index, (conditions.clone(), channel.clone()));
            }
            Differentiation::Remove { index } => {
                if *index as usize >= self.rules.len() {
                    return Err(format!("there is no rule {index}"));
                }
                self.rules.remove(*index as usize);
            }
            Differentiation::Default { channel } => {
                known(channel)?;
                self.default = Some(channel.clone());
            }
        }
        Ok(())
    }

    fn enforce(&mut self, rule: &Enforcement) -> PlanResult<()> {
        let (Enforcement::Rate { gate: name, .. } | Enforcement::Hold { gate: name, .. }) = rule;
        let gate = self.gates.get_mut(name).ok_or_else(|| no_such("gate", name))?;
        let GateSpec::TokenBucket { rate, .. } = &gate.spec else {
            return Err(format!("a {} gate has no such state", gate.spec.kind()));
        };
        let Enforcement::Rate { rate: new, .. } = rule else { return Ok(()) };
        if rate.unit() != new.unit() {
            return Err(format!("gate {name:?} counts in another unit than {new}"));
        }
        gate.rate = Some(*new);
        Ok(())
    }

    /// The holds of accepted rules, by the number of the gate.
    fn holds(&self, rules: &[Rule]) -> Vec<Hold> {
        let hold = |rule: &Rule| {
            let Rule::Enforcement(Enforcement::Hold { gate, span }) = rule else { return None };
            Some(Hold { number: self.gates.get(gate)?.number, span: *span })
        };
        rules.iter().filter_map(hold).collect()
    }

    /// Takes back the numbers of gates and channels that are gone and gives numbers to new ones; in
    /// this order, so that a stage that is full can be made anew.
    fn number(&mut self, before: &Before) -> PlanResult<()> {
        for (name, old) in &before.gates {
            let kept = self.gates.get(name);
            let moved = kept.is_none_or(|kept| kept.number != old.number);
            if moved && !old.spec.transforms() {
                self.free_gates.give_back(old.number);
            }
            if let Some(queue) = old.queue
                && kept.is_none_or(|kept| kept.queue.is_none())
            {
                self.free_queues.give_back(queue);
            }
        }
        for (name, old) in &before.channels {
            if !self.channels.contains_key(name) {
                self.free_channels.give_back(old.number);
            }
        }
        for gate in self.gates.values_mut() {
            if gate.number == UNNUMBERED && !gate.spec.transforms() {
                let number = self.free_gates.take(GATES_MAX);
                gate.number = number.ok_or_else(|| self.transformations.too_many())?;
            }
            if gate.queue.is_none() && flows(&gate.spec).is_some() {
                let queue = self.free_queues.take(QUEUES_MAX);
                let queue = queue.ok_or_else(|| format!("more than {QUEUES_MAX} queue gates"))?;
                gate.queue = Some(queue);
            }
        }
        for channel in self.channels.values_mut().filter(|one| one.number == UNNUMBERED) {
            let number = self.free_channels.take(CHANNELS_MAX);
            channel.number = number.ok_or_else(|| format!("more than {CHANNELS_MAX} channels"))?;
        }
        self.transformations.number(&mut self.gates, &mut self.free_gates)
    }

    /// Checks the plan as a whole: every name exists, no bound is exceeded, and no requests wait
    /// for each other for good.
    fn check(&self) -> PlanResult<()> {
        let mut orders = Orders::default();
        for (name, channel) in &self.channels {
            let gates = &channel.spec.gates;
            if gates.len() > GATES_PER_CHANNEL {
                return Err(format!("channel {name:?} has more than {GATES_PER_CHANNEL} gates"));
            }
            let mut queues = Vec::new();
            for (index, gate) in gates.iter().enumerate() {
                let found = self.gates.get(gate).ok_or_else(|| no_such("gate", gate))?;
                if gates[..index].contains(gate) {
                    return Err(format!(
                        "channel {name:?} names gate {gate:?} twice; name it once, or make a \
                         second gate"
                    ));
                }
                if found.queue.is_some() {
                    queues.push(gate.as_str());
                }
            }
            if queues.len() > QUEUES_PER_CHANNEL {
                let most = QUEUES_PER_CHANNEL;
                return Err(format!("channel {name:?} has more than {most} queue gates"));
            }
            orders.add(name, &queues)?;
        }
        let named = self.rules.iter().map(|(_, channel)| channel).chain(&self.default);
        match named.into_iter().find(|channel| !self.channels.contains_key(*channel)) {
            Some(channel) => Err(no_such("channel", channel)),
            None => Ok(()),
        }
    }

    fn compile(&self) -> PlanResult<Vec<u64>> {
        let number = |name: &String| self.channels.get(name).map_or(u8::MAX, |c| c.number);
        let rules = self.rules.iter().map(|(conditions, name)| (conditions.clone(), number(name)));
        let rules = rules.collect::<Vec<_>>();
        let channels = self.channels.values().map(|channel| self.entry(channel));
        let channels = channels.collect::<Vec<_>>();
        let mut queues = (0..self.free_queues.given).map(|_| (Vec::new(), 0)).collect::<Vec<_>>();
        for gate in self.gates.values() {
            if let (Some(queue), Some(flows)) = (gate.queue, flows(&gate.spec)) {
                if flows.0.len() >= FLOWS_MAX {
                    return Err(format!("a queue gate names {} contexts or more", FLOWS_MAX));
                }
                queues[usize::from(queue)] = flows;
            }
        }
        let default = self.default.as_ref().map(number);
        let source = Source { rules: &rules, default, channels: &channels, queues: &queues };
        channel::compile(&source).map_err(|error| error.to_string())
    }

    fn entry(&self, channel: &Channel) -> ChannelEntry {
        let mut gates = [None; GATES_PER_CHANNEL];
        let numbers = channel.spec.gates.iter().filter_map(|name| self.gates.get(name));
        for (slot, gate) in gates.iter_mut().zip(numbers) {
            *slot = Some(gate.number);
        }
        let ChannelSpec { tenant, class, .. } = channel.spec;
        ChannelEntry { channel: channel.number, tenant, class, gates }
    }

    fn change_from(&self, before: &mut Before, words: Option<Vec<u64>>) -> Change {
        let mut change = Change { words, ..Change::default() };
        for (name, gate) in &self.gates {
            let old = before.gates.remove(name);
            if old.as_ref() != Some(gate) {
                // A gate that has become another kind begins anew, and so does one that has moved
                // or counts in another unit.
                let unit = |gate: &Gate| gate.rate.map(Throughput::unit);
                let is_same = |old: &Gate| {
                    old.number == gate.number
                        && old.spec.kind() == gate.spec.kind()
                        && unit(old) == unit(gate)
                };
                let (number, fresh) = (gate.number, !old.as_ref().is_some_and(is_same));
                change.gates.push(SetGate { number, fresh, setup: GateSetup::of(gate) });
            }
            change.retired.extend(old.map(|old| old.number));
        }
        change.retired.extend(before.gates.values().map(|gate| gate.number));
        change.retired.retain(|number| !self.gates.values().any(|gate| gate.number == *number));
        for (name, channel) in &self.channels {
            let old = before.channels.remove(name);
            if old.as_ref() == Some(channel) && change.words.is_none() {
                continue;
            }
            let probe = |gate: &String| {
                self.gates.get(gate).is_some_and(|gate| gate.spec == GateSpec::LatencyProbe)
            };
            let probed = channel.spec.gates.iter().any(probe);
            let number = channel.number;
            change.channels.push(SetChannel { number, fresh: old.is_none(), probed });
        }
        change
    }

    /// Goes over to the safe rates after a lease: none is higher than before, as the controller may
    /// have given the difference to others. Returns the change to the segment, if any.
    pub fn resign(&mut self) -> Option<Change> {
        self.set_rates(|safe, now| if now.per_second() < safe.per_second() { now } else { safe })
    }

    /// Puts the policy's fallback in force, and returns the change to the segment, if any.
    pub fn fall_back(&mut self, fallback: Fallback) -> Option<Change> {
        self.set_rates(|safe, now| match fallback {
            Fallback::Keep => now,
            Fallback::Reservation => safe,
            Fallback::Unlimited => Throughput::new(safe.unit(), u64::MAX),
        })
    }

    /// Sets the rate of each bucket, from its safe rate and the one in force.
    fn set_rates(&mut self, rate: impl Fn(Throughput, Throughput) -> Throughput) -> Option<Change> {
        let mut change = Change::default();
        for gate in self.gates.values_mut() {
            let GateSpec::TokenBucket { rate: safe, .. } = gate.spec else { continue };
            let rate = rate(safe, gate.rate.unwrap_or(safe));
            if gate.rate != Some(rate) {
                gate.rate = Some(rate);
                let number = gate.number;
                change.gates.push(SetGate { number, fresh: false, setup: GateSetup::of(gate) });
            }
        }
        (!change.gates.is_empty()).then_some(change)
    }
}

/// The gates and channels before a message's rules.
struct Before {
    gates: BTreeMap<String, Gate>,
    channels: BTreeMap<String, Channel>,
}

impl Transformations {
    /// Gives every gate that transforms content the number of its transformation.
    fn number(&mut self, gates: &mut BTreeMap<String, Gate>, free: &mut Numbers) -> PlanResult<()> {
        let is_used = |(spec, _): &(GateSpec, u8)| gates.values().any(|gate| gate.spec == *spec);
        let known = core::mem::take(&mut self.0);
        let (mut used, mut unused): (VecDeque<_>, VecDeque<_>) =
            known.into_iter().partition(is_used);
        for gate in gates.values_mut().filter(|gate| gate.spec.transforms()) {
            if let Some((_, number)) = used.iter().find(|(spec, _)| *spec == gate.spec) {
                gate.number = *number;
                continue;
            }
            let spare = unused.len() > TRANSFORMATIONS_KEPT;
            let number = if spare { None } else { free.take(GATES_MAX) };
            let number = number.or_else(|| unused.pop_front().map(|(_, number)| number));
            gate.number = number.ok_or_else(|| format!("more than {GATES_MAX} gates"))?;
            used.push_back((gate.spec.clone(), gate.number));
        }
        self.0 = unused;
        self.0.append(&mut used);
        Ok(())
    }

    fn too_many(&self) -> String {
        match self.0.len() {
            0 => format!("more than {GATES_MAX} gates"),
            kept => format!(
                "more than {GATES_MAX} gates, where {kept} numbers stay with gates that compress \
                 or encrypt, or did; a program that is started anew has them all again"
            ),
        }
    }
}

/// Pairs of queue gates in the order of a channel, with its name. A request holds its permit at one
/// while it waits at the next, so requests in a circle of gates wait for each other for good.
#[derive(Default)]
struct Orders<'a>(Vec<(&'a str, &'a str, &'a str)>);

impl<'a> Orders<'a> {
    /// Adds a channel's queue gates in its order, unless other channels contradict it.
    fn add(&mut self, channel: &'a str, queues: &[&'a str]) -> PlanResult<()> {
        for (index, second) in queues.iter().enumerate() {
            for first in &queues[..index] {
                if let Some(others) = self.way(second, first, &mut Vec::new()) {
                    return Err(format!(
                        "channel {channel:?} passes queue gate {first:?} before {second:?}, and \
                         {} the other way round, so that their requests would wait for each other \
                         for good; name these gates in the same order in each of them",
                        others.join(", ")
                    ));
                }
                if !self.0.iter().any(|known| (known.0, known.1) == (*first, *second)) {
                    self.0.push((first, second, channel));
                }
            }
        }
        Ok(())
    }

    /// The channels by which one comes from `from` to `to`, going forward, if one does.
    fn way(&self, from: &str, to: &str, seen: &mut Vec<&'a str>) -> Option<Vec<String>> {
        for (first, second, channel) in &self.0 {
            if *first != from || seen.contains(second) {
                continue;
            }
            seen.push(second);
            let rest = if *second == to { Some(Vec::new()) } else { self.way(second, to, seen) };
            if let Some(mut rest) = rest {
                rest.insert(0, format!("channel {channel:?}"));
                return Some(rest);
            }
        }
        None
    }
}

fn no_such(what: &str, name: &str) -> String {
    format!("there is no {what} {name:?}")
}

/// Of a queue gate, its patterns with their flows, and the flow of contexts that match none.
fn flows(spec: &GateSpec) -> Option<(Vec<(String, u8)>, u8)> {
    let numbered = |patterns: &mut dyn Iterator<Item = &String>| {
        patterns.cloned().zip(0..).collect::<Vec<(String, u8)>>()
    };
    match spec {
        GateSpec::FairQueue { weights, .. } => {
            Some((numbered(&mut weights.iter().map(|(pattern, _)| pattern)), 15))
        }
        GateSpec::Priority { order, .. } => {
            Some((numbered(&mut order.iter()), order.len().min(15) as u8))
        }
        GateSpec::Concurrency { .. } => Some((Vec::new(), 0)),
        _ => None,
    }
}
