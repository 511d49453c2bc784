//! Children of `fork`, which have the memory of a process but none of its threads: nothing may wait
//! there for a thread that does not exist.
#![cfg(all(feature = "agent", feature = "transform"))]
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate_model::{ChannelSpec, Class, GateSpec, Operation, TenantId};
use tidegate_proto::message::Rule;
use tidegate_stage::scope;
use tidegate_stage::transform::{Keys, TransformError};
use tidegate_stage::{Request, Settings, StageAgent};

/// How long a child may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn agent() -> StageAgent {
    let socket = "/nonexistent/controller.sock".into();
    StageAgent::start(Settings { socket, ..Settings::default() }).unwrap()
}

fn only(gate: &str, spec: GateSpec) -> Vec<Rule> {
    vec![
        Rule::CLEAR,
        Rule::gate(gate, spec),
        Rule::channel(ChannelSpec {
            name: "c".into(),
            tenant: TenantId(1),
            class: Class::High,
            gates: vec![gate.into()],
        }),
        Rule::default_channel("c"),
    ]
}

fn encrypt(key: &str) -> GateSpec {
    GateSpec::Encrypt { key: key.into() }
}

/// Runs `body` in a child.
fn fork(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs `body` and ends without returning into the test's threads.
    match unsafe { libc::fork() } {
        0 => {
            let went_well =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!went_well)) }
        }
        child => child,
    }
}

/// Waits for a child and says whether it went well; one that hangs is killed.
fn went_well(child: libc::pid_t) -> bool {
    let begin = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the child is ours and not waited for yet.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if begin.elapsed() < PATIENCE => std::thread::yield_now(),
            0 => {
                // SAFETY: as above; it is killed and waited for.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &raw mut status, 0);
                }
                return false;
            }
            _ => return status == 0,
        }
    }
}

#[test]
fn a_child_can_look_up_a_name_while_its_parent_did() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    scope::intern(format!("job {thread} {number}").as_bytes());
                }
            });
        }
        let hung = (0..200).find(|_| {
            !went_well(fork(|| {
                scope::intern(b"child");
                true
            }))
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(hung, None, "a child hangs");
    });
}

#[test]
fn rules_are_refused_in_a_child_and_its_handle_is_only_forgotten() {
    let agent = agent();
    agent.apply(only("g", GateSpec::NoOp)).unwrap();
    let parent = std::process::id().to_string();
    let mut agent = Some(agent);
    let child = fork(|| {
        let error = agent.as_ref().unwrap().apply(only("h", GateSpec::NoOp)).unwrap_err();
        let names_parent = error.reason.contains("forked") && error.reason.contains(&parent);
        drop(agent.take());
        names_parent
    });
    assert!(went_well(child), "the child hangs or fails");
    let agent = agent.unwrap();
    agent.apply(only("i", GateSpec::NoOp)).expect("the parent's agent goes on");
}

#[test]
fn a_child_writes_nothing_in_plain_text_when_its_parent_changes_the_rules() {
    let agent = agent();
    let keys = Keys::default().with("k1", &[1; 32]).with("k2", &[2; 32]);
    let layered = agent.layered(keys);
    let request = Request::new(Operation::Write, 6);
    let generation = || agent.stage().layout().header.generation.load(Ordering::Acquire);
    for (before, after) in [
        (GateSpec::NoOp, encrypt("k1")),
        (encrypt("k1"), encrypt("k2")),
        (GateSpec::Concurrency { depth: 1 }, encrypt("k1")),
    ] {
        agent.apply(only("g", before)).unwrap();
        let seen = generation();
        let child = fork(|| {
            while generation() == seen {
                std::thread::yield_now();
            }
            let refused = layered.write(&request, b"secret", b"").map(drop);
            refused == Err(TransformError::Forked)
        });
        agent.apply(only("g", after)).unwrap();
        assert!(went_well(child), "written as it is, or hanging");
    }
    // A request without content passes in a child under any rules.
    let seen = generation();
    let child = fork(|| {
        while generation() == seen {
            std::thread::yield_now();
        }
        layered.write(&request, b"secret", b"").is_ok()
    });
    agent.apply(only("q", GateSpec::Concurrency { depth: 1 })).unwrap();
    assert!(went_well(child));
}
