//! The messages between a controller, its peers and its operators.
//!
//! A connection opens with a [`Hello`] from the side that connected. A stage then receives
//! [`ToStage`] and sends [`FromStage`]; a storage node uses the messages of
//! [`cluster`]; a gateway receives [`ToGateway`] and sends [`FromGateway`]; an
//! operator sends [`OperatorRequest`] and receives one [`Reply`] to each. Adding a variant at the
//! end of an enum, or a whole enum, keeps the version; everything else raises it.
//!
//! The five calls of PAIO's control interface (Table 2) are here as: `stage_info`, the
//! [`StageInfo`] of a hello; `hsk_rule`, `dif_rule`, `enf_rule`, [`ToStage::Apply`] with one
//! [`Rule`] of the kind or any number, all or none of which take effect; `collect`,
//! [`ToStage::Collect`]. A variant named `Unused` keeps the number of a message that is gone;
//! receivers ignore or refuse it.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize};
use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_model::gate::Throughput;
use tidegate_model::policy::Fallback;
use tidegate_model::{ChannelSpec, Conditions, Discipline, GateSpec, Policy, Span, StageId};

use self::cluster::NodeInfo;
use self::counts::{GatewayCounts, GatewayPressure, PathTimes};
use self::latency::RequestLatency;
use crate::recording::Batch;

pub mod cluster;
pub mod counts;
pub mod latency;

/// The version of these messages. A peer sends its version in its hello, and the controller refuses
/// another one.
pub const VERSION: u16 = 10;

/// The first message of a connection, from the side that connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// A data plane stage.
    Stage {
        /// The version it speaks.
        version: u16,
        /// Its description.
        info: StageInfo,
    },
    /// An operator, who queries and instructs: the command line.
    Operator {
        /// The version it speaks.
        version: u16,
    },
    /// A storage node.
    Node {
        /// The version it speaks.
        version: u16,
        /// Its description.
        info: NodeInfo,
    },
    /// A gateway.
    Gateway {
        /// The version it speaks.
        version: u16,
        /// Its name in the cluster file.
        name: String,
    },
    /// A data node, which uses the messages of [`crate::data_node`].
    DataNode {
        /// The version it speaks.
        version: u16,
        /// Its name in the cluster file.
        name: String,
    },
}

/// From a controller to a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// The policy in force, from now on: it assigns requests to tenants.
    Policy {
        /// Its revision.
        revision: u64,
        /// The policy itself.
        policy: Policy,
    },
    /// The gateway is not accepted; the connection ends.
    Refused {
        /// The version that the controller speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// Asks for [`FromGateway::Counts`].
    Count,
    /// Asks for [`FromGateway::Recorded`], and to go on recording for [`crate::recording::LEASE`].
    Record {
        /// The recording; another one than before begins a new one. Zero ends it, without an
        /// answer.
        session: u64,
    },
    /// Programs under the policy, whose requests have the tenant of the program
    /// ([`crate::programs`]). Sent to gateways on the controller's machine only.
    Programs {
        /// The machine, since it was started, and the namespace of processes' numbers.
        space: String,
        /// This is the first such message on the connection.
        is_first: bool,
        /// Programs that have begun, or whose tenant is another one now.
        joined: Vec<Program>,
        /// Processes that are programs no longer.
        left: Vec<ProcessId>,
    },
}

/// A process of a machine. No other one is the same before the machine is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it began, in the kernel's ticks since the machine was started.
    pub started: u64,
}

/// A process that a stage has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The process.
    pub process: ProcessId,
    /// The number of its user.
    pub uid: u32,
    /// The tenant that it acts for; empty if it goes by the policy's rules alone.
    pub tenant: String,
}

