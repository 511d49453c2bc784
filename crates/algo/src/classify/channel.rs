//! Request classification: finds the channel of a request by rules that are compiled to bit masks.
//!
//! # Problem
//! A stage has tens of rules over eight classifiers, five of them strings with wildcards, and the
//! first rule that matches decides (PAIO §4). A request must find its channel in a few nanoseconds,
//! without hashing or comparing a string, and the rules may be replaced meanwhile.
//!
//! # Mechanism
//! Every rule is one bit. For each classifier, each value has a [`Mask`]: the rules that accept it.
//! A request is accepted by the rules in the intersection of its masks, and the lowest bit there is
//! the first matching rule. Operation and size have their masks in tables; the masks of a process,
//! a thread and an open file are worked out once, when the thing is first seen, by
//! [`RuleTable::accepts`], and kept beside it.
//!
//! Example: rules `0: operation = write, context = flush`, `1: path = /data/**`, `2: (anything)`.
//! A write of a thread without context to `/data/a` meets `operation: 0b111`, `context: 0b110` and
//! `path: 0b111`; the intersection is `0b110`, and rule 1 decides.
//!
//! # Form
//! A compiled [`RuleTable`] is a sequence of 64-bit words with offsets instead of pointers, so that
//! it can be copied into a memory segment and read there by processes that map it anywhere. A
//! reader checks every offset: words that are no table give some channel or none, never a panic.
//! The segment's owner sees to it that a reader notices when the words change under it.
//!
//! Queue gates distinguish requests by context as well. Their patterns are compiled alongside, and
//! a context's [`Flows`] names for each queue gate the flow that the context belongs to.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use tidegate_model::operation::OPERATIONS;
use tidegate_model::policy::limits;
use tidegate_model::{Bytes, Class, Conditions, Operation, TenantId};

/// The most rules in a table.
pub const RULES_MAX: usize = limits::RULES;
/// The most channels in a table.
pub const CHANNELS_MAX: usize = limits::CHANNELS;
/// The most gates that a channel has.
pub const GATES_PER_CHANNEL: usize = limits::GATES_PER_CHANNEL;
/// The most queue gates in a table.
pub const QUEUES_MAX: usize = limits::QUEUES;
/// The most flows that a queue gate distinguishes.
pub const FLOWS_MAX: usize = limits::FLOWS;
/// The longest table, in words: 64 KiB. Rules with patterns of 40 characters fit some 1,000 times.
pub const WORDS_MAX: usize = 8_192;
/// The longest pattern, in bytes, that can be compared on a stack buffer.
pub const PATTERN_MAX: usize = limits::PATTERN;

/// Words of a mask.
const MASK: usize = RULES_MAX / 64;
/// Marks an unused gate of a channel, and "no channel".
const NONE: u8 = 0xff;

/// A set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask(pub [u64; MASK]);

impl Mask {
    /// Every rule.
    pub const ALL: Self = Self([u64::MAX; MASK]);

    /// The rules in both sets.
    #[must_use]
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    fn contains(self, rule: usize) -> bool {
        self.0[rule / 64] >> (rule % 64) & 1 == 1
    }
}

/// Which flow of each queue gate a context belongs to: four bits for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows(pub u64);

impl Flows {
    /// The flow at queue gate `queue`.
    #[inline]
    pub const fn flow(self, queue: usize) -> u8 {
        (self.0 >> ((queue % QUEUES_MAX) * 4) & 0xf) as u8
    }
}

/// Classifiers whose values are strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Classifier {
    /// The thread's name, or what the program set.
    Workflow = 0,
    /// Why the request is made.
    Context = 1,
    /// The executable's file name.
    Process = 2,
    /// The control group's path.
    Cgroup = 3,
    /// The user's name; numbers are tried as well.
    User = 4,
    /// The file's path.
    Path = 5,
}

const CLASSIFIERS: [Classifier; 6] = [
    Classifier::Workflow,
    Classifier::Context,
    Classifier::Process,
    Classifier::Cgroup,
    Classifier::User,
    Classifier::Path,
];

fn patterns(conditions: &Conditions, classifier: Classifier) -> &[String] {
    match classifier {
        Classifier::Workflow => &conditions.workflow,
        Classifier::Context => &conditions.context,
        Classifier::Process => &conditions.process,
        Classifier::Cgroup => &conditions.cgroup,
        Classifier::User => &conditions.user,
        Classifier::Path => &conditions.path,
    }
}

/// A channel as a table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelEntry {
    /// Its number in the stage.
    pub channel: u8,
    /// The tenant that owns the channel's requests.
    pub tenant: TenantId,
    /// How urgent they are.
    pub class: Class,
    /// Its gates by number, in order; the rest is `None`.
    pub gates: [Option<u8>; GATES_PER_CHANNEL],
}

