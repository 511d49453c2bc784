//! C calls by which a program without a controller sets its own rules.

use std::ffi::{c_char, c_int};

use tidegate_model::gate::{Burst, Throughput, Unit};
use tidegate_model::operation::OPERATIONS;
use tidegate_model::{
    Bytes, ChannelSpec, Class, Conditions, GateSpec, OperationSet, SizeRange, TenantId,
};
use tidegate_proto::message::{Differentiation, Enforcement, Housekeeping, Rule as Change};

use crate::arguments::{Versioned, optional, sized, slice, text};
use crate::stage::{StageHandle, handle};
use crate::status::{Problem, TIDEGATE_REFUSED, guarded};

/// Lets every request through; useful for counting.
pub const TIDEGATE_GATE_OPEN: u32 = 0;
/// A token bucket of bytes.
pub const TIDEGATE_GATE_BYTES: u32 = 1;
/// A token bucket of operations.
pub const TIDEGATE_GATE_OPERATIONS: u32 = 2;
/// At most `depth` requests in service, first come, first served.
pub const TIDEGATE_GATE_CONCURRENCY: u32 = 3;
/// Compresses with zstd (tidegate_write() and tidegate_restore() only).
pub const TIDEGATE_GATE_COMPRESS: u32 = 4;
/// Encrypts with AES-256-GCM (tidegate_write() and tidegate_restore() only).
pub const TIDEGATE_GATE_ENCRYPT: u32 = 5;

/// Served before everything else.
pub const TIDEGATE_URGENT: u32 = 0;
/// The largest share.
pub const TIDEGATE_HIGH: u32 = 1;
/// The usual share.
pub const TIDEGATE_MEDIUM: u32 = 2;
/// The rest.
pub const TIDEGATE_LOW: u32 = 3;

const _: () = assert!(TIDEGATE_LOW == Class::Low as u32, "the header's numbers are the model's");

/// A gate. Fields that its kind does not use are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Gate {
    /// sizeof(tidegate_gate).
    pub size: usize,
    /// One of TIDEGATE_GATE_OPEN to TIDEGATE_GATE_ENCRYPT.
    pub kind: u32,
    /// For concurrency: how many requests are in service at a time, from 1 to 256.
    pub depth: u32,
    /// For buckets: bytes or operations per second; from 2^40 on there is no limit.
    pub rate: u64,
    /// For buckets: how many bytes or operations may pass at once after a pause. By default what
    /// the rate yields in ten milliseconds.
    pub burst: u64,
    /// For compression: the level, from 1, fast, to 19, small. By default 3.
    pub level: i32,
    /// For encryption: the name of a key in tidegate_settings.
    pub key: *const c_char,
}

// SAFETY: it begins with its size, and consists of integers and pointers.
unsafe impl Versioned for Gate {
    const NAME: &'static str = "tidegate_gate";
}

/// Conditions of a rule. A field that is zero is no condition.
///
/// Patterns are globs: `?` is one character, `*` any run without `/`, `**` any run, `[a-z]` a
/// class, `{a,b}` a choice; everything else stands for itself.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Rule {
    /// sizeof(tidegate_rule).
    pub size: usize,
    /// Operations, as a sum of 1u << TIDEGATE_READ and so on.
    pub operations: u64,
    /// The least bytes that it moves.
    pub bytes_min: u64,
    /// The most bytes that it moves.
    pub bytes_max: u64,
    /// A pattern of contexts; see tidegate_scope_enter().
    pub context: *const c_char,
    /// A pattern of absolute paths.
    pub path: *const c_char,
    /// A pattern of thread names.
    pub workflow: *const c_char,
}

// SAFETY: it begins with its size, and consists of integers and pointers.
unsafe impl Versioned for Rule {
    const NAME: &'static str = "tidegate_rule";
}