/// From a gateway to its controller.
#[allow(clippy::large_enum_variant, reason = "all but the last of them are the large one")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGateway {
    /// Its counters: the answer to [`ToGateway::Count`], and once more before it ends.
    Counts(GatewayCounts),
    /// The gateway ends: it serves no client any more.
    Disconnect,
    /// Volumes that it does not serve although each part is well at its node, all of them. Sent
    /// before [`Self::Counts`] where that has changed, and first on a connection if there are any.
    Faults(Vec<VolumeFault>),
    /// The use of its bounds: follows all [`Self::Counts`].
    Pressure(GatewayPressure),
    /// Latencies of requests: follows [`Self::Pressure`] with those that have changed since the
    /// last policy or report on this connection, if there are any.
    Latency(Vec<RequestLatency>),
    /// The answer to [`ToGateway::Record`].
    Recorded(Batch),
    /// Where requests spent their latencies since the gateway's process began, by tenant: follows
    /// [`Self::Latency`] with the tenants for which that has changed since the last policy or
    /// report on this connection, if there are any. The empty name is that of requests without a
    /// tenant.
    Paths(Vec<(String, PathTimes)>),
}

/// A volume whose parts do not belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFault {
    /// The volume's name.
    pub volume: String,
    /// How its parts differ and how to mend it, for people.
    pub reason: String,
}

/// The description of a stage (PAIO's `stage_info`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageInfo {
    /// The number it had on an earlier connection, or zero.
    pub stage: StageId,
    /// The tenant it acts for; empty to go by the policy's rules alone.
    pub tenant: String,
    /// The process that holds the connection.
    pub pid: u32,
    /// The command line it runs, shortened.
    pub command: String,
    /// The machine's name.
    pub host: String,
    /// The release of Tidegate that the stage runs.
    pub release: String,
    /// The policy revision whose rules it has, or zero.
    pub revision: u64,
    /// The rates that it enforces as it connects. Hellos of versions before 4 end without them.
    #[serde(skip_serializing_if = "Held::is_empty", deserialize_with = "held_or_none")]
    pub held: Held,
}

/// State of a stage as it connects: its rates, for a controller that has started anew, and the
/// memory that it shares with its programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its token buckets.
    pub buckets: Vec<HeldBucket>,
    /// For how long from now their rates last; zero if they have no end, or it has come.
    pub lease: Span,
    /// The name of its segment's file in the directory of its user; empty if other processes have
    /// no part in the segment. Hellos of versions before 6 end without it.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "name_or_none")]
    pub segment: String,
}

impl Held {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A token bucket of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBucket {
    /// Its gate's name.
    pub gate: String,
    /// The rate in force.
    pub rate: Throughput,
    /// The rate without a controller.
    pub safe: Throughput,
    /// For how long from now it lets no request go, while its turn has not come.
    pub held: Span,
}

/// The end of a hello. A hello that ends before it has an earlier version, or its stage holds
/// nothing. Bytes that cannot be read are left over, and the frame is refused for them.
fn held_or_none<'de, D: Deserializer<'de>>(rest: D) -> Result<Held, D::Error> {
    Ok(Held::deserialize(rest).unwrap_or_default())
}

/// The same of the last name in it.
fn name_or_none<'de, D: Deserializer<'de>>(rest: D) -> Result<String, D::Error> {
    Ok(String::deserialize(rest).unwrap_or_default())
}

/// From a controller to a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStage {
    /// The stage is accepted.
    Welcome {
        /// The version that the controller speaks.
        version: u16,
        /// The number that the stage has from now on.
        stage: StageId,
        /// How long the stage may go without a message before it counts the controller as lost.
        silence_max: Span,
        /// The rates to enforce then.
        fallback: Fallback,
    },
    /// The stage is not accepted; the connection ends.
    Refused {
        /// The version that the controller speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
        /// Whether asking again later can help.
        retry: bool,
    },
    /// To a stage of another host: its rates last for `length` from when it sent the report of this
    /// round on this connection, or its hello for round zero. Then it goes over to its safe rates.
    Lease {
        /// The round.
        round: u64,
        /// How long the rates last.
        length: Span,
    },
    /// Changes the stage: all of the rules take effect together, or none.
    Apply {
        /// The policy revision that the rules bring the stage to.
        revision: u64,
        /// Changes, in order.
        rules: Vec<Rule>,
    },
    /// Asks for [`FromStage::Report`].
    Collect {
        /// Comes back in the report.
        round: u64,
        /// Whether histograms are wanted as well.
        detail: bool,
    },
}