impl ChannelEntry {
    fn words(self) -> [u64; 2] {
        let head = u64::from(self.channel)
            | u64::from(self.tenant.0) << 16
            | u64::from(self.class as u8) << 32;
        [head, u64::from_le_bytes(self.gates.map(|gate| gate.unwrap_or(NONE)))]
    }
}

/// Where a request goes: a [`ChannelEntry`] as it stands in a table, unpacked only as far as
/// needed. Most requests need the channel and its first gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    head: u64,
    gates: u64,
}

impl Destination {
    /// The channel's number in the stage.
    #[inline]
    pub const fn channel(self) -> u8 {
        self.head as u8
    }

    /// The tenant that owns the channel's requests.
    pub const fn tenant(self) -> TenantId {
        TenantId((self.head >> 16) as u16)
    }

    /// How urgent they are.
    pub const fn class(self) -> Class {
        Class::from_nvme_priority((self.head >> 32) as u8)
    }

    /// Its gates by number, in order.
    #[inline]
    pub const fn gates(self) -> Gates {
        Gates(self.gates)
    }
}

/// Gates by number, from the one that a request meets first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates(u64);

impl Iterator for Gates {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let gate = self.0 as u8;
        // The shift fills with `NONE`, so that the iteration also ends for a channel with all its
        // gates.
        self.0 = self.0 >> 8 | u64::from(NONE) << 56;
        (gate != NONE).then_some(gate)
    }
}

/// The input from which a table is compiled.
#[derive(Clone, Debug, Default)]
pub struct Source<'a> {
    /// Rules in order, with the number of the channel that each one names.
    pub rules: &'a [(Conditions, u8)],
    /// The channel of requests that match no rule.
    pub default: Option<u8>,
    /// Every channel.
    pub channels: &'a [ChannelEntry],
    /// For each queue gate its patterns of contexts, with the flow that each one stands for, and
    /// last the flow of contexts that match none.
    pub queues: &'a [(Vec<(String, u8)>, u8)],
}

/// Why rules cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There are more rules than a mask has bits.
    #[error("more than {RULES_MAX} match rules for one stage")]
    TooManyRules,
    /// There are more channels than a stage has counters for.
    #[error("more than {CHANNELS_MAX} channels in one stage")]
    TooManyChannels,
    /// There are more queue gates than a stage has queues.
    #[error("more than {QUEUES_MAX} queue gates in one stage")]
    TooManyQueues,
    /// A pattern is longer than [`PATTERN_MAX`].
    #[error("a pattern of more than {PATTERN_MAX} bytes")]
    PatternTooLong,
    /// The patterns together are longer than a table.
    #[error("patterns of more than 64 KiB in one stage")]
    TableTooLong,
}

// The words of a table, in order.
const HEAD: usize = 0; // rules, channels, sizes, queues: 16 bits each
const DEFAULT: usize = 1; // index into the channels, or NONE; from bit 16 on: classifiers in use
const UNUSED: usize = 2; // per string classifier: rules without a condition on it
const OPERATION: usize = UNUSED + CLASSIFIERS.len() * MASK;
const TARGETS: usize = OPERATION + 16 * MASK; // per rule: index into the channels, eight to a word
const FLOWS: usize = TARGETS + RULES_MAX / 8; // flows of a context that matches no pattern
const PATTERNS: usize = FLOWS + 1; // offset of the patterns, and their number << 32
const CHANNELS: usize = PATTERNS + 1; // two words for each, then the sizes
const SIZES_MAX: usize = limits::SIZES; // bounds, then masks below, between and above them