/// Makes a gate, or changes the one of that name and kind in place, keeping who waits there. A gate
/// has no effect until a channel names it.
///
/// Rules of the program's own hold until a controller connects, which replaces them. They belong to
/// the process that opened the stage: in a child of fork() this function and the others here answer
/// TIDEGATE_REFUSED.
///
/// TIDEGATE_INVALID: a null pointer, an unknown kind.
/// TIDEGATE_REFUSED: a field is out of range, or there are too many gates (255).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_set_gate(
    stage: *const StageHandle,
    name: *const c_char,
    gate: *const Gate,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires.
        let (stage, name, gate) = unsafe { (handle(stage)?, text(name, "name")?, sized(gate)?) };
        // SAFETY: the key's name is null or text.
        let spec = unsafe { gate_spec(&gate) }?;
        let change = Housekeeping::SetGate { name: name.into(), spec };
        apply(stage, Change::Housekeeping(change))
    })
}

/// # Safety
/// The key's name is null or text with a zero at its end.
unsafe fn gate_spec(gate: &Gate) -> Result<GateSpec, Problem> {
    let bucket = |unit| {
        let burst = if gate.burst == 0 { Burst::DEFAULT } else { Burst::Size(Bytes(gate.burst)) };
        GateSpec::TokenBucket { rate: Throughput::new(unit, gate.rate), burst }
    };
    Ok(match gate.kind {
        TIDEGATE_GATE_OPEN => GateSpec::NoOp,
        TIDEGATE_GATE_BYTES => bucket(Unit::Bytes),
        TIDEGATE_GATE_OPERATIONS => bucket(Unit::Operations),
        TIDEGATE_GATE_CONCURRENCY => GateSpec::Concurrency { depth: gate.depth },
        TIDEGATE_GATE_COMPRESS => {
            GateSpec::Compress { level: if gate.level == 0 { 3 } else { gate.level } }
        }
        TIDEGATE_GATE_ENCRYPT => {
            // SAFETY: the caller's promise.
            let key = unsafe { text(gate.key, "key") }?;
            GateSpec::Encrypt { key: key.into() }
        }
        kind => return Err(Problem::invalid(format!("there is no kind of gate {kind}"))),
    })
}

/// Makes a channel, or changes the one of that name, keeping its counters: a request that flows
/// through it passes `gate_count` gates in the order of their names at `gates`. A channel has no
/// effect until a rule, or the default, names it.
///
/// tenant: whose its requests are, for their tags.
/// urgency: one of TIDEGATE_URGENT to TIDEGATE_LOW.
///
/// TIDEGATE_INVALID: a null pointer, an unknown urgency.
/// TIDEGATE_REFUSED: a gate that there is not or that is named twice, more than 8 gates, more than
/// 128 channels; or queue gates (concurrency, fair, priority) in an order that contradicts another
/// channel's, for their requests would wait for each other for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_set_channel(
    stage: *const StageHandle,
    name: *const c_char,
    tenant: u16,
    urgency: u32,
    gates: *const *const c_char,
    gate_count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires.
        let (stage, name, gates) =
            unsafe { (handle(stage)?, text(name, "name")?, slice(gates, gate_count, "gates")?) };
        if urgency > TIDEGATE_LOW {
            return Err(Problem::invalid(format!("there is no urgency {urgency}")));
        }
        // SAFETY: each is null or text with a zero at its end.
        let gates = gates.iter().map(|gate| unsafe { text(*gate, "a gate") }.map(String::from));
        let spec = ChannelSpec {
            name: name.into(),
            tenant: TenantId(tenant),
            class: Class::from_nvme_priority(urgency as u8),
            gates: gates.collect::<Result<_, _>>()?,
        };
        apply(stage, Change::Housekeeping(Housekeeping::SetChannel(spec)))
    })
}