/// From a stage to its controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromStage {
    /// Has no meaning.
    Unused,
    /// The rules of an [`ToStage::Apply`] took effect, or did not.
    Applied {
        /// The revision they were for.
        revision: u64,
        /// Why none of them took effect.
        error: Option<RuleError>,
    },
    /// The counters of the stage.
    Report(StageReport),
    /// The stage ends: nothing uses it any more.
    Disconnect,
    /// The work of the storage behind channels of which every request is timed, read with the
    /// counters of the report that follows. Without such channels it is not sent.
    Storage(StorageReport),
}

/// One change to a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// Makes, changes or removes the stage's gates and channels, or clears all of it.
    Housekeeping(Housekeeping),
    /// Changes which requests go to which channel.
    Differentiation(Differentiation),
    /// Changes the state of a gate.
    Enforcement(Enforcement),
}

impl Rule {
    /// Clears the stage.
    pub const CLEAR: Self = Self::Housekeeping(Housekeeping::Clear);

    /// Makes or changes a gate.
    pub fn gate(name: impl Into<String>, spec: GateSpec) -> Self {
        Self::Housekeeping(Housekeeping::SetGate { name: name.into(), spec })
    }

    /// Makes or changes a channel.
    pub const fn channel(spec: ChannelSpec) -> Self {
        Self::Housekeeping(Housekeeping::SetChannel(spec))
    }

    /// Inserts a rule for requests that meet these conditions.
    pub fn insert(index: u32, conditions: Conditions, channel: impl Into<String>) -> Self {
        let channel = channel.into();
        Self::Differentiation(Differentiation::Insert { index, conditions, channel })
    }

    /// Sends requests that match no rule to this channel.
    pub fn default_channel(channel: impl Into<String>) -> Self {
        Self::Differentiation(Differentiation::Default { channel: channel.into() })
    }

    /// Changes the rate of a gate.
    pub fn rate(gate: impl Into<String>, rate: Throughput) -> Self {
        Self::Enforcement(Enforcement::Rate { gate: gate.into(), rate })
    }

    /// Lets no request pass a gate's bucket for so long.
    pub fn hold(gate: impl Into<String>, span: Span) -> Self {
        Self::Enforcement(Enforcement::Hold { gate: gate.into(), span })
    }
}

/// Makes, changes or removes gates and channels of a stage, or clears all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Housekeeping {
    /// Makes a gate, or changes the one of that name and kind in place, keeping the requests that
    /// wait there.
    SetGate {
        /// Its name, unique in the stage.
        name: String,
        /// Its kind and parameters.
        spec: GateSpec,
    },
    /// Has no meaning.
    UnusedGate,
    /// Makes a channel, or changes the one of that name, keeping its counters.
    SetChannel(ChannelSpec),
    /// Has no meaning.
    UnusedChannel,
    /// Removes every channel, gate and rule; the rules that follow in the same message build anew,
    /// and a channel or gate with the name of an earlier one keeps its counters and tokens.
    Clear,
}

/// Changes which requests go to which channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Differentiation {
    /// Inserts a rule before the one at `index`, or at the end if there are not so many.
    Insert {
        /// Its index, counting from zero; the first rule that matches a request decides.
        index: u32,
        /// The conditions that a request has to meet.
        conditions: Conditions,
        /// Where matching requests go.
        channel: String,
    },
    /// Removes the rule at `index`.
    Remove {
        /// Its index.
        index: u32,
    },
    /// Sends requests that match no rule to this channel. Without this rule, such requests pass
    /// unhindered and are counted.
    Default {
        /// The channel's name.
        channel: String,
    },
}

/// Changes the state of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Enforcement {
    /// A token bucket's rate. Sleepers notice within a millisecond.
    Rate {
        /// The gate's name.
        gate: String,
        /// Its new rate, in the unit it has.
        rate: Throughput,
    },
    /// Lets no request pass a token bucket for a while, also none that waits already. So a stage
    /// waits for what other stages of its tenant had beyond the tenant's limit. The end comes by
    /// itself, whether or not a controller and a supervisor are there by then.
    Hold {
        /// The gate's name.
        gate: String,
        /// For how long from now; zero to end an earlier hold.
        span: Span,
    },
}

/// Why none of a message's rules took effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleError {
    /// Which rule, counting from zero.
    pub rule: u32,
    /// Why, in words for people.
    pub reason: String,
}

