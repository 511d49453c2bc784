//! The policy's reader: any text is read or refused with a place in it, and what is read can be
//! put in force.

use std::path::Path;

use tidegate_model::{Policy, PolicyError, Time};
use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer, Setup, ToPeer};
use tidegate_proto::message::{FromStage, Hello, StageInfo, ToStage, VERSION};
use tidegate_proto::stage::{self, Machine};

/// Why a stage may refuse a policy that is one: it was promised so much and no more.
const CAPACITY: [&str; 7] = [
    "more than",
    "has more than",
    "a pattern of more than",
    "patterns of more than",
    "a queue gate names",
    "needs the layered interface",
    "or more",
];

/// The input is the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Policy::parse(&text) {
        Ok(policy) => {
            let again = format!("{text}\n# end");
            assert_eq!(Policy::parse(&again).as_ref(), Ok(&policy), "a comment changes it");
            let bytes = postcard::to_allocvec(&policy).expect("a policy is data");
            // Resources and groups stay with the controller.
            if policy.resources.is_empty() && policy.groups.is_empty() {
                assert_eq!(postcard::from_bytes(&bytes).as_ref(), Ok(&policy), "does not travel");
            }
            if policy.feasible().is_ok() {
                put_in_force(&policy);
            }
        }
        Err(error) => has_a_location(&text, &error),
    }
}

pub(super) fn has_a_location(text: &str, error: &PolicyError) {
    assert!(!error.message.is_empty());
    assert!(error.span.start <= error.span.end, "{error:?}");
    assert!(text.get(error.span.clone()).is_some(), "{error:?} is not in the text");
    let lines = text.matches('\n').count() + 1;
    assert!((1..=lines).contains(&error.line) && error.column >= 1, "{error:?}");
}

/// Whatever can be read and is feasible reaches every stage that it admits, as a whole.
fn put_in_force(policy: &Policy) {
    let mut controller = Controller::new(Time::ZERO, Setup::default(), Some((1, policy.clone())));
    let mut names: Vec<String> = policy.tenants.iter().map(|t| t.name.clone()).take(3).collect();
    names.push(String::new());
    for (number, tenant) in names.into_iter().enumerate() {
        let info = StageInfo { tenant, ..StageInfo::default() };
        let mut machine = Machine::new(Time::ZERO, info.clone(), true);
        machine.on_connected(Time::ZERO);
        let (to, peer) = (ConnectionId(number as u64), Peer::default());
        controller.on_hello(Time::ZERO, to, peer, Hello::Stage { version: VERSION, info });
        while let Some(output) = controller.poll_output() {
            let Output::Send { message: ToPeer::Stage(message), .. } = output else { continue };
            let applies = matches!(message, ToStage::Apply { .. });
            machine.on_message(Time::ZERO, message);
            let answers = std::iter::from_fn(|| machine.poll_output());
            let applied = answers.filter_map(|answer| match answer {
                stage::Output::Send(FromStage::Applied { error, .. }) => Some(error),
                _ => None,
            });
            let applied: Vec<_> = applied.collect();
            assert_eq!(applied.len(), usize::from(applies), "one answer to one change");
            for error in applied.into_iter().flatten() {
                let known = CAPACITY.iter().any(|reason| error.reason.contains(reason));
                assert!(known, "a stage refuses a policy that is one: {}", error.reason);
            }
        }
    }
}

/// The policies of this repository, and one with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![EVERYTHING.as_bytes().to_vec()];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
    let Ok(entries) = std::fs::read_dir(folder) else { return seeds };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    seeds.extend(paths.iter().filter_map(|path| std::fs::read(path).ok()));
    seeds
}

const EVERYTHING: &str = r#"
budget = ["1000MiB/s", "30k iops"]
period = "1s"
redistribute = "100ms"
account = "device"
fallback = "reservation"

[[tenant]]
name = "kv"
class = "high"
reservation = "400MiB/s"
limit = ["600MiB/s", "20k iops"]
weight = 300
burst = "1MiB"
users = ["root", "1000"]

[[tenant]]
name = "rest"
burst = "20ms"

[[channel]]
name = "compaction"
tenant = "kv"
gates = [
  { kind = "token-bucket", rate = "50MiB/s", burst = "1MiB" },
  { kind = "priority", depth = 2, order = ["flush", "compaction_l0"] },
  { kind = "fair-queue", depth = 4, weights = { flush = 3, "compaction*" = 1 } },
  { kind = "concurrency", depth = 8 },
  { kind = "latency-probe" },
  { kind = "no-op" },
  { kind = "compress", level = 3 },
  { kind = "encrypt", key = "k" },
]

[[match]]
channel = "compaction"
workflow = "rocksdb:low"
size = "4KiB..64KiB"

[[match]]
tenant = "rest"
process = ["tar", "restic*"]
path = "/data/{a,b}/**"
operation = ["read", "metadata"]
user = "nobody"
cgroup = "/batch/*"
context = "scan"
size = ">=1MiB"
"#;

/// Words of the language.
pub const WORDS: &[&str] = &[
    "[[tenant]]\n",
    "[[channel]]\n",
    "[[match]]\n",
    "budget = ",
    "period = ",
    "redistribute = ",
    "account = ",
    "fallback = ",
    "name = ",
    "class = ",
    "reservation = ",
    "limit = ",
    "weight = ",
    "burst = ",
    "users = ",
    "tenant = ",
    "gates = [",
    "background = ",
    "minimum = ",
    "kind = ",
    "rate = ",
    "depth = ",
    "weights = {",
    "order = [",
    "level = ",
    "key = ",
    "channel = ",
    "process = ",
    "workflow = ",
    "context = ",
    "path = ",
    "cgroup = ",
    "user = ",
    "operation = ",
    "size = ",
    "\"kv\"",
    "\"compaction\"",
    "\"token-bucket\"",
    "\"1B/s\"",
    "\"18446744073709551615B/s\"",
    "\"1.5PiB\"",
    "\"0 iops\"",
    "\"9999999999999G iops\"",
    "\"1ns\"",
    "\"500h\"",
    "\"4KiB..\"",
    "\"..4KiB\"",
    "\">=16EiB\"",
    "\"{a,{b,c}}\"",
    "\"[!a-\"",
    "\"**/**/**\"",
    "\"\\u00e9\"",
    "\"é\"",
    "'''",
    "\n",
    "]",
    "}",
    ",",
    "=",
    "0",
    "-1",
    "9223372036854775807",
    "# ",
    "\u{feff}",
];