/// Sends requests that match no rule to this channel. Without a default they pass unhindered.
///
/// TIDEGATE_INVALID: a null pointer.
/// TIDEGATE_REFUSED: there is no such channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_set_default(
    stage: *const StageHandle,
    channel: *const c_char,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires.
        let (stage, channel) = unsafe { (handle(stage)?, text(channel, "channel")?) };
        apply(stage, Change::Differentiation(Differentiation::Default { channel: channel.into() }))
    })
}

/// Adds a rule behind those that there are: requests that match it, and none before it, go to this
/// channel.
///
/// TIDEGATE_INVALID: a null pointer, an operation that there is not.
/// TIDEGATE_REFUSED: there is no such channel, a pattern is longer than 255 bytes, or there are too
/// many rules (256).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_add_rule(
    stage: *const StageHandle,
    rule: *const Rule,
    channel: *const c_char,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires.
        let (stage, rule, channel) =
            unsafe { (handle(stage)?, sized(rule)?, text(channel, "channel")?) };
        // SAFETY: patterns are null or text with a zero at their end.
        let conditions = unsafe { conditions(&rule) }?;
        let (place, channel) = (u32::MAX, channel.into());
        let change = Differentiation::Insert { index: place, conditions, channel };
        apply(stage, Change::Differentiation(change))
    })
}

/// # Safety
/// Patterns are null or text with a zero at their end.
unsafe fn conditions(rule: &Rule) -> Result<Conditions, Problem> {
    let mut operation = if rule.operations == 0 { OperationSet::ALL } else { OperationSet::EMPTY };
    if rule.operations >> OPERATIONS.len() != 0 {
        return Err(Problem::invalid("a rule asks for an operation that there is not"));
    }
    for (known, _) in OPERATIONS {
        if rule.operations >> known as u32 & 1 == 1 {
            operation = operation.union(OperationSet::of(&[known]));
        }
    }
    let max = if rule.bytes_max == 0 { u64::MAX } else { rule.bytes_max };
    let list = |pattern, what| {
        // SAFETY: the caller's promise.
        let text = unsafe { optional(pattern, what) }?;
        Ok::<_, Problem>(text.map(String::from).into_iter().collect())
    };
    Ok(Conditions {
        context: list(rule.context, "context")?,
        path: list(rule.path, "path")?,
        workflow: list(rule.workflow, "workflow")?,
        operation,
        size: SizeRange { min: Bytes(rule.bytes_min), max: Bytes(max) },
        ..Conditions::default()
    })
}

/// Changes the rate of a bucket, in bytes or operations per second. Requests that wait there notice
/// within a millisecond.
///
/// TIDEGATE_INVALID: a null pointer.
/// TIDEGATE_REFUSED: there is no such gate, or it is no bucket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_set_rate(
    stage: *const StageHandle,
    gate: *const c_char,
    rate: u64,
) -> c_int {
    guarded(|| {
        // SAFETY: null, or as the header requires.
        let (stage, gate) = unsafe { (handle(stage)?, text(gate, "gate")?) };
        let kinds = [Unit::Bytes, Unit::Operations].map(|unit| Throughput::new(unit, rate));
        let change = |rate| Change::Enforcement(Enforcement::Rate { gate: gate.into(), rate });
        // The unit is the gate's; only one of the two is accepted.
        apply(stage, change(kinds[0])).or_else(|_| apply(stage, change(kinds[1])))
    })
}

/// Removes every rule, channel and gate. Requests pass unhindered, and those that wait go.
///
/// TIDEGATE_INVALID: a null pointer.
/// TIDEGATE_REFUSED: this process is a child of the one that opened the stage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_clear_rules(stage: *const StageHandle) -> c_int {
    guarded(|| {
        // SAFETY: null, or open.
        let stage = unsafe { handle(stage) }?;
        apply(stage, Change::Housekeeping(Housekeeping::Clear))
    })
}

fn apply(stage: &StageHandle, change: Change) -> Result<(), Problem> {
    let refused = |reason| Problem::new(TIDEGATE_REFUSED, reason);
    stage.agent.apply(vec![change]).map_err(|error| refused(error.reason))
}