/// The counters of a stage. They only grow while the stage lives, so a lost report loses nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// The round of the [`ToStage::Collect`] that requested it.
    pub round: u64,
    /// When the counters were read, in nanoseconds of the stage's own clock.
    pub at_ns: u64,
    /// Per channel.
    pub channels: Vec<ChannelReport>,
    /// Per gate.
    pub gates: Vec<GateReport>,
    /// Processes that use the stage now.
    pub processes: u32,
    /// Bytes that the device moved for them, as the kernel counts (`/proc/<pid>/io`, `read_bytes`
    /// and `write_bytes`), since they joined.
    pub device_bytes: u64,
    /// The I/O that the stage saw, and the I/O that passed it by.
    pub coverage: Coverage,
}

/// The work of the storage behind a stage, as its requests saw it. Only reads and writes of data
/// count. The counters only grow while the stage lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageReport {
    /// Requests that were let through.
    pub begun: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Bytes that they moved.
    pub read_bytes: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Bytes that they moved.
    pub written_bytes: u64,
    /// Their service times, without waits at gates.
    pub service: BucketCounts,
}

/// The traffic of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelReport {
    /// Its name.
    pub name: String,
    /// Requests that passed.
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Time they spent waiting at gates.
    pub waited_ns: u64,
    /// Waiting times, if requested. Requests that did not wait are not in it.
    pub waiting: BucketCounts,
    /// Service times of the timed requests, if requested.
    pub service: BucketCounts,
}

/// The delays at a gate, and its rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// Its name.
    pub name: String,
    /// Requests that had to wait at it.
    pub delayed: u64,
    /// Time they waited.
    pub waited_ns: u64,
    /// Requests that wait there now.
    pub waiting_now: u32,
    /// Bytes or operations that they wait with, as the gate counts; none at a queue.
    pub waiting_tokens: u64,
    /// Waiting times, if requested.
    pub waiting: BucketCounts,
    /// The rate in force, for a bucket.
    pub rate: Option<Throughput>,
}

/// The I/O that passed a stage, and the I/O that did not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Bytes of storage requests that passed the gates.
    pub seen_bytes: u64,
    /// Bytes that the processes moved by system calls in all, as the kernel counts (`rchar` and
    /// `wchar`), pipes and sockets included.
    pub syscall_bytes: u64,
    /// Calls that were let through on purpose, by reason.
    pub bypasses: Vec<Bypassed>,
}

/// Calls let through without passing a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypassed {
    /// The reason's name.
    pub reason: String,
    /// How often.
    pub calls: u64,
    /// How many bytes, where known.
    pub bytes: u64,
}

/// From an operator to a controller. Replies are JSON or text that the HTTP interface gives too, so
/// that there is one definition of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorRequest {
    /// Makes `policy` the one in force.
    Apply {
        /// Its text.
        policy: String,
        /// Where the text came from, for the history.
        source: String,
        /// Whether to return only what would change.
        dry_run: bool,
        /// Refuse unless this revision is in force; zero for any.
        expect: u64,
    },
    /// The status of the controller, its tenants, stages and cluster, as JSON.
    Status,
    /// The policy in force, as text.
    Policy,
    /// Why requests of a tenant were delayed in the last minute, as JSON.
    Delays {
        /// The tenant's name.
        tenant: String,
    },
    /// Chooses the scheduler of nodes, and keeps the choice across restarts.
    Choose {
        /// The node's name; none for all nodes.
        node: Option<String>,
        /// The scheduler; none for that of the cluster's file.
        scheduler: Option<Discipline>,
    },
    /// Records requests at all gateways: what has come since the last question, as JSON
    /// ([`crate::recording::collector::RecordingPart`]).
    Record {
        /// The recording; zero to begin one.
        session: u64,
        /// Whether it ends with the answer.
        is_last: bool,
    },
}

/// A controller's answer to a [`OperatorRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done, or here it is: the answer as JSON.
    Json(String),
    /// It is not done.
    Error {
        /// The exit code it deserves: 1 failure, 3 invalid, 4 infeasible.
        code: u8,
        /// Why, in words for people.
        message: String,
    },
    /// The connection ends: the versions differ, or the peer has no access.
    Refused {
        /// The version that the controller speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// A part of an answer that is longer than a message: see [`crate::pages`]. More follow, and
    /// the last is a [`Self::Json`].
    Page(String),
}