/// Compiles rules to words.
///
/// # Errors
/// If something does not fit; see [`CompileError`].
pub fn compile(source: &Source<'_>) -> Result<Vec<u64>, CompileError> {
    if source.rules.len() > RULES_MAX {
        return Err(CompileError::TooManyRules);
    }
    if source.channels.len() > CHANNELS_MAX {
        return Err(CompileError::TooManyChannels);
    }
    if source.queues.len() > QUEUES_MAX {
        return Err(CompileError::TooManyQueues);
    }
    let index_of = |wanted: u8| source.channels.iter().position(|entry| entry.channel == wanted);
    let index = |wanted: u8| index_of(wanted).map_or(NONE, |index| index as u8);
    let mut words = alloc::vec![0; CHANNELS];
    for classifier in CLASSIFIERS {
        let offset = UNUSED + classifier as usize * MASK;
        let is_unconditional =
            |conditions: &Conditions| patterns(conditions, classifier).is_empty();
        let mask = rules_that(source, is_unconditional);
        words[offset..offset + MASK].copy_from_slice(&mask.0);
        if (0..source.rules.len()).any(|rule| !mask.contains(rule)) {
            words[DEFAULT] |= 1 << (16 + classifier as u64);
        }
    }
    for (operation, _) in OPERATIONS {
        let mask = rules_that(source, |conditions| conditions.operation.contains(operation));
        let offset = OPERATION + operation as usize * MASK;
        words[offset..offset + MASK].copy_from_slice(&mask.0);
    }
    for (rule, (_, channel)) in source.rules.iter().enumerate() {
        words[TARGETS + rule / 8] |= u64::from(index(*channel)) << (rule % 8 * 8);
    }
    for (queue, (_, default)) in source.queues.iter().enumerate() {
        words[FLOWS] |= u64::from(default % FLOWS_MAX as u8) << (queue * 4);
    }
    let bounds = size_bounds(source);
    if bounds.len() > SIZES_MAX {
        return Err(CompileError::TooManyRules);
    }
    for entry in source.channels {
        words.extend(entry.words());
    }
    words.extend(&bounds);
    for interval in 0..=bounds.len() {
        // Any size of the interval stands for all of it: no rule's range begins inside.
        let size = Bytes(if interval == 0 { 0 } else { bounds[interval - 1] });
        words.extend(rules_that(source, |conditions| conditions.size.contains(size)).0);
    }
    let (rules, channels) = (source.rules.len() as u64, source.channels.len() as u64);
    let (sizes, queues) = (bounds.len() as u64, source.queues.len() as u64);
    words[HEAD] = rules | channels << 16 | sizes << 32 | queues << 48;
    words[DEFAULT] |= u64::from(source.default.map_or(NONE, index));
    add_patterns(source, &mut words)?;
    if words.len() > WORDS_MAX { Err(CompileError::TableTooLong) } else { Ok(words) }
}

fn rules_that(source: &Source<'_>, accepts: impl Fn(&Conditions) -> bool) -> Mask {
    let mut mask = Mask::default();
    for (rule, (conditions, _)) in source.rules.iter().enumerate() {
        if accepts(conditions) {
            mask.insert(rule);
        }
    }
    mask
}

/// Where some rule begins or ceases to accept a size, ascending, without zero.
fn size_bounds(source: &Source<'_>) -> Vec<u64> {
    let ranges = source.rules.iter().map(|(conditions, _)| conditions.size);
    let mut bounds = ranges
        .flat_map(|range| [range.min.0, range.max.0.saturating_add(1)])
        .filter(|bound| *bound != 0 && *bound != u64::MAX)
        .collect::<Vec<_>>();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

/// The target of a pattern: a rule, or a flow of a queue.
#[derive(Clone, Copy)]
enum Leads {
    ToRule(usize),
    ToFlow { queue: usize, flow: u8 },
}

/// Appends the patterns: a head word each (classifier 8, length 8, to a flow 8, rule or queue 16,
/// flow 8), then its bytes.
fn add_patterns(source: &Source<'_>, words: &mut Vec<u64>) -> Result<(), CompileError> {
    let (offset, mut count) = (words.len() as u64, 0u64);
    let mut add = |classifier: Classifier, text: &str, leads: Leads| {
        if text.len() > PATTERN_MAX {
            return Err(CompileError::PatternTooLong);
        }
        let (to_flow, number, flow) = match leads {
            Leads::ToRule(rule) => (0, rule as u64, 0),
            Leads::ToFlow { queue, flow } => (1, queue as u64, u64::from(flow)),
        };
        let length = text.len() as u64;
        words.push(classifier as u64 | length << 8 | to_flow << 16 | number << 24 | flow << 40);
        for chunk in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(bytes));
        }
        count += 1;
        Ok(())
    };
    for (rule, (conditions, _)) in source.rules.iter().enumerate() {
        for classifier in CLASSIFIERS {
            for text in patterns(conditions, classifier) {
                add(classifier, text, Leads::ToRule(rule))?;
            }
        }
    }
    for (queue, (texts, _)) in source.queues.iter().enumerate() {
        for (text, flow) in texts {
            add(Classifier::Context, text, Leads::ToFlow { queue, flow: *flow })?;
        }
    }
    words[PATTERNS] = offset | count << 32;
    Ok(())
}

/// Words that can be read: plain ones, or ones that others may be writing.
pub trait Words {
    /// The word at `index`; zero beyond the end.
    fn word(&self, index: usize) -> u64;
}

impl Words for [u64] {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.get(index).copied().unwrap_or(0)
    }
}

impl Words for [AtomicU64] {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// Compiled rules, wherever their words are.
#[derive(Debug)]
pub struct RuleTable<'a, W: Words + ?Sized>(pub &'a W);

impl<W: Words + ?Sized> RuleTable<'_, W> {
    /// Whether any rule, or for contexts any queue, has a condition on this classifier. If not,
    /// there is no need to find out a value for it.
    pub fn uses(&self, classifier: Classifier) -> bool {
        let queues = self.0.word(HEAD) >> 48 != 0;
        let rules = self.0.word(DEFAULT) >> (16 + classifier as u64) & 1 == 1;
        rules || (classifier == Classifier::Context && queues)
    }

    fn mask(&self, offset: usize) -> Mask {
        Mask(core::array::from_fn(|word| self.0.word(offset + word)))
    }

    /// The channel of a request: `known` are the masks of its origin (process, thread, context) and
    /// of its object. None if it matches no rule and there is no default.
    #[inline]
    pub fn classify(
        &self,
        operation: Operation,
        size: u64,
        known: [&Mask; 2],
    ) -> Option<Destination> {
        let head = self.0.word(HEAD);
        let (rules, channels) = (head as u16 as usize, (head >> 16) as u16 as usize);
        let mut index = self.0.word(DEFAULT) as u8;
        if rules > 0 {
            let sizes = ((head >> 32) as u16 as usize).min(SIZES_MAX);
            let bounds = CHANNELS + channels * 2;
            let above = (0..sizes).take_while(|bound| self.0.word(bounds + bound) <= size).count();
            let of_operation = OPERATION + operation as usize * MASK;
            let of_size = bounds + sizes + above * MASK;
            for word in 0..rules.div_ceil(64).min(MASK) {
                let mut accepted = self.0.word(of_operation + word);
                // Word by word: most tables have one, and reading a mask that was just written as
                // a whole takes longer than all the rest.
                accepted &= known[0].0[word] & known[1].0[word];
                // Where no rule has a condition on the size there is no need to find its mask.
                if sizes > 0 {
                    accepted &= self.0.word(of_size + word);
                }
                if accepted != 0 {
                    let rule = word * 64 + accepted.trailing_zeros() as usize;
                    index = (self.0.word(TARGETS + rule / 8) >> (rule % 8 * 8)) as u8;
                    break;
                }
            }
        }
        if usize::from(index) >= channels {
            return None;
        }
        let entry = CHANNELS + usize::from(index) * 2;
        Some(Destination { head: self.0.word(entry), gates: self.0.word(entry + 1) })
    }

    /// The rules that accept `value` for `classifier`, and for a context its flows. Compares
    /// strings, allocates nothing.
    pub fn accepts(&self, classifier: Classifier, value: &[u8]) -> (Mask, Flows) {
        let mut mask = self.mask(UNUSED + classifier as usize * MASK);
        let mut flows = Flows(self.0.word(FLOWS));
        let mut decided = 0u16;
        self.each_pattern(classifier, |pattern, leads| match leads {
            Leads::ToRule(rule) => {
                if rule < RULES_MAX && !mask.contains(rule) && glob(pattern, value) {
                    mask.insert(rule);
                }
            }
            Leads::ToFlow { queue, flow } => {
                let queue = queue % QUEUES_MAX;
                if decided >> queue & 1 == 0 && glob(pattern, value) {
                    decided |= 1 << queue;
                    let shift = queue * 4;
                    flows.0 = flows.0 & !(0xf << shift) | u64::from(flow & 0xf) << shift;
                }
            }
        });
        (mask, flows)
    }

    fn each_pattern(&self, classifier: Classifier, mut see: impl FnMut(&[u8], Leads)) {
        let span = self.0.word(PATTERNS);
        let (mut offset, count) = (span as u32 as usize, (span >> 32) as usize);
        for _ in 0..count.min(WORDS_MAX) {
            let head = self.0.word(offset);
            let length = (head >> 8) as u8 as usize;
            let words = length.div_ceil(8);
            if head as u8 == classifier as u8 {
                let mut text = [0; 256];
                for (word, bytes) in text.chunks_exact_mut(8).take(words).enumerate() {
                    bytes.copy_from_slice(&self.0.word(offset + 1 + word).to_le_bytes());
                }
                let number = (head >> 24) as u16 as usize;
                let leads = match (head >> 16) as u8 {
                    0 => Leads::ToRule(number),
                    _ => Leads::ToFlow { queue: number, flow: (head >> 40) as u8 },
                };
                see(&text[..length], leads);
            }
            offset = offset.saturating_add(1 + words);
        }
    }
}

/// Whether `value` matches `pattern`: `?`, `*`, `**`, `[…]`, `{a,b}`.
pub fn glob(pattern: &[u8], value: &[u8]) -> bool {
    fast_glob::glob_match(pattern, value)
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
